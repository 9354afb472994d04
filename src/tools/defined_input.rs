//! The arguments of a tool that the configuration defines: their schema and defaults.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{ParsedSchema, Template};
use callsheet_values::config::ToolInput;

/// The schema of the arguments, with the defaults of its properties.
#[derive(Clone, Debug)]
pub(crate) struct DefinedInput {
    schema: ParsedSchema,
    /// The schema of each property by name. It may have a `default`.
    properties: Map<String, Value>,
}

/// An invalid key of a tool, a server or a hook that the configuration defines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub(crate) struct DefinitionError {
    /// The key below its table, such as `command[1]`.
    pub key: String,
    /// The problem.
    pub message: String,
}

impl DefinitionError {
    pub(crate) fn new(key: impl Into<String>, message: impl ToString) -> Self {
        Self { key: key.into(), message: message.to_string() }
    }
}

impl DefinedInput {
    /// Makes the schema, which may be in a file.
    ///
    /// # Errors
    /// If the file cannot be read, or the schema is invalid or not that of an object.
    pub(crate) fn load(input: &ToolInput) -> Result<Self, DefinitionError> {
        let (key, schema) = match input {
            ToolInput::Properties(properties) => ("input", properties_schema(properties)),
            ToolInput::Schema(schema) => ("input_schema", schema.clone()),
            ToolInput::File(file) => ("input_schema", read_json("input_schema", file)?),
        };
        let properties = schema.get("properties").and_then(Value::as_object).cloned();
        let schema = parse_schema(key, schema)?;
        if !schema.as_value().is_object() || !schema.allows_object() {
            let message = "must be the schema of an object, because arguments are a JSON object";
            return Err(DefinitionError::new(key, message));
        }
        Ok(Self { schema, properties: properties.unwrap_or_default() })
    }

    /// Returns the schema.
    pub(crate) fn schema(&self) -> &ParsedSchema {
        &self.schema
    }

    /// Returns the arguments of a call, with the defaults of those that are missing.
    pub(crate) fn with_defaults(&self, arguments: &Value) -> Map<String, Value> {
        let mut all = arguments.as_object().cloned().unwrap_or_default();
        for (name, property) in &self.properties {
            if let (false, Some(default)) = (all.contains_key(name), property.get("default")) {
                all.insert(name.clone(), default.clone());
            }
        }
        all
    }

    /// Parses a template whose placeholders are properties of these arguments.
    ///
    /// # Errors
    /// If a placeholder is broken or names no property.
    pub(crate) fn template(&self, key: &str, text: &str) -> Result<Template, DefinitionError> {
        let template = Template::parse(text).map_err(|error| DefinitionError::new(key, error))?;
        for name in template.names() {
            self.check_name(key, name).map_err(|mut error| {
                error.message.push_str("; write \"{{\" for a literal \"{\"");
                error
            })?;
        }
        Ok(template)
    }

    /// Checks that a property has this name.
    ///
    /// # Errors
    /// If no property has it.
    pub(crate) fn check_name(&self, key: &str, name: &str) -> Result<(), DefinitionError> {
        if self.properties.contains_key(name) {
            return Ok(());
        }
        let known: Vec<&str> = self.properties.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("{{{name}}} is not a property of the input (known: {known})");
        Err(DefinitionError::new(key, message))
    }
}

/// Reads a JSON schema of results.
///
/// # Errors
/// If the file cannot be read or is no JSON schema.
pub(crate) fn load_schema(key: &str, file: &Path) -> Result<ParsedSchema, DefinitionError> {
    parse_schema(key, read_json(key, file)?)
}

/// Compiles a schema of the configuration, which must not have parts that the host does not check.
fn parse_schema(key: &str, schema: Value) -> Result<ParsedSchema, DefinitionError> {
    let schema = ParsedSchema::parse(schema).map_err(|error| DefinitionError::new(key, error))?;
    match schema.unchecked().first() {
        Some(part) => Err(DefinitionError::new(key, part)),
        None => Ok(schema),
    }
}

fn read_json(key: &str, file: &Path) -> Result<Value, DefinitionError> {
    let failed = |error: &dyn std::fmt::Display| {
        DefinitionError::new(key, format!("read {}: {error}", file.display()))
    };
    let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| failed(&error))
}

/// Returns the schema of an object with these properties. Those without a default are required, and
/// there are no others.
fn properties_schema(properties: &Map<String, Value>) -> Value {
    let required = |(_, property): &(&String, &Value)| property.get("default").is_none();
    let required: Vec<&String> = properties.iter().filter(required).map(|(name, _)| name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(value: Value) -> ToolInput {
        ToolInput::Properties(value.as_object().unwrap().clone())
    }

    #[test]
    fn properties_without_a_default_are_required() {
        let input = properties(json!({
            "pattern": {"type": "string"}, "path": {"type": "string", "default": "."},
        }));
        let input = DefinedInput::load(&input).unwrap();
        let schema = input.schema();
        assert_eq!(schema.as_value()["required"], json!(["pattern"]));
        assert_eq!(schema.first_violation(&json!({"pattern": "x"})), None);
        assert!(schema.first_violation(&json!({"path": "x"})).is_some());
        assert!(schema.first_violation(&json!({"pattern": "x", "other": 1})).is_some());
        let with_defaults = |arguments: Value| Value::from(input.with_defaults(&arguments));
        assert_eq!(with_defaults(json!({"pattern": "x"})), json!({"pattern": "x", "path": "."}));
        assert_eq!(
            with_defaults(json!({"pattern": "x", "path": "y"})),
            json!({"pattern": "x", "path": "y"})
        );
    }

    #[test]
    fn a_schema_file_is_read_and_its_errors_name_the_file() {
        let directory =
            std::env::temp_dir().join(format!("callsheet-input-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("input.json");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            DefinedInput::load(&ToolInput::File(file.clone()))
        };
        let schema = r#"{"type":"object","properties":{"a":{"default":1},"b":{}}}"#;
        let input = load(schema).unwrap();
        assert_eq!(Value::from(input.with_defaults(&json!({}))), json!({"a": 1}));
        let error = load("{").unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("input_schema: read {}: EOF", file.display()))
        );
        let error = load(r#"{"type":"strin"}"#).unwrap_err().to_string();
        assert!(error.starts_with("input_schema: not a valid JSON schema: "), "{error}");
        let error = load(r#"{"dependentRequired":{}}"#).unwrap_err().to_string();
        assert_eq!(error, "input_schema: /dependentRequired: the host does not check this keyword");
        let error = load(r#"{"type":"string"}"#).unwrap_err().to_string();
        assert!(error.starts_with("input_schema: must be the schema of an object"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
        let error = load_schema("output_schema", &file).unwrap_err().to_string();
        assert!(error.starts_with("output_schema: read ") && error.contains("No such file"));
    }

    #[test]
    fn a_schema_of_the_configuration_has_optional_arguments() {
        let schema = json!({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]});
        let input = DefinedInput::load(&ToolInput::Schema(schema)).unwrap();
        assert_eq!(input.schema().first_violation(&json!({"a": 1})), None);
        assert!(input.template("url", "{b}").is_ok());
        let error = DefinedInput::load(&ToolInput::Schema(json!({"type": "array"}))).unwrap_err();
        assert!(error.to_string().starts_with("input_schema: must be the schema of an object"));
    }

    #[test]
    fn a_placeholder_names_a_property() {
        let input = DefinedInput::load(&properties(json!({"a": {}, "b": {}}))).unwrap();
        assert!(input.template("command[1]", "--x={a}").is_ok());
        let error = input.template("command[1]", "{c}").unwrap_err().to_string();
        assert_eq!(
            error,
            "command[1]: {c} is not a property of the input (known: a, b); write \"{{\" for a literal \"{\""
        );
    }
}
