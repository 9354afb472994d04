//! The telemetry of one host: metrics page, logs and traces.

use std::sync::Arc;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::logs;
use super::metric_table::{ALL, MetricKind};
use super::metrics::Metrics;
use super::traces::Traces;
use crate::event::PublishedEvent;

/// The telemetry of one host. All clones feed the same page.
#[derive(Clone, Debug)]
pub struct Telemetry {
    inner: Arc<TelemetryInner>,
}

#[derive(Debug)]
struct TelemetryInner {
    page: PrometheusHandle,
    metrics: Metrics,
    traces: Traces,
}

impl Telemetry {
    /// The content type of [`Telemetry::render`].
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Creates telemetry for a host with these tools, without traces.
    #[must_use]
    pub fn new(tools: &[String]) -> Self {
        Self::with_traces(tools, |_| Traces::default())
    }

    /// Creates telemetry with traces.
    #[must_use]
    pub fn with_traces(tools: &[String], traces: impl FnOnce(&Metrics) -> Traces) -> Self {
        let recorder = builder().build_recorder();
        let page = recorder.handle();
        let metrics = Metrics::new(Arc::new(recorder), tools);
        Self { inner: Arc::new(TelemetryInner { page, traces: traces(&metrics), metrics }) }
    }

    /// Records and logs an event. Never blocks. For a text delta it costs a match and a check of
    /// the log level.
    pub fn observe(&self, published: &PublishedEvent) {
        self.inner.metrics.record(&published.event);
        logs::log(published);
        self.inner.traces.observe(published);
    }

    /// Returns the metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the traces.
    #[must_use]
    pub fn traces(&self) -> &Traces {
        &self.inner.traces
    }

    /// Renders the page in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = self.inner.page.render();
        self.inner.metrics.write_sums(&mut page);
        page
    }

    /// Moves samples into their buckets. The host calls it every 5 seconds; otherwise samples
    /// accumulate until the page is rendered.
    pub fn upkeep(&self) {
        self.inner.page.run_upkeep();
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
