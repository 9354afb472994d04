//! The client of one model: sends requests and decodes responses.
//!
//! Works without a host: [`ModelClient::complete`] returns one whole response, and
//! [`ModelClient::stream`] returns its deltas. Each call makes one exchange and never retries; the
//! turn decides about retries. Concurrency limits and circuit breakers belong to the host, so a
//! client alone has neither. Redirects are not followed, and a service on this machine is asked without a proxy.

mod connection;
mod deadline;
mod error;
mod exchange;
mod fake;
mod key_file;
mod response;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Request, RequestBuilder, Url};

pub use callsheet_wire::ModelRequest;
pub use fake::FakeModel;
pub use response::{ModelResponse, RequestedCall};
pub use source::{ModelReply, ModelSource, ModelStream};

use callsheet_tools::tls;
use callsheet_values::config::{ModelConfig, SecretSource};
use callsheet_values::types::TraceContext;
use callsheet_values::types::{InvalidValue, ProviderError, Secrets, ToolProtocol};
use callsheet_wire::response::{DeltaRedactor, ExchangeEnd, ResponseReader};
use callsheet_wire::{
    AliasRenderer, CallReader, Delta, Framing, HeadCache, KeyHeader, PayloadTemplates,
    PromptChange, PromptRenderer, RequestCache, ToolChoice, Wire, WireFormat as _,
};
use connection::UsedConnections;
pub(super) use deadline::HostLagClock;
use deadline::TimeLimits;
pub(super) use exchange::ModelExchange;
use exchange::{Exchange, SentTools, ServiceExchange};
use key_file::KeyFile;
use source::SourceExchange;

/// Data that a session's exchanges reuse: bytes of the previous request, templates of responses, and the text form of
/// requests to models without tool calling.
#[derive(Debug, Default)]
pub(super) struct ExchangeCache {
    request_cache: RequestCache,
    templates: PayloadTemplates,
    /// Renders the requests to models without tool calling, from the first of them on.
    renderer: Option<PromptRenderer>,
    /// Renders the requests whose tools have names that the service refuses.
    aliases: AliasRenderer,
    /// The tools that were left out of the request before the last one, and of the last one, by name.
    left_out: [Vec<String>; 2],
    /// The form of the request before the last one, and of the last one.
    forms: [RequestForm; 2],
}

/// The form in which a request is sent to its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestForm {
    protocol: ToolProtocol,
    /// True if its messages contain the rule for calling tools (`tool_choice`) as a text.
    has_choice_text: bool,
}

impl ExchangeCache {
    /// Returns the reason why the prompt of the last request did not begin with that of the one before it.
    pub(super) fn prompt_break(&self) -> Option<PromptChange> {
        let reason = self.request_cache.prompt_break()?;
        let [before, last] = &self.left_out;
        if reason == PromptChange::Unexplained && before != last {
            return Some(PromptChange::ToolSetAside);
        }
        let [before, last] = self.forms;
        Some(if !matches!(reason, PromptChange::Unexplained | PromptChange::Reasoning) {
            reason
        } else if before.protocol != last.protocol {
            PromptChange::Fallback
        } else if before.has_choice_text {
            // The text was at the end of the prompt.
            PromptChange::Output
        } else {
            reason
        })
    }

    /// Notes which tools of the next request are left out of the one that is sent. `None`: none.
    pub(super) fn note_left_out(&mut self, request: &ModelRequest, sent: Option<&ModelRequest>) {
        let left_out = sent.map_or_else(Vec::new, |sent| {
            let names = request.tools.iter().map(|tool| &tool.name);
            let is_sent = |name: &&String| sent.tools.iter().any(|tool| tool.name == **name);
            names.filter(|name| !is_sent(name)).cloned().collect()
        });
        self.left_out.swap(0, 1);
        self.left_out[1] = left_out;
    }

    /// Returns the request in the form of a protocol. `None` if it is sent as it is.
    fn render(
        &mut self,
        protocol: ToolProtocol,
        wire: Wire,
        request: &ModelRequest,
    ) -> Option<ModelRequest> {
        let is_rendered = protocol != ToolProtocol::Native;
        let has_choice_text =
            is_rendered && request.tool_choice != ToolChoice::Auto && !request.tools.is_empty();
        self.forms = [self.forms[1], RequestForm { protocol, has_choice_text }];
        if !is_rendered {
            return None;
        }
        let known = self.renderer.take().filter(|renderer| renderer.matches(protocol, wire));
        let renderer = known.unwrap_or_else(|| PromptRenderer::new(protocol, wire));
        Some(self.renderer.insert(renderer).render(request))
    }

    /// Stores the templates of a finished exchange.
    pub(super) fn keep_templates(&mut self, exchange: ModelExchange) {
        if let Some(templates) = exchange.into_templates() {
            self.templates = templates;
        }
    }
}

/// The service of a model: an HTTP service, or a model that the program implements.
#[derive(Clone)]
pub(super) enum ModelService {
    Http(ModelClient),
    Source { source: Arc<dyn ModelSource>, config: Arc<ModelConfig>, lag_clock: HostLagClock },
}

impl ModelService {
    /// Lets the next request read the file of its key again.
    pub(super) fn read_key_again(&self) {
        if let Self::Http(client) = self
            && let Some(file) = &client.inner.key_file
        {
            file.read_again();
        }
    }

    /// Returns a session's next exchange. It starts when it is polled.
    pub(super) fn next_exchange(
        &self,
        request: &ModelRequest,
        cache: &mut ExchangeCache,
        trace: Option<TraceContext>,
        secrets: &Secrets,
    ) -> ModelExchange {
        let (protocol, wire) = match self {
            Self::Http(client) => (client.inner.tool_protocol, client.inner.wire),
            Self::Source { config, .. } => (config.tool_protocol, config.wire),
        };
        let calls = CallReader::new(protocol, &request.tools).map(Box::new);
        let rendered = cache.render(protocol, wire, request);
        let request = rendered.as_ref().unwrap_or(request);
        let mut tool_names = BTreeMap::new();
        let response = match self {
            Self::Http(client) => {
                let aliased = cache.aliases.render(wire, request);
                if aliased.is_some() {
                    tool_names = cache.aliases.original_names();
                }
                let request = aliased.as_ref().unwrap_or(request);
                let tools = SentTools::new(request, tool_names.clone());
                let exchange = client.next_exchange(request, cache);
                ServiceExchange::Http(exchange.with_trace(trace).with_tools(tools))
            }
            Self::Source { source, config, lag_clock } => {
                let (source, limits) = (Arc::clone(source), TimeLimits::from(&**config));
                let exchange = SourceExchange::new(source, request, limits, lag_clock.clone());
                ServiceExchange::Source(Box::new(exchange))
            }
        };
        let redactor = DeltaRedactor::new(secrets);
        ModelExchange::new(response, ResponseReader { tool_names, calls, redactor })
    }
}

impl fmt::Debug for ModelService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(client) => client.fmt(f),
            Self::Source { .. } => f.write_str("ModelSource"),
        }
    }
}

/// The client of one model.
///
/// Clones are cheap and share their connections.
#[derive(Clone, Debug)]
pub struct ModelClient {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    http: Client,
    /// Opens a connection for each request.
    fresh_http: Client,
    used_connections: UsedConnections,
    key_file: Option<KeyFile>,
    /// True if the service has answered a request, so that it speaks the protocol of the base URL.
    has_answered: AtomicBool,
    streamed: Target,
    plain: Target,
    heads: Mutex<HeadCache>,
    wire: Wire,
    tool_protocol: ToolProtocol,
    fast_path: bool,
    time_limits: TimeLimits,
    response_bytes_max: u64,
    lag_clock: HostLagClock,
}

/// The address and all headers of one kind of request.
#[derive(Debug)]
struct Target {
    url: Url,
    headers: HeaderMap,
}

impl ModelClient {
    /// Creates a client for a model. Does not connect yet.
    ///
    /// # Errors
    /// If the address, the key or a header cannot be put into a request.
    pub fn new(config: &ModelConfig) -> Result<Self, InvalidValue> {
        Self::of_host(config, HostLagClock::default(), &Secrets::default())
    }

    /// Creates the client of a host, whose time limits do not count the host's own stalls. It adds keys that it reads to
    /// the secrets.
    pub(super) fn of_host(
        config: &ModelConfig,
        lag_clock: HostLagClock,
        secrets: &Secrets,
    ) -> Result<Self, InvalidValue> {
        let (streamed, plain) = (Target::new(config, true)?, Target::new(config, false)?);
        let loopback = tls::is_loopback(&plain.url);
        let http = |idle_connections_max| {
            let settings = Client::builder()
                .connect_timeout(config.connect_timeout)
                .pool_max_idle_per_host(idle_connections_max)
                .tcp_nodelay(true)
                // A redirect would send the key and the conversation to another address.
                .redirect(Policy::none())
                // An attempt is one exchange. The turn decides about retries.
                .retry(reqwest::retry::never().max_retries_per_request(0));
            let settings = if loopback { settings.no_proxy() } else { settings };
            tls::client(settings).map_err(|error| invalid(error::describe(&error)))
        };
        let key_file = config.api_key_file.as_ref().map(|path| {
            let source = SecretSource::File(path.clone());
            KeyFile::new(source, config.wire.key_header(), secrets.clone())
        });
        Ok(Self {
            inner: Arc::new(ClientInner {
                key_file,
                http: http(usize::MAX)?,
                fresh_http: http(0)?,
                used_connections: UsedConnections::default(),
                has_answered: AtomicBool::new(false),
                streamed,
                plain,
                heads: Mutex::default(),
                wire: config.wire,
                tool_protocol: config.tool_protocol,
                fast_path: config.fast_path,
                time_limits: TimeLimits::from(config),
                response_bytes_max: config.max_response_bytes,
                lag_clock,
            }),
        })
    }

    /// Sends a request and waits for the whole response.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::config::{BaseUrl, ModelConfig};
    /// use callsheet::model::{Message, ModelClient, ModelRequest};
    /// # use callsheet::rehearsal::{Rehearsal, improvise};
    ///
    /// # let service = Rehearsal::start(improvise, Default::default()).await?;
    /// # let address = service.base_url();
    /// let base_url = BaseUrl::parse(&address)?;
    /// let client = ModelClient::new(&ModelConfig::new(base_url, "rehearsal"))?;
    /// let request = ModelRequest::new("rehearsal", vec![Message::user("Say hello.")].into());
    /// let response = client.complete(&request).await?;
    /// println!("{} {:?}", response.text, response.tool_calls());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If no response arrives, or the response reports an error or is incomplete. A failure of the exchange after the
    /// finish reason does not count. A response is
    /// accepted by the same rules as in a turn of a host: it has a finish reason, or else an end mark,
    /// contents and arguments that parse.
    pub async fn complete(&self, request: &ModelRequest) -> Result<ModelResponse, ProviderError> {
        let mut response = response::Collector::new(self.inner.wire, request);
        let mut exchange = self.exchange(request);
        let end = loop {
            match exchange.next().await {
                Some(Ok(batch)) => response.push(batch)?,
                Some(Err(error)) => break ExchangeEnd::Failed(error),
                None => break ExchangeEnd::Closed,
            }
        };
        response.finish(end)
    }

    /// Sends a request and returns its deltas, one batch for each chunk of the body that holds any.
    /// An error is the last item. Dropping the stream drops the exchange.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use callsheet::config::{BaseUrl, ModelConfig};
    /// # use callsheet::model::{Delta, Message, ModelClient, ModelRequest};
    /// # use callsheet::rehearsal::{Rehearsal, improvise};
    /// use futures::StreamExt as _;
    ///
    /// # let service = Rehearsal::start(improvise, Default::default()).await?;
    /// # let base_url = BaseUrl::parse(&service.base_url())?;
    /// # let client = ModelClient::new(&ModelConfig::new(base_url, "rehearsal"))?;
    /// let request = ModelRequest::new("rehearsal", vec![Message::user("Say hello.")].into());
    /// let mut batches = std::pin::pin!(client.stream(&request));
    /// while let Some(batch) = batches.next().await {
    ///     for delta in batch? {
    ///         if let Delta::Text(text) = delta {
    ///             print!("{text}");
    ///         }
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn stream(
        &self,
        request: &ModelRequest,
    ) -> impl Stream<Item = Result<Vec<Delta>, ProviderError>> + Send + use<> {
        futures::stream::unfold(self.exchange(request), |mut exchange| async move {
            let item = exchange.next().await?;
            Some((item, exchange))
        })
    }

    fn exchange(&self, request: &ModelRequest) -> ModelExchange {
        let service = ModelService::Http(self.clone());
        service.next_exchange(request, &mut ExchangeCache::default(), None, &Secrets::default())
    }

    /// Returns a session's next exchange. It starts when it is polled.
    fn next_exchange(&self, request: &ModelRequest, cache: &mut ExchangeCache) -> Exchange {
        let ClientInner { wire, heads, .. } = &*self.inner;
        let head = |request: &_| heads.lock().head(*wire, request);
        let body = cache.request_cache.encode_body(*wire, request, head);
        let templates = std::mem::take(&mut cache.templates);
        Exchange::new(Arc::clone(&self.inner), request.stream, body, templates)
            .with_output_tokens_max(request.max_output_tokens.map(u64::from))
    }
}

impl ClientInner {
    fn request(
        &self,
        http: &Client,
        body: Bytes,
        streamed: bool,
        key: Option<&HeaderValue>,
    ) -> RequestBuilder {
        let Target { url, headers } = match self.wire.framing(streamed) {
            Framing::Sse | Framing::JsonLines => &self.streamed,
            Framing::Json | Framing::JsonArray => &self.plain,
        };
        let mut request = Request::new(Method::POST, url.clone());
        *request.headers_mut() = headers.clone();
        if let (Some(file), Some(key)) = (&self.key_file, key) {
            request.headers_mut().insert(file.header_name.clone(), key.clone());
        }
        *request.body_mut() = Some(body.into());
        RequestBuilder::from_parts(http.clone(), request)
    }

    fn transport_error(&self, error: reqwest::Error) -> ProviderError {
        error::transport(error, &self.plain.url, self.has_answered.load(Ordering::Relaxed))
    }
}

impl Target {
    fn new(config: &ModelConfig, streamed: bool) -> Result<Self, InvalidValue> {
        let url = config.wire.url(config.base_url.as_str(), &config.model, streamed);
        let url = Url::parse(&url).map_err(invalid)?;
        let accept = match config.wire.framing(streamed) {
            Framing::Sse => "text/event-stream",
            Framing::JsonLines => "application/x-ndjson",
            Framing::Json | Framing::JsonArray => "application/json",
        };
        Ok(Self { url, headers: headers(config, accept)? })
    }
}

fn invalid(reason: impl fmt::Display) -> InvalidValue {
    InvalidValue::new(format!("make a client for the model: {reason}"))
}

fn headers(config: &ModelConfig, accept: &'static str) -> Result<HeaderMap, InvalidValue> {
    // The message leaves out the value, because it may be the key.
    let refused = |_: InvalidHeaderValue| {
        invalid("the key or a header contains characters that a header cannot hold")
    };
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let agent = concat!("callsheet/", env!("CARGO_PKG_VERSION"));
    headers.insert(reqwest::header::USER_AGENT, HeaderValue::from_static(agent));
    for (name, value) in config.wire.headers() {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    if let Some(key) = &config.api_key {
        let KeyHeader { name, prefix } = config.wire.key_header();
        let mut value =
            HeaderValue::from_str(&format!("{prefix}{}", key.reveal())).map_err(refused)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for (name, text) in &config.headers {
        let name: HeaderName =
            name.parse().map_err(|_| invalid(format!("{name:?} is not a valid header name")))?;
        let mut value = HeaderValue::from_str(text).map_err(refused)?;
        // Some services expect their key in a custom header.
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
