//! Lenient deserialisation: a value of an unexpected type is ignored, so that it does not make the
//! rest of the payload unreadable. Text is borrowed where it has no escapes.

mod content;
mod object;
mod scalar;

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

pub(super) use content::TextContent;
pub(super) use object::{
    Lenient, LenientList, ObjectListSeed, ObjectSeed, ReadMembers, read_object,
};
pub(super) use scalar::{JsonText, Number, Scalar, argument_text};

/// Implements the visitor's methods for numbers, booleans and null: each returns the same value.
macro_rules! ignore_non_text_scalars {
    ($value:expr) => {
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
use ignore_non_text_scalars;

/// Reads a list to its end and discards it.
fn skip_seq<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

/// Reads an object to its end and discards it.
fn skip_map<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}
