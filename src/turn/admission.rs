//! Which calls run, and what the others are answered.

use std::sync::Arc;

use super::call::{Call, Phase, identity};
use super::model_messages;
use crate::config::OnExcess;
use crate::event::Oddity;
use crate::response::{Arguments, understand};
use crate::turn::effect::{TurnRules, TurnSpec};
use crate::types::{CallKey, ToolOutcome};

/// What becomes of a call when it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
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
pub(super) fn at_opening(index: u32, spec: &TurnSpec) -> Opening {
    if spec.last_request {
        return Opening::Drop;
    }
    match by_rules(index, &spec.rules) {
        // Every call before one that is kept is kept too.
        Opening::Keep | Opening::KeepExcess
            if spec.budget.calls_left.is_some_and(|left| index >= left) =>
        {
            Opening::OverBudget
        }
        other @ (Opening::Keep
        | Opening::KeepExcess
        | Opening::Drop
        | Opening::DropExcess
        | Opening::OverBudget
        | Opening::Fail) => other,
    }
}

/// Decides on a call by what holds in every turn of the run.
pub(super) fn by_rules(index: u32, rules: &TurnRules) -> Opening {
    if !rules.multi_tool_calls && index > 0 {
        return Opening::Drop;
    }
    match (rules.limits.max_tool_calls_per_turn, rules.limits.on_excess) {
        (None, _) => Opening::Keep,
        (Some(maximum), _) if index < maximum => Opening::Keep,
        (Some(maximum), OnExcess::Answer) if index < maximum.saturating_mul(2) => {
            Opening::KeepExcess
        }
        (Some(_), OnExcess::Answer | OnExcess::Truncate) => Opening::DropExcess,
        (Some(_), OnExcess::Fail) => Opening::Fail,
    }
}

/// Takes in the arguments as they came: once, at the seal (or at the end, for a call that was
/// never sealed). Says what was odd.
pub(super) fn take_arguments(call: &mut Call, raw: &str, oversize: bool) -> Option<Oddity> {
    let mut odd = None;
    if oversize {
        call.call.raw = Some(raw.to_owned());
        call.unfit = Some(model_messages::invalid_arguments("they are larger than allowed", raw));
        odd = Some(Oddity::Invalid);
    } else {
        match understand(raw) {
            Arguments::Object { value, decoded_twice } => {
                call.call.arguments = Arc::new(value);
                if decoded_twice {
                    call.call.raw = Some(raw.to_owned());
                    odd = Some(Oddity::DecodedTwice);
                }
            }
            Arguments::CutOff => {
                call.call.raw = Some(raw.to_owned());
                call.unfit = Some(model_messages::cut_off_arguments(raw));
                odd = Some(Oddity::CutOff);
            }
            Arguments::NotAnObject { found } => {
                call.call.raw = Some(raw.to_owned());
                call.unfit =
                    Some(model_messages::invalid_arguments(&format!("they are {found}"), raw));
                odd = Some(Oddity::Invalid);
            }
        }
    }
    if call.unfit.is_none()
        && let Some(tool) = &call.tool
        && let Some(what) = tool.input.first_violation(&call.call.arguments)
    {
        call.unfit = Some(model_messages::invalid_arguments(&what, raw));
        odd = Some(Oddity::Invalid);
    }
    call.identity = identity(&call.call);
    odd
}

/// What becomes of a sealed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It runs.
    Run,
    /// It is answered.
    Answer(ToolOutcome),
    /// It gets a copy of that call's outcome.
    Copy(CallKey),
}

/// Decides on a sealed call; every earlier call is decided.
pub(super) fn admit(call: &Call, earlier: &[Call], spec: &TurnSpec) -> Admission {
    if call.excess {
        let maximum = spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        return Admission::Answer(model_messages::over_limit(maximum));
    }
    let Some(tool) = &call.tool else {
        let known = spec.rules.tools.keys();
        return Admission::Answer(model_messages::unknown_tool(&call.call.name, known));
    };
    if let Some(answer) = &call.unfit {
        return Admission::Answer(answer.clone());
    }
    if !tool.repeatable
        && let Some(first) = same_call(call, earlier)
    {
        return Admission::Copy(first);
    }
    Admission::Run
}

/// The earlier call with the same name and arguments, unless a call with effects that runs
/// stands between them.
fn same_call(call: &Call, earlier: &[Call]) -> Option<CallKey> {
    for other in earlier.iter().rev() {
        let counts = match other.phase {
            Phase::Ready
            | Phase::Queued { .. }
            | Phase::Intended
            | Phase::Asked { .. }
            | Phase::Running { .. }
            | Phase::Reported(_)
            | Phase::Reviewed { .. } => true,
            // Only what really ran: an answer such as "malformed" is no result to copy.
            Phase::Ended { .. } => {
                let counts = other.has_result() || other.notes.before.is_some();
                counts && other.unfit.is_none() && other.notes.duplicate_of.is_none()
            }
            Phase::Open | Phase::Sealed | Phase::Duplicate { .. } | Phase::Dropped => false,
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
