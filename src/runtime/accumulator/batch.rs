//! What the machine asks for: its records as one batch, and each effect behind those that stand
//! before it.

use std::sync::Arc;

use ractor::ActorRef;

use super::{AccumulatorSetup, Current};
use crate::event::Event;
use crate::journal::{AppendStatus, PendingRecord, Urgency, unix_ms};
use crate::record::Seq;
use crate::runtime::message::{AccumulatorMessage, SessionMessage, StreamMessage};
use crate::runtime::supervisor::{ToolOrder, ToolStart};
use crate::telemetry::RecordPosition;
use crate::turn::{Effect, PermitReply};
use crate::types::CallKey;

/// What one poll loop asks for from its first record on; its room serves the next one.
#[derive(Default)]
pub(super) struct TurnBatch {
    pub(super) records: Vec<PendingRecord>,
    /// Each with the number of records before it, and how much had been shown by the last of them.
    effects: Vec<(u64, u64, Effect)>,
}

impl TurnBatch {
    /// Performs the effect now, or behind the records that stand before it.
    pub(super) fn push(
        &mut self,
        effect: Effect,
        setup: &AccumulatorSetup,
        current: &mut Current,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        match self.records.last() {
            None => setup.perform(effect, None, current, myself),
            Some(PendingRecord { shown, .. }) => {
                self.effects.push((self.records.len() as u64, *shown, effect));
            }
        }
    }
}

impl AccumulatorSetup {
    /// Appends the records as one batch, and then does what came behind them. Returns whether the
    /// turn goes on as if they were durable: because they are, or because it may.
    pub(super) fn store(
        &self,
        batch: &mut TurnBatch,
        current: &mut Current,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> bool {
        let TurnBatch { records, effects } = batch;
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
        for (behind, shown, effect) in effects.drain(..) {
            let seq = Seq(last.0 - count + behind);
            self.perform(effect, Some(RecordPosition { seq, time, shown }), current, myself);
        }
        goes_on || appended == AppendStatus::Durable
    }

    /// Asks for a place of a tool. One that is granted later is told to the accumulator.
    pub(super) fn reserve(
        &self,
        key: CallKey,
        tool: &str,
        of: &mut Current,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> PermitReply {
        let accumulator = myself.clone();
        let (place, reservation) = self.caps.reserve(tool, self.session.get_id(), move || {
            let _ = accumulator.cast(AccumulatorMessage::PlaceGranted { key });
        });
        if let Some(reservation) = reservation {
            of.places.insert(key, reservation);
        }
        place
    }

    /// Tells the session what people are asked, if that has changed.
    pub(super) fn tell_questions(&self, current: &mut Current) {
        let Current { turn, told: (known, rested), .. } = current;
        let rests = turn.waits_only_for_people();
        if *rested == rests && turn.pending_approvals().eq(known.iter().copied()) {
            return;
        }
        *known = turn.pending_approvals().collect();
        *rested = rests;
        let questions = known.iter().filter_map(|(key, _)| turn.pending_approval(*key)).collect();
        let epoch = self.epoch;
        let _ = self.session.cast(SessionMessage::QuestionsChanged { epoch, questions, rests });
    }

    /// Performs an effect; `record` is the one right before it. That a receiver is gone is heard by the session, which then begins anew from the journal.
    pub(super) fn perform(
        &self,
        effect: Effect,
        record: Option<RecordPosition>,
        of: &mut Current,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        match effect {
            Effect::Record(_) | Effect::RequestToolPermit { .. } => {
                debug_assert!(false, "these are answered where they are polled");
            }
            Effect::ReleaseToolPermit(key) => drop(of.places.remove(&key)),
            Effect::Request(plan) => {
                let Some(request) = &of.request else {
                    debug_assert!(false, "a turn that is over asks for nothing");
                    return;
                };
                let _ = self.stream.cast(StreamMessage::Request {
                    turn: of.number,
                    trace: of.trace.as_ref().map(|t| t.of_attempt(of.number, plan.attempt)),
                    model: Arc::clone(of.agent.models.at(plan.model)),
                    plan,
                    request: Arc::clone(request),
                    to: myself.clone(),
                });
            }
            Effect::Disconnect => {
                let _ = self.stream.cast(StreamMessage::Disconnect);
            }
            Effect::Start(call, variables) => {
                let start = ToolStart {
                    run: of.run.clone(),
                    agent: Arc::clone(&of.agent),
                    idempotency_key: of.idempotency_key(call.key),
                    trace: of.trace.as_ref().map(|trace| trace.of_call(call.key)),
                    place: of.places.remove(&call.key),
                    call,
                    variables,
                };
                of.orders.push_back(ToolOrder::Start(Box::new(start)));
            }
            Effect::Abort(key) => of.orders.push_back(ToolOrder::Abort(key)),
            Effect::Emit(event) => {
                if let Event::AttemptEnded { error, .. } = &event
                    && let Some(pass) = of.pass.take()
                {
                    pass.settle(error.as_deref());
                }
                if let Event::AttemptEnded { error: None, .. } = &event {
                    self.publisher.trace_answer(of.turn.response());
                }
                self.publisher.publish_behind(&of.run, of.number, event, record);
            }
            Effect::Commit(record) => {
                of.request = None;
                let epoch = self.epoch;
                let _ = self.session.cast(SessionMessage::TurnCommitted { epoch, record });
            }
        }
    }
}
