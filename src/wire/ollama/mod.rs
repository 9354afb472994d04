//! Ollama's chat.
//!
//! Format: Ollama's API reference, <https://docs.ollama.com/api/chat>. A stream has one JSON object
//! per line, and a plain body is one such object. Every call comes complete, with its arguments as
//! an object, so it is sealed at once. Several calls come on one line or on one line each. Their
//! `index` is not always sent and not always distinct (seen in recordings), so calls are numbered
//! in the order in which they come. An error within a stream is a line `{"error": ".."}`.

mod decode;
mod messages;
mod payload;
mod request;
mod usage;

use serde_json::Value;

use super::dialect::{Dialect, KeyHeader};
use super::fast_path::{TemplateFields, TemplateMatch};
use super::lenient::read_object;
use super::request_cache::HistoryWriter;
use super::{Delta, Framing, ModelRequest};

use payload::ChunkPayload;

/// The dialect. Its only state is the number of calls so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OllamaDialect {
    calls: u64,
}

impl Dialect for OllamaDialect {
    const STREAM_FRAMING: Framing = Framing::JsonLines;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;
    const HISTORY_MEMBER: &'static str = "messages";

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        if base.ends_with("/api") { format!("{base}/chat") } else { format!("{base}/api/chat") }
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
}

#[cfg(test)]
mod tests;
