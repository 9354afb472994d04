//! The changes of the states of all sessions of a host, for clients that list sessions.
//!
//! Nothing is kept or sent before the first client subscribes. A message may be late: the state of a session
//! that is in memory is the one that its [`activity`](super::index::SessionActivity) has when the message is read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::broadcast::{self, Receiver, Sender};

use crate::journal::unix_ms;
use callsheet_values::types::{SessionId, SessionState, is_child_session};

/// The number of changes that a client may be behind.
const CHANGES_MAX: usize = 1024;

/// Passes changes to subscribers. One that does not read costs nothing.
#[derive(Debug, Default)]
pub(super) struct SessionStates {
    /// Made for the first subscriber, or at the end of the host.
    sender: OnceLock<Sender<StateMessage>>,
    has_ended: AtomicBool,
}

/// A message to the subscribers.
#[derive(Clone, Debug)]
pub(super) enum StateMessage {
    Changed(SessionStateChange),
    /// The host has shut down. This is the last message.
    HostEnded,
}

/// The new state of a session.
#[derive(Clone, Debug)]
pub struct SessionStateChange {
    /// The session.
    pub session: SessionId,
    /// `None`: the session was deleted.
    pub state: Option<SessionState>,
    /// The agent of a session that was deleted, if it is known. The handle of another session tells its agent.
    pub agent: Option<String>,
    /// Unix time in milliseconds.
    pub time: u64,
}

impl SessionStateChange {
    pub(super) fn new(session: &SessionId, state: Option<SessionState>) -> Self {
        Self { session: session.clone(), state, agent: None, time: unix_ms() }
    }
}

impl SessionStates {
    /// Notifies the subscribers of the new state of a session.
    pub(super) fn changed(&self, session: &SessionId, state: SessionState) {
        // Lists hide child sessions.
        if !is_child_session(session) {
            self.send(|| StateMessage::Changed(SessionStateChange::new(session, Some(state))));
        }
    }

    /// Notifies the subscribers that a session of this agent was deleted.
    pub(super) fn deleted(&self, session: &SessionId, agent: Option<String>) {
        if !is_child_session(session) {
            let change = || SessionStateChange { agent, ..SessionStateChange::new(session, None) };
            self.send(|| StateMessage::Changed(change()));
        }
    }

    /// Notifies the subscribers, also later ones, that the host has shut down.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        // Both lock the channel: a subscriber gets this message, or subscribes later and then sees `has_ended`.
        let _ = self.sender.get_or_init(|| broadcast::channel(1).0).send(StateMessage::HostEnded);
    }

    /// Returns the changes from now on. The receiver is closed if the host has shut down.
    pub(super) fn subscribe(&self) -> Receiver<StateMessage> {
        let receiver = self.sender.get_or_init(|| broadcast::channel(CHANGES_MAX).0).subscribe();
        if self.has_ended.load(Ordering::Acquire) { broadcast::channel(1).1 } else { receiver }
    }

    fn send(&self, message: impl FnOnce() -> StateMessage) {
        if let Some(sender) = self.sender.get().filter(|sender| sender.receiver_count() > 0) {
            // The last subscriber may be gone by now.
            let _ = sender.send(message());
        }
    }
}
