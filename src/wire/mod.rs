//! Provider bytes to our nouns, and our nouns to request bodies.
//!
//! Machines: no HTTP, no clock. A [`Decoder`] is a framing and a dialect; it takes bytes in any
//! cut and gives [`Delta`]s. A dialect decides nothing about calls: which piece belongs to which
//! call, and when one is whole, is the accumulator's business (`turn::Accumulator`).
#![warn(clippy::indexing_slicing)]

mod decoder;
mod delta;
mod error;
mod fields;
mod loose;
mod openai_chat;
mod request;
mod sse;

use std::fmt;
use std::str::FromStr;

pub use crate::config::Wire;
pub use decoder::{Decoder, DecoderLimits};
pub use delta::{CallKind, CallPiece, Delta, Problem};
pub use error::http_error;
pub use request::{ModelRequest, ToolChoice, ToolDefinition};
pub use sse::{EventTooLong, SseDecoder, SseEvent};

impl Wire {
    /// The path below a model's base URL that takes requests.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::OpenaiChat => "chat/completions",
        }
    }

    /// The framing of a response of this wire.
    #[must_use]
    pub fn framing(self, stream: bool) -> Framing {
        match self {
            Self::OpenaiChat if stream => Framing::Sse,
            Self::OpenaiChat => Framing::Json,
        }
    }

    /// The body of a request.
    #[must_use]
    pub fn request_body(self, request: &ModelRequest) -> Vec<u8> {
        match self {
            Self::OpenaiChat => openai_chat::request_body(request),
        }
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
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sse" => Ok(Self::Sse),
            "json-lines" => Ok(Self::JsonLines),
            "json" => Ok(Self::Json),
            "json-array" => Ok(Self::JsonArray),
            _ => Err(UnknownWord { what: "framing", allowed: "sse, json-lines, json, json-array" }),
        }
    }
}

/// The word names no wire, or no framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what}; it is one of: {allowed}")]
pub struct UnknownWord {
    what: &'static str,
    allowed: &'static str,
}
