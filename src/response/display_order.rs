//! What watchers were shown of a response, in its order: where thinking and text take turns, its
//! message alone does not tell.

use crate::record::{DisplayedSegment, ResponseMessage};

/// Pieces that are told apart. What comes beyond is shown again as thinking and then text.
const PIECES_MAX: usize = 1024;

/// The order of a response's text and thinking, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DisplayOrder {
    /// Each with whether it is thinking, and its bytes.
    pieces: Vec<(bool, usize)>,
    /// There were too many.
    is_full: bool,
}

impl DisplayOrder {
    /// More was shown.
    pub(crate) fn push(&mut self, is_thinking: bool, bytes: usize) {
        if bytes == 0 || self.is_full {
            return;
        }
        let is_at_end = self.pieces.len() == PIECES_MAX;
        match self.pieces.last_mut() {
            Some((of_thinking, before)) if *of_thinking == is_thinking => *before += bytes,
            Some(_) if is_at_end => self.is_full = true,
            Some(_) | None => self.pieces.push((is_thinking, bytes)),
        }
    }

    /// Returns whether nothing was shown.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The order for the record of this message; empty where it is thinking and then text.
    pub(crate) fn of(&self, message: &ResponseMessage) -> Vec<DisplayedSegment> {
        let kinds = self.pieces.iter().map(|(is_thinking, _)| *is_thinking);
        let mut sorted = kinds.clone().collect::<Vec<_>>();
        sorted.sort_by_key(|is_thinking| !is_thinking);
        if kinds.eq(sorted) {
            return Vec::new();
        }
        // A piece that the message does not hold was beyond what is kept of a response.
        let (mut text, mut thinking) = (message.text.len(), message.reasoning.len());
        let pieces = self.pieces.iter().map(|&(is_thinking, bytes)| {
            let left = if is_thinking { &mut thinking } else { &mut text };
            let bytes = bytes.min(*left);
            *left -= bytes;
            if is_thinking {
                DisplayedSegment::Thinking(bytes)
            } else {
                DisplayedSegment::Text(bytes)
            }
        });
        pieces.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(pieces: &[(bool, usize)]) -> DisplayOrder {
        let mut layout = DisplayOrder::default();
        pieces.iter().for_each(|(is_thinking, bytes)| layout.push(*is_thinking, *bytes));
        layout
    }

    #[track_caller]
    fn check(pieces: &[(bool, usize)], expect: &[DisplayedSegment]) {
        let sum = |of: bool| pieces.iter().filter(|(is, _)| *is == of).map(|(_, n)| n).sum();
        let message = ResponseMessage {
            text: "t".repeat(sum(false)),
            reasoning: "r".repeat(sum(true)),
            ..ResponseMessage::default()
        };
        assert_eq!(layout(pieces).of(&message), expect);
    }

    #[test]
    fn the_usual_order_needs_no_words() {
        check(&[], &[]);
        check(&[(false, 3), (false, 4)], &[]);
        check(&[(true, 3), (true, 4), (false, 0), (true, 1), (false, 2), (false, 3)], &[]);
    }

    #[test]
    fn pieces_of_a_kind_are_one() {
        use DisplayedSegment::{Text, Thinking};
        check(&[(false, 3), (true, 4)], &[Text(3), Thinking(4)]);
        check(
            &[(true, 1), (true, 2), (false, 3), (true, 4), (false, 5), (false, 6)],
            &[Thinking(3), Text(3), Thinking(4), Text(11)],
        );
    }

    #[test]
    fn no_more_is_told_apart_than_may_be() {
        let pieces: Vec<_> = (0..3 * PIECES_MAX).map(|at| (at % 2 == 0, 1)).collect();
        let message = ResponseMessage {
            text: "t".repeat(pieces.len()),
            reasoning: "r".repeat(pieces.len()),
            ..ResponseMessage::default()
        };
        assert_eq!(layout(&pieces).of(&message).len(), PIECES_MAX);
    }
}
