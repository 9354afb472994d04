//! Errors of requests that a service refuses because of their tools.
//!
//! The wordings are those of reports about the services: OpenAI ("Invalid schema for function 'f'",
//! `tools[3].function.description`), Anthropic (`tools.3.custom.input_schema: ..`), Gemini
//! (`tools[0].function_declarations[3].parameters..`), Python's validators (`'tools', 3, 'function'`), and engines that
//! compile a grammar of all schemas and name none of them.

use serde_json::Value;

use super::request::ToolDefinition;
use callsheet_values::types::{ProviderError, ProviderErrorKind, ToolRefusal};

/// Words that an error about the definition of a tool has beside the tool's name, in lower case.
const DEFINITION_WORDS: [&str; 12] = [
    "schema",
    "function.parameters",
    "function parameters",
    "invalid parameters",
    "parameters for",
    "function declaration",
    "function_declaration",
    "tool definition",
    "invalid tool",
    "invalid function",
    "function name",
    "grammar",
];

/// Words of errors about calls and results in the history, or about the choice of a tool.
const OTHER_WORDS: [&str; 8] = [
    "tool_call",
    "tool call",
    "tool_use",
    "tool_result",
    "tool result",
    "tool choice",
    "tool_choice",
    "response_format",
];

/// Texts of errors about a schema that they do not name, in lower case.
const UNNAMED_TEXTS: [&str; 21] = [
    // llama.cpp.
    "failed to parse grammar",
    "error parsing grammar",
    "failed to initialize samplers",
    "json schema conversion failed",
    "unrecognized schema",
    "pattern must start with",
    // vLLM, SGLang and their engines.
    "failed to convert the grammar",
    "invalid grammar",
    "grammar compilation",
    "failed to compile",
    "unsupported json schema",
    "invalid json schema",
    // Gemini, OpenAI, Anthropic.
    "too many states",
    "json schema is invalid",
    "is not a 'regex'",
    "invalid tool schema",
    "invalid schema",
    "unsupported schema",
    "invalid function schema",
    // Ollama.
    "go struct field chatrequest.tools",
    // Moonshot, of a name.
    "function name is invalid",
];

/// Keywords that every service is known to accept in the schema of a tool.
const PLAIN_KEYWORDS: [&str; 9] = [
    "type",
    "properties",
    "required",
    "description",
    "title",
    "enum",
    "items",
    "default",
    "additionalProperties",
];

/// Returns the tools because of which a service refused a request. `tools` are those of the request, in its order,
/// under the names that were sent. `None` if the error is about something else.
pub fn find_refused_tools(
    error: &ProviderError,
    tools: &[ToolDefinition],
    has_output_schema: bool,
) -> Option<ToolRefusal> {
    let is_refusal = match error.kind {
        ProviderErrorKind::Status | ProviderErrorKind::InStream => {
            matches!(error.status, None | Some(400 | 404 | 422 | 500)) && error.overflow.is_none()
        }
        ProviderErrorKind::Connect
        | ProviderErrorKind::Timeout
        | ProviderErrorKind::Transport
        | ProviderErrorKind::Malformed
        | ProviderErrorKind::TooLarge
        | ProviderErrorKind::UnparsableOutput
        | ProviderErrorKind::BreakerOpen
        | ProviderErrorKind::EmptyAnswer
        | ProviderErrorKind::Refused => false,
    };
    if !is_refusal || tools.is_empty() {
        return None;
    }
    let text = error.message.as_str();
    let lower = text.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let mut named: Vec<usize> = positions(&lower);
    named.retain(|position| *position < tools.len());
    if named.is_empty() && has(&DEFINITION_WORDS) && !has(&OTHER_WORDS) {
        let mentions = |wanted: ToolMention| {
            let is_wanted = move |(_, tool): &(usize, &ToolDefinition)| {
                tool_mention(text, &tool.name) == Some(wanted)
            };
            tools.iter().enumerate().filter(is_wanted).map(|(at, _)| at).collect::<Vec<_>>()
        };
        named = mentions(ToolMention::Called);
        if named.is_empty() {
            // The quoted name may also be that of a property.
            named = mentions(ToolMention::Quoted);
        }
    }
    let name = |at: &usize| tools.get(*at).map(|tool| tool.name.clone());
    if !named.is_empty() {
        named.sort_unstable();
        named.dedup();
        return Some(ToolRefusal::Named(named.iter().filter_map(name).collect()));
    }
    // The schema of a typed answer may be meant.
    let is_unnamed =
        has(&UNNAMED_TEXTS) && !lower.contains("response_format") && !has_output_schema;
    if !is_unnamed {
        return None;
    }
    // The schema does not tell which name is refused.
    let is_name = lower.contains("function name");
    let is_suspect = |tool: &&ToolDefinition| is_name || has_suspect_keywords(&tool.schema);
    let suspects = tools.iter().filter(is_suspect).map(|tool| tool.name.clone());
    let suspects: Vec<String> = suspects.collect();
    Some(ToolRefusal::Suspected(match suspects.as_slice() {
        [] => tools.iter().map(|tool| tool.name.clone()).collect(),
        _ => suspects,
    }))
}

/// Returns the positions of tools that an error names by index.
fn positions(lower: &str) -> Vec<usize> {
    let numbers = |prefix: &str| {
        let found = lower.match_indices(prefix).filter_map(|(at, _)| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let before = lower.get(..at).unwrap_or_default();
            // `function_declarations[3]` may stand behind a word, `tools` may not.
            if prefix.starts_with("tools") && before.ends_with(is_word) {
                return None;
            }
            let rest = lower.get(at + prefix.len()..).unwrap_or_default();
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        found.collect::<Vec<usize>>()
    };
    // Gemini has a list of declarations in one tool.
    let declared: Vec<usize> =
        ["declarations[", "declarations."].iter().flat_map(|prefix| numbers(prefix)).collect();
    if !declared.is_empty() {
        return declared;
    }
    ["tools[", "tools.", "tools', ", "tools\", ", "tools/", "tools -> "]
        .iter()
        .flat_map(|prefix| numbers(prefix))
        .collect()
}

/// The form in which a text has the name of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ToolMention {
    /// In quotes.
    Quoted,
    /// Behind a word for a tool.
    Called,
}

/// Returns how a text names a tool, if it does.
fn tool_mention(text: &str, name: &str) -> Option<ToolMention> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() {
        return None;
    }
    let mentions = text.match_indices(name).filter_map(|(at, _)| {
        let before = text.get(..at).unwrap_or_default();
        let after = text.get(at + name.len()..).unwrap_or_default();
        if before.ends_with(is_word) || after.starts_with(is_word) {
            return None;
        }
        let quotes = ['\'', '"', '`', '‘', '“', '[', '('];
        let unquoted = before.trim_end_matches(quotes);
        let last = unquoted.trim_end_matches([' ', ':']).rsplit(' ').next().unwrap_or_default();
        let word = last.to_ascii_lowercase();
        if matches!(word.as_str(), "function" | "tool" | "name" | "function_name" | "tool_name") {
            return Some(ToolMention::Called);
        }
        (unquoted.len() < before.len()).then_some(ToolMention::Quoted)
    });
    mentions.max()
}

/// Returns whether a schema has keywords that an engine may not support, at any depth.
fn has_suspect_keywords(schema: &Value) -> bool {
    // Each value is a schema, or an object of schemas by name.
    let mut pending = vec![(schema, true)];
    while let Some((value, is_schema)) = pending.pop() {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    if is_schema && !PLAIN_KEYWORDS.contains(&name.as_str()) {
                        return true;
                    }
                    match (is_schema, name.as_str()) {
                        (true, "properties") => pending.push((value, false)),
                        (true, "items" | "additionalProperties") | (false, _) => {
                            pending.push((value, true));
                        }
                        (true, "enum") if !are_texts(value) => return true,
                        (true, "type") if !value.is_string() => return true,
                        (true, _) => {}
                    }
                }
            }
            Value::Array(_) => return true,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    false
}

fn are_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|values| values.iter().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http_error;

    fn tools() -> Vec<ToolDefinition> {
        let plain = json!({"type": "object", "properties": {"format": {"type": "string"}}});
        let odd = json!({"type": "object", "properties": {"p": {"pattern": "^a$"}}});
        [("alpha", &plain), ("beta-2", &odd), ("get", &plain), ("mcp__x_y", &odd)]
            .map(|(name, schema)| ToolDefinition::new(name, "", schema.clone()))
            .to_vec()
    }

    fn found(status: u16, message: &str) -> Option<ToolRefusal> {
        let kind = ProviderErrorKind::Status;
        let error = ProviderError { status: Some(status), ..ProviderError::new(kind, message) };
        find_refused_tools(&error, &tools(), false)
    }

    #[test]
    fn a_refused_tool_is_named_by_its_name_or_its_position() {
        for (message, expected) in [
            (
                "HTTP status 400: Invalid schema for function 'mcp__x_y': In context=('properties', \
                 'get'), array schema missing items.",
                "mcp__x_y",
            ),
            ("Invalid 'tools[2].function.description': string too long", "get"),
            ("Invalid 'tools[1].function.parameters': 'x' is not a 'regex'", "beta-2"),
            ("tools.3.custom.input_schema: JSON schema is invalid. It must match", "mcp__x_y"),
            ("tools.0.custom.input_schema.properties: Property keys should match pattern", "alpha"),
            (
                "* GenerateContentRequest.tools[0].function_declarations[3].parameters.properties[a]\
                 .items: missing field.",
                "mcp__x_y",
            ),
            ("Invalid function name: beta-2. It must start with a letter", "beta-2"),
            ("1 validation error: {'loc': ('body', 'tools', 2, 'function'), 'msg': 'x'}", "get"),
            ("invalid tool schema for tool `alpha`", "alpha"),
            ("Invalid request (tools[2].function.parameters)", "get"),
            ("Input should be a valid string (body.tools.3.function.name)", "mcp__x_y"),
            (
                "Provider returned error: {\"error\":{\"message\":\"tools.0.custom.input_schema: bad\"}}",
                "alpha",
            ),
        ] {
            let expected = ToolRefusal::Named(vec![expected.to_owned()]);
            assert_eq!(found(400, message), Some(expected), "{message}");
        }
        let several = "function_declarations[0].name: bad\nfunction_declarations[2].name: bad";
        let expected = ToolRefusal::Named(vec!["alpha".to_owned(), "get".to_owned()]);
        assert_eq!(found(400, several), Some(expected));
    }

    #[test]
    fn a_grammar_that_is_not_compiled_is_due_to_tools_with_suspect_keywords() {
        let suspects = ToolRefusal::Suspected(vec!["beta-2".to_owned(), "mcp__x_y".to_owned()]);
        for message in ["Failed to initialize samplers: failed to parse grammar", "Invalid grammar"]
        {
            assert_eq!(found(400, message).as_ref(), Some(&suspects), "{message}");
            assert_eq!(found(500, message).as_ref(), Some(&suspects), "{message}");
        }
        let plain = &tools()[..1];
        let error = ProviderError::new(ProviderErrorKind::InStream, "failed to parse grammar");
        let all = ToolRefusal::Suspected(vec!["alpha".to_owned()]);
        assert_eq!(find_refused_tools(&error, plain, false), Some(all));
        assert_eq!(find_refused_tools(&error, plain, true), None, "of the answer, perhaps");
    }

    #[test]
    fn the_part_of_the_request_stands_beside_the_message() {
        for body in [
            r#"{"error":{"message":"bad","param":"tools[3].function.parameters","code":"x"}}"#,
            r#"{"detail":[{"loc":["body","tools",3,"function"],"msg":"bad","type":"missing"}]}"#,
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":
                "{\"error\":{\"message\":\"tools.3.custom.input_schema: bad\"}}"}}}"#,
        ] {
            let error = http_error(400, body);
            let expected = ToolRefusal::Named(vec!["mcp__x_y".to_owned()]);
            assert_eq!(find_refused_tools(&error, &tools(), false), Some(expected), "{error}");
        }
    }

    #[test]
    fn other_errors_are_about_no_tool() {
        for message in [
            "Unknown parameter: 'get'",
            "messages.1: `tool_use` ids were found without `tool_result` blocks: get",
            "Tool choice 'get' not found in schema of tools",
            "Invalid schema for response_format 'answer': 'get' is bad",
            "Invalid 'tools': array too long. Expected maximum length 128, got 129",
            "tools.99.custom.input_schema: JSON is bad",
            "maximum context length is 8192 tokens",
        ] {
            assert_eq!(found(400, message), None, "{message}");
        }
        assert_eq!(found(429, "Invalid schema for function 'get'"), None);
        let error =
            ProviderError::new(ProviderErrorKind::Timeout, "Invalid schema for function 'get'");
        assert_eq!(find_refused_tools(&error, &tools(), false), None);
    }
}
