//! What a service is to its clients: the one shape of the wires that the rehearsal model speaks.

use serde_json::Value;

use super::anthropic::Anthropic;
use super::encoded::Encoded;
use super::gemini::Gemini;
use super::ollama::Ollama;
use super::openai_chat::OpenaiChat;
use super::openai_responses::OpenaiResponses;
use super::script::Response;
use crate::types::Wire;

/// A service as the clients of one wire meet it.
pub(super) trait Service {
    /// Reads a request as strictly as the provider does, and gives it in the Chat Completions form
    /// that scripts and improvisation know: `model`, `stream`, `messages`, `tools`, `tool_choice`.
    ///
    /// # Errors
    /// The provider's refusal of the first thing that is wrong.
    fn read(asked: &Asked<'_>) -> Result<Value, Refused>;

    /// Writes a response to a request in that form: a stream if it asks for one.
    fn encode(response: &Response, request: &Value, stamp: Stamp) -> Encoded;

    /// The body of an error, as the provider writes it.
    fn error(status: u16, message: &str) -> Value;
}

/// What a client has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// The body; null if it was no JSON.
    pub(super) body: &'a Value,
    /// The last segment of the path: some services have model and method there.
    pub(super) action: &'a str,
}

/// A request that is refused, with HTTP status and body.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// What makes two equal responses different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Counts the server's requests, and makes the ids.
    pub(super) number: u64,
    /// In seconds since 1970.
    pub(super) created: u64,
}

/// Evaluates an expression for the service of a wire, under the name of a type.
macro_rules! service_of {
    ($wire:expr, $service:ident => $value:expr) => {
        match $wire {
            Wire::OpenaiChat => {
                type $service = OpenaiChat;
                $value
            }
            Wire::OpenaiResponses => {
                type $service = OpenaiResponses;
                $value
            }
            Wire::AnthropicMessages => {
                type $service = Anthropic;
                $value
            }
            Wire::GeminiGenerate => {
                type $service = Gemini;
                $value
            }
            Wire::OllamaChat => {
                type $service = Ollama;
                $value
            }
        }
    };
}

pub(super) fn read(wire: Wire, asked: &Asked<'_>) -> Result<Value, Refused> {
    service_of!(wire, S => S::read(asked))
}

pub(super) fn error(wire: Wire, status: u16, message: &str) -> Value {
    service_of!(wire, S => S::error(status, message))
}

/// Encodes what a script says: an error of a status, bytes as they are, or a response.
pub(super) fn encode(wire: Wire, response: &Response, request: &Value, stamp: Stamp) -> Encoded {
    if !response.raw_chunks.is_empty() {
        let content_type = response.content_type.as_deref().unwrap_or("text/event-stream");
        let chunks = response.raw_chunks.iter().map(|raw| raw.0.clone());
        return Encoded::bytes(content_type, chunks);
    }
    if let Some(status @ 400..) = response.status {
        let message = format!("The rehearsal script answers with HTTP status {status}.");
        let body = response.error.clone().unwrap_or_else(|| error(wire, status, &message));
        return Encoded::bytes("application/json", [body.to_string().into()]);
    }
    service_of!(wire, S => S::encode(response, request, stamp))
}
