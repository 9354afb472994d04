//! Hooks: programs, services and Rust values that are asked about calls.
//!
//! Before: a sealed call of a known tool with valid arguments waits for the decision of its hooks
//! ([`CallPhase::AwaitingHooks`]) before it is admitted, and holds back the admission of later calls. Only the
//! admission shows whether it is a duplicate, so hooks are asked about duplicates too. They see the final arguments,
//! with the values of references. The hooks of several calls run concurrently.
//!
//! After: the tool has answered, and its result is not final before the hooks have decided
//! ([`CallPhase::AwaitingResultHooks`]). The answer of the tool is recorded before they are asked. A person
//! who reviews the result sees what the hooks have left of it. If the turn is cancelled before they have decided, the
//! result is withheld.
//!
//! The owner of the turn asks the hooks, and [`HookChain`](super::HookChain) combines their answers. Every
//! decision is recorded, so that a resumed turn and a replay do not ask again. Hooks whose decision is not
//! recorded are asked again. A verdict only restricts: `allow` skips no approval.

use std::sync::Arc;
use std::time::Duration;

use super::call::{CallPhase, ReportedOutcome, TurnCall};
use super::effect::{HookRequest, TurnAction};
use super::{Turn, model_messages};
use callsheet_values::event::WaitingFor;
use callsheet_values::record::Record;
use callsheet_values::types::{
    CallKey, FullResult, HookDecision, HookPoint, HookVerdict, ReadSet, ToolOutcome, WriteSet,
};

impl TurnCall {
    /// Returns whether a hook wants a person to approve the start of the call.
    pub(super) fn hook_requires_start_approval(&self) -> bool {
        is_ask(self.hooks.before.as_deref())
    }

    /// Returns whether a hook wants a person to approve the result of the call.
    pub(super) fn hook_requires_result_approval(&self) -> bool {
        is_ask(self.hooks.after.as_deref())
    }

    /// Returns whether the call waits for the decision of hooks.
    pub(super) fn waits_for_hooks(&self) -> bool {
        matches!(self.phase, CallPhase::AwaitingHooks | CallPhase::AwaitingResultHooks { .. })
    }
}

fn is_ask(decision: Option<&HookDecision>) -> bool {
    decision.is_some_and(|decision| decision.verdict == HookVerdict::Ask)
}

impl Turn {
    /// Handles the decision of the hooks about a call, or without a key about the turn. Ignores a decision that is
    /// not expected.
    pub fn handle_hook_decision(
        &mut self,
        now: Duration,
        key: Option<CallKey>,
        on: HookPoint,
        decision: HookDecision,
    ) {
        self.clock.advance(now);
        let Some(key) = key else {
            if self.decide_turn_hooks(on, decision) {
                self.advance();
            }
            return;
        };
        let Some(index) = self.position(key) else { return };
        let Some(call) = self.calls.get_mut(index) else { return };
        let decision = Arc::new(decision);
        let record = Record::HooksDecided { key, on, decision: Arc::clone(&decision) };
        if on == HookPoint::BeforeCall && matches!(call.phase, CallPhase::AwaitingHooks) {
            call.phase = CallPhase::Sealed;
            call.hooks.before = Some(decision);
            self.clock.wait_ended();
            self.record(record);
            self.apply_start_decision(index);
        } else if on == HookPoint::AfterCall
            && let CallPhase::AwaitingResultHooks { outcome, writes } = &call.phase
        {
            // Leaves `AwaitingResultHooks`, so that the end of the call does not withdraw the question.
            let (outcome, writes) = (outcome.clone(), writes.clone());
            let reads = ReadSet::default();
            let (reported, written) = (outcome.clone(), writes.clone());
            call.phase =
                CallPhase::Reported(ReportedOutcome { outcome: reported, reads, writes: written });
            call.hooks.after = Some(decision);
            self.clock.wait_ended();
            self.record(record);
            self.apply_result_decision(index, outcome, writes);
        } else {
            return;
        }
        self.advance();
    }

    /// Asks the hooks about a sealed call of a known tool with valid arguments, or applies their recorded decision.
    pub(super) fn ask_hooks_before_start(&mut self, index: usize) {
        let Some(call) = self.calls.get(index) else { return };
        if !matches!(call.phase, CallPhase::Sealed) {
            return;
        }
        if call.hooks.before.is_some() {
            self.apply_start_decision(index);
            return;
        }
        let would_run = call.tool.is_some() && call.arguments_error.is_none() && !call.is_excess;
        if would_run && self.spec.rules.has_hook(HookPoint::BeforeCall, &call.call.name) {
            self.set_phase(index, CallPhase::AwaitingHooks);
            self.ask_hooks(index, HookPoint::BeforeCall, None);
        }
    }

    fn apply_start_decision(&mut self, index: usize) {
        let Some(call) = self.calls.get_mut(index) else { return };
        let Some(decision) = call.hooks.before.clone() else { return };
        if let Some(arguments) = &decision.arguments
            && call.call.arguments != *arguments
        {
            call.set_final_arguments(Arc::clone(arguments));
        }
        match decision.verdict {
            HookVerdict::Allow | HookVerdict::Ask => {}
            HookVerdict::Refuse => {
                let answer = model_messages::refused_by_hook(HookPoint::BeforeCall, &decision);
                self.end_call(index, answer);
            }
        }
    }

    /// Asks the hooks about the result of a call, or applies their recorded decision. Without hooks the call ends,
    /// or its result is reviewed. In a cancelled turn no hooks are asked, and the result is withheld.
    pub(super) fn ask_hooks_or_review(
        &mut self,
        index: usize,
        outcome: ToolOutcome,
        writes: WriteSet,
    ) {
        let Some(call) = self.calls.get(index) else { return };
        if call.hooks.after.is_some() {
            self.apply_result_decision(index, outcome, writes);
        } else if !self.spec.rules.has_hook(HookPoint::AfterCall, &call.call.name) {
            self.review_or_end(index, outcome, writes);
        } else if self.is_cancelled() {
            self.end_call(index, model_messages::unchecked());
        } else {
            if !call.has_undecided_report() {
                self.record_report(index, &outcome, &ReadSet::default(), &writes);
            }
            let reported = outcome.clone();
            self.set_phase(index, CallPhase::AwaitingResultHooks { outcome, writes });
            self.ask_hooks(index, HookPoint::AfterCall, Some(reported));
        }
    }

    fn apply_result_decision(&mut self, index: usize, outcome: ToolOutcome, writes: WriteSet) {
        let Some(call) = self.calls.get(index) else { return };
        let Some(decision) = call.hooks.after.clone() else { return };
        match decision.verdict {
            HookVerdict::Allow | HookVerdict::Ask => {
                let outcome = match &decision.result {
                    Some(result) => with_result(outcome, result),
                    None => outcome,
                };
                self.review_or_end(index, outcome, writes);
            }
            HookVerdict::Refuse => {
                let answer = model_messages::refused_by_hook(HookPoint::AfterCall, &decision);
                self.end_call(index, answer);
            }
        }
    }

    fn ask_hooks(&mut self, index: usize, on: HookPoint, outcome: Option<ToolOutcome>) {
        let Some(call) = self.calls.get(index) else { return };
        let request = HookRequest { on, call: Some(call.call.clone()), outcome, ended: None };
        self.clock.wait_started();
        self.publish_waiting(index, WaitingFor::Hook);
        self.effects.perform(TurnAction::AskHooks(Box::new(request)));
    }

    /// Withdraws the question to the hooks of a call, if it waits for them.
    pub(super) fn withdraw_hooks(&mut self, index: usize) {
        let Some(call) = self.calls.get(index).filter(|call| call.waits_for_hooks()) else {
            return;
        };
        self.effects.perform(TurnAction::WithdrawHooks(Some(call.key())));
        self.clock.wait_ended();
    }
}

/// Returns the outcome with another result: a text, or a value for programs.
fn with_result(outcome: ToolOutcome, result: &serde_json::Value) -> ToolOutcome {
    if let Some(text) = result.as_str() {
        return ToolOutcome { content: text.into(), full: None, ..outcome };
    }
    let text = result.to_string();
    let structured = Some(result.clone());
    let full = FullResult { content: vec![text.as_str().into()], structured };
    ToolOutcome { content: text.into(), full: Some(Arc::new(full)), ..outcome }
}
