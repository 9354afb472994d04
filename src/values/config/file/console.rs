//! Reads `[console]`.

use super::source::Section;
use super::values;
use crate::config::ConsoleConfig;

impl ConsoleConfig {
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let default = Self::default();
        let console = Self {
            enabled: section.read("enabled", values::boolean).unwrap_or(default.enabled),
            requests: section.read("requests", values::boolean).unwrap_or(default.requests),
        };
        section.report_unknown_keys();
        console
    }
}
