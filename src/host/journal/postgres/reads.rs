//! The reads: records, sessions and documents. Each of them finds its rows by an index.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::super::{
    IdleSessions, JournalEntry, JournalError, SessionOrder, SessionQuery, SessionSummary,
};
use super::encoding::{self, signed, unsigned};
use super::pool::ConnectionPool;
use callsheet_values::record::Seq;
use callsheet_values::types::{SessionId, SessionState};

/// Maximum number of sessions of one statement. Longer lists are several.
const PAGE_LENGTH: usize = 1_000;

/// Maximum number of sessions of one search for idle ones: a few milliseconds.
const SEARCHED_MAX: usize = 2_000;

/// The columns of a session `s` and of its last record `r`.
const SESSION_COLUMNS: &str =
    "s.id, s.agent, EXISTS (SELECT 1 FROM running u WHERE u.session = s.number), s.opened,
    r.seq, r.time, s.number, s.metadata";

/// The join of a session `s` with its last record.
const LAST_RECORD: &str = "CROSS JOIN LATERAL (
    SELECT seq, time FROM records WHERE session = s.number ORDER BY seq DESC LIMIT 1) r";

/// The records of a session, and those that it shares as a fork. Each part has its own rows, in order.
const READ: &str = "
    WITH RECURSIVE part(number, origin, prefix, upto) AS (
        SELECT number, origin, prefix, 9223372036854775807 FROM sessions WHERE id = $1
        UNION ALL
        SELECT s.number, s.origin, s.prefix, p.prefix FROM part p JOIN sessions s ON s.number = p.origin
        WHERE $2 < p.prefix)
    SELECT r.seq, r.time, r.body FROM part p CROSS JOIN LATERAL (
        SELECT seq, time, body FROM records
        WHERE session = p.number AND seq > $2 AND seq <= p.upto ORDER BY seq LIMIT $3) r
    ORDER BY r.seq LIMIT $3";

/// Returns at most `limit` of a session's entries after `after`, in order.
pub(super) async fn read(
    pool: &ConnectionPool,
    session: &SessionId,
    after: Seq,
    limit: usize,
) -> Result<Vec<JournalEntry>, JournalError> {
    let (after, limit) = (signed(after.0), i64::try_from(limit).unwrap_or(i64::MAX));
    let id = session.as_str();
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&id, Type::TEXT), (&after, Type::INT8), (&limit, Type::INT8)];
    let add = |mut entries: Vec<JournalEntry>, row: Row| {
        let expected = entries.last().map_or(unsigned(after), |entry| entry.seq.0) + 1;
        let seq = unsigned(row.get(0));
        if seq != expected {
            let reason = format!("record {expected} of session {session} is missing");
            return Err(JournalError::Read(reason));
        }
        let unreadable = |reason: String| {
            JournalError::Read(format!("record {seq} of session {session}: {reason}"))
        };
        let body = encoding::body(row.get(2)).map_err(unreadable)?;
        let time = unsigned(row.get(1));
        entries.push(JournalEntry::from_body(session, Seq(seq), time, &body)?);
        Ok(entries)
    };
    let read = pool.fold(READ, &parameters, Vec::new, add).await;
    read.map_err(|failure| failure.read_error())?
}

pub(super) async fn find(
    pool: &ConnectionPool,
    session: &SessionId,
) -> Result<Option<SessionSummary>, JournalError> {
    let find = format!("SELECT {SESSION_COLUMNS} FROM sessions s {LAST_RECORD} WHERE s.id = $1");
    let rows = pool.query(&find, &[(&session.as_str(), Type::TEXT)]).await;
    let rows = rows.map_err(|failure| failure.read_error())?;
    rows.first().map(summary).transpose()
}

/// Returns the sessions of a page. Its cost depends on the page, not on the number of sessions.
pub(super) async fn list(
    pool: &ConnectionPool,
    listing: &SessionQuery,
) -> Result<Vec<SessionSummary>, JournalError> {
    let mut sessions: Vec<SessionSummary> = Vec::new();
    let mut part = listing.clone();
    let wanted = if listing.limit == 0 { usize::MAX } else { listing.limit };
    loop {
        part.limit = PAGE_LENGTH.min(wanted - sessions.len());
        if part.limit == 0 {
            return Ok(sessions);
        }
        let page = list_page(pool, &part).await?;
        let is_last = page.len() < part.limit;
        page.last().into_iter().for_each(|last| part.continue_after(last));
        sessions.extend(page);
        if is_last {
            return Ok(sessions);
        }
    }
}

async fn list_page(
    pool: &ConnectionPool,
    listing: &SessionQuery,
) -> Result<Vec<SessionSummary>, JournalError> {
    // The sessions are read in the order of the page, or, if the filter asks for running sessions, those are.
    let (by_id, by_number) = match listing.state {
        Some(SessionState::Running) => ("u.id", "u.session"),
        Some(SessionState::Idle) | None => ("s.id", "s.number"),
        // Only a host knows which sessions are awake. In a journal these are idle.
        Some(SessionState::Waiting | SessionState::Hibernated) => return Ok(Vec::new()),
    };
    let id = listing.after.as_ref().map_or("", SessionId::as_str);
    let number = listing.after_number.map_or(i64::MAX, signed);
    let (cursor, mut conditions, order): ((&(dyn ToSql + Sync), Type), _, _) = match listing.order {
        SessionOrder::Id => ((&id, Type::TEXT), format!("{by_id} > $1"), by_id.to_owned()),
        SessionOrder::Newest => {
            ((&number, Type::INT8), format!("{by_number} < $1"), format!("{by_number} DESC"))
        }
    };
    conditions.push_str(" AND s.id IS NOT NULL");
    if !listing.children {
        conditions.push_str(" AND NOT s.child");
    }
    let sessions = if listing.state == Some(SessionState::Running) {
        "running u CROSS JOIN LATERAL (SELECT * FROM sessions WHERE number = u.session OFFSET 0) s"
    } else {
        "sessions s"
    };
    if listing.state == Some(SessionState::Idle) {
        conditions.push_str(" AND NOT EXISTS (SELECT 1 FROM running u WHERE u.session = s.number)");
    }
    let touched_before = signed(listing.touched_before.unwrap_or(u64::MAX));
    let mut parameters = vec![cursor];
    if listing.touched_before.is_some() {
        conditions.push_str(" AND r.time < $2");
        parameters.push((&touched_before, Type::INT8));
    }
    let select = format!(
        "SELECT {SESSION_COLUMNS} FROM {sessions} {LAST_RECORD} WHERE {conditions} ORDER BY {order} LIMIT {}",
        listing.limit
    );
    let rows = pool.query(&select, &parameters).await;
    rows.map_err(|failure| failure.read_error())?.iter().map(summary).collect()
}

/// Searches for idle sessions in the order of the times at which their last runs ended. Sessions of other hosts whose
/// leases run are not found.
pub(super) async fn find_idle(
    pool: &ConnectionPool,
    host: &str,
    touched_before: u64,
    after: Option<&SessionId>,
) -> Result<IdleSessions, JournalError> {
    // A session that was deleted meanwhile has no place: the search begins again.
    let select = format!(
        "WITH place AS MATERIALIZED (
            SELECT t.time, t.session FROM touched t JOIN sessions s ON s.number = t.session WHERE s.id = $2)
        SELECT s.id, NOT EXISTS (SELECT 1 FROM running u WHERE u.session = s.number)
            AND (SELECT time FROM records WHERE session = s.number ORDER BY seq DESC LIMIT 1) < $1
            AND (f.owner IS NULL OR f.owner = $3::text::uuid
                OR NOT EXISTS (SELECT 1 FROM hosts h WHERE h.id = f.owner AND h.lease_end > now()))
        FROM (
            SELECT t.time, t.session FROM touched t
            WHERE t.time < $1 AND (t.time, t.session) > (
                coalesce((SELECT time FROM place), -1), coalesce((SELECT session FROM place), 0))
            ORDER BY t.time, t.session LIMIT {SEARCHED_MAX}) t
        JOIN sessions s ON s.number = t.session JOIN trees f ON f.root = s.root
        WHERE s.id IS NOT NULL ORDER BY t.time, t.session"
    );
    let after = after.map_or("", SessionId::as_str);
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&signed(touched_before), Type::INT8), (&after, Type::TEXT), (&host, Type::TEXT)];
    let rows = pool.query(&select, &parameters).await.map_err(|failure| failure.read_error())?;
    let (mut found, mut searched) = (IdleSessions::default(), 0);
    for row in &rows {
        let id = session_id(row.get(0))?;
        searched += 1;
        if row.get::<_, Option<bool>>(1) == Some(true) {
            found.ids.push(id.clone());
        }
        if searched == SEARCHED_MAX || found.ids.len() == IdleSessions::FOUND_MAX {
            found.next = Some(id);
            break;
        }
    }
    found.ids.sort();
    Ok(found)
}

/// Returns the number of stored sessions and the size of the tables in bytes.
pub(super) async fn count(pool: &ConnectionPool) -> Result<(i64, u64), JournalError> {
    let count = "
        SELECT (SELECT count(*) FROM sessions WHERE id IS NOT NULL), (
            SELECT sum(pg_total_relation_size(name))::bigint FROM unnest(ARRAY['records', 'sessions', 'trees', 'running',
                'touched', 'documents', 'document_uses', 'hosts']::regclass[]) AS name)";
    let rows = pool.query(count, &[]).await.map_err(|failure| failure.read_error())?;
    let row = rows.first().ok_or_else(|| JournalError::Read("no count".to_owned()))?;
    Ok((row.get(0), unsigned(row.get::<_, Option<i64>>(1).unwrap_or(0))))
}

pub(super) async fn document(
    pool: &ConnectionPool,
    key: &str,
) -> Result<Option<String>, JournalError> {
    let select = "SELECT text FROM documents WHERE key = $1";
    let rows = pool.query(select, &[(&key, Type::TEXT)]).await;
    Ok(rows.map_err(|failure| failure.read_error())?.first().map(|row| row.get(0)))
}

fn session_id(text: &str) -> Result<SessionId, JournalError> {
    SessionId::parse(text).map_err(|error| JournalError::Read(format!("a session's id: {error}")))
}

fn summary(row: &Row) -> Result<SessionSummary, JournalError> {
    let is_running: bool = row.get(2);
    let metadata: Option<&str> = row.get(7);
    let mut summary = SessionSummary::new(session_id(row.get(0))?, row.get::<_, &str>(1));
    summary.state = if is_running { SessionState::Running } else { SessionState::Idle };
    summary.opened = unsigned(row.get(3));
    summary.seq = Seq(unsigned(row.get(4)));
    summary.touched = unsigned(row.get(5));
    summary.number = unsigned(row.get(6));
    summary.metadata =
        metadata.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    Ok(summary)
}
