//! The texts that the model receives about calls that did not run or did not end normally, and notes on results.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::call::{QUOTE_CHARS, TurnCall};
use callsheet_values::types::{
    ApprovalVerdict, FailureKind, HookDecision, HookPoint, ReferenceError, ToolOutcome, ToolStatus,
    VariableName, VerdictWithMessage, WaitPhase, excerpt,
};

/// Returns the answer to a valid call of `final_answer`.
pub(super) fn accepted_answer() -> ToolOutcome {
    ToolOutcome::ok("accepted")
}

/// Returns the answer to a call of an unknown tool.
pub(super) fn unknown_tool<'a>(
    name: &str,
    offered: impl Iterator<Item = &'a String>,
) -> ToolOutcome {
    let offered: Vec<&str> = offered.map(String::as_str).collect();
    let list = if offered.is_empty() {
        "There are no tools.".to_owned()
    } else {
        format!("The tools are: {}.", offered.join(", "))
    };
    failed(
        FailureKind::UnknownTool,
        format!("Error: there is no tool {:?}. {list}", excerpt(name, 64)),
    )
}

/// Returns the answer to a call of an unknown tool, where tools are found by a search.
pub(super) fn tool_not_found(name: &str) -> ToolOutcome {
    let name = excerpt(name, 64);
    failed(
        FailureKind::UnknownTool,
        format!("Error: there is no tool {name:?}. find_tools finds the tools."),
    )
}

/// Returns the answer to a call whose arguments are incomplete.
pub(super) fn cut_off_arguments(raw: &str) -> ToolOutcome {
    failed(
        FailureKind::CutOffArguments,
        format!(
            "Error: not run: the arguments are cut off. Send the whole call again. Received: {}",
            excerpt(raw, QUOTE_CHARS)
        ),
    )
}

/// Returns the answer to a call whose arguments are not an object, are too large or violate the schema. Shortens
/// `violation`, which may quote all of them.
pub(super) fn invalid_arguments(violation: &str, raw: &str) -> ToolOutcome {
    failed(
        FailureKind::InvalidArguments,
        format!(
            "Error: not run: invalid arguments: {}. Received: {}",
            excerpt(violation, QUOTE_CHARS),
            excerpt(raw, QUOTE_CHARS)
        ),
    )
}

/// Returns the answer to a call with references whose values cannot be put in.
pub(super) fn unresolved_references(error: &ReferenceError) -> ToolOutcome {
    let text = format!("Error: not run: invalid arguments: {error}");
    failed(FailureKind::InvalidArguments, text)
}

/// Returns the answer to a call whose arguments changed after their seal.
pub(super) fn malformed() -> ToolOutcome {
    failed(
        FailureKind::Malformed,
        "Error: the call was malformed: its arguments changed after they were complete. \
         No result counts; send the call again if it is still needed.",
    )
}

/// Returns the answer to a call beyond `max_tool_calls_per_turn`.
pub(super) fn over_limit(maximum: u32) -> ToolOutcome {
    ToolOutcome::not_ok(
        ToolStatus::Refused,
        FailureKind::Limit,
        format!(
            "Error: not run: at most {maximum} tool calls are run per response. \
             Send the call again in a later response if it is still needed."
        ),
    )
}

/// Returns the answer to the calls of a response whose number of calls failed the run.
pub(super) fn failed_over_limit(maximum: u32) -> ToolOutcome {
    ToolOutcome::not_ok(
        ToolStatus::Refused,
        FailureKind::Limit,
        format!(
            "Error: not run: the response held more than the {maximum} tool calls that are \
             allowed, and the run was ended."
        ),
    )
}

/// Returns the answer to a call that did not start before the response was cut off at its maximum
/// length.
pub(super) fn cut_off_response() -> ToolOutcome {
    not_started("Error: not run: the response was cut off")
}

/// Returns the answer to a call that did not start before the response broke.
pub(super) fn broken_response() -> ToolOutcome {
    not_started("Error: not run: the response broke off")
}

/// Returns the answer to a call that did not start before the run ended.
pub(super) fn never_started() -> ToolOutcome {
    not_started("Error: not started: the run was ended before")
}

/// Returns the answer to a call that was cancelled while it ran.
pub(super) fn cancelled(call: &TurnCall) -> ToolOutcome {
    let text = if call.has_effects() {
        "Error: cancelled while running: it may or may not have happened"
    } else {
        "Error: cancelled while running"
    };
    ToolOutcome::not_ok(ToolStatus::Cancelled, FailureKind::Cancelled, text)
}

/// Returns the answer to a call that exceeded its timeout.
pub(super) fn timed_out(call: &TurnCall, timeout: Duration) -> ToolOutcome {
    let mut text = format!("Error: Execution timeout after {}", format_duration(timeout));
    if call.has_effects() {
        text.push_str(": it may or may not have happened");
    }
    ToolOutcome::not_ok(ToolStatus::TimedOut, FailureKind::Timeout, text)
}

/// Returns the answer to a call whose result the client has not sent in time.
pub(super) fn unanswered(call: &TurnCall, timeout: Duration) -> ToolOutcome {
    let mut text = format!("Error: no result from the client within {}", format_duration(timeout));
    if call.has_effects() && call.started_at.is_some() {
        text.push_str(": it may or may not have happened");
    }
    ToolOutcome::not_ok(ToolStatus::TimedOut, FailureKind::Timeout, text)
}

/// Returns the answer to a call that may have run before a crash of the host.
pub(super) fn host_stopped() -> ToolOutcome {
    ToolOutcome::not_ok(
        ToolStatus::Unknown,
        FailureKind::HostStopped,
        "Error: the host stopped during this call; it may or may not have happened",
    )
}

/// Returns the answer to a call whose approval was rejected or has expired.
pub(super) fn rejected(phase: WaitPhase, given: &VerdictWithMessage) -> ToolOutcome {
    let kind = match given.verdict {
        ApprovalVerdict::Approved | ApprovalVerdict::Rejected | ApprovalVerdict::Withdrawn => {
            FailureKind::Rejected
        }
        ApprovalVerdict::Expired => FailureKind::ApprovalExpired,
    };
    let default = match (phase, given.verdict) {
        (WaitPhase::Before, ApprovalVerdict::Expired) => {
            "not run: no decision about the call arrived in time"
        }
        (WaitPhase::Before | WaitPhase::Input | WaitPhase::Client, _) => {
            "not run: a person rejected the call"
        }
        (WaitPhase::After, ApprovalVerdict::Expired) => {
            "it ran, but no decision about its result arrived in time"
        }
        (WaitPhase::After, _) => "it ran, but a person rejected its result",
    };
    refused(kind, given.message.as_deref().unwrap_or(default))
}

/// Returns the answer to a call whose result was not approved before the run ended.
pub(super) fn unreviewed() -> ToolOutcome {
    refused(FailureKind::Rejected, "it ran, but the run was ended before its result was approved")
}

/// Returns the answer to a call that hooks refuse, or whose result they withhold.
pub(super) fn refused_by_hook(on: HookPoint, decision: &HookDecision) -> ToolOutcome {
    let message = decision.message.as_deref().map(str::to_owned).unwrap_or_else(|| {
        let hook = decision.hook.as_deref().unwrap_or_default();
        match on {
            HookPoint::AfterCall => format!("it ran, and the hook {hook} withholds its result"),
            HookPoint::BeforeRequest
            | HookPoint::BeforeCall
            | HookPoint::AfterTurn
            | HookPoint::RunEnd => {
                format!("not run: the hook {hook} refuses the call")
            }
        }
    });
    refused(FailureKind::Hook, &message)
}

/// Returns the answer to a call whose result hooks had not decided about before the run ended.
pub(super) fn unchecked() -> ToolOutcome {
    refused(
        FailureKind::Hook,
        "it ran, but the run was ended before hooks had decided about its result",
    )
}

/// Returns the note on a result whose call read outdated variables.
pub(super) fn conflict(names: &[VariableName], writes_dropped: bool) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let names = excerpt(&names.join(", "), QUOTE_CHARS);
    let effect = if writes_dropped {
        "What this call wrote to variables was dropped"
    } else {
        "This result rests on the older values"
    };
    format!(
        "\n[callsheet: an earlier call of the same response changed variables after this call had \
         read them: {names}. {effect}.]"
    )
}

/// Returns the note on a result whose call would have made the variables too large.
pub(super) fn variables_full(maximum: usize) -> String {
    format!(
        "\n[callsheet: what this call wrote to variables was dropped: together they would exceed \
         {maximum} bytes.]"
    )
}

fn refused(kind: FailureKind, message: &str) -> ToolOutcome {
    let content = format!(r#"{{"status":"rejected","message":{}}}"#, json!(message));
    ToolOutcome::not_ok(ToolStatus::Refused, kind, content)
}

fn failed(kind: FailureKind, text: impl Into<Arc<str>>) -> ToolOutcome {
    ToolOutcome::not_ok(ToolStatus::Failed, kind, text)
}

fn not_started(text: &str) -> ToolOutcome {
    ToolOutcome::not_ok(ToolStatus::Cancelled, FailureKind::NotStarted, text)
}

/// Formats a duration, for example `30s`, `1.5s` or `250ms`.
fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 { format!("{millis}ms") } else { format!("{}s", duration.as_secs_f64()) }
}
