//! JSON schemas of tool arguments, compiled once.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use jsonschema::PatternOptions;
use schemars::JsonSchema;
use serde_json::Value;

use super::schema_limits::CheckLimits;
use crate::types::InvalidValue;

/// Maximum memory of a compiled regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The violation of a value of which the errors are not listed.
const NOT_LOCATED: &str =
    "the value does not match the schema; it has too many parts or alternatives to say where";

/// A JSON schema with its compiled validator. Equality compares the schemas only.
#[derive(Clone)]
pub struct InputSchema {
    schema: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
    /// The limits of checks, if the schema refers to itself or has alternatives.
    limits: Option<Arc<CheckLimits>>,
    /// The reason why the schema of a type is invalid. A tool with it cannot be registered.
    problem: Option<Arc<str>>,
}

impl InputSchema {
    /// Returns the schema of a type, as `schemars` derives it. The schema of `()` is that of an object
    /// without properties. If the schema is invalid, for example because of a pattern in it, a tool with it
    /// cannot be registered.
    #[must_use]
    pub fn of<Input: JsonSchema>() -> Self {
        let mut value = schemars::schema_for!(Input).to_value();
        if let Some(object) = value.as_object_mut() {
            object.remove("$schema");
            object.remove("title");
            // Providers require `"type": "object"` and `properties`, even for a unit type.
            if object.get("type") == Some(&Value::String("null".into())) {
                object.remove("type");
            }
            object.entry("type").or_insert_with(|| "object".into());
            if object.get("type") == Some(&Value::String("object".into())) {
                object.entry("properties").or_insert_with(|| serde_json::json!({}));
            }
        }
        Self::of_value(value)
    }

    /// Returns a schema of which a problem is reported at the registration of its tool.
    pub(super) fn of_value(value: Value) -> Self {
        let parsed = match value.is_object() {
            true => Self::parse(value.clone()).map_err(|error| error.to_string()),
            false => Err("not a JSON object".to_owned()),
        };
        parsed.unwrap_or_else(|problem| Self {
            schema: Arc::new(value),
            validator: Arc::new(accept_everything()),
            limits: None,
            problem: Some(problem.into()),
        })
    }

    /// Compiles a schema.
    ///
    /// ```
    /// use callsheet::tool::{InputSchema, ToolSpec};
    /// use serde_json::json;
    ///
    /// let schema = json!({ "type": "object", "properties": { "q": { "type": "string" } }, "required": ["q"] });
    /// let spec = ToolSpec::with_schema("search", "Searches.", InputSchema::parse(schema)?);
    /// assert!(spec.input.first_violation(&json!({ "q": 1 })).is_some());
    /// # Ok::<(), callsheet::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    /// If it is not a valid JSON schema, refers to another document, or is too large: it may have at most 100,000
    /// values, with each reference replaced by what it refers to. References that lead back to the same value must not
    /// multiply.
    pub fn parse(schema: Value) -> Result<Self, InvalidValue> {
        let limits = CheckLimits::of(&schema)?.map(Arc::new);
        let invalid = |error| InvalidValue::new(format!("not a valid JSON schema: {error}"));
        let patterns = PatternOptions::fancy_regex()
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX);
        let options = jsonschema::options().with_pattern_options(patterns);
        let validator = Arc::new(options.build(&schema).map_err(invalid)?);
        Ok(Self { schema: Arc::new(schema), validator, limits, problem: None })
    }

    /// Returns the schema as JSON.
    #[must_use]
    pub fn as_value(&self) -> &Value {
        &self.schema
    }

    /// Returns the schema as JSON, shared.
    pub(crate) fn shared(&self) -> Arc<Value> {
        Arc::clone(&self.schema)
    }

    /// Returns false if the schema demands another type than an object. Arguments are objects.
    pub(super) fn allows_object(&self) -> bool {
        let named = self.schema.get("type").and_then(Value::as_str);
        named.is_none_or(|name| name == "object")
    }

    /// Describes the first violation of the schema in `arguments`, in one sentence. Returns `None` if
    /// the arguments are valid. Arguments of a schema that refers to itself are invalid if they have too many levels.
    #[must_use]
    pub fn first_violation(&self, arguments: &Value) -> Option<String> {
        let limits = self.limits.as_deref();
        if let Some(limits) = limits
            && limits.has_too_many_levels(arguments)
        {
            let levels_max = limits.levels_max;
            return Some(format!(
                "the value has more than {levels_max} levels, the maximum for this schema"
            ));
        }
        // `is_valid` is much faster than `validate`, and most arguments are valid. It remembers the parts that it has
        // checked. `iter_errors` would collect all errors before it returns the first one.
        if self.validator.is_valid(arguments) {
            return None;
        }
        // `validate` collects the errors of all alternatives of `anyOf` and `oneOf`, and remembers nothing.
        let is_described = limits.is_none_or(|limits| limits.can_list_errors(arguments));
        let error = is_described.then(|| self.validator.validate(arguments).err()).flatten();
        let Some(error) = error else { return Some(NOT_LOCATED.to_owned()) };
        let path = error.instance_path().to_string();
        Some(if path.is_empty() { error.to_string() } else { format!("{path}: {error}") })
    }
}

impl InputSchema {
    /// Returns the reason why the schema is invalid.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

fn accept_everything() -> jsonschema::Validator {
    #[expect(clippy::expect_used, reason = "the schema `true` is valid by definition")]
    jsonschema::validator_for(&Value::Bool(true)).expect("`true` is a schema")
}

impl PartialEq for InputSchema {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.schema, &other.schema) || self.schema == other.schema
    }
}

impl Eq for InputSchema {}

impl Hash for InputSchema {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.schema.hash(state);
    }
}

impl fmt::Debug for InputSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.schema.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Returns a schema of definitions, each of which refers twice to the one before.
    fn bomb(first: Value, definition: impl Fn(usize) -> Value) -> Value {
        let definitions = (1..=26).map(|nth| (format!("d{nth}"), definition(nth)));
        let mut definitions: Map<String, Value> = definitions.collect();
        definitions.insert("d0".to_owned(), first);
        json!({"type": "object", "$defs": definitions})
    }

    #[test]
    fn a_schema_that_is_too_large_with_its_references_replaced_is_refused() {
        let by_pointer = |nth: usize| {
            let before = json!({"$ref": format!("#/$defs/d{}", nth - 1)});
            json!({"allOf": [before, before]})
        };
        let by_anchor = |nth: usize| {
            let before = json!({"$ref": format!("#d{}", nth - 1)});
            json!({"$anchor": format!("d{nth}"), "anyOf": [before, before]})
        };
        let by_id = |nth: usize| {
            let before = format!("d{}", nth - 1);
            let other = json!({"$ref": format!("http://a/{before}")});
            json!({"$id": format!("http://a/d{nth}"), "items": {"$ref": before}, "not": other})
        };
        let link = |nth: usize| {
            let before = format!("#/$defs/d{}", nth - 1);
            (format!("d{nth}"), json!({"$ref": before}))
        };
        let mut links: Map<String, Value> = (1..=3_000).map(link).collect();
        links.insert("d0".to_owned(), json!({}));
        let chain = json!({"$defs": links});
        for schema in [
            bomb(json!({"type": "integer"}), by_pointer),
            bomb(json!({"$anchor": "d0"}), by_anchor),
            bomb(json!({"$id": "http://a/d0"}), by_id),
            chain,
        ] {
            let error = InputSchema::parse(schema.clone()).unwrap_err().to_string();
            assert!(error.contains("100000 values or 1000 levels"), "{error}");
            assert!(InputSchema::of_value(schema).problem().is_some());
        }
    }

    #[test]
    fn documents_that_refer_to_each_other_in_many_ways_are_refused() {
        let document = |nth: usize| {
            let other =
                |other: usize| (format!("p{other}"), json!({"$ref": format!("http://a/d{other}")}));
            let others: Map<String, Value> = (0..10).filter(|o| *o != nth).map(other).collect();
            let id = format!("http://a/d{nth}");
            (format!("d{nth}"), json!({"$id": id, "properties": others}))
        };
        let documents: Map<String, Value> = (0..10).map(document).collect();
        let schema = json!({"$defs": documents, "$ref": "http://a/d0"});
        let error = InputSchema::parse(schema).unwrap_err().to_string();
        assert!(error.contains("its documents ($id) refer to each other"), "{error}");
    }

    #[test]
    fn schemas_that_the_library_checks_twice_at_each_level_are_refused() {
        let nested = |levels: usize| {
            let inner = json!({"properties": {"a": true}});
            (0..levels)
                .fold(inner, |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}))
        };
        let few = InputSchema::parse(nested(3)).unwrap();
        assert_eq!(few.first_violation(&json!({"a": 1})), None);
        assert!(few.first_violation(&json!({"b": 1})).is_some());
        let error = InputSchema::parse(nested(24)).unwrap_err().to_string();
        assert!(error.contains("is too large"), "{error}");
    }

    #[test]
    fn the_deepest_schemas_leave_room_on_the_stack() {
        let nested = |levels: usize, keyword: &str| {
            (0..levels).fold(json!({"type": "string"}), |inner, _| json!({keyword: inner}))
        };
        let deep = InputSchema::parse(nested(980, "not")).unwrap();
        assert_eq!(deep.first_violation(&json!("a")), None);
        assert!(deep.first_violation(&json!(7)).is_some());
        let mut deep = nested(180, "if");
        deep["unevaluatedProperties"] = json!(false);
        let deep = InputSchema::parse(deep).unwrap();
        assert_eq!(deep.first_violation(&json!({})), None);
        assert!(deep.first_violation(&json!({"a": 1})).is_some());
        assert!(InputSchema::parse(nested(1_000, "not")).is_err());
    }

    #[test]
    fn the_errors_of_many_alternatives_and_values_are_not_listed() {
        let alternatives = vec![json!({"type": "string"}); 1_000];
        let schema = json!({"anyOf": [{"items": {"anyOf": alternatives}}]});
        let schema = InputSchema::parse(schema).unwrap();
        let violation = schema.first_violation(&json!(vec![7; 10_000]));
        assert_eq!(violation.as_deref(), Some(NOT_LOCATED));
        let violation = schema.first_violation(&json!([7])).unwrap();
        assert!(violation.contains("is not valid under any"), "{violation}");
    }

    #[test]
    fn regular_expressions_that_need_much_memory_are_refused() {
        let text = |pattern: String| json!({"type": "string", "pattern": pattern});
        assert!(InputSchema::parse(text(r"^[\w.-]{1,64}$".to_owned())).is_ok());
        assert!(InputSchema::parse(text(r"\p{L}{400}7".to_owned())).is_err());
        let member = |nth: usize| (format!("m{nth}"), text(format!("a{nth}")));
        let members: Map<String, Value> = (0..201).map(member).collect();
        let error = InputSchema::parse(json!({"properties": members})).unwrap_err().to_string();
        assert!(error.contains("more than 200 regular expressions"), "{error}");
    }

    #[test]
    fn recursive_schemas_and_long_ones_are_accepted() {
        let child = json!({"$ref": "#/$defs/n"});
        let node = json!({"properties": {"left": child, "right": child, "up": {"$ref": "#"}}});
        let tree = InputSchema::parse(json!({"$defs": {"n": node}, "$ref": "#/$defs/n"})).unwrap();
        assert_eq!(tree.first_violation(&json!({"left": {"right": {}}})), None);
        let reference = json!({"$ref": "#/$defs/text"});
        let members = (0..5_000).map(|nth| (format!("m{nth}"), reference.clone()));
        let members: Map<String, Value> = members.collect();
        let long = json!({"properties": members, "$defs": {"text": {"type": "string"}}});
        let long = InputSchema::parse(long).unwrap();
        let violation = long.first_violation(&json!({"m1": "a", "m7": 7, "m8": 8}));
        assert_eq!(violation.as_deref(), Some("/m7: 7 is not of type \"string\""));
    }

    /// Returns a schema whose definition `n` refers to itself.
    fn recursive(node: &Value) -> InputSchema {
        InputSchema::parse(json!({"$defs": {"n": node}, "$ref": "#/$defs/n"})).unwrap()
    }

    /// Returns a value of this number of objects within each other, with `inner` in the last one.
    fn nested(name: &str, levels: usize, inner: Value) -> Value {
        (0..levels).fold(inner, |inner, _| json!({name: inner}))
    }

    #[test]
    fn the_errors_of_alternatives_that_multiply_are_not_listed() {
        let child = json!({"$ref": "#/$defs/n"});
        for keyword in ["anyOf", "oneOf"] {
            let node = json!({"type": "object", "properties": {"a": {keyword: [child, child]}}});
            let schema = recursive(&node);
            assert_eq!(schema.first_violation(&json!({})), None);
            let violation = schema.first_violation(&nested("a", 2, json!(7))).unwrap();
            assert!(violation.starts_with("/a: {\"a\":7} is not valid under any"), "{violation}");
            let violation = schema.first_violation(&nested("a", 60, json!(7)));
            assert_eq!(violation.as_deref(), Some(NOT_LOCATED));
        }
        let schema = recursive(&json!({"properties": {"a": {"anyOf": [child, child]}}}));
        assert_eq!(schema.first_violation(&nested("a", 60, json!(7))), None);
        let dynamic = json!({"$dynamicRef": "#t"});
        let schema = InputSchema::parse(json!({
            "$id": "http://a/root",
            "$dynamicAnchor": "t",
            "$ref": "inner",
            "$defs": {"inner": {
                "$id": "inner",
                "type": "object",
                "properties": {"a": {"anyOf": [dynamic, dynamic]}},
                "$defs": {"any": {"$dynamicAnchor": "t"}},
            }},
        }));
        let violation = schema.unwrap().first_violation(&nested("a", 60, json!(7)));
        assert_eq!(violation.as_deref(), Some(NOT_LOCATED));
    }

    #[test]
    fn the_errors_of_ordinary_recursive_schemas_name_the_place() {
        let child = json!({"$ref": "#/$defs/n"});
        let children = json!({"type": "array", "items": child});
        let text = json!({"type": "string"});
        let tree = json!({"type": "object", "properties": {"name": text, "children": children}});
        let value = (0..20).fold(json!({"name": 7}), |inner, _| json!({"children": [{}, inner]}));
        let violation = recursive(&tree).first_violation(&value).unwrap();
        assert!(violation.ends_with("/1/name: 7 is not of type \"string\""), "{violation}");
        // `Option<Box<T>>` as `schemars` derives it.
        let child = json!({"anyOf": [child, {"type": "null"}]});
        let properties = json!({"left": child, "right": child});
        let binary = recursive(&json!({"type": "object", "properties": properties}));
        let full = (0..8).fold(json!({}), |inner, _| json!({"left": inner, "right": inner}));
        assert_eq!(binary.first_violation(&full), None);
        let violation = binary.first_violation(&json!({"left": full, "right": 7})).unwrap();
        assert!(violation.starts_with("/right: 7 is not valid under any"), "{violation}");
        let violation = binary.first_violation(&nested("left", 40, json!(7))).unwrap();
        assert!(violation.starts_with("/left: {"), "{violation}");
        // An enumeration with variants of one and of two values.
        let variant = |name: &str, content: Value| {
            json!({
                "type": "object", "properties": {name: content}, "required": [name],
                "additionalProperties": false,
            })
        };
        let child = json!({"$ref": "#/$defs/n"});
        let two = json!({"type": "array", "prefixItems": [child, child], "minItems": 2});
        let number = variant("Number", json!({"type": "number"}));
        let node = json!({"oneOf": [number, variant("Not", child), variant("And", two)]});
        let expression = recursive(&node);
        let value = (0..8).fold(json!({"Number": 1}), |inner, _| json!({"And": [inner, inner]}));
        assert_eq!(expression.first_violation(&value), None);
        assert_eq!(expression.first_violation(&nested("Not", 40, value)), None);
        let violation = expression.first_violation(&nested("Not", 40, json!(7))).unwrap();
        assert!(violation.ends_with("listed in the 'oneOf' keyword"), "{violation}");
    }

    #[test]
    fn the_depth_of_a_value_is_limited_by_the_levels_of_a_schema_that_refers_to_itself() {
        let link = |nth: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", nth + 1)});
            (format!("d{nth}"), next)
        };
        let mut links: Map<String, Value> = (0..100).map(link).collect();
        let back = json!({"properties": {"a": {"$ref": "#/$defs/d0"}}});
        links.insert("d100".to_owned(), back);
        let chain = InputSchema::parse(json!({"$defs": links, "$ref": "#/$defs/d0"})).unwrap();
        assert_eq!(chain.first_violation(&nested("a", 2, json!(7))), None);
        let violation = chain.first_violation(&nested("a", 20, json!(7)));
        let expected = "the value has more than 9 levels, the maximum for this schema";
        assert_eq!(violation.as_deref(), Some(expected));
    }

    #[test]
    fn references_back_to_the_same_value_may_not_multiply() {
        let all_but = |nth: usize| {
            let others = (0..10).filter(|other| *other != nth);
            let others = others.map(|other| json!({"$ref": format!("#/$defs/d{other}")}));
            (format!("d{nth}"), json!({"allOf": others.collect::<Vec<_>>()}))
        };
        let definitions: Map<String, Value> = (0..10).map(all_but).collect();
        let schema = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
        let error = InputSchema::parse(schema).unwrap_err().to_string();
        assert!(error.contains("lead back to the same value"), "{error}");
        // The library enters each of these references back again.
        let mut ring = json!({"type": "string"});
        for nth in 0..10 {
            let back = json!({"$ref": format!("#/$defs/n{}", "/anyOf/0".repeat(nth))});
            ring = json!({"anyOf": [ring, back]});
        }
        let schema = json!({"$defs": {"n": ring}, "properties": {"a": {"$ref": "#/$defs/n"}}});
        let error = InputSchema::parse(schema).unwrap_err().to_string();
        assert!(error.contains("lead back to the same value"), "{error}");
        // A base that lists its subtypes, each of which refers to the base.
        let subtype = |name: &str| {
            let own = json!({"properties": {"kind": {"const": name}}, "required": ["kind"]});
            json!({"allOf": [{"$ref": "#/$defs/n"}, own]})
        };
        let pets = recursive(&json!({"oneOf": [subtype("cat"), subtype("dog")]}));
        assert_eq!(pets.first_violation(&json!({"kind": "cat"})), None);
        assert!(pets.first_violation(&json!({"kind": "cow"})).is_some());
        let own = InputSchema::parse(json!({"type": "object", "$ref": "#"})).unwrap();
        let violation = own.first_violation(&json!(7));
        assert_eq!(violation.as_deref(), Some("7 is not of type \"object\""));
    }
}
