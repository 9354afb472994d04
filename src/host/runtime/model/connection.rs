//! Finds out which requests were lost by a reused connection.
//!
//! A service may close a connection behind an answer, although it has announced to keep it, or after a time without
//! requests. A request that goes out at that moment is lost: the service has closed the connection before it sent a
//! byte of the answer. This says nothing about the service, so such a request is sent once more, on a fresh connection.
//! (The HTTP client itself repeats only requests that it has not begun to send.) A request that a fresh connection
//! loses is a failed attempt.

use std::collections::HashSet;
use std::net::SocketAddr;

use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpInfo;
use parking_lot::Mutex;
use reqwest::{RequestBuilder, Response};

use super::error;

/// The maximum number of connections that are remembered. Above it all are forgotten, so that a request which one of
/// them loses is a failed attempt.
const USED_MAX: usize = 4096;

/// The error of a request without an answer.
#[derive(Debug)]
pub(super) enum RequestSendError {
    /// The connection, on which an answer had come before, was closed before this answer began.
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

/// The connections of a client on which an answer has begun, by their local address. A later connection may have the
/// address of one that is closed. Then a request that it loses is sent once more, although it was not reused.
///
/// The HTTP client can tell its own connector which connections are new, but then it copies the connector for each
/// request (reqwest 0.13: 3 % of the CPU time of a run).
#[derive(Debug, Default)]
pub(super) struct UsedConnections {
    addresses: Mutex<HashSet<SocketAddr>>,
}

impl UsedConnections {
    /// Sends a request.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, RequestSendError> {
        let error = match request.send().await {
            Ok(response) => {
                self.add(&response);
                return Ok(response);
            }
            Err(error) => error,
        };
        let is_reused =
            connection_of(&error).is_some_and(|used| self.addresses.lock().contains(&used));
        Err(match is_reused && error::is_lost_connection(&error) {
            true => RequestSendError::LostByReusedConnection(error),
            false => RequestSendError::Other(error),
        })
    }

    fn add(&self, response: &Response) {
        let Some(connection) = response.extensions().get::<HttpInfo>() else { return };
        let mut addresses = self.addresses.lock();
        if addresses.len() >= USED_MAX {
            addresses.clear();
        }
        addresses.insert(connection.local_addr());
    }
}

/// Returns the local address of the connection on which a request failed. `None` if it is not known.
fn connection_of(error: &reqwest::Error) -> Option<SocketAddr> {
    let mut causes = error::causes(error);
    let error = causes.find_map(|cause| cause.downcast_ref::<legacy::Error>())?;
    let mut extensions = http::Extensions::new();
    error.connect_info()?.get_extras(&mut extensions);
    extensions.get().map(HttpInfo::local_addr)
}
