//! Periodic work of a host: metrics, hibernation of idle sessions, deletion of old sessions, of those whose deletion
//! has failed and of unused lists of tools, expiry of approvals, recording of failed runs, and storing what was
//! learnt of models.
//!
//! The host does it at intervals of half of `idle_after`, at least 50 ms and at most 5 s; without `idle_after`, 2.5 s
//! (`host_actor`). Sessions that were idle for `keep_idle` are deleted once they have left memory: with
//! `idle_after = "0s"` usually not before the next start of the host. Each search deletes at most 1,000
//! ([`DELETED_MAX`]). Searches are a tenth of `keep_idle` apart, at most a minute.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::agent_trees;
use super::error::HostError;
use super::host_ref::{HostRef, HostState};
use super::message::SessionMessage;
use super::recovery;
use super::task;
use crate::journal::{JournalError, SessionQuery, unix_ms};
use callsheet_values::types::{SessionId, SessionState};

/// The time until the next try to wake a session with an expired approval, if the journal could not be read.
const EXPIRY_RETRY_MS: u64 = 5000;

/// The time for which the actors of a session's last run are kept, so that the next input of a
/// conversation can use them.
const ACTORS_KEPT_MS: u64 = 5_000;

/// Maximum number of sessions that one search deletes.
const DELETED_MAX: usize = 1000;

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
        let host_ref = host_ref.clone();
        task::detach(async move {
            let shared = Arc::clone(&host_ref.shared);
            let deleted = task::blocking(move || delete(&shared, kept_ms)).await;
            if let Ok(Err(error)) = deleted {
                tracing::error!(%error, "sessions_not_deleted");
            }
        });
    }
}

/// Releases the memory of idle sessions: first the actors of their runs, later the whole session.
fn release_idle(shared: &HostState) {
    let now = shared.clock_ms();
    for (_, awake_session) in shared.index.all_awake() {
        let idle_ms = now.saturating_sub(awake_session.activity.touched_ms.load(Ordering::Relaxed));
        if let Some(idle) = shared.maintenance.reached_idle_after(idle_ms) {
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
            // A failure to wake the session is already logged. One of the journal may be over soon.
            if let Err(HostError::Journal(error)) = host_ref.get_or_wake(&id).await
                && !matches!(error, JournalError::Unreadable(_))
            {
                host_ref.shared.maintenance.add_expiry(unix_ms() + EXPIRY_RETRY_MS, id);
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
        let servers = Arc::clone(&host_ref.shared.catalog.tool_servers);
        let deleted = host_ref.read(move || servers.remove_unused_lists()).await;
        if let Ok(Err(error)) = deleted {
            tracing::warn!(%error, "unused_tool_lists_not_deleted");
        }
    });
}

/// Deletes hibernating sessions that were idle for `keep_idle`: those of the first page of the list that has any. A
/// child session is kept until the run of its parent has ended.
pub(super) fn delete(shared: &HostState, kept_ms: u64) -> Result<(), JournalError> {
    let mut listing = SessionQuery {
        limit: DELETED_MAX,
        state: Some(SessionState::Idle),
        touched_before: Some(unix_ms().saturating_sub(kept_ms)),
        after: None,
        children: true,
    };
    // A child whose records cannot be read now is kept.
    let is_needed =
        |id: &SessionId| agent_trees::has_unfinished_parent(&*shared.journal, id).unwrap_or(true);
    loop {
        let page: Vec<SessionId> =
            shared.journal.list(&listing)?.into_iter().map(|stored| stored.id).collect();
        let is_last = page.len() < DELETED_MAX;
        listing.after = page.last().cloned();
        let old = page.into_iter().filter(|id| !is_needed(id)).collect();
        let reserved = shared.index.reserve_for_deletion(old);
        // A session may have been used, and have left memory again, before its slot was reserved.
        let is_still_old = |id: &SessionId| matches!(shared.journal.find(id), Ok(Some(stored)) if listing.matches(&stored));
        let (old, used): (Vec<_>, Vec<_>) = reserved.into_iter().partition(is_still_old);
        used.iter().for_each(|id| shared.index.release_slot(id));
        if !old.is_empty() {
            return remove(shared, &old);
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Deletes sessions whose slots are reserved for deletion.
fn remove(shared: &HostState, old: &[SessionId]) -> Result<(), JournalError> {
    let removed = shared.journal.remove(old);
    // After an error the records may be deleted, and only be left in the database file.
    let is_gone = |id: &&SessionId| removed.is_ok() || matches!(shared.journal.find(id), Ok(None));
    let deleted: Vec<&SessionId> = old.iter().filter(is_gone).collect();
    if !deleted.is_empty() {
        // The subscribers are notified before another session can have the id.
        for id in &deleted {
            shared.index.note_deleted(id);
            shared.session_states.deleted(id);
        }
        tracing::info!(count = deleted.len(), "idle_sessions_deleted");
    }
    old.iter().for_each(|id| shared.end_deletion(id));
    removed
}
