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
    let Value::Object(members) = body else {
        return Err("invalid character looking for beginning of value".to_owned());
    };
    let request = GoStruct { members, path: "ChatRequest" };
    let model = request.text("model")?;
    if model.is_empty() {
        return Err("model is required".to_owned());
    }
    let stream = match members.get("stream") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(stream)) => *stream,
        Some(other) => return Err(wrong_type(other, "ChatRequest.stream", "bool")),
    };
    check_options(&body["options"])?;
    let messages = request.list("messages", "[]api.Message")?;
    let tools = request.list("tools", "api.Tools")?;
    for tool in tools {
        check_tool(&tool["function"])?;
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
        let fields = GoStruct::read(message, "ChatRequest.messages", "api.Message")?;
        let role = fields.text("role")?;
        if !["system", "user", "assistant", "tool"].contains(&role) {
            return Err(format!(
                "invalid role {role:?}: it is one of system, user, assistant and tool"
            ));
        }
        if role != "tool" {
            all_answered(&open)?;
            open.clear();
        }
        let content = fields.text("content")?;
        fields.text("thinking")?;
        check_images(fields)?;
        let mut chat = json!({"role": role, "content": content});
        let calls = fields.list("tool_calls", "[]api.ToolCall")?;
        if !calls.is_empty() && role != "assistant" {
            return Err(format!("a message of role {role:?} holds tool calls"));
        }
        for (index, call) in calls.iter().enumerate() {
            open.push(UnansweredCall::read(call, format!("call_{at}_{index}"))?);
        }
        if open.iter().enumerate().any(|(at, call)| open.iter().take(at).any(|c| c.id == call.id)) {
            return Err("two tool calls of a message have the same id".to_owned());
        }
        if !calls.is_empty() {
            chat["tool_calls"] = open.iter().map(UnansweredCall::as_chat).collect();
        }
        if role == "tool" {
            chat["tool_call_id"] = remove_answered(&mut open, fields)?.into();
        }
        read.push(chat);
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
    /// Reads a call. `id` is its id if it has none of its own.
    fn read(call: &'a Value, id: String) -> Result<Self, String> {
        let fields = GoStruct::read(call, "ChatRequest.messages.tool_calls", "api.ToolCall")?;
        let given = fields.text("id")?;
        let id = if given.is_empty() { id } else { given.to_owned() };
        let function = &call["function"];
        let path = "ChatRequest.messages.tool_calls.function";
        let name = GoStruct::read(function, path, "api.ToolCallFunction")?.text("name")?;
        if name.is_empty() {
            return Err("a tool call has no name".to_owned());
        }
        let arguments = &function["arguments"];
        let path = "ChatRequest.messages.tool_calls.function.arguments";
        GoStruct::read(arguments, path, "api.ToolCallFunctionArguments")?;
        Ok(Self { id, name, arguments })
    }

    fn as_chat(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments.to_string()});
        json!({"id": self.id, "type": "function", "function": function})
    }
}

/// Removes the call that a tool message answers, found by its id, else by its tool's name. Returns
/// its id.
fn remove_answered(
    open: &mut Vec<UnansweredCall<'_>>,
    message: GoStruct<'_>,
) -> Result<String, String> {
    let (id, name) = (message.text("tool_call_id")?, message.text("tool_name")?);
    let is_answered = |call: &UnansweredCall<'_>| {
        (id.is_empty() || call.id == id)
            && (name.is_empty() || call.name == name)
            && !(id.is_empty() && name.is_empty())
    };
    match open.iter().position(is_answered) {
        Some(found) => Ok(open.remove(found).id),
        None => Err(format!(
            "a message of role \"tool\" (id {id:?}, name {name:?}) answers no tool call before it"
        )),
    }
}

fn all_answered(open: &[UnansweredCall<'_>]) -> Result<(), String> {
    match open.first() {
        None => Ok(()),
        Some(UnansweredCall { id, name, .. }) => {
            Err(format!("the tool call {id:?} of {name:?} has no message that answers it"))
        }
    }
}

fn check_images(message: GoStruct<'_>) -> Result<(), String> {
    for image in message.list("images", "[]api.ImageData")? {
        let Value::String(data) = image else {
            return Err(wrong_type(image, "ChatRequest.messages.images", "api.ImageData"));
        };
        let digits = data.trim_end_matches('=');
        let is_digit = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/';
        let fault = match digits.bytes().position(|b| !is_digit(b)) {
            None if data.is_empty() || data.len() % 4 != 0 || data.len() - digits.len() > 2 => {
                Some(digits.len())
            }
            position => position,
        };
        if let Some(at) = fault {
            return Err(format!("illegal base64 data at input byte {at}"));
        }
    }
    Ok(())
}

fn check_options(options: &Value) -> Result<(), String> {
    if options.is_null() {
        return Ok(());
    }
    GoStruct::read(options, "ChatRequest.options", "map[string]interface {}")?;
    for (key, fits, kind) in [
        ("num_predict", Value::is_i64 as fn(&Value) -> bool, "integer"),
        ("temperature", Value::is_number, "float32"),
    ] {
        let value = &options[key];
        if !value.is_null() && !fits(value) {
            return Err(format!("option {key:?} must be of type {kind}"));
        }
    }
    Ok(())
}

fn check_tool(function: &Value) -> Result<(), String> {
    let fields = GoStruct::read(function, "ChatRequest.tools.function", "api.ToolFunction")?;
    if fields.text("name")?.is_empty() {
        return Err("a tool has no name".to_owned());
    }
    fields.text("description")?;
    let properties = &function["parameters"]["properties"];
    if !properties.is_null() {
        let path = "ChatRequest.tools.function.parameters.properties";
        GoStruct::read(properties, path, "map[string]api.ToolProperty")?;
    }
    Ok(())
}

/// The members of an object that Ollama reads into a Go struct.
#[derive(Clone, Copy)]
struct GoStruct<'a> {
    members: &'a Map<String, Value>,
    /// The path of the struct in the request.
    path: &'static str,
}

impl<'a> GoStruct<'a> {
    /// Reads an object. Fails if the value has another type.
    fn read(value: &'a Value, path: &'static str, kind: &str) -> Result<Self, String> {
        let members = value.as_object().ok_or_else(|| wrong_type(value, path, kind))?;
        Ok(Self { members, path })
    }

    /// Returns the text of a member; a missing one is empty, as in Go.
    fn text(self, key: &str) -> Result<&'a str, String> {
        match self.members.get(key) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(wrong_type(other, &format!("{}.{key}", self.path), "string")),
        }
    }

    /// Returns the items of a member; a missing one is an empty list.
    fn list(self, key: &str, kind: &str) -> Result<&'a [Value], String> {
        match self.members.get(key) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong_type(other, &format!("{}.{key}", self.path), kind)),
        }
    }
}

/// Returns the message of Go's decoder for a value of a wrong type.
fn wrong_type(value: &Value, field: &str, kind: &str) -> String {
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
