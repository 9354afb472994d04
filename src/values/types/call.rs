//! Tool calls, their outcomes and their results.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ApprovalVerdict, ChildUse, FullResult, ResultPart, RunId, VerdictWithMessage, WriteSet,
};

/// Maximum number of calls that are kept of one response, or of one initial message of a session.
/// It applies in addition to `max_tool_calls_per_turn`, and is reported under that name.
pub const CALLS_MAX: usize = 1024;

/// Identifies a tool call inside the host. It is never the provider's id.
///
/// `turn` counts the session's turns from 1 and is never reset. `attempt` counts from 1 within the
/// turn. Both are 0 in the calls of initial messages that have results. `index` is the call's position in the
/// response, from 0 and without gaps. Clients see `t{turn}a{attempt}c{index}`.
///
/// ```
/// use callsheet::CallKey;
///
/// let key: CallKey = "t2a1c0".parse().unwrap();
/// assert_eq!((key.turn, key.attempt, key.index), (2, 1, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallKey {
    /// The session's turn, from 1.
    pub turn: u32,
    /// The turn's attempt, from 1.
    pub attempt: u32,
    /// The call's position in the response, from 0.
    pub index: u32,
}

impl CallKey {
    /// Returns the idempotency key of the call: the id of its run and the key of the call. It is the same when the
    /// call runs again after a crash, and no later session has it, whatever its id.
    #[must_use]
    pub fn idempotency_key(self, run: &RunId) -> String {
        format!("{run}/{self}", run = run.0)
    }
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}a{}c{}", self.turn, self.attempt, self.index)
    }
}

impl FromStr for CallKey {
    type Err = InvalidCallKey;

    fn from_str(text: &str) -> Result<Self, InvalidCallKey> {
        let parts = || {
            let (turn, rest) = text.strip_prefix('t')?.split_once('a')?;
            let (attempt, index) = rest.split_once('c')?;
            Some(Self {
                turn: turn.parse().ok()?,
                attempt: attempt.parse().ok()?,
                index: index.parse().ok()?,
            })
        };
        // Each call has exactly one text form: signs and leading zeros are invalid.
        parts().filter(|key| key.to_string() == text).ok_or(InvalidCallKey)
    }
}

/// The error of a text that is not a call key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tool_id must be of the form t{{turn}}a{{attempt}}c{{index}}, such as t1a1c0")]
pub struct InvalidCallKey;

/// A tool call of the model, as decoded. Cloning shares its texts.
///
/// A [`Message`](crate::message::Message) of the model has its calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's key.
    pub key: CallKey,
    /// The id of the call in the history and in requests to the provider.
    pub id: Arc<str>,
    /// The provider's id, if any. It differs from `id` only if another call of the same response has it.
    pub provider_id: Option<Arc<str>>,
    /// The tool's name.
    pub name: Arc<str>,
    /// The decoded arguments, always a JSON object: an empty one if they could not be decoded.
    pub arguments: Arc<Value>,
    /// The received text. Present only if it was too large, truncated, not an object, or encoded twice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raw: Option<String>,
    /// True if the model made the call with `use_tool`.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub indirect: bool,
}

impl ToolCall {
    /// Returns the arguments as JSON text with sorted keys: equal arguments give equal text.
    #[must_use]
    pub fn arguments_text(&self) -> String {
        // `Display` would write the value in many small pieces.
        serde_json::to_string(&*self.arguments).unwrap_or_default()
    }
}

/// The status of a call's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToolStatus {
    /// The tool ran and returned a result.
    #[serde(rename = "success")]
    Ok,
    /// The tool ran and failed, or could not run.
    #[serde(rename = "error")]
    Failed,
    /// The tool, or the client that runs the call, exceeded its time limit.
    #[serde(rename = "timeout")]
    TimedOut,
    /// The call was cancelled, or the response or the run ended before it could start.
    #[serde(rename = "cancelled")]
    Cancelled,
    /// The call was not allowed to run, or its result is withheld.
    #[serde(rename = "refused")]
    Refused,
    /// A call with effects may or may not have happened: the host crashed or was killed while it ran, and its tool
    /// is not idempotent (`turn::resume`), or the tool could not find out.
    #[serde(rename = "unknown")]
    Unknown,
}

impl ToolStatus {
    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::Failed => "error",
            Self::TimedOut => "timeout",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// The reason why a call did not succeed: the `kind` of a result's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The tool returned an error.
    ToolError,
    /// The tool panicked.
    Panic,
    /// The tool's actor was killed before the tool answered.
    Killed,
    /// The tool, or the client that runs the call, exceeded its time limit.
    Timeout,
    /// The call was cancelled while it ran.
    Cancelled,
    /// The call ended before it could start: the run was stopped, or the response was truncated or
    /// broke.
    NotStarted,
    /// The host has no tool of this name.
    UnknownTool,
    /// The arguments are not an object, are too large, have a reference without a value, or do not match the tool's
    /// schema.
    InvalidArguments,
    /// The arguments are incomplete although the stream ended them, as at a limit of tokens.
    CutOffArguments,
    /// More argument bytes arrived after the call was sealed.
    Malformed,
    /// The response has more calls than its limit allows.
    Limit,
    /// The host crashed or was killed during the call. The status is [`ToolStatus::Unknown`].
    HostStopped,
    /// A person rejected the call or its result, or the run ended before its result was approved.
    Rejected,
    /// No decision about the call or its result arrived in time.
    ApprovalExpired,
    /// The program of a command tool ended with an exit status of failure or by a signal.
    ExitStatus,
    /// The sandbox of a program could not be set up.
    Sandbox,
    /// The server of an HTTP tool, or an MCP server, answered with an error status.
    HttpStatus,
    /// The call was certainly not sent: no connection was made, the server reads nothing, or the circuit breaker of
    /// the tool is open.
    NotSent,
    /// The definition of the tool has changed since it was accepted.
    ToolChanged,
    /// The server of the tool is not connected, or the connection broke during the call.
    ServerDown,
    /// A hook refused the call or withheld its result, or the run ended before hooks had decided about the result.
    Hook,
}

impl FailureKind {
    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ToolError => "tool_error",
            Self::Panic => "panic",
            Self::Killed => "killed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::NotStarted => "not_started",
            Self::UnknownTool => "unknown_tool",
            Self::InvalidArguments => "invalid_arguments",
            Self::CutOffArguments => "cut_off_arguments",
            Self::Malformed => "malformed",
            Self::Limit => "limit",
            Self::HostStopped => "host_stopped",
            Self::Rejected => "rejected",
            Self::ApprovalExpired => "approval_expired",
            Self::ExitStatus => "exit_status",
            Self::Sandbox => "sandbox",
            Self::HttpStatus => "http_status",
            Self::NotSent => "not_sent",
            Self::ToolChanged => "tool_changed",
            Self::ServerDown => "server_down",
            Self::Hook => "hook",
        }
    }
}

/// The outcome of a call. Each call has exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The status.
    pub status: ToolStatus,
    /// The reason, unless the call succeeded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<FailureKind>,
    /// The text for the model.
    pub content: Arc<str>,
    /// The whole result, if it is more than the text. A model that sees images in results reads it instead of
    /// the text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub full: Option<Arc<FullResult>>,
    /// The number of attempts, if the call was tried again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempts: Option<NonZeroU32>,
    /// The tool's own maximum number of bytes that the model sees. It replaces the agent's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_bytes: Option<NonZeroUsize>,
    /// The child of a call of an agent, if the call had one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub child: Option<Arc<ChildUse>>,
}

impl ToolOutcome {
    /// Creates a success with the tool's answer.
    #[must_use]
    pub fn ok(content: impl Into<Arc<str>>) -> Self {
        let (status, content) = (ToolStatus::Ok, content.into());
        Self {
            status,
            kind: None,
            content,
            full: None,
            attempts: None,
            max_bytes: None,
            child: None,
        }
    }

    /// Creates an outcome that is not a success.
    #[must_use]
    pub fn not_ok(status: ToolStatus, kind: FailureKind, content: impl Into<Arc<str>>) -> Self {
        Self { status, kind: Some(kind), ..Self::ok(content) }
    }

    /// Adds the whole result.
    #[must_use]
    pub fn with_full(self, full: Option<FullResult>) -> Self {
        Self { full: full.map(Arc::new), ..self }
    }

    /// Returns the maximum number of bytes of the content that the model sees: the tool's own, or else `bytes`, which
    /// is the agent's. `usize::MAX` means all of it, whatever the tool's own is.
    pub fn model_bytes_max(&self, bytes: usize) -> usize {
        let tool_limit = self.max_bytes.filter(|_| bytes != usize::MAX);
        tool_limit.map_or(bytes, NonZeroUsize::get)
    }

    /// Appends a text to the content.
    pub fn append(&mut self, text: &str) {
        self.content = [&*self.content, text].concat().into();
        if let Some(full) = &mut self.full {
            Arc::make_mut(full).content.push(text.trim_start().into());
        }
    }

    /// Returns the parts of the result, if it is more than a text.
    #[must_use]
    pub fn parts(&self) -> Option<&[ResultPart]> {
        let parts = &*self.full.as_ref()?.content;
        let is_text = |part: &ResultPart| matches!(part, ResultPart::Text { .. });
        (!parts.iter().all(is_text)).then_some(parts)
    }
}

/// A call with its outcome, for the model, for clients and for the run report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call.
    pub call: ToolCall,
    /// The outcome.
    pub outcome: ToolOutcome,
    /// Additional facts about the result.
    pub notes: ResultNotes,
    /// Start time, relative to the start of the run. `None` if the call never started.
    pub started: Option<Duration>,
    /// Time from seal to start, or to the outcome if the call never started.
    pub wait: Duration,
    /// Time from start to outcome. Zero if the call never started.
    pub duration: Duration,
    /// The variables that the call writes.
    pub writes: WriteSet,
}

/// Additional facts about a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResultNotes {
    /// The outcome is a copy of this call's outcome.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub duplicate_of: Option<CallKey>,
    /// The response changed the arguments after the call had started.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub arguments_changed: bool,
    /// The result was reused from an earlier attempt of the same turn.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub reused: bool,
    /// An earlier call of the turn wrote a variable that this call had already read.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub conflict: bool,
    /// The call's writes to variables were dropped.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub writes_dropped: bool,
    /// The client was asked to run the call.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub by_client: bool,
    /// The decision about running the call, if approval was needed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<VerdictWithMessage>,
    /// The decision about its result, if approval was needed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<VerdictWithMessage>,
}

impl ResultNotes {
    /// Returns the decision because of which the call or its result was refused: a rejection, or no decision in time.
    #[must_use]
    pub fn rejection(&self) -> Option<&VerdictWithMessage> {
        let given = [&self.before, &self.after].into_iter().flatten();
        given.into_iter().find(|given| given.verdict != ApprovalVerdict::Approved)
    }
}

impl ToolResult {
    /// Returns the `metadata` of the result in events, reports and histories; `{}` if there is
    /// none.
    #[must_use]
    pub fn metadata(&self) -> Value {
        metadata(&self.outcome, &self.notes)
    }
}

/// Returns the `metadata` of an outcome: a JSON object, empty for a plain success.
#[must_use]
pub fn metadata(outcome: &ToolOutcome, notes: &ResultNotes) -> Value {
    let mut map = serde_json::Map::new();
    if outcome.status != ToolStatus::Ok {
        map.insert("error".into(), Value::Bool(true));
    }
    if let Some(kind) = outcome.kind {
        map.insert("kind".into(), kind.as_str().into());
    }
    if let Some(child) = &outcome.child {
        let child = json!({
            "session_id": child.session, "run_id": child.run.0,
            "tokens": child.tokens, "tool_calls": child.calls,
        });
        map.insert("child".into(), child);
    }
    if let Some(key) = notes.duplicate_of {
        map.insert("duplicate_of".into(), key.to_string().into());
    }
    if notes.arguments_changed {
        map.insert("arguments_changed".into(), Value::Bool(true));
    }
    if notes.by_client {
        map.insert("by".into(), "client".into());
    }
    if notes.reused {
        map.insert("reused".into(), Value::Bool(true));
    }
    for (key, holds) in [("conflict", notes.conflict), ("writes_dropped", notes.writes_dropped)] {
        if holds {
            map.insert(key.into(), Value::Bool(true));
        }
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_key_has_one_text_form() {
        let key = CallKey { turn: 12, attempt: 1, index: 0 };
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in [
            "",
            "t1a1",
            "t1a1c",
            "ta1c0",
            "t1a1c0 ",
            "T1a1c0",
            "t01a1c0",
            "t+1a1c0",
            "t-1a1c0",
            "t1c0a1",
            "t1a1c0c0",
            "t1a1s0",
            "t4294967296a1c0",
        ] {
            assert_eq!(text.parse::<CallKey>(), Err(InvalidCallKey), "{text}");
        }
    }
}
