//! Message contents of spans: lists of messages as JSON, as the GenAI conventions define them. They are recorded
//! only if the environment enables it.

use serde_json::{Value, json};

use crate::message::Message;
use crate::response::{ResponseAssembler, parse_arguments};
use crate::types::{Content, excerpt};
use crate::wire::ModelRequest;

/// Maximum size of an attribute's messages in bytes. The last messages are kept.
const MESSAGES_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of characters of one text.
const TEXT_CHARS_MAX: usize = 16 * 1024;

/// Returns whether the variable enables contents in spans. Its values differ between the SDKs of languages.
pub(super) fn is_wanted(value: Option<&str>) -> bool {
    let value = value.unwrap_or_default().trim().to_ascii_lowercase();
    matches!(value.as_str(), "true" | "1" | "span_only" | "span_and_event")
}

/// Returns the messages of a request. The first ones are left out if there are too many.
pub(super) fn input(request: &ModelRequest) -> String {
    let mut list = Vec::new();
    let mut left = MESSAGES_BYTES_MAX;
    for message in request.messages.iter().rev() {
        let text = message_json(message).to_string();
        if text.len() > left {
            break;
        }
        left -= text.len();
        list.push(text);
    }
    list.reverse();
    format!("[{}]", list.join(","))
}

/// Returns the system prompt.
pub(super) fn system(request: &ModelRequest) -> Option<String> {
    request.system.as_deref().map(|system| json!([text(system)]).to_string())
}

/// Returns a user's message.
pub(super) fn user(content: &Content) -> String {
    json!([{"role": "user", "parts": [text(&content.text())]}]).to_string()
}

/// Returns a model's response.
pub(super) fn output(response: &ResponseAssembler, finish_reason: Option<&str>) -> String {
    let mut parts = Vec::new();
    if !response.text().is_empty() {
        parts.push(text(response.text()));
    }
    parts.extend(response.calls().iter().map(|call| {
        let understood = parse_arguments(&call.raw).object().cloned();
        let arguments = understood.unwrap_or_else(|| cut(&call.raw).into());
        json!({"type": "tool_call", "id": call.provider_id, "name": call.name,
            "arguments": arguments})
    }));
    json!([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}]).to_string()
}

/// Returns a run's final answer.
pub(super) fn answer(answer: &str) -> String {
    json!([{"role": "assistant", "parts": [text(answer)], "finish_reason": "stop"}]).to_string()
}

/// Truncates a text to the maximum length.
pub(super) fn cut(text: &str) -> String {
    excerpt(text, TEXT_CHARS_MAX)
}

fn text(text: &str) -> Value {
    json!({"type": "text", "content": cut(text)})
}

fn message_json(message: &Message) -> Value {
    match message {
        Message::User { content } | Message::Summary { content } => {
            json!({"role": "user", "parts": [text(&content.text())]})
        }
        Message::Assistant(response) => {
            let answer = (!response.text.is_empty()).then(|| text(&response.text));
            let calls = response.calls.iter().map(|call| {
                json!({"type": "tool_call", "id": call.id, "name": call.name,
                    "arguments": call.arguments})
            });
            json!({"role": "assistant", "parts": answer.into_iter().chain(calls).collect::<Vec<_>>()})
        }
        Message::Tool { call_id, content, .. } => json!({"role": "tool", "parts": [
            {"type": "tool_call_response", "id": call_id, "response": cut(content)}]}),
    }
}
