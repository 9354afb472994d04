//! Collects the secrets of a configuration, and recognises headers that hold one.

use url::Url;

use super::{ApiKey, Config, HookKind, McpTransport, ToolKind};
use crate::types::{Secrets, percent_decoded};

/// Words in the names of headers that hold a secret.
const SECRET_WORDS: [&str; 4] = ["auth", "authorization", "credential", "credentials"];
/// Endings of words in the names of headers that hold a secret.
const SECRET_ENDINGS: [&str; 5] = ["cookie", "key", "password", "secret", "token"];

/// The minimum length of a generated key in a header of a model, in bytes.
const GENERATED_BYTES_MIN: usize = 16;

impl Config {
    /// Returns the secrets that are removed from responses and results of tools: the keys of models, the
    /// token of the host, headers that hold a secret, keys in URLs, the secret variables of tools, MCP servers and
    /// hooks, and those of the process: headers of the collector of traces, and passwords of proxies.
    #[must_use]
    #[doc(hidden)]
    pub fn secrets(&self) -> Secrets {
        let definitions = self.tools.values().filter_map(|tool| tool.definition.as_ref());
        let tool_headers = definitions.clone().filter_map(|definition| match &definition.kind {
            ToolKind::Http(http) => Some(&http.headers),
            ToolKind::Command(_) | ToolKind::Agent(_) => None,
        });
        let server_headers = self.mcp.values().filter_map(|server| match &server.transport {
            McpTransport::Http { headers, .. } => Some(headers),
            McpTransport::Stdio { .. } => None,
        });
        let hook_headers = self.hooks.iter().filter_map(|hook| match &hook.kind {
            HookKind::Http { headers, .. } => Some(headers),
            HookKind::Command { .. } => None,
        });
        let tool_urls = definitions.clone().filter_map(|definition| match &definition.kind {
            ToolKind::Http(http) => Some(&http.url),
            ToolKind::Command(_) | ToolKind::Agent(_) => None,
        });
        let server_urls = self.mcp.values().filter_map(|server| match &server.transport {
            McpTransport::Http { url, .. } => Some(url),
            McpTransport::Stdio { .. } => None,
        });
        let hook_urls = self.hooks.iter().filter_map(|hook| match &hook.kind {
            HookKind::Http { url, .. } => Some(url),
            HookKind::Command { .. } => None,
        });
        let urls = tool_urls.chain(server_urls).chain(hook_urls);
        let service_headers = tool_headers.chain(server_headers).chain(hook_headers).flatten();
        let service_headers = service_headers.filter(|(name, value)| is_named_secret(name, value));
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
        let variable = |name: &str| std::env::var(name).ok();
        let mut values = process_secrets(variable);
        values.extend(variables.filter_map(|name| variable(name)));
        values.extend(urls.flat_map(|url| url_secrets(url)));
        let keys = self.models.values().filter_map(|model| model.api_key.as_ref());
        let keys = keys.chain(&self.host.token).map(ApiKey::reveal);
        let headers = self.models.values().flat_map(|model| &model.headers);
        let headers =
            headers.filter(|(name, value)| is_named_secret(name, value) || is_generated(value));
        let headers = headers.chain(service_headers);
        let headers = headers.flat_map(|(_, value)| with_last_word(value));
        let values = values.iter().flat_map(|value| with_last_word(value));
        Secrets::new(keys.chain(headers).chain(values))
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
fn with_last_word(value: &str) -> [&str; 2] {
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{
        ConfiguredTool, HookConfig, HookRule, HttpConfig, HttpMethod, McpConfig, ProcessConfig,
        ToolOverride,
    };
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
        let transport = McpTransport::Http {
            url: "http://127.0.0.1:9/mcp?token=Abc%2012345".to_owned(),
            headers: BTreeMap::new(),
            secret_headers: BTreeMap::new(),
            allow: Vec::new(),
        };
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
        let transport = McpTransport::Http {
            url: String::new(),
            headers: headers.clone(),
            secret_headers: BTreeMap::new(),
            allow: Vec::new(),
        };
        let mcp = BTreeMap::from([("s".to_owned(), McpConfig::new(transport))]);
        let (url, secret_headers, allow) = (String::new(), BTreeMap::new(), Vec::new());
        let kind = HookKind::Http { url, headers, secret_headers, allow };
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
