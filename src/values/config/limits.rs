//! The limits of runs, turns and calls: `[agents.NAME.limits]`.

use std::time::Duration;

/// The limits of a run and its turns. `None` means no limit. Whatever is set here, a response has at most
/// 1024 calls, and at most `max_response_bytes` of its model. Each limit that is reached is published as the
/// event `limit_reached`.
///
/// ```
/// use callsheet::prelude::*;
///
/// let limits = Limits::default().with(|new| new.max_turns = Some(5));
/// let agent = AgentConfig::new("local").with(|new| new.limits = limits);
/// let host = Host::builder().agent("default", agent);
/// # let _ = host;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Maximum number of turns of a run. Default: 10. When it is reached, one more request asks
    /// the model for an answer without calls. That request is not counted, nor are those for a typed answer, a
    /// second one that forces a call, and a turn of initial calls.
    pub max_turns: Option<u32>,
    /// Maximum number of consecutive turns with calls of which none succeeded. Default: 3. When it is
    /// reached, the run ends as `all_tools_failed`.
    pub max_failed_turns: Option<u32>,
    /// The token budget of a run: maximum number of input and output tokens, including failed
    /// attempts, summaries and child sessions. Default: no limit. When the service reports more, the run
    /// ends as `budget`. A complete answer is kept: the run then ends as without the limit, such as `answered`,
    /// and the action of the event is `answer_kept`.
    pub max_tokens_per_run: Option<u64>,
    /// Maximum number of calls of a run that are kept in the history, including those of child
    /// sessions. Default: no limit. When a further call opens, the run is stopped and ends as `budget`.
    pub max_tool_calls_per_run: Option<u32>,
    /// Number of consecutive turns with the same calls and results after which the model receives a
    /// note (none if it is 1). Default: 3. After twice as many turns the run ends as `loop_detected`.
    pub repeat_limit: Option<u32>,
    /// Maximum number of calls of a response. Default: 64. Up to as many further calls are answered without running,
    /// and the rest is removed, unless [`Self::truncate_excess`] or [`Self::fail_on_excess`] says otherwise.
    pub max_tool_calls_per_turn: Option<u32>,
    /// The handling of calls above `max_tool_calls_per_turn`. Default: `answer`.
    pub on_excess: OnExcess,
    /// The time limit of a call whose tool has none of its own and does not run an agent. Default: 30 seconds. After
    /// it, the call is stopped and its outcome is a timeout. Time in which the call only waits for people does not
    /// count.
    pub tool_timeout: Option<Duration>,
    /// The time that a stopped call has to end by itself. Default: 1 second. After it, the call's
    /// actor is killed, but not a blocking thread, nor a call of an agent.
    pub cancel_grace: Duration,
    /// The time limit of a run. Default: 30 minutes. After it, the run is stopped and ends as
    /// `timed_out`. Time in which the run only waits for people does not count.
    pub run_timeout: Option<Duration>,
    /// Maximum size of a call's arguments in bytes. Default: 1 MiB. A call with larger ones is not run,
    /// and its outcome is an error.
    pub max_arguments_bytes: usize,
    /// Maximum size in bytes of the part of a result that the model receives. Default: 64 KiB. A note
    /// tells the model about the rest; the journal and clients have the whole result.
    pub max_result_bytes: usize,
    /// Maximum size of a session's variables in bytes: names, and values as JSON. Default: 256 KiB.
    /// The writes of a call that exceed it are dropped, and the model receives a note.
    pub max_variables_bytes: usize,
}

impl Limits {
    /// The configuration keys of the limits that can be reached.
    pub const NAMES: [&str; 11] = [
        "max_turns",
        "max_failed_turns",
        "max_tokens_per_run",
        "max_tool_calls_per_run",
        "repeat_limit",
        "max_tool_calls_per_turn",
        "tool_timeout",
        "run_timeout",
        "max_arguments_bytes",
        "max_result_bytes",
        "max_variables_bytes",
    ];

    /// Removes calls above `max_tool_calls_per_turn` from the response.
    #[must_use]
    pub fn truncate_excess(self) -> Self {
        Self { on_excess: OnExcess::Truncate, ..self }
    }

    /// Cancels a response with more than `max_tool_calls_per_turn` calls: none of them runs, and the run
    /// ends as `failed`.
    #[must_use]
    pub fn fail_on_excess(self) -> Self {
        Self { on_excess: OnExcess::Fail, ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_turns: Some(10),
            max_failed_turns: Some(3),
            max_tokens_per_run: None,
            max_tool_calls_per_run: None,
            repeat_limit: Some(3),
            max_tool_calls_per_turn: Some(64),
            on_excess: OnExcess::Answer,
            tool_timeout: Some(Duration::from_secs(30)),
            cancel_grace: Duration::from_secs(1),
            run_timeout: Some(Duration::from_secs(1_800)),
            max_arguments_bytes: 1024 * 1024,
            max_result_bytes: 64 * 1024,
            max_variables_bytes: 256 * 1024,
        }
    }
}

/// The handling of calls above `max_tool_calls_per_turn`.
///
/// Set with [`Limits::truncate_excess`], [`Limits::fail_on_excess`], or the key `on_excess`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExcess {
    /// With a limit of N, calls N+1 to 2N are kept and answered without running. Later ones are removed.
    #[default]
    Answer,
    /// Calls above the limit are removed from the response.
    Truncate,
    /// The response is cancelled, none of its calls runs, and the run ends as `failed`.
    Fail,
}
