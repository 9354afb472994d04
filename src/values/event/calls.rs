//! Data about tool calls in events.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::{CallKey, Question, WaitPhase};

/// The identification of a call for clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallLabel {
    /// The key, from which `tool_id` and `call_index` follow.
    pub key: CallKey,
    /// The provider's id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub provider_id: Option<Arc<str>>,
    /// The tool's name, as the model wrote it.
    pub name: Arc<str>,
}

/// A tool call that the model's service runs itself. The host only reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceCall {
    /// The session's turn.
    pub turn: u32,
    /// The turn's attempt.
    pub attempt: u32,
    /// Its position among the service's calls of the response, from 0.
    pub position: u32,
    /// The provider's id.
    pub provider_id: Option<Arc<str>>,
    /// The tool's name at the service.
    pub name: Arc<str>,
    /// The first 200 characters of its arguments received so far.
    pub input_summary: String,
}

impl ServiceCall {
    /// Returns the id for clients: `t{turn}a{attempt}s{position}`. It differs from every id of a call
    /// of the host.
    #[must_use]
    pub fn tool_id(&self) -> String {
        let Self { turn, attempt, position, .. } = self;
        format!("t{turn}a{attempt}s{position}")
    }
}

/// The status of a call that the service runs itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceCallStatus {
    /// The call started.
    Running,
    /// The call is complete.
    Finished,
    /// The call was discarded: its response was void, or ended before the call.
    Discarded,
}

impl ServiceCallStatus {
    /// Returns the name for clients and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Discarded => "discarded",
        }
    }
}

/// The resolution of a conflict over variables.
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

/// A request for approval of a call, a question of its tool, or a request that the client runs the call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The call.
    pub call: CallLabel,
    /// The phase.
    pub phase: WaitPhase,
    /// The arguments, a JSON object.
    pub arguments: Arc<Value>,
    /// A SHA-256 in hex digits: of the arguments as compact JSON with sorted keys, or, if there is a
    /// question, of the question and its number in the call. A decision must repeat it, so that it
    /// applies to exactly these arguments, or this question.
    pub arguments_sha256: String,
    /// The first 200 characters of the result, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_summary: Option<String>,
    /// The question of the running tool.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub question: Option<Arc<Question>>,
}

/// An anomaly of received arguments: `oddity` in the log line `tool_arguments_odd` and in the metric of anomalies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentsAnomaly {
    /// The arguments are truncated.
    CutOff,
    /// The arguments are not an object, are too large, or do not match the tool's schema.
    Invalid,
    /// The arguments are encoded twice: a JSON string contains the object.
    DecodedTwice,
    /// The model did not write the arguments in the required form, and they were repaired.
    Repaired,
    /// More argument bytes arrived after the seal.
    ChangedAfterSeal,
}

impl ArgumentsAnomaly {
    /// Returns the name for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CutOff => "cut_off",
            Self::Invalid => "invalid",
            Self::DecodedTwice => "decoded_twice",
            Self::Repaired => "repaired",
            Self::ChangedAfterSeal => "changed_after_seal",
        }
    }
}

/// The reason why a sealed call waits, to start or for a decision about its result, or why a run waits before its
/// first turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// The response must complete.
    Finish,
    /// An earlier call must receive its ticket. With sequential execution, it must end.
    Ticket,
    /// An exclusive call must end, or this exclusive call waits for the calls before it.
    Exclusive,
    /// A permit of `max` or of the tool is needed.
    Capacity,
    /// The maximum rate of the tool is reached.
    Rate,
    /// An approval is needed.
    Approval,
    /// A server of tools must be connected.
    Server,
    /// Hooks must decide about the call, or about its result.
    Hook,
    /// The client must run the call, and send its result.
    Client,
}
