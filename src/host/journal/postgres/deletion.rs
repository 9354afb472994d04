//! Deletes the records of removed sessions, and documents that no record names.

use tokio_postgres::types::{ToSql, Type};

use super::super::JournalError;
use super::encoding::signed;
use super::pool::ConnectionPool;
use super::trees::OwnedTrees;
use callsheet_values::types::SessionId;

/// Deletes a part of a removed session: at most 1,000 records. The last part deletes the row of the session. The records
/// that forks share are kept, and the row with them.
const DELETE_PART: &str = "
    WITH x AS MATERIALIZED (
        SELECT number FROM sessions WHERE removed = 1 AND ($1::bigint[] IS NULL OR number = ANY ($1))
        ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED)
    , shared AS MATERIALIZED (
        SELECT coalesce(max(f.prefix), 0) AS upto FROM sessions f WHERE f.origin = (SELECT number FROM x))
    , gone AS (
        DELETE FROM records WHERE session = (SELECT number FROM x) AND seq = ANY (ARRAY(
            SELECT seq FROM records WHERE session = (SELECT number FROM x) AND seq > (SELECT upto FROM shared)
            ORDER BY seq DESC LIMIT 1000))
        RETURNING 1)
    , n AS MATERIALIZED (SELECT count(*) AS deleted FROM gone)
    , kept AS (
        UPDATE sessions SET removed = 2 FROM x, shared, n
        WHERE sessions.number = x.number AND n.deleted < 1000 AND shared.upto > 0)
    , dropped AS (
        DELETE FROM sessions USING x, shared, n
        WHERE sessions.number = x.number AND n.deleted < 1000 AND shared.upto = 0
        RETURNING sessions.number, sessions.root, sessions.origin)
    , released AS (
        UPDATE sessions SET removed = 1 FROM dropped WHERE sessions.number = dropped.origin AND sessions.removed = 2)
    SELECT x.number, (SELECT root FROM dropped), (SELECT origin FROM dropped) FROM x, n";

/// Deletes a tree without sessions.
const DELETE_TREE: &str = "
    DELETE FROM trees WHERE root = $1 AND NOT EXISTS (SELECT 1 FROM sessions WHERE number = $1)
    AND NOT EXISTS (SELECT 1 FROM sessions WHERE root = $1 AND child) RETURNING epoch";

/// Deletes the records of removed sessions: of those with these numbers and of their origins, or of all. Several hosts may
/// do so at the same time.
pub(super) async fn delete_removed(
    pool: &ConnectionPool,
    trees: &OwnedTrees,
    numbers: Option<Vec<i64>>,
) -> Result<(), JournalError> {
    let mut numbers = numbers;
    loop {
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&numbers, Type::INT8_ARRAY)];
        let rows = pool.query(DELETE_PART, &parameters).await;
        let rows = rows.map_err(|failure| failure.write_error())?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (root, origin): (Option<i64>, Option<i64>) = (row.get(1), row.get(2));
        if let (Some(numbers), Some(origin)) = (&mut numbers, origin) {
            // It may have been kept for this fork.
            numbers.push(origin);
        }
        if let Some(root) = root {
            let rows = pool.query(DELETE_TREE, &[(&root, Type::INT8)]).await;
            let rows = rows.map_err(|failure| failure.write_error())?;
            rows.iter().for_each(|row| trees.remove(root, row.get(0)));
        }
    }
}

/// Deletes the documents without uses, among those with this beginning of the key that were stored before a time of the
/// database's clock.
pub(super) async fn delete_unused_documents(
    pool: &ConnectionPool,
    prefix: &str,
    stored_before: u64,
) -> Result<(), JournalError> {
    let delete = "
        DELETE FROM documents WHERE starts_with(key, $1) AND stored < $2
        AND NOT EXISTS (SELECT 1 FROM document_uses u WHERE u.key = documents.key)";
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&prefix, Type::TEXT), (&signed(stored_before), Type::INT8)];
    pool.query(delete, &parameters).await.map_err(|failure| failure.write_error())?;
    Ok(())
}

/// Stores a text under a key that has another one, or none.
pub(super) async fn replace_document(
    pool: &ConnectionPool,
    key: &str,
    before: Option<&str>,
    text: &str,
    used_by: Option<&SessionId>,
) -> Result<bool, JournalError> {
    let replace = "
        WITH replaced AS (
            UPDATE documents SET text = $2, stored = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
            WHERE key = $1 AND text = $3 RETURNING key)
        , added AS (
            INSERT INTO documents (key, text, stored)
            SELECT $1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint WHERE $3::text IS NULL
            ON CONFLICT (key) DO NOTHING RETURNING key)
        , stored AS (SELECT key FROM replaced UNION ALL SELECT key FROM added)
        , used AS (
            INSERT INTO document_uses (session, key)
            SELECT number, $1 FROM sessions, stored WHERE id = $4
            ON CONFLICT DO NOTHING)
        SELECT key FROM stored";
    let used_by = used_by.map(SessionId::as_str);
    let parameters: [(&(dyn ToSql + Sync), Type); 4] =
        [(&key, Type::TEXT), (&text, Type::TEXT), (&before, Type::TEXT), (&used_by, Type::TEXT)];
    let rows = pool.query(replace, &parameters).await.map_err(|failure| failure.write_error())?;
    Ok(!rows.is_empty())
}

/// Stores a document, with the time of the database's clock.
pub(super) async fn put_document(
    pool: &ConnectionPool,
    key: &str,
    text: &str,
    used_by: Option<&SessionId>,
) -> Result<(), JournalError> {
    let put = "
        WITH used AS (
            INSERT INTO document_uses (session, key)
            SELECT number, $1 FROM sessions WHERE id = $3
            ON CONFLICT DO NOTHING)
        INSERT INTO documents (key, text, stored) VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        ON CONFLICT (key) DO UPDATE SET text = excluded.text, stored = excluded.stored";
    let used_by = used_by.map(SessionId::as_str);
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&key, Type::TEXT), (&text, Type::TEXT), (&used_by, Type::TEXT)];
    pool.query(put, &parameters).await.map_err(|failure| failure.write_error())?;
    Ok(())
}
