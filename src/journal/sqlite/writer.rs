//! The thread that writes: many batches in one transaction, one fsync for all of them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::super::{
    BatchCallback, BatchStatus, GroupCommit, JournalError, JournalObserver, SessionLogState,
};
use super::data_directory::{self, DirectoryLock};
use super::errors;
use super::queue::{self, QueuedBatch, WriteQueue, WriterTask};
use super::write_connection::{BatchOutcome, WriteConnection};
use crate::config::Durability;

/// How long what is written may wait for its fsync, with [`Durability::Relaxed`].
const SYNC_WAIT: Duration = Duration::from_millis(100);

/// From so many pages on the write-ahead log is brought into the database when nothing waits,
/// and when anything does.
const LOG_PAGES_SOFT: i64 = 1_000;
const LOG_PAGES_HARD: i64 = 8_000;

/// Writes what the queue gives.
pub(super) struct JournalWriter {
    store: WriteConnection,
    queue: Arc<WriteQueue>,
    observer: Arc<dyn JournalObserver>,
    /// How many sessions are stored.
    sessions: Arc<AtomicUsize>,
    durability: Durability,
    log: File,
    unsynced: Vec<UnsyncedBatch>,
    unsynced_since: Option<Instant>,
    /// Why nothing can be stored any more.
    broken: Option<JournalError>,
    /// Let go last, when the database is closed.
    _held: DirectoryLock,
}

/// A batch that is written and not yet durable.
struct UnsyncedBatch {
    log_state: Arc<SessionLogState>,
    first: u64,
    on_status: BatchCallback,
}

/// What a writer is made of.
pub(super) struct WriterParts {
    pub(super) store: WriteConnection,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) observer: Arc<dyn JournalObserver>,
    pub(super) sessions: Arc<AtomicUsize>,
    pub(super) durability: Durability,
    pub(super) held: DirectoryLock,
}

/// Nobody takes from the queue any more, for whatever reason.
struct AbandonOnDrop(Arc<WriteQueue>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl JournalWriter {
    /// `log` is the write-ahead log in `dir`; from here on its place there is durable.
    pub(super) fn new(parts: WriterParts, dir: &Path, log: &Path) -> std::io::Result<Self> {
        let WriterParts { store, queue, observer, sessions, durability, held } = parts;
        let log = File::open(log)?;
        data_directory::sync(dir)?;
        let (unsynced, unsynced_since, broken) = (Vec::new(), None, None);
        Ok(Self {
            store,
            queue,
            observer,
            sessions,
            durability,
            log,
            unsynced,
            unsynced_since,
            broken,
            _held: held,
        })
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _abandons = AbandonOnDrop(Arc::clone(&self.queue));
        loop {
            let due = self.unsynced_since.map(|since| since + SYNC_WAIT);
            let taken = self.queue.take(due);
            if !taken.jobs.is_empty() {
                self.store(taken.jobs);
            }
            if let Some((task, done)) = taken.task {
                // Who asked may be gone.
                let _ = done.send(self.perform(task));
            }
            if taken.flush || taken.ended || due.is_some_and(|due| due <= Instant::now()) {
                self.sync();
            }
            if taken.ended {
                return;
            }
            self.checkpoint();
        }
    }

    fn store(&mut self, jobs: Vec<QueuedBatch>) {
        if let Some(error) = &self.broken {
            let error = error.clone();
            return jobs.into_iter().for_each(|job| self.fail(job, &error));
        }
        let began = Instant::now();
        match self.store.store(&jobs) {
            Ok(placed) => self.stored(jobs, placed, began.elapsed()),
            Err(error) if jobs.len() > 1 && errors::is_of_one_batch(&error) => {
                // It is rolled back. One bad batch does not fail its neighbours.
                for job in jobs {
                    self.store(vec![job]);
                }
            }
            Err(error) => {
                let error = errors::of_writing(&error);
                jobs.into_iter().for_each(|job| self.fail(job, &error));
            }
        }
    }

    fn stored(&mut self, jobs: Vec<QueuedBatch>, placed: Vec<BatchOutcome>, took: Duration) {
        let mut group = GroupCommit { batches: 0, records: 0, took };
        for (job, placed) in jobs.iter().zip(&placed) {
            if let BatchOutcome::Stored { number, new } = placed {
                job.log_state.number.store(*number, Ordering::Release);
                group.batches += 1;
                group.records += job.rows.len();
                self.sessions.fetch_add(usize::from(*new), Ordering::AcqRel);
            }
        }
        // Whoever is told of a batch finds it counted.
        if group.batches > 0 {
            self.observer.stored(group);
        }
        for (mut job, placed) in jobs.into_iter().zip(placed) {
            match placed {
                BatchOutcome::Stored { .. } => {
                    if self.durability == Durability::Relaxed {
                        job.notify(BatchStatus::Written);
                    }
                    self.unsynced_since.get_or_insert_with(Instant::now);
                    let first = job.rows.first().map_or(0, |row| row.seq);
                    let QueuedBatch { log_state, on_status, .. } = job;
                    self.unsynced.push(UnsyncedBatch { log_state, first, on_status });
                }
                BatchOutcome::Refused(error) => self.fail(job, &error),
            }
        }
        if self.durability == Durability::Strict {
            self.sync();
        }
    }

    /// Tells that a batch is not stored, when what was written before has been told of.
    fn fail(&mut self, job: QueuedBatch, error: &JournalError) {
        self.sync();
        job.fail(error);
    }

    /// Makes durable what is written.
    ///
    /// With `synchronous=NORMAL` SQLite appends a transaction to the write-ahead log without an
    /// fsync. After a crash it takes over the log's transactions up to the first whose checksum is
    /// wrong, so a transaction is durable as soon as the log up to its end is: one fdatasync of the
    /// log does that for all of them. What a checkpoint has moved into the database is durable
    /// there, since it syncs the log before and the database after; and a log that begins anew syncs
    /// its header. (`walCheckpoint` and `walWriteFrames` in sqlite3.c; <https://sqlite.org/wal.html>,
    /// section 2.3.) The log stays the same file while a connection to the database is open, SQLite
    /// takes no locks on it that closing this handle could drop, and since it was opened before
    /// the writes it is told of every error.
    fn sync(&mut self) {
        self.unsynced_since = None;
        if self.unsynced.is_empty() {
            return;
        }
        let began = Instant::now();
        let synced = self.log.sync_data();
        let unsynced = std::mem::take(&mut self.unsynced);
        let Err(error) = synced else {
            self.observer.synced(began.elapsed());
            for mut batch in unsynced {
                queue::notify(&mut batch.on_status, BatchStatus::Durable);
            }
            return;
        };
        // The system has given up pages of the log that SQLite takes for written: nothing behind
        // them can become durable.
        let why = format!("its log cannot be synced ({error}): look at the disk, then start again");
        let error = JournalError::Write(why);
        for mut batch in unsynced {
            batch.log_state.fail(batch.first);
            queue::notify(&mut batch.on_status, BatchStatus::Failed(error.clone()));
        }
        self.broken = Some(error);
    }

    fn perform(&mut self, task: WriterTask) -> Result<(), JournalError> {
        match task {
            WriterTask::Remove(sessions) => {
                let removed = self.store.remove(&sessions);
                let removed = removed.map_err(|error| errors::of_writing(&error))?;
                self.sessions.fetch_sub(removed, Ordering::AcqRel);
                self.log.sync_data().map_err(|error| JournalError::Write(error.to_string()))
            }
            WriterTask::EmptyLog => self.empty_log(),
            WriterTask::Vacuum => {
                let written = self.store.connection.execute_batch("VACUUM");
                written.map_err(|error| errors::of_writing(&error))?;
                self.empty_log()
            }
        }
    }

    /// Leaves nothing in the write-ahead log: it still holds what is deleted in the database.
    fn empty_log(&self) -> Result<(), JournalError> {
        let failed = |error: &rusqlite::Error| errors::of_writing(error);
        let busy: bool = self
            .store
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(|error| failed(&error))?;
        if busy {
            let why = "sessions are deleted, but the write-ahead log still holds them, since another \
                       program reads the database: end that one and delete them again";
            return Err(JournalError::Write(why.to_owned()));
        }
        self.log.sync_all().map_err(|error| JournalError::Write(error.to_string()))
    }

    /// Brings the write-ahead log into the database when it is long: when nothing waits, or when
    /// it is very long. Then the next transaction begins it anew.
    fn checkpoint(&self) {
        let connection = &self.store.connection;
        let pages = connection
            .prepare_cached("PRAGMA wal_checkpoint(NOOP)")
            .and_then(|mut pragma| pragma.query_row([], |row| row.get::<_, i64>(1)));
        let allowed = if self.queue.len() == 0 { LOG_PAGES_SOFT } else { LOG_PAGES_HARD };
        if pages.is_ok_and(|pages| pages >= allowed) {
            // It is tried again behind the next transaction; what is in the log is durable there.
            let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }
}
