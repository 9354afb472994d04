//! Tools of a server: a process or a service that describes its tools while the host runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::Tool;
use callsheet_values::types::SessionId;

/// Separates the server's name from the tool's name.
pub const SERVER_SEPARATOR: &str = "__";

/// A server of tools. The host connects to it once, for all sessions, or once for each session.
///
/// The list of tools may change at any time. A session keeps the definitions that it read at its
/// first run, until a client asks for a refresh. A later change of the server affects only the outcomes of calls.
#[async_trait]
pub trait ToolServer: Send + Sync + 'static {
    /// Returns the server's name in the configuration. Its tools are offered as `NAME__TOOL`.
    fn name(&self) -> &str;

    /// Returns the beginning of the names of all its tools.
    fn tool_prefix(&self) -> String {
        format!("{}{SERVER_SEPARATOR}", self.name())
    }

    /// Returns the time limit of an attempt to connect.
    fn start_timeout(&self) -> Duration;

    /// Returns an unconnected copy of this server for another host.
    fn for_host(self: Arc<Self>) -> Arc<dyn ToolServer>;

    /// Returns whether each session has its own connection. If so, the host connects the copies that
    /// [`for_session`](Self::for_session) returns, and not the configured server.
    fn is_per_session(&self) -> bool {
        false
    }

    /// Returns the server with a connection for one session, or `None` if all sessions share one. Without `session`
    /// the connection only reads the list of tools.
    fn for_session(&self, _session: Option<&SessionId>) -> Option<Arc<dyn ToolServer>> {
        None
    }

    /// Keeps the server connected, with waits between attempts. Returns only after [`end`](Self::end). Dropping the
    /// future ends the connection. It is called again if it panics. `observer` receives the duration of each
    /// request, and the limits that the server reaches.
    async fn run(&self, observer: ServerObserver);

    /// Sets whether a run of the session is in progress, if the connection is that of one session. Otherwise it may be
    /// ended for another session.
    fn set_in_use(&self, _is_in_use: bool) {}

    /// Ends the connection gracefully. A process ends within seconds, or is killed.
    fn end(&self);

    /// Waits until [`run`](Self::run) has ended.
    async fn ended(&self);

    /// Returns the number of lines of its output that were not messages, and the first of them.
    fn unparsed_lines(&self) -> (u64, Vec<String>) {
        (0, Vec::new())
    }

    /// Returns the present state and its later changes.
    fn status(&self) -> watch::Receiver<Arc<ServerStatus>>;

    /// Returns the key under which the host stores how the server is started. `None` if it stores nothing.
    fn startup_key(&self) -> Option<String> {
        None
    }

    /// Receives what an earlier host has stored: the next start begins with what has worked then.
    fn restore_startup(&self, _stored: &str) {}

    /// Returns what the host stores, once a start has worked.
    fn startup(&self) -> Option<&'static str> {
        None
    }

    /// Makes the tool of a definition, which may be older than the server's present list. Calls of the
    /// tool wait until the first attempt to connect has a result, at most for the time limit of the attempt. Later they
    /// fail at once while the server is not connected.
    ///
    /// # Errors
    /// If the host cannot offer the definition; says why.
    fn make_tool(&self, definition: &ServerToolDefinition) -> Result<Arc<dyn Tool>, String>;
}

/// Receives what a host measures of a server.
pub type ServerObserver = Arc<dyn Fn(ServerObservation<'_>) + Send + Sync>;

/// A measurement of a server.
#[derive(Clone, Copy, Debug)]
pub enum ServerObservation<'a> {
    /// A request to the server has ended.
    Request {
        /// The method of the protocol.
        method: &'a str,
        /// The type of its error, if it failed.
        error_type: Option<&'a str>,
        /// The time until its answer or failure.
        duration: Duration,
    },
    /// The server has reached a limit.
    LimitReached(&'static str),
}

/// The definition of a server's tool: what the server listed, without secrets. A long description is cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServerToolDefinition {
    /// The name that the model reads: `SERVER__TOOL`.
    pub name: String,
    /// The tool's name on its server.
    pub server_name: String,
    /// The description that the model reads.
    pub description: String,
    /// The JSON schema of the arguments.
    pub input_schema: Value,
    /// The JSON schema of structured results.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_schema: Option<Value>,
    /// Claims of the server about the tool's effects.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub annotations: Option<Value>,
    /// True for the tool of the host that reads the server's resources.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub reads_resources: bool,
}

/// The tools of servers that a session keeps, as the journal stores them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenList {
    /// True if the session's agent offers tools by search.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub search: bool,
    /// The definitions, sorted by name.
    pub tools: Vec<ServerToolDefinition>,
    /// The instructions of the servers of these tools, by the servers' names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub instructions: BTreeMap<String, String>,
}

impl FrozenList {
    /// Returns the instructions of the servers as the model reads them, or an empty text.
    pub fn instructions_text(&self) -> String {
        let blocks = self.instructions.iter().map(|(server, text)| {
            let end = format!("[end of the instructions of {server}]");
            // A server that writes the end itself could go on as the system text.
            let text = text.replace(&end, "");
            format!(
                "[instructions of the server {server}, for the use of its tools {server}{SERVER_SEPARATOR}*]\n\
                 {text}\n{end}"
            )
        });
        blocks.collect::<Vec<_>>().join("\n\n")
    }
}

/// The tools of a server at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerListing {
    /// The tools, sorted by name.
    pub tools: Vec<ServerToolDefinition>,
    /// The instructions that the server gives for the use of its tools, without secrets and cut.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub instructions: Option<String>,
    /// The tools that cannot be offered, by their name on the server, with the reason. Also patterns of the
    /// configuration that match no tool.
    #[serde(skip)]
    pub left_out: Vec<(String, String)>,
    /// Offered tools by their name on the server, with the difference from the accepted one, or with a part of the
    /// schema that is not checked.
    #[serde(skip)]
    pub warnings: Vec<(String, String)>,
}

impl ServerListing {
    /// Returns whether the model reads the same of both.
    pub fn offers_same(&self, other: &Self) -> bool {
        self.tools == other.tools && self.instructions == other.instructions
    }
}

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Starting, up or down.
    pub state: ServerState,
    /// The last list that the server gave. It stays while the server is down.
    pub listing: Option<Arc<ServerListing>>,
}

/// The state of the connection to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// No attempt to connect has a result yet.
    Starting,
    /// It is connected and has given its list.
    Up,
    /// It is not connected. The text says why and what to do.
    Down(String),
    /// A session's connection was ended while the session was idle, because another session needed it. The next call
    /// connects it again.
    Released,
}

impl ServerState {
    /// The names of all states.
    pub const ALL: [&str; 4] = ["starting", "up", "down", "released"];

    /// Returns the name of the state.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Down(_) => "down",
            Self::Released => "released",
        }
    }
}
