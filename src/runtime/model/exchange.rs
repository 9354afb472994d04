//! One exchange with a model: a request, and its response as it comes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::CONTENT_TYPE;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::error::RetryHints;
use super::{ClientInner, error};
use crate::types::{
    ProviderError, ProviderErrorKind, TRACEPARENT, TRACESTATE, TraceContext, one_line,
};
use crate::wire::{Decoder, DecoderOptions, Delta, Framing, PayloadTemplates, http_error};

/// How much of an error's body is read.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// How long it is waited for. The status alone says enough to go on.
const ERROR_BODY_WAIT_MAX: Duration = Duration::from_secs(2);

/// How much of a body that is no answer is quoted.
const QUOTE_CHARS: usize = 100;

/// How long the end of a body is waited for once nothing that counts can follow. A
/// body that was read to its end leaves its connection for the next request.
const TAIL_MAX: Duration = Duration::from_millis(100);

/// A request and its response. Dropping it drops the connection if the body has not ended.
#[derive(Debug)]
pub(crate) struct Exchange {
    client: Arc<ClientInner>,
    streamed: bool,
    trace: Option<TraceContext>,
    templates: PayloadTemplates,
    state: ExchangeState,
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
    /// Whether bytes count as a sign of life, as they do where events are not told apart.
    whole: bool,
    /// When silence has lasted too long. Only real events push it on: a service that sends
    /// nothing but comments is as silent as one that sends nothing.
    deadline: Instant,
    patience: Duration,
    /// Wakes at the deadline or before. One for all chunks: to set one for each costs more than it
    /// does to be woken too early now and then.
    alarm: Pin<Box<Sleep>>,
    /// The wire has said that the response is over, or the service that it has failed.
    done: bool,
    wishes: RetryHints,
}

impl Exchange {
    /// Creates an exchange. `templates` are those of the session's earlier responses.
    pub(super) fn new(
        client: Arc<ClientInner>,
        streamed: bool,
        body: Bytes,
        templates: PayloadTemplates,
    ) -> Self {
        Self { client, streamed, trace: None, templates, state: ExchangeState::Unsent { body } }
    }

    /// Returns the templates for the next response; none unless the response was read to its end.
    pub(super) fn into_templates(self) -> PayloadTemplates {
        self.templates
    }

    /// The same as a part of somebody's trace.
    pub(crate) fn with_trace(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// The next batch of the response, never an empty one: what one chunk of the body decoded to.
    /// After an error there is nothing more.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<Delta>, ProviderError>> {
        let mut reading = match std::mem::replace(&mut self.state, ExchangeState::Over) {
            ExchangeState::Unsent { body } => match self.send(body).await {
                Ok(reading) => Box::new(reading),
                Err(mut error) => {
                    error::place(&mut error, &self.client.plain.url);
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
                    reading.wishes.put_on(error);
                    error::place(error, &self.client.plain.url);
                }
            }
            Err(error) => error::place(error, &self.client.plain.url),
        }
        if batch.is_ok() {
            self.state = ExchangeState::ResponseBody(reading);
        }
        Some(batch)
    }

    async fn send(&self, body: Bytes) -> Result<ResponseBody, ProviderError> {
        // A plain answer has one limit for the whole of it: nothing arrives while the model writes.
        let patience = match self.streamed {
            true => self.client.first_event_timeout,
            false => self.client.answer_timeout,
        };
        let deadline = Instant::now() + patience;
        let mut request = self.client.request(body, self.streamed);
        if let Some(trace) = &self.trace {
            request = request.header(TRACEPARENT, trace.traceparent());
            if let Some(state) = trace.tracestate() {
                request = request.header(TRACESTATE, state);
            }
        }
        let sent = request.send();
        let response = timeout_at(deadline, sent)
            .await
            .map_err(|_| error::silence("no answer came", patience))?
            .map_err(error::transport)?;
        if !response.status().is_success() {
            return Err(refusal(response, deadline).await);
        }
        error::check_encoding(response.headers())?;
        let wishes = RetryHints::read(response.headers(), SystemTime::now());
        let (decoder, whole, done) = (None, false, false);
        let alarm = Box::pin(sleep_until(deadline));
        Ok(ResponseBody { response, decoder, whole, deadline, patience, alarm, done, wishes })
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
                // What comes after the wire's last word does not change the response.
                None | Some(Err(_) | Ok(None)) if self.done => return None,
                None => {
                    return Some(Err(error::silence("the response was silent", self.patience)));
                }
                Some(Err(error)) => return Some(Err(error::transport(error))),
                Some(Ok(chunk)) => chunk,
            };
            let ended = chunk.is_none();
            let bytes = chunk.unwrap_or_default();
            let decoder = match &mut self.decoder {
                Some(decoder) => decoder,
                None => {
                    if let Some(error) = no_answer(&bytes) {
                        return Some(Err(error));
                    }
                    let framing = framing(client, streamed, &self.response, &bytes);
                    self.whole = framing == Framing::Json;
                    let options =
                        DecoderOptions { fast_path: client.fast_path, ..DecoderOptions::default() };
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
                // Nothing that follows buys the service more time.
            } else if batch.iter().any(is_last) {
                self.done = true;
                self.deadline = Instant::now() + TAIL_MAX;
            } else if !streamed && self.whole {
                // `answer_timeout` counts from the request.
            } else if self.whole || !batch.is_empty() {
                self.patience = client.idle_timeout;
                self.deadline = Instant::now() + self.patience;
            }
            if !batch.is_empty() {
                return Some(Ok(batch));
            }
            if ended {
                return None;
            }
        }
    }

    /// The next chunk of the body, `Ok(None)` behind the last one; none by the deadline.
    async fn chunk(&mut self) -> Option<reqwest::Result<Option<Bytes>>> {
        loop {
            if self.alarm.deadline() > self.deadline {
                self.alarm.as_mut().reset(self.deadline);
            }
            tokio::select! {
                biased;
                read = self.response.chunk() => return Some(read),
                () = &mut self.alarm => {}
            }
            if self.deadline <= Instant::now() {
                return None;
            }
            self.alarm.as_mut().reset(self.deadline);
        }
    }
}

/// Whether nothing that counts follows: some services keep a stream open whose error they have
/// told, and what comes after an error mends nothing.
fn is_last(delta: &Delta) -> bool {
    matches!(delta, Delta::Done | Delta::Error(_))
}

/// The error that a response reports itself.
fn reported(delta: &mut Delta) -> Option<&mut ProviderError> {
    if let Delta::Error(error) = delta { Some(error) } else { None }
}

/// How the body is framed: as its content type says, or as it looks, whatever was asked for.
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
    let asked = client.wire.framing(streamed);
    let is_lines =
        ["application/x-ndjson", "application/jsonl"].iter().any(|k| kind.starts_with(k));
    if is_lines || asked == Framing::JsonLines {
        return Framing::JsonLines;
    }
    let looks_plain = begin.trim_ascii_start().first().is_some_and(|byte| b"{[".contains(byte));
    if kind.starts_with("application/json") || looks_plain {
        return Framing::Json;
    }
    asked
}

/// What is wrong with a body that begins like a web page, whatever its content type says: no wire
/// has such an answer, and its lines would be passed over in silence.
fn no_answer(begin: &[u8]) -> Option<ProviderError> {
    let begin = begin.trim_ascii_start();
    begin.starts_with(b"<").then(|| {
        let quote = one_line(&String::from_utf8_lossy(begin), QUOTE_CHARS);
        let message = format!(
            "the service answered with a page instead of a response (see the model's base_url): \
             {quote}"
        );
        ProviderError::new(ProviderErrorKind::Malformed, message)
    })
}

/// The error that a status says, with what the service says of it.
async fn refusal(mut response: reqwest::Response, deadline: Instant) -> ProviderError {
    let status = response.status().as_u16();
    let wishes = RetryHints::read(response.headers(), SystemTime::now());
    let deadline = deadline.min(Instant::now() + ERROR_BODY_WAIT_MAX);
    let readable = error::check_encoding(response.headers()).is_ok();
    let hint = error::hint(status, response.headers(), wishes.retry_after);
    let mut body = Vec::new();
    while readable
        && body.len() < ERROR_BODY_BYTES_MAX
        && let Ok(Ok(Some(bytes))) = timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&bytes);
    }
    body.truncate(ERROR_BODY_BYTES_MAX);
    let mut error = http_error(status, &String::from_utf8_lossy(&body));
    wishes.put_on(&mut error);
    error.message.push_str(&hint);
    error
}
