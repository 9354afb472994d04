//! Metadata, other than text and calls, that services of this family want back with the next request.
//!
//! - The reasoning of a message, in the field in which it came. DeepSeek answers HTTP 400
//!   without it (<https://api-docs.deepseek.com/guides/thinking_mode#tool-calls>), and so does Kimi.
//!   Mistral wants it in the content (<https://docs.mistral.ai/capabilities/reasoning/>).
//! - `reasoning_details`, unchanged and in order
//!   (<https://openrouter.ai/docs/guides/best-practices/reasoning-tokens>). In a stream they come in
//!   pieces, which are joined here. They are published with the field of the reasoning, but a request
//!   with details leaves out the reasoning's text (`messages.rs`).
//! - `reasoning_text` and `reasoning_opaque` of GitHub's Copilot. It
//!   answers HTTP 400 without them (<https://github.com/anomalyco/opencode/issues/4468>).
//! - Thought signatures of a call: Gemini's `extra_content`
//!   (<https://ai.google.dev/gemini-api/docs/thought-signatures#openai>), and
//!   `provider_specific_fields` or `thought_signature`, as gateways name them.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::cumulative::CumulativeText;
use crate::lenient::{ReadMembers, Scalar, read_object};
use crate::{Delta, ProviderMetadata};
use callsheet_values::types::{ReasoningField, ReasoningMembers};

/// Maximum bytes of the `reasoning_details`, and of a `reasoning_opaque`. Larger ones are dropped; the text
/// of the reasoning then goes back instead of the details.
const DETAILS_BYTES_MAX: usize = 4 << 20;
/// Maximum number of `reasoning_details` after they are joined.
const DETAILS_MAX: usize = 1024;

/// Collects the metadata of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MetadataCollector {
    /// The first field in which reasoning came.
    field: Option<ReasoningField>,
    details: ReasoningDetails,
    /// The item of the details whose text was shown last: whether it is a summary, and its index.
    shown_item: Option<(bool, Option<u64>)>,
    /// The `reasoning_opaque`, which comes in one piece.
    opaque: Option<Box<str>>,
    /// The current metadata of the reasoning is published.
    is_published: bool,
    /// The newest call with members: its index and all of its members.
    call_members: Option<(Option<u64>, Map<String, Value>)>,
}

impl MetadataCollector {
    /// Records the field in which reasoning came. The first one counts.
    pub(super) fn set_reasoning_field(&mut self, field: ReasoningField) {
        if self.field.is_none() {
            self.field = Some(field);
            self.is_published = false;
        }
    }

    /// Adds `reasoning_details`. Those of a complete message are not pieces to be joined.
    pub(super) fn add_details(&mut self, raw: &RawValue, is_complete: bool) {
        let size = |details: &ReasoningDetails| (details.bytes, details.items.len());
        let before = size(&self.details);
        self.details.push(raw, is_complete);
        if size(&self.details) != before {
            self.is_published = false;
        }
    }

    /// Returns the text of `reasoning_details`, unless the reasoning comes in another member. Texts and summaries of
    /// several items are paragraphs.
    pub(super) fn details_text(&mut self, raw: &RawValue, is_complete: bool) -> Option<String> {
        if self.field.is_some() {
            return None;
        }
        let found: Vec<DetailText<'_>> = serde_json::from_str(raw.get()).ok()?;
        let mut shown = String::new();
        for DetailText { kind, index, text, summary } in found {
            let texts = [text.as_text(), summary.as_text()];
            for text in texts.into_iter().flatten().filter(|text| !text.is_empty()) {
                let item = (kind.as_text() == Some("reasoning.summary"), index.as_number());
                let last = self.shown_item.replace(item);
                if last.is_some_and(|last| last != item || is_complete) {
                    shown.push_str("\n\n");
                }
                shown.push_str(text);
            }
        }
        Some(shown).filter(|shown| !shown.is_empty())
    }

    /// Records a `reasoning_opaque`.
    pub(super) fn set_opaque(&mut self, raw: &RawValue) {
        let text = raw.get();
        if text.len() <= DETAILS_BYTES_MAX && self.opaque.as_deref() != Some(text) {
            self.opaque = Some(text.into());
            self.is_published = false;
        }
    }

    /// Publishes the metadata of the reasoning before a piece of a call, so that a response that breaks
    /// off later has it too. If there are details, nothing is published yet, because their signatures
    /// may still be missing.
    pub(super) fn publish_before_call(&mut self, out: &mut Vec<Delta>) {
        if !self.is_published && self.details.items.is_empty() {
            self.publish(out);
        }
    }

    /// Adds members of the call with this index or, without an index, of the newest call. Publishes all of the
    /// call's members if some are new. A piece with a name, or with another index than the last piece with members
    /// (also if only one of the two has an index), counts as the first of its call: earlier members are forgotten.
    pub(super) fn add_call_members(
        &mut self,
        index: Option<u64>,
        has_name: bool,
        found: Map<String, Value>,
        out: &mut Vec<Delta>,
    ) {
        let (last, members) = self.call_members.get_or_insert_default();
        if *last != index || has_name {
            *last = index;
            members.clear();
        }
        let before = members.clone();
        members.extend(found);
        if *members != before {
            let members = Value::Object(members.clone()).to_string().into();
            out.push(Delta::Metadata(match index {
                Some(index) => ProviderMetadata::Call { index, members },
                None => ProviderMetadata::LastCall { members },
            }));
        }
    }

    /// Publishes the metadata of the reasoning at the end of a response.
    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        if !self.is_published {
            self.publish(out);
        }
    }

    fn publish(&mut self, out: &mut Vec<Delta>) {
        self.details.finish_text();
        let details = Some(&self.details.items).filter(|items| !items.is_empty());
        if self.field.is_none() && details.is_none() && self.opaque.is_none() {
            return;
        }
        self.is_published = true;
        let details = details.and_then(|items| serde_json::value::to_raw_value(items).ok());
        let members = ReasoningMembers {
            field: self.field,
            reasoning_details: details.as_deref(),
            reasoning_opaque: self
                .opaque
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok()),
        };
        let members = serde_json::to_string(&members).unwrap_or_default();
        out.push(Delta::Metadata(ProviderMetadata::Reasoning { members: Some(members.into()) }));
    }
}

/// The `reasoning_details` of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReasoningDetails {
    items: Vec<Map<String, Value>>,
    bytes: usize,
    /// The text of the item at this position, whose pieces may be snapshots.
    text: Option<(usize, CumulativeText)>,
    /// A limit was exceeded, so no details are kept.
    is_over_limit: bool,
}

/// The text of an item of `reasoning_details`.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct DetailText<'a> {
    #[serde(rename = "type")]
    kind: Scalar<'a>,
    index: Scalar<'a>,
    text: Scalar<'a>,
    summary: Scalar<'a>,
}

/// The most frequent item of `reasoning_details`: one token of text.
#[derive(Default)]
struct ReasoningDetailsItem<'a> {
    kind: Scalar<'a>,
    index: Scalar<'a>,
    text: Scalar<'a>,
    /// There are other members.
    has_other_members: bool,
}

impl<'de> ReadMembers<'de> for ReasoningDetailsItem<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "index" => self.index = map.next_value()?,
            "text" => self.text = map.next_value()?,
            // Every item has the same `format`.
            "format" => return Ok(false),
            _ => {
                self.has_other_members = true;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ReasoningDetails {
    fn push(&mut self, raw: &RawValue, is_complete: bool) {
        if self.is_over_limit {
            return;
        }
        let text = raw.get();
        let fits = self.bytes.saturating_add(text.len()) <= DETAILS_BYTES_MAX;
        if !is_complete && fits && self.append(text) {
            return;
        }
        let Ok(found) = serde_json::from_str::<Vec<Map<String, Value>>>(text) else { return };
        for item in found.into_iter().filter(|item| !item.is_empty()) {
            self.merge(item, is_complete);
        }
        if !self.items.is_empty() {
            self.bytes = self.bytes.saturating_add(text.len());
        }
        if self.bytes > DETAILS_BYTES_MAX || self.items.len() > DETAILS_MAX {
            *self = Self { is_over_limit: true, ..Self::default() };
        }
    }

    /// Appends an item that only continues the text of the last one. Returns whether it did.
    fn append(&mut self, text: &str) -> bool {
        let Some(object) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
            return false;
        };
        let mut piece = ReasoningDetailsItem::default();
        let read = read_object(object, &mut piece).is_ok() && !piece.has_other_members;
        let Some(last) = self.items.last().filter(|_| read) else { return false };
        let same_kind = last.get("type").and_then(Value::as_str) == piece.kind.as_text();
        let same_index = last.get("index").and_then(Value::as_u64) == piece.index.as_number();
        if !same_kind || !same_index || piece.kind.as_text() != Some("reasoning.text") {
            return false;
        }
        let at = self.items.len() - 1;
        let last = self.items.last_mut().and_then(|last| last.get_mut("text"));
        match (last, piece.text.as_text()) {
            (Some(Value::String(text)), Some(more)) => {
                let more = read_piece(&mut self.text, at, more);
                text.push_str(&more);
                self.bytes = self.bytes.saturating_add(more.len());
                true
            }
            (Some(_) | None, _) => false,
        }
    }

    /// Adds an item. A text of a stream is joined with the last item of the same type and index, unless
    /// their ids differ; without an index only with the very last item. Encrypted items come in one piece.
    fn merge(&mut self, item: Map<String, Value>, is_complete: bool) {
        let kind = item.get("type").and_then(Value::as_str);
        let is_text = matches!(kind, Some("reasoning.text" | "reasoning.summary"));
        let index = item.get("index").filter(|index| !index.is_null());
        let is_same = |old: &Map<String, Value>| {
            let id = |item: &Map<String, Value>| item.get("id").cloned().unwrap_or_default();
            old.get("type").and_then(Value::as_str) == kind
                && old.get("index").filter(|index| !index.is_null()) == index
                && (id(old) == id(&item) || id(old).is_null() || id(&item).is_null())
        };
        let found = if is_complete || !is_text {
            None
        } else if index.is_some() {
            self.items.iter().rposition(is_same)
        } else {
            self.items.len().checked_sub(1).filter(|at| self.items.get(*at).is_some_and(is_same))
        };
        let Some((at, old)) = found.and_then(|at| Some((at, self.items.get_mut(at)?))) else {
            self.finish_text();
            let text = ["text", "summary"].iter().find_map(|key| item.get(*key)?.as_str());
            if let Some(text) = text.filter(|_| is_text && !is_complete) {
                let mut reader = CumulativeText::default();
                let _ = reader.read(text, false);
                self.text = Some((self.items.len(), reader));
            }
            self.items.push(item);
            return;
        };
        for (key, value) in item {
            match (old.get_mut(&key), value) {
                (Some(Value::String(text)), Value::String(more))
                    if key == "text" || key == "summary" =>
                {
                    text.push_str(&read_piece(&mut self.text, at, &more));
                }
                (Some(_), Value::Null) => {}
                (_, value) => drop(old.insert(key, value)),
            }
        }
    }
}

impl ReasoningDetails {
    /// Adds the text that is held back because it may be a snapshot.
    fn finish_text(&mut self) {
        let Some((at, mut reader)) = self.text.take() else { return };
        let item = self.items.get_mut(at);
        let text = item.and_then(|item| {
            let key = if item.contains_key("text") { "text" } else { "summary" };
            item.get_mut(key)
        });
        if let (Some(Value::String(text)), Some(held)) = (text, reader.finish()) {
            text.push_str(&held);
        }
    }
}

/// Returns the text that a piece adds to the item at a position.
fn read_piece<'p>(
    reader: &mut Option<(usize, CumulativeText)>,
    at: usize,
    piece: &'p str,
) -> Cow<'p, str> {
    match reader {
        Some((item, reader)) if *item == at => reader.read(piece, false),
        Some(_) | None => Cow::Borrowed(piece),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        RawValue::from_string(value.to_string()).unwrap()
    }

    #[track_caller]
    fn check(pieces: &[Value], is_complete: bool, expected: Value) {
        let mut details = ReasoningDetails::default();
        pieces.iter().for_each(|piece| details.push(&raw(piece), is_complete));
        assert_eq!(json!(details.items), expected);
    }

    #[test]
    fn pieces_of_details_are_joined() {
        let text =
            |text: &str| json!({"type": "reasoning.text", "text": text, "format": "x", "index": 0});
        let signed = json!({"type": "reasoning.text", "signature": "s", "text": "", "index": 0});
        let whole = json!({"type": "reasoning.text", "text": "abc", "format": "x", "index": 0,
            "signature": "s"});
        check(
            &[json!([text("a")]), json!([text("b")]), json!([text("c"), signed])],
            false,
            json!([whole]),
        );
        let summary = |text: &str| json!({"type": "reasoning.summary", "summary": text});
        let secret = |data: &str| json!({"type": "reasoning.encrypted", "data": data, "index": 0});
        check(
            &[json!([summary("a")]), json!([summary("b"), secret("x")]), json!([secret("y")])],
            false,
            json!([summary("ab"), secret("x"), secret("y")]),
        );
        let at = |index: u64| json!({"type": "reasoning.text", "text": "a", "index": index});
        let twice = json!({"type": "reasoning.text", "text": "aa", "index": 0});
        check(&[json!([at(0)]), json!([at(1)]), json!([at(0)])], false, json!([twice, at(1)]));
        let named = |id: &str| json!({"type": "reasoning.text", "text": "a", "id": id, "index": 0});
        check(&[json!([named("a"), named("b")])], false, json!([named("a"), named("b")]));
    }

    #[test]
    fn details_of_a_complete_message_are_unchanged() {
        let text = json!({"type": "reasoning.text", "text": "a"});
        check(&[json!([text, text])], true, json!([text, text]));
        for nothing in [json!(null), json!("x"), json!([]), json!([7]), json!({}), json!([{}])] {
            check(&[nothing], false, json!([]));
        }
    }

    #[test]
    fn a_field_that_comes_after_the_first_publication_is_published() {
        let (mut collector, mut out) = (MetadataCollector::default(), Vec::new());
        collector.set_opaque(&raw(&json!("x")));
        collector.publish_before_call(&mut out);
        collector.set_reasoning_field(ReasoningField::ReasoningText);
        collector.finish(&mut out);
        collector.set_reasoning_field(ReasoningField::Reasoning);
        collector.finish(&mut out);
        let published = [
            json!({"reasoning_opaque": "x"}),
            json!({"field": "reasoning_text", "reasoning_opaque": "x"}),
        ];
        let published = published.map(|members| {
            let members = Some(members.to_string().into());
            Delta::Metadata(ProviderMetadata::Reasoning { members })
        });
        assert_eq!(out, published);
    }

    #[test]
    fn details_have_a_limit() {
        let mut details = ReasoningDetails::default();
        let text = "x".repeat(1 << 20);
        let piece = raw(&json!([{"type": "reasoning.text", "text": text, "index": 0}]));
        (0..5).for_each(|_| details.push(&piece, false));
        assert!(details.is_over_limit && details.items.is_empty());
        let mut details = ReasoningDetails::default();
        let many: Vec<Value> = (0..=DETAILS_MAX).map(|index| json!({ "index": index })).collect();
        details.push(&raw(&json!(many)), true);
        assert!(details.is_over_limit && details.items.is_empty());
    }
}
