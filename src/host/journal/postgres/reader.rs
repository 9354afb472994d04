//! Read access to a journal for commands, beside the hosts that use it.

use std::sync::Arc;

use super::super::{JournalEntry, JournalError, SessionQuery, SessionSummary};
use super::connection::{Database, Purpose};
use super::pool::ConnectionPool;
use super::{reads, schema};
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

/// Reads the journal in a PostgreSQL database. It registers no host.
///
/// ```no_run
/// use callsheet::journal::{JournalError, PostgresReader, SessionQuery};
///
/// # async fn list() -> Result<(), JournalError> {
/// let journal = PostgresReader::open("postgres://callsheet@10.0.0.9/callsheet").await?;
/// for session in journal.list(&SessionQuery::default()).await? {
///     println!("{}: {} records", session.id, session.seq.0);
/// }
/// # Ok(())
/// # }
/// ```
pub struct PostgresReader {
    database: Arc<Database>,
    pool: ConnectionPool,
}

impl PostgresReader {
    /// Connects to a database. The connections are tasks of the current Tokio runtime.
    ///
    /// # Errors
    /// If the URL is wrong, the server cannot be reached, or the database has no journal that this version can read.
    pub async fn open(url: &str) -> Result<Self, JournalError> {
        let database = Arc::new(Database::parse(url)?);
        let mut connection = database.open(Purpose::Other).await?;
        schema::check(&mut connection, &database).await?;
        let pool = ConnectionPool::new(Arc::clone(&database));
        Ok(Self { database, pool })
    }

    /// Returns a session's entries after `after`, in order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn read(
        &self,
        session: &SessionId,
        after: Seq,
    ) -> Result<Vec<JournalEntry>, JournalError> {
        reads::read(&self.pool, session, after, usize::MAX).await
    }

    /// Returns the text that was stored under a key.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn document(&self, key: &str) -> Result<Option<String>, JournalError> {
        reads::document(&self.pool, key).await
    }

    /// Returns a stored session, or `None` if there is none with this id.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn find(&self, session: &SessionId) -> Result<Option<SessionSummary>, JournalError> {
        reads::find(&self.pool, session).await
    }

    /// Returns the stored sessions that a query asks for.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn list(&self, listing: &SessionQuery) -> Result<Vec<SessionSummary>, JournalError> {
        reads::list(&self.pool, listing).await
    }

    /// Returns the number of bytes of the tables.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn bytes(&self) -> Result<u64, JournalError> {
        reads::count(&self.pool).await.map(|(_, bytes)| bytes)
    }

    /// Returns the URL of the database without its password.
    #[must_use]
    pub fn name(&self) -> &str {
        self.database.name()
    }
}

impl std::fmt::Debug for PostgresReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let database = self.database.name();
        f.debug_struct("PostgresReader").field("database", &database).finish_non_exhaustive()
    }
}
