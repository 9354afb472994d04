//! The trees that this host owns, as far as it knows. The database decides: each statement that stores has the epoch of
//! its tree as a condition.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use tokio::sync::Notify;

use callsheet_values::types::SessionId;

/// The trees of one host.
#[derive(Debug, Default)]
pub(super) struct OwnedTrees {
    state: Mutex<TreesState>,
    lost: Notify,
}

#[derive(Debug, Default)]
struct TreesState {
    /// The owned trees by the numbers of their roots.
    owned: HashMap<i64, OwnedTree>,
    /// The roots that were lost and are not reported yet.
    lost: Vec<SessionId>,
}

#[derive(Clone, Debug)]
struct OwnedTree {
    root: SessionId,
    epoch: i64,
    /// True since the host's lease was not renewed in time. The tree is taken again before it is used, with a new epoch.
    is_lost: bool,
}

impl OwnedTrees {
    /// Notes that this host owns a tree.
    pub(super) fn insert(&self, number: i64, epoch: i64, root: SessionId) {
        let tree = OwnedTree { root, epoch, is_lost: false };
        self.state.lock().owned.insert(number, tree);
    }

    /// Returns the epoch of a tree, also while the lease of this host is not renewed: nobody may have taken the tree.
    pub(super) fn epoch(&self, number: i64) -> Option<i64> {
        self.state.lock().owned.get(&number).map(|tree| tree.epoch)
    }

    /// Returns true if this host owns a tree and its lease was renewed in time since it took it.
    pub(super) fn is_owned(&self, number: i64) -> bool {
        self.state.lock().owned.get(&number).is_some_and(|tree| !tree.is_lost)
    }

    /// Forgets a tree that was given away or deleted.
    pub(super) fn remove(&self, number: i64, epoch: i64) {
        let mut state = self.state.lock();
        if state.owned.get(&number).is_some_and(|tree| tree.epoch == epoch) {
            state.owned.remove(&number);
        }
    }

    /// Notes that another host owns a tree: it is not this host's with this epoch any more.
    pub(super) fn lose(&self, number: i64, epoch: i64) {
        let mut state = self.state.lock();
        if state.owned.get(&number).is_some_and(|tree| tree.epoch == epoch)
            && let Some(tree) = state.owned.remove(&number)
            && !tree.is_lost
        {
            state.lost.push(tree.root);
            drop(state);
            self.lost.notify_one();
        }
    }

    /// Notes that the lease of this host was not renewed in time, so that other hosts may take all its trees. Returns
    /// their number.
    pub(super) fn lose_all(&self) -> usize {
        let mut state = self.state.lock();
        let TreesState { owned, lost } = &mut *state;
        let before = lost.len();
        for tree in owned.values_mut().filter(|tree| !tree.is_lost) {
            tree.is_lost = true;
            lost.push(tree.root.clone());
        }
        let count = lost.len() - before;
        drop(state);
        if count > 0 {
            self.lost.notify_one();
        }
        count
    }

    /// Waits until trees are lost, and returns their root sessions.
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

    /// Returns the numbers and epochs of those of these root sessions whose trees this host owns.
    pub(super) fn of_roots(&self, roots: &[SessionId]) -> Vec<(i64, i64)> {
        let roots: HashSet<&SessionId> = roots.iter().collect();
        let state = self.state.lock();
        let owned = state.owned.iter().filter(|(_, tree)| roots.contains(&tree.root));
        owned.map(|(number, tree)| (*number, tree.epoch)).collect()
    }

    /// Returns the number of owned trees.
    pub(super) fn len(&self) -> usize {
        self.state.lock().owned.len()
    }
}
