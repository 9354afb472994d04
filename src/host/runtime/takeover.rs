//! Tasks of a host that shares its journal with others: one ends the sessions that another host has taken, one takes the
//! sessions of hosts that have ended, and continues their runs, and one counts what all hosts have stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::host_ref::{HostRef, HostState};
use super::message::SessionMessage;
use super::recovery::{self, TREES_MAX};
use super::task;
use crate::journal::{BatchRefusal, JournalError};
use crate::telemetry::TakeoverReason;
use callsheet_values::config::Resume;

/// The interval at which trees are looked for that no living host owns.
const TAKEOVER_PAUSE: Duration = Duration::from_secs(1);

/// The interval at which hosts are counted.
const HOSTS_PAUSE: Duration = Duration::from_secs(5);

/// The interval at which stored sessions are counted.
const COUNT_PAUSE: Duration = Duration::from_secs(60);

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
    let shared = &host_ref.shared;
    while let Some(ownership) = shared.journal.ownership() {
        tokio::time::sleep(TAKEOVER_PAUSE).await;
        if shared.is_shutting_down() {
            return;
        }
        let began = Instant::now();
        let unfinished = match ownership.take_abandoned(TREES_MAX).await {
            Ok(unfinished) if unfinished.is_empty() => continue,
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::warn!(%error, "trees_not_taken");
                continue;
            }
        };
        shared.telemetry.metrics().taken_over(TakeoverReason::HostEnded, unfinished.len());
        let held = shared.crash_loop.held(&unfinished).await;
        if shared.catalog.resume == Resume::Manual {
            shared.index.note_unfinished(&unfinished, true);
            recovery::read_suspended(host_ref.clone(), unfinished).await;
            continue;
        }
        shared.index.note_unfinished(&unfinished, false);
        shared.index.note_unfinished(&held.all().into_iter().collect::<Vec<_>>(), true);
        let recovered = recovery::recover(host_ref.clone(), unfinished, held.suspects, began);
        // Suspects go on one after the other, and must not hold others up.
        task::detach(recovered);
    }
}

/// Counts the hosts, and now and then the sessions that all of them have opened and removed, for as long as this host
/// lives.
pub(super) async fn count(host: Arc<HostState>) {
    let mut counted = Instant::now();
    while let Some(ownership) = host.journal.ownership() {
        if let Ok(hosts) = ownership.hosts().await {
            host.telemetry.metrics().sharing().set_hosts(hosts.len());
        }
        // Another host may have set a run aside.
        host.crash_loop.read_again().await;
        tokio::time::sleep(HOSTS_PAUSE).await;
        if counted.elapsed() < COUNT_PAUSE {
            continue;
        }
        counted = Instant::now();
        match host.journal.count().await {
            Ok(count) => host.index.set_count(count),
            Err(error) => tracing::warn!(%error, "sessions_not_counted"),
        }
    }
}
