//! The path of a session's events to metrics, logs and subscribers.

use std::sync::{Arc, Weak};

use crate::event::{Event, EventId, PublishedEvent};
use crate::journal::{Journal, JournalError, unix_ms};
use crate::response::ResponseAssembler;
use crate::telemetry::{Feed, PendingSubscription, SourceRecord, Subscription, Telemetry, logs};
use crate::types::{RunId, Seq, SessionId};

/// The number of events that a subscriber may be behind before its stream ends. A subscriber that never
/// reads costs about 8 kB; the events themselves are shared.
pub(super) const SUBSCRIBER_EVENTS_MAX: usize = 1024;

/// Publishes the events of one session. Clones publish to the same subscribers.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    session: SessionId,
    feed: Arc<Feed>,
    telemetry: Telemetry,
}

impl Publisher {
    /// Events up to `from` were published before.
    pub(super) fn new(session: SessionId, telemetry: Telemetry, from: Seq) -> Self {
        let from = EventId { seq: from, bytes: 0 };
        Self { session, feed: Arc::new(Feed::starting_at(telemetry.clone(), from)), telemetry }
    }

    /// Closes the feed for hibernation, unless there are subscribers. Returns whether it was closed.
    pub(super) fn leave(&self) -> bool {
        self.feed.close_if_idle()
    }

    /// Reopens the feed, because the session does not hibernate.
    pub(super) fn stay(&self) {
        self.feed.reopen();
    }

    /// Returns the entrance for subscribers. It does not keep their streams alive: they end with the
    /// session.
    pub(super) fn listeners(&self, journal: &Arc<dyn Journal>) -> Listeners {
        Listeners { feed: Arc::downgrade(&self.feed), journal: Arc::clone(journal) }
    }

    /// Adds the model's answer to a trace that holds contents.
    pub(super) fn trace_answer(&self, response: &ResponseAssembler) {
        self.telemetry.traces().answered(&self.session, response);
    }

    /// Publishes an event. Never waits for a subscriber.
    pub(super) fn publish(&self, run: &RunId, turn: u32, event: Event) {
        debug_assert!(!event.is_recorded(), "{event:?} has a record");
        self.tell(run, turn, event, None);
    }

    /// Publishes the event of a record.
    pub(super) fn publish_recorded(&self, run: &RunId, turn: u32, event: Event, of: SourceRecord) {
        debug_assert!(event.is_recorded(), "{event:?} has no record");
        self.tell(run, turn, event, Some(of));
    }

    /// Publishes an event after a record, whose view it may be.
    pub(super) fn publish_behind(
        &self,
        run: &RunId,
        turn: u32,
        event: Event,
        record: Option<SourceRecord>,
    ) {
        match record.filter(|_| event.is_recorded()) {
            Some(of) => self.publish_recorded(run, turn, event, of),
            None => self.publish(run, turn, event),
        }
    }

    fn tell(&self, run: &RunId, turn: u32, event: Event, recorded: Option<SourceRecord>) {
        // Text deltas change no metric.
        if !logs::logs_contents() && self.feed.append_text_if_unwatched(&event) {
            return;
        }
        let published = PublishedEvent {
            session: self.session.clone(),
            run: run.clone(),
            turn,
            timestamp_ms: recorded.map_or_else(unix_ms, |of| of.time),
            id: None,
            stream_text: crate::event::EventStreamText::default(),
            event,
        };
        self.telemetry.observe(&published);
        self.feed.publish(published, recorded);
    }
}

impl Listeners {
    /// Receives from the session's log how far its records are durable.
    pub(super) fn handle_journal(&self, told: Result<Seq, JournalError>) {
        let Some(feed) = self.feed.upgrade() else { return };
        match told {
            Ok(upto) => feed.durable(upto),
            Err(error) => feed.fail(error),
        }
    }
}

/// Accepts subscribers while the session is in memory.
#[derive(Clone, Debug)]
pub(super) struct Listeners {
    feed: Weak<Feed>,
    pub(super) journal: Arc<dyn Journal>,
}

impl Listeners {
    /// Returns the session's feed, unless the session is gone or hibernates.
    pub(super) fn enter(&self) -> Option<(Arc<Feed>, PendingSubscription)> {
        let feed = self.feed.upgrade()?;
        let entering = feed.begin_subscription()?;
        Some((feed, entering))
    }

    /// Returns the number of events that the slowest subscriber has not read yet.
    pub(super) fn longest_queue(&self) -> usize {
        self.feed.upgrade().map_or(0, |feed| feed.longest_queue())
    }

    /// Returns the events from now on; `None` if the session is gone.
    pub(super) fn subscribe(&self) -> Option<Subscription> {
        let (feed, _entering) = self.enter()?;
        Some(feed.subscribe(SUBSCRIBER_EVENTS_MAX))
    }

    /// Returns the events of one run, which may start later.
    pub(super) fn subscribe_to(&self, run: &RunId) -> Option<Subscription> {
        let (feed, _entering) = self.enter()?;
        Some(feed.subscribe_to(run.clone(), SUBSCRIBER_EVENTS_MAX))
    }
}
