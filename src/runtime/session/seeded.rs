//! The first turn of a session that was opened with calls which nobody has answered.

use super::State;
use crate::event::{CallLabel, Event};
use crate::journal::Urgency;
use crate::record::{Record, Seq};
use crate::turn::{SeededTurn, TurnPlan};

impl State {
    /// What the next run begins with instead of a request, if there is something.
    pub(super) fn seeded_turn(&self) -> Option<SeededTurn> {
        let calls = self.history.open_calls()?;
        Some(SeededTurn::new(self.turn + 1, calls, &self.run_agent.rules))
    }

    /// Begins the turn of a run that was begun before it could be recorded.
    pub(super) fn record_seeded_turn(&mut self, plan: TurnPlan, seeded: SeededTurn) {
        let after = self.log.last();
        self.log.append(vec![seeded.response.clone()], Urgency::Lazy, || ());
        self.begin_seeded_turn(plan, seeded, after);
    }

    /// Begins the turn, whose response is recorded right behind `after`.
    pub(super) fn begin_seeded_turn(&mut self, plan: TurnPlan, seeded: SeededTurn, after: Seq) {
        self.turn += 1;
        let Some(run) = self.run.as_mut() else { return };
        run.plan = plan;
        run.turn_after = after;
        let id = run.id.clone();
        self.publisher.publish_recorded(&id, self.turn, Event::TurnStarted, Seq(after.0 + 1));
        if let Record::ResponseEnded { message, .. } = &seeded.response {
            for call in &message.calls {
                let call = CallLabel {
                    key: call.key,
                    provider_id: call.provider_id.clone(),
                    name: call.name.clone(),
                };
                self.publisher.publish(&id, self.turn, Event::CallOpened { call });
            }
        }
        if let Some(limit) = seeded.limit {
            let told = self.take_limit(limit);
            self.tell(vec![told]);
        }
        self.hand_out_turn(Some(self.log.entries_since(after)));
    }
}
