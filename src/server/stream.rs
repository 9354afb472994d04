//! Event streams: a subscription as Server-Sent Events.
//!
//! Closing a stream is not stopping the run. Events that are ready are joined into one write.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;

use crate::telemetry::{Delivery, Subscription};

/// How much is joined before it is written.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// What a client is told whose session ends before the run does.
const CLOSED: &str = "{\"type\":\"error\",\"code\":\"session_closed\",\
                      \"message\":\"the session is closed\",\"transient\":false}";

/// The last event of a run.
const LAST: &str = "stream_end";

/// Answers with a run's events until its last one, or until `closing`.
pub(super) fn events(
    subscription: Subscription,
    keep_alive: Duration,
    closing: CancellationToken,
) -> Response {
    let mut response = Response::new(Body::from_stream(writes(subscription, keep_alive, closing)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would collect events before it passes them on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One item a write.
fn writes(
    events: impl Stream<Item = Delivery> + Unpin + Send + 'static,
    keep_alive: Duration,
    closing: CancellationToken,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    futures::stream::unfold(Some(events), move |events| {
        let closing = closing.clone();
        async move {
            let mut events = events?;
            let first = tokio::select! {
                // What is ready is still written when the server closes.
                biased;
                first = events.next() => first,
                () = closing.cancelled() => return None,
                () = tokio::time::sleep(keep_alive) => {
                    return Some((Ok(Bytes::from_static(b": alive\n\n")), Some(events)));
                }
            };
            let mut text = String::new();
            let mut ended = append(&mut text, first.as_ref());
            while !ended && text.len() < WRITE_BYTES_MAX {
                let Some(next) = events.next().now_or_never() else { break };
                ended = append(&mut text, next.as_ref());
            }
            Some((Ok(Bytes::from(text)), (!ended).then_some(events)))
        }
    })
}

/// Adds what a client is shown of a delivery, or of there being none any more; whether it was the
/// last.
fn append(text: &mut String, delivery: Option<&Delivery>) -> bool {
    match delivery {
        Some(Delivery::Event(published)) => published.public().fold(false, |ended, event| {
            append_event(text, event.kind, &event.json);
            ended || event.kind == LAST
        }),
        Some(Delivery::Lagged) => {
            append_event(text, "resync", "{\"type\":\"resync\"}");
            true
        }
        // The session is gone, and the run was not begun or did not come to its end.
        None => {
            append_event(text, "error", CLOSED);
            true
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
    use crate::telemetry::Bus;
    use crate::types::RunEnd;

    const ALIVE: Duration = Duration::from_secs(15);

    fn text(text: &str) -> crate::event::Published {
        published(Event::TextReceived { text: text.to_owned() })
    }

    fn end() -> crate::event::Published {
        published(Event::RunEnded {
            agent: "default".to_owned(),
            end: RunEnd::Answered,
            text: "done".to_owned(),
            error: None,
            stats: RunStats::default(),
        })
    }

    fn start(bus: &Bus) -> (impl Stream<Item = String> + Unpin + use<>, CancellationToken) {
        let closing = CancellationToken::new();
        let writes = writes(bus.subscribe(8), ALIVE, closing.clone());
        let texts = writes.map(|bytes| {
            let Ok(bytes) = bytes;
            String::from_utf8(bytes.to_vec()).expect("read a write")
        });
        (Box::pin(texts), closing)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_is_one_write() {
        let bus = Bus::new();
        let (mut writes, _closing) = start(&bus);
        bus.publish(text("a"));
        bus.publish(text("b"));
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
        bus.publish(text("c"));
        assert!(writes.next().await.expect("a write").contains("\"text\":\"c\""));
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_ends_with_the_run_and_not_with_later_events() {
        let bus = Bus::new();
        let (mut writes, _closing) = start(&bus);
        bus.publish(end());
        bus.publish(text("of the next run"));
        let write = writes.next().await.expect("a write");
        assert!(write.contains("event: session_stats\n"), "{write}");
        assert!(write.contains("event: stream_end\n") && !write.contains("next run"), "{write}");
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_ends_before_the_run_is_told_of() {
        let bus = Bus::new();
        let (mut writes, _closing) = start(&bus);
        bus.publish(text("a"));
        drop(bus);
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
        let bus = Bus::new();
        let (mut writes, _closing) = start(&bus);
        let began = Instant::now();
        assert_eq!(writes.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(began.elapsed(), ALIVE);
        assert_eq!(writes.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(began.elapsed(), ALIVE * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_told_to_read_again() {
        let bus = Bus::new();
        let (mut writes, _closing) = start(&bus);
        for _ in 0..9 {
            bus.publish(text("a"));
        }
        let write = writes.next().await.expect("a write");
        assert_eq!(write.matches("event: content_delta\n").count(), 8);
        assert!(write.ends_with("event: resync\ndata: {\"type\":\"resync\"}\n\n"), "{write}");
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_the_stream_after_what_is_ready() {
        let bus = Bus::new();
        let (mut writes, closing) = start(&bus);
        bus.publish(text("a"));
        closing.cancel();
        assert!(writes.next().await.expect("a write").contains("content_delta"));
        assert_eq!(writes.next().await, None);
    }
}
