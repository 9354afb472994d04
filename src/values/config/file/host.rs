//! Reads `[host]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::de::DeValue;

use super::source::Section;
use super::values::{self, Parsed};
use crate::config::parse_listen;
use crate::config::{ApiKey, HostConfig};

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
                .read("max_sessions", values::positive)
                .unwrap_or(default.max_sessions),
            max_concurrent_runs: section
                .read("max_concurrent_runs", values::positive)
                .unwrap_or(default.max_concurrent_runs),
            max_queued_inputs: section
                .read("max_queued_inputs", values::positive)
                .unwrap_or(default.max_queued_inputs),
            max_session_bytes: section
                .read("max_session_bytes", values::optional_limit)
                .unwrap_or(default.max_session_bytes),
            max_connections: section
                .read("max_connections", values::positive)
                .unwrap_or(default.max_connections),
            header_read_timeout: section
                .read("header_read_timeout", values::positive_duration)
                .unwrap_or(default.header_read_timeout),
            write_timeout: section
                .read("write_timeout", values::positive_duration)
                .unwrap_or(default.write_timeout),
            max_large_answers: section
                .read("max_large_answers", values::positive)
                .unwrap_or(default.max_large_answers),
            data_dir: section
                .read("data_dir", values::non_empty_string)
                .map_or(default.data_dir, PathBuf::from),
            idle_after: section
                .read("idle_after", values::optional_duration)
                .unwrap_or(default.idle_after),
        };
        section.report_unknown_keys();
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
}

fn listen(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    parse_listen(&values::string(value)?)
}

fn allowed_host(value: &DeValue<'_>) -> Parsed<String> {
    let text = values::string(value)?;
    let (name, port) = values::split_port(&text);
    let fits = values::is_host_name(name) && port.is_none_or(|port| port.parse::<u16>().is_ok());
    if fits {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("must be a name or \"name:port\" without scheme or path, not {text:?}"))
    }
}
