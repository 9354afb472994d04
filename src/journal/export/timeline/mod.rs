//! A picture of a session's runs: a waterfall of its turns on a time axis.
//!
//! A row for each exchange with a model, and one for each call of its response. What is drawn are
//! the times in the records, in whole milliseconds. Those of a run that the host's end interrupted
//! are exact up to there; behind it a call is placed by the time of its outcome.

mod axis;
mod draw;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::counted;
use crate::event::StatsReport;
use crate::journal::JournalEntry;
use crate::record::{Record, ResponseDisposition};
use crate::types::{CallKey, FailureKind, ResultNotes, RunEnd, RunId, ToolOutcome, ToolStatus};
use draw::{draw, how_long};

/// How the picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// How wide it may be; at least 40, at most 400 are used.
    pub columns: usize,
    /// Whether it may hold the signs that colour a terminal.
    pub coloured: bool,
    /// How many turns of a run are drawn: the last ones.
    pub turns_max: usize,
}

/// The runs of these records, or only one of them, and a legend behind them.
pub fn timeline<'a>(
    entries: &'a [JournalEntry],
    only: Option<&'a RunId>,
    look: Look,
) -> impl Iterator<Item = String> + 'a {
    let mut runs = runs(entries);
    runs.retain(|run| only.is_none_or(|id| run.id == id));
    let legend = (!runs.is_empty()).then(|| draw::legend(&runs, look));
    runs.into_iter().map(move |run| draw(&run, look)).chain(legend)
}

/// A run as it is drawn.
struct Run<'a> {
    id: &'a RunId,
    began: u64,
    /// The time of its last record.
    until: u64,
    end: Option<(RunEnd, &'a StatsReport)>,
    turns: Vec<Vec<Row>>,
}

/// A line of the picture.
#[derive(Debug)]
struct Row {
    mark: Mark,
    label: String,
    bars: Vec<Bar>,
    /// What became of it, where that is not the usual.
    word: &'static str,
    /// How long the exchange or the call took.
    took: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// An exchange with a model: its calls stand below.
    Model,
    Ok,
    Failed,
    /// It never ran.
    NotRun,
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Bar {
    from: u64,
    until: u64,
    what: What,
}

/// What goes on during a bar. Where two share a column, the later of these is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wait,
    People,
    Model,
    Tool,
    Broken,
}

/// A turn, while its records are gathered.
#[derive(Default)]
struct Turn<'a> {
    number: u32,
    exchanges: Vec<Exchange<'a>>,
    calls: BTreeMap<CallKey, Call<'a>>,
}

struct Exchange<'a> {
    attempt: u32,
    /// None for a response that the session was opened with.
    model: Option<&'a str>,
    decided: u64,
    asked: u64,
    /// When it was over, and what became of it.
    over: Option<(u64, &'static str)>,
}

#[derive(Default)]
struct Call<'a> {
    name: &'a str,
    /// When it was first heard of.
    known: u64,
    asked: Vec<(u64, Option<u64>)>,
    intended: Option<u64>,
    ended: Option<Ended<'a>>,
}

struct Ended<'a> {
    at: u64,
    outcome: &'a ToolOutcome,
    notes: &'a ResultNotes,
    /// Since the run began.
    started: Option<u64>,
    waited: u64,
    took: u64,
}

fn runs(entries: &[JournalEntry]) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let mut turn = Turn::default();
    // The time of the record before, which is the last sign of a host that was killed.
    let mut heard = 0;
    for entry in entries {
        match &entry.record {
            Record::RunStarted { run_id, .. } => {
                close(&mut runs, &mut turn);
                let (began, turns) = (entry.time, Vec::new());
                runs.push(Run { id: run_id, began, until: began, end: None, turns });
            }
            Record::RunEnded { end, stats, .. } => {
                if let Some(run) = runs.last_mut() {
                    run.until = entry.time;
                    run.end = Some((*end, stats));
                }
                close(&mut runs, &mut turn);
            }
            Record::AttemptStarted { turn: number, .. }
            | Record::ResponseEnded { turn: number, .. }
                if *number != turn.number =>
            {
                close(&mut runs, &mut turn);
                turn.number = *number;
                turn.take_in(entry, heard);
            }
            Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::CallEnded { .. }
            | Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::SessionClosed => turn.take_in(entry, heard),
        }
        if let Some(run) = runs.last_mut().filter(|run| run.end.is_none()) {
            run.until = run.until.max(entry.time);
        }
        heard = entry.time;
    }
    close(&mut runs, &mut turn);
    runs
}

/// The turn is over: it is the last run's.
fn close<'a>(runs: &mut [Run<'a>], turn: &mut Turn<'a>) {
    let turn = std::mem::take(turn);
    if let Some(run) = runs.last_mut().filter(|_| turn.number > 0) {
        let rows = turn.rows(run.began, run.until);
        run.turns.push(rows);
    }
}

impl<'a> Turn<'a> {
    fn take_in(&mut self, entry: &'a JournalEntry, heard: u64) {
        let at = entry.time;
        match &entry.record {
            Record::AttemptStarted { attempt, model, wait_ms, .. } => {
                let asked = at.saturating_add(*wait_ms);
                let (attempt, model) = (*attempt, Some(model.as_str()));
                self.exchanges.push(Exchange { attempt, model, decided: at, asked, over: None });
            }
            Record::AttemptFailed { host_stopped, .. } => {
                let at = if *host_stopped { heard } else { at };
                self.over(at, "broke");
            }
            Record::ResponseEnded { attempt, ending, message, .. } => {
                if self.exchanges.is_empty() {
                    let (attempt, model) = (*attempt, None);
                    let over = None;
                    self.exchanges.push(Exchange { attempt, model, decided: at, asked: at, over });
                }
                self.over(at, word(*ending));
                for call in &message.calls {
                    self.call(call.key, at).name = &call.name;
                }
            }
            Record::CallIntended { call, .. } => {
                let known = self.call(call.key, at);
                known.name = &call.name;
                known.intended = Some(at);
            }
            Record::ApprovalAsked { asked } => {
                let call = self.call(asked.call.key, at);
                call.name = &asked.call.name;
                call.asked.push((at, None));
            }
            Record::ApprovalGiven { key, .. } => {
                if let Some((_, given)) = self.call(*key, at).asked.last_mut() {
                    given.get_or_insert(at);
                }
            }
            Record::CallEnded {
                call,
                outcome,
                notes,
                started_ms,
                wait_ms,
                duration_ms,
                amended,
                ..
            } => {
                let known = self.call(call.key, at);
                known.name = &call.name;
                // What was noted later came at no other time.
                let at = known.ended.as_ref().filter(|_| *amended).map_or(at, |ended| ended.at);
                let (started, waited, took) = (*started_ms, *wait_ms, *duration_ms);
                known.ended = Some(Ended { at, outcome, notes, started, waited, took });
            }
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::RunStarted { .. }
            | Record::CallReported { .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::RunEnded { .. }
            | Record::SessionClosed => {}
        }
    }

    fn over(&mut self, at: u64, word: &'static str) {
        if let Some(last) = self.exchanges.last_mut() {
            // A response that broke and is kept has two records of that.
            last.over.get_or_insert((at, word));
        }
    }

    fn call(&mut self, key: CallKey, known: u64) -> &mut Call<'a> {
        self.calls.entry(key).or_insert_with(|| Call { known, ..Call::default() })
    }

    /// Each exchange, and the calls of its response below it.
    fn rows(self, began: u64, until: u64) -> Vec<Row> {
        let mut calls: Vec<_> = self.calls.into_iter().collect();
        let mut rows = Vec::new();
        for (at, exchange) in self.exchanges.iter().enumerate() {
            rows.push(exchange.row(self.number, at == 0, until));
            let own = calls.extract_if(.., |(key, _)| key.attempt == exchange.attempt);
            rows.extend(own.map(|(_, call)| call.row(began, exchange.asked, until)));
        }
        rows.extend(calls.into_iter().map(|(_, call)| call.row(began, began, until)));
        rows
    }
}

fn word(ending: ResponseDisposition) -> &'static str {
    match ending {
        ResponseDisposition::Well => "",
        ResponseDisposition::Length => "cut off",
        ResponseDisposition::Refused => "refused",
        ResponseDisposition::BrokeKept => "broke",
        ResponseDisposition::Excess => "too many",
        ResponseDisposition::Cancelled => "stopped",
    }
}

impl Exchange<'_> {
    fn row(&self, turn: u32, is_first: bool, run_until: u64) -> Row {
        let model = self.model.unwrap_or("given");
        let label = match is_first {
            true => format!("turn {turn} {model}"),
            false => format!("  attempt {} {model}", self.attempt),
        };
        let (until, word) = self.over.unwrap_or((run_until.max(self.asked), "open"));
        let mut bars = Vec::new();
        if self.asked > self.decided {
            bars.push(Bar { from: self.decided, until: self.asked.min(until), what: What::Wait });
        }
        if self.model.is_some() && until >= self.asked {
            bars.push(Bar { from: self.asked, until, what: What::Model });
        }
        if matches!(word, "broke" | "refused") {
            bars.push(Bar { from: until, until, what: What::Broken });
        }
        let took = self.model.map(|_| until.saturating_sub(self.asked));
        Row { mark: Mark::Model, label, bars, word, took }
    }
}

impl Call<'_> {
    /// `asked` is when its response was asked for: it did not start before that.
    fn row(&self, run_began: u64, asked: u64, run_until: u64) -> Row {
        let given = self.asked.iter().filter_map(|(_, given)| *given);
        let floor = given.chain(self.intended).fold(asked, u64::max);
        let people = self.asked.iter().map(|(asked, given)| {
            let over = self.ended.as_ref().map_or(run_until, |ended| ended.at);
            Bar { from: *asked, until: given.unwrap_or(over), what: What::People }
        });
        let mut bars: Vec<Bar> = people.collect();
        let row =
            |mark, bars, word, took| Row { mark, label: self.name.to_owned(), bars, word, took };
        let Some(ended) = &self.ended else {
            let (from, what) = match self.intended {
                Some(intended) => (intended, What::Tool),
                None => (self.known, What::Wait),
            };
            bars.push(Bar { from, until: run_until, what });
            return row(Mark::Open, bars, "open", None);
        };
        let (status, word) = (ended.outcome.status, ended.word());
        if ended.outcome.kind == Some(FailureKind::HostStopped) {
            // Only that it was to start is known.
            let at = self.intended.unwrap_or(ended.at);
            bars.push(Bar { from: at, until: at, what: What::Broken });
            return row(Mark::Failed, bars, word, None);
        }
        let Some(started) = ended.started else {
            let from = ended.at.saturating_sub(ended.waited);
            bars.push(Bar { from, until: ended.at, what: What::Wait });
            let mark = if status == ToolStatus::Ok { Mark::Ok } else { Mark::NotRun };
            return row(mark, bars, word, None);
        };
        // The run's clock stands still while no host runs, so what it says may be too early.
        let by_clock = run_began.saturating_add(started);
        let behind = ended.at.saturating_sub(ended.took);
        let from = if by_clock >= floor { by_clock } else { behind.max(floor) };
        let until = from.saturating_add(ended.took);
        bars.push(Bar { from: from.saturating_sub(ended.waited), until: from, what: What::Wait });
        bars.push(Bar { from, until, what: What::Tool });
        if status != ToolStatus::Ok {
            bars.push(Bar { from: until, until, what: What::Broken });
        }
        let mark = if status == ToolStatus::Ok { Mark::Ok } else { Mark::Failed };
        row(mark, bars, word, Some(ended.took))
    }
}

impl Ended<'_> {
    fn word(&self) -> &'static str {
        match (self.outcome.status, self.started) {
            _ if self.notes.duplicate_of.is_some() => "copied",
            _ if self.notes.reused => "reused",
            (ToolStatus::Ok, _) => "",
            (ToolStatus::Failed, None) => "not run",
            (status, _) => status.as_str(),
        }
    }
}

/// How the run's heading begins.
fn heading(run: &Run<'_>) -> String {
    let Some((end, stats)) = &run.end else { return format!("{}: has not ended", run.id) };
    let turns = counted(stats.turns as usize, "turn");
    let calls = counted(stats.tool_calls as usize, "call");
    format!("{}: {}, {turns}, {calls}, {}", run.id, end.as_str(), how_long(stats.duration_ms))
}
