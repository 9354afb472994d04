//! What events say of calls.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::{ApprovalPhase, CallKey};

/// What clients know a call by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallLabel {
    /// Which call: `tool_id` and `call_index` come from it.
    pub key: CallKey,
    /// What the provider called it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub provider_id: Option<Arc<str>>,
    /// The tool's name, as the model wrote it.
    pub name: Arc<str>,
}

/// A call that the service runs itself: shown, and nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceCall {
    /// The session's turn.
    pub turn: u32,
    /// The turn's attempt.
    pub attempt: u32,
    /// Its place among the response's calls of this kind, from 0.
    pub place: u32,
    /// What the provider called it.
    pub provider_id: Option<Arc<str>>,
    /// The tool's name at the service.
    pub name: Arc<str>,
    /// The first 200 characters of its arguments, as far as they have come.
    pub input_summary: String,
}

impl ServiceCall {
    /// What clients know it by: `t{turn}a{attempt}s{place}`, which names no call of ours.
    #[must_use]
    pub fn tool_id(&self) -> String {
        let Self { turn, attempt, place, .. } = self;
        format!("t{turn}a{attempt}s{place}")
    }
}

/// How far a call is that the service runs itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceCallStatus {
    /// It has begun.
    Running,
    /// All of it has come.
    Finished,
    /// It counts no more: its response was void, or ended in the middle of it.
    Discarded,
}

impl ServiceCallStatus {
    /// The word for clients and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Discarded => "discarded",
        }
    }
}

/// How a conflict over variables is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictResolution {
    /// The call runs again.
    Rerun,
    /// The call keeps its result, and what it wrote to variables is dropped.
    WritesDropped,
    /// The call keeps its result, and had written nothing to variables.
    ResultKept,
}

impl ConflictResolution {
    /// Every resolution.
    pub const ALL: [Self; 3] = [Self::Rerun, Self::WritesDropped, Self::ResultKept];

    /// Returns the word for metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rerun => "rerun",
            Self::WritesDropped => "writes_dropped",
            Self::ResultKept => "result_kept",
        }
    }
}

/// What people are asked about a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The call.
    pub call: CallLabel,
    /// What they are asked.
    pub phase: ApprovalPhase,
    /// The arguments as they will be run, or were: a JSON object.
    pub arguments: Arc<Value>,
    /// The SHA-256 of those arguments as compact JSON with sorted keys, in hex digits. A decision
    /// brings it back, so that it is about these very arguments.
    pub arguments_sha256: String,
    /// The first 200 characters of the result, where there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_summary: Option<String>,
}

/// What is odd about arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentsAnomaly {
    /// They end in the middle.
    CutOff,
    /// They are no object, or do not fit the tool's schema.
    Invalid,
    /// A JSON string held the object.
    DecodedTwice,
    /// Bytes came after the seal.
    ChangedAfterSeal,
}

impl ArgumentsAnomaly {
    /// The word for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CutOff => "cut_off",
            Self::Invalid => "invalid",
            Self::DecodedTwice => "decoded_twice",
            Self::ChangedAfterSeal => "changed_after_seal",
        }
    }
}

/// What a sealed call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// The response to end well.
    Finish,
    /// An earlier call to take its ticket (or, in sequence, to end).
    Ticket,
    /// An exclusive call, or the calls before this exclusive one.
    Exclusive,
    /// One of the places of `max`, or one of its tool in the host.
    Capacity,
    /// People, to say that it may run.
    Approval,
}
