//! Finds the schemas in a JSON Schema document, and the schemas that references refer to.

use std::collections::HashMap;
use std::ptr;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::json_excerpt::{TEXT_CHARS_MAX, cut};
use callsheet_values::types::percent_decoded;

/// Maximum number of schemas in a document.
const SCHEMAS_MAX: usize = 100_000;

/// The beginnings of the URIs of the schemas of JSON Schema itself.
const META_SCHEMAS: [&str; 2] = ["http://json-schema.org/draft", "https://json-schema.org/draft"];

/// The schema that references to a part of [`META_SCHEMAS`] refer to.
static ANY_VALUE: Value = Value::Bool(true);

/// The schema that references to [`META_SCHEMAS`] refer to. It accepts more than they do.
static ANY_SCHEMA: LazyLock<Value> = LazyLock::new(|| json!({"type": ["object", "boolean"]}));

/// The keywords of which the value is a schema.
const SCHEMA_KEYWORDS: [&str; 8] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
];

/// The keywords of which the value is a list of schemas. Before 2020-12 `items` could be one of them.
const LIST_KEYWORDS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// The keywords of which the value is an object of schemas.
const MAP_KEYWORDS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// A schema in a document.
#[derive(Clone, Debug)]
pub(super) struct SchemaPosition<'s> {
    pub(super) value: &'s Value,
    /// The number of the schema that contains it.
    pub(super) parent: Option<usize>,
    /// The JSON pointer to it from its parent. Without a parent: from the document.
    pub(super) path: String,
}

/// A document with the numbers of its schemas. That of the whole document is 0.
pub(super) struct SchemaDocument<'s> {
    root: &'s Value,
    pub(super) positions: Vec<SchemaPosition<'s>>,
    numbers: HashMap<*const Value, usize>,
}

impl<'s> SchemaDocument<'s> {
    /// Reads a document: finds its schemas, but does not check them.
    ///
    /// # Errors
    /// If it contains too many schemas.
    pub(super) fn read(root: &'s Value) -> Result<Self, String> {
        let mut document = Self { root, positions: Vec::new(), numbers: HashMap::new() };
        document.add(SchemaPosition { value: root, parent: None, path: String::new() })?;
        Ok(document)
    }

    /// Returns the number of a value that is a schema.
    pub(super) fn number(&self, value: &Value) -> Option<usize> {
        self.numbers.get(&ptr::from_ref(value)).copied()
    }

    /// Returns the JSON pointer to a schema.
    pub(super) fn location(&self, number: usize) -> String {
        location(number, |number| {
            let position = &self.positions[number];
            (position.parent, &position.path)
        })
    }

    /// Adds a schema and those in it. Returns its number.
    fn add(&mut self, first: SchemaPosition<'s>) -> Result<usize, String> {
        let number = self.positions.len();
        let mut open = vec![first];
        while let Some(position) = open.pop() {
            let number = self.positions.len();
            if number == SCHEMAS_MAX {
                return Err(format!("it contains more than {SCHEMAS_MAX} schemas"));
            }
            let key = ptr::from_ref(position.value);
            if self.numbers.contains_key(&key) {
                continue;
            }
            self.numbers.insert(key, number);
            if let Value::Object(object) = position.value {
                let child = |(path, value)| SchemaPosition { value, parent: Some(number), path };
                open.extend(subschemas(object).into_iter().rev().map(child));
            }
            self.positions.push(position);
        }
        Ok(number)
    }

    /// Returns the number of the schema that a reference refers to, and `None` for the name of an anchor.
    ///
    /// # Errors
    /// The reason why it refers to no schema of the document.
    pub(super) fn resolve(&mut self, reference: &str) -> Result<Option<usize>, String> {
        let shown = cut(reference, TEXT_CHARS_MAX);
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decoded(fragment);
        let own_uri = self.root.get("$id").and_then(Value::as_str);
        if !uri.is_empty() && own_uri.is_none_or(|own| own.trim_end_matches('#') != uri) {
            let target: &'s Value = match fragment.is_empty() {
                _ if !META_SCHEMAS.iter().any(|known| uri.starts_with(known)) => {
                    return Err(format!("refers to {shown:?}, which is not in the schema"));
                }
                true => &ANY_SCHEMA,
                false => &ANY_VALUE,
            };
            return self.find_or_add_schema(target, fragment).map(Some);
        }
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return Ok(None);
        }
        match follow(self.root, &fragment) {
            Some(target) => self.find_or_add_schema(target, fragment).map(Some),
            None => Err(format!("refers to {shown:?}, which does not exist")),
        }
    }

    fn find_or_add_schema(&mut self, value: &'s Value, path: String) -> Result<usize, String> {
        match self.number(value) {
            Some(number) => Ok(number),
            None => self.add(SchemaPosition { value, parent: None, path }),
        }
    }
}

/// Returns the value at a JSON pointer.
fn follow<'s>(mut value: &'s Value, pointer: &str) -> Option<&'s Value> {
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        value = match value {
            Value::Object(object) => object.get(&token)?,
            Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
        };
    }
    Some(value)
}

/// Returns the schemas in a schema, each with the JSON pointer to it.
fn subschemas(object: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in object {
        let is_one_of = |keywords: &[&str]| keywords.contains(&keyword.as_str());
        if is_one_of(&MAP_KEYWORDS) {
            let members = value.as_object().into_iter().flatten();
            found.extend(members.filter(|(_, value)| is_schema(value)).map(|(name, schema)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                (format!("/{keyword}/{name}"), schema)
            }));
        }
        if is_one_of(&LIST_KEYWORDS) {
            let items = value.as_array().into_iter().flatten().enumerate();
            let items = items.filter(|(_, value)| is_schema(value));
            found.extend(items.map(|(at, schema)| (format!("/{keyword}/{at}"), schema)));
        }
        if is_one_of(&SCHEMA_KEYWORDS) && is_schema(value) {
            found.push((format!("/{keyword}"), value));
        }
    }
    found
}

/// Returns true for the values that can be schemas.
fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// Returns the JSON pointer to a schema. `step` returns its parent and the pointer from there.
pub(super) fn location<'p>(
    number: usize,
    step: impl Fn(usize) -> (Option<usize>, &'p String),
) -> String {
    let mut steps = Vec::new();
    let mut next = Some(number);
    while let Some(number) = next {
        let (parent, path) = step(number);
        steps.push(path.as_str());
        next = parent;
    }
    steps.reverse();
    steps.concat()
}
