//! Limits the requests to one model: a maximum number at the same time, and a circuit breaker, whose rules are in
//! `turn::breaker`. What a turn does when the breaker refuses its request is in `turn::retry`. Also limits the number
//! of batches of its deltas that are delivered at once, which keeps the host responsive under overload.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorId;
use serde::Serialize;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use super::fair_semaphore::{FairSemaphore, PermitRequest};
use super::gauge::{CountGuard, Gauge};
use crate::journal::unix_ms;
use crate::telemetry::{GaugeGuard, ModelMetrics};
use callsheet_machines::turn::{
    Breaker, BreakerChange, BreakerPermit, BreakerRefusal, BreakerRules, BreakerState, PermitReply,
    ServiceSignal,
};
use callsheet_values::config::ModelConfig;
use callsheet_values::types::{ProviderError, ProviderErrorKind, Wire, excerpt};

/// Maximum number of characters of an error that a report shows.
const ERROR_CHARS: usize = 1000;

/// Number of batches of deltas of one model that are delivered to turns at once. More batches wait outside of the
/// runtime's queue of ready tasks, which delays other tasks (the event-loop lag) by the time that all of it takes.
const DELIVERIES_MAX: usize = 256;

/// The concurrency limit and the circuit breaker of one configured model, shared by all sessions.
#[derive(Debug)]
pub(super) struct ModelLimiter {
    permits: Arc<FairSemaphore>,
    waiting: Gauge,
    in_flight: Gauge,
    /// Locked for short sections, never across an await.
    breaker: Mutex<Breaker>,
    /// Notifies the waiting requests when the breaker opens.
    opened: Notify,
    /// The origin of the breaker's clock.
    started: Instant,
    metrics: ModelMetrics,
    permits_max: Option<NonZeroU32>,
    results: RequestResults,
    /// The permits for [`DELIVERIES_MAX`] batches.
    pub(super) deliveries: Semaphore,
}

/// The current status of a configured model.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let status = &host.models()[0];
/// assert_eq!((status.name.as_str(), status.in_flight, status.waiting), ("fake", 0, 0));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelStatus {
    /// Its name in the configuration.
    pub name: String,
    /// The state of its circuit breaker.
    pub breaker: BreakerState,
    /// Requests to it whose response has not ended.
    pub in_flight: usize,
    /// Requests that wait for a permit.
    pub waiting: usize,
}

/// The configuration, the status and the failures of a model.
///
/// Returned by [`Host::model_reports`](crate::runtime::Host::model_reports).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ModelReport {
    /// Its name in the configuration.
    pub name: String,
    /// Its wire format.
    pub wire: &'static str,
    /// Its name at the service.
    pub model: String,
    /// The state of its circuit breaker.
    pub breaker: &'static str,
    /// The time until the breaker lets a probe through, in milliseconds. `None` unless the breaker is open.
    pub retry_in_ms: Option<u64>,
    /// Requests to it whose response has not ended.
    pub in_flight: usize,
    /// Requests that wait for a permit.
    pub waiting: usize,
    /// The number of permits. `None` means no limit.
    pub max_concurrent_requests: Option<NonZeroU32>,
    /// Requests that it has answered since the host started.
    pub answered: u64,
    /// Requests that failed since the host started, by kind of error.
    pub failed: BTreeMap<ProviderErrorKind, u64>,
    /// The last failure.
    pub last_error: Option<ModelFailure>,
}

/// A failed request.
///
/// Part of a [`ModelReport`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ModelFailure {
    /// The kind of error.
    pub kind: ProviderErrorKind,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// A message for people.
    pub message: String,
    /// The time: Unix time in milliseconds.
    pub time: u64,
}

/// The results of a model's requests since the host started.
#[derive(Debug, Default)]
struct RequestResults {
    answered: AtomicU64,
    /// Locked only after a failure, and by reports.
    failures: Mutex<(BTreeMap<ProviderErrorKind, u64>, Option<ModelFailure>)>,
}

impl RequestResults {
    fn add(&self, error: Option<&ProviderError>) {
        let Some(error) = error else {
            self.answered.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (kind, status) = (error.kind, error.status);
        let message = excerpt(&error.message, ERROR_CHARS);
        let (failed, last) = &mut *self.failures.lock();
        *failed.entry(kind).or_default() += 1;
        *last = Some(ModelFailure { kind, status, message, time: unix_ms() });
    }
}

/// A request that may be sent.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) in_flight: InFlightRequest,
    pub(super) breaker_permit: BreakerPermitGuard,
}

/// A permit for one exchange with a model. Dropping it passes the permit to the next request.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    _permit: PermitRequest,
    _in_flight: CountGuard,
    _gauge: GaugeGuard,
}

/// Reports the result of an exchange to the breaker. Dropping it reports an unknown result.
#[derive(Debug)]
pub(super) struct BreakerPermitGuard {
    limiter: Arc<ModelLimiter>,
    breaker_permit: Option<BreakerPermit>,
}

impl ModelLimiter {
    pub(super) fn new(config: &ModelConfig, metrics: ModelMetrics) -> Arc<Self> {
        let waiting = Gauge::default();
        let max = config.max_concurrent_requests.unwrap_or(NonZeroU32::MAX);
        let rules =
            BreakerRules { failures: config.breaker_failures, open_for: config.breaker_open_for };
        Arc::new(Self {
            permits: FairSemaphore::new(max, waiting.clone()),
            waiting,
            in_flight: Gauge::default(),
            breaker: Mutex::new(Breaker::new(rules)),
            opened: Notify::new(),
            started: Instant::now(),
            metrics,
            permits_max: config.max_concurrent_requests,
            results: RequestResults::default(),
            deliveries: Semaphore::new(DELIVERIES_MAX),
        })
    }

    /// Waits for a permit. If the request has to wait, calls `notify` when the wait begins and when the request is
    /// admitted. Dropping the future cancels the request.
    ///
    /// # Errors
    /// If the breaker refuses the request, before or after the wait, or opens during the wait.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        session: ActorId,
        notify: impl Fn(PermitReply),
    ) -> Result<Admission, ProviderError> {
        self.check_breaker()?;
        let began = Instant::now();
        let (grant, granted) = oneshot::channel();
        let (reply, permit) = self.permits.request(session, move || {
            // A receiver that was dropped has released its permit.
            let _ = grant.send(());
        });
        let waits = reply == PermitReply::Waiting;
        if waits {
            notify(reply);
            let _gauge = self.metrics.request_waiting();
            self.wait_for(granted).await?;
        }
        let breaker_permit = self.pass_breaker()?;
        if waits {
            notify(PermitReply::Granted);
        }
        self.metrics.queue_wait(if waits { began.elapsed() } else { Duration::ZERO });
        let in_flight = InFlightRequest {
            _permit: permit,
            _in_flight: self.in_flight.increment(),
            _gauge: self.metrics.request_in_flight(),
        };
        Ok(Admission { in_flight, breaker_permit })
    }

    async fn wait_for(&self, granted: oneshot::Receiver<()>) -> Result<(), ProviderError> {
        let mut granted = std::pin::pin!(granted);
        loop {
            let mut opened = std::pin::pin!(self.opened.notified());
            // Enabled before the check, so that an opening after the check is not missed.
            opened.as_mut().enable();
            self.check_breaker()?;
            tokio::select! {
                _ = &mut granted => return Ok(()),
                () = opened => {}
            }
        }
    }

    fn check_breaker(&self) -> Result<(), ProviderError> {
        self.breaker.lock().check(self.now()).map_err(BreakerRefusal::into_error)
    }

    fn pass_breaker(self: &Arc<Self>) -> Result<BreakerPermitGuard, ProviderError> {
        let mut breaker = self.breaker.lock();
        let now = self.now();
        let breaker_permit = breaker.handle_request(now).map_err(BreakerRefusal::into_error)?;
        self.metrics.breaker(breaker.state(now));
        Ok(BreakerPermitGuard { limiter: Arc::clone(self), breaker_permit: Some(breaker_permit) })
    }

    fn handle_end(&self, breaker_permit: BreakerPermit, signal: ServiceSignal) {
        let mut breaker = self.breaker.lock();
        let now = self.now();
        let change = breaker.handle_end(now, breaker_permit, signal);
        self.metrics.breaker(breaker.state(now));
        drop(breaker);
        let Some(change) = change else { return };
        self.metrics.breaker_changed(change);
        match change {
            BreakerChange::Opened { .. } => self.opened.notify_waiters(),
            BreakerChange::Closed => {}
        }
    }

    /// Updates the breaker's metric and returns its state. The metric is also updated
    /// periodically, because an open breaker becomes half open without an event.
    pub(super) fn update_metric(&self) -> BreakerState {
        let breaker = self.breaker.lock();
        let state = breaker.state(self.now());
        self.metrics.breaker(state);
        state
    }

    /// Returns the status of the model with this name.
    pub(super) fn status(&self, name: &str) -> ModelStatus {
        ModelStatus {
            name: name.to_owned(),
            breaker: self.update_metric(),
            in_flight: self.in_flight.count(),
            waiting: self.waiting.count(),
        }
    }

    /// Returns the report of the model with this name, wire format, and name at its service.
    pub(super) fn report(&self, name: &str, wire: Wire, model: &str) -> ModelReport {
        let refusal = self.breaker.lock().check(self.now()).err();
        let retry_in = refusal.and_then(|refusal| refusal.wait);
        let (failed, last_error) = self.results.failures.lock().clone();
        ModelReport {
            name: name.to_owned(),
            wire: wire.as_str(),
            model: model.to_owned(),
            breaker: self.update_metric().as_str(),
            retry_in_ms: retry_in.map(callsheet_values::types::millis),
            in_flight: self.in_flight.count(),
            waiting: self.waiting.count(),
            max_concurrent_requests: self.permits_max,
            answered: self.results.answered.load(Ordering::Relaxed),
            failed,
            last_error,
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl BreakerPermitGuard {
    /// Reports the result of the exchange: success, or this error.
    pub(super) fn report_result(mut self, error: Option<&ProviderError>) {
        self.limiter.results.add(error);
        self.end(ServiceSignal::from_error(error));
    }

    fn end(&mut self, signal: ServiceSignal) {
        if let Some(breaker_permit) = self.breaker_permit.take() {
            self.limiter.handle_end(breaker_permit, signal);
        }
    }
}

impl Drop for BreakerPermitGuard {
    fn drop(&mut self) {
        self.end(ServiceSignal::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;
    use tokio::time::advance;

    use super::*;
    use crate::telemetry::Telemetry;
    use callsheet_values::config::BaseUrl;
    use callsheet_values::types::ProviderErrorKind;

    const OPEN_FOR: Duration = Duration::from_secs(30);

    fn limiter(permits: u32, failures: u32) -> Arc<ModelLimiter> {
        let mut config = ModelConfig::new(BaseUrl::parse("http://127.0.0.1:1/v1").unwrap(), "m");
        config.max_concurrent_requests = NonZeroU32::new(permits);
        config.breaker_failures = Some(failures);
        config.breaker_open_for = OPEN_FOR;
        ModelLimiter::new(&config, Telemetry::new(&[]).metrics().model("main"))
    }

    fn failure() -> ProviderError {
        ProviderError::new(ProviderErrorKind::Connect, "connection refused")
    }

    #[track_caller]
    fn check(limiter: &ModelLimiter, breaker: BreakerState, in_flight: usize, waiting: usize) {
        let name = "main".to_owned();
        assert_eq!(limiter.status("main"), ModelStatus { name, breaker, in_flight, waiting });
    }

    async fn acquire(
        limiter: &Arc<ModelLimiter>,
        session: u64,
    ) -> Result<Admission, ProviderError> {
        limiter.acquire(ActorId::Local(session), |_| ()).await
    }

    /// Checks that a request is refused, and returns the time until the next one may succeed.
    async fn refused(limiter: &Arc<ModelLimiter>) -> Option<Duration> {
        let error = acquire(limiter, 9).await.expect_err("the request is refused");
        assert_eq!(error.kind, ProviderErrorKind::BreakerOpen);
        error.retry_after
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_held_until_it_is_dropped_and_dropped_requests_pass_it_on() {
        let limiter = limiter(1, 5);
        let first = acquire(&limiter, 1).await.unwrap();
        let replies = Mutex::new(Vec::new());
        let mut cancelled = Box::pin(acquire(&limiter, 2));
        let mut late = Box::pin(acquire(&limiter, 3));
        let mut next =
            Box::pin(limiter.acquire(ActorId::Local(4), |reply| replies.lock().push(reply)));
        assert!(poll!(&mut cancelled).is_pending() && poll!(&mut late).is_pending());
        assert!(poll!(&mut next).is_pending());
        assert_eq!(*replies.lock(), [PermitReply::Waiting]);
        check(&limiter, BreakerState::Closed, 1, 3);
        drop(cancelled);
        check(&limiter, BreakerState::Closed, 1, 2);
        drop(first);
        // This request was granted the permit, but is dropped before it is polled.
        drop(late);
        let Poll::Ready(Ok(admission)) = poll!(next) else { panic!("the request is granted") };
        assert_eq!(*replies.lock(), [PermitReply::Waiting, PermitReply::Granted]);
        check(&limiter, BreakerState::Closed, 1, 0);
        drop(admission);
        check(&limiter, BreakerState::Closed, 0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_requests_are_refused_when_the_breaker_opens() {
        let limiter = limiter(1, 1);
        let Admission { in_flight, breaker_permit } = acquire(&limiter, 1).await.unwrap();
        let mut waiting = Box::pin(acquire(&limiter, 2));
        assert!(poll!(&mut waiting).is_pending());
        breaker_permit.report_result(Some(&failure()));
        let Poll::Ready(Err(error)) = poll!(&mut waiting) else { panic!("the request is refused") };
        assert_eq!(error.retry_after, Some(OPEN_FOR));
        drop(waiting);
        check(&limiter, BreakerState::Open, 1, 0);
        assert_eq!(refused(&limiter).await, Some(OPEN_FOR));
        drop(in_flight);
        assert_eq!(refused(&limiter).await, Some(OPEN_FOR));
        check(&limiter, BreakerState::Open, 0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_open_time_one_request_probes_the_model() {
        let limiter = limiter(8, 1);
        acquire(&limiter, 1).await.unwrap().breaker_permit.report_result(Some(&failure()));
        advance(OPEN_FOR / 2).await;
        assert_eq!(refused(&limiter).await, Some(OPEN_FOR / 2));
        advance(OPEN_FOR / 2).await;
        check(&limiter, BreakerState::HalfOpen, 0, 0);
        let probe = acquire(&limiter, 1).await.unwrap();
        assert_eq!(refused(&limiter).await, None);
        // The probe is dropped without a result, so the next request is the probe.
        drop(probe);
        acquire(&limiter, 2).await.unwrap().breaker_permit.report_result(Some(&failure()));
        check(&limiter, BreakerState::Open, 0, 0);
        assert_eq!(refused(&limiter).await, Some(OPEN_FOR * 2));
        advance(OPEN_FOR * 2).await;
        acquire(&limiter, 3).await.unwrap().breaker_permit.report_result(None);
        check(&limiter, BreakerState::Closed, 0, 0);
        assert!(acquire(&limiter, 4).await.is_ok());
    }
}
