//! The tool of a load test, and the times that it records.
//!
//! A *slot* is the number of one of the concurrent sessions of the test. With `--renew-after` its session is replaced
//! from time to time; the `generation` of a session is the number of its first run in the slot, from 0.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use callsheet_tools::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

/// The tool's name.
pub(super) const NAME: &str = "work";

/// `work {ms, i, pad}`: sleeps `ms` and answers `r<i>`. With 0 it does not sleep at all.
pub(super) struct WorkTool(pub(super) Arc<ToolTimings>);

#[derive(Deserialize, JsonSchema)]
struct WorkInput {
    /// The time to sleep, in milliseconds.
    #[serde(default)]
    ms: u64,
    /// The number in the answer.
    i: i64,
    /// Padding that makes the arguments longer.
    #[serde(default)]
    #[expect(dead_code, reason = "only its length in the request matters")]
    pad: String,
}

#[async_trait]
impl Tool for WorkTool {
    fn spec(&self) -> ToolSpec {
        let what = "Works for a while and answers with a number.";
        ToolSpec::new::<WorkInput>(NAME, what).pure().repeatable()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let began = Instant::now();
        let WorkInput { ms, i, .. } = context.input()?;
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        let Self(timings) = self;
        if let Some(timing) = timings.timing(context.session().as_str()) {
            timing.record_call(context.key().turn, timings.nanos_at(began), timings.now());
        }
        Ok(format!("r{i}").into())
    }
}

/// Returns the correct answer to these arguments.
pub(super) fn answer(arguments: &Value) -> String {
    format!("r{}", arguments.get("i").unwrap_or(&Value::Null))
}

/// The tool times of all concurrent sessions, by the session's slot.
#[derive(Debug)]
pub(super) struct ToolTimings {
    epoch: Instant,
    /// The prefix of all session ids of this load.
    prefix: String,
    timings: Vec<ToolTiming>,
}

/// The times of the first turn with calls of a slot's current run.
#[derive(Debug, Default)]
struct ToolTiming {
    /// The number of the turn; 0 means none.
    turn: AtomicU32,
    /// The start of the first tool, in nanoseconds since the epoch; 0 means none.
    first: AtomicU64,
    /// The end of the last tool, likewise.
    ready: AtomicU64,
}

/// The start of the first tool of a run, and the end of the last tool of the same turn: the results are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MeasuredTools {
    pub(super) first: Instant,
    pub(super) ready: Instant,
}

impl ToolTimings {
    pub(super) fn new(count: u32, load: u64) -> Self {
        Self {
            epoch: Instant::now(),
            prefix: format!("load-{load:x}-"),
            timings: (0..count).map(|_| ToolTiming::default()).collect(),
        }
    }

    /// Returns the session id of a slot.
    pub(super) fn session_id(&self, slot: u32, generation: u32) -> String {
        format!("{}{slot}-{generation}", self.prefix)
    }

    /// Resets the times of a slot for a new run.
    pub(super) fn reset(&self, slot: u32) {
        let Some(timing) = self.timings.get(slot as usize) else { return };
        for time in [&timing.first, &timing.ready] {
            time.store(0, Ordering::Relaxed);
        }
        timing.turn.store(0, Ordering::Relaxed);
    }

    /// Returns the times since the last reset.
    pub(super) fn measured(&self, slot: u32) -> Option<MeasuredTools> {
        let timing = self.timings.get(slot as usize)?;
        let time = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(self.epoch + Duration::from_nanos(nanos)),
        };
        Some(MeasuredTools { first: time(&timing.first)?, ready: time(&timing.ready)? })
    }

    /// Returns the times of a session's slot. Only one session of a slot has calls at a time.
    fn timing(&self, session: &str) -> Option<&ToolTiming> {
        let (slot, _) = session.strip_prefix(&self.prefix)?.split_once('-')?;
        self.timings.get(slot.parse::<usize>().ok()?)
    }

    fn now(&self) -> u64 {
        self.nanos_at(Instant::now())
    }

    /// Returns the nanoseconds from the epoch to a time, at least 1.
    fn nanos_at(&self, at: Instant) -> u64 {
        u64::try_from((at - self.epoch).as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

impl ToolTiming {
    fn record_call(&self, turn: u32, began: u64, ended: u64) {
        // Only the first turn with calls counts. Its calls precede those of the next turn.
        let first = self.turn.compare_exchange(0, turn, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|recorded| recorded != turn) {
            return;
        }
        let _ = self.first.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |recorded| {
            (recorded == 0 || began < recorded).then_some(began)
        });
        self.ready.fetch_max(ended, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slot_records_the_first_start_and_the_last_end_of_the_first_turn_with_calls() {
        let timings = ToolTimings::new(2, 0xab);
        let session = timings.session_id(1, 7);
        assert_eq!(session, "load-ab-1-7");
        assert_eq!(timings.measured(1), None);
        for (turn, began, ended) in [(3, 20, 50), (3, 10, 40), (4, 5, 90)] {
            timings.timing(&session).unwrap().record_call(turn, began, ended);
        }
        let at = |nanos| timings.epoch + Duration::from_nanos(nanos);
        assert_eq!(timings.measured(1), Some(MeasuredTools { first: at(10), ready: at(50) }));
        assert_eq!(timings.measured(0), None);
        timings.reset(1);
        assert_eq!(timings.measured(1), None);
        for other in ["ses_1", "load-ab-2-0", "load-ab-x-0", "load-ab-1"] {
            assert!(timings.timing(other).is_none(), "{other}");
        }
    }

    #[test]
    fn the_answer_is_the_number() {
        assert_eq!(answer(&json!({"i": 7, "ms": 3, "pad": "x"})), "r7");
        assert_eq!(answer(&json!({"i": -1})), "r-1");
    }
}
