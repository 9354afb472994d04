//! Reads `[journal]`.

use super::source::Section;
use super::values;
use crate::config::{Durability, JournalConfig, JournalEngine, Resume};

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
            reserve_bytes: section
                .read("reserve_bytes", values::number)
                .unwrap_or(default.reserve_bytes),
        };
        section.finish();
        journal
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
