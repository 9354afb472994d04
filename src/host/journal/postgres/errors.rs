//! Classifies the errors of the database by their effect on a statement, and formats their texts, without the password.

use std::error::Error as _;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::super::JournalError;

/// The failure of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatementFailure {
    pub(super) kind: StatementFailureKind,
    pub(super) reason: String,
}

/// The meaning of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementFailureKind {
    /// The connection is lost, or cannot be used any more. The statement may have been executed, or be executed later.
    Lost,
    /// The statement was not executed, and is tried again: a deadlock, a serialization failure, a time limit.
    Again,
    /// The statement was not executed, because the server lacks a resource. It is tried again.
    Exhausted,
    /// The server's disk is full. The statement is tried again.
    Full,
    /// A row with the same key is stored.
    Conflict,
    /// The database refuses the statement itself: rights are missing, or a table was changed.
    Refused,
    /// The database refuses a value.
    Value,
}

impl StatementFailure {
    pub(super) fn lost(reason: impl Into<String>) -> Self {
        Self { kind: StatementFailureKind::Lost, reason: reason.into() }
    }

    /// Returns the failure of a statement that the host has given up after this time.
    pub(super) fn timed_out(limit: Duration) -> Self {
        Self::lost(format!("the database has not answered within {limit:?}"))
    }

    pub(super) fn write_error(&self) -> JournalError {
        match self.kind {
            StatementFailureKind::Full => JournalError::Full,
            StatementFailureKind::Lost
            | StatementFailureKind::Again
            | StatementFailureKind::Exhausted
            | StatementFailureKind::Conflict
            | StatementFailureKind::Refused
            | StatementFailureKind::Value => JournalError::Write(self.reason.clone()),
        }
    }

    pub(super) fn read_error(&self) -> JournalError {
        match self.kind {
            StatementFailureKind::Lost
            | StatementFailureKind::Again
            | StatementFailureKind::Exhausted
            | StatementFailureKind::Full => JournalError::Unavailable(self.reason.clone()),
            StatementFailureKind::Conflict
            | StatementFailureKind::Refused
            | StatementFailureKind::Value => JournalError::Read(self.reason.clone()),
        }
    }
}

impl From<tokio_postgres::Error> for StatementFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self { kind: kind(&error), reason: text(&error) }
    }
}

fn kind(error: &tokio_postgres::Error) -> StatementFailureKind {
    let Some(code) = error.code() else {
        // The other errors without a code are those of the connection.
        let is_value = error.to_string().starts_with("error serializing");
        return if is_value { StatementFailureKind::Value } else { StatementFailureKind::Lost };
    };
    let conflict = SqlState::UNIQUE_VIOLATION.code();
    match code.code() {
        "40001" | "40P01" | "55P03" | "57014" => StatementFailureKind::Again,
        "53100" => StatementFailureKind::Full,
        code if code == conflict => StatementFailureKind::Conflict,
        // The server ends, starts or has become a standby, or the statement was prepared on another connection.
        "25006" | "26000" | "0A000" => StatementFailureKind::Lost,
        code if ["08", "57", "25"].iter().any(|class| code.starts_with(class)) => {
            StatementFailureKind::Lost
        }
        code if ["53", "58", "XX"].iter().any(|class| code.starts_with(class)) => {
            StatementFailureKind::Exhausted
        }
        code if ["42", "3F", "28", "3D"].iter().any(|class| code.starts_with(class)) => {
            StatementFailureKind::Refused
        }
        _ => StatementFailureKind::Value,
    }
}

/// Returns the text of an error with its causes.
pub(super) fn text(error: &tokio_postgres::Error) -> String {
    if let Some(database) = error.as_db_error() {
        let mut text = format!("{} ({})", database.message(), database.code().code());
        if let Some(hint) = database.hint() {
            let _ = write!(text, ": {hint}");
        }
        return text;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            let _ = write!(text, ": {next}");
        }
        cause = error.source();
    }
    text
}

/// Returns the error of opening the journal `name`, with what to do.
pub(super) fn open_error(name: &str, error: &tokio_postgres::Error) -> JournalError {
    let reason = text(error);
    let advice = match error.code().map(SqlState::code) {
        Some("28P01" | "28000") => "check the user and the password in the URL",
        Some("3D000") => "create the database with createdb, or name another one in the URL",
        Some("42501") => "grant the role the right to create tables: GRANT CREATE ON SCHEMA",
        Some("57P03") => "the server is starting or ending: try again",
        Some(_) => "look at the log of the server",
        None if is_untrusted(error) => {
            "the server's certificate is not trusted: install the certificate of its CA on this machine, or name the \
             file with it in SSL_CERT_FILE"
        }
        None => "check the host and the port in the URL, and that the server runs",
    };
    opening(name, format!("{reason}: {advice}"))
}

pub(super) fn opening(name: &str, reason: String) -> JournalError {
    JournalError::Open { path: PathBuf::from(name), reason }
}

/// Returns true if TLS has failed because of the server's certificate.
fn is_untrusted(error: &tokio_postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        let tls = io.and_then(std::io::Error::get_ref).and_then(|inner| inner.downcast_ref());
        if matches!(
            tls.or_else(|| error.downcast_ref()),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::General(_))
        ) {
            return true;
        }
        cause = error.source();
    }
    false
}
