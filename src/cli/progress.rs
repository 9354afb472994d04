//! What a run's events mean on a screen. Draws nothing itself (`screen.rs` does).

use std::time::Duration;

use crate::event::{
    ApprovalRequest, CallLabel, ConflictResolution, Event, RunStats, ServiceCall,
    ServiceCallStatus, WaitingFor,
};
use crate::types::{
    ApprovalPhase, CallKey, RunEnd, ToolResult, ToolStatus, VariableName, Verdict, excerpt,
};

/// Characters of a call's arguments or result on its line.
const PART_CHARS: usize = 60;

const FRAMES: [&str; 8] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧"];

/// Something to show for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScreenItem {
    /// A piece of the answer.
    Text(String),
    /// A line about the run.
    Line(String),
}

/// The calls that are open, and how they are doing.
#[derive(Debug, Default)]
pub(super) struct RunProgress {
    open: Vec<CallProgress>,
}

#[derive(Debug)]
struct CallProgress {
    key: CallKey,
    name: String,
    input: String,
    doing: CallActivity,
    note: String,
}

#[derive(Clone, Copy, Debug)]
enum CallActivity {
    /// Its arguments are still coming.
    Arriving,
    Waiting(WaitingFor),
    Running {
        since: Duration,
    },
}

impl RunProgress {
    /// Takes an event that came at `now`, and says what is to be shown of it.
    pub(super) fn handle(&mut self, now: Duration, event: &Event) -> Option<ScreenItem> {
        match event {
            Event::TextReceived { text } => Some(ScreenItem::Text(text.clone())),
            Event::CallOpened { call } => {
                self.update(call, "", CallActivity::Arriving);
                None
            }
            Event::CallWaiting { call, waiting_for, input_summary } => {
                self.update(call, input_summary, CallActivity::Waiting(*waiting_for));
                None
            }
            Event::CallStarted { call, input_summary, early: _, waited: _, queued: _, of: _ } => {
                self.update(call, input_summary, CallActivity::Running { since: now });
                None
            }
            Event::CallProgressed { key, text } => {
                if let Some(open) = self.open.iter_mut().find(|open| open.key == *key) {
                    open.note = part(text);
                }
                None
            }
            // Whoever is to answer sees the question itself.
            Event::ApprovalAsked { asked } => {
                let input = asked.arguments.to_string();
                self.update(&asked.call, &input, CallActivity::Waiting(WaitingFor::Approval));
                None
            }
            Event::ApprovalGiven { call, phase, verdict, waited: _ } => {
                Some(ScreenItem::Line(given(&call.name, *phase, *verdict)))
            }
            Event::ConflictFound { call, names, resolution } => {
                Some(ScreenItem::Line(conflict(&call.name, names, *resolution)))
            }
            Event::CallDiscarded { call, had_result: _ } => {
                self.close(call.key);
                Some(ScreenItem::Line(format!("- {} discarded", part(&call.name))))
            }
            Event::CallEnded { result, parallel: _, early: _ } => {
                self.close(result.call.key);
                Some(ScreenItem::Line(ended(result)))
            }
            Event::ServiceCallChanged { call, status } => {
                service_line(call, *status).map(ScreenItem::Line)
            }
            Event::AttemptStarted { attempt, reason, model, .. }
            | Event::AttemptVoided { attempt, reason, model, streamed: _ } => {
                // What the broken attempt opened is void, whether it was told of each or not.
                self.open.clear();
                Some(ScreenItem::Line(format!(
                    "! attempt {attempt} with {model}: {}",
                    clean(reason)
                )))
            }
            Event::LimitReached { limit, value, maximum, action } => {
                let action = clean(action);
                Some(ScreenItem::Line(format!("! {limit}: {value} of at most {maximum}: {action}")))
            }
            Event::RunEnded { end, stats, .. } => {
                self.open.clear();
                Some(ScreenItem::Line(sums(*end, stats)))
            }
            Event::RunStarted { .. }
            | Event::InputQueued { .. }
            | Event::RunSteered { .. }
            | Event::TurnStarted
            | Event::ThinkingReceived { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseEnded { .. }
            | Event::AttemptEnded { .. }
            | Event::TurnEnded { .. }
            | Event::HistoryRepaired { .. } => None,
        }
    }

    /// One line for every open call, as it is at `now`.
    pub(super) fn live(&self, now: Duration) -> Vec<String> {
        let frame = usize::try_from(now.as_millis() / 100).unwrap_or_default() % FRAMES.len();
        let spinner = FRAMES.get(frame).copied().unwrap_or_default();
        self.open.iter().map(|open| open.line(now, spinner)).collect()
    }

    fn update(&mut self, call: &CallLabel, input: &str, doing: CallActivity) {
        let known = self.open.iter_mut().find(|open| open.key == call.key);
        match known {
            Some(open) => {
                open.input = part(input);
                open.doing = doing;
            }
            None => self.open.push(CallProgress {
                key: call.key,
                name: part(&call.name),
                input: part(input),
                doing,
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
        let Self { name, input, note, doing, key: _ } = self;
        let doing = match doing {
            CallActivity::Arriving => "…".to_owned(),
            CallActivity::Waiting(what) => match what {
                WaitingFor::Finish => "waits for the end of the response".to_owned(),
                WaitingFor::Ticket => "waits for its turn".to_owned(),
                WaitingFor::Exclusive => "waits for an exclusive call".to_owned(),
                WaitingFor::Capacity => "waits for a free place".to_owned(),
                WaitingFor::Approval => "waits for a person".to_owned(),
            },
            CallActivity::Running { since } => time(now.saturating_sub(*since)),
        };
        let gap = if note.is_empty() { "" } else { "  " };
        format!("{spinner} {name} {input}  {doing}{gap}{note}")
    }
}

/// The line of a call that the service runs itself. That it has begun is no news for long.
fn service_line(call: &ServiceCall, status: ServiceCallStatus) -> Option<String> {
    let name = part(&call.name);
    match status {
        ServiceCallStatus::Running => None,
        ServiceCallStatus::Finished => {
            Some(format!("· {name} {}  run by the service", part(&call.input_summary)))
        }
        ServiceCallStatus::Discarded => Some(format!("- {name} discarded (the service's)")),
    }
}

/// What people are asked, with the arguments in full: they decide about these.
pub(super) fn question(asked: &ApprovalRequest) -> String {
    let (name, input) = (clean(&asked.call.name), clean(&asked.arguments.to_string()));
    match asked.phase {
        ApprovalPhase::Before => format!("? {name} {input}: may it run?"),
        ApprovalPhase::After => {
            let output = clean(asked.output_summary.as_deref().unwrap_or_default());
            format!("? {name} {input} answered: {output}\n  may the model see this?")
        }
    }
}

fn given(name: &str, phase: ApprovalPhase, verdict: Verdict) -> String {
    let mark = match verdict {
        Verdict::Approved => "+",
        Verdict::Rejected | Verdict::Expired => "-",
    };
    let what = match phase {
        ApprovalPhase::Before => "",
        ApprovalPhase::After => "'s result",
    };
    format!("{mark} {}{what} {}", part(name), verdict.as_str())
}

fn conflict(name: &str, names: &[VariableName], resolution: ConflictResolution) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let then = match resolution {
        ConflictResolution::Rerun => "it runs again",
        ConflictResolution::WritesDropped => "what it writes does not count",
        ConflictResolution::ResultKept => "its result rests on the older values",
    };
    format!("! {} read too early: {}: {then}", part(name), part(&names.join(", ")))
}

/// The line of a call that has its outcome.
fn ended(result: &ToolResult) -> String {
    let mark = match result.outcome.status {
        ToolStatus::Ok => "✓",
        ToolStatus::Failed
        | ToolStatus::TimedOut
        | ToolStatus::Cancelled
        | ToolStatus::Refused
        | ToolStatus::Unknown => "✗",
    };
    let name = part(&result.call.name);
    let input = part(&result.call.arguments_text());
    let output = part(&result.outcome.content);
    let copied = if result.notes.duplicate_of.is_some() { " (copied)" } else { "" };
    format!("{mark} {name} {input}  {}{copied}  {output}", time(result.duration))
}

fn sums(end: RunEnd, stats: &RunStats) -> String {
    let RunStats { turns, tool_calls, duration, .. } = stats;
    format!("{}: turns {turns}, tool calls {tool_calls}, {}", end.as_str(), time(*duration))
}

fn time(duration: Duration) -> String {
    if duration < Duration::from_millis(10) {
        format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
    } else if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

fn part(text: &str) -> String {
    excerpt(&clean(text), PART_CHARS)
}

/// One line without anything that a terminal would obey.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::types::{FailureKind, ResultNotes, ToolCall, ToolOutcome};

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
    fn a_call_is_shown_from_its_opening_to_its_outcome() {
        let at = Duration::from_millis;
        let mut progress = RunProgress::default();
        assert_eq!(progress.handle(at(0), &Event::CallOpened { call: label(0) }), None);
        assert_eq!(progress.live(at(0)), ["⠋ clock   …"]);
        assert_eq!(progress.handle(at(100), &started(0, "{\"zone\":1}")), None);
        assert_eq!(progress.live(at(350)), ["⠸ clock {\"zone\":1}  250 ms"]);
        let note = Event::CallProgressed { key: label(0).key, text: "half\nway".to_owned() };
        assert_eq!(progress.handle(at(350), &note), None);
        assert_eq!(progress.live(at(1400)), ["⠦ clock {\"zone\":1}  1.3 s  half way"]);
        let line = "✓ clock {\"zone\":\"Asia/Tokyo\"}  1.5 s  noon".to_owned();
        let ended = progress.handle(at(1600), &finished(0, ToolOutcome::ok("noon")));
        assert_eq!(ended, Some(ScreenItem::Line(line)));
        assert!(progress.live(at(1600)).is_empty());
    }

    #[test]
    fn questions_are_shown_in_full_and_what_came_of_them_in_a_line() {
        let mut asked = ApprovalRequest {
            call: label(0),
            phase: ApprovalPhase::Before,
            arguments: json!({"text": format!("{}\u{9b}", "long ".repeat(100))}).into(),
            arguments_sha256: String::new(),
            output_summary: None,
        };
        let text = question(&asked);
        assert!(text.len() > 500 && text.ends_with(" \"}: may it run?"), "{text}");
        asked.phase = ApprovalPhase::After;
        asked.output_summary = Some("no\non".to_owned());
        let text = question(&asked);
        assert!(text.ends_with("answered: no on\n  may the model see this?"), "{text}");
        let shown = |event: &Event| match RunProgress::default().handle(Duration::ZERO, event) {
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
        assert_eq!(shown(&given), "- clock's result expired");
        let names = vec!["a".into(), "b".into()];
        let conflict = Event::ConflictFound { call, names, resolution: ConflictResolution::Rerun };
        assert_eq!(shown(&conflict), "! clock read too early: a, b: it runs again");
    }

    #[test]
    fn a_call_that_the_service_runs_has_one_line() {
        let call = ServiceCall {
            turn: 1,
            attempt: 1,
            place: 0,
            provider_id: None,
            name: "web_search".into(),
            input_summary: "{\"query\":\"a\u{9b}b\"}".to_owned(),
        };
        let shown = |status| {
            let event = Event::ServiceCallChanged { call: Box::new(call.clone()), status };
            RunProgress::default().handle(Duration::ZERO, &event)
        };
        assert_eq!(shown(ServiceCallStatus::Running), None);
        let line = "· web_search {\"query\":\"a b\"}  run by the service".to_owned();
        assert_eq!(shown(ServiceCallStatus::Finished), Some(ScreenItem::Line(line)));
        let line = "- web_search discarded (the service's)".to_owned();
        assert_eq!(shown(ServiceCallStatus::Discarded), Some(ScreenItem::Line(line)));
    }

    #[test]
    fn another_attempt_clears_what_was_open() {
        let mut progress = RunProgress::default();
        progress.handle(Duration::ZERO, &started(0, "{}"));
        progress.handle(Duration::ZERO, &started(1, "{}"));
        assert_eq!(progress.live(Duration::ZERO).len(), 2);
        let attempt = Event::AttemptStarted {
            attempt: 2,
            model: "m".to_owned(),
            streamed: true,
            reason: "it broke".to_owned(),
            wait: Duration::ZERO,
            rollback: false,
            fallback: false,
        };
        let shown = progress.handle(Duration::ZERO, &attempt);
        assert_eq!(shown, Some(ScreenItem::Line("! attempt 2 with m: it broke".to_owned())));
        assert!(progress.live(Duration::ZERO).is_empty());
    }

    #[test]
    fn a_tool_cannot_write_to_the_terminal() {
        let outcome = ToolOutcome::not_ok(
            ToolStatus::Failed,
            FailureKind::ToolError,
            "\u{1b}[2Jgone\r\n\u{9b}31m",
        );
        let Some(ScreenItem::Line(line)) =
            RunProgress::default().handle(Duration::ZERO, &finished(0, outcome))
        else {
            panic!("a call that ended is shown");
        };
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.starts_with('✗'), "{line}");
    }
}
