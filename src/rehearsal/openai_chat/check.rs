//! The strict request check, with the error messages of the service.
//!
//! Rules, messages and the form of the error
//! are those of OpenAI's service, as bug reports of its users quote them. The check of the arguments
//! is stricter than OpenAI's, because other servers of this wire format answer bad arguments in the
//! history with an error each time.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::content::check_parts;

/// The refusal of a request with HTTP 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The provider's message.
    pub message: String,
    /// The path of the faulty part of the request.
    pub param: Option<String>,
    /// The provider's error code, if it has one.
    pub code: Option<&'static str>,
}

impl Refusal {
    pub(in crate::rehearsal) fn new(message: impl Into<String>, param: impl Into<String>) -> Self {
        Self { message: message.into(), param: Some(param.into()), code: None }
    }

    pub(in crate::rehearsal) fn coded(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns the refusal of a value that is not one of those that the service knows.
    pub(in crate::rehearsal) fn invalid_value(
        message: impl Into<String>,
        param: impl Into<String>,
    ) -> Self {
        Self::new(message, param).coded("invalid_value")
    }

    pub(in crate::rehearsal) fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::new(format!("Missing required parameter: '{param}'."), param)
            .coded("missing_required_parameter")
    }

    pub(in crate::rehearsal) fn wrong_type(
        param: impl Into<String>,
        expected: &str,
        got: &Value,
    ) -> Self {
        let param = param.into();
        let got = json_type(got);
        Self::new(
            format!("Invalid type for '{param}': expected {expected}, but got {got} instead."),
            param,
        )
        .coded("invalid_type")
    }

    pub(in crate::rehearsal) fn empty_array(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::new(
            format!(
                "Invalid '{param}': empty array. Expected an array with minimum length 1, \
                 but got an empty array instead."
            ),
            param,
        )
        .coded("empty_array")
    }

    pub(in crate::rehearsal) fn too_long(param: &str, maximum: usize, length: usize) -> Self {
        let message = format!(
            "Invalid '{param}': string too long. Expected a string with maximum length {maximum}, \
             but got a string with length {length} instead."
        );
        Self::new(message, param).coded("string_above_max_length")
    }

    /// Returns the refusal of a body that is not JSON.
    #[must_use]
    pub fn bad_json() -> Self {
        Self {
            message: "We could not parse the JSON body of your request. (HINT: This likely means \
                      you aren't using your HTTP library correctly. The OpenAI API expects a JSON \
                      payload, but what was sent was not valid JSON.)"
                .to_owned(),
            param: None,
            code: None,
        }
    }

    /// Returns the body of the HTTP answer.
    #[must_use]
    pub fn body(&self) -> Value {
        error_body(&self.message, "invalid_request_error", self.param.as_deref(), self.code)
    }
}

/// Returns an error body in the provider's form.
#[must_use]
pub(super) fn error_body(
    message: &str,
    kind: &str,
    param: Option<&str>,
    code: Option<&str>,
) -> Value {
    json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
}

/// Checks a request as a strict provider does.
///
/// # Errors
/// The first fault.
pub fn check(request: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = request else {
        return Err(Refusal::bad_json());
    };
    if fields.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
        let message = "you must provide a model parameter".to_owned();
        return Err(Refusal { message, param: None, code: None });
    }
    let messages = match fields.get("messages") {
        None => return Err(Refusal::missing("messages")),
        Some(Value::Array(messages)) if messages.is_empty() => {
            return Err(Refusal::empty_array("messages"));
        }
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(Refusal::wrong_type("messages", "an array of objects", other)),
    };
    for (at, message) in messages.iter().enumerate() {
        check_message(at, message)?;
    }
    check_pairing(messages)?;
    check_tools(request)?;
    if request["stream"] != true && request.get("stream_options").is_some_and(|o| !o.is_null()) {
        return Err(Refusal::new(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            "stream_options",
        ));
    }
    Ok(())
}

fn check_message(at: usize, message: &Value) -> Result<(), Refusal> {
    let Value::Object(fields) = message else {
        return Err(Refusal::wrong_type(format!("messages[{at}]"), "an object", message));
    };
    let param = format!("messages[{at}].role");
    let role = match fields.get("role") {
        None => return Err(Refusal::missing(param)),
        Some(Value::String(role)) => role.as_str(),
        Some(other) => return Err(Refusal::wrong_type(param, "a string", other)),
    };
    let supported = ["system", "assistant", "user", "function", "tool", "developer"];
    if !supported.contains(&role) {
        let message = format!(
            "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', \
             'function', 'tool', and 'developer'."
        );
        return Err(Refusal::invalid_value(message, param));
    }
    let calls = fields.get("tool_calls").filter(|calls| !calls.is_null());
    let content = fields.get("content").unwrap_or(&Value::Null);
    if content.is_null() && (role != "assistant" || calls.is_none()) {
        return Err(Refusal::new(
            "Invalid value for 'content': expected a string, got null.",
            format!("messages.[{at}].content"),
        ));
    }
    if !matches!(content, Value::Null | Value::String(_) | Value::Array(_)) {
        let param = format!("messages[{at}].content");
        return Err(Refusal::wrong_type(param, "one of a string or array of objects", content));
    }
    if let Value::Array(parts) = content {
        check_parts(at, role, parts)?;
    }
    if role == "tool" && message["tool_call_id"].as_str().is_none() {
        return Err(Refusal::missing(format!("messages[{at}].tool_call_id")));
    }
    match calls {
        Some(calls) if role == "assistant" => check_calls(at, calls),
        Some(_) => {
            let param = format!("messages[{at}].tool_calls");
            let message = format!("Unknown parameter: '{param}'.");
            Err(Refusal::new(message, param).coded("unknown_parameter"))
        }
        None => Ok(()),
    }
}

fn check_calls(at: usize, calls: &Value) -> Result<(), Refusal> {
    let param = format!("messages[{at}].tool_calls");
    let Value::Array(calls) = calls else {
        return Err(Refusal::wrong_type(param, "an array of objects", calls));
    };
    if calls.is_empty() {
        return Err(Refusal::empty_array(param));
    }
    let mut ids = BTreeSet::new();
    for (n, call) in calls.iter().enumerate() {
        let here = format!("{param}[{n}]");
        let Some(id) = call["id"].as_str().filter(|id| !id.is_empty()) else {
            return Err(Refusal::missing(format!("{here}.id")));
        };
        if !ids.insert(id) {
            return Err(Refusal::new(
                format!("Invalid parameter: Duplicate value for 'id' of '{id}' in {param}."),
                format!("messages.[{at}].tool_calls"),
            ));
        }
        if call["type"] != "function" {
            return Err(Refusal::missing(format!("{here}.type")));
        }
        let function = &call["function"];
        check_function_name(&function["name"], format!("{here}.function.name"))?;
        let param = format!("{here}.function.arguments");
        let Some(arguments) = function["arguments"].as_str() else {
            return Err(Refusal::missing(param));
        };
        if !serde_json::from_str::<Value>(arguments).is_ok_and(|parsed| parsed.is_object()) {
            let message =
                format!("Invalid value for '{param}': expected a string that holds a JSON object.");
            return Err(Refusal::invalid_value(message, param));
        }
    }
    Ok(())
}

/// Checks that every call is answered once, directly after its message, and that every tool message
/// answers a call.
fn check_pairing(messages: &[Value]) -> Result<(), Refusal> {
    let mut rest = messages.iter().enumerate().peekable();
    while let Some((at, message)) = rest.next() {
        if message["role"] == "tool" {
            return Err(stray(at));
        }
        let Some(calls) = message["tool_calls"].as_array() else { continue };
        let mut open: Vec<&str> = calls.iter().filter_map(|call| call["id"].as_str()).collect();
        let mut answered: Vec<(&str, usize)> = Vec::new();
        while let Some((at, answer)) = rest.next_if(|(_, next)| next["role"] == "tool") {
            let id = answer["tool_call_id"].as_str().unwrap_or_default();
            if let Some((_, before)) = answered.iter().find(|(seen, _)| *seen == id) {
                return Err(Refusal::new(
                    format!(
                        "Invalid parameter: Duplicate value for 'tool_call_id' of '{id}', in \
                         messages[{before}] and messages[{at}]."
                    ),
                    format!("messages.[{at}].tool_call_id"),
                ));
            }
            let Some(found) = open.iter().position(|call| *call == id) else {
                return Err(stray(at));
            };
            open.remove(found);
            answered.push((id, at));
        }
        if !open.is_empty() {
            return Err(Refusal::new(
                format!(
                    "An assistant message with 'tool_calls' must be followed by tool messages \
                     responding to each 'tool_call_id'. The following tool_call_ids did not have \
                     response messages: {}",
                    open.join(", ")
                ),
                format!("messages.[{}].role", at + answered.len() + 1),
            ));
        }
    }
    Ok(())
}

fn stray(at: usize) -> Refusal {
    Refusal::new(
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message \
         with 'tool_calls'.",
        format!("messages.[{at}].role"),
    )
}

fn check_tools(request: &Value) -> Result<(), Refusal> {
    let tools = match request.get("tools") {
        None | Some(Value::Null) => {
            for param in ["tool_choice", "parallel_tool_calls"] {
                if request.get(param).is_some_and(|value| !value.is_null()) {
                    return Err(Refusal::new(
                        format!(
                            "Invalid value for '{param}': '{param}' is only allowed when 'tools' \
                             are specified."
                        ),
                        param,
                    ));
                }
            }
            return Ok(());
        }
        Some(Value::Array(tools)) if tools.is_empty() => return Err(Refusal::empty_array("tools")),
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(Refusal::wrong_type("tools", "an array of objects", other)),
    };
    for (at, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" {
            return Err(Refusal::missing(format!("tools[{at}].type")));
        }
        check_function(&tool["function"], &format!("tools[{at}].function"))?;
    }
    let names = tools.iter().map(|tool| &tool["function"]["name"]);
    check_tool_choice(&request["tool_choice"]["function"]["name"], names)
}

/// Checks the name of a function, and the schema of its arguments: none, or an object.
pub(in crate::rehearsal) fn check_function(function: &Value, param: &str) -> Result<(), Refusal> {
    let name = check_function_name(&function["name"], format!("{param}.name"))?;
    let schema = &function["parameters"];
    if schema.is_null() || schema["type"] == "object" {
        return Ok(());
    }
    let got = schema["type"].as_str().unwrap_or("None");
    let message = format!(
        "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \
         \"object\"', got 'type: \"{got}\"'."
    );
    let refusal = Refusal::new(message, format!("{param}.parameters"));
    Err(refusal.coded("invalid_function_parameters"))
}

fn check_function_name(name: &Value, param: String) -> Result<&str, Refusal> {
    let Some(name) = name.as_str() else { return Err(Refusal::missing(param)) };
    check_name(name, &param)?;
    Ok(name)
}

/// Checks that a chosen tool is one of the request's.
pub(in crate::rehearsal) fn check_tool_choice<'a>(
    chosen: &Value,
    mut names: impl Iterator<Item = &'a Value>,
) -> Result<(), Refusal> {
    match chosen.as_str() {
        Some(chosen) if names.all(|name| name != chosen) => {
            let message = format!("Tool choice '{chosen}' not found in 'tools' parameter.");
            Err(Refusal::new(message, "tool_choice"))
        }
        Some(_) | None => Ok(()),
    }
}

pub(in crate::rehearsal) fn check_name(name: &str, param: &str) -> Result<(), Refusal> {
    let length = name.chars().count();
    if length > 64 {
        return Err(Refusal::too_long(param, 64, length));
    }
    let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if fits && !name.is_empty() {
        return Ok(());
    }
    let message = format!(
        "Invalid '{param}': string does not match pattern. Expected a string that matches the \
         pattern '^[a-zA-Z0-9_-]+$'."
    );
    Err(Refusal::invalid_value(message, param))
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "clock", "arguments": "{}"}})
    }

    fn asks(ids: &[&str]) -> Value {
        let calls: Vec<Value> = ids.iter().map(|id| call(id)).collect();
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    }

    fn answers(id: &str) -> Value {
        json!({"role": "tool", "tool_call_id": id, "content": "12:00"})
    }

    fn history(messages: &[Value]) -> Value {
        json!({"model": "m", "messages": messages})
    }

    fn user() -> Value {
        json!({"role": "user", "content": "hello"})
    }

    fn refused(request: &Value) -> (String, String) {
        let refusal = check(request).expect_err("the request must be refused");
        assert_eq!(refusal.body()["error"]["type"], "invalid_request_error");
        (refusal.message, refusal.param.unwrap_or_default())
    }

    #[test]
    fn lets_a_paired_history_pass() {
        for messages in [
            vec![user()],
            vec![user(), asks(&["a", "b"]), answers("b"), answers("a"), user()],
            vec![user(), asks(&["0"]), answers("0"), asks(&["0"]), answers("0")],
        ] {
            assert_eq!(check(&history(&messages)), Ok(()));
        }
    }

    #[test]
    fn refuses_a_call_without_its_answer() {
        for (messages, ids, at) in [
            (vec![user(), asks(&["a", "b"]), answers("a")], "b", 3),
            (vec![user(), asks(&["a", "b"])], "a, b", 2),
            (vec![asks(&["a"]), user(), answers("a")], "a", 1),
        ] {
            let (message, param) = refused(&history(&messages));
            assert_eq!(
                message,
                format!(
                    "An assistant message with 'tool_calls' must be followed by tool messages \
                     responding to each 'tool_call_id'. The following tool_call_ids did not have \
                     response messages: {ids}"
                )
            );
            assert_eq!(param, format!("messages.[{at}].role"));
        }
    }

    #[test]
    fn refuses_an_answer_that_is_not_owed() {
        let twice = history(&[asks(&["a"]), answers("a"), answers("a")]);
        let (message, param) = refused(&twice);
        assert!(message.contains("Duplicate value for 'tool_call_id' of 'a'"), "{message}");
        assert_eq!(param, "messages.[2].tool_call_id");
        for messages in [
            vec![user(), answers("a")],
            vec![asks(&["a"]), answers("b")],
            vec![asks(&["a"]), answers("a"), user(), answers("a")],
        ] {
            let (message, _) = refused(&history(&messages));
            assert!(message.contains("must be a response to a preceeding message"), "{message}");
        }
    }

    #[test]
    fn refuses_calls_of_a_bad_form() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut asking = asks(&["a"]);
            change(&mut asking["tool_calls"][0]);
            history(&[user(), asking, answers("a")])
        };
        let (message, _) = refused(&history(&[asks(&["a", "a"]), answers("a")]));
        assert!(message.contains("Duplicate value for 'id'"), "{message}");
        for bad in ["", "null", "[1]", "\"{}\"", "{\"zone\": \"Asia/To", "{} {}"] {
            let (message, param) = refused(&with(&|c| c["function"]["arguments"] = bad.into()));
            assert!(message.contains("a JSON object"), "{bad}: {message}");
            assert_eq!(param, "messages[1].tool_calls[0].function.arguments");
        }
        let (_, param) = refused(&with(&|c| c["id"] = "".into()));
        assert_eq!(param, "messages[1].tool_calls[0].id");
        let (_, param) = refused(&with(&|c| c["function"]["name"] = "a b".into()));
        assert_eq!(param, "messages[1].tool_calls[0].function.name");
        let (_, param) = refused(&history(&[asks(&[])]));
        assert_eq!(param, "messages[0].tool_calls");
    }

    #[test]
    fn refuses_requests_of_a_bad_form() {
        let tool = |function: Value| {
            json!({"model": "m", "messages": [user()],
                   "tools": [{"type": "function", "function": function}]})
        };
        assert_eq!(check(&tool(json!({"name": "ok"}))), Ok(()));
        for (request, param) in [
            (json!({"messages": [user()]}), ""),
            (json!({"model": "m"}), "messages"),
            (json!({"model": "m", "messages": []}), "messages"),
            (json!({"model": "m", "messages": "hi"}), "messages"),
            (history(&[json!("hi")]), "messages[0]"),
            (history(&[json!({"content": "hi"})]), "messages[0].role"),
            (history(&[json!({"role": "robot", "content": "hi"})]), "messages[0].role"),
            (history(&[json!({"role": "user"})]), "messages.[0].content"),
            (history(&[json!({"role": "assistant", "content": null})]), "messages.[0].content"),
            (
                history(&[asks(&["a"]), json!({"role": "tool", "content": "x"})]),
                "messages[1].tool_call_id",
            ),
            (tool(json!({})), "tools[0].function.name"),
            (tool(json!({"name": "get weather"})), "tools[0].function.name"),
            (tool(json!({"name": "x".repeat(65)})), "tools[0].function.name"),
            (
                tool(json!({"name": "x", "parameters": {"type": "string"}})),
                "tools[0].function.parameters",
            ),
            (json!({"model": "m", "messages": [user()], "tools": []}), "tools"),
            (
                json!({"model": "m", "messages": [user()], "parallel_tool_calls": false}),
                "parallel_tool_calls",
            ),
            (json!({"model": "m", "messages": [user()], "stream_options": {}}), "stream_options"),
        ] {
            assert_eq!(refused(&request).1, param, "{request}");
        }
        assert!(check(&json!([])).is_err());
    }
}
