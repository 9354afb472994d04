//! One call of a server's tool. A call of a tool whose present definition is refused (`tool_changed`, see
//! `tool::pinning`) is answered without being sent.
//!
//! Time limits: `timeout` (60 s by default) without progress, which starts again with each progress notification and
//! does not count questions; `max_timeout` (10 min) in all, as the timeout of the tool (`ToolSpec::timeout`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, RequestId,
    RequestMetaObject,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::Value;

use super::http::{TOO_MANY_REQUESTS, may_be_cut};
use super::naming::offered_name;
use super::questions::{Asker, InputRequired, ROUNDS_MAX};
use super::resources::READ_RESOURCE;
use super::result::{has_link, output};
use super::server_call::ServerCall;
use super::shared::{LogicalConnection, OpenCalls, OpenConnection, ToolConnection};
use super::stdio::{SendError, is_unreadable};
use super::transport_error::{
    HttpFailure, SESSION_LOST, answered_text, error_chain, http_error, is_invalid_answer,
};
use crate::redaction::redacted;
use crate::{
    NextAttempt, ParsedSchema, Tool, ToolContext, ToolEffect, ToolError, ToolOutput, ToolSpec,
};
use callsheet_values::types::{
    FailureKind, SessionId, TRACEPARENT, TRACESTATE, ToolStatus, excerpt,
};

/// The key of the idempotency key in the metadata of a call.
const IDEMPOTENCY_KEY: &str = "io.callsheet/idempotency-key";

/// Maximum time for sending a cancellation. If the server reads nothing, the cancellation stays in the queue.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// The wait before a call is sent again because its first answer asks for that without a question. It doubles with
/// each further answer, up to 32 times as long.
const RETRY_WAIT: Duration = Duration::from_millis(200);

/// The wait before the next attempt if the service is busy and does not say for how long.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of characters of the reason of a failed request that an error quotes.
const QUOTED_CHARS_MAX: usize = 2_000;

/// The time for which a call whose session was lost waits for the answer to another call of that session.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Maximum wait for the end of a connection in which a call was not read.
const END_WAIT: Duration = Duration::from_secs(2);

/// Maximum number of sessions with the server in which one call is sent.
const SESSIONS_MAX: u32 = 16;

/// The end of a request that was sent.
pub(super) enum Sent {
    Answered(Value),
    /// The server has not read it: it has lost the session, or the connection ended before. Has the error of a call that
    /// ends so.
    Unread(ToolError),
}

/// A tool of a server.
pub(super) struct McpTool {
    pub(super) spec: ToolSpec,
    pub(super) server: String,
    /// Its name on the server.
    pub(super) tool: String,
    /// True for the tool of the host that reads the server's resources.
    pub(super) reads_resources: bool,
    /// The schema of structured results, if it can be checked.
    pub(super) output_schema: Option<ParsedSchema>,
    /// Time limit of the first attempt to connect.
    pub(super) start_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) connection: ToolConnection,
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let connection = self.connection.of(context.session());
        let call = self.call(&connection, &context);
        let method = if self.reads_resources { "resources/read" } else { "tools/call" };
        let result = connection.observe(method, call, error_type).await;
        redacted(result, &connection.secrets)
    }

    fn ready(&self, session: &SessionId) -> Option<BoxFuture<'static, ()>> {
        let (started, limit) = (self.connection.started(session)?, self.start_timeout);
        // A call whose server has not started in time waits no longer, and fails.
        Some(tokio::time::timeout(limit, started).map(drop).boxed())
    }
}

impl McpTool {
    /// Sends the call, unless the tool is refused.
    ///
    /// Boxed, because the `where` clauses of an `async_trait` method keep the compiler from caching what it proves
    /// about the futures in it.
    fn call<'a>(
        &'a self,
        connection: &'a LogicalConnection,
        context: &'a ToolContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let refused = connection.refused.lock().get(&self.tool).cloned();
            if let Some(reason) = refused {
                let message = format!("the tool is refused, and the call was not sent: {reason}");
                return Err(ToolError::new(message)
                    .with_kind(FailureKind::ToolChanged)
                    .permanent());
            }
            if self.reads_resources {
                return self.read_resource(connection, context).await;
            }
            let asker = Asker::new(context.clone(), connection.secrets.clone());
            let result = self.rounds(connection, &asker).await;
            let notes = [self.renewal_note(connection), asker.note()];
            let notes: Vec<String> = notes.into_iter().flatten().collect();
            match ((!notes.is_empty()).then(|| notes.join("\n")), result) {
                (None, result) => result,
                (Some(note), Ok(output)) => Ok(output.with_note(note)),
                (Some(note), Err(error)) => {
                    Err(error.map_message(|text| format!("{text}\n{note}")))
                }
            }
        })
    }

    /// Returns the note for the model that the call has found a new process, if it is the first one that did after the
    /// session's connection was ended for another session.
    fn renewal_note(&self, connection: &LogicalConnection) -> Option<String> {
        let is_renewed = &connection.usage.is_renewed;
        if !is_renewed.load(Ordering::Relaxed) || connection.open().is_none() {
            return None;
        }
        let name = &self.server;
        is_renewed.swap(false, Ordering::Relaxed).then(|| {
            format!(
                "[callsheet: the server {name} was started again for this call, because other sessions needed \
                 its process meanwhile: it does not know what earlier calls have done in it]"
            )
        })
    }

    /// Sends the call. As long as the server asks for input, sends it again with the answers, at most
    /// [`ROUNDS_MAX`] times in all.
    async fn rounds(
        &self,
        connection: &LogicalConnection,
        asker: &Asker,
    ) -> Result<ToolOutput, ToolError> {
        let context = asker.context();
        let mut params = self.params(context);
        for round in 0..ROUNDS_MAX {
            let answer = self.send(connection, asker, params).await?;
            let Some(input) = InputRequired::read(&answer) else {
                // The note about a value that does not match the schema cuts the value.
                let answer = connection.secrets.redact_json(&answer).unwrap_or(answer);
                let reference = context.structured_reference();
                let read = output(&answer, self.output_schema.as_ref(), reference.as_ref())?;
                let reader = offered_name(&self.server, READ_RESOURCE);
                return Ok(match has_link(&answer) && context.offers(&reader) {
                    true => read.with_note(format!("[{reader} reads what is linked, by its URI]")),
                    false => read,
                });
            };
            if round + 1 == ROUNDS_MAX {
                // The answers could not be sent any more.
                break;
            }
            if input.question_count() == 0 && !wait_before_retry(round, context).await {
                return Err(cancelled());
            }
            let questions_max = connection.limits.max_questions;
            if input.question_count() > questions_max {
                connection.limit_reached("questions");
            }
            let responses = input.responses(asker, questions_max).await?;
            if context.is_cancelled() {
                self.cancel_questions(connection, context, &input).await;
                return Err(cancelled());
            }
            params = self.params(context).with_input_responses(responses);
            params.request_state = input.state;
        }
        let message = format!("the server has asked for input {ROUNDS_MAX} times");
        Err(ToolError::new(message).permanent())
    }

    /// Sends the server the cancellation of its questions. Waits at most [`CANCEL_WAIT`] for the answer.
    async fn cancel_questions(
        &self,
        connection: &LogicalConnection,
        context: &ToolContext,
        input: &InputRequired,
    ) {
        let mut params = self.params(context).with_input_responses(input.cancelled());
        params.request_state.clone_from(&input.state);
        let Some(open) = connection.open() else { return };
        let _open_call = open.calls.tracker.token();
        let cancelled = async {
            let handle = request(&open.peer, context, params, None).await.ok()?;
            handle.await_response().await.ok()
        };
        let _ = tokio::time::timeout(CANCEL_WAIT, cancelled).await;
    }

    /// Sends the call, and waits for the answer. If the server has not read it, sends it once more in a new connection;
    /// again only if calls were answered in that one, at most [`SESSIONS_MAX`] times in all.
    async fn send(
        &self,
        connection: &LogicalConnection,
        asker: &Asker,
        params: CallToolRequestParams,
    ) -> Result<Value, ToolError> {
        let context = asker.context();
        let mut sessions = 0;
        loop {
            let open = self.open_connection(connection, context).await?;
            let refused = match self.send_once(&open, connection, asker, params.clone()).await {
                Ok(Sent::Answered(answer)) => {
                    open.calls.answered.cancel();
                    return Ok(answer);
                }
                Ok(Sent::Unread(error)) => error,
                Err(error) => return Err(error),
            };
            sessions += 1;
            // The answers to calls that were sent before this one may be read after its refusal.
            let answered = tokio::time::timeout(ANSWER_WAIT, open.calls.answered.cancelled());
            let may_send_again = sessions == 1 || answered.await.is_ok();
            if !may_send_again || sessions == SESSIONS_MAX {
                return Err(refused);
            }
            if !wait_for_end_of(&open, connection, context).await? {
                return Err(refused);
            }
        }
    }

    /// Returns the present connection. Waits for it while the server starts, or is started again after a connection.
    pub(super) async fn open_connection(
        &self,
        connection: &LogicalConnection,
        context: &ToolContext,
    ) -> Result<OpenConnection, ToolError> {
        if let Some(open) = connection.open() {
            return Ok(open);
        }
        if let Some(ready) = self.ready(context.session()) {
            tokio::select! {
                () = ready => {}
                () = context.cancelled() => return Err(cancelled()),
            }
        }
        tokio::select! {
            () = connection.wait_for_restart(self.start_timeout) => {}
            () = context.cancelled() => return Err(cancelled()),
        }
        connection.open().ok_or_else(|| self.down(&connection.down_reason()))
    }

    /// Sends the call once, and waits for the answer.
    async fn send_once(
        &self,
        open: &OpenConnection,
        connection: &LogicalConnection,
        asker: &Asker,
        params: CallToolRequestParams,
    ) -> Result<Sent, ToolError> {
        let context = asker.context();
        let OpenConnection { peer, calls } = open;
        let _open_call = calls.tracker.token();
        let running = ServerCallGuard { calls, call: Arc::new(ServerCall::new(asker.clone())) };
        let call = &running.call;
        let Ok(handle) = request(peer, context, params, Some(Arc::clone(call))).await else {
            return Ok(Sent::Unread(self.down("the connection has ended")));
        };
        let id = handle.id.clone();
        let answer = handle.await_response();
        tokio::pin!(answer);
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                // Progress has arrived, or a question has begun or ended: the time limit starts again.
                () = call.idle_timeout_reset.notified() => {}
                () = context.cancelled() => {
                    if !call.withdraw() {
                        cancel(peer, id, "the call was cancelled").await;
                    }
                    return Err(cancelled());
                }
                () = tokio::time::sleep(self.timeout), if !call.is_asking() => {
                    if call.withdraw() {
                        return Err(self.unread());
                    }
                    cancel(peer, id, "the call took too long").await;
                    return Err(self.timed_out());
                }
            }
        };
        match answer {
            Ok(answer) => Ok(Sent::Answered(serde_json::to_value(answer).unwrap_or_default())),
            Err(error) if is_session_lost(&error) => Ok(Sent::Unread(self.down(SESSION_LOST))),
            Err(error) => {
                let is_unread = !matches!(error, ServiceError::McpError(_))
                    && (was_not_written(&error) || call.withdraw());
                let error = self.failure(&error, is_unread, connection, context);
                if is_unread { Ok(Sent::Unread(error)) } else { Err(error) }
            }
        }
    }

    fn params(&self, context: &ToolContext) -> CallToolRequestParams {
        let params = CallToolRequestParams::new(self.tool.clone());
        match context.arguments().as_object() {
            Some(members) => params.with_arguments(members.clone()),
            None => params,
        }
    }

    pub(super) fn failure(
        &self,
        error: &ServiceError,
        is_unread: bool,
        connection: &LogicalConnection,
        context: &ToolContext,
    ) -> ToolError {
        let name = &self.server;
        if let ServiceError::McpError(error) = error {
            if is_unreadable(error) {
                let problem =
                    format!("the server {name} answered this call, but {}", error.message);
                return unanswered(problem, FailureKind::ToolError, context);
            }
            if may_be_cut(error) {
                let problem = format!(
                    "the server {name} answered with an error that does not say whether the call ran: {}",
                    answered_text(error)
                );
                return unanswered(problem, FailureKind::ToolError, context);
            }
            // The server has answered with an error.
            return ToolError::new(answered_text(error)).permanent();
        }
        let reason = error_chain(error);
        let reason = excerpt(&connection.secrets.redact_excerpts(&reason), QUOTED_CHARS_MAX);
        if is_unread || is_unreachable(error) {
            return self.down(&reason);
        }
        if let Some(failure) = HttpFailure::of(error) {
            let problem = format!("the server {name} answered {reason}");
            return http_failure(failure, problem, context);
        }
        if is_invalid_answer(error) {
            let problem = format!("the server {name} gave this call no valid answer: {reason}");
            return unanswered(problem, FailureKind::ToolError, context);
        }
        let problem =
            format!("the connection to the server {name} broke during this call ({reason})");
        unanswered(problem, FailureKind::ServerDown, context)
    }

    /// Returns the error of a call without an answer and without progress.
    pub(super) fn timed_out(&self) -> ToolError {
        let limit = humantime::format_duration(self.timeout);
        let message = format!("no answer within {limit} (mcp.{}.timeout)", self.server);
        ToolError::new(message).with_kind(FailureKind::Timeout).with_status(ToolStatus::TimedOut)
    }

    /// Returns the error of a call that was not sent because the server did not read the calls before it.
    fn unread(&self) -> ToolError {
        let (name, limit) = (&self.server, humantime::format_duration(self.timeout));
        let message = format!(
            "the server {name} has read no call for {limit} (mcp.{name}.timeout), and this one was not sent"
        );
        ToolError::new(message).with_kind(FailureKind::NotSent)
    }

    /// Returns the error of a call that was not sent.
    pub(super) fn down(&self, reason: &str) -> ToolError {
        let name = &self.server;
        let message =
            format!("the server {name} is not connected, and the call was not sent: {reason}");
        ToolError::new(message).with_kind(FailureKind::ServerDown)
    }
}

/// Returns the error of a call that a service answered with a status of failure.
fn http_failure(failure: HttpFailure, problem: String, context: &ToolContext) -> ToolError {
    let HttpFailure { status, wait } = failure;
    let error = match status {
        400..=499 => ToolError::new(problem).with_kind(FailureKind::HttpStatus),
        // The service may have failed after it had acted. A redirection may lead to the result.
        _ => unanswered(problem, FailureKind::HttpStatus, context),
    };
    match (status, wait) {
        (TOO_MANY_REQUESTS, wait) => error.retry_after(wait.unwrap_or(BUSY_WAIT)),
        (408 | 500.., None) => error,
        (408 | 500.., Some(wait)) => error.retry_after(wait),
        _ => error.permanent(),
    }
}

/// Returns the error of a call that the server may have run, but whose result is not known.
fn unanswered(problem: String, kind: FailureKind, context: &ToolContext) -> ToolError {
    match context.effect() {
        ToolEffect::None => ToolError::new(problem).with_kind(kind),
        ToolEffect::Some => {
            ToolError::new(format!("{problem}; the call may or may not have happened"))
                .with_kind(kind)
                .with_status(ToolStatus::Unknown)
        }
    }
}

/// Returns the type of an error for metrics.
fn error_type(error: &ToolError) -> &'static str {
    match (error.kind(), error.next_attempt()) {
        // The server has answered with an error, or asks for something that the host does not offer.
        (FailureKind::ToolError, NextAttempt::Useless) => "refused",
        (FailureKind::ToolError, NextAttempt::MayHelp | NextAttempt::After(_)) => "invalid_answer",
        (kind, _) => kind.as_str(),
    }
}

/// Returns the error of a call that was cancelled.
pub(super) fn cancelled() -> ToolError {
    ToolError::new("cancelled").with_kind(FailureKind::Cancelled)
}

/// Waits until this connection is not the present one any more, at most [`END_WAIT`]. Returns whether it is not.
///
/// # Errors
/// If the call is cancelled.
pub(super) async fn wait_for_end_of(
    lost: &OpenConnection,
    connection: &LogicalConnection,
    context: &ToolContext,
) -> Result<bool, ToolError> {
    tokio::select! {
        ended = tokio::time::timeout(END_WAIT, connection.wait_for_end_of(lost)) => Ok(ended.is_ok()),
        () = context.cancelled() => Err(cancelled()),
    }
}

/// Returns whether the server has refused a request unread, because it has lost the session.
pub(super) fn is_session_lost(error: &ServiceError) -> bool {
    matches!(http_error(error), Some(StreamableHttpError::SessionExpired))
}

/// Returns whether a service was not reached.
fn is_unreachable(error: &ServiceError) -> bool {
    matches!(http_error(error), Some(StreamableHttpError::Client(error)) if error.is_connect())
}

/// Returns whether the call was not written to the process, whose connection has ended.
fn was_not_written(error: &ServiceError) -> bool {
    let ServiceError::TransportSend(error) = error else { return false };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error.error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(SendError::NotSent)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the metadata of a call: its idempotency key, and its position in a trace.
pub(super) fn metadata(context: &ToolContext) -> RequestMetaObject {
    let mut meta = RequestMetaObject::new();
    meta.0.insert(IDEMPOTENCY_KEY.to_owned(), context.idempotency_key().into());
    if let Some(trace) = context.trace() {
        meta.0.insert(TRACEPARENT.to_owned(), trace.traceparent().into());
        if let Some(state) = trace.tracestate() {
            meta.0.insert(TRACESTATE.to_owned(), state.into());
        }
    }
    meta
}

async fn request(
    peer: &Peer<RoleClient>,
    context: &ToolContext,
    params: CallToolRequestParams,
    awaited: Option<Arc<ServerCall>>,
) -> Result<RequestHandle<RoleClient>, ServiceError> {
    let mut request = CallToolRequest::new(params);
    if let Some(call) = awaited {
        request.extensions.insert(call);
    }
    let request = ClientRequest::CallToolRequest(request);
    let mut options = PeerRequestOptions::no_options();
    options.meta = Some(metadata(context));
    peer.send_cancellable_request(request, options).await
}

/// Waits before a call is sent again because its answer asks for that without a question. Returns false if the
/// call was cancelled.
async fn wait_before_retry(round: usize, context: &ToolContext) -> bool {
    let doublings = u32::try_from(round).unwrap_or(u32::MAX).min(5);
    tokio::select! {
        () = tokio::time::sleep(RETRY_WAIT * 2_u32.pow(doublings)) => true,
        () = context.cancelled() => false,
    }
}

/// Cancels a call on the server. Waits at most [`CANCEL_WAIT`], because the server may read nothing, or be gone.
pub(super) async fn cancel(peer: &Peer<RoleClient>, id: RequestId, reason: &str) {
    let cancel = CancelledNotificationParam::new(Some(id), Some(reason.to_owned()));
    let _ = tokio::time::timeout(CANCEL_WAIT, peer.notify_cancelled(cancel)).await;
}

/// A call that waits for its answer. Until this is dropped, it receives progress and questions and may be written.
struct ServerCallGuard<'a> {
    calls: &'a OpenCalls,
    call: Arc<ServerCall>,
}

impl Drop for ServerCallGuard<'_> {
    fn drop(&mut self) {
        self.calls.end(&self.call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_own_type() {
        let error = || ToolError::new("no");
        for (error, expected) in [
            (error().permanent(), "refused"),
            (error(), "invalid_answer"),
            (error().with_status(ToolStatus::Unknown), "invalid_answer"),
            (cancelled(), "cancelled"),
            (error().with_kind(FailureKind::NotSent), "not_sent"),
            (error().with_kind(FailureKind::ToolChanged).permanent(), "tool_changed"),
            (error().with_kind(FailureKind::HttpStatus).permanent(), "http_status"),
            (error().with_kind(FailureKind::ServerDown), "server_down"),
            (error().with_kind(FailureKind::Timeout), "timeout"),
        ] {
            assert_eq!(error_type(&error), expected);
        }
    }
}
