//! A session once more from its records, without models and tools: does today's code, with today's
//! configuration, decide the same?
//!
//! The machines are the real ones. What came from outside (what models said, what tools answered,
//! what people decided, stops, crashes) is taken from the records; what the machines ask to be
//! recorded is compared with what was, record by record, but for times. An outcome of a tool
//! stands once in the records and is what they say; all that is decided about it is compared.

mod difference;
mod play;
mod response;
mod session;
mod tape;
mod told;

use std::sync::Arc;

pub use difference::Difference;

use super::effect::TurnRules;
use crate::config::RunOverrides;
use crate::context::{History, Variables};
use crate::record::Entry;
use crate::types::SessionId;
use session::Session;
use tape::Tape;

/// A recording that today's code decides in the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many runs it has.
    pub runs: u32,
    /// How many turns were begun.
    pub turns: u32,
    /// How many calls were answered.
    pub calls: usize,
    /// How many records.
    pub records: usize,
    /// Whether it ends while a run goes on.
    pub unfinished: bool,
    /// The messages at its end.
    pub history: History,
    /// The variables at its end.
    pub variables: Variables,
}

/// Plays a session's records. `rules_of` says what a run of an agent goes by now, or why it could
/// not begin.
///
/// # Errors
/// The first difference.
pub fn replay(
    session: &SessionId,
    entries: &[Entry],
    rules_of: impl Fn(&str, &RunOverrides) -> Result<Arc<TurnRules>, String>,
) -> Result<Replayed, Box<Difference>> {
    let tape = Tape::new(entries);
    let replayed = Session::new(&tape, session, &rules_of).play()?;
    Ok(Replayed { records: entries.len(), ..replayed })
}

/// Plays the records of one turn.
#[cfg(test)]
#[track_caller]
pub(super) fn check(spec: &super::TurnSpec, records: &[crate::record::Record]) {
    let entry = |(record, seq): (&crate::record::Record, u64)| Entry {
        seq: crate::record::Seq(seq),
        time: 0,
        shown: 0,
        record: record.clone(),
    };
    // A turn that was resumed once it was over says so again.
    let commits = |record: &_| matches!(record, crate::record::Record::TurnCommitted { .. });
    let end = records.iter().position(commits).map_or(records.len(), |last| last + 1);
    let records = records.get(..end).unwrap_or_default();
    let entries: Vec<_> = records.iter().zip(1..).map(entry).collect();
    let tape = Tape::new(&entries);
    let committed = matches!(records.last(), Some(crate::record::Record::TurnCommitted { .. }));
    match play::Play::new(&tape, 0, spec.clone(), None).run() {
        Ok((at, played)) => {
            assert_eq!(at, entries.len(), "{played:?}");
            assert_eq!(matches!(played, play::Played::Committed(_)), committed, "{records:#?}");
        }
        Err(mismatch) => {
            panic!("{mismatch:?} instead of {:#?}\nin {records:#?}", records.get(mismatch.at));
        }
    }
}
