//! The OpenAPI document: its version, its references and its operations.

use serde_json::{Map, Value};

use super::ImportError;
use super::naming::tool_names;
use callsheet_values::types::percent_decoded;

/// The methods of OpenAPI, in the order in which operations of one path are printed.
const METHODS: [&str; 9] =
    ["get", "post", "put", "patch", "delete", "head", "options", "trace", "query"];

/// Maximum length of a chain of references.
const REFERENCES_MAX: usize = 16;

/// An OpenAPI document of a known version.
#[derive(Debug)]
pub(super) struct OpenApiDocument {
    root: Value,
}

/// A method of a path.
#[derive(Debug)]
pub(super) struct Operation<'d> {
    /// The name of the tool.
    pub(super) name: String,
    /// The method, such as `GET`.
    pub(super) method: String,
    /// The path, with its placeholders.
    pub(super) path: &'d str,
    /// The path item object, whose members all operations of the path share.
    pub(super) path_item: &'d Value,
    /// The operation object.
    pub(super) definition: &'d Value,
}

impl Operation<'_> {
    /// Returns the tags of the operation.
    pub(super) fn tags(&self) -> impl Iterator<Item = &str> {
        self.definition["tags"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }
}

impl OpenApiDocument {
    /// Parses JSON (a text that begins with `{`) or YAML.
    ///
    /// # Errors
    /// If the text is neither, or is no OpenAPI document of a known version.
    pub(super) fn parse(text: &str) -> Result<Self, ImportError> {
        let text = text.trim_start_matches('\u{feff}');
        let root: Value = if text.trim_start().starts_with('{') {
            let parsed = serde_json::from_str(text);
            parsed.map_err(|error| ImportError::Syntax("JSON", error.to_string()))?
        } else {
            parse_yaml(text).map_err(|error| ImportError::Syntax("YAML", error))?
        };
        // YAML reads an unquoted 3.0 as a number.
        let version = |key: &str| {
            let version =
                root.get(key).filter(|version| version.is_string() || version.is_number());
            version.map(|version| version.as_str().map_or(version.to_string(), str::to_owned))
        };
        if let Some(version) = version("swagger") {
            return Err(ImportError::Swagger(version));
        }
        let version = version("openapi").ok_or(ImportError::NotOpenApi)?;
        let is_known = |known: &str| version == known || version.starts_with(&format!("{known}."));
        if !["3.0", "3.1", "3.2"].into_iter().any(is_known) {
            return Err(ImportError::UnknownVersion(version));
        }
        Ok(Self { root })
    }

    /// Returns the value at a JSON pointer.
    pub(super) fn at(&self, pointer: &str) -> Option<&Value> {
        self.root.pointer(pointer)
    }

    /// Returns the title, or an empty text.
    pub(super) fn title(&self) -> &str {
        self.root["info"]["title"].as_str().unwrap_or_default()
    }

    /// Returns the value that a reference names. Other documents are never read.
    ///
    /// # Errors
    /// The reason why the reference cannot be followed.
    pub(super) fn target(&self, reference: &str) -> Result<&Value, String> {
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(format!("refers to {reference:?}, and other documents are not read"));
        };
        let found = self.root.pointer(&percent_decoded(pointer));
        found.ok_or_else(|| format!("refers to {reference:?}, which the document does not have"))
    }

    /// Follows the references of a value. Returns a value without a reference unchanged.
    ///
    /// # Errors
    /// The reason why a reference cannot be followed.
    pub(super) fn resolve<'d>(&'d self, mut value: &'d Value) -> Result<&'d Value, String> {
        for _ in 0..=REFERENCES_MAX {
            match value["$ref"].as_str() {
                Some(reference) => value = self.target(reference)?,
                None => return Ok(value),
            }
        }
        Err(format!("refers to itself, or through more than {REFERENCES_MAX} references"))
    }

    /// Returns the operations in the order of their paths, and a line for each path that cannot be read.
    ///
    /// # Errors
    /// If the paths do not have the form of OpenAPI.
    pub(super) fn operations(&self) -> Result<(Vec<Operation<'_>>, Vec<String>), ImportError> {
        let paths = self.root.get("paths").ok_or_else(|| structure_error("paths", "is missing"))?;
        let paths =
            paths.as_object().ok_or_else(|| structure_error("paths", "must be an object"))?;
        let mut operations = Vec::new();
        let mut unread = Vec::new();
        for (path, item) in paths.iter().filter(|(path, _)| !path.starts_with("x-")) {
            let at = format!("paths.{path:?}");
            if !path.starts_with('/') {
                return Err(structure_error(&at, "must begin with \"/\""));
            }
            let item = match self.resolve(item) {
                Ok(item) if item.is_object() => item,
                Ok(_) => return Err(structure_error(&at, "must be an object")),
                Err(problem) => {
                    unread.push(format!("{path}: it {problem}"));
                    continue;
                }
            };
            for method in METHODS {
                let Some(definition) = item.get(method) else { continue };
                if !definition.is_object() {
                    return Err(structure_error(&format!("{at}.{method}"), "must be an object"));
                }
                let method = method.to_ascii_uppercase();
                let name = String::new();
                operations.push(Operation { name, method, path, path_item: item, definition });
            }
        }
        let names = tool_names(operations.iter().map(|operation| {
            let id = operation.definition["operationId"].as_str().unwrap_or_default();
            (id, format!("{} {}", operation.method, operation.path))
        }));
        for (operation, name) in operations.iter_mut().zip(names) {
            operation.name = name;
        }
        Ok((operations, unread))
    }
}

/// Reads YAML as JSON, with the entries of merge keys (`<<`).
fn parse_yaml(text: &str) -> Result<Value, String> {
    let mut value: yaml_serde::Value =
        yaml_serde::from_str(text).map_err(|error| error.to_string())?;
    value.apply_merge().map_err(|error| error.to_string())?;
    serde_json::to_value(value).map_err(|error| error.to_string())
}

fn structure_error(at: &str, problem: &str) -> ImportError {
    ImportError::Structure { at: at.to_owned(), problem: problem.to_owned() }
}

/// Returns the members of an object. Other values have none.
pub(super) fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
