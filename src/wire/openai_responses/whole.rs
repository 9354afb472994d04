//! Items as a whole: when they begin, when they are done, and once more with the response.

use std::mem::take;

use serde_json::value::RawValue;

use super::items::{Item, Kind};
use super::payload::{Event, ItemBody};
use super::{OpenaiResponses, call_kind};
use crate::wire::fields::fill;
use crate::wire::loose::{Content, JsonText, Part};
use crate::wire::{CallDelta, Delta, ProviderMetadata};

/// Items of a whole response that are read; more calls than these are not kept anyway.
const LISTED_MAX: usize = 2048;

impl OpenaiResponses {
    /// An item has begun, or is done.
    pub(super) fn item(&mut self, event: &Event<'_>, done: bool, out: &mut Vec<Delta>) {
        let Some(raw) = event.item.map(RawValue::get) else { return };
        let mut body = ItemBody::default();
        if !fill(raw, &mut body).is_ok_and(|()| raw.starts_with('{')) {
            return;
        }
        let id = body.id.as_text().or(event.item_id.as_text());
        let (kind, named) = body.named(event.output_index.value(), id);
        let found = self.items.find_whole(kind, named);
        let known = found.and_then(|place| self.items.at(place)).map(|item| item.is_done);
        // What begins after the end of another with its index is not that one.
        let found = found.filter(|_| done || known == Some(false));
        let place = found.unwrap_or_else(|| self.items.add(kind, named));
        self.begin(place, &body, out);
        if done {
            self.finish(place, &mut body, raw, true, out);
        }
    }

    /// Says what is known of a call before its arguments.
    fn begin(&mut self, place: usize, body: &ItemBody<'_>, out: &mut Vec<Delta>) {
        let Some(item) = self.items.at(place).filter(|item| item.kind.is_call()) else { return };
        let (call_id, name) = (body.call_id.as_text().or(body.id.as_text()), body.name.as_text());
        if item.call_id.is_none() {
            item.call_id = body.call_id.as_text().map(Into::into);
        }
        let some = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let piece = CallDelta {
            index: Some(item.index),
            id: some(call_id),
            name: some(name),
            kind: call_kind(item.kind),
            begins: !item.is_named && !item.has_arguments,
            ..CallDelta::default()
        };
        if !item.is_named && !piece.says_nothing() {
            item.is_named |= piece.name.is_some();
            out.push(Delta::Call(piece));
        }
    }

    /// Takes what a whole item says and no piece of it said before, and keeps what goes back.
    /// `in_place`: no later item has been heard of.
    fn finish(
        &mut self,
        place: usize,
        body: &mut ItemBody<'_>,
        raw: &str,
        in_place: bool,
        out: &mut Vec<Delta>,
    ) {
        let (lost, reasoned) = (self.lost_reasoning, self.has_reasoning);
        let Some(item) = self.items.at(place).filter(|item| !item.is_done) else { return };
        item.is_done = true;
        match item.kind {
            Kind::Message => {
                if item.spoke.is_none() {
                    let before = out.len();
                    content(take(&mut body.content), Delta::Text, out);
                    item.has_text = has_text(out.get(before..).unwrap_or_default());
                }
                // On its own a message needs no item; with reasoning it does, and a phase says
                // what the text is for.
                let wanted = reasoned || body.phase.as_text().is_some();
                if wanted && item.has_text && !lost && in_place {
                    out.push(Delta::Metadata(ProviderMetadata::Text {
                        members: body.members(item.kind),
                    }));
                }
            }
            Kind::Reasoning => {
                if item.spoke.is_none() {
                    let before = out.len();
                    content(take(&mut body.content), Delta::Reasoning, out);
                    if out.len() == before {
                        content(take(&mut body.summary), Delta::Reasoning, out);
                    }
                }
                if in_place {
                    self.has_reasoning = true;
                    out.push(Delta::Metadata(ProviderMetadata::Part(raw.into())));
                } else {
                    self.lost_reasoning = true;
                }
            }
            Kind::Hosted if in_place => {
                out.push(Delta::Metadata(ProviderMetadata::Part(raw.into())))
            }
            Kind::Hosted => {}
            Kind::Function | Kind::Custom => finish_call(item, body, lost, out),
        }
    }

    /// The items of a whole response: what the stream did not tell of them.
    pub(super) fn output(&mut self, raw: &str, out: &mut Vec<Delta>) {
        let Ok(raws) = serde_json::from_str::<Vec<&RawValue>>(raw) else { return };
        let mut list = Vec::new();
        for (raw, index) in raws.iter().take(LISTED_MAX).map(|raw| raw.get()).zip(0..) {
            let mut body = ItemBody::default();
            if raw.starts_with('{') && fill(raw, &mut body).is_ok() {
                list.push((index, raw, body));
            }
        }
        if self.items.overflown {
            return;
        }
        let names: Vec<_> =
            list.iter().map(|(at, _, body)| body.named(Some(*at), body.id.as_text())).collect();
        let places = self.items.places_of(&names);
        // What is told only now belongs before what is known of later items.
        let mut in_place = vec![true; places.len()];
        let mut later = false;
        for (place, in_place) in places.iter().zip(&mut in_place).rev() {
            *in_place = !later;
            later |= place.is_some();
        }
        let placed: Vec<_> = names
            .into_iter()
            .zip(&places)
            .zip(in_place)
            .map(|(((kind, named), place), in_place)| {
                (place.unwrap_or_else(|| self.items.add(kind, named)), in_place)
            })
            .collect();
        for ((place, in_place), (_, raw, mut body)) in placed.into_iter().zip(list) {
            let is_sealed = self.items.at(place).is_some_and(|item| item.is_sealed);
            self.begin(place, &body, out);
            if is_sealed {
                // The whole response comes last, and some repeat arguments carelessly.
                body.arguments = JsonText::default();
                body.input = JsonText::default();
            }
            self.finish(place, &mut body, raw, in_place, out);
        }
    }
}

/// Seals a call that is done, unless it is cut off. `lost`: it may not go back as its item.
fn finish_call(item: &mut Item, body: &ItemBody<'_>, lost: bool, out: &mut Vec<Delta>) {
    let whole = if item.kind == Kind::Custom { &body.input } else { &body.arguments };
    let whole = whole.0.as_deref().filter(|whole| !whole.is_empty());
    if body.status.as_text() != Some("incomplete") {
        item.is_sealed = true;
        let arguments = whole.map(str::to_owned);
        out.push(Delta::Seal { index: item.index, arguments });
    } else if let Some(whole) = whole.filter(|_| !item.has_arguments && !item.is_sealed) {
        // What there is of it, and no seal.
        out.push(Delta::Call(CallDelta {
            index: Some(item.index),
            arguments: Some(whole.to_owned()),
            kind: call_kind(item.kind),
            ..CallDelta::default()
        }));
    }
    if let Some(members) = body.members(item.kind).filter(|_| !lost) {
        out.push(Delta::Metadata(ProviderMetadata::Call { index: item.index, members }));
    }
}

fn has_text(deltas: &[Delta]) -> bool {
    deltas.iter().any(|delta| matches!(delta, Delta::Text(_)))
}

/// The parts of an item's `content` or `summary`.
fn content(content_: Content<'_>, kind: fn(String) -> Delta, out: &mut Vec<Delta>) {
    match content_ {
        Content::Nothing => {}
        Content::Text(text) if text.is_empty() => {}
        Content::Text(text) => out.push(kind(text.into_owned())),
        Content::List(parts) => {
            for part in parts.into_vec() {
                content(part, kind, out);
            }
        }
        Content::Part(part) => {
            let Part { text, refusal, .. } = *part;
            content(text, kind, out);
            content(refusal, Delta::Refusal, out);
        }
    }
}
