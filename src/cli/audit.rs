//! `callsheet sessions audit`: what was requested, by whom, when and in which session, without contents.

use std::collections::BTreeSet;

use serde::Serialize;

use super::error::CommandError;
use super::output;
use super::sessions::{buffered_stdout, flush, write};
use super::stored_journal::StoredJournal;
use callsheet_host::journal::{JournalEntry, export};
use callsheet_host::runtime::{deletion_keys, deletions};
use callsheet_values::record::{Record, Seq, StopMode};
use callsheet_values::types::{
    ApprovalVerdict, Author, CallKey, RunId, SessionId, WaitPhase, sanitize_text,
};

/// A request that was accepted.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct AuditedRequest {
    /// Unix time in milliseconds.
    time: u64,
    session_id: SessionId,
    /// The name of the token. Null if the request had none, or that of the host.
    author: Option<Author>,
    #[serde(flatten)]
    request: RequestDetails,
}

/// The kind of a request, with its run, call or other object.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "request", rename_all = "snake_case")]
enum RequestDetails {
    Open { agent: String },
    Fork { from: SessionId, at: Seq },
    Run { run_id: RunId },
    Steer { run_id: Option<RunId> },
    Stop { run_id: Option<RunId>, mode: StopMode },
    RemoveInput { run_id: RunId },
    Decide { tool_id: String, phase: WaitPhase, verdict: ApprovalVerdict },
    Delete { agent: Option<String> },
}

impl RequestDetails {
    fn name_and_rest(&self) -> (&'static str, String) {
        let of_run = |run: &Option<RunId>| run.as_ref().map_or(String::new(), ToString::to_string);
        match self {
            Self::Open { agent } => ("open", format!("agent {agent}")),
            Self::Fork { from, at } => ("fork", format!("{from} at {at}")),
            Self::Run { run_id } => ("run", run_id.to_string()),
            Self::Steer { run_id } => ("steer", of_run(run_id)),
            Self::Stop { run_id, mode: StopMode::Now } => {
                ("stop", format!("{} now", of_run(run_id)))
            }
            Self::Stop { run_id, mode: StopMode::AfterTurn } => {
                ("stop", format!("{} after_turn", of_run(run_id)))
            }
            Self::RemoveInput { run_id } => ("remove_input", run_id.to_string()),
            Self::Decide { tool_id, phase, verdict } => {
                ("decide", format!("{tool_id} {} {}", phase.as_str(), verdict.as_str()))
            }
            Self::Delete { agent } => {
                ("delete", agent.as_ref().map_or(String::new(), |agent| format!("agent {agent}")))
            }
        }
    }
}

/// Prints the accepted requests about all sessions, also deleted ones, the oldest first.
pub(super) fn audit(journal: &StoredJournal, json: bool) -> Result<(), CommandError> {
    let mut requests = Vec::new();
    let documents = deletion_keys().map_while(|key| journal.document(&key).transpose());
    let documents: Vec<_> = documents.collect::<Result<_, _>>().map_err(CommandError::usage)?;
    let deleted = deletions(&documents);
    requests.extend(deleted.into_iter().map(|deletion| AuditedRequest {
        time: deletion.time,
        session_id: deletion.session,
        author: deletion.authored_by,
        request: RequestDetails::Delete { agent: deletion.agent },
    }));
    for page in journal.pages(0, None, true) {
        for session in page.map_err(CommandError::usage)? {
            match journal.read(&session.id) {
                Ok(entries) => requests.extend(requests_of(&session.id, &entries)),
                Err(error) => output::error(&format!("session {}: {error}", session.id)),
            }
        }
    }
    requests.sort_by_key(|request| request.time);
    let mut stdout = buffered_stdout();
    let columns = |len: &dyn Fn(&AuditedRequest) -> usize| requests.iter().map(len).max();
    let author = |request: &AuditedRequest| {
        sanitize_text(request.author.as_ref().map_or("-", Author::as_str))
    };
    let author_columns = columns(&|request| author(request).chars().count()).unwrap_or_default();
    let id_columns = columns(&|request| request.session_id.as_str().len()).unwrap_or_default();
    for request in &requests {
        let line = if json {
            serde_json::to_string(request).map_err(CommandError::failed)?
        } else {
            let (name, rest) = request.request.name_and_rest();
            let (time, author, id) =
                (export::when(request.time), author(request), request.session_id.as_str());
            let rest = sanitize_text(&rest);
            format!("{time}  {author:author_columns$}  {id:id_columns$}  {name:6}  {rest}")
        };
        write(&mut stdout, &format!("{}\n", line.trim_end()))?;
    }
    flush(stdout)
}

/// Returns the requests that the records of a session name. The host itself starts the runs of child sessions.
fn requests_of(session: &SessionId, entries: &[JournalEntry]) -> Vec<AuditedRequest> {
    let (mut requests, mut queued) = (Vec::new(), BTreeSet::new());
    let (mut is_child, mut run) = (false, None);
    for JournalEntry { time, record, .. } in entries {
        let (request, author) = match record {
            Record::SessionOpened { parent: Some(_), .. } => {
                is_child = true;
                continue;
            }
            Record::SessionOpened { agent, .. } => {
                (RequestDetails::Open { agent: agent.clone() }, &None)
            }
            Record::SessionForked { from, at } => {
                // The records before this one are of the other session.
                requests.clear();
                (RequestDetails::Fork { from: from.clone(), at: *at }, &None)
            }
            Record::InputQueued { run_id, authored_by, .. } => {
                queued.insert(run_id.clone());
                (RequestDetails::Run { run_id: run_id.clone() }, authored_by)
            }
            Record::RunStarted { run_id, authored_by, .. } => {
                run = Some(run_id.clone());
                if queued.remove(run_id) || (is_child && authored_by.is_none()) {
                    continue;
                }
                (RequestDetails::Run { run_id: run_id.clone() }, authored_by)
            }
            Record::RunReopened { run_id, authored_by } => {
                (RequestDetails::Run { run_id: run_id.clone() }, authored_by)
            }
            Record::Steered { authored_by, .. } => {
                (RequestDetails::Steer { run_id: run.clone() }, authored_by)
            }
            Record::InputRemoved { run_id, authored_by } => {
                (RequestDetails::RemoveInput { run_id: run_id.clone() }, authored_by)
            }
            Record::StopAsked { mode, authored_by } => {
                (RequestDetails::Stop { run_id: run.clone(), mode: *mode }, authored_by)
            }
            Record::ApprovalGiven {
                key,
                phase,
                verdict: verdict @ (ApprovalVerdict::Approved | ApprovalVerdict::Rejected),
                authored_by,
                ..
            } => (decision(*key, *phase, *verdict), authored_by),
            Record::ApprovalGiven { .. }
            | Record::SessionClosed
            | Record::Instructed { .. }
            | Record::LimitReached { .. }
            | Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::ApprovalAsked { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::CallEnded { .. }
            | Record::TurnCommitted { .. }
            | Record::RunEnded { .. }
            | Record::ToolsFrozen { .. }
            | Record::Compacted { .. } => continue,
        };
        let (session_id, author) = (session.clone(), author.clone());
        requests.push(AuditedRequest { time: *time, session_id, author, request });
    }
    requests
}

fn decision(key: CallKey, phase: WaitPhase, verdict: ApprovalVerdict) -> RequestDetails {
    RequestDetails::Decide { tool_id: key.to_string(), phase, verdict }
}
