//! The start of a call: its ticket, permits, intent and timeout.
//!
//! Ticket: the permission of a call to start. Tickets are given in call order. An admitted call has
//! its ticket when the [`StartGate`] is open to it and every earlier call has its ticket or has
//! ended. In sequential execution every earlier call must have ended; a call that waits for that waits for its
//! ticket ([`WaitingFor::Ticket`]). A call with its ticket may still wait:
//!
//! 1. for an earlier exclusive call, or, if it is exclusive itself, for every earlier call;
//! 2. for the approval to start;
//! 3. for a permit: with `parallel = N` at most N calls of the turn hold one;
//! 4. for a permit of its tool, if the tool has `max_concurrent` or `rate`, or a server that connects.
//!
//! A call that waits for an approval, or that the client runs, holds no permit, so that with `parallel` later calls
//! can overtake it, unless it is `exclusive`. A call that waits for a permit of its tool holds one of the turn: it
//! counts as a running call.
//!
//! Early start: a call starts while the response is still being received. A call starts early unless one of these
//! prevents it:
//!
//! - `early_start = false`.
//! - Arguments that belong to no call so far: a call may lack them.
//! - `max_tool_calls_per_turn` with `on_excess = "fail"`: a later call of the response may still fail the turn.
//! - Effects: the tool is not pure and has no `start_on_seal`.
//! - An earlier call that may not start early, or is not sealed: it has no ticket, so no later call gets one.
//! - References or hooks: while their values are read, or the hooks decide, the call and all later ones wait.
//! - Sequential execution or `exclusive`: an earlier call has not ended.
//! - An approval, until it is given.
//! - All permits are held.
//!
//! A call with effects starts after its intent is stored, so that a crash cannot hide that it may have run.
//!
//! Tool timeout: the `timeout` of the tool, or else `tool_timeout` of the agent, which does not hold for a tool that
//! runs an agent. It counts from the start of the call; waits for a ticket, a permit, an approval, the answer to a
//! question or a child that waits only for people do not count, nor does time for which the host was stalled. The
//! defaults are in `config::limits` (`tool_timeout` 30 s, `cancel_grace` 1 s).
//! At the deadline [`end_timed_out`](Turn::end_timed_out) answers the call as timed out and aborts the tool. The tool
//! supervisor then cancels the tool, and kills it after `cancel_grace`. A call of an agent is answered when its child
//! has ended ([`agent_calls`](super::agent_calls)).

use std::sync::Arc;
use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use super::effect::{CallStart, DeferredEffect, PermitReply, TurnAction};
use super::{Turn, TurnStage, model_messages};
use callsheet_values::config::OnExcess;
use callsheet_values::event::{Event, WaitingFor};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::Execution;

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
enum ScheduleAction {
    /// Give the call a permit of the turn and start it.
    Start(usize),
    /// Request the approval to start the call.
    RequestApproval(usize),
    /// Publish the reason for which the call waits. It was not published before.
    Wait(usize, WaitingFor),
}

/// Returns the first action in call order, or `None` if there is nothing to do.
fn next_action(
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
                // A call that has to wait for the end of the response holds back the tickets of later calls.
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
    pub(super) fn start_ready_calls(&mut self) {
        while let Some(action) =
            next_action(&self.calls, self.spec.rules.execution, self.start_gate())
        {
            match action {
                ScheduleAction::Start(index) => self.start_or_request_permit(index),
                ScheduleAction::RequestApproval(index) => self.request_start_approval(index),
                ScheduleAction::Wait(index, reason) => self.publish_waiting(index, reason),
            }
        }
    }

    /// Publishes the reason for which a call waits, unless it is the reason that was published last.
    pub(super) fn publish_waiting(&mut self, index: usize, reason: WaitingFor) {
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.waiting_for.replace(reason) == Some(reason) {
            return;
        }
        let event = Event::CallWaiting {
            call: call.label(),
            waiting_for: reason,
            input_summary: call.input_summary(),
            arguments: Arc::clone(&call.call.arguments),
            by_client: false,
        };
        self.emit(event);
    }

    /// Returns the gate in the present stage.
    pub(super) fn start_gate(&self) -> StartGate {
        let rules = &self.spec.rules;
        match &self.stage {
            TurnStage::AwaitingResponse
                if !rules.early_start
                    || self.attempt.response.has_stray_arguments()
                    || (rules.limits.on_excess == OnExcess::Fail
                        && rules.limits.max_tool_calls_per_turn.is_some()) =>
            {
                StartGate::Closed
            }
            TurnStage::AwaitingResponse => StartGate::Early,
            TurnStage::ResponseEnded {
                ending: ResponseEnding::Complete, cancelled: None, ..
            } => StartGate::Open,
            TurnStage::ResponseEnded { .. } | TurnStage::Finished => StartGate::Closed,
        }
    }

    /// Gives the call a permit of the turn. Starts it, or requests the permit of its tool first. A call that the
    /// client runs gets no permit and is handed to the client.
    pub(super) fn start_or_request_permit(&mut self, index: usize) {
        let requested_at = self.now();
        let Some(call) = self.calls.get_mut(index) else { return };
        if call.is_by_client() {
            self.hand_to_client(index);
            return;
        }
        if !call.needs_tool_permit() {
            self.start(index);
            return;
        }
        call.phase = CallPhase::AwaitingPermit { requested_at };
        let (key, tool) = (call.key(), call.call.name.clone());
        self.clock.wait_started();
        self.effects.perform(TurnAction::RequestToolPermit { key, tool });
    }

    /// Handles the host's answer to the request for a permit of the call's tool.
    pub(super) fn handle_permit_reply(
        &mut self,
        index: usize,
        requested_at: Duration,
        reply: PermitReply,
    ) {
        match reply {
            PermitReply::Waiting => self.publish_waiting(index, WaitingFor::Capacity),
            PermitReply::RateLimited => self.publish_waiting(index, WaitingFor::Rate),
            PermitReply::ServerStarting => self.publish_waiting(index, WaitingFor::Server),
            PermitReply::Granted => {
                let queue_wait = self.now().saturating_sub(requested_at);
                let Some(call) = self.calls.get_mut(index) else { return };
                call.queue_wait = Some(queue_wait);
                self.clock.wait_ended();
                self.start(index);
            }
        }
    }

    /// Releases the permit of the call's tool, or withdraws the request for it. Does nothing if the
    /// call runs: its tool has the permit then.
    pub(super) fn release_tool_permit(&mut self, index: usize) {
        let Some(call) = self.calls.get(index).filter(|call| call.has_unstarted_tool_permit())
        else {
            return;
        };
        if matches!(call.phase, CallPhase::AwaitingPermit { .. }) {
            self.clock.wait_ended();
        }
        self.effects.perform(TurnAction::ReleaseToolPermit(call.key()));
    }

    /// Starts a call that has its permits. Records the intent of a call with effects first.
    pub(super) fn start(&mut self, index: usize) {
        let early = self.stage == TurnStage::AwaitingResponse;
        let Some(call) = self.calls.get_mut(index) else { return };
        call.early = early;
        if call.has_effects() {
            call.phase = CallPhase::Intended;
            let call = call.call.clone();
            let key = call.key;
            let idempotency_key = self.spec.idempotency_key(key);
            let so_far = early.then(|| Box::new(self.response_so_far()));
            let lease = self.grant_lease(index);
            self.record(Record::CallIntended { call, idempotency_key, so_far, lease });
            self.effects.defer(DeferredEffect::StartCall(key));
        } else {
            self.run_call(index);
        }
    }

    /// Runs a call whose intent is stored, or publishes that the client has to run it, unless it was answered
    /// meanwhile.
    pub(super) fn start_intended(&mut self, index: usize) {
        let Some(call) = self.calls.get(index) else { return };
        if matches!(call.phase, CallPhase::Intended) {
            self.run_call(index);
        } else if call.waits_for_client() {
            self.publish_client_call(index);
        }
    }

    fn run_call(&mut self, index: usize) {
        let now = self.clock.now();
        let kept = self.calls.iter().filter(|call| call.is_kept()).count();
        let of = u32::try_from(kept).unwrap_or(u32::MAX);
        let agent = self.agent_start(index);
        // A cancelled call of an agent ends with its child, however long that takes.
        let is_cancelled = agent.as_ref().is_some_and(|agent| agent.is_cancelled);
        let deadline = self.tool_deadline(index, Duration::ZERO).filter(|_| !is_cancelled);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.phase = CallPhase::Running { deadline, wait: None };
        call.total_people_wait = Duration::ZERO;
        call.started_at = Some(now);
        call.run_time_before_resume = Duration::ZERO;
        call.answered_at = None;
        call.report_before_rerun = None;
        call.snapshot_writers = self.variables.writers().clone();
        let event = Event::CallStarted {
            call: call.label(),
            input_summary: call.input_summary(),
            arguments: Arc::clone(&call.call.arguments),
            early: call.early,
            waited: now.saturating_sub(call.sealed_at.unwrap_or(now)),
            queued: call.queue_wait,
            known_calls: of,
        };
        let start = CallStart {
            call: call.call.clone(),
            variables: self.variables.current.clone(),
            state: call.start_state(),
            agent,
        };
        self.clock.tool_started();
        self.emit(event);
        self.effects.perform(TurnAction::Start(start));
    }

    /// Returns the time at which a call exceeds its timeout, if it goes on now and has run for the
    /// time `ran` before. Returns `None` if it has no timeout, or if the time overflows.
    pub(super) fn tool_deadline(&self, index: usize, ran: Duration) -> Option<Duration> {
        self.now().checked_add(self.tool_timeout(index)?.saturating_sub(ran))
    }

    /// Returns the timeout of a call, or `None` if it has none.
    fn tool_timeout(&self, index: usize) -> Option<Duration> {
        let tool = self.calls.get(index)?.tool.as_ref();
        let agent_timeout = self.spec.rules.limits.tool_timeout;
        tool.map_or(agent_timeout, |tool| tool.timeout_or(agent_timeout))
    }

    /// Aborts a running call whose deadline has passed, and answers it, or has it answered when its child has ended.
    pub(super) fn end_timed_out(&mut self, index: usize) {
        let timeout = self.tool_timeout(index).unwrap_or_default();
        let Some(call) = self.calls.get(index) else { return };
        let outcome = model_messages::timed_out(call, timeout);
        if self.cancel_agent(index, &outcome, Some(timeout)) {
            return;
        }
        let Some(call) = self.calls.get(index) else { return };
        self.effects.perform(TurnAction::Abort(call.key()));
        self.end_call(index, outcome);
        self.record_time_limit("tool_timeout", timeout, "timed_out");
    }
}
