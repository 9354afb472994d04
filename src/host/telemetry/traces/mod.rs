//! Trace spans of runs, according to OpenTelemetry's GenAI conventions
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>).
//!
//! They are made from the same events as metrics and logs, if the host is built with the feature
//! `otlp` and the environment names a collector. Otherwise runs pass on the client's trace context
//! at no cost.

#[cfg(feature = "otlp")]
mod contents;
#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod finished;
#[cfg(feature = "otlp")]
mod spans;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::Counter;

use super::Metrics;
use super::metric_table::{SPANS, SharedRecorder};
use callsheet_values::config::ModelConfig;
use callsheet_values::event::PublishedEvent;
use callsheet_values::types::{Content, RunId, RunTrace, SessionId, TraceContext};
use callsheet_wire::ModelRequest;
use callsheet_wire::response::ResponseAssembler;

/// The environment variables of the collector's address: for traces, and for all signals.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The trace spans of one host, if it exports any.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    #[cfg(feature = "otlp")]
    spans: Option<Arc<spans::Spans>>,
}

/// Registers the counters of span results: exported, failed, dropped.
pub(super) fn counters(recorder: &SharedRecorder) -> [Counter; 3] {
    ["exported", "failed", "dropped"].map(|result| SPANS.series(recorder, &[("result", result)]))
}

/// A run that starts or is resumed.
#[derive(Clone, Debug)]
pub struct TracedRun<'a> {
    /// The session of the run.
    pub session: &'a SessionId,
    /// The id of the run.
    pub run: &'a RunId,
    /// The agent's name.
    pub agent: &'a str,
    /// The name of its first model in events.
    pub model: &'a str,
    /// The client's trace context.
    pub given: Option<TraceContext>,
    /// The start time: Unix time in milliseconds.
    pub began: u64,
    /// The elapsed time on the run's clock, which stops while no host runs.
    pub elapsed: Duration,
    /// The user's input, if available.
    pub input: Option<&'a Content>,
}

impl Traces {
    /// Creates traces from OpenTelemetry's environment variables. If they are invalid, logs an
    /// error and traces nothing.
    #[must_use]
    pub fn from_env(models: &BTreeMap<String, ModelConfig>, metrics: &Metrics) -> Self {
        if !is_requested(|name| std::env::var(name).ok()) {
            return Self::default();
        }
        Self::exporting(models, metrics)
    }

    #[cfg(feature = "otlp")]
    fn exporting(models: &BTreeMap<String, ModelConfig>, metrics: &Metrics) -> Self {
        match spans::Spans::from_env(models, metrics) {
            Ok(spans) => Self { spans: Some(Arc::new(spans)) },
            Err(error) => {
                tracing::error!(%error, "traces_not_exported");
                Self::default()
            }
        }
    }

    #[cfg(not(feature = "otlp"))]
    fn exporting(_: &BTreeMap<String, ModelConfig>, _: &Metrics) -> Self {
        let reason = "the environment names a collector, and this program is built without `otlp`";
        tracing::warn!(reason, "traces_not_exported");
        Self::default()
    }

    /// Starts the trace of a run. Returns the trace context for its requests and calls, if any.
    #[must_use]
    pub fn begin(&self, run: TracedRun<'_>) -> Option<Arc<RunTrace>> {
        #[cfg(feature = "otlp")]
        if let Some(spans) = &self.spans {
            return Some(spans.begin(run));
        }
        run.given.map(|given| Arc::new(RunTrace::passed_on(given)))
    }

    /// Records the request of a turn, if contents are recorded.
    pub fn request_started(&self, session: &SessionId, request: &Arc<ModelRequest>) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.capturing() {
            spans.request_started(session, request);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = (session, request);
    }

    /// Records a response, if contents are recorded. Its `AttemptEnded` follows.
    pub fn answered(&self, session: &SessionId, response: &ResponseAssembler) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.capturing() {
            spans.answered(session, response);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = (session, response);
    }

    #[cfg(feature = "otlp")]
    fn capturing(&self) -> Option<&spans::Spans> {
        self.spans.as_deref().filter(|spans| spans.captures())
    }

    /// Makes spans from an event. Never blocks.
    pub(super) fn observe(&self, published: &PublishedEvent) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = &self.spans {
            spans.observe(published);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = published;
    }

    /// Exports the queued spans and stops. Returns after at most `limit`.
    pub async fn flush(&self, limit: Duration) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.spans.clone() {
            let flushed = tokio::task::spawn_blocking(move || spans.shutdown(limit));
            // The log has the number of spans that could not be exported by then.
            let _ = tokio::time::timeout(limit, flushed).await;
        }
        #[cfg(not(feature = "otlp"))]
        let _ = limit;
    }
}

/// Returns whether the environment names a collector and does not disable the export.
fn is_requested(variable: impl Fn(&str) -> Option<String>) -> bool {
    let equals =
        |name, value: &str| variable(name).is_some_and(|v| v.trim().eq_ignore_ascii_case(value));
    let is_named =
        ENDPOINTS.iter().any(|name| variable(name).is_some_and(|v| !v.trim().is_empty()));
    is_named && !equals("OTEL_SDK_DISABLED", "true") && !equals("OTEL_TRACES_EXPORTER", "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_exported_unless_the_environment_names_a_collector() {
        let [traces, all] = ENDPOINTS;
        for (variables, expected) in [
            (vec![], false),
            (vec![(all, "")], false),
            (vec![(all, "http://h:4318")], true),
            (vec![(traces, "http://h:4318/v1/traces")], true),
            (vec![(all, "http://h"), ("OTEL_SDK_DISABLED", "true")], false),
            (vec![(all, "http://h"), ("OTEL_TRACES_EXPORTER", "none")], false),
            (vec![(all, "http://h"), ("OTEL_TRACES_EXPORTER", "otlp")], true),
        ] {
            let variable = |name: &str| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(is_requested(variable), expected, "{variables:?}");
        }
    }
}
