//! What has been seen so far.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::check::Wrong;
use super::histogram::Histogram;
use crate::types::excerpt;

/// Kinds of errors that are told apart; further ones are `other`.
const KINDS_MAX: usize = 32;

/// Characters of an example.
const EXAMPLE_CHARS: usize = 300;

/// Errors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorKind {
    /// How many.
    pub count: u64,
    /// What the first of them was.
    pub example: String,
}

/// The times of one run that was right.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTimes {
    pub(super) latency: Duration,
    pub(super) overhead: Duration,
    /// From the run's start, where it made calls.
    pub(super) first_tool: Option<Duration>,
    pub(super) tools_ready: Option<Duration>,
}

/// All runs together.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) ok: u64,
    pub(super) calls: u64,
    pub(super) latency: Histogram,
    pub(super) overhead: Histogram,
    pub(super) first_tool: Histogram,
    pub(super) tools_ready: Histogram,
    pub(super) errors: BTreeMap<String, ErrorKind>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            ok: 0,
            calls: 0,
            latency: Histogram::new(),
            overhead: Histogram::new(),
            first_tool: Histogram::new(),
            tools_ready: Histogram::new(),
            errors: BTreeMap::new(),
        }
    }

    pub(super) fn right(&mut self, times: RunTimes, calls: usize) {
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

    pub(super) fn wrong(&mut self, wrong: Wrong) {
        let Wrong { kind, example } = wrong;
        let is_known = self.errors.contains_key(&kind) || self.errors.len() < KINDS_MAX;
        let kind = if is_known { kind } else { "other".to_owned() };
        let of_kind = self
            .errors
            .entry(kind)
            .or_insert_with(|| ErrorKind { count: 0, example: excerpt(&example, EXAMPLE_CHARS) });
        of_kind.count += 1;
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.values().map(|kind| kind.count).sum()
    }
}
