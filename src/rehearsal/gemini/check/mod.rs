//! The strict request check, with the error messages of the service.
//!
//! Rules and messages are those of the Gemini API as its users report them, and of its page on
//! thought signatures. Where the API has become lenient (roles that do not alternate) the check
//! stays strict, because Vertex AI and older versions are.

mod tools;

use serde_json::{Map, Value};

use super::signature;
use crate::rehearsal::text::items;

/// The members of a body.
const BODY: [&str; 9] = [
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
    "serviceTier",
];
/// The members of a part that hold its data; a part has exactly one.
const DATA: [&str; 9] = [
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
];
/// The members of a part that may accompany its data.
const BESIDE: [&str; 5] =
    ["thought", "thoughtSignature", "videoMetadata", "partMetadata", "mediaResolution"];

/// Checks the body of a request to a model as strictly as the service does.
///
/// # Errors
/// The service's message for the first fault.
pub(super) fn check(model: &str, body: &Value) -> Result<(), String> {
    let Value::Object(members) = body else {
        return Err("Invalid JSON payload received. Expected an object.".to_owned());
    };
    known(members, &[&BODY], "")?;
    let contents = items(field(body, "contents"));
    if contents.is_empty() {
        return Err("* GenerateContentRequest.contents: contents is not specified\n".to_owned());
    }
    for (at, content) in contents.iter().enumerate() {
        check_content(content, at)?;
    }
    check_turns(contents)?;
    check_signatures(model, contents)?;
    tools::check_tools(body)
}

/// Returns a member by either of its spellings; null if it is missing.
pub(super) fn field<'a>(value: &'a Value, camel: &str) -> &'a Value {
    match value.get(camel) {
        Some(found) => found,
        None => value.get(snake(camel)).unwrap_or(&Value::Null),
    }
}

fn snake(camel: &str) -> String {
    let mut text = String::new();
    for c in camel.chars() {
        if c.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// Refuses an unknown member.
fn known(members: &Map<String, Value>, names: &[&[&str]], place: &str) -> Result<(), String> {
    let is_known =
        |key: &str| names.iter().copied().flatten().any(|n| *n == key || snake(n) == key);
    match members.keys().find(|key| !is_known(key)) {
        None => Ok(()),
        Some(key) => {
            let place = if place.is_empty() { String::new() } else { format!(" at '{place}'") };
            Err(format!(
                "Invalid JSON payload received. Unknown name \"{key}\"{place}: Cannot find field."
            ))
        }
    }
}

fn check_content(content: &Value, at: usize) -> Result<(), String> {
    let place = format!("contents[{at}]");
    let members = content.as_object().ok_or_else(|| invalid(&place, "an object"))?;
    known(members, &[&["role", "parts"]], &place)?;
    if content["role"] != "user" && content["role"] != "model" {
        return Err("Please use a valid role: user, model.".to_owned());
    }
    let parts = items(&content["parts"]);
    if parts.is_empty() {
        return Err(format!(
            "* GenerateContentRequest.{place}.parts: contents.parts must not be empty.\n"
        ));
    }
    for (n, part) in parts.iter().enumerate() {
        check_part(part, &content["role"], &format!("{place}.parts[{n}]"))?;
    }
    Ok(())
}

fn check_part(part: &Value, role: &Value, place: &str) -> Result<(), String> {
    let members = part.as_object().ok_or_else(|| invalid(place, "an object"))?;
    known(members, &[&DATA, &BESIDE], place)?;
    let data: Vec<&str> = DATA.into_iter().filter(|name| !field(part, name).is_null()).collect();
    let signature = field(part, "thoughtSignature");
    let is_empty_text = field(part, "text") == "" && signature.is_null();
    let kind = match data.as_slice() {
        [kind] if !is_empty_text => *kind,
        [_] | [] => {
            return Err(format!(
                "* GenerateContentRequest.{place}.data: required oneof field 'data' must have one \
                 initialized field\n"
            ));
        }
        [_, second, ..] => {
            return Err(format!(
                "Invalid value at '{place}' (oneof), oneof field 'data' is already set. Cannot set \
                 '{second}'"
            ));
        }
    };
    if !signature.is_null() && signature.as_str().is_none_or(str::is_empty) {
        return Err(format!("Invalid value at '{place}.thought_signature' (TYPE_BYTES)"));
    }
    let value = field(part, kind);
    let named = || value["name"].as_str().is_some_and(|name| !name.is_empty());
    match kind {
        "text" if !value.is_string() => Err(invalid(place, "TYPE_STRING")),
        "functionCall" if !named() => Err(format!(
            "* GenerateContentRequest.{place}.function_call.name: Name cannot be empty.\n"
        )),
        "functionCall" if value.get("args").is_some_and(|args| !args.is_object()) => Err(format!(
            "Invalid value at '{place}.function_call.args' (type.googleapis.com/google.protobuf.Struct)"
        )),
        "functionResponse" if !named() => Err(format!(
            "* GenerateContentRequest.{place}.function_response.name: Name cannot be empty.\n"
        )),
        "functionResponse" if !value["response"].is_object() => Err(format!(
            "Invalid value at '{place}.function_response.response' \
             (type.googleapis.com/google.protobuf.Struct)"
        )),
        "functionCall" if role != "model" => Err(MISPLACED_CALL.to_owned()),
        "functionResponse" if role != "user" => Err(MISPLACED_RESULT.to_owned()),
        _ => Ok(()),
    }
}

fn invalid(place: &str, expected: &str) -> String {
    format!("Invalid value at '{place}' ({expected})")
}

const MISPLACED_CALL: &str = "Please ensure that function call turn comes immediately after a \
                              user turn or after a function response turn.";
const MISPLACED_RESULT: &str =
    "Please ensure that function response turn comes immediately after a function call turn.";
const UNPAIRED: &str = "Please ensure that the number of function response parts is equal to the \
                        number of function call parts of the function call turn.";

fn part_fields<'a>(content: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    items(&content["parts"]).iter().map(move |part| field(part, kind)).filter(|v| v.is_object())
}

/// Checks that roles alternate and that every call is answered once, in the next content.
fn check_turns(contents: &[Value]) -> Result<(), String> {
    let mut before: Option<&Value> = None;
    for content in contents {
        let calls = |content: Option<&Value>| -> Vec<Value> {
            content
                .iter()
                .flat_map(|content| part_fields(content, "functionCall"))
                .cloned()
                .collect()
        };
        let unanswered = calls(before);
        let results: Vec<&Value> = part_fields(content, "functionResponse").collect();
        match before {
            None if !calls(Some(content)).is_empty() => return Err(MISPLACED_CALL.to_owned()),
            Some(last) if last["role"] == content["role"] => {
                return Err("Please ensure that multiturn requests alternate between user and \
                            model."
                    .to_owned());
            }
            Some(_) | None => {}
        }
        if unanswered.is_empty() && !results.is_empty() {
            return Err(MISPLACED_RESULT.to_owned());
        }
        if unanswered.len() != results.len() || !all_answered(unanswered, &results) {
            return Err(UNPAIRED.to_owned());
        }
        before = Some(content);
    }
    match before.is_some_and(|last| part_fields(last, "functionCall").next().is_some()) {
        true => Err(UNPAIRED.to_owned()),
        false => Ok(()),
    }
}

/// Returns whether each result answers a different call: matched by id if the call has one, else by name.
fn all_answered(mut unanswered: Vec<Value>, results: &[&Value]) -> bool {
    results.iter().all(|result| {
        let is_its = |call: &Value| match call["id"].as_str() {
            Some(id) => result["id"] == id,
            None => result["id"].is_null() && result["name"] == call["name"],
        };
        unanswered.iter().position(is_its).map(|found| unanswered.remove(found)).is_some()
    })
}

/// Checks that the first call of every content after the last user message has a signature: models
/// from Gemini 3 on require it. No model accepts an altered signature.
fn check_signatures(model: &str, contents: &[Value]) -> Result<(), String> {
    let is_input = |part: &Value| field(part, "functionResponse").is_null();
    let begins = |c: &Value| c["role"] == "user" && items(&c["parts"]).iter().any(is_input);
    let turn = contents.iter().rposition(begins).unwrap_or(0);
    for (at, content) in contents.iter().enumerate().filter(|(_, c)| c["role"] == "model") {
        let mut is_first = true;
        for part in items(&content["parts"]) {
            let signature = field(part, "thoughtSignature").as_str();
            let call = field(part, "functionCall");
            let name = call["name"].as_str().unwrap_or_default();
            if signature.is_some_and(|signature| !signature::is_valid(signature, name)) {
                return Err("Corrupted thought signature.".to_owned());
            }
            if !call.is_object() {
                continue;
            }
            if is_first && at > turn && signature.is_none() && demands_signatures(model) {
                return Err(format!(
                    "Function call is missing a thought_signature in functionCall parts. This is \
                     required for tools to work correctly, and missing thought_signature may lead \
                     to degraded model performance. Additional data, function call \
                     `default_api:{name}` , position {}. Please refer to \
                     https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
                    at + 1
                ));
            }
            is_first = false;
        }
    }
    Ok(())
}

fn demands_signatures(model: &str) -> bool {
    model.trim_start_matches("models/").starts_with("gemini-3")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn user(parts: Value) -> Value {
        json!({"role": "user", "parts": parts})
    }

    fn model(parts: Value) -> Value {
        json!({"role": "model", "parts": parts})
    }

    fn hi() -> Value {
        user(json!([{"text": "hi"}]))
    }

    fn call(name: &str, signature: Option<&str>) -> Value {
        let mut part = json!({"functionCall": {"name": name, "args": {}}});
        if let Some(signature) = signature {
            part["thoughtSignature"] = signature.into();
        }
        part
    }

    fn result(name: &str) -> Value {
        json!({"functionResponse": {"name": name, "response": {"output": "x"}}})
    }

    #[track_caller]
    fn refused(contents: Value, reason: &str) {
        let error = check("gemini-3-pro", &json!({"contents": contents})).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn lets_a_paired_history_pass() {
        let sign = signature::sign(1, "f");
        let placeholder = "skip_thought_signature_validator";
        for contents in [
            json!([hi()]),
            json!([hi(), model(json!([{"text": "a"}])), hi()]),
            json!([
                hi(),
                model(json!([call("f", Some(&sign)), call("g", None)])),
                user(json!([result("f"), result("g"), {"text": "and"}]))
            ]),
            json!([hi(), model(json!([call("f", Some(placeholder))])), user(json!([result("f")]))]),
            json!([
                hi(),
                model(json!([call("f", None)])),
                user(json!([result("f")])),
                model(json!([{"text": "", "thoughtSignature": "AA=="}])),
                hi()
            ]),
        ] {
            assert_eq!(check("gemini-3-pro", &json!({"contents": contents})), Ok(()));
        }
        let unsigned = json!([hi(), model(json!([call("f", None)])), user(json!([result("f")]))]);
        assert_eq!(check("gemini-2.5-flash", &json!({"contents": unsigned})), Ok(()));
    }

    #[test]
    fn refuses_what_is_not_paired() {
        let asks = || model(json!([call("f", Some("AA==")), call("f", None)]));
        refused(json!([asks(), user(json!([result("f"), result("f")]))]), MISPLACED_CALL);
        refused(json!([hi(), user(json!([call("f", None)]))]), MISPLACED_CALL);
        refused(json!([hi(), asks(), user(json!([result("f")]))]), UNPAIRED);
        refused(json!([hi(), asks(), user(json!([result("f"), result("g")]))]), UNPAIRED);
        refused(json!([hi(), asks(), hi()]), UNPAIRED);
        refused(json!([hi(), asks()]), UNPAIRED);
        refused(json!([user(json!([result("f")]))]), MISPLACED_RESULT);
        refused(
            json!([hi(), model(json!([{"text": "a"}])), user(json!([result("f")]))]),
            MISPLACED_RESULT,
        );
        refused(json!([hi(), hi()]), "alternate");
        let with_id = json!({"functionCall": {"name": "f", "id": "i"}, "thoughtSignature": "AA=="});
        refused(json!([hi(), model(json!([with_id])), user(json!([result("f")]))]), UNPAIRED);
    }

    #[test]
    fn refuses_a_lost_or_altered_signature_in_the_turn() {
        let with = |signature: Option<&str>| {
            json!([hi(), model(json!([call("f", signature)])), user(json!([result("f")]))])
        };
        refused(with(None), "missing a thought_signature");
        refused(with(Some(&signature::sign(1, "g"))), "Corrupted thought signature.");
        refused(with(Some("")), "TYPE_BYTES");
    }

    #[test]
    fn refuses_contents_of_a_bad_form() {
        refused(json!([]), "contents is not specified");
        refused(json!("x"), "contents is not specified");
        refused(json!(["x"]), "contents[0]");
        refused(json!([{"parts": [{"text": "a"}]}]), "Please use a valid role: user, model.");
        refused(json!([{"role": "system", "parts": [{"text": "a"}]}]), "valid role");
        refused(json!([user(json!([]))]), "must not be empty");
        refused(json!([user(json!([{"text": ""}]))]), "required oneof field 'data'");
        refused(json!([user(json!([{"thought": true}]))]), "required oneof field 'data'");
        refused(json!([user(json!([{"text": "a", "fileData": {}}]))]), "already set");
        refused(
            json!([user(json!([{"texts": "a"}]))]),
            "Unknown name \"texts\" at 'contents[0].parts[0]'",
        );
        refused(
            json!([hi(), model(json!([{"functionCall": {"name": "f", "args": "{}"}}]))]),
            "Struct",
        );
        refused(
            json!([hi(), model(json!([{"functionCall": {"name": ""}}]))]),
            "Name cannot be empty",
        );
        let text = json!({"functionResponse": {"name": "f", "response": "x"}});
        refused(json!([hi(), model(json!([call("f", None)])), user(json!([text]))]), "Struct");
        let error = check("m", &json!({"contents": [hi()], "stream": true})).unwrap_err();
        assert_eq!(
            error,
            "Invalid JSON payload received. Unknown name \"stream\": Cannot find field."
        );
        assert!(check("m", &Value::Null).is_err());
    }
}
