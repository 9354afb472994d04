//! Calls that the client runs: a session or a run has declared their tools, and the host does not have them.
//!
//! Such a call is admitted, approved and scheduled like any other. When it may start, the request to the client
//! is recorded, and published once the record is stored. The call then waits for its result like one that waits
//! for an approval: it holds no permit, `run_timeout` is paused if the turn waits for nothing else, and the session
//! may hibernate. The result passes the hooks and the approval of results. Without a result within the tool's
//! `approval_timeout` the call times out.
//!
//! After a resume the client is not asked again by another record: the call still waits. The host cannot know whether
//! the client has run it, and the client answers by the same id.

use std::time::Duration;

use super::approval::approval_request;
use super::call::CallPhase;
use super::effect::{ApprovalError, DeferredEffect};
use super::{Turn, TurnStage, model_messages};
use callsheet_values::event::{Event, WaitingFor};
use callsheet_values::record::Record;
use callsheet_values::types::{CallKey, ToolOutcome, WaitPhase, WriteSet};

impl Turn {
    /// Handles the result of a call that the client has run.
    ///
    /// # Errors
    /// If the result of the call is not awaited. The turn is unchanged then.
    pub fn handle_client_result(
        &mut self,
        now: Duration,
        key: CallKey,
        outcome: ToolOutcome,
    ) -> Result<(), ApprovalError> {
        self.clock.advance(now);
        let awaited = self.position(key).and_then(|index| {
            let call = self.calls.get_mut(index)?;
            call.waits_for_client().then_some(())?;
            call.started_at.get_or_insert(now);
            call.answered_at = Some(now);
            Some(index)
        });
        let index = awaited.ok_or(ApprovalError::NoSuchApproval)?;
        self.ask_hooks_or_review(index, outcome, WriteSet::default());
        self.advance();
        Ok(())
    }

    /// Hands a call to the client: records that, and publishes it once the record is stored. If it was recorded
    /// before the turn was resumed, publishes it at once.
    pub(super) fn hand_to_client(&mut self, index: usize) {
        let early = self.stage == TurnStage::AwaitingResponse;
        let until = self.approval_deadline(index, WaitPhase::Client);
        let Some(call) = self.calls.get_mut(index) else { return };
        let key = call.key();
        let request = (key, WaitPhase::Client);
        let passed = self.approvals.requested_before_resume.remove(&request);
        call.phase = CallPhase::AwaitingClient { until };
        call.run_time_before_resume = passed.unwrap_or_default();
        call.answered_at = None;
        call.early |= early;
        call.notes.by_client = true;
        if passed.is_some() {
            self.publish_client_call(index);
            return;
        }
        let request = Box::new(approval_request(call, WaitPhase::Client));
        self.record(Record::ApprovalAsked { request });
        self.effects.defer(DeferredEffect::StartCall(key));
    }

    /// Publishes that the client has to run a call, with its arguments.
    pub(super) fn publish_client_call(&mut self, index: usize) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(index) else { return };
        call.started_at = Some(now);
        call.waiting_for = Some(WaitingFor::Client);
        let event = Event::CallWaiting {
            call: call.label(),
            waiting_for: WaitingFor::Client,
            input_summary: call.input_summary(),
            arguments: call.call.arguments.clone(),
            by_client: true,
        };
        self.emit(event);
    }

    /// Answers a call whose result the client has not sent in time.
    pub(super) fn end_unanswered(&mut self, index: usize) {
        let Some(call) = self.calls.get(index) else { return };
        let timeout = call.tool.as_ref().map_or(Duration::ZERO, |tool| tool.approval_timeout);
        let outcome = model_messages::unanswered(call, timeout);
        self.end_call(index, outcome);
        self.record_time_limit("approval_timeout", timeout, "timed_out");
    }
}
