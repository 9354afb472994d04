//! The inputs that may have led to a record.

use super::*;

impl TurnReplay<'_, '_> {
    /// Returns the inputs that may lead to the record, the most likely one first.
    pub(super) fn inputs(&self, record: &Record) -> Vec<ReplayInput> {
        let mut inputs = Vec::new();
        match record {
            Record::AttemptFailed { host_stopped: true, .. } => {}
            Record::AttemptFailed { error, .. } => inputs.push(self.broken(error)),
            Record::ResponseEnded { ending, .. } => {
                let reason = self.cancel_reason().filter(|_| *ending == ResponseEnding::Cancelled);
                inputs.extend(reason.map(ReplayInput::Cancel));
                inputs.push(ReplayInput::End(ExchangeEnd::Closed));
            }
            Record::LimitReached { limit, .. } if limit == "run_timeout" => {
                inputs.push(ReplayInput::OutOfTime);
            }
            Record::LimitReached { .. } => {
                inputs.extend((1..=self.remaining_steps.len()).map(ReplayInput::Response));
                inputs.push(ReplayInput::End(ExchangeEnd::Closed));
            }
            Record::CallReported { key, outcome, reads, writes } => {
                let used = VariablesUse {
                    reads: reads.0.keys().cloned().collect(),
                    writes: writes.clone(),
                };
                let completion = ToolCompletion { outcome: outcome.clone(), variables: used };
                inputs.extend(self.tool_outcome(*key, completion));
                inputs.extend(self.up_to_seal(*key));
            }
            Record::CallEnded { call, outcome, notes, .. } => {
                if notes.arguments_changed && !self.changed_after_seal.contains(&call.key) {
                    inputs.push(ReplayInput::ChangeAfterSeal(call.key));
                }
                inputs.extend(self.call_outcome(call.key, outcome));
                inputs.extend(self.up_to_seal(call.key));
            }
            Record::ApprovalGiven { key, verdict: ApprovalVerdict::Withdrawn, .. } => {
                inputs.push(ReplayInput::WithdrawQuestion(*key));
            }
            Record::ApprovalGiven { key, phase, verdict, message, content, authored_by } => {
                let given = VerdictWithMessage { verdict: *verdict, message: message.clone() };
                let (content, author) = (content.clone(), authored_by.clone());
                inputs.push(ReplayInput::Decide(*key, *phase, given, content, author));
            }
            Record::HooksDecided { key, on, decision } => {
                inputs.push(ReplayInput::DecideHooks(Some(*key), *on, Arc::clone(decision)));
                inputs.extend(self.up_to_seal(*key));
            }
            Record::TurnHooksDecided { on, decision, .. } => {
                inputs.push(ReplayInput::DecideHooks(None, *on, Arc::clone(decision)));
            }
            Record::CallIntended { .. } | Record::ApprovalAsked { .. } => {
                if let Record::ApprovalAsked { request } = record
                    && let Some(question) = &request.question
                {
                    inputs.push(ReplayInput::Ask(request.call.key, Arc::clone(question)));
                }
                inputs.extend(self.recording.call_at(self.at).and_then(|key| self.up_to_seal(key)));
                inputs.extend((1..=self.remaining_steps.len()).map(ReplayInput::Response));
            }
            Record::TurnCommitted { .. } | Record::AttemptStarted { .. } => {
                let both = [true, false].map(ReplayInput::ContextReduced);
                inputs.extend(both.into_iter().filter(|_| self.needs_context));
            }
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::InputRemoved { .. }
            | Record::RunStarted { .. }
            | Record::RunReopened { .. }
            | Record::Steered { .. }
            | Record::Instructed { .. }
            | Record::StopAsked { .. }
            | Record::RunEnded { .. }
            | Record::ToolsFrozen { .. }
            | Record::Compacted { .. }
            | Record::SessionClosed => {}
        }
        inputs.extend(self.cancel_reason().map(ReplayInput::Cancel));
        inputs.push(ReplayInput::MakeDurable);
        // A cancellation that is not recorded, because the host stopped before the turn ended.
        let is_end = matches!(record, Record::CallEnded { .. }) && !self.cancelled;
        let unrecorded = is_end && self.recording.cancelled(self.at).is_none();
        inputs.extend(unrecorded.then_some(ReplayInput::Cancel(CancelReason::Shutdown)));
        if self.resumed_at != Some(self.at) {
            let started = self.started_calls();
            inputs.extend([StartedCalls::default(), started].map(ReplayInput::Resume));
        }
        inputs
    }

    fn broken(&self, error: &ProviderError) -> ReplayInput {
        ReplayInput::End(ExchangeEnd::Failed(error.clone()))
    }

    /// Returns the reason of an external cancellation that was not replayed yet.
    fn cancel_reason(&self) -> Option<CancelReason> {
        self.recording.cancelled(self.at).filter(|_| !self.cancelled)
    }

    /// Returns the input of the response up to the seal of this call.
    pub(super) fn up_to_seal(&self, key: CallKey) -> Option<ReplayInput> {
        let is_open = key.attempt == self.turn.attempt();
        let position = self.remaining_steps.iter().position(|step| step.seals == Some(key.index));
        position.filter(|_| is_open).map(|position| ReplayInput::Response(position + 1))
    }

    fn tool_outcome(&self, key: CallKey, completion: ToolCompletion) -> Option<ReplayInput> {
        // Only the machine makes the other outcomes. A tool may time out itself too.
        let is_tool_outcome = match completion.outcome.kind {
            None
            | Some(
                FailureKind::ToolError
                | FailureKind::Panic
                | FailureKind::Killed
                | FailureKind::UnknownTool
                | FailureKind::ExitStatus
                | FailureKind::Sandbox
                | FailureKind::HttpStatus
                | FailureKind::NotSent
                | FailureKind::ToolChanged
                | FailureKind::ServerDown
                | FailureKind::Timeout,
            ) => true,
            Some(
                FailureKind::Cancelled
                | FailureKind::NotStarted
                | FailureKind::InvalidArguments
                | FailureKind::CutOffArguments
                | FailureKind::Malformed
                | FailureKind::Limit
                | FailureKind::HostStopped
                | FailureKind::Rejected
                | FailureKind::ApprovalExpired
                | FailureKind::Hook,
            ) => false,
        };
        let call = self.call(key)?;
        if call.waits_for_client() {
            return is_tool_outcome.then_some(ReplayInput::ClientResult(key, completion.outcome));
        }
        let is_expected = is_tool_outcome || call.waits_for_child_end();
        (call.is_running() && is_expected).then_some(ReplayInput::Outcome(key, completion))
    }

    fn call_outcome(
        &self,
        key: CallKey,
        outcome: &ToolOutcome,
    ) -> impl Iterator<Item = ReplayInput> + use<> {
        let runs = self.call(key).is_some_and(TurnCall::is_running);
        let timed_out = (runs && outcome.kind == Some(FailureKind::Timeout))
            .then(|| ReplayInput::TimedOut(self.recording.timed_out(self.at)));
        let waits_for_client = self.call(key).is_some_and(TurnCall::waits_for_client);
        let unanswered = (waits_for_client && outcome.kind == Some(FailureKind::Timeout))
            .then_some(ReplayInput::Unanswered(key));
        let used = VariablesUse::default();
        let completion = ToolCompletion { outcome: outcome.clone(), variables: used };
        let answered = self.tool_outcome(key, completion);
        timed_out.into_iter().chain(unanswered).chain(answered)
    }

    pub(super) fn call(&self, key: CallKey) -> Option<&TurnCall> {
        self.turn.calls.get(self.turn.position(key)?)
    }
}
