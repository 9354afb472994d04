//! The content of a message: a text, or parts that hold text.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Scalar, ignore_non_text_scalars};
use crate::wire::Delta;

/// Text, or parts that hold text.
#[derive(Clone, Debug, Default)]
pub(in crate::wire) enum TextContent<'a> {
    /// The member is missing, null, or of a type that holds no text.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Part(Box<TextPart<'a>>),
    List(Box<[Self]>),
}

/// One part of a content that is a list.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(in crate::wire) struct TextPart<'a> {
    #[serde(rename = "type")]
    pub(in crate::wire) kind: Scalar<'a>,
    pub(in crate::wire) text: TextContent<'a>,
    pub(in crate::wire) thinking: TextContent<'a>,
    pub(in crate::wire) summary: TextContent<'a>,
    pub(in crate::wire) refusal: TextContent<'a>,
}

impl TextContent<'_> {
    /// Returns whether it is absent or an empty text.
    pub(in crate::wire) fn is_blank(&self) -> bool {
        match self {
            Self::Absent => true,
            Self::Text(text) => text.is_empty(),
            Self::Part(_) | Self::List(_) => false,
        }
    }

    /// Appends its texts to `out`, in order: thinking as [`Delta::Reasoning`], refusals as
    /// [`Delta::Refusal`], and every other text as `kind`.
    pub(in crate::wire) fn push_deltas(self, kind: fn(String) -> Delta, out: &mut Vec<Delta>) {
        match self {
            Self::Absent => {}
            Self::Text(text) if text.is_empty() => {}
            Self::Text(text) => out.push(kind(text.into_owned())),
            Self::List(parts) => {
                for part in parts.into_vec() {
                    part.push_deltas(kind, out);
                }
            }
            Self::Part(part) => {
                let TextPart { kind: part_type, text, thinking, summary, refusal } = *part;
                let kind = match part_type.as_text() {
                    Some("thinking" | "reasoning") => Delta::Reasoning,
                    Some(_) | None => kind,
                };
                thinking.push_deltas(Delta::Reasoning, out);
                summary.push_deltas(Delta::Reasoning, out);
                text.push_deltas(kind, out);
                refusal.push_deltas(Delta::Refusal, out);
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for TextContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextContentVisitor)
    }
}

struct TextContentVisitor;

impl<'de> Visitor<'de> for TextContentVisitor {
    type Value = TextContent<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(TextContent::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextContent::Text(Cow::Owned(text.to_owned())))
    }

    ignore_non_text_scalars!(TextContent::Absent);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(TextContent::List(parts.into_boxed_slice()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        TextPart::deserialize(MapAccessDeserializer::new(map))
            .map(|part| TextContent::Part(Box::new(part)))
    }
}
