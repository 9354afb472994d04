//! Performs the effects of the turn. Its records are appended as one batch. An event is published
//! after the records that precede it. Actions are performed at once.

use std::sync::Arc;

use ractor::ActorRef;

use super::{AccumulatorSetup, CurrentTurn};
use crate::event::Event;
use crate::journal::{AppendStatus, PendingRecord, Urgency, unix_ms};
use crate::record::Seq;
use crate::runtime::message::{AccumulatorMessage, SessionMessage, StreamMessage};
use crate::runtime::supervisor::{StartTool, ToolCommand};
use crate::telemetry::SourceRecord;
use crate::turn::{CallStart, PermitReply, TurnAction};
use crate::types::CallKey;

/// The records of one poll loop, and the events that follow them. The buffers are reused for the
/// next batch.
#[derive(Default)]
pub(super) struct TurnBatch {
    pub(super) records: Vec<PendingRecord>,
    /// Events, each with the number of records before it and the number of bytes that were shown at
    /// the last of these records.
    events: Vec<(u64, u64, Event)>,
}

impl TurnBatch {
    /// Publishes the event now, or after the records that precede it.
    pub(super) fn push_event(
        &mut self,
        event: Event,
        setup: &AccumulatorSetup,
        current: &mut CurrentTurn,
    ) {
        match self.records.last() {
            None => setup.publish(event, None, current),
            Some(PendingRecord { displayed_bytes, .. }) => {
                self.events.push((self.records.len() as u64, *displayed_bytes, event));
            }
        }
    }
}

impl AccumulatorSetup {
    /// Appends the records as one batch, and publishes the events that follow them. Returns true if
    /// the turn may continue as if they were durable: they are durable, or the turn may commit
    /// early.
    pub(super) fn store(
        &self,
        batch: &mut TurnBatch,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> bool {
        let TurnBatch { records, events } = batch;
        let count = records.len() as u64;
        current.records += count;
        let (turn, upto) = (current.number, current.records);
        let accumulator = myself.clone();
        let goes_on = current.turn.may_commit_early();
        let waits = current.turn.waits_for_records() && !goes_on;
        let urgency = if waits { Urgency::Urgent } else { Urgency::Lazy };
        let time = unix_ms();
        let (last, appended) = self.log.append_at(time, records.drain(..), urgency, move || {
            let _ = accumulator.cast(AccumulatorMessage::RecordsStored { turn, upto });
        });
        for (behind, displayed_bytes, event) in events.drain(..) {
            let seq = Seq(last.0 - count + behind);
            self.publish(event, Some(SourceRecord { seq, time, displayed_bytes }), current);
        }
        goes_on || appended == AppendStatus::Durable
    }

    /// Requests a permit for a tool. If it is granted later, the accumulator receives a message.
    pub(super) fn reserve(
        &self,
        key: CallKey,
        tool: &str,
        of: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> PermitReply {
        let accumulator = myself.clone();
        let (place, reservation) =
            self.caps.request_permit(tool, self.session.get_id(), move || {
                let _ = accumulator.cast(AccumulatorMessage::PlaceGranted { key });
            });
        if let Some(reservation) = reservation {
            of.places.insert(key, reservation);
        }
        place
    }

    /// Notifies the session of the pending approvals, if they have changed.
    pub(super) fn tell_questions(&self, current: &mut CurrentTurn) {
        let CurrentTurn { turn, told: (known, rested), .. } = current;
        let rests = turn.waits_only_for_approval();
        if *rested == rests && turn.pending_approvals().eq(known.iter().copied()) {
            return;
        }
        *known = turn.pending_approvals().collect();
        *rested = rests;
        let questions = known.iter().filter_map(|(key, _)| turn.pending_approval(*key)).collect();
        let epoch = self.epoch;
        let _ = self.session.cast(SessionMessage::QuestionsChanged { epoch, questions, rests });
    }

    /// Publishes an event of the turn. `record` is the record directly before it.
    fn publish(&self, event: Event, record: Option<SourceRecord>, of: &mut CurrentTurn) {
        if let Event::AttemptEnded { error, .. } = &event
            && let Some(breaker_permit) = of.breaker_permit.take()
        {
            breaker_permit.report_result(error.as_deref());
        }
        if let Event::AttemptEnded { error: None, .. } = &event {
            self.publisher.trace_answer(of.turn.response());
        }
        self.publisher.publish_after(&of.run, of.number, event, record);
    }

    /// Performs an action of the turn. If its receiver has ended, the session is notified of that
    /// and continues from the journal.
    pub(super) fn perform(
        &self,
        action: TurnAction,
        of: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        match action {
            TurnAction::Request(plan) => of.next_request = Some(plan),
            TurnAction::Disconnect => {
                of.next_request = None;
                let _ = self.stream.cast(StreamMessage::Disconnect);
            }
            TurnAction::RequestToolPermit { key, tool } => {
                let permit = self.reserve(key, &tool, of, myself);
                of.turn.handle_tool_permit(of.began.elapsed(), key, permit);
            }
            TurnAction::ReleaseToolPermit(key) => drop(of.places.remove(&key)),
            TurnAction::Start(CallStart { call, variables, idempotency_key }) => {
                let start = StartTool {
                    run: of.run.clone(),
                    agent: Arc::clone(&of.agent),
                    idempotency_key,
                    trace: of.trace.as_ref().map(|trace| trace.of_call(call.key)),
                    place: of.places.remove(&call.key),
                    call,
                    variables,
                };
                of.orders.push_back(ToolCommand::Start(Box::new(start)));
            }
            TurnAction::Abort(key) => of.orders.push_back(ToolCommand::Abort(key)),
            TurnAction::Commit(record) => {
                of.request = None;
                let epoch = self.epoch;
                let _ = self.session.cast(SessionMessage::TurnCommitted { epoch, record });
            }
        }
    }

    /// Sends the request that the turn planned last, unless the turn has disconnected since.
    pub(super) fn send_request(&self, of: &mut CurrentTurn, myself: &ActorRef<AccumulatorMessage>) {
        // A turn that is over has dropped its request and plans none.
        let (Some(plan), Some(request)) = (of.next_request.take(), &of.request) else { return };
        let _ = self.stream.cast(StreamMessage::Request {
            turn: of.number,
            trace: of.trace.as_ref().map(|t| t.of_attempt(of.number, plan.attempt)),
            model: Arc::clone(of.agent.models.at(plan.model)),
            plan,
            request: Arc::clone(request),
            to: myself.clone(),
        });
    }
}
