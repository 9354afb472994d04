//! Runs: one at a time, each with its own id, and sums that agree with its turns.

use super::{Invariant, Verifier};
use crate::event::StatsReport;
use crate::record::{Record, TurnEnd};
use crate::types::{Content, Execution, RunEnd, RunError, RunId, Usage};

/// The run that goes on.
pub(super) struct OpenRun<'a> {
    pub(super) id: &'a RunId,
    pub(super) execution: Execution,
    /// Its turns that were committed.
    pub(super) turns: u32,
    pub(super) tool_calls: u32,
    pub(super) usage: Usage,
    /// How its last turn ended, and what its response said.
    pub(super) last: Option<(&'a TurnEnd, &'a str)>,
}

impl<'a> Verifier<'a> {
    pub(super) fn needs_run(&mut self, what: &str) {
        if self.run.is_none() {
            self.breach(Invariant::Run, format!("{what}, and none goes on"));
        }
    }

    pub(super) fn input_queued(&mut self, id: &'a RunId, input: &'a Content) {
        if self.started.contains(&*id.0) || self.queued.insert(&id.0, input).is_some() {
            self.breach(Invariant::Run, format!("{id} is the id of another run"));
        }
    }

    pub(super) fn run_started(&mut self, id: &'a RunId, input: &'a Content, execution: Execution) {
        if let Some(open) = &self.run {
            let what = format!("{id} begins, and {} has not ended", open.id);
            self.breach(Invariant::Run, what);
        }
        if !self.started.insert(&id.0) {
            self.breach(Invariant::Run, format!("{id} begins a second time"));
        }
        if self.queued.get(&*id.0).is_some_and(|queued| *queued != input) {
            self.breach(Invariant::Run, format!("{id} waited with another input"));
        }
        let (turns, tool_calls, usage, last) = (0, 0, Usage::default(), None);
        self.run = Some(OpenRun { id, execution, turns, tool_calls, usage, last });
    }

    /// What a user says stands behind the turn that goes on, which may have left no record yet.
    pub(super) fn steered(&mut self, after_turn: u32) {
        self.needs_run("a user spoke to a run");
        if after_turn != self.last_turn && !self.may_begin(after_turn) {
            let what = format!("what the user said stands behind turn {after_turn}, which is none");
            self.breach(Invariant::Turn, what);
        }
    }

    pub(super) fn run_ended(&mut self, record: &'a Record) {
        let Record::RunEnded { run_id, end, text, error, stats, waiting } = record else { return };
        let behind = self.queued.keys().filter(|id| !self.started.contains(*id)).count();
        if behind as u64 != *waiting {
            let what = format!("{run_id} ends with {behind} inputs behind it, and says {waiting}");
            self.breach(Invariant::Run, what);
        }
        let Some(run) = self.run.take() else {
            self.breach(Invariant::Run, format!("{run_id} ends, and no run goes on"));
            return;
        };
        if run.id != run_id {
            let what = format!("{run_id} ends, and it is {} that goes on", run.id);
            self.breach(Invariant::Run, what);
        }
        self.gave_up = is_given_up(*end, error.as_ref());
        if let Some(turn) = self.turn.take().filter(|_| !self.gave_up) {
            let what = format!("{run_id} ends, and its turn {} was not committed", turn.number);
            self.breach(Invariant::Run, what);
        }
        if error.is_some() != (*end == RunEnd::Failed) {
            self.breach(Invariant::Run, "a run that failed says why, and no other does");
        }
        if !self.gave_up {
            self.end_agrees(&run, *end, text);
        }
        self.sums_agree(&run, *stats);
    }

    /// A run ends as its last turn says.
    fn end_agrees(&mut self, run: &OpenRun<'a>, end: RunEnd, text: &str) {
        let Some((last, said)) = run.last else {
            // One that waited when its host was shut down.
            if end == RunEnd::Interrupted {
                return;
            }
            self.breach(Invariant::Run, "it ends without a turn");
            return;
        };
        let fits = match end {
            RunEnd::Answered | RunEnd::MaxTurns | RunEnd::AllToolsFailed | RunEnd::LoopDetected => {
                *last == TurnEnd::Finished
            }
            // A limit may be reached between two turns, and a stop may come there.
            RunEnd::Stopped | RunEnd::Budget => {
                matches!(last, TurnEnd::Finished | TurnEnd::Cancelled(_))
            }
            RunEnd::TimedOut | RunEnd::Interrupted => matches!(last, TurnEnd::Cancelled(_)),
            RunEnd::Refused => *last == TurnEnd::Refused,
            RunEnd::Failed => matches!(last, TurnEnd::Failed(_)),
        };
        if !fits {
            let what = format!("it ends as {}, and its last turn ended otherwise", end.as_str());
            self.breach(Invariant::Run, what);
        }
        if matches!(end, RunEnd::Answered | RunEnd::MaxTurns) && text != said {
            self.breach(Invariant::Run, "its answer is not what the last response said");
        }
    }

    fn sums_agree(&mut self, run: &OpenRun<'a>, stats: StatsReport) {
        // A turn that was given up was begun, and never committed.
        let turns = run.turns..=run.turns + u32::from(self.gave_up);
        if !turns.contains(&stats.turns) {
            let what = format!("it counts {} turns, and had {}", stats.turns, run.turns);
            self.breach(Invariant::Sums, what);
        }
        if stats.tool_calls != run.tool_calls {
            let what = format!("it counts {} calls, and had {}", stats.tool_calls, run.tool_calls);
            self.breach(Invariant::Sums, what);
        }
        let counted = (stats.input_tokens, stats.output_tokens);
        if counted != (run.usage.input_tokens, run.usage.output_tokens) {
            let what = format!(
                "it counts {} and {} tokens, and used {} and {}",
                counted.0, counted.1, run.usage.input_tokens, run.usage.output_tokens
            );
            self.breach(Invariant::Sums, what);
        }
    }
}

/// Whether it was ended because its actors died too often: then a turn may be left open.
fn is_given_up(end: RunEnd, error: Option<&RunError>) -> bool {
    end == RunEnd::Failed
        && error
            .is_some_and(|error| error.code == "internal_error" || error.code == "journal_failed")
}
