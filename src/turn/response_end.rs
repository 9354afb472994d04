//! The end of a response: which of its calls and which of its text are kept, by how it ended.

use std::sync::Arc;

use super::admission;
use super::call::CallPhase;
use super::effect::{CancelReason, TurnAction, TurnEnd};
use super::{Turn, TurnStage, attempt_start, model_messages};
use crate::event::{Event, ServiceCallStatus};
use crate::record::{PartialResponse, Record, ResponseDisposition, ResponseMessage};
use crate::response::DisplayOrder;
use crate::response::PartialCall;
use crate::types::{ProviderError, RunError, ToolOutcome, ToolStatus};

impl Turn {
    /// Ends the response: records what is kept, and answers the calls that can no longer start.
    pub(super) fn end_response(
        &mut self,
        ending: ResponseDisposition,
        cancelled: Option<CancelReason>,
    ) {
        self.close_exchange(None);
        self.discard_service_calls(|call| !call.sealed);
        for index in 0..self.calls.len() {
            self.parse_unsealed_arguments(index, ending);
        }
        if ending == ResponseDisposition::Refused {
            self.drop_calls_after_refusal();
        }
        let excess = self.response.excess();
        if excess > 0 {
            let maximum = self.calls.len() as u64;
            self.record_call_limit(maximum.saturating_add(excess as u64), maximum, "truncated");
        }
        let message = Arc::new(self.kept_message(ending));
        self.finish = self.response.finish().cloned();
        self.record(Record::ResponseEnded {
            turn: self.spec.number,
            attempt: self.plan.attempt,
            ending,
            message: Arc::clone(&message),
            finish_reason: self.finish.clone(),
            usage: self.response.usage(),
            dropped_calls: self.dropped.clone(),
            shown: self.display_order.of(&message),
        });
        let detected =
            self.calls.iter().filter(|c| c.sealed_at.is_some() && c.arguments_error.is_none());
        let event = Event::ResponseEnded {
            names: message.calls.iter().map(|call| call.name.clone()).collect(),
            opened: u32::try_from(self.calls.len() + excess).unwrap_or(u32::MAX),
            detected: u32::try_from(detected.count()).unwrap_or(u32::MAX),
            stopped: ending == ResponseDisposition::Cancelled,
        };
        self.emit(event);
        self.stage = TurnStage::ResponseEnded {
            ending,
            message: Some(message).filter(|m| !m.is_blank()),
            cancelled,
        };
        self.answer_unstarted(ending);
    }

    /// Answers the calls that can no longer start.
    pub(super) fn answer_unstarted(&mut self, ending: ResponseDisposition) {
        let maximum = self.spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        match ending {
            ResponseDisposition::Well | ResponseDisposition::Refused => {}
            ResponseDisposition::Length => {
                self.end_unstarted_calls(&model_messages::cut_off_response())
            }
            ResponseDisposition::BrokeKept => {
                self.end_unstarted_calls(&model_messages::broken_response())
            }
            ResponseDisposition::Excess => {
                self.end_unstarted_calls(&model_messages::failed_over_limit(maximum))
            }
            ResponseDisposition::Cancelled => self.cancel_calls(),
        }
    }

    fn end_unstarted_calls(&mut self, outcome: &ToolOutcome) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            match call.phase {
                // It was resumed, and runs again.
                CallPhase::AwaitingPermit { .. } if call.started_at.is_some() => {}
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::Ready
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingPermit { .. } => {
                    self.end_call(index, outcome.clone());
                }
                // A duplicate is answered with the call it waits for.
                CallPhase::Duplicate { .. }
                | CallPhase::Intended
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingReview { .. }
                | CallPhase::Ended { .. }
                | CallPhase::Dropped => {}
            }
        }
    }

    /// Answers every call that has no outcome yet.
    pub(super) fn cancel_calls(&mut self) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            match call.phase {
                CallPhase::Running { .. } => {
                    let outcome = model_messages::cancelled(call);
                    self.effects.perform(TurnAction::Abort(call.key()));
                    self.end_call(index, outcome);
                }
                // It would have run again; what its tool answered is all there is, and it is
                // decided once more what comes of that.
                CallPhase::Ready | CallPhase::AwaitingPermit { .. }
                    if let Some(report) = call.report_before_rerun.clone() =>
                {
                    self.release_tool_permit(index);
                    self.set_phase(index, CallPhase::Reported(report));
                }
                // It was resumed, and may have run before.
                CallPhase::AwaitingPermit { .. } | CallPhase::Intended
                    if call.started_at.is_some() =>
                {
                    let outcome = model_messages::cancelled(call);
                    self.end_call(index, outcome);
                }
                // It ran, but nobody has said that its result may be seen.
                CallPhase::AwaitingReview { .. } => {
                    self.end_call(index, model_messages::unreviewed())
                }
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::Ready
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended => self.end_call(index, model_messages::never_started()),
                // Decided as soon as every earlier call is, which they are now; and a duplicate
                // with the call it waits for.
                CallPhase::Reported(_) | CallPhase::Duplicate { .. } => {}
                CallPhase::Ended { .. } | CallPhase::Dropped => {}
            }
        }
    }

    /// Drops all calls after a refusal, except calls with effects that have started.
    fn drop_calls_after_refusal(&mut self) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            // One whose intent is being recorded has not happened yet, and need not.
            if call.is_kept() && !(call.has_effects() && call.started_at.is_some()) {
                self.discard(index);
            }
        }
    }

    /// Aborts a running call and drops it with its result.
    pub(super) fn discard(&mut self, index: usize) {
        self.release_tool_permit(index);
        let Some(call) = self.calls.get(index) else { return };
        let (label, had_result) = (call.label(), call.has_result() || call.has_undecided_report());
        if call.is_running() {
            self.effects.perform(TurnAction::Abort(label.key));
        }
        self.stop_clock(index);
        self.set_phase(index, CallPhase::Dropped);
        self.emit(Event::CallDiscarded { call: label, had_result });
    }

    /// Ends a broken response. It is void unless a call with effects has started: then the partial
    /// message is the turn.
    pub(super) fn handle_broken(&mut self, error: ProviderError) {
        let effects_started =
            self.calls.iter().any(|call| call.has_effects() && call.has_started());
        self.record(Record::AttemptFailed {
            turn: self.spec.number,
            attempt: self.plan.attempt,
            error: error.clone(),
            kept: effects_started,
            usage: self.response.usage(),
            host_stopped: false,
        });
        self.close_exchange(Some(error.clone()));
        if effects_started {
            self.end_response(ResponseDisposition::BrokeKept, None);
            return;
        }
        let is_shown = !self.display_order.is_empty();
        self.void_attempt();
        let next = self.attempts.after(&error, self.plan.streamed);
        let is_out_of_tokens = self.is_out_of_tokens();
        if is_shown && (next.is_none() || is_out_of_tokens) {
            let (attempt, streamed) = (self.plan.attempt, self.plan.streamed);
            let (model, reason) = (self.model_name(&self.plan), error.message.clone());
            self.emit(Event::AttemptVoided { attempt, model, streamed, reason });
        }
        match next {
            Some(_) if is_out_of_tokens => self.end_out_of_tokens(false),
            Some(plan) => self.request_again(plan, error.message),
            None => self.fail(error),
        }
    }

    /// Ends the turn with the error of its last attempt.
    pub(super) fn fail(&mut self, error: ProviderError) {
        self.stage = TurnStage::Finished;
        let error = RunError {
            code: "provider_error".to_owned(),
            transient: error.is_transient(),
            message: error.message,
        };
        self.commit(TurnEnd::Failed(error), None);
    }

    /// Publishes that calls which the service runs itself are discarded.
    fn discard_service_calls(&mut self, which: impl Fn(&PartialCall) -> bool) {
        for at in 0..self.response.service_calls().len() {
            if self.response.service_calls().get(at).is_some_and(&which) {
                self.publish_service_call(at, ServiceCallStatus::Discarded);
            }
        }
    }

    /// Voids the attempt. Results of pure calls are kept for the next attempt.
    fn void_attempt(&mut self) {
        self.discard_service_calls(|_| true);
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { break };
            if !call.is_kept() {
                continue;
            }
            if let Some(outcome) = call.outcome()
                && call.started_at.is_some()
                && outcome.status == ToolStatus::Ok
                // Each call of such a tool is to have a result of its own.
                && !call.tool.as_ref().is_some_and(|tool| tool.repeatable)
            {
                self.reusable_results.insert(call.identity.clone(), outcome.clone());
            }
            self.discard(index);
        }
        self.calls.clear();
        self.dropped.clear();
        self.call_limit_recorded = false;
        self.delta_count = 0;
        self.response = attempt_start::accumulator(&self.spec.rules);
        self.display_order = DisplayOrder::default();
    }

    /// Parses the arguments of a call that was never sealed, as far as they were received.
    fn parse_unsealed_arguments(&mut self, index: usize, ending: ResponseDisposition) {
        let (Some(partial_call), Some(call)) =
            (self.response.calls().get(index), self.calls.get_mut(index))
        else {
            return;
        };
        if call.phase != CallPhase::Open {
            return;
        }
        call.call.provider_id.clone_from(&partial_call.provider_id);
        let odd = admission::parse_call_arguments(call, &partial_call.raw, partial_call.oversize);
        self.assign_call_id(index);
        // A user's stop cuts arguments off too, and nothing is odd about that.
        if let Some(oddity) = odd.filter(|_| ending != ResponseDisposition::Cancelled) {
            self.publish_anomaly(index, oddity);
        }
    }

    /// Gives a call the id under which history and provider know it: the provider's own, unless
    /// there is none or another call of the turn has it.
    pub(super) fn assign_call_id(&mut self, index: usize) {
        let is_taken = |id: &str| {
            self.calls
                .iter()
                .enumerate()
                .any(|(other, call)| other != index && &*call.call.id == id)
        };
        let provider_id = self.calls.get(index).and_then(|call| call.call.provider_id.clone());
        let id = provider_id.filter(|id| !is_taken(id)).unwrap_or_else(|| {
            let mut n = self.spec.turns_with_calls;
            loop {
                let id = format!("call_{n}_{index}");
                if !is_taken(&id) && !self.spec.used_call_ids.contains(&id) {
                    break id.into();
                }
                n = n.wrapping_add(1);
            }
        });
        if let Some(call) = self.calls.get_mut(index) {
            call.call.id = id;
        }
    }

    fn kept_message(&self, ending: ResponseDisposition) -> ResponseMessage {
        let mut text = self.response.text().to_owned();
        text.push_str(self.response.refusal());
        let kept = self.calls.iter().filter(|call| call.is_kept());
        let mut message = ResponseMessage {
            text,
            reasoning: self.response.reasoning().to_owned(),
            calls: kept.map(|call| call.call.clone()).collect(),
            origin: Some(Arc::clone(&self.attempts.model().origin)),
            parts: self.response.parts().to_vec(),
        };
        message.drop_parts_without_calls();
        match ending {
            ResponseDisposition::Well => {}
            ResponseDisposition::Length
            | ResponseDisposition::Refused
            | ResponseDisposition::BrokeKept
            | ResponseDisposition::Excess
            | ResponseDisposition::Cancelled => message.drop_unfinished_reasoning(),
        }
        message
    }

    /// Returns the part of the response that would be kept if it ended now: calls whose arguments
    /// are incomplete are left out.
    pub(super) fn response_so_far(&self) -> PartialResponse {
        let mut message = self.kept_message(ResponseDisposition::BrokeKept);
        let is_whole =
            |key| self.calls.iter().any(|c| c.key() == key && c.phase != CallPhase::Open);
        message.calls.retain(|call| is_whole(call.key));
        message.drop_parts_without_calls();
        PartialResponse { shown: self.display_order.of(&message), message }
    }

    pub(super) fn excess_error(&self) -> RunError {
        let maximum = self.spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        RunError {
            code: "TOOL_CALL_LIMIT_EXCEEDED".to_owned(),
            message: format!(
                "TOOL_CALL_LIMIT_EXCEEDED: received at least {}, maximum {maximum}, turn {}",
                maximum.saturating_add(1),
                self.spec.number
            ),
            transient: false,
        }
    }
}
