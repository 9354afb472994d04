//! Start of a host after a crash or a shutdown: opens the journal, and continues the runs that the last
//! host left unfinished. `turn::resume` decides the outcomes of their calls.

use std::sync::Arc;

use tokio::time::Instant;

use super::error::HostError;
use super::host_ref::HostRef;
#[cfg(feature = "sqlite")]
use super::task::blocking;
use crate::config::{Config, JournalEngine};
use crate::journal::{Journal, JournalError, MemoryJournal, StoredSessionFilter};
#[cfg(feature = "sqlite")]
use crate::journal::{SqliteJournal, SqliteOptions};
use crate::telemetry::Telemetry;
use crate::types::{SessionId, SessionState};

/// Maximum number of sessions that are read from the journal concurrently.
pub(super) const READS_MAX: usize = 8;

/// Maximum number of batches that wait to be written.
#[cfg(feature = "sqlite")]
const QUEUE_MAX: usize = 65_536;

/// Maximum number of sessions of one page of the list.
const PAGE_LENGTH: usize = 1000;

/// Opens the configured journal.
pub(super) async fn open_journal(
    config: &Config,
    holder: String,
    telemetry: &Telemetry,
) -> Result<Arc<dyn Journal>, HostError> {
    match config.journal.engine {
        JournalEngine::Memory => Ok(Arc::new(MemoryJournal::new())),
        JournalEngine::Sqlite => open_sqlite(config, holder, telemetry).await,
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(
    config: &Config,
    holder: String,
    telemetry: &Telemetry,
) -> Result<Arc<dyn Journal>, HostError> {
    let dir = config.host.data_dir.clone();
    let options = SqliteOptions {
        durability: config.journal.durability,
        holder,
        observer: Arc::new(telemetry.metrics().journal().clone()),
        queue_max: QUEUE_MAX,
        reserve_bytes: config.journal.reserve_bytes,
    };
    let opened = blocking(move || SqliteJournal::open(&dir, options)).await??;
    Ok(Arc::new(opened))
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_: &Config, _: String, _: &Telemetry) -> Result<Arc<dyn Journal>, HostError> {
    let problem = "journal.engine = \"sqlite\": callsheet was built without its feature `sqlite`; \
                   enable it, or set \"memory\"";
    Err(HostError::Config(problem.to_owned()))
}

/// Returns the number of stored sessions, and those with unfinished runs.
pub(super) fn unfinished(journal: &dyn Journal) -> Result<(usize, Vec<SessionId>), JournalError> {
    let mut found = Vec::new();
    let mut listing = StoredSessionFilter {
        state: Some(SessionState::Running),
        limit: PAGE_LENGTH,
        ..StoredSessionFilter::default()
    };
    loop {
        let page = journal.list(&listing)?;
        let is_last = page.len() < PAGE_LENGTH;
        found.extend(page.into_iter().map(|stored| stored.id));
        if is_last {
            return Ok((journal.count()?, found));
        }
        listing.after = found.last().cloned();
    }
}

/// Wakes the sessions with unfinished runs, which then continue.
pub(super) async fn recover(link: HostRef, unfinished: Vec<SessionId>, began: Instant) {
    let all = unfinished.len();
    let woken = unfinished.iter().map(|id| link.awake_session(id));
    let woken = futures::future::join_all(woken).await;
    let recovered = woken.iter().filter(|woken| woken.is_ok()).count();
    let took = began.elapsed();
    link.shared.telemetry.metrics().journal().runs_recovered(recovered, took);
    tracing::info!(runs = recovered, failed = all - recovered, ?took, "runs_recovered");
}
