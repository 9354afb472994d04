//! The invariants of every state.

use std::collections::BTreeSet;

use super::world::{World, entries, key_of, turn_of};
use crate::message::Message;
use crate::record::{Record, StopMode};
use crate::session::machine::Lifecycle;
use crate::session::{
    OpenRun, OpenTurn, RunAdmission, RunStage, Session, SessionRefusal, open_approvals,
};
use crate::turn::CancelReason;
use crate::types::RunId;

impl World {
    pub(super) fn check(&self) {
        self.check_runs();
        self.check_inputs();
        self.check_owner();
        self.check_stored();
        self.check_approvals();
        self.check_end();
    }

    /// Run ids start and end once, one run at a time, and the queue keeps its order.
    fn check_runs(&self) {
        let (mut open, mut seen) = (None, BTreeSet::new());
        let (mut queued, mut closed) = (Vec::<&RunId>::new(), false);
        for record in &self.log {
            assert!(!closed, "{record:?} behind the close");
            match record {
                Record::InputQueued { run_id, .. } => queued.push(run_id),
                Record::RunStarted { run_id, .. } => {
                    assert!(open.is_none(), "run {run_id} starts within {open:?}");
                    assert!(seen.insert(run_id), "run {run_id} starts twice");
                    if let Some(at) = queued.iter().position(|id| *id == run_id) {
                        assert_eq!(at, 0, "run {run_id} overtakes another one");
                        queued.remove(0);
                    } else {
                        assert!(queued.is_empty(), "run {run_id} overtakes the queue");
                    }
                    open = Some(run_id);
                }
                Record::RunEnded { run_id, .. } => {
                    assert_eq!(open.take(), Some(run_id), "another run ends");
                }
                Record::SessionClosed => closed = true,
                _ => {}
            }
        }
        assert_eq!(open, self.session.run.as_ref().map(|run| &run.id), "the open run");
        let waiting: Vec<_> = self.session.queue.iter().map(|queued| &queued.run_id).collect();
        let is_closing = self.is_closing();
        assert!(queued == waiting || (is_closing && waiting.is_empty()), "the queue");
    }

    /// No accepted run is lost, every input stands in the history once, and keys are remembered.
    fn check_inputs(&self) {
        for (id, seq) in &self.accepted {
            let of_run = |record: &Record| {
                matches!(record, Record::RunStarted { run_id, .. }
                    | Record::InputQueued { run_id, .. } if run_id == id)
            };
            assert!(of_run(&self.log[seq.0 as usize - 1]), "run {id} has record {seq:?}");
            let again = self.session.admit_run(&"x".into(), Some(&key_of(id)), true);
            let known = RunAdmission::Known { run_id: id.clone(), seq: *seq };
            assert!(again == Ok(known) || again == Err(SessionRefusal::Closed), "{again:?}");
            let is_over = self
                .count(|record| matches!(record, Record::RunEnded { run_id, .. } if run_id == id));
            let is_known = self.session.has_run(id) || is_over == 1;
            assert!(is_known || self.refused.contains(id), "run {id} is lost");
        }
        let users = self.session.history.messages();
        let users = users.iter().filter(|message| matches!(&***message, Message::User { .. }));
        let inputs = self
            .count(|record| matches!(record, Record::RunStarted { .. } | Record::Steered { .. }));
        let users = users.count() + self.session.history.pending_inputs();
        assert_eq!(users, inputs, "inputs in the history");
    }

    fn is_closing(&self) -> bool {
        matches!(self.session.lifecycle, Lifecycle::Closing | Lifecycle::Closed)
    }

    fn count(&self, is_counted: impl Fn(&Record) -> bool) -> usize {
        self.log.iter().filter(|record| is_counted(record)).count()
    }

    /// A run in progress has a turn, a place and an owner; an idle session has none of them.
    fn check_owner(&self) {
        let goes_on = self.session.run.is_some() && !self.session.suspended;
        assert_eq!(goes_on, self.turn.is_some(), "the owner of the turn");
        assert_eq!(goes_on, self.has_slot, "the place among the host's runs");
        assert_eq!(self.session.holds_slot, self.has_slot);
        if let Some(turn) = &self.turn {
            assert_eq!(turn.number, self.session.turn);
        }
    }

    /// The state that the records give is the state of the living session.
    fn check_stored(&self) {
        for upto in self.batch_from.max(1)..self.log.len() {
            self.read(upto);
        }
        let stored = self.read(self.log.len()).session;
        let mut live = self.session.clone();
        let mut has_received = true;
        if let Some(turn) = &self.turn
            && self.progress(turn.number).committed
        {
            assert!(live.handle_turn_committed(&self.turn_record(turn.number)));
            has_received = false;
        }
        assert_eq!(stored.history, live.history);
        assert_eq!(stored.variables, live.variables);
        assert_eq!(stored.usage, live.usage);
        assert_eq!(stored.keys, live.keys);
        if !self.is_closing() {
            assert_eq!(stored.queue, live.queue);
        }
        // A stop behind a commit may have come before the session received the commit.
        if has_received && self.is_stop_ambiguous() {
            return;
        }
        let has_records = self.progress(live.turn).records > 0;
        let begun = u32::from(self.turn.is_some() && has_received && !has_records);
        // A turn that failed without a record is counted until the host stops.
        let is_counted = !has_records && stored.turn + 1 == live.turn;
        assert!(stored.turn == live.turn - begun || is_counted, "the last turn");
        // The first reason for a cancellation stands, and a shutdown has no record.
        let is_shutting_down = live.shutting_down;
        let run = |session: Session| {
            let mut run = session.run.map(|run| durable(*run, has_records));
            if let Some(run) = run.as_mut().filter(|_| is_shutting_down) {
                run.cancel = None;
            }
            run
        };
        assert_eq!(run(stored), run(live), "the run");
    }

    fn is_stop_ambiguous(&self) -> bool {
        let last = self.log.iter().rposition(|r| matches!(r, Record::TurnCommitted { .. }));
        let Some(last) = last else { return false };
        let behind = &self.log[last + 1..];
        let decided = |record: &Record| {
            matches!(record, Record::LimitReached { .. }) || turn_of(record).is_some()
        };
        let stop = Record::StopAsked { mode: StopMode::AfterTurn };
        let stopped = behind.iter().position(|record| *record == stop);
        stopped.is_some_and(|at| !behind[..at].iter().any(decided))
            && self.session.run.is_some()
            && !behind.iter().any(|record| matches!(record, Record::RunStarted { .. }))
    }

    /// The records show the approvals that the turn waits for.
    fn check_approvals(&self) {
        let Some(turn) = &self.turn else { return };
        let progress = self.progress(turn.number);
        let of_turn: Vec<_> = entries(&self.log)
            .into_iter()
            .filter(|entry| turn_of(&entry.record) == Some(turn.number))
            .collect();
        assert_eq!(open_approvals(&of_turn).len(), usize::from(progress.asks), "open approvals");
        let run = self.session.run.as_ref().unwrap();
        let rests = run.turn().is_some_and(OpenTurn::is_resting);
        assert_eq!(rests, progress.asks, "it waits for people");
        if rests && run.cancel.is_some() {
            assert!(turn.cancel.is_some(), "a run that ends waits for nobody");
        }
        if run.cancel == Some(CancelReason::Stop) {
            assert!(turn.cancel.is_some(), "a stopped turn is cancelled");
        }
    }

    /// Once no action is left, every accepted run has ended or was refused.
    fn check_end(&self) {
        let is_over =
            |action: &super::actions::Action| matches!(action, super::actions::Action::Repeat);
        if !self.actions().iter().all(is_over) {
            return;
        }
        if self.session.suspended && self.session.shutting_down {
            return;
        }
        assert!(self.session.run.is_none() && self.turn.is_none(), "a run never ends");
        assert!(self.session.queue.is_empty(), "a queued run never starts");
        assert!(!self.is_closing() || self.deleted, "it is never deleted");
    }
}

/// A run without what is not durable.
fn durable(mut run: OpenRun, has_records: bool) -> OpenRun {
    run.cancel = run.cancel.filter(|why| *why == CancelReason::Stop);
    run.stage = match run.stage {
        RunStage::Turn(turn) if has_records => RunStage::Turn(OpenTurn::new(turn.plan, None)),
        RunStage::Turn(turn) => RunStage::Ready(turn.plan),
        other => other,
    };
    run
}
