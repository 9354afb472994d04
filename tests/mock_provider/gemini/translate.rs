//! Converts a checked request to the Chat Completions form.

use serde_json::{Value, json};

use crate::text::items;

/// Returns the request in the form that scripts and the improviser read.
pub(super) fn to_chat(model: &str, stream: bool, body: &Value) -> Value {
    let mut messages = Vec::new();
    let system = items(&body["system_instruction"]["parts"]);
    let system: Vec<&str> = system.iter().filter_map(|part| part["text"].as_str()).collect();
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system.join("\n")}));
    }
    // The ids and names of the calls without a result so far.
    let mut open: Vec<(String, String)> = Vec::new();
    for (at, content) in items(&body["contents"]).iter().enumerate() {
        let parts = items(&content["parts"]);
        if content["role"] == "model" {
            open = calls(at, parts);
            messages.push(assistant(parts, &open));
        } else {
            messages.extend(results(parts, &mut open));
            messages.extend(user(parts));
        }
    }
    let mut request = json!({"model": model, "stream": stream, "messages": messages});
    let tools = tools(body);
    if !tools.is_empty() {
        request["tools"] = Value::Array(tools);
        request["tool_choice"] = choice(body);
    }
    request
}

fn calls(at: usize, parts: &[Value]) -> Vec<(String, String)> {
    let calls = parts.iter().map(|part| &part["function_call"]).filter(|c| c.is_object());
    let named = calls.zip(0..).map(|(call, place): (&Value, usize)| {
        let id = call["id"].as_str().map_or_else(|| format!("g{at}_{place}"), str::to_owned);
        (id, call["name"].as_str().unwrap_or_default().to_owned())
    });
    named.collect()
}

fn assistant(parts: &[Value], open: &[(String, String)]) -> Value {
    let text: String = parts
        .iter()
        .filter(|part| part["thought"] != true)
        .filter_map(|part| part["text"].as_str())
        .collect();
    let mut message = json!({"role": "assistant", "content": text});
    let args = parts.iter().map(|part| &part["function_call"]).filter(|c| c.is_object());
    let calls: Vec<Value> = args
        .zip(open)
        .map(|(call, (id, name))| {
            let args = call.get("args").cloned().unwrap_or_else(|| json!({}));
            json!({"id": id, "type": "function",
                "function": {"name": name, "arguments": args.to_string()}})
        })
        .collect();
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

fn results(parts: &[Value], open: &mut Vec<(String, String)>) -> Vec<Value> {
    let mut messages = Vec::new();
    for result in parts.iter().map(|part| &part["function_response"]) {
        let Some(object) = result["response"].as_object() else { continue };
        let (id, name) = (result["id"].as_str(), result["name"].as_str().unwrap_or_default());
        let same_id = |call: &(String, String)| id.is_some_and(|id| id == call.0);
        let same_name = |call: &(String, String)| call.1 == name;
        let found = open.iter().position(same_id).or_else(|| open.iter().position(same_name));
        let Some(found) = found else { continue };
        let (id, _) = open.remove(found);
        let text = ["output", "error"].iter().find_map(|key| object.get(*key)?.as_str());
        let content = match text {
            Some(text) if object.len() == 1 => text.to_owned(),
            Some(_) | None => result["response"].to_string(),
        };
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    messages
}

/// Converts the text and images of a user's message. `None` if there are none.
fn user(parts: &[Value]) -> Option<Value> {
    let mut content = Vec::new();
    for part in parts {
        if let Some(text) = part["text"].as_str() {
            content.push(json!({"type": "text", "text": text}));
        }
        let inline = &part["inline_data"];
        if let Some(data) = inline["data"].as_str() {
            let kind = inline["mime_type"].as_str().unwrap_or_default();
            let url = format!("data:{kind};base64,{data}");
            content.push(json!({"type": "image_url", "image_url": {"url": url}}));
        }
        if let Some(url) = part["file_data"]["file_uri"].as_str() {
            content.push(json!({"type": "image_url", "image_url": {"url": url}}));
        }
    }
    match content.as_slice() {
        [] => None,
        [one] if one["type"] == "text" => Some(json!({"role": "user", "content": one["text"]})),
        _ => Some(json!({"role": "user", "content": content})),
    }
}

fn tools(body: &Value) -> Vec<Value> {
    let declarations =
        items(&body["tools"]).iter().flat_map(|tool| items(&tool["function_declarations"]));
    let tool = |declared: &Value| {
        let parameters = declared.get("parameters").cloned();
        json!({"type": "function", "function": {
            "name": declared["name"],
            "description": declared["description"],
            "parameters": parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
        }})
    };
    declarations.map(tool).collect()
}

fn choice(body: &Value) -> Value {
    let config = &body["tool_config"]["function_calling_config"];
    let names = items(&config["allowed_function_names"]);
    match (config["mode"].as_str(), names) {
        (Some("NONE"), _) => json!("none"),
        (Some("ANY"), [name]) => json!({"type": "function", "function": {"name": name}}),
        (Some("ANY"), _) => json!("required"),
        (Some(_) | None, _) => json!("auto"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::normalised;
    use super::*;

    #[test]
    fn a_history_in_the_other_form() {
        let body = json!({
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]},
                {"role": "model", "parts": [{"text": "t", "thought": true}, {"text": "b"},
                    {"functionCall": {"name": "f", "args": {"x": 1}}},
                    {"functionCall": {"name": "f", "id": "i"}}]},
                {"role": "user", "parts": [
                    {"functionResponse": {"name": "f", "response": {"output": "1"}}},
                    {"functionResponse": {"name": "f", "id": "i", "response": {"y": 2}}},
                    {"text": "c"}]},
            ],
            "tools": [{"functionDeclarations": [{"name": "f", "description": "F."}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        });
        let call = |id: &str, arguments: &str| {
            json!({"id": id, "type": "function",
            "function": {"name": "f", "arguments": arguments}})
        };
        assert_eq!(
            to_chat("m", true, &normalised(&body)),
            json!({
                "model": "m", "stream": true,
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
                    {"role": "assistant", "content": "b",
                        "tool_calls": [call("g1_0", r#"{"x":1}"#), call("i", "{}")]},
                    {"role": "tool", "tool_call_id": "g1_0", "content": "1"},
                    {"role": "tool", "tool_call_id": "i", "content": r#"{"y":2}"#},
                    {"role": "user", "content": "c"},
                ],
                "tools": [{"type": "function", "function": {"name": "f", "description": "F.",
                    "parameters": {"type": "object", "properties": {}}}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            })
        );
    }
}
