//! `[journal]`.

use std::time::Duration;

use super::source::Section;
use super::values;

/// How records are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JournalConfig {
    /// Where.
    pub engine: JournalEngine,
    /// What is waited for.
    pub durability: Durability,
    /// What becomes of runs that had not ended when the host stopped.
    pub resume: Resume,
    /// Sessions that nothing has happened in for so long are deleted; `None` keeps them.
    pub keep_idle: Option<Duration>,
}

/// Where records are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalEngine {
    /// In a SQLite database in the data directory.
    Sqlite,
    /// In memory: they end with the host.
    Memory,
}

/// What a run waits for before it goes on. Watchers and those who get an answer wait until it
/// survives the end of the machine in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Its records survive the end of the machine.
    Strict,
    /// They survive the end of the process.
    Relaxed,
}

/// What becomes of runs that had not ended when the host stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resume {
    /// They go on when the host starts.
    Auto,
    /// They go on when somebody asks.
    Manual,
}

impl JournalConfig {
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let default = Self::default();
        let engine = |value: &_| values::word(value, &JournalEngine::WORDS);
        let durability = |value: &_| values::word(value, &Durability::WORDS);
        let resume = |value: &_| values::word(value, &Resume::WORDS);
        let journal = Self {
            engine: section.read("engine", engine).unwrap_or(default.engine),
            durability: section.read("durability", durability).unwrap_or(default.durability),
            resume: section.read("resume", resume).unwrap_or(default.resume),
            keep_idle: section.read("keep_idle", values::time_limit).unwrap_or(default.keep_idle),
        };
        section.finish();
        journal
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            engine: JournalEngine::Sqlite,
            durability: Durability::Strict,
            resume: Resume::Auto,
            keep_idle: None,
        }
    }
}

impl JournalEngine {
    const WORDS: [(&str, Self); 2] = [("sqlite", Self::Sqlite), ("memory", Self::Memory)];
}

impl Durability {
    const WORDS: [(&str, Self); 2] = [("strict", Self::Strict), ("relaxed", Self::Relaxed)];
}

impl Resume {
    const WORDS: [(&str, Self); 2] = [("auto", Self::Auto), ("manual", Self::Manual)];
}
