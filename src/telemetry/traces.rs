//! Spans of runs, by OpenTelemetry's GenAI conventions.
//!
//! They are made of the same events as metrics and logs, where the host is built with the feature
//! `otlp` and the environment names a collector. Else runs pass on the trace that they were asked
//! for in, and nothing here costs anything.

use std::sync::Arc;
use std::time::Duration;

use crate::event::Published;
use crate::types::{Content, RunId, RunTrace, SessionId, TraceContext};

/// Makes the spans of one host, if it has any. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Traces {}

/// A run that begins, or goes on.
#[derive(Clone, Debug)]
pub struct TracedRun<'a> {
    /// Its session.
    pub session: &'a SessionId,
    /// The run.
    pub run: &'a RunId,
    /// Which agent runs.
    pub agent: &'a str,
    /// The model that it asks first, by its name at its service.
    pub model: &'a str,
    /// Where it stands in the trace of whoever asked for it.
    pub given: Option<TraceContext>,
    /// When it began: Unix time in milliseconds.
    pub began: u64,
    /// How long it has gone on by its own clock, which stands still while no host runs.
    pub elapsed: Duration,
    /// What the user said, where that is at hand.
    pub input: Option<&'a Content>,
}

impl Traces {
    /// A run begins, or goes on. Says what its requests and calls bring along, if anything.
    #[must_use]
    pub fn begin(&self, run: TracedRun<'_>) -> Option<Arc<RunTrace>> {
        run.given.map(|given| Arc::new(RunTrace::passed_on(given)))
    }

    /// Makes of an event what there is to make.
    pub(super) fn observe(&self, _: &Published) {}
}
