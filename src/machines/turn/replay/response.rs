//! Makes the deltas of a response from its kept message.

use std::collections::BTreeSet;

use super::recording::Recording;
use crate::turn::MAX_CALLS_KEY;
use callsheet_values::record::{ResponseEnding, ResponseMessage};
use callsheet_values::transcript::{AttemptResponse, AttemptTranscript, CallTranscript};
use callsheet_values::types::{
    CALLS_MAX, FailureKind, FinishKind, FinishReason, MessagePart, ProviderError, ToolCall,
    ToolOutcome, Usage,
};
use callsheet_wire::response::parse_arguments;
use callsheet_wire::{CallDelta, Delta, ProviderMetadata};

/// Deltas that are fed to the turn machine together.
#[derive(Clone, Debug)]
pub(super) struct ReplayStep {
    pub(super) deltas: Vec<Delta>,
    /// The call that these deltas seal, if it was sealed before the response ended.
    pub(super) seals: Option<u32>,
    /// The call that these deltas open and that was dropped for an unknown reason.
    pub(super) gap: Option<u32>,
}

/// Returns the deltas of an attempt's response as far as they are recorded.
pub(super) fn steps(
    recording: &Recording<'_>,
    index: usize,
    turn: u32,
    attempt: u32,
    bytes_max: usize,
) -> Vec<ReplayStep> {
    let Some(attempt) = recording.attempt(index, turn, attempt) else { return Vec::new() };
    let Some(response) = &attempt.response else {
        let usage = attempt.failure.map(|failure| failure.usage).unwrap_or_default();
        return Vec::from_iter(usage_delta(usage).map(ReplayStep::from_delta));
    };
    let early = recording.early(attempt);
    let limits = recording.run(index).map(|run| run.limits.as_slice()).unwrap_or_default();
    // Limits that were reached since the attempt started and before its response ended.
    let start = attempt.start.map_or(0, |start| start.at.index);
    let limits = limits.iter().filter(|limit| limit.at.index > start);
    let limits = limits.filter(|limit| limit.at.is_before(response.at));
    let limits = limits.map(|limit| (limit.limit, limit.value, limit.maximum)).collect();
    let last_early = early.last().copied();
    let mut maker =
        StepMaker { attempt, limits, last_early, bytes_max, steps: Vec::new(), opened: 0 };
    maker.make(response, attempt.failure.map(|failure| failure.error));
    maker.steps
}

struct StepMaker<'t, 'a> {
    attempt: &'t AttemptTranscript<'a>,
    /// The limits that were reached during the response: name, value and maximum.
    limits: Vec<(&'a str, u64, u64)>,
    /// This call and those before it were sealed before the response ended.
    last_early: Option<u32>,
    /// The maximum length of a call's arguments.
    bytes_max: usize,
    steps: Vec<ReplayStep>,
    /// The index of the next call that opens.
    opened: u32,
}

impl StepMaker<'_, '_> {
    fn make(&mut self, response: &AttemptResponse<'_>, error: Option<&ProviderError>) {
        let AttemptResponse { ending, message, finish_reason, usage, dropped_calls, .. } =
            *response;
        self.content(message, ending, finish_reason);
        // A call that exceeds a limit can end the response. It comes last.
        let is_over_budget = self.limits.iter().any(|(limit, ..)| *limit == MAX_CALLS_KEY);
        let ends_response = ending == ResponseEnding::TooManyCalls || is_over_budget;
        let split = dropped_calls.len().saturating_sub(usize::from(ends_response));
        let (before, last) = dropped_calls.split_at(split);
        // A protocol that allows one call keeps the first. Otherwise the machine itself has to drop the calls.
        let is_surplus = message.calls.len() == 1;
        before.iter().for_each(|name| self.dropped(name, is_surplus));
        self.uncounted_calls();
        let mut end = Vec::new();
        end.extend(error.filter(|_| finish_reason.is_some()).cloned().map(Delta::Error));
        end.extend(finish_reason.cloned().map(Delta::Finish));
        end.extend(usage_delta(usage));
        let is_complete = matches!(ending, ResponseEnding::Complete | ResponseEnding::Refused);
        end.extend((finish_reason.is_none() && is_complete).then_some(Delta::Done));
        self.push(end);
        last.iter().for_each(|name| self.dropped(name, false));
    }

    /// Adds text, thinking, calls and provider metadata, in their order.
    fn content(
        &mut self,
        message: &ResponseMessage,
        ending: ResponseEnding,
        finish: Option<&FinishReason>,
    ) {
        let (mut text, mut reasoning) = (message.text.as_str(), message.reasoning.as_str());
        let mut calls = message.calls.iter();
        for part in &message.parts {
            match part {
                MessagePart::Text { bytes, members } => {
                    let delta = Delta::Text(split_prefix(&mut text, *bytes));
                    let members = members.as_deref().map(Box::from);
                    // A part without a byte holds only members.
                    let delta = Some(delta).filter(|_| *bytes > 0 || members.is_none());
                    self.push(
                        delta
                            .into_iter()
                            .chain([Delta::Metadata(ProviderMetadata::Text { members })]),
                    );
                }
                MessagePart::Reasoning { bytes, members } => {
                    let delta = Delta::Reasoning(split_prefix(&mut reasoning, *bytes));
                    let members = members.as_deref().map(Box::from);
                    let delta = Some(delta).filter(|_| *bytes > 0 || members.is_none());
                    self.push(
                        delta
                            .into_iter()
                            .chain([Delta::Metadata(ProviderMetadata::Reasoning { members })]),
                    );
                }
                MessagePart::TaggedReasoning { bytes, open, close } => {
                    let delta = Delta::Reasoning(split_prefix(&mut reasoning, *bytes));
                    let (open, close) = ((&**open).into(), (&**close).into());
                    let tags = Delta::Metadata(ProviderMetadata::ReasoningTags { open, close });
                    self.push(Some(delta).filter(|_| *bytes > 0).into_iter().chain([tags]));
                }
                MessagePart::Raw { json } => {
                    self.push([Delta::Metadata(ProviderMetadata::RawPart((&**json).into()))])
                }
                MessagePart::Call { index, members } => {
                    if let Some(call) = calls.next() {
                        self.call(call);
                    }
                    if let Some(members) = members.as_deref() {
                        let (index, members) = (u64::from(*index), members.into());
                        self.push([Delta::Metadata(ProviderMetadata::Call { index, members })]);
                    }
                }
            }
        }
        // The text and reasoning that belong to no part. That is all of it if the message has no
        // parts, and otherwise a refusal and incomplete reasoning.
        let filtered = finish.is_some_and(|finish| finish.kind == FinishKind::ContentFilter);
        let is_refusal = match ending {
            ResponseEnding::Refused => !filtered || !message.parts.is_empty(),
            ResponseEnding::Complete
            | ResponseEnding::Length
            | ResponseEnding::BrokenKept
            | ResponseEnding::TooManyCalls
            | ResponseEnding::Cancelled => !message.parts.is_empty(),
        };
        let text = Some(text.to_owned()).filter(|text| !text.is_empty());
        let reasoning = Some(reasoning.to_owned()).filter(|reasoning| !reasoning.is_empty());
        let text = text.map(if is_refusal { Delta::Refusal } else { Delta::Text });
        self.push(reasoning.map(Delta::Reasoning).into_iter().chain(text));
        calls.for_each(|call| self.call(call));
    }

    fn push(&mut self, deltas: impl IntoIterator<Item = Delta>) {
        let deltas: Vec<_> = deltas.into_iter().collect();
        let step = ReplayStep { deltas, seals: None, gap: None };
        self.steps.extend((!step.deltas.is_empty()).then_some(step));
    }

    fn call(&mut self, call: &ToolCall) {
        let index = call.key.index;
        while self.opened < index {
            let gap = self.opened;
            let deltas = vec![self.open(None, "(unknown)", None)];
            self.steps.push(ReplayStep { deltas, seals: None, gap: Some(gap) });
        }
        let recorded = self.attempt.calls.get(&call.key);
        let ended = recorded.and_then(|call| call.outcomes.first()).map(|ended| ended.outcome);
        let invalid = ended.filter(|outcome| outcome.kind == Some(FailureKind::InvalidArguments));
        let direct = invalid.filter(|_| !call.indirect);
        let quoted = direct.and_then(|outcome| quoted(&outcome.content, call));
        let made = call.as_made();
        let raw = made.raw.clone().or(quoted).unwrap_or_else(|| made.arguments_text());
        let oversize = call.raw.is_some()
            && invalid.is_some_and(|outcome| outcome.content.contains(" larger than allowed"));
        // Arguments that are cut off are sealed only if the wire sent them whole.
        let whole = Some(raw.clone()).filter(|_| !oversize);
        let mut deltas = vec![self.open(call.provider_id.as_deref(), &made.name, Some(raw))];
        // A delta that exceeds the limit.
        let rest = oversize.then(|| " ".repeat(self.bytes_max.saturating_add(1)));
        deltas.extend(rest.map(|rest| more(index, rest)));
        let seals = self.last_early.filter(|last| index <= *last).map(|_| index);
        let seal = |index| Delta::Seal { index: u64::from(index), arguments: whole };
        deltas.extend(seals.map(seal));
        self.steps.push(ReplayStep { deltas, seals, gap: None });
    }

    fn dropped(&mut self, name: &str, is_surplus: bool) {
        let mut delta = self.open(None, name, Some("{}".to_owned()));
        if let Delta::Call(call) = &mut delta {
            call.is_surplus = is_surplus;
        }
        self.steps.push(ReplayStep { deltas: vec![delta], seals: None, gap: None });
    }

    /// Adds the calls beyond the cap, which were only counted.
    fn uncounted_calls(&mut self) {
        let cap = CALLS_MAX as u64;
        let beyond = self.limits.iter().find(|(.., maximum)| *maximum == cap);
        let beyond = beyond.filter(|_| u64::from(self.opened) == cap);
        for _ in 0..beyond.map_or(0, |(_, value, _)| value.saturating_sub(cap)) {
            self.dropped("(unknown)", false);
        }
    }

    fn open(&mut self, id: Option<&str>, name: &str, arguments: Option<String>) -> Delta {
        let index = Some(u64::from(self.opened));
        self.opened += 1;
        let (id, name) = (id.map(str::to_owned), Some(name.to_owned()));
        Delta::Call(CallDelta {
            index,
            id,
            name,
            arguments,
            is_marked_start: true,
            ..CallDelta::default()
        })
    }
}

impl ReplayStep {
    fn from_delta(delta: Delta) -> Self {
        Self { deltas: vec![delta], seals: None, gap: None }
    }
}

/// Returns a delta with more bytes of a call.
pub(super) fn more(index: u32, arguments: String) -> Delta {
    let index = Some(u64::from(index));
    Delta::Call(CallDelta { index, arguments: Some(arguments), ..CallDelta::default() })
}

/// Returns the calls of a response that changed after their seal.
pub(super) fn changed_after_seal(
    recording: &Recording<'_>,
    index: usize,
    turn: u32,
    attempt: u32,
) -> BTreeSet<u32> {
    let attempt = recording.attempt(index, turn, attempt);
    let calls = attempt.into_iter().flat_map(|attempt| &attempt.calls);
    let is_changed = |call: &CallTranscript<'_>| {
        let mut outcomes = call.outcomes.iter();
        outcomes.any(|ended| ended.at.index >= index && ended.notes.arguments_changed)
    };
    calls.filter(|(_, call)| is_changed(call)).map(|(key, _)| key.index).collect()
}

/// Returns the calls of an attempt that reused the outcome of an earlier attempt of the turn, with
/// that outcome. `first` is the turn's first record, `at` the next one.
pub(super) fn reused<'a>(
    recording: &Recording<'a>,
    (first, at): (usize, usize),
    turn: u32,
    attempt: u32,
) -> Vec<(&'a ToolCall, &'a ToolOutcome)> {
    let Some(attempt) = recording.attempt(at, turn, attempt) else { return Vec::new() };
    let calls = attempt.response.map(|response| response.message.calls.as_slice());
    let outcomes = recording.outcomes(at);
    let earlier = || outcomes.iter().filter(|ended| (first..at).contains(&ended.at.index));
    let reused = calls.unwrap_or_default().iter().filter_map(|call| {
        let mut given = attempt.calls.get(&call.key)?.outcomes.iter();
        let given = given.find(|ended| ended.notes.reused)?.outcome;
        let is_original =
            earlier().any(|ended| ended.label.name == call.name && ended.outcome == given);
        is_original.then_some((call, given))
    });
    reused.collect()
}

fn usage_delta(usage: Usage) -> Option<Delta> {
    let raw = "{}".into();
    (usage != Usage::default()).then_some(Delta::Usage { usage, raw })
}

/// Returns the original text of a call's arguments if the answer to the call quotes all of it. An empty text and
/// `null` stand for an empty object.
fn quoted(answer: &str, call: &ToolCall) -> Option<String> {
    let marker = " Received: ";
    let texts = answer.match_indices(marker).filter_map(|(at, _)| answer.get(at + marker.len()..));
    let is_same =
        |text: &&str| parse_arguments(text).object().is_some_and(|value| *value == *call.arguments);
    texts.into_iter().find(is_same).map(str::to_owned)
}

/// Removes and returns the first bytes of the text.
fn split_prefix(text: &mut &str, bytes: usize) -> String {
    let (head, rest) = text.split_at_checked(bytes).unwrap_or((text, ""));
    *text = rest;
    head.to_owned()
}
