//! The strict check of tools and their schemas.

use serde_json::{Map, Value};

use super::{field, known};
use crate::rehearsal::text::items;

/// The fields of a schema (<https://ai.google.dev/api/caching#Schema>).
const SCHEMA: [&str; 22] = [
    "type",
    "format",
    "title",
    "description",
    "nullable",
    "enum",
    "maxItems",
    "minItems",
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "example",
    "anyOf",
    "propertyOrdering",
    "default",
    "items",
    "minimum",
    "maximum",
];
const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];

/// Checks the tools, their schemas and the tool configuration.
pub(super) fn check_tools(body: &Value) -> Result<(), String> {
    let mut names: Vec<&str> = Vec::new();
    for (at, tool) in items(field(body, "tools")).iter().enumerate() {
        for (n, declared) in items(field(tool, "functionDeclarations")).iter().enumerate() {
            let place = format!("tools[{at}].function_declarations[{n}]");
            let name = declared["name"].as_str().unwrap_or_default();
            if !is_name(name) {
                return Err(format!(
                    "* GenerateContentRequest.{place}.name: Invalid function name. Must start with \
                     a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores \
                     (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.\n"
                ));
            }
            if names.contains(&name) {
                return Err(format!("Duplicate function declaration found: {name}"));
            }
            names.push(name);
            check_declaration(declared, &place)?;
        }
    }
    check_config(field(field(body, "toolConfig"), "functionCallingConfig"), &names)
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
}

fn check_declaration(declared: &Value, place: &str) -> Result<(), String> {
    const FIELDS: [&str; 7] = [
        "name",
        "description",
        "parameters",
        "parametersJsonSchema",
        "response",
        "responseJsonSchema",
        "behavior",
    ];
    if let Some(members) = declared.as_object() {
        known(members, &[&FIELDS], place)?;
    }
    let Some(parameters) = declared.get("parameters") else { return Ok(()) };
    let place = format!("{place}.parameters");
    check_schema(parameters, &place)?;
    if !is_type(parameters, "object") {
        return Err(format!(
            "* GenerateContentRequest.{place}.type: parameters schema should be of type OBJECT.\n"
        ));
    }
    if parameters["properties"].as_object().is_none_or(Map::is_empty) {
        return Err(format!(
            "* GenerateContentRequest.{place}.properties: should be non-empty for OBJECT type\n"
        ));
    }
    Ok(())
}

fn is_type(schema: &Value, kind: &str) -> bool {
    schema["type"].as_str().is_some_and(|found| found.eq_ignore_ascii_case(kind))
}

fn check_schema(schema: &Value, place: &str) -> Result<(), String> {
    let wrong = |field: &str, reason: &str| {
        Err(format!("* GenerateContentRequest.{place}.{field}: {reason}\n"))
    };
    let Value::Object(members) = schema else {
        return Err(format!("Invalid value at '{place}' (type.googleapis.com/google.ai.Schema)"));
    };
    known(members, &[&SCHEMA], place)?;
    let kind = &schema["type"];
    if kind.is_array() {
        return Err(format!(
            "Invalid JSON payload received. Unknown name \"type\" at '{place}': Proto field is not \
             repeating, cannot start list."
        ));
    }
    // No other member may accompany the branches.
    let is_branching = members.contains_key("anyOf") && members.len() == 1;
    if kind.is_null() && !is_branching {
        return wrong("type", "schema didn't specify the schema type field");
    }
    if !kind.is_null() && !TYPES.iter().any(|known| is_type(schema, known)) {
        return Err(format!("Invalid value at '{place}.type' (TYPE_ENUM), {kind}"));
    }
    for word in items(&schema["enum"]) {
        match word.as_str() {
            None => return Err(format!("Invalid value at '{place}.enum' (TYPE_STRING), {word}")),
            Some("") => return wrong("enum[0]", "cannot be empty"),
            Some(_) if !is_type(schema, "string") => {
                return wrong("enum", "only allowed for STRING type");
            }
            Some(_) => {}
        }
    }
    match (schema["format"].as_str(), is_type(schema, "string")) {
        (Some("enum" | "date-time") | None, _) => {}
        (Some(_), true) => {
            return wrong("format", "only 'enum' and 'date-time' are supported for STRING type");
        }
        (Some("float" | "double" | "int32" | "int64"), false) => {}
        (Some(_), false) => return wrong("format", "unknown format"),
    }
    match (members.get("properties"), is_type(schema, "object")) {
        (Some(_), false) => return wrong("properties", "only allowed for OBJECT type"),
        (Some(Value::Object(members)), true) => {
            for (n, member) in members.values().enumerate() {
                check_schema(member, &format!("{place}.properties[{n}].value"))?;
            }
        }
        (Some(_), true) => return Err(format!("Invalid value at '{place}.properties'")),
        (None, _) => {}
    }
    for (n, name) in items(&schema["required"]).iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        if schema["properties"].get(name).is_none() {
            return wrong(&format!("required[{n}]"), "property is not defined");
        }
    }
    match (members.get("items"), is_type(schema, "array")) {
        (Some(item), true) => check_schema(item, &format!("{place}.items"))?,
        (None, true) => return wrong("items", "missing field."),
        (Some(_), false) => return wrong("items", "only allowed for ARRAY type"),
        (None, false) => {}
    }
    for (n, branch) in items(&schema["anyOf"]).iter().enumerate() {
        check_schema(branch, &format!("{place}.any_of[{n}]"))?;
    }
    Ok(())
}

fn check_config(config: &Value, names: &[&str]) -> Result<(), String> {
    if config.is_null() {
        return Ok(());
    }
    if names.is_empty() {
        return Err("Function calling config is set without function_declarations.".to_owned());
    }
    let mode = config["mode"].as_str().unwrap_or("AUTO");
    if !["AUTO", "NONE", "ANY", "VALIDATED"].contains(&mode) {
        return Err(format!(
            "Invalid value at 'tool_config.function_calling_config.mode' (TYPE_ENUM), \"{mode}\""
        ));
    }
    let allowed = items(field(config, "allowedFunctionNames"));
    if !allowed.is_empty() && !["ANY", "VALIDATED"].contains(&mode) {
        return Err("Allowed function names can only be set when calling mode is ANY.".to_owned());
    }
    let is_declared = |name: &Value| names.iter().any(|declared| name == declared);
    match allowed.iter().find(|name| !is_declared(name)) {
        Some(name) => Err(format!(
            "allowed_function_names should be a subset of the declared functions: {name}"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn checked(declarations: Value, config: Value) -> String {
        let body = json!({"tools": [{"functionDeclarations": declarations}],
            "toolConfig": {"functionCallingConfig": config}});
        check_tools(&body).err().unwrap_or_default()
    }

    #[track_caller]
    fn check(schema: Value, reason: &str) {
        let parameters = json!({"type": "object", "properties": {"x": schema}});
        let error = checked(json!([{"name": "f", "parameters": parameters}]), Value::Null);
        if reason.is_empty() {
            assert_eq!(error, "", "{schema}");
        }
        assert!(error.contains(reason), "{schema}: {error}");
    }

    #[test]
    fn schemas_of_the_subset_pass_and_others_do_not() {
        check(json!({"type": "string", "enum": ["a"], "format": "enum", "nullable": true}), "");
        check(
            json!({"anyOf": [{"type": "STRING"}, {"type": "array", "items": {"type": "object"}}]}),
            "",
        );
        check(
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
            "Unknown name \"additionalProperties\" at \
             'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field.",
        );
        check(
            json!({"type": ["string", "null"]}),
            "Proto field is not repeating, cannot start list.",
        );
        check(json!({"type": "integer", "enum": [1]}), "(TYPE_STRING), 1");
        check(json!({"type": "integer", "enum": ["1"]}), "only allowed for STRING type");
        check(json!({"type": "string", "enum": [""]}), "cannot be empty");
        check(json!({"type": "string", "format": "email"}), "only 'enum' and 'date-time'");
        check(json!({"type": "array"}), "items: missing field.");
        check(json!({"type": "object", "required": ["a"]}), "required[0]: property is not defined");
        check(json!({"type": "string", "properties": {}}), "only allowed for OBJECT type");
        check(json!({}), "schema type field");
        check(json!({"type": "any"}), "(TYPE_ENUM)");
        check(json!(true), "Invalid value");
        check(json!({"type": "string", "anyOf": [{"type": ["a"]}]}), "any_of[0]");
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
