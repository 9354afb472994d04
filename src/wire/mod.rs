//! Provider bytes to our nouns, and our nouns to request bodies.
//!
//! Machines: no HTTP, no clock. A [`Decoder`] is a framing and a dialect; it takes bytes in any
//! cut and gives [`Delta`]s. A dialect decides nothing about calls: which piece belongs to which
//! call, and when one is whole, is the accumulator's business (`response::ResponseAssembler`).
#![warn(clippy::indexing_slicing)]

mod anthropic;
mod body;
mod decoder;
mod delta;
mod dialect;
mod error;
mod fields;
mod gemini;
mod ids;
mod loose;
mod members;
mod mend;
mod ollama;
mod openai_chat;
mod openai_responses;
mod payload;
mod piece;
mod request;
mod shapes;
mod sse;

use std::fmt;
use std::str::FromStr;

use anthropic::Anthropic;
use body::{Cut, Elements};
use dialect::Dialect;
use gemini::Gemini;
use ollama::Ollama;
use openai_chat::OpenaiChat;
use openai_responses::OpenaiResponses;

pub use crate::types::Wire;
pub(crate) use body::RequestCache;
pub use decoder::{Decoder, DecoderLimits, PayloadTemplates};
pub use delta::{CallDelta, CallKind, Delta, Problem, ProviderMetadata};
pub use dialect::KeyHeader;
pub use error::http_error;
pub(crate) use mend::replace_lone_surrogates;
pub use request::{ModelRequest, ToolChoice, ToolDefinition};
pub use sse::{EventTooLong, SseDecoder, SseEvent};

/// Evaluates an expression for the dialect of a wire, under the name of a type.
macro_rules! dialect_of {
    ($wire:expr, $dialect:ident => $value:expr) => {
        match $wire {
            Wire::OpenaiChat => {
                type $dialect = OpenaiChat;
                $value
            }
            Wire::OpenaiResponses => {
                type $dialect = OpenaiResponses;
                $value
            }
            Wire::AnthropicMessages => {
                type $dialect = Anthropic;
                $value
            }
            Wire::GeminiGenerate => {
                type $dialect = Gemini;
                $value
            }
            Wire::OllamaChat => {
                type $dialect = Ollama;
                $value
            }
        }
    };
}

impl Wire {
    /// The address that takes requests for a model, below its `base_url`.
    #[must_use]
    pub fn url(self, base_url: &str, model: &str, stream: bool) -> String {
        dialect_of!(self, D => D::url(base_url.trim_end_matches('/'), model, stream))
    }

    /// The header in which services of this wire want their key.
    #[must_use]
    pub fn key_header(self) -> KeyHeader {
        dialect_of!(self, D => D::KEY_HEADER)
    }

    /// Headers that every request of this wire needs, names in lower case.
    #[must_use]
    pub fn headers(self) -> &'static [(&'static str, &'static str)] {
        dialect_of!(self, D => D::HEADERS)
    }

    /// The framing of a response of this wire.
    #[must_use]
    pub fn framing(self, stream: bool) -> Framing {
        if stream { dialect_of!(self, D => D::STREAM_FRAMING) } else { Framing::Json }
    }

    /// The body of a request.
    #[must_use]
    pub fn request_body(self, request: &ModelRequest) -> Vec<u8> {
        self.written_on(request, Elements::default()).0
    }

    fn written_on(self, request: &ModelRequest, elements: Elements) -> (Vec<u8>, Cut) {
        dialect_of!(self, D => body::written_on::<D>(request, elements))
    }
}

/// How the payloads of a response are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON value a line.
    JsonLines,
    /// One JSON value: a plain answer, or an error.
    Json,
    /// One JSON array of payloads.
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
            _ => Err(UnknownFraming {
                what: "framing",
                allowed: "sse, json-lines, json, json-array",
            }),
        }
    }
}

/// The word names no wire, or no framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what}; it is one of: {allowed}")]
pub struct UnknownFraming {
    what: &'static str,
    allowed: &'static str,
}
