//! Pinned definitions of servers' tools: the file `callsheet-tools.lock`.
//!
//! A server can change what its tools claim to do after an operator has read it. With `pin = "warn"` or `"require"`
//! the host compares each definition with the one that was accepted. The file is a JSON object of servers by name;
//! each is an object of definitions by the tool's name on the server. Its member `#instructions` has the instructions of the
//! servers by their names. Neither the order of keys nor white space
//! matters.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ServerListing, ServerToolDefinition};
use callsheet_values::types::excerpt;

/// The name of the lock file, which lies beside the configuration.
pub const LOCK_FILE: &str = "callsheet-tools.lock";

/// Maximum number of differences of a tool that are described, and of characters of a value.
const DIFFERENCES_MAX: usize = 5;
const VALUE_CHARS_MAX: usize = 200;

/// The accepted definitions of the tools of all servers, and their accepted instructions, by the server's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLock {
    /// No server can have the name of this member.
    #[serde(rename = "#instructions", skip_serializing_if = "BTreeMap::is_empty", default)]
    instructions: BTreeMap<String, String>,
    #[serde(flatten)]
    servers: BTreeMap<String, PinnedTools>,
}

/// The accepted definitions of a server's tools, by their names on the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PinnedTools(BTreeMap<String, PinnedTool>);

/// The parts of a tool that the model reads, and those that the host trusts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PinnedTool {
    description: String,
    input_schema: Value,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    output_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    annotations: Option<Value>,
}

/// A tool that is not as it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinProblem {
    /// It was not accepted.
    New,
    /// Its definition has changed. The text describes the difference.
    Changed(String),
}

impl ToolLock {
    /// Reads a lock file. Returns `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is no lock file.
    pub fn read(file: &Path) -> Result<Option<Self>, String> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
        let remedy = "restore the file, or delete it and run callsheet tools pin --accept";
        let lock = serde_json::from_str(&text);
        lock.map(Some).map_err(|error| format!("{}: {error}; {remedy}", file.display()))
    }

    /// Returns the names of the servers with accepted tools.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    /// Returns the accepted tools of a server.
    pub fn server(&self, name: &str) -> Option<&PinnedTools> {
        self.servers.get(name)
    }

    /// Returns the accepted instructions of a server.
    pub fn instructions(&self, server: &str) -> Option<&str> {
        self.instructions.get(server).map(String::as_str)
    }

    /// Accepts the tools and the instructions of a server as they are. Forgets those that it no longer has.
    pub fn accept(&mut self, server: &str, listing: &ServerListing) {
        let tools = listing.tools.iter();
        let pinned = tools.map(|tool| (tool.server_name.clone(), PinnedTool::of(tool)));
        self.servers.insert(server.to_owned(), PinnedTools(pinned.collect()));
        self.instructions.remove(server);
        let instructions = listing.instructions.clone();
        self.instructions.extend(instructions.map(|text| (server.to_owned(), text)));
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Compares the instructions of a server with the accepted ones. Returns `None` if they are equal.
pub fn check_instructions(accepted: Option<&str>, now: Option<&str>) -> Option<PinProblem> {
    match (accepted, now) {
        (None, Some(_)) => Some(PinProblem::New),
        (accepted, now) if accepted == now => None,
        (accepted, now) => {
            let json = |text: Option<&str>| text.map(Value::from);
            let mut differences = Vec::new();
            compare("text", json(accepted).as_ref(), json(now).as_ref(), &mut differences);
            Some(PinProblem::Changed(differences.concat()))
        }
    }
}

impl PinnedTools {
    /// Compares a tool with the accepted one. Returns `None` if they are equal.
    pub fn check(&self, tool: &ServerToolDefinition) -> Option<PinProblem> {
        let Some(pinned) = self.0.get(&tool.server_name) else { return Some(PinProblem::New) };
        let now = PinnedTool::of(tool);
        if *pinned == now {
            return None;
        }
        let json = |tool| serde_json::to_value(tool).unwrap_or_default();
        let mut differences = Vec::new();
        compare("", Some(&json(pinned)), Some(&json(&now)), &mut differences);
        let more = differences.len().saturating_sub(DIFFERENCES_MAX);
        differences.truncate(DIFFERENCES_MAX);
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        Some(PinProblem::Changed(differences.join("; ")))
    }

    /// Returns the names of the accepted tools that the server no longer has.
    pub fn gone(&self, tools: &[ServerToolDefinition]) -> Vec<&str> {
        let is_there = |name: &str| tools.iter().any(|tool| tool.server_name == name);
        self.0.keys().map(String::as_str).filter(|name| !is_there(name)).collect()
    }
}

impl PinnedTool {
    fn of(tool: &ServerToolDefinition) -> Self {
        Self {
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
            output_schema: tool.output_schema.clone(),
            annotations: tool.annotations.clone(),
        }
    }
}

/// Collects the differences of two values, with the paths to them. `None` is an absent value, which differs from null.
fn compare(path: &str, before: Option<&Value>, now: Option<&Value>, differences: &mut Vec<String>) {
    if let (Some(Value::Object(before)), Some(Value::Object(now))) = (before, now) {
        let added = now.keys().filter(|key| !before.contains_key(*key));
        for key in before.keys().chain(added) {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            compare(&path, before.get(key), now.get(key), differences);
        }
    } else if before != now {
        let shown = |value: Option<&Value>| match value {
            None => "absent".to_owned(),
            Some(value) => excerpt(&value.to_string(), VALUE_CHARS_MAX),
        };
        differences.push(format!("{path} was {} and is {}", shown(before), shown(now)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, text: &str, schema: Value) -> ServerToolDefinition {
        ServerToolDefinition {
            name: format!("files__{name}"),
            server_name: name.to_owned(),
            description: text.to_owned(),
            input_schema: schema,
            output_schema: None,
            annotations: None,
            reads_resources: false,
        }
    }

    fn listing(tools: Vec<ServerToolDefinition>, instructions: Option<&str>) -> ServerListing {
        let instructions = instructions.map(str::to_owned);
        ServerListing { tools, instructions, ..ServerListing::default() }
    }

    fn schema(properties: &str) -> Value {
        serde_json::from_str(&format!(r#"{{"type": "object", "properties": {properties}}}"#))
            .unwrap()
    }

    #[test]
    fn a_tool_is_compared_with_the_accepted_one() {
        let accepted = tool("read", "Reads.", schema(r#"{"a": {"type": "string"}, "b": {}}"#));
        let mut lock = ToolLock::default();
        let tools = vec![accepted.clone(), tool("list", "Lists.", schema("{}"))];
        lock.accept("files", &listing(tools, None));
        let lock: ToolLock = serde_json::from_str(&lock.to_text()).unwrap();
        let pinned = lock.server("files").unwrap();
        assert_eq!(pinned.check(&accepted), None);
        let reordered = tool("read", "Reads.", schema(r#"{"b": {}, "a": {"type": "string"}}"#));
        assert_eq!(pinned.check(&reordered), None, "the order of keys does not matter");
        assert_eq!(pinned.check(&tool("write", "", json!({}))), Some(PinProblem::New));
        let changed = tool(
            "read",
            "Reads, and sends a copy.",
            schema(r#"{"a": {"type": "integer"}, "b": {}, "to": {}}"#),
        );
        let difference = "description was \"Reads.\" and is \"Reads, and sends a copy.\"; \
                          input_schema.properties.a.type was \"string\" and is \"integer\"; \
                          input_schema.properties.to was absent and is {}";
        assert_eq!(pinned.check(&changed), Some(PinProblem::Changed(difference.to_owned())));
        let null = schema(r#"{"a": {"type": "string", "default": null}, "b": {}}"#);
        let difference = "input_schema.properties.a.default was absent and is null";
        let changed = pinned.check(&tool("read", "Reads.", null));
        assert_eq!(changed, Some(PinProblem::Changed(difference.to_owned())));
        assert_eq!(pinned.gone(&[accepted]), ["list"]);
        assert!(lock.server("other").is_none());
    }

    #[test]
    fn a_difference_is_short() {
        let properties = |kind: &str| {
            let each = (0..20).map(|n| format!(r#""p{n}": {{"type": "{kind}"}}"#));
            format!("{{{}}}", each.collect::<Vec<_>>().join(","))
        };
        let mut lock = ToolLock::default();
        let long = "x".repeat(9_000);
        let tools = vec![tool("read", &long, schema(&properties("string")))];
        lock.accept("files", &listing(tools, None));
        let changed = tool("read", "short", schema(&properties("number")));
        let Some(PinProblem::Changed(text)) = lock.server("files").unwrap().check(&changed) else {
            panic!("it has changed");
        };
        assert!(text.len() < 1_000 && text.ends_with("; and 16 more"), "{text}");
    }

    #[test]
    fn instructions_are_compared_and_an_older_file_has_none() {
        let mut lock: ToolLock = serde_json::from_str(r#"{"files": {}}"#).unwrap();
        assert_eq!((lock.servers().count(), lock.instructions("files")), (1, None));
        lock.accept("files", &listing(Vec::new(), Some("Read first.")));
        let mut lock: ToolLock = serde_json::from_str(&lock.to_text()).unwrap();
        assert_eq!(lock.servers().collect::<Vec<_>>(), ["files"]);
        let check = |now| check_instructions(lock.instructions("files"), now);
        assert_eq!(check(Some("Read first.")), None);
        let difference = "text was \"Read first.\" and is \"Send first.\"";
        assert_eq!(check(Some("Send first.")), Some(PinProblem::Changed(difference.to_owned())));
        let gone = "text was \"Read first.\" and is absent";
        assert_eq!(check(None), Some(PinProblem::Changed(gone.to_owned())));
        assert_eq!(check_instructions(None, Some("New.")), Some(PinProblem::New));
        assert_eq!(check_instructions(None, None), None);
        lock.accept("files", &listing(Vec::new(), None));
        assert_eq!(lock.instructions("files"), None);
    }
}
