//! Replays one turn from its records, without models and tools.
//!
//! Runs the real turn machine. Infers its inputs from the records, and compares the records that it
//! makes with the recorded ones.

mod difference;
mod recording;
mod response;
mod turn_replay;

pub use difference::Difference;

pub use difference::{Mismatch, same};
pub use recording::Recording;
pub use turn_replay::{ReplayEnd, TurnReplay};

#[cfg(test)]
use callsheet_values::record::JournalEntry;

/// Replays the records of one turn. `before` are the records of the session before it.
#[cfg(test)]
#[track_caller]
pub(super) fn check(
    spec: &super::TurnSpec,
    before: &[callsheet_values::record::Record],
    records: &[callsheet_values::record::Record],
) {
    let entry = |(record, seq): (&callsheet_values::record::Record, u64)| JournalEntry {
        seq: callsheet_values::record::Seq(seq),
        time: 0,
        displayed_bytes: 0,
        record: record.clone(),
    };
    // A turn that was resumed after its commit has a second commit, which is left out.
    let is_commit =
        |record: &_| matches!(record, callsheet_values::record::Record::TurnCommitted { .. });
    let end = records.iter().position(is_commit).map_or(records.len(), |last| last + 1);
    let records = records.get(..end).unwrap_or_default();
    let entries: Vec<_> = before.iter().chain(records).zip(1..).map(entry).collect();
    let recording = Recording::new(&entries);
    let committed =
        matches!(records.last(), Some(callsheet_values::record::Record::TurnCommitted { .. }));
    match TurnReplay::new(&recording, before.len(), spec.clone(), None, None).run() {
        Ok((at, end)) => {
            assert_eq!(at, entries.len(), "{end:?}");
            assert_eq!(matches!(end, ReplayEnd::Committed(_)), committed, "{records:#?}");
        }
        Err(mismatch) => {
            panic!("{mismatch:?} instead of {:#?}\nin {records:#?}", records.get(mismatch.index));
        }
    }
}
