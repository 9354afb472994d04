//! The one way of a session's events to metrics, logs and subscribers.

use std::sync::{Arc, Weak};

use crate::event::{Event, EventId, Published};
use crate::journal::unix_ms;
use crate::telemetry::{Bus, Subscription, Telemetry, logs};
use crate::types::{RunId, Seq, SessionId};

/// How many events a subscriber may be behind before it is let go.
const SUBSCRIBER_EVENTS_MAX: usize = 4096;

/// Publishes the events of one session. Clones publish to the same subscribers.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    session: SessionId,
    bus: Arc<Bus>,
    telemetry: Telemetry,
}

impl Publisher {
    /// All up to `_from` has been shown before.
    pub(super) fn new(session: SessionId, telemetry: Telemetry, _from: Seq) -> Self {
        Self { session, bus: Arc::new(Bus::new()), telemetry }
    }

    pub(super) fn durable(&self, _: Seq) {}

    pub(super) fn fail(&self, _: &crate::journal::JournalError) {}

    /// Whether anybody listens.
    pub(super) fn has_listeners(&self) -> bool {
        !self.bus.is_idle()
    }

    /// The door for those who listen. It does not keep the subscribers' streams alive: they end
    /// with the session.
    pub(super) fn listeners(&self) -> Listeners {
        Listeners { bus: Arc::downgrade(&self.bus) }
    }

    /// Tells everybody. Never waits for a subscriber.
    pub(super) fn publish(&self, run: &RunId, turn: u32, event: Event) {
        debug_assert!(!event.is_recorded(), "{event:?} has a record");
        self.tell(run, turn, event, None);
    }

    /// Tells everybody of a record.
    pub(super) fn publish_recorded(&self, run: &RunId, turn: u32, event: Event, seq: Seq) {
        debug_assert!(event.is_recorded(), "{event:?} has no record");
        self.tell(run, turn, event, Some(seq));
    }

    fn tell(&self, run: &RunId, turn: u32, event: Event, recorded: Option<Seq>) {
        if is_only_shown(&event) && self.bus.is_idle() && !logs::shows_contents() {
            return;
        }
        let published = Published {
            session: self.session.clone(),
            run: run.clone(),
            turn,
            timestamp_ms: unix_ms(),
            id: recorded.map(|seq| EventId { seq, bytes: 0 }),
            event,
        };
        self.telemetry.observe(&published);
        let lagged = self.bus.publish(published);
        if lagged > 0 {
            self.telemetry.metrics().subscribers_lagged(lagged);
        }
    }
}

/// Lets subscribers in for as long as the session lives.
#[derive(Clone, Debug)]
pub(super) struct Listeners {
    bus: Weak<Bus>,
}

impl Listeners {
    /// The events from now on; none of a session that is gone.
    pub(super) fn subscribe(&self) -> Subscription {
        let bus = self.bus.upgrade().unwrap_or_default();
        bus.subscribe(SUBSCRIBER_EVENTS_MAX)
    }

    /// The same of one run alone, which may begin later.
    pub(super) fn subscribe_to(&self, run: &RunId) -> Subscription {
        let bus = self.bus.upgrade().unwrap_or_default();
        bus.subscribe_to(run.clone(), SUBSCRIBER_EVENTS_MAX)
    }
}

/// Whether the event is for watchers alone: nothing is counted by it.
fn is_only_shown(event: &Event) -> bool {
    matches!(
        event,
        Event::TextReceived { .. } | Event::ThinkingReceived { .. } | Event::CallProgressed { .. }
    )
}
