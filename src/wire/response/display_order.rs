//! The order in which a response's text and thinking were displayed. Its message holds all thinking
//! and all text, but not how they alternated.

use callsheet_values::record::{DisplayedSegment, ResponseMessage};

/// Maximum number of segments of one response. A client that joins later receives the rest as thinking
/// followed by text.
const SEGMENTS_MAX: usize = 1024;

/// The order of a response's text and thinking, as far as it has arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DisplayOrder {
    /// For each segment: true for thinking, and its length in bytes.
    segments: Vec<(bool, usize)>,
    /// True if there were more than [`SEGMENTS_MAX`] segments. Nothing is added any more then.
    is_full: bool,
}

impl DisplayOrder {
    /// Adds bytes that were displayed.
    pub fn push(&mut self, is_thinking: bool, bytes: usize) {
        if bytes == 0 || self.is_full {
            return;
        }
        let is_at_limit = self.segments.len() == SEGMENTS_MAX;
        match self.segments.last_mut() {
            Some((kind, before)) if *kind == is_thinking => *before += bytes,
            Some(_) if is_at_limit => self.is_full = true,
            Some(_) | None => self.segments.push((is_thinking, bytes)),
        }
    }

    /// Returns whether nothing was displayed.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the order for the record of this message. It is empty for thinking followed by text.
    pub fn segments(&self, message: &ResponseMessage) -> Vec<DisplayedSegment> {
        if let [] | [_] | [(true, _), (false, _)] = self.segments.as_slice() {
            return Vec::new();
        }
        // The message may lack the last segments, because its length is limited.
        let (mut text, mut thinking) = (message.text.len(), message.reasoning.len());
        let segment = |&(is_thinking, bytes): &(bool, usize)| {
            let left = if is_thinking { &mut thinking } else { &mut text };
            let bytes = bytes.min(*left);
            *left -= bytes;
            if is_thinking {
                DisplayedSegment::Thinking(bytes)
            } else {
                DisplayedSegment::Text(bytes)
            }
        };
        self.segments.iter().map(segment).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(pieces: &[(bool, usize)]) -> DisplayOrder {
        let mut order = DisplayOrder::default();
        pieces.iter().for_each(|(is_thinking, bytes)| order.push(*is_thinking, *bytes));
        order
    }

    #[track_caller]
    fn check(pieces: &[(bool, usize)], expect: &[DisplayedSegment]) {
        let sum = |of: bool| pieces.iter().filter(|(is, _)| *is == of).map(|(_, n)| n).sum();
        let message = ResponseMessage {
            text: "t".repeat(sum(false)),
            reasoning: "r".repeat(sum(true)),
            ..ResponseMessage::default()
        };
        assert_eq!(order(pieces).segments(&message), expect);
    }

    #[test]
    fn thinking_followed_by_text_has_no_order() {
        check(&[], &[]);
        check(&[(false, 3), (false, 4)], &[]);
        check(&[(true, 3), (true, 4), (false, 0), (true, 1), (false, 2), (false, 3)], &[]);
    }

    #[test]
    fn consecutive_pieces_of_a_kind_are_one_segment() {
        use DisplayedSegment::{Text, Thinking};
        check(&[(false, 3), (true, 4)], &[Text(3), Thinking(4)]);
        check(
            &[(true, 1), (true, 2), (false, 3), (true, 4), (false, 5), (false, 6)],
            &[Thinking(3), Text(3), Thinking(4), Text(11)],
        );
    }

    #[test]
    fn the_number_of_segments_is_limited() {
        let pieces: Vec<_> = (0..3 * SEGMENTS_MAX).map(|at| (at % 2 == 0, 1)).collect();
        let message = ResponseMessage {
            text: "t".repeat(pieces.len()),
            reasoning: "r".repeat(pieces.len()),
            ..ResponseMessage::default()
        };
        assert_eq!(order(&pieces).segments(&message).len(), SEGMENTS_MAX);
    }
}
