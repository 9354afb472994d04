//! The door to one model: how many requests to it may be open at once, and whether it is asked at
//! all.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorId;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::fair_semaphore::{FairSemaphore, PermitRequest};
use super::gauge::{CountGuard, Gauge};
use crate::config::ModelConfig;
use crate::telemetry::{GaugeGuard, ModelMetrics};
use crate::turn::{
    Breaker, BreakerChange, BreakerPermit, BreakerRefusal, BreakerRules, BreakerState, PermitReply,
    ServiceSignal,
};
use crate::types::ProviderError;

/// The concurrency limit and the circuit breaker of one configured model, shared by all sessions.
#[derive(Debug)]
pub(super) struct ModelLimiter {
    permits: Arc<FairSemaphore>,
    waiting: Gauge,
    in_flight: Gauge,
    /// CountGuard for short sections, never over an await.
    breaker: Mutex<Breaker>,
    /// The breaker has opened: told to those who wait for a place.
    opened: Notify,
    began: Instant,
    meter: ModelMetrics,
}

/// The current status of a configured model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// Its name in the configuration.
    pub name: String,
    /// The state of its circuit breaker.
    pub breaker: BreakerState,
    /// Requests to it whose response has not ended.
    pub in_flight: usize,
    /// Requests that wait for a place.
    pub waiting: usize,
}

/// A request that may be sent.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) in_flight: InFlightRequest,
    pub(super) breaker_permit: BreakerPermitGuard,
}

/// A place at a model, for as long as the exchange lasts. Dropped, it is given to the next.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    _reservation: PermitRequest,
    _in_flight: CountGuard,
    _shown: GaugeGuard,
}

/// Reports the result of an exchange to the breaker. Dropping it reports an unknown result.
#[derive(Debug)]
pub(super) struct BreakerPermitGuard {
    gate: Arc<ModelLimiter>,
    breaker_permit: Option<BreakerPermit>,
}

impl ModelLimiter {
    pub(super) fn new(config: &ModelConfig, meter: ModelMetrics) -> Arc<Self> {
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
            began: Instant::now(),
            meter,
        })
    }

    /// Waits for a place, and tells of the wait's beginning and end if there is one. Dropping the
    /// future, or what it gives, leaves nothing behind.
    ///
    /// # Errors
    /// As soon as it is known that the model is not asked, also during the wait.
    pub(super) async fn enter(
        self: &Arc<Self>,
        session: ActorId,
        tell: impl Fn(PermitReply),
    ) -> Result<Admission, ProviderError> {
        self.check()?;
        let began = Instant::now();
        let (grant, granted) = oneshot::channel();
        let (place, reservation) = self.permits.reserve(session, move || {
            // One who is gone gives the place back.
            let _ = grant.send(());
        });
        let waits = place == PermitReply::Waiting;
        if waits {
            tell(place);
            let _shown = self.meter.request_waiting();
            self.wait(granted).await?;
        }
        let breaker_permit = self.admit()?;
        if waits {
            tell(PermitReply::Granted);
        }
        self.meter.queue_wait(if waits { began.elapsed() } else { Duration::ZERO });
        let in_flight = InFlightRequest {
            _reservation: reservation,
            _in_flight: self.in_flight.increment(),
            _shown: self.meter.request_in_flight(),
        };
        Ok(Admission { in_flight, breaker_permit })
    }

    async fn wait(&self, granted: oneshot::Receiver<()>) -> Result<(), ProviderError> {
        let mut granted = std::pin::pin!(granted);
        loop {
            let mut opened = std::pin::pin!(self.opened.notified());
            // Enabled before the look, so that no opening falls between the two.
            opened.as_mut().enable();
            self.check()?;
            tokio::select! {
                _ = &mut granted => return Ok(()),
                () = opened => {}
            }
        }
    }

    fn check(&self) -> Result<(), ProviderError> {
        self.breaker.lock().check(self.now()).map_err(BreakerRefusal::into_error)
    }

    fn admit(self: &Arc<Self>) -> Result<BreakerPermitGuard, ProviderError> {
        let mut breaker = self.breaker.lock();
        let now = self.now();
        let breaker_permit = breaker.handle_request(now).map_err(BreakerRefusal::into_error)?;
        self.meter.breaker(breaker.state(now));
        Ok(BreakerPermitGuard { gate: Arc::clone(self), breaker_permit: Some(breaker_permit) })
    }

    fn ended(&self, breaker_permit: BreakerPermit, sign: ServiceSignal) {
        let mut breaker = self.breaker.lock();
        let now = self.now();
        let change = breaker.handle_end(now, breaker_permit, sign);
        self.meter.breaker(breaker.state(now));
        drop(breaker);
        let Some(change) = change else { return };
        self.meter.breaker_changed(change);
        match change {
            BreakerChange::Opened { .. } => self.opened.notify_waiters(),
            BreakerChange::Closed => {}
        }
    }

    /// Shows how far the breaker is open: that time has made an open one half open is told by
    /// nobody.
    pub(super) fn show(&self) -> BreakerState {
        let breaker = self.breaker.lock();
        let state = breaker.state(self.now());
        self.meter.breaker(state);
        state
    }

    /// Returns the status of the model with this name.
    pub(super) fn status(&self, name: &str) -> ModelStatus {
        ModelStatus {
            name: name.to_owned(),
            breaker: self.show(),
            in_flight: self.in_flight.count(),
            waiting: self.waiting.count(),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl BreakerPermitGuard {
    /// The exchange was judged: it went well, or this was wrong with it.
    pub(super) fn settle(mut self, error: Option<&ProviderError>) {
        self.end(ServiceSignal::of(error));
    }

    fn end(&mut self, sign: ServiceSignal) {
        if let Some(breaker_permit) = self.breaker_permit.take() {
            self.gate.ended(breaker_permit, sign);
        }
    }
}

impl Drop for BreakerPermitGuard {
    fn drop(&mut self) {
        self.end(ServiceSignal::None);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::poll;
    use tokio::time::advance;

    use super::*;
    use crate::config::BaseUrl;
    use crate::telemetry::Telemetry;
    use crate::types::ProviderErrorKind;

    const OPEN_FOR: Duration = Duration::from_secs(30);

    fn gate(places: u32, failures: u32) -> Arc<ModelLimiter> {
        let config = ModelConfig {
            max_concurrent_requests: NonZeroU32::new(places),
            breaker_failures: Some(failures),
            breaker_open_for: OPEN_FOR,
            ..ModelConfig::new(BaseUrl::parse("http://127.0.0.1:1/v1").unwrap(), "m")
        };
        ModelLimiter::new(&config, Telemetry::new(&[]).metrics().model("main"))
    }

    fn failure() -> ProviderError {
        ProviderError::new(ProviderErrorKind::Connect, "nobody is there")
    }

    #[track_caller]
    fn check(gate: &ModelLimiter, breaker: BreakerState, in_flight: usize, waiting: usize) {
        let name = "main".to_owned();
        assert_eq!(gate.status("main"), ModelStatus { name, breaker, in_flight, waiting });
    }

    async fn enter(gate: &Arc<ModelLimiter>, session: u64) -> Result<Admission, ProviderError> {
        gate.enter(ActorId::Local(session), |_| ()).await
    }

    /// Returns whether a request is not let through, and when it may be.
    async fn refused(gate: &Arc<ModelLimiter>) -> Option<Duration> {
        let error = enter(gate, 9).await.expect_err("it is not let through");
        assert_eq!(error.kind, ProviderErrorKind::Unavailable);
        error.retry_after
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_held_until_it_is_dropped_and_those_who_leave_lose_nothing() {
        let gate = gate(1, 5);
        let first = enter(&gate, 1).await.unwrap();
        let told = Mutex::new(Vec::new());
        let mut gone = Box::pin(enter(&gate, 2));
        let mut late = Box::pin(enter(&gate, 3));
        let mut next = Box::pin(gate.enter(ActorId::Local(4), |place| told.lock().push(place)));
        assert!(poll!(&mut gone).is_pending() && poll!(&mut late).is_pending());
        assert!(poll!(&mut next).is_pending());
        assert_eq!(*told.lock(), [PermitReply::Waiting]);
        check(&gate, BreakerState::Closed, 1, 3);
        drop(gone);
        check(&gate, BreakerState::Closed, 1, 2);
        drop(first);
        // Its turn has come, but it goes before it knows.
        drop(late);
        let Poll::Ready(Ok(entered)) = poll!(next) else { panic!("it has the place") };
        assert_eq!(*told.lock(), [PermitReply::Waiting, PermitReply::Granted]);
        check(&gate, BreakerState::Closed, 1, 0);
        drop(entered);
        check(&gate, BreakerState::Closed, 0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_model_that_is_not_asked() {
        let gate = gate(1, 1);
        let Admission { in_flight, breaker_permit } = enter(&gate, 1).await.unwrap();
        let mut waiting = Box::pin(enter(&gate, 2));
        assert!(poll!(&mut waiting).is_pending());
        breaker_permit.settle(Some(&failure()));
        let Poll::Ready(Err(error)) = poll!(&mut waiting) else { panic!("it is told") };
        assert_eq!(error.retry_after, Some(OPEN_FOR));
        drop(waiting);
        check(&gate, BreakerState::Open, 1, 0);
        assert_eq!(refused(&gate).await, Some(OPEN_FOR));
        drop(in_flight);
        assert_eq!(refused(&gate).await, Some(OPEN_FOR));
        check(&gate, BreakerState::Open, 0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn when_its_time_is_over_one_request_finds_out() {
        let gate = gate(8, 1);
        enter(&gate, 1).await.unwrap().breaker_permit.settle(Some(&failure()));
        advance(OPEN_FOR / 2).await;
        assert_eq!(refused(&gate).await, Some(OPEN_FOR / 2));
        advance(OPEN_FOR / 2).await;
        check(&gate, BreakerState::HalfOpen, 0, 0);
        let trying = enter(&gate, 1).await.unwrap();
        assert_eq!(refused(&gate).await, None);
        // Its user stops it: somebody else finds out.
        drop(trying);
        enter(&gate, 2).await.unwrap().breaker_permit.settle(Some(&failure()));
        check(&gate, BreakerState::Open, 0, 0);
        assert_eq!(refused(&gate).await, Some(OPEN_FOR * 2));
        advance(OPEN_FOR * 2).await;
        enter(&gate, 3).await.unwrap().breaker_permit.settle(None);
        check(&gate, BreakerState::Closed, 0, 0);
        assert!(enter(&gate, 4).await.is_ok());
    }
}
