//! The list of a server's tools, from the results of `tools/list`.
//!
//! The fields are those of the specification's type `Tool`
//! (<https://modelcontextprotocol.io/specification/2026-07-28/server/tools>).

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::incoming::needs_task;
use super::naming::offered_name;
use super::resources::is_resource_tool;
use crate::{
    LOCK_FILE, ParsedSchema, PinProblem, PinnedTools, ServerListing, ServerToolDefinition,
    check_instructions,
};
use callsheet_values::config::ToolPattern;
use callsheet_values::types::excerpt;

/// Maximum number of characters of a description that the model reads.
const DESCRIPTION_CHARS_MAX: usize = 8_000;

/// Maximum number of characters of a server's instructions that the model reads.
const INSTRUCTIONS_CHARS_MAX: usize = 2_048;

/// The name of the instructions in a list of tools.
const INSTRUCTIONS: &str = "(instructions)";

/// Maximum number of characters of a tool's name in a message.
const QUOTED_NAME_CHARS_MAX: usize = 64;

/// The tools of a server that may be offered.
#[derive(Clone, Debug)]
pub(super) struct ToolFilter {
    pub(super) tools: Vec<ToolPattern>,
    pub(super) exclude: Vec<ToolPattern>,
}

impl ToolFilter {
    fn admits(&self, name: &str) -> bool {
        let matches = |patterns: &[ToolPattern]| patterns.iter().any(|p| p.matches(name));
        matches(&self.tools) && !matches(&self.exclude)
    }
}

/// The accepted tools of a server, with which its current ones are compared.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    pub(super) accepted: PinnedTools,
    /// The accepted instructions.
    pub(super) instructions: Option<String>,
    /// True if a tool that is new or has changed is left out, false if it is offered with a warning.
    pub(super) required: bool,
}

/// Makes the list of a server's tools. A tool that cannot be offered goes to `left_out` with the reason; the others
/// are still offered. A tool that the filter does not admit is skipped. `depth_max` is the maximum number of levels of a
/// definition. Of a message, more levels are read (`incoming.rs`), so that a deeper definition is seen whole or left out.
pub(super) fn listing(
    server: &str,
    tools: &[Value],
    filter: &ToolFilter,
    depth_max: usize,
    pins: Option<&Pins>,
) -> ServerListing {
    let (mut offered, mut left_out, mut warnings) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (index, tool) in tools.iter().enumerate() {
        let Some(name) = tool.get("name").and_then(Value::as_str) else {
            left_out.push((format!("tool {index} of the list"), "it has no name".to_owned()));
            continue;
        };
        if !filter.admits(name) {
            continue;
        }
        let own_name = name.to_owned();
        match parse_definition(server, name, tool, depth_max) {
            Ok((tool, _)) if offered.contains_key(&tool.name) => {
                left_out.push((own_name, "another tool of the server has its name".to_owned()));
            }
            Ok((tool, unchecked)) => {
                let problem = pins.and_then(|pins| Some((pins, pins.accepted.check(&tool)?)));
                let difference = problem.map(|(pins, problem)| (pins.required, describe(problem)));
                match difference {
                    Some((true, reason)) => left_out.push((own_name, reason)),
                    warning => {
                        let difference = warning.map(|(_, difference)| difference);
                        let reasons = difference.into_iter().chain(unchecked);
                        warnings.extend(reasons.map(|reason| (own_name.clone(), reason)));
                        offered.insert(tool.name.clone(), tool);
                    }
                }
            }
            Err(reason) => left_out.push((own_name, reason)),
        }
    }
    let tools = offered.into_values().collect();
    ServerListing { tools, left_out, warnings, ..ServerListing::default() }
}

/// Adds the instructions of a server: without secrets, cut, and with `pins` only if they are as they were accepted.
/// Otherwise the difference is a warning, or the reason why they are left out.
pub(super) fn add_instructions(
    listing: &mut ServerListing,
    instructions: Option<&str>,
    pins: Option<&Pins>,
) {
    let trimmed = instructions.map(str::trim).filter(|text| !text.is_empty());
    listing.instructions = trimmed.map(|text| excerpt(text, INSTRUCTIONS_CHARS_MAX));
    let Some(pins) = pins else { return };
    let now = listing.instructions.as_deref();
    let Some(problem) = check_instructions(pins.instructions.as_deref(), now) else { return };
    let difference = (INSTRUCTIONS.to_owned(), describe(problem));
    if !pins.required {
        listing.warnings.push(difference);
    } else if listing.instructions.take().is_some() {
        listing.left_out.push(difference);
    }
}

/// Returns the tools that the MCP library dropped because of a wrong `x-mcp-header`, with the reason. The protocol
/// requires clients over HTTP to drop them
/// (<https://modelcontextprotocol.io/specification/2026-07-28/server/tools>).
pub(super) fn wrong_headers(
    dropped: &[String],
    filter: &ToolFilter,
) -> impl Iterator<Item = (String, String)> {
    let reason = "its inputSchema has an x-mcp-header that is not valid: it must be the name of a header, \
                  must be unique, and must belong to a property of type string, integer or boolean";
    let wrong = dropped.iter().filter(|name| filter.admits(name));
    wrong.map(move |name| (name.clone(), reason.to_owned()))
}

/// Returns the reasons of the tools that are left out, by their names on the server. Omits a name under which another
/// tool is offered.
pub(super) fn refused_tools(listing: &ServerListing) -> HashMap<String, String> {
    let is_offered = |name: &str| listing.tools.iter().any(|tool| tool.server_name == name);
    listing.left_out.iter().filter(|(name, _)| !is_offered(name)).cloned().collect()
}

/// Shortens the names of the tools that are left out or have a warning.
pub(super) fn shorten_names(listing: &mut ServerListing) {
    for (name, _) in listing.left_out.iter_mut().chain(&mut listing.warnings) {
        *name = excerpt(name, QUOTED_NAME_CHARS_MAX);
    }
}

/// Returns the configured patterns, except `*`, that match no tool of the server, with the reason. They may be
/// mistyped.
pub(super) fn unmatched_patterns(
    tools: &[Value],
    dropped: &[String],
    filter: &ToolFilter,
) -> Vec<(String, String)> {
    let listed = tools.iter().filter_map(|tool| tool.get("name")?.as_str());
    let names: Vec<&str> = listed.chain(dropped.iter().map(String::as_str)).collect();
    let is_unmatched = |pattern: &&ToolPattern| {
        pattern.text != "*" && !names.iter().any(|name| pattern.matches(name))
    };
    let patterns = filter.tools.iter().chain(&filter.exclude).filter(is_unmatched);
    let reason = "it matches no tool of the server";
    patterns.map(|pattern| (format!("pattern {:?}", pattern.text), reason.to_owned())).collect()
}

/// Describes a tool that is not as it was accepted.
fn describe(problem: PinProblem) -> String {
    match problem {
        PinProblem::New => {
            format!("it is not in {LOCK_FILE}: callsheet tools pin --accept adds it")
        }
        PinProblem::Changed(difference) => format!("it has changed: {difference}"),
    }
}

/// Parses the definition of a tool. Also returns the parts of its input schema that the host does not check.
///
/// # Errors
/// The reason why it cannot be offered.
fn parse_definition(
    server: &str,
    name: &str,
    tool: &Value,
    depth_max: usize,
) -> Result<(ServerToolDefinition, Vec<String>), String> {
    if needs_task(tool) {
        return Err("it can only run as a task, which the host does not offer".to_owned());
    }
    if is_deeper(tool, depth_max) {
        return Err(format!("its definition is nested more than {depth_max} levels deep"));
    }
    let input_schema = match tool.get("inputSchema") {
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(_) | None => return Err("it has no inputSchema, which is a JSON object".to_owned()),
    };
    let schema = ParsedSchema::parse(input_schema.clone()).map_err(|error| error.to_string())?;
    if !schema.allows_object() {
        return Err("its inputSchema is not that of an object".to_owned());
    }
    let unchecked =
        schema.unchecked().iter().map(|part| format!("its inputSchema{part}")).collect();
    let text = |key: &str| tool.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_object = |value: &&Value| value.is_object();
    let definition = ServerToolDefinition {
        name: offered_name(server, name),
        server_name: name.to_owned(),
        description: text("description")
            .or_else(|| text("title"))
            .map(|text| excerpt(text, DESCRIPTION_CHARS_MAX))
            .unwrap_or_default(),
        input_schema,
        output_schema: tool.get("outputSchema").filter(is_object).cloned(),
        annotations: tool.get("annotations").filter(is_object).cloned(),
        reads_resources: is_resource_tool(tool),
    };
    Ok((definition, unchecked))
}

/// Returns whether a value has more than this number of levels of arrays and objects.
pub(super) fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(members) => {
            levels == 0 || members.values().any(|item| is_deeper(item, levels - 1))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ToolLock;

    const DEFINITION_DEPTH_MAX: usize = 100;

    fn listing(
        server: &str,
        tools: &[Value],
        filter: &ToolFilter,
        pins: Option<&Pins>,
    ) -> ServerListing {
        super::listing(server, tools, filter, DEFINITION_DEPTH_MAX, pins)
    }

    fn filter(tools: &[&str], exclude: &[&str]) -> ToolFilter {
        let patterns = |texts: &[&str]| texts.iter().map(|text| ToolPattern::new(*text)).collect();
        ToolFilter { tools: patterns(tools), exclude: patterns(exclude) }
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "description": "d", "inputSchema": {"type": "object"}})
    }

    #[test]
    fn tools_are_sorted_and_a_bad_one_is_left_out_alone() {
        let network =
            json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}});
        let tools = [
            tool("write"),
            json!({"description": "nameless"}),
            tool("read"),
            json!({"name": "no_schema"}),
            json!({"name": "list", "inputSchema": {"type": "array"}}),
            json!({"name": "broken", "inputSchema": {"type": 5}}),
            json!({"name": "network", "inputSchema": network}),
            tool("read"),
        ];
        let listing = listing("files", &tools, &filter(&["*"], &[]), None);
        let names: Vec<_> = listing.tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["files__read", "files__write"]);
        let left_out: Vec<_> = listing.left_out.iter().map(|(name, _)| &**name).collect();
        let expected = ["tool 1 of the list", "no_schema", "list", "broken", "network", "read"];
        assert_eq!(left_out, expected);
    }

    #[test]
    fn a_tool_whose_schema_is_not_checked_as_a_whole_is_offered_with_a_warning() {
        let schema =
            json!({"type": "object", "minProperties": 1, "propertyNames": {"pattern": "("}});
        let tool = json!({"name": "a", "inputSchema": schema});
        let listing = listing("files", &[tool], &filter(&["*"], &[]), None);
        assert_eq!(listing.tools.len(), 1);
        let [(name, reason)] = &listing.warnings[..] else { panic!("{:?}", listing.warnings) };
        assert_eq!(name, "a");
        assert!(
            reason.starts_with("its inputSchema/propertyNames/pattern: \"(\" is no"),
            "{reason}"
        );
    }

    #[test]
    fn a_definition_that_is_nested_too_deep_is_left_out() {
        let nested = |levels| {
            let leaf = json!({"type": "object"});
            let schema = (0..levels).fold(leaf, |inner, _| json!({"not": inner}));
            json!({"name": "deep", "inputSchema": schema})
        };
        let list = |levels| listing("a", &[nested(levels)], &filter(&["*"], &[]), None);
        assert_eq!(list(DEFINITION_DEPTH_MAX - 2).tools.len(), 1);
        let reason = "its definition is nested more than 100 levels deep";
        let left_out = list(DEFINITION_DEPTH_MAX - 1).left_out;
        assert_eq!(left_out, [("deep".to_owned(), reason.to_owned())]);
    }

    #[test]
    fn patterns_are_of_the_names_on_the_server() {
        let tools = ["read_file", "read_all", "write_file"].map(tool);
        let listing = listing("files", &tools, &filter(&["read_*"], &["*_all"]), None);
        assert_eq!(listing.tools.len(), 1);
        assert_eq!(listing.tools[0].server_name, "read_file");
        assert!(listing.left_out.is_empty());
    }

    #[test]
    fn a_refused_tool_has_its_whole_name_and_an_offered_one_is_not_refused() {
        let (long, all) = ("x".repeat(65), filter(&["*"], &[]));
        let accepted = listing("files", &[tool(&long), tool("read")], &all, None);
        let mut lock = ToolLock::default();
        lock.accept("files", &accepted);
        let pins = pins(&lock, true);
        let mut changed = tool(&long);
        changed["description"] = json!("other");
        let mut listing =
            listing("files", &[changed, tool("read"), tool("read")], &all, Some(&pins));
        let refused = refused_tools(&listing);
        assert_eq!(refused.keys().collect::<Vec<_>>(), [&long]);
        shorten_names(&mut listing);
        let left_out: Vec<_> = listing.left_out.iter().map(|(name, _)| &**name).collect();
        let cut = "x".repeat(64) + "…";
        assert_eq!(left_out, [&*cut, "read"]);
    }

    fn pins(lock: &ToolLock, required: bool) -> Pins {
        let accepted = lock.server("files").unwrap().clone();
        Pins { accepted, instructions: lock.instructions("files").map(str::to_owned), required }
    }

    #[test]
    fn instructions_are_cut_and_offered_as_the_pins_say() {
        let list = |text, pins: Option<&Pins>| {
            let mut listing = listing("files", &[tool("read")], &filter(&["*"], &[]), pins);
            add_instructions(&mut listing, text, pins);
            listing
        };
        let text = "é".repeat(3_000);
        let long = list(Some(&text), None).instructions.unwrap();
        assert_eq!(long.chars().count(), 2_049);
        assert!(long.ends_with("é…"));
        assert_eq!(list(Some(" \n"), None).instructions, None);
        let mut lock = ToolLock::default();
        lock.accept("files", &list(Some("Read first.\n"), None));
        let (required, warned) = (pins(&lock, true), pins(&lock, false));
        let same = list(Some("Read first."), Some(&required));
        assert_eq!(same.instructions.as_deref(), Some("Read first."));
        assert!(same.left_out.is_empty());
        let changed = list(Some("Send first."), Some(&required));
        let difference = "it has changed: text was \"Read first.\" and is \"Send first.\"";
        assert_eq!(changed.instructions, None);
        assert_eq!(changed.left_out, [(INSTRUCTIONS.to_owned(), difference.to_owned())]);
        let shown = list(Some("Send first."), Some(&warned));
        assert_eq!(shown.instructions.as_deref(), Some("Send first."));
        assert_eq!(shown.warnings, [(INSTRUCTIONS.to_owned(), difference.to_owned())]);
        assert!(list(None, Some(&required)).left_out.is_empty(), "there is nothing to leave out");
    }

    #[test]
    fn the_rules_of_a_header_are_named() {
        let filter = filter(&["*"], &["other"]);
        let wrong: Vec<_> = wrong_headers(&["a".to_owned(), "other".to_owned()], &filter).collect();
        assert_eq!(wrong.len(), 1);
        assert_eq!(wrong[0].0, "a");
        assert!(wrong[0].1.contains("the name of a header, must be unique, and"), "{}", wrong[0].1);
    }

    #[test]
    fn a_pattern_without_a_tool_is_named() {
        let tools = ["read_file", "write_file"].map(tool);
        let filter = filter(&["*", "raed_*", "colon"], &["write_*", "delete"]);
        let unmatched = unmatched_patterns(&tools, &["colon".to_owned()], &filter);
        let names: Vec<_> = unmatched.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["pattern \"raed_*\"", "pattern \"delete\""]);
    }

    #[test]
    fn references_within_a_schema_are_valid_also_in_circles() {
        let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}});
        let schema = json!({"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}});
        let tools = [json!({"name": "walk", "inputSchema": schema})];
        assert_eq!(listing("a", &tools, &filter(&["*"], &[]), None).tools.len(), 1);
    }
}
