//! The strict request check, with the error messages of the service.
//!
//! Rules and messages are those of OpenAI's Responses service,
//! as bug reports of its users quote them, among them
//! <https://github.com/vercel/ai/issues/7099> (reasoning without the item that follows it),
//! <https://github.com/vercel/ai/issues/7543> (items that are not stored),
//! <https://github.com/openai/codex/issues/8145> (foreign encrypted reasoning) and
//! <https://github.com/microsoft/vscode/issues/320060> (outputs without a call).

use serde_json::Value;

use super::sealed;
use crate::rehearsal::openai_chat::{Refusal, check_function, check_name, check_tool_choice};
use crate::rehearsal::text::items;

/// The largest length of an id, in characters.
const ID_CHARS_MAX: usize = 64;

/// Returns a refusal with this HTTP status.
type StatusRefusal = (u16, Refusal);

/// Checks a request as strictly as the service does.
///
/// # Errors
/// The first fault.
pub(super) fn check(request: &Value) -> Result<(), StatusRefusal> {
    check_form(request).map_err(|refusal| (400, refusal))?;
    if let Value::Array(items) = &request["input"] {
        check_ids(items).map_err(|refusal| (400, refusal))?;
        check_reasoning(items, request["store"] == false)?;
        check_pairing(items).map_err(|refusal| (400, refusal))?;
    }
    Ok(())
}

fn check_form(request: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = request else {
        return Err(Refusal::bad_json());
    };
    if fields.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(Refusal::missing("model"));
    }
    match fields.get("input") {
        None => return Err(Refusal::missing("input")),
        Some(Value::String(_)) => {}
        Some(Value::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                check_item(&format!("input[{at}]"), item)?;
            }
        }
        Some(other) => {
            let expected = "one of a string or array of objects";
            return Err(Refusal::wrong_type("input", expected, other));
        }
    }
    // Members of Chat Completions, which the Responses API refuses.
    for key in ["messages", "max_tokens", "stream_options", "response_format"] {
        if fields.contains_key(key) {
            let message = format!("Unsupported parameter: '{key}'.");
            return Err(Refusal::new(message, key).coded("unsupported_parameter"));
        }
    }
    check_tools(request)
}

fn check_item(param: &str, item: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = item else {
        return Err(Refusal::wrong_type(param, "an object", item));
    };
    let text = |key: &str| match fields.get(key) {
        None | Some(Value::Null) => Err(Refusal::missing(format!("{param}.{key}"))),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(Refusal::wrong_type(format!("{param}.{key}"), "a string", other)),
    };
    match fields.get("type").map_or(Some("message"), Value::as_str) {
        Some("message") => check_message(param, text("role")?, &item["content"]),
        Some("function_call") => {
            check_call_id(param, text("call_id")?)?;
            check_name(text("name")?, &format!("{param}.name"))?;
            text("arguments").map(drop)
        }
        Some("custom_tool_call") => {
            check_call_id(param, text("call_id")?)?;
            text("name").and(text("input")).map(drop)
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            check_call_id(param, text("call_id")?)?;
            let output = &item["output"];
            let fits = output.is_string() || output.is_array();
            check_type(fits, &format!("{param}.output"), "a string", output)
        }
        Some("reasoning") => {
            let summary = &item["summary"];
            check_type(summary.is_array(), &format!("{param}.summary"), "an array", summary)
        }
        // Tools that the service runs itself.
        Some("compaction" | "mcp_list_tools") => Ok(()),
        Some(kind) if kind.ends_with("_call") => text("id").map(drop),
        kind => {
            let message = format!(
                "Invalid value: '{}'. Supported values are: 'message', 'reasoning', \
                 'function_call', 'function_call_output', 'custom_tool_call', and \
                 'custom_tool_call_output'.",
                kind.unwrap_or_default()
            );
            Err(Refusal::invalid_value(message, param))
        }
    }
}

fn check_message(param: &str, role: &str, content: &Value) -> Result<(), Refusal> {
    if !["assistant", "system", "developer", "user"].contains(&role) {
        let message = format!(
            "Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', \
             and 'user'."
        );
        return Err(Refusal::invalid_value(message, param));
    }
    let fits = content.is_string() || content.is_array();
    let expected = "one of an array of objects or string";
    check_type(fits, &format!("{param}.content"), expected, content)?;
    let allowed: &[&str] = match role {
        "assistant" => &["output_text", "refusal"],
        _ => &["input_text", "input_image", "input_file"],
    };
    for (at, part) in items(content).iter().enumerate() {
        let here = format!("{param}.content[{at}]");
        let kind = part["type"].as_str().unwrap_or_default();
        if !allowed.contains(&kind) {
            let supported = allowed.join("', '");
            let message = format!("Invalid value: '{kind}'. Supported values are: '{supported}'.");
            return Err(Refusal::invalid_value(message, here));
        }
        let key = match kind {
            "input_image" => "image_url",
            "refusal" => "refusal",
            "input_file" => continue,
            _ => "text",
        };
        if !part[key].is_string() {
            let param = format!("{here}.{key}");
            return Err(Refusal::wrong_type(param, "a string", &part[key]));
        }
    }
    Ok(())
}

/// Refuses a member that is missing or has another type than expected.
fn check_type(fits: bool, param: &str, expected: &str, value: &Value) -> Result<(), Refusal> {
    match fits {
        true => Ok(()),
        false if value.is_null() => Err(Refusal::missing(param)),
        false => Err(Refusal::wrong_type(param, expected, value)),
    }
}

fn check_call_id(param: &str, id: &str) -> Result<(), Refusal> {
    check_length(&format!("{param}.call_id"), id)
}

fn check_length(param: &str, id: &str) -> Result<(), Refusal> {
    let length = id.chars().count();
    if length > ID_CHARS_MAX {
        return Err(Refusal::too_long(param, ID_CHARS_MAX, length));
    }
    if length == 0 {
        let message = format!(
            "Invalid '{param}': empty string. Expected a string with minimum length 1, but got \
             an empty string instead."
        );
        return Err(Refusal::new(message, param).coded("empty_string"));
    }
    Ok(())
}

/// Checks that ids of items are short and unique.
fn check_ids(input: &[Value]) -> Result<(), Refusal> {
    let mut seen: Vec<&str> = Vec::new();
    for (at, item) in input.iter().enumerate() {
        let Some(id) = item["id"].as_str() else { continue };
        check_length(&format!("input[{at}].id"), id)?;
        if seen.contains(&id) {
            let message = format!(
                "Duplicate item found with id {id}. Remove duplicate items from your input and \
                 try again."
            );
            return Err(Refusal::new(message, "input"));
        }
        seen.push(id);
    }
    Ok(())
}

fn check_reasoning(input: &[Value], stateless: bool) -> Result<(), StatusRefusal> {
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
                return Err((400, Refusal::new(message, "input")));
            }
        } else if let Some((id, group)) = id.and_then(|id| Some((id, thought_group(id)?))) {
            let is_its = |other: &Value| {
                let of = other["id"].as_str().and_then(thought_group);
                other["type"] == "reasoning" && of == Some(group)
            };
            if !input.iter().take(at).any(is_its) {
                let kind = item["type"].as_str().unwrap_or("message");
                let message = format!(
                    "Item '{id}' of type '{kind}' was provided without its required 'reasoning' \
                     item: 'rs_{group}_0'."
                );
                return Err((400, Refusal::new(message, "input")));
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

/// Returns the response of an id, if this server made the id for a response with reasoning.
fn thought_group(id: &str) -> Option<&str> {
    let (_, rest) = id.split_once('_')?;
    let (group, index) = rest.split_once('_')?;
    let digits = group.strip_prefix('t')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(digits) && is_number(index)).then_some(group)
}

fn check_encrypted(item: &Value, stateless: bool) -> Result<(), StatusRefusal> {
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
        return Err((404, Refusal::new(message, "input")));
    };
    let summary = items(&item["summary"]).iter().filter_map(|part| part["text"].as_str());
    let summary: String = summary.collect();
    let of = encrypted.strip_prefix("rehearsal.").and_then(|rest| rest.rsplit_once('.'));
    let reason = match of {
        Some((of, _)) if sealed(of, &summary) != encrypted => "could not be decrypted or parsed.",
        Some((of, _)) if id.is_some_and(|id| id != of) => {
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
    let refusal = Refusal { message, param: None, code: Some("invalid_encrypted_content") };
    Err((400, refusal))
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

fn check_tools(request: &Value) -> Result<(), Refusal> {
    let listed = &request["tools"];
    let fits = listed.is_null() || listed.is_array();
    check_type(fits, "tools", "an array of objects", listed)?;
    let tools = items(listed);
    for (at, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" {
            return Err(Refusal::missing(format!("tools[{at}].type")));
        }
        check_function(tool, &format!("tools[{at}]"))?;
    }
    let names = tools.iter().map(|tool| &tool["name"]);
    check_tool_choice(&request["tool_choice"]["name"], names)
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
        json!({"type": "reasoning", "id": id, "encrypted_content": sealed(id, "hm"),
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
        let (found, refusal) = check(&request(items)).expect_err("it must be refused");
        assert!(refusal.message.contains(message), "{}", refusal.message);
        assert_eq!(found, status);
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
            let (_, refusal) = check(&request).expect_err("it must be refused");
            assert_eq!(refusal.param.as_deref(), Some(param), "{request}");
        }
        assert!(check(&json!([])).is_err());
    }
}
