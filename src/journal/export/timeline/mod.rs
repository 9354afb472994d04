//! A picture of a session's runs: a waterfall of their turns on a time axis.
//!
//! Each attempt has a row, and each call of its response. The times are those of the records, in
//! whole milliseconds. A call that continued after the host had stopped is placed by the time of its
//! outcome.

mod draw;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::count_with_noun;
use crate::journal::JournalEntry;
use crate::record::ResponseDisposition;
use crate::transcript::{
    AttemptTranscript, CallTranscript, RecordedOutcome, RunTranscript, Transcript, TurnTranscript,
};
use crate::types::{ApprovalPhase, CallKey, FailureKind, RunId, ToolStatus};
use draw::{draw, format_duration, legend};

/// The number of calls of an attempt that have a row each. The others share one.
const CALL_ROWS_MAX: usize = 16;

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
    only: Option<&RunId>,
    style: TimelineStyle,
) -> impl Iterator<Item = String> {
    let transcript = Transcript::read(entries);
    let runs = transcript.runs.iter().filter(|run| only.is_none_or(|id| run.id() == Some(id)));
    let runs: Vec<_> = runs.filter_map(|run| RunTimeline::new(run, entries)).collect();
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

impl RunTimeline {
    fn new(run: &RunTranscript<'_>, entries: &[JournalEntry]) -> Option<Self> {
        let start = run.start?;
        let last = entries.iter().map(|entry| entry.time).max().unwrap_or_default();
        let until = run.end.map_or(last, |end| end.at.time);
        let rows = Rows { entries, began: start.at.time, until };
        let mut heading = vec![format!("{}: has not ended", start.id)];
        if let Some(ended) = run.end {
            let turns = count_with_noun(ended.stats.turns as usize, "turn");
            let calls = count_with_noun(ended.stats.tool_calls as usize, "call");
            let end = format!("{}: {}", start.id, ended.end.as_str());
            heading = vec![end, turns, calls, format_duration(ended.stats.duration_ms)];
        }
        let turns = run.turns.iter().zip(1..).map(|(turn, number)| rows.turn(turn, number));
        Some(Self { began: start.at.time, heading, turns: turns.collect() })
    }
}

/// Makes the rows of a run.
struct Rows<'t> {
    entries: &'t [JournalEntry],
    began: u64,
    /// The time of the run's last record.
    until: u64,
}

impl Rows<'_> {
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
                self.call(name, attempt.calls.get(&key).unwrap_or(&none), attempt)
            });
            rows.extend(calls.by_ref().take(CALL_ROWS_MAX));
            rows.extend(shared_row(&calls.collect::<Vec<_>>()));
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
        Row { mark: None, label: format!("{label} {model}"), bars, word, duration_ms }
    }

    fn call(&self, name: &str, call: &CallTranscript<'_>, attempt: &AttemptTranscript<'_>) -> Row {
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
                bar(from, until, Sign::Tool);
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
            let sign = if intended.is_some() { Sign::Tool } else { Sign::Wait };
            bar(intended.or(seen).unwrap_or(self.until), self.until, sign);
            (Sign::Open, "open")
        };
        Row { mark: Some(mark), label: name.to_owned(), bars, word, duration_ms }
    }
}

/// Returns one row for the calls that have none of their own.
fn shared_row(calls: &[Row]) -> Option<Row> {
    let mark = Some(calls.iter().filter_map(|row| row.mark).max()?);
    let bars = calls.iter().flat_map(|row| row.bars.iter().copied()).collect();
    let is_wrong = |row: &&Row| matches!(row.mark, Some(Sign::Failed | Sign::NotRun));
    let label = match calls.iter().filter(is_wrong).count() {
        0 => format!("{} more", calls.len()),
        wrong => format!("{} more, {wrong} not ok", calls.len()),
    };
    Some(Row { mark, label, bars, word: "", duration_ms: None })
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
