//! The append-only list of a session's records, from which it is rebuilt.
//!
//! A [`Journal`] is an engine that stores the records of many sessions, one file per engine. A
//! [`SessionLog`] is one session's way to it: it numbers the records, so that session and
//! accumulator can append side by side without a gap.

mod memory;

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use memory::MemoryJournal;

use crate::record::{Record, Seq};
use crate::types::SessionId;

/// Called once when a batch is durable, from whatever thread finds out.
pub type Acknowledge = Box<dyn FnOnce() + Send>;

/// A record in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place in the session's journal.
    pub seq: Seq,
    /// When it was appended: Unix time in milliseconds.
    pub time: u64,
    /// What happened.
    #[serde(flatten)]
    pub record: Record,
}

/// How durable a batch is when `append` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Appended {
    /// It is, and the acknowledgement is never called.
    Durable,
    /// It is accepted, in order; the acknowledgement tells when it is durable.
    Queued,
}

/// An engine that stores records.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends a batch, without gaps and in the order of the calls for one session. Does not
    /// block: an engine that has to wait for a disk queues the batch and acknowledges it later.
    fn append(&self, session: &SessionId, batch: Vec<Entry>, acknowledge: Acknowledge) -> Appended;

    /// A session's entries after `after`, in order; those that are still queued included.
    fn entries_since(&self, session: &SessionId, after: Seq) -> Vec<Entry>;

    /// Forgets a session.
    fn remove(&self, session: &SessionId);
}

/// One session's journal: numbers the records and hands them to the engine.
#[derive(Debug)]
pub struct SessionLog {
    session: SessionId,
    journal: Arc<dyn Journal>,
    /// The last number given. Held over the engine's `append`, so that numbers reach it in order.
    last: Mutex<Seq>,
}

impl SessionLog {
    /// The log of a session that has no records yet.
    #[must_use]
    pub fn new(session: SessionId, journal: Arc<dyn Journal>) -> Self {
        Self { session, journal, last: Mutex::new(Seq(0)) }
    }

    /// Appends records as one batch. `acknowledge` is called when they are durable, unless they
    /// are so at once.
    pub fn append(
        &self,
        records: Vec<Record>,
        acknowledge: impl FnOnce() + Send + 'static,
    ) -> (Seq, Appended) {
        let time = unix_ms();
        let mut last = self.last.lock();
        if records.is_empty() {
            return (*last, Appended::Durable);
        }
        let mut batch = Vec::with_capacity(records.len());
        for record in records {
            last.0 += 1;
            batch.push(Entry { seq: *last, time, record });
        }
        let appended = self.journal.append(&self.session, batch, Box::new(acknowledge));
        (*last, appended)
    }

    /// The last record's place; 0 before the first.
    #[must_use]
    pub fn last(&self) -> Seq {
        *self.last.lock()
    }

    /// The records after a place, in order.
    #[must_use]
    pub fn records_since(&self, after: Seq) -> Vec<Record> {
        self.entries_since(after).into_iter().map(|entry| entry.record).collect()
    }

    /// The entries after a place, in order.
    #[must_use]
    pub fn entries_since(&self, after: Seq) -> Vec<Entry> {
        self.journal.entries_since(&self.session, after)
    }

    /// Forgets what is stored.
    pub fn remove(&self) {
        self.journal.remove(&self.session);
    }
}

/// Unix time in milliseconds.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
