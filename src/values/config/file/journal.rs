//! Reads `[journal]`.

use super::source::Section;
use super::values;
use crate::config::{Durability, JournalConfig, JournalEngine, Resume};

impl JournalConfig {
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let default = Self::default();
        let engine = |value: &_| values::one_of(value, &JournalEngine::NAMES);
        let durability = |value: &_| values::one_of(value, &Durability::NAMES);
        let resume = |value: &_| values::one_of(value, &Resume::NAMES);
        let journal = Self {
            engine: section.read("engine", engine).unwrap_or(default.engine),
            durability: section.read("durability", durability).unwrap_or(default.durability),
            resume: section.read("resume", resume).unwrap_or(default.resume),
            keep_idle: section
                .read("keep_idle", values::optional_duration)
                .unwrap_or(default.keep_idle),
            reserve_bytes: section
                .read("reserve_bytes", values::unsigned)
                .unwrap_or(default.reserve_bytes),
        };
        section.report_unknown_keys();
        journal
    }
}

impl JournalEngine {
    const NAMES: [(&str, Self); 2] = [("sqlite", Self::Sqlite), ("memory", Self::Memory)];
}

impl Durability {
    const NAMES: [(&str, Self); 2] = [("strict", Self::Strict), ("relaxed", Self::Relaxed)];
}

impl Resume {
    const NAMES: [(&str, Self); 2] = [("auto", Self::Auto), ("manual", Self::Manual)];
}
