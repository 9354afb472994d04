//! What a run is begun with.

use crate::config::RunOverrides;
use crate::record::RequestKey;
use crate::types::{Content, TraceContext};

/// A user's input, and what the run changes about its agent.
///
/// A text alone is a request that changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRequest {
    /// What the user says: text, and images beside it.
    pub input: Content,
    /// What the run changes about its agent.
    pub overrides: RunOverrides,
    /// Which request of a client brings it: the same again has no second effect.
    pub request: Option<RequestKey>,
    /// Where the run stands in somebody's trace: its requests and calls bring that along.
    pub trace: Option<TraceContext>,
    /// Whether the input waits if another run goes on, instead of being refused.
    pub queue: bool,
}

impl<T: Into<Content>> From<T> for RunRequest {
    fn from(input: T) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}
