//! What the journal holds: messages and decisions, never token deltas.
//!
//! Machines name records, engines store them. A session is rebuilt by folding its records, and
//! what watchers are shown of the past comes from them too.

mod entry;
mod past;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::message::ResponseMessage;
pub use entry::{JournalEntry, RECORD_VERSION, UnreadableRecord};
pub use past::{DisplayedText, PastEvents, RunningText, displayed_text, part_after};

pub use crate::types::Seq;

use crate::config::RunOverrides;
use crate::event::{ApprovalRequest, CallLabel, StatsReport, TurnSummary};
use crate::types::{
    ApprovalPhase, CallKey, Content, Execution, FinishReason, ProviderError, ReadSet, ResultNotes,
    RunEnd, RunError, RunId, SessionId, ToolCall, ToolOutcome, TraceContext, Usage, Verdict,
    WriteSet,
};

/// How a response ended, and so what becomes of its calls (DESIGN's table, one row each).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseDisposition {
    /// It ended well: every call runs.
    Well,
    /// It was cut off at its maximal length: what had not started is answered.
    Length,
    /// It was refused or filtered: what had not started leaves the history.
    Refused,
    /// It broke after a call with effects had started: the part is the turn.
    BrokeKept,
    /// It held too many calls, and `on_excess` is `fail`.
    Excess,
    /// The run was ended while it came.
    Cancelled,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnd {
    /// The response is kept and every call in it is answered.
    Finished,
    /// The model or the service refused.
    Refused,
    /// No response could be had, or it broke a hard rule.
    Failed(RunError),
    /// It was cancelled.
    Cancelled(CancelReason),
}

/// Why a turn is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// Somebody asked.
    Stop,
    /// `run_timeout` passed.
    RunTimeout,
    /// The host shuts down.
    Shutdown,
    /// The run has used up its tokens or its calls.
    Budget,
}

/// Which request of a client brought an input, so that the same request again has no second
/// effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestKey {
    /// The client's `Idempotency-Key`.
    pub key: String,
    /// The SHA-256 of what was asked, in hex digits: the same key with anything else is an error.
    pub digest: String,
}

/// A piece of what watchers were shown of a response, in the order in which it came.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplayedSegment {
    /// The next so many bytes of the message's text.
    Text(usize),
    /// The next so many bytes of the message's reasoning.
    Thinking(usize),
    /// Thinking that the message does not keep.
    Dropped(String),
}

/// As much of a response as had come when a call of it began early: if the host stops then, that is
/// what is kept of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartialResponse {
    /// Its text, its thinking and the calls that are whole, the one that begins among them.
    pub message: ResponseMessage,
    /// What watchers were shown of it, as with [`Record::ResponseEnded`].
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub shown: Vec<DisplayedSegment>,
}

/// One fact that must survive.
///
/// As JSON it is an object with a `type` and its fields; a reader refuses fields that it does not
/// know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The session began.
    SessionOpened {
        /// Which agent it is.
        agent: String,
        /// The messages that it was opened with, in the Chat Completions form.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        messages: Vec<Value>,
    },
    /// The records before this one are those of another session, which goes its own way.
    SessionForked {
        /// The other session.
        from: SessionId,
        /// Its last record that was taken over.
        at: Seq,
    },
    /// A user's input waits for the run that goes on to end.
    InputQueued {
        /// The run that will begin with it.
        run_id: RunId,
        /// What the user said.
        input: Content,
        /// What the run changes about its agent.
        #[serde(skip_serializing_if = "RunOverrides::is_none", default)]
        overrides: Box<RunOverrides>,
        /// Which request brought it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        request: Option<RequestKey>,
        /// Where it stands in a trace of whoever asked for it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trace: Option<TraceContext>,
    },
    /// A run began with a user's input.
    RunStarted {
        /// The run.
        run_id: RunId,
        /// What the user said.
        input: Content,
        /// What the run changes about its agent.
        #[serde(skip_serializing_if = "RunOverrides::is_none", default)]
        overrides: Box<RunOverrides>,
        /// The name of the model that it asks first, at its service.
        model: String,
        /// How its calls are run.
        execution: Execution,
        /// Which request brought it; for one that waited, that stands with its `InputQueued`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        request: Option<RequestKey>,
        /// Where it stands in a trace of whoever asked for it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trace: Option<TraceContext>,
    },
    /// An HTTP exchange of a turn began.
    AttemptStarted {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt, from 1.
        attempt: u32,
        /// Which model was asked.
        model: String,
        /// Whether a streamed answer was asked for.
        streamed: bool,
        /// Why the attempt before failed, if there was one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        reason: Option<String>,
        /// How long was waited before, in milliseconds.
        #[serde(skip_serializing_if = "is_zero", default)]
        wait_ms: u64,
    },
    /// An attempt broke.
    AttemptFailed {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt.
        attempt: u32,
        /// Why.
        error: ProviderError,
        /// Whether what had come is kept as the turn.
        kept: bool,
        /// What it cost all the same.
        #[serde(default)]
        usage: Usage,
        /// Whether it broke because the host stopped: what watchers were shown of it is void, and
        /// what is kept is shown again.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        host_stopped: bool,
    },
    /// The response's ending is known; its message is whole.
    ResponseEnded {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt.
        attempt: u32,
        /// How it ended.
        ending: ResponseDisposition,
        /// What is kept of it.
        message: Arc<ResponseMessage>,
        /// The provider's word, if it gave one.
        finish_reason: Option<FinishReason>,
        /// What it cost.
        usage: Usage,
        /// Names of calls that were decoded but are not kept.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        dropped_calls: Vec<Arc<str>>,
        /// What watchers were shown of it, in its order; empty where that is the message's
        /// reasoning and then its text.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        shown: Vec<DisplayedSegment>,
    },
    /// A call with effects is about to start.
    CallIntended {
        /// The call, with its arguments.
        call: ToolCall,
        /// Stays the same if the call is run again.
        idempotency_key: String,
        /// The response so far, where that has not ended yet.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        so_far: Option<Box<PartialResponse>>,
    },
    /// A call's tool has answered, but what comes of that is not decided yet: earlier calls may
    /// still change what it has read, or people are asked.
    CallReported {
        /// Which call.
        key: CallKey,
        /// What the tool answered.
        outcome: ToolOutcome,
        /// What it has read of the session's variables.
        #[serde(default)]
        reads: ReadSet,
        /// What it would write to them.
        #[serde(skip_serializing_if = "WriteSet::is_empty", default)]
        writes: WriteSet,
    },
    /// People are asked about a call.
    ApprovalAsked {
        /// What they are asked, and about what.
        asked: Box<ApprovalRequest>,
    },
    /// They have said, or did not say in time.
    ApprovalGiven {
        /// Which call.
        key: CallKey,
        /// What they were asked.
        phase: ApprovalPhase,
        /// What was decided.
        verdict: Verdict,
        /// What was said with it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        message: Option<String>,
    },
    /// A call has its outcome.
    CallEnded {
        /// Which call.
        call: CallLabel,
        /// What became of it.
        outcome: ToolOutcome,
        /// What else there is to know of it.
        #[serde(default)]
        notes: ResultNotes,
        /// What it writes to the session's variables.
        #[serde(skip_serializing_if = "WriteSet::is_empty", default)]
        writes: WriteSet,
        /// When it started, in milliseconds since the run began; none if it never did.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        started_ms: Option<u64>,
        /// From its seal to its start, in milliseconds.
        #[serde(skip_serializing_if = "is_zero", default)]
        wait_ms: u64,
        /// From its start to its outcome, in milliseconds.
        #[serde(skip_serializing_if = "is_zero", default)]
        duration_ms: u64,
        /// Whether it started before its response had ended.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        early: bool,
        /// Whether only the notes have changed since the outcome was recorded: nothing is told.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        amended: bool,
    },
    /// The turn's message and results are in the history.
    TurnCommitted {
        /// The session's turn.
        turn: u32,
        /// How it ended.
        end: TurnEnd,
        /// What there is to know of it.
        summary: Box<TurnSummary>,
    },
    /// A user said something to the run that goes on.
    Steered {
        /// What the user said.
        input: Content,
        /// The session's turn that went on: the input stands behind it.
        after_turn: u32,
        /// Which request brought it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        request: Option<RequestKey>,
    },
    /// Somebody asked the run to stop.
    StopAsked {
        /// How.
        mode: StopMode,
    },
    /// A limit was reached, or half of it is used up.
    LimitReached {
        /// The configuration's name of it.
        limit: String,
        /// What was seen.
        value: u64,
        /// What is allowed.
        maximum: u64,
        /// What is done about it.
        action: String,
        /// What the model is told of it, behind the last result of the turn before.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        note: Option<String>,
    },
    /// The run ended.
    RunEnded {
        /// The run.
        run_id: RunId,
        /// Why.
        end: RunEnd,
        /// The final answer, or what there is of it.
        text: String,
        /// What went wrong, if something did.
        error: Option<RunError>,
        /// Its sums.
        stats: StatsReport,
        /// How many inputs wait behind it.
        #[serde(skip_serializing_if = "is_zero", default)]
        waiting: u64,
    },
    /// The session was closed.
    SessionClosed,
}

/// How a run is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// At once: what runs is aborted.
    Now,
    /// After every call of this turn has ended.
    AfterTurn,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
