//! The secrets of a configuration.

use super::{ApiKey, Config, HookKind, McpTransport, ToolKind};
use crate::types::Secrets;

/// A header whose name contains one of these holds a secret.
const SECRET_NAME_PARTS: [&str; 7] =
    ["auth", "cookie", "credential", "key", "password", "secret", "token"];

/// The minimum length of a header's value that looks like a generated key.
const GENERATED_CHARS_MIN: usize = 16;

impl Config {
    /// Returns the secrets that are removed from responses and results of tools: the keys of models, the
    /// token of the host, headers of models that hold a secret, and the secret variables of tools, MCP servers
    /// and hooks.
    #[must_use]
    #[doc(hidden)]
    pub fn secrets(&self) -> Secrets {
        let definitions = self.tools.values().filter_map(|tool| tool.definition.as_ref());
        let variables = definitions.filter_map(|definition| match &definition.kind {
            ToolKind::Command(command) => Some(command.process.secret_env.values()),
            ToolKind::Http(http) => Some(http.secret_headers.values()),
            ToolKind::Agent(_) => None,
        });
        let variables = variables.flatten();
        let servers = self.mcp.values().flat_map(|server| match &server.transport {
            McpTransport::Stdio { process, .. } => process.secret_env.values(),
            McpTransport::Http { secret_headers, .. } => secret_headers.values(),
        });
        let hooks = self.hooks.iter().flat_map(|hook| match &hook.kind {
            HookKind::Command { process, .. } => process.secret_env.values(),
            HookKind::Http { secret_headers, .. } => secret_headers.values(),
        });
        let variables = variables.chain(servers).chain(hooks);
        let values: Vec<String> = variables.filter_map(|name| std::env::var(name).ok()).collect();
        let keys = self.models.values().filter_map(|model| model.api_key.as_ref());
        let keys = keys.chain(&self.host.token).map(ApiKey::reveal);
        let headers = self.models.values().flat_map(|model| &model.headers);
        let headers = headers.filter(|(name, value)| is_secret(name, value));
        let headers = headers.flat_map(|(_, value)| with_last_word(value));
        let values = values.iter().flat_map(|value| with_last_word(value));
        Secrets::new(keys.chain(headers).chain(values))
    }
}

/// Returns the value of a header, and its last word: a service may echo the key without the scheme
/// before it, such as `Bearer`.
pub(crate) fn with_last_word(value: &str) -> [&str; 2] {
    [value, value.rsplit(' ').next().unwrap_or_default()]
}

/// Returns whether the name of a header suggests a secret, or its value looks like a generated key.
fn is_secret(name: &str, value: &str) -> bool {
    let has = |test: fn(&u8) -> bool| value.as_bytes().iter().any(test);
    let is_generated = value.len() >= GENERATED_CHARS_MIN
        && !has(u8::is_ascii_whitespace)
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && !value.contains("://");
    is_generated || SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{HookConfig, HookRule, ProcessConfig};
    use crate::types::HookPoint;

    #[test]
    fn the_secret_variables_of_hooks_are_secrets() {
        let path = std::env::var("PATH").unwrap();
        let secrets = BTreeMap::from([("SECRET".to_owned(), "PATH".to_owned())]);
        let process = ProcessConfig { secret_env: secrets.clone(), ..ProcessConfig::default() };
        let program = HookKind::Command { command: Vec::new(), process: Box::new(process) };
        let service = HookKind::Http {
            url: String::new(),
            headers: BTreeMap::new(),
            secret_headers: secrets,
            allow: Vec::new(),
        };
        for kind in [program, service] {
            let rule = HookRule::new("guard", HookPoint::BeforeCall);
            let config = Config { hooks: vec![HookConfig { rule, kind }], ..Config::default() };
            assert_eq!(config.secrets().redact(&path), "[redacted]");
        }
    }

    #[test]
    fn secret_headers_are_told_from_other_ones() {
        for (name, value, expected) in [
            ("authorization", "Bearer abcdefgh", true),
            ("x-api-key", "abcdefgh", true),
            ("x-team", "f81d4fae7dec11d0a76500a0c91e6bf6", true),
            ("x-team", "search and rescue 2", false),
            ("x-title", "Callsheet", false),
            ("http-referer", "https://callsheet.example/v1", false),
        ] {
            assert_eq!(is_secret(name, value), expected, "{name}: {value}");
        }
    }
}
