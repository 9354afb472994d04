//! A session: the sole owner of its history, and of the run that goes on in it.

mod begin;
mod ending;
mod inputs;
mod open;
mod recovery;
mod run;
mod seeded;
mod turns;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::{
    Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent,
};
use tokio::sync::oneshot;

use super::agent::Agent;
use super::awake_session::SessionActivity;
use super::error::HostError;
use super::gauge::CountGuard;
use super::host_ref::HostRef;
use super::host_state::HostState;
use super::message::{AccumulatorMessage, RunAccepted, SessionMessage};
use super::publish::Publisher;
use super::request::RunRequest;
use super::run_actors::RunActors;
use super::snapshot::{CurrentRun, SessionSnapshot};
use crate::context::{History, Variables};
use crate::journal::{SessionLog, Urgency};
use crate::record::{Record, Seq, StopMode};
use crate::session::{IdempotencyKeys, OpenRun, RequestEffect};
use crate::turn::CancelReason;
use crate::types::{RunId, SessionId, SessionState, Usage};
pub(super) use begin::spawn;
use inputs::QueuedRun;
use run::{ActiveRun, NewRun};

/// Runs a session.
#[derive(Debug)]
pub(super) struct SessionActor;

pub(super) struct State {
    id: SessionId,
    agent: Arc<Agent>,
    /// The agent as the run that goes on, or the last one, has it.
    run_agent: Arc<Agent>,
    shared: Arc<HostState>,
    link: HostRef,
    publisher: Publisher,
    log: Arc<SessionLog>,
    history: History,
    variables: Variables,
    usage: Usage,
    /// The session's last turn, committed or not.
    turn: u32,
    run: Option<Box<ActiveRun>>,
    /// Those of the run, or those that wait for the next one.
    actors: Option<RunActors>,
    /// The run that the last host, or the last life of this session, left unfinished: it goes on
    /// when it is told to.
    suspended: Option<Box<OpenRun>>,
    /// Runs that wait for it to end. While there are any, a run goes on or the next one begins.
    queue: VecDeque<QueuedRun>,
    /// The run that begins next, with the place of the one that has just ended.
    next: Option<(NewRun, CountGuard)>,
    /// Which requests brought its inputs.
    requests: IdempotencyKeys,
    /// Which set of actors it has: each has its own number.
    epoch: u64,
    /// Accumulators that were let go, whose last tools still have their grace.
    lingering: HashSet<ActorId>,
    /// What others know of it.
    live: Arc<SessionActivity>,
    close: Closing,
    /// Those who want to see it.
    looking: Vec<RpcReplyPort<SessionSnapshot>>,
    /// Counted as awake.
    _awake: CountGuard,
}

/// How far the session's end has come.
enum Closing {
    No,
    /// When the run is over.
    Asked(Vec<RpcReplyPort<Result<(), HostError>>>),
    /// The records are deleted, or about to be; the last tools still have their grace.
    Closed,
}

impl Actor for SessionActor {
    type Msg = SessionMessage;
    type State = State;
    type Arguments = begin::Begun;

    async fn pre_start(
        &self,
        _: ActorRef<SessionMessage>,
        begun: begin::Begun,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State::begin_session(begun))
    }

    // An actor holds the largest future of its handlers for as long as it lives, so what begins and
    // recovers runs is boxed: a session that idles has none of that.
    async fn handle(
        &self,
        myself: ActorRef<SessionMessage>,
        message: SessionMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if !matches!(message, SessionMessage::Rest | SessionMessage::Hibernate { .. }) {
            state.touch();
        }
        match message {
            SessionMessage::StartRun { id, request, reply } => {
                let accepted = Box::pin(state.start_run(&myself, id, *request)).await;
                // A caller that is gone has started its run all the same.
                let _ = reply.send(accepted);
            }
            SessionMessage::Steer { input, request, reply } => {
                let _ = reply.send(state.steer(input, request));
            }
            SessionMessage::Stop { mode, reply } => {
                state.stop(mode);
                state.go_on_if_suspended(&myself).await;
                let _ = reply.send(state.log.last());
            }
            SessionMessage::GoOn => state.go_on(&myself).await,
            SessionMessage::Resume { reply } => {
                let resumed = state.resume(&myself).await;
                let _ = reply.send(resumed);
            }
            SessionMessage::Rest => {
                if state.run.is_none() {
                    state.let_actors_go();
                }
                return Ok(());
            }
            SessionMessage::Hibernate { idle } => {
                state.hibernate(&myself, idle);
                return Ok(());
            }
            SessionMessage::JournalFailed { error } => {
                state.fail(&myself, error);
                return Ok(());
            }
            SessionMessage::Interrupt { now } => state.interrupt(now),
            SessionMessage::Snapshot { reply } => {
                state.looking.push(reply);
            }
            SessionMessage::Close { reply } => {
                state.ask_to_close(reply);
                state.go_on_if_suspended(&myself).await;
            }
            SessionMessage::TurnCommitted { epoch, record } => {
                if state.awaits(epoch, &record) {
                    state.commit(*record);
                }
            }
            SessionMessage::QuestionsChanged { epoch, questions, rests } => {
                state.take_questions(epoch, questions, rests);
            }
            SessionMessage::TurnKnown { epoch } => state.turn_is_known(epoch),
            SessionMessage::Decide { key, decision, reply } => {
                state.go_on_if_suspended(&myself).await;
                state.decide(key, decision, reply);
            }
            #[cfg(test)]
            SessionMessage::NameActors { reply } => {
                let actors = state.actors.as_ref().filter(|_| state.run.is_some());
                let _ = reply.send(actors.map(RunActors::cells));
            }
        }
        state.begin_next(&myself).await;
        state.close_if_asked(&myself);
        state.show();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SessionMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                state.ended(&myself, &cell, reason.unwrap_or_default()).await;
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                state.ended(&myself, &cell, error.to_string()).await;
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.begin_next(&myself).await;
        state.close_if_asked(&myself);
        state.show();
        Ok(())
    }
}

impl State {
    /// Something happens in the session: it does not idle.
    fn touch(&self) {
        self.live.touched_ms.store(self.shared.clock_ms(), Ordering::Relaxed);
    }

    async fn start_run(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        id: RunId,
        request: RunRequest,
    ) -> Result<RunAccepted, HostError> {
        if !matches!(self.close, Closing::No) {
            return Err(HostError::SessionClosed);
        }
        let RunRequest { input, overrides, request, trace, queue } = request;
        if let Some(known) = self.known(request.as_ref())? {
            let RequestEffect::Run(id) = &known.brought else { return Err(HostError::KeyReused) };
            return Ok(RunAccepted { id: id.clone(), seq: known.seq, report: None });
        }
        if self.suspended.is_some() {
            return Err(HostError::Suspended);
        }
        if self.run.is_some() && !queue {
            return Err(HostError::RunInProgress);
        }
        if input.is_blank() {
            return Err(HostError::EmptyInput);
        }
        let agent = self.agent.with(&overrides)?;
        let (report, receiver) = oneshot::channel();
        let brought = RequestEffect::Run(id.clone());
        let run = NewRun {
            id: id.clone(),
            input,
            overrides,
            request: request.clone(),
            trace,
            agent,
            report: Some(report),
        };
        let seq = if self.run.is_some() {
            self.enqueue(run)?
        } else {
            let place = self.shared.place_for_a_run()?;
            self.begin(myself, run, place).await?
        };
        if let Some(request) = request {
            self.requests.remember(request, seq, brought);
        }
        Ok(RunAccepted { id, seq, report: Some(receiver) })
    }

    /// Begins a run that is accepted.
    async fn begin(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        run: NewRun,
        place: CountGuard,
    ) -> Result<Seq, HostError> {
        self.run_agent = Arc::clone(&run.agent);
        self.spawn_actors(myself).await.map_err(|_| self.shared.gone())?;
        let seq = self.begin_run(run, place);
        self.live.running.store(true, Ordering::Release);
        self.shared.show_counts();
        Ok(seq)
    }

    /// Ends the run. Asked again, only a stop that is sooner changes anything.
    fn stop(&mut self, mode: StopMode) {
        if let Some(run) = self.suspended.as_mut() {
            if run.stops.is_none() || mode == StopMode::Now {
                run.stops = Some(mode);
                self.log.append(vec![Record::StopAsked { mode }], Urgency::Lazy, || ());
                if mode == StopMode::AfterTurn {
                    run.machine.handle_stop_after_turn();
                }
            }
            return;
        }
        let Some(run) = self.run.as_mut() else { return };
        let heard = match mode {
            StopMode::Now => run.cancel == Some(CancelReason::Stop),
            StopMode::AfterTurn => run.cancel.is_some() || run.stops_after_turn,
        };
        if heard {
            return;
        }
        self.log.append(vec![Record::StopAsked { mode }], Urgency::Lazy, || ());
        match mode {
            StopMode::Now => self.cancel(CancelReason::Stop),
            StopMode::AfterTurn => {
                run.stops_after_turn = true;
                run.machine.handle_stop_after_turn();
            }
        }
    }

    fn interrupt(&mut self, now: bool) {
        self.tell_queue(&HostError::ShuttingDown);
        if now {
            self.cancel(CancelReason::Shutdown);
        } else if let Some(run) = self.run.as_mut() {
            // The turn that runs goes on; the next one is cancelled before it begins.
            run.cancel.get_or_insert(CancelReason::Shutdown);
            self.cancel_if_resting();
        }
    }

    /// A run that is to end waits for no people.
    fn cancel_if_resting(&mut self) {
        let resting = self.run.as_ref().filter(|run| run.open.is_resting());
        if let Some(why) = resting.and_then(|run| run.cancel) {
            self.cancel(why);
        }
    }

    /// Ends the running turn now, and with it the run. The first reason stands.
    fn cancel(&mut self, why: CancelReason) {
        let Some(run) = self.run.as_mut() else { return };
        let why = *run.cancel.get_or_insert(why);
        self.tell_accumulator(AccumulatorMessage::Cancel { why });
    }

    /// Shows it to those who want to see it, once all is known that there is to see.
    fn show(&mut self) {
        if self.run.as_ref().is_some_and(|run| run.open.is_unknown) {
            return;
        }
        for reply in std::mem::take(&mut self.looking) {
            // Whoever wanted to see it may be gone.
            let _ = reply.send(self.snapshot());
        }
    }

    fn snapshot(&self) -> SessionSnapshot {
        let run = self.run.as_ref();
        let current_run = run.map(|run| CurrentRun {
            run_id: run.id.clone(),
            turn: self.turn,
            suspended: false,
            approvals: run.open.approvals.clone(),
            results: self.results_so_far(&run.id, run.turn_after),
        });
        let suspended = self.suspended.as_ref().map(|run| CurrentRun {
            run_id: run.id.clone(),
            turn: self.turn,
            suspended: true,
            approvals: self.recorded_approvals(run.turn_after),
            results: self.results_so_far(&run.id, run.turn_after),
        });
        let current_run = current_run.or(suspended);
        let state = if current_run.is_some() { SessionState::Running } else { SessionState::Idle };
        SessionSnapshot {
            id: self.id.clone(),
            agent: self.agent.name.clone(),
            state,
            seq: self.log.last(),
            history: self.history.display_messages(),
            variables: self.variables.clone(),
            current_run,
            queued: self.queued_inputs(),
            usage: self.usage,
        }
    }

    /// An actor of this session is gone: as it should, or too early.
    async fn ended(&mut self, myself: &ActorRef<SessionMessage>, cell: &ActorCell, why: String) {
        if !self.lingering.remove(&cell.get_id()) {
            Box::pin(self.recover(myself, cell.get_id(), &why)).await;
        }
    }
}
