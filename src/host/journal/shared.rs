//! An engine in memory that several hosts use at the same time, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    AppendStatus, Batch, BatchRefusal, BatchStatus, HostInfo, Journal, JournalEntry, JournalError,
    JournalFuture, MemoryJournal, OtherHost, Owner, Ownership, SessionQuery, SessionSummary,
};
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::{SessionId, SessionState};

/// Called for each batch before it is stored, with the number of batches of this host before it.
type BeforeAppend = Box<dyn Fn(&SharedJournal, u64) + Send + Sync>;

/// The engine of one host.
pub(crate) struct SharedJournal {
    host: u64,
    id: String,
    store: Arc<Store>,
    batches: AtomicU64,
    before_append: BeforeAppend,
}

/// The records and owners that all hosts share.
#[derive(Debug, Default)]
pub(crate) struct Store {
    records: MemoryJournal,
    owners: Mutex<Owners>,
    has_lost: Notify,
    replaces: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Owners {
    hosts: u64,
    alive: BTreeSet<u64>,
    closed: BTreeSet<u64>,
    /// The owners of trees, by their roots.
    trees: BTreeMap<SessionId, u64>,
    roots: BTreeMap<SessionId, SessionId>,
    /// The number of uses of each session, by host.
    uses: BTreeMap<(u64, SessionId), u32>,
    /// The trees that hosts have lost.
    lost: BTreeSet<(u64, SessionId)>,
}

impl Owners {
    fn root(&self, session: &SessionId) -> Option<SessionId> {
        self.roots.get(session).cloned()
    }

    /// Returns the host that owns a tree and lives.
    fn living_owner(&self, root: &SessionId) -> Option<u64> {
        self.trees.get(root).copied().filter(|owner| self.alive.contains(owner))
    }

    /// Returns the sessions of a tree that a host uses.
    fn used(&self, host: u64, root: &SessionId) -> Vec<SessionId> {
        let used =
            self.uses.keys().filter(|(of, session)| *of == host && self.roots[session] == *root);
        used.map(|(_, session)| session.clone()).collect()
    }
}

impl SharedJournal {
    /// Returns the engine of one more host.
    pub(crate) fn new(store: &Arc<Store>) -> Arc<Self> {
        Self::with(store, |_, _| ())
    }

    /// Returns the engine of one more host, which calls a function before each batch is stored.
    pub(crate) fn with(
        store: &Arc<Store>,
        before_append: impl Fn(&Self, u64) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut owners = store.owners.lock();
        owners.hosts += 1;
        let host = owners.hosts;
        owners.alive.insert(host);
        let (store, before_append) = (Arc::clone(store), Box::new(before_append));
        Arc::new(Self {
            host,
            id: host.to_string(),
            store,
            batches: AtomicU64::new(0),
            before_append,
        })
    }

    /// Lets the lease of this host end, of which it knows nothing.
    pub(crate) fn end_lease(&self) {
        self.store.owners.lock().alive.remove(&self.host);
    }

    /// Lets this host notice that it has lost all its trees, because its lease was not renewed.
    pub(crate) fn lose_all(&self) {
        let mut owners = self.store.owners.lock();
        let trees = owners.trees.iter().filter(|(_, owner)| **owner == self.host);
        let trees: Vec<_> = trees.map(|(root, _)| (self.host, root.clone())).collect();
        owners.trees.retain(|_, owner| *owner != self.host);
        owners.lost.extend(trees);
        drop(owners);
        self.store.has_lost.notify_waiters();
    }

    /// Ends one use of a session. `leaves` also gives up a tree in which a run has not ended.
    async fn end_use(&self, session: &SessionId, leaves: bool) -> Result<(), JournalError> {
        let (root, of_tree) = {
            let mut owners = self.store.owners.lock();
            let Some(uses) = owners.uses.get_mut(&(self.host, session.clone())) else {
                return Ok(());
            };
            *uses -= 1;
            if *uses == 0 {
                owners.uses.remove(&(self.host, session.clone()));
            }
            let Some(root) = owners.root(session) else { return Ok(()) };
            let of_tree = owners.roots.iter().filter(|(_, of)| **of == root);
            let of_tree: Vec<_> = of_tree.map(|(session, _)| session.clone()).collect();
            (root, of_tree)
        };
        let mut is_busy = false;
        for session in &of_tree {
            is_busy |= self.find(session).await?.is_some_and(|s| s.state == SessionState::Running);
        }
        let mut owners = self.store.owners.lock();
        let is_mine = owners.trees.get(&root) == Some(&self.host);
        if is_mine && owners.used(self.host, &root).is_empty() && (leaves || !is_busy) {
            owners.trees.remove(&root);
        }
        Ok(())
    }
}

impl std::fmt::Debug for SharedJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedJournal").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Journal for SharedJournal {
    fn append(&self, mut batch: Batch) -> AppendStatus {
        (self.before_append)(self, self.batches.fetch_add(1, Ordering::SeqCst));
        let mut owners = self.store.owners.lock();
        let Some(first) = batch.entries.first().cloned() else { return AppendStatus::Durable };
        if first.seq == Seq(1) && !owners.roots.contains_key(&batch.session) {
            let root = if let Record::SessionOpened { parent: Some(parent), .. } = &first.record {
                owners.root(&parent.session)
            } else {
                None
            };
            let is_forked =
                batch.entries.iter().any(|e| matches!(e.record, Record::SessionForked { .. }));
            let root = root.filter(|_| !is_forked).unwrap_or_else(|| batch.session.clone());
            owners.trees.entry(root.clone()).or_insert(self.host);
            if owners.trees[&root] == self.host {
                owners.roots.insert(batch.session.clone(), root);
                owners.uses.insert((self.host, batch.session.clone()), 1);
            }
        }
        let root = owners.root(&batch.session);
        let is_mine = root.as_ref().is_some_and(|root| owners.trees.get(root) == Some(&self.host));
        let stored = self.store.records.last_seq(&batch.session);
        if first.seq != Seq(1) && (!is_mine || first.seq.0 != stored.0 + 1) {
            owners.lost.extend(root.map(|root| (self.host, root)));
            drop(owners);
            self.store.has_lost.notify_waiters();
            batch.report(BatchStatus::Refused(BatchRefusal::Fenced));
            return AppendStatus::Queued;
        }
        drop(owners);
        self.store.records.append(batch)
    }

    fn flush(&self, _: &SessionId) {}

    fn read_some<'a>(
        &'a self,
        session: &'a SessionId,
        after: Seq,
        limit: usize,
    ) -> JournalFuture<'a, Vec<JournalEntry>> {
        self.store.records.read_some(session, after, limit)
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Option<SessionSummary>> {
        self.store.records.find(session)
    }

    fn list<'a>(&'a self, listing: &'a SessionQuery) -> JournalFuture<'a, Vec<SessionSummary>> {
        self.store.records.list(listing)
    }

    fn count(&self) -> JournalFuture<'_, usize> {
        self.store.records.count()
    }

    fn remove<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, ()> {
        Box::pin(async move {
            let is_mine = |session: &&SessionId| {
                let owners = self.store.owners.lock();
                let root = owners.root(session);
                root.is_none_or(|root| owners.trees.get(&root) == Some(&self.host))
            };
            let mine: Vec<_> = sessions.iter().filter(is_mine).cloned().collect();
            self.store.records.remove(&mine).await?;
            match mine.len() == sessions.len() {
                true => Ok(()),
                false => Err(JournalError::Refused(BatchRefusal::Fenced)),
            }
        })
    }

    fn put_document<'a>(
        &'a self,
        key: &'a str,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, ()> {
        self.store.records.put_document(key, text, used_by)
    }

    fn document<'a>(&'a self, key: &'a str) -> JournalFuture<'a, Option<String>> {
        self.store.records.document(key)
    }

    fn ownership(&self) -> Option<&dyn Ownership> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.end_lease();
            self.store.owners.lock().closed.insert(self.host);
        })
    }
}

impl Ownership for SharedJournal {
    fn host_id(&self) -> &str {
        &self.id
    }

    fn take<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, Owner> {
        Box::pin(async move {
            let mut owners = self.store.owners.lock();
            if !owners.alive.contains(&self.host) {
                return Err(JournalError::Write("the lease is over".to_owned()));
            }
            let Some(root) = owners.root(session) else { return Ok(Owner::This) };
            match owners.living_owner(&root) {
                Some(other) if other != self.host => {
                    return Ok(Owner::Other(OtherHost { id: other.to_string(), address: None }));
                }
                Some(_) | None => {}
            }
            owners.trees.insert(root, self.host);
            *owners.uses.entry((self.host, session.clone())).or_default() += 1;
            Ok(Owner::This)
        })
    }

    fn is_in_use(&self, session: &SessionId) -> bool {
        let owners = self.store.owners.lock();
        owners.alive.contains(&self.host) && owners.uses.contains_key(&(self.host, session.clone()))
    }

    fn give<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, ()> {
        Box::pin(self.end_use(session, false))
    }

    fn hand_over<'a>(&'a self, session: &'a SessionId) -> JournalFuture<'a, ()> {
        Box::pin(self.end_use(session, true))
    }

    fn take_abandoned(&self, limit: usize) -> JournalFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            let query = SessionQuery {
                state: Some(SessionState::Running),
                children: true,
                ..SessionQuery::default()
            };
            let running = self.store.records.list(&query).await?;
            let mut owners = self.store.owners.lock();
            if !owners.alive.contains(&self.host) {
                return Err(JournalError::Write("the lease is over".to_owned()));
            }
            let (mut taken, mut trees) = (Vec::new(), BTreeSet::new());
            for session in running {
                let Some(root) = owners.root(&session.id) else { continue };
                if trees.contains(&root)
                    || (owners.living_owner(&root).is_none() && trees.len() < limit)
                {
                    owners.trees.insert(root.clone(), self.host);
                    trees.insert(root);
                    taken.push(session.id);
                }
            }
            Ok(taken)
        })
    }

    fn owners<'a>(&'a self, sessions: &'a [SessionId]) -> JournalFuture<'a, Vec<Option<Owner>>> {
        let owners = self.store.owners.lock();
        let owner = |session| match owners.living_owner(&owners.root(session)?)? {
            host if host == self.host => Some(Owner::This),
            host => Some(Owner::Other(OtherHost { id: host.to_string(), address: None })),
        };
        let found = sessions.iter().map(owner).collect();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn hosts(&self) -> JournalFuture<'_, Vec<HostInfo>> {
        let owners = self.store.owners.lock();
        let host = |host: &u64| HostInfo {
            is_this: *host == self.host,
            ..HostInfo::this(&host.to_string())
        };
        let hosts = owners.alive.iter().map(host).collect();
        Box::pin(std::future::ready(Ok(hosts)))
    }

    fn dead_hosts(&self, _: std::time::Duration) -> JournalFuture<'_, Vec<String>> {
        let owners = self.store.owners.lock();
        let is_dead = |host: &u64| !owners.alive.contains(host) && !owners.closed.contains(host);
        let dead = (1..=owners.hosts).filter(is_dead).map(|host| host.to_string()).collect();
        Box::pin(std::future::ready(Ok(dead)))
    }

    fn replace_document<'a>(
        &'a self,
        key: &'a str,
        before: Option<&'a str>,
        text: &'a str,
        used_by: Option<&'a SessionId>,
    ) -> JournalFuture<'a, bool> {
        Box::pin(async move {
            let _replaces = self.store.replaces.lock().await;
            let is_same = self.document(key).await?.as_deref() == before;
            if is_same {
                self.put_document(key, text, used_by).await?;
            }
            Ok(is_same)
        })
    }

    fn lost(&self) -> BoxFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            loop {
                let notified = self.store.has_lost.notified();
                {
                    let mut owners = self.store.owners.lock();
                    let lost = owners.lost.extract_if(.., |(host, _)| *host == self.host);
                    let trees: Vec<_> = lost.map(|(_, root)| root).collect();
                    let lost = trees.iter().flat_map(|root| owners.used(self.host, root));
                    let lost: Vec<_> = lost.collect();
                    if !lost.is_empty() {
                        return lost;
                    }
                }
                notified.await;
            }
        })
    }
}

#[tokio::test]
async fn an_engine_that_several_hosts_use_is_checked() {
    let store = Arc::new(Store::default());
    super::check_journal(async || SharedJournal::new(&store) as _).await;
}
