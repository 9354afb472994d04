//! Recreates the past events of a session from its entries, for watchers that subscribe late.
//!
//! Views of records have the same ids and the same order as the live events. The text of a response
//! is in the record of its end, so the events of an attempt are held until then and returned with
//! the text between them. The text of a failed attempt is not returned unless a part of it is kept.

mod text;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{JournalEntry, Record};
use crate::event::{CallLabel, Event, EventId, PublishedEvent};
use crate::types::{
    COMPACT_AT, Execution, RunId, Seq, SessionId, ToolCall, ToolResult, WaitPhase,
    floor_char_boundary,
};
pub use text::{DisplayedText, displayed_text};
use text::{UnsentText, display_order};

/// Recreates events from entries, from the beginning of a session or of a run.
#[derive(Clone, Debug)]
pub struct PastEvents {
    session: SessionId,
    agent: String,
    run: RunId,
    turn: u32,
    parallel: bool,
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
    /// The model of the last request, and true if a streamed answer was requested.
    last_request: (String, bool),
    /// The event that voids the text of a failed attempt. It is returned if no attempt follows.
    voided: Option<PublishedEvent>,
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
            session,
            agent: agent.to_owned(),
            run: RunId(String::new().into()),
            turn,
            parallel: false,
            seq: Seq(0),
            known: Seq(0),
            attempt: Seq(0),
            held: None,
            calls: Vec::new(),
            last_request: (String::new(), true),
            voided: None,
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
        let is_retried =
            matches!(entry.record, Record::AttemptStarted { .. } | Record::AttemptFailed { .. });
        let is_over = ends_turn(&entry.record);
        let voided = self.voided.take_if(|_| is_retried || is_over);
        if let Some(mut voided) = voided.filter(|_| is_over) {
            // The position of the live event, which follows the events since the attempt failed.
            voided.id = Some(EventId { seq: Seq(entry.seq.0.saturating_sub(1)), bytes: 0 });
            self.release(voided, out);
        }
        let event = match &entry.record {
            Record::SessionOpened {
                agent,
                messages: _,
                metadata: _,
                parent: _,
                client_tools: _,
            } => {
                self.agent.clone_from(agent);
                return;
            }
            Record::RunStarted { run_id, model, execution, metadata, .. } => {
                self.release_held(out);
                self.run = run_id.clone();
                self.parallel = *execution != Execution::Sequential;
                let (agent, model) = (self.agent.clone(), model.clone());
                let metadata = metadata.clone();
                Event::RunStarted { agent, model, execution: *execution, metadata }
            }
            Record::AttemptStarted {
                turn,
                attempt,
                model,
                streamed,
                reason,
                wait_ms,
                prompt: _,
            } => {
                self.release_held(out);
                self.turn = *turn;
                self.last_request = (model.clone(), *streamed);
                self.calls.clear();
                let wait = Duration::from_millis(*wait_ms);
                let event = match reason {
                    None => Event::TurnStarted,
                    Some(reason) => self.attempt_started(*attempt, reason, wait),
                };
                self.push(entry, event, out);
                self.hold_from(entry.seq);
                return;
            }
            Record::AttemptFailed { attempt, error, kept, host_stopped, .. } => {
                if !*kept || *host_stopped {
                    self.release_held(out);
                }
                // It is unknown how much text was published before a crash.
                if !*kept && (entry.displayed_bytes > 0 || *host_stopped) {
                    let (model, streamed) = self.last_request.clone();
                    let (attempt, reason) = (*attempt, error.message.clone());
                    let event = Event::AttemptVoided { attempt, model, streamed, reason };
                    let id = EventId::for_record(entry.seq, entry.displayed_bytes, &event);
                    self.voided = Some(self.published(id, entry.time, event));
                }
                if *kept && *host_stopped {
                    let event = self.attempt_started(*attempt, &error.message, Duration::ZERO);
                    self.push(entry, event, out);
                    self.hold_from(entry.seq);
                }
                return;
            }
            Record::ResponseEnded { turn, message, displayed_segments, .. } => {
                self.turn = *turn;
                self.calls.extend(message.calls.iter().cloned());
                if self.held.is_some() {
                    if entry.seq <= self.known {
                        self.release_held(out);
                        return;
                    }
                    let text = UnsentText::new(display_order(message, displayed_segments), 0);
                    self.release_with_text(text, entry.time, out);
                    return;
                }
                // These are the initial calls of the session, which no attempt precedes.
                Event::TurnStarted
            }
            Record::CallIntended { call, so_far, .. } => {
                self.calls.push(call.clone());
                let partial = so_far.iter().flat_map(|partial| &partial.message.calls);
                self.calls.extend(partial.cloned());
                return;
            }
            // No event shows this record: watchers receive the state of the open call instead.
            Record::ApprovalAsked { request } if request.phase == WaitPhase::Client => return,
            Record::ApprovalAsked { request } => Event::ApprovalAsked { request: request.clone() },
            Record::CallEnded { amended: true, .. } => return,
            Record::CallEnded {
                call,
                outcome,
                notes,
                writes,
                started_ms,
                wait_ms,
                duration_ms,
                early,
                amended: false,
            } => {
                let CallLabel { key, provider_id, name } = call.clone();
                // Id and arguments are added when the event is released.
                let (id, arguments, raw) = (Arc::default(), Arc::default(), None);
                let result = ToolResult {
                    call: ToolCall { key, id, provider_id, name, arguments, raw, indirect: false },
                    outcome: outcome.clone(),
                    notes: notes.clone(),
                    started: started_ms.map(Duration::from_millis),
                    wait: Duration::from_millis(*wait_ms),
                    duration: Duration::from_millis(*duration_ms),
                    writes: writes.clone(),
                };
                let (result, parallel, early) = (Box::new(result), self.parallel, *early);
                Event::CallEnded { result, parallel, early }
            }
            Record::TurnCommitted { turn, end: _, summary } => {
                self.release_held(out);
                self.turn = *turn;
                Event::TurnEnded { summary: summary.clone() }
            }
            Record::LimitReached { limit, value, maximum, action, reason, note: _, usage: _ } => {
                Event::LimitReached {
                    limit: limit.clone(),
                    value: *value,
                    maximum: *maximum,
                    action: action.clone(),
                    reason: *reason,
                }
            }
            Record::Compacted { change, upto, tokens_before, tokens_after, usage: _ } => {
                Event::ContextCompacted {
                    kind: change.kind(),
                    tokens_before: *tokens_before,
                    tokens_after: *tokens_after,
                    upto: *upto,
                }
            }
            Record::RunEnded {
                run_id: _,
                end,
                text,
                error,
                output,
                into: _,
                finish_reason,
                stats,
                waiting: _,
            } => {
                self.release_held(out);
                Event::RunEnded {
                    agent: self.agent.clone(),
                    end: *end,
                    text: text.clone(),
                    output: output.clone(),
                    error: error.clone(),
                    finish_reason: finish_reason.clone(),
                    stats: Box::new(stats.into()),
                }
            }
            Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::CallReported { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::ApprovalGiven { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::Instructed { .. }
            | Record::ToolsFrozen { .. }
            | Record::SessionClosed => return,
        };
        self.push(entry, event, out);
    }

    fn attempt_started(&self, attempt: u32, reason: &str, wait: Duration) -> Event {
        let (model, streamed) = self.last_request.clone();
        let reason = reason.to_owned();
        let (rollback, fallback) = (false, false);
        Event::AttemptStarted { attempt, model, streamed, reason, wait, rollback, fallback }
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
        self.run = running.run.clone();
        self.turn = running.turn;
        self.calls.extend(running.calls.iter().cloned());
        let pieces = running.pieces.iter();
        let pieces = pieces.map(|piece| (piece.is_thinking, piece.text.as_str())).collect();
        self.release_with_text(UnsentText::new(pieces, running.from), running.time, out);
    }

    /// Appends an event, or holds it until the text before it is known.
    fn push(&mut self, entry: &JournalEntry, event: Event, out: &mut VecDeque<PublishedEvent>) {
        let id = EventId::for_record(entry.seq, entry.displayed_bytes, &event);
        let published = self.published(id, entry.time, event);
        match &mut self.held {
            Some(held) => held.push(published),
            None => self.release(published, out),
        }
    }

    /// Holds the events of an attempt that starts with this record.
    fn hold_from(&mut self, start: Seq) {
        self.attempt = start;
        self.held = Some(Vec::new());
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
            out.push_back(self.published(id, time, piece.into()));
        }
    }

    fn release(&mut self, mut published: PublishedEvent, out: &mut VecDeque<PublishedEvent>) {
        if let Event::CallEnded { result, .. } = &mut published.event
            && let Some(call) = self.calls.iter().find(|call| call.key == result.call.key)
        {
            result.call.id.clone_from(&call.id);
            result.call.arguments.clone_from(&call.arguments);
            result.call.raw.clone_from(&call.raw);
        }
        self.seq = published.id.map_or(self.seq, |id| id.seq);
        out.push_back(published);
    }

    fn published(&self, id: EventId, time: u64, event: Event) -> PublishedEvent {
        PublishedEvent {
            session: self.session.clone(),
            run: self.run.clone(),
            turn: self.turn,
            timestamp_ms: time,
            id: Some(id),
            stream_text: crate::event::EventStreamText::default(),
            event,
        }
    }
}

/// Returns whether the record shows that no attempt follows a failed one. Others, such as the records of a smaller
/// context, may come between two attempts.
fn ends_turn(record: &Record) -> bool {
    let is_end = matches!(record, Record::TurnCommitted { .. } | Record::RunEnded { .. });
    // A failed summary ends no turn.
    is_end || matches!(record, Record::LimitReached { limit, .. } if limit != COMPACT_AT)
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
