//! Decoding of whole items: at their beginning, at their end, and again with the complete response.

use std::mem::take;

use serde_json::value::RawValue;

use super::OpenaiResponsesDialect;
use super::payload::{EventPayload, ItemPayload};
use super::stream::{ItemKind, TrackedItem};
use crate::lenient::{JsonText, read_object};
use crate::{CallDelta, Delta, ProviderMetadata};

/// Maximum number of items of a complete response that are read: twice the number of calls that a
/// response keeps.
const LISTED_ITEMS_MAX: usize = 2048;

impl OpenaiResponsesDialect {
    /// Decodes an item that begins or, if `is_done`, has ended.
    pub(super) fn decode_item(
        &mut self,
        event: &EventPayload<'_>,
        is_done: bool,
        out: &mut Vec<Delta>,
    ) {
        let Some(raw) = event.item.map(RawValue::get) else { return };
        let mut body = ItemPayload::default();
        if !read_object(raw, &mut body).is_ok_and(|()| raw.starts_with('{')) {
            return;
        }
        let id = body.id.as_text().or(event.item_id.as_text());
        let (kind, item_ref) = body.item_ref(event.output_index.value(), id);
        let found = self.items.find_for_item(kind, item_ref);
        let was_done = found.and_then(|found| self.items.get_mut(found)).map(|item| item.is_done);
        // An item that begins after the end of another with the same index is a new one.
        let found = found.filter(|_| is_done || was_done == Some(false));
        let position = found.unwrap_or_else(|| self.items.add(kind, item_ref));
        self.push_call_start(position, &body, out);
        if is_done {
            self.finish_item(position, &mut body, raw, true, out);
        }
    }

    /// Emits the id and the name of a call, unless its name was emitted before. Ignores other items.
    fn push_call_start(&mut self, position: usize, body: &ItemPayload<'_>, out: &mut Vec<Delta>) {
        let Some(item) = self.items.get_mut(position).filter(|item| item.kind.is_call()) else {
            return;
        };
        let (call_id, name) = (body.call_id.as_text().or(body.id.as_text()), body.name.as_text());
        if item.call_id.is_none() {
            item.call_id = body.call_id.as_text().map(Into::into);
        }
        let some = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let delta = CallDelta {
            index: Some(item.index),
            id: some(call_id),
            name: some(name),
            kind: item.kind.call_kind(),
            is_marked_start: !item.is_named && !item.has_arguments,
            ..CallDelta::default()
        };
        if !item.is_named && !delta.is_blank() {
            item.is_named |= delta.name.is_some();
            out.push(Delta::Call(delta));
        }
    }

    /// Decodes the parts of a complete item that did not come in pieces, and emits the metadata that goes
    /// back. `in_order` is false if the complete response lists, after the item, one that was tracked before.
    fn finish_item(
        &mut self,
        position: usize,
        body: &mut ItemPayload<'_>,
        raw: &str,
        in_order: bool,
        out: &mut Vec<Delta>,
    ) {
        let (lost_reasoning, has_reasoning) = (self.lost_reasoning, self.has_reasoning);
        let Some(item) = self.items.get_mut(position).filter(|item| !item.is_done) else { return };
        item.is_done = true;
        match item.kind {
            ItemKind::Message => {
                if item.last_text.is_none() {
                    let before = out.len();
                    take(&mut body.content).push_deltas(Delta::Text, out);
                    item.has_text = has_text(out.get(before..).unwrap_or_default());
                }
                // A message goes back as an item if reasoning precedes it, or if it has a phase
                // (the purpose of its text).
                let goes_back_as_item = has_reasoning || body.phase.as_text().is_some();
                if goes_back_as_item && item.has_text && !lost_reasoning && in_order {
                    out.push(Delta::Metadata(ProviderMetadata::Text {
                        members: body.members(item.kind, true),
                    }));
                }
            }
            ItemKind::Reasoning => {
                if item.last_text.is_none() {
                    let before = out.len();
                    take(&mut body.content).push_deltas(Delta::Reasoning, out);
                    if out.len() == before {
                        take(&mut body.summary).push_deltas(Delta::Reasoning, out);
                    }
                }
                if in_order {
                    self.has_reasoning = true;
                    out.push(Delta::Metadata(ProviderMetadata::RawPart(raw.into())));
                } else {
                    self.lost_reasoning = true;
                }
            }
            ItemKind::Hosted if in_order => {
                out.push(Delta::Metadata(ProviderMetadata::RawPart(raw.into())))
            }
            ItemKind::Hosted => {}
            ItemKind::Function | ItemKind::Custom => finish_call(item, body, lost_reasoning, out),
        }
    }

    /// Decodes the items of a complete response, as far as the stream has not sent them.
    pub(super) fn decode_output(&mut self, raw: &str, out: &mut Vec<Delta>) {
        let Ok(raws) = serde_json::from_str::<Vec<&RawValue>>(raw) else { return };
        let mut list = Vec::new();
        for (raw, index) in raws.iter().take(LISTED_ITEMS_MAX).map(|raw| raw.get()).zip(0..) {
            let mut body = ItemPayload::default();
            if raw.starts_with('{') && read_object(raw, &mut body).is_ok() {
                list.push((index, raw, body));
            }
        }
        if self.items.overflowed {
            return;
        }
        let refs: Vec<_> = list
            .iter()
            .map(|(index, _, body)| body.item_ref(Some(*index), body.id.as_text()))
            .collect();
        let found = self.items.positions_of(&refs);
        // An item is out of order if one after it in the list was tracked before.
        let mut in_order = vec![true; found.len()];
        let mut has_later = false;
        for (position, in_order) in found.iter().zip(&mut in_order).rev() {
            *in_order = !has_later;
            has_later |= position.is_some();
        }
        let positions: Vec<_> = refs
            .into_iter()
            .zip(&found)
            .zip(in_order)
            .map(|(((kind, item_ref), found), in_order)| {
                (found.unwrap_or_else(|| self.items.add(kind, item_ref)), in_order)
            })
            .collect();
        for ((position, in_order), (_, raw, mut body)) in positions.into_iter().zip(list) {
            let is_sealed = self.items.get_mut(position).is_some_and(|item| item.is_sealed);
            self.push_call_start(position, &body, out);
            if is_sealed {
                // In the complete response, some services repeat the arguments incorrectly.
                body.arguments = JsonText::default();
                body.input = JsonText::default();
            }
            self.finish_item(position, &mut body, raw, in_order, out);
        }
    }
}

/// Seals a call whose item has ended, unless its status is `incomplete`, and emits its metadata. With
/// `lost_reasoning` the metadata omits the id of the item.
fn finish_call(
    item: &mut TrackedItem,
    body: &ItemPayload<'_>,
    lost_reasoning: bool,
    out: &mut Vec<Delta>,
) {
    let arguments = if item.kind == ItemKind::Custom { &body.input } else { &body.arguments };
    let arguments = arguments.0.as_deref().filter(|text| !text.is_empty());
    if body.status.as_text() != Some("incomplete") {
        item.is_sealed = true;
        let arguments = arguments.map(str::to_owned);
        out.push(Delta::Seal { index: item.index, arguments });
    } else if let Some(text) = arguments.filter(|_| !item.has_arguments && !item.is_sealed) {
        // An incomplete call is not sealed. The arguments of its item are emitted if none have come before.
        out.push(Delta::Call(CallDelta {
            index: Some(item.index),
            arguments: Some(text.to_owned()),
            kind: item.kind.call_kind(),
            ..CallDelta::default()
        }));
    }
    if let Some(members) = body.members(item.kind, !lost_reasoning) {
        out.push(Delta::Metadata(ProviderMetadata::Call { index: item.index, members }));
    }
}

fn has_text(deltas: &[Delta]) -> bool {
    deltas.iter().any(|delta| matches!(delta, Delta::Text(_)))
}
