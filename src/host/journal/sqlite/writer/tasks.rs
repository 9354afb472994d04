//! The work of the writer besides storing batches: its tasks, checkpoints of the write-ahead log, and attempts
//! to write after a failure.
//!
//! A checkpoint is made from 2,000 pages of the log on that are not moved yet if the queue is empty, from 8,000 on in any
//! case, and from 500 on while the disk has less than 64 MiB free or sessions are deleted. It never waits for other
//! connections. More than 16,000 pages are moved beside the writer (`catch_up`). After a failure the writer tries again
//! every second (`RETRY_PERIOD`).

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use tokio::time::Instant;

use super::super::deletion;
use super::super::queue::WriterTask;
use super::super::{database, errors, query};
use super::{JournalWriter, RETRY_PERIOD, WriteConnection, immediate, sync_parent};
use crate::journal::JournalError;
use callsheet_values::types::SessionId;

/// Number of pages of the write-ahead log from which the writer checkpoints it: with an empty
/// queue, and always.
const WAL_PAGES_SOFT: u64 = 2_000;
const WAL_PAGES_HARD: u64 = 8_000;

/// Number of pages of the log from which they are moved beside the writer, which would stand still for long.
const WAL_PAGES_BESIDE: u64 = 16_000;

/// Number of pages of the log from which it is checkpointed while the disk has little space or sessions are
/// deleted: the database can then take them in the space of the reserve.
const WAL_PAGES_SHORT_OF_SPACE: u64 = 500;

/// Free bytes of the disk below which it has little space: twice the longest log.
const LITTLE_SPACE_BYTES: u64 = 64 << 20;

impl JournalWriter {
    /// Performs a task. Returns true if it is to be repeated.
    pub(super) fn perform(&mut self, task: WriterTask) -> Result<bool, JournalError> {
        self.check_usable()?;
        match task {
            WriterTask::PutDocument(key, text, used_by) => {
                self.check_writable()?;
                let written = self.write_unlocked(|database| {
                    database::put_document(&mut database.connection, &key, &text, used_by.as_ref())
                });
                written.map_err(|error| errors::write_error(&error))?;
                self.erasure.note_copies();
                self.sync_wal()?;
            }
            WriterTask::RemoveDocuments(prefix, stored_before) => {
                self.erasure.note_copies();
                self.write_with_reserve(|database| {
                    database.remove_unused_documents(&prefix, stored_before)
                })?;
            }
            WriterTask::Hide(sessions) => {
                let hidden = self.write_with_reserve(|database| database.hide(&sessions))?;
                if hidden > 0 {
                    self.erasure.note_hidden();
                }
                self.sessions.fetch_sub(hidden, Ordering::AcqRel);
                self.sync_wal()?;
            }
            WriterTask::RemoveHidden => {
                let more = self.delete_part();
                match &more {
                    Ok(true) => {}
                    Ok(false) => self.erasure.note_deleted(),
                    Err(_) => self.erasure.go_on_later(),
                }
                return more;
            }
            WriterTask::Erase => return self.erase(),
            WriterTask::EraseCopies(pages) => return self.erase_copies_on(pages),
            WriterTask::NoteCopiesErased => {
                let noted = database::note_copies_erased(&self.database.connection);
                noted.map_err(|error| errors::write_error(&error))?;
            }
        }
        Ok(false)
    }

    /// Deletes a part of the hidden sessions. Returns false if there is nothing left to delete.
    pub(super) fn delete_part(&mut self) -> Result<bool, JournalError> {
        let more = self.write_with_reserve(WriteConnection::remove_hidden)?;
        if more {
            self.erasure.note_deletion();
            self.vacuum.begin();
            self.checkpoint_from(WAL_PAGES_SHORT_OF_SPACE);
        }
        Ok(more)
    }

    /// Performs a write that makes room. On a full disk it uses the reserve.
    pub(super) fn write_with_reserve<T>(
        &mut self,
        write: impl Fn(&mut WriteConnection) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let mut written = self.write_unlocked(&write);
        if written.as_ref().is_err_and(errors::may_lack_space) && self.release_reserve() {
            // It fails if the log is in use, and the write is tried anyway.
            let _ = self.empty_wal();
            written = write(&mut self.database);
        }
        self.check_synced(written.as_ref().err());
        written.map_err(|error| errors::write_error(&error))
    }

    /// Releases the reserve for deletions. Returns false if that fails.
    fn release_reserve(&mut self) -> bool {
        let Ok(was_there) = self.reserve.release() else { return false };
        if was_there {
            self.only_deletions = true;
            self.set_failure(Some(errors::only_deletions()));
        }
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY_PERIOD);
        true
    }

    /// Stops all work if SQLite could not sync a file, as in a checkpoint. The system may have dropped pages of the
    /// database, also those of earlier checkpoints that a reader has cut short: these moved pages without a sync, and
    /// the next checkpoint does not move them again. It also syncs the log, which may have lost what was not synced.
    pub(super) fn check_synced(&mut self, error: Option<&rusqlite::Error>) {
        if let Some(error) = error.filter(|error| errors::is_failed_sync(error)) {
            let reason = format!("the database cannot be synced ({error}): look at the disk");
            self.break_off(JournalError::Write(reason));
        }
    }

    /// Checkpoints the write-ahead log if it is long and the queue is empty, or if it is very long. If the
    /// disk has little space, the log stays short, because a checkpoint needs as much space in the
    /// database.
    pub(super) fn checkpoint(&mut self) {
        self.checkpoint_from(if self.has_little_space() {
            WAL_PAGES_SHORT_OF_SPACE
        } else if self.queue.len() == 0 {
            WAL_PAGES_SOFT
        } else {
            WAL_PAGES_HARD
        });
    }

    fn has_little_space(&self) -> bool {
        let found = rustix::fs::fstatvfs(&self.wal);
        found.is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) < LITTLE_SPACE_BYTES)
    }

    /// Checkpoints the write-ahead log if at least `allowed` of its pages are not moved yet.
    fn checkpoint_from(&mut self, allowed: u64) {
        if self.broken.is_some() {
            return;
        }
        let Ok((pages, moved)) = self.database.wal_pages() else { return };
        let left = pages - moved;
        if self.is_moved_beside(left) || left < allowed {
            return;
        }
        // If it lacks space, it is tried again after the next work. The records stay in the log until then.
        let moved = self.database.checkpoint();
        self.check_synced(moved.as_ref().err());
        let Ok((pages, moved)) = moved else { return };
        self.log_growth(pages - moved);
        if moved < pages {
            return;
        }
        self.lock.opened().end_shrinking();
        let erased = if pages > WAL_PAGES_BESIDE {
            // Gives the space back. While another connection reads the log, SQLite does so later.
            self.empty_moved_log().map(drop)
        } else {
            self.erase_copies(false)
        };
        if let Err(error) = erased {
            tracing::warn!(%error, "copies_not_erased");
        }
    }

    /// Logs that the log grows because it is read, and that it does not any more. `left` is the number of its pages that
    /// could not be moved to the database.
    fn log_growth(&mut self, left: u64) {
        if left < WAL_PAGES_HARD {
            if self.logged_pages > 0 {
                tracing::info!("journal_log_moved: the write-ahead log can be emptied again");
            }
            self.logged_pages = 0;
        } else if left >= 2 * self.logged_pages {
            self.logged_pages = left;
            let bytes = left * self.layout.page_size as u64;
            let reader = match self.readers.longest_read() {
                Some(time) => format!("a read of this host, which began {time:.0?} ago"),
                None => "another program, such as a backup".to_owned(),
            };
            tracing::warn!(
                bytes,
                "journal_log_grows: {reader} reads the database, so that the write-ahead log cannot be emptied"
            );
        }
    }

    /// Returns true if the write-ahead log is moved to the database beside the writer, because so many of its pages are
    /// `left`.
    pub(super) fn is_moved_beside(&mut self, left: u64) -> bool {
        if let Some(moved) = self.catch_up.finished() {
            self.check_synced(moved.as_ref().err());
            self.log_growth(left);
        }
        if left > WAL_PAGES_BESIDE {
            self.catch_up.start(&self.file);
            return true;
        }
        self.catch_up.is_running()
    }

    /// Tries to write after a failure, and to fill the reserve.
    pub(super) fn retry(&mut self) {
        if self.broken.is_some() {
            match self.reopen() {
                Ok(()) => self.broken = None,
                Err(error) => {
                    self.set_failure(Some(error.clone()));
                    self.broken = Some(error);
                }
            }
        }
        let is_usable = self.broken.is_none();
        let is_whole = is_usable && (!self.reserve.needs_fill() || self.reserve.fill().is_ok());
        self.only_deletions &= !is_whole;
        let has_failed = self.failure.lock().is_some();
        if is_usable && has_failed {
            let failure = if self.only_deletions {
                Some(errors::only_deletions())
            } else {
                self.write_unlocked(|database| database.probe())
                    .err()
                    .map(|error| errors::write_error(&error))
            };
            self.set_failure(failure);
        }
        let is_done = is_whole && self.failure.lock().is_none();
        self.retry_at = (!is_done).then(|| Instant::now() + RETRY_PERIOD);
    }

    /// Opens the database again after a failed fsync.
    ///
    /// The system may have dropped what it could not write, and reports the error only once. So neither the log nor
    /// what an earlier checkpoint has moved can be relied upon (<https://wiki.postgresql.org/wiki/Fsync_Errors>).
    /// [`database::move_whole_log`] reads the log up to the first wrong checksum. These are at least all records
    /// that were reported as durable. It writes all their pages to the database, syncs it and empties the log. It
    /// fails while another program has the database open.
    ///
    /// A database that was removed or replaced is opened again when it is back.
    fn reopen(&mut self) -> Result<(), JournalError> {
        self.lock.opened().check()?;
        self.catch_up.wait();
        let readers = Arc::clone(&self.readers);
        readers.while_suspended(|| {
            let write_error = |error: rusqlite::Error| errors::write_error(&error);
            self.database.close().map_err(write_error)?;
            let pages = self.pages_with_copies();
            let mut moved = database::move_whole_log(&self.file);
            if moved.as_ref().is_err_and(errors::may_lack_space) && self.release_reserve() {
                moved = database::move_whole_log(&self.file);
            }
            moved.map_err(|error| errors::open_error(&self.file, &error))?;
            self.erase_moved_copies(pages)
                .map_err(|error| JournalError::Write(error.to_string()))?;
            let connection = database::open(&self.file)?;
            let stored = query::count(&connection).map_err(|error| error.open_error(&self.file))?;
            database::set_log_kept(&connection, true).map_err(write_error)?;
            self.database.connection = connection;
            let io_error = |error: std::io::Error| JournalError::Write(error.to_string());
            self.wal = File::open(&self.wal_path).map_err(io_error)?;
            self.wal.sync_all().map_err(|error| errors::log_not_synced(&error))?;
            sync_parent(&self.file).map_err(io_error)?;
            self.sessions.store(stored, Ordering::Release);
            Ok(())
        })
    }
}

impl WriteConnection {
    /// Deletes the documents that no session uses, among those with this beginning of the key that were stored
    /// before a time.
    fn remove_unused_documents(
        &mut self,
        prefix: &str,
        stored_before: u64,
    ) -> rusqlite::Result<()> {
        let transaction = immediate(&mut self.connection)?;
        if !database::has_document_tables(&transaction)? {
            return Ok(());
        }
        let delete = "DELETE FROM documents
                      WHERE substr(key, 1, length(?1)) = ?1 AND stored < ?2
                      AND NOT EXISTS (SELECT 1 FROM document_uses u WHERE u.key = documents.key)";
        // A time that SQLite cannot express is after all others.
        let stored_before = i64::try_from(stored_before).unwrap_or(i64::MAX);
        transaction.execute(delete, (prefix, stored_before))?;
        transaction.commit()
    }

    /// Hides sessions, so that they do not exist any more. Returns how many existed.
    fn hide(&mut self, sessions: &[SessionId]) -> rusqlite::Result<usize> {
        let transaction = immediate(&mut self.connection)?;
        let hidden = deletion::hide(&transaction, sessions)?;
        transaction.commit()?;
        let removed = hidden.len();
        self.state.hidden.extend(hidden);
        self.state.epoch += 1;
        Ok(removed)
    }

    /// Deletes a part of the hidden sessions. Returns false if there is nothing left to delete.
    fn remove_hidden(&mut self) -> rusqlite::Result<bool> {
        let transaction = immediate(&mut self.connection)?;
        let part = deletion::delete_part(&transaction)?;
        transaction.commit()?;
        for number in &part.sessions {
            // Without its row, records of the session are refused anyway.
            self.state.hidden.remove(number);
        }
        Ok(!part.is_empty())
    }

    /// Closes the database.
    fn close(&mut self) -> rusqlite::Result<()> {
        self.state.epoch += 1;
        let placeholder = Connection::open_in_memory()?;
        std::mem::replace(&mut self.connection, placeholder).close().map_err(|(_, error)| error)
    }

    /// Writes one page, to try whether the database can be written.
    fn probe(&mut self) -> rusqlite::Result<()> {
        let version: i32 =
            self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        self.connection.pragma_update(None, "user_version", version)
    }
}
