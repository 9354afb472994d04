//! The records of the journal: messages and decisions, but no token deltas.
//!
//! A session is rebuilt by applying its records in order. Watchers receive past events that are made
//! from them.

mod compaction;
mod entry;
mod millis;
mod past;
mod projector;
mod size;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::message::ResponseMessage;
pub use compaction::{Compaction, CutResult, ExcludedMessage};
pub use entry::{JournalEntry, RECORD_VERSION, UnreadableRecord};
pub use past::{DisplayedText, PastEvents, RunningText, displayed_text, part_after};
pub use projector::{EventProjector, with_call};

pub use crate::types::{ResponseEnding, Seq};

use crate::config::{ClientTool, RunOverrides};
use crate::event::{ApprovalRequest, CallLabel, StatsReport, TurnSummary, VoidedText};
use crate::types::{
    AgentLease, ApprovalVerdict, Author, CallKey, Content, Execution, FinishReason, HookDecision,
    HookPoint, Metadata, ParentCall, ProviderError, ReadSet, RequestKind, ResultNotes, RunEnd,
    RunError, RunId, SessionId, SummaryFailure, ToolCall, ToolOutcome, TraceContext, Usage,
    VariableName, WaitPhase, WriteSet, sha256_hex,
};

/// The end of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnd {
    /// The response is kept, and every call is answered.
    Finished,
    /// The model or the service refused to answer.
    Refused,
    /// A hook refused the request, or to go on after the turn.
    RefusedByHook(RunError),
    /// No attempt gave a response, or the response violated a hard limit.
    Failed(RunError),
    /// The turn was cancelled.
    Cancelled(CancelReason),
}

/// The reason why a turn is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// A client stopped the run.
    Stop,
    /// The run exceeded `run_timeout`.
    RunTimeout,
    /// The host shut down.
    Shutdown,
    /// The run used up its tokens or its calls.
    Budget,
}

/// The client's request that contained an input. A repeated request has no second effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestKey {
    /// The client's `Idempotency-Key`.
    pub key: String,
    /// The SHA-256 of the request, in hex digits. The same key with another request is an error.
    pub digest: String,
}

impl RequestKey {
    /// Creates the key of a request with this text.
    #[must_use]
    pub fn new(key: impl Into<String>, request: &str) -> Self {
        Self { key: key.into(), digest: sha256_hex(request) }
    }
}

/// A segment of a response in the order in which watchers received it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplayedSegment {
    /// The next bytes of the message's text, by number.
    Text(usize),
    /// The next bytes of the message's reasoning, by number.
    Thinking(usize),
    /// Thinking that is not part of the message. Read from journals; this version writes none.
    Dropped(String),
}

/// The part of a response that had arrived when one of its calls started early. It is kept if the
/// host ends then.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartialResponse {
    /// Text, thinking and sealed calls, including the call that starts.
    pub message: ResponseMessage,
    /// The segments that watchers received, as in [`Record::ResponseEnded`].
    #[serde(rename = "shown", skip_serializing_if = "Vec::is_empty", default)]
    pub displayed_segments: Vec<DisplayedSegment>,
}

/// A fact that must survive a crash.
///
/// Its JSON form is an object with a `type` and fields. Readers reject unknown fields of this object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The session was opened.
    SessionOpened {
        /// The agent's name.
        agent: String,
        /// The initial messages, in the Chat Completions form.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        messages: Vec<Value>,
        /// The client's pairs of strings.
        #[serde(skip_serializing_if = "Metadata::is_empty", default)]
        metadata: Metadata,
        /// The call that opened it, if it is a child session.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        parent: Option<Arc<ParentCall>>,
        /// The tools that the client runs.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        client_tools: Option<Arc<[ClientTool]>>,
    },
    /// The records before this one were copied from another session.
    SessionForked {
        /// The other session.
        from: SessionId,
        /// The last copied record.
        at: Seq,
    },
    /// A user's input was queued behind the run in progress.
    InputQueued {
        /// The run that it will start.
        run_id: RunId,
        /// The user's input.
        input: Content,
        /// The overrides of the run.
        #[serde(skip_serializing_if = "RunOverrides::is_none", default)]
        overrides: Arc<RunOverrides>,
        /// The client's request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        request: Option<RequestKey>,
        /// The client's trace context.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trace: Option<TraceContext>,
        /// The client's pairs of strings.
        #[serde(skip_serializing_if = "Metadata::is_empty", default)]
        metadata: Metadata,
        /// The variable that gets the answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        into: Option<VariableName>,
        /// The author of the request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// A client took a queued input back: its run does not start.
    InputRemoved {
        /// The run that it would have started.
        run_id: RunId,
        /// The author of the request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// A run started.
    RunStarted {
        /// The run.
        run_id: RunId,
        /// The user's input.
        input: Content,
        /// The overrides of the run.
        #[serde(skip_serializing_if = "RunOverrides::is_none", default)]
        overrides: Arc<RunOverrides>,
        /// The name of its first model: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// The execution mode of tool calls.
        execution: Execution,
        /// The client's request. If the input was queued, `InputQueued` has it instead.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        request: Option<RequestKey>,
        /// The client's trace context.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trace: Option<TraceContext>,
        /// The client's pairs of strings.
        #[serde(skip_serializing_if = "Metadata::is_empty", default)]
        metadata: Metadata,
        /// The variable that gets the answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        into: Option<VariableName>,
        /// The author of the request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// An attempt of a turn started.
    AttemptStarted {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt, from 1.
        attempt: u32,
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// True if a streamed answer was requested.
        streamed: bool,
        /// The error of the previous attempt, if any.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        reason: Option<String>,
        /// The delay before it, in milliseconds.
        #[serde(skip_serializing_if = "is_zero", default)]
        wait_ms: u64,
        /// The hash of what precedes the messages in the turn's requests: model, system text and tools. Set if it
        /// differs from that of the session's turn before.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        prompt: Option<u64>,
    },
    /// An attempt failed.
    AttemptFailed {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt.
        attempt: u32,
        /// The reason.
        error: ProviderError,
        /// True if the received part is kept as the turn.
        kept: bool,
        /// The token usage.
        #[serde(default)]
        usage: Usage,
        /// True if it failed because the host ended. Watchers then discard its text, and receive
        /// the kept part again.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        host_stopped: bool,
        /// The text that watchers have received, if nothing of it is kept. `None` if there was none, or the host ended.
        /// Journals of earlier versions do not have it.
        #[serde(rename = "shown_text", skip_serializing_if = "Option::is_none", default)]
        voided: Option<Arc<VoidedText>>,
    },
    /// The response ended, and its message is complete.
    ResponseEnded {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt.
        attempt: u32,
        /// The end.
        ending: ResponseEnding,
        /// The kept message.
        message: Arc<ResponseMessage>,
        /// The finish reason, if any.
        finish_reason: Option<FinishReason>,
        /// The token usage.
        usage: Usage,
        /// Names of the calls that were decoded but not kept.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        dropped_calls: Vec<Arc<str>>,
        /// The segments in the order in which watchers received them. Empty if that is the
        /// message's reasoning and then its text.
        #[serde(rename = "shown", skip_serializing_if = "Vec::is_empty", default)]
        displayed_segments: Vec<DisplayedSegment>,
    },
    /// A call with effects is about to start.
    CallIntended {
        /// The call, with its arguments.
        call: ToolCall,
        /// The idempotency key. It stays the same if the call runs again.
        idempotency_key: String,
        /// The response so far, if it has not ended.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        so_far: Option<Box<PartialResponse>>,
        /// The budget that its child may use, if it is the call of an agent.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        lease: Option<AgentLease>,
    },
    /// A call's tool returned, but the result is not final: earlier calls may still change
    /// variables that it read, hooks are asked about it, or an approval is needed.
    CallReported {
        /// The call.
        key: CallKey,
        /// The tool's outcome.
        outcome: ToolOutcome,
        /// The variables that it read.
        #[serde(default)]
        reads: ReadSet,
        /// The variables that it writes.
        #[serde(skip_serializing_if = "WriteSet::is_empty", default)]
        writes: WriteSet,
    },
    /// A call needs approval, its tool asks for input, or the client has to run it.
    ApprovalAsked {
        /// The request.
        #[serde(rename = "asked")]
        request: Box<ApprovalRequest>,
    },
    /// An approval or a question was decided, or expired.
    ApprovalGiven {
        /// The call.
        key: CallKey,
        /// The phase.
        phase: WaitPhase,
        /// The verdict.
        verdict: ApprovalVerdict,
        /// The message of the decision.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        message: Option<String>,
        /// The answer to a form, with its defaults.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        content: Option<Arc<Value>>,
        /// The author of the decision. `None` if it expired or was withdrawn, too.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// Hooks decided about a call, or about its result.
    HooksDecided {
        /// The call.
        key: CallKey,
        /// The point.
        on: HookPoint,
        /// The decision.
        decision: Arc<HookDecision>,
    },
    /// Hooks decided about the request of a turn, or about the finished turn.
    TurnHooksDecided {
        /// The session's turn.
        turn: u32,
        /// The point.
        on: HookPoint,
        /// The decision.
        decision: Arc<HookDecision>,
    },
    /// A call ended: it has its outcome.
    CallEnded {
        /// The call.
        call: CallLabel,
        /// The outcome.
        outcome: ToolOutcome,
        /// Additional facts about the result.
        #[serde(default)]
        notes: ResultNotes,
        /// The variables that it writes.
        #[serde(skip_serializing_if = "WriteSet::is_empty", default)]
        writes: WriteSet,
        /// Start time since the start of the run. `None` if the call never started. Stored in whole milliseconds.
        #[serde(rename = "started_ms", with = "millis::optional")]
        #[serde(skip_serializing_if = "Option::is_none", default)]
        started: Option<Duration>,
        /// Time from seal to start, or to the outcome if it never started. Stored in whole milliseconds.
        #[serde(rename = "wait_ms", with = "millis")]
        #[serde(skip_serializing_if = "millis::is_zero", default)]
        wait: Duration,
        /// Time from start to outcome. Stored in whole milliseconds.
        #[serde(rename = "duration_ms", with = "millis")]
        #[serde(skip_serializing_if = "millis::is_zero", default)]
        duration: Duration,
        /// True if it started before the end of its response.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        early: bool,
        /// True if this record only changes the notes of an earlier one. No event is published
        /// then.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        amended: bool,
    },
    /// The turn's message and results were committed to the history.
    TurnCommitted {
        /// The session's turn.
        turn: u32,
        /// The end.
        end: TurnEnd,
        /// The summary of the turn.
        summary: Box<TurnSummary>,
    },
    /// A user gave an input to the run in progress.
    Steered {
        /// The user's input.
        input: Content,
        /// The last turn that has begun. The input follows it in the history. Unrelated to
        /// [`StopMode::AfterTurn`] and [`HookPoint::AfterTurn`].
        #[serde(rename = "after_turn")]
        follows_turn: u32,
        /// The client's request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        request: Option<RequestKey>,
        /// The author of the request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// A client requested that the run stops.
    StopAsked {
        /// The mode.
        mode: StopMode,
        /// The author of the request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// A limit was reached, or half of it is used.
    LimitReached {
        /// The configuration key of the limit.
        limit: String,
        /// The current value.
        value: u64,
        /// The limit.
        maximum: u64,
        /// The action that follows.
        action: String,
        /// The reason why a summary is not used.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        reason: Option<SummaryFailure>,
        /// The note for the model, appended to the last result of the previous turn.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        note: Option<String>,
        /// The usage of a request for a summary that had no effect.
        #[serde(skip_serializing_if = "Usage::is_zero", default)]
        usage: Usage,
    },
    /// The host added a message to the history, which leads to another turn of the run.
    Instructed {
        /// The kind of the next request.
        request: RequestKind,
        /// The message.
        text: String,
    },
    /// The run ended.
    RunEnded {
        /// The run.
        run_id: RunId,
        /// The reason.
        end: RunEnd,
        /// The final answer, or the part of it that arrived.
        text: String,
        /// The error, if any.
        error: Option<RunError>,
        /// The typed answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        output: Option<Arc<Value>>,
        /// The variable that gets the answer.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        into: Option<VariableName>,
        /// The finish reason of the last response.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        finish_reason: Option<FinishReason>,
        /// The statistics.
        stats: StatsReport,
        /// Number of queued inputs.
        #[serde(skip_serializing_if = "is_zero", default)]
        waiting: u64,
    },
    /// The session's last run, which the shutdown of an earlier host had interrupted, goes on: its request was
    /// repeated with the same idempotency key. Its next turn follows; results that its calls have stay.
    RunReopened {
        /// The run.
        run_id: RunId,
        /// The author of the request.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        authored_by: Option<Author>,
    },
    /// The tools that servers offer to the session were frozen, or read again on request. They stay the same
    /// until the next such record.
    ToolsFrozen {
        /// The SHA-256 of the list of definitions, in hex digits. The journal has the list under this key.
        sha256: Arc<str>,
    },
    /// Messages of the context were replaced, mostly to make it smaller. The records before this one hold what is
    /// replaced.
    Compacted {
        /// The replacement.
        change: Box<Compaction>,
        /// The last turn of which something is replaced.
        upto: u32,
        /// The tokens of the next request before the change, by estimate.
        tokens_before: u64,
        /// The tokens of the next request after it, by estimate.
        tokens_after: u64,
        /// The usage of the request for the summary.
        #[serde(default)]
        usage: Usage,
    },
    /// The session was closed.
    SessionClosed,
}

/// The beginning of the keys of the journal's documents with frozen lists of tools.
pub const FROZEN_TOOLS: &str = "tools-";

/// The beginning of the keys of the journal's documents with points of sessions at which clients hold a history. The
/// rest is the history's hash. Such a document is deleted with the last session that uses it.
pub const HISTORY_POINTS: &str = "chat-";

/// Returns the key of the journal's document with a frozen list of tools.
pub fn frozen_tools_key(sha256: &str) -> String {
    format!("{FROZEN_TOOLS}{sha256}")
}

/// The mode of a stop: how the run in progress ends. Queued runs stay, and start next.
///
/// A run whose turn is over ends in both modes as `answered` if that turn gave the answer. `Now` still applies
/// after `AfterTurn`; `AfterTurn` changes nothing after `Now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// At once: the turn in progress is cancelled, and its running calls are aborted. The received part
    /// of the response and the calls that have ended are kept. The run ends as `stopped`.
    Now,
    /// After the turn in progress: its response and all of its calls end as usual and are committed. Then the run
    /// ends as `stopped`, unless that turn gave the answer.
    AfterTurn,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
