//! The content of a message: a text, or parts that hold text.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Scalar, ignore_non_text_scalars};
use crate::{Delta, Problem};

/// Maximum number of texts of one list that are kept after the first; the rest is dropped and reported. Without
/// this limit a hostile payload could occupy many times its own size in memory.
const LIST_TEXTS_MAX: usize = 4096;

/// The kind of a text, as the function that makes a delta of it.
type DeltaKind = fn(String) -> Delta;

/// Text, or parts that hold text.
#[derive(Clone, Debug, Default)]
pub(crate) enum TextContent<'a> {
    /// The member is missing, null, or of a type that holds no text.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Part(Box<TextPart<'a>>),
    /// The texts of the items, and of the lists in them. Empty ones are left out.
    List(Box<[ListedText<'a>]>),
}

/// A text of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListedText<'a> {
    /// `None` if its kind is that of the whole content.
    kind: Option<DeltaKind>,
    text: Cow<'a, str>,
}

/// One part: the whole content, or an item of a list.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub(crate) struct TextPart<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: Scalar<'a>,
    pub(crate) text: TextContent<'a>,
    pub(crate) thinking: TextContent<'a>,
    pub(crate) summary: TextContent<'a>,
    pub(crate) refusal: TextContent<'a>,
}

impl<'a> TextContent<'a> {
    /// Returns whether it is absent or an empty text.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::Absent => true,
            Self::Text(text) => text.is_empty(),
            Self::Part(_) | Self::List(_) => false,
        }
    }

    /// Appends its texts to `out`, in the order of the parts: thinking and summaries as
    /// [`Delta::Reasoning`], refusals as [`Delta::Refusal`], and every other text as `kind`.
    pub(crate) fn push_deltas(self, kind: DeltaKind, out: &mut Vec<Delta>) {
        let before = out.len();
        self.for_each_text(None, &mut |own_kind, text| {
            let kind = own_kind.unwrap_or(kind);
            out.push(kind(text.into_owned()));
        });
        if out.len() - before > LIST_TEXTS_MAX {
            let detail = format!("more than {LIST_TEXTS_MAX} texts in one content");
            out.push(Delta::Problem(Problem { code: "too_many_texts", detail }));
        }
    }

    /// Passes its texts that are not empty to `push`, in order, each with its kind. `kind` is that of a text
    /// without a kind of its own.
    fn for_each_text(
        self,
        kind: Option<DeltaKind>,
        push: &mut impl FnMut(Option<DeltaKind>, Cow<'a, str>),
    ) {
        match self {
            Self::Absent => {}
            Self::Text(text) if text.is_empty() => {}
            Self::Text(text) => push(kind, text),
            Self::List(texts) => {
                for ListedText { kind: own_kind, text } in texts.into_vec() {
                    push(own_kind.or(kind), text);
                }
            }
            Self::Part(part) => {
                let TextPart { kind: part_type, text, thinking, summary, refusal } = *part;
                let kind: Option<DeltaKind> = match part_type.as_text() {
                    Some("thinking" | "reasoning") => Some(Delta::Reasoning),
                    Some(_) | None => kind,
                };
                thinking.for_each_text(Some(Delta::Reasoning), push);
                summary.for_each_text(Some(Delta::Reasoning), push);
                text.for_each_text(kind, push);
                refusal.for_each_text(Some(Delta::Refusal), push);
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
        let mut texts = Vec::new();
        while let Some(part) = seq.next_element::<TextContent<'de>>()? {
            part.for_each_text(None, &mut |kind, text| {
                if texts.len() <= LIST_TEXTS_MAX {
                    texts.push(ListedText { kind, text });
                }
            });
        }
        Ok(TextContent::List(texts.into_boxed_slice()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        TextPart::deserialize(MapAccessDeserializer::new(map))
            .map(|part| TextContent::Part(Box::new(part)))
    }
}
