//! `callsheet.toml`, parsed once, validated, and passed in as values.

use std::time::Duration;

/// What a run and its turns may use. `None` is no limit (the decoder's hard caps stay).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Turns of one run; the last request for a final answer is not counted.
    pub max_turns: Option<u32>,
    /// Calls of one response.
    pub max_tool_calls_per_turn: Option<u32>,
    /// What becomes of the calls above that.
    pub on_excess: OnExcess,
    /// How long one call may run, where its tool does not say.
    pub tool_timeout: Option<Duration>,
    /// How long a call that was told to stop has before its actor is killed.
    pub cancel_grace: Duration,
    /// How long a run may take.
    pub run_timeout: Option<Duration>,
    /// The size of one call's arguments.
    pub max_arguments_bytes: usize,
    /// The part of a result that the model is shown.
    pub max_result_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_turns: Some(10),
            max_tool_calls_per_turn: Some(64),
            on_excess: OnExcess::Answer,
            tool_timeout: Some(Duration::from_secs(30)),
            cancel_grace: Duration::from_secs(1),
            run_timeout: Some(Duration::from_secs(600)),
            max_arguments_bytes: 1024 * 1024,
            max_result_bytes: 64 * 1024,
        }
    }
}

/// What becomes of calls above `max_tool_calls_per_turn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExcess {
    /// As many again are kept and answered; what is above that is truncated.
    #[default]
    Answer,
    /// They leave the history.
    Truncate,
    /// The stream is closed and the run ends `failed`.
    Fail,
}
