//! The request for a run.

use crate::config::RunOverrides;
use crate::record::RequestKey;
use crate::tool::Extensions;
use crate::types::{Content, TraceContext};

/// A user's input, and the overrides of the run.
///
/// A plain text is a request without overrides.
#[derive(Clone, Debug, Default)]
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
    /// Values for the tools of this run, such as a tenant. A tool reads them with
    /// [`ToolContext::extension`](crate::tool::ToolContext::extension). They are never stored: a run
    /// that continues after a restart of the host has none. The values of a repeated request are
    /// ignored.
    pub extensions: Extensions,
}

impl RunRequest {
    /// Gives the tools of this run a value, which replaces one of the same type.
    ///
    /// ```
    /// # struct Tenant(&'static str);
    /// use callsheet::runtime::RunRequest;
    ///
    /// let request = RunRequest::from("How many orders are open?").with_extension(Tenant("acme"));
    /// assert_eq!(request.extensions.get::<Tenant>().map(|tenant| tenant.0), Some("acme"));
    /// ```
    #[must_use]
    pub fn with_extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }
}

impl<T: Into<Content>> From<T> for RunRequest {
    fn from(input: T) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}
