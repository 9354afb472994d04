//! What one call may know and do.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::ToolError;
use crate::types::CallKey;

/// Takes a call's progress texts; bounded by whoever made it.
pub type ProgressSink = Arc<dyn Fn(String) + Send + Sync>;

/// One call's view of the world: its arguments, its names, the sign to stop.
#[derive(Clone)]
pub struct ToolContext {
    key: CallKey,
    arguments: Value,
    idempotency_key: String,
    cancellation: CancellationToken,
    progress: ProgressSink,
}

impl ToolContext {
    /// A context as the runtime makes it (and as a test of a tool may).
    #[must_use]
    pub fn new(
        key: CallKey,
        arguments: Value,
        idempotency_key: String,
        cancellation: CancellationToken,
        progress: ProgressSink,
    ) -> Self {
        Self { key, arguments, idempotency_key, cancellation, progress }
    }

    /// Which call this is.
    #[must_use]
    pub fn key(&self) -> CallKey {
        self.key
    }

    /// The arguments: a JSON object that fits the tool's schema.
    #[must_use]
    pub fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// The arguments as a type.
    ///
    /// # Errors
    /// When they do not fit it, which the schema check makes impossible for the type that the
    /// tool's schema was derived from.
    pub fn input<Input: DeserializeOwned>(&self) -> Result<Input, ToolError> {
        Input::deserialize(&self.arguments)
            .map_err(|e| ToolError(format!("the arguments do not fit: {e}")))
    }

    /// Stays the same when the host runs the call again after a crash.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Waits until the call is to stop: its deadline passed or its run was stopped. The call's
    /// outcome stands by then; there is `cancel_grace` left to tidy up. Also returns when the call
    /// has ended, for whatever the tool has left running.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// Whether the call is to stop; for tools that compute.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Tells watchers how far the call is. Shown live, bounded, never kept.
    pub fn progress(&self, text: impl Into<String>) {
        (self.progress)(text.into());
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("key", &self.key).finish_non_exhaustive()
    }
}
