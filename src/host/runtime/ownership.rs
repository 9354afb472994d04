//! The ownership of sessions by this host, if several hosts share the journal: a session is taken before it is read to
//! be woken or deleted, and given up when it has left memory. An engine of one host has no ownership, which costs
//! nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::HostError;
use super::host_ref::{HostRef, HostState};
use super::message::SessionMessage;
use super::recovery;
use super::task;
use crate::journal::{BatchRefusal, JournalError, Owner};
use callsheet_values::config::Resume;
use callsheet_values::types::SessionId;

/// The interval at which trees are looked for that no living host owns.
const TAKEOVER_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of trees that are taken together.
pub(super) const TREES_MAX: usize = 500;

/// The ownership of a session for as long as this exists. Dropping it gives the session up.
#[derive(Debug, Default)]
pub(super) struct OwnedSession(Option<(Arc<HostState>, SessionId)>);

impl OwnedSession {
    /// Takes a stored session, unless another host has it.
    pub(super) async fn take(host: &Arc<HostState>, id: &SessionId) -> Result<Self, HostError> {
        let Some(ownership) = host.journal.ownership() else { return Ok(Self::default()) };
        match ownership.take(id).await? {
            Owner::This => Ok(Self::opened(host, id)),
            Owner::Other(_) => Err(HostError::SessionMoved),
        }
    }

    /// Returns the ownership of a session that its first batch opens.
    pub(super) fn opened(host: &Arc<HostState>, id: &SessionId) -> Self {
        Self(host.journal.ownership().map(|_| (Arc::clone(host), id.clone())))
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // When the runtime ends, the journal is closed without it.
        let (Some((host, id)), Ok(_)) = (self.0.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        task::detach(async move {
            let Some(ownership) = host.journal.ownership() else { return };
            let given = match host.hands_over_runs() {
                true => ownership.hand_over(&id).await,
                false => ownership.give(&id).await,
            };
            if let Err(error) = given {
                tracing::warn!(session = %id, %error, "session_not_given");
            }
        });
    }
}

/// Ends the sessions that this host loses, for as long as it lives.
pub(super) async fn end_lost_sessions(host: Arc<HostState>) {
    let Some(ownership) = host.journal.ownership() else { return };
    loop {
        for id in ownership.lost().await {
            match host.index.awake(&id) {
                Some(awake_session) => {
                    let error = JournalError::Refused(BatchRefusal::Fenced);
                    // A session that has ended needs no message.
                    let _ = awake_session.actor.cast(SessionMessage::JournalFailed { error });
                }
                None => host.forget(&id),
            }
        }
    }
}

/// Goes on with the runs of hosts that have ended, for as long as this host lives.
pub(super) async fn take_over(host_ref: HostRef) {
    while let Some(ownership) = host_ref.shared.journal.ownership() {
        tokio::time::sleep(TAKEOVER_PAUSE).await;
        if host_ref.shared.is_shutting_down() {
            return;
        }
        let began = Instant::now();
        match ownership.take_abandoned(TREES_MAX).await {
            Ok(unfinished) if unfinished.is_empty() => {}
            Ok(unfinished) => {
                let waits = host_ref.shared.catalog.resume == Resume::Manual;
                host_ref.shared.index.note_unfinished(&unfinished, waits);
                match host_ref.shared.catalog.resume {
                    Resume::Manual => recovery::read_suspended(host_ref.clone(), unfinished).await,
                    Resume::Auto => {
                        let suspects = BTreeSet::new();
                        recovery::recover(host_ref.clone(), unfinished, suspects, began).await;
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "trees_not_taken"),
        }
    }
}
