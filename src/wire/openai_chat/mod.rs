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

use serde_json::Value;

use super::dialect::{Dialect, KeyHeader};
use super::fast_path::{TemplateFields, TemplateMatch};
use super::lenient::read_object;
use super::request_cache::HistoryWriter;
use super::{Delta, Framing, ModelRequest};

use metadata::MetadataCollector;
use payload::ChunkPayload;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiChatDialect {
    /// A `delta` held something, so a `message` only repeats it.
    has_deltas: bool,
    metadata: MetadataCollector,
}

impl Dialect for OpenaiChatDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY_MEMBER: &'static str = "messages";

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        format!("{base}/chat/completions")
    }

    fn request_head(request: &ModelRequest) -> Value {
        request::head(request)
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }

    fn parse_payload<'p>(
        &mut self,
        _event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut chunk = ChunkPayload::default();
        read_object(text, &mut chunk)?;
        let fields = chunk.template_fields();
        self.decode_chunk(chunk, text, out);
        Ok(fields)
    }

    fn apply_match(&mut self, matched: &TemplateMatch<'_>, out: &mut Vec<Delta>) {
        self.decode_match(matched, out);
    }

    fn done_marker(&mut self, out: &mut Vec<Delta>) {
        self.metadata.finish(out);
        out.push(Delta::Done);
    }

    fn end_of_body(&mut self, out: &mut Vec<Delta>) {
        self.metadata.finish(out);
    }
}

#[cfg(test)]
mod tests;
