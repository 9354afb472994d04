//! Loop detection: consecutive turns of a run with identical calls and identical results.
//!
//! At `repeat_limit` such turns the model is warned by a note after the last result, unless the limit is 1. At twice
//! as many the run ends as `loop_detected`. [`run_machine`](super::run_machine) checks `max_failed_turns` first.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::turn::LimitHit;
use callsheet_values::types::ToolResult;

/// Counts consecutive turns with identical calls and results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoopDetector {
    /// `repeat_limit` of the configuration.
    limit: Option<u32>,
    /// The hash of the last turn's calls and results.
    last_fingerprint: Option<u64>,
    count: u32,
}

/// The consequence of a repeated turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoopVerdict {
    /// The run goes on.
    NoLoop,
    /// The run goes on, and the model is warned.
    Warn(LimitHit),
    /// The run ends.
    End(LimitHit),
}

impl LoopDetector {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit, last_fingerprint: None, count: 0 }
    }

    /// Counts a turn with these results. A turn without calls repeats nothing, and the count begins anew.
    pub(super) fn handle_turn(&mut self, results: &[ToolResult]) -> LoopVerdict {
        let Some(limit) = self.limit else { return LoopVerdict::NoLoop };
        let this = Some(fingerprint(results)).filter(|_| !results.is_empty());
        let repeats = this.is_some() && this == self.last_fingerprint;
        self.count = if repeats { self.count.saturating_add(1) } else { 1 };
        self.last_fingerprint = this;
        let (count, end) = (self.count, limit.saturating_mul(2));
        let hit = |action, note| {
            let (value, maximum) = (u64::from(count), u64::from(limit));
            LimitHit { limit: "repeat_limit", value, maximum, action, note }
        };
        if count >= end {
            return LoopVerdict::End(hit("ended", None));
        }
        // A single turn repeats nothing, even with a limit of 1.
        if count == limit && count > 1 {
            let note = format!(
                "[callsheet: {count} turns in a row made the same calls and got the same results; \
                 after {end} the run is ended]"
            );
            return LoopVerdict::Warn(hit("told", Some(note)));
        }
        LoopVerdict::NoLoop
    }
}

/// Hashes names, arguments, statuses and contents in call order.
fn fingerprint(results: &[ToolResult]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for ToolResult { call, outcome, .. } in results {
        (&call.name, &*call.arguments).hash(&mut hasher);
        (outcome.status, &outcome.content, &outcome.full).hash(&mut hasher);
    }
    hasher.finish()
}
