//! The fast path of decoding: a payload that equals a known template outside a few fields is not parsed.
//!
//! The full parse (`decoder::parse_in_full`) reads any payload. If the payload is an object that holds a
//! single change ([`ChangeKind`]: a piece of text or of a call's arguments, or the finish reason), its
//! dialect may return the values of the fields ([`TemplateFields`]). Their positions in the payload follow from
//! the values, and payload and positions make a [`template`]. A later payload with the same bytes outside the
//! fields yields a [`TemplateMatch`], which `PayloadDecoder::apply_match` turns into the same deltas as the
//! full parse would. The tests compare both readers on recorded and on generated streams. The environment
//! variable `CALLSHEET_FAST_PATH=off` turns the fast path off ([`super::DecoderOptions::fast_path`]).
//!
//! | type | content |
//! | --- | --- |
//! | `PayloadTemplate` | one template: a payload, with the positions of its fields |
//! | `TemplateSet` | the templates of one wire, the one that matched or was added last first |
//! | `PayloadTemplates` | a `TemplateSet` with its wire, which callers pass from one response to the next |

mod fields;
mod scan;
mod template;

use std::borrow::Cow;

use super::Wire;

pub(super) use fields::{FieldRole, TemplateFields};
pub use scan::plain_bytes;
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

/// The only change that a payload holds, with the values of its fields. The dialect interprets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateMatch<'p> {
    pub(super) kind: ChangeKind,
    /// The piece of text, arguments or input, or the finish reason, without JSON escapes.
    pub(super) text: Option<Cow<'p, str>>,
    /// The index of the call (Chat Completions), the block (Anthropic) or the item (Responses).
    pub(super) index: Option<u64>,
    /// The index of a part within its item (Responses).
    pub(super) part_index: Option<u64>,
    /// The id of the call (Chat Completions) or the item (Responses).
    pub(super) id: Option<&'p str>,
    /// The name of the call's tool (Chat Completions).
    pub(super) name: Option<&'p str>,
}

/// The kind of the only change that a payload holds. Where a wire has several members for one kind of text,
/// each of them is a kind of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// A piece of the answer: `content` (Chat Completions, Ollama), `text_delta` (Anthropic),
    /// `response.output_text.delta` (Responses).
    Text,
    /// A piece of a refusal: `refusal` (Chat Completions), `response.refusal.delta` (Responses).
    Refusal,
    /// A piece of reasoning: `reasoning` (Chat Completions), `thinking` (Ollama), `thinking_delta`
    /// (Anthropic), `response.reasoning_text.delta` and its variants (Responses).
    Reasoning,
    /// A piece of reasoning in `reasoning_content` (Chat Completions).
    ReasoningContent,
    /// A piece of reasoning in `reasoning_text` (Chat Completions).
    ReasoningText,
    /// A piece of a summary of reasoning: `response.reasoning_summary_text.delta` (Responses).
    Summary,
    /// A piece of a call's arguments: `function.arguments` (Chat Completions), `input_json_delta`
    /// (Anthropic), `response.function_call_arguments.delta` (Responses).
    Arguments,
    /// A piece of the input of a call whose input is free text: `response.custom_tool_call_input.delta`
    /// (Responses).
    Input,
    /// The finish reason: `finish_reason` (Chat Completions).
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
