//! The positions of the records that hold the values of references. The values themselves are in the journal
//! only.

use std::collections::BTreeMap;

use callsheet_values::record::Seq;
use callsheet_values::types::{CallKey, Reference, ReferenceError, RunId};

/// The positions of the records that hold results, arguments and answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ReferenceIndex {
    /// The numbers of the committed turns, ascending, with the position of the record of the commit.
    commits: Vec<(u32, Seq)>,
    /// The position of the record of the end of each run.
    run_ends: BTreeMap<RunId, Seq>,
}

/// A range of records of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordRange {
    /// The record before the first one.
    pub after: Seq,
    /// The last record. `None`: all that follow.
    pub upto: Option<Seq>,
}

impl ReferenceIndex {
    pub(super) fn add_commit(&mut self, turn: u32, seq: Seq) {
        // The commit of a turn may be reported twice, the second time when its run is given up.
        if self.commits.last().is_none_or(|(last, _)| *last < turn) {
            self.commits.push((turn, seq));
        }
    }

    pub(super) fn add_run_end(&mut self, run: &RunId, seq: Seq) {
        self.run_ends.insert(run.clone(), seq);
    }

    pub(super) fn remove_run_end(&mut self, run: &RunId) {
        self.run_ends.remove(run);
    }

    pub(super) fn has_run_end(&self, run: &RunId) -> bool {
        self.run_ends.contains_key(run)
    }

    /// Returns the newest runs that have ended, at most `count`, in their order.
    pub(super) fn newest_runs(&self, count: usize) -> Vec<RunId> {
        let mut runs: Vec<_> = self.run_ends.iter().map(|(run, seq)| (*seq, run)).collect();
        runs.sort_unstable();
        let first = runs.len().saturating_sub(count);
        runs.drain(first..).map(|(_, run)| run.clone()).collect()
    }

    /// Returns the records that hold the value of a reference to a result, to arguments or to an answer.
    /// `last` is the session's last turn. Callers have refused the calls of the turn in progress (`SameTurn`).
    ///
    /// # Errors
    /// If the session has no such turn, the run has not ended, or the reference is to a variable.
    pub(super) fn locate(
        &self,
        reference: &Reference,
        last: u32,
    ) -> Result<RecordRange, ReferenceError> {
        match reference {
            Reference::Result(key) | Reference::Structured(key) | Reference::Arguments(key) => {
                let range = self.locate_call(*key, last);
                range.ok_or_else(|| ReferenceError::NoSuchResult(reference.clone()))
            }
            Reference::Answer(run) => {
                let seq = self.run_ends.get(run);
                let seq = seq.ok_or_else(|| ReferenceError::NoSuchRun(reference.clone()))?;
                Ok(RecordRange { after: Seq(seq.0.saturating_sub(1)), upto: Some(*seq) })
            }
            Reference::Variable(_) => Err(ReferenceError::NoSuchVariable(reference.clone())),
        }
    }

    /// Returns the records that may hold a call: those of its turn, which may be in progress.
    fn locate_call(&self, key: CallKey, last: u32) -> Option<RecordRange> {
        let at = self.commits.partition_point(|(turn, _)| *turn < key.turn);
        let before = at.checked_sub(1).and_then(|before| self.commits.get(before));
        let after = before.map_or(Seq(0), |(_, seq)| *seq);
        match self.commits.get(at) {
            Some((turn, seq)) => {
                (*turn == key.turn).then_some(RecordRange { after, upto: Some(*seq) })
            }
            None => (key.turn == last).then_some(RecordRange { after, upto: None }),
        }
    }
}
