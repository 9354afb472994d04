//! The actor that owns the turn. It passes messages to the turn's state machine and performs the
//! effects. Calls run under the tool supervisor, so that they survive this actor.

mod batch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::agent::Agent;
use super::gauge::{CountGuard, Gauges};
use super::message::{
    AccumulatorMessage, CompletionQueue, DecisionReply, RequestSent, ResponseEnded, SessionMessage,
    StreamMessage, ToolCommand, ToolSupervisorMessage, ToolSupervisorRef, TurnStart,
};
use super::model::ModelRequest;
use super::model_limiter::BreakerPermitGuard;
use super::publish::Publisher;
use super::references::SessionReferences;
use super::task::OwnedTask;
use super::tool_limiter::CallPermit;
use super::tool_limiter::ToolLimiters;
use crate::journal::{PendingRecord, SessionLog, unix_ms};
use crate::record::Seq;
use crate::tool::Extensions;
use crate::turn::{ApprovalError, AttemptPlan, Effect, PermitReply, StartedCalls, Turn};
use crate::types::{ApprovalPhase, CallKey, ParentCall, RunId, RunTrace};
use batch::TurnBatch;

/// The actor that owns the current turn of a run. Each turn has a new [`Turn`].
#[derive(Debug)]
pub(super) struct AccumulatorActor;

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
    /// The call that opened the session, if it is a child session.
    pub(super) parent: Option<Arc<ParentCall>>,
}

pub(super) struct AccumulatorState {
    setup: AccumulatorSetup,
    /// True if the tool supervisor reports to this accumulator. It is set at the start of the first
    /// turn.
    is_attached: bool,
    completions: CompletionQueue,
    current: Option<CurrentTurn>,
    batch: TurnBatch,
    timer: Option<TurnTimer>,
    /// Replies to approval decisions. Each is sent when the given number of the turn's records are
    /// durable.
    decision_replies: Vec<(u64, DecisionReply)>,
    _held: CountGuard,
}

/// The current turn. It is kept when it is over, because a tool may still end late.
struct CurrentTurn {
    turn: Turn,
    number: u32,
    run: RunId,
    /// The position of the run's first record.
    run_seq: Seq,
    /// The agent with the overrides of the run.
    agent: Arc<Agent>,
    trace: Option<Arc<RunTrace>>,
    extensions: Extensions,
    /// Dropped when the turn is over, so that the session is the only owner of the history again.
    request: Option<Arc<ModelRequest>>,
    /// The request to send after all effects are performed. A task that is aborted immediately
    /// after its start may have sent its request already.
    next_request: Option<AttemptPlan>,
    /// The commands to send to the tool supervisor.
    commands: Vec<ToolCommand>,
    /// Permits and pending permit requests of calls that have not started. Only tools with a
    /// concurrency limit need them.
    permits: HashMap<CallKey, CallPermit>,
    /// The tasks that ask hooks about calls, and the one that asks about the turn.
    hooks: HashMap<Option<CallKey>, OwnedTask>,
    /// The breaker permit of the exchange that has ended. It is released with the attempt's result.
    breaker_permit: Option<BreakerPermitGuard>,
    began: Instant,
    /// Number of records that the turn has produced.
    records: u64,
    /// Number of these records that are stored.
    stored: u64,
    /// The position of the last record that the turn has produced.
    last_seq: Seq,
    /// Bytes of text and thinking of the running attempt that were published.
    displayed_bytes: u64,
    /// The pending approvals that the session was notified of last, and whether the turn waited for
    /// nothing else.
    notified_approvals: (Vec<(CallKey, ApprovalPhase)>, bool),
}

/// The timer of the turn. It may fire too early, which the state machine accepts.
struct TurnTimer {
    at: Instant,
    _task: OwnedTask,
}

impl Actor for AccumulatorActor {
    type Msg = AccumulatorMessage;
    type State = AccumulatorState;
    type Arguments = AccumulatorSetup;

    async fn pre_start(
        &self,
        _: ActorRef<AccumulatorMessage>,
        setup: AccumulatorSetup,
    ) -> Result<AccumulatorState, ActorProcessingErr> {
        let held = setup.gauges.actors.increment();
        Ok(AccumulatorState {
            setup,
            is_attached: false,
            completions: CompletionQueue::default(),
            current: None,
            batch: TurnBatch::default(),
            timer: None,
            decision_replies: Vec::new(),
            _held: held,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<AccumulatorMessage>,
        message: AccumulatorMessage,
        state: &mut AccumulatorState,
    ) -> Result<(), ActorProcessingErr> {
        if let AccumulatorMessage::BeginTurn(start) = message {
            let resumed_turn = start.resume.is_some().then_some(start.spec.number);
            let started = if state.is_attached {
                StartedCalls::default()
            } else {
                // Boxed, because the actor library moves the future with each message.
                Box::pin(state.attach(resumed_turn, &myself)).await
            };
            state.begin_turn(*start, started, &myself);
        } else {
            state.handle(message, &myself);
        }
        state.send_commands();
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<AccumulatorMessage>,
        _: SupervisionEvent,
        _: &mut AccumulatorState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

impl CurrentTurn {
    fn begin(start: TurnStart, started: StartedCalls) -> Self {
        let TurnStart { spec, run, run_seq, agent, trace, extensions, request, resume, cancel } =
            start;
        let number = spec.number;
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
            run,
            run_seq,
            agent,
            trace,
            extensions,
            request: Some(request),
            next_request: None,
            commands: Vec::new(),
            permits: HashMap::new(),
            hooks: HashMap::new(),
            breaker_permit: None,
            began,
            records: 0,
            stored: 0,
            last_seq: Seq(0),
            displayed_bytes: 0,
            notified_approvals: Default::default(),
        }
    }

    fn handle_sent(&mut self, now: Duration, sent: Option<Box<RequestSent>>) {
        if let Some(RequestSent { at, waited }) = sent.as_deref() {
            self.turn.handle_request_sent(now, at.duration_since(self.began), *waited);
        }
    }
}

impl AccumulatorState {
    fn begin_turn(
        &mut self,
        start: TurnStart,
        started: StartedCalls,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        let is_resumed = start.resume.is_some();
        self.current = Some(CurrentTurn::begin(start, started));
        self.perform_effects(myself);
        if is_resumed {
            let epoch = self.setup.epoch;
            let _ = self.setup.session.cast(SessionMessage::TurnResumed { epoch });
        }
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
        match self.setup.supervisor.call(attach, None).await {
            Ok(CallResult::Success(started)) => started,
            // The supervisor has died with its calls. The session replaces this actor too.
            Ok(CallResult::Timeout | CallResult::SenderError) | Err(_) => StartedCalls::default(),
        }
    }

    fn handle(&mut self, message: AccumulatorMessage, myself: &ActorRef<AccumulatorMessage>) {
        match message {
            AccumulatorMessage::BeginTurn(_) => return,
            AccumulatorMessage::DeltasReceived { turn, attempt, sent, batch, reply } => {
                if let Some((current, now)) = self.exchange(turn, attempt) {
                    current.handle_sent(now, sent);
                    current.turn.handle_deltas(now, batch);
                    self.perform_effects(myself);
                }
                // If the stream actor has ended, the reply is not needed.
                let _ = reply.send(());
                return;
            }
            AccumulatorMessage::ModelPermitReplied { turn, attempt, permit } => {
                let Some((current, now)) = self.exchange(turn, attempt) else { return };
                current.turn.handle_model_permit(now, permit);
            }
            AccumulatorMessage::ResponseEnded(ended) => {
                let ResponseEnded { turn, attempt, sent, end, breaker_permit } = *ended;
                let Some((current, now)) = self.exchange(turn, attempt) else { return };
                current.handle_sent(now, sent);
                // A turn that is over releases no breaker permits.
                current.breaker_permit = breaker_permit.filter(|_| current.request.is_some());
                current.turn.handle_response_end(now, end);
            }
            AccumulatorMessage::ToolPermitGranted { key } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_tool_permit(now, key, PermitReply::Granted);
            }
            AccumulatorMessage::QuestionAsked { key, number, question } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_question(now, key, number, question);
            }
            AccumulatorMessage::QuestionWithdrawn { key, number } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_question_withdrawn(now, key, number);
            }
            AccumulatorMessage::ChildWaits { key, waits } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_child_waits(now, key, waits);
            }
            AccumulatorMessage::ReferencesRead { key, values } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_references(now, key, *values);
            }
            AccumulatorMessage::HooksDecided { turn, key, on, decision } => {
                let Some((current, now)) = self.now() else { return };
                if current.number != turn {
                    return;
                }
                current.hooks.remove(&key);
                current.turn.handle_hook_decision(now, key, on, *decision);
            }
            AccumulatorMessage::ToolsFinished => {
                let completions = std::mem::take(&mut *self.completions.lock());
                let Some((current, now)) = self.now() else { return };
                for (key, completion) in completions {
                    current.turn.handle_outcome(now, key, completion);
                }
            }
            AccumulatorMessage::RecordsStored { turn, upto } => {
                let Some((current, now)) = self.now() else { return };
                if current.number != turn {
                    return;
                }
                current.turn.handle_recorded(now, upto);
                self.handle_stored(upto);
            }
            AccumulatorMessage::TimerFired => {
                self.timer = None;
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_timeout(now);
            }
            AccumulatorMessage::Cancel { reason } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_cancel(now, reason);
            }
            AccumulatorMessage::ContextReduced { request } => {
                let Some((current, now)) = self.now() else { return };
                let reduced = request.is_some();
                // A turn that is over needs no request.
                if current.request.is_some() && reduced {
                    current.request = request;
                }
                current.turn.handle_context_reduced(now, reduced);
            }
            AccumulatorMessage::Decide { key, decision, reply } => {
                let Some((current, now)) = self.now() else { return };
                let accepted = current.turn.handle_approval(now, key, *decision);
                self.perform_effects(myself);
                return self.reply_to_decision(reply, accepted);
            }
            AccumulatorMessage::AnswerCall { key, outcome, reply } => {
                let Some((current, now)) = self.now() else { return };
                let accepted = current.turn.handle_client_result(now, key, *outcome);
                self.perform_effects(myself);
                return self.reply_to_decision(reply, accepted);
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

    fn now(&mut self) -> Option<(&mut CurrentTurn, Duration)> {
        let current = self.current.as_mut()?;
        let now = current.began.elapsed();
        Some((current, now))
    }

    /// Returns the current turn if the turn and attempt numbers match.
    fn exchange(&mut self, turn: u32, attempt: u32) -> Option<(&mut CurrentTurn, Duration)> {
        self.now()
            .filter(|(current, _)| current.number == turn && current.turn.attempt() == attempt)
    }

    /// Performs the effects of the state machine until none is left that can be performed now.
    fn perform_effects(&mut self, myself: &ActorRef<AccumulatorMessage>) {
        let Some(current) = self.current.as_mut() else { return };
        let batch = &mut self.batch;
        loop {
            // This comes first, so that a subscriber that receives an approval request finds it in
            // the snapshot.
            self.setup.notify_approvals(current);
            while let Some(effect) = current.turn.poll() {
                match effect {
                    Effect::Record(record) => {
                        let displayed_bytes = current.displayed_bytes;
                        batch.records.push(PendingRecord { record, displayed_bytes });
                    }
                    Effect::Emit(event) => {
                        current.displayed_bytes =
                            event.displayed_bytes_after(current.displayed_bytes);
                        batch.push_event(event, &self.setup, current);
                    }
                    Effect::Perform(action) => self.setup.perform(action, current, myself),
                }
            }
            if batch.records.is_empty() || !self.setup.store(batch, current, myself) {
                break;
            }
            current.stored = current.records;
            current.turn.handle_recorded(current.began.elapsed(), current.records);
        }
        self.setup.send_request(current, myself);
        self.set_timer(myself);
    }

    /// Replies to an approval decision. An accepted decision is confirmed after its record is
    /// durable.
    fn reply_to_decision(&mut self, reply: DecisionReply, accepted: Result<(), ApprovalError>) {
        let current = self.current.as_ref().filter(|current| current.stored < current.records);
        match (accepted, current) {
            (Ok(()), Some(current)) => self.decision_replies.push((current.records, reply)),
            (accepted, _) => {
                // The caller may have dropped the receiver.
                let _ = reply.send(accepted);
            }
        }
    }

    fn handle_stored(&mut self, upto: u64) {
        if let Some(current) = self.current.as_mut() {
            current.stored = upto;
        }
        for (_, reply) in self.decision_replies.extract_if(.., |(needs, _)| *needs <= upto) {
            let _ = reply.send(Ok(()));
        }
    }

    fn set_timer(&mut self, myself: &ActorRef<AccumulatorMessage>) {
        let Some(current) = &self.current else { return };
        // A time that the clock cannot represent never comes.
        let at = current.turn.poll_timeout().and_then(|timeout| current.began.checked_add(timeout));
        let Some(at) = at else { return };
        // An existing earlier timer is kept and set again when it fires. That is cheaper than to
        // set a timer for each call.
        if self.timer.as_ref().is_some_and(|timer| timer.at <= at) {
            return;
        }
        let accumulator = myself.clone();
        let task = OwnedTask::spawn(&self.setup.gauges.tasks, async move {
            tokio::time::sleep_until(at).await;
            let _ = accumulator.cast(AccumulatorMessage::TimerFired);
        });
        self.timer = Some(TurnTimer { at, _task: task });
    }
}
