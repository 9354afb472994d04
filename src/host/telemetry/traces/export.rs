//! Exports finished spans: a bounded queue, a thread of the SDK that sends batches, and counters of
//! the results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ::metrics::Counter;
use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor as _};
use reqwest::redirect::Policy;
use tokio::runtime::Handle;

use crate::telemetry::Metrics;
use crate::telemetry::traces::counters;
use callsheet_tools::tls;
use callsheet_values::types::{excerpt, one_line};

/// The default size of the queue, as in the SDK.
const QUEUE_MAX: usize = 2_048;

/// The default time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The supported samplers.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// Maximum size of a collector's answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Queues finished spans. Never waits for the collector.
#[derive(Debug)]
pub(super) struct SpanExporterQueue {
    processor: BatchSpanProcessor,
    counts: Arc<SpanCounts>,
    queue_max: usize,
}

/// Counters of the spans' results.
struct SpanCounts {
    /// Spans that are queued or being sent.
    waiting: AtomicUsize,
    exported: Counter,
    failed: Counter,
    dropped: Counter,
    /// True if the last batch failed. Only the first failure in a row is logged.
    failing: AtomicBool,
}

impl SpanExporterQueue {
    /// Creates the exporter from the environment.
    ///
    /// # Errors
    /// If the environment variables are invalid, or no HTTP client can be created.
    pub(super) fn from_env(metrics: &Metrics) -> Result<Self, String> {
        // The SDK would use its defaults instead of a protocol or sampler that it does not know.
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let in_any_case = |value: &str, word: &str| value.trim().eq_ignore_ascii_case(word);
        if let Some(problem) = unknown(&protocols, &["http/protobuf"], in_any_case) {
            return Err(problem);
        }
        // The SDK compares the name of a sampler exactly.
        let exactly = |value: &str, word: &str| value == word;
        if let Some(problem) = unknown(&["OTEL_TRACES_SAMPLER"], &SAMPLERS, exactly) {
            tracing::warn!(problem, "all_traces_sampled");
        }
        let client = CollectorClient::from_env().map_err(|error| error.to_string())?;
        let exporter = OtlpExporter::builder().with_http().with_http_client(client).build();
        let exporter = exporter.map_err(|error| error.to_string())?;
        let [exported, failed, dropped] = counters(&metrics.recorder);
        let counts = Arc::new(SpanCounts {
            waiting: AtomicUsize::new(0),
            exported,
            failed,
            dropped,
            failing: AtomicBool::new(false),
        });
        let counted = CountingExporter { exporter, counts: Arc::clone(&counts) };
        let mut processor = BatchSpanProcessor::builder(counted).build();
        processor.set_resource(&resource());
        let queue_max = number("OTEL_BSP_MAX_QUEUE_SIZE").unwrap_or(QUEUE_MAX);
        Ok(Self { processor, counts, queue_max })
    }

    /// Queues a span. Counts it as dropped if the queue is full.
    pub(super) fn queue(&self, span: SpanData) {
        let more = |waiting| (waiting < self.queue_max).then_some(waiting + 1);
        let waiting = &self.counts.waiting;
        if waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
            self.processor.on_end(span);
        } else {
            self.counts.dropped.increment(1);
        }
    }

    /// Counts one span as dropped, for a run that gets no spans.
    pub(super) fn count_dropped(&self) {
        self.counts.dropped.increment(1);
    }

    /// Sends the queued spans and stops. Blocks for at most `limit`.
    pub(super) fn shutdown(&self, limit: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(limit) {
            let lost = self.counts.waiting.load(Ordering::Acquire);
            tracing::warn!(%error, spans = lost, "traces_not_flushed");
        }
    }
}

impl std::fmt::Debug for SpanCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpanCounts").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// An exporter that counts its results.
#[derive(Debug)]
struct CountingExporter {
    exporter: OtlpExporter,
    counts: Arc<SpanCounts>,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let exported = self.exporter.export(batch).await;
        let counts = &self.counts;
        counts.waiting.fetch_sub(count, Ordering::AcqRel);
        match &exported {
            Ok(()) => {
                counts.exported.increment(count as u64);
                if counts.failing.swap(false, Ordering::AcqRel) {
                    tracing::info!("traces_exported_again");
                }
            }
            Err(error) => {
                counts.failed.increment(count as u64);
                if !counts.failing.swap(true, Ordering::AcqRel) {
                    let error = one_line(&error.to_string(), 200);
                    tracing::warn!(error, spans = count, "trace_export_failed");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The host's HTTP clients for the exporter, whose thread does not belong to the async runtime.
#[derive(Debug)]
struct CollectorClient {
    /// Uses the proxy of the environment.
    http: reqwest::Client,
    /// Uses no proxy: for a collector on this machine.
    direct: reqwest::Client,
    runtime: Handle,
}

impl CollectorClient {
    fn from_env() -> Result<Self, Box<dyn std::error::Error>> {
        let timeout = number("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
            .or_else(|| number("OTEL_EXPORTER_OTLP_TIMEOUT"));
        let timeout = timeout.map_or(TIMEOUT, |ms| Duration::from_millis(ms as u64));
        // A redirect would send the headers, which may contain a key, to another address.
        let settings = || reqwest::Client::builder().timeout(timeout).redirect(Policy::none());
        let (http, direct) = (tls::client(settings())?, tls::client(settings().no_proxy())?);
        Ok(Self { http, direct, runtime: Handle::try_current()? })
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let is_local = tls::is_loopback(request.url());
        let http = if is_local { &self.direct } else { &self.http };
        self.runtime.spawn(send(http.clone(), request)).await?
    }
}

async fn send(
    http: reqwest::Client,
    request: reqwest::Request,
) -> Result<Response<Bytes>, HttpError> {
    let mut answer = http.execute(request).await?;
    let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err("the collector's answer is too long".into());
        }
        body.extend_from_slice(&chunk);
    }
    let mut answer = Response::new(Bytes::from(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    Ok(answer)
}

/// Returns the resource from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, or else with this
/// program's name.
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let key = opentelemetry::Key::from_static_str("service.name");
    let is_known =
        resource.get(&key).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if is_known { resource } else { Resource::builder().with_service_name("callsheet").build() }
}

/// Checks the first of these variables that is set. Returns the problem if its value is none of `words`.
fn unknown(
    variables: &[&str],
    words: &[&str],
    is_same: impl Fn(&str, &str) -> bool,
) -> Option<String> {
    let is_set = |name: &&str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let (name, value) = variables.iter().find_map(|name| Some((name, is_set(name)?)))?;
    let is_known = words.iter().any(|word| is_same(&value, word));
    let (value, words) = (excerpt(&value, 50), words.join(", "));
    (!is_known).then(|| format!("{name} is {value:?} (known: {words})"))
}

fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok().filter(|text| !text.trim().is_empty())?;
    let number = text.trim().parse().ok();
    if number.is_none() {
        tracing::warn!(variable, value = excerpt(&text, 50), "no_number");
    }
    number
}
