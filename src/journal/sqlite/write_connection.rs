//! The transactions of the writer.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior};

use super::super::{JournalError, unix_ms};
use super::database;
use super::deletion::{self, DeletionStep};
use super::kill_point::KillPoint;
use super::query;
use super::queue::QueuedBatch;
use crate::types::{SessionId, SessionState};

/// The outcome of a batch in a committed transaction.
pub(super) enum BatchOutcome {
    /// The batch is stored, and ends at this position. `new` is true if the batch created the session.
    Stored { position: LogPosition, new: bool },
    /// The batch does not continue the stored records.
    Refused(JournalError),
}

/// The end of a session's log in the database.
#[derive(Clone, Copy, Debug)]
pub(in crate::journal) struct LogPosition {
    /// The number of the session.
    number: i64,
    /// The sequence number of its last stored record.
    last: u64,
    /// The epoch of the writer at that time.
    epoch: u64,
}

/// The connection of the writer.
#[derive(Debug)]
pub(super) struct WriteConnection {
    pub(super) connection: Connection,
    state: WriteState,
    kill: KillPoint,
}

/// The state of the writer beside the database.
#[derive(Debug)]
struct WriteState {
    /// The number of the next new session. Numbers of removed sessions are not reused, because
    /// their logs may still use them.
    next_number: i64,
    /// The numbers of the sessions that were hidden. Their logs may still append.
    hidden: HashSet<i64>,
    /// Increases when sessions are deleted, and when the database is opened again. Positions of earlier epochs
    /// must be read from the database.
    epoch: u64,
}

impl WriteConnection {
    pub(super) fn new(connection: Connection) -> rusqlite::Result<Self> {
        let numbers = "SELECT coalesce(max(number), 0) + 1 FROM sessions";
        let next_number = connection.query_row(numbers, [], |row| row.get(0))?;
        let state = WriteState { next_number, hidden: HashSet::new(), epoch: 0 };
        Ok(Self { connection, state, kill: KillPoint::from_env() })
    }

    /// Stores a document, or replaces it. Databases of earlier programs have no table for it.
    pub(super) fn put_document(&mut self, key: &str, text: &str) -> rusqlite::Result<()> {
        let transaction = immediate(&mut self.connection)?;
        database::create_document_tables(&transaction)?;
        let insert = "INSERT OR REPLACE INTO documents(key, text, stored) VALUES (?1, ?2, ?3)";
        transaction.execute(insert, (key, text, unix_ms()))?;
        transaction.commit()
    }

    /// Deletes the documents that no session uses, among those with this beginning of the key that were stored
    /// before a time.
    pub(super) fn remove_unused_documents(
        &mut self,
        prefix: &str,
        stored_before: u64,
    ) -> rusqlite::Result<()> {
        let transaction = immediate(&mut self.connection)?;
        if !database::has_document_tables(&transaction)? {
            return Ok(());
        }
        let delete = "DELETE FROM documents
                      WHERE substr(key, 1, length(?1)) = ?1 AND stored < ?2
                      AND NOT EXISTS (SELECT 1 FROM document_uses u WHERE u.key = documents.key)";
        // A time that SQLite cannot express is after all others.
        let stored_before = i64::try_from(stored_before).unwrap_or(i64::MAX);
        transaction.execute(delete, (prefix, stored_before))?;
        transaction.commit()
    }

    /// Stores batches in one transaction. Batches that do not continue the stored records are
    /// refused.
    pub(super) fn store(&mut self, batches: &[QueuedBatch]) -> rusqlite::Result<Vec<BatchOutcome>> {
        let transaction = immediate(&mut self.connection)?;
        let mut records = 0;
        let mut outcomes = Vec::with_capacity(batches.len());
        // The last records of the sessions in this transaction, by number.
        let mut last_seqs = HashMap::new();
        for batch in batches {
            let outcome = insert_batch(&transaction, &mut self.state, &last_seqs, batch)?;
            if let BatchOutcome::Stored { position, .. } = &outcome {
                last_seqs.insert(position.number, position.last);
                records += batch.records();
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
        let transaction = immediate(&mut self.connection)?;
        let hidden = deletion::hide(&transaction, sessions)?;
        transaction.commit()?;
        let removed = hidden.len();
        self.state.hidden.extend(hidden);
        self.state.epoch += 1;
        Ok(removed)
    }

    /// Deletes a part of a hidden session. Returns false if there is nothing left to delete.
    pub(super) fn remove_hidden(&mut self) -> rusqlite::Result<bool> {
        let transaction = immediate(&mut self.connection)?;
        let step = deletion::delete_part(&transaction)?;
        transaction.commit()?;
        if let DeletionStep::Session(number) = step {
            // Without its row the session refuses records anyway.
            self.state.hidden.remove(&number);
        }
        Ok(!matches!(step, DeletionStep::Nothing))
    }

    /// Closes the database.
    pub(super) fn close(&mut self) -> rusqlite::Result<()> {
        self.state.epoch += 1;
        let placeholder = Connection::open_in_memory()?;
        std::mem::replace(&mut self.connection, placeholder).close().map_err(|(_, error)| error)
    }

    /// Writes one page, to try whether the database can be written.
    pub(super) fn probe(&mut self) -> rusqlite::Result<()> {
        let version: i32 =
            self.connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        self.connection.pragma_update(None, "user_version", version)
    }
}

fn immediate(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn insert_batch(
    transaction: &Transaction<'_>,
    state: &mut WriteState,
    last_seqs: &HashMap<i64, u64>,
    batch: &QueuedBatch,
) -> rusqlite::Result<BatchOutcome> {
    let id = &batch.session;
    let refused = |reason: String| Ok(BatchOutcome::Refused(JournalError::Write(reason)));
    let first = *batch.seqs.start();
    if batch.engine_state.has_failed(first) {
        return refused(format!("a record of session {id} before {first} was not stored"));
    }
    let known = *batch.engine_state.position.lock();
    let number = match known {
        Some(known) => Some(known.number),
        None => query::session_row(transaction, id)?.map(|row| row.number),
    };
    if number.is_some_and(|number| state.hidden.contains(&number)) {
        return refused(format!("session {id} has been removed"));
    }
    let new = number.is_none();
    let number = match (number, &batch.opening) {
        (Some(number), _) => {
            let known = known.filter(|known| known.epoch == state.epoch);
            let last = match (last_seqs.get(&number), known) {
                (Some(last), _) => Some(*last),
                (None, Some(known)) => Some(known.last),
                (None, None) => last_seq(transaction, number)?,
            };
            match last {
                Some(last) if last.checked_add(1) == Some(first) => number,
                Some(last) => {
                    return refused(format!(
                        "record {first} of session {id} does not follow the last one, {last}"
                    ));
                }
                None => return refused(format!("session {id} has been removed")),
            }
        }
        (None, Some(opening)) if first == 1 => {
            let origin = match &opening.fork {
                None => None,
                Some((from, prefix)) => match origin(transaction, from, *prefix)? {
                    None => {
                        return refused(format!(
                            "session {from}, of which it is a fork, has been removed"
                        ));
                    }
                    origin => origin,
                },
            };
            let number = state.next_number;
            state.next_number += 1;
            let insert = "INSERT INTO sessions(number, id, agent, running, opened, origin, prefix)
                          VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let running = batch.state == Some(SessionState::Running);
            let (origin, prefix) = origin.unzip();
            transaction.prepare_cached(insert)?.execute((
                number,
                id.as_str(),
                &opening.agent,
                running,
                opening.time,
                origin,
                prefix.unwrap_or(0),
            ))?;
            if let Some(metadata) = &opening.metadata {
                if !query::has_metadata_column(transaction)? {
                    transaction.execute_batch("ALTER TABLE sessions ADD COLUMN metadata TEXT")?;
                }
                transaction
                    .prepare_cached("UPDATE sessions SET metadata = ?2 WHERE number = ?1")?
                    .execute((number, metadata))?;
            }
            number
        }
        (None, Some(_) | None) => return refused(format!("there is no session {id}")),
    };
    let mut insert = transaction
        .prepare_cached("INSERT INTO records(session, seq, time, body) VALUES (?1, ?2, ?3, ?4)")?;
    for row in &batch.rows {
        insert.execute((number, row.last_seq, row.time, &row.bodies))?;
    }
    if !batch.documents.is_empty() {
        database::create_document_tables(transaction)?;
        let name = "INSERT OR IGNORE INTO document_uses(session, key) VALUES (?1, ?2)";
        let mut name = transaction.prepare_cached(name)?;
        for key in &batch.documents {
            name.execute((number, key))?;
        }
    }
    if let (false, Some(state)) = (new, batch.state) {
        transaction
            .prepare_cached("UPDATE sessions SET running = ?2 WHERE number = ?1 AND running <> ?2")?
            .execute((number, state == SessionState::Running))?;
    }
    let position = LogPosition { number, last: *batch.seqs.end(), epoch: state.epoch };
    Ok(BatchOutcome::Stored { position, new })
}

/// Returns the sequence number of a session's last record.
fn last_seq(transaction: &Transaction<'_>, number: i64) -> rusqlite::Result<Option<u64>> {
    transaction
        .prepare_cached("SELECT seq FROM records WHERE session = ?1 ORDER BY seq DESC LIMIT 1")?
        .query_row([number], |row| row.get(0))
        .optional()
}

/// Returns the session whose own records end with the record `prefix` of a session or follow it, and `prefix`.
/// `None` if they do not exist.
fn origin(
    transaction: &Transaction<'_>,
    from: &SessionId,
    prefix: u64,
) -> rusqlite::Result<Option<(i64, u64)>> {
    let Some(mut row) = query::session_row(transaction, from)? else { return Ok(None) };
    // A fork of a fork that shares only what that one shares.
    while let Some((origin, shared)) = row.origin
        && prefix <= shared
    {
        let Some(next) = query::numbered_session_row(transaction, origin)? else { return Ok(None) };
        row = next;
    }
    let last = last_seq(transaction, row.number)?;
    Ok(last.filter(|last| prefix <= *last).map(|_| (row.number, prefix)))
}
