//! The messages of a history, and their Chat Completions form.
//!
//! The form has the members `role`, `content`, `tool_calls: [{id, type, function: {name,
//! arguments}}]` and `tool_call_id`. Ours also has `metadata`, which is not sent to services.

mod list;
mod request_parts;
mod result_content;
mod size;

use std::sync::Arc;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::types::{
    Content, MessagePart, ModelOrigin, ReasoningField, ReasoningMembers, ToolCall, Wire,
};

pub use list::MessageList;
pub use request_parts::RequestPart;
pub use result_content::ResultContent;
pub use size::{content_bytes, json_bytes};

/// One message of a history.
///
/// As JSON it is in the Chat Completions form with `metadata`.
///
/// ```
/// use callsheet::model::{Message, ModelRequest};
///
/// let request = ModelRequest::new("m", vec![Message::user("Hello.")].into());
/// let last = request.messages.last().map(|message| match &**message {
///     Message::User { content } => content.text().into_owned(),
///     Message::Assistant(response) => response.text.clone(),
///     Message::Tool { name, content, .. } => format!("{name}: {}", &**content),
///     _ => String::new(),
/// });
/// assert_eq!(last.as_deref(), Some("Hello."));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A user's message.
    User {
        /// Text and images.
        content: Content,
    },
    /// A summary of the messages before it, which a model wrote on request. Models read it as a user's
    /// message.
    Summary {
        /// The text.
        content: Content,
    },
    /// A model's message.
    Assistant(Arc<ResponseMessage>),
    /// The result of one call.
    Tool {
        /// The id of the call that is answered.
        call_id: Arc<str>,
        /// The tool's name.
        name: Arc<str>,
        /// The result as the model sees it.
        content: ResultContent,
        /// Further data of the result: a JSON object.
        metadata: Value,
    },
}

impl Message {
    /// Makes a user's message.
    pub fn user(content: impl Into<Content>) -> Self {
        Self::User { content: content.into() }
    }

    /// Makes the result of a call. `call_id` is the id that the model gave it.
    pub fn tool_result(
        call_id: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        content: impl Into<ResultContent>,
    ) -> Self {
        let (call_id, name, content) = (call_id.into(), name.into(), content.into());
        Self::Tool { call_id, name, content, metadata: Value::Object(serde_json::Map::new()) }
    }
}

/// A model's message.
///
/// The value of [`Message::Assistant`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResponseMessage {
    /// The text of the response. May be empty, for example if there are calls.
    pub text: String,
    /// The model's reasoning.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reasoning: String,
    /// The calls that stay in the history, in call order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub calls: Vec<ToolCall>,
    /// The model that wrote it; `None` for a message with which the session was opened, or that the host wrote.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<Arc<ModelOrigin>>,
    /// The order of its parts, with the data that the service wants back with them. Empty if text and
    /// calls are enough.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub parts: Vec<MessagePart>,
    /// Number of bytes at the beginning of the text that are a hint for the model. `None` if the host did not
    /// write the message as the log of a run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint_bytes: Option<usize>,
}

impl ResponseMessage {
    /// Returns whether it has neither text, nor calls, nor parts of the service's own.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        let is_raw = |part: &MessagePart| matches!(part, MessagePart::Raw { .. });
        self.text.is_empty() && self.calls.is_empty() && !self.parts.iter().any(is_raw)
    }

    /// Returns the members of Chat Completions, or of Ollama, that hold its reasoning. A message of another wire has
    /// none.
    pub fn reasoning_members(&self) -> ReasoningMembers<'_> {
        let mut all = ReasoningMembers::default();
        match self.origin.as_ref().map(|origin| origin.wire) {
            Some(Wire::OpenaiChat) | None => {}
            Some(Wire::OllamaChat) => {
                let is_tagged =
                    |part: &MessagePart| matches!(part, MessagePart::TaggedReasoning { .. });
                let has_member = !self.reasoning.is_empty() && !self.parts.iter().any(is_tagged);
                all.field = Some(ReasoningField::Thinking).filter(|_| has_member);
                return all;
            }
            Some(Wire::OpenaiResponses | Wire::AnthropicMessages | Wire::GeminiGenerate) => {
                return all;
            }
        }
        for part in &self.parts {
            if let MessagePart::Reasoning { members: Some(members), .. } = part
                && let Ok(found) = serde_json::from_str::<ReasoningMembers<'_>>(members)
            {
                all.add(found);
            }
        }
        all
    }

    /// Returns whether a part of it is reasoning.
    pub fn has_reasoning_part(&self) -> bool {
        self.parts.iter().any(|part| match part {
            MessagePart::Reasoning { .. } | MessagePart::TaggedReasoning { .. } => true,
            MessagePart::Text { .. } | MessagePart::Call { .. } | MessagePart::Raw { .. } => false,
        })
    }

    /// Removes the parts of calls that it does not hold.
    pub fn drop_parts_without_calls(&mut self) {
        let calls = &self.calls;
        self.parts.retain(|part| match part {
            MessagePart::Call { index, .. } => calls.iter().any(|call| call.key.index == *index),
            MessagePart::Text { .. }
            | MessagePart::Reasoning { .. }
            | MessagePart::TaggedReasoning { .. }
            | MessagePart::Raw { .. } => true,
        });
    }

    /// Removes the part of its last reasoning if that has no members. The service of a response that
    /// was cut off has not sent the members yet, and refuses the reasoning without them. The text
    /// of the reasoning stays.
    pub fn drop_unfinished_reasoning(&mut self) {
        let is_reasoning = |part: &MessagePart| matches!(part, MessagePart::Reasoning { .. });
        let Some(last) = self.parts.iter().rposition(is_reasoning) else { return };
        if matches!(self.parts.get(last), Some(MessagePart::Reasoning { members: None, .. })) {
            self.parts.remove(last);
        }
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::User { content } => {
                map.serialize_entry("role", "user")?;
                map.serialize_entry("content", content)?;
            }
            Self::Summary { content } => {
                map.serialize_entry("role", "user")?;
                map.serialize_entry("content", content)?;
                map.serialize_entry("metadata", &SummaryNote { summary: true })?;
            }
            Self::Assistant(message) => {
                let ResponseMessage { text, calls, .. } = &**message;
                map.serialize_entry("role", "assistant")?;
                let content = Some(text).filter(|text| !text.is_empty() || calls.is_empty());
                map.serialize_entry("content", &content)?;
                if !calls.is_empty() {
                    map.serialize_entry("tool_calls", &ToolCallsJson(calls))?;
                }
                if let Some(note) = ResponseNote::of(message) {
                    map.serialize_entry("metadata", &note)?;
                }
            }
            Self::Tool { call_id, name: _, content, metadata } => {
                map.serialize_entry("role", "tool")?;
                map.serialize_entry("tool_call_id", call_id)?;
                map.serialize_entry("content", content)?;
                if metadata.as_object().is_some_and(|map| !map.is_empty()) {
                    map.serialize_entry("metadata", metadata)?;
                }
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct SummaryNote {
    summary: bool,
}

#[derive(Serialize)]
struct ResponseNote<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    /// The member in which the reasoning came.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_field: Option<ReasoningField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_details: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_opaque: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint_size: Option<usize>,
}

impl<'a> ResponseNote<'a> {
    /// Returns the metadata of a message, if there is any.
    fn of(message: &'a ResponseMessage) -> Option<Self> {
        let reasoning = Some(message.reasoning.as_str()).filter(|text| !text.is_empty());
        let hint_size = message.hint_bytes;
        let ReasoningMembers { field, reasoning_details, reasoning_opaque } =
            message.reasoning_members();
        let reasoning_field = field.filter(|_| reasoning.is_some());
        let has_any = reasoning.is_some() || reasoning_details.is_some() || hint_size.is_some();
        has_any.then_some(Self {
            reasoning,
            reasoning_field,
            reasoning_details,
            reasoning_opaque,
            hint_size,
        })
    }
}

struct ToolCallsJson<'a>(&'a [ToolCall]);

impl Serialize for ToolCallsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Call<'a> {
            id: &'a str,
            #[serde(rename = "type")]
            kind: &'static str,
            function: Function<'a>,
        }
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
            arguments: String,
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for call in self.0 {
            seq.serialize_element(&Call {
                id: &call.id,
                kind: "function",
                function: Function { name: &call.name, arguments: call.arguments_text() },
            })?;
        }
        seq.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::types::CallKey;

    #[track_caller]
    fn check(message: &Message, form: Value) {
        assert_eq!(serde_json::to_value(message).unwrap(), form);
    }

    #[test]
    fn a_user_message_has_role_and_content() {
        let form = json!({"role": "user", "content": "hi"});
        check(&Message::User { content: "hi".into() }, form);
    }

    #[test]
    fn an_assistant_message_has_calls_and_reasoning_as_metadata() {
        let call = ToolCall {
            key: CallKey { turn: 1, attempt: 1, index: 0 },
            id: "c0".into(),
            provider_id: None,
            name: "add".into(),
            arguments: json!({"a": 1}).into(),
            raw: Some("\"{\\\"a\\\":1}\"".into()),
            indirect: false,
        };
        let message = Message::Assistant(
            ResponseMessage {
                reasoning: "hm".into(),
                calls: vec![call],
                ..ResponseMessage::default()
            }
            .into(),
        );
        let calls = json!([{"id": "c0", "type": "function",
            "function": {"name": "add", "arguments": "{\"a\":1}"}}]);
        check(
            &message,
            json!({"role": "assistant", "content": null, "tool_calls": calls,
                "metadata": {"reasoning": "hm"}}),
        );
        let empty = Message::Assistant(ResponseMessage::default().into());
        let form = json!({"role": "assistant", "content": ""});
        check(&empty, form);
    }

    #[test]
    fn a_tool_message_has_its_call_id_and_metadata() {
        let message = Message::Tool {
            call_id: "c0".into(),
            name: "add".into(),
            content: "3".into(),
            metadata: json!({"reused": true}),
        };
        check(
            &message,
            json!({"role": "tool", "tool_call_id": "c0", "content": "3",
                "metadata": {"reused": true}}),
        );
    }
}
