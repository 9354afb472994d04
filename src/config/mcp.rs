//! Servers of the Model Context Protocol: `[mcp.NAME]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::{ProcessConfig, SecretSource, ServiceConfig, ToolOverride, ToolPattern};

/// Default of `max_connections`.
const DEFAULT_MAX_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(100).unwrap();

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

/// The way to reach a server of the Model Context Protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

crate::types::impl_with!(McpConfig);
