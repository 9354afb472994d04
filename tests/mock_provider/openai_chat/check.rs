//! The strict request check, with the error messages of the service.
//!
//! `request.schema.json` contains the rules for single members. The rules here relate members
//! to each other.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use crate::request_schema::Refusal;
use crate::request_schema::RequestSchema;
use crate::request_schema::append_bracketed;
use crate::text::items;
use callsheet_values::types::Image;

static SCHEMA: LazyLock<RequestSchema> = LazyLock::new(|| {
    RequestSchema::new(
        include_str!("request.schema.json"),
        append_bracketed,
        &[("image-url", is_image_url), ("json-object", is_json_object)],
    )
});

fn is_image_url(url: &str) -> Result<(), String> {
    Image::parse(url).map(drop).map_err(|reason| reason.to_string())
}

fn is_json_object(text: &str) -> Result<(), String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(_)) => Ok(()),
        Ok(_) | Err(_) => Err("expected a string that holds a JSON object".to_owned()),
    }
}

/// Checks a request as a strict provider does. Both notations of a path, `messages[0]` and `messages.[0]`, are the
/// service's own.
///
/// # Errors
/// The first fault.
pub(super) fn check(request: &Value) -> Result<(), Refusal> {
    SCHEMA.check(request)?;
    let messages = items(&request["messages"]);
    for (at, message) in messages.iter().enumerate() {
        check_unique_ids(at, message)?;
    }
    check_pairing(messages)?;
    let names = items(&request["tools"]).iter().map(|tool| &tool["function"]["name"]);
    check_tool_choice(&request["tool_choice"]["function"]["name"], names)
}

fn check_unique_ids(at: usize, message: &Value) -> Result<(), Refusal> {
    let mut ids = BTreeSet::new();
    let mut calls = items(&message["tool_calls"]).iter().filter_map(|call| call["id"].as_str());
    match calls.find(|id| !ids.insert(*id)) {
        Some(id) => Err(Refusal::new(
            format!(
                "Invalid parameter: Duplicate value for 'id' of '{id}' in messages[{at}].tool_calls."
            ),
            format!("messages.[{at}].tool_calls"),
        )),
        None => Ok(()),
    }
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

/// Returns the refusal of a tool message that answers no call.
fn stray(at: usize) -> Refusal {
    Refusal::new(
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message \
         with 'tool_calls'.",
        format!("messages.[{at}].role"),
    )
}

/// Checks that a chosen tool is one of the request's.
pub(crate) fn check_tool_choice<'a>(
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "clock", "arguments": "{}"}})
    }

    fn assistant(ids: &[&str]) -> Value {
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
        (refusal.message, refusal.param.unwrap_or_default())
    }

    #[test]
    fn lets_a_paired_history_pass() {
        for messages in [
            vec![user()],
            vec![user(), assistant(&["a", "b"]), answers("b"), answers("a"), user()],
            vec![user(), assistant(&["0"]), answers("0"), assistant(&["0"]), answers("0")],
        ] {
            assert_eq!(check(&history(&messages)), Ok(()));
        }
    }

    #[test]
    fn refuses_a_call_without_its_answer() {
        for (messages, ids, at) in [
            (vec![user(), assistant(&["a", "b"]), answers("a")], "b", 3),
            (vec![user(), assistant(&["a", "b"])], "a, b", 2),
            (vec![assistant(&["a"]), user(), answers("a")], "a", 1),
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
        let twice = history(&[assistant(&["a"]), answers("a"), answers("a")]);
        let (message, param) = refused(&twice);
        assert!(message.contains("Duplicate value for 'tool_call_id' of 'a'"), "{message}");
        assert_eq!(param, "messages.[2].tool_call_id");
        for messages in [
            vec![user(), answers("a")],
            vec![assistant(&["a"]), answers("b")],
            vec![assistant(&["a"]), answers("a"), user(), answers("a")],
        ] {
            let (message, _) = refused(&history(&messages));
            assert!(message.contains("must be a response to a preceeding message"), "{message}");
        }
    }

    #[test]
    fn refuses_calls_of_a_bad_form() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut asking = assistant(&["a"]);
            change(&mut asking["tool_calls"][0]);
            history(&[user(), asking, answers("a")])
        };
        let (message, _) = refused(&history(&[assistant(&["a", "a"]), answers("a")]));
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
        let (_, param) = refused(&history(&[assistant(&[])]));
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
                history(&[assistant(&["a"]), json!({"role": "tool", "content": "x"})]),
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

    fn with_content(role: &str, content: &Value) -> Value {
        json!({"model": "m", "messages": [{"role": role, "content": content}]})
    }

    fn image(url: &str) -> Value {
        json!({"type": "image_url", "image_url": {"url": url}})
    }

    #[test]
    fn takes_text_and_images() {
        let text = json!({"type": "text", "text": "hi"});
        let (address, data) = (image("https://a/b.png"), image("data:image/png;base64,AAAA"));
        assert_eq!(check(&with_content("user", &json!([text, address, data]))), Ok(()));
        assert_eq!(check(&with_content("assistant", &json!([text]))), Ok(()));
    }

    #[test]
    fn refuses_parts_of_a_bad_form() {
        for (role, content, param) in [
            ("user", json!([]), ""),
            ("user", json!(["hi"]), "[0]"),
            ("user", json!([{"type": "text"}]), "[0].text"),
            ("user", json!([{"type": "picture"}]), "[0].type"),
            ("user", json!([{"type": "image_url", "image_url": "https://a/b"}]), "[0].image_url"),
            ("user", json!([image("ftp://a/b")]), "[0].image_url.url"),
            ("user", json!([image("AAAA")]), "[0].image_url.url"),
            ("user", json!([image("data:image/png;base64,A")]), "[0].image_url.url"),
            ("user", json!([image("data:text/plain;base64,AAAA")]), "[0].image_url.url"),
            ("assistant", json!([image("https://a/b.png")]), "[0].type"),
            ("system", json!([image("https://a/b.png")]), "[0].type"),
        ] {
            let refusal = check(&with_content(role, &content)).unwrap_err();
            let expected = format!("messages[0].content{param}");
            assert_eq!(refusal.param.as_deref(), Some(&*expected), "{content}");
        }
    }
}
