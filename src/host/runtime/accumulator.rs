//! The actor that owns the turn. It passes messages to the turn's state machine and performs the
//! effects. Calls run under the tool supervisor, so that they survive this actor.
//!
//! The records of one poll loop are appended as one batch. An event is published after the records that
//! precede it. Actions are performed at once, except two: the request to the model is sent after the loop,
//! and the commands for calls after the message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use super::gauge::{CountGuard, Gauges};
use super::hooks::{HookInvocation, changed_request};
use super::message::{
    AccumulatorMessage, CompletionQueue, DecisionReply, RequestSent, ResponseEnded, RunScope,
    SessionMessage, StartTool, StreamMessage, ToolCommand, ToolSupervisorMessage,
    ToolSupervisorRef, TurnStart,
};
use super::model::{HostLagClock, ModelRequest};
use super::model_limiter::BreakerPermitGuard;
use super::publish::Publisher;
use super::references::SessionReferences;
use super::supervision::call;
use super::task::{self, OwnedTask};
use super::tool_limiter::{CallPermit, ToolLimiters};
use crate::journal::{AppendStatus, Appended, PendingRecord, SessionLog, Urgency, unix_ms};
use callsheet_machines::turn::{
    ApprovalError, AttemptPlan, Effect, PermitReply, StartedCalls, Turn, TurnAction,
};
use callsheet_values::event::Event;
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::{CallKey, ParentCall};

/// The time that tools have to report their ends if a timer of the turn fires late. Then the host was stalled, and
/// the ends may be among what it has not handled yet.
const LATE_TIMER_GRACE: Duration = Duration::from_millis(500);

/// The arguments of an accumulator.
pub(super) struct AccumulatorSetup {
    /// Number of the session's set of actors that this accumulator belongs to.
    pub(super) epoch: u64,
    pub(super) session: ActorRef<SessionMessage>,
    pub(super) stream: ActorRef<StreamMessage>,
    pub(super) supervisor: ToolSupervisorRef,
    pub(super) log: Arc<SessionLog>,
    pub(super) references: Arc<SessionReferences>,
    pub(super) publisher: Publisher,
    pub(super) tool_limiters: ToolLimiters,
    pub(super) gauges: Gauges,
    pub(super) lag_clock: HostLagClock,
    /// The call that opened the session, if it is a child session.
    pub(super) parent: Option<Arc<ParentCall>>,
    /// A shutdown leaves the runs of child sessions to the next host, too.
    pub(super) suspends_children: bool,
}

/// The actor that owns the current turn of a run. Each turn has a new [`Turn`].
pub(super) struct AccumulatorActor {
    setup: AccumulatorSetup,
    /// True if the tool supervisor reports to this accumulator. It is set at the start of the first
    /// turn.
    is_attached: bool,
    completions: CompletionQueue,
    current: Option<CurrentTurn>,
    timer: Option<TurnTimer>,
    _held: CountGuard,
}

/// The current turn. It is kept when it is over, because a tool may still end late.
struct CurrentTurn {
    turn: Turn,
    number: u32,
    scope: Arc<RunScope>,
    /// Dropped when the turn is over, so that the session is the only owner of the history again.
    request: Option<Arc<ModelRequest>>,
    /// The request to send after all effects are performed. It is sent last, so that a later effect of the same
    /// series (`Disconnect`) can still withdraw it: aborting a task that has started is too late.
    next_request: Option<AttemptPlan>,
    /// The commands to send to the tool supervisor.
    commands: Vec<ToolCommand>,
    /// Permits and pending permit requests of calls that have not started. A tool without limits has
    /// none, unless its server is still starting.
    permits: HashMap<CallKey, CallPermit>,
    /// The tasks that ask hooks about calls, and the one that asks about the turn (key `None`).
    hooks: HashMap<Option<CallKey>, OwnedTask>,
    /// The breaker permit of the exchange that has ended. It is released with the attempt's result.
    breaker_permit: Option<BreakerPermitGuard>,
    began: Instant,
    /// The part of the time of the stall clock that the turn knows.
    counted_stalls: Duration,
    /// Number of records that the turn has produced.
    records: u64,
    /// The number of records in a report that the actor has not handled yet; otherwise 0.
    reported_records: Arc<AtomicU64>,
    /// The position of the last record that the turn has produced.
    last_seq: Seq,
    /// Bytes of text and thinking of the running attempt that were published.
    displayed_bytes: u64,
    /// The last attempt has failed, and its text is void.
    is_attempt_void: bool,
    /// Number of approvals that the turn has requested.
    requested_approvals: u64,
    /// The last report to the session. `None` until a resumed turn has sent its first one.
    reported_wait: Option<PeopleWaitReport>,
}

/// A report to the session: whether the turn waits for people. The session reads the approvals from the records.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct PeopleWaitReport {
    requested_approvals: u64,
    open_approvals: usize,
    /// True if the turn waits for nothing else.
    waits_only_for_people: bool,
    /// True if none of its calls runs either.
    is_resumable: bool,
}

/// The records of one poll loop, and the other events that follow them.
#[derive(Default)]
struct TurnBatch {
    records: Vec<PendingRecord>,
    /// Events, each with the number of records before it.
    events: Vec<(usize, Event)>,
}

/// The timer of the turn. It may fire too early, which the state machine accepts.
struct TurnTimer {
    at: Instant,
    /// True if it replaces one that fired late.
    has_grace: bool,
    _task: OwnedTask,
}

impl TurnTimer {
    /// Returns whether it fires so late that the host was stalled. False for a timer that has the grace
    /// already.
    fn is_late(&self) -> bool {
        !self.has_grace && HostLagClock::is_stall(self.at.elapsed())
    }
}

/// The handler of an [`AccumulatorActor`].
pub(super) struct AccumulatorHandler;

impl Actor for AccumulatorHandler {
    type Msg = AccumulatorMessage;
    type State = AccumulatorActor;
    type Arguments = AccumulatorSetup;

    async fn pre_start(
        &self,
        _: ActorRef<AccumulatorMessage>,
        setup: AccumulatorSetup,
    ) -> Result<AccumulatorActor, ActorProcessingErr> {
        Ok(AccumulatorActor::new(setup))
    }

    async fn handle(
        &self,
        myself: ActorRef<AccumulatorMessage>,
        message: AccumulatorMessage,
        accumulator: &mut AccumulatorActor,
    ) -> Result<(), ActorProcessingErr> {
        if let AccumulatorMessage::BeginTurn(start) = message {
            let resumed_turn = start.resume.is_some().then_some(start.spec.number);
            let started = if accumulator.is_attached {
                StartedCalls::default()
            } else {
                accumulator.attach(resumed_turn, &myself).await
            };
            accumulator.begin_turn(*start, started, &myself);
        } else {
            accumulator.handle_in_turn(message, &myself);
        }
        accumulator.send_commands();
        Ok(())
    }
}

impl CurrentTurn {
    fn begin(start: TurnStart, started: StartedCalls, lag_clock: &HostLagClock) -> Self {
        let TurnStart { spec, scope, request, resume, cancel } = start;
        let number = spec.number;
        let reported_wait = resume.is_none().then(PeopleWaitReport::default);
        let turn = match resume {
            None => {
                let mut turn = Turn::new(spec);
                if let Some(reason) = cancel {
                    turn.handle_cancel(Duration::ZERO, reason);
                }
                turn
            }
            Some(entries) => Turn::resume_with(spec, &entries, unix_ms(), cancel, started),
        };
        let began = Instant::now();
        Self {
            turn,
            number,
            scope,
            request: Some(request),
            next_request: None,
            commands: Vec::new(),
            permits: HashMap::new(),
            hooks: HashMap::new(),
            breaker_permit: None,
            began,
            counted_stalls: lag_clock.stalled(),
            records: 0,
            reported_records: Arc::default(),
            last_seq: Seq(0),
            displayed_bytes: 0,
            is_attempt_void: false,
            requested_approvals: 0,
            reported_wait,
        }
    }

    /// Returns whether the turn is over: only late outcomes can come.
    fn is_over(&self) -> bool {
        self.request.is_none()
    }

    /// Notifies the turn of the time for which the host was stalled since the last call.
    fn count_stalls(&mut self, lag_clock: &HostLagClock) {
        let stalled = lag_clock.stalled();
        let uncounted = stalled.saturating_sub(self.counted_stalls);
        if !uncounted.is_zero() {
            self.counted_stalls = stalled;
            self.turn.handle_stall(uncounted);
        }
    }

    /// Returns the number of bytes of the running attempt that were published before a record. No attempt runs at the
    /// record that shows the text of a failed one to be void.
    fn displayed_before(&mut self, record: &Record) -> u64 {
        let is_void = std::mem::take(&mut self.is_attempt_void);
        let ends_void_attempt =
            matches!(record, Record::LimitReached { .. } | Record::TurnCommitted { .. });
        let before = if is_void && ends_void_attempt { 0 } else { self.displayed_bytes };
        let starts_or_ends = matches!(
            record,
            Record::AttemptStarted { .. }
                | Record::AttemptFailed { kept: true, host_stopped: true, .. }
                | Record::ResponseEnded { .. }
                | Record::TurnCommitted { .. }
        );
        let is_failure = matches!(record, Record::AttemptFailed { kept: false, .. });
        self.displayed_bytes = if starts_or_ends { 0 } else { before };
        self.is_attempt_void = is_failure || is_void && !starts_or_ends && !ends_void_attempt;
        before
    }

    fn handle_sent(&mut self, now: Duration, sent: Option<Box<RequestSent>>) {
        if let Some(RequestSent { at, waited }) = sent.as_deref() {
            self.turn.handle_request_sent(now, at.duration_since(self.began), *waited);
        }
    }
}

impl AccumulatorActor {
    fn new(setup: AccumulatorSetup) -> Self {
        let held = setup.gauges.actors.increment();
        Self {
            setup,
            is_attached: false,
            completions: CompletionQueue::default(),
            current: None,
            timer: None,
            _held: held,
        }
    }

    fn begin_turn(
        &mut self,
        start: TurnStart,
        started: StartedCalls,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        self.current = Some(CurrentTurn::begin(start, started, &self.setup.lag_clock));
        self.perform_effects(myself);
    }

    /// Attaches to the tool supervisor. Returns the calls that it still runs for the resumed turn.
    async fn attach(
        &mut self,
        resumed_turn: Option<u32>,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> StartedCalls {
        self.is_attached = true;
        let attach = |reply| ToolSupervisorMessage::Attach {
            accumulator: myself.clone(),
            completions: Arc::clone(&self.completions),
            resumed_turn,
            reply,
        };
        // If the supervisor has died with its calls, the session replaces this actor too.
        call(&self.setup.supervisor, attach).await.unwrap_or_default()
    }

    fn handle_in_turn(
        &mut self,
        message: AccumulatorMessage,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        match message {
            AccumulatorMessage::BeginTurn(_) => return,
            AccumulatorMessage::DeltasReceived { turn, attempt, sent, batch, reply } => {
                let publishes_arguments = self.setup.publisher.has_argument_readers();
                if let Some((current, now)) = self.current_attempt(turn, attempt) {
                    current.handle_sent(now, sent);
                    current.turn.set_publishes_arguments(publishes_arguments);
                    current.turn.handle_deltas(now, batch);
                    self.perform_effects(myself);
                }
                // If the stream actor has ended, the reply is not needed.
                let _ = reply.send(());
                return;
            }
            AccumulatorMessage::ModelPermitReplied { turn, attempt, permit } => {
                let Some((current, now)) = self.current_attempt(turn, attempt) else { return };
                current.turn.handle_model_permit(now, permit);
            }
            AccumulatorMessage::ResponseEnded(ended) => {
                let ResponseEnded { turn, attempt, sent, end, breaker_permit } = *ended;
                let Some((current, now)) = self.current_attempt(turn, attempt) else { return };
                current.handle_sent(now, sent);
                // A turn that is over publishes no `AttemptEnded`, so its permit is dropped here.
                current.breaker_permit = breaker_permit.filter(|_| !current.is_over());
                current.turn.handle_response_end(now, end);
            }
            AccumulatorMessage::ToolPermitGranted { key } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_tool_permit(now, key, PermitReply::Granted);
            }
            AccumulatorMessage::QuestionAsked { key, number, question } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_question(now, key, number, question);
            }
            AccumulatorMessage::QuestionWithdrawn { key, number } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_question_withdrawn(now, key, number);
            }
            AccumulatorMessage::ChildWaits { key, waits } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_child_waits(now, key, waits);
            }
            AccumulatorMessage::ReferencesRead { key, values } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_references(now, key, *values);
            }
            AccumulatorMessage::HooksDecided { turn, key, on, decision } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                if current.number != turn {
                    return;
                }
                current.hooks.remove(&key);
                current.turn.handle_hook_decision(now, key, on, *decision);
            }
            AccumulatorMessage::ToolsFinished => {
                let completions = std::mem::take(&mut *self.completions.lock());
                let Some((current, now)) = self.current_turn_and_time() else { return };
                for (key, completion) in completions {
                    current.turn.handle_outcome(now, key, completion);
                }
            }
            AccumulatorMessage::RecordsStored { turn } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                if current.number != turn {
                    return;
                }
                let upto = current.reported_records.swap(0, Ordering::AcqRel);
                current.turn.handle_recorded(now, upto);
            }
            AccumulatorMessage::TimerFired => {
                let timer = self.timer.take();
                if timer.is_some_and(|timer| timer.is_late()) {
                    return self.start_timer(Instant::now() + LATE_TIMER_GRACE, true, myself);
                }
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_timeout(now);
            }
            AccumulatorMessage::Cancel { reason } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                current.turn.handle_cancel(now, reason);
            }
            AccumulatorMessage::ContextReduced { request } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                let reduced = request.is_some();
                // A turn that is over needs no request.
                if !current.is_over() && reduced {
                    current.request = request;
                }
                current.turn.handle_context_reduced(now, reduced);
            }
            AccumulatorMessage::Decide { key, decision, reply } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                let accepted = current.turn.handle_approval(now, key, *decision);
                return self.reply_to_decision(reply, accepted, myself);
            }
            AccumulatorMessage::AnswerCall { key, outcome, reply } => {
                let Some((current, now)) = self.current_turn_and_time() else { return };
                let accepted = current.turn.handle_client_result(now, key, *outcome);
                return self.reply_to_decision(reply, accepted, myself);
            }
            AccumulatorMessage::Flush { reply } => {
                let suspends_children = self.setup.suspends_children;
                let current = self.current.as_ref();
                let is_resumable =
                    current.is_some_and(|it| it.turn.is_resumable(suspends_children));
                // The caller may be gone.
                let _ = reply.send(is_resumable);
                return;
            }
            AccumulatorMessage::Finish => return myself.stop(None),
        }
        self.perform_effects(myself);
    }

    /// Sends the commands for calls to the tool supervisor, all in one message.
    fn send_commands(&mut self) {
        let Some(current) = self.current.as_mut() else { return };
        if current.commands.is_empty() {
            return;
        }
        let commands = std::mem::take(&mut current.commands);
        // If the supervisor has died, the session replaces this actor too.
        let _ = self.setup.supervisor.cast(ToolSupervisorMessage::Execute(commands));
    }

    /// Returns the current turn and the time since it began. First counts the stalls of the host.
    fn current_turn_and_time(&mut self) -> Option<(&mut CurrentTurn, Duration)> {
        let current = self.current.as_mut()?;
        current.count_stalls(&self.setup.lag_clock);
        let now = current.began.elapsed();
        Some((current, now))
    }

    /// Returns the same as [`Self::current_turn_and_time`] if the turn and attempt numbers match.
    fn current_attempt(&mut self, turn: u32, attempt: u32) -> Option<(&mut CurrentTurn, Duration)> {
        self.current_turn_and_time()
            .filter(|(current, _)| current.number == turn && current.turn.attempt() == attempt)
    }

    /// Performs the effects of the state machine until none is left that can be performed now.
    fn perform_effects(&mut self, myself: &ActorRef<AccumulatorMessage>) {
        let Some(current) = self.current.as_mut() else { return };
        loop {
            // Made anew each time: most of a run's time is spent without records, so kept buffers would cost memory.
            let mut batch = TurnBatch::default();
            while let Some(effect) = current.turn.poll() {
                match effect {
                    Effect::Record(record) => {
                        let is_request = matches!(record, Record::ApprovalAsked { .. });
                        current.requested_approvals += u64::from(is_request);
                        let displayed_bytes = current.displayed_before(&record);
                        batch.records.push(PendingRecord { record, displayed_bytes });
                    }
                    Effect::Emit(event) => {
                        current.displayed_bytes =
                            event.displayed_bytes_after(current.displayed_bytes);
                        match batch.records.len() {
                            0 => {
                                self.setup.handle_published(&event, current);
                                let publisher = &self.setup.publisher;
                                publisher.publish(&current.scope.run, current.number, event);
                            }
                            records => batch.events.push((records, event)),
                        }
                    }
                    Effect::Perform(action) => self.setup.perform_action(action, current, myself),
                }
            }
            if batch.records.is_empty() || !self.setup.append(batch, current, myself) {
                break;
            }
            current.turn.handle_recorded(current.began.elapsed(), current.records);
        }
        self.setup.report_wait(current);
        self.setup.send_request(current, myself);
        self.set_timer(myself);
    }

    /// Performs what follows from a decision, and replies. The caller then waits until its record is durable. If the
    /// log is closed, such as by hibernation, the record may not be appended: without a reply, the caller sends the
    /// decision again.
    fn reply_to_decision(
        &mut self,
        reply: DecisionReply,
        accepted: Result<(), ApprovalError>,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        self.perform_effects(myself);
        if !self.setup.log.is_closed() {
            // The caller may have dropped the receiver.
            let _ = reply.send(accepted);
        }
    }

    fn set_timer(&mut self, myself: &ActorRef<AccumulatorMessage>) {
        let Some(current) = &self.current else { return };
        // A time that the clock cannot represent never comes.
        let at = current.turn.poll_timeout().and_then(|timeout| current.began.checked_add(timeout));
        let Some(at) = at else { return };
        // An existing earlier timer is kept and set again when it fires. That is cheaper than to
        // set a timer for each call.
        if self.timer.as_ref().is_some_and(|timer| timer.has_grace || timer.at <= at) {
            return;
        }
        self.start_timer(at, false, myself);
    }

    fn start_timer(&mut self, at: Instant, has_grace: bool, myself: &ActorRef<AccumulatorMessage>) {
        let accumulator = myself.clone();
        let task = OwnedTask::spawn(&self.setup.gauges.tasks, async move {
            tokio::time::sleep_until(at).await;
            let _ = accumulator.cast(AccumulatorMessage::TimerFired);
        });
        self.timer = Some(TurnTimer { at, has_grace, _task: task });
    }
}

impl AccumulatorSetup {
    /// Appends the records as one batch, and publishes the events that follow them. Returns true if
    /// the turn may continue as if they were stored: they are stored, or nothing that follows depends on them
    /// ([`Turn::may_commit_early`]).
    fn append(
        &self,
        batch: TurnBatch,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> bool {
        let TurnBatch { records, events } = batch;
        current.records += records.len() as u64;
        let (turn, upto) = (current.number, current.records);
        let accumulator = myself.clone();
        let may_continue = current.turn.may_commit_early();
        let waits = current.turn.waits_for_records() && !may_continue;
        let urgency = if waits { Urgency::Urgent } else { Urgency::Deferrable };
        let reported_records = Arc::clone(&current.reported_records);
        let mut series = self.publisher.begin_series();
        let appended = self.log.try_append_at(unix_ms(), records, urgency, move || {
            // One message serves all batches that are reported before the actor handles it.
            if !may_continue && reported_records.fetch_max(upto, Ordering::AcqRel) == 0 {
                let _ = accumulator.cast(AccumulatorMessage::RecordsStored { turn });
            }
        });
        let Some(Appended { entries, status }) = appended else {
            // The session has left memory. The turn goes on from its stored records, without these.
            return false;
        };
        let mut events = events.into_iter().peekable();
        for (entry, records) in entries.iter().zip(1..) {
            current.last_seq = entry.seq;
            series.publish_entry(entry, |key| current.turn.recorded_call(key));
            while let Some((_, event)) = events.next_if(|(before, _)| *before == records) {
                self.handle_published(&event, current);
                series.publish(&current.scope.run, current.number, event);
            }
        }
        may_continue || status == AppendStatus::Durable
    }

    /// Requests a permit for a tool. If it is granted later, the accumulator receives a message.
    fn request_tool_permit(
        &self,
        key: CallKey,
        name: &str,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> PermitReply {
        let accumulator = myself.clone();
        let tool = current.scope.agent.tools.get(name);
        let ready = tool.and_then(|registered| registered.tool.ready(self.publisher.session()));
        let session = self.session.get_id();
        let (reply, request) = self.tool_limiters.request_permit(name, session, ready, move || {
            let _ = accumulator.cast(AccumulatorMessage::ToolPermitGranted { key });
        });
        if let Some(request) = request {
            current.permits.insert(key, request);
        }
        reply
    }

    /// Tells the session about the turn's wait for people, if that has changed: after the records, in which the session
    /// finds the approvals.
    fn report_wait(&self, current: &mut CurrentTurn) {
        let report = PeopleWaitReport {
            requested_approvals: current.requested_approvals,
            open_approvals: current.turn.pending_approvals().count(),
            waits_only_for_people: current.turn.waits_only_for_people(),
            is_resumable: current.turn.is_resumable(self.suspends_children),
        };
        if current.reported_wait.replace(report) != Some(report) {
            let PeopleWaitReport { waits_only_for_people, is_resumable, .. } = report;
            let epoch = self.epoch;
            let changed =
                SessionMessage::ApprovalsChanged { epoch, waits_only_for_people, is_resumable };
            let _ = self.session.cast(changed);
        }
    }

    /// Handles that an event of the turn is about to be published that shows no record.
    fn handle_published(&self, event: &Event, current: &mut CurrentTurn) {
        if let Event::AttemptEnded { error, .. } = event
            && let Some(breaker_permit) = current.breaker_permit.take()
        {
            breaker_permit.report_result(error.as_deref());
        }
        if let Event::AttemptEnded { error: Some(error), .. } = event
            && let Some(overflow) = error.overflow.filter(|overflow| overflow.output_room.is_some())
        {
            // The turn asks for a shorter answer. The session does not have to make its context smaller.
            let model = current.scope.agent.models.at(current.turn.model());
            model.learnt.update(|learnt| learnt.handle_answer_refusal(overflow));
        }
        if let Event::AttemptEnded { error: None, .. } = event {
            self.publisher.trace_answer(current.turn.response());
        }
    }

    /// Performs an action of the turn. If its receiver has ended, the session is notified of that
    /// and continues from the journal.
    fn perform_action(
        &self,
        action: TurnAction,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        match action {
            TurnAction::Request(plan) => current.next_request = Some(plan),
            TurnAction::Disconnect => {
                current.next_request = None;
                let _ = self.stream.cast(StreamMessage::Disconnect);
            }
            TurnAction::ReduceContext(error) => {
                let (epoch, model) = (self.epoch, current.turn.model());
                let refused =
                    SessionMessage::ContextRefused { epoch, model, error: Box::new(error) };
                let _ = self.session.cast(refused);
            }
            TurnAction::SetToolsAside { model_index, tools, reason } => {
                let Some(request) = &current.request else { return };
                let refused = request.tools.iter().filter(|tool| tools.contains(&tool.name));
                let set_aside = &current.scope.agent.models.at(model_index).set_aside;
                set_aside.add(&refused.collect::<Vec<_>>(), &reason);
                let (epoch, model) = (self.epoch, model_index);
                let _ = self.session.cast(SessionMessage::ToolsSetAside { epoch, model });
            }
            TurnAction::ReadReferences { key, references, bytes_max } => {
                let (reader, accumulator) = (Arc::clone(&self.references), myself.clone());
                task::detach(async move {
                    let values = Box::new(reader.read_all(references, bytes_max).await);
                    // If this actor has ended, nothing needs the values.
                    let _ = accumulator.cast(AccumulatorMessage::ReferencesRead { key, values });
                });
            }
            TurnAction::AskHooks(request) => {
                let key = request.call.as_ref().map(|call| call.key);
                let (turn, on, accumulator) = (current.number, request.on, myself.clone());
                let position = (self.publisher.session(), &current.scope.run, current.number);
                let telemetry = self.publisher.telemetry();
                let model_request = current.request.as_deref();
                let agent = (&current.scope.agent, self.parent.as_deref());
                let question =
                    HookInvocation::of_turn(*request, position, model_request, agent, telemetry);
                let task = OwnedTask::spawn(&self.gauges.tasks, async move {
                    let decision = Box::new(question.ask().await);
                    let _ = accumulator.cast(AccumulatorMessage::HooksDecided {
                        turn,
                        key,
                        on,
                        decision,
                    });
                });
                current.hooks.insert(key, task);
            }
            TurnAction::ChangeRequest(decision) => {
                if let Some(request) = &current.request {
                    current.request = Some(Arc::new(changed_request(request, &decision)));
                }
            }
            TurnAction::WithdrawHooks(key) => drop(current.hooks.remove(&key)),
            TurnAction::RequestToolPermit { key, tool } => {
                let permit = self.request_tool_permit(key, &tool, current, myself);
                current.turn.handle_tool_permit(current.began.elapsed(), key, permit);
            }
            TurnAction::ReleaseToolPermit(key) => drop(current.permits.remove(&key)),
            TurnAction::Start(start) => {
                let permit = current.permits.remove(&start.call.key);
                let scope = Arc::clone(&current.scope);
                let start = Box::new(StartTool { start, scope, permit });
                // Commands are sent together, after the message is handled (`send_commands`).
                current.commands.push(ToolCommand::Start(start));
            }
            TurnAction::Answer { key, number, answer } => {
                current.commands.push(ToolCommand::Answer { key, number, answer });
            }
            TurnAction::Abort(key) => current.commands.push(ToolCommand::Abort(key)),
            TurnAction::Commit(turn) => {
                current.request = None;
                // The commit is the turn's last record.
                let (epoch, seq) = (self.epoch, current.last_seq);
                let _ = self.session.cast(SessionMessage::TurnCommitted { epoch, turn, seq });
            }
        }
    }

    /// Sends the request that the turn planned last, unless the turn has disconnected since.
    fn send_request(&self, current: &mut CurrentTurn, myself: &ActorRef<AccumulatorMessage>) {
        // A turn that is over has dropped its request and plans none.
        let (Some(plan), Some(request)) = (current.next_request.take(), &current.request) else {
            return;
        };
        let _ = self.stream.cast(StreamMessage::Request {
            turn: current.number,
            trace: current
                .scope
                .trace
                .as_ref()
                .map(|t| t.for_attempt(current.number, plan.attempt)),
            model: Arc::clone(current.scope.agent.models.at(plan.model_index)),
            plan,
            request: Arc::clone(request),
            to: myself.clone(),
        });
    }
}
