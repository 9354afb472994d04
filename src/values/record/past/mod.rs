//! Recreates the past events of a session from its entries, for watchers that subscribe late.
//!
//! Views of records have the same ids and the same order as the live events. The text of a response
//! is in the record of its end, so the events of an attempt are held until then and returned with
//! the text between them. The text of a failed attempt is not returned unless a part of it is kept.

mod text;

use std::collections::VecDeque;

use super::projector::{EventProjector, with_call};
use super::{JournalEntry, Record};
use crate::event::{Event, EventId, PublishedEvent};
use crate::types::{RunId, Seq, SessionId, ToolCall, floor_char_boundary};
pub use text::{DisplayedText, displayed_text};
use text::{UnsentText, display_order};

/// Recreates events from entries, from the beginning of a session or of a run.
#[derive(Clone, Debug)]
pub struct PastEvents {
    projector: EventProjector,
    /// The record of the last event that was returned.
    seq: Seq,
    /// The last record that the watcher knows. It may know less of the text of the attempt that ran
    /// at this record.
    known: Seq,
    /// The record with which the last attempt started.
    attempt: Seq,
    /// The events of an attempt whose response has not ended. Its text comes before and between
    /// them.
    held: Option<Vec<PublishedEvent>>,
    /// The known calls of the attempt.
    calls: Vec<ToolCall>,
    /// True after the first entry.
    has_read: bool,
}

/// The published text of the running attempt.
#[derive(Clone, Debug)]
pub struct RunningText {
    /// The run.
    pub run: RunId,
    /// The number of the turn in the session.
    pub turn: u32,
    /// The last record whose event was published.
    pub seq: Seq,
    /// The time of that record: Unix time in milliseconds.
    pub time: u64,
    /// The number of bytes of the attempt's text before these pieces.
    pub from: u64,
    /// The rest of its text and thinking, in order.
    pub pieces: Vec<DisplayedText>,
    /// Its calls that have an outcome.
    pub calls: Vec<ToolCall>,
}

impl PastEvents {
    /// Creates a reader that starts at the beginning of the session or of a run. `turn` is the
    /// session's last turn before it.
    #[must_use]
    pub fn new(session: SessionId, agent: &str, turn: u32) -> Self {
        Self {
            projector: EventProjector::new(session, agent, turn),
            seq: Seq(0),
            known: Seq(0),
            attempt: Seq(0),
            held: None,
            calls: Vec::new(),
            has_read: false,
        }
    }

    /// Sets the last record that the watcher knows. The text of responses that had ended by then is
    /// not returned. That of the attempt that ran at this record is, and comes after all events up
    /// to the record, so that its ids continue theirs. [`part_after`] removes these events, and the
    /// known part of the text.
    pub fn set_known(&mut self, upto: Seq) {
        self.known = upto;
    }

    /// Reads the next entry. Appends the events that can be returned now to `out`.
    pub fn handle_entry(&mut self, entry: &JournalEntry, out: &mut VecDeque<PublishedEvent>) {
        self.has_read = true;
        if let Record::ResponseEnded { message, displayed_segments, .. } = &entry.record {
            self.calls.extend(message.calls.iter().cloned());
            if entry.seq > self.known && self.held.is_some() {
                let text = UnsentText::new(display_order(message, displayed_segments), 0);
                self.release_with_text(text, entry.time, out);
            }
        } else if let Record::CallIntended { call, so_far, .. } = &entry.record {
            self.calls.push(call.clone());
            let partial = so_far.iter().flat_map(|partial| &partial.message.calls);
            self.calls.extend(partial.cloned());
        }
        let starts_attempt = matches!(entry.record, Record::AttemptStarted { .. });
        let starts_again =
            matches!(entry.record, Record::AttemptFailed { kept: true, host_stopped: true, .. });
        if starts_attempt || starts_again || ends_attempt(&entry.record) {
            self.release_held(out);
        }
        if starts_attempt {
            self.calls.clear();
        }
        let mut shown = Vec::new();
        self.projector.project(entry, |published| shown.push(published));
        for published in shown {
            // An event is held until the text before it is known.
            match &mut self.held {
                Some(held) => held.push(published),
                None => self.release(published, out),
            }
        }
        if starts_attempt || starts_again {
            self.attempt = entry.seq;
            self.held = Some(Vec::new());
        }
    }

    /// Appends the held events and the text of the running attempt. Called after the last entry.
    /// `running` is `None` if no attempt is running, for example because the host ended and has not
    /// resumed the run.
    pub fn finish(&mut self, running: Option<&RunningText>, out: &mut VecDeque<PublishedEvent>) {
        let Some(running) = running else {
            self.release_held(out);
            return;
        };
        if self.held.is_none() {
            if self.has_read {
                // The attempt has ended, so its text is void or was returned.
                return;
            }
            self.seq = running.seq;
        } else if running.seq < self.attempt {
            // The text is that of an earlier attempt: the start of this one was not published yet.
            self.release_held(out);
            return;
        }
        self.projector.set_position(running.run.clone(), running.turn);
        self.calls.extend(running.calls.iter().cloned());
        let pieces = running.pieces.iter();
        let pieces = pieces.map(|piece| (piece.is_thinking, piece.text.as_str())).collect();
        self.release_with_text(UnsentText::new(pieces, running.from), running.time, out);
    }

    /// Releases the events of an attempt whose text is void or known, or that has no more text.
    fn release_held(&mut self, out: &mut VecDeque<PublishedEvent>) {
        for published in self.held.take().unwrap_or_default() {
            self.release(published, out);
        }
    }

    /// Releases the events of an attempt with its text between them.
    fn release_with_text(
        &mut self,
        mut text: UnsentText<'_>,
        time: u64,
        out: &mut VecDeque<PublishedEvent>,
    ) {
        for published in self.held.take().unwrap_or_default() {
            if let Some(id) = published.id.filter(|id| id.seq > self.known) {
                self.release_text(&mut text, id.bytes, published.timestamp_ms, out);
            }
            self.release(published, out);
        }
        self.release_text(&mut text, u64::MAX, time, out);
    }

    fn release_text(
        &self,
        text: &mut UnsentText<'_>,
        upto: u64,
        time: u64,
        out: &mut VecDeque<PublishedEvent>,
    ) {
        while let Some((is_thinking, piece)) = text.next(upto) {
            let piece = DisplayedText { is_thinking, text: piece.to_owned() };
            let id = EventId { seq: self.seq, bytes: text.at };
            out.push_back(self.projector.published_at(id, time, piece.into()));
        }
    }

    fn release(&mut self, mut published: PublishedEvent, out: &mut VecDeque<PublishedEvent>) {
        if let Event::CallEnded { result, .. } = &published.event
            && let Some(call) = self.calls.iter().find(|call| call.key == result.call.key)
        {
            with_call(&mut published.event, call.clone());
        }
        self.seq = published.id.map_or(self.seq, |id| id.seq);
        out.push_back(published);
    }
}

/// Returns whether no text of an attempt follows this record.
fn ends_attempt(record: &Record) -> bool {
    matches!(
        record,
        Record::RunStarted { .. }
            | Record::AttemptFailed { kept: false, .. }
            | Record::ResponseEnded { .. }
            | Record::TurnCommitted { .. }
            | Record::RunEnded { .. }
    )
}

/// Returns the part of an event after a position: all of it, nothing, or the rest of a text.
///
/// Views of records are compared by the record alone. Text of the attempt that runs at the position
/// is compared by its bytes alone, because records without events have no part in its ids. There
/// is no text of earlier attempts: see [`PastEvents::set_known`].
#[must_use]
pub fn part_after(after: EventId, mut published: PublishedEvent) -> Option<PublishedEvent> {
    let Some(id) = published.id else { return Some(published) };
    if id.seq > after.seq {
        return Some(published);
    }
    if let Event::TextReceived { text } | Event::ThinkingReceived { text } = &mut published.event
        && id.bytes > after.bytes
    {
        let begin = id.bytes.saturating_sub(text.len() as u64);
        let seen = usize::try_from(after.bytes.saturating_sub(begin)).unwrap_or(usize::MAX);
        let seen = floor_char_boundary(text, seen);
        text.drain(..seen);
        return Some(published);
    }
    None
}

#[cfg(test)]
mod tests;
