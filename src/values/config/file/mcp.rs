//! Reads `[mcp.NAME]` of the configuration file into [`McpConfig`]. Errors are collected in the section.

use std::num::NonZeroU32;

use super::process::{EnvLookup, command, env_value, secret_source, service};
use super::source::Section;
use super::values;
use crate::config::key_table::KeyTable as _;
use crate::config::mcp::{McpConfig, McpLimits, McpShare, McpTransport, OAuthConfig, OAuthGrant};
use crate::config::{ProcessConfig, SecretSource, ToolPattern};

/// Maximum length of a server's name, which is ASCII. The name is the prefix of the names of its tools, which have a
/// maximum length too.
const SERVER_NAME_LENGTH_MAX: usize = 32;

impl McpConfig {
    /// Returns the reason why a server cannot have this name. `None` if it can.
    pub(super) fn name_problem(name: &str) -> Option<&'static str> {
        let is_wrong =
            name.len() > SERVER_NAME_LENGTH_MAX || name.contains("__") || name.ends_with('_');
        let form = "the name of a server has at most 32 characters, no \"__\" in it and no \"_\" at \
                    its end";
        is_wrong.then_some(form)
    }

    pub(super) fn read(section: &Section<'_, '_>, env: EnvLookup<'_>) -> Self {
        let has_url = section.has("url") || section.has("url_env");
        let transport = match (section.has("command"), has_url) {
            (true, true) => {
                section.forbid("url", "command and url exclude each other");
                section.forbid("url_env", "command and url_env exclude each other");
                stdio(section, command(section), env)
            }
            (true, false) => stdio(section, command(section), env),
            (false, true) => http(section, env),
            (false, false) => {
                let message = "is missing: a list of the program and its arguments, or url";
                section.add_error("command", message);
                // A placeholder: the error refuses the configuration.
                stdio(section, Vec::new(), env)
            }
        };
        let mut config = Self::new(transport);
        if let Some(tools) = section.list("tools", values::non_empty_string) {
            config.tools = tools.into_iter().map(ToolPattern::new).collect();
        }
        let exclude = section.list("exclude", values::non_empty_string).unwrap_or_default();
        config.exclude = exclude.into_iter().map(ToolPattern::new).collect();
        config.lock_file = section.resolve_path("callsheet-tools.lock");
        config.read_keys(section);
        config.policy.read_keys(section);
        if section.has("max_timeout") && config.max_timeout < config.timeout {
            section.add_error("max_timeout", "must not be shorter than timeout");
        }
        // The default may be shorter than the configured timeout.
        config.max_timeout = config.max_timeout.max(config.timeout);
        if config.share == McpShare::Host && !section.is_wrong("share") {
            section.forbid("max_connections", "needs share = \"session\"");
        }
        section.report_unknown_keys();
        config
    }
}

impl McpLimits {
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let mut limits = Self::default();
        limits.read_keys(section);
        let messages =
            section.read("max_messages_per_second", |value| values::within(value, (1, 1_000_000)));
        if let Some(messages) = messages.and_then(NonZeroU32::new) {
            limits.max_messages_per_second = messages;
        }
        section.report_unknown_keys();
        limits
    }
}

fn stdio(section: &Section<'_, '_>, command: Vec<String>, env: EnvLookup<'_>) -> McpTransport {
    McpTransport::Stdio { command, process: Box::new(ProcessConfig::read(section, env)) }
}

fn http(section: &Section<'_, '_>, env: EnvLookup<'_>) -> McpTransport {
    if section.has("url") {
        section.forbid("url_env", "url and url_env exclude each other");
    }
    let named = section.read("url_env", |name| env_value(name, env));
    let url = section.read("url", values::non_empty_string).or(named).unwrap_or_default();
    let service = service(section, url, env);
    let oauth =
        section.has("oauth").then(|| Box::new(OAuthConfig::read(&section.table("oauth"), env)));
    let has_authorization = service
        .headers
        .keys()
        .chain(service.secret_headers.keys())
        .any(|name| name.eq_ignore_ascii_case("authorization"));
    if oauth.is_some() && has_authorization {
        section.add_error("oauth", "sets the header authorization, which is also configured");
    }
    McpTransport::Http { service, oauth }
}

impl OAuthConfig {
    fn read(section: &Section<'_, '_>, env: EnvLookup<'_>) -> Self {
        let grants = [("client_credentials", false), ("refresh_token", true)];
        let uses_refresh_token = section.read("grant", |value| values::one_of(value, &grants));
        section.require("grant", &uses_refresh_token);
        let token_url = section.read("token_url", values::non_empty_string);
        section.require("token_url", &token_url);
        let client_id = section.read("client_id", values::non_empty_string);
        section.require("client_id", &client_id);
        let secret_keys = ("client_secret_env", "client_secret_file");
        let client_secret = secret_source(section, secret_keys, env);
        let token_keys = ("refresh_token_env", "refresh_token_file");
        let grant = match uses_refresh_token {
            Some(true) => {
                let token = secret_source(section, token_keys, env);
                if !section.has(token_keys.0) && !section.has(token_keys.1) {
                    section.add_error(token_keys.0, "is missing: it, or refresh_token_file");
                }
                // A placeholder: the error refuses the configuration.
                OAuthGrant::RefreshToken(
                    token.unwrap_or_else(|| SecretSource::Variable(String::new())),
                )
            }
            Some(false) | None => {
                if uses_refresh_token.is_some() {
                    let message = "needs grant = \"refresh_token\"";
                    section.forbid(token_keys.0, message);
                    section.forbid(token_keys.1, message);
                    if !section.has(secret_keys.0) && !section.has(secret_keys.1) {
                        section.add_error(secret_keys.0, "is missing: it, or client_secret_file");
                    }
                }
                OAuthGrant::ClientCredentials
            }
        };
        let scope = section.read("scope", values::non_empty_string);
        section.report_unknown_keys();
        Self {
            grant,
            token_url: token_url.unwrap_or_default(),
            client_id: client_id.unwrap_or_default(),
            client_secret,
            scope,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use super::*;
    use crate::config::{ApprovalPolicy, Config, McpHandshake, McpPin, McpTrust, ToolEffect};

    fn parse(text: &str) -> Result<Config, String> {
        let env = |name: &str| (name == "SET").then(|| "value".to_owned());
        Config::parse(text, "etc/callsheet.toml", &env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_has_all_keys_of_its_table() {
        let text = r#"
[mcp.files]
command = ["./server", "./work"]
tools = ["read_*"]
exclude = ["read_all"]
trust = "annotations"
pin = "require"
instructions = false
start_timeout = "5s"
handshake = "initialize"
timeout = "20m"
effect = "none"
approval = "writes"
max_concurrent = 2
rate = "100/m"
retries = 3
breaker_failures = 4
breaker_open_for = "1m"
max_result_bytes = 1000
env_pass = ["SET"]
[mcp.web]
url = "https://mcp.example.com/mcp"
headers = { x-team = "a" }
secret_headers = { authorization = "SET" }
"#;
        let config = parse(text).unwrap();
        let files = &config.mcp["files"];
        let McpTransport::Stdio { command, process } = &files.transport else { panic!("stdio") };
        assert_eq!(command, &["etc/./server", "./work"]);
        assert_eq!(process.env_pass, ["SET"]);
        assert!(files.tools[0].matches("read_x") && files.exclude[0].matches("read_all"));
        assert_eq!(files.trust, McpTrust::Annotations);
        assert_eq!(files.pin, McpPin::Require);
        assert_eq!(files.lock_file.to_str(), Some("etc/callsheet-tools.lock"));
        let times = (files.start_timeout, files.timeout, files.max_timeout);
        assert_eq!(files.handshake, McpHandshake::Initialize);
        let minutes = Duration::from_secs(20 * 60);
        assert_eq!(times, (Duration::from_secs(5), minutes, minutes));
        assert_eq!(files.policy.effect, Some(ToolEffect::None));
        assert_eq!(files.policy.approval, Some(ApprovalPolicy::WRITES));
        let rate = files.policy.rate.map(|rate| rate.interval());
        assert_eq!(rate, Some(Duration::from_millis(600)));
        assert_eq!((files.policy.retries, files.policy.breaker_failures), (Some(3), Some(4)));
        assert_eq!(files.policy.breaker_open_for, Some(Duration::from_secs(60)));
        assert_eq!(files.policy.max_result_bytes.map(NonZeroUsize::get), Some(1000));
        let McpTransport::Http { service, .. } = &config.mcp["web"].transport else {
            panic!("http")
        };
        assert_eq!(service.url, "https://mcp.example.com/mcp");
        assert_eq!(service.headers["x-team"], "a");
        let expected = SecretSource::Variable("SET".to_owned());
        assert_eq!(service.secret_headers["authorization"], expected);
    }

    #[test]
    fn a_url_may_come_from_a_variable() {
        let config = parse("[mcp.a]\nurl_env = \"SET\"").unwrap();
        let McpTransport::Http { service, .. } = &config.mcp["a"].transport else { panic!("http") };
        assert_eq!(service.url, "value");
    }

    #[test]
    fn zero_connections_are_without_a_limit() {
        let connections = |keys: &str| {
            let text = format!("[mcp.a]\ncommand = [\"a\"]\nshare = \"session\"\n{keys}");
            parse(&text).unwrap().mcp["a"].max_connections.get()
        };
        assert_eq!(connections(""), 100);
        assert_eq!(connections("max_connections = 7"), 7);
        assert_eq!(connections("max_connections = 0"), usize::MAX);
    }

    #[test]
    fn the_limits_of_servers_are_read_and_bounded() {
        let text = "[mcp_limits]\nmax_messages_per_second = 10\nmax_line_bytes = 65536\n\
             max_skipped_bytes = 70000\nmax_questions = 3\nmax_tools = 20\nmax_definition_depth = 30\n\
             max_reconnect_wait = \"5s\"\nmax_log_lines_per_second = 1\n";
        let expected = McpLimits {
            max_messages_per_second: NonZeroU32::new(10).unwrap(),
            max_line_bytes: 65_536,
            max_skipped_bytes: 70_000,
            max_questions: 3,
            max_tools: 20,
            max_definition_depth: 30,
            max_reconnect_wait: Duration::from_secs(5),
            max_log_lines_per_second: 1,
        };
        assert_eq!(parse(text).unwrap().mcp_limits, expected);
        assert_eq!(parse("").unwrap().mcp_limits, McpLimits::default());
        for (text, expected) in [
            (
                "max_messages_per_second = 0",
                "max_messages_per_second: must be from 1 to 1000000, and is 0",
            ),
            (
                "max_line_bytes = 100",
                "max_line_bytes: must be from 65536 to 1073741824, and is 100",
            ),
            ("max_questions = 101", "max_questions: must be from 1 to 100, and is 101"),
            (
                "max_definition_depth = 121",
                "max_definition_depth: must be from 10 to 120, and is 121",
            ),
            ("max_reconnect_wait = \"2h\"", "max_reconnect_wait: must be from \"100ms\" to \"1h\""),
        ] {
            let expected = format!("etc/callsheet.toml:2: mcp_limits.{expected}");
            assert_eq!(parse(&format!("[mcp_limits]\n{text}")).unwrap_err(), expected);
        }
    }

    #[test]
    fn errors_about_a_server_have_line_and_remedy() {
        for (text, expected) in [
            (
                "[mcp.a]",
                "1: mcp.a.command: is missing: a list of the program and its arguments, or url",
            ),
            (
                "[mcp.a]\ncommand = [\"a\"]\nrate = \"10/day\"",
                "3: mcp.a.rate: must be a number of calls per second, minute or hour, such as \"10/s\", \
                 \"100/m\" or \"5000/h\", not \"10/day\"",
            ),
            ("[mcp.a]\ncommand = []", "2: mcp.a.command: must not be empty"),
            (
                "[mcp.a]\ncommand = [\"x\"]\nurl = \"http://a\"",
                "3: mcp.a.url: command and url exclude each other",
            ),
            (
                "[mcp.a__b]\ncommand = [\"x\"]",
                "1: mcp.a__b: the name of a server has at most 32 characters, no \"__\" in it and no \"_\" at its end",
            ),
            (
                "[mcp.a]\nurl = \"http://a\"\nsecret_headers = { x = \"UNSET\" }",
                "3: mcp.a.secret_headers.x: the environment variable UNSET is not set or is blank: set it before the host starts",
            ),
            (
                "[mcp.a]\nurl_env = \"UNSET\"",
                "2: mcp.a.url_env: the environment variable UNSET is not set or is blank: set it before the host starts",
            ),
            (
                "[mcp.a]\nurl = \"http://a\"\n[mcp.a.oauth]\ngrant = \"client_credentials\"\n\
                 token_url = \"http://b\"\nclient_secret_env = \"SET\"",
                "3: mcp.a.oauth.client_id: is missing",
            ),
            (
                "[mcp.a]\nurl = \"http://a\"\nurl_env = \"SET\"",
                "3: mcp.a.url_env: url and url_env exclude each other",
            ),
            ("[mcp.a]\nurl = \"http://a\"\ncwd = \".\"", "3: mcp.a.cwd: unknown key"),
            (
                "[mcp.a]\ncommand = [\"x\"]\nmax_timeout = \"1s\"",
                "3: mcp.a.max_timeout: must not be shorter than timeout",
            ),
            (
                "[mcp.a]\ncommand = [\"x\"]\nmax_connections = 7",
                "3: mcp.a.max_connections: needs share = \"session\"",
            ),
            (
                "[mcp.a]\ncommand = [\"x\"]\nmax_connections = 7\nshare = \"sesion\"",
                "4: mcp.a.share: must be \"host\" or \"session\", not \"sesion\"",
            ),
            (
                "[mcp.a]\ncommand = [\"x\"]\ntrust = \"all\"",
                "3: mcp.a.trust: must be \"none\" or \"annotations\", not \"all\"",
            ),
        ] {
            let expected = format!("etc/callsheet.toml:{expected}");
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
    }
}
