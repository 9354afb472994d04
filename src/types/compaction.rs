//! The kinds of changes that make a context smaller.

/// The name of the limit in a record about a summary that failed or had no effect.
pub const COMPACT_AT: &str = "compact_at";

/// The kind of a change that makes a context smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompactionKind {
    /// Old results became lines.
    Cleared,
    /// The responses and results of the last run became one message.
    Formatted,
    /// The first messages became a summary.
    Summarised,
}

impl CompactionKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Cleared, Self::Formatted, Self::Summarised];

    /// Returns the name for clients, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cleared => "cleared",
            Self::Formatted => "formatted",
            Self::Summarised => "summarised",
        }
    }
}
