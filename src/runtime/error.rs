//! Why a host refuses.

use crate::config::OverrideTooHigh;
use crate::context::InitialHistoryError;
use crate::event::EventId;
use crate::journal::JournalError;
use crate::turn::ApprovalError;
use crate::types::{Seq, SessionId};

/// Why a host or a session does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A configured model cannot be asked.
    #[error("start the host: {0}")]
    Config(String),
    /// No agent has this name.
    #[error("open a session: there is no agent {0:?}")]
    UnknownAgent(String),
    /// A session is there, but its agent is not configured any more.
    #[error(
        "wake the session: its agent {0:?} is not configured any more (configure it again, or delete the session)"
    )]
    AgentGone(String),
    /// The text is no session id.
    #[error("open a session: an id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
    InvalidSessionId,
    /// Another session has this id.
    #[error("open a session: the id is taken")]
    SessionExists,
    /// The messages are no history.
    #[error("open a session: {0}")]
    InvalidMessages(#[from] InitialHistoryError),
    /// `max_sessions` or `max_concurrent_runs` is reached.
    #[error("begin another {0}: the host is full")]
    Full(&'static str),
    /// `max_queued_inputs` is reached.
    #[error("take the input: {0} wait in this session already")]
    QueueFull(usize),
    /// The session has a run already.
    #[error(
        "begin a run: another one is going on (with \"queue\": true the input waits for its end)"
    )]
    RunInProgress,
    /// The run asks for more than its agent may have.
    #[error("begin a run: {0}")]
    TooHigh(#[from] OverrideTooHigh),
    /// The run asks for a tool that is not there.
    #[error("begin a run: tools: no tool is called {0:?}")]
    UnknownTool(String),
    /// The run asks for a model that is not configured.
    #[error("begin a run: model: no model is called {asked:?} (known: {known})")]
    UnknownModel {
        /// What was asked for.
        asked: String,
        /// The names that there are.
        known: String,
    },
    /// No run goes on that could be told something.
    #[error("steer a run: none is going on")]
    NoRun,
    /// The input says nothing.
    #[error("take the input: it is empty")]
    EmptyInput,
    /// The decision about a call does not count.
    #[error("decide about a call: {0}")]
    Approval(#[from] ApprovalError),
    /// There is no such session.
    #[error("find the session: there is no session \"{0}\"")]
    NoSuchSession(SessionId),
    /// The session has no such record.
    #[error("fork the session: at: it has records 1 to {last}, not {at}")]
    NoSuchRecord {
        /// What was asked for.
        at: Seq,
        /// Its last one.
        last: Seq,
    },
    /// The run waits for somebody to say that it may go on.
    #[error(
        "ask the run: it was interrupted, and waits to be resumed (POST /v1/sessions/ID/resume) or stopped"
    )]
    Suspended,
    /// Nothing waits to be resumed.
    #[error("resume the run: none waits for that")]
    NotSuspended,
    /// The key of a request was used for another one.
    #[error("take the request: its Idempotency-Key was used for another one")]
    KeyReused,
    /// The journal cannot be written or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What is stored of the session contradicts itself.
    #[error("read the journal: {0}")]
    Rebuild(String),
    /// No such event was shown in the session: the id is of another session, or of another life
    /// of this one.
    #[error(
        "watch the session from {asked}: its last record is {last} (0 shows all from the beginning)"
    )]
    UnknownEventId {
        /// What was asked for.
        asked: EventId,
        /// The session's last durable record.
        last: Seq,
    },
    /// The session is closed, or died.
    #[error("ask the session: it is closed")]
    SessionClosed,
    /// The host takes nothing more.
    #[error("begin anything: the host is shutting down")]
    ShuttingDown,
}

impl HostError {
    /// A stable word for clients.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config(_) => "invalid_config",
            Self::UnknownAgent(_) => "unknown_agent",
            Self::AgentGone(_) => "agent_gone",
            Self::InvalidSessionId => "invalid_session_id",
            Self::InvalidMessages(_) => "invalid_messages",
            Self::SessionExists => "session_exists",
            Self::Full(_) => "host_full",
            Self::QueueFull(_) => "queue_full",
            Self::NoRun => "no_run",
            Self::RunInProgress => "run_in_progress",
            Self::TooHigh(_) => "limit_too_high",
            Self::UnknownTool(_) => "unknown_tool",
            Self::UnknownModel { .. } => "unknown_model",
            Self::EmptyInput => "empty_input",
            Self::Approval(ApprovalError::NotAsked) => "no_such_approval",
            Self::Approval(ApprovalError::Stale) => "stale_approval",
            Self::Approval(ApprovalError::Decided(_)) => "already_decided",
            Self::Approval(ApprovalError::WhichPhase) => "phase_needed",
            Self::NoSuchSession(_) => "no_such_session",
            Self::NoSuchRecord { .. } => "no_such_record",
            Self::Suspended => "run_suspended",
            Self::NotSuspended => "not_suspended",
            Self::KeyReused => "idempotency_key_reused",
            Self::Journal(_) => "journal_failed",
            Self::Rebuild(_) => "journal_broken",
            Self::UnknownEventId { .. } => "unknown_event_id",
            Self::SessionClosed => "session_closed",
            Self::ShuttingDown => "shutting_down",
        }
    }
}
