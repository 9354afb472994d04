//! The end of a call: its outcome, its writes and its record.

use super::Turn;
use super::call::{CallPhase, TurnCall};
use callsheet_values::event::CallLabel;
use callsheet_values::record::Record;
use callsheet_values::types::{ToolOutcome, ToolResult, WriteSet};

impl Turn {
    /// Decides the outcome of a call that writes no variables.
    pub(super) fn end_call(&mut self, index: usize, outcome: ToolOutcome) {
        self.end_call_with(index, outcome, WriteSet::default());
    }

    /// Decides the outcome and the writes of a call. No other function does this.
    pub(super) fn end_call_with(
        &mut self,
        index: usize,
        mut outcome: ToolOutcome,
        writes: WriteSet,
    ) {
        self.stop_tool_clock(index);
        let now = self.clock.now();
        self.release_tool_permit(index);
        self.withdraw_hooks(index);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.agent_call.add_child(&mut outcome);
        call.phase = CallPhase::Ended { outcome: outcome.clone(), at: now };
        call.writes = writes.clone();
        let key = call.key();
        self.variables.apply(key.index, &writes);
        let bytes = outcome.content.len() as u64;
        let maximum = outcome.model_bytes_max(self.spec.rules.limits.max_result_bytes) as u64;
        let early = call.early;
        if let Some(result) = call.result(self.spec.run_elapsed) {
            self.record(call_ended_record(result, early, false));
        }
        if bytes > maximum {
            self.record_limit("max_result_bytes", bytes, maximum, "shortened");
        }
        // Duplicates of a call that used variables are decided later, in call order.
        self.end_duplicates_of(key);
    }

    /// Stops the clock of a running tool: it has answered, or its call is aborted.
    pub(super) fn stop_tool_clock(&mut self, index: usize) {
        self.end_people_wait(index);
        let now = self.clock.now();
        let runs = |call: &&mut TurnCall| call.is_running() && call.answered_at.is_none();
        if let Some(call) = self.calls.get_mut(index).filter(runs) {
            call.answered_at = Some(now);
            let ran = now.saturating_sub(call.started_at.unwrap_or(now));
            let ran = ran.saturating_sub(call.total_people_wait);
            self.clock.tool_ended(ran + call.run_time_before_resume);
        }
    }

    /// Records the end of a call again if it has ended, because its notes have changed. The outcome is the same.
    pub(super) fn record_amended_end(&mut self, index: usize) {
        let Some(call) = self.calls.get(index) else { return };
        if let Some(result) = call.result(self.spec.run_elapsed) {
            let record = call_ended_record(result, call.early, true);
            self.record(record);
        }
    }
}

/// Returns the record of a call that has its outcome.
pub(crate) fn call_ended_record(result: ToolResult, early: bool, amended: bool) -> Record {
    let ToolResult { call, outcome, notes, started, wait, duration, writes } = result;
    Record::CallEnded {
        call: CallLabel { key: call.key, provider_id: call.provider_id, name: call.name },
        outcome,
        notes,
        writes,
        started,
        wait,
        duration,
        early,
        amended,
    }
}
