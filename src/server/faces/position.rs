//! Positions of parts in the answer of a face: an event's position in its run, and the part's number, as one number.
//!
//! A position is no count: the events of a replay are fewer than those of a live run, because text comes in larger
//! pieces, but each has the position that it had live. So a client that was cut off can go on after the last position
//! that it has seen, also at a host that was started again. Positions are below 2^53, so that JavaScript reads them
//! exactly: 20 bits for the record since the first one of the run, 26 for the bytes of text in it, 7 for the part.

use callsheet_values::event::EventId;
use callsheet_values::types::Seq;

const PART_BITS: u32 = 7;
const BYTES_BITS: u32 = 26;

/// Number of records of a run whose positions can be told.
pub(super) const RECORDS_MAX: u64 = 1 << 20;

/// The position of a part in the answer to a run whose first record is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartPosition(u64);

impl PartPosition {
    /// Returns the position of a part of an event. `first` is the first record of the run.
    pub(super) fn new(first: Seq, id: EventId, part: u64) -> Self {
        let record = id.seq.0.saturating_sub(first.0).min(RECORDS_MAX - 1);
        let bytes = id.bytes.min((1 << BYTES_BITS) - 1);
        let part = part.min((1 << PART_BITS) - 1);
        Self((record << (BYTES_BITS + PART_BITS)) | (bytes << PART_BITS) | part)
    }

    /// Returns the position as the number that clients get.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// Returns the position that a client tells.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        (number >> (BYTES_BITS + PART_BITS) < RECORDS_MAX).then_some(Self(number))
    }

    /// Returns the number of the part.
    pub(super) fn part(self) -> u64 {
        self.0 & ((1 << PART_BITS) - 1)
    }

    /// Returns the event that the part belongs to.
    pub(super) fn event(self, first: Seq) -> EventId {
        let seq = Seq(first.0 + (self.0 >> (BYTES_BITS + PART_BITS)));
        EventId { seq, bytes: (self.0 >> PART_BITS) & ((1 << BYTES_BITS) - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ordered_and_can_be_read_back() {
        let first = Seq(40);
        let ids = [(40, 0), (41, 0), (41, 7), (41, 60_000_000), (42, 0), (40 + (1 << 20) - 1, 5)];
        let mut last = None;
        for (seq, bytes) in ids {
            for part in [0, 1, 127] {
                let id = EventId { seq: Seq(seq), bytes };
                let position = PartPosition::new(first, id, part);
                assert!(position.number() < 1 << 53);
                assert!(last < Some(position), "{id} {part}");
                assert_eq!(position.event(first), id);
                assert_eq!(PartPosition::from_number(position.number()), Some(position));
                last = Some(position);
            }
        }
        assert_eq!(PartPosition::from_number(1 << 53), None);
    }
}
