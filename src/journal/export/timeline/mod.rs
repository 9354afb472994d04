//! A picture of a session's runs: a waterfall of their turns on a time axis.
//!
//! Each attempt has a row, and each call of its response. Below the call of an agent are the rows of its child
//! session, indented. The times are those of the records, in whole milliseconds. A call that continued after the host had stopped is placed by the time of its
//! outcome.

mod draw;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::children::{ChildRecords, run_of_call};
use super::{ChildSessions, count_with_noun};
use crate::journal::JournalEntry;
use crate::record::ResponseDisposition;
use crate::transcript::{
    AttemptTranscript, CallTranscript, RecordedOutcome, RunTranscript, Transcript, TurnTranscript,
};
use crate::types::{ApprovalPhase, CallKey, FailureKind, RunId, SessionId, ToolStatus};
use draw::{draw, format_duration, legend};

/// The number of calls of an attempt that have a row each. The others share one.
const CALL_ROWS_MAX: usize = 16;

/// The number of rows of child sessions below the calls of an attempt. The others share one for each call.
const CHILD_ROWS_MAX: usize = 48;

/// The number of levels of child sessions that are drawn. The rows of deeper ones share one.
const CHILD_DEPTH_MAX: usize = 4;

/// The number of levels of child sessions that are read.
const CHILD_DEPTH_READ: usize = 32;

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

/// Draws the runs of these records, or one of them, and a legend.
pub fn timeline(
    entries: &[JournalEntry],
    children: &ChildSessions,
    only: Option<&RunId>,
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
        let rows =
            Rows { session, transcript: &transcript, entries, children, began, until, depth: 0 };
        Some(RunTimeline { began, heading: heading(start.id, run), turns: rows.turns(run) })
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
    /// The sign in front of a call; none for an attempt, which its calls follow.
    mark: Option<Sign>,
    label: String,
    bars: Vec<Bar>,
    /// A word for an unusual end.
    word: &'static str,
    /// The duration of the attempt or the call.
    duration_ms: Option<u64>,
}

/// A sign of the picture. Of bars that share a column, the one whose sign is last in this list is
/// drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sign {
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
    sign: Sign,
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
struct Rows<'t, 'a> {
    session: &'t SessionId,
    transcript: &'t Transcript<'a>,
    entries: &'t [JournalEntry],
    children: &'t ChildSessions,
    began: u64,
    /// The time of the run's last record. If it has not ended, the last one of the session and its children.
    until: u64,
    /// The number of child sessions above the run.
    depth: usize,
}

impl Rows<'_, '_> {
    /// Returns the rows of each turn.
    fn turns(&self, run: &RunTranscript<'_>) -> Vec<Vec<Row>> {
        run.turns.iter().zip(1..).map(|(turn, number)| self.turn(turn, number)).collect()
    }

    /// Returns a row for each attempt, each followed by the rows of its calls. `number` is the
    /// number of the turn in its run.
    fn turn(&self, turn: &TurnTranscript<'_>, number: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for attempt in &turn.attempts {
            let label = match rows.is_empty() {
                true => format!("turn {number}"),
                false => format!("  attempt {}", attempt.number),
            };
            rows.push(self.attempt(&label, attempt));
            let in_response = attempt.response.iter().flat_map(|response| &response.message.calls);
            let in_response = in_response.map(|call| (call.key, &*call.name));
            let recorded = attempt.calls.iter();
            let recorded = recorded.map(|(key, call)| (*key, call.name().unwrap_or_default()));
            let names: BTreeMap<CallKey, &str> = recorded.chain(in_response).collect();
            let none = CallTranscript::default();
            let mut calls = names.into_iter().map(|(key, name)| {
                let call = attempt.calls.get(&key).unwrap_or(&none);
                let below = self.child(call);
                let is_drawn = below.iter().any(|row| !row.bars.is_empty());
                (self.call(name, call, attempt, is_drawn), below)
            });
            // The rows of deeper sessions are counted with those of the first level.
            let mut room = if self.depth == 0 { CHILD_ROWS_MAX } else { usize::MAX };
            for (row, mut below) in calls.by_ref().take(CALL_ROWS_MAX) {
                rows.push(row);
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

    fn attempt(&self, label: &str, attempt: &AttemptTranscript<'_>) -> Row {
        let requested_at = requested_at(attempt);
        let (until, word) = match (&attempt.failure, &attempt.response) {
            (Some(failure), _) => {
                // The record before is the last sign of a host that was killed.
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
            bars.push(Bar { from, until: asked, sign: Sign::Wait });
            bars.push(Bar { from: asked, until, sign: Sign::Model });
        }
        if matches!(word, "broke" | "refused") {
            bars.push(Bar { from: until, until, sign: Sign::Broken });
        }
        let duration_ms = attempt.start.map(|_| until.saturating_sub(requested_at));
        let model = attempt.start.map_or("given", |start| start.model);
        let label = format!("{label} {model}");
        Row { depth: self.depth, mark: None, label, bars, word, duration_ms }
    }

    /// Returns the rows of the child session of a call.
    fn child(&self, call: &CallTranscript<'_>) -> Vec<Row> {
        let depth = self.depth + 1;
        let child = self.children.of_call(self.session, self.transcript, call);
        let Some(child) = child.filter(|_| depth <= CHILD_DEPTH_READ) else { return Vec::new() };
        let missing = |word| {
            let label = "child session".to_owned();
            vec![Row { depth, mark: None, label, bars: Vec::new(), word, duration_ms: None }]
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
        let (session, children, began) = (&child.id, self.children, start.at.time);
        let rows = Rows { session, transcript, entries, children, began, until, depth };
        rows.turns(run).into_iter().flatten().collect()
    }

    /// Returns the row of a call. `has_child` means that the rows of its child session follow.
    fn call(
        &self,
        name: &str,
        call: &CallTranscript<'_>,
        attempt: &AttemptTranscript<'_>,
        has_child: bool,
    ) -> Row {
        let runs = if has_child { Sign::Agent } else { Sign::Tool };
        // An amended outcome has the time of the first one.
        let first = call.outcomes.iter().rfind(|outcome| !outcome.amended).or(call.outcome());
        let at = first.map_or(self.until, |outcome| outcome.at.time);
        let intended = call.intents.last().map(|intent| intent.at.time);
        // A client's time is that of the tool.
        let questions = call.questions.iter().filter(|question| !question.is_for_client());
        let questions = questions.map(|question| {
            let decision = call.decision_about(question);
            let until = decision.map_or(at, |decision| decision.at.time);
            Bar { from: question.at.time, until, sign: Sign::People }
        });
        let (mut bars, mut duration_ms): (Vec<_>, _) = (questions.collect(), None);
        let mut bar = |from, until, sign| bars.push(Bar { from, until, sign });
        let (mark, word) = if let Some(ended) = call.outcome() {
            let is_ok = ended.outcome.status == ToolStatus::Ok;
            let mut mark = if is_ok { Sign::Ok } else { Sign::Failed };
            if ended.outcome.kind == Some(FailureKind::HostStopped) {
                // Only the time of its intent is known.
                bar(intended.unwrap_or(at), intended.unwrap_or(at), Sign::Broken);
            } else if let Some(started) = ended.started_ms {
                // The run's clock stands still while no host runs, so that its time may be too
                // early.
                let decided = call.decisions.iter();
                let decided = decided.filter(|decision| decision.phase != ApprovalPhase::Input);
                let decided = decided.map(|decision| decision.at.time);
                let earliest = decided.chain(intended).fold(requested_at(attempt), u64::max);
                let by_clock = self.began.saturating_add(started);
                let by_end = at.saturating_sub(ended.duration_ms).max(earliest);
                let from = if by_clock >= earliest { by_clock } else { by_end };
                // The time of its questions is not time of the tool.
                let has_asked = call.questions.iter().any(|asked| asked.is_input());
                let until = if has_asked { at } else { from.saturating_add(ended.duration_ms) };
                bar(from.saturating_sub(ended.wait_ms), from, Sign::Wait);
                bar(from, until, runs);
                if !is_ok {
                    bar(until, until, Sign::Broken);
                }
                duration_ms = Some(ended.duration_ms);
            } else {
                bar(at.saturating_sub(ended.wait_ms), at, Sign::Wait);
                mark = if is_ok { Sign::Ok } else { Sign::NotRun };
            }
            (mark, outcome_word(ended))
        } else {
            let asked = call.questions.iter().map(|question| question.at.time);
            let seen = asked.chain(attempt.response.map(|response| response.at.time)).min();
            let sign = if intended.is_some() { runs } else { Sign::Wait };
            bar(intended.or(seen).unwrap_or(self.until), self.until, sign);
            (Sign::Open, "open")
        };
        let (mark, label) = (Some(mark), name.to_owned());
        Row { depth: self.depth, mark, label, bars, word, duration_ms }
    }

    /// Returns one row for the calls that have none of their own, and for the rows of their children.
    fn shared_row(&self, rest: &[Row]) -> Option<Row> {
        let calls = rest.iter().filter(|row| row.depth == self.depth);
        let mark = Some(calls.clone().filter_map(|row| row.mark).max()?);
        let is_wrong = |row: &&Row| matches!(row.mark, Some(Sign::Failed | Sign::NotRun));
        let count = calls.clone().count();
        let label = match calls.filter(is_wrong).count() {
            0 => format!("{count} more"),
            wrong => format!("{count} more, {wrong} not ok"),
        };
        Some(Row { depth: self.depth, mark, label, bars: bars(rest), word: "", duration_ms: None })
    }
}

/// Leaves as many rows of child sessions as there is room for, and returns one row for the others.
fn hide_rows(rows: &mut Vec<Row>, room: usize) -> Option<Row> {
    let mut drawn = 0;
    let is_hidden = |row: &mut Row| {
        let is_drawn = drawn < room && row.depth <= CHILD_DEPTH_MAX;
        drawn += usize::from(is_drawn);
        !is_drawn
    };
    let hidden: Vec<Row> = rows.extract_if(.., is_hidden).collect();
    let label = format!("{} not drawn", count_with_noun(hidden.len(), "row"));
    let bars = bars(&hidden);
    let row = Row { depth: 1, mark: None, label, bars, word: "", duration_ms: None };
    (!hidden.is_empty()).then_some(row)
}

fn bars(rows: &[Row]) -> Vec<Bar> {
    rows.iter().flat_map(|row| row.bars.iter().copied()).collect()
}

/// Returns the time of the request to the model; without a request, that of the response.
fn requested_at(attempt: &AttemptTranscript<'_>) -> u64 {
    let given = attempt.response.map_or(0, |response| response.at.time);
    attempt.start.map_or(given, |start| start.at.time.saturating_add(start.wait_ms))
}

fn ending_word(ending: ResponseDisposition) -> &'static str {
    match ending {
        ResponseDisposition::Well => "",
        ResponseDisposition::Length => "cut off",
        ResponseDisposition::Refused => "refused",
        ResponseDisposition::BrokeKept => "broke",
        ResponseDisposition::Excess => "too many",
        ResponseDisposition::Cancelled => "stopped",
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
