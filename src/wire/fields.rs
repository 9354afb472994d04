//! Objects and lists of a known shape, in whose place anything else may stand.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::loose::{Scalar, skip_seq};

/// What a visitor makes of a text, a number, a truth value and null.
macro_rules! scalars_are {
    ($value:expr) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

/// Items of one list that are read; what comes after them is passed over. A hostile payload could
/// else take a hundred times its own size.
const LIST_ITEMS_MAX: usize = 4096;

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

    scalars_are!(false);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        skip_seq(&mut seq)?;
        Ok(false)
    }
}

/// Fills the objects of a list, and says whether there was one; one object alone is a list of one.
pub(super) struct FillEach<'s, T>(pub(super) &'s mut List<T>);

impl<'de, T: Fields<'de> + Default> DeserializeSeed<'de> for FillEach<'_, T> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Fields<'de> + Default> Visitor<'de> for FillEach<'_, T> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        loop {
            if self.0.first.is_none() {
                match seq.next_element_seed(Fill(self.0.first.insert(T::default())))? {
                    Some(true) => {}
                    Some(false) => self.0.first = None,
                    None => {
                        self.0.first = None;
                        return Ok(true);
                    }
                }
            } else {
                let mut next = T::default();
                match seq.next_element_seed(Fill(&mut next))? {
                    Some(true) if self.0.more.len() < LIST_ITEMS_MAX => self.0.more.push(next),
                    Some(_) => {}
                    None => return Ok(true),
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        Fill(self.0.first.insert(T::default())).visit_map(map)
    }

    scalars_are!(false);
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

    scalars_are!(None);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        skip_seq(&mut seq)?;
        Ok(None)
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

    /// The item, if there is one alone.
    pub(super) fn only(&self) -> Option<&T> {
        self.first.as_ref().filter(|_| self.more.is_empty())
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
                Some(item) if list.more.len() < LIST_ITEMS_MAX => list.more.push(item),
                Some(_) | None => {}
            }
        }
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let first = Some(T::deserialize(MapAccessDeserializer::new(map))?);
        Ok(List { first, more: Vec::new() })
    }

    scalars_are!(List::default());
}
