//! Converts SQLite's errors to journal errors.

use std::io;
use std::path::Path;

use rusqlite::{Error, ErrorCode};

use super::super::JournalError;

/// The error of a database without the log that it had.
pub(super) const LOG_MISSING: &str = "its write-ahead log, journal.db-wal, is missing. If the file was copied while a \
    host used it, or the log was removed, the newest records are lost: bring the log back, or use a copy that \
    `callsheet backup` has made. Nothing is lost if another program has opened the database since (sqlite3 moves \
    the log) or copied it as a whole. To start: callsheet serve --accept-loss";

/// Converts an error of a write.
pub(super) fn write_error(error: &Error) -> JournalError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => JournalError::Full,
        Some(_) if is_locked(error) => {
            let reason =
                "another program has locked the database (journal.busy_timeout): stop that program";
            JournalError::Write(reason.to_owned())
        }
        Some(_) | None => JournalError::Write(error.to_string()),
    }
}

/// Returns whether a write may have failed for lack of space: the disk is full, or a quota or a limit of the
/// process is reached, which the system reports as other errors.
pub(super) fn may_lack_space(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error
            .sqlite_error()
            .is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE)
}

/// Returns whether another program has locked the database.
pub(super) fn is_locked(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Returns the error of a log whose fsync failed.
pub(super) fn log_not_synced(error: &io::Error) -> JournalError {
    JournalError::Write(format!("its log cannot be synced ({error}): look at the disk"))
}

/// Returns whether an fsync of SQLite failed.
pub(super) fn is_failed_sync(error: &Error) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};
    error.sqlite_error().is_some_and(|error| {
        matches!(error.extended_code, SQLITE_IOERR_FSYNC | SQLITE_IOERR_DIR_FSYNC)
    })
}

/// Returns whether a file could not be written because the disk or a quota is full.
pub(super) fn lacks_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns the error of a write that would use the space for deletions.
pub(super) fn only_deletions() -> JournalError {
    let reason = "the disk is full: sessions can only be deleted until it has room for \
                  journal.reserve (reserve_bytes) again";
    JournalError::Write(reason.to_owned())
}

/// Returns whether the error concerns one batch, not the database. An error that does not come from
/// SQLite, such as a value that cannot be converted, belongs to its batch.
pub(super) fn concerns_one_batch(error: &Error) -> bool {
    use ErrorCode::{ConstraintViolation, TooBig, TypeMismatch};
    let Error::SqliteFailure(failure, _) = error else { return true };
    matches!(failure.code, ConstraintViolation | TooBig | TypeMismatch)
}

/// Converts an error of a read.
pub(super) fn read_error(file: &Path, error: &Error) -> JournalError {
    let file = file.display();
    JournalError::Read(match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            format!("{file} is damaged ({error}): restore it from a backup")
        }
        Some(_) | None => format!("{error} ({file})"),
    })
}

/// Converts an error of opening a database, with a hint.
pub(super) fn open_error(file: &Path, error: &Error) -> JournalError {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => format!("it is damaged ({error}): {RESTORE_HINT}"),
        Some(ErrorCode::NotADatabase) => format!("it is not a SQLite database: {RESTORE_HINT}"),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            format!("{error}: give this user write permission for the directory and its files")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program has locked it: stop that program".to_owned()
        }
        Some(ErrorCode::DiskFull) => "the disk is full: free some space".to_owned(),
        Some(_) | None => error.to_string(),
    };
    JournalError::Open { path: file.to_owned(), reason }
}

/// The hint for a database that is damaged or is not a SQLite database.
pub(super) const RESTORE_HINT: &str =
    "restore it from a backup, or move it and journal.reserve away to begin without sessions";
