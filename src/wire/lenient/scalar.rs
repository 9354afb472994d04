//! Texts and whole numbers, read from a JSON value of any type.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{skip_map, skip_seq};
use crate::repair::parse_value;

/// A text or a whole number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scalar<'a> {
    /// The member is missing, null, of another type, or a negative or fractional number.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Number(u64),
}

impl<'a> Scalar<'a> {
    /// Reads a JSON value.
    pub(crate) fn read(value: &'a Value) -> Self {
        Self::deserialize(value).unwrap_or_default()
    }

    /// Returns the text if it is not empty. A number becomes its digits.
    pub(crate) fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) if !text.is_empty() => Some(text.into_owned()),
            Self::Number(number) => Some(number.to_string()),
            Self::Text(_) | Self::Absent => None,
        }
    }

    /// Returns whether [`Self::into_text`] would return `None`.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Number(_) => false,
            Self::Absent => true,
        }
    }

    /// Returns the text, which may be empty. A number is not text.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) | Self::Absent => None,
        }
    }

    /// Returns the whole number. A text that holds one counts.
    pub(crate) fn as_number(&self) -> Option<u64> {
        match self {
            Self::Text(text) => text.trim().parse().ok(),
            Self::Number(number) => Some(*number),
            Self::Absent => None,
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
        Ok(u64::try_from(number).map_or(Scalar::Absent, Scalar::Number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        // Some services write a whole number as `1.0`.
        Ok(format!("{number:.0}")
            .parse::<u32>()
            .ok()
            .filter(|whole| f64::from(*whole).total_cmp(&number).is_eq())
            .map_or(Scalar::Absent, |whole| Scalar::Number(u64::from(whole))))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Absent)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Absent)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        skip_seq(&mut seq)?;
        Ok(Scalar::Absent)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        skip_map(&mut map)?;
        Ok(Scalar::Absent)
    }
}

/// The JSON text of a member that should be a whole number. A text that holds one, and `1.0`, count as one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Number<'a>(Option<&'a RawValue>);

impl<'a> Number<'a> {
    /// Returns the number, or `None` for any other value.
    pub(crate) fn value(self) -> Option<u64> {
        let raw = self.raw()?;
        raw.parse().ok().or_else(|| serde_json::from_str::<Scalar<'_>>(raw).ok()?.as_number())
    }

    /// Returns the JSON text of the value if it is not null.
    pub(crate) fn raw(self) -> Option<&'a str> {
        self.0.map(RawValue::get)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Number<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self)
    }
}

/// A value as text: the contents of a JSON string, or the JSON of any other value. `None` for null.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonText<'a>(pub(crate) Option<Cow<'a, str>>);

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
        let value = Value::deserialize(SeqAccessDeserializer::new(seq))?;
        Ok(Some(Cow::Owned(value.to_string())))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let value = Value::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Some(Cow::Owned(value.to_string())))
    }
}

/// Returns arguments as text: the contents of a JSON string, or the JSON itself if it is not a
/// string or cannot be read. Null has no text.
pub(crate) fn argument_text(raw: &str) -> Option<String> {
    match raw.as_bytes().first() {
        Some(b'"') => match parse_value(raw) {
            Some(Value::String(text)) => Some(text),
            Some(_) | None => Some(raw.to_owned()),
        },
        _ if raw == "null" => None,
        _ => Some(raw.to_owned()),
    }
}
