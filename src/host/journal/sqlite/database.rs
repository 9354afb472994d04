//! Opens the database and checks it. Creates its tables, or converts those of an earlier version (migration); refuses
//! those of a later one.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior};

use super::super::{JournalError, unix_ms};
use super::errors::{self, RESTORE_HINT};
use super::{data_directory, pages, query};
use callsheet_values::types::SessionId;

/// The application id in the file: `CSHJ`.
const APPLICATION_ID: i32 = 0x4353_484a;

/// The version of the schema. In version 1 every row was one record, and forks had copies of records. In version 2
/// the records of a row had one time, and the table of sessions had a column `running`.
const SCHEMA_VERSION: i32 = 3;

/// The schema. Records are in a rowid table in the order of insertion, so a transaction writes few
/// pages even for many sessions. A row has consecutive records (see `rows`), and `seq` is the sequence number of the
/// last one. The index finds it by session and sequence number.
///
/// The sessions that run are in a table of their own, because each run adds its session and removes it: the table has
/// few pages.
///
/// A fork has no copies of the records that it shares: its first records, up to `prefix`, are those of `origin`.
///
/// If the table `copies_erased` exists, only pages in the write-ahead log may have copies of deleted rows. It has no
/// rows.
const SCHEMA: &str = "
    CREATE TABLE sessions(
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        opened INTEGER NOT NULL,
        origin INTEGER,
        prefix INTEGER NOT NULL DEFAULT 0,
        metadata TEXT
    ) STRICT;
    CREATE INDEX forks ON sessions(origin, prefix) WHERE origin IS NOT NULL;
    CREATE TABLE running(session INTEGER PRIMARY KEY) STRICT;
    CREATE TABLE records(
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        time INTEGER NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX records_by_place ON records(session, seq);
    CREATE TABLE copies_erased(done INTEGER) STRICT;
";

/// The texts that belong to no session, with the times at which they were stored, and the sessions whose records
/// name them. The tables are made with the first text, or with the first record that names one. The sessions that use
/// the texts of an earlier program are not known, so these are used by number 0, which no session has.
const DOCUMENT_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS documents(key TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL) STRICT;
    ALTER TABLE documents ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE document_uses(
        session INTEGER NOT NULL, key TEXT NOT NULL, PRIMARY KEY(session, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX document_uses_by_key ON document_uses(key);
    INSERT INTO document_uses SELECT 0, key FROM documents;
";

/// Returns whether only pages in the write-ahead log may have copies of deleted rows.
pub(super) fn are_copies_erased(connection: &Connection) -> rusqlite::Result<bool> {
    query::has_table(connection, "copies_erased")
}

/// Notes that only pages in the write-ahead log may have copies of deleted rows.
pub(super) fn note_copies_erased(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("CREATE TABLE IF NOT EXISTS copies_erased(done INTEGER) STRICT")
}

/// Creates the tables of documents, or converts that of an earlier program, unless they exist in the present form.
pub(super) fn create_document_tables(connection: &Connection) -> rusqlite::Result<()> {
    if has_document_tables(connection)? {
        return Ok(());
    }
    connection.execute_batch(DOCUMENT_TABLES)
}

/// Returns true if the tables of documents exist in the present form.
pub(super) fn has_document_tables(connection: &Connection) -> rusqlite::Result<bool> {
    query::has_table(connection, "document_uses")
}

/// Stores a document, or replaces it. Databases of earlier programs have no table for it.
pub(super) fn put_document(
    connection: &mut Connection,
    key: &str,
    text: &str,
    used_by: Option<&SessionId>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    create_document_tables(&transaction)?;
    let insert = "INSERT OR REPLACE INTO documents(key, text, stored) VALUES (?1, ?2, ?3)";
    transaction.execute(insert, (key, text, unix_ms()))?;
    if let Some(session) = used_by {
        let insert = "INSERT OR IGNORE INTO document_uses(session, key) SELECT number, ?2 FROM sessions WHERE id = ?1";
        transaction.execute(insert, (session.as_str(), key))?;
    }
    transaction.commit()
}

/// The key of the document that a database has while a host uses it, and after a crash: the database is whole only
/// with its write-ahead log.
const LOG_IN_USE: &str = "log_in_use";

/// Returns whether the database is whole only with its write-ahead log.
pub(super) fn needs_log(connection: &Connection) -> rusqlite::Result<bool> {
    let select = "SELECT count(*) FROM documents WHERE key = ?1";
    Ok(has_document_tables(connection)?
        && connection.query_row(select, [LOG_IN_USE], |row| Ok(row.get::<_, i64>(0)? > 0))?)
}

/// Returns whether the database is whole only with a log that does not exist. Creates no log.
pub(super) fn lacks_log(file: &Path) -> bool {
    if data_directory::wal_path(file).exists() {
        return false;
    }
    // The problem of a file that cannot be read is found when it is opened.
    open_immutable(file).and_then(|connection| needs_log(&connection)).unwrap_or(false)
}

/// Sets whether the log stays when the last connection is closed. Otherwise SQLite moves it to the database, and
/// removes it.
pub(super) fn set_log_kept(connection: &Connection, is_kept: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, is_kept).map(drop)
}

/// Notes, in the database itself, that it is whole only with its log. If another connection reads the log, the note may
/// stay there.
pub(super) fn note_log(connection: &mut Connection) -> rusqlite::Result<()> {
    put_document(connection, LOG_IN_USE, "", None)?;
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Notes that the database is whole without a log, once the log is moved.
pub(super) fn forget_log(connection: &Connection) -> rusqlite::Result<()> {
    if needs_log(connection)? {
        connection.execute("DELETE FROM documents WHERE key = ?1", [LOG_IN_USE])?;
    }
    Ok(())
}

/// Converts the tables of version 1 to those of version 2.
const CONVERSION_FROM_1: &str = "
    ALTER TABLE sessions ADD COLUMN origin INTEGER;
    ALTER TABLE sessions ADD COLUMN prefix INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX forks ON sessions(origin, prefix) WHERE origin IS NOT NULL;
";

/// Converts the tables of version 2.
const CONVERSION_FROM_2: &str = "
    CREATE TABLE running(session INTEGER PRIMARY KEY) STRICT;
    INSERT INTO running SELECT number FROM sessions WHERE running = 1;
    DROP INDEX running_sessions;
    ALTER TABLE sessions DROP COLUMN running;
";

/// Earlier programs added this column with the first session that had metadata.
const ADD_METADATA_COLUMN: &str = "ALTER TABLE sessions ADD COLUMN metadata TEXT";

/// Returns true if the table of sessions has a column for metadata.
fn has_metadata_column(connection: &Connection) -> rusqlite::Result<bool> {
    let columns = "SELECT count(*) FROM pragma_table_info('sessions') WHERE name = 'metadata'";
    connection.query_row(columns, [], |row| row.get(0))
}

/// Time to wait for a lock of another program: when the database is opened, and for a read. A write waits in periods.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const WRITE_WAIT_PERIOD: Duration = Duration::from_secs(1);

/// The size to which SQLite shrinks the write-ahead log when it begins it anew. A log that is usually not longer keeps its
/// space on the disk, so that its syncs are fast.
const LOG_BYTES_KEPT: u32 = 40 << 20;

/// The first bytes of every SQLite database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Opens the database for the writer, checks it, and creates or converts its tables.
pub(super) fn open(file: &Path) -> Result<Connection, JournalError> {
    check_beginning(file)?;
    let open_error = |error| errors::open_error(file, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags).map_err(open_error)?;
    connection.busy_timeout(OPEN_TIMEOUT).map_err(open_error)?;
    // Closing must not checkpoint the log into a damaged database.
    set_log_kept(&connection, true).map_err(open_error)?;
    let kind = check_kind(&connection, file)?;
    check_size(&connection, file)?;
    if matches!(kind, DatabaseKind::Empty) {
        // It cannot be changed later without a copy of the whole database.
        connection.pragma_update(None, "auto_vacuum", "incremental").map_err(open_error)?;
    }
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(open_error)?;
    if mode != "wal" {
        let reason = format!(
            "its write-ahead log cannot be used here ({mode}): use a data directory on a local disk"
        );
        return Err(JournalError::Open { path: file.to_owned(), reason });
    }
    // New tables are durable before the host goes on.
    connection.pragma_update(None, "synchronous", "full").map_err(open_error)?;
    connection.pragma_update(None, "secure_delete", true).map_err(open_error)?;
    // In KiB. If a transaction moves rows between pages, its commit looks at every cached page
    // (`pcache1Truncate` in sqlite3.c), so a larger cache costs time.
    connection.pragma_update(None, "cache_size", -2_048).map_err(open_error)?;
    // The writer makes the checkpoints itself.
    connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(open_error)?;
    let limit = "journal_size_limit";
    let limited = connection.pragma_update_and_check(None, limit, LOG_BYTES_KEPT, |_| Ok(()));
    limited.map_err(open_error)?;
    keep_plans(&connection).map_err(open_error)?;
    let changes: &[&str] = match kind {
        DatabaseKind::Empty => &[SCHEMA],
        DatabaseKind::Version1 => &[CONVERSION_FROM_1, CONVERSION_FROM_2],
        DatabaseKind::Version2 => &[CONVERSION_FROM_2],
        DatabaseKind::Current => &[],
    };
    if !changes.is_empty() {
        change_tables(&mut connection, changes).map_err(open_error)?;
    }
    check_ends(&connection, file)?;
    set_log_kept(&connection, false).map_err(open_error)?;
    connection.busy_timeout(WRITE_WAIT_PERIOD).map_err(open_error)?;
    // From here on the writer syncs the log.
    connection.pragma_update(None, "synchronous", "normal").map_err(open_error)?;
    Ok(connection)
}

/// Moves all records of the write-ahead log to the database, also those that an earlier checkpoint has moved, syncs
/// the database, and empties the log.
///
/// With this locking mode SQLite reads the log itself, not what programs have noted about it in shared memory
/// (<https://www.sqlite.org/wal.html#noshm>), and no other program can have the database open.
pub(super) fn move_whole_log(file: &Path) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    set_log_kept(&connection, true)?;
    connection.busy_timeout(READ_TIMEOUT)?;
    connection.pragma_update_and_check(None, "locking_mode", "exclusive", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    // The first query opens the log.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Opens a read-only connection.
///
/// A read-only connection needs the log and the shared-memory file too. If they do not exist and
/// cannot be created, no host is running, and a stopped host has emptied its log: then the database
/// file alone is complete. A killed host leaves its log; in a read-only directory that is an error.
pub(super) fn open_reading(file: &Path) -> rusqlite::Result<Connection> {
    let opened = open_reading_with_log(file);
    match opened.as_ref().map_err(rusqlite::Error::sqlite_error_code) {
        Err(Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
            if !data_directory::wal_path(file).exists() =>
        {
            open_immutable(file)
        }
        Ok(_) | Err(_) => opened,
    }
}

/// Opens a read-only connection to the database file alone.
fn open_immutable(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(immutable(file), flags)
}

fn open_reading_with_log(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(READ_TIMEOUT)?;
    keep_plans(&connection)?;
    // The first query opens the log.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Disables replanning. Otherwise SQLite plans a statement again for some bound values
/// (<https://www.sqlite.org/queryplanner-ng.html#qpstab>), which takes longer than the statements
/// themselves.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(32);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Returns the URI of an immutable file.
fn immutable(file: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in file.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*byte));
            }
            // Writing to a string cannot fail.
            other => drop(write!(uri, "%{other:02X}")),
        }
    }
    uri + "?immutable=1"
}

/// Creates or converts the tables.
fn change_tables(connection: &mut Connection, changes: &[&str]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for statements in changes {
        transaction.execute_batch(statements)?;
    }
    if !has_metadata_column(&transaction)? {
        transaction.execute_batch(ADD_METADATA_COLUMN)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}

/// Checks the file header. SQLite treats an empty file as an empty database, and reads others only
/// at the first query.
fn check_beginning(path: &Path) -> Result<(), JournalError> {
    let refused = |reason: String| Err(JournalError::Open { path: path.to_owned(), reason });
    let mut begin = Vec::new();
    match File::open(path).and_then(|file| file.take(16).read_to_end(&mut begin)) {
        Ok(0) => Ok(()),
        Ok(_) if begin == MAGIC => Ok(()),
        Ok(_) => refused(format!("it is not a SQLite database: {RESTORE_HINT}")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => refused(format!("{error}: let this user read and write it")),
    }
}

/// A database of this program.
pub(super) enum DatabaseKind {
    /// It has no tables.
    Empty,
    /// Its tables have version 1 and must be converted.
    Version1,
    /// Its tables have version 2 and must be converted.
    Version2,
    Current,
}

/// Checks that the database belongs to this program.
pub(super) fn check_kind(
    connection: &Connection,
    file: &Path,
) -> Result<DatabaseKind, JournalError> {
    let open_error = |error| errors::open_error(file, &error);
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let application = number("application_id").map_err(open_error)?;
    let version = number("user_version").map_err(open_error)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(open_error)?;
    let refused = |reason: String| Err(JournalError::Open { path: file.to_owned(), reason });
    match (application, version) {
        (0, 0) if tables == 0 => Ok(DatabaseKind::Empty),
        (APPLICATION_ID, SCHEMA_VERSION) => Ok(DatabaseKind::Current),
        (APPLICATION_ID, 1) => Ok(DatabaseKind::Version1),
        (APPLICATION_ID, 2) => Ok(DatabaseKind::Version2),
        (APPLICATION_ID, later) if later > SCHEMA_VERSION => refused(format!(
            "it is of version {later}, and this program reads version {SCHEMA_VERSION}: use the \
             program that wrote it, or a later one"
        )),
        (APPLICATION_ID, _) => {
            refused(format!("it is damaged (version {version}): {RESTORE_HINT}"))
        }
        _ => refused("it is another program's database: use another data directory".to_owned()),
    }
}

/// Checks that the file is complete.
pub(super) fn check_size(connection: &Connection, file: &Path) -> Result<(), JournalError> {
    let open_error = |error| errors::open_error(file, &error);
    let pages = connection
        .pragma_query_value(None, "page_count", |row| row.get::<_, u64>(0))
        .map_err(open_error)?;
    let page_size = page_size(connection).map_err(open_error)? as u64;
    let missing = pages::has_missing_pages(file, &data_directory::wal_path(file), pages, page_size);
    let reason = match missing {
        Ok(false) => return Ok(()),
        Ok(true) => format!("it is damaged (its end is cut off): {RESTORE_HINT}"),
        Err(error) => format!("{error}: let this user read it"),
    };
    Err(JournalError::Open { path: file.to_owned(), reason })
}

pub(super) fn page_size(connection: &Connection) -> rusqlite::Result<usize> {
    connection.pragma_query_value(None, "page_size", |row| row.get(0))
}

/// Reads the last row of the records and the row of its session, which finds many kinds of damage.
fn check_ends(connection: &Connection, file: &Path) -> Result<(), JournalError> {
    let open_error = |error| errors::open_error(file, &error);
    let last =
        "SELECT session, seq, length(CAST(body AS BLOB)) FROM records ORDER BY rowid DESC LIMIT 1";
    let record: Option<(i64, i64, i64)> = connection
        .query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()
        .map_err(open_error)?;
    let Some((session, ..)) = record else { return Ok(()) };
    let known = "SELECT 1 FROM sessions WHERE number = ?1";
    let known =
        connection.query_row(known, [session], |_| Ok(())).optional().map_err(open_error)?;
    if known.is_none() {
        let reason =
            format!("it is damaged (the session of its last record is missing): {RESTORE_HINT}");
        return Err(JournalError::Open { path: file.to_owned(), reason });
    }
    Ok(())
}

/// Returns the size of the database and its write-ahead log on disk in bytes.
pub(super) fn bytes(file: &Path) -> u64 {
    size(file) + log_bytes(file)
}

/// Returns the size of the write-ahead log on disk in bytes.
pub(super) fn log_bytes(file: &Path) -> u64 {
    size(&data_directory::wal_path(file))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_escaped_in_its_uri() {
        let uri = immutable(Path::new("/a b/c%?#/journal.db"));
        assert_eq!(uri, "file:/a%20b/c%25%3F%23/journal.db?immutable=1");
    }
}
