//! A framing and a dialect: bytes in any cut to deltas.

use memchr::memchr;

use super::anthropic::Anthropic;
use super::dialect::Dialect;
use super::gemini::Gemini;
use super::ollama::Ollama;
use super::openai_chat::OpenaiChat;
use super::openai_responses::OpenaiResponses;
use super::payload;
use super::shapes::Known;
use super::sse::{SseDecoder, SseEvent};
use super::{Delta, Framing, Problem, Wire};
use crate::types::{ProviderError, ProviderErrorKind};

/// How much a decoder holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecoderLimits {
    /// Bytes of one event, or of one line.
    pub event_bytes_max: usize,
    /// Bytes of one body that is not a stream.
    pub body_bytes_max: usize,
}

impl Default for DecoderLimits {
    fn default() -> Self {
        Self { event_bytes_max: 16 << 20, body_bytes_max: 64 << 20 }
    }
}

/// What is known of how a service writes its payloads: kept from one response to the next, most of
/// them need not be parsed. Without it the deltas are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayloadTemplates {
    wire: Option<Wire>,
    known: Known,
}

/// Turns the bytes of one response into deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoder {
    frames: Frames,
    dialect: AnyDialect,
    shapes: PayloadTemplates,
    failed: Option<ProviderError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Frames {
    Sse(SseDecoder),
    Lines { line: Vec<u8>, bytes_max: usize },
    Whole { body: Vec<u8>, bytes_max: usize, event_bytes_max: usize },
}

/// The dialect of the response that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AnyDialect {
    OpenaiChat(OpenaiChat),
    OpenaiResponses(OpenaiResponses),
    Anthropic(Anthropic),
    Gemini(Gemini),
    Ollama(Ollama),
}

impl AnyDialect {
    fn new(wire: Wire) -> Self {
        match wire {
            Wire::OpenaiChat => Self::OpenaiChat(OpenaiChat::default()),
            Wire::OpenaiResponses => Self::OpenaiResponses(OpenaiResponses::default()),
            Wire::AnthropicMessages => Self::Anthropic(Anthropic::default()),
            Wire::GeminiGenerate => Self::Gemini(Gemini::default()),
            Wire::OllamaChat => Self::Ollama(Ollama::default()),
        }
    }

    fn end(&mut self, out: &mut Vec<Delta>) {
        match self {
            Self::OpenaiChat(dialect) => dialect.end(out),
            Self::OpenaiResponses(dialect) => dialect.end(out),
            Self::Anthropic(dialect) => dialect.end(out),
            Self::Gemini(dialect) => dialect.end(out),
            Self::Ollama(dialect) => dialect.end(out),
        }
    }
}

/// The dialect with what it has read before.
struct Reading<'a> {
    dialect: &'a mut AnyDialect,
    known: &'a mut Known,
}

impl Reading<'_> {
    fn payload(&mut self, event: &str, text: &str, out: &mut Vec<Delta>) {
        let known = &mut *self.known;
        match self.dialect {
            AnyDialect::OpenaiChat(of) => payload::read_next(of, known, event, text, out),
            AnyDialect::OpenaiResponses(of) => payload::read_next(of, known, event, text, out),
            AnyDialect::Anthropic(of) => payload::read_next(of, known, event, text, out),
            AnyDialect::Gemini(of) => payload::read_next(of, known, event, text, out),
            AnyDialect::Ollama(of) => payload::read_next(of, known, event, text, out),
        }
    }
}

impl Decoder {
    /// A decoder for one response.
    #[must_use]
    pub fn new(wire: Wire, framing: Framing, limits: DecoderLimits) -> Self {
        Self::with_templates(wire, framing, limits, PayloadTemplates::default())
    }

    /// A decoder for one response, with the shapes of an earlier one. Those of another wire are
    /// forgotten.
    #[must_use]
    pub fn with_templates(
        wire: Wire,
        framing: Framing,
        limits: DecoderLimits,
        shapes: PayloadTemplates,
    ) -> Self {
        let DecoderLimits { event_bytes_max, body_bytes_max } = limits;
        let frames = match framing {
            Framing::Sse => Frames::Sse(SseDecoder::new(event_bytes_max)),
            Framing::JsonLines => Frames::Lines { line: Vec::new(), bytes_max: event_bytes_max },
            Framing::Json | Framing::JsonArray => {
                Frames::Whole { body: Vec::new(), bytes_max: body_bytes_max, event_bytes_max }
            }
        };
        let dialect = AnyDialect::new(wire);
        let known = if shapes.wire == Some(wire) { shapes.known } else { Known::default() };
        Self { frames, dialect, shapes: PayloadTemplates { wire: Some(wire), known }, failed: None }
    }

    /// The shapes that are known now, for the next response.
    #[must_use]
    pub fn into_templates(self) -> PayloadTemplates {
        self.shapes
    }

    /// Takes more bytes of the body and appends what they mean to `out`.
    ///
    /// # Errors
    /// When a hard cap is reached. From then on every call gives the same error.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        self.guarded(|this| this.take(bytes, out))
    }

    /// Says that the body has ended, and appends what its last bytes mean to `out`.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self, out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        self.guarded(|this| {
            this.take_end(out)?;
            this.dialect.end(out);
            Ok(())
        })
    }

    fn guarded(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<(), ProviderError>,
    ) -> Result<(), ProviderError> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => step(self).inspect_err(|error| self.failed = Some(error.clone())),
        }
    }

    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let reading = &mut Reading { dialect: &mut self.dialect, known: &mut self.shapes.known };
        match &mut self.frames {
            Frames::Sse(sse) => sse
                .push(bytes, &mut |event| take_event(reading, &event, out))
                .map_err(|error| too_large(&error)),
            Frames::Lines { line, bytes_max } => {
                while let Some(end) = memchr(b'\n', bytes) {
                    let (head, rest) = bytes.split_at(end);
                    bytes = rest.get(1..).unwrap_or_default();
                    extend(line, head, *bytes_max, "a line")?;
                    take_text(reading, line, out);
                    line.clear();
                }
                extend(line, bytes, *bytes_max, "a line")
            }
            Frames::Whole { body, bytes_max, .. } => extend(body, bytes, *bytes_max, "the body"),
        }
    }

    fn take_end(&mut self, out: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let reading = &mut Reading { dialect: &mut self.dialect, known: &mut self.shapes.known };
        match &mut self.frames {
            Frames::Sse(sse) => sse
                .finish(&mut |event| take_event(reading, &event, out))
                .map_err(|error| too_large(&error)),
            Frames::Lines { line, .. } => {
                take_text(reading, &std::mem::take(line), out);
                Ok(())
            }
            Frames::Whole { body, event_bytes_max, .. } => {
                let body = std::mem::take(body);
                let text = body.trim_ascii();
                // Some services stream although a plain answer was asked for.
                if [&b"data:"[..], b"event:", b":"].iter().any(|field| text.starts_with(field)) {
                    let mut sse = SseDecoder::new(*event_bytes_max);
                    let mut sink = |event: SseEvent<'_>| take_event(reading, &event, out);
                    return sse
                        .push(text, &mut sink)
                        .and_then(|()| sse.finish(&mut sink))
                        .map_err(|error| too_large(&error));
                }
                take_body(reading, text, out);
                Ok(())
            }
        }
    }
}

fn take_event(reading: &mut Reading<'_>, event: &SseEvent<'_>, out: &mut Vec<Delta>) {
    if event.lossy {
        out.push(not_utf8(event.data));
    }
    reading.payload(event.name, event.data, out);
}

fn take_text(reading: &mut Reading<'_>, bytes: &[u8], out: &mut Vec<Delta>) {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => reading.payload("", text, out),
        Err(_) => {
            let text = String::from_utf8_lossy(bytes);
            out.push(not_utf8(&text));
            reading.payload("", &text, out);
        }
    }
}

/// Reads a whole body; an end without an error is the wire's sign that the response is over.
fn take_body(reading: &mut Reading<'_>, bytes: &[u8], out: &mut Vec<Delta>) {
    if bytes.is_empty() {
        let error = ProviderError::new(ProviderErrorKind::Malformed, "the response body is empty");
        out.push(Delta::Error(error));
        return;
    }
    let mut added = Vec::new();
    take_text(reading, bytes, &mut added);
    if added.iter().all(|delta| matches!(delta, Delta::Problem(_))) {
        let error = ProviderError::new(
            ProviderErrorKind::Malformed,
            "the response body is no answer of this wire",
        );
        added.push(Delta::Error(error));
    } else if !added.iter().any(|delta| matches!(delta, Delta::Error(_))) {
        added.push(Delta::Done);
    }
    out.append(&mut added);
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
    Delta::Problem(Problem { code: "not_utf8", detail: crate::types::excerpt(text, 200) })
}
