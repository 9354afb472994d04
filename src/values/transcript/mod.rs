//! Reads a session's records into a typed form: runs, their turns, their attempts, their calls.
//!
//! Checks, exports, references and the resumption of a turn read a [`Transcript`] instead of matching on records. It
//! borrows from the records and copies none of their texts. Records at positions at which no host writes them are
//! listed in [`Transcript::breaches`], and are read as far as they can be understood. `journal::verify` finds records
//! that contradict each other.
//!
//! | file | holds |
//! | --- | --- |
//! | `mod` | sessions, runs and turns |
//! | `attempt` | attempts, responses and calls |
//! | `reader` | the reading of records |
//! | `breach` | invariants, and breaches of them |

mod attempt;
mod breach;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod reader;
#[cfg(test)]
mod tests;

pub use attempt::{
    AttemptFailure, AttemptResponse, AttemptStart, AttemptTranscript, CallIntent, CallTranscript,
    RecordedApprovalRequest, RecordedDecision, RecordedHooks, RecordedOutcome, RecordedReport,
};
pub use breach::{Breach, Invariant};
pub use reader::CLOCK_SETBACK_MAX_MS;

use std::sync::Arc;

use serde_json::Value;

use crate::config::{ClientTool, RunOverrides};
use crate::event::{StatsReport, TurnSummary};
use crate::record::{Compaction, StopMode, TurnEnd};
use crate::types::{
    CallKey, Content, Execution, HookDecision, HookPoint, Metadata, ParentCall, RequestKind,
    RunEnd, RunError, RunId, Seq, SessionId, ToolCall, Usage,
};

/// The location of a record in a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLocation {
    /// The number of records that were read before it.
    pub index: usize,
    /// Its number in the session's journal.
    pub seq: Seq,
    /// The time at which it was appended: Unix time in milliseconds.
    pub time: u64,
}

impl RecordLocation {
    /// Returns whether the record precedes another one.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.index < other.index
    }
}

/// A session's records as runs, turns, attempts and calls.
///
/// It can also be read from a part of the records, such as those of one turn. The run in which the
/// part begins then has no start, and the breaches must be ignored.
#[derive(Clone, Debug, Default)]
pub struct Transcript<'a> {
    /// The opening of the session.
    pub opening: Option<SessionOpening<'a>>,
    /// The frozen lists of the servers' tools: each record, and the SHA-256 of its list.
    pub tool_lists: Vec<(RecordLocation, &'a str)>,
    /// The changes that made the context smaller.
    pub compactions: Vec<RecordedCompaction<'a>>,
    /// The forks: the records before a fork are those of another session.
    pub forks: Vec<SessionFork<'a>>,
    /// The inputs that waited for an earlier run to end.
    pub queued: Vec<RecordedInput<'a>>,
    /// The runs, in their order.
    pub runs: Vec<RunTranscript<'a>>,
    /// The record that closed the session.
    pub closed: Option<RecordLocation>,
    /// Records at positions at which no host writes them, in their order.
    pub breaches: Vec<Breach>,
    first: Option<Seq>,
    last: Option<RecordLocation>,
    latest_time: u64,
    last_turn: u32,
}

/// The opening of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionOpening<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The session's agent.
    pub agent: &'a str,
    /// The messages that it was opened with, in the Chat Completions form.
    pub messages: &'a [Value],
    /// The client's pairs of strings.
    pub metadata: &'a Metadata,
    /// The call that opened it, if it is a child session.
    pub parent: Option<&'a Arc<ParentCall>>,
    /// The tools that the client runs.
    pub client_tools: Option<&'a Arc<[ClientTool]>>,
}

/// A fork of another session.
#[derive(Clone, Copy, Debug)]
pub struct SessionFork<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The other session.
    pub from: &'a SessionId,
    /// The last record that was copied from it.
    pub last_copied: Seq,
}

/// A change that made the context smaller.
#[derive(Clone, Copy, Debug)]
pub struct RecordedCompaction<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The change.
    pub change: &'a Compaction,
    /// The tokens of the next request before the change, by estimate.
    pub tokens_before: u64,
    /// The tokens of the next request after it, by estimate.
    pub tokens_after: u64,
    /// The usage of the request for a summary.
    pub usage: Usage,
}

/// An input that waits for an earlier run to end.
#[derive(Clone, Copy, Debug)]
pub struct RecordedInput<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The run that will start with it.
    pub run: &'a RunId,
    /// The user's input.
    pub input: &'a Content,
    /// The run's changes to its agent.
    pub overrides: &'a RunOverrides,
    /// The record that took it back. Its run never starts then.
    pub removed: Option<RecordLocation>,
}

/// A run: one input to its final answer.
#[derive(Clone, Debug, Default)]
pub struct RunTranscript<'a> {
    /// The start. `None` if the records begin within the run.
    pub start: Option<RunStart<'a>>,
    /// Its turns, in their order.
    pub turns: Vec<TurnTranscript<'a>>,
    /// Inputs of users while it was open.
    pub steers: Vec<SteeredInput<'a>>,
    /// Messages of the host in it.
    pub instructions: Vec<RecordedInstruction<'a>>,
    /// Requests to stop it.
    pub stops: Vec<StopRequest>,
    /// Limits that it reached. Summaries that failed between its end and the next run are among them.
    pub limits: Vec<ReachedLimit<'a>>,
    /// The times that it went on after it was interrupted.
    pub reopenings: Vec<RunReopening<'a>>,
    /// The end. `None` while it is open.
    pub end: Option<RecordedRunEnd<'a>>,
}

/// The record by which a run goes on after it was interrupted.
#[derive(Clone, Copy, Debug)]
pub struct RunReopening<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The end before it.
    pub interrupted: RecordedRunEnd<'a>,
}

/// The start of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunStart<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The run.
    pub id: &'a RunId,
    /// The user's input.
    pub input: &'a Content,
    /// The run's changes to its agent.
    pub overrides: &'a RunOverrides,
    /// The client's pairs of strings.
    pub metadata: &'a Metadata,
    /// The service's name of its first model.
    pub model: &'a str,
    /// The execution of its calls.
    pub execution: Execution,
}

/// An input for a run that is open.
#[derive(Clone, Copy, Debug)]
pub struct SteeredInput<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The user's input.
    pub input: &'a Content,
    /// The last turn that had begun: the input follows it in the history.
    pub follows_turn: u32,
}

/// A message of the host that leads to another turn.
#[derive(Clone, Copy, Debug)]
pub struct RecordedInstruction<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The kind of the next request.
    pub request: RequestKind,
    /// The message.
    pub text: &'a str,
}

/// A request to stop a run.
#[derive(Clone, Copy, Debug)]
pub struct StopRequest {
    /// The record.
    pub at: RecordLocation,
    /// Now, or after the turn.
    pub mode: StopMode,
}

/// A limit that was reached, or half used.
#[derive(Clone, Copy, Debug)]
pub struct ReachedLimit<'a> {
    /// The record.
    pub at: RecordLocation,
    /// Its name in the configuration.
    pub limit: &'a str,
    /// The value that was seen.
    pub value: u64,
    /// The value that is allowed.
    pub maximum: u64,
    /// The action that was taken.
    pub action: &'a str,
    /// The text for the model about it.
    pub note: Option<&'a str>,
    /// The usage of a request for a summary that had no effect.
    pub usage: Usage,
}

/// The end of a run, as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordedRunEnd<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The run that ended.
    pub id: &'a RunId,
    /// The reason of the end.
    pub end: RunEnd,
    /// The final answer, or its received part.
    pub text: &'a str,
    /// The typed answer.
    pub output: Option<&'a Value>,
    /// The error of a run that failed.
    pub error: Option<&'a RunError>,
    /// The run's totals.
    pub stats: &'a StatsReport,
    /// The number of inputs that waited for its end.
    pub waiting: u64,
}

/// A turn: one response of a model and its calls.
#[derive(Clone, Debug, Default)]
pub struct TurnTranscript<'a> {
    /// The number of the turn in the session, from 1.
    pub number: u32,
    /// Its attempts, in their order.
    pub attempts: Vec<AttemptTranscript<'a>>,
    /// Decisions of hooks about its request, or about the whole turn.
    pub hooks: Vec<RecordedHooks<'a>>,
    /// The commit. `None` while it is open. A run that was given up may leave it so.
    pub commit: Option<TurnCommit<'a>>,
}

/// The commit of a turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnCommit<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The end of the turn.
    pub end: &'a TurnEnd,
    /// Its totals.
    pub summary: &'a TurnSummary,
}

impl<'a> Transcript<'a> {
    /// Returns the last run if it has not ended.
    #[must_use]
    pub fn open_run(&self) -> Option<&RunTranscript<'a>> {
        self.runs.last().filter(|run| run.end.is_none())
    }

    /// Returns the turn of the open run that is not committed, if there is one.
    #[must_use]
    pub fn open_turn(&self) -> Option<&TurnTranscript<'a>> {
        self.open_run()?.turns.last().filter(|turn| turn.commit.is_none())
    }

    /// Returns the last record that was read.
    #[must_use]
    pub fn last(&self) -> Option<RecordLocation> {
        self.last
    }
}

impl<'a> RunTranscript<'a> {
    /// Returns the id of the run, if its start was read.
    #[must_use]
    pub fn id(&self) -> Option<&'a RunId> {
        self.start.map(|start| start.id)
    }

    /// Returns its ends, in their order: those after which it was reopened, and the last one.
    pub fn ends(&self) -> impl Iterator<Item = RecordedRunEnd<'a>> {
        self.reopenings.iter().map(|reopening| reopening.interrupted).chain(self.end)
    }

    /// Returns the turns that were committed.
    pub fn committed(&self) -> impl Iterator<Item = (&TurnTranscript<'a>, TurnCommit<'a>)> {
        self.turns.iter().filter_map(|turn| Some((turn, turn.commit?)))
    }
}

impl RecordedRunEnd<'_> {
    /// Returns whether the session ended the run because its actors died too often, or because the
    /// journal failed. Such a run may contain a turn without a commit.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        let is_internal = |code: &str| code == "internal_error" || code == "journal_failed";
        self.end == RunEnd::Failed && self.error.is_some_and(|error| is_internal(&error.code))
    }
}

impl<'a> TurnTranscript<'a> {
    /// Returns the last attempt.
    #[must_use]
    pub fn attempt(&self) -> Option<&AttemptTranscript<'a>> {
        self.attempts.last()
    }

    /// Returns the last decision of hooks at this point.
    #[must_use]
    pub fn hook_decision(&self, on: HookPoint) -> Option<&'a Arc<HookDecision>> {
        self.hooks.iter().rfind(|hooks| hooks.on == on).map(|hooks| hooks.decision)
    }

    /// Returns the decision of hooks about the turn's request. One about a request that was larger than the context
    /// window does not hold for the smaller one that was sent to the same model then.
    #[must_use]
    pub fn request_decision(&self) -> Option<&'a Arc<HookDecision>> {
        let pairs = self.attempts.iter().zip(self.attempts.iter().skip(1)).rev();
        let mut smaller = pairs.filter_map(|(failed, next)| {
            let (start, next) = (failed.start?, next.start?);
            let has_overflowed = failed.failure?.error.is_context_overflow();
            (has_overflowed && start.model == next.model).then_some(next.at)
        });
        let from = smaller.next();
        let holds = |at: RecordLocation| from.is_none_or(|from| from.is_before(at));
        let mut decisions = self.hooks.iter().filter(|hooks| hooks.on == HookPoint::BeforeRequest);
        decisions.rfind(|hooks| holds(hooks.at)).map(|hooks| hooks.decision)
    }

    /// Returns the response that is kept: that of the last attempt.
    #[must_use]
    pub fn response(&self) -> Option<&AttemptResponse<'a>> {
        self.attempt()?.response.as_ref()
    }

    /// Returns the calls of the response, in call order.
    #[must_use]
    pub fn kept_calls(&self) -> &'a [ToolCall] {
        self.response().map(|response| &*response.message.calls).unwrap_or_default()
    }

    /// Returns the records of a call of the last attempt.
    #[must_use]
    pub fn call(&self, key: CallKey) -> Option<&CallTranscript<'a>> {
        self.attempt()?.calls.get(&key)
    }

    /// Returns the tokens that its attempts have used so far. An attempt that broke and is kept is
    /// counted with its response.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for attempt in &self.attempts {
            let failure = attempt.failure.filter(|failure| !failure.kept);
            usage += failure.map(|failure| failure.usage).unwrap_or_default();
            usage += attempt.response.map(|response| response.usage).unwrap_or_default();
        }
        usage
    }
}
