//! Budgets: what a run may use up, and how a turn ends that uses up more.
//!
//! A run meters its turns, calls and tokens; a turn is told what is left as it begins, and ends
//! as by a stop as soon as it is known to take more.

use super::call::TurnCall;
use super::effect::{CancelReason, TurnAction, TurnEnd};
use super::run::LimitHit;
use super::{Turn, TurnStage};
use crate::record::Ending;
use crate::response::ExchangeEnd;
use crate::response::classify_ending;

/// The limit of a run's tokens, by its name in the configuration.
pub(super) const MAX_TOKENS: &str = "max_tokens_per_run";
/// The limit of a run's calls, by its name in the configuration.
pub(super) const MAX_CALLS: &str = "max_tool_calls_per_run";

/// What a run has left as a turn of it begins. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Tokens, read and written ones together.
    pub tokens_left: Option<u64>,
    /// Calls that may still be kept.
    pub calls_left: Option<u32>,
}

/// How much of one thing a run has used, and how much it may.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Meter {
    limit: &'static str,
    /// What is counted, in the plural.
    unit: &'static str,
    maximum: Option<u64>,
    used: u64,
    half_told: bool,
}

impl Meter {
    pub(super) fn new(limit: &'static str, unit: &'static str, maximum: Option<u64>) -> Self {
        Self { limit, unit, maximum, used: 0, half_told: false }
    }

    pub(super) fn add(&mut self, used: u64) {
        self.used = self.used.saturating_add(used);
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn left(&self) -> Option<u64> {
        self.maximum.map(|maximum| maximum.saturating_sub(self.used))
    }

    /// The limit, if nothing is left; `action` is what is done about it.
    pub(super) fn used_up(&self, action: &'static str) -> Option<LimitHit> {
        let maximum = self.maximum.filter(|maximum| self.used >= *maximum)?;
        Some(LimitHit { limit: self.limit, value: self.used, maximum, action, note: None })
    }

    /// What the model is told when half or more is used up: once.
    pub(super) fn half_used(&mut self) -> Option<LimitHit> {
        let maximum = self.maximum.filter(|maximum| self.used >= maximum.div_ceil(2))?;
        if std::mem::replace(&mut self.half_told, true) {
            return None;
        }
        let left = maximum.saturating_sub(self.used);
        let are = if left == 1 { "is" } else { "are" };
        let note = format!("[callsheet: {left} of {maximum} {} {are} left]", self.unit);
        let action = if left == 0 { "told" } else { "half_used" };
        let (limit, value) = (self.limit, self.used);
        Some(LimitHit { limit, value, maximum, action, note: Some(note) })
    }
}

impl Turn {
    /// Ends the turn if its response has used up more tokens than the run had left. A complete
    /// answer is let end: it is paid for, and nothing comes after it. Says whether it did.
    pub(super) fn end_if_over_tokens(&mut self) -> bool {
        let Some(left) = self.spec.budget.tokens_left else { return false };
        let used = self.tokens_used();
        if self.stage != TurnStage::AwaitingResponse || used <= left {
            return false;
        }
        let is_cut = match classify_ending(&self.response, ExchangeEnd::Closed) {
            Ok(Ending::Refused) => false,
            Ok(
                Ending::Well
                | Ending::Length
                | Ending::BrokeKept
                | Ending::Excess
                | Ending::Cancelled,
            ) => self.calls.iter().any(TurnCall::is_kept),
            Err(_) => true,
        };
        if is_cut {
            self.tell_tokens(used, left);
            self.cut_off_over_budget();
        }
        is_cut
    }

    /// Ends the turn in the middle of its response: a call has opened that is beyond the run's.
    pub(super) fn end_over_calls(&mut self) {
        let Some(maximum) = self.spec.rules.limits.max_tool_calls_per_run.map(u64::from) else {
            return;
        };
        self.tell_limit(MAX_CALLS, maximum.saturating_add(1), maximum, "ended");
        self.cut_off_over_budget();
    }

    /// Whether no further request may be made.
    pub(super) fn is_out_of_tokens(&self) -> bool {
        self.spec.budget.tokens_left.is_some_and(|left| self.tokens_used() >= left)
    }

    /// Ends the turn between two attempts: there is nothing left to pay another with. `is_told`:
    /// the user knows already.
    pub(super) fn end_out_of_tokens(&mut self, is_told: bool) {
        if let Some(left) = self.spec.budget.tokens_left.filter(|_| !is_told) {
            self.tell_tokens(self.tokens_used(), left);
        }
        self.stage = TurnStage::Finished;
        self.commit(TurnEnd::Cancelled(CancelReason::Budget), None);
    }

    fn cut_off_over_budget(&mut self) {
        self.effects.perform(TurnAction::Disconnect);
        self.conclude(Ending::Cancelled, Some(CancelReason::Budget));
    }

    /// What this turn has used so far: its failed attempts, and the response that comes.
    fn tokens_used(&self) -> u64 {
        self.usage.total().saturating_add(self.response.usage().total())
    }

    /// The user is told of the whole run.
    fn tell_tokens(&mut self, used: u64, left: u64) {
        let maximum = self.spec.rules.limits.max_tokens_per_run.unwrap_or(left);
        let before = maximum.saturating_sub(left);
        self.tell_limit(MAX_TOKENS, before.saturating_add(used), maximum, "ended");
    }
}
