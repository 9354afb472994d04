//! The transactions of the writer.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use super::super::JournalError;
use super::kill_point::KillPoint;
use super::query::BEFORE_ALL_IDS;
use super::queue::QueuedBatch;
use crate::types::{SessionId, SessionState};

/// The part of a session that one transaction deletes: few records, so that other sessions do not wait, and
/// few bytes, so that the write-ahead log stays short.
const REMOVED_RECORDS_MAX: usize = 256;
const REMOVED_BYTES_MAX: u64 = 1 << 20;

/// The outcome of a batch in a committed transaction.
pub(super) enum BatchOutcome {
    /// The batch is stored in the session with this number. `new` is true if the
    /// batch created the session.
    Stored { number: i64, new: bool },
    /// The batch does not continue the stored records.
    Refused(JournalError),
}

/// The connection of the writer.
#[derive(Debug)]
pub(super) struct WriteConnection {
    pub(super) connection: Connection,
    /// The number of the next new session. Numbers of removed sessions are not reused, because
    /// their logs may still use them.
    next_number: i64,
    /// The numbers of the sessions that were hidden. Their logs may still append.
    hidden: HashSet<i64>,
    kill: KillPoint,
}

impl WriteConnection {
    pub(super) fn new(connection: Connection) -> rusqlite::Result<Self> {
        let numbers = "SELECT coalesce(max(number), 0) + 1 FROM sessions";
        let next_number = connection.query_row(numbers, [], |row| row.get(0))?;
        Ok(Self { connection, next_number, hidden: HashSet::new(), kill: KillPoint::from_env() })
    }

    /// Stores batches in one transaction. Batches that do not continue the stored records are
    /// refused.
    pub(super) fn store(&mut self, batches: &[QueuedBatch]) -> rusqlite::Result<Vec<BatchOutcome>> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut records = 0;
        let mut outcomes = Vec::with_capacity(batches.len());
        for batch in batches {
            let outcome = insert_batch(&transaction, &mut self.next_number, &self.hidden, batch)?;
            if matches!(outcome, BatchOutcome::Stored { .. }) {
                records += batch.rows.len();
            }
            outcomes.push(outcome);
        }
        self.kill.before_commit(records);
        transaction.commit()?;
        self.kill.after_commit(records);
        Ok(outcomes)
    }

    /// Hides sessions, so that they do not exist any more. Returns how many existed.
    pub(super) fn hide(&mut self, sessions: &[SessionId]) -> rusqlite::Result<usize> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut hidden = Vec::new();
        for session in sessions {
            let Some(number) = session_number(&transaction, session)? else { continue };
            let hide = "UPDATE sessions SET id = '!' || number, running = 0 WHERE number = ?1";
            transaction.prepare_cached(hide)?.execute([number])?;
            hidden.push(number);
        }
        transaction.commit()?;
        let removed = hidden.len();
        self.hidden.extend(hidden);
        Ok(removed)
    }

    /// Deletes some of the records of hidden sessions, or one such session without records. Returns
    /// false if there is no hidden session.
    pub(super) fn remove_hidden(&mut self) -> rusqlite::Result<bool> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let next: Option<i64> = transaction
            .prepare_cached("SELECT number FROM sessions WHERE id < ?1 LIMIT 1")?
            .query_row([BEFORE_ALL_IDS], |row| row.get(0))
            .optional()?;
        let Some(number) = next else { return Ok(false) };
        let mut rows = Vec::new();
        let mut bytes = 0;
        {
            let mut records = transaction.prepare_cached(
                "SELECT rowid, octet_length(body) FROM records WHERE session = ?1 ORDER BY seq DESC",
            )?;
            let mut records = records.query([number])?;
            while rows.len() < REMOVED_RECORDS_MAX
                && bytes < REMOVED_BYTES_MAX
                && let Some(row) = records.next()?
            {
                rows.push(row.get::<_, i64>(0)?);
                bytes += row.get::<_, u64>(1)?;
            }
        }
        let mut delete = transaction.prepare_cached("DELETE FROM records WHERE rowid = ?1")?;
        for row in &rows {
            delete.execute([row])?;
        }
        drop(delete);
        if rows.is_empty() {
            let delete = "DELETE FROM sessions WHERE number = ?1";
            transaction.prepare_cached(delete)?.execute([number])?;
        }
        transaction.commit()?;
        if rows.is_empty() {
            // Without its row and its records the session refuses records anyway.
            self.hidden.remove(&number);
        }
        Ok(true)
    }

    /// Writes one page, to try whether the database can be written.
    pub(super) fn probe(&mut self) -> rusqlite::Result<()> {
        let version: i32 =
            self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        self.connection.pragma_update(None, "user_version", version)
    }
}

fn insert_batch(
    transaction: &Transaction<'_>,
    next_number: &mut i64,
    hidden: &HashSet<i64>,
    batch: &QueuedBatch,
) -> rusqlite::Result<BatchOutcome> {
    let id = &batch.session;
    let refused = |reason: String| Ok(BatchOutcome::Refused(JournalError::Write(reason)));
    let Some(first) = batch.rows.first() else {
        return refused("a batch without records".to_owned());
    };
    if batch.engine_state.has_failed(first.seq) {
        return refused(format!("a record of session {id} before {} was not stored", first.seq));
    }
    let known = match batch.engine_state.number.load(Ordering::Acquire) {
        0 => session_number(transaction, id)?,
        number => Some(number),
    };
    if known.is_some_and(|number| hidden.contains(&number)) {
        return refused(format!("session {id} has been removed"));
    }
    let new = known.is_none();
    let number = match (known, &batch.opens) {
        (Some(number), _) => {
            let last: Option<u64> = transaction
                .prepare_cached(
                    "SELECT seq FROM records WHERE session = ?1 ORDER BY seq DESC LIMIT 1",
                )?
                .query_row([number], |row| row.get(0))
                .optional()?;
            match last {
                Some(last) if last.checked_add(1) == Some(first.seq) => number,
                Some(last) => {
                    return refused(format!(
                        "record {} of session {id} does not follow the last one, {last}",
                        first.seq
                    ));
                }
                None => return refused(format!("session {id} has been removed")),
            }
        }
        (None, Some(agent)) if first.seq == 1 => {
            let number = *next_number;
            *next_number += 1;
            let insert = "INSERT INTO sessions(number, id, agent, running, opened) VALUES (?1, ?2, ?3, ?4, ?5)";
            let running = batch.state == Some(SessionState::Running);
            transaction.prepare_cached(insert)?.execute((
                number,
                id.as_str(),
                agent,
                running,
                first.time,
            ))?;
            number
        }
        (None, Some(_) | None) => return refused(format!("there is no session {id}")),
    };
    insert_rows(transaction, number, batch)?;
    if let (false, Some(state)) = (new, batch.state) {
        transaction
            .prepare_cached("UPDATE sessions SET running = ?2 WHERE number = ?1 AND running <> ?2")?
            .execute((number, state == SessionState::Running))?;
    }
    Ok(BatchOutcome::Stored { number, new })
}

fn insert_rows(
    transaction: &Transaction<'_>,
    number: i64,
    batch: &QueuedBatch,
) -> rusqlite::Result<()> {
    let mut insert = transaction
        .prepare_cached("INSERT INTO records(session, seq, time, body) VALUES (?1, ?2, ?3, ?4)")?;
    for row in &batch.rows {
        insert.execute((number, row.seq, row.time, &row.body))?;
    }
    Ok(())
}

fn session_number(transaction: &Transaction<'_>, id: &SessionId) -> rusqlite::Result<Option<i64>> {
    transaction
        .prepare_cached("SELECT number FROM sessions WHERE id = ?1")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()
}
