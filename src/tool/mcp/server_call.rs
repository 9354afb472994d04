//! A call whose answer is awaited: its progress and its questions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::model::RequestId;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::questions::Asker;
use crate::tool::ToolError;
use crate::types::SessionId;

/// A call whose answer is awaited.
#[derive(Clone)]
pub(super) struct ServerCall {
    asker: Asker,
    id: RequestId,
    began: Instant,
    /// Progress has arrived, or a question has begun or ended.
    pub(super) arrived: Arc<Notify>,
    /// The number of questions that the server waits for.
    asking: Arc<AtomicUsize>,
}

impl ServerCall {
    pub(super) fn new(asker: Asker, id: RequestId) -> Self {
        let (began, arrived, asking) = (Instant::now(), Arc::default(), Arc::default());
        Self { asker, id, began, arrived, asking }
    }

    /// Returns the id of its request.
    pub(super) fn id(&self) -> &RequestId {
        &self.id
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn session(&self) -> &SessionId {
        self.asker.context().session()
    }

    pub(super) fn receive(&self, text: String) {
        self.arrived.notify_one();
        self.asker.context().progress(text);
    }

    /// Asks a question of the server. The time of the question does not count.
    pub(super) async fn ask(&self, params: &Value) -> Result<Value, ToolError> {
        let _asking = AskingGuard::new(self);
        self.asker.ask(params).await
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }
}

/// Counts a question while it is open.
struct AskingGuard<'a>(&'a ServerCall);

impl<'a> AskingGuard<'a> {
    fn new(call: &'a ServerCall) -> Self {
        call.asking.fetch_add(1, Ordering::Relaxed);
        call.arrived.notify_one();
        Self(call)
    }
}

impl Drop for AskingGuard<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
        self.0.arrived.notify_one();
    }
}
