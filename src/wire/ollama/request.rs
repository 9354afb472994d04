//! The address and the body of a request in the form of Ollama's API reference, <https://docs.ollama.com/api/chat>.
//!
//! The API has no `tool_choice`. If no tool may be called, the tools stay listed, so that the prompt begins
//! as before, and calls in the answer are dropped. A required call cannot be expressed, so the host requests
//! it again in a prompt if there is none. The API accepts no image addresses, so an address becomes part of the text.

use serde_json::{Value, json};

use super::{OllamaDialect, messages};
use crate::dialect::{KeyHeader, RequestFormat};
use crate::extra_members::present_members;
use crate::request::function_tools;
use crate::request_cache::HistoryWriter;
use crate::tool_schema::ToolForm;
use crate::{Framing, ModelRequest};

impl RequestFormat for OllamaDialect {
    const STREAM_FRAMING: Framing = Framing::JsonLines;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY_MEMBER: &'static str = "messages";

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        if base.ends_with("/api") { format!("{base}/chat") } else { format!("{base}/api/chat") }
    }

    fn head(request: &ModelRequest) -> Value {
        let options = present_members(json!({
            "num_predict": request.max_output_tokens,
            "temperature": request.temperature,
        }));
        json!({
            "model": request.model,
            "tools": (!request.tools.is_empty()).then(|| function_tools(&request.tools, ToolForm::OLLAMA)),
            "format": request.output_schema,
            // The service's default is true.
            "stream": request.stream,
            "options": Some(options).filter(|members| !members.is_empty()),
        })
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::WireFormat as _;
    use crate::{ToolChoice, ToolDefinition, Wire};
    use callsheet_values::message::{Message, ResponseMessage};
    use callsheet_values::types::{CallKey, ContentPart, Image, ModelOrigin, ToolCall};

    fn call(index: u32, id: &str, arguments: Value) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: None,
            name: "add".into(),
            arguments: arguments.into(),
            raw: None,
            indirect: false,
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

    fn response(wire: Wire, text: &str, calls: Vec<ToolCall>) -> Message {
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

    fn history() -> callsheet_values::message::MessageList {
        let image = |url| ContentPart::Image(Image::parse(url).unwrap());
        let parts = vec![
            ContentPart::Text("What are these?".into()),
            image("data:image/png;base64,AAAA"),
            image("https://example.com/a.png"),
        ];
        [
            Message::User { content: parts.into() },
            response(Wire::OpenaiChat, "One moment.", vec![call(0, "functions.add:0", json!({}))]),
            result("functions.add:0", "0"),
            response(
                Wire::OllamaChat,
                "",
                vec![call(0, "a", json!({"a": 1})), call(1, "call_1_1", json!({}))],
            ),
            result("a", "3"),
            result("call_1_1", "7"),
            response(Wire::OllamaChat, "Two numbers.", vec![]),
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
