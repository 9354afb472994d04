//! The writer thread: stores many batches in one transaction, with one fsync for all of them, and reports
//! their status. Its other work is in `tasks`, `erase` and `vacuum`.

mod catch_up;
mod erase;
mod tasks;
mod vacuum;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior};
use tokio::time::Instant;

use super::super::group_commit::Opening;
use super::super::{BatchRefusal, BatchStatus, GroupCommit, JournalError, JournalObserver};
use super::SharedFailure;
use super::data_directory::{self, DirectoryLock};
use super::database;
use super::errors;
use super::kill_point::KillPoint;
use super::pages::PageLayout;
use super::query;
use super::queue::{QueuedBatch, StatusReport, StatusReporter, WriteQueue};
use super::read_connections::ReadConnections;
use super::reserve::Reserve;
use super::rows::{self, StoredRow};
use callsheet_values::config::Durability;
use callsheet_values::types::{SessionId, SessionState};
use catch_up::CatchUp;
use erase::Erasure;
use vacuum::Vacuum;

/// Maximum delay of the fsync with [`Durability::Relaxed`].
const SYNC_WAIT: Duration = Duration::from_millis(100);

/// Interval of the attempts to write after a failure.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// Number of attempts, and the time between them, to save a log that was removed while another connection reads it.
const REMOVED_LOG_TRIES: u32 = 100;
const REMOVED_LOG_PAUSE: Duration = Duration::from_millis(50);

/// Stores the batches of the queue.
///
/// `wal` is the write-ahead log of SQLite. The log of a session is its list of records ([`LogPosition`]).
pub(super) struct JournalWriter {
    database: WriteConnection,
    queue: Arc<WriteQueue>,
    observer: Arc<dyn JournalObserver>,
    /// Number of stored sessions.
    sessions: Arc<AtomicUsize>,
    durability: Durability,
    /// The time for which a write waits for a lock of another program.
    busy_timeout: Duration,
    file: PathBuf,
    wal_path: PathBuf,
    wal: File,
    layout: PageLayout,
    readers: Arc<ReadConnections>,
    /// The batches that are written but not durable.
    unsynced: Vec<QueuedBatch>,
    unsynced_since: Option<Instant>,
    /// The error of an fsync, or of a database or a log that is not at its path any more. Nothing is tried until
    /// the database was opened again.
    broken: Option<JournalError>,
    reserve: Reserve,
    /// True from the release of the reserve, or a start without space for it, until it is whole again. Only deletions
    /// are tried: other writes would use the space, and then no session could be deleted.
    only_deletions: bool,
    /// The reason why the journal cannot be written, for readiness and for requests: that of `broken`, of
    /// `only_deletions`, or the error of the last write, after which the next one is tried.
    failure: SharedFailure,
    reporter: StatusReporter,
    erasure: Erasure,
    catch_up: CatchUp,
    vacuum: Vacuum,
    /// Number of pages of the log that could not be moved when that was logged last. 0: it was not.
    logged_pages: u64,
    /// The time of the next attempt to write after a failure, or to fill the reserve.
    retry_at: Option<Instant>,
    /// Unlocked last, after the database is closed.
    lock: DirectoryLock,
}

/// The parts of a writer.
pub(super) struct WriterParts {
    pub(super) database: WriteConnection,
    pub(super) layout: PageLayout,
    /// True if a host has left a write-ahead log.
    pub(super) has_log: bool,
    pub(super) readers: Arc<ReadConnections>,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) observer: Arc<dyn JournalObserver>,
    pub(super) sessions: Arc<AtomicUsize>,
    pub(super) durability: Durability,
    pub(super) busy_timeout: Duration,
    pub(super) reserve: Reserve,
    pub(super) failure: SharedFailure,
    pub(super) reporter: StatusReporter,
    pub(super) lock: DirectoryLock,
}

/// Abandons the queue when the writer ends for any reason.
struct AbandonOnDrop(Arc<WriteQueue>, StatusReporter);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.1.report(self.0.abandon());
    }
}

impl JournalWriter {
    /// Creates the writer of the database `file`. `wal_path` is the path of its write-ahead log, whose directory
    /// entry is durable afterwards.
    pub(super) fn new(
        parts: WriterParts,
        file: PathBuf,
        wal_path: PathBuf,
    ) -> std::io::Result<Self> {
        let WriterParts {
            database,
            layout,
            has_log,
            readers,
            queue,
            observer,
            sessions,
            durability,
            busy_timeout,
            reserve,
            failure,
            reporter,
            lock,
        } = parts;
        let wal = File::open(&wal_path)?;
        // Without space for the reserve, sessions can still be read and deleted.
        let filled = if reserve.needs_fill() { reserve.fill() } else { Ok(()) };
        let retry_at = filled.is_err().then(|| Instant::now() + RETRY_PERIOD);
        let only_deletions = filled.as_ref().is_err_and(errors::lacks_space);
        sync_parent(&file)?;
        let (unsynced, unsynced_since, broken) = (Vec::new(), None, None);
        let erasure = Erasure::after_start(has_log);
        let mut writer = Self {
            database,
            queue,
            observer,
            sessions,
            durability,
            busy_timeout,
            file,
            wal_path,
            wal,
            layout,
            readers,
            unsynced,
            unsynced_since,
            broken,
            reserve,
            only_deletions,
            failure,
            reporter,
            erasure,
            catch_up: CatchUp::default(),
            vacuum: Vacuum::default(),
            logged_pages: 0,
            retry_at,
            lock,
        };
        if only_deletions {
            writer.set_failure(Some(errors::only_deletions()));
        }
        Ok(writer)
    }

    /// Runs until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let _abandons = AbandonOnDrop(Arc::clone(&self.queue), self.reporter.clone());
        self.vacuum.begin();
        loop {
            let due = self.unsynced_since.map(|since| since + SYNC_WAIT);
            let others =
                [self.retry_at, self.erasure.due(), self.catch_up.due(), self.vacuum.due()];
            let work = self.queue.next_work(others.into_iter().flatten().chain(due).min());
            if !work.queued.is_empty() {
                self.store(work.queued);
            }
            if let Some((task, done)) = work.task {
                // The receiver may have been dropped.
                let _ = done.send(self.perform(task));
            }
            if work.flush || work.ended || due.is_some_and(|due| due <= Instant::now()) {
                self.sync();
            }
            if work.ended {
                return self.end();
            }
            if self.retry_at.is_some_and(|at| at <= Instant::now()) {
                self.retry();
            }
            self.checkpoint();
            self.continue_deletions();
            self.vacuum();
        }
    }

    fn store(&mut self, batches: Vec<QueuedBatch>) {
        if let Err(error) = self.check_writable() {
            return self.fail(batches, &error);
        }
        let began = Instant::now();
        let mut stored = self.write_unlocked(|database| database.store(&batches));
        if stored.as_ref().is_err_and(errors::may_lack_space) && self.empty_wal() == Ok(false) {
            // The write-ahead log has given its space back.
            stored = self.database.store(&batches);
        }
        match stored {
            Ok(outcomes) => self.stored(batches, outcomes, began.elapsed()),
            Err(error) if batches.len() > 1 && errors::concerns_one_batch(&error) => {
                // The transaction was rolled back. Each batch is stored alone, so that one bad
                // batch does not fail the others.
                for batch in batches {
                    self.store(vec![batch]);
                }
            }
            Err(error) => {
                let is_common = !errors::concerns_one_batch(&error);
                let error = errors::write_error(&error);
                if is_common {
                    self.set_failure(Some(error.clone()));
                }
                self.fail(batches, &error);
            }
        }
    }

    /// Performs a write, and waits while another program has locked the database.
    fn write_unlocked<T>(
        &mut self,
        mut write: impl FnMut(&mut WriteConnection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let began = Instant::now();
        let mut waits = false;
        loop {
            let written = write(&mut self.database);
            let is_locked = written.as_ref().is_err_and(errors::is_locked);
            if !is_locked || began.elapsed() >= self.busy_timeout {
                if waits && !is_locked {
                    tracing::info!(waited = ?began.elapsed(), "journal_unlocked");
                }
                return written;
            }
            if !std::mem::replace(&mut waits, true) {
                tracing::warn!(
                    timeout = ?self.busy_timeout,
                    "journal_locked: another program has locked the database; runs wait for it, then they fail"
                );
            }
        }
    }

    /// Checks that a write that is no deletion may be tried.
    fn check_writable(&mut self) -> Result<(), JournalError> {
        self.check_usable()?;
        if self.only_deletions { Err(errors::only_deletions()) } else { Ok(()) }
    }

    /// Checks that the database and its write-ahead log are at their paths, and that they could be synced.
    fn check_usable(&mut self) -> Result<(), JournalError> {
        if self.broken.is_none()
            && let Err(error) = self.lock.opened().check_and_note()
        {
            self.set_failure(Some(error.clone()));
            self.broken = Some(error);
        }
        if self.broken.is_none() && rustix::fs::fstat(&self.wal).is_ok_and(|it| it.st_nlink == 0) {
            // The open file still has the records.
            let mut emptied = self.empty_wal();
            for _ in 0..REMOVED_LOG_TRIES {
                if emptied != Ok(true) {
                    break;
                }
                std::thread::sleep(REMOVED_LOG_PAUSE);
                emptied = self.empty_wal();
            }
            let reason = match emptied {
                Ok(_) => "its write-ahead log was removed; it is created again".to_owned(),
                Err(error) => format!("its write-ahead log was removed: {error}"),
            };
            self.break_off(JournalError::Write(reason));
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Notes that the journal cannot be written, or that it can again.
    fn set_failure(&mut self, failure: Option<JournalError>) {
        let mut shared = self.failure.lock();
        if *shared == failure {
            return;
        }
        match &failure {
            Some(error) => {
                tracing::error!(%error, "journal_unwritable: no run can start until it can be written");
            }
            None => tracing::info!("journal_writable: the journal can be written again"),
        }
        *shared = failure;
        drop(shared);
        self.retry_at = Some(Instant::now() + RETRY_PERIOD);
    }

    fn stored(&mut self, batches: Vec<QueuedBatch>, outcomes: Vec<BatchOutcome>, took: Duration) {
        self.set_failure(None);
        let mut group = GroupCommit { batches: 0, records: 0, took };
        for (batch, outcome) in batches.iter().zip(&outcomes) {
            if let BatchOutcome::Stored { position, new } = outcome {
                if let Some(shared) = batch.engine_state.of_engine::<SharedPosition>() {
                    *shared.lock() = Some(*position);
                }
                group.batches += 1;
                group.records += batch.records();
                self.sessions.fetch_add(usize::from(*new), Ordering::AcqRel);
                if *new {
                    self.erasure.note_copies();
                }
            }
        }
        // Counted before the callbacks, so that they see current metrics.
        if group.batches > 0 {
            self.observer.stored(group);
        }
        let (mut written, mut not_stored) = (Vec::new(), Vec::new());
        for (mut batch, outcome) in batches.into_iter().zip(outcomes) {
            match outcome {
                BatchOutcome::Stored { .. } => {
                    if self.durability == Durability::Relaxed {
                        written.push(StatusReport {
                            on_status: Arc::clone(&batch.on_status),
                            status: BatchStatus::Written,
                            rows: std::mem::take(&mut batch.rows),
                        });
                    }
                    self.unsynced.push(batch);
                }
                BatchOutcome::NotStored(error) => not_stored.push((batch, error)),
            }
        }
        self.reporter.report(written);
        if !self.unsynced.is_empty() {
            self.unsynced_since.get_or_insert_with(Instant::now);
        }
        if self.durability == Durability::Strict {
            self.sync();
        }
        for (batch, error) in not_stored {
            self.fail(vec![batch], &error);
        }
    }

    /// Reports that batches are not stored. Earlier batches are synced first, because the status of batches is
    /// reported in their order.
    fn fail(&mut self, batches: Vec<QueuedBatch>, error: &JournalError) {
        self.sync();
        self.reporter.report(batches.into_iter().map(|batch| batch.failed(error)).collect());
    }

    /// Makes all written batches durable.
    ///
    /// With `synchronous=NORMAL`, SQLite appends a transaction to the write-ahead log without an
    /// fsync. After a crash it recovers the transactions of that log up to the first wrong checksum. So a
    /// transaction is durable once the log up to its end is synced, and one fdatasync of the log
    /// serves all of them. A checkpoint syncs the log before and the database after it moves pages,
    /// and a restarted log syncs its header (`walCheckpoint` and `walWriteFrames` in sqlite3.c;
    /// <https://sqlite.org/wal.html>, section 2.3). The log stays the same file while a connection
    /// is open. SQLite holds no locks on it that closing this handle could release. The handle was
    /// opened before the writes, so it reports every error.
    fn sync(&mut self) {
        self.unsynced_since = None;
        if self.unsynced.is_empty() {
            return;
        }
        let began = Instant::now();
        if self.sync_wal().is_ok() {
            self.observer.synced(began.elapsed());
            let unsynced = std::mem::take(&mut self.unsynced).into_iter();
            self.reporter
                .report(unsynced.map(|batch| batch.reached(BatchStatus::Durable)).collect());
        }
    }

    /// Syncs the write-ahead log. If it fails, so do all batches that were not synced, and everything after them: the
    /// system dropped pages of the log that SQLite considers written, and reports this only once.
    fn sync_wal(&mut self) -> Result<(), JournalError> {
        let Err(error) = self.wal.sync_data() else { return Ok(()) };
        Err(self.break_off(errors::log_not_synced(&error)))
    }

    /// Stops all work until the database was opened again. Batches that were not synced fail: they may be lost.
    fn break_off(&mut self, error: JournalError) -> JournalError {
        let unsynced = std::mem::take(&mut self.unsynced);
        self.reporter.report(unsynced.into_iter().map(|batch| batch.failed(&error)).collect());
        self.set_failure(Some(error.clone()));
        self.broken = Some(error.clone());
        // Until then reads may find pages that the system has dropped.
        self.retry_at = Some(Instant::now());
        error
    }
}

/// Makes the entries of a file's directory durable.
fn sync_parent(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), data_directory::sync_directory)
}

/// The outcome of a batch in a committed transaction.
enum BatchOutcome {
    /// The batch is stored, and ends at this position. `new` is true if the batch created the session.
    Stored { position: LogPosition, new: bool },
    /// The batch does not continue the stored records, or opens a session that cannot be stored.
    NotStored(JournalError),
}

/// The end of a session's log in the database, if it is known: the engine's value of the log.
type SharedPosition = Mutex<Option<LogPosition>>;

/// The end of a session's log in the database.
#[derive(Clone, Copy, Debug)]
struct LogPosition {
    /// The number of the session.
    number: i64,
    /// The sequence number of its last stored record.
    last: u64,
    /// The epoch of the writer at that time.
    epoch: u64,
}

/// The connection of the writer.
#[derive(Debug)]
pub(super) struct WriteConnection {
    connection: Connection,
    state: WriteState,
    /// For tests of crashes; does nothing in release builds.
    kill: KillPoint,
}

/// The state of the writer beside the database.
#[derive(Debug)]
struct WriteState {
    /// The number of the next new session. Numbers of removed sessions are not reused, because
    /// their logs may still use them.
    next_number: i64,
    /// The numbers of the sessions that were hidden. Their logs may still append.
    hidden: HashSet<i64>,
    /// Increases when sessions are hidden, and when the database is opened again. Positions of earlier epochs
    /// must be read from the database.
    epoch: u64,
}

impl WriteConnection {
    pub(super) fn new(connection: Connection) -> rusqlite::Result<Self> {
        let numbers = "SELECT coalesce(max(number), 0) + 1 FROM sessions";
        let next_number = connection.query_row(numbers, [], |row| row.get(0))?;
        let state = WriteState { next_number, hidden: HashSet::new(), epoch: 0 };
        Ok(Self { connection, state, kill: KillPoint::from_env() })
    }

    /// Stores batches in one transaction. Batches that do not continue the stored records are
    /// refused.
    fn store(&mut self, batches: &[QueuedBatch]) -> rusqlite::Result<Vec<BatchOutcome>> {
        let transaction = immediate(&mut self.connection)?;
        let mut records = 0;
        let mut outcomes = Vec::with_capacity(batches.len());
        let mut stored = BTreeMap::new();
        for batch in batches {
            let outcome = insert_batch(&transaction, &mut self.state, &mut stored, batch)?;
            if let BatchOutcome::Stored { .. } = &outcome {
                records += batch.records();
            }
            outcomes.push(outcome);
        }
        insert_rows(&transaction, &stored)?;
        self.kill.before_commit(records);
        transaction.commit()?;
        self.kill.after_commit(records);
        Ok(outcomes)
    }
}

fn immediate(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// The records of a session in a transaction.
#[derive(Default)]
struct SessionRows<'a> {
    /// The sequence number of the last one.
    last: u64,
    rows: Vec<&'a StoredRow>,
    /// The session's state after them, if they change it.
    state: Option<SessionState>,
}

/// Inserts the rows of a transaction, and stores the states of the sessions. The rows of one session are combined,
/// because each row costs an entry of the index.
fn insert_rows(
    transaction: &Transaction<'_>,
    stored: &BTreeMap<i64, SessionRows<'_>>,
) -> rusqlite::Result<()> {
    let mut insert_row = transaction
        .prepare_cached("INSERT INTO records(session, seq, time, body) VALUES (?1, ?2, ?3, ?4)")?;
    for (number, SessionRows { rows, state, .. }) in stored {
        for row in rows::combine(rows) {
            insert_row.execute((number, row.last_seq, row.time, &row.bodies))?;
        }
        let Some(state) = state else { continue };
        let change = if *state == SessionState::Running {
            "INSERT OR IGNORE INTO running(session) VALUES (?1)"
        } else {
            "DELETE FROM running WHERE session = ?1"
        };
        transaction.prepare_cached(change)?.execute([number])?;
    }
    Ok(())
}

/// Stores the session of a batch, and adds its rows to `stored`, the rows of this transaction by the number of their
/// session.
fn insert_batch<'a>(
    transaction: &Transaction<'_>,
    state: &mut WriteState,
    stored: &mut BTreeMap<i64, SessionRows<'a>>,
    batch: &'a QueuedBatch,
) -> rusqlite::Result<BatchOutcome> {
    let (id, first) = (&batch.session, *batch.seqs.start());
    let failed = |reason: String| Ok(BatchOutcome::NotStored(JournalError::Write(reason)));
    if batch.engine_state.has_failed(first) {
        return failed(format!("a record of session {id} before {first} was not stored"));
    }
    let position =
        batch.engine_state.of_engine::<SharedPosition>().and_then(|shared| *shared.lock());
    let known = match position {
        Some(position) => Some(position.number),
        None => query::session_row(transaction, id)?.map(|row| row.number),
    };
    // The batch must continue the stored records, or open a session that is not stored.
    let number = match (known, &batch.opening) {
        (Some(number), _) if state.hidden.contains(&number) => {
            return failed(format!("session {id} has been removed"));
        }
        (Some(_), Some(_)) if position.is_none() && first == 1 => {
            return Ok(BatchOutcome::NotStored(JournalError::Refused(BatchRefusal::Exists)));
        }
        (Some(number), _) => {
            let position = position.filter(|position| position.epoch == state.epoch);
            let last = match (stored.get(&number), position) {
                (Some(session), _) => Some(session.last),
                (None, Some(position)) => Some(position.last),
                (None, None) => last_seq(transaction, number)?,
            };
            let Some(last) = last else {
                return failed(format!("session {id} has been removed"));
            };
            if last.checked_add(1) != Some(first) {
                return failed(format!(
                    "record {first} of session {id} does not follow the last one, {last}"
                ));
            }
            number
        }
        (None, Some(opening)) if first == 1 => {
            match open_session(transaction, state, stored, batch, opening)? {
                Ok(number) => number,
                Err(refusal) => {
                    return Ok(BatchOutcome::NotStored(JournalError::Refused(refusal)));
                }
            }
        }
        (None, Some(_) | None) => return failed(format!("there is no session {id}")),
    };
    let session = stored.entry(number).or_default();
    session.last = *batch.seqs.end();
    session.rows.extend(&batch.rows);
    session.state = batch.state.or(session.state);
    if !batch.documents.is_empty() {
        database::create_document_tables(transaction)?;
        let insert_use = "INSERT OR IGNORE INTO document_uses(session, key) VALUES (?1, ?2)";
        let mut insert_use = transaction.prepare_cached(insert_use)?;
        for key in &batch.documents {
            insert_use.execute((number, key))?;
        }
    }
    let position = LogPosition { number, last: *batch.seqs.end(), epoch: state.epoch };
    Ok(BatchOutcome::Stored { position, new: known.is_none() })
}

/// Inserts the row of a new session, and returns its number. Returns an error if it is the fork of a session that
/// does not exist any more.
fn open_session(
    transaction: &Transaction<'_>,
    state: &mut WriteState,
    stored: &BTreeMap<i64, SessionRows<'_>>,
    batch: &QueuedBatch,
    opening: &Opening,
) -> rusqlite::Result<Result<i64, BatchRefusal>> {
    let origin = match &opening.fork {
        None => None,
        Some((from, prefix)) => match origin(transaction, stored, from, *prefix)? {
            None => return Ok(Err(BatchRefusal::OriginRemoved(from.clone()))),
            origin => origin,
        },
    };
    let number = state.next_number;
    state.next_number += 1;
    let insert = "INSERT INTO sessions(number, id, agent, opened, origin, prefix, metadata)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let (origin, prefix) = origin.unzip();
    transaction.prepare_cached(insert)?.execute((
        number,
        batch.session.as_str(),
        &opening.agent,
        opening.time,
        origin,
        prefix.unwrap_or(0),
        &opening.metadata,
    ))?;
    Ok(Ok(number))
}

/// Returns the sequence number of a session's last record.
fn last_seq(transaction: &Transaction<'_>, number: i64) -> rusqlite::Result<Option<u64>> {
    transaction
        .prepare_cached("SELECT seq FROM records WHERE session = ?1 ORDER BY seq DESC LIMIT 1")?
        .query_row([number], |row| row.get(0))
        .optional()
}

/// Returns the number of the session in whose own rows the record `prefix` of the session `from` is, and `prefix`.
/// Returns `None` if there is no such record.
fn origin(
    transaction: &Transaction<'_>,
    stored: &BTreeMap<i64, SessionRows<'_>>,
    from: &SessionId,
    prefix: u64,
) -> rusqlite::Result<Option<(i64, u64)>> {
    let Some(mut row) = query::session_row(transaction, from)? else { return Ok(None) };
    // The session is itself a fork, and has this record from its own origin.
    while let Some((origin, shared)) = row.origin
        && prefix <= shared
    {
        let Some(next) = query::numbered_session_row(transaction, origin)? else { return Ok(None) };
        row = next;
    }
    let last = match stored.get(&row.number) {
        Some(session) => Some(session.last),
        None => last_seq(transaction, row.number)?,
    };
    Ok(last.filter(|last| prefix <= *last).map(|_| (row.number, prefix)))
}
