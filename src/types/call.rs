//! Calls and what becomes of them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Judgement, Verdict, WriteSet};

/// How many calls of one response, or of one message that a session is opened with, are kept at
/// all, whatever the limits of a run say.
pub const CALLS_MAX: usize = 1024;

/// Which tool call this is, inside the host: never the provider's id.
///
/// `turn` counts the session's turns from 1 and is never reset; `attempt` counts from 1 within
/// the turn; `index` is the call's dense place in the response, from 0. Shown to clients as
/// `t{turn}a{attempt}c{index}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallKey {
    /// The session's turn, from 1.
    pub turn: u32,
    /// The turn's attempt, from 1.
    pub attempt: u32,
    /// The call's place in the response, from 0.
    pub index: u32,
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
        // One call has one name: no signs, no zeros in front.
        parts().filter(|key| key.to_string() == text).ok_or(InvalidCallKey)
    }
}

/// The text names no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tool_id is t, a turn, a, an attempt, c and an index, such as t1a1c0")]
pub struct InvalidCallKey;

/// A call that the model asked for, as we understood it. Cloning shares its texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolCall {
    /// Which call this is.
    pub key: CallKey,
    /// The id under which history and provider know the call.
    pub id: Arc<str>,
    /// What the provider called it, if anything; differs from `id` only when that was unusable.
    pub provider_id: Option<Arc<str>>,
    /// The tool's name.
    pub name: Arc<str>,
    /// The arguments as understood: always a JSON object.
    pub arguments: Arc<Value>,
    /// The text as it arrived, kept only when `arguments` is not simply its meaning
    /// (cut off, no object, encoded twice).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raw: Option<String>,
}

impl ToolCall {
    /// The arguments as JSON text, their keys sorted: the same text for the same arguments.
    #[must_use]
    pub fn arguments_text(&self) -> String {
        // Much cheaper than to display the value, which writes it in many small pieces.
        serde_json::to_string(&*self.arguments).unwrap_or_default()
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToolStatus {
    /// The tool ran and gave a result.
    #[serde(rename = "success")]
    Ok,
    /// It ran and failed, or could not be run.
    #[serde(rename = "error")]
    Failed,
    /// It ran longer than it may.
    #[serde(rename = "timeout")]
    TimedOut,
    /// It was stopped, or never started.
    #[serde(rename = "cancelled")]
    Cancelled,
    /// It was not let run.
    #[serde(rename = "refused")]
    Refused,
    /// The host stopped during the call.
    #[serde(rename = "unknown")]
    Unknown,
}

impl ToolStatus {
    /// The word for clients, logs and metrics.
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

/// Why a call did not succeed: the `kind` of a result's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The tool returned an error.
    ToolError,
    /// The tool panicked.
    Panic,
    /// The tool's actor was killed.
    Killed,
    /// The deadline passed.
    Timeout,
    /// Stopped while it ran.
    Cancelled,
    /// Ended before it could start: a stop, a cut-off or broken response.
    NotStarted,
    /// No tool has this name here.
    UnknownTool,
    /// The arguments are no object, or do not fit the tool's schema.
    InvalidArguments,
    /// The arguments end in the middle.
    CutOffArguments,
    /// Bytes came for the call after it was sealed.
    Malformed,
    /// One call too many for a response.
    Limit,
    /// The host stopped during the call.
    HostStopped,
    /// A person did not let it run, or its result be seen.
    Rejected,
    /// Nobody said in time whether it may run, or its result be seen.
    ApprovalExpired,
}

impl FailureKind {
    /// The word for clients, logs and metrics.
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
        }
    }
}

/// The one outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// What became of it.
    pub status: ToolStatus,
    /// Why, on all but success.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<FailureKind>,
    /// What the model is told.
    pub content: Arc<str>,
}

impl ToolOutcome {
    /// A success with what the tool answered.
    #[must_use]
    pub fn ok(content: impl Into<Arc<str>>) -> Self {
        Self { status: ToolStatus::Ok, kind: None, content: content.into() }
    }

    /// Anything but a success.
    #[must_use]
    pub fn not_ok(status: ToolStatus, kind: FailureKind, content: impl Into<Arc<str>>) -> Self {
        Self { status, kind: Some(kind), content: content.into() }
    }

    /// Says more behind what it says.
    pub(crate) fn append(&mut self, text: &str) {
        self.content = [&*self.content, text].concat().into();
    }
}

/// An outcome with its call, as told to the model, to clients and to the run report.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call that is answered.
    pub call: ToolCall,
    /// What became of it.
    pub outcome: ToolOutcome,
    /// What else there is to know of it.
    pub notes: ResultNotes,
    /// When it started, since the run began; none if it never did.
    pub started: Option<Duration>,
    /// From seal to start (or to the answer, if it never started).
    pub wait: Duration,
    /// From start to outcome; zero if it never started.
    pub duration: Duration,
    /// What it writes to the session's variables.
    pub writes: WriteSet,
}

/// What else there is to know of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResultNotes {
    /// This is a copy of that call's outcome.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub duplicate_of: Option<CallKey>,
    /// The response went on to change the arguments after the call had started.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub arguments_changed: bool,
    /// The result of an earlier attempt of the same turn was used again.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub reused: bool,
    /// An earlier call of the turn wrote what this one had read before.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub conflict: bool,
    /// What it wrote to variables does not count.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub writes_dropped: bool,
    /// Whether people let it run, where they were asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<Judgement>,
    /// Whether people let its result be seen, where they were asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<Judgement>,
}

impl ResultNotes {
    /// The judgement that forbade something.
    #[must_use]
    pub fn rejection(&self) -> Option<&Judgement> {
        let judgements = [&self.before, &self.after].into_iter().flatten();
        judgements.into_iter().find(|judgement| judgement.verdict != Verdict::Approved)
    }
}

impl ToolResult {
    /// The `metadata` of the result in events, reports and histories; `{}` when there is none.
    #[must_use]
    pub fn metadata(&self) -> Value {
        metadata(&self.outcome, &self.notes)
    }
}

/// The `metadata` of an outcome: a JSON object, empty for a plain success.
#[must_use]
pub fn metadata(outcome: &ToolOutcome, notes: &ResultNotes) -> Value {
    let mut map = serde_json::Map::new();
    if outcome.status != ToolStatus::Ok {
        map.insert("error".into(), Value::Bool(true));
    }
    if let Some(kind) = outcome.kind {
        map.insert("kind".into(), kind.as_str().into());
    }
    if let Some(key) = notes.duplicate_of {
        map.insert("duplicate_of".into(), key.to_string().into());
    }
    if notes.arguments_changed {
        map.insert("arguments_changed".into(), Value::Bool(true));
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
    fn a_key_is_read_as_it_is_shown_and_in_no_other_way() {
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
