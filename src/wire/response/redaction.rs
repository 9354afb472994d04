//! Replaces the host's secrets in the deltas of a response.
//!
//! A secret may be cut at any place into several deltas. The end of a text that may be the beginning of
//! a secret is therefore held back until more of the text decides. Deltas whose order relative to the
//! text does not matter, such as token counts, pass it. The end of a part of the text is held back with
//! it. Every other delta releases it, so that these deltas keep their order; the next paragraph has the
//! exception. The released beginning is remembered: if the text goes on with the rest of the secret, that is
//! replaced. A beginning that is half of the secret, and at least 8 bytes, is replaced when it is released.
//!
//! A delta of another text does not release a beginning of [`WAITING_BYTES_MIN`] bytes or more, unless the end of a
//! part is held back with it, or both texts are arguments of calls. It is held back until its own text goes on, or
//! until a delta comes that must follow it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::{CallDelta, CallKind, Delta, ProviderMetadata};
use callsheet_values::types::{ProviderError, RefusalDetails, Secrets};

/// Minimum length of the beginning of a secret that a delta of another text does not release. A shorter one is
/// mostly the end of a word, which keeps its position.
const WAITING_BYTES_MIN: usize = 4;

/// Maximum number of calls whose arguments are remembered, if these come in turns.
const REMEMBERED_CALLS_MAX: usize = 32;

/// Replaces secrets in the deltas of one response, which are given in order.
#[derive(Clone, Debug)]
pub struct DeltaRedactor {
    secrets: Secrets,
    /// At most one for each of text, reasoning, refusal, and the arguments of the last calls.
    held: Vec<HeldText>,
    newest_call: CallLabels,
}

/// The labels of a call, as a piece with an id or a name has them.
#[derive(Clone, Debug, Default)]
struct CallLabels {
    index: Option<u64>,
    id: Option<String>,
    name: Option<String>,
}

/// The end of a text, which may be the beginning of a secret. It is not empty.
#[derive(Clone, Debug)]
struct HeldText {
    target: DeltaTarget,
    text: String,
    /// The length of its beginning that was released and is only remembered.
    released: usize,
    /// The ends of parts: the positions in the text, in ascending order, and the metadata.
    part_ends: Vec<(usize, Delta)>,
}

/// The text of a response to which a delta adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeltaTarget {
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
        (!secrets.is_empty()).then(|| Self {
            secrets: secrets.clone(),
            held: Vec::new(),
            newest_call: CallLabels::default(),
        })
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

    /// Returns the next text that was held back. Called at the end of the response until it returns `None`. A
    /// response that ends in a text, without a finish reason or an end mark, is incomplete: the ends of its
    /// parts are dropped.
    #[must_use]
    pub fn finish(&mut self) -> Option<Delta> {
        let mut held = std::mem::take(&mut self.held).into_iter();
        let delta = held.find_map(|mut held| {
            if held.is_pending()
                && let Cow::Owned(redacted) = self.secrets.redact_begun(&held.text)
            {
                held.replace(redacted);
            }
            held.target.some_delta(held.text.split_off(held.released))
        });
        self.held = held.collect();
        delta
    }

    /// Replaces secrets in an error.
    pub fn redact_error(&self, error: &mut ProviderError) {
        error.message = self.secrets.redact_excerpts(&error.message);
        if let Some(code) = &mut error.code {
            self.secrets.redact_in_place(code);
        }
        self.redact_refusal(&mut error.refusal);
    }

    fn redact_refusal(&self, refusal: &mut Option<Arc<RefusalDetails>>) {
        let Some(refusal) = refusal.as_mut().map(Arc::make_mut) else { return };
        for text in [&mut refusal.category, &mut refusal.explanation].into_iter().flatten() {
            *text = self.secrets.redact_excerpts(text);
        }
    }

    fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        match delta {
            Delta::Text(text) => self.push_text(DeltaTarget::Text, text, out),
            Delta::Reasoning(text) => self.push_text(DeltaTarget::Reasoning, text, out),
            Delta::Refusal(text) => self.push_text(DeltaTarget::Refusal, text, out),
            Delta::Call(piece)
                if piece.id.is_none() && piece.name.is_none() && !piece.is_marked_start =>
            {
                let CallDelta { index, kind, arguments, .. } = piece;
                let target = DeltaTarget::Arguments { index, kind };
                self.push_text(target, arguments.unwrap_or_default(), out);
            }
            Delta::Call(piece) => self.push_labelled(piece, out),
            mut unordered @ (Delta::Usage { .. }
            | Delta::Problem(_)
            | Delta::Metadata(
                ProviderMetadata::Call { .. } | ProviderMetadata::LastCall { .. },
            )) => {
                self.redact_whole(&mut unordered);
                out.push(unordered);
            }
            part_end @ Delta::Metadata(ProviderMetadata::Text { .. }) => {
                self.push_part_end(DeltaTarget::Text, part_end, out);
            }
            part_end @ Delta::Metadata(
                ProviderMetadata::Reasoning { .. } | ProviderMetadata::ReasoningTags { .. },
            ) => {
                self.push_part_end(DeltaTarget::Reasoning, part_end, out);
            }
            mut whole @ (Delta::Seal { .. }
            | Delta::Metadata(ProviderMetadata::RawPart(_))
            | Delta::Finish(_)
            | Delta::Error(_)
            | Delta::Done) => {
                self.redact_whole(&mut whole);
                self.release(None, out);
                out.push(whole);
            }
        }
    }

    /// Adds a piece with a name or an id. It may begin another call, and its arguments do not continue those that are
    /// held back then. Some services repeat the name and the id of a call in each of its pieces.
    fn push_labelled(&mut self, mut piece: CallDelta, out: &mut Vec<Delta>) {
        let target = DeltaTarget::Arguments { index: piece.index, kind: piece.kind };
        // Its arguments may go on behind those of another call.
        let may_continue = piece.index != self.newest_call.index;
        if !self.newest_call.is_continued_by(&piece) {
            let (id, name) = (piece.id.clone(), piece.name.clone());
            self.newest_call = CallLabels { index: piece.index, id, name };
        } else if self.held.iter().any(|held| held.target == target) {
            return self.push_text(target, piece.arguments.unwrap_or_default(), out);
        }
        self.release(None, out);
        self.redact_labels(&mut piece);
        let is_remembered = self.held.iter().any(|held| held.target == target);
        let continued = piece.arguments.take_if(|_| may_continue && is_remembered);
        piece.arguments = match &continued {
            Some(_) => Some(String::new()),
            None => piece.arguments.map(|text| self.hold_end(target, text)),
        };
        out.push(Delta::Call(piece));
        if let Some(text) = continued {
            self.push_text(target, text, out);
        }
    }

    fn push_part_end(&mut self, target: DeltaTarget, mut part_end: Delta, out: &mut Vec<Delta>) {
        self.redact_whole(&mut part_end);
        self.release(Some(target), out);
        let mut held = self.held.iter_mut();
        match held.find(|held| held.target == target && held.is_pending()) {
            Some(held) => held.part_ends.push((held.text.len(), part_end)),
            None => out.push(part_end),
        }
    }

    fn push_text(&mut self, target: DeltaTarget, text: String, out: &mut Vec<Delta>) {
        self.release(Some(target), out);
        let at = self.held.iter().position(|held| held.target == target);
        let mut held = match at.map(|at| self.held.remove(at)) {
            Some(mut held) => {
                held.text.push_str(&text);
                held
            }
            None if text.is_empty() => {
                out.push(target.delta(text));
                return;
            }
            None => HeldText::new(target, text),
        };
        let undecided = held.text.split_off(self.secrets.undecided_from(&held.text));
        if let Cow::Owned(redacted) = self.secrets.redact(&held.text) {
            held.replace(redacted);
        }
        let end = held.text.len();
        held.text.push_str(&undecided);
        held.release_up_to(end, out);
        self.hold(held);
    }

    /// Holds a text back.
    fn hold(&mut self, held: HeldText) {
        if !held.text.is_empty() {
            self.held.retain(|other| other.target != held.target);
            self.held.push(held);
        }
        let calls = self.held.iter().filter(|held| held.target.is_call()).count();
        if calls > REMEMBERED_CALLS_MAX {
            let first = self.held.iter().position(|held| held.target.is_call());
            drop(first.map(|at| self.held.remove(at)));
        }
    }

    /// Releases what is held back and must come before the next delta, which belongs to the text `next`.
    fn release(&mut self, next: Option<DeltaTarget>, out: &mut Vec<Delta>) {
        for held in &mut self.held {
            if held.is_pending() && next.is_none_or(|next| !held.may_follow(next)) {
                let text = held.text.clone();
                if let Cow::Owned(redacted) = self.secrets.redact_begun(&text) {
                    held.replace(redacted);
                }
                held.release_up_to(held.text.len(), out);
                (held.released, held.text) = (text.len(), text);
            }
        }
    }

    /// Replaces secrets in a text, and holds its end back if a secret may begin there.
    fn hold_end(&mut self, target: DeltaTarget, mut text: String) -> String {
        let undecided = text.split_off(self.secrets.undecided_from(&text));
        self.secrets.redact_in_place(&mut text);
        self.hold(HeldText::new(target, undecided));
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
                | ProviderMetadata::RawPart(json),
            ) => *json = self.secrets.redact(json).into(),
            Delta::Finish(reason) => {
                reason.raw = self.secrets.redact(&reason.raw).into();
                self.redact_refusal(&mut reason.refusal);
            }
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
                | ProviderMetadata::Reasoning { members: None }
                | ProviderMetadata::ReasoningTags { .. },
            )
            | Delta::Done => {}
        }
    }
}

impl CallLabels {
    /// Returns whether a piece can belong to this call: its index is the same, and so are its id and its name if it
    /// has them. `call_assembler` also divides calls with equal labels, after complete arguments. These end with a
    /// bracket or a quotation mark, which is held back only if a secret begins with it.
    fn is_continued_by(&self, piece: &CallDelta) -> bool {
        !piece.is_marked_start
            && piece.index == self.index
            && (piece.id.is_none() || piece.id == self.id)
            && (piece.name.is_none() || piece.name == self.name)
    }
}

impl HeldText {
    fn new(target: DeltaTarget, text: String) -> Self {
        Self { target, text, released: 0, part_ends: Vec::new() }
    }

    /// Replaces it by its redacted form. A secret may begin in what was released.
    fn replace(&mut self, redacted: String) {
        let unchanged = self.text.chars().zip(redacted.chars()).take_while(|(a, b)| a == b);
        let unchanged: usize = unchanged.map(|(char, _)| char.len_utf8()).sum();
        self.released = self.released.min(unchanged);
        self.text = redacted;
        // The end of a part may have divided the secret. The text goes to the part behind it.
        for (position, _) in &mut self.part_ends {
            *position = (*position).min(unchanged);
        }
    }

    /// Returns whether a part of it was not released.
    fn is_pending(&self) -> bool {
        self.released < self.text.len()
    }

    /// Returns whether it may be released behind a delta of the text `next`. The end of a part keeps its
    /// position, and the arguments of another call seal this one.
    fn may_follow(&self, next: DeltaTarget) -> bool {
        let waits = self.text.len() >= WAITING_BYTES_MIN && self.part_ends.is_empty();
        self.target == next || (waits && !(self.target.is_call() && next.is_call()))
    }

    /// Moves the text before a position to `out`, with the ends of its parts.
    fn release_up_to(&mut self, end: usize, out: &mut Vec<Delta>) {
        let held = self.text.split_off(end);
        let mut rest = std::mem::replace(&mut self.text, held);
        let mut start = self.released.min(end);
        drop(rest.drain(..start));
        self.released -= start;
        let count = self.part_ends.partition_point(|(position, _)| *position <= end);
        for (position, part_end) in self.part_ends.drain(..count) {
            let following = rest.split_off(position.saturating_sub(start));
            start = start.max(position);
            out.extend(self.target.some_delta(std::mem::replace(&mut rest, following)));
            out.push(part_end);
        }
        out.extend(self.target.some_delta(rest));
        self.part_ends.iter_mut().for_each(|(position, _)| *position -= end);
    }
}

impl DeltaTarget {
    fn is_call(self) -> bool {
        matches!(self, Self::Arguments { .. })
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
    use crate::Problem;
    use crate::response::{ResponseAssembler, ResponseLimits};
    use callsheet_values::types::{FinishKind, FinishReason, ProviderErrorKind, Usage};

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
        deltas.push(Delta::Finish(FinishReason::new(FinishKind::ToolCalls, "tool_calls")));
        deltas.push(Delta::Done);
        deltas
    }

    /// Checks that no secret is left in the response of [`deltas`]. Returns its deltas.
    #[track_caller]
    fn check(deltas: Vec<Delta>) -> Vec<Delta> {
        let mut redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
        let mut redacted: Vec<_> =
            deltas.into_iter().flat_map(|delta| redactor.redact(vec![delta])).collect();
        redacted.extend(std::iter::from_fn(|| redactor.finish()));
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
        redacted.extend(std::iter::from_fn(|| redactor.finish()));
        redacted
    }

    /// Redacts deltas with these secrets, and returns what is shown of the text and of each call.
    fn shown(secrets: &[&str], deltas: Vec<Delta>) -> Vec<String> {
        let mut redactor = DeltaRedactor::new(&Secrets::new(secrets.iter().copied())).unwrap();
        let mut redacted = Vec::new();
        for delta in deltas {
            redacted.extend(redactor.redact(vec![delta]));
        }
        redacted.extend(std::iter::from_fn(|| redactor.finish()));
        let mut response = ResponseAssembler::new(ResponseLimits::default());
        for delta in &redacted {
            response.push(delta);
        }
        response.seal_all();
        let calls = response.calls().iter().map(|call| call.raw.clone());
        std::iter::once(response.text().to_owned()).chain(calls).collect()
    }

    #[test]
    fn a_secret_that_begins_a_longer_one_does_not_show_the_rest_of_it() {
        let secrets = ["sk-proj-0001", "sk-proj-0001-REAL-PART-99"];
        let whole = "a sk-proj-0001-REAL-PART-99 b sk-proj-0001 c sk-proj-0001-REA d";
        let expected = "a [redacted] b [redacted] c [redacted]-REA d";
        for at in 0..whole.len() {
            let (head, tail) = whole.split_at(at);
            assert_eq!(shown(&secrets, vec![text(head), text(tail)])[0], expected, "{at}");
        }
        let letters = whole.chars().map(|letter| text(&letter.to_string())).collect();
        assert_eq!(shown(&secrets, letters)[0], expected);
        let unfinished = vec![text("a sk-proj-0001")];
        assert_eq!(shown(&secrets, unfinished)[0], "a [redacted]");
    }

    #[test]
    fn arguments_that_come_in_turns_are_redacted() {
        let piece = |index, arguments: &str| {
            let (index, arguments) = (Some(index), Some(arguments.to_owned()));
            Delta::Call(CallDelta { index, arguments, ..CallDelta::default() })
        };
        let labelled = |index, arguments: &str| {
            let Delta::Call(piece) = piece(index, arguments) else { unreachable!() };
            let (id, name) = (Some(format!("c{index}")), Some("f".to_owned()));
            Delta::Call(CallDelta { id, name, ..piece })
        };
        for (head, tail) in (1..KEY.len()).map(|at| KEY.split_at(at)) {
            let deltas = vec![
                labelled(0, "{\"q\":\""),
                labelled(1, &format!("{{\"q\":\"{head}")),
                piece(0, "s"),
                piece(1, &format!("{tail}\"}}")),
                piece(0, "k\"}"),
            ];
            let shown = shown(&[KEY], deltas);
            assert_eq!(shown[1], "{\"q\":\"sk\"}");
            // At most a beginning that is shorter than half of the secret is shown.
            assert!(!shown[2].contains(&KEY[..KEY.len() / 2]), "{shown:?}");
            assert!(shown[2].contains("[redacted]") && !shown[2].contains(tail), "{shown:?}");
        }
    }

    #[test]
    fn half_of_a_secret_is_not_shown_although_its_text_ends() {
        for at in KEY.len() / 2..KEY.len() {
            let (head, tail) = KEY.split_at(at);
            let deltas = vec![text(&format!("a {head}")), part_end("{}"), usage(), text(tail)];
            let shown = shown(&[KEY], deltas);
            assert!(!shown[0].contains(head) && !shown[0].contains(tail), "{shown:?}");
            let shown = self::shown(&[KEY], vec![text(&format!("a {head}"))]);
            assert_eq!(shown[0], "a [redacted]");
        }
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
        let redacted = [text("a "), one.clone(), text("[redacted]!"), two.clone()];
        assert_eq!(redact(divided), redacted);
        // The secret begins behind the end.
        let behind = [text("a sk-li"), one.clone(), text(&format!("x {KEY} b")), two.clone()];
        let redacted = [text("a "), text("sk-li"), one, text("x [redacted] b"), two];
        assert_eq!(redact(behind), redacted);
    }

    #[test]
    fn text_that_is_held_back_comes_before_what_must_follow_it() {
        let call = CallDelta { name: Some("f".into()), ..CallDelta::default() };
        let reason = FinishReason::new(FinishKind::Stop, "stop");
        for next in [
            Delta::Reasoning("hm".into()),
            Delta::Refusal("no".into()),
            Delta::Call(call),
            Delta::Seal { index: 0, arguments: None },
            Delta::Metadata(ProviderMetadata::Reasoning { members: None }),
            Delta::Metadata(ProviderMetadata::RawPart("{}".into())),
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
    fn a_secret_is_replaced_if_another_text_comes_between_its_pieces() {
        let more = |index, arguments: &str| {
            let (index, arguments) = (Some(index), Some(arguments.to_owned()));
            Delta::Call(CallDelta { index, arguments, ..CallDelta::default() })
        };
        let (hm, no) = (Delta::Reasoning("hm".into()), Delta::Refusal("no".into()));
        let text_of = |deltas: &[Delta]| {
            let mut response = ResponseAssembler::new(ResponseLimits::default());
            deltas.iter().for_each(|delta| drop(response.push(delta)));
            response.text().to_owned()
        };
        for cut in 1..KEY.len() {
            let (begin, rest) = KEY.split_at(cut);
            for other in [&hm, &no, &more(0, "{}")] {
                let divided = [text(&format!("a {begin}")), other.clone(), text(rest)];
                let redacted = redact(divided);
                let begin = if cut < WAITING_BYTES_MIN { begin } else { "" };
                assert_eq!(text_of(&redacted), format!("a {begin}[redacted]"));
                assert_eq!(redacted.iter().filter(|delta| *delta == other).count(), 1);
            }
        }
        let pieces = KEY.chars().flat_map(|char| [text(&char.to_string()), hm.clone()]);
        assert_eq!(text_of(&redact(pieces.collect::<Vec<_>>())), "sk-[redacted]");
        // The end of a word keeps its position.
        let word = [text("class"), hm.clone(), text("es!")];
        assert_eq!(redact(word), [text("clas"), text("s"), hm.clone(), text("es!")]);
        // A beginning that is no secret is released before the end of the response.
        let reason = FinishReason::new(FinishKind::Stop, "stop");
        let stop = Delta::Finish(reason);
        let ended = [text("sk-live"), hm.clone(), stop.clone()];
        assert_eq!(redact(ended), [hm.clone(), text("sk-live"), stop]);
        assert_eq!(redact([text("sk-live"), hm.clone()]), [hm, text("sk-live")]);
        let calls = [more(0, "sk-live"), more(1, "{}")];
        assert_eq!(redact(calls.clone()), calls);
    }

    #[test]
    fn a_secret_is_replaced_if_its_pieces_repeat_the_id_or_the_name_of_the_call() {
        let piece = |(id, name): (&str, &str), arguments: &str| {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let (index, arguments) = (Some(0), Some(arguments.to_owned()));
            let (id, name) = (some(id), some(name));
            Delta::Call(CallDelta { index, id, name, arguments, ..CallDelta::default() })
        };
        let arguments_of = |deltas: &[Delta]| -> Vec<String> {
            let mut response = ResponseAssembler::new(ResponseLimits::default());
            deltas.iter().for_each(|delta| drop(response.push(delta)));
            response.calls().iter().map(|call| call.raw.clone()).collect()
        };
        let (both, none) = (("c", "f"), ("", ""));
        for cut in 1..KEY.len() {
            let (begin, rest) = KEY.split_at(cut);
            for (first, second) in [
                (both, both),
                (both, none),
                (none, both),
                (("c", ""), ("c", "")),
                (("", "f"), ("", "f")),
            ] {
                let pieces = [
                    piece(both, "{\"k\":\""),
                    piece(first, begin),
                    piece(second, rest),
                    piece(second, "\"}"),
                ];
                let redacted = arguments_of(&redact(pieces));
                assert_eq!(redacted, ["{\"k\":\"[redacted]\"}"], "{first:?} {second:?} {cut}");
            }
        }
        // Another id begins another call.
        let calls = [piece(both, "sk-live"), piece(("d", "f"), "-0123456789")];
        assert_eq!(arguments_of(&redact(calls)), ["sk-live", "-0123456789"]);
        // A text in which no secret begins passes unchanged.
        let calls = [piece(both, "{\"a\""), piece(both, ":1}")];
        assert_eq!(redact(calls.clone()), calls);
    }

    #[test]
    fn what_had_to_be_released_is_remembered() {
        let call = Delta::Call(CallDelta { name: Some("f".into()), ..CallDelta::default() });
        for next in [call, part_end("{}"), Delta::Metadata(ProviderMetadata::RawPart("{}".into()))]
        {
            let hm = Delta::Reasoning("hm".into());
            let divided = [text("a sk-live-"), next.clone(), hm.clone(), text("0123456789!")];
            let expected = [text("a "), text("sk-live-"), next, hm, text("[redacted]!")];
            assert_eq!(redact(divided), expected);
        }
    }

    #[test]
    fn what_begins_no_secret_passes_unchanged() {
        let secrets = Secrets::new(["another-secret"]);
        let mut redactor = DeltaRedactor::new(&secrets).unwrap();
        for delta in deltas(3) {
            let redacted = redactor.redact(vec![delta.clone()]);
            let is_held = matches!(&delta, Delta::Text(text) if text.ends_with('a'));
            let is_unchanged = redacted == [delta.clone()];
            assert!(is_unchanged || is_held || redactor.held.is_empty(), "{delta:?}");
        }
        assert!(DeltaRedactor::new(&Secrets::default()).is_none());
    }

    #[test]
    fn errors_are_redacted() {
        let redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
        let mut error = ProviderError::new(ProviderErrorKind::Status, format!("bad key {KEY}"));
        redactor.redact_error(&mut error);
        assert_eq!(error.message, "bad key [redacted]");
        error.message =
            callsheet_values::types::excerpt(&error.message.replace("[redacted]", KEY), 18);
        redactor.redact_error(&mut error);
        assert_eq!(error.message, "bad key [redacted]…");
    }
}
