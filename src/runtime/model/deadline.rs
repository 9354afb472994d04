//! The deadline of the next delta of a response. It does not count the time for which the host
//! itself lagged: the delays of timers by 50 ms or more (`STALL_MIN`). If a check itself is late by as much, the
//! response has up to 0.5 s more (`GRACE_MAX`), once between two deltas.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The configuration keys of the time limits.
pub(super) const FIRST_EVENT_TIMEOUT: &str = "first_event_timeout";
pub(super) const IDLE_TIMEOUT: &str = "idle_timeout";
pub(super) const ANSWER_TIMEOUT: &str = "answer_timeout";

/// The delay of a timer that counts as a stall of the host. A shorter one is usual under load.
const STALL_MIN: Duration = Duration::from_millis(50);

/// Maximum time from a late check to the new deadline. A check is late if a stall of the host lasted beyond the
/// deadline.
const GRACE_MAX: Duration = Duration::from_millis(500);

/// The sum of the host's own lags: times for which its threads handled nothing, because the process was stopped
/// or the threads were busy with something else. The service did not cause such a time, so it does not count
/// against a stream. Clones share the sum.
#[derive(Clone, Debug, Default)]
pub(in crate::runtime) struct HostLagClock {
    stalled_us: Arc<AtomicU64>,
}

impl HostLagClock {
    /// Adds the delay of a timer, if it is long enough to be a stall.
    pub(in crate::runtime) fn add_delay(&self, delay: Duration) {
        if Self::is_stall(delay) {
            let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
            self.stalled_us.fetch_add(delay, Ordering::Relaxed);
        }
    }

    /// Returns whether a delay of a timer is long enough to be a stall.
    pub(in crate::runtime) fn is_stall(delay: Duration) -> bool {
        delay >= STALL_MIN
    }

    pub(in crate::runtime) fn stalled(&self) -> Duration {
        Duration::from_micros(self.stalled_us.load(Ordering::Relaxed))
    }
}

/// The time at which an exchange fails unless a delta arrives.
#[derive(Debug)]
pub(super) struct DeltaDeadline {
    /// The end of the time limit, moved by the stalls in the clock.
    due: Instant,
    time_limit: Duration,
    clock: HostLagClock,
    /// The part of the clock's time that is already added to `due`.
    counted_stalls: Duration,
    /// The deadline that a late check has set. It applies while it is later than `due`: the clock adds the same
    /// stall to `due` afterwards.
    grace_until: Option<Instant>,
}

impl DeltaDeadline {
    pub(super) fn new(time_limit: Duration, clock: HostLagClock) -> Self {
        let counted_stalls = clock.stalled();
        Self {
            due: Instant::now() + time_limit,
            time_limit,
            clock,
            counted_stalls,
            grace_until: None,
        }
    }

    pub(super) fn at(&self) -> Instant {
        self.grace_until.map_or(self.due, |until| until.max(self.due))
    }

    pub(super) fn time_limit(&self) -> Duration {
        self.time_limit
    }

    /// Starts again with this time limit.
    pub(super) fn restart(&mut self, time_limit: Duration) {
        (self.due, self.time_limit) = (Instant::now() + time_limit, time_limit);
        self.counted_stalls = self.clock.stalled();
        self.grace_until = None;
    }

    /// Returns true if the deadline has passed. First adds the time for which the host was stalled since the
    /// last delta. `woken` is the time of this check.
    pub(super) fn is_over(&mut self, woken: Instant) -> bool {
        let stalled = self.clock.stalled();
        self.due += stalled.saturating_sub(self.counted_stalls);
        self.counted_stalls = stalled;
        // The stall that delayed this check may not be in the clock yet.
        let is_late = HostLagClock::is_stall(woken.saturating_duration_since(self.due));
        if is_late && self.grace_until.is_none() {
            self.grace_until = Some(woken + self.time_limit.min(GRACE_MAX));
        }
        self.at() <= woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_hosts_own_stalls_do_not_count() {
        let clock = HostLagClock::default();
        let limit = Duration::from_secs(1);
        let mut deadline = DeltaDeadline::new(limit, clock.clone());
        let start = Instant::now();
        assert!(!deadline.is_over(start + Duration::from_millis(999)));
        // A short delay is usual, and is no stall.
        clock.add_delay(Duration::from_millis(49));
        assert!(deadline.is_over(start + Duration::from_millis(1001)));

        deadline.restart(limit);
        clock.add_delay(Duration::from_millis(300));
        assert!(!deadline.is_over(start + Duration::from_millis(1000)));
        assert_eq!(deadline.at(), start + Duration::from_millis(1300));
        // The same stall counts once.
        assert!(deadline.is_over(start + Duration::from_millis(1300)));

        // The check itself was late, and the clock has not noticed yet.
        deadline.restart(limit);
        assert!(!deadline.is_over(start + Duration::from_millis(5000)));
        assert_eq!(deadline.at(), start + Duration::from_millis(5500));
        // This wait counts once, so that a busy host waits for a dead service at most so much longer.
        assert!(deadline.is_over(start + Duration::from_millis(9000)));

        // The clock notices the stall after the late check. It counts once.
        deadline.restart(limit);
        assert!(!deadline.is_over(start + Duration::from_millis(5000)));
        clock.add_delay(Duration::from_millis(4800));
        assert!(!deadline.is_over(start + Duration::from_millis(5500)));
        assert_eq!(deadline.at(), start + Duration::from_millis(5800));
        assert!(deadline.is_over(start + Duration::from_millis(5800)));
    }
}
