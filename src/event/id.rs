//! Positions in a session's event stream.

use std::fmt;
use std::str::FromStr;

use super::Event;
use crate::types::Seq;

/// A position in a session's event stream: the last record whose event was published, and the
/// number of bytes of text and thinking of the running attempt after it. Clients see `SEQ.N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The last record whose event was published.
    pub seq: Seq,
    /// Bytes of the running attempt's text and thinking. 0 if no attempt runs.
    pub bytes: u64,
}

impl EventId {
    /// Returns the position after an event. `recorded` is the sequence number of its record, if it
    /// is the view of one.
    #[must_use]
    pub fn after(self, event: &Event, recorded: Option<Seq>) -> Self {
        let seq = recorded.unwrap_or(self.seq);
        let ends_an_attempt = matches!(
            event,
            Event::TurnStarted
                | Event::AttemptStarted { .. }
                | Event::AttemptVoided { .. }
                | Event::ResponseEnded { .. }
                | Event::TurnEnded { .. }
                | Event::RunStarted { .. }
                | Event::RunEnded { .. }
        );
        let more = event.text().map_or(0, |(_, text)| text.len() as u64);
        let bytes = if ends_an_attempt { 0 } else { self.bytes.saturating_add(more) };
        Self { seq, bytes }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.seq, self.bytes)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    /// Parses `SEQ.N`, or `SEQ` for the position right after that record.
    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let digits = |part: &str| {
            let all = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| part.parse().ok()).flatten().ok_or(InvalidEventId)
        };
        let (seq, bytes) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { seq: Seq(digits(seq)?), bytes: digits(bytes)? })
    }
}

/// The text is not an event id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event's id is SEQ.N or SEQ, in digits, such as 12.340")]
pub struct InvalidEventId;

impl Event {
    /// Returns the text of a delta, and whether it is thinking.
    #[must_use]
    pub fn text(&self) -> Option<(bool, &str)> {
        if let Self::TextReceived { text } = self {
            Some((false, text))
        } else if let Self::ThinkingReceived { text } = self {
            Some((true, text))
        } else {
            None
        }
    }
}
