//! Metrics of the journal.

use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram};

use super::families::SharedRecorder;
use super::names;
use crate::journal::{GroupCommit, JournalObserver, JournalStatus};

/// What is measured of the journal. Cloning shares it.
#[derive(Clone)]
pub struct JournalMetrics {
    commit: Histogram,
    records: Histogram,
    fsync: Histogram,
    queued: Gauge,
    bytes: Gauge,
    failures: Counter,
    recovered: Counter,
    recovery: Gauge,
}

impl JournalMetrics {
    pub(super) fn new(recorder: &SharedRecorder) -> Self {
        Self {
            commit: names::JOURNAL_COMMIT.histogram(recorder, &[]),
            records: names::JOURNAL_BATCH.histogram(recorder, &[]),
            fsync: names::JOURNAL_FSYNC.histogram(recorder, &[]),
            queued: names::JOURNAL_QUEUED.gauge(recorder, &[]),
            bytes: names::JOURNAL_BYTES.gauge(recorder, &[]),
            failures: names::JOURNAL_FAILURES.counter(recorder, &[]),
            recovered: names::RECOVERED.counter(recorder, &[]),
            recovery: names::RECOVERY.gauge(recorder, &[]),
        }
    }

    /// Sets what there is to know of the engine now.
    pub fn status(&self, status: JournalStatus) {
        self.queued.set(status.queued as f64);
        self.bytes.set(status.bytes as f64);
    }

    /// Counts a session whose records could not be stored.
    pub fn failed(&self) {
        self.failures.increment(1);
    }

    /// Counts runs that go on after their host had ended, and how long that took since the start.
    pub fn recovered(&self, runs: usize, took: Duration) {
        self.recovered.increment(runs as u64);
        self.recovery.set(took.as_secs_f64());
    }
}

impl JournalObserver for JournalMetrics {
    fn stored(&self, group: GroupCommit) {
        self.commit.record(group.took);
        self.records.record(group.records as f64);
    }

    fn synced(&self, took: Duration) {
        self.fsync.record(took);
    }
}

impl std::fmt::Debug for JournalMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalMeter").finish_non_exhaustive()
    }
}
