//! Responses with known calls, and mutations of them.

use std::sync::Arc;

use callsheet::types::ToolProtocol;
use callsheet::wire::ToolDefinition;
use serde_json::{Map, Value, json};

use crate::random::Random;

pub(crate) const PROTOCOLS: [ToolProtocol; 5] = [
    ToolProtocol::Hermes,
    ToolProtocol::Xml,
    ToolProtocol::React,
    ToolProtocol::Pythonic,
    ToolProtocol::Arrow,
];

pub(crate) fn tools() -> Arc<[ToolDefinition]> {
    let tool = |name: &str, properties: Value| {
        let schema = json!({"type": "object", "properties": properties});
        ToolDefinition::new(name, "", schema)
    };
    [
        tool("f", json!({"a": {"type": "integer"}, "b": {"type": "string"}})),
        tool("g", json!({"text": {"type": "string"}})),
        tool("clock", json!({})),
        tool(
            "all_types",
            json!({
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "on": {"type": "boolean"},
                "list": {"type": "array"},
                "map": {"type": "object"},
                "größe": {"type": "string"},
            }),
        ),
    ]
    .into()
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

/// A response whose meaning is known.
pub(crate) struct Response {
    pub(crate) text: String,
    /// The response without what stands in code, quotes and reasoning. Only Callsheet has this rule.
    pub(crate) unprotected: String,
    /// The text without calls.
    pub(crate) remaining: String,
    pub(crate) calls: Vec<Call>,
}

/// Returns arguments as an object: a string that holds an object is decoded once more, and nothing means an
/// empty object.
pub(crate) fn parsed_arguments(text: &str) -> Option<Value> {
    let value = serde_json::from_str(text).ok()?;
    let value = match value {
        Value::String(text) => serde_json::from_str(&text).ok()?,
        other => other,
    };
    match value {
        Value::Null => Some(json!({})),
        Value::Object(_) => Some(value),
        _ => None,
    }
}

const WORDS: [&str; 30] = [
    "I",
    "look",
    "at",
    "the",
    "weather",
    "in",
    "Oslo.",
    "It",
    "is",
    "(very)",
    "cold",
    "é",
    "日本",
    "😀",
    "a < b",
    "b > a",
    "x == 1",
    "f(x)",
    "\"so\"",
    "it's",
    "50%",
    "- item",
    "1.",
    "**bold**",
    "a,",
    "then;",
    "{x}",
    "[1]",
    "[see](page)",
    "<b>",
];

/// Texts within arguments that look like something else.
const CONTENTS: [&str; 30] = [
    "",
    "Oslo",
    "two words",
    "é😀",
    "line\nline",
    "\ttab",
    "it's",
    "\"quoted\"",
    "back\\slash",
    "C:\\new",
    "{",
    "}",
    "]",
    ")",
    "[1, 2]",
    "a, b",
    "x=1",
    "f(a=1)",
    "; ",
    "</b>",
    "a < b",
    "null",
    "1",
    "true",
    "`code`",
    "# no comment",
    "\u{2028}",
    "\u{1}",
    "-",
    "=>#f {}",
];

/// Texts within arguments that are syntax of some protocol.
const SYNTAX: [&str; 14] = [
    "</tool_call>",
    "<tool_call>",
    "</parameter>",
    "</function>",
    "[f(a=1)]",
    "```",
    "<think>",
    "Action: f",
    "Observation: x",
    "\n=>#f {}",
    "<|python_tag|>",
    "\n> quoted",
    "'''",
    "\"\"\"",
];

fn prose(random: &mut Random) -> String {
    let words: Vec<&str> = (0..=random.below(5)).map(|_| random.pick(&WORDS)).collect();
    let mut text = String::from(random.pick(&["", "", "So ", "Yes "]));
    for word in words {
        // A bracket or a brace after a call would belong to it.
        if text.is_empty() && !word.starts_with(char::is_alphabetic) {
            text.push_str("Well ");
        }
        text.push_str(word);
        text.push_str(random.pick(&[" ", " ", " ", "\n", "\n\n"]));
    }
    text
}

fn text_value(random: &mut Random) -> String {
    match random.below(10) {
        0 => format!("{}{}", random.pick(&CONTENTS), random.pick(&CONTENTS)),
        1 => format!("x{}", random.pick(&SYNTAX)),
        _ => random.pick(&CONTENTS).to_owned(),
    }
}

fn number(random: &mut Random) -> Value {
    match random.below(6) {
        0 => json!(0),
        1 => json!(random.below(1000)),
        2 => json!(-(random.below(1000) as i64)),
        3 => json!(random.below(1000) as f64 / 8.0),
        4 => json!(-1.5e-3),
        _ => json!(9_007_199_254_740_993_u64),
    }
}

fn any_value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 2 { 4 } else { 6 }) {
        0 => text_value(random).into(),
        1 => number(random),
        2 => random.pick(&[true, false]).into(),
        3 => Value::Null,
        4 => (0..random.below(3)).map(|_| any_value(random, depth + 1)).collect(),
        _ => {
            let members = (0..random.below(3)).map(|_| {
                let name = random.pick(&["k", "two words", "é", "a", "x-y"]);
                (name.to_owned(), any_value(random, depth + 1))
            });
            Value::Object(members.collect())
        }
    }
}

fn call(random: &mut Random) -> Call {
    let name = random.pick(&["f", "g", "clock", "all_types", "all_types", "unknown", "un-known_2"]);
    let mut arguments = Map::new();
    let mut add = |name: &str, value: Value| arguments.insert(name.to_owned(), value);
    match name {
        "f" => {
            add("a", (random.below(100)).into());
            if random.has_chance(50) {
                add("b", text_value(random).into());
            }
        }
        "g" => drop(add("text", text_value(random).into())),
        "clock" => {}
        "all_types" => {
            for parameter in ["text", "count", "ratio", "on", "list", "map", "größe"] {
                if random.has_chance(50) {
                    let value = match parameter {
                        "text" | "größe" => text_value(random).into(),
                        "count" => json!(random.below(100) as i64 - 50),
                        "ratio" => number(random),
                        "on" => random.pick(&[true, false]).into(),
                        "list" => (0..random.below(3)).map(|_| any_value(random, 1)).collect(),
                        _ => json!({random.pick(&["k", "x-y"]): any_value(random, 1)}),
                    };
                    add(parameter, value);
                }
            }
        }
        _ => drop(add("x", text_value(random).into())),
    }
    Call { name: name.to_owned(), arguments: Value::Object(arguments) }
}

/// Writes a value as JSON, with the white space and escapes that models use.
fn json_text(random: &mut Random, value: &Value) -> String {
    match random.below(4) {
        0 => serde_json::to_string_pretty(value).expect("a value"),
        // ASCII alone.
        1 => {
            let mut text = String::new();
            for c in value.to_string().chars() {
                match c.is_ascii() {
                    true => text.push(c),
                    false => {
                        let mut units = [0; 2];
                        for unit in c.encode_utf16(&mut units) {
                            text.push_str(&format!("\\u{unit:04x}"));
                        }
                    }
                }
            }
            text
        }
        _ => value.to_string(),
    }
}

/// Writes a value in the syntax of Python.
fn python_text(random: &mut Random, value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_string(random, text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| python_text(random, item)).collect();
            format!("[{}]", items.join(random.pick(&[", ", ","])))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", python_string(random, name), python_text(random, value))
            };
            let members: Vec<_> = members.iter().map(member).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

fn python_string(random: &mut Random, text: &str) -> String {
    let quote = if text.contains('\'') || random.has_chance(50) { '"' } else { '\'' };
    let mut written = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => written.push_str("\\n"),
            '\t' => written.push_str("\\t"),
            '\\' => written.push_str("\\\\"),
            c if c == quote => written.extend(['\\', c]),
            c if c.is_control() && random.has_chance(50) => {
                written.push_str(&format!("\\{:03o}", u32::from(c)));
            }
            c if c.is_control() => written.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if !c.is_ascii() && random.has_chance(20) => {
                written.push_str(&format!("\\U{:08x}", u32::from(c)));
            }
            c => written.push(c),
        }
    }
    written.push(quote);
    written
}

/// The calls of one place of a response.
struct WrittenCalls {
    text: String,
    calls: Vec<Call>,
    /// The response must end here.
    is_last: bool,
}

fn is_word(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn write_calls(random: &mut Random, protocol: ToolProtocol) -> WrittenCalls {
    let mut first = call(random);
    match protocol {
        ToolProtocol::Hermes => {
            let json = |random: &mut Random, call: &Call| {
                let arguments = match random.below(12) {
                    0 => Value::from(call.arguments.to_string()),
                    _ => call.arguments.clone(),
                };
                let key = if random.has_chance(10) { "parameters" } else { "arguments" };
                let object = match call.arguments.as_object().is_some_and(Map::is_empty) {
                    true if random.has_chance(30) => json!({"name": call.name}),
                    _ if random.has_chance(10) => json!({key: arguments, "name": call.name}),
                    _ => json!({"name": call.name, key: arguments}),
                };
                json_text(random, &object)
            };
            let margin = random.pick(&["\n", "\n", "\n", "", " "]);
            let (open, close) = (format!("<tool_call>{margin}"), format!("{margin}</tool_call>"));
            let body = json(random, &first);
            match random.below(20) {
                0 => {
                    let second = call(random);
                    let body = format!("{body}\n{}", json(random, &second));
                    let text = format!("{open}{body}{close}");
                    WrittenCalls { text, calls: vec![first, second], is_last: false }
                }
                1 => {
                    let second = call(random);
                    let text = format!("{open}[{body}, {}]{close}", json(random, &second));
                    WrittenCalls { text, calls: vec![first, second], is_last: false }
                }
                2 => WrittenCalls {
                    text: format!("{open}{body}"),
                    calls: vec![first],
                    is_last: true,
                },
                _ => WrittenCalls {
                    text: format!("{open}{body}{close}"),
                    calls: vec![first],
                    is_last: false,
                },
            }
        }
        ToolProtocol::Xml => {
            // A value may hold tags, but not one that is followed by another.
            let arguments = first.arguments.as_object_mut().expect("an object");
            let mut parameters = String::new();
            for (name, value) in arguments.iter_mut() {
                if let Value::String(text) = value {
                    if first.name.starts_with("un") {
                        // Without a schema, the text decides about the type.
                        *text = format!("w{text}");
                    }
                    let tags = ["</parameter>", "</function>", "</tool_call>"];
                    if tags.iter().any(|tag| text.contains(tag)) {
                        text.push_str(" y");
                    }
                }
                let text = match value {
                    Value::String(text) => text.clone(),
                    other => json_text(random, other),
                };
                let is_on_line = text.trim() == text && !text.contains('\n');
                let margin = if is_on_line && random.has_chance(40) { "" } else { "\n" };
                let name = match random.below(15) {
                    0 => format!("\"{name}\""),
                    _ => name.clone(),
                };
                let line = random.pick(&["\n", "\n", ""]);
                parameters.push_str(&format!(
                    "<parameter={name}>{margin}{text}{margin}</parameter>{line}"
                ));
            }
            let line = random.pick(&["\n", "\n", ""]);
            let function = format!("<function={}>{line}{parameters}</function>", first.name);
            let text = match random.below(12) {
                0 => function,
                1 => format!("{function}\n</tool_call>"),
                _ => format!("<tool_call>{line}{function}{line}</tool_call>"),
            };
            WrittenCalls { text, calls: vec![first], is_last: false }
        }
        ToolProtocol::React => {
            let (open, close) = random.pick(&[("", ""), ("", ""), ("**", "**")]);
            let mark = random.pick(&["", "", "`", "\""]);
            let line = random.pick(&["\n", "\n", "\n\n", " \n"]);
            let arguments = json_text(random, &first.arguments);
            let (before, after) = match random.below(6) {
                0 => ("\n```json\n", "\n```"),
                1 => ("\n```\n", "```"),
                2 => ("\n", ""),
                _ => (" ", ""),
            };
            let text = format!(
                "{open}Action:{close} {mark}{}{mark}{line}{open}Action Input:{close}{before}{arguments}{after}",
                first.name
            );
            WrittenCalls { text, calls: vec![first], is_last: false }
        }
        ToolProtocol::Pythonic => {
            let mut calls = vec![first];
            calls.extend((0..random.below(3)).map(|_| call(random)));
            let is_json = random.has_chance(25);
            if is_json {
                let object = |call: &Call| {
                    let key = random.pick(&["parameters", "parameters", "arguments"]);
                    let object = json!({"name": call.name, key: call.arguments});
                    json_text(random, &object)
                };
                let objects: Vec<String> = calls.iter().map(object).collect();
                let text = format!("<|python_tag|>{}", objects.join(random.pick(&["; ", ";"])));
                return WrittenCalls { text, calls, is_last: false };
            }
            let mut written = Vec::new();
            for call in &mut calls {
                call.name.retain(|c| c != '-');
                let arguments = call.arguments.as_object().expect("an object").clone();
                if random.has_chance(4) && !arguments.is_empty() {
                    let object = python_text(random, &call.arguments);
                    written.push(format!("{}(**{object})", call.name));
                    continue;
                }
                debug_assert!(arguments.keys().all(|name| is_word(name)));
                let equals = random.pick(&["=", "=", "=", " = "]);
                let keywords = arguments
                    .iter()
                    .map(|(name, value)| format!("{name}{equals}{}", python_text(random, value)));
                let keywords: Vec<String> = keywords.collect();
                let comma = random.pick(&[", ", ", ", ",", ",\n    "]);
                written.push(format!("{}({})", call.name, keywords.join(comma)));
            }
            let list = format!("[{}]", written.join(random.pick(&[", ", ", ", ",", ",\n "])));
            let text = match random.below(6) {
                0 => format!("<|python_start|>{list}<|python_end|>"),
                1 => format!("<|python_tag|>{list}<|eom_id|>"),
                _ => list,
            };
            WrittenCalls { text, calls, is_last: false }
        }
        ToolProtocol::Arrow => {
            let space = random.pick(&[" ", " ", "\n", ""]);
            let text = format!("=>#{}{space}{}", first.name, json_text(random, &first.arguments));
            WrittenCalls { text, calls: vec![first], is_last: false }
        }
        other => unreachable!("{other:?} is not in PROTOCOLS"),
    }
}

/// Returns the length of the longest run of a character.
pub(crate) fn longest_run(text: &str, wanted: char) -> usize {
    text.split(|c| c != wanted).map(|run| run.chars().count()).max().unwrap_or(0)
}

/// The ways to write a text so that nothing in it is a call. `None` if the text has the end of its protection
/// in it. The result is to be put at a line's start, and ends at one.
pub(crate) fn protected(random: &mut Random, text: &str) -> Option<String> {
    let ticks = "`".repeat(longest_run(text, '`').max(2) + 1);
    let tildes = "~".repeat(longest_run(text, '~').max(2) + 1);
    match random.below(6) {
        // A block of code with an object that is the whole answer is a call.
        0 if text.trim_start().starts_with(['{', '[']) => None,
        0 => {
            let language = random.pick(&["", "json", "xml", "python"]);
            Some(format!("{ticks}{language}\n{text}\n{ticks}\n"))
        }
        1 => Some(format!("{tildes}\n{text}\n{tildes}\n")),
        2 => Some(text.split('\n').map(|line| format!("> {line}\n")).collect()),
        // The end of a region does not count in code.
        3 | 4 if text.contains("```") || text.contains("~~~") => None,
        3 if !text.contains("</think") => Some(format!("<think>\n{text}\n</think>\n")),
        4 if !text.contains("</tool_response") => {
            Some(format!("<tool_response id=\"c\">\n{text}\n</tool_response>\n"))
        }
        5 if !text.contains('\n') => {
            let ticks = "`".repeat(longest_run(text, '`') + 1);
            Some(format!("as {ticks} {text} {ticks} says\n"))
        }
        _ => None,
    }
}

pub(crate) fn response(random: &mut Random, protocol: ToolProtocol) -> Response {
    let mut response = Response {
        text: String::new(),
        unprotected: String::new(),
        remaining: String::new(),
        calls: vec![],
    };
    let mut run = String::new();
    let mut is_line_start = true;
    for _ in 0..=random.below(4) {
        let goes_on = match random.below(5) {
            0 | 1 => {
                let prose = prose(random);
                response.text.push_str(&prose);
                response.unprotected.push_str(&prose);
                run.push_str(&prose);
                is_line_start = prose.ends_with('\n');
                true
            }
            2 => {
                let inner = write_calls(random, protocol).text;
                if let Some(protected) = protected(random, &inner) {
                    let text = if is_line_start { protected } else { format!("\n{protected}") };
                    response.text.push_str(&text);
                    response.unprotected.push_str("Quoted.\n");
                    run.push_str(&text);
                    is_line_start = true;
                }
                true
            }
            _ if protocol == ToolProtocol::Arrow && !response.calls.is_empty() => true,
            _ => {
                let WrittenCalls { text, calls, is_last } = write_calls(random, protocol);
                if !is_line_start {
                    response.text.push('\n');
                    response.unprotected.push('\n');
                    run.push('\n');
                }
                // White space around calls is no text.
                if !run.trim().is_empty() {
                    response.remaining.push_str(&run);
                }
                run.clear();
                response.text.push_str(&text);
                response.unprotected.push_str(&text);
                response.calls.extend(calls);
                is_line_start = true;
                if !is_last && random.has_chance(60) {
                    response.text.push('\n');
                    response.unprotected.push('\n');
                    run.push('\n');
                }
                !is_last
            }
        };
        if !goes_on {
            break;
        }
    }
    if !run.trim().is_empty() || response.calls.is_empty() {
        response.remaining.push_str(&run);
    }
    response
}

/// The syntax of a protocol, for mutations.
fn vocabulary(protocol: ToolProtocol) -> &'static [&'static str] {
    match protocol {
        ToolProtocol::Hermes | ToolProtocol::Xml => &[
            "<tool_call>",
            "</tool_call>",
            "<tool_call",
            "<function=f>",
            "</function>",
            "<function=",
            "<parameter=a>",
            "</parameter>",
            "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
            "\"name\": ",
            "\"arguments\": ",
            "{",
            "}",
            "[",
            "]",
            "\"",
            "'",
            ":",
            ",",
            "\\",
        ],
        ToolProtocol::React => &[
            "Action: f\n",
            "Action:",
            "Action Input:",
            "Action Input: {}",
            "Observation:",
            "Final Answer: ",
            "Thought: ",
            "**Action:** ",
            "```",
            "{",
            "}",
            "\"",
            "'",
            ":",
            "\n",
            "\\",
        ],
        ToolProtocol::Pythonic => &[
            "[f(a=1)]",
            "[",
            "]",
            "(",
            ")",
            "=",
            ",",
            "f(",
            "a=",
            "**",
            "{",
            "}",
            "\"",
            "'",
            "'''",
            "<|python_tag|>",
            "<|python_end|>",
            "<|eom_id|>",
            ";",
            ".call",
            "None",
            "-",
            "\\",
        ],
        _ => &["=>#", "=>#f ", "{}", "{", "}", "\"", "'", ":", ",", "\n", "=", ">", "\\"],
    }
}

/// Pieces of ordinary text.
const COMMON: [&str; 14] =
    ["\n", " ", "x", "1", "é", "\u{2028}", "\t", "\u{0}", "<", ">", "text ", "\n\n", ".", "#"];

/// The beginnings and ends of code, quotes and reasoning.
const PROTECTION: [&str; 9] = [
    "`",
    "```\n",
    "\n```",
    "~~~",
    "\n> ",
    "<think>",
    "</think>",
    "<tool_response>",
    "</tool_response>",
];

/// Changes a text in a few places.
pub(crate) fn mutate(random: &mut Random, protocol: ToolProtocol, text: &str) -> String {
    let mut text = text.to_owned();
    for _ in 0..=random.below(4) {
        let at = random.position(&text);
        match random.below(8) {
            0 => {
                let mut end = (at + 1 + random.below(12)).min(text.len());
                while !text.is_char_boundary(end) {
                    end += 1;
                }
                text.replace_range(at..end, "");
            }
            1 => text.truncate(at),
            2 => {
                let mut end = (at + 1 + random.below(40)).min(text.len());
                while !text.is_char_boundary(end) {
                    end += 1;
                }
                let part = text[at..end].to_owned();
                let to = random.position(&text);
                text.insert_str(to, &part);
            }
            3 => text.insert_str(at, random.pick(&COMMON)),
            4 if random.has_chance(30) => text.insert_str(at, random.pick(&PROTECTION)),
            5 => {
                let other = response(random, protocol).unprotected;
                text.insert_str(at, &other);
            }
            _ => text.insert_str(at, random.pick(vocabulary(protocol))),
        }
    }
    text
}

/// Makes a text of pieces of syntax alone.
pub(crate) fn pieces(random: &mut Random, protocol: ToolProtocol) -> String {
    let mut text = String::new();
    for _ in 0..random.below(16) {
        text.push_str(match random.below(6) {
            0 => random.pick(&COMMON),
            1 if random.has_chance(30) => random.pick(&PROTECTION),
            _ => random.pick(vocabulary(protocol)),
        });
    }
    text
}
