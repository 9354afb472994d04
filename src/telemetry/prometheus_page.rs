//! The metrics of one host as a page in Prometheus's text format.

use std::fmt::Write as _;
use std::sync::Arc;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::metric_table::{ALL, Metric, MetricKind, SharedRecorder};
use super::metrics::Metrics;

/// The page of a recorder.
#[derive(Debug)]
pub(super) struct PrometheusPage(PrometheusHandle);

impl PrometheusPage {
    /// Creates a recorder and its page.
    pub(super) fn new() -> (SharedRecorder, Self) {
        let recorder = builder().build_recorder();
        let page = Self(recorder.handle());
        (Arc::new(recorder), page)
    }

    /// Renders the series of the recorder, and the sums of seconds, which the recorder cannot hold.
    pub(super) fn render(&self, metrics: &Metrics) -> String {
        let mut page = self.0.render();
        let sums = ALL.iter().filter(|metric| metric.kind == MetricKind::SecondsSum);
        for Metric { name, help, .. } in sums {
            let seconds = metrics.tool_execution_seconds();
            // Writing to a string cannot fail.
            let _ok =
                writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {seconds}\n");
        }
        page
    }

    /// Moves samples into their buckets.
    pub(super) fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Sets the bounds of every histogram. A histogram without bounds would be rendered as a summary.
fn builder() -> PrometheusBuilder {
    let mut builder = PrometheusBuilder::new();
    for metric in ALL {
        if let MetricKind::Histogram(bounds) = metric.kind {
            let matcher = Matcher::Full(metric.name.to_owned());
            builder = with_bounds(builder, matcher, bounds);
        }
    }
    builder
}

#[expect(
    clippy::expect_used,
    reason = "only empty bounds are an error, and a test checks that there are none"
)]
fn with_bounds(builder: PrometheusBuilder, of: Matcher, bounds: &[f64]) -> PrometheusBuilder {
    builder.set_buckets_for_metric(of, bounds).expect("bounds are not empty")
}
