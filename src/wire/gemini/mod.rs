//! Gemini's `generateContent` and `streamGenerateContent`, of the Gemini API and of Vertex AI.
//!
//! Format: Google's API reference, <https://ai.google.dev/api/generate-content>. Streamed chunks and
//! plain bodies have the same form. A stream has no end marker: it is complete once its finish
//! reason came. Only candidate 0 counts. A call comes complete and mostly without an id, or, from
//! Vertex AI, in pieces, each with the path of its value. Thought signatures belong to parts of any
//! kind and go back in the same part
//! (<https://ai.google.dev/gemini-api/docs/thought-signatures>).

mod arguments;
mod decode;
mod messages;
mod payload;
mod request;
mod schema;
mod stream;
mod usage;

use stream::CallTracker;
use usage::UsageCounts;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GeminiDialect {
    calls: CallTracker,
    /// A finish reason has come.
    finished: bool,
    /// The last finish reason is `STOP`.
    ended_well: bool,
    counts: UsageCounts,
    /// The text of the last token counts. Most services repeat it in every chunk.
    last_usage: String,
}

#[cfg(test)]
mod tests;
