//! What services of this family want back with the next request, beside text and calls.
//!
//! - Thinking, in the field in which it came, with a message that holds calls: DeepSeek answers
//!   HTTP 400 without it (<https://api-docs.deepseek.com/guides/thinking_mode#tool-calls>), Kimi
//!   alike; Mistral wants it in the content (<https://docs.mistral.ai/capabilities/reasoning/>).
//! - `reasoning_details`, in the place of the thinking's text, unchanged and in order
//!   (<https://openrouter.ai/docs/guides/best-practices/reasoning-tokens>). A stream brings them in
//!   pieces, which are put together here.
//! - `reasoning_text` and `reasoning_opaque` of GitHub's Copilot, with a message that holds calls:
//!   it answers HTTP 400 without them (<https://github.com/anomalyco/opencode/issues/4468>).
//! - Signatures of thoughts beside a call: Gemini's `extra_content`
//!   (<https://ai.google.dev/gemini-api/docs/thought-signatures#openai>), and
//!   `provider_specific_fields` or `thought_signature`, as gateways name them.

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::wire::fields::{Fields, fill};
use crate::wire::loose::Scalar;
use crate::wire::{Delta, ProviderMetadata};

/// Bytes of `reasoning_details` that are kept; beyond it the text goes back instead.
const DETAILS_BYTES_MAX: usize = 4 << 20;
/// As many of them, after they are put together.
const DETAILS_MAX: usize = 1024;

/// Where thinking stands in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Field {
    ReasoningContent,
    Reasoning,
    ReasoningText,
    /// Among the parts of the content.
    Content,
}

/// What belongs to a message's reasoning.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ReasoningMembers<'a> {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) field: Option<Field>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) reasoning_details: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) reasoning_opaque: Option<&'a RawValue>,
}

/// What belongs to a call.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct CallMembers<'a> {
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) extra_content: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) provider_specific_fields: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) thought_signature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "FunctionMembers::is_empty", borrow, default)]
    pub(super) function: FunctionMembers<'a>,
}

/// What belongs to a call's function.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct FunctionMembers<'a> {
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) provider_specific_fields: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    pub(super) thought_signature: Option<&'a RawValue>,
}

impl CallMembers<'_> {
    pub(super) fn is_empty(&self) -> bool {
        let Self { extra_content, provider_specific_fields, thought_signature, function } = self;
        let all = [extra_content, provider_specific_fields, thought_signature];
        all.iter().all(|member| member.is_none()) && function.is_empty()
    }
}

impl FunctionMembers<'_> {
    fn is_empty(&self) -> bool {
        self.provider_specific_fields.is_none() && self.thought_signature.is_none()
    }
}

/// What is to be kept of a response, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The first field in which thinking came.
    field: Option<Field>,
    details: Details,
    /// The `reasoning_opaque`, which comes whole.
    opaque: Option<Box<str>>,
    /// Only a message with calls is sent back with its thinking.
    has_calls: bool,
    /// All this has been said.
    is_told: bool,
    /// The newest call with members: its index, and all of them.
    call: Option<(Option<u64>, Map<String, Value>)>,
}

impl Kept {
    /// Thinking came in this field.
    pub(super) fn thought(&mut self, field: Field) {
        self.field.get_or_insert(field);
    }

    /// `reasoning_details` came; those of a `whole` message are not in pieces.
    pub(super) fn details(&mut self, raw: &RawValue, whole: bool) {
        let before = (self.details.bytes, self.details.items.len());
        self.details.push(raw, whole);
        self.is_told &= before == (self.details.bytes, self.details.items.len());
    }

    /// A `reasoning_opaque` came.
    pub(super) fn opaque(&mut self, raw: &RawValue) {
        let text = raw.get();
        if text.len() <= DETAILS_BYTES_MAX && self.opaque.as_deref() != Some(text) {
            self.opaque = Some(text.into());
            self.is_told = false;
        }
    }

    /// A piece of a call is about to come: what is known of the thinking before it is said, so
    /// that a response which breaks off has it too. Details may lack their signatures still.
    pub(super) fn before_call(&mut self, out: &mut Vec<Delta>) {
        self.has_calls = true;
        if !self.is_told && self.details.items.is_empty() {
            self.tell(out);
        }
    }

    /// A piece of the call with this index came, or of the newest, and these members with it.
    pub(super) fn call(
        &mut self,
        index: Option<u64>,
        begins: bool,
        found: &CallMembers<'_>,
        out: &mut Vec<Delta>,
    ) {
        let text = serde_json::to_string(found).unwrap_or_default();
        let Ok(Value::Object(found)) = serde_json::from_str(&text) else { return };
        let (last, members) = self.call.get_or_insert_default();
        if *last != index || begins {
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

    /// The response says that it is over.
    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        if self.has_calls && !self.is_told {
            self.tell(out);
        }
    }

    fn tell(&mut self, out: &mut Vec<Delta>) {
        let details = self.details.to_json();
        if self.field.is_none() && details.is_none() && self.opaque.is_none() {
            return;
        }
        self.is_told = true;
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
struct Details {
    items: Vec<Map<String, Value>>,
    bytes: usize,
    given_up: bool,
}

/// A piece as most of them are, for every token of the thinking.
#[derive(Default)]
struct Piece<'a> {
    kind: Scalar<'a>,
    index: Scalar<'a>,
    text: Scalar<'a>,
    /// There is more that would have to be looked at.
    has_more: bool,
}

impl<'de> Fields<'de> for Piece<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "index" => self.index = map.next_value()?,
            "text" => self.text = map.next_value()?,
            // The same on every piece.
            "format" => return Ok(false),
            _ => {
                self.has_more = true;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Details {
    fn push(&mut self, raw: &RawValue, whole: bool) {
        if self.given_up {
            return;
        }
        let text = raw.get();
        let fits = self.bytes.saturating_add(text.len()) <= DETAILS_BYTES_MAX;
        if !whole && fits && self.append(text) {
            return;
        }
        let Ok(found) = serde_json::from_str::<Vec<Map<String, Value>>>(text) else { return };
        for item in found.into_iter().filter(|item| !item.is_empty()) {
            self.merge(item, whole);
        }
        if !self.items.is_empty() {
            self.bytes = self.bytes.saturating_add(text.len());
        }
        if self.bytes > DETAILS_BYTES_MAX || self.items.len() > DETAILS_MAX {
            *self = Self { given_up: true, ..Self::default() };
        }
    }

    /// Appends a piece that is nothing but more text of the last item, and says whether it was.
    fn append(&mut self, text: &str) -> bool {
        let Some(object) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
            return false;
        };
        let mut piece = Piece::default();
        let read = fill(object, &mut piece).is_ok() && !piece.has_more;
        let Some(last) = self.items.last_mut().filter(|_| read) else { return false };
        let same_kind = last.get("type").and_then(Value::as_str) == piece.kind.as_text();
        let same_index = last.get("index").and_then(Value::as_u64) == piece.index.as_number();
        if !same_kind || !same_index || piece.kind.as_text() != Some("reasoning.text") {
            return false;
        }
        match (last.get_mut("text"), piece.text.as_text()) {
            (Some(Value::String(text)), Some(more)) => {
                text.push_str(more);
                self.bytes = self.bytes.saturating_add(more.len());
                true
            }
            (Some(_) | None, _) => false,
        }
    }

    /// Adds an item, or joins it with the one of its type and index whose text it goes on with.
    /// What is encrypted always comes whole.
    fn merge(&mut self, item: Map<String, Value>, whole: bool) {
        let kind = item.get("type").and_then(Value::as_str);
        let is_text = matches!(kind, Some("reasoning.text" | "reasoning.summary"));
        let index = item.get("index").filter(|index| !index.is_null());
        let is_same = |old: &Map<String, Value>| {
            let id = |item: &Map<String, Value>| item.get("id").cloned().unwrap_or_default();
            old.get("type").and_then(Value::as_str) == kind
                && old.get("index").filter(|index| !index.is_null()) == index
                && (id(old) == id(&item) || id(old).is_null() || id(&item).is_null())
        };
        let found = if whole || !is_text {
            None
        } else if index.is_some() {
            self.items.iter().rposition(is_same)
        } else {
            self.items.len().checked_sub(1).filter(|at| self.items.get(*at).is_some_and(is_same))
        };
        let Some(old) = found.and_then(|at| self.items.get_mut(at)) else {
            self.items.push(item);
            return;
        };
        for (key, value) in item {
            match (old.get_mut(&key), value) {
                (Some(Value::String(text)), Value::String(more))
                    if key == "text" || key == "summary" =>
                {
                    text.push_str(&more);
                }
                (Some(_), Value::Null) => {}
                (_, value) => drop(old.insert(key, value)),
            }
        }
    }

    fn to_json(&self) -> Option<Box<RawValue>> {
        let items = Some(&self.items).filter(|items| !items.is_empty())?;
        serde_json::value::to_raw_value(items).ok()
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
    fn check(pieces: &[Value], whole: bool, expected: Value) {
        let mut details = Details::default();
        pieces.iter().for_each(|piece| details.push(&raw(piece), whole));
        assert_eq!(json!(details.items), expected);
    }

    #[test]
    fn pieces_of_details_are_put_together() {
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
    fn details_of_a_whole_message_stay_as_they_are() {
        let text = json!({"type": "reasoning.text", "text": "a"});
        check(&[json!([text, text])], true, json!([text, text]));
        for nothing in [json!(null), json!("x"), json!([]), json!([7]), json!({}), json!([{}])] {
            check(&[nothing], false, json!([]));
        }
    }

    #[test]
    fn details_have_a_limit() {
        let mut details = Details::default();
        let text = "x".repeat(1 << 20);
        let piece = raw(&json!([{"type": "reasoning.text", "text": text, "index": 0}]));
        (0..5).for_each(|_| details.push(&piece, false));
        assert!(details.given_up && details.items.is_empty());
        let mut details = Details::default();
        let many: Vec<Value> = (0..=DETAILS_MAX).map(|index| json!({ "index": index })).collect();
        details.push(&raw(&json!(many)), true);
        assert!(details.given_up && details.items.is_empty());
    }
}
