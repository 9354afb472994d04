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
    #[error("no agent is called {0:?}")]
    UnknownAgent(String),
    /// A session is there, but its agent is not configured any more.
    #[error(
        "the session's agent {0:?} is no longer configured; configure it again, or delete the session"
    )]
    AgentGone(String),
    /// The text is no session id.
    #[error("invalid session id: an id has 1 to 64 characters of A-Z, a-z, 0-9, _ and -")]
    InvalidSessionId,
    /// Another session has this id.
    #[error("another session has this id")]
    SessionExists,
    /// The messages are no history.
    #[error("{0}")]
    InvalidMessages(#[from] InitialHistoryError),
    /// `max_sessions` or `max_concurrent_runs` is reached.
    #[error("the host is full: it cannot start another {0}")]
    Full(&'static str),
    /// `max_queued_inputs` is reached.
    #[error("the session's queue is full: {0} inputs wait")]
    QueueFull(usize),
    /// The session has a run already.
    #[error("run in progress")]
    RunInProgress,
    /// The run asks for more than its agent may have.
    #[error("{0}")]
    TooHigh(#[from] OverrideTooHigh),
    /// The run asks for a tool that is not there.
    #[error("tools: no tool is called {0:?}")]
    UnknownTool(String),
    /// The run asks for a model that is not configured.
    #[error("model: no model is called {asked:?} (known: {known})")]
    UnknownModel {
        /// What was asked for.
        asked: String,
        /// The names that there are.
        known: String,
    },
    /// No run goes on that could be told something.
    #[error("no run in progress")]
    NoRun,
    /// The input says nothing.
    #[error("the input is empty")]
    EmptyInput,
    /// The decision about a call does not count.
    #[error("{0}")]
    Approval(#[from] ApprovalError),
    /// There is no such session.
    #[error("there is no session \"{0}\"")]
    NoSuchSession(SessionId),
    /// The session has no such record.
    #[error("at: the session has records 1 to {last}, not {at}")]
    NoSuchRecord {
        /// What was asked for.
        at: Seq,
        /// Its last one.
        last: Seq,
    },
    /// The run waits for somebody to say that it may go on.
    #[error("the run was interrupted and waits to be resumed or stopped")]
    Suspended,
    /// Nothing waits to be resumed.
    #[error("no interrupted run waits to be resumed")]
    NotSuspended,
    /// The key of a request was used for another one.
    #[error("the Idempotency-Key was used for a different request")]
    KeyReused,
    /// The journal cannot be written or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What is stored of the session contradicts itself.
    #[error("read the journal: {0}")]
    Rebuild(String),
    /// No such event was shown in the session: the id is of another session, or of another life
    /// of this one.
    #[error("there is no event {asked}: the session's last record is {last}")]
    UnknownEventId {
        /// What was asked for.
        asked: EventId,
        /// The session's last durable record.
        last: Seq,
    },
    /// The session is closed, or died.
    #[error("the session is closed")]
    SessionClosed,
    /// The host takes nothing more.
    #[error("the host is shutting down")]
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
