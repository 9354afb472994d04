//! JSON schemas of tool arguments, compiled once.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use jsonschema::{Draft, Registry, Uri};
use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::types::InvalidValue;

/// Maximum number of JSON values in a schema whose references are replaced by what they refer to. A check, and the
/// list of its errors, may visit each of them.
const PARTS_MAX: u64 = 100_000;

/// Maximum depth of such a schema. A check is recursive.
const DEPTH_MAX: u64 = 2_000;

/// The keywords of references.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// A JSON schema with its compiled validator. Equality compares the schemas only.
#[derive(Clone)]
pub struct InputSchema {
    schema: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
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
    /// values, with each reference replaced by what it refers to.
    pub fn parse(schema: Value) -> Result<Self, InvalidValue> {
        if is_too_large(&schema) == Some(true) {
            return Err(InvalidValue::new(format!(
                "the JSON schema is too large: with its references replaced it has more than \
                 {PARTS_MAX} values or {DEPTH_MAX} levels"
            )));
        }
        let invalid = |error| InvalidValue::new(format!("not a valid JSON schema: {error}"));
        let validator = jsonschema::validator_for(&schema).map_err(invalid)?;
        Ok(Self { schema: Arc::new(schema), validator: Arc::new(validator), problem: None })
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
    /// the arguments are valid.
    #[must_use]
    pub fn first_violation(&self, arguments: &Value) -> Option<String> {
        // `is_valid` is much faster than `validate`, and most arguments are valid. `iter_errors` would collect all
        // errors before it returns the first one.
        let valid = self.validator.is_valid(arguments);
        let error = (!valid).then(|| self.validator.validate(arguments).err()).flatten()?;
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

/// A value of a schema, and the base URI of the references in it.
type SchemaPart = (*const Value, Arc<Uri<String>>);

/// Returns true if a schema has too many values or levels when each reference is replaced by what it refers to. A
/// reference to a value that contains it counts as one value. Returns `None` if the library cannot read the
/// schema: its compilation fails for the same reason.
fn is_too_large(schema: &Value) -> Option<bool> {
    let draft = Draft::default().detect(schema);
    let id = draft.create_resource_ref(schema).id().unwrap_or_default().to_owned();
    let mut base = jsonschema::uri::from_str(&id).ok()?;
    base.set_fragment(None);
    let builder = Registry::new().draft(draft).add(base.as_str(), schema).ok()?;
    let registry = builder.prepare().ok()?;
    // The number of values and levels of each part. Those of a part that is being counted are 1.
    let mut sizes: HashMap<SchemaPart, (u64, u64)> = HashMap::new();
    let mut size = (1, 1);
    // A part with its children is counted when they are. A recursive function would overflow the stack.
    let mut open = vec![(schema, registry.resolver(base), draft, None::<Vec<SchemaPart>>)];
    while let Some((value, resolver, draft, children)) = open.pop() {
        let part = (std::ptr::from_ref(value), resolver.base_uri());
        if let Some(children) = children {
            let children = children.iter().filter_map(|child| sizes.get(child));
            let (parts, depth) = children.fold((1_u64, 0_u64), |(parts, depth), child| {
                (parts.saturating_add(child.0), depth.max(child.1))
            });
            size = (parts, depth + 1);
            sizes.insert(part, size);
            continue;
        }
        if sizes.contains_key(&part) {
            continue;
        }
        sizes.insert(part, (1, 1));
        let items = value.as_array().into_iter().flatten();
        let members = value.as_object().into_iter().flat_map(Map::values);
        let within = items.chain(members).map(|child| {
            let draft = draft.detect(child);
            let within = resolver.in_subresource(draft.create_resource_ref(child));
            (child, within.unwrap_or_else(|_| resolver.clone()), draft)
        });
        let references = REFERENCES.iter().filter_map(|keyword| value.get(keyword)?.as_str());
        let targets = references.filter_map(|reference| {
            let target = resolver.lookup(reference).ok()?;
            Some(target.into_inner())
        });
        let nested: Vec<_> = within.chain(targets).collect();
        let mut children = Vec::new();
        for (child, resolver, _) in &nested {
            children.push((std::ptr::from_ref(*child), resolver.base_uri()));
        }
        open.push((value, resolver, draft, Some(children)));
        for (child, resolver, draft) in nested {
            open.push((child, resolver, draft, None));
        }
    }
    Some(size.0 > PARTS_MAX || size.1 > DEPTH_MAX)
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
    use serde_json::json;

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
            assert!(error.contains("100000 values or 2000 levels"), "{error}");
            assert!(InputSchema::of_value(schema).problem().is_some());
        }
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
}
