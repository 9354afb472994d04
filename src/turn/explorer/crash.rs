//! A crash of the host, and the death of the turn's owner.

use super::variables::work;
use super::*;
use crate::turn::TurnAction;
use crate::turn::effect::DeferredEffect;
use crate::turn::fixtures::entries;

/// Longer than people are ever waited for, in milliseconds.
const LONG: u64 = 1 << 40;

impl World {
    /// What was not written is lost, and so is everything that ran.
    pub(super) fn crash(&mut self, kept: usize, for_long: bool, scenario: &Scenario) {
        self.crashes += 1;
        self.log.truncate(kept);
        self.times.truncate(kept);
        self.running.clear();
        self.live.clear();
        self.resume(LiveCalls::default(), for_long, scenario);
    }

    /// Another owner resumes the turn from all records, and the tool supervisor has the calls. One
    /// of them ends when no owner is there.
    pub(super) fn replace_owner(&mut self, ends: Option<CallKey>, scenario: &Scenario) {
        self.deaths += 1;
        if let Some(key) = ends {
            let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
            let (content, used) = work(&call.call, self.snapshots[&key].snapshot());
            let completion = ToolCompletion { outcome: ToolOutcome::ok(content), used };
            self.reported.insert(key, completion.outcome.clone());
            self.live.get_mut(&key).unwrap().completion = Some(completion);
            self.running.remove(&key);
        }
        let calls = self.live.clone();
        self.resume(LiveCalls { calls, is_complete: self.crashes == 0 }, false, scenario);
    }

    fn resume(&mut self, live: LiveCalls, for_long: bool, scenario: &Scenario) {
        self.durable = self.log.len() as u64;
        if self.is_recorded_as_over() {
            return;
        }
        self.before_crash = self.durable;
        self.delivered = None;
        self.waiting.clear();
        self.granted.clear();
        if live.calls.is_empty() {
            self.reported.clear();
            self.reruns.clear();
        }
        self.questions.clear();
        self.released.clear();
        let asked = |record: &&Record| matches!(record, Record::AttemptStarted { .. });
        self.asked.truncate(self.log.iter().filter(asked).count());
        // What the journal knows is not told again.
        self.ended.clear();
        for record in &self.log {
            if let Record::CallEnded { call, outcome, .. } = record {
                self.ended.insert(call.key, outcome.clone());
            }
        }
        self.cancel_counts = false;
        self.began = self.wall() + if for_long { LONG } else { 1000 };
        self.now = Duration::ZERO;
        self.people = Duration::ZERO;
        let log: Vec<_> = self.log.iter().cloned().zip(self.times.iter().copied()).collect();
        let spec = scenario.spec.clone();
        self.turn = Turn::resume_with(spec, &entries(7, &log), self.began, None, live);
        self.check_standing(for_long);
    }

    /// Returns whether the journal holds the commit, which the session had not heard of. It says the same.
    fn is_recorded_as_over(&mut self) -> bool {
        let Some(record) = TurnRecord::from_records(&self.log) else { return false };
        let told = self.turn.effects.deferred().find_map(|(_, held)| match held {
            DeferredEffect::Queue(Effect::Perform(TurnAction::Commit(record))) => {
                Some(record.as_ref())
            }
            DeferredEffect::Queue(_) | DeferredEffect::StartCall(_) => None,
        });
        assert_eq!(Some(&record), told, "the journal has another turn");
        self.committed = true;
        true
    }
}
