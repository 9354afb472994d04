//! Turn after turn: how many there may be, and why a run ended.

use super::effect::{CancelReason, TurnEnd, TurnRecord};
use crate::config::Limits;
use crate::types::{RunEnd, RunError, Usage};

/// A run: from one user input to its end. Told of every turn that is over, it says what is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    max_turns: Option<u32>,
    /// Turns that were begun, the last request not counted.
    turns: u32,
    stop_after_turn: bool,
    /// Set once the last request is made: what the run ends with, whatever comes of it.
    last_request: Option<RunEnd>,
    usage: Usage,
}

/// The next turn of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TurnPlan {
    /// Whether the model is asked for a final answer without calls.
    pub last_request: bool,
}

/// What comes after a turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RunStep {
    /// Another turn.
    Turn(TurnPlan),
    /// Another turn, the last, because the turns ran out: the limit is to be told.
    OutOfTurns(TurnPlan),
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

impl Run {
    /// A run that has not begun.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            max_turns: limits.max_turns,
            turns: 0,
            stop_after_turn: false,
            last_request: None,
            usage: Usage::default(),
        }
    }

    /// Begins the first turn.
    pub fn begin(&mut self) -> TurnPlan {
        self.turns = 1;
        TurnPlan { last_request: false }
    }

    /// Asks the run to end when the turn that runs is over.
    pub fn handle_stop_after_turn(&mut self) {
        self.stop_after_turn = true;
    }

    /// A turn is over and in the history: what is next?
    pub fn handle_turn(&mut self, turn: &TurnRecord) -> RunStep {
        self.usage += turn.usage;
        let text = turn.message.as_ref().map(|message| message.text.clone()).unwrap_or_default();
        let end = |end| RunStep::End { end, text: text.clone(), error: None };
        match &turn.end {
            TurnEnd::Cancelled(CancelReason::Stop) => end(RunEnd::Stopped),
            TurnEnd::Cancelled(CancelReason::RunTimeout) => end(RunEnd::TimedOut),
            TurnEnd::Cancelled(CancelReason::Shutdown) => end(RunEnd::Interrupted),
            TurnEnd::Refused => end(RunEnd::Refused),
            TurnEnd::Failed(error) => {
                RunStep::End { end: RunEnd::Failed, text, error: Some(error.clone()) }
            }
            TurnEnd::Finished => match self.last_request {
                Some(known) => end(known),
                None if turn.results.is_empty() && !text.is_empty() => end(RunEnd::Answered),
                None if self.stop_after_turn => end(RunEnd::Stopped),
                None if turn.results.is_empty() => self.ask_last(RunEnd::Answered),
                None => self.next_turn(),
            },
        }
    }

    /// Turns that were begun, the last request included.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.turns + u32::from(self.last_request.is_some())
    }

    /// What the run cost so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn next_turn(&mut self) -> RunStep {
        if self.max_turns.is_some_and(|max| self.turns >= max) {
            self.last_request = Some(RunEnd::MaxTurns);
            return RunStep::OutOfTurns(TurnPlan { last_request: true });
        }
        self.turns += 1;
        RunStep::Turn(TurnPlan { last_request: false })
    }

    fn ask_last(&mut self, end: RunEnd) -> RunStep {
        self.last_request = Some(end);
        RunStep::Turn(TurnPlan { last_request: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TurnTimes;
    use crate::record::ResponseMessage;
    use crate::types::{CallKey, ResultNotes, ToolCall, ToolOutcome, ToolResult};
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

    fn ended(end: RunEnd, text: &str) -> RunStep {
        RunStep::End { end, text: text.into(), error: None }
    }

    #[test]
    fn a_text_without_calls_is_the_answer() {
        assert_eq!(run(3).handle_turn(&turn("noon", 0)), ended(RunEnd::Answered, "noon"));
    }

    #[test]
    fn out_of_turns_a_final_answer_is_asked_for_and_the_end_stays_max_turns() {
        let mut run = run(2);
        let plan = |last_request| TurnPlan { last_request };
        assert_eq!(run.handle_turn(&turn("", 1)), RunStep::Turn(plan(false)));
        assert_eq!(run.handle_turn(&turn("", 1)), RunStep::OutOfTurns(plan(true)));
        assert_eq!(run.handle_turn(&turn("so far", 0)), ended(RunEnd::MaxTurns, "so far"));
        assert_eq!(run.turns(), 3);
    }

    #[test]
    fn after_an_empty_answer_the_model_is_asked_once_more() {
        let mut run = run(2);
        let last = RunStep::Turn(TurnPlan { last_request: true });
        assert_eq!(run.handle_turn(&turn("", 0)), last);
        assert_eq!(run.handle_turn(&turn("", 0)), ended(RunEnd::Answered, ""));
    }

    #[test]
    fn a_stop_after_the_turn_lets_an_answer_be_one() {
        let mut stopped = run(5);
        stopped.handle_stop_after_turn();
        assert_eq!(stopped.handle_turn(&turn("wait", 1)), ended(RunEnd::Stopped, "wait"));
        let mut answered = run(5);
        answered.handle_stop_after_turn();
        assert_eq!(answered.handle_turn(&turn("noon", 0)), ended(RunEnd::Answered, "noon"));
    }

    #[test]
    fn cancelled_turns_end_the_run_for_their_reason() {
        for (why, end) in [
            (CancelReason::Stop, RunEnd::Stopped),
            (CancelReason::RunTimeout, RunEnd::TimedOut),
            (CancelReason::Shutdown, RunEnd::Interrupted),
        ] {
            let cancelled = TurnRecord { end: TurnEnd::Cancelled(why), ..turn("part", 1) };
            assert_eq!(run(3).handle_turn(&cancelled), ended(end, "part"));
        }
    }
}
