//! The path of a session's events to metrics, logs and subscribers.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::journal::{JournalEntry, JournalError, unix_ms};
use crate::telemetry::{Feed, ReaderGuard, Subscription, Telemetry};
use callsheet_values::event::{Event, PublishedEvent};
use callsheet_values::record::{EventProjector, with_call};
use callsheet_values::types::{CallKey, RunId, Seq, SessionId, ToolCall};
use callsheet_wire::response::ResponseAssembler;

/// Maximum number of unread events of a subscriber. One that would have more receives these and then
/// `FeedItem::Lagged`, and its stream ends. All subscribers of a session share one buffer (`telemetry::feed`).
pub(super) const SUBSCRIBER_EVENTS_MAX: usize = 1024;

/// Publishes the events of one session. Clones publish to the same subscribers.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    session: SessionId,
    projector: Arc<Mutex<EventProjector>>,
    feed: Arc<Feed>,
    telemetry: Telemetry,
}

impl Publisher {
    /// Creates the publisher of a session whose last durable record is `last`. `projector` has read its records.
    pub(super) fn new(
        session: SessionId,
        projector: EventProjector,
        telemetry: Telemetry,
        last: Seq,
    ) -> Self {
        let feed = Arc::new(Feed::starting_after(telemetry.clone(), last));
        Self { session, projector: Arc::new(Mutex::new(projector)), feed, telemetry }
    }

    /// Returns the id of the session.
    pub(super) fn session(&self) -> &SessionId {
        &self.session
    }

    /// Returns the telemetry of the host.
    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Closes the feed for hibernation, unless there are subscribers. Returns whether it was closed.
    pub(super) fn close_if_unwatched(&self) -> bool {
        self.feed.close_if_unwatched()
    }

    /// Returns true if the session's events have a reader, or one is about to subscribe.
    pub(super) fn is_watched(&self) -> bool {
        self.feed.is_watched()
    }

    /// Reopens the feed, because the session does not hibernate.
    pub(super) fn reopen(&self) {
        self.feed.reopen();
    }

    /// Returns the access for subscribers. It does not keep the feed alive, so that the streams of
    /// the subscribers end with the session.
    pub(super) fn feed_access(&self) -> FeedAccess {
        FeedAccess { feed: Arc::downgrade(&self.feed) }
    }

    /// Adds the model's answer to the trace, if traces contain messages.
    pub(super) fn trace_answer(&self, response: &ResponseAssembler) {
        self.telemetry.traces().answered(&self.session, response);
    }

    /// Returns whether a subscriber asks for the arguments of calls as they arrive.
    pub(super) fn has_argument_readers(&self) -> bool {
        self.feed.has_argument_readers()
    }

    /// Begins a series of records and events. Until its end no other actor publishes text or events of records, so that
    /// the events have the order of the records and the right positions in the text.
    pub(super) fn begin_series(&self) -> PublishedSeries<'_> {
        PublishedSeries { publisher: self, projector: self.projector.lock() }
    }

    /// Publishes an event that shows no record. Never waits for a subscriber.
    pub(super) fn publish(&self, run: &RunId, turn: u32, event: Event) {
        let _series = event.text().is_some().then(|| self.begin_series());
        self.publish_transient(run, turn, event);
    }

    fn publish_transient(&self, run: &RunId, turn: u32, event: Event) {
        debug_assert!(!event.has_record_id(), "{event:?} shows a record");
        // A text delta changes no metric. It needs only the feed, unless hooks or logs take texts.
        if !self.telemetry.observes_text() && self.feed.append_text_without_subscribers(&event) {
            return;
        }
        let is_observed = !event.is_arguments();
        let published = PublishedEvent {
            session: self.session.clone(),
            run: run.clone(),
            turn,
            timestamp_ms: unix_ms(),
            id: None,
            stream_text: callsheet_values::event::EventStreamText::default(),
            event,
        };
        match is_observed {
            true => self.observe_and_publish(published),
            false => self.feed.publish(published),
        }
    }

    /// Passes an event to metrics, logs, traces and live hooks, and to the feed.
    fn observe_and_publish(&self, published: PublishedEvent) {
        self.telemetry.observe(&published);
        self.feed.publish(published);
    }
}

/// A series of records of one actor and the events that follow them: [`Publisher::begin_series`].
#[derive(Debug)]
pub(super) struct PublishedSeries<'a> {
    publisher: &'a Publisher,
    projector: MutexGuard<'a, EventProjector>,
}

impl PublishedSeries<'_> {
    /// Returns the number of bytes of the running attempt's text that were published.
    pub(super) fn displayed_bytes(&self) -> u64 {
        self.publisher.feed.displayed_bytes()
    }

    /// Publishes an event that shows no record.
    pub(super) fn publish(&self, run: &RunId, turn: u32, event: Event) {
        self.publisher.publish_transient(run, turn, event);
    }

    /// Publishes the events of an entry that was appended. `call_of` returns a call of the current turn.
    pub(super) fn publish_entry(
        &mut self,
        entry: &JournalEntry,
        call_of: impl Fn(CallKey) -> Option<ToolCall>,
    ) {
        let publisher = self.publisher;
        self.projector.project(entry, |mut published| {
            if let Event::CallEnded { result, .. } = &published.event
                && let Some(call) = call_of(result.call.key)
            {
                with_call(&mut published.event, call);
            }
            publisher.observe_and_publish(published);
        });
    }
}

/// Accepts subscribers while the session is in memory.
#[derive(Clone, Debug)]
pub(super) struct FeedAccess {
    feed: Weak<Feed>,
}

impl FeedAccess {
    /// Passes the durability of the session's records to the feed: the last durable record, or the
    /// journal's failure.
    pub(super) fn handle_journal(&self, durable: Result<Seq, JournalError>) {
        let Some(feed) = self.feed.upgrade() else { return };
        match durable {
            Ok(upto) => feed.mark_durable(upto),
            Err(error) => feed.fail(error),
        }
    }

    /// Returns the session's feed, which stays open while the second value exists. `None` if the
    /// session is gone or hibernates.
    pub(super) fn acquire_reader_guard(&self) -> Option<(Arc<Feed>, ReaderGuard)> {
        let feed = self.feed.upgrade()?;
        let pending = feed.acquire_reader_guard()?;
        Some((feed, pending))
    }

    /// Returns the number of unread events of the slowest subscriber.
    pub(super) fn longest_queue(&self) -> usize {
        self.feed.upgrade().map_or(0, |feed| feed.longest_queue())
    }

    /// Returns the events from now on. `None` if the session is gone or hibernates.
    pub(super) fn subscribe(&self) -> Option<Subscription> {
        let (feed, _pending) = self.acquire_reader_guard()?;
        Some(feed.subscribe(SUBSCRIBER_EVENTS_MAX))
    }

    /// Returns the events of one run from now on. It may start later. `None` if the session is gone or hibernates.
    pub(super) fn subscribe_to(&self, run: &RunId) -> Option<Subscription> {
        let (feed, _pending) = self.acquire_reader_guard()?;
        Some(feed.subscribe_to_run(run.clone(), SUBSCRIBER_EVENTS_MAX))
    }
}
