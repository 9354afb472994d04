//! A pool of read-only connections. Reads wait for the writer only while it reopens the database.

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
    pool: Mutex<PoolState>,
    /// Notified when a permit is returned, when reads are admitted again, and when the pool is closed.
    returned: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<Connection>,
    /// The number of permits in use.
    in_use: usize,
    /// True while all connections must be closed. Reads wait until it is false.
    suspended: bool,
    /// True if no read is admitted any more.
    closed: bool,
}

impl ReadConnections {
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, pool: Mutex::default(), returned: Condvar::new() }
    }

    /// Runs a query on a connection of the pool, and opens one if none is idle. Blocks while reads are
    /// suspended or the maximum number of them is in progress.
    ///
    /// # Errors
    /// If the pool is closed, the database cannot be opened, or the query fails.
    pub(super) fn run<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, QueryError>,
    ) -> Result<T, JournalError> {
        let idle = self.acquire()?;
        // If the query panics, the permit is returned without a connection.
        let mut permit = ReadPermit { readers: self, connection: None };
        let connection = match idle {
            Some(connection) => connection,
            None => database::open_reading(&self.file)
                .map_err(|error| errors::read_error(&self.file, &error))?,
        };
        let result = query(&connection);
        permit.connection = Some(connection);
        result.map_err(|error| error.read_error(&self.file))
    }

    /// Closes the idle connections now, and the others when they are returned. Further reads fail.
    pub(super) fn close(&self) {
        let idle = {
            let mut pool = self.pool.lock();
            pool.closed = true;
            std::mem::take(&mut pool.idle)
        };
        self.returned.notify_all();
        drop(idle);
    }

    /// Closes all connections, runs the work, and admits reads again, also if the work panics. Blocks until
    /// the reads in progress have ended.
    pub(super) fn while_suspended<T>(&self, work: impl FnOnce() -> T) -> T {
        let _suspension = Suspension { readers: self };
        {
            let mut pool = self.pool.lock();
            pool.suspended = true;
            pool.idle.clear();
            while pool.in_use > 0 {
                self.returned.wait(&mut pool);
            }
        }
        work()
    }

    /// Acquires a permit, and an idle connection if there is one. Blocks like [`Self::run`].
    ///
    /// # Errors
    /// If the pool is closed.
    fn acquire(&self) -> Result<Option<Connection>, JournalError> {
        let mut pool = self.pool.lock();
        while (pool.in_use >= CONNECTIONS_MAX || pool.suspended) && !pool.closed {
            self.returned.wait(&mut pool);
        }
        if pool.closed {
            return Err(JournalError::Closed);
        }
        pool.in_use += 1;
        Ok(pool.idle.pop())
    }
}

/// Admits reads again when it is dropped.
struct Suspension<'r> {
    readers: &'r ReadConnections,
}

impl Drop for Suspension<'_> {
    fn drop(&mut self) {
        self.readers.pool.lock().suspended = false;
        self.readers.returned.notify_all();
    }
}

/// The permit of a read.
struct ReadPermit<'r> {
    readers: &'r ReadConnections,
    /// The connection that returns to the pool.
    connection: Option<Connection>,
}

impl Drop for ReadPermit<'_> {
    fn drop(&mut self) {
        let mut pool = self.readers.pool.lock();
        if pool.suspended {
            // `while_suspended` continues when no permit is in use. The connection must be closed by then.
            drop(self.connection.take());
        } else if !pool.closed {
            pool.idle.extend(self.connection.take());
        }
        // In a closed pool, the connection is closed after the lock is released: nothing waits for that.
        pool.in_use -= 1;
        drop(pool);
        self.readers.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn fail() {
        panic!("the work fails");
    }

    #[test]
    fn reads_are_admitted_after_a_panic_of_the_work() {
        let readers = ReadConnections::new(PathBuf::new());
        let suspend = || readers.while_suspended(fail);
        assert!(catch_unwind(AssertUnwindSafe(suspend)).is_err());
        assert!(!readers.pool.lock().suspended);
        assert!(readers.acquire().is_ok());
    }
}
