//! The read queries of a stored journal.

use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::super::{JournalEntry, JournalError, StoredSessionFilter, StoredSessionInfo};
use super::errors;
use crate::record::Seq;
use crate::types::{SessionId, SessionState};

/// An error of a query.
pub(super) enum QueryError {
    Sqlite(rusqlite::Error),
    Journal(JournalError),
}

impl QueryError {
    /// Converts the error for opening a database.
    pub(super) fn open_error(self, file: &Path) -> JournalError {
        match self {
            Self::Sqlite(error) => errors::open_error(file, &error),
            Self::Journal(error) => error,
        }
    }

    /// Converts the error for reading.
    pub(super) fn read_error(self, file: &Path) -> JournalError {
        match self {
            Self::Sqlite(error) => errors::read_error(file, &error),
            Self::Journal(error) => error,
        }
    }
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<JournalError> for QueryError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// A text that is less than every session id, and greater than the ids of hidden sessions. A session that is
/// being deleted is hidden: its id is `!` and its number.
pub(super) const BEFORE_ALL_IDS: &str = ",";

/// Selects sessions with their last record, which the index finds.
const SELECT_SESSIONS: &str = "
    SELECT s.id, s.agent, s.running, s.opened, r.seq, r.time
    FROM sessions s JOIN records r ON r.session = s.number
        AND r.seq = (SELECT max(seq) FROM records WHERE session = s.number)
    WHERE ";

/// Selects the records that belong to no session. They cannot be listed or deleted.
const RECORDS_WITHOUT_SESSION: &str = "
    SELECT session, count(*) FROM records
    WHERE session NOT IN (SELECT number FROM sessions) GROUP BY session LIMIT ?1";

/// Selects the sessions that cannot be listed because they have no record.
const SESSIONS_WITHOUT_RECORDS: &str = "
    SELECT id FROM sessions WHERE number NOT IN (SELECT session FROM records) LIMIT ?1";

/// Returns a session's entries after `after`, in order.
pub(super) fn read(
    connection: &Connection,
    session: &SessionId,
    after: Seq,
    limit: usize,
) -> Result<Vec<JournalEntry>, QueryError> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, time, body FROM records
         WHERE session = (SELECT number FROM sessions WHERE id = ?1) AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?;
    let after = after.0.min(i64::MAX as u64);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query((session.as_str(), after, limit))?;
    let mut entries = Vec::new();
    let mut last = after;
    while let Some(row) = rows.next()? {
        let (seq, time): (u64, u64) = (row.get(0)?, row.get(1)?);
        if seq != last + 1 {
            let reason = format!("record {} of session {session} is missing", last + 1);
            return Err(JournalError::Read(reason).into());
        }
        last = seq;
        let body = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
        let entry = JournalEntry::read(session, Seq(seq), time, body);
        entries.push(entry.map_err(JournalError::from)?);
    }
    Ok(entries)
}

pub(super) fn find(
    connection: &Connection,
    session: &SessionId,
) -> Result<Option<StoredSessionInfo>, QueryError> {
    let mut statement = connection.prepare_cached(&format!("{SELECT_SESSIONS} s.id = ?1"))?;
    Ok(statement.query_row([session.as_str()], session_info).optional()?)
}

/// Returns sessions in the order of their ids. Reads no more rows than `limit` needs, and only
/// running sessions if the filter asks for them.
pub(super) fn list(
    connection: &Connection,
    listing: &StoredSessionFilter,
) -> Result<Vec<StoredSessionInfo>, QueryError> {
    let after = listing.after.as_ref().map_or(BEFORE_ALL_IDS, SessionId::as_str);
    let mut query = format!("{SELECT_SESSIONS} s.id > ?");
    let mut values = vec![Value::Text(after.to_owned())];
    match listing.state {
        Some(SessionState::Running) => query.push_str(" AND s.running = 1"),
        Some(SessionState::Idle | SessionState::Hibernated) => {
            query.push_str(" AND s.running = 0");
        }
        None => {}
    }
    if let Some(time) = listing.touched_before {
        query.push_str(" AND r.time < ?");
        values.push(Value::Integer(i64::try_from(time).unwrap_or(i64::MAX)));
    }
    query.push_str(" ORDER BY s.id");
    if listing.limit > 0 {
        query.push_str(" LIMIT ?");
        values.push(Value::Integer(i64::try_from(listing.limit).unwrap_or(i64::MAX)));
    }
    let mut statement = connection.prepare_cached(&query)?;
    let sessions = statement.query_map(params_from_iter(values), session_info)?;
    Ok(sessions.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn count(connection: &Connection) -> Result<usize, QueryError> {
    let mut statement = connection.prepare_cached("SELECT count(*) FROM sessions WHERE id > ?1")?;
    Ok(statement.query_row([BEFORE_ALL_IDS], |row| row.get(0))?)
}

fn session_info(row: &Row<'_>) -> rusqlite::Result<StoredSessionInfo> {
    let id = row.get_ref(0)?.as_str()?;
    let id = SessionId::parse(id).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })?;
    let running: bool = row.get(2)?;
    Ok(StoredSessionInfo {
        id,
        agent: row.get(1)?,
        state: if running { SessionState::Running } else { SessionState::Idle },
        opened: row.get(3)?,
        seq: Seq(row.get(4)?),
        touched: row.get(5)?,
    })
}

/// Returns at most `problems_max` problems of the database.
pub(super) fn check(connection: &Connection, problems_max: i64) -> Result<Vec<String>, QueryError> {
    let mut statement = connection.prepare(&format!("PRAGMA integrity_check({problems_max})"))?;
    let findings = statement.query_map([], |row| row.get::<_, String>(0))?;
    let findings = findings.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut problems: Vec<String> =
        findings.into_iter().filter(|finding| finding != "ok").collect();
    let mut statement = connection.prepare(RECORDS_WITHOUT_SESSION)?;
    let orphans = statement.query_map([problems_max], |row| {
        let (number, count): (i64, u64) = (row.get(0)?, row.get(1)?);
        Ok(format!("{count} records of session number {number} have no row in the table sessions"))
    })?;
    problems.extend(orphans.collect::<rusqlite::Result<Vec<_>>>()?);
    let mut statement = connection.prepare(SESSIONS_WITHOUT_RECORDS)?;
    let empty = statement.query_map([problems_max], |row| {
        Ok(format!("session {} has no records", row.get::<_, String>(0)?))
    })?;
    problems.extend(empty.collect::<rusqlite::Result<Vec<_>>>()?);
    Ok(problems)
}
