//! The histories that clients hold, and the points of sessions that they stand for: how a client is recognised that sends
//! its whole history with each request, and names no session.
//!
//! A history has a hash, which its protocol computes. The journal has a document for each, under that hash, so that the
//! search for it reads one document, however many sessions there are. It is written when an answer ends; no append
//! touches it. It is deleted with the last of its sessions.

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::Host;
use super::error::HostError;
use crate::journal::{Journal, JournalError};
use callsheet_values::record::{HISTORY_POINTS, Record, Seq};
use callsheet_values::types::{RunId, SessionId};

/// Maximum number of points with the same history. The oldest are forgotten.
const POINTS_MAX: usize = 16;

/// Number of locks. Documents with equal first digits of their hashes share one.
const LOCKS: usize = 64;

/// Number of records that are read at once.
const PART_RECORDS: usize = 64;

/// Maximum number of times that a document is read and written again, because another host has changed it.
const WRITES_MAX: usize = 16;

/// The point of a session at which a client holds its history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryPoint {
    /// The session.
    pub session: SessionId,
    /// The last record that the client has seen.
    pub seq: Seq,
    /// The time at which the session was opened: a later session may have its id.
    pub opened: u64,
    /// The run that waited for people then, and of which the client has seen only the beginning.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waiting_run: Option<RunId>,
}

/// A point that was found, of a session that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHistory {
    /// The point.
    pub point: HistoryPoint,
    /// False if another run of the session has begun since.
    pub is_whole: bool,
}

/// The locks of the documents, so that two answers that end at the same time are both kept.
#[derive(Debug)]
pub(super) struct HistoryLocks(Vec<Mutex<()>>);

impl Default for HistoryLocks {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::default()).collect())
    }
}

impl HistoryLocks {
    fn of(&self, hash: &str) -> Option<&Mutex<()>> {
        let digits = hash.get(..2).and_then(|digits| usize::from_str_radix(digits, 16).ok());
        self.0.get(digits.unwrap_or_default() % LOCKS)
    }

    /// Adds a point to a document.
    async fn add(
        &self,
        journal: &dyn Journal,
        hash: &str,
        point: &HistoryPoint,
    ) -> Result<(), JournalError> {
        let _guard = match self.of(hash) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        let (key, used_by) = (key(hash), Some(&point.session));
        for _ in 0..WRITES_MAX {
            let before = journal.document(&key).await?;
            let mut points = points(before.as_deref());
            if points.contains(point) {
                return Ok(());
            }
            points.retain(|other| other.session != point.session);
            points.push(point.clone());
            points.drain(..points.len().saturating_sub(POINTS_MAX));
            // Cannot fail: all its keys are texts.
            let text = serde_json::to_string(&points).unwrap_or_default();
            let is_stored = match journal.ownership() {
                None => journal.put_document(&key, &text, used_by).await.map(|()| true)?,
                Some(owner) => {
                    owner.replace_document(&key, before.as_deref(), &text, used_by).await?
                }
            };
            if is_stored {
                break;
            }
        }
        // Without a note, the next request of the client opens a session with the history that it sends.
        Ok(())
    }
}

impl Host {
    /// Returns the points that were noted for a history, of sessions that exist. `hash` has hex digits.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn known_history(&self, hash: &str) -> Result<Vec<KnownHistory>, HostError> {
        let shared = self.shared();
        let noted = points(shared.journal.document(&key(hash)).await?.as_deref());
        let mut known = Vec::with_capacity(noted.len());
        for point in &noted {
            let found = shared.journal.find(&point.session).await?;
            if found.is_some_and(|found| found.opened == point.opened) {
                let is_whole = !is_followed_by_run(&*shared.journal, point).await?;
                known.push(KnownHistory { point: point.clone(), is_whole });
            }
        }
        Ok(known)
    }

    /// Notes that a client holds this history of a session, up to the record `seq`. `waiting_run` waits for people there.
    /// Returns when that is durable.
    ///
    /// # Errors
    /// If there is no such session, or it cannot be stored.
    pub async fn note_history(
        &self,
        hash: &str,
        session: &SessionId,
        seq: Seq,
        waiting_run: Option<RunId>,
    ) -> Result<(), HostError> {
        let shared = self.shared();
        let found = shared.journal.find(session).await?;
        let opened = found.ok_or_else(|| HostError::NoSuchSession(session.clone()))?.opened;
        let point = HistoryPoint { session: session.clone(), seq, opened, waiting_run };
        Ok(shared.history_locks.add(&*shared.journal, hash, &point).await?)
    }
}

fn key(hash: &str) -> String {
    format!("{HISTORY_POINTS}{hash}")
}

/// Reads a document. One that a later version has written counts as empty.
fn points(text: Option<&str>) -> Vec<HistoryPoint> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Returns whether a run, or an input that waits for one, follows the point.
async fn is_followed_by_run(
    journal: &dyn Journal,
    point: &HistoryPoint,
) -> Result<bool, JournalError> {
    let mut after = point.seq;
    loop {
        let part = journal.read_some(&point.session, after, PART_RECORDS).await?;
        let Some(last) = part.last() else { return Ok(false) };
        after = last.seq;
        let begins_run = |record: &Record| {
            matches!(record, Record::RunStarted { .. } | Record::InputQueued { .. })
        };
        if part.iter().any(|entry| begins_run(&entry.record)) {
            return Ok(true);
        }
        if part.len() < PART_RECORDS {
            return Ok(false);
        }
    }
}
