//! Converts a request to the Chat Completions form, which scripts and the improviser read.

use serde_json::{Value, json};

use crate::text::{content_text, items};

/// Converts a checked request.
pub(super) fn request(body: &Value) -> Value {
    let mut messages = Vec::new();
    let system = content_text(&body["system"]);
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    for message in items(&body["messages"]) {
        let content = &message["content"];
        if message["role"] == "assistant" {
            messages.push(assistant(content));
        } else {
            user(content, &mut messages);
        }
    }
    let mut request =
        json!({"model": body["model"], "messages": messages, "stream": body["stream"] == true});
    let tools = items(&body["tools"]);
    if !tools.is_empty() {
        request["tools"] = tools.iter().map(tool).collect();
        request["tool_choice"] = choice(&body["tool_choice"]);
    }
    if body["tool_choice"]["disable_parallel_tool_use"] == true {
        request["parallel_tool_calls"] = false.into();
    }
    request
}

fn assistant(content: &Value) -> Value {
    let calls = items(content).iter().filter(|block| block["type"] == "tool_use");
    let calls: Vec<Value> = calls
        .map(|block| {
            let function = json!({"name": block["name"], "arguments": block["input"].to_string()});
            json!({"id": block["id"], "type": "function", "function": function})
        })
        .collect();
    let mut message = json!({"role": "assistant", "content": content_text(content)});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

fn user(content: &Value, messages: &mut Vec<Value>) {
    for result in items(content).iter().filter(|block| block["type"] == "tool_result") {
        let (id, content) = (&result["tool_use_id"], content_text(&result["content"]));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    let images = items(content).iter().filter(|block| block["type"] == "image");
    let images: Vec<Value> = images.map(image).collect();
    let text = content_text(content);
    if !images.is_empty() {
        let mut parts = vec![json!({"type": "text", "text": text})];
        parts.extend(images);
        messages.push(json!({"role": "user", "content": parts}));
    } else if !text.is_empty() {
        messages.push(json!({"role": "user", "content": text}));
    }
}

fn image(block: &Value) -> Value {
    let source = &block["source"];
    let part = |key: &str| source[key].as_str().unwrap_or_default();
    let url = match part("type") {
        "base64" => format!("data:{};base64,{}", part("media_type"), part("data")),
        _ => part("url").to_owned(),
    };
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn tool(tool: &Value) -> Value {
    let function = json!({
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
    });
    json!({"type": "function", "function": function})
}

fn choice(choice: &Value) -> Value {
    match choice["type"].as_str() {
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
        Some(_) | None => json!("auto"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_place() {
        let body = json!({
            "model": "m", "max_tokens": 1, "system": "Be brief.", "stream": true,
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "url", "url": "http://a/b"}}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                    {"type": "text", "text": "and?"}]},
            ],
        });
        let function = json!({"name": "f", "arguments": "{\"x\":1}"});
        assert_eq!(
            request(&body),
            json!({
                "model": "m", "stream": true, "tool_choice": "required",
                "parallel_tool_calls": false,
                "tools": [{"type": "function", "function": {"name": "f", "description": "d",
                    "parameters": {"type": "object"}}}],
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "look"},
                        {"type": "image_url", "image_url": {"url": "http://a/b"}}]},
                    {"role": "assistant", "content": "ok",
                        "tool_calls": [{"id": "a", "type": "function", "function": function}]},
                    {"role": "tool", "tool_call_id": "a", "content": "1"},
                    {"role": "user", "content": "and?"},
                ],
            })
        );
    }
}
