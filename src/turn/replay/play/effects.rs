//! The effects of the machine: records are compared, and the rest is performed.

use super::*;

impl Play<'_, '_> {
    /// Performs the machine's effects until it has none.
    pub(super) fn drain(&mut self) -> Result<(), Mismatch> {
        loop {
            while let Some(effect) = self.turn.poll() {
                self.perform(effect)?;
            }
            if self.over || self.committed.is_some() {
                return Ok(());
            }
            let stored = self.durable_count();
            let free = self.permit_requests.iter().position(|key| self.has_permit(*key));
            if stored > self.stored {
                self.stored = stored;
                self.turn.handle_recorded(Duration::ZERO, stored);
            } else if let Some(free) = free {
                let key = self.permit_requests.remove(free);
                self.turn.handle_tool_permit(Duration::ZERO, key, PermitReply::Granted);
            } else {
                return Ok(());
            }
        }
    }

    fn perform(&mut self, effect: Effect) -> Result<(), Mismatch> {
        match effect {
            Effect::Record(record) => {
                self.asked += 1;
                self.expect(record)?;
            }
            Effect::Perform(TurnAction::Request(plan)) => {
                let bytes_max = self.spec.rules.limits.max_arguments_bytes;
                let (turn, attempt) = (self.spec.number, plan.attempt);
                self.steps = response::steps(self.recording, self.at, turn, attempt, bytes_max);
                let reused = response::reused(self.recording, (self.from, self.at), turn, attempt);
                let reused = reused
                    .into_iter()
                    .map(|(call, outcome)| (call::identity(call), outcome.clone()));
                self.turn.reusable_results.extend(reused);
            }
            Effect::Perform(TurnAction::Disconnect) => self.steps.clear(),
            Effect::Perform(TurnAction::RequestToolPermit { key, .. }) => {
                self.permit_requests.push(key)
            }
            Effect::Perform(TurnAction::ReleaseToolPermit(key)) => {
                self.permit_requests.retain(|request| *request != key)
            }
            Effect::Perform(TurnAction::Commit(record)) => self.committed = Some(record),
            Effect::Perform(TurnAction::Start(_) | TurnAction::Abort(_)) | Effect::Emit(_) => {}
        }
        Ok(())
    }

    /// Compares a record of the machine with the next recorded one.
    fn expect(&mut self, now: Record) -> Result<(), Mismatch> {
        if self.over {
            return Ok(());
        }
        self.at = self.recording.next_made(self.at);
        let Some(recorded) = self.recording.record(self.at) else {
            self.over = true;
            return Ok(());
        };
        if !same(recorded, &now) && !self.accept_quotation(recorded, &now) {
            let state = String::new();
            return Err(Mismatch { at: self.at, now: Some(Box::new(now)), state });
        }
        self.at += 1;
        Ok(())
    }

    /// Accepts a recorded answer to invalid arguments that quotes a part of their text. The journal
    /// holds the parsed arguments, so that the text cannot be quoted again.
    fn accept_quotation(&mut self, recorded: &Record, now: &Record) -> bool {
        let (
            Record::CallEnded { call, outcome: then, .. },
            Record::CallEnded { call: of, outcome, .. },
        ) = (recorded, now)
        else {
            return false;
        };
        let head = |outcome: &ToolOutcome| {
            let content = &outcome.content;
            content.split_once(" Received: ").map(|(head, _)| head.to_owned())
        };
        let is_quoted = then.kind == Some(FailureKind::InvalidArguments)
            && then.content.ends_with('…')
            && (call, then.kind, head(then)) == (of, outcome.kind, head(outcome));
        let place = self.turn.position(call.key);
        let Some(ended) = place.and_then(|at| self.turn.calls.get_mut(at)).filter(|_| is_quoted)
        else {
            return false;
        };
        if let CallPhase::Ended { outcome, .. } = &mut ended.phase {
            outcome.clone_from(then);
        }
        true
    }

    /// The number of records that are durable: all, up to the intent of a call that had not started
    /// yet.
    fn durable_count(&self) -> u64 {
        let waits = self.turn.effects.deferred().find_map(|(needs, held)| match held {
            DeferredEffect::StartCall(key) if !self.may_begin(*key) => Some(*needs),
            DeferredEffect::StartCall(_) | DeferredEffect::Queue(_) => None,
        });
        waits.map_or(self.asked, |needs| needs.saturating_sub(1))
    }

    /// Returns whether the call has started by now. The variables that it had read show when, and
    /// its outcome shows if it started at all.
    fn may_begin(&self, key: CallKey) -> bool {
        let reads = self.recording.next_reads(self.at, key);
        if reads.is_none() && self.call(key).is_some_and(|call| call.report_before_rerun.is_some())
        {
            return false;
        }
        if let Some(reads) = reads {
            let writers = self.turn.variables.writers();
            return reads.0.iter().all(|(name, seen)| writers.get(name) == seen.as_ref());
        }
        self.recording.started(self.at, key).unwrap_or(true)
    }

    fn has_permit(&self, key: CallKey) -> bool {
        if self.recording.is_intended(self.at, key) {
            let next = self.recording.call_at(self.recording.next_made(self.at));
            return next == Some(key);
        }
        self.may_begin(key)
    }
}
