//! The nouns: ids, messages, calls, outcomes, finish reasons, usage.
//!
//! Everything here is a plain value. Nothing here knows of HTTP, of actors or of time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of a session: `[A-Za-z0-9_-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// Parses a session id.
    ///
    /// # Errors
    /// Says what is wrong when `text` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn parse(text: &str) -> Result<Self, InvalidSessionId> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidSessionId) }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is no session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
pub struct InvalidSessionId;

/// The name of a run, unique in the process's life and beyond: `run_` and 16 hex digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub String);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

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

/// A call that the model asked for, as we understood it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ToolCall {
    /// Which call this is.
    pub key: CallKey,
    /// The id under which history and provider know the call.
    pub id: String,
    /// What the provider called it, if anything; differs from `id` only when that was unusable.
    pub provider_id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The arguments as understood: always a JSON object.
    pub arguments: Value,
    /// The text as it arrived, kept only when `arguments` is not simply its meaning
    /// (cut off, no object, encoded twice).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub raw: Option<String>,
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
    pub content: String,
}

impl ToolOutcome {
    /// A success with what the tool answered.
    #[must_use]
    pub fn ok(content: impl Into<String>) -> Self {
        Self { status: ToolStatus::Ok, kind: None, content: content.into() }
    }

    /// Anything but a success.
    #[must_use]
    pub fn not_ok(status: ToolStatus, kind: FailureKind, content: impl Into<String>) -> Self {
        Self { status, kind: Some(kind), content: content.into() }
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
    Value::Object(map)
}

/// The unified kind of a finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishKind {
    /// The model had no more to say.
    Stop,
    /// The model waits for tools.
    ToolCalls,
    /// The response was cut off at its maximal length.
    Length,
    /// The service withheld the rest.
    ContentFilter,
    /// The service gave up: it counts as a broken response.
    Error,
    /// A word we do not know; the response counts as ended well.
    Other,
}

/// Why a response ended: our kind, and the provider's word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FinishReason {
    /// Our kind.
    pub kind: FinishKind,
    /// The provider's word, unchanged.
    pub raw: String,
}

/// Token counts of one response (or a sum of them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written, reasoning included where the service counts it so.
    pub output_tokens: u64,
    /// Tokens read from the service's cache.
    pub cached_tokens: u64,
    /// Tokens spent on reasoning.
    pub reasoning_tokens: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

/// What kind of trouble an attempt met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderErrorKind {
    /// No connection was made.
    Connect,
    /// Nothing came for too long.
    Timeout,
    /// The connection broke, or the body ended without a finish.
    Transport,
    /// An HTTP status that is no success.
    Status,
    /// The service reported an error within the response.
    InStream,
    /// What came is no response of this wire.
    Malformed,
    /// A hard cap of the decoder was reached.
    TooLarge,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What kind of trouble.
    pub kind: ProviderErrorKind,
    /// The HTTP status, where there was one (also one named inside a stream's error).
    pub status: Option<u16>,
    /// The provider's code or type, if it gave one.
    pub code: Option<String>,
    /// What happened, for people.
    pub message: String,
    /// How long the service asked us to wait.
    pub retry_after: Option<Duration>,
}

impl ProviderError {
    /// An error of a kind with nothing but a message.
    #[must_use]
    pub fn new(kind: ProviderErrorKind, message: impl Into<String>) -> Self {
        Self { kind, status: None, code: None, message: message.into(), retry_after: None }
    }

    /// Whether another attempt may fare better: transport trouble, timeouts, broken and failed
    /// streams, and the statuses 408, 409, 429 and 5xx.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self.status {
            Some(status) if status >= 400 => matches!(status, 408 | 409 | 429) || status >= 500,
            Some(_) | None => match self.kind {
                ProviderErrorKind::Connect
                | ProviderErrorKind::Timeout
                | ProviderErrorKind::Transport
                | ProviderErrorKind::InStream
                | ProviderErrorKind::Malformed => true,
                ProviderErrorKind::Status | ProviderErrorKind::TooLarge => false,
            },
        }
    }
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// The model gave its final answer.
    Answered,
    /// The turns ran out.
    MaxTurns,
    /// Somebody stopped it.
    Stopped,
    /// The model or the service refused.
    Refused,
    /// It could not go on.
    Failed,
    /// `run_timeout` passed.
    TimedOut,
    /// The host was shut down.
    Interrupted,
}

impl RunEnd {
    /// The word for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::MaxTurns => "max_turns",
            Self::Stopped => "stopped",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What went wrong, for clients: a stable code and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunError {
    /// A stable word, such as `provider_error` or `TOOL_CALL_LIMIT_EXCEEDED`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Whether the same run may fare better later.
    #[serde(default)]
    pub transient: bool,
}

/// How a run's calls are run: one after the other, or several at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// A call starts when every earlier one has ended.
    Sequential,
    /// At most `max` calls run at once.
    Parallel {
        /// At least 1.
        max: u32,
    },
}

impl Execution {
    /// Places for `parallel` without a number.
    pub const PARALLEL_DEFAULT: u32 = 16;
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential => f.write_str("sequential"),
            Self::Parallel { max } => write!(f, "parallel:{max}"),
        }
    }
}

impl std::str::FromStr for Execution {
    type Err = InvalidExecution;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sequential" => Ok(Self::Sequential),
            "parallel" => Ok(Self::Parallel { max: Self::PARALLEL_DEFAULT }),
            other => other
                .strip_prefix("parallel:")
                .and_then(|n| n.parse().ok())
                .filter(|max| (1..=1024).contains(max))
                .map(|max| Self::Parallel { max })
                .ok_or(InvalidExecution),
        }
    }
}

/// The text names no execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("execution is \"sequential\", \"parallel\" or \"parallel:N\" with N from 1 to 1024")]
pub struct InvalidExecution;

/// The first `chars_max` characters of a text, with an ellipsis if there is more.
#[must_use]
pub fn excerpt(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((cut, _)) => {
            let mut short = text.get(..cut).unwrap_or_default().to_owned();
            short.push('…');
            short
        }
    }
}
