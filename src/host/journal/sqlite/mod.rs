//! The storage engine that keeps records in a SQLite database in the data directory.
//!
//! One thread writes. It stores the batches of a bounded queue in one transaction with one fsync,
//! so many sessions share the disk's throughput, and then reports the status of each batch. Reads
//! use connections of their own and do not wait for writes, only for the writer to reopen the database after a
//! failure. A lock file in the directory identifies the host that uses it.

mod backup;
mod copy_search;
mod data_directory;
mod database;
mod deletion;
mod errors;
mod kill_point;
mod pages;
mod query;
mod queue;
mod read_connections;
mod reader;
mod reserve;
mod rows;
mod writer;

use std::fmt;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use backup::restore;
pub use reader::JournalReader;

use super::group_commit::{NoObserver, Opening};
use super::{
    AppendStatus, Batch, IdleSessions, Journal, JournalEntry, JournalError, JournalFuture,
    JournalObserver, JournalStatus, SessionQuery, SessionSummary, state_after,
};
use crate::thread_pool::ThreadPool;
use callsheet_values::config::Durability;
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

use data_directory::OpenedDatabase;
use pages::PageLayout;
use query::QueryError;
use queue::{QueuedBatch, StatusReporter, WriteQueue, WriterTask};
use read_connections::ReadConnections;
use reserve::Reserve;
use writer::{JournalWriter, WriteConnection, WriterParts};

/// Maximum number of sessions that one transaction deletes.
const SESSIONS_PER_REMOVAL_MAX: usize = 64;

/// The pauses before the attempts to erase what a deletion has left: most reads are short.
const ERASE_PAUSES_MS: [u64; 6] = [0, 1, 2, 4, 8, 16];

/// The error of the last write, until a write succeeds.
type SharedFailure = Arc<Mutex<Option<JournalError>>>;

/// Stores records in a SQLite database. Deletions and [`close`](Journal::close) need a Tokio runtime with time.
///
/// ```no_run
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use callsheet::journal::{SqliteJournal, SqliteOptions};
/// use callsheet::prelude::*;
///
/// let journal = SqliteJournal::open(Path::new("./sessions"), SqliteOptions::default())?;
/// let host = Host::builder().journal(Arc::new(journal)).start().await?;
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct SqliteJournal {
    queue: Arc<WriteQueue>,
    readers: Arc<ReadConnections>,
    threads: ThreadPool,
    sessions: Arc<AtomicUsize>,
    /// The path of the database.
    path: PathBuf,
    opened: OpenedDatabase,
    failure: SharedFailure,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// The options of a [`SqliteJournal`].
///
/// ```
/// use std::sync::Arc;
/// use callsheet::config::Durability;
/// use callsheet::journal::{SqliteJournal, SqliteOptions};
/// use callsheet::prelude::*;
///
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// let options = SqliteOptions::default().with(|options| options.durability = Durability::Relaxed);
/// let journal = SqliteJournal::open("./sessions".as_ref(), options)?;
/// let host = Host::builder().journal(Arc::new(journal)).start().await?;
/// # host.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The durability at which a batch is reported as stored.
    pub durability: Durability,
    /// The text in the lock file, after the id of this process: `listening on 127.0.0.1:7700`.
    pub holder: String,
    /// Receives every transaction and every fsync of batches, on the writer thread.
    pub observer: Arc<dyn JournalObserver>,
    /// Maximum number of queued batches. Further batches fail.
    pub queue_max: usize,
    /// Size of a file that reserves space, so that sessions can be deleted when the disk is full. 0: none.
    pub reserve_bytes: u64,
    /// The time for which writes wait while another program has locked the database.
    pub busy_timeout: Duration,
    /// True if a database is used although its write-ahead log, with the newest records, is missing.
    pub accept_loss: bool,
}

impl Default for SqliteOptions {
    /// Returns strict durability, at most 10,000 queued batches, no reserve, waits of a minute, no loss, and no observer.
    fn default() -> Self {
        Self {
            durability: Durability::Strict,
            holder: String::new(),
            observer: Arc::new(NoObserver),
            queue_max: 10_000,
            reserve_bytes: 0,
            busy_timeout: Duration::from_secs(60),
            accept_loss: false,
        }
    }
}

/// The faults of a disk, for tests.
#[derive(Default)]
struct DiskFaults {
    /// The disk is full when the database has this number of pages.
    pages_max: Option<u32>,
    /// The file that is opened and synced instead of the write-ahead log.
    synced_file: Option<PathBuf>,
}

impl SqliteJournal {
    /// Opens the journal in a data directory, creating it if necessary. The directory stays locked
    /// until the engine is closed or dropped.
    ///
    /// # Errors
    /// If another host has locked it, or it cannot be used.
    pub fn open(dir: &Path, options: SqliteOptions) -> Result<Self, JournalError> {
        Self::open_with_faults(dir, options, DiskFaults::default())
    }

    fn open_with_faults(
        dir: &Path,
        options: SqliteOptions,
        faults: DiskFaults,
    ) -> Result<Self, JournalError> {
        let SqliteOptions {
            durability,
            holder,
            observer,
            queue_max,
            reserve_bytes,
            busy_timeout,
            accept_loss,
        } = options;
        data_directory::create_if_missing(dir)?;
        let lock = data_directory::DirectoryLock::acquire(dir, &holder)?;
        let opened = lock.opened().clone();
        let path = data_directory::database_path(dir);
        let open_error = |error: &rusqlite::Error| errors::open_error(&path, error);
        let reserve = Reserve::new(dir, reserve_bytes);
        let has_log = database::log_bytes(&path) > 0;
        if database::lacks_log(&path) {
            if !accept_loss {
                let reason = errors::LOG_MISSING.to_owned();
                return Err(JournalError::Open { path: path.clone(), reason });
            }
            tracing::warn!("journal_log_missing: the newest records may be lost");
        }
        let mut connection = match database::open(&path) {
            // The log needs some space.
            Err(error @ JournalError::Open { .. }) if data_directory::is_full(dir) => {
                let reason = format!("the disk is full: free some space ({error})");
                let full = JournalError::Open { path: path.clone(), reason };
                reserve.release().ok().and_then(|_| database::open(&path).ok()).ok_or(full)?
            }
            opened => opened?,
        };
        // Until the end of the writer, which removes the note.
        database::set_log_kept(&connection, true).map_err(|error| open_error(&error))?;
        let is_noted = database::needs_log(&connection).map_err(|error| open_error(&error))?;
        if !is_noted && let Err(error) = database::note_log(&mut connection) {
            if errors::is_failed_sync(&error) {
                return Err(open_error(&error));
            }
            // A host with a full disk starts too.
            tracing::warn!(%error, "journal_log_not_noted");
        }
        if let Some(pages) = faults.pages_max {
            connection
                .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
                .map_err(|error| open_error(&error))?;
        }
        let stored = query::count(&connection).map_err(|error| error.open_error(&path))?;
        let sessions = Arc::new(AtomicUsize::new(stored));
        let queue = Arc::new(WriteQueue::new(queue_max));
        let layout = PageLayout::read(&connection).map_err(|error| open_error(&error))?;
        let are_erased = database::are_copies_erased(&connection);
        let are_erased = are_erased.map_err(|error| open_error(&error))?;
        let database = WriteConnection::new(connection).map_err(|error| open_error(&error))?;
        let failure = Arc::new(Mutex::new(None));
        let readers = Arc::new(ReadConnections::new(path.clone()));
        if !are_erased {
            copy_search::start(Arc::downgrade(lock.database()), layout, Arc::downgrade(&queue));
        }
        let parts = WriterParts {
            database,
            layout,
            has_log,
            readers: Arc::clone(&readers),
            queue: Arc::clone(&queue),
            observer,
            sessions: Arc::clone(&sessions),
            durability,
            busy_timeout,
            reserve,
            failure: Arc::clone(&failure),
            reporter: StatusReporter::start(),
            lock,
        };
        let io_error = |error: std::io::Error| JournalError::Open {
            path: path.clone(),
            reason: error.to_string(),
        };
        let wal = faults.synced_file.unwrap_or_else(|| data_directory::wal_path(&path));
        let writer = JournalWriter::new(parts, path.clone(), wal).map_err(io_error)?;
        let thread = std::thread::Builder::new()
            .name("callsheet-journal".to_owned())
            .spawn(move || writer.run())
            .map_err(io_error)?;
        let writer = Mutex::new(Some(thread));
        let threads = ThreadPool::default();
        Ok(Self { queue, readers, threads, sessions, path, opened, failure, writer })
    }

    /// Performs a task on the writer thread. Returns true if the task is to be repeated.
    async fn run_on_writer(&self, task: WriterTask) -> Result<bool, JournalError> {
        let (done, answer) = oneshot::channel();
        self.queue.push_task(task, done)?;
        answer.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Runs a query on one of the threads that read.
    fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, QueryError> + Send + 'static,
    ) -> JournalFuture<'_, T> {
        let readers = Arc::clone(&self.readers);
        Box::pin(async move {
            let read = self.threads.run(move || readers.run(query)).await;
            // The read has panicked.
            read.unwrap_or(Err(JournalError::Closed))
        })
    }

    /// Lets the writer store the queued batches, close the database and unlock the directory. Later batches
    /// fail. Returns its thread, at the first call.
    fn begin_end(&self) -> Option<JoinHandle<()>> {
        // The writer's connection must close last: closing it empties the write-ahead log.
        self.readers.close();
        self.queue.close();
        self.writer.lock().take()
    }
}

impl Journal for SqliteJournal {
    fn append(&self, batch: Batch) -> AppendStatus {
        let Some(batch) = queued_batch(batch) else { return AppendStatus::Durable };
        self.queue.push(batch);
        AppendStatus::Queued
    }

    fn flush(&self, session: &SessionId) {
        self.queue.flush(session);
    }

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        let session = session.clone();
        self.query(move |connection| query::read(connection, &session, after, limit))
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        let session = session.clone();
        self.query(move |connection| query::find(connection, &session))
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        let listing = listing.clone();
        self.query(move |connection| query::list(connection, &listing))
    }

    fn find_idle<'a>(
        &'a self,
        touched_before: u64,
        after: Option<&'a SessionId>,
    ) -> JournalFuture<'a, IdleSessions> {
        let after = after.cloned();
        self.query(move |connection| query::find_idle(connection, touched_before, after.as_ref()))
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        Box::pin(ready(Ok(self.sessions.load(Ordering::Acquire))))
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        Box::pin(async move {
            for group in sessions.chunks(SESSIONS_PER_REMOVAL_MAX) {
                self.run_on_writer(WriterTask::Hide(group.to_vec())).await?;
            }
            // The batches of other sessions are stored between the parts.
            while self.run_on_writer(WriterTask::RemoveHidden).await? {}
            for pause in ERASE_PAUSES_MS {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                if !self.run_on_writer(WriterTask::Erase).await? {
                    return Ok(());
                }
            }
            Err(JournalError::NotErased)
        })
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        let task = WriterTask::PutDocument(key.to_owned(), text.to_owned(), used_by.cloned());
        Box::pin(async move { self.run_on_writer(task).await.map(drop) })
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        let key = key.to_owned();
        self.query(move |connection| query::document(connection, &key))
    }

    fn remove_unused_documents<'a>(
        &'a self,
        prefix: &'a str,
        stored_before: u64,
    ) -> JournalFuture<'a, ()> {
        let task = WriterTask::RemoveDocuments(prefix.to_owned(), stored_before);
        Box::pin(async move { self.run_on_writer(task).await.map(drop) })
    }

    fn status(&self) -> JournalStatus {
        JournalStatus {
            queued: self.queue.len(),
            bytes: database::bytes(&self.path),
            log_bytes: Some(database::log_bytes(&self.path)),
            disk_free_bytes: self.path.parent().and_then(data_directory::free_bytes),
            ..JournalStatus::default()
        }
    }

    fn failure(&self) -> Option<JournalError> {
        let failure = self.failure.lock().clone();
        // The writer notices a removed database only when it writes.
        failure.or_else(|| self.opened.check().err())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(writer) = self.begin_end() {
                // The panic hook has printed the message of a writer that panicked.
                let _ = tokio::task::spawn_blocking(move || writer.join()).await;
            }
        })
    }
}

impl Drop for SqliteJournal {
    /// Blocks until the queued batches are stored.
    fn drop(&mut self) {
        let Some(writer) = self.begin_end() else { return };
        // A batch's callback may drop the engine on the writer thread.
        if writer.thread().id() != std::thread::current().id() {
            // The panic hook has printed the message.
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for SqliteJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteJournal").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Converts a batch to its stored form, on the calling thread instead of the shared writer thread. Returns `None` if
/// it has no entries.
fn queued_batch(batch: Batch) -> Option<QueuedBatch> {
    let Batch { session, entries, engine_state, urgent, on_status } = batch;
    let opening = Opening::of(&entries);
    let shared = opening.as_ref().map_or(0, Opening::shared_records);
    Some(QueuedBatch {
        state: state_after(entries.iter().map(Arc::as_ref)),
        seqs: entries.first()?.seq.0..=entries.last()?.seq.0,
        rows: rows::encode(entries.get(shared..)?),
        // A fork uses the documents of the records that it shares.
        documents: entries.iter().filter_map(|entry| entry.document_key()).collect(),
        on_status: Arc::new(Mutex::new(on_status)),
        session,
        opening,
        urgent,
        queued_at: Instant::now(),
        engine_state,
    })
}

callsheet_values::impl_with!(SqliteOptions);

#[cfg(test)]
mod tests;
