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
use crate::types::{CallKey, FailureKind, RunId, ToolStatus};
use draw::{draw, format_duration, legend};

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
    heading: String,
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

impl Bar {
    fn new(from: u64, until: u64, sign: Sign) -> Self {
        Self { from, until, sign }
    }
}

impl RunTimeline {
    fn new(run: &RunTranscript<'_>, entries: &[JournalEntry]) -> Option<Self> {
        let start = run.start?;
        let last = entries.iter().map(|entry| entry.time).max().unwrap_or_default();
        let rows =
            Rows { entries, began: start.at.time, until: run.end.map_or(last, |end| end.at.time) };
        let heading = match run.end {
            None => format!("{}: has not ended", start.id),
            Some(ended) => {
                let turns = count_with_noun(ended.stats.turns as usize, "turn");
                let calls = count_with_noun(ended.stats.tool_calls as usize, "call");
                let (end, duration) =
                    (ended.end.as_str(), format_duration(ended.stats.duration_ms));
                format!("{}: {end}, {turns}, {calls}, {duration}", start.id)
            }
        };
        let turns = run.turns.iter().map(|turn| rows.turn(turn)).collect();
        Some(Self { began: start.at.time, heading, turns })
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
    /// Returns a row for each attempt, each followed by the rows of its calls.
    fn turn(&self, turn: &TurnTranscript<'_>) -> Vec<Row> {
        let mut rows = Vec::new();
        for (nth, attempt) in turn.attempts.iter().enumerate() {
            let label = match nth {
                0 => format!("turn {}", turn.number),
                _ => format!("  attempt {}", attempt.number),
            };
            rows.push(self.attempt(&label, attempt));
            let in_response = attempt.response.iter().flat_map(|response| &response.message.calls);
            let in_response = in_response.map(|call| (call.key, &*call.name));
            let recorded = attempt.calls.iter();
            let recorded = recorded.map(|(key, call)| (*key, call.name().unwrap_or_default()));
            let names: BTreeMap<CallKey, &str> = recorded.chain(in_response).collect();
            let none = CallTranscript::default();
            rows.extend(names.into_iter().map(|(key, name)| {
                self.call(name, attempt.calls.get(&key).unwrap_or(&none), attempt)
            }));
        }
        rows
    }

    fn attempt(&self, label: &str, attempt: &AttemptTranscript<'_>) -> Row {
        let (model, mut bars) = (attempt.start.map_or("given", |start| start.model), Vec::new());
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
        if let Some(start) = attempt.start.filter(|start| start.wait_ms > 0) {
            bars.push(Bar::new(start.at.time, requested_at.min(until), Sign::Wait));
        }
        if attempt.start.is_some() && until >= requested_at {
            bars.push(Bar::new(requested_at, until, Sign::Model));
        }
        if matches!(word, "broke" | "refused") {
            bars.push(Bar::new(until, until, Sign::Broken));
        }
        let duration_ms = attempt.start.map(|_| until.saturating_sub(requested_at));
        Row { mark: None, label: format!("{label} {model}"), bars, word, duration_ms }
    }

    fn call(&self, name: &str, call: &CallTranscript<'_>, attempt: &AttemptTranscript<'_>) -> Row {
        // An amended outcome has the time of the first one.
        let first = call.outcomes.iter().rfind(|outcome| !outcome.amended);
        let ended = call.outcome().zip(first.or(call.outcome()));
        let ended = ended.map(|(last, first)| (last, first.at.time));
        let ended_at = ended.map_or(self.until, |(_, at)| at);
        let questions = call.questions.iter().map(|question| {
            let decision = call.decision(question.request.phase);
            let until = decision.map_or(ended_at, |decision| decision.at.time);
            Bar::new(question.at.time, until, Sign::People)
        });
        let (mut bars, label): (Vec<_>, _) = (questions.collect(), name.to_owned());
        let intended = call.intents.last().map(|intent| intent.at.time);
        let Some((ended, at)) = ended else {
            let seen = bars.iter().map(|bar| bar.from).chain(attempt.response.map(|r| r.at.time));
            let (from, sign) = match intended {
                Some(intended) => (intended, Sign::Tool),
                None => (seen.min().unwrap_or(self.until), Sign::Wait),
            };
            bars.push(Bar::new(from, self.until, sign));
            return Row { mark: Some(Sign::Open), label, bars, word: "open", duration_ms: None };
        };
        let (is_ok, word) = (ended.outcome.status == ToolStatus::Ok, outcome_word(ended));
        if ended.outcome.kind == Some(FailureKind::HostStopped) {
            // Only the time of its intent is known.
            let at = intended.unwrap_or(at);
            bars.push(Bar::new(at, at, Sign::Broken));
            return Row { mark: Some(Sign::Failed), label, bars, word, duration_ms: None };
        }
        let Some(started) = ended.started_ms else {
            bars.push(Bar::new(at.saturating_sub(ended.wait_ms), at, Sign::Wait));
            let mark = Some(if is_ok { Sign::Ok } else { Sign::NotRun });
            return Row { mark, label, bars, word, duration_ms: None };
        };
        // The run's clock stands still while no host runs, so that its time may be too early.
        let decided = call.decisions.iter().map(|decision| decision.at.time);
        let earliest = decided.chain(intended).fold(requested_at(attempt), u64::max);
        let by_clock = self.began.saturating_add(started);
        let by_end = at.saturating_sub(ended.duration_ms).max(earliest);
        let from = if by_clock >= earliest { by_clock } else { by_end };
        let until = from.saturating_add(ended.duration_ms);
        bars.push(Bar::new(from.saturating_sub(ended.wait_ms), from, Sign::Wait));
        bars.push(Bar::new(from, until, Sign::Tool));
        if !is_ok {
            bars.push(Bar::new(until, until, Sign::Broken));
        }
        let mark = Some(if is_ok { Sign::Ok } else { Sign::Failed });
        Row { mark, label, bars, word, duration_ms: Some(ended.duration_ms) }
    }
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
