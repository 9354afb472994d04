//! The kinds of changes of a context: those that make it smaller, and those that leave content out or bring it back.

use serde::{Deserialize, Serialize};

/// The name of the limit in a record about a summary that failed or had no effect.
pub const COMPACT_AT: &str = "compact_at";

/// The kind of a change of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompactionKind {
    /// Old results became lines.
    Cleared,
    /// The responses and results of the last run became one message.
    Formatted,
    /// The first messages became a summary.
    Summarised,
    /// The first messages became one line, without a model.
    Dropped,
    /// Content became lines, because a service refused it or a client asked for it.
    Excluded,
    /// Content came back that was left out.
    Included,
}

impl CompactionKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Cleared,
        Self::Formatted,
        Self::Summarised,
        Self::Dropped,
        Self::Excluded,
        Self::Included,
    ];

    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cleared => "cleared",
            Self::Formatted => "formatted",
            Self::Summarised => "summarised",
            Self::Dropped => "dropped",
            Self::Excluded => "excluded",
            Self::Included => "included",
        }
    }
}

/// The reason why a summary is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryFailure {
    /// The response was cut off at its maximum length.
    CutOff,
    /// The summary saves too little.
    NoSaving,
    /// The model or its service refused to write one.
    Refused,
    /// No model answered, or the answer was empty.
    Failed,
}

impl SummaryFailure {
    /// Returns the name for clients and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CutOff => "cut_off",
            Self::NoSaving => "no_saving",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}
