//! The blocks of a message: what opens, what is added, and what is left of each when it ends.
//!
//! Text, thinking and calls become deltas at once. Calls that the service runs itself, their
//! results, and whatever this wire may hold beside, are kept whole, because the service wants them
//! back as they were.

use serde::de::MapAccess;
use serde_json::Value;
use serde_json::value::RawValue;

use super::kept::{COLLECTED_BYTES_MAX, Kept};
use super::{Piece, without_halves};
use crate::wire::fields::{Fields, fill};
use crate::wire::loose::Scalar;
use crate::wire::mend::value_of;
use crate::wire::{CallDelta, CallKind, Delta, ProviderMetadata};

/// Blocks that may be open at once; a service has one.
const OPEN_MAX: usize = 64;

/// The blocks of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    open: Vec<Open>,
    /// How many have begun: the index of the next one, where it does not say its own.
    begun: u64,
    /// Thinking ended without a signature just now.
    unsigned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    index: u64,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Text {
        /// The items of a JSON list.
        citations: String,
    },
    Thinking {
        signature: String,
        has_text: bool,
    },
    Call {
        /// The arguments as the opening says them: some services say `{}` before the pieces,
        /// others say all and send no pieces.
        input: Option<Box<str>>,
        in_pieces: bool,
        /// Where the service runs it.
        service: Option<Kept>,
    },
    Other(Kept),
}

/// What a block says when it opens, or as a whole.
#[derive(Default)]
struct Block<'a> {
    kind: Scalar<'a>,
    id: Scalar<'a>,
    name: Scalar<'a>,
    text: Scalar<'a>,
    thinking: Scalar<'a>,
    signature: Scalar<'a>,
    input: Option<&'a RawValue>,
    citations: Option<&'a RawValue>,
    /// There are members that we know nothing of.
    has_more: bool,
}

impl<'de> Fields<'de> for Block<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "id" => self.id = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "text" => self.text = map.next_value()?,
            "thinking" => self.thinking = map.next_value()?,
            "signature" => self.signature = map.next_value()?,
            "input" => self.input = map.next_value()?,
            "citations" => self.citations = map.next_value()?,
            _ => {
                self.has_more = true;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Block<'_> {
    /// Its type; where it says none, what it holds says enough.
    fn kind(&self) -> &str {
        match self.kind.as_text() {
            Some(kind) if !kind.is_empty() => kind,
            Some(_) | None if self.text.as_text().is_some() => "text",
            Some(_) | None if self.thinking.as_text().is_some() => "thinking",
            Some(_) | None if self.name.as_text().is_some() => "tool_use",
            Some(_) | None => "",
        }
    }
}

impl Blocks {
    /// A block opens; `raw` is its JSON.
    pub(super) fn begin(&mut self, index: Option<u64>, raw: &str, out: &mut Vec<Delta>) {
        let index = index.unwrap_or(self.begun);
        self.begun = index.saturating_add(1);
        self.make_room(index, out);
        let mended;
        let (mut raw, mut block) = (raw, Block::default());
        if fill(raw, &mut block).is_err() {
            mended = without_halves(raw);
            (raw, block) = (mended.as_str(), Block::default());
            // What stays unread is what the fields hold by default.
            let _ = fill(raw, &mut block);
        }
        let state = match block.kind() {
            "" => return,
            "text" => {
                say(&block.text, Delta::Text, out);
                State::Text { citations: list_items(block.citations) }
            }
            "thinking" => State::Thinking {
                has_text: say(&block.thinking, Delta::Reasoning, out),
                signature: block.signature.into_text().unwrap_or_default(),
            },
            "tool_use" => begin_call(index, block, raw, CallKind::Function, out),
            kind if kind.ends_with("tool_use") => {
                begin_call(index, block, raw, CallKind::ServerToolUse, out)
            }
            _ => State::Other(Kept::new(raw)),
        };
        self.open.push(Open { index, state });
    }

    /// More of a block came; `text` is the whole event.
    pub(super) fn push(
        &mut self,
        index: Option<u64>,
        piece: &Piece<'_>,
        text: &str,
        out: &mut Vec<Delta>,
    ) {
        match piece.kind() {
            "text_delta" => drop(say(&piece.text, Delta::Text, out)),
            "thinking_delta" => {
                if say(&piece.thinking, Delta::Reasoning, out) {
                    self.thought(index);
                }
            }
            "input_json_delta" => {
                if let Some(more) = &piece.partial_json.0 {
                    let call = self.input(index, more);
                    out.extend(call.map(|call| {
                        Delta::Call(CallDelta {
                            arguments: Some(more.clone().into_owned()),
                            ..call
                        })
                    }));
                }
            }
            "signature_delta" => {
                if let (Some(State::Thinking { signature, .. }), Some(said)) =
                    (self.open_mut(index), piece.signature.as_text())
                {
                    said.clone_into(signature);
                }
            }
            "citations_delta" => {
                if let (Some(State::Text { citations }), Some(item)) =
                    (self.open_mut(index), piece.citation)
                    && citations.len() + item.get().len() < COLLECTED_BYTES_MAX
                {
                    if !citations.is_empty() {
                        citations.push(',');
                    }
                    citations.push_str(item.get());
                }
            }
            _ => {
                if let Some(State::Other(kept)) = self.open_mut(index) {
                    kept.add(text);
                }
            }
        }
    }

    /// A block ends.
    pub(super) fn stop(&mut self, index: Option<u64>, out: &mut Vec<Delta>) {
        if let Some(place) = self.place(index) {
            let Open { index, state } = self.open.remove(place);
            self.ended(index, state, out);
        }
    }

    /// Every block ends.
    pub(super) fn stop_all(&mut self, out: &mut Vec<Delta>) {
        for Open { index, state } in std::mem::take(&mut self.open) {
            self.ended(index, state, out);
        }
    }

    /// What is open stays without its end.
    pub(super) fn break_off(&mut self, out: &mut Vec<Delta>) {
        for Open { index, state } in std::mem::take(self).open {
            broke_off(index, state, out);
        }
    }

    /// Ends what cannot be open any more when a block with this index opens.
    fn make_room(&mut self, index: u64, out: &mut Vec<Delta>) {
        let mut place = 0;
        while let Some(open) = self.open.get(place) {
            match &open.state {
                State::Text { .. } | State::Thinking { .. } => {
                    let Open { index, state } = self.open.remove(place);
                    self.ended(index, state, out);
                }
                State::Call { .. } | State::Other(_)
                    if open.index == index || self.open.len() >= OPEN_MAX =>
                {
                    let Open { index, state } = self.open.remove(place);
                    broke_off(index, state, out);
                }
                State::Call { .. } | State::Other(_) => place += 1,
            }
        }
        // Thinking that something follows was whole. A service that signs none may want it back.
        if std::mem::take(&mut self.unsigned) {
            out.push(Delta::Metadata(ProviderMetadata::Reasoning { members: Some("{}".into()) }));
        }
    }

    /// Text of the thinking in this block came.
    pub(super) fn thought(&mut self, index: Option<u64>) {
        if let Some(State::Thinking { has_text, .. }) = self.open_mut(index) {
            *has_text = true;
        }
    }

    /// More of a call's arguments came, which are of the call that is returned.
    pub(super) fn input(&mut self, index: Option<u64>, more: &str) -> Option<CallDelta> {
        let mut piece = CallDelta { index, ..CallDelta::default() };
        if let Some(place) = self.place(index)
            && let Some(open) = self.open.get_mut(place)
        {
            let State::Call { in_pieces, service, .. } = &mut open.state else { return None };
            *in_pieces |= !more.trim_ascii().is_empty();
            piece.index = Some(open.index);
            if let Some(kept) = service {
                piece.kind = CallKind::ServerToolUse;
                kept.push_input(more);
            }
        }
        (!more.is_empty()).then_some(piece)
    }

    fn ended(&mut self, index: u64, state: State, out: &mut Vec<Delta>) {
        match state {
            State::Text { citations } => {
                let members = format!("{{\"citations\":[{citations}]}}");
                let members = Some(members.into()).filter(|_| !citations.is_empty());
                out.push(Delta::Metadata(ProviderMetadata::Text { members }));
            }
            State::Thinking { signature, has_text } if signature.is_empty() => {
                self.unsigned = has_text;
            }
            State::Thinking { signature, .. } => {
                out.push(Delta::Metadata(ProviderMetadata::Reasoning {
                    members: signed(&signature),
                }));
            }
            State::Call { input, in_pieces, service } => {
                let arguments = input.filter(|_| !in_pieces).map(String::from);
                out.push(Delta::Seal { index, arguments });
                out.extend(
                    service.and_then(Kept::whole).map(ProviderMetadata::Part).map(Delta::Metadata),
                );
            }
            State::Other(kept) => {
                out.extend(kept.whole().map(ProviderMetadata::Part).map(Delta::Metadata));
            }
        }
    }

    /// The newest open block with this index; the newest of all where an event says none.
    fn place(&self, index: Option<u64>) -> Option<usize> {
        self.open.iter().rposition(|open| index.is_none_or(|index| open.index == index))
    }

    fn open_mut(&mut self, index: Option<u64>) -> Option<&mut State> {
        let place = self.place(index)?;
        self.open.get_mut(place).map(|open| &mut open.state)
    }
}

fn begin_call(
    index: u64,
    block: Block<'_>,
    raw: &str,
    kind: CallKind,
    out: &mut Vec<Delta>,
) -> State {
    let is_ours = kind != CallKind::ServerToolUse;
    let input = block.input.map(RawValue::get).filter(|input| *input != "null").map(text_of);
    out.push(Delta::Call(CallDelta {
        index: Some(index),
        id: block.id.into_text(),
        name: block.name.into_text(),
        arguments: None,
        kind,
        begins: true,
    }));
    if is_ours
        && block.has_more
        && let Some(members) = more_members(raw)
    {
        out.push(Delta::Metadata(ProviderMetadata::Call { index, members }));
    }
    State::Call { input, in_pieces: false, service: (!is_ours).then(|| Kept::new(raw)) }
}

/// A block that will not end: what its opening says of arguments is all there is.
fn broke_off(index: u64, state: State, out: &mut Vec<Delta>) {
    match state {
        State::Text { .. } => out.push(Delta::Metadata(ProviderMetadata::Text { members: None })),
        State::Thinking { signature, .. } => {
            // The signature is the last that comes.
            out.push(Delta::Metadata(ProviderMetadata::Reasoning { members: signed(&signature) }));
        }
        State::Call { input: Some(input), in_pieces: false, service } => {
            let kind = if service.is_some() { CallKind::ServerToolUse } else { CallKind::Function };
            let arguments = Some(input.into());
            let piece = CallDelta { index: Some(index), arguments, kind, ..CallDelta::default() };
            out.push(Delta::Call(piece));
        }
        State::Call { .. } | State::Other(_) => {}
    }
}

fn signed(signature: &str) -> Option<Box<str>> {
    let members = serde_json::json!({ "signature": signature }).to_string();
    Some(members.into()).filter(|_| !signature.is_empty())
}

/// Says a text that is not empty, and whether there was one.
fn say(text: &Scalar<'_>, kind: fn(String) -> Delta, out: &mut Vec<Delta>) -> bool {
    let text = text.as_text().filter(|text| !text.is_empty());
    out.extend(text.map(|text| kind(text.to_owned())));
    text.is_some()
}

/// Arguments as text: a string's own, or the JSON.
fn text_of(json: &str) -> Box<str> {
    match serde_json::from_str::<String>(json) {
        Ok(text) => text.into(),
        Err(_) => json.into(),
    }
}

/// What stands between the brackets of a JSON list.
fn list_items(list: Option<&RawValue>) -> String {
    let items = list.and_then(|list| list.get().strip_prefix('[')?.strip_suffix(']'));
    items.unwrap_or_default().trim().to_owned()
}

/// The members of a call that a canonical call does not hold; none if they say nothing.
fn more_members(raw: &str) -> Option<Box<str>> {
    let Value::Object(mut members) = value_of(raw)? else { return None };
    for known in ["type", "id", "name", "input"] {
        members.remove(known);
    }
    // That the model called by itself goes without saying, and some relays of this wire's models
    // refuse to hear it ("tool_use.caller: Extra inputs are not permitted").
    let goes_without_saying = |key: &str, value: &Value| {
        value.is_null() || key == "caller" && value.get("type").is_some_and(|by| by == "direct")
    };
    members.retain(|key, value| !goes_without_saying(key, value));
    if members.is_empty() {
        return None;
    }
    Some(Value::Object(members).to_string().into())
}
