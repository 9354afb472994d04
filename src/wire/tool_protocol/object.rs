//! Calls as JSON objects that no `<tool_call>` opens: objects before a closing tag alone, objects in `<tools>`, and
//! objects that are the whole answer, bare or in a block of code.
//!
//! The text is held back until it is decided. Without a closing tag, an object is a call only if it names an
//! offered tool and has no other members than those of a call.

use std::ops::Range;

use serde_json::Value;

use super::bracket_scan::{BracketScan, ScanEnd};
use super::pythonic::offers;
use super::react::{NeedsMoreText, after};
use super::read_call::{BodyText, ReadCall, ReadStep, from, name_length, read_items, up_to};
use super::tagged::{CLOSE, OPEN, TOOLS_CLOSE};
use super::trigger::one_of;
use crate::ToolDefinition;

/// Tags that models write instead of `<tool_call>`.
const OPENING_TAGS: [&str; 5] =
    ["<tools>", "<tool_calls>", "<toolcall>", "<function_call>", "<|tool_call|>"];
const CLOSING_TAGS: [&str; 6] =
    [CLOSE, TOOLS_CLOSE, "</tool_calls>", "</toolcall>", "</function_call>", "<|/tool_call|>"];
/// The texts that end a value whose brackets are missing.
const STOPS: [&str; 7] = [
    OPEN,
    CLOSE,
    TOOLS_CLOSE,
    "</tool_calls>",
    "</toolcall>",
    "</function_call>",
    "<|/tool_call|>",
];
const FENCE: &str = "```";

/// The words after an opening fence whose block may hold a call.
const INFO_WORDS: [&str; 6] = ["", "json", "JSON", "tool_call", "tool_calls", "tool"];

/// The members with which the object of a call begins.
const FIRST_MEMBERS: [&str; 7] =
    ["name", "arguments", "parameters", "function", "type", "id", "tool_calls"];

/// The form around the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectForm {
    Bare,
    /// In a block of code.
    Fenced,
    /// In one of the [`OPENING_TAGS`].
    Tagged,
}

/// Reads the text from the first object, the fence or the tag on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectBody {
    form: ObjectForm,
    is_response_start: bool,
    is_line_start: bool,
    /// The value that has not ended: its beginning, and the search for its end.
    open: Option<(usize, BracketScan)>,
    /// The values that have ended.
    values: Vec<Range<usize>>,
    /// The brackets of the last value are missing.
    is_cut: bool,
    /// Number of bytes that are read.
    at: usize,
    is_fence_closed: bool,
    is_read: bool,
}

/// The position of an object in the response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectPosition {
    pub(super) is_response_start: bool,
    pub(super) is_line_start: bool,
    /// The protocol has closing tags.
    pub(super) has_tags: bool,
}

/// Returns the body of an object that may be a call, if one begins at this position.
pub(super) fn find_object(
    text: &str,
    position: ObjectPosition,
) -> Result<Option<ObjectBody>, NeedsMoreText> {
    let ObjectPosition { is_response_start, is_line_start, has_tags } = position;
    let (form, begin) = match text.chars().next() {
        Some('{') if has_tags || is_response_start => (ObjectForm::Bare, 0),
        Some('[') if is_response_start => (ObjectForm::Bare, 0),
        Some('<') if has_tags => match one_of(text, &OPENING_TAGS)? {
            Some(bytes) => (ObjectForm::Tagged, bytes),
            None => return Ok(None),
        },
        Some('`') if is_response_start && is_line_start => match one_of(text, &[FENCE])? {
            Some(bytes) => {
                let word = from(text, bytes);
                let word = up_to(word, name_length(word));
                let is_begun = bytes + word.len() == text.len();
                if is_begun && INFO_WORDS.iter().any(|known| known.starts_with(word)) {
                    return Err(NeedsMoreText);
                }
                if !INFO_WORDS.contains(&word) {
                    return Ok(None);
                }
                (ObjectForm::Fenced, bytes + word.len())
            }
            None => return Ok(None),
        },
        Some(_) | None => return Ok(None),
    };
    let value = after(text, begin);
    if value.is_empty() {
        return Err(NeedsMoreText);
    }
    let object = if value.starts_with('[') { after(value, 1) } else { value };
    if object.is_empty() {
        return Err(NeedsMoreText);
    }
    let is_call = object.starts_with('{')
        && (form == ObjectForm::Tagged || begins_with_member(object, &FIRST_MEMBERS)?);
    let at = text.len() - value.len();
    Ok(is_call.then(|| ObjectBody {
        form,
        is_response_start,
        is_line_start,
        open: Some((at, BracketScan::new(at))),
        values: Vec::new(),
        is_cut: false,
        at,
        is_fence_closed: false,
        is_read: false,
    }))
}

/// Returns whether the first member of an object has one of these names.
pub(super) fn begins_with_member(text: &str, names: &[&str]) -> Result<bool, NeedsMoreText> {
    let member = after(text, 1);
    let Some(quote) = member.chars().next() else { return Err(NeedsMoreText) };
    if quote != '"' && quote != '\'' {
        return Ok(false);
    }
    let rest = from(member, 1);
    let name = up_to(rest, name_length(rest));
    if name.len() == rest.len() {
        let is_begun = names.iter().any(|known| known.starts_with(name));
        return if is_begun { Err(NeedsMoreText) } else { Ok(false) };
    }
    if !names.contains(&name) || !from(rest, name.len()).starts_with(quote) {
        return Ok(false);
    }
    Ok(one_of(after(rest, name.len() + 1), &[":"])?.is_some())
}

impl ObjectBody {
    /// Returns the number of bytes in which no other object begins a call if this one is none.
    pub(super) fn examined_bytes(&self, text: &str) -> usize {
        if self.open.is_some() { text.len() } else { self.at }
    }

    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        if self.is_read {
            return ReadStep::Over(0);
        }
        loop {
            if let Some(step) = self.read_value(body) {
                return step;
            }
            let rest = after(body.text, self.at);
            let at = body.text.len() - rest.len();
            let is_in_fence = self.form == ObjectForm::Fenced && !self.is_fence_closed;
            if rest.is_empty() {
                return if body.is_end { self.end(body) } else { ReadStep::More };
            }
            if !self.is_fence_closed && rest.starts_with(['{', '[']) {
                self.open = Some((at, BracketScan::new(at)));
            } else if !self.is_fence_closed && rest.starts_with([',', ';']) {
                self.at = at + 1;
            } else if is_in_fence && rest.starts_with(FENCE) {
                self.is_fence_closed = true;
                self.at = at + FENCE.len();
            } else {
                let tags: &[&str] = if is_in_fence { &[FENCE] } else { &CLOSING_TAGS };
                if let Some(tag) = tags.iter().find(|tag| rest.starts_with(**tag)) {
                    return self.close(at + tag.len(), body);
                }
                let may_follow = !body.is_end && tags.iter().any(|tag| tag.starts_with(rest));
                return if may_follow { ReadStep::More } else { ReadStep::NotACall };
            }
        }
    }

    /// Reads the value that has not ended. Returns `None` if it has ended now.
    fn read_value(&mut self, body: BodyText<'_>) -> Option<ReadStep> {
        let (begin, scan) = self.open.as_mut()?;
        let begin = *begin;
        let end = match scan.scan(body.text, &STOPS) {
            ScanEnd::Closed(end) => end,
            ScanEnd::Stopped(end) if from(body.text, end).starts_with(OPEN) => {
                (self.open, self.at) = (None, end);
                return Some(ReadStep::NotACall);
            }
            ScanEnd::Stopped(end) => {
                self.is_cut = true;
                end
            }
            ScanEnd::Open if !body.is_end => return Some(ReadStep::More),
            ScanEnd::Open => {
                self.is_cut = true;
                body.text.len()
            }
        };
        self.values.push(begin..end);
        (self.open, self.at) = (None, end);
        None
    }

    /// Reads the calls before a closing tag, which ends after this many bytes. In the middle of a line, nothing but a
    /// call may follow in the line.
    fn close(&mut self, bytes: usize, body: BodyText<'_>) -> ReadStep {
        if self.form == ObjectForm::Bare && !self.is_line_start {
            let rest = from(body.text, bytes).trim_start_matches([' ', '\t', '\r']);
            if rest.is_empty() && !body.is_end {
                return ReadStep::More;
            }
            if !rest.is_empty() && !rest.starts_with(['\n', '{', '<']) {
                return ReadStep::NotACall;
            }
        }
        let has_name = |call: &ReadCall| call.name.is_some();
        match self.calls(body.text, self.is_cut, |item| !is_definition(item), has_name) {
            Some(calls) if calls.iter().all(has_name) => self.read(calls, bytes, true),
            Some(_) | None => ReadStep::NotACall,
        }
    }

    /// Reads the calls of a text that ends after the values. If it was cut off, a value without its end is kept as it
    /// is, so that its call counts as cut off.
    fn end(&mut self, body: BodyText<'_>) -> ReadStep {
        let is_tagged = self.form == ObjectForm::Tagged;
        if !is_tagged && !self.is_response_start {
            return ReadStep::NotACall;
        }
        let tools = (!is_tagged).then_some(body.tools);
        let is_offered = |call: &ReadCall| match (tools, call.name.as_deref()) {
            (Some(tools), Some(name)) => offers(tools, name),
            (Some(_), None) => false,
            (None, name) => body.is_cut || name.is_some(),
        };
        let adds_brackets = self.is_cut && !body.is_cut;
        let is_call = |item: &Value| is_whole_call(item, tools);
        match self.calls(body.text, adds_brackets, is_call, is_offered) {
            Some(calls) => self.read(calls, body.text.len(), false),
            None => ReadStep::NotACall,
        }
    }

    /// Returns the calls of all values. Returns `None` if one of them is no call: an item, or a value that cannot be
    /// parsed. With `adds_brackets`, the last value gets the brackets that it lacks.
    fn calls(
        &self,
        text: &str,
        adds_brackets: bool,
        is_call: impl Fn(&Value) -> bool,
        is_unreadable_call: impl Fn(&ReadCall) -> bool,
    ) -> Option<Vec<ReadCall>> {
        let mut calls = Vec::new();
        for (at, range) in self.values.iter().enumerate() {
            let text = text.get(range.clone())?;
            let adds_brackets = adds_brackets && at + 1 == self.values.len();
            match read_items(text, adds_brackets) {
                Some((items, is_repaired)) if items.iter().all(&is_call) => {
                    calls.extend(items.into_iter().map(|item| ReadCall::of(item, is_repaired)));
                }
                Some(_) => return None,
                None => {
                    let call = ReadCall::unreadable(text);
                    calls.push(Some(call).filter(&is_unreadable_call)?);
                }
            }
        }
        Some(calls).filter(|calls| !calls.is_empty())
    }

    fn read(&mut self, calls: Vec<ReadCall>, bytes: usize, are_sealed: bool) -> ReadStep {
        self.is_read = true;
        ReadStep::Calls { calls, bytes, are_sealed }
    }
}

/// Returns the object with the name: the item, or its member `function` as in Chat Completions.
fn named(item: &Value) -> &Value {
    item.get("function").filter(|function| function.get("name").is_some()).unwrap_or(item)
}

/// Returns whether an object is the definition of a tool, which a model may repeat.
fn is_definition(item: &Value) -> bool {
    let named = named(item);
    let parameters = named.get("parameters");
    named.get("description").is_some() && named.get("arguments").is_none()
        || parameters.is_some_and(|schema| {
            schema.get("properties").is_some_and(Value::is_object)
                && schema.get("type").is_some_and(|kind| kind == "object")
        })
}

/// Returns whether an object has the members of a call and no others, and names an offered tool where the tools
/// are given.
fn is_whole_call(item: &Value, tools: Option<&[ToolDefinition]>) -> bool {
    let members = |value: &Value, known: &[&str]| {
        value
            .as_object()
            .is_some_and(|members| members.keys().all(|name| known.contains(&name.as_str())))
    };
    let named = named(item);
    let Some(name) = ["name", "function"].iter().find_map(|key| named.get(key)?.as_str()) else {
        return false;
    };
    let is_offered = tools.is_none_or(|tools| offers(tools, name));
    let has_form = members(item, &FIRST_MEMBERS) && members(named, &FIRST_MEMBERS);
    is_offered && has_form && !is_definition(item)
}
