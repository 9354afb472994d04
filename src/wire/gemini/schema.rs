//! JSON schemas in the form that Gemini accepts: a subset of OpenAPI 3.0.
//!
//! Format: <https://ai.google.dev/api/caching#Schema>. The service refuses the whole request for an
//! unknown keyword, a list of types, an enum that is not of texts, or a list without `items`. A
//! keyword that cannot be expressed is left out, which makes the schema wider. A few schemas become
//! narrower: all items of a tuple get the schema of its first, and a schema that implies no type becomes a
//! string. The host checks the arguments against the original schema. `title`, `default`, `examples`
//! and `pattern` are left out too, because older versions refuse them.

use serde_json::{Map, Value, json};

use crate::request::merge_schema;

/// Maximum depth of a schema. Deeper schemas become objects of any kind.
const DEPTH_MAX: usize = 24;
/// Maximum depth to which `allOf`, and the references in it, are followed. Schemas may refer to themselves.
const MERGE_DEPTH_MAX: usize = 6;
/// Maximum number of schemas of one tool, because references can expand without limit.
const SCHEMAS_MAX: usize = 2000;
/// Keywords with the same meaning in both forms, and the types to which they apply.
const NUMERIC_KEYWORDS: [(&str, &[&str]); 6] = [
    ("minimum", &["number", "integer"]),
    ("maximum", &["number", "integer"]),
    ("minItems", &["array"]),
    ("maxItems", &["array"]),
    ("minLength", &["string"]),
    ("maxLength", &["string"]),
];

type SchemaObject = Map<String, Value>;

/// Converts the schema of a function's arguments. Returns `None` if it names no arguments, or is not
/// the schema of an object.
pub(super) fn parameters(schema: &Value) -> Option<Value> {
    let mut writer = SchemaWriter { root: schema, schemas_left: SCHEMAS_MAX, refs: Vec::new() };
    let mut whole = writer.schema(schema, 0);
    if !is_object(&whole) {
        // Arguments that are one of several objects become one object with the members of all, none
        // of them required.
        let mut object = type_schema("object");
        add_members(&mut object, whole.get("anyOf")?.as_array()?);
        whole = object;
    }
    whole.get("properties")?;
    Some(Value::Object(whole))
}

struct SchemaWriter<'a> {
    root: &'a Value,
    /// Number of schemas that may still be converted.
    schemas_left: usize,
    /// The references that are being followed, to detect cycles.
    refs: Vec<String>,
}

impl SchemaWriter<'_> {
    fn schema(&mut self, schema: &Value, depth: usize) -> SchemaObject {
        self.schemas_left = self.schemas_left.saturating_sub(1);
        let Value::Object(schema) = schema else { return type_schema("string") };
        if depth > DEPTH_MAX || self.schemas_left == 0 {
            return type_schema("object");
        }
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(name, schema, depth);
        }
        // References increase the depth too.
        let is_root = depth == self.refs.len();
        let schema = &self.merge_all_of(schema, 0);
        let branches = schema.get("anyOf").or(schema.get("oneOf")).and_then(Value::as_array);
        let mut written = match branches {
            Some(branches) if !schema.contains_key("properties") => {
                self.write_any_of(schema, branches, depth)
            }
            // An argument that only an alternative names would otherwise never be offered.
            Some(branches) if is_root => {
                let mut written = self.typed(schema, depth);
                let convert = |branch| Value::Object(self.schema(branch, depth + 1));
                let branches: Vec<Value> = branches.iter().map(convert).collect();
                if is_object(&written) {
                    add_members(&mut written, &branches);
                }
                written
            }
            Some(_) | None => self.typed(schema, depth),
        };
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            make_nullable(&mut written);
        }
        describe(&mut written, schema);
        written
    }

    /// Converts the schema that a reference names, with the description beside the reference.
    fn reference(&mut self, name: &str, beside: &SchemaObject, depth: usize) -> SchemaObject {
        let found = name.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).cloned();
        let known = self.refs.iter().any(|before| before == name);
        let Some(target) = found.filter(|_| !known) else {
            let mut written = type_schema("object");
            describe(&mut written, beside);
            return written;
        };
        self.refs.push(name.to_owned());
        let mut written = self.schema(&target, depth + 1);
        self.refs.pop();
        describe(&mut written, beside);
        written
    }

    /// Merges the schemas of `allOf`, with what they refer to and their own `allOf`, into a schema. Its own
    /// keywords take precedence.
    fn merge_all_of(&mut self, schema: &SchemaObject, depth: usize) -> SchemaObject {
        let root = self.root;
        let mut whole = schema.clone();
        let (reference, parts) = (whole.remove("$ref"), whole.remove("allOf"));
        if depth > MERGE_DEPTH_MAX {
            return whole;
        }
        let name = reference.as_ref().and_then(Value::as_str);
        let target = name.and_then(|name| root.pointer(name.strip_prefix('#')?));
        let parts = parts.as_ref().and_then(Value::as_array).into_iter().flatten();
        for part in target.into_iter().chain(parts).filter_map(Value::as_object) {
            if self.schemas_left == 0 {
                break;
            }
            self.schemas_left -= 1;
            let part = self.merge_all_of(part, depth + 1);
            merge_schema(&mut whole, part);
        }
        whole
    }

    fn write_any_of(
        &mut self,
        schema: &SchemaObject,
        branches: &[Value],
        depth: usize,
    ) -> SchemaObject {
        let (nulls, branches): (Vec<&Value>, Vec<&Value>) =
            branches.iter().partition(|branch| is_null(branch));
        let mut written: Vec<SchemaObject> = Vec::new();
        for branch in branches {
            let mut branch = branch.clone();
            // A type beside the branches applies to each branch. Other keywords there are left out.
            if let (Value::Object(branch), Some(kind)) = (&mut branch, schema.get("type"))
                && !branch.contains_key("$ref")
            {
                branch.entry("type").or_insert_with(|| kind.clone());
            }
            let branch = self.schema(&branch, depth + 1);
            if !written.contains(&branch) {
                written.push(branch);
            }
        }
        let mut one = match (written.len(), join_enums(&written)) {
            (0, _) => type_schema("string"),
            (1, _) => written.remove(0),
            (_, Some(values)) => values,
            // `anyOf` allows no other keyword beside it, so the description goes to the branches.
            (_, None) => {
                for branch in &mut written {
                    if !branch.contains_key("description") {
                        describe(branch, schema);
                    }
                }
                SchemaObject::from_iter([("anyOf".to_owned(), Value::from_iter(written))])
            }
        };
        if !nulls.is_empty() {
            make_nullable(&mut one);
        }
        one
    }

    fn typed(&mut self, schema: &SchemaObject, depth: usize) -> SchemaObject {
        let values = schema.get("enum").and_then(Value::as_array).cloned();
        let values = values.or_else(|| schema.get("const").map(|value| vec![value.clone()]));
        let mut kinds = schema_kinds(schema, values.as_deref());
        let is_nullable = kinds.contains(&"null") || values.iter().flatten().any(Value::is_null);
        kinds.retain(|kind| *kind != "null");
        let mut written = match kinds.as_slice() {
            [] => type_schema("string"),
            [kind] => self.write_kind(kind, schema, values.as_deref(), depth),
            several => {
                let branches = several
                    .iter()
                    .map(|kind| self.write_kind(kind, schema, values.as_deref(), depth + 1));
                let mut branches: Vec<SchemaObject> = branches.collect();
                branches.iter_mut().for_each(|branch| describe(branch, schema));
                SchemaObject::from_iter([("anyOf".to_owned(), Value::from_iter(branches))])
            }
        };
        if is_nullable {
            make_nullable(&mut written);
        }
        written
    }

    fn write_kind(
        &mut self,
        kind: &str,
        schema: &SchemaObject,
        values: Option<&[Value]>,
        depth: usize,
    ) -> SchemaObject {
        let mut written = type_schema(kind);
        for (key, kinds) in NUMERIC_KEYWORDS {
            let value = schema.get(key).filter(|value| value.is_number() && kinds.contains(&kind));
            written.extend(value.map(|value| (key.to_owned(), value.clone())));
        }
        let format = schema.get("format").and_then(Value::as_str);
        let is_known = matches!(
            (kind, format),
            ("string", Some("date-time"))
                | ("number", Some("float" | "double"))
                | ("integer", Some("int32" | "int64"))
        );
        written.extend(format.filter(|_| is_known).map(|name| ("format".to_owned(), name.into())));
        match kind {
            "object" => self.members(schema, &mut written, depth),
            "array" => {
                let items = schema.get("items").or(schema.get("prefixItems"));
                // The schema of the first position of a tuple is used for all items.
                let items = match items {
                    Some(Value::Array(tuple)) => tuple.first(),
                    items => items,
                };
                let items = self.schema(items.unwrap_or(&Value::Null), depth + 1);
                written.insert("items".to_owned(), Value::Object(items));
            }
            "string" => {
                let values = values.into_iter().flatten().filter_map(Value::as_str);
                // The service refuses an empty text.
                let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
                if !values.is_empty() {
                    written.insert("enum".to_owned(), json!(values));
                }
            }
            _ => {
                let values = values.into_iter().flatten().filter(|value| !value.is_null());
                let values: Vec<String> = values.map(Value::to_string).collect();
                if !values.is_empty() {
                    let text = format!("One of: {}.", values.join(", "));
                    written.insert("description".to_owned(), text.into());
                }
            }
        }
        written
    }

    fn members(&mut self, schema: &SchemaObject, written: &mut SchemaObject, depth: usize) {
        let Some(Value::Object(members)) = schema.get("properties") else { return };
        let properties: SchemaObject = members
            .iter()
            .map(|(name, member)| (name.clone(), self.schema(member, depth + 1).into()))
            .collect();
        if properties.is_empty() {
            return;
        }
        let mut required: Vec<&str> = Vec::new();
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().filter(|name| properties.contains_key(*name));
            required.extend(name.filter(|name| !required.contains(name)));
        }
        if !required.is_empty() {
            written.insert("required".to_owned(), json!(required));
        }
        written.insert("properties".to_owned(), Value::Object(properties));
    }
}

/// Adds the members of alternatives to an object. A member of several of them has the schema that it has in the
/// first, with the enum values of all. Alternatives without members are ignored.
fn add_members(object: &mut SchemaObject, branches: &[Value]) {
    let mut properties = match object.remove("properties") {
        Some(Value::Object(known)) => known,
        Some(_) | None => SchemaObject::new(),
    };
    let members = branches.iter().filter_map(|branch| branch.get("properties")?.as_object());
    for (name, member) in members.flatten() {
        let known = properties.entry(name.as_str()).or_insert_with(|| member.clone());
        let values = member.get("enum").and_then(Value::as_array);
        if let (Some(Value::Array(known)), Some(values)) = (known.get_mut("enum"), values) {
            let is_new = |value: &&Value| !known.contains(value);
            let more: Vec<Value> = values.iter().filter(is_new).cloned().collect();
            known.extend(more);
        }
    }
    if !properties.is_empty() {
        object.insert("properties".to_owned(), Value::Object(properties));
    }
}

fn type_schema(kind: &str) -> SchemaObject {
    SchemaObject::from_iter([("type".to_owned(), kind.into())])
}

fn is_object(schema: &SchemaObject) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null")
        || schema.get("const").is_some_and(Value::is_null)
}

/// Returns the types that a schema names, or those that its other keywords imply.
fn schema_kinds(schema: &SchemaObject, values: Option<&[Value]>) -> Vec<&'static str> {
    const KINDS: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];
    let known = |name: &str| KINDS.into_iter().find(|kind| kind.eq_ignore_ascii_case(name));
    let mut kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(name)) => known(name).into_iter().collect(),
        Some(Value::Array(several)) => {
            several.iter().filter_map(Value::as_str).filter_map(known).collect()
        }
        Some(_) | None => Vec::new(),
    };
    if kinds.is_empty() {
        kinds = values.into_iter().flatten().map(kind_of_value).collect();
    }
    if kinds.is_empty() {
        let has = |key| schema.contains_key(key);
        kinds.push(match () {
            () if has("properties") || has("additionalProperties") => "object",
            () if has("items") || has("prefixItems") => "array",
            () if has("minimum") || has("maximum") => "number",
            () => "string",
        });
    }
    let mut distinct: Vec<&str> = Vec::new();
    for kind in kinds {
        if !distinct.contains(&kind) {
            distinct.push(kind);
        }
    }
    distinct
}

fn kind_of_value(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Joins branches that are all enums into one enum.
fn join_enums(branches: &[SchemaObject]) -> Option<SchemaObject> {
    let mut values = Vec::new();
    for branch in branches {
        values.extend(branch.get("enum")?.as_array()?.iter().cloned());
    }
    let mut written = type_schema("string");
    written.insert("enum".to_owned(), Value::Array(values));
    Some(written)
}

/// Allows null. `anyOf` allows no other keyword beside it, so its first branch gets the flag.
fn make_nullable(schema: &mut SchemaObject) {
    let first = schema.get_mut("anyOf").and_then(|branches| branches.get_mut(0));
    match first.and_then(Value::as_object_mut) {
        Some(first) => first.insert("nullable".to_owned(), true.into()),
        None => schema.insert("nullable".to_owned(), true.into()),
    };
}

/// Sets the schema's own description in place of another one, of which only a list of allowed values is kept.
/// `anyOf` gets none.
fn describe(written: &mut SchemaObject, schema: &SchemaObject) {
    let text = schema.get("description").and_then(Value::as_str).filter(|text| !text.is_empty());
    let Some(text) = text.filter(|_| !written.contains_key("anyOf")) else { return };
    let before = written.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = match before.rfind("One of: ").and_then(|start| before.get(start..)) {
        Some(values) if !text.ends_with(values) => format!("{text} {values}"),
        Some(_) | None => text.to_owned(),
    };
    written.insert("description".to_owned(), text.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the converted schema of an argument.
    #[track_caller]
    fn check(schema: Value, expected: Value) {
        let whole = json!({"type": "object", "properties": {"x": schema}, "$defs": {
            "Leaf": {"type": "string", "title": "Leaf", "description": "A leaf."},
            "Tree": {"type": "object", "properties": {
                "of": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
            "Color": {"oneOf": [{"const": "red", "description": "R."}, {"type": "string", "enum": ["blue"]}]},
            "Size": {"type": "integer", "enum": [1, 2], "description": "An enumeration."},
            "Alias": {"$ref": "#/$defs/Both"},
            "Both": {"allOf": [{"$ref": "#/$defs/Named"}, {"properties": {"a": {"type": "string"}}}]},
            "Named": {"properties": {"name": {"type": "string"}}, "required": ["name"]},
            "Cycle": {"allOf": [{"$ref": "#/$defs/Cycle"}, {"$ref": "#/$defs/Named"}]},
        }});
        let written = parameters(&whole).unwrap();
        let expected = json!({"type": "object", "properties": {"x": expected}});
        assert_eq!(written, expected, "{schema}", schema = whole["properties"]["x"]);
    }

    #[test]
    fn unknown_keywords_are_left_out() {
        check(
            json!({"type": "string", "title": "T", "default": "a", "examples": ["a"], "$comment": "c",
                "pattern": "^a", "format": "email", "minLength": 1, "minItems": 2, "deprecated": true}),
            json!({"type": "string", "minLength": 1}),
        );
        check(
            json!({"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255,
                "exclusiveMinimum": 1, "multipleOf": 2}),
            json!({"type": "integer", "minimum": 0, "maximum": 255}),
        );
        check(
            json!({"type": "number", "format": "double"}),
            json!({"type": "number", "format": "double"}),
        );
        check(
            json!({"type": "string", "format": "date-time", "description": "When."}),
            json!({"type": "string", "format": "date-time", "description": "When."}),
        );
        check(
            json!({"type": "object", "additionalProperties": false, "required": ["a", "b", "a"],
                "properties": {"a": {"type": "boolean"}, "title": {"type": "STRING"}}}),
            json!({"type": "object", "required": ["a"],
                "properties": {"a": {"type": "boolean"}, "title": {"type": "string"}}}),
        );
        check(json!({"additionalProperties": {"type": "string"}}), json!({"type": "object"}));
        check(json!({"type": "object", "properties": {}}), json!({"type": "object"}));
    }

    #[test]
    fn null_becomes_the_nullable_flag() {
        check(json!({"type": ["string", "null"]}), json!({"type": "string", "nullable": true}));
        check(json!({"type": "null"}), json!({"type": "string", "nullable": true}));
        check(
            json!({"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}], "description": "D."}),
            json!({"type": "string", "description": "D.", "nullable": true}),
        );
        check(
            json!({"type": ["string", "null"], "enum": ["a", null, ""]}),
            json!({"type": "string", "nullable": true, "enum": ["a"]}),
        );
        check(json!({"enum": [null]}), json!({"type": "string", "nullable": true}));
        check(
            json!({"type": "string", "nullable": true}),
            json!({"type": "string", "nullable": true}),
        );
    }

    #[test]
    fn words_are_text() {
        check(json!({"const": "a"}), json!({"type": "string", "enum": ["a"]}));
        check(json!({"enum": ["a", "b"]}), json!({"type": "string", "enum": ["a", "b"]}));
        check(
            json!({"type": "integer", "enum": [1, 2], "description": "How many."}),
            json!({"type": "integer", "description": "How many. One of: 1, 2."}),
        );
        check(json!({"const": true}), json!({"type": "boolean", "description": "One of: true."}));
        for (text, described) in [("S", "S One of: 1, 2."), ("One of: 1, 2.", "One of: 1, 2.")] {
            check(
                json!({"$ref": "#/$defs/Size", "description": text}),
                json!({"type": "integer", "description": described}),
            );
        }
        check(json!({"$ref": "#/$defs/Color"}), json!({"type": "string", "enum": ["red", "blue"]}));
        check(json!({"type": "string", "enum": []}), json!({"type": "string"}));
    }

    #[test]
    fn branches() {
        let (string, integer) = (json!({"type": "string"}), json!({"type": "integer"}));
        check(json!({"oneOf": [string, integer]}), json!({"anyOf": [string, integer]}));
        check(json!({"type": ["string", "integer"]}), json!({"anyOf": [string, integer]}));
        check(
            json!({"anyOf": [string, {"type": "null"}, integer], "description": "D."}),
            json!({"anyOf": [{"type": "string", "description": "D.", "nullable": true},
                {"type": "integer", "description": "D."}]}),
        );
        check(json!({"anyOf": [string, string]}), string.clone());
        check(json!({"anyOf": []}), string.clone());
        check(
            json!({"type": "object", "properties": {"a": string, "b": string},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"type": "object", "properties": {"a": string, "b": string}}),
        );
        check(
            json!({"allOf": [{"$ref": "#/$defs/Leaf"}, {"minLength": 1}], "description": "D."}),
            json!({"type": "string", "minLength": 1, "description": "D."}),
        );
        check(
            json!({"allOf": [{"properties": {"a": string}, "required": ["a"]},
                {"properties": {"b": integer}, "required": ["b"]}]}),
            json!({"type": "object", "properties": {"a": string, "b": integer}, "required": ["a", "b"]}),
        );
        check(
            json!({"allOf": [{"$ref": "#/$defs/Alias"}]}),
            json!({"type": "object", "properties": {"name": string, "a": string}, "required": ["name"]}),
        );
        check(
            json!({"$ref": "#/$defs/Cycle"}),
            json!({"type": "object", "properties": {"name": string}, "required": ["name"]}),
        );
    }

    #[test]
    fn lists_have_items() {
        let of = |items: Value| json!({"type": "array", "items": items});
        check(json!({"type": "array"}), of(json!({"type": "string"})));
        check(of(json!(true)), of(json!({"type": "string"})));
        check(of(json!([{"type": "integer"}, {"type": "string"}])), of(json!({"type": "integer"})));
        check(json!({"prefixItems": [{"type": "integer"}]}), of(json!({"type": "integer"})));
    }

    #[test]
    fn references_are_followed_and_cycles_end() {
        check(json!({"$ref": "#/$defs/Leaf"}), json!({"type": "string", "description": "A leaf."}));
        check(
            json!({"$ref": "#/$defs/Tree"}),
            json!({"type": "object", "properties": {
                "of": {"type": "array", "items": {"type": "object"}}}}),
        );
        check(
            json!({"$ref": "#/$defs/None", "description": "D."}),
            json!({"type": "object", "description": "D."}),
        );
        check(json!({"$ref": "https://example.com/s.json"}), json!({"type": "object"}));
        // Each names the one below it twice: 2^64 schemas.
        let mut defs = SchemaObject::new();
        for n in 0..64 {
            let below = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"properties": {"a": below, "b": below}}));
        }
        let whole =
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs});
        assert!(parameters(&whole).unwrap().to_string().len() < 1 << 20);
    }

    #[test]
    fn a_function_without_arguments_has_no_parameters() {
        for schema in [
            json!({}),
            json!(true),
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
            json!({"type": "string"}),
        ] {
            assert_eq!(parameters(&schema), None, "{schema}");
        }
        let tagged = json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}]});
        assert_eq!(
            parameters(&tagged),
            Some(json!({"type": "object", "properties": {
                "kind": {"type": "string", "enum": ["a", "b"]}, "n": {"type": "integer"}}}))
        );
    }

    #[test]
    fn alternatives_add_their_members_to_the_arguments() {
        let string = json!({"type": "string"});
        let open = json!({"anyOf": [
            {"type": "object", "properties": {"a": string}}, {"type": "object"}, string]});
        let expected = json!({"type": "object", "properties": {"a": string}});
        assert_eq!(parameters(&open), Some(expected));
        let beside = json!({"type": "object", "properties": {"kind": string}, "required": ["kind"],
        "oneOf": [
            {"properties": {"kind": {"const": "a"}, "a": string}, "required": ["a"]},
            {"properties": {"b": string}},
            {"required": ["kind"]},
        ]});
        let expected = json!({"type": "object", "required": ["kind"],
            "properties": {"kind": string, "a": string, "b": string}});
        assert_eq!(parameters(&beside), Some(expected.clone()));
        let named = json!({"$ref": "#/$defs/Input", "$defs": {"Input": beside}});
        assert_eq!(parameters(&named), Some(expected));
    }
}
