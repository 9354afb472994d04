//! The estimates of the parts of a request.

use std::sync::Arc;

use super::estimate_text;
use super::text::estimate_json;
use callsheet_values::message::{Message, ResponseMessage};
use callsheet_values::types::{
    Content, ContentPart, ContextPart, MessagePart, ModelOrigin, PartTokens, Wire,
};
use callsheet_wire::ToolDefinition;

/// The tokens of one image. Services count 85 to 4,800 by its size; most screenshots and photographs are
/// 700 to 1,600.
pub const IMAGE_TOKENS: u64 = 1_600;

/// The tokens around a message: its role, its beginning and its end.
const MESSAGE_TOKENS: u64 = 4;

/// The tokens around a call or a tool's definition.
const CALL_TOKENS: u64 = 10;

/// Bytes for each token of data that only the service reads, such as encrypted reasoning in base64.
const OPAQUE_BYTES: u64 = 5;

/// Returns about the number of tokens of a message in a request.
#[must_use]
pub fn estimate_message(message: &Message) -> u64 {
    let tokens = match message {
        Message::User { content } | Message::Summary { content } => estimate_content(content),
        Message::Assistant(message) => estimate_response(message),
        Message::Tool { name, content, .. } => {
            let content = match content.parts() {
                Some(parts) => estimate_content(parts),
                None => estimate_text(content),
            };
            content + estimate_text(name)
        }
    };
    tokens + MESSAGE_TOKENS
}

/// Returns the part of the context that a message belongs to.
#[must_use]
pub fn part_of(message: &Message) -> ContextPart {
    match message {
        Message::User { .. } => ContextPart::User,
        Message::Assistant(_) => ContextPart::Assistant,
        Message::Tool { .. } => ContextPart::Results,
        Message::Summary { .. } => ContextPart::Summary,
    }
}

/// Adds about the number of tokens of messages to the sizes of their parts.
pub fn add_messages(sizes: &mut PartTokens, messages: &[Arc<Message>]) {
    for message in messages {
        sizes.add(part_of(message), estimate_message(message));
    }
}

/// Returns about the number of tokens of an input.
#[must_use]
pub fn estimate_content(content: &Content) -> u64 {
    let tokens = |part: &ContentPart| match part {
        ContentPart::Text(text) => estimate_text(text),
        ContentPart::Image(_) => IMAGE_TOKENS,
    };
    content.parts().iter().map(tokens).sum()
}

/// Returns about the number of tokens of a tool's definition in a request.
#[must_use]
pub fn estimate_tool(tool: &ToolDefinition) -> u64 {
    let texts = estimate_text(&tool.name) + estimate_text(&tool.description);
    texts + estimate_json(&tool.schema) + CALL_TOKENS
}

fn estimate_response(message: &ResponseMessage) -> u64 {
    let calls = message.calls.iter();
    let calls =
        calls.map(|call| estimate_text(&call.name) + estimate_json(&call.arguments) + CALL_TOKENS);
    let opaque = message.parts.iter().map(|part| match part {
        MessagePart::Text { members, .. }
        | MessagePart::Reasoning { members, .. }
        | MessagePart::Call { members, .. } => members.as_ref().map_or(0, |text| text.len()),
        MessagePart::TaggedReasoning { open, close, .. } => open.len() + close.len(),
        MessagePart::Raw { json } => json.len(),
    });
    let opaque = opaque.sum::<usize>() as u64 / OPAQUE_BYTES;
    // Reasoning that has no part is not sent back, except over Ollama's API, which needs no parts.
    let is_ollama = |origin: &ModelOrigin| origin.wire == Wire::OllamaChat;
    let is_sent_back =
        message.has_reasoning_part() || message.origin.as_deref().is_some_and(is_ollama);
    let reasoning = if is_sent_back { estimate_text(&message.reasoning) } else { 0 };
    estimate_text(&message.text) + reasoning + calls.sum::<u64>() + opaque
}
