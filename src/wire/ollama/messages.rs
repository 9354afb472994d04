//! The history in the form of Ollama's API reference, <https://docs.ollama.com/api/chat>.

use serde::Serialize;
use serde_json::Value;

use crate::message::{Message, ResponseMessage};
use crate::types::{Content, ContentPart, Image, ModelOrigin, ToolCall, Wire};
use crate::wire::ModelRequest;
use crate::wire::request_cache::HistoryWriter;
use crate::wire::tool_images::append_result_images;

/// Writes the messages of a request, system prompt first. The images of results follow the last result of the turn in
/// a message of the user. No other message depends on its neighbours.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let target_model = ModelOrigin { wire: Wire::OllamaChat, model: request.model.clone() };
    if let Some(content) = request.system.as_deref().filter(|text| !text.is_empty())
        && writer.is_empty()
    {
        writer.write(&MessageParam { content, ..MessageParam::with_role("system") });
    }
    let mut images = None;
    let first = writer.first_message();
    let mut messages = request.messages.iter().enumerate().skip(first).peekable();
    while let Some((position, message)) = messages.next() {
        match &**message {
            Message::User { content } | Message::Summary { content } => write_user(writer, content),
            Message::Assistant(message) => {
                writer.write(&MessageParam::from_response(message, &target_model));
            }
            Message::Tool { call_id, name, content, metadata: _ } => {
                writer.write(&MessageParam {
                    content,
                    tool_name: name,
                    tool_call_id: call_id,
                    ..MessageParam::with_role("tool")
                });
                images = append_result_images(images, content);
            }
        }
        if images.is_none() {
            writer.mark_reusable(position + 1);
        }
        let is_tool = |message: &Message| matches!(message, Message::Tool { .. });
        if !messages.peek().is_some_and(|(_, next)| is_tool(next))
            && let Some(images) = images.take()
        {
            write_user(writer, &images);
        }
    }
}

fn write_user(writer: &mut HistoryWriter, content: &Content) {
    let (text, images) = (text_content(content), image_data(content));
    let content = &text;
    writer.write(&MessageParam { content, images, ..MessageParam::with_role("user") });
}

#[derive(Default, Serialize)]
struct MessageParam<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallParam<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_call_id: &'a str,
}

#[derive(Serialize)]
struct CallParam<'a> {
    id: &'a str,
    function: FunctionParam<'a>,
}

#[derive(Serialize)]
struct FunctionParam<'a> {
    name: &'a str,
    arguments: &'a Value,
}

impl<'a> MessageParam<'a> {
    fn with_role(role: &'static str) -> Self {
        Self { role, ..Self::default() }
    }

    fn from_response(message: &'a ResponseMessage, target_model: &ModelOrigin) -> Self {
        let ResponseMessage { text, reasoning, calls, .. } = message;
        // A model continues the reasoning that led to its calls. Reasoning before a final answer
        // is no longer needed, and reasoning of another model is not sent.
        let sends_reasoning = !calls.is_empty() && message.is_from(target_model);
        let thinking = if sends_reasoning { reasoning } else { "" };
        let tool_calls = calls.iter().map(CallParam::new).collect();
        Self { content: text, thinking, tool_calls, ..Self::with_role("assistant") }
    }
}

impl<'a> CallParam<'a> {
    fn new(call: &'a ToolCall) -> Self {
        let ToolCall { id, name, arguments, .. } = call;
        Self { id, function: FunctionParam { name, arguments } }
    }
}

/// Returns the text, with one line for each image that is given by its URL.
fn text_content(content: &Content) -> String {
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

/// Returns the images that are given as data. The service accepts no URLs.
fn image_data(content: &Content) -> Vec<&str> {
    let images = content.parts().iter().filter_map(|part| match part {
        ContentPart::Image(Image::Base64 { data, .. }) => Some(&**data),
        ContentPart::Image(Image::Url(_)) | ContentPart::Text(_) => None,
    });
    images.collect()
}
