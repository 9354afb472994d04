//! Turns values that are given as bare text into JSON, by the schema of their parameter.

use serde_json::Value;

use super::literal;

/// Maximum number of references that are followed from one schema.
const REFERENCES_MAX: usize = 8;

/// Returns the value of a parameter: the text itself where the schema allows no type but strings, or where the
/// text is no value of another allowed type. `root` is the schema of the tool's arguments.
pub(super) fn typed_value(root: Option<&Value>, parameter: &str, text: &str) -> Value {
    let schema = root.and_then(|root| root.get("properties")?.get(parameter));
    let types = allowed_types(schema, root, REFERENCES_MAX);
    let is_allowed = |name| types.is_empty() || types.contains(&name);
    let value = serde_json::from_str(text.trim()).ok();
    let value = value.or_else(|| literal::parse_value(text, false));
    let value = value.filter(|value| match value {
        Value::Null => is_allowed("null"),
        Value::Bool(_) => is_allowed("boolean"),
        Value::Number(_) => is_allowed("number") || is_allowed("integer"),
        Value::Array(_) => is_allowed("array"),
        Value::Object(_) => is_allowed("object"),
        // Quotes belong to the text.
        Value::String(_) => false,
    });
    value.unwrap_or_else(|| text.into())
}

/// Returns the types that a schema allows. Empty if it allows all, or names none. References are
/// resolved in `root`.
fn allowed_types<'s>(
    schema: Option<&'s Value>,
    root: Option<&'s Value>,
    references_left: usize,
) -> Vec<&'s str> {
    let Some(schema) = schema else { return Vec::new() };
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str)
        && references_left > 0
    {
        let pointer = reference.strip_prefix('#').unwrap_or_default();
        let target = root.and_then(|root| root.pointer(pointer));
        return allowed_types(target, root, references_left - 1);
    }
    match schema.get("type") {
        Some(Value::String(name)) => return vec![name],
        Some(Value::Array(names)) => return names.iter().filter_map(Value::as_str).collect(),
        Some(_) | None => {}
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array)
        && values.iter().all(Value::is_string)
    {
        return vec!["string"];
    }
    if schema.get("const").is_some_and(Value::is_string) {
        return vec!["string"];
    }
    let list = |key: &'static str| Some((key, schema.get(key)?.as_array()?));
    let choices = list("anyOf").or_else(|| list("oneOf")).or_else(|| list("allOf"));
    let Some((key, choices)) = choices else { return Vec::new() };
    let mut types = Vec::new();
    for choice in choices {
        let of_choice = allowed_types(Some(choice), root, references_left.saturating_sub(1));
        // An alternative that names no type allows all. A part of `allOf` does not add any.
        if of_choice.is_empty() && key != "allOf" {
            return Vec::new();
        }
        types.extend(of_choice);
    }
    types
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_decides_about_the_type() {
        let tool = json!({
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "list": {"type": "array"},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "unit": {"$ref": "#/$defs/Unit"},
                "either": {"type": ["boolean", "string"]},
                "all": {"allOf": [{"type": "string"}, {"minLength": 1}]},
                "fixed": {"const": "1"},
                "any": {},
            },
            "$defs": {"Unit": {"enum": ["1", "2"]}},
        });
        for (parameter, text, expected) in [
            ("text", "42", json!("42")),
            ("text", "\"x\"", json!("\"x\"")),
            ("text", " a ", json!(" a ")),
            ("count", " 42\n", json!(42)),
            ("count", "many", json!("many")),
            ("list", "['a', 1]", json!(["a", 1])),
            ("maybe", "null", json!(null)),
            ("maybe", "1", json!("1")),
            ("unit", "1", json!("1")),
            ("either", "True", json!(true)),
            ("either", "yes", json!("yes")),
            ("all", "42", json!("42")),
            ("fixed", "1", json!("1")),
            ("any", "{\"a\": 1}", json!({"a": 1})),
            ("unknown", "3", json!(3)),
            ("unknown", "Oslo", json!("Oslo")),
        ] {
            assert_eq!(typed_value(Some(&tool), parameter, text), expected, "{parameter} {text}");
        }
        assert_eq!(typed_value(None, "a", "1"), json!(1));
        let circle = json!({"properties": {"a": {"$ref": "#/properties/a"}}});
        assert_eq!(typed_value(Some(&circle), "a", "1"), json!(1));
    }
}
