//! The response as it comes: deltas to calls that open, are sealed, or turn out malformed.

use std::time::Duration;

use super::admission::{self, CallRetention};
use super::call::{CallPhase, QUOTE_CHARS, TurnCall};
use super::effect::TurnAction;
use super::{Turn, TurnStage, model_messages};
use crate::event::{ArgumentsAnomaly, Event, ServiceCall, ServiceCallStatus};
use crate::record::{Record, ResponseDisposition};
use crate::response::CallChange;
use crate::types::{CallKey, ProviderError, ProviderErrorKind, excerpt};
use crate::wire::Delta;

impl Turn {
    /// Takes in one delta. Says whether anything but text came of it.
    pub(super) fn handle_delta(&mut self, delta: Delta) -> bool {
        self.first_delta_at.get_or_insert(self.clock.now());
        let changes = self.response.push(&delta);
        let changed = !changes.is_empty();
        self.handle_changes(changes);
        self.delta_count += 1;
        match delta {
            Delta::Text(text) | Delta::Refusal(text) => {
                self.display_order.push(false, text.len());
                self.emit(Event::TextReceived { text });
            }
            Delta::Reasoning(text) => {
                self.display_order.push(true, text.len());
                self.emit(Event::ThinkingReceived { text });
            }
            Delta::Call(_)
            | Delta::Seal { .. }
            | Delta::Metadata(_)
            | Delta::Finish(_)
            | Delta::Usage { .. }
            | Delta::Error(_)
            | Delta::Problem(_)
            | Delta::Done => {}
        }
        self.close_if_too_large() || changed
    }

    /// Nothing that still comes of a response above a hard cap could count.
    fn close_if_too_large(&mut self) -> bool {
        let too_large = |error: &&ProviderError| error.kind == ProviderErrorKind::TooLarge;
        let Some(error) = self.response.error().filter(too_large).cloned() else { return false };
        if self.stage == TurnStage::AwaitingResponse {
            self.effects.perform(TurnAction::Disconnect);
            self.handle_broken(error);
        }
        true
    }

    pub(super) fn handle_changes(&mut self, changes: impl IntoIterator<Item = CallChange>) {
        for change in changes {
            match change {
                CallChange::Opened(index) => self.handle_opened(index),
                CallChange::Sealed(index) => self.handle_sealed(index),
                CallChange::ChangedAfterSeal(index) => self.handle_change_after_seal(index),
                CallChange::ServiceOpened(at) => {
                    self.publish_service_call(at, ServiceCallStatus::Running);
                }
                CallChange::ServiceSealed(at) => {
                    self.publish_service_call(at, ServiceCallStatus::Finished);
                }
            }
        }
    }

    /// Tells how far a call is that the service runs itself; that is all that is done with it.
    pub(super) fn publish_service_call(&mut self, at: usize, status: ServiceCallStatus) {
        let Some(partial_call) = self.response.service_calls().get(at) else { return };
        let call = ServiceCall {
            turn: self.spec.number,
            attempt: self.plan.attempt,
            position: u32::try_from(at).unwrap_or(u32::MAX),
            provider_id: partial_call.provider_id.clone(),
            name: partial_call.name.clone(),
            input_summary: excerpt(&partial_call.raw, QUOTE_CHARS),
        };
        self.emit(Event::ServiceCallChanged { call: Box::new(call), status });
    }

    fn handle_opened(&mut self, index: usize) {
        let Some(partial_call) = self.response.calls().get(index) else { return };
        let name = partial_call.name.clone();
        let key = CallKey {
            turn: self.spec.number,
            attempt: self.plan.attempt,
            index: u32::try_from(index).unwrap_or(u32::MAX),
        };
        let tool = self.spec.rules.tools.get(&*name).cloned();
        let mut call = TurnCall::open(key, &name, tool);
        call.call.provider_id.clone_from(&partial_call.provider_id);
        let opening = match self.stage {
            // Nothing more is kept of a response whose ending is known.
            TurnStage::ResponseEnded { .. } | TurnStage::Finished => CallRetention::Drop,
            TurnStage::AwaitingResponse => admission::decide_retention(key.index, &self.spec),
        };
        match opening {
            CallRetention::Keep => self.emit(Event::CallOpened { call: call.label() }),
            CallRetention::KeepExcess => {
                call.excess = true;
                self.emit(Event::CallOpened { call: call.label() });
                self.record_excess_call("answered");
            }
            CallRetention::Drop => {
                call.phase = CallPhase::Dropped;
                self.dropped.push(name);
            }
            CallRetention::DropExcess => {
                call.phase = CallPhase::Dropped;
                self.dropped.push(name);
                self.record_excess_call("truncated");
            }
            CallRetention::Fail => {
                call.phase = CallPhase::Dropped;
                self.dropped.push(name);
                self.record_excess_call("failed");
                self.effects.perform(TurnAction::Disconnect);
                self.calls.push(call);
                self.end_response(ResponseDisposition::Excess, None);
                return;
            }
            CallRetention::OverBudget => {
                call.phase = CallPhase::Dropped;
                self.dropped.push(name);
                self.calls.push(call);
                self.end_over_calls();
                return;
            }
        }
        self.calls.push(call);
    }

    fn handle_sealed(&mut self, index: usize) {
        let (Some(partial_call), Some(call)) =
            (self.response.calls().get(index), self.calls.get_mut(index))
        else {
            return;
        };
        call.sealed_at = Some(self.clock.now());
        let odd = admission::parse_call_arguments(call, &partial_call.raw, partial_call.oversize);
        if call.phase == CallPhase::Dropped {
            // Not kept, but counted as one that was decoded.
            return;
        }
        call.call.provider_id.clone_from(&partial_call.provider_id);
        call.phase = CallPhase::Sealed;
        let detected = call.arguments_error.is_none().then(|| call.label());
        self.assign_call_id(index);
        if let Some(oddity) = odd {
            self.publish_anomaly(index, oddity);
        }
        if let Some(call) = detected {
            self.emit(Event::CallDetected {
                call,
                latency: self.clock.now().saturating_sub(self.asked_at),
                stream_position: self.delta_count,
                streaming: self.plan.streamed,
            });
        }
    }

    /// Bytes came for a call that is already sealed.
    fn handle_change_after_seal(&mut self, index: usize) {
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.notes.arguments_changed || !call.is_kept() {
            return;
        }
        call.notes.arguments_changed = true;
        let key = call.key();
        let stands = call.has_effects() && call.has_started();
        let was_answered = call.outcome().is_some();
        let counts = call.is_running() || call.has_undecided_report() || call.has_result();
        self.publish_anomaly(index, ArgumentsAnomaly::ChangedAfterSeal);
        if stands || (was_answered && !counts) {
            // It keeps what came of it, or what was told of why it did not run.
            self.record_amended_end(index);
            return;
        }
        if counts {
            self.discard(index);
        }
        if let Some(call) = self.calls.get_mut(index) {
            call.arguments_error = Some(model_messages::malformed());
            // A malformed call has an answer of its own.
            call.notes.duplicate_of = None;
            call.notes.reused = false;
        }
        self.end_call(index, model_messages::malformed());
        self.readmit_duplicates_of(key);
    }

    /// The outcome stands, but the journal has to know what else there is to know of it.
    fn record_amended_end(&mut self, index: usize) {
        let Some(call) = self.calls.get(index) else { return };
        if let Some(result) = call.result(self.spec.began) {
            let record = super::step::call_ended_record(&result, call.early, true);
            self.record(record);
        }
    }

    pub(super) fn publish_anomaly(&mut self, index: usize, oddity: ArgumentsAnomaly) {
        let (Some(partial_call), Some(call)) =
            (self.response.calls().get(index), self.calls.get(index))
        else {
            return;
        };
        let event = Event::ArgumentsAnomalyFound {
            call: call.label(),
            id: call.call.id.clone(),
            oddity,
            raw: excerpt(&partial_call.raw, QUOTE_CHARS),
        };
        let too_large = oddity == ArgumentsAnomaly::Invalid && partial_call.oversize;
        self.emit(event);
        if too_large {
            // Bytes beyond the limit are not kept and not counted.
            let maximum = self.spec.rules.limits.max_arguments_bytes as u64;
            let value = maximum.saturating_add(1);
            self.record_limit("max_arguments_bytes", value, maximum, "answered");
        }
    }

    /// Duplicates that waited for a call which turned out malformed are decided anew.
    fn readmit_duplicates_of(&mut self, key: CallKey) {
        for call in &mut self.calls {
            if call.phase == (CallPhase::Duplicate { of: key }) {
                call.phase = CallPhase::Sealed;
            }
        }
    }

    fn record_excess_call(&mut self, action: &str) {
        if let Some(maximum) = self.spec.rules.limits.max_tool_calls_per_turn {
            let maximum = u64::from(maximum);
            self.record_call_limit(maximum.saturating_add(1), maximum, action);
        }
    }

    /// Tells once per attempt that it holds too many calls.
    pub(super) fn record_call_limit(&mut self, value: u64, maximum: u64, action: &str) {
        if std::mem::replace(&mut self.call_limit_recorded, true) {
            return;
        }
        self.record_limit("max_tool_calls_per_turn", value, maximum, action);
    }

    /// Tells that a time is over, in milliseconds.
    pub(super) fn record_time_limit(&mut self, limit: &str, time: Duration, action: &str) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.record_limit(limit, millis, millis, action);
    }

    /// Tells that a limit was reached.
    pub(super) fn record_limit(&mut self, limit: &str, value: u64, maximum: u64, action: &str) {
        let (limit, action) = (limit.to_owned(), action.to_owned());
        let note = None;
        let (named, done) = (limit.clone(), action.clone());
        self.record(Record::LimitReached { limit: named, value, maximum, action: done, note });
        self.emit(Event::LimitReached { limit, value, maximum, action });
    }
}
