//! What a session shows of itself.

use std::sync::Arc;

use serde::Serialize;

use crate::context::Variables;
use crate::message::Message;
use crate::record::Seq;
use crate::types::{RunId, SessionId, SessionState, Usage};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CurrentRun {
    /// The run.
    pub run_id: RunId,
    /// The session's turn that it is in.
    pub turn: u32,
}

/// An input that waits for the run that goes on to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuedInput {
    /// The run that will begin with it.
    pub run_id: RunId,
    /// What the user said.
    pub input: String,
}
