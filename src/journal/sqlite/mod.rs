//! The engine that keeps records in a SQLite database in the data directory.
//!
//! One thread writes. It takes what waits in a bounded queue and stores it in one transaction with
//! one fsync, so that many sessions share what a disk can do; then it tells each batch. Reading has
//! connections of its own and waits for no writing. A lock on a file in the directory says which
//! host has it, for as long as the engine lives.

mod data_directory;
mod database;
mod errors;
mod kill_point;
mod pages;
mod query;
mod queue;
mod read_connections;
mod reader;
mod write_connection;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use parking_lot::Mutex;

pub use reader::JournalReader;

use super::{
    AppendStatus, Batch, Journal, JournalEntry, JournalError, JournalObserver, JournalStatus,
    StoredSession, StoredSessionFilter, state_behind,
};
use crate::config::Durability;
use crate::record::{Record, Seq};
use crate::types::SessionId;

use queue::{QueuedBatch, StoredRow, WriteQueue, WriterTask};
use read_connections::ReadConnections;
use write_connection::WriteConnection;
use writer::{JournalWriter, WriterParts};

/// How many sessions one transaction deletes at most.
const REMOVED_AT_ONCE: usize = 64;

/// Keeps records in a SQLite database.
pub struct SqliteJournal {
    queue: Arc<WriteQueue>,
    readers: ReadConnections,
    sessions: Arc<AtomicUsize>,
    file: PathBuf,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// How a [`SqliteJournal`] works.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// When a batch is told of as stored.
    pub durability: Durability,
    /// What to tell another host that wants the directory, behind the number of this process:
    /// `listening on 127.0.0.1:7700`.
    pub holder: String,
    /// Told of every transaction, on the thread that writes.
    pub observer: Arc<dyn JournalObserver>,
    /// How many batches may wait to be written. More fail.
    pub queue_max: usize,
}

impl SqliteJournal {
    /// Opens the journal in a data directory, which is made where it is not there, and holds the
    /// directory until the engine is dropped or closed.
    ///
    /// # Errors
    /// When somebody else holds it, or it cannot be used.
    pub fn open(dir: &Path, options: SqliteOptions) -> Result<Self, JournalError> {
        Self::open_limited(dir, options, None)
    }

    /// With a limit of pages a test can fill the disk.
    fn open_limited(
        dir: &Path,
        options: SqliteOptions,
        pages_max: Option<u32>,
    ) -> Result<Self, JournalError> {
        let SqliteOptions { durability, holder, observer, queue_max } = options;
        data_directory::create(dir)?;
        let held = data_directory::DirectoryLock::take(dir, &holder)?;
        let file = data_directory::database(dir);
        let failed = |error: &rusqlite::Error| errors::of_opening(&file, error);
        let connection = database::open(&file)?;
        if let Some(pages) = pages_max {
            connection
                .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
                .map_err(|error| failed(&error))?;
        }
        let stored = query::count(&connection).map_err(|trouble| trouble.of_opening(&file))?;
        let sessions = Arc::new(AtomicUsize::new(stored));
        let queue = Arc::new(WriteQueue::new(queue_max));
        let store = WriteConnection::new(connection).map_err(|error| failed(&error))?;
        let parts = WriterParts {
            store,
            queue: Arc::clone(&queue),
            observer,
            sessions: Arc::clone(&sessions),
            durability,
            held,
        };
        let of_system = |error: std::io::Error| JournalError::Open {
            path: file.clone(),
            why: error.to_string(),
        };
        let writer =
            JournalWriter::new(parts, dir, &data_directory::log_of(&file)).map_err(of_system)?;
        let thread = std::thread::Builder::new()
            .name("callsheet-journal".to_owned())
            .spawn(move || writer.run())
            .map_err(of_system)?;
        let readers = ReadConnections::new(file.clone());
        Ok(Self { queue, readers, sessions, file, writer: Mutex::new(Some(thread)) })
    }

    /// Stores what waits, closes the database and lets go of the directory. What is appended
    /// later fails. Waits for the disk, as dropping the engine does.
    fn end(&self) {
        // The writer's connection is to be the last one: it empties the write-ahead log.
        self.readers.close();
        self.queue.close();
        let Some(thread) = self.writer.lock().take() else { return };
        // Whoever is told of a batch may drop the engine then and there.
        if thread.thread().id() != std::thread::current().id() {
            // A panic has been printed by its hook.
            let _ = thread.join();
        }
    }
}

impl SqliteJournal {
    fn ask_writer(&self, task: WriterTask) -> Result<(), JournalError> {
        let (done, answer) = sync_channel(1);
        self.queue.push_task(task, done)?;
        answer.recv().unwrap_or(Err(JournalError::Closed))
    }

    /// Whether copies of deleted rows are left; looks through the file, here and not on the
    /// writer's thread.
    fn has_copies(&self, removed: &[SessionId]) -> Result<bool, JournalError> {
        let page_size = self.readers.ask(|connection| Ok(database::page_size(connection)?))?;
        let ids: Vec<&str> = removed.iter().map(SessionId::as_str).collect();
        pages::hold_copies(&self.file, page_size, &ids)
            .map_err(|error| JournalError::Read(format!("{error} ({})", self.file.display())))
    }
}

impl Journal for SqliteJournal {
    fn append(&self, batch: Batch) -> AppendStatus {
        let Some(job) = job(batch) else { return AppendStatus::Durable };
        let first = job.rows.first().map_or(0, |row| row.seq);
        if job.log_state.has_failed(first) {
            let why = format!("a record of session {} before {first} was not stored", job.session);
            job.fail(&JournalError::Write(why));
        } else {
            self.queue.push(job);
        }
        AppendStatus::Queued
    }

    fn flush(&self) {
        self.queue.flush();
    }

    fn read_some(
        &self,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<JournalEntry>, JournalError> {
        self.readers.ask(|connection| query::read(connection, session, after, limit))
    }

    fn find(&self, session: &SessionId) -> Result<Option<StoredSession>, JournalError> {
        self.readers.ask(|connection| query::find(connection, session))
    }

    fn list(&self, listing: &StoredSessionFilter) -> Result<Vec<StoredSession>, JournalError> {
        self.readers.ask(|connection| query::list(connection, listing))
    }

    fn count(&self) -> Result<usize, JournalError> {
        Ok(self.sessions.load(Ordering::Acquire))
    }

    fn remove(&self, sessions: &[SessionId]) -> Result<(), JournalError> {
        for group in sessions.chunks(REMOVED_AT_ONCE) {
            self.ask_writer(WriterTask::Remove(group.to_vec()))?;
        }
        // The log still holds what is deleted in the database.
        self.ask_writer(WriterTask::EmptyLog)?;
        if !sessions.is_empty() && self.has_copies(sessions)? {
            self.ask_writer(WriterTask::Vacuum)?;
        }
        Ok(())
    }

    fn status(&self) -> JournalStatus {
        JournalStatus { queued: self.queue.len(), bytes: database::bytes(&self.file) }
    }

    fn close(&self) {
        self.end();
    }
}

impl Drop for SqliteJournal {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for SqliteJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteJournal").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A batch in its stored form: made here, on the thread of whoever appends, and not on the one
/// that all share.
fn job(batch: Batch) -> Option<QueuedBatch> {
    let Batch { session, entries, log_state, urgent, on_status } = batch;
    let first = entries.first()?;
    let opens = if let Record::SessionOpened { agent, .. } = &first.record {
        Some(agent.clone())
    } else {
        None
    };
    let state = state_behind(&entries);
    let row = |entry: &Arc<JournalEntry>| StoredRow {
        seq: entry.seq.0,
        time: entry.time,
        body: entry.body(),
    };
    let rows: Vec<StoredRow> = entries.iter().map(row).collect();
    let bytes = rows.iter().map(|row| row.body.len()).sum();
    Some(QueuedBatch { session, opens, state, rows, bytes, urgent, log_state, on_status })
}

#[cfg(test)]
mod tests;
