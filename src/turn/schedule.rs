//! Which sealed calls may start now.
//!
//! Calls take tickets in call order: one takes it only when every earlier call has one or is
//! answered. With its ticket a call may still wait for earlier calls to end (in sequence), for a
//! barrier, for people, for a place of `max`, and then, if its tool has a cap, for one of its
//! tool. One that waits for people has no place of `max`. One that waits for its tool counts as one
//! that runs: later calls may overtake it, where they may run beside it at all.

use super::call::{CallPhase, TurnCall};
use crate::event::WaitingFor;
use crate::types::Execution;

/// The calls that the state of the response allows to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartGate {
    /// The response is incomplete: only calls of tools that may start early.
    Early,
    /// No call may start.
    Shut,
    /// The response ended well: every call may start.
    Open,
}

/// The next action for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The call takes its ticket and a permit of `max`.
    Start(usize),
    /// The call needs an approval before it starts.
    Ask(usize),
    /// The call waits, for a reason that was not published before.
    Wait(usize, WaitingFor),
}

/// Returns the first action in call order; none when nothing changed.
pub(super) fn next_step(calls: &[TurnCall], execution: Execution, gate: StartGate) -> Option<Step> {
    let places = match execution {
        Execution::Sequential => 1,
        Execution::Parallel { max } => max as usize,
    };
    let taken = calls.iter().filter(|call| call.has_place()).count();
    let mut earlier_unended = false;
    let mut earlier_barrier = false;
    let mut tickets_stopped = false;
    for (index, call) in calls.iter().enumerate() {
        match call.phase {
            CallPhase::Dropped | CallPhase::Ended { .. } => continue,
            CallPhase::Open | CallPhase::Sealed => {
                tickets_stopped = true;
                continue;
            }
            // One that waits for people, or for what earlier calls write, has its ticket; so has
            // a duplicate, which may have to run itself.
            CallPhase::AwaitingPermit { .. }
            | CallPhase::Duplicate { .. }
            | CallPhase::Intended
            | CallPhase::AwaitingApproval { .. }
            | CallPhase::Running { .. }
            | CallPhase::Reported(_)
            | CallPhase::AwaitingReview { .. } => {}
            CallPhase::Ready => {
                let closed = !may_pass(call, gate);
                let obstacle = if tickets_stopped {
                    Some(WaitingFor::Ticket)
                } else if closed {
                    Some(WaitingFor::Finish)
                } else if execution == Execution::Sequential && earlier_unended {
                    Some(WaitingFor::Ticket)
                } else if earlier_barrier || (call.is_exclusive() && earlier_unended) {
                    Some(WaitingFor::Exclusive)
                } else if call.must_ask() {
                    return Some(Step::Ask(index));
                } else if taken >= places {
                    Some(WaitingFor::Capacity)
                } else {
                    None
                };
                match obstacle {
                    None => return Some(Step::Start(index)),
                    Some(reason) if call.waiting_for != Some(reason) => {
                        return Some(Step::Wait(index, reason));
                    }
                    Some(_) => {}
                }
                tickets_stopped |= closed;
            }
        }
        earlier_unended = true;
        earlier_barrier |= call.is_exclusive();
    }
    None
}

fn may_pass(call: &TurnCall, gate: StartGate) -> bool {
    match gate {
        StartGate::Open => true,
        StartGate::Shut => false,
        StartGate::Early => call.tool.as_ref().is_some_and(|tool| tool.may_start_early()),
    }
}
