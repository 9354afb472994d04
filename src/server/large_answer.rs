//! Answers that are too large for many of them to be in memory at once.

use std::convert::Infallible;
use std::sync::Arc;

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

/// The permits of large answers: at most `max_large_answers` are sent at once.
#[derive(Clone, Debug)]
pub(super) struct LargeAnswers(Arc<Semaphore>);

/// The permit of one large answer, held until its body is sent or dropped. `None` for a small answer.
pub(super) type LargeAnswerPermit = Option<OwnedSemaphorePermit>;

impl LargeAnswers {
    pub(super) fn new(maximum: usize) -> Self {
        Self(Arc::new(Semaphore::new(maximum.min(Semaphore::MAX_PERMITS))))
    }

    /// Acquires a permit for an answer of this size.
    pub(super) fn try_acquire(&self, bytes: usize) -> Result<LargeAnswerPermit, ApiError> {
        if bytes <= LARGE_BYTES {
            return Ok(None);
        }
        Arc::clone(&self.0).try_acquire_owned().map(Some).map_err(|_| {
            let message = "max_large_answers answers above 1 MiB are being sent: try again later, or \
                           ask for less with limit";
            ApiError::retry_later(StatusCode::SERVICE_UNAVAILABLE, "too_many_large_answers", message)
        })
    }

    /// Answers with a value as JSON. A large answer waits for its permit, because its client cannot ask
    /// for it again.
    pub(super) async fn json(&self, value: &impl Serialize) -> Response {
        let bytes = match serde_json::to_vec(value) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => return ApiError::internal(&error).into_response(),
        };
        // The semaphore is never closed.
        let permit = match bytes.len() > LARGE_BYTES {
            true => Arc::clone(&self.0).acquire_owned().await.ok(),
            false => None,
        };
        let pieces = futures::stream::unfold((bytes, permit), async |(mut rest, permit)| {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES));
            (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (rest, permit)))
        });
        json_response(Body::from_stream(pieces))
    }
}

pub(super) fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
