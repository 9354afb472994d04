//! One connection to a server: its start, its end, and its list of tools, of which at most `max_tools` in 200 pages
//! are read. An event stream that broke is continued by at most five attempts, the first after 200 ms. A process has
//! 2 s to end after the end of its input, and 2 s more after `SIGTERM`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::HeaderMap;
use parking_lot::Mutex;
use reqwest::Url;
use rmcp::ClientHandler as _;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientRequest, CustomRequest, CustomResult,
    ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorCode, ErrorData,
    FormElicitationCapability, Implementation, ListToolsRequest, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, SubscriptionFilter, UrlElicitationCapability,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, Peer, PeerRequestOptions,
    RequestContext, RoleClient, RunningService, RunningServiceCancellationToken, ServiceError,
    serve_client_with_lifecycle,
};
use rmcp::transport::common::client_side_sse::{ExponentialBackoff, SseRetryPolicy};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, Transport};
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use super::budget::MessageBudget;
use super::credentials::Credentials;
use super::discover::AnsweredTransport;
use super::http::{ObservedHttpClient, redirects};
use super::questions::{ELICIT, decline};
use super::shared::{LogicalConnection, OpenCalls, OpenConnection};
use super::startup::{Failure, FirstRequest, InitialRequests, Startup};
use super::stdio::{ErrorOutput, StdinGuard, StdioTransport, keep_error_output};
use super::transport_error::{HttpFailure, error_chain, without_query};
use crate::defined_input::DefinitionError;
use crate::http::HttpClient;
use crate::http_request::{check_headers, service_client};
use crate::launcher::{ProcessControl, ProcessEnd, Program, StartError};
use callsheet_values::config::McpTransport;
use callsheet_values::types::{Secrets, excerpt};

/// Maximum number of pages of a list that are read.
const PAGES_MAX: usize = 200;

/// Time limit for the end of a process after its input has ended, and again after `SIGTERM`.
const END_GRACE: Duration = Duration::from_secs(2);

/// Maximum wait for the exit status of a process, or for its last output.
const STATUS_GRACE: Duration = Duration::from_millis(300);

/// Number of attempts to continue an event stream that broke, and the first wait. The last wait is 16 times as
/// long.
const STREAM_RETRIES: usize = 5;
const STREAM_RETRY_WAIT: Duration = Duration::from_millis(200);

/// Wait before a subscription that has ended, or could not be opened, is opened again. It doubles with each attempt
/// that fails, up to the longest wait.
const LISTEN_RETRY_WAIT: Duration = Duration::from_secs(1);
const LISTEN_RETRY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Maximum number of characters of a method's name that are sent back.
const METHOD_CHARS_MAX: usize = 200;

/// The way to reach a server, checked.
#[derive(Debug)]
pub(super) enum Endpoint {
    Process { program: Program, arguments: Vec<String> },
    Service { url: Url, client: HttpClient, headers: HeaderMap, credentials: Arc<Credentials> },
}

impl Endpoint {
    /// Checks the program, or the URL and the headers.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn check(
        transport: &McpTransport,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        match transport {
            McpTransport::Stdio { command, process } => {
                let Some((program, arguments)) = command.split_first() else {
                    return Err(DefinitionError::new("command", "must not be empty"));
                };
                let program = Program::check(program, process)
                    .map_err(|error| DefinitionError::new(error.key, error.message))?;
                Ok(Self::Process { program, arguments: arguments.to_vec() })
            }
            McpTransport::Http { service, oauth } => {
                let (url, client) = service_client(service, redirects)?;
                client.client_for(&url).map_err(|error| DefinitionError::new("url", error))?;
                let headers = check_headers(&service.headers, &service.secret_headers)?;
                let credentials = Credentials::new(service, oauth.as_deref(), &url, secrets)?;
                Ok(Self::Service { url, client, headers, credentials: Arc::new(credentials) })
            }
        }
    }

    /// Connects, and returns the request that the server has accepted. Reads secret variables now. Starts a server a
    /// second time, with the other request, if it refused the first one. If the server does not answer `server/discover`
    /// for [`Startup::second_start_delay`], starts it a second time beside the first, and keeps the connection that is ready
    /// first.
    ///
    /// # Errors
    /// The last error.
    pub(super) async fn connect(
        &self,
        shared: &Arc<LogicalConnection>,
        startup: &Startup,
    ) -> Result<(Connection, FirstRequest), ConnectError> {
        let is_answered = AtomicBool::new(false);
        // Boxed: the two futures are large.
        let mut first =
            Box::pin(self.connect_with(shared, startup.opening(startup.first), &is_answered));
        if !startup.may_switch {
            return first.await;
        }
        let silent = async {
            match startup.second_start_delay {
                Some(second_start_delay) => tokio::time::sleep(second_start_delay).await,
                None => std::future::pending().await,
            }
            if is_answered.load(Ordering::Relaxed) {
                std::future::pending().await
            }
        };
        let other = startup.first.other();
        let ignored = AtomicBool::new(false);
        let second = || Box::pin(self.connect_with(shared, startup.opening(other), &ignored));
        tokio::select! {
            connected = &mut first => return match connected {
                Err(error) if startup.switches_after(error.failure) => second().await,
                connected => connected,
            },
            () = silent => {}
        }
        let mut second = second();
        tokio::select! {
            connected = &mut first => match connected {
                Ok(connected) => Ok(connected),
                Err(_) => second.await,
            },
            connected = &mut second => match connected {
                Ok(connected) => Ok(connected),
                Err(_) => first.await,
            },
        }
    }

    async fn connect_with(
        &self,
        shared: &Arc<LogicalConnection>,
        opening: InitialRequests,
        is_answered: &AtomicBool,
    ) -> Result<(Connection, FirstRequest), ConnectError> {
        let handler = Handler { shared: Arc::clone(shared), calls: Arc::default() };
        let opening = (opening, is_answered);
        let connection = match self {
            Self::Process { program, arguments } => {
                connect_process(program, arguments, handler, opening).await?
            }
            Self::Service { url, client, headers, credentials } => {
                connect_service(url, client, headers, credentials, handler, opening).await?
            }
        };
        let accepted = match connection.has_newest_protocol() {
            true => FirstRequest::Discover,
            false => FirstRequest::Initialize,
        };
        Ok((connection, accepted))
    }
}

/// Begins the protocol. Sets the flag when the server has answered `server/discover`.
async fn open<T: Transport<RoleClient> + 'static>(
    handler: Handler,
    transport: T,
    (opening, is_answered): (InitialRequests, &AtomicBool),
) -> Result<RunningService<RoleClient, Handler>, ClientInitializeError> {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    match opening {
        InitialRequests::DiscoverThenInitialize => {
            let transport = AnsweredTransport::discover(transport, handler.get_info()).await?;
            is_answered.store(true, Ordering::Relaxed);
            let legacy_version = Some(ProtocolVersion::LATEST_WITH_INITIALIZE);
            let lifecycle = ClientLifecycleMode::Auto { preferred_versions, legacy_version };
            serve_client_with_lifecycle(handler, transport, lifecycle).await
        }
        InitialRequests::Discover => {
            let lifecycle = ClientLifecycleMode::Discover { preferred_versions };
            serve_client_with_lifecycle(handler, transport, lifecycle).await
        }
        InitialRequests::Initialize => {
            let lifecycle = ClientLifecycleMode::Initialize;
            serve_client_with_lifecycle(handler, transport, lifecycle).await
        }
    }
}

/// Starts a process and connects to it.
async fn connect_process(
    program: &Program,
    arguments: &[String],
    handler: Handler,
    opening: (InitialRequests, &AtomicBool),
) -> Result<Connection, ConnectError> {
    let process =
        program.start(arguments.to_vec()).await.map_err(|error| start_error(program, &error))?;
    let secrets = handler.shared.secrets.clone();
    let error_output = Arc::new(Mutex::new(ErrorOutput::default()));
    handler.shared.started.lock().push(Arc::clone(&error_output));
    let budget = MessageBudget::new(handler.shared.limits.max_messages_per_second);
    let reader = spawn(keep_error_output(process.stderr, budget, Arc::clone(&error_output)));
    let (shared, calls) = (Arc::clone(&handler.shared), Arc::clone(&handler.calls));
    let pipes = (process.stdout, process.stdin);
    let transport = StdioTransport::new(pipes, shared, Arc::clone(&calls));
    let stdin = transport.stdin_guard();
    let control = process.control;
    let process = Process { control, end: None, error_output, reader, secrets };
    match open(handler, transport, opening).await {
        Ok(service) => Ok(Connection::new(service, calls, Some(process))),
        Err(error) => Err(process.start_failure(&error, stdin).await),
    }
}

/// Returns the error of a program that did not start. The system names no file, but often means the interpreter of a
/// script.
fn start_error(program: &Program, error: &StartError) -> ConnectError {
    let mut reason = format!("the program {} did not start: {error}", program.path().display());
    if matches!(error, StartError::Program(_))
        && let Some(interpreter) = program.interpreter()
    {
        reason.push_str(&format!(" (its interpreter is {})", interpreter.display()));
    }
    reason.into()
}

/// Connects to a service.
async fn connect_service(
    url: &Url,
    client: &HttpClient,
    headers: &HeaderMap,
    credentials: &Arc<Credentials>,
    handler: Handler,
    opening: (InitialRequests, &AtomicBool),
) -> Result<Connection, ConnectError> {
    let (shared, calls) = (Arc::clone(&handler.shared), Arc::clone(&handler.calls));
    credentials.read().await?;
    // A token that cannot be had is a clearer reason than that of a request without one.
    credentials.headers().await?;
    let headers = headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let client = client.reachable_client_for(url).await.map_err(|error| error.to_string())?;
    let client = ObservedHttpClient {
        client: client.clone(),
        credentials: Arc::clone(credentials),
        shared,
        calls: Arc::clone(&calls),
        has_no_common_stream: Arc::default(),
    };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(headers)
        // A request is never sent again: the server may have acted.
        .reinit_on_expired_session(false)
        .max_concurrent_requests(1024);
    config.retry_config = stream_retry();
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let service = open(handler, transport, opening).await.map_err(|error| {
        let mut reason = error_chain(&error);
        // Adds the URL: a wrong path is the most common cause.
        if HttpFailure::of(&error).is_some() {
            reason = format!("{} answered {reason}", without_query(url));
        }
        ConnectError { reason, failure: Failure::of(&error) }
    })?;
    Ok(Connection::new(service, calls, None))
}

/// The error of an attempt to connect.
pub(super) struct ConnectError {
    /// Human-readable.
    pub(super) reason: String,
    pub(super) failure: Failure,
}

impl From<String> for ConnectError {
    /// Makes the error of a server that was asked nothing, or has accepted the first request.
    fn from(reason: String) -> Self {
        Self { reason, failure: Failure::Unreachable }
    }
}

/// The attempts to continue an event stream. A call whose stream cannot be continued is lost.
fn stream_retry() -> Arc<dyn SseRetryPolicy> {
    let mut retry = ExponentialBackoff::default();
    (retry.max_times, retry.base_duration) = (Some(STREAM_RETRIES), STREAM_RETRY_WAIT);
    Arc::new(retry)
}

/// A connection to a server. Dropping it kills the server's process.
pub(super) struct Connection {
    handle: OpenConnection,
    cancellation: RunningServiceCancellationToken,
    /// Ends with the connection.
    end: BoxFuture<'static, ()>,
    has_ended: bool,
    process: Option<Process>,
}

/// The process of a server.
struct Process {
    control: ProcessControl,
    /// Its end, if it is known.
    end: Option<ProcessEnd>,
    /// The text that the process wrote to its standard error, and the task that reads it.
    error_output: Arc<Mutex<ErrorOutput>>,
    reader: AbortOnDropHandle<()>,
    /// The secrets of the host.
    secrets: Secrets,
}

impl Connection {
    fn new(
        service: RunningService<RoleClient, Handler>,
        calls: Arc<OpenCalls>,
        process: Option<Process>,
    ) -> Self {
        let handle = OpenConnection { peer: service.peer().clone(), calls };
        let cancellation = service.cancellation_token();
        let end = Box::pin(service.waiting().map(drop));
        Self { handle, cancellation, end, has_ended: false, process }
    }

    /// Returns the handle for calls.
    pub(super) fn handle(&self) -> &OpenConnection {
        &self.handle
    }

    pub(super) fn peer(&self) -> &Peer<RoleClient> {
        &self.handle.peer
    }

    /// Returns whether the server speaks the newest protocol.
    fn has_newest_protocol(&self) -> bool {
        self.peer().peer_info().is_some_and(|info| {
            info.protocol_version.as_str() >= ProtocolVersion::V_2026_07_28.as_str()
        })
    }

    /// Waits until the connection has ended.
    pub(super) async fn ended(&mut self) {
        if self.has_ended {
            return;
        }
        if let Some(process) = &mut self.process {
            tokio::select! {
                () = &mut self.end => {}
                end = process.control.wait() => {
                    process.end = Some(end);
                    // The messages before its end are still read. A descendant may hold the pipe open.
                    let rest = tokio::time::timeout(STATUS_GRACE, &mut self.end).await;
                    self.has_ended = rest.is_ok();
                    return;
                }
            }
        } else {
            (&mut self.end).await;
        }
        self.has_ended = true;
    }

    /// Reports changes of the list of tools, with a server of the newest protocol. Older servers report them
    /// without a subscription. Stops reporting, but never returns, when the server refuses the subscription.
    pub(super) fn follow_list(
        &self,
        shared: Arc<LogicalConnection>,
    ) -> impl Future<Output = ()> + Send + 'static {
        follow_list(self.peer().clone(), self.has_newest_protocol(), shared)
    }

    /// Ends the connection. Closes the input of a process, then sends `SIGTERM`, then kills it, each after
    /// [`END_GRACE`] if it has not ended. Returns a human-readable reason of the end.
    pub(super) async fn close(mut self) -> String {
        // A process that has reached a limit is killed at once.
        let ended_by_host = *self.handle.calls.end_reason.lock();
        let grace = if ended_by_host.is_some() { Duration::ZERO } else { END_GRACE };
        // Ending the service closes the input of a process.
        let _ = tokio::time::timeout(grace, async {
            if !self.has_ended {
                self.cancellation.cancel();
                self.end.await;
            }
        })
        .await;
        let Some(mut process) = self.process.take() else {
            return "the connection has ended".to_owned();
        };
        let mut end = process.end;
        if end.is_none() {
            end = tokio::time::timeout(grace, process.control.wait()).await.ok();
        }
        if end.is_none() {
            process.control.terminate().await;
            end = tokio::time::timeout(grace, process.control.wait()).await.ok();
        }
        let reason = match (ended_by_host, end) {
            (Some(reason), _) => format!("{reason}{}", process.quote()),
            (None, Some(end)) => process.describe(end).await,
            (None, None) => format!("it closed its output and did not end{}", process.quote()),
        };
        process.control.kill().await;
        reason
    }
}

/// Closes a connection that gets no further calls, when its calls have ended. Each of them has a time limit.
pub(super) fn close_when_drained(mut connection: Connection) -> AbortOnDropHandle<()> {
    spawn(async move {
        let calls = connection.handle.calls.tracker.clone();
        calls.close();
        tokio::select! {
            () = calls.wait() => {}
            () = connection.ended() => {}
        }
        connection.close().await;
    })
}

/// The tools as a server describes them.
pub(super) struct RawToolList {
    pub(super) tools: Vec<Value>,
    /// The names of the tools that the library has left out, because of a wrong `x-mcp-header`.
    pub(super) dropped: Vec<String>,
    /// True if the server has more tools than are read.
    pub(super) is_cut: bool,
    /// The instructions of the server, as its first answer has them.
    pub(super) instructions: Option<String>,
    /// True if the server has resources.
    pub(super) has_resources: bool,
}

/// Lists at most `tools_max` tools, page after page.
///
/// # Errors
/// A human-readable reason.
pub(super) async fn list_tools(
    connection: &OpenConnection,
    tools_max: usize,
) -> Result<RawToolList, String> {
    let OpenConnection { peer, calls } = connection;
    let (mut tools, mut dropped) = (Vec::new(), Vec::new());
    let (mut cursor, mut pages) = (None::<String>, 0);
    loop {
        let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
        let request = ListToolsRequest::with_param(params);
        let request = ClientRequest::ListToolsRequest(request);
        let options = PeerRequestOptions::no_options();
        let answer = peer.send_cancellable_request(request, options).await;
        let (answer, id) = match answer {
            Ok(handle) => {
                let id = handle.id.clone();
                (handle.await_response().await, Some(id))
            }
            Err(error) => (Err(error), None),
        };
        let named = id.map(|id| calls.take_tool_names(&id)).unwrap_or_default();
        let answer =
            answer.map_err(|error| format!("tools/list failed: {}", error_chain(&error)))?;
        // One invalid tool must not hide the others, so the answer is read without the library's types.
        let answer = serde_json::to_value(answer).unwrap_or_default();
        let Some(page) = answer["tools"].as_array() else {
            return Err("tools/list failed: the answer has no list of tools".to_owned());
        };
        let is_kept = |name: &String| page.iter().any(|tool| tool["name"] == name.as_str());
        dropped.extend(named.into_iter().filter(|name| !is_kept(name)));
        tools.extend(page.iter().cloned());
        pages += 1;
        let next = answer["nextCursor"].as_str().map(str::to_owned);
        // A repeated cursor would never end.
        if next.is_none() || next == cursor || pages == PAGES_MAX || tools.len() >= tools_max {
            let is_cut = tools.len() > tools_max || (next.is_some() && next != cursor);
            tools.truncate(tools_max);
            let info = peer.peer_info();
            return Ok(RawToolList {
                tools,
                dropped,
                is_cut,
                instructions: info.as_ref().and_then(|info| info.instructions.clone()),
                has_resources: info.is_some_and(|info| info.capabilities.resources.is_some()),
            });
        }
        cursor = next;
    }
}

async fn follow_list(peer: Peer<RoleClient>, is_new: bool, shared: Arc<LogicalConnection>) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    if !is_new {
        return std::future::pending().await;
    }
    let mut wait = LISTEN_RETRY_WAIT;
    loop {
        match peer.listen(filter.clone()).await {
            Ok(mut subscription) => {
                wait = LISTEN_RETRY_WAIT;
                while let Ok(Some(_)) = subscription.next().await {
                    shared.list_changed.notify_one();
                }
            }
            Err(error) if refuses_subscriptions(&error) => break,
            // The service may be busy.
            Err(_) => {}
        }
        // A new list contains the changes that were missed.
        shared.list_changed.notify_one();
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LISTEN_RETRY_WAIT_MAX);
    }
    std::future::pending().await
}

/// Returns whether a server will not accept a subscription later either.
fn refuses_subscriptions(error: &ServiceError) -> bool {
    let is_final = |failure: HttpFailure| {
        (400..500).contains(&failure.status) && !matches!(failure.status, 408 | 429)
    };
    matches!(error, ServiceError::McpError(_)) || HttpFailure::of(error).is_some_and(is_final)
}

impl Process {
    async fn describe(&mut self, end: ProcessEnd) -> String {
        // What it wrote at its end is still read. A descendant may hold the pipe open.
        if !self.reader.is_finished() {
            let _ = tokio::time::timeout(STATUS_GRACE, &mut self.reader).await;
        }
        let what = match end {
            ProcessEnd::Exited(status) => format!("its program ended with exit status {status}"),
            ProcessEnd::Signalled(signal) => format!("signal {signal} ended its program"),
            ProcessEnd::TooManyProcesses => {
                "its program had more processes than max_processes".to_owned()
            }
            ProcessEnd::LauncherDied => "its launcher was killed".to_owned(),
        };
        what + &self.quote()
    }

    /// Returns the error of a process with which no connection was made. Holds its input open until what it wrote is
    /// quoted, because a process whose input ends may report that as its own error.
    async fn start_failure(
        mut self,
        error: &ClientInitializeError,
        stdin: StdinGuard,
    ) -> ConnectError {
        let failure = Failure::of(error);
        let ended = tokio::time::timeout(STATUS_GRACE, self.control.wait()).await.ok();
        let ended = match ended {
            Some(end) => Some(self.describe(end).await),
            None => None,
        };
        drop(stdin);
        let answered = format!("the handshake failed: {}", error_chain(error));
        let reason = match (failure, ended) {
            (Failure::Refused, Some(ended)) => format!("{answered}; {ended}"),
            (Failure::Unreachable | Failure::Broken, Some(ended)) => ended,
            (_, None) => answered + &self.quote(),
        };
        ConnectError { reason, failure }
    }

    /// Quotes the beginning and the end of the standard error.
    fn quote(&self) -> String {
        self.error_output.lock().quote(&self.secrets)
    }
}

/// Receives the notifications and the questions of a server.
#[derive(Clone)]
pub(super) struct Handler {
    shared: Arc<LogicalConnection>,
    calls: Arc<OpenCalls>,
}

impl rmcp::ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let host = Implementation::new("callsheet", env!("CARGO_PKG_VERSION"));
        let elicitation = ElicitationCapability::new()
            .with_form(FormElicitationCapability::new())
            .with_url(UrlElicitationCapability::new());
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(elicitation);
        // Only the handshake sends this version.
        ClientConfig::new(capabilities, host)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.shared.list_changed.notify_one();
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let call = self.calls.of_progress(&progress.progress_token);
        if let Some(call) = call {
            let total = progress.total.map(|total| format!(" of {total}")).unwrap_or_default();
            let numbers = format!("{}{total}", progress.progress);
            call.receive(progress.message.unwrap_or(numbers));
        }
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let params = serde_json::to_value(&request).unwrap_or_default();
        let result = self.ask(&params, &context).await?;
        serde_json::from_value(result)
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }

    /// Receives the requests that the library does not know: also a question with a form that it does not know.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method != ELICIT {
            let method = excerpt(&request.method, METHOD_CHARS_MAX);
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None));
        }
        let params = request.params.unwrap_or_default();
        self.ask(&params, &context).await.map(CustomResult)
    }
}

impl Handler {
    /// Passes a server's question to its call and returns the answer. Declines a question that belongs to no call.
    /// Fails if the question is not valid, or the server withdraws it.
    async fn ask(
        &self,
        params: &Value,
        context: &RequestContext<RoleClient>,
    ) -> Result<Value, ErrorData> {
        let call = match self.calls.resolve_question_call(&context.id) {
            Ok(call) => call,
            Err(reason) => {
                tracing::warn!(reason, "mcp_question_declined");
                return Ok(decline());
            }
        };
        tokio::select! {
            result = call.ask(params, self.shared.limits.max_questions) => match result {
                Some(result) => result
                    .map_err(|error| ErrorData::invalid_params(error.message().to_owned(), None)),
                None => {
                    self.shared.limit_reached("questions");
                    Ok(decline())
                }
            },
            () = context.ct.cancelled() => {
                Err(ErrorData::internal_error("the question was withdrawn", None))
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the task ends with the connection that owns it")]
fn spawn(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}
