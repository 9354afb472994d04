//! Answers that are too large for many of them to be in memory at once.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// Size from which an answer is large.
pub(super) const LARGE_BYTES: usize = 1024 * 1024;

/// Size of the pieces in which a body is sent.
pub(super) const PIECE_BYTES: usize = 32 * 1024;

/// Time for which the answer to a request that has acted waits for a permit.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The code of the error if there is no permit.
const NO_PERMIT: &str = "too_many_large_answers";

/// The permits of large answers: at most `max_large_answers` are sent at once.
#[derive(Clone, Debug)]
pub(super) struct LargeAnswers(Arc<Semaphore>);

/// The permit of one large answer, held until its body is sent or dropped. `None` for a small answer.
pub(super) type LargeAnswerPermit = Option<OwnedSemaphorePermit>;

/// An answer that is being encoded. It becomes large only with a permit, so that many of them at once need
/// little memory.
struct AnswerText<'a> {
    text: Vec<u8>,
    permit: LargeAnswerPermit,
    permits: &'a LargeAnswers,
}

impl LargeAnswers {
    pub(super) fn new(maximum: usize) -> Self {
        Self(Arc::new(Semaphore::new(maximum.min(Semaphore::MAX_PERMITS))))
    }

    /// Acquires a permit for an answer of this size.
    pub(super) fn try_acquire(&self, bytes: usize) -> Result<LargeAnswerPermit, ApiError> {
        if bytes <= LARGE_BYTES {
            return Ok(None);
        }
        Arc::clone(&self.0).try_acquire_owned().map(Some).map_err(|_| no_permit())
    }

    /// Answers a request that only reads, with a value as JSON. A large answer is refused at once if there is
    /// no permit.
    pub(super) fn json(&self, value: &impl Serialize) -> Result<Response, ApiError> {
        self.encode(value, None)?.ok_or_else(no_permit)
    }

    /// Answers a request that has acted, with a value as JSON. A large answer waits for a permit, because the
    /// client cannot send the request again without a second effect. If it waits in vain, the error says
    /// `done`: what has become of the request.
    pub(super) async fn json_of_act(
        &self,
        value: &impl Serialize,
        done: &str,
    ) -> Result<Response, ApiError> {
        let mut encoded = self.encode(value, None)?;
        if encoded.is_none() {
            let acquiring = Arc::clone(&self.0).acquire_owned();
            if let Ok(Ok(permit)) = tokio::time::timeout(WAIT_MAX, acquiring).await {
                encoded = self.encode(value, Some(permit))?;
            }
        }
        encoded.ok_or_else(|| {
            let message = format!("max_large_answers answers above 1 MiB are being sent; {done}");
            // It has no Retry-After, because the same request would act again.
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, NO_PERMIT, message)
        })
    }

    /// Encodes an answer. Returns `None` if it is large, and there is no permit.
    fn encode(
        &self,
        value: &impl Serialize,
        permit: LargeAnswerPermit,
    ) -> Result<Option<Response>, ApiError> {
        let mut answer = AnswerText { text: Vec::new(), permit, permits: self };
        match serde_json::to_writer(&mut answer, value) {
            Ok(()) => Ok(Some(json_response(body(answer.text.into(), answer.permit)))),
            // Only a missing permit breaks off the writing.
            Err(error) if error.is_io() => Ok(None),
            Err(error) => Err(ApiError::internal(&error)),
        }
    }
}

impl io::Write for AnswerText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.permit.is_none() {
            let permit = self.permits.try_acquire(self.text.len() + bytes.len());
            self.permit = permit.map_err(|_| io::ErrorKind::WouldBlock)?;
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn no_permit() -> ApiError {
    let message = "max_large_answers answers above 1 MiB are being sent: try again later, or ask \
                   for less with limit if the request has one";
    ApiError::retry_later(StatusCode::SERVICE_UNAVAILABLE, NO_PERMIT, message)
}

/// Returns a body that is sent in pieces, and holds the permit until then.
pub(super) fn body(bytes: Bytes, permit: LargeAnswerPermit) -> Body {
    if bytes.len() <= PIECE_BYTES {
        return Body::from(bytes);
    }
    let pieces = futures::stream::unfold((bytes, permit), async |(mut rest, permit)| {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (rest, permit)))
    });
    Body::from_stream(pieces)
}

pub(super) fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts whose JSON is just small enough to need no permit, and one byte larger.
    fn texts() -> (String, String) {
        ("x".repeat(LARGE_BYTES - 2), "x".repeat(LARGE_BYTES - 1))
    }

    #[tokio::test]
    async fn a_large_answer_without_a_permit_is_refused() {
        let (small, large) = texts();
        let permits = LargeAnswers::new(1);
        let sent = permits.json(&large).expect("the permit is free");
        let refused = permits.json(&large).expect_err("it is taken");
        assert_eq!(refused.status_and_code(), (503, "too_many_large_answers"));
        assert!(permits.json(&small).is_ok());
        let body = axum::body::to_bytes(sent.into_body(), usize::MAX).await.expect("read");
        assert!(serde_json::from_slice::<String>(&body).expect("parse") == large);
        assert!(permits.json(&large).is_ok(), "the permit is free when the body is sent");
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_to_a_request_that_has_acted_waits_for_a_permit() {
        let (small, large) = texts();
        let permits = LargeAnswers::new(1);
        let sent = permits.json(&large).expect("the permit is free");
        let lost = permits.json_of_act(&large, "it is stored").await.expect_err("it stays taken");
        assert_eq!(lost.status_and_code(), (503, "too_many_large_answers"));
        let response = lost.into_response();
        assert_eq!(response.headers().get(header::RETRY_AFTER), None);
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("read");
        assert!(String::from_utf8_lossy(&body).contains("it is stored"), "{body:?}");
        assert!(permits.json_of_act(&small, "").await.is_ok());
        let freed = async {
            tokio::task::yield_now().await;
            drop(sent);
        };
        let (answer, ()) = tokio::join!(permits.json_of_act(&large, ""), freed);
        assert!(answer.is_ok());
    }
}
