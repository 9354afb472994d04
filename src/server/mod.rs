//! The HTTP API of a host: routes, status codes, event streams and access control.
//!
//! Handlers are thin: each parses a request, calls the [`Host`], and turns the result into a
//! response.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the server's start and shutdown, and its routes |
//! | `state.rs` | [`ServerOptions`], and the state that all handlers share |
//! | `guard.rs` | access control of every request: `Host`, `Origin`, bearer token |
//! | `listener.rs` | TCP connections without Nagle's delay; the server's address per connection |
//! | `extract.rs` | strict parsing of JSON bodies and queries; `Idempotency-Key` |
//! | `error.rs` | [`HostError`](crate::runtime::HostError) as a status code and an error body |
//! | `sessions.rs` | `/v1/sessions`: open, list, show, close, fork |
//! | `runs.rs` | `/v1/sessions/{id}/`: `runs`, `steer`, `stop`, `resume` |
//! | `approvals.rs` | `/v1/sessions/{id}/approvals/{tool_id}` |
//! | `events.rs` | `/v1/sessions/{id}/events`: the position at which a client starts to read |
//! | `event_stream.rs` | Server-Sent Events of a run or a session |
//! | `operations.rs` | `/healthz`, `/readyz`, `/metrics`, and the start page `page.html` |

mod approvals;
mod error;
mod event_stream;
mod events;
mod extract;
mod guard;
mod listener;
mod operations;
mod runs;
mod sessions;
mod state;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::{MethodRouter, delete, get, post};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::runtime::Host;

use error::ApiError;
use guard::RequestGuard;
use listener::{LocalAddress, NoDelayListener};
pub use state::ServerOptions;
use state::{ApiState, AppState};

/// Serves a host's API on a listener until [`ServerHandle::shutdown`].
///
/// # Errors
/// If the listener's address cannot be read, or is not loopback and the options have no token.
pub fn serve(
    listener: TcpListener,
    host: Host,
    options: ServerOptions,
) -> io::Result<ServerHandle> {
    let addr = listener.local_addr()?;
    if !addr.ip().is_loopback() && options.token.is_none() {
        let problem = format!("{addr} is not loopback and needs ServerOptions::token");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let closing = CancellationToken::new();
    let close_timeout = options.close_timeout;
    let guard = RequestGuard::new(&options);
    let state = Arc::new(ApiState { host, options, closing: closing.clone() });
    let service = router(state, guard).into_make_service_with_connect_info::<LocalAddress>();
    let serving = axum::serve(NoDelayListener(listener), service)
        .with_graceful_shutdown(closing.clone().cancelled_owned());
    #[expect(
        clippy::disallowed_methods,
        reason = "the accept loop; its handle awaits or aborts it"
    )]
    let task = tokio::spawn(async move { serving.await });
    Ok(ServerHandle { addr, closing, close_timeout, task })
}

/// A running server. Dropping it aborts the server.
#[derive(Debug)]
pub struct ServerHandle {
    addr: SocketAddr,
    closing: CancellationToken,
    close_timeout: Duration,
    task: JoinHandle<io::Result<()>>,
}

impl ServerHandle {
    /// Returns the address that the server listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Shuts the server down: accepts no more connections, ends event streams, and waits until the
    /// other responses are complete, at most for `close_timeout`. The host keeps running.
    pub async fn shutdown(mut self) {
        self.closing.cancel();
        // A client that reads slowly or never closes its connection must not block the shutdown.
        let _ = tokio::time::timeout(self.close_timeout, &mut self.task).await;
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.closing.cancel();
        self.task.abort();
    }
}

/// The routes: method, path and handler.
fn routes() -> [(&'static str, &'static str, MethodRouter<AppState>); 15] {
    [
        ("GET", "/", get(operations::page)),
        ("GET", "/healthz", get(operations::healthz)),
        ("GET", "/readyz", get(operations::readyz)),
        ("GET", "/metrics", get(operations::metrics)),
        ("POST", "/v1/sessions", post(sessions::open)),
        ("GET", "/v1/sessions", get(sessions::list)),
        ("GET", "/v1/sessions/{id}", get(sessions::snapshot)),
        ("DELETE", "/v1/sessions/{id}", delete(sessions::close)),
        ("POST", "/v1/sessions/{id}/fork", post(sessions::fork)),
        ("POST", "/v1/sessions/{id}/runs", post(runs::start)),
        ("GET", "/v1/sessions/{id}/events", get(events::watch)),
        ("POST", "/v1/sessions/{id}/steer", post(runs::steer)),
        ("POST", "/v1/sessions/{id}/stop", post(runs::stop)),
        ("POST", "/v1/sessions/{id}/resume", post(runs::resume)),
        ("POST", "/v1/sessions/{id}/approvals/{tool_id}", post(approvals::decide)),
    ]
}

fn router(state: AppState, guard: RequestGuard) -> Router {
    let router = routes()
        .into_iter()
        .fold(Router::new(), |router, (_, path, handler)| router.route(path, handler));
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(axum::middleware::from_fn_with_state(Arc::new(guard), guard::check))
        .with_state(state)
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::not_found("not_found", format!("unknown path {}; GET / lists the API", uri.path()))
}

async fn unknown_method(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    ApiError::method_not_allowed(format!("{path} does not accept {method}; GET / lists the API"))
}

crate::types::impl_with!(ServerOptions);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_page_lists_every_route() {
        let rows = operations::PAGE.split("<tr><td><code>").skip(1);
        let listed: Vec<String> = rows
            .map(|row| {
                let (request, _) = row.split_once("</code>").expect("a row ends its request");
                request.split('?').next().unwrap_or_default().to_owned()
            })
            .collect();
        let routes: Vec<String> =
            routes().iter().map(|(method, path, _)| format!("{method} {path}")).collect();
        assert_eq!(listed, routes);
    }
}
