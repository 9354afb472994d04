//! Makes the event of each record, for watchers that are there and for those that come later.

use std::sync::Arc;
use std::time::Duration;

use super::{JournalEntry, Record};
use crate::event::{CallLabel, Event, EventId, PublishedEvent, ResponseSummary, VoidedText};
use crate::types::{
    COMPACT_AT, Content, Execution, Metadata, RunId, Seq, SessionId, ToolCall, ToolResult,
    WaitPhase,
};

/// Projects the entries of a session to events. No other code makes the event of a record, so that a watcher receives
/// the same event when the record is written and whenever it is read again.
#[derive(Clone, Debug)]
pub struct EventProjector {
    session: SessionId,
    agent: String,
    run: RunId,
    /// The metadata of the run.
    metadata: Metadata,
    turn: u32,
    /// The name of the first model of the run.
    model: String,
    execution: Execution,
    /// The last request to a model.
    request: LastRequest,
    /// The event that voids the text of a failed attempt. It is shown if no attempt follows.
    voided: Option<Box<PublishedEvent>>,
    /// The text of the last attempt, if it has failed.
    voided_text: Option<Arc<VoidedText>>,
}

#[derive(Clone, Debug, Default)]
struct LastRequest {
    /// The session's turn. 0 before the first request.
    turn: u32,
    model: String,
    streamed: bool,
}

impl EventProjector {
    /// Creates a projector of the entries of a session from its beginning or from the start of a run. `turn` is the
    /// session's last turn before it.
    #[must_use]
    pub fn new(session: SessionId, agent: &str, turn: u32) -> Self {
        Self {
            session,
            agent: agent.to_owned(),
            run: RunId(String::new().into()),
            metadata: Metadata::default(),
            turn,
            model: String::new(),
            execution: Execution::Sequential,
            request: LastRequest::default(),
            voided: None,
            voided_text: None,
        }
    }

    /// Creates a projector that continues after the last of a session's `entries`. `turn` is the session's last turn.
    #[must_use]
    pub fn after(session: SessionId, agent: &str, turn: u32, entries: &[JournalEntry]) -> Self {
        let mut projector = Self::new(session, agent, turn);
        let starts_run = |entry: &JournalEntry| matches!(entry.record, Record::RunStarted { .. });
        let of_last_run = entries.iter().rposition(starts_run).unwrap_or(entries.len());
        for entry in entries.iter().skip(of_last_run) {
            projector.project(entry, drop);
        }
        projector
    }

    /// Reads the next entry and passes the events that show it to `show`. The event of a call's end has only the label
    /// of the call: see [`with_call`].
    pub fn project(&mut self, entry: &JournalEntry, mut show: impl FnMut(PublishedEvent)) {
        let record = &entry.record;
        let is_over = ends_turn(record);
        let is_retried =
            matches!(record, Record::AttemptStarted { .. } | Record::AttemptFailed { .. });
        let voided = self.voided.take_if(|_| is_retried || is_over);
        if let Some(mut voided) = voided.filter(|_| is_over) {
            // Records without events may have followed the failure of the attempt.
            voided.id = Some(EventId { seq: Seq(entry.seq.0.saturating_sub(1)), bytes: 0 });
            show(*voided);
        }
        if let Some(event) = self.event(entry) {
            show(self.published(entry, event));
        }
    }

    fn event(&mut self, entry: &JournalEntry) -> Option<Event> {
        Some(match &entry.record {
            Record::SessionOpened {
                agent,
                messages: _,
                metadata: _,
                parent: _,
                client_tools: _,
            } => {
                self.agent.clone_from(agent);
                return None;
            }
            Record::RunStarted { run_id, model, execution, metadata, input, .. } => {
                self.run = run_id.clone();
                self.execution = *execution;
                self.model.clone_from(model);
                self.metadata.clone_from(metadata);
                self.run_started(Some(input.clone()))
            }
            Record::RunReopened { run_id, authored_by: _ } => {
                self.run = run_id.clone();
                self.run_started(None)
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
                self.turn = *turn;
                (self.request.turn, self.request.streamed) = (*turn, *streamed);
                // Mostly the same model, so that the buffer fits.
                self.request.model.clone_from(model);
                let wait = Duration::from_millis(*wait_ms);
                match reason {
                    None => {
                        self.voided_text = None;
                        Event::TurnStarted
                    }
                    Some(reason) => self.attempt_started(*attempt, reason, wait),
                }
            }
            Record::AttemptFailed { attempt, error, kept, host_stopped, voided, .. } => {
                self.voided_text.clone_from(voided);
                // It is unknown how much text was published before a crash.
                if !*kept && (entry.displayed_bytes > 0 || *host_stopped) {
                    let LastRequest { turn: _, model, streamed } = self.request.clone();
                    let (attempt, reason) = (*attempt, error.message.clone());
                    let voided = voided.clone();
                    let event = Event::AttemptVoided { attempt, model, streamed, reason, voided };
                    self.voided = Some(Box::new(self.published(entry, event)));
                }
                if !*kept || !*host_stopped {
                    return None;
                }
                self.attempt_started(*attempt, &error.message, Duration::ZERO)
            }
            // Only the turn of the calls that the session was opened with has no request.
            Record::ResponseEnded { turn, .. } if self.request.turn != *turn => {
                self.turn = *turn;
                Event::TurnStarted
            }
            Record::ResponseEnded {
                turn,
                attempt,
                ending,
                message,
                finish_reason,
                usage,
                dropped_calls,
                displayed_segments: _,
            } => {
                self.turn = *turn;
                self.voided_text = None;
                let response = Arc::new(ResponseSummary {
                    attempt: *attempt,
                    model: self.request.model.clone(),
                    ending: *ending,
                    calls: message.calls.clone(),
                    dropped_calls: dropped_calls.clone(),
                    finish_reason: finish_reason.clone(),
                    usage: *usage,
                });
                Event::ResponseEnded { response }
            }
            Record::Steered { input, follows_turn: _, request: _, authored_by } => {
                Event::RunSteered { input: input.clone(), author: authored_by.clone() }
            }
            // No event shows this record: watchers receive the state of the open call instead.
            Record::ApprovalAsked { request } if request.phase == WaitPhase::Client => return None,
            Record::ApprovalAsked { request } => Event::ApprovalAsked { request: request.clone() },
            Record::CallEnded { amended: true, .. } => return None,
            Record::CallEnded {
                call,
                outcome,
                notes,
                writes,
                started,
                wait,
                duration,
                early,
                amended: false,
            } => {
                let CallLabel { key, provider_id, name } = call.clone();
                let (id, arguments, raw) = (Arc::default(), Arc::default(), None);
                let result = ToolResult {
                    call: ToolCall { key, id, provider_id, name, arguments, raw, indirect: false },
                    outcome: outcome.clone(),
                    notes: notes.clone(),
                    started: *started,
                    wait: *wait,
                    duration: *duration,
                    writes: writes.clone(),
                };
                let parallel = self.execution != Execution::Sequential;
                let (result, early) = (Box::new(result), *early);
                Event::CallEnded { result, parallel, early }
            }
            Record::TurnCommitted { turn, end: _, summary } => {
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
                    messages: change.excluded_messages().iter().map(|it| it.name()).collect(),
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
            } => Event::RunEnded {
                agent: self.agent.clone(),
                metadata: self.metadata.clone(),
                end: *end,
                text: text.clone(),
                output: output.clone(),
                error: error.clone(),
                finish_reason: finish_reason.clone(),
                stats: Box::new(stats.into()),
            },
            Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::InputRemoved { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::ApprovalGiven { .. }
            | Record::StopAsked { .. }
            | Record::Instructed { .. }
            | Record::ToolsFrozen { .. }
            | Record::SessionClosed => return None,
        })
    }

    /// `input` is `None` if the run is reopened.
    fn run_started(&self, input: Option<Content>) -> Event {
        Event::RunStarted {
            agent: self.agent.clone(),
            model: self.model.clone(),
            execution: self.execution,
            reopened: input.is_none(),
            input,
            metadata: self.metadata.clone(),
        }
    }

    fn attempt_started(&mut self, attempt: u32, reason: &str, wait: Duration) -> Event {
        let LastRequest { turn: _, model, streamed } = self.request.clone();
        let (reason, voided) = (reason.to_owned(), self.voided_text.take());
        Event::AttemptStarted { attempt, model, streamed, reason, wait, voided }
    }

    fn published(&self, entry: &JournalEntry, event: Event) -> PublishedEvent {
        let id = EventId::for_record(entry.seq, entry.displayed_bytes, &event);
        self.published_at(id, entry.time, event)
    }

    /// Sets the run and turn of the events that follow.
    pub(super) fn set_position(&mut self, run: RunId, turn: u32) {
        self.run = run;
        self.turn = turn;
    }

    /// Returns an event of the current run and turn.
    pub(super) fn published_at(&self, id: EventId, time: u64, event: Event) -> PublishedEvent {
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

/// Adds id and arguments of its call to the event of a call's end. The record of the end does not have them.
pub fn with_call(event: &mut Event, call: ToolCall) {
    if let Event::CallEnded { result, .. } = event {
        result.call = call;
    }
}

/// Returns whether the record shows that no attempt follows a failed one. Others, such as the records of a smaller
/// context, may come between two attempts.
fn ends_turn(record: &Record) -> bool {
    let is_end = matches!(record, Record::TurnCommitted { .. } | Record::RunEnded { .. });
    // A failed summary ends no turn.
    is_end || matches!(record, Record::LimitReached { limit, .. } if limit != COMPACT_AT)
}
