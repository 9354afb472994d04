//! Erases what deleted sessions have left besides their rows: in the write-ahead log, and copies of rows in unused
//! bytes of pages.
//!
//! Only transactions that insert or delete within a table or an index leave copies: those that open or delete sessions,
//! and those of documents. The pages that they wrote are in the log. So the copies on these pages are erased when a
//! checkpoint has moved the whole log to the database, before SQLite begins the log anew. Other pages have none. What a
//! deletion costs depends on the session and on the log, not on the size of the database.
//!
//! A deletion is complete when the log is empty too. That needs a moment in which no other connection reads the log.
//! The writer tries again and again, and never waits for it.

use std::time::Duration;

use tokio::time::Instant;

use super::super::{database, errors, pages};
use super::{JournalWriter, RETRY_PERIOD, WriteConnection};
use crate::journal::JournalError;

/// Interval of the attempts to erase, if no caller makes them.
const ERASE_PERIOD: Duration = Duration::from_millis(250);

/// The remains of deleted sessions that are still to be erased, and when.
#[derive(Debug, Default)]
pub(super) struct Erasure {
    /// True if pages in the log may have copies of rows.
    has_copies: bool,
    /// The log, and the number of its frames whose pages have no copies in the database any more.
    cleaned: (pages::LogSalts, u64),
    /// True if the log may contain rows of deleted sessions.
    has_deleted: bool,
    /// The time of the next attempt to erase.
    erase_at: Option<Instant>,
    /// The time at which the deletion of hidden sessions goes on, if no caller waits for it.
    delete_at: Option<Instant>,
}

impl Erasure {
    /// Returns the state at the start of a writer. The last host may have ended while sessions were being deleted: then
    /// sessions are hidden, or the log has their rows.
    pub(super) fn after_start(has_log: bool) -> Self {
        let now = Instant::now();
        Self {
            // The note about the log may have left some.
            has_copies: true,
            has_deleted: has_log,
            erase_at: has_log.then_some(now),
            delete_at: Some(now),
            ..Self::default()
        }
    }

    /// Notes a transaction that may have left copies.
    pub(super) fn note_copies(&mut self) {
        self.has_copies = true;
    }

    /// Notes a transaction that hides or deletes sessions.
    pub(super) fn note_deletion(&mut self) {
        self.has_copies = true;
        self.has_deleted = true;
    }

    /// Notes that sessions are hidden. If their caller goes away, their deletion goes on by itself.
    pub(super) fn note_hidden(&mut self) {
        self.note_deletion();
        self.go_on_later();
    }

    /// Lets the deletion of hidden sessions go on by itself, because it has failed or its caller may go away.
    pub(super) fn go_on_later(&mut self) {
        self.delete_at = Some(Instant::now() + RETRY_PERIOD);
    }

    /// Notes that no hidden sessions are left. If no caller erases what the log has of them, the writer does.
    pub(super) fn note_deleted(&mut self) {
        self.delete_at = None;
        self.erase_at = Some(Instant::now() + RETRY_PERIOD);
    }

    /// Returns the time of the next work.
    pub(super) fn due(&self) -> Option<Instant> {
        self.delete_at.or(self.erase_at)
    }
}

impl JournalWriter {
    /// Does what is due of deletions whose callers do not wait: of the last host, after a failure, or because another
    /// connection reads the log.
    pub(super) fn continue_deletions(&mut self) {
        let now = Instant::now();
        if self.broken.is_some() || self.erasure.due().is_none_or(|at| at > now) {
            return;
        }
        if self.erasure.delete_at.is_some() {
            match self.delete_part() {
                Ok(true) => {}
                Ok(false) => self.erasure.note_deleted(),
                Err(error) => {
                    tracing::error!(%error, "deletion_unfinished: it is tried again");
                    self.erasure.go_on_later();
                }
            }
        } else if let Err(error) = self.erase() {
            tracing::error!(%error, "deletion_unfinished: it is tried again");
            self.erasure.erase_at = Some(Instant::now() + RETRY_PERIOD);
        }
    }

    /// Erases what the deleted sessions have left. Returns true if another connection reads the log: then the writer
    /// tries again by itself, too.
    pub(super) fn erase(&mut self) -> Result<bool, JournalError> {
        self.erasure.erase_at = None;
        if !self.erasure.has_deleted {
            return Ok(false);
        }
        let left = self.database.wal_pages().map(|(pages, moved)| pages - moved);
        let is_busy = self.is_moved_beside(left.map_err(|error| errors::write_error(&error))?)
            || self.write_with_reserve(|database| database.checkpoint().map(is_cut_short))?
            || self.empty_moved_log()?;
        if is_busy {
            self.erasure.erase_at = Some(Instant::now() + ERASE_PERIOD);
            return Ok(true);
        }
        self.wal.sync_all().map_err(|error| JournalError::Write(error.to_string()))?;
        self.erasure.has_deleted = false;
        self.erasure.has_copies = false;
        Ok(false)
    }

    /// Moves the write-ahead log to the database, and empties it. Returns true if another connection reads it: then it
    /// is not empty.
    pub(super) fn empty_wal(&mut self) -> Result<bool, JournalError> {
        let moved = self.database.checkpoint();
        self.check_synced(moved.as_ref().err());
        let moved = moved.map_err(|error| errors::write_error(&error))?;
        Ok(is_cut_short(moved) || self.empty_moved_log()?)
    }

    /// Empties a log that a checkpoint has moved whole. Returns true if another connection reads it.
    pub(super) fn empty_moved_log(&mut self) -> Result<bool, JournalError> {
        self.lock.opened().end_shrinking();
        // The cached pages would be written with their copies.
        let shrunk = self.database.connection.execute_batch("PRAGMA shrink_memory");
        shrunk.map_err(|error| errors::write_error(&error))?;
        self.erase_copies(true)?;
        let busy = self.database.truncate_wal();
        self.check_synced(busy.as_ref().err());
        busy.map_err(|error| errors::write_error(&error))
    }

    /// Erases the copies on the pages of a log that a checkpoint has moved whole. With `sync`, they are durably erased
    /// afterwards, also those of earlier logs.
    pub(super) fn erase_copies(&mut self, sync: bool) -> Result<(), JournalError> {
        if !self.erasure.has_copies {
            return Ok(());
        }
        let erase = |writer: &mut Self| -> std::io::Result<(pages::LogSalts, u64)> {
            let frames = writer.database.wal_pages().map_err(std::io::Error::other)?.0;
            let cleaned = writer.erasure.cleaned;
            let (salts, copies) =
                pages::find_copies_in_log(&writer.wal, writer.layout, cleaned, frames)?;
            let mut file = writer.lock.database().lock();
            // The next checkpoint syncs them, too.
            if pages::erase_copies(&mut file, writer.layout.page_size, &copies)? || sync {
                file.sync_data()?;
            }
            Ok((salts, frames))
        };
        let cleaned = erase(self)
            .map_err(|error| JournalError::Write(format!("erase deleted rows: {error}")))?;
        self.erasure.cleaned = cleaned;
        // While deleted rows are left, the cache may have copies that any transaction writes again.
        self.erasure.has_copies = self.erasure.has_deleted;
        Ok(())
    }

    /// Erases copies on these pages, which may have changed since they were found. Returns true if another connection
    /// reads the log, so that the database has not the latest form of each page.
    pub(super) fn erase_copies_on(&mut self, pages: Vec<u64>) -> Result<bool, JournalError> {
        let moved = self.database.checkpoint();
        self.check_synced(moved.as_ref().err());
        if is_cut_short(moved.map_err(|error| errors::write_error(&error))?) {
            return Ok(true);
        }
        let shrunk = self.database.connection.execute_batch("PRAGMA shrink_memory");
        shrunk.map_err(|error| errors::write_error(&error))?;
        let erased = self.erase_moved_copies(pages);
        erased.map_err(|error| JournalError::Write(format!("erase deleted rows: {error}")))?;
        Ok(false)
    }

    /// Erases copies on these pages, whose latest form is in the database.
    pub(super) fn erase_moved_copies(&self, pages: Vec<u64>) -> std::io::Result<()> {
        let mut file = self.lock.database().lock();
        let copies = pages::find_copies(&mut file, self.layout, pages)?;
        pages::erase_copies(&mut file, self.layout.page_size, &copies)?;
        file.sync_data()
    }

    /// Returns the pages of the log that may have copies.
    pub(super) fn pages_with_copies(&self) -> Vec<u64> {
        let begin = pages::LogSalts::default();
        let found = pages::find_copies_in_log(&self.wal, self.layout, (begin, 0), u64::MAX);
        // A log that cannot be read cannot be moved either.
        found.map(|(_, copies)| copies.into_keys().collect()).unwrap_or_default()
    }

    /// Empties the log before the database is closed, and notes that the database is whole without it. If that fails,
    /// the log stays, and the next host erases.
    pub(super) fn end(&mut self) {
        self.catch_up.wait();
        let is_noted =
            self.broken.is_none() && database::forget_log(&self.database.connection).is_ok();
        self.erasure.note_copies();
        let is_whole = is_noted && self.empty_wal() == Ok(false);
        // Without the log, a failure to keep it changes nothing.
        let _ = database::set_log_kept(&self.database.connection, !is_whole);
    }
}

/// Returns true if a checkpoint did not move all pages of the log.
fn is_cut_short((pages, moved): (u64, u64)) -> bool {
    moved < pages
}

impl WriteConnection {
    /// Returns the number of pages of the write-ahead log, and how many of them were moved to the database.
    pub(super) fn wal_pages(&self) -> rusqlite::Result<(u64, u64)> {
        self.wal_pragma("PRAGMA wal_checkpoint(NOOP)")
    }

    /// Moves pages of the log to the database, as far as other connections allow without waiting. Returns the numbers
    /// of [`wal_pages`](Self::wal_pages) afterwards.
    pub(super) fn checkpoint(&self) -> rusqlite::Result<(u64, u64)> {
        self.wal_pragma("PRAGMA wal_checkpoint(PASSIVE)")
    }

    fn wal_pragma(&self, pragma: &str) -> rusqlite::Result<(u64, u64)> {
        let mut pragma = self.connection.prepare_cached(pragma)?;
        let (busy, pages, moved): (bool, i64, i64) =
            pragma.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        // Another connection makes a checkpoint now: the numbers are not known.
        let unknown = (u64::from(busy), 0);
        let known = u64::try_from(pages).ok().zip(u64::try_from(moved).ok());
        Ok(known.map_or(unknown, |(pages, moved)| (pages, moved.min(pages))))
    }

    /// Empties a log whose pages are all moved. Does not wait for other connections: returns true if one reads the log.
    fn truncate_wal(&self) -> rusqlite::Result<bool> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let busy =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        self.connection.busy_timeout(database::WRITE_WAIT_PERIOD)?;
        busy
    }
}
