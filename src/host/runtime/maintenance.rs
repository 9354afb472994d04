//! Periodic work of a host: metrics, hibernation of idle sessions, deletion of old sessions, of those whose deletion
//! has failed and of unused lists of tools, expiry of approvals, recording of failed runs, and storing what was
//! learnt of models.
//!
//! The host does it at intervals of half of `idle_after`, at least 50 ms and at most 5 s; without `idle_after`, 2.5 s
//! (`host_actor`). Sessions that were idle for `keep_idle` are deleted once they have left memory: with
//! `idle_after = "0s"` usually not before the next start of the host. A search goes through all sessions in parts. After
//! a part with deletions it pauses for as long as that took, and otherwise for longer ([`SEARCH_PAUSES`]), so that runs
//! go on beside it. Searches are a tenth of `keep_idle` apart, at most a minute, or longer if they take long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::agent_trees;
use super::error::HostError;
use super::host_ref::{HostRef, HostState};
use super::message::SessionMessage;
use super::recovery;
use super::task;
use crate::journal::{JournalError, SessionSummary, unix_ms};
use callsheet_values::types::{SessionId, SessionState};

/// The time until the next try to wake a session with an expired approval or an unfinished run, if the journal could not
/// be read.
pub(super) const WAKE_RETRY_MS: u64 = 5000;

/// The time for which the actors of a session's last run are kept, so that the next input of a
/// conversation can use them.
const ACTORS_KEPT_MS: u64 = 5_000;

/// The pause after a part of a search without deletions, in times of its duration.
const SEARCH_PAUSES: u32 = 9;

/// Number of deleted sessions after which a search logs them before its end.
const LOGGED_DELETIONS: usize = 10_000;

/// Performs all periodic work.
pub(super) fn run(host_ref: &HostRef) {
    let shared = &host_ref.shared;
    shared.update_gauges();
    shared.telemetry.upkeep();
    release_idle(shared);
    wake_expired(host_ref);
    wake_failed_runs(host_ref);
    finish_failed_deletions(host_ref);
    delete_unused_lists(host_ref);
    for model in shared.catalog.models.values() {
        model.learnt.store_soon(&shared.journal);
        model.learnt_reasoning.store_soon(&shared.journal);
        model.set_aside.store_soon(&shared.journal);
    }
    if shared.is_shutting_down() {
        return;
    }
    if shared.crash_loop.is_over(shared.started.elapsed()) {
        let crash_loop = Arc::clone(&shared.crash_loop);
        task::detach(async move { crash_loop.end_loop().await });
    }
    if let Some(kept_ms) = shared.maintenance.begin_deletion_search(shared.clock_ms()) {
        task::detach(delete_idle(host_ref.clone(), kept_ms));
    }
}

/// Releases the memory of idle sessions: first the actors of their runs, later the whole session.
fn release_idle(shared: &HostState) {
    let now = shared.clock_ms();
    let is_crowded = shared.index.is_crowded();
    for (_, awake_session) in shared.index.all_awake() {
        let idle_ms = now.saturating_sub(awake_session.activity.touched_ms.load(Ordering::Relaxed));
        if let Some(idle) = shared.maintenance.reached_idle_after(idle_ms, is_crowded) {
            let _ = awake_session.actor.cast(SessionMessage::Hibernate { idle });
        } else if idle_ms >= ACTORS_KEPT_MS && awake_session.activity.has_unused_actors() {
            let _ = awake_session.actor.cast(SessionMessage::ReleaseActors);
        }
    }
}

/// Wakes the sessions that hibernated with an approval, or a call of the client, that has expired. Their turns then
/// decide the expiry.
fn wake_expired(host_ref: &HostRef) {
    for id in host_ref.shared.maintenance.remove_expired(unix_ms()) {
        let host_ref = host_ref.clone();
        task::detach(async move {
            // A failure to wake the session is already logged. One of the journal, or a full host, may be over soon.
            let is_passing = match host_ref.get_or_wake(&id).await {
                Err(HostError::Journal(error)) => !matches!(error, JournalError::Unreadable(_)),
                woken => matches!(woken, Err(HostError::Full(_))),
            };
            if is_passing {
                host_ref.shared.maintenance.add_expiry(unix_ms() + WAKE_RETRY_MS, id);
            }
        });
    }
}

/// Finishes the deletions that have failed after they had begun, when the journal can be written again.
fn finish_failed_deletions(host_ref: &HostRef) {
    if host_ref.shared.journal.failure().is_none() {
        let failed = host_ref.shared.maintenance.remove_failed_deletions();
        if !failed.is_empty() {
            task::detach(recovery::finish_deletions(host_ref.clone(), failed));
        }
    }
}

/// Wakes sessions whose runs failed because the journal could not be written, so that the failure is
/// recorded when the journal works again.
fn wake_failed_runs(host_ref: &HostRef) {
    for id in host_ref.shared.maintenance.sessions_to_record() {
        let host_ref = host_ref.clone();
        task::detach(async move {
            let Err(error) = host_ref.get_or_wake(&id).await else { return };
            let is_lasting = matches!(
                error,
                HostError::NoSuchSession(_)
                    | HostError::Rebuild(_)
                    | HostError::AgentGone(_)
                    | HostError::SessionMoved
                    | HostError::Journal(JournalError::Unreadable(_))
            );
            // Such a session would keep others from being woken.
            if is_lasting {
                host_ref.shared.maintenance.forget_failures(&id, None);
            }
        });
    }
}

/// Deletes the lists of tools that no stored session uses any more.
fn delete_unused_lists(host_ref: &HostRef) {
    if !host_ref.shared.maintenance.begin_list_search(host_ref.shared.clock_ms()) {
        return;
    }
    let host_ref = host_ref.clone();
    task::detach(async move {
        if let Err(error) = host_ref.shared.catalog.tool_servers.remove_unused_lists().await {
            tracing::warn!(%error, "unused_tool_lists_not_deleted");
        }
    });
}

/// Deletes hibernating sessions that were idle for `keep_idle`.
async fn delete_idle(host_ref: HostRef, kept_ms: u64) {
    let shared = &host_ref.shared;
    let (mut after, mut count, mut busy) = (None, 0, Duration::ZERO);
    while host_ref.is_ready() {
        let began = Instant::now();
        let part = delete_part(shared, kept_ms, after.as_ref()).await;
        let (deleted, next) = match part {
            Ok(part) => part,
            Err(error) => {
                tracing::error!(%error, "sessions_not_deleted");
                break;
            }
        };
        let took = began.elapsed();
        busy += took;
        count += deleted;
        if count >= LOGGED_DELETIONS {
            tracing::info!(count, "idle_sessions_deleted");
            count = 0;
        }
        after = next;
        if after.is_none() {
            break;
        }
        tokio::time::sleep(if deleted > 0 { took } else { took * SEARCH_PAUSES }).await;
    }
    if count > 0 {
        tracing::info!(count, "idle_sessions_deleted");
    }
    shared.maintenance.end_deletion_search(shared.clock_ms(), busy);
}

/// Deletes those of the next sessions after `after` that hibernate and were idle for `keep_idle`. A child session is
/// kept until the run of its parent has ended. Returns their number, and the session after which to go on.
pub(super) async fn delete_part(
    shared: &HostState,
    kept_ms: u64,
    after: Option<&SessionId>,
) -> Result<(usize, Option<SessionId>), JournalError> {
    let before = unix_ms().saturating_sub(kept_ms);
    let found = shared.journal.find_idle(before, after).await?;
    let mut unneeded = Vec::with_capacity(found.ids.len());
    for id in found.ids {
        // A child whose records cannot be read now is kept.
        if agent_trees::has_unfinished_parent(&*shared.journal, &id).await == Ok(false) {
            unneeded.push(id);
        }
    }
    let reserved = shared.index.reserve_for_deletion(unneeded);
    let (mut old, mut owned) = (Vec::new(), Vec::new());
    for id in reserved {
        match shared.owner.take(&id).await {
            Ok(of_session) => owned.push(of_session),
            Err(_) => {
                shared.index.release_slot(&id);
                continue;
            }
        }
        let is_old =
            |stored: &SessionSummary| stored.state == SessionState::Idle && stored.touched < before;
        match shared.journal.find(&id).await {
            Ok(Some(stored)) if is_old(&stored) => old.push(stored),
            // It was used, and has left memory again, before its slot was reserved.
            Ok(_) | Err(_) => shared.index.release_slot(&id),
        }
    }
    if !old.is_empty() {
        remove(shared, &old).await?;
    }
    Ok((old.len(), found.next))
}

/// Deletes sessions whose slots are reserved for deletion.
async fn remove(shared: &HostState, old: &[SessionSummary]) -> Result<(), JournalError> {
    let ids: Vec<SessionId> = old.iter().map(|session| session.id.clone()).collect();
    let removed = shared.journal.remove(&ids).await;
    for session in old {
        // After an error the records may be deleted, and only be left in the database file.
        if removed.is_ok() || shared.journal.find(&session.id).await == Ok(None) {
            // The subscribers are notified before another session can have the id.
            shared.index.note_deleted(&session.id);
            shared.session_states.deleted(&session.id, Some(session.agent.clone()));
        }
    }
    ids.iter().for_each(|id| shared.end_deletion(id));
    // The engine erases them later.
    if removed == Err(JournalError::NotErased) { Ok(()) } else { removed }
}
