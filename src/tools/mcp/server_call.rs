//! A call whose answer is awaited: the state of its writing, its progress and its questions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rmcp::model::ProgressToken;
use serde_json::Value;
use tokio::sync::Notify;

use super::questions::Asker;
use crate::ToolError;
use callsheet_values::types::SessionId;

/// A call whose answer is awaited. Its request carries it to the transport, which writes messages.
pub(super) struct ServerCall {
    asker: Asker,
    write: Mutex<CallWrite>,
    /// Progress has arrived, or a question has begun or ended.
    pub(super) idle_timeout_reset: Notify,
    /// True while the server waits for the answer to a question.
    is_asking: AtomicBool,
    /// The number of questions that it has asked.
    asked: AtomicUsize,
}

/// The state of writing a call to the server. It is recorded here, because the library returns the same error for a
/// call that was sent and for one that was only queued, when the connection ends.
enum CallWrite {
    Queued,
    /// A byte of it may have been written. Has the token of its progress.
    Begun(ProgressToken),
    /// It is not written any more: it was withdrawn, or has ended.
    Withdrawn,
}

impl ServerCall {
    pub(super) fn new(asker: Asker) -> Self {
        let write = Mutex::new(CallWrite::Queued);
        Self {
            asker,
            write,
            idle_timeout_reset: Notify::new(),
            is_asking: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        }
    }

    /// Begins to write the call. Returns false if it is withdrawn. A call is not written twice: if the library sends
    /// it again, because the service refused the first request, it is withdrawn.
    pub(super) fn begin_write(&self, token: &ProgressToken) -> bool {
        let mut write = self.write.lock();
        let begins = matches!(*write, CallWrite::Queued);
        *write = if begins { CallWrite::Begun(token.clone()) } else { CallWrite::Withdrawn };
        begins
    }

    /// Notes that no byte of it was written. Unless it has ended, it may be written again.
    pub(super) fn fail_write(&self) {
        let mut write = self.write.lock();
        if matches!(*write, CallWrite::Begun(_)) {
            *write = CallWrite::Queued;
        }
    }

    /// Withdraws the call, unless its writing has begun. Returns whether it is withdrawn.
    pub(super) fn withdraw(&self) -> bool {
        let mut write = self.write.lock();
        if matches!(*write, CallWrite::Queued) {
            *write = CallWrite::Withdrawn;
        }
        matches!(*write, CallWrite::Withdrawn)
    }

    /// Ends the call, so that it is not written any more. Returns the token of its progress if its writing has begun.
    pub(super) fn end(&self) -> Option<ProgressToken> {
        match std::mem::replace(&mut *self.write.lock(), CallWrite::Withdrawn) {
            CallWrite::Begun(token) => Some(token),
            CallWrite::Queued | CallWrite::Withdrawn => None,
        }
    }

    pub(super) fn session(&self) -> &SessionId {
        self.asker.context().session()
    }

    /// Receives the text of a progress message: publishes it, and starts the call's time limit again.
    pub(super) fn receive(&self, text: String) {
        self.idle_timeout_reset.notify_one();
        self.asker.context().progress(text);
    }

    /// Asks a question of the server. The call's time limit starts again when the question ends. `None` if the server
    /// may not ask it: another one is open, or it has asked `questions_max`.
    pub(super) async fn ask(
        &self,
        params: &Value,
        questions_max: usize,
    ) -> Option<Result<Value, ToolError>> {
        let _asking = AskingGuard::new(self)?;
        if self.asked.fetch_add(1, Ordering::Relaxed) >= questions_max {
            return None;
        }
        Some(self.asker.ask(params).await)
    }

    pub(super) fn is_asking(&self) -> bool {
        self.is_asking.load(Ordering::Relaxed)
    }
}

/// The open question of a call.
struct AskingGuard<'a>(&'a ServerCall);

impl<'a> AskingGuard<'a> {
    /// Returns `None` if another question is open.
    fn new(call: &'a ServerCall) -> Option<Self> {
        if call.is_asking.swap(true, Ordering::Relaxed) {
            return None;
        }
        call.idle_timeout_reset.notify_one();
        Some(Self(call))
    }
}

impl Drop for AskingGuard<'_> {
    fn drop(&mut self) {
        self.0.is_asking.store(false, Ordering::Relaxed);
        self.0.idle_timeout_reset.notify_one();
    }
}
