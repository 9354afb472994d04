//! Searches a database of an earlier version once for copies of deleted rows: ids of sessions that are or will be deleted
//! (`pages` says how they arise). Since then the writer erases them as they arise (`writer::erase`).
//!
//! The search runs beside the host, and reads at most half of the time. It begins anew with the next host if it has not
//! ended.

use std::fs::File;
use std::sync::Weak;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pages::{self, PageLayout};
use super::queue::{WriteQueue, WriterTask};
use crate::journal::JournalError;

/// Number of pages that are read at once. The writer waits for them if it wants the file.
const PAGES_AT_ONCE: u64 = 256;

/// The pause before a task is repeated, because another connection reads the log.
const REPEAT_PAUSE: Duration = Duration::from_secs(1);

/// Starts the search on a thread of its own. It ends with the writer.
pub(super) fn start(file: Weak<Mutex<File>>, layout: PageLayout, queue: Weak<WriteQueue>) {
    let search = move || match search(&file, layout, &queue) {
        Ok(()) => {
            tracing::info!("journal_copies_erased: copies of rows that earlier versions left")
        }
        Err(JournalError::Closed) => {}
        Err(error) => {
            tracing::warn!(%error, "journal_copies_not_erased: the next host tries again")
        }
    };
    let thread = std::thread::Builder::new().name("callsheet-copies".to_owned());
    if let Err(error) = thread.spawn(search) {
        tracing::warn!(%error, "journal_copies_not_erased: the next host tries again");
    }
}

fn search(
    file: &Weak<Mutex<File>>,
    layout: PageLayout,
    queue: &Weak<WriteQueue>,
) -> Result<(), JournalError> {
    let mut first = 2;
    loop {
        let began = Instant::now();
        let found = {
            let file = file.upgrade().ok_or(JournalError::Closed)?;
            let mut file = file.lock();
            let bytes = file.metadata().map(|found| found.len());
            bytes.and_then(|bytes| {
                let last = bytes / layout.page_size.max(1) as u64;
                let upto = last.min(first + PAGES_AT_ONCE - 1);
                Ok((last, pages::find_copies(&mut file, layout, first..=upto)?))
            })
        };
        let (last, copies) = found.map_err(|error| JournalError::Read(error.to_string()))?;
        if !copies.is_empty() {
            repeat(queue, || WriterTask::EraseCopies(copies.keys().copied().collect()))?;
        }
        first += PAGES_AT_ONCE;
        if first > last {
            return repeat(queue, || WriterTask::NoteCopiesErased);
        }
        std::thread::sleep(began.elapsed());
    }
}

/// Performs a task of the writer, as often as it is to be repeated.
fn repeat(queue: &Weak<WriteQueue>, task: impl Fn() -> WriterTask) -> Result<(), JournalError> {
    loop {
        let (done, answer) = oneshot::channel();
        queue.upgrade().ok_or(JournalError::Closed)?.push_task(task(), done)?;
        if !answer.blocking_recv().unwrap_or(Err(JournalError::Closed))? {
            return Ok(());
        }
        std::thread::sleep(REPEAT_PAUSE);
    }
}
