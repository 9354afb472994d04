//! Finds the schemas in a JSON Schema document, and the schemas that references refer to.

use std::collections::HashMap;
use std::ptr;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use url::Url;

use super::json_excerpt::{TEXT_CHARS_MAX, cut};
use super::steps::Steps;
use callsheet_values::types::percent_decoded;

/// Maximum number of schemas in a document.
const SCHEMAS_MAX: usize = 100_000;

/// Maximum number of schemas with an `$id`.
const RESOURCES_MAX: usize = 1_000;

/// Maximum number of bytes of an absolute URI.
const URI_BYTES_MAX: usize = 2_048;

/// Maximum number of steps to resolve the URIs of a document, in references and `$id`s.
const STEPS_MAX: usize = 5_000_000;

/// Number of bytes of a URI that are read in the time of a step.
const URI_BYTES_PER_STEP: usize = 8;

/// The base URI of a document without `$id`.
const BASE_URI: &str = "json-schema:///";

/// The beginnings of the URIs of the schemas of JSON Schema itself.
const META_SCHEMAS: [&str; 2] = ["http://json-schema.org/draft", "https://json-schema.org/draft"];

/// The schema that references to a part of [`META_SCHEMAS`] refer to.
static ANY_VALUE: Value = Value::Bool(true);

/// The schema that references to [`META_SCHEMAS`] refer to. It accepts more than they do.
static ANY_SCHEMA: LazyLock<Value> = LazyLock::new(|| json!({"type": ["object", "boolean"]}));

/// The keywords of which the value is a schema.
const SCHEMA_KEYWORDS: [&str; 11] = [
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
];

/// The keywords of which the value is a list of schemas. Before 2020-12 `items` could be one of them.
const LIST_KEYWORDS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];

/// The keywords of which the value is an object of schemas. `dependencies` also has lists of names.
const MAP_KEYWORDS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// A version of JSON Schema. Similar versions are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    /// Draft 4, with `id` instead of `$id`.
    V4,
    /// Drafts 6 and 7. `$ref` replaces all keywords beside it, as in draft 4.
    V7,
    /// 2019-09 and 2020-12.
    V2020,
}

impl Draft {
    fn of(schema: &Value) -> Self {
        let named = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
        match named {
            _ if named.contains("/draft-04/") => Self::V4,
            _ if named.contains("/draft-06/") || named.contains("/draft-07/") => Self::V7,
            _ => Self::V2020,
        }
    }
}

/// A schema in a document.
#[derive(Clone, Debug)]
pub(super) struct SchemaPosition<'s> {
    pub(super) value: &'s Value,
    /// The number of the schema that contains it.
    pub(super) parent: Option<usize>,
    /// The JSON pointer to it from its parent. Without a parent: from the resource in which a reference found it.
    pub(super) path: String,
    /// The number of the resource that it belongs to: itself or the innermost schema around it that has an `$id`, or
    /// else the document.
    pub(super) resource: usize,
}

/// The document, or a schema in it with a URI of its own.
struct SchemaResource<'s> {
    base: Url,
    root: &'s Value,
}

/// A document with the numbers of its schemas. That of the whole document is 0.
pub(super) struct SchemaDocument<'s> {
    pub(super) draft: Draft,
    pub(super) positions: Vec<SchemaPosition<'s>>,
    numbers: HashMap<*const Value, usize>,
    resources: Vec<SchemaResource<'s>>,
    resources_by_uri: HashMap<String, usize>,
    /// The schemas with an `$anchor`, a `$dynamicAnchor` or a fragment in `$id`, by their resource and this name.
    anchors: HashMap<(usize, String), usize>,
    /// The schemas with a `$dynamicAnchor`, by its name and their resource. A `$recursiveAnchor` is one with an
    /// empty name.
    pub(super) dynamic_anchors: HashMap<String, HashMap<usize, usize>>,
    /// The steps that are left to resolve URIs.
    steps: Steps,
}

impl<'s> SchemaDocument<'s> {
    /// Reads a document: finds its schemas, but does not check them.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub(super) fn read(schema: &'s Value) -> Result<Self, String> {
        let base = Url::parse(BASE_URI).map_err(|error| error.to_string())?;
        let mut document = Self {
            draft: Draft::of(schema),
            positions: Vec::new(),
            numbers: HashMap::new(),
            resources: Vec::new(),
            resources_by_uri: HashMap::new(),
            anchors: HashMap::new(),
            dynamic_anchors: HashMap::new(),
            steps: Steps::new(STEPS_MAX),
        };
        let resource = document.add_resource(base, schema)?;
        document.add(SchemaPosition {
            value: schema,
            parent: None,
            path: String::new(),
            resource,
        })?;
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
        while let Some(mut position) = open.pop() {
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
                position.resource = self.read_names(object, number, &position)?;
                let child = |(path, value)| SchemaPosition {
                    value,
                    parent: Some(number),
                    path,
                    resource: position.resource,
                };
                // The first is read first, so that it keeps a name that several have.
                open.extend(subschemas(object).into_iter().rev().map(child));
            }
            self.positions.push(position);
        }
        Ok(number)
    }

    /// Reads the URI and the anchors of a schema. Returns its resource.
    fn read_names(
        &mut self,
        object: &'s Map<String, Value>,
        number: usize,
        position: &SchemaPosition<'s>,
    ) -> Result<usize, String> {
        let mut resource = position.resource;
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        let id = text(if self.draft == Draft::V4 { "id" } else { "$id" });
        // In old versions, `$ref` replaces the keywords beside it.
        let id = id.filter(|_| self.draft == Draft::V2020 || !object.contains_key("$ref"));
        let (uri, fragment) = id.map_or(("", ""), |id| id.split_once('#').unwrap_or((id, "")));
        // Other values than URIs are ignored.
        if !uri.is_empty()
            && let Ok(base) = self.join(resource, uri)?
        {
            resource = self.add_resource(base, position.value)?;
        }
        if !fragment.is_empty() {
            self.anchors.entry((resource, fragment.to_owned())).or_insert(number);
        }
        let dynamic = text("$dynamicAnchor");
        for name in [text("$anchor"), dynamic].into_iter().flatten() {
            self.anchors.entry((resource, name.to_owned())).or_insert(number);
        }
        let recursive = object.get("$recursiveAnchor").filter(|value| **value == true);
        for name in [dynamic, recursive.map(|_| "")].into_iter().flatten() {
            let anchors = self.dynamic_anchors.entry(name.to_owned()).or_default();
            anchors.entry(resource).or_insert(number);
        }
        Ok(resource)
    }

    fn add_resource(&mut self, base: Url, root: &'s Value) -> Result<usize, String> {
        let number = self.resources.len();
        // The document is the first resource, and need not have an `$id`.
        if number > RESOURCES_MAX {
            return Err(format!("it contains more than {RESOURCES_MAX} schemas with an $id"));
        }
        // The first schema keeps a URI that several have.
        self.resources_by_uri.entry(base.as_str().to_owned()).or_insert(number);
        self.resources.push(SchemaResource { base, root });
        Ok(number)
    }

    /// Returns the absolute URI of a URI in a resource. The inner error is the reason why it is none.
    ///
    /// # Errors
    /// If it is too long, or the URIs of the document take too many steps.
    fn join(&mut self, resource: usize, uri: &str) -> Result<Result<Url, url::ParseError>, String> {
        let base = &self.resources[resource].base;
        let steps = 1 + (base.as_str().len() + uri.len()) / URI_BYTES_PER_STEP;
        self.steps.spend(steps).map_err(|_| "it contains too many or too long URIs".to_owned())?;
        let joined = base.join(uri);
        match joined {
            Ok(joined) if joined.as_str().len() > URI_BYTES_MAX => {
                let shown = cut(uri, TEXT_CHARS_MAX);
                Err(format!("{shown:?} is a URI of more than {URI_BYTES_MAX} bytes"))
            }
            Ok(_) | Err(_) => Ok(joined),
        }
    }

    /// Returns the number of the schema that a reference in `resource` refers to.
    ///
    /// # Errors
    /// The reason why it refers to none.
    pub(super) fn resolve(&mut self, reference: &str, resource: usize) -> Result<usize, String> {
        let shown = cut(reference, TEXT_CHARS_MAX);
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let fragment = percent_decoded(fragment);
        let target = match uri {
            // The usual reference, which takes no steps.
            "" => resource,
            _ => {
                let uri = self.join(resource, uri)?;
                let uri = uri.map_err(|error| format!("{shown:?} is not a URI: {error}"))?;
                let known = META_SCHEMAS.iter().any(|known| uri.as_str().starts_with(known));
                match self.resources_by_uri.get(uri.as_str()) {
                    Some(&target) => target,
                    None if known && fragment.is_empty() => {
                        return self.find_or_add_schema(&ANY_SCHEMA, fragment, resource);
                    }
                    None if known => {
                        return self.find_or_add_schema(&ANY_VALUE, fragment, resource);
                    }
                    None => return Err(format!("refers to {shown:?}, which is not in the schema")),
                }
            }
        };
        let missing = || format!("refers to {shown:?}, which does not exist");
        if fragment.is_empty() || fragment.starts_with('/') {
            let (value, resource) = self.follow(&fragment, target).ok_or_else(missing)?;
            return self.find_or_add_schema(value, fragment, resource);
        }
        self.anchors.get(&(target, fragment)).copied().ok_or_else(missing)
    }

    fn find_or_add_schema(
        &mut self,
        value: &'s Value,
        path: String,
        resource: usize,
    ) -> Result<usize, String> {
        match self.number(value) {
            Some(number) => Ok(number),
            None => self.add(SchemaPosition { value, parent: None, path, resource }),
        }
    }

    /// Returns the value at a JSON pointer in a resource, and the resource that the value belongs to.
    fn follow(&self, pointer: &str, mut resource: usize) -> Option<(&'s Value, usize)> {
        let mut value = self.resources[resource].root;
        for token in pointer.split('/').skip(1) {
            let token = token.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(object) => object.get(&token)?,
                Value::Array(items) => items.get(token.parse::<usize>().ok()?)?,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
            };
            if let Some(number) = self.number(value) {
                resource = self.positions[number].resource;
            }
        }
        Some((value, resource))
    }
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
