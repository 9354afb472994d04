//! Deletes sessions step by step.
//!
//! A deleted session is hidden first: its id becomes `!` and its number. Its records are then deleted in
//! parts. The records that forks share stay as long as one of these forks; the id is then `#` and the number.
//! Both are less than every session id.

use rusqlite::{OptionalExtension as _, Transaction};

use super::{database, query, rows};
use callsheet_values::record::HISTORY_POINTS;
use callsheet_values::types::SessionId;

/// A text that is greater than the ids of sessions that are being deleted, and less than all others.
const AFTER_DELETED_IDS: &str = "\"";

/// The limits of what one transaction deletes: few rows, so that other sessions do not wait, and
/// few bytes, so that the write-ahead log stays short.
const DELETED_ROWS_MAX: usize = 256;
const DELETED_BYTES_MAX: u64 = 1 << 20;

/// The rows and sessions that one transaction has deleted.
#[derive(Debug, Default)]
pub(super) struct DeletedPart {
    /// The numbers of the sessions that do not exist any more.
    pub(super) sessions: Vec<i64>,
    /// The number of rows, with those of sessions.
    rows: usize,
    bytes: u64,
}

impl DeletedPart {
    /// Returns true if nothing was left to delete.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn is_full(&self) -> bool {
        self.rows >= DELETED_ROWS_MAX || self.bytes >= DELETED_BYTES_MAX
    }
}

/// Hides sessions, so that they do not exist for readers. Returns the numbers of those that existed.
pub(super) fn hide(
    transaction: &Transaction<'_>,
    sessions: &[SessionId],
) -> rusqlite::Result<Vec<i64>> {
    let mut hidden = Vec::new();
    let has_documents = database::has_document_tables(transaction)?;
    for session in sessions {
        let Some(row) = query::session_row(transaction, session)? else { continue };
        let hide = "UPDATE sessions SET id = '!' || number WHERE number = ?1";
        transaction.prepare_cached(hide)?.execute([row.number])?;
        let stop = "DELETE FROM running WHERE session = ?1";
        transaction.prepare_cached(stop)?.execute([row.number])?;
        if has_documents {
            let delete = "DELETE FROM documents
                WHERE key IN (SELECT key FROM document_uses WHERE session = ?1 AND substr(key, 1, length(?2)) = ?2)
                AND NOT EXISTS (SELECT 1 FROM document_uses u WHERE u.key = documents.key AND u.session <> ?1)";
            transaction.prepare_cached(delete)?.execute((row.number, HISTORY_POINTS))?;
            let release = "DELETE FROM document_uses WHERE session = ?1";
            transaction.prepare_cached(release)?.execute([row.number])?;
        }
        hidden.push(row.number);
    }
    Ok(hidden)
}

/// Deletes hidden sessions with their records, as many as one transaction deletes. Keeps the records that forks share.
pub(super) fn delete_part(transaction: &Transaction<'_>) -> rusqlite::Result<DeletedPart> {
    let mut part = DeletedPart::default();
    while !part.is_full() {
        let next: Option<i64> = transaction
            .prepare_cached("SELECT number FROM sessions WHERE id < ?1 LIMIT 1")?
            .query_row([AFTER_DELETED_IDS], |row| row.get(0))
            .optional()?;
        let Some(number) = next else { break };
        // The last record that a fork shares. 0: none.
        let shared: u64 = transaction
            .prepare_cached("SELECT coalesce(max(prefix), 0) FROM sessions WHERE origin = ?1")?
            .query_row([number], |row| row.get(0))?;
        cut_row(transaction, number, shared)?;
        delete_rows(transaction, number, shared, &mut part)?;
        // Other records of the session may be left.
        if part.is_full() {
            break;
        }
        part.rows += 1;
        if shared > 0 {
            let keep = "UPDATE sessions SET id = '#' || number WHERE number = ?1";
            transaction.prepare_cached(keep)?.execute([number])?;
            continue;
        }
        // If the session is a fork, the session with its first records may have kept them for it.
        let release = "UPDATE sessions SET id = '!' || number
                       WHERE number = (SELECT origin FROM sessions WHERE number = ?1) AND id = '#' || number";
        transaction.prepare_cached(release)?.execute([number])?;
        let delete = "DELETE FROM sessions WHERE number = ?1";
        transaction.prepare_cached(delete)?.execute([number])?;
        part.sessions.push(number);
    }
    Ok(part)
}

/// Removes the records after the last shared one from the row that contains it. The time of the row stays, because its
/// lines refer to it.
fn cut_row(transaction: &Transaction<'_>, number: i64, shared: u64) -> rusqlite::Result<()> {
    if shared == 0 {
        return Ok(());
    }
    let following =
        "SELECT rowid, seq, body FROM records WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT 1";
    let following: Option<(i64, u64, Vec<u8>)> = transaction
        .prepare_cached(following)?
        .query_row((number, shared), |row| {
            // The text of a damaged row may not be UTF-8.
            Ok((row.get(0)?, row.get(1)?, row.get_ref(2)?.as_bytes()?.to_vec()))
        })
        .optional()?;
    let Some((row, last, bodies)) = following else { return Ok(()) };
    let first = rows::first_of_row(last, &bodies);
    let bodies = bodies.split(|byte| *byte == b'\n');
    let kept: Vec<&[u8]> = (first..=shared).zip(bodies).map(|(_, body)| body).collect();
    if kept.is_empty() {
        return Ok(());
    }
    transaction
        .prepare_cached("UPDATE records SET seq = ?2, body = CAST(?3 AS TEXT) WHERE rowid = ?1")?
        .execute((row, shared, kept.join(&b'\n')))?;
    Ok(())
}

/// Deletes rows after the last shared record, until the part is full.
fn delete_rows(
    transaction: &Transaction<'_>,
    number: i64,
    shared: u64,
    part: &mut DeletedPart,
) -> rusqlite::Result<()> {
    let mut deleted = Vec::new();
    {
        let mut rows = transaction.prepare_cached(
            "SELECT rowid, octet_length(body) FROM records
             WHERE session = ?1 AND seq > ?2 ORDER BY seq DESC",
        )?;
        let mut rows = rows.query((number, shared))?;
        while !part.is_full()
            && let Some(row) = rows.next()?
        {
            deleted.push(row.get::<_, i64>(0)?);
            part.rows += 1;
            part.bytes += row.get::<_, u64>(1)?;
        }
    }
    let mut delete = transaction.prepare_cached("DELETE FROM records WHERE rowid = ?1")?;
    for row in &deleted {
        delete.execute([row])?;
    }
    Ok(())
}
