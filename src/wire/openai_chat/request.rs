//! The address of a request, and the members of the body other than the messages, as in OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/chat/create>.

use serde_json::{Value, json};

use super::{OpenaiChatDialect, messages};
use crate::answer_schema::named_format;
use crate::dialect::{KeyHeader, RequestFormat};
use crate::request::function_tools;
use crate::request_cache::HistoryWriter;
use crate::tool_schema::ToolForm;
use crate::{Framing, ModelRequest, ToolChoice};

impl RequestFormat for OpenaiChatDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY_MEMBER: &'static str = "messages";
    const CACHE_KEY_MEMBER: Option<&'static str> = Some("prompt_cache_key");

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        format!("{base}/chat/completions")
    }

    fn head(request: &ModelRequest) -> Value {
        let has_tools = !request.tools.is_empty();
        json!({
            "model": request.model,
            "tools": has_tools.then(|| function_tools(&request.tools, ToolForm::OPENAI)),
            "tool_choice": has_tools.then(|| tool_choice(&request.tool_choice)),
            "parallel_tool_calls": request.parallel_tool_calls.filter(|_| has_tools),
            "stream": request.stream,
            "stream_options": request.stream.then(|| json!({"include_usage": true})),
            (output_limit_member(&request.model)): request.max_output_tokens,
            "temperature": request.temperature,
            "response_format": request.output_schema.as_deref().map(|schema| {
                let format = named_format(schema);
                json!({"type": "json_schema", "json_schema": format})
            }),
        })
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
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

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": **name}}),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::WireFormat as _;
    use crate::{ToolDefinition, Wire};
    use callsheet_values::message::{Message, ResponseMessage};
    use callsheet_values::types::{CallKey, ContentPart, Image, ToolCall};

    fn history() -> callsheet_values::message::MessageList {
        let call = |index, id: &str, arguments| ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: Some(id.into()),
            name: "add".into(),
            arguments,
            raw: None,
            indirect: false,
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
