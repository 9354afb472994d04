//! The strict request check of Ollama, and the conversion to the Chat Completions form.
//!
//! Types are checked as Ollama's server does when it reads the request, with the messages of Go's
//! decoder, as bug reports of its users quote them. Three rules are stricter than Ollama, which
//! ignores roles, accepts arguments that are null or missing, and answers a history whose calls
//! and results do not match.

use serde_json::{Map, Value, json};

/// Checks a request and converts it.
///
/// # Errors
/// The refusal of the first fault.
pub(super) fn read(body: &Value) -> Result<Value, String> {
    let Value::Object(fields) = body else {
        return Err("invalid character looking for beginning of value".to_owned());
    };
    let model = text_in(fields, "model", "ChatRequest.model")?;
    if model.is_empty() {
        return Err("model is required".to_owned());
    }
    let stream = match fields.get("stream") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(stream)) => *stream,
        Some(other) => return Err(wrong(other, "ChatRequest.stream", "bool")),
    };
    check_options(fields.get("options").unwrap_or(&Value::Null))?;
    let messages = list_in(fields, "messages", "ChatRequest.messages", "[]api.Message")?;
    let tools = list_in(fields, "tools", "ChatRequest.tools", "api.Tools")?;
    for tool in tools {
        check_tool(tool)?;
    }
    let mut read = json!({"model": model, "stream": stream, "messages": read_messages(messages)?});
    if !tools.is_empty() {
        read["tools"] = tools.into();
    }
    Ok(read)
}

fn read_messages(messages: &[Value]) -> Result<Vec<Value>, String> {
    let mut read = Vec::with_capacity(messages.len());
    let mut open: Vec<UnansweredCall<'_>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let Value::Object(fields) = message else {
            return Err(wrong(message, "ChatRequest.messages", "api.Message"));
        };
        let role = text_in(fields, "role", "ChatRequest.messages.role")?;
        if !["system", "user", "assistant", "tool"].contains(&role) {
            return Err(format!(
                "invalid role {role:?}: it is one of system, user, assistant and tool"
            ));
        }
        if role != "tool" {
            all_answered(&open)?;
            open.clear();
        }
        let content = text_in(fields, "content", "ChatRequest.messages.content")?;
        text_in(fields, "thinking", "ChatRequest.messages.thinking")?;
        check_images(fields)?;
        let mut said = json!({"role": role, "content": content});
        let field = "ChatRequest.messages.tool_calls";
        let calls = list_in(fields, "tool_calls", field, "[]api.ToolCall")?;
        if !calls.is_empty() && role != "assistant" {
            return Err(format!("a message of role {role:?} holds tool calls"));
        }
        for (place, call) in calls.iter().enumerate() {
            open.push(UnansweredCall::read(call, format!("call_{at}_{place}"))?);
        }
        if open.iter().enumerate().any(|(at, call)| open.iter().take(at).any(|c| c.id == call.id)) {
            return Err("two tool calls of a message have the same id".to_owned());
        }
        if !calls.is_empty() {
            said["tool_calls"] = open.iter().map(UnansweredCall::as_chat).collect();
        }
        if role == "tool" {
            said["tool_call_id"] = take_answered(&mut open, fields)?.into();
        }
        read.push(said);
    }
    all_answered(&open)?;
    Ok(read)
}

/// A call without a result so far.
struct UnansweredCall<'a> {
    id: String,
    name: &'a str,
    arguments: &'a Value,
}

impl<'a> UnansweredCall<'a> {
    fn read(call: &'a Value, id: String) -> Result<Self, String> {
        let Value::Object(fields) = call else {
            return Err(wrong(call, "ChatRequest.messages.tool_calls", "api.ToolCall"));
        };
        let given = text_in(fields, "id", "ChatRequest.messages.tool_calls.id")?;
        let id = if given.is_empty() { id } else { given.to_owned() };
        let function = &call["function"];
        let Value::Object(fields) = function else {
            let field = "ChatRequest.messages.tool_calls.function";
            return Err(wrong(function, field, "api.ToolCallFunction"));
        };
        let name = text_in(fields, "name", "ChatRequest.messages.tool_calls.function.name")?;
        if name.is_empty() {
            return Err("a tool call has no name".to_owned());
        }
        let arguments = &function["arguments"];
        if !arguments.is_object() {
            let field = "ChatRequest.messages.tool_calls.function.arguments";
            return Err(wrong(arguments, field, "api.ToolCallFunctionArguments"));
        }
        Ok(Self { id, name, arguments })
    }

    fn as_chat(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments.to_string()});
        json!({"id": self.id, "type": "function", "function": function})
    }
}

/// Returns the id of the call that a tool message answers: found by its id, else by its tool's name.
fn take_answered(
    open: &mut Vec<UnansweredCall<'_>>,
    fields: &Map<String, Value>,
) -> Result<String, String> {
    let id = text_in(fields, "tool_call_id", "ChatRequest.messages.tool_call_id")?;
    let name = text_in(fields, "tool_name", "ChatRequest.messages.tool_name")?;
    let answers = |call: &UnansweredCall<'_>| {
        (id.is_empty() || call.id == id)
            && (name.is_empty() || call.name == name)
            && !(id.is_empty() && name.is_empty())
    };
    match open.iter().position(answers) {
        Some(found) => Ok(open.remove(found).id),
        None => Err(format!(
            "a message of role \"tool\" (id {id:?}, name {name:?}) answers no tool call before it"
        )),
    }
}

fn all_answered(open: &[UnansweredCall<'_>]) -> Result<(), String> {
    match open.first() {
        None => Ok(()),
        Some(call) => {
            let UnansweredCall { id, name, .. } = call;
            Err(format!("the tool call {id:?} of {name:?} has no message that answers it"))
        }
    }
}

fn check_images(fields: &Map<String, Value>) -> Result<(), String> {
    let field = "ChatRequest.messages.images";
    for image in list_in(fields, "images", field, "[]api.ImageData")? {
        let Value::String(data) = image else {
            return Err(wrong(image, field, "api.ImageData"));
        };
        let digits = data.trim_end_matches('=');
        let is_digit = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
        if let Some(at) = digits.bytes().position(|b| !is_digit(b)) {
            return Err(format!("illegal base64 data at input byte {at}"));
        }
        if data.is_empty() || data.len() % 4 != 0 || data.len() - digits.len() > 2 {
            return Err(format!("illegal base64 data at input byte {}", digits.len()));
        }
    }
    Ok(())
}

fn check_options(options: &Value) -> Result<(), String> {
    let Value::Object(fields) = options else {
        return if options.is_null() {
            Ok(())
        } else {
            Err(wrong(options, "ChatRequest.options", "map[string]interface {}"))
        };
    };
    for (key, fits, kind) in [
        ("num_predict", Value::is_i64 as fn(&Value) -> bool, "integer"),
        ("temperature", Value::is_number, "float32"),
    ] {
        if fields.get(key).is_some_and(|value| !value.is_null() && !fits(value)) {
            return Err(format!("option {key:?} must be of type {kind}"));
        }
    }
    Ok(())
}

fn check_tool(tool: &Value) -> Result<(), String> {
    let function = &tool["function"];
    let Value::Object(fields) = function else {
        return Err(wrong(function, "ChatRequest.tools.function", "api.ToolFunction"));
    };
    if text_in(fields, "name", "ChatRequest.tools.function.name")?.is_empty() {
        return Err("a tool has no name".to_owned());
    }
    text_in(fields, "description", "ChatRequest.tools.function.description")?;
    let properties = &function["parameters"]["properties"];
    if !properties.is_null() && !properties.is_object() {
        let field = "ChatRequest.tools.function.parameters.properties";
        return Err(wrong(properties, field, "map[string]api.ToolProperty"));
    }
    Ok(())
}

/// Returns the text of a member; a missing one is empty, as in Go.
fn text_in<'a>(fields: &'a Map<String, Value>, key: &str, field: &str) -> Result<&'a str, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(wrong(other, field, "string")),
    }
}

/// Returns the items of a member; a missing one is an empty list.
fn list_in<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
    field: &str,
    kind: &str,
) -> Result<&'a [Value], String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(wrong(other, field, kind)),
    }
}

fn wrong(value: &Value, field: &str, kind: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go struct field {field} of type {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, name: &str) -> Value {
        json!({"id": id, "function": {"name": name, "arguments": {"a": 1}}})
    }

    fn asks(calls: &[Value]) -> Value {
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
                asks(&[call("a", "f"), bare]), answers("", "g"), answers("a", "f"),
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
            history(&[asks(&[asking]), answers("a", "f")])
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
            (vec![asks(&[call("a", "f")])], "has no message that answers it"),
            (vec![asks(&[call("a", "f")]), user.clone()], "has no message that answers it"),
            (
                vec![asks(&[call("a", "f"), call("b", "f")]), answers("b", "f")],
                "\"a\" of \"f\" has no message",
            ),
            (vec![user, answers("a", "f")], "answers no tool call"),
            (vec![asks(&[call("a", "f")]), answers("a", "g")], "answers no tool call"),
            (vec![asks(&[call("a", "f")]), answers("", "")], "answers no tool call"),
            (
                vec![asks(&[call("a", "f")]), answers("a", "f"), answers("a", "f")],
                "answers no tool call",
            ),
            (vec![asks(&[call("a", "f"), call("a", "f")])], "the same id"),
            (vec![asks(&[json!({"function": {"arguments": {}}})])], "has no name"),
        ] {
            let message = read(&history(&messages)).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
