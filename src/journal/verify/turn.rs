//! Turns: consecutive, and so are their attempts; one response each, and a commit that agrees.

use std::collections::{BTreeMap, BTreeSet};

use super::call::CallRecords;
use super::{Invariant, Verifier};
use crate::event::TurnSummary;
use crate::record::{ResponseDisposition, Record, ResponseMessage, TurnEnd};
use crate::types::{CallKey, Execution, FinishReason, Usage};

/// The turn that goes on.
pub(super) struct OpenTurn<'a> {
    pub(super) number: u32,
    pub(super) attempt: u32,
    /// Whether the attempt failed, and then whether what had come is kept.
    pub(super) failed: Option<bool>,
    pub(super) response: Option<Response<'a>>,
    /// What its attempts have cost.
    usage: Usage,
    /// What the records say of the attempt's calls.
    pub(super) calls: BTreeMap<CallKey, CallRecords<'a>>,
}

pub(super) struct Response<'a> {
    pub(super) ending: ResponseDisposition,
    pub(super) message: &'a ResponseMessage,
    finish_reason: Option<&'a FinishReason>,
    dropped_calls: usize,
}

impl OpenTurn<'_> {
    fn new(number: u32) -> Self {
        Self {
            number,
            attempt: 0,
            failed: None,
            response: None,
            usage: Usage::default(),
            calls: BTreeMap::new(),
        }
    }
}

impl<'a> Verifier<'a> {
    /// Whether a turn of this number may be the next.
    pub(super) fn may_begin(&self, turn: u32) -> bool {
        let skipped = turn.checked_sub(self.last_turn);
        skipped == Some(1) || (self.gave_up && skipped == Some(2))
    }

    /// The turn of this number, begun if none goes on.
    fn turn_for(&mut self, number: u32) -> Option<&mut OpenTurn<'a>> {
        self.needs_run("a turn goes on in a run");
        if self.turn.is_none() {
            if !self.may_begin(number) {
                let what = format!("turn {number} follows turn {}", self.last_turn);
                self.breach(Invariant::Turn, what);
            }
            self.last_turn = number;
            self.gave_up = false;
            self.turn = Some(OpenTurn::new(number));
        }
        let open = self.turn.as_ref().map_or(0, |turn| turn.number);
        if open != number {
            let what = format!("it is of turn {number}, and turn {open} goes on");
            self.breach(Invariant::Turn, what);
            return None;
        }
        self.turn.as_mut()
    }

    pub(super) fn attempt_started(&mut self, number: u32, attempt: u32) {
        let Some(turn) = self.turn_for(number) else { return };
        let expected = turn.attempt + 1;
        let goes_on = turn.attempt > 0 && turn.failed != Some(false);
        let answered = turn.response.is_some();
        turn.attempt = attempt;
        turn.failed = None;
        turn.calls.clear();
        if attempt != expected {
            let what = format!("attempt {attempt} stands where {expected} should");
            self.breach(Invariant::Turn, what);
        }
        if answered {
            self.breach(Invariant::Turn, "an attempt begins after the turn's response");
        } else if goes_on {
            self.breach(Invariant::Turn, "an attempt begins before the one before has failed");
        }
    }

    /// The turn, if this is its open attempt.
    fn attempt_of(&mut self, number: u32, attempt: u32) -> Option<&mut OpenTurn<'a>> {
        let turn = self.turn_for(number)?;
        let open = turn.attempt;
        if open != attempt {
            let what = format!("it is of attempt {attempt}, and attempt {open} goes on");
            self.breach(Invariant::Turn, what);
            return None;
        }
        self.turn.as_mut()
    }

    pub(super) fn attempt_failed(&mut self, number: u32, attempt: u32, kept: bool, cost: Usage) {
        let Some(turn) = self.attempt_of(number, attempt) else { return };
        let again = turn.failed.replace(kept).is_some();
        let answered = turn.response.is_some();
        if !kept {
            turn.usage += cost;
        }
        let effects = turn.calls.values().any(|call| call.intent.is_some());
        if again || answered {
            self.breach(Invariant::Turn, "the attempt fails, and was over before");
        }
        if effects != kept {
            let what = if kept {
                "what came of it is kept, and no effect had begun"
            } else {
                "what came of it is void, and an effect had begun"
            };
            self.breach(Invariant::Response, what);
        }
    }

    pub(super) fn response_ended(&mut self, number: u32, attempt: u32, record: &'a Record) {
        let Record::ResponseEnded { ending, message, finish_reason, usage, dropped_calls, .. } =
            record
        else {
            return;
        };
        let seeded = self.opens_with_calls && self.turn.is_none() && self.last_turn == 0;
        if seeded && let Some(turn) = self.turn_for(number) {
            // Nobody was asked for it.
            turn.attempt = 1;
        }
        let Some(turn) = self.attempt_of(number, attempt) else { return };
        let broke = turn.failed.is_some();
        let fits = turn.failed == (*ending == ResponseDisposition::BrokeKept).then_some(true);
        turn.usage += *usage;
        let again = turn
            .response
            .replace(Response {
                ending: *ending,
                message,
                finish_reason: finish_reason.as_ref(),
                dropped_calls: dropped_calls.len(),
            })
            .is_some();
        if again {
            self.breach(Invariant::Response, "the turn has a second response");
        }
        if !fits {
            let what = if broke {
                "its attempt broke, and it says nothing of that"
            } else {
                "it is the part that is kept of an attempt, and none broke"
            };
            self.breach(Invariant::Response, what);
        }
        self.message_fits(number, attempt, message);
        self.kept_calls_fit();
    }

    /// The message's calls are of this response, in order, each with an id of its own.
    fn message_fits(&mut self, turn: u32, attempt: u32, message: &ResponseMessage) {
        let mut next = 0;
        let mut ids = BTreeSet::new();
        for call in &message.calls {
            let key = call.key;
            if (key.turn, key.attempt) != (turn, attempt) || key.index < next {
                self.breach(Invariant::Response, format!("{key} stands where it does not belong"));
            }
            next = key.index.saturating_add(1);
            if !ids.insert(&call.id) {
                let what = format!("{key} has the id {:?} of another call of the turn", call.id);
                self.breach(Invariant::Pairing, what);
            }
            if !call.arguments.is_object() {
                self.breach(Invariant::Response, format!("the arguments of {key} are no object"));
            }
        }
    }

    pub(super) fn turn_committed(&mut self, number: u32, end: &'a TurnEnd, summary: &TurnSummary) {
        if self.turn.is_none() {
            self.breach(Invariant::Commit, format!("turn {number} is committed, and none goes on"));
            return;
        }
        if self.turn_for(number).is_none() {
            return;
        }
        let Some(turn) = self.turn.take() else { return };
        if !end_fits(end, &turn) {
            self.breach(Invariant::Commit, "it does not end as its response did");
        }
        if summary.usage != turn.usage {
            self.breach(Invariant::Commit, "its tokens are not those of its attempts");
        }
        let calls = turn.response.as_ref().map_or(&[][..], |response| &response.message.calls);
        if !summary.tool_names.iter().eq(calls.iter().map(|call| &call.name)) {
            self.breach(Invariant::Commit, "its tools are not those of its calls");
        }
        let (finish, dropped) = turn
            .response
            .as_ref()
            .map_or((None, 0), |response| (response.finish_reason, response.dropped_calls));
        if summary.finish_reason.as_ref() != finish || summary.dropped_calls as usize != dropped {
            self.breach(Invariant::Commit, "it says other things of its response than that did");
        }
        for call in calls {
            self.call_is_answered(call, turn.calls.get(&call.key));
        }
        let parallel = |run: &super::OpenRun<'_>| run.execution != Execution::Sequential;
        if self.run.as_ref().is_some_and(|run| parallel(run) != summary.parallel) {
            self.breach(Invariant::Commit, "its calls were run in another way than its run says");
        }
        if let Some(run) = &mut self.run {
            run.turns += 1;
            run.tool_calls += u32::try_from(calls.len()).unwrap_or(u32::MAX);
            run.usage += turn.usage;
            let said = turn.response.as_ref().map_or("", |response| &response.message.text);
            run.last = Some((end, said));
        }
    }
}

/// A turn ends as its response did, unless it was cancelled.
fn end_fits(end: &TurnEnd, turn: &OpenTurn<'_>) -> bool {
    let cancelled = matches!(end, TurnEnd::Cancelled(_));
    let Some(response) = &turn.response else {
        // Its attempts failed, or there were no tokens left for another.
        return turn.failed == Some(false) && (cancelled || matches!(end, TurnEnd::Failed(_)));
    };
    cancelled
        || match response.ending {
            ResponseDisposition::Well | ResponseDisposition::Length | ResponseDisposition::BrokeKept => *end == TurnEnd::Finished,
            ResponseDisposition::Refused => *end == TurnEnd::Refused,
            ResponseDisposition::Excess => matches!(end, TurnEnd::Failed(_)),
            ResponseDisposition::Cancelled => false,
        }
}
