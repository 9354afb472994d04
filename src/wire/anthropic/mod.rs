//! Anthropic's Messages: events and plain bodies to deltas.
//!
//! Format: <https://docs.anthropic.com/en/api/messages-streaming>. A message is a list of blocks,
//! each with an index, an opening, pieces and an end, which is the seal of a call. A payload says
//! its own type, so the names of events are only asked where it does not. What blocks become is in
//! [`blocks`]. The counts of `message_delta` are laid over those of `message_start`.

mod blocks;
mod kept;
mod request;
mod usage;

use std::mem::take;

use serde::Serialize;
use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::body::Elements;
use super::dialect::{Dialect, KeyHeader, has_version};
use super::error::{error_in, named_error, unkeyed_error};
use super::fields::{Fields, Fill, fill};
use super::loose::{JsonText, Number, Scalar};
use super::mend::value_of;
use super::piece::{self, Outline, Said, Slot, say, say_call};
use super::{Delta, Framing, ModelRequest};
use crate::types::{FinishKind, FinishReason};

use blocks::Blocks;
use usage::Counts;

/// Blocks of one plain body that are read; what comes after them is passed over.
const BLOCKS_MAX: usize = 4096;

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Anthropic {
    blocks: Blocks,
    counts: Counts,
    /// How the response ended, once that was said.
    finish: Option<FinishKind>,
    /// How it ended by the words of its opening: they count where no others come.
    opening_finish: Option<String>,
}

/// An event, or a message: a plain body is one, and so is what opens a stream.
#[derive(Default)]
struct Event<'a> {
    kind: Scalar<'a>,
    index: Number<'a>,
    delta: Piece<'a>,
    content_block: Option<&'a RawValue>,
    message: Option<&'a RawValue>,
    content: Option<&'a RawValue>,
    stop_reason: Scalar<'a>,
    usage: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

impl<'de> Fields<'de> for Event<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "index" => self.index = map.next_value()?,
            "delta" => drop(map.next_value_seed(Fill(&mut self.delta))?),
            "content_block" => self.content_block = map.next_value()?,
            "message" => self.message = map.next_value()?,
            "content" => self.content = map.next_value()?,
            "stop_reason" => self.stop_reason = map.next_value()?,
            "usage" => self.usage = map.next_value()?,
            "error" => self.error = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// What the `delta` of an event holds.
#[derive(Default)]
struct Piece<'a> {
    kind: Scalar<'a>,
    text: Scalar<'a>,
    thinking: Scalar<'a>,
    signature: Scalar<'a>,
    partial_json: JsonText<'a>,
    citation: Option<&'a RawValue>,
    stop_reason: Scalar<'a>,
}

impl<'de> Fields<'de> for Piece<'de> {
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "type" => self.kind = map.next_value()?,
            "text" => self.text = map.next_value()?,
            "thinking" => self.thinking = map.next_value()?,
            "signature" => self.signature = map.next_value()?,
            "partial_json" => self.partial_json = map.next_value()?,
            "citation" => self.citation = map.next_value()?,
            "stop_reason" => self.stop_reason = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Piece<'_> {
    /// Its type; where it says none, what it holds says enough.
    fn kind(&self) -> &str {
        match self.kind.as_text() {
            Some(kind) if !kind.is_empty() => kind,
            Some(_) | None if self.text.as_text().is_some() => "text_delta",
            Some(_) | None if self.thinking.as_text().is_some() => "thinking_delta",
            Some(_) | None if self.partial_json.0.is_some() => "input_json_delta",
            Some(_) | None if self.signature.as_text().is_some() => "signature_delta",
            Some(_) | None => "",
        }
    }
}

impl Dialect for Anthropic {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader { name: "x-api-key", prefix: "" };
    const HISTORY: &'static str = "messages";
    const HEADERS: &'static [(&'static str, &'static str)] = &[("anthropic-version", "2023-06-01")];

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        if has_version(base) { format!("{base}/messages") } else { format!("{base}/v1/messages") }
    }

    fn head(request: &ModelRequest) -> impl Serialize {
        request::Head(request)
    }

    fn history(request: &ModelRequest, elements: &mut Elements) {
        request::write_messages(request, elements);
    }

    fn object<'p>(
        &mut self,
        name: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<Outline<'p>>> {
        let mut event = Event::default();
        fill(text, &mut event)?;
        let outline = event.outline(name);
        self.event(name, &mut event, text, out);
        Ok(outline)
    }

    fn piece(&mut self, piece: &piece::Piece<'_>, out: &mut Vec<Delta>) {
        match (piece.said, piece.said_text()) {
            (Said::Arguments, _) => {
                let text = piece.text.as_deref();
                let call = text.and_then(|text| self.blocks.input(piece.index, text));
                if let Some(call) = call {
                    say_call(call, text, out);
                }
            }
            (Said::Reasoning, Some(text)) => {
                self.blocks.thought(piece.index);
                say(Delta::Reasoning, text, out);
            }
            (_, Some(text)) => say(Delta::Text, text, out),
            (_, None) => {}
        }
    }
}

impl<'a> Event<'a> {
    /// What it is, by its own word or else by its name.
    fn kind<'s>(&'s self, name: &'s str) -> &'s str {
        self.kind.as_text().filter(|kind| !kind.is_empty()).unwrap_or(name)
    }

    /// Where the piece stands, if there is nothing else in it that is read.
    fn outline(&self, name: &str) -> Option<Outline<'a>> {
        if self.kind(name) != "content_block_delta" || self.error.is_some() {
            return None;
        }
        let delta = &self.delta;
        let outline = match delta.kind() {
            "text_delta" => Outline::of(Said::Text).scalar(Slot::Text, &delta.text),
            "thinking_delta" => Outline::of(Said::Reasoning).scalar(Slot::Text, &delta.thinking),
            "input_json_delta" => {
                Outline::of(Said::Arguments).json_text(Slot::Text, &delta.partial_json)
            }
            _ => None,
        };
        outline?.number(Slot::Index, self.index)
    }
}

impl Anthropic {
    fn event(&mut self, name: &str, event: &mut Event<'_>, text: &str, out: &mut Vec<Delta>) {
        let index = event.index.value();
        match event.kind(name) {
            "content_block_delta" => self.blocks.push(index, &event.delta, text, out),
            "content_block_start" => {
                self.blocks.begin(index, event.content_block.map_or("{}", RawValue::get), out);
            }
            "content_block_stop" => self.blocks.stop(index, out),
            "message_start" => self.message_start(event, out),
            "message_delta" => self.message_delta(event, out),
            "message_stop" => self.message_stop(event, out),
            "message" => self.message(event, out),
            "error" => return out.push(Delta::Error(named_error(text))),
            "" if event.content.is_some() => self.message(event, out),
            "" if event.error.is_none() => {
                // Nothing that this wire says: perhaps an error without the key.
                out.extend(unkeyed_error(text));
            }
            // Pings, and whatever this wire will say one day.
            _ => {}
        }
        out.extend(event.error.and_then(|raw| error_in(raw.get())).map(Delta::Error));
    }

    /// Opens a message. Where another one is open, a relay has joined two answers.
    fn message_start(&mut self, event: &Event<'_>, out: &mut Vec<Delta>) {
        self.blocks.break_off(out);
        self.counts = Counts::default();
        let Some(raw) = event.message.map(RawValue::get) else { return };
        let mended;
        let mut message = Event::default();
        if fill(raw, &mut message).is_err() {
            mended = without_halves(raw);
            message = Event::default();
            // What stays unread is what the fields hold by default.
            let _ = fill(&mended, &mut message);
        }
        self.read_blocks(message.content, out);
        out.extend(self.counts.add(message.usage));
        self.opening_finish = take(&mut message.stop_reason).into_text();
    }

    fn message_delta(&mut self, event: &mut Event<'_>, out: &mut Vec<Delta>) {
        let beside = take(&mut event.stop_reason).into_text();
        self.finish(take(&mut event.delta.stop_reason).into_text().or(beside), out);
        out.extend(self.counts.add(event.usage));
    }

    fn message_stop(&mut self, event: &Event<'_>, out: &mut Vec<Delta>) {
        if self.finish.is_none() {
            let word = self.opening_finish.take();
            self.finish(word, out);
        }
        self.close(out);
        out.extend(self.counts.add(event.usage));
        out.push(Delta::Done);
    }

    /// Ends what is open. Some relays leave out the ends of blocks, and after a good finish the end
    /// of the message is one for all.
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

    /// A message that came as a whole.
    fn message(&mut self, message: &mut Event<'_>, out: &mut Vec<Delta>) {
        self.read_blocks(message.content, out);
        self.finish(take(&mut message.stop_reason).into_text(), out);
        out.extend(self.counts.add(message.usage));
    }

    fn read_blocks(&mut self, content: Option<&RawValue>, out: &mut Vec<Delta>) {
        let Some(content) = content.map(RawValue::get) else { return };
        if let Ok(text) = serde_json::from_str::<String>(content) {
            out.extend(Some(text).filter(|text| !text.is_empty()).map(Delta::Text));
            return;
        }
        let blocks = serde_json::from_str::<Vec<&RawValue>>(content).unwrap_or_default();
        for (place, block) in (0..).zip(blocks.iter().take(BLOCKS_MAX)) {
            self.blocks.begin(Some(place), block.get(), out);
            self.blocks.stop(Some(place), out);
        }
    }

    fn finish(&mut self, word: Option<String>, out: &mut Vec<Delta>) {
        let Some(raw) = word else { return };
        let kind = finish_kind(&raw);
        self.finish = Some(kind);
        out.push(Delta::Finish(FinishReason { kind, raw: raw.into() }));
    }
}

/// JSON text with U+FFFD for half a character: such text is only found out where it is read.
fn without_halves(text: &str) -> String {
    value_of(text).map(|value| value.to_string()).unwrap_or_default()
}

fn finish_kind(word: &str) -> FinishKind {
    match word {
        "end_turn" | "stop_sequence" => FinishKind::Stop,
        "tool_use" => FinishKind::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishKind::Length,
        "refusal" => FinishKind::ContentFilter,
        "pause_turn" => FinishKind::Pause,
        "error" => FinishKind::Error,
        _ => FinishKind::Other,
    }
}

#[cfg(test)]
mod tests;
