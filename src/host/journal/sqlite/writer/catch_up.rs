//! Moves a very long write-ahead log to the database beside the writer, which then waits only for the rest.
//!
//! The log becomes long while another connection reads it, such as a backup, and a killed host may leave a long one.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::time::Instant;

/// Time from one start to the next: while another connection reads the log, a checkpoint moves little.
const PERIOD: Duration = Duration::from_secs(1);

/// Interval at which the writer looks for the end of a checkpoint.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// A checkpoint on a thread and a connection of its own.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    thread: Option<JoinHandle<rusqlite::Result<()>>>,
    began: Option<Instant>,
}

impl CatchUp {
    /// Starts a checkpoint, unless one is running or has begun a moment ago.
    pub(super) fn start(&mut self, file: &Path) {
        let now = Instant::now();
        if self.is_running() || self.began.is_some_and(|began| now - began < PERIOD) {
            return;
        }
        self.began = Some(now);
        let file = file.to_owned();
        let thread = std::thread::Builder::new().name("callsheet-checkpoint".to_owned());
        match thread.spawn(move || checkpoint(&file)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => tracing::warn!(%error, "checkpoint_not_started"),
        }
    }

    /// Returns true while a checkpoint is running.
    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the result of a checkpoint that has ended, once.
    pub(super) fn finished(&mut self) -> Option<rusqlite::Result<()>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        // The panic hook has printed the message.
        thread.join().ok()
    }

    /// Waits for the end of a checkpoint.
    pub(super) fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Returns the time at which the writer looks again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.thread.is_some().then(|| Instant::now() + POLL_PERIOD)
    }
}

/// Moves the log to the database, as far as other connections allow without waiting.
fn checkpoint(file: &Path) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}
