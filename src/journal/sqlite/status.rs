//! Reports the status of batches.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::super::{BatchCallback, BatchStatus};

/// The callback of a batch that is reported twice: when it is written and when it is durable.
pub(super) type SharedCallback = Arc<Mutex<BatchCallback>>;

/// A status for the callback of a batch.
pub(super) type StatusReport = (SharedCallback, BatchStatus);

/// Calls the callbacks of batches, in order.
///
/// If the journal was opened in a Tokio runtime, a task of the runtime calls them. The writer then wakes
/// the runtime once for each transaction instead of once for each callback.
#[derive(Clone)]
pub(super) struct StatusReporter {
    task: Option<UnboundedSender<Vec<StatusReport>>>,
}

impl StatusReporter {
    /// Starts the task that calls the callbacks, in the current runtime.
    pub(super) fn start() -> Self {
        let task = Handle::try_current().ok().map(|runtime| {
            #[expect(
                clippy::disallowed_methods,
                reason = "the batches were in a queue with a limit"
            )]
            let (sender, mut receiver) = unbounded_channel();
            runtime.spawn(async move {
                while let Some(reports) = receiver.recv().await {
                    call(reports);
                }
            });
            sender
        });
        Self { task }
    }

    /// Reports the statuses of the batches of a transaction.
    pub(super) fn report(&self, reports: Vec<StatusReport>) {
        if reports.is_empty() {
            return;
        }
        let unsent = match &self.task {
            Some(task) => task.send(reports).map_err(|error| error.0),
            None => Err(reports),
        };
        // Without a runtime, or after its end, this thread calls them.
        if let Err(reports) = unsent {
            call(reports);
        }
    }
}

/// Calls the callbacks on this thread.
pub(super) fn call(reports: impl IntoIterator<Item = StatusReport>) {
    for (callback, status) in reports {
        // A panic in a callback must not prevent the others. The panic hook has printed the message.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| (callback.lock())(status)));
    }
}
