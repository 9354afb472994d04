//! Finds triggers: the beginnings of calls in a text.

use super::arrow::{ARROW, ArrowBody};
use super::gemma::{GemmaBody, find_gemma_call};
use super::object::{ObjectBody, ObjectPosition, begins_with_member, find_object};
use super::pythonic::{PythonicBody, offers};
use super::react::{self, NeedsMoreText, ReactBody, action_name, after};
use super::read_call::{
    BodyText, NAME_BYTES_MAX, ReadStep, from, keyword_length, name_length, up_to,
};
use super::tagged::{self, TaggedBody};
use crate::ToolDefinition;
use callsheet_values::types::{ToolProtocol, floor_char_boundary};

/// Maximum length of a trigger, in bytes.
const TRIGGER_BYTES_MAX: usize = 1024;

const PYTHON_TAGS: [&str; 2] = ["<|python_tag|>", "<|python_start|>"];

/// Tokens that end a call and have no meaning of their own.
const PYTHON_ENDS: [&str; 3] = ["<|python_end|>", "<|eom_id|>", "<|eot_id|>"];

/// Reads the text after a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallBody {
    Tagged(TaggedBody),
    Pythonic(PythonicBody),
    React(ReactBody),
    Arrow(ArrowBody),
    Gemma(GemmaBody),
    Object(ObjectBody),
}

impl CallBody {
    pub(super) fn step(&mut self, body: BodyText<'_>) -> ReadStep {
        match self {
            Self::Tagged(tagged) => tagged.step(body),
            Self::Pythonic(pythonic) => pythonic.step(body),
            Self::React(react) => react.step(body),
            Self::Arrow(arrow) => arrow.step(body),
            Self::Gemma(gemma) => gemma.step(body),
            Self::Object(object) => object.step(body),
        }
    }
}

/// The kind of element that begins at a position of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// Text.
    None,
    /// More text decides. Never returned if [`Position::is_end`] is true.
    Undecided,
    /// A call, whose text follows after this many bytes.
    Call { body: CallBody, bytes: usize },
    /// These many bytes belong to the protocol and not to the text.
    Mark(usize),
    /// The results of the calls, as the model imagines them. Nothing after them counts.
    ImaginedResults,
}

/// A position of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position<'t> {
    /// The text from here on, as far as it has arrived. Never empty.
    pub(super) text: &'t str,
    /// The text ends here, and the response ended well.
    pub(super) is_end: bool,
    pub(super) is_line_start: bool,
    /// Nothing but white space came before.
    pub(super) is_response_start: bool,
    pub(super) has_calls: bool,
    /// An object without a tag may begin here.
    pub(super) may_begin_object: bool,
    pub(super) tools: &'t [ToolDefinition],
}

/// Decides what begins at a position.
pub(super) fn find_trigger(protocol: ToolProtocol, at: Position<'_>) -> Trigger {
    // The decision depends on these bytes alone, however the text was cut.
    let bytes = floor_char_boundary(at.text, TRIGGER_BYTES_MAX);
    let is_whole = bytes == at.text.len();
    let at = Position { text: up_to(at.text, bytes), is_end: at.is_end && is_whole, ..at };
    let found = match protocol {
        ToolProtocol::Native => Ok(Trigger::None),
        ToolProtocol::Hermes | ToolProtocol::Xml => tagged(at),
        ToolProtocol::React => react(at),
        ToolProtocol::Pythonic => pythonic(at),
        ToolProtocol::Arrow => arrow(at),
    };
    let found = match found {
        Ok(Trigger::None) => any_protocol(protocol, at),
        found => found,
    };
    match found {
        Ok(trigger) => trigger,
        Err(NeedsMoreText) if at.is_end || !is_whole => Trigger::None,
        Err(NeedsMoreText) => Trigger::Undecided,
    }
}

/// Finds the forms that are read in every protocol: Gemma's own, and objects without a tag.
fn any_protocol(protocol: ToolProtocol, at: Position<'_>) -> Result<Trigger, NeedsMoreText> {
    if protocol == ToolProtocol::Native {
        return Ok(Trigger::None);
    }
    if let Some((body, bytes)) = find_gemma_call(at.text)? {
        return Ok(Trigger::Call { body: CallBody::Gemma(body), bytes });
    }
    let position = ObjectPosition {
        is_response_start: at.is_response_start,
        is_line_start: at.is_line_start,
        has_tags: matches!(protocol, ToolProtocol::Hermes | ToolProtocol::Xml),
    };
    let object = if at.may_begin_object { find_object(at.text, position)? } else { None };
    Ok(object.map_or(Trigger::None, |object| {
        let body = CallBody::Object(object);
        Trigger::Call { body, bytes: 0 }
    }))
}

/// Returns the length of the first of the words with which the text begins.
pub(super) fn one_of(text: &str, words: &[&str]) -> Result<Option<usize>, NeedsMoreText> {
    if let Some(word) = words.iter().find(|word| text.starts_with(**word)) {
        return Ok(Some(word.len()));
    }
    let is_begun = words.iter().any(|word| word.starts_with(text));
    if is_begun { Err(NeedsMoreText) } else { Ok(None) }
}

fn tagged(at: Position<'_>) -> Result<Trigger, NeedsMoreText> {
    if !at.text.starts_with('<') {
        return Ok(Trigger::None);
    }
    let body = CallBody::Tagged(TaggedBody::Opened);
    if let Some(bytes) = one_of(at.text, &[tagged::OPEN])? {
        return Ok(Trigger::Call { body, bytes });
    }
    if one_of(at.text, &[tagged::FUNCTION])?.is_some() {
        return Ok(Trigger::Call { body, bytes: 0 });
    }
    Ok(one_of(at.text, &[tagged::CLOSE])?.map_or(Trigger::None, Trigger::Mark))
}

fn react(at: Position<'_>) -> Result<Trigger, NeedsMoreText> {
    let Position { text, tools, .. } = at;
    if !at.is_line_start || !text.starts_with(['A', '*', 'O', 'F']) {
        return Ok(Trigger::None);
    }
    if at.has_calls && react::label(text, "Observation")?.is_some() {
        return Ok(Trigger::ImaginedResults);
    }
    if let Some(bytes) = react::label(text, "Final Answer")? {
        return match from(text, bytes).chars().next() {
            Some(' ') => Ok(Trigger::Mark(bytes + 1)),
            None if !at.is_end => Err(NeedsMoreText),
            Some(_) | None => Ok(Trigger::Mark(bytes)),
        };
    }
    let Some(bytes) = react::label(text, "Action")? else { return Ok(Trigger::None) };
    let rest = from(text, bytes);
    let line = rest.split('\n').next().unwrap_or_default();
    let name = action_name(line);
    let is_name = !name.is_empty() && name_length(name) == name.len();
    let is_awaited = name.is_empty() && line.len() == rest.len();
    if name.len() > NAME_BYTES_MAX || !(is_name || is_awaited) {
        return Ok(Trigger::None);
    }
    // The input may be missing if the tool is offered, because it may have no parameters.
    let without_input = || match is_name && offers(tools, name) {
        true => Trigger::Call { body: CallBody::React(ReactBody::new(name)), bytes: text.len() },
        false => Trigger::None,
    };
    let next = after(rest, line.len());
    if next.is_empty() {
        return if at.is_end { Ok(without_input()) } else { Err(NeedsMoreText) };
    }
    if let Some(input) = react::label(next, "Action Input")? {
        let bytes = text.len() - next.len() + input;
        return Ok(Trigger::Call { body: CallBody::React(ReactBody::new(name)), bytes });
    }
    match react::label(next, "Observation")? {
        Some(_) if offers(tools, name) => {
            let (body, bytes) = (CallBody::React(ReactBody::new(name)), text.len() - next.len());
            Ok(Trigger::Call { body, bytes })
        }
        Some(_) | None => Ok(Trigger::None),
    }
}

fn pythonic(at: Position<'_>) -> Result<Trigger, NeedsMoreText> {
    let Position { text, tools, .. } = at;
    let call = |body, bytes| Trigger::Call { body: CallBody::Pythonic(body), bytes };
    match text.chars().next() {
        Some('<') => {
            if let Some(bytes) = one_of(text, &PYTHON_TAGS)? {
                return Ok(call(PythonicBody::tag(), bytes));
            }
            Ok(one_of(text, &PYTHON_ENDS)?.map_or(Trigger::None, Trigger::Mark))
        }
        Some('{') if at.is_response_start && begins_with_member(text, &["name"])? => {
            Ok(call(PythonicBody::json(), 0))
        }
        Some('[') => {
            if let Some(name) = leading_call_name(from(text, 1))? {
                let is_call = at.is_line_start || offers(tools, name);
                return Ok(if is_call { call(PythonicBody::list(), 1) } else { Trigger::None });
            }
            let item = after(text, 1);
            if at.is_response_start && item.starts_with('{') && begins_with_member(item, &["name"])?
            {
                return Ok(call(PythonicBody::json(), 0));
            }
            Ok(Trigger::None)
        }
        Some(_) | None => Ok(Trigger::None),
    }
}

/// Returns the name of the call with which a list begins: `f()`, `f(a=` or `f(**`.
fn leading_call_name(text: &str) -> Result<Option<&str>, NeedsMoreText> {
    let text = text.trim_start();
    let name = up_to(text, name_length(text));
    let rest = after(text, name.len());
    if rest.is_empty() {
        return Err(NeedsMoreText);
    }
    if name.is_empty() || !rest.starts_with('(') {
        return Ok(None);
    }
    let inner = after(rest, 1);
    if one_of(inner, &[")", "**"])?.is_some() {
        return Ok(Some(name));
    }
    let keyword = up_to(inner, keyword_length(inner));
    let value = after(inner, keyword.len()).strip_prefix('=');
    match value.map(|value| value.chars().next()) {
        Some(None) => Err(NeedsMoreText),
        Some(Some(c)) if c != '=' && !keyword.is_empty() => Ok(Some(name)),
        None if after(inner, keyword.len()).is_empty() => Err(NeedsMoreText),
        Some(Some(_)) | None => Ok(None),
    }
}

fn arrow(at: Position<'_>) -> Result<Trigger, NeedsMoreText> {
    if !at.is_line_start || !at.text.starts_with('=') {
        return Ok(Trigger::None);
    }
    let Some(bytes) = one_of(at.text, &[ARROW])? else { return Ok(Trigger::None) };
    let rest = from(at.text, bytes);
    let name = up_to(rest, name_length(rest));
    let object = after(rest, name.len());
    if object.is_empty() {
        return Err(NeedsMoreText);
    }
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !object.starts_with('{') {
        return Ok(Trigger::None);
    }
    let bytes = at.text.len() - object.len();
    Ok(Trigger::Call { body: CallBody::Arrow(ArrowBody::new(name)), bytes })
}
