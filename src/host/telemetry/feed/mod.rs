//! The event feed of one session and its subscribers.
//!
//! An event that shows a record is delivered when that record is durable. Later events wait until then, so that all
//! subscribers receive all events in the order of publishing.
//!
//! Slow subscribers: publishing never waits for a subscriber. Each one may have a number of unread events,
//! `SUBSCRIBER_EVENTS_MAX` of `runtime::publish`. A subscriber that has more receives the unread events and
//! then [`FeedItem::Lagged`] (`resync` for HTTP clients), and its stream ends. All share one buffer of
//! unread events (`ring`), so a subscriber that does not read costs next to nothing.
//!
//! The journal does not have the text of the running attempt and the states of its open calls. The
//! feed keeps them for subscribers that join later.

mod catch_up;
mod ring;
mod subscription;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Telemetry;
use crate::journal::JournalError;
use callsheet_values::event::{Event, EventId, PublishedEvent};
use callsheet_values::record::RunningText;
use callsheet_values::types::{RunId, Seq};
use catch_up::CatchUpState;
use ring::EventRing;
use subscription::SubscriberCount;
pub use subscription::{FeedItem, Subscription, journal_failed};

/// The event feed of one session. Dropping it ends every subscriber's stream.
#[derive(Debug)]
pub struct Feed {
    telemetry: Telemetry,
    state: Mutex<FeedState>,
    /// Locked after `state`.
    ring: Arc<EventRing>,
}

#[derive(Debug)]
struct FeedState {
    /// The position after the last published event or text.
    published: EventId,
    /// All records up to this one are durable.
    durable: Seq,
    /// Events that were not delivered yet, each with the record that must become durable first.
    waiting: VecDeque<(Seq, PublishedEvent)>,
    /// The state after the last delivered event.
    catch_up: CatchUpState,
    /// The journal's failure, after which nothing is delivered.
    failed: Option<JournalError>,
    /// Counts the readers, present and future: each has a [`ReaderGuard`] with a reference.
    readers: Arc<()>,
    /// True while the session is being unloaded: [`Feed::acquire_reader_guard`] returns `None`.
    closed: bool,
}

/// Counts as a reader of the feed. While it exists, the feed stays open and approvals wait for an answer. Each
/// subscription holds one; a client that is about to subscribe holds one earlier.
#[derive(Clone, Debug)]
#[must_use = "the feed stays open only while this value exists"]
pub struct ReaderGuard(#[expect(dead_code, reason = "its references are counted")] Arc<()>);

/// The progress of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPosition {
    /// The position after the last delivered event.
    pub delivered: EventId,
    /// The position after the last delivered event that shows a record.
    pub recorded: EventId,
    /// The last durable record, with or without an event.
    pub durable: Seq,
    /// True if the feed holds text of the last attempt. The text is dropped at the first event that
    /// shows a record after the response has ended, or when another attempt replaces this one.
    pub has_text: bool,
    /// The first record of the last run, and the session's turn before it. `None` before the first
    /// run.
    pub run_start: Option<(Seq, u32)>,
}

/// The state of a feed that a new subscriber needs and the journal does not have.
#[derive(Debug)]
pub struct FeedSnapshot {
    /// The position of the feed. The subscription continues after it.
    pub position: FeedPosition,
    /// The text of the running attempt after the subscriber's position, or all of it if the
    /// subscriber has not received the last event that shows a record.
    pub running: Option<RunningText>,
    /// The `run_waiting` event of a run that waits, the last `tool_use` event of each open call, its last
    /// progress, and the pending approvals of child sessions.
    pub states: Vec<Arc<PublishedEvent>>,
}

impl Feed {
    /// Creates the feed of a session whose last durable record is `last`. No attempt is running.
    #[must_use]
    pub fn starting_after(telemetry: Telemetry, last: Seq) -> Self {
        let published = EventId { seq: last, bytes: 0 };
        let state = FeedState {
            published,
            durable: last,
            waiting: VecDeque::new(),
            catch_up: CatchUpState::new(published),
            failed: None,
            readers: Arc::default(),
            closed: false,
        };
        Self { telemetry, state: Mutex::new(state), ring: Arc::default() }
    }

    /// Delivers an event at once, or when its own record and all records shown before it are durable. The event of a
    /// record has its id; a text gets one here. Never blocks. Does nothing after the journal has failed.
    pub fn publish(&self, mut published: PublishedEvent) {
        let mut state = self.state.lock();
        if state.failed.is_some() {
            return;
        }
        let event = &published.event;
        let position = published.id.unwrap_or_else(|| state.published.after(event));
        state.published = position;
        if event.text().is_some() {
            published.id = Some(position);
        }
        if position.seq > state.durable || !state.waiting.is_empty() {
            state.waiting.push_back((position.seq, published));
            return;
        }
        let lagged = state.deliver(published, &self.ring);
        drop(state);
        self.count_lagged(lagged);
    }

    /// Records a text delta for later subscribers without allocating an event. Text that has to wait for a record
    /// is added to the text before it that waits. Does nothing and returns false if the event is not a text delta, if
    /// there is a subscriber, if it has to wait behind another event, or if the journal has failed.
    pub fn append_text_without_subscribers(&self, event: &Event) -> bool {
        let Some((is_thinking, text)) = event.text() else { return false };
        let mut state = self.state.lock();
        if state.failed.is_some() || self.ring.has_subscribers() {
            return false;
        }
        let position = state.published.after(event);
        if state.waiting.is_empty() && position.seq <= state.durable {
            state.catch_up.append_text(position, is_thinking, text);
        } else if !state.append_to_waiting_text(position, is_thinking, text) {
            return false;
        }
        state.published = position;
        true
    }

    /// Marks all records up to this one as durable, and delivers the events that waited for them.
    pub fn mark_durable(&self, up_to: Seq) {
        let mut state = self.state.lock();
        let durable = state.durable.max(up_to);
        state.durable = durable;
        let mut lagged = 0;
        let is_due = |(needs, _): &(Seq, _)| *needs <= durable;
        while state.waiting.front().is_some_and(is_due)
            && let Some((_, published)) = state.waiting.pop_front()
        {
            lagged += state.deliver(published, &self.ring);
        }
        drop(state);
        self.count_lagged(lagged);
    }

    /// Ends every stream with an error, because no more records can be stored. Drops the waiting
    /// events.
    pub fn fail(&self, error: JournalError) {
        let mut state = self.state.lock();
        state.waiting.clear();
        self.ring.fail(&error);
        state.failed.get_or_insert(error);
    }

    /// Adds a subscriber to the events from now on, with a queue of `capacity` events (at least 1).
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.add(&mut self.state.lock(), None, capacity)
    }

    /// Adds a subscriber to the events of one run from now on. The run may start later.
    pub fn subscribe_to_run(&self, run: RunId, capacity: usize) -> Subscription {
        self.add(&mut self.state.lock(), Some(run), capacity)
    }

    /// Adds a subscriber to the events from now on. Also returns the state that the journal does
    /// not have, for a subscriber that has received the events up to `after`.
    pub fn subscribe_from(&self, after: EventId, capacity: usize) -> (Subscription, FeedSnapshot) {
        let mut state = self.state.lock();
        let position = state.position();
        let from = if after >= position.recorded { after.bytes } else { 0 };
        let running = state.catch_up.running_text(from);
        let states = state.catch_up.states();
        let subscription = self.add(&mut state, None, capacity);
        (subscription, FeedSnapshot { position, running, states })
    }

    /// Returns whether a subscriber receives arguments as they arrive.
    #[must_use]
    pub fn has_argument_readers(&self) -> bool {
        self.ring.has_argument_readers()
    }

    /// Returns the number of bytes of the running attempt's text and thinking that were published, also those that were
    /// not delivered yet.
    #[must_use]
    pub fn displayed_bytes(&self) -> u64 {
        self.state.lock().published.bytes
    }

    /// Returns the position of the feed.
    #[must_use]
    pub fn position(&self) -> FeedPosition {
        self.state.lock().position()
    }

    /// Announces a subscriber: the feed stays open while the returned value exists. Returns `None` if the feed is
    /// closed.
    #[must_use]
    pub fn acquire_reader_guard(&self) -> Option<ReaderGuard> {
        let state = self.state.lock();
        (!state.closed).then(|| ReaderGuard(Arc::clone(&state.readers)))
    }

    /// Closes the feed if it has no subscribers and none is announced. Returns whether it is closed.
    #[must_use]
    pub fn close_if_unwatched(&self) -> bool {
        let mut state = self.state.lock();
        state.closed = Arc::strong_count(&state.readers) == 1;
        state.closed
    }

    /// Returns whether there are subscribers, or one is announced.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        Arc::strong_count(&self.state.lock().readers) > 1
    }

    /// Reopens the feed.
    pub fn reopen(&self) {
        self.state.lock().closed = false;
    }

    /// Returns the number of unread events of the slowest subscriber.
    #[must_use]
    pub fn longest_queue(&self) -> usize {
        self.ring.longest_queue()
    }

    fn add(&self, state: &mut FeedState, run: Option<RunId>, capacity: usize) -> Subscription {
        let reader = self.ring.subscribe(run, capacity);
        if let Some(error) = &state.failed {
            self.ring.fail(error);
        }
        let count = SubscriberCount::new(&self.telemetry);
        let guard = ReaderGuard(Arc::clone(&state.readers));
        Subscription::new(reader, state.catch_up.delivered, count, guard)
    }

    fn count_lagged(&self, lagged: usize) {
        if lagged > 0 {
            self.telemetry.metrics().subscribers_lagged(lagged);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.ring.close();
    }
}

impl FeedState {
    /// Delivers an event to every subscriber, and removes those that are too slow. Returns their
    /// number. Allocates nothing for an event without subscribers, unless later subscribers need it.
    fn deliver(&mut self, published: PublishedEvent, ring: &Arc<EventRing>) -> usize {
        let event = self.catch_up.apply(published, ring.has_subscribers());
        event.map_or(0, |event| ring.publish(&event))
    }

    /// Appends text to the last waiting event, if that is text of the same kind. `position` is the position after the
    /// text. Returns whether it did.
    fn append_to_waiting_text(&mut self, position: EventId, is_thinking: bool, text: &str) -> bool {
        let Some((_, last)) = self.waiting.back_mut() else { return false };
        if last.event.text().is_none_or(|(is_last_thinking, _)| is_last_thinking != is_thinking) {
            return false;
        }
        let (Event::TextReceived { text: waiting } | Event::ThinkingReceived { text: waiting }) =
            &mut last.event
        else {
            return false;
        };
        waiting.push_str(text);
        last.id = Some(position);
        true
    }

    fn position(&self) -> FeedPosition {
        FeedPosition {
            delivered: self.catch_up.delivered,
            recorded: self.catch_up.recorded,
            durable: self.durable,
            has_text: self.catch_up.has_text(),
            run_start: self.catch_up.run_start,
        }
    }
}

#[cfg(test)]
mod tests;
