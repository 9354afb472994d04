//! Decoding: chunks and plain bodies to deltas.

use std::mem::take;

use serde_json::Value;

use super::GeminiDialect;
use super::payload::{CandidatePayload, ChunkPayload, PartPayload};
use super::usage::read_usage;
use crate::dialect::PayloadDecoder;
use crate::error::{payload_error, unkeyed_error};
use crate::fast_path::TemplateFields;
use crate::lenient::read_object;
use crate::refusal::blocked_categories;
use crate::repair::parse_value;
use crate::{Delta, ProviderMetadata};
use callsheet_values::types::{
    FinishKind, FinishReason, ProviderError, ProviderErrorKind, RefusalDetails, one_line,
};

/// Maximum length of the message of a finish reason in an error, in characters.
const MESSAGE_CHARS: usize = 500;

impl PayloadDecoder for GeminiDialect {
    // Returns no fields for the fast path: a chunk mostly has token counts too, so it is not a single
    // change.
    fn parse_payload<'p>(
        &mut self,
        _event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>> {
        let mut chunk = ChunkPayload::default();
        read_object(text, &mut chunk)?;
        let before = out.len();
        let has_candidates = !chunk.candidates.is_empty();
        for (position, candidate) in (0..).zip(chunk.candidates.items_mut()) {
            if candidate.index.as_number().unwrap_or(position) == 0 {
                self.decode_candidate(candidate, out);
            }
        }
        let feedback = chunk.feedback.and_then(|raw| parse_value(raw.get()));
        let blocked = feedback.as_ref().and_then(blocked_prompt);
        if let Some(reason) = blocked.filter(|_| !has_candidates && !self.finished) {
            // The prompt was refused, so there is no candidate with a finish reason.
            out.push(Delta::Finish(reason));
        }
        if let Some(raw) = chunk.usage.filter(|raw| raw.get() != self.last_usage) {
            raw.get().clone_into(&mut self.last_usage);
            out.extend(read_usage(raw, &mut self.counts));
        }
        if let Some(error) = chunk.error.and_then(|raw| payload_error(raw.get(), text)) {
            out.push(Delta::Error(error));
        } else if !has_candidates && out.len() == before {
            // The chunk gave nothing, so it may be an error without the key `error`.
            out.extend(unkeyed_error(text));
        }
        Ok(None)
    }

    /// Closes a call that is open: complete after a good finish reason, otherwise broken off.
    fn end_of_body(&mut self, out: &mut Vec<Delta>) {
        if self.ended_well {
            self.calls.close(out);
        }
        self.calls.break_off(out);
    }
}

impl GeminiDialect {
    fn decode_candidate(&mut self, candidate: &mut CandidatePayload<'_>, out: &mut Vec<Delta>) {
        for part in candidate.content.parts.items_mut() {
            self.decode_part(take(part), out);
        }
        if let Some(raw) = take(&mut candidate.finish_reason).into_text() {
            self.finished = true;
            self.ended_well = raw.eq_ignore_ascii_case("STOP");
            let kind = self.finish_kind(&raw);
            let message = take(&mut candidate.finish_message).into_text();
            let finish = match kind {
                FinishKind::ContentFilter => {
                    let ratings = candidate.safety_ratings.and_then(|raw| parse_value(raw.get()));
                    let category = ratings.as_ref().and_then(blocked_categories);
                    let category = category.or_else(|| Some(raw.clone()));
                    FinishReason::refused(raw, RefusalDetails::new(category, message.clone()))
                }
                FinishKind::Stop
                | FinishKind::ToolCalls
                | FinishKind::Length
                | FinishKind::Pause
                | FinishKind::Error
                | FinishKind::Other => FinishReason::new(kind, raw),
            };
            // The message quotes the call, which tells two such responses apart.
            if let Some(message) = message.filter(|_| finish.is_unparsable_output()) {
                let message = format!("{}: {}", finish.raw, one_line(&message, MESSAGE_CHARS));
                let kind = ProviderErrorKind::UnparsableOutput;
                out.push(Delta::Error(ProviderError::new(kind, message)));
            }
            out.push(Delta::Finish(finish));
        }
    }

    fn decode_part(&mut self, part: PartPayload<'_>, out: &mut Vec<Delta>) {
        let PartPayload { text, thought, signature, call, mut other_members } = part;
        let thought = thought.0.as_deref() == Some("true");
        let signature = signature.into_text();
        let signed = signature.map(|text| Value::from(text).to_string());
        let members =
            signed.as_ref().map(|text| format!(r#"{{"thoughtSignature":{text}}}"#).into());
        let text = text.into_text();
        if let Some(call) = call {
            self.calls.push(*call, members, out);
        } else if let (None, false) = (&text, other_members.is_empty()) {
            // A part of an unknown kind goes back as it came.
            if thought {
                other_members.push_str(r#","thought":true"#);
            }
            if let Some(signed) = signed {
                other_members.push_str(r#","thoughtSignature":"#);
                other_members.push_str(&signed);
            }
            other_members.push('}');
            out.push(Delta::Metadata(ProviderMetadata::RawPart(other_members.into())));
        } else {
            // A signature belongs to its own part, which may be empty, and not to the text before.
            let metadata = |members| match thought {
                true => Delta::Metadata(ProviderMetadata::Reasoning { members }),
                false => Delta::Metadata(ProviderMetadata::Text { members }),
            };
            out.extend(members.is_some().then(|| metadata(None)));
            out.extend(text.map(if thought { Delta::Reasoning } else { Delta::Text }));
            out.extend(members.map(|members| metadata(Some(members))));
        }
    }

    fn finish_kind(&self, word: &str) -> FinishKind {
        match word.to_ascii_uppercase().as_str() {
            "STOP" if !self.calls.is_empty() => FinishKind::ToolCalls,
            "STOP" => FinishKind::Stop,
            "MAX_TOKENS" => FinishKind::Length,
            "SAFETY"
            | "RECITATION"
            | "LANGUAGE"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION"
            | "MODEL_ARMOR" => FinishKind::ContentFilter,
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MALFORMED_RESPONSE"
            | "MISSING_THOUGHT_SIGNATURE"
            | "ERROR" => FinishKind::Error,
            _ => FinishKind::Other,
        }
    }
}

/// Returns the finish reason if the service refused the prompt. The message may come without the reason.
fn blocked_prompt(feedback: &Value) -> Option<FinishReason> {
    let text = |keys: [&str; 2]| {
        let mut texts = keys.iter().filter_map(|key| feedback.get(*key)?.as_str());
        let is_given = |text: &&str| {
            !text.is_empty() && !text.eq_ignore_ascii_case("BLOCK_REASON_UNSPECIFIED")
        };
        texts.find(is_given).map(str::to_owned)
    };
    let reason = text(["blockReason", "block_reason"]);
    let message = text(["blockReasonMessage", "block_reason_message"]);
    if reason.is_none() && message.is_none() {
        return None;
    }
    let ratings = feedback.get("safetyRatings").or_else(|| feedback.get("safety_ratings"));
    let category = ratings.and_then(blocked_categories).or(reason);
    let refusal = RefusalDetails::new(category, message);
    Some(FinishReason::refused("", refusal))
}
