//! The state that all handlers share, and the options of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use super::answer_limiter::AnswerLimiter;
use super::event_stream::EventStream;
use super::tls::ServerTls;
use callsheet_host::runtime::Host;
use callsheet_values::config::{ApiKey, Config, FacesConfig, HostConfig, TokenConfig};

/// Maximum number of bytes of all request bodies above 32 KiB that are being received.
pub(super) const BODIES_BYTES_MAX: usize = 48 * 1024 * 1024;

/// Maximum number of sessions that all streams of `GET /v1/events` watch together. A stream needs memory for each.
pub(super) const WATCHED_SESSIONS_MAX: usize = 8192;

/// Access rules and limits of a server.
///
/// Taken by [`serve`](crate::serve); [`Self::router`] shows their use in a program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Host names that requests may use besides loopback names and the server's own address.
    pub allowed_hosts: Vec<String>,
    /// Origins of other pages that may use the server from a browser (CORS), such as `http://localhost:5173`.
    pub allowed_origins: Vec<String>,
    /// The bearer token that requests must carry, if there is one. Such requests may do everything.
    pub token: Option<ApiKey>,
    /// The file of this token, for [`ServerHandle::read_secrets_again`](crate::ServerHandle::read_secrets_again).
    pub token_file: Option<PathBuf>,
    /// Further tokens that requests may carry, each with a name and with what such requests may do.
    pub tokens: Vec<TokenConfig>,
    /// The token that requests of other hosts with the same journal carry.
    pub peer_token: Option<ApiKey>,
    /// The protocols of other systems that are served, if this crate has them (feature `faces`). A face whose `enabled` is
    /// `None` is not.
    pub faces: FacesConfig,
    /// The certificate with which the server speaks TLS. `None`: it speaks plain HTTP.
    pub tls: Option<ServerTls>,
    /// Time without an event after which an event stream sends a comment.
    pub keep_alive: Duration,
    /// Maximum size of a request body, which includes the images of the user's input.
    pub body_bytes_max: usize,
    /// Time limit for receiving a request body. A connection whose client has not sent all of it
    /// counts as one without a complete request.
    pub body_timeout: Duration,
    /// Maximum number of open connections. Beyond it, connections whose client has not sent a
    /// complete request are closed, the oldest first; if there are none, new ones are refused.
    pub max_connections: usize,
    /// Time limit for receiving the header of a request. An idle connection is closed after it, too.
    pub header_read_timeout: Duration,
    /// Time limit of one write to a client. While the server waits for a client, it must read 16 KiB per second on
    /// average, and may be behind this rate by at most the same time. A client that exceeds a limit is disconnected.
    pub write_timeout: Duration,
    /// Maximum number of answers above 1 MiB that are being sent at once. In addition, all answers that hold more
    /// than 16 KiB in memory can hold at most 40 MiB together. Pages of metrics have separate limits: the same
    /// number, and 8 MiB. An answer beyond a limit is refused with status 503. If its request has had an effect,
    /// the answer first waits up to 10 s.
    pub max_large_answers: usize,
    /// Time that open connections get to finish at shutdown.
    pub close_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let host = HostConfig::default();
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            token: None,
            token_file: None,
            tokens: Vec::new(),
            peer_token: None,
            faces: FacesConfig::default(),
            tls: None,
            max_connections: host.max_connections,
            header_read_timeout: host.header_read_timeout,
            write_timeout: host.write_timeout,
            max_large_answers: host.max_large_answers,
            keep_alive: Duration::from_secs(15),
            body_bytes_max: 4 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(2),
        }
    }
}

impl From<&Config> for ServerOptions {
    fn from(config: &Config) -> Self {
        let host = &config.host;
        Self {
            faces: config.faces.clone().enabled_by_default(host.listen.ip().is_loopback()),
            allowed_hosts: host.allowed_hosts.clone(),
            allowed_origins: host.allowed_origins.clone(),
            token: host.token.clone(),
            token_file: host.token_file.clone(),
            tokens: config.tokens.clone(),
            peer_token: host.peer_token.clone(),
            max_connections: host.max_connections,
            header_read_timeout: host.header_read_timeout,
            write_timeout: host.write_timeout,
            max_large_answers: host.max_large_answers,
            ..Self::default()
        }
    }
}

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct ApiState {
    pub(super) host: Host,
    pub(super) options: ServerOptions,
    /// The permits of answers, except pages of metrics, that are being sent.
    pub(super) answer_limiter: AnswerLimiter,
    /// The permits of pages of metrics that are being sent.
    pub(super) metrics_pages: AnswerLimiter,
    pub(super) reads: JournalReads,
    /// One permit for each byte of the larger request bodies that are being received.
    pub(super) body_bytes: Arc<Semaphore>,
    /// One permit for each session of the streams of several sessions.
    pub(super) watched_sessions: Arc<Semaphore>,
    /// What the faces share.
    #[cfg(feature = "faces")]
    pub(super) faces: super::faces::memory::FacesMemory,
    /// Cancelled at shutdown, to end event streams.
    pub(super) closing: CancellationToken,
    /// True for [`serve`](crate::serve), false for a router in an application.
    pub(super) is_server: bool,
}

pub(super) type AppState = Arc<ApiState>;

/// Admits one request of each kind at a time, because the records that a request reads can be much larger than its
/// answer.
#[derive(Debug, Default)]
pub(super) struct JournalReads {
    /// Pages of records.
    pub(super) pages: Mutex<()>,
    /// Checks of all records of a session.
    pub(super) checks: Mutex<()>,
    /// Results of calls.
    pub(super) results: Mutex<()>,
    /// Reports of runs that were requested again.
    pub(super) reports: Mutex<()>,
    /// Long lists of sessions.
    pub(super) lists: Mutex<()>,
}

impl ApiState {
    /// Creates the state of a router that serves a host.
    pub(super) fn new(
        host: &Host,
        options: &ServerOptions,
        closing: &CancellationToken,
        is_server: bool,
    ) -> Self {
        Self {
            host: host.clone(),
            answer_limiter: AnswerLimiter::new(options.max_large_answers),
            metrics_pages: AnswerLimiter::of_metrics(options.max_large_answers),
            reads: JournalReads::default(),
            body_bytes: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
            watched_sessions: Arc::new(Semaphore::new(WATCHED_SESSIONS_MAX)),
            options: options.clone(),
            #[cfg(feature = "faces")]
            faces: super::faces::memory::FacesMemory::default(),
            closing: closing.clone(),
            is_server,
        }
    }

    /// Returns a response with these events, which ends when the server shuts down.
    pub(super) fn event_stream(&self, events: impl Into<EventStream>) -> EventStream {
        events.into().keep_alive(self.options.keep_alive).until(&self.closing)
    }
}
