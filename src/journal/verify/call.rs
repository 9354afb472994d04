//! Calls: one outcome each, intents before effects, people's answers, writes.

use super::turn::{OpenTurn, Response};
use super::{Invariant, Verifier};
use crate::event::ApprovalRequest;
use crate::record::{ResponseDisposition, PartialResponse, Record};
use crate::types::{
    ApprovalPhase, CallKey, FailureKind, Judgement, ResultNotes, ToolCall, ToolOutcome, ToolStatus,
    Verdict, WriteSet,
};

/// What the records of one attempt say of a call.
#[derive(Default)]
pub(super) struct CallRecords<'a> {
    pub(super) intent: Option<(&'a ToolCall, &'a str)>,
    /// What its tool would write, as it said last.
    reported: Option<&'a WriteSet>,
    before: Question,
    after: Question,
    outcome: Option<Outcome<'a>>,
}

/// What people are asked about a call, and what they said.
#[derive(Clone, Copy, Default)]
struct Question {
    asked: bool,
    given: Option<Verdict>,
}

struct Outcome<'a> {
    name: &'a str,
    outcome: &'a ToolOutcome,
    writes: &'a WriteSet,
}

impl CallRecords<'_> {
    fn question(&mut self, phase: ApprovalPhase) -> &mut Question {
        match phase {
            ApprovalPhase::Before => &mut self.before,
            ApprovalPhase::After => &mut self.after,
        }
    }
}

impl<'a> Verifier<'a> {
    /// What is known of a call that a record speaks of: one of the open attempt that counts.
    fn call(&mut self, key: CallKey) -> Option<&mut CallRecords<'a>> {
        let wrong = match &self.turn {
            None => Some((Invariant::Turn, format!("it speaks of {key}, and no turn goes on"))),
            Some(turn) if (key.turn, key.attempt) != (turn.number, turn.attempt) => {
                let what = format!(
                    "it speaks of {key}, and attempt {} of turn {} goes on",
                    turn.attempt, turn.number
                );
                Some((Invariant::Turn, what))
            }
            Some(OpenTurn { failed: Some(false), .. }) => {
                Some((Invariant::Turn, format!("it speaks of {key}, whose attempt is void")))
            }
            Some(OpenTurn { response: Some(response), .. }) if !keeps(response, key) => {
                Some((Invariant::Outcome, format!("it speaks of {key}, which nobody kept")))
            }
            Some(_) => None,
        };
        if let Some((invariant, what)) = wrong {
            self.breach(invariant, what);
            return None;
        }
        Some(self.turn.as_mut()?.calls.entry(key).or_default())
    }

    /// The call, unless it has its outcome already.
    fn open_call(&mut self, key: CallKey, invariant: Invariant) -> Option<&mut CallRecords<'a>> {
        let ended = self.call(key)?.outcome.is_some();
        if ended {
            self.breach(invariant, format!("{key} has its outcome already"));
            return None;
        }
        self.call(key)
    }

    pub(super) fn call_intended(&mut self, call: &'a ToolCall, key: &'a str, own: bool) {
        let of = call.key;
        if *self.intents.entry(key).or_insert(of) != of {
            self.breach(Invariant::Intent, format!("{key:?} is the key of another call"));
        }
        let scope = key.strip_suffix(&of.to_string()).and_then(|scope| scope.strip_suffix('/'));
        if scope.is_none_or(|scope| own && scope != self.session.as_str()) {
            let what = format!("{key:?} is no idempotency key of {of} in this session");
            self.breach(Invariant::Intent, what);
        }
        let Some(known) = self.open_call(of, Invariant::Intent) else { return };
        // After a crash an idempotent tool runs again, and that is intended again.
        let differs = known.intent.replace((call, key)).is_some_and(|known| known != (call, key));
        let forbidden = known.before.asked && known.before.given != Some(Verdict::Approved);
        if differs {
            self.breach(Invariant::Intent, format!("{of} is intended again, and otherwise"));
        }
        if forbidden {
            self.breach(Invariant::Approval, format!("nobody has let {of} run"));
        }
    }

    /// A call that begins before its response has ended keeps what there is of that.
    pub(super) fn partial_response(&mut self, call: &ToolCall, so_far: Option<&PartialResponse>) {
        let Some(turn) = &self.turn else { return };
        let what = match so_far {
            None if turn.response.is_none() => "it begins early, without the response so far",
            Some(_) if turn.response.is_some() => "its response had ended before",
            Some(part) if !part.message.calls.contains(call) => {
                "the response so far does not hold it"
            }
            None | Some(_) => return,
        };
        self.breach(Invariant::Response, format!("{}: {what}", call.key));
    }

    pub(super) fn call_reported(&mut self, key: CallKey, writes: &'a WriteSet) {
        if let Some(known) = self.open_call(key, Invariant::Outcome) {
            known.reported = Some(writes);
        }
    }

    pub(super) fn approval_asked(&mut self, asked: &ApprovalRequest) {
        let key = asked.call.key;
        let Some(known) = self.open_call(key, Invariant::Approval) else { return };
        let (intended, reported) = (known.intent.is_some(), known.reported.is_some());
        let question = known.question(asked.phase);
        question.asked = true;
        // Asked again after a crash, but not once there is an answer.
        if question.given.is_some() {
            self.breach(Invariant::Approval, format!("{key} is asked about after the answer"));
        }
        match asked.phase {
            ApprovalPhase::Before if intended => {
                let what = format!("it is asked whether {key} may run, which was about to");
                self.breach(Invariant::Approval, what);
            }
            ApprovalPhase::After if !reported => {
                let what = format!("it is asked about a result of {key}, and there is none");
                self.breach(Invariant::Approval, what);
            }
            ApprovalPhase::Before | ApprovalPhase::After => {}
        }
    }

    pub(super) fn approval_given(&mut self, key: CallKey, phase: ApprovalPhase, verdict: Verdict) {
        let Some(known) = self.open_call(key, Invariant::Approval) else { return };
        let question = known.question(phase);
        let asked = question.asked;
        let again = question.given.is_some();
        question.given.get_or_insert(verdict);
        if !asked {
            let what = format!("{key} was decided about, and nobody was asked");
            self.breach(Invariant::Approval, what);
        }
        if again {
            self.breach(Invariant::Approval, format!("{key} was decided about before"));
        }
    }

    pub(super) fn call_ended(&mut self, record: &'a Record) {
        let Record::CallEnded {
            call,
            outcome,
            notes,
            writes,
            started_ms,
            duration_ms,
            amended,
            ..
        } = record
        else {
            return;
        };
        let key = call.key;
        let judged = self.turn.as_ref().is_some_and(|turn| turn.response.is_some());
        let Some(known) = self.call(key) else { return };
        let new = Outcome { name: &call.name, outcome, writes };
        let (before, after) = (known.before.given, known.after.given);
        let (reported, intended) = (known.reported, known.intent.is_some());
        let wrong = match known.outcome.replace(new) {
            Some(old) if *amended => {
                let same = old.outcome == outcome && old.writes == writes;
                (!same).then_some("is amended, and its outcome is another")
            }
            None if *amended => Some("is amended, and has no outcome"),
            // Bytes came after its seal, and its result was discarded.
            Some(_) if !judged && outcome.kind == Some(FailureKind::Malformed) => None,
            Some(_) => Some("has a second outcome"),
            None => None,
        };
        if let Some(what) = wrong {
            self.breach(Invariant::Outcome, format!("{key} {what}"));
        }
        if started_ms.is_none() && *duration_ms > 0 {
            self.breach(Invariant::Outcome, format!("{key} took time and never started"));
        }
        self.status_fits(key, outcome, notes, intended);
        self.judgements_fit(key, outcome, notes, (before, after));
        self.writes_fit(key, outcome, notes, (writes, reported));
        if let Some(of) = notes.duplicate_of {
            self.copy_fits(key, of, outcome);
        }
    }

    fn status_fits(
        &mut self,
        key: CallKey,
        outcome: &ToolOutcome,
        notes: &ResultNotes,
        intended: bool,
    ) {
        if outcome.kind.is_none() != (outcome.status == ToolStatus::Ok) {
            let what = format!("{key} says why it did not succeed, and did, or the other way");
            self.breach(Invariant::Outcome, what);
        }
        let unknown = outcome.kind == Some(FailureKind::HostStopped);
        if unknown && !intended && notes.duplicate_of.is_none() {
            self.breach(
                Invariant::Intent,
                format!("{key} may have happened, and was not intended"),
            );
        }
    }

    /// An outcome notes what people said, and keeps to it.
    fn judgements_fit(
        &mut self,
        key: CallKey,
        outcome: &ToolOutcome,
        notes: &ResultNotes,
        given: (Option<Verdict>, Option<Verdict>),
    ) {
        let verdict = |noted: &Option<Judgement>| noted.as_ref().map(|said| said.verdict);
        if (verdict(&notes.before), verdict(&notes.after)) != given {
            let what = format!("{key} does not note what people said of it");
            self.breach(Invariant::Approval, what);
        }
        let forbidden =
            |given: Option<Verdict>| given.is_some_and(|said| said != Verdict::Approved);
        let forbidden = forbidden(given.0) || forbidden(given.1);
        if forbidden && outcome.status == ToolStatus::Ok {
            self.breach(Invariant::Approval, format!("{key} has a result that was forbidden"));
        }
        let expired = outcome.kind == Some(FailureKind::ApprovalExpired);
        if expired && !forbidden && notes.duplicate_of.is_none() {
            let what = format!("{key} was not let be in time, and nobody said that");
            self.breach(Invariant::Approval, what);
        }
    }

    /// Only what succeeded writes, and what its tool said.
    fn writes_fit(
        &mut self,
        key: CallKey,
        outcome: &ToolOutcome,
        notes: &ResultNotes,
        (writes, reported): (&WriteSet, Option<&WriteSet>),
    ) {
        if writes.is_empty() {
            return;
        }
        let copied = notes.duplicate_of.is_some() || notes.reused;
        if outcome.status != ToolStatus::Ok || notes.writes_dropped || copied {
            self.breach(Invariant::Writes, format!("{key} writes variables, and may not"));
        } else if reported != Some(writes) {
            self.breach(Invariant::Writes, format!("{key} writes what its tool did not report"));
        }
    }

    fn copy_fits(&mut self, key: CallKey, of: CallKey, outcome: &ToolOutcome) {
        let turn = self.turn.as_ref();
        let first = turn.and_then(|turn| turn.calls.get(&of)).and_then(|c| c.outcome.as_ref());
        let same = first.is_some_and(|first| first.outcome == outcome);
        if of >= key || !same {
            let what = format!("{key} repeats the outcome of {of}, which has no such one");
            self.breach(Invariant::Outcome, what);
        }
    }

    /// The response is known: what was recorded of its calls before is of calls that it kept.
    pub(super) fn kept_calls_fit(&mut self) {
        let Some((turn, response)) =
            self.turn.as_ref().and_then(|turn| Some((turn, turn.response.as_ref()?)))
        else {
            return;
        };
        // After a refusal only effects stay; after a crash within a response only what was
        // intended is known of it.
        let drops = matches!(response.ending, ResponseDisposition::Refused | ResponseDisposition::BrokeKept);
        let refused = response.ending == ResponseDisposition::Refused;
        let lost = turn.calls.iter().filter(|(key, _)| !drops && !keeps(response, **key));
        let mut wrong: Vec<_> =
            lost.map(|(key, _)| (Invariant::Outcome, format!("{key} is not kept"))).collect();
        for call in &response.message.calls {
            let known = turn.calls.get(&call.key);
            let intent = known.and_then(|known| known.intent);
            if refused && intent.is_none() {
                let what = format!("{} is kept of a refusal, and is no effect", call.key);
                wrong.push((Invariant::Response, what));
            }
            if intent.is_some_and(|(intended, _)| !is_same(intended, call)) {
                let what = format!("{} is not the call that was intended", call.key);
                wrong.push((Invariant::Intent, what));
            }
        }
        if response.ending == ResponseDisposition::BrokeKept {
            let intended = turn.calls.iter().filter(|(_, known)| known.intent.is_some());
            let lost = intended.filter(|(key, _)| !keeps(response, **key));
            wrong.extend(lost.map(|(key, _)| (Invariant::Response, format!("{key} is lost"))));
        }
        for (invariant, what) in wrong {
            self.breach(invariant, what);
        }
    }

    pub(super) fn call_is_answered(&mut self, call: &ToolCall, known: Option<&CallRecords<'a>>) {
        let key = call.key;
        let Some(known) = known else {
            self.breach(Invariant::Outcome, format!("{key} has no outcome"));
            return;
        };
        match &known.outcome {
            None => self.breach(Invariant::Outcome, format!("{key} has no outcome")),
            Some(outcome) if outcome.name != &*call.name => {
                let what = format!("{key} is {:?}, and {:?} ended", call.name, outcome.name);
                self.breach(Invariant::Outcome, what);
            }
            Some(_) => {}
        }
        if known.intent.is_some_and(|(intended, _)| !is_same(intended, call)) {
            self.breach(Invariant::Intent, format!("{key} is not the call that was intended"));
        }
    }
}

fn keeps(response: &Response<'_>, key: CallKey) -> bool {
    response.message.calls.iter().any(|call| call.key == key)
}

/// Whether it is the same call; its bytes may have become more since it was intended.
fn is_same(intended: &ToolCall, kept: &ToolCall) -> bool {
    (&intended.name, &intended.arguments) == (&kept.name, &kept.arguments)
}
