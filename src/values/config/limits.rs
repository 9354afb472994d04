//! The limits of runs, turns and calls: `[agents.NAME.limits]`.

use std::time::Duration;

use super::key_table::{key_table, named_values};

key_table! {
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
        /// Maximum number of turns of a run. When it is reached, one more request asks the model for an answer without
        /// calls. That request is not counted, nor are those for a typed answer, a second one that forces a call, and a
        /// turn of initial calls.
        max_turns: Option<u32> = Some(10), Limit;
        /// Maximum number of calls of a response. Up to as many further calls are answered without running, and the
        /// rest is removed, unless `on_excess` says otherwise.
        max_tool_calls_per_turn: Option<u32> = Some(64), Limit;
        /// The handling of calls above `max_tool_calls_per_turn`.
        on_excess: OnExcess = OnExcess::Answer, Any;
        /// Maximum number of calls of a run that are kept in the history, including those of child sessions. When a
        /// further call opens, the run is stopped and ends as `budget`.
        max_tool_calls_per_run: Option<u32> = None, Limit;
        /// The token budget of a run: maximum number of input and output tokens, including failed attempts, summaries
        /// and child sessions. When the service reports more, the run ends as `budget`. A complete answer is kept: the
        /// run then ends as without the limit, such as `answered`, and the action of the event is `answer_kept`.
        max_tokens_per_run: Option<u64> = None, Limit;
        /// Maximum number of consecutive turns with calls of which none succeeded. When it is reached, the run ends as
        /// `all_tools_failed`.
        max_failed_turns: Option<u32> = Some(3), Limit;
        /// Number of consecutive turns with the same calls and results after which the model receives a note (none if
        /// it is 1). After twice as many turns the run ends as `loop_detected`.
        repeat_limit: Option<u32> = Some(3), Limit;
        /// The time limit of a call whose tool has none of its own and does not run an agent. After it, the call is
        /// stopped and its outcome is a timeout. Time in which the call only waits for people does not count.
        tool_timeout: Option<Duration> = Some(Duration::from_secs(30)), Limit;
        /// The time that a stopped call has to end by itself. After it, the call's actor is killed, but not a blocking
        /// thread, nor a call of an agent.
        cancel_grace: Duration = Duration::from_secs(1), Positive;
        /// The time limit of a run. After it, the run is stopped and ends as `timed_out`. Time in which the run only
        /// waits for people does not count.
        run_timeout: Option<Duration> = Some(Duration::from_secs(1_800)), Limit;
        /// Maximum size of a call's arguments in bytes. A call with larger ones is not run, and its outcome is an error.
        max_arguments_bytes: usize = 1 << 20, Positive;
        /// Maximum size in bytes of the part of a result that the model receives. A note tells the model about the
        /// rest; the journal and clients have the whole result.
        max_result_bytes: usize = 64 << 10, Positive;
        /// Maximum size of a session's variables in bytes: names, and values as JSON. The writes of a call that exceed
        /// it are dropped, and the model receives a note.
        max_variables_bytes: usize = 256 << 10, Positive;
    }
}

impl Limits {
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

named_values!(
    OnExcess,
    [("answer", Self::Answer), ("truncate", Self::Truncate), ("fail", Self::Fail)]
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

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
