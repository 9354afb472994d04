//! Reads `[agents.NAME.context]`.

use super::source::Section;
use super::values::{self, share};
use crate::config::{ContextPolicy, HistoryForm};

const HISTORY_FORMS: [(&str, HistoryForm); 2] =
    [("full", HistoryForm::Full), ("compact", HistoryForm::Compact)];

impl ContextPolicy {
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let default = Self::default();
        let policy = Self {
            history: section
                .read("history", |value| values::one_of(value, &HISTORY_FORMS))
                .unwrap_or(default.history),
            clear_at: section.read("clear_at", share).unwrap_or(default.clear_at),
            keep_results: section
                .read("keep_results", values::unsigned)
                .unwrap_or(default.keep_results),
            clear_at_least: section.read("clear_at_least", share).unwrap_or(default.clear_at_least),
            compact_at: section.read("compact_at", share).unwrap_or(default.compact_at),
            keep_turns: section.read("keep_turns", values::unsigned).unwrap_or(default.keep_turns),
            keep_user_tokens: section
                .read("keep_user_tokens", values::unsigned)
                .unwrap_or(default.keep_user_tokens),
            references: section.read("references", values::boolean).unwrap_or(default.references),
        };
        section.report_unknown_keys();
        policy
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Share};

    fn parse(line: &str) -> Result<crate::config::ContextPolicy, String> {
        let text = format!("[agents.default.context]\n{line}\n");
        let config = Config::parse(&text, "test.toml", &|_| None).map_err(|e| e.to_string())?;
        Ok(config.agents["default"].context.clone())
    }

    #[test]
    fn shares_are_0_or_numbers_from_0_001_to_1() {
        assert_eq!(Some(parse("clear_at = 0.333").unwrap().clear_at), Share::of(0.333));
        assert!(parse("compact_at = 0").unwrap().compact_at.is_zero());
        let error = parse("compact_at = 85").unwrap_err();
        assert!(error.contains("test.toml:2: agents.default.context.compact_at"), "{error}");
        assert!(error.contains("must be 0 or a share from 0.001 to 1, and is 85"), "{error}");
        let error = parse("clear_at = 0.0004").unwrap_err();
        assert!(error.contains("must be 0 or a share from 0.001 to 1, and is 0.0004"), "{error}");
    }
}
