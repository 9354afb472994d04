//! Reads records one after the other and adds each to its run, turn, attempt or call.

use super::{
    AttemptFailure, AttemptResponse, AttemptStart, AttemptTranscript, Breach, CallIntent,
    CallTranscript, Invariant, ReachedLimit, RecordLocation, RecordedApprovalRequest,
    RecordedCompaction, RecordedDecision, RecordedHooks, RecordedInput, RecordedInstruction,
    RecordedOutcome, RecordedReport, RecordedRunEnd, RunReopening, RunStart, RunTranscript,
    SessionFork, SessionOpening, SteeredInput, StopRequest, Transcript, TurnCommit, TurnTranscript,
};
use crate::record::{JournalEntry, Record};
use crate::types::{COMPACT_AT, CallKey, RunEnd, RunId, millis};

/// The longest time by which a clock may be set back, in milliseconds: a day.
pub const CLOCK_SETBACK_MAX_MS: u64 = 24 * 60 * 60 * 1000;

impl<'a> Transcript<'a> {
    /// Reads these entries.
    #[must_use]
    pub fn read(entries: impl IntoIterator<Item = &'a JournalEntry>) -> Self {
        let mut transcript = Self::default();
        entries.into_iter().for_each(|entry| transcript.push(entry));
        transcript
    }

    /// Reads records whose numbers and times are not known.
    #[must_use]
    pub fn from_records(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut transcript = Self::default();
        for (record, index) in records.into_iter().zip(0_usize..) {
            let seq = crate::types::Seq(index as u64 + 1);
            transcript.add(RecordLocation { index, seq, time: 0 }, record);
        }
        transcript
    }

    /// Reads the next entry.
    pub fn push(&mut self, entry: &'a JournalEntry) {
        let index = self.last.map_or(0, |last| last.index + 1);
        let at = RecordLocation { index, seq: entry.seq, time: entry.time };
        let first = *self.first.get_or_insert(entry.seq);
        let expected = if index == 0 { 1 } else { first.0 + index as u64 };
        if entry.seq.0 != expected {
            self.breach(at, Invariant::Numbering, format!("its number should be {expected}"));
        }
        let setback = self.latest_time.saturating_sub(entry.time);
        if setback > CLOCK_SETBACK_MAX_MS {
            let message =
                format!("its time is {} s before that of an earlier record", setback / 1000);
            self.breach(at, Invariant::Time, message);
        }
        self.latest_time = self.latest_time.max(entry.time);
        if index == 0 && !matches!(entry.record, Record::SessionOpened { .. }) {
            self.breach(at, Invariant::Session, "no record before it opens the session");
        }
        if self.closed.is_some() {
            self.breach(at, Invariant::Session, "it follows the end of the session");
        }
        if entry.displayed_bytes > 0 && self.open_run().is_none() {
            self.breach(at, Invariant::Run, "it counts shown text, and no run is open");
        }
        self.add(at, &entry.record);
    }

    fn add(&mut self, at: RecordLocation, record: &'a Record) {
        self.last = Some(at);
        match record {
            Record::SessionOpened { agent, messages, metadata, parent, client_tools } => {
                let (parent, client_tools) = (parent.as_ref(), client_tools.as_ref());
                let opening =
                    SessionOpening { at, agent, messages, metadata, parent, client_tools };
                self.add_opening(opening);
            }
            Record::SessionForked { from, at: last_copied } => {
                self.forks.push(SessionFork { at, from, last_copied: *last_copied });
            }
            Record::InputQueued { run_id: run, input, overrides, .. } => {
                self.queued.push(RecordedInput { at, run, input, overrides, removed: None });
            }
            Record::InputRemoved { run_id, .. } => self.remove_input(at, run_id),
            Record::RunStarted { run_id, input, overrides, model, execution, metadata, .. } => {
                let (id, execution) = (run_id, *execution);
                let start = RunStart { at, id, input, overrides, metadata, model, execution };
                self.add_run(start);
            }
            Record::AttemptStarted {
                turn,
                attempt,
                model,
                streamed,
                reason,
                wait_ms,
                prompt: _,
            } => {
                let (streamed, reason, wait_ms) = (*streamed, reason.as_deref(), *wait_ms);
                let start = AttemptStart { at, model, streamed, reason, wait_ms };
                self.add_attempt(*turn, *attempt, start);
            }
            Record::AttemptFailed { turn, attempt, error, kept, usage, host_stopped, voided } => {
                let (kept, usage, host_stopped) = (*kept, *usage, *host_stopped);
                let voided = voided.as_deref();
                let failure = AttemptFailure { at, error, kept, usage, host_stopped, voided };
                self.add_failure(*turn, *attempt, failure);
            }
            Record::ResponseEnded {
                turn,
                attempt,
                ending,
                message,
                finish_reason,
                usage,
                dropped_calls,
                displayed_segments,
            } => {
                let response = AttemptResponse {
                    at,
                    ending: *ending,
                    message,
                    finish_reason: finish_reason.as_ref(),
                    usage: *usage,
                    dropped_calls,
                    displayed_segments,
                };
                self.add_response(*turn, *attempt, response);
            }
            Record::CallIntended { call, idempotency_key, so_far, lease } => {
                let (partial, lease) = (so_far.as_deref(), *lease);
                if let Some(known) = self.open_call(at, call.key, Invariant::Intent) {
                    known.intents.push(CallIntent { at, call, idempotency_key, partial, lease });
                }
            }
            Record::CallReported { key, outcome, reads, writes } => {
                if let Some(call) = self.open_call(at, *key, Invariant::Outcome) {
                    call.reports.push(RecordedReport { at, outcome, reads, writes });
                }
            }
            Record::ApprovalAsked { request } => {
                if let Some(call) = self.open_call(at, request.call.key, Invariant::Approval) {
                    call.requests.push(RecordedApprovalRequest { at, request });
                }
            }
            Record::ApprovalGiven { key, phase, verdict, message, content, .. } => {
                let (phase, verdict, message) = (*phase, *verdict, message.as_deref());
                let content = content.as_ref();
                if let Some(call) = self.open_call(at, *key, Invariant::Approval) {
                    call.decisions.push(RecordedDecision { at, phase, verdict, message, content });
                }
            }
            Record::HooksDecided { key, on, decision } => {
                if let Some(call) = self.open_call(at, *key, Invariant::Hook) {
                    call.hooks.push(RecordedHooks { at, on: *on, decision });
                }
            }
            Record::TurnHooksDecided { turn, on, decision } => {
                if let Some(turn) = self.open_or_begin_turn(at, *turn) {
                    turn.hooks.push(RecordedHooks { at, on: *on, decision });
                }
            }
            Record::CallEnded {
                call: label,
                outcome,
                notes,
                writes,
                started,
                wait,
                duration,
                early,
                amended,
            } => {
                if let Some(call) = self.call_entry(at, label.key) {
                    call.outcomes.push(RecordedOutcome {
                        at,
                        label,
                        outcome,
                        notes,
                        writes,
                        started_ms: started.map(millis),
                        wait_ms: millis(*wait),
                        duration_ms: millis(*duration),
                        early: *early,
                        amended: *amended,
                    });
                }
            }
            Record::TurnCommitted { turn, end, summary } => {
                self.add_commit(*turn, TurnCommit { at, end, summary });
            }
            Record::Steered { input, follows_turn, request: _, authored_by: _ } => {
                self.add_steer(SteeredInput { at, input, follows_turn: *follows_turn });
            }
            Record::StopAsked { mode, .. } => {
                if let Some(run) = self.open_run_for(at) {
                    run.stops.push(StopRequest { at, mode: *mode });
                }
            }
            Record::LimitReached { limit, value, maximum, action, reason: _, note, usage } => {
                let (value, maximum, note, usage) = (*value, *maximum, note.as_deref(), *usage);
                self.add_limit(ReachedLimit { at, limit, value, maximum, action, note, usage });
            }
            Record::Instructed { request, text } => {
                if let Some(run) = self.open_run_for(at) {
                    run.instructions.push(RecordedInstruction { at, request: *request, text });
                }
            }
            Record::RunEnded {
                run_id: id,
                end,
                text,
                error,
                output,
                into: _,
                finish_reason: _,
                stats,
                waiting,
            } => {
                let (end, error, waiting) = (*end, error.as_ref(), *waiting);
                let output = output.as_deref();
                let run_end = RecordedRunEnd { at, id, end, text, output, error, stats, waiting };
                self.add_run_end(run_end);
            }
            Record::RunReopened { run_id, authored_by: _ } => self.reopen_run(at, run_id),
            Record::ToolsFrozen { sha256 } => self.tool_lists.push((at, sha256)),
            Record::Compacted { change, upto, tokens_before, tokens_after, usage } => {
                let (tokens_before, tokens_after) = (*tokens_before, *tokens_after);
                let usage = *usage;
                let compaction =
                    RecordedCompaction { at, change, tokens_before, tokens_after, usage };
                self.add_compaction(*upto, compaction);
            }
            Record::SessionClosed => {
                self.closed.get_or_insert(at);
            }
        }
    }

    fn breach(&mut self, at: RecordLocation, invariant: Invariant, message: impl Into<String>) {
        self.breaches.push(Breach { seq: at.seq, invariant, message: message.into() });
    }

    fn add_opening(&mut self, opening: SessionOpening<'a>) {
        if opening.at.index > 0 {
            self.breach(opening.at, Invariant::Session, "the session is opened again");
        } else {
            self.opening = Some(opening);
        }
    }

    fn remove_input(&mut self, at: RecordLocation, run: &RunId) {
        let starts = self.runs.iter().any(|of| of.start.is_some_and(|start| start.id == run));
        let waits = |input: &&mut RecordedInput<'_>| input.run == run && input.removed.is_none();
        match self.queued.iter_mut().find(waits).filter(|_| !starts) {
            Some(input) => input.removed = Some(at),
            None => {
                let message = format!("it takes back the input of {run}, which is not queued");
                self.breach(at, Invariant::Run, message);
            }
        }
    }

    fn add_run(&mut self, start: RunStart<'a>) {
        if self.open_run().is_some() {
            let message = format!("{} starts before the end of the run before", start.id);
            self.breach(start.at, Invariant::Run, message);
        }
        self.runs.push(RunTranscript { start: Some(start), ..RunTranscript::default() });
    }

    fn add_run_end(&mut self, end: RecordedRunEnd<'a>) {
        if self.open_run().is_none() {
            let message = format!("{} ends, and no run is open", end.id);
            self.breach(end.at, Invariant::Run, message);
        } else if let Some(run) = self.runs.last_mut() {
            run.end = Some(end);
        }
    }

    fn reopen_run(&mut self, at: RecordLocation, id: &RunId) {
        let interrupted = |end: &RecordedRunEnd<'_>| end.id == id && end.end == RunEnd::Interrupted;
        let last = self.runs.last_mut();
        match last.and_then(|run| Some((run.end.take_if(|end| interrupted(end))?, run))) {
            Some((interrupted, run)) => run.reopenings.push(RunReopening { at, interrupted }),
            None => {
                let message =
                    format!("{id} is reopened, and is not the last run or not interrupted");
                self.breach(at, Invariant::Run, message);
            }
        }
    }

    fn add_steer(&mut self, steer: SteeredInput<'a>) {
        let SteeredInput { at, follows_turn, .. } = steer;
        if follows_turn != self.last_turn && !self.may_begin(follows_turn) {
            let message = format!("the input follows turn {follows_turn}, which does not exist");
            self.breach(at, Invariant::Turn, message);
        }
        if let Some(run) = self.open_run_for(at) {
            run.steers.push(steer);
        }
    }

    fn add_limit(&mut self, reached: ReachedLimit<'a>) {
        // A summary that a client has requested may fail after the end of its run.
        let run = match reached.limit == COMPACT_AT && !self.runs.is_empty() {
            true => self.runs.last_mut(),
            false => self.open_run_for(reached.at),
        };
        if let Some(run) = run {
            run.limits.push(reached);
        }
    }

    /// Adds a change of the messages up to the turn `upto`.
    fn add_compaction(&mut self, upto: u32, compaction: RecordedCompaction<'a>) {
        if upto > self.last_turn {
            let message = format!("it replaces parts of turn {upto}, which does not exist");
            self.breach(compaction.at, Invariant::Turn, message);
        }
        self.compactions.push(compaction);
    }

    /// Returns the open run, to which a record belongs. If no run is open, adds one without a start.
    fn open_run_for(&mut self, at: RecordLocation) -> Option<&mut RunTranscript<'a>> {
        if self.open_run().is_none() {
            self.breach(at, Invariant::Run, "it belongs to a run, and no run is open");
            self.runs.push(RunTranscript::default());
        }
        self.runs.last_mut()
    }

    /// Returns whether a turn of this number may be the next. A run that was given up may have
    /// begun a turn that left no record. The next turn then follows the last one at a distance of 2.
    fn may_begin(&self, turn: u32) -> bool {
        let run = self.runs.iter().rfind(|run| run.end.is_some() || !run.turns.is_empty());
        let gave_up = run.and_then(|run| run.end).is_some_and(|end| end.is_given_up());
        let skipped = turn.checked_sub(self.last_turn);
        skipped == Some(1) || (gave_up && skipped == Some(2))
    }

    /// Returns the turn with this number: the open turn, or one that begins with this record. Returns `None` if a
    /// later turn is open.
    fn open_or_begin_turn(
        &mut self,
        at: RecordLocation,
        number: u32,
    ) -> Option<&mut TurnTranscript<'a>> {
        let open = self.open_turn().map(|turn| turn.number);
        let is_next = self.may_begin(number);
        self.open_run_for(at)?;
        if let Some(open) = open.filter(|open| *open != number) {
            let message = format!("it belongs to turn {number}, and turn {open} is open");
            self.breach(at, Invariant::Turn, message);
            if number < open {
                return None;
            }
        } else if open.is_none() && !is_next {
            let message = format!("turn {number} follows turn {}", self.last_turn);
            self.breach(at, Invariant::Turn, message);
        }
        let run = self.runs.last_mut()?;
        if open != Some(number) {
            self.last_turn = number;
            run.turns.push(TurnTranscript { number, ..TurnTranscript::default() });
        }
        run.turns.last_mut()
    }

    fn add_attempt(&mut self, turn: u32, number: u32, start: AttemptStart<'a>) {
        let at = start.at;
        let Some(open) = self.open_or_begin_turn(at, turn) else { return };
        let last = open.attempts.last();
        let expected = last.map_or(1, |last| last.number.saturating_add(1));
        let is_answered = last.is_some_and(|last| last.response.is_some());
        let is_open = last.is_some_and(|last| !last.is_void());
        let start = Some(start);
        open.attempts.push(AttemptTranscript { number, start, ..AttemptTranscript::default() });
        if number != expected {
            let message = format!("it starts attempt {number}, and {expected} is the next");
            self.breach(at, Invariant::Turn, message);
        }
        if is_answered {
            self.breach(at, Invariant::Turn, "an attempt starts after the turn's response");
        } else if is_open {
            self.breach(at, Invariant::Turn, "an attempt starts before the last one failed");
        }
    }

    /// Returns the last attempt of a turn if it has this number. The turn is open, or begins with this record.
    fn attempt(
        &mut self,
        at: RecordLocation,
        turn: u32,
        number: u32,
    ) -> Option<&mut AttemptTranscript<'a>> {
        let open = self.open_or_begin_turn(at, turn)?.attempts.last().map_or(0, |last| last.number);
        if open != number {
            let message = format!("it belongs to attempt {number}, and attempt {open} is open");
            self.breach(at, Invariant::Turn, message);
            return None;
        }
        // The turn is open now. It is looked up again, because `breach` borrowed the transcript.
        self.open_or_begin_turn(at, turn)?.attempts.last_mut()
    }

    fn add_failure(&mut self, turn: u32, number: u32, failure: AttemptFailure<'a>) {
        let Some(attempt) = self.attempt(failure.at, turn, number) else { return };
        if attempt.failure.is_some() || attempt.response.is_some() {
            self.breach(failure.at, Invariant::Turn, "the attempt fails after it has ended");
        } else {
            attempt.failure = Some(failure);
        }
    }

    /// Adds a response. A response without an attempt contains the initial calls of the session.
    fn add_response(&mut self, turn: u32, number: u32, response: AttemptResponse<'a>) {
        let Some(open) = self.open_or_begin_turn(response.at, turn) else { return };
        if open.attempts.is_empty() {
            open.attempts.push(AttemptTranscript { number, ..AttemptTranscript::default() });
        }
        let Some(attempt) = self.attempt(response.at, turn, number) else { return };
        if attempt.response.is_some() {
            self.breach(response.at, Invariant::Response, "the turn has a second response");
        } else {
            attempt.response = Some(response);
        }
    }

    fn add_commit(&mut self, number: u32, commit: TurnCommit<'a>) {
        let at = commit.at;
        if self.open_turn().is_none() {
            let message = format!("turn {number} is committed, and no turn is open");
            self.breach(at, Invariant::Commit, message);
        }
        if let Some(turn) = self.open_or_begin_turn(at, number) {
            turn.commit = Some(commit);
        }
    }

    /// Returns the call that a record concerns. Adds it if this is its first record. Returns `None` and adds a breach
    /// unless the call belongs to the last attempt of the open turn, the attempt is not void, and its response, if it
    /// has ended, keeps the call.
    fn call_entry(&mut self, at: RecordLocation, key: CallKey) -> Option<&mut CallTranscript<'a>> {
        let attempt = self.open_turn().map(|turn| (turn.number, turn.attempt()));
        let problem = match attempt {
            None => Some((Invariant::Turn, format!("it concerns {key}, and no turn is open"))),
            Some((turn, None)) => {
                let message = format!("it concerns {key}, and turn {turn} has no attempt");
                Some((Invariant::Turn, message))
            }
            Some((turn, Some(open))) if (key.turn, key.attempt) != (turn, open.number) => {
                let attempt = open.number;
                let message =
                    format!("it concerns {key}, and attempt {attempt} of turn {turn} is open");
                Some((Invariant::Turn, message))
            }
            Some((_, Some(open))) if open.is_void() => {
                Some((Invariant::Turn, format!("it concerns {key}, whose attempt is void")))
            }
            Some((_, Some(open))) if open.response.is_some_and(|kept| !kept.keeps(key)) => {
                Some((Invariant::Outcome, format!("it concerns {key}, which is not kept")))
            }
            Some((_, Some(_))) => None,
        };
        if let Some((invariant, message)) = problem {
            self.breach(at, invariant, message);
            return None;
        }
        let attempt = self.runs.last_mut()?.turns.last_mut()?.attempts.last_mut()?;
        Some(attempt.calls.entry(key).or_default())
    }

    /// Returns the call that a record concerns. Returns `None` and adds a breach if the call has its outcome.
    fn open_call(
        &mut self,
        at: RecordLocation,
        key: CallKey,
        invariant: Invariant,
    ) -> Option<&mut CallTranscript<'a>> {
        if !self.call_entry(at, key)?.outcomes.is_empty() {
            self.breach(at, invariant, format!("{key} has its outcome already"));
            return None;
        }
        let attempt = self.runs.last_mut()?.turns.last_mut()?.attempts.last_mut()?;
        attempt.calls.get_mut(&key)
    }
}
