//! JSON schemas of answers in the forms that services accept.
//!
//! The host checks each answer against the schema of the run. So the schema that a service receives may leave out
//! keywords, and so accept more, or forbid additional members of objects.

use serde_json::{Map, Value, json};

/// The name of the format. Some services require one.
const NAME: &str = "answer";

/// The values of `format` that services enforce.
const FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

/// Keywords that Anthropic's service refuses
/// (<https://platform.claude.com/docs/en/build-with-claude/structured-outputs>).
const REFUSED: [&str; 9] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
];

/// Keywords that OpenAI's services refuse in a strict schema
/// (<https://platform.openai.com/docs/guides/structured-outputs>).
const NOT_STRICT: [&str; 16] = [
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "default",
    "patternProperties",
    "propertyNames",
    "dependentSchemas",
    "dependentRequired",
    "prefixItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
];

/// Returns the members of a named format. It is strict if [`is_strict_schema`] holds for the schema and for
/// those in it. Otherwise the schema is sent unchanged, because the service would refuse it as a strict one.
pub(super) fn named_format(schema: &Value) -> Map<String, Value> {
    let mut strict = schema.clone();
    for_each_schema(&mut strict, &mut close);
    let mut is_strict = strict.get("type").is_some_and(|kind| kind == "object");
    for_each_schema(&mut strict, &mut |schema| is_strict &= is_strict_schema(schema));
    let schema = if is_strict { &strict } else { schema };
    let members = json!({"name": NAME, "schema": schema, "strict": is_strict});
    match members {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// Returns the schema with closed objects and without the keywords that Anthropic's service refuses.
pub(super) fn closed_schema(schema: &Value) -> Value {
    let mut closed = schema.clone();
    for_each_schema(&mut closed, &mut |schema| {
        close(schema);
        schema.retain(|keyword, _| !REFUSED.contains(&&**keyword));
    });
    closed
}

/// Forbids additional members of an object whose schema lists members and does not mention additional ones. Drops
/// `$schema`, and formats that services do not know.
fn close(schema: &mut Map<String, Value>) {
    schema.remove("$schema");
    if schema.get("format").is_some_and(|format| !FORMATS.iter().any(|known| format == known)) {
        schema.remove("format");
    }
    if is_object(schema) && schema.contains_key("properties") {
        schema.entry("additionalProperties").or_insert(Value::Bool(false));
    }
}

/// Returns true if the type of a schema is object, also beside others such as null.
fn is_object(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
        None => false,
    }
}

/// Returns whether a strict format accepts a schema, apart from those in it: it has none of [`NOT_STRICT`],
/// and if its type includes object, it lists members, requires all of them and forbids additional ones.
fn is_strict_schema(schema: &Map<String, Value>) -> bool {
    if NOT_STRICT.iter().any(|keyword| schema.contains_key(*keyword)) {
        return false;
    }
    if !is_object(schema) {
        // Members without a type add to another schema, which they must not close.
        return !schema.contains_key("properties");
    }
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |name: &String| required.is_some_and(|required| required.iter().any(|known| known == name));
    let properties = schema.get("properties").and_then(Value::as_object);
    schema.get("additionalProperties") == Some(&Value::Bool(false))
        && properties.is_some_and(|properties| properties.keys().all(is_required))
}

/// Calls `change` for a schema, then for those under the keywords listed here.
pub(super) fn for_each_schema(
    schema: &mut Value,
    change: &mut impl FnMut(&mut Map<String, Value>),
) {
    let Value::Object(members) = schema else { return };
    change(members);
    for (keyword, value) in members {
        match keyword.as_str() {
            "properties" | "$defs" | "definitions" | "patternProperties" => {
                let schemas =
                    value.as_object_mut().into_iter().flat_map(|named| named.values_mut());
                schemas.for_each(|schema| for_each_schema(schema, change));
            }
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                let schemas = value.as_array_mut().into_iter().flatten();
                schemas.for_each(|schema| for_each_schema(schema, change));
            }
            "items"
            | "additionalProperties"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "propertyNames" => {
                for_each_schema(value, change);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_strict_if_all_members_are_required() {
        let schema = |required: Value| {
            json!({"$schema": "x", "type": "object", "required": required, "properties": {
                "format": {"type": "string"}, "n": {"type": "integer", "format": "uint32"}}})
        };
        let strict = named_format(&schema(json!(["format", "n"])));
        assert_eq!(strict["strict"], true);
        let untyped = json!({"properties": {"a": {"minimum": 1}}});
        let added = json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"], "anyOf": [untyped]});
        assert_eq!(
            (&named_format(&added)["strict"], &named_format(&added)["schema"]),
            (&false.into(), &added)
        );
        assert_eq!(closed_schema(&added)["anyOf"][0], json!({"properties": {"a": {}}}));
        assert_eq!(
            strict["schema"],
            json!({"type": "object", "required": ["format", "n"], "additionalProperties": false,
                "properties": {"format": {"type": "string"}, "n": {"type": "integer"}}})
        );
        let loose = named_format(&schema(json!(["n"])));
        assert_eq!((&loose["strict"], &loose["schema"]), (&false.into(), &schema(json!(["n"]))));
        let open = json!({"type": "object", "properties": {}, "additionalProperties": true});
        assert_eq!(named_format(&open)["strict"], false);
        assert_eq!(named_format(&json!({"type": "array", "items": {}}))["strict"], false);
        let nullable = |required: Value| {
            json!({"type": "object", "required": ["a"], "properties": {"a": {
                "type": ["object", "null"], "required": required,
                "properties": {"b": {"type": "string"}}}}})
        };
        assert_eq!(named_format(&nullable(json!([])))["strict"], false);
        let strict = named_format(&nullable(json!(["b"])));
        assert_eq!(strict["schema"]["properties"]["a"]["additionalProperties"], false);
        assert_eq!(strict["strict"], true);
    }

    #[test]
    fn nested_objects_are_closed_and_limits_removed() {
        let schema = json!({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/maximum"},
            "$defs": {"maximum": {"type": "object", "properties": {
                "maximum": {"type": "number", "maximum": 3}}}}});
        assert_eq!(
            closed_schema(&schema),
            json!({"type": "array", "items": {"$ref": "#/$defs/maximum"},
                "$defs": {"maximum": {"type": "object", "additionalProperties": false,
                    "properties": {"maximum": {"type": "number"}}}}})
        );
    }
}
