//! Start of a host after a crash or a shutdown: opens the journal, and continues the runs that the last
//! host left unfinished. `turn::resume` decides the outcomes of their calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::agent_trees;
#[cfg(feature = "sqlite")]
use super::claims::{OTHER_HOST_RETRY, OTHER_HOST_WAIT_MAX};
use super::crash_loop;
use super::error::HostError;
use super::handle::SessionHandle;
use super::host_ref::HostRef;
use super::ids::{CALL_PREFIX, CALLER};
use super::maintenance::WAKE_RETRY_MS;
use crate::journal::{
    Journal, JournalError, MemoryJournal, Ownership, SessionQuery, restored, unix_ms,
};
#[cfg(feature = "postgres")]
use crate::journal::{PostgresJournal, PostgresOptions};
#[cfg(feature = "sqlite")]
use crate::journal::{SqliteJournal, SqliteOptions};
use crate::telemetry::Telemetry;
#[cfg(feature = "postgres")]
use callsheet_values::config::SecretSource;
use callsheet_values::config::{Config, JournalEngine, Resume};
use callsheet_values::record::{Record, Seq, StopMode};
use callsheet_values::types::{SessionId, SessionState, is_child_session};

/// Maximum number of batches that wait to be written.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const QUEUE_MAX: usize = 65_536;

/// Maximum number of trees that are taken together.
pub(super) const TREES_MAX: usize = 500;

/// Maximum number of sessions of one page of the list.
const PAGE_LENGTH: usize = 1000;

/// Opens the configured journal.
pub(super) async fn open_journal(
    config: &Config,
    holder: String,
    accept_loss: bool,
    telemetry: &Telemetry,
) -> Result<Arc<dyn Journal>, HostError> {
    match config.journal.engine {
        JournalEngine::Memory => Ok(Arc::new(MemoryJournal::new())),
        JournalEngine::Sqlite => open_sqlite(config, holder, accept_loss, telemetry).await,
        JournalEngine::Postgres => open_postgres(config, telemetry).await,
    }
}

#[cfg(feature = "postgres")]
async fn open_postgres(
    config: &Config,
    telemetry: &Telemetry,
) -> Result<Arc<dyn Journal>, HostError> {
    let url = SecretSource::Variable(config.journal.url_env.clone()).read().map_err(|error| {
        HostError::Config(format!(
            "journal.url_env: {error}: set it to the URL of the database, like postgres://user:password@host:5432/database"
        ))
    })?;
    let options = PostgresOptions::default().with(|options| {
        options.durability = config.journal.durability;
        options.observer = Arc::new(telemetry.metrics().journal().clone());
        options.queue_max = QUEUE_MAX;
        options.busy_timeout = config.journal.busy_timeout;
        options.lease = config.journal.lease;
        options.write_timeout = config.journal.write_timeout;
        options.advertise = config.host.advertise.as_ref().map(|url| url.as_str().to_owned());
    });
    Ok(Arc::new(Box::pin(PostgresJournal::open(&url, options)).await?))
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_: &Config, _: &Telemetry) -> Result<Arc<dyn Journal>, HostError> {
    let problem = "journal.engine = \"postgres\": callsheet was built without its feature `postgres`; \
                   build it with `--features postgres`, or set \"sqlite\"";
    Err(HostError::Config(problem.to_owned()))
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(
    config: &Config,
    holder: String,
    accept_loss: bool,
    telemetry: &Telemetry,
) -> Result<Arc<dyn Journal>, HostError> {
    let dir = config.host.data_dir.clone();
    let options = SqliteOptions {
        durability: config.journal.durability,
        holder,
        observer: Arc::new(telemetry.metrics().journal().clone()),
        queue_max: QUEUE_MAX,
        reserve_bytes: config.journal.reserve_bytes,
        busy_timeout: config.journal.busy_timeout,
        accept_loss,
    };
    let until = Instant::now() + OTHER_HOST_WAIT_MAX;
    loop {
        let (dir, options) = (dir.clone(), options.clone());
        let opened = tokio::task::spawn_blocking(move || SqliteJournal::open(&dir, options)).await;
        match opened.map_err(|_| HostError::ShuttingDown)? {
            Ok(opened) => return Ok(Arc::new(opened)),
            Err(error) if !is_own_lock(&error) || Instant::now() >= until => {
                return Err(error.into());
            }
            Err(_) => tokio::time::sleep(OTHER_HOST_RETRY).await,
        }
    }
}

/// Returns true if a host of this process holds the directory. It may have been dropped, and end soon.
#[cfg(feature = "sqlite")]
fn is_own_lock(error: &JournalError) -> bool {
    let JournalError::Locked { holder, .. } = error else { return false };
    let pid = holder.strip_prefix("pid ").and_then(|rest| rest.split(',').next());
    pid.and_then(|pid| pid.parse().ok()) == Some(std::process::id())
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(
    _: &Config,
    _: String,
    _: bool,
    _: &Telemetry,
) -> Result<Arc<dyn Journal>, HostError> {
    let problem = "journal.engine = \"sqlite\": callsheet was built without its feature `sqlite`; \
                   enable it, or set \"memory\"";
    Err(HostError::Config(problem.to_owned()))
}

/// Returns the number of stored sessions, and the ids of the sessions with unfinished runs, queued inputs or an
/// unfinished deletion, and of the sessions of calls by hand. If several hosts use the journal, these are the sessions
/// of the trees that no other living host owns, which this host takes.
pub(super) async fn find_unfinished_sessions(
    journal: &dyn Journal,
) -> Result<(usize, Vec<SessionId>), JournalError> {
    let mut found = match journal.ownership() {
        Some(ownership) => take_all_abandoned(ownership).await?,
        None => all_running(journal).await?,
    };
    found.extend(idle_calls(journal).await?);
    Ok((journal.count().await?, found))
}

async fn take_all_abandoned(ownership: &dyn Ownership) -> Result<Vec<SessionId>, JournalError> {
    let mut found = Vec::new();
    loop {
        let taken = ownership.take_abandoned(TREES_MAX).await?;
        if taken.is_empty() {
            return Ok(found);
        }
        found.extend(taken);
    }
}

async fn all_running(journal: &dyn Journal) -> Result<Vec<SessionId>, JournalError> {
    let mut found = Vec::new();
    let mut listing = SessionQuery {
        state: Some(SessionState::Running),
        children: true,
        limit: PAGE_LENGTH,
        ..SessionQuery::default()
    };
    loop {
        let page = journal.list(&listing).await?;
        let is_last = page.len() < PAGE_LENGTH;
        found.extend(page.into_iter().map(|stored| stored.id));
        if is_last {
            return Ok(found);
        }
        listing.after = found.last().cloned();
    }
}

/// Returns how the unfinished runs of a journal go on: those of a restored copy by a request, until a host is told to
/// continue them (`go_on`).
pub(super) async fn resume_of_journal(
    journal: &dyn Journal,
    configured: Resume,
    go_on: bool,
    unfinished: &[SessionId],
) -> Result<Resume, JournalError> {
    if !restored::is_waiting_copy(journal).await? {
        return Ok(configured);
    }
    if go_on {
        // A host with a full disk starts too. The next host waits again then.
        if let Err(error) = restored::let_copy_go_on(journal).await {
            tracing::warn!(%error, "restored_copy_mark_not_removed");
        }
        return Ok(configured);
    }
    let is_by_client =
        |id: &&SessionId| !is_child_session(id) && !id.as_str().starts_with(CALL_PREFIX);
    let waiting_runs = unfinished.iter().filter(is_by_client).count();
    tracing::warn!(
        waiting_runs,
        "restored_copy: the journal is a copy, so its runs wait as with resume = \"manual\"; resume or stop each, or \
         start once with --go-on if no other host has the original"
    );
    Ok(Resume::Manual)
}

/// Returns the sessions of calls by hand that a crash left before their run or after it.
async fn idle_calls(journal: &dyn Journal) -> Result<Vec<SessionId>, JournalError> {
    let mut listing = SessionQuery {
        after: SessionId::parse(CALL_PREFIX).ok(),
        state: Some(SessionState::Idle),
        limit: PAGE_LENGTH,
        ..SessionQuery::default()
    };
    let mut found = Vec::new();
    loop {
        let page = journal.list(&listing).await?;
        listing.after = page.last().map(|stored| stored.id.clone());
        let is_last = page.len() < PAGE_LENGTH
            || page.last().is_none_or(|last| !last.id.as_str().starts_with(CALL_PREFIX));
        found.extend(page.into_iter().filter(|stored| stored.agent == CALLER).map(|s| s.id));
        if is_last {
            return Ok(found);
        }
    }
}

/// Finishes deletions ([`finish_deletions`]), and reads the sessions with unfinished runs, so that their approvals are
/// among the open ones. The runs do not go on.
pub(super) async fn read_suspended(host_ref: HostRef, unfinished: Vec<SessionId>) {
    finish_deletions(host_ref.clone(), unfinished.clone()).await;
    futures::future::join_all(unfinished.iter().map(|id| host_ref.get_or_wake(id))).await;
}

/// Deletes the sessions whose deletion is unfinished and those of calls by hand. Leaves the others with unfinished
/// runs as they are.
pub(super) async fn finish_deletions(host_ref: HostRef, unfinished: Vec<SessionId>) {
    let mut leftover = Vec::new();
    for id in unfinished {
        if is_leftover(&*host_ref.shared.journal, &id).await {
            leftover.push(id);
        }
    }
    close_all(&host_ref, leftover).await;
}

/// Returns true if a session is closed, but not deleted, or is that of a call by hand that a crash has cut off.
async fn is_leftover(journal: &dyn Journal, id: &SessionId) -> bool {
    let Ok(Some(stored)) = journal.find(id).await else { return false };
    if stored.agent == CALLER {
        return true;
    }
    let last = journal.read(id, Seq(stored.seq.0.saturating_sub(1))).await.unwrap_or_default();
    last.last().is_some_and(|entry| matches!(entry.record, Record::SessionClosed))
}

async fn close_all(host_ref: &HostRef, sessions: Vec<SessionId>) {
    for id in sessions {
        match SessionHandle::new(id.clone(), host_ref.clone()).close().await {
            // The other host deletes it.
            Ok(()) | Err(HostError::SessionMoved) => {}
            Err(error) => tracing::error!(session = %id, %error, "session_not_deleted"),
        }
    }
}

/// Wakes the sessions with unfinished runs, which then continue, later if the journal cannot be reached now, and deletes those whose deletion is unfinished and
/// those of calls by hand. Stops the runs of child sessions whose parents have no unfinished run.
///
/// The `suspects` are held. They go on afterwards, one after the other.
pub(super) async fn recover(
    host_ref: HostRef,
    unfinished: Vec<SessionId>,
    suspects: BTreeSet<SessionId>,
    began: Instant,
) {
    let orphans = agent_trees::orphans(&*host_ref.shared.journal, &unfinished).await;
    let orphans = orphans.unwrap_or_default();
    let woken = unfinished.iter().map(|id| host_ref.get_or_wake(id));
    let woken = futures::future::join_all(woken).await;
    let recovered = woken.iter().filter(|woken| woken.is_ok()).count();
    let is_leftover = |woken: &Result<_, _>| {
        matches!(woken, Err(HostError::NoSuchSession(_)))
            || matches!(woken, Err(HostError::AgentGone(agent)) if agent == CALLER)
    };
    for (id, woken) in unfinished.iter().zip(&woken) {
        if matches!(woken, Err(HostError::Journal(error)) if error.is_transient()) {
            // The database may be back soon.
            host_ref.shared.maintenance.add_expiry(unix_ms() + WAKE_RETRY_MS, id.clone());
        }
    }
    let leftover = unfinished.iter().zip(&woken).filter(|(_, woken)| is_leftover(woken));
    let leftover: Vec<_> = leftover.map(|(id, _)| id.clone()).collect();
    let is_moved = |woken: &&Result<_, _>| matches!(woken, Err(HostError::SessionMoved));
    let moved = woken.iter().filter(is_moved).count();
    let failed = unfinished.len() - recovered - leftover.len() - moved;
    let took = began.elapsed();
    close_all(&host_ref, leftover).await;
    for id in orphans {
        // The parent's run has ended, so that no call waits for this child.
        let _ = SessionHandle::new(id, host_ref.clone()).stop(StopMode::Now).await;
    }
    host_ref.shared.telemetry.metrics().journal().runs_recovered(recovered, took);
    tracing::info!(runs = recovered, failed, ?took, "runs_recovered");
    crash_loop::continue_suspects(&host_ref, suspects).await;
}
