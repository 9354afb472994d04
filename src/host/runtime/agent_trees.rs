//! The trees of child sessions: those below each open run, counted for `max_children`, and the stored children of a
//! session.
//!
//! The children of a session are found by the intents of its calls, so that there is no index of them.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::journal::{Journal, JournalEntry, JournalError};
use callsheet_values::record::Record;
use callsheet_values::types::{
    ParentCall, RootRun, RunId, Seq, SessionId, SessionState, child_run_id, child_session_id,
    is_child_session,
};

/// Maximum number of entries of one read.
const PAGE: usize = 256;

/// Returns the orphans among the sessions with unfinished runs: child sessions whose parents have no unfinished run.
/// No call waits for them.
pub(super) async fn orphans(
    journal: &dyn Journal,
    unfinished: &[SessionId],
) -> Result<Vec<SessionId>, JournalError> {
    let open: BTreeSet<&SessionId> = unfinished.iter().collect();
    let mut orphans = Vec::new();
    for id in unfinished.iter().filter(|id| is_child_session(id)) {
        if parent(journal, id).await?.is_some_and(|parent| !open.contains(&parent)) {
            orphans.push(id.clone());
        }
    }
    Ok(orphans)
}

/// Returns true if a session is the child of a session with an unfinished run. A call of that run may still read the
/// report of the child: after a restart of the host, or after a manual resume.
pub(super) async fn has_unfinished_parent(
    journal: &dyn Journal,
    session: &SessionId,
) -> Result<bool, JournalError> {
    if !is_child_session(session) {
        return Ok(false);
    }
    let Some(parent) = parent(journal, session).await? else { return Ok(false) };
    Ok(journal.find(&parent).await?.is_some_and(|parent| parent.state == SessionState::Running))
}

/// Returns the parent of a child session.
async fn parent(
    journal: &dyn Journal,
    child: &SessionId,
) -> Result<Option<SessionId>, JournalError> {
    let first = journal.read_some(child, Seq(0), 1).await?;
    let Some(Record::SessionOpened { parent: Some(parent), .. }) =
        first.first().map(|entry| &entry.record)
    else {
        return Ok(None);
    };
    Ok(Some(parent.session.clone()))
}

/// Returns the stored child sessions of the calls of a run. Reads the records of its session after a position.
async fn children(
    journal: &dyn Journal,
    session: &SessionId,
    mut after: Seq,
    run: &RunId,
) -> Result<Vec<SessionId>, JournalError> {
    let scope = format!("{}/", run.0);
    let mut children = BTreeSet::new();
    loop {
        let page = journal.read_some(session, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        let keys = agent_calls(&page).filter(|key| key.starts_with(&scope));
        children.extend(keys.map(|key| child_session_id(session, key)));
    }
    stored(journal, children).await
}

/// Returns the stored child sessions of a session that is deleted. Skips records that cannot be read, because a
/// damaged session can be deleted too.
pub(super) async fn readable_children(
    journal: &dyn Journal,
    session: &SessionId,
) -> Result<Vec<SessionId>, JournalError> {
    let last = journal.find(session).await?.map_or(Seq(0), |found| found.seq);
    let (mut after, mut limit, mut skipped) = (Seq(0), PAGE, 0);
    let mut children = BTreeSet::new();
    while after < last {
        match journal.read_some(session, after, limit).await {
            Ok(page) => {
                let Some(last) = page.last() else { break };
                (after, limit) = (last.seq, PAGE);
                children.extend(agent_calls(&page).map(|key| child_session_id(session, key)));
            }
            // The records before the unreadable one are read one by one.
            Err(_) if limit > 1 => limit = 1,
            Err(_) => {
                after.0 += 1;
                skipped += 1;
            }
        }
    }
    if skipped > 0 {
        tracing::warn!(%session, records = skipped, "unreadable_records_skipped");
    }
    stored(journal, children).await
}

/// Returns the idempotency keys of the calls of agents among these records.
fn agent_calls(entries: &[JournalEntry]) -> impl Iterator<Item = &str> {
    entries.iter().filter_map(|entry| {
        let Record::CallIntended { idempotency_key, lease: Some(_), .. } = &entry.record else {
            return None;
        };
        Some(idempotency_key.as_str())
    })
}

/// Returns those of these child sessions that are stored.
async fn stored(
    journal: &dyn Journal,
    children: BTreeSet<SessionId>,
) -> Result<Vec<SessionId>, JournalError> {
    let mut stored = Vec::new();
    for child in children {
        // A call that was refused has no child.
        if journal.find(&child).await?.is_some() {
            stored.push(child);
        }
    }
    Ok(stored)
}

/// Returns all stored child sessions below a run, at all depths.
pub(super) async fn descendants(
    journal: &dyn Journal,
    root: &RootRun,
) -> Result<BTreeSet<SessionId>, JournalError> {
    let before = Seq(root.seq.0.saturating_sub(1));
    let mut open = children(journal, &root.session, before, &root.run).await?;
    let mut found = BTreeSet::new();
    while let Some(child) = open.pop() {
        if let Some(run) = child_run_id(&child) {
            open.extend(children(journal, &child, Seq(0), &run).await?);
        }
        found.insert(child);
    }
    Ok(found)
}

/// The child sessions below open runs, at all depths, by the run at the root.
#[derive(Debug, Default)]
pub(super) struct AgentTrees {
    trees: Mutex<BTreeMap<(SessionId, RunId), BTreeSet<SessionId>>>,
}

/// The result of counting a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildAdmission {
    /// It was counted before.
    Known,
    Added,
    /// `max_children` is reached.
    Full,
}

impl AgentTrees {
    /// Returns whether the children of a run are counted.
    pub(super) fn has_run(&self, root: &RootRun) -> bool {
        self.trees.lock().contains_key(&key(root))
    }

    /// Sets the children that a run had before, unless they are counted already.
    pub(super) fn restore(&self, root: &RootRun, stored: BTreeSet<SessionId>) {
        self.trees.lock().entry(key(root)).or_insert(stored);
    }

    /// Counts a child, unless `max_children` is reached.
    pub(super) fn add(&self, parent: &ParentCall, child: &SessionId) -> ChildAdmission {
        let mut trees = self.trees.lock();
        let tree = trees.entry(key(&parent.root)).or_default();
        if tree.contains(child) {
            return ChildAdmission::Known;
        }
        if tree.len() >= parent.max_children as usize {
            return ChildAdmission::Full;
        }
        tree.insert(child.clone());
        ChildAdmission::Added
    }

    /// Removes a child that could not be opened, or that was deleted because its run did not start.
    pub(super) fn remove(&self, root: &RootRun, child: &SessionId) {
        if let Some(tree) = self.trees.lock().get_mut(&key(root)) {
            tree.remove(child);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.trees.lock().is_empty()
    }

    /// Forgets the children of a run that has ended.
    pub(super) fn remove_run(&self, session: &SessionId, run: &RunId) {
        let mut trees = self.trees.lock();
        if !trees.is_empty() {
            trees.remove(&(session.clone(), run.clone()));
        }
    }
}

fn key(root: &RootRun) -> (SessionId, RunId) {
    (root.session.clone(), root.run.clone())
}
