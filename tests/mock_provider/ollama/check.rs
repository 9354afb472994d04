//! The strict request check of Ollama, and the conversion to the Chat Completions form.
//!
//! `request.schema.json` contains the rules for single members. The rules here, which pair calls and
//! results, are stricter than Ollama, which answers any history.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;
use serde_json::json;

use crate::request_schema::RequestSchema;
use crate::text::items;

static SCHEMA: LazyLock<RequestSchema> = LazyLock::new(|| {
    let text = include_str!("request.schema.json");
    RequestSchema::new(text, append_field, &[("base64", is_base64)])
});

/// Appends a segment as in `ChatRequest.messages.content`, without indexes.
fn append_field(path: &mut String, parent: &Value, segment: &str) {
    if path.is_empty() {
        *path += "ChatRequest";
    }
    if parent.is_object() {
        *path += &format!(".{segment}");
    }
}

/// Checks a string much as Go's decoder of Base64 does. Unlike that, it refuses line feeds and empty data.
fn is_base64(data: &str) -> Result<(), String> {
    let digits = data.trim_end_matches('=');
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
    let whole = !data.is_empty() && data.len().is_multiple_of(4) && data.len() - digits.len() <= 2;
    match digits.bytes().position(|b| !is_digit(b)).or((!whole).then_some(digits.len())) {
        Some(at) => Err(format!("illegal base64 data at input byte {at}")),
        None => Ok(()),
    }
}

/// Checks a request and converts it.
///
/// # Errors
/// The refusal of the first fault.
pub(super) fn read(body: &Value) -> Result<Value, String> {
    SCHEMA.check(body).map_err(|refusal| refusal.message)?;
    let messages = read_messages(items(&body["messages"]))?;
    let stream = body["stream"].as_bool().unwrap_or(true);
    let mut read = json!({"model": body["model"], "stream": stream, "messages": messages});
    let tools = items(&body["tools"]);
    if !tools.is_empty() {
        read["tools"] = tools.into();
    }
    Ok(read)
}

fn read_messages(messages: &[Value]) -> Result<Vec<Value>, String> {
    let mut read = Vec::with_capacity(messages.len());
    // The calls without a result so far, in the Chat Completions form.
    let mut open: Vec<Value> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = text(message, "role");
        if role != "tool" {
            check_all_answered(&open)?;
            let calls = items(&message["tool_calls"]).iter().enumerate();
            open =
                calls.map(|(index, call)| chat_call(call, format!("call_{at}_{index}"))).collect();
            let mut ids = BTreeSet::new();
            if !open.iter().all(|call| ids.insert(text(call, "id"))) {
                return Err("two tool calls of a message have the same id".to_owned());
            }
        }
        let mut chat = json!({"role": role, "content": text(message, "content")});
        if role == "tool" {
            chat["tool_call_id"] = remove_answered(&mut open, message)?;
        } else if !open.is_empty() {
            chat["tool_calls"] = open.clone().into();
        }
        read.push(chat);
    }
    check_all_answered(&open)?;
    Ok(read)
}

/// Returns a string member; an empty string if it is missing or null, as in Go.
fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

/// Converts a call. `id` is used if the call has none.
fn chat_call(call: &Value, id: String) -> Value {
    let id = Some(text(call, "id")).filter(|given| !given.is_empty()).map_or(id, str::to_owned);
    let function = &call["function"];
    let arguments = function["arguments"].to_string();
    let function = json!({"name": function["name"], "arguments": arguments});
    json!({"id": id, "type": "function", "function": function})
}

/// Removes the call that a tool message answers, found by id and tool name; one of the two may be missing.
/// Returns its id.
fn remove_answered(open: &mut Vec<Value>, message: &Value) -> Result<Value, String> {
    let (id, name) = (text(message, "tool_call_id"), text(message, "tool_name"));
    let is_answered = |call: &Value| {
        (id.is_empty() || call["id"] == id)
            && (name.is_empty() || call["function"]["name"] == name)
            && !(id.is_empty() && name.is_empty())
    };
    match open.iter().position(is_answered) {
        Some(found) => Ok(open.remove(found)["id"].take()),
        None => Err(format!(
            "a message of role \"tool\" (id {id:?}, name {name:?}) answers no tool call before it"
        )),
    }
}

fn check_all_answered(open: &[Value]) -> Result<(), String> {
    match open.first() {
        None => Ok(()),
        Some(call) => Err(format!(
            "the tool call {} of {} has no message that answers it",
            call["id"], call["function"]["name"]
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, name: &str) -> Value {
        json!({"id": id, "function": {"name": name, "arguments": {"a": 1}}})
    }

    fn assistant(calls: &[Value]) -> Value {
        json!({"role": "assistant", "content": "", "tool_calls": calls})
    }

    fn answers(id: &str, name: &str) -> Value {
        json!({"role": "tool", "content": "x", "tool_call_id": id, "tool_name": name})
    }

    fn history(messages: &[Value]) -> Value {
        json!({"model": "m", "messages": messages})
    }

    #[test]
    fn a_request_is_given_in_the_chat_form() {
        let tools = json!([{"type": "function", "function": {"name": "f", "description": "d"}}]);
        let bare = json!({"function": {"name": "g", "arguments": {}}});
        let request = json!({"model": "m", "tools": tools, "options": {"temperature": 0.5},
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "u", "images": ["AAAA", "AA=="]},
                assistant(&[call("a", "f"), bare]), answers("", "g"), answers("a", "f"),
                {"role": "assistant", "content": "t"}]});
        let chat = |id: &str, name: &str, arguments: &str| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        };
        assert_eq!(
            read(&request).unwrap(),
            json!({"model": "m", "stream": true, "tools": tools, "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "",
                    "tool_calls": [chat("a", "f", "{\"a\":1}"), chat("call_2_1", "g", "{}")]},
                {"role": "tool", "content": "x", "tool_call_id": "call_2_1"},
                {"role": "tool", "content": "x", "tool_call_id": "a"},
                {"role": "assistant", "content": "t"}]})
        );
        assert_eq!(read(&json!({"model": "m", "stream": false})).unwrap()["stream"], false);
    }

    #[test]
    fn refuses_types_in_the_words_of_go() {
        let with = |arguments: Value| {
            let mut asking = call("a", "f");
            asking["function"]["arguments"] = arguments;
            history(&[assistant(&[asking]), answers("a", "f")])
        };
        let at = "json: cannot unmarshal";
        let arguments = "into Go struct field \
                         ChatRequest.messages.tool_calls.function.arguments of type \
                         api.ToolCallFunctionArguments";
        for (request, message) in [
            (json!(null), "invalid character looking for beginning of value".to_owned()),
            (json!({"messages": []}), "model is required".to_owned()),
            (with(json!("{}")), format!("{at} string {arguments}")),
            (with(json!([])), format!("{at} array {arguments}")),
            (with(json!(null)), format!("{at} null {arguments}")),
            (
                history(&[json!({"role": "user", "content": [{"type": "text", "text": "hi"}]})]),
                format!(
                    "{at} array into Go struct field ChatRequest.messages.content of type string"
                ),
            ),
            (
                history(&[json!({"role": "user", "images": ["https://a/b"]})]),
                "illegal base64 data at input byte 5".to_owned(),
            ),
            (
                history(&[json!({"role": "user", "images": ["AAA"]})]),
                "illegal base64 data at input byte 3".to_owned(),
            ),
            (
                json!({"model": "m", "options": {"num_predict": 1.5}}),
                "option \"num_predict\" must be of type integer".to_owned(),
            ),
            (
                json!({"model": "m", "tools": [{"function": {"name": "f",
                    "parameters": {"properties": []}}}]}),
                format!(
                    "{at} array into Go struct field \
                     ChatRequest.tools.function.parameters.properties of type \
                     map[string]api.ToolProperty"
                ),
            ),
        ] {
            assert_eq!(read(&request).unwrap_err(), message, "{request}");
        }
    }

    #[test]
    fn refuses_what_is_not_paired() {
        let user = json!({"role": "user", "content": "u"});
        for (messages, part) in [
            (vec![json!({"role": "robot", "content": ""})], "invalid role \"robot\""),
            (vec![json!({"role": "user", "tool_calls": [call("a", "f")]})], "holds tool calls"),
            (vec![assistant(&[call("a", "f")])], "has no message that answers it"),
            (vec![assistant(&[call("a", "f")]), user.clone()], "has no message that answers it"),
            (
                vec![assistant(&[call("a", "f"), call("b", "f")]), answers("b", "f")],
                "\"a\" of \"f\" has no message",
            ),
            (vec![user, answers("a", "f")], "answers no tool call"),
            (vec![assistant(&[call("a", "f")]), answers("a", "g")], "answers no tool call"),
            (vec![assistant(&[call("a", "f")]), answers("", "")], "answers no tool call"),
            (
                vec![assistant(&[call("a", "f")]), answers("a", "f"), answers("a", "f")],
                "answers no tool call",
            ),
            (vec![assistant(&[call("a", "f"), call("a", "f")])], "the same id"),
            (vec![assistant(&[json!({"function": {"arguments": {}}})])], "has no name"),
        ] {
            let message = read(&history(&messages)).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
