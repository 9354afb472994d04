//! The strict request check, with the error messages of the service.
//!
//! Rules and messages are those of Anthropic's Messages service,
//! as a recording and bug reports of its users quote them.

mod blocks;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::rehearsal::text::items;
use blocks::{HistoryIds, check_block};

/// The members of a request.
const MEMBERS: [&str; 20] = [
    "cache_control",
    "container",
    "context_management",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "messages",
    "metadata",
    "model",
    "output_config",
    "service_tier",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

/// Checks a request as strictly as the service does. `Err` is the message of the refusal.
pub(super) fn check(request: &Value) -> Result<(), String> {
    let Value::Object(members) = request else {
        return Err("The request body is not valid JSON".to_owned());
    };
    if request["model"].as_str().is_none_or(str::is_empty) {
        return Err("model: Field required".to_owned());
    }
    match request.get("max_tokens") {
        None => return Err("max_tokens: Field required".to_owned()),
        Some(tokens) if tokens.as_u64().is_none_or(|tokens| tokens == 0) => {
            return Err("max_tokens: Input should be greater than or equal to 1".to_owned());
        }
        Some(_) => {}
    }
    if let Some(key) = members.keys().find(|key| !MEMBERS.contains(&key.as_str())) {
        return Err(format!("{key}: Extra inputs are not permitted"));
    }
    if request["temperature"].as_f64().is_some_and(|t| !(0.0..=1.0).contains(&t)) {
        return Err("temperature: range: 0..1".to_owned());
    }
    if request["system"].as_str().is_some_and(|text| text.trim().is_empty()) {
        return Err("system: text content blocks must be non-empty".to_owned());
    }
    let messages = match request.get("messages") {
        None => return Err("messages: Field required".to_owned()),
        Some(Value::Array(messages)) if messages.is_empty() => {
            return Err("messages: at least one message is required".to_owned());
        }
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err("messages: Input should be a valid list".to_owned()),
    };
    check_messages(messages)?;
    check_tools(request)
}

fn check_messages(messages: &[Value]) -> Result<(), String> {
    let mut seen = HistoryIds::read(messages);
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if !["user", "assistant"].contains(&role) {
            return Err(format!(
                "messages: Unexpected role \"{role}\". The Messages API accepts a top-level \
                 `system` parameter, not \"system\" as an input message role."
            ));
        }
        if at == 0 && role != "user" {
            return Err("messages: first message must use the \"user\" role".to_owned());
        }
        let content = &message["content"];
        let is_final = at + 1 == messages.len();
        match content {
            Value::String(text) if !text.is_empty() => check_text(text)?,
            Value::Array(blocks) if !blocks.is_empty() => {}
            Value::String(_) | Value::Array(_) if is_final && role == "assistant" => {}
            Value::String(_) | Value::Array(_) => {
                return Err(format!(
                    "messages.{at}: all messages must have non-empty content except for the \
                     optional final assistant message"
                ));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                return Err(format!("messages.{at}.content: Input should be a valid list"));
            }
        }
        for (place, block) in items(content).iter().enumerate() {
            check_block(&format!("messages.{at}.content.{place}"), role, block, &mut seen)?;
        }
        if role == "assistant" {
            check_ending(at, content, is_final)?;
        }
        let before = at.checked_sub(1).and_then(|before| messages.get(before));
        check_results(at, before, message)?;
        seen.check_service_calls(at, message, messages)?;
    }
    match messages.split_last() {
        Some((last, rest)) => check_answered(rest.len(), last, None),
        None => Ok(()),
    }
}

fn check_text(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("messages: text content blocks must be non-empty".to_owned());
    }
    if text.trim().is_empty() {
        return Err("messages: text content blocks must contain non-whitespace text".to_owned());
    }
    Ok(())
}

/// Checks the last block of an assistant message.
fn check_ending(at: usize, content: &Value, is_final: bool) -> Result<(), String> {
    let last = items(content).last();
    if last.is_some_and(|block| block["type"] == "thinking" || block["type"] == "redacted_thinking")
    {
        return Err(format!(
            "messages.{at}: The final block in an assistant message cannot be `thinking`."
        ));
    }
    let text = content.as_str().or_else(|| last.and_then(|block| block["text"].as_str()));
    if is_final && text.is_some_and(|text| text.ends_with(char::is_whitespace)) {
        return Err(
            "messages: final assistant content cannot end with trailing whitespace".to_owned()
        );
    }
    Ok(())
}

/// Checks that every call is answered once, at the start of the next message, and every result answers
/// a call.
fn check_results(at: usize, before: Option<&Value>, message: &Value) -> Result<(), String> {
    if let Some(before) = before {
        check_answered(at - 1, before, Some(message))?;
    }
    let called = before.map(calls).unwrap_or_default();
    let mut answered = BTreeSet::new();
    for (place, block) in items(&message["content"]).iter().enumerate() {
        if block["type"] != "tool_result" {
            continue;
        }
        let id = block["tool_use_id"].as_str().unwrap_or_default();
        if !called.contains(&id) {
            return Err(format!(
                "messages.{at}.content.{place}: unexpected `tool_use_id` found in `tool_result` \
                 blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block \
                 in the previous message."
            ));
        }
        if !answered.insert(id) {
            return Err(format!(
                "messages.{at}.content.{place}: each tool_use must have a single result. Found \
                 multiple `tool_result` blocks with id: {id}"
            ));
        }
    }
    Ok(())
}

fn check_answered(at: usize, message: &Value, next: Option<&Value>) -> Result<(), String> {
    let results = next.map(|next| items(&next["content"])).unwrap_or_default();
    let results = results.iter().take_while(|block| block["type"] == "tool_result");
    let answered: Vec<&str> = results.filter_map(|block| block["tool_use_id"].as_str()).collect();
    let open: Vec<&str> = calls(message).into_iter().filter(|id| !answered.contains(id)).collect();
    if open.is_empty() {
        return Ok(());
    }
    Err(format!(
        "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: \
         {}. Each `tool_use` block must have a corresponding `tool_result` block in the next \
         message.",
        open.join(", ")
    ))
}

fn calls(message: &Value) -> Vec<&str> {
    let blocks = items(&message["content"]).iter().filter(|block| block["type"] == "tool_use");
    blocks.filter_map(|block| block["id"].as_str()).collect()
}

fn check_tools(request: &Value) -> Result<(), String> {
    let tools = items(&request["tools"]);
    let mut names = BTreeSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let here = format!("tools.{at}.custom");
        let Some(name) = tool["name"].as_str() else {
            return Err(format!("{here}.name: Field required"));
        };
        if !fits(name, 128) {
            return Err(format!(
                "{here}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            ));
        }
        if !names.insert(name) {
            return Err("tools: Tool names must be unique.".to_owned());
        }
        let schema = &tool["input_schema"];
        if schema.is_null() {
            return Err(format!("{here}.input_schema: Field required"));
        }
        if schema["type"] != "object" {
            return Err(format!("{here}.input_schema.type: Input should be 'object'"));
        }
        if ["oneOf", "allOf", "anyOf"].iter().any(|key| schema.get(*key).is_some()) {
            return Err(format!(
                "{here}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the \
                 top level"
            ));
        }
    }
    let Some(choice) = request.get("tool_choice") else { return Ok(()) };
    let kind = choice["type"].as_str().unwrap_or_default();
    if tools.is_empty() {
        return Err("tool_choice: may only be specified while providing tools".to_owned());
    }
    match kind {
        "auto" | "any" => Ok(()),
        "none" if choice.get("disable_parallel_tool_use").is_some() => {
            Err("tool_choice.none.disable_parallel_tool_use: Extra inputs are not permitted".into())
        }
        "none" => Ok(()),
        "tool" => {
            let name = choice["name"].as_str().unwrap_or_default();
            let found = names.contains(name);
            found
                .then_some(())
                .ok_or_else(|| format!("tool_choice: Tool '{name}' not found in provided tools"))
        }
        _ => Err(format!(
            "tool_choice: Input tag '{kind}' found using 'type' does not match any of the expected \
             tags: 'auto', 'any', 'tool', 'none'"
        )),
    }
}

/// Returns whether a name or an id has only allowed characters and a valid length.
fn fits(text: &str, chars_max: usize) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=chars_max).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests;
