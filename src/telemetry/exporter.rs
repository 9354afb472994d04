//! The telemetry of one host: metrics page, logs and traces.

use std::sync::Arc;

#[cfg(not(feature = "prometheus"))]
use metrics::NoopRecorder;

use super::logs;
use super::metrics::Metrics;
#[cfg(feature = "prometheus")]
use super::prometheus_page::PrometheusPage;
use super::traces::Traces;
use crate::event::PublishedEvent;

/// The telemetry of one host. All clones feed the same page.
#[derive(Clone, Debug)]
pub struct Telemetry {
    inner: Arc<TelemetryInner>,
}

#[derive(Debug)]
struct TelemetryInner {
    #[cfg(feature = "prometheus")]
    page: PrometheusPage,
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
        #[cfg(feature = "prometheus")]
        let (recorder, page) = PrometheusPage::new();
        #[cfg(not(feature = "prometheus"))]
        let recorder = Arc::new(NoopRecorder);
        let metrics = Metrics::new(recorder, tools);
        let inner = TelemetryInner {
            #[cfg(feature = "prometheus")]
            page,
            traces: traces(&metrics),
            metrics,
        };
        Self { inner: Arc::new(inner) }
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
    #[cfg(feature = "prometheus")]
    #[must_use]
    pub fn render(&self) -> String {
        self.inner.page.render(&self.inner.metrics)
    }

    /// Moves samples into their buckets. The host calls it every 5 seconds; otherwise samples
    /// accumulate until the page is rendered.
    pub fn upkeep(&self) {
        #[cfg(feature = "prometheus")]
        self.inner.page.upkeep();
    }
}
