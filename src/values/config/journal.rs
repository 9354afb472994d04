//! The configuration of the journal: `[journal]`.

use std::time::Duration;

use super::key_table::{key_table, named_values};

/// The default of [`JournalConfig::url_env`].
const URL_ENV: &str = "CALLSHEET_DATABASE_URL";

key_table! {
    /// The configuration of the journal.
    ///
    /// ```
    /// use callsheet::config::Config;
    ///
    /// let config = Config::default().with(|config| {
    ///     config.journal.set_relaxed_durability(true);
    ///     config.journal.set_manual_resume(true);
    /// });
    /// assert!(config.journal.keep_idle.is_none());
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub struct JournalConfig {
        /// The storage engine. With `memory`, sessions end with the host. `postgres` is there if callsheet was built with its
        /// feature `postgres`.
        engine: JournalEngine = JournalEngine::Sqlite, Any;
        /// With `postgres`: the environment variable that holds the URL of the database, with its password:
        /// `postgres://user:password@host:5432/database`.
        url_env: String = URL_ENV.to_owned(), Filled;
        /// With `postgres`: the time after the last heartbeat of a host from which another one may use the database.
        lease: Duration = Duration::from_secs(10), Within(Duration::from_secs(2), Duration::from_secs(600));
        /// With `postgres`: the time limit of a write. Then the connection counts as lost, and the write is tried again.
        write_timeout: Duration = Duration::from_secs(2), Within(Duration::from_millis(100), Duration::from_secs(60));
        /// The durability that a run waits for. With `relaxed`, runs do not wait for the disk; clients still do.
        durability: Durability = Durability::Strict, Any;
        /// The handling of runs that were in progress when the host ended. With `manual`, they wait for a request that
        /// resumes them.
        resume: Resume = Resume::Auto, Any;
        /// The time for which writes wait while another program has locked the database, or while a database server
        /// cannot be written. Then their runs fail.
        busy_timeout: Duration = Duration::from_secs(60), Any;
        /// The time after which a session without activity is deleted, once it has left memory (`idle_after`).
        keep_idle: Option<Duration> = None, Limit;
        /// Maximum number of stored sessions, asleep or awake, with those of sub-agents. Further ones are refused. From 90 %
        /// on `/readyz` and an alert say so. 0: no limit.
        max_stored_sessions: usize = 0, Any;
        /// With `sqlite`: bytes of the disk that are kept free, so that sessions can be deleted when it is full. 0: none.
        reserve_bytes: u64 = 4 << 20, Any;
    }
}

impl JournalConfig {
    /// Lets a run continue as soon as its records survive a crash of the process. By default it waits until
    /// they survive a crash of the machine, as watchers and clients that wait for an answer always do.
    pub fn set_relaxed_durability(&mut self, on: bool) {
        self.durability = if on { Durability::Relaxed } else { Durability::Strict };
    }

    /// Resumes interrupted runs on request, by `SessionHandle::resume`. By
    /// default they are resumed when the host starts.
    pub fn set_manual_resume(&mut self, on: bool) {
        self.resume = if on { Resume::Manual } else { Resume::Auto };
    }
}

/// A storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalEngine {
    /// In a SQLite database in the data directory.
    Sqlite,
    /// In memory. Records are lost when the host ends.
    Memory,
    /// In a PostgreSQL database.
    Postgres,
}

/// The durability that a run waits for before it continues. Watchers and clients that wait for an
/// answer always wait for an fsync.
///
/// [`JournalConfig`](crate::config::JournalConfig) shows its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Records survive a crash of the machine.
    Strict,
    /// Records survive a crash of the process.
    Relaxed,
}

/// The handling of runs that were in progress when the host ended.
///
/// Set in [`JournalConfig::resume`](crate::config::JournalConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resume {
    /// Runs are resumed when the host starts.
    Auto,
    /// Runs are resumed on request.
    Manual,
}

named_values!(
    JournalEngine,
    [("sqlite", Self::Sqlite), ("memory", Self::Memory), ("postgres", Self::Postgres)]
);
named_values!(Durability, [("strict", Self::Strict), ("relaxed", Self::Relaxed)]);
named_values!(Resume, [("auto", Self::Auto), ("manual", Self::Manual)]);
