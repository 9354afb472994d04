//! The end of a response: decides by its finish reason, its error and its content whether it broke.
//!
//! [`classify_ending`] returns `Ok` if the response did not break: it is complete, was refused, or reached its
//! maximum length ([`ResponseEnding`]). `Err` means that it broke: the turn makes another attempt if one is
//! left (`turn::retry`), unless a call with effects has started (`handle_broken` of `turn::attempt`).
//!
//! A response without a finish reason broke, unless all of these hold: there was no error, the wire's end mark came
//! ([`Delta::Done`]), the response is not empty, and the arguments of all calls came whole. A call without a byte of
//! arguments may have lost them then, and would run with `{}`.
//!
//! A response that would be complete broke if arguments were lost ([`ARGUMENTS_LOST`]): a call would run without
//! them. In a response that was cut off no further call runs anyway.
//!
//! [`Delta::Done`]: crate::Delta::Done

use crate::CallKind;
use crate::response::{ParsedArguments, PartialCall, ResponseAssembler, parse_arguments};
use callsheet_values::record::ResponseEnding;
use callsheet_values::types::{FinishKind, ProviderError, ProviderErrorKind, excerpt};

/// The end of an exchange with a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeEnd {
    /// The body ended. The response may be incomplete.
    Closed,
    /// The exchange failed: no connection, an HTTP error, a broken or stalled stream, or bytes that
    /// cannot be read.
    Failed(ProviderError),
}

/// The code of the error of a response in which arguments arrived that belong to no call, or to another one.
pub const ARGUMENTS_LOST: &str = "arguments_lost";

/// Classifies a response whose exchange has ended.
///
/// # Errors
/// If the response broke. The error is the reason for the next attempt, if one follows.
pub fn classify_ending(
    response: &ResponseAssembler,
    end: ExchangeEnd,
) -> Result<ResponseEnding, ProviderError> {
    // Nothing is missing if the exchange failed after the finish reason.
    if let (ExchangeEnd::Failed(error), None) = (end, response.finish_reason()) {
        return Err(error);
    }
    if let Some(error) = response.fatal_error() {
        return Err(error.clone());
    }
    if response.calls().is_empty() && response.text().is_empty() && has_nameless_calls(response) {
        let message = "a tool call without a name, and nothing else";
        return Err(match response.has_lost_arguments() {
            true => arguments_lost(message),
            false => malformed(message),
        });
    }
    match classify_by_finish_reason(response)? {
        ResponseEnding::Complete if response.has_lost_arguments() => {
            Err(arguments_lost("the arguments of a tool call belong to no call"))
        }
        ResponseEnding::Complete if has_merged_arguments(response) => Err(arguments_lost(
            "a tool call has no arguments, and another one has those of several",
        )),
        ending @ (ResponseEnding::Complete
        | ResponseEnding::Length
        | ResponseEnding::Refused
        | ResponseEnding::BrokenKept
        | ResponseEnding::TooManyCalls
        | ResponseEnding::Cancelled) => Ok(ending),
    }
}

fn classify_by_finish_reason(
    response: &ResponseAssembler,
) -> Result<ResponseEnding, ProviderError> {
    let refused = !response.refusal().is_empty();
    match response.finish_reason().map(|finish| finish.kind) {
        Some(FinishKind::ContentFilter) => Ok(ResponseEnding::Refused),
        Some(
            FinishKind::Stop
            | FinishKind::ToolCalls
            | FinishKind::Length
            | FinishKind::Pause
            | FinishKind::Other,
        ) if refused => Ok(ResponseEnding::Refused),
        Some(FinishKind::Length) => Ok(ResponseEnding::Length),
        Some(FinishKind::Stop | FinishKind::ToolCalls | FinishKind::Pause | FinishKind::Other) => {
            Ok(ResponseEnding::Complete)
        }
        Some(FinishKind::Error) => Err(ended_with_error(response)),
        // Some services mark the end of a response but send no finish reason.
        None if response.is_done() && !response.is_empty() && all_calls_are_whole(response) => {
            Ok(if refused { ResponseEnding::Refused } else { ResponseEnding::Complete })
        }
        None if response.is_empty() => {
            Err(ProviderError::new(ProviderErrorKind::Transport, "the response was empty"))
        }
        None => Err(ProviderError::new(
            ProviderErrorKind::Transport,
            "the response ended without a finish reason",
        )),
    }
}

/// Returns whether a response that was read to its end is complete: not broken, refused or cut off.
#[must_use]
pub fn ended_well(response: &ResponseAssembler) -> bool {
    classify_ending(response, ExchangeEnd::Closed) == Ok(ResponseEnding::Complete)
}

/// Returns the error of a response whose finish reason is an error.
fn ended_with_error(response: &ResponseAssembler) -> ProviderError {
    let message = "the service ended the response with an error";
    match response.finish_reason().filter(|finish| finish.is_unparsable_output()) {
        Some(finish) => ProviderError::new(
            ProviderErrorKind::UnparsableOutput,
            format!("{message}: {}", excerpt(&finish.raw, REASON_CHARS)),
        ),
        None => ProviderError::new(ProviderErrorKind::InStream, message),
    }
}

/// Maximum length of a finish reason in an error, in characters.
const REASON_CHARS: usize = 200;

fn malformed(message: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Malformed, message)
}

fn arguments_lost(message: &str) -> ProviderError {
    ProviderError { code: Some(ARGUMENTS_LOST.into()), ..malformed(message) }
}

/// Returns whether pieces of one call went to another one: a call has no arguments, and those of another one begin as
/// an object and are invalid JSON, not only cut off. That is what remains where a service sends all pieces under the
/// index of one call.
fn has_merged_arguments(response: &ResponseAssembler) -> bool {
    let calls = response.calls();
    let is_invalid = |call: &PartialCall| {
        let checked = serde_json::from_str::<serde::de::IgnoredAny>(&call.raw);
        call.raw.trim_ascii_start().starts_with('{') && checked.is_err_and(|error| !error.is_eof())
    };
    let functions = || calls.iter().filter(|call| call.kind == CallKind::Function);
    functions().count() > 1
        && functions().any(|call| !call.has_arguments())
        && functions().any(is_invalid)
}

fn has_nameless_calls(response: &ResponseAssembler) -> bool {
    response.problems().iter().any(|problem| problem.code == "call_without_name")
}

/// Returns whether each call has arguments that were sent and stand for an object.
fn all_calls_are_whole(response: &ResponseAssembler) -> bool {
    let is_whole = |call: &PartialCall| {
        call.has_arguments() && matches!(parse_arguments(&call.raw), ParsedArguments::Object { .. })
    };
    response.calls().iter().all(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::ResponseLimits;
    use crate::response::fixtures::{call, finish, text};
    use crate::{Delta, ProviderMetadata};
    use callsheet_values::types::FinishReason;

    #[test]
    fn a_call_that_the_service_could_not_read_is_an_unparsable_output() {
        let kind = |raw: &str| {
            let mut response = ResponseAssembler::new(ResponseLimits::default());
            let finish = FinishReason::new(FinishKind::Error, raw);
            drop(response.push(&Delta::Finish(finish)));
            classify_ending(&response, ExchangeEnd::Closed).unwrap_err().kind
        };
        for raw in [
            "MALFORMED_FUNCTION_CALL",
            "UNEXPECTED_TOOL_CALL",
            "function_call_filter: MALFORMED_FUNCTION_CALL",
            "malformed_tool_use",
        ] {
            assert_eq!(kind(raw), ProviderErrorKind::UnparsableOutput, "{raw}");
        }
        assert_eq!(kind("network_error"), ProviderErrorKind::InStream);
    }

    #[test]
    fn the_finish_reason_or_else_the_end_mark_classifies_a_response() {
        let error = || Delta::Error(malformed("m"));
        let sealed = |index| Delta::Seal { index, arguments: None };
        for (deltas, ending) in [
            (vec![finish(FinishKind::Stop)], Some(ResponseEnding::Complete)),
            (vec![finish(FinishKind::ToolCalls)], Some(ResponseEnding::Complete)),
            (vec![finish(FinishKind::Other)], Some(ResponseEnding::Complete)),
            (vec![finish(FinishKind::Pause)], Some(ResponseEnding::Complete)),
            (
                vec![Delta::Refusal("no".into()), finish(FinishKind::Pause)],
                Some(ResponseEnding::Refused),
            ),
            (vec![finish(FinishKind::Length), Delta::Done], Some(ResponseEnding::Length)),
            (vec![finish(FinishKind::ContentFilter), Delta::Done], Some(ResponseEnding::Refused)),
            (
                vec![Delta::Refusal("no".into()), finish(FinishKind::Stop)],
                Some(ResponseEnding::Refused),
            ),
            (vec![finish(FinishKind::Error), Delta::Done], None),
            (vec![finish(FinishKind::Stop), error(), Delta::Done], None),
            (vec![finish(FinishKind::Stop), Delta::Done, error()], Some(ResponseEnding::Complete)),
            (vec![text("a"), Delta::Done, error()], None),
            (vec![error(), finish(FinishKind::Stop), Delta::Done, error()], None),
            (vec![text("a")], None),
            (vec![text("a"), Delta::Done], Some(ResponseEnding::Complete)),
            (vec![call(0, "pure", "{}"), Delta::Done], Some(ResponseEnding::Complete)),
            (vec![call(0, "pure", "{"), Delta::Done], None),
            (vec![call(0, "pure", ""), Delta::Done], None),
            (vec![call(0, "pure", " "), Delta::Done], None),
            (vec![call(0, "pure", "{}"), call(1, "pure", ""), Delta::Done], None),
            (vec![text("a"), call(0, "pure", ""), sealed(0), Delta::Done], None),
            (
                vec![call(0, "pure", ""), finish(FinishKind::ToolCalls), Delta::Done],
                Some(ResponseEnding::Complete),
            ),
            (
                vec![Delta::Metadata(ProviderMetadata::RawPart("{}".into())), Delta::Done],
                Some(ResponseEnding::Complete),
            ),
            (vec![Delta::Done], None),
            (vec![], None),
        ] {
            let mut response = ResponseAssembler::new(ResponseLimits::default());
            deltas.iter().for_each(|delta| drop(response.push(delta)));
            assert_eq!(classify_ending(&response, ExchangeEnd::Closed).ok(), ending, "{deltas:?}");
        }
    }
}
