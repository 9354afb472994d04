//! What the periodic work of a host ([`maintenance`](super::maintenance)) has to do, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use callsheet_values::record::Record;
use callsheet_values::types::{RunId, SessionId, millis};

/// The longest interval of periodic work.
const PERIOD_MAX: Duration = Duration::from_secs(5);

/// Maximum interval of the searches for sessions to delete, in milliseconds, unless they take long.
const DELETE_PAUSE_MS: u64 = 60_000;

/// The pause after a search for sessions to delete, in times of the time for which it was busy.
const SEARCH_PAUSES: u64 = 20;

/// The idle time after which a session hibernates while the host has nearly reached `max_sessions`, if that is less
/// than `idle_after`.
const CROWDED_IDLE: Duration = Duration::from_secs(1);

/// The interval of the search for lists of tools that no session uses, in milliseconds.
const UNUSED_LISTS_PAUSE_MS: u64 = 3_600_000;

/// Maximum number of sessions that are woken at the same time to record the failures of their runs.
const RETRIED_MAX: usize = 16;

/// The times and the sessions of the periodic work. Times without another unit are milliseconds since the host
/// started.
#[derive(Debug, Default)]
pub(super) struct MaintenanceState {
    /// The idle time after which a session hibernates.
    idle_after: Option<Duration>,
    /// The idle time after which a session is deleted.
    keep_idle: Option<Duration>,
    next_deletion_search_ms: AtomicU64,
    next_list_search_ms: AtomicU64,
    /// Sessions whose deletion failed. If it has begun, it is finished when the journal can be written again.
    failed_deletions: Mutex<BTreeSet<SessionId>>,
    /// Runs that were reported as failed because the journal could not be written. The failure is recorded
    /// when the journal works again, with the outcomes of calls that could not be stored.
    unrecorded_failures: Mutex<BTreeMap<RunId, (SessionId, Vec<Record>)>>,
    /// Sessions that hibernated with pending approvals or calls of the client, by the first expiry of one, in Unix
    /// milliseconds. Some are awake again.
    approval_expiries: Mutex<BTreeSet<(u64, SessionId)>>,
}

impl MaintenanceState {
    pub(super) fn new(idle_after: Option<Duration>, keep_idle: Option<Duration>) -> Self {
        Self { idle_after, keep_idle, ..Self::default() }
    }

    /// Returns the interval of the periodic work.
    pub(super) fn period(&self) -> Duration {
        let idle = self.idle_after.unwrap_or(PERIOD_MAX);
        (idle / 2).clamp(Duration::from_millis(50), PERIOD_MAX)
    }

    /// Returns the idle time after which a session hibernates, if `idle_ms` has reached it. It is shorter while the host
    /// is crowded.
    pub(super) fn reached_idle_after(&self, idle_ms: u64, is_crowded: bool) -> Option<Duration> {
        let idle = self.idle_after?;
        let idle = if is_crowded { idle.min(CROWDED_IDLE) } else { idle };
        Some(idle).filter(|idle| u128::from(idle_ms) >= idle.as_millis())
    }

    /// Returns the idle time after which sessions are deleted, in milliseconds, if a search for them is due at `now`.
    /// None is due until [`end_deletion_search`](Self::end_deletion_search).
    pub(super) fn begin_deletion_search(&self, now: u64) -> Option<u64> {
        let kept_ms = millis(self.keep_idle?);
        let next = &self.next_deletion_search_ms;
        let is_due = now >= next.load(Ordering::Relaxed).max(search_pause(kept_ms));
        is_due.then(|| next.store(u64::MAX, Ordering::Relaxed)).map(|()| kept_ms)
    }

    /// Notes that a search has ended, for which the host was busy for this time.
    pub(super) fn end_deletion_search(&self, now: u64, busy: Duration) {
        let pause = search_pause(millis(self.keep_idle.unwrap_or_default()));
        let pause = pause.max(SEARCH_PAUSES.saturating_mul(millis(busy)));
        self.next_deletion_search_ms.store(now.saturating_add(pause), Ordering::Relaxed);
    }

    /// Returns whether a search for lists of tools that no session uses is due at `now`, and notes that it is done.
    pub(super) fn begin_list_search(&self, now: u64) -> bool {
        let is_due = now >= self.next_list_search_ms.load(Ordering::Relaxed);
        if is_due {
            let next = now.saturating_add(UNUSED_LISTS_PAUSE_MS);
            self.next_list_search_ms.store(next, Ordering::Relaxed);
        }
        is_due
    }

    /// Notes when to wake a hibernating session for the expiry of an approval or a call of the client.
    pub(super) fn add_expiry(&self, unix_ms: u64, session: SessionId) {
        self.approval_expiries.lock().insert((unix_ms, session));
    }

    /// Removes and returns the sessions whose first expiry has passed.
    pub(super) fn remove_expired(&self, now_unix_ms: u64) -> Vec<SessionId> {
        let mut expiries = self.approval_expiries.lock();
        let mut expired = Vec::new();
        while expiries.first().is_some_and(|(at, _)| *at <= now_unix_ms) {
            expired.extend(expiries.pop_first().map(|(_, session)| session));
        }
        expired
    }

    /// Notes that the deletion of a session has failed.
    pub(super) fn add_failed_deletion(&self, session: SessionId) {
        self.failed_deletions.lock().insert(session);
    }

    /// Removes and returns the sessions whose deletion has failed.
    pub(super) fn remove_failed_deletions(&self) -> Vec<SessionId> {
        std::mem::take(&mut *self.failed_deletions.lock()).into_iter().collect()
    }

    /// Notes runs of a session whose failure is not recorded.
    pub(super) fn add_unrecorded_failures(
        &self,
        session: &SessionId,
        runs: impl IntoIterator<Item = RunId>,
    ) {
        let failed = runs.into_iter().map(|run| (run, (session.clone(), Vec::new())));
        self.unrecorded_failures.lock().extend(failed);
    }

    /// Keeps the outcomes of a failed run that could not be stored.
    pub(super) fn keep_outcomes(&self, run: &RunId, outcomes: Vec<Record>) {
        if let Some((_, kept)) = self.unrecorded_failures.lock().get_mut(run) {
            *kept = outcomes;
        }
    }

    /// Returns some of the sessions with runs whose failure is not recorded.
    pub(super) fn sessions_to_record(&self) -> Vec<SessionId> {
        let failures = self.unrecorded_failures.lock();
        failures.values().take(RETRIED_MAX).map(|(session, _)| session.clone()).collect()
    }

    /// Removes a run, whose failure can be recorded now. Returns the outcomes of its calls that could not be stored, or
    /// `None` if it had not failed.
    pub(super) fn remove_unrecorded_failure(&self, run: &RunId) -> Option<Vec<Record>> {
        self.unrecorded_failures.lock().remove(run).map(|(_, outcomes)| outcomes)
    }

    /// Forgets the failed runs of a session, except for `open`.
    pub(super) fn forget_failures(&self, session: &SessionId, open: Option<&RunId>) {
        self.unrecorded_failures.lock().retain(|run, (of, _)| of != session || open == Some(run));
    }
}

/// Returns the pause between two searches for sessions to delete, in milliseconds.
fn search_pause(kept_ms: u64) -> u64 {
    (kept_ms / 10).clamp(100, DELETE_PAUSE_MS)
}
