//! The content blocks of a streamed message: their start, their pieces and their end.
//!
//! Text, thinking and calls become deltas at once. Calls that the service runs itself, their
//! results, and blocks of unknown types are kept whole, because the service wants them back
//! unchanged.

use serde_json::Value;
use serde_json::value::RawValue;

use super::decode::read_or_repair;
use super::metadata::{COLLECTED_BYTES_MAX, RawBlock};
use super::payload::{BlockPayload, DeltaPayload};
use crate::lenient::{Scalar, argument_text};
use crate::repair::parse_value;
use crate::{CallDelta, CallKind, Delta, ProviderMetadata};

/// Maximum number of blocks that are open at the same time. Services mostly have one open at a time.
const OPEN_BLOCKS_MAX: usize = 64;

/// The blocks of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockTracker {
    open: Vec<OpenBlock>,
    /// The index to give the next block if its event has none.
    next_index: u64,
    /// True if thinking with text and without a signature has ended since the last start of a block.
    ended_unsigned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OpenBlock {
    index: u64,
    state: BlockState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BlockState {
    Text {
        /// The items of a JSON list, without its brackets.
        citations: String,
    },
    Thinking {
        signature: String,
        has_text: bool,
    },
    Call {
        /// The arguments of the block's start. Some services send `{}` before the pieces, others
        /// send all arguments and no pieces.
        input: Option<String>,
        has_pieces: bool,
        /// The block, if the service runs the call itself.
        service_block: Option<RawBlock>,
    },
    Other(RawBlock),
}

impl BlockTracker {
    /// Starts a block. `raw` is its JSON.
    pub(super) fn begin(&mut self, index: Option<u64>, raw: &str, out: &mut Vec<Delta>) {
        let index = index.unwrap_or(self.next_index);
        self.next_index = index.saturating_add(1);
        self.close_preceding_blocks(index, out);
        let mut repaired = None;
        let (raw, block) = read_or_repair::<BlockPayload<'_>>(raw, &mut repaired);
        let state = match block.kind() {
            "" => return,
            "text" => {
                push_text(&block.text, Delta::Text, out);
                BlockState::Text { citations: list_items(block.citations) }
            }
            "thinking" => BlockState::Thinking {
                has_text: push_text(&block.thinking, Delta::Reasoning, out),
                signature: block.signature.into_text().unwrap_or_default(),
            },
            "tool_use" => begin_call(index, block, raw, CallKind::Function, out),
            kind if kind.ends_with("tool_use") => {
                begin_call(index, block, raw, CallKind::ServerToolUse, out)
            }
            _ => BlockState::Other(RawBlock::new(raw)),
        };
        self.open.push(OpenBlock { index, state });
    }

    /// Adds a piece of a block. `text` is the whole event.
    pub(super) fn push(
        &mut self,
        index: Option<u64>,
        delta: &DeltaPayload<'_>,
        text: &str,
        out: &mut Vec<Delta>,
    ) {
        match delta.kind() {
            "text_delta" => drop(push_text(&delta.text, Delta::Text, out)),
            "thinking_delta" => {
                if push_text(&delta.thinking, Delta::Reasoning, out) {
                    self.mark_thinking(index);
                }
            }
            "input_json_delta" => {
                if let Some(more) = &delta.partial_json.0 {
                    let call = self.push_input(index, more);
                    out.extend(call.map(|call| {
                        Delta::Call(CallDelta {
                            arguments: Some(more.clone().into_owned()),
                            ..call
                        })
                    }));
                }
            }
            "signature_delta" => {
                if let (Some(BlockState::Thinking { signature, .. }), Some(new)) =
                    (self.open_mut(index), delta.signature.as_text())
                {
                    new.clone_into(signature);
                }
            }
            "citations_delta" => {
                if let (Some(BlockState::Text { citations }), Some(item)) =
                    (self.open_mut(index), delta.citation)
                    && citations.len() + item.get().len() < COLLECTED_BYTES_MAX
                {
                    if !citations.is_empty() {
                        citations.push(',');
                    }
                    citations.push_str(item.get());
                }
            }
            _ => {
                if let Some(BlockState::Other(block)) = self.open_mut(index) {
                    block.push_event(text);
                }
            }
        }
    }

    /// Ends a block.
    pub(super) fn stop(&mut self, index: Option<u64>, out: &mut Vec<Delta>) {
        if let Some(position) = self.position(index) {
            let OpenBlock { index, state } = self.open.remove(position);
            self.end_block(index, state, out);
        }
    }

    /// Ends all blocks.
    pub(super) fn stop_all(&mut self, out: &mut Vec<Delta>) {
        for OpenBlock { index, state } in std::mem::take(&mut self.open) {
            self.end_block(index, state, out);
        }
    }

    /// Breaks off the open blocks, which will not end: appends the deltas for what was received, and
    /// resets the tracker.
    pub(super) fn break_off(&mut self, out: &mut Vec<Delta>) {
        for OpenBlock { index, state } in std::mem::take(self).open {
            break_off_block(index, state, out);
        }
    }

    /// Closes the blocks that cannot be open any more when a block with this index starts: texts and thinking end.
    /// Other blocks are broken off if they have the same index, or, the oldest first, if too many are open.
    fn close_preceding_blocks(&mut self, index: u64, out: &mut Vec<Delta>) {
        let mut position = 0;
        while let Some(open) = self.open.get(position) {
            match &open.state {
                BlockState::Text { .. } | BlockState::Thinking { .. } => {
                    let OpenBlock { index, state } = self.open.remove(position);
                    self.end_block(index, state, out);
                }
                BlockState::Call { .. } | BlockState::Other(_)
                    if open.index == index || self.open.len() >= OPEN_BLOCKS_MAX =>
                {
                    let OpenBlock { index, state } = self.open.remove(position);
                    break_off_block(index, state, out);
                }
                BlockState::Call { .. } | BlockState::Other(_) => position += 1,
            }
        }
        // Thinking that another block follows was complete. Services that sign no thinking may want
        // it back.
        if std::mem::take(&mut self.ended_unsigned) {
            out.push(Delta::Metadata(ProviderMetadata::Reasoning { members: Some("{}".into()) }));
        }
    }

    /// Records that the thinking of this block has text.
    pub(super) fn mark_thinking(&mut self, index: Option<u64>) {
        if let Some(BlockState::Thinking { has_text, .. }) = self.open_mut(index) {
            *has_text = true;
        }
    }

    /// Records a piece of a call's arguments. Returns a delta for it, without the text, which the caller adds, or
    /// `None` if the piece is empty or belongs to a block of an unknown type. If no such call is open, the delta keeps
    /// the event's index.
    pub(super) fn push_input(&mut self, index: Option<u64>, more: &str) -> Option<CallDelta> {
        let mut piece = CallDelta { index, ..CallDelta::default() };
        if let Some(position) = self.position(index)
            && let Some(open) = self.open.get_mut(position)
        {
            match &mut open.state {
                BlockState::Call { has_pieces, service_block, .. } => {
                    *has_pieces |= !more.trim_ascii().is_empty();
                    if let Some(block) = service_block {
                        piece.kind = CallKind::ServerToolUse;
                        block.push_input(more);
                    }
                }
                // The index is wrong: no call has it.
                BlockState::Text { .. } | BlockState::Thinking { .. } => {}
                BlockState::Other(_) => return None,
            }
            piece.index = Some(open.index);
        }
        (!more.is_empty()).then_some(piece)
    }

    fn end_block(&mut self, index: u64, state: BlockState, out: &mut Vec<Delta>) {
        match state {
            BlockState::Text { citations } => {
                let members = format!("{{\"citations\":[{citations}]}}");
                let members = Some(members.into()).filter(|_| !citations.is_empty());
                out.push(Delta::Metadata(ProviderMetadata::Text { members }));
            }
            BlockState::Thinking { signature, has_text } if signature.is_empty() => {
                self.ended_unsigned = has_text;
            }
            BlockState::Thinking { signature, .. } => {
                out.push(Delta::Metadata(ProviderMetadata::Reasoning {
                    members: signed(&signature),
                }));
            }
            BlockState::Call { input, has_pieces, service_block } => {
                // The empty object of a block's start stands for arguments that may come later, or under a wrong index.
                let arguments = input.filter(|input| !has_pieces && !is_empty_object(input));
                out.push(Delta::Seal { index, arguments });
                out.extend(
                    service_block
                        .and_then(RawBlock::into_json)
                        .map(ProviderMetadata::RawPart)
                        .map(Delta::Metadata),
                );
            }
            BlockState::Other(block) => {
                out.extend(block.into_json().map(ProviderMetadata::RawPart).map(Delta::Metadata));
            }
        }
    }

    /// Returns the position of the newest open block with this index, or of the newest block if an
    /// event has no index.
    fn position(&self, index: Option<u64>) -> Option<usize> {
        self.open.iter().rposition(|open| index.is_none_or(|index| open.index == index))
    }

    fn open_mut(&mut self, index: Option<u64>) -> Option<&mut BlockState> {
        let position = self.position(index)?;
        self.open.get_mut(position).map(|open| &mut open.state)
    }
}

fn begin_call(
    index: u64,
    block: BlockPayload<'_>,
    raw: &str,
    kind: CallKind,
    out: &mut Vec<Delta>,
) -> BlockState {
    let is_ours = kind != CallKind::ServerToolUse;
    let input = block.input.and_then(|input| argument_text(input.get()));
    out.push(Delta::Call(CallDelta {
        index: Some(index),
        id: block.id.into_text(),
        name: block.name.into_text(),
        arguments: None,
        kind,
        is_marked_start: true,
        is_repaired: false,
        is_surplus: false,
    }));
    if is_ours
        && block.has_other_members
        && let Some(members) = other_members(raw)
    {
        out.push(Delta::Metadata(ProviderMetadata::Call { index, members }));
    }
    BlockState::Call {
        input,
        has_pieces: false,
        service_block: (!is_ours).then(|| RawBlock::new(raw)),
    }
}

/// Appends the deltas for the received part of a block that will not end. A call without pieces has
/// only the arguments of its start. The JSON of a block that would go back whole is dropped.
fn break_off_block(index: u64, state: BlockState, out: &mut Vec<Delta>) {
    match state {
        BlockState::Text { .. } => {
            out.push(Delta::Metadata(ProviderMetadata::Text { members: None }))
        }
        BlockState::Thinking { signature, .. } => {
            // If there is a signature, it was the block's last piece, so the thinking is complete.
            // Otherwise only the end is marked.
            out.push(Delta::Metadata(ProviderMetadata::Reasoning { members: signed(&signature) }));
        }
        BlockState::Call { input: Some(input), has_pieces: false, service_block } => {
            let kind =
                if service_block.is_some() { CallKind::ServerToolUse } else { CallKind::Function };
            let arguments = Some(input);
            let piece = CallDelta { index: Some(index), arguments, kind, ..CallDelta::default() };
            out.push(Delta::Call(piece));
        }
        BlockState::Call { .. } | BlockState::Other(_) => {}
    }
}

fn is_empty_object(input: &str) -> bool {
    let inside = input.trim_ascii().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|inside| inside.trim_ascii().is_empty())
}

/// Returns the members of thinking with this signature, or `None` if it is empty.
fn signed(signature: &str) -> Option<Box<str>> {
    let members = serde_json::json!({ "signature": signature }).to_string();
    Some(members.into()).filter(|_| !signature.is_empty())
}

/// Appends a text that is not empty. Returns whether there was one.
fn push_text(text: &Scalar<'_>, kind: fn(String) -> Delta, out: &mut Vec<Delta>) -> bool {
    let text = text.as_text().filter(|text| !text.is_empty());
    out.extend(text.map(|text| kind(text.to_owned())));
    text.is_some()
}

/// Returns the text between the brackets of a JSON list.
fn list_items(list: Option<&RawValue>) -> String {
    let items = list.and_then(|list| list.get().strip_prefix('[')?.strip_suffix(']'));
    items.unwrap_or_default().trim().to_owned()
}

/// Returns the members of a call that go back with it, if there are any.
fn other_members(raw: &str) -> Option<Box<str>> {
    let Value::Object(mut members) = parse_value(raw)? else { return None };
    for known in ["type", "id", "name", "input"] {
        members.remove(known);
    }
    // A direct call by the model is the default. Some relays refuse the member ("tool_use.caller:
    // Extra inputs are not permitted").
    let is_default = |key: &str, value: &Value| {
        value.is_null() || key == "caller" && value.get("type").is_some_and(|by| by == "direct")
    };
    members.retain(|key, value| !is_default(key, value));
    if members.is_empty() {
        return None;
    }
    Some(Value::Object(members).to_string().into())
}
