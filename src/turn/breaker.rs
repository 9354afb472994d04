//! When a model is not asked any more because its service has failed too often, and when it is
//! tried again: a circuit breaker.
//!
//! Closed, every request is let through, and failures in a row are counted. When there are too
//! many it opens: nothing is let through for a while. Then it is half open: one request at a time
//! is, and how that fares decides. A request that was let through before the last of these changes
//! is of the past, and says nothing when it ends.
//!
//! It weighs the service, not the request: [`ServiceSignal`].

use std::time::Duration;

use crate::types::{ProviderError, ProviderErrorKind};

/// The longest time for which it opens, in times of the first.
const OPEN_TIMES_MAX: u32 = 8;

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BreakerRules {
    /// The number of consecutive failures that open it; `None`: it never opens.
    pub failures: Option<u32>,
    /// The time for which it stays open. Doubles with each failed probe, up to eightfold.
    pub open_for: Duration,
}

/// The breaker of one model. Time is counted from any moment that stays the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Breaker {
    rules: BreakerRules,
    /// In a row, up to now.
    failures: u32,
    /// Rises with every change, and with every request that is let through to find out.
    epoch: u64,
    open: Option<Open>,
}

/// Not closed: open until a moment, and half open from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Open {
    until: Duration,
    /// For how long it was opened.
    time: Duration,
    /// True if a request has been let through to find out how the service is.
    probing: bool,
}

/// A request was let through. However it ends, that has to be said: by
/// [`Breaker::handle_end`], or [`ServiceSignal::None`] if nobody knows.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct BreakerPermit {
    epoch: u64,
}

/// A request is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BreakerRefusal {
    /// The number of consecutive failures.
    pub failures: u32,
    /// When it may be let through; none while another one is finding out.
    pub wait: Option<Duration>,
}

/// The health of the service, as the end of a request shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceSignal {
    /// It works: it answered, or refused what was wrong with the request.
    Works,
    /// It failed: no connection, silence, a broken or unreadable response, a status that says so.
    Failed,
    /// Unknown: the request was cancelled or rate-limited.
    None,
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Every request is let through.
    Closed,
    /// One at a time is.
    HalfOpen,
    /// None is.
    Open,
}

/// It has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerChange {
    /// It has opened, perhaps anew.
    Opened {
        /// After so many failures in a row.
        failures: u32,
        /// For how long.
        time: Duration,
    },
    /// It has closed.
    Closed,
}

impl Breaker {
    /// A closed one.
    #[must_use]
    pub fn new(rules: BreakerRules) -> Self {
        Self { rules, failures: 0, epoch: 0, open: None }
    }

    /// The state of a breaker.
    #[must_use]
    pub fn state(&self, now: Duration) -> BreakerState {
        match self.open {
            None => BreakerState::Closed,
            Some(open) if now < open.until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Returns whether a request would be let through, as far as is known before it is made.
    ///
    /// # Errors
    /// When it would not.
    pub fn check(&self, now: Duration) -> Result<(), BreakerRefusal> {
        let Some(open) = self.open else { return Ok(()) };
        let wait = open.until.checked_sub(now).filter(|wait| !wait.is_zero());
        if wait.is_some() || open.probing {
            return Err(BreakerRefusal { failures: self.failures, wait });
        }
        Ok(())
    }

    /// Handles a request to the model.
    ///
    /// # Errors
    /// When the request is not let through. Nothing has changed then.
    pub fn handle_request(&mut self, now: Duration) -> Result<BreakerPermit, BreakerRefusal> {
        self.check(now)?;
        if let Some(open) = &mut self.open {
            open.probing = true;
            self.epoch += 1;
        }
        Ok(BreakerPermit { epoch: self.epoch })
    }

    /// A request that was let through is over.
    pub fn handle_end(
        &mut self,
        now: Duration,
        pass: BreakerPermit,
        sign: ServiceSignal,
    ) -> Option<BreakerChange> {
        if pass.epoch != self.epoch {
            return None;
        }
        match sign {
            ServiceSignal::None => {
                if let Some(open) = &mut self.open {
                    open.probing = false;
                }
                None
            }
            ServiceSignal::Works => {
                self.failures = 0;
                let was_open = self.open.take().is_some();
                was_open.then(|| {
                    self.epoch += 1;
                    BreakerChange::Closed
                })
            }
            ServiceSignal::Failed => {
                self.failures = self.failures.saturating_add(1);
                let time = match self.open {
                    None if self.rules.failures.is_some_and(|max| self.failures >= max) => {
                        self.rules.open_for
                    }
                    None => return None,
                    Some(open) => {
                        let longest = self.rules.open_for.saturating_mul(OPEN_TIMES_MAX);
                        open.time.saturating_mul(2).min(longest)
                    }
                };
                self.epoch += 1;
                self.open = Some(Open { until: now.saturating_add(time), time, probing: false });
                Some(BreakerChange::Opened { failures: self.failures, time })
            }
        }
    }
}

impl ServiceSignal {
    /// What the outcome of an exchange says of the service. An error within a response counts as
    /// the status that it stands for, and one that stands for none as a failure.
    #[must_use]
    pub fn of(error: Option<&ProviderError>) -> Self {
        let Some(error) = error else { return Self::Works };
        match error.status {
            Some(429) => Self::None,
            Some(408 | 500..) => Self::Failed,
            Some(_) => Self::Works,
            None => match error.kind {
                ProviderErrorKind::Connect
                | ProviderErrorKind::Timeout
                | ProviderErrorKind::Transport
                | ProviderErrorKind::InStream
                | ProviderErrorKind::Malformed => Self::Failed,
                // A response that is too large says nothing about the service.
                ProviderErrorKind::Status
                | ProviderErrorKind::TooLarge
                | ProviderErrorKind::Unavailable => Self::None,
            },
        }
    }
}

impl BreakerState {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }

    /// The number for it: 0 closed, 1 half open, 2 open.
    #[must_use]
    pub fn as_number(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }
}

impl BreakerRefusal {
    /// Returns the error of a request that the breaker refuses.
    #[must_use]
    pub fn into_error(self) -> ProviderError {
        let Self { failures, wait } = self;
        let (count, noun) = if failures == 1 {
            (String::new(), "request")
        } else {
            (format!("{failures} "), "requests")
        };
        let then = match wait {
            Some(wait) => format!("it is tried again in {}", rounded(wait)),
            None => "another session is trying it again".to_owned(),
        };
        let message = format!("the model is not asked: its last {count}{noun} failed; {then}");
        let mut error = ProviderError::new(ProviderErrorKind::Unavailable, message);
        error.retry_after = wait;
        error
    }
}

/// A time for people, in whole seconds if it has any.
fn rounded(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1000);
    if time < Duration::from_secs(1) {
        format!("{}ms", time.as_micros().div_ceil(1000))
    } else {
        format!("{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPEN_FOR: Duration = Duration::from_secs(30);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn breaker(failures: u32) -> Breaker {
        Breaker::new(BreakerRules { failures: Some(failures), open_for: OPEN_FOR })
    }

    /// A request from its beginning to its end at one moment.
    fn end(breaker: &mut Breaker, now: u64, sign: ServiceSignal) -> Option<BreakerChange> {
        let pass = breaker.handle_request(seconds(now)).expect("it is let through");
        breaker.handle_end(seconds(now), pass, sign)
    }

    fn opened(failures: u32, time: u64) -> Option<BreakerChange> {
        Some(BreakerChange::Opened { failures, time: seconds(time) })
    }

    fn not_asked(failures: u32, wait: Option<u64>) -> Result<BreakerPermit, BreakerRefusal> {
        Err(BreakerRefusal { failures, wait: wait.map(seconds) })
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = breaker(3);
        for _ in 0..2 {
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Failed), None);
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Failed), None);
            // This changes nothing, and the next begins the count anew.
            assert_eq!(end(&mut breaker, 0, ServiceSignal::None), None);
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Works), None);
        }
        assert_eq!(end(&mut breaker, 1, ServiceSignal::Failed), None);
        assert_eq!(end(&mut breaker, 2, ServiceSignal::Failed), None);
        assert_eq!(end(&mut breaker, 3, ServiceSignal::None), None);
        assert_eq!(breaker.state(seconds(3)), BreakerState::Closed);
        assert_eq!(end(&mut breaker, 4, ServiceSignal::Failed), opened(3, 30));
        assert_eq!(breaker.state(seconds(33)), BreakerState::Open);
        assert_eq!(breaker.handle_request(seconds(10)), not_asked(3, Some(24)));
        assert_eq!(breaker.state(seconds(34)), BreakerState::HalfOpen);
    }

    #[test]
    fn one_request_at_a_time_finds_out_and_its_success_closes_it() {
        let mut breaker = breaker(1);
        end(&mut breaker, 0, ServiceSignal::Failed);
        let probe = breaker.handle_request(seconds(30)).unwrap();
        assert_eq!(breaker.handle_request(seconds(31)), not_asked(1, None));
        assert_eq!(breaker.state(seconds(31)), BreakerState::HalfOpen);
        // Whoever leaves, or is told to ask less often, lets the next one try.
        assert_eq!(breaker.handle_end(seconds(32), probe, ServiceSignal::None), None);
        let probe = breaker.handle_request(seconds(32)).unwrap();
        let change = breaker.handle_end(seconds(33), probe, ServiceSignal::Works);
        assert_eq!(change, Some(BreakerChange::Closed));
        assert_eq!(breaker.state(seconds(33)), BreakerState::Closed);
        assert_eq!(
            end(&mut breaker, 34, ServiceSignal::Failed),
            opened(1, 30),
            "as long as at first"
        );
    }

    #[test]
    fn each_vain_try_doubles_the_time_up_to_eightfold() {
        let mut breaker = breaker(2);
        end(&mut breaker, 0, ServiceSignal::Failed);
        let mut now = 0;
        for (failures, time) in [(2, 30), (3, 60), (4, 120), (5, 240), (6, 240), (7, 240)] {
            assert_eq!(end(&mut breaker, now, ServiceSignal::Failed), opened(failures, time));
            now += time;
            assert_eq!(breaker.handle_request(seconds(now - 1)), not_asked(failures, Some(1)));
        }
    }

    #[test]
    fn requests_of_the_past_say_nothing() {
        let mut breaker = breaker(1);
        let [one, two, three, four] =
            [0; 4].map(|now| breaker.handle_request(seconds(now)).unwrap());
        assert_eq!(breaker.handle_end(seconds(1), one, ServiceSignal::Failed), opened(1, 30));
        assert_eq!(breaker.handle_end(seconds(2), two, ServiceSignal::Failed), None);
        assert_eq!(breaker.handle_end(seconds(3), three, ServiceSignal::Works), None);
        assert_eq!(breaker.handle_request(seconds(3)), not_asked(1, Some(28)));
        let probe = breaker.handle_request(seconds(31)).unwrap();
        assert_eq!(breaker.handle_end(seconds(32), four, ServiceSignal::None), None);
        assert_eq!(breaker.handle_request(seconds(32)), not_asked(1, None), "it is still tried");
        breaker.handle_end(seconds(33), probe, ServiceSignal::Failed);
        assert_eq!(breaker.state(seconds(34)), BreakerState::Open);
    }

    #[test]
    fn without_a_number_it_never_opens() {
        let mut breaker = Breaker::new(BreakerRules { failures: None, open_for: OPEN_FOR });
        for _ in 0..1000 {
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Failed), None);
        }
        assert_eq!(breaker.check(seconds(0)), Ok(()));
    }

    #[test]
    fn the_service_is_weighed_and_not_the_request() {
        use ProviderErrorKind as Kind;
        let of = |kind, status| {
            ServiceSignal::of(Some(&ProviderError {
                status,
                ..ProviderError::new(kind, "it broke")
            }))
        };
        assert_eq!(ServiceSignal::of(None), ServiceSignal::Works);
        for kind in [Kind::Connect, Kind::Timeout, Kind::Transport, Kind::Malformed, Kind::InStream]
        {
            assert_eq!(of(kind, None), ServiceSignal::Failed, "{kind:?}");
        }
        for kind in [Kind::TooLarge, Kind::Unavailable] {
            assert_eq!(of(kind, None), ServiceSignal::None, "{kind:?}");
        }
        for kind in [Kind::Status, Kind::InStream] {
            for status in [408, 500, 502, 503, 504, 529] {
                assert_eq!(of(kind, Some(status)), ServiceSignal::Failed, "{status}");
            }
            for status in [307, 400, 401, 404, 409, 413, 422] {
                assert_eq!(of(kind, Some(status)), ServiceSignal::Works, "{status}");
            }
            assert_eq!(of(kind, Some(429)), ServiceSignal::None);
        }
    }

    #[test]
    fn it_says_why_nobody_is_asked_and_until_when() {
        let said = |failures, wait| BreakerRefusal { failures, wait }.into_error().message;
        let before = "the model is not asked: its last";
        let wait = Some(Duration::from_millis(11_001));
        assert_eq!(said(5, wait), format!("{before} 5 requests failed; it is tried again in 12s"));
        let wait = Some(Duration::from_micros(4_100));
        assert_eq!(said(1, wait), format!("{before} request failed; it is tried again in 5ms"));
        let trying = format!("{before} 7 requests failed; another session is trying it again");
        assert_eq!(said(7, None), trying);
        let error = BreakerRefusal { failures: 5, wait }.into_error();
        assert_eq!((error.retry_after, error.is_transient()), (wait, true));
    }

    /// The rule as one would write it down: three states, each with what it needs.
    #[derive(Debug)]
    enum Model {
        Closed { failures: u32, open: Vec<usize> },
        Open { since: u64, time: u64, failures: u32 },
        HalfOpen { time: u64, failures: u32, probe: Option<usize> },
    }

    impl Model {
        fn pass_time(&mut self, now: u64) {
            if let Self::Open { since, time, failures } = *self
                && now >= since + time
            {
                *self = Self::HalfOpen { time, failures, probe: None };
            }
        }

        fn request(&mut self, request: usize) -> bool {
            match self {
                Self::Closed { open, .. } => open.push(request),
                Self::HalfOpen { probe: probe @ None, .. } => *probe = Some(request),
                Self::Open { .. } | Self::HalfOpen { .. } => return false,
            }
            true
        }

        fn end(&mut self, now: u64, ended: usize, sign: ServiceSignal, max: u32) {
            match self {
                Self::Closed { failures, open } if open.contains(&ended) => match sign {
                    ServiceSignal::None => {}
                    ServiceSignal::Works => *failures = 0,
                    ServiceSignal::Failed if *failures + 1 < max => *failures += 1,
                    ServiceSignal::Failed => {
                        *self = Self::Open { since: now, time: 30, failures: max }
                    }
                },
                Self::HalfOpen { time, failures, probe } if *probe == Some(ended) => match sign {
                    ServiceSignal::None => *probe = None,
                    ServiceSignal::Works => *self = Self::Closed { failures: 0, open: Vec::new() },
                    ServiceSignal::Failed => {
                        let (time, failures) = ((*time * 2).min(240), *failures + 1);
                        *self = Self::Open { since: now, time, failures };
                    }
                },
                Self::Closed { .. } | Self::Open { .. } | Self::HalfOpen { .. } => {}
            }
        }

        fn state(&self) -> BreakerState {
            match self {
                Self::Closed { .. } => BreakerState::Closed,
                Self::Open { .. } => BreakerState::Open,
                Self::HalfOpen { .. } => BreakerState::HalfOpen,
            }
        }
    }

    proptest! {
        #[test]
        fn it_does_as_its_rule_says(
            max in 1_u32..4,
            steps in prop::collection::vec(
                // Time passes, and somebody asks, or any request that is open ends.
                (0_u64..40, any::<prop::sample::Index>(), 0_u8..6), 0..120),
        ) {
            let mut breaker = breaker(max);
            let mut model = Model::Closed { failures: 0, open: Vec::new() };
            let (mut now, mut passes) = (0, Vec::new());
            for (request, (passed, which, action)) in steps.into_iter().enumerate() {
                now += passed;
                model.pass_time(now);
                let sign = match action {
                    0 | 1 => ServiceSignal::Failed,
                    2 => ServiceSignal::Works,
                    3 => ServiceSignal::None,
                    _ => {
                        let pass = breaker.handle_request(seconds(now));
                        prop_assert_eq!(pass.is_ok(), model.request(request), "{:?}", model);
                        passes.extend(pass.ok().map(|pass| (request, pass)));
                        continue;
                    }
                };
                if passes.is_empty() {
                    continue;
                }
                let (ended, pass) = passes.swap_remove(which.index(passes.len()));
                let before = model.state();
                let change = breaker.handle_end(seconds(now), pass, sign);
                model.end(now, ended, sign, max);
                let changed = match model {
                    Model::Open { since, time, failures } if since == now && time > 0 && before != BreakerState::Open => {
                        Some(BreakerChange::Opened { failures, time: seconds(time) })
                    }
                    Model::Closed { .. } if before != BreakerState::Closed => Some(BreakerChange::Closed),
                    Model::Closed { .. } | Model::Open { .. } | Model::HalfOpen { .. } => None,
                };
                prop_assert_eq!(change, changed);
                prop_assert_eq!(breaker.state(seconds(now)), model.state());
            }
        }
    }
}
