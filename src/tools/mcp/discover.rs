//! Sends `server/discover`, the first request of the newest protocol, before the library takes over the connection. The
//! library would wait for the answer for 10 s only, and would then send the handshake to a server that is about to
//! answer.

use rmcp::model::{
    ClientConfig, ClientJsonRpcMessage, ClientRequest, DiscoverRequest, DiscoverRequestParams,
    ProtocolVersion, RequestId, RequestMetaObject, ServerJsonRpcMessage,
};
use rmcp::service::{ClientInitializeError, RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;

/// The id of the request.
const DISCOVER_ID: RequestId = RequestId::Number(0);

/// A transport whose server has answered `server/discover`. The library sends it again, and gets this answer.
pub(super) struct AnsweredTransport<T> {
    transport: T,
    /// The answer, until the library has read it.
    answer: Option<ServerJsonRpcMessage>,
}

impl<T: Transport<RoleClient> + 'static> AnsweredTransport<T> {
    /// Sends `server/discover`, and waits for the answer. There is no time limit.
    ///
    /// # Errors
    /// If it cannot be sent, or the connection ends before an answer. An answer that is an error is none.
    pub(super) async fn discover(
        mut transport: T,
        client: ClientConfig,
    ) -> Result<Self, ClientInitializeError> {
        let mut request = DiscoverRequest::new(DiscoverRequestParams {});
        request.extensions.insert(RequestMetaObject::with_client_context(
            ProtocolVersion::V_2026_07_28,
            client.client_info,
            client.capabilities,
        ));
        let request = ClientRequest::DiscoverRequest(request);
        let sent = transport.send(ClientJsonRpcMessage::request(request, DISCOVER_ID)).await;
        sent.map_err(|error| ClientInitializeError::transport::<T>(error, "send server/discover"))?;
        loop {
            let Some(message) = transport.receive().await else {
                let closed = "it ended before it answered".to_owned();
                return Err(ClientInitializeError::ConnectionClosed(closed));
            };
            if is_answer(&message) {
                return Ok(Self { transport, answer: Some(message) });
            }
        }
    }
}

/// Returns whether a message answers `server/discover`. A server that could not read the id leaves it out of its error, and
/// some send numbers as texts.
fn is_answer(message: &ServerJsonRpcMessage) -> bool {
    let is_id = |id: &RequestId| match id {
        RequestId::Number(_) => *id == DISCOVER_ID,
        RequestId::String(text) => **text == *"0",
    };
    match message {
        ServerJsonRpcMessage::Response(response) => is_id(&response.id),
        ServerJsonRpcMessage::Error(error) => error.id.as_ref().is_none_or(is_id),
        ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => false,
    }
}

/// Makes a message the answer to this request.
fn answer_to(request: RequestId, answer: &mut ServerJsonRpcMessage) {
    match answer {
        ServerJsonRpcMessage::Response(response) => response.id = request,
        ServerJsonRpcMessage::Error(error) => error.id = Some(request),
        ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => {}
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for AnsweredTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        let sending = match (&item, &mut self.answer) {
            (ClientJsonRpcMessage::Request(request), Some(answer)) => {
                answer_to(request.id.clone(), answer);
                None
            }
            _ => Some(self.transport.send(item)),
        };
        async move {
            match sending {
                Some(sending) => sending.await,
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        match self.answer.take() {
            Some(answer) => Some(answer),
            None => self.transport.receive().await,
        }
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.transport.close().await
    }
}
