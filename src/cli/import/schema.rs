//! Translates schemas of OpenAPI to JSON Schema 2020-12, with references inlined.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::document::{OpenApiDocument, members};
use callsheet_tools::ParsedSchema;
use callsheet_values::types::{one_line, sanitize_text};

/// Maximum depth of nested schemas. References may be nested twice as deep.
const DEPTH_MAX: usize = 12;

/// Maximum number of schemas of one operation.
const SCHEMAS_MAX: usize = 1000;

/// Maximum length of a description.
const DESCRIPTION_CHARS_MAX: usize = 200;

/// The keywords that are kept, most of them unchanged. Others are translated separately, or left out.
const KEPT_KEYWORDS: &str = "const exclusiveMaximum exclusiveMinimum format maxItems maxLength \
    maxProperties maximum minItems minLength minProperties minimum multipleOf uniqueItems";

/// The keywords whose value is a schema.
const SCHEMA_KEYWORDS: &str = "additionalProperties else if items not propertyNames then";

/// The keyword of a property that only answers have.
const READ_ONLY: &str = "readOnly";

const TYPES: &str = "array boolean integer null number object string";

/// Translates the schemas of one operation.
#[derive(Debug)]
pub(super) struct SchemaReader<'d> {
    document: &'d OpenApiDocument,
    /// The references that are being inlined, the outermost first.
    open_references: Vec<String>,
    schema_count: usize,
    /// Comments about parts that were left out.
    pub(super) notes: BTreeSet<String>,
}

impl<'d> SchemaReader<'d> {
    pub(super) fn new(document: &'d OpenApiDocument) -> Self {
        Self { document, open_references: Vec::new(), schema_count: 0, notes: BTreeSet::new() }
    }

    /// Translates the schema of a value that is sent. Leaves out read-only properties.
    pub(super) fn read(&mut self, schema: &Value) -> Map<String, Value> {
        self.read_at(schema, 0)
    }

    fn read_at(&mut self, schema: &Value, depth: usize) -> Map<String, Value> {
        let mut read = self.read_part(schema, depth);
        read.remove(READ_ONLY);
        remove_read_only(&mut read);
        read
    }

    /// Translates the schema of a property. Returns null for a read-only one: `remove_read_only` then also removes it
    /// from `required`.
    fn read_property(&mut self, schema: &Value, depth: usize) -> Value {
        if schema[READ_ONLY] == true {
            return Value::Null;
        }
        let mut read = self.read_part(schema, depth);
        if read.contains_key(READ_ONLY) {
            return Value::Null;
        }
        remove_read_only(&mut read);
        read.into()
    }

    /// Translates a schema that may be a part of another one. Keeps `readOnly` and the marks of read-only properties,
    /// because they also apply to the other parts.
    fn read_part(&mut self, schema: &Value, depth: usize) -> Map<String, Value> {
        self.schema_count += 1;
        if *schema == Value::Bool(false) {
            return Map::from_iter([("not".to_owned(), json!({}))]);
        }
        if depth.max(self.open_references.len() / 2) > DEPTH_MAX || self.schema_count > SCHEMAS_MAX
        {
            self.notes
                .insert("a part of the schema is too deep or too large, and left open".into());
            return Map::new();
        }
        let mut read = Map::new();
        for (key, value) in members(schema) {
            if let Some(value) = self.translate_keyword(key, value, depth + 1) {
                read.insert(key.clone(), value);
            }
        }
        if let Some(reference) = schema["$ref"].as_str() {
            let target = self.inline_reference(reference, depth);
            let parts = read.entry("allOf").or_insert_with(|| json!([]));
            parts.as_array_mut().into_iter().for_each(|parts| parts.push(target.clone().into()));
        }
        let mut is_read_only = schema[READ_ONLY] == true;
        for part in parts_mut(&mut read, "allOf") {
            is_read_only |= part.remove(READ_ONLY).is_some();
        }
        merge_all_of(&mut read);
        convert_exclusive_limits(&mut read);
        let mut read = allow_null(read, schema["nullable"] == true);
        if is_read_only {
            read.insert(READ_ONLY.to_owned(), true.into());
        }
        read
    }

    /// Translates the value of a keyword. Returns `None` if the keyword is left out.
    fn translate_keyword(&mut self, key: &str, value: &Value, depth: usize) -> Option<Value> {
        match (key, value) {
            ("properties" | "patternProperties", Value::Object(schemas)) => {
                let read = schemas
                    .iter()
                    .map(|(name, schema)| (name.clone(), self.read_property(schema, depth)))
                    // A null keeps the name for `required`, which cannot have a pattern.
                    .filter(|(_, read)| key == "properties" || !read.is_null());
                Some(read.collect::<Map<_, _>>().into())
            }
            ("additionalProperties", Value::Bool(_)) => Some(value.clone()),
            (key, Value::Object(_)) if is_one_of(key, SCHEMA_KEYWORDS) => {
                Some(self.read_at(value, depth).into())
            }
            ("allOf", Value::Array(parts)) => {
                let read = parts.iter().map(|part| self.read_part(part, depth).into());
                Some(read.collect::<Vec<Value>>().into()).filter(|_| !parts.is_empty())
            }
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                let read = schemas.iter().map(|schema| self.read_at(schema, depth).into());
                Some(read.collect::<Vec<Value>>().into()).filter(|_| !schemas.is_empty())
            }
            ("type", Value::String(name)) => is_one_of(name, TYPES).then(|| value.clone()),
            ("type", Value::Array(names)) => {
                let is_type = |name: &Value| name.as_str().is_some_and(|n| is_one_of(n, TYPES));
                (!names.is_empty() && names.iter().all(is_type)).then(|| value.clone())
            }
            ("description", Value::String(text)) => {
                let text = sanitize_text(&one_line(text, DESCRIPTION_CHARS_MAX));
                (!text.is_empty()).then(|| text.into())
            }
            ("required" | "enum", Value::Array(items)) => {
                (!items.is_empty()).then(|| value.clone())
            }
            // Leaves out patterns that the host does not accept. Documents often have such patterns.
            ("pattern", _) => {
                let parsed = ParsedSchema::parse(json!({"pattern": value})).ok()?;
                parsed.unchecked().is_empty().then(|| value.clone())
            }
            ("default", Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                Some(value.clone())
            }
            // These formats give the size of a number in memory.
            ("format", Value::String(name)) if is_one_of(name, "int32 int64 float double") => None,
            (key, value) => is_one_of(key, KEPT_KEYWORDS).then(|| value.clone()),
        }
    }

    /// Translates the schema that a reference names. A schema that contains itself is cut: only its type is kept.
    fn inline_reference(&mut self, reference: &str, depth: usize) -> Map<String, Value> {
        let name = reference.rsplit('/').next().unwrap_or(reference).to_owned();
        let target = match self.document.target(reference) {
            Ok(target) => target,
            Err(problem) => {
                self.notes.insert(format!("a schema {problem}; any value is accepted there"));
                return Map::new();
            }
        };
        if self.open_references.iter().any(|open| open == reference) {
            self.notes.insert(format!("{name} contains itself, and is cut there"));
            let mut cut = Map::new();
            let kind = self.translate_keyword("type", &target["type"], depth);
            cut.extend(kind.map(|kind| ("type".to_owned(), kind)));
            cut.insert("description".into(), format!("Again {name}.").into());
            return cut;
        }
        self.open_references.push(reference.to_owned());
        let read = self.read_part(target, depth);
        self.open_references.pop();
        read
    }
}

fn is_one_of(word: &str, words: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}

/// Moves the keywords of the parts of `allOf` to the schema itself, unless they cannot be merged.
fn merge_all_of(schema: &mut Map<String, Value>) {
    let Some(Value::Array(parts)) = schema.get("allOf") else { return };
    let mut merged = schema.clone();
    merged.remove("allOf");
    if parts.iter().flat_map(members).all(|(key, value)| merge_keyword(&mut merged, key, value)) {
        *schema = merged;
    }
}

/// Adds a keyword to a schema. Returns whether it could be merged with a keyword of the same name.
fn merge_keyword(schema: &mut Map<String, Value>, key: &str, value: &Value) -> bool {
    match (key, schema.get_mut(key), value) {
        (_, None, _) => {
            schema.insert(key.to_owned(), value.clone());
            true
        }
        ("properties", Some(Value::Object(own)), Value::Object(others)) => {
            others.iter().all(|(name, other)| {
                let own = own.entry(name).or_insert(other.clone());
                // A property is read-only if it is so in one part.
                if other.is_null() {
                    *own = Value::Null;
                }
                own.is_null() || own == other
            })
        }
        ("required", Some(Value::Array(own)), Value::Array(others)) => {
            let new: Vec<_> = others.iter().filter(|name| !own.contains(name)).cloned().collect();
            own.extend(new);
            true
        }
        ("description" | "default", Some(_), _) => true,
        (_, Some(own), _) => own == value,
    }
}

/// Translates `exclusiveMinimum: true` and `exclusiveMaximum: true` of OpenAPI 3.0.
fn convert_exclusive_limits(schema: &mut Map<String, Value>) {
    for (limit, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        let Some(Value::Bool(is_exclusive)) = schema.get(exclusive).cloned() else { continue };
        schema.remove(exclusive);
        if let Some(value) = schema.get(limit).cloned().filter(|_| is_exclusive) {
            schema.remove(limit);
            schema.insert(exclusive.to_owned(), value);
        }
    }
}

/// Removes read-only properties, which are marked by null, from a schema and its parts.
fn remove_read_only(schema: &mut Map<String, Value>) {
    let mut names = BTreeSet::new();
    collect_read_only(schema, &mut names);
    if !names.is_empty() {
        remove_properties(schema, &names);
    }
}

/// Collects the names of the properties that are marked by null: also in `anyOf`, to which [`allow_null`] moves
/// them.
fn collect_read_only(schema: &Map<String, Value>, names: &mut BTreeSet<String>) {
    let properties = schema.get("properties").into_iter().flat_map(members);
    names.extend(properties.filter(|(_, mark)| mark.is_null()).map(|(name, _)| name.clone()));
    for key in ["allOf", "anyOf"] {
        let parts = schema.get(key).and_then(Value::as_array).into_iter().flatten();
        parts.filter_map(Value::as_object).for_each(|part| collect_read_only(part, names));
    }
}

fn remove_properties(schema: &mut Map<String, Value>, names: &BTreeSet<String>) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| !names.contains(name));
    }
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| name.as_str().is_none_or(|name| !names.contains(name)));
        if required.is_empty() {
            schema.remove("required");
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        parts_mut(schema, key).for_each(|part| remove_properties(part, names));
    }
}

/// Returns the schemas of a list of schemas.
fn parts_mut<'s>(
    schema: &'s mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'s mut Map<String, Value>> {
    let parts = schema.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten();
    parts.filter_map(Value::as_object_mut)
}

/// Translates `nullable` of OpenAPI 3.0. TOML has no null, so null becomes the type `"null"` instead of a value of
/// `enum` or `const`.
fn allow_null(mut schema: Map<String, Value>, is_nullable: bool) -> Map<String, Value> {
    let mut has_null = is_nullable;
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        has_null |= values.contains(&Value::Null);
        values.retain(|value| !value.is_null());
    }
    if schema.get("const") == Some(&Value::Null) || schema.get("enum") == Some(&json!([])) {
        return Map::from_iter([("type".to_owned(), "null".into())]);
    }
    if !has_null || schema.is_empty() {
        return schema;
    }
    if !schema.contains_key("enum")
        && !schema.contains_key("const")
        && let Some(Value::String(name)) = schema.get("type")
    {
        if name != "null" {
            let types = json!([name, "null"]);
            schema.insert("type".to_owned(), types);
        }
        return schema;
    }
    let description = schema.remove("description");
    let mut either = Map::from_iter([("anyOf".to_owned(), json!([schema, {"type": "null"}]))]);
    either.extend(description.map(|text| ("description".to_owned(), text)));
    either
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Translates a schema of a document with these schemas, and returns it with the notes.
    fn read(schema: &Value, schemas: &Value) -> (Value, Vec<String>) {
        let text = json!({"openapi": "3.1.0", "components": {"schemas": schemas}}).to_string();
        let document = OpenApiDocument::parse(&text).unwrap();
        let mut reader = SchemaReader::new(&document);
        let read = reader.read(schema).into();
        (read, reader.notes.into_iter().collect())
    }

    #[test]
    fn keywords_of_openapi_3_0_are_translated() {
        for (schema, expected) in [
            (json!({"type": "string", "nullable": true}), json!({"type": ["string", "null"]})),
            (json!({"type": "string", "nullable": false}), json!({"type": "string"})),
            (json!({"type": "null", "nullable": true}), json!({"type": "null"})),
            (
                json!({"type": "string", "nullable": true, "enum": ["a", null], "description": " d\n"}),
                json!({"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}], "description": "d"}),
            ),
            (json!({"enum": [null]}), json!({"type": "null"})),
            (json!({"const": null}), json!({"type": "null"})),
            (
                json!({"minimum": 1, "exclusiveMinimum": true, "maximum": 2, "exclusiveMaximum": false}),
                json!({"exclusiveMinimum": 1, "maximum": 2}),
            ),
            (json!({"exclusiveMinimum": 1}), json!({"exclusiveMinimum": 1})),
            (
                json!({"type": "file", "format": "int64", "xml": {}, "x-y": 1, "example": 2, "deprecated": true}),
                json!({}),
            ),
            (json!({"items": {"nullable": true}}), json!({"items": {}})),
            (json!(true), json!({})),
            (json!(false), json!({"not": {}})),
            (json!(7), json!({})),
        ] {
            assert_eq!(read(&schema, &json!({})), (expected, Vec::new()), "{schema}");
        }
    }

    #[test]
    fn parts_of_all_of_are_merged_unless_they_differ() {
        let part = |name: &str| json!({"type": "object", "required": [name], "properties": {name: {"type": "string"}}});
        let merged = json!({
            "type": "object", "required": ["a", "b"],
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        });
        assert_eq!(read(&json!({"allOf": [part("a"), part("b")]}), &json!({})).0, merged);
        let differ = json!({"allOf": [{"minimum": 1}, {"minimum": 2}]});
        assert_eq!(read(&differ, &json!({})).0, differ);
        let schema =
            json!({"$ref": "#/components/schemas/A", "description": "Own.", "nullable": true});
        let schemas = json!({"A": {"type": "string", "description": "Other."}});
        let expected = json!({"type": ["string", "null"], "description": "Own."});
        assert_eq!(read(&schema, &schemas).0, expected);
    }

    #[test]
    fn properties_that_only_answers_have_are_left_out() {
        let schema = json!({
            "required": ["id"], "properties": {"id": {"readOnly": true}, "a": {"writeOnly": true}},
        });
        assert_eq!(read(&schema, &json!({})).0, json!({"properties": {"a": {}}}));
    }

    #[test]
    fn properties_that_a_part_of_all_of_makes_read_only_are_left_out() {
        let text = json!({"type": "string"});
        let schemas = json!({
            "Id": {"type": "string", "readOnly": true},
            "Base": {"required": ["id"], "properties": {"id": {"readOnly": true}}},
        });
        let base = json!({"$ref": "#/components/schemas/Base"});
        let own = json!({"required": ["id", "a"], "properties": {"id": text, "a": text}});
        let rest = json!({"required": ["a"], "properties": {"a": text}});
        for parts in [json!([base, own]), json!([own, base])] {
            assert_eq!(read(&json!({"allOf": parts}), &schemas).0, rest);
        }
        // The parts of this one cannot be merged.
        let differ = json!({"allOf": [base, own, {"minimum": 1}, {"minimum": 2}]});
        let parts = json!([{"properties": {}}, rest, {"minimum": 1}, {"minimum": 2}]);
        assert_eq!(read(&differ, &schemas).0, json!({"allOf": parts}));
        for property in [
            json!({"$ref": "#/components/schemas/Id"}),
            json!({"allOf": [{"$ref": "#/components/schemas/Id"}], "description": "d"}),
            json!({"allOf": [text, {"readOnly": true}]}),
            json!({"allOf": [text, {"readOnly": true}], "nullable": true, "enum": ["b"]}),
        ] {
            let schema = json!({"required": ["id"], "properties": {"id": property, "a": text}});
            assert_eq!(read(&schema, &schemas).0, json!({"properties": {"a": text}}), "{property}");
        }
        let one_of = json!([{"required": ["id"]}, {"required": ["a"]}]);
        let schema = json!({"allOf": [base, {"properties": {"a": text}, "oneOf": one_of}]});
        let expected = json!({"properties": {"a": text}, "oneOf": [{}, {"required": ["a"]}]});
        assert_eq!(read(&schema, &schemas).0, expected);
        let patterns = json!({"patternProperties": {"^x": {"readOnly": true}, "^y": text}});
        assert_eq!(read(&patterns, &schemas).0, json!({"patternProperties": {"^y": text}}));
        // A schema that is not a property is needed as a whole.
        assert_eq!(read(&schemas["Id"], &schemas).0, text);
        let nullable = json!({"nullable": true, "allOf": [base, {"properties": {"a": text}}]});
        let expected = json!({"anyOf": [{"properties": {"a": text}}, {"type": "null"}]});
        assert_eq!(read(&nullable, &schemas).0, expected);
    }

    #[test]
    fn references_are_followed_and_never_fetched() {
        let schemas = json!({
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}},
            "a/b": {"type": "integer"}, "Loop": {"$ref": "#/components/schemas/Loop"},
        });
        let reference = |to: &str| json!({"$ref": to});
        let (node, notes) = read(&reference("#/components/schemas/Node"), &schemas);
        let cut = json!({"type": "object", "description": "Again Node."});
        assert_eq!(node, json!({"type": "object", "properties": {"next": cut}}));
        assert_eq!(notes, ["Node contains itself, and is cut there"]);
        let escaped = reference("#/components/schemas/a~1%62");
        assert_eq!(read(&escaped, &schemas), (json!({"type": "integer"}), Vec::new()));
        for (to, note) in [
            (
                "other.yaml#/A",
                "a schema refers to \"other.yaml#/A\", and other documents are not read; any value is accepted there",
            ),
            (
                "#/none",
                "a schema refers to \"#/none\", which the document does not have; any value is accepted there",
            ),
        ] {
            assert_eq!(read(&reference(to), &schemas), (json!({}), vec![note.to_owned()]));
        }
        assert_eq!(read(&reference("#/components/schemas/Loop"), &schemas).1.len(), 1);
    }

    #[test]
    fn depth_and_size_are_limited() {
        let mut deep = json!({"type": "string"});
        for _ in 0..40 {
            deep = json!({"type": "array", "items": deep});
        }
        let (read_deep, notes) = read(&deep, &json!({}));
        assert_eq!(read_deep.to_string().matches("array").count(), DEPTH_MAX + 1);
        assert_eq!(notes, ["a part of the schema is too deep or too large, and left open"]);
        // A long chain of references.
        let link = |at: usize| {
            (format!("S{at}"), json!({"$ref": format!("#/components/schemas/S{}", at + 1)}))
        };
        let chain: Map<String, Value> = (0..5000).map(link).collect();
        let (read_chain, notes) = read(&json!({"$ref": "#/components/schemas/S0"}), &chain.into());
        assert_eq!((read_chain, notes.len()), (json!({}), 1));
    }
}
