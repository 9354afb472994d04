//! Payloads that are the one before with another text in it, as nearly all of a stream are.
//!
//! Once a payload was read and came to one piece of text or of a call's arguments, it is kept with
//! the place of that text in it. Where the next one has the same bytes around the place, it means
//! the same piece with the text that stands there now, and nothing else of it is parsed. Anything
//! that is not certain is read in full: what comes of a stream is the same either way.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use serde::de::IgnoredAny;

use super::{CallKind, CallPiece, Delta};

/// What a dialect says of payloads that repeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeats {
    /// The keys under which pieces of text stand.
    pub(super) said: &'static [&'static str],
    /// Keys of texts and numbers that change with every payload, and that nobody reads.
    pub(super) passed_over: &'static [&'static str],
    /// Keys of what is put together of several payloads: one that holds such a key is read in full.
    pub(super) put_together: &'static [&'static str],
}

/// Longer ones hold more than a piece.
const PAYLOAD_BYTES_MAX: usize = 4096;

/// The payload before, if it may repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Repeated {
    event: String,
    payload: String,
    /// Where payloads may differ from it, in order.
    holes: Vec<Hole>,
    /// What it came to; its text is not looked at.
    piece: Option<Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hole {
    begin: usize,
    end: usize,
    kind: HoleKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoleKind {
    /// The inside of the string that is the piece.
    Said,
    /// The inside of a string that nobody reads.
    Text,
    /// The digits of a number that nobody reads.
    Number,
}

/// What repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text,
    Reasoning,
    Refusal,
    Arguments(CallPiece),
}

impl Piece {
    /// What repeats, and its text; none for what says more than that.
    fn of(delta: &Delta) -> Option<(Self, &str)> {
        match delta {
            Delta::Text(text) => Some((Self::Text, text)),
            Delta::Reasoning(text) => Some((Self::Reasoning, text)),
            Delta::Refusal(text) => Some((Self::Refusal, text)),
            Delta::Call(CallPiece { arguments: Some(text), kind, begins: false, .. })
                if *kind != CallKind::ServerToolUse =>
            {
                let Delta::Call(piece) = delta else { return None };
                Some((Self::Arguments(CallPiece { arguments: None, ..piece.clone() }), text))
            }
            Delta::Call(_)
            | Delta::Seal { .. }
            | Delta::Keep(_)
            | Delta::Finish(_)
            | Delta::Usage { .. }
            | Delta::Error(_)
            | Delta::Problem(_)
            | Delta::Done => None,
        }
    }

    /// Says it, together with what was said right before where that is one piece.
    pub(super) fn say(&self, text: &str, out: &mut Vec<Delta>) {
        match out.last_mut().and_then(|last| self.text_of(last)) {
            Some(before) => before.push_str(text),
            None => out.push(self.with(text.to_owned())),
        }
    }

    fn with(&self, text: String) -> Delta {
        match self {
            Self::Text => Delta::Text(text),
            Self::Reasoning => Delta::Reasoning(text),
            Self::Refusal => Delta::Refusal(text),
            Self::Arguments(piece) => {
                Delta::Call(CallPiece { arguments: Some(text), ..piece.clone() })
            }
        }
    }

    /// The text of a delta that this piece may be joined to: it means the same as the two.
    fn text_of<'d>(&self, delta: &'d mut Delta) -> Option<&'d mut String> {
        match (self, delta) {
            (Self::Text, Delta::Text(text))
            | (Self::Reasoning, Delta::Reasoning(text))
            | (Self::Refusal, Delta::Refusal(text)) => Some(text),
            (Self::Arguments(piece), Delta::Call(before)) => {
                let CallPiece { index, id, name, arguments, kind, begins } = before;
                let is_same = (*index, &*id, &*name, *kind, *begins)
                    == (piece.index, &piece.id, &piece.name, piece.kind, piece.begins);
                arguments.as_mut().filter(|_| is_same)
            }
            _ => None,
        }
    }
}

impl Repeated {
    /// What the payload says, if it is the one before with another text: which piece, and its text.
    pub(super) fn read<'p>(&self, event: &str, payload: &'p str) -> Option<(&Piece, Cow<'p, str>)> {
        let piece = self.piece.as_ref()?;
        if !is_same(event, &self.event) {
            return None;
        }
        let (mut rest, mut from) = (payload, 0);
        let mut said = None;
        for Hole { begin, end, kind } in &self.holes {
            rest = rest.strip_prefix(self.payload.get(from..*begin)?)?;
            from = *end;
            let (inside, behind) = match kind {
                HoleKind::Said | HoleKind::Text => split_string(rest)?,
                HoleKind::Number => split_number(rest)?,
            };
            match kind {
                HoleKind::Said => said = Some(inside),
                // What is escaped may be escaped wrongly.
                HoleKind::Text if inside.contains('\\') || has_controls(inside) => return None,
                HoleKind::Text | HoleKind::Number => {}
            }
            rest = behind;
        }
        if rest != self.payload.get(from..)? {
            return None;
        }
        Some((piece, text_of(said?)?))
    }

    /// The payload was read in full, as it stands, and came to these deltas.
    pub(super) fn learn(&mut self, event: &str, payload: &str, deltas: &[Delta], of: Repeats) {
        self.piece = self.find(event, payload, deltas, of);
    }

    /// The payload before does not repeat.
    pub(super) fn forget(&mut self) {
        self.piece = None;
    }

    fn find(&mut self, event: &str, payload: &str, deltas: &[Delta], of: Repeats) -> Option<Piece> {
        let [delta] = deltas else { return None };
        let (piece, text) = Piece::of(delta)?;
        if payload.len() > PAYLOAD_BYTES_MAX || !is_a_strings(text) {
            return None;
        }
        self.holes.clear();
        find_holes(payload, text, of, &mut self.holes)?;
        event.clone_into(&mut self.event);
        payload.clone_into(&mut self.payload);
        Some(piece)
    }
}

/// Whether two names of events are equal. Most wires name none, and to compare nothing with nothing
/// byte by byte is slow: some versions of the C library read the place that an empty text does not
/// have, with a mask, and the processor has to catch that.
fn is_same(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// Whether a piece with this text can only come from a string: nothing else is read as such a text.
fn is_a_strings(text: &str) -> bool {
    !text.trim_ascii().is_empty() && serde_json::from_str::<IgnoredAny>(text).is_err()
}

/// Where payloads may differ from this one, if the text is said in one of its strings alone.
fn find_holes(payload: &str, text: &str, of: Repeats, holes: &mut Vec<Hole>) -> Option<()> {
    // The key whose value comes next.
    let mut key = None;
    let (mut at, mut is_said) = (0, false);
    while let Some(quote) = payload.as_bytes().get(at..).and_then(|rest| memchr(b'"', rest)) {
        let begin = at + quote + 1;
        let (inside, behind) = split_string(payload.get(begin..)?)?;
        let end = begin + inside.len();
        at = end + 1;
        let behind = behind.get(1..)?.trim_ascii_start();
        if let Some(value) = behind.strip_prefix(':') {
            if inside.contains('\\') || of.put_together.contains(&inside) {
                return None;
            }
            let value = value.trim_ascii_start();
            key = Some(inside).filter(|_| value.starts_with('"'));
            if of.passed_over.contains(&inside)
                && let Some((digits, _)) = split_number(value)
            {
                let begin = payload.len() - value.len();
                holes.push(Hole { begin, end: begin + digits.len(), kind: HoleKind::Number });
            }
            continue;
        }
        let key = key.take();
        let is_of = |keys: &[&str]| key.is_some_and(|key| keys.contains(&key));
        if text_of(inside).as_deref() == Some(text) {
            if is_said || !is_of(of.said) {
                return None;
            }
            is_said = true;
            holes.push(Hole { begin, end, kind: HoleKind::Said });
        } else if is_of(of.passed_over) {
            holes.push(Hole { begin, end, kind: HoleKind::Text });
        }
    }
    is_said.then_some(())
}

/// The inside of a string up to its closing quote, and what comes from there on.
fn split_string(text: &str) -> Option<(&str, &str)> {
    let mut end = 0;
    loop {
        end += memchr2(b'"', b'\\', text.as_bytes().get(end..)?)?;
        if text.as_bytes().get(end) == Some(&b'"') {
            return text.split_at_checked(end);
        }
        // Whatever is escaped, it is not the closing quote.
        end += 2;
    }
}

/// A whole number that is no less and no more than its digits.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit())?;
    let is_number = end == 1 || (end > 1 && !text.starts_with('0'));
    let ends = text.as_bytes().get(end).is_some_and(|byte| b",}] \n\r\t".contains(byte));
    (is_number && ends).then(|| text.split_at_checked(end)).flatten()
}

/// The text of a string's inside; none where it is nothing, or not for us to judge.
fn text_of(inside: &str) -> Option<Cow<'_, str>> {
    if inside.is_empty() || has_controls(inside) {
        return None;
    }
    if memchr(b'\\', inside.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inside));
    }
    serde_json::from_str(&format!("\"{inside}\"")).ok().map(Cow::Owned)
}

/// What JSON does not allow in a string as it is.
fn has_controls(inside: &str) -> bool {
    inside.bytes().fold(false, |found, byte| found | (byte < b' '))
}

#[cfg(test)]
mod tests;
