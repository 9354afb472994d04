//! The queue of the writer thread ([`GroupQueue`]), and the reports of the status of its batches.

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::group_commit::{self, GroupQueue, GroupedBatch, GroupedWork, SharedCallback};
use super::super::{BatchStatus, EngineLogState, JournalError};
use super::Opening;
use super::rows::StoredRow;
use callsheet_values::types::{SessionId, SessionState};

/// A queued batch, with its records in stored form.
pub(super) struct QueuedBatch {
    pub(super) session: SessionId,
    /// Set if the batch opens a session.
    pub(super) opening: Option<Opening>,
    /// The session's state after the batch, if it changes.
    pub(super) state: Option<SessionState>,
    /// The sequence numbers of its records.
    pub(super) seqs: RangeInclusive<u64>,
    pub(super) rows: Vec<StoredRow>,
    /// The keys of the documents that its records name.
    pub(super) documents: Vec<String>,
    pub(super) urgent: bool,
    pub(super) queued_at: Instant,
    pub(super) engine_state: Arc<EngineLogState>,
    pub(super) on_status: SharedCallback,
}

/// A task of the writer besides storing batches. Tasks keep their order among batches.
pub(super) enum WriterTask {
    /// Stores a document: its key, its text and the session that uses it.
    PutDocument(String, String, Option<SessionId>),
    /// Deletes documents without uses: the beginning of their keys, and the time before which they were stored.
    RemoveDocuments(String, u64),
    /// Hides sessions: they do not exist any more.
    Hide(Vec<SessionId>),
    /// Deletes some of the records of hidden sessions.
    RemoveHidden,
    /// Erases what the deleted sessions have left. It is to be repeated while another connection reads the log.
    Erase,
    /// Erases copies of deleted rows on these pages. It is to be repeated while another connection reads the log.
    EraseCopies(Vec<u64>),
    /// Notes that only pages in the log may have copies of deleted rows.
    NoteCopiesErased,
}

/// Receives the result of a task: true if the task did a part and is to be repeated.
pub(super) type TaskReply = oneshot::Sender<Result<bool, JournalError>>;

/// The next work of the writer: first the batches, then the task.
pub(super) type WriterWork = GroupedWork<QueuedBatch, (WriterTask, TaskReply)>;

/// The queue of the writer thread, in order.
pub(super) struct WriteQueue {
    state: Mutex<GroupQueue<QueuedBatch, (WriterTask, TaskReply)>>,
    ready: Condvar,
}

impl WriteQueue {
    pub(super) fn new(batches_max: usize) -> Self {
        Self { state: Mutex::new(GroupQueue::new(batches_max)), ready: Condvar::new() }
    }

    /// Queues a batch, or reports at once that it failed.
    pub(super) fn push(&self, batch: QueuedBatch) {
        let mut state = self.state.lock();
        if let Some(error) = state.refusal() {
            drop(state);
            return call([batch.failed(&error)]);
        }
        let wake = state.push(batch);
        drop(state);
        if wake {
            self.ready.notify_one();
        }
    }

    /// Queues a task, unless the queue is closed.
    pub(super) fn push_task(&self, task: WriterTask, done: TaskReply) -> Result<(), JournalError> {
        self.state.lock().push_task((task, done))?;
        self.ready.notify_one();
        Ok(())
    }

    /// Makes the writer store and sync the queued batches of a session.
    pub(super) fn flush(&self, session: &SessionId) {
        if self.state.lock().flush(session) {
            self.ready.notify_one();
        }
    }

    /// Closes the queue. Queued batches are still stored.
    pub(super) fn close(&self) {
        self.state.lock().close();
        self.ready.notify_one();
    }

    /// Closes the queue, because no writer remains, and returns the reports that the queued batches failed. The tasks
    /// fail too, because their senders are dropped.
    pub(super) fn abandon(&self) -> Vec<StatusReport> {
        let batches = self.state.lock().abandon();
        batches.into_iter().map(|batch| batch.failed(&JournalError::Closed)).collect()
    }

    /// Returns the number of queued batches.
    pub(super) fn len(&self) -> usize {
        self.state.lock().len()
    }

    /// Waits until there is work, or until a time.
    pub(super) fn next_work(&self, until: Option<Instant>) -> WriterWork {
        let mut state = self.state.lock();
        while !state.is_due() {
            let wake = state.deferred_until().into_iter().chain(until).min();
            let Some(wake) = wake else {
                self.ready.wait(&mut state);
                continue;
            };
            let now = Instant::now();
            if wake <= now {
                break;
            }
            self.ready.wait_for(&mut state, wake - now);
        }
        if let Some(time) = state.gather_time() {
            let until = Instant::now() + time;
            while !state.is_full() {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.ready.wait_for(&mut state, left);
            }
        }
        state.drain()
    }
}

impl GroupedBatch for QueuedBatch {
    fn session(&self) -> &SessionId {
        &self.session
    }

    fn is_urgent(&self) -> bool {
        self.urgent
    }

    fn queued_at(&self) -> Instant {
        self.queued_at
    }

    fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.bodies.len()).sum()
    }

    fn is_fork(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| opening.fork.is_some())
    }
}

impl QueuedBatch {
    /// Marks the batch as failed, so that later records of its session are not stored either. Returns the report.
    pub(super) fn failed(self, error: &JournalError) -> StatusReport {
        self.engine_state.fail(*self.seqs.start());
        self.reached(error.clone().into())
    }

    /// Returns the report of the batch's last status.
    pub(super) fn reached(self, status: BatchStatus) -> StatusReport {
        StatusReport { on_status: self.on_status, status, rows: self.rows }
    }

    /// Returns the number of the records that it stores: without those that a fork shares.
    pub(super) fn records(&self) -> usize {
        let fork = self.opening.as_ref().and_then(|opening| opening.fork.as_ref());
        let shared = fork.map_or(0, |(_, shared)| *shared);
        let stored = self.seqs.end() - self.seqs.start() + 1 - shared;
        usize::try_from(stored).unwrap_or(usize::MAX)
    }
}

/// A status for the callback of a batch.
pub(super) struct StatusReport {
    pub(super) on_status: SharedCallback,
    pub(super) status: BatchStatus,
    /// The rows of the batch, if it does not need them any more. They are dropped after the call, by the thread
    /// that calls: usually the one that allocated them. The allocator of glibc locks the memory of a thread while
    /// another one frees parts of it, and a lock that two threads want costs system calls.
    pub(super) rows: Vec<StoredRow>,
}

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
fn call(reports: impl IntoIterator<Item = StatusReport>) {
    for StatusReport { on_status, status, rows } in reports {
        group_commit::call(&on_status, status);
        drop(rows);
    }
}
