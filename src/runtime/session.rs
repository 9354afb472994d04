//! A session: the sole owner of its history, and of the run that goes on in it.

mod inputs;
mod open;
mod recovery;
mod run;
mod seeded;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ractor::{
    Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent,
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::agent::Agent;
use super::error::HostError;
use super::gauge::Held;
use super::handle::SessionHandle;
use super::message::{Accumulator, AccumulatorMessage, RunAccepted, SessionMessage};
use super::publish::Publisher;
use super::request::RunRequest;
use super::shared::Shared;
use super::snapshot::{CurrentRun, SessionSnapshot};
use crate::context::{History, Seed, Variables};
use crate::journal::{SessionLog, Urgency};
use crate::record::{Record, Seq, StopMode};
use crate::turn::CancelReason;
use crate::types::{RunId, SessionId, SessionState, Usage};
use inputs::QueuedRun;
use run::{ActiveRun, NewRun};

/// Runs a session.
#[derive(Debug)]
pub(super) struct SessionActor;

/// What a session begins with.
pub(super) struct Opening {
    pub(super) id: SessionId,
    pub(super) agent: Arc<Agent>,
    /// What the history begins with: checked, in the Chat Completions form.
    pub(super) messages: Vec<Value>,
    pub(super) shared: Arc<Shared>,
    pub(super) publisher: Publisher,
    pub(super) running: Arc<AtomicBool>,
    pub(super) held: Held,
}

pub(super) struct State {
    id: SessionId,
    agent: Arc<Agent>,
    /// The agent as the run that goes on, or the last one, has it.
    run_agent: Arc<Agent>,
    shared: Arc<Shared>,
    publisher: Publisher,
    log: Arc<SessionLog>,
    history: History,
    variables: Variables,
    usage: Usage,
    /// The session's last turn, committed or not.
    turn: u32,
    run: Option<Box<ActiveRun>>,
    /// Runs that wait for it to end. While there are any, a run goes on or the next one begins.
    queue: VecDeque<QueuedRun>,
    /// The run that begins next, with the place of the one that has just ended.
    next: Option<(NewRun, Held)>,
    /// Which set of actors a run has: each set has its own number, in all runs of the session.
    epoch: u64,
    /// Supervisors of runs that are over, whose last tools still have their grace, with the
    /// accumulators that count what comes late.
    lingering: HashMap<ActorId, Accumulator>,
    /// Whether a run goes on, for those who list sessions.
    running: Arc<AtomicBool>,
    close: Closing,
    /// The session's place in the host; given back when it is closed.
    place: Option<Held>,
}

/// How far the session's end has come.
enum Closing {
    No,
    /// When the run is over.
    Asked(Vec<RpcReplyPort<()>>),
    /// The records are gone; the last tools still have their grace.
    Closed,
}

impl Actor for SessionActor {
    type Msg = SessionMessage;
    type State = State;
    type Arguments = Opening;

    async fn pre_start(
        &self,
        _: ActorRef<SessionMessage>,
        opening: Opening,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State::open(opening))
    }

    async fn handle(
        &self,
        myself: ActorRef<SessionMessage>,
        message: SessionMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SessionMessage::StartRun { id, request, reply } => {
                let accepted = state.start_run(&myself, id, request).await;
                // A caller that is gone has started its run all the same.
                let _ = reply.send(accepted);
            }
            SessionMessage::Steer { input, reply } => {
                let _ = reply.send(state.steer(input));
            }
            SessionMessage::Stop { mode, reply } => {
                state.stop(mode);
                let _ = reply.send(());
            }
            SessionMessage::Interrupt { now } => state.interrupt(now),
            SessionMessage::Snapshot { reply } => {
                let _ = reply.send(state.snapshot());
            }
            SessionMessage::Close { reply } => state.ask_to_close(reply),
            SessionMessage::TurnCommitted { epoch, record } => {
                if state.awaits(epoch, &record) {
                    state.commit(*record);
                }
            }
            SessionMessage::ResultReleased { epoch, result } => state.take_result(epoch, *result),
            SessionMessage::QuestionsChanged { epoch, questions, rests } => {
                state.take_questions(epoch, questions, rests);
            }
            SessionMessage::Decide { key, decision, reply } => state.decide(key, decision, reply),
            #[cfg(test)]
            SessionMessage::NameActors { reply } => {
                let _ = reply.send(state.run.as_ref().map(|run| run.actors.cells()));
            }
        }
        state.begin_next(&myself).await;
        state.close_if_asked(&myself);
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
        Ok(())
    }
}

impl State {
    fn open(opening: Opening) -> Self {
        let Opening { id, agent, messages, shared, publisher, running, held } = opening;
        let journal = Arc::clone(&shared.journal);
        let log = Arc::new(SessionLog::new(id.clone(), journal, Seq(0), |_| ()));
        // They were checked when the session was asked for.
        let history = History::seeded(Seed::parse(&messages).unwrap_or_default());
        let opened = Record::SessionOpened { agent: agent.name.clone(), messages };
        log.append(vec![opened], Urgency::Lazy, || ());
        Self {
            id,
            run_agent: Arc::clone(&agent),
            agent,
            shared,
            publisher,
            log,
            history,
            variables: Variables::default(),
            usage: Usage::default(),
            turn: 0,
            run: None,
            queue: VecDeque::new(),
            next: None,
            epoch: 0,
            lingering: HashMap::new(),
            running,
            close: Closing::No,
            place: Some(held),
        }
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
        let RunRequest { input, overrides, queue } = request;
        if self.run.is_some() && !queue {
            return Err(HostError::RunInProgress);
        }
        if input.is_blank() {
            return Err(HostError::EmptyInput);
        }
        let agent = self.agent.with(&overrides)?;
        let (report, receiver) = oneshot::channel();
        let run = NewRun { id, input, overrides, agent, report };
        let seq = if self.run.is_some() {
            self.enqueue(run)?
        } else {
            let place = self.shared.place_for_a_run()?;
            self.begin(myself, run, place).await?
        };
        Ok(RunAccepted { seq, report: receiver })
    }

    /// Begins a run that is accepted.
    async fn begin(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        run: NewRun,
        place: Held,
    ) -> Result<Seq, HostError> {
        self.run_agent = Arc::clone(&run.agent);
        let actors = self.spawn_actors(myself).await.map_err(|_| HostError::SessionClosed)?;
        let seq = self.begin_run(run, actors, place);
        self.running.store(true, Ordering::Release);
        self.shared.show_counts();
        Ok(seq)
    }

    /// Ends the run. Asked again, only a stop that is sooner changes anything.
    fn stop(&mut self, mode: StopMode) {
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
        self.forget_queue(&HostError::ShuttingDown);
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
        // An accumulator that is gone has a successor which is told when it begins.
        let _ = run.actors.accumulator.cast(AccumulatorMessage::Cancel { why });
    }

    fn snapshot(&self) -> SessionSnapshot {
        let run = self.run.as_ref();
        SessionSnapshot {
            id: self.id.clone(),
            agent: self.agent.name.clone(),
            state: if run.is_some() { SessionState::Running } else { SessionState::Idle },
            seq: self.log.last(),
            history: self.history.shown(),
            variables: self.variables.clone(),
            current_run: run.map(|run| CurrentRun {
                run_id: run.id.clone(),
                turn: self.turn,
                approvals: run.open.approvals.clone(),
                results: run.open.results.clone(),
            }),
            queued: self.queued_inputs(),
            usage: self.usage,
        }
    }

    /// An actor of this session is gone: as it should, or too early.
    async fn ended(&mut self, myself: &ActorRef<SessionMessage>, cell: &ActorCell, why: String) {
        if let Some(accumulator) = self.lingering.remove(&cell.get_id()) {
            accumulator.stop(None);
        } else {
            self.recover(myself, cell.get_id(), &why).await;
        }
    }

    fn ask_to_close(&mut self, reply: RpcReplyPort<()>) {
        match &mut self.close {
            Closing::No => self.close = Closing::Asked(vec![reply]),
            Closing::Asked(waiting) => waiting.push(reply),
            Closing::Closed => {
                let _ = reply.send(());
            }
        }
        self.forget_queue(&HostError::SessionClosed);
        self.stop(StopMode::Now);
    }

    fn close_if_asked(&mut self, myself: &ActorRef<SessionMessage>) {
        if self.run.is_some() {
            return;
        }
        if let Closing::Asked(waiting) = &mut self.close {
            let waiting = std::mem::take(waiting);
            self.close = Closing::Closed;
            // Nobody can ask for them any more.
            let _ = self.shared.journal.remove(std::slice::from_ref(&self.id));
            self.shared.forget(&self.id, myself.get_id());
            self.place = None;
            self.shared.show_counts();
            for reply in waiting {
                let _ = reply.send(());
            }
        }
        if matches!(self.close, Closing::Closed) && self.lingering.is_empty() {
            myself.stop(None);
        }
    }
}

/// A session and the handle to it.
pub(super) async fn spawn(
    opening: Opening,
    supervisor: ActorCell,
) -> Result<SessionHandle, HostError> {
    let (id, name) = (opening.id.clone(), opening.agent.name.clone());
    let (running, listeners) = (Arc::clone(&opening.running), opening.publisher.listeners());
    let (actor, _) = Actor::spawn_linked(None, SessionActor, opening, supervisor)
        .await
        .map_err(|_| HostError::ShuttingDown)?;
    Ok(SessionHandle::new(id, name, running, listeners, actor))
}
