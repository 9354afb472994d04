//! What a crash of the host leaves of the world.

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
        self.durable = kept as u64;
        if self.is_recorded_as_over() {
            return;
        }
        self.before_crash = self.durable;
        self.delivered = None;
        self.running.clear();
        self.waiting.clear();
        self.granted.clear();
        self.reported.clear();
        self.reruns.clear();
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
        self.turn = Turn::resume(scenario.spec.clone(), &entries(7, &log), self.began, None);
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
