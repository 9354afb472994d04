//! The observable facts of a run, named in the past tense.
//!
//! Subscribers, and most logs and metrics of runs, are fed by events. An event that replays contain
//! is the view of a record or text of a response; the others are transient.
//! [`PublishedEvent::public`] is the form for clients.

mod calls;
mod child;
mod id;
mod micros;
mod stream_text;
mod sums;
mod tools_changed;
mod view;

pub use calls::{
    ApprovalRequest, ArgumentsAnomaly, CallLabel, ConflictResolution, ServiceCall,
    ServiceCallStatus, WaitingFor,
};
pub use child::ChildEvent;
pub use id::{EventId, InvalidEventId};
pub use stream_text::EventStreamText;
pub use sums::{
    ResponseSummary, RunStats, TurnSummary, TurnTimes, VOIDED_TEXT_BYTES_MAX, VoidedText,
};
pub use tools_changed::{ServerToolsChange, ToolListChange};
pub use view::{EventForm, PublicEvent, StatsReport};

use std::sync::Arc;
use std::time::Duration;

use crate::types::{
    ApprovalVerdict, Author, CallKey, CompactionKind, Content, Execution, FinishReason, Metadata,
    ProviderError, RunEnd, RunError, SummaryFailure, ToolResult, Usage, VariableName, WaitPhase,
};

/// One observable fact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A run started, or goes on after it was interrupted.
    RunStarted {
        /// The agent's name.
        agent: String,
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// The execution mode of tool calls.
        execution: Execution,
        /// The user's input. `None` if the run is reopened: it has its input already.
        input: Option<Content>,
        /// The client's pairs of strings.
        metadata: Metadata,
        /// True if the run had ended as `interrupted` and goes on.
        reopened: bool,
    },
    /// A user's input was queued behind the run in progress. Published for the run that it will
    /// start.
    InputQueued {
        /// The user's input.
        input: Content,
        /// Number of queued inputs of the session, including this one.
        waiting: usize,
    },
    /// A queued input was taken back. Published for the run that it would have started, as the last event of that
    /// run.
    InputRemoved {
        /// Number of queued inputs of the session that are left.
        waiting: usize,
    },
    /// A user gave an input to the run in progress.
    RunSteered {
        /// The user's input.
        input: Content,
        /// The author of the request.
        author: Option<Author>,
    },
    /// The run waits before its first turn.
    RunWaiting {
        /// The reason.
        waiting_for: WaitingFor,
        /// The servers of tools that it waits for.
        servers: Vec<String>,
    },
    /// A server of tools that the session's agent names has another list. The session keeps its own list.
    ToolsChanged {
        /// The server, and the difference.
        change: Arc<ServerToolsChange>,
    },
    /// The session's connection to a server of tools was ended while the session was idle, because another session
    /// needed it (`max_connections`). The next call connects again.
    ServerReleased {
        /// The server's name in the configuration.
        server: Arc<str>,
    },
    /// A turn started.
    TurnStarted,
    /// A thinking delta arrived.
    ThinkingReceived {
        /// The delta.
        text: String,
    },
    /// A text delta arrived.
    TextReceived {
        /// The delta.
        text: String,
    },
    /// A call opened: its name is known.
    CallOpened {
        /// The call.
        call: CallLabel,
    },
    /// A call was sealed with valid arguments.
    CallDetected {
        /// The call.
        call: CallLabel,
        /// The arguments as the model wrote them.
        arguments: Arc<serde_json::Value>,
        /// Time from the request to the seal.
        latency: Duration,
        /// Number of deltas of the response before the seal. Deltas that were read together count
        /// as one.
        stream_position: u64,
        /// True if the response was streamed.
        streaming: bool,
    },
    /// More of the arguments of an open call arrived. Published only while a subscriber asks for it
    /// ([`is_arguments`](Self::is_arguments)). The sealed call has the arguments that count: a service may replace those
    /// that it has sent in pieces.
    ArgumentsReceived {
        /// The call.
        call: CallLabel,
        /// Number of bytes of the arguments before this text.
        offset: u64,
        /// More of the text of the arguments.
        text: String,
    },
    /// The received arguments of a call have an anomaly.
    ArgumentsAnomalyFound {
        /// The call.
        call: CallLabel,
        /// The call's id in the history.
        id: Arc<str>,
        /// The anomaly.
        anomaly: ArgumentsAnomaly,
        /// The first 200 characters as received.
        raw: String,
    },
    /// Arguments arrived that belong to no call, or to another one. The attempt failed.
    ArgumentsLost {
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// The error of the attempt.
        reason: String,
    },
    /// A sealed call waits: it cannot start yet, hooks or an approval must decide about its result, or the client
    /// must run it.
    CallWaiting {
        /// The call.
        call: CallLabel,
        /// The reason.
        waiting_for: WaitingFor,
        /// The first 200 characters of its arguments.
        input_summary: String,
        /// All arguments.
        arguments: Arc<serde_json::Value>,
        /// True if the client has to run the call now.
        by_client: bool,
    },
    /// A call started.
    CallStarted {
        /// The call.
        call: CallLabel,
        /// The first 200 characters of its arguments.
        input_summary: String,
        /// All arguments, with the values of references.
        arguments: Arc<serde_json::Value>,
        /// True if the response had not ended.
        early: bool,
        /// Time since the seal.
        waited: Duration,
        /// Part of that time in which it waited for a permit of its tool. `None` if the tool has no
        /// limit.
        queued: Option<Duration>,
        /// Number of calls of the response that are known so far.
        known_calls: u32,
    },
    /// A tool reported progress.
    CallProgressed {
        /// The call's key.
        key: CallKey,
        /// The tool's message.
        text: String,
    },
    /// A call needs approval, or its tool asks for input, and waits for it.
    ApprovalAsked {
        /// The request.
        request: Box<ApprovalRequest>,
    },
    /// An approval was decided, or expired.
    ApprovalGiven {
        /// The call.
        call: CallLabel,
        /// The phase.
        phase: WaitPhase,
        /// The verdict.
        verdict: ApprovalVerdict,
        /// The message of the decision.
        message: Option<String>,
        /// The author of the decision.
        author: Option<Author>,
        /// Time that the call waited for it.
        waited: Duration,
    },
    /// A call read variables that an earlier call of its turn then wrote.
    ConflictFound {
        /// The call.
        call: CallLabel,
        /// The names of the variables.
        names: Vec<VariableName>,
        /// The resolution of the conflict.
        resolution: ConflictResolution,
    },
    /// A call was discarded: its response was void or refused, or bytes after its seal have changed it.
    CallDiscarded {
        /// The call.
        call: CallLabel,
        /// True if it already had a result.
        had_result: bool,
    },
    /// A call ended: it has its outcome.
    CallEnded {
        /// The result, with call and times.
        result: Box<ToolResult>,
        /// True if calls of its turn may run concurrently.
        parallel: bool,
        /// True if it started before its response had ended.
        early: bool,
    },
    /// The status of a call that the service runs itself changed.
    ServiceCallChanged {
        /// The call.
        call: Box<ServiceCall>,
        /// The new status.
        status: ServiceCallStatus,
    },
    /// An outcome was dropped because its call already had one, or was discarded.
    OutcomeLate {
        /// The call.
        call: CallLabel,
    },
    /// A result was released in call order.
    ResultReleased {
        /// The call's key.
        key: CallKey,
        /// Time that the outcome waited for earlier calls and for the end of the response.
        reorder_wait: Duration,
    },
    /// A response ended, and its calls are certain: those that are kept, in call order. A turn whose calls the session
    /// was opened with has no response.
    ResponseEnded {
        /// The summary of the response.
        response: Arc<ResponseSummary>,
    },
    /// The deltas of a response were counted, after its end.
    ResponseDecoded {
        /// Names of the calls that are kept, in call order.
        names: Vec<Arc<str>>,
        /// Number of calls that the response opened.
        opened: u32,
        /// Number of calls that were sealed with valid arguments.
        detected: u32,
        /// True if it was cancelled: by a stop, the time limit or the budget of the run, or a shutdown. Its calls do
        /// not count in the detection metrics then.
        stopped: bool,
    },
    /// A model request ended.
    AttemptEnded {
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// True if the answer was streamed.
        streamed: bool,
        /// Time from the request to the end.
        duration: Duration,
        /// Time from the request to the first delta.
        first_chunk: Option<Duration>,
        /// The token usage.
        usage: Usage,
        /// The finish reason, if any.
        finish_reason: Option<FinishReason>,
        /// The error, if it failed.
        error: Option<Box<ProviderError>>,
    },
    /// Another attempt of the turn started, after a delay or because the host was restarted. Or the
    /// received part of the current attempt is kept after a restart and published again. Watchers
    /// discard the text of the turn so far.
    AttemptStarted {
        /// The number of the attempt: from 2, or that of the current attempt if its received part is kept.
        attempt: u32,
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// True if a streamed answer is requested.
        streamed: bool,
        /// The error of the previous attempt.
        reason: String,
        /// The delay before it.
        wait: Duration,
        /// The text of the previous attempt, which is void, if some was published and it is known.
        voided: Option<Arc<VoidedText>>,
    },
    /// The attempt that starts next uses the agent's next model, or requests a plain answer.
    AttemptFellBack {
        /// The fallback.
        to: AttemptFallback,
    },
    /// The last attempt of a turn failed after some of its text was published, and no attempt
    /// follows. Watchers discard the text of the turn.
    AttemptVoided {
        /// The attempt that failed.
        attempt: u32,
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// True if a streamed answer was requested.
        streamed: bool,
        /// The error of the attempt.
        reason: String,
        /// The text of the attempt, which is void, if it is known.
        voided: Option<Arc<VoidedText>>,
    },
    /// A turn was committed to the history.
    TurnEnded {
        /// The summary of the turn.
        summary: Box<TurnSummary>,
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
        reason: Option<SummaryFailure>,
    },
    /// The context was made smaller.
    ContextCompacted {
        /// The kind of the change.
        kind: CompactionKind,
        /// The tokens of the next request before it, by estimate.
        tokens_before: u64,
        /// The tokens of the next request after it, by estimate.
        tokens_after: u64,
        /// The last turn of which something was replaced.
        upto: u32,
        /// The names of the messages whose content is left out, or comes back, and of their parts.
        messages: Vec<String>,
    },
    /// An event of a child session, for the watchers of its parent.
    OfChild {
        /// The call of this session that the event is below.
        call: CallKey,
        /// The event.
        event: Arc<ChildEvent>,
    },
    /// A request was repaired to satisfy the pairing rule. This is a bug of the host.
    HistoryRepaired {
        /// Number of messages that were added or removed.
        repairs: u32,
    },
    /// A tool was set aside for a model, because its service refuses the definition. Requests to the model leave it out.
    ToolSetAside {
        /// The tool's name.
        tool_name: Arc<str>,
        /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
        model: String,
        /// The error of the service.
        reason: String,
    },
    /// A run ended.
    RunEnded {
        /// The agent's name.
        agent: String,
        /// The client's pairs of strings.
        metadata: Metadata,
        /// The reason.
        end: RunEnd,
        /// The final answer, or the part of it that arrived.
        text: String,
        /// The typed answer.
        output: Option<Arc<serde_json::Value>>,
        /// The error, if any.
        error: Option<RunError>,
        /// The finish reason of the last response.
        finish_reason: Option<FinishReason>,
        /// The statistics.
        stats: Box<RunStats>,
    },
}

impl Event {
    /// Returns whether no event of the same run follows.
    #[must_use]
    pub fn is_last_of_run(&self) -> bool {
        matches!(self, Self::RunEnded { .. } | Self::InputRemoved { .. })
    }

    /// Returns whether the event is about arguments as they arrive, also in a child session. Only subscribers that ask
    /// for such events receive them.
    #[must_use]
    pub fn is_arguments(&self) -> bool {
        if let Self::OfChild { event, .. } = self {
            return matches!(event.event, Self::ArgumentsReceived { .. });
        }
        matches!(self, Self::ArgumentsReceived { .. })
    }

    /// Returns whether the event has the id of its record. Such an event is the view of the record: it is
    /// published when the record is stored, and is part of every replay. An event that replays leave
    /// out, such as `InputQueued`, does not have the id of its record.
    #[must_use]
    pub fn has_record_id(&self) -> bool {
        match self {
            Self::RunStarted { .. }
            | Self::RunSteered { .. }
            | Self::TurnStarted
            | Self::ResponseEnded { .. }
            | Self::AttemptStarted { .. }
            | Self::AttemptVoided { .. }
            | Self::ApprovalAsked { .. }
            | Self::CallEnded { .. }
            | Self::TurnEnded { .. }
            | Self::LimitReached { .. }
            | Self::ContextCompacted { .. }
            | Self::RunEnded { .. } => true,
            Self::InputQueued { .. }
            | Self::InputRemoved { .. }
            | Self::RunWaiting { .. }
            | Self::ToolsChanged { .. }
            | Self::ServerReleased { .. }
            | Self::ThinkingReceived { .. }
            | Self::TextReceived { .. }
            | Self::CallOpened { .. }
            | Self::CallDetected { .. }
            | Self::ArgumentsReceived { .. }
            | Self::ArgumentsAnomalyFound { .. }
            | Self::ArgumentsLost { .. }
            | Self::CallWaiting { .. }
            | Self::CallStarted { .. }
            | Self::CallProgressed { .. }
            | Self::ApprovalGiven { .. }
            | Self::ConflictFound { .. }
            | Self::CallDiscarded { .. }
            | Self::ServiceCallChanged { .. }
            | Self::OutcomeLate { .. }
            | Self::ResultReleased { .. }
            | Self::ResponseDecoded { .. }
            | Self::AttemptEnded { .. }
            | Self::AttemptFellBack { .. }
            | Self::OfChild { .. }
            | Self::HistoryRepaired { .. }
            | Self::ToolSetAside { .. } => false,
        }
    }
}

/// The fallback of an attempt after a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptFallback {
    /// It asks the agent's next model.
    NextModel,
    /// It requests a plain answer, because streams broke.
    PlainAnswer,
}

/// A published event: with session, run, turn and time.
#[derive(Clone, Debug)]
pub struct PublishedEvent {
    /// The session.
    pub session: crate::types::SessionId,
    /// The run. Its id is empty if the event belongs to no run.
    pub run: crate::types::RunId,
    /// The session's turn; 0 before the first.
    pub turn: u32,
    /// Unix time in milliseconds.
    pub timestamp_ms: u64,
    /// The id from which a watcher can continue after this event, if the event has one.
    pub id: Option<EventId>,
    /// The text for event streams, made on first use.
    pub stream_text: EventStreamText,
    /// The event.
    pub event: Event,
}

#[cfg(any(test, feature = "fixtures"))]
pub mod samples;
