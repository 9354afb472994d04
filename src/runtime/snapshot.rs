//! The public snapshot of a session.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::report::CallReport;
use crate::context::Variables;
use crate::event::ApprovalRequest;
use crate::message::Message;
use crate::record::Seq;
use crate::types::{ApprovalPhase, Content, RunId, SessionId, SessionState, Usage};

/// A snapshot of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SessionSnapshot {
    /// The session's id.
    pub id: SessionId,
    /// The name of the session's agent.
    pub agent: String,
    /// The session's state.
    pub state: SessionState,
    /// The position of the last record.
    pub seq: Seq,
    /// The history. The current turn is not in it yet; unanswered calls that the session was opened
    /// with are.
    pub history: Vec<Arc<Message>>,
    /// The variables by name.
    pub variables: Variables,
    /// The run in progress.
    pub current_run: Option<CurrentRun>,
    /// The inputs that wait for the run to end, in order.
    pub queued: Vec<QueuedInput>,
    /// The usage of all runs.
    pub usage: Usage,
}

/// A run in progress.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CurrentRun {
    /// The run's id.
    pub run_id: RunId,
    /// The number of the current turn.
    pub turn: u32,
    /// True if the end of its host interrupted the run and it waits to be resumed or stopped.
    pub suspended: bool,
    /// The open approvals, in call order.
    pub approvals: Vec<PendingApproval>,
    /// The results of the current turn up to the first call that has none. These are kept even if
    /// the turn fails.
    pub results: Vec<CallReport>,
}

/// A call that waits for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PendingApproval {
    /// The id of the call for clients.
    pub tool_id: String,
    /// The tool's name.
    pub tool_name: String,
    /// The phase of the approval.
    pub phase: ApprovalPhase,
    /// The arguments that the tool will receive, or received: a JSON object.
    pub input: Arc<Value>,
    /// The SHA-256 of the arguments. A decision has to repeat it.
    pub arguments_sha256: String,
    /// The first 200 characters of the result, if there is one.
    pub output_summary: Option<String>,
    /// The time of the request: Unix time in milliseconds.
    pub asked_at: u64,
}

impl PendingApproval {
    pub(super) fn new(request: ApprovalRequest, asked_at: u64) -> Self {
        let ApprovalRequest { call, phase, arguments, arguments_sha256, output_summary } = request;
        Self {
            tool_id: call.key.to_string(),
            tool_name: call.name.to_string(),
            phase,
            input: arguments,
            arguments_sha256,
            output_summary,
            asked_at,
        }
    }
}

/// An input that waits for the current run to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueuedInput {
    /// The run that will start with the input.
    pub run_id: RunId,
    /// The user's input.
    pub input: Content,
}
