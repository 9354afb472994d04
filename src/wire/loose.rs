//! Fields that take whatever a service sends, so that one odd value does not cost the payload.
//!
//! Text is borrowed where it has no escapes, and a list of one allocates nothing.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// An object that takes its fields one by one, where it lies.
///
/// Unlike a derived shape it is not moved while it is read, which matters for what is read for
/// every token; and a key that stands twice is no error: the last one counts.
pub(super) trait Fields<'de> {
    /// Takes the value of a key that it knows, and says whether it did.
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// Fills an object from JSON text.
pub(super) fn fill<'de, T: Fields<'de>>(text: &'de str, object: &mut T) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Fill(object).deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Fills an object, and says whether there was one.
pub(super) struct Fill<'s, T>(pub(super) &'s mut T);

impl<'de, T: Fields<'de>> DeserializeSeed<'de> for Fill<'_, T> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Fields<'de>> Visitor<'de> for Fill<'_, T> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(key) = map.next_key::<Scalar<'de>>()? {
            if !self.0.take(key.as_text().unwrap_or_default(), &mut map)? {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(true)
    }

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        skip_seq(&mut seq)?;
        Ok(false)
    }
}

/// Fills the objects of a list; one object alone is a list of one.
pub(super) struct FillEach<'s, T>(pub(super) &'s mut List<T>);

impl<'de, T: Fields<'de> + Default> DeserializeSeed<'de> for FillEach<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Fields<'de> + Default> Visitor<'de> for FillEach<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        loop {
            if self.0.first.is_none() {
                match seq.next_element_seed(Fill(self.0.first.insert(T::default())))? {
                    Some(true) => {}
                    Some(false) => self.0.first = None,
                    None => {
                        self.0.first = None;
                        return Ok(());
                    }
                }
            } else {
                let mut next = T::default();
                match seq.next_element_seed(Fill(&mut next))? {
                    Some(true) => self.0.more.push(next),
                    Some(false) => {}
                    None => return Ok(()),
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Fill(self.0.first.insert(T::default())).visit_map(map).map(drop)
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

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

/// An object of a known shape; anything else is nothing.
#[derive(Clone, Debug)]
pub(super) struct Loose<T>(pub(super) Option<T>);

impl<T> Default for Loose<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Loose<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor(PhantomData)).map(Self)
    }
}

struct LooseVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LooseVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        skip_seq(&mut seq)?;
        Ok(None)
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

/// A list of objects; one object alone is a list of one, anything else is empty.
#[derive(Clone, Debug)]
pub(super) struct List<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> List<T> {
    /// The items in order, where they lie.
    pub(super) fn items_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.more)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { first: None, more: Vec::new() }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = List::default();
        while let Some(item) = seq.next_element::<Loose<T>>()? {
            match item.0 {
                Some(item) if list.first.is_none() => list.first = Some(item),
                Some(item) => list.more.push(item),
                None => {}
            }
        }
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let first = Some(T::deserialize(MapAccessDeserializer::new(map))?);
        Ok(List { first, more: Vec::new() })
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(List::default())
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
    pub(super) refusal: Content<'a>,
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

fn skip_seq<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

fn skip_map<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}
