//! Checks of calls: one outcome each, intents before effects, decisions of people and of hooks, writes.

use std::sync::Arc;

use serde_json::Value;

use super::Verifier;
use callsheet_machines::context::{
    ReferenceValues, has_references, recorded_value, references_in, substitute_references,
};
use callsheet_values::transcript::{
    AttemptTranscript, CallIntent, CallTranscript, Invariant, RecordLocation, RecordedDecision,
    RecordedOutcome, RunTranscript,
};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, FailureKind, HookDecision, HookPoint, HookVerdict, Reference,
    ReferenceError, ToolCall, ToolStatus, VerdictWithMessage, WaitPhase,
};

impl<'a> Verifier<'_, 'a> {
    pub(super) fn check_call(
        &mut self,
        run: &RunTranscript<'a>,
        attempt: &AttemptTranscript<'a>,
        key: CallKey,
        call: &CallTranscript<'a>,
    ) {
        for intent in &call.intents {
            self.check_intent(run, attempt, key, call, intent);
        }
        for handed in call.requests.iter().filter(|asked| asked.is_for_client()) {
            self.check_start(handed.at, key, call, &handed.request.arguments);
        }
        self.check_approvals(key, call);
        for (nth, outcome) in call.outcomes.iter().enumerate() {
            let earlier = nth.checked_sub(1).and_then(|nth| call.outcomes.get(nth));
            let has_response =
                attempt.response.is_some_and(|response| response.at.is_before(outcome.at));
            self.check_repetition(key, outcome, earlier, has_response);
            self.check_outcome(key, call, outcome);
            self.check_noted_decisions(key, call, outcome);
            self.check_writes(key, call, outcome);
            self.check_copy(attempt, key, outcome);
        }
    }

    fn check_intent(
        &mut self,
        run: &RunTranscript<'a>,
        attempt: &AttemptTranscript<'a>,
        of: CallKey,
        call: &CallTranscript<'a>,
        intent: &CallIntent<'a>,
    ) {
        let (at, key) = (intent.at, intent.idempotency_key);
        let is_own_key = *self.calls_by_idempotency_key.entry(key).or_insert(of) == of;
        self.require(is_own_key, at, Invariant::Intent, || {
            format!("{of} has the idempotency key {key:?} of another call")
        });
        // Up to a fork, keys are those of the other session.
        let is_own = self.transcript.forks.last().is_none_or(|fork| fork.at.is_before(at));
        let scope = key.strip_suffix(&of.to_string()).and_then(|scope| scope.strip_suffix('/'));
        // In journals of earlier versions a key begins with the session's id.
        let is_scoped = scope.is_some_and(|scope| {
            let is_run = run.id().is_some_and(|run| *run.0 == *scope);
            is_run || !is_own || scope == self.session.as_str()
        });
        self.require(is_scoped, at, Invariant::Intent, || {
            format!("{of} has the idempotency key {key:?}, which is not that of this call and run")
        });
        // A call of an idempotent tool runs again after a crash and has another intent.
        let is_same = call.intents.first().is_none_or(|first| {
            (first.call, first.idempotency_key) == (intent.call, intent.idempotency_key)
        });
        self.require(is_same, at, Invariant::Intent, || {
            format!("{of} has a second intent, with another call or idempotency key")
        });
        self.check_start(at, of, call, &intent.call.arguments);
        let has_ended = attempt.response.is_some_and(|response| response.at.is_before(at));
        let what = match intent.partial {
            None if !has_ended => "has no partial response, and the response had not ended",
            Some(_) if has_ended => "has a partial response, and the response had ended",
            Some(partial) if !self.is_made(&partial.message.calls, intent.call, call) => {
                "has a partial response that does not contain the call"
            }
            None | Some(_) => return,
        };
        self.require(false, at, Invariant::Response, || format!("the intent of {of} {what}"));
    }

    /// Checks the approvals and the decisions of hooks about a call that starts, or is handed to the client.
    fn check_start(
        &mut self,
        at: RecordLocation,
        of: CallKey,
        call: &CallTranscript<'a>,
        arguments: &Arc<Value>,
    ) {
        let mut requests = call.requests.iter().filter(|asked| asked.at.is_before(at));
        let is_requested = requests.any(|asked| asked.request.phase == WaitPhase::Before);
        let verdict = verdict_before(call, WaitPhase::Before, at);
        self.require(
            !is_requested || verdict == Some(ApprovalVerdict::Approved),
            at,
            Invariant::Approval,
            || format!("{of} starts without the approval that was requested"),
        );
        let decision = hooks_before(call, HookPoint::BeforeCall, at);
        let is_refused = decision.is_some_and(|hooks| hooks.verdict == HookVerdict::Refuse);
        self.require(!is_refused, at, Invariant::Hook, || {
            format!("{of} starts although hooks have refused it")
        });
        let needs_approval = decision.is_some_and(|hooks| hooks.verdict == HookVerdict::Ask);
        self.require(!needs_approval || is_requested, at, Invariant::Hook, || {
            format!("{of} starts without the approval that a hook has asked for")
        });
        let changed = decision.and_then(|hooks| hooks.arguments.as_ref());
        self.require(
            changed.is_none_or(|changed| changed == arguments),
            at,
            Invariant::Hook,
            || format!("{of} starts with other arguments than those that its hooks have set"),
        );
    }

    /// Returns whether the model made the intended call.
    fn is_made(
        &self,
        made: &[ToolCall],
        intended: &ToolCall,
        records: &CallTranscript<'a>,
    ) -> bool {
        made.iter().any(|made| {
            let arguments = Arc::clone(&intended.arguments);
            ToolCall { arguments, ..made.clone() } == *intended
                && self.are_final(&made.arguments, &intended.arguments, records)
        })
    }

    /// Returns whether the arguments of an intent are those of the model, or these with the values of their
    /// references, or those of its hooks. If a reference is to a variable, whose value at the start of the turn is
    /// not known here, nothing is compared.
    pub(super) fn are_final(
        &self,
        made: &Value,
        intended: &Value,
        records: &CallTranscript<'a>,
    ) -> bool {
        let decision = records.hook_decision(HookPoint::BeforeCall);
        if let Some(changed) = decision.and_then(|hooks| hooks.arguments.as_ref()) {
            return **changed == *intended;
        }
        if made == intended || !has_references(made) {
            return made == intended;
        }
        let references = references_in(made);
        if references.iter().any(|reference| matches!(reference, Reference::Variable(_))) {
            return true;
        }
        let value = |reference: Reference| {
            let value = recorded_value(self.transcript, &reference)?;
            Ok((reference, value))
        };
        let values: Result<ReferenceValues, ReferenceError> =
            references.into_iter().map(value).collect();
        let substituted =
            values.and_then(|values| substitute_references(made, &values, usize::MAX));
        substituted.is_ok_and(|substituted| substituted == *intended)
    }

    /// Checks the order of approval requests and decisions. A request is repeated after a crash, but
    /// not once it is decided.
    fn check_approvals(&mut self, key: CallKey, call: &CallTranscript<'a>) {
        self.check_questions(key, call);
        for asked in call.requests.iter().filter(|asked| !asked.is_input()) {
            let (at, phase) = (asked.at, asked.request.phase);
            let is_open = verdict_before(call, phase, at).is_none();
            self.require(is_open, at, Invariant::Approval, || {
                format!("{key} has an approval request after the decision")
            });
            let is_in_time = match phase {
                WaitPhase::Before => {
                    call.intents.first().is_none_or(|intent| at.is_before(intent.at))
                }
                WaitPhase::After => {
                    call.reports.first().is_some_and(|report| report.at.is_before(at))
                }
                WaitPhase::Client => {
                    let ends = call.outcomes.first().map(|ended| ended.at);
                    let mut later = call.reports.iter().map(|report| report.at).chain(ends);
                    later.all(|later| at.is_before(later))
                }
                WaitPhase::Input => true,
            };
            self.require(is_in_time, at, Invariant::Approval, || match phase {
                WaitPhase::Before => format!("{key} has an approval request after its intent"),
                WaitPhase::Client => format!("{key} is handed to the client after its result"),
                WaitPhase::After | WaitPhase::Input => {
                    format!("{key} has an approval request for its result before the result")
                }
            });
        }
        let decisions = call.decisions.iter();
        for decision in decisions.filter(|decision| decision.phase != WaitPhase::Input) {
            let (at, phase) = (decision.at, decision.phase);
            let mut requests = call.requests.iter().filter(|asked| asked.request.phase == phase);
            self.require(
                requests.any(|asked| asked.at.is_before(at)),
                at,
                Invariant::Approval,
                || format!("{key} has a decision without an approval request"),
            );
            let is_first = verdict_before(call, phase, at).is_none();
            self.require(is_first, at, Invariant::Approval, || {
                format!("{key} has a second decision")
            });
        }
    }

    /// Checks the questions of a call's tool: each decision is the only one about the question before it, and
    /// only the answer to a form has content.
    fn check_questions(&mut self, key: CallKey, call: &CallTranscript<'a>) {
        for asked in &call.requests {
            let is_input = asked.is_input();
            let fits = is_input == asked.request.question.is_some();
            self.require(fits, asked.at, Invariant::Approval, || {
                let what = if is_input {
                    "a request for input without a question"
                } else {
                    "a question in a request that is not for input"
                };
                format!("{key} has {what}")
            });
        }
        let inputs: Vec<_> = call.input_questions().collect();
        let mut answered = 0;
        for (asked, decision) in &inputs {
            let Some(decision) = decision else { continue };
            answered += 1;
            let question = asked.request.question.as_deref();
            let fits = question.is_none_or(|question| decision.fits(question));
            self.require(fits, decision.at, Invariant::Approval, || {
                format!("{key} has an answer that does not fit the question")
            });
        }
        let is_input = |decision: &&RecordedDecision<'_>| decision.phase == WaitPhase::Input;
        let decisions: Vec<_> = call.decisions.iter().filter(is_input).collect();
        if let Some(last) = decisions.last() {
            self.require(decisions.len() == answered, last.at, Invariant::Approval, || {
                format!("{key} has a second decision about a question, or one without a question")
            });
        }
    }

    /// Checks an outcome that is recorded again. It may amend the notes of the one before. Before the end of the
    /// response it may also replace that one, if more bytes of the arguments came after the seal: the call is then
    /// malformed, and its result is discarded.
    fn check_repetition(
        &mut self,
        key: CallKey,
        outcome: &RecordedOutcome<'a>,
        earlier: Option<&RecordedOutcome<'a>>,
        has_response: bool,
    ) {
        let is_malformed = outcome.outcome.kind == Some(FailureKind::Malformed);
        let wrong = match (earlier, outcome.amended) {
            (Some(old), true) => {
                let is_same = (old.outcome, old.writes) == (outcome.outcome, outcome.writes);
                (!is_same).then_some("has an amended outcome with another result or other writes")
            }
            (None, true) => Some("has an amended outcome without an earlier one"),
            (Some(_), false) if !has_response && is_malformed => None,
            (Some(_), false) => Some("has a second outcome"),
            (None, false) => None,
        };
        if let Some(what) = wrong {
            self.require(false, outcome.at, Invariant::Outcome, || format!("{key} {what}"));
        }
    }

    fn check_outcome(
        &mut self,
        key: CallKey,
        call: &CallTranscript<'a>,
        recorded: &RecordedOutcome<'a>,
    ) {
        let RecordedOutcome { at, outcome, notes, started_ms, duration_ms, .. } = *recorded;
        let is_timed = started_ms.is_some() || duration_ms == 0;
        self.require(is_timed, at, Invariant::Outcome, || {
            format!("{key} has a duration, and never started")
        });
        let is_ok = outcome.status == ToolStatus::Ok;
        self.require(outcome.kind.is_none() == is_ok, at, Invariant::Outcome, || {
            let what = if is_ok { "succeeded, and has a" } else { "did not succeed, and has no" };
            format!("{key} {what} failure kind")
        });
        let may_have_run = outcome.kind == Some(FailureKind::HostStopped);
        let is_intended = call.intents.first().is_some_and(|intent| intent.at.is_before(at));
        let is_known = !may_have_run || is_intended || notes.duplicate_of.is_some();
        self.require(is_known, at, Invariant::Intent, || {
            format!("{key} may have run when the host stopped, and has no intent")
        });
    }

    /// Checks that an outcome notes the decisions of people, and respects these and those of hooks.
    fn check_noted_decisions(
        &mut self,
        key: CallKey,
        call: &CallTranscript<'a>,
        recorded: &RecordedOutcome<'a>,
    ) {
        let RecordedOutcome { at, outcome, notes, .. } = *recorded;
        let phases = [WaitPhase::Before, WaitPhase::After];
        let given = phases.map(|phase| verdict_before(call, phase, at));
        let noted = [&notes.before, &notes.after];
        let noted =
            noted.map(|noted: &Option<VerdictWithMessage>| noted.as_ref().map(|note| note.verdict));
        self.require(noted == given, at, Invariant::Approval, || {
            format!("the outcome of {key} does not note the decisions about the call")
        });
        let is_forbidden =
            given.iter().flatten().any(|verdict| *verdict != ApprovalVerdict::Approved);
        let is_ok = outcome.status == ToolStatus::Ok;
        self.require(!(is_forbidden && is_ok), at, Invariant::Approval, || {
            format!("{key} succeeded although an approval was rejected or had expired")
        });
        let hooks = [HookPoint::BeforeCall, HookPoint::AfterCall];
        let mut hooks = hooks.into_iter().filter_map(|on| hooks_before(call, on, at));
        let is_refused = hooks.any(|hooks| hooks.verdict == HookVerdict::Refuse);
        self.require(!(is_refused && is_ok), at, Invariant::Hook, || {
            format!("{key} succeeded although hooks have refused the call or its result")
        });
        let is_expired = outcome.kind == Some(FailureKind::ApprovalExpired);
        let is_decided = is_forbidden || notes.duplicate_of.is_some();
        self.require(!is_expired || is_decided, at, Invariant::Approval, || {
            format!("an approval of {key} has expired without a record of the expiry")
        });
    }

    /// Checks that only calls that succeeded write variables, and only what their tool reported.
    fn check_writes(
        &mut self,
        key: CallKey,
        call: &CallTranscript<'a>,
        recorded: &RecordedOutcome<'a>,
    ) {
        let RecordedOutcome { at, outcome, notes, writes, .. } = *recorded;
        if writes.is_empty() {
            return;
        }
        let is_copied = notes.duplicate_of.is_some() || notes.reused;
        let may_write = outcome.status == ToolStatus::Ok && !notes.writes_dropped && !is_copied;
        let reported = call.reports.iter().rfind(|report| report.at.is_before(at));
        let is_reported = reported.is_some_and(|report| report.writes == writes);
        self.require(may_write && is_reported, at, Invariant::Writes, || {
            let what = match may_write {
                true => "that its tool has not reported",
                false => "although it failed, is a copy, or has dropped its writes",
            };
            format!("{key} writes variables {what}")
        });
    }

    /// Checks that a copy has the outcome of an earlier call.
    fn check_copy(
        &mut self,
        attempt: &AttemptTranscript<'a>,
        key: CallKey,
        copy: &RecordedOutcome<'a>,
    ) {
        let Some(of) = copy.notes.duplicate_of else { return };
        let outcomes = attempt.calls.get(&of).into_iter().flat_map(|first| &first.outcomes);
        let original = outcomes.take_while(|outcome| outcome.at.is_before(copy.at)).last();
        let is_same = original.is_some_and(|original| original.outcome == copy.outcome);
        self.require(of < key && is_same, copy.at, Invariant::Outcome, || {
            format!("{key} repeats the outcome of {of}, which has no such outcome")
        });
    }
}

/// Returns the last decision of hooks at a point that was recorded before `at`.
fn hooks_before<'a>(
    call: &CallTranscript<'a>,
    on: HookPoint,
    at: RecordLocation,
) -> Option<&'a HookDecision> {
    let mut recorded = call.hooks.iter();
    let last = recorded.rfind(|hooks| hooks.on == on && hooks.at.is_before(at))?;
    Some(last.decision)
}

/// Returns the first verdict on a call in this phase, if it was recorded before `at`. Later ones do not count.
fn verdict_before(
    call: &CallTranscript<'_>,
    phase: WaitPhase,
    at: RecordLocation,
) -> Option<ApprovalVerdict> {
    let decision = call.decision(phase).filter(|decision| decision.at.is_before(at));
    decision.map(|decision| decision.verdict)
}
