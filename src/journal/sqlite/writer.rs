//! The writer thread: stores many batches in one transaction, with one fsync for all of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use tokio::time::Instant;

use super::super::{BatchStatus, EngineLogState, GroupCommit, JournalError, JournalObserver};
use super::SharedFailure;
use super::data_directory::{self, DirectoryLock};
use super::database;
use super::errors;
use super::pages;
use super::query;
use super::queue::{QueuedBatch, WriteQueue, WriterTask};
use super::read_connections::ReadConnections;
use super::reserve::Reserve;
use super::status::{SharedCallback, StatusReport, StatusReporter};
use super::write_connection::{BatchOutcome, WriteConnection};
use crate::config::Durability;

/// Maximum delay of the fsync with [`Durability::Relaxed`].
const SYNC_WAIT: Duration = Duration::from_millis(100);

/// Number of pages of the write-ahead log from which the writer checkpoints it: with an empty
/// queue, and always.
const LOG_PAGES_SOFT: i64 = 2_000;
const LOG_PAGES_HARD: i64 = 8_000;

/// Number of pages of the log from which it is checkpointed while the disk has little space or sessions are
/// deleted: the database can then take them in the space of the reserve.
const LOG_PAGES_SHORT_OF_SPACE: i64 = 500;

/// Free bytes of the disk below which it has little space: twice the longest log.
const LITTLE_SPACE_BYTES: u64 = 64 << 20;

/// Interval of the attempts to write after a failure.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// Stores the batches of the queue.
pub(super) struct JournalWriter {
    store: WriteConnection,
    queue: Arc<WriteQueue>,
    observer: Arc<dyn JournalObserver>,
    /// Number of stored sessions.
    sessions: Arc<AtomicUsize>,
    durability: Durability,
    file: PathBuf,
    log_path: PathBuf,
    log: File,
    readers: Arc<ReadConnections>,
    unsynced: Vec<UnsyncedBatch>,
    unsynced_since: Option<Instant>,
    /// The error of an fsync. Nothing can be stored until the database was opened again.
    broken: Option<JournalError>,
    reserve: Reserve,
    failure: SharedFailure,
    reporter: StatusReporter,
    /// The time of the next attempt to write after a failure, or to fill the reserve.
    retry_at: Option<Instant>,
    /// Unlocked last, after the database is closed.
    lock: DirectoryLock,
}

/// A batch that is written but not durable.
struct UnsyncedBatch {
    engine_state: Arc<EngineLogState>,
    first: u64,
    on_status: SharedCallback,
}

/// The parts of a writer.
pub(super) struct WriterParts {
    pub(super) store: WriteConnection,
    pub(super) readers: Arc<ReadConnections>,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) observer: Arc<dyn JournalObserver>,
    pub(super) sessions: Arc<AtomicUsize>,
    pub(super) durability: Durability,
    pub(super) reserve: Reserve,
    pub(super) failure: SharedFailure,
    pub(super) reporter: StatusReporter,
    pub(super) lock: DirectoryLock,
}

/// Abandons the queue when the writer ends for any reason.
struct AbandonOnDrop(Arc<WriteQueue>, StatusReporter);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.1.report(self.0.abandon());
    }
}

impl JournalWriter {
    /// Creates the writer of the database `file`. `log_path` is its write-ahead log, whose directory entry is
    /// durable afterwards.
    pub(super) fn new(
        parts: WriterParts,
        file: PathBuf,
        log_path: PathBuf,
    ) -> std::io::Result<Self> {
        let WriterParts {
            store,
            readers,
            queue,
            observer,
            sessions,
            durability,
            reserve,
            failure,
            reporter,
            lock,
        } = parts;
        let log = File::open(&log_path)?;
        // Without space for the reserve the journal can still be used.
        let filled = if reserve.is_missing() { reserve.fill() } else { Ok(()) };
        let retry_at = filled.is_err().then(|| Instant::now() + RETRY_PERIOD);
        sync_parent(&file)?;
        let (unsynced, unsynced_since, broken) = (Vec::new(), None, None);
        Ok(Self {
            store,
            queue,
            observer,
            sessions,
            durability,
            file,
            log_path,
            log,
            readers,
            unsynced,
            unsynced_since,
            broken,
            reserve,
            failure,
            reporter,
            retry_at,
            lock,
        })
    }

    /// Runs until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _abandons = AbandonOnDrop(Arc::clone(&self.queue), self.reporter.clone());
        // The host may have ended while sessions were being deleted.
        while self.store.remove_hidden().unwrap_or(false) {}
        loop {
            let due = self.unsynced_since.map(|since| since + SYNC_WAIT);
            let work = self.queue.next_work(due.into_iter().chain(self.retry_at).min());
            if !work.queued.is_empty() {
                self.store(work.queued);
            }
            if let Some((task, done)) = work.task {
                // The receiver may have been dropped.
                let _ = done.send(self.perform(task));
            }
            if work.flush || work.ended || due.is_some_and(|due| due <= Instant::now()) {
                self.sync();
            }
            if work.ended {
                return;
            }
            if self.retry_at.is_some_and(|at| at <= Instant::now()) {
                self.retry();
            }
            self.checkpoint();
        }
    }

    fn store(&mut self, batches: Vec<QueuedBatch>) {
        if let Some(error) = &self.broken {
            let error = error.clone();
            return self.fail(batches, &error);
        }
        let began = Instant::now();
        let mut stored = self.store.store(&batches);
        if stored.as_ref().is_err_and(errors::may_lack_space) && self.empty_log().is_ok() {
            // The log has given its space back.
            stored = self.store.store(&batches);
        }
        match stored {
            Ok(outcomes) => self.stored(batches, outcomes, began.elapsed()),
            Err(error) if batches.len() > 1 && errors::concerns_one_batch(&error) => {
                // The transaction was rolled back. Each batch is stored alone, so that one bad
                // batch does not fail the others.
                for batch in batches {
                    self.store(vec![batch]);
                }
            }
            Err(error) => {
                let is_common = !errors::concerns_one_batch(&error);
                let error = errors::write_error(&error);
                if is_common {
                    self.set_failure(Some(error.clone()));
                }
                self.fail(batches, &error);
            }
        }
    }

    /// Notes that the journal cannot be written, or that it can again.
    fn set_failure(&mut self, failure: Option<JournalError>) {
        let mut shared = self.failure.lock();
        if *shared == failure {
            return;
        }
        match &failure {
            Some(error) => {
                tracing::error!(%error, "journal_unwritable: no run can start until it can be written");
            }
            None => tracing::info!("journal_writable: the journal can be written again"),
        }
        *shared = failure;
        drop(shared);
        self.retry_at = Some(Instant::now() + RETRY_PERIOD);
    }

    /// Tries to write after a failure, and to fill the reserve.
    fn retry(&mut self) {
        if self.broken.is_some() {
            if let Ok(()) = self.reopen() {
                self.broken = None;
                self.set_failure(None);
            }
        } else if self.failure.lock().is_some() {
            let probe = self.store.probe();
            self.set_failure(probe.err().map(|error| errors::write_error(&error)));
        }
        let works = self.failure.lock().is_none();
        let is_done = works && (!self.reserve.is_missing() || self.reserve.fill().is_ok());
        self.retry_at = (!is_done).then(|| Instant::now() + RETRY_PERIOD);
    }

    /// Opens the database again after a failed fsync.
    ///
    /// The system may have dropped what it could not write, and reports the error only once. So the log cannot
    /// be continued (<https://wiki.postgresql.org/wiki/Fsync_Errors>). A new connection reads the log up to
    /// the first wrong checksum, which are at least all records that were reported as durable. A checkpoint
    /// then writes these pages to the database, syncs it and empties the log. While another program reads the database,
    /// its state of the log is used without reading the log again.
    fn reopen(&mut self) -> Result<(), JournalError> {
        let readers = Arc::clone(&self.readers);
        readers.while_closed(|| {
            let write_error = |error: rusqlite::Error| errors::write_error(&error);
            let connection = &self.store.connection;
            connection
                .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
                .and_then(|_| self.store.close())
                .map_err(write_error)?;
            let connection = database::open(&self.file)?;
            let stored = query::count(&connection).map_err(|error| error.open_error(&self.file))?;
            self.store.connection = connection;
            let io_error = |error: std::io::Error| JournalError::Write(error.to_string());
            self.log = File::open(&self.log_path).map_err(io_error)?;
            self.empty_log()?;
            sync_parent(&self.file).map_err(io_error)?;
            self.sessions.store(stored, Ordering::Release);
            Ok(())
        })
    }

    /// Performs a write that makes room. On a full disk it uses the reserve.
    fn make_room<T>(
        &mut self,
        write: impl Fn(&mut WriteConnection) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let mut written = write(&mut self.store);
        if written.as_ref().is_err_and(errors::may_lack_space) && self.reserve.release().is_ok() {
            self.retry_at.get_or_insert_with(|| Instant::now() + RETRY_PERIOD);
            // It fails if the log is in use, and the write is tried anyway.
            let _ = self.empty_log();
            written = write(&mut self.store);
        }
        written.map_err(|error| errors::write_error(&error))
    }

    fn stored(&mut self, batches: Vec<QueuedBatch>, outcomes: Vec<BatchOutcome>, took: Duration) {
        self.set_failure(None);
        let mut group = GroupCommit { batches: 0, records: 0, took };
        for (batch, outcome) in batches.iter().zip(&outcomes) {
            if let BatchOutcome::Stored { position, new } = outcome {
                *batch.engine_state.position.lock() = Some(*position);
                group.batches += 1;
                group.records += batch.records();
                self.sessions.fetch_add(usize::from(*new), Ordering::AcqRel);
            }
        }
        // Counted before the callbacks, so that they see current metrics.
        if group.batches > 0 {
            self.observer.stored(group);
        }
        let (mut written, mut refused) = (Vec::new(), Vec::new());
        for (batch, outcome) in batches.into_iter().zip(outcomes) {
            match outcome {
                BatchOutcome::Stored { .. } => {
                    let first = *batch.seqs.start();
                    let QueuedBatch { engine_state, on_status, .. } = batch;
                    if self.durability == Durability::Relaxed {
                        written.push((Arc::clone(&on_status), BatchStatus::Written));
                    }
                    self.unsynced.push(UnsyncedBatch { engine_state, first, on_status });
                }
                BatchOutcome::Refused(error) => refused.push((batch, error)),
            }
        }
        self.reporter.report(written);
        if !self.unsynced.is_empty() {
            self.unsynced_since.get_or_insert_with(Instant::now);
        }
        if self.durability == Durability::Strict {
            self.sync();
        }
        for (batch, error) in refused {
            self.fail(vec![batch], &error);
        }
    }

    /// Reports that batches are not stored, after the status of all earlier batches.
    fn fail(&mut self, batches: Vec<QueuedBatch>, error: &JournalError) {
        self.sync();
        self.reporter.report(batches.into_iter().map(|batch| batch.failed(error)).collect());
    }

    /// Makes all written batches durable.
    ///
    /// With `synchronous=NORMAL`, SQLite appends a transaction to the write-ahead log without an
    /// fsync. After a crash it recovers the log's transactions up to the first wrong checksum. So a
    /// transaction is durable once the log up to its end is synced, and one fdatasync of the log
    /// serves all of them. A checkpoint syncs the log before and the database after it moves pages,
    /// and a restarted log syncs its header (`walCheckpoint` and `walWriteFrames` in sqlite3.c;
    /// <https://sqlite.org/wal.html>, section 2.3). The log stays the same file while a connection
    /// is open. SQLite holds no locks on it that closing this handle could release. The handle was
    /// opened before the writes, so it reports every error.
    fn sync(&mut self) {
        self.unsynced_since = None;
        if self.unsynced.is_empty() {
            return;
        }
        let began = Instant::now();
        if self.sync_log().is_ok() {
            self.observer.synced(began.elapsed());
            let durable = |batch: UnsyncedBatch| (batch.on_status, BatchStatus::Durable);
            let unsynced = std::mem::take(&mut self.unsynced);
            self.reporter.report(unsynced.into_iter().map(durable).collect());
        }
    }

    /// Syncs the log. If it fails, so do all batches that were not synced, and everything after them: the system
    /// dropped pages of the log that SQLite considers written, and reports this only once.
    fn sync_log(&mut self) -> Result<(), JournalError> {
        let Err(error) = self.log.sync_data() else { return Ok(()) };
        let unsynced = std::mem::take(&mut self.unsynced);
        let reason = format!("its log cannot be synced ({error}): look at the disk");
        let error = JournalError::Write(reason);
        let failed = |batch: UnsyncedBatch| -> StatusReport {
            batch.engine_state.fail(batch.first);
            (batch.on_status, BatchStatus::Failed(error.clone()))
        };
        self.reporter.report(unsynced.into_iter().map(failed).collect());
        self.set_failure(Some(error.clone()));
        self.broken = Some(error.clone());
        Err(error)
    }

    /// Performs a task. Returns true if it is to be repeated.
    fn perform(&mut self, task: WriterTask) -> Result<bool, JournalError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        match task {
            WriterTask::PutDocument(key, text) => {
                let written = self.store.put_document(&key, &text);
                written.map_err(|error| errors::write_error(&error))?;
                self.sync_log()?;
            }
            WriterTask::RemoveDocuments(prefix, stored_before) => {
                self.make_room(|store| store.remove_unused_documents(&prefix, stored_before))?;
            }
            WriterTask::Hide(sessions) => {
                let hidden = self.make_room(|store| store.hide(&sessions))?;
                self.sessions.fetch_sub(hidden, Ordering::AcqRel);
                self.sync_log()?;
            }
            WriterTask::RemoveHidden => {
                let more = self.make_room(WriteConnection::remove_hidden)?;
                self.checkpoint_from(LOG_PAGES_SHORT_OF_SPACE);
                return Ok(more);
            }
            WriterTask::EmptyLog => self.empty_log()?,
            WriterTask::Erase(pages) => self.erase(&pages)?,
        }
        Ok(false)
    }

    /// Erases copies of deleted rows in the file, which the empty log leaves to this thread alone.
    fn erase(&self, pages: &[u64]) -> Result<(), JournalError> {
        self.empty_log()?;
        let connection = &self.store.connection;
        let page_size = database::page_size(connection);
        // The cached pages would be written with the copies.
        let shrunk = connection.execute_batch("PRAGMA shrink_memory");
        let page_size = shrunk.and(page_size).map_err(|error| errors::write_error(&error))?;
        pages::erase_unused(&mut self.lock.database().lock(), page_size, pages)
            .map_err(|error| JournalError::Write(format!("erase deleted rows: {error}")))
    }

    /// Empties the write-ahead log, which still contains the deleted rows.
    fn empty_log(&self) -> Result<(), JournalError> {
        let busy: bool = self
            .store
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(|error| errors::write_error(&error))?;
        if busy {
            let reason = "sessions are deleted, but the write-ahead log still holds them, since another \
                       program reads the database: end that one and delete them again";
            return Err(JournalError::Write(reason.to_owned()));
        }
        self.log.sync_all().map_err(|error| JournalError::Write(error.to_string()))
    }

    /// Checkpoints the write-ahead log if it is long and the queue is empty, or if it is very long. If the
    /// disk has little space, the log stays short, because a checkpoint needs as much space in the
    /// database.
    fn checkpoint(&self) {
        self.checkpoint_from(if self.has_little_space() {
            LOG_PAGES_SHORT_OF_SPACE
        } else if self.queue.len() == 0 {
            LOG_PAGES_SOFT
        } else {
            LOG_PAGES_HARD
        });
    }

    fn has_little_space(&self) -> bool {
        let found = rustix::fs::fstatvfs(&self.log);
        found.is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < LITTLE_SPACE_BYTES)
    }

    /// Checkpoints the write-ahead log if it has at least `allowed` pages.
    fn checkpoint_from(&self, allowed: i64) {
        let connection = &self.store.connection;
        let pages = connection
            .prepare_cached("PRAGMA wal_checkpoint(NOOP)")
            .and_then(|mut pragma| pragma.query_row([], |row| row.get::<_, i64>(1)));
        if pages.is_ok_and(|pages| pages >= allowed) {
            // It is tried again after the next transaction. The records in the log are durable.
            let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }
}

/// Makes the entries of a file's directory durable.
fn sync_parent(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), data_directory::sync_directory)
}
