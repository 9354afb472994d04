//! The members of the body other than the history, as in OpenAI's API reference,
//! <https://platform.openai.com/docs/api-reference/responses/create>.
//!
//! The host keeps the history itself, so requests ask the service to store nothing (`store` is false,
//! `previous_response_id` is not used) and, if the model may reason, to return its reasoning encrypted.
//! `extra_body` and `omit_body` can change both. `max_output_tokens` below 16 is sent as 16.

use serde_json::{Value, json};

use super::{OpenaiResponsesDialect, messages};
use crate::answer_schema::named_format;
use crate::dialect::{KeyHeader, RequestFormat};
use crate::request_cache::HistoryWriter;
use crate::tool_schema::ToolForm;
use crate::{Framing, ModelRequest, ToolChoice, ToolDefinition};

/// The smallest value of `max_output_tokens` that the service accepts, in tokens (its error message).
const OUTPUT_TOKENS_MIN: u32 = 16;

/// Prefixes of the names of models that do not reason. The service refuses a request for their
/// encrypted reasoning ("Encrypted content is not supported with this model"). Every other model
/// may reason.
const NON_REASONING_PREFIXES: [&str; 4] = ["gpt-3", "gpt-4", "chatgpt-4", "gpt-5-chat"];

impl RequestFormat for OpenaiResponsesDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY_MEMBER: &'static str = "input";
    const CACHE_KEY_MEMBER: Option<&'static str> = Some("prompt_cache_key");

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        format!("{base}/responses")
    }

    fn head(request: &ModelRequest) -> Value {
        let has_tools = !request.tools.is_empty();
        json!({
            "model": request.model,
            "instructions": request.system.as_deref().filter(|text| !text.is_empty()),
            "tools": has_tools.then(|| request.tools.iter().map(tool_json).collect::<Vec<_>>()),
            "tool_choice": has_tools.then(|| tool_choice_json(&request.tool_choice)),
            "parallel_tool_calls": request.parallel_tool_calls.filter(|_| has_tools),
            "stream": request.stream,
            "max_output_tokens": request.max_output_tokens.map(|tokens| tokens.max(OUTPUT_TOKENS_MIN)),
            "temperature": request.temperature,
            "text": request.output_schema.as_deref().map(|schema| {
                let mut format = named_format(schema);
                format.insert("type".to_owned(), "json_schema".into());
                json!({"format": format})
            }),
            "store": false,
            "include": may_reason(&request.model).then_some(["reasoning.encrypted_content"]),
        })
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }
}

/// Returns whether a model may reason, judged by its name without the prefix of a gateway, such as `openai/`,
/// or of a fine-tuned model, `ft:`.
fn may_reason(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = name.strip_prefix("ft:").unwrap_or(name);
    !NON_REASONING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn tool_choice_json(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({"type": "function", "name": **name}),
    }
}

fn tool_json(tool: &ToolDefinition) -> Value {
    let ToolDefinition { name, description, schema } = tool;
    json!({
        "type": "function",
        "name": name,
        "description": ToolForm::OPENAI.description(description),
        "parameters": ToolForm::OPENAI.schema(schema),
        // The service's default, true, refuses schemas that it can only partly enforce.
        "strict": false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::WireFormat as _;
    use callsheet_values::message::{Message, ResponseMessage};
    use callsheet_values::types::{CallKey, Content, MessagePart, ModelOrigin, ToolCall, Wire};
    use callsheet_values::types::{ReasoningRule, SendReasoning};

    fn call(index: u32, id: &str, arguments: Value) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: Some(id.into()),
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

    fn model_message(parts: Vec<MessagePart>) -> ResponseMessage {
        let origin = ModelOrigin { wire: Wire::OpenaiResponses, model: "m".into() };
        ResponseMessage {
            text: "Let me add.".into(),
            reasoning: "hm".into(),
            calls: vec![call(0, "call_1", json!({"a": 1})), call(1, "call_2", json!({}))],
            origin: Some(Arc::new(origin)),
            parts,
            hint_bytes: None,
        }
    }

    fn raw(json: &str) -> MessagePart {
        MessagePart::Raw { json: json.into() }
    }

    const REASONING_ITEM: &str =
        r#"{"id": "rs_1", "type": "reasoning", "encrypted_content": "e", "summary": []}"#;

    fn parts() -> Vec<MessagePart> {
        let members = |text: &str| Some(text.into());
        vec![
            MessagePart::Reasoning { bytes: 2, members: None },
            raw(REASONING_ITEM),
            MessagePart::Text {
                bytes: 11,
                members: members(r#"{"id":"msg_1","phase":"commentary"}"#),
            },
            raw(r#"{"type":"web_search_call","id":"ws_1","status":"completed"}"#),
            MessagePart::Call {
                index: 0,
                members: members(r#"{"id":"fc_1","status":"completed"}"#),
            },
            MessagePart::Call { index: 1, members: members(r#"{"id":"fc_2"}"#) },
        ]
    }

    fn history(message: ResponseMessage) -> callsheet_values::message::MessageList {
        [
            Message::User { content: "1 + 2?".into() },
            Message::Assistant(message.into()),
            result("call_1", "3"),
            result("call_2", "bad"),
        ]
        .map(Arc::new)
        .into()
    }

    fn sent(request: &ModelRequest) -> Value {
        serde_json::from_slice(&Wire::OpenaiResponses.request_body(request)).unwrap()
    }

    /// Returns the replayed items of a message of the model with these parts.
    fn replayed(parts: Vec<MessagePart>) -> Vec<Value> {
        let body = sent(&ModelRequest::new("m", history(model_message(parts))));
        let items = body["input"].as_array().unwrap();
        items[1..items.len() - 2].to_vec()
    }

    fn with_tools() -> ModelRequest {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let tool = ToolDefinition { name: "add".into(), description: "Adds.".into(), schema };
        ModelRequest {
            system: Some("Be brief.".into()),
            tools: [tool].into(),
            ..ModelRequest::new("m", history(model_message(parts())))
        }
    }

    #[test]
    fn a_streamed_request_with_a_message_of_its_own_model() {
        insta::assert_json_snapshot!(sent(&ModelRequest {
            parallel_tool_calls: Some(false),
            max_output_tokens: Some(100),
            temperature: Some(0.5),
            ..with_tools()
        }));
    }

    #[test]
    fn a_plain_request_with_a_message_of_another_model() {
        insta::assert_json_snapshot!(sent(&ModelRequest {
            model: "other".into(),
            tool_choice: ToolChoice::Tool("add".into()),
            stream: false,
            ..with_tools()
        }));
    }

    #[test]
    fn a_request_with_images_and_ids_that_are_too_long() {
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let content = json!([{"type": "text", "text": "What is it?"},
            image("https://a.example/b.png"), image("data:image/png;base64,aGk=")]);
        let long = "functions.add:0-".repeat(5);
        let messages = [
            Message::User { content: Content::parse(&content).unwrap() },
            Message::User { content: "Well?".into() },
            Message::Assistant(
                ResponseMessage {
                    calls: vec![call(0, &long, json!({})), call(1, "functions.add:0", json!({}))],
                    ..ResponseMessage::default()
                }
                .into(),
            ),
            result(&long, "3"),
            result("functions.add:0", "3"),
        ];
        insta::assert_json_snapshot!(sent(&ModelRequest {
            tool_choice: ToolChoice::None,
            ..ModelRequest::new("m", messages.map(Arc::new).into())
        }));
    }

    #[test]
    fn a_call_of_an_unknown_tool_is_replayed_under_a_valid_name() {
        let mut message = model_message(parts());
        message.calls[0].name = "multi_tool_use.parallel".into();
        for model in ["m", "other"] {
            let body = sent(&ModelRequest::new(model, history(message.clone())));
            let items = body["input"].as_array().unwrap().iter();
            let names: Vec<_> = items.filter_map(|item| item["name"].as_str()).collect();
            assert_eq!(names, ["multi_tool_use_parallel_41c06c9e", "add"]);
        }
    }

    #[test]
    fn a_service_that_demands_reasoning_gets_an_item_for_each_message() {
        let without = ResponseMessage { reasoning: String::new(), ..model_message(vec![]) };
        for (message, text) in [(without, ""), (model_message(vec![]), "hm")] {
            let reasoning = ReasoningRule { send: SendReasoning::All, ..ReasoningRule::default() };
            let demanded =
                ModelRequest { reasoning, ..ModelRequest::new("m", history(message.clone())) };
            let item = json!({"type": "reasoning", "summary": [],
                "content": [{"type": "reasoning_text", "text": text}]});
            assert_eq!(sent(&demanded)["input"][1], item);
            let other = sent(&ModelRequest::new("m", history(message)));
            assert_eq!(other["input"][1]["role"], "assistant");
        }
        let reasoning = ReasoningRule { send: SendReasoning::All, ..ReasoningRule::default() };
        let history = history(model_message(parts()));
        let demanded = ModelRequest { reasoning, ..ModelRequest::new("m", history.clone()) };
        assert_eq!(sent(&demanded), sent(&ModelRequest::new("m", history)));
    }

    #[test]
    fn reasoning_is_replayed_byte_for_byte() {
        let body = Wire::OpenaiResponses.request_body(&with_tools());
        assert!(String::from_utf8(body).unwrap().contains(REASONING_ITEM));
    }

    #[test]
    fn a_message_with_inconsistent_items_is_replayed_as_text_and_calls() {
        let bare = json!([
            {"type": "message", "role": "assistant", "content": "Let me add."},
            {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{\"a\":1}"},
            {"type": "function_call", "call_id": "call_2", "name": "add", "arguments": "{}"},
        ]);
        let with_part = |at: usize, other: MessagePart| {
            let mut parts = parts();
            parts[at] = other;
            replayed(parts)
        };
        // The service did not store the reasoning, and its content is missing.
        let empty = r#"{"id":"rs_1","type":"reasoning","encrypted_content":null,"content":[]}"#;
        assert_eq!(json!(with_part(1, raw(empty))), bare);
        // Nothing follows it; or what it led to did not stay in the history.
        assert_eq!(json!(replayed([parts(), vec![raw(REASONING_ITEM)]].concat())), bare);
        let dropped = MessagePart::Call { index: 7, members: None };
        assert_eq!(json!(replayed([parts(), vec![raw(REASONING_ITEM), dropped]].concat())), bare);
        // The response was stopped within the text that it led to.
        assert_eq!(json!(with_part(2, MessagePart::Text { bytes: 11, members: None })), bare);
        // It was stopped within the call that it led to.
        let cut = MessagePart::Call { index: 0, members: None };
        assert_eq!(json!(replayed(vec![parts()[2].clone(), raw(REASONING_ITEM), cut]))[0], bare[0]);
        // The item of the call that it led to had no id.
        let members = Some(r#"{"namespace":"n"}"#.into());
        let bare_call = MessagePart::Call { index: 0, members };
        let sent = replayed(vec![parts()[2].clone(), raw(REASONING_ITEM), bare_call]);
        assert_eq!((&sent[0], &sent[1]["namespace"]), (&bare[0], &json!("n")));
        // Content that is not encrypted is enough.
        let open = r#"{"id":"rs_1","type":"reasoning","content":[{"type":"reasoning_text"}]}"#;
        assert_eq!(with_part(1, raw(open))[0]["id"], "rs_1");
    }

    #[test]
    fn stored_reasoning_is_replayed_without_its_content() {
        let mut parts = parts();
        parts[1] = raw(r#"{"id":"rs_1","type":"reasoning","summary":[]}"#);
        let request = ModelRequest::new("m", history(model_message(parts)));
        let extra = json!({"store": true, "include": []}).as_object().unwrap().clone();
        let stored = ModelRequest { extra_body: extra, ..request.clone() };
        let body = sent(&stored);
        assert_eq!((&body["store"], &body["include"]), (&json!(true), &json!([])));
        assert_eq!(body["input"][1]["id"], "rs_1");
        let left_to_the_service =
            ModelRequest { omit_body: ["store".to_owned()].into(), ..request.clone() };
        assert_eq!(sent(&left_to_the_service)["input"][1]["id"], "rs_1");
        assert_eq!(sent(&request)["input"][1]["type"], "message");
    }

    #[test]
    fn invalid_tool_names_are_sanitized() {
        let mut message = model_message(parts());
        message.calls[0].name = "functions.add".into();
        message.calls[1].name = "x".repeat(70).into();
        let body = sent(&ModelRequest::new("m", history(message)));
        let items = body["input"].as_array().unwrap().iter();
        let names: Vec<_> = items.filter_map(|item| item["name"].as_str()).collect();
        assert!(names[0].starts_with("functions_add_"), "{names:?}");
        assert_eq!((names.len(), names[1].len()), (2, 64), "{names:?}");
    }

    #[test]
    fn encrypted_reasoning_is_not_requested_from_models_without_reasoning() {
        let wants =
            |model: &str| sent(&ModelRequest::new(model, [].into())).get("include").is_some();
        for model in
            ["gpt-4o", "gpt-4.1-mini", "openai/gpt-4o", "ft:gpt-4o:a::b", "gpt-5-chat-latest"]
        {
            assert!(!wants(model), "{model}");
        }
        for model in ["gpt-5", "gpt-5.1-chat-latest", "o3", "openai/o4-mini", "grok-4", "my-own"] {
            assert!(wants(model), "{model}");
        }
        let extra = json!({"include": ["web_search_call.results"]}).as_object().unwrap().clone();
        let request = ModelRequest { extra_body: extra, ..ModelRequest::new("gpt-4o", [].into()) };
        assert_eq!(sent(&request)["include"], json!(["web_search_call.results"]));
    }

    #[test]
    fn the_output_limit_is_at_least_the_minimum_of_the_service() {
        let request =
            ModelRequest { max_output_tokens: Some(5), ..ModelRequest::new("m", [].into()) };
        assert_eq!(sent(&request)["max_output_tokens"], 16);
    }

    #[test]
    fn a_call_is_replayed_with_its_caller_and_namespace() {
        let members =
            r#"{"id":"fc_1","namespace":"n","caller":{"type":"program","caller_id":"c"}}"#;
        let call = MessagePart::Call { index: 0, members: Some(members.into()) };
        let sent = replayed(vec![call, MessagePart::Call { index: 1, members: None }]);
        assert_eq!(sent[0]["namespace"], "n");
        assert_eq!(sent[0]["caller"], json!({"type": "program", "caller_id": "c"}));
        assert_eq!(sent[1].get("caller"), None);
    }

    #[test]
    fn ids_that_are_too_long_are_left_out() {
        let mut parts = parts();
        parts[4] = MessagePart::Call {
            index: 0,
            members: Some(json!({"id": "x".repeat(400)}).to_string().into()),
        };
        let items = replayed(parts);
        let types: Vec<_> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["reasoning", "message", "function_call", "function_call"]);
        assert!(items.iter().all(|item| item.get("id").is_none()), "{items:?}");
        assert_eq!(items[0]["encrypted_content"], "e");
        assert_eq!(items[1]["phase"], "commentary");
    }

    #[test]
    fn a_call_that_the_host_cannot_answer_is_left_out() {
        let mut parts = parts();
        parts[3] = raw(r#"{"type":"computer_call","id":"cu_1","call_id":"c"}"#);
        let items = replayed(parts);
        assert!(items.iter().all(|item| item["type"] != "computer_call"), "{items:?}");
        assert_eq!(items.len(), 4);
    }

    #[test]
    fn the_result_of_a_custom_call_has_its_own_type() {
        let members = r#"{"id":"ctc_1","type":"custom_tool_call"}"#;
        let mut message = model_message(vec![
            MessagePart::Call { index: 0, members: Some(members.into()) },
            MessagePart::Call { index: 1, members: None },
        ]);
        message.calls[0].raw = Some("x = 1".into());
        let body = sent(&ModelRequest::new("m", history(message)));
        let input = body["input"].as_array().unwrap();
        let find = |kind: &str| input.iter().find(|item| item["type"] == kind).unwrap().clone();
        let call = json!({"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1",
            "name": "add", "input": "x = 1"});
        assert_eq!(find("custom_tool_call"), call);
        assert_eq!(find("custom_tool_call_output")["call_id"], "call_1");
        assert_eq!(find("function_call_output")["call_id"], "call_2");
    }

    #[test]
    fn a_custom_call_without_id_and_input_is_replayed_as_one() {
        let members = r#"{"namespace":"n","type":"custom_tool_call"}"#;
        let sent = replayed(vec![
            MessagePart::Call { index: 0, members: None },
            MessagePart::Call { index: 1, members: Some(members.into()) },
        ]);
        let call = json!({"type": "custom_tool_call", "call_id": "call_2", "name": "add",
            "input": "", "namespace": "n"});
        assert_eq!(sent[1], call);
    }
}
