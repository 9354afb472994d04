//! The transition after every event: admit, resolve, start, release and commit.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, CallAdmission};
use super::call::CallPhase;
use super::committed::TurnRecord;
use super::effect::{DeferredEffect, Effect, TurnAction, TurnEnd};
use super::schedule::{self, ScheduleAction};
use super::{Turn, TurnStage};
use crate::event::{Event, TurnSummary, WaitingFor};
use crate::record::{Record, ResponseDisposition, ResponseMessage};
use crate::types::{CallKey, Execution, ToolOutcome};

impl Turn {
    /// Makes every decision that is possible in the present state.
    pub(super) fn advance(&mut self) {
        self.admit_in_order();
        self.resolve_reports();
        self.start_ready_calls();
        self.release_in_order();
        self.finish();
        self.clock.set_waiting_for_people(self.waits_for_people());
    }

    /// Admits sealed calls. A call is admitted after every earlier call was.
    fn admit_in_order(&mut self) {
        for index in 0..self.calls.len() {
            let Some((earlier, rest)) = self.calls.split_at_checked(index) else { return };
            let Some(call) = rest.first() else { return };
            match call.phase {
                CallPhase::Open | CallPhase::AwaitingReferences | CallPhase::AwaitingHooks => {
                    return;
                }
                CallPhase::Sealed => {}
                CallPhase::Ready
                | CallPhase::Duplicate { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingClient { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingResultHooks { .. }
                | CallPhase::AwaitingReview { .. }
                | CallPhase::Ended { .. }
                | CallPhase::Dropped => continue,
            }
            let admission = admission::admit(call, earlier, &self.spec);
            let earlier_result = self.reusable_results.get(&call.identity).cloned();
            match admission {
                CallAdmission::Answer(outcome) => self.end_call(index, outcome),
                // An approval that a hook asks for was not given to the earlier call.
                CallAdmission::Run
                    if earlier_result.is_some()
                        && !call.has_effects()
                        && !call.is_start_questioned() =>
                {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.notes.reused = true;
                    }
                    self.end_call(index, earlier_result.unwrap_or_else(|| ToolOutcome::ok("")));
                }
                CallAdmission::Run => self.set_phase(index, CallPhase::Ready),
                CallAdmission::Copy(of) => {
                    self.set_phase(index, CallPhase::Duplicate { of });
                    self.end_duplicates_of(of);
                }
            }
        }
    }

    fn start_ready_calls(&mut self) {
        while let Some(action) =
            schedule::next_action(&self.calls, self.spec.rules.execution, self.start_gate())
        {
            match action {
                ScheduleAction::Start(index) => self.start_or_request_permit(index),
                ScheduleAction::RequestApproval(index) => self.request_start_approval(index),
                ScheduleAction::Wait(index, reason) => self.publish_waiting(index, reason),
            }
        }
    }

    /// Publishes the reason for which a call waits, unless it is the reason that was published last.
    pub(super) fn publish_waiting(&mut self, index: usize, reason: WaitingFor) {
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.waiting_for.replace(reason) == Some(reason) {
            return;
        }
        let event = Event::CallWaiting {
            call: call.label(),
            waiting_for: reason,
            input_summary: call.input_summary(),
            client_input: None,
        };
        self.emit(event);
    }

    /// Releases outcomes in call order, after the response has ended.
    fn release_in_order(&mut self) {
        if !matches!(self.stage, TurnStage::ResponseEnded { .. }) {
            return;
        }
        let now = self.clock.now();
        while let Some((key, reorder_wait)) = self.reassembly.release_next(&self.calls, now) {
            let released = Event::ResultReleased { key, reorder_wait };
            self.effects.defer(DeferredEffect::Queue(Effect::Emit(released)));
        }
    }

    /// Commits the turn if its response has ended and every outcome is released.
    fn finish(&mut self) {
        let has_ended = matches!(self.stage, TurnStage::ResponseEnded { .. });
        if !has_ended || !self.reassembly.is_done(&self.calls) || !self.is_turn_checked() {
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
            (ResponseDisposition::Refused, None) => {
                refusal.map_or(TurnEnd::Refused, TurnEnd::RefusedByHook)
            }
            (ResponseDisposition::Excess, None) => TurnEnd::Failed(self.excess_error()),
            // The turn was resumed after a cancellation whose reason is not recorded.
            (ResponseDisposition::Cancelled, None) => {
                TurnEnd::Cancelled(super::CancelReason::Shutdown)
            }
            (
                ResponseDisposition::Well
                | ResponseDisposition::Length
                | ResponseDisposition::BrokeKept,
                None,
            ) => refusal.map_or(TurnEnd::Finished, TurnEnd::RefusedByHook),
        };
        self.commit(end, message);
    }

    pub(super) fn commit(&mut self, end: TurnEnd, message: Option<Arc<ResponseMessage>>) {
        let number = self.spec.number;
        let results: Vec<_> =
            self.calls.iter().filter_map(|call| call.result(self.spec.began)).collect();
        let dropped_calls = std::mem::take(&mut self.attempt.dropped_calls);
        let record = TurnRecord {
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
        self.record(Record::TurnCommitted { turn: number, end, summary: summary.clone() });
        self.emit(Event::TurnEnded { summary });
        let commit = Effect::Perform(TurnAction::Commit(Box::new(record)));
        self.effects.defer(DeferredEffect::Queue(commit));
        // The session adds the ids of this turn to its set now. It would have to copy the set if the
        // turn still shared it.
        if !self.spec.used_call_ids.is_empty() {
            Arc::make_mut(&mut self.spec).used_call_ids = Arc::default();
        }
    }

    fn summary(&self, record: &TurnRecord) -> TurnSummary {
        TurnSummary {
            tool_names: record.results.iter().map(|result| result.call.name.clone()).collect(),
            dropped_calls: u32::try_from(record.dropped_calls.len()).unwrap_or(u32::MAX),
            finish_reason: record.finish_reason.clone(),
            usage: record.usage,
            parallel: self.spec.rules.execution != Execution::Sequential,
            times: record.times,
        }
    }

    pub(super) fn set_phase(&mut self, index: usize, phase: CallPhase) {
        if let Some(call) = self.calls.get_mut(index) {
            call.phase = phase;
        }
    }

    pub(super) fn position(&self, key: CallKey) -> Option<usize> {
        self.calls.iter().position(|call| call.key() == key)
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.emit(event);
    }

    pub(super) fn record(&mut self, record: Record) {
        self.effects.record(record);
    }

    /// Returns the time since the turn began.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }
}
