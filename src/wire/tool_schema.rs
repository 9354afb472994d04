//! The schemas and descriptions of tools in the form that services accept.
//!
//! A service refuses a whole request for one schema that it does not understand. So a schema is widened on the way
//! out: what is no valid JSON Schema 2020-12, or what a service is known to refuse, is left out or expressed by
//! something that accepts at least as much. The host checks the arguments of a call against the original schema.
//! Gemini has a form of its own (`gemini/schema.rs`). Names are mapped by `tool_aliases`.
//!
//! | what a tool has | refused by | sent |
//! | --- | --- | --- |
//! | keywords whose values have a wrong type, `required: true` in a property, unknown types, empty `enum` | Anthropic ("must match JSON Schema draft 2020-12"), OpenAI, Ollama (cannot unmarshal) | without the keyword |
//! | `exclusiveMinimum: true` (draft 4) | Anthropic, OpenAI | the number of `minimum` |
//! | a list in `items` (a tuple, before 2020-12) | Anthropic, OpenAI | one schema for all items |
//! | references to other documents, or to nothing | all | without the reference |
//! | an array without `items` | OpenAI ("array schema missing items") | `items: {}` |
//! | `pattern` with `\p{L}` and others | OpenAI, Anthropic ("is not a regex") | without the pattern |
//! | `pattern` with `\d`, without anchors; large `maxLength`, `maxItems` | llama.cpp ("failed to parse grammar") | an equal pattern, or none |
//! | `patternProperties` | Anthropic | without it |
//! | a description above 1,024 characters | OpenAI, Azure ("string above max length") | its beginning |

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::answer_schema::for_each_schema;
use super::portable_pattern::{is_common_pattern, portable_pattern};
use super::request::object_schema;
use callsheet_values::types::excerpt;

/// The greatest `minLength` and `maxLength` for llama.cpp. Its grammars repeat at most 2,000 times, and the
/// repetitions of nested schemas multiply.
const LENGTH_MAX: u64 = 128;

/// The greatest `minItems` and `maxItems` for llama.cpp: each of the items may be large.
const ITEMS_MAX: u64 = 16;

/// Keywords that repeat a part of a grammar, with their greatest value for llama.cpp, and how they are described where
/// they are not sent.
const REPETITIONS: [(&str, u64, &str, &str); 4] = [
    ("minLength", LENGTH_MAX, "at least", "characters"),
    ("maxLength", LENGTH_MAX, "at most", "characters"),
    ("minItems", ITEMS_MAX, "at least", "items"),
    ("maxItems", ITEMS_MAX, "at most", "items"),
];

/// Maximum length of a pattern that is described where it cannot be sent, in characters.
const PATTERN_CHARS: usize = 120;

/// The types of JSON Schema.
const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];

/// The form of a tool definition that the services of a wire accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolForm {
    /// An array must have `items`, and no schema may be a boolean.
    pub(super) needs_items: bool,
    /// A grammar may be compiled from the schema, so patterns are simple and repetitions few.
    pub(super) is_grammar: bool,
    /// `patternProperties` is refused.
    pub(super) drops_pattern_properties: bool,
    /// The maximum length of a description in characters.
    pub(super) description_chars_max: Option<usize>,
}

impl ToolForm {
    /// The form of OpenAI's services, and of servers such as llama.cpp that have the same API.
    pub(super) const OPENAI: Self = Self {
        needs_items: true,
        is_grammar: true,
        drops_pattern_properties: false,
        description_chars_max: Some(1024),
    };
    /// The form of Anthropic's services.
    pub(super) const ANTHROPIC: Self = Self {
        needs_items: false,
        is_grammar: false,
        drops_pattern_properties: true,
        description_chars_max: None,
    };
    /// The form of Ollama, which reads schemas into typed structures.
    pub(super) const OLLAMA: Self = Self {
        needs_items: true,
        is_grammar: false,
        drops_pattern_properties: false,
        description_chars_max: None,
    };

    /// Returns the schema of a tool's arguments in this form.
    pub(super) fn schema(self, schema: &Value) -> Value {
        let mut whole = object_schema(schema).into_owned();
        for_each_schema(&mut whole, &mut |schema| self.widen(schema));
        if self.needs_items {
            for_each_schema(&mut whole, &mut replace_booleans);
        }
        remove_dangling_references(&mut whole);
        whole
    }

    /// Returns the description of a tool in this form.
    pub(super) fn description(self, description: &str) -> Cow<'_, str> {
        match self.description_chars_max {
            Some(chars_max) if description.chars().nth(chars_max).is_some() => {
                // The mark of the cut is one character more.
                Cow::Owned(excerpt(description, chars_max.saturating_sub(1)))
            }
            Some(_) | None => Cow::Borrowed(description),
        }
    }

    /// Widens one schema, apart from those in it.
    fn widen(self, schema: &mut Map<String, Value>) {
        convert_exclusive_bounds(schema);
        keep_known_types(schema);
        schema.retain(|keyword, value| has_valid_value(keyword, value));
        if let Some(Value::Array(names)) = schema.get_mut("required") {
            let mut known = BTreeSet::new();
            names.retain(|name| name.as_str().is_some_and(|name| known.insert(name.to_owned())));
        }
        join_tuple(schema);
        // Only drafts before 2020-12 have it, beside a list in `items`.
        schema.remove("additionalItems");
        if self.needs_items && allows_array(schema) {
            schema.entry("items").or_insert_with(|| json!({}));
        }
        self.widen_patterns(schema);
        if self.is_grammar {
            for (keyword, limit, relation, of) in REPETITIONS {
                let count = schema.get(keyword).and_then(Value::as_u64);
                if let Some(count) = count.filter(|count| *count > limit) {
                    schema.remove(keyword);
                    describe(schema, &format!("({relation} {count} {of})"));
                }
            }
        }
    }

    fn widen_patterns(self, schema: &mut Map<String, Value>) {
        if let Some(Value::String(pattern)) = schema.get("pattern") {
            let pattern = pattern.clone();
            let sent = match self.is_grammar {
                true => portable_pattern(&pattern),
                false => is_common_pattern(&pattern).then(|| pattern.clone()),
            };
            match sent {
                Some(sent) => schema.insert("pattern".to_owned(), sent.into()),
                None => schema.remove("pattern"),
            };
            // The model sees the pattern all the same.
            if !schema.contains_key("pattern") && pattern.chars().count() <= PATTERN_CHARS {
                describe(schema, &format!("(matches {pattern})"));
            }
        }
        if self.drops_pattern_properties {
            schema.remove("patternProperties");
        } else if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
            patterns.retain(|pattern, _| is_common_pattern(pattern));
        }
    }
}

/// Appends to the description of a schema what its keywords do not say any more.
fn describe(schema: &mut Map<String, Value>, text: &str) {
    let before = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = format!("{before} {text}");
    schema.insert("description".to_owned(), text.trim_start().into());
}

/// Makes a number of `exclusiveMinimum: true`, as draft 4 has it: of `minimum`.
fn convert_exclusive_bounds(schema: &mut Map<String, Value>) {
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        let is_exclusive = schema.get(exclusive).and_then(Value::as_bool);
        if is_exclusive.is_some() {
            schema.remove(exclusive);
        }
        if is_exclusive == Some(true)
            && let Some(value) = schema.remove(bound)
        {
            schema.insert(exclusive.to_owned(), value);
        }
    }
}

/// Leaves out types that JSON Schema does not have.
fn keep_known_types(schema: &mut Map<String, Value>) {
    let known = |value: &Value| {
        let name = value.as_str()?.to_ascii_lowercase();
        TYPES.into_iter().find(|known| *known == name)
    };
    let kinds: Vec<&str> = match schema.get("type") {
        None => return,
        Some(Value::String(name)) if TYPES.contains(&name.as_str()) => return,
        Some(Value::Array(names)) => {
            let mut distinct = Vec::new();
            for kind in names.iter().filter_map(known) {
                if !distinct.contains(&kind) {
                    distinct.push(kind);
                }
            }
            // A type that is left out may be what a value has.
            if names.iter().any(|name| known(name).is_none()) { Vec::new() } else { distinct }
        }
        Some(other) => known(other).into_iter().collect(),
    };
    match kinds.as_slice() {
        [] => schema.remove("type"),
        [kind] => schema.insert("type".to_owned(), (*kind).into()),
        several => schema.insert("type".to_owned(), json!(several)),
    };
}

/// Returns whether the value of a keyword has the type that JSON Schema 2020-12 asks for
/// (<https://json-schema.org/draft/2020-12/meta/validation>).
fn has_valid_value(keyword: &str, value: &Value) -> bool {
    let is_schema = |value: &Value| value.is_object() || value.is_boolean();
    match keyword {
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => value.as_u64().is_some(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
        "multipleOf" => value.as_f64().is_some_and(|number| number > 0.0),
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
        "description" | "title" | "pattern" | "format" | "$ref" | "$comment" | "$schema" => {
            value.is_string()
        }
        "required" => value.is_array(),
        "enum" | "examples" => value.as_array().is_some_and(|values| !values.is_empty()),
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
            value.is_object()
        }
        "anyOf" | "oneOf" | "allOf" | "prefixItems" => value
            .as_array()
            .is_some_and(|schemas| !schemas.is_empty() && schemas.iter().all(is_schema)),
        "items" => is_schema(value) || value.is_array(),
        "additionalProperties"
        | "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "propertyNames"
        | "unevaluatedProperties"
        | "unevaluatedItems" => is_schema(value),
        _ => true,
    }
}

/// Replaces a list in `items`, which describes the items of a tuple, by one schema for all items.
fn join_tuple(schema: &mut Map<String, Value>) {
    let Some(Value::Array(items)) = schema.get_mut("items") else { return };
    let mut distinct: Vec<Value> = Vec::new();
    for item in std::mem::take(items) {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    let are_objects = distinct.iter().all(Value::is_object);
    let one = match distinct.len() {
        1 if are_objects => distinct.pop().unwrap_or_default(),
        2.. if are_objects => json!({"anyOf": distinct}),
        _ => json!({}),
    };
    schema.insert("items".to_owned(), one);
}

fn allows_array(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
        Some(kind) => kind == "array",
        None => false,
    }
}

/// Replaces schemas that are booleans, which some services cannot read, by one that accepts everything.
fn replace_booleans(schema: &mut Map<String, Value>) {
    let replace = |value: &mut Value| {
        if !value.is_object() {
            *value = json!({});
        }
    };
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                named.values_mut().for_each(replace);
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(replace);
            }
            ("items", value) => replace(value),
            _ => {}
        }
    }
}

/// Leaves out references that lead nowhere, for example because what they name was widened.
fn remove_dangling_references(whole: &mut Value) {
    let mut dangling = BTreeSet::new();
    let root = &*whole;
    let mut pending = vec![root];
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    let found = target.strip_prefix('#').and_then(|path| root.pointer(path));
                    if !found.is_some_and(Value::is_object) {
                        dangling.insert(target.clone());
                    }
                }
                pending.extend(members.values());
            }
            Value::Array(items) => pending.extend(items),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    if dangling.is_empty() {
        return;
    }
    for_each_schema(whole, &mut |schema| {
        let target = schema.get("$ref").and_then(Value::as_str);
        if target.is_some_and(|target| dangling.contains(target)) {
            schema.remove("$ref");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(form: ToolForm, property: Value, expected: Value) {
        let schema = json!({"type": "object", "properties": {"p": property}});
        assert_eq!(form.schema(&schema)["properties"]["p"], expected, "{schema}");
    }

    #[test]
    fn arrays_get_items_and_tuples_become_lists() {
        let (openai, anthropic) = (ToolForm::OPENAI, ToolForm::ANTHROPIC);
        check(openai, json!({"type": "array"}), json!({"type": "array", "items": {}}));
        check(anthropic, json!({"type": "array"}), json!({"type": "array"}));
        check(
            openai,
            json!({"type": ["string", "array"]}),
            json!({"type": ["string", "array"], "items": {}}),
        );
        check(
            openai,
            json!({"type": "array", "items": {"type": "array"}}),
            json!({"type": "array", "items": {"type": "array", "items": {}}}),
        );
        check(
            openai,
            json!({"type": "array", "items": true}),
            json!({"type": "array", "items": {}}),
        );
        for form in [openai, anthropic, ToolForm::OLLAMA] {
            let number = json!({"type": "number"});
            check(
                form,
                json!({"type": "array", "items": [number, number]}),
                json!({"type": "array", "items": number}),
            );
            check(
                form,
                json!({"type": "array", "items": [number, {"type": "string"}],
                    "additionalItems": {"$ref": "#/properties/p/items/0"}}),
                json!({"type": "array", "items": {"anyOf": [number, {"type": "string"}]}}),
            );
        }
    }

    #[test]
    fn keywords_of_other_drafts_and_invalid_ones_are_left_out() {
        for form in [ToolForm::OPENAI, ToolForm::ANTHROPIC, ToolForm::OLLAMA] {
            check(
                form,
                json!({"type": "number", "minimum": 0, "exclusiveMinimum": true, "required": true}),
                json!({"type": "number", "exclusiveMinimum": 0}),
            );
            check(
                form,
                json!({"type": "number", "maximum": 9, "exclusiveMaximum": false}),
                json!({"type": "number", "maximum": 9}),
            );
            check(form, json!({"type": "STRING", "enum": []}), json!({"type": "string"}));
            check(form, json!({"type": "file", "title": "t"}), json!({"title": "t"}));
            check(form, json!({"type": ["string", "any"]}), json!({}));
            check(form, json!({"minLength": "1", "anyOf": [], "items": null}), json!({}));
            check(
                form,
                json!({"type": "object", "required": ["a", 1, "a"]}),
                json!({"type": "object", "required": ["a"]}),
            );
            check(form, json!({"$ref": "other.json", "title": "t"}), json!({"title": "t"}));
            check(form, json!({"$ref": "#/$defs/none"}), json!({}));
        }
        let recursive = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert_eq!(ToolForm::OPENAI.schema(&recursive), recursive);
        let named = json!({"type": "object", "properties": {"required": {"type": "boolean"}}});
        assert_eq!(ToolForm::OPENAI.schema(&named), named, "names of properties are no keywords");
    }

    #[test]
    fn patterns_are_those_that_engines_compile() {
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        let described = |pattern: &str| json!({"type": "string", "description": format!("(matches {pattern})")});
        for pattern in [r"^\p{L}+$", r"^(?<year>[0-9]+)$"] {
            for form in [ToolForm::OPENAI, ToolForm::ANTHROPIC] {
                check(form, text(pattern), described(pattern));
            }
        }
        check(ToolForm::OPENAI, text(r"^\d{4}$"), text("^[0-9]{4}$"));
        check(ToolForm::OPENAI, text(r"\d"), described(r"\d"));
        check(ToolForm::ANTHROPIC, text(r"\d"), text(r"\d"));
        check(
            ToolForm::OPENAI,
            json!({"type": "string", "description": "Text.", "minLength": 1, "maxLength": 65_535}),
            json!({"type": "string", "minLength": 1, "description": "Text. (at most 65535 characters)"}),
        );
        let open = json!({"type": "object", "patternProperties": {"^(.*)$": {}}});
        check(ToolForm::ANTHROPIC, open, json!({"type": "object"}));
    }

    #[test]
    fn a_long_description_is_cut() {
        let long = "é".repeat(1025);
        assert_eq!(ToolForm::OPENAI.description(&long).chars().count(), 1024);
        assert_eq!(ToolForm::ANTHROPIC.description(&long), long);
        assert_eq!(ToolForm::OPENAI.description(&long[..2048]), long[..2048]);
    }
}
