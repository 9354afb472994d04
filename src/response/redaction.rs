//! Replaces the host's secrets in the deltas of a response.
//!
//! A secret may be cut at any place into several deltas. The end of a text that may be the beginning of
//! a secret is therefore held back until more of the text decides. Deltas whose order relative to the
//! text does not matter, such as token counts, pass it. The end of a part of the text is held back with
//! it. Every other delta releases it.

use std::borrow::Cow;

use crate::types::{ProviderError, Secrets};
use crate::wire::{CallDelta, CallKind, Delta, ProviderMetadata};

/// Replaces secrets in the deltas of one response, which are given in order.
#[derive(Clone, Debug)]
pub struct DeltaRedactor {
    secrets: Secrets,
    held: Option<HeldText>,
}

/// The text that is held back. It is not empty.
#[derive(Clone, Debug)]
struct HeldText {
    channel: HeldChannel,
    text: String,
    /// The ends of parts: the positions in the text, in ascending order, and the metadata.
    part_ends: Vec<(usize, Delta)>,
}

/// The text of a response to which a delta adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldChannel {
    Text,
    Reasoning,
    Refusal,
    /// The arguments of the newest call.
    Arguments {
        index: Option<u64>,
        kind: CallKind,
    },
}

impl DeltaRedactor {
    /// Creates a redactor for one response. Returns `None` if there are no secrets.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Option<Self> {
        (!secrets.is_empty()).then(|| Self { secrets: secrets.clone(), held: None })
    }

    /// Replaces secrets in a batch.
    #[must_use]
    pub fn redact(&mut self, batch: Vec<Delta>) -> Vec<Delta> {
        let mut redacted = Vec::with_capacity(batch.len());
        for delta in batch {
            self.push(delta, &mut redacted);
        }
        redacted
    }

    /// Returns the text that was held back. Called at the end of the response. A response that ends in
    /// a text, without a finish reason or an end mark, is incomplete: the ends of its parts are dropped.
    #[must_use]
    pub fn finish(&mut self) -> Option<Delta> {
        let HeldText { channel, text, part_ends: _ } = self.held.take()?;
        Some(channel.delta(text))
    }

    /// Replaces secrets in an error.
    pub fn redact_error(&self, error: &mut ProviderError) {
        error.message = self.secrets.redact_excerpts(&error.message);
        if let Some(code) = &mut error.code {
            self.secrets.redact_in_place(code);
        }
    }

    fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        match delta {
            Delta::Text(text) => self.push_text(HeldChannel::Text, text, out),
            Delta::Reasoning(text) => self.push_text(HeldChannel::Reasoning, text, out),
            Delta::Refusal(text) => self.push_text(HeldChannel::Refusal, text, out),
            Delta::Call(piece) if piece.id.is_none() && piece.name.is_none() && !piece.begins => {
                let CallDelta { index, kind, arguments, .. } = piece;
                let channel = HeldChannel::Arguments { index, kind };
                self.push_text(channel, arguments.unwrap_or_default(), out);
            }
            // A piece with a name or an id is not divided, because both may begin another call.
            Delta::Call(mut piece) => {
                self.release(out);
                self.redact_labels(&mut piece);
                let channel = HeldChannel::Arguments { index: piece.index, kind: piece.kind };
                piece.arguments = piece.arguments.map(|text| self.hold_end(channel, text));
                out.push(Delta::Call(piece));
            }
            mut unordered @ (Delta::Usage { .. }
            | Delta::Problem(_)
            | Delta::Metadata(
                ProviderMetadata::Call { .. } | ProviderMetadata::LastCall { .. },
            )) => {
                self.redact_whole(&mut unordered);
                out.push(unordered);
            }
            mut whole @ (Delta::Seal { .. }
            | Delta::Metadata(
                ProviderMetadata::Text { .. }
                | ProviderMetadata::Reasoning { .. }
                | ProviderMetadata::Part(_),
            )
            | Delta::Finish(_)
            | Delta::Error(_)
            | Delta::Done) => {
                self.redact_whole(&mut whole);
                match self.held.as_mut().filter(|held| held.channel.is_part_end(&whole)) {
                    Some(held) => held.part_ends.push((held.text.len(), whole)),
                    None => {
                        self.release(out);
                        out.push(whole);
                    }
                }
            }
        }
    }

    fn push_text(&mut self, channel: HeldChannel, text: String, out: &mut Vec<Delta>) {
        if self.held.as_ref().is_some_and(|held| held.channel != channel) {
            self.release(out);
        }
        let mut held = match self.held.take() {
            Some(mut held) => {
                held.text.push_str(&text);
                held
            }
            None if text.is_empty() => {
                out.push(channel.delta(text));
                return;
            }
            None => HeldText { channel, text, part_ends: Vec::new() },
        };
        if let Cow::Owned(redacted) = self.secrets.redact(&held.text) {
            held.text = redacted;
            // The end of a part may have divided the secret. The text goes to the part behind it.
            held.part_ends.iter_mut().for_each(|(position, _)| *position = 0);
        }
        let end = held.text.len() - self.secrets.begun_at_end(&held.text);
        held.release_up_to(end, out);
        self.held = Some(held).filter(|held| !held.text.is_empty());
    }

    /// Releases the whole text that is held back.
    fn release(&mut self, out: &mut Vec<Delta>) {
        if let Some(mut held) = self.held.take() {
            held.release_up_to(held.text.len(), out);
        }
    }

    /// Replaces secrets in a text, and holds its end back if a secret may begin there.
    fn hold_end(&mut self, channel: HeldChannel, mut text: String) -> String {
        self.secrets.redact_in_place(&mut text);
        let begun = self.secrets.begun_at_end(&text);
        if begun > 0 {
            let text = text.split_off(text.len() - begun);
            self.held = Some(HeldText { channel, text, part_ends: Vec::new() });
        }
        text
    }

    fn redact_labels(&self, piece: &mut CallDelta) {
        for text in [&mut piece.id, &mut piece.name].into_iter().flatten() {
            self.secrets.redact_in_place(text);
        }
    }

    /// Replaces secrets in a delta that is not continued by the next one.
    fn redact_whole(&self, delta: &mut Delta) {
        match delta {
            Delta::Call(piece) => self.redact_labels(piece),
            Delta::Seal { arguments: Some(text), .. } => self.secrets.redact_in_place(text),
            Delta::Metadata(
                ProviderMetadata::Text { members: Some(json) }
                | ProviderMetadata::Reasoning { members: Some(json) }
                | ProviderMetadata::Call { members: json, .. }
                | ProviderMetadata::LastCall { members: json }
                | ProviderMetadata::Part(json),
            ) => *json = self.secrets.redact(json).into(),
            Delta::Finish(reason) => reason.raw = self.secrets.redact(&reason.raw).into(),
            Delta::Usage { raw, .. } => *raw = self.secrets.redact(raw).into(),
            Delta::Error(error) => self.redact_error(error),
            Delta::Problem(problem) => {
                problem.detail = self.secrets.redact_excerpts(&problem.detail);
            }
            Delta::Text(_)
            | Delta::Reasoning(_)
            | Delta::Refusal(_)
            | Delta::Seal { arguments: None, .. }
            | Delta::Metadata(
                ProviderMetadata::Text { members: None }
                | ProviderMetadata::Reasoning { members: None },
            )
            | Delta::Done => {}
        }
    }
}

impl HeldText {
    /// Moves the text before a position to `out`, with the ends of its parts.
    fn release_up_to(&mut self, end: usize, out: &mut Vec<Delta>) {
        let held = self.text.split_off(end);
        let mut rest = std::mem::replace(&mut self.text, held);
        let count = self.part_ends.partition_point(|(position, _)| *position <= end);
        let mut start = 0;
        for (position, part_end) in self.part_ends.drain(..count) {
            let following = rest.split_off(position - start);
            start = position;
            out.extend(self.channel.some_delta(std::mem::replace(&mut rest, following)));
            out.push(part_end);
        }
        out.extend(self.channel.some_delta(rest));
        self.part_ends.iter_mut().for_each(|(position, _)| *position -= end);
    }
}

impl HeldChannel {
    /// Returns whether a delta ends a part of this text.
    fn is_part_end(self, delta: &Delta) -> bool {
        match self {
            Self::Text => matches!(delta, Delta::Metadata(ProviderMetadata::Text { .. })),
            Self::Reasoning => matches!(delta, Delta::Metadata(ProviderMetadata::Reasoning { .. })),
            Self::Refusal | Self::Arguments { .. } => false,
        }
    }

    /// Returns the delta of a text that is not empty.
    fn some_delta(self, text: String) -> Option<Delta> {
        (!text.is_empty()).then(|| self.delta(text))
    }

    fn delta(self, text: String) -> Delta {
        match self {
            Self::Text => Delta::Text(text),
            Self::Reasoning => Delta::Reasoning(text),
            Self::Refusal => Delta::Refusal(text),
            Self::Arguments { index, kind } => Delta::Call(CallDelta {
                index,
                kind,
                arguments: Some(text),
                ..CallDelta::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::{ResponseAssembler, ResponseLimits};
    use crate::types::{FinishKind, FinishReason, ProviderErrorKind, Usage};
    use crate::wire::Problem;

    const KEY: &str = "sk-live-0123456789";

    /// Returns the deltas of a response whose texts are cut into pieces of this many bytes.
    fn deltas(size: usize) -> Vec<Delta> {
        let pieces = |text: &str| -> Vec<String> {
            let chars: Vec<char> = text.chars().collect();
            chars.chunks(size).map(|piece| piece.iter().collect()).collect()
        };
        let text = format!("a {KEY} b sk-live-x {KEY}{KEY}");
        let mut deltas: Vec<_> = pieces(&text).into_iter().map(Delta::Text).collect();
        deltas.extend(pieces(&format!("hm {KEY}")).into_iter().map(Delta::Reasoning));
        for index in 0..2 {
            deltas.push(Delta::Call(CallDelta {
                index: Some(index),
                id: Some(format!("c{index}")),
                name: Some("f".to_owned()),
                arguments: Some(String::new()),
                ..CallDelta::default()
            }));
            let arguments = format!("{{\"key\":\"{KEY}\"}}");
            deltas.extend(pieces(&arguments).into_iter().map(|piece| {
                let (index, arguments) = (Some(index), Some(piece));
                Delta::Call(CallDelta { index, arguments, ..CallDelta::default() })
            }));
        }
        let (kind, raw) = (FinishKind::ToolCalls, "tool_calls".into());
        deltas.push(Delta::Finish(FinishReason { kind, raw }));
        deltas.push(Delta::Done);
        deltas
    }

    /// Checks that no secret is left in the response of [`deltas`]. Returns its deltas.
    #[track_caller]
    fn check(deltas: Vec<Delta>) -> Vec<Delta> {
        let mut redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
        let mut redacted: Vec<_> =
            deltas.into_iter().flat_map(|delta| redactor.redact(vec![delta])).collect();
        redacted.extend(redactor.finish());
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        for delta in &redacted {
            assert!(!format!("{delta:?}").contains(KEY), "{delta:?}");
            response.push(delta);
        }
        response.seal_all();
        assert_eq!(response.text(), "a [redacted] b sk-live-x [redacted][redacted]");
        assert_eq!(response.reasoning(), "hm [redacted]");
        let calls: Vec<_> = response.calls().iter().map(|call| call.raw.as_str()).collect();
        assert_eq!(calls, ["{\"key\":\"[redacted]\"}"; 2]);
        redacted
    }

    fn usage() -> Delta {
        Delta::Usage { usage: Usage::default(), raw: "{}".into() }
    }

    fn part_end(members: &str) -> Delta {
        Delta::Metadata(ProviderMetadata::Text { members: Some(members.into()) })
    }

    fn text(text: &str) -> Delta {
        Delta::Text(text.into())
    }

    /// Redacts the deltas of a whole response.
    fn redact(deltas: impl Into<Vec<Delta>>) -> Vec<Delta> {
        let mut redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
        let mut redacted = redactor.redact(deltas.into());
        redacted.extend(redactor.finish());
        redacted
    }

    #[test]
    fn a_secret_is_replaced_however_it_is_cut() {
        for size in 1..KEY.len() + 2 {
            check(deltas(size));
        }
    }

    #[test]
    fn a_secret_is_replaced_if_other_deltas_come_between_its_pieces() {
        let problem = Delta::Problem(Problem { code: "not_json", detail: "x".into() });
        let last_call = Delta::Metadata(ProviderMetadata::LastCall { members: "{}".into() });
        let thinking_end = Delta::Metadata(ProviderMetadata::Reasoning { members: None });
        for size in 1..KEY.len() + 2 {
            for between in [usage(), problem.clone(), last_call.clone()] {
                let all: Vec<_> =
                    deltas(size).into_iter().flat_map(|delta| [delta, between.clone()]).collect();
                let count = all.iter().filter(|delta| **delta == between).count();
                let redacted = check(all);
                assert_eq!(redacted.iter().filter(|delta| **delta == between).count(), count);
            }
            // Each piece is a part of its own.
            let mut all = Vec::new();
            for delta in deltas(size) {
                let is_text = matches!(delta, Delta::Text(_));
                let is_reasoning = matches!(delta, Delta::Reasoning(_));
                all.push(delta);
                all.extend(is_text.then(|| part_end("{}")));
                all.extend(is_reasoning.then(|| thinking_end.clone()));
            }
            let ends = |deltas: &[Delta]| -> Vec<Delta> {
                let is_end = |delta: &&Delta| matches!(delta, Delta::Metadata(_));
                deltas.iter().filter(is_end).cloned().collect()
            };
            let expected = ends(&all);
            assert_eq!(ends(&check(all)), expected);
        }
    }

    #[test]
    fn the_end_of_a_part_keeps_its_position() {
        let (one, two) = (part_end("{1}"), part_end("{2}"));
        let whole = [text("class"), one.clone(), text("ic sk-"), two.clone(), text("x")];
        let redacted = redact(whole);
        let expected = [
            text("clas"),
            text("s"),
            one.clone(),
            text("ic "),
            text("sk-"),
            two.clone(),
            text("x"),
        ];
        assert_eq!(redacted, expected);
        // No part holds enough to decide.
        let undecided = [text("sk-"), one.clone(), text("li"), two.clone(), text("x")];
        assert_eq!(redact(undecided.clone()), undecided);
        // The secret goes to the part behind the end that divides it.
        let divided = [text("a sk-live"), one.clone(), text("-0123456789!"), two.clone()];
        assert_eq!(redact(divided), [text("a "), one, text("[redacted]!"), two]);
    }

    #[test]
    fn text_that_is_held_back_comes_before_what_must_follow_it() {
        let call = CallDelta { name: Some("f".into()), ..CallDelta::default() };
        let reason = FinishReason { kind: FinishKind::Stop, raw: "stop".into() };
        for next in [
            Delta::Reasoning("hm".into()),
            Delta::Refusal("no".into()),
            Delta::Call(call),
            Delta::Seal { index: 0, arguments: None },
            Delta::Metadata(ProviderMetadata::Reasoning { members: None }),
            Delta::Metadata(ProviderMetadata::Part("{}".into())),
            Delta::Finish(reason),
            Delta::Error(ProviderError::new(ProviderErrorKind::InStream, "m")),
            Delta::Done,
        ] {
            let end = part_end("{}");
            let redacted = redact([text("sk-"), usage(), end.clone(), next.clone()]);
            assert_eq!(redacted, [usage(), text("sk-"), end, next]);
        }
        assert_eq!(redact([text("sk-"), usage()]), [usage(), text("sk-")]);
    }

    #[test]
    fn what_begins_no_secret_passes_unchanged() {
        let secrets = Secrets::new(["another-secret"]);
        let mut redactor = DeltaRedactor::new(&secrets).unwrap();
        for delta in deltas(3) {
            let redacted = redactor.redact(vec![delta.clone()]);
            let is_held = matches!(&delta, Delta::Text(text) if text.ends_with('a'));
            assert!(redacted == [delta.clone()] || is_held || redactor.held.is_none(), "{delta:?}");
        }
        assert!(DeltaRedactor::new(&Secrets::default()).is_none());
    }

    #[test]
    fn errors_are_redacted() {
        let redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
        let mut error = ProviderError::new(ProviderErrorKind::Status, format!("bad key {KEY}"));
        redactor.redact_error(&mut error);
        assert_eq!(error.message, "bad key [redacted]");
        error.message = crate::types::excerpt(&error.message.replace("[redacted]", KEY), 18);
        redactor.redact_error(&mut error);
        assert_eq!(error.message, "bad key [redacted]…");
    }
}
