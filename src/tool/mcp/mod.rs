//! Tools of servers of the Model Context Protocol: `[mcp.NAME]`. The only module that names the crate `rmcp`.
//!
//! One connection serves all sessions of the host. It speaks the protocol of 2026-07-28, or the handshake of
//! earlier ones if the server does not know it. Roots, sampling and logging are not offered, and questions of
//! a server are declined.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | [`McpServer`]: keeps the connection, and its list of tools |
//! | `connection.rs` | one connection: its start, its end, the list of tools |
//! | `http.rs` | the HTTP client of a service |
//! | `stdio.rs` | messages over the standard input and output of a process |
//! | `call.rs` | the tool: one call |
//! | `naming.rs` | the names under which tools are offered |
//! | `listing.rs` | the list of tools, from the results of `tools/list` |
//! | `policy.rs` | the policy of a tool, from its annotations |
//! | `result.rs` | the result of `tools/call` as the output of a tool |
//! | `reconnect.rs` | the waits between attempts to connect |

mod call;
mod connection;
mod http;
mod listing;
mod naming;
mod policy;
mod reconnect;
mod result;
mod stdio;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rmcp::model::ProgressToken;
use rmcp::service::{Peer, RoleClient};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::defined_input::DefinitionError;
use super::server::{
    RequestObserver, ServerListing, ServerState, ServerStatus, ToolDescription, ToolServer,
};
use super::{InputSchema, LOCK_FILE, Tool, ToolLock, ToolSpec};
use crate::config::{McpConfig, McpPin, McpTrust};
use crate::types::Secrets;
use call::{McpTool, ProgressReceiver};
use connection::{Connection, Endpoint, list_tools};
use listing::{Pins, ToolFilter, listing};
use reconnect::Reconnect;
use stdio::Noise;

/// A server of the Model Context Protocol.
pub(super) struct McpServer {
    name: String,
    config: McpConfig,
    endpoint: Endpoint,
    filter: ToolFilter,
    pins: Option<Pins>,
    status: watch::Sender<Arc<ServerStatus>>,
    shared: Arc<SharedConnection>,
    closing: CancellationToken,
    /// Cancelled when `run` has returned.
    closed: CancellationToken,
}

/// Returns the schema of structured results, if the server describes one that can be checked.
fn output_schema(definition: &ToolDescription) -> Option<InputSchema> {
    InputSchema::parse(definition.output_schema.clone()?).ok()
}

/// Reads the accepted tools of a server, if they are compared.
fn pins(server: &str, config: &McpConfig) -> Result<Option<Pins>, DefinitionError> {
    let required = match config.pin {
        McpPin::Off => return Ok(None),
        McpPin::Warn => false,
        McpPin::Require => true,
    };
    let lock = ToolLock::read(&config.lock_file);
    let lock = lock.map_err(|error| DefinitionError::new("pin", error))?.unwrap_or_default();
    match lock.server(server) {
        Some(accepted) => Ok(Some(Pins { accepted: accepted.clone(), required })),
        None => {
            let message = format!(
                "{LOCK_FILE} has no tools of this server; callsheet tools pin --accept writes them"
            );
            Err(DefinitionError::new("pin", message))
        }
    }
}

/// The state that all calls of a server share.
pub(super) struct SharedConnection {
    /// The present connection.
    peer: Mutex<Option<Peer<RoleClient>>>,
    /// The reason why there is no connection.
    down: Mutex<String>,
    /// The tools that are refused because they differ from the accepted ones, with the reasons.
    refused: Mutex<HashMap<String, String>>,
    /// The calls that receive progress.
    progress: Mutex<HashMap<ProgressToken, ProgressReceiver>>,
    /// The server's list of tools has changed.
    list_changed: Notify,
    /// The connection may not work any more.
    suspect: Notify,
    noise: Arc<Mutex<Noise>>,
    /// The secret values that the server was given.
    secrets: Mutex<Secrets>,
    /// The observer of the host that runs the server now.
    observer: Mutex<Option<RequestObserver>>,
}

impl SharedConnection {
    /// Waits for the answer to a request, and reports its duration with the type of its error.
    async fn observe<T, E>(
        &self,
        method: &str,
        request: impl Future<Output = Result<T, E>>,
        error_type: impl Fn(&E) -> &'static str,
    ) -> Result<T, E> {
        let began = Instant::now();
        let result = request.await;
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer(method, result.as_ref().err().map(error_type), began.elapsed());
        }
        result
    }
}

impl McpServer {
    /// Checks a configured server: its program, or its URL and headers.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn new(name: &str, config: &McpConfig) -> Result<Arc<Self>, DefinitionError> {
        let status = ServerStatus { state: ServerState::Starting, listing: None };
        let shared = SharedConnection {
            peer: Mutex::default(),
            down: Mutex::new("it is still starting".to_owned()),
            refused: Mutex::default(),
            progress: Mutex::default(),
            list_changed: Notify::new(),
            suspect: Notify::new(),
            noise: Arc::default(),
            secrets: Mutex::default(),
            observer: Mutex::default(),
        };
        Ok(Arc::new(Self {
            name: name.to_owned(),
            endpoint: Endpoint::check(&config.transport)?,
            pins: pins(name, config)?,
            filter: ToolFilter { tools: config.tools.clone(), exclude: config.exclude.clone() },
            config: config.clone(),
            status: watch::Sender::new(Arc::new(status)),
            shared: Arc::new(shared),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }))
    }

    fn set(&self, state: ServerState, listing: Option<Arc<ServerListing>>) {
        self.status.send_modify(|status| {
            let listing = listing.or_else(|| status.listing.clone());
            *status = Arc::new(ServerStatus { state, listing });
        });
    }

    /// Connects, serves calls until the connection ends, and returns the reason of its end. Sets the time of
    /// the connection's start.
    async fn connect_and_serve(&self, connected: &mut Option<Instant>) -> String {
        let limit = self.config.start_timeout;
        let starting = async {
            let connected = self.endpoint.connect(&self.shared);
            let connection = self.shared.observe("initialize", connected, |_| "failed").await?;
            let tools = self.list_tools(connection.peer()).await?;
            Ok::<_, String>((connection, tools))
        };
        let started = tokio::select! {
            started = tokio::time::timeout(limit, starting) => started,
            () = self.closing.cancelled() => return "the host is shutting down".to_owned(),
        };
        let (connection, tools) = match started {
            Ok(Ok(started)) => started,
            Ok(Err(reason)) => return reason,
            Err(_) => {
                let limit = humantime::format_duration(limit);
                return format!(
                    "it did not answer within {limit} (mcp.{}.start_timeout)",
                    self.name
                );
            }
        };
        *connected = Some(Instant::now());
        self.serve(connection, &tools).await
    }

    /// Makes the list of tools, and notes which of them have changed since they were accepted.
    fn listing(&self, tools: &[Value]) -> ServerListing {
        let listing = listing(&self.name, tools, &self.filter, self.pins.as_ref());
        if self.pins.as_ref().is_some_and(|pins| pins.required) {
            *self.shared.refused.lock() = listing.left_out.iter().cloned().collect();
        }
        listing
    }

    async fn list_tools(&self, peer: &Peer<RoleClient>) -> Result<Vec<Value>, String> {
        let list = list_tools(peer);
        self.shared.observe("tools/list", list, |_| "failed").await
    }

    async fn serve(&self, mut connection: Connection, tools: &[Value]) -> String {
        let list = |tools: &[Value]| Some(Arc::new(self.listing(tools)));
        *self.shared.peer.lock() = Some(connection.peer().clone());
        self.set(ServerState::Up, list(tools));
        let changes = connection.follow_list(Arc::clone(&self.shared));
        tokio::pin!(changes);
        let reason = loop {
            tokio::select! {
                () = self.closing.cancelled() => break "the host is shutting down".to_owned(),
                () = connection.ended() => break String::new(),
                () = &mut changes => {}
                () = self.shared.list_changed.notified() => {
                    if let Ok(tools) = self.list_again(connection.peer()).await {
                        self.set(ServerState::Up, list(&tools));
                    }
                }
                () = self.shared.suspect.notified() => {
                    if let Err(error) = self.list_again(connection.peer()).await {
                        break error;
                    }
                }
            }
        };
        "the connection has ended".clone_into(&mut self.shared.down.lock());
        *self.shared.peer.lock() = None;
        let end = connection.close().await;
        if reason.is_empty() { end } else { reason }
    }

    /// Lists the tools of a server that is connected.
    async fn list_again(&self, peer: &Peer<RoleClient>) -> Result<Vec<Value>, String> {
        let listed = self.list_tools(peer);
        let listed = tokio::time::timeout(self.config.start_timeout, listed).await;
        let listed =
            listed.unwrap_or_else(|_| Err("tools/list was not answered in time".to_owned()));
        if let Err(error) = &listed {
            tracing::warn!(server = self.name, error, "mcp_list_failed");
        }
        listed
    }
}

#[async_trait]
impl ToolServer for McpServer {
    fn name(&self) -> &str {
        &self.name
    }

    fn start_timeout(&self) -> Duration {
        self.config.start_timeout
    }

    async fn run(&self, observer: RequestObserver) {
        *self.shared.observer.lock() = Some(observer);
        let _closed = self.closed.clone().drop_guard();
        let mut reconnect = Reconnect::default();
        while !self.closing.is_cancelled() {
            let mut connected = None;
            let reason = self.connect_and_serve(&mut connected).await;
            let wait = reconnect.handle_end(connected.map(|since| since.elapsed()));
            let reason = self.shared.secrets.lock().redact(&reason).into_owned();
            self.shared.down.lock().clone_from(&reason);
            self.set(ServerState::Down(reason), None);
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn close(&self) {
        self.closing.cancel();
        self.closed.cancelled().await;
    }

    fn noise(&self) -> (u64, Vec<String>) {
        let noise = self.shared.noise.lock();
        (noise.lines, noise.first.clone())
    }

    fn status(&self) -> watch::Receiver<Arc<ServerStatus>> {
        self.status.subscribe()
    }

    fn make_tool(&self, definition: &ToolDescription) -> Result<Arc<dyn Tool>, String> {
        let schema = InputSchema::parse(definition.input_schema.clone());
        let schema = schema.map_err(|error| error.to_string())?;
        let mut spec = ToolSpec::with_schema(&definition.name, &definition.description, schema);
        if self.config.trust == McpTrust::Annotations {
            policy::apply_annotations(&mut spec, definition.annotations.as_ref());
        }
        super::overrides::apply_override(&mut spec, &self.config.policy);
        spec.timeout = Some(self.config.max_timeout);
        Ok(Arc::new(McpTool {
            spec,
            server: self.name.clone(),
            tool: definition.server_name.clone(),
            output_schema: output_schema(definition),
            timeout: self.config.timeout,
            shared: Arc::clone(&self.shared),
        }))
    }
}
