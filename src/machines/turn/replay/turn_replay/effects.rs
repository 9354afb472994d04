//! Performs the effects of the turn that is replayed. Its records are compared with the recorded ones.

use super::*;
use crate::context::{ReferenceValues, add_value, references_in, substitute_references};
use crate::turn::references::with_variables;
use callsheet_values::types::{ReferenceError, ToolCall};

impl TurnReplay<'_, '_> {
    /// Performs the machine's effects until it has none. Reports records as stored, and supplies permits and values
    /// of references, as far as the recording shows that they had arrived.
    pub(super) fn perform_effects(&mut self) -> Result<(), Mismatch> {
        loop {
            while let Some(effect) = self.turn.poll() {
                self.perform(effect)?;
            }
            if self.is_interrupted() || self.committed.is_some() {
                return Ok(());
            }
            let durable = self.count_durable();
            let granted =
                self.permit_requests.iter().position(|key| self.recording_shows_permit(*key));
            let read = self
                .reference_requests
                .iter()
                .position(|(key, _)| self.recording_shows_values(*key));
            if durable > self.records_durable {
                self.records_durable = durable;
                self.turn.handle_recorded(Duration::ZERO, durable);
            } else if let Some(read) = read {
                let (key, references) = self.reference_requests.remove(read);
                self.supply_reference_values(key, references);
            } else if let Some(granted) = granted {
                let key = self.permit_requests.remove(granted);
                self.turn.handle_tool_permit(Duration::ZERO, key, PermitReply::Granted);
            } else {
                return Ok(());
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Result<(), Mismatch> {
        match effect {
            Effect::Record(record) => {
                self.records_made += 1;
                self.compare(record)?;
            }
            Effect::Perform(TurnAction::Request(plan)) => {
                let bytes_max = self.spec.rules.limits.max_arguments_bytes;
                let (turn, attempt) = (self.spec.number, plan.attempt);
                self.remaining_steps =
                    response::steps(self.recording, self.at, turn, attempt, bytes_max);
                // Earlier versions kept each empty or refused answer.
                let attempt_record = self.recording.attempt(self.at, turn, attempt);
                if attempt_record.is_some_and(|attempt| attempt.response.is_some()) {
                    self.turn.retry.keep_answer();
                }
                let reused = response::reused(self.recording, (self.first, self.at), turn, attempt);
                let reused = reused
                    .into_iter()
                    .map(|(call, outcome)| (self.final_dedup_key(call), outcome.clone()));
                let reused: Vec<_> = reused.collect();
                self.turn.reusable_results.extend(reused);
            }
            Effect::Perform(TurnAction::ReduceContext(_)) => self.needs_context = true,
            Effect::Perform(TurnAction::Disconnect) => self.remaining_steps.clear(),
            Effect::Perform(TurnAction::ReadReferences { key, references, .. }) => {
                self.reference_requests.push((key, references));
            }
            Effect::Perform(TurnAction::RequestToolPermit { key, .. }) => {
                self.permit_requests.push(key)
            }
            Effect::Perform(TurnAction::ReleaseToolPermit(key)) => {
                self.permit_requests.retain(|request| *request != key)
            }
            Effect::Perform(TurnAction::Commit(record)) => {
                // After a fork, the commit belongs to the other session.
                self.committed = Some(record).filter(|_| !self.is_forked);
            }
            Effect::Perform(
                TurnAction::Start(_)
                | TurnAction::Answer { .. }
                | TurnAction::Abort(_)
                | TurnAction::AskHooks(_)
                | TurnAction::ChangeRequest(_)
                | TurnAction::SetToolsAside { .. }
                | TurnAction::WithdrawHooks(_),
            )
            | Effect::Emit(_) => {}
        }
        Ok(())
    }

    /// Compares a record that the turn makes now with the next recorded one.
    fn compare(&mut self, now: Record) -> Result<(), Mismatch> {
        self.is_forked |= self.recording.next_fork(self.at).is_some();
        if self.is_interrupted() {
            return Ok(());
        }
        self.at = self.recording.next_made(self.at);
        let Some(recorded) = self.recording.record(self.at) else {
            self.recording_ended = true;
            return Ok(());
        };
        if !same(recorded, &now) && !self.accept_quotation(recorded, &now) {
            let state = String::new();
            return Err(Mismatch { index: self.at, now: Some(Box::new(now)), state });
        }
        self.at += 1;
        Ok(())
    }

    /// Accepts a recorded answer to invalid arguments that quotes a part of their text. The journal
    /// holds the parsed arguments, so the text cannot be quoted again.
    fn accept_quotation(&mut self, recorded: &Record, now: &Record) -> bool {
        let (
            Record::CallEnded { call, outcome: recorded_outcome, .. },
            Record::CallEnded { call: of, outcome, .. },
        ) = (recorded, now)
        else {
            return false;
        };
        let head = |outcome: &ToolOutcome| {
            let content = &outcome.content;
            content.split_once(" Received: ").map(|(head, _)| head.to_owned())
        };
        let is_quoted = recorded_outcome.kind == Some(FailureKind::InvalidArguments)
            && recorded_outcome.content.ends_with('…')
            && (call, recorded_outcome.kind, head(recorded_outcome))
                == (of, outcome.kind, head(outcome));
        let index = self.turn.position(call.key);
        let Some(ended) =
            index.and_then(|index| self.turn.calls.get_mut(index)).filter(|_| is_quoted)
        else {
            return false;
        };
        if let CallPhase::Ended { outcome, .. } = &mut ended.phase {
            outcome.clone_from(recorded_outcome);
        }
        true
    }

    /// Returns how many of the machine's records count as durable at this point of the recording: all, or those
    /// before the first intent of a call that the recording does not show as started. The call starts when its intent
    /// is durable.
    fn count_durable(&self) -> u64 {
        let waiting = self.turn.effects.deferred().find_map(|(records, deferred)| match deferred {
            DeferredEffect::StartCall(key) if !self.recording_shows_start(*key) => Some(*records),
            DeferredEffect::StartCall(_) | DeferredEffect::Queue(_) => None,
        });
        // `records` counts the intent too.
        waiting.map_or(self.records_made, |records| records.saturating_sub(1))
    }

    /// Returns whether, by the recording, the call had started at this point. If the variables that it had read are
    /// recorded, it starts once their last writers are the recorded ones. Otherwise a call that waits to run again
    /// has not started, and for any other its outcome shows it. A call without an outcome counts as started.
    fn recording_shows_start(&self, key: CallKey) -> bool {
        let reads = self.recording.next_reads(self.at, key);
        if reads.is_none() && self.call(key).is_some_and(|call| call.report_before_rerun.is_some())
        {
            return false;
        }
        if let Some(reads) = reads {
            let writers = self.turn.variables.writers();
            return reads.0.iter().all(|(name, writer)| writers.get(name) == writer.as_ref());
        }
        self.recording.started(self.at, key).unwrap_or(true)
    }

    /// Returns whether, by the recording, the values of the references of a call had arrived at this point: the call,
    /// or one that was admitted after it, had gone on.
    fn recording_shows_values(&self, key: CallKey) -> bool {
        self.recording.has_gone_on_from(self.at, key)
    }

    /// Gives a call the values of its references, as the records hold them.
    pub(super) fn supply_reference_values(
        &mut self,
        key: CallKey,
        references: BTreeSet<Reference>,
    ) {
        let values = self.read_values(references);
        self.turn.handle_references(Duration::ZERO, key, values);
    }

    fn read_values(
        &self,
        references: BTreeSet<Reference>,
    ) -> Result<ReferenceValues, ReferenceError> {
        let bytes_max = self.spec.rules.limits.max_arguments_bytes;
        let (mut values, mut bytes) = (ReferenceValues::new(), 0);
        for reference in references {
            let value = self.recording.value_before(self.at, &reference)?;
            add_value(&mut values, &mut bytes, (reference, value), bytes_max)?;
        }
        Ok(values)
    }

    /// Returns the identity by which a result is reused: that of the call after its references are replaced and hooks
    /// have changed its arguments.
    fn final_dedup_key(&self, call: &ToolCall) -> String {
        let tool = self.spec.tool(&call.name).cloned();
        let mut restored = TurnCall::restored(call.clone(), tool);
        if restored.has_references(&self.spec.rules) {
            let (variables, others): (BTreeSet<_>, _) = references_in(&call.arguments)
                .into_iter()
                .partition(|reference| matches!(reference, Reference::Variable(_)));
            let values = self.read_values(others).unwrap_or_default();
            let values = with_variables(values, variables, &self.spec.variables);
            let bytes_max = self.spec.rules.limits.max_arguments_bytes;
            if let Ok(arguments) = substitute_references(&call.arguments, &values, bytes_max) {
                restored.set_final_arguments(arguments.into());
            }
        }
        if let Some(arguments) = self.recording.changed_arguments(self.first, call.key) {
            restored.set_final_arguments(Arc::clone(arguments));
        }
        restored.dedup_key
    }

    /// Returns whether, by the recording, the call had its permit at this point: its intent is the next record, or it
    /// had started.
    fn recording_shows_permit(&self, key: CallKey) -> bool {
        if self.recording.has_later_intent(self.at, key) {
            let next = self.recording.call_at(self.recording.next_made(self.at));
            return next == Some(key);
        }
        self.recording_shows_start(key)
    }
}
