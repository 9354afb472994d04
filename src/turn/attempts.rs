//! Whether, when and how the model is asked once more.

use std::time::Duration;

use super::effect::AttemptPlan;
use crate::types::{ProviderError, ProviderErrorKind};

/// The first wait between attempts; it doubles from there.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The longest wait of our own choosing.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest wait that a service may ask for; beyond it the attempt is given up.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// After so many broken streams of a turn the plain answer is asked for.
const BROKEN_STREAMS_MAX: u32 = 2;

/// The attempts of one turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempts {
    max: u32,
    streamed: bool,
    seed: u64,
    made: u32,
    broken_streams: u32,
}

impl Attempts {
    pub(super) fn new(max: u32, streamed: bool, seed: u64) -> Self {
        Self { max, streamed, seed, made: 0, broken_streams: 0 }
    }

    /// Goes on counting after a crash of the host, which was no attempt's fault.
    pub(super) fn resumed(mut self, made: u32) -> Self {
        self.made = made;
        self.max = self.max.saturating_add(made);
        self
    }

    /// The first attempt, or the first after a crash: without a wait.
    pub(super) fn first(&mut self) -> AttemptPlan {
        self.made += 1;
        AttemptPlan { attempt: self.made, streamed: self.streamed, wait: Duration::ZERO }
    }

    /// The attempt after one that failed with `error`, if there may be one.
    pub(super) fn after(
        &mut self,
        error: &ProviderError,
        was_streamed: bool,
    ) -> Option<AttemptPlan> {
        let broke_in_the_stream = match error.kind {
            ProviderErrorKind::Transport
            | ProviderErrorKind::Timeout
            | ProviderErrorKind::Malformed
            | ProviderErrorKind::InStream => was_streamed,
            ProviderErrorKind::Connect
            | ProviderErrorKind::Status
            | ProviderErrorKind::TooLarge => false,
        };
        self.broken_streams += u32::from(broke_in_the_stream);
        let asked = error.retry_after.unwrap_or_default();
        if !error.is_transient() || self.made >= self.max || asked > RETRY_AFTER_MAX {
            return None;
        }
        let wait = self.backoff().max(asked);
        self.made += 1;
        let streamed = self.streamed && self.broken_streams < BROKEN_STREAMS_MAX;
        Some(AttemptPlan { attempt: self.made, streamed, wait })
    }

    /// Doubles from attempt to attempt; between half and all of that, spread by the seed so that
    /// many sessions do not come back at the same moment.
    fn backoff(&self) -> Duration {
        let doubled = WAIT_FIRST.saturating_mul(1 << self.made.saturating_sub(1).min(16));
        let full = doubled.min(WAIT_MAX);
        let spread = spread(self.seed, self.made);
        full / 2 + Duration::from_nanos((full.as_nanos() as u64 / 2).saturating_mul(spread) / 1024)
    }
}

/// A number below 1024 that looks random (splitmix64's finaliser).
fn spread(seed: u64, attempt: u32) -> u64 {
    let mut x = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) % 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ProviderErrorKind) -> ProviderError {
        ProviderError::new(kind, "it broke")
    }

    #[test]
    fn attempts_are_counted_and_the_third_is_plain_after_two_broken_streams() {
        let mut attempts = Attempts::new(3, true, 7);
        assert!(attempts.first().streamed);
        let second = attempts.after(&error(ProviderErrorKind::Transport), true).unwrap();
        assert_eq!((second.attempt, second.streamed), (2, true));
        let third = attempts.after(&error(ProviderErrorKind::Timeout), true).unwrap();
        assert_eq!((third.attempt, third.streamed), (3, false));
        assert_eq!(attempts.after(&error(ProviderErrorKind::Transport), false), None);
    }

    #[test]
    fn waits_double_within_bounds_and_differ_by_seed() {
        let waits = |seed| {
            let mut attempts = Attempts::new(20, true, seed);
            attempts.first();
            (0..19)
                .map(|_| attempts.after(&error(ProviderErrorKind::Connect), true).unwrap().wait)
                .collect::<Vec<_>>()
        };
        let first = waits(1);
        assert_ne!(first, waits(2));
        assert!(first[0] >= WAIT_FIRST / 2 && first[0] <= WAIT_FIRST);
        assert!(first.iter().all(|wait| *wait <= WAIT_MAX));
        assert!(first[18] >= WAIT_MAX / 2);
    }

    #[test]
    fn what_the_service_asks_for_is_waited_unless_it_is_too_long() {
        let mut attempts = Attempts::new(3, true, 1);
        attempts.first();
        let mut limited = error(ProviderErrorKind::Status);
        limited.status = Some(429);
        limited.retry_after = Some(Duration::from_secs(7));
        assert_eq!(attempts.after(&limited, true).unwrap().wait, Duration::from_secs(7));
        limited.retry_after = Some(Duration::from_secs(3600));
        assert_eq!(attempts.after(&limited, true), None);
    }

    #[test]
    fn what_will_not_change_is_not_tried_again() {
        let mut attempts = Attempts::new(3, true, 1);
        attempts.first();
        let mut denied = error(ProviderErrorKind::Status);
        denied.status = Some(401);
        assert_eq!(attempts.after(&denied, true), None);
    }
}
