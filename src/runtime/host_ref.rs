//! A reference to a host's sessions: finds an awake session, or wakes a hibernating one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::rpc::CallResult;
use ractor::{ActorRef, RpcReplyPort};
use tokio::sync::oneshot;

use super::awake_session::AwakeSession;
use super::error::HostError;
use super::host_state::{HostState, SessionSlot};
use super::message::{HostMessage, SessionMessage};
use super::publish::Publisher;
use super::session_start::{SessionOrigin, SessionStart};
use super::task;
use crate::record::{Record, Seq};
use crate::session::StoredSession;
use crate::types::SessionId;

/// The number of times that a request is sent again because its session hibernated before receiving it.
pub(super) const TRIES: u32 = 100;

/// The sessions of a host, for requests.
#[derive(Clone, Debug)]
pub(super) struct HostRef {
    pub(super) shared: Arc<HostState>,
    pub(super) host: ActorRef<HostMessage>,
}

impl HostRef {
    /// Returns the awake session; wakes it if necessary.
    pub(super) async fn live(&self, id: &SessionId) -> Result<Arc<AwakeSession>, HostError> {
        loop {
            let waiting = {
                let mut index = self.shared.index.lock();
                match index.get_mut(id) {
                    Some(SessionSlot::Awake(live)) => return Ok(Arc::clone(live)),
                    Some(SessionSlot::Leaving) => return Err(HostError::NoSuchSession(id.clone())),
                    Some(SessionSlot::Waking(waiting)) => {
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
            match waiting.await {
                // The id was reserved for a new session that could not be opened.
                Ok(Err(HostError::SessionExists)) => {}
                Ok(woken) => return woken,
                Err(_) => return Err(HostError::ShuttingDown),
            }
        }
    }

    /// Sends a request to the session; wakes it if necessary.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        id: &SessionId,
        message: impl Fn(RpcReplyPort<T>) -> SessionMessage,
    ) -> Result<(T, Arc<AwakeSession>), HostError> {
        for _ in 0..TRIES {
            let live = self.live(id).await?;
            match live.actor.call(&message, None).await {
                Ok(CallResult::Success(answer)) => return Ok((answer, live)),
                Ok(CallResult::Timeout | CallResult::SenderError) | Err(_) => {
                    if !live.state.leaving.load(Ordering::Acquire) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
        Err(self.shared.gone())
    }

    /// Reads the session from the journal and starts it. Its slot is `Waking`.
    pub(super) fn wake(&self, id: &SessionId) {
        let (link, id) = (self.clone(), id.clone());
        task::detach(async move {
            let begun = match link.rebuild(&id).await {
                Ok(opening) => link.host.cast(HostMessage::Begin(Box::new(opening))),
                Err(error) => {
                    if !matches!(error, HostError::NoSuchSession(_)) {
                        tracing::error!(session = %id, %error, "session_not_woken");
                    }
                    link.shared.not_woken(&id, error);
                    return;
                }
            };
            if begun.is_err() {
                link.shared.not_woken(&id, HostError::ShuttingDown);
            }
        });
    }

    /// Waits until the records of a dead session are stored, then wakes the session now or with the next
    /// request.
    pub(super) fn go_on_waking(&self, id: &SessionId, now: bool) {
        let mut index = self.shared.index.lock();
        let is_wanted = matches!(index.get(id), Some(SessionSlot::Waking(waiting)) if now || !waiting.is_empty());
        if is_wanted {
            self.wake(id);
        } else {
            index.remove(id);
        }
    }

    async fn rebuild(&self, id: &SessionId) -> Result<SessionStart, HostError> {
        let (shared, of) = (Arc::clone(&self.shared), id.clone());
        let rebuilt = self.read(move || rebuilt(&shared, &of)).await??;
        let agent = self.shared.agents.get(&rebuilt.agent).cloned();
        let agent = agent.ok_or_else(|| HostError::AgentGone(rebuilt.agent.clone()))?;
        Ok(SessionStart {
            publisher: Publisher::new(id.clone(), self.shared.telemetry.clone(), rebuilt.last),
            id: id.clone(),
            agent,
            origin: SessionOrigin::Stored(Box::new(rebuilt)),
        })
    }

    /// Finds or removes a session: at once if the engine is in memory, else on a thread that may block.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        if self.shared.journal.is_in_memory() { Ok(look()) } else { self.read(look).await }
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

fn rebuilt(shared: &HostState, id: &SessionId) -> Result<StoredSession, HostError> {
    let entries = shared.journal.read(id, Seq(0))?;
    let Some(first) = entries.first() else { return Err(HostError::NoSuchSession(id.clone())) };
    let Record::SessionOpened { agent, .. } = &first.record else {
        return Err(HostError::Rebuild(format!("session {id} does not begin with its opening")));
    };
    let own = shared.agents.get(agent).ok_or_else(|| HostError::AgentGone(agent.clone()))?;
    let limits = |overrides: &_| own.as_it_was(overrides).limits().clone();
    let rebuilt = StoredSession::read(&entries, &limits)
        .map_err(|error| HostError::Rebuild(format!("session {id}: {error}")))?;
    if rebuilt.session.is_closed() {
        Err(HostError::NoSuchSession(id.clone()))
    } else {
        Ok(rebuilt)
    }
}
