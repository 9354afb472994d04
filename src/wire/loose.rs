//! Texts and numbers that take whatever a service sends, so that one odd value does not cost the
//! payload. Text is borrowed where it has no escapes.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Delta;
use super::mend::value_of;

/// A text or a number; anything else is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Scalar<'a> {
    #[default]
    Nothing,
    Text(Cow<'a, str>),
    Number(u64),
}

impl Scalar<'_> {
    /// The text, if there is one that is not empty. A number counts as its digits.
    pub(super) fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) if !text.is_empty() => Some(text.into_owned()),
            Self::Number(number) => Some(number.to_string()),
            Self::Text(_) | Self::Nothing => None,
        }
    }

    /// Whether [`Self::into_text`] would give nothing.
    pub(super) fn says_nothing(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Number(_) => false,
            Self::Nothing => true,
        }
    }

    /// The text as it stands.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::Nothing => None,
        }
    }

    /// The whole number, also when it was sent as text.
    pub(super) fn as_number(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.trim().parse().ok(),
            Self::Number(number) => Some(*number),
            Self::Nothing => None,
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(u64::try_from(number).map_or(Scalar::Nothing, Scalar::Number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        // A whole number that was written as `1.0`.
        Ok(format!("{number:.0}")
            .parse::<u32>()
            .ok()
            .filter(|whole| f64::from(*whole).total_cmp(&number).is_eq())
            .map_or(Scalar::Nothing, |whole| Scalar::Number(u64::from(whole))))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Nothing)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        skip_seq(&mut seq)?;
        Ok(Scalar::Nothing)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        skip_map(&mut map)?;
        Ok(Scalar::Nothing)
    }
}

/// A whole number, also one that was sent as text or as `1.0`, and where it stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number<'a>(Option<&'a RawValue>);

impl<'a> Number<'a> {
    /// The number; anything else is none.
    pub(super) fn value(self) -> Option<u64> {
        let raw = self.raw()?;
        raw.parse().ok().or_else(|| serde_json::from_str::<Scalar<'_>>(raw).ok()?.as_number())
    }

    /// The JSON that stands in its place, if that is not null.
    pub(super) fn raw(self) -> Option<&'a str> {
        self.0.map(RawValue::get)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Number<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self)
    }
}

/// A piece of arguments as text: the string's, or the JSON itself where it is no string.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonText<'a>(pub(super) Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonTextVisitor).map(Self)
    }
}

struct JsonTextVisitor;

impl<'de> Visitor<'de> for JsonTextVisitor {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(number.to_string())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(number.to_string())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(number.to_string())))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(if truth { "true" } else { "false" })))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        let value = serde_json::Value::deserialize(SeqAccessDeserializer::new(seq))?;
        Ok(Some(Cow::Owned(value.to_string())))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let value = serde_json::Value::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Some(Cow::Owned(value.to_string())))
    }
}

/// What arguments say that are an object for most: a text's own text, or else the JSON as it is.
pub(super) fn said_in(raw: &str) -> Option<String> {
    match raw.as_bytes().first() {
        Some(b'"') => match value_of(raw) {
            Some(serde_json::Value::String(text)) => Some(text),
            Some(_) | None => Some(raw.to_owned()),
        },
        _ if raw == "null" => None,
        _ => Some(raw.to_owned()),
    }
}

/// Text, or parts that hold text: the content of a message.
#[derive(Clone, Debug, Default)]
pub(super) enum Content<'a> {
    #[default]
    Nothing,
    Text(Cow<'a, str>),
    Part(Box<Part<'a>>),
    List(Box<[Self]>),
}

/// One part of a content that is a list.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub(super) struct Part<'a> {
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: Scalar<'a>,
    #[serde(borrow, default)]
    pub(super) text: Content<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Content<'a>,
    #[serde(borrow, default)]
    pub(super) summary: Content<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Content<'a>,
}

impl Content<'_> {
    /// Whether it is nothing, or a text that is empty.
    pub(super) fn says_nothing(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Text(text) => text.is_empty(),
            Self::Part(_) | Self::List(_) => false,
        }
    }

    /// Says what stands in it, in order: text as this kind of delta, and what is thinking or a
    /// refusal by its own name as that.
    pub(super) fn say(self, kind: fn(String) -> Delta, out: &mut Vec<Delta>) {
        match self {
            Self::Nothing => {}
            Self::Text(text) if text.is_empty() => {}
            Self::Text(text) => out.push(kind(text.into_owned())),
            Self::List(parts) => {
                for part in parts.into_vec() {
                    part.say(kind, out);
                }
            }
            Self::Part(part) => {
                let Part { kind: word, text, thinking, summary, refusal } = *part;
                let kind = match word.as_text() {
                    Some("thinking" | "reasoning") => Delta::Reasoning,
                    Some(_) | None => kind,
                };
                thinking.say(Delta::Reasoning, out);
                summary.say(Delta::Reasoning, out);
                text.say(kind, out);
                refusal.say(Delta::Refusal, out);
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Content::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Content::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Content::Nothing)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Content::Nothing)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Content::Nothing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Content::Nothing)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Content::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(Content::List(parts.into_boxed_slice()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Part::deserialize(MapAccessDeserializer::new(map)).map(|part| Content::Part(Box::new(part)))
    }
}

pub(super) fn skip_seq<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

fn skip_map<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}
