//! The history in the form of Ollama's API reference, <https://docs.ollama.com/api/chat>.

use serde_json::{Map, Value, json};

use crate::message::{Message, ResponseMessage};
use crate::types::{Content, ContentPart, Image, ModelOrigin, ToolCall, Wire};
use crate::wire::ModelRequest;
use crate::wire::extra_members::present_members;
use crate::wire::request_cache::HistoryWriter;

/// Writes the messages of a request, system prompt first. No message depends on later ones.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let origin = ModelOrigin { wire: Wire::OllamaChat, model: request.model.clone() };
    if let Some(content) = request.system.as_deref().filter(|text| !text.is_empty())
        && writer.is_empty()
    {
        writer.write(&json!({"role": "system", "content": content}));
    }
    for message in request.messages.iter().skip(writer.first_message()) {
        match &**message {
            Message::User { content } => {
                let images = Some(images_of(content)).filter(|images| !images.is_empty());
                let message =
                    json!({"role": "user", "content": text_of(content), "images": images});
                writer.write(&present_members(message));
            }
            Message::Assistant(message) => {
                writer.write(&assistant_message(message, &origin));
            }
            Message::Tool { call_id, name, content, metadata: _ } => {
                writer.write(&json!({
                    "role": "tool",
                    "content": content,
                    "tool_name": name,
                    "tool_call_id": call_id,
                }));
            }
        }
    }
    writer.mark_reusable(request.messages.len());
}

fn assistant_message(message: &ResponseMessage, origin: &ModelOrigin) -> Map<String, Value> {
    let ResponseMessage { text, reasoning, calls, .. } = message;
    // A model continues the reasoning that led to its calls. Reasoning before a final answer is no
    // longer needed, and reasoning of another model is not sent.
    let continues = !calls.is_empty() && !reasoning.is_empty() && message.is_from(origin);
    let call = |call: &ToolCall| {
        let ToolCall { id, name, arguments, .. } = call;
        json!({"id": id, "function": {"name": name, "arguments": arguments}})
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    present_members(json!({
        "role": "assistant",
        "content": text,
        "thinking": continues.then_some(reasoning),
        "tool_calls": Some(calls).filter(|calls| !calls.is_empty()),
    }))
}

/// Returns the text of a content, with one line for each image that is given by its address.
fn text_of(content: &Content) -> String {
    let lines: Vec<String> = content
        .parts()
        .iter()
        .filter_map(|part| match part {
            ContentPart::Text(text) => Some(text.clone()),
            ContentPart::Image(Image::Url(url)) => Some(format!("[image: {url}]")),
            ContentPart::Image(Image::Base64 { .. }) => None,
        })
        .collect();
    lines.join("\n")
}

/// Returns the data of the images that the service accepts.
fn images_of(content: &Content) -> Vec<&str> {
    let images = content.parts().iter().filter_map(|part| match part {
        ContentPart::Image(Image::Base64 { data, .. }) => Some(&**data),
        ContentPart::Image(Image::Url(_)) | ContentPart::Text(_) => None,
    });
    images.collect()
}
