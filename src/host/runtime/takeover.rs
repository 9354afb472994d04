//! Two tasks of a host that shares its journal with others. One ends the sessions that another host has taken. The other
//! takes the sessions of hosts that have ended, and continues their runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::host_ref::{HostRef, HostState};
use super::message::SessionMessage;
use super::recovery::{self, TREES_MAX};
use crate::journal::{BatchRefusal, JournalError};
use callsheet_values::config::Resume;

/// The interval at which trees are looked for that no living host owns.
const TAKEOVER_PAUSE: Duration = Duration::from_secs(1);

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
