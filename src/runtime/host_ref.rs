//! A reference to a host's sessions: finds an awake session, or wakes a hibernating one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::rpc::CallResult;
use ractor::{ActorRef, ActorStatus, RpcReplyPort};
use tokio::sync::oneshot;

use super::agent::Agent;
use super::awake_session::AwakeSession;
use super::error::HostError;
use super::host_state::{HostState, SessionSlot};
use super::message::{HostMessage, SessionMessage};
use super::publish::Publisher;
use super::session_start::{SessionOrigin, SessionStart};
use super::task;
use super::tool_servers::FrozenTools;
use crate::record::{Record, Seq};
use crate::session::{Session, StoredSession};
use crate::types::{SessionId, SessionState};

/// Maximum number of times that a request is sent. It is sent again if its session hibernates before
/// it handles the request.
pub(super) const REQUEST_TRIES_MAX: u32 = 100;

/// Access to the sessions of a host.
#[derive(Clone, Debug)]
pub(super) struct HostRef {
    pub(super) shared: Arc<HostState>,
    pub(super) host: ActorRef<HostMessage>,
}

impl HostRef {
    /// Returns whether the host accepts sessions and runs.
    pub(super) fn is_ready(&self) -> bool {
        let running = matches!(
            self.host.get_status(),
            ActorStatus::Starting | ActorStatus::Running | ActorStatus::Upgrading
        );
        running && !self.shared.is_closing()
    }

    /// Returns the awake session; wakes it if necessary.
    pub(super) async fn awake_session(
        &self,
        id: &SessionId,
    ) -> Result<Arc<AwakeSession>, HostError> {
        loop {
            let waiting = {
                let mut index = self.shared.index.lock();
                match index.get_mut(id) {
                    Some(SessionSlot::Awake(live)) => return Ok(Arc::clone(live)),
                    Some(SessionSlot::Waking(waiting) | SessionSlot::Deleting(waiting)) => {
                        let (waiter, waited) = oneshot::channel();
                        waiting.push(waiter);
                        waited
                    }
                    None if self.shared.is_closing() => return Err(HostError::ShuttingDown),
                    None => {
                        let (waiter, waited) = oneshot::channel();
                        index.insert(id.clone(), SessionSlot::Waking(vec![waiter]));
                        self.wake(id);
                        waited
                    }
                }
            };
            match self.woken(waiting).await {
                // The id was reserved for a new session that could not be opened, or a deletion has ended.
                Err(HostError::SessionExists) => {}
                woken => return woken,
            }
        }
    }

    /// Waits until a session is awake. A host that has ended wakes none.
    pub(super) async fn woken(
        &self,
        waiting: oneshot::Receiver<Result<Arc<AwakeSession>, HostError>>,
    ) -> Result<Arc<AwakeSession>, HostError> {
        tokio::select! {
            biased;
            woken = waiting => woken.unwrap_or(Err(HostError::ShuttingDown)),
            _ = self.host.wait(None) => Err(HostError::ShuttingDown),
        }
    }

    /// Sends a request to the session; wakes it if necessary.
    pub(super) async fn request<T: Send + 'static>(
        &self,
        id: &SessionId,
        message: impl Fn(RpcReplyPort<T>) -> SessionMessage,
    ) -> Result<(T, Arc<AwakeSession>), HostError> {
        for _ in 0..REQUEST_TRIES_MAX {
            let live = self.awake_session(id).await?;
            match live.actor.call(&message, None).await {
                Ok(CallResult::Success(answer)) => return Ok((answer, live)),
                Ok(CallResult::Timeout | CallResult::SenderError) | Err(_) => {
                    if !live.activity.leaving.load(Ordering::Acquire) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
        Err(self.shared.gone())
    }

    /// Calls `call` with the awake session. Wakes the session again if `call` returns `None`, because the
    /// session is about to hibernate.
    pub(super) async fn with_awake<T>(
        &self,
        id: &SessionId,
        call: impl Fn(&AwakeSession) -> Option<T>,
    ) -> Result<(T, Arc<AwakeSession>), HostError> {
        for _ in 0..REQUEST_TRIES_MAX {
            let live = self.awake_session(id).await?;
            if let Some(value) = call(&live) {
                return Ok((value, live));
            }
            tokio::task::yield_now().await;
        }
        Err(self.shared.gone())
    }

    /// Reads the session from the journal and starts it. Its slot is `Waking`.
    pub(super) fn wake(&self, id: &SessionId) {
        let (link, id) = (self.clone(), id.clone());
        task::detach(async move {
            let sent = match link.read_session(&id).await {
                Ok(start) => link.host.cast(HostMessage::Begin(Box::new(start))),
                Err(error) => {
                    if !matches!(error, HostError::NoSuchSession(_)) {
                        tracing::error!(session = %id, %error, "session_not_woken");
                    }
                    link.shared.fail_wake(&id, error);
                    return;
                }
            };
            if sent.is_err() {
                link.shared.fail_wake(&id, HostError::ShuttingDown);
            }
        });
    }

    /// Wakes a session whose actor died, if a run is to continue (`has_run`) or a request waits.
    /// Otherwise the next request wakes it.
    pub(super) fn finish_restart(&self, id: &SessionId, has_run: bool) {
        let mut index = self.shared.index.lock();
        let is_needed = matches!(index.get(id), Some(SessionSlot::Waking(waiting)) if has_run || !waiting.is_empty());
        if is_needed {
            self.wake(id);
        } else {
            index.remove(id);
            drop(index);
            self.shared.session_states.changed(id, SessionState::Hibernated);
        }
    }

    async fn read_session(&self, id: &SessionId) -> Result<SessionStart, HostError> {
        let (shared, of) = (Arc::clone(&self.shared), id.clone());
        let stored = self.read(move || read_stored(&shared, &of)).await??;
        let agent = self.shared.agents.get(&stored.agent).cloned();
        let agent = agent.ok_or_else(|| HostError::AgentGone(stored.agent.clone()))?;
        let tools = self.frozen_tools(&agent, &stored.session).await?;
        Ok(SessionStart {
            publisher: Publisher::new(id.clone(), self.shared.telemetry.clone(), stored.last),
            id: id.clone(),
            agent,
            tools,
            origin: SessionOrigin::Stored(Box::new(stored)),
        })
    }

    /// Returns the tools of servers that a stored session has frozen.
    pub(super) async fn frozen_tools(
        &self,
        agent: &Arc<Agent>,
        session: &Session,
    ) -> Result<Option<Arc<FrozenTools>>, HostError> {
        match session.frozen_tools() {
            Some(sha256) => self.shared.tool_servers.restore(agent, sha256).await.map(Some),
            None => Ok(None),
        }
    }

    /// Runs a query or a removal of a session: on this thread if the engine is in memory, else on a
    /// thread that may block.
    pub(super) async fn read_index<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        if self.shared.journal.is_in_memory() { Ok(read()) } else { self.read(read).await }
    }

    /// Runs blocking work on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        let _permit = self.shared.reads.acquire().await.map_err(|_| HostError::ShuttingDown)?;
        tokio::task::spawn_blocking(read).await.map_err(|_| HostError::ShuttingDown)
    }
}

fn read_stored(shared: &HostState, id: &SessionId) -> Result<StoredSession, HostError> {
    let entries = shared.journal.read(id, Seq(0))?;
    let Some(first) = entries.first() else { return Err(HostError::NoSuchSession(id.clone())) };
    let Record::SessionOpened { agent, .. } = &first.record else {
        return Err(HostError::Rebuild(format!(
            "the first record of session {id} is not session_opened"
        )));
    };
    let own = shared.agents.get(agent).ok_or_else(|| HostError::AgentGone(agent.clone()))?;
    let terms_of = |overrides: &_| own.with_recorded(overrides).terms();
    let stored = StoredSession::read(&entries, &terms_of)
        .map_err(|error| HostError::Rebuild(format!("session {id}: {error}")))?;
    if stored.session.is_closed() { Err(HostError::NoSuchSession(id.clone())) } else { Ok(stored) }
}
