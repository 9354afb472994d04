//! The approximate size of messages: that of their contents. It is exact enough for a limit, and much cheaper than
//! encoding.

use serde_json::Value;

use super::{Message, ResponseMessage};
use crate::types::{Content, ContentPart, Image, MessagePart};

impl Message {
    /// Returns about the number of bytes of the message as JSON.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        match self {
            Self::User { content } | Self::Summary { content } => content_bytes(content),
            Self::Assistant(message) => message.approximate_bytes(),
            Self::Tool { content, metadata, .. } => {
                content.len() + content.parts().map_or(0, content_bytes) + json_bytes(metadata)
            }
        }
    }
}

impl ResponseMessage {
    /// Returns about the number of bytes of the message as JSON.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| json_bytes(&call.arguments));
        let parts = self.parts.iter().map(|part| match part {
            MessagePart::Text { members, .. }
            | MessagePart::Reasoning { members, .. }
            | MessagePart::Call { members, .. } => members.as_ref().map_or(0, |text| text.len()),
            MessagePart::TaggedReasoning { open, close, .. } => open.len() + close.len(),
            MessagePart::Raw { json } => json.len(),
        });
        self.text.len() + self.reasoning.len() + calls.chain(parts).sum::<usize>()
    }
}

/// Returns about the number of bytes of an input as JSON.
#[must_use]
pub fn content_bytes(content: &Content) -> usize {
    let bytes = |part: &ContentPart| match part {
        ContentPart::Text(text) => text.len(),
        ContentPart::Image(Image::Url(url)) => url.len(),
        ContentPart::Image(Image::Base64 { data, .. }) => data.len(),
    };
    content.parts().iter().map(bytes).sum()
}

/// Returns about the number of bytes of a value as JSON.
#[must_use]
pub fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_bytes(item) + 1).sum::<usize>() + 2,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + 4 + json_bytes(value)).sum()
        }
    }
}
