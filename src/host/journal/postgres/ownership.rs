//! The ownership of trees: takes them, gives them away, and says who owns them.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use super::super::{JournalError, JournalFuture};
use super::PostgresJournal;
use super::encoding::unsigned;
use super::queue::TreeTask;
use super::statements;
use callsheet_values::types::SessionId;
use tokio::sync::oneshot;

/// The owner of a session's tree.
///
/// [`PostgresJournal::take`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This host.
    This,
    /// Another host, whose lease runs.
    Other {
        /// The id of the host.
        host: String,
        /// The address at which it is reached, if it has one.
        address: Option<String>,
    },
    /// No host, or one whose lease is over; or the session is not stored.
    Nobody,
}

/// A host of a database whose lease runs.
///
/// [`PostgresJournal::hosts`] returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostInfo {
    /// Its id: another one at each start.
    pub id: String,
    /// The address at which other hosts reach it.
    pub address: Option<String>,
    /// Its version of Callsheet.
    pub version: String,
    /// Number of trees that it owns.
    pub sessions: u64,
    /// The time since its last heartbeat.
    pub beat_age: Duration,
    /// True if it is this host.
    pub is_this: bool,
}

/// Number of attempts to take a tree that other hosts take or give away at the same time.
const TAKE_TRIES: usize = 8;

/// Number of trees that are taken together.
const GROUP_TREES: usize = 500;

/// The tree of a session, and its owner.
const OWNER: &str = "
    SELECT s.root, coalesce(q.id, s.id), t.owner::text, t.epoch, h.id IS NOT NULL, h.address
    FROM sessions s JOIN trees t ON t.root = s.root LEFT JOIN sessions q ON q.number = s.root
    LEFT JOIN hosts h ON h.id = t.owner AND h.lease_end > now() WHERE s.id = $1";

/// Takes trees of no host or of dead ones in which a run has not ended, in the order of their roots after `$2`. Trees
/// that another host takes now are left to it. The last row has the last root of those that were seen.
const TAKE_ORPHANED: &str = "
    WITH seen AS MATERIALIZED (
        SELECT DISTINCT t.root, t.epoch FROM running u JOIN trees t ON t.root = u.root
        WHERE u.root > $2 AND t.owner IS DISTINCT FROM $1::text::uuid
        AND NOT EXISTS (SELECT 1 FROM hosts h WHERE h.id = t.owner AND h.lease_end > now())
        ORDER BY t.root LIMIT $3)
    , locked AS MATERIALIZED (
        SELECT t.root, t.epoch FROM seen JOIN trees t ON t.root = seen.root AND t.epoch = seen.epoch
        ORDER BY t.root FOR NO KEY UPDATE OF t SKIP LOCKED)
    , taken AS (
        UPDATE trees SET owner = $1::text::uuid, epoch = trees.epoch + 1 FROM locked
        WHERE trees.root = locked.root AND trees.epoch = locked.epoch RETURNING trees.root, trees.epoch)
    SELECT taken.root, taken.epoch, q.id FROM taken LEFT JOIN sessions q ON q.number = taken.root
    UNION ALL SELECT max(root), NULL, NULL FROM seen";

/// The unfinished sessions of trees.
const UNFINISHED: &str = "SELECT id FROM running WHERE root = ANY ($1) ORDER BY id";

const HOSTS: &str = "
    SELECT id::text, address, version, sessions, (extract(epoch FROM now() - beat) * 1000)::bigint
    FROM hosts WHERE lease_end > now() ORDER BY started, id";

/// A session's tree in the database.
struct StoredTree {
    root: i64,
    root_id: String,
    epoch: i64,
    owner: Owner,
}

impl PostgresJournal {
    /// Takes the tree of a session for this host, unless another host owns it whose lease runs.
    ///
    /// ```no_run
    /// use callsheet::journal::{JournalError, Owner, PostgresJournal, PostgresOptions};
    /// use callsheet::SessionId;
    ///
    /// # async fn take(session: &SessionId) -> Result<(), JournalError> {
    /// let url = "postgres://callsheet@10.0.0.9/callsheet";
    /// let journal = PostgresJournal::open(url, PostgresOptions::default()).await?;
    /// if let Owner::Other { host, address } = journal.take(session).await? {
    ///     println!("{host} at {address:?} owns it");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the database cannot be read or written.
    pub fn take<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Owner> {
        Box::pin(async move {
            for _ in 0..TAKE_TRIES {
                let Some(tree) = self.stored_tree(session).await? else { return Ok(Owner::Nobody) };
                let trees = &self.shared.trees;
                let is_known =
                    trees.is_owned(tree.root) && trees.epoch(tree.root) == Some(tree.epoch);
                match tree.owner {
                    Owner::This if is_known => return Ok(Owner::This),
                    Owner::Other { .. } => return Ok(tree.owner),
                    // After a lost lease, or a lost answer, with a new epoch: what is still on its way is fenced.
                    Owner::This | Owner::Nobody => {}
                }
                let (roots, epochs) = (vec![tree.root], vec![tree.epoch]);
                let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                    (&self.host_id(), Type::TEXT),
                    (&roots, Type::INT8_ARRAY),
                    (&epochs, Type::INT8_ARRAY),
                ];
                let taken = self.shared.pool.query(statements::TAKE, &parameters).await;
                let taken = taken.map_err(|failure| failure.write_error())?;
                if let Some(row) = taken.first() {
                    if let Ok(root_id) = SessionId::parse(&tree.root_id) {
                        trees.insert(tree.root, row.get(1), root_id);
                    }
                    return Ok(Owner::This);
                }
            }
            Err(JournalError::Write(format!("other hosts take session {session} again and again")))
        })
    }

    /// Returns the owner of a session's tree.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn owner<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Owner> {
        Box::pin(async move {
            let tree = self.stored_tree(session).await?;
            Ok(tree.map_or(Owner::Nobody, |tree| tree.owner))
        })
    }

    /// Gives the trees of these root sessions away: no host owns them then. What was appended before is stored first.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn give<'a>(&'a self, roots: &'a [SessionId]) -> JournalFuture<'a, ()> {
        Box::pin(self.give_to(roots, None))
    }

    /// Gives the trees of these root sessions to another host. What was appended before is stored first.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn hand_over<'a>(&'a self, roots: &'a [SessionId], host: &'a str) -> JournalFuture<'a, ()> {
        Box::pin(self.give_to(roots, Some(host.to_owned())))
    }

    async fn give_to(&self, roots: &[SessionId], to: Option<String>) -> Result<(), JournalError> {
        let (done, given) = oneshot::channel();
        self.shared.queue.push_task(TreeTask::Give(roots.to_vec(), to, done))?;
        given.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Takes the trees in which a run has not ended, and which no host owns whose lease runs. Returns their unfinished
    /// sessions. Several hosts that do so at the same time share the trees.
    ///
    /// # Errors
    /// If the database cannot be read or written. Some trees may have been taken.
    pub fn take_orphaned(&self) -> JournalFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            let (pool, trees) = (&self.shared.pool, &self.shared.trees);
            let (mut taken, mut after) = (Vec::new(), 0_i64);
            loop {
                let group = i64::try_from(GROUP_TREES).unwrap_or(i64::MAX);
                let parameters: [(&(dyn ToSql + Sync), Type); 3] =
                    [(&self.host_id(), Type::TEXT), (&after, Type::INT8), (&group, Type::INT8)];
                let rows = pool.query(TAKE_ORPHANED, &parameters).await;
                let rows = rows.map_err(|failure| failure.write_error())?;
                let Some(last) = rows.iter().find(|row| row.get::<_, Option<i64>>(1).is_none())
                else {
                    return Ok(taken);
                };
                let Some(last) = last.get::<_, Option<i64>>(0) else { return Ok(taken) };
                after = last;
                let mut roots: Vec<i64> = Vec::new();
                for row in &rows {
                    let (root, epoch): (i64, Option<i64>) = (row.get(0), row.get(1));
                    let id = row.get::<_, Option<&str>>(2).and_then(|id| SessionId::parse(id).ok());
                    if let (Some(epoch), Some(id)) = (epoch, id) {
                        trees.insert(root, epoch, id);
                        roots.push(root);
                    }
                }
                let unfinished = pool.query(UNFINISHED, &[(&roots, Type::INT8_ARRAY)]).await;
                let unfinished = unfinished.map_err(|failure| failure.read_error())?;
                let ids = unfinished.iter().map(|row| SessionId::parse(row.get::<_, &str>(0)));
                taken.extend(ids.filter_map(Result::ok));
            }
        })
    }

    /// Returns the hosts whose leases run, the one that started first before the others.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn hosts(&self) -> JournalFuture<'_, Vec<HostInfo>> {
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

    /// Waits until this host has lost trees, because another host has taken them, or because its lease was not renewed in
    /// time. Returns their root sessions.
    pub async fn lost(&self) -> Vec<SessionId> {
        self.shared.trees.lost().await
    }

    async fn stored_tree(&self, session: &SessionId) -> Result<Option<StoredTree>, JournalError> {
        let rows = self.shared.pool.query(OWNER, &[(&session.as_str(), Type::TEXT)]).await;
        let rows = rows.map_err(|failure| failure.read_error())?;
        Ok(rows.first().map(|row| {
            let host: Option<String> = row.get(2);
            let owner = match host {
                Some(host) if host == self.host_id() => Owner::This,
                Some(host) if row.get(4) => Owner::Other { host, address: row.get(5) },
                Some(_) | None => Owner::Nobody,
            };
            StoredTree { root: row.get(0), root_id: row.get(1), epoch: row.get(3), owner }
        }))
    }
}
