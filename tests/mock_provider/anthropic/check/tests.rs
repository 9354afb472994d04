use serde_json::json;

use super::*;

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

fn model(content: Value) -> Value {
    json!({"role": "assistant", "content": content})
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": {}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "1"})
}

fn thinking(signature: &str) -> Value {
    json!({"type": "thinking", "thinking": "hm", "signature": signature})
}

fn asking(messages: Value) -> Value {
    json!({"model": "m", "max_tokens": 1, "messages": messages})
}

#[track_caller]
fn check_request_with(messages: Value, expected: Option<&str>) {
    let found = check(&asking(messages.clone())).err();
    match expected {
        None => assert_eq!(found, None, "{messages}"),
        Some(begin) => {
            let found = found.unwrap_or_default();
            assert!(found.starts_with(begin), "{messages}: {found}");
        }
    }
}

#[test]
fn a_history_that_is_paired_passes() {
    let ours = super::super::signature("hm");
    let search = json!({"type": "server_tool_use", "id": "s", "name": "g", "input": {}});
    let found = json!({"type": "g_tool_result", "tool_use_id": "s", "content": []});
    let history = json!([
        user(json!([text("a")])),
        user(json!("b")),
        model(json!([thinking(&ours), search, found, call("x"), call("y")])),
        user(json!([result("y"), result("x"), text("and?")])),
        model(json!([thinking("of a recording"), text("ok"), call("z")])),
        user(json!([result("z")])),
        model(json!([search.as_object().map(|_| json!({"type": "server_tool_use", "id": "t",
            "name": "g", "input": {}}))])),
    ]);
    check_request_with(history, None);
}

#[test]
fn the_pairing_rule_in_the_services_own_words() {
    let user_message = user(json!([text("a")]));
    let called = model(json!([call("call_1")]));
    let error = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately \
                 after: call_1. Each `tool_use` block must have a corresponding `tool_result` \
                 block in the next message.";
    check_request_with(json!([user_message, called, user(json!([text("b")]))]), Some(error));
    check_request_with(json!([user_message, called]), Some(error));
    let late = user(json!([text("b"), result("call_1")]));
    check_request_with(json!([user_message, called, late]), Some(error));
    check_request_with(
        json!([user_message, user(json!([result("x")]))]),
        Some("messages.1.content.0: unexpected `tool_use_id` found in `tool_result` blocks: x."),
    );
    check_request_with(
        json!([user_message, called, user(json!([result("call_1"), result("call_1")]))]),
        Some("messages.2.content.1: each tool_use must have a single result."),
    );
    let again = json!([
        user_message,
        called,
        user(json!([result("call_1")])),
        called,
        user(json!([result("call_1")]))
    ]);
    check_request_with(again, Some("messages.3.content.0: `tool_use` ids must be unique"));
}

#[test]
fn what_each_block_must_hold() {
    let user_message = user(json!([text("a")]));
    let after = |block: Value| json!([user_message, model(json!([block, text("b")]))]);
    check_request_with(
        after(call("a:1")),
        Some("messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
    );
    check_request_with(
        after(json!({"type": "tool_use", "id": "a", "name": "f", "input": "{}"})),
        Some("messages.1.content.0.tool_use.input: Input should be a valid dictionary"),
    );
    check_request_with(
        after(json!({"type": "thinking", "thinking": "hm"})),
        Some("messages.1.content.0.thinking.signature: Field required"),
    );
    let invalid = Some("messages.1.content.0: Invalid `signature` in `thinking` block");
    check_request_with(after(thinking("")), invalid);
    check_request_with(after(thinking(&super::super::signature("ho"))), invalid);
    check_request_with(
        after(json!({"type": "g_tool_result", "tool_use_id": "s"})),
        Some("messages.1.content.0: unexpected `tool_use_id` found in `g_tool_result` blocks: s."),
    );
    check_request_with(
        after(json!({"type": "odd"})),
        Some("messages.1.content.0: Input tag 'odd'"),
    );
    check_request_with(
        json!([user(json!([text("")]))]),
        Some("messages: text content blocks must be non-empty"),
    );
    check_request_with(
        json!([user(json!([text(" \n")]))]),
        Some("messages: text content blocks must contain non-whitespace text"),
    );
    let search = json!({"type": "server_tool_use", "id": "s", "name": "g", "input": {}});
    check_request_with(
        json!([user_message, model(json!([search])), user_message]),
        Some("messages.1: `g` tool use with id `s` was found without"),
    );
    check_request_with(
        json!([user_message, model(json!([search])), user(json!("b"))]),
        Some("messages.1: `g` tool use with id `s` was found without"),
    );
}

#[test]
fn where_messages_may_begin_and_end() {
    let user_message = user(json!([text("a")]));
    check_request_with(
        json!([model(json!([text("a")]))]),
        Some("messages: first message must use the \"user\" role"),
    );
    check_request_with(
        json!([{"role": "system", "content": "x"}]),
        Some("messages: Unexpected role \"system\"."),
    );
    check_request_with(json!([user(json!([]))]), Some("messages.0: all messages must have"));
    check_request_with(json!([]), Some("messages: at least one message is required"));
    check_request_with(
        json!([user_message, model(json!([text("b ")]))]),
        Some("messages: final assistant content cannot end with trailing whitespace"),
    );
    check_request_with(
        json!([user_message, model(json!([text("b"), thinking("s")])), user_message]),
        Some("messages.1: The final block in an assistant message cannot be `thinking`."),
    );
}

#[test]
fn what_a_request_must_say() {
    let messages = json!([user(json!("a"))]);
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    for (members, expected) in [
        (json!({"max_tokens": 1}), Some("model: Field required")),
        (json!({"model": "m"}), Some("max_tokens: Field required")),
        (
            json!({"model": "m", "max_tokens": 0}),
            Some("max_tokens: Input should be greater than or equal to 1"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "parallel_tool_calls": false}),
            Some("parallel_tool_calls: Extra inputs are not permitted"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "temperature": 1.5}),
            Some("temperature: range: 0..1"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "tools": [tool, tool]}),
            Some("tools: Tool names must be unique."),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "tools": [{"name": "a.b", "input_schema": {"type": "object"}}]}),
            Some("tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "tools": [{"name": "a"}]}),
            Some("tools.0.custom.input_schema: Field required"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "tool_choice": {"type": "auto"}}),
            Some("tool_choice: may only be specified while providing tools"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "tools": [tool],
                "tool_choice": {"type": "tool", "name": "g"}}),
            Some("tool_choice: Tool 'g' not found in provided tools"),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "tools": [tool],
                "tool_choice": {"type": "none", "disable_parallel_tool_use": true}}),
            Some("tool_choice.none.disable_parallel_tool_use: Extra inputs are not permitted"),
        ),
        (
            json!({"model": "m", "max_tokens": 4096, "tools": [tool],
                "thinking": {"type": "enabled", "budget_tokens": 1024}, "tool_choice": {"type": "any"}}),
            Some("Thinking may not be enabled when tool_choice forces tool use."),
        ),
        (
            json!({"model": "m", "max_tokens": 4096, "tools": [tool],
                "thinking": {"type": "enabled", "budget_tokens": 1024}, "tool_choice": {"type": "auto"}}),
            None,
        ),
        (json!({"model": "m", "max_tokens": 1, "tools": [tool], "system": "x"}), None),
        (
            json!({"model": "m", "max_tokens": 1, "system": [
                {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}),
            None,
        ),
        (
            json!({"model": "m", "max_tokens": 1, "system": vec![
                json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}); 5]}),
            Some("A maximum of 4 blocks with cache_control may be provided. Found 5."),
        ),
        (
            json!({"model": "m", "max_tokens": 1, "system": [
                {"type": "text", "text": "x", "cache_control": {"type": "durable"}}]}),
            Some("cache_control.type: Input should be 'ephemeral'"),
        ),
    ] {
        let mut request = members;
        request["messages"] = messages.clone();
        assert_eq!(check(&request).err().as_deref(), expected, "{request}");
    }
    assert!(check(&Value::Null).is_err());
}
