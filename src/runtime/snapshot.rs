//! What a session shows of itself.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::report::CallReport;
use crate::context::Variables;
use crate::event::ApprovalRequest;
use crate::message::Message;
use crate::record::Seq;
use crate::types::{ApprovalPhase, Content, RunId, SessionId, SessionState, Usage};

/// What a session holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionSnapshot {
    /// Its id.
    pub id: SessionId,
    /// Its agent's name.
    pub agent: String,
    /// What it is doing.
    pub state: SessionState,
    /// The place of its last record.
    pub seq: Seq,
    /// Its history; what the running turn said is not in it yet, but calls that the session was
    /// opened with are.
    pub history: Vec<Arc<Message>>,
    /// Its variables, by name.
    pub variables: Variables,
    /// The run that goes on.
    pub current_run: Option<CurrentRun>,
    /// The inputs that wait for it to end, in order.
    pub queued: Vec<QueuedInput>,
    /// What all its runs cost.
    pub usage: Usage,
}

/// A run that goes on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurrentRun {
    /// The run.
    pub run_id: RunId,
    /// The session's turn that it is in.
    pub turn: u32,
    /// Whether it was interrupted by the end of its host, and waits to be resumed or stopped.
    pub suspended: bool,
    /// What people are asked at present, in call order.
    pub approvals: Vec<PendingApproval>,
    /// The results of the running turn up to the first call that has none: they are kept,
    /// whatever becomes of the others.
    pub results: Vec<CallReport>,
}

/// A call that waits for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingApproval {
    /// What clients know the call by.
    pub tool_id: String,
    /// The tool's name.
    pub tool_name: String,
    /// What is asked.
    pub phase: ApprovalPhase,
    /// The arguments as they will be run, or were: a JSON object.
    pub input: Arc<Value>,
    /// What a decision brings back, so that it is about these very arguments.
    pub arguments_sha256: String,
    /// The first 200 characters of the result, where there is one.
    pub output_summary: Option<String>,
    /// Since when: Unix time in milliseconds.
    pub asked_at: u64,
}

impl PendingApproval {
    pub(super) fn new(asked: ApprovalRequest, asked_at: u64) -> Self {
        let ApprovalRequest { call, phase, arguments, arguments_sha256, output_summary } = asked;
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

/// An input that waits for the run that goes on to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuedInput {
    /// The run that will begin with it.
    pub run_id: RunId,
    /// What the user said.
    pub input: Content,
}
