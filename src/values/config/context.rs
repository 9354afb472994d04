//! The rules that keep the history of a session small (`[agents.NAME.context]`), and shares of a whole.

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
    /// The form in which runs that ended stay in the history.
    pub history: HistoryForm,
    /// If the next request is above this share of the window, old results are cleared: a line replaces each, with
    /// its reference if `references` is true. Zero: only after a request was too large for the model.
    pub clear_at: Share,
    /// Number of newest results of the session that are not cleared, unless a request was too large.
    pub keep_results: u32,
    /// The share of the window that clearing must free. Otherwise nothing is cleared, unless a request was too
    /// large.
    pub clear_at_least: Share,
    /// If the next request is above this share of the window, the history is summarised. Zero: only after a request
    /// was too large, or on request of a client.
    pub compact_at: Share,
    /// Maximum number of last turns that a summary leaves unchanged. They have at most a third of the window.
    pub keep_turns: u32,
    /// Maximum number of tokens of users' messages that stay verbatim in a summarised history, the newest first. They
    /// have at most a third of the window. The newest one always stays.
    pub keep_user_tokens: u64,
    /// True if results can be read with the tool `read_var` and referred to in arguments.
    pub references: bool,
}

impl ContextPolicy {
    /// Reduces each run that ended to one message in the history: its answer, with a log of its tool calls.
    /// By default all messages stay.
    pub fn set_compact_history(&mut self, on: bool) {
        self.history = if on { HistoryForm::Compact } else { HistoryForm::Full };
    }
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            history: HistoryForm::Full,
            clear_at: Share::thousandths(600),
            keep_results: 8,
            clear_at_least: Share::thousandths(100),
            compact_at: Share::thousandths(850),
            keep_turns: 3,
            keep_user_tokens: 20_000,
            references: true,
        }
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
