//! JSON schemas of tool arguments, compiled once.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use serde_json::Value;

use crate::types::InvalidValue;

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
    /// If it is not a valid JSON schema, or refers to another document.
    pub fn parse(schema: Value) -> Result<Self, InvalidValue> {
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
        // `is_valid` is much faster than `iter_errors`, and most arguments are valid.
        let valid = self.validator.is_valid(arguments);
        let error = (!valid).then(|| self.validator.iter_errors(arguments).next()).flatten()?;
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
