//! The answers of faces: a fold over the events of a run as Server-Sent Events, and plain answers whose headers do not
//! wait for the run.
//!
//! What clients do decides how answers end (measured with eleven of them). A body that ends before its terminal part is
//! a success for many, and some run a half-received call. So such a body is never ended: its connection is aborted, which
//! every client reports. Node gives up on a request without headers after 300 s and sends it again, so headers go out
//! within a second; white space keeps a plain answer alive, a comment or an idle part a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::answer_limiter::json_response;
use super::super::state::ApiState;
use super::answer::FaceAnswer;
use super::position::PartPosition;
use super::retries::RunPlace;
use callsheet_host::runtime::{HostError, SessionEvents, SessionHandle, StartedRun};
use callsheet_host::telemetry::FeedItem;
use callsheet_values::event::{EventId, PublishedEvent};
use callsheet_values::types::Seq;

/// The time after which the headers of a plain answer go out, although the run has not ended.
const HEADERS_WITHIN: Duration = Duration::from_millis(800);

/// The interval at which a request looks for a session or a run of another request whose records are being stored.
pub(super) const STORED_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of these looks.
pub(super) const STORED_CHECKS_MAX: usize = 500;

/// The pause after which an idle part is sent instead of a comment: some clients count only parts.
const IDLE_PART_AFTER: Duration = Duration::from_secs(55);

/// A pure fold from the events of a run to the parts of a protocol. The same events give the same parts, live and
/// replayed; text may come in other pieces.
pub(super) trait Fold: Send + 'static {
    /// Adds the parts of the next event. Each part is one Server-Sent Event.
    fn push(&mut self, event: &PublishedEvent, parts: &mut Vec<FacePart>);

    /// Returns whether the terminal part was added.
    fn has_ended(&self) -> bool;

    /// Returns a part without effect, for clients that take comments for silence.
    fn idle_part(&self) -> Option<FacePart> {
        None
    }

    /// Adds the parts of an error that is no event, and returns true. Without such parts the connection is aborted.
    fn fail(&mut self, _error: &HostError, _parts: &mut Vec<FacePart>) -> bool {
        false
    }

    /// Returns work that is done before the terminal part is sent.
    fn before_end(&mut self) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// One Server-Sent Event of a face.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FacePart {
    /// Where a client goes on after it, if it can.
    pub(super) position: Option<PartPosition>,
    /// The event's id, if the protocol has one.
    pub(super) id: Option<EventId>,
    /// The name of the event, if the protocol has one.
    pub(super) name: Option<&'static str>,
    /// The data: one line.
    pub(super) data: String,
}

impl FacePart {
    fn append_to(&self, text: &mut String) {
        if let Some(id) = self.id {
            text.push_str("id: ");
            text.push_str(&id.to_string());
            text.push('\n');
        }
        if let Some(name) = self.name {
            text.push_str("event: ");
            text.push_str(name);
            text.push('\n');
        }
        for piece in ["data: ", &self.data, "\n\n"] {
            text.push_str(piece);
        }
    }
}

/// The events of a run, from its first one.
pub(super) enum RunEvents {
    /// Of a run that the request has started.
    Started(Box<StartedRun>),
    /// Of a run that goes on, or has ended.
    Joined { session: SessionHandle, place: RunPlace, events: SessionEvents, last: EventId },
}

impl RunEvents {
    /// Joins a run.
    pub(super) async fn join(session: SessionHandle, place: RunPlace) -> Result<Self, HostError> {
        let last = EventId { seq: Seq(place.seq.0.saturating_sub(1)), bytes: 0 };
        let mut checks = 0;
        loop {
            match session.watch_run(place.run.clone(), place.seq).await {
                // The first record of the run is not durable yet.
                Err(HostError::UnknownEventId { .. }) if checks < STORED_CHECKS_MAX => checks += 1,
                events => return Ok(Self::Joined { events: events?, session, place, last }),
            }
            tokio::time::sleep(STORED_CHECK_INTERVAL).await;
        }
    }

    /// Returns the next event of the run.
    ///
    /// # Errors
    /// If the session or the host ended before the run, or the journal fails.
    pub(super) async fn next(&mut self) -> Result<Option<Arc<PublishedEvent>>, HostError> {
        match self {
            Self::Started(run) => run.feed.next(&mut run.events).await,
            Self::Joined { session, place, events, last } => loop {
                match events.next().await {
                    Some(FeedItem::Event(event)) => {
                        *last = event.id.unwrap_or(*last);
                        return Ok(Some(event));
                    }
                    Some(FeedItem::Lagged) => {
                        *events = session.watch(*last).await?.only_run(place.run.clone());
                    }
                    Some(FeedItem::Failed(error)) => return Err(error.into()),
                    None if events.is_host_ready() => return Err(HostError::SessionClosed),
                    None => return Err(HostError::ShuttingDown),
                }
            },
        }
    }
}

/// The mark with which a stream of OpenAI and of the AI SDK ends, behind the event that ends the answer.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// How an answer in parts is sent.
#[derive(Debug)]
pub(super) struct FaceStreamSettings {
    /// Parts up to this position are left out.
    after: Option<PartPosition>,
    /// The time without a part after which something is sent.
    keep_alive: Duration,
    /// What follows the terminal part.
    terminator: &'static str,
    /// Cancelled when the server shuts down.
    closing: CancellationToken,
}

impl FaceStreamSettings {
    /// Returns the settings of an answer that begins after a position, or from its beginning.
    pub(super) fn new(
        state: &ApiState,
        after: Option<PartPosition>,
        terminator: &'static str,
    ) -> Self {
        let (keep_alive, closing) = (state.options.keep_alive, state.closing.clone());
        Self { after, keep_alive, terminator, closing }
    }
}

/// An answer that is aborted, so that no client takes it for a whole one.
#[derive(Debug, thiserror::Error)]
#[error("the answer is not whole: {0}")]
pub(super) struct Aborted(String);

/// Answers with the parts of a run.
pub(super) fn stream(
    events: RunEvents,
    fold: impl Fold,
    settings: FaceStreamSettings,
    answer: FaceAnswer,
) -> Response {
    let state =
        StreamState { events, fold, settings, is_last_sent: false, last_part: Instant::now() };
    let writes = futures::stream::unfold(Some((state, answer)), |state| async move {
        let (mut state, answer) = state?;
        match state.next_write().await {
            Ok(Some(write)) => Some((Ok(write), Some((state, answer)))),
            Ok(None) => {
                answer.end_delivered();
                None
            }
            Err(aborted) => {
                answer.end_aborted();
                Some((Err(aborted), None))
            }
        }
    });
    let mut response = Response::new(Body::from_stream(writes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Without this header nginx buffers events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Answers with parts that are all known.
pub(super) fn parts(parts: &[FacePart], terminator: &str) -> Response {
    let mut text = String::new();
    parts.iter().for_each(|part| part.append_to(&mut text));
    text.push_str(terminator);
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

struct StreamState<F> {
    events: RunEvents,
    fold: F,
    settings: FaceStreamSettings,
    is_last_sent: bool,
    last_part: Instant,
}

impl<F: Fold> StreamState<F> {
    /// Returns the parts of the events that are ready, or what keeps the connection alive. `None` after the terminal
    /// part.
    async fn next_write(&mut self) -> Result<Option<Bytes>, Aborted> {
        let mut parts = Vec::new();
        let keep_alive = Instant::now() + self.settings.keep_alive;
        while !self.is_last_sent {
            let next = tokio::select! {
                // Parts that are ready are still written when the server shuts down.
                biased;
                next = self.events.next() => next,
                () = self.settings.closing.cancelled() => Err(HostError::ShuttingDown),
                () = tokio::time::sleep_until(keep_alive) => return Ok(Some(self.idle())),
            };
            match next {
                Ok(Some(event)) => self.fold.push(&event, &mut parts),
                Ok(None) => return Err(Aborted("its run has ended without an end".to_owned())),
                Err(error) if self.fold.fail(&error, &mut parts) => self.is_last_sent = true,
                Err(error) => return Err(Aborted(error.to_string())),
            }
            self.is_last_sent |= self.fold.has_ended();
            if self.is_last_sent
                && let Some(work) = self.fold.before_end()
            {
                work.await;
            }
            if let Some(write) = self.write(&mut parts) {
                return Ok(Some(write));
            }
        }
        Ok(None)
    }

    /// Returns the text of parts, with all that follows the last one. Some events have no parts.
    fn write(&mut self, parts: &mut Vec<FacePart>) -> Option<Bytes> {
        let after = self.settings.after;
        let mut text = String::new();
        for part in parts.drain(..) {
            if part.position.is_none_or(|position| Some(position) > after) {
                part.append_to(&mut text);
            }
        }
        if self.is_last_sent {
            text.push_str(self.settings.terminator);
        }
        if text.is_empty() {
            return None;
        }
        self.last_part = Instant::now();
        Some(Bytes::from(text))
    }

    fn idle(&mut self) -> Bytes {
        let idle = match self.last_part.elapsed() >= IDLE_PART_AFTER {
            true => self.fold.idle_part(),
            false => None,
        };
        let Some(part) = idle else { return Bytes::from_static(b": alive\n\n") };
        self.last_part = Instant::now();
        let mut text = String::new();
        part.append_to(&mut text);
        Bytes::from(text)
    }
}

/// Answers with a whole object when the run has ended, or waits for its client. If that takes long, the headers go out
/// before, and white space follows; an error then aborts the connection, and the repeated request gets it.
pub(super) async fn plain<E: IntoResponse + std::fmt::Display + 'static>(
    work: impl Future<Output = Result<Response, E>> + Send + 'static,
    keep_alive: Duration,
    answer: FaceAnswer,
) -> Response {
    let mut work: Work<E> = Box::pin(work);
    match tokio::time::timeout(HEADERS_WITHIN, &mut work).await {
        Ok(Ok(response)) => response.map(|body| {
            let state = PlainState::<E>::Sends(body.into_data_stream(), answer);
            Body::from_stream(writes(state))
        }),
        Ok(Err(error)) => {
            answer.end_refused();
            error.into_response()
        }
        Err(_) => {
            let state = PlainState::Waits(work, keep_alive, answer);
            json_response(Body::from_stream(writes(state)))
        }
    }
}

type Work<E> = Pin<Box<dyn Future<Output = Result<Response, E>> + Send>>;

enum PlainState<E> {
    Waits(Work<E>, Duration, FaceAnswer),
    Sends(BodyDataStream, FaceAnswer),
    Over,
}

fn writes<E: std::fmt::Display + 'static>(
    state: PlainState<E>,
) -> impl Stream<Item = Result<Bytes, Aborted>> {
    futures::stream::unfold(state, |state| async move {
        let (mut body, answer) = match state {
            PlainState::Over => return None,
            PlainState::Sends(body, answer) => (body, answer),
            PlainState::Waits(mut work, keep_alive, answer) => {
                match tokio::time::timeout(keep_alive, &mut work).await {
                    Ok(Ok(response)) => (response.into_body().into_data_stream(), answer),
                    Ok(Err(error)) => {
                        answer.end_aborted();
                        return Some((Err(Aborted(error.to_string())), PlainState::Over));
                    }
                    // JSON may begin with white space.
                    Err(_) => {
                        let state = PlainState::Waits(work, keep_alive, answer);
                        return Some((Ok(Bytes::from_static(b" ")), state));
                    }
                }
            }
        };
        match body.next().await {
            Some(Ok(piece)) => Some((Ok(piece), PlainState::Sends(body, answer))),
            Some(Err(error)) => Some((Err(Aborted(error.to_string())), PlainState::Over)),
            None => {
                answer.end_delivered();
                None
            }
        }
    })
}
