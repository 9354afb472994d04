//! Objects and lists of objects; a value of any other type is ignored.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{Scalar, ignore_non_text_scalars, skip_seq};

/// Maximum number of items of one list that are kept after the first; the rest is ignored. Without this limit a
/// hostile payload could occupy a hundred times its own size in memory.
const LIST_ITEMS_MAX: usize = 4096;

/// An object that is filled in place, member by member.
///
/// Unlike a type with derived `Deserialize` it is not moved while it is read, which saves time for
/// payloads that come once per token. A repeated key is not an error: mostly the last one counts.
pub(crate) trait ReadMembers<'de> {
    /// Reads the value of a key that it knows. Returns whether it read the value.
    fn read_member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// Reads a JSON object into `object`. Any other JSON value is ignored.
pub(crate) fn read_object<'de, T: ReadMembers<'de>>(
    text: &'de str,
    object: &mut T,
) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    ObjectSeed(object).deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Fills an object in place. The value is true if the JSON was an object.
pub(crate) struct ObjectSeed<'s, T>(pub(crate) &'s mut T);

impl<'de, T: ReadMembers<'de>> DeserializeSeed<'de> for ObjectSeed<'_, T> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: ReadMembers<'de>> Visitor<'de> for ObjectSeed<'_, T> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(key) = map.next_key::<Scalar<'de>>()? {
            if !self.0.read_member(key.as_text().unwrap_or_default(), &mut map)? {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(true)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(false)
    }

    ignore_non_text_scalars!(false);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        skip_seq(&mut seq)?;
        Ok(false)
    }
}

/// Fills an empty list of objects in place. A single object counts as a list of one. The value is true if
/// the JSON was a list or an object.
pub(crate) struct ObjectListSeed<'s, T>(pub(crate) &'s mut LenientList<T>);

impl<'de, T: ReadMembers<'de> + Default> DeserializeSeed<'de> for ObjectListSeed<'_, T> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: ReadMembers<'de> + Default> Visitor<'de> for ObjectListSeed<'_, T> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        loop {
            if self.0.first.is_none() {
                match seq.next_element_seed(ObjectSeed(self.0.first.insert(T::default())))? {
                    Some(true) => {}
                    Some(false) => self.0.first = None,
                    None => {
                        self.0.first = None;
                        return Ok(true);
                    }
                }
            } else {
                let mut next = T::default();
                match seq.next_element_seed(ObjectSeed(&mut next))? {
                    Some(true) if self.0.more.len() < LIST_ITEMS_MAX => self.0.more.push(next),
                    Some(_) => {}
                    None => return Ok(true),
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<bool, A::Error> {
        ObjectSeed(self.0.first.insert(T::default())).visit_map(map)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(false)
    }

    ignore_non_text_scalars!(false);
}

/// A value of type `T` if the JSON is an object; `None` for any other JSON type.
#[derive(Clone, Debug)]
pub(crate) struct Lenient<T>(pub(crate) Option<T>);

impl<T> Default for Lenient<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientVisitor(PhantomData)).map(Self)
    }
}

struct LenientVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LenientVisitor<T> {
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

    ignore_non_text_scalars!(None);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        skip_seq(&mut seq)?;
        Ok(None)
    }
}

/// A list of objects. A single object counts as a list of one, and any other value as an empty
/// list.
#[derive(Clone, Debug)]
pub(crate) struct LenientList<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> LenientList<T> {
    /// Iterates over the items in order.
    pub(crate) fn items_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.more)
    }

    /// Sorts the items by their indexes, unless one has none. Items with equal indexes keep their order.
    pub(crate) fn sort_by_index(&mut self, index: impl Fn(&T) -> Option<u64>) {
        if self.more.is_empty() {
            return;
        }
        let indexes: Option<Vec<u64>> = self.items_mut().map(|item| index(item)).collect();
        if indexes.is_some_and(|indexes| !indexes.is_sorted()) {
            let mut items: Vec<T> =
                self.first.take().into_iter().chain(self.more.drain(..)).collect();
            items.sort_by_key(index);
            let mut items = items.into_iter();
            self.first = items.next();
            self.more.extend(items);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the item if there is exactly one.
    pub(crate) fn only(&self) -> Option<&T> {
        self.first.as_ref().filter(|_| self.more.is_empty())
    }
}

impl<T> Default for LenientList<T> {
    fn default() -> Self {
        Self { first: None, more: Vec::new() }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LenientList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientListVisitor(PhantomData))
    }
}

struct LenientListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LenientListVisitor<T> {
    type Value = LenientList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = LenientList::default();
        while let Some(item) = seq.next_element::<Lenient<T>>()? {
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
        Ok(LenientList { first, more: Vec::new() })
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(LenientList::default())
    }

    ignore_non_text_scalars!(LenientList::default());
}
