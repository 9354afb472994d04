//! What the journal holds: messages and decisions, never token deltas.
//!
//! Machines name records, engines store them. A session is rebuilt by folding its records.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::message::ResponseMessage;

use crate::types::{
    ApprovalPhase, CallKey, Content, FinishReason, Judgement, ProviderError, ReadSet, ResultNotes,
    RunEnd, RunError, RunId, ToolCall, ToolOutcome, Usage, WriteSet,
};

/// A record's place in its session's journal: from 1, without gaps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// How a response ended, and so what becomes of its calls (DESIGN's table, one row each).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
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

/// One fact that must survive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// The session began.
    SessionOpened {
        /// Which agent it is.
        agent: String,
        /// The messages that it was opened with, in the Chat Completions form.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        messages: Vec<Value>,
    },
    /// A user's input waits for the run that goes on to end.
    InputQueued {
        /// The run that will begin with it.
        run_id: RunId,
        /// What the user said.
        input: Content,
    },
    /// A run began with a user's input.
    RunStarted {
        /// The run.
        run_id: RunId,
        /// What the user said.
        input: Content,
    },
    /// An HTTP exchange of a turn began.
    AttemptStarted {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt, from 1.
        attempt: u32,
        /// Which model was asked.
        model: String,
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
    },
    /// The response's ending is known; its message is whole.
    ResponseEnded {
        /// The session's turn.
        turn: u32,
        /// The turn's attempt.
        attempt: u32,
        /// How it ended.
        ending: Ending,
        /// What is kept of it.
        message: ResponseMessage,
        /// The provider's word, if it gave one.
        finish_reason: Option<FinishReason>,
        /// What it cost.
        usage: Usage,
        /// Names of calls that were decoded but are not kept.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        dropped_calls: Vec<String>,
    },
    /// A call with effects is about to start.
    CallIntended {
        /// The call, with its arguments.
        call: ToolCall,
        /// Stays the same if the call is run again.
        idempotency_key: String,
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
        /// Which call.
        key: CallKey,
        /// What they are asked.
        phase: ApprovalPhase,
    },
    /// They have said, or did not say in time.
    ApprovalGiven {
        /// Which call.
        key: CallKey,
        /// What they were asked.
        phase: ApprovalPhase,
        /// What was decided.
        #[serde(flatten)]
        judgement: Judgement,
    },
    /// A call has its outcome.
    CallEnded {
        /// Which call.
        key: CallKey,
        /// What became of it.
        outcome: ToolOutcome,
        /// What else there is to know of it.
        #[serde(default)]
        notes: ResultNotes,
        /// What it writes to the session's variables.
        #[serde(skip_serializing_if = "WriteSet::is_empty", default)]
        writes: WriteSet,
    },
    /// The turn's message and results are in the history.
    TurnCommitted {
        /// The session's turn.
        turn: u32,
    },
    /// A user said something to the run that goes on.
    Steered {
        /// What the user said.
        input: Content,
        /// The session's turn that went on: the input stands behind it.
        after_turn: u32,
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
        /// What went wrong, if something did.
        error: Option<RunError>,
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
