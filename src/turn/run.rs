//! Turn after turn: how many there may be, and why a run ended.

use super::effect::{CancelReason, TurnEnd, TurnRecord};
use crate::config::Limits;
use crate::types::{RunEnd, RunError, ToolStatus};

/// What a run says when turn after turn failed.
const ALL_FAILED: &str = "All tool calls failed. Please check the error messages and try again.";

/// A run: from one user input to its end. Told of every turn that is over, it says what is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    max_turns: Option<u32>,
    max_failed_turns: Option<u32>,
    /// Turns that were begun, last requests not counted; 0 while calls run that nobody asked the
    /// model for.
    turns: u32,
    /// Whether it began with such calls.
    seeded: bool,
    last_requests: u32,
    /// Turns up to now, without a gap, in which every call failed.
    failed_turns: u32,
    stop_after_turn: bool,
    /// Set while the last request is made: what the run ends with, whatever comes of it.
    last_request: Option<RunEnd>,
}

/// The next turn of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TurnPlan {
    /// Whether the model is asked for a final answer without calls.
    pub last_request: bool,
}

/// What comes after a turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunStep {
    /// The limit that was reached, which is to be told.
    pub limit: Option<LimitHit>,
    /// What is next.
    pub next: Next,
}

/// Another turn, or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Another turn.
    Turn(TurnPlan),
    /// The run is over.
    End {
        /// Why.
        end: RunEnd,
        /// The final answer, or what there is of it.
        text: String,
        /// What went wrong, if something did.
        error: Option<RunError>,
    },
}

/// A limit of the run that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitHit {
    /// The configuration's name of it.
    pub limit: &'static str,
    /// What is allowed, and was reached.
    pub maximum: u32,
    /// What is done about it.
    pub action: &'static str,
}

impl Run {
    /// A run that has not begun.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            max_turns: limits.max_turns,
            max_failed_turns: limits.max_failed_turns,
            turns: 0,
            seeded: false,
            last_requests: 0,
            failed_turns: 0,
            stop_after_turn: false,
            last_request: None,
        }
    }

    /// Begins the first turn.
    pub fn begin(&mut self) -> TurnPlan {
        self.turns = 1;
        TurnPlan { last_request: false }
    }

    /// Begins with calls that the session was opened with. The model is asked once they are
    /// answered; their turn counts for no limit.
    pub fn begin_with_calls(&mut self) -> TurnPlan {
        self.seeded = true;
        TurnPlan { last_request: false }
    }

    /// Asks the run to end when the turn that runs is over.
    pub fn handle_stop_after_turn(&mut self) {
        self.stop_after_turn = true;
    }

    /// A turn is over and in the history: what is next? `steered` says that a user's input came
    /// while it went on and stands behind it, so that the model has to be asked once more.
    pub fn handle_turn(&mut self, turn: &TurnRecord, steered: bool) -> RunStep {
        let text = turn.message.as_ref().map(|message| message.text.clone()).unwrap_or_default();
        match &turn.end {
            TurnEnd::Cancelled(CancelReason::Stop) => end(RunEnd::Stopped, text),
            TurnEnd::Cancelled(CancelReason::RunTimeout) => end(RunEnd::TimedOut, text),
            TurnEnd::Cancelled(CancelReason::Shutdown) => end(RunEnd::Interrupted, text),
            TurnEnd::Refused => end(RunEnd::Refused, text),
            TurnEnd::Failed(error) => {
                let error = Some(error.clone());
                RunStep { limit: None, next: Next::End { end: RunEnd::Failed, text, error } }
            }
            TurnEnd::Finished => self.after_finished(turn, text, steered),
        }
    }

    /// Turns that were begun, last requests and the turn of the session's own calls included.
    #[must_use]
    pub fn turns(&self) -> u32 {
        u32::from(self.seeded) + self.turns + self.last_requests
    }

    fn after_finished(&mut self, turn: &TurnRecord, text: String, steered: bool) -> RunStep {
        match self.last_request {
            // It was asked for because the text was empty, not because a limit was reached.
            Some(RunEnd::Answered) if steered => self.last_request = None,
            Some(known) => return end(known, text),
            None => {}
        }
        let calls = !turn.results.is_empty();
        if !calls && !text.is_empty() && !steered {
            end(RunEnd::Answered, text)
        } else if self.stop_after_turn {
            end(RunEnd::Stopped, text)
        } else if self.turns == 0 {
            RunStep { limit: None, next: Next::Turn(self.begin()) }
        } else if calls || steered {
            self.next_turn(turn)
        } else {
            self.ask_last(RunEnd::Answered)
        }
    }

    fn next_turn(&mut self, turn: &TurnRecord) -> RunStep {
        let results = &turn.results;
        let all_failed =
            !results.is_empty() && results.iter().all(|r| r.outcome.status != ToolStatus::Ok);
        self.failed_turns = if all_failed { self.failed_turns + 1 } else { 0 };
        if let Some(maximum) = self.max_failed_turns.filter(|max| self.failed_turns >= *max) {
            let limit = LimitHit { limit: "max_failed_turns", maximum, action: "ended" };
            let step = end(RunEnd::AllToolsFailed, ALL_FAILED.to_owned());
            return RunStep { limit: Some(limit), ..step };
        }
        if let Some(maximum) = self.max_turns.filter(|max| self.turns >= *max) {
            let limit = LimitHit { limit: "max_turns", maximum, action: "final_answer" };
            return RunStep { limit: Some(limit), ..self.ask_last(RunEnd::MaxTurns) };
        }
        self.turns += 1;
        RunStep { limit: None, next: Next::Turn(TurnPlan { last_request: false }) }
    }

    fn ask_last(&mut self, end: RunEnd) -> RunStep {
        self.last_request = Some(end);
        self.last_requests += 1;
        RunStep { limit: None, next: Next::Turn(TurnPlan { last_request: true }) }
    }
}

fn end(end: RunEnd, text: String) -> RunStep {
    RunStep { limit: None, next: Next::End { end, text, error: None } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TurnTimes;
    use crate::record::ResponseMessage;
    use crate::types::{
        CallKey, FailureKind, ResultNotes, ToolCall, ToolOutcome, ToolResult, Usage,
    };
    use std::time::Duration;

    fn turn(text: &str, calls: u32) -> TurnRecord {
        let results = (0..calls).map(|index| ToolResult {
            call: ToolCall {
                key: CallKey { turn: 1, attempt: 1, index },
                id: format!("c{index}"),
                provider_id: None,
                name: "clock".into(),
                arguments: serde_json::json!({}),
                raw: None,
            },
            outcome: ToolOutcome::ok("noon"),
            notes: ResultNotes::default(),
            started: None,
            wait: Duration::ZERO,
            duration: Duration::ZERO,
        });
        TurnRecord {
            number: 1,
            end: TurnEnd::Finished,
            message: Some(ResponseMessage { text: text.into(), ..ResponseMessage::default() }),
            results: results.collect(),
            dropped_calls: Vec::new(),
            finish_reason: None,
            usage: Usage::default(),
            times: TurnTimes::default(),
        }
    }

    fn run(max_turns: u32) -> Run {
        let mut run = Run::new(&Limits { max_turns: Some(max_turns), ..Limits::default() });
        assert_eq!(run.begin(), TurnPlan { last_request: false });
        run
    }

    fn ended(why: RunEnd, text: &str) -> RunStep {
        end(why, text.into())
    }

    fn another(last_request: bool) -> RunStep {
        RunStep { limit: None, next: Next::Turn(TurnPlan { last_request }) }
    }

    fn failed(calls: u32) -> TurnRecord {
        let mut turn = turn("", calls);
        for result in &mut turn.results {
            result.outcome =
                ToolOutcome::not_ok(ToolStatus::Failed, FailureKind::ToolError, "Error: no");
        }
        turn
    }

    #[test]
    fn a_text_without_calls_is_the_answer() {
        assert_eq!(run(3).handle_turn(&turn("noon", 0), false), ended(RunEnd::Answered, "noon"));
    }

    #[test]
    fn out_of_turns_a_final_answer_is_asked_for_and_the_end_stays_max_turns() {
        let mut run = run(2);
        assert_eq!(run.handle_turn(&turn("", 1), false), another(false));
        let limit = LimitHit { limit: "max_turns", maximum: 2, action: "final_answer" };
        let last = RunStep { limit: Some(limit), ..another(true) };
        assert_eq!(run.handle_turn(&turn("", 1), false), last);
        assert_eq!(run.handle_turn(&turn("so far", 0), false), ended(RunEnd::MaxTurns, "so far"));
        assert_eq!(run.turns(), 3);
    }

    #[test]
    fn after_an_empty_answer_the_model_is_asked_once_more() {
        let mut run = run(2);
        assert_eq!(run.handle_turn(&turn("", 0), false), another(true));
        assert_eq!(run.handle_turn(&turn("", 0), false), ended(RunEnd::Answered, ""));
    }

    #[test]
    fn turns_in_which_every_call_failed_end_the_run_if_nothing_comes_between() {
        let mut run = run(20);
        let mixed = TurnRecord {
            results: [failed(1).results, turn("", 1).results].concat(),
            ..turn("", 0)
        };
        for turn in [failed(2), failed(1), mixed, failed(1), failed(3)] {
            assert_eq!(run.handle_turn(&turn, false), another(false));
        }
        let limit = LimitHit { limit: "max_failed_turns", maximum: 3, action: "ended" };
        let over = RunStep { limit: Some(limit), ..ended(RunEnd::AllToolsFailed, ALL_FAILED) };
        assert_eq!(run.handle_turn(&failed(1), false), over);
        let mut at_once = Run::new(&Limits { max_failed_turns: Some(1), ..Limits::default() });
        at_once.begin();
        assert_eq!(at_once.handle_turn(&failed(1), false).next, over.next);
        let mut never = Run::new(&Limits { max_failed_turns: None, ..Limits::default() });
        never.begin();
        for _ in 0..8 {
            assert_eq!(never.handle_turn(&failed(1), false), another(false));
        }
    }

    #[test]
    fn a_stop_after_the_turn_lets_an_answer_be_one() {
        let mut stopped = run(5);
        stopped.handle_stop_after_turn();
        assert_eq!(stopped.handle_turn(&turn("wait", 1), false), ended(RunEnd::Stopped, "wait"));
        let mut answered = run(5);
        answered.handle_stop_after_turn();
        assert_eq!(answered.handle_turn(&turn("noon", 0), false), ended(RunEnd::Answered, "noon"));
    }

    #[test]
    fn cancelled_turns_end_the_run_for_their_reason() {
        for (why, end) in [
            (CancelReason::Stop, RunEnd::Stopped),
            (CancelReason::RunTimeout, RunEnd::TimedOut),
            (CancelReason::Shutdown, RunEnd::Interrupted),
        ] {
            let cancelled = TurnRecord { end: TurnEnd::Cancelled(why), ..turn("part", 1) };
            assert_eq!(run(3).handle_turn(&cancelled, false), ended(end, "part"));
        }
    }

    #[test]
    fn what_was_said_meanwhile_takes_another_turn() {
        for said in [turn("noon", 0), turn("", 0), turn("wait", 1)] {
            let mut run = run(3);
            assert_eq!(run.handle_turn(&said, true), another(false));
            assert_eq!(run.handle_turn(&turn("one", 0), false), ended(RunEnd::Answered, "one"));
            assert_eq!(run.turns(), 2);
        }
    }

    #[test]
    fn what_was_said_meanwhile_gives_no_more_turns_than_there_are() {
        let mut run = run(1);
        let limit = LimitHit { limit: "max_turns", maximum: 1, action: "final_answer" };
        let last = RunStep { limit: Some(limit), ..another(true) };
        assert_eq!(run.handle_turn(&turn("noon", 0), true), last);
        assert_eq!(run.handle_turn(&turn("one", 0), true), ended(RunEnd::MaxTurns, "one"));
        assert_eq!(run.turns(), 2);
    }

    #[test]
    fn a_last_request_after_an_empty_answer_is_not_the_last_if_more_was_said() {
        let mut run = run(3);
        assert_eq!(run.handle_turn(&turn("", 0), false), another(true));
        assert_eq!(run.handle_turn(&turn("noon", 0), true), another(false));
        assert_eq!(run.handle_turn(&turn("", 0), false), another(true));
        assert_eq!(run.handle_turn(&turn("", 0), false), ended(RunEnd::Answered, ""));
        assert_eq!(run.turns(), 4);
    }

    #[test]
    fn a_stop_wins_over_what_was_said_meanwhile() {
        for said in [turn("noon", 0), turn("", 0), turn("", 1)] {
            let text = said.message.as_ref().unwrap().text.clone();
            let mut stopped = run(5);
            stopped.handle_stop_after_turn();
            assert_eq!(stopped.handle_turn(&said, true), ended(RunEnd::Stopped, &text));
        }
        let refused = TurnRecord { end: TurnEnd::Refused, ..turn("no", 0) };
        assert_eq!(run(5).handle_turn(&refused, true), ended(RunEnd::Refused, "no"));
        let mut failing = run(5);
        for _ in 0..2 {
            assert_eq!(failing.handle_turn(&failed(1), true), another(false));
        }
        assert_eq!(
            failing.handle_turn(&failed(1), true).next,
            ended(RunEnd::AllToolsFailed, ALL_FAILED).next
        );
    }

    #[test]
    fn an_answer_between_turns_that_failed_begins_the_count_anew() {
        let mut run = run(9);
        for (turn, steered) in [(failed(1), false), (failed(1), false), (turn("noon", 0), true)] {
            assert_eq!(run.handle_turn(&turn, steered), another(false));
        }
        assert_eq!(run.handle_turn(&failed(1), false), another(false));
    }

    #[test]
    fn the_turn_of_the_sessions_own_calls_counts_for_no_limit() {
        let limits = Limits { max_turns: Some(1), max_failed_turns: Some(1), ..Limits::default() };
        let mut run = Run::new(&limits);
        assert_eq!(run.begin_with_calls(), TurnPlan { last_request: false });
        assert_eq!(run.turns(), 1);
        assert_eq!(run.handle_turn(&failed(2), true), another(false));
        assert_eq!(run.handle_turn(&turn("noon", 0), false), ended(RunEnd::Answered, "noon"));
        assert_eq!(run.turns(), 2);
        let mut stopped = Run::new(&limits);
        stopped.begin_with_calls();
        stopped.handle_stop_after_turn();
        assert_eq!(stopped.handle_turn(&turn("", 1), true), ended(RunEnd::Stopped, ""));
    }
}
