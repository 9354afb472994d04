//! Event ids: positions in a session's event stream, which clients see as `SEQ.N`.
//!
//! Two kinds of events have an id: the view of a record, and a text or thinking delta. All other
//! events have none, because a client that reconnects receives them anew or does not need them.
//!
//! - `SEQ` is the sequence number of the last record whose event was published.
//! - `N` is the number of bytes of text and thinking of the running attempt that were published
//!   ([`Event::displayed_bytes_after`]). It is 0 again when an attempt starts or ends.

use std::fmt;
use std::str::FromStr;

use super::{Event, PublicEvent};
use crate::types::Seq;

/// A position in a session's event stream. A client that reconnects with the id of the last event
/// that it received gets each later event with an id exactly once.
///
/// The number of any other record, such as that of a snapshot, is a position too. Its `bytes` are
/// 0, so all text of the attempt that runs at this record follows it. The id of an event that shows
/// the same record has the number of bytes before it, so the two may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// The last record whose event was published, or another record. Events that show the records
    /// up to it are known.
    pub seq: Seq,
    /// Bytes of the running attempt's text and thinking that are known. 0 if no attempt runs.
    pub bytes: u64,
}

impl EventId {
    /// Returns the id of the event that is the view of record `seq`. `displayed_bytes` is the
    /// number of bytes of the running attempt that were published before it.
    #[must_use]
    pub fn for_record(seq: Seq, displayed_bytes: u64, event: &Event) -> Self {
        Self { seq, bytes: event.displayed_bytes_after(displayed_bytes) }
    }

    /// Returns the position after an event that is not the view of a record. It is the event's id
    /// if the event has one.
    #[must_use]
    pub fn after(self, event: &Event) -> Self {
        Self { seq: self.seq, bytes: event.displayed_bytes_after(self.bytes) }
    }
}

impl Event {
    /// Returns whether the event has an id.
    #[must_use]
    pub fn has_id(&self) -> bool {
        self.has_record_id() || self.text().is_some()
    }

    /// Returns the number of bytes of the running attempt's text and thinking that are published
    /// once this event is. `before` is the number before it.
    #[must_use]
    pub fn displayed_bytes_after(&self, before: u64) -> u64 {
        let starts_or_ends_an_attempt = matches!(
            self,
            Self::TurnStarted
                | Self::AttemptStarted { .. }
                | Self::AttemptVoided { .. }
                | Self::ResponseEnded { .. }
                | Self::TurnEnded { .. }
                | Self::RunStarted { .. }
                | Self::RunEnded { .. }
        );
        if starts_or_ends_an_attempt {
            return 0;
        }
        before.saturating_add(self.text().map_or(0, |(_, text)| text.len() as u64))
    }

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

impl PublicEvent {
    /// Returns whether this public event carries the id of its event. States do not: the current ones
    /// are sent again on reconnecting, except `tools_changed` and `server_released`. `session_stats` and `error` do not,
    /// because `stream_end`, which follows them, carries it.
    #[must_use]
    pub fn has_id(&self) -> bool {
        !matches!(
            self.kind,
            "tool_set_aside"
                | "tool_use"
                | "tool_progress"
                | "tool_input_delta"
                | "approval_decided"
                | "input_removed"
                | "run_waiting"
                | "tools_changed"
                | "server_released"
                | "session_stats"
                | "error"
        )
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.seq, self.bytes)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    /// Parses `SEQ.N`, or `SEQ` for the position right after that record, at which no text of the
    /// attempt that runs is known.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::samples;

    fn text(text: &str) -> Event {
        Event::TextReceived { text: text.to_owned() }
    }

    fn limit() -> Event {
        Event::LimitReached {
            limit: "l".into(),
            value: 1,
            maximum: 2,
            action: "a".into(),
            reason: None,
        }
    }

    /// Publishes events in order, each with the number of its record, if it is the view of one.
    /// Returns their ids.
    fn ids(events: &[(Event, Option<u64>)]) -> Vec<String> {
        let mut position = EventId::default();
        let id = |(event, record): &(Event, Option<u64>)| {
            position = match record {
                Some(seq) => EventId::for_record(Seq(*seq), position.bytes, event),
                None => position.after(event),
            };
            if event.has_id() { position.to_string() } else { "none".to_owned() }
        };
        events.iter().map(id).collect()
    }

    #[test]
    fn ids_count_records_and_the_bytes_of_the_running_attempt() {
        let events = samples::every();
        let again = events.into_iter().find(|e| matches!(e, Event::AttemptStarted { .. })).unwrap();
        let ended = Event::ResponseEnded { response: std::sync::Arc::new(samples::response()) };
        assert_eq!(
            ids(&[
                (Event::TurnStarted, Some(3)),
                (Event::ThinkingReceived { text: "hm".into() }, None),
                (text("Nö"), None),
                (Event::CallOpened { call: samples::label() }, None),
                (limit(), Some(5)),
                (text("on"), None),
                (again, Some(7)),
                (text("a"), None),
                (ended, Some(8)),
                (limit(), Some(9)),
                (Event::TurnEnded { summary: Box::default() }, Some(10)),
            ]),
            ["3.0", "3.2", "3.5", "none", "5.5", "5.7", "7.0", "7.1", "8.0", "9.0", "10.0"]
        );
    }

    #[test]
    fn ids_increase_with_text_and_with_records() {
        let position = EventId { seq: Seq(3), bytes: 5 };
        assert!(position < position.after(&text("a")));
        assert!(position.after(&text("a")) < EventId::for_record(Seq(4), 0, &limit()));
    }

    #[test]
    fn every_event_with_a_public_id_has_an_id() {
        for event in samples::every() {
            let carries = samples::published(event.clone()).public().any(|public| public.has_id());
            assert_eq!(carries, event.has_id(), "{event:?}");
        }
    }
}
