//! Checks of runs: each has an id of its own, starts with its queued input, and has totals that agree
//! with its turns.

use std::collections::{BTreeMap, BTreeSet};

use super::Verifier;
use callsheet_machines::session::{EMPTY_ANSWER, OUTPUT_INVALID};
use callsheet_values::record::TurnEnd;
use callsheet_values::transcript::{
    Invariant, RecordLocation, RecordedInput, RecordedRunEnd, RunReopening, RunTranscript,
    TurnCommit, TurnTranscript,
};
use callsheet_values::types::{FinishKind, RunEnd, Usage};

/// The runs that have started, and the inputs that wait.
#[derive(Default)]
struct RunQueue<'a> {
    /// The runs that have started, and those whose inputs were taken back.
    started: BTreeSet<&'a str>,
    waiting: BTreeMap<&'a str, RecordedInput<'a>>,
    /// The numbers of queued inputs and of forks that were read.
    read: (usize, usize),
}

impl<'a> Verifier<'_, 'a> {
    pub(super) fn check_runs(&mut self) {
        let transcript = self.transcript;
        let mut queue = RunQueue::default();
        for run in &transcript.runs {
            if let Some(start) = run.start {
                self.queue_until(start.at, &mut queue);
                let (at, id) = (start.at, start.id);
                self.require(queue.started.insert(&id.0), at, Invariant::Run, || {
                    format!("{id} starts a second time")
                });
                let queued = queue.waiting.remove(&*id.0);
                let is_same = queued.is_none_or(|queued| queued.input == start.input);
                self.require(is_same, at, Invariant::Run, || {
                    format!("{id} starts with another input than it was queued with")
                });
            }
            for end in run.ends() {
                self.queue_until(end.at, &mut queue);
                let waiting = queue.waiting.len() as u64;
                self.require(waiting == end.waiting, end.at, Invariant::Run, || {
                    let (id, counted) = (end.id, end.waiting);
                    format!("the end of {id} counts {counted} waiting inputs, and {waiting} wait")
                });
                self.check_run_end(run, &end);
            }
        }
        self.queue_until(
            RecordLocation { index: usize::MAX, ..RecordLocation::default() },
            &mut queue,
        );
    }

    /// Queues the inputs before a record. Inputs that wait in another session do not wait in its
    /// fork.
    fn queue_until(&mut self, at: RecordLocation, queue: &mut RunQueue<'a>) {
        let transcript = self.transcript;
        loop {
            let input = transcript.queued.get(queue.read.0).filter(|input| input.at.is_before(at));
            let fork = transcript.forks.get(queue.read.1).filter(|fork| fork.at.is_before(at));
            match (input, fork) {
                (input, Some(fork)) if input.is_none_or(|input| fork.at.is_before(input.at)) => {
                    queue.waiting.clear();
                    queue.read.1 += 1;
                }
                (Some(input), _) => {
                    let id = &*input.run.0;
                    let is_new =
                        !queue.started.contains(id) && queue.waiting.insert(id, *input).is_none();
                    self.require(is_new, input.at, Invariant::Run, || {
                        format!("a queued input has the id {id} of another run")
                    });
                    queue.read.0 += 1;
                }
                (None, _) => break,
            }
        }
        let RunQueue { started, waiting, .. } = queue;
        waiting.retain(|id, input| {
            let is_removed = input.removed.is_some_and(|removed| removed.is_before(at));
            !(is_removed && started.insert(*id))
        });
    }

    fn check_run_end(&mut self, run: &RunTranscript<'a>, end: &RecordedRunEnd<'a>) {
        let at = end.at;
        if let Some(id) = run.id() {
            self.require(id == end.id, at, Invariant::Run, || {
                format!("{} ends, but {id} is open", end.id)
            });
        }
        let last = committed_until(run, end).last();
        let by_hook = last.is_some_and(|(_, last)| matches!(last.end, TurnEnd::RefusedByHook(_)));
        let needs_error = end.end == RunEnd::Failed || (end.end == RunEnd::Refused && by_hook);
        // Earlier versions recorded no error for a refusal of the model.
        let may_have_error = needs_error || end.end == RunEnd::Refused;
        let has_error = end.error.is_some();
        let is_valid = if has_error { may_have_error } else { !needs_error };
        self.require(is_valid, at, Invariant::Run, || {
            let what = if needs_error {
                "failed or was refused by a hook, and has no error"
            } else {
                "has an error, and neither failed nor was refused"
            };
            format!("{} {what}", end.id)
        });
        if !end.is_given_up() {
            let open = run.turns.last().filter(|turn| turn.commit.is_none());
            // The open turn of a run that was reopened follows its earlier ends.
            if let Some(open) = open.filter(|_| run.end.is_some_and(|last| last.at == at)) {
                self.require(false, at, Invariant::Run, || {
                    format!("{} ends before its turn {} is committed", end.id, open.number)
                });
            }
            self.check_end_of_last_turn(run, end);
        }
        self.check_sums(run, end);
    }

    /// Checks that the end of a run follows from the end of its last turn.
    fn check_end_of_last_turn(&mut self, run: &RunTranscript<'a>, end: &RecordedRunEnd<'a>) {
        let Some((turn, commit)) = committed_until(run, end).last() else {
            // The run was queued when its host shut down.
            self.require(end.end == RunEnd::Interrupted, end.at, Invariant::Run, || {
                format!("{} ends as {} without a turn", end.id, end.end.as_str())
            });
            return;
        };
        let last = commit.end;
        let fits = match end.end {
            RunEnd::Answered | RunEnd::MaxTurns | RunEnd::AllToolsFailed | RunEnd::LoopDetected => {
                *last == TurnEnd::Finished
            }
            // A limit can be reached between two turns, and so can a stop.
            RunEnd::Stopped | RunEnd::Budget => {
                matches!(last, TurnEnd::Finished | TurnEnd::Cancelled(_))
            }
            RunEnd::TimedOut | RunEnd::Interrupted => matches!(last, TurnEnd::Cancelled(_)),
            RunEnd::Refused => matches!(last, TurnEnd::Refused | TurnEnd::RefusedByHook(_)),
            RunEnd::Failed
                if end.error.is_some_and(|error| {
                    [OUTPUT_INVALID, EMPTY_ANSWER].contains(&error.code.as_str())
                }) =>
            {
                *last == TurnEnd::Finished
            }
            RunEnd::Failed => matches!(last, TurnEnd::Failed(_)),
        };
        self.require(fits, end.at, Invariant::Run, || {
            format!("{} ends as {}, and its last turn ended otherwise", end.id, end.end.as_str())
        });
        let answer = turn.response().map_or("", |response| &response.message.text);
        let is_answer = matches!(end.end, RunEnd::Answered | RunEnd::MaxTurns);
        // A typed answer may be the arguments of a call, and the text that of an earlier response.
        let has_own_text = end.output.is_some() && answer.trim().is_empty();
        let is_same = end.text == answer || has_own_text;
        self.require(!is_answer || is_same, end.at, Invariant::Run, || {
            format!("the answer of {} is not the text of its last response", end.id)
        });
    }

    fn check_sums(&mut self, run: &RunTranscript<'a>, end: &RecordedRunEnd<'a>) {
        let (at, id, stats) = (end.at, end.id, end.stats);
        let (mut calls, mut usage) = (0, Usage::default());
        for (turn, _) in committed_until(run, end) {
            calls += u32::try_from(turn.kept_calls().len()).unwrap_or(u32::MAX);
            usage += turn.usage();
        }
        // Requests for summaries belong to the run in which they were made.
        let is_within = |of: RecordLocation| {
            let is_open = |reopening: &RunReopening<'_>| {
                of.is_before(reopening.interrupted.at) || reopening.at.is_before(of)
            };
            of.is_before(at)
                && run.start.is_none_or(|start| start.at.is_before(of))
                && run.reopenings.iter().all(is_open)
        };
        let compactions = self.transcript.compactions.iter();
        for compaction in compactions.filter(|compaction| is_within(compaction.at)) {
            usage += compaction.usage;
        }
        for reached in run.limits.iter().filter(|reached| is_within(reached.at)) {
            usage += reached.usage;
        }
        let turns = self.counted_turns(run, end);
        // A run that the session gave up also counts the turn that had begun or was about to begin.
        let allowed = turns..=turns + u32::from(end.is_given_up());
        self.require(allowed.contains(&stats.turns), at, Invariant::Sums, || {
            format!("{id} counts {} turns, and had {turns}", stats.turns)
        });
        self.require(stats.tool_calls == calls, at, Invariant::Sums, || {
            format!("{id} counts {} calls, and had {calls}", stats.tool_calls)
        });
        let counted = (stats.input_tokens, stats.output_tokens);
        let used = (usage.input_tokens, usage.output_tokens);
        self.require(counted == used, at, Invariant::Sums, || {
            let ((input, output), (used_input, used_output)) = (counted, used);
            format!(
                "{id} counts {input} input and {output} output tokens, and used {used_input} and \
                 {used_output}"
            )
        });
    }

    /// Returns the number of committed turns that count in `max_turns`: all but a turn of initial
    /// calls, the requests for a final answer, and the turns that were interrupted before the run was reopened.
    fn counted_turns(&self, run: &RunTranscript<'a>, end: &RecordedRunEnd<'a>) -> u32 {
        let (mut counted, mut previous) = (0, None);
        for (turn, commit) in committed_until(run, end) {
            let is_repeated = |reopening: &RunReopening<'_>| {
                commit.at.is_before(reopening.at) && reopening.at.is_before(end.at)
            };
            if matches!(commit.end, TurnEnd::Cancelled(_)) && run.reopenings.iter().any(is_repeated)
            {
                continue;
            }
            let is_initial = self.opens_with_calls && turn.number == 1;
            let is_final_answer = previous.is_some_and(|(previous, previous_commit)| {
                requests_final_answer(run, previous, previous_commit, commit.at)
            });
            counted += u32::from(!is_initial && !is_final_answer);
            previous = Some((turn, commit));
        }
        counted
    }
}

/// Returns the turns that were committed before an end of the run.
fn committed_until<'r, 'a>(
    run: &'r RunTranscript<'a>,
    end: &RecordedRunEnd<'a>,
) -> impl Iterator<Item = (&'r TurnTranscript<'a>, TurnCommit<'a>)> {
    let at = end.at;
    run.committed().filter(move |(_, commit)| commit.at.is_before(at))
}

/// Returns true if the turn that follows `turn` and is committed at `until` is a request for a
/// final answer: `max_turns` was reached, the host asks for it or for a call, or the answer was empty, its service
/// had not paused it, and no input followed it.
fn requests_final_answer(
    run: &RunTranscript<'_>,
    turn: &TurnTranscript<'_>,
    commit: TurnCommit<'_>,
    until: RecordLocation,
) -> bool {
    let is_out_of_turns = run.limits.iter().any(|reached| {
        let is_between = commit.at.is_before(reached.at) && reached.at.is_before(until);
        is_between && reached.limit == "max_turns" && reached.action == "final_answer"
    });
    let message = turn.response().map(|response| response.message);
    let is_paused = commit.summary.finish_reason.as_ref().is_some_and(|finish| {
        finish.kind == FinishKind::Pause && message.is_some_and(|message| !message.is_blank())
    });
    let is_steered = run.steers.iter().any(|steer| steer.follows_turn == turn.number);
    let is_empty = turn.kept_calls().is_empty() && message.is_none_or(|m| m.text.is_empty());
    let mut instructions = run.instructions.iter();
    let is_instructed = instructions
        .any(|instruction| commit.at.is_before(instruction.at) && instruction.at.is_before(until));
    is_out_of_turns || is_instructed || (is_empty && !is_paused && !is_steered)
}
