//! Records the metrics of one configured model.

use std::time::Duration;

use ::metrics::Gauge;

use super::logs;
use super::metric_table::{ModelHandles, SharedRecorder};
use callsheet_machines::turn::{BreakerChange, BreakerState};

/// The metrics of one configured model. The label is its name in the configuration. They exist from
/// the start of the host, at 0, and no event of a run feeds them.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    model: String,
    handles: ModelHandles,
}

impl ModelMetrics {
    pub(super) fn new(recorder: &SharedRecorder, model: &str) -> Self {
        let handles = ModelHandles::register(recorder, &[("model", model)]);
        Self { model: model.to_owned(), handles }
    }

    /// Counts one more open request until the guard is dropped.
    #[must_use]
    pub fn request_in_flight(&self) -> GaugeGuard {
        GaugeGuard::new(&self.handles.requests_in_flight)
    }

    /// Counts one more waiting request until the guard is dropped.
    #[must_use]
    pub fn request_waiting(&self) -> GaugeGuard {
        GaugeGuard::new(&self.handles.requests_waiting)
    }

    /// Records how long a request waited. 0 is recorded too.
    pub fn queue_wait(&self, waited: Duration) {
        self.handles.queue_wait.record(waited);
    }

    /// Sets the state of the circuit breaker.
    pub fn breaker(&self, state: BreakerState) {
        self.handles.breaker_state.set(f64::from(state.as_number()));
    }

    /// Sets the number of tools that are set aside.
    pub fn tools_set_aside(&self, count: usize) {
        self.handles.tools_set_aside.set(count as f64);
    }

    /// Logs that the circuit breaker opened or closed, and counts that it opened.
    pub fn breaker_changed(&self, change: BreakerChange) {
        match change {
            BreakerChange::Opened { .. } => self.handles.breaker_opened.increment(1),
            BreakerChange::Closed => {}
        }
        logs::breaker_changed(&self.model, change);
    }
}

/// Increments a gauge, and decrements it when dropped.
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
#[cfg(feature = "prometheus")]
mod tests {
    use super::super::Telemetry;
    use super::*;

    #[test]
    fn the_metrics_of_a_model_exist_from_the_start_and_follow_its_state() {
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
        meter.breaker_changed(BreakerChange::Opened {
            failures: 5,
            open_for: Duration::from_secs(30),
        });
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
