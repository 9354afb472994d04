//! Places in what watchers are shown.

use std::fmt;
use std::str::FromStr;

use super::Event;
use crate::types::Seq;

/// A place in what watchers are shown: behind the event of a record, and so many bytes of text and
/// thinking of the running attempt behind that. To clients it is `SEQ.N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The last record whose event was shown.
    pub seq: Seq,
    /// Bytes of the running attempt's text and thinking; 0 where none runs.
    pub bytes: u64,
}

impl EventId {
    /// The place behind an event. `recorded` is the place of its record, if it is the view of one.
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

    /// Reads `SEQ.N`, or `SEQ` for the place right behind that record.
    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let digits = |part: &str| {
            let all = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| part.parse().ok()).flatten().ok_or(InvalidEventId)
        };
        let (seq, bytes) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { seq: Seq(digits(seq)?), bytes: digits(bytes)? })
    }
}

/// The text names no place in a session's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event's id is SEQ.N or SEQ, in digits, such as 12.340")]
pub struct InvalidEventId;

impl Event {
    /// The text of a piece of it, and whether it is thinking.
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
