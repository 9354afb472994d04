//! Checks of turns: the end of each attempt, the response, and the commit.

use std::collections::BTreeSet;

use super::Verifier;
use callsheet_values::record::{ResponseEnding, TurnEnd};
use callsheet_values::transcript::{
    AttemptResponse, AttemptTranscript, CallTranscript, Invariant, RunTranscript, TurnCommit,
    TurnTranscript,
};
use callsheet_values::types::Execution;

impl<'a> Verifier<'_, 'a> {
    pub(super) fn check_turn(&mut self, run: &RunTranscript<'a>, turn: &TurnTranscript<'a>) {
        for attempt in &turn.attempts {
            self.check_attempt(turn, attempt);
            for (key, call) in &attempt.calls {
                self.check_call(run, attempt, *key, call);
            }
        }
        if let Some(commit) = turn.commit {
            self.check_commit(run, turn, commit);
        }
    }

    fn check_attempt(&mut self, turn: &TurnTranscript<'a>, attempt: &AttemptTranscript<'a>) {
        if let Some(failure) = attempt.failure {
            let is_earlier = |call: &CallTranscript<'_>| {
                call.intents.first().is_some_and(|intent| intent.at.is_before(failure.at))
            };
            let has_effects = attempt.calls.values().any(is_earlier);
            self.require(has_effects == failure.kept, failure.at, Invariant::Response, || {
                let name = attempt_name(turn, attempt);
                if failure.kept {
                    format!("a part of {name} is kept, and no call with effects had started")
                } else {
                    format!("all of {name} is void, and a call with effects had started")
                }
            });
        }
        let Some(response) = &attempt.response else { return };
        if attempt.start.is_none() {
            let is_initial = self.opens_with_calls && turn.number == 1 && attempt.number == 1;
            self.require(is_initial, response.at, Invariant::Turn, || {
                let name = attempt_name(turn, attempt);
                format!("{name} has a response without a request to a model")
            });
        }
        let broke = attempt.failure.map(|failure| failure.kept);
        let is_part = response.ending == ResponseEnding::BrokenKept;
        self.require(broke == is_part.then_some(true), response.at, Invariant::Response, || {
            let name = attempt_name(turn, attempt);
            if is_part {
                format!("{name} keeps a part of a response, and has no failure that keeps one")
            } else {
                format!("{name} has a whole response, and a failure")
            }
        });
        self.check_message(turn, attempt, response);
        self.check_kept_calls(attempt, response);
    }

    /// Checks that the message's calls are of this response, in order, each with its own id.
    fn check_message(
        &mut self,
        turn: &TurnTranscript<'a>,
        attempt: &AttemptTranscript<'a>,
        response: &AttemptResponse<'a>,
    ) {
        let (at, mut next, mut ids) = (response.at, 0, BTreeSet::new());
        for call in &response.message.calls {
            let key = call.key;
            let is_own = (key.turn, key.attempt) == (turn.number, attempt.number);
            self.require(is_own && key.index >= next, at, Invariant::Response, || {
                let name = attempt_name(turn, attempt);
                format!("the response of {name} contains {key} out of order or of another attempt")
            });
            next = key.index.saturating_add(1);
            self.require(ids.insert(&call.id), at, Invariant::Pairing, || {
                format!("{key} has the id {:?} of another call of the turn", call.id)
            });
            self.require(call.arguments.is_object(), at, Invariant::Response, || {
                format!("the arguments of {key} are not a JSON object")
            });
        }
    }

    /// Checks which of the recorded calls the response keeps. Only a refused or a broken response drops
    /// some. A refused one keeps only calls that had an intent before it. A broken one keeps all calls that have an
    /// intent.
    fn check_kept_calls(
        &mut self,
        attempt: &AttemptTranscript<'a>,
        response: &AttemptResponse<'a>,
    ) {
        let at = response.at;
        let drops_calls =
            matches!(response.ending, ResponseEnding::Refused | ResponseEnding::BrokenKept);
        for (key, call) in attempt.calls.iter().filter(|(key, _)| !response.keeps(**key)) {
            self.require(drops_calls, at, Invariant::Outcome, || {
                format!("{key} has records, and its response does not contain it")
            });
            let is_lost = response.ending == ResponseEnding::BrokenKept && !call.intents.is_empty();
            self.require(!is_lost, at, Invariant::Response, || {
                format!("{key} has an intent, and is not in the kept part of its response")
            });
        }
        for call in &response.message.calls {
            let none = CallTranscript::default();
            let records = attempt.calls.get(&call.key).unwrap_or(&none);
            let mut intents = records.intents.iter();
            let first = intents.clone().next();
            let has_effects = first.is_some_and(|intent| intent.at.is_before(at));
            let is_refused = response.ending == ResponseEnding::Refused;
            self.require(has_effects || !is_refused, at, Invariant::Response, || {
                format!("{} is kept in a refused response, and had no intent before it", call.key)
            });
            // The raw arguments may have grown since the call was intended.
            let is_same = intents.all(|intent| {
                intent.call.name == call.name
                    && self.are_final(&call.arguments, &intent.call.arguments, records)
            });
            self.require(is_same, at, Invariant::Intent, || {
                format!("{} has an intent with another tool or other arguments", call.key)
            });
        }
    }

    fn check_commit(
        &mut self,
        run: &RunTranscript<'a>,
        turn: &TurnTranscript<'a>,
        commit: TurnCommit<'a>,
    ) {
        let (at, summary, response) = (commit.at, commit.summary, turn.response());
        let number = turn.number;
        self.require(end_fits(commit.end, turn), at, Invariant::Commit, || {
            format!("turn {number} does not end as its response did")
        });
        self.require(summary.usage == turn.usage(), at, Invariant::Commit, || {
            format!("the tokens of turn {number} are not those of its attempts")
        });
        let names = turn.kept_calls().iter().map(|call| &call.name);
        self.require(summary.tool_names.iter().eq(names), at, Invariant::Commit, || {
            format!("the tools of turn {number} are not those of its calls")
        });
        let finish_reason = response.and_then(|response| response.finish_reason);
        let dropped = response.map_or(0, |response| response.dropped_calls.len());
        let is_same = summary.finish_reason.as_ref() == finish_reason
            && summary.dropped_calls as usize == dropped;
        self.require(is_same, at, Invariant::Commit, || {
            format!(
                "the finish reason or the dropped calls of turn {number} are not those of its \
                 response"
            )
        });
        for call in turn.kept_calls() {
            let key = call.key;
            let name = turn.call(key).and_then(CallTranscript::outcome).map(|end| &end.label.name);
            self.require(name == Some(&call.name), at, Invariant::Outcome, || match name {
                Some(name) => {
                    format!("{key} is a call of {:?}, and its outcome is of {name:?}", call.name)
                }
                None => format!("{key} has no outcome"),
            });
        }
        let parallel = run.start.map(|start| start.execution != Execution::Sequential);
        self.require(
            parallel.is_none_or(|parallel| parallel == summary.parallel),
            at,
            Invariant::Commit,
            || format!("the execution of turn {number} is not that of its run"),
        );
    }
}

/// Returns the name of an attempt in messages.
fn attempt_name(turn: &TurnTranscript<'_>, attempt: &AttemptTranscript<'_>) -> String {
    format!("attempt {} of turn {}", attempt.number, turn.number)
}

/// Returns true if a turn ends as its response did, or was cancelled.
fn end_fits(end: &TurnEnd, turn: &TurnTranscript<'_>) -> bool {
    let is_cancelled = matches!(end, TurnEnd::Cancelled(_));
    let Some(response) = turn.response() else {
        // All attempts failed, or no tokens were left for another one.
        let is_void = turn.attempt().is_some_and(AttemptTranscript::is_void);
        return is_void && (is_cancelled || matches!(end, TurnEnd::Failed(_)));
    };
    is_cancelled
        || match response.ending {
            ResponseEnding::Complete | ResponseEnding::Length | ResponseEnding::BrokenKept => {
                matches!(end, TurnEnd::Finished | TurnEnd::RefusedByHook(_))
            }
            ResponseEnding::Refused => {
                matches!(end, TurnEnd::Refused | TurnEnd::RefusedByHook(_))
            }
            ResponseEnding::TooManyCalls => matches!(end, TurnEnd::Failed(_)),
            ResponseEnding::Cancelled => false,
        }
}
