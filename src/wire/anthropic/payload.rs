//! The members of a response that the dialect reads.

use serde::de::MapAccess;
use serde_json::value::RawValue;

use crate::fast_path::{ChangeKind, FieldRole, TemplateFields};
use crate::lenient::{JsonText, Number, ObjectSeed, ReadMembers, Scalar};

/// An event or a message. A plain body is a message, and `message_start` holds one.
#[derive(Default)]
pub(super) struct EventPayload<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) index: Number<'a>,
    pub(super) delta: DeltaPayload<'a>,
    pub(super) content_block: Option<&'a RawValue>,
    pub(super) message: Option<&'a RawValue>,
    pub(super) content: Option<&'a RawValue>,
    pub(super) stop_reason: Scalar<'a>,
    pub(super) stop_details: Option<&'a RawValue>,
    pub(super) usage: Option<&'a RawValue>,
    pub(super) error: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for EventPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "index" => self.index = map.next_value()?,
            "delta" => drop(map.next_value_seed(ObjectSeed(&mut self.delta))?),
            "content_block" => self.content_block = map.next_value()?,
            "message" => self.message = map.next_value()?,
            "content" => self.content = map.next_value()?,
            "stop_reason" => self.stop_reason = map.next_value()?,
            "stop_details" => self.stop_details = map.next_value()?,
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The `delta` of an event.
#[derive(Default)]
pub(super) struct DeltaPayload<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) text: Scalar<'a>,
    pub(super) thinking: Scalar<'a>,
    pub(super) signature: Scalar<'a>,
    pub(super) partial_json: JsonText<'a>,
    pub(super) citation: Option<&'a RawValue>,
    pub(super) stop_reason: Scalar<'a>,
    pub(super) stop_details: Option<&'a RawValue>,
}

impl<'de> ReadMembers<'de> for DeltaPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "text" => self.text = map.next_value()?,
            "thinking" => self.thinking = map.next_value()?,
            "signature" => self.signature = map.next_value()?,
            "partial_json" => self.partial_json = map.next_value()?,
            "citation" => self.citation = map.next_value()?,
            "stop_reason" => self.stop_reason = map.next_value()?,
            "stop_details" => self.stop_details = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl DeltaPayload<'_> {
    /// Returns its type. A delta without a type is recognised by its members.
    pub(super) fn kind(&self) -> &str {
        match self.kind.as_text() {
            Some(kind) if !kind.is_empty() => kind,
            Some(_) | None if self.text.as_text().is_some() => "text_delta",
            Some(_) | None if self.thinking.as_text().is_some() => "thinking_delta",
            Some(_) | None if self.partial_json.0.is_some() => "input_json_delta",
            Some(_) | None if self.signature.as_text().is_some() => "signature_delta",
            Some(_) | None => "",
        }
    }
}

impl<'a> EventPayload<'a> {
    /// Returns its type, or the event's name if it has no type.
    pub(super) fn kind_or<'s>(&'s self, name: &'s str) -> &'s str {
        self.kind.as_text().filter(|kind| !kind.is_empty()).unwrap_or(name)
    }

    /// Returns the fields of a template if the event holds a single change.
    pub(super) fn template_fields(&self, name: &str) -> Option<TemplateFields<'a>> {
        if self.kind_or(name) != "content_block_delta" || self.error.is_some() {
            return None;
        }
        let delta = &self.delta;
        let fields = match delta.kind() {
            "text_delta" => {
                TemplateFields::new(ChangeKind::Text).scalar(FieldRole::Text, &delta.text)
            }
            "thinking_delta" => {
                TemplateFields::new(ChangeKind::Reasoning).scalar(FieldRole::Text, &delta.thinking)
            }
            "input_json_delta" => TemplateFields::new(ChangeKind::Arguments)
                .json_text(FieldRole::Text, &delta.partial_json),
            _ => None,
        };
        fields?.number(FieldRole::Index, self.index)
    }
}

/// A content block: at its start, or complete.
#[derive(Default)]
pub(super) struct BlockPayload<'a> {
    pub(super) kind: Scalar<'a>,
    pub(super) id: Scalar<'a>,
    pub(super) name: Scalar<'a>,
    pub(super) text: Scalar<'a>,
    pub(super) thinking: Scalar<'a>,
    pub(super) signature: Scalar<'a>,
    pub(super) input: Option<&'a RawValue>,
    pub(super) citations: Option<&'a RawValue>,
    /// There are other members.
    pub(super) has_other_members: bool,
}

impl<'de> ReadMembers<'de> for BlockPayload<'de> {
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "id" => self.id = map.next_value()?,
            "name" => self.name = map.next_value()?,
            "text" => self.text = map.next_value()?,
            "thinking" => self.thinking = map.next_value()?,
            "signature" => self.signature = map.next_value()?,
            "input" => self.input = map.next_value()?,
            "citations" => self.citations = map.next_value()?,
            _ => {
                self.has_other_members = true;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl BlockPayload<'_> {
    /// Returns its type. A block without a type is recognised by its members.
    pub(super) fn kind(&self) -> &str {
        match self.kind.as_text() {
            Some(kind) if !kind.is_empty() => kind,
            Some(_) | None if self.text.as_text().is_some() => "text",
            Some(_) | None if self.thinking.as_text().is_some() => "thinking",
            Some(_) | None if self.name.as_text().is_some() => "tool_use",
            Some(_) | None => "",
        }
    }
}
