//! The configuration of the host: `[host]`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::key_table::{Value, key_table, named_values};
use super::model::{ApiKey, BaseUrl};

/// Minimum number of characters of a token that protects an address which is not loopback. A shorter one can be guessed.
pub const TOKEN_CHARS_MIN: usize = 16;

/// The default of [`HostConfig::token_env`].
pub const TOKEN_ENV: &str = "CALLSHEET_TOKEN";

/// The default of [`HostConfig::peer_token_env`].
const PEER_TOKEN_ENV: &str = "CALLSHEET_PEER_TOKEN";

/// Ends of host names that no public network resolves.
const PRIVATE_DOMAINS: [&str; 5] = [".internal", ".local", ".lan", ".home.arpa", ".svc"];

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
        /// Origins of other pages that may use the host from a browser (CORS), such as `"http://localhost:5173"`. `"*"` is
        /// not accepted: without a token every page could use the host then.
        allowed_origins: Vec<String> = Vec::new() => "list of origins";
        /// The environment variable that holds the token. If the file names it, the variable must hold a token; the
        /// default one may be unset or blank.
        token_env: String = TOKEN_ENV.to_owned(), Filled;
        /// The file that holds the token, instead of `token_env`. `SIGHUP` lets the host read it again.
        token_file: Option<PathBuf> = None => "path";
        /// The token that requests must have. `None` means that they need none, unless there are named tokens
        /// ([`TokenConfig`](super::TokenConfig)). It may do everything.
        token: Option<ApiKey> = None;
        /// The URL at which the other hosts of the database reach this one (`journal.engine = "postgres"`). The port 0 stands
        /// for that of `listen`. Without this key the host uses the database alone.
        advertise: Option<BaseUrl> = None => "URL";
        /// With `advertise`: the environment variable that holds the token of all hosts of the database, with at least 16
        /// characters. They pass requests to each other with it.
        peer_token_env: String = PEER_TOKEN_ENV.to_owned(), Filled;
        /// The token of all hosts of the database. Its requests may do what the token of their client may do.
        peer_token: Option<ApiKey> = None;
        /// Accepts an `advertise` that is neither `https` nor in a private network: requests, answers and the peer token
        /// cross the network in plain text.
        allow_plaintext_peers: bool = false, Any;
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
    /// Checks that requests to an address among hosts are encrypted, or cross a private network only, or that the
    /// configuration allows others.
    ///
    /// # Errors
    /// If that is not so.
    pub fn check_advertise(&self) -> Result<(), String> {
        let Some(address) = self.advertise.as_ref().filter(|_| !self.allow_plaintext_peers) else {
            return Ok(());
        };
        if address.is_https() || address.host().is_some_and(|host| is_private(&host)) {
            return Ok(());
        }
        Err(format!(
            "{:?} is neither https nor in a private network: use https, or set allow_plaintext_peers = true if nobody \
             else can read that network",
            address.as_str()
        ))
    }

    /// Returns the file or the variable of the token.
    #[must_use]
    pub fn token_place(&self) -> String {
        match &self.token_file {
            Some(file) => file.display().to_string(),
            None => self.token_env.clone(),
        }
    }
}

/// Returns whether a name or an address is that of a private network.
fn is_private(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(address)) => {
            address.is_private() || address.is_loopback() || address.is_link_local()
        }
        Ok(IpAddr::V6(address)) => {
            address.is_loopback()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                || address.to_ipv4_mapped().is_some_and(|v4| is_private(&v4.to_string()))
        }
        Err(_) => {
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            !name.contains('.') || PRIVATE_DOMAINS.iter().any(|domain| name.ends_with(domain))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_reach_each_other_by_tls_or_in_a_private_network() {
        let check = |address: &str, allowed| {
            let advertise = Some(BaseUrl::parse(address).expect("a URL"));
            let host =
                HostConfig { advertise, allow_plaintext_peers: allowed, ..HostConfig::default() };
            host.check_advertise()
        };
        for accepted in [
            "http://10.0.0.5:7700",
            "http://172.31.0.1",
            "http://192.168.1.1/agents",
            "http://127.0.0.1:7700",
            "http://[::1]:1",
            "http://[fd00::1]:1",
            "http://[::ffff:10.0.0.1]:1",
            "http://host-1:7700",
            "http://LOCALHOST:7700",
            "http://a.b.svc:7700",
            "http://pod-0.hosts.default.svc.cluster.local:7700",
            "http://ip-10-0-0-1.ec2.internal.:7700",
            "https://agents.example.com",
        ] {
            assert_eq!(check(accepted, false), Ok(()), "{accepted}");
        }
        for refused in [
            "http://agents.example.com",
            "http://8.8.8.8:7700",
            "http://172.32.0.1",
            "http://100.64.0.1",
            "http://[2001:db8::1]:7700",
            "http://[::ffff:8.8.8.8]:1",
            "http://local.example.com",
        ] {
            let error = check(refused, false).expect_err(refused);
            assert!(error.contains("is neither https nor in a private network"), "{error}");
            assert_eq!(check(refused, true), Ok(()), "{refused}");
        }
    }
}
