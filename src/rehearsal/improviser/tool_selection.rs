//! Decides which of the offered tools a prompt asks for, and with which values.

use serde_json::Value;

use super::arguments::ArgumentFiller;
use super::prompt::{FoundValue, Prompt, ValueKind};
use crate::Call;
use callsheet_machines::contract::CompiledSchema;

/// The largest number of calls of one response.
const CALLS_MAX: usize = 16;

/// Words of tool names that say nothing about the tool's subject.
const IGNORED_WORDS: [&str; 8] = ["get", "fetch", "find", "read", "set", "do", "make", "web"];

/// Words that ask for the subject of a tool: the word of the tool's name, then its synonyms.
const SYNONYMS: [(&str, &[&str]); 4] = [
    ("clock", &["time", "几点", "时间"]),
    ("time", &["clock", "几点", "时间"]),
    ("weather", &["天气"]),
    ("news", &["新闻"]),
];

/// A tool that the request offers.
#[derive(Debug)]
pub(super) struct OfferedTool<'a> {
    name: &'a str,
    schema: &'a Value,
    /// The property that gets another value of the prompt in each call, and the kind of its values.
    main_property: Option<(&'a str, ValueKind)>,
}

/// A tool that the prompt asks for.
struct SelectedTool<'o, 'a> {
    tool: &'o OfferedTool<'a>,
    /// True if the prompt names the tool or its subject, or the request forces a call. Otherwise a value is the
    /// reason.
    is_named: bool,
    /// The position of the word or of the first value that asks for it.
    at: usize,
    /// The values that its calls are for; without any, one call is made.
    values: Vec<FoundValue>,
}

impl<'a> OfferedTool<'a> {
    /// Reads a `function` member of the request's tools.
    pub(super) fn read(function: &'a Value) -> Option<Self> {
        let schema = &function["parameters"];
        let properties = schema["properties"].as_object();
        let texts = properties.into_iter().flatten().filter(|(_, property)| is_text(property));
        let kinds = texts.map(|(name, _)| (name.as_str(), kind_of_property(name)));
        let main_property = kinds.min_by_key(|(_, kind)| *kind == ValueKind::Text);
        Some(Self { name: function["name"].as_str()?, schema, main_property })
    }

    /// Returns whether the tool has this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    /// Returns whether the tool's name says that it changes something.
    fn changes_something(&self) -> bool {
        ["write", "delete", "remove", "create", "update", "send", "post", "put"]
            .iter()
            .any(|verb| self.name.split(['_', '-']).any(|word| word == *verb))
    }

    /// Returns the position where the prompt names the tool or its subject.
    fn position_in(&self, prompt: &Prompt) -> Option<usize> {
        let words = self.name.split(['_', '-']).filter(|word| !IGNORED_WORDS.contains(word));
        let positions: Option<Vec<usize>> = words.map(|word| subject_in(prompt, word)).collect();
        let subject = positions.and_then(|positions| positions.into_iter().min());
        prompt.position_of(self.name).or(subject)
    }

    fn select<'o>(&'o self, prompt: &Prompt) -> Option<SelectedTool<'o, 'a>> {
        let kind = self.main_property.map(|(_, kind)| kind);
        let values = kind.map(|kind| prompt.values(kind)).unwrap_or_default();
        let named = self.position_in(prompt);
        // Such a value is reason enough for a call. Without one, only the tool's full name is.
        let needs_value =
            matches!(kind, Some(ValueKind::Expression | ValueKind::Url | ValueKind::Path));
        let at = match (needs_value, values.first()) {
            (true, Some(value)) => Some(value.at),
            (true, None) => prompt.position_of(self.name),
            (false, _) => named,
        };
        Some(SelectedTool { tool: self, is_named: named.is_some(), at: at?, values })
    }
}

/// Returns the position of a word of a tool's name in the prompt, also as a plural or synonym.
fn subject_in(prompt: &Prompt, word: &str) -> Option<usize> {
    let synonyms = SYNONYMS.iter().find(|(own, _)| *own == word).map_or(&[][..], |(_, all)| *all);
    let plural = format!("{word}s");
    let words = [word, plural.as_str()].into_iter().chain(synonyms.iter().copied());
    words.filter_map(|word| prompt.position_of(word)).min()
}

/// Returns the kind of text that a property takes, by the last word of its name.
pub(super) fn kind_of_property(name: &str) -> ValueKind {
    match name.rsplit_once('_').map_or(name, |(_, last)| last) {
        "zone" | "timezone" | "tz" => ValueKind::TimeZone,
        "city" | "location" | "place" => ValueKind::City,
        "expression" | "formula" => ValueKind::Expression,
        "url" | "uri" | "link" => ValueKind::Url,
        "path" | "file" | "filename" => ValueKind::Path,
        _ => ValueKind::Text,
    }
}

fn is_text(property: &Value) -> bool {
    let is_string = |kind: &Value| kind == "string";
    let kind = &property["type"];
    is_string(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_string))
}

/// Returns the different calls that a prompt asks for, in the order of the prompt. If it asks for none, and
/// `tool_choice` forces a call, calls the first tool that may be called.
pub(super) fn select_calls(
    prompt: &Prompt,
    tools: &[OfferedTool<'_>],
    tool_choice: &Value,
) -> Vec<Call> {
    let forced = tool_choice["function"]["name"].as_str();
    let allowed = || tools.iter().filter(|tool| forced.is_none_or(|name| name == tool.name));
    let mut selected: Vec<SelectedTool<'_, '_>> =
        allowed().filter_map(|tool| tool.select(prompt)).collect();
    if selected.is_empty() && (forced.is_some() || tool_choice == "required") {
        let first = allowed().next();
        selected.extend(first.map(|tool| SelectedTool {
            tool,
            is_named: true,
            at: 0,
            values: Vec::new(),
        }));
    }
    keep_named(&mut selected);
    share_values(&mut selected);
    let mut calls: Vec<(usize, Call)> =
        selected.iter().flat_map(|selected| calls_to_tool(prompt, selected)).collect();
    calls.sort_by_key(|(at, _)| *at);
    let mut distinct: Vec<Call> = Vec::new();
    for (_, call) in calls {
        if distinct.len() < CALLS_MAX && !distinct.contains(&call) {
            distinct.push(call);
        }
    }
    distinct
}

/// Keeps the named tools, and for each kind of value that none of them takes, the first tool that changes nothing.
fn keep_named(selected: &mut Vec<SelectedTool<'_, '_>>) {
    let kind = |selected: &SelectedTool<'_, '_>| selected.tool.main_property.map(|(_, kind)| kind);
    let mut served: Vec<Option<ValueKind>> =
        selected.iter().filter(|selected| selected.is_named).map(kind).collect();
    selected.retain(|selected| {
        let is_first = !served.contains(&kind(selected)) && !selected.tool.changes_something();
        if is_first {
            served.push(kind(selected));
        }
        selected.is_named || is_first
    });
}

/// Gives each city to the tools whose names stand nearest to it. A tool that is nearest to none keeps all.
fn share_values(selected: &mut [SelectedTool<'_, '_>]) {
    let takes_cities = |selected: &SelectedTool<'_, '_>| {
        let kind = selected.tool.main_property.map(|(_, kind)| kind);
        matches!(kind, Some(ValueKind::City | ValueKind::TimeZone))
    };
    let positions: Vec<usize> =
        selected.iter().filter(|selected| takes_cities(selected)).map(|of| of.at).collect();
    for tool in selected.iter_mut().filter(|selected| takes_cities(selected)) {
        let nearest = |value: &FoundValue| {
            positions.iter().map(|at| at.abs_diff(value.at)).min()
                == Some(tool.at.abs_diff(value.at))
        };
        if tool.values.iter().any(nearest) {
            let own: Vec<FoundValue> = tool.values.iter().filter(|v| nearest(v)).cloned().collect();
            tool.values = own;
        }
    }
}

/// Returns the calls of one tool with their positions.
fn calls_to_tool(prompt: &Prompt, selected: &SelectedTool<'_, '_>) -> Vec<(usize, Call)> {
    let SelectedTool { tool, at, values, .. } = selected;
    let call = |at: usize, arguments: Value| (at, Call { name: tool.name.to_owned(), arguments });
    let written = written_out(prompt, tool);
    if !written.is_empty() {
        return written.into_iter().map(|(at, arguments)| call(at, arguments)).collect();
    }
    let Some((property, _)) = tool.main_property.filter(|_| !values.is_empty()) else {
        return vec![call(*at, ArgumentFiller::new(prompt, tool.schema).fill())];
    };
    let fill = |value: &FoundValue| {
        let arguments = ArgumentFiller::new(prompt, tool.schema).with(property, &value.text);
        call(value.at, arguments.fill())
    };
    values.iter().map(fill).collect()
}

/// Returns the calls that the prompt writes out: the tool's name and a JSON object that fits its
/// schema.
fn written_out(prompt: &Prompt, tool: &OfferedTool<'_>) -> Vec<(usize, Value)> {
    let mut calls = Vec::new();
    for (at, _) in prompt.text.match_indices(tool.name) {
        let rest = prompt.text.get(at + tool.name.len()..).unwrap_or_default().trim_start();
        let mut objects = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if rest.starts_with('{')
            && let Some(Ok(arguments)) = objects.next()
            && CompiledSchema::compile(tool.schema, &[]).is_ok_and(|it| it.is_valid(&arguments))
        {
            calls.push((at, arguments));
        }
    }
    calls
}
