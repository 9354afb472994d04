//! Attempts of a turn, their responses and their calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::RecordLocation;
use crate::event::{ApprovalRequest, CallLabel, VoidedText};
use crate::record::{DisplayedSegment, PartialResponse, ResponseEnding, ResponseMessage};
use crate::types::{
    AgentLease, ApprovalVerdict, CallKey, FinishReason, HookDecision, HookPoint, ProviderError,
    Question, QuestionKind, ReadSet, ResultNotes, ToolCall, ToolOutcome, ToolResult, Usage,
    VerdictWithMessage, WaitPhase, WriteSet,
};

/// An attempt of a turn: one HTTP exchange with a provider.
#[derive(Clone, Debug, Default)]
pub struct AttemptTranscript<'a> {
    /// The number of the attempt in its turn, from 1.
    pub number: u32,
    /// The start. `None` for calls that the session was opened with, or if the records begin after it.
    pub start: Option<AttemptStart<'a>>,
    /// The failure, if it broke.
    pub failure: Option<AttemptFailure<'a>>,
    /// The response, if one is kept.
    pub response: Option<AttemptResponse<'a>>,
    /// The calls that have records, also those that the response does not keep.
    pub calls: BTreeMap<CallKey, CallTranscript<'a>>,
}

/// The start of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptStart<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The service's name of the requested model.
    pub model: &'a str,
    /// True if a streamed response was requested.
    pub streamed: bool,
    /// The error of the previous attempt, because of which this one was made.
    pub reason: Option<&'a str>,
    /// The time between the decision to request again and the request, in milliseconds.
    pub wait_ms: u64,
}

/// The failure of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct AttemptFailure<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The error.
    pub error: &'a ProviderError,
    /// True if the received part is kept as the turn's response, and so in the history.
    pub kept: bool,
    /// The tokens that it used.
    pub usage: Usage,
    /// True if it broke because the host stopped.
    pub host_stopped: bool,
    /// The text that watchers have received, if nothing of it is kept and it is known.
    pub voided: Option<&'a VoidedText>,
}

/// The kept part of a response.
#[derive(Clone, Copy, Debug)]
pub struct AttemptResponse<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The end of the response.
    pub ending: ResponseEnding,
    /// The message.
    pub message: &'a Arc<ResponseMessage>,
    /// The provider's finish reason.
    pub finish_reason: Option<&'a FinishReason>,
    /// The tokens that it used.
    pub usage: Usage,
    /// The names of calls that were decoded but are not kept.
    pub dropped_calls: &'a [Arc<str>],
    /// The order in which watchers received its text and thinking.
    pub displayed_segments: &'a [DisplayedSegment],
}

/// The records of a call. Each list is in the order of the records.
#[derive(Clone, Debug, Default)]
pub struct CallTranscript<'a> {
    /// Intents to start it. A call of an idempotent tool has another intent after a crash.
    pub intents: Vec<CallIntent<'a>>,
    /// Results of its tool that are not final: they wait for earlier calls, hooks or an approval.
    pub reports: Vec<RecordedReport<'a>>,
    /// Requests for approval, questions of the tool, and requests that the client runs the call.
    pub requests: Vec<RecordedApprovalRequest<'a>>,
    /// The decisions about `requests`.
    pub decisions: Vec<RecordedDecision<'a>>,
    /// Decisions of hooks.
    pub hooks: Vec<RecordedHooks<'a>>,
    /// Its outcomes. Those after the first one add notes to it, or take its place: bytes after the seal of the call
    /// make a result void.
    pub outcomes: Vec<RecordedOutcome<'a>>,
}

/// The intent to start a call with effects.
#[derive(Clone, Copy, Debug)]
pub struct CallIntent<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The call, with its arguments.
    pub call: &'a ToolCall,
    /// The key that stays the same if the call runs again.
    pub idempotency_key: &'a str,
    /// The response so far, if it had not ended.
    pub partial: Option<&'a PartialResponse>,
    /// The budget that its child may use, if it is the call of an agent.
    pub lease: Option<AgentLease>,
}

/// The result of a tool that is not final: it waits for earlier calls, hooks or an approval.
#[derive(Clone, Copy, Debug)]
pub struct RecordedReport<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The outcome of the tool.
    pub outcome: &'a ToolOutcome,
    /// The variables that it had read.
    pub reads: &'a ReadSet,
    /// The variables that it would write.
    pub writes: &'a WriteSet,
}

/// A request to approve a call or its result, a question of its tool, or a request that the client runs the call.
#[derive(Clone, Copy, Debug)]
pub struct RecordedApprovalRequest<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The request, with the call.
    pub request: &'a ApprovalRequest,
}

/// A decision about an approval, or its expiry.
#[derive(Clone, Copy, Debug)]
pub struct RecordedDecision<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The phase of the approval that it decides.
    pub phase: WaitPhase,
    /// The decision.
    pub verdict: ApprovalVerdict,
    /// A message for the model or for people.
    pub message: Option<&'a str>,
    /// The answer to a form.
    pub content: Option<&'a Arc<Value>>,
}

/// A decision of hooks about a call or its result.
#[derive(Clone, Copy, Debug)]
pub struct RecordedHooks<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The point at which the hooks were asked.
    pub on: HookPoint,
    /// The decision.
    pub decision: &'a Arc<HookDecision>,
}

/// The outcome of a call, as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordedOutcome<'a> {
    /// The record.
    pub at: RecordLocation,
    /// The call.
    pub label: &'a CallLabel,
    /// The outcome.
    pub outcome: &'a ToolOutcome,
    /// Notes about it.
    pub notes: &'a ResultNotes,
    /// The variables that it writes.
    pub writes: &'a WriteSet,
    /// The time of its start, in milliseconds since the run began. `None` if it never started.
    pub started_ms: Option<u64>,
    /// The time from its seal to its start, or to its outcome if it never started, in milliseconds.
    pub wait_ms: u64,
    /// The time from its start to its outcome, in milliseconds.
    pub duration_ms: u64,
    /// True if it started before its response had ended.
    pub early: bool,
    /// True if only the notes have changed since the outcome was recorded first.
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
    /// Returns whether the message contains this call.
    #[must_use]
    pub fn keeps(&self, key: CallKey) -> bool {
        self.message.calls.iter().any(|call| call.key == key)
    }
}

impl RecordedOutcome<'_> {
    /// Returns the result of the call, with times in whole milliseconds.
    #[must_use]
    pub fn result(&self, call: ToolCall) -> ToolResult {
        ToolResult {
            call,
            outcome: self.outcome.clone(),
            notes: self.notes.clone(),
            started: self.started_ms.map(Duration::from_millis),
            wait: Duration::from_millis(self.wait_ms),
            duration: Duration::from_millis(self.duration_ms),
            writes: self.writes.clone(),
        }
    }
}

impl RecordedApprovalRequest<'_> {
    /// Returns whether it is a question of the tool.
    #[must_use]
    pub fn is_input(&self) -> bool {
        self.request.phase == WaitPhase::Input
    }

    /// Returns whether the client has to run the call.
    #[must_use]
    pub fn is_for_client(&self) -> bool {
        self.request.phase == WaitPhase::Client
    }
}

impl RecordedDecision<'_> {
    /// Returns the decision in the form of [`ResultNotes`].
    #[must_use]
    pub fn verdict_with_message(&self) -> VerdictWithMessage {
        VerdictWithMessage { verdict: self.verdict, message: self.message.map(str::to_owned) }
    }

    /// Returns whether the decision fits the question: it has content if it answers a form, and otherwise none.
    #[must_use]
    pub fn fits(&self, question: &Question) -> bool {
        let needs_content = self.verdict == ApprovalVerdict::Approved
            && matches!(question.kind, QuestionKind::Form(_));
        self.content.is_some() == needs_content
    }
}

impl<'a> CallTranscript<'a> {
    /// Returns the name of the tool, or `None` if no record contains it.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        let intended = self.intents.first().map(|intent| &*intent.call.name);
        let request = || self.requests.first().map(|asked| &*asked.request.call.name);
        let ended = || self.outcomes.first().map(|ended| &*ended.label.name);
        intended.or_else(request).or_else(ended)
    }

    /// Returns the locations of all its records, list by list.
    pub fn locations(&self) -> impl Iterator<Item = RecordLocation> {
        let intents = self.intents.iter().map(|intent| intent.at);
        let reports = self.reports.iter().map(|report| report.at);
        let requests = self.requests.iter().map(|asked| asked.at);
        let decisions = self.decisions.iter().map(|decision| decision.at);
        let hooks = self.hooks.iter().map(|hooks| hooks.at);
        let outcomes = self.outcomes.iter().map(|outcome| outcome.at);
        intents.chain(reports).chain(requests).chain(decisions).chain(hooks).chain(outcomes)
    }

    /// Returns whether the client was asked to run the call.
    #[must_use]
    pub fn is_by_client(&self) -> bool {
        self.requests.iter().any(RecordedApprovalRequest::is_for_client)
    }

    /// Returns the last recorded outcome.
    #[must_use]
    pub fn outcome(&self) -> Option<&RecordedOutcome<'a>> {
        self.outcomes.last()
    }

    /// Returns the questions of the tool, each with its decision. One that is open, or that a crash has cut off, has
    /// none.
    pub fn input_questions(
        &self,
    ) -> impl Iterator<Item = (&RecordedApprovalRequest<'a>, Option<&RecordedDecision<'a>>)> {
        let mut asked = self.requests.iter().filter(|asked| asked.is_input()).peekable();
        std::iter::from_fn(move || {
            let question = asked.next()?;
            let next = asked.peek();
            let is_before_next = |at: RecordLocation| next.is_none_or(|next| at.is_before(next.at));
            let decision = self.decisions.iter().find(|decision| {
                decision.phase == WaitPhase::Input
                    && question.at.is_before(decision.at)
                    && is_before_next(decision.at)
            });
            Some((question, decision))
        })
    }

    /// Returns the last decision of hooks at this point. A call that runs again after a crash has another one about
    /// its new result.
    #[must_use]
    pub fn hook_decision(&self, on: HookPoint) -> Option<&'a Arc<HookDecision>> {
        self.hooks.iter().rfind(|hooks| hooks.on == on).map(|hooks| hooks.decision)
    }

    /// Returns the decision about this request.
    #[must_use]
    pub fn decision_about(
        &self,
        asked: &RecordedApprovalRequest<'a>,
    ) -> Option<&RecordedDecision<'a>> {
        if !asked.is_input() {
            return self.decision(asked.request.phase);
        }
        self.input_questions().find(|(question, _)| question.at == asked.at)?.1
    }

    /// Returns the first decision of this phase, which is the one that counts. For questions of the tool, see
    /// [`decision_about`](Self::decision_about).
    #[must_use]
    pub fn decision(&self, phase: WaitPhase) -> Option<&RecordedDecision<'a>> {
        self.decisions.iter().find(|decision| decision.phase == phase)
    }
}
