//! Reads `[host]`.

use toml::de::DeValue;

use super::source::Section;
use super::values::{self, Parsed};
use crate::config::key_table::KeyTable as _;
use crate::config::{ApiKey, BaseUrl, HostConfig, SecretSource, TOKEN_CHARS_MIN};

impl HostConfig {
    pub(super) fn read(section: &Section<'_, '_>, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut host = Self::default();
        host.read_keys(section);
        host.allowed_hosts = section.list("allowed_hosts", allowed_host).unwrap_or_default();
        host.allowed_origins = section.list("allowed_origins", allowed_origin).unwrap_or_default();
        if section.has("token_env") {
            section.forbid("token_file", "token_env and token_file exclude each other");
        }
        host.token_file = section.path("token_file");
        host.advertise = section.read("advertise", |value| {
            BaseUrl::parse(&values::string(value)?).map_err(|error| error.to_string())
        });
        let is_named = section.has("token_env") && !section.is_wrong("token_env");
        section.report_unknown_keys();
        host.read_peer_token(section, env);
        if let Some(file) = &host.token_file {
            match SecretSource::File(file.clone()).read_token() {
                Ok(token) => host.token = Some(token),
                Err(error) => section.add_error("token_file", error.to_string()),
            }
        } else {
            host.token = ApiKey::from_env(&host.token_env, env).ok();
            if let Err(message) = host.check_token(is_named, env) {
                section.add_error("token_env", message);
            }
        }
        host
    }

    /// Reads the token of the hosts, if others reach this one.
    fn read_peer_token(&mut self, section: &Section<'_, '_>, env: &dyn Fn(&str) -> Option<String>) {
        if self.advertise.is_none() {
            return;
        }
        if let Err(message) = self.check_advertise() {
            section.add_error("advertise", message);
        }
        match ApiKey::from_env(&self.peer_token_env, env) {
            Ok(token) if token.reveal().len() >= TOKEN_CHARS_MIN => self.peer_token = Some(token),
            Ok(_) => {
                let message = format!(
                    "the environment variable {} has less than {TOKEN_CHARS_MIN} characters: use a longer token, the \
                     same for all hosts of the database",
                    self.peer_token_env
                );
                section.add_error("peer_token_env", message);
            }
            Err(error) => {
                let message =
                    format!("{error}: set it to a token that all hosts of the database have");
                section.add_error("peer_token_env", message);
            }
        }
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

/// Parses an origin as browsers send it: in lower case, without the default port. Programs with a built-in browser have
/// schemes of their own, such as `tauri://localhost`.
fn allowed_origin(value: &DeValue<'_>) -> Parsed<String> {
    let text = values::string(value)?.to_ascii_lowercase();
    let invalid = || format!("must be an origin such as \"http://localhost:5173\", not {text:?}");
    let (scheme, authority) = text.split_once("://").ok_or_else(invalid)?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let (name, port) = values::split_port(authority);
    let fits_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
    if !is_scheme || !values::is_host_name(name) || !fits_port {
        return Err(invalid());
    }
    Ok(match (scheme, port) {
        ("http", Some("80")) | ("https", Some("443")) | (_, None) => format!("{scheme}://{name}"),
        (_, Some(port)) => format!("{scheme}://{name}:{port}"),
    })
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn a_host_that_others_reach_needs_a_database_and_a_token_of_all_hosts() {
        let parse = |text: &str, token: Option<&str>| {
            let token = token.map(ToOwned::to_owned);
            let env = |name: &str| token.clone().filter(|_| name == "CALLSHEET_PEER_TOKEN");
            Config::parse(text, "c.toml", &env).map_err(|errors| errors.to_string())
        };
        let postgres = "\n[journal]\nengine = \"postgres\"\n";
        let private = "[host]\nadvertise = \"http://10.0.0.5:7700/\"";
        let token = Some("a-token-of-all-hosts");
        let config = parse(&format!("{private}{postgres}"), token).expect("a configuration");
        assert_eq!(config.host.advertise.expect("an address").as_str(), "http://10.0.0.5:7700");
        assert_eq!(config.host.peer_token.expect("a token").reveal(), "a-token-of-all-hosts");
        for (text, token, expected) in [
            (private.to_owned(), token, "host.advertise: needs journal.engine = \"postgres\""),
            (format!("{private}{postgres}"), None, "CALLSHEET_PEER_TOKEN is not set"),
            (format!("{private}{postgres}"), Some("short"), "has less than 16 characters"),
            (
                format!("[host]\nadvertise = \"http://8.8.8.8\"{postgres}"),
                token,
                "is neither https nor in a private network",
            ),
            (format!("[host]\nadvertise = \"10.0.0.5\"{postgres}"), token, "host.advertise: "),
        ] {
            let error = parse(&text, token).expect_err(expected);
            assert!(error.contains(expected) && error.starts_with("c.toml:"), "{error}");
        }
    }
}
