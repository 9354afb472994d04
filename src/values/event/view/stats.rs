//! The public form of a run's statistics.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::millis;
use crate::event::RunStats;
use crate::types::Usage;

/// The statistics of a run, as in `session_stats`.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let report = host.open_session("demo").await?.run("Hello?").await?;
/// assert_eq!((report.stats.turns, report.stats.tool_calls), (1, 0));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsReport {
    /// Number of turns that started, including the final request for an answer.
    pub turns: u32,
    /// Number of calls that were answered.
    pub tool_calls: u32,
    /// Input tokens, including cached ones.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens that came from the service's cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Output tokens used for reasoning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// Time from start to end.
    pub duration_ms: u64,
    /// Time in which a model request was open.
    pub model_ms: u64,
    /// Time in which at least one tool ran.
    pub tools_ms: u64,
    /// Time in which the run waited only for people: for approvals, answers to questions, results of clients, and
    /// children that wait only for these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub people_ms: u64,
    /// Time in which the run waited only for the delay of a retry, a permit of its model or of a tool, hooks, or the
    /// tools of servers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waits_ms: u64,
    /// Time outside of model, tools, people and waits: the overhead of the host.
    pub overhead_ms: u64,
    /// Time in which a model request was open and a tool ran. Model, tools, people, waits and overhead add up
    /// to the sum of this and the duration, except that each is cut to milliseconds.
    pub overlap_saved_ms: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl From<&RunStats> for StatsReport {
    fn from(stats: &RunStats) -> Self {
        Self {
            turns: stats.turns,
            tool_calls: stats.tool_calls,
            input_tokens: stats.usage.input_tokens,
            output_tokens: stats.usage.output_tokens,
            cached_tokens: stats.usage.cached_tokens,
            reasoning_tokens: stats.usage.reasoning_tokens,
            duration_ms: millis(stats.duration),
            model_ms: millis(stats.model),
            tools_ms: millis(stats.tools),
            people_ms: millis(stats.people),
            waits_ms: millis(stats.waits),
            overhead_ms: millis(stats.overhead),
            overlap_saved_ms: millis(stats.overlap),
        }
    }
}

impl From<&StatsReport> for RunStats {
    /// Converts back. The result has the same public form.
    fn from(report: &StatsReport) -> Self {
        Self {
            turns: report.turns,
            tool_calls: report.tool_calls,
            usage: Usage {
                input_tokens: report.input_tokens,
                output_tokens: report.output_tokens,
                cached_tokens: report.cached_tokens,
                reasoning_tokens: report.reasoning_tokens,
            },
            duration: Duration::from_millis(report.duration_ms),
            model: Duration::from_millis(report.model_ms),
            tools: Duration::from_millis(report.tools_ms),
            people: Duration::from_millis(report.people_ms),
            waits: Duration::from_millis(report.waits_ms),
            overhead: Duration::from_millis(report.overhead_ms),
            overlap: Duration::from_millis(report.overlap_saved_ms),
        }
    }
}
