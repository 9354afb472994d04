//! One turn. Machines: no async, no clock, no I/O.
//!
//! [`Turn`] is one model response and the calls in it, over as many attempts as it takes. Values
//! go in by `handle_*`, effects come out of [`Turn::poll`]; time is an argument. Each rule has
//! one place:
//!
//! | file | rule |
//! | --- | --- |
//! | `deltas` | deltas to calls that open, are sealed, or turn out malformed |
//! | `admission` | which calls are kept, run, answered or copied |
//! | `schedule` | which sealed calls may start now |
//! | `isolation` | snapshots of variables, write conflicts, reruns |
//! | `approval` | approval requests, decisions and their expiry |
//! | `response_end` | calls and text kept at each ending of a response |
//! | `step` | what is done after every event: admit, start, release, commit |
//! | `budget` | what a run may use up, and how a turn ends that uses up more |
//! | `attempt_start` | start and end of each request to a model |
//! | `attempts` | retry, backoff, fallback models, plain answers after broken streams |
//! | `breaker` | circuit breaker of a model |
//! | `reassembly` | outcomes in any order, released in call order |
//! | `model_messages` | result texts of calls that did not run normally |
//! | `resume` | a turn from its records |
//! | `committed` | a turn that is over, from its records |
//! | `replay` | a turn once more from its records, compared with them |
//! | `initial_calls` | a turn of calls that the session was opened with |
#![warn(clippy::indexing_slicing)]

mod admission;
mod approval;
mod attempt_start;
mod attempts;
mod breaker;
mod budget;
mod call;
mod clock;
pub(crate) mod committed;
mod deltas;
mod effect;
#[cfg(test)]
pub(crate) mod explorer;
#[cfg(test)]
pub(crate) mod fixtures;
mod initial_calls;
mod isolation;
mod model_messages;
mod reassembly;
pub(crate) mod replay;
mod response_end;
mod resume;
mod schedule;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use breaker::{
    Breaker, BreakerChange, BreakerPermit, BreakerRefusal, BreakerRules, BreakerState,
    ServiceSignal,
};
pub use budget::{Budget, LimitHit};
pub(crate) use budget::{MAX_CALLS, MAX_TOKENS};
pub use committed::results_so_far;
pub use effect::{
    ApprovalDecision, ApprovalError, AttemptPlan, CallStart, CancelReason, Effect, ModelPlan,
    ModelPlans, PermitReply, ToolCompletion, TurnAction, TurnEnd, TurnRecord, TurnRules, TurnSpec,
};
pub use initial_calls::InitialCallsTurn;
pub use replay::Difference;

use crate::event::{CallLabel, Event};
use crate::record::{ResponseDisposition, ResponseMessage};

use crate::response::{DisplayOrder, ExchangeEnd, ResponseAssembler, classify_ending};
use crate::types::{ApprovalPhase, CallKey, FinishReason, Judgement, ToolOutcome, Usage};
use crate::wire::Delta;
use attempts::Attempts;
use call::{CallPhase, TurnCall};
use clock::TurnClock;
use effect::{DeferredEffect, EffectQueue};
use isolation::VisibleVariables;
use reassembly::Reassembly;
#[cfg(test)]
pub(crate) use step::call_ended_record;

/// The limit of a run's time, by its name in the configuration.
const RUN_TIMEOUT: &str = "run_timeout";

/// One model response and the tool calls in it: the machine that decides everything about them.
///
/// After each `handle_*` the shell calls [`poll`](Self::poll) until it gives none, appends the
/// records it got as one batch, and tells [`handle_recorded`](Self::handle_recorded) when they
/// are durable. Starts of calls with effects, results and the commit wait for that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    spec: Arc<TurnSpec>,
    stage: TurnStage,
    attempts: Attempts,
    plan: AttemptPlan,
    response: ResponseAssembler,
    display_order: DisplayOrder,
    delta_count: u64,
    asked_at: Duration,
    first_delta_at: Option<Duration>,
    calls: Vec<TurnCall>,
    dropped: Vec<Arc<str>>,
    call_limit_recorded: bool,
    /// Results of pure calls of attempts that broke, by identity.
    reusable_results: BTreeMap<String, ToolOutcome>,
    /// The decisions about calls.
    judgements: BTreeMap<(CallKey, ApprovalPhase), Judgement>,
    /// The approvals that were open before the turn was resumed, and for how long.
    asked: BTreeMap<(CallKey, ApprovalPhase), Duration>,
    visible: VisibleVariables,
    finish: Option<FinishReason>,
    usage: Usage,
    reassembly: Reassembly,
    clock: TurnClock,
    effects: EffectQueue,
}

/// The stage of the turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TurnStage {
    /// An exchange is open, or the wait before it.
    AwaitingResponse,
    /// The response's ending is known; its calls may still run.
    ResponseEnded {
        ending: ResponseDisposition,
        message: Option<Arc<ResponseMessage>>,
        cancelled: Option<CancelReason>,
    },
    /// Everything is decided; the commit is out or waits for its record.
    Finished,
}

impl Turn {
    /// Begins a turn: the first effects ask the model.
    #[must_use]
    pub fn new(spec: TurnSpec) -> Self {
        let attempts = Attempts::new(Arc::clone(&spec.rules.models), spec.seed);
        let mut turn = Self::blank(spec, attempts);
        turn.ask();
        turn
    }

    /// Which attempt is open, or was the last. Messages of another attempt are not for this turn.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.plan.attempt
    }

    /// The response that comes, or came last.
    #[must_use]
    pub fn response(&self) -> &ResponseAssembler {
        &self.response
    }

    /// The session's turn that this is.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.spec.number
    }

    /// Takes in what one chunk of the response decoded to.
    pub fn handle_deltas(&mut self, now: Duration, batch: Vec<Delta>) {
        self.clock.advance(now);
        let (attempt, mut changed) = (self.attempt(), false);
        for delta in batch {
            // Some limits close the response in the middle of a batch.
            if self.stage != TurnStage::AwaitingResponse || self.attempt() != attempt {
                break;
            }
            changed |= self.handle_delta(delta);
        }
        // A chunk is taken in whole: the end of a response and what it cost may come in one.
        changed |= self.end_if_over_tokens();
        // Most batches are text, and text decides nothing.
        if changed {
            self.advance();
        }
    }

    /// The exchange is over.
    pub fn handle_response_end(&mut self, now: Duration, end: ExchangeEnd) {
        self.clock.advance(now);
        if self.stage != TurnStage::AwaitingResponse {
            return;
        }
        // Whatever has no name by now is no call.
        self.response.end(false);
        match classify_ending(&self.response, end) {
            Ok(ending) => {
                if ending == ResponseDisposition::Well {
                    let changes = self.response.end(true);
                    self.handle_changes(changes);
                }
                self.end_response(ending, None);
            }
            Err(error) => self.handle_broken(error),
        }
        self.advance();
    }

    /// The host has a place of its tool for a call that asked for one, or has none yet. For a call
    /// that waits no more this says nothing: it has given the place back.
    pub fn handle_tool_permit(&mut self, now: Duration, key: CallKey, place: PermitReply) {
        self.clock.advance(now);
        let Some(index) = self.position(key) else { return };
        let Some(&CallPhase::AwaitingPermit { since }) =
            self.calls.get(index).map(|call| &call.phase)
        else {
            return;
        };
        self.handle_permit_reply(index, since, place);
        self.advance();
    }

    /// A tool's actor has ended.
    pub fn handle_outcome(&mut self, now: Duration, key: CallKey, done: ToolCompletion) {
        self.clock.advance(now);
        match self.position(key) {
            Some(index) if self.calls.get(index).is_some_and(TurnCall::is_running) => {
                self.handle_tool_report(index, done.outcome, done.used);
                self.advance();
            }
            Some(index) => {
                if let Some(label) = self.calls.get(index).map(TurnCall::label) {
                    self.emit(Event::OutcomeLate { call: label });
                }
            }
            None => self.emit(Event::OutcomeLate {
                call: CallLabel { key, provider_id: None, name: "".into() },
            }),
        }
    }

    /// So many of the records that this machine asked for, counted from 1, are durable. Those
    /// from which it was resumed do not count.
    pub fn handle_recorded(&mut self, now: Duration, upto: u64) {
        self.clock.advance(now);
        while let Some(key) = self.effects.handle_recorded(upto) {
            if let Some(index) = self.position(key) {
                self.start_intended(index);
            }
        }
        self.advance();
    }

    /// Handles a decision about a call that waits for approval.
    ///
    /// # Errors
    /// When nobody was asked about it, the decision is about other arguments, or it was decided
    /// otherwise before. Nothing has changed then. The same decision again is no error.
    pub fn handle_approval(
        &mut self,
        now: Duration,
        key: CallKey,
        decision: ApprovalDecision,
    ) -> Result<(), ApprovalError> {
        self.clock.advance(now);
        let taken = self.apply_decision(key, decision);
        self.advance();
        taken
    }

    /// The moment that [`poll_timeout`](Self::poll_timeout) named has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.clock.advance(now);
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { continue };
            let CallPhase::Running { deadline: Some(deadline) } = call.phase else { continue };
            if deadline <= now {
                self.end_timed_out(index, deadline);
            }
        }
        self.expire_approvals();
        if self.run_deadline().is_some_and(|deadline| deadline <= now) {
            self.end_out_of_time();
        }
        self.advance();
    }

    /// The turn is to end now. What has finished keeps its outcome; the rest is answered.
    pub fn handle_cancel(&mut self, now: Duration, why: CancelReason) {
        self.clock.advance(now);
        match &mut self.stage {
            TurnStage::AwaitingResponse => {
                self.effects.perform(TurnAction::Disconnect);
                self.end_response(ResponseDisposition::Cancelled, Some(why));
            }
            TurnStage::ResponseEnded { cancelled, .. } => {
                cancelled.get_or_insert(why);
                self.cancel_calls();
            }
            TurnStage::Finished => {}
        }
        self.advance();
    }

    /// Returns whether something waits until records are stored: a start, a result or the commit.
    #[must_use]
    pub fn waits_for_records(&self) -> bool {
        self.effects.deferred().len() > 0
    }

    /// Returns whether all that waits is the commit of a turn that called nothing. Nothing has happened
    /// outside for its sake, and nobody is told of it before it is durable: the run may go on, so
    /// that its end is stored with it.
    #[must_use]
    pub fn may_commit_early(&self) -> bool {
        let mut deferred = self.effects.deferred();
        let is_commit = |(_, deferred): &(u64, DeferredEffect)| {
            matches!(deferred, DeferredEffect::Queue(Effect::Perform(TurnAction::Commit(_))))
        };
        self.calls.is_empty() && deferred.next().is_some_and(is_commit) && deferred.len() == 0
    }

    /// The next thing to be done, until there is none.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.poll()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), since the turn began.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let deadlines = self.calls.iter().filter_map(|call| match call.phase {
            CallPhase::Running { deadline } => deadline,
            CallPhase::AwaitingApproval { until } | CallPhase::AwaitingReview { until, .. } => {
                until
            }
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::Ready
            | CallPhase::Duplicate { .. }
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::Reported(_)
            | CallPhase::Ended { .. }
            | CallPhase::Dropped => None,
        });
        deadlines.chain(self.run_deadline()).min()
    }
}

impl Turn {
    /// The time of a call that runs is over.
    fn end_timed_out(&mut self, index: usize, deadline: Duration) {
        let Some(call) = self.calls.get(index) else { return };
        let timeout = deadline.saturating_sub(call.started_at.unwrap_or(deadline));
        let outcome = model_messages::timed_out(call, timeout);
        self.effects.perform(TurnAction::Abort(call.key()));
        self.end_call(index, outcome);
        self.record_time_limit("tool_timeout", timeout, "timed_out");
    }

    /// The run's time is over.
    fn end_out_of_time(&mut self) {
        let timeout = self.spec.rules.limits.run_timeout.unwrap_or_default();
        self.record_time_limit("run_timeout", timeout, "ended");
        self.handle_cancel(self.now(), CancelReason::RunTimeout);
    }

    /// When the run's time is over; none while its clock stands still.
    fn run_deadline(&self) -> Option<Duration> {
        let counts = self.stage != TurnStage::Finished && !self.clock.is_waiting_for_approval();
        let left = self.spec.run_time_left.filter(|_| counts)?;
        left.checked_add(self.clock.times().people)
    }

    fn blank(spec: TurnSpec, attempts: Attempts) -> Self {
        let rules = Arc::clone(&spec.rules);
        Self {
            stage: TurnStage::AwaitingResponse,
            plan: attempts.last(),
            attempts,
            response: attempt_start::accumulator(&rules),
            display_order: DisplayOrder::default(),
            delta_count: 0,
            asked_at: Duration::ZERO,
            first_delta_at: None,
            calls: Vec::new(),
            dropped: Vec::new(),
            call_limit_recorded: false,
            reusable_results: BTreeMap::new(),
            judgements: BTreeMap::new(),
            asked: BTreeMap::new(),
            visible: VisibleVariables::new(spec.variables.clone()),
            finish: None,
            usage: Usage::default(),
            reassembly: Reassembly::default(),
            clock: TurnClock::default(),
            effects: EffectQueue::default(),
            spec: Arc::new(spec),
        }
    }
}
