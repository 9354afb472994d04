//! Identical calls of one response: as a rule only the first one runs. (Duplicate ids are another rule:
//! [`assign_call_id`](Turn::assign_call_id).)
//!
//! Two calls are identical if they have the same name and the same arguments (as canonical JSON).
//! The later one is a duplicate and gets a copy of the outcome of the first, with these exceptions:
//!
//! - Calls of `repeatable` tools are never duplicates.
//! - A call with effects between the two makes the later call a call of its own, unless the call between them is
//!   answered without running or is a duplicate itself.
//! - A call that was answered without running is not copied, unless its approval was rejected or has expired.
//! - If a variable that the first call used was written between the two, a pure duplicate runs if it may still
//!   start. The duplicates after it then copy its outcome. A duplicate with effects does not run.
//! - If the first call turns out malformed, its duplicates are admitted again.

use super::Turn;
use super::call::{CallPhase, TurnCall};
use super::call_start::StartGate;
use callsheet_values::types::{CallKey, ToolOutcome};

/// Returns the earlier call that `call` duplicates.
pub(super) fn find_identical_call(call: &TurnCall, earlier: &[TurnCall]) -> Option<CallKey> {
    for other in earlier.iter().rev() {
        let can_be_copied = match other.phase {
            CallPhase::Ready
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::AwaitingApproval { .. }
            | CallPhase::AwaitingClient { .. }
            | CallPhase::Running { .. }
            | CallPhase::Reported(_)
            | CallPhase::AwaitingResultHooks { .. }
            | CallPhase::AwaitingReview { .. } => true,
            // A call that was answered without running has no result to copy, unless its approval
            // was rejected.
            CallPhase::Ended { .. } => {
                let has_result = other.has_result() || other.notes.before.is_some();
                has_result && other.arguments_error.is_none() && other.notes.duplicate_of.is_none()
            }
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::AwaitingReferences
            | CallPhase::AwaitingHooks
            | CallPhase::Duplicate { .. }
            | CallPhase::Dropped => false,
        };
        if !can_be_copied {
            continue;
        }
        if other.dedup_key == call.dedup_key {
            return Some(other.key());
        }
        if other.has_effects() {
            return None;
        }
    }
    None
}

impl Turn {
    /// Ends the duplicates of a call, if it has its outcome. If the call used variables, its duplicates are left to
    /// [`resolve_duplicate`](Self::resolve_duplicate), which runs in call order; if it is malformed, to
    /// [`readmit_duplicates_of`](Self::readmit_duplicates_of).
    pub(super) fn end_duplicates_of(&mut self, key: CallKey) {
        let first = self.position(key).and_then(|index| self.calls.get(index));
        let can_be_copied = |call: &&TurnCall| {
            call.arguments_error.is_none() && call.reads.0.is_empty() && call.writes.is_empty()
        };
        let outcome = first.filter(can_be_copied).and_then(TurnCall::outcome).cloned();
        let Some(outcome) = outcome else { return };
        for index in 0..self.calls.len() {
            let is_copy =
                |call: &TurnCall| matches!(call.phase, CallPhase::Duplicate { of } if of == key);
            if self.calls.get(index).is_some_and(is_copy) {
                self.end_duplicate(index, key, outcome.clone());
            }
        }
    }

    /// Ends a duplicate of a call that used variables, or lets it run. Every earlier call has ended.
    pub(super) fn resolve_duplicate(&mut self, index: usize, of: CallKey) {
        let Some(first) = self.position(of).and_then(|first| self.calls.get(first)) else { return };
        let Some(outcome) = first.outcome().cloned() else { return };
        let mut used = first.reads.0.keys().chain(first.writes.0.keys());
        let is_outdated =
            !first.has_effects() && self.variables.is_written_after(of.index, &mut used);
        if !is_outdated || self.start_gate() != StartGate::Open {
            self.end_duplicate(index, of, outcome);
            return;
        }
        self.set_phase(index, CallPhase::Ready);
        let Some(key) = self.calls.get(index).map(TurnCall::key) else { return };
        self.set_phase_of_duplicates(of, CallPhase::Duplicate { of: key });
    }

    /// Admits the duplicates of a malformed call again.
    pub(super) fn readmit_duplicates_of(&mut self, key: CallKey) {
        self.set_phase_of_duplicates(key, CallPhase::Sealed);
    }

    fn set_phase_of_duplicates(&mut self, of: CallKey, phase: CallPhase) {
        for call in &mut self.calls {
            if call.phase == (CallPhase::Duplicate { of }) {
                call.phase = phase.clone();
            }
        }
    }

    fn end_duplicate(&mut self, index: usize, of: CallKey, outcome: ToolOutcome) {
        if let Some(call) = self.calls.get_mut(index) {
            call.notes.duplicate_of = Some(of);
        }
        self.end_call(index, outcome);
    }
}
