//! The trace context that models and tools receive for a run with a client's trace.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use crate::client::{HttpResponse, Service, post};
use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use callsheet::server::ServerOptions;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A server whose pages record the headers of their requests.
struct Pages {
    url: String,
    asked: Arc<Mutex<Vec<HeaderMap>>>,
}

impl Pages {
    async fn start() -> Self {
        let asked: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
        let noted = Arc::clone(&asked);
        let page = get(move |headers: HeaderMap| async move {
            noted.lock().push(headers);
            "a page"
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/page", listener.local_addr().unwrap());
        let serving =
            async move { axum::serve(listener, Router::new().route("/page", page)).await };
        #[expect(clippy::disallowed_methods, reason = "the server ends with the test")]
        tokio::spawn(serving);
        Self { url, asked }
    }
}

/// Runs a prompt with these headers. Returns `(traceparent, tracestate)` of each request to the
/// model and of the request to the page.
async fn sent(headers: &str) -> Vec<(Option<String>, Option<String>)> {
    let pages = Pages::start().await;
    let script = json!({"responses": [
        {"calls": [{"name": "http_get", "arguments": {"url": pages.url}}]},
        {"text": ["Done."]}
    ]});
    let config = "[tools.http_get]\nallow = [\"127.0.0.1\"]\n";
    let service = started(script, config).await;
    let answer = ask(&service, headers, "Read the page.").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let requests = service.model.requests();
    let requests = requests.iter().map(|request| {
        let header = |name: &str| request.headers.get(name).cloned();
        (header("traceparent"), header("tracestate"))
    });
    let asked = pages.asked.lock();
    let header = |headers: &HeaderMap, name: &str| {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    let asked = asked.iter().map(|h| (header(h, "traceparent"), header(h, "tracestate")));
    requests.chain(asked).collect()
}

async fn started(script: Value, config: &str) -> Service {
    let service = Service::start_with(script, config, ServerOptions::default()).await;
    assert_eq!(service.post("/v1/sessions", json!({"id": "s"})).await.status, 201);
    service
}

async fn ask(service: &Service, headers: &str, input: &str) -> HttpResponse {
    let body = json!({"input": input, "wait": true}).to_string();
    service.send(&post("/v1/sessions/s/runs", headers, &body)).await
}

#[tokio::test]
async fn models_and_tools_receive_the_trace_of_the_run() {
    let lines = format!("traceparent: {PARENT}\r\ntracestate: rojo=1\r\ntracestate: congo=2\r\n");
    let expected = (Some(PARENT.to_owned()), Some("rojo=1,congo=2".to_owned()));
    assert_eq!(sent(&lines).await, [expected.clone(), expected.clone(), expected]);
}

#[tokio::test]
async fn an_invalid_trace_is_ignored() {
    let invalid_state = format!("traceparent: {PARENT}\r\ntracestate: no entry\r\n");
    let parent_alone = vec![(Some(PARENT.to_owned()), None); 3];
    assert_eq!(sent(&invalid_state).await, parent_alone);
    let twice = format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\n");
    for lines in ["", "tracestate: rojo=1\r\n", "traceparent: 00-0-0-01\r\n", &twice] {
        assert_eq!(sent(lines).await, vec![(None, None); 3], "{lines:?}");
    }
}

/// Each run has the trace of its own request, also if it was queued.
#[tokio::test]
async fn a_queued_run_keeps_its_trace() {
    let script = json!({"responses": [
        {"text": ["Now ", "then."], "holds": [{"at": {"chunk": 2}, "name": "middle"}]},
        {"text": ["Later."]}
    ]});
    let service = started(script, "").await;
    let mut first = service.watch("s", "first").await;
    first.until("Now ").await;
    let body = json!({"input": "second", "queue": true}).to_string();
    let line = format!("traceparent: {PARENT}\r\naccept: text/event-stream\r\n");
    let request = post("/v1/sessions/s/runs", &line, &body);
    let mut second = crate::client::HttpConnection::open(service.addr(), &request).await;
    second.until("HTTP/1.1 200").await;
    service.model.open_gate("middle");
    second.until("event: stream_end").await;
    let requests = service.model.requests();
    let sent: Vec<_> = requests.iter().map(|r| r.headers.get("traceparent").cloned()).collect();
    assert_eq!(sent, [None, Some(PARENT.to_owned())]);
}

/// A program without the exporter logs a warning if the environment asks for one.
#[cfg(not(feature = "otlp"))]
#[test]
fn a_binary_without_the_exporter_logs_one_warning() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.args(["run", "--rehearsal", "What is 6 * 7?"]).env("CALLSHEET_LOG", "warn");
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors.matches("traces_not_exported").count(), 1, "{errors}");
}
