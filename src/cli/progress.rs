//! The progress of a run: turns events into lines and keeps the state of open calls. Does not write;
//! `screen.rs` does.

use std::time::Duration;

use super::output::{clean, format_count};
use super::screen::ScreenItem;
use callsheet_values::event::{
    ApprovalRequest, CallLabel, Event, RunStats, ServiceCall, ServiceCallStatus, WaitingFor,
};
use callsheet_values::event::{AttemptFallback, ConflictResolution};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, FinishKind, Question, QuestionKind, RunEnd, ToolOutcome, ToolResult,
    ToolStatus, VariableName, WaitPhase, excerpt, printable,
};

/// Maximum number of characters of a call's name, arguments or result on its line.
const EXCERPT_CHARS: usize = 60;

/// Maximum number of characters of the reason why a call was not run, on its line.
const REASON_CHARS: usize = 200;

/// Frames of the spinner.
const SPINNER: [&str; 8] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧"];

/// Time after which the wait for a model is shown.
const MODEL_WAIT_SHOWN: Duration = Duration::from_secs(1);

/// Time after which the wait for a model has a line where the wait cannot be redrawn.
const LONG_MODEL_WAIT: Duration = Duration::from_secs(3);

/// The open calls of a run, and its wait for the model.
#[derive(Debug, Default)]
pub(super) struct RunProgress {
    open: Vec<CallProgress>,
    /// The configured names of the agent's models, in the order of their use.
    models: Vec<String>,
    /// The index of the model that is asked.
    model_index: usize,
    /// The fallback that was announced for the next attempt.
    fallback: Option<AttemptFallback>,
    /// The name of the model that each turn asks first.
    first_model: String,
    /// The name of the model that is asked.
    model: String,
    /// The number of the turn's last attempt.
    attempt: u32,
    /// The number and the start of the attempt that is waited for.
    retry: Option<(u32, Duration)>,
    /// The servers that the run waits for, in words. Empty if it waits for its model.
    servers: String,
    /// Since when the model has sent no text and no call, or the servers nothing. `None` if neither is waited for.
    silent_since: Option<Duration>,
    is_thinking: bool,
    /// True if the line about the current wait was returned.
    is_wait_reported: bool,
    /// The reason of the last attempt's failure.
    last_reason: String,
    /// The finish reason of the last turn's response.
    finish: Option<FinishKind>,
}

#[derive(Debug)]
struct CallProgress {
    key: CallKey,
    name: String,
    input: String,
    activity: CallActivity,
    /// The last progress text of the tool.
    note: String,
}

#[derive(Clone, Copy, Debug)]
enum CallActivity {
    /// The arguments are still streaming.
    ReceivingArguments,
    Waiting(WaitingFor),
    Running {
        since: Duration,
    },
}

impl RunProgress {
    /// Creates the progress of a run that asks these models, by their configured names.
    pub(super) fn new(models: Vec<String>) -> Self {
        Self { models, ..Self::default() }
    }

    /// Updates the open calls and the waits from an event at time `now`, and returns the event's permanent output.
    pub(super) fn handle_event(&mut self, now: Duration, event: &Event) -> Option<ScreenItem> {
        let item = match event {
            Event::TextReceived { text } => Some(ScreenItem::AnswerText(text.clone())),
            Event::CallOpened { call } => {
                self.update(call, "", CallActivity::ReceivingArguments);
                None
            }
            Event::CallWaiting { call, waiting_for, input_summary, arguments: _, by_client: _ } => {
                self.update(call, input_summary, CallActivity::Waiting(*waiting_for));
                None
            }
            Event::CallStarted {
                call,
                input_summary,
                arguments: _,
                early: _,
                waited: _,
                queued: _,
                known_calls: _,
            } => {
                self.update(call, input_summary, CallActivity::Running { since: now });
                None
            }
            Event::CallProgressed { key, text } => {
                if let Some(open) = self.open.iter_mut().find(|open| open.key == *key) {
                    open.note = short(text);
                }
                None
            }
            // `ApprovalPrompts` prints the prompt.
            Event::ApprovalAsked { request } => {
                let input = request.arguments.to_string();
                self.update(&request.call, &input, CallActivity::Waiting(WaitingFor::Approval));
                None
            }
            // Needs no line: the result of the call follows and has the reason.
            Event::ApprovalGiven {
                phase: WaitPhase::Before,
                verdict: ApprovalVerdict::Rejected | ApprovalVerdict::Expired,
                ..
            } => None,
            Event::ApprovalGiven { call, phase, verdict, message: _, author: _, waited: _ } => {
                Some(ScreenItem::Line(approval_line(&call.name, *phase, *verdict)))
            }
            Event::ConflictFound { call, names, resolution } => {
                Some(ScreenItem::Line(conflict_line(&call.name, names, *resolution)))
            }
            Event::CallDiscarded { call, had_result: _ } => {
                self.close(call.key);
                Some(ScreenItem::Line(format!("- {} discarded", short(&call.name))))
            }
            Event::CallEnded { result, parallel: _, early: _ } => {
                self.close(result.call.key);
                Some(ScreenItem::Line(result_line(result)))
            }
            Event::ServiceCallChanged { call, status } => {
                service_line(call, *status).map(ScreenItem::Line)
            }
            Event::AttemptStarted { attempt, reason, .. } if self.is_recovered(*attempt) => {
                let failed = self.failed_attempt(*attempt, reason);
                Some(ScreenItem::Line(format!("{failed}; the part that has arrived is used")))
            }
            Event::AttemptStarted { attempt, model, reason, wait, streamed: _, voided: _ } => {
                let failed = self.failed_attempt(attempt.saturating_sub(1).max(1), reason);
                let next = if self.fallback == Some(AttemptFallback::NextModel) {
                    let fallback_model = self.model_name(self.model_index + 1, model);
                    format!("asks the fallback model {fallback_model}")
                } else if wait.is_zero() {
                    "follows".to_owned()
                } else {
                    format!("follows in {}", format_duration(*wait))
                };
                let is_plain = self.fallback == Some(AttemptFallback::PlainAnswer);
                let form = if is_plain { ", without streaming" } else { "" };
                Some(ScreenItem::Line(format!("{failed}; attempt {attempt} {next}{form}")))
            }
            Event::AttemptVoided { attempt, reason, model: _, streamed: _, voided: _ } => {
                Some(ScreenItem::Line(self.failed_attempt(*attempt, reason)))
            }
            Event::ToolSetAside { tool_name, model, reason } => Some(ScreenItem::Line(format!(
                "! the service of {model} refuses the tool {tool_name}, which is left out: {reason}"
            ))),
            Event::LimitReached { limit, value, maximum, action, reason } => {
                let line = limit_line(limit, *value, *maximum, action);
                let because =
                    reason.map(|reason| format!(": {}", reason.as_str().replace('_', " ")));
                Some(ScreenItem::Line(line + &because.unwrap_or_default()))
            }
            Event::ContextCompacted { kind, tokens_before, tokens_after, upto: _, messages } => {
                let kind = kind.as_str();
                Some(ScreenItem::Line(match messages.is_empty() {
                    true => format!(
                        "- context {kind}: about {tokens_before} tokens, now {tokens_after}"
                    ),
                    false => format!("- {kind}: {}", messages.join(", ")),
                }))
            }
            Event::TurnEnded { summary } => {
                self.finish = summary.finish_reason.as_ref().map(|finish| finish.kind);
                None
            }
            Event::RunEnded { end, stats, text, error, .. } => {
                self.open.clear();
                // `callsheet run` prints the error.
                let note = match error {
                    None => answer_note(*end, text, self.finish),
                    Some(_) => None,
                };
                let note = note.map(|note| format!("! {note}\n")).unwrap_or_default();
                Some(ScreenItem::Line(format!("{note}{}", run_end_line(*end, stats))))
            }
            Event::RunStarted { .. }
            | Event::InputQueued { .. }
            | Event::InputRemoved { .. }
            | Event::RunSteered { .. }
            | Event::RunWaiting { .. }
            | Event::ToolsChanged { .. }
            | Event::ServerReleased { .. }
            | Event::TurnStarted
            | Event::ThinkingReceived { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsReceived { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::ArgumentsLost { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseEnded { .. }
            | Event::ResponseDecoded { .. }
            | Event::AttemptEnded { .. }
            | Event::AttemptFellBack { .. }
            | Event::OfChild { .. }
            | Event::HistoryRepaired { .. } => None,
        };
        self.follow_model(now, event);
        item
    }

    /// Returns true if an event `AttemptStarted` with this number starts no new attempt, but recovers the current
    /// one: its actor died, or the host stopped, after calls with effects had started, so the received part is used.
    fn is_recovered(&self, attempt: u32) -> bool {
        attempt <= self.attempt.max(1)
    }

    /// Removes the calls of an attempt that failed, notes the reason, and returns the beginning of its line.
    fn failed_attempt(&mut self, attempt: u32, reason: &str) -> String {
        self.open.clear();
        let because = match reason == self.last_reason {
            true => "the same again".to_owned(),
            false => clean(reason),
        };
        reason.clone_into(&mut self.last_reason);
        format!("! attempt {attempt} with {} failed: {because}", self.model)
    }

    /// Returns the configured name of a model. If it begins with `(`, such as that of flags, returns the name that
    /// the service knows instead.
    fn model_name(&self, index: usize, service_name: &str) -> String {
        let configured = self.models.get(index).filter(|name| !name.starts_with('('));
        short(configured.map_or(service_name, String::as_str))
    }

    /// Returns one line for each open call at time `now`, or one for a wait of at least a second: for another
    /// attempt, or without open calls for the model or for servers of tools.
    pub(super) fn open_call_lines(&self, now: Duration) -> Vec<String> {
        let frame = usize::try_from(now.as_millis() / 100).unwrap_or_default() % SPINNER.len();
        let spinner = SPINNER.get(frame).copied().unwrap_or_default();
        if let Some((attempt, start)) = self.retry.filter(|(_, start)| now < *start) {
            let seconds = start.saturating_sub(now).as_millis().div_ceil(1000);
            return vec![format!("{spinner} attempt {attempt} starts in {seconds} s")];
        }
        let silent = self.silent_since.map(|since| now.saturating_sub(since));
        match silent.filter(|silent| self.open.is_empty() && *silent >= MODEL_WAIT_SHOWN) {
            Some(silent) => {
                let (waited_for, seconds) = (self.waited_for(), silent.as_secs());
                vec![match self.is_thinking {
                    true => format!("{spinner} {waited_for} is thinking, {seconds} s"),
                    false => format!("{spinner} waiting for {waited_for}, {seconds} s"),
                }]
            }
            None => self.open.iter().map(|open| open.line(now, spinner)).collect(),
        }
    }

    /// Returns a line about a long wait for the model or for servers of tools, once for each wait. The wait for the
    /// model ends when text or a call has come or the attempt has ended, that for servers when the turn starts.
    pub(super) fn long_wait_line(&mut self, now: Duration) -> Option<ScreenItem> {
        let silent = now.saturating_sub(self.silent_since?);
        if silent < LONG_MODEL_WAIT || std::mem::replace(&mut self.is_wait_reported, true) {
            return None;
        }
        Some(ScreenItem::Line(format!("waiting for {}", self.waited_for())))
    }

    /// Names what the run waits for.
    fn waited_for(&self) -> &str {
        if self.servers.is_empty() { &self.model } else { &self.servers }
    }

    /// Updates the wait for the model, or for servers of tools.
    fn follow_model(&mut self, now: Duration, event: &Event) {
        match event {
            Event::RunStarted { model, .. } => {
                self.first_model = self.model_name(0, model);
                self.model.clone_from(&self.first_model);
            }
            Event::RunWaiting { waiting_for: _, servers } => {
                self.servers = awaited_servers(servers);
                self.silent_since = Some(now);
            }
            Event::TurnStarted => {
                self.servers.clear();
                (self.attempt, self.model_index) = (1, 0);
                self.model.clone_from(&self.first_model);
                (self.silent_since, self.is_thinking) = (Some(now), false);
                self.is_wait_reported = false;
            }
            Event::AttemptStarted { attempt, .. } if self.is_recovered(*attempt) => {
                (self.silent_since, self.is_wait_reported) = (None, false);
                self.retry = None;
            }
            Event::AttemptFellBack { to } => self.fallback = Some(*to),
            Event::AttemptStarted { attempt, model, wait, .. } => {
                self.attempt = *attempt;
                let is_next = self.fallback.take() == Some(AttemptFallback::NextModel);
                self.model_index += usize::from(is_next);
                self.model = self.model_name(self.model_index, model);
                let start = now + *wait;
                (self.silent_since, self.is_thinking) = (Some(start), false);
                self.retry = (*wait >= MODEL_WAIT_SHOWN).then_some((*attempt, start));
            }
            // An empty text does not count as thinking.
            Event::ThinkingReceived { text } => self.is_thinking |= !text.is_empty(),
            Event::TextReceived { .. }
            | Event::CallOpened { .. }
            | Event::AttemptVoided { .. }
            | Event::AttemptEnded { .. }
            | Event::RunEnded { .. } => {
                (self.silent_since, self.is_wait_reported) = (None, false);
                self.retry = None;
            }
            Event::InputQueued { .. }
            | Event::InputRemoved { .. }
            | Event::RunSteered { .. }
            | Event::ToolsChanged { .. }
            | Event::ServerReleased { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsReceived { .. }
            | Event::CallWaiting { .. }
            | Event::CallStarted { .. }
            | Event::CallProgressed { .. }
            | Event::CallDiscarded { .. }
            | Event::CallEnded { .. }
            | Event::ServiceCallChanged { .. }
            | Event::ApprovalAsked { .. }
            | Event::ApprovalGiven { .. }
            | Event::ConflictFound { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::ArgumentsLost { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseEnded { .. }
            | Event::ResponseDecoded { .. }
            | Event::LimitReached { .. }
            | Event::ContextCompacted { .. }
            | Event::TurnEnded { .. }
            | Event::OfChild { .. }
            | Event::HistoryRepaired { .. }
            | Event::ToolSetAside { .. } => {}
        }
    }

    fn update(&mut self, call: &CallLabel, input: &str, activity: CallActivity) {
        let open_call = self.open.iter_mut().find(|open| open.key == call.key);
        match open_call {
            Some(open) => {
                open.input = short(input);
                open.activity = activity;
            }
            None => self.open.push(CallProgress {
                key: call.key,
                name: short(&call.name),
                input: short(input),
                activity,
                note: String::new(),
            }),
        }
    }

    fn close(&mut self, key: CallKey) {
        self.open.retain(|open| open.key != key);
    }
}

impl CallProgress {
    fn line(&self, now: Duration, spinner: &str) -> String {
        let Self { name, input, note, activity, key: _ } = self;
        let activity = match activity {
            CallActivity::ReceivingArguments => "…".to_owned(),
            CallActivity::Waiting(reason) => match reason {
                WaitingFor::Finish => "waits for the end of the response".to_owned(),
                WaitingFor::Ticket => "waits for its turn".to_owned(),
                WaitingFor::Exclusive => "waits for an exclusive call".to_owned(),
                WaitingFor::Capacity => "waits for a free slot".to_owned(),
                WaitingFor::Rate => "waits for its rate limit".to_owned(),
                WaitingFor::Approval => "waits for approval".to_owned(),
                WaitingFor::Server => "waits for its server".to_owned(),
                WaitingFor::Hook => "waits for hooks".to_owned(),
                WaitingFor::Client => "waits for the client".to_owned(),
            },
            CallActivity::Running { since } => format_duration(now.saturating_sub(*since)),
        };
        let gap = if note.is_empty() { "" } else { "  " };
        format!("{spinner} {name} {input}  {activity}{gap}{note}")
    }
}

/// Names the servers of tools that a run waits for.
fn awaited_servers(servers: &[String]) -> String {
    let names = servers.iter().map(|name| short(name)).collect::<Vec<_>>().join(", ");
    match servers.len() {
        1 => format!("the server {names}"),
        _ => format!("the servers {names}"),
    }
}

/// Formats a call that the service runs itself. Its start has no line.
fn service_line(call: &ServiceCall, status: ServiceCallStatus) -> Option<String> {
    let name = short(&call.name);
    match status {
        ServiceCallStatus::Running => None,
        ServiceCallStatus::Finished => {
            Some(format!("· {name} {}  run by the service", short(&call.input_summary)))
        }
        ServiceCallStatus::Discarded => Some(format!("- {name} discarded (the service's)")),
    }
}

/// Formats the question of an approval, with the full arguments.
pub(super) fn approval_question(request: &ApprovalRequest) -> String {
    let name = printable(&request.call.name);
    let input = printable(&request.arguments.to_string());
    // Long arguments fill the screen, so the last line has the name, too.
    match request.phase {
        WaitPhase::Before => format!("? {name} {input}: may {name} run?"),
        WaitPhase::After => {
            let output = printable(request.output_summary.as_deref().unwrap_or_default());
            format!(
                "? {name} {input} answered: {output}\n  may the model see the answer of {name}?"
            )
        }
        WaitPhase::Input => input_question(&name, request.question.as_deref()),
        WaitPhase::Client => format!("? {name} {input} is run by the client"),
    }
}

/// Formats the question of a tool. A form is filled in field by field after `y`.
fn input_question(name: &str, question: Option<&Question>) -> String {
    let Some(question) = question else { return format!("? {name} asks") };
    let message = printable(&question.message);
    match &question.kind {
        QuestionKind::Form(_) => {
            format!(
                "? {name} asks: {message}\n  answer {name} (y: field by field, or one JSON object)?"
            )
        }
        QuestionKind::Url(url) => {
            let url = printable(url);
            format!("? {name} asks: {message}\n  open {url} yourself; may {name} go on?")
        }
    }
}

fn approval_line(name: &str, phase: WaitPhase, verdict: ApprovalVerdict) -> String {
    let mark = match verdict {
        ApprovalVerdict::Approved => "+",
        ApprovalVerdict::Rejected | ApprovalVerdict::Expired | ApprovalVerdict::Withdrawn => "-",
    };
    let subject = match phase {
        WaitPhase::Before => "",
        WaitPhase::After => "'s result",
        WaitPhase::Input => "'s question",
        WaitPhase::Client => "'s client",
    };
    format!("{mark} {}{subject} {}", short(name), verdict.as_str())
}

fn conflict_line(name: &str, names: &[VariableName], resolution: ConflictResolution) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let consequence = match resolution {
        ConflictResolution::Rerun => "it runs again",
        ConflictResolution::WritesDropped => "its writes are discarded",
        ConflictResolution::ResultKept => "its result rests on the older values",
    };
    format!(
        "! {} read a variable too early ({}): {consequence}",
        short(name),
        short(&names.join(", "))
    )
}

/// Formats a call that has its result.
fn result_line(result: &ToolResult) -> String {
    let mark = match result.outcome.status {
        ToolStatus::Ok => "✓",
        ToolStatus::Failed
        | ToolStatus::TimedOut
        | ToolStatus::Cancelled
        | ToolStatus::Refused
        | ToolStatus::Unknown => "✗",
    };
    let name = short(&result.call.name);
    let input = short(&result.call.arguments_text());
    let reason = refusal_reason(&result.outcome).filter(|reason| !reason.is_empty());
    let output = match reason {
        Some(reason) => excerpt(&clean(&reason), REASON_CHARS),
        None => short(&result.outcome.content),
    };
    let copied = if result.notes.duplicate_of.is_some() { " (copied)" } else { "" };
    format!("{mark} {name} {input}  {}{copied}  {output}", format_duration(result.duration))
}

/// Returns the reason of a call that was refused. The model receives it as JSON.
fn refusal_reason(outcome: &ToolOutcome) -> Option<String> {
    let refused = outcome.status == ToolStatus::Refused;
    let content: serde_json::Value =
        refused.then(|| serde_json::from_str(&outcome.content).ok()).flatten()?;
    content.get("message")?.as_str().map(str::to_owned)
}

/// Formats a limit that was reached, or half used, as a sentence that names its configuration key.
fn limit_line(limit: &str, value: u64, maximum: u64, action: &str) -> String {
    let used = |unit: &str| format!("{unit} used: {value} of {maximum} ({limit})");
    let longer = |subject: &str| {
        let time = format_duration(Duration::from_millis(maximum));
        format!("{subject} than {time} ({limit})")
    };
    let state = match (limit, action) {
        ("max_tool_calls_per_run", "ended") => {
            format!("the model asks for more than {} ({limit})", format_count(maximum, "call"))
        }
        ("max_turns", _) => used("turns"),
        ("max_tool_calls_per_run", _) => used("calls"),
        ("max_tokens_per_run", _) => used("tokens"),
        ("max_failed_turns", _) => {
            let turns = format_count(value, "turn");
            format!("every call of the last {turns} failed ({limit} = {maximum})")
        }
        ("repeat_limit", _) => format!("the same calls came {value} times ({limit} = {maximum})"),
        ("max_tool_calls_per_turn", _) => {
            format!("a response has more than {} ({limit})", format_count(maximum, "call"))
        }
        ("max_arguments_bytes", _) => {
            format!("the arguments of a call have more than {maximum} bytes ({limit})")
        }
        ("max_result_bytes", _) => format!("a result has {value} bytes ({limit} = {maximum})"),
        ("max_variables_bytes", _) => {
            format!("the variables would have {value} bytes ({limit} = {maximum})")
        }
        ("run_timeout", _) => longer("the run takes longer"),
        ("tool_timeout", _) => {
            let time = format_duration(Duration::from_millis(maximum));
            format!("a call takes longer than {time} ({limit}, or the tool's own timeout)")
        }
        ("approval_timeout", _) => longer("a call waits for the client longer"),
        ("output_retries", _) => {
            format!(
                "the answer does not match its schema, and no retry is left ({limit} = {maximum})"
            )
        }
        ("compact_at", "summary_failed") => {
            format!("the context could not be summarised ({limit})")
        }
        ("compact_at", _) => format!("a summary saves less than a third of the context ({limit})"),
        ("tool_choice", _) => format!("the model does not make the call that {limit} asks for"),
        (_, _) => format!("{limit}: {value} of {maximum}"),
    };
    let consequence = match (limit, action) {
        (_, "half_used" | "summary_failed" | "no_call") => "",
        (_, "told") => ": the model is told",
        (_, "ended") => ": the run ends",
        (_, "final_answer") => ": the model is asked for an answer without calls",
        (_, "answer_kept") => ": the answer is kept",
        (_, "answer_not_stored") => ": the answer is not stored in its variable",
        (_, "summary_has_no_effect") => ": it is not used",
        ("max_tool_calls_per_turn", "answered") => ": the others do not run",
        ("max_tool_calls_per_turn", "truncated") => ": the others are dropped",
        ("max_tool_calls_per_turn", "failed") => ": none runs, and the run ends",
        (_, "answered") => ": it does not run",
        (_, "timed_out") => ": it ends",
        (_, "shortened") => ": the model receives a part",
        (_, "writes_dropped") => ": the writes of the call are dropped",
        (_, other) => return format!("! {}: {}", clean(&state), clean(other)),
    };
    format!("! {}{consequence}", clean(&state))
}

/// Returns a sentence about an answer that is cut off or empty, or about a refusal.
fn answer_note(end: RunEnd, text: &str, finish: Option<FinishKind>) -> Option<&'static str> {
    let is_answer = matches!(end, RunEnd::Answered | RunEnd::MaxTurns);
    let is_cut_off = finish == Some(FinishKind::Length);
    if is_answer && is_cut_off {
        Some("the answer was cut off at its maximum length")
    } else if end == RunEnd::Answered && text.is_empty() {
        Some("the answer is empty")
    } else if end == RunEnd::Refused && finish == Some(FinishKind::ContentFilter) {
        Some("the service's content filter ended the answer")
    } else if end == RunEnd::Refused {
        Some("the model refused to answer")
    } else {
        None
    }
}

fn run_end_line(end: RunEnd, stats: &RunStats) -> String {
    let RunStats { turns, tool_calls, duration, .. } = stats;
    let (turns, calls) = (format_count(*turns, "turn"), format_count(*tool_calls, "call"));
    let word = match end {
        RunEnd::MaxTurns
        | RunEnd::TimedOut
        | RunEnd::AllToolsFailed
        | RunEnd::Budget
        | RunEnd::LoopDetected => format!("ended ({})", end.as_str()),
        RunEnd::Answered
        | RunEnd::Stopped
        | RunEnd::Refused
        | RunEnd::Failed
        | RunEnd::Interrupted => end.as_str().to_owned(),
    };
    format!("{word}: {turns}, {calls}, {}", format_duration(*duration))
}

fn format_duration(duration: Duration) -> String {
    if duration < Duration::from_millis(10) {
        format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
    } else if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

fn short(text: &str) -> String {
    excerpt(&clean(text), EXCERPT_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use callsheet_values::event::TurnSummary;
    use callsheet_values::types::{
        Execution, FailureKind, FinishReason, Metadata, ResultNotes, ToolCall,
    };

    fn label(index: u32) -> CallLabel {
        let key = CallKey { turn: 1, attempt: 1, index };
        CallLabel { key, provider_id: None, name: "clock".into() }
    }

    fn started(index: u32, input: &str) -> Event {
        let input_summary = input.to_owned();
        Event::CallStarted {
            call: label(index),
            arguments: std::sync::Arc::default(),
            input_summary,
            early: false,
            waited: Duration::ZERO,
            queued: None,
            known_calls: 1,
        }
    }

    fn finished(index: u32, outcome: ToolOutcome) -> Event {
        let call = ToolCall {
            key: label(index).key,
            id: "c".into(),
            provider_id: None,
            name: "clock".into(),
            arguments: json!({"zone": "Asia/Tokyo"}).into(),
            raw: None,
            indirect: false,
        };
        let result = ToolResult {
            call,
            outcome,
            notes: ResultNotes::default(),
            started: None,
            wait: Duration::ZERO,
            duration: Duration::from_millis(1500),
            writes: callsheet_values::types::WriteSet::default(),
        };
        Event::CallEnded { result: Box::new(result), parallel: false, early: false }
    }

    #[test]
    fn a_call_has_a_line_from_its_opening_to_its_result() {
        let at = Duration::from_millis;
        let mut progress = RunProgress::default();
        assert_eq!(progress.handle_event(at(0), &Event::CallOpened { call: label(0) }), None);
        assert_eq!(progress.open_call_lines(at(0)), ["⠋ clock   …"]);
        assert_eq!(progress.handle_event(at(100), &started(0, "{\"zone\":1}")), None);
        assert_eq!(progress.open_call_lines(at(350)), ["⠸ clock {\"zone\":1}  250 ms"]);
        let note = Event::CallProgressed { key: label(0).key, text: "half\nway".to_owned() };
        assert_eq!(progress.handle_event(at(350), &note), None);
        assert_eq!(progress.open_call_lines(at(1400)), ["⠦ clock {\"zone\":1}  1.3 s  half way"]);
        let line = "✓ clock {\"zone\":\"Asia/Tokyo\"}  1.5 s  noon".to_owned();
        let ended = progress.handle_event(at(1600), &finished(0, ToolOutcome::ok("noon")));
        assert_eq!(ended, Some(ScreenItem::Line(line)));
        assert!(progress.open_call_lines(at(1600)).is_empty());
    }

    #[test]
    fn approval_questions_are_complete_and_decisions_are_one_line() {
        let mut request = ApprovalRequest {
            call: label(0),
            phase: WaitPhase::Before,
            arguments: json!({"text": format!("{}\u{9b}", "long ".repeat(100))}).into(),
            arguments_sha256: String::new(),
            output_summary: None,
            question: None,
        };
        let text = approval_question(&request);
        assert!(text.len() > 500 && text.ends_with("\\u{9b}\"}: may clock run?"), "{text}");
        request.phase = WaitPhase::After;
        request.output_summary = Some("no\non".to_owned());
        let text = approval_question(&request);
        let end = "answered: no\\non\n  may the model see the answer of clock?";
        assert!(text.ends_with(end), "{text}");
        let line = |event: &Event| match RunProgress::default().handle_event(Duration::ZERO, event)
        {
            Some(ScreenItem::Line(line)) => line,
            other => panic!("{other:?}"),
        };
        let (call, waited) = (label(0), Duration::ZERO);
        let given = Event::ApprovalGiven {
            call: call.clone(),
            phase: WaitPhase::After,
            verdict: ApprovalVerdict::Expired,
            message: None,
            author: None,
            waited,
        };
        assert_eq!(line(&given), "- clock's result expired");
        let names = vec!["a".into(), "b".into()];
        let conflict = Event::ConflictFound { call, names, resolution: ConflictResolution::Rerun };
        assert_eq!(line(&conflict), "! clock read a variable too early (a, b): it runs again");
    }

    #[test]
    fn a_call_that_the_service_runs_has_one_line() {
        let call = ServiceCall {
            turn: 1,
            attempt: 1,
            position: 0,
            provider_id: None,
            name: "web_search".into(),
            input_summary: "{\"query\":\"a\u{9b}b\"}".to_owned(),
        };
        let item = |status| {
            let event = Event::ServiceCallChanged { call: Box::new(call.clone()), status };
            RunProgress::default().handle_event(Duration::ZERO, &event)
        };
        assert_eq!(item(ServiceCallStatus::Running), None);
        let line = "· web_search {\"query\":\"a b\"}  run by the service".to_owned();
        assert_eq!(item(ServiceCallStatus::Finished), Some(ScreenItem::Line(line)));
        let line = "- web_search discarded (the service's)".to_owned();
        assert_eq!(item(ServiceCallStatus::Discarded), Some(ScreenItem::Line(line)));
    }

    #[test]
    fn a_long_wait_for_the_model_has_a_line_until_something_comes() {
        let at = Duration::from_secs;
        let mut progress = asking_models(&[]);
        let lines = |progress: &RunProgress, seconds| progress.open_call_lines(at(seconds));
        progress.handle_event(at(5), &Event::TurnStarted);
        assert!(progress.open_call_lines(Duration::from_millis(5_900)).is_empty());
        assert_eq!(progress.long_wait_line(at(7)), None);
        let line = ScreenItem::Line("waiting for m".to_owned());
        assert_eq!(progress.long_wait_line(at(8)), Some(line));
        assert_eq!(progress.long_wait_line(at(9)), None, "one line is enough");
        assert_eq!(lines(&progress, 17), ["⠹ waiting for m, 12 s"]);
        let thinking = |text: &str| Event::ThinkingReceived { text: text.to_owned() };
        progress.handle_event(at(18), &thinking(""));
        assert_eq!(lines(&progress, 18), ["⠼ waiting for m, 13 s"]);
        progress.handle_event(at(18), &thinking("Hm"));
        assert_eq!(lines(&progress, 20), ["⠋ m is thinking, 15 s"]);
        progress.handle_event(at(21), &Event::TextReceived { text: "So".to_owned() });
        assert!(lines(&progress, 60).is_empty());
    }

    #[test]
    fn a_rejected_call_has_one_line_with_the_reason_as_a_sentence() {
        let mut progress = RunProgress::default();
        let rejected = Event::ApprovalGiven {
            call: label(0),
            phase: WaitPhase::Before,
            verdict: ApprovalVerdict::Rejected,
            message: None,
            author: None,
            waited: Duration::ZERO,
        };
        assert_eq!(progress.handle_event(Duration::ZERO, &rejected), None);
        let content = json!({"status": "rejected", "message": "not run: too expensive"});
        let outcome =
            ToolOutcome::not_ok(ToolStatus::Refused, FailureKind::Rejected, content.to_string());
        let line = "✗ clock {\"zone\":\"Asia/Tokyo\"}  1.5 s  not run: too expensive".to_owned();
        let ended = progress.handle_event(Duration::ZERO, &finished(0, outcome));
        assert_eq!(ended, Some(ScreenItem::Line(line)));
    }

    #[test]
    fn the_end_of_a_run_says_what_is_wrong_with_its_answer() {
        let line = |end, text: &str, finish: Option<FinishKind>| {
            let mut progress = RunProgress::default();
            let finish_reason = finish.map(|kind| FinishReason::new(kind, "word"));
            let summary = TurnSummary { finish_reason, ..TurnSummary::default() };
            let turn_ended = Event::TurnEnded { summary: Box::new(summary) };
            assert_eq!(progress.handle_event(Duration::ZERO, &turn_ended), None);
            let stats = RunStats { turns: 2, tool_calls: 1, ..RunStats::default() };
            let ended = Event::RunEnded {
                agent: "default".to_owned(),
                metadata: callsheet_values::types::Metadata::default(),
                end,
                text: text.to_owned(),
                output: None,
                error: None,
                stats: Box::new(stats),
                finish_reason: None,
            };
            line_of(progress.handle_event(Duration::ZERO, &ended))
        };
        let (length, filter) = (Some(FinishKind::Length), Some(FinishKind::ContentFilter));
        for (end, text, finish, expected) in [
            (RunEnd::Answered, "Yes.", Some(FinishKind::Stop), "answered"),
            (RunEnd::Answered, "", None, "! the answer is empty\nanswered"),
            (
                RunEnd::Answered,
                "Ye",
                length,
                "! the answer was cut off at its maximum length\nanswered",
            ),
            (
                RunEnd::Refused,
                "",
                filter,
                "! the service's content filter ended the answer\nrefused",
            ),
            (RunEnd::Refused, "No.", None, "! the model refused to answer\nrefused"),
            (RunEnd::LoopDetected, "", None, "ended (loop_detected)"),
        ] {
            assert_eq!(line(end, text, finish), format!("{expected}: 2 turns, 1 call, 0.0 ms"));
        }
    }

    #[test]
    fn limits_are_sentences_with_the_configuration_key() {
        for (limit, value, maximum, action, expected) in [
            ("max_turns", 5, 10, "half_used", "turns used: 5 of 10 (max_turns)"),
            (
                "max_turns",
                3,
                3,
                "final_answer",
                "turns used: 3 of 3 (max_turns): the model is asked for an answer without calls",
            ),
            (
                "max_tool_calls_per_run",
                4,
                3,
                "ended",
                "the model asks for more than 3 calls (max_tool_calls_per_run): the run ends",
            ),
            (
                "max_tool_calls_per_turn",
                2,
                1,
                "answered",
                "a response has more than 1 call (max_tool_calls_per_turn): the others do not run",
            ),
            (
                "repeat_limit",
                6,
                3,
                "ended",
                "the same calls came 6 times (repeat_limit = 3): the run ends",
            ),
            (
                "max_arguments_bytes",
                9,
                8,
                "answered",
                "the arguments of a call have more than 8 bytes (max_arguments_bytes): it does not run",
            ),
            (
                "run_timeout",
                1500,
                1500,
                "ended",
                "the run takes longer than 1.5 s (run_timeout): the run ends",
            ),
            ("new_limit", 1, 2, "new\naction", "new_limit: 1 of 2: new action"),
        ] {
            assert_eq!(limit_line(limit, value, maximum, action), format!("! {expected}"));
        }
        // Each limit of the configuration has its sentence.
        for limit in callsheet_values::config::Limits::NAMES {
            let line = limit_line(limit, 1, 2, "ended");
            assert!(line.contains(&format!("({limit}")), "{line}");
        }
    }

    #[test]
    fn a_wait_for_servers_is_shown_until_the_first_turn() {
        let mut progress = asking_models(&[]);
        let waiting_for = WaitingFor::Server;
        let servers = vec!["files".to_owned()];
        progress.handle_event(Duration::ZERO, &Event::RunWaiting { waiting_for, servers });
        let lines = progress.open_call_lines(Duration::from_secs(3));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with("waiting for the server files, 3 s"), "{lines:?}");
        let line = progress.long_wait_line(Duration::from_secs(4));
        assert_eq!(line, Some(ScreenItem::Line("waiting for the server files".to_owned())));
        progress.handle_event(Duration::from_secs(5), &Event::TurnStarted);
        let lines = progress.open_call_lines(Duration::from_secs(7));
        assert!(lines[0].ends_with("waiting for m, 2 s"), "{lines:?}");
        let line = progress.long_wait_line(Duration::from_secs(8));
        assert_eq!(line, Some(ScreenItem::Line("waiting for m".to_owned())));
        let servers = ["files", "web"].map(str::to_owned);
        assert_eq!(awaited_servers(&servers), "the servers files, web");
    }

    /// Returns the progress of a run whose models have these configured names. All services call them `m`.
    fn asking_models(models: &[&str]) -> RunProgress {
        let mut progress = RunProgress::new(models.iter().map(|name| (*name).to_owned()).collect());
        let run_started = Event::RunStarted {
            agent: "default".to_owned(),
            model: "m".to_owned(),
            execution: Execution::Sequential,
            input: None,
            metadata: Metadata::default(),
            reopened: false,
        };
        assert_eq!(progress.handle_event(Duration::ZERO, &run_started), None);
        progress
    }

    fn line_of(item: Option<ScreenItem>) -> String {
        match item {
            Some(ScreenItem::Line(line)) => line,
            Some(ScreenItem::AnswerText(_)) | None => panic!("no line: {item:?}"),
        }
    }

    fn attempt(attempt: u32, reason: &str, wait: Duration) -> Event {
        Event::AttemptStarted {
            attempt,
            model: "m".to_owned(),
            streamed: true,
            reason: reason.to_owned(),
            wait,
            voided: None,
        }
    }

    #[test]
    fn another_attempt_removes_open_calls() {
        let mut progress = asking_models(&[]);
        progress.handle_event(Duration::ZERO, &started(0, "{}"));
        progress.handle_event(Duration::ZERO, &started(1, "{}"));
        assert_eq!(progress.open_call_lines(Duration::ZERO).len(), 2);
        let second = attempt(2, "it\nbroke", Duration::from_millis(300));
        let line = line_of(progress.handle_event(Duration::ZERO, &second));
        assert_eq!(line, "! attempt 1 with m failed: it broke; attempt 2 follows in 300 ms");
        assert!(progress.open_call_lines(Duration::ZERO).is_empty());
    }

    #[test]
    fn an_attempt_of_which_a_part_is_used_is_followed_by_no_other() {
        let mut progress = asking_models(&["main"]);
        let mut line = |event: &Event| line_of(progress.handle_event(Duration::ZERO, event));
        let recovered = attempt(1, "the host stopped", Duration::ZERO);
        let expected =
            "! attempt 1 with main failed: the host stopped; the part that has arrived is used";
        assert_eq!(line(&recovered), expected);
        let second = line(&attempt(2, "500: boom", Duration::ZERO));
        assert_eq!(second, "! attempt 1 with main failed: 500: boom; attempt 2 follows");
        let recovered = line(&attempt(2, "the host stopped", Duration::ZERO));
        assert_eq!(recovered, expected.replace("attempt 1", "attempt 2"));
        // No model is waited for.
        assert!(progress.open_call_lines(Duration::from_secs(5)).is_empty());
        // The attempts of each turn are counted from 1.
        progress.handle_event(Duration::ZERO, &Event::TurnStarted);
        let mut line = |event: &Event| line_of(progress.handle_event(Duration::ZERO, event));
        let second = line(&attempt(2, "500: boom", Duration::ZERO));
        assert!(second.ends_with("; attempt 2 follows"), "{second}");
    }

    #[test]
    fn a_failed_attempt_has_its_own_reason_and_the_configured_name_of_its_model() {
        let mut progress = asking_models(&["main", "backup"]);
        let next_model = Event::AttemptFellBack { to: AttemptFallback::NextModel };
        assert_eq!(progress.handle_event(Duration::ZERO, &next_model), None);
        let mut line = |event: &Event| line_of(progress.handle_event(Duration::ZERO, event));
        let fallback = line(&attempt(2, "500: boom", Duration::ZERO));
        let expected =
            "! attempt 1 with main failed: 500: boom; attempt 2 asks the fallback model backup";
        assert_eq!(fallback, expected);
        let third = line(&attempt(3, "500: boom", Duration::ZERO));
        assert_eq!(third, "! attempt 2 with backup failed: the same again; attempt 3 follows");
        let voided = Event::AttemptVoided {
            attempt: 3,
            model: "m".to_owned(),
            streamed: true,
            reason: "it broke".to_owned(),
            voided: None,
        };
        assert_eq!(line(&voided), "! attempt 3 with backup failed: it broke");
        // Each turn asks the first model first.
        progress.handle_event(Duration::ZERO, &Event::TurnStarted);
        assert_eq!(progress.open_call_lines(Duration::from_secs(2)), ["⠼ waiting for main, 2 s"]);
        // The model of flags has no configured name.
        assert_eq!(asking_models(&["(flags)"]).model, "m");
    }

    #[test]
    fn the_wait_for_another_attempt_is_not_one_for_the_model() {
        let at = Duration::from_millis;
        let mut progress = asking_models(&["main"]);
        progress.handle_event(at(0), &Event::TurnStarted);
        progress.handle_event(at(100), &attempt(2, "429", at(5_000)));
        assert_eq!(progress.open_call_lines(at(200)), ["⠹ attempt 2 starts in 5 s"]);
        assert_eq!(progress.long_wait_line(at(4_900)), None);
        assert!(progress.open_call_lines(at(5_200)).is_empty());
        assert_eq!(progress.open_call_lines(at(7_200)), ["⠋ waiting for main, 2 s"]);
        progress.handle_event(at(7_300), &attempt(3, "429", at(5_000)));
        let voided = Event::AttemptVoided {
            attempt: 3,
            model: "m".to_owned(),
            streamed: true,
            reason: "429".to_owned(),
            voided: None,
        };
        progress.handle_event(at(7_400), &voided);
        assert!(progress.open_call_lines(at(7_500)).is_empty());
    }

    #[test]
    fn control_characters_of_tools_are_removed() {
        let outcome = ToolOutcome::not_ok(
            ToolStatus::Failed,
            FailureKind::ToolError,
            "\u{1b}[2Jgone\r\n\u{9b}31m",
        );
        let Some(ScreenItem::Line(line)) =
            RunProgress::default().handle_event(Duration::ZERO, &finished(0, outcome))
        else {
            panic!("a call that ended is shown");
        };
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.starts_with('✗'), "{line}");
    }
}
