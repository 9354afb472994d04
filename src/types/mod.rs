//! The nouns: ids, messages, calls, outcomes, finish reasons, usage.
//!
//! Everything here is a plain value. Nothing here knows of HTTP, of actors or of time.

mod approval;
mod call;
mod content;
mod message_part;
mod response;
mod trace;
mod variables;
mod wire;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use approval::{ApprovalPhase, Judgement, Verdict};
pub use call::{
    CALLS_MAX, CallKey, FailureKind, InvalidCallKey, ResultNotes, ToolCall, ToolOutcome,
    ToolResult, ToolStatus, metadata,
};
pub use content::{Content, ContentPart, Image, InvalidContent};
pub use message_part::{MessagePart, ModelOrigin};
pub use response::{FinishKind, FinishReason, ProviderError, ProviderErrorKind, Usage};
pub use trace::{RunTrace, TRACEPARENT, TRACESTATE, TraceContext};
pub use variables::{ReadSet, VariableName, VariablesUse, WriteSet};
pub use wire::{UnknownWire, Wire};

/// The name of a session: `[A-Za-z0-9_-]{1,64}`. Cloning shares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(#[serde(deserialize_with = "session_id")] Arc<str>);

impl SessionId {
    /// Parses a session id.
    ///
    /// # Errors
    /// Says what is wrong when `text` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn parse(text: &str) -> Result<Self, InvalidSessionId> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if fits { Ok(Self(text.into())) } else { Err(InvalidSessionId) }
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

fn session_id<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    let text = String::deserialize(deserializer)?;
    SessionId::parse(&text).map(|id| id.0).map_err(serde::de::Error::custom)
}

/// The text is no session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
pub struct InvalidSessionId;

/// The name of a run, unique in the process's life and beyond: `run_` and 16 hex digits. Cloning
/// shares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Arc<str>);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A record's place in its session's journal: from 1, without gaps; 0 is before the first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What an open session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// It waits for an input.
    Idle,
    /// A run is going on in it, or waits to go on.
    Running,
    /// Nothing of it is in memory; the next request wakes it.
    Hibernated,
}

impl SessionState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Idle, Self::Running, Self::Hibernated];

    /// The word for clients and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Hibernated => "hibernated",
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
    /// In turn after turn every call failed.
    AllToolsFailed,
    /// It used up its tokens or its calls.
    Budget,
    /// Turn after turn made the same calls and got the same results.
    LoopDetected,
}

impl RunEnd {
    /// Every end.
    pub const ALL: [Self; 10] = [
        Self::Answered,
        Self::MaxTurns,
        Self::Stopped,
        Self::Refused,
        Self::Failed,
        Self::TimedOut,
        Self::Interrupted,
        Self::AllToolsFailed,
        Self::Budget,
        Self::LoopDetected,
    ];

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
            Self::AllToolsFailed => "all_tools_failed",
            Self::Budget => "budget",
            Self::LoopDetected => "loop_detected",
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl From<Execution> for String {
    fn from(execution: Execution) -> Self {
        execution.to_string()
    }
}

impl TryFrom<String> for Execution {
    type Error = InvalidExecution;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
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

/// The beginning of a text in one line: every run of blanks and line ends is one blank.
#[must_use]
pub fn one_line(text: &str, chars_max: usize) -> String {
    let words = text.split_whitespace().take(chars_max);
    excerpt(&words.collect::<Vec<_>>().join(" "), chars_max)
}

/// The text without what a terminal would obey. Lines and tabs stay.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// As much of a line as fits in so many columns of a terminal.
#[must_use]
pub fn fitting(line: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in line.char_indices() {
        used += columns_of(c);
        if used > columns {
            return line.get(..at).unwrap_or_default();
        }
    }
    line
}

/// How many columns of a terminal a line takes.
#[must_use]
pub fn text_columns(line: &str) -> usize {
    line.chars().map(columns_of).sum()
}

/// East Asian characters count as two columns.
fn columns_of(c: char) -> usize {
    if c >= '\u{1100}' && !('\u{2000}'..'\u{2e80}').contains(&c) { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_a_terminal_would_wrap_it() {
        for (line, columns, fits) in [("abcdef", 3, "abc"), ("⠋ 東京", 5, "⠋ 東"), ("ab", 3, "ab")]
        {
            assert_eq!(fitting(line, columns), fits);
            assert!(text_columns(fits) <= columns);
        }
        assert_eq!(text_columns("⠋ 東京"), 6);
    }
}
