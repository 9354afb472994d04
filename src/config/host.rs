//! `[host]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::model::ApiKey;
use super::source::Section;
use super::values::{self, Parsed};

/// The default environment variable for the host's token.
pub const TOKEN_ENV: &str = "CALLSHEET_TOKEN";

/// The configuration of the host: address, access and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// The address to listen on. Default: `127.0.0.1:7700`.
    pub listen: SocketAddr,
    /// `Host` headers that are accepted besides loopback names and the listen address. Lower case. A
    /// name with a port is accepted only with that port.
    pub allowed_hosts: Vec<String>,
    /// The environment variable that holds the token. If the file names it, the variable must be
    /// set; the default one may be unset or blank.
    pub token_env: String,
    /// The token that requests must have. `None` means that they need none.
    pub token: Option<ApiKey>,
    /// The time that running turns have to finish at shutdown. Default: 10 seconds. After it, they
    /// are cancelled.
    pub shutdown_grace: Duration,
    /// Maximum number of sessions, awake or hibernating. Default: 100,000. Further ones are refused.
    pub max_sessions: usize,
    /// Maximum number of concurrent runs. Default: 10,000. Further ones are refused.
    pub max_concurrent_runs: usize,
    /// Maximum number of inputs that wait in one session: queued runs and steering inputs. Default:
    /// 16. Further ones are refused.
    pub max_queued_inputs: usize,
    /// The directory of the journal. Default: `./callsheet-data`. A relative path starts at the
    /// host's working directory.
    pub data_dir: PathBuf,
    /// The time after which an idle session hibernates: it leaves memory, and its records stay.
    /// Default: 5 minutes. `None` means never.
    pub idle_after: Option<Duration>,
}

impl HostConfig {
    pub(super) fn read(section: &Section<'_, '_>, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let default = Self::default();
        let named_env = section.read("token_env", values::non_empty_string);
        let is_named = named_env.is_some();
        let token_env = named_env.unwrap_or(default.token_env);
        let host = Self {
            listen: section.read("listen", listen).unwrap_or(default.listen),
            allowed_hosts: section.list("allowed_hosts", allowed_host).unwrap_or_default(),
            token: ApiKey::from_env(&token_env, env).ok(),
            token_env,
            shutdown_grace: section
                .read("shutdown_grace", values::duration)
                .unwrap_or(default.shutdown_grace),
            max_sessions: section
                .read("max_sessions", values::count)
                .unwrap_or(default.max_sessions),
            max_concurrent_runs: section
                .read("max_concurrent_runs", values::count)
                .unwrap_or(default.max_concurrent_runs),
            max_queued_inputs: section
                .read("max_queued_inputs", values::count)
                .unwrap_or(default.max_queued_inputs),
            data_dir: section
                .read("data_dir", values::non_empty_string)
                .map_or(default.data_dir, PathBuf::from),
            idle_after: section
                .read("idle_after", values::time_limit)
                .unwrap_or(default.idle_after),
        };
        section.finish();
        if let Err(message) = host.check_token(is_named, env) {
            section.add_error("token_env", message);
        } else if let Err(message) = host.check() {
            section.add_error("listen", message);
        }
        host
    }

    /// Checks that a token that was meant to be set can be used, so that the host never accepts
    /// requests without one by mistake. `is_named` is true if the file names the variable.
    fn check_token(&self, is_named: bool, env: &dyn Fn(&str) -> Option<String>) -> Parsed<()> {
        let is_set = env(&self.token_env).is_some_and(|text| !text.trim().is_empty());
        let Err(error) = ApiKey::from_env(&self.token_env, env) else { return Ok(()) };
        if !is_named && !is_set {
            return Ok(());
        }
        let remedy = match (self.listen.ip().is_loopback(), is_named) {
            (false, _) => "",
            (true, true) => ", or remove token_env to accept requests without a token",
            (true, false) => ", or unset it to accept requests without a token",
        };
        Err(format!("{error}: set it to the token{remedy}"))
    }

    /// Checks that the address is loopback or requests need a token.
    pub(super) fn check(&self) -> Parsed<()> {
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
            data_dir: PathBuf::from("./callsheet-data"),
            idle_after: Some(Duration::from_secs(5 * 60)),
        }
    }
}

fn listen(value: &toml::de::DeValue<'_>) -> Parsed<SocketAddr> {
    parse_listen(&values::text(value)?)
}

/// Parses an address with a port from the file or the command line. `localhost` means 127.0.0.1.
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

fn allowed_host(value: &toml::de::DeValue<'_>) -> Parsed<String> {
    let text = values::text(value)?;
    let (name, port) = split_port(&text);
    let fits = is_host_name(name) && port.is_none_or(|port| port.parse::<u16>().is_ok());
    if fits {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("must be a name or \"name:port\" without scheme or path, not {text:?}"))
    }
}

/// Splits `host:port` or `[v6]:port`. The port may be missing.
pub(super) fn split_port(text: &str) -> (&str, Option<&str>) {
    let after_address = text.rfind(']').map_or(0, |at| at + 1);
    match text.get(after_address..).unwrap_or_default().rfind(':') {
        Some(at) => {
            let (name, port) = text.split_at(after_address + at);
            (name, port.strip_prefix(':'))
        }
        None => (text, None),
    }
}

/// Returns whether the text is a DNS name, an IPv4 address or an IPv6 address in brackets.
pub(super) fn is_host_name(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    (1..=253).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        && !text.starts_with('.')
}
