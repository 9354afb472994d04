//! The history in the form of Ollama's API reference, <https://docs.ollama.com/api/chat>.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::ModelRequest;
use crate::request_cache::HistoryWriter;
use crate::tool_images::append_result_images;
use callsheet_values::message::{Message, ResponseMessage};
use callsheet_values::types::{
    Content, ContentPart, Image, ModelOrigin, ReasoningRule, SendReasoning, ToolCall, Wire,
};

/// Writes the messages of a request, system prompt first. The images of results follow the last result of the turn in
/// a message of the user. A response without reasoning depends on the responses before it (`ThinkingWriter`). No other
/// message depends on its neighbours.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let target_model = ModelOrigin { wire: Wire::OllamaChat, model: request.model.clone() };
    if let Some(content) = request.system.as_deref().filter(|text| !text.is_empty())
        && writer.is_empty()
    {
        writer.write(&MessageParam { content, ..MessageParam::with_role("system") });
    }
    let mut images = None;
    let mut thinking = ThinkingWriter::new(request, &target_model);
    let first = writer.first_message();
    let mut messages = request.messages.iter().enumerate().skip(first).peekable();
    while let Some((position, message)) = messages.next() {
        match &**message {
            Message::User { content } | Message::Summary { content } => write_user(writer, content),
            Message::Assistant(message) => {
                writer.write(&MessageParam::from_response(message, position, &mut thinking));
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
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
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

    fn from_response(
        message: &'a ResponseMessage,
        position: usize,
        thinking: &mut ThinkingWriter<'_>,
    ) -> Self {
        let ResponseMessage { text, calls, .. } = message;
        let thinking = thinking.thinking(message, position);
        let tool_calls = calls.iter().map(CallParam::new).collect();
        Self { content: text, thinking, tool_calls, ..Self::with_role("assistant") }
    }
}

/// Decides about the reasoning of each message. A message without any gets an empty one if an earlier message of the
/// model has some, or if the rule demands it.
struct ThinkingWriter<'a> {
    rule: ReasoningRule,
    target_model: &'a ModelOrigin,
    messages: &'a [Arc<Message>],
    /// True if a message so far has reasoning. `None` if the messages have not been searched yet.
    was_shown: Option<bool>,
}

impl<'a> ThinkingWriter<'a> {
    fn new(request: &'a ModelRequest, target_model: &'a ModelOrigin) -> Self {
        let messages = &*request.messages;
        Self { rule: request.reasoning, target_model, messages, was_shown: None }
    }

    /// Returns the reasoning of the message at `position`, if it is sent.
    fn thinking<'m>(&mut self, message: &'m ResponseMessage, position: usize) -> Option<&'m str> {
        let is_own = self.is_own(message);
        if is_own {
            self.was_shown = Some(true);
        }
        if !self.rule.includes(!message.calls.is_empty()) {
            return None;
        }
        if is_own {
            return Some(&message.reasoning);
        }
        (self.rule.send == SendReasoning::All || self.was_shown(position))
            .then(|| self.rule.filler())
    }

    /// Returns whether a message has reasoning that is sent to the target. The author of a message with which the
    /// session was opened is known only if the reasoning is in a member.
    fn is_own(&self, message: &ResponseMessage) -> bool {
        !message.reasoning.is_empty()
            && message.has_reasoning_of(self.target_model, self.rule.is_fallback)
            && (message.origin.is_some()
                || message.has_reasoning_part()
                || self.rule.send == SendReasoning::All)
    }

    /// Returns whether a message before `position` has reasoning.
    fn was_shown(&mut self, position: usize) -> bool {
        if let Some(was_shown) = self.was_shown {
            return was_shown;
        }
        let before = self.messages.get(..position).unwrap_or_default();
        let was_shown = before.iter().any(|message| match &**message {
            Message::Assistant(message) => self.is_own(message),
            Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => false,
        });
        *self.was_shown.insert(was_shown)
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
