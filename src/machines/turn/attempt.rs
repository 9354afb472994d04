//! One attempt of a turn: a request to a model and its response, until the exchange ends or breaks.
//!
//! A broken attempt (its stream was interrupted, or the request failed) is void unless a call with effects has
//! started: its text and calls, also partial ones, are discarded, and [`retry`](super::retry) decides whether another
//! one follows. Before that, the session makes its context smaller, once in a turn, if the request was too large. If
//! no attempt is left after a refusal of the request's content, the session leaves content out, once in a turn
//! (`session::exclusion`), and the request is sent again. If a call with effects has started, the partial response is
//! kept as the response of the turn.
//! Results of pure calls of void attempts are reused for identical calls of later attempts, except those of
//! repeatable tools.

use std::sync::Arc;
use std::time::Duration;

use super::call::TurnCall;
use super::effect::{AttemptPlan, PermitReply, TurnAction, TurnEnd};
use super::spec::RunRules;
use super::turn_hooks::HookStage;
use super::{Turn, TurnStage};
use callsheet_values::config::OnRefusal;
use callsheet_values::event::{AttemptFallback, Event, VoidedText};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::{
    ContentRefusal, ContextOverflow, FinishKind, FinishReason, MessagePart, ProviderError,
    ProviderErrorKind, RefusalDetails, RequestKind, RunError, ToolStatus,
};
use callsheet_wire::Delta;
use callsheet_wire::response::{
    DisplayOrder, ExchangeEnd, ResponseAssembler, ResponseLimits, classify_ending,
};

/// The code of the error of a run whose context is larger than the window of its models.
const CONTEXT_OVERFLOW: &str = "CONTEXT_OVERFLOW";
/// The code of the error of a run whose models gave no response.
pub const PROVIDER_ERROR: &str = "provider_error";

/// The code of the error of a run whose answer, or whose content, the model or its service refused.
pub const CONTENT_REFUSED: &str = "CONTENT_REFUSED";

/// Anthropic's finish reason of a response that the end of the window has cut off.
const WINDOW_EXCEEDED: &str = "model_context_window_exceeded";

/// The state of the current attempt. Its calls are in [`Turn`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) plan: AttemptPlan,
    pub(super) response: ResponseAssembler,
    pub(super) display_order: DisplayOrder,
    /// The number of deltas that were received.
    pub(super) delta_count: u64,
    /// The time at which the request was sent or will be sent. [`Duration::MAX`] while it waits for
    /// a permit of its model.
    pub(super) requested_at: Duration,
    pub(super) first_delta_at: Option<Duration>,
    /// Names of the calls that were dropped when they opened.
    pub(super) dropped_calls: Vec<Arc<str>>,
    /// The tokens of the request as the recorded response of a resumed turn counts them.
    pub(super) recorded_request_tokens: u64,
    /// True if the event that the response holds too many calls was published.
    pub(super) call_limit_recorded: bool,
    /// The finish reason, after the response has ended.
    pub(super) finish_reason: Option<FinishReason>,
}

/// The changes of the context after refused requests of the turn: at most one for a request that was too large, and
/// one for its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ContextReduction {
    /// The error of the attempt, while the session changes the context.
    refused_with: Option<ProviderError>,
    /// The context was made smaller, or could not be.
    overflow_handled: bool,
    /// Content was left out, or could not be.
    refusal_handled: bool,
}

impl Attempt {
    pub(super) fn new(plan: AttemptPlan, rules: &RunRules) -> Self {
        let response = ResponseAssembler::new(ResponseLimits {
            arguments_bytes_max: rules.limits.max_arguments_bytes,
            ..ResponseLimits::default()
        });
        Self {
            plan,
            response,
            display_order: DisplayOrder::default(),
            delta_count: 0,
            requested_at: Duration::ZERO,
            first_delta_at: None,
            dropped_calls: Vec::new(),
            recorded_request_tokens: 0,
            call_limit_recorded: false,
            finish_reason: None,
        }
    }
}

impl Turn {
    /// Handles the host's answer to the request for a permit of the attempt's model. The time of the exchange is
    /// measured from the grant, until [`handle_request_sent`](Self::handle_request_sent) says when the request was
    /// sent.
    pub fn handle_model_permit(&mut self, now: Duration, reply: PermitReply) {
        self.clock.advance(now);
        self.attempt.requested_at = match reply {
            PermitReply::Granted => {
                self.clock.request_sent(self.now(), Duration::MAX);
                self.now()
            }
            PermitReply::Waiting | PermitReply::RateLimited | PermitReply::ServerStarting => {
                Duration::MAX
            }
        };
    }

    /// Notes that the attempt's request was sent at the time `at`, after it had waited for the time `waited`.
    pub fn handle_request_sent(&mut self, now: Duration, at: Duration, waited: Duration) {
        self.clock.advance(now);
        self.clock.request_sent(at, waited);
        self.attempt.requested_at = at.min(now);
    }

    /// Starts the first attempt of the turn.
    pub(super) fn request_first(&mut self) {
        let plan = self.retry.plan_first_attempt();
        self.begin_attempt(plan, None);
    }

    /// Starts another attempt after one that is void.
    pub(super) fn request_again(&mut self, plan: AttemptPlan, reason: String) {
        let previous = &self.attempt.plan;
        if plan.model_index != previous.model_index {
            self.emit(Event::AttemptFellBack { to: AttemptFallback::NextModel });
        } else if previous.streamed && !plan.streamed {
            self.emit(Event::AttemptFellBack { to: AttemptFallback::PlainAnswer });
        }
        self.begin_attempt(plan, Some(reason));
    }

    /// Records the start of an attempt, and requests the response.
    fn begin_attempt(&mut self, mut plan: AttemptPlan, reason: Option<String>) {
        plan.left_out_tools = self.left_out_tools(plan.model_index);
        self.record(Record::AttemptStarted {
            turn: self.spec.number,
            attempt: plan.attempt,
            model: self.model_name(&plan),
            streamed: plan.streamed,
            reason,
            wait_ms: callsheet_values::types::millis(plan.wait),
            prompt: self.spec.new_prompt,
        });
        self.attempt.plan = plan.clone();
        self.attempt.requested_at = self.clock.now() + plan.wait;
        self.attempt.first_delta_at = None;
        self.request_or_ask(plan);
    }

    pub(super) fn model_name(&self, plan: &AttemptPlan) -> String {
        self.spec.rules.models.at(plan.model_index).displayed_name.to_string()
    }

    /// Ends the exchange with the model, if one is open: adds its usage, and publishes its duration unless it was
    /// cancelled before its request was sent.
    pub(super) fn close_exchange(&mut self, error: Option<ProviderError>) {
        // Counts only if it is not known when the request was sent. With an error or without a permit it was not
        // sent, and all its time was a wait.
        let needs_permit = self.attempt.requested_at == Duration::MAX;
        let is_unsent = error.is_some() || needs_permit;
        let waited = if is_unsent { Duration::MAX } else { self.attempt.plan.wait };
        if !self.clock.request_ended(waited) {
            return;
        }
        let attempt = &self.attempt;
        self.usage += attempt.response.usage();
        let duration = match self.now().checked_sub(attempt.requested_at) {
            Some(duration) => duration,
            // The attempt failed before its request was sent: the circuit breaker refused it.
            None if error.is_some() => Duration::ZERO,
            // The attempt was cancelled before its request was sent.
            None => return,
        };
        self.emit(Event::AttemptEnded {
            model: self.model_name(&attempt.plan),
            streamed: attempt.plan.streamed,
            duration,
            first_chunk: attempt.first_delta_at.map(|at| at.saturating_sub(attempt.requested_at)),
            usage: attempt.response.usage(),
            finish_reason: attempt.response.finish_reason().cloned(),
            error: error.map(Box::new),
        });
    }

    /// Returns the end of a response, or an error if the response shows that its request was too large although
    /// the service has not refused it: it counts more input tokens than the configured window has, or the
    /// window was full before the first word of the answer.
    pub(super) fn check_silent_overflow(
        &self,
        ending: ResponseEnding,
    ) -> Result<ResponseEnding, ProviderError> {
        let response = &self.attempt.response;
        let tokens = response.usage().input_tokens;
        let window = self.spec.window.filter(|_| self.attempt.plan.model_index == 0);
        // A service whose window is learnt refuses larger requests. If it accepts one, its window is larger.
        let configured = self.spec.rules.models.at(self.attempt.plan.model_index).context_window;
        let is_above = configured == window && window.is_some_and(|window| tokens > window);
        let is_near = window
            .is_some_and(|window| tokens.saturating_mul(100) >= window.saturating_mul(99))
            || response.finish_reason().is_some_and(|finish| &*finish.raw == WINDOW_EXCEEDED);
        let has_no_output = response.text().is_empty() && self.calls.is_empty();
        // The window of the model is not configured, and the response reached its maximum length without any output:
        // the request filled the window.
        let is_empty =
            has_no_output && response.reasoning().is_empty() && response.parts().is_empty();
        let had_no_room = configured.is_none() && is_empty && response.usage().output_tokens <= 1;
        let is_overflow = match ending {
            ResponseEnding::Complete => is_above,
            ResponseEnding::Length => is_above || had_no_room || (is_near && has_no_output),
            ResponseEnding::Refused
            | ResponseEnding::BrokenKept
            | ResponseEnding::TooManyCalls
            | ResponseEnding::Cancelled => false,
        };
        // Calls with effects that have started need their response.
        if !is_overflow || self.has_started_effects() {
            return Ok(ending);
        }
        let of = window.map(|window| format!(" of {window}")).unwrap_or_default();
        let size =
            if tokens > 0 { format!("has {tokens} tokens, which fill") } else { "fills".into() };
        let message = format!("the request {size} the context window{of}");
        let mut error = ProviderError::new(ProviderErrorKind::TooLarge, message);
        error.overflow =
            Some(ContextOverflow::of_window(None, Some(tokens).filter(|tokens| *tokens > 0)));
        Err(error)
    }

    /// Returns the end of a response, or an error if it broke. An error by which the service refuses to answer is the end
    /// of a response that is refused.
    pub(super) fn classify_response(
        &mut self,
        end: ExchangeEnd,
    ) -> Result<ResponseEnding, ProviderError> {
        let response = &mut self.attempt.response;
        let error = match &end {
            ExchangeEnd::Failed(error) => {
                Some(error).filter(|_| response.finish_reason().is_none())
            }
            ExchangeEnd::Closed => response.fatal_error(),
        };
        if let Some(reason) = error.and_then(ProviderError::refusal_reason) {
            response.push(&Delta::Finish(reason));
            return Ok(ResponseEnding::Refused);
        }
        classify_ending(response, end)
    }

    /// Returns the end of a response, or an error if the response is complete and another attempt takes its place: its
    /// answer is empty, it announces calls that did not come, or it was refused and another model is to be asked.
    pub(super) fn check_answer(
        &self,
        ending: ResponseEnding,
    ) -> Result<ResponseEnding, ProviderError> {
        let is_void = match ending {
            ResponseEnding::Complete | ResponseEnding::Length => {
                self.is_answer_empty() && self.retry.may_follow_empty_answer()
                    || self.lacks_announced_calls() && self.retry.may_repeat_answer()
            }
            ResponseEnding::Refused => {
                let asks_next = self.spec.rules.on_refusal == OnRefusal::Fallback;
                let asks_next = asks_next && self.retry.has_fallback();
                (asks_next || self.has_refused_content()) && !self.has_started_effects()
            }
            ResponseEnding::BrokenKept
            | ResponseEnding::TooManyCalls
            | ResponseEnding::Cancelled => false,
        };
        if !is_void || self.is_out_of_tokens() {
            return Ok(ending);
        }
        let reason = self.attempt.response.refusal_reason();
        let Some(reason) = reason.filter(|_| ending == ResponseEnding::Refused) else {
            let message = match self.is_answer_empty() {
                true => "the answer is empty: it has neither text nor calls",
                false => "the finish reason announces tool calls, but none came",
            };
            return Err(ProviderError::new(ProviderErrorKind::EmptyAnswer, message));
        };
        let mut error = ProviderError::new(
            ProviderErrorKind::Refused,
            refusal_message(reason.refusal.as_deref()),
        );
        error.code = Some((*reason.raw).to_owned()).filter(|code| !code.is_empty());
        error.refusal = reason.refusal;
        let asks_next = self.spec.rules.on_refusal == OnRefusal::Fallback;
        error.content =
            (!asks_next || !self.retry.has_fallback()).then_some(ContentRefusal::Policy);
        Err(error)
    }

    /// Returns whether the service refused to answer before the first word of the response, and the request has content
    /// that it may lose.
    fn has_refused_content(&self) -> bool {
        let response = &self.attempt.response;
        // A model that refuses in its own words, or has thought about it, has read the request.
        let is_of_service = response.refusal().is_empty() && response.reasoning().is_empty();
        is_of_service && self.is_answer_empty() && self.may_exclude() && !self.retry.keeps_answer()
    }

    /// Returns whether the request may be sent again without content.
    fn may_exclude(&self) -> bool {
        !self.reduction.refusal_handled && self.spec.excludable.any()
    }

    /// Returns whether the session is asked to leave content out because of this error.
    pub(super) fn excludes_after(&self, error: &ProviderError) -> bool {
        let is_of_content = error.content.is_some() && error.tool_refusal.is_none();
        is_of_content && self.may_exclude() && !self.is_out_of_tokens()
    }

    /// Returns whether the response has neither text nor calls. One that its service paused, or whose calls were
    /// dropped, is not repeated: the same request would lead to the same response.
    fn is_answer_empty(&self) -> bool {
        let Attempt { response, dropped_calls, .. } = &self.attempt;
        let is_paused = !response.parts().is_empty()
            && response.finish_reason().is_some_and(|finish| finish.kind == FinishKind::Pause);
        let is_final = self.spec.request_kind == RequestKind::FinalText;
        response.text().trim().is_empty()
            && !self.calls.iter().any(TurnCall::is_kept)
            && (dropped_calls.is_empty() || is_final)
            && !is_paused
    }

    /// Returns whether the finish reason says that the model calls tools, but no call of any kind came. Services that
    /// lose calls answer so (vLLM, where its parser of calls does not know the model's form). Others have this finish
    /// reason for texts too, so that the same answer is accepted the second time.
    fn lacks_announced_calls(&self) -> bool {
        let Attempt { response, dropped_calls, .. } = &self.attempt;
        response.finish_reason().is_some_and(|finish| finish.kind == FinishKind::ToolCalls)
            && response.calls().is_empty()
            && dropped_calls.is_empty()
            && !response.parts().iter().any(|part| matches!(part, MessagePart::Raw { .. }))
            && !self.spec.rules.tools.is_empty()
    }

    /// Returns whether a call with effects has started in this attempt.
    fn has_started_effects(&self) -> bool {
        self.calls.iter().any(|call| call.has_effects() && call.has_started())
    }

    /// Handles an attempt that broke. It is void unless a call with effects has started: then the
    /// partial response is kept.
    pub(super) fn handle_broken(&mut self, error: ProviderError) {
        let effects_started = self.has_started_effects();
        let response = &self.attempt.response;
        let texts = [response.text(), response.refusal()];
        let voided = VoidedText::of_attempt(texts, response.reasoning());
        self.record(Record::AttemptFailed {
            turn: self.spec.number,
            attempt: self.attempt(),
            error: error.clone(),
            kept: effects_started,
            usage: self.attempt.response.usage(),
            host_stopped: false,
            voided: voided.filter(|_| !effects_started).map(Arc::new),
        });
        self.close_exchange(Some(error.clone()));
        if effects_started {
            self.end_response(ResponseEnding::BrokenKept, None);
            return;
        }
        self.void_attempt();
        if !self.is_out_of_tokens() && self.retry_without_tools(&error) {
            return;
        }
        if !self.is_out_of_tokens()
            && let Some(plan) = self.retry.with_shorter_answer(&error)
        {
            self.request_again(plan, error.message);
            return;
        }
        let is_overflow = error.is_context_overflow() && !self.reduction.overflow_handled;
        if is_overflow && !self.is_out_of_tokens() {
            self.request_smaller_context(error);
            return;
        }
        // Another model is asked only if `on_refusal` says so.
        if error.kind == ProviderErrorKind::Refused && self.excludes_after(&error) {
            self.request_smaller_context(error);
            return;
        }
        self.follow_up_failure(error);
    }

    /// Asks the session to make its context smaller, or to leave content out, and waits for it.
    pub(super) fn request_smaller_context(&mut self, error: ProviderError) {
        match error.is_context_overflow() {
            true => self.reduction.overflow_handled = true,
            false => self.reduction.refusal_handled = true,
        }
        self.reduction.refused_with = Some(error.clone());
        self.effects.perform(TurnAction::ReduceContext(error));
    }

    /// Returns true if the turn waits for a changed context. Then no attempt is open.
    pub(super) fn waits_for_context(&self) -> bool {
        self.reduction.refused_with.is_some()
    }

    /// Handles that the context is changed for the next request, or could not be.
    pub fn handle_context_reduced(&mut self, now: Duration, reduced: bool) {
        self.clock.advance(now);
        let Some(error) = self.reduction.refused_with.take() else { return };
        if self.stage != TurnStage::AwaitingResponse {
            return;
        }
        if reduced {
            // The hooks have not seen this context.
            self.hooks.before_request = HookStage::NotAsked;
            let plan = self.retry.plan_same_model_attempt();
            let reason = match error.content {
                Some(ContentRefusal::Image | ContentRefusal::Policy)
                    if !error.is_context_overflow() =>
                {
                    format!("{CONTENT_REFUSED}: {}", error.message)
                }
                Some(_) | None => error.message,
            };
            self.request_again(plan, reason);
        } else {
            self.follow_up_failure(error);
        }
        self.advance();
    }

    /// Makes another attempt after one that is void, or ends the turn.
    fn follow_up_failure(&mut self, error: ProviderError) {
        match self.retry.after_error(&error, self.attempt.plan.streamed) {
            Some(_) if self.is_out_of_tokens() => self.end_out_of_tokens(false),
            Some(plan) => self.request_again(plan, error.message),
            None if self.excludes_after(&error) => self.request_smaller_context(error),
            None => self.fail(error),
        }
    }

    /// Ends the turn with the error of its last attempt.
    fn fail(&mut self, error: ProviderError) {
        self.stage = TurnStage::Finished;
        let code = match error.content {
            _ if error.is_context_overflow() => CONTEXT_OVERFLOW,
            Some(ContentRefusal::Image | ContentRefusal::Policy) => CONTENT_REFUSED,
            Some(ContentRefusal::Unnamed) | None => PROVIDER_ERROR,
        };
        let error = RunError {
            code: code.to_owned(),
            transient: error.is_transient(),
            message: error.message,
        };
        self.commit(TurnEnd::Failed(error), None);
    }

    /// Discards the calls and the text of the attempt. Keeps the successful results of pure calls for later
    /// attempts, except those of repeatable tools: each call of such a tool needs its own result.
    fn void_attempt(&mut self) {
        self.discard_service_calls(|_| true);
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { break };
            if !call.is_kept() {
                continue;
            }
            if let Some(outcome) = call.outcome()
                && call.started_at.is_some()
                && outcome.status == ToolStatus::Ok
                && !call.tool.as_ref().is_some_and(|tool| tool.repeatable)
            {
                self.reusable_results.insert(call.dedup_key.clone(), outcome.clone());
            }
            self.discard(index);
        }
        self.calls.clear();
        self.attempt = Attempt::new(self.attempt.plan.clone(), &self.spec.rules);
    }
}

/// Returns the message of an error about a refused answer.
pub fn refusal_message(refusal: Option<&RefusalDetails>) -> String {
    let of = refusal.and_then(|refusal| refusal.category.as_deref());
    let of = of.map(|category| format!(" ({category})")).unwrap_or_default();
    let explanation = refusal.and_then(|refusal| refusal.explanation.as_deref());
    let explanation = explanation.map(|text| format!(": {text}")).unwrap_or_default();
    format!("the model or its service refused to answer{of}{explanation}")
}
