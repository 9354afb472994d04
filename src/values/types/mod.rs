//! Basic value types: ids, calls, outcomes, finish reasons, usage, secrets; and functions on texts, such as
//! [`excerpt`] and [`sanitize_text`].
//!
//! They are plain values and do not depend on HTTP, actors or clocks.

mod agent_call;
mod approval;
mod author;
mod call;
mod compaction;
mod content;
mod context_part;
mod hook;
mod indirect_call;
mod message_part;
mod metadata;
mod percent;
mod reasoning;
mod reference;
mod request_kind;
mod response;
mod secret_forms;
mod secrets;
mod tool_content;
mod tool_protocol;
mod trace;
mod variables;
mod wire;
mod with;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use unicode_width::UnicodeWidthChar as _;

pub use agent_call::{
    AgentLease, ChildUse, ParentCall, RootRun, child_run_id, child_session_id, is_child_session,
};
pub use agent_call::{CHILD_DIGITS, CHILD_PREFIX};
pub use approval::{
    Answer, ApprovalVerdict, Question, QuestionKind, VerdictWithMessage, WaitPhase,
};
pub use author::Author;
pub use call::{
    CALLS_MAX, CallKey, FailureKind, InvalidCallKey, ResultNotes, ToolCall, ToolOutcome,
    ToolResult, ToolStatus, metadata,
};
pub use compaction::{COMPACT_AT, CompactionKind, SummaryFailure};
pub use content::{Content, ContentPart, Image, InvalidContent};
pub use context_part::{ContextPart, PartTokens};
pub use hook::{HookDecision, HookPoint, HookVerdict};
pub use indirect_call::{USE_TOOL, used_tool};
pub use message_part::{MessagePart, ModelOrigin};
pub use metadata::Metadata;
pub use percent::percent_decoded;
pub use reasoning::{
    LearntReasoning, ReasoningField, ReasoningMembers, ReasoningRefusal, ReasoningRefusalKind,
    ReasoningRule, SendReasoning,
};
pub use reference::{
    InvalidReference, READ_VAR, REFERENCE_END, REFERENCE_START, Reference, ReferenceError,
    ReferenceId, ReferencedValue,
};
pub use request_kind::{FINAL_ANSWER, OutputMode, RequestKind, ToolChoice};
pub use response::{
    ContentRefusal, ContextOverflow, FinishKind, FinishReason, ProviderError, ProviderErrorKind,
    RefusalDetails, ResponseEnding, ToolRefusal, Usage,
};
pub use secrets::CUT_MARK;
pub use secrets::{REDACTED, Secrets};
pub use tool_content::cut_text;
pub use tool_content::{FullResult, RESULT_BYTES_MAX, ResultPart, ResultResource};
pub use tool_protocol::{ToolProtocol, UnknownToolProtocol};
pub use trace::{RunTrace, TRACEPARENT, TRACESTATE, TraceContext};
pub use variables::{ReadSet, VariableName, VariablesUse, WriteSet};
pub use wire::{UnknownWire, Wire};
pub use with::impl_with;

/// The id of a session: `[A-Za-z0-9_-]{1,64}`. Cloning shares it.
///
/// ```
/// use callsheet::SessionId;
///
/// assert_eq!(SessionId::parse("support-7").unwrap().as_str(), "support-7");
/// assert!(SessionId::parse("no spaces").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(#[serde(deserialize_with = "session_id")] Arc<str>);

impl SessionId {
    /// Parses a session id.
    ///
    /// # Errors
    /// If `text` does not match `[A-Za-z0-9_-]{1,64}`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        let rule = "a session id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -";
        if fits { Ok(Self(text.into())) } else { Err(InvalidValue::new(rule)) }
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for SessionId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
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

/// The error of a value that cannot be used, such as a URL or a key. Its text says what is wrong. It does not
/// always quote the value, which may be a secret.
///
/// ```
/// use callsheet::SessionId;
///
/// let error = SessionId::parse("no spaces").unwrap_err();
/// assert_eq!(error.to_string(), "a session id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(String);

impl InvalidValue {
    /// Makes a reason.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// The id of a run, globally unique: `run_` and 16 hex digits, or 32 if a call of an agent started the run in a child
/// session. Cloning shares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Arc<str>);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The sequence number of a record in its session's journal: from 1, without gaps. 0 is the
/// position before the first record.
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

/// The state of an open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The session is in memory and waits for an input.
    Idle,
    /// A run is in progress, or waits to be resumed.
    Running,
    /// A run is in progress, and an approval or a question of it waits for a person. While it waits only for people,
    /// the session need not be in memory.
    Waiting,
    /// The session has no run and is not in memory. The next request loads it.
    Hibernated,
}

impl SessionState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Running, Self::Waiting, Self::Hibernated];

    /// Returns the name for clients and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Hibernated => "hibernated",
        }
    }
}

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// The model gave its final answer.
    Answered,
    /// The limit of turns was reached.
    MaxTurns,
    /// A client stopped the run, or the call of an agent that had started it was cancelled.
    Stopped,
    /// The model or its service refused to answer, or a hook refused the turn.
    Refused,
    /// The run could not continue.
    Failed,
    /// `run_timeout` passed.
    TimedOut,
    /// The host shut down.
    Interrupted,
    /// All calls failed in too many consecutive turns.
    AllToolsFailed,
    /// The run used up its tokens or its calls.
    Budget,
    /// Consecutive turns made the same calls with the same results.
    LoopDetected,
}

impl RunEnd {
    /// All run ends.
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

    /// Returns the name for clients, logs and metrics.
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

/// An error for clients: a stable code and a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunError {
    /// A stable code, such as `provider_error` or `TOOL_CALL_LIMIT_EXCEEDED`.
    pub code: String,
    /// A message for people.
    pub message: String,
    /// True if the same run may succeed later.
    #[serde(default)]
    pub transient: bool,
}

/// The execution mode of a run's tool calls.
///
/// Set in [`AgentConfig::execution`](crate::config::AgentConfig), and for one run in
/// [`RunOverrides`](crate::config::RunOverrides).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "ExecutionForm", into = "String")]
pub enum Execution {
    /// Sequential: a call starts when all earlier calls have ended.
    Sequential,
    /// Parallel: at most `max` calls run concurrently.
    Parallel {
        /// From 1 to [`PARALLEL_MAX`](Self::PARALLEL_MAX).
        max: u32,
    },
}

impl Execution {
    /// The limit of `parallel` without a number.
    pub const PARALLEL_DEFAULT: u32 = 16;
    /// The maximum number of concurrent calls of a run.
    pub const PARALLEL_MAX: u32 = 1024;
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
                .filter(|max| (1..=Self::PARALLEL_MAX).contains(max))
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

/// The forms in which JSON may hold an execution mode: `"parallel:4"`, or `{"parallel": 4}` as in the
/// configuration.
#[derive(Deserialize)]
#[serde(untagged)]
enum ExecutionForm {
    Text(String),
    Object(ParallelForm),
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParallelForm {
    parallel: u32,
}

impl TryFrom<ExecutionForm> for Execution {
    type Error = InvalidExecution;

    fn try_from(form: ExecutionForm) -> Result<Self, Self::Error> {
        match form {
            ExecutionForm::Text(text) => text.parse(),
            ExecutionForm::Object(ParallelForm { parallel: max @ 1..=Self::PARALLEL_MAX }) => {
                Ok(Self::Parallel { max })
            }
            ExecutionForm::Object(_) | ExecutionForm::Other(_) => Err(InvalidExecution),
        }
    }
}

/// The text is not an execution mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("execution must be \"sequential\", \"parallel\" or \"parallel:N\" with N from 1 to 1024")]
pub struct InvalidExecution;

/// Returns the last position up to `index` at which a character begins, or the text's length. The
/// standard library has this method since Rust 1.91.
#[must_use]
pub fn floor_char_boundary(text: &str, index: usize) -> usize {
    let mut floor = index.min(text.len());
    while !text.is_char_boundary(floor) {
        floor -= 1;
    }
    floor
}

/// Returns the first character boundary at or after an index.
#[must_use]
pub fn ceil_char_boundary(text: &str, index: usize) -> usize {
    (index..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Returns the first `chars_max` characters of a text, with an ellipsis if there are more.
#[must_use]
pub fn excerpt(text: &str, chars_max: usize) -> String {
    // A text has at most as many characters as bytes, and most are short.
    if text.len() <= chars_max {
        return text.to_owned();
    }
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((cut, _)) => {
            let mut short = text.get(..cut).unwrap_or_default().to_owned();
            short.push('…');
            short
        }
    }
}

/// Returns the beginning of a text as one line. Each sequence of white space becomes one space.
#[must_use]
pub fn one_line(text: &str, chars_max: usize) -> String {
    let words = text.split_whitespace().take(chars_max);
    excerpt(&words.collect::<Vec<_>>().join(" "), chars_max)
}

/// Returns the text without control characters, which a terminal would interpret, and with invisible and
/// bidirectional (bidi) characters written out (`\u{202e}`), because they can make a text look like another
/// one. Keeps line feeds, tabs, and joiners between visible non-ASCII characters.
#[must_use]
pub fn sanitize_text(text: &str) -> String {
    let mut stream = TextSanitizer::default();
    let mut shown = stream.push(text);
    shown.push_str(&stream.finish());
    shown
}

/// Converts a text that arrives in pieces as [`sanitize_text`] does.
#[derive(Debug, Default)]
pub struct TextSanitizer {
    /// The last character.
    before: Option<char>,
    /// The last character, if it is a joiner and the next character decides about it.
    joiner: Option<char>,
}

impl TextSanitizer {
    /// Returns the next piece of the converted text. Holds a joiner at the end back.
    #[must_use]
    pub fn push(&mut self, piece: &str) -> String {
        let mut shown = String::with_capacity(piece.len());
        for c in piece.chars() {
            // Between two visible non-ASCII characters, a joiner is a part of an emoji or of a script.
            match self.joiner.take() {
                Some(joiner) if can_be_joined(c) => shown.push(joiner),
                Some(joiner) => shown.extend(joiner.escape_unicode()),
                None => {}
            }
            if matches!(c, '\u{200c}' | '\u{200d}') && self.before.is_some_and(can_be_joined) {
                self.joiner = Some(c);
            } else if is_invisible(c) {
                shown.extend(c.escape_unicode());
            } else if !c.is_control() || matches!(c, '\n' | '\t') {
                shown.push(c);
            }
            self.before = Some(c);
        }
        shown
    }

    /// Ends the text. Returns the joiner that was held back, written out.
    #[must_use]
    pub fn finish(&mut self) -> String {
        self.before = None;
        self.joiner.take().into_iter().flat_map(char::escape_unicode).collect()
    }
}

/// Returns true for visible characters that are not ASCII.
fn can_be_joined(c: char) -> bool {
    !(c.is_ascii() || c.is_control() || c.is_whitespace() || is_invisible(c))
}

/// Returns the text with everything written out that is not printable: for a question that a person
/// answers. A combining mark is printable after a letter or a digit.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    // The letter or digit to which combining marks belong.
    let mut base: Option<char> = None;
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            c if is_invisible(c) => shown.extend(c.escape_unicode()),
            c if base.is_some_and(|base| is_visible_mark(base, c)) => {
                shown.push(c);
                continue;
            }
            c => shown.extend(c.escape_debug()),
        }
        base = Some(c).filter(|c| c.is_alphanumeric() && shown.ends_with(*c));
    }
    shown
}

/// Returns true for a combining mark that changes the appearance of the letter or digit before it.
fn is_visible_mark(base: char, c: char) -> bool {
    // `char::escape_debug` escapes all combining marks, `str::escape_debug` only one at the beginning.
    let is_mark =
        c.escape_debug().len() > 1 && String::from_iter(['a', c]).escape_debug().eq(['a', c]);
    let is_emoji_selector = matches!(c, '\u{fe0e}' | '\u{fe0f}');
    // Many marks of other scripts are invisible after a Latin letter.
    let fits_base = !base.is_ascii() || matches!(c, '\u{300}'..='\u{36f}');
    is_mark && !is_emoji_selector && fits_base
}

/// Returns true for bidirectional controls and for default-ignorable characters (the properties
/// `Bidi_Control` and `Default_Ignorable_Code_Point` of Unicode 17), except for the variation selectors of
/// emoji.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0d}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Returns the beginning of a line that fits into this number of terminal columns.
#[must_use]
pub fn fitting(line: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in line.char_indices() {
        used += char_columns(c);
        if used > columns {
            return line.get(..at).unwrap_or_default();
        }
    }
    line
}

/// Returns the number of terminal columns that a line needs.
#[must_use]
pub fn text_columns(line: &str) -> usize {
    line.chars().map(char_columns).sum()
}

/// Returns a time in whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the SHA-256 of some bytes in hexadecimal.
pub fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the number of columns of a character: 2 for East Asian characters and most emoji, 0 for combining
/// marks.
fn char_columns(c: char) -> usize {
    c.width().unwrap_or(0)
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
        assert_eq!((text_columns("✅❌⌚⚡⭐"), text_columns("✓✗–…❤")), (10, 5));
        assert_eq!(fitting("✅✅", 3), "✅");
    }

    #[test]
    fn invisible_characters_are_written_out() {
        let text = "a\u{202e}b\u{2066}c\u{200b}d\u{7}e\nf \u{1f468}\u{200d}\u{1f469} \u{2764}\u{fe0f} x\u{200d}";
        let expected = "a\\u{202e}b\\u{2066}c\\u{200b}de\nf \u{1f468}\u{200d}\u{1f469} \u{2764}\u{fe0f} x\\u{200d}";
        assert_eq!(sanitize_text(text), expected);
        let expected = "{\"a\": \"\\u{202e}\\n\\u{9b} \u{e9}\"}";
        assert_eq!(printable("{\"a\": \"\u{202e}\n\u{9b} \u{e9}\"}"), expected);
    }

    #[test]
    fn a_joiner_is_written_out_unless_visible_characters_are_joined() {
        for (text, expected) in [
            ("\u{e9}\u{200d}\u{200d}a", "\u{e9}\\u{200d}\\u{200d}a"),
            ("\u{e9}\u{200d}a", "\u{e9}\\u{200d}a"),
            ("\u{e9}\u{200d}", "\u{e9}\\u{200d}"),
            ("\u{e9}\u{200c}\u{a0}", "\u{e9}\\u{200c}\u{a0}"),
            ("\u{202e}\u{200d}\u{e9}", "\\u{202e}\\u{200d}\u{e9}"),
            ("\u{2764}\u{fe0f}\u{200d}\u{1f525}", "\u{2764}\u{fe0f}\u{200d}\u{1f525}"),
            ("\u{645}\u{6cc}\u{200c}\u{62e}", "\u{645}\u{6cc}\u{200c}\u{62e}"),
        ] {
            assert_eq!(sanitize_text(text), expected);
        }
    }

    #[test]
    fn a_combining_mark_is_printable_only_after_a_letter_or_a_digit() {
        for text in ["हिन्दी", "ที่", "cafe\u{301}", "e\u{302}\u{301}", "\u{438}\u{306}"]
        {
            assert_eq!(printable(text), text);
        }
        for (text, expected) in [
            ("\u{301}a", "\\u{301}a"),
            ("\n\u{301}", "\\n\\u{301}"),
            ("\"\u{301}", "\"\\u{301}"),
            (" \u{301}", " \\u{301}"),
            ("\u{202e}\u{301}", "\\u{202e}\\u{301}"),
            ("e\u{301}\u{34f}\u{301}", "e\u{301}\\u{34f}\\u{301}"),
            ("a\u{fe0f}\u{e0100}", "a\\u{fe0f}\\u{e0100}"),
            ("\u{e9}\u{fe0e}\u{fe00}", "\u{e9}\\u{fe0e}\\u{fe00}"),
            ("\u{915}\u{200d}\u{94d}", "\u{915}\\u{200d}\\u{94d}"),
            ("rm\u{1039}", "rm\\u{1039}"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
