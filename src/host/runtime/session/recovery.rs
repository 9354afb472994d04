//! The recovery of a run after the death of one of its actors, by the same code as after a crash
//! of the host.
//!
//! The session ends the other actors of the run and waits for them, so that no other actor writes
//! to the log. Then the turn continues from its records with new actors. If the accumulator died,
//! the tool supervisor stays, and the turn attaches to the calls that it runs. After `RUN_RECOVERIES_MAX`
//! replacements in a run, the next death ends the run as failed (`internal_error`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, ActorRef};

use super::run::RunActors;
use super::{SessionActor, unstored_outcomes};
use crate::journal::{Appended, Urgency, unix_ms};
use crate::runtime::child_sessions::stop_child;
use crate::runtime::message::{AccumulatorMessage, SessionMessage};
use crate::runtime::supervision::{ChildEnd, EndCause};
use callsheet_machines::turn::{
    CancelReason, CommittedTurn, Effect, ToolCompletion, Turn, TurnAction, TurnSpec,
};
use callsheet_values::record::{JournalEntry, Record, Seq};
use callsheet_values::types::{
    FailureKind, RunError, RunId, ToolOutcome, ToolStatus, VariablesUse,
};

/// Maximum number of times that the actors of one run are replaced. The next death ends the run.
const RUN_RECOVERIES_MAX: u32 = 3;

/// The error of a run whose actors died once more after that.
const DIED: &str = "the run's actors died too often";

impl SessionActor {
    /// Handles the end of an actor of this session.
    pub(super) fn handle_actor_end(&mut self, myself: &ActorRef<SessionMessage>, end: ChildEnd) {
        match self.actors.ending.remove(&end.actor) {
            None => self.recover(myself, end),
            Some(None) => {}
            // The message is behind the last outcomes of the supervisor.
            Some(Some(accumulator)) => {
                if accumulator.cast(AccumulatorMessage::Finish).is_ok() {
                    self.actors.ending.insert(accumulator.get_id(), None);
                }
            }
        }
    }

    /// Handles the death of an actor. If it was one of the run's actors, replaces it and continues the
    /// run.
    fn recover(&mut self, myself: &ActorRef<SessionMessage>, end: ChildEnd) {
        let ChildEnd { actor: gone, cause } = end;
        let Some(actors) = self.actors.current.as_ref().map(RunActors::cells) else { return };
        if !actors.iter().any(|actor| actor.get_id() == gone) {
            return;
        }
        let Some(run) = self.run.as_mut() else {
            // The next run gets new actors.
            actors.iter().for_each(ActorCell::kill);
            self.forget_actors();
            return;
        };
        // The first death kills the actors that are replaced with the dead one. All of them have to end first.
        let waiting = run.recovering.get_or_insert_with(|| {
            let why = match cause {
                EndCause::Stopped => "stopped".to_owned(),
                EndCause::Killed => "killed".to_owned(),
                EndCause::Panicked(panic) => panic,
            };
            tracing::error!(session = %self.id, run = %run.id, why, "run_actor_died");
            let [_, accumulator, supervisor] = &actors;
            let calls_survive = gone == accumulator.get_id();
            let replaced = actors
                .iter()
                .filter(|actor| !(calls_survive && actor.get_id() == supervisor.get_id()));
            replaced.inspect(|actor| actor.kill()).map(ActorCell::get_id).collect()
        });
        waiting.remove(&gone);
        if !waiting.is_empty() {
            return;
        }
        run.recovering = None;
        run.recoveries += 1;
        let is_too_often = run.recoveries > RUN_RECOVERIES_MAX;
        let supervisor = self.forget_actors().and_then(|actors| actors.living_supervisor());
        if supervisor.is_none() {
            self.seq_before_calls = self.log.last_seq();
        }
        if is_too_often {
            if let Some(supervisor) = supervisor {
                supervisor.kill();
            }
            self.give_up("internal_error", DIED, None);
            return;
        }
        self.spawn_actors_with(myself, supervisor);
        let Some(run) = self.run.as_mut() else { return };
        run.is_resumable = false;
        let entries = self.log.entries_since(run.seq_before_turn);
        let committed = committed(&entries);
        if !committed.is_some_and(|(record, seq)| self.commit(record, seq)) {
            self.session.handle_turn_lost(self.now());
        }
    }

    /// Ends the run as failed. The open calls of its turn are answered here, without actors. `unstored` are the outcomes
    /// that could not be stored, if the journal is the reason.
    pub(super) fn give_up(&mut self, code: &str, message: &str, unstored: Option<Vec<Record>>) {
        let Some(run) = self.run.as_ref() else { return };
        let (spec, id) = (self.turn_spec(), run.id.clone());
        let entries = self.log.entries_since(run.seq_before_turn);
        // The actors may have died of a bug in the turn machine.
        let ended = catch_unwind(AssertUnwindSafe(|| match committed(&entries) {
            Some(committed) => Some(committed),
            None if entries.is_empty() => None,
            None => {
                let outcomes = unstored.map(|known| unstored_outcomes::to_record(&entries, known));
                self.cancel_turn(spec?, &id, entries.clone(), outcomes.unwrap_or_default())
            }
        }));
        if let Some((record, seq)) = ended.ok().flatten() {
            // The session may have received this commit before.
            self.commit(record, seq);
        }
        let (code, message) = (code.to_owned(), message.to_owned());
        let error = RunError { code, message, transient: true };
        self.session.handle_run_failed(self.now(), None, error);
    }

    /// Records `outcomes` of the turn that these entries are of, cancels it, and answers its other open calls.
    fn cancel_turn(
        &self,
        spec: TurnSpec,
        run: &RunId,
        mut entries: Vec<Arc<JournalEntry>>,
        outcomes: Vec<Record>,
    ) -> Option<(CommittedTurn, Seq)> {
        let number = spec.number;
        let recorded = self.log.append(outcomes, Urgency::Deferrable, || ()).entries;
        entries.extend(recorded.iter().cloned());
        let mut turn = Turn::resume(spec, &entries, unix_ms(), Some(CancelReason::Shutdown));
        {
            let mut series = self.publisher.begin_series();
            for entry in &recorded {
                series.publish_entry(entry, |key| turn.recorded_call(key));
            }
        }
        let (mut committed, mut stored) = (None, 0);
        // Each round appends the turn's records and reports them as stored, until no more follow.
        loop {
            let (mut batch, mut events) = (Vec::new(), Vec::new());
            let mut agents = Vec::new();
            while let Some(effect) = turn.poll() {
                match effect {
                    Effect::Record(record) => batch.push(record),
                    Effect::Emit(event) if batch.is_empty() => {
                        self.publisher.publish(run, number, event);
                    }
                    Effect::Emit(event) => events.push((batch.len(), event)),
                    Effect::Perform(TurnAction::Commit(record)) => committed = Some(*record),
                    // The call would have stopped its child, and waited for its end.
                    Effect::Perform(TurnAction::Start(start)) => {
                        let key = start.call.key;
                        stop_child(&self.host_ref, &self.id, &key.idempotency_key(run));
                        agents.push(key);
                    }
                    Effect::Perform(_) => {}
                }
            }
            let mut series = self.publisher.begin_series();
            let Appended { entries, .. } = self.log.append(batch, Urgency::Deferrable, || ());
            let mut events = events.into_iter().peekable();
            for (entry, records) in entries.iter().zip(1..) {
                series.publish_entry(entry, |key| turn.recorded_call(key));
                while let Some((_, event)) = events.next_if(|(before, _)| *before == records) {
                    series.publish(run, number, event);
                }
            }
            drop(series);
            if entries.is_empty() && agents.is_empty() {
                return Some((committed?, self.log.last_seq()));
            }
            for key in agents {
                let kind = FailureKind::Cancelled;
                let outcome = ToolOutcome::not_ok(ToolStatus::Cancelled, kind, "");
                let variables = VariablesUse::default();
                let completion = ToolCompletion { outcome, variables };
                turn.handle_outcome(Duration::ZERO, key, completion);
            }
            stored += entries.len() as u64;
            turn.handle_recorded(Duration::ZERO, stored);
        }
    }
}

/// Returns the current turn if it was committed before its accumulator died, with the position of the
/// record. The session may not have received the commit, because the end of an actor overtakes its last
/// message.
fn committed(entries: &[Arc<JournalEntry>]) -> Option<(CommittedTurn, Seq)> {
    let is_commit =
        |entry: &&Arc<JournalEntry>| matches!(entry.record, Record::TurnCommitted { .. });
    let seq = entries.iter().find(is_commit)?.seq;
    Some((CommittedTurn::from_records(entries.iter().map(|entry| &entry.record))?, seq))
}
