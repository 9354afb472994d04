//! The arguments of a tool: the parameters of an operation, and its body.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{OpenApiDocument, Operation, members};
use super::naming::argument_name;
use super::schema::SchemaReader;

/// Header parameters that must be ignored according to OpenAPI.
const IGNORED_HEADERS: [&str; 3] = ["accept", "authorization", "content-type"];

/// The keywords that the schema of a body may have if its properties become separate arguments.
const PLAIN_OBJECT_KEYWORDS: [&str; 5] =
    ["additionalProperties", "description", "properties", "required", "type"];

/// An argument that the model gives.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) schema: Map<String, Value>,
    pub(super) is_required: bool,
}

/// The parts of a request, and the arguments that fill them: the parameters and the body of an operation.
#[derive(Debug)]
pub(super) struct RequestParts<'d> {
    document: &'d OpenApiDocument,
    reader: SchemaReader<'d>,
    pub(super) arguments: BTreeMap<String, Argument>,
    /// The argument of each placeholder of the path.
    pub(super) path: BTreeMap<String, String>,
    /// The argument of each parameter of the query.
    pub(super) query: BTreeMap<String, String>,
    /// Headers with fixed values.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) idempotency_header: Option<String>,
    /// The value of the key `body` in the tool's table: `none`, `json` or `text:ARGUMENT`.
    pub(super) body: String,
    /// Comments about parts that were left out or that the document does not describe.
    pub(super) notes: Vec<String>,
}

impl<'d> RequestParts<'d> {
    /// Reads the parameters and the body.
    ///
    /// # Errors
    /// The reason why the operation cannot be called.
    pub(super) fn read(
        document: &'d OpenApiDocument,
        operation: &Operation<'d>,
    ) -> Result<Self, String> {
        let mut parts = Self {
            document,
            reader: SchemaReader::new(document),
            arguments: BTreeMap::new(),
            path: BTreeMap::new(),
            query: BTreeMap::new(),
            headers: BTreeMap::new(),
            idempotency_header: None,
            body: "none".to_owned(),
            notes: Vec::new(),
        };
        // A parameter of the operation replaces that of the path item with the same name and location. The reverse
        // order puts those with `in: path` first: if another location has the same name, that one gets the suffix.
        let mut parameters = BTreeMap::new();
        for object in [operation.path_item, operation.definition] {
            for parameter in object["parameters"].as_array().into_iter().flatten() {
                let parameter = document.resolve(parameter);
                let parameter = parameter.map_err(|problem| format!("a parameter {problem}"))?;
                let text = |key: &str| parameter[key].as_str().unwrap_or_default();
                parameters.insert((text("in") == "path", text("name"), text("in")), parameter);
            }
        }
        for ((_, name, location), parameter) in parameters.iter().rev() {
            if let Err(problem) = parts.add_parameter(operation, name, location, parameter) {
                if *location == "path" || parameter["required"] == true {
                    return Err(format!("the {location} parameter {name:?} {problem}"));
                }
                parts
                    .notes
                    .push(format!("without the {location} parameter {name:?}: it {problem}"));
            }
        }
        for name in placeholders(operation.path) {
            if !parts.path.contains_key(name) {
                parts.notes.push(format!("the document does not describe {{{name}}} of the path"));
                let schema = Map::from_iter([("type".to_owned(), "string".into())]);
                let argument = parts.add_argument(name, "path", schema, true);
                parts.path.insert(name.to_owned(), argument);
            }
        }
        parts.read_body(&operation.definition["requestBody"])?;
        parts.notes.extend(std::mem::take(&mut parts.reader.notes));
        Ok(parts)
    }

    /// Adds an argument, and returns its name.
    fn add_argument(
        &mut self,
        name: &str,
        suffix: &str,
        mut schema: Map<String, Value>,
        is_required: bool,
    ) -> String {
        // The service applies its own default. A default in the configuration would be sent with every call.
        if let Some(default) = schema.remove("default") {
            append_to_description(&mut schema, &format!("Default: {default}."));
        }
        let name = argument_name(name, suffix, |name| self.arguments.contains_key(name));
        self.arguments.insert(name.clone(), Argument { schema, is_required });
        name
    }

    /// Adds the argument or the header of a parameter. Leaves out deprecated parameters that are not required.
    ///
    /// # Errors
    /// The reason why the parameter cannot be sent.
    fn add_parameter(
        &mut self,
        operation: &Operation<'_>,
        name: &str,
        location: &str,
        parameter: &Value,
    ) -> Result<(), &'static str> {
        let is_required = parameter["required"] == true;
        if parameter["deprecated"] == true && !is_required {
            return Ok(());
        }
        let content = members(&parameter["content"]).next();
        let definition = content.map_or(&parameter["schema"], |(_, media)| &media["schema"]);
        let mut schema = self.reader.read(definition);
        // The reader cleans and shortens the description.
        if let Some(text) = self.reader.read(parameter).remove("description") {
            schema.insert("description".to_owned(), text);
        }
        let has_type = |kind: &str| {
            let kinds = schema.get("type").into_iter();
            let mut kinds = kinds.flat_map(|t| t.as_array().map_or(std::slice::from_ref(t), |t| t));
            kinds.any(|name| name == kind)
        };
        let is_array = has_type("array");
        let is_object = has_type("object") || schema.contains_key("properties");
        let is_plain = !is_array && !is_object && !has_type("string");
        // A number or a boolean has the same text with and without the media type JSON.
        let is_number = is_plain && ["boolean", "integer", "number"].into_iter().any(has_type);
        if content.is_some_and(|(name, _)| !is_json(&essence(name))) {
            return Err("has a media type other than JSON");
        }
        // The host encodes an object as JSON, but not a text or a list. So an object needs the media type JSON, and
        // the others must not have it.
        if !is_number && is_object != content.is_some() {
            return Err("is an object, or has the form of a media type");
        }
        let style = parameter["style"].as_str().unwrap_or(match location {
            "query" => "form",
            _ => "simple",
        });
        let explodes = parameter["explode"].as_bool().unwrap_or(style == "form");
        match (location, style) {
            ("path", _) if !placeholders(operation.path).any(|placeholder| placeholder == name) => {
            }
            ("path", "simple") if !is_object => {
                let schema = if is_array { comma_separated(&schema) } else { schema };
                let argument = self.add_argument(name, location, schema, true);
                self.path.insert(name.to_owned(), argument);
            }
            ("query", "form") => {
                let schema = if is_array && !explodes { comma_separated(&schema) } else { schema };
                let argument = self.add_argument(name, location, schema, is_required);
                self.query.insert(name.to_owned(), argument);
            }
            ("header", _) => self.add_header(name, &schema, is_required),
            ("path" | "query", _) => return Err("has a style that kind = \"http\" does not write"),
            _ => return Err("cannot be sent by kind = \"http\""),
        }
        Ok(())
    }

    /// Adds a required header that has one possible value or a default. Arguments cannot be in headers, so other
    /// headers only get a comment. A header for an idempotency key becomes `idempotency_header`.
    fn add_header(&mut self, name: &str, schema: &Map<String, Value>, is_required: bool) {
        let lower = name.to_ascii_lowercase();
        if IGNORED_HEADERS.contains(&lower.as_str()) {
            return;
        }
        if lower.contains("idempotency") {
            self.idempotency_header = Some(name.to_owned());
            return;
        }
        let only = schema.get("enum").and_then(Value::as_array).filter(|values| values.len() == 1);
        let fixed = schema.get("const").or_else(|| only.and_then(|values| values.first()));
        let fixed = fixed.or_else(|| schema.get("default"));
        let fixed = fixed.map(|value| value.as_str().map_or(value.to_string(), str::to_owned));
        match fixed.filter(|_| is_required) {
            Some(text) => {
                self.headers.insert(name.to_owned(), text);
            }
            None => {
                let state = if is_required { "required" } else { "optional" };
                self.notes.push(format!(
                    "the header {name} is {state}; no argument can fill it, only a fixed value in `headers`"
                ));
            }
        }
    }

    /// Reads the body: as JSON if a media type is JSON or `*/*`, else as text.
    fn read_body(&mut self, body: &Value) -> Result<(), String> {
        if body.is_null() {
            return Ok(());
        }
        let body = self.document.resolve(body).map_err(|problem| format!("its body {problem}"))?;
        let is_required = body["required"] == true;
        let find = |fits: &dyn Fn(&str) -> bool| {
            members(&body["content"]).find(|(name, _)| fits(&essence(name)))
        };
        let media = find(&|name| name == "application/json")
            .or_else(|| find(&is_json))
            .or_else(|| find(&|name| name == "*/*"));
        if let Some((name, media)) = media {
            if essence(name).ends_with("+json") {
                self.headers.insert("content-type".to_owned(), essence(name));
            }
            return self.read_json_body(&media["schema"], is_required);
        }
        if let Some((name, media)) = find(&|name| name.starts_with("text/") && name != "text/xml") {
            self.headers.insert("content-type".to_owned(), essence(name));
            let mut schema = self.reader.read(&media["schema"]);
            schema.entry("type").or_insert_with(|| "string".into());
            let argument = self.add_argument("body", "text", schema, is_required);
            self.body = format!("text:{argument}");
            return Ok(());
        }
        let names: Vec<&str> = members(&body["content"]).map(|(name, _)| name.as_str()).collect();
        match names.is_empty() {
            true => Ok(()),
            false => {
                Err(format!("its body is {}, which kind = \"http\" cannot send", names.join(", ")))
            }
        }
    }

    /// Makes each property of the body an argument. If that is not possible, one argument holds the whole body as
    /// JSON.
    fn read_json_body(&mut self, definition: &Value, is_required: bool) -> Result<(), String> {
        let mut schema = self.reader.read(definition);
        let is_plain = schema.keys().all(|key| PLAIN_OBJECT_KEYWORDS.contains(&key.as_str()))
            && schema.get("type").is_none_or(|kind| kind == "object")
            && schema.get("additionalProperties").is_none_or(Value::is_boolean);
        let can_be_argument = |name: &String| {
            let accepted = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
            (1..=64).contains(&name.len())
                && name.bytes().all(accepted)
                && !self.arguments.contains_key(name)
        };
        let properties = schema.get("properties").and_then(Value::as_object).cloned();
        let properties = properties.filter(|properties| {
            is_plain && !properties.is_empty() && properties.keys().all(can_be_argument)
        });
        if let Some(properties) = properties {
            for (name, property) in properties {
                let is_required = requires(&schema, &name);
                let mut property = property.as_object().cloned().unwrap_or_default();
                if let Some(default) = property.remove("default") {
                    append_to_description(&mut property, &format!("Default: {default}."));
                }
                self.arguments.insert(name, Argument { schema: property, is_required });
            }
            self.body = "json".to_owned();
            return Ok(());
        }
        let kind = schema.entry("type").or_insert_with(|| json!(["object", "array"]));
        if *kind == "string"
            || kind.as_array().is_some_and(|kinds| kinds.contains(&"string".into()))
        {
            return Err("its body is JSON that can be a single text".to_owned());
        }
        let content_type = || "application/json".to_owned();
        self.headers.entry("content-type".to_owned()).or_insert_with(content_type);
        let argument = self.add_argument("body", "json", schema, is_required);
        self.body = format!("text:{argument}");
        Ok(())
    }
}

/// Returns a media type without its parameters, in lower case.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_json(media_type: &str) -> bool {
    media_type == "application/json" || media_type.ends_with("+json")
}

fn requires(schema: &Map<String, Value>, name: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|required| required.iter().any(|required| required == name))
}

/// Appends a sentence to the description of a schema.
fn append_to_description(schema: &mut Map<String, Value>, sentence: &str) {
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let end =
        if description.is_empty() || description.ends_with(['.', '!', '?']) { "" } else { "." };
    let text = format!("{description}{end} {sentence}");
    schema.insert("description".to_owned(), text.trim().into());
}

/// Returns the schema of a string that holds the items of a list, separated by commas.
fn comma_separated(list: &Map<String, Value>) -> Map<String, Value> {
    let mut schema = Map::from_iter([("type".to_owned(), "string".into())]);
    schema.extend(list.get("description").map(|text| ("description".to_owned(), text.clone())));
    let values = list.get("items").and_then(|items| items["enum"].as_array());
    let values = values.map(|values| format!(" of {}", Value::from(values.clone())));
    let values = values.unwrap_or_default();
    append_to_description(&mut schema, &format!("Several values{values} are separated by \",\"."));
    schema
}

/// Returns the names of the placeholders of a path.
fn placeholders(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|part| part.split('}').next())
}
