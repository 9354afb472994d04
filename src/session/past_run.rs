//! The report of a run that has ended, read from the journal.

use super::machine::TermsOf;
use super::stored::{RebuildError, SessionReader};
use crate::event::StatsReport;
use crate::message::MessageList;
use crate::record::{JournalEntry, Record, Seq};
use crate::types::{RunEnd, RunError, RunId, ToolResult, Usage};

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
    /// The error, if the run failed.
    pub error: Option<RunError>,
    /// The run's sums.
    pub stats: StatsReport,
    /// The results of all calls in call order, each with the usage of its turn.
    pub calls: Vec<(Usage, ToolResult)>,
    /// The index of the run's first message.
    pub first_message: usize,
    /// The session's messages at the end of the run.
    pub messages: MessageList,
}

/// Returns the run with this id if it has ended.
///
/// # Errors
/// If a record up to its end contradicts the ones before it.
pub fn past_run(
    entries: &[JournalEntry],
    id: &RunId,
    terms_of: TermsOf<'_>,
) -> Result<Option<PastRun>, RebuildError> {
    let mut reader = SessionReader::new(terms_of).with_all_messages();
    let mut calls = Vec::new();
    for entry in entries {
        let run = reader.session().run().filter(|run| run.id == *id);
        let first_message = run.map(|run| run.first_message);
        if let Some(turn) = reader.read(entry)? {
            let results = turn.results.iter().cloned();
            let of_run = results.filter(|_| first_message.is_some());
            calls.extend(of_run.map(|result| (turn.usage, result)));
        }
        if let (Record::RunEnded { end, text, error, stats, .. }, Some(first_message)) =
            (&entry.record, first_message)
        {
            return Ok(Some(PastRun {
                id: id.clone(),
                seq: entry.seq,
                end: *end,
                text: text.clone(),
                error: error.clone(),
                stats: *stats,
                calls,
                first_message,
                messages: reader.session().history().messages().clone(),
            }));
        }
    }
    Ok(None)
}
