//! From sealed calls to a committed turn: what is done after every event.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, CallAdmission};
use super::call::{CallPhase, TurnCall};
use super::effect::{
    CallStart, DeferredEffect, Effect, PermitReply, TurnAction, TurnEnd, TurnRecord,
};
use super::schedule::{self, ScheduleAction};
use super::{Turn, TurnStage};
use crate::event::{CallLabel, Event, TurnSummary, WaitingFor};
use crate::record::{Record, ResponseDisposition, ResponseMessage};
use crate::types::{CallKey, Execution, ToolOutcome, ToolResult, WriteSet};

impl Turn {
    /// Decides everything that can be decided now.
    pub(super) fn advance(&mut self) {
        self.admit_in_order();
        self.resolve_reports();
        self.start_ready_calls();
        self.release_in_order();
        self.finish();
        self.clock.set_waiting_for_approval(self.waits_for_approval());
    }

    /// Decides on sealed calls, each when every earlier one is decided.
    fn admit_in_order(&mut self) {
        for index in 0..self.calls.len() {
            let Some((earlier, rest)) = self.calls.split_at_checked(index) else { return };
            let Some(call) = rest.first() else { return };
            match call.phase {
                CallPhase::Open => return,
                CallPhase::Sealed => {}
                CallPhase::Ready
                | CallPhase::Duplicate { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingReview { .. }
                | CallPhase::Ended { .. }
                | CallPhase::Dropped => continue,
            }
            let admission = admission::admit(call, earlier, &self.spec);
            let kept = self.reusable_results.get(&call.identity).cloned();
            match admission {
                CallAdmission::Answer(outcome) => self.end_call(index, outcome),
                CallAdmission::Run if kept.is_some() && !call.has_effects() => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.notes.reused = true;
                    }
                    self.end_call(index, kept.unwrap_or_else(|| ToolOutcome::ok("")));
                }
                CallAdmission::Run => self.set_phase(index, CallPhase::Ready),
                CallAdmission::Copy(of) => {
                    self.set_phase(index, CallPhase::Duplicate { of });
                    self.copy_outcome_of(of);
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

    /// Says once for each reason that a call waits.
    pub(super) fn publish_waiting(&mut self, index: usize, reason: WaitingFor) {
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.waiting_for.replace(reason) == Some(reason) {
            return;
        }
        let event = Event::CallWaiting {
            call: call.label(),
            waiting_for: reason,
            input_summary: call.input_summary(),
        };
        self.emit(event);
    }

    /// Gives the call its ticket and a place of `max`. One whose tool has a cap goes on when the
    /// host has a place of that tool for it.
    pub(super) fn start_or_request_permit(&mut self, index: usize) {
        let since = self.now();
        let Some(call) = self.calls.get_mut(index) else { return };
        if !call.has_concurrency_limit() {
            self.start(index);
            return;
        }
        call.phase = CallPhase::AwaitingPermit { since };
        let (key, tool) = (call.key(), call.call.name.clone());
        self.clock.call_queued();
        self.effects.perform(TurnAction::RequestToolPermit { key, tool });
    }

    /// The host has answered a call that asks for a place of its tool.
    pub(super) fn handle_permit_reply(
        &mut self,
        index: usize,
        since: Duration,
        place: PermitReply,
    ) {
        match place {
            PermitReply::Waiting => self.publish_waiting(index, WaitingFor::Capacity),
            PermitReply::Granted => {
                let waited = self.now().saturating_sub(since);
                let Some(call) = self.calls.get_mut(index) else { return };
                call.queue_wait = Some(waited);
                self.clock.call_dequeued();
                self.start(index);
            }
        }
    }

    /// A call that is not going to start needs no place of its tool.
    pub(super) fn release_tool_permit(&mut self, index: usize) {
        let Some(call) = self.calls.get(index).filter(|call| call.has_tool_permit()) else {
            return;
        };
        if matches!(call.phase, CallPhase::AwaitingPermit { .. }) {
            self.clock.call_dequeued();
        }
        self.effects.perform(TurnAction::ReleaseToolPermit(call.key()));
    }

    /// Starts a call that has its ticket and its places. One with effects first has its intent
    /// recorded.
    fn start(&mut self, index: usize) {
        let early = self.stage == TurnStage::AwaitingResponse;
        let Some(call) = self.calls.get_mut(index) else { return };
        call.early = early;
        if call.has_effects() {
            call.phase = CallPhase::Intended;
            let call = call.call.clone();
            let key = call.key;
            let idempotency_key = self.spec.idempotency_key(key);
            let so_far = early.then(|| Box::new(self.response_so_far()));
            self.record(Record::CallIntended { call, idempotency_key, so_far });
            self.effects.defer(DeferredEffect::StartCall(key));
        } else {
            self.run_call(index);
        }
    }

    /// The intent of a call is durable. It may have been answered meanwhile.
    pub(super) fn start_intended(&mut self, index: usize) {
        if self.calls.get(index).is_some_and(|call| call.phase == CallPhase::Intended) {
            self.run_call(index);
        }
    }

    fn run_call(&mut self, index: usize) {
        let now = self.clock.now();
        let kept = self.calls.iter().filter(|call| call.is_kept()).count();
        let of = u32::try_from(kept).unwrap_or(u32::MAX);
        let default_timeout = self.spec.rules.limits.tool_timeout;
        let Some(call) = self.calls.get_mut(index) else { return };
        let timeout = call.tool.as_ref().and_then(|tool| tool.timeout).or(default_timeout);
        // A timeout beyond what can be counted is none.
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        call.phase = CallPhase::Running { deadline };
        call.started_at = Some(now);
        call.answered_at = None;
        call.report_before_rerun = None;
        call.snapshot = self.visible.writers().clone();
        let event = Event::CallStarted {
            call: call.label(),
            input_summary: call.input_summary(),
            early: call.early,
            waited: now.saturating_sub(call.sealed_at.unwrap_or(now)),
            queued: call.queue_wait,
            of,
        };
        let start = CallStart {
            call: call.call.clone(),
            variables: self.visible.variables.clone(),
            idempotency_key: self.spec.idempotency_key(call.key()),
        };
        self.clock.tool_started();
        self.emit(event);
        self.effects.perform(TurnAction::Start(start));
    }

    /// Decides the outcome of a call that writes nothing.
    pub(super) fn end_call(&mut self, index: usize, outcome: ToolOutcome) {
        self.end_call_with(index, outcome, WriteSet::default());
    }

    /// Decides a call's outcome, and what it writes: the one place where that is done.
    pub(super) fn end_call_with(&mut self, index: usize, outcome: ToolOutcome, writes: WriteSet) {
        self.stop_clock(index);
        let now = self.clock.now();
        let parallel = self.spec.rules.execution != Execution::Sequential;
        self.release_tool_permit(index);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.phase = CallPhase::Ended { outcome: outcome.clone(), at: now };
        call.writes = writes.clone();
        let key = call.key();
        self.visible.accept(key.index, &writes);
        let bytes = outcome.content.len() as u64;
        let early = call.early;
        if let Some(result) = call.result(self.spec.began) {
            self.record(call_ended_record(&result, early, false));
            self.emit(Event::CallEnded { result: Box::new(result), parallel, early });
        }
        let maximum = self.spec.rules.limits.max_result_bytes as u64;
        if bytes > maximum {
            self.record_limit("max_result_bytes", bytes, maximum, "shortened");
        }
        self.copy_outcome_of(key);
    }

    /// A tool that ran has answered, or is given up.
    pub(super) fn stop_clock(&mut self, index: usize) {
        let now = self.clock.now();
        let runs = |call: &&mut TurnCall| call.is_running() && call.answered_at.is_none();
        if let Some(call) = self.calls.get_mut(index).filter(runs) {
            call.answered_at = Some(now);
            self.clock.tool_ended(now.saturating_sub(call.started_at.unwrap_or(now)));
        }
    }

    /// Ends the duplicates that wait for a call which has its outcome.
    fn copy_outcome_of(&mut self, key: CallKey) {
        let of = self.position(key).and_then(|index| self.calls.get(index));
        // What was done with variables may be out of date by the place of the duplicate: such a
        // copy is made in call order.
        let settled = |call: &&TurnCall| {
            call.arguments_error.is_none() && call.reads.0.is_empty() && call.writes.is_empty()
        };
        let Some(outcome) = of.filter(settled).and_then(TurnCall::outcome).cloned() else { return };
        for index in 0..self.calls.len() {
            if self
                .calls
                .get(index)
                .is_some_and(|call| call.phase == CallPhase::Duplicate { of: key })
            {
                self.end_duplicate(index, key, outcome.clone());
            }
        }
    }

    pub(super) fn end_duplicate(&mut self, index: usize, of: CallKey, outcome: ToolOutcome) {
        if let Some(call) = self.calls.get_mut(index) {
            call.notes.duplicate_of = Some(of);
        }
        self.end_call(index, outcome);
    }

    /// Makes results known in call order, once the ending is.
    fn release_in_order(&mut self) {
        if !matches!(self.stage, TurnStage::ResponseEnded { .. }) {
            return;
        }
        let now = self.clock.now();
        while let Some((key, reorder_wait)) = self.reassembly.next(&self.calls, now) {
            let released = Event::ResultReleased { key, reorder_wait };
            self.effects.defer(DeferredEffect::Queue(Effect::Emit(released)));
        }
    }

    /// Commits the turn when nothing of it is left open.
    fn finish(&mut self) {
        let TurnStage::ResponseEnded { ending, message, cancelled } = &mut self.stage else {
            return;
        };
        if !self.reassembly.is_done(&self.calls) {
            return;
        }
        let (ending, message, cancelled) = (*ending, message.take(), *cancelled);
        self.stage = TurnStage::Finished;
        let end = match (ending, cancelled) {
            (_, Some(why)) => TurnEnd::Cancelled(why),
            (ResponseDisposition::Refused, None) => TurnEnd::Refused,
            (ResponseDisposition::Excess, None) => TurnEnd::Failed(self.excess_error()),
            // A turn that was recovered after its run had been cancelled.
            (ResponseDisposition::Cancelled, None) => {
                TurnEnd::Cancelled(super::CancelReason::Shutdown)
            }
            (
                ResponseDisposition::Well
                | ResponseDisposition::Length
                | ResponseDisposition::BrokeKept,
                None,
            ) => TurnEnd::Finished,
        };
        self.commit(end, message);
    }

    pub(super) fn commit(&mut self, end: TurnEnd, message: Option<Arc<ResponseMessage>>) {
        let number = self.spec.number;
        let results: Vec<_> =
            self.calls.iter().filter_map(|call| call.result(self.spec.began)).collect();
        let dropped_calls = std::mem::take(&mut self.dropped);
        let record = TurnRecord {
            number,
            end,
            message,
            results,
            dropped_calls,
            finish_reason: self.finish.clone(),
            usage: self.usage,
            times: self.clock.times(),
        };
        let (end, summary) = (record.end.clone(), Box::new(self.summary(&record)));
        self.record(Record::TurnCommitted { turn: number, end, summary: summary.clone() });
        self.emit(Event::TurnEnded { summary });
        let commit = Effect::Perform(TurnAction::Commit(Box::new(record)));
        self.effects.defer(DeferredEffect::Queue(commit));
        // The session adds to them now, and would copy them while they are shared.
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

    /// Since the turn began.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }
}

/// The record of a call that has its outcome.
pub(crate) fn call_ended_record(result: &ToolResult, early: bool, amended: bool) -> Record {
    let ToolResult { call, outcome, notes, started, wait, duration, writes } = result;
    Record::CallEnded {
        call: CallLabel {
            key: call.key,
            provider_id: call.provider_id.clone(),
            name: call.name.clone(),
        },
        outcome: outcome.clone(),
        notes: notes.clone(),
        writes: writes.clone(),
        started_ms: started.map(millis),
        wait_ms: millis(*wait),
        duration_ms: millis(*duration),
        early,
        amended,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
