//! The members of a response that the dialect reads.

use serde::de::MapAccess;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::stream::{ItemKind, ItemRef};
use crate::fast_path::{ChangeKind, FieldRole, TemplateFields};
use crate::lenient::{JsonText, Number, ReadMembers, Scalar, TextContent};
use crate::repair::parse_value;

/// An event of a stream. A plain body is read as this too, to recognise it by `output` and `object`; its content is
/// then read as [`ResponsePayload`].
#[derive(Default)]
pub(super) struct EventPayload<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) output_index: Number<'a>,
    pub(super) item_id: Scalar<'a>,
    /// The id of the call, from services that send no `item_id`.
    pub(super) call_id: Scalar<'a>,
    /// The index of a part of an item: `content_index` or `summary_index`.
    pub(super) part_index: Number<'a>,
    pub(super) delta: TextContent<'a>,
    pub(super) text: TextContent<'a>,
    pub(super) refusal: TextContent<'a>,
    pub(super) arguments: JsonText<'a>,
    pub(super) input: Scalar<'a>,
    pub(super) name: Scalar<'a>,
    pub(super) item: Option<&'a RawValue>,
    pub(super) response: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    /// The items of a plain body.
    pub(super) output: Option<&'a RawValue>,
    /// `response` in a plain body.
    pub(super) object: Scalar<'a>,
    /// Changes with every payload and does not affect the deltas. Only the fast path needs it.
    sequence_number: Option<&'a RawValue>,
    /// Changes with every payload and does not affect the deltas. Only the fast path needs it.
    obfuscation: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for EventPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "output_index" => self.output_index = map.next_value()?,
            "item_id" => self.item_id = map.next_value()?,
            "call_id" => self.call_id = map.next_value()?,
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
            "sequence_number" => self.sequence_number = map.next_value()?,
            "obfuscation" => self.obfuscation = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'a> EventPayload<'a> {
    /// Returns its type, or the event's name if it has no type.
    pub(super) fn kind_or<'s>(&'s self, name: &'s str) -> &'s str {
        self.kind.as_text().filter(|word| !word.is_empty()).unwrap_or(name)
    }

    /// Returns the item to which it refers.
    pub(super) fn item_ref(&self) -> ItemRef<'_> {
        let (index, id) = (self.output_index.value(), self.id().as_text());
        ItemRef { index, id, ..ItemRef::default() }
    }

    fn id(&self) -> &Scalar<'a> {
        if self.item_id.as_text().is_some() { &self.item_id } else { &self.call_id }
    }

    /// Returns the members that vary between events that hold a piece of this kind, for the fast path
    /// (`wire::fast_path`). `None` if one of them needs a full parse.
    pub(super) fn template_fields(&self, kind: ChangeKind) -> Option<TemplateFields<'a>> {
        let fields = TemplateFields::new(kind).content(FieldRole::Text, &self.delta)?;
        let fields = fields.number(FieldRole::Index, self.output_index)?;
        let fields = fields.number(FieldRole::PartIndex, self.part_index)?;
        let fields = fields.scalar(FieldRole::Id, self.id())?;
        let fields = fields.ignored(FieldRole::IgnoredVarying, self.sequence_number)?;
        fields.ignored(FieldRole::IgnoredVarying, self.obfuscation)
    }
}

/// An item of the response's output.
#[derive(Default)]
pub(super) struct ItemPayload<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) id: Scalar<'a>,
    pub(super) call_id: Scalar<'a>,
    pub(super) name: Scalar<'a>,
    pub(super) arguments: JsonText<'a>,
    pub(super) input: JsonText<'a>,
    pub(super) status: Scalar<'a>,
    pub(super) phase: Scalar<'a>,
    /// The namespace of a call's tool, if it has one.
    pub(super) namespace: Scalar<'a>,
    /// The origin of a call that the model did not make itself.
    pub(super) caller: Option<&'a RawValue>,
    pub(super) content: TextContent<'a>,
    pub(super) summary: TextContent<'a>,
}

impl<'de> ReadMembers<'de> for ItemPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
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

/// A complete response: the `response` of a final event, a final event without that member, or a plain body.
#[derive(Default)]
pub(super) struct ResponsePayload<'a> {
    pub(super) status: Scalar<'a>,
    pub(super) output: Option<&'a RawValue>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
    pub(super) incomplete_details: Option<&'a RawValue>,
    /// Azure's judgements of the content: a list.
    pub(super) content_filters: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for ResponsePayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "status" => self.status = map.next_value()?,
            "output" => self.output = map.next_value()?,
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "incomplete_details" => self.incomplete_details = map.next_value()?,
            "content_filters" => self.content_filters = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl ItemPayload<'_> {
    /// Returns the kind of the item and a reference to it. An item without a type is recognised by
    /// its members.
    pub(super) fn item_ref<'s>(
        &'s self,
        index: Option<u64>,
        id: Option<&'s str>,
    ) -> (ItemKind, ItemRef<'s>) {
        let call_id = self.call_id.as_text().filter(|id| !id.is_empty());
        let kind = match self.kind.as_text().filter(|word| !word.is_empty()) {
            Some(kind) => ItemKind::parse(kind),
            None if call_id.is_some() && self.input.0.is_some() => ItemKind::Custom,
            None if call_id.is_some() => ItemKind::Function,
            None if !matches!(self.summary, TextContent::Absent) => ItemKind::Reasoning,
            None => ItemKind::Message,
        };
        let name = self.name.as_text().filter(|_| kind.is_call());
        (kind, ItemRef { index, id, call_id, name })
    }

    /// Returns the members that go back with a call or a message: its `id` and status, if it has an id and
    /// `with_id` is true, and others that the service needs. Returns `None` if there are none.
    pub(super) fn members(&self, kind: ItemKind, with_id: bool) -> Option<Box<str>> {
        let id = self.id.as_text().filter(|id| with_id && !id.is_empty());
        // Of an incomplete item, the part that was received goes back, without its status.
        let status = self.status.as_text().filter(|status| *status != "incomplete");
        let texts = [
            ("id", id),
            ("status", status.filter(|_| id.is_some())),
            ("phase", self.phase.as_text()),
            ("namespace", self.namespace.as_text()),
        ];
        let mut members = Map::new();
        for (key, value) in texts {
            if let Some(text) = value.filter(|text| !text.is_empty()) {
                members.insert(key.to_owned(), text.into());
            }
        }
        if let Some(caller @ Value::Object(_)) = self.caller.and_then(|raw| parse_value(raw.get()))
        {
            members.insert("caller".to_owned(), caller);
        }
        if kind == ItemKind::Custom {
            members.insert("type".to_owned(), "custom_tool_call".into());
        }
        (!members.is_empty()).then(|| Value::Object(members).to_string().into())
    }
}
