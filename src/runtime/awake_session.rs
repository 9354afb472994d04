//! A session that is in memory: its actor, its log, its events and its activity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ractor::ActorRef;
use tokio::sync::watch;

use super::message::SessionMessage;
use super::publish::FeedAccess;
use crate::journal::SessionLog;
use crate::types::{SessionId, is_child_session};

/// A session whose actor is running.
#[derive(Debug)]
pub(super) struct AwakeSession {
    pub(super) agent: String,
    pub(super) actor: ActorRef<SessionMessage>,
    pub(super) feed_access: FeedAccess,
    pub(super) log: Arc<SessionLog>,
    pub(super) activity: Arc<SessionActivity>,
}

/// The activity of a session, readable without a message to its actor.
#[derive(Debug, Default)]
pub(super) struct SessionActivity {
    /// True while a run is in progress.
    pub(super) running: AtomicBool,
    /// True while the session has the actors of a run.
    pub(super) has_actors: AtomicBool,
    /// Set before the session leaves memory. Messages that its actor has not handled by then are sent
    /// again, to the actor that is started next.
    pub(super) leaving: AtomicBool,
    /// The time of the last request, in milliseconds since the host started.
    pub(super) touched_ms: AtomicU64,
    /// True while the run of a child session waits only for people. `None` for other sessions.
    pub(super) waits_for_people: Option<watch::Sender<bool>>,
}

impl SessionActivity {
    pub(super) fn of(session: &SessionId) -> Self {
        let waits_for_people = is_child_session(session).then(|| watch::Sender::new(false));
        Self { waits_for_people, ..Self::default() }
    }

    /// Returns true if the session has the actors of a run but no run.
    pub(super) fn has_unused_actors(&self) -> bool {
        self.has_actors.load(Ordering::Acquire) && !self.running.load(Ordering::Acquire)
    }
}
