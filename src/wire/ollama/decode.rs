//! Decoding: chunks to deltas.

use std::mem::take;

use super::OllamaDialect;
use super::payload::{CallPayload, ChunkPayload};
use super::usage::read_usage;
use crate::delta::append_text;
use crate::dialect::PayloadDecoder;
use crate::error::{payload_error, unkeyed_error};
use crate::fast_path::{ChangeKind, TemplateFields, TemplateMatch};
use crate::lenient::{argument_text, read_object};
use crate::{CallDelta, Delta};
use callsheet_values::types::{FinishKind, FinishReason};

impl PayloadDecoder for OllamaDialect {
    fn parse_payload<'p>(
        &mut self,
        _event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut chunk = ChunkPayload::default();
        read_object(text, &mut chunk)?;
        let fields = chunk.template_fields();
        let before = out.len();
        take(&mut chunk.message.thinking).push_deltas(Delta::Reasoning, out);
        take(&mut chunk.message.content).push_deltas(Delta::Text, out);
        for call in chunk.message.tool_calls.items_mut() {
            self.decode_call(take(&mut **call), out);
        }
        if let Some(raw) = take(&mut chunk.done_reason).into_text() {
            out.push(Delta::Finish(FinishReason::new(finish_kind(&raw), raw)));
        }
        out.extend(read_usage(chunk.prompt_eval_count, chunk.eval_count));
        if let Some(mut error) = chunk.error.and_then(|raw| payload_error(raw.get(), text)) {
            let status = chunk.status.as_number().and_then(|status| u16::try_from(status).ok());
            error.status = error.status.or(status.filter(|status| (400..600).contains(status)));
            out.push(Delta::Error(error));
        } else if chunk.is_done() {
            out.push(Delta::Done);
        } else if !chunk.has_message && out.len() == before {
            // The line gave nothing, so it may be an error without the key `error`.
            out.extend(unkeyed_error(text));
        }
        Ok(fields)
    }

    fn apply_match(&mut self, matched: &TemplateMatch<'_>, out: &mut Vec<Delta>) {
        match matched.nonempty_text() {
            Some(text) if matched.kind == ChangeKind::Reasoning => {
                append_text(Delta::Reasoning, text, out);
            }
            Some(text) => append_text(Delta::Text, text, out),
            None => {}
        }
    }
}

impl OllamaDialect {
    fn decode_call(&mut self, call: CallPayload<'_>, out: &mut Vec<Delta>) {
        let (name, arguments) = match call.function.0 {
            Some(function) => (function.name, function.arguments),
            None => (call.name, call.arguments),
        };
        let piece = CallDelta {
            index: Some(self.calls),
            id: call.id.into_text(),
            name: name.into_text(),
            arguments: arguments.and_then(|raw| argument_text(raw.get())),
            is_marked_start: true,
            ..CallDelta::default()
        };
        if piece.is_blank() {
            return;
        }
        out.push(Delta::Call(piece));
        out.push(Delta::Seal { index: self.calls, arguments: None });
        self.calls += 1;
    }
}

fn finish_kind(word: &str) -> FinishKind {
    match word.to_ascii_lowercase().as_str() {
        "stop" => FinishKind::Stop,
        "length" => FinishKind::Length,
        // Ollama itself sends `stop` for responses with calls too. Compatible services may not.
        "tool_calls" => FinishKind::ToolCalls,
        "content_filter" | "refusal" | "safety" => FinishKind::ContentFilter,
        "error" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}
