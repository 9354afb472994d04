//! The actor that owns the turn. It passes messages to the turn's state machine and performs the
//! effects. The actors of tool calls are its children.

mod batch;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::agent::Agent;
use super::blocking::BlockingPool;
use super::caps::Caps;
use super::fair_semaphore::PermitRequest;
use super::gauge::{CountGuard, Gauges};
use super::message::{AccumulatorMessage, DecisionReply, SessionMessage, StreamMessage, TurnStart};
use super::model::ModelRequest;
use super::model_limiter::BreakerPermitGuard;
use super::publish::Publisher;
use super::supervisor::{ToolCommand, ToolSupervisor};
use super::task::OwnedTask;
use super::tool::failed;
use crate::journal::{PendingRecord, SessionLog, unix_ms};
use crate::turn::{ApprovalError, AttemptPlan, Effect, PermitReply, ToolCompletion, Turn};
use crate::types::{ApprovalPhase, CallKey, FailureKind, RunId, RunTrace};
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
    pub(super) log: Arc<SessionLog>,
    pub(super) publisher: Publisher,
    pub(super) pool: BlockingPool,
    pub(super) caps: Caps,
    pub(super) gauges: Gauges,
}

pub(super) struct AccumulatorState {
    setup: AccumulatorSetup,
    tools: ToolSupervisor,
    /// True after `Finish`: no other turn begins.
    finishing: bool,
    current: Option<CurrentTurn>,
    batch: TurnBatch,
    timer: Option<TurnTimer>,
    /// Replies to approval decisions. Each is sent when the given number of the turn's records are
    /// durable.
    answers: Vec<(u64, DecisionReply)>,
    _held: CountGuard,
}

/// The current turn. It is kept when it is over, because a tool may still end late.
struct CurrentTurn {
    turn: Turn,
    number: u32,
    run: RunId,
    /// The agent with the overrides of the run.
    agent: Arc<Agent>,
    trace: Option<Arc<RunTrace>>,
    /// Dropped when the turn is over, so that the session is the only owner of the history again.
    request: Option<Arc<ModelRequest>>,
    /// The request to send after all effects are performed. A task that is aborted immediately
    /// after its start may have sent its request already.
    next_request: Option<AttemptPlan>,
    /// Commands for the tool supervisor.
    orders: VecDeque<ToolCommand>,
    /// Permits and pending permit requests of calls that have not started. Only tools with a
    /// concurrency limit need them.
    places: HashMap<CallKey, PermitRequest>,
    /// The breaker permit of the exchange that has ended. It is settled with the attempt's result.
    breaker_permit: Option<BreakerPermitGuard>,
    began: Instant,
    /// Number of records that the turn has produced.
    records: u64,
    /// Number of these records that are stored.
    stored: u64,
    /// Bytes of text and thinking of the running attempt that were published.
    displayed_bytes: u64,
    /// The approval state that the session was notified of last.
    told: (Vec<(CallKey, ApprovalPhase)>, bool),
}

/// The timer of the turn. The state machine accepts that it fires too early.
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
        let AccumulatorSetup { publisher, pool, gauges, .. } = &setup;
        let tools = ToolSupervisor::new(publisher.clone(), pool.clone(), gauges.clone());
        Ok(AccumulatorState {
            setup,
            tools,
            finishing: false,
            current: None,
            batch: TurnBatch::default(),
            timer: None,
            answers: Vec::new(),
            _held: held,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<AccumulatorMessage>,
        message: AccumulatorMessage,
        state: &mut AccumulatorState,
    ) -> Result<(), ActorProcessingErr> {
        state.take(message, &myself);
        state.carry_out(&myself).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<AccumulatorMessage>,
        event: SupervisionEvent,
        state: &mut AccumulatorState,
    ) -> Result<(), ActorProcessingErr> {
        let ended = match event {
            SupervisionEvent::ActorTerminated(cell, _, _) => {
                let killed = || failed(FailureKind::Killed, "the tool was killed");
                state.tools.ended(cell.get_id(), killed)
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                let died = || failed(FailureKind::Panic, &format!("the tool panicked: {error}"));
                state.tools.ended(cell.get_id(), died)
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {
                return Ok(());
            }
        };
        if let Some((key, done)) = ended {
            state.tool_ended(key, done, &myself);
        }
        state.carry_out(&myself).await;
        Ok(())
    }
}

impl CurrentTurn {
    fn begin(start: TurnStart) -> Self {
        let TurnStart { spec, run, agent, trace, request, resume, cancel } = start;
        let number = spec.number;
        let turn = match resume {
            None => {
                let mut turn = Turn::new(spec);
                if let Some(why) = cancel {
                    turn.handle_cancel(Duration::ZERO, why);
                }
                turn
            }
            Some(entries) => Turn::resume(spec, &entries, unix_ms(), cancel),
        };
        let began = Instant::now();
        Self {
            turn,
            number,
            run,
            agent,
            trace,
            request: Some(request),
            next_request: None,
            orders: VecDeque::new(),
            places: HashMap::new(),
            breaker_permit: None,
            began,
            records: 0,
            stored: 0,
            displayed_bytes: 0,
            told: Default::default(),
        }
    }
}

impl AccumulatorState {
    fn take(&mut self, message: AccumulatorMessage, myself: &ActorRef<AccumulatorMessage>) {
        match message {
            AccumulatorMessage::BeginTurn(start) => {
                let goes_on = start.resume.is_some();
                self.current = Some(CurrentTurn::begin(*start));
                self.settle(myself);
                if goes_on {
                    let epoch = self.setup.epoch;
                    let _ = self.setup.session.cast(SessionMessage::TurnKnown { epoch });
                }
                return;
            }
            AccumulatorMessage::DeltasReceived { turn, attempt, batch, reply } => {
                if let Some((current, now)) = self.exchange(turn, attempt) {
                    current.turn.handle_deltas(now, batch);
                    self.settle(myself);
                }
                // If the stream actor has ended, the reply is not needed.
                let _ = reply.send(());
                return;
            }
            AccumulatorMessage::RequestPlace { turn, attempt, place } => {
                let Some((current, now)) = self.exchange(turn, attempt) else { return };
                current.turn.handle_model_permit(now, place);
            }
            AccumulatorMessage::ResponseEnded { turn, attempt, end, breaker_permit } => {
                let Some((current, now)) = self.exchange(turn, attempt) else { return };
                // A turn that is over does not settle breaker permits.
                current.breaker_permit = breaker_permit.filter(|_| current.request.is_some());
                current.turn.handle_response_end(now, end);
            }
            AccumulatorMessage::PlaceGranted { key } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_tool_permit(now, key, PermitReply::Granted);
            }
            AccumulatorMessage::GraceOver { key } => return self.tools.kill(key),
            AccumulatorMessage::RecordsStored { turn, upto } => {
                let Some((current, now)) = self.now() else { return };
                if current.number != turn {
                    return;
                }
                current.turn.handle_recorded(now, upto);
                self.stored(upto);
            }
            AccumulatorMessage::TimerFired => {
                self.timer = None;
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_timeout(now);
            }
            AccumulatorMessage::Cancel { why } => {
                let Some((current, now)) = self.now() else { return };
                current.turn.handle_cancel(now, why);
            }
            AccumulatorMessage::Decide { key, decision, reply } => {
                let Some((current, now)) = self.now() else { return };
                let taken = current.turn.handle_approval(now, key, decision);
                self.settle(myself);
                return self.answer(reply, taken);
            }
            AccumulatorMessage::Finish => {
                self.finishing = true;
                return self.tools.abort_all(myself);
            }
        }
        self.settle(myself);
    }

    /// Passes the end of a call's actor to the turn, even if it is late.
    fn tool_ended(
        &mut self,
        key: CallKey,
        done: ToolCompletion,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        if let Some((current, now)) = self.now() {
            current.turn.handle_outcome(now, key, done);
            self.settle(myself);
        }
    }

    /// Executes the commands for tool calls. Stops the actor if it is finishing and no tool is
    /// left.
    async fn carry_out(&mut self, myself: &ActorRef<AccumulatorMessage>) {
        while let Some(order) = self.current.as_mut().and_then(|of| of.orders.pop_front()) {
            match order {
                ToolCommand::Start(start) => {
                    let ended = Box::pin(self.tools.start(*start, myself)).await;
                    if let Some((key, done)) = ended {
                        self.tool_ended(key, done, myself);
                    }
                }
                ToolCommand::Abort(key) => self.tools.abort(key, myself),
            }
        }
        if self.finishing && self.tools.is_done() {
            myself.stop(None);
        }
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
    fn settle(&mut self, myself: &ActorRef<AccumulatorMessage>) {
        let Some(current) = self.current.as_mut() else { return };
        let batch = &mut self.batch;
        loop {
            // This comes first, so that a subscriber that receives an approval request finds it in
            // the snapshot.
            self.setup.tell_questions(current);
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
        self.arm(myself);
    }

    /// Replies to an approval decision. An accepted decision is confirmed after its record is
    /// durable.
    fn answer(&mut self, reply: DecisionReply, taken: Result<(), ApprovalError>) {
        let current = self.current.as_ref().filter(|current| current.stored < current.records);
        match (taken, current) {
            (Ok(()), Some(current)) => self.answers.push((current.records, reply)),
            (taken, _) => {
                // The caller may have dropped the receiver.
                let _ = reply.send(taken);
            }
        }
    }

    fn stored(&mut self, upto: u64) {
        if let Some(current) = self.current.as_mut() {
            current.stored = upto;
        }
        for (_, reply) in self.answers.extract_if(.., |(needs, _)| *needs <= upto) {
            let _ = reply.send(Ok(()));
        }
    }

    fn arm(&mut self, myself: &ActorRef<AccumulatorMessage>) {
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
