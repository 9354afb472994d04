//! The server: paths and connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response as HttpResponse;
use axum::routing::{get, post};
use axum::serve::Listener;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::dispatch;
use super::encoded::Encoded;
use super::fault;
use super::requests::{AnswerState, OpenRequest, ProviderState};
use super::script::{Response, Then};
use super::service::{MODEL, ProviderRequest, ScriptedAnswer};
use callsheet_rehearsal::improvise;
use callsheet_values::types::Wire;

/// The largest size of a request body, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// Returns the routes of every wire format and of the list of models, with and without a version prefix.
pub(super) fn router(state: Arc<ProviderState>) -> Router {
    let mut router = Router::new();
    for prefix in ["", "/v1", "/v1beta"] {
        router = router.route(&format!("{prefix}/models"), get(models));
        for (path, wire) in [
            ("/chat/completions", Wire::OpenaiChat),
            ("/responses", Wire::OpenaiResponses),
            ("/messages", Wire::AnthropicMessages),
            ("/models/{action}", Wire::GeminiGenerate),
            ("/api/chat", Wire::OllamaChat),
        ] {
            let ask = move |s, u, a, h, b| ask(wire, s, u, a, h, b);
            router = router.route(&format!("{prefix}{path}"), post(ask));
        }
    }
    router
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_path)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(state)
}

async fn models() -> HttpResponse {
    let model = json!({"id": MODEL, "object": "model", "created": 0, "owned_by": "callsheet"});
    json_answer(200, &json!({"object": "list", "data": [model]}))
}

async fn no_such_path(method: Method, uri: Uri) -> HttpResponse {
    let message = format!("Unknown request URL: {method} {}.", uri.path());
    json_answer(404, &dispatch::service(Wire::OpenaiChat).error(404, &message))
}

async fn ask(
    wire: Wire,
    State(state): State<Arc<ProviderState>>,
    uri: Uri,
    action: Option<Path<String>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> HttpResponse {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => {
            let status = rejection.status().as_u16();
            return json_answer(
                status,
                &dispatch::service(wire).error(status, &rejection.body_text()),
            );
        }
    };
    let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let action = action.as_deref().map_or("", String::as_str);
    let mut open = state.receive(wire, &uri, &headers, &body);
    match dispatch::service(wire).read(&ProviderRequest { body: &body, action }) {
        Ok(request) => answer(state, open, &request, &body).await,
        Err(refused) => {
            open.set_status(refused.status);
            open.end(AnswerState::Whole);
            json_answer(refused.status, &refused.body)
        }
    }
}

/// Answers a request by the script or the improviser. `request` is the `body` in the form of Chat Completions.
async fn answer(
    state: Arc<ProviderState>,
    mut open: OpenRequest,
    request: &Value,
    body: &Value,
) -> HttpResponse {
    let scripted = {
        let mut script = state.script.lock();
        script.next_response(request, body).ok_or(script.then)
    };
    let response = match scripted {
        Ok(response) => response,
        Err(Then::Improvise) => improvise(request).into(),
        Err(Then::Done) => Response::text("The script is done."),
    };
    for step in fault::before_headers(&response) {
        let reached = async {
            match step {
                fault::SendStep::Pause(duration) => tokio::time::sleep(duration).await,
                fault::SendStep::Hold(name) => state.pass_gate(&name).await,
                fault::SendStep::Send(_) | fault::SendStep::Stall { .. } | fault::SendStep::Cut => {
                }
            }
        };
        // A stopped server ends its connections, whatever they wait for.
        if state.stop.run_until_cancelled(reached).await.is_none() {
            open.end(AnswerState::Broken);
            return http_answer(503, "text/plain", Body::empty());
        }
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let number = open.number;
    let encoded = dispatch::encode(
        open.wire,
        &ScriptedAnswer { response: &response, request, number, created },
    );
    let status = response.status.unwrap_or(200);
    open.set_status(status);
    planned_answer(state, open, &response, &encoded, status)
}

/// Returns the answer whose body is sent by the plan of its response.
fn planned_answer(
    state: Arc<ProviderState>,
    open: OpenRequest,
    response: &Response,
    encoded: &Encoded,
    status: u16,
) -> HttpResponse {
    let steps = fault::plan(encoded, response, state.chunk_delay);
    let body = Body::from_stream(fault::perform(steps, state, open));
    let mut answer = http_answer(status, &encoded.content_type, body);
    let retry_after = response.retry_after.as_deref().map(HeaderValue::from_str);
    if let Some(Ok(value)) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, value);
    }
    for (name, value) in &response.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

fn json_answer(status: u16, body: &Value) -> HttpResponse {
    http_answer(status, "application/json", Body::from(body.to_string()))
}

/// Returns an answer with this status, content type and body.
fn http_answer(status: u16, content_type: &str, body: Body) -> HttpResponse {
    let mut answer = HttpResponse::new(body);
    *answer.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Ok(value) = HeaderValue::from_str(content_type) {
        answer.headers_mut().insert(CONTENT_TYPE, value);
    }
    answer
}

/// A listener whose connections are counted and end when the server stops.
///
/// axum spawns a task per connection and keeps no handle of it. Therefore the end comes through the
/// socket: reads, writes and flushes fail once the server has stopped.
#[derive(Debug)]
pub(super) struct CountedListener {
    pub(super) listener: TcpListener,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Listener for CountedListener {
    type Io = CountedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (CountedStream, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        // Small chunks are sent at once. If this fails they are only delayed.
        let _ = stream.set_nodelay(true);
        let stopped = Box::pin(self.stop.clone().cancelled_owned());
        (CountedStream { stream, stopped, _counted: self.tasks.token() }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when the server stops.
#[derive(Debug)]
pub(super) struct CountedStream {
    stream: TcpStream,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    _counted: TaskTrackerToken,
}

impl CountedStream {
    /// Fails if the server has stopped. Otherwise the task is woken when it stops.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
