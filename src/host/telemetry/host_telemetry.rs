//! The telemetry of one host: metrics, their page, logs, traces and live hooks.

use std::sync::Arc;

#[cfg(not(feature = "prometheus"))]
use metrics::NoopRecorder;

use super::live_hooks::{LiveHooks, RegisteredLiveHooks};
use super::logs;
use super::metric_table::SharedRecorder;
use super::metrics::Metrics;
use super::metrics_options::MetricsOptions;
#[cfg(feature = "prometheus")]
use super::prometheus_page::PrometheusPage;
use super::traces::Traces;
use callsheet_values::event::PublishedEvent;

/// The telemetry of one host. All clones feed the same page.
#[derive(Clone, Debug)]
pub struct Telemetry {
    inner: Arc<TelemetryInner>,
}

#[derive(Debug)]
struct TelemetryInner {
    /// The host's own page, unless its metrics go to a recorder of the program.
    #[cfg(feature = "prometheus")]
    page: Option<PrometheusPage>,
    metrics: Metrics,
    traces: Traces,
    live_hooks: LiveHooks,
}

impl Telemetry {
    /// The content type of [`Telemetry::render`].
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Creates telemetry for a host with these tools: with a page of its own (feature `prometheus`), without traces.
    #[must_use]
    pub fn new(tools: &[String]) -> Self {
        Self::with(
            tools,
            &MetricsOptions::default(),
            |_| Traces::default(),
            RegisteredLiveHooks::default(),
        )
    }

    /// Creates telemetry.
    #[must_use]
    pub fn with(
        tools: &[String],
        options: &MetricsOptions,
        traces: impl FnOnce(&Metrics) -> Traces,
        live_hooks: RegisteredLiveHooks,
    ) -> Self {
        let labels = options.labels();
        #[cfg(feature = "prometheus")]
        let (recorder, page) = match options.recorder.clone() {
            Some(recorder) => (SharedRecorder::new(recorder, labels), None),
            None => {
                let (recorder, page) = PrometheusPage::new(labels);
                (recorder, Some(page))
            }
        };
        #[cfg(not(feature = "prometheus"))]
        let recorder = SharedRecorder::new(
            options.recorder.clone().unwrap_or_else(|| Arc::new(NoopRecorder)),
            labels,
        );
        let metrics = Metrics::new(recorder, tools);
        let inner = TelemetryInner {
            #[cfg(feature = "prometheus")]
            page,
            traces: traces(&metrics),
            metrics,
            live_hooks: LiveHooks::start(live_hooks),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Records and logs an event. Never blocks. Without live hooks, a text delta costs a match and a
    /// check of the log level.
    pub fn observe(&self, published: &PublishedEvent) {
        self.inner.metrics.record(&published.event);
        logs::log(published);
        self.inner.traces.observe(published);
        self.inner.live_hooks.send(published, &self.inner.metrics);
    }

    /// Returns whether text deltas have to be observed also when no client watches the session.
    #[must_use]
    pub fn observes_text(&self) -> bool {
        !self.inner.live_hooks.is_empty() || logs::logs_contents()
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

    /// Renders the host's own page in Prometheus's text format, if it has one.
    #[cfg(feature = "prometheus")]
    #[must_use]
    pub fn page(&self) -> Option<String> {
        Some(self.inner.page.as_ref()?.render(&self.inner.metrics))
    }

    /// Renders the host's own page. The text is empty if it has none.
    #[cfg(feature = "prometheus")]
    #[must_use]
    pub fn render(&self) -> String {
        self.page().unwrap_or_default()
    }

    /// Moves samples into their buckets. The host calls it at least every 5 seconds; otherwise samples
    /// accumulate until the page is rendered.
    pub fn upkeep(&self) {
        #[cfg(feature = "prometheus")]
        if let Some(page) = &self.inner.page {
            page.upkeep();
        }
    }
}
