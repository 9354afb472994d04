//! Limits of a run: the token budget (`max_tokens_per_run`), `max_tool_calls_per_run` and
//! `run_timeout`.
//!
//! The run counts calls and tokens over its turns (`session::run_machine`, `session::limit_meter`). Each turn
//! receives the rest as its [`Budget`](super::Budget).
//!
//! - Token budget: the host disconnects from a response that exceeds it, and the turn ends
//!   ([`end_if_over_tokens`](Turn::end_if_over_tokens)). A complete answer without calls is kept. If no
//!   tokens are left, the turn also ends before a retry ([`attempt`](super::attempt)) and before a
//!   resumed turn requests its response again ([`resume`](super::resume)).
//! - `max_tool_calls_per_run`: the turn ends when a call opens that exceeds it.
//! - `run_timeout`: the turn is cancelled at the deadline of the run.

use std::time::Duration;

use super::call::TurnCall;
use super::effect::{CancelReason, TurnAction, TurnEnd};
use super::{Turn, TurnStage};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::Usage;
use callsheet_wire::response::ExchangeEnd;
use callsheet_wire::response::classify_ending;

/// Configuration key of the run's token limit.
pub const MAX_TOKENS_KEY: &str = "max_tokens_per_run";
/// Configuration key of the run's call limit.
pub const MAX_CALLS_KEY: &str = "max_tool_calls_per_run";
/// Configuration key of the run's time limit.
pub const RUN_TIMEOUT_KEY: &str = "run_timeout";

/// A limit that was reached, or half used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitHit {
    /// The limit's name in the configuration.
    pub limit: &'static str,
    /// The amount that was used.
    pub value: u64,
    /// The amount that is allowed.
    pub maximum: u64,
    /// The consequence.
    pub action: &'static str,
    /// The note to the model, which follows the last result of the turn.
    pub note: Option<String>,
}

impl Turn {
    /// Ends the turn if its response has used more tokens than the run had left. A complete answer
    /// without calls is kept: it is paid for, and no further request follows. Returns whether the turn
    /// ended.
    pub(super) fn end_if_over_tokens(&mut self) -> bool {
        let Some(left) = self.spec.budget.tokens_left else { return false };
        let used = self.tokens_used();
        if self.stage != TurnStage::AwaitingResponse || used <= left {
            return false;
        }
        let must_end = match classify_ending(&self.attempt.response, ExchangeEnd::Closed) {
            Ok(ResponseEnding::Refused) => false,
            Ok(
                ResponseEnding::Complete
                | ResponseEnding::Length
                | ResponseEnding::BrokenKept
                | ResponseEnding::TooManyCalls
                | ResponseEnding::Cancelled,
            ) => self.calls.iter().any(TurnCall::is_kept),
            Err(_) => true,
        };
        if must_end {
            self.record_token_limit(used, left);
            self.disconnect_over_budget();
        }
        must_end
    }

    /// Ends the turn in the middle of its response, because a call has opened that exceeds the run's
    /// limit.
    pub(super) fn end_over_calls(&mut self) {
        let Some(maximum) = self.spec.rules.limits.max_tool_calls_per_run.map(u64::from) else {
            return;
        };
        // The call that has just opened is the first over the limit.
        self.record_limit(MAX_CALLS_KEY, maximum.saturating_add(1), maximum, "ended");
        self.disconnect_over_budget();
    }

    /// Returns whether no tokens are left for a further request.
    pub(super) fn is_out_of_tokens(&self) -> bool {
        self.spec.budget.tokens_left.is_some_and(|left| self.tokens_used() >= left)
    }

    /// Ends the turn between two attempts, because no tokens are left for another one. With
    /// `is_recorded` the limit was recorded before and is not recorded again.
    pub(super) fn end_out_of_tokens(&mut self, is_recorded: bool) {
        if let Some(left) = self.spec.budget.tokens_left.filter(|_| !is_recorded) {
            self.record_token_limit(self.tokens_used(), left);
        }
        self.stage = TurnStage::Finished;
        self.commit(TurnEnd::Cancelled(CancelReason::Budget), None);
    }

    fn disconnect_over_budget(&mut self) {
        self.effects.perform(TurnAction::Disconnect);
        self.end_response(ResponseEnding::Cancelled, Some(CancelReason::Budget));
    }

    /// Returns the tokens of the failed attempts, of the current response and of the children that have ended. Counts
    /// a response whose exchange is closed twice.
    pub(super) fn tokens_used(&self) -> u64 {
        let own = self.usage.total().saturating_add(self.attempt.response.usage().total());
        own.saturating_add(self.children_use().tokens)
    }

    /// Records the token limit with the sums of the whole run.
    fn record_token_limit(&mut self, used: u64, left: u64) {
        let maximum = self.spec.rules.limits.max_tokens_per_run.unwrap_or(left);
        let before = maximum.saturating_sub(left);
        self.record_limit(MAX_TOKENS_KEY, before.saturating_add(used), maximum, "ended");
    }

    /// Cancels the turn because the time of the run is over.
    pub(super) fn end_out_of_time(&mut self) {
        let timeout = self.spec.rules.limits.run_timeout.unwrap_or_default();
        self.record_time_limit(RUN_TIMEOUT_KEY, timeout, "ended");
        self.handle_cancel(self.now(), CancelReason::RunTimeout);
    }

    /// Returns the deadline of the run. Returns `None` while the turn waits only for people, and for a
    /// cancelled turn, which may wait for its children to end. Waiting for people extends the deadline.
    pub(super) fn run_deadline(&self) -> Option<Duration> {
        let is_open = self.stage != TurnStage::Finished && !self.is_cancelled();
        let counts = is_open && !self.clock.is_waiting_for_people();
        let left = self.spec.run_time_left.filter(|_| counts)?;
        left.checked_add(self.clock.times().people)
    }

    /// Records that the time of a run or of a call is over.
    pub(super) fn record_time_limit(&mut self, limit: &str, time: Duration, action: &str) {
        let millis = callsheet_values::types::millis(time);
        self.record_limit(limit, millis, millis, action);
    }

    /// Records that a limit was reached, with the action that follows.
    pub(super) fn record_limit(&mut self, limit: &str, value: u64, maximum: u64, action: &str) {
        self.record(Record::LimitReached {
            limit: limit.to_owned(),
            value,
            maximum,
            action: action.to_owned(),
            reason: None,
            note: None,
            usage: Usage::default(),
        });
    }
}
