//! What is told of a run that is over, from the journal.

use super::RebuildError;
use super::fold::Fold;
use crate::config::{Limits, RunOverrides};
use crate::event::StatsReport;
use crate::message::MessageList;
use crate::record::{JournalEntry, Record, Seq};
use crate::types::{RunEnd, RunError, RunId, ToolResult, Usage};

/// A run that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRun {
    /// The run.
    pub id: RunId,
    /// The record of its end.
    pub seq: Seq,
    /// Why it ended.
    pub end: RunEnd,
    /// The final answer, or what there is of it.
    pub text: String,
    /// What went wrong, if something did.
    pub error: Option<RunError>,
    /// Its sums.
    pub stats: StatsReport,
    /// Every call, in call order, with what its turn cost.
    pub calls: Vec<(Usage, ToolResult)>,
    /// Where in the messages it begins.
    pub first_message: usize,
    /// The session's messages as the run left them.
    pub messages: MessageList,
}

/// The run with this id, if it has ended.
///
/// # Errors
/// When a record up to its end contradicts the ones before it.
pub fn past_run(
    entries: &[JournalEntry],
    id: &RunId,
    limits: &dyn Fn(&RunOverrides) -> Limits,
) -> Result<Option<PastRun>, RebuildError> {
    let is_its_end = |entry: &JournalEntry| matches!(&entry.record, Record::RunEnded { run_id, .. } if run_id == id);
    let Some(at) = entries.iter().position(is_its_end) else { return Ok(None) };
    let Some(upto) = entries.get(..=at) else { return Ok(None) };
    let mut fold = Fold::begin(upto, limits)?;
    let mut ended = None;
    while let Some(run) = fold.take_in_next()? {
        ended = run.or(ended);
    }
    let rebuilt = fold.finish();
    let Some((Record::RunEnded { end, text, error, stats, .. }, run)) =
        upto.last().map(|entry| &entry.record).zip(ended)
    else {
        return Ok(None);
    };
    Ok(Some(PastRun {
        id: id.clone(),
        seq: rebuilt.last,
        end: *end,
        text: text.clone(),
        error: error.clone(),
        stats: *stats,
        calls: run.results,
        first_message: run.first_message,
        messages: rebuilt.history.messages().clone(),
    }))
}
