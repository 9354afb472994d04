//! The records that are replayed, with lookups of the later records of a call, a turn or a run.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::context::recorded_value;
use crate::turn::CancelReason;
use crate::turn::effect::TurnEnd;
use callsheet_values::record::{JournalEntry, Record, ResponseEnding};
use callsheet_values::transcript::{
    AttemptResponse, AttemptTranscript, CallTranscript, RecordLocation, RecordedOutcome,
    RecordedReport, RecordedRunEnd, RunTranscript, Transcript, TurnTranscript,
};
use callsheet_values::types::{
    COMPACT_AT, CallKey, FailureKind, HookPoint, ReadSet, Reference, ReferenceError,
    ReferencedValue,
};

/// The records of a session, read only. An `index` is that of a record.
#[derive(Debug)]
pub struct Recording<'a> {
    entries: &'a [JournalEntry],
    transcript: Transcript<'a>,
    /// The role of each record.
    roles: Vec<RecordRole>,
}

/// The role of a record in a replay.
#[derive(Clone, Copy, Debug)]
enum RecordRole {
    /// An input of the session, such as a stop, a list of tools or a compaction: it may stand between the records of
    /// a turn.
    Input,
    /// A record about a call.
    Call(CallKey),
    /// A record about a call that no message holds, or a limit that such a call or a void attempt has reached. It is
    /// not replayed, because the arguments of the call are not recorded.
    Skipped,
    /// Any other record that a machine makes.
    Made,
}

impl<'a> Recording<'a> {
    /// Reads the records of a session.
    pub fn new(entries: &'a [JournalEntry]) -> Self {
        let transcript = Transcript::read(entries);
        let roles = vec![RecordRole::Made; entries.len()];
        let mut recording = Self { entries, transcript, roles };
        recording.set_roles();
        recording
    }

    fn set_roles(&mut self) {
        let Self { transcript, roles, .. } = self;
        let mut set = |at: RecordLocation, role| {
            roles.get_mut(at.index).into_iter().for_each(|slot| *slot = role);
        };
        for queued in &transcript.queued {
            set(queued.at, RecordRole::Input);
            queued.removed.into_iter().for_each(|at| set(at, RecordRole::Input));
        }
        for (at, _) in &transcript.tool_lists {
            set(*at, RecordRole::Input);
        }
        for compaction in &transcript.compactions {
            set(compaction.at, RecordRole::Input);
        }
        for fork in &transcript.forks {
            set(fork.at, RecordRole::Input);
        }
        if let Some(at) = transcript.closed {
            set(at, RecordRole::Input);
        }
        for run in &transcript.runs {
            let steers = run.steers.iter().map(|steer| steer.at);
            let inputs = steers.chain(run.stops.iter().map(|stop| stop.at));
            let summaries = run.limits.iter().filter(|limit| limit.limit == COMPACT_AT);
            let inputs = inputs.chain(summaries.map(|limit| limit.at));
            let inputs = inputs.chain(run.reopenings.iter().map(|reopening| reopening.at));
            inputs.for_each(|at| set(at, RecordRole::Input));
            for attempt in run.turns.iter().flat_map(|turn| &turn.attempts) {
                for (key, call) in &attempt.calls {
                    let is_kept = attempt.response.is_some_and(|response| response.keeps(*key));
                    let role = if is_kept { RecordRole::Call(*key) } else { RecordRole::Skipped };
                    call.locations().for_each(|at| set(at, role));
                }
            }
        }
        for run in &transcript.runs {
            let attempts = run.turns.iter().flat_map(|turn| &turn.attempts);
            let void: Vec<_> = attempts.filter(|attempt| attempt.is_void()).collect();
            for limit in &run.limits {
                let before = limit.at.index.checked_sub(1);
                let outcome = before.and_then(|at| outcome_at(run, at));
                // A limit is recorded right after the outcome of a call, or within an attempt.
                let is_skipped = match outcome.zip(before) {
                    Some((_, before)) => matches!(roles.get(before), Some(RecordRole::Skipped)),
                    None => void.iter().any(|attempt| is_within(limit.at, attempt)),
                };
                if is_skipped && let Some(role) = roles.get_mut(limit.at.index) {
                    *role = RecordRole::Skipped;
                }
            }
        }
    }

    /// Returns the transcript of the records.
    pub fn transcript(&self) -> &Transcript<'a> {
        &self.transcript
    }

    /// Returns the entry at this index.
    pub fn entry(&self, index: usize) -> Option<&'a JournalEntry> {
        self.entries.get(index)
    }

    /// Returns the record at this index.
    pub fn record(&self, index: usize) -> Option<&'a Record> {
        self.entry(index).map(|entry| &entry.record)
    }

    /// Returns whether the record is an input of the session.
    pub fn is_input(&self, index: usize) -> bool {
        matches!(self.roles.get(index), Some(RecordRole::Input))
    }

    /// Returns the call of a record about a call.
    pub(super) fn call_at(&self, index: usize) -> Option<CallKey> {
        match self.roles.get(index)? {
            RecordRole::Call(key) => Some(*key),
            RecordRole::Input | RecordRole::Skipped | RecordRole::Made => None,
        }
    }

    /// Returns the index of the next record that a machine has made.
    pub fn next_made(&self, index: usize) -> usize {
        let mut roles = self.roles.iter().skip(index);
        let is_other = |role: &RecordRole| matches!(role, RecordRole::Input | RecordRole::Skipped);
        let next = roles.position(|role| !is_other(role));
        next.map_or(self.entries.len().max(index), |skipped| index + skipped)
    }

    /// Returns the index of the next fork of the session, if no record that a machine has made
    /// stands before it.
    pub(super) fn next_fork(&self, index: usize) -> Option<usize> {
        let mut inputs = index..self.next_made(index);
        inputs.find(|index| matches!(self.record(*index), Some(Record::SessionForked { .. })))
    }

    /// Returns the run that is open at a record, or starts next.
    pub fn run(&self, index: usize) -> Option<&RunTranscript<'a>> {
        let is_over = |run: &RunTranscript<'_>| run.end.is_some_and(|end| end.at.index < index);
        self.transcript.runs.get(self.transcript.runs.partition_point(is_over))
    }

    /// Returns the end of a run that is recorded at an index.
    pub fn run_end(&self, index: usize) -> Option<RecordedRunEnd<'a>> {
        self.run(index)?.ends().find(|end| end.at.index == index)
    }

    /// Returns the turn that is open at a record, or starts next in its run.
    pub fn turn(&self, index: usize) -> Option<&TurnTranscript<'a>> {
        let turns = &self.run(index)?.turns;
        let is_over =
            |turn: &TurnTranscript<'_>| turn.commit.is_some_and(|commit| commit.at.index < index);
        turns.get(turns.partition_point(is_over))
    }

    pub(super) fn attempt(
        &self,
        index: usize,
        turn: u32,
        attempt: u32,
    ) -> Option<&AttemptTranscript<'a>> {
        let turn = self.turn(index).filter(|open| open.number == turn)?;
        turn.attempts.iter().find(|known| known.number == attempt)
    }

    fn call(&self, index: usize, key: CallKey) -> Option<&CallTranscript<'a>> {
        self.attempt(index, key.turn, key.attempt)?.calls.get(&key)
    }

    /// Returns whether the turn may have been cancelled for this reason when it began. If it ended otherwise, the
    /// reason came later: the session records a stop while the turn begins.
    pub(super) fn may_begin_cancelled(&self, index: usize, reason: CancelReason) -> bool {
        let commit = self.turn(index).and_then(|turn| turn.commit);
        commit.is_none_or(|commit| *commit.end == TurnEnd::Cancelled(reason))
    }

    /// Returns the reason for which the turn was cancelled, by its commit. `None` for a budget: the machine itself
    /// finds that it is used up.
    pub(super) fn cancelled(&self, index: usize) -> Option<CancelReason> {
        match self.turn(index)?.commit?.end {
            TurnEnd::Cancelled(reason) => {
                Some(*reason).filter(|reason| *reason != CancelReason::Budget)
            }
            TurnEnd::Finished
            | TurnEnd::Refused
            | TurnEnd::RefusedByHook(_)
            | TurnEnd::Failed(_) => None,
        }
    }

    /// Returns the variables that a call had read in its next report.
    pub(super) fn next_reads(&self, index: usize, key: CallKey) -> Option<&'a ReadSet> {
        let report =
            self.call(index, key)?.reports.iter().find(|report| report.at.index >= index)?;
        Some(report.reads)
    }

    /// Returns the arguments that hooks have put in place of those of a call.
    pub(super) fn changed_arguments(&self, index: usize, key: CallKey) -> Option<&'a Arc<Value>> {
        self.call(index, key)?.hook_decision(HookPoint::BeforeCall)?.arguments.as_ref()
    }

    /// Returns whether a call started. Returns `None` if no outcome of it follows.
    pub(super) fn started(&self, index: usize, key: CallKey) -> Option<bool> {
        let mut outcomes = self.call(index, key)?.outcomes.iter();
        let outcome = outcomes.find(|outcome| outcome.at.index >= index && !outcome.amended)?;
        Some(outcome.started_ms.is_some())
    }

    /// Returns the outcomes of the open turn's calls in the order of the records.
    pub(super) fn outcomes(&self, index: usize) -> Vec<RecordedOutcome<'a>> {
        let attempts = self.turn(index).into_iter().flat_map(|turn| &turn.attempts);
        let outcomes = attempts.flat_map(|attempt| attempt.calls.values());
        let mut outcomes: Vec<_> =
            outcomes.flat_map(|call| call.outcomes.iter().copied()).collect();
        outcomes.sort_by_key(|outcome| outcome.at.index);
        outcomes
    }

    /// Returns whether the intent of a call is still to come.
    pub(super) fn has_later_intent(&self, index: usize, key: CallKey) -> bool {
        let call = self.call(index, key);
        call.is_some_and(|call| call.intents.iter().any(|intent| intent.at.index >= index))
    }

    /// Returns whether a call, or a later one of its response, did something that needs its admission. Calls
    /// are admitted in call order.
    pub(super) fn has_gone_on_from(&self, index: usize, key: CallKey) -> bool {
        let Some(attempt) = self.attempt(index, key.turn, key.attempt) else { return true };
        // Hooks are asked about a call before the calls before it are admitted.
        let is_asked = attempt.calls.get(&key).is_some_and(|call| !call.hooks.is_empty());
        is_asked
            || attempt.calls.range(key..).any(|(_, call)| {
                let is_admitted = |ended: &RecordedOutcome<'_>| {
                    let without_admission = matches!(
                        ended.outcome.kind,
                        Some(FailureKind::NotStarted | FailureKind::Malformed)
                    );
                    ended.started_ms.is_some() || !without_admission
                };
                !(call.intents.is_empty() && call.requests.is_empty() && call.reports.is_empty())
                    || call.outcomes.iter().any(is_admitted)
            })
    }

    /// Returns the value of a reference from the records before this one.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn value_before(
        &self,
        index: usize,
        reference: &Reference,
    ) -> Result<ReferencedValue, ReferenceError> {
        if let Reference::Answer(run) = reference {
            let mut ends = self.transcript.runs.iter().filter_map(|run| run.end);
            if !ends.any(|end| end.id == run && end.at.index < index) {
                return Err(ReferenceError::NoSuchRun(reference.clone()));
            }
        }
        recorded_value(&self.transcript, reference)
    }

    /// Returns the calls that the machine has timed out together, from this record on. It records the limit after
    /// the outcome; a tool that times out itself reaches no limit.
    pub(super) fn timed_out(&self, index: usize) -> Vec<CallKey> {
        let (mut keys, mut ended_now) = (Vec::new(), Vec::new());
        let Some(run) = self.run(index) else { return keys };
        for index in index.. {
            match outcome_at(run, index) {
                Some(ended) if ended.outcome.kind == Some(FailureKind::Timeout) => {
                    ended_now.push(ended.label.key);
                }
                Some(_) => break,
                None if limit_at(run, index) == Some("tool_timeout") => keys.append(&mut ended_now),
                None => break,
            }
        }
        keys
    }

    /// Returns whether `run_timeout` was reached together with the timeouts of calls, if any, from this record on.
    pub(super) fn runs_out_of_time(&self, index: usize) -> bool {
        let Some(run) = self.run(index) else { return false };
        let is_skipped = |index| {
            outcome_at(run, index).is_some() || limit_at(run, index) == Some("tool_timeout")
        };
        let next = (index..self.entries.len()).find(|index| !is_skipped(*index));
        next.and_then(|index| limit_at(run, index)) == Some("run_timeout")
    }

    /// Returns the calls of a response whose records show that they were sealed before its end.
    pub(super) fn early(&self, attempt: &AttemptTranscript<'a>) -> BTreeSet<u32> {
        let Some(response) = &attempt.response else { return BTreeSet::new() };
        let is_complete = response.ending == ResponseEnding::Complete;
        let kept = response.message.calls.iter().map(|call| call.key);
        let is_early = |key: &CallKey| {
            attempt.calls.get(key).is_some_and(|call| {
                let mut outcomes = call.outcomes.iter();
                call.locations().any(|at| at.is_before(response.at))
                    || outcomes.any(|ended| {
                        let ran = ended.notes.duplicate_of.is_some() || ended.started_ms.is_some();
                        ended.early || ended.notes.arguments_changed || (!is_complete && ran)
                    })
                    || call
                        .reports
                        .iter()
                        .any(|report| missed_write(attempt, response, *key, report))
            })
        };
        kept.filter(is_early).map(|key| key.index).collect()
    }
}

fn is_within(at: RecordLocation, attempt: &AttemptTranscript<'_>) -> bool {
    attempt.start.is_some_and(|start| start.at.is_before(at))
        && attempt.failure.is_some_and(|failure| at.is_before(failure.at))
}

/// Returns the outcome that is recorded at an index.
fn outcome_at<'t, 'a>(run: &'t RunTranscript<'a>, index: usize) -> Option<&'t RecordedOutcome<'a>> {
    let turn =
        run.turns.partition_point(|turn| turn.commit.is_some_and(|commit| commit.at.index < index));
    let calls = run.turns.get(turn)?.attempts.iter().flat_map(|attempt| attempt.calls.values());
    let mut outcomes = calls.flat_map(|call| &call.outcomes);
    outcomes.find(|outcome| outcome.at.index == index)
}

/// Returns the limit that is recorded at an index.
fn limit_at<'a>(run: &RunTranscript<'a>, index: usize) -> Option<&'a str> {
    run.limits.iter().find(|limit| limit.at.index == index).map(|limit| limit.limit)
}

/// Returns whether a call did not see a write that an earlier call had made before the response ended.
/// Such a call started before that write.
fn missed_write(
    attempt: &AttemptTranscript<'_>,
    response: &AttemptResponse<'_>,
    key: CallKey,
    report: &RecordedReport<'_>,
) -> bool {
    // A call that saw any write of the turn started after the response.
    if report.reads.0.values().any(Option::is_some) {
        return false;
    }
    let earlier = attempt.calls.iter().filter(|(other, _)| other.index < key.index);
    let mut reports = earlier.flat_map(|(_, call)| &call.reports);
    reports.any(|other| {
        let mut names = other.writes.0.keys();
        other.at.is_before(response.at) && names.any(|name| report.reads.0.contains_key(name))
    })
}
