//! The runs of a session, from its records.

use serde::Serialize;

use super::error::HostError;
use super::host_ref::HostRef;
use crate::journal::{Journal, JournalError};
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::{Author, Metadata, RunEnd, RunError, RunId, SessionId, excerpt};

/// Maximum number of records of one read.
const PART_RECORDS: usize = 256;

/// Maximum number of characters of an input in the list.
const INPUT_CHARS_MAX: usize = 200;

/// A run in the list of a session's runs.
///
/// [`SessionHandle::runs`](crate::runtime::SessionHandle::runs) returns them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ListedRun {
    /// The run's id.
    pub run_id: RunId,
    /// Queued, running or ended.
    pub state: RunState,
    /// The beginning of the input's text: at most 200 characters.
    pub input: String,
    /// The client's pairs of strings.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The author of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
    /// The time of the request, if the input was queued: Unix time in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<u64>,
    /// The time of its start: Unix time in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// The time of its end: Unix time in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// The reason of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_end: Option<RunEnd>,
    /// The error that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

/// The state of a run in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Its input waits for the run in progress to end.
    Queued,
    /// It is in progress, also while it waits for people or is suspended.
    Running,
    /// It has ended.
    Ended,
}

/// Returns the runs of a session, the newest first.
pub(super) async fn runs(host_ref: &HostRef, id: &SessionId) -> Result<Vec<ListedRun>, HostError> {
    let found = read_runs(&*host_ref.shared.journal, id).await?;
    found.ok_or_else(|| HostError::NoSuchSession(id.clone()))
}

/// Reads the runs of a session in parts, so that only one part of its records is in memory. `None` if there is no
/// such session.
async fn read_runs(
    journal: &dyn Journal,
    id: &SessionId,
) -> Result<Option<Vec<ListedRun>>, JournalError> {
    let (mut runs, mut after) = (Vec::new(), Seq(0));
    loop {
        let part = journal.read_some(id, after, PART_RECORDS).await?;
        let Some(last) = part.last() else { break };
        after = last.seq;
        for entry in &part {
            if matches!(entry.record, Record::SessionClosed) {
                return Ok(None);
            }
            add(&mut runs, &entry.record, entry.time);
        }
    }
    runs.reverse();
    Ok((after != Seq(0)).then_some(runs))
}

/// Adds what a record says of the runs, in the order of their requests.
fn add(runs: &mut Vec<ListedRun>, record: &Record, time: u64) {
    match record {
        Record::InputQueued { run_id, input, metadata, authored_by, .. } => runs.push(ListedRun {
            run_id: run_id.clone(),
            state: RunState::Queued,
            input: excerpt(&input.text(), INPUT_CHARS_MAX),
            metadata: metadata.clone(),
            author: authored_by.clone(),
            queued_at: Some(time),
            started_at: None,
            ended_at: None,
            run_end: None,
            error: None,
        }),
        Record::RunStarted { run_id, input, metadata, authored_by, .. } => {
            let queued = runs.iter().rposition(|run| run.run_id == *run_id);
            let queued_at = queued.and_then(|at| runs.remove(at).queued_at);
            runs.push(ListedRun {
                run_id: run_id.clone(),
                state: RunState::Running,
                input: excerpt(&input.text(), INPUT_CHARS_MAX),
                metadata: metadata.clone(),
                author: authored_by.clone(),
                queued_at,
                started_at: Some(time),
                ended_at: None,
                run_end: None,
                error: None,
            });
        }
        Record::RunEnded { run_id, end, error, .. } => {
            if let Some(run) = runs.iter_mut().rfind(|run| run.run_id == *run_id) {
                run.state = RunState::Ended;
                run.ended_at = Some(time);
                run.run_end = Some(*end);
                run.error.clone_from(error);
            }
        }
        Record::RunReopened { run_id, .. } => {
            if let Some(run) = runs.iter_mut().rfind(|run| run.run_id == *run_id) {
                run.state = RunState::Running;
                (run.ended_at, run.run_end, run.error) = (None, None, None);
            }
        }
        Record::InputRemoved { run_id, .. } => runs.retain(|run| run.run_id != *run_id),
        // The queue stays with the session that was forked.
        Record::SessionForked { .. } => runs.retain(|run| run.state != RunState::Queued),
        Record::SessionOpened { .. }
        | Record::SessionClosed
        | Record::Instructed { .. }
        | Record::Steered { .. }
        | Record::StopAsked { .. }
        | Record::LimitReached { .. }
        | Record::AttemptStarted { .. }
        | Record::AttemptFailed { .. }
        | Record::ResponseEnded { .. }
        | Record::CallIntended { .. }
        | Record::CallReported { .. }
        | Record::CallEnded { .. }
        | Record::ApprovalAsked { .. }
        | Record::ApprovalGiven { .. }
        | Record::HooksDecided { .. }
        | Record::TurnHooksDecided { .. }
        | Record::TurnCommitted { .. }
        | Record::ToolsFrozen { .. }
        | Record::Compacted { .. } => {}
    }
}
