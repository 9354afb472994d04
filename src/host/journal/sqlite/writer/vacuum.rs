//! Gives free pages of the database back to the file system, a few at a time while the writer has nothing else to do.
//!
//! SQLite moves pages from the end of the file to free ones (<https://www.sqlite.org/pragma.html#pragma_incremental_vacuum>).
//! The file becomes shorter with the next checkpoint. Some free pages stay for new records. Databases of earlier versions
//! cannot do this: a backup of one can.

use std::time::Duration;

use tokio::time::Instant;

use super::{JournalWriter, WriteConnection, immediate};

/// Free pages are given back until at most one page in this number is free, or this number of pages.
const KEPT_PART: u64 = 20;
const KEPT_PAGES: u64 = 256;

/// Maximum time and number of pages of a step. A batch that arrives meanwhile waits for its end.
const STEP_TIME: Duration = Duration::from_millis(3);
const STEP_PAGES: u32 = 64;

/// The pause after a step, in times of its duration, and its minimum.
const PAUSES: u32 = 4;
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The pause before the first step after a deletion, so that deletions in a row are over.
const BEGIN_PAUSE: Duration = Duration::from_millis(200);

/// The pause before the log is emptied again, if another connection reads it.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// When to give free pages back.
#[derive(Debug, Default)]
pub(super) struct Vacuum {
    /// The time of the next step. `None` if there is nothing to do.
    at: Option<Instant>,
    /// True if pages were given back since the log was emptied last: until then the file is as long as before.
    has_given_back: bool,
}

impl Vacuum {
    /// Begins soon: there may be free pages.
    pub(super) fn begin(&mut self) {
        self.at = Some(Instant::now() + BEGIN_PAUSE);
    }

    /// Returns the time of the next step.
    pub(super) fn due(&self) -> Option<Instant> {
        self.at
    }
}

impl JournalWriter {
    /// Gives some free pages back, if it is time for that and nothing waits.
    pub(super) fn vacuum(&mut self) {
        let now = Instant::now();
        if self.vacuum.at.is_none_or(|at| at > now) {
            return;
        }
        self.vacuum.at = None;
        if self.broken.is_some() || !self.layout.has_pointer_maps {
            return;
        }
        if self.queue.len() > 0 {
            self.vacuum.at = Some(now + PAUSE_MIN);
            return;
        }
        match self.database.vacuum() {
            Ok(None) if self.vacuum.has_given_back => {
                let emptied = self.empty_wal();
                self.vacuum.has_given_back = emptied != Ok(false);
                // Another connection reads the log.
                self.vacuum.at = self.vacuum.has_given_back.then(|| now + READ_PAUSE);
            }
            Ok(None) => {}
            Ok(Some(pages)) => {
                self.vacuum.has_given_back = true;
                self.erasure.note_copies();
                self.lock.opened().begin_shrinking(pages * self.layout.page_size as u64);
                self.vacuum.at = Some(Instant::now() + PAUSE_MIN.max(now.elapsed() * PAUSES));
            }
            // It is tried again after the next deletion.
            Err(error) => tracing::warn!(%error, "free_pages_not_given_back"),
        }
    }
}

impl WriteConnection {
    /// Gives some free pages back. Returns the number of pages of the database, or `None` if few are free.
    fn vacuum(&mut self) -> rusqlite::Result<Option<u64>> {
        let transaction = immediate(&mut self.connection)?;
        let number =
            |pragma| transaction.pragma_query_value(None, pragma, |row| row.get::<_, u64>(0));
        let has_many_free = || -> rusqlite::Result<bool> {
            Ok(number("freelist_count")? > KEPT_PAGES.max(number("page_count")? / KEPT_PART))
        };
        if !has_many_free()? {
            return Ok(None);
        }
        let began = Instant::now();
        for _ in 0..STEP_PAGES {
            transaction.execute_batch("PRAGMA incremental_vacuum(1)")?;
            if began.elapsed() >= STEP_TIME || !has_many_free()? {
                break;
            }
        }
        let pages = number("page_count")?;
        transaction.commit()?;
        Ok(Some(pages))
    }
}
