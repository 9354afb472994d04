//! Decoding: events and plain bodies to deltas. [`super::decode_items`] decodes complete items.

use std::mem::take;

use serde_json::Value;
use serde_json::value::RawValue;

use super::OpenaiResponsesDialect;
use super::payload::{EventPayload, ResponsePayload};
use super::stream::{ItemKind, ItemRef, TextKind};
use crate::delta::{append_call, append_text};
use crate::dialect::PayloadDecoder;
use crate::error::{find_error, keyed_error, malformed, parse_error_event, provider_error};
use crate::fast_path::{ChangeKind, TemplateFields, TemplateMatch};
use crate::lenient::{TextContent, read_object};
use crate::openai_chat::usage::read_usage;
use crate::refusal::filtered_categories;
use crate::repair::parse_value;
use crate::{CallDelta, CallKind, Delta};
use callsheet_values::types::{FinishKind, FinishReason, ProviderError, RefusalDetails};

/// The text or the call to which a piece of text belongs.
enum PieceTarget {
    Text(TextKind),
    Call(CallDelta),
}

impl PieceTarget {
    fn into_delta(self, text: Option<String>) -> Delta {
        match self {
            Self::Text(kind) => kind.delta(text.unwrap_or_default()),
            Self::Call(call) => Delta::Call(CallDelta { arguments: text, ..call }),
        }
    }
}

impl PayloadDecoder for OpenaiResponsesDialect {
    fn parse_payload<'p>(
        &mut self,
        event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut payload = EventPayload::default();
        read_object(text, &mut payload)?;
        let Some(kind) = piece_kind(payload.kind_or(event)) else {
            self.decode_other_event(event, &mut payload, text, out);
            return Ok(None);
        };
        let fields = payload.template_fields(kind);
        let part_index = payload.part_index.value();
        let text = piece_text(take(&mut payload.delta));
        let target = self.piece_target(kind, payload.item_ref(), part_index, text.as_deref());
        out.extend(target.map(|target| target.into_delta(text)));
        Ok(fields)
    }

    fn apply_match(&mut self, matched: &TemplateMatch<'_>, out: &mut Vec<Delta>) {
        let item = ItemRef { index: matched.index, id: matched.id, ..ItemRef::default() };
        let text = matched.nonempty_text();
        match self.piece_target(matched.kind, item, matched.part_index, text) {
            Some(PieceTarget::Text(kind)) => {
                append_text(|text| kind.delta(text), text.unwrap_or_default(), out);
            }
            Some(PieceTarget::Call(call)) => append_call(call, text, out),
            None => {}
        }
    }
}

impl OpenaiResponsesDialect {
    fn decode_other_event(
        &mut self,
        name: &str,
        event: &mut EventPayload<'_>,
        text: &str,
        out: &mut Vec<Delta>,
    ) {
        match event.kind_or(name) {
            "response.output_text.done" => self.complete_text(TextKind::Text, event, out),
            "response.refusal.done" => self.complete_text(TextKind::Refusal, event, out),
            "response.reasoning_text.done" => self.complete_text(TextKind::Reasoning, event, out),
            "response.reasoning_summary_text.done" => {
                self.complete_text(TextKind::Summary, event, out);
            }
            "response.function_call_arguments.done" => {
                let arguments = event.arguments.0.as_deref().map(str::to_owned);
                self.seal_call(ItemKind::Function, event, arguments, out);
            }
            "response.custom_tool_call_input.done" => {
                let input = event.input.as_text().map(str::to_owned);
                self.seal_call(ItemKind::Custom, event, input, out);
            }
            "response.output_item.added" => self.decode_item(event, false, out),
            "response.output_item.done" => self.decode_item(event, true, out),
            kind @ ("response.completed"
            | "response.done"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled") => {
                let status = match kind {
                    "response.done" => "completed",
                    _ => kind.trim_start_matches("response."),
                };
                // Some services leave out the object `response` around the members.
                self.decode_response(status, event.response.map_or(text, RawValue::get), out);
            }
            "error" | "response.error" => out.push(Delta::Error(error_event(text))),
            "" if event.output.is_some() || event.object.as_text() == Some("response") => {
                self.decode_response("", text, out);
            }
            kind if !kind.starts_with("response.") => {
                // Some gateways send errors with a type of their own or without a type.
                let is_error = kind.is_empty() || kind.ends_with("_error") || event.error.is_some();
                let value = parse_value(text).filter(|_| is_error);
                if value.as_ref().is_some_and(|value| find_error(value).is_some()) {
                    out.push(Delta::Error(error_event(text)));
                }
            }
            _ => {}
        }
    }

    /// Returns the text or the call to which a piece belongs. Returns `None` if the piece belongs to a
    /// text and is empty or repeats reasoning.
    fn piece_target(
        &mut self,
        kind: ChangeKind,
        item: ItemRef<'_>,
        part_index: Option<u64>,
        text: Option<&str>,
    ) -> Option<PieceTarget> {
        let text_kind = match kind {
            ChangeKind::Arguments => return self.argument_target(ItemKind::Function, item),
            ChangeKind::Input => return self.argument_target(ItemKind::Custom, item),
            ChangeKind::Text => TextKind::Text,
            ChangeKind::Refusal => TextKind::Refusal,
            ChangeKind::Summary => TextKind::Summary,
            ChangeKind::Reasoning | ChangeKind::ReasoningContent | ChangeKind::ReasoningText => {
                TextKind::Reasoning
            }
            // This wire has no such pieces.
            ChangeKind::Finish => return None,
        };
        self.text_target(text_kind, item, part_index, text)
    }

    fn text_target(
        &mut self,
        kind: TextKind,
        item: ItemRef<'_>,
        part_index: Option<u64>,
        text: Option<&str>,
    ) -> Option<PieceTarget> {
        let position = self.find_or_add(kind.item_kind(), item);
        let item = self.items.get_mut(position)?;
        // Some services send reasoning both as text and as a summary. The first kind counts.
        let is_repeated = item.last_text.is_some_and(|(last, _)| repeats_reasoning(last, kind));
        let text = text.filter(|_| !is_repeated)?;
        item.piece_bytes += text.len();
        item.last_text = Some((kind, part_index));
        item.has_text |= kind == TextKind::Text;
        Some(PieceTarget::Text(kind))
    }

    fn argument_target(&mut self, kind: ItemKind, item: ItemRef<'_>) -> Option<PieceTarget> {
        let position = self.find_or_add(kind, item);
        let item = self.items.get_mut(position)?;
        let is_marked_start = !item.is_named && !item.has_arguments;
        item.has_arguments = true;
        let (index, kind) = (Some(item.index), kind.call_kind());
        Some(PieceTarget::Call(CallDelta { index, kind, is_marked_start, ..CallDelta::default() }))
    }

    /// Decodes a complete part of an item's text. It counts if it did not come in pieces.
    fn complete_text(
        &mut self,
        kind: TextKind,
        event: &mut EventPayload<'_>,
        out: &mut Vec<Delta>,
    ) {
        let position = self.find_or_add(kind.item_kind(), event.item_ref());
        let Some(item) = self.items.get_mut(position) else { return };
        let part_index = event.part_index.value();
        let text = if kind == TextKind::Refusal { &mut event.refusal } else { &mut event.text };
        let text = take(text);
        // Some services number the parts differently in pieces and in complete texts, so the length
        // of the pieces is compared too.
        let piece_bytes = take(&mut item.piece_bytes);
        let repeats = matches!(&text, TextContent::Text(text) if text.len() == piece_bytes);
        let is_next =
            |last: Option<u64>| last.zip(part_index).is_some_and(|(last, part)| last < part);
        if item.last_text.is_none_or(|(_, last)| is_next(last) && !repeats) {
            let text = piece_text(text);
            let target = self.text_target(kind, event.item_ref(), part_index, text.as_deref());
            out.extend(target.map(|target| target.into_delta(text)));
            if let Some(item) = self.items.get_mut(position) {
                item.piece_bytes = 0;
            }
        }
    }

    /// Decodes the complete arguments of a call.
    fn seal_call(
        &mut self,
        kind: ItemKind,
        event: &EventPayload<'_>,
        arguments: Option<String>,
        out: &mut Vec<Delta>,
    ) {
        let position = self.find_or_add(kind, event.item_ref());
        let Some(item) = self.items.get_mut(position) else { return };
        let name = event.name.as_text().filter(|name| !name.is_empty());
        if let Some(name) = name.filter(|_| !item.is_named) {
            item.is_named = true;
            out.push(Delta::Call(CallDelta {
                index: Some(item.index),
                name: Some(name.to_owned()),
                kind: kind.call_kind(),
                is_marked_start: !item.has_arguments,
                ..CallDelta::default()
            }));
        }
        // An empty text does not mean empty arguments: the complete item, which follows, may have some. A call
        // without a name is not sealed yet either.
        let Some(arguments) = arguments.filter(|text| !text.is_empty()) else { return };
        if item.is_named {
            item.is_sealed = true;
            out.push(Delta::Seal { index: item.index, arguments: Some(arguments) });
        } else if !item.has_arguments {
            item.has_arguments = true;
            out.push(Delta::Call(CallDelta {
                index: Some(item.index),
                arguments: Some(arguments),
                kind: kind.call_kind(),
                is_marked_start: true,
                ..CallDelta::default()
            }));
        }
    }

    /// Returns the position of the item to which an event refers. Adds an item if none is known.
    fn find_or_add(&mut self, kind: ItemKind, item: ItemRef<'_>) -> usize {
        self.items.find(kind, item).unwrap_or_else(|| self.items.add(kind, item))
    }

    /// Decodes a complete response. `event_status` is the status that the event's type implies, or
    /// empty for a plain body.
    fn decode_response(&mut self, event_status: &str, text: &str, out: &mut Vec<Delta>) {
        let mut response = ResponsePayload::default();
        if let Err(error) = read_object(text, &mut response) {
            return out.push(malformed(text, &error));
        }
        self.decode_output(response.output.map_or("", RawValue::get), out);
        let error = response.error.and_then(|raw| keyed_error(raw.get()));
        let own_status = response.status.as_text().unwrap_or_default();
        let status = match (own_status, event_status) {
            ("completed" | "incomplete" | "failed" | "cancelled", _) => own_status,
            // The event's type overrides a status that is not final.
            (_, "completed" | "incomplete" | "failed" | "cancelled") => event_status,
            ("", _) if error.is_some() => "failed",
            ("", _) => "completed",
            _ => own_status,
        };
        let has_calls = self.items.all().iter().any(|item| item.kind.is_call());
        let details = response.incomplete_details.and_then(|raw| parse_value(raw.get()));
        let reason = details.as_ref().and_then(|details| details.get("reason"));
        let is_filtered = reason.is_some_and(|reason| reason == "content_filter");
        let usage = response.usage.and_then(read_usage);
        let is_at_limit = status == "completed" && self.is_at_limit(usage.as_ref());
        let kind = match is_at_limit {
            true => FinishKind::Length,
            false => finish_kind(status, is_filtered, has_calls),
        };
        out.extend(error.map(Delta::Error));
        out.push(Delta::Finish(match kind {
            FinishKind::ContentFilter => {
                let filters = response.content_filters.and_then(|raw| parse_value(raw.get()));
                let category = filters.as_ref().and_then(blocked_filters);
                FinishReason::refused(status, RefusalDetails::new(category, None))
            }
            FinishKind::Stop
            | FinishKind::ToolCalls
            | FinishKind::Length
            | FinishKind::Pause
            | FinishKind::Error
            | FinishKind::Other => FinishReason::new(kind, status),
        }));
        out.extend(usage);
        out.push(Delta::Done);
    }
}

impl OpenaiResponsesDialect {
    /// Returns whether a response has as many output tokens as the request allowed. llama.cpp says `completed` then.
    fn is_at_limit(&self, usage: Option<&Delta>) -> bool {
        let Some(Delta::Usage { usage, .. }) = usage else { return false };
        self.output_tokens_max.is_some_and(|maximum| usage.output_tokens >= maximum)
    }
}

/// Returns the categories for which one of Azure's filters has blocked the content.
fn blocked_filters(filters: &Value) -> Option<String> {
    let is_blocked = |filter: &&Value| filter.get("blocked") == Some(&Value::Bool(true));
    let mut blocked = filters.as_array()?.iter().filter(is_blocked);
    blocked.find_map(|filter| filtered_categories(filter.get("content_filter_results")?))
}

/// Returns the kind of the pieces that events of this type hold.
fn piece_kind(event_type: &str) -> Option<ChangeKind> {
    match event_type {
        "response.output_text.delta" | "response.text.delta" => Some(ChangeKind::Text),
        "response.refusal.delta" => Some(ChangeKind::Refusal),
        "response.reasoning_text.delta"
        | "response.reasoning_content.delta"
        | "response.reasoning.delta" => Some(ChangeKind::Reasoning),
        "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta" => {
            Some(ChangeKind::Summary)
        }
        "response.function_call_arguments.delta" => Some(ChangeKind::Arguments),
        "response.custom_tool_call_input.delta" => Some(ChangeKind::Input),
        _ => None,
    }
}

impl TextKind {
    fn item_kind(self) -> ItemKind {
        match self {
            Self::Text | Self::Refusal => ItemKind::Message,
            Self::Reasoning | Self::Summary => ItemKind::Reasoning,
        }
    }

    fn delta(self, text: String) -> Delta {
        match self {
            Self::Text => Delta::Text(text),
            Self::Refusal => Delta::Refusal(text),
            Self::Reasoning | Self::Summary => Delta::Reasoning(text),
        }
    }
}

impl ItemKind {
    pub(super) fn call_kind(self) -> CallKind {
        if self == Self::Custom { CallKind::Custom } else { CallKind::Function }
    }
}

/// Returns whether a text repeats reasoning that came before as the other kind.
fn repeats_reasoning(last: TextKind, kind: TextKind) -> bool {
    last != kind && kind.item_kind() == ItemKind::Reasoning
}

/// Returns the text of a piece. In an older form of the API it is a member of an object.
fn piece_text(delta: TextContent<'_>) -> Option<String> {
    match delta {
        TextContent::Text(text) => Some(text.into_owned()).filter(|text| !text.is_empty()),
        TextContent::Part(part) => piece_text(part.text),
        TextContent::Absent | TextContent::List(_) => None,
    }
}

fn finish_kind(status: &str, is_filtered: bool, has_calls: bool) -> FinishKind {
    match status {
        "completed" if has_calls => FinishKind::ToolCalls,
        "completed" => FinishKind::Stop,
        "incomplete" if is_filtered => FinishKind::ContentFilter,
        "incomplete" => FinishKind::Length,
        // A response that is queued or in progress runs in the background and would have to be polled.
        "failed" | "cancelled" | "queued" | "in_progress" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}

/// Returns the error of an error event: its member `error`, or the event itself.
fn error_event(text: &str) -> ProviderError {
    let Some(value) = parse_value(text) else { return parse_error_event(text) };
    let mut error = provider_error(find_error(&value).unwrap_or(&value));
    let outer = provider_error(&value);
    // Gateways put the HTTP status that they received beside the error.
    if value.get("status").is_some() || value.get("status_code").is_some() {
        error.status = outer.status.or(error.status);
    }
    error
}
