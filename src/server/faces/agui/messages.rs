//! The messages of a thread, from those of the session's history. A message has the id that the client knows: the client
//! drops those that a snapshot does not have.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::request::{AguiMessage, text_of};
use callsheet_values::message::Message;
use callsheet_values::types::{CallKey, Content, ContentPart, Image, ToolCall};

/// The ids of the client's messages, in order. Each is found once.
#[derive(Debug, Default)]
pub(super) struct ClientIds {
    messages: Vec<(String, String, String)>,
    next: usize,
}

impl ClientIds {
    pub(super) fn new(messages: &[AguiMessage]) -> Self {
        let messages = messages.iter().map(|AguiMessage { id, role, content, .. }| {
            (id.clone(), role.clone(), text_of(content))
        });
        Self { messages: messages.collect(), next: 0 }
    }

    /// Returns the id of the client's next message of this role and with this text.
    pub(super) fn find(&mut self, role: &str, text: &str) -> Option<String> {
        let rest = self.messages.get(self.next..)?;
        let fits = |(_, of, content): &(String, String, String)| of == role && content == text;
        let at = self.next + rest.iter().position(fits)?;
        self.next = at + 1;
        self.messages.get(at).map(|(id, ..)| id.clone())
    }
}

/// Returns the messages of a history.
pub(super) fn of_history(history: &[Arc<Message>], ids: &mut ClientIds) -> Vec<Value> {
    let (mut messages, mut calls) = (Vec::new(), BTreeMap::new());
    for (index, message) in history.iter().enumerate() {
        let mut id_of =
            |role: &str, text: &str| ids.find(role, text).unwrap_or_else(|| format!("h{index}"));
        match &**message {
            Message::User { content } | Message::Summary { content } => {
                let id = id_of("user", &content.text());
                messages.push(user(&id, content));
            }
            Message::Assistant(response) => {
                let id = match response.calls.first() {
                    Some(call) => response_id(call.key),
                    None => id_of("assistant", &response.text),
                };
                messages.extend(reasoning(&id, &response.reasoning));
                messages.push(assistant(&id, &response.text, &response.calls));
                calls.extend(response.calls.iter().map(|call| (call.id.clone(), call.key)));
            }
            Message::Tool { call_id, content, .. } => {
                let key =
                    calls.get(call_id).map_or_else(|| call_id.to_string(), CallKey::to_string);
                messages.push(tool(&key, Value::from(&**content)));
            }
        }
    }
    messages
}

/// Returns the id of the message of a response, from the key of one of its calls.
pub(super) fn response_id(key: CallKey) -> String {
    format!("t{}a{}", key.turn, key.attempt)
}

pub(super) fn user(id: &str, content: &Content) -> Value {
    json!({"id": id, "role": "user", "content": input_content(content)})
}

pub(super) fn reasoning_id(id: &str) -> String {
    format!("{id}.reasoning")
}

pub(super) fn reasoning(id: &str, text: &str) -> Option<Value> {
    let message = json!({"id": reasoning_id(id), "role": "reasoning", "content": text});
    (!text.is_empty()).then_some(message)
}

pub(super) fn assistant(id: &str, text: &str, calls: &[ToolCall]) -> Value {
    let mut message = json!({"id": id, "role": "assistant"});
    if !text.is_empty() {
        message["content"] = text.into();
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments.to_string()});
            json!({"id": call.key.to_string(), "type": "function", "function": function})
        });
        message["toolCalls"] = calls.collect();
    }
    message
}

pub(super) fn tool(key: &str, content: Value) -> Value {
    json!({"id": format!("{key}.result"), "role": "tool", "toolCallId": key, "content": content})
}

fn input_content(content: &Content) -> Value {
    if content.images().next().is_none() {
        return content.text().into();
    }
    let parts = content.parts().iter().map(|part| match part {
        ContentPart::Text(text) => json!({"type": "text", "text": text}),
        ContentPart::Image(image) => json!({"type": "image", "source": source(image)}),
    });
    parts.collect()
}

pub(super) fn source(image: &Image) -> Value {
    match image {
        Image::Base64 { media_type, data } => {
            json!({"type": "data", "value": data, "mimeType": media_type})
        }
        Image::Url(url) => json!({"type": "url", "value": url}),
    }
}
