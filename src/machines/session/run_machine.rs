//! The run machine: counts turns, calls and tokens, and decides after each turn what follows.
//!
//! - After a turn with calls, a paused turn or one that was steered, the first of these that is reached decides: a
//!   stop after the turn, `max_tokens_per_run`, `max_failed_turns`, loop detection (`repeat_limit`), `max_turns`. The
//!   last one leads to one more request, for an answer without calls (`continue_or_end_run`). Only the first two
//!   concern a turn of initial calls.
//! - Any other response with text is the answer, also one that was cut off at its maximum length. One without text was
//!   requested twice (`turn::attempt`), and leads to one more request, which asks for the final text
//!   (`request_final_text`). If that answer is empty too, the run fails (`EMPTY_ANSWER`).
//! - `tool_choice`: the first request forces a call, and so does a second one if the response has none
//!   (`FORCED_REQUESTS_MAX`).
//! - Typed answer: an answer that does not match its schema is asked for in that form once, and again at most
//!   `output_retries` (2) times; then the run fails (`OUTPUT_INVALID`).

use std::sync::Arc;

use serde_json::Value;

use super::limit_meter::LimitMeter;
use super::loop_detection::{LoopDetector, LoopVerdict};
use crate::turn::{
    Budget, CONTENT_REFUSED, CancelReason, ChildrenUse, CommittedTurn, LimitHit, MAX_CALLS_KEY,
    MAX_TOKENS_KEY, OutputRules, PROVIDER_ERROR, TurnEnd, refusal_message,
};
use callsheet_values::config::Limits;
use callsheet_values::types::{
    FinishReason, OutputMode, RequestKind, RunEnd, RunError, ToolChoice, ToolResult, ToolStatus,
    Usage,
};

/// The final text of a run that `max_failed_turns` has ended.
const ALL_FAILED: &str = "All tool calls failed. Please check the error messages and try again.";

/// The maximum number of requests that force a call.
const FORCED_REQUESTS_MAX: u32 = 2;

/// The code of the error of a run whose answer does not match its output schema.
pub const OUTPUT_INVALID: &str = "OUTPUT_INVALID";

/// The code of the error of a run whose models gave only empty answers.
pub const EMPTY_ANSWER: &str = "EMPTY_ANSWER";

/// The message of the host after answers that were empty.
const FINAL_TEXT: &str = "[callsheet: Your last answer was empty. Give your final answer now, as text and without tool calls.]";

/// The machine of a run, from one user input to its end. [`handle_turn`](Self::handle_turn) decides after
/// each committed turn whether another turn follows or the run ends. The data of the run are in
/// [`OpenRun`](super::OpenRun).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunMachine {
    /// Turns that have begun, and the next one once it is decided, without requests for a final or a typed answer,
    /// without the second request that forces a call, and without a turn of initial calls.
    turns: LimitMeter,
    /// Calls of committed turns and of their children, without initial calls.
    calls: LimitMeter,
    /// Tokens of committed turns, of their children and of summaries.
    tokens: LimitMeter,
    /// Calls of committed turns that have started.
    started_calls: u64,
    loops: LoopDetector,
    max_failed_turns: Option<u32>,
    /// Consecutive turns in which every call failed.
    failed_turns: u32,
    stop_after_turn: bool,
    /// The run end that follows the request for a final answer, while that request is open.
    end_after_final_answer: Option<RunEnd>,
    /// The kind of the last request.
    request_kind: RequestKind,
    /// The rule for calling tools.
    tool_choice: ToolChoice,
    /// Number of requests that forced a call.
    forced_requests: u32,
    /// The requests for a typed answer. `None` if the run has none.
    output: Option<OutputRequests>,
}

/// The requests for the typed answer of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OutputRequests {
    rules: Arc<OutputRules>,
    /// Number of requests.
    made: u32,
    /// The service may have refused the schema field of its wire format.
    is_field_refused: bool,
    /// The last text that was not blank, once a request was made.
    last_text: String,
}

/// A message of the host, and the request that follows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The kind of the request.
    pub request_kind: RequestKind,
    /// The message.
    pub text: String,
}

/// The answer of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunAnswer {
    /// The final answer, or as much of it as there is.
    pub text: String,
    /// The typed answer.
    pub output: Option<Arc<Value>>,
    /// The finish reason of the last response.
    pub finish_reason: Option<FinishReason>,
}

/// The consequences of a committed turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FollowUp {
    /// Limits that were reached or half used, in the order in which they are recorded.
    pub limits: Vec<LimitHit>,
    /// Another turn, or the end of the run.
    pub next: RunNext,
}

/// Another turn, or the end of the run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RunNext {
    /// Another turn.
    Turn(RequestKind),
    /// Another turn, after a message of the host.
    Instruct(Instruction),
    /// The run ends.
    End {
        /// The reason of the end.
        end: RunEnd,
        /// The answer.
        answer: RunAnswer,
        /// The error, if the run failed.
        error: Option<RunError>,
    },
}

impl RunMachine {
    /// Creates the machine of a run that has not begun.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            turns: LimitMeter::new("max_turns", "turns", limits.max_turns.map(u64::from)),
            calls: LimitMeter::new(
                MAX_CALLS_KEY,
                "tool calls",
                limits.max_tool_calls_per_run.map(u64::from),
            ),
            tokens: LimitMeter::new(MAX_TOKENS_KEY, "tokens", limits.max_tokens_per_run),
            started_calls: 0,
            loops: LoopDetector::new(limits.repeat_limit),
            max_failed_turns: limits.max_failed_turns,
            failed_turns: 0,
            stop_after_turn: false,
            end_after_final_answer: None,
            request_kind: RequestKind::Ordinary,
            tool_choice: ToolChoice::Auto,
            forced_requests: 0,
            output: None,
        }
    }

    /// Sets the run's rules for calling tools and for its answer.
    #[must_use]
    pub fn with_answer_rules(
        self,
        tool_choice: ToolChoice,
        output: Option<Arc<OutputRules>>,
    ) -> Self {
        let output = output.map(|rules| OutputRequests {
            rules,
            made: 0,
            is_field_refused: false,
            last_text: String::new(),
        });
        Self { tool_choice, output, ..self }
    }

    /// Counts the next turn and returns the kind of its request. The first one may force a call.
    pub fn begin(&mut self) -> RequestKind {
        self.turns.add(1);
        self.request_kind = RequestKind::Ordinary;
        if self.tool_choice.forces_call() && self.forced_requests == 0 {
            self.forced_requests = 1;
            self.request_kind = RequestKind::ForcedCall;
        }
        self.request_kind
    }

    /// Returns the kind of the next request of a run that was interrupted. It takes the place of the last one, which
    /// is counted already.
    pub fn repeat_turn(&mut self) -> RequestKind {
        // The last turn was that of initial calls.
        if self.turns.used() == 0 { self.begin() } else { self.request_kind }
    }

    /// Returns the kind of a turn of the calls that the session was opened with. The turn makes no
    /// request and does not count; [`begin`](Self::begin) counts the one after it.
    #[must_use]
    pub const fn kind_of_initial_calls() -> RequestKind {
        RequestKind::Ordinary
    }

    /// Notes that a message of the host is recorded, and that a request of this kind follows it.
    pub fn handle_instructed(&mut self, kind: RequestKind) {
        self.request_kind = kind;
        if matches!(kind, RequestKind::Output(_) | RequestKind::FinalText) {
            self.end_after_final_answer.get_or_insert(RunEnd::Answered);
        }
    }

    /// Ends the run after the current turn.
    pub fn handle_stop_after_turn(&mut self) {
        self.stop_after_turn = true;
    }

    /// Handles an input before the next turn. Returns what follows instead, if that turn was to ask again for an
    /// answer that was empty.
    pub fn handle_steer(&mut self) -> Option<FollowUp> {
        let asks_again = self.request_kind == RequestKind::FinalText
            && self.end_after_final_answer == Some(RunEnd::Answered);
        if !asks_again {
            return None;
        }
        self.end_after_final_answer = None;
        Some(self.continue_or_end_run(&[], String::new()))
    }

    /// Withdraws the next turn, which has not begun.
    pub fn withdraw_turn(&mut self, kind: RequestKind) {
        if kind == RequestKind::Ordinary {
            self.turns.subtract(1);
        }
    }

    /// Counts the tokens of a request outside of turns.
    pub fn add_tokens(&mut self, usage: Usage) {
        self.tokens.add(usage.total());
    }

    /// Returns the limit of tokens if none are left for a further request. `action` names what is done about it.
    #[must_use]
    pub fn used_up_tokens(&self, action: &'static str) -> Option<LimitHit> {
        self.tokens.used_up(action)
    }

    /// Returns the budget that is left for the next turn.
    #[must_use]
    pub fn budget(&self) -> Budget {
        let calls_left = self.calls.left().map(|left| u32::try_from(left).unwrap_or(u32::MAX));
        // The call that gives the answer is always kept.
        let least = u32::from(self.request_kind == RequestKind::Output(OutputMode::Tool));
        let calls_left = calls_left.map(|left| left.max(least));
        Budget { tokens_left: self.tokens.left(), calls_left }
    }

    /// Decides what follows a committed turn. `steered` means that a user's input arrived during the
    /// turn. The history then ends with that input, so the model is requested again unless the run ends for another
    /// reason. The same holds after a response that its service paused.
    pub fn handle_turn(&mut self, turn: &CommittedTurn, steered: bool) -> FollowUp {
        let children = ChildrenUse::of(&turn.results);
        self.tokens.add(turn.usage.total().saturating_add(children.tokens));
        if self.turns.used() > 0 {
            self.calls.add(turn.results.len() as u64 + u64::from(children.calls));
        }
        let started = turn.results.iter().filter(|result| result.started.is_some()).count();
        self.started_calls += started as u64;
        let text = turn.message.as_ref().map(|message| message.text.clone()).unwrap_or_default();
        let mut follow_up = self.follow_up(turn, text, steered);
        if let RunNext::End { answer, .. } = &mut follow_up.next {
            answer.finish_reason.clone_from(&turn.finish_reason);
        }
        if let Some(output) = self.output.as_mut().filter(|output| output.made > 0) {
            let message = turn.message.as_ref();
            if let Some(message) = message.filter(|message| !message.text.trim().is_empty()) {
                output.last_text.clone_from(&message.text);
            }
            // An answer by a call, or a request without an answer, has no text.
            if let RunNext::End { answer, .. } = &mut follow_up.next
                && answer.text.trim().is_empty()
            {
                answer.text.clone_from(&output.last_text);
            }
        }
        follow_up
    }

    fn follow_up(&mut self, turn: &CommittedTurn, text: String, steered: bool) -> FollowUp {
        match &turn.end {
            TurnEnd::Cancelled(CancelReason::Stop) => end(RunEnd::Stopped, text),
            TurnEnd::Cancelled(CancelReason::RunTimeout) => end(RunEnd::TimedOut, text),
            TurnEnd::Cancelled(CancelReason::Shutdown) => end(RunEnd::Interrupted, text),
            // The limit is recorded already.
            TurnEnd::Cancelled(CancelReason::Budget) => end(RunEnd::Budget, text),
            TurnEnd::Refused => {
                let finish = turn.finish_reason.as_ref();
                let refusal = finish.and_then(|finish| finish.refusal.as_deref());
                let error = RunError {
                    code: CONTENT_REFUSED.to_owned(),
                    message: refusal_message(refusal),
                    transient: false,
                };
                ended_with(RunEnd::Refused, text, error)
            }
            TurnEnd::RefusedByHook(error) => ended_with(RunEnd::Refused, text, error.clone()),
            TurnEnd::Failed(error) if self.may_prompt_after(error) => {
                if let Some(output) = &mut self.output {
                    output.is_field_refused = true;
                }
                let end = self.end_after_final_answer.unwrap_or(RunEnd::Answered);
                self.request_output(end, None)
            }
            TurnEnd::Failed(error) => failed(text, error.clone()),
            TurnEnd::Finished => self.follow_up_finished(turn, text, steered),
        }
    }

    /// Returns the number of turns that have begun, as `max_turns` counts them: without the turn
    /// of initial calls, the requests for a final or a typed answer, and the second request that forces a call.
    #[must_use]
    pub fn turns(&self) -> u32 {
        u32::try_from(self.turns.used()).unwrap_or(u32::MAX)
    }

    fn follow_up_finished(
        &mut self,
        turn: &CommittedTurn,
        text: String,
        steered: bool,
    ) -> FollowUp {
        match self.end_after_final_answer {
            // The final answer was requested because the answer before was empty or did not match its schema, not
            // because of a limit.
            Some(RunEnd::Answered) if steered => {
                self.end_after_final_answer = None;
                self.output.iter_mut().for_each(|output| output.made = 0);
            }
            Some(end) => return self.conclude(end, turn, text),
            None => {}
        }
        let needs_turn = steered || turn.is_paused() || !turn.results.is_empty();
        if self.request_kind == RequestKind::ForcedCall && !needs_turn {
            return self.follow_up_without_call(turn, text);
        }
        self.follow_up_turn(turn, text, needs_turn)
    }

    /// Follows up a turn whose request forced a call, and that has none.
    fn follow_up_without_call(&mut self, turn: &CommittedTurn, text: String) -> FollowUp {
        let may_ask = !self.stop_after_turn && self.tokens.used_up("ended").is_none();
        if may_ask && self.forced_requests < FORCED_REQUESTS_MAX {
            self.forced_requests += 1;
            let text = match &self.tool_choice {
                ToolChoice::Tool(name) => {
                    format!("[callsheet: Call the tool {name} before you answer.]")
                }
                ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => {
                    "[callsheet: Call one of your tools before you answer.]".to_owned()
                }
            };
            return instruct(RequestKind::ForcedCall, text);
        }
        let value = u64::from(self.forced_requests);
        let (limit, action) = ("tool_choice", "no_call");
        let maximum = u64::from(FORCED_REQUESTS_MAX);
        let mut follow_up = self.follow_up_turn(turn, text, false);
        follow_up.limits.insert(0, LimitHit { limit, value, maximum, action, note: None });
        follow_up
    }

    /// Follows up a turn. `needs_turn` means that the model is requested again whatever the text is.
    fn follow_up_turn(&mut self, turn: &CommittedTurn, text: String, needs_turn: bool) -> FollowUp {
        if !needs_turn && !text.trim().is_empty() {
            return self.conclude(RunEnd::Answered, turn, text);
        }
        if let Some(follow_up) = self.end_without_request(&text) {
            return follow_up;
        }
        // The turn was that of the initial calls.
        if self.turns.used() == 0 {
            return FollowUp { limits: Vec::new(), next: RunNext::Turn(self.begin()) };
        }
        if needs_turn {
            self.continue_or_end_run(&turn.results, text)
        } else {
            self.request_final_text(RunEnd::Answered)
        }
    }

    /// Ends the run if it may make no further request: it is to stop after the turn, or its tokens are used up.
    fn end_without_request(&self, text: &str) -> Option<FollowUp> {
        if self.stop_after_turn {
            return Some(end(RunEnd::Stopped, text.to_owned()));
        }
        let hit = self.tokens.used_up("ended")?;
        Some(FollowUp { limits: vec![hit], ..end(RunEnd::Budget, text.to_owned()) })
    }

    /// Ends the run with an answer, also if the tokens are used up. An answer that does not match the output schema
    /// is refused.
    fn conclude(&mut self, run_end: RunEnd, turn: &CommittedTurn, text: String) -> FollowUp {
        if self.output.is_none() && text.trim().is_empty() {
            return self.follow_up_empty_answer(run_end, text);
        }
        let output = match self.output.as_ref().map(|output| output.rules.value_of(turn)) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(violation)) => return self.refuse_answer(run_end, text, &violation),
        };
        let limits = self.tokens.used_up("answer_kept").into_iter().collect();
        let answer = RunAnswer { text, output, finish_reason: None };
        FollowUp { limits, next: RunNext::End { end: run_end, answer, error: None } }
    }

    /// Asks for the final text after an empty answer, or ends the run.
    fn follow_up_empty_answer(&mut self, run_end: RunEnd, text: String) -> FollowUp {
        if self.request_kind == RequestKind::FinalText {
            return failed(text, self.empty_answer_error());
        }
        self.end_without_request(&text).unwrap_or_else(|| self.request_final_text(run_end))
    }

    fn empty_answer_error(&self) -> RunError {
        let calls = match self.started_calls {
            0 => "no tool call has run".to_owned(),
            1 => "1 tool call has run, and a new run may repeat its effects".to_owned(),
            calls => format!("{calls} tool calls have run, and a new run may repeat their effects"),
        };
        let message = format!("every answer of the models was empty; {calls}");
        RunError { code: EMPTY_ANSWER.to_owned(), message, transient: false }
    }

    /// Asks for an answer in the form of the output schema, because the one before does not match it, or ends the
    /// run.
    fn refuse_answer(&mut self, run_end: RunEnd, text: String, violation: &str) -> FollowUp {
        if let Some(follow_up) = self.end_without_request(&text) {
            return follow_up;
        }
        let (made, retries) = match &self.output {
            Some(output) => (output.made, output.rules.retries),
            None => (0, 0),
        };
        if made <= retries {
            return self.request_output(run_end, Some(violation).filter(|_| made > 0));
        }
        let is_empty = text.trim().is_empty()
            && self.output.as_ref().is_none_or(|output| output.last_text.is_empty());
        if is_empty {
            return failed(text, self.empty_answer_error());
        }
        let error = RunError {
            code: OUTPUT_INVALID.to_owned(),
            message: format!(
                "the answer does not match the output schema after {made} requests for it: {violation}"
            ),
            transient: false,
        };
        let hit = LimitHit {
            limit: "output_retries",
            value: u64::from(made.saturating_sub(1)),
            maximum: u64::from(retries),
            action: "ended",
            note: None,
        };
        FollowUp { limits: vec![hit], ..failed(text, error) }
    }

    /// Returns true if the service may have refused the schema field of its wire format, and a prompt may follow.
    fn may_prompt_after(&self, error: &RunError) -> bool {
        let Some(output) = &self.output else { return false };
        self.request_kind == RequestKind::Output(OutputMode::Native)
            && output.rules.mode == OutputMode::Auto
            && output.made <= output.rules.retries
            && !error.transient
            && error.code == PROVIDER_ERROR
            && !self.stop_after_turn
            && self.tokens.used_up("ended").is_none()
    }

    /// Asks for the answer in the form of the output schema.
    fn request_output(&mut self, end: RunEnd, violation: Option<&str>) -> FollowUp {
        let Some(output) = &mut self.output else { return self.request_final_answer(end) };
        output.made += 1;
        let rules = Arc::clone(&output.rules);
        let (mode, with_schema) = match rules.mode {
            OutputMode::Auto if output.is_field_refused => (OutputMode::Prompt, true),
            // A service that ignores the field needs the schema.
            OutputMode::Auto => (OutputMode::Native, output.made > 1),
            OutputMode::Native => (OutputMode::Native, false),
            OutputMode::Tool => (OutputMode::Tool, false),
            OutputMode::Prompt => (OutputMode::Prompt, true),
        };
        self.end_after_final_answer = Some(end);
        self.request_kind = RequestKind::Output(mode);
        instruct(self.request_kind, rules.instruction(mode, violation, with_schema))
    }

    /// Follows up a turn with calls, a turn that a user's input steered, or a paused turn.
    fn continue_or_end_run(&mut self, results: &[ToolResult], text: String) -> FollowUp {
        let all_failed =
            !results.is_empty() && results.iter().all(|r| r.outcome.status != ToolStatus::Ok);
        self.failed_turns = if all_failed { self.failed_turns + 1 } else { 0 };
        if let Some(maximum) = self.max_failed_turns.filter(|max| self.failed_turns >= *max) {
            let hit = LimitHit {
                limit: "max_failed_turns",
                value: u64::from(self.failed_turns),
                maximum: u64::from(maximum),
                action: "ended",
                note: None,
            };
            let ended = end(RunEnd::AllToolsFailed, ALL_FAILED.to_owned());
            return FollowUp { limits: vec![hit], ..ended };
        }
        let mut limits = Vec::new();
        match self.loops.handle_turn(results) {
            LoopVerdict::NoLoop => {}
            LoopVerdict::Warn(hit) => limits.push(hit),
            LoopVerdict::End(hit) => {
                return FollowUp { limits: vec![hit], ..end(RunEnd::LoopDetected, text) };
            }
        }
        if let Some(hit) = self.turns.used_up("final_answer") {
            limits.push(hit);
            return FollowUp { limits, ..self.request_final_answer(RunEnd::MaxTurns) };
        }
        // Checked before the next turn is counted. A note needs a result to stand behind.
        if !results.is_empty() {
            let meters = [&mut self.turns, &mut self.calls, &mut self.tokens];
            limits.extend(meters.into_iter().filter_map(LimitMeter::report_half_used));
        }
        self.turns.add(1);
        self.request_kind = RequestKind::Ordinary;
        FollowUp { limits, next: RunNext::Turn(self.request_kind) }
    }

    fn request_final_answer(&mut self, end: RunEnd) -> FollowUp {
        if self.output.is_some() {
            return self.request_output(end, None);
        }
        self.end_after_final_answer = Some(end);
        self.request_kind = RequestKind::FinalAnswer;
        FollowUp { limits: Vec::new(), next: RunNext::Turn(self.request_kind) }
    }

    /// Asks for the final text, because the answer before was empty.
    fn request_final_text(&mut self, end: RunEnd) -> FollowUp {
        if self.output.is_some() {
            return self.request_output(end, None);
        }
        self.end_after_final_answer = Some(end);
        self.request_kind = RequestKind::FinalText;
        instruct(self.request_kind, FINAL_TEXT.to_owned())
    }
}

fn instruct(request_kind: RequestKind, text: String) -> FollowUp {
    let next = RunNext::Instruct(Instruction { request_kind, text });
    FollowUp { limits: Vec::new(), next }
}

fn end(run_end: RunEnd, text: String) -> FollowUp {
    let answer = RunAnswer { text, ..RunAnswer::default() };
    FollowUp { limits: Vec::new(), next: RunNext::End { end: run_end, answer, error: None } }
}

fn failed(text: String, error: RunError) -> FollowUp {
    ended_with(RunEnd::Failed, text, error)
}

fn ended_with(end: RunEnd, text: String, error: RunError) -> FollowUp {
    let answer = RunAnswer { text, ..RunAnswer::default() };
    let next = RunNext::End { end, answer, error: Some(error) };
    FollowUp { limits: Vec::new(), next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::event::TurnTimes;
    use callsheet_values::record::ResponseMessage;
    use callsheet_values::types::{
        CallKey, FailureKind, FinishKind, FinishReason, ResultNotes, ToolCall, ToolOutcome,
        ToolResult, Usage,
    };
    use std::time::Duration;

    fn turn(text: &str, calls: u32) -> CommittedTurn {
        let results = (0..calls).map(|index| ToolResult {
            call: ToolCall {
                key: CallKey { turn: 1, attempt: 1, index },
                id: format!("c{index}").into(),
                provider_id: None,
                name: "clock".into(),
                arguments: serde_json::json!({}).into(),
                raw: None,
                indirect: false,
            },
            outcome: ToolOutcome::ok("noon"),
            notes: ResultNotes::default(),
            started: None,
            wait: Duration::ZERO,
            duration: Duration::ZERO,
            writes: callsheet_values::types::WriteSet::default(),
        });
        CommittedTurn {
            number: 1,
            end: TurnEnd::Finished,
            message: Some(
                ResponseMessage { text: text.into(), ..ResponseMessage::default() }.into(),
            ),
            results: results.collect(),
            dropped_calls: Vec::new(),
            finish_reason: None,
            usage: Usage::default(),
            request_tokens: 0,
            times: TurnTimes::default(),
        }
    }

    fn run(max_turns: u32) -> RunMachine {
        let mut run = RunMachine::new(&Limits { max_turns: Some(max_turns), ..Limits::default() });
        assert_eq!(run.begin(), RequestKind::Ordinary);
        run
    }

    fn ended(run_end: RunEnd, text: &str) -> FollowUp {
        end(run_end, text.into())
    }

    fn another(final_answer_request: bool) -> FollowUp {
        let kind = match final_answer_request {
            true => RequestKind::FinalAnswer,
            false => RequestKind::Ordinary,
        };
        FollowUp { limits: Vec::new(), next: RunNext::Turn(kind) }
    }

    fn final_text() -> FollowUp {
        instruct(RequestKind::FinalText, FINAL_TEXT.into())
    }

    fn empty_answer(text: &str, calls: &str) -> FollowUp {
        let message = format!("every answer of the models was empty; {calls}");
        let error = RunError { code: EMPTY_ANSWER.into(), message, transient: false };
        super::failed(text.into(), error)
    }

    fn hit(limit: &'static str, value: u64, maximum: u64, action: &'static str) -> LimitHit {
        LimitHit { limit, value, maximum, action, note: None }
    }

    fn noted(hit: LimitHit, note: &str) -> LimitHit {
        LimitHit { note: Some(note.to_owned()), ..hit }
    }

    /// Returns a turn with calls that differ from those of other numbers.
    fn new_calls(number: u64, calls: u32) -> CommittedTurn {
        let mut turn = turn("", calls);
        for result in &mut turn.results {
            result.call.arguments = serde_json::json!({"n": number}).into();
        }
        turn
    }

    fn costing(turn: CommittedTurn, tokens: u64) -> CommittedTurn {
        let usage = Usage { input_tokens: tokens - 1, output_tokens: 1, ..Usage::default() };
        CommittedTurn { usage, ..turn }
    }

    fn failed(calls: u32) -> CommittedTurn {
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
        let mut run = run(3);
        assert_eq!(run.handle_turn(&turn("", 1), false), another(false));
        let half = hit("max_turns", 2, 3, "half_used");
        let half = noted(half, "[callsheet: 1 of 3 turns is left]");
        let next = FollowUp { limits: vec![half], ..another(false) };
        assert_eq!(run.handle_turn(&new_calls(1, 1), false), next);
        let limits = vec![hit("max_turns", 3, 3, "final_answer")];
        assert_eq!(run.handle_turn(&turn("", 1), false), FollowUp { limits, ..another(true) });
        assert_eq!(run.handle_turn(&turn("so far", 0), false), ended(RunEnd::MaxTurns, "so far"));
        assert_eq!(run.turns(), 3);
    }

    #[test]
    fn after_an_empty_answer_the_final_text_is_asked_for_and_then_the_run_fails() {
        for empty in ["", " \n"] {
            let mut run = run(2);
            assert_eq!(run.handle_turn(&turn(empty, 0), false), final_text());
            let mut answered = run.clone();
            assert_eq!(
                answered.handle_turn(&turn("noon", 0), false),
                ended(RunEnd::Answered, "noon")
            );
            let calls = "no tool call has run";
            assert_eq!(run.handle_turn(&turn(empty, 0), false), empty_answer(empty, calls));
        }
    }

    #[test]
    fn the_error_of_empty_answers_says_how_many_calls_have_run() {
        for (count, calls) in [
            (1, "1 tool call has run, and a new run may repeat its effects"),
            (2, "2 tool calls have run, and a new run may repeat their effects"),
        ] {
            let mut run = run(5);
            let mut called = turn("", count + 1);
            let started = called.results.iter_mut().take(count as usize);
            started.for_each(|result| result.started = Some(Duration::ZERO));
            assert_eq!(run.handle_turn(&called, false), another(false));
            assert_eq!(run.handle_turn(&turn("", 0), false), final_text());
            assert_eq!(run.handle_turn(&turn("", 0), false), empty_answer("", calls));
        }
    }

    #[test]
    fn out_of_turns_an_empty_final_answer_is_asked_for_as_text() {
        let mut run = run(1);
        let limits = vec![hit("max_turns", 1, 1, "final_answer")];
        assert_eq!(run.handle_turn(&turn("", 1), false), FollowUp { limits, ..another(true) });
        assert_eq!(run.handle_turn(&turn("", 0), false), final_text());
        let mut answered = run.clone();
        let text = answered.handle_turn(&turn("so far", 0), false);
        assert_eq!(text, ended(RunEnd::MaxTurns, "so far"));
        let failed = empty_answer("", "no tool call has run");
        assert_eq!(run.handle_turn(&turn("", 0), false), failed);
        assert_eq!(run.turns(), 1);
    }

    #[test]
    fn consecutive_failed_turns_end_the_run() {
        let mut run = run(20);
        let mixed = CommittedTurn {
            results: [failed(1).results, turn("", 1).results].concat(),
            ..turn("", 0)
        };
        for turn in [failed(2), failed(1), mixed, failed(1), failed(3)] {
            assert_eq!(run.handle_turn(&turn, false), another(false));
        }
        let limits = vec![hit("max_failed_turns", 3, 3, "ended")];
        let over = FollowUp { limits, ..ended(RunEnd::AllToolsFailed, ALL_FAILED) };
        assert_eq!(run.handle_turn(&failed(1), false), over);
        let mut at_once =
            RunMachine::new(&Limits { max_failed_turns: Some(1), ..Limits::default() });
        at_once.begin();
        assert_eq!(at_once.handle_turn(&failed(1), false).next, over.next);
        let mut never = RunMachine::new(&Limits {
            max_turns: None,
            max_failed_turns: None,
            repeat_limit: None,
            ..Limits::default()
        });
        never.begin();
        for _ in 0..8 {
            assert_eq!(never.handle_turn(&failed(1), false), another(false));
        }
    }

    #[test]
    fn tokens_that_are_used_up_end_the_run_and_an_answer_stands() {
        let limits = Limits { max_tokens_per_run: Some(100), ..Limits::default() };
        let begun = || {
            let mut run = RunMachine::new(&limits);
            run.begin();
            run
        };
        let mut run = begun();
        assert_eq!(run.handle_turn(&costing(new_calls(1, 1), 49), false), another(false));
        assert_eq!(run.budget(), Budget { tokens_left: Some(51), calls_left: None });
        let half = hit(MAX_TOKENS_KEY, 60, 100, "half_used");
        let half = noted(half, "[callsheet: 40 of 100 tokens are left]");
        let next = FollowUp { limits: vec![half], ..another(false) };
        assert_eq!(run.handle_turn(&costing(new_calls(2, 1), 11), false), next);
        let mut answered = run.clone();
        let over = |value, action| vec![hit(MAX_TOKENS_KEY, value, 100, action)];
        let step = FollowUp { limits: over(100, "ended"), ..ended(RunEnd::Budget, "so far") };
        assert_eq!(run.handle_turn(&costing(turn("so far", 1), 40), false), step);
        let step = FollowUp { limits: over(101, "answer_kept"), ..ended(RunEnd::Answered, "noon") };
        assert_eq!(answered.handle_turn(&costing(turn("noon", 0), 41), false), step);
        // There is nothing to ask for an answer with.
        let step = FollowUp { limits: over(100, "ended"), ..ended(RunEnd::Budget, "") };
        assert_eq!(begun().handle_turn(&costing(turn("", 0), 100), false), step);
        let cancelled = TurnEnd::Cancelled(CancelReason::Budget);
        let cut = costing(CommittedTurn { end: cancelled, ..turn("part", 1) }, 120);
        assert_eq!(begun().handle_turn(&cut, false), ended(RunEnd::Budget, "part"));
    }

    #[test]
    fn calls_are_counted_over_the_run_and_the_model_is_told_once_what_is_left() {
        let mut run =
            RunMachine::new(&Limits { max_tool_calls_per_run: Some(5), ..Limits::default() });
        run.begin();
        assert_eq!(run.handle_turn(&new_calls(1, 2), false), another(false));
        let mut all_at_once = run.clone();
        let half = hit(MAX_CALLS_KEY, 4, 5, "half_used");
        let half = noted(half, "[callsheet: 1 of 5 tool calls is left]");
        let next = FollowUp { limits: vec![half], ..another(false) };
        assert_eq!(run.handle_turn(&new_calls(2, 2), false), next);
        assert_eq!(run.handle_turn(&new_calls(3, 1), false), another(false));
        assert_eq!(run.budget(), Budget { tokens_left: None, calls_left: Some(0) });
        let none = hit(MAX_CALLS_KEY, 5, 5, "told");
        let none = noted(none, "[callsheet: 0 of 5 tool calls are left]");
        let next = FollowUp { limits: vec![none], ..another(false) };
        assert_eq!(all_at_once.handle_turn(&new_calls(2, 3), false), next);
    }

    #[test]
    fn turns_that_repeat_themselves_are_told_and_then_end_the_run() {
        let begun = |repeat_limit| {
            let limits = Limits { max_turns: None, repeat_limit, ..Limits::default() };
            let mut run = RunMachine::new(&limits);
            run.begin();
            run
        };
        let warned = |count, end| {
            let note = format!(
                "[callsheet: {count} turns in a row made the same calls and got the same results; \
                 after {end} the run is ended]"
            );
            let limits = vec![noted(hit("repeat_limit", count, count, "told"), &note)];
            FollowUp { limits, ..another(false) }
        };
        let mut run = begun(Some(2));
        assert_eq!(run.handle_turn(&turn("", 2), false), another(false));
        // Other results, other arguments, other calls: the count begins anew.
        let mut answered_otherwise = turn("", 2);
        answered_otherwise.results[1].outcome = ToolOutcome::ok("one");
        for other in [answered_otherwise, new_calls(1, 2), turn("", 1), turn("", 2)] {
            assert_eq!(run.handle_turn(&other, false), another(false));
        }
        assert_eq!(run.handle_turn(&turn("", 2), false), warned(2, 4));
        assert_eq!(run.handle_turn(&turn("", 2), false), another(false));
        let limits = vec![hit("repeat_limit", 4, 2, "ended")];
        let over = FollowUp { limits, ..ended(RunEnd::LoopDetected, "again") };
        assert_eq!(run.handle_turn(&turn("again", 2), false), over);
        let mut never = begun(None);
        for _ in 0..20 {
            assert_eq!(never.handle_turn(&turn("", 1), false), another(false));
        }
        // One turn alone repeats nothing, and the second is twice one.
        let mut at_once = begun(Some(1));
        assert_eq!(at_once.handle_turn(&turn("", 1), false), another(false));
        let limits = vec![hit("repeat_limit", 2, 1, "ended")];
        let over = FollowUp { limits, ..ended(RunEnd::LoopDetected, "") };
        assert_eq!(at_once.handle_turn(&turn("", 1), false), over);
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
        for (reason, end) in [
            (CancelReason::Stop, RunEnd::Stopped),
            (CancelReason::RunTimeout, RunEnd::TimedOut),
            (CancelReason::Shutdown, RunEnd::Interrupted),
            (CancelReason::Budget, RunEnd::Budget),
        ] {
            let cancelled = CommittedTurn { end: TurnEnd::Cancelled(reason), ..turn("part", 1) };
            assert_eq!(run(3).handle_turn(&cancelled, false), ended(end, "part"));
        }
    }

    #[test]
    fn steering_takes_another_turn() {
        for record in [turn("noon", 0), turn("", 0), turn("wait", 1)] {
            let mut run = run(3);
            assert_eq!(run.handle_turn(&record, true), another(false));
            assert_eq!(run.handle_turn(&turn("one", 0), false), ended(RunEnd::Answered, "one"));
            assert_eq!(run.turns(), 2);
        }
    }

    /// Returns a turn that its service paused.
    fn paused(turn: CommittedTurn) -> CommittedTurn {
        let reason = FinishReason::new(FinishKind::Pause, "pause_turn");
        CommittedTurn { finish_reason: Some(reason), ..turn }
    }

    #[test]
    fn a_paused_response_takes_another_turn() {
        let raw = ResponseMessage {
            parts: vec![callsheet_values::types::MessagePart::Raw { json: "{}".into() }],
            ..ResponseMessage::default()
        };
        let raw = CommittedTurn { message: Some(raw.into()), ..turn("", 0) };
        for record in [turn("so far", 0), turn("so far", 1), raw] {
            let mut run = run(3);
            assert_eq!(run.handle_turn(&paused(record), false), another(false));
            assert_eq!(run.handle_turn(&turn("noon", 0), false), ended(RunEnd::Answered, "noon"));
            assert_eq!(run.turns(), 2);
        }
    }

    #[test]
    fn a_paused_response_without_text_is_an_empty_answer() {
        for record in [turn("", 0), CommittedTurn { message: None, ..turn("", 0) }] {
            assert_eq!(run(3).handle_turn(&paused(record), false), final_text());
        }
    }

    #[test]
    fn a_paused_response_keeps_to_the_limits_of_a_turn_with_calls() {
        let part = || paused(turn("part", 0));
        let mut out_of_turns = run(1);
        let limits = vec![hit("max_turns", 1, 1, "final_answer")];
        assert_eq!(out_of_turns.handle_turn(&part(), false), FollowUp { limits, ..another(true) });
        let ended = |run_end| {
            let answer = RunAnswer {
                text: "part".to_owned(),
                output: None,
                finish_reason: part().finish_reason,
            };
            let next = RunNext::End { end: run_end, answer, error: None };
            FollowUp { limits: Vec::new(), next }
        };
        assert_eq!(out_of_turns.handle_turn(&part(), false), ended(RunEnd::MaxTurns));
        let mut stopped = run(5);
        stopped.handle_stop_after_turn();
        assert_eq!(stopped.handle_turn(&part(), false), ended(RunEnd::Stopped));
        let limits = Limits { max_tokens_per_run: Some(100), ..Limits::default() };
        let mut over_budget = RunMachine::new(&limits);
        over_budget.begin();
        let limits = vec![hit(MAX_TOKENS_KEY, 100, 100, "ended")];
        let over = FollowUp { limits, ..ended(RunEnd::Budget) };
        assert_eq!(over_budget.handle_turn(&costing(part(), 100), false), over);
    }

    #[test]
    fn steering_does_not_raise_max_turns() {
        let mut run = run(1);
        let limits = vec![hit("max_turns", 1, 1, "final_answer")];
        let last = FollowUp { limits, ..another(true) };
        assert_eq!(run.handle_turn(&turn("noon", 0), true), last);
        assert_eq!(run.handle_turn(&turn("one", 0), true), ended(RunEnd::MaxTurns, "one"));
        assert_eq!(run.turns(), 1);
    }

    #[test]
    fn steering_during_the_request_after_an_empty_answer_takes_another_turn() {
        let mut run = run(3);
        assert_eq!(run.handle_turn(&turn("", 0), false), final_text());
        assert_eq!(run.handle_turn(&turn("noon", 0), true), another(false));
        assert_eq!(run.handle_turn(&turn("", 0), false), final_text());
        let failed = empty_answer("", "no tool call has run");
        assert_eq!(run.handle_turn(&turn("", 0), false), failed);
        assert_eq!(run.turns(), 2);
    }

    #[test]
    fn a_stop_wins_over_steering() {
        for record in [turn("noon", 0), turn("", 0), turn("", 1)] {
            let text = record.message.as_ref().unwrap().text.clone();
            let mut stopped = run(5);
            stopped.handle_stop_after_turn();
            assert_eq!(stopped.handle_turn(&record, true), ended(RunEnd::Stopped, &text));
        }
        let refused = CommittedTurn { end: TurnEnd::Refused, ..turn("no", 0) };
        let RunNext::End { end, answer, error } = run(5).handle_turn(&refused, true).next else {
            panic!("the run goes on");
        };
        assert_eq!((end, &*answer.text), (RunEnd::Refused, "no"));
        assert_eq!(error.map(|error| error.code), Some(CONTENT_REFUSED.to_owned()));
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
    fn an_answer_between_failed_turns_resets_their_count() {
        let mut run = run(9);
        for (turn, steered) in [(failed(1), false), (failed(1), false), (turn("noon", 0), true)] {
            assert_eq!(run.handle_turn(&turn, steered), another(false));
        }
        assert_eq!(run.handle_turn(&failed(1), false), another(false));
    }

    #[test]
    fn the_turn_of_initial_calls_counts_towards_no_limit() {
        let limits = Limits { max_turns: Some(1), max_failed_turns: Some(1), ..Limits::default() };
        let mut run = RunMachine::new(&limits);
        assert_eq!(run.turns(), 0, "the run begins with the initial calls");
        assert_eq!(run.handle_turn(&failed(2), true), another(false));
        assert_eq!(run.handle_turn(&turn("noon", 0), false), ended(RunEnd::Answered, "noon"));
        assert_eq!(run.turns(), 1);
        let mut stopped = RunMachine::new(&limits);
        stopped.handle_stop_after_turn();
        assert_eq!(stopped.handle_turn(&turn("", 1), true), ended(RunEnd::Stopped, ""));
    }
}
