//! The queue of an engine that stores the batches of many sessions together, without the thread or the task that waits
//! for it.
//!
//! Group commit: a transaction takes the batches of many sessions, up to 1,024 or 8 MiB. If the last one had 16 or
//! more, it waits for more, 100 us for each of them and at most 10 ms. A batch that is not urgent waits for an urgent
//! one of its session, at most 30 ms, because the batches of a session cost less in one transaction than in several.
//! A batch fails at once (`Overloaded`) if `batches_max` batches or more than 256 MiB are queued.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{BatchCallback, BatchStatus, GroupCommit, JournalEntry, JournalError, JournalObserver};
use callsheet_values::record::Record;
use callsheet_values::types::SessionId;

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

/// A batch in the form in which an engine stores it.
pub(super) trait GroupedBatch {
    fn session(&self) -> &SessionId;

    fn is_urgent(&self) -> bool;

    fn queued_at(&self) -> Instant;

    /// Returns the number of bytes of its bodies.
    fn bytes(&self) -> usize;

    /// Returns true if it opens a fork: the records that it shares must be stored before it.
    fn is_fork(&self) -> bool;
}

/// The next work of a writer: first the batches, then the task.
pub(super) struct GroupedWork<B, T> {
    pub(super) queued: Vec<B>,
    pub(super) task: Option<T>,
    /// True if a caller waits until batches are durable.
    pub(super) flush: bool,
    /// True if the queue is closed and empty.
    pub(super) ended: bool,
}

enum QueueItem<B, T> {
    Batch(B),
    Task(T),
}

impl<B: GroupedBatch, T> QueueItem<B, T> {
    fn queued_at(&self) -> Option<Instant> {
        match self {
            Self::Batch(batch) => Some(batch.queued_at()),
            Self::Task(_) => None,
        }
    }
}

/// The queued batches and tasks of a writer, in order. Tasks keep their order among batches.
pub(super) struct GroupQueue<B, T> {
    items: VecDeque<QueueItem<B, T>>,
    batches: usize,
    bytes: usize,
    batches_max: usize,
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

impl<B: GroupedBatch, T> GroupQueue<B, T> {
    pub(super) fn new(batches_max: usize) -> Self {
        Self {
            items: VecDeque::new(),
            batches: 0,
            bytes: 0,
            batches_max,
            is_urgent: false,
            flushed: Vec::new(),
            deferred_since: None,
            takes_all: false,
            last_group: 0,
            closed: false,
        }
    }

    /// Returns the reason why no further batch can be queued now, if there is one.
    pub(super) fn refusal(&self) -> Option<JournalError> {
        if self.closed {
            Some(JournalError::Closed)
        } else if self.batches >= self.batches_max || self.bytes > QUEUE_BYTES_MAX {
            Some(JournalError::Overloaded)
        } else {
            None
        }
    }

    /// Queues a batch, although there may be a [refusal](Self::refusal). Returns true if the writer is to be woken.
    pub(super) fn push(&mut self, batch: B) -> bool {
        self.batches += 1;
        self.bytes += batch.bytes();
        self.takes_all |= batch.is_fork();
        let wake = if batch.is_urgent() {
            !std::mem::replace(&mut self.is_urgent, true)
        } else {
            let first = self.deferred_since.is_none();
            self.deferred_since.get_or_insert(batch.queued_at());
            first
        };
        self.items.push_back(QueueItem::Batch(batch));
        wake
    }

    /// Queues a task, unless the queue is closed. The caller waits for the result, so there are few tasks. The writer is
    /// to be woken.
    pub(super) fn push_task(&mut self, task: T) -> Result<(), JournalError> {
        if self.closed {
            return Err(JournalError::Closed);
        }
        self.items.push_back(QueueItem::Task(task));
        self.is_urgent = true;
        self.takes_all = true;
        Ok(())
    }

    /// Makes the writer store and sync the queued batches of a session. Returns true if it is to be woken.
    pub(super) fn flush(&mut self, session: &SessionId) -> bool {
        self.flushed.push(session.clone());
        !std::mem::replace(&mut self.is_urgent, true)
    }

    /// Closes the queue. Queued batches are still stored.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Closes the queue, because no writer remains. Returns the queued batches, and drops the tasks.
    pub(super) fn abandon(&mut self) -> Vec<B> {
        self.closed = true;
        (self.batches, self.bytes) = (0, 0);
        let batch = |item| match item {
            QueueItem::Batch(batch) => Some(batch),
            QueueItem::Task(_) => None,
        };
        std::mem::take(&mut self.items).into_iter().filter_map(batch).collect()
    }

    /// Returns the number of queued batches.
    pub(super) fn len(&self) -> usize {
        self.batches
    }

    /// Returns true if the next transaction is not to wait for an urgent batch.
    pub(super) fn is_due(&self) -> bool {
        self.is_urgent || self.closed
    }

    /// Returns the time at which the first batch has waited long enough for an urgent one.
    pub(super) fn deferred_until(&self) -> Option<Instant> {
        self.deferred_since.map(|since| since + DEFER_TIME_MAX)
    }

    /// Returns the time for which the next transaction waits for the batches of other sessions, until it
    /// [is full](Self::is_full).
    pub(super) fn gather_time(&self) -> Option<Duration> {
        if self.last_group < GATHER_FROM_BATCHES {
            return None;
        }
        let batches = u32::try_from(self.last_group).unwrap_or(u32::MAX);
        Some(GATHER_TIME_PER_BATCH.saturating_mul(batches).min(GATHER_TIME_MAX))
    }

    /// Returns true if as many batches are queued as the last transaction had: those that wait for its end have sent the
    /// next ones.
    #[cfg(feature = "postgres")]
    pub(super) fn has_last_group(&self) -> bool {
        self.batches >= self.last_group
    }

    /// Returns true if the next transaction waits for no more batches: it has all that fit, or a task, a fork or the
    /// close of the queue follows.
    pub(super) fn is_full(&self) -> bool {
        self.takes_all || self.closed || self.batches >= GROUP_BATCHES_MAX
    }

    /// Removes the batches of the next transaction, and the task after them if there is one. Leaves those that
    /// can wait for an urgent batch of their session.
    pub(super) fn drain(&mut self) -> GroupedWork<B, T> {
        let ready = self.ready_sessions();
        let is_ready =
            |batch: &B| ready.as_ref().is_none_or(|ready| ready.contains(batch.session()));
        let mut work = GroupedWork { queued: Vec::new(), task: None, flush: false, ended: false };
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
                QueueItem::Task(task) => {
                    work.task = Some(task);
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
        let is_ready = |batch: &&B| batch.is_urgent() || now - batch.queued_at() >= DEFER_TIME_MAX;
        let batches = self.items.iter().filter_map(|item| match item {
            QueueItem::Batch(batch) => Some(batch),
            QueueItem::Task(_) => None,
        });
        let ready = batches.filter(is_ready).map(GroupedBatch::session);
        Some(ready.chain(&self.flushed).cloned().collect())
    }
}

/// The opening of a session, as its first batch describes it.
pub(super) struct Opening {
    /// The agent's name.
    pub(super) agent: String,
    /// The client's pairs of strings, as JSON.
    pub(super) metadata: Option<String>,
    pub(super) time: u64,
    /// The session whose first records it shares, and the number of these records.
    pub(super) fork: Option<(SessionId, u64)>,
}

impl Opening {
    /// Returns the opening of a session by its first batch. A fork begins with all the records that it shares,
    /// and the record of the fork.
    pub(super) fn of(entries: &[Arc<JournalEntry>]) -> Option<Self> {
        let first = entries.first()?;
        let Record::SessionOpened { agent, metadata, .. } = &first.record else { return None };
        let metadata =
            (!metadata.is_empty()).then(|| serde_json::to_string(metadata).ok()).flatten();
        let last = entries.last()?;
        let fork = if let Record::SessionForked { from, at } = &last.record
            && first.seq.0 == 1
            && at.0 + 1 == last.seq.0
            && last.seq.0 == entries.len() as u64
        {
            Some((from.clone(), at.0))
        } else {
            None
        };
        Some(Self { agent: agent.clone(), metadata, time: first.time, fork })
    }

    /// Returns the number of leading records that it shares with another session.
    pub(super) fn shared_records(&self) -> usize {
        self.fork.as_ref().map_or(0, |(_, shared)| usize::try_from(*shared).unwrap_or(usize::MAX))
    }
}

/// Ignores every transaction: the observer of an engine by default.
#[derive(Debug)]
pub(super) struct NoObserver;

impl JournalObserver for NoObserver {
    fn stored(&self, _: GroupCommit) {}
}

/// The callback of a batch. It may be called twice: when the batch is written and when it is durable.
pub(super) type SharedCallback = Arc<Mutex<BatchCallback>>;

/// Calls the callback of a batch.
pub(super) fn call(on_status: &SharedCallback, status: BatchStatus) {
    // A panic in a callback must not prevent the others. The panic hook has printed the message.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| (on_status.lock())(status)));
}
