//! Converts a request to the Chat Completions form, which scripts and the improviser read.

use serde_json::{Value, json};

use crate::text::items;

/// Converts a checked request. Keeps the member `include`, which the encoder reads.
pub(super) fn chat_form(body: &Value) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    if let Some(system) = body["instructions"].as_str() {
        messages.push(json!({"role": "system", "content": system}));
    }
    if let Some(text) = body["input"].as_str() {
        messages.push(json!({"role": "user", "content": text}));
    }
    for item in items(&body["input"]) {
        add(item, &mut messages);
    }
    let mut form = json!({
        "model": body["model"],
        "stream": body["stream"] == true,
        "messages": messages,
        "include": body["include"],
    });
    if let Some(tools) = body["tools"].as_array().filter(|tools| !tools.is_empty()) {
        let function = |tool: &Value| {
            let mut function = tool.clone();
            if let Some(fields) = function.as_object_mut() {
                fields.remove("type");
            }
            json!({"type": "function", "function": function})
        };
        form["tools"] = tools.iter().map(function).collect();
        let choice = &body["tool_choice"];
        form["tool_choice"] = match choice.as_object() {
            Some(named) => json!({"type": "function", "function": {"name": named.get("name")}}),
            None if choice.is_null() => "auto".into(),
            None => choice.clone(),
        };
    }
    if body["parallel_tool_calls"] == false {
        form["parallel_tool_calls"] = false.into();
    }
    form
}

fn add(item: &Value, messages: &mut Vec<Value>) {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            messages.push(json!({"role": item["role"], "content": content(&item["content"])}));
        }
        "function_call" | "custom_tool_call" => {
            let arguments =
                if item["input"].is_string() { &item["input"] } else { &item["arguments"] };
            let call = json!({"id": item["call_id"], "type": "function",
                "function": {"name": item["name"], "arguments": arguments}});
            // The calls of one response and the text before them are one message.
            let last = messages.last_mut().filter(|message| message["role"] == "assistant");
            match last {
                Some(message) => match message["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => message["tool_calls"] = json!([call]),
                },
                None => messages
                    .push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let content = content(&item["output"]);
            messages
                .push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": content}));
        }
        // The Chat Completions form has no reasoning items and no calls that the service ran itself.
        _ => {}
    }
}

fn content(content: &Value) -> Value {
    let Value::Array(parts) = content else { return content.clone() };
    if let [part] = parts.as_slice()
        && part["text"].is_string()
    {
        return part["text"].clone();
    }
    let part = |part: &Value| match part["type"].as_str() {
        Some("input_image") => {
            json!({"type": "image_url", "image_url": {"url": part["image_url"]}})
        }
        Some(_) | None => json!({"type": "text", "text": part["text"]}),
    };
    parts.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_the_same_in_the_other_form() {
        let form = chat_form(&json!({
            "model": "m",
            "instructions": "Be brief.",
            "input": [
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "hi"},
                    {"type": "input_image", "image_url": "https://a.b/c.png"}]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"role": "assistant", "content": "Well."},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {"type": "function_call_output", "call_id": "b", "output": "2"},
                {"type": "function_call", "call_id": "c", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "3"},
                {"role": "user", "content": "and?"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "f"},
            "stream": true,
        }));
        insta::assert_json_snapshot!(form);
    }

    #[test]
    fn keeps_the_limit_to_one_call_at_a_time() {
        let body = json!({"model": "m", "input": "hi", "parallel_tool_calls": false});
        assert_eq!(chat_form(&body)["parallel_tool_calls"], false);
    }
}
