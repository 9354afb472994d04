//! What of the running turn is known before its commit: results in call order, and what people
//! are asked.

use std::time::Duration;

use tokio::time::Instant;

use super::State;
use crate::event::ApprovalRequest;
use crate::journal::unix_ms;
use crate::record::{Record, Seq};
use crate::runtime::message::{AccumulatorMessage, DecisionReply};
use crate::runtime::report::CallReport;
use crate::runtime::snapshot::PendingApproval;
use crate::session::open_approvals;
use crate::turn::{ApprovalDecision, ApprovalError, results_so_far};
use crate::types::{CallKey, RunId};

/// The running turn, as its accumulator tells of it.
#[derive(Debug, Default)]
pub(super) struct OpenTurn {
    /// Whether it goes on from its records, and its accumulator has not told of it yet.
    pub(super) is_unknown: bool,
    pub(super) approvals: Vec<PendingApproval>,
    /// Since when people are all that it waits for.
    resting_since: Option<Instant>,
    /// How long it did so before.
    rested: Duration,
}

impl OpenTurn {
    /// Whether people are all that the turn waits for.
    pub(super) fn is_resting(&self) -> bool {
        self.resting_since.is_some()
    }

    /// How long people were all that the turn waited for.
    pub(super) fn rested(&self) -> Duration {
        self.rested + self.resting_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl State {
    /// The results of the running turn up to the first call that has none, as far as they are
    /// durable.
    pub(super) fn results_so_far(&self, run: &RunId, turn_after: Seq) -> Vec<CallReport> {
        let durable = self.log.durable();
        let entries = self.log.entries_since(turn_after);
        let records = entries.iter().filter(|entry| entry.seq <= durable);
        let results = results_so_far(records.map(|entry| &entry.record));
        results.map(|result| CallReport::new(run.clone(), None, result)).collect()
    }

    /// Returns the open approvals of a suspended run's turn, from its records.
    pub(super) fn recorded_approvals(&self, turn_after: Seq) -> Vec<PendingApproval> {
        let entries = self.log.entries_since(turn_after);
        let open = open_approvals(entries.iter().map(|entry| &**entry)).into_iter();
        open.map(|open| PendingApproval::new(open.request, open.asked_at)).collect()
    }

    pub(super) fn take_questions(
        &mut self,
        epoch: u64,
        questions: Vec<ApprovalRequest>,
        rests: bool,
    ) {
        let approvals = questions.into_iter().map(|asked| {
            let asked_at = self.asked_at(&asked);
            PendingApproval::new(asked, asked_at)
        });
        let approvals = approvals.collect();
        let Some(open) = self.open_turn(epoch) else { return };
        open.approvals = approvals;
        open.rested = open.rested();
        open.resting_since = rests.then(Instant::now);
        self.cancel_if_resting();
    }

    /// The accumulator has told all that its records say.
    pub(super) fn turn_is_known(&mut self, epoch: u64) {
        if let Some(open) = self.open_turn(epoch) {
            open.is_unknown = false;
        }
    }

    /// What the run's present actors may tell of.
    fn open_turn(&mut self, epoch: u64) -> Option<&mut OpenTurn> {
        let is_present = epoch == self.epoch;
        let run = self.run.as_mut().filter(|run| is_present && run.recovering.is_none())?;
        Some(&mut run.open)
    }

    /// Hands a decision to the turn that it is about.
    pub(super) fn decide(&self, key: CallKey, decision: ApprovalDecision, reply: DecisionReply) {
        if self.run.is_some() && key.turn == self.turn {
            // An accumulator that is gone drops the reply: whoever decides asks again.
            self.tell_accumulator(AccumulatorMessage::Decide { key, decision, reply });
        } else {
            let _ = reply.send(Err(ApprovalError::NotAsked));
        }
    }

    /// Until when people may answer: Unix time in milliseconds.
    pub(super) fn answer_until(&self) -> Option<u64> {
        let tools = &self.run_agent.rules.tools;
        let until = |asked: &PendingApproval| {
            let timeout = tools.get(&*asked.tool_name)?.approval_timeout;
            asked.asked_at.checked_add(u64::try_from(timeout.as_millis()).ok()?)
        };
        self.run.as_ref()?.open.approvals.iter().filter_map(until).min()
    }

    /// When people were asked: Unix time in milliseconds. A question that was asked before the
    /// session was rebuilt is not younger for that.
    fn asked_at(&self, question: &ApprovalRequest) -> u64 {
        let after = self.run.as_ref().map_or(Seq(0), |run| run.turn_after);
        let entries = self.log.entries_since(after);
        let asked = entries.iter().find(|entry| {
            matches!(&entry.record, Record::ApprovalAsked { asked }
                if asked.call.key == question.call.key && asked.phase == question.phase)
        });
        asked.map_or_else(unix_ms, |entry| entry.time)
    }
}
