//! The text of a response, in the order in which it was published.

use std::collections::VecDeque;

use crate::event::Event;
use crate::record::{DisplayedSegment, ResponseMessage};
use crate::types::floor_char_boundary;

/// The maximum length of the text of one event. A reader of past events may hold such a text without a share of the
/// memory for large events.
pub(super) const PIECE_BYTES_MAX: usize = 8 * 1024;

/// A piece of a model's answer or thinking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisplayedText {
    /// True for thinking, false for the answer.
    pub is_thinking: bool,
    /// The text.
    pub text: String,
}

impl From<DisplayedText> for Event {
    fn from(DisplayedText { is_thinking, text }: DisplayedText) -> Self {
        if is_thinking { Self::ThinkingReceived { text } } else { Self::TextReceived { text } }
    }
}

/// Returns text and thinking of a response in the order of publishing. Text that no segment covers
/// comes last: the rest of the reasoning, then the rest of the answer.
pub(super) fn display_order<'a>(
    message: &'a ResponseMessage,
    segments: &'a [DisplayedSegment],
) -> Vec<(bool, &'a str)> {
    let (mut text, mut reasoning) = (message.text.as_str(), message.reasoning.as_str());
    let mut pieces = Vec::with_capacity(segments.len() + 2);
    for segment in segments {
        pieces.push(match segment {
            DisplayedSegment::Text(bytes) => (false, split_prefix(&mut text, *bytes)),
            DisplayedSegment::Thinking(bytes) => (true, split_prefix(&mut reasoning, *bytes)),
            DisplayedSegment::Dropped(thinking) => (true, thinking.as_str()),
        });
    }
    pieces.extend([(true, reasoning), (false, text)]);
    pieces
}

/// Returns the text of a kept response, in the order of publishing.
#[must_use]
pub fn displayed_text(
    message: &ResponseMessage,
    segments: &[DisplayedSegment],
) -> Vec<DisplayedText> {
    let pieces = display_order(message, segments).into_iter().filter(|(_, text)| !text.is_empty());
    pieces.map(|(is_thinking, text)| DisplayedText { is_thinking, text: text.to_owned() }).collect()
}

/// Removes and returns the first bytes of a text.
fn split_prefix<'a>(text: &mut &'a str, bytes: usize) -> &'a str {
    let (head, rest) = text.split_at(floor_char_boundary(text, bytes));
    *text = rest;
    head
}

/// The text of an attempt that is returned piece by piece.
pub(super) struct UnsentText<'a> {
    pieces: VecDeque<(bool, &'a str)>,
    /// The number of bytes that were returned, including those before the first piece.
    pub(super) at: u64,
}

impl<'a> UnsentText<'a> {
    pub(super) fn new(pieces: Vec<(bool, &'a str)>, at: u64) -> Self {
        Self { pieces: pieces.into(), at }
    }

    /// Returns the next piece. It ends at most at byte `upto` of the attempt's text.
    pub(super) fn next(&mut self, upto: u64) -> Option<(bool, &'a str)> {
        while self.pieces.front().is_some_and(|(_, text)| text.is_empty()) {
            self.pieces.pop_front();
        }
        let room = usize::try_from(upto.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let (is_thinking, text) = self.pieces.front_mut()?;
        let piece = split_prefix(text, room.min(PIECE_BYTES_MAX));
        self.at += piece.len() as u64;
        (!piece.is_empty()).then_some((*is_thinking, piece))
    }
}
