//! The task that writes: stores the batches of many sessions in one statement, and reports their status.
//!
//! A group of batches is stored in rounds: first the sessions that are opened (`open`), then the other batches
//! (`append`), then forks, because the records that a fork shares must be stored before it. Each of these is one
//! statement, and so one transaction.
//!
//! After a lost connection it is unknown whether the last statement was executed. The writer connects again, looks for
//! the records of that statement (`look`), and stores only what is missing. A batch is reported afterwards.

mod append;
mod look;
mod open;
mod tasks;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::{BatchStatus, GroupCommit, JournalError, JournalObserver};
use super::connection::{Database, DatabaseConnection, Purpose};
use super::counters::EngineCounters;
use super::encoding::unsigned;
use super::errors::{StatementFailure, StatementFailureKind};
use super::queue::{BatchQueue, TreeBatch, TreePosition};
use super::statements::Statements;
use super::trees::OwnedTrees;
use callsheet_values::config::Durability;
use callsheet_values::types::SessionId;

/// Maximum delay of the flush with [`Durability::Relaxed`].
const FLUSH_WAIT: Duration = Duration::from_millis(100);

/// The first and the longest pause before a statement is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The number of attempts in a row that fail before the journal counts as unwritable. A server that restarts, or a
/// connection that is cut, is no failure yet.
const SILENT_ATTEMPTS: u32 = 3;

/// A statement has this time for each of its bytes, besides its time limit: 1 MiB a second.
const TIME_PER_MEBIBYTE: Duration = Duration::from_secs(1);

/// The error of the last write, until a write succeeds.
pub(super) type SharedWriteFailure = Arc<Mutex<Option<JournalError>>>;

/// The connection of the writer.
pub(super) struct PreparedConnection {
    connection: DatabaseConnection,
    statements: Statements,
}

impl PreparedConnection {
    pub(super) async fn new(
        connection: DatabaseConnection,
        limit: Duration,
    ) -> Result<Self, StatementFailure> {
        let statements = Statements::prepare(&connection, limit).await?;
        Ok(Self { connection, statements })
    }
}

/// The parts of a writer.
pub(super) struct DatabaseWriterParts {
    pub(super) database: Arc<Database>,
    /// The id of this host in the database.
    pub(super) host: String,
    pub(super) queue: Arc<BatchQueue>,
    pub(super) trees: Arc<OwnedTrees>,
    pub(super) counters: Arc<EngineCounters>,
    pub(super) observer: Arc<dyn JournalObserver>,
    pub(super) durability: Durability,
    pub(super) busy_timeout: Duration,
    pub(super) write_timeout: Duration,
    pub(super) failure: SharedWriteFailure,
}

/// Stores the batches of the queue.
pub(super) struct DatabaseWriter {
    parts: DatabaseWriterParts,
    /// `None` after the connection was lost.
    connection: Option<PreparedConnection>,
    /// The batches that are committed but not flushed, with [`Durability::Relaxed`].
    unflushed: Vec<TreeBatch>,
    flush_at: Option<Instant>,
    /// The numbers of the sessions that were hidden. Their logs may still append.
    hidden: HashSet<i64>,
    next_order: u64,
    /// Number of attempts in a row that failed.
    attempts: u32,
    /// The time of the next attempt to write, while the journal is unwritable and nothing is queued.
    retry_at: Option<Instant>,
}

/// Fails the queued batches when the writer ends for any reason.
struct FailOnDrop(Arc<BatchQueue>);

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// A session in the database, as [`super::statements::Statements::find`] returns it.
struct FoundSession {
    number: i64,
    root: i64,
    last: u64,
}

/// A part of a round that has failed, with the batches that are not settled.
type Unsettled = (StatementFailure, Vec<TreeBatch>);

impl DatabaseWriter {
    pub(super) fn new(parts: DatabaseWriterParts, connection: PreparedConnection) -> Self {
        Self {
            parts,
            connection: Some(connection),
            unflushed: Vec::new(),
            flush_at: None,
            hidden: HashSet::new(),
            next_order: 0,
            attempts: 0,
            retry_at: None,
        }
    }

    /// Runs until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        let _abandons = FailOnDrop(Arc::clone(&self.parts.queue));
        loop {
            let until = self.flush_at.into_iter().chain(self.retry_at).min();
            let mut work = self.parts.queue.next_work(until).await;
            for batch in &mut work.queued {
                batch.order = self.next_order;
                self.next_order += 1;
            }
            self.store(work.queued).await;
            if let Some(task) = work.task {
                self.perform(task).await;
            }
            let now = Instant::now();
            if work.flush || work.ended || self.flush_at.is_some_and(|at| at <= now) {
                self.flush().await;
            }
            if work.ended {
                return;
            }
            if self.retry_at.is_some_and(|at| at <= now) {
                self.probe().await;
            }
        }
    }

    /// Stores batches, and tries again until each of them is stored, refused, or older than `busy_timeout`.
    async fn store(&mut self, batches: Vec<TreeBatch>) {
        let mut pending = batches;
        while !pending.is_empty() {
            match self.store_round(&mut pending).await {
                Ok(()) => self.note_success(),
                Err(failure) => self.recover(&failure, &mut pending).await,
            }
        }
    }

    /// Stores as many of these batches as one round can store, and leaves the others.
    async fn store_round(&mut self, pending: &mut Vec<TreeBatch>) -> Result<(), StatementFailure> {
        self.connect().await?;
        self.settle_unknown(pending).await?;
        let Round { opens, appends, forks, later } = Round::plan(std::mem::take(pending));
        *pending = later;
        let mut result = Ok(());
        for (batches, part) in [(opens, Part::Open), (appends, Part::Append), (forks, Part::Open)] {
            if result.is_err() || batches.is_empty() {
                pending.extend(batches);
                continue;
            }
            let stored = match part {
                Part::Open => self.open(batches).await,
                Part::Append => self.append(batches).await,
            };
            if let Err((failure, unsettled)) = stored {
                pending.extend(unsettled);
                result = Err(failure);
            }
        }
        pending.sort_by_key(|batch| batch.order);
        result
    }

    /// Connects, unless there is a connection.
    async fn connect(&mut self) -> Result<&PreparedConnection, StatementFailure> {
        let open = self.connection.take().filter(|open| !open.connection.is_closed());
        let open = match open {
            Some(open) => open,
            None => {
                let purpose = purpose(self.parts.durability);
                let connected = self.parts.database.connect(purpose).await;
                // Rights and passwords may be changed back.
                let connected = connected.map_err(|failure| StatementFailure::lost(failure.reason));
                PreparedConnection::new(connected?, self.parts.write_timeout).await?
            }
        };
        Ok(self.connection.insert(open))
    }

    /// Returns the connection, with the time limit of a statement that has this number of bytes.
    fn statement(&self, bytes: usize) -> Result<(&PreparedConnection, Duration), StatementFailure> {
        let open =
            self.connection.as_ref().ok_or_else(|| StatementFailure::lost("not connected"))?;
        let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        Ok((open, self.parts.write_timeout + TIME_PER_MEBIBYTE.saturating_mul(mebibytes)))
    }

    /// Finds sessions, and takes their trees unless another host owns them. Sessions that are not stored are missing.
    async fn find(
        &self,
        sessions: &[&SessionId],
    ) -> Result<HashMap<SessionId, FoundSession>, StatementFailure> {
        let ids: Vec<&str> = sessions.iter().map(|id| id.as_str()).collect();
        let (open, limit) = self.statement(0)?;
        let (host, trees) = (&self.parts.host, &self.parts.trees);
        let rows = open.connection.execute(limit, &open.statements.find, &[&ids, host]).await?;
        let (mut found, mut free) = (HashMap::new(), HashMap::new());
        for row in &rows {
            let (id, number, root): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
            let owner: Option<&str> = row.get(4);
            let (epoch, is_others): (i64, Option<bool>) = (row.get(5), row.get(6));
            let Ok(id) = SessionId::parse(id) else { continue };
            let known = trees.epoch(root);
            if owner == Some(host.as_str()) {
                if known != Some(epoch) {
                    trees.insert(root, epoch);
                }
            } else {
                known.into_iter().for_each(|known| trees.lose(root, known, &id));
                if is_others != Some(true) {
                    free.insert(root, epoch);
                }
            }
            let last = unsigned(row.get::<_, Option<i64>>(3).unwrap_or(0));
            found.insert(id, FoundSession { number, root, last });
        }
        if !free.is_empty() {
            let (roots, epochs): (Vec<i64>, Vec<i64>) = free.into_iter().unzip();
            let take = &open.statements.take;
            let taken = open.connection.execute(limit, take, &[host, &roots, &epochs]).await?;
            for row in &taken {
                trees.insert(row.get(0), row.get(1));
            }
        }
        Ok(found)
    }

    /// Notes that batches are stored, and reports them.
    fn settle_stored(&mut self, stored: Vec<(TreeBatch, TreePosition)>, took: Duration) {
        if stored.is_empty() {
            return;
        }
        let records = stored.iter().map(|(batch, _)| batch.records.len()).sum();
        self.parts.observer.stored(GroupCommit { batches: stored.len(), records, took });
        for (mut batch, position) in stored {
            batch.set_position(Some(position));
            batch.is_fate_unknown = false;
            match self.parts.durability {
                Durability::Strict => batch.report(BatchStatus::Durable),
                Durability::Relaxed => {
                    if !std::mem::replace(&mut batch.is_written, true) {
                        batch.report(BatchStatus::Written);
                    }
                    self.unflushed.push(batch);
                }
            }
        }
        if !self.unflushed.is_empty() {
            self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH_WAIT);
        }
    }

    /// Makes all committed batches durable, and reports them.
    async fn flush(&mut self) {
        self.flush_at = None;
        while !self.unflushed.is_empty() {
            let began = Instant::now();
            match self.commit_to_disk().await {
                Ok(()) => {
                    self.parts.observer.synced(began.elapsed());
                    let flushed = std::mem::take(&mut self.unflushed);
                    flushed.iter().for_each(|batch| batch.report(BatchStatus::Durable));
                    self.flush_at = None;
                    self.note_success();
                }
                Err(failure) => {
                    self.recover_and_store(&StatementFailure::lost(failure.reason)).await
                }
            }
        }
    }

    /// Makes all earlier commits durable.
    async fn commit_to_disk(&mut self) -> Result<(), StatementFailure> {
        self.connect().await?;
        let (open, limit) = self.statement(0)?;
        open.connection.execute(limit, &open.statements.flush, &[]).await.map(drop)
    }

    /// Prepares the next attempt after a failure. Fails the batches that have waited for too long.
    async fn recover(&mut self, failure: &StatementFailure, pending: &mut Vec<TreeBatch>) {
        self.attempts += 1;
        if failure.kind == StatementFailureKind::Lost {
            self.connection = None;
            // The server may have lost them, if it has crashed.
            for batch in &mut self.unflushed {
                batch.note_sent();
            }
            self.flush_at = None;
            pending.append(&mut self.unflushed);
            pending.sort_by_key(|batch| batch.order);
        }
        let error = failure.write_error();
        let is_refused = failure.kind == StatementFailureKind::Refused;
        if is_refused || self.attempts > SILENT_ATTEMPTS {
            self.set_failure(Some(error.clone()));
        }
        let now = Instant::now();
        let busy_timeout = self.parts.busy_timeout;
        let is_over = |batch: &mut TreeBatch| is_refused || now - batch.queued_at >= busy_timeout;
        for batch in pending.extract_if(.., is_over) {
            batch.fail(error.clone());
        }
        if self.attempts > 1 {
            let doublings = self.attempts.min(8) - 2;
            tokio::time::sleep((PAUSE_MIN * 2_u32.pow(doublings)).min(PAUSE_MAX)).await;
        }
    }

    /// Prepares the next attempt after a failure, and stores again what the server may have lost.
    async fn recover_and_store(&mut self, failure: &StatementFailure) {
        let mut pending = Vec::new();
        self.recover(failure, &mut pending).await;
        self.store(pending).await;
    }

    fn note_success(&mut self) {
        self.attempts = 0;
        if self.retry_at.is_some() {
            self.set_failure(None);
        }
    }

    /// Notes that the journal cannot be written, or that it can again.
    fn set_failure(&mut self, failure: Option<JournalError>) {
        self.retry_at = failure.is_some().then(|| Instant::now() + PAUSE_MAX);
        let before = std::mem::replace(&mut *self.parts.failure.lock(), failure.clone());
        match (before, failure) {
            (None, Some(error)) => {
                tracing::error!(%error, "journal_unwritable: runs wait until it can be written");
            }
            (Some(_), None) => tracing::info!("journal_writable: the journal can be written again"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    /// Tries whether the database can be written.
    async fn probe(&mut self) {
        match self.commit_to_disk().await {
            Ok(()) => self.note_success(),
            Err(failure) => self.recover_and_store(&failure).await,
        }
    }
}

/// A statement of a round.
#[derive(Clone, Copy)]
enum Part {
    Open,
    Append,
}

/// The batches of a round, by the statement that stores them.
#[derive(Default)]
struct Round {
    opens: Vec<TreeBatch>,
    appends: Vec<TreeBatch>,
    forks: Vec<TreeBatch>,
    /// Those that must wait for this round.
    later: Vec<TreeBatch>,
}

impl Round {
    /// Plans a round of batches in order.
    fn plan(batches: Vec<TreeBatch>) -> Self {
        let mut round = Self::default();
        let (mut opened, mut forked, mut deferred) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        for batch in batches {
            let session = &batch.session;
            if deferred.contains(session) || forked.contains(session) {
                deferred.insert(session.clone());
                round.later.push(batch);
                continue;
            }
            let Some(opening) = batch.opening.as_ref().filter(|_| batch.position().is_none())
            else {
                round.appends.push(batch);
                continue;
            };
            // The session with the shared records, or the parent, must be stored before.
            let needed = opening.fork.as_ref().map(|(from, _)| from).or(batch.parent.as_ref());
            let is_fork = opening.fork.is_some();
            let must_wait = needed.is_some_and(|needed| {
                forked.contains(needed)
                    || deferred.contains(needed)
                    || (!is_fork && opened.contains(needed))
            });
            if must_wait || opened.contains(session) {
                deferred.insert(session.clone());
                round.later.push(batch);
            } else if is_fork {
                forked.insert(session.clone());
                round.forks.push(batch);
            } else {
                opened.insert(session.clone());
                round.opens.push(batch);
            }
        }
        round
    }
}

/// Returns the purpose of the writer's connection.
pub(super) fn purpose(durability: Durability) -> Purpose {
    Purpose::Write { waits_for_disk: durability == Durability::Strict }
}
