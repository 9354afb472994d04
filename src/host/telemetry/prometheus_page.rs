//! The metrics of one host as a page in Prometheus's text format.

use std::fmt::Write as _;
use std::sync::Arc;

use ::metrics::Label;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::metric_table::{ALL, Metric, MetricKind, SharedRecorder, histogram_bounds};
use super::metrics::Metrics;

/// The page of a recorder.
#[derive(Debug)]
pub(super) struct PrometheusPage {
    handle: PrometheusHandle,
    /// The labels of every series in the form of the page: empty, or `{name="value"}`.
    labels: String,
}

impl PrometheusPage {
    /// Creates a recorder whose series have these labels, and its page.
    pub(super) fn new(labels: Vec<Label>) -> (SharedRecorder, Self) {
        let recorder = builder().build_recorder();
        let page = Self { handle: recorder.handle(), labels: format_labels(&labels) };
        (SharedRecorder::of_own_page(Arc::new(recorder), labels), page)
    }

    /// Renders the series of the recorder, and the sums of seconds, which the recorder cannot hold.
    pub(super) fn render(&self, metrics: &Metrics) -> String {
        let mut page = self.handle.render();
        let labels = &self.labels;
        let sums = ALL.iter().filter(|metric| metric.kind == MetricKind::SecondsSum);
        for Metric { name, help, .. } in sums {
            let seconds = metrics.tool_execution_seconds();
            // Writing to a string cannot fail.
            let _ok = writeln!(
                page,
                "# HELP {name} {help}\n# TYPE {name} counter\n{name}{labels} {seconds}\n"
            );
        }
        page
    }

    /// Moves samples into their buckets.
    pub(super) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Formats labels in the form of the page. [`MetricsOptions::check`](super::MetricsOptions::check)
/// accepts only values that need no escapes.
fn format_labels(labels: &[Label]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels: Vec<String> =
        labels.iter().map(|label| format!("{}=\"{}\"", label.key(), label.value())).collect();
    format!("{{{}}}", labels.join(","))
}

/// Sets the bounds of every histogram. A histogram without bounds would be rendered as a summary.
fn builder() -> PrometheusBuilder {
    histogram_bounds().fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
        with_bounds(builder, Matcher::Full(name.to_owned()), bounds)
    })
}

#[expect(
    clippy::expect_used,
    reason = "only empty bounds are an error, and a test checks that there are none"
)]
fn with_bounds(builder: PrometheusBuilder, matcher: Matcher, bounds: &[f64]) -> PrometheusBuilder {
    builder.set_buckets_for_metric(matcher, bounds).expect("bounds are not empty")
}
