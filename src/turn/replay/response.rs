//! A response once more, from the message that was kept of it.

use std::collections::BTreeSet;

use super::tape::{Kept, Tape, message};
use crate::record::{Record, ResponseDisposition, ResponseMessage};
use crate::turn::budget::MAX_CALLS;
use crate::types::{
    CALLS_MAX, FailureKind, FinishKind, FinishReason, MessagePart, ProviderError, ToolCall,
    ToolOutcome, Usage,
};
use crate::wire::{CallDelta, Delta, ProviderMetadata};

/// Piece by piece what is to be fed.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) deltas: Vec<Delta>,
    /// The call that it makes whole.
    pub(super) seals: Option<u32>,
    /// The call that it opens, and that left the history: how, nobody knows.
    pub(super) gap: Option<u32>,
}

/// What is known of the response of an attempt, up to its end.
pub(super) fn steps(
    tape: &Tape<'_>,
    from: usize,
    turn: u32,
    attempt: u32,
    bytes_max: usize,
) -> Vec<Step> {
    let error = tape.failure(from, turn, attempt);
    let Some(kept) = tape.response(from, turn, attempt) else {
        let usage = error.map_or_else(Usage::default, |(_, usage)| usage);
        return Vec::from_iter(spent(usage).map(Step::of));
    };
    let early = tape.early(from, kept);
    let last_early = early.last().copied();
    let mut maker = Maker { tape, from, last_early, bytes_max, steps: Vec::new(), opened: 0 };
    maker.make(kept, error.map(|(error, _)| error));
    maker.steps
}

struct Maker<'t, 'a> {
    tape: &'t Tape<'a>,
    from: usize,
    /// This call and those before it were whole before the response ended.
    last_early: Option<u32>,
    /// How long a call's arguments may be.
    bytes_max: usize,
    steps: Vec<Step>,
    /// The next call that opens.
    opened: u32,
}

impl Maker<'_, '_> {
    fn make(&mut self, kept: Kept<'_>, error: Option<&ProviderError>) {
        let Record::ResponseEnded { ending, message, finish_reason, usage, dropped_calls, .. } =
            kept.record
        else {
            return;
        };
        self.content(message, *ending, finish_reason.as_ref());
        // What ends a response in its middle comes last.
        let over_calls = self.tape.of_turn(self.from).any(|(at, record)| {
            at < kept.at
                && matches!(record, Record::LimitReached { limit, .. } if limit == MAX_CALLS)
        });
        let ends_it = *ending == ResponseDisposition::Excess || over_calls;
        let split = dropped_calls.len().saturating_sub(usize::from(ends_it));
        let (before, last) = dropped_calls.split_at(split);
        before.iter().for_each(|name| self.dropped(name));
        self.beyond_the_cap(kept.at);
        let mut end = Vec::new();
        end.extend(error.filter(|_| finish_reason.is_some()).cloned().map(Delta::Error));
        end.extend(finish_reason.clone().map(Delta::Finish));
        end.extend(spent(*usage));
        let says_no_more =
            matches!(ending, ResponseDisposition::Well | ResponseDisposition::Refused);
        end.extend((finish_reason.is_none() && says_no_more).then_some(Delta::Done));
        self.steps.extend((!end.is_empty()).then_some(Step {
            deltas: end,
            seals: None,
            gap: None,
        }));
        last.iter().for_each(|name| self.dropped(name));
    }

    /// Text, thinking, calls and what the service wants back, in their order.
    fn content(
        &mut self,
        message: &ResponseMessage,
        ending: ResponseDisposition,
        finish: Option<&FinishReason>,
    ) {
        let (mut text, mut reasoning) = (message.text.as_str(), message.reasoning.as_str());
        let mut calls = message.calls.iter();
        for part in &message.parts {
            match part {
                MessagePart::Text { bytes, members } => {
                    let piece = Delta::Text(take(&mut text, *bytes));
                    let members = members.as_deref().map(Box::from);
                    // One without a byte is nothing but its members.
                    let piece = Some(piece).filter(|_| *bytes > 0 || members.is_none());
                    self.say(
                        piece
                            .into_iter()
                            .chain([Delta::Metadata(ProviderMetadata::Text { members })]),
                    );
                }
                MessagePart::Reasoning { bytes, members } => {
                    let piece = Delta::Reasoning(take(&mut reasoning, *bytes));
                    let members = members.as_deref().map(Box::from);
                    let piece = Some(piece).filter(|_| *bytes > 0 || members.is_none());
                    self.say(
                        piece
                            .into_iter()
                            .chain([Delta::Metadata(ProviderMetadata::Reasoning { members })]),
                    );
                }
                MessagePart::Raw { json } => {
                    self.say([Delta::Metadata(ProviderMetadata::Part((&**json).into()))])
                }
                MessagePart::Call { index, members } => {
                    if let Some(call) = calls.next() {
                        self.call(call);
                    }
                    if let Some(members) = members.as_deref() {
                        let (index, members) = (u64::from(*index), members.into());
                        self.say([Delta::Metadata(ProviderMetadata::Call { index, members })]);
                    }
                }
            }
        }
        // What no part tells of: all of it where the service wants nothing back; else a refusal,
        // and thinking that the service had not finished.
        let filtered = finish.is_some_and(|finish| finish.kind == FinishKind::ContentFilter);
        let is_refusal = match ending {
            ResponseDisposition::Refused => !filtered || !message.parts.is_empty(),
            ResponseDisposition::Well
            | ResponseDisposition::Length
            | ResponseDisposition::BrokeKept
            | ResponseDisposition::Excess
            | ResponseDisposition::Cancelled => !message.parts.is_empty(),
        };
        let text = Some(text.to_owned()).filter(|text| !text.is_empty());
        let reasoning = Some(reasoning.to_owned()).filter(|reasoning| !reasoning.is_empty());
        let text = text.map(if is_refusal { Delta::Refusal } else { Delta::Text });
        self.say(reasoning.map(Delta::Reasoning).into_iter().chain(text));
        calls.for_each(|call| self.call(call));
    }

    fn say(&mut self, deltas: impl IntoIterator<Item = Delta>) {
        let deltas: Vec<_> = deltas.into_iter().collect();
        self.steps.extend((!deltas.is_empty()).then_some(Step { deltas, seals: None, gap: None }));
    }

    fn call(&mut self, call: &ToolCall) {
        let index = call.key.index;
        while self.opened < index {
            let gap = self.opened;
            let deltas = vec![self.open(None, "(unknown)", None)];
            self.steps.push(Step { deltas, seals: None, gap: Some(gap) });
        }
        let ended = self.tape.of_turn(self.from).find_map(|(_, record)| {
            let Record::CallEnded { call: of, outcome, .. } = record else { return None };
            (of.key == call.key).then_some(outcome)
        });
        let invalid = ended.filter(|outcome| outcome.kind == Some(FailureKind::InvalidArguments));
        let quoted = invalid.and_then(|outcome| quoted(&outcome.content, call));
        let raw = call.raw.clone().or(quoted).unwrap_or_else(|| call.arguments_text());
        let oversize = call.raw.is_some()
            && invalid.is_some_and(|outcome| outcome.content.contains(" larger than allowed"));
        let mut deltas = vec![self.open(call.provider_id.as_deref(), &call.name, Some(raw))];
        // One piece that does not fit in.
        let rest = oversize.then(|| " ".repeat(self.bytes_max.saturating_add(1)));
        deltas.extend(rest.map(|rest| more(index, rest)));
        let seals = self.last_early.filter(|last| index <= *last).map(|_| index);
        deltas.extend(seals.map(|index| Delta::Seal { index: u64::from(index), arguments: None }));
        self.steps.push(Step { deltas, seals, gap: None });
    }

    fn dropped(&mut self, name: &str) {
        let deltas = vec![self.open(None, name, Some("{}".to_owned()))];
        self.steps.push(Step { deltas, seals: None, gap: None });
    }

    /// Calls that were only counted.
    fn beyond_the_cap(&mut self, end: usize) {
        let cap = CALLS_MAX as u64;
        let more = self.tape.of_turn(self.from).find_map(|(at, record)| {
            let Record::LimitReached { value, maximum, .. } = record else { return None };
            let is_it = at < end && *maximum == cap && u64::from(self.opened) == cap;
            is_it.then(|| value.saturating_sub(cap))
        });
        for _ in 0..more.unwrap_or_default() {
            self.dropped("(unknown)");
        }
    }

    fn open(&mut self, id: Option<&str>, name: &str, arguments: Option<String>) -> Delta {
        let index = Some(u64::from(self.opened));
        self.opened += 1;
        let (id, name) = (id.map(str::to_owned), Some(name.to_owned()));
        Delta::Call(CallDelta { index, id, name, arguments, begins: true, ..CallDelta::default() })
    }
}

impl Step {
    fn of(delta: Delta) -> Self {
        Self { deltas: vec![delta], seals: None, gap: None }
    }
}

/// More bytes of a call.
pub(super) fn more(index: u32, arguments: String) -> Delta {
    let index = Some(u64::from(index));
    Delta::Call(CallDelta { index, arguments: Some(arguments), ..CallDelta::default() })
}

/// Every call of a response that was whole before it ended, and then said more.
pub(super) fn changed_after_seal(
    tape: &Tape<'_>,
    from: usize,
    turn: u32,
    attempt: u32,
) -> BTreeSet<u32> {
    let changed = tape.of_turn(from).filter_map(|(_, record)| {
        let Record::CallEnded { call, notes, .. } = record else { return None };
        let is_of_it = (call.key.turn, call.key.attempt) == (turn, attempt);
        (notes.arguments_changed && is_of_it).then_some(call.key.index)
    });
    changed.collect()
}

/// The calls of an attempt that were given what an attempt before it had, and what that was: the
/// arguments that the earlier one had are those of the later.
pub(super) fn reused<'a>(
    tape: &Tape<'a>,
    (from, at): (usize, usize),
    turn: u32,
    attempt: u32,
) -> Vec<(&'a ToolCall, &'a ToolOutcome)> {
    let kept = tape.response(at, turn, attempt);
    let calls = kept.and_then(|kept| message(kept.record)).map(|m| m.calls.as_slice());
    let calls = calls.unwrap_or_default().iter();
    let reused = calls.filter_map(|call| {
        let (_, given) = tape.ended(at, usize::MAX).find(|(of, record)| {
            *of == call.key && matches!(record, Record::CallEnded { notes, .. } if notes.reused)
        })?;
        let mut before = tape.ended(from, at).map(|(_, record)| record);
        let Record::CallEnded { outcome: given, .. } = given else { return None };
        let is_it = |record: &&Record| {
            matches!(record, Record::CallEnded { call: of, outcome, .. }
                if of.name == call.name && outcome == given)
        };
        before.find(is_it).map(|_| (call, given))
    });
    reused.collect()
}

fn spent(usage: Usage) -> Option<Delta> {
    let raw = "{}".into();
    (usage != Usage::default()).then_some(Delta::Usage { usage, raw })
}

/// The text of a call's arguments as it came, where the answer to it quotes all of it.
fn quoted(answer: &str, call: &ToolCall) -> Option<String> {
    let mark = " Received: ";
    let texts = answer.match_indices(mark).filter_map(|(at, _)| answer.get(at + mark.len()..));
    let means = |text: &&str| {
        serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value == *call.arguments)
    };
    texts.into_iter().find(means).map(str::to_owned)
}

fn take(text: &mut &str, bytes: usize) -> String {
    let (head, rest) = text.split_at_checked(bytes).unwrap_or((text, ""));
    *text = rest;
    head.to_owned()
}
