//! The end of a response: the text and the calls that are kept after each kind of end, also of a partial response
//! (interrupted stream, partial tool call).
//!
//! Each [`ResponseEnding`] has a row in the table of `docs/architecture.md`. Calls that can no
//! longer start are answered. Calls that are discarded leave the history. A cancellation (stop, timeout,
//! budget, shutdown) answers every running call at once and aborts its tool; the supervisor kills it after
//! `cancel_grace`. A call of an agent is answered when its child has ended (`agent_calls`).
//!
//! Two texts of `model_messages` say that something was cut off. `cut_off_response` answers each call that had not
//! started when the response reached its maximum length, also one with complete arguments: the model decides
//! what it still needs. `cut_off_arguments` answers a call whose arguments are incomplete although the stream
//! had marked the call as complete, or the response ended well: the model has to send it again.

use std::sync::Arc;

use super::admission;
use super::call::{CallPhase, TurnCall};
use super::effect::{CancelReason, TurnAction};
use super::{Turn, TurnStage, model_messages};
use callsheet_values::event::{Event, ServiceCallStatus};
use callsheet_values::record::{PartialResponse, Record, ResponseEnding, ResponseMessage};
use callsheet_values::types::ToolOutcome;
use callsheet_wire::response::PartialCall;

impl Turn {
    /// Ends the response: records what is kept, and answers the calls that can no longer start.
    pub(super) fn end_response(&mut self, ending: ResponseEnding, cancelled: Option<CancelReason>) {
        self.withdraw_turn_hooks();
        self.close_exchange(None);
        self.discard_service_calls(|call| !call.sealed);
        for index in 0..self.calls.len() {
            self.parse_unsealed_arguments(index, ending);
        }
        if ending == ResponseEnding::Refused {
            self.drop_calls_after_refusal();
        }
        // Calls beyond `CALLS_MAX`, which were never opened. They are reported under the name of the
        // configurable limit.
        let excess = self.attempt.response.excess();
        if excess > 0 {
            let maximum = self.calls.len() as u64;
            self.record_call_limit(maximum.saturating_add(excess as u64), maximum, "truncated");
        }
        let message = Arc::new(self.kept_message(ending));
        self.attempt.finish_reason = match ending {
            ResponseEnding::Refused => self.attempt.response.refusal_reason(),
            ResponseEnding::Complete
            | ResponseEnding::Length
            | ResponseEnding::BrokenKept
            | ResponseEnding::TooManyCalls
            | ResponseEnding::Cancelled => self.attempt.response.finish_reason().cloned(),
        };
        self.record(Record::ResponseEnded {
            turn: self.spec.number,
            attempt: self.attempt.plan.attempt,
            ending,
            message: Arc::clone(&message),
            finish_reason: self.attempt.finish_reason.clone(),
            usage: self.attempt.response.usage(),
            dropped_calls: self.attempt.dropped_calls.clone(),
            displayed_segments: self.attempt.display_order.segments(&message),
        });
        let detected =
            self.calls.iter().filter(|c| c.sealed_at.is_some() && c.arguments_error.is_none());
        let event = Event::ResponseDecoded {
            names: message.calls.iter().map(|call| call.name.clone()).collect(),
            opened: u32::try_from(self.calls.len() + excess).unwrap_or(u32::MAX),
            detected: u32::try_from(detected.count()).unwrap_or(u32::MAX),
            stopped: ending == ResponseEnding::Cancelled,
        };
        self.emit(event);
        self.stage = TurnStage::ResponseEnded {
            ending,
            message: Some(message).filter(|m| !m.is_blank()),
            cancelled,
        };
        self.close_calls_after_response(ending);
    }

    /// Answers the calls that can no longer start after this end. A cancellation answers running calls too.
    pub(super) fn close_calls_after_response(&mut self, ending: ResponseEnding) {
        let maximum = self.spec.rules.limits.max_tool_calls_per_turn.unwrap_or_default();
        match ending {
            ResponseEnding::Complete | ResponseEnding::Refused => {}
            ResponseEnding::Length => self.end_unstarted_calls(&model_messages::cut_off_response()),
            ResponseEnding::BrokenKept => {
                self.end_unstarted_calls(&model_messages::broken_response())
            }
            ResponseEnding::TooManyCalls => {
                self.end_unstarted_calls(&model_messages::failed_over_limit(maximum))
            }
            ResponseEnding::Cancelled => self.cancel_calls(),
        }
    }

    fn end_unstarted_calls(&mut self, outcome: &ToolOutcome) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            match call.phase {
                // The turn was resumed: this call ran before and runs again.
                CallPhase::AwaitingPermit { .. } if call.started_at.is_some() => {}
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::AwaitingReferences
                | CallPhase::AwaitingHooks
                | CallPhase::Ready
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingPermit { .. } => {
                    self.end_call(index, outcome.clone());
                }
                // A duplicate is answered when the call that it copies is answered.
                CallPhase::Duplicate { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingClient { .. }
                | CallPhase::Running { .. }
                | CallPhase::Reported(_)
                | CallPhase::AwaitingResultHooks { .. }
                | CallPhase::AwaitingReview { .. }
                | CallPhase::Ended { .. }
                | CallPhase::Dropped => {}
            }
        }
    }

    /// Answers the calls that have no outcome yet. Calls of agents, reports and duplicates get theirs later.
    pub(super) fn cancel_calls(&mut self) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            match call.phase {
                CallPhase::Running { .. } => {
                    let (key, outcome) = (call.key(), model_messages::cancelled(call));
                    if !self.cancel_agent(index, &outcome, None) {
                        self.effects.perform(TurnAction::Abort(key));
                        self.end_call(index, outcome);
                    }
                }
                // The client may have run the call, if it was told to.
                CallPhase::AwaitingClient { .. } => {
                    let outcome = match call.started_at {
                        Some(_) => model_messages::cancelled(call),
                        None => model_messages::never_started(),
                    };
                    self.end_call(index, outcome);
                }
                // The call was going to run again because of a conflict. Its first report is
                // resolved instead.
                CallPhase::Ready | CallPhase::AwaitingPermit { .. }
                    if call.report_before_rerun.is_some() =>
                {
                    let Some(report) = call.report_before_rerun.clone() else { return };
                    self.release_tool_permit(index);
                    self.set_phase(index, CallPhase::Reported(report));
                }
                // The turn was resumed: this call may have run before.
                CallPhase::AwaitingPermit { .. } | CallPhase::Intended
                    if call.started_at.is_some() =>
                {
                    let outcome = model_messages::cancelled(call);
                    if !self.cancel_agent(index, &outcome, None) {
                        self.end_call(index, outcome);
                    }
                }
                // The call ran, but hooks have not decided about its result.
                CallPhase::AwaitingResultHooks { .. } => {
                    self.end_call(index, model_messages::unchecked())
                }
                // The call ran, but its result is not approved.
                CallPhase::AwaitingReview { .. } => {
                    self.end_call(index, model_messages::unreviewed())
                }
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::AwaitingReferences
                | CallPhase::AwaitingHooks
                | CallPhase::Ready
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended => self.end_call(index, model_messages::never_started()),
                // `advance` resolves reports and duplicates, each once every earlier call has its outcome.
                CallPhase::Reported(_) | CallPhase::Duplicate { .. } => {}
                CallPhase::Ended { .. } | CallPhase::Dropped => {}
            }
        }
    }

    /// Drops all calls after a refusal, except calls with effects that have started.
    fn drop_calls_after_refusal(&mut self) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get(index) else { return };
            // A call whose intent is not stored has not run, so it is dropped too.
            if call.is_kept() && !(call.has_effects() && call.started_at.is_some()) {
                self.discard(index);
            }
        }
    }

    /// Drops a call with its result, and aborts it if it runs.
    pub(super) fn discard(&mut self, index: usize) {
        self.release_tool_permit(index);
        self.withdraw_hooks(index);
        let Some(call) = self.calls.get(index) else { return };
        let (label, had_result) = (call.label(), call.has_result() || call.has_undecided_report());
        if call.is_running() {
            self.effects.perform(TurnAction::Abort(label.key));
        }
        self.stop_tool_clock(index);
        self.set_phase(index, CallPhase::Dropped);
        self.emit(Event::CallDiscarded { call: label, had_result });
    }

    /// Publishes that calls which the service runs itself are discarded.
    pub(super) fn discard_service_calls(&mut self, which: impl Fn(&PartialCall) -> bool) {
        for at in 0..self.attempt.response.service_calls().len() {
            if self.attempt.response.service_calls().get(at).is_some_and(&which) {
                self.publish_service_call(at, ServiceCallStatus::Discarded);
            }
        }
    }

    /// Parses the arguments of a call that was never sealed, as far as they were received.
    fn parse_unsealed_arguments(&mut self, index: usize, ending: ResponseEnding) {
        let (Some(partial_call), Some(call)) =
            (self.attempt.response.calls().get(index), self.calls.get_mut(index))
        else {
            return;
        };
        if !matches!(call.phase, CallPhase::Open) {
            return;
        }
        call.call.provider_id.clone_from(&partial_call.provider_id);
        let (rules, is_use_tool) = (&self.spec.rules, self.spec.rules.is_use_tool(&call.call.name));
        let anomaly =
            admission::parse_call_arguments(call, &partial_call.raw, partial_call.oversize, rules);
        let label = call.label();
        self.assign_call_id(index);
        if is_use_tool {
            self.emit(Event::CallOpened { call: label });
        }
        // Arguments that a cancellation cut off are not an anomaly.
        if let Some(anomaly) = anomaly.filter(|_| ending != ResponseEnding::Cancelled) {
            self.publish_anomaly(index, anomaly);
        }
    }

    /// Returns the message with the kept text and calls.
    fn kept_message(&self, ending: ResponseEnding) -> ResponseMessage {
        let mut text = self.attempt.response.text().to_owned();
        text.push_str(self.attempt.response.refusal());
        let kept = self.calls.iter().filter(|call| call.is_kept());
        let mut message = ResponseMessage {
            text,
            reasoning: self.attempt.response.reasoning().to_owned(),
            calls: kept.map(TurnCall::recorded_call).collect(),
            origin: Some(Arc::clone(&self.retry.model().origin)),
            parts: self.attempt.response.parts().to_vec(),
            hint_bytes: None,
        };
        message.drop_parts_without_calls();
        match ending {
            ResponseEnding::Complete => {}
            ResponseEnding::Length
            | ResponseEnding::Refused
            | ResponseEnding::BrokenKept
            | ResponseEnding::TooManyCalls
            | ResponseEnding::Cancelled => message.drop_unfinished_reasoning(),
        }
        message
    }

    /// Returns the response up to now, without calls whose arguments are incomplete.
    pub(super) fn response_so_far(&self) -> PartialResponse {
        let mut message = self.kept_message(ResponseEnding::BrokenKept);
        let is_sealed =
            |key| self.calls.iter().any(|c| c.key() == key && !matches!(c.phase, CallPhase::Open));
        message.calls.retain(|call| is_sealed(call.key));
        message.drop_parts_without_calls();
        PartialResponse {
            displayed_segments: self.attempt.display_order.segments(&message),
            message,
        }
    }
}
