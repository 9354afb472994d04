//! One exchange with a model: a request and its streamed response. Reads calls in the text of the
//! response and replaces secrets in it. Fails a response that stalls ([`super::deadline`]):
//!
//! - A stream that was requested: `first_event_timeout` from the request to the first byte of the body. Then
//!   `idle_timeout` without any byte, and `progress_timeout` without a delta.
//! - A plain answer: `answer_timeout` from the request to the end of the body.
//! - A stream that answers a plain request: `answer_timeout` to the first byte, then as a stream that was requested.
//! - A whole JSON body that answers a request for a stream: as a stream. Its bytes are its progress, except for white
//!   space, which some services send as a sign of life.
//!
//! A request that a reused connection loses is sent once more ([`super::connection`]).

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt as _;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::connection::RequestSendError;
use super::deadline::{Progress, ResponseDeadline};
use super::error::RetryHints;
use super::source::SourceExchange;
use super::{ClientInner, ModelRequest, error};
use callsheet_values::types::{
    ProviderError, ProviderErrorKind, TRACEPARENT, TRACESTATE, ToolRefusal, TraceContext, one_line,
};
use callsheet_wire::response::ResponseReader;
use callsheet_wire::{
    Decoder, DecoderOptions, Delta, Framing, PayloadTemplates, ToolDefinition, WireFormat as _,
    find_refused_tools, http_error,
};

/// Maximum number of bytes that are read of an error's body.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// Maximum wait for an error's body. The status alone is enough to report the error.
const ERROR_BODY_WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum number of characters that are quoted from a body that is not a response.
const QUOTE_CHARS: usize = 100;

/// Maximum wait for the end of the body after the last relevant delta. A connection can be reused
/// only if its body was read to the end.
const BODY_END_WAIT_MAX: Duration = Duration::from_millis(100);

/// The subject of the error of a deadline that passes while the body is read.
const RESPONSE: &str = "the response";

/// The number of polls after a deadline, each after a yield: the I/O driver and the task of the connection have to
/// run before data that has arrived can be read.
const POLLED_AGAIN: u32 = 4;

/// A request to a model and its response, in which the host's secrets are replaced.
#[derive(Debug)]
pub(in crate::runtime) struct ModelExchange {
    response: ServiceExchange,
    reader: ResponseReader,
    /// The error that follows what was held back.
    error: Option<Box<ProviderError>>,
}

impl ModelExchange {
    /// Creates an exchange.
    pub(super) fn new(response: ServiceExchange, reader: ResponseReader) -> Self {
        Self { response, reader, error: None }
    }

    /// Returns the body of a request that was not sent yet. A model of the program has none.
    pub(in crate::runtime) fn request_body(&self) -> Option<&Bytes> {
        match &self.response {
            ServiceExchange::Http(exchange) => exchange.unsent_body(),
            ServiceExchange::Source(_) => None,
        }
    }

    /// Returns the templates for the next response. A model of the program has none.
    pub(super) fn into_templates(self) -> Option<PayloadTemplates> {
        match self.response {
            ServiceExchange::Http(exchange) => Some(exchange.into_templates()),
            ServiceExchange::Source(_) => None,
        }
    }

    /// Returns the deltas that arrived together. Batches are never empty. The caller reads nothing after an error.
    pub(in crate::runtime) async fn next(&mut self) -> Option<Result<Vec<Delta>, ProviderError>> {
        loop {
            if let Some(error) = self.error.take() {
                return Some(Err(*error));
            }
            let received = match &mut self.response {
                ServiceExchange::Http(exchange) => exchange.next().await,
                ServiceExchange::Source(exchange) => exchange.next().await,
            };
            let (batch, is_over) = match received {
                Some(Ok(batch)) => (self.reader.read(batch), false),
                end => {
                    self.error = end.and_then(Result::err).map(Box::new);
                    (self.reader.finish(), true)
                }
            };
            if let Some(error) = &mut self.error {
                self.reader.redact_error(error);
            }
            if !batch.is_empty() {
                return Some(Ok(batch));
            }
            if is_over {
                return self.error.take().map(|error| Err(*error));
            }
        }
    }
}

/// The exchange with an HTTP service, or with a model that the program implements.
#[derive(Debug)]
pub(super) enum ServiceExchange {
    Http(Exchange),
    Source(Box<SourceExchange>),
}

/// A request to an HTTP service and its response. Dropping it closes the connection if the body has
/// not ended.
#[derive(Debug)]
pub(super) struct Exchange {
    client: Arc<ClientInner>,
    streamed: bool,
    trace: Option<TraceContext>,
    /// The maximum number of output tokens that the request asks for.
    output_tokens_max: Option<u64>,
    templates: PayloadTemplates,
    tools: SentTools,
    state: ExchangeState,
}

/// The tools of a request, to find in an error those that the service refuses.
#[derive(Debug, Default)]
pub(super) struct SentTools {
    tools: Arc<[ToolDefinition]>,
    /// The names of tools that were sent under an alias, by alias.
    names: BTreeMap<Arc<str>, String>,
    has_output_schema: bool,
}

impl SentTools {
    /// Returns the tools of a request as it is sent. `names` are those of its tools, by alias.
    pub(super) fn new(request: &ModelRequest, names: BTreeMap<Arc<str>, String>) -> Self {
        let tools = Arc::clone(&request.tools);
        Self { tools, names, has_output_schema: request.output_schema.is_some() }
    }

    /// Adds to an error which tools the service refuses.
    fn find_refused(&self, error: &mut ProviderError) {
        error.tool_refusal = find_refused_tools(error, &self.tools, self.has_output_schema);
        if let Some(ToolRefusal::Named(tools) | ToolRefusal::Suspected(tools)) =
            &mut error.tool_refusal
        {
            for tool in tools {
                if let Some(name) = self.names.get(&**tool) {
                    tool.clone_from(name);
                }
            }
        }
    }
}

#[derive(Debug)]
enum ExchangeState {
    Unsent { body: Bytes },
    ResponseBody(Box<ResponseBody>),
    Over,
}

#[derive(Debug)]
struct ResponseBody {
    response: reqwest::Response,
    decoder: Option<Decoder>,
    output_tokens_max: Option<u64>,
    /// True if the body has no separate events.
    is_single_document: bool,
    deadline: ResponseDeadline,
    /// Number of bytes that the rest of the body may have.
    bytes_left: u64,
    /// Wakes at the deadline or earlier. One timer serves all chunks: a timer for each chunk would
    /// cost more than an occasional early wake-up.
    alarm: Pin<Box<Sleep>>,
    /// True after the last relevant delta: the end of the response, or an error of the service.
    done: bool,
    hints: RetryHints,
}

impl Exchange {
    /// Creates an exchange. `templates` come from the session's earlier responses.
    pub(super) fn new(
        client: Arc<ClientInner>,
        streamed: bool,
        body: Bytes,
        templates: PayloadTemplates,
    ) -> Self {
        let (tools, state) = (SentTools::default(), ExchangeState::Unsent { body });
        let (trace, output_tokens_max) = (None, None);
        Self { client, streamed, trace, output_tokens_max, templates, tools, state }
    }

    /// Sets the maximum number of output tokens that the request asks for.
    pub(super) fn with_output_tokens_max(self, output_tokens_max: Option<u64>) -> Self {
        Self { output_tokens_max, ..self }
    }

    /// Returns the body of a request that was not sent yet.
    fn unsent_body(&self) -> Option<&Bytes> {
        match &self.state {
            ExchangeState::Unsent { body } => Some(body),
            ExchangeState::ResponseBody(_) | ExchangeState::Over => None,
        }
    }

    /// Returns the templates for the next response: those given to [`Self::new`] if nothing of the body was decoded, and
    /// none if the body was not read to its end after that.
    fn into_templates(self) -> PayloadTemplates {
        self.templates
    }

    /// Adds a trace context, which is sent with the request.
    pub(super) fn with_trace(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// Sets the tools of the request.
    pub(super) fn with_tools(self, tools: SentTools) -> Self {
        Self { tools, ..self }
    }

    /// Returns the deltas of the next chunk of the body. Batches are never empty. After an error,
    /// returns `None`.
    async fn next(&mut self) -> Option<Result<Vec<Delta>, ProviderError>> {
        let mut reading = match std::mem::replace(&mut self.state, ExchangeState::Over) {
            // Boxed: this future is kept while the response streams, and sending needs most of its size.
            ExchangeState::Unsent { body } => match Box::pin(self.send(body)).await {
                Ok(reading) => Box::new(reading),
                Err(mut error) => {
                    self.tools.find_refused(&mut error);
                    error::add_address(&mut error, &self.client.plain.url);
                    return Some(Err(error));
                }
            },
            ExchangeState::ResponseBody(reading) => reading,
            ExchangeState::Over => return None,
        };
        let next = reading.next(&self.client, self.streamed, &mut self.templates).await;
        let Some(mut batch) = next else {
            self.templates = reading.decoder.map(Decoder::into_templates).unwrap_or_default();
            return None;
        };
        match &mut batch {
            Ok(deltas) => {
                for error in deltas.iter_mut().filter_map(reported) {
                    reading.hints.apply_to(error);
                    self.tools.find_refused(error);
                    error::add_address(error, &self.client.plain.url);
                }
            }
            Err(error) => {
                self.tools.find_refused(error);
                error::add_address(error, &self.client.plain.url);
            }
        }
        if batch.is_ok() {
            self.state = ExchangeState::ResponseBody(reading);
        }
        Some(batch)
    }

    async fn send(&self, body: Bytes) -> Result<ResponseBody, ProviderError> {
        let client = &*self.client;
        let (limits, clock) = (client.time_limits, client.lag_clock.clone());
        let mut deadline = ResponseDeadline::new(limits, self.streamed, clock);
        let response = match &client.key_file {
            None => self.answer(body, None, &mut deadline).await?,
            Some(file) => {
                let key = file.header().await;
                let response = self.answer(body.clone(), key.as_ref(), &mut deadline).await?;
                match response.status() {
                    StatusCode::UNAUTHORIZED => match file.after_refusal_of(key.as_ref()).await {
                        Some(key) => self.answer(body, Some(&key), &mut deadline).await?,
                        None => response,
                    },
                    _ => response,
                }
            }
        };
        if !response.status().is_success() {
            return Err(read_http_error(response, deadline.at()).await);
        }
        error::check_encoding(response.headers())?;
        let body = ResponseBody::new(client, response, deadline);
        Ok(ResponseBody { output_tokens_max: self.output_tokens_max, ..body })
    }

    /// Sends the request with this key of a file, and returns the beginning of the answer.
    async fn answer(
        &self,
        body: Bytes,
        key: Option<&HeaderValue>,
        deadline: &mut ResponseDeadline,
    ) -> Result<reqwest::Response, ProviderError> {
        let client = &*self.client;
        let request = self.request(&client.http, body.clone(), key);
        let mut sent = send_until(client, deadline, request).await?;
        if let Err(RequestSendError::LostByReusedConnection(_)) = &sent {
            // The error is not logged: it may have the URL with a key.
            tracing::debug!("a reused connection lost a request, which is sent again");
            let request = self.request(&client.fresh_http, body, key);
            sent = send_until(client, deadline, request).await?;
        }
        let response = sent.map_err(|error| client.transport_error(error.into()))?;
        client.has_answered.store(true, Ordering::Relaxed);
        Ok(response)
    }

    /// Returns the request, to be sent with this HTTP client.
    fn request(&self, http: &Client, body: Bytes, key: Option<&HeaderValue>) -> RequestBuilder {
        let mut request = self.client.request(http, body, self.streamed, key);
        if let Some(trace) = &self.trace {
            request = request.header(TRACEPARENT, trace.traceparent());
            if let Some(state) = trace.tracestate() {
                request = request.header(TRACESTATE, state);
            }
        }
        request
    }
}

/// Sends a request. Returns the outer error if no answer begins until the deadline.
async fn send_until(
    client: &ClientInner,
    deadline: &mut ResponseDeadline,
    request: RequestBuilder,
) -> Result<Result<reqwest::Response, RequestSendError>, ProviderError> {
    let mut sent = std::pin::pin!(client.used_connections.send(request));
    loop {
        if let Ok(sent) = timeout_at(deadline.at(), &mut sent).await {
            return Ok(sent);
        }
        let woken = Instant::now();
        if let Some(sent) = poll_again(&mut sent).await {
            return Ok(sent);
        }
        if let Some(error) = deadline.check(woken, "the service") {
            return Err(error);
        }
    }
}

impl ResponseBody {
    fn new(client: &ClientInner, response: reqwest::Response, deadline: ResponseDeadline) -> Self {
        let hints = RetryHints::read(response.headers(), SystemTime::now());
        Self {
            response,
            decoder: None,
            output_tokens_max: None,
            is_single_document: false,
            alarm: Box::pin(sleep_until(deadline.at())),
            deadline,
            bytes_left: client.response_bytes_max,
            done: false,
            hints,
        }
    }

    async fn next(
        &mut self,
        client: &ClientInner,
        streamed: bool,
        templates: &mut PayloadTemplates,
    ) -> Option<Result<Vec<Delta>, ProviderError>> {
        let mut batch = Vec::new();
        loop {
            let chunk = match self.chunk().await {
                // Errors of the connection after the last relevant delta do not change the response.
                Err(_) | Ok(Err(_) | Ok(None)) if self.done => return None,
                Err(error) => return Some(Err(error)),
                Ok(Err(error)) => return Some(Err(client.transport_error(error))),
                Ok(Ok(chunk)) => chunk,
            };
            let ended = chunk.is_none();
            let bytes = chunk.unwrap_or_default();
            self.bytes_left = match self.bytes_left.checked_sub(bytes.len() as u64) {
                Some(left) => left,
                None => return Some(Err(error::too_large(client.response_bytes_max))),
            };
            let decoder = match &mut self.decoder {
                Some(decoder) => decoder,
                None => {
                    if let Some(error) = page_error(&bytes) {
                        return Some(Err(error));
                    }
                    let framing = framing(client, streamed, &self.response, &bytes);
                    self.is_single_document = framing == Framing::Json;
                    let options = DecoderOptions {
                        // `bytes_left` limits the body.
                        body_bytes_max: usize::MAX,
                        output_tokens_max: self.output_tokens_max,
                        fast_path: client.fast_path,
                        ..DecoderOptions::default()
                    };
                    let templates = std::mem::take(templates);
                    let decoder = Decoder::with_templates(client.wire, framing, options, templates);
                    self.decoder.insert(decoder)
                }
            };
            let decoded = if ended {
                self.done = true;
                decoder.finish(&mut batch)
            } else {
                decoder.push(&bytes, &mut batch)
            };
            if let Err(error) = decoded {
                return Some(Err(error));
            }
            if self.done {
                // The deadline is not extended any more.
            } else if batch.iter().any(is_last) {
                self.done = true;
                self.deadline.handle_last(BODY_END_WAIT_MAX);
            } else if streamed || !self.is_single_document {
                let progress = match self.is_single_document {
                    true if bytes.trim_ascii_start().is_empty() => Progress::None,
                    true => Progress::Made,
                    false => Progress::of(&batch),
                };
                let now = Instant::now();
                self.deadline.handle_bytes(now, progress);
                // A service that sends signs of life without a pause leaves no time for the alarm.
                if progress == Progress::None
                    && let Some(error) = self.deadline.check(now, RESPONSE)
                {
                    return Some(Err(error));
                }
            }
            if !batch.is_empty() {
                return Some(Ok(batch));
            }
            if ended {
                return None;
            }
        }
    }

    /// Returns the next chunk of the body, or `None` after the last chunk. Returns the outer error at the deadline.
    async fn chunk(&mut self) -> Result<reqwest::Result<Option<Bytes>>, ProviderError> {
        loop {
            if self.alarm.deadline() > self.deadline.at() {
                self.alarm.as_mut().reset(self.deadline.at());
            }
            tokio::select! {
                biased;
                read = self.response.chunk() => return Ok(read),
                () = &mut self.alarm => {}
            }
            let woken = Instant::now();
            if self.deadline.at() <= woken {
                if let Some(read) = poll_again(std::pin::pin!(self.response.chunk())).await {
                    return Ok(read);
                }
                if let Some(error) = self.deadline.check(woken, RESPONSE) {
                    return Err(error);
                }
            }
            self.alarm.as_mut().reset(self.deadline.at());
        }
    }
}

/// Polls a future some more times, and lets the tasks of the connections run in between, so that data
/// that arrived before a deadline is read before the exchange fails.
async fn poll_again<T>(mut future: impl Future<Output = T> + Unpin) -> Option<T> {
    for _ in 0..POLLED_AGAIN {
        tokio::task::yield_now().await;
        if let Some(result) = (&mut future).now_or_never() {
            return Some(result);
        }
    }
    None
}

/// Returns true if no relevant delta follows. Some services keep the stream open after an error,
/// and nothing after an error changes the result.
fn is_last(delta: &Delta) -> bool {
    matches!(delta, Delta::Done | Delta::Error(_))
}

/// Returns the error that the response itself reports.
fn reported(delta: &mut Delta) -> Option<&mut ProviderError> {
    if let Delta::Error(error) = delta { Some(error) } else { None }
}

/// Returns the framing of the body. The content type and the first bytes take precedence over the
/// requested framing, with an exception: a wire format that streams JSON lines is read as JSON lines unless
/// the content type is that of an event stream.
fn framing(
    client: &ClientInner,
    streamed: bool,
    response: &reqwest::Response,
    begin: &[u8],
) -> Framing {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or_default().trim().to_ascii_lowercase();
    if kind.starts_with("text/event-stream") {
        return Framing::Sse;
    }
    let expected = client.wire.framing(streamed);
    let is_lines =
        ["application/x-ndjson", "application/jsonl"].iter().any(|k| kind.starts_with(k));
    if is_lines || expected == Framing::JsonLines {
        return Framing::JsonLines;
    }
    let looks_plain = begin.trim_ascii_start().first().is_some_and(|byte| b"{[".contains(byte));
    if kind.starts_with("application/json") || looks_plain {
        return Framing::Json;
    }
    expected
}

/// Returns an error if the body begins like a web page, whatever its content type is. No wire has
/// such a response, and the decoder would skip its lines without an error.
fn page_error(begin: &[u8]) -> Option<ProviderError> {
    let begin = begin.trim_ascii_start();
    begin.starts_with(b"<").then(|| {
        let mut quote = one_line(&String::from_utf8_lossy(begin), QUOTE_CHARS);
        if !quote.ends_with('…') {
            // The page may go on. The mark also shows the redaction where a secret may be cut.
            quote.push('…');
        }
        let message = format!(
            "the service answered with a page instead of a response (see the model's base_url): \
             {quote}"
        );
        ProviderError::new(ProviderErrorKind::Malformed, message)
    })
}

/// Converts an unsuccessful response to an error. Includes the service's message from the body.
async fn read_http_error(mut response: reqwest::Response, deadline: Instant) -> ProviderError {
    let status = response.status().as_u16();
    let hints = RetryHints::read(response.headers(), SystemTime::now());
    let deadline = deadline.min(Instant::now() + ERROR_BODY_WAIT_MAX);
    let readable = error::check_encoding(response.headers()).is_ok();
    let hint = error::hint(status, response.headers(), hints.retry_after);
    let mut body = Vec::new();
    while readable
        && body.len() < ERROR_BODY_BYTES_MAX
        && let Ok(Ok(Some(bytes))) = timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&bytes);
    }
    body.truncate(ERROR_BODY_BYTES_MAX);
    let mut error = http_error(status, &String::from_utf8_lossy(&body));
    hints.apply_to(&mut error);
    error.message.push_str(&hint);
    error
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::super::deadline::HostLagClock;
    use super::*;
    use callsheet_values::config::{BaseUrl, ModelConfig};
    use callsheet_wire::Wire;

    /// The beginning of a response, signs of life, and the rest with the text "ok".
    type Thought = (Wire, &'static str, &'static [&'static str], &'static [&'static str]);

    const THOUGHTS: [Thought; 5] = [
        (
            Wire::OpenaiChat,
            r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            &[
                ": keep-alive",
                ":",
                r#"data: {"choices":[]}"#,
                r#"data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#,
                r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}"#,
                r#"data: {"choices":[{"index":0,"delta":{"content":"","reasoning_content":""}}]}"#,
            ],
            &[
                r#"data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}"#,
                "data: [DONE]",
            ],
        ),
        (
            Wire::OpenaiResponses,
            r#"data: {"type":"response.created","response":{"id":"r","status":"in_progress","output":[]}}"#,
            &[
                r#"data: {"type":"keepalive","sequence_number":3}"#,
                "event: keepalive\ndata: {}",
                r#"data: {"type":"response.in_progress","response":{"id":"r","status":"in_progress"}}"#,
                ": ping",
            ],
            &[
                r#"data: {"type":"response.output_text.delta","output_index":0,"item_id":"m","content_index":0,"delta":"ok"}"#,
                r#"data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"ok"}]}]}}"#,
            ],
        ),
        (
            Wire::AnthropicMessages,
            "data: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"role\":\"assistant\",\"content\":[],\
             \"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\ndata: {\"type\":\"content_block_start\",\
             \"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}",
            &["event: ping\ndata: {\"type\":\"ping\"}", r#"data: {"type":"ping"}"#],
            &[
                r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}"#,
                r#"data: {"type":"content_block_stop","index":0}"#,
                r#"data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
                r#"data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"ok"}}"#,
                r#"data: {"type":"content_block_stop","index":1}"#,
                r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#,
                r#"data: {"type":"message_stop"}"#,
            ],
        ),
        (
            Wire::GeminiGenerate,
            r#"data: {"candidates":[{"index":0,"content":{"role":"model","parts":[]}}]}"#,
            &[
                r#"data: {"candidates":[{"index":0,"content":{"role":"model","parts":[{"text":""}]}}]}"#,
                r#"data: {"usageMetadata":{"promptTokenCount":9,"thoughtsTokenCount":70}}"#,
                r#"data: {"candidates":[]}"#,
                ": ping",
            ],
            &[
                r#"data: {"candidates":[{"index":0,"content":{"role":"model","parts":[{"text":"ok"}]},"finishReason":"STOP"}]}"#,
            ],
        ),
        (
            Wire::OllamaChat,
            r#"{"model":"m","message":{"role":"assistant","content":""},"done":false}"#,
            &[
                "",
                r#"{"model":"m","message":{"role":"assistant","content":"","thinking":""},"done":false}"#,
            ],
            &[
                r#"{"model":"m","message":{"role":"assistant","content":"ok"},"done":false}"#,
                r#"{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}"#,
            ],
        ),
    ];

    /// Reads a body of pieces, each of which arrives after a pause. Returns the text and the error, if there is one.
    async fn read(
        config: &ModelConfig,
        streamed: bool,
        content_type: &str,
        pieces: Vec<(Duration, String)>,
    ) -> (String, Option<String>) {
        let client = super::super::ModelClient::new(config).unwrap().inner;
        let deadline = ResponseDeadline::new(client.time_limits, streamed, HostLagClock::default());
        let pieces = futures::stream::iter(pieces).then(|(pause, piece)| async move {
            match pause.is_zero() {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(pause).await,
            }
            Ok::<_, std::io::Error>(Bytes::from(piece))
        });
        let response = http::Response::builder().header(CONTENT_TYPE, content_type);
        let response = response.body(reqwest::Body::wrap_stream(pieces)).unwrap();
        let mut body = ResponseBody::new(&client, response.into(), deadline);
        let (mut text, mut templates) = (String::new(), PayloadTemplates::default());
        while let Some(batch) = body.next(&client, streamed, &mut templates).await {
            match batch {
                Err(error) => return (text, Some(error.message)),
                Ok(batch) => batch.iter().for_each(|delta| {
                    if let Delta::Text(piece) = delta {
                        text.push_str(piece);
                    }
                }),
            }
        }
        (text, None)
    }

    /// Returns the pieces of a response that begins after `first`, and then has signs of life every 15 seconds for this
    /// time.
    fn thought(thought: &Thought, first: u64, signs: u64) -> Vec<(Duration, String)> {
        let (wire, begin, of_life, rest) = thought;
        let end = if wire.framing(true) == Framing::Sse { "\n\n" } else { "\n" };
        let begin = [(first, *begin)];
        let of_life = of_life.iter().cycle().take((signs / 15) as usize).map(|sign| (15, *sign));
        let rest = rest.iter().map(|piece| (0, *piece));
        let pieces = begin.into_iter().chain(of_life).chain(rest);
        pieces.map(|(pause, piece)| (Duration::from_secs(pause), format!("{piece}{end}"))).collect()
    }

    fn config(wire: Wire) -> ModelConfig {
        ModelConfig::new(BaseUrl::parse("http://127.0.0.1:9").unwrap(), "m")
            .with(|config| config.wire = wire)
    }

    #[tokio::test(start_paused = true)]
    async fn a_thought_with_signs_of_life_may_last_as_long_as_the_progress_timeout() {
        for case in &THOUGHTS {
            let (wire, content_type) = (case.0, content_type(case.0));
            let limits = config(wire);
            // The limit of progress begins with the first byte.
            let pieces = thought(case, 59, 9 * 60);
            let answer = read(&limits, true, content_type, pieces).await;
            assert_eq!(answer, ("ok".to_owned(), None), "{wire}");
            // A service may stream although a plain answer was requested.
            let pieces = thought(case, 9 * 60, 9 * 60);
            let answer = read(&limits, false, content_type, pieces).await;
            assert_eq!(answer, ("ok".to_owned(), None), "{wire}");

            let start = Instant::now();
            let pieces = thought(case, 59, 60 * 60);
            let (text, error) = read(&limits, true, content_type, pieces).await;
            let expected = "the response made no progress (no text, no thinking, no call) for 600s; raise the \
                            model's progress_timeout if it needs longer";
            assert_eq!((text.as_str(), error.as_deref()), ("", Some(expected)), "{wire}");
            assert_eq!(start.elapsed(), Duration::from_secs(59 + 600), "{wire}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_has_a_limit_before_and_after_the_first_byte() {
        for case in &THOUGHTS {
            let (wire, content_type) = (case.0, content_type(case.0));
            for (first, then, key) in [(61, 0, "first_event_timeout"), (59, 61, "idle_timeout")] {
                let mut pieces = thought(case, first, 0);
                pieces[1].0 = Duration::from_secs(then);
                let (text, error) = read(&config(wire), true, content_type, pieces).await;
                let expected = format!(
                    "the response was silent for 60s; raise the model's {key} if it needs longer"
                );
                assert_eq!((text.as_str(), error), ("", Some(expected)), "{wire}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_without_a_pause_end_too() {
        let limits = config(Wire::OpenaiChat);
        let pieces = vec![(Duration::ZERO, ": ping\n\n".to_owned()); 300_000];
        let read = read(&limits, true, "text/event-stream", pieces);
        let hours = async {
            loop {
                tokio::time::advance(Duration::from_millis(40)).await;
            }
        };
        let (_, error) = tokio::select! {
            read = read => read,
            () = hours => unreachable!(),
        };
        assert!(error.unwrap().contains("progress_timeout"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_document_has_the_limits_of_what_was_requested() {
        let document = r#"{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}"#;
        let (begin, rest) = document.split_at(20);
        let pieces = |white_space: u64| {
            let white_space = (0..white_space).map(|_| (Duration::from_secs(50), "\n".to_owned()));
            let parts = [begin, rest].map(|part| (Duration::from_secs(50), part.to_owned()));
            white_space.chain(parts).collect::<Vec<_>>()
        };
        let limits = config(Wire::OpenaiChat);
        let mut results = Vec::new();
        for (streamed, white_space) in [(true, 8), (true, 14), (false, 8), (false, 14)] {
            let pieces = pieces(white_space);
            let (text, error) = read(&limits, streamed, "application/json", pieces).await;
            results.push(error.map_or(text, |error| {
                ["progress_timeout", "answer_timeout"]
                    .into_iter()
                    .find(|key| error.contains(key))
                    .unwrap()
                    .to_owned()
            }));
        }
        assert_eq!(results, ["ok", "progress_timeout", "ok", "answer_timeout"]);
    }

    fn content_type(wire: Wire) -> &'static str {
        if wire == Wire::OllamaChat { "application/x-ndjson" } else { "text/event-stream" }
    }
}
