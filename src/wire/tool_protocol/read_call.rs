//! A call that was read from a text, the steps of reading one, and the reading of calls in JSON.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::literal;
use crate::ToolDefinition;

/// Maximum length of a name in a tag, a line or before an arrow.
pub(super) const NAME_BYTES_MAX: usize = 200;

/// A call as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadCall {
    /// `None` if there is no name to be found.
    pub(super) name: Option<String>,
    /// The text of the arguments: JSON, if they are complete and readable.
    pub(super) arguments: String,
    /// True if the text was not in the required form, but could be read.
    pub(super) is_repaired: bool,
}

/// The text after a trigger, as far as it has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyText<'t> {
    pub(super) text: &'t str,
    /// True if no more text comes, or none is awaited because the call is too long.
    pub(super) is_end: bool,
    /// True if the response was cut off or broke here, or the call is too long.
    pub(super) is_cut: bool,
    /// The offered tools.
    pub(super) tools: &'t [ToolDefinition],
}

/// One step of reading the text after a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadStep {
    /// More text is needed. Never returned at the end.
    More,
    /// The trigger began no call: it is text.
    NotACall,
    /// These many bytes belong to the form of the call.
    Skip(usize),
    /// Calls end after this many bytes. They are sealed now, later by [`Self::Seal`], or never.
    Calls { calls: Vec<ReadCall>, bytes: usize, are_sealed: bool },
    /// The calls so far are sealed after this many bytes. With `is_over`, text follows.
    Seal { bytes: usize, is_over: bool },
    /// The calls end after this many bytes. Text follows.
    Over(usize),
}

impl<'t> BodyText<'t> {
    /// Returns the text after white space, and the length of that.
    pub(super) fn trimmed(&self) -> (&'t str, usize) {
        let trimmed = self.text.trim_start();
        (trimmed, self.text.len() - trimmed.len())
    }

    /// Returns the step of a text that ends within one of the words, or before it: to wait, or at the end
    /// to drop it.
    pub(super) fn wait_for(&self, words: &[&str]) -> Option<ReadStep> {
        let (trimmed, _) = self.trimmed();
        let is_begun = words.iter().any(|word| word.starts_with(trimmed));
        let step = if self.is_end { ReadStep::Over(self.text.len()) } else { ReadStep::More };
        is_begun.then_some(step)
    }
}

impl ReadStep {
    /// Makes the step of one call.
    pub(super) fn call(call: ReadCall, bytes: usize, are_sealed: bool) -> Self {
        Self::Calls { calls: vec![call], bytes, are_sealed }
    }
}

impl ReadCall {
    pub(super) fn new(name: impl Into<String>, arguments: Map<String, Value>) -> Self {
        let arguments = Value::Object(arguments).to_string();
        Self { name: Some(name.into()), arguments, is_repaired: false }
    }

    /// Makes a call whose arguments are cut off and are not in JSON. The text becomes a JSON string without its
    /// end, so that the arguments count as cut off, as unfinished JSON does.
    pub(super) fn cut_off(name: impl Into<String>, text: &str) -> Self {
        let mut arguments = Value::from(text).to_string();
        arguments.pop();
        Self { name: Some(name.into()), arguments, is_repaired: false }
    }

    /// Makes the call of an object with `name` and `arguments`.
    pub(super) fn of(value: Value, is_repaired: bool) -> Self {
        let Value::Object(mut members) = value else {
            return Self { name: None, arguments: value.to_string(), is_repaired };
        };
        // Some models write the form of Chat Completions. Beside a name, `function` may be an argument.
        let has_name = members.contains_key("name");
        if let Some(Value::Object(function)) = members.get_mut("function")
            && (!has_name || function.get("name").is_some_and(Value::is_string))
        {
            members = std::mem::take(function);
        }
        let name = ["name", "function"].iter().find_map(|key| match members.remove(*key) {
            Some(Value::String(name)) => Some(name),
            Some(other) => {
                members.insert((*key).to_owned(), other);
                None
            }
            None => None,
        });
        let given = ["arguments", "parameters"].iter().find_map(|key| members.remove(*key));
        // Without this type, `type` and `id` may be arguments.
        if members.get("type").is_some_and(|kind| kind == "function") {
            members.remove("type");
            members.remove("id");
        }
        let (arguments, is_flat) = match given {
            Some(arguments) => (arguments, false),
            // The arguments are members beside the name.
            None => {
                let is_flat = !members.is_empty();
                (Value::Object(members), is_flat)
            }
        };
        Self { name, arguments: arguments.to_string(), is_repaired: is_repaired || is_flat }
    }

    /// Makes the call of an object that cannot be parsed: its name, if there is one, and the text as it came.
    pub(super) fn unreadable(text: &str) -> Self {
        let members = ["\"arguments\"", "\"parameters\""];
        let begin = members.iter().filter_map(|member| text.find(member)).min();
        // The arguments may have a member of this name too.
        let before = up_to(text, begin.unwrap_or(text.len())).split_once("\"name\"");
        let name = before.or_else(|| text.rsplit_once("\"name\"")).and_then(|(_, rest)| {
            let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
            let (name, _) = rest.split_once('"')?;
            Some(name.to_owned()).filter(|name| name_length(name) == name.len())
        });
        let arguments = members.iter().find_map(|member| {
            let (_, rest) = text.split_once(member)?;
            rest.trim_start().strip_prefix(':').map(str::trim_start)
        });
        let arguments = arguments.unwrap_or(text).to_owned();
        Self { name, arguments, is_repaired: false }
    }
}

/// Returns the length of the name at the beginning of a text.
pub(super) fn name_length(text: &str) -> usize {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// Returns the length of the parameter's name at the beginning of a text. Letters of any script are part of it.
pub(super) fn keyword_length(text: &str) -> usize {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// Returns the text from a position on.
pub(super) fn from(text: &str, at: usize) -> &str {
    text.get(at..).unwrap_or_default()
}

/// Returns the text before a position.
pub(super) fn up_to(text: &str, end: usize) -> &str {
    text.get(..end).unwrap_or_default()
}

/// Reads an object of arguments. `is_cut` is true if a stop word ended the text before its last bracket: the
/// brackets that are missing are added.
pub(super) fn read_arguments(name: &str, text: &str, is_cut: bool) -> ReadCall {
    let name = Some(name.to_owned());
    if serde_json::from_str::<&RawValue>(text).is_ok() {
        return ReadCall { name, arguments: text.to_owned(), is_repaired: false };
    }
    match literal::parse_value(text, is_cut) {
        Some(value) => ReadCall { name, arguments: value.to_string(), is_repaired: true },
        None => ReadCall { name, arguments: text.to_owned(), is_repaired: false },
    }
}

/// Reads calls from an object with `name` and `arguments`, or from a list of such objects.
pub(super) fn read_objects(text: &str, is_cut: bool) -> Vec<ReadCall> {
    match read_items(text, is_cut) {
        Some((items, is_repaired)) => {
            items.into_iter().map(|item| ReadCall::of(item, is_repaired)).collect()
        }
        None => vec![ReadCall::unreadable(text)],
    }
}

/// Parses an object, or a list of objects, and returns whether the text was repaired. An object whose only member is
/// the list `tool_calls` counts as that list.
pub(super) fn read_items(text: &str, is_cut: bool) -> Option<(Vec<Value>, bool)> {
    let (mut value, is_repaired) = match serde_json::from_str::<Value>(text) {
        Ok(value) => (value, false),
        Err(_) => (literal::parse_value(text, is_cut)?, true),
    };
    if let Value::Object(members) = &mut value
        && members.len() == 1
        && let Some(calls @ Value::Array(_)) = members.get_mut("tool_calls")
    {
        value = calls.take();
    }
    let items = if let Value::Array(items) = value { items } else { vec![value] };
    Some((items, is_repaired))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, is_cut: bool, expected: &[(Option<&str>, &str, bool)]) {
        let calls = read_objects(text, is_cut);
        let found: Vec<_> = calls
            .iter()
            .map(|call| (call.name.as_deref(), call.arguments.as_str(), call.is_repaired))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn objects_are_calls() {
        let f = |arguments| (Some("f"), arguments, false);
        check(r#"{"name": "f", "arguments": {"a": 1}}"#, false, &[f(r#"{"a":1}"#)]);
        check(r#"{"parameters": {"a": 1}, "name": "f"}"#, false, &[f(r#"{"a":1}"#)]);
        check(r#"{"name": "f"}"#, false, &[f("{}")]);
        check(r#"{"name": "f", "arguments": "{}"}"#, false, &[f(r#""{}""#)]);
        let chat = r#"{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}"#;
        check(chat, false, &[f("{}")]);
        check(r#"[{"name": "f"}, {"name": "f"}]"#, false, &[f("{}"), f("{}")]);
        check(r#"{"name": "f", "a": 1}"#, false, &[(Some("f"), r#"{"a":1}"#, true)]);
        let flat = (Some("f"), r#"{"id":"42","type":"x"}"#, true);
        check(r#"{"name": "f", "id": "42", "type": "x"}"#, false, &[flat]);
        check(r#"{"type": "function", "id": "c", "name": "f"}"#, false, &[f("{}")]);
        let nested = r#"{"name": "f", "function": {"name": "f", "arguments": {"a": 1}}}"#;
        check(nested, false, &[f(r#"{"a":1}"#)]);
        let beside = (Some("f"), r#"{"function":{"a":1}}"#, true);
        check(r#"{"name": "f", "function": {"a": 1}}"#, false, &[beside]);
    }

    #[test]
    fn mistakes_are_repaired_or_left_to_the_answer() {
        let repaired = [(Some("f"), r#"{"a":"x\ny"}"#, true)];
        check("{'name': 'f', 'arguments': {'a': 'x\ny',}}", false, &repaired);
        check("{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}", true, &repaired);
        check(
            r#"{"name": "f", "arguments": {"a": b c}}"#,
            false,
            &[(Some("f"), "{\"a\": b c}}", false)],
        );
        let last = r#"{"arguments": {"name": "x", "a": b c}, "name": "f"}"#;
        let (_, rest) = last.split_once(": ").unwrap();
        check(last, false, &[(Some("f"), rest, false)]);
        check("{\"a\": x y}", false, &[(None, "{\"a\": x y}", false)]);
        check("[1]", false, &[(None, "1", false)]);
    }
}
