//! For a terminal: a line for each record, and a few more for what it holds.

use super::{counted, how_long, images, tokens, when, word};
use crate::event::CallLabel;
use crate::journal::JournalEntry;
use crate::record::{Record, ResponseMessage};
use crate::types::{
    ApprovalPhase, Content, ResultNotes, RunError, ToolCall, ToolOutcome, WriteSet, harmless,
    metadata, one_line,
};

/// Characters of a text that are shown; how much there is stands behind it.
const SHOWN_CHARS: usize = 200;

/// Columns of the longest word for a kind of record.
const WORD_COLUMNS: usize = 9;

/// The records, each as its lines.
pub fn text(entries: &[JournalEntry]) -> impl Iterator<Item = String> + '_ {
    let columns = entries.last().map_or(1, |entry| entry.seq.to_string().len());
    entries.iter().map(move |entry| rows(entry, columns))
}

fn rows(entry: &JournalEntry, columns: usize) -> String {
    let (word, lines) = described(&entry.record);
    let (seq, time) = (entry.seq.to_string(), when(entry.time));
    let head = format!("{seq:>columns$}  {time}  {word:<WORD_COLUMNS$}  ");
    let margin = " ".repeat(head.len());
    let mut rows = String::new();
    for (row, line) in lines.iter().enumerate() {
        let line = format!("{}{line}", if row == 0 { &head } else { &margin });
        // No line has an end within itself, whatever a model wrote.
        rows.extend(line.trim_end().chars().filter(|c| !c.is_control()));
        rows.push('\n');
    }
    rows
}

/// The word for the record, and what there is to know of it.
fn described(record: &Record) -> (&'static str, Vec<String>) {
    match record {
        Record::SessionOpened { agent, messages } => {
            let with = match messages.len() {
                0 => String::new(),
                count => format!(" with {}", counted(count, "message")),
            };
            ("opened", vec![format!("agent {agent}{with}")])
        }
        Record::SessionForked { from, at } => {
            ("forked", vec![format!("from session {from}, at its record {at}")])
        }
        Record::InputQueued { run_id, input, .. } => {
            ("queued", vec![format!("{run_id}: {}", said(input))])
        }
        Record::RunStarted { run_id, input, overrides, model, execution, .. } => {
            let mut lines = vec![format!("{run_id} with {model}, {execution}"), said(input)];
            if !overrides.is_none() {
                let overrides = serde_json::to_string(overrides).unwrap_or_default();
                lines.push(format!("changes {overrides}"));
            }
            ("run", lines)
        }
        Record::AttemptStarted { .. } => ("asked", asked(record)),
        Record::AttemptFailed { turn, attempt, error, kept, usage, host_stopped: _ } => {
            let becomes = if *kept { "what had come is kept" } else { "what had come is void" };
            let head = format!("{}: {becomes}, {}", place(*turn, *attempt), tokens(*usage));
            ("broke", vec![head, brief(&error.message)])
        }
        Record::ResponseEnded { .. } => ("response", response(record)),
        Record::CallIntended { call, idempotency_key, so_far: _ } => {
            ("intends", vec![called(call), format!("under the key {idempotency_key}")])
        }
        Record::CallReported { key, outcome, reads, writes } => {
            let mut lines = vec![format!("{key} {}", ended(outcome))];
            if !reads.0.is_empty() {
                lines.push(format!("has read {}", names(reads.0.keys())));
            }
            lines.extend(written("would write", writes));
            ("reported", lines)
        }
        Record::ApprovalAsked { asked } => {
            let CallLabel { key, name, .. } = &asked.call;
            let about = asks(asked.phase);
            ("asks", vec![format!("{about} {key} {name} {}", brief(&asked.arguments.to_string()))])
        }
        Record::ApprovalGiven { key, phase, verdict, message } => {
            let with = message.iter().map(|message| format!(": {}", brief(message)));
            let with: String = with.collect();
            ("decided", vec![format!("{} {key} {}{with}", asks(*phase), verdict.as_str())])
        }
        Record::CallEnded { .. } => ("ended", call_ended(record)),
        Record::TurnCommitted { turn, end, summary } => {
            let calls = counted(summary.tool_names.len(), "call");
            let line = format!("turn {turn}: {}, {calls}, {}", word(end), tokens(summary.usage));
            ("committed", vec![line])
        }
        Record::Steered { input, after_turn, .. } => {
            ("said", vec![format!("behind turn {after_turn}: {}", said(input))])
        }
        Record::StopAsked { mode } => ("stop", vec![word(mode)]),
        Record::LimitReached { limit, value, maximum, action, note } => {
            let mut lines = vec![format!("{limit}: {value} of {maximum}, {action}")];
            lines.extend(note.iter().map(|note| format!("the model is told {}", brief(note))));
            ("limit", lines)
        }
        Record::RunEnded { .. } => ("run ended", run_ended(record)),
        Record::SessionClosed => ("closed", vec![String::new()]),
    }
}

fn asked(record: &Record) -> Vec<String> {
    let Record::AttemptStarted { turn, attempt, model, streamed, reason, wait_ms } = record else {
        return Vec::new();
    };
    let how = if *streamed { "" } else { ", not streamed" };
    let mut lines = vec![format!("{} of {model}{how}", place(*turn, *attempt))];
    if let Some(reason) = reason {
        lines.push(format!("after {}, because {}", how_long(*wait_ms), brief(reason)));
    }
    lines
}

fn response(record: &Record) -> Vec<String> {
    let Record::ResponseEnded {
        turn,
        attempt,
        ending,
        message,
        finish_reason,
        usage,
        dropped_calls,
        ..
    } = record
    else {
        return Vec::new();
    };
    let reason = finish_reason.iter().map(|reason| format!(" ({})", reason.raw));
    let reason: String = reason.collect();
    let (place, ending) = (place(*turn, *attempt), word(ending));
    let mut lines = vec![format!("{place}: {ending}{reason}, {}", tokens(*usage))];
    let ResponseMessage { text, reasoning, calls, .. } = &**message;
    if !reasoning.is_empty() {
        lines.push(format!("thinks {}", brief(reasoning)));
    }
    if !text.is_empty() {
        lines.push(format!("says {}", brief(text)));
    }
    lines.extend(calls.iter().map(|call| format!("calls {}", called(call))));
    if !dropped_calls.is_empty() {
        lines.push(format!("not kept: {}", names(dropped_calls)));
    }
    lines
}

fn call_ended(record: &Record) -> Vec<String> {
    let Record::CallEnded {
        call, outcome, notes, writes, started_ms, duration_ms, amended, ..
    } = record
    else {
        return Vec::new();
    };
    let took = match started_ms {
        Some(_) => format!("in {}", how_long(*duration_ms)),
        None => "without a start".to_owned(),
    };
    let again = if *amended { " (noted again)" } else { "" };
    let CallLabel { key, name, .. } = call;
    let mut lines = vec![format!("{key} {name} {took}{again}: {}", ended(outcome))];
    lines.extend(noted(outcome, notes));
    lines.extend(written("writes", writes));
    lines
}

fn run_ended(record: &Record) -> Vec<String> {
    let Record::RunEnded { run_id, end, text, error, stats, waiting } = record else {
        return Vec::new();
    };
    let mut lines = vec![format!(
        "{run_id}: {} after {}, {}, {} + {} tokens, {}",
        end.as_str(),
        counted(stats.turns as usize, "turn"),
        counted(stats.tool_calls as usize, "call"),
        stats.input_tokens,
        stats.output_tokens,
        how_long(stats.duration_ms)
    )];
    if !text.is_empty() {
        lines.push(brief(text));
    }
    if let Some(RunError { code, message, .. }) = error {
        lines.push(format!("{code}: {}", brief(message)));
    }
    if *waiting > 0 {
        let waiting = usize::try_from(*waiting).unwrap_or(usize::MAX);
        lines.push(format!("{} behind it", counted(waiting, "input")));
    }
    lines
}

fn place(turn: u32, attempt: u32) -> String {
    format!("turn {turn}, attempt {attempt}")
}

fn asks(phase: ApprovalPhase) -> &'static str {
    match phase {
        ApprovalPhase::Before => "may it run?",
        ApprovalPhase::After => "may its result be seen?",
    }
}

fn called(call: &ToolCall) -> String {
    let ToolCall { key, name, arguments, raw, .. } = call;
    let came = raw.iter().map(|raw| format!(", which came as {}", brief(raw)));
    let came: String = came.collect();
    format!("{key} {name} {}{came}", brief(&arguments.to_string()))
}

fn ended(outcome: &ToolOutcome) -> String {
    format!("{} {}", outcome.status.as_str(), brief(&outcome.content))
}

/// What a client sees of it as metadata.
fn noted(outcome: &ToolOutcome, notes: &ResultNotes) -> Option<String> {
    let metadata = metadata(outcome, notes);
    let is_empty = metadata.as_object().is_none_or(serde_json::Map::is_empty);
    (!is_empty).then(|| metadata.to_string())
}

fn written(how: &str, writes: &WriteSet) -> Option<String> {
    (!writes.is_empty()).then(|| format!("{how} {}", names(writes.0.keys())))
}

fn names(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| brief(name.as_ref())).collect();
    names.join(", ")
}

fn said(input: &Content) -> String {
    let images = images(input);
    let with =
        if images == 0 { String::new() } else { format!(" with {}", counted(images, "image")) };
    format!("{}{with}", brief(&input.text()))
}

/// A text in one line, and how long it is where that is not all of it.
fn brief(text: &str) -> String {
    let text = harmless(text);
    let line = one_line(&text, SHOWN_CHARS);
    let cut = line.chars().count() > SHOWN_CHARS;
    if cut { format!("{line} [{} characters]", text.chars().count()) } else { line }
}
