//! Servers of the Model Context Protocol: `[mcp.NAME]`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::key_table::{key_table, named_values};
use super::{ProcessConfig, SecretSource, ServiceConfig, ToolOverride, ToolPattern};

key_table! {
    /// A server of the Model Context Protocol, whose tools the agents may offer as `NAME__TOOL`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct McpConfig(
        /// The way to reach it.
        transport: McpTransport,
    ) {
        /// The tools that may be offered, by their names on the server.
        tools: Vec<ToolPattern> = vec![ToolPattern::new("*")];
        /// The tools that are not offered, although `tools` names them.
        exclude: Vec<ToolPattern> = Vec::new();
        /// The claims of the server about its tools that the host trusts. `none`: every tool may have effects and never
        /// runs twice. `annotations`: the annotations of its tools count.
        trust: McpTrust = McpTrust::None, Any;
        /// The treatment of tools that differ from the accepted ones. `off`: they are not compared. `warn`: the log
        /// reports them. `require`: they are not offered, and their calls are refused.
        pin: McpPin = McpPin::Off, Any;
        /// True if the model reads the server's instructions.
        instructions: bool = true, Any;
        /// The file with the accepted tools, written by `callsheet tools pin`.
        lock_file: PathBuf = PathBuf::from("callsheet-tools.lock");
        /// The sessions that share a connection. `host`: all of them. `session`: each has its own while it is awake.
        share: McpShare = McpShare::Host, Any;
        /// With `share = "session"`: maximum number of sessions that are connected at once. Idle sessions give way.
        max_connections: NonZeroUsize = const { NonZeroUsize::new(100).unwrap() }, Limit;
        /// Time limit of an attempt to connect.
        start_timeout: Duration = Duration::from_secs(30), Positive;
        /// The first request to the server: `server/discover` of the newest protocol, the handshake of earlier ones
        /// (`initialize`), or the one that the server accepted the last time.
        handshake: McpHandshake = McpHandshake::Auto, Any;
        /// Time limit of a call without progress. Each notification of progress restarts it.
        timeout: Duration = Duration::from_secs(60), Positive;
        /// Time limit of a whole call, at least `timeout`.
        max_timeout: Duration = Duration::from_secs(600), Positive;
        /// The policy of all its tools. `[tools.NAME__TOOL]` changes it for one tool.
        policy: ToolOverride = ToolOverride::default();
    }
}

key_table! {
    /// The limits of each server of the Model Context Protocol: `[mcp_limits]`. The metric
    /// `callsheet_mcp_limits_reached_total` counts how often a server reaches one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct McpLimits {
        /// Maximum number of messages a second that are read of those that a server sends without being asked, for each
        /// connection and event stream. As many more are read at once.
        max_messages_per_second: NonZeroU32 = const { NonZeroU32::new(1_000).unwrap() }
            => "whole number from 1 to 1000000";
        /// Maximum size of a line of a program in bytes. A longer one is skipped.
        max_line_bytes: usize = 16 << 20, Within(64 << 10, 1 << 30);
        /// Maximum number of bytes of a longer line that are skipped. If it goes on, or for more than 10 s, the program
        /// is ended and started again.
        max_skipped_bytes: usize = 64 << 20, Within(64 << 10, 1 << 40);
        /// Maximum number of questions of a call. Further ones are declined.
        max_questions: usize = 100, Within(1, 100);
        /// Maximum number of tools that are read of a list. Further ones are left out.
        max_tools: usize = 2_000, Within(1, 100_000);
        /// Maximum number of levels of a tool's definition. A tool with a deeper one is left out.
        max_definition_depth: usize = 100, Within(10, 120);
        /// The longest wait between failed attempts to connect. The first one is 0.1 s, and doubles.
        max_reconnect_wait: Duration = Duration::from_secs(60),
            Within(Duration::from_millis(100), Duration::from_secs(3_600));
        /// Maximum number of log lines a second of each kind that servers cause. A line with the number of the others
        /// follows. Only the binary limits its log.
        max_log_lines_per_second: u32 = 5, Within(1, 10_000);
    }
}

/// The way to reach a server of the Model Context Protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum McpTransport {
    /// A program that speaks over its standard input and output.
    Stdio {
        /// The program and its arguments. There is no shell.
        command: Vec<String>,
        /// The environment of the program.
        process: Box<ProcessConfig>,
    },
    /// A service at a URL.
    Http {
        /// The service.
        service: ServiceConfig,
        /// The way to a token, if the service wants one of OAuth.
        oauth: Option<Box<OAuthConfig>>,
    },
}

/// The way to get access tokens of OAuth 2: `[mcp.NAME.oauth]`. A token is renewed before it ends, and after the server
/// has refused it. No user is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthConfig {
    /// The credentials that the host gives for a token.
    pub grant: OAuthGrant,
    /// The URL of the token endpoint ([RFC 6749, section 3.2](https://www.rfc-editor.org/rfc/rfc6749#section-3.2)).
    pub token_url: String,
    /// The identifier of the host at the authorization server.
    pub client_id: String,
    /// The place of the client's secret. A client with a refresh token may have none.
    pub client_secret: Option<SecretSource>,
    /// The scopes, separated by spaces. `None`: those that the authorization server gives by itself.
    pub scope: Option<String>,
}

/// The credentials that the host gives for an access token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OAuthGrant {
    /// The credentials of the client ([RFC 6749, section 4.4](https://www.rfc-editor.org/rfc/rfc6749#section-4.4)).
    ClientCredentials,
    /// A refresh token ([RFC 6749, section 6](https://www.rfc-editor.org/rfc/rfc6749#section-6)), which a person got
    /// before. If the authorization server replaces it, the new one is written to its file.
    RefreshToken(SecretSource),
}

/// The claims of a server about its tools that the host trusts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McpTrust {
    /// None: every tool counts as one with effects that is not idempotent, unless the configuration says otherwise.
    #[default]
    None,
    /// The annotations of its tools.
    Annotations,
}

/// The first request to a server: that of the newest protocol, or the handshake of earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McpHandshake {
    /// The request that the server accepted the last time; before that, `server/discover`. A server that does not accept
    /// it is started once more with the handshake (`initialize`).
    #[default]
    Auto,
    /// Only `server/discover`, which servers of earlier protocols refuse. The server is not started twice.
    Discover,
    /// Only the handshake. The server is not started twice.
    Initialize,
}

/// The sessions that share a connection to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McpShare {
    /// All sessions of the host share one connection.
    #[default]
    Host,
    /// Each session has its own connection while it is awake. Its first run opens the connection.
    Session,
}

/// The treatment of a server's tools that differ from the accepted ones in the lock file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum McpPin {
    /// They are not compared.
    #[default]
    Off,
    /// They are offered. The log and `callsheet tools list` report the differences.
    Warn,
    /// They are not offered, and calls of a tool that has changed are refused.
    Require,
}

named_values!(McpTrust, [("none", Self::None), ("annotations", Self::Annotations)]);
named_values!(McpPin, [("off", Self::Off), ("warn", Self::Warn), ("require", Self::Require)]);
named_values!(McpShare, [("host", Self::Host), ("session", Self::Session)]);
named_values!(
    McpHandshake,
    [("auto", Self::Auto), ("discover", Self::Discover), ("initialize", Self::Initialize)]
);

impl McpConfig {
    /// Configures a server with default values: all its tools are offered, and none of its claims is trusted.
    pub fn new(transport: McpTransport) -> Self {
        Self::with_defaults(transport)
    }
}

/// Returns the prefix of the names of a server's tools.
pub(super) fn tool_prefix(server: &str) -> String {
    format!("{server}__")
}

crate::types::impl_with!(McpConfig, McpLimits);
