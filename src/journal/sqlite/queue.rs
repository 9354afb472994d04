//! What waits for the writer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::time::Instant;

use super::super::{BatchCallback, BatchStatus, JournalError, SessionLogState};
use crate::types::{SessionId, SessionState};

/// How long a batch that nobody waits for may wait for others.
const LAZY_WAIT: Duration = Duration::from_millis(10);

/// What one transaction stores at most, unless one batch alone is more.
const GROUP_BATCHES_MAX: usize = 1_024;
const GROUP_BYTES_MAX: usize = 8 << 20;

/// The bodies that may wait, together.
const QUEUE_BYTES_MAX: usize = 256 << 20;

/// A batch on its way to the writer, its records already in their stored form.
pub(super) struct QueuedBatch {
    pub(super) session: SessionId,
    /// Where it begins a session: its agent's name.
    pub(super) opens: Option<String>,
    /// Where it changes that: the session's state behind it.
    pub(super) state: Option<SessionState>,
    pub(super) rows: Vec<StoredRow>,
    pub(super) bytes: usize,
    pub(super) urgent: bool,
    pub(super) log_state: Arc<SessionLogState>,
    pub(super) on_status: BatchCallback,
}

/// A record in its stored form.
pub(super) struct StoredRow {
    pub(super) seq: u64,
    pub(super) time: u64,
    pub(super) body: String,
}

/// What the writer does besides storing batches, in order with them.
pub(super) enum WriterTask {
    /// Deletes sessions.
    Remove(Vec<SessionId>),
    /// Brings the write-ahead log into the database and leaves nothing in it.
    EmptyLog,
    /// Writes the database anew, then empties the log.
    Vacuum,
}

/// Told how a task ended.
pub(super) type TaskReply = SyncSender<Result<(), JournalError>>;

/// What the writer does next: first the jobs, then the task.
#[derive(Default)]
pub(super) struct WriterWork {
    pub(super) jobs: Vec<QueuedBatch>,
    pub(super) task: Option<(WriterTask, TaskReply)>,
    /// Somebody waits for everything up to here to be durable.
    pub(super) flush: bool,
    /// There will be no more.
    pub(super) ended: bool,
}

enum QueueItem {
    WriteConnection(QueuedBatch),
    Do(WriterTask, TaskReply),
}

/// What waits for the writer, in order.
pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    ready: Condvar,
    batches_max: usize,
}

#[derive(Default)]
struct QueueState {
    works: VecDeque<QueueItem>,
    batches: usize,
    bytes: usize,
    /// The writer shall not wait for more.
    hurry: bool,
    flush: bool,
    /// When the first lazy batch of those that wait came.
    lazy_since: Option<Instant>,
    closed: bool,
}

impl WriteQueue {
    pub(super) fn new(batches_max: usize) -> Self {
        Self { state: Mutex::default(), ready: Condvar::new(), batches_max }
    }

    /// Takes a batch, or tells at once that it failed.
    pub(super) fn push(&self, job: QueuedBatch) {
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
            return job.fail(&error);
        }
        state.batches += 1;
        state.bytes += job.bytes;
        let wake = if job.urgent {
            !std::mem::replace(&mut state.hurry, true)
        } else {
            let first = state.lazy_since.is_none();
            state.lazy_since.get_or_insert_with(Instant::now);
            first
        };
        state.works.push_back(QueueItem::WriteConnection(job));
        drop(state);
        if wake {
            self.ready.notify_one();
        }
    }

    /// Takes a task, unless the queue is closed. Whoever asks waits for it, so there are few.
    pub(super) fn push_task(&self, task: WriterTask, done: TaskReply) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(JournalError::Closed);
        }
        state.works.push_back(QueueItem::Do(task, done));
        state.hurry = true;
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Lets the writer wait for nothing more, and make durable what it has written.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        state.flush = true;
        if !std::mem::replace(&mut state.hurry, true) {
            drop(state);
            self.ready.notify_one();
        }
    }

    /// Takes nothing more; what waits is still given out.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_one();
    }

    /// Takes nothing more, and tells what waits that it failed: nobody is there to store it.
    pub(super) fn abandon(&self) {
        let works = {
            let mut state = self.state.lock();
            state.closed = true;
            (state.batches, state.bytes) = (0, 0);
            std::mem::take(&mut state.works)
        };
        for work in works {
            match work {
                QueueItem::WriteConnection(job) => job.fail(&JournalError::Closed),
                // Dropping the sender tells.
                QueueItem::Do(..) => {}
            }
        }
    }

    /// How many batches wait.
    pub(super) fn len(&self) -> usize {
        self.state.lock().batches
    }

    /// Waits until there is something to do, or until a time.
    pub(super) fn take(&self, until: Option<Instant>) -> WriterWork {
        let mut state = self.state.lock();
        while !state.hurry && !state.closed {
            let lazy = state.lazy_since.map(|since| since + LAZY_WAIT);
            let wake = lazy.into_iter().chain(until).min();
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
        state.drain()
    }
}

impl QueueState {
    fn drain(&mut self) -> WriterWork {
        let mut taken = WriterWork::default();
        let mut bytes = 0;
        while let Some(work) = self.works.pop_front() {
            match work {
                QueueItem::WriteConnection(job) => {
                    let fits = taken.jobs.len() < GROUP_BATCHES_MAX
                        && (taken.jobs.is_empty() || bytes + job.bytes <= GROUP_BYTES_MAX);
                    if !fits {
                        self.works.push_front(QueueItem::WriteConnection(job));
                        break;
                    }
                    bytes += job.bytes;
                    taken.jobs.push(job);
                }
                QueueItem::Do(task, done) => {
                    taken.task = Some((task, done));
                    break;
                }
            }
        }
        self.batches -= taken.jobs.len();
        self.bytes -= bytes;
        self.hurry = !self.works.is_empty();
        if !self.hurry {
            self.lazy_since = None;
            taken.flush = std::mem::take(&mut self.flush);
            taken.ended = self.closed;
        }
        taken
    }
}

impl QueuedBatch {
    /// Tells that it is not stored; nothing behind it in its session's log will be.
    pub(super) fn fail(mut self, error: &JournalError) {
        if let Some(first) = self.rows.first() {
            self.log_state.fail(first.seq);
        }
        self.notify(BatchStatus::Failed(error.clone()));
    }

    pub(super) fn notify(&mut self, status: BatchStatus) {
        notify(&mut self.on_status, status);
    }
}

/// Whoever is told must not end the writer: all sessions need it.
pub(super) fn notify(on_status: &mut BatchCallback, status: BatchStatus) {
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_status(status)));
    // The panic's message has been printed by its hook.
    drop(told);
}
