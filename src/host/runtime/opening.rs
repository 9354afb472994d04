//! Opens sessions: those of clients, and the children of calls.

use std::sync::Arc;

use super::OpenSession;
use super::agent::Agent;
use super::error::HostError;
use super::handle::SessionHandle;
use super::host_ref::HostRef;
use super::ids;
use super::message::HostMessage;
use super::publish::Publisher;
use super::session_start::{SessionOrigin, SessionStart};
use super::task;
use callsheet_machines::context::InitialHistory;
use callsheet_values::config::{ClientTool, RunOverrides};
use callsheet_values::record::EventProjector;
use callsheet_values::types::{ParentCall, Seq, SessionId, SessionState, is_child_session};

/// Returns the id that a client asks for, or a new one.
pub(super) fn requested_id(asked: Option<String>) -> Result<SessionId, HostError> {
    let id = match asked {
        Some(text) => SessionId::parse(&text).ok(),
        None => ids::session_id(),
    };
    let id = id.ok_or(HostError::InvalidSessionId)?;
    if is_child_session(&id) { Err(HostError::ReservedSessionId) } else { Ok(id) }
}

/// Opens a session with this id. `parent` is the call that opens a child session. The session is opened even if
/// the future is dropped.
///
/// # Errors
/// If the messages or client tools are invalid, the id is taken, the host is full or shuts down, or the journal
/// fails.
pub(super) async fn open(
    host_ref: &HostRef,
    id: SessionId,
    agent: Arc<Agent>,
    options: OpenSession,
    parent: Option<Arc<ParentCall>>,
) -> Result<SessionHandle, HostError> {
    task::to_its_end(open_reserved(host_ref.clone(), id, agent, options, parent)).await
}

/// Opens a session, whose id is reserved until it is open.
async fn open_reserved(
    host_ref: HostRef,
    id: SessionId,
    agent: Arc<Agent>,
    options: OpenSession,
    parent: Option<Arc<ParentCall>>,
) -> Result<SessionHandle, HostError> {
    // `agent` and `id` were resolved by the caller.
    let OpenSession { agent: _, id: _, messages, metadata, client_tools, extensions } = options;
    // Only checks the messages: the record of the opening has them as JSON.
    InitialHistory::parse(&messages)?;
    let client_tools = Some(client_tools).filter(|tools| !tools.is_empty());
    let client_tools: Option<Arc<[ClientTool]>> = client_tools.map(Into::into);
    let declared = RunOverrides::default().with(|new| new.client_tools.clone_from(&client_tools));
    // The declared tools are those of the session itself, so there are none to inherit.
    agent.check_client_tools(&declared, &[])?;
    let is_stored = async || {
        let found = host_ref.shared.journal.find(&id).await?;
        Ok::<_, HostError>(found.is_some())
    };
    let waited = match host_ref.shared.reserve_new(&id) {
        // For a stored session the error is `SessionExists`, also on a full host.
        Err(HostError::Full(_) | HostError::StoreFull) if is_stored().await? => {
            return Err(HostError::SessionExists);
        }
        reserved => reserved?,
    };
    let start = SessionStart {
        publisher: Publisher::new(
            id.clone(),
            EventProjector::new(id.clone(), &agent.name, 0),
            host_ref.shared.telemetry.clone(),
            Seq(0),
        ),
        owned: host_ref.shared.owner.opened(&id),
        id: id.clone(),
        agent,
        tools: None,
        origin: SessionOrigin::New { messages, metadata, parent, client_tools },
    };
    let begin = async {
        // The reservation only excludes sessions that are awake, starting or being deleted.
        if is_stored().await? {
            return Err(HostError::SessionExists);
        }
        let begun = host_ref.actor.cast(HostMessage::Begin(Box::new(start)));
        begun.map_err(|_| HostError::ShuttingDown)
    };
    if let Err(error) = begin.await {
        host_ref.shared.index.uncount_new();
        // Frees the id, and fails requests that wait for the session.
        host_ref.shared.index.fail_wake(&id, error.clone());
        return Err(error);
    }
    let awake_session = match host_ref.wait_until_awake(waited).await {
        Ok(awake_session) => awake_session,
        Err(error) => {
            // A source of tools panicked before anything was recorded, and the host actor has freed the id
            // (`fail_wake`), or the host has ended. Only the count of sessions is left to undo.
            host_ref.shared.index.uncount_new();
            return Err(error);
        }
    };
    if let Err(error) = awake_session.log.wait_durable(awake_session.log.last_seq()).await {
        // The journal has failed: the session ends itself (`session/end`) and frees the id.
        host_ref.shared.index.uncount_new();
        return Err(error.into());
    }
    host_ref.shared.session_states.changed(&id, SessionState::Idle);
    host_ref.shared.extensions.add_to_session(&id, extensions);
    Ok(SessionHandle::new(id, host_ref))
}
