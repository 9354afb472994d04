//! Hooks that are asked about the turn itself: before its first request to the model, and after its last
//! result.
//!
//! Before a request: the attempt has begun, and its request is held back until the hooks have decided. They can
//! change the messages and the parameters. The decision holds for all attempts of the turn, unless the context
//! is made smaller in between.
//!
//! After a turn: every outcome is released, and the turn is committed when the hooks have decided. They are
//! asked about a final answer too, but not about a turn that failed, was cancelled or refused, or had too many calls.
//!
//! A refusal ends the run as refused.

use std::sync::Arc;

use super::effect::{AttemptPlan, EndedTurn, HookRequest, TurnAction};
use super::{Turn, TurnStage};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::{HookDecision, HookPoint, HookVerdict, RunError};

/// The code of the error of a run that hooks end.
const REFUSED: &str = "hook";

/// The hooks about the turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct TurnHooks {
    pub(super) before_request: HookStage,
    pub(super) after_turn: HookStage,
    /// The attempt whose request waits for the hooks.
    held: Option<AttemptPlan>,
}

/// The state of a question to hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum HookStage {
    #[default]
    NotAsked,
    Asked,
    Decided(Arc<HookDecision>),
}

impl TurnHooks {
    /// Returns whether the request waits for the hooks, so that nothing was sent.
    pub(super) fn holds_request(&self) -> bool {
        self.held.is_some()
    }
}

impl HookStage {
    /// Returns the stage after a recorded decision.
    pub(super) fn recorded(decision: Option<&Arc<HookDecision>>) -> Self {
        decision.cloned().map_or(Self::NotAsked, Self::Decided)
    }

    fn is_asked(&self) -> bool {
        *self == Self::Asked
    }

    /// Returns the decision, if it refuses.
    fn refusal(&self) -> Option<&HookDecision> {
        let Self::Decided(decision) = self else { return None };
        (decision.verdict == HookVerdict::Refuse).then_some(decision)
    }
}

impl Turn {
    /// Applies the decision of the hooks that were asked about the turn. Returns false if none is expected.
    pub(super) fn decide_turn_hooks(&mut self, on: HookPoint, decision: HookDecision) -> bool {
        let stage = match on {
            HookPoint::BeforeRequest => &mut self.hooks.before_request,
            HookPoint::AfterTurn => &mut self.hooks.after_turn,
            HookPoint::BeforeCall | HookPoint::AfterCall | HookPoint::RunEnd => return false,
        };
        if !stage.is_asked() {
            return false;
        }
        let decision = Arc::new(decision);
        *stage = HookStage::Decided(Arc::clone(&decision));
        self.clock.wait_ended();
        self.record(Record::TurnHooksDecided { turn: self.spec.number, on, decision });
        if let Some(plan) = self.hooks.held.take() {
            self.request_unless_refused(plan);
        }
        true
    }

    /// Requests a response at once, or, if hooks must decide first, holds the request back and asks them.
    pub(super) fn request_or_ask(&mut self, plan: AttemptPlan) {
        let has_hook = self.spec.rules.has_turn_hook(HookPoint::BeforeRequest);
        if !has_hook || matches!(self.hooks.before_request, HookStage::Decided(_)) {
            self.request_unless_refused(plan);
            return;
        }
        self.hooks.held = Some(plan);
        self.hooks.before_request = HookStage::Asked;
        self.ask_turn_hooks(HookPoint::BeforeRequest);
    }

    /// Requests a response as hooks have decided: unchanged, changed, or not at all.
    fn request_unless_refused(&mut self, plan: AttemptPlan) {
        if let HookStage::Decided(decision) = &self.hooks.before_request {
            if decision.verdict == HookVerdict::Refuse {
                self.end_response(ResponseEnding::Refused, None);
                return;
            }
            if decision.messages.is_some() || decision.parameters.is_some() {
                let change = TurnAction::ChangeRequest(Arc::clone(decision));
                self.effects.perform(change);
            }
            // The time in which the hooks decided is not part of the attempt's wait.
            self.attempt.requested_at = self.now() + plan.wait;
        }
        self.clock.request_started();
        self.effects.perform(TurnAction::Request(plan));
    }

    /// Asks the hooks about the finished turn if they must be asked, and withdraws a question that is not needed any
    /// more. Returns true if the turn can be committed.
    pub(super) fn advance_turn_hooks(&mut self) -> bool {
        let TurnStage::ResponseEnded { ending, cancelled, .. } = &self.stage else { return true };
        let goes_on = cancelled.is_none()
            && match ending {
                ResponseEnding::Complete | ResponseEnding::Length | ResponseEnding::BrokenKept => {
                    true
                }
                ResponseEnding::Refused
                | ResponseEnding::TooManyCalls
                | ResponseEnding::Cancelled => false,
            };
        if !goes_on || !self.spec.rules.has_turn_hook(HookPoint::AfterTurn) {
            self.withdraw_turn_hooks();
            return true;
        }
        match self.hooks.after_turn {
            HookStage::NotAsked => {
                self.hooks.after_turn = HookStage::Asked;
                self.ask_turn_hooks(HookPoint::AfterTurn);
                false
            }
            HookStage::Asked => false,
            HookStage::Decided(_) => true,
        }
    }

    /// Returns the error of the run, if hooks end it.
    pub(super) fn hook_refusal(&self) -> Option<RunError> {
        let before = self.hooks.before_request.refusal().map(|d| (HookPoint::BeforeRequest, d));
        let after = || self.hooks.after_turn.refusal().map(|d| (HookPoint::AfterTurn, d));
        let (on, decision) = before.or_else(after)?;
        let hook = decision.hook.as_deref().unwrap_or_default();
        let message = match decision.message.as_deref() {
            Some(message) => format!("{on} hook {hook}: {message}"),
            None => format!("the {on} hook {hook} refuses to go on"),
        };
        Some(RunError { code: REFUSED.to_owned(), message, transient: false })
    }

    /// Withdraws the question to the hooks about the turn, if one is open.
    pub(super) fn withdraw_turn_hooks(&mut self) {
        self.hooks.held = None;
        for stage in [&mut self.hooks.before_request, &mut self.hooks.after_turn] {
            if stage.is_asked() {
                *stage = HookStage::NotAsked;
                self.clock.wait_ended();
                self.effects.perform(TurnAction::WithdrawHooks(None));
            }
        }
    }

    fn ask_turn_hooks(&mut self, on: HookPoint) {
        self.clock.wait_started();
        let ended = match &self.stage {
            TurnStage::ResponseEnded { message, .. } => {
                let results =
                    self.calls.iter().filter_map(|call| call.result(self.spec.run_elapsed));
                Some(EndedTurn { message: message.clone(), results: results.collect() })
            }
            TurnStage::AwaitingResponse | TurnStage::Finished => None,
        };
        let request = HookRequest { on, call: None, outcome: None, ended };
        self.effects.perform(TurnAction::AskHooks(Box::new(request)));
    }
}
