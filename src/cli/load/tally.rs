//! The results of all runs so far.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::check::AnswerFault;
use super::histogram::DurationHistogram;
use callsheet_values::types::excerpt;

/// The number of error kinds that are counted separately; further ones are `other`.
const KINDS_MAX: usize = 32;

/// The largest length of an example, in characters.
const EXAMPLE_CHARS: usize = 300;

/// The errors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorTally {
    /// The number of errors.
    pub count: u64,
    /// The text of the first one.
    pub example: String,
}

/// The times of one correct run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTimes {
    pub(super) latency: Duration,
    pub(super) overhead: Duration,
    /// The time from the run's start to its first tool; `None` without calls.
    pub(super) first_tool: Option<Duration>,
    pub(super) tools_ready: Option<Duration>,
}

/// The results of all runs together.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) ok: u64,
    pub(super) calls: u64,
    pub(super) latency: DurationHistogram,
    pub(super) overhead: DurationHistogram,
    pub(super) first_tool: DurationHistogram,
    pub(super) tools_ready: DurationHistogram,
    pub(super) errors: BTreeMap<String, ErrorTally>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            ok: 0,
            calls: 0,
            latency: DurationHistogram::new(),
            overhead: DurationHistogram::new(),
            first_tool: DurationHistogram::new(),
            tools_ready: DurationHistogram::new(),
            errors: BTreeMap::new(),
        }
    }

    pub(super) fn record_success(&mut self, times: RunTimes, calls: usize) {
        self.ok += 1;
        self.calls += calls as u64;
        self.latency.record(times.latency);
        self.overhead.record(times.overhead);
        if let Some(time) = times.first_tool {
            self.first_tool.record(time);
        }
        if let Some(time) = times.tools_ready {
            self.tools_ready.record(time);
        }
    }

    pub(super) fn record_failure(&mut self, fault: AnswerFault) {
        let AnswerFault { kind, example } = fault;
        let is_known = self.errors.contains_key(&kind) || self.errors.len() < KINDS_MAX;
        let kind = if is_known { kind } else { "other".to_owned() };
        let of_kind = self
            .errors
            .entry(kind)
            .or_insert_with(|| ErrorTally { count: 0, example: excerpt(&example, EXAMPLE_CHARS) });
        of_kind.count += 1;
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.values().map(|kind| kind.count).sum()
    }
}
