//! Isolation of variables between the calls of a turn: snapshots, stale reads (conflicts), reruns.
//!
//! A call starts with a snapshot: the session's variables and the writes of the turn's earlier calls
//! that have ended. After the response has ended, the calls that used variables are resolved in call
//! order, each one after every earlier call has its outcome.
//!
//! Conflict: an earlier call has written a variable that this call read, and that write is not in
//! its snapshot. A pure call then runs again with a new snapshot, which contains all writes of
//! earlier calls, so that it has no second conflict. A call with effects, or one that may no longer
//! start, keeps its result, and its writes are dropped.
//!
//! Two calls that write the same variable without reading it have no conflict. Their writes are
//! applied in call order, so that the last writer in call order wins, whichever tool answered first.
//!
//! The writes of a call with which the variables would exceed `max_variables_bytes` are dropped. Duplicates of calls
//! that used variables are resolved in call order too (`identical_calls`).

use super::call::{CallPhase, ReportedOutcome, TurnCall};
use super::call_start::StartGate;
use super::started_calls::LastWriters;
use super::{Turn, TurnStage, model_messages};
use crate::context::Variables;
use callsheet_values::event::{ConflictResolution, Event};
use callsheet_values::record::Record;
use callsheet_values::types::{
    ReadSet, ToolOutcome, ToolStatus, VariableName, VariablesUse, WaitPhase, WriteSet,
};

/// The session's variables with the writes of the turn's calls that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VisibleVariables {
    pub(super) current: Variables,
    writers: LastWriters,
}

impl VisibleVariables {
    pub(super) fn new(variables: Variables) -> Self {
        Self { current: variables, writers: LastWriters::new() }
    }

    pub(super) fn writers(&self) -> &LastWriters {
        &self.writers
    }

    /// Adds the writes of the call at `index`. Calls that start from now on see them.
    pub(super) fn apply(&mut self, index: u32, writes: &WriteSet) {
        self.current.apply(writes);
        self.writers.extend(writes.0.keys().map(|name| (name.clone(), index)));
    }

    /// Returns the names that were written since the snapshot in which they were read.
    fn conflicts(&self, reads: &ReadSet) -> Vec<VariableName> {
        let changed =
            reads.0.iter().filter(|(name, writer)| self.writers.get(*name) != writer.as_ref());
        changed.map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether a call after the call at `index` has written one of these names.
    pub(super) fn is_written_after<'a>(
        &self,
        index: u32,
        mut names: impl Iterator<Item = &'a VariableName>,
    ) -> bool {
        names.any(|name| self.writers.get(name).is_some_and(|writer| *writer > index))
    }
}

impl Turn {
    /// Handles the answer of a tool. If the call used variables, it is resolved later, in call order.
    pub(super) fn handle_tool_report(
        &mut self,
        index: usize,
        outcome: ToolOutcome,
        used: VariablesUse,
    ) {
        self.stop_tool_clock(index);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.agent_call.note_child(Some(&outcome));
        let VariablesUse { reads, writes } = used;
        let with_writer = |name: VariableName| {
            let writer = call.snapshot_writers.get(&name).copied();
            (name, writer)
        };
        let reads = ReadSet(reads.into_iter().map(with_writer).collect());
        // A call that did not succeed changes no variable.
        let writes = if outcome.status == ToolStatus::Ok { writes } else { WriteSet::default() };
        if reads.0.is_empty() && writes.is_empty() {
            self.ask_hooks_or_review(index, outcome, writes);
            return;
        }
        self.record_report(index, &outcome, &reads, &writes);
        self.set_phase(index, CallPhase::Reported(ReportedOutcome { outcome, reads, writes }));
    }

    /// Records the answer of a tool before the outcome of the call is decided.
    pub(super) fn record_report(
        &mut self,
        index: usize,
        outcome: &ToolOutcome,
        reads: &ReadSet,
        writes: &WriteSet,
    ) {
        let Some(key) = self.calls.get(index).map(TurnCall::key) else { return };
        let (outcome, reads, writes) = (outcome.clone(), reads.clone(), writes.clone());
        self.record(Record::CallReported { key, outcome, reads, writes });
    }

    /// Resolves calls that used variables, and duplicates, each one after every earlier call has its outcome.
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
                    self.resolve_report(index, report);
                }
                CallPhase::Duplicate { of } => {
                    let of = *of;
                    self.resolve_duplicate(index, of);
                }
                CallPhase::Open
                | CallPhase::Sealed
                | CallPhase::AwaitingReferences
                | CallPhase::AwaitingHooks
                | CallPhase::AwaitingResultHooks { .. }
                | CallPhase::Ready
                | CallPhase::AwaitingPermit { .. }
                | CallPhase::Intended
                | CallPhase::AwaitingApproval { .. }
                | CallPhase::AwaitingClient { .. }
                | CallPhase::Running { .. }
                | CallPhase::AwaitingReview { .. } => return,
            }
            let ended = |call: &TurnCall| matches!(call.phase, CallPhase::Ended { .. });
            if !self.calls.get(index).is_some_and(ended) {
                return;
            }
        }
    }

    /// Resolves a reported call: passes its result to hooks and review, or lets the call run again.
    fn resolve_report(&mut self, index: usize, report: ReportedOutcome) {
        let names = self.variables.conflicts(&report.reads);
        let has_conflict = !names.is_empty();
        let can_rerun = self.start_gate() == StartGate::Open;
        let maximum = self.spec.rules.limits.max_variables_bytes;
        let bytes = self.bytes_with(&report.writes);
        let is_full = bytes > maximum;
        let Some(call) = self.calls.get_mut(index) else { return };
        let rerun = has_conflict && can_rerun && !call.has_effects();
        // If the review was requested before a crash, these events were published before it.
        let review = (call.key(), WaitPhase::After);
        let is_review_requested = self.approvals.requested_before_resume.contains_key(&review);
        let is_conflict_published = call.notes.conflict || is_review_requested;
        let resolution = match (rerun, report.writes.is_empty()) {
            (true, _) => ConflictResolution::Rerun,
            (false, false) => ConflictResolution::WritesDropped,
            (false, true) => ConflictResolution::ResultKept,
        };
        call.notes.conflict |= has_conflict;
        call.reads.clone_from(&report.reads);
        let label = call.label();
        if rerun {
            call.report_before_rerun = Some(report);
            call.waiting_for = None;
            call.phase = CallPhase::Ready;
        } else {
            let ReportedOutcome { mut outcome, reads: _, mut writes } = report;
            call.notes.writes_dropped = !writes.is_empty() && (is_full || has_conflict);
            if has_conflict {
                outcome.append(&model_messages::conflict(&names, call.notes.writes_dropped));
            } else if is_full {
                outcome.append(&model_messages::variables_full(maximum));
            }
            if call.notes.writes_dropped {
                writes = WriteSet::default();
            }
            self.ask_hooks_or_review(index, outcome, writes);
        }
        if has_conflict && !is_conflict_published {
            self.emit(Event::ConflictFound { call: label, names, resolution });
        } else if !has_conflict && is_full && !is_review_requested {
            let (bytes, maximum) = (bytes as u64, maximum as u64);
            self.record_limit("max_variables_bytes", bytes, maximum, "writes_dropped");
        }
    }

    /// Returns the size of all variables after these writes, or zero if there are no writes.
    fn bytes_with(&self, writes: &WriteSet) -> usize {
        if writes.is_empty() { 0 } else { self.variables.current.bytes_with(writes) }
    }
}
