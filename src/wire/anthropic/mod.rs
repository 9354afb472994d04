//! Anthropic's Messages.
//!
//! Format: Anthropic's API reference, <https://docs.anthropic.com/en/api/messages-streaming>. A
//! message is a list of content blocks. Each has an index, a start, pieces and a stop, which seals a
//! call. The `type` of a payload decides; the event's name counts only without it. The token counts
//! of `message_delta` update those of `message_start`.

mod decode;
mod messages;
mod metadata;
mod payload;
mod request;
mod stream;
mod usage;

use serde_json::Value;

use super::dialect::{Dialect, KeyHeader, has_version};
use super::fast_path::{TemplateFields, TemplateMatch};
use super::lenient::read_object;
use super::request_cache::HistoryWriter;
use super::{Delta, Framing, ModelRequest};
use crate::types::FinishKind;

use payload::EventPayload;
use stream::BlockTracker;
use usage::UsageCounts;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AnthropicDialect {
    blocks: BlockTracker,
    counts: UsageCounts,
    /// The kind of the last finish reason.
    finish: Option<FinishKind>,
    /// The finish reason of `message_start`. It counts if no other comes.
    start_finish: Option<String>,
}

impl Dialect for AnthropicDialect {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader { name: "x-api-key", prefix: "" };
    const HISTORY_MEMBER: &'static str = "messages";
    const HEADERS: &'static [(&'static str, &'static str)] = &[("anthropic-version", "2023-06-01")];

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        if has_version(base) { format!("{base}/messages") } else { format!("{base}/v1/messages") }
    }

    fn request_head(request: &ModelRequest) -> Value {
        request::head(request)
    }

    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter) {
        messages::write(request, writer);
    }

    fn parse_payload<'p>(
        &mut self,
        event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut payload = EventPayload::default();
        read_object(text, &mut payload)?;
        let fields = payload.template_fields(event);
        self.decode_event(event, &mut payload, text, out);
        Ok(fields)
    }

    fn apply_match(&mut self, matched: &TemplateMatch<'_>, out: &mut Vec<Delta>) {
        self.decode_match(matched, out);
    }
}

#[cfg(test)]
mod tests;
