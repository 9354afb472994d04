//! The progress of a run: turns events into lines and keeps the state of open calls. Does not write;
//! `screen.rs` does.

use std::time::Duration;

use crate::event::ConflictResolution;
use crate::event::{
    ApprovalRequest, CallLabel, Event, RunStats, ServiceCall, ServiceCallStatus, WaitingFor,
};
use crate::types::{
    ApprovalPhase, CallKey, Question, QuestionKind, RunEnd, ToolOutcome, ToolResult, ToolStatus,
    VariableName, Verdict, excerpt, harmless, printable,
};

/// Maximum number of characters of a call's name, arguments or result on its line.
const EXCERPT_CHARS: usize = 60;

/// Frames of the spinner.
const SPINNER: [&str; 8] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧"];

/// Permanent output on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScreenItem {
    /// A part of the answer.
    AnswerText(String),
    /// A line about the run.
    Line(String),
}

/// Time after which the wait for a model is shown.
const MODEL_WAIT_SHOWN: Duration = Duration::from_secs(1);

/// Time after which the wait for a model has a line where the wait cannot be redrawn.
const LONG_MODEL_WAIT: Duration = Duration::from_secs(3);

/// The open calls of a run, and its wait for the model.
#[derive(Debug, Default)]
pub(super) struct RunProgress {
    open: Vec<CallProgress>,
    /// The model that is asked.
    model: String,
    /// The servers that the run waits for, in words. Empty if it waits for its model.
    servers: String,
    /// Since when nothing has come from the model, or from the servers.
    silent_since: Option<Duration>,
    is_thinking: bool,
    /// The line about the current wait for the model was returned.
    is_wait_reported: bool,
    /// The reason of the last attempt's failure.
    last_reason: String,
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
    /// Updates the open calls from an event at time `now`, and returns the event's permanent output.
    pub(super) fn handle_event(&mut self, now: Duration, event: &Event) -> Option<ScreenItem> {
        self.follow_model(now, event);
        match event {
            Event::TextReceived { text } => Some(ScreenItem::AnswerText(text.clone())),
            Event::CallOpened { call } => {
                self.update(call, "", CallActivity::ReceivingArguments);
                None
            }
            Event::CallWaiting { call, waiting_for, input_summary, client_input: _ } => {
                self.update(call, input_summary, CallActivity::Waiting(*waiting_for));
                None
            }
            Event::CallStarted { call, input_summary, early: _, waited: _, queued: _, of: _ } => {
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
            // The result of a call that may not run has the reason.
            Event::ApprovalGiven {
                phase: ApprovalPhase::Before,
                verdict: Verdict::Rejected | Verdict::Expired,
                ..
            } => None,
            Event::ApprovalGiven { call, phase, verdict, waited: _ } => {
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
            Event::AttemptStarted { attempt, reason, model, .. }
            | Event::AttemptVoided { attempt, reason, model, streamed: _ } => {
                // All calls of the failed attempt are void.
                self.open.clear();
                let because = match *reason == self.last_reason {
                    true => "the same again".to_owned(),
                    false => clean(reason),
                };
                reason.clone_into(&mut self.last_reason);
                Some(ScreenItem::Line(format!("! attempt {attempt} with {model}: {because}")))
            }
            Event::LimitReached { limit, value, maximum, action } => {
                let action = clean(action);
                if limit.ends_with("_timeout") {
                    let time = format_duration(Duration::from_millis(*maximum));
                    return Some(ScreenItem::Line(format!(
                        "! {limit} of {time} is over: {action}"
                    )));
                }
                Some(ScreenItem::Line(format!("! {limit}: {value} of at most {maximum}: {action}")))
            }
            Event::ContextCompacted { kind, tokens_before, tokens_after, upto: _ } => {
                let kind = kind.as_str();
                Some(ScreenItem::Line(format!(
                    "- context {kind}: about {tokens_before} tokens, now {tokens_after}"
                )))
            }
            Event::RunEnded { end, stats, text, .. } => {
                self.open.clear();
                let is_empty = *end == RunEnd::Answered && text.is_empty();
                let note = if is_empty { "! the answer is empty\n" } else { "" };
                Some(ScreenItem::Line(format!("{note}{}", run_end_line(*end, stats))))
            }
            Event::RunStarted { .. }
            | Event::InputQueued { .. }
            | Event::RunSteered { .. }
            | Event::RunWaiting { .. }
            | Event::ToolsChanged { .. }
            | Event::TurnStarted
            | Event::ThinkingReceived { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseEnded { .. }
            | Event::AttemptEnded { .. }
            | Event::TurnEnded { .. }
            | Event::OfChild { .. }
            | Event::HistoryRepaired { .. } => None,
        }
    }

    /// Returns one line for each open call at time `now`, or one for a long wait for the model.
    pub(super) fn open_call_lines(&self, now: Duration) -> Vec<String> {
        let frame = usize::try_from(now.as_millis() / 100).unwrap_or_default() % SPINNER.len();
        let spinner = SPINNER.get(frame).copied().unwrap_or_default();
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

    /// Returns a line about a long wait for the model, once for each wait.
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

    /// Notes whether the run waits for its model, or for servers of tools.
    fn follow_model(&mut self, now: Duration, event: &Event) {
        match event {
            Event::RunStarted { model, .. } => self.model = short(model),
            Event::RunWaiting { waiting_for: _, servers } => {
                self.servers = awaited_servers(servers);
                self.silent_since = Some(now);
            }
            Event::TurnStarted => {
                self.servers.clear();
                (self.silent_since, self.is_thinking) = (Some(now), false);
            }
            Event::AttemptStarted { model, .. } => {
                self.model = short(model);
                (self.silent_since, self.is_thinking) = (Some(now), false);
            }
            // Every turn begins with an empty one.
            Event::ThinkingReceived { text } => self.is_thinking |= !text.is_empty(),
            Event::TextReceived { .. }
            | Event::CallOpened { .. }
            | Event::AttemptVoided { .. }
            | Event::AttemptEnded { .. }
            | Event::RunEnded { .. } => {
                (self.silent_since, self.is_wait_reported) = (None, false);
            }
            Event::InputQueued { .. }
            | Event::RunSteered { .. }
            | Event::ToolsChanged { .. }
            | Event::CallDetected { .. }
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
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseEnded { .. }
            | Event::LimitReached { .. }
            | Event::ContextCompacted { .. }
            | Event::TurnEnded { .. }
            | Event::OfChild { .. }
            | Event::HistoryRepaired { .. } => {}
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
    match request.phase {
        ApprovalPhase::Before => format!("? {name} {input}: may it run?"),
        ApprovalPhase::After => {
            let output = printable(request.output_summary.as_deref().unwrap_or_default());
            format!("? {name} {input} answered: {output}\n  may the model see it?")
        }
        ApprovalPhase::Input => input_question(&name, request.question.as_deref()),
        ApprovalPhase::Client => format!("? {name} {input} is run by the client"),
    }
}

/// Formats the question of a tool. A form is filled in after it is accepted.
fn input_question(name: &str, question: Option<&Question>) -> String {
    let Some(question) = question else { return format!("? {name} asks") };
    let message = printable(&question.message);
    match &question.kind {
        QuestionKind::Form(_) => {
            format!(
                "? {name} asks: {message}\n  answer it (y: field by field, or one JSON object)?"
            )
        }
        QuestionKind::Url(url) => {
            let url = printable(url);
            format!("? {name} asks: {message}\n  open {url} yourself; may the call go on?")
        }
    }
}

fn approval_line(name: &str, phase: ApprovalPhase, verdict: Verdict) -> String {
    let mark = match verdict {
        Verdict::Approved => "+",
        Verdict::Rejected | Verdict::Expired | Verdict::Withdrawn => "-",
    };
    let subject = match phase {
        ApprovalPhase::Before => "",
        ApprovalPhase::After => "'s result",
        ApprovalPhase::Input => "'s question",
        ApprovalPhase::Client => "'s client",
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
    let output = short(&refusal_reason(&result.outcome).unwrap_or_default());
    let output = if output.is_empty() { short(&result.outcome.content) } else { output };
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

fn run_end_line(end: RunEnd, stats: &RunStats) -> String {
    let RunStats { turns, tool_calls, duration, .. } = stats;
    format!(
        "{}: turns {turns}, tool calls {tool_calls}, {}",
        end.as_str(),
        format_duration(*duration)
    )
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

/// Replaces control characters and writes invisible ones out, so that the text is one line that shows what
/// it holds.
pub(super) fn clean(text: &str) -> String {
    harmless(&text.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::types::{FailureKind, ResultNotes, ToolCall};

    fn label(index: u32) -> CallLabel {
        let key = CallKey { turn: 1, attempt: 1, index };
        CallLabel { key, provider_id: None, name: "clock".into() }
    }

    fn started(index: u32, input: &str) -> Event {
        let input_summary = input.to_owned();
        Event::CallStarted {
            call: label(index),
            input_summary,
            early: false,
            waited: Duration::ZERO,
            queued: None,
            of: 1,
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
            writes: crate::types::WriteSet::default(),
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
            phase: ApprovalPhase::Before,
            arguments: json!({"text": format!("{}\u{9b}", "long ".repeat(100))}).into(),
            arguments_sha256: String::new(),
            output_summary: None,
            question: None,
        };
        let text = approval_question(&request);
        assert!(text.len() > 500 && text.ends_with("\\u{9b}\"}: may it run?"), "{text}");
        request.phase = ApprovalPhase::After;
        request.output_summary = Some("no\non".to_owned());
        let text = approval_question(&request);
        assert!(text.ends_with("answered: no\\non\n  may the model see it?"), "{text}");
        let line = |event: &Event| match RunProgress::default().handle_event(Duration::ZERO, event)
        {
            Some(ScreenItem::Line(line)) => line,
            other => panic!("{other:?}"),
        };
        let (call, waited) = (label(0), Duration::ZERO);
        let given = Event::ApprovalGiven {
            call: call.clone(),
            phase: ApprovalPhase::After,
            verdict: Verdict::Expired,
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
        let mut progress = RunProgress { model: "m".to_owned(), ..RunProgress::default() };
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
            phase: ApprovalPhase::Before,
            verdict: Verdict::Rejected,
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
    fn an_answer_without_text_says_so() {
        let ended = |text: &str| Event::RunEnded {
            agent: "default".to_owned(),
            end: RunEnd::Answered,
            text: text.to_owned(),
            output: None,
            error: None,
            stats: Box::new(RunStats::default()),
        };
        let line = |text| RunProgress::default().handle_event(Duration::ZERO, &ended(text));
        let end = "answered: turns 0, tool calls 0, 0.0 ms";
        assert_eq!(line("Yes."), Some(ScreenItem::Line(end.to_owned())));
        let empty = format!("! the answer is empty\n{end}");
        assert_eq!(line(""), Some(ScreenItem::Line(empty)));
    }

    #[test]
    fn a_wait_for_servers_is_shown_until_the_first_turn() {
        let mut progress = RunProgress { model: "m".to_owned(), ..RunProgress::default() };
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
        let servers = ["files", "web"].map(str::to_owned);
        assert_eq!(awaited_servers(&servers), "the servers files, web");
    }

    #[test]
    fn another_attempt_removes_open_calls() {
        let mut progress = RunProgress::default();
        progress.handle_event(Duration::ZERO, &started(0, "{}"));
        progress.handle_event(Duration::ZERO, &started(1, "{}"));
        assert_eq!(progress.open_call_lines(Duration::ZERO).len(), 2);
        let attempt = Event::AttemptStarted {
            attempt: 2,
            model: "m".to_owned(),
            streamed: true,
            reason: "it broke".to_owned(),
            wait: Duration::ZERO,
            rollback: false,
            fallback: false,
        };
        let item = progress.handle_event(Duration::ZERO, &attempt);
        assert_eq!(item, Some(ScreenItem::Line("! attempt 2 with m: it broke".to_owned())));
        let again = progress.handle_event(Duration::ZERO, &attempt);
        assert_eq!(again, Some(ScreenItem::Line("! attempt 2 with m: the same again".to_owned())));
        assert!(progress.open_call_lines(Duration::ZERO).is_empty());
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
