//! Event streams: the events of a session or of one run as Server-Sent Events.
//!
//! Events that are ready are joined into writes of about 8 KiB. A large event is written in pieces, so that a client
//! that does not read holds only a piece of its text. Closing a stream does not stop the run.

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::answer_limiter::PIECE_BYTES;
use super::state::ServerOptions;
use callsheet_host::runtime::{
    HostError, HostEvent, SessionEvents, SessionStateChange, StartedRun,
};
use callsheet_host::telemetry::{FeedItem, journal_failed};
use callsheet_values::event::{EventForm, EventId, PublicEvent, PublishedEvent};
use callsheet_values::types::{Seq, SessionState};

/// Size of a write from which no further event is joined to it.
const JOINED_BYTES: usize = 8 * 1024;

/// The last event of a stream whose session was closed.
const SESSION_CLOSED: &str = "{\"type\":\"error\",\"code\":\"session_closed\",\
                              \"message\":\"the session is closed\",\"transient\":false}";

/// A response with the events of a run or a session as Server-Sent Events, as the API sends them. The
/// events of a run end with the run, those of a session when it is closed, and both when the host shuts
/// down, the journal fails, or the client is too slow.
///
/// ```
/// use axum::extract::State;
/// use callsheet::prelude::*;
/// use callsheet::server::EventStream;
///
/// async fn ask(State(host): State<Host>, question: String) -> Result<EventStream, HostError> {
///     let session = host.open_session(OpenSession::default()).await?;
///     Ok(EventStream::from(session.start_run(question).await?))
/// }
/// ```
#[must_use = "a response does nothing unless it is returned"]
pub struct EventStream {
    items: BoxStream<'static, StreamItem>,
    encoder: SseEncoder,
    settings: StreamSettings,
}

impl EventStream {
    /// Sets the time without an event after which the stream sends a comment: 15 seconds by default.
    pub fn keep_alive(mut self, interval: Duration) -> Self {
        self.settings.keep_alive = interval;
        self
    }

    /// Ends the stream when `closing` is cancelled, too.
    pub(super) fn until(mut self, closing: &CancellationToken) -> Self {
        self.settings.closing = closing.clone();
        self
    }

    /// Ends the stream with the run of its events.
    pub(super) fn until_run_end(mut self) -> Self {
        self.encoder.ends_with_run = true;
        self
    }

    /// The events of several sessions.
    pub(super) fn of_host(
        events: impl Stream<Item = HostEvent> + Send + 'static,
        form: EventForm,
    ) -> Self {
        Self::new(events.map(of_host_event).boxed(), EventId::default(), form)
    }

    fn new(items: BoxStream<'static, StreamItem>, last: EventId, form: EventForm) -> Self {
        let settings = StreamSettings {
            keep_alive: ServerOptions::default().keep_alive,
            closing: CancellationToken::new(),
        };
        Self { items, encoder: SseEncoder::new(last, form), settings }
    }
}

impl From<SessionEvents> for EventStream {
    fn from(events: SessionEvents) -> Self {
        let (last, form) = (events.start(), events.options().form);
        Self::new(with_end(events, SessionEvents::is_host_ready).boxed(), last, form)
    }
}

impl From<StartedRun> for EventStream {
    fn from(run: StartedRun) -> Self {
        let form = run.options().form;
        if run.events_are_complete {
            let (last, session) = (run.events.start(), run.session().clone());
            let items = with_end(run.events, move |_| session.is_host_ready());
            return Self::new(items.boxed(), last, form).until_run_end();
        }
        let last = EventId { seq: Seq(run.seq.0.saturating_sub(1)), bytes: 0 };
        let items = futures::stream::once(run.into_all_events());
        let items = items.flat_map(|events| match events {
            Ok(events) => with_end(events, SessionEvents::is_host_ready).boxed(),
            Err(HostError::Journal(error)) => one(StreamItem::Feed(FeedItem::Failed(error))),
            Err(HostError::ShuttingDown) => futures::stream::empty().boxed(),
            Err(_) => one(StreamItem::SessionClosed),
        });
        Self::new(items.boxed(), last, form).until_run_end()
    }
}

fn one(item: StreamItem) -> BoxStream<'static, StreamItem> {
    futures::stream::iter([item]).boxed()
}

/// Returns an item of a stream of several sessions. It has the id of its session, except `resync` for lost states.
fn of_host_event(event: HostEvent) -> StreamItem {
    let (kind, fields) = match event {
        HostEvent::Published(published) => return StreamItem::Feed(FeedItem::Event(published)),
        HostEvent::State(SessionStateChange { session, state, time, agent }) => {
            let state = state.map_or("closed", SessionState::as_str);
            let mut fields = json!({"session_id": session, "timestamp": time, "state": state});
            if let Some(agent) = agent {
                fields["agent"] = agent.into();
            }
            ("session_state", fields)
        }
        HostEvent::Lagged(session, last) => {
            ("resync", json!({"session_id": session, "id": last.to_string()}))
        }
        HostEvent::StatesLagged => ("resync", json!({"id": null})),
        HostEvent::Failed(session, error) => {
            return StreamItem::Public(journal_failed(&error, Some(&session)));
        }
        HostEvent::OfPeer(text) => return StreamItem::Text(text),
    };
    let mut json = fields;
    json["type"] = kind.into();
    StreamItem::Public(PublicEvent { kind, json: json.to_string() })
}

/// An item of a stream.
enum StreamItem {
    Feed(FeedItem),
    /// An event of the stream itself.
    Public(PublicEvent),
    /// An event of another host.
    Text(String),
    /// The last item, if the session was closed and its host does not shut down.
    SessionClosed,
}

/// Adds [`StreamItem::SessionClosed`] to events that end with their session. The events also end when
/// the host shuts down, although the session is not closed then.
fn with_end<S: Stream<Item = FeedItem> + Unpin + Send>(
    events: S,
    is_host_ready: impl Fn(&S) -> bool + Send,
) -> impl Stream<Item = StreamItem> + Send {
    let state = Some((events, is_host_ready));
    futures::stream::unfold(state, async |state| {
        let (mut events, is_host_ready) = state?;
        match events.next().await {
            Some(item) => Some((StreamItem::Feed(item), Some((events, is_host_ready)))),
            None if is_host_ready(&events) => Some((StreamItem::SessionClosed, None)),
            None => None,
        }
    })
}

impl IntoResponse for EventStream {
    fn into_response(self) -> Response {
        let Self { items, encoder, settings } = self;
        let mut response = Response::new(Body::from_stream(writes(items, encoder, settings)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Without this header nginx buffers events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("encoder", &self.encoder).finish_non_exhaustive()
    }
}

/// Settings of a stream: its keep-alive interval, and a signal that ends it without an event.
#[derive(Clone)]
struct StreamSettings {
    keep_alive: Duration,
    closing: CancellationToken,
}

/// Encodes events as Server-Sent Events, and keeps the position of the client in them.
#[derive(Debug)]
struct SseEncoder {
    /// Id of the last event that was written; a client reconnects with it.
    last: EventId,
    form: EventForm,
    ends_with_run: bool,
    /// True if the stream ends after what is being written.
    has_ended: bool,
    /// The rest of a large event: the event, and the number of bytes of its text that were written.
    rest: Option<(Arc<PublishedEvent>, usize)>,
}

/// Turns events into writes. The source of the events is dropped with the last piece of the last event: until then
/// its share of memory is in use.
fn writes(
    events: impl Stream<Item = StreamItem> + Unpin + Send + 'static,
    encoder: SseEncoder,
    settings: StreamSettings,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    futures::stream::unfold((Some(events), encoder), move |(mut events, mut encoder)| {
        let settings = settings.clone();
        async move {
            let write = encoder.next_write(events.as_mut()?, &settings).await?;
            if encoder.has_ended && encoder.rest.is_none() {
                events = None;
            }
            Some((Ok(write), (events, encoder)))
        }
    })
}

impl SseEncoder {
    fn new(last: EventId, form: EventForm) -> Self {
        Self { last, form, ends_with_run: false, has_ended: false, rest: None }
    }

    /// Returns the next write: a piece of a large event, or events that are ready, up to [`JOINED_BYTES`]. Returns
    /// `None` if none follows.
    async fn next_write(
        &mut self,
        source: &mut (impl Stream<Item = StreamItem> + Unpin),
        settings: &StreamSettings,
    ) -> Option<Bytes> {
        let mut text = String::new();
        let mut keep_alive = pin!(tokio::time::sleep(settings.keep_alive));
        // Some events have no text for clients.
        while text.is_empty() && self.rest.is_none() && !self.has_ended {
            let first = tokio::select! {
                // Events that are ready are still written when the server shuts down.
                biased;
                first = source.next() => first?,
                () = settings.closing.cancelled() => return None,
                () = &mut keep_alive => return Some(Bytes::from_static(b": alive\n\n")),
            };
            self.append(&mut text, &first);
            while self.takes_more(&text) && !settings.closing.is_cancelled() {
                match source.next().now_or_never() {
                    Some(Some(next)) => self.append(&mut text, &next),
                    Some(None) => self.has_ended = true,
                    None => break,
                }
            }
        }
        if text.is_empty() {
            return self.next_piece();
        }
        // A copy of the exact size: the write waits in memory while the client does not read.
        Some(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Returns true if a further item can be appended to a write.
    fn takes_more(&self, text: &str) -> bool {
        !self.has_ended && self.rest.is_none() && text.len() < JOINED_BYTES
    }

    /// Returns the next piece of a large event. It is a copy, so that a connection that has not sent it does not hold
    /// the event.
    fn next_piece(&mut self) -> Option<Bytes> {
        let (published, written) = self.rest.take()?;
        let text = published.stream_text(self.form).as_bytes();
        let end = text.len().min(written + PIECE_BYTES);
        let piece = Bytes::copy_from_slice(text.get(written..end)?);
        self.rest = (end < text.len()).then_some((published, end));
        Some(piece)
    }

    /// Appends the text of an item. That of a large event is written afterwards, in pieces.
    fn append(&mut self, text: &mut String, item: &StreamItem) {
        self.has_ended = match item {
            StreamItem::Feed(FeedItem::Event(published)) => {
                self.last = published.id.unwrap_or(self.last);
                match published.stream_text(self.form) {
                    large if large.len() > PIECE_BYTES => {
                        self.rest = Some((Arc::clone(published), 0));
                    }
                    small => text.push_str(small),
                }
                self.ends_with_run && published.event.is_last_of_run()
            }
            StreamItem::Feed(FeedItem::Lagged) => {
                let json = format!("{{\"type\":\"resync\",\"id\":\"{}\"}}", self.last);
                append_event(text, "resync", &json);
                true
            }
            StreamItem::Feed(FeedItem::Failed(error)) => {
                let event = journal_failed(error, None);
                append_event(text, event.kind, &event.json);
                true
            }
            StreamItem::Public(event) => {
                append_event(text, event.kind, &event.json);
                false
            }
            StreamItem::Text(event) => {
                text.push_str(event);
                false
            }
            StreamItem::SessionClosed => {
                append_event(text, "error", SESSION_CLOSED);
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
    use callsheet_host::telemetry::{Feed, Telemetry};
    use callsheet_values::event::samples::published;
    use callsheet_values::event::{Event, RunStats};
    use callsheet_values::types::RunEnd;

    const KEEP_ALIVE: Duration = Duration::from_secs(15);

    fn text(text: &str) -> callsheet_values::event::PublishedEvent {
        published(Event::TextReceived { text: text.to_owned() })
    }

    fn end() -> callsheet_values::event::PublishedEvent {
        end_with("done")
    }

    fn end_with(text: &str) -> callsheet_values::event::PublishedEvent {
        published(Event::RunEnded {
            agent: "default".to_owned(),
            metadata: callsheet_values::types::Metadata::default(),
            end: RunEnd::Answered,
            text: text.to_owned(),
            output: None,
            error: None,
            stats: Box::new(RunStats::default()),
            finish_reason: None,
        })
    }

    fn feed() -> Feed {
        Feed::starting_after(Telemetry::new(&[]), Seq(0))
    }

    fn publish(feed: &Feed, event: callsheet_values::event::PublishedEvent) {
        feed.publish(event);
    }

    fn start(feed: &Feed) -> (impl Stream<Item = String> + Unpin + use<>, CancellationToken) {
        let closing = CancellationToken::new();
        let writes = {
            let encoder = SseEncoder {
                ends_with_run: true,
                ..SseEncoder::new(EventId::default(), EventForm::Short)
            };
            let settings = StreamSettings { keep_alive: KEEP_ALIVE, closing: closing.clone() };
            writes(with_end(feed.subscribe(8), |_| true).boxed(), encoder, settings)
        };
        let texts = writes.map(|bytes| {
            let Ok(bytes) = bytes;
            String::from_utf8(bytes.to_vec()).expect("read a write")
        });
        (Box::pin(texts), closing)
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_event_is_written_in_pieces() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        let large = "x".repeat(3 * PIECE_BYTES);
        for event in [text("a"), text(&large), text("b"), end()] {
            publish(&feed, event);
        }
        let mut texts = Vec::new();
        while let Some(write) = writes.next().await {
            assert!((1..=PIECE_BYTES).contains(&write.len()), "{}", write.len());
            texts.push(write);
        }
        let all = texts.concat();
        let data: Vec<&str> = all.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let found = data.iter().map(|data| {
            let event: serde_json::Value = serde_json::from_str(data).expect("parse");
            event["text"].as_str().map(str::len)
        });
        let found: Vec<Option<usize>> = found.collect();
        assert_eq!(found[..3], [Some(1), Some(large.len()), Some(1)]);
        assert!(texts[0].contains("\"text\":\"a\""), "what comes before is written first");
        assert!(texts.last().is_some_and(|last| last.contains("stream_end")), "the end is last");
    }

    #[tokio::test(start_paused = true)]
    async fn ready_events_are_joined_into_one_write() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        publish(&feed, text("a"));
        publish(&feed, text("b"));
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
        publish(&feed, text("c"));
        assert!(writes.next().await.expect("a write").contains("\"text\":\"c\""));
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_ends_with_its_run() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        publish(&feed, end());
        publish(&feed, text("of the next run"));
        let write = writes.next().await.expect("a write");
        assert!(write.contains("event: session_stats\n"), "{write}");
        assert!(write.contains("event: stream_end\n") && !write.contains("next run"), "{write}");
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_source_is_kept_until_a_large_last_event_is_written() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        publish(&feed, end_with(&"x".repeat(3 * PIECE_BYTES)));
        assert!(feed.is_watched());
        let first = writes.next().await.unwrap();
        assert!(first.contains("event: stream_end\n"), "{first:.100}");
        assert!(feed.is_watched());
        let mut rest = String::new();
        while !rest.ends_with("\n\n") {
            rest += &writes.next().await.unwrap();
        }
        assert!(!feed.is_watched());
        assert_eq!(writes.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn closing_the_session_ends_the_stream_with_an_error() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        publish(&feed, text("a"));
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
    async fn a_silent_stream_sends_comments() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        let started = Instant::now();
        assert_eq!(writes.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(started.elapsed(), KEEP_ALIVE);
        assert_eq!(writes.next().await.as_deref(), Some(": alive\n\n"));
        assert_eq!(started.elapsed(), KEEP_ALIVE * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_resync() {
        let feed = feed();
        let (mut writes, _closing) = start(&feed);
        for _ in 0..9 {
            publish(&feed, text("a"));
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
    async fn server_shutdown_ends_the_stream_after_ready_events() {
        let feed = feed();
        let (mut writes, closing) = start(&feed);
        publish(&feed, text("a"));
        closing.cancel();
        assert!(writes.next().await.expect("a write").contains("content_delta"));
        assert_eq!(writes.next().await, None);
    }
}
