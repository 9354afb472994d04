//! The storage engine that keeps records in a PostgreSQL database, for one host or several.
//!
//! One task writes. It stores the batches of a bounded queue in one statement on one connection, and then reports the
//! status of each batch. The unit of ownership is a tree: a root session with its child sessions. A host stores records of
//! the trees that it owns, and each statement checks this by the owner and the epoch of the tree. Reads use a few
//! connections of their own. A host renews its lease on another one.
//!
//! | rule | file |
//! | --- | --- |
//! | the URL, time limits, TLS, what is set for each connection | `connection`, `tls`, `pool` |
//! | tables, their version and its changes | `schema` |
//! | the statements that store, with the fence | `statements` |
//! | group commit, unknown fates, attempts after a failure, flush | `writer` |
//! | leases, and the time at which a host gives up by itself | `lease` |
//! | owners of trees: take, give, hand over | `ownership`, `trees` |
//! | lists and reads | `reads` |
//! | deletion | `writer/tasks` (hides), `deletion` |

mod connection;
mod counters;
mod deletion;
mod encoding;
mod errors;
mod lease;
mod ownership;
mod pool;
mod queue;
mod reader;
mod reads;
mod schema;
mod statements;
mod tls;
mod trees;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use reader::PostgresReader;

use super::group_commit::NoObserver;
use super::{
    AppendStatus, Batch, IdleSessions, Journal, JournalEntry, JournalError, JournalFuture,
    JournalObserver, JournalStatus, Ownership, SessionQuery, SessionSummary, machine_unix_ms,
};
use callsheet_values::config::Durability;
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

use connection::{Database, DatabaseConnection, Purpose};
use counters::EngineCounters;
use lease::{Lease, LeaseTerms};
use pool::ConnectionPool;
use queue::{BatchQueue, TreeBatch, TreeTask};
use trees::OwnedTrees;
use writer::{DatabaseWriter, DatabaseWriterParts, PreparedConnection, SharedWriteFailure};

/// Maximum number of sessions that one statement hides.
const SESSIONS_PER_REMOVAL_MAX: usize = 64;

/// The age from which the number of sessions is counted again.
const COUNT_AGE_MAX: Duration = Duration::from_secs(60);

/// The difference of the clocks from which the start warns.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(10);

/// Time limit of a statement at the start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Stores records in a PostgreSQL database.
///
/// ```no_run
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use callsheet::journal::{PostgresJournal, PostgresOptions};
/// use callsheet::prelude::*;
///
/// let url = std::env::var("CALLSHEET_DATABASE_URL")?;
/// let journal = PostgresJournal::open(&url, PostgresOptions::default()).await?;
/// let host = Host::builder().journal(Arc::new(journal)).start().await?;
/// # host.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct PostgresJournal {
    shared: Arc<Shared>,
    /// The task of the writer, which then ends the lease.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// The parts of the engine that its tasks use.
struct Shared {
    database: Arc<Database>,
    pool: ConnectionPool,
    queue: Arc<BatchQueue>,
    trees: Arc<OwnedTrees>,
    counters: Arc<EngineCounters>,
    lease: Arc<Lease>,
    /// The error of the last write of the writer, until a write succeeds.
    failure: SharedWriteFailure,
    /// True if several hosts use the database.
    is_shared: bool,
}

/// The options of a [`PostgresJournal`].
///
/// ```
/// use std::time::Duration;
/// use callsheet::journal::PostgresOptions;
///
/// let options = PostgresOptions::default().with(|options| options.lease = Duration::from_secs(30));
/// assert_eq!(options.advertise, None);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The durability at which a batch is reported as stored.
    pub durability: Durability,
    /// Receives every statement and every flush of batches.
    pub observer: Arc<dyn JournalObserver>,
    /// Maximum number of queued batches. Further batches fail.
    pub queue_max: usize,
    /// The time for which batches wait while the database cannot be written.
    pub busy_timeout: Duration,
    /// The time after the last heartbeat of a host at which others may take its sessions.
    pub lease: Duration,
    /// Time limit of a statement that writes. Then the connection is given up.
    pub write_timeout: Duration,
    /// The address at which other hosts reach this one. Without one it uses the database alone.
    pub advertise: Option<String>,
}

impl Default for PostgresOptions {
    /// Returns strict durability, at most 10,000 queued batches, waits of a minute, leases of 10 s, a time limit of 2 s, no
    /// address, and no observer.
    fn default() -> Self {
        Self {
            durability: Durability::Strict,
            observer: Arc::new(NoObserver),
            queue_max: 10_000,
            busy_timeout: Duration::from_secs(60),
            lease: Duration::from_secs(10),
            write_timeout: Duration::from_secs(2),
            advertise: None,
        }
    }
}

/// The versions of the tables before and after a change. 0: there were none.
///
/// [`PostgresJournal::migrate`] returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchemaVersions {
    /// The version before.
    pub before: i32,
    /// The version after.
    pub after: i32,
}

impl PostgresJournal {
    /// Opens the journal in a database, and creates its tables if there are none. Needs a Tokio runtime, in which the
    /// engine's tasks run.
    ///
    /// # Errors
    /// If the URL is wrong, the server cannot be reached or refuses this host, the tables are those of another program or
    /// of a later version, or another host uses the database and one of both has no address (`advertise`).
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Self, JournalError> {
        let database = Arc::new(Database::parse(url)?);
        let mut connection = database.open(Purpose::Other).await?;
        let migrated_from = schema::migrate(&mut connection, &database).await?;
        let PostgresOptions { durability, lease, write_timeout, .. } = options;
        // A host that is alone owns everything.
        let is_shared = options.advertise.is_some();
        let trees = Arc::new(OwnedTrees::new(is_shared));
        let terms = LeaseTerms {
            address: options.advertise,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            length: lease,
        };
        let clock = log_server(&connection, &database, migrated_from).await?;
        let writing = database.open(writer::purpose(durability)).await?;
        let writing = PreparedConnection::new(writing, START_LIMIT).await.map_err(|failure| {
            let reason = format!("its tables are not those of this version: {}", failure.reason);
            errors::opening(database.name(), reason)
        })?;
        let lease = Lease::begin(&mut connection, &database, terms).await?;
        drop(connection);
        lease.note_clock(clock.0, clock.1);
        let lease = Arc::new(lease);
        let queue = Arc::new(BatchQueue::new(options.queue_max));
        let counters = Arc::new(EngineCounters::default());
        let failure = SharedWriteFailure::default();
        let parts = DatabaseWriterParts {
            database: Arc::clone(&database),
            host: lease.id().to_owned(),
            queue: Arc::clone(&queue),
            trees: Arc::clone(&trees),
            counters: Arc::clone(&counters),
            observer: options.observer,
            durability,
            busy_timeout: options.busy_timeout,
            write_timeout,
            failure: Arc::clone(&failure),
        };
        let pool = ConnectionPool::new(Arc::clone(&database));
        let shared = Shared { database, pool, queue, trees, counters, lease, failure, is_shared };
        let shared = Arc::new(shared);
        shared.count().await?;
        let writer = DatabaseWriter::new(parts, writing);
        let task = Handle::current().spawn(shared.clone().run(writer, write_timeout));
        Ok(Self { shared, writer: Mutex::new(Some(task)) })
    }

    /// Creates the tables of a database, or changes those of an earlier version, as [`open`](Self::open) does. Starts no
    /// host.
    ///
    /// # Errors
    /// If the URL is wrong, the server cannot be reached, the role must not create tables, or the tables are those of
    /// another program or of a later version.
    pub async fn migrate(url: &str) -> Result<SchemaVersions, JournalError> {
        let database = Database::parse(url)?;
        let mut connection = database.open(Purpose::Other).await?;
        let before = schema::migrate(&mut connection, &database).await?;
        Ok(SchemaVersions { before, after: schema::VERSION })
    }
}

impl Shared {
    /// Runs the writer, with the task that renews the lease, until the journal is closed.
    async fn run(self: Arc<Self>, writer: DatabaseWriter, limit: Duration) {
        let (database, trees) = (Arc::clone(&self.database), Arc::clone(&self.trees));
        let beats = Arc::clone(&self.lease).keep(database, trees, limit);
        let cleans = async {
            // The last host may have ended while it deleted sessions.
            if let Err(error) = deletion::delete_removed(&self.pool, &self.trees, None).await {
                tracing::error!(%error, "deletion_unfinished: the next deletion or start goes on");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = writer.run() => {}
            () = beats => {}
            () = cleans => {}
        }
        self.lease.end(&self.database, limit).await;
        self.pool.clear();
    }

    /// Counts the sessions.
    async fn count(&self) -> Result<(), JournalError> {
        self.counters.begins_count(Instant::now());
        let (sessions, bytes) = reads::count(&self.pool).await?;
        self.counters.note_counted(sessions, bytes);
        Ok(())
    }

    /// Hides sessions, and deletes their records.
    async fn remove(&self, sessions: &[SessionId]) -> Result<(), JournalError> {
        let mut numbers = Vec::new();
        for group in sessions.chunks(SESSIONS_PER_REMOVAL_MAX) {
            let (done, hidden) = oneshot::channel();
            self.queue.push_task(TreeTask::Hide(group.to_vec(), done))?;
            numbers.extend(hidden.await.unwrap_or(Err(JournalError::Closed))?);
        }
        if numbers.is_empty() {
            return Ok(());
        }
        deletion::delete_removed(&self.pool, &self.trees, Some(numbers)).await
    }
}

impl Journal for PostgresJournal {
    fn append(&self, batch: Batch) -> AppendStatus {
        let Some(batch) = TreeBatch::of(batch) else { return AppendStatus::Durable };
        self.shared.queue.push(batch);
        AppendStatus::Queued
    }

    fn flush(&self, session: &SessionId) {
        self.shared.queue.flush(session);
    }

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        Box::pin(reads::read(&self.shared.pool, session, after, limit))
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        Box::pin(reads::find(&self.shared.pool, session))
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        Box::pin(reads::list(&self.shared.pool, listing))
    }

    fn find_idle<'a>(
        &'a self,
        touched_before: u64,
        after: Option<&'a SessionId>,
    ) -> JournalFuture<'a, IdleSessions> {
        Box::pin(reads::find_idle(&self.shared.pool, self.host_id(), touched_before, after))
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        if self.shared.is_shared {
            // Other hosts open and remove sessions, too. A host asks at its start.
            return Box::pin(async {
                self.shared.count().await?;
                Ok(self.shared.counters.sessions())
            });
        }
        let (shared, now) = (&self.shared, Instant::now());
        if now.checked_sub(COUNT_AGE_MAX).is_some_and(|since| shared.counters.begins_count(since)) {
            let shared = Arc::clone(shared);
            Handle::current().spawn(async move {
                if let Err(error) = shared.count().await {
                    tracing::warn!(%error, "sessions_not_counted");
                }
            });
        }
        Box::pin(std::future::ready(Ok(self.shared.counters.sessions())))
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        let (shared, sessions) = (Arc::clone(&self.shared), sessions.to_vec());
        Box::pin(async move {
            // It goes on if the caller goes away.
            let removed = Handle::current().spawn(async move { shared.remove(&sessions).await });
            // The panic hook has printed the message.
            removed.await.unwrap_or(Err(JournalError::Closed))
        })
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        Box::pin(deletion::put_document(&self.shared.pool, key, text, used_by))
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        Box::pin(reads::document(&self.shared.pool, key))
    }

    fn remove_unused_documents<'a>(
        &'a self,
        prefix: &'a str,
        stored_before: u64,
    ) -> JournalFuture<'a, ()> {
        let stored_before = self.shared.lease.database_time(stored_before);
        Box::pin(deletion::delete_unused_documents(&self.shared.pool, prefix, stored_before))
    }

    fn ownership(&self) -> Option<&dyn Ownership> {
        self.shared.is_shared.then_some(self)
    }

    fn status(&self) -> JournalStatus {
        let (unknown_stored, unknown_lost) = self.shared.counters.fates();
        JournalStatus {
            queued: self.shared.queue.len(),
            bytes: self.shared.counters.bytes(),
            owned: self.shared.is_shared.then(|| self.shared.trees.len()),
            heartbeat_age: Some(self.shared.lease.age()),
            unknown_stored,
            unknown_lost,
            ..JournalStatus::default()
        }
    }

    fn failure(&self) -> Option<JournalError> {
        let failure = self.shared.failure.lock().clone();
        failure.or_else(|| self.shared.lease.failure())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.shared.queue.close();
            let writer = self.writer.lock().take();
            if let Some(writer) = writer {
                // The panic hook has printed the message of a writer that panicked.
                let _ = writer.await;
            }
        })
    }
}

impl Drop for PostgresJournal {
    /// Lets the writer store the queued batches and end, without a wait for it.
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

impl fmt::Debug for PostgresJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.shared.database.name();
        f.debug_struct("PostgresJournal").field("database", &database).finish_non_exhaustive()
    }
}

/// Returns whether statements of a connection are served by other server processes while another connection has a
/// transaction: there is a pooler in transaction mode.
async fn shares_servers(
    connection: &DatabaseConnection,
    database: &Database,
) -> Result<bool, errors::StatementFailure> {
    let process = async |connection: &DatabaseConnection| {
        let rows = connection.query(START_LIMIT, "SELECT pg_backend_pid()", &[]).await?;
        Ok::<_, errors::StatementFailure>(rows.first().map(|row| row.get::<_, i32>(0)))
    };
    let own = process(connection).await?;
    let other = database.connect(Purpose::Other).await?;
    other.query(START_LIMIT, "BEGIN", &[]).await?;
    // A pooler gives it the process that was used last.
    Ok(process(&other).await? == own || process(connection).await? != own)
}

/// Logs which server was found, and warns about what would break the journal. Returns the time of the database's clock and
/// of this machine's: Unix time in milliseconds.
async fn log_server(
    connection: &DatabaseConnection,
    database: &Database,
    migrated_from: i32,
) -> Result<(i64, i64), JournalError> {
    let open_error =
        |failure: errors::StatementFailure| errors::opening(database.name(), failure.reason);
    let asks = "SELECT current_setting('server_version'), current_setting('fsync'), current_schema()::text,
        (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let before = machine_unix_ms();
    let rows = connection.query(START_LIMIT, asks, &[]).await.map_err(open_error)?;
    let after = machine_unix_ms();
    let Some(row) = rows.first() else {
        return Ok((encoding::signed(after), encoding::signed(after)));
    };
    let (server, fsync): (&str, &str) = (row.get(0), row.get(1));
    let schema: Option<&str> = row.get(2);
    tracing::info!(server, database = database.name(), schema, migrated_from, "journal_opened");
    if fsync == "off" {
        tracing::warn!("database_without_fsync: a crash of its machine loses or damages sessions");
    }
    // Without a second connection it is not known.
    if shares_servers(connection, database).await.unwrap_or(false) {
        tracing::warn!(
            "pooler_in_transaction_mode: connect to the server itself, or to a pooler in session mode"
        );
    }
    let database_ms: i64 = row.get(3);
    let time = encoding::unsigned(database_ms);
    let offset = before.saturating_sub(time).max(time.saturating_sub(after));
    if Duration::from_millis(offset) > CLOCK_OFFSET_MAX {
        tracing::warn!(
            offset_ms = offset,
            "clocks_differ: the clock of the database is far off this one"
        );
    }
    Ok((database_ms, encoding::signed(before / 2 + after / 2)))
}

callsheet_values::impl_with!(PostgresOptions);
