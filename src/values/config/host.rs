//! The configuration of the host: `[host]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::model::ApiKey;

/// The default of [`HostConfig::token_env`].
pub const TOKEN_ENV: &str = "CALLSHEET_TOKEN";

/// The configuration of the host: address, access and limits.
///
/// ```
/// use callsheet::config::Config;
///
/// let config = Config::default().with(|config| config.host.max_concurrent_runs = 100);
/// assert_eq!((config.host.listen.port(), config.host.max_concurrent_runs), (7700, 100));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// The address to listen on. Default: `127.0.0.1:7700`.
    pub listen: SocketAddr,
    /// `Host` headers that are accepted besides loopback names and the listen address. Lower case. A
    /// name with a port is accepted only with that port. Default: none.
    pub allowed_hosts: Vec<String>,
    /// The environment variable that holds the token. If the file names it, the variable must hold a
    /// token; the default one may be unset or blank. Default: `CALLSHEET_TOKEN`.
    pub token_env: String,
    /// The token that requests must have. `None` means that they need none. Default: `None`.
    pub token: Option<ApiKey>,
    /// The time that running turns have to finish at shutdown. Default: 10 seconds. After it, they
    /// are cancelled. Those that wait only for approvals or results of clients are kept for the next host.
    pub shutdown_grace: Duration,
    /// Maximum number of sessions, awake or hibernating. Default: 100,000. Further ones are refused.
    pub max_sessions: usize,
    /// Maximum number of concurrent runs, without those of child sessions. Default: 10,000. Further ones are refused.
    pub max_concurrent_runs: usize,
    /// Maximum number of inputs that wait in one session: queued runs and steering inputs. Default:
    /// 16. Further ones are refused.
    pub max_queued_inputs: usize,
    /// Maximum size of a session's stored records in bytes. Default: 256 MiB. A session that is larger
    /// accepts no more inputs. `None` means no limit.
    pub max_session_bytes: Option<u64>,
    /// Maximum number of open connections of the HTTP server. Default: 20,000. Beyond it, the oldest
    /// connection without a complete request is closed for a new one. If there is none, the new one is
    /// refused.
    pub max_connections: usize,
    /// The time limit for receiving the header of an HTTP request. An idle connection is closed after it, too.
    /// Default: 10 seconds.
    pub header_read_timeout: Duration,
    /// The time limit of one write to an HTTP client. Default: 30 seconds.
    pub write_timeout: Duration,
    /// Maximum number of HTTP answers above 1 MiB at once. Default: 8. Further ones are refused with
    /// status 503; those to requests that have had an effect wait up to 10 seconds first.
    pub max_large_answers: usize,
    /// The directory of the journal. Default: `./callsheet-data`. A relative path starts at the
    /// host's working directory.
    pub data_dir: PathBuf,
    /// The time after which an idle session hibernates: it leaves memory, and its records stay.
    /// Default: 5 minutes. `None` means never.
    pub idle_after: Option<Duration>,
}

impl HostConfig {
    /// Checks that the address is loopback, or that requests need a token.
    ///
    /// # Errors
    /// If the address is not loopback, and there is no token.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.listen.ip().is_loopback() || self.token.is_some() {
            return Ok(());
        }
        let (listen, name) = (self.listen, &self.token_env);
        Err(format!("{listen} is not loopback and needs a token, but {name} is not set"))
    }
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7700)),
            allowed_hosts: Vec::new(),
            token_env: TOKEN_ENV.to_owned(),
            token: None,
            shutdown_grace: Duration::from_secs(10),
            max_sessions: 100_000,
            max_concurrent_runs: 10_000,
            max_queued_inputs: 16,
            max_session_bytes: Some(256 * 1024 * 1024),
            max_connections: 20_000,
            header_read_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            max_large_answers: 8,
            data_dir: PathBuf::from("./callsheet-data"),
            idle_after: Some(Duration::from_secs(5 * 60)),
        }
    }
}

/// Parses an address with a port from the file or the command line. The name `localhost` means 127.0.0.1.
/// Other names are not resolved.
///
/// # Errors
/// If the text is not an address with a port.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    match port {
        Some(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        None => text.parse().map_err(|_| {
            format!("must be an address with a port such as \"127.0.0.1:7700\", not {text:?}")
        }),
    }
}
