//! The removal of deleted sessions from the journal.
//!
//! Sessions that are deleted while another removal is in progress are removed together, by one of their deletions:
//! SQLite's engine empties its write-ahead log and scans the whole database after each removal.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::error::HostError;
use super::task;
use crate::journal::{Journal, JournalError};
use callsheet_values::types::SessionId;

/// Maximum number of sessions that are removed together.
const SESSIONS_MAX: usize = 64;

/// The sessions that wait to be removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    pub(super) waiting: Mutex<Vec<(SessionId, oneshot::Sender<Removed>)>>,
    /// Locked while sessions are removed.
    in_progress: tokio::sync::Mutex<()>,
}

/// The result of a removal.
#[derive(Clone, Debug)]
pub(super) struct Removed {
    /// The engine's result for all sessions that were removed together.
    pub(super) result: Result<(), JournalError>,
    /// True if the session existed and does not exist any more.
    pub(super) was_removed: bool,
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
            // Not on a thread for reads, because it waits for the writer.
            let results = task::with_journal(journal, move |journal| Ok(remove(journal, &ids)));
            for (reply, result) in replies.into_iter().zip(results.await?) {
                // A deletion that ended early needs no reply.
                let _ = reply.send(result);
            }
        }
    }
}

/// Removes sessions.
fn remove(journal: &dyn Journal, ids: &[SessionId]) -> Vec<Removed> {
    let exists = |id| !matches!(journal.find(id), Ok(None));
    // A session that cannot be read is counted as existing.
    let existed: Vec<_> = ids.iter().map(exists).collect();
    let result = journal.remove(ids);
    let removed = ids.iter().zip(existed).map(|(id, existed)| {
        // After an error the records may be deleted, and only be left in the database file.
        let is_gone = result.is_ok() || !exists(id);
        Removed { result: result.clone(), was_removed: existed && is_gone }
    });
    removed.collect()
}
