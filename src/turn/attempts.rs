//! Retries of a turn: whether another attempt follows, after which backoff, and with which model.
//!
//! When the attempts with one model are used up, or its error is one that no repetition mends,
//! the next model begins anew, at once. Every error leads there: what one service refuses (a
//! request too long for it, a key that expired) another may take, and one that no service takes
//! costs one request each.
//!
//! An attempt for which the model was not asked at all, because its breaker is open, uses up none
//! of its attempts: with another model left that one is asked at once, without one it is waited
//! until the model may be asked again. Each such wait is at most as long as one that a service may
//! ask for, and all of a turn together as long as one for each of the model's attempts.

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
    attempts_with_model: u32,
    /// In how many further ones in a row it was not asked.
    consecutive_refusals: u32,
    /// The time for which the turn waited for the breaker.
    waited: Duration,
    /// Of its streams.
    broken_stream_count: u32,
}

impl Attempts {
    pub(super) fn new(models: Arc<ModelPlans>, seed: u64) -> Self {
        Self {
            models,
            seed,
            made: 0,
            model: 0,
            attempts_with_model: 0,
            consecutive_refusals: 0,
            waited: Duration::ZERO,
            broken_stream_count: 0,
        }
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
        let streamed = self.model().streamed && self.broken_stream_count < BROKEN_STREAMS_MAX;
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
        let asked = error.retry_after.unwrap_or_default();
        if error.kind == ProviderErrorKind::Unavailable {
            return self.after_none(asked);
        }
        self.consecutive_refusals = 0;
        self.broken_stream_count += u32::from(was_streamed && is_broken_stream(error));
        let may_repeat = error.is_transient() && asked <= RETRY_AFTER_MAX;
        if may_repeat && self.attempts_with_model < self.model().max_attempts {
            let wait = self.backoff(self.attempts_with_model).max(asked);
            return Some(self.next(wait));
        }
        self.next_model()
    }

    /// The attempt after one for which the model was not asked, and may be in this time at the
    /// earliest: until another session has found out how it is, nobody knows.
    fn after_none(&mut self, earliest: Duration) -> Option<AttemptPlan> {
        self.attempts_with_model = self.attempts_with_model.saturating_sub(1);
        if let Some(plan) = self.next_model() {
            return Some(plan);
        }
        self.consecutive_refusals += 1;
        let wait = self.backoff(self.consecutive_refusals).max(earliest);
        self.waited = self.waited.saturating_add(wait);
        let waited_max = RETRY_AFTER_MAX.saturating_mul(self.model().max_attempts);
        let may_wait = wait <= RETRY_AFTER_MAX && self.waited <= waited_max;
        may_wait.then(|| self.next(wait))
    }

    /// The next model begins anew, if there is one.
    fn next_model(&mut self) -> Option<AttemptPlan> {
        self.models.iter().nth(self.model + 1)?;
        self.model += 1;
        (self.attempts_with_model, self.consecutive_refusals, self.broken_stream_count) = (0, 0, 0);
        self.waited = Duration::ZERO;
        Some(self.next(Duration::ZERO))
    }

    fn next(&mut self, wait: Duration) -> AttemptPlan {
        self.made += 1;
        self.attempts_with_model += 1;
        AttemptPlan { wait, ..self.last() }
    }

    /// The model that is asked.
    pub(super) fn model(&self) -> &ModelPlan {
        self.models.at(self.model)
    }

    /// Doubles from attempt to attempt with one model; between half and all of that, spread by the
    /// seed so that many sessions do not come back at the same moment.
    fn backoff(&self, attempts: u32) -> Duration {
        let doubled = WAIT_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(16));
        let full = doubled.min(WAIT_MAX);
        let spread = spread(self.seed, self.made);
        full / 2 + Duration::from_nanos((full.as_nanos() as u64 / 2).saturating_mul(spread) / 1024)
    }
}

/// Returns whether another framing may help: the stream itself broke. An error with a status is judged
/// like that status, whether or not it came within a stream.
fn is_broken_stream(error: &ProviderError) -> bool {
    match error.kind {
        ProviderErrorKind::Transport
        | ProviderErrorKind::Timeout
        | ProviderErrorKind::Malformed => true,
        ProviderErrorKind::InStream => error.status.is_none(),
        ProviderErrorKind::Connect
        | ProviderErrorKind::Status
        | ProviderErrorKind::TooLarge
        | ProviderErrorKind::Unavailable => false,
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
    fn an_error_within_a_response_is_judged_like_the_status_it_stands_for() {
        let told =
            |status| ProviderError { status: Some(status), ..error(ProviderErrorKind::InStream) };
        for status in [400, 401, 403, 404, 413] {
            let mut attempts = attempts(3, 1);
            attempts.first();
            assert_eq!(attempts.after(&told(status), true), None, "{status}");
        }
        for status in [429, 500, 529] {
            let mut attempts = attempts(4, 1);
            attempts.first();
            let mut limited = told(status);
            limited.retry_after = Some(Duration::from_secs(9));
            for number in 2..=4 {
                let plan = attempts.after(&limited, true).unwrap();
                assert_eq!(shown(&plan), (number, 0, true), "no stream broke: {status}");
                assert_eq!(plan.wait, Duration::from_secs(9));
            }
            assert_eq!(attempts.after(&limited, true), None);
        }
    }

    #[test]
    fn the_services_own_word_on_repeating_comes_first() {
        for (status, retryable, again) in
            [(400, true, true), (503, false, false), (429, false, false), (404, true, true)]
        {
            let mut attempts = attempts(2, 1);
            attempts.first();
            let mut error = error(ProviderErrorKind::Status);
            (error.status, error.retryable) = (Some(status), Some(retryable));
            assert_eq!(attempts.after(&error, true).is_some(), again, "{status} {retryable}");
            assert_eq!(attempts.after(&error, true), None, "within its attempts");
        }
    }

    /// Its breaker lets a request through in so many seconds.
    fn unavailable(seconds: u64) -> ProviderError {
        let retry_after = Some(Duration::from_secs(seconds));
        ProviderError { retry_after, ..error(ProviderErrorKind::Unavailable) }
    }

    #[test]
    fn a_model_that_is_not_asked_gives_way_to_the_next_at_once() {
        let mut attempts = falling_back();
        attempts.first();
        let plan = attempts.after(&unavailable(30), true).unwrap();
        assert_eq!((shown(&plan), plan.wait), ((2, 1, false), Duration::ZERO));
        let plan = attempts.after(&unavailable(240), true).unwrap();
        assert_eq!((shown(&plan), plan.wait), ((3, 2, true), Duration::ZERO));
    }

    #[test]
    fn waiting_for_a_model_that_is_not_asked_uses_up_no_attempt() {
        let mut attempts = attempts(2, 1);
        attempts.first();
        let broken = error(ProviderErrorKind::Connect);
        attempts.after(&broken, true).unwrap();
        let plan = attempts.after(&unavailable(30), true).unwrap();
        assert_eq!((plan.attempt, plan.wait), (3, Duration::from_secs(30)));
        // Another session is finding out: it is asked for more and more rarely.
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(attempts.after(&unavailable(0), true).unwrap().wait);
        }
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
        assert_eq!(attempts.after(&broken, true), None, "both of its attempts are made");
    }

    #[test]
    fn nobody_waits_for_ever_for_a_model_that_is_not_asked() {
        for (seconds, max_attempts) in [(0, 1), (1, 1), (30, 1), (60, 3), (100, 3), (120, 2)] {
            let mut attempts = attempts(max_attempts, 1);
            attempts.first();
            let (mut waited, longest) = (Duration::ZERO, RETRY_AFTER_MAX * max_attempts);
            while let Some(plan) = attempts.after(&unavailable(seconds), true) {
                waited += plan.wait;
                assert!(plan.attempt < 50);
            }
            assert!(waited <= longest && waited >= longest / 2, "{seconds}: {waited:?}");
        }
        let mut attempts = attempts(1, 1);
        attempts.first();
        assert_eq!(attempts.after(&unavailable(121), true), None);
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
