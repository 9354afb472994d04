//! JSON schemas of tool arguments, compiled once.
//!
//! The checker is our own, because schemas and values are untrusted: the number of steps of a check is limited, which
//! no library offers. `jsonschema` 0.60 checks the arguments of a usual tool in a third of the time (0.05 instead of
//! 0.15 microseconds), but has no limits. A schema of 36 bytes (`((?=a)){9999999999999}`) and one of 2 kB (ten documents
//! that refer to each other) take it more than 10 seconds to compile; a value takes as long with a look-ahead in a
//! loop, whatever the limit of backtracking, or with 26 definitions that have `unevaluatedProperties`. A limit that is
//! known from the schema would need most of this module. It also adds 23 crates and 42 seconds of compiling.
//!
//! A check takes at most five million steps, and nests at most 500 schemas. A document has at most 100,000 schemas.
//!
//! Only keywords that tools usually have are checked. The others, references to anchors, and regular expressions that
//! are invalid or too large are named by [`ParsedSchema::unchecked`]. Of a schema with such parts, `not` and `if` are
//! not checked either, and `oneOf` is checked as `anyOf`, so that no value is refused because of them. All versions of
//! JSON Schema count as one: `$ref` never replaces the keywords beside it. An `$id` has no meaning, except that
//! references can begin with that of the document. A reference to the schema of JSON Schema stands for every object and
//! boolean, and one to a part of it for every value.
//!
//! A schema has at most 200 different regular expressions of at most 4,096 bytes. One of them takes at most 10 MiB, so
//! that `{1,4096}` fits, and all of them 24 MiB. The count of an expression of one class between `^` and `$`, such as
//! `^.{1,65535}$`, takes no memory.
//!
//! | file | content |
//! | --- | --- |
//! | `document.rs` | finds the subschemas of a document, and resolves references |
//! | `compile.rs` | compiles the keywords of each subschema |
//! | `check.rs` | checks a value |
//! | `steps.rs` | counts the work of a check |
//! | `violation.rs` | describes the violations of a value |
//! | `json_excerpt.rs` | cuts values and texts for errors |
//! | `pattern/` | regular expressions: their translation from JavaScript, their size and price, their match |
//! | `numbers.rs` | compares values and numbers |

mod check;
mod compile;
#[cfg(test)]
mod differential;
mod document;
mod json_excerpt;
mod numbers;
mod pattern;
mod steps;
#[cfg(test)]
mod tests;
mod violation;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use serde_json::Value;

pub use compile::CompiledSchema;
pub use compile::FormatCheck;
pub use violation::{PathSegment, Violation};

use callsheet_values::types::InvalidValue;
use callsheet_wire::{original_properties, renamed};

/// A compiled JSON Schema. Equality compares the schemas as JSON.
#[derive(Clone)]
pub struct ParsedSchema {
    schema: Arc<Value>,
    /// The error is the reason why the schema is invalid. The registration of its tool then fails.
    compiled: Result<Arc<CompiledSchema>, Arc<str>>,
    /// The names of properties that some wires send under an alias, by alias.
    aliases: Option<Arc<BTreeMap<String, String>>>,
}

impl ParsedSchema {
    /// Returns the schema of a type, as `schemars` derives it, but without `$schema` and `title`, and with the type
    /// `object` if it names none. The schema of `()` is that of an object without properties. If the schema is
    /// invalid, for example because of a reference in it, a tool with it cannot be registered.
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
        Self::from_value(value)
    }

    /// Creates a schema from JSON. If it is invalid, the registration of its tool fails with the reason.
    pub fn from_value(value: Value) -> Self {
        let compiled = match value.is_object() {
            true => compile(&value).map_err(|error| error.to_string().into()),
            false => Err("not a JSON object".into()),
        };
        let aliases = aliases(&value);
        Self { schema: Arc::new(value), compiled, aliases }
    }

    /// Compiles a schema.
    ///
    /// ```
    /// use callsheet::tool::{ParsedSchema, ToolSpec};
    /// use serde_json::json;
    ///
    /// let schema = json!({ "type": "object", "properties": { "q": { "type": "string" } }, "required": ["q"] });
    /// let spec = ToolSpec::with_schema("search", "Searches.", ParsedSchema::parse(schema)?);
    /// assert!(spec.input.first_violation(&json!({ "q": 1 })).is_some());
    /// # Ok::<(), callsheet::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    /// If it is not a valid JSON Schema, refers to another document, or contains more than 100,000 schemas.
    pub fn parse(schema: Value) -> Result<Self, InvalidValue> {
        let compiled = Ok(compile(&schema)?);
        let aliases = aliases(&schema);
        Ok(Self { schema: Arc::new(schema), compiled, aliases })
    }

    /// Returns the schema as JSON.
    #[must_use]
    pub fn as_value(&self) -> &Value {
        &self.schema
    }

    /// Returns a shared reference to the schema.
    pub fn shared(&self) -> Arc<Value> {
        Arc::clone(&self.schema)
    }

    /// Returns arguments in which the aliases of properties are replaced by their names. `None` if there are none.
    pub fn with_original_names(&self, arguments: &Value) -> Option<Value> {
        renamed(arguments, self.aliases.as_deref()?)
    }

    /// Returns whether `type` is absent or `"object"`. A list of types counts as absent.
    pub fn allows_object(&self) -> bool {
        let named = self.schema.get("type").and_then(Value::as_str);
        named.is_none_or(|name| name == "object")
    }

    /// Describes the first violation of the schema in `arguments`, in one sentence. Returns `None` if
    /// the arguments are valid, or if the schema itself is invalid. A check ends with a violation after five million
    /// steps, or if it nests more than 500 schemas. A step checks one value against one subschema; long texts,
    /// constants, lists of names and regular expressions take more of them. `format` is not checked.
    #[must_use]
    pub fn first_violation(&self, arguments: &Value) -> Option<String> {
        let violation = self.compiled.as_ref().ok()?.first_violation(arguments)?;
        Some(violation.to_string())
    }

    /// Returns the parts of the schema that are not checked, each with its place and the reason: keywords that tools
    /// rarely have, and regular expressions that are invalid or too large. At most ten are named.
    pub fn unchecked(&self) -> &[String] {
        self.compiled.as_ref().map_or(&[], |compiled| compiled.unchecked())
    }

    /// Returns the reason why the schema is invalid.
    pub fn problem(&self) -> Option<&str> {
        self.compiled.as_ref().err().map(AsRef::as_ref)
    }
}

fn aliases(schema: &Value) -> Option<Arc<BTreeMap<String, String>>> {
    Some(original_properties(schema)).filter(|aliases| !aliases.is_empty()).map(Arc::new)
}

fn compile(schema: &Value) -> Result<Arc<CompiledSchema>, InvalidValue> {
    match CompiledSchema::compile(schema, &[]) {
        Ok(compiled) => Ok(Arc::new(compiled)),
        Err(error) => Err(InvalidValue::new(format!("not a valid JSON schema: {error}"))),
    }
}

impl PartialEq for ParsedSchema {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.schema, &other.schema) || self.schema == other.schema
    }
}

impl Eq for ParsedSchema {}

impl Hash for ParsedSchema {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.schema.hash(state);
    }
}

impl fmt::Debug for ParsedSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.schema.fmt(f)
    }
}
