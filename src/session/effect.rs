//! The inputs and the effects of the session machine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::config::RunOverrides;
use crate::event::{Event, RunStats};
use crate::message::MessageList;
use crate::record::{Record, Seq};
use crate::turn::{CancelReason, TurnSpec};
use crate::types::{Content, Metadata, RunEnd, RunError, RunId, TraceContext, Usage, VariableName};

/// The input of a run that is to start, now or after the current one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunInput {
    /// The id of the run.
    pub run_id: RunId,
    /// The user's input.
    pub input: Content,
    /// The run's changes to its agent.
    pub overrides: Arc<RunOverrides>,
    /// The trace that the run belongs to.
    pub trace: Option<TraceContext>,
    /// The client's pairs of strings.
    pub metadata: Metadata,
    /// The variable that gets the answer.
    pub into: Option<VariableName>,
}

/// The answer to a request to start a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RunAdmission {
    /// The run can start now.
    Start,
    /// The run can wait for the current one.
    Queue,
    /// The same request was accepted before.
    Known {
        /// The run that it started or queued.
        run_id: RunId,
        /// The record of its input.
        seq: Seq,
    },
}

/// The reason why a request to a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionRefusal {
    /// The session is closed, or about to be.
    Closed,
    /// The host shuts down.
    ShuttingDown,
    /// The idempotency key was used for a different request.
    KeyReused,
    /// The current run is suspended.
    Suspended,
    /// No run is suspended.
    NotSuspended,
    /// A run is in progress.
    RunInProgress,
    /// No run is in progress.
    NoRun,
    /// The input is empty.
    EmptyInput,
    /// The queue holds this maximum of inputs.
    QueueFull(usize),
    /// The records of the session would be larger than this maximum of bytes.
    TooLarge(u64),
    /// The context has nothing that could be replaced.
    NothingToCompact,
}

/// The limits that a session's next input must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputLimits {
    /// Maximum number of inputs that wait.
    pub inputs_max: usize,
    /// Bytes of the session's records.
    pub stored_bytes: u64,
    /// Maximum of `stored_bytes`, with the input. `None` means no limit.
    pub stored_bytes_max: Option<u64>,
}

impl InputLimits {
    /// Returns limits of which only the number of waiting inputs can be reached.
    pub(crate) const fn inputs(inputs_max: usize) -> Self {
        Self { inputs_max, stored_bytes: 0, stored_bytes_max: None }
    }
}

/// An effect of the session machine, to be performed in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEffect {
    /// Append these records as one batch and hand each of them to
    /// [`Session::apply`](super::Session::apply) before the next effect is polled.
    Record(Vec<SessionRecord>),
    /// Read the tools that servers offer, and answer by
    /// [`Session::handle_tools_read`](super::Session::handle_tools_read). No turn begins before.
    ReadTools,
    /// Begin or continue a turn.
    BeginTurn(Box<TurnBegin>),
    /// Ask a model for a summary, and answer by
    /// [`Session::handle_summary`](super::Session::handle_summary). No turn begins before.
    RequestSummary(Box<SummaryRequest>),
    /// Hand the turn whose request was too large the context as it is now.
    ContextReduced {
        /// True if it is smaller than before.
        reduced: bool,
    },
    /// End the current turn now.
    CancelTurn(CancelReason),
    /// A run has ended: send its report to the caller that waits for it.
    RunEnded(Box<RunSummary>),
    /// A queued run does not start: send the reason to the caller that waits for it.
    RunRefused {
        /// The run.
        run_id: RunId,
        /// The reason.
        reason: SessionRefusal,
    },
    /// The session is closed: delete its records.
    Close,
}

/// A request for a summary of messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SummaryRequest {
    /// The run that waits for it, or the last one.
    pub run_id: Option<RunId>,
    /// The overrides of the run that waits for it.
    pub overrides: Arc<RunOverrides>,
    /// The messages. [`SUMMARY_REQUEST`](crate::context::compaction::SUMMARY_REQUEST) follows them.
    pub messages: MessageList,
}

/// The answer to a request for a summary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SummaryReply {
    /// The summary.
    Text {
        /// The text, which is not blank.
        text: String,
        /// The usage of the request.
        usage: Usage,
    },
    /// No model has answered, the answer was blank, or it did not end well.
    Failed {
        /// The usage of the requests.
        usage: Usage,
    },
}

/// A record of the session machine with its events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionRecord {
    /// The record.
    pub record: Record,
    /// The run that the events belong to.
    pub run_id: Option<RunId>,
    /// The turn that the events belong to.
    pub turn: u32,
    /// The events to publish behind the record, in order.
    pub events: Vec<Event>,
}

/// The position and the time of a record in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordedAt {
    /// The record's position.
    pub seq: Seq,
    /// The record's time: Unix time in milliseconds.
    pub time: u64,
    /// The time on the clock of the session's machine; zero while a journal is folded.
    pub now: Duration,
}

/// A turn to begin or to continue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnBegin {
    /// The run of the turn.
    pub run_id: RunId,
    /// The input of the turn machine. Its `seed` and `new_prompt` are left to the shell.
    pub spec: TurnSpec,
    /// The origin of the turn.
    pub origin: TurnOrigin,
    /// Set if the turn is to be cancelled as soon as it begins.
    pub cancel: Option<CancelReason>,
}

/// The origin of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnOrigin {
    /// The turn has no records yet.
    New,
    /// The turn continues from records that were appended in this life of the session.
    Recorded,
    /// The turn continues from records that were read from the journal.
    Stored,
}

/// The result of a run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunSummary {
    /// The run.
    pub run_id: RunId,
    /// The reason of the end.
    pub end: RunEnd,
    /// The final answer, or as much of it as there is.
    pub text: String,
    /// The error, if the run failed.
    pub error: Option<RunError>,
    /// The typed answer.
    pub output: Option<Arc<Value>>,
    /// The run's sums.
    pub stats: RunStats,
    /// The time of the run's start: Unix time in milliseconds.
    pub began: u64,
    /// The index of the run's first message in the history.
    pub first_message: usize,
    /// True if some of its messages were replaced. Its records have them all.
    pub is_compacted: bool,
}
