//! The wires: the HTTP formats of five provider APIs. Encodes requests, and decodes responses into deltas.
//!
//! This module is pure: no HTTP, no clock, no environment. A [`Decoder`] has a framing and a
//! dialect. It accepts bytes in pieces of any size and returns [`Delta`]s. If a wire does not mark the
//! starts and ends of calls, its dialect does not infer them. The assembler of the response does
//! (`response::ResponseAssembler`).
//!
//! | file | what it does |
//! | --- | --- |
//! | `dialect` | the two traits that every dialect implements |
//! | `request` | a request to a model, independent of the wire |
//! | `request_cache` | the body of a request, which reuses the bytes of the previous one; detects prompts that miss the service's prompt cache |
//! | `anthropic/request`, `anthropic/messages` | prompt caching: the breakpoints (`cache_control`); OpenAI's `prompt_cache_key`: `Wire::cache_key` below |
//! | `extra_members` | the members of a body, merged with `extra_body` of the configuration |
//! | `tool_schema`, `portable_pattern` | schemas and descriptions of tools, widened to what services accept |
//! | `refused_tools` | errors of requests whose tools the service refuses |
//! | `tool_aliases` | names of tools and properties that a service refuses, and back |
//! | `tool_images` | images of tool results, for wires whose results have only text |
//! | `call_ids` | call ids and tool names in the form that a service accepts |
//! | `decoder` | bytes to payloads by framing, payloads to deltas by dialect; proxy prefixes, lists, `[DONE]`, errors |
//! | `sse` | server-sent events (SSE), also cut at any byte |
//! | `fast_path` | payloads that match a template and need no parse |
//! | `cumulative` | texts whose pieces each repeat all of the text so far |
//! | `reasoning_tags` | reasoning in `<think>` at the beginning of the text |
//! | `lenient` | deserialisation that ignores values of unexpected types |
//! | `repair` | repair of invalid JSON |
//! | `answer_schema` | JSON schemas of answers in the forms that services accept |
//! | `error` | error bodies and error payloads of all services |
//! | `overflow` | errors of requests that are larger than the context window |
//! | `reasoning_refusal` | errors of requests whose messages have reasoning, or lack it |
//! | `content_refusal` | errors of requests with content that the service refuses: images, texts |
//! | `delta` | the deltas |
//! | `tool_protocol` | calls in the text, for models without tool calling |
//!
//! The folder of each dialect (`openai_chat`, `openai_responses`, `anthropic`, `gemini`, `ollama`)
//! has these files where it needs them. Some share a file of another dialect, and some have further
//! ones, described at their top.
//!
//! | file | what it does |
//! | --- | --- |
//! | `mod` | the source of the format, and the state of a response |
//! | `request` | the address and the members of the body other than the history (`max_tokens`, `temperature`, `tool_choice`, `response_format`): `RequestFormat` |
//! | `messages` | the history: roles, empty messages, ids of calls, images, reasoning |
//! | `payload` | the types of the payloads, and the fields for the fast path |
//! | `decode` | payloads to deltas, and the finish reasons (`stop_reason`): `PayloadDecoder` |
//! | `stream` | the calls, blocks or items of a stream that are not complete yet |
//! | `metadata` | data that the service wants back with the next request (signatures of thinking, encrypted reasoning) |
//! | `usage` | token counts (usage, also cached tokens) |
//!
//! A new dialect needs these steps:
//!
//! 1. A variant of [`Wire`] with its word, in `types/wire.rs`.
//! 2. A folder with a type that implements `RequestFormat` and `PayloadDecoder`. The latter needs
//!    `apply_match` if `parse_payload` returns fields for the fast path, and `end_of_body` if the
//!    end of the body means anything.
//! 3. An arm in `dialect_of!` below and in `AnyDialect` of the decoder. The compiler reports if one is missing.
//! 4. Tests: payloads and errors in the folder's `tests.rs`, bodies as snapshots in `request.rs`
//!    and `messages.rs`, a strategy in `fast_path/tests/payloads.rs`, recordings for
//!    `tests/library/corpus_decode.rs`, and the wire in the lists of `request_cache/tests.rs`,
//!    `tests/library/hostile.rs`, `tests/providers/wire_pairs.rs` and `tests/library/wire_splits.rs`.
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]
#![warn(clippy::indexing_slicing)]

pub mod response;

mod answer_schema;
mod anthropic;
mod call_ids;
mod content_refusal;
mod cumulative;
mod decoder;
mod delta;
mod dialect;
mod error;
mod extra_members;
mod fast_path;
mod gemini;
mod lenient;
mod ollama;
mod openai_chat;
mod openai_responses;
mod overflow;
mod portable_pattern;
mod reasoning_refusal;
mod reasoning_tags;
mod refusal;
mod refused_tools;
mod repair;
mod request;
mod request_cache;
mod sse;
mod tool_aliases;
mod tool_images;
mod tool_protocol;
mod tool_schema;

use std::fmt;
use std::str::FromStr;

use anthropic::AnthropicDialect;
use dialect::RequestFormat;
use extra_members::body_members;
use gemini::GeminiDialect;
use ollama::OllamaDialect;
use openai_chat::OpenaiChatDialect;
use openai_responses::OpenaiResponsesDialect;
use request_cache::{HistoryWriter, ReusablePrefix};

pub use callsheet_values::types::Wire;
pub use decoder::{Decoder, DecoderOptions};
pub use delta::{CallDelta, CallKind, Delta, Problem, ProviderMetadata};
pub use dialect::KeyHeader;
pub use error::http_error;
pub use fast_path::PayloadTemplates;
pub use fast_path::plain_bytes;
pub use refused_tools::find_refused_tools;
pub use repair::repair_tokens;
pub use repair::replace_lone_surrogates;
pub use request::{ModelRequest, PromptChange, ToolChoice, ToolDefinition};
pub use request_cache::{HeadCache, RequestCache};
pub use sse::{EventTooLong, SseDecoder, SseEvent};
pub use tool_aliases::{AliasRenderer, original_properties, renamed};
pub use tool_protocol::CallReader;
pub use tool_protocol::PromptRenderer;

/// Evaluates an expression with a type alias for the dialect of a wire.
macro_rules! dialect_of {
    ($wire:expr, $dialect:ident => $value:expr) => {
        match $wire {
            Wire::OpenaiChat => {
                type $dialect = OpenaiChatDialect;
                $value
            }
            Wire::OpenaiResponses => {
                type $dialect = OpenaiResponsesDialect;
                $value
            }
            Wire::AnthropicMessages => {
                type $dialect = AnthropicDialect;
                $value
            }
            Wire::GeminiGenerate => {
                type $dialect = GeminiDialect;
                $value
            }
            Wire::OllamaChat => {
                type $dialect = OllamaDialect;
                $value
            }
        }
    };
}

/// The HTTP exchange of a wire format: address, headers and body of a request, framing of a response.
pub trait WireFormat: Sized {
    /// Returns the address for requests to a model, below its `base_url`.
    #[must_use]
    fn url(self, base_url: &str, model: &str, stream: bool) -> String;

    /// Returns the header that carries the API key.
    #[must_use]
    fn key_header(self) -> KeyHeader;

    /// Returns headers that every request needs, with names in lower case.
    #[must_use]
    fn headers(self) -> &'static [(&'static str, &'static str)];

    /// Returns the framing of a response.
    #[must_use]
    fn framing(self, stream: bool) -> Framing;

    /// Encodes the body of a request.
    #[must_use]
    fn request_body(self, request: &ModelRequest) -> Vec<u8>;
}

impl WireFormat for Wire {
    fn url(self, base_url: &str, model: &str, stream: bool) -> String {
        dialect_of!(self, D => D::url(base_url.trim_end_matches('/'), model, stream))
    }

    fn key_header(self) -> KeyHeader {
        dialect_of!(self, D => D::KEY_HEADER)
    }

    fn headers(self) -> &'static [(&'static str, &'static str)] {
        dialect_of!(self, D => D::HEADERS)
    }

    fn framing(self, stream: bool) -> Framing {
        if stream { dialect_of!(self, D => D::STREAM_FRAMING) } else { Framing::Json }
    }

    fn request_body(self, request: &ModelRequest) -> Vec<u8> {
        write_history(self, request, HistoryWriter::new(&write_head(self, request))).0
    }
}

/// Writes the head of a body: the members before the history, up to its first element.
fn write_head(wire: Wire, request: &ModelRequest) -> Vec<u8> {
    dialect_of!(wire, D => request_cache::head(&body_members::<D>(request), D::HISTORY_MEMBER))
}

/// Writes the history, or the part of it that the writer does not hold yet, and the body's end.
fn write_history(
    wire: Wire,
    request: &ModelRequest,
    mut writer: HistoryWriter,
) -> (Vec<u8>, ReusablePrefix) {
    let with_tags = request.with_tagged_reasoning(wire, writer.first_message());
    let request = with_tags.as_ref().unwrap_or(request);
    dialect_of!(wire, D => D::write_history(request, &mut writer));
    writer.finish(cache_key(wire, request))
}

/// Returns the member of a body that holds the history.
fn history_member(wire: Wire) -> &'static str {
    dialect_of!(wire, D => D::HISTORY_MEMBER)
}

/// Returns the name and the value of the member that names the prompt in the service's cache. `None` if
/// the wire has no such member, the request asks for no caching, or the configuration sets or omits the member.
fn cache_key(wire: Wire, request: &ModelRequest) -> Option<(&'static str, &str)> {
    let member = dialect_of!(wire, D => D::CACHE_KEY_MEMBER)?;
    let ModelRequest { extra_body, omit_body, prompt_cache, prompt_cache_key, .. } = request;
    let is_ours = !extra_body.contains_key(member) && !omit_body.contains(member);
    let key = prompt_cache_key.as_deref().filter(|_| *prompt_cache && is_ours)?;
    Some((member, key))
}

/// The separation of a response's bytes into payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON value per line.
    JsonLines,
    /// One JSON value: a plain answer, or an error.
    Json,
    /// One JSON array of payloads. No dialect asks for it; `callsheet decode` reads it from files.
    JsonArray,
}

impl fmt::Display for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sse => "sse",
            Self::JsonLines => "json-lines",
            Self::Json => "json",
            Self::JsonArray => "json-array",
        })
    }
}

impl FromStr for Framing {
    type Err = UnknownFraming;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sse" => Ok(Self::Sse),
            "json-lines" => Ok(Self::JsonLines),
            "json" => Ok(Self::Json),
            "json-array" => Ok(Self::JsonArray),
            _ => Err(UnknownFraming),
        }
    }
}

/// The text is not the name of a framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown framing; it is one of: sse, json-lines, json, json-array")]
pub struct UnknownFraming;
