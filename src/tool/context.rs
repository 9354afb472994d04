//! What one call may know and do.

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

/// Takes a call's progress texts; bounded by whoever made it.
pub type ProgressCallback = Arc<dyn Fn(String) + Send + Sync>;

/// One call's view of the world: its arguments, its names, the sign to stop.
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

/// A call's view of the session's variables, shared with whoever takes what the call wrote.
pub type SharedVariableView = Arc<Mutex<VariablesTransaction>>;

impl ToolContext {
    /// A context as the runtime makes it (and as a test of a tool may).
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

    /// The same as a part of somebody's trace.
    #[must_use]
    pub fn with_trace(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// The same with what the tool's spec says of effects; without it the call may have some.
    #[must_use]
    pub fn with_effect(self, effect: ToolEffect) -> Self {
        Self { effect, ..self }
    }

    /// The same with a view of variables; without one there are none, and none can be written.
    #[must_use]
    pub fn with_variables(self, view: SharedVariableView) -> Self {
        Self { view, ..self }
    }

    /// A variable of the session: what this call wrote itself, or else what held when the call
    /// started, with what the earlier calls of its turn had written by then.
    ///
    /// If an earlier call of the turn writes a variable that this one has read before, the host
    /// sees it: a call of a pure tool is run again, another keeps its result and loses its writes.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value> {
        self.view.lock().get(name)
    }

    /// Writes a variable. It counts, with everything else that the call writes, when the call has
    /// succeeded and every earlier call of the turn has its outcome; until then no other call sees it.
    ///
    /// # Errors
    /// When the name has not 1 to 128 bytes, the call writes more than `max_variables_bytes`, or
    /// the call is over. Nothing has changed then.
    pub fn set(&self, name: &str, value: impl Into<Value>) -> Result<(), ToolError> {
        self.view.lock().set(name, value.into()).map_err(ToolError::new)
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
        Input::deserialize(&*self.arguments)
            .map_err(|e| ToolError(format!("the arguments do not fit: {e}")))
    }

    /// Stays the same when the host runs the call again after a crash.
    #[must_use]
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Whether the call is to be taken for one with effects, as its tool's author or the
    /// configuration says.
    #[must_use]
    pub fn effect(&self) -> ToolEffect {
        self.effect
    }

    /// Where the call stands in a trace, if it does: what it asks of others brings that along, over
    /// HTTP as the headers [`TRACEPARENT`](crate::types::TRACEPARENT) and
    /// [`TRACESTATE`](crate::types::TRACESTATE).
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
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
