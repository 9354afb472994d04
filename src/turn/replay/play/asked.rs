//! What the machine asks for, compared and done.

use super::*;

impl Play<'_, '_> {
    /// Takes what the machine asks for, and does what can be done at once.
    pub(super) fn drain(&mut self) -> Result<(), Mismatch> {
        loop {
            while let Some(effect) = self.turn.poll() {
                self.perform(effect)?;
            }
            if self.over || self.committed.is_some() {
                return Ok(());
            }
            let stored = self.storable();
            let free = self.wanting.iter().position(|key| self.has_a_place(*key));
            if stored > self.stored {
                self.stored = stored;
                self.turn.handle_recorded(Duration::ZERO, stored);
            } else if let Some(free) = free {
                let key = self.wanting.remove(free);
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
                self.steps = response::steps(self.tape, self.at, turn, attempt, bytes_max);
                let reused = response::reused(self.tape, (self.from, self.at), turn, attempt);
                let reused = reused
                    .into_iter()
                    .map(|(call, outcome)| (call::identity(call), outcome.clone()));
                self.turn.reusable.extend(reused);
            }
            Effect::Perform(TurnAction::Disconnect) => self.steps.clear(),
            Effect::Perform(TurnAction::RequestToolPermit { key, .. }) => self.wanting.push(key),
            Effect::Perform(TurnAction::ReleaseToolPermit(key)) => {
                self.wanting.retain(|wanting| *wanting != key)
            }
            Effect::Perform(TurnAction::Commit(record)) => self.committed = Some(record),
            Effect::Perform(TurnAction::Start(_) | TurnAction::Abort(_)) | Effect::Emit(_) => {}
        }
        Ok(())
    }

    /// Compares what the machine asks to be recorded with what was.
    fn expect(&mut self, now: Record) -> Result<(), Mismatch> {
        if self.over {
            return Ok(());
        }
        self.at = self.tape.next_asked(self.at);
        let Some(recorded) = self.tape.record(self.at) else {
            self.over = true;
            return Ok(());
        };
        if !same(recorded, &now) && !self.told_loosely(recorded, &now) {
            let state = String::new();
            return Err(Mismatch { at: self.at, now: Some(Box::new(now)), state });
        }
        self.at += 1;
        Ok(())
    }

    /// A call whose arguments do not fit is answered with a quotation of their text as it came.
    /// The journal holds their meaning; where the text is too long to be quoted whole, the answer
    /// stands as it was recorded.
    fn told_loosely(&mut self, recorded: &Record, now: &Record) -> bool {
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

    /// How many records are durable: all, up to the intent of a call that had not begun yet.
    fn storable(&self) -> u64 {
        let waits = self.turn.effects.deferred().find_map(|(needs, held)| match held {
            DeferredEffect::StartCall(key) if !self.may_begin(*key) => Some(*needs),
            DeferredEffect::StartCall(_) | DeferredEffect::Queue(_) => None,
        });
        waits.map_or(self.asked, |needs| needs.saturating_sub(1))
    }

    /// Whether the call has begun by now: what it had read of the variables tells when, and its
    /// end whether at all.
    fn may_begin(&self, key: CallKey) -> bool {
        let reads = self.tape.next_reads(self.at, key);
        if reads.is_none() && self.call(key).is_some_and(|call| call.outdated.is_some()) {
            return false;
        }
        if let Some(reads) = reads {
            let writers = self.turn.visible.writers();
            return reads.0.iter().all(|(name, seen)| writers.get(name) == seen.as_ref());
        }
        self.tape.started(self.at, key).unwrap_or(true)
    }

    fn has_a_place(&self, key: CallKey) -> bool {
        if self.tape.is_intended(self.at, key) {
            let next = self.tape.record(self.tape.next_asked(self.at)).and_then(call_of);
            return next == Some(key);
        }
        self.may_begin(key)
    }
}
