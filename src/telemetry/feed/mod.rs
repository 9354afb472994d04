//! What watchers are shown of one session, and who they are.
//!
//! An event that is the view of a record, and all that comes behind it, leaves when that record is
//! durable; until then it waits here, in order. Beside that nothing waits for anything, and
//! publishing never waits for a subscriber: each has a bounded queue, and one whose queue is full
//! gets what is in it, then is told that it lagged, and its stream ends. All subscribers see the
//! same events in the same order.
//!
//! What a watcher cannot read in the journal is kept for those who come in the middle: the text of
//! the running attempt, and how far its open calls are.

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

/// One session's events on their way to whoever listens. Dropping it ends every subscriber's
/// stream.
#[derive(Debug)]
pub struct Feed {
    telemetry: Telemetry,
    state: Mutex<FeedState>,
}

#[derive(Debug)]
struct FeedState {
    /// Behind what was published last.
    head: EventId,
    /// The last record up to which all are durable.
    durable: Seq,
    /// Each with the record that it waits for.
    waiting: VecDeque<(Seq, PublishedEvent)>,
    shown: CatchUpState,
    subscribers: Vec<Subscriber>,
    failed: Option<JournalError>,
    /// Held by those who are about to subscribe.
    entering: Arc<()>,
    /// Whether the session leaves memory: nobody comes in any more.
    left: bool,
}

/// Held by somebody who is about to subscribe: the session stays for that.
#[derive(Clone, Debug)]
#[must_use = "the session stays only as long as this is held"]
pub struct PendingSubscription(#[expect(dead_code, reason = "counted by its reference")] Arc<()>);

#[derive(Debug)]
struct Subscriber {
    /// Whose events it hears; those of all runs if there is none.
    run: Option<RunId>,
    queue: mpsc::Sender<Arc<PublishedEvent>>,
    end: Arc<OnceLock<SubscriptionEnd>>,
}

/// What an event is the view of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPosition {
    /// The record's place.
    pub seq: Seq,
    /// Its time, which is the event's.
    pub time: u64,
    /// How many bytes of text and thinking stand with it.
    pub shown: u64,
}

/// How far watchers have been shown a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPosition {
    /// Behind what was shown last.
    pub at: EventId,
    /// Behind the last event that is the view of a record.
    pub recorded: EventId,
    /// The last record that is durable, whether its event was shown or it has none.
    pub durable: Seq,
    /// The place of the last run's first record, and the session's turn by then; none before the
    /// feed has seen one.
    pub run_began: Option<(Seq, u32)>,
}

/// What a watcher who comes in the middle is shown beside what the journal holds.
#[derive(Debug)]
pub struct FeedSnapshot {
    /// How far the session has been shown: what the subscription gives comes behind that.
    pub progress: FeedPosition,
    /// The text of the attempt that runs.
    pub running: Option<RunningText>,
    /// The last states of each open call.
    pub open: Vec<Arc<PublishedEvent>>,
}

impl Feed {
    /// The feed of a session that goes on behind its last durable record, which no attempt runs
    /// behind; a new one's is 0.
    #[must_use]
    pub fn starting_at(telemetry: Telemetry, at: EventId) -> Self {
        let state = FeedState {
            head: at,
            durable: at.seq,
            waiting: VecDeque::new(),
            shown: CatchUpState::at(at),
            subscribers: Vec::new(),
            failed: None,
            entering: Arc::default(),
            left: false,
        };
        Self { telemetry, state: Mutex::new(state) }
    }

    /// Shows an event, now or as soon as what it stands behind is durable. Gives it its id. Never
    /// blocks.
    pub fn publish(&self, mut published: PublishedEvent, recorded: Option<RecordPosition>) {
        let mut state = self.state.lock();
        if state.failed.is_some() {
            return;
        }
        let (event, before) = (&published.event, state.head);
        let id = match recorded {
            Some(RecordPosition { seq, shown, .. }) => {
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
        let lagged = state.show(published);
        drop(state);
        self.count_lagged(lagged);
    }

    /// Takes in text if nobody listens and nothing waits, which costs no more than to keep it.
    /// Returns whether that was so.
    pub fn append_text_if_unwatched(&self, event: &Event) -> bool {
        let Some((is_thinking, text)) = event.text() else { return false };
        let mut state = self.state.lock();
        if !state.is_idle() || !state.waiting.is_empty() || state.head.seq > state.durable {
            return false;
        }
        state.head = state.head.after(event, None);
        state.shown.take_text(is_thinking, text);
        true
    }

    /// All records up to this one are durable: what waits for them is shown.
    pub fn durable(&self, upto: Seq) {
        let mut state = self.state.lock();
        let durable = state.durable.max(upto);
        state.durable = durable;
        let mut lagged = 0;
        while let Some((_, published)) = state.waiting.pop_front_if(|(needs, _)| *needs <= durable)
        {
            lagged += state.show(published);
        }
        drop(state);
        self.count_lagged(lagged);
    }

    /// Nothing more can be stored: what waits is never shown, and every stream ends with that.
    pub fn fail(&self, error: JournalError) {
        let mut state = self.state.lock();
        state.waiting.clear();
        for subscriber in state.subscribers.drain(..) {
            // It is still there, so it has no end yet.
            let _ = subscriber.end.set(SubscriptionEnd::Failed(error.clone()));
        }
        state.failed.get_or_insert(error);
    }

    /// Adds a subscriber that may be `capacity` events behind (at least 1).
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.add(&mut self.state.lock(), None, capacity)
    }

    /// Adds a subscriber that hears the events of one run alone, which may begin later.
    pub fn subscribe_to(&self, run: RunId, capacity: usize) -> Subscription {
        self.add(&mut self.state.lock(), Some(run), capacity)
    }

    /// Adds a subscriber, and says what it has missed behind `after` that no journal holds: of the
    /// running attempt's text only that.
    pub fn subscribe_from(&self, after: EventId, capacity: usize) -> (Subscription, FeedSnapshot) {
        let mut state = self.state.lock();
        let progress = state.progress();
        let from = if after >= progress.recorded { after.bytes } else { 0 };
        let running = state.shown.running(from);
        let open = state.shown.open_calls();
        let subscription = self.add(&mut state, None, capacity);
        (subscription, FeedSnapshot { progress, running, open })
    }

    /// How far watchers have been shown the session.
    #[must_use]
    pub fn progress(&self) -> FeedPosition {
        self.state.lock().progress()
    }

    /// Somebody is about to subscribe; nobody can to a session that is leaving.
    #[must_use]
    pub fn begin_subscription(&self) -> Option<PendingSubscription> {
        let state = self.state.lock();
        (!state.left).then(|| PendingSubscription(Arc::clone(&state.entering)))
    }

    /// The session leaves memory, unless somebody listens or is about to. Returns whether it does.
    #[must_use]
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.left = state.is_idle() && Arc::strong_count(&state.entering) == 1;
        state.left
    }

    /// It does not leave after all.
    pub fn reopen(&self) {
        self.state.lock().left = false;
    }

    /// Whether nobody listens.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    /// How many events wait in the fullest queue of a subscriber.
    #[must_use]
    pub fn longest_queue(&self) -> usize {
        let state = self.state.lock();
        let waiting = |queue: &mpsc::Sender<_>| queue.max_capacity() - queue.capacity();
        state.subscribers.iter().map(|subscriber| waiting(&subscriber.queue)).max().unwrap_or(0)
    }

    fn add(&self, state: &mut FeedState, run: Option<RunId>, capacity: usize) -> Subscription {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let end = Arc::new(OnceLock::new());
        // An idle session publishes nothing, and those who leave it would never be let go.
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
        Subscription::new(receiver, end, state.shown.place(), SubscriberCount::new(&self.telemetry))
    }

    fn count_lagged(&self, lagged: usize) {
        if lagged > 0 {
            self.telemetry.metrics().subscribers_lagged(lagged);
        }
    }
}

impl FeedState {
    /// Hands an event to every subscriber, and lets those go that are gone or too slow. Returns
    /// how many were too slow. Allocates nothing for what nobody hears and nobody is told later.
    fn show(&mut self, published: PublishedEvent) -> usize {
        self.subscribers.retain(|subscriber| !subscriber.queue.is_closed());
        let Some(event) = self.shown.take(published, self.subscribers.is_empty()) else { return 0 };
        let mut lagged = 0;
        self.subscribers.retain(|subscriber| {
            if subscriber.run.as_ref().is_some_and(|run| *run != event.run) {
                return true;
            }
            match subscriber.queue.try_send(Arc::clone(&event)) {
                Ok(()) => true,
                Err(TrySendError::Closed(_)) => false,
                Err(TrySendError::Full(_)) => {
                    // The mark is set before the sender is dropped, which is what the reader sees.
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
            at: self.shown.place(),
            recorded: self.shown.recorded,
            durable: self.durable.max(self.shown.place().seq),
            run_began: self.shown.run_began,
        }
    }
}

#[cfg(test)]
mod tests;
