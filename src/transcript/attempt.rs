//! Attempts of a turn, their responses and their calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::RecordPosition;
use crate::event::{ApprovalRequest, CallLabel};
use crate::record::{DisplayedSegment, PartialResponse, ResponseDisposition, ResponseMessage};
use crate::types::{
    ApprovalPhase, CallKey, FinishReason, ProviderError, ReadSet, ResultNotes, ToolCall,
    ToolOutcome, Usage, Verdict, WriteSet,
};

/// An attempt of a turn: one HTTP exchange with a provider.
#[derive(Clone, Debug, Default)]
pub struct AttemptTranscript<'a> {
    /// The number of the attempt in its turn, from 1.
    pub number: u32,
    /// How it started; none for a response that the session was opened with.
    pub start: Option<AttemptStart<'a>>,
    /// How it broke.
    pub failure: Option<AttemptFailure<'a>>,
    /// What came of it and is kept.
    pub response: Option<AttemptResponse<'a>>,
    /// The calls that have records, also those that the response does not keep.
    pub calls: BTreeMap<CallKey, CallTranscript<'a>>,
}

/// The start of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptStart<'a> {
    /// The record.
    pub at: RecordPosition,
    /// The name of the model that was asked, at its service.
    pub model: &'a str,
    /// Whether a streamed answer was asked for.
    pub streamed: bool,
    /// Why the attempt before failed.
    pub reason: Option<&'a str>,
    /// The time between the decision and the request, in milliseconds.
    pub wait_ms: u64,
}

/// The failure of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptFailure<'a> {
    /// The record.
    pub at: RecordPosition,
    /// What went wrong.
    pub error: &'a ProviderError,
    /// Whether the part that had come is kept as the turn.
    pub kept: bool,
    /// What it cost.
    pub usage: Usage,
    /// Whether it broke because the host stopped.
    pub host_stopped: bool,
}

/// What is kept of a response.
#[derive(Clone, Copy, Debug)]
pub struct AttemptResponse<'a> {
    /// The record.
    pub at: RecordPosition,
    /// How the response ended.
    pub ending: ResponseDisposition,
    /// The message.
    pub message: &'a Arc<ResponseMessage>,
    /// The provider's finish reason.
    pub finish_reason: Option<&'a FinishReason>,
    /// What it cost.
    pub usage: Usage,
    /// The names of calls that were decoded but are not kept.
    pub dropped_calls: &'a [Arc<str>],
    /// The order in which watchers were shown its text and thinking.
    pub shown: &'a [DisplayedSegment],
}

/// What is recorded of a call, each list in the order of the records.
#[derive(Clone, Debug, Default)]
pub struct CallTranscript<'a> {
    /// Intents to start it. A tool that is idempotent is intended again after a crash.
    pub intents: Vec<CallIntent<'a>>,
    /// Answers of its tool of which it was not decided yet whether they count.
    pub reports: Vec<RecordedReport<'a>>,
    /// Questions to people about it.
    pub questions: Vec<ApprovalQuestion<'a>>,
    /// Decisions of people about it.
    pub decisions: Vec<ApprovalDecision<'a>>,
    /// Its outcome. Those behind the first only change notes, or replace a result that does not
    /// count.
    pub outcomes: Vec<RecordedOutcome<'a>>,
}

/// The intent to start a call with effects.
#[derive(Clone, Copy, Debug)]
pub struct CallIntent<'a> {
    /// The record.
    pub at: RecordPosition,
    /// The call, with its arguments.
    pub call: &'a ToolCall,
    /// The key that stays the same if the call runs again.
    pub idempotency_key: &'a str,
    /// The response up to then, where that had not ended.
    pub partial: Option<&'a PartialResponse>,
}

/// The answer of a tool, before it is decided whether it counts.
#[derive(Clone, Copy, Debug)]
pub struct RecordedReport<'a> {
    /// The record.
    pub at: RecordPosition,
    /// What the tool answered.
    pub outcome: &'a ToolOutcome,
    /// The variables that it had read.
    pub reads: &'a ReadSet,
    /// The variables that it would write.
    pub writes: &'a WriteSet,
}

/// A question to people about a call.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalQuestion<'a> {
    /// The record.
    pub at: RecordPosition,
    /// What they are asked, and about which call.
    pub request: &'a ApprovalRequest,
}

/// A decision about a call: by people, or because none was made in time.
#[derive(Clone, Copy, Debug)]
pub struct ApprovalDecision<'a> {
    /// The record.
    pub at: RecordPosition,
    /// The question that it answers.
    pub phase: ApprovalPhase,
    /// What was decided.
    pub verdict: Verdict,
    /// What was said with it.
    pub message: Option<&'a str>,
}

/// The outcome of a call, as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordedOutcome<'a> {
    /// The record.
    pub at: RecordPosition,
    /// The call.
    pub label: &'a CallLabel,
    /// The outcome.
    pub outcome: &'a ToolOutcome,
    /// What else is known about it.
    pub notes: &'a ResultNotes,
    /// The variables that it writes.
    pub writes: &'a WriteSet,
    /// When it started, in milliseconds since the run began; none if it never did.
    pub started_ms: Option<u64>,
    /// The time from its seal to its start, in milliseconds.
    pub wait_ms: u64,
    /// The time from its start to its outcome, in milliseconds.
    pub duration_ms: u64,
    /// Whether it started before its response had ended.
    pub early: bool,
    /// Whether only the notes have changed since the outcome was recorded first.
    pub amended: bool,
}

impl AttemptTranscript<'_> {
    /// Returns whether the attempt broke and nothing of it is kept.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.failure.is_some_and(|failure| !failure.kept)
    }
}

impl AttemptResponse<'_> {
    /// Returns whether the message holds this call.
    #[must_use]
    pub fn keeps(&self, key: CallKey) -> bool {
        self.message.calls.iter().any(|call| call.key == key)
    }
}

impl<'a> CallTranscript<'a> {
    /// The name of the tool; none where no record holds it.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        let intended = self.intents.first().map(|intent| &*intent.call.name);
        let asked = || self.questions.first().map(|asked| &*asked.request.call.name);
        let ended = || self.outcomes.first().map(|ended| &*ended.label.name);
        intended.or_else(asked).or_else(ended)
    }

    /// The outcome as it was recorded last.
    #[must_use]
    pub fn outcome(&self) -> Option<&RecordedOutcome<'a>> {
        self.outcomes.last()
    }

    /// The first decision about this question, which is the one that counts.
    #[must_use]
    pub fn decision(&self, phase: ApprovalPhase) -> Option<&ApprovalDecision<'a>> {
        self.decisions.iter().find(|decision| decision.phase == phase)
    }
}
