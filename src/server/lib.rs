//! The HTTP API of a host: routes, status codes, event streams and access control.
//!
//! [`serve`] runs the server, for the binary and for programs. A program with an HTTP server of its own
//! mounts the same routes with [`router`] and [`operations`], and puts a [`Guard`] around them if it wants
//! one. Its own handlers answer with [`EventStream`] and with [`HostError`], which are responses.
//!
//! Handlers are thin: each parses a request, calls the [`Host`], and turns the result into a
//! response.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `lib.rs` | the server's start and graceful shutdown |
//! | `routes.rs` | the routes, as routers that can be mounted below a path |
//! | `mount.rs` | the path below which the routes are mounted |
//! | `state.rs` | [`ServerOptions`], and the state that all handlers share |
//! | `guard.rs` | access control of every request: authentication by bearer token; `Host` and `Origin` (CSRF, DNS rebinding) |
//! | `cors.rs` | pages of other origins that may use the API: preflight requests, headers of answers |
//! | `access.rs` | the tokens and what each may do: scopes (authorization), agents; reading their files again |
//! | `listener.rs` | accepts connections; time limits for clients that do not send (slowloris) or do not read; size of a header |
//! | `tls.rs` | TLS: the certificate and its key; reading them again |
//! | `connections.rs` | `max_connections`, and which connection is closed for a new one |
//! | `extract.rs` | strict parsing of paths, queries and JSON bodies; the session of a path; `Idempotency-Key`; limits of bodies (size, time, memory) |
//! | `error.rs` | [`HostError`] as a status code, an error body and `Retry-After`; the error codes: `runtime::error` |
//! | `sessions.rs` | `/v1/sessions`: open, list (pagination by `limit` and `after`), show, close, fork |
//! | `session_page.rs` | a session with its messages, streamed, whole or by page |
//! | `answer_limiter.rs` | the memory of answers that clients have not received, and bodies that are sent in pieces |
//! | `tools.rs` | `/v1/tools`: lists the tools of an agent, calls one |
//! | `runs.rs` | `/v1/sessions/{id}/`: `runs`, `steer`, `stop`, `resume`, `tools/refresh`, `compact`, `exclude`, `include`, `context` |
//! | `approvals.rs` | `/v1/sessions/{id}/approvals/{tool_id}`, `/v1/approvals` |
//! | `results.rs` | `/v1/sessions/{id}/results/{tool_id}`: shows a result, receives that of a client tool |
//! | `events.rs` | `/v1/sessions/{id}/events`, `/v1/events`: the positions at which a client starts to read |
//! | `event_stream.rs` | Server-Sent Events of a run or a session; keep-alive comments (heartbeat) |
//! | `records.rs` | `/v1/sessions/{id}/`: `records`, `verify`, `turns/{turn}/request` |
//! | `refusals.rs` | counts and logs refused requests: 401, 403, 429 |
//! | `vitals.rs` | `/v1/ui/vitals` |
//! | `peers.rs` | several hosts: passes requests on to the host that has the session |
//! | `operations.rs` | liveness (`/healthz`), readiness (`/readyz`), `/metrics`, `/v1/host/models`, `/v1/hosts` |
//! | `start_page.rs` | the start page, `page.html` |
//! | `console.rs` | the files of the console |
//! | `faces` | protocols of other systems, by which their clients drive sessions (feature `faces`) |
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

mod access;
mod answer_limiter;
mod approvals;
mod connections;
mod console;
mod cors;
mod error;
mod event_stream;
mod events;
mod extract;
#[cfg(feature = "faces")]
mod faces;
mod guard;
mod listener;
mod mount;
mod operations;
mod peers;
mod records;
mod refusals;
mod results;
mod route;
mod routes;
mod runs;
mod session_page;
mod sessions;
mod start_page;
mod state;
mod tls;
mod tools;
mod vitals;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use callsheet_host::runtime::Host;
#[cfg(doc)]
use callsheet_host::runtime::HostError;
use callsheet_values::config::TOKEN_CHARS_MIN;

use access::AccessTokens;
use connections::Connections;
pub use event_stream::EventStream;
pub use guard::Guard;
pub use guard::GuardedService;
use refusals::Refusals;
pub use routes::{operations, router};
use state::ApiState;
pub use state::ServerOptions;
pub use tls::ServerTls;
pub use tls::ServerTlsError;

/// Serves a host's API on a listener until [`ServerHandle::shutdown`].
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
/// use callsheet::server::{self, ServerOptions};
///
/// let host = Host::builder().start().await?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let server = server::serve(listener, host.clone(), ServerOptions::default())?;
/// println!("http://{}", server.addr());
/// host.shutdown().await;
/// server.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// # Errors
/// If the listener's address cannot be read, or is not loopback and the options have no token, or one of less than 16 characters.
pub fn serve(
    listener: TcpListener,
    host: Host,
    options: ServerOptions,
) -> io::Result<ServerHandle> {
    let addr = listener.local_addr()?;
    let guard = Guard::from(&options).public_paths(routes::public_paths());
    let is_loopback = addr.ip().is_loopback();
    let tokens = guard.tokens().clone();
    if !is_loopback && (tokens.is_empty() || !tokens.are_hard_to_guess()) {
        let problem = format!(
            "{addr} is not loopback and needs tokens (ServerOptions::token) with at least {TOKEN_CHARS_MIN} characters"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let closing = CancellationToken::new();
    let close_timeout = options.close_timeout;
    let connections = Connections::new(host.clone(), options.max_connections);
    let tls = options.tls.clone();
    let listener_options = options.clone();
    let observe = from_fn_with_state(Refusals::new(host.clone()), refusals::observe);
    let state = ApiState::new(&host, &options, &closing, true);
    #[cfg(feature = "faces")]
    faces::begin(&state);
    let router = routes::server_router(state).layer(guard).layer(observe);
    let serving = listener::serve(listener, router, connections, listener_options, closing.clone());
    #[expect(
        clippy::disallowed_methods,
        reason = "the accept loop; its handle awaits or aborts it"
    )]
    let task = tokio::spawn(serving);
    Ok(ServerHandle { addr, closing, close_timeout, task, tokens, tls, host })
}

fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

/// A running server. Dropping it aborts the server.
///
/// Returned by [`serve`].
#[derive(Debug)]
pub struct ServerHandle {
    addr: SocketAddr,
    closing: CancellationToken,
    close_timeout: Duration,
    task: JoinHandle<()>,
    tokens: AccessTokens,
    tls: Option<ServerTls>,
    host: Host,
}

impl ServerHandle {
    /// Returns the address that the server listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL that the server listens on.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", scheme(self.tls.is_some()), self.addr)
    }

    /// Reads the files of tokens and of TLS again. A file that cannot be read, or that has no value that can be used, is
    /// logged, and the last value stays.
    pub async fn read_secrets_again(&self) {
        let (tokens, tls, host) = (self.tokens.clone(), self.tls.clone(), self.host.clone());
        let is_loopback = self.addr.ip().is_loopback();
        // A file may lie on a slow or broken file system.
        let read = tokio::task::spawn_blocking(move || {
            tokens.read_again(&host, is_loopback);
            if let Some(Err(reason)) = tls.map(|tls| tls.read_again()) {
                tracing::warn!(%reason, "tls_files_not_read");
            }
        });
        // Cannot fail: nothing in it panics.
        let _ = read.await;
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

callsheet_values::impl_with!(ServerOptions);
