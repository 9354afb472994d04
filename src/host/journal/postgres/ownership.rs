//! The ownership of trees: takes them, gives them away, and says who owns them.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio_postgres::types::{ToSql, Type};

use super::super::ownership::{HostInfo, OtherHost, Owner, Ownership};
use super::super::{BatchRefusal, JournalError, JournalFuture};
use super::PostgresJournal;
use super::deletion;
use super::encoding::{signed, unsigned};
use super::queue::TreeTask;
use super::statements;
use super::trees::GivenTree;
use callsheet_values::types::{SessionId, millis};

/// Number of attempts to take a tree that other hosts take or give away at the same time.
const TAKE_TRIES: usize = 8;

/// The trees of sessions, and their owners.
const OWNERS: &str = "
    SELECT w.k, s.root, t.owner::text, t.epoch, h.id IS NOT NULL, h.address
    FROM unnest($1::text[]) WITH ORDINALITY AS w(id, k)
    JOIN sessions s ON s.id = w.id JOIN trees t ON t.root = s.root
    LEFT JOIN hosts h ON h.id = t.owner AND h.lease_end > now()";

/// The trees of no host, of dead ones, or of this one (`$1`) if it may not know them (`$2`), in which a run has not ended:
/// their roots and epochs. At most `$3`.
const ABANDONED: &str = "
    SELECT DISTINCT t.root, t.epoch FROM running u JOIN trees t ON t.root = u.root
    WHERE (t.owner = $1::text::uuid AND t.root = ANY ($2::bigint[])) OR (t.owner IS DISTINCT FROM $1::text::uuid
        AND NOT EXISTS (SELECT 1 FROM hosts h WHERE h.id = t.owner AND h.lease_end > now()))
    ORDER BY t.root LIMIT $3";

/// Takes at most `$4` of the trees with these roots and epochs. Trees that another host takes now are left to it.
const TAKE_SOME: &str = "
    WITH locked AS MATERIALIZED (
        SELECT t.root FROM unnest($2::bigint[], $3::bigint[]) AS w(root, epoch)
        JOIN trees t ON t.root = w.root AND t.epoch = w.epoch
        ORDER BY t.root LIMIT $4 FOR NO KEY UPDATE OF t SKIP LOCKED)
    UPDATE trees SET owner = $1::text::uuid, epoch = trees.epoch + 1 FROM locked
    WHERE trees.root = locked.root RETURNING trees.root, trees.epoch";

/// More trees are looked at than are taken, because other hosts take some of them at the same time.
const CANDIDATES_PER_TREE: usize = 4;

/// The unfinished sessions of trees.
const UNFINISHED: &str = "SELECT id FROM running WHERE root = ANY ($1) ORDER BY id";

const HOSTS: &str = "
    SELECT id::text, address, version, sessions, (extract(epoch FROM now() - beat) * 1000)::bigint
    FROM hosts WHERE lease_end > now() ORDER BY started, id";

/// A session's tree in the database.
struct StoredTree {
    root: i64,
    epoch: i64,
    /// `None`: no host, or one whose lease is over.
    owner: Option<Owner>,
}

impl Ownership for PostgresJournal {
    fn host_id(&self) -> &str {
        self.shared.lease.id()
    }

    fn take<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Owner> {
        Box::pin(async move {
            let trees = &self.shared.trees;
            if trees.use_again(session) {
                return Ok(Owner::This);
            }
            for _ in 0..TAKE_TRIES {
                let tree = self.stored_trees(std::slice::from_ref(session)).await?.pop().flatten();
                let Some(tree) = tree else { return Ok(Owner::This) };
                if let Some(Owner::Other(other)) = tree.owner {
                    return Ok(Owner::Other(other));
                }
                if tree.owner == Some(Owner::This) && trees.is_owned(tree.root, tree.epoch) {
                    trees.note_use(tree.root, session);
                    return Ok(Owner::This);
                }
                // Another host may have the tree by now, or soon.
                if !self.shared.lease.wait_renewed().await {
                    return Err(JournalError::Refused(BatchRefusal::Fenced));
                }
                trees.note_unsure(&[tree.root]);
                // Also its own tree after a lost lease, or a lost answer, gets a new epoch: what is still on its way
                // is fenced.
                let (roots, epochs) = (vec![tree.root], vec![tree.epoch]);
                let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                    (&self.host_id(), Type::TEXT),
                    (&roots, Type::INT8_ARRAY),
                    (&epochs, Type::INT8_ARRAY),
                ];
                let taken = self.shared.pool.query(statements::TAKE, &parameters).await;
                let taken = taken.map_err(|failure| {
                    trees.note_unsure(&roots);
                    failure.write_error()
                })?;
                if let Some(row) = taken.first() {
                    trees.insert(tree.root, row.get(1));
                    trees.note_use(tree.root, session);
                    // The rest of the tree goes on, too.
                    match self.unfinished(&[tree.root]).await {
                        Ok(mut unfinished) => {
                            unfinished.retain(|other| other != session);
                            trees.note_found(unfinished);
                        }
                        Err(_) => trees.note_unsure(&[tree.root]),
                    }
                    return Ok(Owner::This);
                }
            }
            Err(JournalError::Write(format!("other hosts take session {session} again and again")))
        })
    }

    fn is_in_use(&self, session: &SessionId) -> bool {
        !self.shared.lease.is_over() && self.shared.trees.is_in_use(session)
    }

    fn give<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, ()> {
        Box::pin(self.end_use(session, false))
    }

    fn hand_over<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, ()> {
        Box::pin(self.end_use(session, true))
    }

    fn take_abandoned(&self, limit: usize) -> JournalFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            let (pool, trees) = (&self.shared.pool, &self.shared.trees);
            // A host that the others may count as dead would lose again what it takes.
            if self.shared.lease.is_over() {
                return Ok(Vec::new());
            }
            let found = trees.take_found();
            if !found.is_empty() {
                return Ok(found);
            }
            let candidates_max = limit.saturating_mul(CANDIDATES_PER_TREE);
            let unknown = trees.unknown_roots();
            let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                (&self.host_id(), Type::TEXT),
                (&unknown, Type::INT8_ARRAY),
                (&signed(candidates_max as u64), Type::INT8),
            ];
            let candidates = pool.query(ABANDONED, &parameters).await;
            let candidates = candidates.map_err(|failure| failure.read_error())?;
            let (roots, epochs): (Vec<i64>, Vec<i64>) =
                candidates.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip();
            if roots.len() < candidates_max {
                trees.forget_unsure(&unknown);
            }
            // The answer may have come late.
            if roots.is_empty() || self.shared.lease.is_over() {
                return Ok(Vec::new());
            }
            trees.note_unsure(&roots);
            let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
                (&self.host_id(), Type::TEXT),
                (&roots, Type::INT8_ARRAY),
                (&epochs, Type::INT8_ARRAY),
                (&signed(limit as u64), Type::INT8),
            ];
            let rows = pool.query(TAKE_SOME, &parameters).await;
            let rows = rows.map_err(|failure| failure.write_error())?;
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            rows.iter().for_each(|row| trees.insert(row.get(0), row.get(1)));
            let roots: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            let unfinished = self.unfinished(&roots).await;
            // They are taken once more then.
            unfinished.inspect_err(|_| trees.note_unsure(&roots))
        })
    }

    fn owners<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, Vec<Option<Owner>>> {
        Box::pin(async move {
            let trees = self.stored_trees(sessions).await?;
            Ok(trees.into_iter().map(|tree| tree.and_then(|tree| tree.owner)).collect())
        })
    }

    fn hosts(&self) -> JournalFuture<'_, Vec<HostInfo>> {
        Box::pin(async move {
            let rows = self.shared.pool.query(HOSTS, &[]).await;
            let rows = rows.map_err(|failure| failure.read_error())?;
            let hosts = rows.iter().map(|row| HostInfo {
                is_this: row.get::<_, &str>(0) == self.host_id(),
                id: row.get(0),
                address: row.get(1),
                version: row.get(2),
                sessions: unsigned(row.get(3)),
                beat_age: Duration::from_millis(unsigned(row.get(4))),
            });
            Ok(hosts.collect())
        })
    }

    fn dead_hosts(&self, within: Duration) -> JournalFuture<'_, Vec<String>> {
        Box::pin(async move {
            // A host that ends deletes its row.
            let dead = "SELECT id::text FROM hosts
                WHERE lease_end BETWEEN now() - $1 * interval '1 millisecond' AND now()";
            let within_ms = signed(millis(within));
            let rows = self.shared.pool.query(dead, &[(&within_ms, Type::INT8)]).await;
            let rows = rows.map_err(|failure| failure.read_error())?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
    }

    fn replace_document<'a>(
        &'a self,
        key: &'a str,
        before: Option<&'a str>,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, bool> {
        Box::pin(deletion::replace_document(&self.shared.pool, key, before, text, used_by))
    }

    fn lost(&self) -> BoxFuture<'_, Vec<SessionId>> {
        Box::pin(self.shared.trees.lost())
    }
}

impl PostgresJournal {
    /// Returns the unfinished sessions of trees.
    async fn unfinished(&self, roots: &[i64]) -> Result<Vec<SessionId>, JournalError> {
        let rows = self.shared.pool.query(UNFINISHED, &[(&roots, Type::INT8_ARRAY)]).await;
        let rows = rows.map_err(|failure| failure.read_error())?;
        Ok(rows.iter().filter_map(|row| SessionId::parse(row.get::<_, &str>(0)).ok()).collect())
    }

    /// Ends a use of a session. With the last one of its tree, the writer gives the tree away, after what was appended
    /// before.
    async fn end_use(&self, session: &SessionId, with_runs: bool) -> Result<(), JournalError> {
        let trees = &self.shared.trees;
        let Some(root) = trees.end_use(session) else { return Ok(()) };
        let (done, given) = oneshot::channel();
        if trees.push_given(GivenTree { root, with_runs, done }) {
            self.shared.queue.push_task(TreeTask::Give)?;
        }
        given.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Returns the trees of sessions, in their order.
    async fn stored_trees(
        &self,
        sessions: &[SessionId],
    ) -> Result<Vec<Option<StoredTree>>, JournalError> {
        let ids: Vec<&str> = sessions.iter().map(SessionId::as_str).collect();
        let rows = self.shared.pool.query(OWNERS, &[(&ids, Type::TEXT_ARRAY)]).await;
        let rows = rows.map_err(|failure| failure.read_error())?;
        let mut trees: Vec<_> = sessions.iter().map(|_| None).collect();
        for row in &rows {
            let (host, epoch): (Option<String>, i64) = (row.get(2), row.get(3));
            let owner = match host {
                Some(host) if host == self.host_id() => Some(Owner::This),
                Some(id) if row.get(4) => Some(Owner::Other(OtherHost { id, address: row.get(5) })),
                Some(_) | None => None,
            };
            let at = usize::try_from(row.get::<_, i64>(0)).ok().and_then(|k| k.checked_sub(1));
            if let Some(tree) = at.and_then(|at| trees.get_mut(at)) {
                *tree = Some(StoredTree { root: row.get(1), epoch, owner });
            }
        }
        Ok(trees)
    }
}
