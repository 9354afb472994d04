//! The strict request check, with the error messages of the service.
//!
//! `request.schema.json` contains most rules for single members. Most rules here relate blocks,
//! messages and tools to each other.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::SIGNATURE_BEGIN;
use super::signature;
use crate::request_schema::RequestSchema;
use crate::text::items;

static SCHEMA: LazyLock<RequestSchema> =
    LazyLock::new(|| RequestSchema::new(include_str!("request.schema.json"), append_tagged, &[]));

/// Appends a segment as in `messages.0.content.0.tool_use.id`: the type of the parent, if it has one, comes before
/// each member except `type`. A tool without a type counts as `custom`.
fn append_tagged(path: &mut String, parent: &Value, segment: &str) {
    let tool_index = path.strip_prefix("tools.").filter(|index| index.parse::<usize>().is_ok());
    let tag = parent["type"].as_str().or(tool_index.map(|_| "custom"));
    if let Some(tag) = tag.filter(|_| segment != "type") {
        *path += &format!(".{tag}");
    }
    *path += if path.is_empty() { "" } else { "." };
    *path += segment;
}

/// Checks a request as strictly as the service does. `Err` is the message of the refusal.
pub(super) fn check(request: &Value) -> Result<(), String> {
    SCHEMA.check(request).map_err(|refusal| refusal.message)?;
    check_messages(items(&request["messages"]))?;
    check_breakpoints(request)?;
    check_tools(request)
}

/// Checks the cache breakpoints: the tools and blocks with `cache_control`.
fn check_breakpoints(request: &Value) -> Result<(), String> {
    let messages = items(&request["messages"]);
    let blocks = messages.iter().flat_map(|message| items(&message["content"]));
    let all = items(&request["tools"]).iter().chain(items(&request["system"])).chain(blocks);
    let marked = || all.clone().filter(|block| block.get("cache_control").is_some());
    if marked().any(|block| block["type"].as_str().is_some_and(|kind| kind.contains("thinking"))) {
        return Err("cache_control cannot be set for thinking blocks".to_owned());
    }
    if marked().any(|block| block["cache_control"]["type"] != "ephemeral") {
        return Err("cache_control.type: Input should be 'ephemeral'".to_owned());
    }
    match marked().count() {
        count @ 5.. => {
            Err(format!("A maximum of 4 blocks with cache_control may be provided. Found {count}."))
        }
        _ => Ok(()),
    }
}

fn check_messages(messages: &[Value]) -> Result<(), String> {
    if messages.first().is_some_and(|first| first["role"] != "user") {
        return Err("messages: first message must use the \"user\" role".to_owned());
    }
    let mut call_ids = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        for (block_index, block) in items(&message["content"]).iter().enumerate() {
            let path = format!("messages.{at}.content.{block_index}");
            if block["type"] == "thinking" {
                check_signature(&path, block)?;
            }
            if block["type"] == "tool_use" && !call_ids.insert(text(block, "id")) {
                return Err(format!("{path}: `tool_use` ids must be unique"));
            }
        }
        check_ending(at, message, at + 1 == messages.len())?;
        let previous = at.checked_sub(1).and_then(|index| messages.get(index));
        check_results(at, previous, message)?;
        check_answered(at, message, messages.get(at + 1))?;
    }
    check_service_calls(messages)
}

/// Checks the signature of a thinking block. Accepts one without this server's prefix: the raw bytes of a script may
/// contain any signature.
fn check_signature(path: &str, block: &Value) -> Result<(), String> {
    let found = text(block, "signature");
    if found.starts_with(SIGNATURE_BEGIN) && found != signature(text(block, "thinking")) {
        return Err(format!("{path}: Invalid `signature` in `thinking` block"));
    }
    Ok(())
}

/// Checks that a message has content and that its last block is not thinking. The final assistant message may be
/// empty, but its text must not end with white space.
fn check_ending(at: usize, message: &Value, is_final: bool) -> Result<(), String> {
    let content = &message["content"];
    let is_final_answer = is_final && message["role"] == "assistant";
    let last = items(content).last();
    if content.as_str().is_none_or(str::is_empty) && last.is_none() && !is_final_answer {
        return Err(format!(
            "messages.{at}: all messages must have non-empty content except for the optional final \
             assistant message"
        ));
    }
    if last.is_some_and(|block| text(block, "type").ends_with("thinking")) {
        return Err(format!(
            "messages.{at}: The final block in an assistant message cannot be `thinking`."
        ));
    }
    let text = content.as_str().or_else(|| last.and_then(|block| block["text"].as_str()));
    if is_final_answer && text.is_some_and(|text| text.ends_with(char::is_whitespace)) {
        return Err(
            "messages: final assistant content cannot end with trailing whitespace".to_owned()
        );
    }
    Ok(())
}

/// Checks that every result of a message answers a different call of the previous message.
fn check_results(at: usize, previous: Option<&Value>, message: &Value) -> Result<(), String> {
    let called: BTreeSet<&str> = previous.into_iter().flat_map(calls).collect();
    let mut answered = BTreeSet::new();
    for (block_index, block) in items(&message["content"]).iter().enumerate() {
        if block["type"] != "tool_result" {
            continue;
        }
        let id = text(block, "tool_use_id");
        if !called.contains(id) {
            return Err(format!(
                "messages.{at}.content.{block_index}: unexpected `tool_use_id` found in `tool_result` \
                 blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block \
                 in the previous message."
            ));
        }
        if !answered.insert(id) {
            return Err(format!(
                "messages.{at}.content.{block_index}: each tool_use must have a single result. Found \
                 multiple `tool_result` blocks with id: {id}"
            ));
        }
    }
    Ok(())
}

/// Checks that the next message begins with the results of all calls of a message.
fn check_answered(at: usize, message: &Value, next: Option<&Value>) -> Result<(), String> {
    let results = next.into_iter().flat_map(|next| items(&next["content"]));
    let results = results.take_while(|block| block["type"] == "tool_result");
    let answered: BTreeSet<&str> = results.map(|block| text(block, "tool_use_id")).collect();
    let open: Vec<&str> = calls(message).filter(|id| !answered.contains(id)).collect();
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

/// Checks that every call that the service ran itself has a result, and that every such result has a call before it.
/// A call needs no result if no later user message has anything but tool results: the service may still be running
/// it.
fn check_service_calls(messages: &[Value]) -> Result<(), String> {
    let responses = || messages.iter().enumerate().filter(|(_, m)| m["role"] == "assistant");
    let blocks = responses().flat_map(|(_, message)| items(&message["content"]));
    let answered: BTreeSet<&str> = blocks.map(|block| text(block, "tool_use_id")).collect();
    let is_result = |block: &Value| block["type"] == "tool_result";
    let mut called = BTreeSet::new();
    for (at, message) in responses() {
        let mut later_user_messages =
            messages.iter().skip(at + 1).filter(|next| next["role"] == "user");
        let may_be_running = later_user_messages.all(|next| {
            next["content"].is_array() && items(&next["content"]).iter().all(is_result)
        });
        for (block_index, block) in items(&message["content"]).iter().enumerate() {
            let (kind, id, name) = (text(block, "type"), text(block, "id"), text(block, "name"));
            let is_call = kind.ends_with("tool_use") && kind != "tool_use";
            if is_call && !may_be_running && !answered.contains(id) {
                return Err(format!(
                    "messages.{at}: `{name}` tool use with id `{id}` was found without a \
                     corresponding `{name}_tool_result` block"
                ));
            }
            called.extend(is_call.then_some(id));
            let result_of = text(block, "tool_use_id");
            if kind.ends_with("_tool_result") && !called.contains(result_of) {
                return Err(format!(
                    "messages.{at}.content.{block_index}: unexpected `tool_use_id` found in `{kind}` \
                     blocks: {result_of}. Each `{kind}` block must have a corresponding \
                     `server_tool_use` block before it."
                ));
            }
        }
    }
    Ok(())
}

/// Returns the ids of the calls of a message.
fn calls(message: &Value) -> impl Iterator<Item = &str> {
    let blocks = items(&message["content"]).iter().filter(|block| block["type"] == "tool_use");
    blocks.map(|block| text(block, "id"))
}

/// Returns a string member; an empty string if it is missing.
fn text<'a>(block: &'a Value, key: &str) -> &'a str {
    block[key].as_str().unwrap_or_default()
}

/// Checks that the names of the tools are unique, that a chosen tool is one of them, and that a request with
/// thinking forces no call.
fn check_tools(request: &Value) -> Result<(), String> {
    let mut names = BTreeSet::new();
    if !items(&request["tools"]).iter().all(|tool| names.insert(text(tool, "name"))) {
        return Err("tools: Tool names must be unique.".to_owned());
    }
    let choice = &request["tool_choice"];
    let name = text(choice, "name");
    if choice["type"] == "tool" && !names.contains(name) {
        return Err(format!("tool_choice: Tool '{name}' not found in provided tools"));
    }
    let thinks = request["thinking"]["type"].as_str().is_some_and(|kind| kind != "disabled");
    if thinks && matches!(choice["type"].as_str(), Some("any" | "tool")) {
        return Err("Thinking may not be enabled when tool_choice forces tool use.".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
