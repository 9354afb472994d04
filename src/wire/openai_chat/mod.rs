//! Chat Completions, and the dialects of services that follow it.
//!
//! Format: OpenAI's API reference, <https://platform.openai.com/docs/api-reference/chat>. Streamed
//! chunks and plain bodies give the same deltas. Only choice 0 counts. OpenRouter's
//! `reasoning_details` (<https://openrouter.ai/docs/guides/best-practices/reasoning-tokens>) repeats
//! the text of the reasoning or holds data for the service alone. It is kept to be sent back, and
//! its text is not read, so that no text counts twice.

mod decode;
mod messages;
mod metadata;
mod payload;
mod request;
pub(super) mod usage;

use metadata::MetadataCollector;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiChatDialect {
    /// A `delta` held something, so a `message` only repeats it.
    has_deltas: bool,
    metadata: MetadataCollector,
}

#[cfg(test)]
mod tests;
