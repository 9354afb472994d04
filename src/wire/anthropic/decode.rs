//! Decoding: events and plain bodies to deltas.

use std::mem::take;

use serde_json::value::RawValue;

use super::AnthropicDialect;
use super::payload::EventPayload;
use super::usage::UsageCounts;
use crate::Delta;
use crate::delta::{append_call, append_text};
use crate::dialect::PayloadDecoder;
use crate::error::{parse_error_event, payload_error, unkeyed_error};
use crate::fast_path::{ChangeKind, TemplateFields, TemplateMatch};
use crate::lenient::{ReadMembers, read_object};
use crate::refusal::stop_details;
use crate::repair::parse_value;
use callsheet_values::types::{FinishKind, FinishReason};

/// Maximum number of blocks that are read of a message's `content`. The rest is ignored.
const BLOCKS_MAX: usize = 4096;

impl PayloadDecoder for AnthropicDialect {
    fn parse_payload<'p>(
        &mut self,
        event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut payload = EventPayload::default();
        read_object(text, &mut payload)?;
        let fields = payload.template_fields(event);
        let index = payload.index.value();
        match payload.kind_or(event) {
            "content_block_delta" => self.blocks.push(index, &payload.delta, text, out),
            "content_block_start" => {
                self.blocks.begin(index, payload.content_block.map_or("{}", RawValue::get), out);
            }
            "content_block_stop" => self.blocks.stop(index, out),
            "message_start" => self.message_start(&payload, out),
            "message_delta" => self.message_delta(&mut payload, out),
            "message_stop" => self.message_stop(&payload, out),
            "message" => self.message(&mut payload, out),
            "error" => {
                out.push(Delta::Error(parse_error_event(text)));
                return Ok(None);
            }
            "" if payload.content.is_some() => self.message(&mut payload, out),
            "" if payload.error.is_none() => {
                // Neither a type, nor content, nor an error: it may be an error without the key `error`.
                out.extend(unkeyed_error(text));
            }
            // Pings and unknown events are ignored.
            _ => {}
        }
        let error = payload.error.and_then(|raw| payload_error(raw.get(), text));
        out.extend(error.map(Delta::Error));
        Ok(fields)
    }

    fn apply_match(&mut self, matched: &TemplateMatch<'_>, out: &mut Vec<Delta>) {
        match (matched.kind, matched.nonempty_text()) {
            (ChangeKind::Arguments, _) => {
                let text = matched.text.as_deref();
                let call = text.and_then(|text| self.blocks.push_input(matched.index, text));
                if let Some(call) = call {
                    append_call(call, text, out);
                }
            }
            (ChangeKind::Reasoning, Some(text)) => {
                self.blocks.mark_thinking(matched.index);
                append_text(Delta::Reasoning, text, out);
            }
            (_, Some(text)) => append_text(Delta::Text, text, out),
            (_, None) => {}
        }
    }

    /// Closes the open blocks, because some relays leave out `message_stop`.
    fn end_of_body(&mut self, out: &mut Vec<Delta>) {
        self.close(out);
    }
}

impl AnthropicDialect {
    /// Begins a message. If another one is open, a relay has joined two answers.
    fn message_start(&mut self, event: &EventPayload<'_>, out: &mut Vec<Delta>) {
        self.blocks.break_off(out);
        self.counts = UsageCounts::default();
        self.finish = None;
        let Some(raw) = event.message.map(RawValue::get) else { return };
        let mut repaired = None;
        let (_, mut message) = read_or_repair::<EventPayload<'_>>(raw, &mut repaired);
        self.read_blocks(message.content, out);
        out.extend(self.counts.merge(message.usage));
        self.initial_finish_reason = take(&mut message.stop_reason).into_text();
    }

    fn message_delta(&mut self, event: &mut EventPayload<'_>, out: &mut Vec<Delta>) {
        let outer = take(&mut event.stop_reason).into_text();
        let details = event.delta.stop_details.or(event.stop_details);
        self.finish(take(&mut event.delta.stop_reason).into_text().or(outer), details, out);
        out.extend(self.counts.merge(event.usage));
    }

    fn message_stop(&mut self, event: &EventPayload<'_>, out: &mut Vec<Delta>) {
        if self.finish.is_none() {
            let word = self.initial_finish_reason.take();
            self.finish(word, event.stop_details, out);
        }
        self.close(out);
        out.extend(self.counts.merge(event.usage));
        out.push(Delta::Done);
    }

    /// Closes the open blocks at the end of the message. Some relays leave out `content_block_stop`, so after a
    /// good finish reason the blocks count as complete. Otherwise they are broken off.
    fn close(&mut self, out: &mut Vec<Delta>) {
        match self.finish {
            Some(
                FinishKind::Stop | FinishKind::ToolCalls | FinishKind::Pause | FinishKind::Other,
            ) => self.blocks.stop_all(out),
            Some(FinishKind::Length | FinishKind::ContentFilter | FinishKind::Error) | None => {
                self.blocks.break_off(out);
            }
        }
    }

    /// Decodes a complete message.
    fn message(&mut self, message: &mut EventPayload<'_>, out: &mut Vec<Delta>) {
        self.read_blocks(message.content, out);
        self.finish(take(&mut message.stop_reason).into_text(), message.stop_details, out);
        out.extend(self.counts.merge(message.usage));
    }

    fn read_blocks(&mut self, content: Option<&RawValue>, out: &mut Vec<Delta>) {
        let Some(content) = content.map(RawValue::get) else { return };
        if content.starts_with('"') {
            // It may contain a lone surrogate.
            let text = parse_value(content).and_then(|value| value.as_str().map(str::to_owned));
            out.extend(text.filter(|text| !text.is_empty()).map(Delta::Text));
            return;
        }
        let blocks = serde_json::from_str::<Vec<&RawValue>>(content).unwrap_or_default();
        for (index, block) in (0..).zip(blocks.iter().take(BLOCKS_MAX)) {
            self.blocks.begin(Some(index), block.get(), out);
            self.blocks.stop(Some(index), out);
        }
    }

    fn finish(&mut self, word: Option<String>, details: Option<&RawValue>, out: &mut Vec<Delta>) {
        let Some(raw) = word else { return };
        let kind = finish_kind(&raw);
        self.finish = Some(kind);
        out.push(Delta::Finish(match kind {
            FinishKind::ContentFilter => {
                FinishReason::refused(raw, details.map(stop_details).unwrap_or_default())
            }
            FinishKind::Stop
            | FinishKind::ToolCalls
            | FinishKind::Length
            | FinishKind::Pause
            | FinishKind::Error
            | FinishKind::Other => FinishReason::new(kind, raw),
        }));
    }
}

/// Reads an object that was kept as raw JSON, and returns it with its JSON. Raw JSON may contain a lone
/// surrogate, which makes the reading fail. Then `repaired` receives the JSON with U+FFFD instead of the
/// surrogate. Members that still cannot be read keep their defaults.
pub(super) fn read_or_repair<'a, T: ReadMembers<'a> + Default>(
    raw: &'a str,
    repaired: &'a mut Option<String>,
) -> (&'a str, T) {
    let mut object = T::default();
    if read_object(raw, &mut object).is_ok() {
        return (raw, object);
    }
    let text = parse_value(raw).map(|value| value.to_string()).unwrap_or_default();
    let raw = repaired.insert(text).as_str();
    object = T::default();
    let _ = read_object(raw, &mut object);
    (raw, object)
}

fn finish_kind(word: &str) -> FinishKind {
    match word {
        "end_turn" | "stop_sequence" => FinishKind::Stop,
        "tool_use" => FinishKind::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishKind::Length,
        "refusal"
        | "sensitive"
        | "content_filter"
        | "content_filtered"
        | "guardrail_intervened" => FinishKind::ContentFilter,
        "pause_turn" => FinishKind::Pause,
        // Bedrock's words for calls that it cannot read.
        "error" | "malformed_model_output" | "malformed_tool_use" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}
