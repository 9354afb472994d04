//! What the payloads hold, so far as it is read.

use serde::de::MapAccess;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::items::{Kind, Named};
use crate::wire::fields::{Fields, Fill};
use crate::wire::loose::{Content, JsonText, Number, Scalar};
use crate::wire::mend::value_of;
use crate::wire::piece::{Outline, Said, Slot};

#[derive(Default)]
pub(super) struct Event<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) output_index: Number<'a>,
    pub(super) item_id: Scalar<'a>,
    /// Of a content or of a summary.
    pub(super) part_index: Number<'a>,
    pub(super) delta: Content<'a>,
    pub(super) text: Content<'a>,
    pub(super) refusal: Content<'a>,
    pub(super) arguments: JsonText<'a>,
    pub(super) input: Scalar<'a>,
    pub(super) name: Scalar<'a>,
    pub(super) item: Option<&'a RawValue>,
    pub(super) response: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    /// Of a plain body.
    pub(super) output: Option<&'a RawValue>,
    pub(super) object: Scalar<'a>,
    /// What nobody reads, and what is another in each payload.
    pub(super) noise: [Option<&'a RawValue>; 2],
}

impl<'de> Fields<'de> for Event<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "output_index" => self.output_index = map.next_value()?,
            "item_id" => self.item_id = map.next_value()?,
            "content_index" | "summary_index" => self.part_index = map.next_value()?,
            "delta" => self.delta = map.next_value()?,
            "text" => self.text = map.next_value()?,
            "refusal" => self.refusal = map.next_value()?,
            "arguments" => self.arguments = map.next_value()?,
            "input" => self.input = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "item" => self.item = map.next_value()?,
            "response" => self.response = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "output" => self.output = map.next_value()?,
            "object" => self.object = map.next_value()?,
            "sequence_number" => self.noise[0] = map.next_value()?,
            "obfuscation" => self.noise[1] = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'a> Event<'a> {
    /// Its type, or else its name.
    pub(super) fn word<'s>(&'s self, name: &'s str) -> &'s str {
        self.kind.as_text().filter(|word| !word.is_empty()).unwrap_or(name)
    }

    /// Which item it means.
    pub(super) fn named(&self) -> Named<'_> {
        let (index, id) = (self.output_index.value(), self.item_id.as_text());
        Named { index, id, ..Named::default() }
    }

    /// Where the piece stands of an event that holds one.
    pub(super) fn outline(&self, said: Said) -> Option<Outline<'a>> {
        let outline = Outline::of(said).content(Slot::Text, &self.delta)?;
        let outline = outline.number(Slot::Index, self.output_index)?;
        let outline = outline.number(Slot::Part, self.part_index)?;
        let outline = outline.scalar(Slot::Id, &self.item_id)?;
        outline.unread(Slot::Noise, self.noise[0])?.unread(Slot::Noise, self.noise[1])
    }
}

#[derive(Default)]
pub(super) struct ItemBody<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) id: Scalar<'a>,
    pub(super) call_id: Scalar<'a>,
    pub(super) name: Scalar<'a>,
    pub(super) arguments: JsonText<'a>,
    pub(super) input: JsonText<'a>,
    pub(super) status: Scalar<'a>,
    pub(super) phase: Scalar<'a>,
    /// Where the tool of a call stands, if it is not among those that have no such place.
    pub(super) namespace: Scalar<'a>,
    /// Who made a call, if it was not the model itself.
    pub(super) caller: Option<&'a RawValue>,
    pub(super) content: Content<'a>,
    pub(super) summary: Content<'a>,
}

impl<'de> Fields<'de> for ItemBody<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "id" => self.id = map.next_value()?,
            "call_id" => self.call_id = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "arguments" => self.arguments = map.next_value()?,
            "input" => self.input = map.next_value()?,
            "status" => self.status = map.next_value()?,
            "phase" => self.phase = map.next_value()?,
            "namespace" => self.namespace = map.next_value()?,
            "caller" => self.caller = map.next_value()?,
            "content" => self.content = map.next_value()?,
            "summary" => self.summary = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
pub(super) struct Body<'a> {
    pub(super) status: Scalar<'a>,
    pub(super) output: Option<&'a RawValue>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    pub(super) incomplete_details: Incomplete<'a>,
}

impl<'de> Fields<'de> for Body<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "status" => self.status = map.next_value()?,
            "output" => self.output = map.next_value()?,
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "incomplete_details" => {
                map.next_value_seed(Fill(&mut self.incomplete_details))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
pub(super) struct Incomplete<'a> {
    pub(super) reason: Scalar<'a>,
}

impl<'de> Fields<'de> for Incomplete<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "reason" {
            self.reason = map.next_value()?;
        }
        Ok(key == "reason")
    }
}

impl ItemBody<'_> {
    pub(super) fn named<'s>(
        &'s self,
        index: Option<u64>,
        id: Option<&'s str>,
    ) -> (Kind, Named<'s>) {
        let call_id = self.call_id.as_text().filter(|id| !id.is_empty());
        let kind = match self.kind.as_text().filter(|word| !word.is_empty()) {
            Some(word) => Kind::of(word),
            // What it holds tells what it is.
            None if call_id.is_some() && self.input.0.is_some() => Kind::Custom,
            None if call_id.is_some() => Kind::Function,
            None if !matches!(self.summary, Content::Nothing) => Kind::Reasoning,
            None => Kind::Message,
        };
        let name = self.name.as_text().filter(|_| kind.is_call());
        (kind, Named { index, id, call_id, name })
    }

    /// What belongs to a call or a message as an item: its `id`, and what stands beside it.
    pub(super) fn members(&self, kind: Kind) -> Option<Box<str>> {
        let id = self.id.as_text().filter(|id| !id.is_empty())?;
        let mut members = Map::from_iter([("id".to_owned(), id.into())]);
        let said =
            [("status", &self.status), ("phase", &self.phase), ("namespace", &self.namespace)];
        for (key, value) in said {
            // What was cut off is sent back as what was understood of it.
            if let Some(word) = value.as_text().filter(|word| *word != "incomplete") {
                members.insert(key.to_owned(), word.into());
            }
        }
        if let Some(caller @ Value::Object(_)) = self.caller.and_then(|raw| value_of(raw.get())) {
            members.insert("caller".to_owned(), caller);
        }
        if kind == Kind::Custom {
            members.insert("type".to_owned(), "custom_tool_call".into());
        }
        Some(Value::Object(members).to_string().into())
    }
}
