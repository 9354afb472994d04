//! A crash of the host, and the death of the actor that owns the turn.

use super::variables::run_tool;
use super::world::MissedEvent;
use super::*;
use crate::turn::TurnAction;
use crate::turn::effect::DeferredEffect;
use crate::turn::fixtures::entries;

/// A time in milliseconds that is longer than any approval timeout.
const LONG_DOWNTIME_MS: u64 = 1 << 40;

impl World {
    /// Crashes the host: the records after the first `kept` are lost, and all tools stop.
    pub(super) fn crash(&mut self, kept: usize, is_long: bool, scenario: &Scenario) {
        self.crashes += 1;
        self.log.truncate(kept);
        self.record_times.truncate(kept);
        self.running.clear();
        self.stopping.clear();
        self.questions.clear();
        self.waiting_children.clear();
        self.started_calls.clear();
        self.resume(StartedCalls::default(), is_long, scenario);
    }

    /// Ends the owner of the turn. Another one resumes it from all records under the same tool
    /// supervisor. The turn does not receive the event `missed`, which comes before the resume.
    pub(super) fn replace_owner(&mut self, missed: MissedEvent, scenario: &Scenario) {
        self.owner_deaths += 1;
        match missed {
            MissedEvent::Nothing | MissedEvent::End(_) => {}
            MissedEvent::Question(key) => drop(self.supervise_question(key)),
            MissedEvent::Withdrawal(key) => drop(self.supervise_withdrawal(key)),
            MissedEvent::ChildWaits(key, waits) => self.supervise_child(key, waits),
        }
        if let MissedEvent::End(key) = missed {
            self.questions.remove(&key);
            self.waiting_children.remove(&key);
            let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
            let (content, used) = run_tool(&call.call, self.snapshots[&key].snapshot());
            let mut outcome = ToolOutcome::ok(content);
            outcome.child = agents::child(call);
            let completion = ToolCompletion { outcome, variables: used };
            self.tool_outcomes.insert(key, completion.outcome.clone());
            self.started_calls.get_mut(&key).unwrap().completion = Some(completion);
            self.running.remove(&key);
            self.stopping.remove(&key);
        }
        let calls = self.started_calls_with_waits();
        self.resume(StartedCalls { calls, is_complete: self.crashes == 0 }, false, scenario);
    }

    fn resume(&mut self, started: StartedCalls, is_long: bool, scenario: &Scenario) {
        self.durable = self.log.len() as u64;
        if self.is_commit_recorded() {
            return;
        }
        self.records_before_resume = self.durable;
        self.delivered_deltas = None;
        (self.awaiting_context, self.reductions) = (false, 0);
        self.awaiting_permit.clear();
        self.awaiting_references.clear();
        self.awaiting_hooks.clear();
        self.holding_permit.clear();
        // The turn stops the children again. Their supervisor ignores it.
        self.stopping.clear();
        self.handed.clear();
        if started.calls.is_empty() {
            self.tool_outcomes.clear();
            self.reruns.clear();
        }
        self.pending_approvals.clear();
        self.released.clear();
        let is_attempt = |record: &&Record| matches!(record, Record::AttemptStarted { .. });
        self.requested_models.truncate(self.log.iter().filter(is_attempt).count());
        // Recorded outcomes are not published again.
        self.outcomes.clear();
        for record in &self.log {
            if let Record::CallEnded { call, outcome, .. } = record {
                self.outcomes.insert(call.key, outcome.clone());
            }
        }
        self.cancelled_before_end = false;
        self.start_ms = self.unix_ms() + if is_long { LONG_DOWNTIME_MS } else { 1000 };
        self.now = Duration::ZERO;
        self.approval_wait = Duration::ZERO;
        let log: Vec<_> = self.log.iter().cloned().zip(self.record_times.iter().copied()).collect();
        let spec = scenario.spec.clone();
        self.turn = Turn::resume_with(spec, &entries(7, &log), self.start_ms, None, started);
        self.check_pending_after_resume(is_long);
    }

    /// Returns whether the log holds the commit, which the turn had not performed. Checks that both
    /// are equal.
    fn is_commit_recorded(&mut self) -> bool {
        let Some(record) = CommittedTurn::from_records(&self.log) else { return false };
        let deferred_commit =
            self.turn.effects.deferred().find_map(|(_, deferred)| match deferred {
                DeferredEffect::Queue(Effect::Perform(TurnAction::Commit(record))) => {
                    Some(record.as_ref())
                }
                DeferredEffect::Queue(_) | DeferredEffect::StartCall(_) => None,
            });
        assert_eq!(Some(&record), deferred_commit, "the log holds another turn");
        self.committed = true;
        true
    }
}
