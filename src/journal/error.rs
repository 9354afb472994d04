//! Why a journal does not do what it is asked.

use std::path::PathBuf;

use crate::record::UnreadableRecord;

/// Why records cannot be stored or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another host has the data directory.
    #[error("open the journal in {}: {holder} has it: stop that one, or name another data_dir", .dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// The journal cannot be opened.
    #[error("open the journal {}: {why}", .path.display())]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// There is no room left.
    #[error("write the journal: the disk is full")]
    Full,
    /// It cannot be written.
    #[error("write the journal: {0}")]
    Write(String),
    /// It cannot be read.
    #[error("read the journal: {0}")]
    Read(String),
    /// A record in it cannot be read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableRecord),
    /// More batches wait than may.
    #[error("write the journal: too much waits to be written")]
    Overloaded,
    /// The journal is closed.
    #[error("write the journal: it is closed")]
    Closed,
}

impl JournalError {
    /// Whether the same may work later without anybody's doing.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Full | Self::Overloaded | Self::Write(_))
    }
}
