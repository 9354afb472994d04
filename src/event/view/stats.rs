//! A run's sums, for clients.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::millis;
use crate::event::RunStats;
use crate::types::Usage;

/// A run's sums, as `session_stats` tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsReport {
    /// Turns that were begun, the last request included.
    pub turns: u32,
    /// Calls that were answered.
    pub tool_calls: u32,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// From the run's start to its end.
    pub duration_ms: u64,
    /// While an exchange with the model was open.
    pub model_ms: u64,
    /// While at least one tool ran.
    pub tools_ms: u64,
    /// While neither.
    pub overhead_ms: u64,
    /// While both.
    pub overlap_saved_ms: u64,
}

impl From<&RunStats> for StatsReport {
    fn from(stats: &RunStats) -> Self {
        Self {
            turns: stats.turns,
            tool_calls: stats.tool_calls,
            input_tokens: stats.usage.input_tokens,
            output_tokens: stats.usage.output_tokens,
            duration_ms: millis(stats.duration),
            model_ms: millis(stats.model),
            tools_ms: millis(stats.tools),
            overhead_ms: millis(stats.overhead),
            overlap_saved_ms: millis(stats.overlap),
        }
    }
}

impl From<&StatsReport> for RunStats {
    /// The sums as far as they are told: what is shown of them is the same again.
    fn from(told: &StatsReport) -> Self {
        Self {
            turns: told.turns,
            tool_calls: told.tool_calls,
            usage: Usage {
                input_tokens: told.input_tokens,
                output_tokens: told.output_tokens,
                ..Usage::default()
            },
            duration: Duration::from_millis(told.duration_ms),
            model: Duration::from_millis(told.model_ms),
            tools: Duration::from_millis(told.tools_ms),
            overhead: Duration::from_millis(told.overhead_ms),
            overlap: Duration::from_millis(told.overlap_saved_ms),
        }
    }
}
