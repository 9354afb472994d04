//! Gemini's `generateContent` and `streamGenerateContent`, of the Gemini API and of Vertex AI.
//!
//! Format: Google's API reference, <https://ai.google.dev/api/generate-content>. Streamed chunks and
//! plain bodies have the same form. A stream has no end marker: it is complete once its finish
//! reason came. Only candidate 0 counts. A call comes complete and mostly without an id, or, from
//! Vertex AI, in pieces whose paths say where they belong. Thought signatures stand on parts of any
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

use serde_json::Value;

use super::dialect::{Dialect, KeyHeader};
use super::fast_path::TemplateFields;
use super::lenient::read_object;
use super::request_cache::HistoryWriter;
use super::{Delta, Framing, ModelRequest};

use payload::ChunkPayload;
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

impl Dialect for GeminiDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader { name: "x-goog-api-key", prefix: "" };
    const HISTORY_MEMBER: &'static str = "contents";
    const PROTECTED_MEMBERS: &'static [&'static str] = &["tools"];

    fn url(base: &str, model: &str, stream: bool) -> String {
        request::url(base, model, stream)
    }

    fn request_head(request: &ModelRequest) -> Value {
        request::head(request)
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }

    // Every chunk has token counts, so none holds a single change.
    fn parse_payload<'p>(
        &mut self,
        _event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut chunk = ChunkPayload::default();
        read_object(text, &mut chunk)?;
        self.decode_chunk(chunk, text, out);
        Ok(None)
    }

    fn end_of_body(&mut self, out: &mut Vec<Delta>) {
        if self.ended_well {
            self.calls.close(out);
        }
        self.calls.break_off(out);
    }
}

#[cfg(test)]
mod tests;
