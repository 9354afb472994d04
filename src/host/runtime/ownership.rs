//! The ownership of sessions by this host, if several hosts share the journal: a session is taken before it is read to
//! be woken or deleted, and given up when it has left memory. An engine of one host has no ownership, which costs
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::HostError;
use super::task;
use crate::journal::{Journal, JournalError, Owner};
use callsheet_values::types::SessionId;

/// This host as the owner of sessions.
#[derive(Clone, Debug)]
pub(super) struct SessionOwner {
    journal: Arc<dyn Journal>,
    hands_over: Arc<AtomicBool>,
}

impl SessionOwner {
    pub(super) fn new(journal: &Arc<dyn Journal>) -> Self {
        Self { journal: Arc::clone(journal), hands_over: Arc::default() }
    }

    /// Takes a stored session, unless another host has it.
    pub(super) async fn take(&self, id: &SessionId) -> Result<OwnedSession, HostError> {
        let Some(ownership) = self.journal.ownership() else { return Ok(OwnedSession(None)) };
        match ownership.take(id).await? {
            Owner::This => Ok(self.opened(id)),
            Owner::Other(_) => Err(HostError::SessionMoved),
        }
    }

    /// Returns the ownership of a session that its first batch opens.
    pub(super) fn opened(&self, id: &SessionId) -> OwnedSession {
        OwnedSession(self.journal.ownership().map(|_| (self.clone(), id.clone())))
    }

    /// From now on, sessions that are given up are handed over to another host with their runs.
    pub(super) fn hand_over(&self) {
        self.hands_over.store(true, Ordering::Release);
    }
}

/// The ownership of a session for as long as this exists. Dropping it gives the session up.
#[derive(Debug)]
pub(super) struct OwnedSession(Option<(SessionOwner, SessionId)>);

impl Drop for OwnedSession {
    fn drop(&mut self) {
        let Some((owner, id)) = self.0.take() else { return };
        // When the runtime ends, the journal is closed without it.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        task::detach(async move {
            let Some(ownership) = owner.journal.ownership() else { return };
            let given = match owner.hands_over.load(Ordering::Acquire) {
                true => ownership.hand_over(&id).await,
                false => ownership.give(&id).await,
            };
            match given {
                // A journal that is closed has given up everything.
                Ok(()) | Err(JournalError::Closed) => {}
                Err(error) => tracing::warn!(session = %id, %error, "session_not_given"),
            }
        });
    }
}
