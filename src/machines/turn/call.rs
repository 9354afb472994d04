//! One call of a response, from its first bytes to its outcome.
//!
//! The stages of what a tool returns, in their order:
//!
//! | type | what it is | from, to |
//! | --- | --- | --- |
//! | `tool::ToolOutput` | what the code of the tool returns, if it succeeds | tool to `runtime::tool` |
//! | `types::ToolOutcome` | status and text: also of a call that failed, timed out or never ran | part of all that follow |
//! | `ToolCompletion` | the outcome, with the variables that the tool used | tool supervisor to turn |
//! | `ReportedOutcome` | the same in the turn, while earlier calls may still change what it rests on | in the turn |
//! | `CallPhase::Ended` | the final outcome | in the turn |
//! | `types::ToolResult` | the final outcome with its call, notes, times and writes | turn to history, events, reports |
//!
//! `StartedCall` is not a stage: it is the tool supervisor's state of a call, for a turn that is resumed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::agent_calls::AgentCall;
use super::hook_chain::sha256;
use super::people_wait::{PeopleWait, PeopleWaitReason};
use super::question::AskedQuestion;
use super::started_calls::{CallStartState, LastWriters, StartedCall};
use crate::contract::ToolSpec;
use callsheet_values::event::{CallLabel, WaitingFor};
use callsheet_values::transcript::RecordedOutcome;
use callsheet_values::types::{
    CallKey, HookDecision, ReadSet, ResultNotes, ToolCall, ToolOutcome, ToolResult, WaitPhase,
    WriteSet, excerpt,
};

/// Maximum number of characters of a quoted argument text or result, in events and in messages to the model.
pub(super) const QUOTE_CHARS: usize = 200;

/// The phase of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CallPhase {
    /// The arguments are incomplete.
    Open,
    /// The arguments are complete. The call is not admitted yet.
    Sealed,
    /// The call is sealed and waits for the values of the references in its arguments.
    AwaitingReferences,
    /// The call is sealed and waits for the decision of hooks.
    AwaitingHooks,
    /// The call is admitted, and waits for its ticket, for an exclusive call or for a permit.
    Ready,
    /// The call waits to copy the outcome of an identical call.
    Duplicate { of: CallKey },
    /// The call holds a permit of the turn and waits for a permit of its tool.
    AwaitingPermit { requested_at: Duration },
    /// The call holds its permits and waits until its intent is stored.
    Intended,
    /// The call waits for the approval to run.
    AwaitingApproval { until: Option<Duration> },
    /// The client runs the call.
    AwaitingClient { until: Option<Duration> },
    /// The tool runs. While it waits for people, its deadline does not count.
    Running { deadline: Option<Duration>, wait: Option<PeopleWait> },
    /// The tool has answered. The outcome depends on the writes of earlier calls.
    Reported(ReportedOutcome),
    /// The tool has answered. The call waits for the decision of hooks about its result.
    AwaitingResultHooks { outcome: ToolOutcome, writes: WriteSet },
    /// The call waits for the approval of its result.
    AwaitingReview { outcome: ToolOutcome, writes: WriteSet, until: Option<Duration> },
    /// The outcome is decided.
    Ended { outcome: ToolOutcome, at: Duration },
    /// The call is not kept in the history and gets no outcome.
    Dropped,
}

/// The outcome that a tool reported, with the variables that it used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReportedOutcome {
    pub(super) outcome: ToolOutcome,
    pub(super) reads: ReadSet,
    pub(super) writes: WriteSet,
}

/// The times of a call in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordedTimes {
    /// The time from the start of the run to the start of the call.
    started: Option<Duration>,
    wait: Duration,
    duration: Duration,
}

/// The decisions of hooks about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CallHooks {
    /// The decision about running the call.
    pub(super) before: Option<Arc<HookDecision>>,
    /// The decision about its result.
    pub(super) after: Option<Arc<HookDecision>>,
}

/// A call of the response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TurnCall {
    pub(super) call: ToolCall,
    /// The arguments that the model sent, if those of `call` differ: references were replaced by their values, or a
    /// hook changed them.
    pub(super) model_arguments: Option<Arc<Value>>,
    /// The tool, or `None` if no tool has the name.
    pub(super) tool: Option<Arc<ToolSpec>>,
    pub(super) phase: CallPhase,
    /// True if the call exceeds `max_tool_calls_per_turn`: it is answered without running.
    pub(super) is_excess: bool,
    /// The error of the arguments, with which the call is answered.
    pub(super) arguments_error: Option<ToolOutcome>,
    /// The name and the canonical arguments. Calls with the same identity are identical.
    pub(super) dedup_key: String,
    /// The reason for which the call waits, as it was published last.
    pub(super) waiting_for: Option<WaitingFor>,
    pub(super) notes: ResultNotes,
    pub(super) sealed_at: Option<Duration>,
    pub(super) started_at: Option<Duration>,
    /// The time for which the tool ran before the turn was resumed.
    pub(super) run_time_before_resume: Duration,
    /// The time at which the tool answered or was aborted.
    pub(super) answered_at: Option<Duration>,
    /// Number of bytes of its arguments that were published. 0 unless a subscriber asks for them.
    pub(super) published_arguments: usize,
    /// The time at which the pending approval was requested.
    pub(super) approval_requested_at: Option<Duration>,
    /// The time for which the approval was pending before the turn was resumed.
    pub(super) approval_wait_before_resume: Duration,
    /// The decisions of hooks.
    pub(super) hooks: CallHooks,
    /// The questions that its tool has asked, in their order.
    pub(super) questions: Vec<AskedQuestion>,
    /// The time for which its tool waited for people since its start.
    pub(super) total_people_wait: Duration,
    /// The times in the record of the outcome, if that is older than the resume of the turn.
    pub(super) recorded_times: Option<RecordedTimes>,
    /// The last writers of the variables in the snapshot with which the call started.
    pub(super) snapshot_writers: LastWriters,
    /// The variables that the call has read. Set when its report is resolved (`isolation`).
    pub(super) reads: ReadSet,
    /// The variables that the call writes. Set at its end.
    pub(super) writes: WriteSet,
    /// The report of the first run of a call that runs again because of a conflict.
    pub(super) report_before_rerun: Option<ReportedOutcome>,
    /// The time for which the call waited for a permit of its tool.
    pub(super) queue_wait: Option<Duration>,
    /// True if the call started before the response ended.
    pub(super) early: bool,
    /// The call of an agent: its budget and its end.
    pub(super) agent_call: AgentCall,
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
                indirect: false,
            },
            model_arguments: None,
            tool,
            phase: CallPhase::Open,
            is_excess: false,
            arguments_error: None,
            dedup_key: String::new(),
            waiting_for: None,
            notes: ResultNotes::default(),
            sealed_at: None,
            started_at: None,
            run_time_before_resume: Duration::ZERO,
            answered_at: None,
            published_arguments: 0,
            approval_requested_at: None,
            approval_wait_before_resume: Duration::ZERO,
            hooks: CallHooks::default(),
            questions: Vec::new(),
            total_people_wait: Duration::ZERO,
            recorded_times: None,
            snapshot_writers: LastWriters::default(),
            reads: ReadSet::default(),
            writes: WriteSet::default(),
            report_before_rerun: None,
            queue_wait: None,
            early: false,
            agent_call: AgentCall::default(),
        }
    }

    /// Restores a call from the recorded message. The turn admits it again.
    pub(super) fn restored(call: ToolCall, tool: Option<Arc<ToolSpec>>) -> Self {
        let mut restored = Self::open(call.key, &call.name, tool);
        restored.dedup_key = dedup_key_of(&call);
        restored.call = call;
        restored.phase = CallPhase::Sealed;
        restored.sealed_at = Some(Duration::ZERO);
        restored
    }

    /// Restores the recorded outcome.
    pub(super) fn restore_outcome(&mut self, ended: &RecordedOutcome<'_>) {
        let ToolResult { outcome, notes, started, wait, duration, writes, .. } =
            ended.result(self.call.clone());
        self.started_at = started.map(|_| Duration::ZERO);
        self.recorded_times = Some(RecordedTimes { started, wait, duration });
        self.notes = notes;
        self.writes = writes;
        self.phase = CallPhase::Ended { outcome, at: Duration::ZERO };
    }

    pub(super) fn key(&self) -> CallKey {
        self.call.key
    }

    /// Returns the call for the message of its response: with the arguments as the model made them.
    pub(super) fn recorded_call(&self) -> ToolCall {
        let arguments = self.model_arguments.as_ref().unwrap_or(&self.call.arguments);
        ToolCall { arguments: Arc::clone(arguments), ..self.call.clone() }
    }

    pub(super) fn label(&self) -> CallLabel {
        CallLabel {
            key: self.call.key,
            provider_id: self.call.provider_id.clone(),
            name: self.call.name.clone(),
        }
    }

    pub(super) fn input_summary(&self) -> String {
        let arguments = self.dedup_key.strip_prefix(&*self.call.name).unwrap_or_default();
        excerpt(arguments.trim_start(), QUOTE_CHARS)
    }

    pub(super) fn has_effects(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.has_effects())
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.exclusive)
    }

    pub(super) fn needs_tool_permit(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.is_limited() || tool.waits_for_server)
    }

    /// Returns whether the call has requested or holds a permit of its tool, but does not run yet.
    pub(super) fn has_unstarted_tool_permit(&self) -> bool {
        self.needs_tool_permit() && self.holds_permit() && !self.is_running()
    }

    /// Returns whether the tool was started, or will be started when the intent is stored, or the client runs the
    /// call.
    pub(super) fn has_started(&self) -> bool {
        self.started_at.is_some()
            || matches!(self.phase, CallPhase::Intended)
            || self.waits_for_client()
    }

    /// Returns whether the call holds one of the N permits of `parallel = N`.
    pub(super) fn holds_permit(&self) -> bool {
        matches!(
            self.phase,
            CallPhase::AwaitingPermit { .. } | CallPhase::Intended | CallPhase::Running { .. }
        )
    }

    /// Returns whether the client runs the calls of its tool.
    pub(super) fn is_by_client(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.by_client)
    }

    /// Returns whether the call is handed to the client, which has not answered.
    pub(super) fn waits_for_client(&self) -> bool {
        matches!(self.phase, CallPhase::AwaitingClient { .. })
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, CallPhase::Running { .. })
    }

    pub(super) fn people_wait(&self) -> Option<PeopleWait> {
        let CallPhase::Running { wait, .. } = self.phase else { return None };
        wait
    }

    /// Returns whether the call waits for a decision, an answer or the result of a client, or for a child that only
    /// waits for these.
    pub(super) fn waits_for_people(&self) -> bool {
        self.pending_wait_phase().is_some() || self.people_wait().is_some()
    }

    /// Starts a wait of a running call. Returns false if the call does not run, or waits already.
    pub(super) fn start_people_wait(&mut self, now: Duration, reason: PeopleWaitReason) -> bool {
        let CallPhase::Running { deadline, wait: None } = self.phase else { return false };
        let wait = Some(PeopleWait::new(now, reason, deadline));
        self.phase = CallPhase::Running { deadline, wait };
        true
    }

    /// Ends the wait of a running call. Returns false if it does not wait.
    pub(super) fn end_people_wait(&mut self, now: Duration) -> bool {
        let Some(wait) = self.people_wait() else { return false };
        self.total_people_wait += wait.waited(now);
        self.phase = CallPhase::Running { deadline: wait.deadline(now), wait: None };
        true
    }

    /// Extends the deadline of a running tool by the time for which the host was stalled, unless the deadline is
    /// paused.
    pub(super) fn extend_deadline(&mut self, stalled: Duration) {
        if let CallPhase::Running { deadline: Some(deadline), wait: None } = &mut self.phase {
            *deadline = deadline.saturating_add(stalled);
        }
    }

    /// Returns the SHA-256 of its arguments (compact JSON with sorted keys) in hexadecimal.
    pub(super) fn arguments_sha256(&self) -> String {
        sha256(&self.call.arguments)
    }

    /// Returns the state that the call's supervisor keeps.
    pub(super) fn start_state(&self) -> CallStartState {
        CallStartState {
            snapshot: self.snapshot_writers.clone(),
            is_early: self.early,
            is_rerun: self.notes.conflict,
            questions: self.question_count(),
            arguments: self.model_arguments.as_ref().map(|_| Arc::clone(&self.call.arguments)),
        }
    }

    /// Returns the running call as its supervisor keeps it. For replays, in which the time stands still.
    pub(super) fn as_started(&self) -> StartedCall {
        StartedCall {
            state: self.start_state(),
            elapsed: self.run_time_before_resume,
            wait: self.started_wait(),
            completion: None,
        }
    }

    /// Returns whether the tool has answered and the outcome is not decided.
    pub(super) fn has_undecided_report(&self) -> bool {
        match self.phase {
            CallPhase::Reported(_)
            | CallPhase::AwaitingResultHooks { .. }
            | CallPhase::AwaitingReview { .. } => true,
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::AwaitingReferences
            | CallPhase::AwaitingHooks
            | CallPhase::Ready
            | CallPhase::Duplicate { .. }
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::AwaitingApproval { .. }
            | CallPhase::AwaitingClient { .. }
            | CallPhase::Running { .. }
            | CallPhase::Ended { .. }
            | CallPhase::Dropped => false,
        }
    }

    /// Returns the phase of the pending approval, of the open question, or of the result of a client that is awaited.
    pub(super) fn pending_wait_phase(&self) -> Option<WaitPhase> {
        match self.phase {
            CallPhase::AwaitingApproval { .. } => Some(WaitPhase::Before),
            CallPhase::AwaitingReview { .. } => Some(WaitPhase::After),
            CallPhase::Running { wait: Some(wait), .. } if wait.is_for_answer() => {
                Some(WaitPhase::Input)
            }
            CallPhase::AwaitingClient { .. } => Some(WaitPhase::Client),
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::AwaitingReferences
            | CallPhase::AwaitingHooks
            | CallPhase::Ready
            | CallPhase::Duplicate { .. }
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::Running { .. }
            | CallPhase::Reported(_)
            | CallPhase::AwaitingResultHooks { .. }
            | CallPhase::Ended { .. }
            | CallPhase::Dropped => None,
        }
    }

    /// Returns the time at which what [`Self::pending_wait_phase`] means expires.
    pub(super) fn approval_expires_at(&self) -> Option<Duration> {
        match self.phase {
            CallPhase::AwaitingApproval { until }
            | CallPhase::AwaitingClient { until }
            | CallPhase::AwaitingReview { until, .. } => until,
            CallPhase::Running { wait, .. } => wait?.expires_at(),
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::AwaitingReferences
            | CallPhase::AwaitingHooks
            | CallPhase::AwaitingResultHooks { .. }
            | CallPhase::Ready
            | CallPhase::Duplicate { .. }
            | CallPhase::AwaitingPermit { .. }
            | CallPhase::Intended
            | CallPhase::Reported(_)
            | CallPhase::Ended { .. }
            | CallPhase::Dropped => None,
        }
    }

    /// Returns whether the call needs an approval to run that it does not have yet.
    pub(super) fn needs_approval(&self) -> bool {
        let is_asked = self.tool.as_ref().is_some_and(|tool| tool.asks_before());
        self.notes.before.is_none() && (is_asked || self.hook_requires_start_approval())
    }

    pub(super) fn is_kept(&self) -> bool {
        !matches!(self.phase, CallPhase::Dropped)
    }

    pub(super) fn outcome(&self) -> Option<&ToolOutcome> {
        let CallPhase::Ended { outcome, .. } = &self.phase else { return None };
        Some(outcome)
    }

    /// Returns whether the call has its outcome, and has started or copies the outcome of an identical call.
    pub(super) fn has_result(&self) -> bool {
        let is_copy = self.notes.duplicate_of.is_some() || self.notes.reused;
        self.outcome().is_some() && (self.started_at.is_some() || is_copy)
    }

    /// Returns the outcome with its times. `run_elapsed` is the time between the start of the run and that of
    /// the turn.
    pub(super) fn result(&self, run_elapsed: Duration) -> Option<ToolResult> {
        let CallPhase::Ended { outcome, at } = &self.phase else { return None };
        let RecordedTimes { started, wait, duration } =
            self.recorded_times.unwrap_or_else(|| self.times(run_elapsed, *at));
        Some(ToolResult {
            call: self.recorded_call(),
            outcome: outcome.clone(),
            notes: self.notes.clone(),
            started,
            wait,
            duration,
            writes: self.writes.clone(),
        })
    }

    fn times(&self, run_elapsed: Duration, ended: Duration) -> RecordedTimes {
        let sealed = self.sealed_at.unwrap_or(ended);
        let ran = |started: Duration| {
            let ended = self.answered_at.unwrap_or(ended);
            ended.saturating_sub(started).saturating_sub(self.total_people_wait)
        };
        RecordedTimes {
            started: self
                .started_at
                .map(|at| (run_elapsed + at).saturating_sub(self.run_time_before_resume)),
            wait: self.started_at.unwrap_or(ended).saturating_sub(sealed),
            duration: self.started_at.map_or(Duration::ZERO, ran) + self.run_time_before_resume,
        }
    }
}

/// Returns the name and the canonical arguments (JSON with sorted keys) of a call.
pub(super) fn dedup_key_of(call: &ToolCall) -> String {
    [&call.name, " ", &call.arguments_text()].concat()
}
