//! Finds out which requests were lost by a reused connection.
//!
//! A service may close a connection behind an answer, although it has announced to keep it, or after a time without
//! requests. A request that goes out at that moment is lost: the service has closed the connection before it sent a
//! byte of the answer. This says nothing about the service, so such a request is sent once more, on a fresh connection.
//! (The HTTP client itself repeats only requests that it has not begun to send.) A request that a fresh connection
//! loses is a failed attempt.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpInfo};
use reqwest::{RequestBuilder, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::error;

tokio::task_local! {
    /// The local address of the last connection that was opened for the request of this task.
    static OPENED: Cell<Option<SocketAddr>>;
}

/// The error of a request without an answer.
#[derive(Debug)]
pub(super) enum RequestSendError {
    /// The connection, which had been used before or had been idle, was closed before an answer began.
    LostByReusedConnection(reqwest::Error),
    Other(reqwest::Error),
}

impl From<RequestSendError> for reqwest::Error {
    fn from(error: RequestSendError) -> Self {
        match error {
            RequestSendError::LostByReusedConnection(error) | RequestSendError::Other(error) => {
                error
            }
        }
    }
}

/// Sends a request of a client whose connector has the layer [`RecordOpened`].
pub(super) async fn send(request: RequestBuilder) -> Result<Response, RequestSendError> {
    let sent = async {
        let error = match request.send().await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let used = connection_of(&error);
        let is_reused = used.is_some() && used != OPENED.with(Cell::get);
        Err(match is_reused && error::is_lost_connection(&error) {
            true => RequestSendError::LostByReusedConnection(error),
            false => RequestSendError::Other(error),
        })
    };
    OPENED.scope(Cell::new(None), sent).await
}

/// Returns the local address of the connection on which a request failed. `None` if it is not known.
fn connection_of(error: &reqwest::Error) -> Option<SocketAddr> {
    let mut causes = error::causes(error);
    let error = causes.find_map(|cause| cause.downcast_ref::<legacy::Error>())?;
    local_address(error.connect_info()?)
}

fn local_address(connected: &Connected) -> Option<SocketAddr> {
    let mut extensions = http::Extensions::new();
    connected.get_extras(&mut extensions);
    extensions.get().map(HttpInfo::local_addr)
}

/// A layer of a connector that records the connections that it opens for the requests of [`send`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordOpened;

impl<S> Layer<S> for RecordOpened {
    type Service = Recorded<S>;

    fn layer(&self, connector: S) -> Recorded<S> {
        Recorded(connector)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Recorded<S>(S);

impl<S, R> Service<R> for Recorded<S>
where
    S: Service<R>,
    S::Response: Connection,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let connecting = self.0.call(target);
        Box::pin(async move {
            let connection = connecting.await?;
            // A connection that is opened in the background belongs to no request.
            let _ = OPENED.try_with(|opened| opened.set(local_address(&connection.connected())));
            Ok(connection)
        })
    }
}
