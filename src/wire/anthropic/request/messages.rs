//! A history as this wire takes it: users and the model speak in turns, and the results of calls
//! come first in what the user says next.
//!
//! Rules: <https://docs.anthropic.com/en/api/messages> and
//! <https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking>; what is refused beyond
//! them is known from the service's answers to others (texts of blanks alone, ids that stand
//! twice, thinking at the end of a message, results without the call of the service's own).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::message::{Message, RequestPart, ResponseMessage};
use crate::types::{Content, ContentPart, Image, MessagePart, ModelOrigin, ToolCall, Wire};
use crate::wire::ModelRequest;
use crate::wire::body::Elements;
use crate::wire::ids::{cleaned, tool_name};
use crate::wire::loose::Scalar;

/// Said for a user who says nothing: the service takes no empty text.
const NOTHING_SAID: &str = "(nothing)";

/// The longest id that is surely taken.
const ID_CHARS_MAX: usize = 64;

/// What one side says before the other does.
#[derive(Debug, Serialize)]
struct Turn<'a> {
    role: Role,
    content: Vec<Block<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Debug)]
enum Block<'a> {
    Text { text: &'a str, members: Option<&'a str> },
    Thinking { text: &'a str, members: &'a str },
    Image(&'a Image),
    Call { id: Cow<'a, str>, call: &'a ToolCall, members: Option<&'a str> },
    Result { id: Cow<'a, str>, content: &'a str, is_error: bool },
    Raw { json: &'a RawValue, is_thinking: bool },
}

/// Writes the messages of a request.
pub(in crate::wire) fn write(request: &ModelRequest, elements: &mut Elements) {
    let (turns, settled) = turns(request);
    elements.put_all(&turns, settled, request.messages.len());
}

/// What is said, and how many turns of it stay as they are whatever follows: not the last, nor any
/// behind the first call that the service ran itself, which goes only if its result comes.
fn turns(request: &ModelRequest) -> (Vec<Turn<'_>>, usize) {
    let origin = ModelOrigin { wire: Wire::AnthropicMessages, model: request.model.clone() };
    let messages = &*request.messages;
    let mut history = Writer { turns: Vec::new(), ids: Ids::default() };
    let mut service_calls = ServiceCalls::of(messages, &origin);
    let mut settled = usize::MAX;
    let last_said = messages.iter().rposition(|m| !matches!(**m, Message::Tool { .. }));
    for (place, message) in messages.iter().enumerate() {
        service_calls.may_go_on = last_said == Some(place);
        match message.as_ref() {
            Message::User { content } => history.user(content),
            Message::Assistant(message) => {
                let before = history.turns.len().saturating_sub(1);
                history.assistant(message, &origin, &mut service_calls);
                if !service_calls.called.is_empty() {
                    settled = settled.min(before);
                }
            }
            Message::Tool { call_id, content, metadata, .. } => {
                let is_error = metadata.get("error") == Some(&Value::Bool(true));
                let id = history.ids.answered(call_id);
                history.say(Role::User, [Block::Result { id, content, is_error }]);
            }
        }
    }
    let turns = history.finished();
    let settled = settled.min(turns.len().saturating_sub(1));
    (turns, settled)
}

struct Writer<'a> {
    turns: Vec<Turn<'a>>,
    ids: Ids<'a>,
}

impl<'a> Writer<'a> {
    fn user(&mut self, content: &'a Content) {
        let blocks = content.parts().iter().filter_map(|part| match part {
            ContentPart::Text(text) => text_block(text, None),
            ContentPart::Image(image) => Some(Block::Image(image)),
        });
        self.say(Role::User, blocks);
    }

    fn assistant(
        &mut self,
        message: &'a ResponseMessage,
        origin: &ModelOrigin,
        service_calls: &mut ServiceCalls,
    ) {
        let is_its_own = message.is_from(origin);
        self.ids.next_message();
        let mut blocks = Vec::new();
        for piece in message.request_parts(origin) {
            let block = match piece {
                RequestPart::Text { text, members } => text_block(text, members),
                // Thinking that broke off has no members, and no service takes it back.
                RequestPart::Reasoning { text, members } => {
                    members.map(|members| Block::Thinking { text, members })
                }
                RequestPart::Call { call, members } => {
                    let id = self.ids.called(&call.id, is_its_own);
                    Some(Block::Call { id, call, members })
                }
                RequestPart::Raw(json) => service_calls.block(json),
            };
            blocks.extend(block);
        }
        while blocks.last().is_some_and(Block::is_thinking) {
            blocks.pop();
        }
        self.say(Role::Assistant, blocks);
    }

    fn say(&mut self, role: Role, blocks: impl IntoIterator<Item = Block<'a>>) {
        let mut blocks = blocks.into_iter().peekable();
        match self.turns.last_mut() {
            Some(turn) if turn.role == role => turn.content.extend(blocks),
            Some(_) | None => {
                // A user who says nothing still takes a turn, lest the model speaks on.
                if role == Role::Assistant && blocks.peek().is_none() {
                    return;
                }
                if self.turns.is_empty() && role == Role::Assistant {
                    self.turns.push(Turn { role: Role::User, content: Vec::new() });
                }
                self.turns.push(Turn { role, content: blocks.collect() });
            }
        }
    }

    fn finished(mut self) -> Vec<Turn<'a>> {
        for turn in self.turns.iter_mut().filter(|turn| turn.content.is_empty()) {
            turn.content.push(Block::Text { text: NOTHING_SAID, members: None });
        }
        if let Some(Turn { role: Role::Assistant, content }) = self.turns.last_mut()
            && let Some(Block::Text { text, .. }) = content.last_mut()
        {
            *text = text.trim_end();
        }
        self.turns
    }
}

/// Texts of blanks alone are refused.
fn text_block<'a>(text: &'a str, members: Option<&'a str>) -> Option<Block<'a>> {
    (!text.trim().is_empty()).then_some(Block::Text { text, members })
}

impl Block<'_> {
    fn is_thinking(&self) -> bool {
        match self {
            Self::Thinking { .. } => true,
            Self::Raw { is_thinking, .. } => *is_thinking,
            Self::Text { .. } | Self::Image(_) | Self::Call { .. } | Self::Result { .. } => false,
        }
    }
}

/// Ids of calls as the service takes them: of allowed characters, and each only once. Those that
/// its model made stay as they are, unless they repeat: the wire has services of other makers, whose
/// ids the others refuse.
#[derive(Debug, Default)]
struct Ids<'a> {
    used: BTreeSet<String>,
    /// Ids of the last message's calls, with what was sent for them.
    open: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> Ids<'a> {
    fn next_message(&mut self) {
        self.open.clear();
    }

    fn called(&mut self, id: &'a str, is_its_own: bool) -> Cow<'a, str> {
        let mut sent =
            if is_its_own { Cow::Borrowed(id) } else { cleaned(id, is_allowed, ID_CHARS_MAX) };
        let mut times = 1;
        while self.used.contains(&*sent) {
            times += 1;
            let again = format!("{id}_{times}");
            sent = Cow::Owned(cleaned(&again, is_allowed, ID_CHARS_MAX).into_owned());
        }
        self.used.insert(sent.clone().into_owned());
        self.open.push((id, sent.clone()));
        sent
    }

    fn answered(&self, id: &'a str) -> Cow<'a, str> {
        let called = self.open.iter().find(|(called, _)| *called == id);
        called.map_or_else(|| cleaned(id, is_allowed, ID_CHARS_MAX), |(_, sent)| sent.clone())
    }
}

pub(super) fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The calls that the service ran itself. It takes none back without its result, nor the other way
/// round, unless it may still run the call: where it paused.
#[derive(Debug, Default)]
struct ServiceCalls {
    answered: BTreeSet<String>,
    called: BTreeSet<String>,
    /// The message is the last of all, or only results of its calls follow.
    may_go_on: bool,
}

/// What tells blocks apart that are kept whole.
#[derive(Default, Deserialize)]
struct Outline<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Scalar<'a>,
    #[serde(borrow, default)]
    id: Scalar<'a>,
    #[serde(borrow, default)]
    tool_use_id: Scalar<'a>,
}

impl ServiceCalls {
    fn of(messages: &[Arc<Message>], origin: &ModelOrigin) -> Self {
        let said = messages.iter().filter_map(|message| match message.as_ref() {
            Message::Assistant(message) if message.is_from(origin) => Some(&message.parts),
            Message::Assistant(_) | Message::User { .. } | Message::Tool { .. } => None,
        });
        let answered = said.flatten().filter_map(|part| match part {
            MessagePart::Raw { json } => outline(json).tool_use_id.into_text(),
            MessagePart::Text { .. } | MessagePart::Reasoning { .. } | MessagePart::Call { .. } => {
                None
            }
        });
        Self { answered: answered.collect(), ..Self::default() }
    }

    /// A block that was kept whole, if the service takes it.
    fn block<'a>(&mut self, json: &'a str) -> Option<Block<'a>> {
        let Outline { kind, id, tool_use_id } = outline(json);
        let kind = kind.as_text().unwrap_or_default();
        let is_taken = if kind.ends_with("tool_use") {
            let id = id.into_text().unwrap_or_default();
            let is_taken = self.may_go_on || self.answered.contains(&id);
            self.called.insert(id);
            is_taken
        } else {
            tool_use_id.into_text().is_none_or(|id| self.called.contains(&id))
        };
        let json = serde_json::from_str(json).ok().filter(|_| is_taken)?;
        Some(Block::Raw { json, is_thinking: kind == "redacted_thinking" })
    }
}

fn outline(json: &str) -> Outline<'_> {
    serde_json::from_str(json).unwrap_or_default()
}

impl Serialize for Block<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Self::Raw { json, .. } = self {
            return json.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Text { text, members } => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
                put_members(&mut map, *members)?;
            }
            Self::Thinking { text, members } => {
                map.serialize_entry("type", "thinking")?;
                map.serialize_entry("thinking", text)?;
                put_members(&mut map, Some(members))?;
            }
            Self::Image(image) => {
                map.serialize_entry("type", "image")?;
                map.serialize_entry("source", &source(image))?;
            }
            Self::Call { id, call, members } => {
                map.serialize_entry("type", "tool_use")?;
                map.serialize_entry("id", id)?;
                map.serialize_entry("name", &tool_name(&call.name))?;
                match &*call.arguments {
                    object @ Value::Object(_) => map.serialize_entry("input", object)?,
                    Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::String(_)
                    | Value::Array(_) => map.serialize_entry("input", &Map::new())?,
                }
                put_members(&mut map, *members)?;
            }
            Self::Result { id, content, is_error } => {
                map.serialize_entry("type", "tool_result")?;
                map.serialize_entry("tool_use_id", id)?;
                if !content.trim().is_empty() {
                    map.serialize_entry("content", content)?;
                }
                if *is_error {
                    map.serialize_entry("is_error", &true)?;
                }
            }
            Self::Raw { .. } => {}
        }
        map.end()
    }
}

/// Writes what was kept with a block: the text of one JSON object.
fn put_members<M: SerializeMap>(map: &mut M, members: Option<&str>) -> Result<(), M::Error> {
    let members = members.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    for (key, value) in members.into_iter().flatten() {
        map.serialize_entry(&key, &value)?;
    }
    Ok(())
}

fn source(image: &Image) -> Value {
    match image {
        Image::Url(url) => json!({"type": "url", "url": &**url}),
        Image::Base64 { media_type, data } => {
            json!({"type": "base64", "media_type": &**media_type, "data": &**data})
        }
    }
}
