//! The session actor, which performs the effects of the session machine.
//!
//! | file | content |
//! | --- | --- |
//! | `begin` | the start of the actor, for a new, stored or forked session |
//! | `perform` | the effects of the machine: records, turns, reports |
//! | `run` | the run in progress, the actors of runs, the callers that wait for reports |
//! | `snapshot` | the public view of the session, the sizes of its context, approvals |
//! | `recovery` | the replacement of an actor of a run that died |
//! | `hibernate` | hibernation: the end of the actor of an idle session |
//! | `summary` | summaries of the context, on request or because it is too large |
//! | `tools` | the tools of servers: read for the first run, or again on request |
//! | `end` | the end of the actor by deletion of the session or failure of its journal |

mod begin;
mod end;
mod hibernate;
mod perform;
mod recovery;
mod run;
mod snapshot;
mod summary;
mod tools;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::awake_session::SessionActivity;
use super::error::HostError;
use super::gauge::CountGuard;
use super::host_ref::HostRef;
use super::message::{AccumulatorMessage, DecisionReply, RunAccepted, SessionMessage};
use super::publish::Publisher;
use super::request::RunRequest;
use super::snapshot::SessionSnapshot;
use super::tool_servers::OwnConnection;
use crate::context::{VARIABLE_NAME_BYTES_MAX, VariableError};
use crate::journal::SessionLog;
use crate::record::{RequestKey, Seq};
use crate::session::{RunAdmission, RunInput, Session, SessionRefusal};
use crate::turn::{ApprovalError, TurnRecord};
use crate::types::VariableName;
use crate::types::{CallKey, Content, RunId, SessionId, child_run_id};
pub(super) use begin::spawn;
use run::{ActiveRun, RunAgents, RunCaller, SessionActors};
use summary::AwaitedSummary;

/// Runs a session.
#[derive(Debug)]
pub(super) struct SessionActor;

/// The state of a session actor.
pub(super) struct SessionActorState {
    id: SessionId,
    /// The name of its prompt in the caches of services.
    prompt_cache_key: Arc<str>,
    /// The state machine of the session.
    session: Session,
    agents: RunAgents,
    link: HostRef,
    publisher: Publisher,
    log: Arc<SessionLog>,
    /// The origin of the machine's clock.
    started: Instant,
    /// The run in progress. `None` while it is suspended.
    run: Option<Box<ActiveRun>>,
    actors: SessionActors,
    callers: Callers,
    /// Counts the run as one of the host's runs.
    slot: Option<CountGuard>,
    /// The last record before the turn that was read from the journal.
    stored_turn_after: Seq,
    /// The time of the last record of a run's end: Unix time in milliseconds.
    last_run_end: u64,
    /// The runs that have ended and whose last records may not be durable, with the positions of these records.
    ended_runs: Vec<(RunId, Seq)>,
    /// The connections to servers of tools that sessions do not share.
    own_connections: Vec<OwnConnection>,
    /// The activity of the session, which others read without a message.
    activity: Arc<SessionActivity>,
    summary: AwaitedSummary,
    /// Counts the session as awake.
    _awake: CountGuard,
}

/// The callers that wait for a session.
#[derive(Default)]
struct Callers {
    /// Those of runs that have not started, by run.
    runs: HashMap<RunId, RunCaller>,
    /// Those that wait for the session to be deleted.
    close: Vec<RpcReplyPort<Result<(), HostError>>>,
    /// Those that wait for a snapshot.
    snapshots: Vec<RpcReplyPort<SessionSnapshot>>,
}

impl Actor for SessionActor {
    type Msg = SessionMessage;
    type State = SessionActorState;
    type Arguments = begin::SessionArguments;

    async fn pre_start(
        &self,
        _: ActorRef<SessionMessage>,
        arguments: begin::SessionArguments,
    ) -> Result<SessionActorState, ActorProcessingErr> {
        Ok(SessionActorState::new(arguments))
    }

    // An actor has room for the largest future of its handlers as long as it lives. The futures that
    // start and recover runs are boxed, so that an idle session needs little memory.
    async fn handle(
        &self,
        myself: ActorRef<SessionMessage>,
        message: SessionMessage,
        state: &mut SessionActorState,
    ) -> Result<(), ActorProcessingErr> {
        let is_maintenance = matches!(
            message,
            SessionMessage::ReleaseActors
                | SessionMessage::Hibernate { .. }
                | SessionMessage::ServerToolsChanged { .. }
        );
        if !is_maintenance {
            state.activity.touched_ms.store(state.link.shared.clock_ms(), Ordering::Relaxed);
        }
        if state.link.shared.is_closing() {
            state.session.note_shutdown();
        }
        match message {
            SessionMessage::StartRun { id, request, reply } => {
                let accepted = Box::pin(state.start_run(&myself, id, *request)).await;
                // The run starts even if its caller is gone.
                let _ = reply.send(accepted);
            }
            SessionMessage::Steer { input, request, reply } => {
                let _ = reply.send(state.steer(&myself, input, request).await);
            }
            SessionMessage::Stop { mode, reply } => {
                state.session.handle_stop(mode);
                state.perform(&myself).await;
                state.resume_if_suspended();
                state.perform(&myself).await;
                let _ = reply.send(state.log.last_seq());
            }
            SessionMessage::ContinueRun => state.wake(),
            SessionMessage::Resume { reply } => {
                let _ = reply.send(state.resume(&myself).await);
            }
            SessionMessage::ReleaseActors => {
                if state.session.run().is_none() {
                    state.release_actors();
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
            SessionMessage::Interrupt { now } => state.session.handle_shutdown(now),
            SessionMessage::Snapshot { reply } => state.callers.snapshots.push(reply),
            SessionMessage::Close { reply } => {
                state.close(reply);
                state.perform(&myself).await;
                state.resume_if_suspended();
            }
            SessionMessage::Locate { reference, reply } => {
                // The caller may be gone.
                let _ = reply.send(state.session.locate(&reference));
                return Ok(());
            }
            SessionMessage::TurnCommitted { epoch, record, seq } => {
                if epoch == state.actors.epoch && !state.is_recovering() {
                    state.commit(*record, seq);
                }
            }
            SessionMessage::ApprovalsChanged { epoch, approvals, only_waits } => {
                state.approvals_changed(epoch, approvals, only_waits);
            }
            SessionMessage::TurnResumed { epoch } => state.turn_resumed(epoch),
            SessionMessage::FindReader { reply } => {
                let _ = reply.send(state.can_answer_approvals());
                return Ok(());
            }
            SessionMessage::RejectApprovals => {
                state.reject_approvals();
                return Ok(());
            }
            SessionMessage::Decide { key, decision, reply } => {
                state.resume_if_suspended();
                state.perform(&myself).await;
                state.hand_to_turn(key, reply, |reply| AccumulatorMessage::Decide {
                    key,
                    decision,
                    reply,
                });
            }
            SessionMessage::AnswerCall { key, outcome, reply } => {
                state.resume_if_suspended();
                state.perform(&myself).await;
                state.hand_to_turn(key, reply, |reply| AccumulatorMessage::AnswerCall {
                    key,
                    outcome,
                    reply,
                });
            }
            SessionMessage::ToolsRead { tools } => state.tools_read(tools),
            SessionMessage::ServerToolsChanged { change } => {
                state.server_tools_changed(change);
                return Ok(());
            }
            SessionMessage::Compact { reply } => {
                state.give_model_tokens();
                state.compact(reply);
            }
            SessionMessage::ReportContext { reply } => {
                let _ = reply.send(state.context_report());
                return Ok(());
            }
            SessionMessage::SummaryMade { request, reply } => state.summary_made(request, reply),
            SessionMessage::ContextOverflowed { epoch, model, error } => {
                if epoch == state.actors.epoch {
                    state.context_overflowed(model, &error);
                }
            }
            SessionMessage::RefreshTools { tools, reply } => {
                let change = state.refresh_tools(tools);
                state.perform(&myself).await;
                let _ = reply.send(change);
            }
            #[cfg(test)]
            SessionMessage::NameActors { reply } => {
                let actors = state.actors.current.as_ref().filter(|_| state.run.is_some());
                let _ = reply.send(actors.map(super::run_actors::RunActors::cells));
            }
        }
        state.proceed(&myself).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SessionMessage>,
        event: SupervisionEvent,
        state: &mut SessionActorState,
    ) -> Result<(), ActorProcessingErr> {
        if state.link.shared.is_closing() {
            state.session.note_shutdown();
        }
        match event {
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                state.handle_actor_end(&myself, &cell, reason.unwrap_or_default()).await;
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                state.handle_actor_end(&myself, &cell, error.to_string()).await;
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.proceed(&myself).await;
        Ok(())
    }
}

impl SessionActorState {
    /// Returns the time on the machine's clock.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns whether the run is that of the call that opened this child session.
    fn is_child_run(&self, run: &RunId) -> bool {
        child_run_id(&self.id).as_ref() == Some(run)
    }

    /// Performs what follows from an input, and answers the callers that can be answered now.
    async fn proceed(&mut self, myself: &ActorRef<SessionMessage>) {
        self.perform(myself).await;
        self.drop_unneeded_summary();
        self.set_run_timer(myself);
        if self.session.is_closed() && self.actors.ending.is_empty() {
            myself.stop(None);
        }
        self.send_snapshots();
        self.publish_wait();
    }

    async fn start_run(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        id: RunId,
        request: RunRequest,
    ) -> Result<RunAccepted, HostError> {
        let RunRequest { input, overrides, request, trace, queue, extensions, metadata, into } =
            request;
        let starts = match self.session.admit_run(&input, request.as_ref(), queue)? {
            RunAdmission::Known { run_id, seq } => {
                return Ok(RunAccepted { id: run_id, seq, report_receiver: None });
            }
            RunAdmission::Start => true,
            RunAdmission::Queue => false,
        };
        if starts {
            self.agents.read_tool_sources(&self.id, &self.link.shared);
        }
        let into = into.map(variable_name).transpose()?;
        self.agents.own().check_client_tools(&overrides, self.session.client_tools())?;
        let overrides = Arc::new(overrides);
        let all = self.session.with_client_tools(&overrides);
        let agent = self.agents.own().with(&all)?;
        let is_child_run = self.is_child_run(&id);
        let slot =
            if starts { Some(self.link.shared.acquire_run_slot(is_child_run)?) } else { None };
        if starts {
            self.agents.set_current(all, agent);
            self.spawn_actors(myself).await.map_err(|_| self.link.shared.gone())?;
        }
        let run = RunInput { run_id: id.clone(), input, overrides, trace, metadata, into };
        let agents = &self.agents;
        let rules_of = |overrides: &_| agents.rules(overrides);
        let limits = self.link.shared.input_limits(&self.log);
        self.session.handle_run_request(run, request, limits, &rules_of)?;
        self.slot = slot.or(self.slot.take());
        self.link.shared.extensions.add_to_run(&self.id, &id, extensions);
        let (report, receiver) = oneshot::channel();
        let counted = (!starts).then(|| self.link.shared.gauges.queued.increment());
        self.callers.runs.insert(id.clone(), RunCaller { report: Some(report), _counted: counted });
        let seq = self.perform(myself).await.unwrap_or_else(|| self.log.last_seq());
        Ok(RunAccepted { id, seq, report_receiver: Some(receiver) })
    }

    async fn steer(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        input: Content,
        request: Option<RequestKey>,
    ) -> Result<Seq, HostError> {
        let limits = self.link.shared.input_limits(&self.log);
        let known = self.session.handle_steer(input, request, limits)?;
        let recorded = self.perform(myself).await;
        Ok(known.or(recorded).unwrap_or_else(|| self.log.last_seq()))
    }

    /// Lets an interrupted run go on, unless it waits for a manual resume.
    fn wake(&mut self) {
        // It goes on when the next host starts.
        if self.link.shared.is_closing() {
            return;
        }
        // A session that was only asleep is not held.
        let is_held = self.link.shared.suspended.lock().contains(&self.id);
        if self.session.handle_wake(self.now(), is_held) {
            self.resumed();
        }
    }

    async fn resume(&mut self, myself: &ActorRef<SessionMessage>) -> Result<Seq, HostError> {
        if !self.session.is_suspended() {
            return Err(SessionRefusal::NotSuspended.into());
        }
        self.resume_if_suspended();
        self.perform(myself).await;
        Ok(self.log.last_seq())
    }

    /// Resumes the run that a request needs.
    fn resume_if_suspended(&mut self) {
        if !self.link.shared.is_closing() && self.session.handle_resume(self.now()).is_ok() {
            self.resumed();
        }
    }

    /// Commits a turn, and keeps the reports of its calls if a caller waits for them.
    fn commit(&mut self, record: TurnRecord, seq: Seq) -> bool {
        let estimated = self.session.estimated_request(&self.agents.current().rules);
        if !self.session.handle_turn_committed(&record) {
            return false;
        }
        self.learn_usage(&record, estimated);
        self.session.handle_commit_recorded(record.number, seq);
        if let Some(run) = &mut self.run {
            run.turn_committed(record);
        }
        true
    }

    /// Hands a decision about a call, or its result, to the turn of the call.
    fn hand_to_turn(
        &self,
        key: CallKey,
        reply: DecisionReply,
        message: impl FnOnce(DecisionReply) -> AccumulatorMessage,
    ) {
        if self.session.expects_decision(key) {
            // An accumulator that is gone drops the reply, and the caller asks again.
            self.send_to_accumulator(message(reply));
        } else {
            let _ = reply.send(Err(ApprovalError::NotAsked));
        }
    }

    fn close(&mut self, reply: RpcReplyPort<Result<(), HostError>>) {
        if self.session.is_closed() {
            // The caller waits for the end of the deletion.
            let _ = reply.send(Err(HostError::SessionClosed));
            return;
        }
        self.callers.close.push(reply);
        self.session.handle_close();
    }

    /// Handles the end of an actor of this session.
    async fn handle_actor_end(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        cell: &ActorCell,
        reason: String,
    ) {
        match self.actors.ending.remove(&cell.get_id()) {
            None => Box::pin(self.recover(myself, cell.get_id(), &reason)).await,
            Some(None) => {}
            // The message is behind the last outcomes of the supervisor.
            Some(Some(accumulator)) => {
                if accumulator.cast(AccumulatorMessage::Finish).is_ok() {
                    self.actors.ending.insert(accumulator.get_id(), None);
                }
            }
        }
    }
}

fn variable_name(name: String) -> Result<VariableName, HostError> {
    let bytes = name.len();
    if (1..=VARIABLE_NAME_BYTES_MAX).contains(&bytes) {
        return Ok(name.into());
    }
    Err(HostError::InvalidVariable(VariableError::Name { bytes }.to_string()))
}

impl From<SessionRefusal> for HostError {
    fn from(refusal: SessionRefusal) -> Self {
        match refusal {
            SessionRefusal::Closed => Self::SessionClosed,
            SessionRefusal::ShuttingDown => Self::ShuttingDown,
            SessionRefusal::KeyReused => Self::KeyReused,
            SessionRefusal::Suspended => Self::Suspended,
            SessionRefusal::NotSuspended => Self::NotSuspended,
            SessionRefusal::RunInProgress => Self::RunInProgress,
            SessionRefusal::NoRun => Self::NoRun,
            SessionRefusal::EmptyInput => Self::EmptyInput,
            SessionRefusal::QueueFull(max) => Self::QueueFull(max),
            SessionRefusal::TooLarge(max) => Self::SessionTooLarge(max),
            SessionRefusal::NothingToCompact => Self::NothingToCompact,
        }
    }
}
