//! The deltas of a response: text, and calls that open, are sealed and get their ids, or change after
//! their seal.

use std::sync::Arc;

use super::admission::{self, CallRetention};
use super::call::{CallPhase, QUOTE_CHARS, TurnCall};
use super::effect::TurnAction;
use super::{Turn, TurnStage, model_messages};
use callsheet_values::event::{ArgumentsAnomaly, Event, ServiceCall, ServiceCallStatus};
use callsheet_values::record::ResponseEnding;
use callsheet_values::types::{CallKey, ProviderError, ProviderErrorKind, excerpt};
use callsheet_wire::Delta;
use callsheet_wire::response::CallChange;

impl Turn {
    /// Handles one delta. Returns whether it changed a call or ended the attempt, so that calls may have to start or
    /// end.
    pub(super) fn handle_delta(&mut self, delta: Delta) -> bool {
        self.attempt.first_delta_at.get_or_insert(self.clock.now());
        let changes = self.attempt.response.push(&delta);
        let changed = !changes.is_empty();
        self.handle_changes(changes);
        self.attempt.delta_count += 1;
        match delta {
            Delta::Text(text) | Delta::Refusal(text) => {
                self.attempt.display_order.push(false, text.len());
                self.emit(Event::TextReceived { text });
            }
            Delta::Reasoning(text) => {
                self.attempt.display_order.push(true, text.len());
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

    /// Breaks the attempt off if the response exceeds a hard limit. Returns whether it does.
    fn close_if_too_large(&mut self) -> bool {
        let too_large = |error: &&ProviderError| error.kind == ProviderErrorKind::TooLarge;
        let Some(error) = self.attempt.response.error().filter(too_large).cloned() else {
            return false;
        };
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
                CallChange::Sealed(index) => {
                    if self.publishes_arguments {
                        self.publish_arguments(index);
                    }
                    self.handle_sealed(index);
                }
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

    /// Publishes the arguments of open calls that have arrived since the last time.
    pub(super) fn publish_open_arguments(&mut self) {
        for index in 0..self.calls.len() {
            self.publish_arguments(index);
        }
    }

    /// Publishes the arguments of an open call that have arrived since the last time. The name of the tool is known.
    fn publish_arguments(&mut self, index: usize) {
        let (Some(partial_call), Some(call)) =
            (self.attempt.response.calls().get(index), self.calls.get_mut(index))
        else {
            return;
        };
        // The tool that a call of `use_tool` names is known at its seal.
        if !matches!(call.phase, CallPhase::Open) || self.spec.rules.is_use_tool(&call.call.name) {
            return;
        }
        let offset = call.published_arguments;
        let Some(text) = partial_call.raw.get(offset..).filter(|text| !text.is_empty()) else {
            return;
        };
        let text = text.to_owned();
        call.published_arguments += text.len();
        let (call, offset) = (call.label(), offset as u64);
        self.emit(Event::ArgumentsReceived { call, offset, text });
    }

    /// Publishes the status of a call that the model's service runs itself.
    pub(super) fn publish_service_call(&mut self, index: usize, status: ServiceCallStatus) {
        let Some(partial_call) = self.attempt.response.service_calls().get(index) else { return };
        let call = ServiceCall {
            turn: self.spec.number,
            attempt: self.attempt.plan.attempt,
            position: u32::try_from(index).unwrap_or(u32::MAX),
            provider_id: partial_call.provider_id.clone(),
            name: partial_call.name.clone(),
            input_summary: excerpt(&partial_call.raw, QUOTE_CHARS),
        };
        self.emit(Event::ServiceCallChanged { call: Box::new(call), status });
    }

    fn handle_opened(&mut self, index: usize) {
        let Some(partial_call) = self.attempt.response.calls().get(index) else { return };
        let (name, is_surplus) = (partial_call.name.clone(), partial_call.is_surplus);
        let key = CallKey {
            turn: self.spec.number,
            attempt: self.attempt.plan.attempt,
            index: u32::try_from(index).unwrap_or(u32::MAX),
        };
        let tool = self.spec.tool(&name).cloned();
        let mut call = TurnCall::open(key, &name, tool);
        call.call.provider_id.clone_from(&partial_call.provider_id);
        let retention = match self.stage {
            // A response that has ended gets no more calls.
            TurnStage::ResponseEnded { .. } | TurnStage::Finished => CallRetention::Drop,
            TurnStage::AwaitingResponse => {
                let has_limit = self.spec.budget.calls_left.is_some();
                let children = if has_limit { self.children_calls() } else { 0 };
                let retention = admission::decide_retention(key.index, children, &self.spec);
                let is_dropped = is_surplus && retention == CallRetention::Keep;
                if is_dropped { CallRetention::Drop } else { retention }
            }
        };
        match retention {
            CallRetention::Keep | CallRetention::AnswerExcess => {
                call.is_excess = retention == CallRetention::AnswerExcess;
                // The tool that a call of `use_tool` names is known at its seal.
                if !self.spec.rules.is_use_tool(&name) {
                    self.emit(Event::CallOpened { call: call.label() });
                }
            }
            CallRetention::Drop
            | CallRetention::DropExcess
            | CallRetention::Fail
            | CallRetention::OverBudget => {
                call.phase = CallPhase::Dropped;
                self.attempt.dropped_calls.push(name);
            }
        }
        self.calls.push(call);
        match retention {
            CallRetention::Keep | CallRetention::Drop => {}
            CallRetention::AnswerExcess => self.record_excess_call("answered"),
            CallRetention::DropExcess => self.record_excess_call("truncated"),
            CallRetention::Fail => {
                self.record_excess_call("failed");
                self.effects.perform(TurnAction::Disconnect);
                self.end_response(ResponseEnding::TooManyCalls, None);
            }
            CallRetention::OverBudget => self.end_over_calls(),
        }
    }

    fn handle_sealed(&mut self, index: usize) {
        let (Some(partial_call), Some(call)) =
            (self.attempt.response.calls().get(index), self.calls.get_mut(index))
        else {
            return;
        };
        if !matches!(call.phase, CallPhase::Open | CallPhase::Dropped) {
            // Its arguments changed after the seal, and it keeps what was decided then.
            return;
        }
        call.sealed_at = Some(self.clock.now());
        let (rules, is_use_tool) = (&self.spec.rules, self.spec.rules.is_use_tool(&call.call.name));
        let anomaly =
            admission::parse_call_arguments(call, &partial_call.raw, partial_call.oversize, rules);
        let anomaly = anomaly.or(partial_call.is_repaired.then_some(ArgumentsAnomaly::Repaired));
        if matches!(call.phase, CallPhase::Dropped) {
            // A dropped call is parsed only because events count it as detected.
            return;
        }
        call.call.provider_id.clone_from(&partial_call.provider_id);
        call.phase = CallPhase::Sealed;
        let label = call.label();
        let arguments = Arc::clone(&call.call.arguments);
        let detected = call.arguments_error.is_none().then(|| label.clone());
        self.assign_call_id(index);
        if is_use_tool {
            self.emit(Event::CallOpened { call: label });
        }
        if let Some(anomaly) = anomaly {
            self.publish_anomaly(index, anomaly);
        }
        if let Some(call) = detected {
            self.emit(Event::CallDetected {
                call,
                arguments,
                latency: self.clock.now().saturating_sub(self.attempt.requested_at),
                stream_position: self.attempt.delta_count,
                streaming: self.attempt.plan.streamed,
            });
        }
        self.resolve_references(index);
        self.ask_hooks_before_start(index);
    }

    /// Gives a call its id. Covers missing, duplicate and reused tool call ids.
    ///
    /// A call has the provider's id in the history and in later requests. The host generates an id,
    /// `call_{number of turns with calls}_{index}`, if the provider sent none, or the id of another call
    /// of the same response (a duplicate id). A generated id differs from all ids of that form in the
    /// history. Inside the host a call is identified by its [`CallKey`], never by this id.
    ///
    /// Related rules:
    ///
    /// - `response::call_assembler` decides whether a second piece with an id that was seen before
    ///   continues its call or begins another one.
    /// - `context::history` knows the ids that a generated id must not repeat.
    /// - An id that the provider reuses in a later response is kept. `wire::anthropic::messages` makes it
    ///   unique in a request, because that service refuses repeated ids. `wire::call_ids` rewrites ids
    ///   that another service made, if the service of the request does not accept their form.
    /// - Calls with the same name and arguments: [`identical_calls`](super::identical_calls).
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

    /// Handles bytes for a call that is already sealed. The call is open again, if nothing was done with its
    /// arguments. Otherwise it is malformed.
    fn handle_change_after_seal(&mut self, index: usize) {
        if self.may_reopen(index) {
            self.reopen(index);
        } else {
            self.end_changed_call(index);
        }
    }

    /// Returns true if further arguments may open a sealed call again. The call must have no start, outcome, hook
    /// decision or approval, and no later call may have a ticket.
    fn may_reopen(&self, index: usize) -> bool {
        let Some(call) = self.calls.get(index) else { return false };
        let is_untouched = call.hooks.before.is_none()
            && call.model_arguments.is_none()
            && !call.call.indirect
            && !self.spec.rules.is_use_tool(&call.call.name);
        let has_ticket = |call: &TurnCall| {
            call.has_started() || call.holds_permit() || call.pending_wait_phase().is_some()
        };
        let is_waiting = matches!(
            call.phase,
            CallPhase::Sealed | CallPhase::Ready | CallPhase::Duplicate { .. }
        );
        is_untouched && is_waiting && !self.calls.iter().skip(index).any(has_ticket)
    }

    fn reopen(&mut self, index: usize) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let mut open = TurnCall::open(call.key(), &call.call.name, call.tool.clone());
        open.call.provider_id.clone_from(&call.call.provider_id);
        open.is_excess = call.is_excess;
        let key = open.key();
        *call = open;
        self.readmit_duplicates_of(key);
    }

    /// Makes a call malformed, because its arguments changed after the seal. A call with effects
    /// that has started keeps its outcome, and a call that was answered without running keeps its
    /// answer. Both get a note.
    pub(super) fn end_changed_call(&mut self, index: usize) {
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.notes.arguments_changed || !call.is_kept() {
            return;
        }
        call.notes.arguments_changed = true;
        let key = call.key();
        let effects_started = call.has_effects() && call.has_started();
        let has_outcome = call.outcome().is_some();
        let runs = call.is_running() || call.waits_for_client();
        let has_begun = runs || call.has_undecided_report() || call.has_result();
        self.publish_anomaly(index, ArgumentsAnomaly::ChangedAfterSeal);
        if effects_started || (has_outcome && !has_begun) {
            self.record_amended_end(index);
            return;
        }
        if has_begun {
            self.discard(index);
        }
        if let Some(call) = self.calls.get_mut(index) {
            call.arguments_error = Some(model_messages::malformed());
            // The call has its own outcome now, not a copy of another one.
            call.notes.duplicate_of = None;
            call.notes.reused = false;
        }
        self.end_call(index, model_messages::malformed());
        self.readmit_duplicates_of(key);
    }

    /// Publishes that the arguments of a call are not as they should be.
    pub(super) fn publish_anomaly(&mut self, index: usize, anomaly: ArgumentsAnomaly) {
        let (Some(partial_call), Some(call)) =
            (self.attempt.response.calls().get(index), self.calls.get(index))
        else {
            return;
        };
        let event = Event::ArgumentsAnomalyFound {
            call: call.label(),
            id: call.call.id.clone(),
            anomaly,
            raw: excerpt(&partial_call.raw, QUOTE_CHARS),
        };
        let too_large = anomaly == ArgumentsAnomaly::Invalid && partial_call.oversize;
        self.emit(event);
        if too_large {
            // The size is not known: bytes beyond the limit are not counted.
            let maximum = self.spec.rules.limits.max_arguments_bytes as u64;
            let value = maximum.saturating_add(1);
            self.record_limit("max_arguments_bytes", value, maximum, "answered");
        }
    }
}
