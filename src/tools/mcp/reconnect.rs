//! Reconnect: the backoff between attempts to connect to a server. At once after a connection of 10 s or more; else
//! 0.1 s, doubled each time, up to `max_reconnect_wait` after a failed attempt and 2 s after a short connection.

use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The longest wait after connections that ended soon.
const LONGEST_WAIT_CONNECTED: Duration = Duration::from_secs(2);

/// A connection of at least this duration was stable.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The failed attempts to connect and the short connections in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reconnect {
    failures: u32,
}

impl Reconnect {
    /// Handles the end of a connection that lasted for `connected`, or a failed attempt to connect (`None`).
    /// Returns the wait before the next attempt: none after a stable connection. Else it doubles with each failure in
    /// a row, up to the limit for this kind of end.
    pub(super) fn handle_end(
        &mut self,
        connected: Option<Duration>,
        longest_wait: Duration,
    ) -> Duration {
        if connected.is_some_and(|lasted| lasted >= STABLE_AFTER) {
            self.failures = 0;
            return Duration::ZERO;
        }
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let wait = FIRST_WAIT.saturating_mul(factor).min(longest_wait);
        if connected.is_some() { wait.min(LONGEST_WAIT_CONNECTED) } else { wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_WAIT: Duration = Duration::from_secs(60);

    fn waits(connected: Option<Duration>) -> Vec<u128> {
        let mut reconnect = Reconnect::default();
        (0..12).map(|_| reconnect.handle_end(connected, LONGEST_WAIT).as_millis()).collect()
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        let failed = [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000];
        assert_eq!(waits(None), failed);
        let short = Some(Duration::from_secs(1));
        assert_eq!(waits(short)[3..6], [800, 1600, 2000]);
        let mut reconnect = Reconnect::default();
        for _ in 0..100 {
            reconnect.handle_end(None, LONGEST_WAIT);
        }
        assert_eq!(reconnect.handle_end(None, LONGEST_WAIT), LONGEST_WAIT);
    }

    #[test]
    fn after_a_stable_connection_the_next_attempt_is_at_once() {
        let mut reconnect = Reconnect::default();
        reconnect.handle_end(None, LONGEST_WAIT);
        assert_eq!(reconnect.handle_end(Some(STABLE_AFTER), LONGEST_WAIT), Duration::ZERO);
        assert_eq!(reconnect.handle_end(Some(Duration::from_secs(1)), LONGEST_WAIT), FIRST_WAIT);
    }
}
