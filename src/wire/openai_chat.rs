//! Chat Completions, and the dialects of services that follow them: payloads to deltas.
//!
//! Format: <https://platform.openai.com/docs/api-reference/chat>. Streamed chunks and plain bodies
//! give the same deltas. Only choice 0 counts. `reasoning_details` stands beside the reasoning's
//! text (or in its place, as data for the service alone) and is passed over, so that nothing is
//! counted twice.

mod request;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::{error_of, provider_error};
use super::loose::{Content, List, Loose, Part, Scalar};
use super::{CallKind, CallPiece, Delta, Problem};
use crate::types::{FinishKind, FinishReason, ProviderError, ProviderErrorKind, Usage, excerpt};

pub(super) use request::request_body;

/// The dialect; all it remembers is whether the response comes in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenaiChat {
    /// A `delta` was seen, so a whole `message` repeats what was said.
    in_pieces: bool,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: List<Choice<'a>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    x_groq: Loose<UsageHolder<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UsageHolder<'a> {
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    index: Scalar<'a>,
    #[serde(borrow, default)]
    delta: Loose<Body<'a>>,
    #[serde(borrow, default)]
    message: Loose<Body<'a>>,
    #[serde(borrow, default)]
    finish_reason: Scalar<'a>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// What a `delta` or a `message` holds.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(borrow, default)]
    reasoning_content: Content<'a>,
    #[serde(borrow, default)]
    reasoning: Content<'a>,
    #[serde(borrow, default)]
    refusal: Content<'a>,
    #[serde(borrow, default)]
    tool_calls: List<Call<'a>>,
    #[serde(borrow, default)]
    function_call: Loose<Function<'a>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow, default)]
    index: Scalar<'a>,
    #[serde(borrow, default)]
    id: Scalar<'a>,
    #[serde(borrow, default)]
    function: Loose<Function<'a>>,
    #[serde(borrow, default)]
    custom: Loose<Custom<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Custom<'a> {
    #[serde(borrow, default)]
    name: Scalar<'a>,
    #[serde(borrow, default)]
    input: Scalar<'a>,
}

impl OpenaiChat {
    /// Reads one payload; `event` is the event's name, where it has one.
    pub(super) fn payload(&mut self, event: &str, text: &str, out: &mut Vec<Delta>) {
        let text = text.trim();
        match text.as_bytes().first() {
            _ if text == "[DONE]" => out.push(Delta::Done),
            _ if event == "error" => out.push(Delta::Error(named_error(text))),
            None => {}
            Some(b'{') => self.object(text, out),
            Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
                Ok(items) => {
                    for item in items.iter().filter(|item| item.get().starts_with('{')) {
                        self.object(item.get(), out);
                    }
                }
                Err(error) => out.push(malformed(text, &error)),
            },
            Some(_) => {
                out.push(Delta::Problem(Problem { code: "not_json", detail: excerpt(text, 200) }))
            }
        }
    }

    fn object(&mut self, text: &str, out: &mut Vec<Delta>) {
        match serde_json::from_str(text) {
            Ok(chunk) => self.chunk(chunk, text, out),
            Err(error) => match mend(text) {
                Some(Mended::Text(mended)) => match serde_json::from_str(&mended) {
                    Ok(chunk) => self.chunk(chunk, &mended, out),
                    Err(_) => out.push(malformed(text, &error)),
                },
                Some(Mended::Lines) => {
                    for line in text.lines() {
                        self.payload("", line, out);
                    }
                }
                None => out.push(malformed(text, &error)),
            },
        }
    }

    fn chunk(&mut self, chunk: Chunk<'_>, text: &str, out: &mut Vec<Delta>) {
        let before = out.len();
        let has_choices = !chunk.choices.is_empty();
        let mut choice_usage = None;
        for choice in chunk.choices.into_items() {
            if choice.index.as_number().unwrap_or(0) == 0 {
                choice_usage = choice.usage.or(choice_usage);
                self.choice(choice, out);
            }
        }
        let usage = [chunk.usage, choice_usage, chunk.x_groq.0.and_then(|groq| groq.usage)];
        out.extend(usage.into_iter().flatten().find_map(usage_of));
        if let Some(error) = chunk.error.and_then(|raw| error_in(raw.get())) {
            // What stands beside the error may say more than the error.
            let whole = serde_json::from_str::<Value>(text).ok();
            let error = whole.as_ref().and_then(error_of).map(provider_error).unwrap_or(error);
            out.push(Delta::Error(error));
        } else if !has_choices && out.len() == before {
            // Nothing that a chunk holds: perhaps an error without the key.
            let whole = serde_json::from_str::<Value>(text).ok();
            out.extend(whole.as_ref().and_then(error_of).map(provider_error).map(Delta::Error));
        }
    }

    fn choice(&mut self, choice: Choice<'_>, out: &mut Vec<Delta>) {
        match (choice.delta.0, choice.message.0) {
            (Some(delta), _) => {
                self.in_pieces = true;
                body(delta, false, out);
            }
            (None, Some(message)) if !self.in_pieces => body(message, true, out),
            (None, Some(_) | None) => {}
        }
        if let Some(raw) = choice.finish_reason.into_text() {
            out.push(Delta::Finish(FinishReason { kind: finish_kind(&raw), raw }));
        }
        out.extend(choice.error.and_then(|raw| error_in(raw.get())).map(Delta::Error));
    }
}

/// Reads a `delta` or, with `whole`, a `message`.
fn body(body: Body<'_>, whole: bool, out: &mut Vec<Delta>) {
    let before = out.len();
    content(body.reasoning_content, Delta::Reasoning, out);
    if out.len() == before {
        content(body.reasoning, Delta::Reasoning, out);
    }
    content(body.content, Delta::Text, out);
    content(body.refusal, Delta::Refusal, out);
    if body.tool_calls.is_empty() {
        if let Some(function) = body.function_call.0 {
            // The older form, of one call without index and id.
            call(Call { function: Loose(Some(function)), ..Call::default() }, None, out);
        }
        return;
    }
    for (place, piece) in (0..).zip(body.tool_calls.into_items()) {
        // In a whole message every item is a call of its own.
        call(piece, whole.then_some(place), out);
    }
}

impl Default for Call<'_> {
    fn default() -> Self {
        Self {
            index: Scalar::Nothing,
            id: Scalar::Nothing,
            function: Loose(None),
            custom: Loose(None),
        }
    }
}

fn call(call: Call<'_>, place: Option<u64>, out: &mut Vec<Delta>) {
    let mut piece = CallPiece {
        index: call.index.as_number().or(place),
        id: call.id.into_text(),
        ..CallPiece::default()
    };
    if let Some(function) = call.function.0 {
        piece.name = function.name.into_text();
        piece.arguments = function.arguments.and_then(arguments);
    } else if let Some(custom) = call.custom.0 {
        piece.kind = CallKind::Custom;
        piece.name = custom.name.into_text();
        piece.arguments = custom.input.into_text();
    }
    out.push(Delta::Call(piece));
}

/// The text of a piece of arguments: the string's, or the JSON itself where it is no string.
fn arguments(raw: &RawValue) -> Option<String> {
    let text = raw.get();
    if text.starts_with('"') { serde_json::from_str(text).ok() } else { Some(text.to_owned()) }
}

fn content(content_: Content<'_>, kind: fn(String) -> Delta, out: &mut Vec<Delta>) {
    match content_ {
        Content::Nothing => {}
        Content::Text(text) if text.is_empty() => {}
        Content::Text(text) => out.push(kind(text.into_owned())),
        Content::List(parts) => {
            for part in parts {
                content(part, kind, out);
            }
        }
        Content::Part(part) => {
            let Part { kind: word, text, thinking, refusal } = *part;
            let kind = match word.as_text() {
                Some("thinking" | "reasoning") => Delta::Reasoning,
                Some(_) | None => kind,
            };
            content(thinking, Delta::Reasoning, out);
            content(text, kind, out);
            content(refusal, Delta::Refusal, out);
        }
    }
}

fn finish_kind(word: &str) -> FinishKind {
    match word.to_ascii_lowercase().as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" | "complete" | "completed" => {
            FinishKind::Stop
        }
        "tool_calls" | "function_call" | "tool_use" | "tool_call" => FinishKind::ToolCalls,
        "length" | "max_tokens" | "model_length" | "max_output_tokens" => FinishKind::Length,
        "content_filter" | "content_filtered" | "sensitive" | "refusal" | "safety"
        | "recitation" | "prohibited_content" | "blocklist" | "spii" => FinishKind::ContentFilter,
        "error" | "network_error" | "insufficient_system_resource" | "aborted" | "abort" => {
            FinishKind::Error
        }
        _ => FinishKind::Other,
    }
}

fn usage_of(raw: &RawValue) -> Option<Delta> {
    #[derive(Deserialize)]
    struct Counts<'a> {
        #[serde(borrow, default, alias = "input_tokens")]
        prompt_tokens: Scalar<'a>,
        #[serde(borrow, default, alias = "output_tokens")]
        completion_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        prompt_tokens_details: Loose<Details<'a>>,
        #[serde(borrow, default)]
        completion_tokens_details: Loose<Details<'a>>,
        #[serde(borrow, default)]
        prompt_cache_hit_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        cached_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        reasoning_tokens: Scalar<'a>,
    }
    #[derive(Deserialize)]
    struct Details<'a> {
        #[serde(borrow, default)]
        cached_tokens: Scalar<'a>,
        #[serde(borrow, default)]
        reasoning_tokens: Scalar<'a>,
    }
    let text = raw.get();
    if !text.starts_with('{') || text.trim_matches(['{', '}', ' ', '\n', '\r', '\t']).is_empty() {
        return None;
    }
    let usage = serde_json::from_str::<Counts<'_>>(text).map_or_else(
        |_| Usage::default(),
        |counts| {
            let first = |places: [Option<u64>; 3]| places.into_iter().flatten().next().unwrap_or(0);
            let read = counts.prompt_tokens_details.0;
            let written = counts.completion_tokens_details.0;
            Usage {
                input_tokens: counts.prompt_tokens.as_number().unwrap_or(0),
                output_tokens: counts.completion_tokens.as_number().unwrap_or(0),
                cached_tokens: first([
                    read.and_then(|details| details.cached_tokens.as_number()),
                    counts.prompt_cache_hit_tokens.as_number(),
                    counts.cached_tokens.as_number(),
                ]),
                reasoning_tokens: first([
                    written.and_then(|details| details.reasoning_tokens.as_number()),
                    counts.reasoning_tokens.as_number(),
                    None,
                ]),
            }
        },
    );
    Some(Delta::Usage { usage, raw: text.into() })
}

/// An error from what stands under the key `error`, if that says anything.
fn error_in(raw: &str) -> Option<ProviderError> {
    let value = serde_json::from_str::<Value>(raw).ok()?;
    error_of(&serde_json::json!({ "error": value })).map(provider_error)
}

/// The error of an event that is named so, whatever it holds.
fn named_error(text: &str) -> ProviderError {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => provider_error(error_of(&value).unwrap_or(&value)),
        Err(_) if text.is_empty() => {
            ProviderError::new(ProviderErrorKind::InStream, "the service reported an error")
        }
        Err(_) => provider_error(&Value::String(text.to_owned())),
    }
}

enum Mended {
    /// The same payload, readable.
    Text(String),
    /// Several payloads, one a line.
    Lines,
}

/// Makes a payload readable that is not, without loss, or with U+FFFD for half a character.
#[cold]
fn mend(text: &str) -> Option<Mended> {
    // An event without the blank line after it is joined with the next one.
    let starts_payload = |line: &str| line.starts_with('{') || line == "[DONE]";
    if text.contains('\n') && text.lines().all(|line| starts_payload(line.trim())) {
        return Some(Mended::Lines);
    }
    // A key that stands twice: the last one counts.
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return Some(Mended::Text(value.to_string()));
    }
    match replace_lone_surrogates(text) {
        Cow::Owned(mended) => Some(Mended::Text(mended)),
        Cow::Borrowed(_) => None,
    }
}

/// Writes U+FFFD in the place of every escape that is half a surrogate pair.
fn replace_lone_surrogates(text: &str) -> Cow<'_, str> {
    let unit = |at: usize| -> Option<u16> {
        let digits = text.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut mended = String::new();
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('\\')) {
        let escape = at + found;
        at = match (unit(escape), unit(escape + 6)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => escape + 12,
            (Some(0xD800..=0xDFFF), _) => {
                mended.push_str(text.get(kept..escape).unwrap_or_default());
                mended.push_str("\\ufffd");
                kept = escape + 6;
                kept
            }
            // Past the escaped character, which is ASCII in JSON.
            (Some(_) | None, _) => escape + 2,
        };
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    mended.push_str(text.get(kept..).unwrap_or_default());
    Cow::Owned(mended)
}

fn malformed(text: &str, error: &serde_json::Error) -> Delta {
    // What is lost here may be part of a call, so the response cannot be trusted.
    let message = format!("a payload is no JSON ({error}): {}", excerpt(text, 200));
    Delta::Error(ProviderError::new(ProviderErrorKind::Malformed, message))
}

#[cfg(test)]
#[path = "openai_chat/tests.rs"]
mod tests;
