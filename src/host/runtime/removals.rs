//! The removal of deleted sessions from the journal.
//!
//! Sessions that are deleted while another removal is in progress are removed together, by one of their deletions:
//! SQLite's engine empties its write-ahead log after each removal.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::error::HostError;
use crate::journal::{Journal, JournalError};
use callsheet_values::types::SessionId;

/// Maximum number of sessions that are removed together.
const SESSIONS_MAX: usize = 64;

/// Maximum number of unfinished removals that are known, so that a repeated deletion is answered by their state.
const UNFINISHED_MAX: usize = 1_000;

/// The sessions that wait to be removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    pub(super) waiting: Mutex<Vec<(SessionId, oneshot::Sender<Removed>)>>,
    /// Locked while sessions are removed.
    in_progress: tokio::sync::Mutex<()>,
    /// The sessions that do not exist any more, whose removal ended with an error. The engine finishes it.
    unfinished: Mutex<VecDeque<SessionId>>,
}

/// The result of a removal.
#[derive(Clone, Debug)]
pub(super) struct Removed {
    /// The engine's result for all sessions that were removed together.
    pub(super) result: Result<(), JournalError>,
    /// True if the session existed and does not exist any more.
    pub(super) was_removed: bool,
    /// True if it was removed before, and the removal was unfinished then.
    pub(super) is_repeated: bool,
    /// The agent of the session, if it could be read.
    pub(super) agent: Option<String>,
}

impl Removals {
    /// Removes a session from the journal, with others that wait.
    ///
    /// # Errors
    /// If the journal cannot be used any more.
    pub(super) async fn remove(
        &self,
        journal: &Arc<dyn Journal>,
        id: &SessionId,
    ) -> Result<Removed, HostError> {
        let (reply, mut removed) = oneshot::channel();
        self.waiting.lock().push((id.clone(), reply));
        let _in_progress = self.in_progress.lock().await;
        loop {
            // Another deletion may have removed this session meanwhile.
            match removed.try_recv() {
                Ok(removed) => return Ok(removed),
                Err(TryRecvError::Closed) => return Err(JournalError::Closed.into()),
                Err(TryRecvError::Empty) => {}
            }
            let group: Vec<_> = {
                let mut waiting = self.waiting.lock();
                let count = waiting.len().min(SESSIONS_MAX);
                waiting.drain(..count).collect()
            };
            let (ids, replies): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let results = remove(&**journal, &ids).await;
            for ((id, reply), mut result) in ids.into_iter().zip(replies).zip(results) {
                result.is_repeated = !result.was_removed && self.unfinished.lock().contains(&id);
                if result.was_removed && result.result.is_err() {
                    let mut unfinished = self.unfinished.lock();
                    unfinished.truncate(UNFINISHED_MAX - 1);
                    unfinished.push_front(id);
                }
                // A deletion that ended early needs no reply.
                let _ = reply.send(result);
            }
        }
    }
}

/// Removes sessions.
async fn remove(journal: &dyn Journal, ids: &[SessionId]) -> Vec<Removed> {
    // A session that cannot be read is counted as existing.
    let is_absent = |found: &Result<_, _>| matches!(found, Ok(None));
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.push(journal.find(id).await);
    }
    let result = journal.remove(ids).await;
    let mut removed = Vec::with_capacity(ids.len());
    for (id, found) in ids.iter().zip(found) {
        // After an error the records may be deleted, and only be left in the database file.
        let is_gone = result.is_ok() || is_absent(&journal.find(id).await);
        let was_removed = !is_absent(&found) && is_gone;
        let agent = found.ok().flatten().map(|session| session.agent);
        removed.push(Removed { result: result.clone(), was_removed, is_repeated: false, agent });
    }
    removed
}
