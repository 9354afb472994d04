//! Circuit breaker of a model or a tool: stops requests to a service that fails, and probes it later.
//!
//! - Closed: every request is let through, and consecutive failures are counted. At
//!   [`BreakerRules::failures`] of them the breaker opens (`breaker_failures`: 10 by default for a model; 0 for a
//!   tool, which is never).
//! - Open: no request is let through for [`BreakerRules::open_for`] (10 s by default).
//! - Half open: one request at a time is let through as a probe. Its success closes the breaker. Its
//!   failure opens it for twice the time, up to eight times `open_for`.
//!
//! A request that was let through before the last change, or before the last probe, does not count when it ends.
//!
//! Each configured model has one breaker, which all sessions share (`runtime::model_limiter`). So has each tool with
//! `breaker_failures` (`runtime::tool_limiter`). [`ServiceSignal::from_error`] decides what counts as a failure of a
//! model, and `ToolBreakerGuard` of `runtime::tool_limiter` what counts as a failure of a tool. [`retry`](super::retry)
//! decides what a turn does after a refusal of its request; a refused call ends with an error (`not_sent`).

use std::time::Duration;

use callsheet_values::types::{ProviderError, ProviderErrorKind};

/// The maximum time for which the breaker opens, as a multiple of [`BreakerRules::open_for`].
const OPEN_FOR_FACTOR_MAX: u32 = 8;

/// The configuration of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BreakerRules {
    /// The number of consecutive failures that open the breaker; `None`: it never opens.
    pub failures: Option<u32>,
    /// The time for which it stays open. Doubles with each failed probe, up to eightfold.
    pub open_for: Duration,
}

/// The breaker of a model or of a tool. All times must be measured from the same moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Breaker {
    rules: BreakerRules,
    /// The number of consecutive failures.
    failures: u32,
    /// Increases with every change of state and with every probe.
    epoch: u64,
    /// `None` if the breaker is closed.
    open: Option<OpenState>,
}

/// The state of a breaker that is open until a time, and half open from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OpenState {
    until: Duration,
    /// The time for which it was opened.
    open_for: Duration,
    /// True if a probe is open.
    probing: bool,
}

/// The permit of a request that was let through. Must be given back to [`Breaker::handle_end`], with
/// [`ServiceSignal::Unknown`] if the result of the request is unknown.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct BreakerPermit {
    epoch: u64,
}

/// The refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BreakerRefusal {
    /// The number of consecutive failures.
    pub failures: u32,
    /// The time until a request may be let through; `None` while a probe is open.
    pub wait: Option<Duration>,
}

/// The health of the service, as the end of a request shows it. The statuses and errors are those of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceSignal {
    /// It works: it answered, or it refused the request with a status other than 408, 429 and 5xx, such as 400, 401,
    /// 403, 404, 409 or 499. Resets the count of failures.
    Works,
    /// It failed: no connection, a timeout, a broken or unreadable response, or a status 408 or 5xx.
    Failed,
    /// It is not known: the request was cancelled, rate-limited (429) or refused by the breaker, or the response was
    /// too large. Leaves the count of failures as it is.
    Unknown,
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Every request is let through.
    Closed,
    /// One request at a time is let through as a probe.
    HalfOpen,
    /// No request is let through.
    Open,
}

/// A change of a breaker's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerChange {
    /// It has opened, or opened again after a failed probe.
    Opened {
        /// The number of consecutive failures.
        failures: u32,
        /// The time for which it stays open.
        open_for: Duration,
    },
    /// It has closed.
    Closed,
}

impl Breaker {
    /// Returns a closed breaker.
    #[must_use]
    pub fn new(rules: BreakerRules) -> Self {
        Self { rules, failures: 0, epoch: 0, open: None }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self, now: Duration) -> BreakerState {
        match self.open {
            None => BreakerState::Closed,
            Some(open) if now < open.until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Checks whether a request would be let through now.
    ///
    /// # Errors
    /// If it would be refused.
    pub fn check(&self, now: Duration) -> Result<(), BreakerRefusal> {
        let Some(open) = self.open else { return Ok(()) };
        let wait = open.until.checked_sub(now).filter(|wait| !wait.is_zero());
        if wait.is_some() || open.probing {
            return Err(BreakerRefusal { failures: self.failures, wait });
        }
        Ok(())
    }

    /// Handles a request to the service.
    ///
    /// # Errors
    /// If the request is refused. The breaker is unchanged then.
    pub fn handle_request(&mut self, now: Duration) -> Result<BreakerPermit, BreakerRefusal> {
        self.check(now)?;
        if let Some(open) = &mut self.open {
            open.probing = true;
            self.epoch += 1;
        }
        Ok(BreakerPermit { epoch: self.epoch })
    }

    /// Handles the end of a request that was let through. Returns the change of state, if any.
    pub fn handle_end(
        &mut self,
        now: Duration,
        permit: BreakerPermit,
        signal: ServiceSignal,
    ) -> Option<BreakerChange> {
        if permit.epoch != self.epoch {
            return None;
        }
        match signal {
            ServiceSignal::Unknown => {
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
                let open_for = match self.open {
                    None if self.rules.failures.is_some_and(|max| self.failures >= max) => {
                        self.rules.open_for
                    }
                    None => return None,
                    Some(open) => {
                        let longest = self.rules.open_for.saturating_mul(OPEN_FOR_FACTOR_MAX);
                        open.open_for.saturating_mul(2).min(longest)
                    }
                };
                self.epoch += 1;
                self.open = Some(OpenState {
                    until: now.saturating_add(open_for),
                    open_for,
                    probing: false,
                });
                Some(BreakerChange::Opened { failures: self.failures, open_for })
            }
        }
    }
}

impl ServiceSignal {
    /// Returns the signal of an exchange that ended with this error, or without one. An error within a
    /// stream counts as its status; without a status it is a failure.
    #[must_use]
    pub fn from_error(error: Option<&ProviderError>) -> Self {
        let Some(error) = error else { return Self::Works };
        // The service has answered: its model wrote what it cannot read, or it refuses a tool.
        if error.kind == ProviderErrorKind::UnparsableOutput || error.tool_refusal.is_some() {
            return Self::Works;
        }
        match error.status {
            Some(429) => Self::Unknown,
            Some(408 | 500..) => Self::Failed,
            Some(_) => Self::Works,
            None => match error.kind {
                ProviderErrorKind::Connect
                | ProviderErrorKind::Timeout
                | ProviderErrorKind::Transport
                | ProviderErrorKind::InStream
                | ProviderErrorKind::Malformed => Self::Failed,
                ProviderErrorKind::UnparsableOutput => Self::Works,
                // A response that is too large is not a sign of a failing service.
                ProviderErrorKind::Status
                | ProviderErrorKind::TooLarge
                | ProviderErrorKind::BreakerOpen
                | ProviderErrorKind::EmptyAnswer
                | ProviderErrorKind::Refused => Self::Unknown,
            },
        }
    }
}

impl BreakerState {
    /// Returns the name of the state.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }

    /// Returns the number of the state: 0 closed, 1 half open, 2 open.
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
        let message = format!("the model is not asked: its {}", self.describe("request"));
        let mut error = ProviderError::new(ProviderErrorKind::BreakerOpen, message);
        error.retry_after = self.wait;
        error
    }

    /// Describes the reason and the end of the refusal: "last 5 calls failed; it is tried again in 9s".
    #[must_use]
    pub fn describe(self, noun: &str) -> String {
        let Self { failures, wait } = self;
        let failed = match failures {
            1 => format!("last {noun} failed"),
            _ => format!("last {failures} {noun}s failed"),
        };
        match wait {
            Some(wait) => format!("{failed}; it is tried again in {}", rounded(wait)),
            None => format!("{failed}; another {noun} is trying it"),
        }
    }
}

/// Formats a time for people: in whole seconds, or in milliseconds below one second.
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

    /// Makes a request that ends at once.
    fn end(breaker: &mut Breaker, now: u64, signal: ServiceSignal) -> Option<BreakerChange> {
        let permit = breaker.handle_request(seconds(now)).expect("the request is let through");
        breaker.handle_end(seconds(now), permit, signal)
    }

    fn opened(failures: u32, time: u64) -> Option<BreakerChange> {
        Some(BreakerChange::Opened { failures, open_for: seconds(time) })
    }

    fn refused(failures: u32, wait: Option<u64>) -> Result<BreakerPermit, BreakerRefusal> {
        Err(BreakerRefusal { failures, wait: wait.map(seconds) })
    }

    #[test]
    fn consecutive_failures_open_the_breaker() {
        let mut breaker = breaker(3);
        for _ in 0..2 {
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Failed), None);
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Failed), None);
            // An unknown result changes nothing. A success resets the count.
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Unknown), None);
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Works), None);
        }
        assert_eq!(end(&mut breaker, 1, ServiceSignal::Failed), None);
        assert_eq!(end(&mut breaker, 2, ServiceSignal::Failed), None);
        assert_eq!(end(&mut breaker, 3, ServiceSignal::Unknown), None);
        assert_eq!(breaker.state(seconds(3)), BreakerState::Closed);
        assert_eq!(end(&mut breaker, 4, ServiceSignal::Failed), opened(3, 30));
        assert_eq!(breaker.state(seconds(33)), BreakerState::Open);
        assert_eq!(breaker.handle_request(seconds(10)), refused(3, Some(24)));
        assert_eq!(breaker.state(seconds(34)), BreakerState::HalfOpen);
    }

    #[test]
    fn a_half_open_breaker_lets_one_probe_through_and_its_success_closes_it() {
        let mut breaker = breaker(1);
        end(&mut breaker, 0, ServiceSignal::Failed);
        let probe = breaker.handle_request(seconds(30)).unwrap();
        assert_eq!(breaker.handle_request(seconds(31)), refused(1, None));
        assert_eq!(breaker.state(seconds(31)), BreakerState::HalfOpen);
        // After a probe with an unknown result, the next request is a probe.
        assert_eq!(breaker.handle_end(seconds(32), probe, ServiceSignal::Unknown), None);
        let probe = breaker.handle_request(seconds(32)).unwrap();
        let change = breaker.handle_end(seconds(33), probe, ServiceSignal::Works);
        assert_eq!(change, Some(BreakerChange::Closed));
        assert_eq!(breaker.state(seconds(33)), BreakerState::Closed);
        assert_eq!(
            end(&mut breaker, 34, ServiceSignal::Failed),
            opened(1, 30),
            "for the initial time"
        );
    }

    #[test]
    fn each_failed_probe_doubles_the_time_up_to_eightfold() {
        let mut breaker = breaker(2);
        end(&mut breaker, 0, ServiceSignal::Failed);
        let mut now = 0;
        for (failures, time) in [(2, 30), (3, 60), (4, 120), (5, 240), (6, 240), (7, 240)] {
            assert_eq!(end(&mut breaker, now, ServiceSignal::Failed), opened(failures, time));
            now += time;
            assert_eq!(breaker.handle_request(seconds(now - 1)), refused(failures, Some(1)));
        }
    }

    #[test]
    fn a_request_from_before_the_last_change_does_not_count() {
        let mut breaker = breaker(1);
        let [one, two, three, four] =
            [0; 4].map(|now| breaker.handle_request(seconds(now)).unwrap());
        assert_eq!(breaker.handle_end(seconds(1), one, ServiceSignal::Failed), opened(1, 30));
        assert_eq!(breaker.handle_end(seconds(2), two, ServiceSignal::Failed), None);
        assert_eq!(breaker.handle_end(seconds(3), three, ServiceSignal::Works), None);
        assert_eq!(breaker.handle_request(seconds(3)), refused(1, Some(28)));
        let probe = breaker.handle_request(seconds(31)).unwrap();
        assert_eq!(breaker.handle_end(seconds(32), four, ServiceSignal::Unknown), None);
        assert_eq!(
            breaker.handle_request(seconds(32)),
            refused(1, None),
            "the probe is still open"
        );
        breaker.handle_end(seconds(33), probe, ServiceSignal::Failed);
        assert_eq!(breaker.state(seconds(34)), BreakerState::Open);
    }

    #[test]
    fn a_breaker_without_a_failure_limit_never_opens() {
        let mut breaker = Breaker::new(BreakerRules { failures: None, open_for: OPEN_FOR });
        for _ in 0..1000 {
            assert_eq!(end(&mut breaker, 0, ServiceSignal::Failed), None);
        }
        assert_eq!(breaker.check(seconds(0)), Ok(()));
    }

    #[test]
    fn an_invalid_request_is_no_failure_of_the_service() {
        use ProviderErrorKind as Kind;
        let of = |kind, status| {
            ServiceSignal::from_error(Some(&ProviderError {
                status,
                ..ProviderError::new(kind, "it broke")
            }))
        };
        assert_eq!(ServiceSignal::from_error(None), ServiceSignal::Works);
        for kind in [Kind::Connect, Kind::Timeout, Kind::Transport, Kind::Malformed, Kind::InStream]
        {
            assert_eq!(of(kind, None), ServiceSignal::Failed, "{kind:?}");
        }
        for kind in [Kind::TooLarge, Kind::BreakerOpen] {
            assert_eq!(of(kind, None), ServiceSignal::Unknown, "{kind:?}");
        }
        for kind in [Kind::Status, Kind::InStream] {
            for status in [408, 500, 502, 503, 504, 529] {
                assert_eq!(of(kind, Some(status)), ServiceSignal::Failed, "{status}");
            }
            for status in [307, 400, 401, 404, 409, 413, 422] {
                assert_eq!(of(kind, Some(status)), ServiceSignal::Works, "{status}");
            }
            assert_eq!(of(kind, Some(429)), ServiceSignal::Unknown);
        }
    }

    #[test]
    fn a_refusal_names_the_failures_and_the_time_of_the_next_probe() {
        let message = |failures, wait| BreakerRefusal { failures, wait }.into_error().message;
        let before = "the model is not asked: its last";
        let wait = Some(Duration::from_millis(11_001));
        assert_eq!(
            message(5, wait),
            format!("{before} 5 requests failed; it is tried again in 12s")
        );
        let wait = Some(Duration::from_micros(4_100));
        assert_eq!(message(1, wait), format!("{before} request failed; it is tried again in 5ms"));
        let trying = format!("{before} 7 requests failed; another request is trying it");
        assert_eq!(message(7, None), trying);
        let error = BreakerRefusal { failures: 5, wait }.into_error();
        assert_eq!((error.retry_after, error.is_transient()), (wait, true));
    }

    /// A reference model of the breaker with three explicit states.
    #[derive(Debug)]
    enum Model {
        Closed { failures: u32, requests: Vec<usize> },
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
                Self::Closed { requests, .. } => requests.push(request),
                Self::HalfOpen { probe: probe @ None, .. } => *probe = Some(request),
                Self::Open { .. } | Self::HalfOpen { .. } => return false,
            }
            true
        }

        fn end(&mut self, now: u64, ended: usize, signal: ServiceSignal, max: u32) {
            match self {
                Self::Closed { failures, requests } if requests.contains(&ended) => match signal {
                    ServiceSignal::Unknown => {}
                    ServiceSignal::Works => *failures = 0,
                    ServiceSignal::Failed if *failures + 1 < max => *failures += 1,
                    ServiceSignal::Failed => {
                        *self = Self::Open { since: now, time: 30, failures: max }
                    }
                },
                Self::HalfOpen { time, failures, probe } if *probe == Some(ended) => match signal {
                    ServiceSignal::Unknown => *probe = None,
                    ServiceSignal::Works => {
                        *self = Self::Closed { failures: 0, requests: Vec::new() }
                    }
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
        fn the_breaker_agrees_with_a_reference_model(
            max in 1_u32..4,
            steps in prop::collection::vec(
                // Each step lets time pass, and then makes a request or ends one that is open.
                (0_u64..40, any::<prop::sample::Index>(), 0_u8..6), 0..120),
        ) {
            let mut breaker = breaker(max);
            let mut model = Model::Closed { failures: 0, requests: Vec::new() };
            let (mut now, mut permits) = (0, Vec::new());
            for (request, (passed, which, action)) in steps.into_iter().enumerate() {
                now += passed;
                model.pass_time(now);
                let signal = match action {
                    0 | 1 => ServiceSignal::Failed,
                    2 => ServiceSignal::Works,
                    3 => ServiceSignal::Unknown,
                    _ => {
                        let permit = breaker.handle_request(seconds(now));
                        prop_assert_eq!(permit.is_ok(), model.request(request), "{:?}", model);
                        permits.extend(permit.ok().map(|permit| (request, permit)));
                        continue;
                    }
                };
                if permits.is_empty() {
                    continue;
                }
                let (ended, permit) = permits.swap_remove(which.index(permits.len()));
                let before = model.state();
                let change = breaker.handle_end(seconds(now), permit, signal);
                model.end(now, ended, signal, max);
                let changed = match model {
                    Model::Open { since, time, failures } if since == now && time > 0 && before != BreakerState::Open => {
                        Some(BreakerChange::Opened { failures, open_for: seconds(time) })
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
