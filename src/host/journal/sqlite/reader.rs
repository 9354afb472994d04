//! Read access to a journal for commands, while a host uses it or after the host was stopped.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::{JournalEntry, JournalError, SessionQuery, SessionSummary};
use super::database::DatabaseKind;
use super::read_connections::ReadConnections;
use super::{backup, data_directory, database, errors, query};
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;

/// Maximum number of problems of each kind that [`JournalReader::check`] returns.
const FINDINGS_MAX: i64 = 100;

/// Reads the journal in a data directory of a running or stopped host.
///
/// ```
/// use callsheet::Seq;
/// use callsheet::journal::{JournalReader, SessionQuery};
///
/// # fn list() -> Result<(), callsheet::journal::JournalError> {
/// let journal = JournalReader::open("./callsheet-data".as_ref())?;
/// for session in journal.list(&SessionQuery::default())? {
///     let records = journal.read(&session.id, Seq(0))?;
///     println!("{}: {} records", session.id, records.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JournalReader {
    readers: ReadConnections,
    file: PathBuf,
}

impl JournalReader {
    /// Opens the journal in a data directory.
    ///
    /// # Errors
    /// If there is none, its write-ahead log is missing, or it cannot be read.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        let file = data_directory::database_path(dir);
        let open_error = |reason: String| JournalError::Open { path: file.clone(), reason };
        if let Err(error) = fs::metadata(&file) {
            return Err(open_error(format!(
                "{error}: name the data directory of a host that has run"
            )));
        }
        if database::lacks_log(&file) {
            return Err(open_error(errors::LOG_MISSING.to_owned()));
        }
        let readers = ReadConnections::new(file.clone());
        let connection =
            database::open_reading(&file).map_err(|error| errors::open_error(&file, &error))?;
        let problem = match database::check_kind(&connection, &file)? {
            DatabaseKind::Current => None,
            DatabaseKind::Empty => Some(
                "it is empty, without tables: if a host has stored sessions here, restore it from a \
                 backup; otherwise start the host once",
            ),
            DatabaseKind::Version1 | DatabaseKind::Version2 => {
                Some("an older callsheet has written it: start the host once, which converts it")
            }
        };
        if let Some(problem) = problem {
            return Err(open_error(problem.to_owned()));
        }
        database::check_size(&connection, &file)?;
        Ok(Self { readers, file })
    }

    /// Returns a session's entries after `after`, in order.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self, session: &SessionId, after: Seq) -> Result<Vec<JournalEntry>, JournalError> {
        self.readers.run(|connection| query::read(connection, session, after, usize::MAX))
    }

    /// Returns the text that was stored under a key.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn document(&self, key: &str) -> Result<Option<String>, JournalError> {
        self.readers.run(|connection| query::document(connection, key))
    }

    /// Returns a stored session, or `None` if there is none with this id.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn find(&self, session: &SessionId) -> Result<Option<SessionSummary>, JournalError> {
        self.readers.run(|connection| query::find(connection, session))
    }

    /// Returns stored sessions in the order of their ids.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn list(&self, listing: &SessionQuery) -> Result<Vec<SessionSummary>, JournalError> {
        self.readers.run(|connection| query::list(connection, listing))
    }

    /// Returns the number of stored sessions.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn count(&self) -> Result<usize, JournalError> {
        self.readers.run(query::count)
    }

    /// Checks the whole database and returns its problems, at most 100 of each kind.
    ///
    /// # Errors
    /// If it cannot be read at all.
    pub fn check(&self) -> Result<Vec<String>, JournalError> {
        self.readers.run(|connection| query::check(connection, FINDINGS_MAX))
    }

    /// Copies the journal to a directory that is missing or empty, beside a running host. The copy has all records
    /// that were stored before. Until it ends, the host cannot empty its write-ahead log.
    ///
    /// ```no_run
    /// use callsheet::journal::{JournalError, JournalReader, restore};
    ///
    /// # fn copy() -> Result<(), JournalError> {
    /// JournalReader::open("./callsheet-data".as_ref())?.back_up("./backup".as_ref())?;
    /// restore("./backup".as_ref(), "./restored-data".as_ref())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the directory is not empty, or the copy cannot be written. Then nothing is left of it.
    pub fn back_up(&self, dir: &Path) -> Result<(), JournalError> {
        let connection = database::open_reading(&self.file)
            .map_err(|error| errors::open_error(&self.file, &error))?;
        backup::back_up(&connection, dir)
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}
