//! The strict request check, with the error messages of the service.
//!
//! `request.schema.json` contains the rules for single members. The rules here relate members to
//! each other. Rules and messages come from what users of the Gemini API report, and from its page on
//! thought signatures. Where the API has become lenient (roles that do not alternate) the
//! check stays strict, because Vertex AI and older versions are.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::signature;
use crate::request_schema::RequestSchema;
use crate::request_schema::append_bracketed;
use crate::text::items;

const SCHEMA_TEXT: &str = include_str!("request.schema.json");
static SCHEMA: LazyLock<RequestSchema> =
    LazyLock::new(|| RequestSchema::new(SCHEMA_TEXT, append_proto, &[]));

/// Appends a segment as in `contents[0].parts[0].function_call.name`. The path of a map's value has
/// the index of its key.
fn append_proto(path: &mut String, parent: &Value, segment: &str) {
    match parent.as_object() {
        Some(map) if path.ends_with(".properties") => {
            let index = map.keys().position(|key| key == segment).unwrap_or_default();
            *path += &format!("[{index}].value");
        }
        Some(_) | None => append_bracketed(path, parent, segment),
    }
}

fn snake_case(camel: &str) -> String {
    let mut snake = String::new();
    for c in camel.chars() {
        snake += if c.is_ascii_uppercase() { "_" } else { "" };
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Returns a value of a request in the form that the schema describes: with the known members in
/// snake case, and without those that are null, because those are not set. A null `args`, `parameters` or
/// `properties` stays, so that it is refused.
pub(super) fn normalised(value: &Value) -> Value {
    if let Value::Array(values) = value {
        return values.iter().map(normalised).collect();
    }
    let Value::Object(members) = value else { return value.clone() };
    let members = members.iter().filter_map(|(key, value)| {
        let snake = snake_case(key);
        let is_known = SCHEMA_TEXT.contains(&format!("\"{snake}\""));
        let key = if is_known { snake } else { key.clone() };
        let may_be_unset = is_known && !["args", "parameters", "properties"].contains(&&*key);
        if value.is_null() && may_be_unset {
            return None;
        }
        let value = match key.as_str() {
            // Data of the client, not members of the request.
            "args" | "response" | "default" | "example" | "parameters_json_schema" => value.clone(),
            "properties" => value.as_object().map_or_else(
                || value.clone(),
                |schemas| {
                    schemas.iter().map(|(key, schema)| (key.clone(), normalised(schema))).collect()
                },
            ),
            _ => normalised(value),
        };
        Some((key, value))
    });
    members.collect()
}

/// Checks the body of a request to a model as strictly as the service does, and normalises it.
///
/// # Errors
/// The service's message for the first fault.
pub(super) fn check(model: &str, body: &Value) -> Result<Value, String> {
    let body = normalised(body);
    SCHEMA.check(&body).map_err(|refusal| refusal.message)?;
    let contents = items(&body["contents"]);
    check_turns(contents)?;
    check_signatures(model, contents)?;
    check_tools(&body)?;
    Ok(body)
}

const MISPLACED_CALL: &str = "Please ensure that function call turn comes immediately after a \
                              user turn or after a function response turn.";
const MISPLACED_RESULT: &str =
    "Please ensure that function response turn comes immediately after a function call turn.";
const UNPAIRED: &str = "Please ensure that the number of function response parts is equal to the \
                        number of function call parts of the function call turn.";

fn part_values<'a>(content: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    items(&content["parts"]).iter().filter_map(move |part| part.get(kind))
}

/// Checks that roles alternate and that every call is answered once, in the next content.
fn check_turns(contents: &[Value]) -> Result<(), String> {
    let mut unanswered: Vec<&Value> = Vec::new();
    let mut role_before = &Value::Null;
    for content in contents {
        let calls: Vec<&Value> = part_values(content, "function_call").collect();
        let results: Vec<&Value> = part_values(content, "function_response").collect();
        let role = &content["role"];
        if !calls.is_empty() && (role_before.is_null() || role == "user") {
            return Err(MISPLACED_CALL.to_owned());
        }
        if role == role_before {
            return Err("Please ensure that multiturn requests alternate between user and model."
                .to_owned());
        }
        if unanswered.is_empty() && !results.is_empty() {
            return Err(MISPLACED_RESULT.to_owned());
        }
        if unanswered.len() != results.len() || !all_answered(unanswered, &results) {
            return Err(UNPAIRED.to_owned());
        }
        (unanswered, role_before) = (calls, role);
    }
    if unanswered.is_empty() { Ok(()) } else { Err(UNPAIRED.to_owned()) }
}

/// Returns whether each result answers a different call: matched by id if the call has one, else by name.
fn all_answered(mut unanswered: Vec<&Value>, results: &[&Value]) -> bool {
    results.iter().all(|result| {
        let is_its = |call: &&Value| match call["id"].as_str() {
            Some(id) => result["id"] == id,
            None => result["id"].is_null() && result["name"] == call["name"],
        };
        unanswered.iter().position(is_its).map(|found| unanswered.remove(found)).is_some()
    })
}

/// Checks that the first call of every content after the last user message (a content that has not only results)
/// has a signature: Gemini 3 models require it. No model accepts an altered signature.
fn check_signatures(model: &str, contents: &[Value]) -> Result<(), String> {
    let is_input = |part: &Value| part["function_response"].is_null();
    let has_input = |c: &Value| c["role"] == "user" && items(&c["parts"]).iter().any(is_input);
    let last_user = contents.iter().rposition(has_input).unwrap_or(0);
    for (at, content) in contents.iter().enumerate().filter(|(_, c)| c["role"] == "model") {
        let mut is_first = true;
        for part in items(&content["parts"]) {
            let signature = part["thought_signature"].as_str();
            let call = &part["function_call"];
            let name = call["name"].as_str().unwrap_or_default();
            if signature.is_some_and(|signature| !signature::is_valid(signature, name)) {
                return Err("Corrupted thought signature.".to_owned());
            }
            if !call.is_object() {
                continue;
            }
            if is_first && at > last_user && signature.is_none() && demands_signatures(model) {
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

/// Checks that the names of functions are unique, that their schemas require only properties that they define,
/// that a configuration of calls comes with functions, and that it allows only these.
fn check_tools(body: &Value) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for (at, tool) in items(&body["tools"]).iter().enumerate() {
        for (n, declared) in items(&tool["function_declarations"]).iter().enumerate() {
            let name = declared["name"].as_str().unwrap_or_default();
            if !names.insert(name) {
                return Err(format!("Duplicate function declaration found: {name}"));
            }
            let place = format!("tools[{at}].function_declarations[{n}].parameters");
            check_required(&declared["parameters"], &place)?;
        }
    }
    let config = &body["tool_config"]["function_calling_config"];
    if !config.is_null() && names.is_empty() {
        return Err("Function calling config is set without function_declarations.".to_owned());
    }
    let mut allowed = items(&config["allowed_function_names"]).iter();
    match allowed.find(|name| name.as_str().is_none_or(|name| !names.contains(name))) {
        Some(name) => Err(format!(
            "allowed_function_names should be a subset of the declared functions: {name}"
        )),
        None => Ok(()),
    }
}

fn check_required(schema: &Value, place: &str) -> Result<(), String> {
    for (n, name) in items(&schema["required"]).iter().enumerate() {
        if schema["properties"].get(name.as_str().unwrap_or_default()).is_none() {
            return Err(format!(
                "* GenerateContentRequest.{place}.required[{n}]: property is not defined\n"
            ));
        }
    }
    let members = schema["properties"].as_object().into_iter().flat_map(|map| map.values());
    let members = members.enumerate().map(|(n, s)| (format!("{place}.properties[{n}].value"), s));
    let branches = items(&schema["any_of"]).iter().enumerate();
    let branches = branches.map(|(n, branch)| (format!("{place}.any_of[{n}]"), branch));
    let item = schema.get("items").map(|item| (format!("{place}.items"), item));
    let mut inner = members.chain(branches).chain(item);
    inner.try_for_each(|(place, schema)| check_required(schema, &place))
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
            assert_eq!(check("gemini-3-pro", &json!({"contents": contents})).err(), None);
        }
        let unsigned = json!([hi(), model(json!([call("f", None)])), user(json!([result("f")]))]);
        assert_eq!(check("gemini-2.5-flash", &json!({"contents": unsigned})).err(), None);
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

    #[track_caller]
    fn checked(declarations: Value, config: Value) -> String {
        let body = json!({"contents": [hi()], "tools": [{"functionDeclarations": declarations}],
            "toolConfig": {"functionCallingConfig": config}});
        check("m", &body).err().unwrap_or_default()
    }

    #[track_caller]
    fn check_schema(schema: Value, reason: &str) {
        let parameters = json!({"type": "object", "properties": {"x": schema}});
        let error = checked(json!([{"name": "f", "parameters": parameters}]), Value::Null);
        if reason.is_empty() {
            assert_eq!(error, "", "{schema}");
        }
        assert!(error.contains(reason), "{schema}: {error}");
    }

    #[test]
    fn schemas_of_the_subset_pass_and_others_do_not() {
        check_schema(
            json!({"type": "string", "enum": ["a"], "format": "enum", "nullable": true}),
            "",
        );
        check_schema(
            json!({"anyOf": [{"type": "STRING"}, {"type": "array", "items": {"type": "object"}}]}),
            "",
        );
        check_schema(
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
            "Unknown name \"additionalProperties\" at \
             'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field.",
        );
        check_schema(
            json!({"type": ["string", "null"]}),
            "Proto field is not repeating, cannot start list.",
        );
        check_schema(json!({"type": "integer", "enum": [1]}), "(TYPE_STRING), 1");
        check_schema(json!({"type": "integer", "enum": ["1"]}), "only allowed for STRING type");
        check_schema(json!({"type": "string", "enum": [""]}), "cannot be empty");
        check_schema(json!({"type": "string", "format": "email"}), "only 'enum' and 'date-time'");
        check_schema(json!({"type": "array"}), "items: missing field.");
        check_schema(
            json!({"type": "object", "required": ["a"]}),
            "required[0]: property is not defined",
        );
        check_schema(json!({"type": "string", "properties": {}}), "only allowed for OBJECT type");
        check_schema(json!({}), "schema type field");
        check_schema(json!({"type": "any"}), "(TYPE_ENUM)");
        check_schema(json!(true), "Invalid value");
        check_schema(json!({"type": "string", "anyOf": [{"type": ["a"]}]}), "any_of[0]");
    }

    #[test]
    fn declarations_and_the_choice_among_them() {
        let named = |name: &str| json!([{"name": name}]);
        assert_eq!(checked(named("a.b:c-d_1"), json!({"mode": "AUTO"})), "");
        for name in ["", "1a", "a b", &"x".repeat(65)] {
            assert!(checked(named(name), Value::Null).contains("Invalid function name."), "{name}");
        }
        let twice = json!([{"name": "f"}, {"name": "f"}]);
        assert!(checked(twice, Value::Null).starts_with("Duplicate function declaration"));
        let empty = json!([{"name": "f", "parameters": {"type": "object"}}]);
        assert!(checked(empty, Value::Null).contains("should be non-empty for OBJECT type"));
        let config = |mode: &str, name: &str| json!({"mode": mode, "allowedFunctionNames": [name]});
        assert_eq!(checked(named("f"), config("ANY", "f")), "");
        assert!(checked(named("f"), config("ANY", "g")).contains("subset"));
        assert!(checked(named("f"), config("AUTO", "f")).contains("mode is ANY"));
        assert!(checked(named("f"), json!({"mode": "auto"})).contains("TYPE_ENUM"));
        assert!(
            checked(json!([]), json!({"mode": "NONE"})).contains("without function_declarations")
        );
    }
}
