//! Reads `[agents.NAME.limits]`.

use super::source::Section;
use super::values;
use crate::config::{Limits, OnExcess};

impl Limits {
    pub(super) fn read(section: &Section<'_, '_>) -> Self {
        let default = Self::default();
        let on_excess = |value: &_| values::one_of(value, &OnExcess::NAMES);
        let limits = Self {
            max_turns: section
                .read("max_turns", values::optional_limit)
                .unwrap_or(default.max_turns),
            max_failed_turns: section
                .read("max_failed_turns", values::optional_limit)
                .unwrap_or(default.max_failed_turns),
            max_tokens_per_run: section
                .read("max_tokens_per_run", values::optional_limit)
                .unwrap_or(default.max_tokens_per_run),
            max_tool_calls_per_run: section
                .read("max_tool_calls_per_run", values::optional_limit)
                .unwrap_or(default.max_tool_calls_per_run),
            repeat_limit: section
                .read("repeat_limit", values::optional_limit)
                .unwrap_or(default.repeat_limit),
            max_tool_calls_per_turn: section
                .read("max_tool_calls_per_turn", values::optional_limit)
                .unwrap_or(default.max_tool_calls_per_turn),
            on_excess: section.read("on_excess", on_excess).unwrap_or(default.on_excess),
            tool_timeout: section
                .read("tool_timeout", values::optional_duration)
                .unwrap_or(default.tool_timeout),
            cancel_grace: section
                .read("cancel_grace", values::positive_duration)
                .unwrap_or(default.cancel_grace),
            run_timeout: section
                .read("run_timeout", values::optional_duration)
                .unwrap_or(default.run_timeout),
            max_arguments_bytes: section
                .read("max_arguments_bytes", values::positive)
                .unwrap_or(default.max_arguments_bytes),
            max_result_bytes: section
                .read("max_result_bytes", values::positive)
                .unwrap_or(default.max_result_bytes),
            max_variables_bytes: section
                .read("max_variables_bytes", values::positive)
                .unwrap_or(default.max_variables_bytes),
        };
        section.report_unknown_keys();
        limits
    }
}

impl OnExcess {
    const NAMES: [(&'static str, Self); 3] =
        [("answer", Self::Answer), ("truncate", Self::Truncate), ("fail", Self::Fail)];
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Limits};

    #[test]
    fn limit_names_are_configuration_keys() {
        for name in Limits::NAMES {
            let is_read = ["1", "\"1s\""].iter().any(|value| {
                let text = format!("[agents.default.limits]\n{name} = {value}\n");
                Config::parse(&text, "test.toml", &|_| None).is_ok()
            });
            assert!(is_read, "{name}");
        }
    }
}
