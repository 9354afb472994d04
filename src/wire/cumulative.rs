//! Texts that arrive as snapshots: each piece repeats all of the text so far, as some services stream, although the
//! formats want pieces. MiniMax documents it for `reasoning_details` (and sends pieces, by other reports);
//! gateways pass it on from services that stream so.
//!
//! It is certain if the second piece begins with the first, and the third with the second, and is not the first one
//! repeated, as in `ha`, `haha`. Until then the second piece is held back. Nothing of this costs a response anything
//! whose second piece does not begin with the first.

use std::borrow::Cow;

use super::delta::append_text;
use super::{Delta, Wire};

/// Minimum bytes of a first piece that a second one, without a third, proves to be a snapshot.
const CERTAIN_BYTES: usize = 8;

/// One text of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CumulativeText {
    state: CumulativeState,
    /// The last snapshot, or what may be one.
    text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CumulativeState {
    /// Before the first piece.
    #[default]
    Empty,
    /// After the first piece.
    First,
    /// The second piece, which is held back, begins with the first, which has this many bytes.
    Second { first_bytes: usize },
    /// The pieces are snapshots.
    Snapshots,
    /// The pieces are pieces.
    Pieces,
}

impl CumulativeText {
    /// Returns whether pieces pass unchanged from now on.
    pub(super) fn is_decided(&self) -> bool {
        self.state == CumulativeState::Pieces
    }

    fn is_empty(&self) -> bool {
        self.state == CumulativeState::Empty
    }

    fn set_pieces(&mut self) {
        *self = Self { state: CumulativeState::Pieces, text: String::new() };
    }

    /// Returns the text that a piece adds. `is_json` is true for pieces of a JSON object: of these, the second is
    /// proof enough, because no object continues with its own beginning.
    pub(super) fn read<'p>(&mut self, piece: &'p str, is_json: bool) -> Cow<'p, str> {
        if piece.is_empty() || self.state == CumulativeState::Pieces {
            return Cow::Borrowed(piece);
        }
        let rest = piece.strip_prefix(self.text.as_str()).filter(|rest| !rest.is_empty());
        let is_repeated = |unit: &str| {
            let mut rest = piece;
            while let Some(next) = rest.strip_prefix(unit).filter(|_| !unit.is_empty()) {
                rest = next;
            }
            rest.is_empty()
        };
        let added = match (self.state, rest) {
            (CumulativeState::Empty, _) => {
                self.state = CumulativeState::First;
                Cow::Borrowed(piece)
            }
            (CumulativeState::First, Some(rest))
                if is_json && self.text.trim_start().starts_with('{') =>
            {
                self.state = CumulativeState::Snapshots;
                Cow::Borrowed(rest)
            }
            (CumulativeState::First, Some(_)) if !is_json => {
                let first_bytes = self.text.len();
                self.state = CumulativeState::Second { first_bytes };
                Cow::Borrowed("")
            }
            (CumulativeState::Second { first_bytes }, Some(_))
                if !is_repeated(self.text.get(..first_bytes).unwrap_or_default()) =>
            {
                self.state = CumulativeState::Snapshots;
                Cow::Borrowed(piece.get(first_bytes..).unwrap_or_default())
            }
            // The same snapshot again.
            (CumulativeState::Second { first_bytes }, None)
                if piece == self.text && piece.len() >= CERTAIN_BYTES =>
            {
                self.state = CumulativeState::Snapshots;
                return Cow::Borrowed(piece.get(first_bytes..).unwrap_or_default());
            }
            (CumulativeState::Second { .. }, _) => {
                let both = std::mem::take(&mut self.text) + piece;
                self.set_pieces();
                return Cow::Owned(both);
            }
            (CumulativeState::Snapshots, Some(rest)) => Cow::Borrowed(rest),
            // An earlier snapshot again.
            (CumulativeState::Snapshots, None) if self.text.starts_with(piece) => {
                return Cow::Borrowed("");
            }
            (CumulativeState::Snapshots, None) => {
                self.text.push_str(piece);
                return Cow::Borrowed(piece);
            }
            (CumulativeState::First | CumulativeState::Pieces, _) => {
                self.set_pieces();
                return Cow::Borrowed(piece);
            }
        };
        piece.clone_into(&mut self.text);
        added
    }

    /// Returns the text that is held back. Unless snapshots have come, what follows are pieces.
    pub(super) fn finish(&mut self) -> Option<String> {
        match self.state {
            CumulativeState::Second { first_bytes } => {
                let begin = if first_bytes < CERTAIN_BYTES { 0 } else { first_bytes };
                let held = self.text.split_off(begin);
                self.set_pieces();
                Some(held)
            }
            CumulativeState::First => {
                self.set_pieces();
                None
            }
            CumulativeState::Empty | CumulativeState::Snapshots | CumulativeState::Pieces => None,
        }
    }
}

/// The text and the reasoning of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CumulativeTexts {
    text: CumulativeText,
    reasoning: CumulativeText,
}

impl CumulativeTexts {
    /// Creates the texts of a response over this wire. The events of the other wires say that they are pieces.
    pub(super) fn new(wire: Wire, is_streamed: bool) -> Self {
        let (text, reasoning) = (CumulativeText::default(), CumulativeText::default());
        let mut texts = Self { text, reasoning };
        match wire {
            Wire::OpenaiChat | Wire::OllamaChat | Wire::GeminiGenerate if is_streamed => {}
            Wire::OpenaiChat
            | Wire::OllamaChat
            | Wire::GeminiGenerate
            | Wire::AnthropicMessages
            | Wire::OpenaiResponses => {
                texts.text.set_pieces();
                texts.reasoning.set_pieces();
            }
        }
        texts
    }

    /// Returns whether all deltas pass unchanged from now on.
    pub(super) fn is_over(&self) -> bool {
        self.text.is_decided() && self.reasoning.is_decided()
    }

    /// Returns whether the deltas of the next payload must not be joined with those before.
    pub(super) fn needs_pieces(&self) -> bool {
        let needs = |text: &CumulativeText| !text.is_empty() && !text.is_decided();
        needs(&self.text) || needs(&self.reasoning)
    }

    /// Reads the deltas of one payload, which begin at a position.
    pub(super) fn read(&mut self, deltas: &mut Vec<Delta>, from: usize) {
        let new = deltas.get(from..).unwrap_or_default();
        let is_undecided = new.iter().any(|delta| {
            matches!(delta, Delta::Text(_)) && !self.text.is_decided()
                || matches!(delta, Delta::Reasoning(_)) && !self.reasoning.is_decided()
        });
        if !is_undecided && !self.needs_pieces() {
            return;
        }
        for delta in deltas.split_off(from.min(deltas.len())) {
            match &delta {
                Delta::Text(piece) => {
                    self.finish_reasoning(deltas);
                    append_some(Delta::Text, &self.text.read(piece, false), deltas);
                    // Reasoning that comes after the answer has begun is not looked at.
                    if self.reasoning.is_empty() {
                        self.reasoning.set_pieces();
                    }
                }
                Delta::Reasoning(piece) => {
                    self.finish_text(deltas);
                    append_some(Delta::Reasoning, &self.reasoning.read(piece, false), deltas);
                }
                Delta::Usage { .. } | Delta::Problem(_) => deltas.push(delta),
                Delta::Metadata(_)
                | Delta::Refusal(_)
                | Delta::Call(_)
                | Delta::Seal { .. }
                | Delta::Finish(_)
                | Delta::Error(_)
                | Delta::Done => {
                    self.finish(deltas);
                    deltas.push(delta);
                }
            }
        }
    }

    /// Appends what is held back.
    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        self.finish_reasoning(out);
        self.finish_text(out);
    }

    fn finish_reasoning(&mut self, out: &mut Vec<Delta>) {
        out.extend(self.reasoning.finish().map(Delta::Reasoning));
    }

    fn finish_text(&mut self, out: &mut Vec<Delta>) {
        out.extend(self.text.finish().map(Delta::Text));
    }
}

fn append_some(kind: fn(String) -> Delta, text: &str, out: &mut Vec<Delta>) {
    if !text.is_empty() {
        append_text(kind, text, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&str], expected: &str) {
        let mut texts = CumulativeTexts::new(Wire::OpenaiChat, true);
        let mut deltas = Vec::new();
        for piece in pieces {
            let mut new = vec![Delta::Text((*piece).to_owned())];
            texts.read(&mut new, 0);
            deltas.append(&mut new);
        }
        texts.finish(&mut deltas);
        let text = |delta: &Delta| {
            let Delta::Text(text) = delta else { panic!("{delta:?}") };
            text.clone()
        };
        assert_eq!(deltas.iter().map(text).collect::<String>(), expected, "{pieces:?}");
    }

    #[test]
    fn snapshots_add_only_what_is_new() {
        check(&["The", "The user", "The user wants", "The user wants é"], "The user wants é");
        check(&["The", "The user", "The user", "The user wants"], "The user wants");
        let repeated = ["The", "The user", "The user wants", "The user wants", "The user"];
        check(&repeated, "The user wants");
        check(&["I think of", "I think of it"], "I think of it");
    }

    #[test]
    fn pieces_stay_pieces() {
        check(&["The", " user", " wants"], "The user wants");
        check(&["ha", "haha", "hahaha"], "hahahahahaha");
        check(&["=", "==", "==="], "======");
        check(&["No", "No", ", no"], "NoNo, no");
        check(&["1", "12", "5"], "1125");
        check(&["", "a", "", "ab"], "aab");
    }

    #[test]
    fn the_second_piece_of_an_object_is_proof() {
        let mut arguments = CumulativeText::default();
        let added = ["{\"a\"", "{\"a\": 1", "{\"a\": 1}", "{\"a\": 1}"];
        let added = added.map(|piece| arguments.read(piece, true).into_owned());
        assert_eq!(added, ["{\"a\"", ": 1", "}", ""]);
        let mut arguments = CumulativeText::default();
        let added = ["{\"a\"", ": {", "}}"].map(|piece| arguments.read(piece, true).into_owned());
        assert_eq!(added.concat(), "{\"a\": {}}");
    }
}
