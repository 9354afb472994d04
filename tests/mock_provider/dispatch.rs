//! Selects the service of a wire format, and encodes responses.

use super::anthropic::Anthropic;
use super::encoded::Encoded;
use super::gemini::Gemini;
use super::ollama::Ollama;
use super::openai_chat::OpenaiChat;
use super::openai_responses::OpenaiResponses;
use super::service::{ProviderService, ScriptedAnswer};
use callsheet_values::types::Wire;

/// Returns the service of a wire format.
pub(super) fn service(wire: Wire) -> &'static dyn ProviderService {
    match wire {
        Wire::OpenaiChat => &OpenaiChat,
        Wire::OpenaiResponses => &OpenaiResponses,
        Wire::AnthropicMessages => &Anthropic,
        Wire::GeminiGenerate => &Gemini,
        Wire::OllamaChat => &Ollama,
    }
}

/// Encodes a response of a script or of the improviser: as its raw bytes if it has any, as an error if its status
/// is 400 or above, else in the wire format.
pub(super) fn encode(wire: Wire, answer: &ScriptedAnswer<'_>) -> Encoded {
    let response = answer.response;
    if !response.raw_chunks.is_empty() {
        let content_type = response.content_type.as_deref().unwrap_or("text/event-stream");
        let chunks = response.raw_chunks.iter().map(|raw| raw.0.clone());
        return Encoded::bytes(content_type, chunks);
    }
    if let Some(status @ 400..) = response.status {
        let message = format!("The script answers with HTTP status {status}.");
        let error = || service(wire).error(status, &message);
        let body = response.error.clone().unwrap_or_else(error);
        return Encoded::bytes("application/json", [body.to_string().into()]);
    }
    service(wire).encode(answer)
}
