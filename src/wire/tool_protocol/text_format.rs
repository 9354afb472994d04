//! Writes calls and results as text.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, BuildError};
use serde_json::Value;

use super::read_call::{from, keyword_length, name_length};
use callsheet_values::message::ResultContent;
use callsheet_values::types::{ContentPart, ToolCall, ToolProtocol};

/// Returns calls in the form in which the model writes them.
pub(super) fn write_calls(protocol: ToolProtocol, calls: &[&ToolCall]) -> String {
    let write = |call: &&ToolCall| {
        let (name, arguments) = (&call.name, call.arguments_text());
        match protocol {
            ToolProtocol::Native | ToolProtocol::Hermes => {
                let name = Value::from(&**name);
                format!(
                    "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
                )
            }
            ToolProtocol::Xml => xml(call),
            ToolProtocol::React => format!("Action: {name}\nAction Input: {arguments}"),
            ToolProtocol::Pythonic => python_call(call),
            ToolProtocol::Arrow => format!("=>#{name} {arguments}"),
        }
    };
    let calls: Vec<String> = calls.iter().map(write).collect();
    match protocol {
        ToolProtocol::Pythonic => format!("[{}]", calls.join(", ")),
        ToolProtocol::Native
        | ToolProtocol::Hermes
        | ToolProtocol::Xml
        | ToolProtocol::React
        | ToolProtocol::Arrow => calls.join("\n"),
    }
}

fn xml(call: &ToolCall) -> String {
    let members = call.arguments.as_object().into_iter().flatten();
    let parameters = members.map(|(name, value)| {
        let text = match value {
            Value::String(text) => Cow::Borrowed(text.as_str()),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Cow::Owned(value.to_string()),
        };
        format!("<parameter={name}>\n{text}\n</parameter>\n")
    });
    let parameters: String = parameters.collect();
    format!("<tool_call>\n<function={}>\n{parameters}</function>\n</tool_call>", call.name)
}

fn python_call(call: &ToolCall) -> String {
    let members = || call.arguments.as_object().into_iter().flatten();
    let is_keyword = |name: &str| !name.is_empty() && keyword_length(name) == name.len();
    let arguments = if members().all(|(name, _)| is_keyword(name)) {
        let keywords = members().map(|(name, value)| format!("{name}={}", python(value)));
        keywords.collect::<Vec<_>>().join(", ")
    } else {
        format!("**{}", python(&call.arguments))
    };
    format!("{}({arguments})", call.name)
}

fn python(value: &Value) -> String {
    let join = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", join(items.iter().map(python).collect())),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(&**name), python(value))
            };
            format!("{{{}}}", join(members.iter().map(member).collect()))
        }
    }
}

/// One result of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultToWrite<'r> {
    pub(super) call_id: &'r str,
    pub(super) name: &'r str,
    pub(super) content: &'r ResultContent,
}

/// Writes results in the form that the system prompt announces. The texts that begin or end calls and
/// results are escaped in them, so that a result can neither end itself nor contain a call (prompt injection).
#[derive(Debug)]
pub(super) struct ResultWriter {
    protocol: ToolProtocol,
    /// The words that are escaped; `None` if they could not be compiled.
    words: Option<AhoCorasick>,
}

impl ResultWriter {
    pub(super) fn new(protocol: ToolProtocol) -> Self {
        let words = |words: &[&str]| -> Result<AhoCorasick, BuildError> { AhoCorasick::new(words) };
        Self { protocol, words: words(escaped_words(protocol)).ok() }
    }

    /// Returns the parts of the message that holds the results of a turn.
    pub(super) fn write(&self, results: &[ResultToWrite<'_>]) -> Vec<ContentPart> {
        let mut parts = Vec::new();
        for (at, result) in results.iter().enumerate() {
            let id = attribute_text(result.call_id);
            let name = attribute_text(result.name);
            let (open, close) = match self.protocol {
                ToolProtocol::React => (format!("Observation: [{id} {name}]\n"), ""),
                ToolProtocol::Native
                | ToolProtocol::Hermes
                | ToolProtocol::Xml
                | ToolProtocol::Pythonic
                | ToolProtocol::Arrow => {
                    (format!("<tool_response id=\"{id}\" name=\"{name}\">\n"), "\n</tool_response>")
                }
            };
            add_text(&mut parts, if at > 0 { "\n" } else { "" });
            add_text(&mut parts, &open);
            match result.content.parts() {
                None => add_text(&mut parts, &self.escape(result.content)),
                Some(content) => {
                    for part in content.parts() {
                        match part {
                            ContentPart::Text(text) => add_text(&mut parts, &self.escape(text)),
                            image @ ContentPart::Image(_) => parts.push(image.clone()),
                        }
                    }
                }
            }
            add_text(&mut parts, close);
        }
        parts
    }

    /// Puts a backslash into each word that has a meaning in the protocol.
    fn escape<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let escaped = self.escape_words(text);
        match self.protocol {
            ToolProtocol::Pythonic if escaped.contains('[') => escape_lists(&escaped).into(),
            ToolProtocol::Native
            | ToolProtocol::Hermes
            | ToolProtocol::Xml
            | ToolProtocol::React
            | ToolProtocol::Pythonic
            | ToolProtocol::Arrow => escaped,
        }
    }

    fn escape_words<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let Some(words) = self.words.as_ref().filter(|words| words.is_match(text)) else {
            return Cow::Borrowed(text);
        };
        let mut escaped = String::with_capacity(text.len() + 8);
        words.replace_all_with(text, &mut escaped, |_, word, escaped| {
            // After the first character of a tag or a bracket, before the colon of a label.
            let at = if word.ends_with(':') { word.len() - 1 } else { 1 };
            if let Some((head, rest)) = word.split_at_checked(at) {
                escaped.push_str(head);
                escaped.push('\\');
                escaped.push_str(rest);
            }
            true
        });
        Cow::Owned(escaped)
    }
}

/// Puts a backslash after each bracket that is followed by a name and a parenthesis.
fn escape_lists(text: &str) -> String {
    let mut pieces = text.split('[');
    let mut escaped = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let item = piece.trim_start();
        let name = name_length(item);
        let is_call = name > 0 && from(item, name).trim_start().starts_with('(');
        escaped.push_str(if is_call { "[\\" } else { "[" });
        escaped.push_str(piece);
    }
    escaped
}

/// Returns the words that begin or end calls and results.
fn escaped_words(protocol: ToolProtocol) -> &'static [&'static str] {
    match protocol {
        ToolProtocol::Native => &[],
        ToolProtocol::Hermes | ToolProtocol::Xml => &[
            "<tool_call",
            "</tool_call",
            "<function=",
            "</function",
            "<parameter=",
            "</parameter",
            "<tools>",
            "</tools>",
            "<tool_response",
            "</tool_response",
        ],
        ToolProtocol::React => &[
            "Action:",
            "Action**:",
            "Action Input:",
            "Action Input**:",
            "Observation:",
            "Observation**:",
            "Final Answer:",
            "Final Answer**:",
        ],
        ToolProtocol::Pythonic => {
            &["<|python_", "<|eom_id|>", "<|eot_id|>", "<tool_response", "</tool_response"]
        }
        ToolProtocol::Arrow => &["=>#", "<tool_response", "</tool_response"],
    }
}

fn add_text(parts: &mut Vec<ContentPart>, more: &str) {
    match parts.last_mut() {
        _ if more.is_empty() => {}
        Some(ContentPart::Text(text)) => text.push_str(more),
        Some(ContentPart::Image(_)) | None => parts.push(ContentPart::Text(more.to_owned())),
    }
}

/// Returns an id or a name with `_` for characters that could end its attribute. A model may call by any name.
fn attribute_text(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.:".contains(c);
    text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}
