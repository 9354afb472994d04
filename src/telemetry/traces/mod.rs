//! Spans of runs, by OpenTelemetry's GenAI conventions
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>).
//!
//! They are made of the same events as metrics and logs, where the host is built with the feature
//! `otlp` and the environment names a collector. Else runs pass on the trace that they were asked
//! for in, and nothing here costs anything.

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
use crate::config::ModelConfig;
use crate::event::PublishedEvent;
use crate::response::ResponseAssembler;
use crate::types::{Content, RunId, RunTrace, SessionId, TraceContext};
use crate::wire::ModelRequest;

/// Where the environment names the collector: for traces alone, or for all that is exported.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Makes the spans of one host, if it has any. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    #[cfg(feature = "otlp")]
    spans: Option<Arc<spans::Spans>>,
}

/// What became of spans: exported, failed, dropped.
pub(super) fn counters(recorder: &SharedRecorder) -> [Counter; 3] {
    ["exported", "failed", "dropped"].map(|result| SPANS.series(recorder, &[("result", result)]))
}

/// A run that begins, or goes on.
#[derive(Clone, Debug)]
pub struct TracedRun<'a> {
    /// Its session.
    pub session: &'a SessionId,
    /// The run.
    pub run: &'a RunId,
    /// Which agent runs.
    pub agent: &'a str,
    /// The model that it asks first, by its name at its service.
    pub model: &'a str,
    /// Where it stands in the trace of whoever asked for it.
    pub given: Option<TraceContext>,
    /// When it began: Unix time in milliseconds.
    pub began: u64,
    /// How long it has gone on by its own clock, which stands still while no host runs.
    pub elapsed: Duration,
    /// What the user said, where that is at hand.
    pub input: Option<&'a Content>,
}

impl Traces {
    /// As the environment says: OpenTelemetry's own variables. What is wrong with them is logged,
    /// and nothing is traced then.
    #[must_use]
    pub fn from_env(models: &BTreeMap<String, ModelConfig>, metrics: &Metrics) -> Self {
        if !is_asked_for(|name| std::env::var(name).ok()) {
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

    /// A run begins, or goes on. Says what its requests and calls bring along, if anything.
    #[must_use]
    pub fn begin(&self, run: TracedRun<'_>) -> Option<Arc<RunTrace>> {
        #[cfg(feature = "otlp")]
        if let Some(spans) = &self.spans {
            return Some(spans.begin(run));
        }
        run.given.map(|given| Arc::new(RunTrace::passed_on(given)))
    }

    /// A turn of the session's run asks this. Kept only where contents are wanted.
    pub fn asks(&self, session: &SessionId, request: &Arc<ModelRequest>) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.capturing() {
            spans.asks(session, request);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = (session, request);
    }

    /// The session's run was answered this; its `AttemptEnded` comes next. Kept only where
    /// contents are wanted.
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

    /// Makes of an event what there is to make. Never blocks.
    pub(super) fn observe(&self, published: &PublishedEvent) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = &self.spans {
            spans.observe(published);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = published;
    }

    /// Exports what waits for that, and then nothing more. Returns after `limit` at the latest.
    pub async fn flush(&self, limit: Duration) {
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.spans.clone() {
            let flushed = tokio::task::spawn_blocking(move || spans.shutdown(limit));
            // What could not be exported by then is counted.
            let _ = tokio::time::timeout(limit, flushed).await;
        }
        #[cfg(not(feature = "otlp"))]
        let _ = limit;
    }
}

/// Whether the environment names a collector, and does not forbid to export to it.
fn is_asked_for(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is =
        |name, value: &str| variable(name).is_some_and(|v| v.trim().eq_ignore_ascii_case(value));
    let is_named =
        ENDPOINTS.iter().any(|name| variable(name).is_some_and(|v| !v.trim().is_empty()));
    is_named && !is("OTEL_SDK_DISABLED", "true") && !is("OTEL_TRACES_EXPORTER", "none")
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
            assert_eq!(is_asked_for(variable), expected, "{variables:?}");
        }
    }
}
