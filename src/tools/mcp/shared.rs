//! What the calls of a connection share, and the connections of sessions.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ProgressToken, RequestId, RequestMetaObject,
};
use rmcp::service::{Peer, RoleClient};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::server_call::ServerCall;
use super::stdio::{ErrorOutput, UnparsedLines};
use crate::server::{ServerObservation, ServerObserver, ServerState, ServerStatus};
use callsheet_values::config::McpLimits;
use callsheet_values::types::{Secrets, SessionId};

/// The state that the calls of a server's connection share. It survives reconnections. If sessions do not share the
/// server, each session has its own.
#[derive(Default)]
pub(super) struct LogicalConnection {
    /// The present connection.
    pub(super) open: watch::Sender<Option<OpenConnection>>,
    /// True from the end of a connection until the next attempt to connect has a result.
    pub(super) is_restarting: watch::Sender<bool>,
    /// The reason why there is no connection, or why the last one ended. Empty until there is a first reason.
    pub(super) down: Mutex<String>,
    /// With `pin = "require"`: the tools that the last list has left out, above all those that differ from the
    /// accepted ones, by their whole names on the server, with the reasons. Calls of these tools are refused.
    pub(super) refused: Mutex<HashMap<String, String>>,
    /// Notified when the server's list of tools has changed.
    pub(super) list_changed: Notify,
    pub(super) unparsed_lines: Arc<Mutex<UnparsedLines>>,
    /// The standard errors of the processes that the last attempt to connect has started.
    pub(super) started: Mutex<Vec<Arc<Mutex<ErrorOutput>>>>,
    /// The use of the connection, if it is that of one session.
    pub(super) usage: SessionUsage,
    /// The limits of the server.
    pub(super) limits: McpLimits,
    /// The secrets of the host.
    pub(super) secrets: Secrets,
    /// The observer of the host that runs the server now.
    pub(super) observer: Mutex<Option<ServerObserver>>,
}

impl LogicalConnection {
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
            observer(ServerObservation::Request {
                method,
                error_type: result.as_ref().err().map(error_type),
                duration: began.elapsed(),
            });
        }
        result
    }

    /// Returns the present connection.
    pub(super) fn open(&self) -> Option<OpenConnection> {
        self.open.borrow().clone()
    }

    /// Waits until the present connection is not this one.
    pub(super) async fn wait_for_end_of(&self, lost: &OpenConnection) {
        let is_other = |open: &Option<OpenConnection>| {
            open.as_ref().is_none_or(|open| !Arc::ptr_eq(&open.calls, &lost.calls))
        };
        // The sender lives as long as this.
        let _ = self.open.subscribe().wait_for(is_other).await;
    }

    /// Waits while the server is started again after a connection has ended, at most for this time.
    pub(super) async fn wait_for_restart(&self, limit: Duration) {
        let mut is_restarting = self.is_restarting.subscribe();
        // The sender lives as long as this.
        let _ = tokio::time::timeout(limit, is_restarting.wait_for(|restarting| !restarting)).await;
    }

    /// Reports that the server has reached a limit.
    pub(super) fn limit_reached(&self, limit: &'static str) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer(ServerObservation::LimitReached(limit));
        }
    }

    /// Returns the reason why there is no connection.
    pub(super) fn down_reason(&self) -> String {
        let reason = self.down.lock().clone();
        if reason.is_empty() { "it is still starting".to_owned() } else { reason }
    }
}

/// The use of a session's connection by its session, and by others that need it.
#[derive(Default)]
pub(super) struct SessionUsage {
    /// The time since which no run of the session is in progress, if the connection may be ended for another session.
    idle_since: Mutex<Option<Instant>>,
    /// True while it counts for `max_connections`.
    pub(super) holds_permit: AtomicBool,
    /// Notified when the connection is to be ended for another session.
    pub(super) release_requested: Notify,
    /// Notified when a call needs the connection again.
    pub(super) needed: Notify,
    /// True from a release until a call has found a new process.
    pub(super) is_renewed: AtomicBool,
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
    /// Notified when the connection may not work any more.
    pub(super) check_requested: Notify,
    /// Cancelled when a call was answered.
    pub(super) answered: CancellationToken,
    /// Cancelled when the server has refused a request because it does not know its session any more.
    pub(super) session_lost: CancellationToken,
    /// The calls that may have been written, by the tokens of their progress.
    written: Mutex<HashMap<ProgressToken, WrittenCall>>,
    /// The names in answers to `tools/list`, by the ids of the requests, before the library leaves some out.
    listed: Mutex<HashMap<RequestId, Vec<String>>>,
    /// Notified when such names were taken.
    names_taken: Notify,
    /// The calls in whose event streams questions came, by the ids of the questions.
    question_calls: Mutex<HashMap<RequestId, RequestId>>,
    /// The reason why the host ended the connection, because the server has reached a limit.
    pub(super) end_reason: Mutex<Option<&'static str>>,
    /// Cancelled with that reason. The library waits for replies that are being written before it ends a connection.
    pub(super) ended_by_host: CancellationToken,
}

/// A call that may have been written.
struct WrittenCall {
    id: RequestId,
    began: Instant,
    call: Arc<ServerCall>,
}

impl OpenCalls {
    /// Begins to write a message. Returns false if it is a call that was withdrawn or already written: no call is
    /// written twice, and one that is sent again is withdrawn and forgotten. From here on a call receives progress
    /// and questions: a server may send them before the caller learns that the call was sent.
    pub(super) fn begin_write(&self, message: &ClientJsonRpcMessage) -> bool {
        let Some((id, token, call)) = awaited_call(message) else { return true };
        let mut written = self.written.lock();
        let begins = call.begin_write(&token);
        if begins {
            let (id, call) = (id.clone(), Arc::clone(call));
            written.insert(token, WrittenCall { id, began: Instant::now(), call });
        } else {
            written.remove(&token);
        }
        begins
    }

    /// Stores the names in the answer to a request `tools/list`.
    pub(super) fn store_tool_names(&self, request: RequestId, names: Vec<String>) {
        self.listed.lock().insert(request, names);
    }

    /// Returns the stored names of an answer, and removes them.
    pub(super) fn take_tool_names(&self, request: &RequestId) -> Vec<String> {
        let names = self.listed.lock().remove(request);
        self.names_taken.notify_waiters();
        names.unwrap_or_default()
    }

    /// Returns when no names of this request are stored.
    pub(super) async fn wait_for_taken_tool_names(&self, request: &RequestId) {
        loop {
            let taken = self.names_taken.notified();
            if !self.listed.lock().contains_key(request) {
                return;
            }
            taken.await;
        }
    }

    /// Notes that no byte of a message was written.
    pub(super) fn fail_write(&self, message: &ClientJsonRpcMessage) {
        let Some((_, token, call)) = awaited_call(message) else { return };
        let mut written = self.written.lock();
        written.remove(&token);
        call.fail_write();
    }

    /// Ends a call. If it is still queued, it is withdrawn.
    pub(super) fn end(&self, call: &ServerCall) {
        let mut written = self.written.lock();
        let ended = call.end().and_then(|token| written.remove(&token));
        drop(written);
        if let Some(ended) = ended {
            self.question_calls.lock().retain(|_, asker| *asker != ended.id);
        }
    }

    /// Notes that a question came in the event stream of this call.
    pub(super) fn store_question_call(&self, question: RequestId, call: RequestId) {
        self.question_calls.lock().insert(question, call);
    }

    /// Returns the call to which progress belongs.
    pub(super) fn of_progress(&self, token: &ProgressToken) -> Option<Arc<ServerCall>> {
        self.written.lock().get(token).map(|written| Arc::clone(&written.call))
    }

    /// Returns the call to which a question of the server belongs.
    ///
    /// # Errors
    /// The reason why it belongs to none, for the log.
    pub(super) fn resolve_question_call(
        &self,
        question: &RequestId,
    ) -> Result<Arc<ServerCall>, &'static str> {
        let noted = self.question_calls.lock().remove(question);
        let written = self.written.lock();
        if let Some(call) = noted {
            let asking = written.values().find(|written| written.id == call);
            return asking.map(|asking| Arc::clone(&asking.call)).ok_or("its call has ended");
        }
        let last = written.values().max_by_key(|written| written.began);
        let last = &last.ok_or("no call runs")?.call;
        if written.values().any(|written| written.call.session() != last.session()) {
            return Err(
                "calls of several sessions run, and the server does not say for which it asks",
            );
        }
        Ok(Arc::clone(last))
    }
}

/// Returns the call that a message carries, with the id of its request and the token of its progress. `None` for
/// other messages, and for a call that is sent only to cancel the questions of an earlier one: its result is not
/// awaited.
fn awaited_call(
    message: &ClientJsonRpcMessage,
) -> Option<(&RequestId, ProgressToken, &Arc<ServerCall>)> {
    let ClientJsonRpcMessage::Request(request) = message else { return None };
    let ClientRequest::CallToolRequest(call) = &request.request else { return None };
    let token = call.extensions.get::<RequestMetaObject>()?.get_progress_token()?;
    Some((&request.id, token, call.extensions.get()?))
}

/// The connections of sessions to a server that they do not share.
pub(super) struct SessionConnections {
    by_session: Mutex<HashMap<SessionId, ServerConnection>>,
    /// Limits the number of connections.
    pub(super) permits: Semaphore,
    /// The number of sessions that wait for a permit although no other session was idle.
    waiting: AtomicUsize,
}

/// A connection, with the state of its server.
#[derive(Clone)]
pub(super) struct ServerConnection {
    pub(super) shared: Arc<LogicalConnection>,
    pub(super) status: watch::Sender<Arc<ServerStatus>>,
}

impl ServerConnection {
    /// Ends the connection for another session, if its session has been idle. The calls of a run that begins wait
    /// until it is connected again.
    fn release(&self) -> bool {
        let usage = &self.shared.usage;
        if usage.idle_since.lock().take().is_none() {
            return false;
        }
        // While it closes, it is not released once more.
        usage.holds_permit.store(false, Ordering::Relaxed);
        self.status.send_modify(|status| {
            let listing = status.listing.clone();
            *status = Arc::new(ServerStatus { state: ServerState::Released, listing });
        });
        self.shared.open.send_replace(None);
        usage.is_renewed.store(true, Ordering::Relaxed);
        usage.release_requested.notify_one();
        true
    }

    /// Returns a future that ends with the first attempt to connect, also after a release. `None` if that attempt has
    /// ended.
    fn started(&self) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        let is_started = |status: &Arc<ServerStatus>| match status.state {
            ServerState::Up | ServerState::Down(_) => true,
            ServerState::Starting | ServerState::Released => false,
        };
        let mut status = self.status.subscribe();
        let state = status.borrow_and_update().state.clone();
        if state == ServerState::Released {
            self.shared.usage.needed.notify_one();
        } else if state != ServerState::Starting {
            return None;
        }
        Some(async move {
            // An error means that the server is gone. The call then fails with the reason.
            let _ = status.wait_for(is_started).await;
        })
    }
}

impl SessionConnections {
    pub(super) fn new(max: NonZeroUsize) -> Self {
        let permits = Semaphore::new(max.get().min(Semaphore::MAX_PERMITS));
        Self { by_session: Mutex::default(), permits, waiting: AtomicUsize::new(0) }
    }

    pub(super) fn insert(
        &self,
        session: &SessionId,
        shared: &Arc<LogicalConnection>,
        status: watch::Sender<Arc<ServerStatus>>,
    ) {
        let connection = ServerConnection { shared: Arc::clone(shared), status };
        self.by_session.lock().insert(session.clone(), connection);
    }

    /// Ends the connection of the session that has been idle for the longest time. Returns false if none is idle.
    pub(super) fn release_longest_idle(&self) -> bool {
        let by_session = self.by_session.lock();
        let idle_since = |connection: &ServerConnection| {
            let usage = &connection.shared.usage;
            let holds_permit = usage.holds_permit.load(Ordering::Relaxed);
            usage.idle_since.lock().filter(|_| holds_permit)
        };
        let idle = by_session.values().filter_map(|one| Some((idle_since(one)?, one)));
        let longest = idle.min_by_key(|(since, _)| *since);
        longest.is_some_and(|(_, connection)| connection.release())
    }

    /// Waits for a permit although no other session was idle. The next one that becomes idle gives way.
    pub(super) async fn wait_for_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = CallOnDrop(|| {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        });
        // One may have become idle before this one waited.
        self.release_longest_idle();
        // The semaphore is never closed.
        self.permits.acquire().await.ok()
    }

    /// Sets whether a run of the connection's session is in progress.
    pub(super) fn set_in_use(&self, usage: &SessionUsage, is_in_use: bool) {
        *usage.idle_since.lock() = (!is_in_use).then(Instant::now);
        if !is_in_use && self.waiting.load(Ordering::SeqCst) > 0 {
            self.release_longest_idle();
        }
    }

    /// Removes the connection of a session, unless the session has another one by now.
    pub(super) fn remove(&self, session: &SessionId, shared: &Arc<LogicalConnection>) {
        let mut by_session = self.by_session.lock();
        if by_session.get(session).is_some_and(|stored| Arc::ptr_eq(&stored.shared, shared)) {
            by_session.remove(session);
        }
    }
}

/// Calls a function when it is dropped.
struct CallOnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The connection that serves the calls of a tool.
pub(super) enum ToolConnection {
    /// One for all sessions.
    Shared(ServerConnection),
    /// One for each session.
    PerSession(Arc<SessionConnections>),
}

impl ToolConnection {
    /// Returns the connection of a session; one that is not open if the session has none.
    pub(super) fn of(&self, session: &SessionId) -> Arc<LogicalConnection> {
        match self {
            Self::Shared(connection) => Arc::clone(&connection.shared),
            Self::PerSession(sessions) => {
                let connection = sessions.by_session.lock().get(session).cloned();
                connection.map(|connection| connection.shared).unwrap_or_default()
            }
        }
    }

    /// Returns a future that ends with the first attempt to connect, which the calls of a session wait for. `None` if
    /// that attempt has ended, or a session has no connection of its own.
    pub(super) fn started(
        &self,
        session: &SessionId,
    ) -> Option<impl Future<Output = ()> + Send + 'static + use<>> {
        match self {
            Self::Shared(connection) => connection.started(),
            Self::PerSession(sessions) => sessions.by_session.lock().get(session)?.started(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequest, CallToolRequestParams};
    use serde_json::json;

    use super::super::questions::Asker;
    use super::*;
    use crate::testing::tool_context;

    fn call() -> Arc<ServerCall> {
        Arc::new(ServerCall::new(Asker::new(tool_context(json!({})), Secrets::default())))
    }

    fn message(id: i64, call: &Arc<ServerCall>) -> ClientJsonRpcMessage {
        let mut meta = RequestMetaObject::new();
        meta.set_progress_token(ProgressToken(RequestId::Number(100 + id)));
        let mut request = CallToolRequest::new(CallToolRequestParams::new("act"));
        request.extensions.insert(meta);
        request.extensions.insert(Arc::clone(call));
        let request = ClientRequest::CallToolRequest(request);
        ClientJsonRpcMessage::request(request, RequestId::Number(id))
    }

    #[test]
    fn a_call_is_written_or_withdrawn_whichever_comes_first() {
        let calls = OpenCalls::default();
        let first = call();
        assert!(calls.begin_write(&message(1, &first)) && !first.withdraw());
        calls.end(&first);
        let second = call();
        assert!(second.withdraw() && second.withdraw());
        assert!(!calls.begin_write(&message(2, &second)));
        let third = call();
        calls.end(&third);
        assert!(!calls.begin_write(&message(3, &third)), "a call that has ended is not sent");
        let fourth = call();
        assert!(calls.begin_write(&message(4, &fourth)));
        calls.fail_write(&message(4, &fourth));
        assert!(fourth.withdraw());
        let fifth = call();
        assert!(calls.begin_write(&message(5, &fifth)));
        calls.end(&fifth);
        calls.fail_write(&message(5, &fifth));
        assert!(!calls.begin_write(&message(5, &fifth)), "it has ended while it was written");
        assert!(calls.written.lock().is_empty(), "what has ended is forgotten");
    }

    #[test]
    fn a_call_is_known_from_its_first_byte_to_its_end() {
        let (calls, call, question) = (OpenCalls::default(), call(), RequestId::Number(7));
        let is_asking = |calls: &OpenCalls| {
            calls.resolve_question_call(&question).is_ok_and(|asking| Arc::ptr_eq(&asking, &call))
        };
        assert!(!is_asking(&calls));
        assert!(calls.begin_write(&message(1, &call)));
        assert!(is_asking(&calls));
        calls.store_question_call(question.clone(), RequestId::Number(1));
        assert!(is_asking(&calls));
        assert!(calls.of_progress(&ProgressToken(RequestId::Number(101))).is_some());
        calls.store_question_call(question.clone(), RequestId::Number(2));
        assert!(!is_asking(&calls), "the question is one of another call");
        calls.store_question_call(question.clone(), RequestId::Number(1));
        calls.end(&call);
        assert!(!is_asking(&calls) && calls.question_calls.lock().is_empty());
    }
}
