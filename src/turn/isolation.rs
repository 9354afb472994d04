//! What calls see of each other's writes to variables, and what becomes of a call that read too
//! early.
//!
//! A call begins with a snapshot: the session's variables and what the earlier calls of the turn
//! that have ended wrote. What it reads and writes is judged in call order, when the response's
//! ending is known and every earlier call has its outcome. If a name that it read was written by
//! an earlier call outside its snapshot, that is a conflict: a pure call is run again, and cannot
//! meet another one then; any other keeps its result and loses all its writes.

use super::call::{CallPhase, LastWriters, ReportedOutcome};
use super::schedule::StartGate;
use super::{Turn, TurnStage, model_messages};
use crate::context::Variables;
use crate::event::{ConflictResolution, Event};
use crate::record::Record;
use crate::types::{
    ApprovalPhase, CallKey, ReadSet, ToolOutcome, ToolStatus, VariableName, VariablesUse, WriteSet,
};

/// The variables as the calls that have ended leave them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VisibleVariables {
    pub(super) variables: Variables,
    writers: LastWriters,
}

impl VisibleVariables {
    pub(super) fn new(variables: Variables) -> Self {
        Self { variables, writers: LastWriters::new() }
    }

    pub(super) fn writers(&self) -> &LastWriters {
        &self.writers
    }

    /// Makes the writes of the call at `place` visible to calls that start from now on.
    pub(super) fn accept(&mut self, place: u32, writes: &WriteSet) {
        self.variables.apply(writes);
        self.writers.extend(writes.0.keys().map(|name| (name.clone(), place)));
    }

    /// The names of which somebody else than the reader saw was the last writer.
    fn conflicts(&self, reads: &ReadSet) -> Vec<VariableName> {
        let changed =
            reads.0.iter().filter(|(name, seen)| self.writers.get(*name) != seen.as_ref());
        changed.map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether one of these names was written behind the call at `place`.
    fn is_written_after<'a>(
        &self,
        place: u32,
        mut names: impl Iterator<Item = &'a VariableName>,
    ) -> bool {
        names.any(|name| self.writers.get(name).is_some_and(|writer| *writer > place))
    }
}

impl Turn {
    /// A tool has answered. What it has to do with variables is judged in call order.
    pub(super) fn handle_tool_report(
        &mut self,
        index: usize,
        outcome: ToolOutcome,
        used: VariablesUse,
    ) {
        self.stop_clock(index);
        let Some(call) = self.calls.get_mut(index) else { return };
        let VariablesUse { reads, writes } = used;
        let seen = |name: VariableName| {
            let writer = call.snapshot.get(&name).copied();
            (name, writer)
        };
        let reads = ReadSet(reads.into_iter().map(seen).collect());
        // A call that did not succeed changes no variable.
        let writes = if outcome.status == ToolStatus::Ok { writes } else { WriteSet::default() };
        if reads.0.is_empty() && writes.is_empty() {
            self.review_or_end(index, outcome, writes);
            return;
        }
        self.record_report(index, &outcome, &reads, &writes);
        self.set_phase(index, CallPhase::Reported(ReportedOutcome { outcome, reads, writes }));
    }

    /// Journals what a tool answered before it is decided what comes of that.
    pub(super) fn record_report(
        &mut self,
        index: usize,
        outcome: &ToolOutcome,
        reads: &ReadSet,
        writes: &WriteSet,
    ) {
        let Some(key) = self.calls.get(index).map(super::TurnCall::key) else { return };
        let (outcome, reads, writes) = (outcome.clone(), reads.clone(), writes.clone());
        self.record(Record::CallReported { key, outcome, reads, writes });
    }

    /// Decides on reported calls, each when every earlier call has its outcome.
    pub(super) fn resolve_reports(&mut self) {
        if !matches!(self.stage, TurnStage::ResponseEnded { .. }) {
            return;
        }
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get_mut(index) else { return };
            match &mut call.phase {
                CallPhase::Ended { .. } | CallPhase::Dropped => continue,
                CallPhase::Reported(report) => {
                    let report = report.clone();
                    self.decide(index, report);
                }
                CallPhase::Duplicate { of } => {
                    let of = *of;
                    self.resolve_duplicate(index, of);
                }
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::Ready
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::Running { .. }
                | CallPhase::AwaitingReview { .. } => return,
            }
            let ended = |call: &super::TurnCall| matches!(call.phase, CallPhase::Ended { .. });
            if !self.calls.get(index).is_some_and(ended) {
                return;
            }
        }
    }

    fn decide(&mut self, index: usize, report: ReportedOutcome) {
        let names = self.visible.conflicts(&report.reads);
        let rerun = !names.is_empty() && self.start_gate() == StartGate::Open;
        let maximum = self.spec.rules.limits.max_variables_bytes;
        let bytes = self.bytes_with(&report.writes);
        let full = bytes > maximum;
        let Some(call) = self.calls.get_mut(index) else { return };
        let rerun = rerun && !call.has_effects();
        // Where people were asked about the result before a crash, all of this was told.
        let is_asked = self.asked.contains_key(&(call.key(), ApprovalPhase::After));
        let known = call.notes.conflict || is_asked;
        let resolution = match (rerun, report.writes.is_empty()) {
            (true, _) => ConflictResolution::Rerun,
            (false, false) => ConflictResolution::WritesDropped,
            (false, true) => ConflictResolution::ResultKept,
        };
        call.notes.conflict |= !names.is_empty();
        call.reads.clone_from(&report.reads);
        let label = call.label();
        if rerun {
            call.report_before_rerun = Some(report);
            call.waiting_for = None;
            call.phase = CallPhase::Ready;
        } else {
            let ReportedOutcome { mut outcome, reads: _, mut writes } = report;
            call.notes.writes_dropped = !writes.is_empty() && (full || !names.is_empty());
            if !names.is_empty() {
                outcome.append(&model_messages::conflict(&names, call.notes.writes_dropped));
            } else if full {
                outcome.append(&model_messages::variables_full(maximum));
            }
            if call.notes.writes_dropped {
                writes = WriteSet::default();
            }
            self.review_or_end(index, outcome, writes);
        }
        if !names.is_empty() && !known {
            self.emit(Event::ConflictFound { call: label, names, resolution });
        } else if names.is_empty() && full && !is_asked {
            let (bytes, maximum) = (bytes as u64, maximum as u64);
            self.record_limit("max_variables_bytes", bytes, maximum, "writes_dropped");
        }
    }

    /// Returns the size of the variables after these writes; 0 without writes.
    fn bytes_with(&self, writes: &WriteSet) -> usize {
        if writes.is_empty() { 0 } else { self.visible.variables.bytes_with(writes) }
    }

    /// A duplicate of a call that used variables is decided in call order: if one of them was
    /// written between the two, it is no repetition and runs itself, and those behind it wait for
    /// it. One with effects never does: its effect is not to happen twice.
    fn resolve_duplicate(&mut self, index: usize, of: CallKey) {
        let Some(first) = self.position(of).and_then(|first| self.calls.get(first)) else { return };
        let Some(outcome) = first.outcome().cloned() else { return };
        let mut used = first.reads.0.keys().chain(first.writes.0.keys());
        let differs = !first.has_effects() && self.visible.is_written_after(of.index, &mut used);
        if !differs || self.start_gate() != StartGate::Open {
            self.end_duplicate(index, of, outcome);
            return;
        }
        self.set_phase(index, CallPhase::Ready);
        let Some(key) = self.calls.get(index).map(super::TurnCall::key) else { return };
        for call in &mut self.calls {
            if call.phase == (CallPhase::Duplicate { of }) {
                call.phase = CallPhase::Duplicate { of: key };
            }
        }
    }
}
