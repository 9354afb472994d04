//! What a session does when an actor of its run dies: the same as after a crash of the host.
//!
//! The other actors of the run are ended and waited for, so that nobody else writes to the log;
//! then the turn goes on, with new actors, from its records.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ractor::{ActorId, ActorRef};

use super::State;
use crate::journal::{Urgency, unix_ms};
use crate::record::{Record, Seq};
use crate::runtime::message::SessionMessage;
use crate::telemetry::Recorded;
use crate::turn::{CancelReason, Effect, Turn, TurnEnd, TurnRecord, TurnSpec};
use crate::types::{RunEnd, RunError, RunId};

/// How often the actors of one run are replaced.
const RECOVERIES_MAX: u32 = 3;

impl State {
    /// An actor is gone. If it was one of the run's, the run goes on without it.
    pub(super) async fn recover(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        gone: ActorId,
        why: &str,
    ) {
        let Some(run) = self.run.as_mut() else { return };
        let cells = run.actors.cells();
        if !cells.iter().any(|cell| cell.get_id() == gone) {
            return;
        }
        let waiting = run.recovering.get_or_insert_with(|| {
            tracing::error!(session = %self.id, run = %run.id, why, "run_actor_died");
            for cell in &cells {
                cell.kill();
            }
            cells.iter().map(ractor::ActorCell::get_id).collect()
        });
        waiting.remove(&gone);
        if !waiting.is_empty() {
            return;
        }
        run.recovering = None;
        run.recoveries += 1;
        if run.recoveries > RECOVERIES_MAX {
            self.give_up();
            return;
        }
        match self.spawn_actors(myself).await {
            Ok(actors) => {
                let Some(run) = self.run.as_mut() else { return };
                run.actors = actors;
                // The time that the turn has waited for people is no more known to it.
                run.people += std::mem::take(&mut run.open).rested();
                let after = run.turn_after;
                let records = self.records_since(after);
                match self.committed(&records) {
                    Some(record) => self.commit(record),
                    None => self.hand_out_turn(Some(records)),
                }
            }
            Err(_) => self.give_up(),
        }
    }

    fn records_since(&self, after: Seq) -> Vec<Record> {
        self.log.entries_since(after).iter().map(|entry| entry.record.clone()).collect()
    }

    /// The running turn, if it was over before its accumulator died but the session has not heard
    /// of it: the end of an actor overtakes its last message.
    fn committed(&self, records: &[Record]) -> Option<TurnRecord> {
        let (turn, run) = (self.turn, self.run.as_ref()?);
        let is_it = |record: &&Record| matches!(record, Record::TurnCommitted { turn: of, .. } if *of == turn);
        records.iter().find(is_it)?;
        let spec = self.turn_spec(run);
        let is_out_of_time = spec.run_time_left.is_some_and(|left| left.is_zero());
        let why = run.cancel.or(is_out_of_time.then_some(CancelReason::RunTimeout));
        let mut turn = Turn::resume(spec, records);
        turn.handle_recorded(Duration::ZERO, u64::MAX);
        // All but the commit itself was recorded and told before.
        let mut record = std::iter::from_fn(|| turn.poll()).find_map(|effect| match effect {
            Effect::Commit(record) => Some(*record),
            Effect::Record(_)
            | Effect::Request(_)
            | Effect::Disconnect
            | Effect::Reserve { .. }
            | Effect::GiveUp(_)
            | Effect::Start(..)
            | Effect::Abort(_)
            | Effect::Emit(_)
            | Effect::Release(_) => None,
        })?;
        // That it was cut off stands in its records, but not why; the run knows.
        if let (TurnEnd::Cancelled(CancelReason::Shutdown), Some(why)) = (&record.end, why) {
            record.end = TurnEnd::Cancelled(why);
        }
        Some(record)
    }

    /// Ends the run as failed. What its turn left open is answered here, without actors.
    fn give_up(&mut self) {
        let Some(run) = self.run.as_ref() else { return };
        let (spec, id) = (self.turn_spec(run), run.id.clone());
        let records = self.records_since(run.turn_after);
        // What killed the actors may be a bug of the turn itself.
        let ended = catch_unwind(AssertUnwindSafe(|| self.cancel_turn(spec, &id, &records)));
        if let Ok(Some(record)) = ended {
            self.write(record);
        }
        let error = RunError {
            code: "internal_error".to_owned(),
            message: "the run's actors died too often".to_owned(),
            transient: true,
        };
        self.end_run(RunEnd::Failed, String::new(), Some(error));
    }

    /// Cancels the turn that these records are of, and answers its open calls.
    fn cancel_turn(&self, spec: TurnSpec, run: &RunId, records: &[Record]) -> Option<TurnRecord> {
        let number = spec.number;
        let mut turn = Turn::resume(spec, records);
        turn.handle_cancel(Duration::ZERO, CancelReason::Shutdown);
        let (mut committed, mut stored) = (None, 0);
        loop {
            let (mut batch, mut events) = (Vec::new(), Vec::new());
            while let Some(effect) = turn.poll() {
                match effect {
                    Effect::Record(record) => batch.push(record),
                    Effect::Emit(event) => events.push((batch.len() as u64, event)),
                    Effect::Commit(record) => committed = Some(*record),
                    Effect::Request(_)
                    | Effect::Disconnect
                    | Effect::Reserve { .. }
                    | Effect::GiveUp(_)
                    | Effect::Start(..)
                    | Effect::Abort(_)
                    | Effect::Release(_) => {}
                }
            }
            let (count, time) = (batch.len() as u64, unix_ms());
            let (last, _) = self.log.append_at(time, batch, Urgency::Lazy, || ());
            for (behind, event) in events {
                let seq = Seq(last.0 - count + behind);
                let record = (behind > 0).then_some(Recorded { seq, time, shown: 0 });
                self.publisher.publish_behind(run, number, event, record);
            }
            if count == 0 {
                return committed;
            }
            stored += count;
            turn.handle_recorded(Duration::ZERO, stored);
        }
    }
}
