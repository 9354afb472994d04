//! The turn machine: one model response and the tool calls in it, over one or more attempts.
//!
//! [`Turn`] is pure: no async, no clock, no I/O. Inputs arrive by `handle_*` functions, effects leave
//! by [`Turn::poll`], and time is an argument. Look a rule up here:
//!
//! | rule | file |
//! | --- | --- |
//! | sub-agents (agents as tools): budget of a child (`share_of_budget`), cancelled calls that wait for their child | `agent_calls` |
//! | call kept or dropped: `multi_tool_calls`, `max_tool_calls_per_turn`, `on_excess`, maximum number of calls | `admission` |
//! | unknown tool (tool not found); invalid arguments (validation): invalid JSON, not an object, schema violation | `admission`; parsing: `response::arguments`; text for the model: `model_messages` |
//! | identical calls (same name and arguments), `repeatable` | `identical_calls` |
//! | references in arguments (`$VAR_REF{{..}}`) | `references` |
//! | hooks (guardrails): before a call, after a call; the strictest of several verdicts | `hooks`, `hook_chain` |
//! | a hook that fails or times out: `on_failure` (fail open, fail closed) | `hook_chain` (`handle_answer`); its timeout: `runtime::hooks` |
//! | hooks: before a request, after a turn | `turn_hooks` |
//! | call ids: missing, duplicate, reused | `deltas` |
//! | seal, arguments that change after the seal | `deltas` |
//! | early start (`early_start`, `start_on_seal`) and all that prevents it | `call_start` |
//! | ticket, `exclusive`, sequential execution, parallel tool calls (`parallel = N`) | `call_start` |
//! | tool timeout (`tool_timeout`), `max_concurrent`, intent before an effect | `call_start` |
//! | outcome of a call | `call_end` |
//! | `max_result_bytes` | `call_end` (event); what the model sees: `context::result_cut`. `max_output_bytes` of a program: `tool::command` |
//! | variables: snapshot, conflict, rerun, two writers of one variable, `max_variables_bytes` | `isolation` |
//! | approval (human in the loop): expiry, a decision that is sent again; no decision can edit (modify) the arguments | `approval`; pending approvals after a restart: `resume` |
//! | approval timeout (`approval_timeout`, 24 h) | `approval`; its default: `tool::spec` |
//! | approval while no client reads the events, which is rejected at once | `runtime::session::snapshot` |
//! | questions of running calls (elicitation): answer, form, expiry | `question`; at most 100 of a call: `runtime::supervisor` |
//! | timeouts that are paused while a running call waits for people, itself or by its child | `people_wait` |
//! | calls that the client runs: request, result, expiry | `client_call` |
//! | attempt, void attempt (stream interrupted, mid-stream break), reuse of pure results | `attempt` |
//! | request larger than the context window (`CONTEXT_OVERFLOW`), refused or not, once made smaller | `attempt` |
//! | tools that a service refuses: requests without them, the search for those that an error does not name | `tool_search` |
//! | retry, number of attempts (`max_attempts`), backoff, jitter, `Retry-After`, fallback model, requests without streaming after broken streams | `retry` |
//! | empty answers, refused answers (`on_refusal`): another attempt, or the response of the turn | `attempt` (`check_answer`), `retry` |
//! | circuit breaker, probe | `breaker` |
//! | end of a response without a finish reason | `response::finish_reason` |
//! | partial response: calls (also partial ones) and text that are kept after each kind of end, cancellation | `response_end` |
//! | arguments that are cut off (truncated) at the limit of tokens (`max_tokens`), partial JSON | `response_end`, `admission` |
//! | order of results in events, commit (in the history: `context::history`) | `reassembly` |
//! | within a turn: limit on cost, token budget (`max_tokens_per_run`), `max_tool_calls_per_run`; `run_timeout` | `run_limits` |
//! | texts that the model receives about calls that did not run or did not end normally | `model_messages`; about failed tools (`Error: ..`): `tool::error`, `runtime::tool` |
//! | order of all decisions after an event | `mod` (`advance`) |
//! | crash recovery (`kill -9` during a call): outcome unknown (at most once), or rerun of a pure or idempotent tool | `resume` |
//! | running calls that a resumed turn attaches to | `started_calls` |
//! | unanswered calls of a new session | `initial_calls` |
//! | typed answer (structured output, JSON mode): its value in a response, the messages that ask for it | `output` |
//! | rules, models and budget of a turn, idempotency key of a tool call | `spec`; its form: `types::call` |
//! | inputs and effects of a turn, effects that wait until records are stored | `effect` |
//! | phases and times of a call | `call` |
//! | committed turn, and how it is read from its records | `committed` |
//! | replay of the records of a turn | `replay` |
//! | division of a turn's time among model, tools, people, waits and overhead | `clock` |
//! | the same for a run: the sum of its turns and the time between them | `event::sums`, `session::runs` (`record_run_end`) |
#![warn(clippy::indexing_slicing)]

mod admission;
mod agent_calls;
mod approval;
mod attempt;
mod breaker;
mod call;
mod call_end;
mod call_start;
mod client_call;
mod clock;
pub mod committed;
mod deltas;
mod effect;
#[cfg(any(test, feature = "fixtures"))]
pub mod explorer;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod hook_chain;
mod hooks;
mod identical_calls;
mod initial_calls;
mod isolation;
mod model_messages;
mod output;
mod people_wait;
mod question;
mod reassembly;
mod references;
pub mod replay;
mod response_end;
mod resume;
mod retry;
mod run_limits;
mod spec;
mod started_calls;
#[cfg(test)]
mod tests;
mod tool_search;
mod turn_hooks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use agent_calls::ChildrenUse;
pub use approval::check_repeated_decision;
pub use attempt::{CONTENT_REFUSED, PROVIDER_ERROR, refusal_message};
pub use breaker::{
    Breaker, BreakerChange, BreakerPermit, BreakerRefusal, BreakerRules, BreakerState,
    ServiceSignal,
};
pub use committed::{CommittedTurn, results_so_far};
pub use effect::{
    AgentCallStart, ApprovalDecision, ApprovalError, AttemptPlan, CallStart, CancelReason, Effect,
    EndedTurn, HookRequest, PermitReply, TurnAction, TurnEnd,
};
pub use hook_chain::{ChangedParameters, HookChain, HookOutcome, changed_messages, sha256};
pub use initial_calls::InitialCallsStart;
pub use output::OutputRules;
pub use replay::Difference;
pub use resume::HOST_STOPPED_REASON;
pub use run_limits::LimitHit;
pub use run_limits::{MAX_CALLS_KEY, MAX_TOKENS_KEY, RUN_TIMEOUT_KEY};
pub use spec::{Budget, HookScope, ModelPlan, ModelPlans, RunRules, TurnSpec};
pub use started_calls::{
    CallStartState, StartedCall, StartedCalls, StartedQuestion, StartedWait, ToolCompletion,
};

use approval::Approvals;
use attempt::{Attempt, ContextReduction};
use call::{CallPhase, TurnCall};
#[cfg(test)]
pub(crate) use call_end::call_ended_record;
use callsheet_values::event::{CallLabel, Event};
use callsheet_values::record::{ResponseEnding, ResponseMessage};
use callsheet_values::types::{CallKey, ToolCall, ToolOutcome, Usage};
use callsheet_wire::Delta;
use callsheet_wire::response::{ARGUMENTS_LOST, ExchangeEnd, ResponseAssembler};
use clock::TurnClock;
use effect::EffectQueue;
use isolation::VisibleVariables;
use reassembly::Reassembly;
pub use retry::RetryPolicy;
use tool_search::ToolRefusals;
use turn_hooks::TurnHooks;

/// One model response and the tool calls in it: the machine that decides everything about them.
///
/// After each `handle_*` the owner calls [`poll`](Self::poll) until it returns `None`, appends the
/// polled records as one batch, and calls [`handle_recorded`](Self::handle_recorded) when they are
/// stored. Starts of calls with effects, results and the commit wait for that. The functions that
/// queue, defer and release effects are in `effect`, which says what "stored" means.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    spec: Arc<TurnSpec>,
    stage: TurnStage,
    retry: RetryPolicy,
    attempt: Attempt,
    /// The calls of the current attempt, in call order.
    calls: Vec<TurnCall>,
    /// The results of pure calls of void attempts, by [`TurnCall::dedup_key`].
    reusable_results: BTreeMap<String, ToolOutcome>,
    approvals: Approvals,
    variables: VisibleVariables,
    /// The usage of all attempts that have ended.
    usage: Usage,
    reassembly: Reassembly,
    clock: TurnClock,
    reduction: ContextReduction,
    tool_refusals: ToolRefusals,
    /// The hooks about the turn itself.
    hooks: TurnHooks,
    /// True while a subscriber asks for the arguments of calls as they arrive.
    publishes_arguments: bool,
    effects: EffectQueue,
}

/// The stage of the turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TurnStage {
    /// An exchange with the model is open, or the turn waits before the next attempt.
    AwaitingResponse,
    /// The response has ended. Its calls may still run.
    ResponseEnded {
        ending: ResponseEnding,
        message: Option<Arc<ResponseMessage>>,
        cancelled: Option<CancelReason>,
    },
    /// The turn has ended. Its commit may wait until its record is stored.
    Finished,
}

impl Turn {
    /// Starts a turn. Its first effects request the response, or ask the hooks about the request.
    #[must_use]
    pub fn new(spec: TurnSpec) -> Self {
        let retry = RetryPolicy::new(Arc::clone(&spec.rules.models), spec.seed)
            .for_request(spec.request_kind);
        let mut turn = Self::blank(spec, retry);
        turn.request_first();
        turn
    }

    /// Returns the number of the current attempt. Messages of other attempts are outdated.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt.plan.attempt
    }

    /// Returns the index of the model of the current attempt.
    #[must_use]
    pub fn model(&self) -> usize {
        self.attempt.plan.model_index
    }

    /// Returns the response of the current attempt.
    #[must_use]
    pub fn response(&self) -> &ResponseAssembler {
        &self.attempt.response
    }

    /// Returns the number of the turn in its session.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.spec.number
    }

    /// Sets whether the arguments of calls are published as they arrive
    /// ([`Event::ArgumentsReceived`]).
    pub fn set_publishes_arguments(&mut self, publishes: bool) {
        self.publishes_arguments = publishes;
    }

    /// Handles the deltas of one chunk of the response.
    pub fn handle_deltas(&mut self, now: Duration, batch: Vec<Delta>) {
        self.clock.advance(now);
        if self.tool_refusals.searches()
            && !batch.iter().any(|delta| matches!(delta, Delta::Error(_)))
            && self.handle_accepted_request()
        {
            return self.advance();
        }
        let (attempt, mut changed) = (self.attempt(), false);
        for delta in batch {
            // A limit may end the response in the middle of a batch.
            if self.stage != TurnStage::AwaitingResponse || self.attempt() != attempt {
                break;
            }
            changed |= self.handle_delta(delta);
        }
        if self.publishes_arguments {
            self.publish_open_arguments();
        }
        // Checked after the whole chunk, because one chunk may hold the finish reason and the usage.
        changed |= self.end_if_over_tokens();
        // Most batches hold only text, after which there is nothing to decide.
        if changed {
            self.advance();
        }
    }

    /// Handles the end of the exchange with the model.
    pub fn handle_response_end(&mut self, now: Duration, end: ExchangeEnd) {
        self.clock.advance(now);
        if self.stage != TurnStage::AwaitingResponse {
            return;
        }
        self.attempt.response.drop_nameless_call();
        let ended = self.classify_response(end);
        let ended = ended.and_then(|ending| self.check_silent_overflow(ending));
        if ended.is_ok() && self.handle_accepted_request() {
            return self.advance();
        }
        match ended.and_then(|ending| self.check_answer(ending)) {
            Ok(ending) => {
                if ending == ResponseEnding::Complete {
                    let changes = self.attempt.response.seal_all();
                    self.handle_changes(changes);
                }
                self.end_response(ending, None);
            }
            Err(error) => {
                if error.code.as_deref() == Some(ARGUMENTS_LOST) {
                    let model = self.model_name(&self.attempt.plan);
                    self.emit(Event::ArgumentsLost { model, reason: error.message.clone() });
                }
                self.handle_broken(error);
            }
        }
        self.advance();
    }

    /// Handles the host's answer to the request for a permit of a call's tool. Ignores an answer for
    /// a call that no longer waits: it has withdrawn its request.
    pub fn handle_tool_permit(&mut self, now: Duration, key: CallKey, reply: PermitReply) {
        self.clock.advance(now);
        let Some(index) = self.position(key) else { return };
        let Some(&CallPhase::AwaitingPermit { requested_at }) =
            self.calls.get(index).map(|call| &call.phase)
        else {
            return;
        };
        self.handle_permit_reply(index, requested_at, reply);
        self.advance();
    }

    /// Handles the end of a tool.
    pub fn handle_outcome(&mut self, now: Duration, key: CallKey, completion: ToolCompletion) {
        self.clock.advance(now);
        match self.position(key) {
            Some(index) if self.calls.get(index).is_some_and(TurnCall::is_running) => {
                if !self.end_cancelled_agent(index, &completion.outcome) {
                    self.handle_tool_report(index, completion.outcome, completion.variables);
                }
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

    /// Handles a decision about a call that waits for approval.
    ///
    /// # Errors
    /// If the decision does not fit the call's approvals and questions ([`ApprovalError`] lists the reasons). The
    /// turn is unchanged then. A repetition of the same decision is not an error.
    pub fn handle_approval(
        &mut self,
        now: Duration,
        key: CallKey,
        decision: ApprovalDecision,
    ) -> Result<(), ApprovalError> {
        self.clock.advance(now);
        let applied = self.apply_decision(key, decision);
        self.advance();
        applied
    }

    /// Handles that the time of [`poll_timeout`](Self::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.clock.advance(now);
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { continue };
            let CallPhase::Running { deadline: Some(deadline), wait: None } = call.phase else {
                continue;
            };
            if deadline <= now {
                self.end_timed_out(index);
            }
        }
        self.expire_approvals();
        if self.run_deadline().is_some_and(|deadline| deadline <= now) {
            self.end_out_of_time();
        }
        self.advance();
    }

    /// Handles that the host was stalled for this time. The timeouts of running tools do not count it.
    pub fn handle_stall(&mut self, stalled: Duration) {
        for call in &mut self.calls {
            call.extend_deadline(stalled);
        }
    }

    /// Cancels the turn. Calls that have ended keep their outcomes, and the others are answered. A running call of an
    /// agent is answered when its child has ended.
    pub fn handle_cancel(&mut self, now: Duration, reason: CancelReason) {
        self.clock.advance(now);
        let waits_for_context = self.waits_for_context();
        match &mut self.stage {
            TurnStage::AwaitingResponse if waits_for_context => {
                self.stage = TurnStage::Finished;
                self.commit(TurnEnd::Cancelled(reason), None);
            }
            TurnStage::AwaitingResponse => {
                if !self.hooks.holds_request() {
                    self.effects.perform(TurnAction::Disconnect);
                }
                self.end_response(ResponseEnding::Cancelled, Some(reason));
            }
            TurnStage::ResponseEnded { cancelled, .. } => {
                cancelled.get_or_insert(reason);
                self.cancel_calls();
            }
            TurnStage::Finished => {}
        }
        self.advance();
    }

    /// Returns the time, since the turn began or was resumed, at which to call
    /// [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let deadlines = self.calls.iter().filter_map(|call| {
            let CallPhase::Running { deadline, wait: None } = call.phase else {
                return call.approval_expires_at();
            };
            deadline
        });
        deadlines.chain(self.run_deadline()).min()
    }
}

impl Turn {
    /// Makes every decision that is possible in the present state.
    fn advance(&mut self) {
        self.admit_in_order();
        self.resolve_reports();
        self.start_ready_calls();
        self.release_in_order();
        self.finish();
        self.clock.set_waiting_for_people(self.waits_for_people());
    }

    /// Returns a turn that has done nothing yet.
    fn blank(spec: TurnSpec, retry: RetryPolicy) -> Self {
        Self {
            stage: TurnStage::AwaitingResponse,
            attempt: Attempt::new(retry.current(), &spec.rules),
            retry,
            calls: Vec::new(),
            reusable_results: BTreeMap::new(),
            approvals: Approvals::default(),
            variables: VisibleVariables::new(spec.variables.clone()),
            usage: Usage::default(),
            reassembly: Reassembly::default(),
            clock: TurnClock::default(),
            reduction: ContextReduction::default(),
            tool_refusals: ToolRefusals::default(),
            hooks: TurnHooks::default(),
            publishes_arguments: false,
            effects: EffectQueue::default(),
            spec: Arc::new(spec),
        }
    }

    fn set_phase(&mut self, index: usize, phase: CallPhase) {
        if let Some(call) = self.calls.get_mut(index) {
            call.phase = phase;
        }
    }

    /// Returns a call of the current attempt as the model made it.
    #[must_use]
    pub fn recorded_call(&self, key: CallKey) -> Option<ToolCall> {
        self.position(key).and_then(|index| self.calls.get(index)).map(TurnCall::recorded_call)
    }

    fn position(&self, key: CallKey) -> Option<usize> {
        self.calls.iter().position(|call| call.key() == key)
    }

    /// Returns the time since the turn began or was resumed.
    fn now(&self) -> Duration {
        self.clock.now()
    }
}
