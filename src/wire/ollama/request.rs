//! A request's body in the form of Ollama's chat.
//!
//! The service knows no `tool_choice`: where no tool may be called none is listed, and that one has
//! to be called cannot be said. Nor can an image be sent by its address, so that stands in the text.

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::message::{Message, ResponseMessage};
use crate::types::{Content, ContentPart, Image, ModelOrigin, ToolCall, Wire};
use crate::wire::body::Elements;
use crate::wire::members::Members;
use crate::wire::request::FunctionTools;
use crate::wire::{ModelRequest, ToolChoice};

/// Members which the host relies on, so that `extra_body` cannot replace them.
const OURS: [&str; 4] = ["model", "messages", "tools", "stream"];

pub(in crate::wire) struct Head<'a>(pub(in crate::wire) &'a ModelRequest);

impl Serialize for Head<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.0;
        let mut body = Members::new(serializer.serialize_map(None)?, request, &OURS);
        body.put("model", &request.model)?;
        if !request.tools.is_empty() && request.tool_choice != ToolChoice::None {
            body.put("tools", &FunctionTools(&request.tools))?;
        }
        // Absent, it would mean true.
        body.put("stream", &request.stream)?;
        let ModelRequest { max_output_tokens: num_predict, temperature, .. } = *request;
        if num_predict.is_some() || temperature.is_some() {
            body.put("options", &Options { num_predict, temperature })?;
        }
        body.end()
    }
}

#[derive(Serialize)]
struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    num_predict: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
}

/// Writes the messages of a request, system prompt first. None changes for what follows it.
pub(in crate::wire) fn write_messages(request: &ModelRequest, elements: &mut Elements) {
    let asked = ModelOrigin { wire: Wire::OllamaChat, model: request.model.clone() };
    if let Some(content) = request.system.as_deref().filter(|text| !text.is_empty())
        && elements.is_empty()
    {
        elements.put(&Sent { content, ..Sent::by("system") });
    }
    for message in request.messages.iter().skip(elements.first_message()) {
        match &**message {
            Message::User { content } => {
                let (text, images) = (text_of(content), images_of(content));
                elements.put(&Sent { content: &text, images, ..Sent::by("user") });
            }
            Message::Assistant(message) => elements.put(&Sent::model(message, &asked)),
            Message::Tool { call_id, name, content, metadata: _ } => {
                elements.put(&Sent {
                    content,
                    tool_name: name,
                    tool_call_id: call_id,
                    ..Sent::by("tool")
                });
            }
        }
    }
    elements.settle(request.messages.len());
}

#[derive(Default, Serialize)]
struct Sent<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<SentCall<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_call_id: &'a str,
}

#[derive(Serialize)]
struct SentCall<'a> {
    id: &'a str,
    function: SentFunction<'a>,
}

#[derive(Serialize)]
struct SentFunction<'a> {
    name: &'a str,
    arguments: &'a Value,
}

impl<'a> Sent<'a> {
    fn by(role: &'static str) -> Self {
        Self { role, ..Self::default() }
    }

    fn model(message: &'a ResponseMessage, asked: &ModelOrigin) -> Self {
        let ResponseMessage { text, reasoning, calls, .. } = message;
        // A model goes on thinking where its calls left it; what it thought before an answer is
        // over, and another model did not think it.
        let goes_on = !calls.is_empty() && message.is_from(asked);
        let thinking = if goes_on { reasoning } else { "" };
        let tool_calls = calls.iter().map(SentCall::new).collect();
        Self { content: text, thinking, tool_calls, ..Self::by("assistant") }
    }
}

impl<'a> SentCall<'a> {
    fn new(call: &'a ToolCall) -> Self {
        let ToolCall { id, name, arguments, .. } = call;
        Self { id, function: SentFunction { name, arguments } }
    }
}

/// The text, with a line for each image that cannot be sent.
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

fn images_of(content: &Content) -> Vec<&str> {
    let images = content.parts().iter().filter_map(|part| match part {
        ContentPart::Image(Image::Base64 { data, .. }) => Some(&**data),
        ContentPart::Image(Image::Url(_)) | ContentPart::Text(_) => None,
    });
    images.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::types::CallKey;
    use crate::wire::ToolDefinition;

    fn call(index: u32, id: &str, arguments: Value) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: None,
            name: "add".into(),
            arguments: arguments.into(),
            raw: None,
        }
    }

    fn result(id: &str, content: &str) -> Message {
        Message::Tool {
            call_id: id.into(),
            name: "add".into(),
            content: content.into(),
            metadata: json!({"error": true}),
        }
    }

    fn said(wire: Wire, text: &str, calls: Vec<ToolCall>) -> Message {
        let origin = ModelOrigin { wire, model: "m".into() };
        Message::Assistant(
            ResponseMessage {
                text: text.into(),
                reasoning: "hm".into(),
                calls,
                origin: Some(Arc::new(origin)),
                ..ResponseMessage::default()
            }
            .into(),
        )
    }

    fn history() -> crate::message::MessageList {
        let image = |url| ContentPart::Image(Image::parse(url).unwrap());
        let parts = vec![
            ContentPart::Text("What are these?".into()),
            image("data:image/png;base64,AAAA"),
            image("https://example.com/a.png"),
        ];
        [
            Message::User { content: parts.into() },
            said(Wire::OpenaiChat, "One moment.", vec![call(0, "functions.add:0", json!({}))]),
            result("functions.add:0", "0"),
            said(
                Wire::OllamaChat,
                "",
                vec![call(0, "a", json!({"a": 1})), call(1, "call_1_1", json!({}))],
            ),
            result("a", "3"),
            result("call_1_1", "7"),
            said(Wire::OllamaChat, "Two numbers.", vec![]),
            Message::User { content: "Thanks.".into() },
        ]
        .map(Arc::new)
        .into()
    }

    fn sent(request: &ModelRequest) -> Value {
        serde_json::from_slice(&Wire::OllamaChat.request_body(request)).unwrap()
    }

    fn with_tools() -> ModelRequest {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let tool = ToolDefinition { name: "add".into(), description: "Adds.".into(), schema };
        ModelRequest {
            system: Some("Be brief.".into()),
            tools: [tool].into(),
            ..ModelRequest::new("m", history())
        }
    }

    #[test]
    fn streamed_with_tools() {
        insta::assert_json_snapshot!(sent(&ModelRequest {
            parallel_tool_calls: Some(false),
            max_output_tokens: Some(100),
            temperature: Some(0.5),
            ..with_tools()
        }));
    }

    #[test]
    fn plain_with_tools_that_may_not_be_called() {
        insta::assert_json_snapshot!(sent(&ModelRequest {
            tool_choice: ToolChoice::None,
            stream: false,
            ..with_tools()
        }));
    }

    #[test]
    fn options_are_merged_with_those_of_the_configuration() {
        let extra = json!({"options": {"num_ctx": 8192, "temperature": 1}, "think": true,
            "stream": false, "messages": "x"});
        let request = |temperature| ModelRequest {
            temperature,
            extra_body: extra.as_object().unwrap().clone(),
            ..ModelRequest::new("m", [].into())
        };
        let expected = json!({"model": "m", "messages": [], "stream": true, "think": true,
            "options": {"num_ctx": 8192, "temperature": 1}});
        assert_eq!(sent(&request(Some(0.5))), expected);
        assert_eq!(sent(&request(None)), expected);
        let bare = sent(&ModelRequest::new("m", [].into()));
        assert_eq!(bare, json!({"model": "m", "messages": [], "stream": true}));
    }
}
