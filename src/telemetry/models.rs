//! What is shown of one configured model.

use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram};

use super::families::SharedRecorder;
use super::{logs, names};
use crate::turn::{BreakerChange, BreakerState};

/// The metrics of one configured model, which no event of a run tells: its label is its name in
/// the configuration. They are there from the host's start, at 0.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    model: String,
    in_flight: Gauge,
    waiting: Gauge,
    queue_wait: Histogram,
    breaker: Gauge,
    opened: Counter,
}

impl ModelMetrics {
    pub(super) fn new(recorder: &SharedRecorder, model: &str) -> Self {
        let labels = [("model", model)];
        Self {
            model: model.to_owned(),
            in_flight: names::MODEL_REQUESTS.gauge(recorder, &labels),
            waiting: names::MODEL_WAITING.gauge(recorder, &labels),
            queue_wait: names::MODEL_QUEUE_WAIT.histogram(recorder, &labels),
            breaker: names::BREAKER_STATE.gauge(recorder, &labels),
            opened: names::BREAKER_OPENED.counter(recorder, &labels),
        }
    }

    /// Shows one more request that is open, until the guard is dropped.
    #[must_use]
    pub fn request_in_flight(&self) -> GaugeGuard {
        GaugeGuard::new(&self.in_flight)
    }

    /// Shows one more request that waits for a place, until the guard is dropped.
    #[must_use]
    pub fn request_waiting(&self) -> GaugeGuard {
        GaugeGuard::new(&self.waiting)
    }

    /// Counts how long a request had to wait for its place, 0 included.
    pub fn queue_wait(&self, waited: Duration) {
        self.queue_wait.record(waited);
    }

    /// Shows how far the breaker is open.
    pub fn breaker(&self, state: BreakerState) {
        self.breaker.set(f64::from(state.as_number()));
    }

    /// Counts and logs that the breaker has opened or closed.
    pub fn breaker_changed(&self, change: BreakerChange) {
        match change {
            BreakerChange::Opened { .. } => self.opened.increment(1),
            BreakerChange::Closed => {}
        }
        logs::breaker_changed(&self.model, change);
    }
}

/// One that a gauge shows.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Telemetry;
    use super::*;

    #[test]
    fn a_model_is_shown_from_the_start_and_by_what_becomes_of_it() {
        let telemetry = Telemetry::new(&[]);
        let meter = telemetry.metrics().model("main");
        let check = |lines: [&str; 5]| {
            let page = telemetry.render();
            for line in lines {
                let (name, value) = line.split_once(' ').unwrap();
                let line = format!("\ncallsheet_model_{name}{{model=\"main\"}} {value}\n");
                assert!(page.contains(&line), "{line} is not in\n{page}");
            }
        };
        check([
            "requests_in_flight 0",
            "requests_waiting 0",
            "queue_wait_seconds_count 0",
            "breaker_state 0",
            "breaker_opened_total 0",
        ]);
        let waiting = [meter.request_waiting(), meter.request_waiting()];
        let open = meter.request_in_flight();
        meter.queue_wait(Duration::from_secs(1));
        meter.breaker(BreakerState::Open);
        meter.breaker_changed(BreakerChange::Opened { failures: 5, time: Duration::from_secs(30) });
        check([
            "requests_in_flight 1",
            "requests_waiting 2",
            "queue_wait_seconds_count 1",
            "breaker_state 2",
            "breaker_opened_total 1",
        ]);
        drop((waiting, open));
        meter.breaker(BreakerState::HalfOpen);
        meter.breaker_changed(BreakerChange::Closed);
        check([
            "requests_in_flight 0",
            "requests_waiting 0",
            "queue_wait_seconds_sum 1",
            "breaker_state 1",
            "breaker_opened_total 1",
        ]);
    }
}
