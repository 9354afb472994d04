//! The trees that this host owns, as far as it knows, and its uses of their sessions. The database decides: each statement
//! that stores has the epoch of its tree as a condition.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::super::JournalError;
use callsheet_values::types::SessionId;

/// The trees of one host.
#[derive(Debug)]
pub(super) struct OwnedTrees {
    state: Mutex<TreesState>,
    lost: Notify,
    /// True if several hosts use the database, so that this one counts its uses of sessions.
    are_shared: bool,
}

#[derive(Debug, Default)]
struct TreesState {
    /// The owned trees by the numbers of their roots.
    owned: HashMap<i64, OwnedTree>,
    /// The roots of the sessions in use.
    roots: HashMap<SessionId, i64>,
    /// The sessions of lost trees that are not reported yet.
    lost: Vec<SessionId>,
    /// The trees that wait to be given away.
    to_give: Vec<GivenTree>,
    /// The roots of trees that this host may own without knowing their epochs, because a statement that takes them has
    /// not been answered.
    unsure: BTreeSet<i64>,
    /// Unfinished sessions of trees that were taken for another session of theirs.
    found: Vec<SessionId>,
}

/// A tree without uses, which is to be given away.
#[derive(Debug)]
pub(super) struct GivenTree {
    pub(super) root: i64,
    /// True if it is given away also if a run of it has not ended.
    pub(super) with_runs: bool,
    pub(super) done: oneshot::Sender<Result<(), JournalError>>,
}

#[derive(Clone, Debug, Default)]
struct OwnedTree {
    epoch: i64,
    /// True since the host's lease was not renewed in time. The tree is taken again before it is used, with a new epoch.
    is_lost: bool,
    /// The uses of its sessions.
    uses: HashMap<SessionId, usize>,
}

impl OwnedTrees {
    pub(super) fn new(are_shared: bool) -> Self {
        Self { state: Mutex::default(), lost: Notify::new(), are_shared }
    }

    /// Returns whether several hosts use the database.
    pub(super) fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// Notes that this host owns a tree.
    pub(super) fn insert(&self, number: i64, epoch: i64) {
        let mut state = self.state.lock();
        state.unsure.remove(&number);
        let tree = state.owned.entry(number).or_default();
        // An answer can come after that of a later statement.
        if epoch >= tree.epoch {
            (tree.epoch, tree.is_lost) = (epoch, false);
        }
    }

    /// Notes unfinished sessions of a tree that was taken for another one.
    pub(super) fn note_found(&self, sessions: Vec<SessionId>) {
        self.state.lock().found.extend(sessions);
    }

    /// Returns the sessions that were [found](Self::note_found).
    pub(super) fn take_found(&self) -> Vec<SessionId> {
        std::mem::take(&mut self.state.lock().found)
    }

    /// Notes trees that a statement is about to take.
    pub(super) fn note_unsure(&self, roots: &[i64]) {
        self.state.lock().unsure.extend(roots);
    }

    /// Forgets trees that a statement was about to take, because they have another owner, or nothing to do.
    pub(super) fn forget_unsure(&self, roots: &[i64]) {
        let mut state = self.state.lock();
        for root in roots {
            state.unsure.remove(root);
        }
    }

    /// Counts a use of a session of an owned tree.
    pub(super) fn note_use(&self, number: i64, session: &SessionId) {
        if !self.are_shared {
            return;
        }
        let mut state = self.state.lock();
        if let Some(tree) = state.owned.get_mut(&number) {
            *tree.uses.entry(session.clone()).or_default() += 1;
            state.roots.insert(session.clone(), number);
        }
    }

    /// Counts one more use of a session that is in use. Returns false if it is not.
    pub(super) fn use_again(&self, session: &SessionId) -> bool {
        let mut state = self.state.lock();
        let TreesState { owned, roots, .. } = &mut *state;
        let tree = roots.get(session).and_then(|number| owned.get_mut(number));
        let uses = tree.and_then(|tree| tree.uses.get_mut(session));
        uses.map(|uses| *uses += 1).is_some()
    }

    /// Returns whether a session is in use. A host that is alone does not count uses.
    pub(super) fn is_in_use(&self, session: &SessionId) -> bool {
        !self.are_shared || self.state.lock().roots.contains_key(session)
    }

    /// Lets a tree wait to be given away. Returns true if it is the first one that waits: the writer needs a task.
    pub(super) fn push_given(&self, tree: GivenTree) -> bool {
        let mut state = self.state.lock();
        state.to_give.push(tree);
        state.to_give.len() == 1
    }

    /// Returns the trees that wait to be given away.
    pub(super) fn take_given(&self) -> Vec<GivenTree> {
        std::mem::take(&mut self.state.lock().to_give)
    }

    /// Ends a use of a session. Returns the root if no session of the tree is in use any more.
    pub(super) fn end_use(&self, session: &SessionId) -> Option<i64> {
        let mut state = self.state.lock();
        let number = *state.roots.get(session)?;
        let tree = state.owned.get_mut(&number)?;
        let uses = tree.uses.get_mut(session)?;
        *uses -= 1;
        if *uses > 0 {
            return None;
        }
        tree.uses.remove(session);
        let is_unused = tree.uses.is_empty();
        state.roots.remove(session);
        is_unused.then_some(number)
    }

    /// Forgets the uses of sessions that were removed.
    pub(super) fn forget_uses<'a>(&self, sessions: impl IntoIterator<Item = &'a SessionId>) {
        let mut state = self.state.lock();
        for session in sessions {
            if let Some(number) = state.roots.remove(session)
                && let Some(tree) = state.owned.get_mut(&number)
            {
                tree.uses.remove(session);
            }
        }
    }

    /// Forgets a tree that is not in use, to give it away, and returns its epoch.
    pub(super) fn remove_unused(&self, number: i64) -> Option<i64> {
        let mut state = self.state.lock();
        let epoch = state.owned.get(&number).filter(|tree| tree.uses.is_empty())?.epoch;
        state.owned.remove(&number);
        Some(epoch)
    }

    /// Notes that a tree was not given away, unless it was taken again meanwhile.
    pub(super) fn restore(&self, number: i64, epoch: i64) {
        let tree = OwnedTree { epoch, ..OwnedTree::default() };
        self.state.lock().owned.entry(number).or_insert(tree);
    }

    /// Returns the epoch of a tree, also after the lease was not renewed in time: if no other host has taken the tree, this
    /// host can still store records of it.
    pub(super) fn epoch(&self, number: i64) -> Option<i64> {
        self.state.lock().owned.get(&number).map(|tree| tree.epoch)
    }

    /// Returns true if this host owns a tree with this epoch and its lease was renewed in time since it took it.
    pub(super) fn is_owned(&self, number: i64, epoch: i64) -> bool {
        let state = self.state.lock();
        state.owned.get(&number).is_some_and(|tree| tree.epoch == epoch && !tree.is_lost)
    }

    /// Forgets a tree that was deleted.
    pub(super) fn remove(&self, number: i64, epoch: i64) {
        let mut state = self.state.lock();
        if state.owned.get(&number).is_some_and(|tree| tree.epoch == epoch) {
            state.remove(number);
        }
    }

    /// Notes that the ownership of a tree with this epoch is over. The `session` has found that out. Ignores an earlier
    /// ownership than the present one: a batch of it may have waited for long.
    pub(super) fn lose(&self, number: i64, epoch: i64, session: &SessionId) {
        let mut state = self.state.lock();
        let mut lost = match state.owned.get(&number).map(|tree| tree.epoch) {
            Some(present) if present > epoch => return,
            Some(_) => state.remove(number),
            None => Vec::new(),
        };
        if !lost.contains(session) {
            lost.push(session.clone());
        }
        state.lost.append(&mut lost);
        drop(state);
        self.lost.notify_one();
    }

    /// Notes that the lease of this host was not renewed in time, so that other hosts may take all its trees. Returns
    /// the number of those that it has lost by that.
    pub(super) fn lose_all(&self) -> usize {
        let mut state = self.state.lock();
        let TreesState { owned, roots, lost, .. } = &mut *state;
        let mut count = 0;
        for tree in owned.values_mut().filter(|tree| !tree.is_lost) {
            tree.is_lost = true;
            count += 1;
            for (session, _) in tree.uses.drain() {
                roots.remove(&session);
                lost.push(session);
            }
        }
        drop(state);
        if count > 0 {
            self.lost.notify_one();
        }
        count
    }

    /// Returns the roots of the trees that the database may still count as this host's, although it has lost them with
    /// its lease, or does not know that it has taken them.
    pub(super) fn unknown_roots(&self) -> Vec<i64> {
        let state = self.state.lock();
        let lost = state.owned.iter().filter(|(_, tree)| tree.is_lost);
        lost.map(|(number, _)| *number).chain(state.unsure.iter().copied()).collect()
    }

    /// Waits until trees are lost, and returns their sessions that were in use.
    pub(super) async fn lost(&self) -> Vec<SessionId> {
        loop {
            let notified = self.lost.notified();
            let lost = std::mem::take(&mut self.state.lock().lost);
            if !lost.is_empty() {
                return lost;
            }
            notified.await;
        }
    }

    /// Returns the number of owned trees.
    pub(super) fn len(&self) -> usize {
        self.state.lock().owned.len()
    }
}

impl TreesState {
    /// Forgets a tree, and returns its sessions that were in use.
    fn remove(&mut self, number: i64) -> Vec<SessionId> {
        let uses = self.owned.remove(&number).map(|tree| tree.uses).unwrap_or_default();
        for session in uses.keys() {
            self.roots.remove(session);
        }
        uses.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_late_batch_of_an_earlier_ownership_does_not_end_the_present_one() {
        let (trees, session) = (OwnedTrees::new(true), SessionId::parse("s").unwrap());
        trees.insert(1, 3);
        trees.note_use(1, &session);
        assert_eq!(trees.lose_all(), 1);
        assert_eq!(trees.lost().now_or_never(), Some(vec![session.clone()]));
        assert_eq!(trees.unknown_roots(), [1]);
        trees.insert(1, 5);
        trees.note_use(1, &session);
        // The answer to an earlier statement.
        trees.insert(1, 4);
        assert!(trees.is_owned(1, 5));
        trees.lose(1, 3, &session);
        assert_eq!(trees.lost().now_or_never(), None);
        assert!(trees.is_owned(1, 5) && trees.is_in_use(&session) && trees.use_again(&session));
        trees.lose(1, 5, &session);
        assert_eq!(trees.lost().now_or_never(), Some(vec![session.clone()]));
        assert!(!trees.is_owned(1, 5) && !trees.is_in_use(&session) && !trees.use_again(&session));
    }
}
