//! Writes the table `[tools.NAME]` of an operation.

use serde_json::{Map, Value, json};

use super::arguments::{Argument, RequestParts};
use super::document::{OpenApiDocument, Operation, members};
use super::security::{SecretHeader, is_secret_variable, secret_headers};
use super::toml_text::{comment, inline_value, key, string, string_table};
use callsheet_tools::ToolRegistry;
use callsheet_values::config::Config;
use callsheet_values::types::{one_line, sanitize_text};

/// Maximum length of a tool's description.
const DESCRIPTION_CHARS_MAX: usize = 300;

/// The server if the document names none. Names below `.invalid` never resolve, see
/// [RFC 6761, section 6.4](https://www.rfc-editor.org/rfc/rfc6761#section-6.4).
const UNKNOWN_SERVER: &str = "https://server.invalid";

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
    let parts = RequestParts::read(document, operation)?;
    let text = format_table(document, operation, &parts);
    check(&operation.name, &text).map(|()| text)
}

/// Checks that the host accepts the table of a tool.
///
/// # Errors
/// The first problem, without the name of the table.
fn check(name: &str, text: &str) -> Result<(), String> {
    // The check must not depend on the environment of this process: the secrets need not be set yet.
    let env = |name: &str| is_secret_variable(name).then(|| "secret".to_owned());
    let checked = Config::parse(text, "", &env)
        .and_then(|config| ToolRegistry::new().register_configured(&config));
    checked.map_err(|error| {
        let error = error.to_string();
        let line = error.lines().next().unwrap_or_default();
        line.split_once(&format!("tools.{name}.")).map_or(line, |(_, rest)| rest).to_owned()
    })
}

fn format_table(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
    parts: &RequestParts<'_>,
) -> String {
    let Operation { name, method, path, definition, .. } = operation;
    let secrets = secret_headers(document, operation);
    let (url, url_note) = url_template(document, operation, parts);
    let mut text = comment(&format!("{method} {path}"));
    for note in parts.notes.iter().chain(secrets.as_ref().err()).chain(&url_note) {
        text.push_str(&comment(note));
    }
    let secrets = secrets.unwrap_or_default();
    let described = |key: &str| definition[key].as_str().filter(|text| !text.trim().is_empty());
    let description = described("summary").or_else(|| described("description"));
    let description = description.map_or_else(|| format!("{method} {path}"), str::to_owned);
    let description = sanitize_text(&one_line(&description, DESCRIPTION_CHARS_MAX));
    // The first call of `line` also writes the head of the table.
    let mut line = |name: &str, value: String| text.push_str(&format!("{name} = {value}\n"));
    line(&format!("[tools.{name}]\nkind"), string("http"));
    line("description", string(&description));
    line("method", string(method));
    line("url", string(&url));
    let query: Vec<(&String, String)> =
        parts.query.iter().map(|(name, argument)| (name, format!("{{{argument}}}"))).collect();
    if !query.is_empty() {
        line("query", string_table(query.iter().map(|(name, template)| (*name, template))));
    }
    let is_secret =
        |name: &str| secrets.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    let headers: Vec<_> = parts.headers.iter().filter(|(name, _)| !is_secret(name)).collect();
    if !headers.is_empty() {
        line("headers", string_table(headers));
    }
    if !secrets.is_empty() {
        line("secret_headers", secret_table(&secrets));
    }
    let default = if matches!(method.as_str(), "GET" | "DELETE") { "none" } else { "json" };
    if parts.body != default {
        line("body", string(&parts.body));
    }
    let statuses = ok_statuses(definition);
    if !statuses.is_empty() {
        line("ok_status", inline_value(&json!(statuses)));
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
    text.push_str(&input_table(name, parts));
    text
}

/// Returns the table of the arguments.
fn input_table(tool: &str, parts: &RequestParts<'_>) -> String {
    if parts.arguments.is_empty() {
        return String::new();
    }
    let required = parts.arguments.iter().filter(|(_, argument)| argument.is_required);
    let required: Vec<&String> = required.map(|(name, _)| name).collect();
    let mut text = format!(
        "\n[tools.{tool}.input_schema]\ntype = \"object\"\nrequired = {}\nadditionalProperties = false\n",
        inline_value(&json!(required))
    );
    for (name, Argument { schema, .. }) in &parts.arguments {
        let schema = inline_value(&Value::from(schema.clone()));
        text.push_str(&format!("properties.{} = {schema}\n", key(name)));
    }
    text
}

/// Returns the value of `secret_headers`, with a comment that describes the value of each variable.
fn secret_table(headers: &[SecretHeader]) -> String {
    let entries = headers.iter().map(|header| (&header.name, &header.variable));
    let contents = headers.iter().map(|header| format!("{}: {}", header.variable, header.content));
    let contents = comment(&contents.collect::<Vec<_>>().join("; "));
    format!("{}  {}", string_table(entries), contents.trim_end())
}

/// Returns the template of the URL, and a comment if the user must complete the server.
fn url_template(
    document: &OpenApiDocument,
    operation: &Operation<'_>,
    parts: &RequestParts<'_>,
) -> (String, Option<String>) {
    let operation_servers = &operation.definition["servers"];
    let path_servers = &operation.path_item["servers"];
    let document_servers = document.at("/servers").unwrap_or(&Value::Null);
    let all_servers = [operation_servers, path_servers, document_servers];
    let server = all_servers.into_iter().find_map(|servers| servers.get(0));
    let server = server.unwrap_or(&Value::Null);
    let mut url = server["url"].as_str().unwrap_or_default().trim().to_owned();
    for (name, variable) in members(&server["variables"]) {
        let default = variable["default"].as_str().unwrap_or_default();
        url = url.replace(&format!("{{{name}}}"), default);
    }
    // Braces of the server are no placeholders.
    let url = url.trim_end_matches('/').replace('{', "{{");
    let mut note = None;
    let url = match url.starts_with("https://") || url.starts_with("http://") {
        true => url,
        false => {
            let found = if url.is_empty() { "no server" } else { "no absolute URL of its server" };
            note = Some(format!("the document has {found}: replace server.invalid"));
            format!("{UNKNOWN_SERVER}/{}", url.trim_start_matches('/'))
                .trim_end_matches('/')
                .to_owned()
        }
    };
    if url.contains('{') {
        let fill_in = "fill in the variables of the server";
        note = Some(note.map_or(fill_in.to_owned(), |note| format!("{note}, and {fill_in}")));
    }
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

/// Returns the statuses of success that the operation documents. Returns an empty list if it documents none or `2XX`.
fn ok_statuses(definition: &Value) -> Vec<u16> {
    let responses = definition["responses"].as_object();
    let names = || responses.into_iter().flat_map(Map::keys);
    if names().any(|name| name.eq_ignore_ascii_case("2XX")) {
        return Vec::new();
    }
    names().filter_map(|name| name.parse().ok()).filter(|s| (200..300).contains(s)).collect()
}
