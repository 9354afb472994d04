//! One exchange with a model: a request and its streamed response. Reads calls in the text of the
//! response and replaces secrets in it. Fails a response that stalls: after `first_event_timeout` without a
//! first delta, after `idle_timeout` between two deltas, and after `answer_timeout` if it is not streamed.
//!
//! A service may answer a plain request with a stream. Then `answer_timeout` limits the time to the first delta, and
//! `idle_timeout` each time between two: a stream that makes progress goes on, as one that was requested does.
//! It may also answer a request for a stream with a whole JSON body, whose bytes then count as deltas for the limits.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt as _;
use reqwest::header::CONTENT_TYPE;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::deadline::{ANSWER_TIMEOUT, DeltaDeadline, FIRST_EVENT_TIMEOUT, IDLE_TIMEOUT};
use super::error::RetryHints;
use super::source::SourceExchange;
use super::{ClientInner, ModelRequest, error};
use crate::response::DeltaRedactor;
use crate::types::{
    ProviderError, ProviderErrorKind, TRACEPARENT, TRACESTATE, ToolRefusal, TraceContext, one_line,
};
use crate::wire::{
    CallDelta, CallReader, Decoder, DecoderOptions, Delta, Framing, PayloadTemplates,
    ToolDefinition, find_refused_tools, http_error,
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

/// The number of polls after a deadline, each after a yield: the I/O driver and the task of the connection have to
/// run before data that has arrived can be read.
const POLLED_AGAIN: u32 = 4;

/// A request to a model and its response, in which the host's secrets are replaced.
#[derive(Debug)]
pub(in crate::runtime) struct ModelExchange {
    response: ServiceExchange,
    /// `None` if calls come in the form of the wire format.
    calls: Option<Box<PromptedCalls>>,
    /// `None` if the host has no secrets.
    redactor: Option<DeltaRedactor>,
    /// The names of tools that were sent under an alias, by alias.
    tool_names: BTreeMap<Arc<str>, String>,
}

impl ModelExchange {
    /// Creates an exchange. `calls` reads the calls in the text of the response.
    pub(super) fn new(
        response: ServiceExchange,
        calls: Option<CallReader>,
        redactor: Option<DeltaRedactor>,
    ) -> Self {
        let (calls, tool_names) = (calls.map(PromptedCalls::new), BTreeMap::new());
        Self { response, calls, redactor, tool_names }
    }

    /// Replaces the names of tools in the response by these, by alias.
    pub(super) fn with_names(self, tool_names: BTreeMap<Arc<str>, String>) -> Self {
        Self { tool_names, ..self }
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
            if let Some(mut error) = self.calls.as_mut().and_then(|calls| calls.error.take()) {
                if let Some(redactor) = &self.redactor {
                    redactor.redact_error(&mut error);
                }
                return Some(Err(error));
            }
            let mut batch = match &mut self.response {
                ServiceExchange::Http(exchange) => exchange.next().await,
                ServiceExchange::Source(exchange) => exchange.next().await,
            };
            if let (Some(Ok(batch)), false) = (&mut batch, self.tool_names.is_empty()) {
                replace_names(batch, &self.tool_names);
            }
            if let Some(calls) = &mut self.calls {
                batch = calls.read(batch);
                if batch.as_ref().is_some_and(|batch| batch.as_ref().is_ok_and(Vec::is_empty)) {
                    continue;
                }
            }
            let Some(redactor) = &mut self.redactor else { return batch };
            match batch {
                Some(Ok(batch)) => {
                    let batch = redactor.redact(batch);
                    if !batch.is_empty() {
                        return Some(Ok(batch));
                    }
                }
                Some(Err(mut error)) => {
                    redactor.redact_error(&mut error);
                    return Some(Err(error));
                }
                None => return redactor.finish().map(|delta| Ok(vec![delta])),
            }
        }
    }
}

/// Replaces the aliases of tools in calls by their names.
fn replace_names(batch: &mut [Delta], names: &BTreeMap<Arc<str>, String>) {
    for delta in batch {
        if let Delta::Call(CallDelta { name: Some(name), .. }) = delta
            && let Some(original) = names.get(&**name)
        {
            name.clone_from(original);
        }
    }
}

/// The calls in the text of a response.
#[derive(Debug)]
struct PromptedCalls {
    reader: CallReader,
    /// An error that came while text was held back.
    error: Option<ProviderError>,
}

impl PromptedCalls {
    fn new(reader: CallReader) -> Box<Self> {
        Box::new(Self { reader, error: None })
    }

    /// Reads calls from what the service has sent. Nothing that was held back is lost at the end.
    fn read(
        &mut self,
        batch: Option<Result<Vec<Delta>, ProviderError>>,
    ) -> Option<Result<Vec<Delta>, ProviderError>> {
        let end = match batch {
            Some(Ok(batch)) => return Some(Ok(self.reader.read(batch))),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let held = self.reader.finish();
        if held.is_empty() {
            return end.map(Err);
        }
        self.error = end;
        Some(Ok(held))
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
    /// True if the body has no separate events. Any bytes extend the deadline then, if a stream was requested.
    is_single_document: bool,
    /// The time at which the exchange fails for lack of deltas. In a stream only deltas extend it: a service that
    /// sends nothing but comments times out like a silent one.
    deadline: DeltaDeadline,
    /// The configuration key of the deadline's time limit.
    time_limit_key: &'static str,
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
        Self { client, streamed, trace: None, templates, tools, state }
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
        // A response that is not streamed has one time limit, because nothing arrives while the
        // model writes.
        let (time_limit, key) = match self.streamed {
            true => (self.client.first_event_timeout, FIRST_EVENT_TIMEOUT),
            false => (self.client.answer_timeout, ANSWER_TIMEOUT),
        };
        let transport = |error| error::transport(error, &self.client.plain.url);
        let mut deadline = DeltaDeadline::new(time_limit, self.client.lag_clock.clone());
        let mut request = self.client.request(body, self.streamed);
        if let Some(trace) = &self.trace {
            request = request.header(TRACEPARENT, trace.traceparent());
            if let Some(state) = trace.tracestate() {
                request = request.header(TRACESTATE, state);
            }
        }
        let mut sent = std::pin::pin!(request.send());
        let response = loop {
            if let Ok(response) = timeout_at(deadline.at(), &mut sent).await {
                break response.map_err(transport)?;
            }
            let woken = Instant::now();
            if let Some(response) = poll_again(&mut sent).await {
                break response.map_err(transport)?;
            }
            if deadline.is_over(woken) {
                return Err(error::silence_timeout("no answer came", time_limit, key));
            }
        };
        if !response.status().is_success() {
            return Err(read_http_error(response, deadline.at()).await);
        }
        error::check_encoding(response.headers())?;
        let hints = RetryHints::read(response.headers(), SystemTime::now());
        let (decoder, whole, done) = (None, false, false);
        let alarm = Box::pin(sleep_until(deadline.at()));
        let bytes_left = self.client.response_bytes_max;
        Ok(ResponseBody {
            response,
            decoder,
            is_single_document: whole,
            deadline,
            time_limit_key: key,
            bytes_left,
            alarm,
            done,
            hints,
        })
    }
}

impl ResponseBody {
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
                None | Some(Err(_) | Ok(None)) if self.done => return None,
                None => {
                    let time_limit = self.deadline.time_limit();
                    return Some(Err(error::silence_timeout(
                        "the response was silent",
                        time_limit,
                        self.time_limit_key,
                    )));
                }
                Some(Err(error)) => {
                    return Some(Err(error::transport(error, &client.plain.url)));
                }
                Some(Ok(chunk)) => chunk,
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
                self.deadline.restart(BODY_END_WAIT_MAX);
            } else if !streamed && self.is_single_document {
                // `answer_timeout` counts from the request to the end of the body.
            } else if self.is_single_document || !batch.is_empty() {
                // Only bytes that decode to at least one delta restart `idle_timeout`. Keep-alive comments,
                // Anthropic's ping and unknown events do not: a service that only pings counts as silent.
                self.deadline.restart(client.idle_timeout);
                self.time_limit_key = IDLE_TIMEOUT;
            }
            if !batch.is_empty() {
                return Some(Ok(batch));
            }
            if ended {
                return None;
            }
        }
    }

    /// Returns the next chunk of the body, `Ok(None)` after the last chunk, or `None` at the
    /// deadline.
    async fn chunk(&mut self) -> Option<reqwest::Result<Option<Bytes>>> {
        loop {
            if self.alarm.deadline() > self.deadline.at() {
                self.alarm.as_mut().reset(self.deadline.at());
            }
            tokio::select! {
                biased;
                read = self.response.chunk() => return Some(read),
                () = &mut self.alarm => {}
            }
            let woken = Instant::now();
            if self.deadline.at() <= woken {
                if let Some(read) = poll_again(std::pin::pin!(self.response.chunk())).await {
                    return Some(read);
                }
                if self.deadline.is_over(woken) {
                    return None;
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
    use serde_json::json;

    use super::super::ModelStream;
    use super::super::deadline::HostLagClock;
    use super::*;
    use crate::types::{REDACTED, Secrets, ToolProtocol};

    #[tokio::test]
    async fn secrets_are_replaced_in_an_error_that_comes_while_text_is_held_back() {
        let secret = "a-secret-of-the-host";
        let source = move |_: ModelRequest| -> ModelStream {
            let error = format!("the key {secret} is not known");
            let error = ProviderError::new(ProviderErrorKind::Transport, error);
            // The text may be the beginning of a call.
            let text = Delta::Text("<tool_c".to_owned());
            Box::pin(futures::stream::iter([Ok(vec![text]), Err(error)]))
        };
        let (request, limit) = (ModelRequest::new("m", [].into()), Duration::from_secs(60));
        let clock = HostLagClock::default();
        let source = SourceExchange::new(Arc::new(source), &request, limit, limit, clock);
        let tools = [ToolDefinition::new("f", "for a test", json!({}))].into();
        let calls = CallReader::new(ToolProtocol::Hermes, &tools);
        let redactor = DeltaRedactor::new(&Secrets::new([secret]));
        let response = ServiceExchange::Source(Box::new(source));
        let mut exchange = ModelExchange::new(response, calls, redactor);
        let held = exchange.next().await.unwrap().unwrap();
        assert!(matches!(held.as_slice(), [Delta::Problem(_)]), "{held:?}");
        let error = exchange.next().await.unwrap().unwrap_err();
        assert_eq!(error.message, format!("the key {REDACTED} is not known"));
    }
}
