//! Selects the service of a wire format.

use serde_json::Value;

use super::anthropic::Anthropic;
use super::encoded::Encoded;
use super::gemini::Gemini;
use super::ollama::Ollama;
use super::openai_chat::OpenaiChat;
use super::openai_responses::OpenaiResponses;
use super::script::Response;
use super::service::{ProviderRequest, ProviderService, RequestRefusal, ResponseStamp};
use crate::types::Wire;

/// Evaluates an expression with the service of a wire format bound to a type name.
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

/// Checks and converts a request: [`ProviderService::read`].
///
/// # Errors
/// The refusal of the request.
pub(super) fn read(wire: Wire, asked: &ProviderRequest<'_>) -> Result<Value, RequestRefusal> {
    service_of!(wire, S => S::read(asked))
}

/// Returns the body of an error: [`ProviderService::error`].
pub(super) fn error(wire: Wire, status: u16, message: &str) -> Value {
    service_of!(wire, S => S::error(status, message))
}

/// Encodes a scripted response: an error status, raw bytes, or a response of the wire format.
pub(super) fn encode(
    wire: Wire,
    response: &Response,
    request: &Value,
    stamp: ResponseStamp,
) -> Encoded {
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
