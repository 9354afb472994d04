//! The request for a run.

use crate::config::RunOverrides;
use crate::record::RequestKey;
use crate::types::{Content, TraceContext};

/// A user's input, and the overrides of the run.
///
/// A plain text is a request without overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRequest {
    /// The user's text and images.
    pub input: Content,
    /// The overrides of the agent for this run.
    pub overrides: RunOverrides,
    /// The idempotency key of the client's request: the same request again has no second effect.
    pub request: Option<RequestKey>,
    /// The trace context of the client, passed on to the run's requests and calls.
    pub trace: Option<TraceContext>,
    /// True if the input waits for an open run to end. Otherwise it is refused.
    pub queue: bool,
}

impl<T: Into<Content>> From<T> for RunRequest {
    fn from(input: T) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}
