//! The HTTP client of a service. It notices that the service may have lost the session of the protocol.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt as _;
use http::{HeaderName, HeaderValue};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, JsonRpcRequest, RequestId, ServerJsonRpcMessage,
    ServerResult,
};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};

use serde::Deserialize;

use super::questions::ELICIT;
use super::shared::{OpenCalls, SharedConnection};

type Headers = HashMap<HeaderName, HeaderValue>;
type ServiceClientError = StreamableHttpError<reqwest::Error>;

/// The client of a connection to a service.
#[derive(Clone)]
pub(super) struct ServiceClient {
    pub(super) client: reqwest::Client,
    pub(super) shared: Arc<SharedConnection>,
    pub(super) calls: Arc<OpenCalls>,
}

impl ServiceClient {
    /// Has the connection checked after an error of the service that is not an answer to a request.
    fn noted<T>(&self, result: Result<T, ServiceClientError>) -> Result<T, ServiceClientError> {
        if !matches!(result, Ok(_) | Err(StreamableHttpError::ServerDoesNotSupportSse)) {
            self.shared.suspect.notify_one();
        }
        result
    }
}

impl StreamableHttpClient for ServiceClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, ServiceClientError> {
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
    ) -> Result<StreamableHttpPostResponse, ServiceClientError> {
        if !self.calls.begin_write(&message) {
            // It was the last one that waited for its answer.
            return Err(StreamableHttpError::TransportChannelClosed);
        }
        let (request, lists) = match &message {
            ClientJsonRpcMessage::Request(JsonRpcRequest { id, request, .. }) => {
                (Some(id.clone()), matches!(request, ClientRequest::ListToolsRequest(_)))
            }
            ClientJsonRpcMessage::Response(_)
            | ClientJsonRpcMessage::Notification(_)
            | ClientJsonRpcMessage::Error(_) => (None, false),
        };
        let post = self
            .client
            .post_message_with_response_limits(uri, message, session, auth, headers, limits);
        let mut response = self.noted(post.await)?;
        // Without an id the request would wait for an answer until its time limit. Services that have lost
        // the session often refuse requests in this way.
        if let StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), _) =
            &mut response
            && error.id.is_none()
        {
            error.id.clone_from(&request);
            self.shared.suspect.notify_one();
        }
        Ok(match (response, request) {
            (StreamableHttpPostResponse::Json(answer, session), Some(_)) if lists => {
                note_list(&answer, &self.calls);
                StreamableHttpPostResponse::Json(answer, session)
            }
            (StreamableHttpPostResponse::Sse(stream, session), Some(call)) => {
                let calls = Arc::clone(&self.calls);
                let stream = match lists {
                    true => note_lists(stream, calls),
                    false => note_questions(stream, calls, call),
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
    ) -> Result<(), ServiceClientError> {
        self.client.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, ServiceClientError> {
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
    ) -> Result<BoxedSseResponse, ServiceClientError> {
        let stream = self.client.get_stream_with_max_sse_event_size(
            uri,
            session,
            last_event_id,
            auth,
            headers,
            max_size,
        );
        self.noted(stream.await)
    }
}

/// Notes the names of all tools of an answer to `tools/list`. The library then leaves out those with a wrong
/// `x-mcp-header`.
fn note_list(answer: &ServerJsonRpcMessage, calls: &OpenCalls) {
    if let ServerJsonRpcMessage::Response(response) = answer
        && let ServerResult::ListToolsResult(list) = &response.result
    {
        let names = list.tools.iter().map(|tool| tool.name.to_string()).collect();
        calls.listed.lock().insert(response.id.clone(), names);
    }
}

/// Notes the names of all tools in the event stream of an answer to `tools/list`.
fn note_lists(events: BoxedSseResponse, calls: Arc<OpenCalls>) -> BoxedSseResponse {
    let events = events.inspect(move |event| {
        let data = event.as_ref().ok().and_then(|event| event.data.as_deref());
        // Most lists have no such headers, and are not parsed twice.
        let data = data.filter(|data| data.contains("x-mcp-header"));
        if let Some(Ok(answer)) = data.map(serde_json::from_str) {
            note_list(&answer, &calls);
        }
    });
    events.boxed()
}

/// Notes for which call a service asks questions: the one in whose event stream they come.
fn note_questions(
    events: BoxedSseResponse,
    calls: Arc<OpenCalls>,
    call: RequestId,
) -> BoxedSseResponse {
    #[derive(Deserialize)]
    struct ServiceRequest {
        id: RequestId,
        method: String,
    }
    let note = move |data: &str| {
        // Most events are no questions, and are not parsed twice.
        if let Some(request) = data.contains(ELICIT).then(|| serde_json::from_str(data))
            && let Ok(ServiceRequest { id, method }) = request
            && method == ELICIT
        {
            calls.note_question(id, call.clone());
        }
    };
    let events = events.inspect(move |event| {
        if let Ok(event) = event {
            event.data.as_deref().inspect(|data| note(data));
        }
    });
    events.boxed()
}
