//! Replays one turn from its records, without models and tools.
//!
//! The machine is the real one. Its inputs are inferred from the records; the records that it
//! makes are compared with the recorded ones.

mod difference;
mod play;
mod recording;
mod response;

pub use difference::Difference;

pub(crate) use difference::{Mismatch, same};
pub(crate) use play::{Play, Played};
pub(crate) use recording::{ExternalInput, Recording};

#[cfg(test)]
use crate::record::JournalEntry;

/// Replays the records of one turn.
#[cfg(test)]
#[track_caller]
pub(super) fn check(spec: &super::TurnSpec, records: &[crate::record::Record]) {
    let entry = |(record, seq): (&crate::record::Record, u64)| JournalEntry {
        seq: crate::record::Seq(seq),
        time: 0,
        displayed_bytes: 0,
        record: record.clone(),
    };
    // A turn that is resumed after its commit is committed again.
    let commits = |record: &_| matches!(record, crate::record::Record::TurnCommitted { .. });
    let end = records.iter().position(commits).map_or(records.len(), |last| last + 1);
    let records = records.get(..end).unwrap_or_default();
    let entries: Vec<_> = records.iter().zip(1..).map(entry).collect();
    let recording = Recording::new(&entries);
    let committed = matches!(records.last(), Some(crate::record::Record::TurnCommitted { .. }));
    match play::Play::new(&recording, 0, spec.clone(), None).run() {
        Ok((at, played)) => {
            assert_eq!(at, entries.len(), "{played:?}");
            assert_eq!(matches!(played, play::Played::Committed(_)), committed, "{records:#?}");
        }
        Err(mismatch) => {
            panic!("{mismatch:?} instead of {:#?}\nin {records:#?}", records.get(mismatch.at));
        }
    }
}
