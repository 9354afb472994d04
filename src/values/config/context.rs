//! The rules that keep the history of a session small (`[agents.NAME.context]`), and shares of a whole.

#[cfg(feature = "toml")]
use super::file::values::{self, Parsed};
use super::key_table::{Value, key_table, named_values};

key_table! {
    /// The rules that keep the context of an agent's sessions within the window of its model.
    ///
    /// ```
    /// use callsheet::config::AgentConfig;
    ///
    /// let agent = AgentConfig::new("main").with(|agent| agent.context.set_compact_history(true));
    /// assert_eq!(agent.context.keep_results, 8);
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct ContextPolicy {
        /// The form in which runs that ended stay in the history. With `compact`, each becomes one message, with a log
        /// of its tool calls.
        history: HistoryForm = HistoryForm::Full, Any;
        /// If the next request is above this share of the window, old results are cleared: a line replaces each, with
        /// its reference if `references` is true. 0: only after a request was too large for the model.
        clear_at: Share = Share::thousandths(600), Any;
        /// Number of newest results of the session that are not cleared, unless they fill more than 0.3 of the window or
        /// a request was too large.
        keep_results: u32 = 8, Any;
        /// The share of the window that clearing must free. Otherwise nothing is cleared, unless a request was too
        /// large.
        clear_at_least: Share = Share::thousandths(100), Any;
        /// If the next request is above this share of the window, the history is summarised. 0: only after a request was
        /// too large, or on request of a client.
        compact_at: Share = Share::thousandths(850), Any;
        /// Maximum number of last turns that a summary leaves unchanged. They have at most a fourth of the window.
        keep_turns: u32 = 3, Any;
        /// Maximum number of tokens of users' messages that stay verbatim in a summarised history, the newest first.
        /// They have at most a sixth of the window. The newest one always stays.
        keep_user_tokens: u64 = 20_000, Any;
        /// True if results can be read with the tool `read_var` and referred to in arguments.
        references: bool = true, Any;
    }
}

impl ContextPolicy {
    /// Reduces each run that ended to one message in the history: its answer, with a log of its tool calls.
    /// By default all messages stay.
    pub fn set_compact_history(&mut self, on: bool) {
        self.history = if on { HistoryForm::Compact } else { HistoryForm::Full };
    }
}

/// The form in which runs that ended stay in the history.
///
/// Set in [`ContextPolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HistoryForm {
    /// All messages stay.
    #[default]
    Full,
    /// The answer of a run becomes one message, with a log of its tool calls.
    Compact,
}

named_values!(HistoryForm, [("full", Self::Full), ("compact", Self::Compact)]);

/// A share of a whole, in thousandths: 0 to 1000.
///
/// ```
/// use callsheet::config::Share;
///
/// assert_eq!(Share::of(0.85).map(|share| share.part_of(200_000)), Some(170_000));
/// assert_eq!(Share::of(1.5), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

impl Share {
    /// One half.
    pub const HALF: Self = Self(500);

    const fn thousandths(thousandths: u16) -> Self {
        Self(thousandths)
    }

    /// Returns the share of a number from 0 to 1, rounded to thousandths. `None` for other numbers.
    #[must_use]
    pub fn of(number: f64) -> Option<Self> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number is from 0 to 1000"
        )]
        (0.0..=1.0).contains(&number).then(|| Self((number * 1000.0).round() as u16))
    }

    /// Returns this share of a number, rounded down.
    #[must_use]
    pub fn part_of(self, whole: u64) -> u64 {
        whole / 1000 * u64::from(self.0) + whole % 1000 * u64::from(self.0) / 1000
    }

    /// Returns whether the share is 0.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

impl Value for Share {
    fn form() -> String {
        "0, or a share from 0.001 to 1".to_owned()
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }

    /// Parses a share, which is rounded to thousandths. A number above 0 that rounds to 0 is an error, because 0 can
    /// have a meaning of its own.
    #[cfg(feature = "toml")]
    fn parse(value: &toml::de::DeValue<'_>) -> Parsed<Self> {
        let number = values::float(value)?;
        let share = Self::of(number).filter(|share| number == 0.0 || !share.is_zero());
        share.ok_or_else(|| format!("must be 0 or a share from 0.001 to 1, and is {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(line: &str) -> Result<ContextPolicy, String> {
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
