//! A pool of read-only connections. Reads wait for the writer only while it reopens the database.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::time::Instant;

use super::super::JournalError;
use super::query::QueryError;
use super::{database, errors};

/// Maximum number of concurrent reads. Further reads wait.
const CONNECTIONS_MAX: usize = 4;

/// The duration from which a read is long.
const LONG_READ: Duration = Duration::from_secs(1);

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
    /// The reads in progress: when each began, and its number.
    reads: BTreeSet<(Instant, u64)>,
    next_read: u64,
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
        let (read, idle) = self.acquire()?;
        // If the query panics, the permit is returned without a connection.
        let mut permit = ReadPermit { readers: self, read, connection: None };
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

    /// Returns the time for which the longest read in progress has lasted, if that is more than a moment.
    pub(super) fn longest_read(&self) -> Option<Duration> {
        let began = self.pool.lock().reads.first()?.0;
        Some(began.elapsed()).filter(|time| *time >= LONG_READ)
    }

    /// Closes all connections, runs the work, and admits reads again, also if the work panics. Blocks until
    /// the reads in progress have ended.
    pub(super) fn while_suspended<T>(&self, work: impl FnOnce() -> T) -> T {
        let _suspension = Suspension { readers: self };
        {
            let mut pool = self.pool.lock();
            pool.suspended = true;
            pool.idle.clear();
            while !pool.reads.is_empty() {
                self.returned.wait(&mut pool);
            }
        }
        work()
    }

    /// Acquires a permit, and an idle connection if there is one. Blocks like [`Self::run`].
    ///
    /// # Errors
    /// If the pool is closed.
    fn acquire(&self) -> Result<((Instant, u64), Option<Connection>), JournalError> {
        let mut pool = self.pool.lock();
        while (pool.reads.len() >= CONNECTIONS_MAX || pool.suspended) && !pool.closed {
            self.returned.wait(&mut pool);
        }
        if pool.closed {
            return Err(JournalError::Closed);
        }
        let read = (Instant::now(), pool.next_read);
        pool.next_read += 1;
        pool.reads.insert(read);
        Ok((read, pool.idle.pop()))
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
    read: (Instant, u64),
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
        pool.reads.remove(&self.read);
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
