//! Responses, and the dialects of services that follow them: payloads to deltas.
//!
//! Format: <https://platform.openai.com/docs/api-reference/responses-streaming>. The payload's
//! `type` decides, whatever the event is named. A response is a list of items, and nearly all is
//! said several times: in pieces, as a whole, with its item, and with the response; what was said
//! once is passed over. Plain bodies are the response that the last event holds.
//!
//! Reasoning and what the service did itself are kept as whole items: the service wants them back
//! unchanged, each before the item that it led to.

mod items;
mod payload;
mod request;
mod whole;

use serde_json::Value;
use serde_json::value::RawValue;

use super::dialect::{Dialect, KeyHeader};
use super::error::{error_of, provider_error};
use super::fields::fill;
use super::loose::Scalar;
use super::openai_chat::mend::{Mended, mend, value_of};
use super::openai_chat::usage::usage_of;
use super::{CallKind, CallPiece, Delta, Framing, ModelRequest, Problem};
use crate::types::{FinishKind, FinishReason, ProviderError, ProviderErrorKind, excerpt};

use items::{Items, Kind, Named, Voice};
use payload::{Body, Event};

/// The dialect; it remembers what has been said of each item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiResponses {
    items: Items,
    /// Reasoning was kept, so what it led to has to go back as its item.
    has_reasoning: bool,
    /// Reasoning was lost, so nothing may go back as an item that it led to.
    lost_reasoning: bool,
}

impl Dialect for OpenaiResponses {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        format!("{base}/responses")
    }

    fn request_body(request: &ModelRequest) -> Vec<u8> {
        request::request_body(request)
    }

    fn payload(&mut self, event: &str, text: &str, out: &mut Vec<Delta>) {
        let mut text = text.trim();
        // Some proxies put the field's name before what has it already.
        while let Some(rest) = text.strip_prefix("data:") {
            text = rest.trim_start();
        }
        match text.as_bytes().first() {
            _ if text == "[DONE]" => out.push(Delta::Done),
            Some(b'{') => self.object(event, text, out),
            Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
                Ok(items) => {
                    for item in items.iter().filter(|item| item.get().starts_with('{')) {
                        self.object(event, item.get(), out);
                    }
                }
                Err(error) => out.push(malformed(text, &error)),
            },
            _ if event == "error" => out.push(Delta::Error(plain_error(text))),
            None => {}
            Some(_) => {
                out.push(Delta::Problem(Problem { code: "not_json", detail: excerpt(text, 200) }))
            }
        }
    }
}

impl OpenaiResponses {
    fn object(&mut self, name: &str, text: &str, out: &mut Vec<Delta>) {
        let mut event = Event::default();
        let Err(error) = fill(text, &mut event) else {
            return self.event(name, event, text, out);
        };
        match mend(text) {
            Some(Mended::Text(mended)) => {
                let mut event = Event::default();
                match fill(&mended, &mut event) {
                    Ok(()) => self.event(name, event, &mended, out),
                    Err(_) => out.push(malformed(text, &error)),
                }
            }
            Some(Mended::Several(payloads)) => {
                for payload in payloads {
                    self.payload("", payload, out);
                }
            }
            None => out.push(malformed(text, &error)),
        }
    }

    fn event(&mut self, name: &str, event: Event<'_>, text: &str, out: &mut Vec<Delta>) {
        let word = event.kind.as_text().filter(|word| !word.is_empty());
        match word.unwrap_or(name) {
            "response.output_text.delta" => self.say(Voice::Text, event, out),
            "response.refusal.delta" => self.say(Voice::Refusal, event, out),
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                self.say(Voice::Thinking, event, out);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_summary.delta" => {
                self.say(Voice::Summary, event, out);
            }
            "response.function_call_arguments.delta" => {
                self.say_arguments(Kind::Function, event, out);
            }
            "response.custom_tool_call_input.delta" => {
                self.say_arguments(Kind::Custom, event, out);
            }
            "response.output_text.done" => self.said(Voice::Text, event, out),
            "response.refusal.done" => self.said(Voice::Refusal, event, out),
            "response.reasoning_text.done" => self.said(Voice::Thinking, event, out),
            "response.reasoning_summary_text.done" => self.said(Voice::Summary, event, out),
            "response.function_call_arguments.done" => {
                let whole = event.arguments.0.as_deref().map(str::to_owned);
                self.seal(Kind::Function, &event, whole, out);
            }
            "response.custom_tool_call_input.done" => {
                let whole = event.input.as_text().map(str::to_owned);
                self.seal(Kind::Custom, &event, whole, out);
            }
            "response.output_item.added" => self.item(&event, false, out),
            "response.output_item.done" => self.item(&event, true, out),
            "response.completed" | "response.done" => self.ended("completed", &event, text, out),
            "response.incomplete" => self.ended("incomplete", &event, text, out),
            "response.failed" => self.ended("failed", &event, text, out),
            "response.cancelled" => self.ended("cancelled", &event, text, out),
            "error" | "response.error" => out.push(Delta::Error(error_event(text))),
            "" if event.output.is_some() || event.object.as_text() == Some("response") => {
                self.body("", text, out);
            }
            word if !word.starts_with("response.") => {
                // An error whose type is its own, or one without.
                let is_error = word.is_empty() || word.ends_with("_error") || event.error.is_some();
                let value = value_of(text).filter(|_| is_error);
                if value.as_ref().is_some_and(|value| error_of(value).is_some()) {
                    out.push(Delta::Error(error_event(text)));
                }
            }
            _ => {}
        }
    }

    /// A piece of an item's text.
    fn say(&mut self, voice: Voice, event: Event<'_>, out: &mut Vec<Delta>) {
        let place = self.place_of(voice_kind(voice), &event);
        let Some(item) = self.items.at(place) else { return };
        // Some services give reasoning twice, as text and as its summary: the first counts.
        let other = item.spoke.is_some_and(|(before, _)| is_rival(before, voice));
        if let Some(text) = event.delta.into_text().filter(|_| !other) {
            item.spoke = Some((voice, event.part_index.as_number()));
            item.has_text |= voice == Voice::Text;
            out.push(spoken(voice, text));
        }
    }

    /// A part of an item's text as a whole, which counts if it did not come in pieces.
    fn said(&mut self, voice: Voice, mut event: Event<'_>, out: &mut Vec<Delta>) {
        let place = self.place_of(voice_kind(voice), &event);
        let part = event.part_index.as_number();
        let spoke = self.items.at(place).and_then(|item| item.spoke);
        let is_next = |last: Option<u64>| last.zip(part).is_some_and(|(last, part)| last < part);
        if spoke.is_some_and(|(_, last)| !is_next(last)) {
            return;
        }
        event.delta = if voice == Voice::Refusal { event.refusal } else { event.text };
        event.refusal = Scalar::Nothing;
        event.text = Scalar::Nothing;
        self.say(voice, event, out);
    }

    fn say_arguments(&mut self, kind: Kind, event: Event<'_>, out: &mut Vec<Delta>) {
        let place = self.place_of(kind, &event);
        let Some(item) = self.items.at(place) else { return };
        let begins = !item.is_named && !item.has_arguments;
        item.has_arguments = true;
        out.push(Delta::Call(CallPiece {
            index: Some(item.index),
            arguments: event.delta.into_text(),
            kind: call_kind(kind),
            begins,
            ..CallPiece::default()
        }));
    }

    /// The arguments of a call as a whole.
    fn seal(&mut self, kind: Kind, event: &Event<'_>, whole: Option<String>, out: &mut Vec<Delta>) {
        let place = self.place_of(kind, event);
        let Some(item) = self.items.at(place) else { return };
        let name = event.name.as_text().filter(|name| !name.is_empty());
        if let Some(name) = name.filter(|_| !item.is_named) {
            item.is_named = true;
            out.push(Delta::Call(CallPiece {
                index: Some(item.index),
                name: Some(name.to_owned()),
                kind: call_kind(kind),
                begins: !item.has_arguments,
                ..CallPiece::default()
            }));
        }
        // Nothing is no arguments; the item itself will tell.
        if let Some(whole) = whole.filter(|whole| !whole.is_empty() && item.is_named) {
            item.is_sealed = true;
            out.push(Delta::Seal { index: item.index, arguments: Some(whole) });
        }
    }

    /// The item that an event about a piece means; if none is known, there is one now.
    fn place_of(&mut self, kind: Kind, event: &Event<'_>) -> usize {
        let id = event.item_id.as_text();
        let named = Named { index: event.output_index.as_number(), id, call_id: None };
        self.items.find(kind, named).unwrap_or_else(|| self.items.add(kind, named))
    }

    fn ended(&mut self, word: &'static str, event: &Event<'_>, text: &str, out: &mut Vec<Delta>) {
        // Without the object around it, what the event holds is the response.
        self.body(word, event.response.map_or(text, RawValue::get), out);
    }

    /// A response as a whole; `word` is what the event says of its end, if there is one.
    fn body(&mut self, word: &'static str, text: &str, out: &mut Vec<Delta>) {
        let mut body = Body::default();
        if let Err(error) = fill(text, &mut body) {
            return out.push(malformed(text, &error));
        }
        self.output(body.output.map_or("", RawValue::get), out);
        let error = body.error.and_then(|raw| error_in(raw.get()));
        let says = body.status.as_text().unwrap_or_default();
        let status = match (says, word) {
            ("completed" | "incomplete" | "failed" | "cancelled", _) => says,
            // What the event says stands over a status that is no end.
            (_, "completed" | "incomplete" | "failed" | "cancelled") => word,
            ("", _) if error.is_some() => "failed",
            ("", _) => "completed",
            _ => says,
        };
        let has_calls = self.items.all().iter().any(|item| item.kind.is_call());
        let reason = body.incomplete_details.reason.as_text().unwrap_or_default();
        let kind = finish_kind(status, reason, has_calls);
        out.extend(error.map(Delta::Error));
        out.push(Delta::Finish(FinishReason { kind, raw: status.to_owned() }));
        out.extend(body.usage.and_then(usage_of));
        out.push(Delta::Done);
    }
}

fn voice_kind(voice: Voice) -> Kind {
    match voice {
        Voice::Text | Voice::Refusal => Kind::Message,
        Voice::Thinking | Voice::Summary => Kind::Reasoning,
    }
}

fn is_rival(before: Voice, now: Voice) -> bool {
    before != now && voice_kind(now) == Kind::Reasoning
}

fn spoken(voice: Voice, text: String) -> Delta {
    match voice {
        Voice::Text => Delta::Text(text),
        Voice::Refusal => Delta::Refusal(text),
        Voice::Thinking | Voice::Summary => Delta::Reasoning(text),
    }
}

fn call_kind(kind: Kind) -> CallKind {
    if kind == Kind::Custom { CallKind::Custom } else { CallKind::Function }
}

fn finish_kind(status: &str, reason: &str, has_calls: bool) -> FinishKind {
    match status {
        "completed" if has_calls => FinishKind::ToolCalls,
        "completed" => FinishKind::Stop,
        "incomplete" if reason == "content_filter" => FinishKind::ContentFilter,
        "incomplete" => FinishKind::Length,
        // The latter two are of a response that somebody has to ask for again.
        "failed" | "cancelled" | "queued" | "in_progress" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}

/// An error from what stands under the key `error`, if that says anything.
fn error_in(raw: &str) -> Option<ProviderError> {
    // An error that cannot be read, because it is nested too deeply, is one all the same.
    let value = value_of(raw).unwrap_or_else(|| Value::String(raw.into()));
    error_of(&serde_json::json!({ "error": value })).map(provider_error)
}

/// The error of an event that is one: under `error`, or as the event itself.
fn error_event(text: &str) -> ProviderError {
    let Some(value) = value_of(text) else { return plain_error(text) };
    let mut error = provider_error(error_of(&value).unwrap_or(&value));
    let beside = provider_error(&value);
    // A gateway puts the status that it got beside the error.
    if value.get("status").is_some() || value.get("status_code").is_some() {
        error.status = beside.status.or(error.status);
    }
    error
}

fn plain_error(text: &str) -> ProviderError {
    match text {
        "" => ProviderError::new(ProviderErrorKind::InStream, "the service reported an error"),
        text => provider_error(&Value::String(text.to_owned())),
    }
}

fn malformed(text: &str, error: &serde_json::Error) -> Delta {
    // What is lost here may be part of a call, so the response cannot be trusted.
    let message = format!("a payload is no JSON ({error}): {}", excerpt(text, 200));
    Delta::Error(ProviderError::new(ProviderErrorKind::Malformed, message))
}
