//! A log to be read and passed on: runs, what was said, and what tools did.
//!
//! Whatever a user, a model or a tool wrote stands in a fence that is longer than any in it, or in
//! a code span of that kind.

use std::collections::BTreeMap;

use super::{counted, how_long, images, tokens, when, word};
use crate::journal::{JournalEntry, unfinished};
use crate::record::{Record, ResponseMessage};
use crate::types::{
    ApprovalPhase, CallKey, Content, RunError, SessionId, ToolCall, ToolOutcome, excerpt, harmless,
    one_line,
};

/// Characters of a result that are shown; how many there are stands beside it.
const RESULT_CHARS: usize = 200;

/// Characters of what stands within a line.
const SPAN_CHARS: usize = 500;

/// The session's log, piece by piece.
pub fn markdown<'a>(
    session: &'a SessionId,
    entries: &'a [JournalEntry],
) -> impl Iterator<Item = String> + 'a {
    let mut log = Log::default();
    let title = std::iter::once(title(session, entries));
    let pieces = entries.iter().map(Some).chain([None]);
    title.chain(pieces.map(move |entry| match entry {
        Some(entry) => log.entry(entry),
        None => log.end(),
    }))
}

fn title(session: &SessionId, entries: &[JournalEntry]) -> String {
    let mut title = format!("# Session {}\n\n", span(session.as_str()));
    if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
        if let Record::SessionOpened { agent, .. } = &first.record {
            title.push_str(&format!("- agent: {}\n", span(agent)));
        }
        title.push_str(&format!("- opened: {}\n", when(first.time)));
        title.push_str(&format!("- last change: {}\n", when(last.time)));
        title.push_str(&format!("- {}\n", counted(entries.len(), "record")));
    }
    if let Some(run) = unfinished(entries) {
        title.push_str(&format!("- run {} has not ended\n", span(&run.0)));
    }
    title
}

/// The turn that goes on, until its calls are shown.
#[derive(Default)]
struct Log<'a> {
    calls: &'a [ToolCall],
    outcomes: BTreeMap<CallKey, (&'a ToolOutcome, String)>,
}

impl<'a> Log<'a> {
    fn entry(&mut self, entry: &'a JournalEntry) -> String {
        match &entry.record {
            Record::SessionOpened { messages, .. } => match messages.as_slice() {
                [] => String::new(),
                _ => {
                    let lines: Vec<_> = messages.iter().map(ToString::to_string).collect();
                    format!("\nOpened with these messages:\n\n{}", fence("json", &lines.join("\n")))
                }
            },
            Record::SessionForked { from, at } => {
                format!("\nForked from session {} at its record {at}.\n", span(from.as_str()))
            }
            Record::InputQueued { run_id, input, .. } => {
                let head = format!("\n**User**, queued for run {}\n\n", span(&run_id.0));
                format!("{head}{}", said(input))
            }
            Record::RunStarted { run_id, input, model, execution, .. } => format!(
                "\n## Run {}\n\n{}, with {}, {execution}\n\n**User**\n\n{}",
                span(&run_id.0),
                when(entry.time),
                span(model),
                said(input)
            ),
            Record::AttemptStarted { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. } => String::new(),
            Record::AttemptFailed { turn, attempt, error, kept, .. } => {
                let becomes = if *kept { "is kept" } else { "is void" };
                let why = span(&error.message);
                let place = format!("Attempt {attempt} of turn {turn}");
                format!("\n- {place} failed: {why}. What had come of it {becomes}.\n")
            }
            Record::ResponseEnded { message, .. } => self.response(message),
            Record::ApprovalAsked { asked } => {
                let (name, key) = (span(&asked.call.name), span(&asked.call.key.to_string()));
                format!("\n- Approval asked: {} {name} ({key})\n", asks(asked.phase))
            }
            Record::ApprovalGiven { key, phase, verdict, message } => {
                let with = message.iter().map(|message| format!(": {}", span(message)));
                let (key, with): (_, String) = (span(&key.to_string()), with.collect());
                format!("\n- {} ({key}) {}{with}\n", asks(*phase), verdict.as_str())
            }
            Record::CallEnded { call, outcome, notes, started_ms, duration_ms, .. } => {
                let took = match (notes.duplicate_of, started_ms) {
                    (Some(of), _) => format!("a copy of {}", span(&of.to_string())),
                    (None, _) if notes.reused => "from the attempt before".to_owned(),
                    (None, Some(_)) => how_long(*duration_ms),
                    (None, None) => "never started".to_owned(),
                };
                self.outcomes.insert(call.key, (outcome, took));
                String::new()
            }
            Record::TurnCommitted { turn, end, summary } => {
                let log = self.calls();
                format!("{log}\n- Turn {turn}: {}, {}\n", word(end), tokens(summary.usage))
            }
            Record::Steered { input, .. } => {
                format!("\n**User**, to the run that goes on\n\n{}", said(input))
            }
            Record::StopAsked { mode } => format!("\n- A stop was asked for: {}\n", word(mode)),
            Record::LimitReached { limit, value, maximum, action, note } => {
                let note = note.iter().map(|note| format!(". The model is told {}", span(note)));
                let (limit, note): (_, String) = (span(limit), note.collect());
                format!("\n- Limit {limit} reached: {value} of {maximum}, {}{note}\n", span(action))
            }
            Record::RunEnded { .. } => run_ended(&entry.record),
            Record::SessionClosed => "\nThe session was closed.\n".to_owned(),
        }
    }

    /// What the turn that goes on has by now.
    fn end(&mut self) -> String {
        let log = self.calls();
        if log.is_empty() { log } else { format!("{log}\n- This turn is not committed.\n") }
    }

    fn response(&mut self, message: &'a ResponseMessage) -> String {
        let ResponseMessage { text, reasoning, calls, .. } = message;
        self.calls = calls;
        let mut log = String::new();
        if !reasoning.is_empty() {
            log.push_str("\n> **Thinking**\n>\n");
            for line in fence("text", reasoning).lines() {
                log.push_str(&format!("> {line}\n"));
            }
        }
        if !text.is_empty() {
            log.push_str(&format!("\n**Assistant**\n\n{}", fence("text", text)));
        }
        log
    }

    fn calls(&mut self) -> String {
        let outcomes = std::mem::take(&mut self.outcomes);
        let calls = std::mem::take(&mut self.calls);
        if calls.is_empty() {
            return String::new();
        }
        let mut log = "\n**[Tool Execution Log]**\n".to_owned();
        for (call, place) in calls.iter().zip(1..) {
            let ToolCall { key, name, arguments, raw, .. } = call;
            let outcome = outcomes.get(key);
            let status = match outcome {
                Some((outcome, took)) => format!("{}, {took}", outcome.status.as_str()),
                None => "no outcome yet".to_owned(),
            };
            let (name, key) = (span(name), span(&key.to_string()));
            log.push_str(&format!("\n{place}. {name} ({key}): {status}\n\n"));
            let arguments = raw.clone().unwrap_or_else(|| arguments.to_string());
            log.push_str(&format!("Arguments:\n\n{}", fence("json", &arguments)));
            if let Some((outcome, _)) = outcome {
                log.push_str(&result(&outcome.content));
            }
        }
        log
    }
}

fn result(content: &str) -> String {
    let shown = excerpt(content, RESULT_CHARS);
    let of = if shown.len() == content.len() {
        String::new()
    } else {
        format!(", the first {RESULT_CHARS} of {} characters", content.chars().count())
    };
    format!("\nResult{of}:\n\n{}", fence("text", &shown))
}

fn run_ended(record: &Record) -> String {
    let Record::RunEnded { end, text, error, stats, .. } = record else { return String::new() };
    let why = error.iter().map(|RunError { code, message, .. }| {
        format!("\n- Error {}: {}\n", span(code), span(message))
    });
    let why: String = why.collect();
    // The answer stood in the last response.
    let own = text.is_empty() || *end != crate::types::RunEnd::AllToolsFailed;
    let own = if own { String::new() } else { format!("\n{}", fence("text", text)) };
    format!(
        "{own}{why}\n**Run ended**: {}, {}, {}, {} + {} tokens, {}\n",
        end.as_str(),
        counted(stats.turns as usize, "turn"),
        counted(stats.tool_calls as usize, "call"),
        stats.input_tokens,
        stats.output_tokens,
        how_long(stats.duration_ms)
    )
}

fn asks(phase: ApprovalPhase) -> &'static str {
    match phase {
        ApprovalPhase::Before => "may it run?",
        ApprovalPhase::After => "may its result be seen?",
    }
}

fn said(input: &Content) -> String {
    let images = images(input);
    let with = if images == 0 {
        String::new()
    } else {
        format!("\n(with {})\n", counted(images, "image"))
    };
    format!("{}{with}", fence("text", &input.text()))
}

/// A block of code that nothing in the text can end.
fn fence(language: &str, text: &str) -> String {
    let text = harmless(text);
    let fence = "`".repeat(longest_ticks(&text).max(2) + 1);
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}\n")
}

/// Code within a line, that nothing in the text can end.
pub(super) fn span(text: &str) -> String {
    let text = one_line(&harmless(text), SPAN_CHARS);
    if text.is_empty() {
        return "(nothing)".to_owned();
    }
    let ticks = "`".repeat(longest_ticks(&text) + 1);
    // Blanks part it from ticks of its own.
    let blank = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{ticks}{blank}{text}{blank}{ticks}")
}

fn longest_ticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}
