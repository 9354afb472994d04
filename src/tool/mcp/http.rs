//! The HTTP client of a service. It notices that the service may have lost the session of the protocol.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt as _;
use http::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
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
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            ClientJsonRpcMessage::Response(_)
            | ClientJsonRpcMessage::Notification(_)
            | ClientJsonRpcMessage::Error(_) => None,
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
            (StreamableHttpPostResponse::Sse(stream, session), Some(call)) => {
                let stream = note_questions(stream, Arc::clone(&self.calls), call);
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
