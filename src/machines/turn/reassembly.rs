//! Reassembly of results: release of outcomes in call order, and commit. Calls end in any order.

use std::sync::Arc;
use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use super::committed::CommittedTurn;
use super::effect::{CancelReason, DeferredEffect, Effect, TurnAction, TurnEnd};
use super::{Turn, TurnStage};
use callsheet_values::event::{Event, TurnSummary};
use callsheet_values::record::{Record, ResponseEnding, ResponseMessage};
use callsheet_values::types::{CallKey, Execution};

/// The release of a turn's results in call order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reassembly {
    /// Every call before this index is released or dropped.
    released: usize,
}

impl Reassembly {
    /// Releases the next call in call order, if it has ended. Returns its key and the time between
    /// its end and its release.
    fn release_next(&mut self, calls: &[TurnCall], now: Duration) -> Option<(CallKey, Duration)> {
        while let Some(call) = calls.get(self.released) {
            match &call.phase {
                CallPhase::Dropped => self.released += 1,
                CallPhase::Ended { at, .. } => {
                    self.released += 1;
                    return Some((call.key(), now.saturating_sub(*at)));
                }
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::AwaitingReferences
                | CallPhase::AwaitingHooks
                | CallPhase::AwaitingResultHooks { .. }
                | CallPhase::Ready
                | CallPhase::Duplicate { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingClient { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingReview { .. } => return None,
            }
        }
        None
    }

    /// Returns whether nothing is left to release.
    fn is_done(&self, calls: &[TurnCall]) -> bool {
        calls.iter().skip(self.released).all(|call| matches!(call.phase, CallPhase::Dropped))
    }
}

impl Turn {
    /// Releases outcomes in call order, after the response has ended.
    pub(super) fn release_in_order(&mut self) {
        if !matches!(self.stage, TurnStage::ResponseEnded { .. }) {
            return;
        }
        let now = self.clock.now();
        while let Some((key, reorder_wait)) = self.reassembly.release_next(&self.calls, now) {
            let released = Event::ResultReleased { key, reorder_wait };
            self.effects.defer(DeferredEffect::Queue(Effect::Emit(released)));
        }
    }

    /// Commits the turn if its response has ended and every outcome is released. Asks the hooks about the turn
    /// first, and waits for their answer.
    pub(super) fn finish(&mut self) {
        let has_ended = matches!(self.stage, TurnStage::ResponseEnded { .. });
        if !has_ended || !self.reassembly.is_done(&self.calls) || !self.advance_turn_hooks() {
            return;
        }
        let refusal = self.hook_refusal();
        let TurnStage::ResponseEnded { ending, message, cancelled } = &mut self.stage else {
            return;
        };
        let (ending, message, cancelled) = (*ending, message.take(), *cancelled);
        self.stage = TurnStage::Finished;
        let end = match (ending, cancelled) {
            (_, Some(reason)) => TurnEnd::Cancelled(reason),
            (ResponseEnding::Refused, None) => {
                refusal.map_or(TurnEnd::Refused, TurnEnd::RefusedByHook)
            }
            (ResponseEnding::TooManyCalls, None) => TurnEnd::Failed(self.excess_error()),
            // The turn was resumed after a cancellation whose reason is not recorded.
            (ResponseEnding::Cancelled, None) => TurnEnd::Cancelled(CancelReason::Shutdown),
            (
                ResponseEnding::Complete | ResponseEnding::Length | ResponseEnding::BrokenKept,
                None,
            ) => refusal.map_or(TurnEnd::Finished, TurnEnd::RefusedByHook),
        };
        self.commit(end, message);
    }

    pub(super) fn commit(&mut self, end: TurnEnd, message: Option<Arc<ResponseMessage>>) {
        let number = self.spec.number;
        let results: Vec<_> =
            self.calls.iter().filter_map(|call| call.result(self.spec.run_elapsed)).collect();
        let dropped_calls = std::mem::take(&mut self.attempt.dropped_calls);
        let record = CommittedTurn {
            number,
            end,
            message,
            results,
            dropped_calls,
            finish_reason: self.attempt.finish_reason.clone(),
            usage: self.usage,
            request_tokens: self
                .attempt
                .response
                .usage()
                .input_tokens
                .max(self.attempt.recorded_request_tokens),
            times: self.clock.times(),
        };
        let (end, summary) = (record.end.clone(), Box::new(self.summary(&record)));
        self.record(Record::TurnCommitted { turn: number, end, summary });
        let commit = Effect::Perform(TurnAction::Commit(Box::new(record)));
        self.effects.defer(DeferredEffect::Queue(commit));
        // The session adds the ids of this turn to its set now. It would have to copy the set if the
        // turn still shared it.
        if !self.spec.used_call_ids.is_empty() {
            Arc::make_mut(&mut self.spec).used_call_ids = Arc::default();
        }
    }

    fn summary(&self, record: &CommittedTurn) -> TurnSummary {
        TurnSummary {
            tool_names: record.results.iter().map(|result| result.call.name.clone()).collect(),
            dropped_calls: u32::try_from(record.dropped_calls.len()).unwrap_or(u32::MAX),
            finish_reason: record.finish_reason.clone(),
            usage: record.usage,
            parallel: self.spec.rules.execution != Execution::Sequential,
            times: record.times,
        }
    }
}
