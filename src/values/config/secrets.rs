//! Collects the secrets of a configuration, and recognises headers that hold one.

use std::collections::BTreeMap;

use url::Url;

use super::{
    Config, HookKind, JournalEngine, McpTransport, OAuthGrant, ProcessConfig, Proxy, SecretSource,
    ToolKind,
};
use crate::types::{Secrets, percent_decoded};

/// Words in the names of headers that hold a secret.
const SECRET_WORDS: [&str; 4] = ["auth", "authorization", "credential", "credentials"];
/// Endings of words in the names of headers that hold a secret.
const SECRET_ENDINGS: [&str; 5] = ["cookie", "key", "password", "secret", "token"];

/// The minimum length of a generated key in a header of a model, in bytes.
const GENERATED_BYTES_MIN: usize = 16;

impl Config {
    /// Returns the secrets that are removed from responses and results of tools: the keys of models, the
    /// tokens of the host, headers that hold a secret, keys in URLs, the secret variables and files of tools, MCP servers
    /// and hooks, and those of the process: headers of the collector of traces, and passwords of proxies. The host adds
    /// the values that it reads later.
    #[must_use]
    pub fn secrets(&self) -> Secrets {
        let definitions = self.tools.values().filter_map(|tool| tool.definition.as_ref());
        let services = self.mcp.values().filter_map(|server| match &server.transport {
            McpTransport::Http { service, .. } => Some(service),
            McpTransport::Stdio { .. } => None,
        });
        let hook_services = self.hooks.iter().filter_map(|hook| match &hook.kind {
            HookKind::Http(service) => Some(service),
            HookKind::Command { .. } => None,
        });
        let mut found = FoundSecrets::default();
        for service in services.chain(hook_services) {
            found.add_service(&service.url, &service.headers, &service.proxy);
        }
        for definition in definitions {
            match &definition.kind {
                ToolKind::Http(http) => {
                    found.add_service(&http.url, &http.headers, &http.proxy);
                }
                ToolKind::Command(command) => found.add_variables(&command.process),
                ToolKind::Agent(_) => {}
            }
        }
        for server in self.mcp.values() {
            match &server.transport {
                McpTransport::Stdio { process, .. } => found.add_variables(process),
                McpTransport::Http { oauth: Some(oauth), .. } => {
                    found.values.extend(url_secrets(&oauth.token_url));
                }
                McpTransport::Http { oauth: None, .. } => {}
            }
        }
        for hook in &self.hooks {
            if let HookKind::Command { process, .. } = &hook.kind {
                found.add_variables(process);
            }
        }
        for tool in self.tools.values() {
            found.add_proxy(&tool.proxy);
        }
        // One that cannot be read now is not a secret yet.
        found.values.extend(self.secret_sources().filter_map(|source| source.read().ok()));
        if self.journal.engine == JournalEngine::Postgres {
            let url = SecretSource::Variable(self.journal.url_env.clone()).read();
            found.values.extend(url.iter().flat_map(|url| url_secrets(url)));
        }
        found.values.extend(process_secrets(|name| std::env::var(name).ok()));
        let keys = self.models.values().filter_map(|model| model.api_key.as_ref());
        let of_host = self.host.token.iter().chain(&self.host.peer_token);
        let tokens = of_host.chain(self.tokens.iter().map(|token| &token.token));
        found.values.extend(keys.chain(tokens).map(|key| key.reveal().to_owned()));
        let headers = self.models.values().flat_map(|model| &model.headers);
        let headers =
            headers.filter(|(name, value)| is_named_secret(name, value) || is_generated(value));
        found.values.extend(headers.map(|(_, value)| value.clone()));
        self.secrets.add(found.values.iter().flat_map(|value| with_last_word(value)));
        self.secrets.clone()
    }

    /// Returns the places of the secrets of tools, servers and hooks that are read while the host runs.
    pub(super) fn secret_sources(&self) -> impl Iterator<Item = &SecretSource> {
        let definitions = self.tools.values().filter_map(|tool| tool.definition.as_ref());
        let tools = definitions.filter_map(|definition| match &definition.kind {
            ToolKind::Http(http) => Some(&http.secret_headers),
            ToolKind::Command(_) | ToolKind::Agent(_) => None,
        });
        let hooks = self.hooks.iter().filter_map(|hook| match &hook.kind {
            HookKind::Http(service) => Some(&service.secret_headers),
            HookKind::Command { .. } => None,
        });
        let servers = self.mcp.values().filter_map(|server| match &server.transport {
            McpTransport::Http { service, oauth } => Some((service, oauth)),
            McpTransport::Stdio { .. } => None,
        });
        let (services, oauth): (Vec<_>, Vec<_>) = servers.unzip();
        let services = services.into_iter().map(|service| &service.secret_headers);
        let headers = tools.chain(hooks).chain(services).flat_map(BTreeMap::values);
        let oauth = oauth.into_iter().flatten().flat_map(|oauth| {
            let refresh_token = match &oauth.grant {
                OAuthGrant::RefreshToken(source) => Some(source),
                OAuthGrant::ClientCredentials => None,
            };
            oauth.client_secret.iter().chain(refresh_token)
        });
        headers.chain(oauth)
    }
}

#[derive(Default)]
struct FoundSecrets {
    values: Vec<String>,
}

impl FoundSecrets {
    fn add_service(&mut self, url: &str, headers: &BTreeMap<String, String>, proxy: &Proxy) {
        self.values.extend(url_secrets(url));
        let named = headers.iter().filter(|(name, value)| is_named_secret(name, value));
        self.values.extend(named.map(|(_, value)| value.clone()));
        self.add_proxy(proxy);
    }

    fn add_proxy(&mut self, proxy: &Proxy) {
        if let Proxy::Url(url) = proxy {
            self.values.extend(url_secrets(url));
        }
    }

    fn add_variables(&mut self, process: &ProcessConfig) {
        let variables = process.secret_env.values();
        self.values.extend(variables.filter_map(|name| std::env::var(name).ok()));
    }
}

/// Returns the secrets in the variables of the process that its libraries read.
fn process_secrets(variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut secrets = Vec::new();
    // `name=value,name=value`, percent-encoded
    // (https://opentelemetry.io/docs/specs/otel/protocol/exporter/#specifying-headers-via-environment-variables).
    for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
        for header in variable(name).unwrap_or_default().split(',') {
            let Some((header, value)) = header.split_once('=') else { continue };
            if is_named_secret(header.trim(), value.trim()) {
                secrets.extend([value.to_owned(), percent_decoded(value)]);
            }
        }
    }
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        for name in [name.to_owned(), name.to_ascii_lowercase()] {
            // `http://user:password@host:port`.
            let proxy = variable(&name).unwrap_or_default();
            let user = proxy.rsplit_once('@').map(|(user, _)| user).unwrap_or_default();
            if let Some((_, password)) = user.rsplit('/').next().and_then(|it| it.split_once(':')) {
                secrets.extend([password.to_owned(), percent_decoded(password)]);
            }
        }
    }
    secrets
}

/// Returns the keys in a configured URL: its password, and of its path and its query what is named as a secret or looks
/// generated.
fn url_secrets(url: &str) -> Vec<String> {
    let Ok(url) = Url::parse(url) else { return Vec::new() };
    let password = url.password().into_iter().map(percent_decoded);
    let segments = url.path_segments().into_iter().flatten().map(percent_decoded);
    let segments = segments.filter(|segment| is_generated(segment) && !is_made_of_words(segment));
    let values = url
        .query_pairs()
        .filter(|(name, value)| is_named_secret(name, value) || is_generated(value));
    let values = values.map(|(_, value)| value.into_owned());
    password.chain(segments).chain(values).collect()
}

/// Returns the value of a header or variable, and the last word of a value in one line: a service may echo the key
/// without the scheme before it, such as `Bearer`.
pub fn with_last_word(value: &str) -> [&str; 2] {
    let line = value.trim();
    let word = if line.contains('\n') { line } else { line.rsplit(' ').next().unwrap_or_default() };
    [value, word]
}

/// Returns whether the name of a header suggests a secret, and the value has more than lower-case letters. An
/// ordinary word, as in `X-Auth-Type: application`, is no secret.
fn is_named_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    let is_named = words.any(|word| {
        SECRET_WORDS.contains(&word) || SECRET_ENDINGS.iter().any(|end| word.ends_with(end))
    });
    is_named && !value.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Returns whether the value of a header looks like a generated key.
fn is_generated(value: &str) -> bool {
    let has = |test: fn(&u8) -> bool| value.as_bytes().iter().any(test);
    value.len() >= GENERATED_BYTES_MIN
        && !has(u8::is_ascii_whitespace)
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && !value.contains("://")
}

/// Returns whether a text may be the name of a thing, as people write it: letters in one case, not only hexadecimal
/// digits.
fn is_made_of_words(text: &str) -> bool {
    let has = |test: fn(&u8) -> bool| text.bytes().any(|byte| test(&byte));
    let is_hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    !(is_hexadecimal || has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        ConfiguredTool, HookConfig, HookRule, HttpConfig, HttpMethod, McpConfig, ServiceConfig,
        ToolOverride,
    };
    use crate::types::HookPoint;

    #[test]
    fn the_secret_variables_of_hooks_are_secrets() {
        let path = std::env::var("PATH").unwrap();
        let secrets = BTreeMap::from([("SECRET".to_owned(), "PATH".to_owned())]);
        let process = ProcessConfig { secret_env: secrets, ..ProcessConfig::default() };
        let program = HookKind::Command { command: Vec::new(), process: Box::new(process) };
        let source = SecretSource::Variable("PATH".to_owned());
        let service = HookKind::Http(ServiceConfig::new("").with(|new| {
            new.secret_headers = BTreeMap::from([("SECRET".to_owned(), source)]);
        }));
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
            ("x-api-key", "abcdefg7", true),
            ("X-AuthToken", "abcdefg7", true),
            ("Cookie", "session=abcdefgh", true),
            ("x-author", "Ada Lovelace", false),
            ("x-keyspace", "Production", false),
            ("x-auth-type", "application", false),
            ("x-team", "f81d4fae7dec11d0a76500a0c91e6bf6", true),
            ("x-team", "search and rescue 2", false),
            ("x-title", "Callsheet", false),
            ("http-referer", "https://callsheet.example/v1", false),
        ] {
            let is_secret = is_named_secret(name, value) || is_generated(value);
            assert_eq!(is_secret, expected, "{name}: {value}");
        }
    }

    #[test]
    fn keys_in_urls_are_secrets() {
        let found = url_secrets(
            "https://ada:pass%40word@mcp.example.com/s/a1b2c3d4e5f6a7b8/NmUyMzQ1Zm9vYmFyX2Jh/mcp?api_key=QUERYKEY1&format=markdown",
        );
        assert_eq!(found, ["pass@word", "a1b2c3d4e5f6a7b8", "NmUyMzQ1Zm9vYmFyX2Jh", "QUERYKEY1"]);
        let names = "https://mcp.example.com/{project}/my-project-2024-alpha/mcp?limit=20";
        assert_eq!(url_secrets(names), [""; 0]);
        let service = ServiceConfig::new("http://127.0.0.1:9/mcp?token=Abc%2012345");
        let transport = McpTransport::Http { service, oauth: None };
        let mcp = BTreeMap::from([("s".to_owned(), McpConfig::new(transport))]);
        let secrets = Config { mcp, ..Config::default() }.secrets();
        for form in ["Abc 12345", "Abc%2012345"] {
            assert_eq!(secrets.redact(form), "[redacted]");
        }
    }

    #[test]
    fn headers_for_traces_and_passwords_of_proxies_are_secrets() {
        let variable = |name: &str| match name {
            "OTEL_EXPORTER_OTLP_HEADERS" => Some("authorization=Bearer%20abc-12345, x-team=red-1"),
            "https_proxy" => Some("http://user:pass%40word@proxy:3128"),
            "HTTP_PROXY" => Some("http://proxy:3128/"),
            _ => None,
        };
        let found = process_secrets(|name| variable(name).map(str::to_owned));
        let expected = ["Bearer%20abc-12345", "Bearer abc-12345", "pass%40word", "pass@word"];
        assert_eq!(found, expected);
        assert_eq!(with_last_word("Bearer abc-12345\n")[1], "abc-12345");
        // The last word of a key in several lines is no secret.
        let pem = "-----BEGIN KEY-----\nabc\n-----END KEY-----\n";
        assert_eq!(with_last_word(pem), [pem, pem.trim()]);
    }

    #[test]
    fn headers_of_services_with_the_name_of_a_secret_are_secrets() {
        let headers = BTreeMap::from([
            ("Authorization".to_owned(), "Bearer 0123-secret".to_owned()),
            ("X-Team".to_owned(), "search-and-rescue-2".to_owned()),
        ]);
        let mut tool = HttpConfig::new(HttpMethod::Get, "");
        tool.headers.clone_from(&headers);
        let definition = Some(ConfiguredTool::new("", ToolKind::Http(Box::new(tool))));
        let tool = ToolOverride { definition, ..ToolOverride::default() };
        let tools = BTreeMap::from([("t".to_owned(), tool)]);
        let service = ServiceConfig::new("").with(|new| new.headers = headers);
        let transport = McpTransport::Http { service: service.clone(), oauth: None };
        let mcp = BTreeMap::from([("s".to_owned(), McpConfig::new(transport))]);
        let kind = HookKind::Http(service);
        let rule = HookRule::new("guard", HookPoint::BeforeCall);
        let hooks = vec![HookConfig { rule, kind }];
        for config in [
            Config { tools, ..Config::default() },
            Config { mcp, ..Config::default() },
            Config { hooks, ..Config::default() },
        ] {
            let redacted = config.secrets().redact("0123-secret search-and-rescue-2").into_owned();
            assert_eq!(redacted, "[redacted] search-and-rescue-2");
        }
    }
}
