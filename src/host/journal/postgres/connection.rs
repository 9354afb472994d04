//! Connections to the database: the URL, time limits, and what is set for each connection.

use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row, RowStream, Statement};

use super::super::JournalError;
use super::errors::{self, StatementFailure};
use super::tls::DatabaseTls;

/// Time limit of a connection to one address. With several addresses each has it.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// The system notices a connection without a peer after at most this time, while nothing is sent and while something
/// is. Each of both limits covers one case.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 2;
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// The value of a parameter, with its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A database, and how to connect to it.
#[derive(Clone)]
pub(super) struct Database {
    config: Config,
    tls: DatabaseTls,
    /// The URL without password, for errors and the log.
    name: String,
}

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Stores batches, with or without a wait for the disk at each commit.
    Write { waits_for_disk: bool },
    /// Reads, and everything else. Each commit waits for the disk.
    Other,
}

impl Database {
    /// Parses the URL of a database.
    ///
    /// # Errors
    /// If it is wrong, or names no host or database.
    pub(super) fn parse(url: &str) -> Result<Self, JournalError> {
        let invalid = |reason: &str| {
            errors::opening("in PostgreSQL", format!("the URL of the database {reason}"))
        };
        let mut config = Config::from_str(url).map_err(|error| {
            // The error may quote a part of the password.
            let is_certificate = errors::text(&error).contains("sslrootcert");
            invalid(if is_certificate {
                "has sslrootcert: name the file in the environment variable SSL_CERT_FILE instead"
            } else {
                "cannot be parsed: it is like postgres://user:password@host:5432/database; special characters of the \
                 user and the password are written as %XX"
            })
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(invalid("names no host"));
        }
        let Some(database) = config.get_dbname().map(str::to_owned) else {
            return Err(invalid("names no database: add it, as in postgres://user@host/callsheet"));
        };
        let name = name(&config, &database);
        config
            .application_name(config.get_application_name().unwrap_or("callsheet").to_owned())
            .connect_timeout(CONNECT_TIME_MAX)
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES)
            .tcp_user_timeout(USER_TIMEOUT);
        Ok(Self { config, tls: DatabaseTls::new(), name })
    }

    /// Returns the URL without password.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Connects, and sets what a connection of this purpose needs.
    pub(super) async fn connect(
        &self,
        purpose: Purpose,
    ) -> Result<DatabaseConnection, StatementFailure> {
        self.try_connect(purpose).await.map_err(|error| match error {
            DatabaseConnectError::TimedOut(limit) => StatementFailure::timed_out(limit),
            DatabaseConnectError::Postgres(error) => StatementFailure::from(error),
        })
    }

    /// Connects, and describes a failure as one of opening the journal.
    pub(super) async fn open(&self, purpose: Purpose) -> Result<DatabaseConnection, JournalError> {
        self.try_connect(purpose).await.map_err(|error| match error {
            DatabaseConnectError::TimedOut(limit) => {
                let reason = format!("the server has not answered within {limit:?}: check the URL");
                errors::opening(&self.name, reason)
            }
            DatabaseConnectError::Postgres(error) => errors::open_error(&self.name, &error),
        })
    }

    async fn try_connect(
        &self,
        purpose: Purpose,
    ) -> Result<DatabaseConnection, DatabaseConnectError> {
        let addresses = self.config.get_hosts().len().max(self.config.get_hostaddrs().len());
        let limit = CONNECT_TIME_MAX * u32::try_from(addresses + 1).unwrap_or(u32::MAX);
        let connecting = async {
            let (client, connection) = self.config.connect(self.tls.clone()).await?;
            // The client reports its end.
            let driver =
                tokio::runtime::Handle::current().spawn(async move { drop(connection.await) });
            let connection = DatabaseConnection { client, driver };
            connection.client.batch_execute(&settings(purpose)).await?;
            Ok(connection)
        };
        let connected = tokio::time::timeout(limit, Box::pin(connecting)).await;
        connected
            .map_err(|_| DatabaseConnectError::TimedOut(limit))?
            .map_err(DatabaseConnectError::Postgres)
    }
}

enum DatabaseConnectError {
    TimedOut(Duration),
    Postgres(tokio_postgres::Error),
}

/// Returns the settings of a connection. The plans of the statements use the indexes, also before the server knows how
/// large the tables are.
fn settings(purpose: Purpose) -> String {
    // The host has limits of its own. These free what a dead host holds.
    let (commit, plans, limit) = match purpose {
        Purpose::Write { waits_for_disk: true } => ("on", "force_generic_plan", "30s"),
        Purpose::Write { waits_for_disk: false } => ("off", "force_generic_plan", "30s"),
        Purpose::Other => ("on", "force_custom_plan", "60s"),
    };
    format!(
        "SET statement_timeout = '{limit}'; SET idle_in_transaction_session_timeout = '5s';
         SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
         SET tcp_user_timeout = '10s';
         SET synchronous_commit = {commit}; SET plan_cache_mode = {plans};
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
    )
}

/// A connection. Dropping it ends it at once.
pub(super) struct DatabaseConnection {
    client: Client,
    driver: JoinHandle<()>,
}

impl DatabaseConnection {
    /// Executes a statement once, and returns its rows.
    pub(super) async fn query(
        &self,
        limit: Duration,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StatementFailure> {
        within(limit, self.client.query_typed(sql, parameters)).await
    }

    /// Executes a statement once, and returns its rows as they arrive.
    pub(super) async fn stream(
        &self,
        limit: Duration,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<RowStream, StatementFailure> {
        let parameters = parameters.iter().map(|(value, kind)| (*value, kind.clone()));
        within(limit, self.client.query_typed_raw(sql, parameters.collect::<Vec<_>>())).await
    }

    /// Executes a prepared statement, and returns its rows.
    pub(super) async fn execute(
        &self,
        limit: Duration,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StatementFailure> {
        within(limit, self.client.query(statement, parameters)).await
    }

    pub(super) async fn prepare(
        &self,
        limit: Duration,
        sql: &str,
    ) -> Result<Statement, StatementFailure> {
        within(limit, self.client.prepare(sql)).await
    }

    /// Returns true if the connection is known to be lost.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns the client, for transactions.
    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for DatabaseConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for DatabaseConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseConnection")
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// Waits for a statement for at most `limit`. The connection cannot be used after a limit was reached.
async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StatementFailure> {
    let answered = tokio::time::timeout(limit, statement).await;
    Ok(answered.map_err(|_| StatementFailure::timed_out(limit))??)
}

fn name(config: &Config, database: &str) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        #[cfg(unix)]
        Host::Unix(path) => format!("{}:{}", path.display(), port(at)),
    });
    let mut hosts: Vec<String> = hosts.collect();
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(ToString::to_string));
    }
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    format!("postgres://{user}{}/{database}", hosts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_database_has_no_password() {
        let name = |url: &str| Database::parse(url).map(|database| database.name);
        for (url, expect) in [
            (
                "postgres://app:geheim@db.example/callsheet",
                "postgres://app@db.example:5432/callsheet",
            ),
            ("postgresql://app:geheim@a:1,b:2/x?sslmode=require", "postgres://app@a:1,b:2/x"),
            (
                "host=10.0.0.1 port=7 user=app password=geheim dbname=x",
                "postgres://app@10.0.0.1:7/x",
            ),
        ] {
            assert_eq!(name(url).as_deref(), Ok(expect));
        }
    }

    #[test]
    fn a_wrong_url_says_what_is_wrong_without_the_password() {
        for (url, expect) in [
            ("postgres://app:geheim@db.example", "names no database"),
            ("postgres://app:geheim@db.example/", "names no database"),
            ("postgres:///callsheet", "names no host"),
            ("postgres://app:geheim@db.example/callsheet?geheim=1", "cannot be parsed"),
            ("postgres://app:geheim@db.example:port/callsheet", "cannot be parsed"),
            ("geheim", "cannot be parsed"),
            ("postgres://app@db/x?sslrootcert=ca.pem", "SSL_CERT_FILE"),
        ] {
            let error = Database::parse(url).map(|database| database.name).unwrap_err().to_string();
            assert!(error.contains(expect) && !error.contains("eim"), "{url}: {error}");
        }
    }
}
