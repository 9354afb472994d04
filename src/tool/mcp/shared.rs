//! What the calls of a connection share, and the connections of sessions.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::model::{ProgressToken, RequestId};
use rmcp::service::{Peer, RoleClient};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::call_writes::CallWrites;
use super::server_call::ServerCall;
use super::stdio::Noise;
use crate::tool::server::{RequestObserver, ServerState, ServerStatus};
use crate::types::{Secrets, SessionId};

/// The state that survives the end of a connection to a server.
#[derive(Default)]
pub(super) struct SharedConnection {
    /// The present connection.
    pub(super) open: Mutex<Option<OpenConnection>>,
    /// The reason why there is no connection. Empty before the first attempt.
    pub(super) down: Mutex<String>,
    /// The tools that are refused because they differ from the accepted ones, with the reasons.
    pub(super) refused: Mutex<HashMap<String, String>>,
    /// The server's list of tools has changed.
    pub(super) list_changed: Notify,
    /// The connection may not work any more.
    pub(super) suspect: Notify,
    pub(super) noise: Arc<Mutex<Noise>>,
    /// The secret values that the server was given.
    pub(super) secrets: Mutex<Secrets>,
    /// The observer of the host that runs the server now.
    pub(super) observer: Mutex<Option<RequestObserver>>,
}

impl SharedConnection {
    /// Waits for the answer to a request, and reports its duration with the type of its error.
    pub(super) async fn observe<T, E>(
        &self,
        method: &str,
        request: impl Future<Output = Result<T, E>>,
        error_type: impl Fn(&E) -> &'static str,
    ) -> Result<T, E> {
        let began = Instant::now();
        let result = request.await;
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer(method, result.as_ref().err().map(error_type), began.elapsed());
        }
        result
    }

    /// Returns the reason why there is no connection.
    pub(super) fn down_reason(&self) -> String {
        let reason = self.down.lock().clone();
        if reason.is_empty() { "it is still starting".to_owned() } else { reason }
    }
}

/// A connection that serves calls.
#[derive(Clone)]
pub(super) struct OpenConnection {
    pub(super) peer: Peer<RoleClient>,
    pub(super) calls: Arc<OpenCalls>,
}

/// The calls of one connection.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// Has a token of each call.
    pub(super) tracker: TaskTracker,
    /// The calls that run, by the tokens of their progress.
    pub(super) running: Mutex<HashMap<ProgressToken, ServerCall>>,
    pub(super) writes: CallWrites,
    /// The names in answers to `tools/list`, by the ids of the requests, before the library leaves some out.
    pub(super) listed: Mutex<HashMap<RequestId, Vec<String>>>,
    /// The calls in whose event streams questions of a service came, by the ids of the questions.
    askers: Mutex<HashMap<RequestId, RequestId>>,
}

impl OpenCalls {
    /// Notes that a question came in the event stream of this call.
    pub(super) fn note_question(&self, question: RequestId, call: RequestId) {
        self.askers.lock().insert(question, call);
    }

    /// Returns the call to which a question of the server belongs.
    ///
    /// # Errors
    /// The reason why it belongs to none, for the log.
    pub(super) fn asking_call(&self, question: &RequestId) -> Result<ServerCall, &'static str> {
        let noted = self.askers.lock().remove(question);
        let running = self.running.lock();
        if let Some(call) = noted {
            let call = running.values().find(|running| *running.id() == call);
            return call.cloned().ok_or("its call has ended");
        }
        let last = running.values().max_by_key(|call| call.began());
        let last = last.ok_or("no call runs")?;
        if running.values().any(|call| call.session() != last.session()) {
            return Err(
                "calls of several sessions run, and the server does not say for which it asks",
            );
        }
        Ok(last.clone())
    }

    /// Removes a call that has ended.
    pub(super) fn remove(&self, token: &ProgressToken) {
        if let Some(call) = self.running.lock().remove(token) {
            self.askers.lock().retain(|_, asker| asker != call.id());
            self.writes.end(call.id());
        }
    }
}

/// The connections of sessions to a server that they do not share.
pub(super) struct SessionConnections {
    by_session: Mutex<HashMap<SessionId, SessionConnection>>,
    /// Limits the number of connections.
    pub(super) permits: Semaphore,
}

/// The connection of one session.
#[derive(Clone)]
struct SessionConnection {
    shared: Arc<SharedConnection>,
    status: watch::Receiver<Arc<ServerStatus>>,
}

impl SessionConnections {
    pub(super) fn new(max: NonZeroUsize) -> Self {
        let permits = Semaphore::new(max.get().min(Semaphore::MAX_PERMITS));
        Self { by_session: Mutex::default(), permits }
    }

    pub(super) fn insert(
        &self,
        session: &SessionId,
        shared: &Arc<SharedConnection>,
        status: watch::Receiver<Arc<ServerStatus>>,
    ) {
        let connection = SessionConnection { shared: Arc::clone(shared), status };
        self.by_session.lock().insert(session.clone(), connection);
    }

    /// Removes the connection of a session, unless the session has another one by now.
    pub(super) fn remove(&self, session: &SessionId, shared: &Arc<SharedConnection>) {
        let mut by_session = self.by_session.lock();
        if by_session.get(session).is_some_and(|own| Arc::ptr_eq(&own.shared, shared)) {
            by_session.remove(session);
        }
    }
}

/// The connection that serves the calls of a tool.
pub(super) enum ToolConnection {
    /// One for all sessions.
    Shared(Arc<SharedConnection>),
    /// One for each session.
    PerSession(Arc<SessionConnections>),
}

impl ToolConnection {
    /// Returns the connection of a session.
    pub(super) fn of(&self, session: &SessionId) -> Arc<SharedConnection> {
        match self {
            Self::Shared(shared) => Arc::clone(shared),
            Self::PerSession(sessions) => {
                let own = sessions.by_session.lock().get(session).cloned();
                own.map(|own| own.shared).unwrap_or_default()
            }
        }
    }

    /// Returns a future that ends with the first attempt to connect the session, if the session is still to be
    /// connected.
    pub(super) fn started(
        &self,
        session: &SessionId,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let Self::PerSession(sessions) = self else { return None };
        let mut status = sessions.by_session.lock().get(session)?.status.clone();
        let is_started = |status: &Arc<ServerStatus>| status.state != ServerState::Starting;
        if is_started(&status.borrow()) {
            return None;
        }
        Some(async move {
            // A server that is gone answers the call.
            let _ = status.wait_for(is_started).await;
        })
    }
}
