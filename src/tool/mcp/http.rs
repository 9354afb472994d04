//! The HTTP client of a service. It notices that the service may have lost the session of the protocol.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};

use super::shared::SharedConnection;

type Headers = HashMap<HeaderName, HeaderValue>;
type ServiceClientError = StreamableHttpError<reqwest::Error>;

/// The client of a connection to a service.
#[derive(Clone)]
pub(super) struct ServiceClient {
    pub(super) client: reqwest::Client,
    pub(super) shared: Arc<SharedConnection>,
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
            error.id = request;
            self.shared.suspect.notify_one();
        }
        Ok(response)
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
