//! Initial calls: the unanswered calls of a session's initial messages. They are run in a turn that
//! makes no request to a model.
//!
//! Such a turn starts like a turn that is resumed right after its response, so that the same rules
//! apply to its calls. Only the rules that decide when a call opens whether it is kept
//! (`multi_tool_calls`, `max_tool_calls_per_turn`) are applied here. The budget of the run does not count the calls.

use std::sync::Arc;

use super::LimitHit;
use super::admission::{self, CallRetention};
use super::spec::RunRules;
use callsheet_values::record::{Record, ResponseEnding, ResponseMessage};
use callsheet_values::types::Usage;

/// The records at the start of a turn of initial calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCallsStart {
    /// The record of the response, for [`Turn::resume`](super::Turn::resume). The response ended well, unless it
    /// holds too many calls and `on_excess` is `fail`.
    pub response: Record,
    /// The limit that the calls exceed, if any. It is not recorded yet.
    pub limit: Option<LimitHit>,
}

impl InitialCallsStart {
    /// Returns the start of the turn with the number `turn` and the calls of this message.
    #[must_use]
    pub fn new(turn: u32, message: &ResponseMessage, rules: &RunRules) -> Self {
        let mut response = ResponseMessage { calls: Vec::new(), ..message.clone() };
        let mut dropped_calls = Vec::new();
        let mut ending = ResponseEnding::Complete;
        let mut limit_action = None;
        for call in &message.calls {
            match admission::retention_by_rules(call.key.index, rules) {
                CallRetention::Keep => response.calls.push(call.clone()),
                CallRetention::AnswerExcess => {
                    response.calls.push(call.clone());
                    limit_action.get_or_insert("answered");
                }
                CallRetention::Drop | CallRetention::OverBudget => {
                    dropped_calls.push(call.name.clone())
                }
                CallRetention::DropExcess => {
                    dropped_calls.push(call.name.clone());
                    limit_action.get_or_insert("truncated");
                }
                CallRetention::Fail => {
                    dropped_calls.push(call.name.clone());
                    limit_action.get_or_insert("failed");
                    ending = ResponseEnding::TooManyCalls;
                }
            }
        }
        let limit =
            limit_action.zip(rules.limits.max_tool_calls_per_turn).map(|(action, maximum)| {
                let (value, maximum) = (message.calls.len() as u64, u64::from(maximum));
                LimitHit { limit: "max_tool_calls_per_turn", value, maximum, action, note: None }
            });
        let record = Record::ResponseEnded {
            turn,
            attempt: 1,
            ending,
            message: Arc::new(response),
            finish_reason: None,
            usage: Usage::default(),
            dropped_calls,
            displayed_segments: Vec::new(),
        };
        Self { response: record, limit }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::turn::fixtures::{entries, rules, spec};
    use crate::turn::{Budget, Effect, Turn, TurnAction, TurnEnd, TurnSpec};
    use callsheet_values::config::{Limits, OnExcess};
    use callsheet_values::types::{CallKey, Execution, ToolCall, ToolStatus};
    use std::time::Duration;

    fn message(names: &[&str]) -> ResponseMessage {
        let calls = names.iter().zip(0..).map(|(name, index)| ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("c{index}").into(),
            provider_id: None,
            name: (*name).into(),
            arguments: serde_json::json!({"n": index}).into(),
            raw: None,
            indirect: false,
        });
        ResponseMessage { calls: calls.collect(), ..ResponseMessage::default() }
    }

    /// The end of a turn of initial calls that was cancelled after its calls had started.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct CancelledTurn {
        /// The names of the calls that started.
        started: Vec<Arc<str>>,
        /// The names of the calls that are not kept.
        dropped: Vec<Arc<str>>,
        has_failed: bool,
        statuses: Vec<ToolStatus>,
        limit_action: Option<&'static str>,
    }

    fn run_and_cancel(names: &[&str], change: impl FnOnce(&mut RunRules)) -> CancelledTurn {
        let mut rules = rules(Execution::Parallel { max: 8 });
        change(&mut rules);
        let initial_response = InitialCallsStart::new(1, &message(names), &rules);
        let tokens_left = rules.limits.max_tokens_per_run;
        let budget = Budget { tokens_left, calls_left: rules.limits.max_tool_calls_per_run };
        let spec = TurnSpec { budget, ..spec(rules) };
        let mut turn = Turn::resume(spec, &entries(0, &[(initial_response.response, 0)]), 0, None);
        let (mut started, mut committed) = (Vec::new(), None);
        for pass in 0..4 {
            if pass == 1 {
                turn.handle_cancel(Duration::ZERO, crate::turn::CancelReason::Stop);
            }
            turn.handle_recorded(Duration::ZERO, u64::MAX);
            while let Some(effect) = turn.poll() {
                let Effect::Perform(action) = effect else { continue };
                assert!(!matches!(action, TurnAction::Request(_)), "no model is requested");
                if let TurnAction::Start(start) = &action {
                    started.push(start.call.name.clone());
                }
                if let TurnAction::Commit(record) = action {
                    committed = Some(record);
                }
            }
        }
        let record = committed.expect("the turn is over");
        CancelledTurn {
            started,
            dropped: record.dropped_calls,
            has_failed: matches!(record.end, TurnEnd::Failed(_)),
            statuses: record.results.iter().map(|result| result.outcome.status).collect(),
            limit_action: initial_response.limit.map(|hit| hit.action),
        }
    }

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn limited(on_excess: OnExcess) -> impl FnOnce(&mut RunRules) {
        move |rules| {
            rules.limits =
                Limits { max_tool_calls_per_turn: Some(1), on_excess, ..Limits::default() };
        }
    }

    #[test]
    fn initial_calls_run_or_are_answered_like_the_calls_of_a_response() {
        use ToolStatus::{Cancelled, Failed};
        assert_eq!(
            run_and_cancel(&["pure", "nope", "effect"], |_| ()),
            CancelledTurn {
                started: names(&["pure", "effect"]),
                statuses: vec![Cancelled, Failed, Cancelled],
                ..CancelledTurn::default()
            }
        );
    }

    #[test]
    fn multi_tool_calls_and_max_tool_calls_per_turn_apply() {
        use ToolStatus::{Cancelled, Refused};
        let calls = ["pure", "quick", "effect"];
        assert_eq!(
            run_and_cancel(&calls, |rules| rules.multi_tool_calls = false),
            CancelledTurn {
                started: names(&["pure"]),
                dropped: names(&["quick", "effect"]),
                statuses: vec![Cancelled],
                ..CancelledTurn::default()
            }
        );
        assert_eq!(
            run_and_cancel(&calls, limited(OnExcess::Answer)),
            CancelledTurn {
                started: names(&["pure"]),
                dropped: names(&["effect"]),
                statuses: vec![Cancelled, Refused],
                limit_action: Some("answered"),
                ..CancelledTurn::default()
            }
        );
        assert_eq!(
            run_and_cancel(&calls, limited(OnExcess::Truncate)),
            CancelledTurn {
                started: names(&["pure"]),
                dropped: names(&["quick", "effect"]),
                statuses: vec![Cancelled],
                limit_action: Some("truncated"),
                ..CancelledTurn::default()
            }
        );
        assert_eq!(
            run_and_cancel(&calls, limited(OnExcess::Fail)),
            CancelledTurn {
                dropped: names(&["quick", "effect"]),
                has_failed: true,
                statuses: vec![Refused],
                limit_action: Some("failed"),
                ..CancelledTurn::default()
            }
        );
    }

    #[test]
    fn initial_calls_use_no_budget_and_excess_calls_do_not_run() {
        use ToolStatus::{Cancelled, Refused};
        let one = |rules: &mut RunRules| {
            limited(OnExcess::Answer)(rules);
            rules.limits.max_tool_calls_per_run = Some(1);
        };
        assert_eq!(
            run_and_cancel(&["pure", "quick"], one),
            CancelledTurn {
                started: names(&["pure"]),
                statuses: vec![Cancelled, Refused],
                limit_action: Some("answered"),
                ..CancelledTurn::default()
            }
        );
    }
}
