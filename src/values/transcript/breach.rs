//! Broken invariants of a session's records.

use std::fmt;

use crate::types::Seq;

/// A broken invariant: something in a journal that no host writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The record at which it shows.
    pub seq: Seq,
    /// The invariant that is broken.
    pub invariant: Invariant,
    /// A human-readable description.
    pub message: String,
}

/// An invariant of a session's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// Records are numbered from 1 without gaps.
    Numbering,
    /// Times do not fall, except when a clock is set back a little.
    Time,
    /// A session is opened by its first record and by no other, and closed by its last.
    Session,
    /// Runs do not overlap, and each has its own id.
    Run,
    /// Turns are consecutive, and so are the attempts of each.
    Turn,
    /// A turn has one response, which agrees with how its attempt ended.
    Response,
    /// Every call that is kept has one outcome, and no other call has one.
    Outcome,
    /// The intent of a call with effects comes before its outcome, always under the same key.
    Intent,
    /// An approval is decided only after it was requested, and the first decision counts.
    Approval,
    /// A call that hooks refuse does not run, and a result that they withhold is not used.
    Hook,
    /// Variables are written by calls that succeeded, with the values that these reported.
    Writes,
    /// A commit agrees with the records of its turn.
    Commit,
    /// The history can be sent to a provider as it is.
    Pairing,
    /// A run's sums agree with its turns.
    Sums,
    /// The child of a call gets no more than the run has left, and its call counts what it has used.
    Lease,
}

impl Invariant {
    /// Returns the name for messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Numbering => "numbering",
            Self::Time => "time",
            Self::Session => "session",
            Self::Run => "run",
            Self::Turn => "turn",
            Self::Response => "response",
            Self::Outcome => "outcome",
            Self::Intent => "intent",
            Self::Approval => "approval",
            Self::Hook => "hook",
            Self::Writes => "writes",
            Self::Commit => "commit",
            Self::Pairing => "pairing",
            Self::Sums => "sums",
            Self::Lease => "lease",
        }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {} ({})", self.seq, self.message, self.invariant.as_str())
    }
}
