//! The decoder: splits the bytes of a response into payloads and decodes them with its dialect.
//! Handles everything around the JSON object that a dialect reads.
//!
//! A server-sent event or a line may have 16 MiB, and a plain body 64 MiB, unless [`DecoderOptions`] say otherwise:
//! the client of a model allows a plain body as many bytes as `max_response_bytes`.

use memchr::memchr;
use serde_json::value::RawValue;

use super::anthropic::AnthropicDialect;
use super::cumulative::CumulativeTexts;
use super::dialect::PayloadDecoder;
use super::error::{malformed, parse_error_event};
use super::fast_path::{PayloadTemplates, TemplateFields, TemplateSet};
use super::gemini::GeminiDialect;
use super::ollama::OllamaDialect;
use super::openai_chat::OpenaiChatDialect;
use super::openai_responses::OpenaiResponsesDialect;
use super::reasoning_tags::ReasoningTagReader;
use super::repair::{Repaired, repair};
use super::sse::{SseDecoder, SseEvent};
use super::{Delta, Framing, Problem, Wire};
use callsheet_values::types::{ProviderError, ProviderErrorKind, excerpt};

/// The limits of a decoder, what it must know of the request, and the switch of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderOptions {
    /// Maximum bytes of one server-sent event or of one line.
    pub event_bytes_max: usize,
    /// Maximum bytes of a body that is not a stream.
    pub body_bytes_max: usize,
    /// The maximum number of output tokens that the request asked for.
    pub output_tokens_max: Option<u64>,
    /// Decodes payloads that match a template without parsing them. The deltas are the same
    /// without it, but decoding takes longer.
    pub fast_path: bool,
}

impl Default for DecoderOptions {
    fn default() -> Self {
        Self {
            event_bytes_max: 16 << 20,
            body_bytes_max: 64 << 20,
            output_tokens_max: None,
            fast_path: true,
        }
    }
}

/// Turns the bytes of one response into deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoder {
    buffer: FramingBuffer,
    dialect: AnyDialect,
    fast_path: bool,
    templates: PayloadTemplates,
    cumulative: CumulativeTexts,
    tags: ReasoningTagReader,
    failed: Option<ProviderError>,
}

/// The bytes of a payload that is not complete yet, by framing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FramingBuffer {
    Sse(SseDecoder),
    Lines { line: Vec<u8>, bytes_max: usize },
    Whole { body: Vec<u8>, bytes_max: usize, event_bytes_max: usize },
}

/// The dialect of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AnyDialect {
    OpenaiChat(OpenaiChatDialect),
    OpenaiResponses(OpenaiResponsesDialect),
    Anthropic(AnthropicDialect),
    Gemini(GeminiDialect),
    Ollama(OllamaDialect),
}

impl AnyDialect {
    fn new(wire: Wire, output_tokens_max: Option<u64>) -> Self {
        match wire {
            Wire::OpenaiChat => Self::OpenaiChat(OpenaiChatDialect::default()),
            Wire::OpenaiResponses => {
                Self::OpenaiResponses(OpenaiResponsesDialect::new(output_tokens_max))
            }
            Wire::AnthropicMessages => Self::Anthropic(AnthropicDialect::default()),
            Wire::GeminiGenerate => Self::Gemini(GeminiDialect::default()),
            Wire::OllamaChat => Self::Ollama(OllamaDialect::default()),
        }
    }

    fn decoder(&mut self) -> &mut dyn PayloadDecoder {
        match self {
            Self::OpenaiChat(dialect) => dialect,
            Self::OpenaiResponses(dialect) => dialect,
            Self::Anthropic(dialect) => dialect,
            Self::Gemini(dialect) => dialect,
            Self::Ollama(dialect) => dialect,
        }
    }
}

/// The dialect together with the templates, which are absent if the fast path is off.
struct PayloadReader<'a> {
    dialect: &'a mut dyn PayloadDecoder,
    templates: Option<&'a mut TemplateSet>,
    cumulative: &'a mut CumulativeTexts,
}

impl PayloadReader<'_> {
    fn read(&mut self, event: &str, text: &str, out: &mut Vec<Delta>) {
        let templates = self.templates.as_deref_mut();
        if self.cumulative.is_over() {
            read_payload(self.dialect, templates, event, text, out);
        } else if self.cumulative.needs_pieces() {
            let mut new = Vec::new();
            read_payload(self.dialect, templates, event, text, &mut new);
            self.cumulative.read(&mut new, 0);
            out.append(&mut new);
        } else {
            let before = out.len();
            read_payload(self.dialect, templates, event, text, out);
            self.cumulative.read(out, before);
        }
    }

    fn read_event(&mut self, event: &SseEvent<'_>, out: &mut Vec<Delta>) {
        if event.lossy {
            out.push(not_utf8(event.data));
        }
        self.read(event.name, event.data, out);
    }

    fn read_bytes(&mut self, bytes: &[u8], out: &mut Vec<Delta>) {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        match simdutf8::basic::from_utf8(bytes) {
            Ok(text) => self.read("", text, out),
            Err(_) => {
                let text = String::from_utf8_lossy(bytes);
                out.push(not_utf8(&text));
                self.read("", &text, out);
            }
        }
    }

    /// Reads a complete body. Its end completes the response, unless the body has an error. A body without an answer
    /// is an error.
    fn read_body(&mut self, bytes: &[u8], out: &mut Vec<Delta>) {
        let malformed_body =
            |message| Delta::Error(ProviderError::new(ProviderErrorKind::Malformed, message));
        if bytes.is_empty() {
            out.push(malformed_body("the response body is empty"));
            return;
        }
        let mut added = Vec::new();
        self.read_bytes(bytes, &mut added);
        if added.iter().all(|delta| matches!(delta, Delta::Problem(_))) {
            added.push(malformed_body("the response body is not an answer in this wire format"));
        } else if !added.iter().any(|delta| matches!(delta, Delta::Error(_))) {
            added.push(Delta::Done);
        }
        out.append(&mut added);
    }
}

impl Decoder {
    /// Creates a decoder for one response.
    #[must_use]
    pub fn new(wire: Wire, framing: Framing, options: DecoderOptions) -> Self {
        Self::with_templates(wire, framing, options, PayloadTemplates::default())
    }

    /// Creates a decoder for one response that starts with the templates of an earlier response.
    #[must_use]
    pub fn with_templates(
        wire: Wire,
        framing: Framing,
        options: DecoderOptions,
        templates: PayloadTemplates,
    ) -> Self {
        let DecoderOptions { event_bytes_max, body_bytes_max, output_tokens_max, fast_path } =
            options;
        let buffer = match framing {
            Framing::Sse => FramingBuffer::Sse(SseDecoder::new(event_bytes_max)),
            Framing::JsonLines => {
                FramingBuffer::Lines { line: Vec::new(), bytes_max: event_bytes_max }
            }
            Framing::Json | Framing::JsonArray => FramingBuffer::Whole {
                body: Vec::new(),
                bytes_max: body_bytes_max,
                event_bytes_max,
            },
        };
        let dialect = AnyDialect::new(wire, output_tokens_max);
        let is_plain = framing == Framing::Json;
        let cumulative = CumulativeTexts::new(wire, !is_plain);
        let tags = ReasoningTagReader::new(is_plain);
        let templates = templates.for_wire(wire);
        Self { buffer, dialect, fast_path, templates, cumulative, tags, failed: None }
    }

    /// Returns the templates, for the decoder of the next response.
    #[must_use]
    pub fn into_templates(self) -> PayloadTemplates {
        self.templates
    }

    /// Decodes more bytes of the body and appends the deltas to `out`.
    ///
    /// # Errors
    /// A size limit is exceeded. Every later call returns the same error.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let before = out.len();
        let decoded = self.unless_failed(|this| this.decode(bytes, out));
        if !self.tags.is_over() {
            self.tags.read(out, before);
        }
        decoded
    }

    /// Handles the end of the body and appends the deltas of its last bytes to `out`.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self, out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let before = out.len();
        let decoded = self.unless_failed(|this| {
            this.decode_end(out)?;
            this.cumulative.finish(out);
            this.dialect.decoder().end_of_body(out);
            Ok(())
        });
        if !self.tags.is_over() {
            self.tags.read(out, before);
            self.tags.finish(out);
        }
        decoded
    }

    fn unless_failed(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<(), ProviderError>,
    ) -> Result<(), ProviderError> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => step(self).inspect_err(|error| self.failed = Some(error.clone())),
        }
    }

    fn decode(&mut self, mut bytes: &[u8], out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let templates = self.fast_path.then(|| self.templates.set_mut());
        let (dialect, cumulative) = (self.dialect.decoder(), &mut self.cumulative);
        let mut reader = PayloadReader { dialect, templates, cumulative };
        match &mut self.buffer {
            FramingBuffer::Sse(sse) => sse
                .push(bytes, &mut |event| reader.read_event(&event, out))
                .map_err(|error| too_large(&error)),
            FramingBuffer::Lines { line, bytes_max } => {
                while let Some(end) = memchr(b'\n', bytes) {
                    let (head, rest) = bytes.split_at(end);
                    bytes = rest.get(1..).unwrap_or_default();
                    extend(line, head, *bytes_max, "a line")?;
                    reader.read_bytes(line, out);
                    line.clear();
                }
                extend(line, bytes, *bytes_max, "a line")
            }
            FramingBuffer::Whole { body, bytes_max, .. } => {
                extend(body, bytes, *bytes_max, "the body")
            }
        }
    }

    fn decode_end(&mut self, out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let templates = self.fast_path.then(|| self.templates.set_mut());
        let (dialect, cumulative) = (self.dialect.decoder(), &mut self.cumulative);
        let mut reader = PayloadReader { dialect, templates, cumulative };
        match &mut self.buffer {
            FramingBuffer::Sse(sse) => sse
                .finish(&mut |event| reader.read_event(&event, out))
                .map_err(|error| too_large(&error)),
            FramingBuffer::Lines { line, .. } => {
                reader.read_bytes(&std::mem::take(line), out);
                Ok(())
            }
            FramingBuffer::Whole { body, event_bytes_max, .. } => {
                let body = std::mem::take(body);
                let text = body.trim_ascii();
                // Some services stream although a plain answer was requested.
                if [&b"data:"[..], b"event:", b":"].iter().any(|field| text.starts_with(field)) {
                    let mut sse = SseDecoder::new(*event_bytes_max);
                    let mut sink = |event: SseEvent<'_>| reader.read_event(&event, out);
                    return sse
                        .push(text, &mut sink)
                        .and_then(|()| sse.finish(&mut sink))
                        .map_err(|error| too_large(&error));
                }
                reader.read_body(text, out);
                Ok(())
            }
        }
    }
}

/// Decodes the next payload of a response and appends its deltas to `out`. `event` is the name of
/// the server-sent event, or empty.
///
/// A payload that matches one of the templates is not parsed. Any other payload is parsed in full
/// and, where possible, becomes a template. Without `templates` every payload is parsed in full.
pub(super) fn read_payload(
    decoder: &mut dyn PayloadDecoder,
    templates: Option<&mut TemplateSet>,
    event: &str,
    text: &str,
    out: &mut Vec<Delta>,
) {
    let Some(templates) = templates else {
        parse_in_full(decoder, event, text, out);
        return;
    };
    if let Some(matched) = templates.match_payload(event, text) {
        decoder.apply_match(&matched, out);
    } else if let Some(fields) = parse_in_full(decoder, event, text, out) {
        templates.add(event, text, &fields);
    }
}

/// Parses one payload of a stream, or a complete plain body, and appends its deltas to `out`.
/// `event` is the name of the server-sent event, or empty.
///
/// An event named `error` is an error on every wire. So is an object or a list that cannot be read, because
/// it may have held part of a call. Any other text is ignored, with a [`Problem`]. A JSON array is read as a list
/// of payloads; its items that are no objects are skipped.
///
/// Returns the fields of a template if the payload is a single object that holds one change and its dialect
/// has templates for it.
pub(super) fn parse_in_full<'p>(
    decoder: &mut dyn PayloadDecoder,
    event: &str,
    text: &'p str,
    out: &mut Vec<Delta>,
) -> Option<TemplateFields<'p>> {
    let mut text = text.trim();
    // Some proxies repeat the field name of server-sent events.
    while let Some(rest) = text.strip_prefix("data:") {
        text = rest.trim_start();
    }
    match text.as_bytes().first() {
        _ if text == "[DONE]" => decoder.done_marker(out),
        _ if event == "error" => out.push(Delta::Error(parse_error_event(text))),
        None => {}
        Some(b'{') => return parse_object(decoder, event, text, out),
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => {
                for item in items.iter().filter(|item| item.get().starts_with('{')) {
                    parse_object(decoder, event, item.get(), out);
                }
            }
            Err(error) => out.push(malformed(text, &error)),
        },
        Some(_) => {
            out.push(Delta::Problem(Problem { code: "not_json", detail: excerpt(text, 200) }));
        }
    }
    None
}

/// Parses an object, after a repair if necessary. A repaired payload never becomes a template.
fn parse_object<'p>(
    decoder: &mut dyn PayloadDecoder,
    event: &str,
    text: &'p str,
    out: &mut Vec<Delta>,
) -> Option<TemplateFields<'p>> {
    let error = match decoder.parse_payload(event, text, out) {
        Ok(fields) => return fields,
        Err(error) => error,
    };
    match repair(text) {
        Some(Repaired::Payload(repaired)) => {
            if decoder.parse_payload(event, &repaired, out).is_err() {
                out.push(malformed(text, &error));
            }
        }
        Some(Repaired::Payloads(payloads)) => {
            for payload in payloads {
                parse_in_full(decoder, "", payload, out);
            }
        }
        None => out.push(malformed(text, &error)),
    }
    None
}

fn extend(
    buffer: &mut Vec<u8>,
    bytes: &[u8],
    bytes_max: usize,
    what: &str,
) -> Result<(), ProviderError> {
    if buffer.len() + bytes.len() > bytes_max {
        return Err(too_large(&format!("{what} is longer than {bytes_max} bytes")));
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}

fn too_large(what: &impl std::fmt::Display) -> ProviderError {
    ProviderError::new(ProviderErrorKind::TooLarge, what.to_string())
}

fn not_utf8(text: &str) -> Delta {
    Delta::Problem(Problem { code: "not_utf8", detail: excerpt(text, 200) })
}

/// Decodes the payloads of one complete response, for the tests of the dialects.
#[cfg(test)]
pub(super) fn deltas<D: PayloadDecoder + Default>(payloads: &[&str]) -> Vec<Delta> {
    let mut decoder = D::default();
    let mut out = Vec::new();
    for payload in payloads {
        parse_in_full(&mut decoder, "", payload, &mut out);
    }
    decoder.end_of_body(&mut out);
    out
}
