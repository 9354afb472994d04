//! The members of a Chat Completions body other than the messages, as in OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/chat/create>.

use serde::{Serialize, Serializer};

use crate::wire::extra_members::BodyMembers;
use crate::wire::request::FunctionTools;
use crate::wire::{ModelRequest, ToolChoice};

/// Members on which the host relies. `extra_body` cannot replace them.
const PROTECTED_MEMBERS: [&str; 4] = ["model", "messages", "tools", "stream"];

/// The members of the body other than the messages.
pub(super) struct RequestHead<'a>(pub(super) &'a ModelRequest);

impl Serialize for RequestHead<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = self.0;
        let mut body =
            BodyMembers::new(serializer.serialize_map(None)?, request, &PROTECTED_MEMBERS);
        body.write("model", &request.model)?;
        if !request.tools.is_empty() {
            body.write("tools", &FunctionTools(&request.tools))?;
            body.write("tool_choice", &ToolChoiceParam(&request.tool_choice))?;
            if let Some(parallel) = request.parallel_tool_calls {
                body.write("parallel_tool_calls", &parallel)?;
            }
        }
        body.write("stream", &request.stream)?;
        if request.stream {
            body.write("stream_options", &StreamOptions { include_usage: true })?;
        }
        if let Some(tokens) = request.max_output_tokens {
            body.write(output_limit_member(&request.model), &tokens)?;
        }
        if let Some(temperature) = request.temperature {
            body.write("temperature", &temperature)?;
        }
        body.finish()
    }
}

/// Returns the name of the member that limits the length of the answer.
///
/// Every service knows `max_tokens`, and some refuse any other name. OpenAI's reasoning models
/// refuse `max_tokens` (<https://platform.openai.com/docs/api-reference/chat/create>).
fn output_limit_member(model: &str) -> &'static str {
    let name = model.rsplit('/').next().unwrap_or(model);
    let begins_with = |word: &str, from: char| {
        let next = name.strip_prefix(word).and_then(|rest| rest.chars().next());
        next.is_some_and(|digit| (from..='9').contains(&digit))
    };
    if begins_with("o", '1') || begins_with("gpt-", '5') {
        "max_completion_tokens"
    } else {
        "max_tokens"
    }
}

struct ToolChoiceParam<'a>(&'a ToolChoice);

impl Serialize for ToolChoiceParam<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Named<'a> {
            #[serde(rename = "type")]
            kind: &'static str,
            function: Function<'a>,
        }
        #[derive(Serialize)]
        struct Function<'a> {
            name: &'a str,
        }
        match self.0 {
            ToolChoice::Auto => serializer.serialize_str("auto"),
            ToolChoice::None => serializer.serialize_str("none"),
            ToolChoice::Required => serializer.serialize_str("required"),
            ToolChoice::Tool(name) => {
                Named { kind: "function", function: Function { name } }.serialize(serializer)
            }
        }
    }
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::message::{Message, ResponseMessage};
    use crate::types::{CallKey, ContentPart, Image, ToolCall};
    use crate::wire::{ToolDefinition, Wire};

    fn history() -> crate::message::MessageList {
        let call = |index, id: &str, arguments| ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: Some(id.into()),
            name: "add".into(),
            arguments,
            raw: None,
        };
        let result = |id: &str, content: &str| Message::Tool {
            call_id: id.into(),
            name: "add".into(),
            content: content.into(),
            metadata: json!({"error": true}),
        };
        let text = ContentPart::Text("1 + 2, and what stands here?".into());
        let image = Image::parse("data:image/png;base64,AAAA").unwrap();
        [
            Message::User { content: vec![text, ContentPart::Image(image)].into() },
            Message::Assistant(
                ResponseMessage {
                    reasoning: "not sent".into(),
                    calls: vec![
                        call(0, "functions.add:0", json!({"a": 1}).into()),
                        call(1, "0", json!({}).into()),
                    ],
                    ..ResponseMessage::default()
                }
                .into(),
            ),
            result("functions.add:0", "3"),
            result("0", "7"),
        ]
        .map(Arc::new)
        .into()
    }

    fn sent(request: &ModelRequest) -> Value {
        serde_json::from_slice(&Wire::OpenaiChat.request_body(request)).unwrap()
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
    fn a_request_without_tools_has_no_tool_members() {
        let body = sent(&ModelRequest {
            parallel_tool_calls: Some(false),
            tool_choice: ToolChoice::None,
            stream: false,
            ..ModelRequest::new("m", [].into())
        });
        assert_eq!(body, json!({"model": "m", "messages": [], "stream": false}));
    }

    #[test]
    fn openais_reasoning_models_get_their_own_member_for_the_output_limit() {
        for (model, member) in [
            ("o1", "max_completion_tokens"),
            ("o4-mini-2025-04-16", "max_completion_tokens"),
            ("gpt-5", "max_completion_tokens"),
            ("openai/gpt-5.4-mini", "max_completion_tokens"),
            ("gpt-4.1", "max_tokens"),
            ("gpt-4o", "max_tokens"),
            ("openai/gpt-oss-120b", "max_tokens"),
            ("olmo-2", "max_tokens"),
            ("m", "max_tokens"),
            ("", "max_tokens"),
        ] {
            let request = ModelRequest {
                max_output_tokens: Some(9),
                stream: false,
                ..ModelRequest::new(model, [].into())
            };
            let expected = json!({"model": model, "messages": [], "stream": false, member: 9});
            assert_eq!(sent(&request), expected);
        }
    }

    #[test]
    fn extra_members_replace_optional_members_but_not_protected_ones() {
        let extra = json!({"temperature": 1, "top_k": 5, "stream": false, "messages": "x",
            "stream_options": {"include_usage": false}});
        let request = ModelRequest {
            temperature: Some(0.5),
            extra_body: extra.as_object().unwrap().clone(),
            ..ModelRequest::new("m", [].into())
        };
        let text = String::from_utf8(Wire::OpenaiChat.request_body(&request)).unwrap();
        assert_eq!(text.matches("temperature").count(), 1);
        assert_eq!(
            sent(&request),
            json!({"model": "m", "messages": [], "stream": true, "temperature": 1, "top_k": 5,
                "stream_options": {"include_usage": false}})
        );
    }
}
