//! The state that all handlers share, and the options of a server.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::event_stream::EventStream;
use crate::config::{ApiKey, HostConfig};
use crate::runtime::Host;

/// Access rules and limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Host names that requests may use besides loopback names and the server's own address.
    pub allowed_hosts: Vec<String>,
    /// The bearer token that requests must carry, if there is one.
    pub token: Option<ApiKey>,
    /// Time without an event after which an event stream sends a comment.
    pub keep_alive: Duration,
    /// Maximum size of a request body, which includes the images of the user's input.
    pub body_bytes_max: usize,
    /// Time limit for receiving a request body.
    pub body_timeout: Duration,
    /// Time that open connections get to finish at shutdown.
    pub close_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            token: None,
            keep_alive: Duration::from_secs(15),
            body_bytes_max: 4 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(2),
        }
    }
}

impl From<&HostConfig> for ServerOptions {
    fn from(host: &HostConfig) -> Self {
        Self {
            allowed_hosts: host.allowed_hosts.clone(),
            token: host.token.clone(),
            ..Self::default()
        }
    }
}

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct ApiState {
    pub(super) host: Host,
    pub(super) options: ServerOptions,
    /// Cancelled at shutdown, to end event streams.
    pub(super) closing: CancellationToken,
    /// True for the binary's server, false for a router in an application of the embedding program.
    pub(super) is_server: bool,
}

pub(super) type AppState = Arc<ApiState>;

impl ApiState {
    /// Returns a response with these events, which ends when the server shuts down.
    pub(super) fn event_stream(&self, events: impl Into<EventStream>) -> EventStream {
        events.into().keep_alive(self.options.keep_alive).until(&self.closing)
    }
}
