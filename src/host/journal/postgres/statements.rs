//! The statements of the writer. Each of them is a transaction.
//!
//! A statement that stores has the *fence* as its first part: it locks the trees that this host owns with the given
//! epochs, and stores only what belongs to them. A takeover changes the same rows, so it waits for a statement that is
//! being executed, and a later one finds the new epoch. The locks are shared: statements of one owner do not wait for
//! each other. They are taken in one order.
//!
//! `(k IN (SELECT k FROM t)) IS TRUE` is a set that is hashed, instead of a join of each row with each tree.

use std::time::Duration;

use tokio_postgres::Statement;

use super::connection::DatabaseConnection;
use super::errors::StatementFailure;

/// Begins a fenced statement. `t` has the places of the trees that this host owns. Parameters: the roots and epochs of
/// the trees, and the host.
macro_rules! fenced {
    ($($rest:expr),+) => {
        concat!(
            "WITH t AS MATERIALIZED (
                SELECT o.k FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS o(root, epoch, k)
                JOIN trees ON trees.root = o.root AND trees.epoch = o.epoch
                WHERE trees.owner = $3::text::uuid ORDER BY trees.root FOR SHARE OF trees)",
            $($rest),+
        )
    };
}

/// Inserts records. Parameters: the trees' places, sessions, numbers, times and bodies.
macro_rules! insert_records {
    () => {
        ", stored AS (
            INSERT INTO records (session, seq, time, body)
            SELECT b.session, b.seq, b.time, b.body
            FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[])
                AS b(k, session, seq, time, body)
            WHERE (b.k IN (SELECT k FROM t)) IS TRUE)"
    };
}

/// Stores records. Returns the places of the owned trees.
const APPEND: &str = fenced!(insert_records!(), " SELECT k FROM t");

/// Stores records, and what they change of their sessions. Further parameters: of the sessions that run now the trees'
/// places, numbers, ids and roots; of those that do not run any more the places, numbers and times; of the documents that
/// records name the places, sessions and keys.
const APPEND_AND_CHANGE: &str = fenced!(
    insert_records!(),
    ", begun AS (
        INSERT INTO running (session, id, root)
        SELECT c.session, c.id, c.root
        FROM unnest($9::bigint[], $10::bigint[], $11::text[], $12::bigint[]) AS c(k, session, id, root)
        WHERE (c.k IN (SELECT k FROM t)) IS TRUE
        ON CONFLICT DO NOTHING)
    , ended AS (
        DELETE FROM running USING unnest($13::bigint[], $14::bigint[]) AS e(k, session)
        WHERE running.session = e.session AND (e.k IN (SELECT k FROM t)) IS TRUE)
    , idle AS (
        INSERT INTO touched (session, time)
        SELECT e.session, e.time FROM unnest($13::bigint[], $14::bigint[], $15::bigint[]) AS e(k, session, time)
        WHERE (e.k IN (SELECT k FROM t)) IS TRUE
        ON CONFLICT (session) DO UPDATE SET time = excluded.time)
    , used AS (
        INSERT INTO document_uses (session, key)
        SELECT u.session, u.key FROM unnest($16::bigint[], $17::bigint[], $18::text[]) AS u(k, session, key)
        WHERE (u.k IN (SELECT k FROM t)) IS TRUE
        ON CONFLICT DO NOTHING)
    SELECT k FROM t"
);

/// Opens sessions that are not stored, with the records of their first batches. The host owns the new trees.
///
/// Parameters: the host; of each session the id, agent, time and metadata; if it is a child session the root and the
/// epoch of its tree; if it is a fork the session whose records it forks, the one that has the last shared record in its
/// own rows, and the number of shared records; whether it runs, and the time of its last record. Of each record its
/// session's place, number, time and body. Of each use of a document its session's place and the key.
///
/// Returns the places, with the number and the root of each session that was opened. A place is missing if the tree of a
/// child is not this host's, or the session of a fork was removed.
const OPEN: &str = "
    WITH o AS MATERIALIZED (
        SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::text[], $6::boolean[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[], $11::bigint[], $12::boolean[], $13::bigint[]) WITH ORDINALITY
            AS o(id, agent, opened, metadata, child, root, epoch, forked, origin, prefix, runs, touched, k))
    , t AS MATERIALIZED (
        SELECT o.k FROM o JOIN trees ON trees.root = o.root AND trees.epoch = o.epoch
        WHERE trees.owner = $1::text::uuid ORDER BY trees.root FOR SHARE OF trees)
    , f AS MATERIALIZED (
        SELECT number FROM sessions WHERE number = ANY ($9::bigint[]) AND removed = 0 ORDER BY number FOR SHARE)
    , n AS MATERIALIZED (
        SELECT o.*, nextval('session_numbers') AS number FROM o
        WHERE (o.root IS NULL OR (o.k IN (SELECT k FROM t)) IS TRUE)
        AND (o.forked IS NULL OR (o.forked IN (SELECT number FROM f)) IS TRUE))
    , s AS (
        INSERT INTO sessions (number, id, root, child, agent, opened, origin, prefix, metadata)
        SELECT number, id, coalesce(root, number), child, agent, opened, origin, prefix, metadata FROM n ORDER BY k
        ON CONFLICT (id) DO NOTHING
        RETURNING number, root)
    , opened AS MATERIALIZED (
        SELECT n.k, n.id, n.number, s.root, n.runs, n.touched FROM s JOIN n ON n.number = s.number)
    , owned AS (
        INSERT INTO trees (root, owner, epoch)
        SELECT number, $1::text::uuid, 1 FROM opened WHERE root = number)
    , stored AS (
        INSERT INTO records (session, seq, time, body)
        SELECT opened.number, b.seq, b.time, b.body
        FROM unnest($14::bigint[], $15::bigint[], $16::bigint[], $17::bytea[]) AS b(k, seq, time, body)
        JOIN opened ON opened.k = b.k)
    , begun AS (
        INSERT INTO running (session, id, root) SELECT number, id, root FROM opened WHERE runs)
    , idle AS (
        INSERT INTO touched (session, time) SELECT number, touched FROM opened)
    , used AS (
        INSERT INTO document_uses (session, key)
        SELECT opened.number, u.key FROM unnest($18::bigint[], $19::text[]) AS u(k, key)
        JOIN opened ON opened.k = u.k
        ON CONFLICT DO NOTHING)
    SELECT n.k, opened.number, opened.root FROM n LEFT JOIN opened ON opened.k = n.k";

/// Hides sessions, and deletes the documents with points of histories (`HISTORY_POINTS`) that only they use. Further
/// parameters: the trees' places and the sessions. Returns the places of the owned trees (0) and
/// the sessions that were there (1).
const HIDE: &str = fenced!(
    ", h AS (
        UPDATE sessions SET id = NULL, removed = 1 FROM unnest($4::bigint[], $5::bigint[]) AS x(k, number)
        WHERE sessions.number = x.number AND sessions.removed = 0 AND (x.k IN (SELECT k FROM t)) IS TRUE
        RETURNING sessions.number)
    , ended AS (DELETE FROM running USING h WHERE running.session = h.number)
    , idle AS (DELETE FROM touched USING h WHERE touched.session = h.number)
    , used AS (DELETE FROM document_uses USING h WHERE document_uses.session = h.number RETURNING key)
    , points AS (
        DELETE FROM documents USING used WHERE documents.key = used.key AND starts_with(used.key, 'chat-')
        AND NOT EXISTS (
            SELECT 1 FROM document_uses u WHERE u.key = used.key AND u.session NOT IN (SELECT number FROM h)))
    SELECT 0, k FROM t UNION ALL SELECT 1, number FROM h"
);

/// Finds sessions by their ids: the id, number, root, last record, owner, epoch, and whether the owner is another host whose
/// lease is not over.
const FIND: &str = "
    SELECT s.id, s.number, s.root,
        (SELECT seq FROM records WHERE session = s.number ORDER BY seq DESC LIMIT 1), t.owner::text, t.epoch,
        t.owner <> $2::text::uuid AND EXISTS (SELECT 1 FROM hosts h WHERE h.id = t.owner AND h.lease_end > now())
    FROM unnest($1::text[]) AS w(id) JOIN sessions s ON s.id = w.id
    JOIN trees t ON t.root = s.root";

/// Finds the session with the record `$2` of the session `$1` in its own rows: the number of each session from that one on
/// down to this, and its last record.
const FIND_ORIGIN: &str = "
    WITH RECURSIVE c(depth, number, origin, prefix) AS (
        SELECT 1, number, origin, prefix FROM sessions WHERE id = $1
        UNION ALL
        SELECT c.depth + 1, s.number, s.origin, s.prefix FROM c JOIN sessions s ON s.number = c.origin
        WHERE $2 <= c.prefix)
    SELECT number, (SELECT seq FROM records WHERE session = c.number ORDER BY seq DESC LIMIT 1)
    FROM c ORDER BY depth";

/// Takes trees whose epochs are known. Parameters: the host, the roots and the epochs.
pub(super) const TAKE: &str = "
    UPDATE trees SET owner = $1::text::uuid, epoch = trees.epoch + 1
    FROM unnest($2::bigint[], $3::bigint[]) AS w(root, epoch)
    WHERE trees.root = w.root AND trees.epoch = w.epoch
    RETURNING trees.root, trees.epoch";

/// Gives trees away: no host owns them. Parameters: the host, the roots, the epochs, and whether each is given although a
/// session of it has a run that has not ended. Returns the roots of those that were.
const GIVE: &str = "
    UPDATE trees SET owner = NULL FROM unnest($2::bigint[], $3::bigint[], $4::boolean[]) AS w(root, epoch, with_runs)
    WHERE trees.root = w.root AND trees.epoch = w.epoch AND trees.owner = $1::text::uuid
    AND (w.with_runs OR NOT EXISTS (SELECT 1 FROM running WHERE running.root = w.root))
    RETURNING trees.root";

/// Finds what is stored of batches. Parameters: the host; the ids of their sessions, and their first and last records.
/// Returns the place of each batch whose session is stored, the session's number and root, the tree's epoch, whether this
/// host owns it, and each record.
const LOOK: &str = "
    SELECT w.k, s.number, s.root, t.epoch, t.owner IS NOT DISTINCT FROM $1::text::uuid, r.seq, r.time, r.body
    FROM unnest($2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS w(id, first, last, k)
    JOIN sessions s ON s.id = w.id JOIN trees t ON t.root = s.root
    LEFT JOIN records r ON r.session = s.number AND r.seq BETWEEN w.first AND w.last
    ORDER BY w.k, r.seq";

/// Makes all earlier commits of the connection durable: a commit that waits for the disk, of something that is in the
/// server's log.
const FLUSH: &str = "
    SELECT set_config('synchronous_commit', 'on', true) <> '', pg_logical_emit_message(true, 'callsheet', '')::text";

/// The prepared statements of a connection.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) append: Statement,
    pub(super) append_and_change: Statement,
    pub(super) open: Statement,
    pub(super) hide: Statement,
    pub(super) find: Statement,
    pub(super) find_origin: Statement,
    pub(super) take: Statement,
    pub(super) give: Statement,
    pub(super) look: Statement,
    pub(super) flush: Statement,
}

impl Statements {
    pub(super) async fn prepare(
        connection: &DatabaseConnection,
        limit: Duration,
    ) -> Result<Self, StatementFailure> {
        // All of them are on their way at the same time.
        let prepare = |sql| connection.prepare(limit, sql);
        let (append, append_and_change, open, hide, find, find_origin, take, give, look, flush) =
            Box::pin(async {
                tokio::try_join!(
                    prepare(APPEND),
                    prepare(APPEND_AND_CHANGE),
                    prepare(OPEN),
                    prepare(HIDE),
                    prepare(FIND),
                    prepare(FIND_ORIGIN),
                    prepare(TAKE),
                    prepare(GIVE),
                    prepare(LOOK),
                    prepare(FLUSH)
                )
            })
            .await?;
        Ok(Self {
            append,
            append_and_change,
            open,
            hide,
            find,
            find_origin,
            take,
            give,
            look,
            flush,
        })
    }
}
