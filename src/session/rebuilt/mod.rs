//! A session from its records: what it knew when the last of them was appended.
//!
//! Every record is handed to the very machines that a living session hands it to, so that there
//! is one rule for each thing. What a session decides for itself between two turns is decided
//! again, and what is recorded of it says whether it had come to that.

mod fold;
mod past;
#[cfg(test)]
mod prefixes;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use past::{PastRun, past_run};

use super::idempotency::{IdempotencyKeys, RequestEffect};
use super::run::{FollowUp, Run, TurnPlan};
use crate::config::{Limits, RunOverrides};
use crate::context::{History, Variables};
use crate::event::RunStats;
use crate::record::{JournalEntry, Seq, StopMode};
use crate::types::{Content, RunId, ToolResult, TraceContext, Usage};

/// A session, rebuilt.
#[derive(Clone, Debug, PartialEq)]
pub struct Rebuilt {
    /// Which agent it is.
    pub agent: String,
    /// When it was opened, or forked: Unix time in milliseconds.
    pub opened: u64,
    /// Its last record.
    pub last: Seq,
    /// Whether it was closed.
    pub closed: bool,
    /// Its messages.
    pub history: History,
    /// Its variables.
    pub variables: Variables,
    /// What its turns cost that are over.
    pub usage: Usage,
    /// The last turn of which there is a record; 0 before the first.
    pub turn: u32,
    /// Runs that wait and have not begun, in their order.
    pub queue: Vec<QueuedRun>,
    /// Which requests brought its inputs.
    pub requests: IdempotencyKeys,
    /// The run that has not ended.
    pub run: Option<OpenRun>,
}

/// An input that waits for the run before it to end.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedRun {
    /// The run that will begin with it.
    pub run_id: RunId,
    /// What the user said.
    pub input: Content,
    /// What the run changes about its agent.
    pub overrides: RunOverrides,
    /// Where it stands in somebody's trace.
    pub trace: Option<TraceContext>,
    /// The record of it.
    pub seq: Seq,
}

/// A run that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRun {
    /// The run.
    pub id: RunId,
    /// What it changes about its agent.
    pub overrides: RunOverrides,
    /// Where it stands in somebody's trace.
    pub trace: Option<TraceContext>,
    /// The record of its begin.
    pub seq: Seq,
    /// When that was appended: Unix time in milliseconds.
    pub began: u64,
    /// Told of every turn that is over.
    pub machine: Run,
    /// Its sums up to now; turns and duration are known when it ends.
    pub stats: RunStats,
    /// Every call that is in the history, with what its turn cost.
    pub results: Vec<(Usage, ToolResult)>,
    /// Where in the history it begins.
    pub first_message: usize,
    /// How long it has waited for people and for nothing else.
    pub people: Duration,
    /// How long its turns took that are over; while no host ran, no time passed.
    pub elapsed: Duration,
    /// How it was asked to stop: at once, if it was asked both. The machine knows of a stop
    /// after the turn; one at once is to be told to the turn.
    pub stops: Option<StopMode>,
    /// The last record before the turn that goes on, or is next.
    pub turn_after: Seq,
    /// How it goes on.
    pub next: Continue,
}

/// How a run goes on.
#[derive(Clone, Debug, PartialEq)]
pub enum Continue {
    /// With a turn. It has the session's next number if nothing of it is recorded. If the history
    /// has open calls then, it is the turn of those.
    Turn {
        /// What it is.
        plan: TurnPlan,
        /// What was recorded from its first record on; empty if it had not begun.
        entries: Vec<JournalEntry>,
    },
    /// With what follows from a turn that is committed: limits to be told, or the run's end. It
    /// is not recorded yet, and is done as after a turn that has just been committed.
    Step(FollowUp),
}

/// A record that contradicts those before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {} contradicts the ones before it: {what}", .seq.0)]
pub struct RebuildError {
    /// Which record.
    pub seq: Seq,
    /// What is wrong with it.
    pub what: String,
}

impl Rebuilt {
    /// The session that left these records: all that it has, from the first on. `limits` says what
    /// a run with such overrides may use.
    ///
    /// # Errors
    /// When a record contradicts the ones before it.
    pub fn fold(
        entries: &[JournalEntry],
        limits: &dyn Fn(&RunOverrides) -> Limits,
    ) -> Result<Self, RebuildError> {
        let mut fold = fold::Fold::begin(entries, limits)?;
        while fold.take_in_next()?.is_some() {}
        Ok(fold.finish())
    }
}
