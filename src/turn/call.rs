//! One call of a response, from its first bytes to its outcome.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::event::{CallLabel, WaitingFor};
use crate::tool::ToolSpec;
use crate::transcript::RecordedOutcome;
use crate::types::{
    ApprovalPhase, CallKey, ReadSet, ResultNotes, ToolCall, ToolOutcome, ToolResult, VariableName,
    WriteSet, excerpt,
};

/// The index of the last call of the turn that wrote each variable.
pub(super) type LastWriters = BTreeMap<VariableName, u32>;

/// Characters of arguments and results that are quoted to people.
pub(super) const QUOTE_CHARS: usize = 200;

/// The phase of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CallPhase {
    /// Its arguments are incomplete.
    Open,
    /// Its arguments are complete; its admission is not decided yet.
    Sealed,
    /// It may run, and waits for its ticket or a permit.
    Ready,
    /// It gets a copy of that call's outcome.
    Duplicate { of: CallKey },
    /// It has its ticket and a permit of `max`, and waits for a permit of its tool.
    AwaitingPermit { since: Duration },
    /// It has its ticket and its permits; its intent is being recorded.
    Intended,
    /// It waits for the approval to run.
    AwaitingApproval { until: Option<Duration> },
    /// Its tool runs.
    Running { deadline: Option<Duration> },
    /// Its tool has finished; writes of earlier calls may still change its outcome.
    Reported(ReportedOutcome),
    /// It waits for the approval of its result.
    AwaitingReview { outcome: ToolOutcome, writes: WriteSet, until: Option<Duration> },
    /// Its outcome is decided.
    Ended { outcome: ToolOutcome, at: Duration },
    /// It is not kept in the history and gets no outcome.
    Dropped,
}

/// The outcome that a tool reported, with the variables that it used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReportedOutcome {
    pub(super) outcome: ToolOutcome,
    pub(super) reads: ReadSet,
    pub(super) writes: WriteSet,
}

/// When a call ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordedTimes {
    /// Since the run began.
    started: Option<Duration>,
    wait: Duration,
    duration: Duration,
}

/// A call of the response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TurnCall {
    pub(super) call: ToolCall,
    /// The tool, if there is one of that name.
    pub(super) tool: Option<Arc<ToolSpec>>,
    pub(super) phase: CallPhase,
    /// The call exceeds the limit per response: it is answered, not run.
    pub(super) excess: bool,
    /// The error of its arguments, with which the call is answered.
    pub(super) arguments_error: Option<ToolOutcome>,
    /// Name and canonical arguments: what makes two calls the same.
    pub(super) identity: String,
    pub(super) waiting_for: Option<WaitingFor>,
    pub(super) notes: ResultNotes,
    pub(super) sealed_at: Option<Duration>,
    pub(super) started_at: Option<Duration>,
    /// When its tool answered, or was given up.
    pub(super) answered_at: Option<Duration>,
    /// Since when people are asked.
    pub(super) asked_at: Option<Duration>,
    /// The time for which an approval was open before the turn was resumed.
    pub(super) approval_wait_before_resume: Duration,
    /// The times that were recorded with its outcome, if that was before the turn was resumed.
    pub(super) recorded: Option<RecordedTimes>,
    /// Which calls had written what, in the snapshot that it began with.
    pub(super) snapshot: LastWriters,
    /// The variables that it has read, if it ended.
    pub(super) reads: ReadSet,
    /// The variables that it writes, if it ended.
    pub(super) writes: WriteSet,
    /// The first outcome of a call that has to run again.
    pub(super) report_before_rerun: Option<ReportedOutcome>,
    /// The time for which it waited for a permit of its tool.
    pub(super) queue_wait: Option<Duration>,
    /// True if it started before the response had ended.
    pub(super) early: bool,
}

impl TurnCall {
    pub(super) fn open(key: CallKey, name: &str, tool: Option<Arc<ToolSpec>>) -> Self {
        Self {
            call: ToolCall {
                key,
                id: Arc::default(),
                provider_id: None,
                name: name.into(),
                arguments: Arc::new(Value::Object(serde_json::Map::new())),
                raw: None,
            },
            tool,
            phase: CallPhase::Open,
            excess: false,
            arguments_error: None,
            identity: String::new(),
            waiting_for: None,
            notes: ResultNotes::default(),
            sealed_at: None,
            started_at: None,
            answered_at: None,
            asked_at: None,
            approval_wait_before_resume: Duration::ZERO,
            recorded: None,
            snapshot: LastWriters::default(),
            reads: ReadSet::default(),
            writes: WriteSet::default(),
            report_before_rerun: None,
            queue_wait: None,
            early: false,
        }
    }

    /// A call as the journal knows it, to be decided anew.
    pub(super) fn restored(call: ToolCall, tool: Option<Arc<ToolSpec>>) -> Self {
        let mut restored = Self::open(call.key, &call.name, tool);
        restored.identity = identity(&call);
        restored.call = call;
        restored.phase = CallPhase::Sealed;
        restored.sealed_at = Some(Duration::ZERO);
        restored
    }

    /// It has the outcome that was recorded.
    pub(super) fn restore_outcome(&mut self, ended: &RecordedOutcome<'_>) {
        let ToolResult { outcome, notes, started, wait, duration, writes, .. } =
            ended.result(self.call.clone());
        self.started_at = started.map(|_| Duration::ZERO);
        self.recorded = Some(RecordedTimes { started, wait, duration });
        self.notes = notes;
        self.writes = writes;
        self.phase = CallPhase::Ended { outcome, at: Duration::ZERO };
    }

    pub(super) fn key(&self) -> CallKey {
        self.call.key
    }

    pub(super) fn label(&self) -> CallLabel {
        CallLabel {
            key: self.call.key,
            provider_id: self.call.provider_id.clone(),
            name: self.call.name.clone(),
        }
    }

    pub(super) fn input_summary(&self) -> String {
        let arguments = self.identity.strip_prefix(&*self.call.name).unwrap_or_default();
        excerpt(arguments.trim_start(), QUOTE_CHARS)
    }

    pub(super) fn has_effects(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.has_effects())
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.exclusive)
    }

    pub(super) fn has_concurrency_limit(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.max_concurrent.is_some())
    }

    /// Returns whether it has a place of its tool or waits for one, and its tool was not told to run.
    pub(super) fn has_tool_permit(&self) -> bool {
        self.has_concurrency_limit() && self.holds_permit() && !self.is_running()
    }

    /// Returns whether its tool was, or is about to be, told to run.
    pub(super) fn has_started(&self) -> bool {
        self.started_at.is_some() || self.phase == CallPhase::Intended
    }

    /// Returns whether it has a place of `max`.
    pub(super) fn holds_permit(&self) -> bool {
        matches!(
            self.phase,
            CallPhase::AwaitingPermit { .. } | CallPhase::Intended | CallPhase::Running { .. }
        )
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, CallPhase::Running { .. })
    }

    /// Returns whether its tool has answered, and it is not decided yet what comes of that.
    pub(super) fn has_undecided_report(&self) -> bool {
        matches!(self.phase, CallPhase::Reported(_) | CallPhase::AwaitingReview { .. })
    }

    /// Returns the phase of its open approval.
    pub(super) fn pending_approval_phase(&self) -> Option<ApprovalPhase> {
        match self.phase {
            CallPhase::AwaitingApproval { .. } => Some(ApprovalPhase::Before),
            CallPhase::AwaitingReview { .. } => Some(ApprovalPhase::After),
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::Ready
            | CallPhase::Duplicate { .. }
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::Running { .. }
            | CallPhase::Reported(_)
            | CallPhase::Ended { .. }
            | CallPhase::Dropped => None,
        }
    }

    /// Returns whether people have to be asked before it may run.
    pub(super) fn needs_approval(&self) -> bool {
        self.notes.before.is_none() && self.tool.as_ref().is_some_and(|tool| tool.approval.before)
    }

    pub(super) fn is_kept(&self) -> bool {
        self.phase != CallPhase::Dropped
    }

    pub(super) fn outcome(&self) -> Option<&ToolOutcome> {
        let CallPhase::Ended { outcome, .. } = &self.phase else { return None };
        Some(outcome)
    }

    /// Returns whether its outcome came of a tool's work: its own, or that of an identical call.
    pub(super) fn has_result(&self) -> bool {
        let of_another = self.notes.duplicate_of.is_some() || self.notes.reused;
        self.outcome().is_some() && (self.started_at.is_some() || of_another)
    }

    /// The outcome with its times, once there is one. `began`: the turn's begin since the run's.
    pub(super) fn result(&self, began: Duration) -> Option<ToolResult> {
        let CallPhase::Ended { outcome, at } = &self.phase else { return None };
        let RecordedTimes { started, wait, duration } =
            self.recorded.unwrap_or_else(|| self.times(began, *at));
        Some(ToolResult {
            call: self.call.clone(),
            outcome: outcome.clone(),
            notes: self.notes.clone(),
            started,
            wait,
            duration,
            writes: self.writes.clone(),
        })
    }

    fn times(&self, began: Duration, ended: Duration) -> RecordedTimes {
        let sealed = self.sealed_at.unwrap_or(ended);
        let ran = |started| self.answered_at.unwrap_or(ended).saturating_sub(started);
        RecordedTimes {
            started: self.started_at.map(|started| began + started),
            wait: self.started_at.unwrap_or(ended).saturating_sub(sealed),
            duration: self.started_at.map_or(Duration::ZERO, ran),
        }
    }
}

/// Name and canonical arguments: JSON objects keep their keys sorted here.
pub(super) fn identity(call: &ToolCall) -> String {
    [&call.name, " ", &call.arguments_text()].concat()
}
