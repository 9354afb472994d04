//! The values that a session actor starts with.

use std::sync::Arc;

use serde_json::Value;

use super::agent::Agent;
use super::ownership::OwnedSession;
use super::publish::Publisher;
use super::tool_servers::FrozenTools;
use callsheet_machines::session::StoredSession;
use callsheet_values::config::ClientTool;
use callsheet_values::record::JournalEntry;
use callsheet_values::types::{Metadata, ParentCall, SessionId};

/// A session that is about to start.
#[derive(Debug)]
pub(super) struct SessionStart {
    pub(super) id: SessionId,
    pub(super) agent: Arc<Agent>,
    /// The session's frozen tools, if it has any. A new session has none yet.
    pub(super) tools: Option<Arc<FrozenTools>>,
    pub(super) origin: SessionOrigin,
    pub(super) owned: OwnedSession,
    pub(super) publisher: Publisher,
}

/// The source of a session's first state.
#[derive(Debug)]
pub(super) enum SessionOrigin {
    /// The session is new.
    New {
        /// The first messages of the history, already validated, in the Chat Completions form.
        messages: Vec<Value>,
        /// The metadata that the client sets.
        metadata: Metadata,
        /// The call that opens it, if it is a child session.
        parent: Option<Arc<ParentCall>>,
        /// The tools that the client runs.
        client_tools: Option<Arc<[ClientTool]>>,
    },
    /// The session was read from the journal.
    Stored(Box<StoredSession>),
    /// The session is a fork: its journal starts with these records of another session and the record of the fork.
    /// The [`StoredSession`] was read from them.
    Forked(Box<StoredSession>, Vec<JournalEntry>),
}

impl SessionStart {
    /// Returns true if the session was read from the journal.
    pub(super) fn is_stored(&self) -> bool {
        matches!(self.origin, SessionOrigin::Stored(_))
    }

    /// Returns true if the session has an unfinished run or a queued input.
    pub(super) fn has_work(&self) -> bool {
        match &self.origin {
            SessionOrigin::New { .. } => false,
            SessionOrigin::Stored(stored) | SessionOrigin::Forked(stored, _) => {
                stored.session.run().is_some() || stored.session.queue().len() > 0
            }
        }
    }
}
