//! The transport to a server at a URL. It wraps the library's HTTP client, to notice four things: that the server may
//! have lost the MCP session, which tools a list had before the library left some out, for which call a question
//! came, and that a request gets no answer. It also stops a call that was withdrawn before it is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::{HeaderName, HeaderValue};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, JsonRpcRequest, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};

use serde::Deserialize;

use super::incoming::adapt_events;
use super::questions::ELICIT;
use super::shared::{LogicalConnection, OpenCalls};
use super::transport_error::{TransportError, answered_text};

/// The longest time for which the end of a list's event stream is held back.
const LIST_WAIT_MAX: Duration = Duration::from_secs(10);

/// The status of a service that is busy.
pub(super) const TOO_MANY_REQUESTS: u16 = 429;

type Headers = HashMap<HeaderName, HeaderValue>;

/// The HTTP client of one connection.
#[derive(Clone)]
pub(super) struct ObservedHttpClient {
    pub(super) client: reqwest::Client,
    pub(super) shared: Arc<LogicalConnection>,
    pub(super) calls: Arc<OpenCalls>,
    /// True if the last attempt to open the event stream that answers no request (the common one) failed.
    pub(super) has_no_common_stream: Arc<AtomicBool>,
}

impl ObservedHttpClient {
    /// Returns the result unchanged. After an error, requests a check of the connection, because the server may have
    /// lost the session. A service that is busy, or offers no event stream, has not lost it.
    fn check_after_error<T>(&self, result: Result<T, TransportError>) -> Result<T, TransportError> {
        let is_suspect = match &result {
            Ok(_) | Err(StreamableHttpError::ServerDoesNotSupportSse) => false,
            Err(StreamableHttpError::HttpStatus(error)) => error.status != TOO_MANY_REQUESTS,
            Err(_) => true,
        };
        if is_suspect {
            self.shared.check_requested.notify_one();
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
        let post = self
            .client
            .post_message_with_response_limits(uri, message, session, auth, headers, limits);
        let mut response = self.check_after_error(post.await)?;
        if request.is_some() {
            response = self.check_answered(response, has_session)?;
        }
        // A server that has lost the session often answers with an error without an id. The library would not find
        // the request that it answers, which would wait until its time limit.
        if let StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), _) =
            &mut response
            && error.id.is_none()
        {
            self.shared.check_requested.notify_one();
            if is_call && !is_refusal(error.error.code) {
                let text = format!("an error without an id: {}", answered_text(&error.error));
                return Err(StreamableHttpError::UnexpectedServerResponse(text.into()));
            }
            error.id.clone_from(&request);
        }
        Ok(match (response, request) {
            (StreamableHttpPostResponse::Json(answer, session), Some(_)) if is_list_request => {
                store_tool_names(&answer, &self.calls);
                StreamableHttpPostResponse::Json(answer, session)
            }
            (StreamableHttpPostResponse::Sse(stream, session), Some(call)) => {
                let stream = adapt_events(stream);
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
        self.client.delete_session(uri, session, auth, headers).await
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
        let stream = self.client.get_stream_with_max_sse_event_size(
            uri,
            session,
            last_event_id,
            auth,
            headers,
            max_size,
        );
        let stream = stream.await;
        if is_common_stream {
            self.has_no_common_stream.store(stream.is_err(), Ordering::Relaxed);
        }
        self.check_after_error(stream).map(adapt_events)
    }
}

/// The codes with which the protocol's TypeScript library refuses a request that belongs to no session, before
/// it reads the request.
const NO_SESSION: [i32; 2] = [-32000, -32001];

/// Returns whether an error without an id means that the server has not run the call. Other errors may come from a
/// server that failed after it had acted. The library does not tell the HTTP status.
fn is_refusal(code: ErrorCode) -> bool {
    let of_the_protocol = matches!(
        code,
        ErrorCode::PARSE_ERROR
            | ErrorCode::INVALID_REQUEST
            | ErrorCode::METHOD_NOT_FOUND
            | ErrorCode::INVALID_PARAMS
    );
    of_the_protocol || NO_SESSION.contains(&code.0)
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
