//! Summaries of responses, failed attempts, turns and runs.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::micros;
use crate::types::ResponseEnding;
use crate::types::{FinishReason, ToolCall, Usage, floor_char_boundary};

/// Maximum number of bytes of a failed attempt's text that are recorded, and of its thinking.
pub const VOIDED_TEXT_BYTES_MAX: usize = 64 * 1024;

/// The summary of a response that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResponseSummary {
    /// The attempt of the turn, from 1.
    pub attempt: u32,
    /// The model's name: see [`displayed_model_name`](crate::config::displayed_model_name).
    pub model: String,
    /// The end, which decides what happens to the calls.
    pub ending: ResponseEnding,
    /// The calls that are kept, in call order.
    pub calls: Vec<ToolCall>,
    /// Names of the calls that were decoded but not kept.
    pub dropped_calls: Vec<Arc<str>>,
    /// The finish reason, if any.
    pub finish_reason: Option<FinishReason>,
    /// The token usage of the response.
    pub usage: Usage,
}

/// The text of an attempt that failed, as far as watchers have received it. No later event or record has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoidedText {
    /// The first [`VOIDED_TEXT_BYTES_MAX`] bytes of its text.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub text: String,
    /// The first [`VOIDED_TEXT_BYTES_MAX`] bytes of its thinking.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub thinking: String,
    /// Number of bytes that are left out because of the maximum.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub omitted_bytes: u64,
}

impl VoidedText {
    /// Creates the value from the text, in parts, and the thinking of an attempt. `None` if it has neither.
    #[must_use]
    pub fn of_attempt(texts: [&str; 2], thinking: &str) -> Option<Self> {
        let all = texts.concat();
        if all.is_empty() && thinking.is_empty() {
            return None;
        }
        let beginning = |of: &str| {
            of.get(..floor_char_boundary(of, VOIDED_TEXT_BYTES_MAX)).unwrap_or_default().to_owned()
        };
        let (text, kept_thinking) = (beginning(&all), beginning(thinking));
        let omitted = all.len() + thinking.len() - text.len() - kept_thinking.len();
        Some(Self { text, thinking: kept_thinking, omitted_bytes: omitted as u64 })
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The summary of a turn that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnSummary {
    /// Names of the answered calls, in call order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tool_names: Vec<Arc<str>>,
    /// Number of calls that were decoded but not kept.
    pub dropped_calls: u32,
    /// The finish reason of the response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finish_reason: Option<FinishReason>,
    /// The token usage of the turn.
    pub usage: Usage,
    /// True if calls could run concurrently.
    pub parallel: bool,
    /// The times.
    pub times: TurnTimes,
}

/// The times of a turn. They overlap if tools run while the response is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TurnTimes {
    /// Time from start to commit.
    #[serde(rename = "total_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub total: Duration,
    /// Time in which a model request was open.
    #[serde(rename = "model_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub model: Duration,
    /// Time in which at least one tool ran.
    #[serde(rename = "tools_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub tools: Duration,
    /// Time in which both were the case.
    #[serde(rename = "overlap_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub overlap: Duration,
    /// Time in which the turn waited only for people: for approvals, answers to questions, results of clients, and
    /// children that wait only for these.
    #[serde(rename = "people_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub people: Duration,
    /// Time in which a request waited for the delay of a retry or a permit of its model, a call for a permit of its
    /// tool, or a call or the turn for hooks, while no model request was open, no tool ran, and the turn did not wait
    /// only for people.
    #[serde(rename = "waits_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub waits: Duration,
    /// Time outside of model, tools, people and waits: the overhead of the host.
    #[serde(rename = "overhead_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub overhead: Duration,
    /// Sum of the running times of all calls.
    #[serde(rename = "tools_sum_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub tools_sum: Duration,
    /// The longest running time of one call.
    #[serde(
        rename = "tools_longest_us",
        with = "micros",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub tools_longest: Duration,
}

/// The statistics of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunStats {
    /// Number of turns that started, including the final request for an answer.
    pub turns: u32,
    /// Number of calls that were answered.
    pub tool_calls: u32,
    /// The token usage of the run.
    pub usage: Usage,
    /// Time from start to end.
    pub duration: Duration,
    /// The sum of this time in [`TurnTimes`] over all turns, and the time of summaries between turns.
    pub model: Duration,
    /// The sum of this time in [`TurnTimes`] over all turns.
    pub tools: Duration,
    /// The sum of this time in [`TurnTimes`] over all turns, also of turns that were lost.
    pub people: Duration,
    /// The sum of this time in [`TurnTimes`] over all turns, and the wait for the tools of servers before a turn.
    pub waits: Duration,
    /// The sum of this time in [`TurnTimes`] over all turns, and the rest of the time between turns.
    pub overhead: Duration,
    /// The sum of this time in [`TurnTimes`] over all turns.
    pub overlap: Duration,
}

impl RunStats {
    /// Adds the usage and times of a turn that has ended, and its number of calls.
    pub fn add(&mut self, usage: Usage, calls: usize, times: &TurnTimes) {
        self.usage += usage;
        self.tool_calls += u32::try_from(calls).unwrap_or(u32::MAX);
        self.model += times.model;
        self.tools += times.tools;
        self.overlap += times.overlap;
        self.people += times.people;
        self.waits += times.waits;
        self.overhead += times.overhead;
    }
}
