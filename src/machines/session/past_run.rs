//! The report of a run that has ended, read from the journal.

use std::sync::Arc;

use serde_json::Value;

use super::machine::SessionRulesOf;
use super::stored::{RebuildError, SessionReader};
use callsheet_values::event::StatsReport;
use callsheet_values::message::MessageList;
use callsheet_values::record::{JournalEntry, Record, Seq};
use callsheet_values::types::{FinishReason, RunEnd, RunError, RunId, ToolResult, Usage};

/// A run that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRun {
    /// The run's id.
    pub id: RunId,
    /// The position of the record of its end.
    pub seq: Seq,
    /// The reason of the end.
    pub end: RunEnd,
    /// The final answer, or as much of it as there is.
    pub text: String,
    /// The typed answer.
    pub output: Option<Arc<Value>>,
    /// The time of the run's start: Unix time in milliseconds.
    pub started_at: u64,
    /// The time of the run's end: Unix time in milliseconds.
    pub ended_at: u64,
    /// The error, if the run failed.
    pub error: Option<RunError>,
    /// The finish reason of the last response.
    pub finish_reason: Option<FinishReason>,
    /// The run's sums.
    pub stats: StatsReport,
    /// The results of all calls in call order, each with the usage of its turn.
    pub calls: Vec<(Usage, ToolResult)>,
    /// The index of the run's first message.
    pub first_message: usize,
    /// The session's messages at the end of the run, with those that its context did not hold any more.
    pub messages: MessageList,
}

/// Returns the run with this id if it has ended and was not reopened since.
///
/// # Errors
/// If a record up to its end contradicts the ones before it.
pub fn past_run(
    entries: &[JournalEntry],
    id: &RunId,
    session_rules_of: SessionRulesOf<'_>,
) -> Result<Option<PastRun>, RebuildError> {
    let mut reader = SessionReader::new(session_rules_of).with_all_messages();
    let (mut calls, mut interrupted) = (Vec::new(), None);
    for entry in entries {
        if let Record::RunReopened { .. } = &entry.record
            && let Some(PastRun { calls: before, .. }) = interrupted.take()
        {
            calls = before;
        }
        if interrupted.is_some() && matches!(entry.record, Record::RunStarted { .. }) {
            break;
        }
        let run = reader.session().run().filter(|run| run.id == *id);
        let started = run.map(|run| (run.first_message, run.began));
        let first_message = started.map(|(first, _)| first);
        if let Some(turn) = reader.read(entry)? {
            let results = turn.results.iter().cloned();
            let of_run = results.filter(|_| first_message.is_some());
            calls.extend(of_run.map(|result| (turn.usage, result)));
        }
        if let (
            Record::RunEnded { end, text, output, error, finish_reason, stats, .. },
            Some(started),
        ) = (&entry.record, started)
        {
            let run = PastRun {
                id: id.clone(),
                seq: entry.seq,
                end: *end,
                text: text.clone(),
                output: output.clone(),
                started_at: started.1,
                ended_at: entry.time,
                error: error.clone(),
                finish_reason: finish_reason.clone(),
                stats: *stats,
                calls: std::mem::take(&mut calls),
                first_message: started.0,
                messages: reader.session().history().messages().clone(),
            };
            if run.end != RunEnd::Interrupted {
                return Ok(Some(run));
            }
            interrupted = Some(run);
        }
    }
    Ok(interrupted)
}
