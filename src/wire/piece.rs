//! One piece of a response: what nearly all payloads hold, whatever their wire, and nothing else.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::loose::{Content, JsonText, Number, Scalar};
use super::{CallDelta, Delta};

/// How much room a text has at once behind what came together.
const ROOM_BYTES: usize = 128;

/// What a payload says, where that is one piece.
///
/// The members are those of the wire, as they stand in the payload: what they mean, and what has
/// come before, is the dialect's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece<'p> {
    pub(super) said: Said,
    pub(super) text: Option<Cow<'p, str>>,
    /// Of the call, the block or the item.
    pub(super) index: Option<u64>,
    /// The index within an item.
    pub(super) part: Option<u64>,
    pub(super) id: Option<&'p str>,
    pub(super) name: Option<&'p str>,
}

/// Under which name a piece stands, so far as a wire tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Text,
    Refusal,
    Reasoning,
    ReasoningContent,
    ReasoningText,
    Summary,
    /// Of a call's arguments.
    Arguments,
    /// Of the input of a call whose input is free text.
    Input,
    /// Why the response ended.
    Finish,
}

impl Piece<'_> {
    /// The text, if there is one that is not empty.
    pub(super) fn said_text(&self) -> Option<&str> {
        self.text.as_deref().filter(|text| !text.is_empty())
    }
}

/// Adds a text to what was said right before, where both are text of one kind: they mean the same
/// as the two.
pub(super) fn say(kind: impl Fn(String) -> Delta, text: &str, out: &mut Vec<Delta>) {
    match (kind(String::new()), out.last_mut()) {
        (Delta::Text(_), Some(Delta::Text(before)))
        | (Delta::Reasoning(_), Some(Delta::Reasoning(before)))
        | (Delta::Refusal(_), Some(Delta::Refusal(before))) => add(before, text),
        _ => out.push(kind(text.to_owned())),
    }
}

/// Where two pieces came together, more mostly follow.
fn add(before: &mut String, text: &str) {
    if before.capacity() - before.len() < text.len() {
        before.reserve(text.len().max(ROOM_BYTES));
    }
    before.push_str(text);
}

/// Adds to the arguments of a call, or to its piece that was said right before.
pub(super) fn say_call(piece: CallDelta, text: Option<&str>, out: &mut Vec<Delta>) {
    if let (Some(Delta::Call(before)), Some(text)) = (out.last_mut(), text) {
        let CallDelta { index, id, name, arguments, kind, begins } = before;
        let is_same = (*index, *kind, *begins) == (piece.index, piece.kind, piece.begins)
            && [id, name].iter().all(|said| said.is_none())
            && [&piece.id, &piece.name].iter().all(|said| said.is_none());
        if let Some(before) = arguments.as_mut().filter(|_| is_same) {
            return add(before, text);
        }
    }
    out.push(Delta::Call(CallDelta { arguments: text.map(str::to_owned), ..piece }));
}

/// Where in a payload the members of its piece stand.
#[derive(Clone, Debug)]
pub(super) struct Outline<'p> {
    pub(super) said: Said,
    /// A text that has no escapes is the very part of the payload.
    spots: [Option<(Slot, Cow<'p, str>)>; SPOTS_MAX],
}

/// Longer payloads hold more than a piece.
pub(super) const PAYLOAD_BYTES_MAX: usize = 2048;

/// Members of a payload that may be another the next time.
pub(super) const SPOTS_MAX: usize = 8;

/// What stands in a place where payloads of one shape differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Text,
    Index,
    Part,
    Id,
    Name,
    /// What nobody reads, and what is the same in all of a response.
    Mark,
    /// What nobody reads, and what changes with every payload.
    Noise,
}

impl<'p> Outline<'p> {
    pub(super) fn of(said: Said) -> Self {
        Self { said, spots: Default::default() }
    }

    pub(super) fn spots(&self) -> impl Iterator<Item = &(Slot, Cow<'p, str>)> {
        self.spots.iter().flatten()
    }

    /// A member that is a text, or is not there. None for what has to be looked at.
    pub(super) fn scalar(self, slot: Slot, value: &Scalar<'p>) -> Option<Self> {
        match value {
            Scalar::Nothing => Some(self),
            Scalar::Text(text) => self.text(slot, text),
            Scalar::Number(_) => None,
        }
    }

    /// As [`Self::scalar`].
    pub(super) fn content(self, slot: Slot, value: &Content<'p>) -> Option<Self> {
        match value {
            Content::Nothing => Some(self),
            Content::Text(text) => self.text(slot, text),
            Content::Part(_) | Content::List(_) => None,
        }
    }

    /// As [`Self::scalar`].
    pub(super) fn json_text(self, slot: Slot, value: &JsonText<'p>) -> Option<Self> {
        match &value.0 {
            None => Some(self),
            // It may be what stands there instead of a text.
            Some(Cow::Owned(text)) if is_short(text) && is_json(text) => None,
            Some(text) => self.text(slot, text),
        }
    }

    /// As [`Self::scalar`], for a number.
    pub(super) fn number(self, slot: Slot, value: Number<'p>) -> Option<Self> {
        match value.raw() {
            None => Some(self),
            Some(raw) if is_number(raw) => self.spot(slot, raw.into()),
            Some(_) => None,
        }
    }

    /// A member that nobody reads, whatever it is.
    pub(super) fn unread(self, slot: Slot, value: Option<&'p RawValue>) -> Option<Self> {
        let raw = value.map(RawValue::get).unwrap_or_default();
        let inside = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
        match inside {
            Some(text) if !text.contains('\\') => self.spot(slot, text.into()),
            None if !raw.is_empty() && is_number(raw) => self.spot(slot, raw.into()),
            // It stays as it is.
            Some(_) | None => Some(self),
        }
    }

    /// As [`Self::unread`], where it mostly is a text.
    pub(super) fn unread_text(self, slot: Slot, value: &Scalar<'p>) -> Option<Self> {
        match value {
            Scalar::Text(Cow::Borrowed(text)) => self.spot(slot, Cow::Borrowed(text)),
            Scalar::Text(Cow::Owned(_)) | Scalar::Number(_) | Scalar::Nothing => Some(self),
        }
    }

    fn text(self, slot: Slot, text: &Cow<'p, str>) -> Option<Self> {
        is_short(text).then(|| self.spot(slot, text.clone())).flatten()
    }

    fn spot(mut self, slot: Slot, text: Cow<'p, str>) -> Option<Self> {
        *self.spots.iter_mut().find(|spot| spot.is_none())? = Some((slot, text));
        Some(self)
    }
}

fn is_short(text: &str) -> bool {
    text.len() <= PAYLOAD_BYTES_MAX
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn is_number(raw: &str) -> bool {
    raw.bytes().all(|byte| byte.is_ascii_digit())
}
