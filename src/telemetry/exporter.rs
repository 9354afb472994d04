//! One host's metrics page, and the one entrance for its events.

use std::sync::Arc;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::logs;
use super::metric_table::{ALL, MetricKind};
use super::metrics::Metrics;
use super::traces::Traces;
use crate::event::PublishedEvent;

/// The telemetry of one host. Cloning it is cheap, and all clones feed the same page.
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

    /// Telemetry for a host that has these tools, and traces nothing.
    #[must_use]
    pub fn new(tools: &[String]) -> Self {
        Self::with_traces(tools, |_| Traces::default())
    }

    /// The same for a host whose spans `traces` makes.
    #[must_use]
    pub fn with_traces(tools: &[String], traces: impl FnOnce(&Metrics) -> Traces) -> Self {
        let recorder = builder().build_recorder();
        let page = recorder.handle();
        let metrics = Metrics::new(Arc::new(recorder), tools);
        Self { inner: Arc::new(TelemetryInner { page, traces: traces(&metrics), metrics }) }
    }

    /// Counts and logs an event. Never blocks; for a piece of text it is a match and a look at
    /// the log level.
    pub fn observe(&self, published: &PublishedEvent) {
        self.inner.metrics.record(&published.event);
        logs::log(published);
        self.inner.traces.observe(published);
    }

    /// The metrics, for what no event tells.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Its spans.
    #[must_use]
    pub fn traces(&self) -> &Traces {
        &self.inner.traces
    }

    /// The page in Prometheus's text form.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = self.inner.page.render();
        self.inner.metrics.write_sums(&mut page);
        page
    }

    /// Moves samples into their buckets. Without it they pile up until somebody reads the page,
    /// so the host calls it every 5 seconds.
    pub fn upkeep(&self) {
        self.inner.page.run_upkeep();
    }
}

/// Every histogram gets its bounds: one without would be rendered as a summary.
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

#[expect(clippy::expect_used, reason = "only empty bounds are refused, and a test knows of none")]
fn with_bounds(builder: PrometheusBuilder, of: Matcher, bounds: &[f64]) -> PrometheusBuilder {
    builder.set_buckets_for_metric(of, bounds).expect("bounds are not empty")
}
