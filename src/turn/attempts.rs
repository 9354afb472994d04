//! Whether, when and how a model is asked once more, and which.
//!
//! When the attempts with one model are used up, or its error is one that no repetition mends,
//! the next model begins anew, at once. Every error leads there: what one service refuses (a
//! request too long for it, a key that expired) another may take, and one that no service takes
//! costs one request each.

use std::sync::Arc;
use std::time::Duration;

use super::effect::{AttemptPlan, ModelPlan, ModelPlans};
use crate::types::{ProviderError, ProviderErrorKind};

/// The first wait between attempts; it doubles from there.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The longest wait of our own choosing.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest wait that a service may ask for; beyond it the model is given up.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// After so many broken streams of a turn with one model its plain answer is asked for.
const BROKEN_STREAMS_MAX: u32 = 2;

/// The attempts of one turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempts {
    models: Arc<ModelPlans>,
    seed: u64,
    /// Of the turn, whichever model was asked.
    made: u32,
    /// The model that is asked.
    model: usize,
    /// Attempts with it; after a crash of the host, since then.
    with_model: u32,
    /// Of its streams.
    broken_streams: u32,
}

impl Attempts {
    pub(super) fn new(models: Arc<ModelPlans>, seed: u64) -> Self {
        Self { models, seed, made: 0, model: 0, with_model: 0, broken_streams: 0 }
    }

    /// Goes on counting after a crash of the host, which was no attempt's fault: the model that
    /// was asked last, if it is still there, has all its attempts again.
    pub(super) fn resumed(mut self, made: u32, model: &str) -> Self {
        self.made = made;
        self.model =
            self.models.iter().position(|plan| plan.origin.model == model).unwrap_or_default();
        self
    }

    /// The attempt that was made last.
    pub(super) fn last(&self) -> AttemptPlan {
        let streamed = self.model().streamed && self.broken_streams < BROKEN_STREAMS_MAX;
        AttemptPlan { attempt: self.made, model: self.model, streamed, wait: Duration::ZERO }
    }

    /// The first attempt, or the first after a crash: without a wait.
    pub(super) fn first(&mut self) -> AttemptPlan {
        self.next(Duration::ZERO)
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
        let may_repeat = error.is_transient() && asked <= RETRY_AFTER_MAX;
        if may_repeat && self.with_model < self.model().max_attempts {
            let wait = self.backoff().max(asked);
            return Some(self.next(wait));
        }
        self.models.iter().nth(self.model + 1)?;
        (self.model, self.with_model, self.broken_streams) = (self.model + 1, 0, 0);
        Some(self.next(Duration::ZERO))
    }

    fn next(&mut self, wait: Duration) -> AttemptPlan {
        self.made += 1;
        self.with_model += 1;
        AttemptPlan { wait, ..self.last() }
    }

    /// The model that is asked.
    pub(super) fn model(&self) -> &ModelPlan {
        self.models.at(self.model)
    }

    /// Doubles from attempt to attempt with one model; between half and all of that, spread by the
    /// seed so that many sessions do not come back at the same moment.
    fn backoff(&self) -> Duration {
        let doubled = WAIT_FIRST.saturating_mul(1 << self.with_model.saturating_sub(1).min(16));
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
    use super::super::fixtures::model;
    use super::*;

    fn error(kind: ProviderErrorKind) -> ProviderError {
        ProviderError::new(kind, "it broke")
    }

    fn attempts(max: u32, seed: u64) -> Attempts {
        Attempts::new(Arc::new(ModelPlans::new(model("m", max), Vec::new())), seed)
    }

    /// Two attempts with a model that streams, two with one that does not, one with a third.
    fn falling_back() -> Attempts {
        let plain = ModelPlan { streamed: false, ..model("b", 2) };
        let plans = ModelPlans::new(model("a", 2), vec![plain, model("c", 1)]);
        Attempts::new(Arc::new(plans), 1)
    }

    fn denied() -> ProviderError {
        ProviderError { status: Some(401), ..error(ProviderErrorKind::Status) }
    }

    /// Which attempt it is, of which model, and how it asks.
    fn shown(plan: &AttemptPlan) -> (u32, usize, bool) {
        (plan.attempt, plan.model, plan.streamed)
    }

    #[test]
    fn attempts_are_counted_and_the_third_is_plain_after_two_broken_streams() {
        let mut attempts = attempts(3, 7);
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
            let mut attempts = attempts(20, seed);
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
        let mut attempts = attempts(3, 1);
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
        let mut attempts = attempts(3, 1);
        attempts.first();
        assert_eq!(attempts.after(&denied(), true), None);
    }

    #[test]
    fn each_model_has_its_own_attempts_and_its_own_way_and_the_count_goes_on() {
        let mut attempts = falling_back();
        let broken = error(ProviderErrorKind::Transport);
        assert_eq!(shown(&attempts.first()), (1, 0, true));
        let mut waits = Vec::new();
        for expected in [(2, 0, true), (3, 1, false), (4, 1, false), (5, 2, true)] {
            let plan = attempts.after(&broken, true).unwrap();
            assert_eq!(shown(&plan), expected);
            assert_eq!(attempts.last(), AttemptPlan { wait: Duration::ZERO, ..plan.clone() });
            waits.push(plan.wait.is_zero());
        }
        assert_eq!(waits, [false, true, false, true], "another model is asked at once");
        assert_eq!(attempts.after(&broken, true), None);
    }

    #[test]
    fn what_will_not_change_or_asks_for_too_long_a_wait_leads_to_the_next_model_at_once() {
        let patience = Some(Duration::from_secs(3600));
        let busy = ProviderError { retry_after: patience, ..error(ProviderErrorKind::Connect) };
        for error in [denied(), busy, error(ProviderErrorKind::TooLarge)] {
            let mut attempts = falling_back();
            attempts.first();
            let plan = attempts.after(&error, true).unwrap();
            assert_eq!((shown(&plan), plan.wait), ((2, 1, false), Duration::ZERO), "{error}");
        }
    }

    #[test]
    fn after_a_crash_the_model_that_was_asked_last_has_its_attempts_again() {
        let mut attempts = falling_back().resumed(3, "b");
        assert_eq!(shown(&attempts.first()), (4, 1, false));
        let broken = error(ProviderErrorKind::Connect);
        assert_eq!(shown(&attempts.after(&broken, false).unwrap()), (5, 1, false));
        assert_eq!(shown(&attempts.after(&broken, false).unwrap()), (6, 2, true));
        assert_eq!(shown(&falling_back().resumed(3, "gone").first()), (4, 0, true));
    }
}
