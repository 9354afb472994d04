//! The context of one tool call: its arguments, its identity, cancellation, progress and variables.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::ToolError;
use crate::config::ToolEffect;
use crate::context::VariablesTransaction;
use crate::types::{CallKey, TraceContext};

/// Receives the progress texts of a call. The caller that provides it bounds their number and size.
pub type ProgressCallback = Arc<dyn Fn(String) + Send + Sync>;

/// The context of one call: arguments, identity, cancellation, progress and variables.
#[derive(Clone)]
pub struct ToolContext {
    key: CallKey,
    arguments: Arc<Value>,
    idempotency_key: String,
    effect: ToolEffect,
    trace: Option<TraceContext>,
    cancellation: CancellationToken,
    progress: ProgressCallback,
    view: SharedVariableView,
}

/// A call's view of the session's variables. The runtime keeps the other reference and collects
/// the call's writes from it.
pub type SharedVariableView = Arc<Mutex<VariablesTransaction>>;

impl ToolContext {
    /// Makes a context. The runtime calls this for each call; tests of tools may too.
    #[must_use]
    pub fn new(
        key: CallKey,
        arguments: impl Into<Arc<Value>>,
        idempotency_key: String,
        cancellation: CancellationToken,
        progress: ProgressCallback,
    ) -> Self {
        let (effect, view) = (ToolEffect::default(), SharedVariableView::default());
        let (arguments, trace) = (arguments.into(), None);
        Self { key, arguments, idempotency_key, effect, trace, cancellation, progress, view }
    }

    /// Sets the call's position in a distributed trace.
    #[must_use]
    pub fn with_trace(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// Sets the effect that the tool's spec declares. The default is [`ToolEffect::Some`].
    #[must_use]
    pub fn with_effect(self, effect: ToolEffect) -> Self {
        Self { effect, ..self }
    }

    /// Sets the view of the session's variables. Without one no variable can be read or written.
    #[must_use]
    pub fn with_variables(self, view: SharedVariableView) -> Self {
        Self { view, ..self }
    }

    /// Returns a variable of the session: the value that this call wrote, or else the value at the
    /// call's start, which includes the writes that earlier calls of the turn had made by then.
    ///
    /// If an earlier call of the turn writes the variable after this read, the host detects the
    /// conflict: a call of a pure tool runs again; a call with effects keeps its result, and its
    /// writes are discarded.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value> {
        self.view.lock().get(name)
    }

    /// Writes a variable. All writes of a call take effect together, once the call has succeeded
    /// and every earlier call of the turn has its outcome. Until then no other call sees them.
    ///
    /// # Errors
    /// When the name does not have 1 to 128 bytes, the call writes more than `max_variables_bytes`,
    /// or the call has ended. The view is unchanged then.
    pub fn set(&self, name: &str, value: impl Into<Value>) -> Result<(), ToolError> {
        self.view.lock().set(name, value.into()).map_err(ToolError::new)
    }

    /// Returns the turn, the attempt and the call index.
    #[must_use]
    pub fn key(&self) -> CallKey {
        self.key
    }

    /// Returns the arguments: a JSON object that is valid for the tool's schema.
    #[must_use]
    pub fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// Deserialises the arguments.
    ///
    /// # Errors
    /// When they do not fit `Input`. This cannot happen if the tool's schema was derived from
    /// `Input`, because arguments are checked against the schema before the call.
    pub fn input<Input: DeserializeOwned>(&self) -> Result<Input, ToolError> {
        Input::deserialize(&*self.arguments)
            .map_err(|e| ToolError(format!("the arguments do not fit: {e}")))
    }

    /// Returns the call's idempotency key. It is the same when the call runs again after a crash.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Returns the tool's effect as its author or the configuration declares it.
    #[must_use]
    pub fn effect(&self) -> ToolEffect {
        self.effect
    }

    /// Returns the call's position in a distributed trace, if the run has one. A tool that sends
    /// HTTP requests propagates it in the headers [`TRACEPARENT`](crate::types::TRACEPARENT) and
    /// [`TRACESTATE`](crate::types::TRACESTATE).
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Waits until the call is cancelled, because its deadline has passed or its run was stopped.
    /// The call's outcome is decided by then; the tool has `cancel_grace` left to clean up. Also
    /// returns when the call has ended, so that tasks which the tool spawned can stop.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// Returns true if the call is cancelled. Tools that compute poll this.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Publishes a progress text to live watchers. It is bounded in size and never journaled.
    pub fn progress(&self, text: impl Into<String>) {
        (self.progress)(text.into());
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("key", &self.key).finish_non_exhaustive()
    }
}
