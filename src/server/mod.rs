//! The HTTP face of a host: paths, statuses, event streams, and who may use them.
//!
//! Thin by intent: a handler reads a request, asks the [`Host`], and says what came of it.
//! Everything that a stranger's request has to pass stands in `guard.rs`.

mod approvals;
mod body;
mod error;
mod events;
mod guard;
mod listener;
mod ops;
mod runs;
mod sessions;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{ApiKey, HostConfig};
use crate::runtime::Host;

use error::ApiError;
use guard::RequestGuard;
use listener::{LocalAddress, NoDelayListener};

/// How a server treats its clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Names by which it may be called besides loopback's and its own address.
    pub allowed_hosts: Vec<String>,
    /// What requests must bring, if anything.
    pub token: Option<ApiKey>,
    /// How long an event stream may be silent before a comment shows that it lives.
    pub keep_alive: Duration,
    /// The largest body of a request, and so the limit of the images that users send in it.
    pub body_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long connections have to end at shutdown.
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

/// What every handler sees.
#[derive(Debug)]
struct ServerState {
    host: Host,
    options: ServerOptions,
    /// Cancelled when streams have to end.
    closing: CancellationToken,
}

type AppState = Arc<ServerState>;

/// Serves a host's API on a listener until [`ServerHandle::shutdown`].
///
/// # Errors
/// When the listener has no address.
pub fn serve(
    listener: TcpListener,
    host: Host,
    options: ServerOptions,
) -> io::Result<ServerHandle> {
    let addr = listener.local_addr()?;
    let closing = CancellationToken::new();
    let close_timeout = options.close_timeout;
    let guard = RequestGuard::new(&options);
    let shared = Arc::new(ServerState { host, options, closing: closing.clone() });
    let service = router(shared, guard).into_make_service_with_connect_info::<LocalAddress>();
    let serving = axum::serve(NoDelayListener(listener), service)
        .with_graceful_shutdown(closing.clone().cancelled_owned());
    #[expect(
        clippy::disallowed_methods,
        reason = "the accept loop; its handle awaits or aborts it"
    )]
    let task = tokio::spawn(async move { serving.await });
    Ok(ServerHandle { addr, closing, close_timeout, task })
}

/// A server that runs. Dropping it ends the server at once.
#[derive(Debug)]
pub struct ServerHandle {
    addr: SocketAddr,
    closing: CancellationToken,
    close_timeout: Duration,
    task: JoinHandle<io::Result<()>>,
}

impl ServerHandle {
    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts nothing more, ends event streams, lets answers under way finish, and returns when
    /// all connections are closed, at the latest after `close_timeout`. The host goes on.
    pub async fn shutdown(mut self) {
        self.closing.cancel();
        // A client that reads too slowly or never closes must not keep the process alive.
        let _ = tokio::time::timeout(self.close_timeout, &mut self.task).await;
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.closing.cancel();
        self.task.abort();
    }
}

fn router(shared: AppState, guard: RequestGuard) -> Router {
    Router::new()
        .route("/", get(ops::page))
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(ops::readyz))
        .route("/metrics", get(ops::metrics))
        .route("/v1/sessions", post(sessions::open).get(sessions::list))
        .route("/v1/sessions/{id}", get(sessions::snapshot).delete(sessions::close))
        .route("/v1/sessions/{id}/runs", post(runs::start))
        .route("/v1/sessions/{id}/events", get(events::watch))
        .route("/v1/sessions/{id}/steer", post(runs::steer))
        .route("/v1/sessions/{id}/resume", post(runs::resume))
        .route("/v1/sessions/{id}/fork", post(sessions::fork))
        .route("/v1/sessions/{id}/stop", post(runs::stop))
        .route("/v1/sessions/{id}/approvals/{tool_id}", post(approvals::decide))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(axum::middleware::from_fn_with_state(Arc::new(guard), guard::check))
        .with_state(shared)
}

async fn unknown_path(uri: axum::http::Uri) -> ApiError {
    ApiError::not_found("not_found", format!("there is nothing at {}", uri.path()))
}

async fn unknown_method(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{} does not take {method}", uri.path()))
}
