//! The strict check of content blocks: their order and their members.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{check_text, fits};
use crate::rehearsal::anthropic::{SIGNATURE_BEGIN, signature};
use crate::rehearsal::text::items;

/// Facts that only the whole history contains.
#[derive(Default)]
pub(super) struct HistoryIds {
    /// The ids of the calls so far.
    calls: BTreeSet<String>,
    /// The ids of the calls so far that the service ran itself.
    service_calls: BTreeSet<String>,
    /// The ids of the calls that have a result anywhere.
    answered: BTreeSet<String>,
}

impl HistoryIds {
    pub(super) fn read(messages: &[Value]) -> Self {
        let responses = messages.iter().filter(|message| message["role"] == "assistant");
        let blocks = responses.flat_map(|message| items(&message["content"]));
        let answered = blocks.filter_map(|block| block["tool_use_id"].as_str());
        Self { answered: answered.map(str::to_owned).collect(), ..Self::default() }
    }

    /// Checks that a call of the service has its result, unless the service may still run it.
    pub(super) fn check_service_calls(
        &self,
        at: usize,
        message: &Value,
        messages: &[Value],
    ) -> Result<(), String> {
        let mut after = messages.iter().skip(at + 1);
        let may_go_on = after.all(|next| {
            next["role"] == "user"
                && items(&next["content"]).iter().all(|block| block["type"] == "tool_result")
        });
        if may_go_on || message["role"] != "assistant" {
            return Ok(());
        }
        for block in items(&message["content"]).iter().filter(|block| is_service_call(block)) {
            let id = block["id"].as_str().unwrap_or_default();
            if !self.answered.contains(id) {
                let name = block["name"].as_str().unwrap_or_default();
                return Err(format!(
                    "messages.{at}: `{name}` tool use with id `{id}` was found without a \
                     corresponding `{name}_tool_result` block"
                ));
            }
        }
        Ok(())
    }
}

fn is_service_call(block: &Value) -> bool {
    let kind = block["type"].as_str().unwrap_or_default();
    kind != "tool_use" && kind.ends_with("tool_use")
}

/// Checks one block without its context.
pub(super) fn check_block(
    here: &str,
    role: &str,
    block: &Value,
    seen: &mut HistoryIds,
) -> Result<(), String> {
    let kind = block["type"].as_str().unwrap_or_default();
    match (role, kind) {
        (_, "text") => check_text(block["text"].as_str().unwrap_or_default()),
        ("user", "image") => check_image(here, &block["source"]),
        ("user", "document" | "search_result") => Ok(()),
        ("user", "tool_result") => check_result(here, block),
        ("assistant", "thinking") => check_thinking(here, block),
        ("assistant", "redacted_thinking") => required(here, "redacted_thinking", block, "data"),
        ("assistant", "tool_use") => check_call(here, block, seen),
        ("assistant", "compaction" | "container_upload") => Ok(()),
        ("assistant", _) if is_service_call(block) => {
            required(here, kind, block, "id")?;
            let id = block["id"].as_str().unwrap_or_default();
            seen.service_calls.insert(id.to_owned());
            Ok(())
        }
        ("assistant", _) if kind.ends_with("_tool_result") => {
            let id = block["tool_use_id"].as_str().unwrap_or_default();
            let known = seen.service_calls.contains(id);
            known.then_some(()).ok_or_else(|| {
                format!(
                    "{here}: unexpected `tool_use_id` found in `{kind}` blocks: {id}. Each \
                     `{kind}` block must have a corresponding `server_tool_use` block before it."
                )
            })
        }
        (_, _) => Err(format!(
            "{here}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
        )),
    }
}

fn required(here: &str, kind: &str, block: &Value, key: &str) -> Result<(), String> {
    match block[key].as_str() {
        Some(_) => Ok(()),
        None => Err(format!("{here}.{kind}.{key}: Field required")),
    }
}

fn check_image(here: &str, source: &Value) -> Result<(), String> {
    let here = format!("{here}.image.source");
    match source["type"].as_str() {
        Some("url") => required(&here, "url", source, "url"),
        Some("base64") => required(&here, "base64", source, "media_type")
            .and_then(|()| required(&here, "base64", source, "data")),
        Some(_) | None => Err(format!(
            "{here}: Input tag does not match any of the expected tags: 'base64', 'url', 'file'"
        )),
    }
}

fn check_result(here: &str, block: &Value) -> Result<(), String> {
    required(here, "tool_result", block, "tool_use_id")?;
    for part in items(&block["content"]).iter().filter(|part| part["type"] == "text") {
        check_text(part["text"].as_str().unwrap_or_default())?;
    }
    match &block["content"] {
        Value::Null | Value::String(_) | Value::Array(_) => Ok(()),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(format!("{here}.tool_result.content: Input should be a valid string"))
        }
    }
}

/// A signature from raw bytes of a script is unknown here, so a signature is checked only
/// if it has the prefix of this server.
fn check_thinking(here: &str, block: &Value) -> Result<(), String> {
    required(here, "thinking", block, "thinking")?;
    required(here, "thinking", block, "signature")?;
    let found = block["signature"].as_str().unwrap_or_default();
    let expected = signature(block["thinking"].as_str().unwrap_or_default());
    if found.is_empty() || (found.starts_with(SIGNATURE_BEGIN) && found != expected) {
        return Err(format!("{here}: Invalid `signature` in `thinking` block"));
    }
    Ok(())
}

fn check_call(here: &str, block: &Value, seen: &mut HistoryIds) -> Result<(), String> {
    for (key, chars_max) in [("id", usize::MAX), ("name", 128)] {
        required(here, "tool_use", block, key)?;
        if !fits(block[key].as_str().unwrap_or_default(), chars_max) {
            let pattern = if key == "id" { "^[a-zA-Z0-9_-]+$" } else { "^[a-zA-Z0-9_-]{1,128}$" };
            return Err(format!("{here}.tool_use.{key}: String should match pattern '{pattern}'"));
        }
    }
    if !block["input"].is_object() {
        return Err(format!("{here}.tool_use.input: Input should be a valid dictionary"));
    }
    if !seen.calls.insert(block["id"].as_str().unwrap_or_default().to_owned()) {
        return Err(format!("{here}: `tool_use` ids must be unique"));
    }
    Ok(())
}
