//! The configuration of the journal: `[journal]`.

use std::time::Duration;

/// The configuration of the journal.
///
/// ```
/// use callsheet::config::Config;
///
/// let config = Config::default().with(|config| {
///     config.journal.set_relaxed_durability(true);
///     config.journal.set_manual_resume(true);
/// });
/// assert!(config.journal.keep_idle.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct JournalConfig {
    /// The storage engine.
    pub engine: JournalEngine,
    /// The durability that a run waits for.
    pub durability: Durability,
    /// The handling of runs that were in progress when the host ended.
    pub resume: Resume,
    /// Sessions without activity for this time are deleted, once they have left memory (`idle_after`). `None` means
    /// never.
    pub keep_idle: Option<Duration>,
    /// Bytes of the disk that are kept free, so that sessions can be deleted when it is full. Default: 4
    /// MiB. 0 means none.
    pub reserve_bytes: u64,
}

impl JournalConfig {
    /// Lets a run continue as soon as its records survive a crash of the process. By default it waits until
    /// they survive a crash of the machine, as watchers and clients that wait for an answer always do.
    pub fn set_relaxed_durability(&mut self, on: bool) {
        self.durability = if on { Durability::Relaxed } else { Durability::Strict };
    }

    /// Resumes interrupted runs on request, by `SessionHandle::resume`. By
    /// default they are resumed when the host starts.
    pub fn set_manual_resume(&mut self, on: bool) {
        self.resume = if on { Resume::Manual } else { Resume::Auto };
    }
}

/// A storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalEngine {
    /// In a SQLite database in the data directory.
    Sqlite,
    /// In memory. Records are lost when the host ends.
    Memory,
}

/// The durability that a run waits for before it continues. Watchers and clients that wait for an
/// answer always wait for an fsync.
///
/// [`JournalConfig`](crate::config::JournalConfig) shows its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Records survive a crash of the machine.
    Strict,
    /// Records survive a crash of the process.
    Relaxed,
}

/// The handling of runs that were in progress when the host ended.
///
/// Set in [`JournalConfig::resume`](crate::config::JournalConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resume {
    /// Runs are resumed when the host starts.
    Auto,
    /// Runs are resumed on request.
    Manual,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            engine: JournalEngine::Sqlite,
            durability: Durability::Strict,
            resume: Resume::Auto,
            keep_idle: None,
            reserve_bytes: 4 * 1024 * 1024,
        }
    }
}
