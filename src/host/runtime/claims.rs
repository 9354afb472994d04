//! Keeps two hosts of one process from writing to the same journal of the program, and from recording metrics to the
//! same recorder with the same labels. The start of the second host waits a moment, because a host that was dropped
//! ends soon; then it fails.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::error::HostError;
use crate::journal::{
    AppendStatus, Batch, BatchStatus, IdleSessions, Journal, JournalEntry, JournalError,
    JournalFuture, JournalStatus, Ownership, SessionQuery, SessionSummary,
};
use crate::telemetry::MetricsOptions;
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

/// Maximum time for which a host waits for what another host of this process uses. That host may have been
/// dropped, and end soon.
pub(super) const OTHER_HOST_WAIT_MAX: Duration = Duration::from_secs(2);

/// The pause between two tries.
pub(super) const OTHER_HOST_RETRY: Duration = Duration::from_millis(10);

static CLAIMED: Mutex<BTreeSet<Claimed>> = Mutex::new(BTreeSet::new());

/// What a host claims: a journal, or a recorder with labels. The addresses are those of the values in their `Arc`,
/// which the host keeps alive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claimed {
    Journal(usize),
    Metrics(usize, BTreeMap<String, String>),
}

/// Frees what it claims when it is dropped.
#[derive(Debug)]
struct Claim(Claimed);

impl Claim {
    /// Returns `None` if another host has it and keeps it.
    async fn wait(claimed: Claimed) -> Option<Self> {
        let until = Instant::now() + OTHER_HOST_WAIT_MAX;
        while !CLAIMED.lock().insert(claimed.clone()) {
            if Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(OTHER_HOST_RETRY).await;
        }
        Some(Self(claimed))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().remove(&self.0);
    }
}

/// The claim to a recorder with the host's labels. Two hosts that share both would overwrite each other's gauges.
#[derive(Debug, Default)]
pub(super) struct MetricsClaim(Mutex<Option<Claim>>);

impl MetricsClaim {
    /// # Errors
    /// If a running host has the same recorder and the same labels.
    pub(super) async fn wait(metrics: &MetricsOptions) -> Result<Self, HostError> {
        let Some(recorder) = &metrics.recorder else { return Ok(Self::default()) };
        let address = Arc::as_ptr(recorder).cast::<()>().addr();
        let claim = Claim::wait(Claimed::Metrics(address, metrics.labels.clone())).await;
        let problem = "a running host of this program has the same recorder and the same labels: tell them \
                       apart with HostBuilder::metrics_label";
        let claim = claim.ok_or_else(|| HostError::Config(problem.to_owned()))?;
        Ok(Self(Mutex::new(Some(claim))))
    }

    /// Lets another host have the recorder and the labels, although handles of this host may still exist.
    pub(super) fn release(&self) {
        *self.0.lock() = None;
    }
}

/// An engine of the program. One host has it until it closes it; what a dropped host appends later fails.
#[derive(Debug)]
pub(super) struct ClaimedJournal {
    engine: Arc<dyn Journal>,
    /// `None` after the journal was closed. Locked for reading while a batch is appended.
    claim: RwLock<Option<Claim>>,
}

impl ClaimedJournal {
    /// # Errors
    /// If a running host uses the engine.
    pub(super) async fn wait(engine: Arc<dyn Journal>) -> Result<Self, HostError> {
        let address = Arc::as_ptr(&engine).cast::<()>().addr();
        let claim = Claim::wait(Claimed::Journal(address)).await;
        let problem = "a running host of this program uses the journal: shut it down first (Host::shutdown), or \
                       give each host a journal of its own";
        let claim = claim.ok_or_else(|| HostError::Config(problem.to_owned()))?;
        Ok(Self { engine, claim: RwLock::new(Some(claim)) })
    }
}

impl Journal for ClaimedJournal {
    fn append(&self, mut batch: Batch) -> AppendStatus {
        // An engine may report a batch at once, and the report may append the next one.
        let claim = self.claim.read_recursive();
        if claim.is_none() {
            batch.report(BatchStatus::Failed(JournalError::Closed));
            return AppendStatus::Queued;
        }
        self.engine.append(batch)
    }

    fn flush(&self, session: &SessionId) {
        self.engine.flush(session);
    }

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        contained(async move { self.engine.read_some(session, after, limit).await })
    }

    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        contained(async move { self.engine.read(session, after).await })
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        contained(async move { self.engine.find(session).await })
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        contained(async move { self.engine.list(listing).await })
    }

    fn find_idle<'a>(
        &'a self,
        touched_before: u64,
        after: Option<&'a SessionId>,
    ) -> JournalFuture<'a, IdleSessions> {
        contained(async move { self.engine.find_idle(touched_before, after).await })
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        contained(async move { self.engine.count().await })
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        contained(async move { self.engine.remove(sessions).await })
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        contained(async move { self.engine.put_document(key, text, used_by).await })
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        contained(async move { self.engine.document(key).await })
    }

    fn remove_unused_documents<'a>(
        &'a self,
        prefix: &'a str,
        stored_before: u64,
    ) -> JournalFuture<'a, ()> {
        contained(async move { self.engine.remove_unused_documents(prefix, stored_before).await })
    }

    fn ownership(&self) -> Option<&dyn Ownership> {
        self.engine.ownership()
    }

    fn is_lasting(&self) -> bool {
        self.engine.is_lasting()
    }

    fn status(&self) -> JournalStatus {
        self.engine.status()
    }

    fn failure(&self) -> Option<JournalError> {
        self.engine.failure()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Batches that are being appended come first. The next host begins after the engine has closed.
            let claim = self.claim.write().take();
            if claim.is_some() {
                self.engine.close().await;
            }
        })
    }
}

/// Returns an error if a future of an engine panics, as a thread would.
fn contained<'a, T: 'a>(
    future: impl Future<Output = Result<T, JournalError>> + Send + 'a,
) -> JournalFuture<'a, T> {
    let panicked = |_| Err(JournalError::Read("the storage engine has panicked".to_owned()));
    Box::pin(AssertUnwindSafe(future).catch_unwind().map(move |done| done.unwrap_or_else(panicked)))
}
