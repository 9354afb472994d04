//! The event feed of one session and its subscribers.
//!
//! An event that is the view of a record is delivered when that record is durable. Later events
//! wait behind it, in order. Publishing never waits for a subscriber: each has a bounded queue, and
//! when it is full, the subscriber receives the queued events, then a lag notice, and its stream
//! ends. All subscribers receive the same events in the same order.
//!
//! The feed keeps the state that the journal does not have for subscribers that join later: the
//! text of the running attempt and its open calls.

mod catch_up;
mod subscription;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::Telemetry;
use crate::event::{Event, EventId, PublishedEvent};
use crate::journal::JournalError;
use crate::record::RunningText;
use crate::types::{RunId, Seq};
use catch_up::CatchUpState;
pub use subscription::{FeedItem, Subscription, journal_failed};
use subscription::{SubscriberCount, SubscriptionEnd};

/// The event feed of one session. Dropping it ends every subscriber's stream.
#[derive(Debug)]
pub struct Feed {
    telemetry: Telemetry,
    state: Mutex<FeedState>,
}

#[derive(Debug)]
struct FeedState {
    /// The position after the last published event.
    head: EventId,
    /// All records up to this one are durable.
    durable: Seq,
    /// Waiting events, each with the record that must become durable first.
    waiting: VecDeque<(Seq, PublishedEvent)>,
    catch_up: CatchUpState,
    subscribers: Vec<Subscriber>,
    failed: Option<JournalError>,
    /// Counts subscribers that are about to join.
    pending_subscriptions: Arc<()>,
    /// True if the feed is closed, because the session is being unloaded.
    closed: bool,
}

/// Keeps the session in memory until the subscriber has joined.
#[derive(Clone, Debug)]
#[must_use = "the session stays only as long as this is held"]
pub struct PendingSubscription(#[expect(dead_code, reason = "counted by its reference")] Arc<()>);

#[derive(Debug)]
struct Subscriber {
    /// The run whose events it receives. `None` means all runs.
    run: Option<RunId>,
    queue: mpsc::Sender<Arc<PublishedEvent>>,
    end: Arc<OnceLock<SubscriptionEnd>>,
}

/// The record that an event is the view of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRecord {
    /// The record's sequence number.
    pub seq: Seq,
    /// The time of record and event.
    pub time: u64,
    /// Bytes of text and thinking that the record contains.
    pub shown: u64,
}

/// The position of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPosition {
    /// Position after the last published event.
    pub at: EventId,
    /// Position after the last event of a record.
    pub recorded: EventId,
    /// The last durable record, with or without an event.
    pub durable: Seq,
    /// The first record of the last run, and the session's turn at that time. `None` before the
    /// first run.
    pub run_began: Option<(Seq, u32)>,
}

/// The state for a subscriber that joins later, in addition to the journal.
#[derive(Debug)]
pub struct FeedSnapshot {
    /// The position of the feed. The subscription continues after it.
    pub progress: FeedPosition,
    /// The text of the running attempt.
    pub running: Option<RunningText>,
    /// The last states of each open call.
    pub open: Vec<Arc<PublishedEvent>>,
}

impl Feed {
    /// Creates the feed of a session that continues after its last durable record, without a
    /// running attempt. For a new session the position is 0.
    #[must_use]
    pub fn starting_at(telemetry: Telemetry, at: EventId) -> Self {
        let state = FeedState {
            head: at,
            durable: at.seq,
            waiting: VecDeque::new(),
            catch_up: CatchUpState::at(at),
            subscribers: Vec::new(),
            failed: None,
            pending_subscriptions: Arc::default(),
            closed: false,
        };
        Self { telemetry, state: Mutex::new(state) }
    }

    /// Publishes an event, now or when the record before it is durable. Assigns its id. Never
    /// blocks.
    pub fn publish(&self, mut published: PublishedEvent, recorded: Option<SourceRecord>) {
        let mut state = self.state.lock();
        if state.failed.is_some() {
            return;
        }
        let (event, before) = (&published.event, state.head);
        let id = match recorded {
            Some(SourceRecord { seq, shown, .. }) => {
                EventId { seq, bytes: shown }.after(event, Some(seq))
            }
            None => before.after(event, None),
        };
        state.head = id;
        let has_id = recorded.is_some() || event.text().is_some();
        published.id = has_id.then_some(id);
        if id.seq > state.durable || !state.waiting.is_empty() {
            state.waiting.push_back((id.seq, published));
            return;
        }
        let lagged = state.deliver(published);
        drop(state);
        self.count_lagged(lagged);
    }

    /// Appends a text delta without creating an event, if there are no subscribers and no waiting
    /// events. Returns whether it did.
    pub fn append_text_if_unwatched(&self, event: &Event) -> bool {
        let Some((is_thinking, text)) = event.text() else { return false };
        let mut state = self.state.lock();
        if !state.is_idle() || !state.waiting.is_empty() || state.head.seq > state.durable {
            return false;
        }
        state.head = state.head.after(event, None);
        state.catch_up.append_text(is_thinking, text);
        true
    }

    /// Marks all records up to this one as durable, and publishes the events that waited for them.
    pub fn durable(&self, upto: Seq) {
        let mut state = self.state.lock();
        let durable = state.durable.max(upto);
        state.durable = durable;
        let mut lagged = 0;
        while let Some((_, published)) = state.waiting.pop_front_if(|(needs, _)| *needs <= durable)
        {
            lagged += state.deliver(published);
        }
        drop(state);
        self.count_lagged(lagged);
    }

    /// Ends every stream with an error, because no more records can be stored. Waiting events are
    /// dropped.
    pub fn fail(&self, error: JournalError) {
        let mut state = self.state.lock();
        state.waiting.clear();
        for subscriber in state.subscribers.drain(..) {
            // Each subscriber in the list has no end yet.
            let _ = subscriber.end.set(SubscriptionEnd::Failed(error.clone()));
        }
        state.failed.get_or_insert(error);
    }

    /// Adds a subscriber with a queue of `capacity` events (at least 1).
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.add(&mut self.state.lock(), None, capacity)
    }

    /// Adds a subscriber to the events of one run, which may start later.
    pub fn subscribe_to(&self, run: RunId, capacity: usize) -> Subscription {
        self.add(&mut self.state.lock(), Some(run), capacity)
    }

    /// Adds a subscriber, and returns the state after `after` that the journal does not have.
    pub fn subscribe_from(&self, after: EventId, capacity: usize) -> (Subscription, FeedSnapshot) {
        let mut state = self.state.lock();
        let progress = state.progress();
        let from = if after >= progress.recorded { after.bytes } else { 0 };
        let running = state.catch_up.running(from);
        let open = state.catch_up.open_calls();
        let subscription = self.add(&mut state, None, capacity);
        (subscription, FeedSnapshot { progress, running, open })
    }

    /// The position of a feed.
    #[must_use]
    pub fn progress(&self) -> FeedPosition {
        self.state.lock().progress()
    }

    /// Announces a subscriber. Returns `None` if the feed is closed.
    #[must_use]
    pub fn begin_subscription(&self) -> Option<PendingSubscription> {
        let state = self.state.lock();
        (!state.closed).then(|| PendingSubscription(Arc::clone(&state.pending_subscriptions)))
    }

    /// Closes the feed if there are no subscribers and none is announced. Returns whether it is
    /// closed.
    #[must_use]
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.closed = state.is_idle() && Arc::strong_count(&state.pending_subscriptions) == 1;
        state.closed
    }

    /// Reopens the feed.
    pub fn reopen(&self) {
        self.state.lock().closed = false;
    }

    /// Returns whether there are no subscribers.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    /// Returns the number of events in the longest queue of a subscriber.
    #[must_use]
    pub fn longest_queue(&self) -> usize {
        let state = self.state.lock();
        let waiting = |queue: &mpsc::Sender<_>| queue.max_capacity() - queue.capacity();
        state.subscribers.iter().map(|subscriber| waiting(&subscriber.queue)).max().unwrap_or(0)
    }

    fn add(&self, state: &mut FeedState, run: Option<RunId>, capacity: usize) -> Subscription {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let end = Arc::new(OnceLock::new());
        // An idle session publishes nothing, so closed subscribers are removed here.
        state.subscribers.retain(|subscriber| !subscriber.queue.is_closed());
        match &state.failed {
            None => {
                let end = Arc::clone(&end);
                state.subscribers.push(Subscriber { run, queue: sender, end });
            }
            Some(error) => {
                let _ = end.set(SubscriptionEnd::Failed(error.clone()));
            }
        }
        Subscription::new(
            receiver,
            end,
            state.catch_up.position(),
            SubscriberCount::new(&self.telemetry),
        )
    }

    fn count_lagged(&self, lagged: usize) {
        if lagged > 0 {
            self.telemetry.metrics().subscribers_lagged(lagged);
        }
    }
}

impl FeedState {
    /// Delivers an event to every subscriber, and removes those that are closed or too slow.
    /// Returns how many were too slow. Allocates nothing for an event that has no subscribers and
    /// need not be kept.
    fn deliver(&mut self, published: PublishedEvent) -> usize {
        self.subscribers.retain(|subscriber| !subscriber.queue.is_closed());
        let Some(event) = self.catch_up.apply(published, self.subscribers.is_empty()) else {
            return 0;
        };
        let mut lagged = 0;
        self.subscribers.retain(|subscriber| {
            if subscriber.run.as_ref().is_some_and(|run| *run != event.run) {
                return true;
            }
            match subscriber.queue.try_send(Arc::clone(&event)) {
                Ok(()) => true,
                Err(TrySendError::Closed(_)) => false,
                Err(TrySendError::Full(_)) => {
                    // The end is set before the sender is dropped, because the reader then looks
                    // for it.
                    let _ = subscriber.end.set(SubscriptionEnd::Lagged);
                    lagged += 1;
                    false
                }
            }
        });
        lagged
    }

    fn is_idle(&self) -> bool {
        self.subscribers.iter().all(|subscriber| subscriber.queue.is_closed())
    }

    fn progress(&self) -> FeedPosition {
        FeedPosition {
            at: self.catch_up.position(),
            recorded: self.catch_up.recorded,
            durable: self.durable.max(self.catch_up.position().seq),
            run_began: self.catch_up.run_began,
        }
    }
}

#[cfg(test)]
mod tests;
