//! A few connections for reads, and for short writes that need no order among the batches.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::connection::{Database, DatabaseConnection, Parameter, Purpose};
use super::errors::{StatementFailure, StatementFailureKind};

/// Maximum number of statements at the same time. Further ones wait.
const CONNECTIONS_MAX: usize = 4;

/// Time limit of a statement, and of the time without a row of its answer.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The time for which a statement is tried again while the server cannot be reached.
const RETRY_TIME: Duration = Duration::from_secs(5);

/// The pause before a statement is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The connections.
pub(super) struct ConnectionPool {
    database: Arc<Database>,
    permits: Semaphore,
    idle: Mutex<Vec<DatabaseConnection>>,
}

impl ConnectionPool {
    pub(super) fn new(database: Arc<Database>) -> Self {
        let permits = Semaphore::new(CONNECTIONS_MAX);
        Self { database, permits, idle: Mutex::default() }
    }

    /// Executes a statement, and returns its rows. It may be executed twice: if a connection is lost, it is tried again.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StatementFailure> {
        self.fold(sql, parameters, Vec::new, |mut rows, row| {
            rows.push(row);
            Ok(rows)
        })
        .await?
    }

    /// Executes a statement, and passes its rows to `add` as they arrive. Begins again with a new `start` if a connection is
    /// lost. Ends with the first error of `add`.
    pub(super) async fn fold<T, E>(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        start: impl Fn() -> T,
        add: impl Fn(T, Row) -> Result<T, E>,
    ) -> Result<Result<T, E>, StatementFailure> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let began = Instant::now();
        loop {
            let connection = match self.idle_connection() {
                Some(connection) => Ok(connection),
                None => self.database.connect(Purpose::Other).await,
            };
            let read = match connection {
                Ok(connection) => {
                    let read = fold_rows(&connection, sql, parameters, start(), &add).await;
                    if read.is_ok() {
                        self.idle.lock().push(connection);
                    }
                    read
                }
                Err(failure) => Err(failure),
            };
            match read {
                Err(failure) if is_tried_again(failure.kind) && began.elapsed() < RETRY_TIME => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Ok(_) | Err(_) => return read,
            }
        }
    }

    fn idle_connection(&self) -> Option<DatabaseConnection> {
        let mut idle = self.idle.lock();
        while let Some(connection) = idle.pop() {
            if !connection.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    /// Ends the connections that are not in use.
    pub(super) fn clear(&self) {
        self.idle.lock().clear();
    }
}

async fn fold_rows<T, E>(
    connection: &DatabaseConnection,
    sql: &str,
    parameters: &[Parameter<'_>],
    start: T,
    add: impl Fn(T, Row) -> Result<T, E>,
) -> Result<Result<T, E>, StatementFailure> {
    let rows = connection.stream(TIME_MAX, sql, parameters).await?;
    let mut rows = std::pin::pin!(rows);
    let mut folded = start;
    loop {
        let next = tokio::time::timeout(TIME_MAX, rows.try_next()).await;
        let Some(row) = next.map_err(|_| StatementFailure::timed_out(TIME_MAX))?? else {
            return Ok(Ok(folded));
        };
        folded = match add(folded, row) {
            Ok(folded) => folded,
            Err(error) => return Ok(Err(error)),
        };
    }
}

fn is_tried_again(kind: StatementFailureKind) -> bool {
    match kind {
        StatementFailureKind::Lost | StatementFailureKind::Again => true,
        StatementFailureKind::Exhausted
        | StatementFailureKind::Full
        | StatementFailureKind::Conflict
        | StatementFailureKind::Refused
        | StatementFailureKind::Value => false,
    }
}
