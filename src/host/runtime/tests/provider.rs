//! A provider with scripted responses that records its requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::post;
use futures::{Stream, StreamExt as _, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// A scripted response.
pub(super) enum Reply {
    /// A stream of these payloads with a regular end.
    Sse(Vec<String>),
    /// A stream of these payloads that then stays open without data.
    Stall(Vec<String>),
    /// A stream of these payloads, followed by endless comments.
    Comments(Vec<String>),
    /// A stream of these payloads that then fails.
    Break(Vec<String>),
    /// A body that is not streamed.
    Whole { status: u16, kind: &'static str, body: String, retry_after: Option<&'static str> },
    /// No response.
    Silence,
}

type Script = dyn Fn(usize, &Value) -> Reply + Send + Sync;

/// A provider on loopback that runs until it is dropped.
pub(super) struct Provider {
    addr: SocketAddr,
    state: Arc<ProviderState>,
    server: tokio::task::JoinHandle<()>,
}

struct ProviderState {
    script: Box<Script>,
    requests: Mutex<Vec<(HeaderMap, Value)>>,
    gate: Mutex<Option<Arc<Semaphore>>>,
    open: Arc<AtomicUsize>,
}

impl Provider {
    /// Starts a provider. `script` returns the response to the n-th request, counted from 0.
    pub(super) async fn new(
        script: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(ProviderState {
            script: Box::new(script),
            requests: Mutex::default(),
            gate: Mutex::default(),
            open: Arc::default(),
        });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/v1/chat/completions", post(answer))
            .with_state(Arc::clone(&state));
        let server = super::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, state, server }
    }

    /// Starts a provider that answers every request with this text.
    pub(super) async fn answering(text: &'static str) -> Self {
        Self::new(move |_, _| Reply::Sse(answer_with(text))).await
    }

    /// Starts a provider that answers the first request with these calls and the others with
    /// `done`.
    pub(super) async fn calling(calls: &'static [(&'static str, &'static str)]) -> Self {
        Self::new(move |n, _| {
            Reply::Sse(if n == 0 { calls_to(calls) } else { answer_with("done") })
        })
        .await
    }

    /// Makes each response wait for a permit of `gate`.
    pub(super) fn gated_by(self, gate: Arc<Semaphore>) -> Self {
        *self.state.gate.lock() = Some(gate);
        self
    }

    pub(super) fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Returns the bodies of all requests.
    pub(super) fn requests(&self) -> Vec<Value> {
        self.state.requests.lock().iter().map(|(_, body)| body.clone()).collect()
    }

    pub(super) fn headers(&self) -> HeaderMap {
        self.state.requests.lock()[0].0.clone()
    }

    pub(super) fn count(&self) -> usize {
        self.state.requests.lock().len()
    }

    /// Returns the number of responses whose client is still connected.
    pub(super) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn answer(
    State(state): State<Arc<ProviderState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let n = {
        let mut requests = state.requests.lock();
        requests.push((headers, body.clone()));
        requests.len() - 1
    };
    state.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(Arc::clone(&state.open));
    let gate = state.gate.lock().clone();
    if let Some(gate) = gate {
        gate.acquire().await.unwrap().forget();
    }
    match (state.script)(n, &body) {
        Reply::Sse(payloads) => events(open, pieces(payloads)),
        Reply::Stall(payloads) => events(open, pieces(payloads).chain(stream::pending())),
        Reply::Comments(payloads) => {
            let comments = stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Some((Ok(Bytes::from_static(b": still here\n\n")), ()))
            });
            events(open, pieces(payloads).chain(comments))
        }
        Reply::Break(payloads) => {
            // The server sends its buffer only when the body has no data ready.
            let broken = stream::once(async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Err(std::io::Error::other("broken"))
            });
            let pieces = pieces(payloads).map(|piece| piece.map_err(std::io::Error::other));
            events(open, pieces.chain(broken))
        }
        Reply::Whole { status, kind, body, retry_after } => {
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response.headers_mut().insert(header::CONTENT_TYPE, kind.parse().unwrap());
            if let Some(wait) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, wait.parse().unwrap());
            }
            response
        }
        Reply::Silence => {
            let _open = open;
            std::future::pending().await
        }
    }
}

fn pieces(payloads: Vec<String>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::iter(payloads.into_iter().map(|data| Ok(Bytes::from(format!("data: {data}\n\n")))))
}

fn events<E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static>(
    open: Open,
    pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Response<Body> {
    let body = pieces.inspect(move |_| {
        // Held as long as the body.
        let _ = &open;
    });
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(header::CONTENT_TYPE, "text/event-stream".parse().unwrap());
    response
}

pub(super) fn chunk(delta: Value, finish: Option<&str>) -> String {
    json!({"id": "r", "object": "chat.completion.chunk", "model": "test-model",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    .to_string()
}

/// Returns the payload of a text delta.
pub(super) fn text(text: &str) -> String {
    chunk(json!({"content": text}), None)
}

/// Returns the payloads of a streamed response, one for each word.
pub(super) fn answer_with(words: &str) -> Vec<String> {
    let mut payloads: Vec<_> = words.split_inclusive(' ').map(text).collect();
    payloads.extend(end("stop"));
    payloads
}

/// Returns the payloads of calls (names and arguments) without the end of the response.
pub(super) fn calls(calls: &[(&str, &str)]) -> Vec<String> {
    let each = calls.iter().enumerate().map(|(index, (name, arguments))| {
        chunk(
            json!({"tool_calls": [{"index": index, "id": format!("id_{index}"),
                "type": "function", "function": {"name": name, "arguments": arguments}}]}),
            None,
        )
    });
    each.collect()
}

/// Returns the payloads of a streamed response with calls.
pub(super) fn calls_to(state: &[(&str, &str)]) -> Vec<String> {
    let mut payloads = calls(state);
    payloads.extend(end("tool_calls"));
    payloads
}

pub(super) fn end(finish: &str) -> [String; 3] {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5,
        "total_tokens": 15}});
    [chunk(json!({}), Some(finish)), usage.to_string(), "[DONE]".to_owned()]
}

/// Returns a response that is not streamed.
pub(super) fn plain(text: &str) -> Reply {
    let body = json!({"id": "r", "object": "chat.completion", "model": "test-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text},
            "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}});
    Reply::Whole {
        status: 200,
        kind: "application/json",
        body: body.to_string(),
        retry_after: None,
    }
}
