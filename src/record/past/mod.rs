//! What watchers were shown of the past, from the records.
//!
//! The events of records are the same as they were, with the same ids and in the same order. The
//! text of a response is known when that has ended, and then stands between the events where it
//! stood; that of an attempt which broke is void and not shown again.

mod text;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{DisplayedSegment, JournalEntry, Record, ResponseMessage};
use crate::event::{CallLabel, Event, EventId, PublishedEvent};
use crate::types::{Execution, RunId, Seq, SessionId, ToolCall, ToolResult};
use text::{Text, layout};
pub use text::{TextPiece, shown_of};

/// Folds a session's entries into what watchers were shown, from its beginning or that of a run.
#[derive(Clone, Debug)]
pub struct Past {
    session: SessionId,
    agent: String,
    run: RunId,
    turn: u32,
    parallel: bool,
    /// The last record whose event was given out.
    seq: Seq,
    /// The events of an attempt whose response has not ended: its text stands before them.
    held: Option<Vec<PublishedEvent>>,
    /// The turn's calls, as far as they are known.
    calls: Vec<ToolCall>,
    /// The model that was asked last, and whether for a streamed answer.
    asked: (String, bool),
    /// The event that voids the text of an attempt that failed. It is given out if no other
    /// attempt follows.
    voided: Option<PublishedEvent>,
    /// Whether it has taken in anything.
    is_begun: bool,
}

/// The attempt that runs, as far as watchers were shown of it.
#[derive(Clone, Debug)]
pub struct RunningText {
    /// The run.
    pub run: RunId,
    /// The session's turn.
    pub turn: u32,
    /// The last record whose event was shown.
    pub seq: Seq,
    /// When that was: Unix time in milliseconds.
    pub time: u64,
    /// How many bytes of it stand before these pieces.
    pub from: u64,
    /// The rest of its text and thinking, in order.
    pub pieces: Vec<TextPiece>,
    /// Its calls that have an outcome.
    pub calls: Vec<ToolCall>,
}

impl Past {
    /// The past of a session, from its beginning or that of a run. `turn` is the session's turn
    /// by then.
    #[must_use]
    pub fn new(session: SessionId, agent: &str, turn: u32) -> Self {
        Self {
            session,
            agent: agent.to_owned(),
            run: RunId(String::new().into()),
            turn,
            parallel: false,
            seq: Seq(0),
            held: None,
            calls: Vec::new(),
            asked: (String::new(), true),
            voided: None,
            is_begun: false,
        }
    }

    /// Takes in the next entry, and appends what is known now of what was shown.
    pub fn handle_entry(&mut self, entry: &JournalEntry, out: &mut VecDeque<PublishedEvent>) {
        let record = &entry.record;
        self.is_begun = true;
        if matches!(
            record,
            Record::RunStarted { .. }
                | Record::AttemptStarted { .. }
                | Record::AttemptFailed { kept: false, .. }
                | Record::AttemptFailed { host_stopped: true, .. }
                | Record::TurnCommitted { .. }
                | Record::RunEnded { .. }
        ) {
            self.let_go(out);
        }
        let goes_on =
            matches!(record, Record::AttemptStarted { .. } | Record::AttemptFailed { .. });
        if let Some(voided) = self.voided.take().filter(|_| !goes_on) {
            self.give(voided, out);
        }
        self.note(record);
        if let Record::AttemptFailed { kept: false, .. } = record {
            self.voided = self.voiding(entry);
        }
        if let Some(event) = self.view(record) {
            self.show(entry, event, out);
        }
        if let Record::AttemptStarted { .. }
        | Record::AttemptFailed { kept: true, host_stopped: true, .. } = record
        {
            self.held = Some(Vec::new());
        }
        if let Record::ResponseEnded { message, shown, .. } = record {
            self.end_response(entry, message, shown, out);
        }
    }

    /// Remembers what later events are of.
    fn note(&mut self, record: &Record) {
        if let Record::SessionOpened { agent, .. } = record {
            self.agent.clone_from(agent);
        } else if let Record::RunStarted { run_id, execution, .. } = record {
            self.run = run_id.clone();
            self.parallel = *execution != Execution::Sequential;
        } else if let Record::AttemptStarted { turn, model, streamed, .. } = record {
            self.turn = *turn;
            self.asked = (model.clone(), *streamed);
            self.calls.clear();
        } else if let Record::CallIntended { call, so_far, .. } = record {
            self.calls.push(call.clone());
            self.calls.extend(so_far.iter().flat_map(|part| part.message.calls.iter().cloned()));
        } else if let Record::ResponseEnded { turn, message, .. } = record {
            self.turn = *turn;
            self.calls.extend(message.calls.iter().cloned());
        } else if let Record::TurnCommitted { turn, .. } = record {
            self.turn = *turn;
        }
    }

    /// The event that the record was shown as, if it was shown by itself.
    fn view(&self, record: &Record) -> Option<Event> {
        Some(match record {
            Record::RunStarted { model, execution, .. } => Event::RunStarted {
                agent: self.agent.clone(),
                model: model.clone(),
                execution: *execution,
            },
            Record::AttemptStarted { reason: None, .. } => Event::TurnStarted,
            Record::AttemptStarted {
                reason: Some(reason),
                attempt,
                model,
                streamed,
                wait_ms,
                ..
            } => Event::AttemptStarted {
                attempt: *attempt,
                model: model.clone(),
                streamed: *streamed,
                reason: reason.clone(),
                wait: Duration::from_millis(*wait_ms),
                rollback: false,
                fallback: false,
            },
            Record::AttemptFailed { kept: true, host_stopped: true, attempt, error, .. } => {
                Event::AttemptStarted {
                    attempt: *attempt,
                    model: self.asked.0.clone(),
                    streamed: self.asked.1,
                    reason: error.message.clone(),
                    wait: Duration::ZERO,
                    rollback: false,
                    fallback: false,
                }
            }
            Record::ApprovalAsked { asked } => Event::ApprovalAsked { asked: asked.clone() },
            Record::CallEnded { early, amended: false, .. } => Event::CallEnded {
                result: Box::new(result(record)?),
                parallel: self.parallel,
                early: *early,
            },
            Record::TurnCommitted { summary, .. } => Event::TurnEnded { summary: summary.clone() },
            Record::LimitReached { limit, value, maximum, action, note: _ } => {
                Event::LimitReached {
                    limit: limit.clone(),
                    value: *value,
                    maximum: *maximum,
                    action: action.clone(),
                }
            }
            Record::RunEnded { run_id: _, end, text, error, stats, waiting: _ } => {
                Event::RunEnded {
                    agent: self.agent.clone(),
                    end: *end,
                    text: text.clone(),
                    error: error.clone(),
                    stats: Box::new(stats.into()),
                }
            }
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::ApprovalGiven { .. }
            | Record::CallEnded { amended: true, .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::SessionClosed => return None,
        })
    }

    /// The event that voids what watchers were shown of an attempt that failed; none if they were
    /// shown nothing.
    fn voiding(&self, entry: &JournalEntry) -> Option<PublishedEvent> {
        let Record::AttemptFailed { attempt, error, host_stopped, .. } = &entry.record else {
            return None;
        };
        // After a crash it is not known how much they had been shown.
        if entry.shown == 0 && !host_stopped {
            return None;
        }
        let (model, streamed) = self.asked.clone();
        let (attempt, reason) = (*attempt, error.message.clone());
        let event = Event::AttemptVoided { attempt, model, streamed, reason };
        Some(self.published(EventId { seq: entry.seq, bytes: 0 }, entry.time, event))
    }

    /// Appends what was shown of the attempt that runs, when there are no more entries. None runs
    /// where the host stopped in its middle and has not gone on yet.
    pub fn finish(&mut self, running: Option<&RunningText>, out: &mut VecDeque<PublishedEvent>) {
        let Some(running) = running else {
            self.let_go(out);
            return;
        };
        if self.held.is_none() {
            if self.is_begun {
                // What is there of an attempt is void.
                return;
            }
            self.seq = running.seq;
        }
        self.run = running.run.clone();
        self.turn = running.turn;
        self.calls.extend(running.calls.iter().cloned());
        let pieces = running.pieces.iter();
        let pieces = pieces.map(|piece| (piece.is_thinking, piece.text.as_str())).collect();
        self.place(Text::new(pieces, running.from), running.time, out);
    }

    fn end_response(
        &mut self,
        entry: &JournalEntry,
        message: &ResponseMessage,
        shown: &[DisplayedSegment],
        out: &mut VecDeque<PublishedEvent>,
    ) {
        if self.held.is_some() {
            self.place(Text::new(layout(message, shown), 0), entry.time, out);
        } else {
            // Calls that the session was opened with, for which no model was asked.
            self.show(entry, Event::TurnStarted, out);
        }
    }

    /// Gives out an event, or keeps it until the text before it is known.
    fn show(&mut self, entry: &JournalEntry, event: Event, out: &mut VecDeque<PublishedEvent>) {
        let id = EventId { seq: entry.seq, bytes: entry.shown }.after(&event, Some(entry.seq));
        let published = self.published(id, entry.time, event);
        match &mut self.held {
            Some(held) => held.push(published),
            None => self.give(published, out),
        }
    }

    /// Gives out the events of an attempt whose text is void, or that has no more.
    fn let_go(&mut self, out: &mut VecDeque<PublishedEvent>) {
        for published in self.held.take().unwrap_or_default() {
            self.give(published, out);
        }
    }

    /// Gives out the events of the attempt with its text between them.
    fn place(&mut self, mut text: Text<'_>, time: u64, out: &mut VecDeque<PublishedEvent>) {
        for published in self.held.take().unwrap_or_default() {
            let upto = published.id.map_or(0, |id| id.bytes);
            self.tell(&mut text, upto, published.timestamp_ms, out);
            self.give(published, out);
        }
        self.tell(&mut text, u64::MAX, time, out);
    }

    fn tell(&self, text: &mut Text<'_>, upto: u64, time: u64, out: &mut VecDeque<PublishedEvent>) {
        while let Some((is_thinking, piece)) = text.next(upto) {
            let piece = TextPiece { is_thinking, text: piece.to_owned() };
            let id = EventId { seq: self.seq, bytes: text.at };
            out.push_back(self.published(id, time, piece.into()));
        }
    }

    fn give(&mut self, mut published: PublishedEvent, out: &mut VecDeque<PublishedEvent>) {
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

/// What of an event comes behind a place: all of it, or nothing, or the rest of a text.
#[must_use]
pub fn behind(after: EventId, mut published: PublishedEvent) -> Option<PublishedEvent> {
    let Some(id) = published.id else { return Some(published) };
    if id <= after {
        return None;
    }
    if let Event::TextReceived { text } | Event::ThinkingReceived { text } = &mut published.event
        && id.seq == after.seq
    {
        let begin = id.bytes.saturating_sub(text.len() as u64);
        let seen = usize::try_from(after.bytes.saturating_sub(begin)).unwrap_or(usize::MAX);
        text.drain(..text.floor_char_boundary(seen));
    }
    Some(published)
}

/// The result of a call, whose arguments are not looked up yet.
fn result(record: &Record) -> Option<ToolResult> {
    let Record::CallEnded {
        call: CallLabel { key, provider_id, name },
        outcome,
        notes,
        writes,
        started_ms,
        wait_ms,
        duration_ms,
        ..
    } = record
    else {
        return None;
    };
    Some(ToolResult {
        call: ToolCall {
            key: *key,
            id: Arc::default(),
            provider_id: provider_id.clone(),
            name: name.clone(),
            arguments: Arc::default(),
            raw: None,
        },
        outcome: outcome.clone(),
        notes: notes.clone(),
        started: started_ms.map(Duration::from_millis),
        wait: Duration::from_millis(*wait_ms),
        duration: Duration::from_millis(*duration_ms),
        writes: writes.clone(),
    })
}

#[cfg(test)]
mod tests;
