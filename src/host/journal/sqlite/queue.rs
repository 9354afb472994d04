//! The queue of the writer thread, and the reports of the status of its batches.
//!
//! Group commit: a transaction takes the batches of many sessions, up to 1,024 or 8 MiB. If the last one had 16 or
//! more, it waits for more, 100 us for each of them and at most 10 ms. A batch that is not urgent waits for an urgent
//! one of its session, at most 30 ms, because the batches of a session cost less in one transaction than in several.
//! A batch fails at once (`Overloaded`) if `queue_max` batches or more than 256 MiB are queued.

use std::collections::{HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::{BatchCallback, BatchStatus, EngineLogState, JournalError};
use super::rows::StoredRow;
use callsheet_values::types::{SessionId, SessionState};

/// Maximum delay of a batch that is not urgent, besides the time for which the transaction waits for more.
const DEFER_TIME_MAX: Duration = Duration::from_millis(30);

/// A transaction waits for the batches of other sessions, if the last one had at least this number of batches: many
/// sessions append, and a transaction costs about as much for one as for all of them. The more batches the last one
/// had, the longer.
const GATHER_FROM_BATCHES: usize = 16;
const GATHER_TIME_PER_BATCH: Duration = Duration::from_micros(100);
const GATHER_TIME_MAX: Duration = Duration::from_millis(10);

/// Maximum size of a transaction, unless a single batch is larger.
const GROUP_BATCHES_MAX: usize = 1_024;
const GROUP_BYTES_MAX: usize = 8 << 20;

/// Maximum size of all queued bodies.
const QUEUE_BYTES_MAX: usize = 256 << 20;

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

/// The opening of a session.
pub(super) struct Opening {
    /// The agent's name.
    pub(super) agent: String,
    /// The client's pairs of strings, as JSON.
    pub(super) metadata: Option<String>,
    pub(super) time: u64,
    /// The session whose first records it shares, and the number of these records. They are not in the rows.
    pub(super) fork: Option<(SessionId, u64)>,
}

/// A task of the writer besides storing batches. Tasks keep their order among batches.
pub(super) enum WriterTask {
    /// Stores a document: its key and its text.
    PutDocument(String, String),
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
#[derive(Default)]
pub(super) struct WriterWork {
    pub(super) queued: Vec<QueuedBatch>,
    pub(super) task: Option<(WriterTask, TaskReply)>,
    /// True if a caller waits until batches are durable.
    pub(super) flush: bool,
    /// True if the queue is closed and empty.
    pub(super) ended: bool,
}

enum QueueItem {
    Batch(QueuedBatch),
    Task(WriterTask, TaskReply),
}

impl QueueItem {
    fn queued_at(&self) -> Option<Instant> {
        match self {
            Self::Batch(batch) => Some(batch.queued_at),
            Self::Task(..) => None,
        }
    }
}

/// The queue of the writer thread, in order.
pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    ready: Condvar,
    batches_max: usize,
}

#[derive(Default)]
struct QueueState {
    items: VecDeque<QueueItem>,
    batches: usize,
    bytes: usize,
    /// True if work is queued that does not wait for [`DEFER_TIME_MAX`].
    is_urgent: bool,
    /// The sessions whose batches a caller waits for.
    flushed: Vec<SessionId>,
    /// The arrival of the first queued batch that is not urgent, or of the first that the last transaction left.
    deferred_since: Option<Instant>,
    /// True until all batches before a queued task or fork are taken. None of them is left to wait.
    takes_all: bool,
    /// Number of batches of the last transaction.
    last_group: usize,
    closed: bool,
}

impl WriteQueue {
    pub(super) fn new(batches_max: usize) -> Self {
        Self { state: Mutex::default(), ready: Condvar::new(), batches_max }
    }

    /// Queues a batch, or reports at once that it failed.
    pub(super) fn push(&self, batch: QueuedBatch) {
        let mut state = self.state.lock();
        let refused = if state.closed {
            Some(JournalError::Closed)
        } else if state.batches >= self.batches_max || state.bytes > QUEUE_BYTES_MAX {
            Some(JournalError::Overloaded)
        } else {
            None
        };
        if let Some(error) = refused {
            drop(state);
            return call([batch.failed(&error)]);
        }
        state.batches += 1;
        state.bytes += batch.bytes();
        // The shared records of a fork must be stored before it.
        state.takes_all |= batch.is_fork();
        let wake = if batch.urgent {
            !std::mem::replace(&mut state.is_urgent, true)
        } else {
            let first = state.deferred_since.is_none();
            state.deferred_since.get_or_insert(batch.queued_at);
            first
        };
        state.items.push_back(QueueItem::Batch(batch));
        drop(state);
        if wake {
            self.ready.notify_one();
        }
    }

    /// Queues a task, unless the queue is closed. The caller waits for the result, so there are few
    /// tasks.
    pub(super) fn push_task(&self, task: WriterTask, done: TaskReply) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(JournalError::Closed);
        }
        state.items.push_back(QueueItem::Task(task, done));
        state.is_urgent = true;
        state.takes_all = true;
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Makes the writer store and sync the queued batches of a session.
    pub(super) fn flush(&self, session: &SessionId) {
        let mut state = self.state.lock();
        state.flushed.push(session.clone());
        if !std::mem::replace(&mut state.is_urgent, true) {
            drop(state);
            self.ready.notify_one();
        }
    }

    /// Closes the queue. Queued batches are still stored.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_one();
    }

    /// Closes the queue, because no writer remains, and returns the reports that the queued batches failed.
    pub(super) fn abandon(&self) -> Vec<StatusReport> {
        let items = {
            let mut state = self.state.lock();
            state.closed = true;
            (state.batches, state.bytes) = (0, 0);
            std::mem::take(&mut state.items)
        };
        let failed = |item| match item {
            QueueItem::Batch(batch) => Some(batch.failed(&JournalError::Closed)),
            // Dropping the sender reports the failure.
            QueueItem::Task(..) => None,
        };
        items.into_iter().filter_map(failed).collect()
    }

    /// Returns the number of queued batches.
    pub(super) fn len(&self) -> usize {
        self.state.lock().batches
    }

    /// Waits until there is work, or until a time.
    pub(super) fn next_work(&self, until: Option<Instant>) -> WriterWork {
        let mut state = self.state.lock();
        while !state.is_urgent && !state.closed {
            let deferred_until = state.deferred_since.map(|since| since + DEFER_TIME_MAX);
            let wake = deferred_until.into_iter().chain(until).min();
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
        if state.last_group >= GATHER_FROM_BATCHES {
            let batches = u32::try_from(state.last_group).unwrap_or(u32::MAX);
            let time = GATHER_TIME_PER_BATCH.saturating_mul(batches).min(GATHER_TIME_MAX);
            let until = Instant::now() + time;
            // Ends early for a task, a fork or the close of the queue.
            while !state.takes_all && !state.closed && state.batches < GROUP_BATCHES_MAX {
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

impl QueueState {
    /// Removes the batches of the next transaction, and the task after them if there is one. Leaves those that
    /// can wait for an urgent batch of their session.
    fn drain(&mut self) -> WriterWork {
        let ready = self.ready_sessions();
        let is_ready =
            |batch: &QueuedBatch| ready.as_ref().is_none_or(|ready| ready.contains(&batch.session));
        let mut work = WriterWork::default();
        let (mut bytes, mut is_cut) = (0, false);
        let mut items = std::mem::take(&mut self.items).into_iter();
        for item in items.by_ref() {
            match item {
                QueueItem::Batch(batch) if is_ready(&batch) => {
                    let fits = work.queued.len() < GROUP_BATCHES_MAX
                        && (work.queued.is_empty() || bytes + batch.bytes() <= GROUP_BYTES_MAX);
                    if !fits {
                        self.items.push_back(QueueItem::Batch(batch));
                        is_cut = true;
                        break;
                    }
                    bytes += batch.bytes();
                    work.queued.push(batch);
                }
                QueueItem::Batch(batch) => self.items.push_back(QueueItem::Batch(batch)),
                QueueItem::Task(task, done) => {
                    work.task = Some((task, done));
                    is_cut = true;
                    break;
                }
            }
        }
        self.items.extend(items);
        // The rest may have urgent batches.
        self.is_urgent = is_cut && !self.items.is_empty();
        self.takes_all &= self.is_urgent;
        self.deferred_since = self.items.iter().find_map(QueueItem::queued_at);
        if !work.queued.is_empty() {
            self.last_group = work.queued.len();
        }
        self.batches -= work.queued.len();
        self.bytes -= bytes;
        if !self.is_urgent {
            work.flush = !self.flushed.is_empty();
            self.flushed.clear();
            work.ended = self.closed;
        }
        work
    }

    /// Returns the sessions whose batches belong in the next transaction: those with an urgent batch, and those with
    /// a batch that has waited long. `None`: all, also if nothing is urgent and one has waited long, so that there are
    /// not many small transactions.
    fn ready_sessions(&self) -> Option<HashSet<SessionId>> {
        if self.takes_all || self.closed || !self.is_urgent {
            return None;
        }
        let now = Instant::now();
        let is_ready =
            |batch: &&QueuedBatch| batch.urgent || now - batch.queued_at >= DEFER_TIME_MAX;
        let batches = self.items.iter().filter_map(|item| match item {
            QueueItem::Batch(batch) => Some(batch),
            QueueItem::Task(..) => None,
        });
        let ready = batches.filter(is_ready).map(|batch| &batch.session);
        Some(ready.chain(&self.flushed).cloned().collect())
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

    fn is_fork(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| opening.fork.is_some())
    }

    /// Returns the number of bytes of its rows.
    fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.bodies.len()).sum()
    }

    /// Returns the number of the records that it stores: without those that a fork shares.
    pub(super) fn records(&self) -> usize {
        let fork = self.opening.as_ref().and_then(|opening| opening.fork.as_ref());
        let shared = fork.map_or(0, |(_, shared)| *shared);
        let stored = self.seqs.end() - self.seqs.start() + 1 - shared;
        usize::try_from(stored).unwrap_or(usize::MAX)
    }
}

/// The callback of a batch. It may be called twice: when the batch is written and when it is durable.
pub(super) type SharedCallback = Arc<Mutex<BatchCallback>>;

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
        // A panic in a callback must not prevent the others. The panic hook has printed the message.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| (on_status.lock())(status)));
        drop(rows);
    }
}
