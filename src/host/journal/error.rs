//! The errors of a journal.

use std::path::PathBuf;

use callsheet_values::record::UnreadableRecord;
use callsheet_values::types::SessionId;

/// An error of storing or reading records.
///
/// [`Batch`](crate::journal::Batch) shows its use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// Another host uses the data directory.
    #[error("open the journal in {}: {holder} uses it: stop that host, or use another data directory", .dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process that uses it.
        holder: String,
    },
    /// The journal cannot be opened.
    #[error("open the journal {}: {reason}", .path.display())]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// The problem, and what to do.
        reason: String,
    },
    /// The journal cannot be copied, to a backup or from one.
    #[error("copy the journal to {}: {reason}", .dir.display())]
    Copy {
        /// The directory that receives the copy.
        dir: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The disk is full.
    #[error("write the journal: the disk is full")]
    Full,
    /// The journal cannot be written.
    #[error("write the journal: {0}")]
    Write(String),
    /// Sessions are deleted, but not erased yet: another program, or a long read of this one, reads the write-ahead log.
    /// The engine erases them when it has ended.
    #[error(
        "the session is deleted; the write-ahead log still holds it, since another program, or a long read of this one, \
         uses the database; it is erased when that has ended"
    )]
    NotErased,
    /// The engine has refused records, and works. Later records of the same log are refused too.
    #[error("write the journal: {0}")]
    Refused(BatchRefusal),
    /// The journal cannot be read.
    #[error("read the journal: {0}")]
    Read(String),
    /// The journal cannot be read now, because its database cannot be reached. The engine connects again by itself.
    #[error("read the journal: {0}")]
    Unavailable(String),
    /// A record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableRecord),
    /// The queue is full.
    #[error("write the journal: the queue is full")]
    Overloaded,
    /// The journal is closed.
    #[error("write the journal: it is closed")]
    Closed,
}

/// The reason why an engine does not store a batch: a result, and no failure of the journal.
///
/// [`Batch`](crate::journal::Batch) shows its use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchRefusal {
    /// The batch opens a session, and another one with its id is stored.
    #[error("a session with this id is stored")]
    Exists,
    /// The batch opens a fork, and the session whose records it shares was deleted meanwhile.
    #[error("session {0}, of which it is a fork, has been removed")]
    OriginRemoved(SessionId),
    /// Another host has the session ([`Ownership`](crate::journal::Ownership)).
    #[error("another host has the session")]
    Fenced,
}

impl JournalError {
    /// Returns whether a retry may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full | Self::Overloaded | Self::Write(_) | Self::Unavailable(_))
    }
}
