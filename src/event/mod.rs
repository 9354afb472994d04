//! Every observable fact of a run, in the past tense.
//!
//! Logs, metrics and subscribers all come from here, and nothing else feeds them. An event that
//! must survive is the view of a record; text, thinking and states are transient. What clients
//! are shown of it is [`PublishedEvent::public`].

mod calls;
mod id;
mod micros;
mod stream_text;
mod sums;
mod view;

pub use calls::{
    ApprovalRequest, ArgumentsAnomaly, CallLabel, ConflictResolution, ServiceCall,
    ServiceCallStatus, WaitingFor,
};
pub use id::{EventId, InvalidEventId};
pub use stream_text::EventStreamText;
pub use sums::{RunStats, TurnSummary, TurnTimes};
pub use view::{PublicEvent, StatsReport};

use std::sync::Arc;
use std::time::Duration;

use crate::types::{
    ApprovalPhase, CallKey, Content, Execution, FinishReason, ProviderError, RunEnd, RunError,
    ToolResult, Usage, VariableName, Verdict,
};

/// One observable fact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A run began.
    RunStarted {
        /// Which agent runs.
        agent: String,
        /// The configured model's name at its service.
        model: String,
        /// How its calls are run.
        execution: Execution,
    },
    /// A user's input waits for the run that goes on to end. Published for the run that it will be.
    InputQueued {
        /// What the user said.
        input: Content,
        /// How many wait in the session, this one included.
        waiting: usize,
    },
    /// A user said something to the run that goes on.
    RunSteered {
        /// What the user said.
        input: Content,
    },
    /// A turn began.
    TurnStarted,
    /// A piece of thinking came.
    ThinkingReceived {
        /// The piece.
        text: String,
    },
    /// A piece of the answer came.
    TextReceived {
        /// The piece.
        text: String,
    },
    /// A call's name is known.
    CallOpened {
        /// The call.
        call: CallLabel,
    },
    /// A call's arguments are whole and valid.
    CallDetected {
        /// The call.
        call: CallLabel,
        /// From the request to the seal.
        latency: Duration,
        /// How many deltas of the response came before the seal; pieces that were read at once are
        /// one.
        stream_position: u64,
        /// Whether the response was streamed.
        streaming: bool,
    },
    /// A call's arguments were cut off, invalid, or encoded twice.
    ArgumentsAnomalyFound {
        /// The call.
        call: CallLabel,
        /// The id under which the history knows it.
        id: Arc<str>,
        /// What is odd.
        oddity: ArgumentsAnomaly,
        /// The first 200 characters as they came.
        raw: String,
    },
    /// A sealed call cannot start yet.
    CallWaiting {
        /// The call.
        call: CallLabel,
        /// What it waits for.
        waiting_for: WaitingFor,
        /// The first 200 characters of its arguments.
        input_summary: String,
    },
    /// A call was handed to its tool.
    CallStarted {
        /// The call.
        call: CallLabel,
        /// The first 200 characters of its arguments.
        input_summary: String,
        /// Whether the response was still coming.
        early: bool,
        /// From the seal.
        waited: Duration,
        /// How much of that it waited for a place of its tool in the host; none if that has no cap.
        queued: Option<Duration>,
        /// How many calls of the response are known by now.
        of: u32,
    },
    /// A tool tells how far it is.
    CallProgressed {
        /// Which call.
        key: CallKey,
        /// What it says.
        text: String,
    },
    /// People are asked about a call, and it waits for them.
    ApprovalAsked {
        /// What they are asked, and about what.
        asked: Box<ApprovalRequest>,
    },
    /// They have said, or did not say in time.
    ApprovalGiven {
        /// The call.
        call: CallLabel,
        /// What they were asked.
        phase: ApprovalPhase,
        /// What was decided.
        verdict: Verdict,
        /// How long the call waited for it.
        waited: Duration,
    },
    /// A call had read variables that an earlier call of its turn wrote meanwhile.
    ConflictFound {
        /// The call.
        call: CallLabel,
        /// The variables' names.
        names: Vec<VariableName>,
        /// How the conflict is resolved.
        resolution: ConflictResolution,
    },
    /// What a call did or would have done counts no more: its response was void.
    CallDiscarded {
        /// The call.
        call: CallLabel,
        /// Whether it had a result already.
        had_result: bool,
    },
    /// A call has its outcome.
    CallEnded {
        /// Call, outcome and times.
        result: Box<ToolResult>,
        /// Whether the calls of its turn may run beside each other.
        parallel: bool,
        /// Whether it started before its response had ended.
        early: bool,
    },
    /// A call that the service runs itself began, ended, or counts no more.
    ServiceCallChanged {
        /// The call.
        call: Box<ServiceCall>,
        /// How far it is.
        status: ServiceCallStatus,
    },
    /// An outcome came for a call that had one, and was dropped.
    OutcomeLate {
        /// The call.
        call: CallLabel,
    },
    /// A result was made known in call order.
    ResultReleased {
        /// Which call.
        key: CallKey,
        /// How long the outcome waited for earlier calls and for the ending.
        reorder_wait: Duration,
    },
    /// A response's ending is known.
    ResponseEnded {
        /// Names of the calls that are kept, in call order.
        names: Vec<Arc<str>>,
        /// How many calls the response opened.
        opened: u32,
        /// How many were sealed with valid arguments.
        detected: u32,
        /// Whether a user's stop ended it (its calls are not counted then).
        stopped: bool,
    },
    /// An exchange with the model is over.
    AttemptEnded {
        /// The model's name at its service.
        model: String,
        /// Whether the answer was streamed.
        streamed: bool,
        /// From the request to the end.
        duration: Duration,
        /// From the request to the first delta.
        first_chunk: Option<Duration>,
        /// What it cost.
        usage: Usage,
        /// The provider's reason for the end, if it gave one.
        finish_reason: Option<FinishReason>,
        /// Why it failed, if it did.
        error: Option<Box<ProviderError>>,
    },
    /// Another attempt of the turn begins after a wait, or the host stopped in the middle of one
    /// and goes on with what it has kept of it. What was shown of the turn is void.
    AttemptStarted {
        /// From 2.
        attempt: u32,
        /// The model's name at its service.
        model: String,
        /// Whether a streamed answer is asked for.
        streamed: bool,
        /// Why the last attempt failed.
        reason: String,
        /// How long is waited before.
        wait: Duration,
        /// Whether this one asks for the plain answer because streams broke.
        rollback: bool,
        /// Whether this one asks the next of the agent's models.
        fallback: bool,
    },
    /// The last attempt of a turn failed after watchers were shown some of it, and no attempt
    /// follows. What was shown of the turn is void.
    AttemptVoided {
        /// The attempt that failed.
        attempt: u32,
        /// The model's name at its service.
        model: String,
        /// Whether a streamed answer was asked for.
        streamed: bool,
        /// Why the attempt failed.
        reason: String,
    },
    /// A turn is over and in the history.
    TurnEnded {
        /// What there is to know of it.
        summary: Box<TurnSummary>,
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
    },
    /// A request had to be repaired to satisfy the pairing rule: a bug of ours.
    HistoryRepaired {
        /// How many messages were added or left out.
        repairs: u32,
    },
    /// The run is over.
    RunEnded {
        /// Which agent ran.
        agent: String,
        /// Why.
        end: RunEnd,
        /// The final answer, or what there is of it.
        text: String,
        /// What went wrong, if something did.
        error: Option<RunError>,
        /// Its sums.
        stats: Box<RunStats>,
    },
}

impl Event {
    /// Whether it is the view of a record: it stands right behind that, and is shown again
    /// whenever the past is.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        match self {
            Self::RunStarted { .. }
            | Self::TurnStarted
            | Self::AttemptStarted { .. }
            | Self::AttemptVoided { .. }
            | Self::ApprovalAsked { .. }
            | Self::CallEnded { .. }
            | Self::TurnEnded { .. }
            | Self::LimitReached { .. }
            | Self::RunEnded { .. } => true,
            Self::InputQueued { .. }
            | Self::RunSteered { .. }
            | Self::ThinkingReceived { .. }
            | Self::TextReceived { .. }
            | Self::CallOpened { .. }
            | Self::CallDetected { .. }
            | Self::ArgumentsAnomalyFound { .. }
            | Self::CallWaiting { .. }
            | Self::CallStarted { .. }
            | Self::CallProgressed { .. }
            | Self::ApprovalGiven { .. }
            | Self::ConflictFound { .. }
            | Self::CallDiscarded { .. }
            | Self::ServiceCallChanged { .. }
            | Self::OutcomeLate { .. }
            | Self::ResultReleased { .. }
            | Self::ResponseEnded { .. }
            | Self::AttemptEnded { .. }
            | Self::HistoryRepaired { .. } => false,
        }
    }
}

/// An event as it leaves the session: whose it is and when it happened.
#[derive(Clone, Debug)]
pub struct PublishedEvent {
    /// The session.
    pub session: crate::types::SessionId,
    /// The run.
    pub run: crate::types::RunId,
    /// The session's turn; 0 before the first.
    pub turn: u32,
    /// Unix time in milliseconds.
    pub timestamp_ms: u64,
    /// Where a watcher who has seen it goes on; none of what is shown anew to each.
    pub id: Option<EventId>,
    /// Its text for event streams.
    pub stream_text: EventStreamText,
    /// What happened.
    pub event: Event,
}

#[cfg(test)]
pub(crate) mod samples;
