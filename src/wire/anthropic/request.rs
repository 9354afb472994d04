//! The members of the body other than the messages, as in Anthropic's API reference,
//! <https://docs.anthropic.com/en/api/messages>.

use serde_json::{Map, Value, json};

use super::{AnthropicDialect, messages};
use crate::answer_schema::closed_schema;
use crate::dialect::{KeyHeader, RequestFormat, has_version};
use crate::extra_members::present_members;
use crate::request_cache::HistoryWriter;
use crate::tool_schema::ToolForm;
use crate::{Framing, ModelRequest, ToolChoice, ToolDefinition};

/// Maximum length of the answer in tokens if none is configured. The API requires one.
const MAX_TOKENS: u64 = 8192;

impl RequestFormat for AnthropicDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader { name: "x-api-key", prefix: "" };
    const HISTORY_MEMBER: &'static str = "messages";
    const HEADERS: &'static [(&'static str, &'static str)] = &[("anthropic-version", "2023-06-01")];

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        if has_version(base) { format!("{base}/messages") } else { format!("{base}/v1/messages") }
    }

    fn head(request: &ModelRequest) -> Value {
        let has_tools = !request.tools.is_empty();
        let has_breakpoints = has_breakpoints(request);
        let tools = || {
            let mut tools: Vec<_> = request.tools.iter().map(tool).collect();
            if let Some(last) = tools.last_mut().filter(|_| has_breakpoints) {
                last.insert(CACHE_CONTROL.to_owned(), breakpoint());
            }
            tools
        };
        let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
        json!({
            "model": request.model,
            "max_tokens": max_tokens(request),
            "system": system.map(|text| match has_breakpoints {
                true => json!([{"type": "text", "text": text, CACHE_CONTROL: breakpoint()}]),
                false => Value::from(text),
            }),
            "tools": has_tools.then(tools),
            "tool_choice": has_tools.then(|| tool_choice(request)),
            // The API's maximum is 1. Other wires accept up to 2.
            "temperature": request.temperature.map(|temperature| temperature.clamp(0.0, 1.0)),
            "output_config": request.output_schema.as_deref().map(|schema| {
                json!({"format": {"type": "json_schema", "schema": closed_schema(schema)}})
            }),
            "stream": request.stream,
        })
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }
}

/// The member that marks the end of a prefix that the service caches.
pub(super) const CACHE_CONTROL: &str = "cache_control";

/// Returns the value of [`CACHE_CONTROL`].
pub(super) fn breakpoint() -> Value {
    json!({"type": "ephemeral"})
}

/// Returns whether a request has breakpoints of the host: if it asks for caching, unless `omit_body` names
/// [`CACHE_CONTROL`]. The service allows four, so breakpoints in `extra_body` replace those of the host.
pub(super) fn has_breakpoints(request: &ModelRequest) -> bool {
    let has_configured = || {
        let members = serde_json::to_string(&request.extra_body).unwrap_or_default();
        members.contains(CACHE_CONTROL)
    };
    request.prompt_cache
        && !request.omit_body.contains(CACHE_CONTROL)
        && (request.extra_body.is_empty() || !has_configured())
}

/// Returns the maximum length of the answer in tokens, including thinking. The default has room for the
/// configured thinking budget, because the service refuses a budget that is not below this maximum
/// (<https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking>).
fn max_tokens(request: &ModelRequest) -> u64 {
    if let Some(tokens) = request.max_output_tokens {
        return tokens.into();
    }
    let thinking = request.extra_body.get("thinking");
    let budget = thinking.and_then(|thinking| thinking.get("budget_tokens")?.as_u64());
    budget.unwrap_or(0).saturating_add(MAX_TOKENS)
}

/// Returns the tool choice. The service refuses a forced call if the model thinks. Then it is `auto`, and if the
/// response has no call, the run asks for one in a message. Rule:
/// <https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking#extended-thinking-with-tool-use>.
fn tool_choice(request: &ModelRequest) -> Value {
    let mut choice = match &request.tool_choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::Required | ToolChoice::Tool(_) if thinks(request) => json!({"type": "auto"}),
        // The API refuses `disable_parallel_tool_use` here.
        ToolChoice::None => return json!({"type": "none"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Tool(name) => json!({"type": "tool", "name": &**name}),
    };
    if request.parallel_tool_calls == Some(false)
        && let Some(members) = choice.as_object_mut()
    {
        members.insert("disable_parallel_tool_use".to_owned(), Value::Bool(true));
    }
    choice
}

/// Returns whether the request switches thinking on.
fn thinks(request: &ModelRequest) -> bool {
    let kind = request.extra_body.get("thinking").and_then(|thinking| thinking.get("type"));
    kind.is_some_and(|kind| kind != "disabled")
}

fn tool(tool: &ToolDefinition) -> Map<String, Value> {
    let ToolDefinition { name, description, schema } = tool;
    let description = Some(description).filter(|text| !text.is_empty());
    let input_schema = ToolForm::ANTHROPIC.schema(schema);
    present_members(json!({"name": name, "description": description, "input_schema": input_schema}))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::messages::is_allowed;
    use super::*;
    use crate::WireFormat as _;
    use callsheet_values::message::{Message, ResponseMessage, ResultContent};
    use callsheet_values::types::{
        CallKey, Content, ContentPart, Image, MessagePart, ModelOrigin, ReasoningRule,
        SendReasoning, ToolCall, Wire,
    };

    fn user(text: &str) -> Message {
        Message::User { content: text.into() }
    }

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

    fn model_message(text: &str, calls: impl IntoIterator<Item = ToolCall>) -> ResponseMessage {
        let calls = calls.into_iter().collect();
        ResponseMessage { text: text.into(), calls, ..ResponseMessage::default() }
    }

    fn from(wire: Wire, model: &str) -> Option<Arc<ModelOrigin>> {
        Some(Arc::new(ModelOrigin { wire, model: model.into() }))
    }

    fn result(id: &str, content: &str, metadata: Value) -> Message {
        Message::Tool { call_id: id.into(), name: "add".into(), content: content.into(), metadata }
    }

    fn asking(messages: impl IntoIterator<Item = Message>) -> ModelRequest {
        ModelRequest::new("m", messages.into_iter().map(Arc::new).collect::<Vec<_>>().into())
    }

    fn with_tools(request: ModelRequest) -> ModelRequest {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let add = ToolDefinition { name: "add".into(), description: "Adds.".into(), schema };
        let schema = json!({"anyOf": [{"required": ["x"]}], "properties": {"x": {}}});
        let odd = ToolDefinition { name: "odd".into(), description: String::new(), schema };
        ModelRequest { system: Some("Be brief.".into()), tools: [add, odd].into(), ..request }
    }

    fn sent(request: &ModelRequest) -> Value {
        serde_json::from_slice(&Wire::AnthropicMessages.request_body(request)).unwrap()
    }

    fn sent_messages(messages: impl IntoIterator<Item = Message>) -> Value {
        sent(&asking(messages))["messages"].clone()
    }

    /// Returns a message of this wire's own model: thinking, a cited text, a search that the service ran
    /// itself, and a call.
    fn rich() -> ResponseMessage {
        let raw = |json: Value| MessagePart::Raw { json: json.to_string().into() };
        ResponseMessage {
            reasoning: "hmunsigned".into(),
            origin: from(Wire::AnthropicMessages, "m"),
            parts: vec![
                MessagePart::Reasoning { bytes: 2, members: Some(r#"{"signature":"s"}"#.into()) },
                raw(json!({"type": "redacted_thinking", "data": "zz"})),
                raw(
                    json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}),
                ),
                raw(json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []})),
                raw(json!({"type": "web_search_tool_result", "tool_use_id": "s0", "content": []})),
                raw(
                    json!({"type": "server_tool_use", "id": "s2", "name": "web_search", "input": {}}),
                ),
                MessagePart::Text {
                    bytes: 2,
                    members: Some(r#"{"citations":[{"cited_text":"x"}]}"#.into()),
                },
                MessagePart::Text { bytes: 2, members: None },
                MessagePart::Reasoning { bytes: 8, members: None },
                MessagePart::Call {
                    index: 0,
                    members: Some(r#"{"caller":{"type":"direct"}}"#.into()),
                },
            ],
            ..model_message("ab\n\n", [call(0, "toolu:1", json!({"a": 1}))])
        }
    }

    #[test]
    fn plain() {
        insta::assert_json_snapshot!(sent(&ModelRequest { stream: false, ..asking([user("hi")]) }));
    }

    #[test]
    fn streamed_with_tools_and_parameters() {
        insta::assert_json_snapshot!(sent(&ModelRequest {
            parallel_tool_calls: Some(false),
            max_output_tokens: Some(100),
            temperature: Some(1.5),
            ..with_tools(asking([user("1 + 2?")]))
        }));
    }

    #[test]
    fn a_message_goes_back_complete_to_its_own_model() {
        let history = [
            user("look"),
            Message::Assistant(rich().into()),
            result("toolu:1", "3", json!({})),
            user("and?"),
        ];
        insta::assert_json_snapshot!(sent_messages(history));
    }

    #[test]
    fn a_service_that_demands_thinking_gets_a_block_in_every_message() {
        let own = |reasoning: &str| ResponseMessage {
            reasoning: reasoning.into(),
            origin: from(Wire::AnthropicMessages, "m"),
            ..model_message("own", [])
        };
        let history = [
            user("look"),
            Message::Assistant(model_message("other", [call(0, "a", json!({}))]).into()),
            result("a", "3", json!({})),
            Message::Assistant(own("").into()),
            user("and?"),
            Message::Assistant(own("hm").into()),
            user("and?"),
            Message::Assistant(rich().into()),
            result("toolu:1", "3", json!({})),
        ];
        let blocks = |send, refuses_empty| {
            let reasoning = ReasoningRule { send, refuses_empty, ..ReasoningRule::default() };
            let request = ModelRequest { reasoning, ..asking(history.clone()) };
            let messages = sent(&request)["messages"].take();
            let messages = messages.as_array().unwrap();
            let answers = messages.iter().filter(|message| message["role"] == "assistant");
            answers.map(|message| message["content"][0].clone()).collect::<Vec<_>>()
        };
        let unsigned = |text: &str| json!({"type": "thinking", "thinking": text, "signature": ""});
        let signed = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
        let text = |text: &str| json!({"type": "text", "text": text});
        let called = json!({"type": "text", "text": "other"});
        let demanded = [unsigned(""), unsigned(""), unsigned("hm"), signed.clone()];
        assert_eq!(blocks(SendReasoning::All, false), demanded);
        assert_eq!(blocks(SendReasoning::All, true)[0], unsigned(" "));
        let auto = [called, text("own"), text("own"), signed];
        assert_eq!(blocks(SendReasoning::Auto, false), auto);
        assert_eq!(blocks(SendReasoning::Calls, false), auto);
        let never = blocks(SendReasoning::Never, false);
        assert_eq!(never[3]["type"], "server_tool_use");
    }

    #[test]
    fn another_model_gets_its_text_and_its_calls() {
        let history = [
            user("look"),
            Message::Assistant(rich().into()),
            result("toolu:1", "3", json!({})),
            user("and?"),
        ];
        insta::assert_json_snapshot!(
            sent(&ModelRequest { model: "n".into(), ..asking(history) })["messages"]
        );
    }

    #[test]
    fn ids_of_other_wires_and_cut_off_arguments() {
        let error = json!({"error": true, "kind": "cut_off_arguments"});
        let of_chat = |calls: [ToolCall; 2]| {
            let origin = from(Wire::OpenaiChat, "x");
            Message::Assistant(ResponseMessage { origin, ..model_message(" ", calls) }.into())
        };
        let turn = |a: Value| {
            [
                of_chat([call(0, "functions.add:0", a), call(1, "0", json!({}))]),
                result("functions.add:0", "", json!({})),
                result("0", "cut off", error.clone()),
            ]
        };
        let history = [user("go")].into_iter().chain(turn(json!({"a": 1}))).chain(turn(json!([7])));
        insta::assert_json_snapshot!(sent_messages(history));
    }

    #[test]
    fn ids_of_the_same_model_are_unchanged_unless_they_repeat() {
        let turn = |model: &str| {
            let calls = [call(0, "f:0", json!({})), call(1, "1", json!({}))];
            let origin = from(Wire::AnthropicMessages, model);
            let message = ResponseMessage { origin, ..model_message("", calls) };
            [
                Message::Assistant(message.into()),
                result("f:0", "a", json!({})),
                result("1", "b", json!({})),
                user("go on"),
            ]
        };
        let body = sent_messages(["m", "m", "n"].into_iter().flat_map(turn));
        let ids = |block: &str, member: &str| -> Vec<String> {
            let contents = body.as_array().unwrap().iter().map(|turn| turn["content"].as_array());
            let blocks = contents.flat_map(Option::unwrap).filter(|b| b["type"] == block);
            blocks.map(|b| b[member].as_str().unwrap().to_owned()).collect()
        };
        let called = ids("tool_use", "id");
        assert_eq!(called[..2], ["f:0", "1"]);
        assert!(called[2..].iter().all(|id| id.chars().all(is_allowed)), "{called:?}");
        assert_eq!(called.iter().collect::<BTreeSet<_>>().len(), 6, "{called:?}");
        assert_eq!(ids("tool_result", "tool_use_id"), called);
    }

    #[test]
    fn users_are_merged_and_images_sent() {
        let parts = |url: &str| {
            vec![
                ContentPart::Text("what is this?".into()),
                ContentPart::Text(" \n".into()),
                ContentPart::Image(Image::parse(url).unwrap()),
            ]
        };
        let history = [
            Message::Assistant(model_message("Hello.", []).into()),
            Message::User { content: Content::from(parts("https://example.com/a.png")) },
            user(""),
            Message::User { content: Content::from(parts("data:image/png;base64,AAAA")) },
            Message::Assistant(model_message("A.", []).into()),
            Message::Assistant(model_message("B. \n", []).into()),
        ];
        insta::assert_json_snapshot!(sent_messages(history));
    }

    #[test]
    fn images_of_other_media_types_are_text() {
        let image = |url: &str| ContentPart::Image(Image::parse(url).unwrap());
        let parts: Content = ["svg+xml", "bmp", "PNG", "jpg", "jpeg", "gif", "webp"]
            .map(|kind| image(&format!("data:image/{kind};base64,AAAA")))
            .to_vec()
            .into();
        let text = |text: &str| json!({"type": "text", "text": text});
        let image = |media_type: &str| {
            let source = json!({"type": "base64", "media_type": media_type, "data": "AAAA"});
            json!({"type": "image", "source": source})
        };
        let expected = json!([
            text("[image image/svg+xml, 3 bytes]"),
            text("[image image/bmp, 3 bytes]"),
            image("image/png"),
            image("image/jpeg"),
            image("image/jpeg"),
            image("image/gif"),
            image("image/webp"),
        ]);
        let result = Message::Tool {
            call_id: "a".into(),
            name: "add".into(),
            content: ResultContent::from_parts(parts.clone()),
            metadata: json!({}),
        };
        let calls = model_message("", [call(0, "a", json!({}))]);
        let sent = sent_messages([
            Message::User { content: parts },
            Message::Assistant(calls.into()),
            result,
        ]);
        assert_eq!(sent[0]["content"], expected);
        assert_eq!(sent[2]["content"][0]["content"], expected);
    }

    #[test]
    fn the_result_of_a_failed_call_is_text() {
        let image = ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap());
        let parts = vec![ContentPart::Text("It failed:".into()), image];
        let result = |metadata: Value| Message::Tool {
            call_id: "a".into(),
            name: "add".into(),
            content: ResultContent::from_parts(parts.clone().into()),
            metadata,
        };
        let sent = |metadata: Value| {
            let calls = model_message("", [call(0, "a", json!({}))]);
            let history = [user("go"), Message::Assistant(calls.into()), result(metadata)];
            sent_messages(history)[2]["content"][0].clone()
        };
        assert_eq!(
            sent(json!({"error": true})),
            json!({"type": "tool_result", "tool_use_id": "a", "is_error": true,
                "content": "It failed:\n[image image/png, 3 bytes]"})
        );
        assert_eq!(sent(json!({}))["content"][1]["type"], "image");
    }

    #[test]
    fn an_empty_user_message_is_replaced_by_a_placeholder() {
        let nothing = json!([{"role": "user", "content": [{"type": "text", "text": "(nothing)"}]}]);
        assert_eq!(sent_messages([user(" ")]), nothing);
        let history = [user("a"), Message::Assistant(model_message("b", []).into()), user("")];
        assert_eq!(sent_messages(history)[2], nothing[0]);
    }

    #[test]
    fn thinking_alone_is_not_sent() {
        let thought = ResponseMessage {
            reasoning: "hm".into(),
            origin: from(Wire::AnthropicMessages, "m"),
            parts: vec![
                MessagePart::Reasoning { bytes: 2, members: Some(r#"{"signature":"s"}"#.into()) },
                MessagePart::Raw { json: r#"{"type":"redacted_thinking","data":"z"}"#.into() },
            ],
            ..ResponseMessage::default()
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            sent_messages([user("a"), Message::Assistant(thought.into()), user("b")]),
            json!([{"role": "user", "content": [text("a"), text("b")]}])
        );
    }

    #[test]
    fn a_call_that_the_service_may_still_run_goes_back_without_a_result() {
        let paused = |origin| ResponseMessage {
            origin,
            parts: vec![MessagePart::Raw {
                json: r#"{"type":"server_tool_use","id":"s","name":"g","input":{}}"#.into(),
            }],
            ..ResponseMessage::default()
        };
        let ours = || Message::Assistant(paused(from(Wire::AnthropicMessages, "m")).into());
        let count = |messages: Vec<Message>| sent_messages(messages).as_array().unwrap().len();
        assert_eq!(count(vec![user("a"), ours()]), 2);
        assert_eq!(count(vec![user("a"), ours(), user("b")]), 1);
    }

    /// Returns a response with a call that the service runs itself, and further calls.
    fn searching(id: &str, calls: &[(u32, &str)]) -> Message {
        let search =
            json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {}});
        let calls = calls.iter().map(|(index, id)| call(*index, id, json!({})));
        let mut response = model_message("", calls);
        response.origin = from(Wire::AnthropicMessages, "m");
        let parts = (0..response.calls.len() as u32)
            .map(|index| MessagePart::Call { index, members: None });
        response.parts = std::iter::once(MessagePart::Raw { json: search.to_string().into() })
            .chain(parts)
            .collect();
        Message::Assistant(response.into())
    }

    #[test]
    fn a_call_of_the_service_that_an_input_interrupts_gets_a_result() {
        let before = sent_messages([user("a"), searching("s", &[])]);
        let after = sent_messages([user("a"), searching("s", &[]), user("b")]);
        let error = json!({"type": "web_search_tool_result_error", "error_code": "unavailable"});
        assert_eq!(after[1]["content"][0], before[1]["content"][0]);
        assert_eq!(
            after[1]["content"][1],
            json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": error})
        );
        let blocks =
            |messages: &Value, at: usize| messages[at]["content"].as_array().unwrap().len();
        assert_eq!((blocks(&after, 1), blocks(&after, 2)), (2, 1));
    }

    #[test]
    fn a_call_of_the_service_may_wait_for_the_results_of_several_responses() {
        let mut history = vec![
            user("a"),
            searching("s", &[(0, "c1")]),
            result("c1", "1", json!({})),
            Message::Assistant(model_message("", [call(0, "c2", json!({}))]).into()),
            result("c2", "2", json!({})),
        ];
        let search = |messages: &Value| {
            let first = messages[1]["content"][0]["type"].clone();
            (first, messages.as_array().unwrap().len())
        };
        assert_eq!(search(&sent_messages(history.clone())), (json!("server_tool_use"), 5));
        history.push(Message::Assistant(model_message("done ", []).into()));
        history.push(user("b"));
        let sent = sent_messages(history.clone());
        assert_eq!(search(&sent), (json!("server_tool_use"), 7));
        assert_eq!(sent[5]["content"][0]["text"], "done");
        assert_eq!(sent[5]["content"][1]["tool_use_id"], "s");
        // The results of the other calls are between the call and its own result.
        let before = sent_messages(history[..3].to_vec());
        history.truncate(3);
        history.push(user("b"));
        let after = sent_messages(history);
        assert_eq!(after.as_array().unwrap()[..3], before.as_array().unwrap()[..]);
        assert_eq!(after[3]["role"], "assistant");
        assert_eq!(after[3]["content"][0]["type"], "web_search_tool_result");
    }

    #[test]
    fn a_response_is_the_same_whether_it_is_the_last_message_or_not() {
        let paused = || {
            let mut response = model_message("One moment \n", []);
            response.origin = from(Wire::AnthropicMessages, "m");
            Message::Assistant(response.into())
        };
        let before = sent_messages([user("a"), paused()]);
        let after = sent_messages([user("a"), paused(), user("b")]);
        assert_eq!(before[1]["content"][0]["text"], "One moment");
        assert_eq!(before[1], after[1]);
    }

    #[test]
    fn tools_that_may_not_be_called_stay_listed() {
        let request = ModelRequest {
            tool_choice: ToolChoice::None,
            parallel_tool_calls: Some(false),
            ..with_tools(asking([user("a")]))
        };
        let body = sent(&request);
        assert_eq!(body["tool_choice"], json!({"type": "none"}));
        assert_eq!(body["tools"].as_array().unwrap().len(), 2);
        for (choice, expected) in [
            (ToolChoice::Required, json!({"type": "any"})),
            (ToolChoice::Tool("add".into()), json!({"type": "tool", "name": "add"})),
        ] {
            let request = ModelRequest { tool_choice: choice, ..with_tools(asking([user("a")])) };
            assert_eq!(sent(&request)["tool_choice"], expected);
            for (thinking, expected) in [
                (json!({"type": "enabled", "budget_tokens": 1024}), &json!({"type": "auto"})),
                (json!({"type": "adaptive"}), &json!({"type": "auto"})),
                (json!({"type": "disabled"}), &expected),
            ] {
                let extra_body = [("thinking".to_owned(), thinking)].into_iter().collect();
                let request = ModelRequest { extra_body, ..request.clone() };
                assert_eq!(sent(&request)["tool_choice"], *expected);
            }
        }
    }

    #[test]
    fn extra_members_replace_optional_members_but_not_protected_ones() {
        let extra = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096,
        "stream": false, "messages": []});
        let request =
            ModelRequest { extra_body: extra.as_object().unwrap().clone(), ..asking([user("a")]) };
        let body = sent(&request);
        assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(4096), &json!(true)));
        assert_eq!(body["thinking"]["budget_tokens"], 1024);
        assert_eq!(body["messages"].as_array().unwrap().len(), 1);
    }

    /// Returns the positions of the breakpoints in a body: `tools`, `system`, or the message and the block.
    fn breakpoints_of(body: &Value) -> Vec<String> {
        let is_marked = |block: &Value| block["cache_control"] == json!({"type": "ephemeral"});
        let marked = |blocks: &Value| {
            let blocks = blocks.as_array().into_iter().flatten().enumerate();
            blocks.filter(|(_, block)| is_marked(block)).map(|(at, _)| at).collect::<Vec<_>>()
        };
        let head = ["tools", "system"].into_iter();
        let head = head.flat_map(|member| {
            marked(&body[member]).into_iter().map(move |at| format!("{member} {at}"))
        });
        let messages = body["messages"].as_array().unwrap().iter().enumerate();
        let messages = messages.flat_map(|(at, message)| {
            marked(&message["content"]).into_iter().map(move |block| format!("{at}.{block}"))
        });
        head.chain(messages).collect()
    }

    /// Returns a turn with this many calls and their results.
    fn turn_with_calls(turn: u32, calls: u32) -> Vec<Message> {
        let id = |index: u32| format!("toolu_{turn}_{index}");
        let message = ResponseMessage {
            origin: from(Wire::AnthropicMessages, "m"),
            ..model_message("", (0..calls).map(|index| call(index, &id(index), json!({}))))
        };
        let results = (0..calls).map(|index| result(&id(index), "3", json!({})));
        std::iter::once(Message::Assistant(message.into())).chain(results).collect()
    }

    #[test]
    fn breakpoints_are_at_the_ends_of_tools_and_system_and_of_the_last_two_requests() {
        let cached = |history: Vec<Message>| {
            let request = ModelRequest { prompt_cache: true, ..with_tools(asking(history)) };
            breakpoints_of(&sent(&request))
        };
        assert_eq!(cached(vec![user("a")]), ["tools 1", "system 0", "0.0"]);
        let short = [vec![user("a")], turn_with_calls(1, 2)].concat();
        assert_eq!(cached(short), ["tools 1", "system 0", "2.1"]);
        // The entry of the request before is further away than the service looks.
        let long = [vec![user("a")], turn_with_calls(1, 12)].concat();
        assert_eq!(cached(long), ["tools 1", "system 0", "0.0", "2.11"]);
        let longer =
            [vec![user("a")], turn_with_calls(1, 12), vec![user("b")], turn_with_calls(2, 9)];
        assert_eq!(cached(longer.concat()), ["tools 1", "system 0", "2.12", "4.8"]);
    }

    #[test]
    fn a_cached_request_differs_in_its_breakpoints_only() {
        let history = [vec![user("a")], turn_with_calls(1, 12)].concat();
        let plain = with_tools(asking(history));
        let cached = ModelRequest { prompt_cache: true, ..plain.clone() };
        let mut body = sent(&cached);
        fn unmark(value: &mut Value) {
            match value {
                Value::Array(items) => items.iter_mut().for_each(unmark),
                Value::Object(members) => {
                    members.remove("cache_control");
                    members.values_mut().for_each(unmark);
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        unmark(&mut body);
        assert_eq!(body["system"], json!([{"type": "text", "text": "Be brief."}]));
        body["system"] = "Be brief.".into();
        assert_eq!(body, sent(&plain));
    }

    #[test]
    fn breakpoints_of_the_configuration_replace_those_of_the_host() {
        let request = ModelRequest { prompt_cache: true, ..with_tools(asking([user("a")])) };
        let extra = json!({"cache_control": {"type": "ephemeral"}});
        let own =
            ModelRequest { extra_body: extra.as_object().unwrap().clone(), ..request.clone() };
        assert_eq!(breakpoints_of(&sent(&own)), [""; 0]);
        let omitted = ModelRequest { omit_body: ["cache_control".to_owned()].into(), ..request };
        assert_eq!(breakpoints_of(&sent(&omitted)), [""; 0]);
    }

    #[test]
    fn a_breakpoint_is_never_at_thinking() {
        let history = vec![user("look"), Message::Assistant(rich().into())];
        let request = ModelRequest { prompt_cache: true, ..asking(history) };
        let body = sent(&request);
        let marked = breakpoints_of(&body);
        assert_eq!(marked.len(), 1, "{body}");
    }

    #[test]
    fn there_is_room_for_the_thinking_that_is_allowed() {
        let extra = json!({"thinking": {"type": "enabled", "budget_tokens": 16_000}});
        let request =
            ModelRequest { extra_body: extra.as_object().unwrap().clone(), ..asking([user("a")]) };
        assert_eq!(sent(&request)["max_tokens"], 24_192);
        let request = ModelRequest { max_output_tokens: Some(20_000), ..request };
        assert_eq!(sent(&request)["max_tokens"], 20_000);
        let extra = json!({"thinking": {"type": "adaptive"}});
        let request =
            ModelRequest { extra_body: extra.as_object().unwrap().clone(), ..asking([user("a")]) };
        assert_eq!(sent(&request)["max_tokens"], 8192);
    }
}
