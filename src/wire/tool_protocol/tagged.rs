//! Calls in tags: `<tool_call>` with a JSON object, as Hermes and Qwen write it, or with a function in
//! tags, as Qwen3-Coder writes it. Models mix both, so both are read after `<tool_call>`.

use serde_json::{Map, Value};

use super::bracket_scan::{BracketScan, ScanEnd};
use super::parameter_type::typed_value;
use super::read_call::{
    BodyText, NAME_BYTES_MAX, ReadCall, ReadStep, from, read_arguments, read_objects, up_to,
};
use callsheet_values::types::floor_char_boundary;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
/// The closing tag of [`super::object`], which models mix with the other.
pub(super) const TOOLS_CLOSE: &str = "</tools>";
pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_CLOSE: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_CLOSE: &str = "</parameter>";

/// Reads the text after `<tool_call>`, or from `<function=` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaggedBody {
    /// Before a value or a function.
    Opened,
    /// In a JSON value.
    Json(BracketScan),
    /// In a function.
    Function(Function),
    /// After a value or a function.
    Between,
}

/// A function in tags, as far as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    name: String,
    arguments: Map<String, Value>,
    parameter: FunctionState,
}

/// The position of the reader in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FunctionState {
    /// Between parameters.
    None,
    /// Before a parameter's name.
    Name,
    /// In arguments that are one JSON object, as Llama writes them.
    Object(BracketScan),
    /// In a value. Its first `searched` bytes hold no end.
    Value { name: String, searched: usize },
}

impl TaggedBody {
    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        match self {
            Self::Opened => self.step_opened(body),
            Self::Json(scan) => {
                let end = scan.scan(body.text, &[CLOSE]);
                self.step_json(end, body)
            }
            Self::Function(function) => {
                let step = function.step(body);
                if matches!(step, ReadStep::Calls { .. }) {
                    *self = Self::Between;
                }
                step
            }
            Self::Between => self.step_between(body),
        }
    }

    fn step_opened(&mut self, body: BodyText<'_>) -> ReadStep {
        let (text, blanks) = body.trimmed();
        if text.starts_with(['{', '[']) {
            *self = Self::Json(BracketScan::new(blanks));
            return ReadStep::Skip(0);
        }
        if let Some(rest) = text.strip_prefix(FUNCTION) {
            return match function_name(BodyText { text: rest, ..body }) {
                TagName::More => ReadStep::More,
                TagName::CutOff => ReadStep::Over(body.text.len()),
                TagName::None => ReadStep::NotACall,
                TagName::Read { name, bytes } => {
                    let (arguments, parameter) = (Map::new(), FunctionState::None);
                    *self = Self::Function(Function { name, arguments, parameter });
                    ReadStep::Skip(blanks + FUNCTION.len() + bytes)
                }
            };
        }
        if text.starts_with(CLOSE) {
            return ReadStep::Over(blanks + CLOSE.len());
        }
        body.wait_for(&[FUNCTION, CLOSE]).unwrap_or(ReadStep::NotACall)
    }

    fn step_json(&mut self, end: ScanEnd, body: BodyText<'_>) -> ReadStep {
        let (bytes, is_cut) = match end {
            ScanEnd::Closed(bytes) => (bytes, false),
            ScanEnd::Stopped(bytes) => (bytes, true),
            ScanEnd::Open if !body.is_end => return ReadStep::More,
            // A string that was not closed hides the closing tag. If the response was cut off, the tag is rather
            // a part of the string.
            ScanEnd::Open => match body.text.find(CLOSE) {
                Some(bytes) if !body.is_cut => (bytes, true),
                Some(_) | None => (body.text.len(), false),
            },
        };
        *self = Self::Between;
        let calls = read_objects(up_to(body.text, bytes), is_cut);
        ReadStep::Calls { calls, bytes, are_sealed: false }
    }

    fn step_between(&mut self, body: BodyText<'_>) -> ReadStep {
        let (text, blanks) = body.trimmed();
        if text.starts_with(FUNCTION_CLOSE) {
            return ReadStep::Skip(blanks + FUNCTION_CLOSE.len());
        }
        if let Some(close) = [CLOSE, TOOLS_CLOSE].iter().find(|close| text.starts_with(**close)) {
            return ReadStep::Seal { bytes: blanks + close.len(), is_over: true };
        }
        if text.starts_with(OPEN) {
            return ReadStep::Seal { bytes: blanks, is_over: true };
        }
        if text.starts_with(['{', '[']) || text.starts_with(FUNCTION) {
            *self = Self::Opened;
            return ReadStep::Seal { bytes: blanks, is_over: false };
        }
        if text.starts_with([',', ';', '}', ']']) {
            return ReadStep::Skip(blanks + 1);
        }
        body.wait_for(&[CLOSE, TOOLS_CLOSE, FUNCTION_CLOSE, FUNCTION, OPEN])
            .unwrap_or(ReadStep::Over(0))
    }
}

impl Function {
    fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        match std::mem::replace(&mut self.parameter, FunctionState::None) {
            FunctionState::None => self.step_between(body),
            FunctionState::Name => match tag_name(body) {
                TagName::More => {
                    self.parameter = FunctionState::Name;
                    ReadStep::More
                }
                // The quote begins a name, so that the parameter is not lost without an error.
                TagName::CutOff => self.cut_off("\"", body.text.len()),
                TagName::None => self.cut_off("\"", 0),
                TagName::Read { name, bytes } => {
                    self.parameter = FunctionState::Value { name, searched: 0 };
                    ReadStep::Skip(bytes)
                }
            },
            FunctionState::Object(scan) => self.step_object(scan, body),
            FunctionState::Value { name, searched } => self.step_value(name, searched, body),
        }
    }

    fn step_object(&mut self, mut scan: BracketScan, body: BodyText<'_>) -> ReadStep {
        let (bytes, is_cut) = match scan.scan(body.text, &[FUNCTION_CLOSE, CLOSE]) {
            ScanEnd::Closed(bytes) => (bytes, false),
            ScanEnd::Stopped(bytes) => (bytes, true),
            ScanEnd::Open if !body.is_end => {
                self.parameter = FunctionState::Object(scan);
                return ReadStep::More;
            }
            ScanEnd::Open => (body.text.len(), false),
        };
        let text = up_to(body.text, bytes);
        let call = read_arguments(&self.name, text, is_cut);
        match serde_json::from_str(&call.arguments) {
            Ok(arguments) if !call.is_repaired => {
                self.arguments = arguments;
                ReadStep::Skip(bytes)
            }
            // The closing tag, if there is one, follows the call.
            Ok(_) | Err(_) => ReadStep::call(call, bytes, false),
        }
    }

    fn step_between(&mut self, body: BodyText<'_>) -> ReadStep {
        let (text, blanks) = body.trimmed();
        if text.starts_with(PARAMETER) {
            self.parameter = FunctionState::Name;
            return ReadStep::Skip(blanks + PARAMETER.len());
        }
        if text.starts_with('{') && self.arguments.is_empty() {
            self.parameter = FunctionState::Object(BracketScan::new(0));
            return ReadStep::Skip(blanks);
        }
        if text.starts_with(FUNCTION_CLOSE) {
            return self.end(blanks + FUNCTION_CLOSE.len(), true);
        }
        if [CLOSE, OPEN, FUNCTION].iter().any(|tag| text.starts_with(tag)) {
            return self.end(blanks, true);
        }
        match body.wait_for(&[PARAMETER, FUNCTION_CLOSE, CLOSE, OPEN, FUNCTION]) {
            Some(ReadStep::More) => ReadStep::More,
            Some(_) => self.end(body.text.len(), false),
            // Text between the parameters has no meaning.
            None => ReadStep::Skip(blanks + text.chars().next().map_or(0, char::len_utf8)),
        }
    }

    /// Looks for the end of a value: its closing tag, or the function's end if that is missing. A tag counts only
    /// if a tag that may follow it comes next, or the text ends, so that the value may hold such tags.
    fn step_value(&mut self, name: String, mut searched: usize, body: BodyText<'_>) -> ReadStep {
        let BodyText { text, is_end, is_cut, tools } = body;
        while let Some(found) = from(text, searched).find("</") {
            let at = searched + found;
            let rest = from(text, at);
            // A response that was cut off after the function's end may have been cut off within the value.
            let ends = [
                (PARAMETER_CLOSE, &[PARAMETER, FUNCTION_CLOSE, CLOSE][..], is_end),
                (FUNCTION_CLOSE, &[CLOSE][..], is_end && !is_cut),
            ];
            let mut may_end = false;
            for (tag, followers, may_be_last) in ends {
                let Some(after) = rest.strip_prefix(tag) else {
                    may_end |= tag.starts_with(rest);
                    continue;
                };
                let follower = after.trim_start();
                let is_last = may_be_last && follower.is_empty();
                if is_last || followers.iter().any(|tag| follower.starts_with(tag)) {
                    let schema = tools.iter().find(|tool| tool.name == self.name);
                    let value = without_margin(up_to(text, at));
                    let value = typed_value(schema.map(|tool| &tool.schema), &name, value);
                    self.arguments.insert(name, value);
                    let is_closed = tag == PARAMETER_CLOSE;
                    return ReadStep::Skip(if is_closed { at + tag.len() } else { at });
                }
                may_end |= followers.iter().any(|tag| tag.starts_with(follower));
            }
            if may_end && !is_end {
                searched = at;
                self.parameter = FunctionState::Value { name, searched };
                return ReadStep::More;
            }
            searched = at + 2;
        }
        if !is_end {
            // A `<` at the end may begin a tag.
            let searched = if text.ends_with('<') { text.len() - 1 } else { text.len() };
            self.parameter = FunctionState::Value { name, searched };
            return ReadStep::More;
        }
        // The value is cut off, and with it the object.
        let mut member = format!("{}:{}", Value::from(name), Value::from(without_margin(text)));
        member.pop();
        self.cut_off(&member, text.len())
    }

    /// Ends the call within a parameter. Its object stays open after the beginning of a member, so that the
    /// arguments count as cut off.
    fn cut_off(&mut self, member: &str, bytes: usize) -> ReadStep {
        let mut call = ReadCall::new(&*self.name, std::mem::take(&mut self.arguments));
        call.arguments.pop();
        if call.arguments.len() > 1 {
            call.arguments.push(',');
        }
        call.arguments.push_str(member);
        ReadStep::call(call, bytes, false)
    }

    fn end(&mut self, bytes: usize, are_sealed: bool) -> ReadStep {
        let call = ReadCall::new(&*self.name, std::mem::take(&mut self.arguments));
        ReadStep::call(call, bytes, are_sealed)
    }
}

/// The name within a tag such as `<function=NAME>`.
enum TagName {
    /// More text is needed.
    More,
    /// The text ends within the tag.
    CutOff,
    /// It is no such tag.
    None,
    Read {
        name: String,
        bytes: usize,
    },
}

fn tag_name(body: BodyText<'_>) -> TagName {
    // Text after the longest name is not searched, because a response may have many such tags.
    let longest = up_to(body.text, floor_char_boundary(body.text, NAME_BYTES_MAX + 1));
    match longest.find(['>', '\n']) {
        Some(end) if from(body.text, end).starts_with('>') => {
            let name = up_to(body.text, end).trim().trim_matches(['"', '\'']).to_owned();
            TagName::Read { name, bytes: end + 1 }
        }
        Some(_) => TagName::None,
        None if body.text.len() > NAME_BYTES_MAX => TagName::None,
        None if body.is_end => TagName::CutOff,
        None => TagName::More,
    }
}

/// Reads the name of a function, if a parameter, an object, the end of the function or call, or nothing follows.
fn function_name(body: BodyText<'_>) -> TagName {
    let TagName::Read { name, bytes } = tag_name(body) else { return tag_name(body) };
    let rest = BodyText { text: from(body.text, bytes), ..body };
    let (text, _) = rest.trimmed();
    if let Some(object) = text.strip_prefix('{') {
        return match object.trim_start().chars().next() {
            Some('"' | '}') => TagName::Read { name, bytes },
            Some(_) => TagName::None,
            None if rest.is_end => TagName::Read { name, bytes },
            None => TagName::More,
        };
    }
    let followers = [PARAMETER, FUNCTION_CLOSE, CLOSE];
    match rest.wait_for(&followers) {
        Some(ReadStep::More) => TagName::More,
        Some(_) => TagName::Read { name, bytes },
        None if followers.iter().any(|tag| text.starts_with(tag)) => TagName::Read { name, bytes },
        None => TagName::None,
    }
}

/// Removes the white space that the form adds to a value: one line feed at the beginning and one at the end of a
/// value that begins on a line of its own, and all white space at both ends of any other value.
fn without_margin(value: &str) -> &str {
    match value.strip_prefix('\n') {
        Some(lines) => lines.strip_suffix('\n').unwrap_or(lines),
        None => value.trim(),
    }
}
