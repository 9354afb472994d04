//! What turns and runs add up to.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::micros;
use crate::types::{FinishReason, Usage};

/// What there is to know of a turn that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnSummary {
    /// Names of the answered calls, in call order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tool_names: Vec<Arc<str>>,
    /// How many calls were decoded but not kept.
    pub dropped_calls: u32,
    /// Why the response ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub finish_reason: Option<FinishReason>,
    /// What the turn cost.
    pub usage: Usage,
    /// How its calls were run.
    pub parallel: bool,
    /// Where its time went.
    pub times: TurnTimes,
}

/// Where a turn's time went. The parts overlap where tools ran beside the stream.
/// As JSON in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TurnTimes {
    /// From begin to commit.
    #[serde(rename = "total_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub total: Duration,
    /// While an exchange with the model was open, waits between attempts included.
    #[serde(rename = "model_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub model: Duration,
    /// While at least one tool ran.
    #[serde(rename = "tools_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub tools: Duration,
    /// While both.
    #[serde(rename = "overlap_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub overlap: Duration,
    /// While the turn waited for people and for nothing else.
    #[serde(rename = "people_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub people: Duration,
    /// While none of these, and no call waited for a place of its tool: our own doing.
    #[serde(rename = "overhead_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub overhead: Duration,
    /// All tools' running times added up.
    #[serde(rename = "tools_sum_us", with = "micros", skip_serializing_if = "Duration::is_zero")]
    pub tools_sum: Duration,
    /// The longest running time of one tool.
    #[serde(
        rename = "tools_longest_us",
        with = "micros",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub tools_longest: Duration,
}

/// A run's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RunStats {
    /// Turns that were begun, the last request included.
    pub turns: u32,
    /// Calls that were answered.
    pub tool_calls: u32,
    /// What the run cost.
    pub usage: Usage,
    /// From the run's start to its end.
    pub duration: Duration,
    /// As in [`TurnTimes`], over all turns.
    pub model: Duration,
    /// As in [`TurnTimes`], over all turns.
    pub tools: Duration,
    /// As in [`TurnTimes`], over all turns.
    pub overhead: Duration,
    /// As in [`TurnTimes`], over all turns.
    pub overlap: Duration,
}

impl RunStats {
    /// Adds what a turn that is over has cost, with so many calls.
    pub fn add(&mut self, usage: Usage, calls: usize, times: &TurnTimes) {
        self.usage += usage;
        self.tool_calls += u32::try_from(calls).unwrap_or(u32::MAX);
        self.model += times.model;
        self.tools += times.tools;
        self.overlap += times.overlap;
        self.overhead += times.overhead;
    }
}
