//! The read queries of a stored journal.

use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::super::{
    IdleSessions, JournalEntry, JournalError, SessionOrder, SessionQuery, SessionSummary,
};
use super::{errors, rows};
use callsheet_values::record::Seq;
use callsheet_values::types::{CHILD_DIGITS, CHILD_PREFIX, Metadata, SessionId, SessionState};

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

/// A text that is less than every session id, and greater than the ids of hidden sessions: see
/// [`super::deletion`].
pub(super) const BEFORE_ALL_IDS: &str = ",";

/// The columns of sessions, and those of their last record.
const SESSION_COLUMNS: &str =
    "s.metadata, s.id, s.agent, s.number IN running, s.opened, r.seq, r.time, s.number";

/// The join with the last record of a session, which the index finds. A `CROSS JOIN` keeps the order of the tables.
const LAST_RECORD: &str = "CROSS JOIN records r ON r.session = s.number
    AND r.seq = (SELECT max(seq) FROM records WHERE session = s.number)";

/// Selects the records that belong to no session. They cannot be listed or deleted.
const RECORDS_WITHOUT_SESSION: &str = "
    SELECT session, sum(1 + length(body) - length(replace(body, char(10), ''))) FROM records
    WHERE session NOT IN (SELECT number FROM sessions) GROUP BY session LIMIT ?1";

/// Selects the forks whose shared records belong to no session.
const FORKS_WITHOUT_ORIGIN: &str = "
    SELECT id FROM sessions
    WHERE origin IS NOT NULL AND origin NOT IN (SELECT number FROM sessions) LIMIT ?1";

/// Selects the sessions that cannot be listed because they have no record. A session that is being deleted may
/// have none: its id is less than [`BEFORE_ALL_IDS`].
const SESSIONS_WITHOUT_RECORDS: &str = "
    SELECT id FROM sessions
    WHERE id > ',' AND number NOT IN (SELECT session FROM records) LIMIT ?1";

/// Selects the numbers of sessions that run and do not exist.
const RUNNING_WITHOUT_SESSION: &str = "
    SELECT session FROM running WHERE session NOT IN (SELECT number FROM sessions) LIMIT ?1";

/// A session in the database: its number, and the records that it shares if it is a fork.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionRow {
    pub(super) number: i64,
    /// The number of the session with the shared records, and the last one of them.
    pub(super) origin: Option<(i64, u64)>,
}

/// Returns the session with this id, if it exists.
pub(super) fn session_row(
    connection: &Connection,
    id: &SessionId,
) -> rusqlite::Result<Option<SessionRow>> {
    let mut select =
        connection.prepare_cached("SELECT number, origin, prefix FROM sessions WHERE id = ?1")?;
    select.query_row([id.as_str()], parse_session_row).optional()
}

/// Returns the session with this number, also if it is hidden.
pub(super) fn numbered_session_row(
    connection: &Connection,
    number: i64,
) -> rusqlite::Result<Option<SessionRow>> {
    let mut select = connection
        .prepare_cached("SELECT number, origin, prefix FROM sessions WHERE number = ?1")?;
    select.query_row([number], parse_session_row).optional()
}

fn parse_session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    let origin = row.get::<_, Option<i64>>(1)?.zip(row.get(2)?);
    Ok(SessionRow { number: row.get(0)?, origin })
}

/// Returns at most `limit` of a session's entries after `after`, in order.
pub(super) fn read(
    connection: &Connection,
    session: &SessionId,
    after: Seq,
    limit: usize,
) -> Result<Vec<JournalEntry>, QueryError> {
    // All statements see the same sessions.
    let transaction = connection.unchecked_transaction()?;
    let Some(mut row) = session_row(&transaction, session)? else { return Ok(Vec::new()) };
    let mut reading = EntryReader { session, limit, last: after.0, entries: Vec::new() };
    // The sessions whose records belong to this one, each with the last of these records.
    let mut parts = vec![(row.number, u64::MAX)];
    while let Some((origin, prefix)) = row.origin
        && after.0 < prefix
    {
        parts.push((origin, prefix));
        let Some(next) = numbered_session_row(&transaction, origin)? else { break };
        row = next;
    }
    for (number, last) in parts.into_iter().rev() {
        reading.read_rows(&transaction, number, last)?;
    }
    Ok(reading.entries)
}

/// Reads the entries of a session from the rows of one or several sessions.
struct EntryReader<'a> {
    session: &'a SessionId,
    limit: usize,
    /// The sequence number of the last entry, or the one after which entries are wanted.
    last: u64,
    entries: Vec<JournalEntry>,
}

impl EntryReader<'_> {
    /// Reads the rows of the session `number` up to the last wanted record.
    fn read_rows(
        &mut self,
        connection: &Connection,
        number: i64,
        last_wanted: u64,
    ) -> Result<(), QueryError> {
        let mut select = connection.prepare_cached(
            "SELECT seq, time, body FROM records WHERE session = ?1 AND seq > ?2 ORDER BY seq",
        )?;
        let mut stored = select.query((number, self.last.min(i64::MAX as u64)))?;
        while self.last < last_wanted
            && self.entries.len() < self.limit
            && let Some(row) = stored.next()?
        {
            let (last_of_row, time): (u64, u64) = (row.get(0)?, row.get(1)?);
            let bodies = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
            let first = rows::first_of_row(last_of_row, bodies.as_bytes());
            if first > self.last + 1 {
                let reason =
                    format!("record {} of session {} is missing", self.last + 1, self.session);
                return Err(JournalError::Read(reason).into());
            }
            // A row may begin before the first wanted entry.
            for (seq, line) in (first..=last_wanted).zip(bodies.split('\n')) {
                if seq > self.last && self.entries.len() < self.limit {
                    let (time, body) = rows::parse_line(time, line);
                    let entry = JournalEntry::from_body(self.session, Seq(seq), time, body);
                    self.entries.push(entry.map_err(JournalError::from)?);
                    self.last = seq;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let table = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    connection.query_row(table, [name], |row| Ok(row.get::<_, i64>(0)? > 0))
}

/// Returns the document with this key.
pub(super) fn document(connection: &Connection, key: &str) -> Result<Option<String>, QueryError> {
    if !has_table(connection, "documents")? {
        return Ok(None);
    }
    let mut statement = connection.prepare_cached("SELECT text FROM documents WHERE key = ?1")?;
    Ok(statement.query_row([key], |row| row.get(0)).optional()?)
}

pub(super) fn find(
    connection: &Connection,
    session: &SessionId,
) -> Result<Option<SessionSummary>, QueryError> {
    let select = format!("SELECT {SESSION_COLUMNS} FROM sessions s {LAST_RECORD} WHERE s.id = ?1");
    let mut statement = connection.prepare_cached(&select)?;
    Ok(statement.query_row([session.as_str()], session_summary).optional()?)
}

/// The number of sessions of a page, for the choice of how to find running ones.
const USUAL_PAGE: i64 = 100;

/// Returns whether so many sessions run that a page of them, in the order of the ids, is found sooner among all
/// sessions than by sorting those that run. The number of all is an estimate.
pub(super) fn are_many_running(connection: &Connection) -> rusqlite::Result<bool> {
    let numbers =
        "SELECT (SELECT count(*) FROM running), coalesce((SELECT max(number) FROM sessions), 0)";
    let mut statement = connection.prepare_cached(numbers)?;
    let (running, all): (i64, i64) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(running > 0 && all / running * USUAL_PAGE <= running)
}

/// Returns the sessions of a page. Its cost depends on the page, not on the number of sessions: sessions are read in the
/// order of the page, or, if the filter asks for running sessions and few run, from the table of those.
pub(super) fn list(
    connection: &Connection,
    listing: &SessionQuery,
) -> Result<Vec<SessionSummary>, QueryError> {
    let mut values = Vec::new();
    let is_running = listing.state == Some(SessionState::Running);
    let number = if is_running { "u.session" } else { "s.number" };
    let (mut conditions, order) = match listing.order {
        SessionOrder::Id => {
            let after = listing.after.as_ref().map_or(BEFORE_ALL_IDS, SessionId::as_str);
            values.push(Value::Text(after.to_owned()));
            ("s.id > ?".to_owned(), "s.id".to_owned())
        }
        SessionOrder::Newest => {
            let after = listing.after_number.and_then(|number| i64::try_from(number).ok());
            values.push(Value::Integer(after.unwrap_or(i64::MAX)));
            values.push(Value::Text(BEFORE_ALL_IDS.to_owned()));
            // A unary plus keeps SQLite from using the index of ids, which has another order.
            (format!("{number} < ? AND +s.id > ?"), format!("{number} DESC"))
        }
    };
    if !listing.children {
        conditions.push_str(" AND s.id NOT GLOB ?");
        values.push(Value::Text(child_pattern()));
    }
    let all_running = "running u CROSS JOIN sessions s ON s.number = u.session";
    let mut is_page_of_running = false;
    let sessions = match (listing.state, listing.order) {
        (Some(SessionState::Running), SessionOrder::Id) if are_many_running(connection)? => {
            // The unary plus keeps SQLite from looking each of them up and sorting.
            conditions.push_str(" AND +s.number IN running");
            "sessions s"
        }
        (Some(SessionState::Running), order) => {
            is_page_of_running = order == SessionOrder::Id && listing.touched_before.is_none();
            all_running
        }
        (Some(SessionState::Idle), _) => {
            conditions.push_str(" AND s.number NOT IN running");
            "sessions s"
        }
        // Only a host knows which sessions are awake. In a journal these are idle.
        (Some(SessionState::Waiting | SessionState::Hibernated), _) => return Ok(Vec::new()),
        (None, _) => "sessions s",
    };
    if let Some(time) = listing.touched_before {
        conditions.push_str(" AND r.time < ?");
        values.push(Value::Integer(i64::try_from(time).unwrap_or(i64::MAX)));
    }
    let limit = if listing.limit > 0 { "LIMIT ?" } else { "" };
    if listing.limit > 0 {
        values.push(Value::Integer(i64::try_from(listing.limit).unwrap_or(i64::MAX)));
    }
    let select = if is_page_of_running {
        // Only the last records of the page are read. A damaged session may have none.
        let page = format!(
            "SELECT s.number FROM {sessions} WHERE {conditions}
             AND EXISTS (SELECT 1 FROM records WHERE session = s.number) ORDER BY {order} {limit}"
        );
        let sessions = format!("({page}) p CROSS JOIN sessions s ON s.number = p.number");
        format!("SELECT {SESSION_COLUMNS} FROM {sessions} {LAST_RECORD} ORDER BY {order}")
    } else {
        format!(
            "SELECT {SESSION_COLUMNS} FROM {sessions} {LAST_RECORD} WHERE {conditions} ORDER BY {order} {limit}"
        )
    };
    let mut statement = connection.prepare_cached(&select)?;
    let sessions = statement.query_map(params_from_iter(values), session_summary)?;
    Ok(sessions.collect::<rusqlite::Result<_>>()?)
}

/// Maximum number of sessions of one search for idle ones: a few milliseconds, if they are in memory.
const SEARCHED_MAX: usize = 2_000;

/// Searches sessions in the order of their ids for idle ones whose last record is older than a time.
pub(super) fn find_idle(
    connection: &Connection,
    touched_before: u64,
    after: Option<&SessionId>,
) -> Result<IdleSessions, QueryError> {
    let select = "
        SELECT s.id, s.number NOT IN running AND ?2 > (
            SELECT time FROM records WHERE session = s.number ORDER BY seq DESC LIMIT 1)
        FROM sessions s WHERE s.id > ?1 ORDER BY s.id LIMIT ?3";
    let after = after.map_or(BEFORE_ALL_IDS, SessionId::as_str);
    let touched_before = i64::try_from(touched_before).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(select)?;
    let mut rows = statement.query((after, touched_before, SEARCHED_MAX))?;
    let (mut found, mut searched) = (IdleSessions::default(), 0);
    while let Some(row) = rows.next()? {
        let id = session_id(row, 0)?;
        searched += 1;
        // A damaged session may have no record.
        if row.get::<_, Option<bool>>(1)? == Some(true) {
            found.ids.push(id.clone());
        }
        if searched == SEARCHED_MAX || found.ids.len() == IdleSessions::FOUND_MAX {
            found.next = Some(id);
            break;
        }
    }
    Ok(found)
}

fn session_id(row: &Row<'_>, column: usize) -> rusqlite::Result<SessionId> {
    SessionId::parse(row.get_ref(column)?.as_str()?).map_err(|error| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(error))
    })
}

/// Returns the pattern of the ids of child sessions.
fn child_pattern() -> String {
    format!("{CHILD_PREFIX}{}", "[0-9a-f]".repeat(CHILD_DIGITS))
}

pub(super) fn count(connection: &Connection) -> Result<usize, QueryError> {
    let mut statement = connection.prepare_cached("SELECT count(*) FROM sessions WHERE id > ?1")?;
    Ok(statement.query_row([BEFORE_ALL_IDS], |row| row.get(0))?)
}

fn metadata(text: Option<String>) -> Metadata {
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn session_summary(row: &Row<'_>) -> rusqlite::Result<SessionSummary> {
    let running: bool = row.get(3)?;
    Ok(SessionSummary {
        id: session_id(row, 1)?,
        agent: row.get(2)?,
        state: if running { SessionState::Running } else { SessionState::Idle },
        opened: row.get(4)?,
        seq: Seq(row.get(5)?),
        touched: row.get(6)?,
        number: row.get(7)?,
        metadata: metadata(row.get(0)?),
        approvals_open: 0,
        host: None,
    })
}

/// Returns the problems of the database, at most `problems_max` of each kind.
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
    let mut statement = connection.prepare(RUNNING_WITHOUT_SESSION)?;
    let running = statement.query_map([problems_max], |row| {
        let number: i64 = row.get(0)?;
        Ok(format!("session number {number} is running, and has no row in the table sessions"))
    })?;
    problems.extend(running.collect::<rusqlite::Result<Vec<_>>>()?);
    for (sessions, problem) in [
        (SESSIONS_WITHOUT_RECORDS, "has no records"),
        (FORKS_WITHOUT_ORIGIN, "is a fork, and the session with its first records is missing"),
    ] {
        let mut statement = connection.prepare(sessions)?;
        let found = statement.query_map([problems_max], |row| {
            Ok(format!("session {} {problem}", row.get::<_, String>(0)?))
        })?;
        problems.extend(found.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(problems)
}
