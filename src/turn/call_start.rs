//! The start of a call that the schedule allows: its permits, its intent and its `tool_timeout`.
//!
//! A tool with `max_concurrent`, `rate` or a server of the session needs a permit of the host. A call with effects starts after its
//! intent is durable, so that a crash cannot hide that it may have run.
//!
//! Tool timeout: the `timeout` of the tool, or else `tool_timeout` of the agent. It counts from the
//! start of the call; waits for a ticket, a permit, an approval or the answer to a question do not count. At the deadline
//! [`end_timed_out`](Turn::end_timed_out) answers the call as timed out and aborts the tool. The tool
//! supervisor then cancels the tool, and kills it after `cancel_grace`.

use std::time::Duration;

use super::call::CallPhase;
use super::effect::{CallStart, DeferredEffect, PermitReply, TurnAction};
use super::{Turn, TurnStage, model_messages};
use crate::event::{Event, WaitingFor};
use crate::record::Record;

impl Turn {
    /// Gives the call a permit of the turn. Starts it, or requests the permit of its tool first.
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
        self.clock.call_queued();
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
                self.clock.call_dequeued();
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
            self.clock.call_dequeued();
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
            let lease = self.lease(index);
            self.record(Record::CallIntended { call, idempotency_key, so_far, lease });
            self.effects.defer(DeferredEffect::StartCall(key));
        } else {
            self.run_call(index);
        }
    }

    /// Runs a call whose intent is durable, or publishes that the client has to run it, unless it was answered in
    /// the meantime.
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
        call.snapshot = self.variables.writers().clone();
        let event = Event::CallStarted {
            call: call.label(),
            input_summary: call.input_summary(),
            early: call.early,
            waited: now.saturating_sub(call.sealed_at.unwrap_or(now)),
            queued: call.queue_wait,
            of,
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
        let tool = self.calls.get(index)?.tool.as_ref();
        let own = self.spec.rules.limits.tool_timeout;
        let timeout = tool.map_or(own, |tool| tool.timeout_or(own))?;
        self.now().checked_add(timeout.saturating_sub(ran))
    }

    /// Aborts a running call whose deadline has passed, and answers it.
    pub(super) fn end_timed_out(&mut self, index: usize, deadline: Duration) {
        let Some(call) = self.calls.get(index) else { return };
        let started = call.started_at.unwrap_or(deadline) + call.total_people_wait;
        let timeout = deadline.saturating_sub(started) + call.run_time_before_resume;
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
