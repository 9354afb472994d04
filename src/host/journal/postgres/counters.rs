//! Numbers that the engine counts.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Number of sessions and of bytes in the database, and what happened to batches of unknown fate.
#[derive(Debug, Default)]
pub(super) struct EngineCounters {
    /// As counted last, and with what this host has opened and removed since.
    sessions: AtomicI64,
    counted_at: Mutex<Option<Instant>>,
    bytes: AtomicU64,
    fates_stored: AtomicU64,
    fates_lost: AtomicU64,
}

impl EngineCounters {
    pub(super) fn note_counted(&self, sessions: i64, bytes: u64) {
        self.sessions.store(sessions, Ordering::Release);
        self.bytes.store(bytes, Ordering::Release);
    }

    /// Returns true if the sessions were not counted since this time. The caller counts them then.
    pub(super) fn begins_count(&self, since: Instant) -> bool {
        let mut counted_at = self.counted_at.lock();
        let begins = counted_at.is_none_or(|at| at < since);
        if begins {
            *counted_at = Some(Instant::now());
        }
        begins
    }

    pub(super) fn note_opened(&self) {
        self.sessions.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn note_removed(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.sessions.fetch_sub(count, Ordering::AcqRel);
    }

    pub(super) fn sessions(&self) -> usize {
        usize::try_from(self.sessions.load(Ordering::Acquire)).unwrap_or(0)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Counts a batch of unknown fate, which was found to be stored or not.
    pub(super) fn note_fate(&self, is_stored: bool) {
        let counter = if is_stored { &self.fates_stored } else { &self.fates_lost };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of batches of unknown fate that were found to be stored, and not to be.
    pub(super) fn fates(&self) -> (u64, u64) {
        (self.fates_stored.load(Ordering::Relaxed), self.fates_lost.load(Ordering::Relaxed))
    }
}
