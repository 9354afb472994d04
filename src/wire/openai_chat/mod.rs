//! Chat Completions, and the dialects of services that follow it.
//!
//! Format: OpenAI's API reference, <https://platform.openai.com/docs/api-reference/chat>. Streamed
//! chunks and plain bodies give the same deltas. Only choice 0 counts. OpenRouter's
//! `reasoning_details` (<https://openrouter.ai/docs/guides/best-practices/reasoning-tokens>) repeats
//! the text of the reasoning or holds data for the service alone. It is kept to be sent back. Its text is read only if
//! no other member has the reasoning, as at MiniMax, so that no text counts twice.

mod decode;
mod messages;
mod metadata;
mod payload;
mod request;
pub(super) mod usage;

use std::borrow::Cow;

use super::cumulative::CumulativeText;
use metadata::MetadataCollector;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiChatDialect {
    /// A `delta` held something, so a `message` only repeats it.
    has_deltas: bool,
    metadata: MetadataCollector,
    /// The arguments of the newest call.
    arguments: CallArguments,
}

/// The arguments of a call of a stream, whose pieces may be snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CallArguments {
    index: Option<u64>,
    id: Option<String>,
    /// `None` if a piece of another call has come since.
    text: Option<CumulativeText>,
}

impl CallArguments {
    /// Returns the text that a piece of a call adds to its arguments.
    fn read<'p>(
        &mut self,
        index: Option<u64>,
        (id, name): (Option<&str>, Option<&str>),
        piece: &'p str,
    ) -> Cow<'p, str> {
        // Some services repeat the id and the name in each piece.
        let is_same = index == self.index && (id.is_none() || id == self.id.as_deref());
        if name.is_some() && !(is_same && id.is_some()) {
            let text = Some(CumulativeText::default());
            *self = Self { index, id: id.map(str::to_owned), text };
        } else if !is_same {
            self.text = None;
        }
        match &mut self.text {
            Some(text) => text.read(piece, true),
            None => Cow::Borrowed(piece),
        }
    }
}

#[cfg(test)]
mod tests;
