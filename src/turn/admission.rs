//! Which calls run, and what the others are answered.

use std::sync::Arc;

use super::call::{CallPhase, TurnCall, identity};
use super::model_messages;
use crate::config::OnExcess;
use crate::event::ArgumentsAnomaly;
use crate::response::{ParsedArguments, parse_arguments};
use crate::turn::effect::{TurnRules, TurnSpec};
use crate::types::{CallKey, ToolOutcome};

/// The decision about a call when it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallRetention {
    /// It is kept.
    Keep,
    /// It is kept and answered, not run: one too many.
    KeepExcess,
    /// It leaves the history: the flag, or a last request.
    Drop,
    /// It leaves the history: too many.
    DropExcess,
    /// The response holds too many calls, and that ends the run.
    Fail,
    /// The run has no call left, and that ends it.
    OverBudget,
}

/// Decides on the call at `index` as it opens.
pub(super) fn decide_retention(index: u32, spec: &TurnSpec) -> CallRetention {
    if spec.last_request {
        return CallRetention::Drop;
    }
    match retention_by_rules(index, &spec.rules) {
        // Every call before one that is kept is kept too.
        CallRetention::Keep | CallRetention::KeepExcess
            if spec.budget.calls_left.is_some_and(|left| index >= left) =>
        {
            CallRetention::OverBudget
        }
        other @ (CallRetention::Keep
        | CallRetention::KeepExcess
        | CallRetention::Drop
        | CallRetention::DropExcess
        | CallRetention::OverBudget
        | CallRetention::Fail) => other,
    }
}

/// Decides on a call by what holds in every turn of the run.
pub(super) fn retention_by_rules(index: u32, rules: &TurnRules) -> CallRetention {
    if !rules.multi_tool_calls && index > 0 {
        return CallRetention::Drop;
    }
    match (rules.limits.max_tool_calls_per_turn, rules.limits.on_excess) {
        (None, _) => CallRetention::Keep,
        (Some(maximum), _) if index < maximum => CallRetention::Keep,
        (Some(maximum), OnExcess::Answer) if index < maximum.saturating_mul(2) => {
            CallRetention::KeepExcess
        }
        (Some(_), OnExcess::Answer | OnExcess::Truncate) => CallRetention::DropExcess,
        (Some(_), OnExcess::Fail) => CallRetention::Fail,
    }
}

/// Takes in the arguments as they came: once, at the seal (or at the end, for a call that was
/// never sealed). Says what was odd.
pub(super) fn parse_call_arguments(
    call: &mut TurnCall,
    raw: &str,
    oversize: bool,
) -> Option<ArgumentsAnomaly> {
    let mut odd = None;
    if oversize {
        call.call.raw = Some(raw.to_owned());
        call.arguments_error =
            Some(model_messages::invalid_arguments("they are larger than allowed", raw));
        odd = Some(ArgumentsAnomaly::Invalid);
    } else {
        match parse_arguments(raw) {
            ParsedArguments::Object { value, decoded_twice } => {
                call.call.arguments = Arc::new(value);
                if decoded_twice {
                    call.call.raw = Some(raw.to_owned());
                    odd = Some(ArgumentsAnomaly::DecodedTwice);
                }
            }
            ParsedArguments::CutOff => {
                call.call.raw = Some(raw.to_owned());
                call.arguments_error = Some(model_messages::cut_off_arguments(raw));
                odd = Some(ArgumentsAnomaly::CutOff);
            }
            ParsedArguments::NotAnObject { found } => {
                call.call.raw = Some(raw.to_owned());
                call.arguments_error =
                    Some(model_messages::invalid_arguments(&format!("they are {found}"), raw));
                odd = Some(ArgumentsAnomaly::Invalid);
            }
        }
    }
    if call.arguments_error.is_none()
        && let Some(tool) = &call.tool
        && let Some(what) = tool.input.first_violation(&call.call.arguments)
    {
        call.arguments_error = Some(model_messages::invalid_arguments(&what, raw));
        odd = Some(ArgumentsAnomaly::Invalid);
    }
    call.identity = identity(&call.call);
    odd
}

/// The decision about a sealed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallAdmission {
    /// It runs.
    Run,
    /// It is answered.
    Answer(ToolOutcome),
    /// It gets a copy of that call's outcome.
    Copy(CallKey),
}

/// Decides on a sealed call; every earlier call is decided.
pub(super) fn admit(call: &TurnCall, earlier: &[TurnCall], spec: &TurnSpec) -> CallAdmission {
    if call.excess {
        let maximum = spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        return CallAdmission::Answer(model_messages::over_limit(maximum));
    }
    let Some(tool) = &call.tool else {
        let known = spec.rules.tools.keys();
        return CallAdmission::Answer(model_messages::unknown_tool(&call.call.name, known));
    };
    if let Some(answer) = &call.arguments_error {
        return CallAdmission::Answer(answer.clone());
    }
    if !tool.repeatable
        && let Some(first) = find_identical_call(call, earlier)
    {
        return CallAdmission::Copy(first);
    }
    CallAdmission::Run
}

/// The earlier call with the same name and arguments, unless a call with effects that runs
/// stands between them.
fn find_identical_call(call: &TurnCall, earlier: &[TurnCall]) -> Option<CallKey> {
    for other in earlier.iter().rev() {
        let counts = match other.phase {
            CallPhase::Ready
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::AwaitingApproval { .. }
            | CallPhase::Running { .. }
            | CallPhase::Reported(_)
            | CallPhase::AwaitingReview { .. } => true,
            // Only what really ran: an answer such as "malformed" is no result to copy.
            CallPhase::Ended { .. } => {
                let counts = other.has_result() || other.notes.before.is_some();
                counts && other.arguments_error.is_none() && other.notes.duplicate_of.is_none()
            }
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::Duplicate { .. }
            | CallPhase::Dropped => false,
        };
        if !counts {
            continue;
        }
        if other.identity == call.identity {
            return Some(other.key());
        }
        if other.has_effects() {
            return None;
        }
    }
    None
}
