//! The configuration of the host: `[host]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::key_table::{Value, key_table, named_values};
use super::model::ApiKey;

/// Minimum number of characters of a token that protects an address which is not loopback. A shorter one can be guessed.
pub const TOKEN_CHARS_MIN: usize = 16;

/// The default of [`HostConfig::token_env`].
pub const TOKEN_ENV: &str = "CALLSHEET_TOKEN";

key_table! {
    /// The configuration of the host: address, access and limits. A limit that is `None` does not apply.
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
        /// The address to listen on. One that is not loopback needs a token of at least 16 characters.
        listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 7700)), Any;
        /// `Host` headers that are accepted besides loopback names and the listen address. A name with a port is
        /// accepted only with that port.
        allowed_hosts: Vec<String> = Vec::new() => "list of names";
        /// The environment variable that holds the token. If the file names it, the variable must hold a token; the
        /// default one may be unset or blank.
        token_env: String = TOKEN_ENV.to_owned(), Filled;
        /// The file that holds the token, instead of `token_env`. `SIGHUP` lets the host read it again.
        token_file: Option<PathBuf> = None => "path";
        /// The token that requests must have. `None` means that they need none, unless there are named tokens
        /// ([`TokenConfig`](super::TokenConfig)). It may do everything.
        token: Option<ApiKey> = None;
        /// The time that running turns have to finish at shutdown.
        shutdown_grace: Duration = Duration::from_secs(10), Any;
        /// What a shutdown does with the runs that have not ended. With `suspend`, the next host goes on with them, as
        /// after a crash. With `interrupt`, they end as `interrupted`, except those that wait only for approvals or
        /// results of clients. With `hand_over`, which needs a journal that several hosts use, another host goes on with
        /// them at once. Default: `hand_over` with such a journal, `suspend` if the journal lasts, else `interrupt`.
        on_shutdown: Option<OnShutdown> = None, Any;
        /// Maximum number of sessions in memory. Further ones are refused; idle ones leave memory early from 90 % on.
        /// `max_stored_sessions` limits those on the disk.
        max_sessions: usize = 100_000, Positive;
        /// Maximum number of concurrent runs, without those of child sessions. Further ones are refused.
        max_concurrent_runs: usize = 10_000, Positive;
        /// Maximum number of inputs that wait in one session: queued runs and steering inputs. Further ones are refused
        /// with status 429.
        max_queued_inputs: usize = 16, Positive;
        /// Maximum size of a session's stored records in bytes, about. A session that is larger refuses inputs with
        /// status 413.
        max_session_bytes: Option<u64> = Some(256 << 20), Limit;
        /// Maximum number of open connections of the HTTP server, and at most three quarters of the limit of open files
        /// (`ulimit -n`). Beyond it, the oldest connection without a complete request is closed for a new one. If there
        /// is none, the new one is refused.
        max_connections: usize = 20_000, Positive;
        /// The time limit for receiving the header of an HTTP request. An idle connection is closed after it, too.
        header_read_timeout: Duration = Duration::from_secs(10), Positive;
        /// The time limit of one write to an HTTP client. One that does not read for this time is disconnected.
        write_timeout: Duration = Duration::from_secs(30), Positive;
        /// Maximum number of HTTP answers above 1 MiB at once. Further ones are refused with status 503 and
        /// `Retry-After`; those to requests that have had an effect wait up to 10 seconds first.
        max_large_answers: usize = 8, Positive;
        /// The directory of the journal, for one host at a time. A relative path starts at the host's working
        /// directory.
        data_dir: PathBuf = PathBuf::from("./callsheet-data"), Any;
        /// The time after which an idle session hibernates: it leaves memory, and its records stay.
        idle_after: Option<Duration> = Some(Duration::from_secs(5 * 60)), Limit;
    }
}

/// What a shutdown of the host does with the runs that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnShutdown {
    /// Nothing is recorded: the next host goes on with them, as after a crash. Queued inputs stay queued.
    Suspend,
    /// They end as `interrupted`, and queued inputs with them.
    Interrupt,
    /// Another host that uses the same journal goes on with them at once, as after a crash.
    HandOver,
}

named_values!(
    OnShutdown,
    [("suspend", Self::Suspend), ("interrupt", Self::Interrupt), ("hand_over", Self::HandOver)]
);

impl OnShutdown {
    /// Returns whether runs go on at another host, or at the next one.
    #[must_use]
    pub fn leaves_runs(self) -> bool {
        match self {
            Self::Suspend | Self::HandOver => true,
            Self::Interrupt => false,
        }
    }
}

impl HostConfig {
    /// Returns the file or the variable of the token.
    #[must_use]
    pub fn token_place(&self) -> String {
        match &self.token_file {
            Some(file) => file.display().to_string(),
            None => self.token_env.clone(),
        }
    }
}

impl Value for SocketAddr {
    fn form() -> String {
        "address with a port".to_owned()
    }

    fn to_toml(&self) -> String {
        format!("\"{self}\"")
    }

    #[cfg(feature = "toml")]
    fn parse(value: &toml::de::DeValue<'_>) -> Result<Self, String> {
        parse_listen(&super::file::values::string(value)?)
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
