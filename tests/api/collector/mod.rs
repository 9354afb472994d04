//! A span collector, a web server for a tool, and the traced binary.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod binary;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) use binary::Folder;

/// One request to a collector.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) resource: BTreeMap<String, Value>,
    spans: Vec<Span>,
    bytes: Bytes,
}

/// A collector that receives OTLP over HTTP.
pub(crate) struct Collector {
    pub(crate) url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let router = Router::new().route("/v1/traces", post(receive));
        let url = served(router.with_state(Arc::clone(&received))).await;
        Self { url, received }
    }

    /// Returns the address of a collector that accepts connections and never answers.
    pub(crate) async fn silent() -> String {
        served(Router::new().route("/v1/traces", post(std::future::pending::<String>))).await
    }

    /// Returns the spans in the order of their start times.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let received = self.received.lock();
        let spans = received.iter().flat_map(|request| request.spans.iter().cloned());
        let mut spans: Vec<Span> = spans.collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    /// Returns the first request.
    pub(crate) fn request(&self) -> Received {
        self.received.lock().first().unwrap().clone()
    }

    /// Returns everything that was received, as text.
    pub(crate) fn text(&self) -> String {
        let received = self.received.lock();
        received
            .iter()
            .map(|request| String::from_utf8_lossy(&request.bytes).into_owned())
            .collect()
    }
}

async fn receive(
    State(received): State<Arc<Mutex<Vec<Received>>>>,
    headers: HeaderMap,
    bytes: Bytes,
) -> impl IntoResponse {
    let request = ExportTraceServiceRequest::decode(bytes.clone()).unwrap();
    let (mut resource, mut spans) = (BTreeMap::new(), Vec::new());
    for of in request.resource_spans {
        resource.extend(values(&of.resource.unwrap().attributes));
        spans.extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    let header = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
        (name.to_string(), value.to_str().unwrap().to_owned())
    };
    let headers = headers.iter().map(header).collect();
    received.lock().push(Received { headers, resource, spans, bytes });
    let answer = ExportTraceServiceResponse::default().encode_to_vec();
    ([(header::CONTENT_TYPE, "application/x-protobuf")], answer)
}

/// Serves until the test ends.
async fn served(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = async move { axum::serve(listener, router).await };
    #[expect(clippy::disallowed_methods, reason = "the server ends with the test")]
    tokio::spawn(serving);
    url
}

/// A server that records the `traceparent` of its requests.
pub(crate) struct Pages {
    pub(crate) url: String,
    parents: Arc<Mutex<Vec<String>>>,
}

impl Pages {
    pub(crate) async fn start() -> Self {
        let parents: Arc<Mutex<Vec<String>>> = Arc::default();
        let recorded = Arc::clone(&parents);
        let page = get(move |headers: HeaderMap| async move {
            let parent = headers.get("traceparent").map(|value| value.to_str().unwrap().to_owned());
            recorded.lock().push(parent.unwrap_or_default());
            "a page"
        });
        let url = served(Router::new().route("/page", page)).await + "/page";
        Self { url, parents }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.parents.lock().clone()
    }
}

/// Returns spans in the order of their start times.
pub(crate) struct Spans(pub(crate) Vec<Span>);

impl Spans {
    pub(crate) fn all(&self, name: &str) -> Vec<&Span> {
        self.0.iter().filter(|span| span.name == name).collect()
    }

    #[track_caller]
    pub(crate) fn one(&self, name: &str) -> &Span {
        let [one] = self.all(name)[..] else { panic!("one {name} in {:?}", self.0) };
        one
    }

    pub(crate) fn below(&self, parent: &Span) -> Vec<&Span> {
        self.0.iter().filter(|span| span.parent_span_id == parent.span_id).collect()
    }

    /// Returns the span of a call by the provider's id.
    #[track_caller]
    pub(crate) fn tool(&self, id: &str) -> &Span {
        let is_it = |span: &&Span| {
            Self::attributes(span).get("gen_ai.tool.call.id") == Some(&Value::from(id))
        };
        self.0.iter().find(is_it).unwrap()
    }

    pub(crate) fn attributes(span: &Span) -> BTreeMap<String, Value> {
        values(&span.attributes)
    }

    pub(crate) fn status(span: &Span) -> StatusCode {
        span.status.as_ref().map_or(StatusCode::Unset, |status| status.code())
    }
}

fn values(attributes: &[KeyValue]) -> BTreeMap<String, Value> {
    attributes.iter().map(|kv| (kv.key.clone(), value(kv.value.as_ref().unwrap()))).collect()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "further kinds of values come from others")]
fn value(any: &AnyValue) -> Value {
    match any.value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => json!(text),
        any_value::Value::BoolValue(is) => json!(is),
        any_value::Value::IntValue(number) => json!(number),
        any_value::Value::DoubleValue(number) => json!(number),
        any_value::Value::ArrayValue(list) => list.values.iter().map(value).collect(),
        other => panic!("{other:?}"),
    }
}

/// Returns the header of a sampled span.
pub(crate) fn traceparent(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
