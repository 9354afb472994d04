//! The server, and the pace of a stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::StreamExt as _;
use serde_json::Value;

use super::RehearsedAnswer;
use super::openai_chat::{self, AnswerId};

/// The header that marks every answer: no language model produced it.
const REHEARSAL_HEADER: HeaderName = HeaderName::from_static("x-callsheet-rehearsal");

/// The largest size of a request body, in bytes.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// The values that all requests share.
struct Answering<F> {
    answer: F,
    pace: Duration,
    /// The number of requests so far.
    received: AtomicU64,
}

/// Returns the route of Chat Completions.
pub(super) fn router<F>(answer: F, pace: Duration) -> Router
where
    F: Fn(&Value) -> RehearsedAnswer + Send + Sync + 'static,
{
    let answering = Arc::new(Answering { answer, pace, received: AtomicU64::new(0) });
    Router::new()
        .route("/v1/chat/completions", post(complete::<F>))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_path)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(answering)
}

async fn no_such_path(method: Method, uri: Uri) -> Response {
    let path = uri.path();
    let message = format!(
        "Unknown request URL: {method} {path}. The offline rehearsal model speaks the wire format openai-chat only."
    );
    json_response(StatusCode::NOT_FOUND, &openai_chat::error(&message))
}

async fn complete<F>(
    State(answering): State<Arc<Answering<F>>>,
    request: Result<Json<Value>, JsonRejection>,
) -> Response
where
    F: Fn(&Value) -> RehearsedAnswer,
{
    let request = match request {
        Ok(Json(request)) => request,
        Err(rejection) => {
            return json_response(rejection.status(), &openai_chat::error(&rejection.body_text()));
        }
    };
    let answer = (answering.answer)(&request);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let number = answering.received.fetch_add(1, Ordering::Relaxed) + 1;
    let id = AnswerId { number, created };
    if request["stream"] != true {
        return json_response(StatusCode::OK, &openai_chat::plain(&answer, &request, id));
    }
    let pace = answering.pace;
    let chunks = openai_chat::stream(&answer, &request, id).into_iter().enumerate();
    let body = futures::stream::iter(chunks).then(move |(index, chunk)| async move {
        if index > 0 && !pace.is_zero() {
            tokio::time::sleep(pace).await;
        } else {
            // Gives hyper the chance to flush, so that every chunk is a write of its own.
            tokio::task::yield_now().await;
        }
        Ok::<_, Infallible>(chunk)
    });
    let body = Body::from_stream(body);
    marked_response(StatusCode::OK, "text/event-stream; charset=utf-8", body)
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    marked_response(status, "application/json", Body::from(body.to_string()))
}

/// Returns a response with the header that marks it.
fn marked_response(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    (status, [(CONTENT_TYPE, content_type), (REHEARSAL_HEADER, "1")], body).into_response()
}
