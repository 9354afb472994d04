//! The session actor. It hands messages to the session machine, and performs the machine's effects.
//!
//! | file | content |
//! | --- | --- |
//! | `mod` | the messages of the session; the effects of the machine: records and turns |
//! | `begin` | the start of the actor, for a new, stored or forked session; the resume of a run |
//! | `run` | the run in progress, the actors of runs, the callers that wait for reports, the end of a run |
//! | `snapshot` | the public view of the session, the sizes of its context, approvals |
//! | `recovery` | the replacement of an actor of a run that died |
//! | `hibernate` | hibernation: the end of the actor of an idle session |
//! | `summary` | summaries of the context; learnt windows of models; the timer of a run that waits before its turn |
//! | `tools` | the tools of servers, read for the first run or again on request; connections to servers |
//! | `end` | the end of the actor by deletion of the session or failure of its journal |

mod begin;
mod end;
mod hibernate;
mod recovery;
mod run;
mod snapshot;
mod summary;
mod tools;
mod unstored_outcomes;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::HostError;
use super::gauge::CountGuard;
use super::host_ref::HostRef;
use super::ids;
use super::index::SessionActivity;
use super::message::{
    AccumulatorMessage, DecisionReply, RunAccepted, RunScope, SessionMessage, TurnStart,
};
use super::model::ModelRequest;
use super::ownership::OwnedSession;
use super::publish::Publisher;
use super::supervision::{ChildEnd, ReplyPort};
use super::tool_servers::PerSessionConnection;
use crate::journal::{Appended, PendingRecord, SessionLog, Urgency};
use begin::SessionArguments;
pub(super) use begin::spawn;
use callsheet_machines::context::{VARIABLE_NAME_BYTES_MAX, VariableError};
use callsheet_machines::session::{
    RecordedAt, RunAdmission, RunSpec, Session, SessionEffect, SessionRefusal, SessionRunRules,
    TurnBegin, TurnOrigin,
};
use callsheet_machines::turn::{ApprovalError, CommittedTurn, TurnSpec};
use callsheet_tools::Extensions;
use callsheet_values::config::RunOverrides;
use callsheet_values::event::{CallLabel, Event};
use callsheet_values::message::MessageList;
use callsheet_values::record::{Record, RequestKey, Seq};
use callsheet_values::types::{
    Author, CallKey, Content, RequestKind, RunId, SessionId, SessionState, ToolCall, child_run_id,
};
use callsheet_wire::PromptChange;
use run::{ActiveRun, RunAgents, RunCaller, SessionActors};
use summary::AwaitedSummary;

/// Runs a session.
pub(super) struct SessionActor {
    id: SessionId,
    /// The name of its prompt in the caches of services.
    prompt_cache_key: Arc<str>,
    /// The state machine of the session.
    session: Session,
    agents: RunAgents,
    host_ref: HostRef,
    publisher: Publisher,
    log: Arc<SessionLog>,
    /// The origin of the machine's clock.
    started: Instant,
    /// The run in progress. `None` while it is suspended.
    run: Option<Box<ActiveRun>>,
    actors: SessionActors,
    callers: Callers,
    /// Counts the session as one of the host's runs while a run is in progress or in the queue.
    run_count_guard: Option<CountGuard>,
    /// The last record before the turn that was read from the journal.
    stored_seq_before_turn: Seq,
    /// The calls that run were started after this record. The tool that asked an earlier question is gone.
    seq_before_calls: Seq,
    /// The approval inbox of the host may have approvals of this session.
    is_in_inbox: bool,
    /// Counts the session as awake with approvals in the inbox.
    waits_in_inbox: Option<CountGuard>,
    /// The time of the last record of a run's end: Unix time in milliseconds.
    last_run_end: u64,
    /// The runs that have ended and whose last records may not be durable, with the positions of these records.
    ended_runs: Vec<(RunId, Seq)>,
    /// The connections to servers of tools that sessions do not share.
    server_connections: Vec<PerSessionConnection>,
    /// The activity of the session, which others read without a message.
    activity: Arc<SessionActivity>,
    summary: AwaitedSummary,
    /// Counts the session as awake.
    _awake: CountGuard,
    _owned: OwnedSession,
}

/// The callers that wait for a session.
#[derive(Default)]
struct Callers {
    /// Those of runs that have not started, by run.
    runs: HashMap<RunId, RunCaller>,
    /// Those that wait for the session to be deleted.
    close: Vec<CloseCaller>,
}

/// The author of a request that deletes the session, and the reply to it.
type CloseCaller = (Option<Author>, ReplyPort<Result<(), HostError>>);

/// The handler of a [`SessionActor`].
pub(super) struct SessionHandler;

impl Actor for SessionHandler {
    type Msg = SessionMessage;
    type State = SessionActor;
    type Arguments = SessionArguments;

    // A panic in it ends only this session, and its supervisor gets an error.
    async fn pre_start(
        &self,
        _: ActorRef<SessionMessage>,
        arguments: SessionArguments,
    ) -> Result<SessionActor, ActorProcessingErr> {
        Ok(SessionActor::new(arguments))
    }

    async fn handle(
        &self,
        myself: ActorRef<SessionMessage>,
        message: SessionMessage,
        session: &mut SessionActor,
    ) -> Result<(), ActorProcessingErr> {
        session.handle(&myself, message).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SessionMessage>,
        event: SupervisionEvent,
        session: &mut SessionActor,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(end) = ChildEnd::from_event(event) {
            session.handle_child_end(&myself, end);
        }
        Ok(())
    }
}

impl SessionActor {
    // An actor has room for the largest future of its handlers as long as it lives. The one at a shutdown is boxed,
    // so that an idle session needs little memory.
    async fn handle(&mut self, myself: &ActorRef<SessionMessage>, message: SessionMessage) {
        let is_maintenance = matches!(
            message,
            SessionMessage::ReleaseActors
                | SessionMessage::Hibernate { .. }
                | SessionMessage::ServerToolsChanged { .. }
                | SessionMessage::ServerReleased { .. }
        );
        if !is_maintenance {
            self.activity.touched_ms.store(self.host_ref.shared.clock_ms(), Ordering::Relaxed);
        }
        if self.has_left() {
            // The sender asks the next actor of the session.
            return;
        }
        let is_shutting_down = self.host_ref.shared.is_shutting_down();
        if is_shutting_down {
            self.session.note_shutdown(self.host_ref.shared.catalog.on_shutdown);
        }
        match message {
            SessionMessage::StartRun { run, request_key, queue, extensions, reply } => {
                let accepted = self.start_run(myself, *run, request_key, queue, extensions);
                // The run starts even if its caller is gone.
                let _ = reply.send(accepted);
            }
            SessionMessage::Steer { input, request_key, author, reply } => {
                let _ = reply.send(self.steer(myself, input, request_key, author));
            }
            SessionMessage::RemoveInput { run_id, author, reply } => {
                let removed = self.session.handle_remove_input(&run_id, author);
                let recorded = self.perform_effects(myself);
                let seq = recorded.unwrap_or_else(|| self.log.last_seq());
                let _ = reply.send(removed.map(|()| seq).map_err(HostError::from));
            }
            SessionMessage::Stop { mode, queue, author, reply } => {
                if queue {
                    self.session.handle_remove_inputs(author.as_ref());
                }
                self.session.handle_stop(mode, author);
                self.perform_effects(myself);
                self.resume_if_suspended();
                self.perform_effects(myself);
                let _ = reply.send(self.log.last_seq());
            }
            SessionMessage::ContinueRun => self.continue_run(),
            SessionMessage::Resume { reply } => {
                let _ = reply.send(self.resume(myself));
            }
            SessionMessage::ReleaseActors => {
                if self.session.run().is_none() {
                    self.release_actors();
                }
                return;
            }
            SessionMessage::Hibernate { idle } => {
                self.hibernate(myself, idle);
                return;
            }
            SessionMessage::JournalFailed { error } => {
                self.fail(myself, error);
                return;
            }
            SessionMessage::Interrupt { now } => {
                if Box::pin(self.leave_at_shutdown(myself, now)).await {
                    return;
                }
                self.session.handle_shutdown(self.host_ref.shared.catalog.on_shutdown, now);
            }
            SessionMessage::Snapshot { reply } => {
                // The caller may be gone.
                let _ = reply.send(self.snapshot());
                return;
            }
            SessionMessage::Close { author, reply } => {
                self.close(author, reply);
                self.perform_effects(myself);
                self.resume_if_suspended();
            }
            SessionMessage::Locate { reference, reply } => {
                // The caller may be gone.
                let _ = reply.send(self.session.locate(&reference));
                return;
            }
            SessionMessage::TurnCommitted { epoch, turn, seq } => {
                if epoch == self.actors.epoch && !self.is_recovering() {
                    self.commit(*turn, seq);
                }
            }
            SessionMessage::ApprovalsChanged { epoch, waits_only_for_people, is_resumable } => {
                if epoch == self.actors.epoch
                    && !self.is_recovering()
                    && let Some(run) = &mut self.run
                {
                    run.is_resumable = is_resumable;
                    if Box::pin(self.leave_at_shutdown(myself, false)).await {
                        return;
                    }
                    self.session.handle_resting(self.now(), waits_only_for_people);
                    self.update_inbox();
                    self.reject_if_nobody_can_be_asked();
                }
            }
            SessionMessage::CheckApprovalReader { reply } => {
                let _ = reply.send(self.can_answer_approvals());
                return;
            }
            SessionMessage::RejectApprovals => {
                self.reject_approvals();
                return;
            }
            SessionMessage::Decide { key, decision, reply } => {
                self.resume_if_suspended();
                self.perform_effects(myself);
                self.hand_to_turn(key, reply, |reply| AccumulatorMessage::Decide {
                    key,
                    decision,
                    reply,
                });
            }
            SessionMessage::AnswerCall { key, outcome, reply } => {
                self.resume_if_suspended();
                self.perform_effects(myself);
                self.hand_to_turn(key, reply, |reply| AccumulatorMessage::AnswerCall {
                    key,
                    outcome,
                    reply,
                });
            }
            SessionMessage::ToolsRead { tools } => self.tools_read(tools),
            SessionMessage::ServerReleased { server } => self.server_released(server),
            SessionMessage::ServerToolsChanged { change } => {
                self.server_tools_changed(change);
                return;
            }
            SessionMessage::Compact { reply } => {
                self.give_model_tokens();
                self.compact(reply);
            }
            SessionMessage::Exclude { name, include, reply } => {
                self.give_model_tokens();
                self.exclude(name, include, reply);
            }
            SessionMessage::ReportContext { reply } => {
                let _ = reply.send(self.context_report());
                return;
            }
            SessionMessage::SummaryMade { request, reply } => self.summary_made(request, reply),
            SessionMessage::ToolsSetAside { epoch, model } => {
                if epoch == self.actors.epoch {
                    let set_aside = &self.agents.current().models.at(model).set_aside;
                    set_aside.store_soon(&self.host_ref.shared.journal);
                }
            }
            SessionMessage::ContextRefused { epoch, model, error } => {
                if epoch == self.actors.epoch {
                    self.context_refused(model, &error);
                }
            }
            SessionMessage::RefreshTools { tools, reply } => {
                let change = self.refresh_tools(tools);
                self.perform_effects(myself);
                let _ = reply.send(change);
            }
            #[cfg(test)]
            SessionMessage::NameActors { reply } => {
                let actors = self.actors.current.as_ref().filter(|_| self.run.is_some());
                let _ = reply.send(actors.map(run::RunActors::cells));
            }
        }
        self.proceed(myself);
        if is_shutting_down && self.session.is_held() {
            Box::pin(self.leave_at_shutdown(myself, false)).await;
        }
    }

    fn handle_child_end(&mut self, myself: &ActorRef<SessionMessage>, end: ChildEnd) {
        if self.host_ref.shared.is_shutting_down() {
            self.session.note_shutdown(self.host_ref.shared.catalog.on_shutdown);
        }
        self.handle_actor_end(myself, end);
        if self.has_left() {
            return self.stop_if_left(myself);
        }
        self.proceed(myself);
    }

    /// Returns the time on the machine's clock.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns whether the run is that of the call that opened this child session.
    fn is_child_run(&self, run: &RunId) -> bool {
        child_run_id(&self.id).as_ref() == Some(run)
    }

    /// Performs what follows from an input, and answers the callers that can be answered now.
    fn proceed(&mut self, myself: &ActorRef<SessionMessage>) {
        self.perform_effects(myself);
        self.drop_unneeded_summary();
        self.set_run_timer(myself);
        if self.session.is_closed() && self.actors.ending.is_empty() {
            myself.stop(None);
        }
        self.publish_wait();
    }

    fn start_run(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        run: RunSpec,
        request_key: Option<RequestKey>,
        queue: bool,
        extensions: Extensions,
    ) -> Result<RunAccepted, HostError> {
        let starts = match self.session.admit_run(&run.input, request_key.as_ref(), queue)? {
            RunAdmission::Known { run_id, seq } => {
                return Ok(RunAccepted { id: run_id, seq, report_receiver: None });
            }
            RunAdmission::Reopen { run_id, seq } => {
                let seq = self.reopen_run(myself, &run_id, run.author, extensions)?.unwrap_or(seq);
                return Ok(RunAccepted { id: run_id, seq, report_receiver: None });
            }
            RunAdmission::Start => true,
            RunAdmission::Queue => false,
        };
        if starts {
            self.agents.read_tool_sources(&self.id, &self.host_ref.shared);
        }
        if let Some(name) = &run.into {
            check_variable_name(name)?;
        }
        self.agents.own().check_client_tools(&run.overrides, self.session.client_tools())?;
        let all = self.session.with_client_tools(&run.overrides);
        let agent = self.agents.own().with_overrides(&all)?;
        let id = run.run_id.clone();
        let is_child_run = self.is_child_run(&id);
        let slot =
            if starts { Some(self.host_ref.shared.acquire_run_slot(is_child_run)?) } else { None };
        if starts {
            self.agents.set_current(all, agent);
            self.spawn_actors(myself);
        }
        let agents = &self.agents;
        let rules_of = |overrides: &_| agents.rules(overrides);
        let limits = self.host_ref.shared.catalog.input_limits(&self.log);
        self.session.handle_run_request(run, request_key, limits, &rules_of)?;
        self.run_count_guard = slot.or(self.run_count_guard.take());
        self.host_ref.shared.extensions.add_to_run(&self.id, &id, extensions);
        let (report, receiver) = oneshot::channel();
        let counted = (!starts).then(|| self.host_ref.shared.gauges.queued_inputs.increment());
        self.callers.runs.insert(id.clone(), RunCaller { report: Some(report), _counted: counted });
        let seq = self.perform_effects(myself).unwrap_or_else(|| self.log.last_seq());
        Ok(RunAccepted { id, seq, report_receiver: Some(receiver) })
    }

    /// Lets a run go on that an earlier host has interrupted. Returns the position of the record, or `None` if the run
    /// is that of the call that opened this child session: it has ended with the call.
    fn reopen_run(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        id: &RunId,
        author: Option<Author>,
        extensions: Extensions,
    ) -> Result<Option<Seq>, HostError> {
        if self.is_child_run(id) {
            return Ok(None);
        }
        self.run_count_guard = Some(self.host_ref.shared.acquire_run_slot(false)?);
        self.host_ref.shared.extensions.add_to_run(&self.id, id, extensions);
        self.session.handle_reopen(id.clone(), author);
        Ok(self.perform_effects(myself))
    }

    fn steer(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        input: Content,
        request_key: Option<RequestKey>,
        author: Option<Author>,
    ) -> Result<Seq, HostError> {
        let limits = self.host_ref.shared.catalog.input_limits(&self.log);
        let known = self.session.handle_steer(input, request_key, author, limits)?;
        let recorded = self.perform_effects(myself);
        Ok(known.or(recorded).unwrap_or_else(|| self.log.last_seq()))
    }

    /// Lets an interrupted run go on, unless it waits for a manual resume.
    fn continue_run(&mut self) {
        // It goes on when the next host starts.
        if self.host_ref.shared.is_shutting_down() {
            return;
        }
        // A session that was only asleep is not held.
        let is_held = self.host_ref.shared.index.is_suspended(&self.id);
        if self.session.handle_wake(self.now(), is_held) {
            self.continue_resumed_session();
        }
    }

    fn resume(&mut self, myself: &ActorRef<SessionMessage>) -> Result<Seq, HostError> {
        if self.host_ref.shared.is_shutting_down() {
            return Err(HostError::ShuttingDown);
        }
        if !self.session.is_suspended() {
            return Err(SessionRefusal::NotSuspended.into());
        }
        self.resume_if_suspended();
        self.perform_effects(myself);
        Ok(self.log.last_seq())
    }

    /// Resumes a suspended run, because a request needs it.
    fn resume_if_suspended(&mut self) {
        if !self.host_ref.shared.is_shutting_down()
            && self.session.handle_resume(self.now()).is_ok()
        {
            self.continue_resumed_session();
        }
    }

    /// Commits a turn, and keeps the reports of its calls if a caller waits for them. Returns false if the session
    /// does not wait for this turn.
    fn commit(&mut self, turn: CommittedTurn, seq: Seq) -> bool {
        let estimated = self.session.estimated_request(&self.agents.current().rules);
        if !self.session.handle_turn_committed(&turn) {
            return false;
        }
        self.learn_usage(&turn, estimated);
        self.session.handle_commit_recorded(turn.number, seq);
        if let Some(run) = &mut self.run {
            run.turn_committed(turn);
        }
        self.leave_inbox();
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
            let _ = reply.send(Err(ApprovalError::NoSuchApproval));
        }
    }

    fn close(&mut self, author: Option<Author>, reply: ReplyPort<Result<(), HostError>>) {
        if self.session.is_closed() {
            // The caller then waits in the slot for the end of the deletion.
            let _ = reply.send(Err(HostError::SessionClosed));
            return;
        }
        self.session.handle_close(author.clone());
        self.callers.close.push((author, reply));
    }

    /// Performs the effects of the machine until there are none. Returns the position of the first
    /// record that was appended.
    fn perform_effects(&mut self, myself: &ActorRef<SessionMessage>) -> Option<Seq> {
        let mut first = None;
        if self.run.is_none() {
            // A run may start below.
            self.agents.read_tool_sources(&self.id, &self.host_ref.shared);
        }
        loop {
            self.give_model_tokens();
            let (now, agents) = (self.now(), &self.agents);
            let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
            let Some(effect) = self.session.poll(now, &rules_of) else { break };
            match effect {
                SessionEffect::Record(batch) => {
                    let seq = self.append(batch);
                    first = first.or(seq);
                }
                SessionEffect::BeginTurn(begin) => {
                    self.open_connections(myself);
                    self.spawn_actors(myself);
                    self.send_turn(*begin);
                }
                SessionEffect::ReadTools => self.read_tools(myself),
                SessionEffect::RequestSummary(request) => self.request_summary(*request, myself),
                SessionEffect::ContextReduced { reduced } => self.context_reduced(reduced),
                SessionEffect::CancelTurn(reason) => {
                    if let Some(run) = &mut self.run {
                        run.is_turn_cancelled = true;
                    }
                    self.send_to_accumulator(AccumulatorMessage::Cancel { reason });
                }
                SessionEffect::RunEnded(summary) => {
                    self.end_run(*summary);
                    self.set_connections_in_use(false);
                    // A queued run may be next.
                    self.agents.read_tool_sources(&self.id, &self.host_ref.shared);
                }
                SessionEffect::RunRefused { run_id, reason } => {
                    if let Some(caller) = self.callers.runs.get_mut(&run_id) {
                        caller.fail(reason.into());
                    }
                    self.drop_ended_callers();
                }
                SessionEffect::Close => self.delete_session(myself),
            }
        }
        first
    }

    /// Appends records as one batch, applies them and publishes their events. Returns the position
    /// of the first one.
    fn append(&mut self, batch: Vec<Record>) -> Option<Seq> {
        let ends = batch.iter().any(|record| matches!(record, Record::RunEnded { .. }));
        let publisher = self.publisher.clone();
        let mut series = publisher.begin_series();
        // A turn may be in progress, whose text the event of a steer stands in.
        let position = |record: Record| {
            let is_in_turn = matches!(record, Record::Steered { .. });
            let displayed_bytes = if is_in_turn { series.displayed_bytes() } else { 0 };
            PendingRecord { record, displayed_bytes }
        };
        let batch: Vec<_> = batch.into_iter().map(position).collect();
        let Appended { entries, .. } = self.log.append(batch, Urgency::Deferrable, || ());
        for entry in &entries {
            let (seq, time, record) = (entry.seq, entry.time, &entry.record);
            let at = RecordedAt { seq, time, now: self.now() };
            let agents = &self.agents;
            let session_rules_of =
                |overrides: &RunOverrides| SessionRunRules::from(&*agents.rules(overrides));
            if let Err(error) = self.session.apply(at, record, &session_rules_of) {
                tracing::error!(session = %self.id, seq = seq.0, error, "session_record_contradicts");
            }
            // A client that reads the run's end finds the session idle, and room for another run.
            if !self.session.holds_slot() && self.run_count_guard.take().is_some() {
                self.activity.has_open_run.store(false, Ordering::Release);
                self.host_ref.shared.session_states.changed(&self.id, SessionState::Idle);
                self.host_ref.shared.update_counts();
            }
            self.record_appended(record, seq, time, ends);
            series.publish_entry(entry, |_| None);
            self.publish_transient(record);
        }
        entries.first().map(|entry| entry.seq)
    }

    /// Publishes the events that tell of a record to the watchers of the moment only.
    fn publish_transient(&self, record: &Record) {
        let turn = self.session.turn();
        if let Record::InputQueued { run_id, input, .. } = record {
            let (input, waiting) = (input.clone(), self.session.queue().len());
            self.publisher.publish(run_id, turn, Event::InputQueued { input, waiting });
        }
        if let Record::InputRemoved { run_id, .. } = record {
            let waiting = self.session.queue().len();
            self.publisher.publish(run_id, turn, Event::InputRemoved { waiting });
        }
        let Some(run) = self.session.run().map(|run| &run.id) else { return };
        if let Record::ResponseEnded { turn, message, .. } = record {
            // The calls that the session was opened with.
            for ToolCall { key, provider_id, name, .. } in &message.calls {
                let (provider_id, name) = (provider_id.clone(), name.clone());
                let call = CallLabel { key: *key, provider_id, name };
                self.publisher.publish(run, *turn, Event::CallOpened { call });
            }
        }
    }

    /// Updates the actor's data of runs and turns. `ends` is true if the same batch ends the run.
    fn record_appended(&mut self, record: &Record, seq: Seq, time: u64, ends: bool) {
        match record {
            // No turn is resumed from this record.
            Record::SessionOpened { .. } => self.log.trim_recent(seq),
            Record::InputQueued { .. } => self.host_ref.shared.update_counts(),
            Record::RunStarted { input, .. } if !ends => self.run_recorded(seq, Some(input)),
            Record::RunReopened { .. } => self.run_recorded(seq, None),
            // Begins the turn of the calls that the session was opened with. The accumulator records all others.
            Record::ResponseEnded { .. } => {
                if let Some(run) = &mut self.run {
                    run.seq_before_turn = Seq(seq.0.saturating_sub(1));
                }
            }
            Record::RunEnded { .. } => {
                self.last_run_end = time;
                self.drop_ended_callers();
            }
            Record::Compacted { .. } => self.context_compacted(record),
            Record::InputRemoved { .. } => {
                if !self.session.holds_slot() && self.session.run().is_none() {
                    // A queue that waited for a manual resume is empty.
                    self.host_ref.shared.index.note_resumed(&self.id);
                }
            }
            Record::RunStarted { .. }
            | Record::SessionForked { .. }
            | Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::CallEnded { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::Instructed { .. }
            | Record::ToolsFrozen { .. }
            | Record::SessionClosed => {}
        }
    }

    /// Makes the actor's data of a run that has started, by the record at `seq`, or was reopened.
    fn run_recorded(&mut self, seq: Seq, input: Option<&Content>) {
        let Some(run) = self.session.run() else { return };
        let (id, trace, began) = (run.id.clone(), run.trace.clone(), run.began);
        let elapsed = run.elapsed(self.now());
        self.agents.use_for(&run.overrides);
        let trace = self.begin_trace(&id, trace, began, elapsed, input);
        let report = self.callers.runs.remove(&id).and_then(|caller| caller.report);
        let extensions = self.host_ref.shared.extensions.for_run(&self.id, &id);
        self.run = Some(Box::new(ActiveRun::new(id, trace, extensions, seq, report)));
        self.activity.has_open_run.store(true, Ordering::Release);
        self.host_ref.shared.session_states.changed(&self.id, SessionState::Running);
        self.host_ref.shared.update_counts();
    }

    /// Sends a turn to the accumulator.
    fn send_turn(&mut self, begin: TurnBegin) {
        let TurnBegin { run_id, mut spec, origin, cancel } = begin;
        let Some(run) = &mut self.run else { return };
        run.is_turn_cancelled = cancel.is_some();
        let resume = match origin {
            TurnOrigin::New => {
                let last = self.log.last_seq();
                self.log.trim_recent(last);
                run.seq_before_turn = last;
                None
            }
            TurnOrigin::Recorded | TurnOrigin::Stored => {
                Some(self.log.entries_since(run.seq_before_turn))
            }
        };
        let (messages, repairs) = self.session.history().request_messages();
        if repairs > 0 {
            self.publisher.publish(&run_id, spec.number, Event::HistoryRepaired { repairs });
        }
        let known = self.session.requested_prompt();
        let request = self.next_request(messages, spec.request_kind);
        spec.new_prompt = self.session.requested_prompt().filter(|hash| known != Some(*hash));
        if origin == TurnOrigin::New {
            let sizes = self.session.part_tokens(&spec.rules);
            self.host_ref.shared.telemetry.metrics().context_tokens(sizes);
        }
        let Some(run) = &self.run else { return };
        let scope = RunScope {
            run: run_id,
            run_seq: self.session.run().map_or(Seq(0), |run| run.seq),
            agent: Arc::clone(self.agents.current()),
            trace: run.trace.clone(),
            extensions: run.extensions.clone(),
        };
        let (spec, scope) = (with_seed(spec, &self.id), Arc::new(scope));
        let start = TurnStart { spec, scope, request, resume, cancel };
        self.host_ref.shared.telemetry.traces().request_started(&self.id, &start.request);
        self.send_to_accumulator(AccumulatorMessage::BeginTurn(Box::new(start)));
    }

    /// Returns the model request of the current turn.
    fn next_request(&mut self, messages: MessageList, kind: RequestKind) -> Arc<ModelRequest> {
        let hash = self.agents.current().prompt_hash();
        let has_sources = !self.host_ref.shared.catalog.tool_sources.0.is_empty();
        let prompt_change = self.session.handle_request(hash, has_sources);
        let has_form = self.agents.note_form(kind);
        let prompt_change = prompt_change.or(has_form.then_some(PromptChange::Output));
        let agent = Arc::clone(self.agents.current());
        let request = ModelRequest {
            prompt_cache_key: Some(Arc::clone(&self.prompt_cache_key)),
            prompt_change,
            ..agent.request(messages, kind)
        };
        Arc::new(match self.output_room(&agent) {
            Some(room) => request.with_output_room(room),
            None => request,
        })
    }

    /// Returns the length of an answer that fits into the window of the first model behind the next request, if its
    /// service refuses a longer one and such a length may be asked for.
    fn output_room(&mut self, agent: &crate::runtime::agent::Agent) -> Option<u32> {
        let model = agent.models.first();
        if !model.learnt.get().counts_output() {
            return None;
        }
        let window = self.session.window(&agent.rules)?;
        let tokens = self.session.request_tokens(&agent.rules);
        // The count is an estimate, and a refusal costs more than a part of the room.
        let margin = (tokens / OUTPUT_MARGIN_DIVISOR).min(OUTPUT_MARGIN_MAX);
        let room = window.saturating_sub(tokens.saturating_add(margin));
        u32::try_from(room.max(OUTPUT_ROOM_MIN)).ok()
    }

    /// Returns the input of the machine of the current turn.
    fn turn_spec(&self) -> Option<TurnSpec> {
        let rules_of = |overrides: &RunOverrides| self.agents.rules(overrides);
        let spec = self.session.current_turn_spec(self.now(), &rules_of)?;
        Some(with_seed(spec, &self.id))
    }
}

/// The least length of an answer that is asked for, in tokens.
const OUTPUT_ROOM_MIN: u64 = 64;
/// An eighth of a request, at most this number of tokens, is left free between its input and the answer.
const OUTPUT_MARGIN_DIVISOR: u64 = 8;
const OUTPUT_MARGIN_MAX: u64 = 2_048;

/// Checks the name of the variable that gets the answer of a run.
fn check_variable_name(name: &str) -> Result<(), HostError> {
    let bytes = name.len();
    if (1..=VARIABLE_NAME_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    Err(HostError::InvalidVariable(VariableError::Name { bytes }.to_string()))
}

/// Sets the seed of a turn, which depends on the session's id.
fn with_seed(spec: TurnSpec, id: &SessionId) -> TurnSpec {
    TurnSpec { seed: ids::turn_seed(id, spec.number), ..spec }
}
