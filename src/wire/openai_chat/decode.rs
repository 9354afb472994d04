//! Decoding: chunks and plain bodies to deltas.
//!
//! A payload that equals an earlier one outside a few fields is not parsed: it comes to `apply_match`
//! (see `wire::fast_path`).

use std::borrow::Cow;
use std::mem::take;

use super::OpenaiChatDialect;
use super::payload::{CallPayload, ChoicePayload, ChunkPayload, MessagePayload};
use super::usage::read_usage;
use crate::delta::{append_call, append_text};
use crate::dialect::PayloadDecoder;
use crate::error::{keyed_error, payload_error, unkeyed_error};
use crate::fast_path::{ChangeKind, TemplateFields, TemplateMatch};
use crate::lenient::{Lenient, TextContent, read_object};
use crate::refusal::{filtered_categories, stop_details};
use crate::repair::parse_value;
use crate::{CallDelta, CallKind, Delta};
use callsheet_values::types::{
    FinishKind, FinishReason, ProviderError, ProviderErrorKind, ReasoningField, RefusalDetails,
};

/// The message of an error of which only a finish reason is known.
const UNREADABLE: &str = "the service could not read the output of its model";

impl PayloadDecoder for OpenaiChatDialect {
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
        let mut choice_usage = None;
        for choice in chunk.choices.items_mut() {
            if choice.index.as_number().unwrap_or(0) == 0 {
                choice_usage = choice.usage.or(choice_usage);
                self.decode_choice(choice, out);
            }
        }
        let is_blank = out.len() == before;
        let groq = chunk.x_groq.0.as_deref();
        let usage = [chunk.usage, choice_usage, groq.and_then(|groq| groq.usage)];
        out.extend(usage.into_iter().flatten().find_map(read_usage));
        if let Some(error) = chunk.error.and_then(|raw| payload_error(raw.get(), text)) {
            out.push(Delta::Error(error));
        } else if let Some(error) = groq.and_then(|groq| keyed_error(groq.error?.get())) {
            out.push(Delta::Error(error));
        } else if is_blank && !chunk.has_choices {
            // The chunk is not an answer, even if it has token counts. It may be an error without the
            // key `error`.
            out.extend(unkeyed_error(text));
        }
        Ok(fields)
    }

    fn apply_match(&mut self, matched: &TemplateMatch<'_>, out: &mut Vec<Delta>) {
        let text = matched.nonempty_text();
        if matched.kind == ChangeKind::Finish {
            return text.into_iter().for_each(|raw| self.push_finish(raw, out));
        }
        self.has_deltas |= text.is_some() || matched.kind == ChangeKind::Arguments;
        match (matched.kind, text) {
            (ChangeKind::Arguments, _) => {
                let some =
                    |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Into::into);
                let (index, id, name) = (matched.index, some(matched.id), some(matched.name));
                self.metadata.publish_before_call(out);
                let labels = (matched.id.filter(|id| !id.is_empty()), name.as_deref());
                let arguments = matched.text.as_deref();
                let arguments = arguments.map(|text| self.arguments.read(index, labels, text));
                let call = CallDelta { index, id, name, ..CallDelta::default() };
                append_call(call, arguments.as_deref(), out);
            }
            (ChangeKind::Text, Some(text)) => append_text(Delta::Text, text, out),
            (ChangeKind::Refusal, Some(text)) => append_text(Delta::Refusal, text, out),
            (ChangeKind::Reasoning, Some(text)) => {
                self.append_reasoning(ReasoningField::Reasoning, text, out);
            }
            (ChangeKind::ReasoningContent, Some(text)) => {
                self.append_reasoning(ReasoningField::ReasoningContent, text, out);
            }
            (ChangeKind::ReasoningText, Some(text)) => {
                self.append_reasoning(ReasoningField::ReasoningText, text, out);
            }
            // This wire has no summaries, and a piece of free-text input (`custom`) never makes a template. The
            // finish is handled above.
            (_, None) | (ChangeKind::Summary | ChangeKind::Input | ChangeKind::Finish, _) => {}
        }
    }

    fn done_marker(&mut self, out: &mut Vec<Delta>) {
        self.metadata.finish(out);
        out.push(Delta::Done);
    }

    fn end_of_body(&mut self, out: &mut Vec<Delta>) {
        self.metadata.finish(out);
    }
}

impl OpenaiChatDialect {
    fn append_reasoning(&mut self, field: ReasoningField, text: &str, out: &mut Vec<Delta>) {
        self.metadata.set_reasoning_field(field);
        append_text(Delta::Reasoning, text, out);
    }

    fn decode_choice(&mut self, choice: &mut ChoicePayload<'_>, out: &mut Vec<Delta>) {
        let before = out.len();
        self.decode_message(&mut choice.delta, false, out);
        self.has_deltas |= out.len() > before;
        if let Some(message) = choice.message.as_mut().filter(|_| !self.has_deltas) {
            self.decode_message(message, true, out);
        }
        let error = choice.error.and_then(|raw| keyed_error(raw.get()));
        if let Some(finish) = choice.native_error() {
            // It precedes an error of the chunk, which is less specific.
            let of_choice = error.map_or_else(|| UNREADABLE.to_owned(), |error| error.message);
            let message = format!("{}: {of_choice}", finish.raw);
            let kind = ProviderErrorKind::UnparsableOutput;
            self.metadata.finish(out);
            out.extend([Delta::Error(ProviderError::new(kind, message)), Delta::Finish(finish)]);
            return;
        }
        if let Some(raw) = take(&mut choice.finish_reason).into_text() {
            self.push_finish(&raw, out);
            if let Some(Delta::Finish(reason)) = out.last_mut()
                && reason.kind == FinishKind::ContentFilter
            {
                *reason = FinishReason::refused(&*raw, refusal(choice, &raw));
            }
        }
        out.extend(error.map(Delta::Error));
    }

    fn push_finish(&mut self, raw: &str, out: &mut Vec<Delta>) {
        self.metadata.finish(out);
        out.push(Delta::Finish(FinishReason::new(finish_kind(raw), raw)));
    }

    /// Decodes a `delta` or, if `is_complete`, a `message`.
    fn decode_message(
        &mut self,
        message: &mut MessagePayload<'_>,
        is_complete: bool,
        out: &mut Vec<Delta>,
    ) {
        for (field, reasoning) in [
            (ReasoningField::ReasoningContent, &mut message.reasoning_content),
            (ReasoningField::Reasoning, &mut message.reasoning),
            (ReasoningField::ReasoningText, &mut message.reasoning_text),
        ] {
            let before = out.len();
            take(reasoning).push_deltas(Delta::Reasoning, out);
            if out.len() > before {
                self.metadata.set_reasoning_field(field);
                // Services that send two of the fields send the same text in both.
                break;
            }
        }
        if let Some(details) = message.reasoning_details {
            self.metadata.add_details(details, is_complete);
            if let Some(text) = self.metadata.details_text(details, is_complete) {
                append_text(Delta::Reasoning, &text, out);
            }
        }
        if let Some(opaque) = message.reasoning_opaque {
            self.metadata.set_opaque(opaque);
        }
        let before = out.len();
        let has_parts = matches!(message.content, TextContent::List(_) | TextContent::Part(_));
        take(&mut message.content).push_deltas(Delta::Text, out);
        let added = out.get(before..).unwrap_or_default();
        if has_parts && added.iter().any(|delta| matches!(delta, Delta::Reasoning(_))) {
            self.metadata.set_reasoning_field(ReasoningField::Content);
        }
        take(&mut message.refusal).push_deltas(Delta::Refusal, out);
        if message.tool_calls.is_empty() {
            if let Some(function) = message.function_call.0.take() {
                // The deprecated `function_call`: a single call without index and id.
                let function = Lenient(Some(*function));
                self.decode_call(CallPayload { function, ..CallPayload::default() }, None, out);
            }
            return;
        }
        message.tool_calls.sort_by_index(|call| call.index.value());
        for (position, call) in (0..).zip(message.tool_calls.items_mut()) {
            // Every item of a complete message is a call of its own.
            self.decode_call(take(&mut **call), is_complete.then_some(position), out);
        }
    }

    /// Decodes a piece of a call. `default_index` is its index if it has none.
    fn decode_call(
        &mut self,
        call: CallPayload<'_>,
        default_index: Option<u64>,
        out: &mut Vec<Delta>,
    ) {
        // The members that go back with the call, such as thought signatures (see `metadata`).
        let members = call.members();
        let mut piece = CallDelta {
            index: call.index.value().or(default_index),
            id: call.id.into_text(),
            ..CallDelta::default()
        };
        if let Some(function) = call.function.0 {
            piece.name = function.name.into_text();
            piece.arguments = function.arguments.0.map(Cow::into_owned);
        } else if let Some(custom) = call.custom.0 {
            piece.kind = CallKind::Custom;
            piece.name = custom.name.into_text();
            piece.arguments = custom.input.into_text();
        } else {
            piece.name = call.name.into_text();
            piece.arguments = call.arguments.0.map(Cow::into_owned);
        }
        let (index, has_name) = (piece.index, piece.name.is_some());
        if default_index.is_none()
            && let Some(arguments) = piece.arguments.as_deref()
        {
            let labels = (piece.id.as_deref(), piece.name.as_deref());
            let added = self.arguments.read(index, labels, arguments);
            if added.len() != arguments.len() {
                piece.arguments = Some(added.into_owned());
            }
        }
        self.metadata.publish_before_call(out);
        out.push(Delta::Call(piece));
        if !members.is_empty() {
            self.metadata.add_call_members(index, has_name, members, out);
        }
    }
}

/// Returns the details of a refused choice.
fn refusal(choice: &mut ChoicePayload<'_>, finish: &str) -> RefusalDetails {
    let details = choice.stop_details.map(stop_details).unwrap_or_default();
    let results = choice.filter_results.and_then(|raw| parse_value(raw.get()));
    let filtered = results.as_ref().and_then(filtered_categories);
    // Gemini's endpoint and gateways name the word of the service behind them.
    let native = take(&mut choice.native_finish_reason).into_text();
    let native = native.filter(|word| !word.eq_ignore_ascii_case(finish));
    let own = finish.split_once(':').map(|(_, word)| word.trim().to_owned());
    let category = details.category.or(filtered).or(own).or(native);
    RefusalDetails::new(category, details.explanation)
}

/// Returns the meaning of a finish reason: the words of services of this family, and words of
/// other APIs that gateways pass on unchanged.
///
/// Gemini's endpoint adds the word of its own API: `content_filter: PROHIBITED_CONTENT`,
/// `function_call_filter: MALFORMED_FUNCTION_CALL`.
pub(super) fn finish_kind(reason: &str) -> FinishKind {
    let word = reason.split_once(':').map_or(reason, |(word, _)| word).trim_end();
    match word.to_ascii_lowercase().replace('-', "_").as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "complete" | "completed" => {
            FinishKind::Stop
        }
        "tool_calls" | "function_call" | "tool_use" | "tool_call" => FinishKind::ToolCalls,
        "length"
        | "max_tokens"
        | "model_length"
        | "max_output_tokens"
        | "max_completion_tokens"
        | "model_context_window_exceeded" => FinishKind::Length,
        "content_filter"
        | "content_filtered"
        | "sensitive"
        | "refusal"
        | "safety"
        | "recitation"
        | "language"
        | "prohibited_content"
        | "blocklist"
        | "spii"
        | "model_armor"
        | "guardrail_intervened"
        | "image_safety"
        | "image_prohibited_content"
        | "image_recitation"
        | "error_toxic" => FinishKind::ContentFilter,
        "pause_turn" => FinishKind::Pause,
        "error"
        | "network_error"
        | "insufficient_system_resource"
        | "aborted"
        | "abort"
        | "function_call_filter"
        | "malformed_function_call"
        | "unexpected_tool_call"
        | "too_many_tool_calls"
        | "malformed_response"
        | "malformed_model_output"
        | "malformed_tool_use"
        | "missing_thought_signature" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}
