//! `[journal]`.

use std::time::Duration;

/// The configuration of the journal.
///
/// ```
/// use callsheet::config::{Config, Durability, Resume};
///
/// let text = "[journal]\ndurability = \"relaxed\"\nresume = \"manual\"\n";
/// let config = Config::parse(text, "callsheet.toml", &|_| None)?;
/// assert_eq!(config.journal.durability, Durability::Relaxed);
/// assert_eq!(config.journal.resume, Resume::Manual);
/// # Ok::<(), callsheet::config::ConfigErrors>(())
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
    /// Sessions without activity for this time are deleted. `None` means never.
    pub keep_idle: Option<Duration>,
    /// Bytes of the disk that are kept free, so that sessions can be deleted when it is full. Default: 4
    /// MiB. 0 means none.
    pub reserve_bytes: u64,
}

/// A storage engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JournalEngine {
    /// In a SQLite database in the data directory.
    Sqlite,
    /// In memory. Records are lost when the host ends.
    Memory,
}

/// The durability that a run waits for before it continues. Watchers and clients that wait for an
/// answer always wait for an fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Records survive a crash of the machine.
    Strict,
    /// Records survive a crash of the process.
    Relaxed,
}

/// The handling of runs that were in progress when the host ended.
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
