//! A picture of a session's runs: a waterfall of their turns on a time axis.
//!
//! Each attempt has a row, and below it each of its calls; calls beyond a limit share one. Below the call of an agent
//! are the rows of its child session, indented. The times are those of the records, in whole milliseconds. A call
//! that continued after the host had stopped is placed by the time of its outcome.

mod draw;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::children::{ChildRecords, run_of_call};
use super::{ChildSessions, count_with_noun, open_question};
use crate::journal::JournalEntry;
use callsheet_values::record::ResponseEnding;
use callsheet_values::transcript::{
    AttemptTranscript, CallTranscript, RecordedOutcome, RunTranscript, Transcript, TurnTranscript,
};
use callsheet_values::types::{CallKey, FailureKind, RunId, SessionId, ToolStatus, WaitPhase};
use draw::{draw, format_duration, legend};

/// Maximum number of calls of an attempt that have a row each. The others share one.
const CALL_ROWS_MAX: usize = 16;

/// Maximum number of rows of child sessions below the calls of an attempt. The others share one for each call.
const CHILD_ROWS_MAX: usize = 48;

/// Maximum number of levels of child sessions that are drawn. The rows of deeper ones share one with those beyond
/// [`CHILD_ROWS_MAX`].
const CHILD_DEPTH_DRAWN_MAX: usize = 4;

/// Maximum number of levels of child sessions that are read.
const CHILD_DEPTH_READ_MAX: usize = 32;

/// Options of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineStyle {
    /// The width of the terminal; at least 40 columns, and at most 400, are used.
    pub columns: usize,
    /// True if the picture may hold the sequences that colour a terminal.
    pub coloured: bool,
    /// The number of turns of a run that are drawn: the last ones.
    pub turns_max: usize,
}

/// Draws the runs of these records, or one of them, and a legend. A call that waits for an answer of people is
/// drawn up to the present time, `now_ms`, in Unix milliseconds.
pub fn timeline(
    entries: &[JournalEntry],
    children: &ChildSessions,
    only: Option<&RunId>,
    now_ms: u64,
    style: TimelineStyle,
) -> impl Iterator<Item = String> {
    let transcript = Transcript::read(entries);
    let runs = transcript.runs.iter().filter(|run| only.is_none_or(|id| run.id() == Some(id)));
    let last = entries.iter().map(|entry| entry.time).max().unwrap_or_default();
    let last = last.max(children.last_time());
    let runs = runs.filter_map(|run| {
        let start = run.start?;
        let until = run.end.map_or(last, |end| end.at.time);
        let (session, began) = (children.session(), start.at.time);
        let now = run.end.is_none().then_some(now_ms);
        let transcript = &transcript;
        let builder =
            RowBuilder { session, transcript, entries, children, began, until, now, depth: 0 };
        Some(RunTimeline { began, heading: heading(start.id, run), turns: builder.turns(run) })
    });
    let runs: Vec<_> = runs.collect();
    let legend = (!runs.is_empty()).then(|| legend(&runs, style));
    runs.into_iter().map(move |run| draw(&run, style)).chain(legend)
}

/// A run as it is drawn.
struct RunTimeline {
    began: u64,
    heading: Vec<String>,
    turns: Vec<Vec<Row>>,
}

/// A row of the picture.
#[derive(Debug)]
struct Row {
    /// The number of child sessions above it.
    depth: usize,
    /// The symbol in front of a call; none for an attempt, which its calls follow.
    symbol: Option<Symbol>,
    label: String,
    bars: Vec<Bar>,
    /// A word for an unusual end.
    word: &'static str,
    /// The duration of the attempt or the call. Of a call that waits for an answer, the time since the question.
    duration_ms: Option<u64>,
}

/// A symbol of the picture. Of bars that share a column, the one whose symbol is last in this list is
/// drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Symbol {
    Wait,
    Agent,
    People,
    Model,
    Tool,
    Broken,
    Ok,
    Failed,
    NotRun,
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Bar {
    from: u64,
    until: u64,
    symbol: Symbol,
}

/// Returns the parts of a run's heading.
fn heading(id: &RunId, run: &RunTranscript<'_>) -> Vec<String> {
    let Some(ended) = run.end else { return vec![format!("{id}: has not ended")] };
    let turns = count_with_noun(ended.stats.turns as usize, "turn");
    let calls = count_with_noun(ended.stats.tool_calls as usize, "call");
    let end = format!("{id}: {}", ended.end.as_str());
    vec![end, turns, calls, format_duration(ended.stats.duration_ms)]
}

/// Makes the rows of a run.
struct RowBuilder<'t, 'a> {
    session: &'t SessionId,
    transcript: &'t Transcript<'a>,
    entries: &'t [JournalEntry],
    children: &'t ChildSessions,
    began: u64,
    /// The time of the run's last record. If it has not ended, the last one of the session and its children.
    until: u64,
    /// The present time. `None` if the run has ended.
    now: Option<u64>,
    /// The number of child sessions above the run.
    depth: usize,
}

impl RowBuilder<'_, '_> {
    /// Returns the rows of each turn.
    fn turns(&self, run: &RunTranscript<'_>) -> Vec<Vec<Row>> {
        run.turns.iter().map(|turn| self.turn_rows(turn)).collect()
    }

    /// Returns a row for each attempt, each followed by the rows of its calls.
    fn turn_rows(&self, turn: &TurnTranscript<'_>) -> Vec<Row> {
        let mut rows = Vec::new();
        for attempt in &turn.attempts {
            let label = match rows.is_empty() {
                true => format!("turn {}", turn.number),
                false => format!("  attempt {}", attempt.number),
            };
            rows.push(self.attempt_row(&label, attempt));
            let in_response = attempt.response.iter().flat_map(|response| &response.message.calls);
            let in_response = in_response.map(|call| (call.key, &*call.name));
            let recorded = attempt.calls.iter();
            let recorded = recorded.map(|(key, call)| (*key, call.name().unwrap_or_default()));
            let names: BTreeMap<CallKey, &str> = recorded.chain(in_response).collect();
            let none = CallTranscript::default();
            let mut calls = names.into_iter().map(|(key, name)| {
                let call = attempt.calls.get(&key).unwrap_or(&none);
                let below = self.child_rows(call);
                (self.call_row(name, call, attempt, &below), below)
            });
            let mut room = CHILD_ROWS_MAX;
            for (row, mut below) in calls.by_ref().take(CALL_ROWS_MAX) {
                rows.push(row);
                // Only the top level limits rows: `below` holds those of all deeper levels.
                if self.depth == 0 {
                    let hidden = hide_rows(&mut below, room);
                    room = room.saturating_sub(below.len());
                    below.extend(hidden);
                }
                rows.extend(below);
            }
            let rest: Vec<Row> =
                calls.flat_map(|(row, below)| [row].into_iter().chain(below)).collect();
            rows.extend(self.shared_row(&rest));
        }
        rows
    }

    fn attempt_row(&self, label: &str, attempt: &AttemptTranscript<'_>) -> Row {
        let requested_at = requested_at(attempt);
        let (until, word) = match (&attempt.failure, &attempt.response) {
            (Some(failure), _) => {
                // The next host wrote this failure. The preceding record is the killed host's last.
                let before = failure.at.index.checked_sub(1).filter(|_| failure.host_stopped);
                let before = before.and_then(|index| self.entries.get(index));
                (before.map_or(failure.at.time, |entry| entry.time), "broke")
            }
            (None, Some(response)) => (response.at.time, ending_word(response.ending)),
            (None, None) => (self.until.max(requested_at), "open"),
        };
        let mut bars = Vec::new();
        if let Some(start) = attempt.start {
            let (from, asked) = (start.at.time, requested_at.min(until));
            bars.push(Bar { from, until: asked, symbol: Symbol::Wait });
            bars.push(Bar { from: asked, until, symbol: Symbol::Model });
        }
        if matches!(word, "broke" | "refused") {
            bars.push(Bar { from: until, until, symbol: Symbol::Broken });
        }
        let duration_ms = attempt.start.map(|_| until.saturating_sub(requested_at));
        let model = attempt.start.map_or("given", |start| start.model);
        let label = format!("{label} {model}");
        Row { depth: self.depth, symbol: None, label, bars, word, duration_ms }
    }

    /// Returns the rows of the child session of a call.
    fn child_rows(&self, call: &CallTranscript<'_>) -> Vec<Row> {
        let depth = self.depth + 1;
        let child = self.children.of_call(self.session, self.transcript, call);
        let Some(child) = child.filter(|_| depth <= CHILD_DEPTH_READ_MAX) else {
            return Vec::new();
        };
        let missing = |word| {
            let label = "child session".to_owned();
            vec![Row { depth, symbol: None, label, bars: Vec::new(), word, duration_ms: None }]
        };
        let entries = match child.records {
            ChildRecords::Stored(entries) => entries,
            ChildRecords::Unreadable(_) => return missing("unreadable"),
            ChildRecords::Deleted => return missing("deleted"),
            // The outcome of the call says why.
            ChildRecords::NeverOpened | ChildRecords::NotYetOpened => return Vec::new(),
        };
        let transcript = &Transcript::read(entries);
        let Some(run) = run_of_call(&child.id, transcript) else { return Vec::new() };
        let Some(start) = run.start else { return Vec::new() };
        let until = run.end.map_or(self.until, |end| end.at.time);
        let now = self.now.filter(|_| run.end.is_none());
        let (session, children, began) = (&child.id, self.children, start.at.time);
        let builder =
            RowBuilder { session, transcript, entries, children, began, until, now, depth };
        builder.turns(run).into_iter().flatten().collect()
    }

    /// Returns the row of a call. The rows of its child session are below it.
    fn call_row(
        &self,
        name: &str,
        call: &CallTranscript<'_>,
        attempt: &AttemptTranscript<'_>,
        below: &[Row],
    ) -> Row {
        let child_until = below.iter().flat_map(|row| &row.bars).map(|bar| bar.until).max();
        let running_symbol = if child_until.is_some() { Symbol::Agent } else { Symbol::Tool };
        // An amended outcome is drawn at the time of the outcome that it amends.
        let first = call.outcomes.iter().rfind(|outcome| !outcome.amended).or(call.outcome());
        let at = first.map_or(self.until, |outcome| outcome.at.time);
        let intended = call.intents.last().map(|intent| intent.at.time);
        let asked = open_question(call).filter(|_| !attempt.is_void());
        let waits = self.now.zip(asked).map(|(now, asked)| (asked.at.time, now.max(at)));
        let (mut bars, mut duration_ms) =
            (question_bars(call, waits.map_or(at, |(_, now)| now)), None);
        let mut bar = |from, until, symbol| bars.push(Bar { from, until, symbol });
        let (symbol, word) = if let Some(ended) = call.outcome() {
            let is_ok = ended.outcome.status == ToolStatus::Ok;
            let mut symbol = if is_ok { Symbol::Ok } else { Symbol::Failed };
            if ended.outcome.kind == Some(FailureKind::HostStopped) {
                // Only the time of its intent is known.
                bar(intended.unwrap_or(at), intended.unwrap_or(at), Symbol::Broken);
            } else if let Some(started) = ended.started_ms {
                let by_clock = self.began.saturating_add(started);
                let by_end = at.saturating_sub(ended.duration_ms);
                let from = started_at(by_clock, by_end, call, attempt);
                // `duration_ms` excludes waiting for answers, so the bar ends at the outcome.
                let has_asked = call.requests.iter().any(|asked| asked.is_input());
                let until = if has_asked { at } else { from.saturating_add(ended.duration_ms) };
                bar(from.saturating_sub(ended.wait_ms), from, Symbol::Wait);
                bar(from, until, running_symbol);
                if !is_ok {
                    bar(until, until, Symbol::Broken);
                }
                duration_ms = Some(ended.duration_ms);
            } else {
                bar(at.saturating_sub(ended.wait_ms), at, Symbol::Wait);
                symbol = if is_ok { Symbol::Ok } else { Symbol::NotRun };
            }
            (symbol, outcome_word(ended))
        } else {
            let asked = call.requests.iter().map(|question| question.at.time);
            let seen = asked.chain(attempt.response.map(|response| response.at.time)).min();
            let symbol = if intended.is_some() { running_symbol } else { Symbol::Wait };
            // A child session that waits for an answer is drawn beyond the last record.
            let until = child_until.map_or(self.until, |until| until.max(self.until));
            bar(intended.or(seen).unwrap_or(self.until), until, symbol);
            duration_ms = waits.map(|(asked, now)| now.saturating_sub(asked));
            (Symbol::Open, if waits.is_some() { "waits" } else { "open" })
        };
        let (symbol, label) = (Some(symbol), name.to_owned());
        Row { depth: self.depth, symbol, label, bars, word, duration_ms }
    }

    /// Returns one row for the calls that have none of their own, and for the rows of their children.
    fn shared_row(&self, rest: &[Row]) -> Option<Row> {
        let calls = rest.iter().filter(|row| row.depth == self.depth);
        let symbol = Some(calls.clone().filter_map(|row| row.symbol).max()?);
        let is_not_ok = |row: &&Row| matches!(row.symbol, Some(Symbol::Failed | Symbol::NotRun));
        let count = calls.clone().count();
        let label = match calls.filter(is_not_ok).count() {
            0 => format!("{count} more"),
            not_ok => format!("{count} more, {not_ok} not ok"),
        };
        let bars = bars(rest);
        Some(Row { depth: self.depth, symbol, label, bars, word: "", duration_ms: None })
    }
}

/// Leaves as many rows of child sessions as there is room for, and returns one row for the others.
fn hide_rows(rows: &mut Vec<Row>, room: usize) -> Option<Row> {
    let mut drawn = 0;
    let is_hidden = |row: &mut Row| {
        let is_drawn = drawn < room && row.depth <= CHILD_DEPTH_DRAWN_MAX;
        drawn += usize::from(is_drawn);
        !is_drawn
    };
    let hidden: Vec<Row> = rows.extract_if(.., is_hidden).collect();
    let label = format!("{} not drawn", count_with_noun(hidden.len(), "row"));
    let bars = bars(&hidden);
    let row = Row { depth: 1, symbol: None, label, bars, word: "", duration_ms: None };
    (!hidden.is_empty()).then_some(row)
}

fn bars(rows: &[Row]) -> Vec<Bar> {
    rows.iter().flat_map(|row| row.bars.iter().copied()).collect()
}

/// Returns the bars of the questions about a call. Those without a decision end at `open_until`.
fn question_bars(call: &CallTranscript<'_>, open_until: u64) -> Vec<Bar> {
    // Waiting for a client counts as tool time.
    let questions = call.requests.iter().filter(|question| !question.is_for_client());
    let bars = questions.map(|question| {
        let decision = call.decision_about(question);
        let until = decision.map_or(open_until, |decision| decision.at.time);
        Bar { from: question.at.time, until, symbol: Symbol::People }
    });
    bars.collect()
}

/// Returns the time when a call started: `by_clock` is its start on the run's clock, `by_end` its end minus its
/// duration.
fn started_at(
    by_clock: u64,
    by_end: u64,
    call: &CallTranscript<'_>,
    attempt: &AttemptTranscript<'_>,
) -> u64 {
    let intended = call.intents.last().map(|intent| intent.at.time);
    let decided = call.decisions.iter();
    let decided = decided.filter(|decision| decision.phase != WaitPhase::Input);
    let decided = decided.map(|decision| decision.at.time);
    let earliest = decided.chain(intended).fold(requested_at(attempt), u64::max);
    // The run's clock stops while no host runs, so `by_clock` may be too early.
    if by_clock >= earliest { by_clock } else { by_end.max(earliest) }
}

/// Returns the time of the request to the model; without a request, that of the response.
fn requested_at(attempt: &AttemptTranscript<'_>) -> u64 {
    let given = attempt.response.map_or(0, |response| response.at.time);
    attempt.start.map_or(given, |start| start.at.time.saturating_add(start.wait_ms))
}

fn ending_word(ending: ResponseEnding) -> &'static str {
    match ending {
        ResponseEnding::Complete => "",
        ResponseEnding::Length => "cut off",
        ResponseEnding::Refused => "refused",
        ResponseEnding::BrokenKept => "broke",
        ResponseEnding::TooManyCalls => "too many",
        ResponseEnding::Cancelled => "stopped",
    }
}

fn outcome_word(ended: &RecordedOutcome<'_>) -> &'static str {
    match (ended.outcome.status, ended.started_ms) {
        _ if ended.notes.duplicate_of.is_some() => "copied",
        _ if ended.notes.reused => "reused",
        (ToolStatus::Ok, _) => "",
        (ToolStatus::Failed, None) => "not run",
        (status, _) => status.as_str(),
    }
}
