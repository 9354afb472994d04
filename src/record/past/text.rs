//! The text of a response, as it was shown.

use std::collections::VecDeque;

use crate::event::Event;
use crate::record::{DisplayedSegment, ResponseMessage};

/// The largest piece in which text is shown again.
pub(super) const PIECE_BYTES_MAX: usize = 16 * 1024;

/// A piece of what a model says, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPiece {
    /// Whether it is thinking and not the answer.
    pub is_thinking: bool,
    /// What it says.
    pub text: String,
}

impl From<TextPiece> for Event {
    fn from(TextPiece { is_thinking, text }: TextPiece) -> Self {
        if is_thinking { Self::ThinkingReceived { text } } else { Self::TextReceived { text } }
    }
}

/// What was shown of a response, in its order. What its layout does not tell is its reasoning and
/// then its text.
pub(super) fn layout<'a>(
    message: &'a ResponseMessage,
    shown: &'a [DisplayedSegment],
) -> Vec<(bool, &'a str)> {
    let (mut text, mut reasoning) = (message.text.as_str(), message.reasoning.as_str());
    let mut pieces = Vec::with_capacity(shown.len() + 2);
    for piece in shown {
        pieces.push(match piece {
            DisplayedSegment::Text(bytes) => (false, take(&mut text, *bytes)),
            DisplayedSegment::Thinking(bytes) => (true, take(&mut reasoning, *bytes)),
            DisplayedSegment::Dropped(thinking) => (true, thinking.as_str()),
        });
    }
    pieces.extend([(true, reasoning), (false, text)]);
    pieces
}

/// What watchers are shown of a response of which this much is kept, in its order.
#[must_use]
pub fn shown_of(message: &ResponseMessage, shown: &[DisplayedSegment]) -> Vec<TextPiece> {
    let pieces = layout(message, shown).into_iter().filter(|(_, text)| !text.is_empty());
    pieces.map(|(is_thinking, text)| TextPiece { is_thinking, text: text.to_owned() }).collect()
}

/// The first so many bytes of a text, which is left with the rest.
fn take<'a>(text: &mut &'a str, bytes: usize) -> &'a str {
    let (head, rest) = text.split_at(text.floor_char_boundary(bytes));
    *text = rest;
    head
}

/// Text that is given out piece by piece.
pub(super) struct Text<'a> {
    pieces: VecDeque<(bool, &'a str)>,
    /// How many bytes were given out.
    pub(super) at: u64,
}

impl<'a> Text<'a> {
    pub(super) fn new(pieces: Vec<(bool, &'a str)>, at: u64) -> Self {
        Self { pieces: pieces.into(), at }
    }

    /// The next piece up to so many bytes of the whole.
    pub(super) fn next(&mut self, upto: u64) -> Option<(bool, &'a str)> {
        while self.pieces.front().is_some_and(|(_, text)| text.is_empty()) {
            self.pieces.pop_front();
        }
        let room = usize::try_from(upto.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let (is_thinking, text) = self.pieces.front_mut()?;
        let piece = take(text, room.min(PIECE_BYTES_MAX));
        self.at += piece.len() as u64;
        (!piece.is_empty()).then_some((*is_thinking, piece))
    }
}
