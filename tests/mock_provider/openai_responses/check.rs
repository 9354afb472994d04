//! The strict request check, with the error messages of the service.
//!
//! `request.schema.json` contains the rules for single members. The rules here relate items to
//! each other. They and their messages are those of OpenAI's Responses service, as bug reports of its
//! users quote them, among them
//! <https://github.com/vercel/ai/issues/7099> (reasoning without the item that follows it),
//! <https://github.com/vercel/ai/issues/7543> (items that are not stored),
//! <https://github.com/openai/codex/issues/8145> (foreign encrypted reasoning) and
//! <https://github.com/microsoft/vscode/issues/320060> (outputs without a call).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::encrypted_content;
use crate::openai_chat::check_tool_choice;
use crate::request_schema::Refusal;
use crate::request_schema::RequestSchema;
use crate::request_schema::append_bracketed;
use crate::text::items;

static SCHEMA: LazyLock<RequestSchema> = LazyLock::new(|| {
    RequestSchema::new(include_str!("request.schema.json"), append_bracketed, &[])
});

/// Checks a request as strictly as the service does.
///
/// # Errors
/// The first fault.
pub(super) fn check(request: &Value) -> Result<(), Refusal> {
    SCHEMA.check(request)?;
    let input = items(&request["input"]);
    check_unique_ids(input)?;
    check_reasoning(input, request["store"] == false)?;
    check_pairing(input)?;
    let names = items(&request["tools"]).iter().map(|tool| &tool["name"]);
    check_tool_choice(&request["tool_choice"]["name"], names)
}

fn check_unique_ids(input: &[Value]) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    match input.iter().filter_map(|item| item["id"].as_str()).find(|id| !seen.insert(*id)) {
        Some(id) => {
            let message = format!(
                "Duplicate item found with id {id}. Remove duplicate items from your input and \
                 try again."
            );
            Err(Refusal::new(message, "input"))
        }
        None => Ok(()),
    }
}

/// Checks that reasoning comes with the item that followed it in the response, and that items of a response with
/// reasoning come after it.
fn check_reasoning(input: &[Value], stateless: bool) -> Result<(), Refusal> {
    for (at, item) in input.iter().enumerate() {
        let id = item["id"].as_str();
        if item["type"] == "reasoning" {
            check_encrypted(item, stateless)?;
            let next = input.get(at + 1);
            if !next.is_some_and(|next| is_led_to(id, next)) {
                let name = id.unwrap_or_default();
                let message = format!(
                    "Item '{name}' of type 'reasoning' was provided without its required \
                     following item."
                );
                return Err(Refusal::new(message, "input"));
            }
        } else if let Some((id, group)) = id.and_then(|id| Some((id, thought_group(id)?))) {
            let is_its = |other: &Value| {
                let other_group = other["id"].as_str().and_then(thought_group);
                other["type"] == "reasoning" && other_group == Some(group)
            };
            if !input.iter().take(at).any(is_its) {
                let kind = item["type"].as_str().unwrap_or("message");
                let message = format!(
                    "Item '{id}' of type '{kind}' was provided without its required 'reasoning' \
                     item: 'rs_{group}_0'."
                );
                return Err(Refusal::new(message, "input"));
            }
        }
    }
    Ok(())
}

/// Returns whether an item may follow reasoning: it must come from the model and, if the reasoning has an id
/// of this server, have an id of the same response.
fn is_led_to(reasoning: Option<&str>, next: &Value) -> bool {
    let by_model = match next["type"].as_str().unwrap_or("message") {
        "message" => next["role"] == "assistant",
        kind => !kind.ends_with("_output"),
    };
    let group = reasoning.and_then(thought_group);
    by_model && (group.is_none() || next["id"].as_str().and_then(thought_group) == group)
}

/// Returns the part of an id that names its response (`t7` of `msg_t7_1`), if this server made the id for a
/// response with reasoning.
fn thought_group(id: &str) -> Option<&str> {
    let (_, rest) = id.split_once('_')?;
    let (group, index) = rest.split_once('_')?;
    let digits = group.strip_prefix('t')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(digits) && is_number(index)).then_some(group)
}

/// Checks that encrypted reasoning of this server is unchanged and of this item, and that a stateless request has
/// reasoning that is encrypted or has content.
fn check_encrypted(item: &Value, stateless: bool) -> Result<(), Refusal> {
    let id = item["id"].as_str();
    let Some(encrypted) = item["encrypted_content"].as_str().filter(|text| !text.is_empty()) else {
        // Services that do not encrypt their reasoning send it as content.
        let has_content = !items(&item["content"]).is_empty();
        if has_content || !stateless {
            return Ok(());
        }
        let message = format!(
            "Item with id '{}' not found. Items are not persisted when `store` is set to false. \
             Try again with `store` set to true, or remove this item from your input.",
            id.unwrap_or_default()
        );
        return Err(Refusal { status: 404, ..Refusal::new(message, "input") });
    };
    let summary = items(&item["summary"]).iter().filter_map(|part| part["text"].as_str());
    let summary: String = summary.collect();
    let parts = encrypted.strip_prefix("mock.").and_then(|rest| rest.rsplit_once('.'));
    let reason = match parts {
        Some((item_id, _)) if encrypted_content(item_id, &summary) != encrypted => {
            "could not be decrypted or parsed."
        }
        Some((item_id, _)) if id.is_some_and(|id| id != item_id) => {
            "item_id did not match the target item id."
        }
        Some(_) => return Ok(()),
        None if id.is_some_and(|id| thought_group(id).is_some()) => {
            "could not be decrypted or parsed."
        }
        // A recording that a script plays contains reasoning that its own service encrypted.
        None => return Ok(()),
    };
    let name = id.map_or_else(|| encrypted.to_owned(), |id| format!("for item {id}"));
    let message = format!(
        "The encrypted content {name} could not be verified. Reason: Encrypted content {reason}"
    );
    let code = Some("invalid_encrypted_content".to_owned());
    Err(Refusal { status: 400, message, param: None, code })
}

/// Checks that every call has one output after it, and that every output answers a call of its kind.
fn check_pairing(input: &[Value]) -> Result<(), Refusal> {
    let mut open: Vec<(&str, &str)> = Vec::new();
    for item in input {
        let (kind, id) = (item["type"].as_str().unwrap_or_default(), item["call_id"].as_str());
        let Some(id) = id else { continue };
        match kind {
            "function_call" | "custom_tool_call" => {
                if open.iter().any(|(_, other)| *other == id) {
                    let message = format!("Duplicate function call with call_id {id}.");
                    return Err(Refusal::new(message, "input"));
                }
                open.push((kind, id));
            }
            "function_call_output" | "custom_tool_call_output" => {
                let call_kind = kind.trim_end_matches("_output");
                let found = open.iter().position(|call| *call == (call_kind, id));
                let Some(found) = found else {
                    let words = call_kind.replace('_', " ");
                    let message =
                        format!("No tool call found for {words} output with call_id {id}.");
                    return Err(Refusal::new(message, "input"));
                };
                open.remove(found);
            }
            _ => {}
        }
    }
    match open.first() {
        Some((kind, id)) => {
            let words = kind.replace('_', " ");
            let message = format!("No tool output found for {words} {id}.");
            Err(Refusal::new(message, "input"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn user() -> Value {
        json!({"role": "user", "content": "hi"})
    }

    fn call(id: &str) -> Value {
        json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})
    }

    fn output(id: &str) -> Value {
        json!({"type": "function_call_output", "call_id": id, "output": "1"})
    }

    fn reasoning(id: &str) -> Value {
        json!({"type": "reasoning", "id": id, "encrypted_content": encrypted_content(id, "hm"),
            "summary": [{"type": "summary_text", "text": "hm"}]})
    }

    fn with(mut item: Value, key: &str, value: &str) -> Value {
        item[key] = value.into();
        item
    }

    fn request(items: &[Value]) -> Value {
        json!({"model": "m", "input": items, "store": false})
    }

    #[track_caller]
    fn check_refused(items: &[Value], status: u16, message: &str) {
        let refusal = check(&request(items)).expect_err("it must be refused");
        assert!(refusal.message.contains(message), "{}", refusal.message);
        assert_eq!(refusal.status, status);
    }

    #[test]
    fn lets_what_hangs_together_pass() {
        let item = with(call("a"), "id", "fc_t1_1");
        for items in [
            vec![user()],
            vec![user(), call("a"), call("b"), output("b"), output("a"), user()],
            vec![call("a"), output("a"), call("a"), output("a")],
            vec![user(), reasoning("rs_t1_0"), item, output("a")],
        ] {
            assert_eq!(check(&request(&items)), Ok(()), "{items:?}");
        }
        assert_eq!(check(&json!({"model": "m", "input": "hi"})), Ok(()));
    }

    #[test]
    fn refuses_what_is_not_paired() {
        check_refused(&[call("a")], 400, "No tool output found for function call a.");
        check_refused(
            &[output("a")],
            400,
            "No tool call found for function call output with call_id a.",
        );
        check_refused(&[call("a"), output("a"), output("a")], 400, "No tool call found");
        check_refused(&[call("a"), call("a"), output("a")], 400, "Duplicate function call");
        let custom = json!({"type": "custom_tool_call", "call_id": "a", "name": "f", "input": "x"});
        check_refused(&[custom, output("a")], 400, "No tool call found for function call output");
        let long = "x".repeat(65);
        check_refused(
            &[user(), call(&long)],
            400,
            "Invalid 'input[1].call_id': string too long. Expected a string with maximum length \
             64, but got a string with length 65 instead.",
        );
        let twice = with(call("a"), "id", "fc_r1_0");
        let again = with(call("b"), "id", "fc_r1_0");
        check_refused(&[twice, again], 400, "Duplicate item found with id fc_r1_0.");
    }

    #[test]
    fn refuses_reasoning_that_is_torn_from_its_place() {
        let alone = "Item 'rs_t1_0' of type 'reasoning' was provided without its required \
                     following item.";
        let thought = || reasoning("rs_t1_0");
        check_refused(&[thought()], 400, alone);
        check_refused(&[thought(), user()], 400, alone);
        check_refused(&[thought(), call("a"), output("a")], 400, alone);
        let item = with(call("a"), "id", "fc_t1_1");
        check_refused(&[item.clone(), output("a")], 400, "without its required 'reasoning' item");
        let foreign = with(thought(), "encrypted_content", "else");
        check_refused(&[foreign, item.clone()], 400, "could not be verified");
        let mut changed = thought();
        changed["summary"][0]["text"] = "ha".into();
        check_refused(&[changed, item.clone()], 400, "could not be verified");
        let other = with(thought(), "id", "rs_t2_0");
        check_refused(&[other, item.clone()], 400, "item_id did not match");
        let mut stored = thought();
        stored.as_object_mut().unwrap().remove("encrypted_content");
        check_refused(&[stored, item], 404, "Items are not persisted");
    }

    #[test]
    fn refuses_requests_of_a_bad_form() {
        let item = |item: Value| json!({"model": "m", "input": [item]});
        let tool = |tool: Value| json!({"model": "m", "input": "hi", "tools": [tool]});
        for (request, param) in [
            (json!({"input": "hi"}), "model"),
            (json!({"model": "m"}), "input"),
            (json!({"model": "m", "input": 7}), "input"),
            (json!({"model": "m", "input": "hi", "max_tokens": 5}), "max_tokens"),
            (item(json!("hi")), "input[0]"),
            (item(json!({"role": "robot", "content": "hi"})), "input[0]"),
            (item(json!({"role": "user"})), "input[0].content"),
            (item(json!({"type": "tool_result"})), "input[0]"),
            (
                item(json!({"role": "user", "content": [{"type": "text", "text": "x"}]})),
                "input[0].content[0]",
            ),
            (
                item(json!({"role": "user", "content": [
                    {"type": "input_image", "image_url": {"url": "x"}}]})),
                "input[0].content[0].image_url",
            ),
            (
                item(json!({"role": "assistant", "content": [{"type": "input_text", "text": ""}]})),
                "input[0].content[0]",
            ),
            (item(json!({"type": "function_call", "call_id": "a"})), "input[0].name"),
            (item(with(call("a"), "name", "a b")), "input[0].name"),
            (tool(json!({"type": "function", "function": {"name": "f"}})), "tools[0].name"),
            (tool(json!({"type": "function", "name": "a b"})), "tools[0].name"),
            (
                tool(json!({"type": "function", "name": "f", "parameters": {"type": "string"}})),
                "tools[0].parameters",
            ),
        ] {
            let refusal = check(&request).expect_err("it must be refused");
            assert_eq!(refusal.param.as_deref(), Some(param), "{request}");
        }
        assert!(check(&json!([])).is_err());
    }
}
