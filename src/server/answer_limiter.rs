//! The memory of answers that clients have not received yet: at most `max_large_answers` answers above 1 MiB,
//! and at most [`HELD_BYTES_MAX`] bytes of all but small answers. Pages of metrics have memory of their own:
//! other answers that are not read do not stop Prometheus from collecting the metrics.

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

/// Size above which an answer is large.
pub(super) const LARGE_BYTES: usize = 1024 * 1024;

/// Size of the pieces in which a body is sent. An answer that holds no more needs no permit.
pub(super) const PIECE_BYTES: usize = 16 * 1024;

/// Maximum number of bytes that the answers above [`PIECE_BYTES`], pages of metrics excepted, hold at once. An
/// answer that holds more than this maximum takes all of it.
const HELD_BYTES_MAX: usize = 40 * 1024 * 1024;

/// Maximum of the bytes of all pages of metrics that are held at once.
const METRICS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Time for which the answer to a request that has had an effect waits for a permit.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The code of the error if there is no permit.
const NO_PERMIT: &str = "too_many_large_answers";

/// The permits of the answers that are held at once.
#[derive(Clone, Debug)]
pub(super) struct AnswerLimiter {
    /// One for each answer above [`LARGE_BYTES`].
    answers: Arc<Semaphore>,
    /// One for each byte of the answers that hold more than [`PIECE_BYTES`].
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    /// The advice to a client in the error for a refused answer.
    advice: &'static str,
}

/// The permits of one answer, held until its body is sent or dropped. A small answer has none.
#[derive(Debug)]
pub(super) struct AnswerPermit {
    permits: AnswerLimiter,
    answer: Option<OwnedSemaphorePermit>,
    bytes: Option<OwnedSemaphorePermit>,
}

/// An answer that is being encoded. It grows only with a permit, so that many of them at once need little
/// memory.
#[derive(Debug)]
pub(super) struct AnswerWriter {
    /// The pieces before the last, all of [`PIECE_BYTES`].
    pieces: Vec<Bytes>,
    /// The last piece.
    text: Vec<u8>,
    /// The size up to which the permit suffices.
    permitted: usize,
    permit: AnswerPermit,
}

/// Counts the bytes of an answer that is written to it.
struct AnswerSize(usize);

impl AnswerLimiter {
    /// Returns the permits of all answers but pages of metrics.
    pub(super) fn new(max_large_answers: usize) -> Self {
        let advice = "try again later, or ask for less with limit if the request has one";
        Self::with_bytes(max_large_answers, HELD_BYTES_MAX, advice)
    }

    /// Returns the permits of pages of metrics.
    pub(super) fn of_metrics(max_large_answers: usize) -> Self {
        Self::with_bytes(max_large_answers, METRICS_BYTES_MAX, "try again later")
    }

    fn with_bytes(max_large_answers: usize, bytes_max: usize, advice: &'static str) -> Self {
        let answers = Arc::new(Semaphore::new(max_large_answers.min(Semaphore::MAX_PERMITS)));
        Self { answers, bytes: Arc::new(Semaphore::new(bytes_max)), bytes_max, advice }
    }

    /// Returns a permit for a small answer.
    pub(super) fn small(&self) -> AnswerPermit {
        AnswerPermit { permits: self.clone(), answer: None, bytes: None }
    }

    /// Acquires a permit for an answer of `size` bytes, of which at most `held` are in memory at once.
    pub(super) fn try_acquire(&self, size: usize, held: usize) -> Result<AnswerPermit, ApiError> {
        let mut permit = self.small();
        if permit.try_grow(size, held) { Ok(permit) } else { Err(self.no_permit()) }
    }

    /// Refuses a request whose answer can be large if no large answer can be sent now. Called before the answer
    /// is read from the journal.
    pub(super) fn check_large(&self) -> Result<(), ApiError> {
        match self.answers.available_permits() {
            0 => Err(self.no_permit()),
            _ => Ok(()),
        }
    }

    /// Waits for a permit for an answer of `size` bytes.
    async fn acquire(&self, size: usize) -> AnswerPermit {
        let mut permit = self.small();
        // The semaphores are never closed.
        if size > LARGE_BYTES {
            permit.answer = Arc::clone(&self.answers).acquire_owned().await.ok();
        }
        let missing = permit.missing_bytes(size.next_multiple_of(PIECE_BYTES));
        permit.bytes = Arc::clone(&self.bytes).acquire_many_owned(missing).await.ok();
        permit
    }

    /// Begins an answer that is encoded in parts.
    pub(super) fn writer(&self) -> AnswerWriter {
        AnswerWriter::new(self.small())
    }

    /// Answers a request that only reads, with a value as JSON. The answer is refused at once if there is no
    /// permit.
    pub(super) fn json(&self, value: &impl Serialize) -> Result<Response, ApiError> {
        self.encode(value, self.small())?.ok_or_else(|| self.no_permit())
    }

    /// Answers a request that has had an effect, with a value as JSON. The answer waits for a permit, because
    /// the same request, sent again, may have a second effect. If there is no permit in time, the error ends
    /// with `done`, which describes the effect of the request.
    pub(super) async fn json_of_act(
        &self,
        value: &impl Serialize,
        done: &str,
    ) -> Result<Response, ApiError> {
        let mut encoded = self.encode(value, self.small())?;
        if encoded.is_none() {
            let mut size = AnswerSize(0);
            serde_json::to_writer(&mut size, value).map_err(|error| ApiError::internal(&error))?;
            if let Ok(permit) = tokio::time::timeout(WAIT_MAX, self.acquire(size.0)).await {
                encoded = self.encode(value, permit)?;
            }
        }
        encoded.ok_or_else(|| {
            let message = format!("{}; {done}", self.full());
            // It has no Retry-After, because the same request may have a second effect.
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, NO_PERMIT, message)
        })
    }

    fn no_permit(&self) -> ApiError {
        let message = format!("{}: {}", self.full(), self.advice);
        ApiError::retry_later(StatusCode::SERVICE_UNAVAILABLE, NO_PERMIT, message)
    }

    /// Returns the text which says that there is no permit.
    fn full(&self) -> String {
        let megabytes = self.bytes_max >> 20;
        format!(
            "too many answers have not been received by their clients yet (max_large_answers above \
             1 MiB, or {megabytes} MiB in all)"
        )
    }

    /// Encodes an answer. Returns `None` if it needs a larger permit than there is.
    fn encode(
        &self,
        value: &impl Serialize,
        permit: AnswerPermit,
    ) -> Result<Option<Response>, ApiError> {
        let mut answer = AnswerWriter::new(permit);
        match serde_json::to_writer(&mut answer, value) {
            Ok(()) => Ok(Some(answer.into_response())),
            // Only a missing permit breaks off the writing.
            Err(error) if error.is_io() => Ok(None),
            Err(error) => Err(ApiError::internal(&error)),
        }
    }
}

impl AnswerPermit {
    /// Makes the permit suffice for an answer of `size` bytes, of which at most `held` are in memory at once.
    /// Returns false if that is not possible now.
    pub(super) fn try_grow(&mut self, size: usize, held: usize) -> bool {
        if size > LARGE_BYTES && self.answer.is_none() {
            self.answer = Arc::clone(&self.permits.answers).try_acquire_owned().ok();
            if self.answer.is_none() {
                return false;
            }
        }
        let missing = self.missing_bytes(held);
        if missing == 0 {
            return true;
        }
        let Ok(more) = Arc::clone(&self.permits.bytes).try_acquire_many_owned(missing) else {
            return false;
        };
        match &mut self.bytes {
            Some(bytes) => bytes.merge(more),
            None => self.bytes = Some(more),
        }
        true
    }

    /// Returns the number of bytes that the permit lacks for an answer of which `held` bytes are in memory.
    fn missing_bytes(&self, held: usize) -> u32 {
        if held <= PIECE_BYTES {
            return 0;
        }
        let acquired = self.bytes.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = held.min(self.permits.bytes_max).saturating_sub(acquired);
        u32::try_from(missing).unwrap_or(u32::MAX)
    }
}

impl AnswerWriter {
    fn new(permit: AnswerPermit) -> Self {
        Self { pieces: Vec::new(), text: Vec::new(), permitted: PIECE_BYTES, permit }
    }

    /// Appends a text. Fails if there is no permit for it.
    pub(super) fn append(&mut self, text: &str) -> Result<(), ApiError> {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| self.permit.permits.no_permit())
    }

    /// Appends a value as JSON. Fails if there is no permit for it.
    pub(super) fn append_json(&mut self, value: &impl Serialize) -> Result<(), ApiError> {
        serde_json::to_writer(&mut *self, value).map_err(|error| match error.is_io() {
            true => self.permit.permits.no_permit(),
            false => ApiError::internal(&error),
        })
    }

    pub(super) fn into_response(self) -> Response {
        let Self { mut pieces, text, permit, .. } = self;
        if pieces.is_empty() {
            return json_response(text.into());
        }
        if !text.is_empty() {
            pieces.push(text.into());
        }
        let rest = (pieces.into_iter(), permit);
        let pieces = futures::stream::unfold(rest, async |(mut pieces, permit)| {
            let piece = pieces.next()?;
            Some((Ok::<_, Infallible>(piece), (pieces, permit)))
        });
        json_response(Body::from_stream(pieces))
    }
}

impl io::Write for AnswerWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE_BYTES - self.text.len());
        let size = self.pieces.len() * PIECE_BYTES + self.text.len() + count;
        if size > self.permitted {
            let permitted = size.next_multiple_of(PIECE_BYTES);
            if !self.permit.try_grow(size, permitted) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.permitted = permitted;
        }
        self.text.extend(bytes.iter().take(count));
        if self.text.len() == PIECE_BYTES {
            let piece = std::mem::replace(&mut self.text, Vec::with_capacity(PIECE_BYTES));
            self.pieces.push(piece.into());
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Write for AnswerSize {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a body that is sent in pieces. It holds the permit until all are sent; a body of one piece needs none.
pub(super) fn body(bytes: Bytes, permit: AnswerPermit) -> Body {
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

    /// Texts whose JSON is just small enough to be no large answer, and one byte larger.
    fn texts() -> (String, String) {
        ("x".repeat(LARGE_BYTES - 2), "x".repeat(LARGE_BYTES - 1))
    }

    #[tokio::test]
    async fn a_large_answer_without_a_permit_is_refused() {
        let (small, large) = texts();
        let permits = AnswerLimiter::new(1);
        let sent = permits.json(&large).expect("the permit is free");
        let refused = permits.json(&large).expect_err("it is taken");
        assert_eq!(refused.status_and_code(), (503, "too_many_large_answers"));
        assert!(permits.json(&small).is_ok());
        let body = axum::body::to_bytes(sent.into_body(), usize::MAX).await.expect("read");
        assert!(serde_json::from_slice::<String>(&body).expect("parse") == large);
        assert!(permits.json(&large).is_ok(), "the permit is free when the body is sent");
    }

    #[test]
    fn a_refused_page_of_metrics_does_not_advise_a_limit() {
        for (permits, has_advice) in
            [(AnswerLimiter::new(0), true), (AnswerLimiter::of_metrics(0), false)]
        {
            let refused = permits.try_acquire(LARGE_BYTES + 1, 0).expect_err("there is no permit");
            assert_eq!(format!("{refused:?}").contains("with limit"), has_advice, "{refused:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_to_a_request_that_has_acted_waits_for_a_permit() {
        let (small, large) = texts();
        let permits = AnswerLimiter::new(1);
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

    #[tokio::test(start_paused = true)]
    async fn the_sum_of_the_bytes_of_answers_is_bounded() {
        let (text, _) = texts();
        let permits = AnswerLimiter::new(1);
        let answer = |_| permits.json(&text).expect("there is room");
        let mut held: Vec<Response> = (0..HELD_BYTES_MAX / LARGE_BYTES).map(answer).collect();
        let refused = permits.json(&text).expect_err("there is no room");
        assert_eq!(refused.status_and_code(), (503, "too_many_large_answers"));
        assert!(permits.try_acquire(LARGE_BYTES, PIECE_BYTES + 1).is_err());
        // An answer that holds one piece is small.
        assert!(permits.try_acquire(LARGE_BYTES, PIECE_BYTES).is_ok());
        assert!(permits.json(&"x".repeat(PIECE_BYTES - 2)).is_ok());
        let freed = async {
            tokio::task::yield_now().await;
            drop(held.pop());
        };
        let (acted, ()) = tokio::join!(permits.json_of_act(&text, ""), freed);
        assert!(acted.is_ok());
        drop((acted, held));
        // An answer that is larger than all room gets all of it.
        let all = permits.try_acquire(2 * HELD_BYTES_MAX, 2 * HELD_BYTES_MAX).expect("all is free");
        assert!(permits.json(&text).is_err());
        drop(all);
        assert!(permits.json(&text).is_ok());
    }
}
