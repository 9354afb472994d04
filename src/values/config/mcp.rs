//! Servers of the Model Context Protocol: `[mcp.NAME]`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::{ProcessConfig, SecretSource, ServiceConfig, ToolOverride, ToolPattern};

/// Default of `max_connections`.
const DEFAULT_MAX_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// Default of `max_messages_per_second`.
const DEFAULT_MESSAGES_PER_SECOND: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

/// A server of the Model Context Protocol, whose tools the agents may offer as `NAME__TOOL`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpConfig {
    /// The way to reach it.
    pub transport: McpTransport,
    /// The tools that may be offered, by their names on the server.
    pub tools: Vec<ToolPattern>,
    /// The tools that are not offered, although `tools` names them.
    pub exclude: Vec<ToolPattern>,
    /// The claims of the server about its tools that the host trusts.
    pub trust: McpTrust,
    /// The treatment of tools that differ from the accepted ones.
    pub pin: McpPin,
    /// True if the model reads the server's instructions.
    pub instructions: bool,
    /// The file with the accepted tools, written by `callsheet tools pin`.
    pub lock_file: PathBuf,
    /// Time limit of an attempt to connect.
    pub start_timeout: Duration,
    /// The first request to the server.
    pub handshake: McpHandshake,
    /// Time limit of a call without progress. Each notification of progress restarts it.
    pub timeout: Duration,
    /// Time limit of a whole call, at least `timeout`.
    pub max_timeout: Duration,
    /// The sessions that share a connection.
    pub share: McpShare,
    /// Maximum number of sessions that are connected at once, with [`McpShare::Session`].
    pub max_connections: NonZeroUsize,
    /// The policy of all its tools. `[tools.NAME__TOOL]` changes it for one tool.
    pub policy: ToolOverride,
}

/// The limits of each server of the Model Context Protocol: `[mcp_limits]`. The metric
/// `callsheet_mcp_limits_reached_total` counts how often a server reaches one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpLimits {
    /// Maximum number of messages a second that are read of those that a server sends without being asked, for each
    /// connection and event stream. As many more are read at once. Default: 1,000.
    pub max_messages_per_second: NonZeroU32,
    /// Maximum size of a line of a program in bytes. A longer one is skipped. Default: 16 MiB.
    pub max_line_bytes: usize,
    /// Maximum number of bytes of a longer line that are skipped. If it goes on, or for more than 10 s, the program is
    /// ended and started again. Default: 64 MiB.
    pub max_skipped_bytes: usize,
    /// Maximum number of questions of a call, at most 100. Further ones are declined. Default: 100.
    pub max_questions: usize,
    /// Maximum number of tools that are read of a list. Default: 2,000.
    pub max_tools: usize,
    /// Maximum number of levels of a tool's definition, at most 120. A tool with a deeper one is left out. Default: 100.
    pub max_definition_depth: usize,
    /// The longest wait between failed attempts to connect. The first one is 0.1 s, and doubles. Default: 1 minute.
    pub max_reconnect_wait: Duration,
    /// Maximum number of log lines a second of each kind that servers cause. A line with the number of the others
    /// follows. Only the binary limits its log. Default: 5.
    pub max_log_lines_per_second: u32,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self {
            max_messages_per_second: DEFAULT_MESSAGES_PER_SECOND,
            max_line_bytes: 16 << 20,
            max_skipped_bytes: 64 << 20,
            max_questions: 100,
            max_tools: 2_000,
            max_definition_depth: 100,
            max_reconnect_wait: Duration::from_secs(60),
            max_log_lines_per_second: 5,
        }
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

impl McpConfig {
    /// Configures a server with default values: all its tools are offered, and none of its claims is trusted.
    pub fn new(transport: McpTransport) -> Self {
        Self {
            transport,
            tools: vec![ToolPattern::new("*")],
            exclude: Vec::new(),
            trust: McpTrust::None,
            pin: McpPin::Off,
            instructions: true,
            lock_file: PathBuf::from("callsheet-tools.lock"),
            start_timeout: Duration::from_secs(30),
            handshake: McpHandshake::Auto,
            timeout: Duration::from_secs(60),
            max_timeout: Duration::from_secs(600),
            share: McpShare::Host,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            policy: ToolOverride::default(),
        }
    }
}

/// Returns the prefix of the names of a server's tools.
pub(super) fn tool_prefix(server: &str) -> String {
    format!("{server}__")
}

crate::types::impl_with!(McpConfig, McpLimits);
