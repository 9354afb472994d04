//! The fast path of decoding: a payload that is equal to a known template except for its text is
//! not parsed.
//!
//! The full parse (`PayloadDecoder::parse_payload`) reads any payload. If the payload holds a single change
//! (a piece of text or of a call's arguments, or the finish reason: [`TemplateKind`]), it returns the
//! positions of its fields ([`TemplateFields`]). A [`template`] is made of these.
//! A later payload with the same bytes around the fields yields a [`TemplateMatch`], which
//! `PayloadDecoder::apply_match` turns into the same deltas as the full parse would. The tests compare
//! both readers on recorded and on generated streams. The environment variable
//! `CALLSHEET_FAST_PATH=off` turns the fast path off ([`super::DecoderOptions::fast_path`]).

mod fields;
mod scan;
mod template;

use std::borrow::Cow;

use super::Wire;

pub(super) use fields::{FieldRole, TemplateFields};
pub(crate) use scan::plain_bytes;
pub(super) use template::TemplateSet;

/// The templates of a service's payloads. Passing them from one response to the next makes
/// decoding faster; the deltas are the same without them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayloadTemplates {
    wire: Option<Wire>,
    set: TemplateSet,
}

impl PayloadTemplates {
    /// Returns the templates for a response of this wire. Templates of another wire are dropped.
    pub(super) fn for_wire(self, wire: Wire) -> Self {
        let set = if self.wire == Some(wire) { self.set } else { TemplateSet::default() };
        Self { wire: Some(wire), set }
    }

    pub(super) fn set_mut(&mut self) -> &mut TemplateSet {
        &mut self.set
    }
}

/// The only change that a payload holds, with its fields as they are in the payload. The dialect
/// interprets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateMatch<'p> {
    pub(super) kind: TemplateKind,
    pub(super) text: Option<Cow<'p, str>>,
    /// The index of the call, the block or the item.
    pub(super) index: Option<u64>,
    /// The index within an item.
    pub(super) part_index: Option<u64>,
    pub(super) id: Option<&'p str>,
    pub(super) name: Option<&'p str>,
}

/// The member of a payload that holds its text, as far as a wire distinguishes members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateKind {
    Text,
    Refusal,
    Reasoning,
    ReasoningContent,
    ReasoningText,
    Summary,
    /// A part of a call's arguments.
    Arguments,
    /// A part of the input of a call whose input is free text.
    Input,
    /// The finish reason.
    Finish,
}

impl TemplateMatch<'_> {
    /// Returns the text if there is one and it is not empty.
    pub(super) fn nonempty_text(&self) -> Option<&str> {
        self.text.as_deref().filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests;
