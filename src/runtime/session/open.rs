//! What of the running turn is known before its commit: results that were released, and what
//! people are asked.

use std::time::Duration;

use tokio::time::Instant;

use super::State;
use crate::event::ApprovalRequest;
use crate::journal::unix_ms;
use crate::record::{Record, Seq};
use crate::runtime::message::{AccumulatorMessage, DecisionReply};
use crate::runtime::report::CallReport;
use crate::runtime::snapshot::PendingApproval;
use crate::turn::{ApprovalError, Decision};
use crate::types::{CallKey, ToolResult};

/// The running turn, as its accumulator tells of it.
#[derive(Debug, Default)]
pub(super) struct OpenTurn {
    pub(super) results: Vec<CallReport>,
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
    pub(super) fn take_result(&mut self, epoch: u64, result: ToolResult) {
        let Some(run) = self.run.as_ref().map(|run| run.id.clone()) else { return };
        if let Some(open) = self.open_turn(epoch) {
            open.results.push(CallReport::new(run, None, result));
        }
    }

    pub(super) fn take_questions(
        &mut self,
        epoch: u64,
        questions: Vec<ApprovalRequest>,
        rests: bool,
    ) {
        let Some(open) = self.open_turn(epoch) else { return };
        let known = std::mem::take(&mut open.approvals);
        let approvals = questions.into_iter().map(|asked| {
            let asked = PendingApproval::new(asked, unix_ms());
            let same =
                |old: &&PendingApproval| old.tool_id == asked.tool_id && old.phase == asked.phase;
            known.iter().find(same).cloned().unwrap_or(asked)
        });
        open.approvals = approvals.collect();
        open.rested = open.rested();
        open.resting_since = rests.then(Instant::now);
        self.cancel_if_resting();
    }

    /// What the run's present actors may tell of.
    fn open_turn(&mut self, epoch: u64) -> Option<&mut OpenTurn> {
        let is_present = epoch == self.epoch;
        let run = self.run.as_mut().filter(|run| is_present && run.recovering.is_none())?;
        Some(&mut run.open)
    }

    /// Hands a decision to the turn that it is about, or says what became of an earlier one.
    pub(super) fn decide(&self, key: CallKey, decision: Decision, reply: DecisionReply) {
        if let Some(run) = self.run.as_ref().filter(|_| key.turn == self.turn) {
            // An accumulator that is gone drops the reply: whoever decides asks again.
            let _ =
                run.actors.accumulator.cast(AccumulatorMessage::Decide { key, decision, reply });
            return;
        }
        let records = self.log.entries_since(Seq(0));
        let given = records.iter().rev().find_map(|entry| {
            let Record::ApprovalGiven { key: of, phase, verdict, .. } = &entry.record else {
                return None;
            };
            let is_meant = *of == key && decision.phase.is_none_or(|asked| asked == *phase);
            is_meant.then_some(*verdict)
        });
        let call = records.iter().find_map(|entry| {
            let Record::ResponseEnded { message, .. } = &entry.record else { return None };
            message.calls.iter().find(|call| call.key == key)
        });
        let _ = reply.send(match given {
            None => Err(ApprovalError::NotAsked),
            Some(_) if call.is_some_and(|call| !decision.is_about(call)) => {
                Err(ApprovalError::Stale)
            }
            Some(given) => decision.repeats(given),
        });
    }
}
