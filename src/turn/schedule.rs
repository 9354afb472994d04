//! The start of sealed calls: tickets, early start, exclusive calls and `parallel = N`.
//!
//! Ticket: the permission of a call to start. Tickets are given in call order. An admitted call has
//! its ticket when the [`StartGate`] is open to it and every earlier call has its ticket or has
//! ended. A call with its ticket may still wait:
//!
//! 1. in sequential execution, until every earlier call has ended;
//! 2. for an earlier exclusive call, or, if it is exclusive itself, for every earlier call;
//! 3. for the approval to start;
//! 4. for a permit: with `parallel = N` at most N calls of the turn hold one;
//! 5. for a permit of its tool, if the tool has `max_concurrent` or `rate`, or a server that connects.
//!
//! A call that waits for an approval, or that the client runs, holds no permit, so that later calls can overtake it. A call
//! that waits for a permit of its tool holds one of the turn: it counts as a running call.
//!
//! Early start: a call starts while the response is still being received. The agent must have
//! `early_start`, and the tool must be pure or have `start_on_seal`. There is no early start with
//! `on_excess = "fail"`, because a later call of the response may still fail the turn. A call that may
//! not start early gets no ticket before the response has ended, and therefore holds back all later
//! calls.

use super::call::{CallPhase, TurnCall};
use super::{Turn, TurnStage};
use crate::config::OnExcess;
use crate::event::WaitingFor;
use crate::record::ResponseDisposition;
use crate::types::Execution;

/// The calls that the state of the response allows to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartGate {
    /// The response is incomplete: only calls of tools that may start early.
    Early,
    /// No call may start.
    Closed,
    /// The response ended well: every call may start.
    Open,
}

/// The next action for the call at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleAction {
    /// Give the call a permit of the turn and start it.
    Start(usize),
    /// Request the approval to start the call.
    RequestApproval(usize),
    /// Publish the reason for which the call waits. It was not published before.
    Wait(usize, WaitingFor),
}

/// Returns the first action in call order, or `None` if there is nothing to do.
pub(super) fn next_action(
    calls: &[TurnCall],
    execution: Execution,
    gate: StartGate,
) -> Option<ScheduleAction> {
    let permits_max = match execution {
        Execution::Sequential => 1,
        Execution::Parallel { max } => max as usize,
    };
    let permits_held = calls.iter().filter(|call| call.holds_permit()).count();
    let mut earlier_unended = false;
    let mut earlier_exclusive = false;
    let mut earlier_without_ticket = false;
    for (index, call) in calls.iter().enumerate() {
        match call.phase {
            CallPhase::Dropped | CallPhase::Ended { .. } => continue,
            CallPhase::Open
            | CallPhase::Sealed
            | CallPhase::AwaitingReferences
            | CallPhase::AwaitingHooks => {
                earlier_without_ticket = true;
                continue;
            }
            // These calls have their tickets. A duplicate has one too, because it may have to run.
            CallPhase::AwaitingPermit { .. }
            | CallPhase::Duplicate { .. }
            | CallPhase::Intended
            | CallPhase::AwaitingApproval { .. }
            | CallPhase::AwaitingClient { .. }
            | CallPhase::Running { .. }
            | CallPhase::Reported(_)
            | CallPhase::AwaitingResultHooks { .. }
            | CallPhase::AwaitingReview { .. } => {}
            CallPhase::Ready => {
                let is_gate_open = gate.is_open_to(call);
                let obstacle = if earlier_without_ticket {
                    Some(WaitingFor::Ticket)
                } else if !is_gate_open {
                    Some(WaitingFor::Finish)
                } else if execution == Execution::Sequential && earlier_unended {
                    Some(WaitingFor::Ticket)
                } else if earlier_exclusive || (call.is_exclusive() && earlier_unended) {
                    Some(WaitingFor::Exclusive)
                } else if call.needs_approval() {
                    return Some(ScheduleAction::RequestApproval(index));
                } else if call.is_by_client() {
                    None
                } else if permits_held >= permits_max {
                    Some(WaitingFor::Capacity)
                } else {
                    None
                };
                match obstacle {
                    None => return Some(ScheduleAction::Start(index)),
                    Some(reason) if call.waiting_for != Some(reason) => {
                        return Some(ScheduleAction::Wait(index, reason));
                    }
                    Some(_) => {}
                }
                earlier_without_ticket |= !is_gate_open;
            }
        }
        earlier_unended = true;
        earlier_exclusive |= call.is_exclusive();
    }
    None
}

impl StartGate {
    fn is_open_to(self, call: &TurnCall) -> bool {
        match self {
            Self::Open => true,
            Self::Closed => false,
            Self::Early => call.tool.as_ref().is_some_and(|tool| tool.may_start_early()),
        }
    }
}

impl Turn {
    /// Returns the gate in the present stage.
    pub(super) fn start_gate(&self) -> StartGate {
        let rules = &self.spec.rules;
        match &self.stage {
            TurnStage::AwaitingResponse
                if !rules.early_start || rules.limits.on_excess == OnExcess::Fail =>
            {
                StartGate::Closed
            }
            TurnStage::AwaitingResponse => StartGate::Early,
            TurnStage::ResponseEnded {
                ending: ResponseDisposition::Well, cancelled: None, ..
            } => StartGate::Open,
            TurnStage::ResponseEnded { .. } | TurnStage::Finished => StartGate::Closed,
        }
    }
}
