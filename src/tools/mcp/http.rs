//! The transport to a server at a URL. It wraps the library's HTTP client, to notice four things: that the server may
//! have lost the MCP session, which tools a list had before the library left some out, for which call a question
//! came, and that a request gets no answer. It also stops a call that was withdrawn before it is sent, and limits the
//! events of each stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::StatusCode;
use reqwest::redirect::Policy;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, JsonRpcRequest, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};

use serde::Deserialize;

use super::budget::MessageBudget;
use super::credentials::Credentials;
use super::http_post::{post, reads_answer};
use super::incoming::adapt_events;
use super::questions::ELICIT;
use super::shared::{LogicalConnection, OpenCalls};
use super::transport_error::{
    RefusedRedirect, TransportError, answered_text, is_unauthorized, without_query,
};
use crate::http::REDIRECTS_MAX;

/// The longest time for which the end of a list's event stream is held back.
const LIST_WAIT_MAX: Duration = Duration::from_secs(10);

/// The shortest time in milliseconds after which an event stream that has ended is opened again, whatever the server
/// asks for.
const RETRY_MS_MIN: u64 = 200;

/// The status of a service that is busy.
pub(super) const TOO_MANY_REQUESTS: u16 = 429;

/// Returns the policy of redirects: 307 and 308 within the origin keep method and body, and are followed. Every other one
/// is the error [`RefusedRedirect`].
pub(super) fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let status = attempt.status();
        let is_kept =
            matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let (before, next) = (attempt.previous(), attempt.url());
        let is_same = before.last().is_some_and(|last| last.origin() == next.origin());
        if is_kept && is_same && before.len() <= REDIRECTS_MAX {
            return attempt.follow();
        }
        let refused = RefusedRedirect { status, target: without_query(next) };
        attempt.error(refused)
    })
}

type Headers = HashMap<HeaderName, HeaderValue>;

/// The HTTP client of one connection.
#[derive(Clone)]
pub(super) struct ObservedHttpClient {
    pub(super) client: reqwest::Client,
    pub(super) credentials: Arc<Credentials>,
    pub(super) shared: Arc<LogicalConnection>,
    pub(super) calls: Arc<OpenCalls>,
    /// True if the last attempt to open the event stream that answers no request (the common one) failed.
    pub(super) has_no_common_stream: Arc<AtomicBool>,
}

impl ObservedHttpClient {
    /// Sends a request with the secret headers. If the server refuses them (401), and there are others by now, sends it
    /// once more: it was not read.
    async fn with_credentials<T, F: Future<Output = Result<T, TransportError>> + Send>(
        &self,
        headers: Headers,
        secret: HeaderMap,
        send: impl Fn(Headers) -> F + Send + Sync,
    ) -> F::Output {
        let all = |secret: &HeaderMap| {
            let secret = secret.iter().map(|(name, value)| (name.clone(), value.clone()));
            headers.clone().into_iter().chain(secret).collect()
        };
        let answered = send(all(&secret)).await;
        if !matches!(&answered, Err(error) if is_unauthorized(error)) {
            return answered;
        }
        match self.credentials.after_refusal_of(&secret).await {
            Some(secret) => send(all(&secret)).await,
            None => answered,
        }
    }

    async fn secret_headers(&self) -> Result<HeaderMap, TransportError> {
        let secret = self.credentials.headers().await;
        secret.map_err(|reason| StreamableHttpError::UnexpectedServerResponse(reason.into()))
    }

    /// Returns the result unchanged. After an error, requests a check of the connection, because the server may have
    /// lost the session. A service that is busy, or offers no event stream, has not lost it.
    fn check_after_error<T>(&self, result: Result<T, TransportError>) -> Result<T, TransportError> {
        let is_suspect = match &result {
            Ok(_) | Err(StreamableHttpError::ServerDoesNotSupportSse) => false,
            Err(StreamableHttpError::HttpStatus(error)) => error.status != TOO_MANY_REQUESTS,
            Err(_) => true,
        };
        if is_suspect {
            self.calls.check_requested.notify_one();
        }
        result
    }

    /// Returns an error for a request that the server has accepted without an answer, if none can come later. The
    /// library would wait for it until the time limit.
    fn check_answered(
        &self,
        response: StreamableHttpPostResponse,
        has_session: bool,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        // The protocol does not allow this, but some servers then answer in the common event stream of the session.
        let may_come = has_session && !self.has_no_common_stream.load(Ordering::Relaxed);
        if matches!(response, StreamableHttpPostResponse::Accepted) && !may_come {
            let text = "it accepted the request (HTTP 202 or 204) without an answer";
            return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
        }
        Ok(response)
    }
}

impl StreamableHttpClient for ObservedHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, auth, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        // Before the call counts as written: without a token it is not sent.
        let secret = self.secret_headers().await?;
        if !self.calls.begin_write(&message) {
            // The call was withdrawn, or the library sends it a second time.
            return Err(StreamableHttpError::TransportChannelClosed);
        }
        let (request, is_list_request, is_call) = match &message {
            ClientJsonRpcMessage::Request(JsonRpcRequest { id, request, .. }) => (
                Some(id.clone()),
                matches!(request, ClientRequest::ListToolsRequest(_)),
                matches!(request, ClientRequest::CallToolRequest(_)),
            ),
            ClientJsonRpcMessage::Response(_)
            | ClientJsonRpcMessage::Notification(_)
            | ClientJsonRpcMessage::Error(_) => (None, false, false),
        };
        let has_session = session.is_some();
        let client = &self.client;
        let response = if reads_answer(&message) {
            let send = |headers: Headers| {
                let request = client.post(&*uri);
                let headers = headers.into_iter().collect();
                post(request, &message, session.as_deref(), headers, limits)
            };
            self.with_credentials(headers, secret, send).await
        } else {
            let send = |headers| {
                let (uri, message, session) = (Arc::clone(&uri), message.clone(), session.clone());
                let auth = auth.clone();
                client
                    .post_message_with_response_limits(uri, message, session, auth, headers, limits)
            };
            self.with_credentials(headers, secret, send).await
        };
        if matches!(response, Err(StreamableHttpError::SessionExpired)) {
            self.calls.session_lost.cancel();
        }
        let mut response = self.check_after_error(response)?;
        if request.is_some() {
            response = self.check_answered(response, has_session)?;
        }
        if let StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), _) =
            &mut response
        {
            let is_lost = has_session && is_unknown_session(&error.error);
            if is_lost {
                self.calls.session_lost.cancel();
                return Err(StreamableHttpError::SessionExpired);
            }
            let may_be_cut = may_be_cut(&error.error);
            if may_be_cut || error.id.is_none() {
                self.calls.check_requested.notify_one();
            }
            let is_uncertain = may_be_cut || error.id.is_none() && !is_refusal(error.error.code);
            if is_call && is_uncertain {
                let text = format!(
                    "an error that does not say whether the call ran: {}",
                    answered_text(&error.error)
                );
                return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
            }
            // The library would not find the request that an error without an id answers, which would wait until its
            // time limit.
            error.id = error.id.take().or_else(|| request.clone());
        }
        Ok(match (response, request) {
            (StreamableHttpPostResponse::Json(answer, session), Some(_)) if is_list_request => {
                store_tool_names(&answer, &self.calls);
                StreamableHttpPostResponse::Json(answer, session)
            }
            (StreamableHttpPostResponse::Sse(stream, session), Some(call)) => {
                let stream = with_limits(adapt_events(stream), Arc::clone(&self.shared));
                let calls = Arc::clone(&self.calls);
                let stream = match is_list_request {
                    true => store_tool_names_of(stream, calls, call),
                    false => observe_questions(stream, calls, call),
                };
                StreamableHttpPostResponse::Sse(stream, session)
            }
            (response, _) => response,
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), TransportError> {
        let secret = self.secret_headers().await?;
        let send = |headers| {
            let (uri, session, auth) = (Arc::clone(&uri), Arc::clone(&session), auth.clone());
            self.client.delete_session(uri, session, auth, headers)
        };
        self.with_credentials(headers, secret, send).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, TransportError> {
        let size = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(uri, session, last_event_id, auth, headers, size)
            .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: Headers,
        max_size: usize,
    ) -> Result<BoxedSseResponse, TransportError> {
        let is_common_stream = last_event_id.is_none();
        let secret = self.secret_headers().await?;
        let send = |headers| {
            let (uri, session, auth) = (Arc::clone(&uri), session.clone(), auth.clone());
            let client = &self.client;
            client.get_stream_with_max_sse_event_size(
                uri,
                session,
                last_event_id.clone(),
                auth,
                headers,
                max_size,
            )
        };
        let stream = self.with_credentials(headers, secret, send).await;
        if is_common_stream {
            self.has_no_common_stream.store(stream.is_err(), Ordering::Relaxed);
        }
        let stream = adapt_events(self.check_after_error(stream)?);
        Ok(with_limits(stream, Arc::clone(&self.shared)))
    }
}

/// Limits the events of a stream to its [budget](MessageBudget), and raises a shorter `retry` to [`RETRY_MS_MIN`].
fn with_limits(events: BoxedSseResponse, shared: Arc<LogicalConnection>) -> BoxedSseResponse {
    let budget = MessageBudget::new(shared.limits.max_messages_per_second);
    let state = (events, budget, shared);
    let limited = stream::unfold(state, async |(mut events, mut budget, shared)| {
        if let Some(next) = budget.next_read() {
            shared.limit_reached("messages");
            tokio::time::sleep_until(next).await;
        }
        let event = events.next().await?.map(|mut event| {
            budget.spend(event.data.as_ref().map_or(0, String::len));
            event.retry = event.retry.map(|retry| retry.max(RETRY_MS_MIN));
            event
        });
        Some((event, (events, budget, shared)))
    });
    limited.boxed()
}

/// The codes with which libraries refuse a request that belongs to no session, before they read it: TypeScript the first
/// two, Python the last one. Some use the first two also for a call that was cut while it ran.
const NO_SESSION: [ErrorCode; 3] =
    [ErrorCode(-32000), ErrorCode(-32001), ErrorCode::INVALID_REQUEST];

/// Parts of the texts of errors about a session that the server does not know.
const UNKNOWN: [&str; 9] = [
    "not found",
    "no such",
    "unknown",
    "no valid",
    "invalid",
    "not valid",
    "not exist",
    "expired",
    "not initialized",
];

/// Parts of the texts of errors about a call that was cut while it ran.
const CUT: [&str; 10] = [
    "closed",
    "timed out",
    "timeout",
    "terminated",
    "aborted",
    "cancel",
    "interrupt",
    "disconnect",
    "while",
    "during",
];

/// The words that may stand before "session" in such texts. After any other one it is a session of a tool, such as a
/// browser session, and the error is that of a call which may have acted.
const BEFORE_SESSION: [&str; 12] = [
    "a", "error", "invalid", "mcp", "no", "request", "such", "the", "this", "unknown", "valid",
    "your",
];

/// Returns whether an error says that the server does not know the session of the request. It was not read then.
fn is_unknown_session(error: &ErrorData) -> bool {
    let text = error.message.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let is_named = names_session(&text) || text.contains("server not initialized");
    NO_SESSION.contains(&error.code) && is_named && has(&UNKNOWN) && !has(&CUT)
}

/// Returns whether a text in lower case is about a session, and about none of a tool.
fn names_session(text: &str) -> bool {
    let mut before = None;
    let mut is_named = false;
    for word in text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
    {
        if word == "session" {
            is_named = true;
            if before.is_some_and(|before| !BEFORE_SESSION.contains(&before)) {
                return false;
            }
        }
        before = Some(word);
    }
    is_named
}

/// Returns whether an error may mean that the call was cut while it ran.
pub(super) fn may_be_cut(error: &ErrorData) -> bool {
    let text = error.message.to_lowercase();
    let is_of_library = matches!(error.code.0, -32000 | -32001);
    is_of_library && CUT.iter().any(|part| text.contains(part))
}

/// Returns whether an error without an id means that the server has not run the call. Other errors may come from a
/// server that failed after it had acted. The library does not tell the HTTP status.
fn is_refusal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::PARSE_ERROR
            | ErrorCode::INVALID_REQUEST
            | ErrorCode::METHOD_NOT_FOUND
            | ErrorCode::INVALID_PARAMS
    )
}

/// Stores the names of all tools of an answer to `tools/list`, because the library then leaves out those with a wrong
/// `x-mcp-header`.
fn store_tool_names(answer: &ServerJsonRpcMessage, calls: &OpenCalls) {
    if let ServerJsonRpcMessage::Response(response) = answer
        && let ServerResult::ListToolsResult(list) = &response.result
    {
        let names = list.tools.iter().map(|tool| tool.name.to_string()).collect();
        calls.store_tool_names(response.id.clone(), names);
    }
}

/// Stores the names of all tools of the answer to `tools/list` in this event stream.
///
/// The stream ends only after the stored names were taken, but at most [`LIST_WAIT_MAX`] late: rmcp 3.11 does not
/// check the headers of a list that it reads together with the end of the stream, and does not send them with the
/// calls.
fn store_tool_names_of(
    events: BoxedSseResponse,
    calls: Arc<OpenCalls>,
    request: RequestId,
) -> BoxedSseResponse {
    let all_calls = Arc::clone(&calls);
    let events = events.inspect(move |event| {
        let data = event.as_ref().ok().and_then(|event| event.data.as_deref());
        // Most lists have no such headers, and are not parsed twice.
        let data = data.filter(|data| data.contains("x-mcp-header"));
        if let Some(Ok(answer)) = data.map(serde_json::from_str) {
            store_tool_names(&answer, &all_calls);
        }
    });
    let end = stream::once(async move {
        let taken = calls.wait_for_taken_tool_names(&request);
        // If the caller has cancelled the request, it never reads the names. The wait then ends by its time limit.
        let _ = tokio::time::timeout(LIST_WAIT_MAX, taken).await;
    });
    events.chain(end.filter_map(|()| std::future::ready(None))).boxed()
}

/// Stores for which call the server asks the questions in this event stream: for the one that the stream answers.
fn observe_questions(
    events: BoxedSseResponse,
    calls: Arc<OpenCalls>,
    call: RequestId,
) -> BoxedSseResponse {
    #[derive(Deserialize)]
    struct ServerRequest {
        id: RequestId,
        method: String,
    }
    let store = move |data: &str| {
        // Most events are no questions, and are not parsed twice.
        if let Some(request) = data.contains(ELICIT).then(|| serde_json::from_str(data))
            && let Ok(ServerRequest { id, method }) = request
            && method == ELICIT
        {
            calls.store_question_call(id, call.clone());
        }
    };
    let events = events.inspect(move |event| {
        if let Ok(event) = event {
            event.data.as_deref().inspect(|data| store(data));
        }
    });
    events.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_alone_does_not_say_that_a_session_is_unknown() {
        let error = |code, text: &'static str| ErrorData::new(ErrorCode(code), text, None);
        for (code, text) in [
            (-32001, "Session not found"),
            (-32000, "Bad Request: No valid session ID provided"),
            (-32000, "Bad Request: Server not initialized"),
            (-32600, "Session has expired"),
            (-32000, "no such session"),
        ] {
            let error = error(code, text);
            assert!(is_unknown_session(&error) && !may_be_cut(&error), "{text}");
        }
        for (code, text, cut) in [
            (-32000, "Connection closed", true),
            (-32001, "Request timed out", true),
            (-32000, "Session expired while the call ran", true),
            (-32000, "session terminated: not found", true),
            (-32000, "no such city", false),
            (-32603, "Session not found", false),
            (-32602, "no such browser session", false),
            (-32000, "Invalid browser session", false),
            (-32000, "database session expired", false),
        ] {
            let error = error(code, text);
            assert_eq!((is_unknown_session(&error), may_be_cut(&error)), (false, cut), "{text}");
        }
    }
}
