//! Calls of agents: the budget that a child may use, and the end of a call whose child has to end first.
//!
//! Lease: when the call starts, its child gets `share_of_budget` of what the run has left: tokens, tool calls and
//! time. The leases of calls that still run are not available; what ended children have used is spent. The intent
//! of the call records the lease, so that a resumed turn gives the child the same tokens and tool calls. The time is
//! computed at each start.
//!
//! People: while a child waits only for people, its call does too ([`people_wait`](super::people_wait)). There is no
//! record of it: a call that is started again after a crash detects it again.
//!
//! Cancellation: a stop, a deadline or a limit of the run aborts the call, but decides no outcome yet. The call gets
//! its outcome when its child and all descendants have ended ([`end_cancelled_agent`](Turn::end_cancelled_agent)),
//! so that no child goes on after the run of its parent. A call that had started before a crash is started again
//! even if the turn is cancelled, so that its child is found and stopped.

use std::sync::Arc;
use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use super::effect::{AgentCallStart, TurnAction};
use super::people_wait::PeopleWaitReason;
use super::{Turn, TurnStage};
use callsheet_values::config::AgentToolConfig;
use callsheet_values::transcript::CallTranscript;
use callsheet_values::types::{AgentLease, CallKey, ChildUse, ToolOutcome, ToolResult};

/// The additional state of a call whose tool is an agent. Empty for other calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AgentCall {
    /// The budget of its child. `None` before the call starts.
    lease: Option<AgentLease>,
    /// The use of the child, once it has ended.
    child: Option<Arc<ChildUse>>,
    /// Set once the call is cancelled: the outcome that it gets when its child has ended.
    cancelled: Option<Box<CancelledAgent>>,
}

/// The outcome of a cancelled call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CancelledAgent {
    outcome: ToolOutcome,
    /// The time limit that it has exceeded.
    time_limit: Option<Duration>,
}

/// Tokens and tool calls of children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildrenUse {
    /// The tokens of their model requests.
    pub tokens: u64,
    /// The number of their tool calls.
    pub calls: u32,
}

impl ChildrenUse {
    /// Returns what the children of these calls have used. A copy of an outcome counts once.
    pub fn of(results: &[ToolResult]) -> Self {
        let originals = results.iter().filter(|result| result.notes.duplicate_of.is_none());
        let children = originals.filter_map(|result| result.outcome.child.as_deref());
        children.fold(Self::default(), Self::plus)
    }

    fn plus(self, child: &ChildUse) -> Self {
        Self {
            tokens: self.tokens.saturating_add(child.tokens),
            calls: self.calls.saturating_add(child.calls),
        }
    }
}

impl AgentCall {
    /// Restores the recorded budget, and the use of the child if it has ended.
    pub(super) fn restore(&mut self, recorded: &CallTranscript<'_>) {
        self.lease = recorded.intents.last().and_then(|intent| intent.lease);
        if self.lease.is_some() {
            let ended = recorded.outcome().map(|ended| ended.outcome);
            let reported = || recorded.reports.last().map(|report| report.outcome);
            self.note_child(ended.or_else(reported));
        }
    }

    /// Notes the use of the child, if the outcome has it.
    pub(super) fn note_child(&mut self, outcome: Option<&ToolOutcome>) {
        self.child = outcome.and_then(|outcome| outcome.child.clone()).or(self.child.take());
    }

    /// Adds the use of the child to an outcome that was decided instead of that of the tool.
    pub(super) fn add_child(&self, outcome: &mut ToolOutcome) {
        if outcome.child.is_none() {
            outcome.child.clone_from(&self.child);
        }
    }
}

impl TurnCall {
    pub(super) fn agent_tool(&self) -> Option<&AgentToolConfig> {
        self.tool.as_ref()?.agent.as_deref()
    }

    /// Returns whether the child of the call waits only for people.
    pub(super) fn child_waits_for_people(&self) -> bool {
        self.people_wait().is_some_and(|wait| !wait.is_for_answer())
    }

    /// Returns whether the call is aborted, and waits for the end of its child.
    pub(super) fn waits_for_child_end(&self) -> bool {
        self.agent_call.cancelled.is_some() && self.outcome().is_none()
    }
}

impl Turn {
    /// Decides the budget of the child when its call starts; returns the same again later. `None` if the tool is no
    /// agent.
    pub(super) fn grant_lease(&mut self, index: usize) -> Option<AgentLease> {
        let call = self.calls.get(index)?;
        let share = call.agent_tool()?.share_of_budget;
        if call.agent_call.lease.is_some() {
            return call.agent_call.lease;
        }
        let open = self.open_leases();
        let budget = self.spec.budget;
        let tokens = budget.tokens_left.map(|left| {
            // `usage` includes an ended response, which `tokens_used` would count twice.
            let own = match self.stage {
                TurnStage::AwaitingResponse => self.tokens_used(),
                TurnStage::ResponseEnded { .. } | TurnStage::Finished => {
                    self.usage.total().saturating_add(self.children_use().tokens)
                }
            };
            let spent = own.saturating_add(open.tokens);
            share.part_of(left.saturating_sub(spent))
        });
        let calls = budget.calls_left.map(|left| {
            let kept = self.calls.iter().filter(|call| call.is_kept()).count() as u64;
            let children = u64::from(self.children_calls());
            let free = u64::from(left).saturating_sub(kept.saturating_add(children));
            u32::try_from(share.part_of(free)).unwrap_or(u32::MAX)
        });
        let lease = Some(AgentLease { tokens, calls });
        self.calls.get_mut(index)?.agent_call.lease = lease;
        lease
    }

    /// Returns what the open leases allow: those of kept calls without an outcome, whose children have not ended.
    fn open_leases(&self) -> ChildrenUse {
        let is_open = |call: &&TurnCall| {
            call.is_kept() && call.agent_call.child.is_none() && call.outcome().is_none()
        };
        let open = self.calls.iter().filter(is_open);
        open.filter_map(|call| call.agent_call.lease).fold(ChildrenUse::default(), |sum, lease| {
            ChildrenUse {
                tokens: sum.tokens.saturating_add(lease.tokens.unwrap_or_default()),
                calls: sum.calls.saturating_add(lease.calls.unwrap_or_default()),
            }
        })
    }

    /// Returns what the children of this turn have used that have ended.
    pub(super) fn children_use(&self) -> ChildrenUse {
        let children = self.calls.iter().filter_map(|call| call.agent_call.child.as_deref());
        children.fold(ChildrenUse::default(), ChildrenUse::plus)
    }

    /// Returns the tool calls that the children of this turn have used, or may use by their open leases.
    pub(super) fn children_calls(&self) -> u32 {
        self.children_use().calls.saturating_add(self.open_leases().calls)
    }

    /// Returns what a call needs to start if its tool is an agent.
    pub(super) fn agent_start(&self, index: usize) -> Option<Box<AgentCallStart>> {
        let call = self.calls.get(index)?;
        let share = call.agent_tool()?.share_of_budget;
        let worked = self.now().saturating_sub(self.clock.times().people);
        let left = self.spec.run_time_left.map(|left| left.saturating_sub(worked));
        let time = left.map(|left| {
            let millis = callsheet_values::types::millis(left);
            // 0 would mean no limit.
            Duration::from_millis(share.part_of(millis).max(1))
        });
        // Always set here: an agent has effects, so its intent came before.
        let lease = call.agent_call.lease.unwrap_or_default();
        let is_cancelled = call.agent_call.cancelled.is_some();
        Some(Box::new(AgentCallStart { lease, time, is_cancelled }))
    }

    /// Handles that the child of a running call begins (`waits`) or ceases to wait only for people. Ignores it for a
    /// cancelled call, whose child is being stopped.
    pub fn handle_child_waits(&mut self, now: Duration, key: CallKey, waits: bool) {
        self.clock.advance(now);
        let Some(index) = self.position(key) else { return };
        let is_open = |call: &&TurnCall| call.agent_tool().is_some() && !call.waits_for_child_end();
        let Some(call) = self.calls.get(index).filter(is_open) else { return };
        let has_changed = match (waits, call.child_waits_for_people()) {
            (true, false) => self.start_people_wait(index, PeopleWaitReason::Child),
            (false, true) => self.end_people_wait(index),
            (true, true) | (false, false) => false,
        };
        if has_changed {
            self.advance();
        }
    }

    /// Cancels the call of an agent: it gets this outcome when its child has ended. Returns false if the tool is no
    /// agent.
    pub(super) fn cancel_agent(
        &mut self,
        index: usize,
        outcome: &ToolOutcome,
        time_limit: Option<Duration>,
    ) -> bool {
        let Some(call) = self.calls.get_mut(index).filter(|call| call.agent_tool().is_some())
        else {
            return false;
        };
        if call.agent_call.cancelled.is_some() {
            return true;
        }
        call.agent_call.cancelled =
            Some(Box::new(CancelledAgent { outcome: outcome.clone(), time_limit }));
        let key = call.key();
        if call.is_running() {
            self.end_people_wait(index);
            self.set_phase(index, CallPhase::Running { deadline: None, wait: None });
            self.effects.perform(TurnAction::Abort(key));
        } else if matches!(call.phase, CallPhase::AwaitingPermit { .. }) {
            // Resumed: the call may have a child. Its start finds and stops it, without a permit.
            self.release_tool_permit(index);
            self.start(index);
        }
        true
    }

    /// Ends a cancelled call whose child has ended. Returns false if the call is not cancelled.
    pub(super) fn end_cancelled_agent(&mut self, index: usize, ended: &ToolOutcome) -> bool {
        let Some(call) = self.calls.get_mut(index) else { return false };
        let Some(cancelled) = call.agent_call.cancelled.clone() else { return false };
        let CancelledAgent { outcome, time_limit } = *cancelled;
        call.agent_call.note_child(Some(ended));
        self.end_call(index, outcome);
        if let Some(limit) = time_limit {
            self.record_time_limit("tool_timeout", limit, "timed_out");
        }
        true
    }
}
