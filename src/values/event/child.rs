//! The events of child sessions, as the watchers of their parents receive them.

use std::sync::Arc;

use super::{Event, EventStreamText, PublishedEvent};
use crate::types::{CallKey, RunId, SessionId};

/// An event of a child session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChildEvent {
    /// The child session.
    pub session: SessionId,
    /// Its run.
    pub run: RunId,
    /// Its turn.
    pub turn: u32,
    /// Unix time in milliseconds.
    pub timestamp_ms: u64,
    /// The event, never [`Event::OfChild`]: an event of the child's own child is passed on as it is.
    pub event: Event,
    /// The session that called the child.
    pub parent_session: SessionId,
    /// The call.
    pub parent_call: CallKey,
    /// The names of the agents from the root down to the child.
    pub agent_path: Vec<Arc<str>>,
}

impl ChildEvent {
    /// Returns the event as the child has published it, without its id.
    #[must_use]
    pub fn published(&self) -> PublishedEvent {
        PublishedEvent {
            session: self.session.clone(),
            run: self.run.clone(),
            turn: self.turn,
            timestamp_ms: self.timestamp_ms,
            id: None,
            stream_text: EventStreamText::default(),
            event: self.event.clone(),
        }
    }
}
