//! The errors of a host and of its sessions.

use std::collections::BTreeMap;

use crate::journal::{BatchRefusal, JournalError};
use callsheet_machines::context::InitialHistoryError;
use callsheet_machines::session::SessionRefusal;
use callsheet_machines::turn::ApprovalError;
use callsheet_values::config::InvalidOverride;
use callsheet_values::event::EventId;
use callsheet_values::types::{Seq, SessionId, SummaryFailure};

/// The reason why the result of a call is refused.
///
/// [`ClientTool`](callsheet_values::config::ClientTool) has an example of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientResultError {
    /// The session has no such call, or the client was not asked to run it.
    #[error("the session has no call of this id that the client runs")]
    NoSuchCall,
    /// The call has its result.
    #[error("the call has its result already; the first one stands")]
    AlreadyAnswered,
    /// The call ended without a result: its time was over, its run was stopped, or its response is void.
    #[error("the call has ended without a result of the client")]
    CallEnded,
    /// The result is larger than the host accepts.
    #[error(
        "the result counts as {bytes} bytes, each of its parts as at least 128; at most {maximum} are allowed"
    )]
    TooLarge {
        /// The number of bytes. Each part counts as at least 128.
        bytes: usize,
        /// The maximum.
        maximum: usize,
    },
}

/// The reason why a host or a session refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The configuration is invalid, or the host cannot start with it.
    #[error("start the host: {0}")]
    Config(String),
    /// No agent has this name.
    #[error("no agent is called {asked:?} (known: {known})")]
    UnknownAgent {
        /// The requested agent.
        asked: String,
        /// The configured agents.
        known: String,
    },
    /// The session exists, but its agent is not configured any more.
    #[error(
        "the session's agent {0:?} is no longer configured; configure it again, or delete the session"
    )]
    AgentGone(String),
    /// The text is not a session id.
    #[error("invalid session id: an id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
    InvalidSessionId,
    /// The id has the form of those of child sessions, which only calls of agents open.
    #[error(
        "invalid session id: sub_ and 32 hexadecimal digits are the id of a child session; choose another"
    )]
    ReservedSessionId,
    /// Another session has this id.
    #[error("another session has this id")]
    SessionExists,
    /// The messages are not a valid history.
    #[error("{0}")]
    InvalidMessages(#[from] InitialHistoryError),
    /// `max_sessions` or `max_concurrent_runs` is reached.
    #[error("the host is full: it cannot start another {0}")]
    Full(&'static str),
    /// `max_stored_sessions` is reached.
    #[error(
        "the host is full: journal.max_stored_sessions is reached; delete sessions, or raise it"
    )]
    StoreFull,
    /// `max_queued_inputs` is reached.
    #[error("the session's queue is full: {0} inputs wait")]
    QueueFull(usize),
    /// `max_session_bytes` is reached.
    #[error(
        "the session is too large: host.max_session_bytes is {0}; go on in a new session, or in a fork \
         of an earlier position"
    )]
    SessionTooLarge(u64),
    /// The context has nothing that a summary could replace, or a summary would not be shorter.
    #[error("nothing to compact: the history is short, or a summary would not be a third shorter")]
    NothingToCompact,
    /// No model has given a summary: none has answered, or the answer did not end well.
    #[error("no summary was made: {}", summary_failure(*.0))]
    SummaryFailed(SummaryFailure),
    /// The session has a run already.
    #[error("run in progress")]
    RunInProgress,
    /// The run asks for more than its agent may have.
    #[error("{0}")]
    InvalidOverride(#[from] InvalidOverride),
    /// The run, or a call by hand, names a tool that does not exist.
    #[error("no tool is called {0:?}")]
    UnknownTool(String),
    /// The run must call a tool that it does not offer, or any tool although it offers none.
    #[error("tool_choice: the run offers no {}", missing_choice(.asked, .offered))]
    UnknownToolChoice {
        /// The requested rule.
        asked: String,
        /// The tools that the run offers.
        offered: String,
    },
    /// The run changes what its agent does not allow to change.
    #[error("{0}: the agent does not allow it; set allow_overrides = true for the agent")]
    OverrideNotAllowed(&'static str),
    /// The schema of the answer is invalid.
    #[error("output.schema: {0}")]
    InvalidOutput(String),
    /// A tool that the client runs is invalid.
    #[error("client_tools: {0}")]
    InvalidClientTool(String),
    /// A tool that the client runs has the name of another tool.
    #[error("client_tools: {0:?} is the name of another tool of this run, or is reserved")]
    ToolNameTaken(String),
    /// The result of a call that the client runs is refused.
    #[error("{0}")]
    ClientResult(#[from] ClientResultError),
    /// The variable that gets the answer has an invalid name.
    #[error("into: {0}")]
    InvalidVariable(String),
    /// The run names a model that is not configured.
    #[error("model: no model is called {asked:?} (known: {known})")]
    UnknownModel {
        /// The requested model.
        asked: String,
        /// The configured models.
        known: String,
    },
    /// There is no run to steer.
    #[error("no run in progress")]
    NoRun,
    /// No input of this run is queued.
    #[error("no input of this run is queued")]
    NoSuchInput,
    /// The run whose input is to be taken back has started.
    #[error("the run has started: stop it instead")]
    AlreadyStarted,
    /// The input was taken back from the queue, so its run does not start.
    #[error("the input was taken back from the queue")]
    InputRemoved,
    /// The input is blank.
    #[error("the input is empty")]
    EmptyInput,
    /// The decision about a call is refused.
    #[error("{0}")]
    Approval(#[from] ApprovalError),
    /// The session does not exist.
    #[error("there is no session \"{0}\"")]
    NoSuchSession(SessionId),
    /// The session has no such record.
    #[error("at: the session has records 1 to {last}, not {at}")]
    NoSuchRecord {
        /// The requested position.
        at: Seq,
        /// The position of the last record.
        last: Seq,
    },
    /// The session has no such result.
    #[error("the session has no result {0}")]
    NoSuchResult(String),
    /// The context has no such message. `None`: it has no such result.
    #[error("{}", no_such_message(*.0))]
    NoSuchMessage(Option<Seq>),
    /// The record holds no input that the context still has.
    #[error(
        "seq: record {0} holds no input of the context; name that of a run_started or steered record whose input was \
         not replaced by a summary"
    )]
    NotAnInput(Seq),
    /// The run waits for a manual resume.
    #[error("the run was interrupted and waits to be resumed or stopped")]
    Suspended,
    /// No run waits to be resumed.
    #[error("no interrupted run waits to be resumed")]
    NotSuspended,
    /// The idempotency key was used for a different request.
    #[error("the Idempotency-Key was used for a different request")]
    KeyReused,
    /// The journal cannot be written or read.
    #[error(transparent)]
    Journal(JournalError),
    /// The stored records contradict each other.
    #[error("read the journal: {0}")]
    Rebuild(String),
    /// The session has no such event: the id belongs to another session, or to an earlier session with the
    /// same id.
    #[error("there is no event {asked}: the session's last record is {last}")]
    UnknownEventId {
        /// The requested event.
        asked: EventId,
        /// The session's last durable record.
        last: Seq,
    },
    /// The session is closed, or died.
    #[error("the session is closed")]
    SessionClosed,
    /// The host is shutting down.
    #[error("the host is shutting down")]
    ShuttingDown,
    /// Another host has the session, and goes on with its run.
    #[error("another host has the session: repeat the request")]
    SessionMoved,
}

/// Returns what a run lacks that must call a tool.
fn missing_choice(asked: &str, offered: &str) -> String {
    match offered {
        "" => "tools".to_owned(),
        offered => format!("tool {asked:?} (offered: {offered})"),
    }
}

impl From<JournalError> for HostError {
    /// A journal is closed only by the end of its host.
    fn from(error: JournalError) -> Self {
        if error == JournalError::Closed {
            return Self::ShuttingDown;
        }
        let JournalError::Refused(refusal) = error else { return Self::Journal(error) };
        match refusal {
            BatchRefusal::Exists => Self::SessionExists,
            BatchRefusal::OriginRemoved(origin) => Self::NoSuchSession(origin),
            BatchRefusal::Fenced => Self::SessionMoved,
        }
    }
}

impl From<SessionRefusal> for HostError {
    fn from(refusal: SessionRefusal) -> Self {
        match refusal {
            SessionRefusal::Closed => Self::SessionClosed,
            SessionRefusal::ShuttingDown => Self::ShuttingDown,
            SessionRefusal::Left => Self::SessionMoved,
            SessionRefusal::KeyReused => Self::KeyReused,
            SessionRefusal::Suspended => Self::Suspended,
            SessionRefusal::NotSuspended => Self::NotSuspended,
            SessionRefusal::RunInProgress => Self::RunInProgress,
            SessionRefusal::NoRun => Self::NoRun,
            SessionRefusal::NoSuchInput => Self::NoSuchInput,
            SessionRefusal::AlreadyStarted => Self::AlreadyStarted,
            SessionRefusal::InputRemoved => Self::InputRemoved,
            SessionRefusal::EmptyInput => Self::EmptyInput,
            SessionRefusal::QueueFull(max) => Self::QueueFull(max),
            SessionRefusal::TooLarge(max) => Self::SessionTooLarge(max),
            SessionRefusal::NothingToCompact => Self::NothingToCompact,
            SessionRefusal::NoSuchMessage => Self::NoSuchMessage(None),
        }
    }
}

/// The kind of a [`HostError`].
///
/// Returned by [`HostError::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The configuration is wrong.
    Config,
    /// The request is wrong: the same request fails again.
    InvalidRequest,
    /// The session, record, event, input, call, result or approval does not exist.
    NotFound,
    /// The request does not fit the session's state.
    Conflict,
    /// A limit of the host is reached, or no model has given a summary.
    Busy,
    /// The journal cannot be read or written.
    Journal,
    /// The host shuts down, or another host has the session.
    Closed,
}

impl HostError {
    /// Says that no agent has this name, and names the configured ones.
    pub(super) fn unknown_agent<T>(asked: impl Into<String>, known: &BTreeMap<String, T>) -> Self {
        let known = known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        Self::UnknownAgent { asked: asked.into(), known }
    }

    /// Returns the kind of the error.
    ///
    /// ```
    /// use callsheet::{ErrorKind, HostError};
    ///
    /// let error = HostError::RunInProgress;
    /// assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Conflict, true));
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) => ErrorKind::Config,
            Self::UnknownAgent { .. }
            | Self::InvalidSessionId
            | Self::ReservedSessionId
            | Self::InvalidMessages(_)
            | Self::InvalidOverride(_)
            | Self::UnknownTool(_)
            | Self::UnknownModel { .. }
            | Self::UnknownToolChoice { .. }
            | Self::OverrideNotAllowed(_)
            | Self::InvalidOutput(_)
            | Self::InvalidVariable(_)
            | Self::InvalidClientTool(_)
            | Self::ToolNameTaken(_)
            | Self::ClientResult(ClientResultError::TooLarge { .. })
            | Self::EmptyInput
            | Self::SessionTooLarge(_)
            | Self::NothingToCompact
            | Self::NotAnInput(_)
            | Self::Approval(ApprovalError::Content(_))
            | Self::KeyReused => ErrorKind::InvalidRequest,
            Self::NoSuchSession(_)
            | Self::NoSuchRecord { .. }
            | Self::NoSuchResult(_)
            | Self::NoSuchInput
            | Self::NoSuchMessage(_)
            | Self::UnknownEventId { .. }
            | Self::Approval(ApprovalError::NoSuchApproval)
            | Self::ClientResult(ClientResultError::NoSuchCall)
            | Self::SessionClosed => ErrorKind::NotFound,
            Self::SessionExists
            | Self::AgentGone(_)
            | Self::RunInProgress
            | Self::NoRun
            | Self::AlreadyStarted
            | Self::InputRemoved
            | Self::Suspended
            | Self::NotSuspended
            | Self::ClientResult(_)
            | Self::Approval(_) => ErrorKind::Conflict,
            Self::Full(_) | Self::StoreFull | Self::QueueFull(_) | Self::SummaryFailed(_) => {
                ErrorKind::Busy
            }
            Self::Journal(_) | Self::Rebuild(_) => ErrorKind::Journal,
            Self::ShuttingDown | Self::SessionMoved => ErrorKind::Closed,
        }
    }

    /// Returns true if the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        if let Self::Journal(error) = self {
            return error.is_transient();
        }
        matches!(self, Self::RunInProgress | Self::SessionMoved) || self.kind() == ErrorKind::Busy
    }

    /// Returns the error code for clients.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config(_) => "invalid_config",
            Self::UnknownAgent { .. } => "unknown_agent",
            Self::AgentGone(_) => "agent_gone",
            Self::InvalidSessionId | Self::ReservedSessionId => "invalid_session_id",
            Self::InvalidMessages(_) => "invalid_messages",
            Self::SessionExists => "session_exists",
            Self::Full(_) | Self::StoreFull => "host_full",
            Self::QueueFull(_) => "queue_full",
            Self::SessionTooLarge(_) => "session_too_large",
            Self::NoRun => "no_run",
            Self::NoSuchInput => "no_such_input",
            Self::AlreadyStarted => "already_started",
            Self::InputRemoved => "input_removed",
            Self::RunInProgress => "run_in_progress",
            Self::InvalidOverride(_) => "limit_too_high",
            Self::UnknownTool(_) | Self::UnknownToolChoice { .. } => "unknown_tool",
            Self::OverrideNotAllowed(_) => "override_not_allowed",
            Self::InvalidOutput(_) => "invalid_output",
            Self::InvalidVariable(_) => "invalid_variable",
            Self::InvalidClientTool(_) => "invalid_client_tool",
            Self::ToolNameTaken(_) => "tool_name_taken",
            Self::ClientResult(ClientResultError::NoSuchCall) => "no_such_call",
            Self::ClientResult(ClientResultError::AlreadyAnswered) => "already_answered",
            Self::ClientResult(ClientResultError::CallEnded) => "call_ended",
            Self::ClientResult(ClientResultError::TooLarge { .. }) => "result_too_large",
            Self::UnknownModel { .. } => "unknown_model",
            Self::EmptyInput => "empty_input",
            Self::Approval(ApprovalError::NoSuchApproval) => "no_such_approval",
            Self::Approval(ApprovalError::Stale) => "stale_approval",
            Self::Approval(ApprovalError::Decided(_)) => "already_decided",
            Self::Approval(ApprovalError::WhichPhase) => "phase_needed",
            Self::Approval(ApprovalError::Content(_)) => "invalid_content",
            Self::NoSuchSession(_) => "no_such_session",
            Self::NoSuchRecord { .. } => "no_such_record",
            Self::NoSuchResult(_) => "no_such_result",
            Self::NoSuchMessage(_) => "no_such_message",
            Self::NotAnInput(_) => "not_an_input",
            Self::Suspended => "run_suspended",
            Self::NotSuspended => "not_suspended",
            Self::NothingToCompact => "nothing_to_compact",
            Self::SummaryFailed(_) => "summary_failed",
            Self::KeyReused => "idempotency_key_reused",
            Self::Journal(_) => "journal_failed",
            Self::Rebuild(_) => "journal_broken",
            Self::UnknownEventId { .. } => "unknown_event_id",
            Self::SessionClosed => "session_closed",
            Self::ShuttingDown => "shutting_down",
            Self::SessionMoved => "session_moved",
        }
    }
}

/// Returns the text about a message that the context does not have.
fn no_such_message(seq: Option<Seq>) -> String {
    match seq {
        Some(seq) => format!("seq: the session has no record {seq}"),
        None => "tool_id: the context has no result of this call".to_owned(),
    }
}

/// Returns the reason why a summary is not used, with its name for programs.
fn summary_failure(reason: SummaryFailure) -> String {
    let why = match reason {
        SummaryFailure::CutOff => "the answer was cut off at its maximum length",
        SummaryFailure::NoSaving => "the summary saves too little",
        SummaryFailure::Refused => "the model refused to write one",
        SummaryFailure::Failed => "no model has answered; the log says why",
    };
    format!("{why} ({})", reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_journal_means_that_the_host_shuts_down() {
        assert_eq!(HostError::from(JournalError::Closed), HostError::ShuttingDown);
        let full = HostError::from(JournalError::Overloaded);
        assert_eq!(full, HostError::Journal(JournalError::Overloaded));
    }

    #[test]
    fn the_refusal_of_a_tool_choice_names_the_tools_that_the_run_has() {
        let refused = |asked: &str, offered: &str| {
            let (asked, offered) = (asked.to_owned(), offered.to_owned());
            HostError::UnknownToolChoice { asked, offered }.to_string()
        };
        assert_eq!(refused("required", ""), "tool_choice: the run offers no tools");
        let named = "tool_choice: the run offers no tool \"nope\" (offered: clock)";
        assert_eq!(refused("nope", "clock"), named);
    }
}
