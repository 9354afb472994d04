//! Reads `[faces.openai]`, `[faces.ui]` and `[faces.agui]`.

use super::source::Section;
use crate::config::key_table::KeyTable as _;
use crate::config::{AguiFaceConfig, FacesConfig, OpenAiFaceConfig, UiFaceConfig};

impl FacesConfig {
    /// Reads `[faces]`.
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let faces = Self {
            openai: OpenAiFaceConfig::read_table(&section.table("openai")),
            ui: UiFaceConfig::read_table(&section.table("ui")),
            agui: AguiFaceConfig::read_table(&section.table("agui")),
        };
        section.report_unknown_keys();
        faces
    }
}
