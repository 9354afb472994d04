//! Admission of calls: which calls of a response are kept, and which of the kept calls run.
//!
//! A call is kept or dropped when it opens ([`decide_retention`]): `multi_tool_calls`, `tool_choice`,
//! `max_tool_calls_per_turn` with `on_excess`, requests for an answer without calls, the budget of the run.
//! With `on_excess = "answer"` as many excess calls as the limit are kept and answered; the calls
//! after them are dropped.
//!
//! Independent of the configuration, a response keeps at most [`CALLS_MAX`](callsheet_values::types::CALLS_MAX)
//! calls. `response::call_assembler` only counts further calls, and the end of the response reports
//! them as `max_tool_calls_per_turn` too.
//!
//! A kept call is admitted when it is sealed and every earlier call is admitted ([`admit`]): it runs,
//! it is answered without running (excess, unknown tool, invalid arguments, `final_answer`), or it is a
//! [duplicate](super::identical_calls). A pure call that would run gets the result of an identical call of a void
//! attempt, if there is one and no hook asks for an approval.

use std::sync::Arc;

use super::call::{CallPhase, TurnCall, dedup_key_of};
use super::identical_calls::find_identical_call;
use super::spec::{RunRules, TurnSpec};
use super::{Turn, model_messages};
use callsheet_values::config::OnExcess;
use callsheet_values::event::ArgumentsAnomaly;
use callsheet_values::types::{
    CallKey, FINAL_ANSWER, RunError, ToolChoice, ToolOutcome, used_tool,
};
use callsheet_wire::response::{ParsedArguments, parse_arguments};

/// The decision about a call when it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallRetention {
    /// The call is kept.
    Keep,
    /// The call exceeds `max_tool_calls_per_turn`. It is kept and answered without running.
    AnswerExcess,
    /// The call is dropped: it is not the first one, and `multi_tool_calls` is off; the request allows no calls; or
    /// the response has ended.
    Drop,
    /// The call exceeds `max_tool_calls_per_turn` and is dropped.
    DropExcess,
    /// The call exceeds `max_tool_calls_per_turn`, which fails the run.
    Fail,
    /// The call exceeds `max_tool_calls_per_run`, which ends the run.
    OverBudget,
}

/// Decides about the call at `index` when it opens. `children` is the number of calls that children of earlier calls
/// have used, or may use by their leases.
pub(super) fn decide_retention(index: u32, children: u32, spec: &TurnSpec) -> CallRetention {
    if spec.request_kind.drops_calls() || spec.rules.tool_choice == ToolChoice::None {
        return CallRetention::Drop;
    }
    // All calls before a kept call are kept, so that `index` is the number of kept calls.
    let earlier = index.saturating_add(children);
    match retention_by_rules(index, &spec.rules) {
        CallRetention::Keep | CallRetention::AnswerExcess
            if spec.budget.calls_left.is_some_and(|left| earlier >= left) =>
        {
            CallRetention::OverBudget
        }
        other @ (CallRetention::Keep
        | CallRetention::AnswerExcess
        | CallRetention::Drop
        | CallRetention::DropExcess
        | CallRetention::OverBudget
        | CallRetention::Fail) => other,
    }
}

/// Decides about a call by the rules that are the same in every turn of the run.
pub(super) fn retention_by_rules(index: u32, rules: &RunRules) -> CallRetention {
    if !rules.multi_tool_calls && index > 0 {
        return CallRetention::Drop;
    }
    match (rules.limits.max_tool_calls_per_turn, rules.limits.on_excess) {
        (None, _) => CallRetention::Keep,
        (Some(maximum), _) if index < maximum => CallRetention::Keep,
        (Some(maximum), OnExcess::Answer) if index < maximum.saturating_mul(2) => {
            CallRetention::AnswerExcess
        }
        (Some(_), OnExcess::Answer | OnExcess::Truncate) => CallRetention::DropExcess,
        (Some(_), OnExcess::Fail) => CallRetention::Fail,
    }
}

/// Parses the arguments of a call and validates them. Called once for each call: at its seal, at the end of the
/// response, or when the turn is resumed. A call of `use_tool` becomes one of the tool that it means. Returns the
/// anomaly of the arguments.
pub(super) fn parse_call_arguments(
    call: &mut TurnCall,
    raw: &str,
    oversize: bool,
    rules: &RunRules,
) -> Option<ArgumentsAnomaly> {
    let mut anomaly = None;
    if oversize {
        call.call.raw = Some(raw.to_owned());
        call.arguments_error =
            Some(model_messages::invalid_arguments("they are larger than allowed", raw));
        anomaly = Some(ArgumentsAnomaly::Invalid);
    } else {
        match parse_arguments(raw) {
            ParsedArguments::Object { value, decoded_twice } => {
                let tool = call.tool.as_ref();
                let restored = tool.and_then(|tool| tool.input.with_original_names(&value));
                call.call.arguments = Arc::new(restored.unwrap_or(value));
                if decoded_twice {
                    call.call.raw = Some(raw.to_owned());
                    anomaly = Some(ArgumentsAnomaly::DecodedTwice);
                }
            }
            ParsedArguments::CutOff => {
                call.call.raw = Some(raw.to_owned());
                call.arguments_error = Some(model_messages::cut_off_arguments(raw));
                anomaly = Some(ArgumentsAnomaly::CutOff);
            }
            ParsedArguments::NotAnObject { found } => {
                call.call.raw = Some(raw.to_owned());
                call.arguments_error =
                    Some(model_messages::invalid_arguments(&format!("they are {found}"), raw));
                anomaly = Some(ArgumentsAnomaly::Invalid);
            }
        }
    }
    if call.arguments_error.is_none() && rules.is_use_tool(&call.call.name) {
        anomaly = resolve_used_tool(call, raw, rules).or(anomaly);
    }
    if call.arguments_error.is_none() && rules.search_only_tools.contains(&*call.call.name) {
        // The history shows it as a call of `use_tool`, because no request defines the tool.
        (call.call.indirect, call.call.raw) = (true, None);
    }
    // Arguments with references are checked when the values are put in.
    if call.arguments_error.is_none() && !call.has_references(rules) {
        check_schema(call, raw);
        if call.arguments_error.is_some() {
            anomaly = Some(ArgumentsAnomaly::Invalid);
        }
    }
    call.dedup_key = dedup_key_of(&call.call);
    anomaly
}

/// Validates the arguments of a call. An error quotes `raw`, or, if the call was made by `use_tool`, the arguments of
/// the tool that it means.
pub(super) fn check_schema(call: &mut TurnCall, raw: &str) {
    let violation =
        call.tool.as_ref().and_then(|tool| tool.input.first_violation(&call.call.arguments));
    if let Some(violation) = violation {
        // A resumed turn has only the arguments of the tool itself.
        let raw = if call.call.indirect { &call.call.arguments_text() } else { raw };
        call.arguments_error = Some(model_messages::invalid_arguments(&violation, raw));
    }
}

/// Makes a call of `use_tool` a call of the tool that it means. If there is none, the call is answered with an error.
fn resolve_used_tool(call: &mut TurnCall, raw: &str, rules: &RunRules) -> Option<ArgumentsAnomaly> {
    let arguments = Arc::clone(&call.call.arguments);
    let (name, inner) = match used_tool(&arguments) {
        Ok(used) => used,
        Err(problem) => {
            call.arguments_error = Some(model_messages::invalid_arguments(problem, raw));
            return Some(ArgumentsAnomaly::Invalid);
        }
    };
    let Some(tool) = rules.tools.get(name) else {
        call.arguments_error = Some(model_messages::tool_not_found(name));
        return None;
    };
    call.call.name = name.into();
    call.call.arguments = Arc::new(inner);
    call.call.indirect = true;
    call.tool = Some(Arc::clone(tool));
    None
}

/// The decision about a sealed call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallAdmission {
    /// The call runs, or gets a result of a void attempt.
    Run,
    /// The call is answered with this outcome and does not run.
    Answer(ToolOutcome),
    /// The call is a duplicate of this call and copies its outcome.
    Copy(CallKey),
}

impl Turn {
    /// Admits sealed calls. A call is admitted after every earlier call was.
    pub(super) fn admit_in_order(&mut self) {
        for index in 0..self.calls.len() {
            let Some((earlier, rest)) = self.calls.split_at_checked(index) else { return };
            let Some(call) = rest.first() else { return };
            match call.phase {
                CallPhase::Open | CallPhase::AwaitingReferences | CallPhase::AwaitingHooks => {
                    return;
                }
                CallPhase::Sealed => {}
                CallPhase::Ready
                | CallPhase::Duplicate { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingClient { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingResultHooks { .. }
                | CallPhase::AwaitingReview { .. }
                | CallPhase::Ended { .. }
                | CallPhase::Dropped => continue,
            }
            let admission = admit(call, earlier, &self.spec);
            // An approval that a hook asks for was not given to the earlier call.
            let may_reuse = !call.has_effects() && !call.hook_requires_start_approval();
            let earlier_result = self.reusable_results.get(&call.dedup_key).filter(|_| may_reuse);
            match (admission, earlier_result.cloned()) {
                (CallAdmission::Answer(outcome), _) => self.end_call(index, outcome),
                (CallAdmission::Run, Some(result)) => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.notes.reused = true;
                    }
                    self.end_call(index, result);
                }
                (CallAdmission::Run, None) => self.set_phase(index, CallPhase::Ready),
                (CallAdmission::Copy(of), _) => {
                    self.set_phase(index, CallPhase::Duplicate { of });
                    self.end_duplicates_of(of);
                }
            }
        }
    }
}

/// Decides about a sealed call. Every earlier call is admitted.
fn admit(call: &TurnCall, earlier: &[TurnCall], spec: &TurnSpec) -> CallAdmission {
    if call.is_excess {
        let maximum = spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        return CallAdmission::Answer(model_messages::over_limit(maximum));
    }
    let Some(tool) = &call.tool else {
        let (name, rules) = (&*call.call.name, &spec.rules);
        let unresolved = call.arguments_error.clone().filter(|_| rules.is_use_tool(name));
        return CallAdmission::Answer(unresolved.unwrap_or_else(|| match rules.uses_tool_search {
            true => model_messages::tool_not_found(name),
            false => model_messages::unknown_tool(name, rules.tools.keys()),
        }));
    };
    if let Some(answer) = &call.arguments_error {
        return CallAdmission::Answer(answer.clone());
    }
    if &*call.call.name == FINAL_ANSWER {
        return CallAdmission::Answer(model_messages::accepted_answer());
    }
    if !tool.repeatable
        && let Some(first) = find_identical_call(call, earlier)
    {
        return CallAdmission::Copy(first);
    }
    CallAdmission::Run
}

impl Turn {
    /// Records that the response holds more than `max_tool_calls_per_turn` calls.
    pub(super) fn record_excess_call(&mut self, action: &str) {
        if let Some(maximum) = self.spec.rules.limits.max_tool_calls_per_turn {
            let maximum = u64::from(maximum);
            self.record_call_limit(maximum.saturating_add(1), maximum, action);
        }
    }

    /// Records, once per attempt, that the response holds too many calls.
    pub(super) fn record_call_limit(&mut self, value: u64, maximum: u64, action: &str) {
        if std::mem::replace(&mut self.attempt.call_limit_recorded, true) {
            return;
        }
        self.record_limit("max_tool_calls_per_turn", value, maximum, action);
    }

    /// Returns the error of a run that ends because a response holds too many calls.
    pub(super) fn excess_error(&self) -> RunError {
        let maximum = self.spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        RunError {
            code: "TOOL_CALL_LIMIT_EXCEEDED".to_owned(),
            message: format!(
                "TOOL_CALL_LIMIT_EXCEEDED: received at least {}, maximum {maximum}, turn {}",
                maximum.saturating_add(1),
                self.spec.number
            ),
            transient: false,
        }
    }
}
