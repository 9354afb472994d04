//! The first turn of a session that was opened with calls which nobody has answered.

use super::State;
use crate::event::{CallLabel, Event};
use crate::journal::{Urgency, unix_ms};
use crate::record::{Record, Seq};
use crate::session::TurnPlan;
use crate::telemetry::RecordPosition;
use crate::turn::InitialCallsTurn;

impl State {
    /// What the next run begins with instead of a request, if there is something.
    pub(super) fn seeded_turn(&self) -> Option<InitialCallsTurn> {
        let calls = self.history.open_calls()?;
        Some(InitialCallsTurn::new(self.turn + 1, calls, &self.run_agent.rules))
    }

    /// Begins the turn of a run that was begun before it could be recorded.
    pub(super) fn record_seeded_turn(&mut self, plan: TurnPlan, seeded: InitialCallsTurn) {
        let (last, time) = (self.log.last(), unix_ms());
        self.log.append_at(time, vec![seeded.response.clone()], Urgency::Lazy, || ());
        self.begin_seeded_turn(plan, seeded, RecordPosition { seq: last, time, shown: 0 });
    }

    /// Begins the turn, whose response is recorded right behind `after`.
    pub(super) fn begin_seeded_turn(
        &mut self,
        plan: TurnPlan,
        seeded: InitialCallsTurn,
        after: RecordPosition,
    ) {
        self.turn += 1;
        let Some(run) = self.run.as_mut() else { return };
        run.plan = plan;
        run.turn_after = after.seq;
        let id = run.id.clone();
        let record = RecordPosition { seq: Seq(after.seq.0 + 1), ..after };
        self.publisher.publish_recorded(&id, self.turn, Event::TurnStarted, record);
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
        self.hand_out_turn(Some(self.log.entries_since(after.seq)));
    }
}
