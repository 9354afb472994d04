//! The journal that a command reads: in a data directory, or in a PostgreSQL database.

use std::path::{Path, PathBuf};

use super::error::CommandError;
use super::setup::{self, CONFIG_HELP, DATA_DIR_HELP};
#[cfg(feature = "postgres")]
use callsheet_host::journal::PostgresReader;
use callsheet_host::journal::{
    JournalEntry, JournalError, JournalReader, SessionQuery, SessionSummary,
};
use callsheet_values::config::{Config, JournalEngine, SecretSource};
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

/// Flags that locate the journal.
#[derive(Debug, clap::Args)]
pub(super) struct JournalLocation {
    #[arg(long, value_name = "DIR", help = DATA_DIR_HELP)]
    data_dir: Option<PathBuf>,
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// The environment variable with the URL of the PostgreSQL database that has the journal.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["data_dir", "config"])]
    database_url_env: Option<String>,
}

/// The place of a journal.
pub(super) enum JournalPlace {
    /// In SQLite in this directory.
    Directory(PathBuf),
    /// In the database whose URL this variable holds.
    Database(SecretSource),
}

impl JournalLocation {
    /// Returns the place that the flags or the configuration name.
    pub(super) fn place(&self) -> Result<JournalPlace, CommandError> {
        match (&self.database_url_env, &self.data_dir) {
            (Some(name), _) => Ok(JournalPlace::Database(SecretSource::Variable(name.clone()))),
            (None, Some(dir)) => Ok(JournalPlace::Directory(dir.clone())),
            (None, None) => {
                Ok(JournalPlace::of(&setup::load_without_keys(self.config.as_deref())?.config))
            }
        }
    }

    /// Opens the journal.
    pub(super) fn open(&self) -> Result<StoredJournal, CommandError> {
        self.place()?.open()
    }
}

impl JournalPlace {
    /// Returns the place of the configured journal.
    pub(super) fn of(config: &Config) -> Self {
        match config.journal.engine {
            JournalEngine::Postgres => {
                Self::Database(SecretSource::Variable(config.journal.url_env.clone()))
            }
            JournalEngine::Sqlite | JournalEngine::Memory => {
                Self::Directory(config.host.data_dir.clone())
            }
        }
    }

    /// Returns the directory. A journal in a database has none: `command` says what to use for it.
    pub(super) fn directory(self, command: &str) -> Result<PathBuf, CommandError> {
        match self {
            Self::Directory(dir) => Ok(dir),
            Self::Database(source) => Err(CommandError::usage(format!(
                "the journal is in the PostgreSQL database in {source}: {command}"
            ))),
        }
    }

    pub(super) fn open(&self) -> Result<StoredJournal, CommandError> {
        match self {
            Self::Directory(dir) => StoredJournal::in_directory(dir).map_err(CommandError::usage),
            Self::Database(source) => {
                let url = source.read().map_err(CommandError::usage)?;
                StoredJournal::in_database(&url)
            }
        }
    }
}

/// A journal that is open for reading.
pub(super) enum StoredJournal {
    /// In a data directory.
    Directory {
        /// Reads the database.
        reader: JournalReader,
        /// The directory.
        dir: PathBuf,
    },
    /// In a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Database(PostgresReader),
}

/// Waits for a journal on this thread. Commands run on a runtime with several threads.
pub(super) fn wait<T>(read: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(read))
}

impl StoredJournal {
    pub(super) fn in_directory(dir: &Path) -> Result<Self, JournalError> {
        Ok(Self::Directory { reader: JournalReader::open(dir)?, dir: dir.to_owned() })
    }

    #[cfg(feature = "postgres")]
    fn in_database(url: &str) -> Result<Self, CommandError> {
        wait(PostgresReader::open(url)).map(Self::Database).map_err(CommandError::usage)
    }

    #[cfg(not(feature = "postgres"))]
    fn in_database(_: &str) -> Result<Self, CommandError> {
        Err(no_databases())
    }

    pub(super) fn find(&self, id: &SessionId) -> Result<Option<SessionSummary>, JournalError> {
        match self {
            Self::Directory { reader, .. } => reader.find(id),
            #[cfg(feature = "postgres")]
            Self::Database(reader) => wait(reader.find(id)),
        }
    }

    pub(super) fn list(&self, query: &SessionQuery) -> Result<Vec<SessionSummary>, JournalError> {
        match self {
            Self::Directory { reader, .. } => reader.list(query),
            #[cfg(feature = "postgres")]
            Self::Database(reader) => wait(reader.list(query)),
        }
    }

    /// Reads all entries of a session.
    pub(super) fn read(&self, id: &SessionId) -> Result<Vec<JournalEntry>, JournalError> {
        match self {
            Self::Directory { reader, .. } => reader.read(id, Seq(0)),
            #[cfg(feature = "postgres")]
            Self::Database(reader) => wait(reader.read(id, Seq(0))),
        }
    }

    pub(super) fn document(&self, key: &str) -> Result<Option<String>, JournalError> {
        match self {
            Self::Directory { reader, .. } => reader.document(key),
            #[cfg(feature = "postgres")]
            Self::Database(reader) => wait(reader.document(key)),
        }
    }

    /// Returns the problems of the database. A server checks its own.
    pub(super) fn check(&self) -> Result<Vec<String>, JournalError> {
        match self {
            Self::Directory { reader, .. } => {
                let findings = reader.check()?.into_iter();
                let file = reader.file().display();
                Ok(findings.map(|finding| format!("the database {file}: {finding}")).collect())
            }
            #[cfg(feature = "postgres")]
            Self::Database(_) => Ok(Vec::new()),
        }
    }

    /// Returns the directory, or the URL without its password.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Directory { dir, .. } => dir.display().to_string(),
            #[cfg(feature = "postgres")]
            Self::Database(reader) => reader.name().to_owned(),
        }
    }

    /// Returns the size of the database in bytes. 0 if it cannot be read.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Directory { reader, .. } => database_bytes(reader.file()),
            #[cfg(feature = "postgres")]
            Self::Database(reader) => wait(reader.bytes()).unwrap_or(0),
        }
    }
}

/// Returns the error of a command for a journal in a database.
#[cfg(not(feature = "postgres"))]
pub(super) fn no_databases() -> CommandError {
    CommandError::usage(
        "callsheet was built without its feature `postgres`: build it with `--features postgres`",
    )
}

/// Returns the size of a database file with its write-ahead log, in bytes.
pub(super) fn database_bytes(file: &Path) -> u64 {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    size(file) + size(Path::new(&log))
}
