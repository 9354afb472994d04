//! The append-only list of a session's records, from which it is rebuilt.
//!
//! A [`Journal`] is an engine that stores the records of many sessions, one file per engine. A
//! [`SessionLog`] is one session's way to it: it numbers the records, so that session and
//! accumulator can append side by side without a gap, and knows which of them are durable.

mod error;
pub mod export;
mod log;
mod memory;
mod sqlite;
mod verify;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

pub use crate::record::JournalEntry;
pub use crate::transcript::{Breach, Invariant};
pub use error::JournalError;
pub use log::{PendingRecord, SessionLog, Urgency};
pub use memory::MemoryJournal;
pub use sqlite::{JournalReader, SqliteJournal, SqliteOptions};
pub use verify::{unfinished, verify};

use crate::record::{Record, Seq};
use crate::types::{SessionId, SessionState};

/// An engine that stores records. Everything but `append`, `flush` and `status` may wait for a
/// disk: call it where that holds up nobody.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Takes a batch: all of it is stored or nothing, in the order of the calls for one session.
    /// Never waits: an engine that has to wait for a disk queues the batch and tells later, from a
    /// thread of its own. One whose queue is full tells at once that the batch failed.
    ///
    /// After a batch of a session has failed, so do all later ones with the same [`SessionLogState`].
    fn append(&self, batch: Batch) -> AppendStatus;

    /// Somebody waits for what is queued: batches that are not urgent are stored now too.
    fn flush(&self);

    /// A session's stored entries after `after`, in order, at most so many; what is still queued is
    /// not among them.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read_some(
        &self,
        session: &SessionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<JournalEntry>, JournalError>;

    /// All of a session's stored entries after `after`.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read(&self, session: &SessionId, after: Seq) -> Result<Vec<JournalEntry>, JournalError> {
        self.read_some(session, after, usize::MAX)
    }

    /// A stored session by its id.
    ///
    /// # Errors
    /// When that cannot be read.
    fn find(&self, session: &SessionId) -> Result<Option<StoredSession>, JournalError>;

    /// Stored sessions by id.
    ///
    /// # Errors
    /// When they cannot be read.
    fn list(&self, listing: &StoredSessionFilter) -> Result<Vec<StoredSession>, JournalError>;

    /// How many sessions are stored.
    ///
    /// # Errors
    /// When that cannot be read.
    fn count(&self) -> Result<usize, JournalError>;

    /// Deletes sessions; when this returns nothing of them is left on the disk. One that is not
    /// there is no error.
    ///
    /// # Errors
    /// When they could not be deleted; some may be.
    fn remove(&self, sessions: &[SessionId]) -> Result<(), JournalError>;

    /// Whether it finds and removes sessions without waiting for a disk.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// What there is to know of the engine now.
    fn status(&self) -> JournalStatus;

    /// Stores what is queued and ends; batches that come later fail.
    fn close(&self) {}
}

/// Records of one session that are stored together.
pub struct Batch {
    /// The session.
    pub session: SessionId,
    /// Its next records, without a gap.
    pub entries: Vec<Arc<JournalEntry>>,
    /// What the engine remembers of the session's log.
    pub log_state: Arc<SessionLogState>,
    /// Whether somebody waits for it.
    pub urgent: bool,
    /// Told what becomes of it.
    pub on_status: BatchCallback,
}

/// Told what becomes of a batch: `Written` at most once, then `Durable` or `Failed` once.
pub type BatchCallback = Box<dyn FnMut(BatchStatus) + Send>;

/// How far a batch has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchStatus {
    /// It survives the end of the process, and is told where that is before it survives the end
    /// of the machine.
    Written,
    /// It survives the end of the machine.
    Durable,
    /// It is not stored.
    Failed(JournalError),
}

/// What an engine remembers of one [`SessionLog`], for its own use.
#[derive(Debug, Default)]
pub struct SessionLogState {
    /// The engine's number of the session; 0 before it is known.
    number: AtomicI64,
    /// The first record that could not be stored; 0 while there is none. What comes later would
    /// leave a gap.
    failed: AtomicU64,
}

impl SessionLogState {
    /// The records from this one on are not stored.
    fn fail(&self, from: u64) {
        let earlier = |failed| (failed == 0 || from < failed).then_some(from);
        // It stays as it is where it was earlier already.
        let _ = self.failed.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
    }

    /// Whether this record, or one before, could not be stored.
    fn has_failed(&self, seq: u64) -> bool {
        (1..=seq).contains(&self.failed.load(Ordering::Acquire))
    }
}

/// How durable a batch is when `append` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AppendStatus {
    /// It is, and nothing more is told.
    Durable,
    /// It is accepted, in order, or has failed; the rest is told.
    Queued,
}

/// A session as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredSession {
    /// Its id.
    pub id: SessionId,
    /// Its agent's name.
    pub agent: String,
    /// Running where a run has not ended, or inputs wait behind it; else idle.
    pub state: SessionState,
    /// The place of its last record.
    pub seq: Seq,
    /// When it was opened: Unix time in milliseconds.
    pub opened: u64,
    /// When its last record was appended: Unix time in milliseconds.
    pub touched: u64,
}

/// Which stored sessions are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSessionFilter {
    /// Those behind this id.
    pub after: Option<SessionId>,
    /// At most so many; 0 is no limit.
    pub limit: usize,
    /// Those in this state.
    pub state: Option<SessionState>,
    /// Those whose last record is older: Unix time in milliseconds.
    pub touched_before: Option<u64>,
}

/// What there is to know of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStatus {
    /// How many batches wait.
    pub queued: usize,
    /// How many bytes it takes on the disk.
    pub bytes: u64,
}

/// What an engine tells of its work, for metrics.
pub trait JournalObserver: Send + Sync + fmt::Debug {
    /// Batches were stored together.
    fn stored(&self, group: GroupCommit);

    /// All that was stored has got its fsync, together, which took so long.
    fn synced(&self, took: std::time::Duration) {
        let _ = took;
    }
}

/// Batches that were stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCommit {
    /// How many batches.
    pub batches: usize,
    /// How many records.
    pub records: usize,
    /// How long the transaction took.
    pub took: std::time::Duration,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("session", &self.session)
            .field("entries", &self.entries)
            .field("urgent", &self.urgent)
            .finish_non_exhaustive()
    }
}

/// A session's state behind records, where they change it.
fn state_behind(entries: &[Arc<JournalEntry>]) -> Option<SessionState> {
    entries.iter().rev().find_map(|entry| {
        let record = &entry.record;
        // Whatever waits behind a run goes on with it.
        if matches!(record, Record::RunStarted { .. } | Record::RunEnded { waiting: 1.., .. }) {
            return Some(SessionState::Running);
        }
        matches!(record, Record::RunEnded { .. }).then_some(SessionState::Idle)
    })
}

/// Unix time in milliseconds.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
