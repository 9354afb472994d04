//! How a response ended: the one place that reads its finish.

use super::accumulator::Accumulator;
use super::arguments::{Arguments, understand};
use super::effect::ResponseEnd;
use crate::record::Ending;
use crate::types::{FinishKind, ProviderError, ProviderErrorKind};

/// Judges a response that is over.
///
/// # Errors
/// It broke: why, as the next attempt is told.
pub(super) fn judge(response: &Accumulator, end: ResponseEnd) -> Result<Ending, ProviderError> {
    // What breaks after the finish reason cannot have taken anything away.
    if let (ResponseEnd::Failed(error), None) = (end, response.finish()) {
        return Err(error);
    }
    if let Some(error) = response.error() {
        return Err(error.clone());
    }
    if response.calls().is_empty() && response.text().is_empty() && has_nameless_calls(response) {
        return Err(malformed("a tool call without a name, and nothing else"));
    }
    let refused = !response.refusal().is_empty();
    match response.finish().map(|finish| finish.kind) {
        Some(FinishKind::ContentFilter) => Ok(Ending::Refused),
        Some(FinishKind::Stop | FinishKind::ToolCalls | FinishKind::Length | FinishKind::Other)
            if refused =>
        {
            Ok(Ending::Refused)
        }
        Some(FinishKind::Length) => Ok(Ending::Length),
        Some(FinishKind::Stop | FinishKind::ToolCalls | FinishKind::Other) => Ok(Ending::Well),
        Some(FinishKind::Error) => Err(ProviderError::new(
            ProviderErrorKind::InStream,
            "the service ended the response with an error",
        )),
        // Some services say that the response is over, but never why. That is taken as good only
        // if nothing in it is cut off.
        None if response.is_done() && !response.is_empty() && all_whole(response) => {
            Ok(if refused { Ending::Refused } else { Ending::Well })
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

fn malformed(message: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Malformed, message)
}

fn has_nameless_calls(response: &Accumulator) -> bool {
    response.problems().iter().any(|problem| problem.code == "call_without_name")
}

fn all_whole(response: &Accumulator) -> bool {
    response.calls().iter().all(|call| matches!(understand(&call.raw), Arguments::Object { .. }))
}
