//! Records the metrics of the journal.

use std::time::Duration;

use super::metric_table::JournalMetrics;

use crate::journal::{GroupCommit, JournalObserver, JournalStatus};

impl JournalMetrics {
    /// Sets the length of the queue, the size on disk and the free space.
    pub fn set_status(&self, status: JournalStatus) {
        self.queued.set(status.queued as f64);
        self.size.set(status.bytes as f64);
        self.log_size.set(status.log_bytes.unwrap_or(0) as f64);
        if let Some(free) = status.disk_free_bytes {
            self.disk_free.set(free as f64);
        }
    }

    /// Sets the number of stored sessions and its limit.
    pub fn set_sessions(&self, stored: usize, max: Option<usize>) {
        self.sessions_stored.set(stored as f64);
        self.sessions_stored_max.set(max.unwrap_or(0) as f64);
    }

    /// Counts a session whose records could not be stored.
    pub fn session_failed(&self) {
        self.failures.increment(1);
    }

    /// Sets the number of runs that are set aside.
    pub fn set_runs_quarantined(&self, runs: usize) {
        self.runs_quarantined.set(runs as f64);
    }

    /// Counts runs that were resumed after their host had ended, and sets the time from the start
    /// of the host until then.
    pub fn runs_recovered(&self, runs: usize, took: Duration) {
        self.runs_recovered.increment(runs as u64);
        self.recovery_time.set(took.as_secs_f64());
    }
}

impl JournalObserver for JournalMetrics {
    fn stored(&self, group: GroupCommit) {
        self.commit_time.record(group.took);
        self.commit_records.record(group.records as f64);
    }

    fn synced(&self, took: Duration) {
        self.fsync_time.record(took);
    }

    fn answered(&self, took: Duration) {
        self.write_time.record(took);
    }
}
