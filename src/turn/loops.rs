//! Loops: turn after turn with the same calls and the same results.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::run::LimitHit;
use crate::types::ToolResult;

/// Counts the turns in a row that did the same and were answered the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Repeats {
    limit: Option<u32>,
    /// The last turn's calls and results, hashed.
    last: Option<u64>,
    count: u32,
}

/// What is to be done about a turn that was like the ones before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// Nothing.
    No,
    /// The model is told.
    Told(LimitHit),
    /// The run ends.
    Ended(LimitHit),
}

impl Repeats {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit, last: None, count: 0 }
    }

    /// Takes in the results of a turn, with their calls; a turn without any repeats nothing.
    pub(super) fn turn(&mut self, results: &[ToolResult]) -> Repeated {
        let Some(limit) = self.limit else { return Repeated::No };
        let this = Some(fingerprint(results)).filter(|_| !results.is_empty());
        self.count =
            if this.is_some() && this == self.last { self.count.saturating_add(1) } else { 1 };
        self.last = this;
        let (count, end) = (self.count, limit.saturating_mul(2));
        let hit = |action, note| {
            let (value, maximum) = (u64::from(count), u64::from(limit));
            LimitHit { limit: "repeat_limit", value, maximum, action, note }
        };
        if count >= end {
            return Repeated::Ended(hit("ended", None));
        }
        // One turn alone repeats nothing.
        if count == limit && count > 1 {
            let note = format!(
                "[callsheet: {count} turns in a row made the same calls and got the same results; \
                 after {end} the run is ended]"
            );
            return Repeated::Told(hit("told", Some(note)));
        }
        Repeated::No
    }
}

/// Names and canonical arguments, status and content, in call order.
fn fingerprint(results: &[ToolResult]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for ToolResult { call, outcome, .. } in results {
        (&call.name, call.arguments_text()).hash(&mut hasher);
        (outcome.status, &outcome.content).hash(&mut hasher);
    }
    hasher.finish()
}
