//! Writes the table `[tools.NAME]` of an operation.

use serde_json::{Map, Value, json};

use super::arguments::{Argument, RequestParts};
use super::document::{OpenApiDocument, Operation, members};
use super::schema::remove_patterns;
use super::security::{OperationSecurity, SecretHeader, is_secret_variable};
use super::toml_text::{comment, inline, key, string, texts};
use crate::config::Config;
use crate::tool::ToolRegistry;
use crate::types::{harmless, one_line};

/// Maximum length of a tool's description.
const DESCRIPTION_CHARS_MAX: usize = 300;

/// Stands for a host that the document does not name. It never has an address (RFC 6761).
const UNKNOWN_HOST: &str = "https://server.invalid";

/// Returns the table of an operation, with comments.
///
/// # Errors
/// The reason why the operation is left out.
pub(super) fn tool_table(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
) -> Result<String, String> {
    if operation.definition["deprecated"] == true {
        return Err("it is deprecated".to_owned());
    }
    if !["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&operation.method.as_str()) {
        return Err(format!("kind = \"http\" does not send {}", operation.method));
    }
    let mut parts = RequestParts::read(document, operation)?;
    let text = write(document, operation, &parts);
    let Err(problem) = check(&operation.name, &text) else { return Ok(text) };
    // Many patterns are not regular expressions of JSON Schema.
    let mut has_patterns = false;
    for argument in parts.arguments.values_mut() {
        let mut schema = Value::from(std::mem::take(&mut argument.schema));
        has_patterns |= remove_patterns(&mut schema);
        argument.schema = schema.as_object().cloned().unwrap_or_default();
    }
    if has_patterns {
        parts.notes.push("without the patterns of its texts, of which one is not valid".to_owned());
        let text = write(document, operation, &parts);
        return check(&operation.name, &text).map(|()| text);
    }
    Err(problem)
}

/// Checks that the host accepts the table of a tool.
///
/// # Errors
/// The first problem, without the place.
fn check(name: &str, text: &str) -> Result<(), String> {
    // Secrets need not be set yet.
    let env = |name: &str| is_secret_variable(name).then(|| "secret".to_owned());
    let checked = Config::parse(text, "", &env)
        .and_then(|config| ToolRegistry::new().register_configured(&config));
    checked.map_err(|error| {
        let error = error.to_string();
        let line = error.lines().next().unwrap_or_default();
        line.split_once(&format!("tools.{name}.")).map_or(line, |(_, rest)| rest).to_owned()
    })
}

fn write(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
    parts: &RequestParts<'_>,
) -> String {
    let Operation { name, method, path, definition, .. } = operation;
    let security = OperationSecurity::read(document, operation);
    let (url, url_note) = url(document, operation, parts);
    let mut text = comment(&format!("{method} {path}"));
    for note in parts.notes.iter().chain(&security.notes).chain(&url_note) {
        text.push_str(&comment(note));
    }
    if !security.suggested.is_empty() {
        text.push_str(&format!("# secret_headers = {}\n", secret_headers(&security.suggested)));
    }
    let described = |key: &str| definition[key].as_str().filter(|text| !text.trim().is_empty());
    let description = described("summary").or_else(|| described("description"));
    let description = description.map_or_else(|| format!("{method} {path}"), str::to_owned);
    let description = harmless(&one_line(&description, DESCRIPTION_CHARS_MAX));
    let mut line = |name: &str, value: String| text.push_str(&format!("{name} = {value}\n"));
    line(&format!("[tools.{name}]\nkind"), string("http"));
    line("description", string(&description));
    line("method", string(method));
    line("url", string(&url));
    let query: Vec<(&String, String)> =
        parts.query.iter().map(|(name, argument)| (name, format!("{{{argument}}}"))).collect();
    if !query.is_empty() {
        line("query", texts(query.iter().map(|(name, template)| (*name, template))));
    }
    let is_secret =
        |name: &str| security.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    let headers: Vec<_> = parts.headers.iter().filter(|(name, _)| !is_secret(name)).collect();
    if !headers.is_empty() {
        line("headers", texts(headers));
    }
    if !security.headers.is_empty() {
        line("secret_headers", secret_headers(&security.headers));
    }
    let default = if matches!(method.as_str(), "GET" | "DELETE") { "none" } else { "json" };
    if parts.body != default {
        line("body", string(&parts.body));
    }
    let statuses = ok_statuses(definition);
    if !statuses.is_empty() {
        line("ok_status", inline(&json!(statuses)));
    }
    if let Some(header) = &parts.idempotency_header {
        line("idempotency_header", string(header));
    }
    text.push_str(match method.as_str() {
        "GET" => "idempotent = true\ndestructive = false\n",
        "PUT" => "# idempotent = true  # if a second request changes nothing more\n",
        "DELETE" => {
            "destructive = true\n# idempotent = true  # if a second request changes nothing more\n"
        }
        _ => "",
    });
    text.push_str(&input(name, parts));
    text
}

/// Returns the table of the arguments: `input` if all are required, and otherwise `input_schema`.
fn input(tool: &str, parts: &RequestParts<'_>) -> String {
    let is_required = |entry: &(&String, &Argument)| entry.1.is_required;
    let required: Vec<&String> =
        parts.arguments.iter().filter(is_required).map(|(name, _)| name).collect();
    if parts.arguments.is_empty() {
        return String::new();
    }
    let (mut text, prefix) = match required.len() == parts.arguments.len() {
        true => (format!("\n[tools.{tool}.input]\n"), ""),
        false => {
            let required = inline(&json!(required));
            let head = format!("type = \"object\"\nrequired = {required}\n");
            let head = format!("{head}additionalProperties = false\n");
            (format!("\n[tools.{tool}.input_schema]\n{head}"), "properties.")
        }
    };
    for (name, argument) in &parts.arguments {
        let schema = inline(&Value::from(argument.schema.clone()));
        text.push_str(&format!("{prefix}{} = {schema}\n", key(name)));
    }
    text
}

/// Returns the value of `secret_headers`, with a comment on what the variables hold.
fn secret_headers(headers: &[SecretHeader]) -> String {
    let entries = headers.iter().map(|header| (&header.name, &header.variable));
    let contents: Vec<String> = match headers {
        [header] => vec![header.content.to_owned()],
        _ => headers.iter().map(|h| format!("{}: {}", h.variable, h.content)).collect(),
    };
    let contents = comment(&contents.join("; "));
    format!("{}  {}", texts(entries), contents.trim_end())
}

/// Returns the template of the URL, and a comment on the server.
fn url(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
    parts: &RequestParts<'_>,
) -> (String, Option<String>) {
    let holders = [&operation.definition["servers"], &operation.path_item["servers"]];
    let all = document.at("/servers").unwrap_or(&Value::Null);
    let servers = holders.into_iter().chain([all]).find_map(|servers| servers.get(0));
    let server = servers.unwrap_or(&Value::Null);
    let mut url = server["url"].as_str().unwrap_or_default().trim().to_owned();
    for (name, variable) in members(&server["variables"]) {
        let default = variable["default"].as_str().unwrap_or_default();
        url = url.replace(&format!("{{{name}}}"), default);
    }
    let mut note = url.contains('{').then(|| format!("fill in the server's variables: {url}"));
    let url = url.trim_end_matches('/').replace('{', "{{");
    let url = match url.starts_with("https://") || url.starts_with("http://") {
        true => url,
        false => {
            note = Some(match url.as_str() {
                "" => "the document names no server: replace server.invalid".to_owned(),
                url => format!("the server is relative ({url}): replace server.invalid"),
            });
            let path = url.trim_start_matches('/');
            if path.is_empty() { UNKNOWN_HOST.to_owned() } else { format!("{UNKNOWN_HOST}/{path}") }
        }
    };
    let mut path = String::new();
    for (at, part) in operation.path.split('{').enumerate() {
        match part.split_once('}').filter(|_| at > 0) {
            Some((name, literal)) => {
                let argument = parts.path.get(name).map_or(name, String::as_str);
                path.push_str(&format!("{{{argument}}}{literal}"));
            }
            None => path.push_str(part),
        }
    }
    (format!("{url}{path}"), note)
}

/// Returns the statuses of success that the operation documents. Empty if it documents none or all.
fn ok_statuses(definition: &Value) -> Vec<u16> {
    let responses = definition["responses"].as_object();
    let names = || responses.into_iter().flat_map(Map::keys);
    if names().any(|name| name.eq_ignore_ascii_case("2XX")) {
        return Vec::new();
    }
    names().filter_map(|name| name.parse().ok()).filter(|s| (200..300).contains(s)).collect()
}
