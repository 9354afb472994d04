//! Tools of servers of the Model Context Protocol: `[mcp.NAME]`. The only module that names the crate `rmcp`.
//!
//! One connection serves all sessions of the host, or each session has its own (`share`). It speaks the protocol of
//! 2026-07-28, or the handshake of earlier ones if the server does not know it. Roots, sampling and logging are not
//! offered, prompts of a server are not read, and there is no OAuth. A question of a server belongs to
//! the call during which it is asked.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | [`McpServer`]: keeps the connection, and its list of tools: read again after `list_changed` |
//! | `shared.rs` | what the calls of a connection share; the connections of sessions (`share`, `max_connections`) |
//! | `connection.rs` | one connection: its start, its end, the list of tools |
//! | `startup.rs` | the first request to a server (`handshake`), and what is remembered of it |
//! | `discover.rs` | the question of the newest protocol, under the host's own time limit |
//! | `http.rs` | the transport to a server at a URL |
//! | `http_post.rs` | a request whose answer the host reads itself |
//! | `stdio.rs` | messages over the standard input and output of a process |
//! | `budget.rs` | the budget of a connection for messages (rate limit) |
//! | `transport_error.rs` | the errors of the library: their causes and texts |
//! | `call.rs` | the tool: one call, its time limit and progress, and its outcome if the server crashes or the connection ends (`server_down`) |
//! | `server_call.rs` | a call whose answer is awaited, and the state of its writing |
//! | `questions.rs` | questions of a server (elicitation) |
//! | `naming.rs` | the names under which tools are offered |
//! | `listing.rs` | the list of tools, from the results of `tools/list` |
//! | `policy.rs` | the policy of a tool, from its annotations (`trust`, `readOnlyHint`, `destructiveHint`) |
//! | `resources.rs` | the tool of the host that lists and reads a server's resources |
//! | `result.rs` | the result of `tools/call` as the output of a tool; `structuredContent` against `outputSchema` |
//! | `value_in_text.rs` | whether the content of a result holds its structured value |
//! | `incoming.rs` | reading a server's message, also one that is nearly JSON |
//! | `reconnect.rs` | reconnect: backoff between attempts to connect |
//! | `list_pause.rs` | the waits between readings of a list that changes |

mod budget;
mod call;
mod connection;
mod credentials;
mod discover;
mod http;
mod http_post;
mod incoming;
mod list_pause;
mod listing;
mod naming;
mod oauth;
mod policy;
mod questions;
mod reconnect;
mod resources;
mod result;
mod server_call;
mod shared;
mod startup;
mod stdio;
mod transport_error;
mod value_in_text;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::defined_input::DefinitionError;
use super::server::{
    ServerListing, ServerObserver, ServerState, ServerStatus, ServerToolDefinition, ToolServer,
};
use super::{LOCK_FILE, ParsedSchema, Tool, ToolLock, ToolSpec};
use call::McpTool;
use callsheet_values::config::{McpConfig, McpLimits, McpPin, McpShare, McpTransport, McpTrust};
use callsheet_values::types::{Secrets, SessionId, excerpt, sha256_hex};
use connection::{ConnectError, Connection, Endpoint, RawToolList, close_when_drained, list_tools};
use list_pause::ListPause;
use listing::{
    Pins, ToolFilter, add_instructions, is_deeper, listing, refused_tools, shorten_names,
    unmatched_patterns, wrong_headers,
};
use reconnect::Reconnect;
use shared::{
    LogicalConnection, OpenCalls, OpenConnection, ServerConnection, SessionConnections,
    ToolConnection,
};
use startup::{FirstRequest, StartupMemory};
use transport_error::SESSION_LOST;

/// The reason of the end if the host ends the server before it is connected.
const CLOSING: &str = "the host is shutting down";

/// Maximum wait for the end of a program whose list of tools could not be read.
const END_WAIT: Duration = Duration::from_millis(300);

/// Maximum number of characters of the reason of the end of a connection.
const REASON_CHARS_MAX: usize = 4_000;

/// Maximum number of characters of a reason in the log.
const LOGGED_REASON_CHARS_MAX: usize = 500;

/// A server of the Model Context Protocol, or one session's connection to it.
pub(super) struct McpServer {
    definition: Arc<Definition>,
    status: watch::Sender<Arc<ServerStatus>>,
    shared: Arc<LogicalConnection>,
    /// The connections of sessions, with `share = "session"`.
    sessions: Arc<SessionConnections>,
    /// The session that it connects, if it is such a connection.
    session: Option<SessionId>,
    closing: CancellationToken,
    /// Cancelled when `run` has returned or panicked. After a panic, the next `run` sets another one.
    closed: Mutex<CancellationToken>,
}

/// The configuration of a server, checked.
struct Definition {
    name: String,
    config: McpConfig,
    limits: McpLimits,
    endpoint: Endpoint,
    filter: ToolFilter,
    pins: Option<Pins>,
    /// The first request of the next attempt to connect. Connections of sessions share it.
    startup: Mutex<StartupMemory>,
    /// The secrets of the host.
    secrets: Secrets,
}

/// The end of a connection.
struct ConnectionEnd {
    /// For people, and for the model whose call is not sent.
    reason: String,
    /// The connection, if its open calls may still be answered.
    draining: Option<Connection>,
    /// The calls of the connection, if the server has lost its session. They wait for the next connection.
    lost: Option<Arc<OpenCalls>>,
}

impl From<String> for ConnectionEnd {
    fn from(reason: String) -> Self {
        Self { reason, draining: None, lost: None }
    }
}

/// Returns the schema of structured results, if the server describes one that can be checked.
fn output_schema(definition: &ServerToolDefinition) -> Option<ParsedSchema> {
    ParsedSchema::parse(definition.output_schema.clone()?).ok()
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
        Some(accepted) => {
            let instructions = lock.instructions(server).map(str::to_owned);
            Ok(Some(Pins { accepted: accepted.clone(), instructions, required }))
        }
        None => {
            let message = format!(
                "{LOCK_FILE} has no tools of this server; callsheet tools pin --accept writes them"
            );
            Err(DefinitionError::new("pin", message))
        }
    }
}

impl McpServer {
    /// Checks a configured server: its program, or its URL and headers.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn new(
        name: &str,
        config: &McpConfig,
        limits: McpLimits,
        secrets: &Secrets,
    ) -> Result<Arc<Self>, DefinitionError> {
        let definition = Definition {
            name: name.to_owned(),
            endpoint: Endpoint::check(&config.transport, secrets)?,
            pins: pins(name, config)?,
            filter: ToolFilter { tools: config.tools.clone(), exclude: config.exclude.clone() },
            config: config.clone(),
            limits,
            startup: Mutex::default(),
            secrets: secrets.clone(),
        };
        Ok(Arc::new(Self::for_all(Arc::new(definition))))
    }

    /// Creates the server of a host.
    fn for_all(definition: Arc<Definition>) -> Self {
        let sessions = SessionConnections::new(definition.config.max_connections);
        Self::unconnected(definition, Arc::new(sessions), None)
    }

    fn unconnected(
        definition: Arc<Definition>,
        sessions: Arc<SessionConnections>,
        session: Option<SessionId>,
    ) -> Self {
        let status = ServerStatus { state: ServerState::Starting, listing: None };
        let (limits, secrets) = (definition.limits, definition.secrets.clone());
        let shared = LogicalConnection { limits, secrets, ..LogicalConnection::default() };
        Self {
            definition,
            status: watch::Sender::new(Arc::new(status)),
            shared: Arc::new(shared),
            sessions,
            session,
            closing: CancellationToken::new(),
            closed: Mutex::default(),
        }
    }

    fn set_status(&self, state: ServerState, listing: Option<Arc<ServerListing>>) {
        self.status.send_modify(|status| {
            let listing = listing.or_else(|| status.listing.clone());
            *status = Arc::new(ServerStatus { state, listing });
        });
    }

    /// Connects, serves calls until the connection ends, and returns its end. Sets the time of the connection's
    /// start.
    async fn connect_and_serve(
        &self,
        stop: &CancellationToken,
        connected: &mut Option<Instant>,
    ) -> ConnectionEnd {
        let Definition { name, config, endpoint, startup, .. } = &*self.definition;
        let limit = config.start_timeout;
        let plan = startup.lock().plan(config.handshake, limit);
        self.shared.started.lock().clear();
        let starting = async {
            let connected = endpoint.connect(&self.shared, &plan);
            let (connection, accepted) =
                self.shared.observe("initialize", connected, |_| "failed").await?;
            let tools = match self.list_tools(connection.handle()).await {
                Ok(tools) => tools,
                Err(reason) => return Err(self.list_failure(connection, reason).await.into()),
            };
            startup.lock().handle_connected(accepted);
            Ok::<_, ConnectError>((connection, tools))
        };
        let started = tokio::select! {
            started = tokio::time::timeout(limit, starting) => started,
            () = stop.cancelled() => return CLOSING.to_owned().into(),
        };
        let (connection, tools) = match started {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => {
                startup.lock().handle_failure(plan.first, Some(error.failure));
                return error.reason.into();
            }
            Err(_) => {
                startup.lock().handle_failure(plan.first, None);
                let limit = humantime::format_duration(limit);
                let started = std::mem::take(&mut *self.shared.started.lock());
                let secrets = &self.definition.secrets;
                let quotes = started.iter().map(|output| output.lock().quote(secrets));
                let quote = quotes.into_iter().find(|quote| !quote.is_empty()).unwrap_or_default();
                return format!(
                    "it did not answer within {limit} (mcp.{name}.start_timeout){quote}"
                )
                .into();
            }
        };
        *connected = Some(Instant::now());
        self.serve(stop, connection, &tools).await
    }

    /// Makes the list of tools. With `pin = "require"`, calls of those that it leaves out are refused from now on.
    fn listing(&self, listed: &RawToolList) -> ServerListing {
        let Definition { name, filter, pins, config, limits, .. } = &*self.definition;
        let depth_max = limits.max_definition_depth;
        if listed.tools.iter().any(|tool| is_deeper(tool, depth_max)) {
            self.shared.limit_reached("definition_depth");
        }
        let mut listing = listing(name, &listed.tools, filter, depth_max, pins.as_ref());
        listing.left_out.extend(wrong_headers(&listed.dropped, filter));
        if pins.as_ref().is_some_and(|pins| pins.required) {
            *self.shared.refused.lock() = refused_tools(&listing);
        }
        if config.instructions {
            add_instructions(&mut listing, listed.instructions.as_deref(), pins.as_ref());
        }
        shorten_names(&mut listing);
        listing.left_out.extend(unmatched_patterns(&listed.tools, &listed.dropped, filter));
        if listed.is_cut {
            self.shared.limit_reached("tools");
            let read = listed.tools.len();
            let reason = format!("the list goes on, but only its first {read} tools are read");
            listing.left_out.push(("(more tools)".to_owned(), reason));
        }
        listing
    }

    /// Lists the tools. Replaces secrets, which the server may repeat in a description.
    async fn list_tools(&self, connection: &OpenConnection) -> Result<RawToolList, String> {
        let list = list_tools(connection, self.definition.limits.max_tools);
        let mut listed = self.shared.observe("tools/list", list, |_| "failed").await?;
        let secrets = &self.definition.secrets;
        for tool in &mut listed.tools {
            if let Some(redacted) = secrets.redact_json(tool) {
                *tool = redacted;
            }
        }
        listed.dropped.iter_mut().for_each(|name| secrets.redact_in_place(name));
        listed.instructions.iter_mut().for_each(|text| secrets.redact_in_place(text));
        if listed.has_resources {
            resources::add_tool(&self.definition.name, &mut listed.tools);
        }
        Ok(listed)
    }

    /// Returns the reason of a list that failed, with the end of the program if it has ended.
    async fn list_failure(&self, mut connection: Connection, reason: String) -> String {
        let is_program = matches!(self.definition.config.transport, McpTransport::Stdio { .. });
        let ended = tokio::time::timeout(END_WAIT, connection.ended());
        if is_program && ended.await.is_ok() {
            return format!("{reason}; {}", connection.close().await);
        }
        reason
    }

    /// Serves calls until the connection ends, or does not work any more, or the host ends it.
    async fn serve(
        &self,
        stop: &CancellationToken,
        mut connection: Connection,
        tools: &RawToolList,
    ) -> ConnectionEnd {
        let listing = Arc::new(self.listing(tools));
        let open = connection.handle().clone();
        self.shared.open.send_replace(Some(open.clone()));
        self.shared.is_restarting.send_replace(false);
        self.set_status(ServerState::Up, Some(Arc::clone(&listing)));
        let failed = {
            let changes = connection.follow_list(Arc::clone(&self.shared));
            let listed = self.keep_listed(&open, listing);
            tokio::pin!(changes, listed);
            loop {
                tokio::select! {
                    () = stop.cancelled() => break None,
                    () = connection.ended() => break None,
                    () = open.calls.ended_by_host.cancelled() => break None,
                    () = open.calls.session_lost.cancelled() => {
                        break Some(SESSION_LOST.to_owned());
                    }
                    () = &mut changes => {}
                    reason = &mut listed => break Some(reason),
                }
            }
        };
        let reason = *open.calls.end_reason.lock();
        reason.unwrap_or("the connection has ended").clone_into(&mut self.shared.down.lock());
        let lost = open.calls.session_lost.is_cancelled().then(|| Arc::clone(&open.calls));
        if lost.is_some() {
            self.set_status(ServerState::Starting, None);
        }
        self.shared.is_restarting.send_replace(!stop.is_cancelled());
        self.shared.open.send_replace(None);
        match failed {
            // Calls that were sent may still be answered, whatever has happened to the list.
            Some(reason) => ConnectionEnd { reason, draining: Some(connection), lost },
            None => connection.close().await.into(),
        }
    }

    /// Reads the list of tools again when the server reports a change, and, only as a check, when the connection may
    /// not work any more. Returns the reason if the check fails.
    async fn keep_listed(&self, open: &OpenConnection, mut listing: Arc<ServerListing>) -> String {
        let mut pause = ListPause::default();
        let mut next = Instant::now();
        loop {
            let changed = async move {
                // A report that comes during the wait is kept.
                tokio::time::sleep_until(next).await;
                self.shared.list_changed.notified().await;
            };
            tokio::select! {
                () = changed => {
                    let quiet = next.elapsed();
                    let read = self.list_again(open).await;
                    if read.is_err() {
                        // The change has yet to be read.
                        self.shared.list_changed.notify_one();
                    }
                    let read = read.map(|tools| Arc::new(self.listing(&tools)));
                    let new = read.ok().filter(|read| *read != listing);
                    next = Instant::now() + pause.handle_list(quiet, new.is_some());
                    if let Some(new) = new {
                        self.set_status(ServerState::Up, Some(Arc::clone(&new)));
                        listing = new;
                    }
                }
                () = open.calls.check_requested.notified() => {
                    if let Err(reason) = self.list_again(open).await {
                        return reason;
                    }
                }
            }
        }
    }

    /// Lists the tools of a server that is connected.
    async fn list_again(&self, connection: &OpenConnection) -> Result<RawToolList, String> {
        let listed = self.list_tools(connection);
        let limit = self.definition.config.start_timeout;
        let listed = tokio::time::timeout(limit, listed).await;
        let listed =
            listed.unwrap_or_else(|_| Err("tools/list was not answered in time".to_owned()));
        listed.inspect_err(|error| {
            // A longer line would be left out of the log.
            let error = excerpt(&self.redacted_reason(error), LOGGED_REASON_CHARS_MAX);
            tracing::warn!(server = self.definition.name, error, "mcp_list_failed");
        })
    }

    /// Returns a reason without secrets, and cut.
    fn redacted_reason(&self, reason: &str) -> String {
        excerpt(&self.definition.secrets.redact_excerpts(reason), REASON_CHARS_MAX)
    }

    /// Waits until one more session may be connected: another one that is idle gives way. A server that sessions share
    /// has no limit.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        let Definition { name, config, .. } = &*self.definition;
        if config.share == McpShare::Host {
            return None;
        }
        let permits = &self.sessions.permits;
        if let Ok(permit) = permits.try_acquire() {
            return Some(permit);
        }
        if self.sessions.release_longest_idle() {
            // The semaphore is never closed.
            return permits.acquire().await.ok();
        }
        let most = config.max_connections;
        let reason = format!("{most} sessions are connected to it (mcp.{name}.max_connections)");
        self.shared.down.lock().clone_from(&reason);
        self.set_status(ServerState::Down(reason), None);
        self.sessions.wait_for_permit().await
    }

    /// Keeps the server connected until it is to stop.
    ///
    /// Boxed, because the `where` clauses of an `async_trait` method keep the compiler from caching what it proves
    /// about the futures in it.
    fn keep_connected<'a>(&'a self, stop: &'a CancellationToken) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let wait_max = self.definition.limits.max_reconnect_wait;
            let mut reconnect = Reconnect::default();
            let mut draining: Vec<AbortOnDropHandle<()>> = Vec::new();
            while !stop.is_cancelled() {
                let mut connected = None;
                let end = self.connect_and_serve(stop, &mut connected).await;
                if stop.is_cancelled() {
                    break;
                }
                if connected.is_none() {
                    self.shared.is_restarting.send_replace(false);
                }
                let reason = self.redacted_reason(&end.reason);
                self.shared.down.lock().clone_from(&reason);
                let wait = reconnect.handle_end(connected.map(|since| since.elapsed()), wait_max);
                if wait == wait_max {
                    self.shared.limit_reached("reconnects");
                }
                match &end.lost {
                    Some(_) => tracing::info!(server = self.definition.name, "mcp_session_lost"),
                    None => self.set_status(ServerState::Down(reason), None),
                }
                draining.retain(|connection| !connection.is_finished());
                draining.extend(end.draining.map(close_when_drained));
                // A session in which calls were answered was no failure. The answers may still come.
                let answered = async {
                    match &end.lost {
                        Some(calls) => calls.answered.cancelled().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(wait) => {}
                    () = answered => reconnect = Reconnect::default(),
                }
            }
            self.shared.is_restarting.send_replace(false);
        })
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            self.sessions.remove(session, &self.shared);
        }
    }
}

#[async_trait]
impl ToolServer for McpServer {
    fn name(&self) -> &str {
        &self.definition.name
    }

    fn start_timeout(&self) -> Duration {
        self.definition.config.start_timeout
    }

    fn for_host(self: Arc<Self>) -> Arc<dyn ToolServer> {
        Arc::new(Self::for_all(Arc::clone(&self.definition)))
    }

    fn is_per_session(&self) -> bool {
        self.definition.config.share == McpShare::Session
    }

    fn for_session(&self, session: Option<&SessionId>) -> Option<Arc<dyn ToolServer>> {
        if !self.is_per_session() {
            return None;
        }
        let (definition, sessions) = (Arc::clone(&self.definition), Arc::clone(&self.sessions));
        let server = Self::unconnected(definition, sessions, session.cloned());
        if let Some(session) = session {
            self.sessions.insert(session, &server.shared, server.status.clone());
        }
        Some(Arc::new(server))
    }

    async fn run(&self, observer: ServerObserver) {
        *self.shared.observer.lock() = Some(observer);
        let closed = {
            let mut closed = self.closed.lock();
            if closed.is_cancelled() {
                *closed = CancellationToken::new();
            }
            closed.clone()
        };
        let _closed = closed.drop_guard();
        let usage = &self.shared.usage;
        while !self.closing.is_cancelled() {
            let permit = tokio::select! {
                permit = self.permit() => permit,
                () = self.closing.cancelled() => return,
            };
            usage.holds_permit.store(true, Ordering::Relaxed);
            let stop = self.closing.child_token();
            let mut kept = self.keep_connected(&stop);
            tokio::select! {
                () = &mut kept => return,
                () = usage.release_requested.notified() => stop.cancel(),
            }
            kept.await;
            usage.holds_permit.store(false, Ordering::Relaxed);
            drop(permit);
            self.set_status(ServerState::Released, None);
            tokio::select! {
                () = usage.needed.notified() => {}
                () = self.closing.cancelled() => return,
            }
            self.set_status(ServerState::Starting, None);
            // Calls that came at the same time have notified it too.
            let _ = usage.needed.notified().now_or_never();
        }
    }

    fn set_in_use(&self, is_in_use: bool) {
        if self.session.is_some() {
            self.sessions.set_in_use(&self.shared.usage, is_in_use);
        }
    }

    fn end(&self) {
        self.closing.cancel();
    }

    async fn ended(&self) {
        let closed = self.closed.lock().clone();
        closed.cancelled().await;
    }

    fn unparsed_lines(&self) -> (u64, Vec<String>) {
        let unparsed_lines = self.shared.unparsed_lines.lock();
        (unparsed_lines.lines, unparsed_lines.first.clone())
    }

    fn status(&self) -> watch::Receiver<Arc<ServerStatus>> {
        self.status.subscribe()
    }

    fn startup_key(&self) -> Option<String> {
        let target = match &self.definition.config.transport {
            McpTransport::Stdio { command, .. } => serde_json::json!(command).to_string(),
            McpTransport::Http { service, .. } => service.url.clone(),
        };
        Some(sha256_hex(format!("{} {target}", env!("CARGO_PKG_VERSION"))))
    }

    fn restore_startup(&self, stored: &str) {
        let accepted = FirstRequest::parse(stored);
        accepted.inspect(|accepted| self.definition.startup.lock().handle_connected(*accepted));
    }

    fn startup(&self) -> Option<&'static str> {
        self.definition.startup.lock().worked().map(FirstRequest::as_str)
    }

    fn make_tool(&self, definition: &ServerToolDefinition) -> Result<Arc<dyn Tool>, String> {
        let schema = ParsedSchema::parse(definition.input_schema.clone());
        let schema = schema.map_err(|error| error.to_string())?;
        let mut spec = ToolSpec::with_schema(&definition.name, &definition.description, schema);
        let config = &self.definition.config;
        if definition.reads_resources {
            spec = spec.pure();
        } else if config.trust == McpTrust::Annotations {
            policy::apply_annotations(&mut spec, definition.annotations.as_ref());
        }
        super::overrides::apply_override(&mut spec, &config.policy);
        spec.timeout = Some(config.max_timeout);
        spec.waits_for_server = true;
        Ok(Arc::new(McpTool {
            spec,
            server: self.definition.name.clone(),
            tool: definition.server_name.clone(),
            reads_resources: definition.reads_resources,
            output_schema: output_schema(definition),
            start_timeout: config.start_timeout,
            timeout: config.timeout,
            connection: match config.share {
                McpShare::Host => {
                    let (shared, status) = (Arc::clone(&self.shared), self.status.clone());
                    ToolConnection::Shared(ServerConnection { shared, status })
                }
                McpShare::Session => ToolConnection::PerSession(Arc::clone(&self.sessions)),
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_target_of_log_lines_is_this_module() {
        assert_eq!(module_path!().strip_suffix("::tests"), Some(crate::MCP_MODULE));
    }
}
