//! Event streams: a session, or one of its runs, as Server-Sent Events.
//!
//! Closing a stream is not stopping the run. Events that are ready are joined into one write.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::AppState;
use crate::event::{Event, EventId};
use crate::runtime::{Host, Watch};
use crate::telemetry::{FeedItem, Subscription, journal_failed};

/// How much is joined before it is written.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// What a client is told whose session ends before it should.
const CLOSED: &str = "{\"type\":\"error\",\"code\":\"session_closed\",\
                      \"message\":\"the session is closed\",\"transient\":false}";

/// Answers with a run's events until its last one, or until the server or its host stops.
pub(super) fn run(events: Subscription, state: &AppState) -> Response {
    let shown = StreamPosition { last: events.began(), ends_with_run: true };
    respond(writes(events, shown, StreamSettings::of(state)))
}

/// The same of a run that was asked for before.
pub(super) fn past_run(events: Watch, state: &AppState) -> Response {
    let shown = StreamPosition { last: events.began(), ends_with_run: true };
    respond(writes(events, shown, StreamSettings::of(state)))
}

/// Answers with a session's events until it ends, or until the server or its host stops.
pub(super) fn session(events: Watch, state: &AppState) -> Response {
    let shown = StreamPosition { last: events.began(), ends_with_run: false };
    respond(writes(events, shown, StreamSettings::of(state)))
}

fn respond(writes: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(writes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would collect events before it passes them on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// When a stream falls silent or ends without an event.
#[derive(Clone)]
struct StreamSettings {
    keep_alive: Duration,
    closing: CancellationToken,
    /// Its sessions end, and are not closed.
    host: Option<Host>,
}

impl StreamSettings {
    fn of(state: &AppState) -> Self {
        let host = Some(state.host.clone());
        Self { keep_alive: state.options.keep_alive, closing: state.closing.clone(), host }
    }

    /// Whether this is the end of a session that goes on when the host begins again.
    fn is_end(&self, next: Option<&FeedItem>) -> bool {
        next.is_none() && self.host.as_ref().is_some_and(|host| !host.is_ready())
    }
}

/// How far a client has been shown the events.
struct StreamPosition {
    /// Where it reads again.
    last: EventId,
    ends_with_run: bool,
}

/// One item a write.
fn writes(
    events: impl Stream<Item = FeedItem> + Unpin + Send + 'static,
    shown: StreamPosition,
    stop: StreamSettings,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    futures::stream::unfold(Some((events, shown)), move |state| {
        let stop = stop.clone();
        async move {
            let (mut events, mut shown) = state?;
            let first = tokio::select! {
                // What is ready is still written when the server closes.
                biased;
                first = events.next() => first,
                () = stop.closing.cancelled() => return None,
                () = tokio::time::sleep(stop.keep_alive) => {
                    return Some((Ok(Bytes::from_static(b": alive\n\n")), Some((events, shown))));
                }
            };
            if stop.is_end(first.as_ref()) {
                return None;
            }
            let mut text = String::new();
            let mut ended = shown.append(&mut text, first.as_ref());
            while !ended && text.len() < WRITE_BYTES_MAX && !stop.closing.is_cancelled() {
                let Some(next) = events.next().now_or_never() else { break };
                ended = stop.is_end(next.as_ref()) || shown.append(&mut text, next.as_ref());
            }
            Some((Ok(Bytes::from(text)), (!ended).then_some((events, shown))))
        }
    })
}

impl StreamPosition {
    /// Adds what a client is shown of a delivery, or of there being none any more; whether it was
    /// the last.
    fn append(&mut self, text: &mut String, delivery: Option<&FeedItem>) -> bool {
        match delivery {
            Some(FeedItem::Event(published)) => {
                self.last = published.id.unwrap_or(self.last);
                text.push_str(published.stream_text());
                self.ends_with_run && matches!(published.event, Event::RunEnded { .. })
            }
            Some(FeedItem::Lagged) => {
                let json = format!("{{\"type\":\"resync\",\"id\":\"{}\"}}", self.last);
                append_event(text, "resync", &json);
                true
            }
            Some(FeedItem::Failed(error)) => {
                let event = journal_failed(error);
                append_event(text, event.kind, &event.json);
                true
            }
            // The session is gone.
            None => {
                append_event(text, "error", CLOSED);
                true
            }
        }
    }
}

fn append_event(text: &mut String, kind: &str, json: &str) {
    for part in ["event: ", kind, "\ndata: ", json, "\n\n"] {
        text.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::event::samples::published;
    use crate::event::{Event, RunStats};
    use crate::telemetry::{Feed, Telemetry};
    use crate::types::RunEnd;

    const ALIVE: Duration = Duration::from_secs(15);

    fn text(text: &str) -> crate::event::PublishedEvent {
        published(Event::TextReceived { text: text.to_owned() })
    }

    fn end() -> crate::event::PublishedEvent {
        published(Event::RunEnded {
            agent: "default".to_owned(),
            end: RunEnd::Answered,
            text: "done".to_owned(),
            error: None,
            stats: Box::new(RunStats::default()),
        })
    }

    fn feed() -> Feed {
        Feed::starting_at(Telemetry::new(&[]), EventId::default())
    }

    fn tell(feed: &Feed, event: crate::event::PublishedEvent) {
        feed.publish(event, None);
    }

    fn start(feed: &Feed) -> (impl Stream<Item = String> + Unpin + use<>, CancellationToken) {
        let closing = CancellationToken::new();
        let writes = {
            let shown = StreamPosition { last: EventId::default(), ends_with_run: true };
            let stop = StreamSettings { keep_alive: ALIVE, closing: closing.clone(), host: None };
            writes(feed.subscribe(8), shown, stop)
        };
        let texts = writes.map(|bytes| {
            let Ok(bytes) = bytes;
            String::from_utf8(bytes.to_vec()).expect("read a write")
        });
        (Box::pin(texts), closing)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_is_one_write() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        tell(&feed, text("a"));
        tell(&feed, text("b"));
        let write = writes.next().await.expect("a write");
        let kinds: Vec<&str> = write.lines().filter(|line| line.starts_with("event")).collect();
        assert_eq!(kinds, ["event: content_delta", "event: content_delta"]);
        let data: Vec<&str> = write
            .split("\n\n")
            .filter_map(|event| event.split_once("data: "))
            .map(|e| e.1)
            .collect();
        let texts: Vec<serde_json::Value> =
            data.iter().map(|data| serde_json::from_str(data).expect("parse")).collect();
        assert_eq!(texts[0]["text"], "a");
        assert_eq!(texts[1]["text"], "b");
        assert_eq!(texts[0]["session_id"], "s1");
        tell(&feed, text("c"));
        assert!(writes.next().await.expect("a write").contains("\"text\":\"c\""));
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_ends_with_the_run_and_not_with_later_events() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        tell(&feed, end());
        tell(&feed, text("of the next run"));
        let write = writes.next().await.expect("a write");
        assert!(write.contains("event: session_stats\n"), "{write}");
        assert!(write.contains("event: stream_end\n") && !write.contains("next run"), "{write}");
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_ends_before_the_run_is_told_of() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        tell(&feed, text("a"));
        drop(feed);
        let write = writes.next().await.expect("a write");
        let (_, error) = write.split_once("event: error\ndata: ").expect("an error");
        let error: serde_json::Value = serde_json::from_str(error).expect("parse");
        assert_eq!(
            error,
            serde_json::json!({"type": "error", "code": "session_closed",
                "message": "the session is closed", "transient": false})
        );
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_comments() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        let began = Instant::now();
        assert_eq!(writes.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(began.elapsed(), ALIVE);
        assert_eq!(writes.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(began.elapsed(), ALIVE * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_told_to_read_again() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        for _ in 0..9 {
            tell(&feed, text("a"));
        }
        let write = writes.next().await.expect("a write");
        assert_eq!(write.matches("event: content_delta\n").count(), 8);
        assert!(
            write.ends_with("event: resync\ndata: {\"type\":\"resync\",\"id\":\"0.8\"}\n\n"),
            "{write}"
        );
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_the_stream_after_what_is_ready() {
        let feed = feed();
        let (mut writes, closing) = start(&feed);
        tell(&feed, text("a"));
        closing.cancel();
        assert!(writes.next().await.expect("a write").contains("content_delta"));
        assert_eq!(writes.next().await, None);
    }
}
