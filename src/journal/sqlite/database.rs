//! The database: its tables, how it is opened, and what is looked at before it is used.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::super::JournalError;
use super::errors::{self, RESTORE};
use super::{data_directory, pages};

/// Says in the file that it is a journal of this program: `CSHJ`.
const APPLICATION_ID: i32 = 0x4353_484a;

/// The version of the tables.
const SCHEMA_VERSION: i32 = 1;

/// Records lie in a rowid table behind each other as they came, so that a transaction writes few
/// pages however many sessions it is of; the index finds them by session and place.
const SCHEMA: &str = "
    CREATE TABLE sessions(
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        running INTEGER NOT NULL,
        opened INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX running_sessions ON sessions(id) WHERE running = 1;
    CREATE TABLE records(
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        time INTEGER NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX records_by_place ON records(session, seq);
";

/// How long to wait for another program that has the database locked: while it is opened, and
/// later, when it may be somebody who looks into it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What every SQLite database begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Opens the database for its writer, makes the tables where there are none, and looks whether it
/// can be used.
pub(super) fn open(file: &Path) -> Result<Connection, JournalError> {
    check_beginning(file)?;
    let failed = |error| errors::of_opening(file, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags).map_err(failed)?;
    connection.busy_timeout(OPEN_TIMEOUT).map_err(failed)?;
    // Closing must not bring the log into a database that is found to be damaged.
    let keep_log = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    connection.set_db_config(keep_log, true).map_err(failed)?;
    let fresh = check_kind(&connection, file)?;
    check_size(&connection, file)?;
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(failed)?;
    if mode != "wal" {
        let why = format!(
            "its write-ahead log cannot be used here ({mode}): name a data_dir on a local disk"
        );
        return Err(JournalError::Open { path: file.to_owned(), why });
    }
    // The tables are durable whatever durability records have.
    connection.pragma_update(None, "synchronous", "full").map_err(failed)?;
    connection.pragma_update(None, "secure_delete", true).map_err(failed)?;
    connection.pragma_update(None, "cache_size", -32_768).map_err(failed)?;
    // The writer does that itself, when nobody waits.
    connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
    keep_plans(&connection).map_err(failed)?;
    if fresh {
        create_tables(&mut connection).map_err(failed)?;
    }
    check_ends(&connection).map_err(failed)?;
    connection.set_db_config(keep_log, false).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    // From now on the writer syncs the log.
    connection.pragma_update(None, "synchronous", "normal").map_err(failed)?;
    Ok(connection)
}

/// Opens a connection that only reads.
///
/// Even that needs the log and the memory that goes with it, as files beside the database. Where
/// they are not there and cannot be made, no host is at work: a host has them, and one that is
/// stopped has left nothing in them. Then the database alone is all there is. (One that was
/// killed leaves its log; in a directory that cannot be written that is an error.)
pub(super) fn open_reading(file: &Path) -> rusqlite::Result<Connection> {
    let opened = open_reading_with_log(file);
    match opened.as_ref().map_err(rusqlite::Error::sqlite_error_code) {
        Err(Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
            if !data_directory::log_of(file).exists() =>
        {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(immutable(file), flags)
        }
        Ok(_) | Err(_) => opened,
    }
}

fn open_reading_with_log(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    keep_plans(&connection)?;
    // The first query opens the log.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Has each statement planned once. Otherwise SQLite plans one anew whenever a value is bound that
/// it could plan by (<https://www.sqlite.org/queryplanner-ng.html#qpstab>), which takes longer than
/// our statements themselves.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(32);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// The URI of a file that nobody changes.
fn immutable(file: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in file.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*byte));
            }
            // Writing to a text cannot fail.
            other => drop(write!(uri, "%{other:02X}")),
        }
    }
    uri + "?immutable=1"
}

fn create_tables(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}

/// SQLite takes an empty file for an empty database, and looks at nothing else before the first
/// query; what is no database at all is told here.
fn check_beginning(path: &Path) -> Result<(), JournalError> {
    let failed = |why: String| Err(JournalError::Open { path: path.to_owned(), why });
    let mut begin = Vec::new();
    match File::open(path).and_then(|file| file.take(16).read_to_end(&mut begin)) {
        Ok(0) => Ok(()),
        Ok(_) if begin == MAGIC => Ok(()),
        Ok(_) => failed(format!("it is no SQLite database: {RESTORE}")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => failed(format!("{error}: let this user read and write it")),
    }
}

/// Whether the database is one of this program; whether it is new.
pub(super) fn check_kind(connection: &Connection, file: &Path) -> Result<bool, JournalError> {
    let failed = |error| errors::of_opening(file, &error);
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let application = number("application_id").map_err(failed)?;
    let version = number("user_version").map_err(failed)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    let refused = |why: String| Err(JournalError::Open { path: file.to_owned(), why });
    match (application, version) {
        (0, 0) if tables == 0 => Ok(true),
        (APPLICATION_ID, SCHEMA_VERSION) => Ok(false),
        (APPLICATION_ID, later) if later > SCHEMA_VERSION => refused(format!(
            "it is of version {later}, and this program reads version {SCHEMA_VERSION}: use the \
             program that wrote it, or a later one"
        )),
        (APPLICATION_ID, _) => refused(format!("it is damaged (version {version}): {RESTORE}")),
        _ => refused("it is another program's database: name another data_dir".to_owned()),
    }
}

/// Whether the file is as long as it should be.
pub(super) fn check_size(connection: &Connection, file: &Path) -> Result<(), JournalError> {
    let failed = |error| errors::of_opening(file, &error);
    let pages = connection
        .pragma_query_value(None, "page_count", |row| row.get::<_, u64>(0))
        .map_err(failed)?;
    let page_size = page_size(connection).map_err(failed)? as u64;
    let missing = pages::are_missing(file, &data_directory::log_of(file), pages, page_size);
    let why = match missing {
        Ok(false) => return Ok(()),
        Ok(true) => format!("it is damaged (its end is cut off): {RESTORE}"),
        Err(error) => format!("{error}: let this user read it"),
    };
    Err(JournalError::Open { path: file.to_owned(), why })
}

pub(super) fn page_size(connection: &Connection) -> rusqlite::Result<usize> {
    connection.pragma_query_value(None, "page_size", |row| row.get(0))
}

/// Reads the ends of the tables: most of what breaks a file can be seen there, or when it is
/// opened.
fn check_ends(connection: &Connection) -> rusqlite::Result<()> {
    let last =
        "SELECT session, seq, length(CAST(body AS BLOB)) FROM records ORDER BY rowid DESC LIMIT 1";
    let record: Option<(i64, i64, i64)> = connection
        .query_row(last, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    if let Some((session, ..)) = record {
        let known = "SELECT 1 FROM sessions WHERE number = ?1";
        connection.query_row(known, [session], |_| Ok(()))?;
    }
    Ok(())
}

/// How many bytes a database takes on the disk.
pub(super) fn bytes(file: &Path) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    size(file) + size(&data_directory::log_of(file))
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
