//! Invariants of requests, starts of calls, results and the commit.

use super::*;
use crate::turn::fixtures::committed;
use callsheet_values::config::Limits;

/// Returns whether the outcome is that of a tool.
pub(super) fn is_tool_outcome(outcome: &ToolOutcome) -> bool {
    let kinds = [FailureKind::ToolError, FailureKind::Panic, FailureKind::Killed];
    outcome.kind.is_none_or(|kind| kinds.contains(&kind))
}

impl World {
    /// Returns whether the turn was resumed from its records.
    fn is_resumed(&self) -> bool {
        self.crashes + self.owner_deaths > 0
    }

    pub(super) fn has_tool_outcome(&self, key: &CallKey) -> bool {
        self.tool_outcomes.contains_key(key)
    }

    /// Checks that a result is the published outcome, and that its kind agrees with what happened.
    pub(super) fn check_result(&self, result: &ToolResult) {
        let (key, outcome) = (result.call.key, &result.outcome);
        assert_eq!(key.attempt, self.turn.attempt(), "a call of a void attempt");
        assert_eq!(self.outcomes.get(&key), Some(outcome), "another outcome was published");
        let has_started = self.ever_started.contains(&key);
        let is_copy = result.notes.duplicate_of.is_some() || result.notes.reused;
        let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
        // After a crash the log does not tell whether a pure call ran.
        let is_start_known = self.crashes == 0 || call.has_effects();
        match outcome.kind {
            Some(FailureKind::Malformed) => assert!(!call.has_effects() || !has_started),
            _ if is_copy => {}
            None => assert!(has_started),
            Some(
                FailureKind::ToolError
                | FailureKind::Panic
                | FailureKind::Killed
                | FailureKind::ExitStatus
                | FailureKind::Sandbox
                | FailureKind::HttpStatus
                | FailureKind::NotSent
                | FailureKind::ToolChanged
                | FailureKind::ServerDown,
            ) => assert!(has_started),
            // The time may be over before the journal has the request to the client.
            Some(FailureKind::Timeout) => assert!(has_started || call.is_by_client()),
            // After a crash it is unknown whether an intended call had started.
            Some(FailureKind::Cancelled) => assert!(has_started || self.crashes > 0),
            Some(FailureKind::HostStopped) => assert!(self.crashes > 0 && call.has_effects()),
            // The refusal of the call, or of its result.
            Some(FailureKind::Hook) => {}
            // The rejection of the call, or of its result.
            Some(FailureKind::Rejected | FailureKind::ApprovalExpired) => {
                assert!(
                    !is_start_known || !has_started || self.is_reviewed(key),
                    "{key} ran without its approval"
                );
            }
            Some(
                FailureKind::NotStarted
                | FailureKind::UnknownTool
                | FailureKind::InvalidArguments
                | FailureKind::CutOffArguments
                | FailureKind::Limit,
            ) => assert!(
                !is_start_known || !has_started,
                "{key} ran, but its outcome is {outcome:?}"
            ),
        }
        self.check_answer(result);
    }

    /// Checks that a smaller context is asked for once in a turn, after a request that was too large, while
    /// nothing else of the turn goes on.
    pub(super) fn check_reduction(&mut self, error: &ProviderError) {
        let is_refusal = error.is_context_overflow() || error.content.is_some();
        assert!(is_refusal && self.delivered_deltas.is_none());
        assert!(self.started_effects.is_empty(), "a call with effects has started");
        assert!(!self.turn.is_out_of_tokens(), "another request would exceed the run's tokens");
        let is_recorded = self.log.iter().rev().find_map(|record| {
            let Record::AttemptFailed { error, kept, .. } = record else { return None };
            Some(!kept && (error.is_context_overflow() || error.content.is_some()))
        });
        assert_eq!(
            is_recorded,
            Some(true),
            "the journal does not say that the request was refused"
        );
        self.awaiting_context = true;
        self.reductions += 1;
        assert_eq!(self.reductions, 1, "the context is made smaller twice in a turn");
    }

    /// Checks that models are requested in their order, at most `max_attempts` times each (not counting the request
    /// after a reduction of the context), and never after a call with effects has started.
    pub(super) fn check_request(&mut self, plan: &AttemptPlan, scenario: &Scenario) {
        assert!(self.started_effects.is_empty(), "a request after a call with effects");
        assert!(!self.awaiting_context, "a request before the context is smaller");
        self.requested_models.push(plan.model_index);
        assert!(self.requested_models.is_sorted(), "an earlier model was requested again");
        for (index, model) in scenario.spec.rules.models.iter().enumerate() {
            let times =
                self.requested_models.iter().filter(|requested| **requested == index).count();
            assert!(
                times <= (model.max_attempts + self.reductions) as usize || self.is_resumed(),
                "a model was requested too often"
            );
        }
        let name = scenario.spec.rules.models.at(plan.model_index).displayed_name.to_string();
        let recorded_name = self.log.iter().rev().find_map(|record| {
            if let Record::AttemptStarted { model, .. } = record { Some(model) } else { None }
        });
        assert_eq!(recorded_name, Some(&name), "the journal names another model");
    }

    /// Checks that a turn that providers failed has requested all models, and that it has used up their attempts if
    /// the last error is transient.
    pub(super) fn check_failure(&self, error: &RunError, scenario: &Scenario) {
        if matches!(&*error.code, "CONTEXT_OVERFLOW" | "CONTENT_REFUSED") {
            assert!(self.reductions == 1 || self.is_resumed(), "the context was not changed");
        }
        if !matches!(&*error.code, "provider_error" | "CONTEXT_OVERFLOW" | "CONTENT_REFUSED") {
            return;
        }
        let models = &scenario.spec.rules.models;
        assert_eq!(
            self.requested_models.last(),
            Some(&(models.iter().count() - 1)),
            "a model was left out"
        );
        // A refusal of content leads to the next model at once.
        let first = if scenario.spec.excludable.any() { models.iter().count() - 1 } else { 0 };
        let attempts: u32 = models.iter().skip(first).map(|model| model.max_attempts).sum();
        let requests = self.requested_models.iter().filter(|index| **index >= first).count();
        assert!(!error.transient || requests >= attempts as usize, "the turn failed too early");
    }

    /// Returns whether the tool of the call has a free permit.
    pub(super) fn is_permit_free(&self, key: CallKey) -> bool {
        let tool = |key: &CallKey| {
            let call = self.turn.calls.iter().find(|call| call.key() == *key).unwrap();
            call.tool.clone().unwrap()
        };
        let wanted = tool(&key);
        let max = wanted.max_concurrent.unwrap().get() as usize;
        let permits_held =
            self.running.iter().chain(&self.holding_permit).filter(|k| tool(k) == wanted).count();
        permits_held < max
    }

    pub(super) fn check_permit_request(&mut self, key: CallKey, tool: &str, scenario: &Scenario) {
        let calls = &self.turn.calls;
        let index = calls.iter().position(|call| call.key() == key).unwrap();
        let rules = &scenario.spec.rules;
        assert!(&*calls[index].call.name == tool && calls[index].needs_tool_permit());
        // A call that no longer waits releases its permit in the same batch of effects.
        let wanted = matches!(calls[index].phase, CallPhase::AwaitingPermit { .. });
        assert!(
            !wanted || self.may_start(&calls[index], rules),
            "a permit was requested too early"
        );
        assert!(!self.running.contains(&key) && !self.holding_permit.contains(&key));
        assert!(self.awaiting_permit.insert(key), "a permit was requested twice");
        self.check_tickets(index, rules);
    }

    /// Checks that tickets are given in call order, and that at most `max` calls hold a permit.
    fn check_tickets(&self, index: usize, rules: &RunRules) {
        for earlier in &self.turn.calls[..index] {
            let waits =
                matches!(earlier.phase, CallPhase::Open | CallPhase::Sealed | CallPhase::Ready);
            assert!(!waits, "a ticket was given out of order");
        }
        let permits_max = match rules.execution {
            Execution::Sequential => 1,
            Execution::Parallel { max } => max as usize,
        };
        let permits_held =
            self.running.len() + self.awaiting_permit.len() + self.holding_permit.len();
        assert!(permits_held <= permits_max, "more calls run than `max`");
    }

    pub(super) fn check_start(&mut self, key: &CallKey, scenario: &Scenario) {
        let calls = &self.turn.calls;
        let index = calls.iter().position(|call| call.key() == *key).unwrap();
        let started = &calls[index];
        let rules = &scenario.spec.rules;
        assert!(self.running.insert(*key), "started twice");
        let again = self.crashes > 0 || self.reruns.contains(key);
        assert!(self.ever_started.insert(*key) || again, "started again");
        assert!(self.may_start(started, rules), "a call started that may not");
        self.check_start_approved(*key);
        assert_eq!(
            self.holding_permit.remove(key),
            started.needs_tool_permit(),
            "started without its permit"
        );
        self.check_tickets(index, rules);
        for earlier in &calls[..index] {
            let same = earlier.dedup_key == started.dedup_key && earlier.started_at.is_some();
            let twice = same && earlier.arguments_error.is_none() && scenario.identical_run_once;
            assert!(!twice || self.crashes > 0, "an identical call ran twice");
        }
        let others = self.running.iter().filter(|other| *other != key);
        for other in others {
            let other = calls.iter().find(|call| call.key() == *other).unwrap();
            assert!(!other.is_exclusive() && !started.is_exclusive(), "beside an exclusive call");
        }
        if started.has_effects() {
            let tool = started.tool.as_ref().unwrap();
            let durable = &self.log[..self.durable as usize];
            assert!(
                durable
                    .iter()
                    .any(|r| matches!(r, Record::CallIntended { call, .. } if call.key == *key)),
                "an effect before its intent was durable"
            );
            let again = tool.idempotent && self.crashes > 0;
            for (other, identity) in &self.started_effects {
                assert!(again || other != key, "an effect was repeated");
                assert_eq!(other.attempt, key.attempt, "effects of two attempts");
                // Later calls may overtake a call that waits for its approval or for a permit of its
                // tool.
                let may_overtake = tool.asks_before()
                    || started.needs_tool_permit()
                    || started.hook_requires_start_approval();
                assert!(again || may_overtake || other < key, "effects out of order");
                let same = scenario.identical_run_once && *identity == started.dedup_key;
                assert!(again || !same, "an identical call ran twice");
            }
            self.started_effects.push((*key, started.dedup_key.clone()));
        }
    }

    pub(super) fn may_start(&self, call: &TurnCall, rules: &RunRules) -> bool {
        // A child that was opened before the crash has to be stopped.
        if call.waits_for_child_end() && self.crashes > 0 {
            return true;
        }
        let (ending, cancelled) = match &self.turn.stage {
            TurnStage::AwaitingResponse => {
                let early = rules.early_start && rules.limits.on_excess != OnExcess::Fail;
                return early && call.tool.as_ref().unwrap().may_start_early();
            }
            TurnStage::ResponseEnded { ending, cancelled, .. } => (*ending, cancelled.is_some()),
            TurnStage::Finished => return false,
        };
        let again = self.crashes > 0 && call.tool.as_ref().unwrap().idempotent;
        match ending {
            ResponseEnding::Complete => !cancelled,
            // The intent was not durable yet when the response ended.
            ResponseEnding::Length | ResponseEnding::BrokenKept => call.has_effects() && !cancelled,
            ResponseEnding::Refused => again && !cancelled,
            ResponseEnding::TooManyCalls | ResponseEnding::Cancelled => false,
        }
    }

    /// Checks a commit: each call has a result, nothing runs, and the reason of the end is right.
    pub(super) fn check_commit(&self, record: &crate::turn::CommittedTurn, scenario: &Scenario) {
        let empty = Vec::new();
        let calls = record.message.as_ref().map_or(&empty, |message| &message.calls);
        let result_keys: Vec<_> = record.results.iter().map(|r| r.call.key).collect();
        let call_keys: Vec<_> = calls.iter().map(|call| call.key).collect();
        assert_eq!(result_keys, call_keys, "each call has one result, in call order");
        assert_eq!(self.released, call_keys, "each result was released");
        assert!(self.running.is_empty(), "a call still runs");
        let permits = self.awaiting_permit.len() + self.holding_permit.len();
        assert_eq!(permits, 0, "a tool permit is held or requested");
        assert_eq!(self.delivered_deltas, None, "the exchange is still open");
        let by_budget = record.end == TurnEnd::Cancelled(CancelReason::Budget);
        assert_eq!(
            by_budget,
            self.is_run_limit_recorded(),
            "the end does not agree with the recorded limit"
        );
        if record.end == TurnEnd::Cancelled(CancelReason::RunTimeout) {
            let left = scenario.spec.run_time_left.unwrap();
            // After a resume the limit may have been recorded before.
            let is_recorded = self.is_resumed();
            assert!(
                is_recorded || self.now >= left + self.approval_wait,
                "the approval wait counted as time of the run"
            );
        } else {
            let cancelled = matches!(record.end, TurnEnd::Cancelled(_));
            assert!(by_budget || cancelled == self.cancelled_before_end || self.is_resumed());
        }
        if let TurnEnd::Failed(error) = &record.end {
            self.check_failure(error, scenario);
        }
        for result in &record.results {
            self.check_result(result);
            self.check_review(result.call.key, &result.outcome, &result.notes);
        }
        self.check_journal(record);
        self.check_serial(record);
    }

    /// Checks that the log rebuilds the same history, and that a request can be made of it.
    pub(super) fn check_journal(&self, record: &crate::turn::CommittedTurn) {
        let cut = crate::context::ResultCut { bytes_max: 1 << 20, references: true };
        let mut live = History::new();
        live.begin_run("go".into());
        live.commit(record.number, record.message.as_ref(), &record.results, cut);
        assert_eq!(live.request_messages().1, 0, "the history is not paired");
        let limits = Limits { max_result_bytes: 1 << 20, ..Limits::default() };
        assert_eq!(committed(&self.log, &limits).0, live, "the log rebuilds another history");
        let ids: HashSet<_> = record.results.iter().map(|result| &result.call.id).collect();
        assert_eq!(ids.len(), record.results.len(), "an id was used twice");
        assert!(record.results.iter().all(|r| r.call.arguments.is_object()));
    }
}
