//! A pool of read-only connections. Reads do not wait for writes.

use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;

use super::super::JournalError;
use super::query::QueryError;
use super::{database, errors};

/// Maximum number of concurrent reads. Further reads wait.
const CONNECTIONS_MAX: usize = 4;

/// The read-only connections to one database.
#[derive(Debug)]
pub(super) struct ReadConnections {
    file: PathBuf,
    pool: Mutex<ConnectionPool>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct ConnectionPool {
    idle: Vec<Connection>,
    lent: usize,
    /// True while all connections must be closed.
    suspended: bool,
    closed: bool,
}

impl ReadConnections {
    pub(super) fn new(file: PathBuf) -> Self {
        let (pool, given_back) = (Mutex::default(), Condvar::new());
        Self { file, pool, given_back }
    }

    /// Runs a query.
    pub(super) fn run<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, QueryError>,
    ) -> Result<T, JournalError> {
        let idle = self.lend()?;
        // If the query panics, the permit is returned without a connection.
        let mut lent = LentConnection { readers: self, connection: None };
        let connection = match idle {
            Some(connection) => connection,
            None => database::open_reading(&self.file)
                .map_err(|error| errors::read_error(&self.file, &error))?,
        };
        let result = query(&connection);
        lent.connection = Some(connection);
        result.map_err(|error| error.read_error(&self.file))
    }

    /// Closes idle connections, and the others when they are returned.
    pub(super) fn close(&self) {
        let idle = {
            let mut pool = self.pool.lock();
            pool.closed = true;
            std::mem::take(&mut pool.idle)
        };
        self.given_back.notify_all();
        drop(idle);
    }

    /// Closes all connections, runs the work, and then admits reads again. Waits for the reads in progress.
    pub(super) fn while_closed<T>(&self, work: impl FnOnce() -> T) -> T {
        {
            let mut pool = self.pool.lock();
            pool.suspended = true;
            pool.idle.clear();
            while pool.lent > 0 {
                self.given_back.wait(&mut pool);
            }
        }
        let result = work();
        self.pool.lock().suspended = false;
        self.given_back.notify_all();
        result
    }

    /// Acquires a permit, and an idle connection if there is one.
    fn lend(&self) -> Result<Option<Connection>, JournalError> {
        let mut pool = self.pool.lock();
        while (pool.lent >= CONNECTIONS_MAX || pool.suspended) && !pool.closed {
            self.given_back.wait(&mut pool);
        }
        if pool.closed {
            return Err(JournalError::Closed);
        }
        pool.lent += 1;
        Ok(pool.idle.pop())
    }
}

/// The permit of a read.
struct LentConnection<'r> {
    readers: &'r ReadConnections,
    connection: Option<Connection>,
}

impl Drop for LentConnection<'_> {
    fn drop(&mut self) {
        let mut pool = self.readers.pool.lock();
        if pool.suspended {
            drop(self.connection.take());
        } else if !pool.closed {
            pool.idle.extend(self.connection.take());
        }
        pool.lent -= 1;
        drop(pool);
        self.readers.given_back.notify_all();
    }
}
