//! Converts finished spans to the form of the exporter.

use std::time::SystemTime;

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use reqwest::Url;

use crate::telemetry::labelled_handles::error_type;
use callsheet_values::config::ModelConfig;
use callsheet_values::types::{ProviderError, TraceContext, Wire, excerpt};

/// Maximum number of characters of an error message on a span.
const ERROR_CHARS_MAX: usize = 200;

/// A finished span.
pub(super) struct FinishedSpan {
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) context: TraceContext,
    pub(super) parent: SpanParent,
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
    pub(super) attributes: Vec<KeyValue>,
    /// `error.type` and the message.
    pub(super) error: Option<(String, String)>,
}

/// The parent of a span.
pub(super) enum SpanParent {
    None,
    Ours(TraceContext),
    Remote(TraceContext),
}

/// The attributes of a model's service.
pub(super) struct ServiceAttributes {
    /// The name of the model at the service.
    pub(super) model: String,
    provider: &'static str,
    address: Option<String>,
    port: Option<i64>,
}

impl FinishedSpan {
    /// Converts the span to the form of the exporter.
    pub(super) fn data(self, scope: &InstrumentationScope) -> SpanData {
        let Self { name, kind, context: span, parent, start, end, mut attributes, error } = self;
        let parent_id = match &parent {
            SpanParent::Ours(parent) | SpanParent::Remote(parent) => {
                SpanId::from_bytes(parent.span_id())
            }
            SpanParent::None => SpanId::INVALID,
        };
        let status = match error {
            Some((kind, message)) => {
                attributes.push(text("error.type", kind));
                Status::error(excerpt(&message, ERROR_CHARS_MAX))
            }
            None => Status::Unset,
        };
        SpanData {
            span_context: context(&span, false),
            parent_span_id: parent_id,
            parent_span_is_remote: matches!(parent, SpanParent::Remote(_)),
            span_kind: kind,
            name: name.into(),
            start_time: start,
            end_time: end,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: scope.clone(),
        }
    }
}

impl ServiceAttributes {
    /// Returns the attributes of the service of a configured model.
    pub(super) fn of(model: &ModelConfig) -> Self {
        let provider = match model.wire {
            Wire::OpenaiChat | Wire::OpenaiResponses => "openai",
            Wire::AnthropicMessages => "anthropic",
            Wire::GeminiGenerate => "gcp.gemini",
            Wire::OllamaChat => "ollama",
        };
        let url = Url::parse(model.base_url.as_str()).ok();
        let address = url.as_ref().and_then(|url| url.host_str().map(str::to_owned));
        let port = url.and_then(|url| url.port_or_known_default()).map(i64::from);
        Self { model: model.model.clone(), provider, address, port }
    }

    pub(super) fn put_on(&self, attributes: &mut Vec<KeyValue>) {
        attributes.push(text("gen_ai.provider.name", self.provider));
        attributes.extend(self.address.clone().map(|host| text("server.address", host)));
        attributes.extend(self.port.map(|port| KeyValue::new("server.port", port)));
    }
}

/// Returns the `error.type` (the HTTP status, or else the kind of the error) and the message.
pub(super) fn attempt_error(error: &ProviderError) -> (String, String) {
    let kind = match error.status {
        Some(status) => status.to_string(),
        None => error_type(error.kind).to_owned(),
    };
    (kind, error.message.clone())
}

pub(super) fn context(span: &TraceContext, is_remote: bool) -> SpanContext {
    let flags = if span.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let state = span.tracestate().and_then(|state| state.parse::<TraceState>().ok());
    let trace_id = TraceId::from_bytes(span.trace_id());
    let span_id = SpanId::from_bytes(span.span_id());
    SpanContext::new(trace_id, span_id, flags, is_remote, state.unwrap_or_default())
}

pub(super) fn text(key: &'static str, value: impl Into<String>) -> KeyValue {
    KeyValue::new(key, value.into())
}

pub(super) fn count(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}
