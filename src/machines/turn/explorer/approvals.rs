//! Approvals in the explorer: their invariants and scenarios.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use sha2::{Digest, Sha256};

use super::*;
use crate::turn::{ApprovalDecision, ApprovalError, check_repeated_decision};
use callsheet_values::types::{ApprovalVerdict, ResultNotes, WaitPhase};

/// A call and the phase of its approval.
pub(super) type ApprovalId = (CallKey, WaitPhase);

pub(super) fn decision(
    phase: WaitPhase,
    verdict: ApprovalVerdict,
    arguments_sha256: String,
) -> ApprovalDecision {
    let is_answer = phase == WaitPhase::Input && verdict == ApprovalVerdict::Approved;
    ApprovalDecision {
        content: is_answer.then(|| serde_json::json!({})),
        phase: Some(phase),
        verdict,
        message: None,
        arguments_sha256,
        author: None,
    }
}

impl World {
    pub(super) fn call(&self, key: CallKey) -> &TurnCall {
        self.turn.calls.iter().find(|call| call.key() == key).unwrap()
    }

    pub(super) fn is_reviewed(&self, key: CallKey) -> bool {
        let call = self.call(key);
        let is_reviewed = call.tool.as_ref().is_some_and(|tool| tool.approval.after);
        is_reviewed || call.hook_requires_result_approval()
    }

    /// Returns the recorded decision of an approval.
    pub(super) fn recorded_decision(
        &self,
        (key, phase): ApprovalId,
        log: &[Record],
    ) -> Option<ApprovalVerdict> {
        // A call may have several questions, of which the last one is meant.
        let is_input = phase == WaitPhase::Input;
        let from = self.request_index((key, phase)).filter(|_| is_input).unwrap_or(0);
        log.iter().skip(from).find_map(|record| match record {
            Record::ApprovalGiven { key: k, phase: p, verdict, .. } if (*k, *p) == (key, phase) => {
                Some(*verdict)
            }
            _ => None,
        })
    }

    /// Returns the index of the recorded request for an approval.
    fn request_index(&self, approval: ApprovalId) -> Option<usize> {
        let is_request = |record: &Record| matches!(record, Record::ApprovalAsked { request } if (request.call.key, request.phase) == approval);
        match approval.1 {
            WaitPhase::Input => self.log.iter().rposition(is_request),
            WaitPhase::Before | WaitPhase::After | WaitPhase::Client => {
                self.log.iter().position(is_request)
            }
        }
    }

    /// Returns the Unix time of the recorded request for an approval, in milliseconds.
    fn requested_at(&self, approval: ApprovalId) -> Option<u64> {
        self.request_index(approval).map(|index| self.record_times[index])
    }

    /// Returns whether the request for an approval is durable. Clients do not see it before that.
    pub(super) fn is_request_durable(&self, approval: ApprovalId) -> bool {
        self.request_index(approval).is_some_and(|index| (index as u64) < self.durable)
    }

    /// Returns whether the first `kept` records contain the request for an approval.
    pub(super) fn has_approval_request(&self, kept: usize) -> bool {
        self.log[..kept].iter().any(|record| matches!(record, Record::ApprovalAsked { .. }))
    }

    /// Checks after a resume that requested approvals are pending with their deadlines, or have
    /// expired.
    pub(super) fn check_pending_after_resume(&mut self, is_long: bool) {
        let request = self.log.iter().filter_map(|record| match record {
            Record::ApprovalAsked { request } if request.phase != WaitPhase::Input => {
                Some((request.call.key, request.phase))
            }
            _ => None,
        });
        for (key, phase) in request.collect::<Vec<_>>() {
            let Some(call) = self.turn.calls.iter().find(|call| call.key() == key) else {
                continue;
            };
            // Calls are admitted in call order. Some wait until the values of their references are read again, or
            // until hooks decide.
            let mut admitted_first = self.turn.calls.iter().filter(|call| call.key() <= key);
            let waits_for_admission = admitted_first.any(|call| {
                let waits = [CallPhase::AwaitingReferences, CallPhase::AwaitingHooks];
                waits.contains(&call.phase)
            });
            let is_answered = phase == WaitPhase::Client && self.is_reported(key);
            let is_open = !waits_for_admission
                && !self.outcomes.contains_key(&key)
                && self.recorded_decision((key, phase), &self.log).is_none()
                && !is_answered
                && matches!(
                    &self.turn.stage,
                    TurnStage::ResponseEnded {
                        ending: ResponseEnding::Complete,
                        cancelled: None,
                        ..
                    }
                );
            if is_long {
                assert_ne!(call.pending_wait_phase(), Some(phase), "an approval did not expire");
            } else if is_open {
                assert_eq!(call.pending_wait_phase(), Some(phase), "a pending approval is gone");
                let timeout = call.tool.as_ref().unwrap().approval_timeout;
                let passed = self.start_ms - self.requested_at((key, phase)).unwrap();
                let left = timeout.checked_sub(Duration::from_millis(passed));
                let (CallPhase::AwaitingApproval { until }
                | CallPhase::AwaitingClient { until }
                | CallPhase::AwaitingReview { until, .. }) = &call.phase
                else {
                    panic!("no approval is pending");
                };
                assert_eq!(*until, left, "the approval has another deadline");
                if phase != WaitPhase::Client {
                    self.pending_approvals.insert((key, phase));
                }
            } else if call.pending_wait_phase() == Some(phase) && phase != WaitPhase::Client {
                self.pending_approvals.insert((key, phase));
            }
        }
    }

    /// Returns the hash that a decision about the call's arguments must have, or that about its question.
    fn decision_hash(&self, (key, phase): ApprovalId) -> String {
        if phase == WaitPhase::Input {
            return self.turn.pending_approval(key).unwrap().arguments_sha256;
        }
        let hash = Sha256::digest(self.call(key).call.arguments_text());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn decide(&mut self, (key, phase): ApprovalId, verdict: ApprovalVerdict) {
        let decision = decision(phase, verdict, self.decision_hash((key, phase)));
        let applied = self.turn.handle_approval(self.now, key, decision);
        assert_eq!(applied, Ok(()), "a decision of a pending approval was refused");
    }

    /// Checks the time of a request: for the approval to start, when nothing else keeps the call from starting.
    pub(super) fn check_approval_request(&self, key: CallKey, phase: WaitPhase, rules: &RunRules) {
        let index = self.turn.calls.iter().position(|call| call.key() == key).unwrap();
        let call = &self.turn.calls[index];
        if phase == WaitPhase::Input {
            assert!(self.running.contains(&key), "a question of a call that does not run");
            return;
        }
        if phase == WaitPhase::Client {
            self.check_handed(key, rules);
            return;
        }
        assert!(!self.running.contains(&key), "an approval of a running call");
        let requested = self.requested_at((key, phase));
        assert_eq!(requested, None, "an approval was requested twice");
        let tool = call.tool.as_ref().unwrap();
        if phase == WaitPhase::After {
            assert!(
                self.is_reviewed(key) && self.ever_started.contains(&key),
                "a review without a result"
            );
            return;
        }
        assert!(
            (tool.asks_before() || call.hook_requires_start_approval())
                && self.may_start(call, rules),
            "an approval of a call that may not start"
        );
        assert!(
            !self.ever_started.contains(&key) || self.crashes > 0,
            "an approval of a call that has run"
        );
        if let TurnStage::ResponseEnded { ending, .. } = &self.turn.stage {
            assert_eq!(
                *ending,
                ResponseEnding::Complete,
                "an approval of a call that will not run"
            );
        }
        for earlier in &self.turn.calls[..index] {
            let unended = earlier.is_kept() && earlier.outcome().is_none();
            let has_ticket = match earlier.phase {
                CallPhase::Open | CallPhase::Sealed => false,
                CallPhase::Ready => self.may_start(earlier, rules),
                _ => true,
            };
            let must_end = rules.execution == Execution::Sequential
                || call.is_exclusive()
                || earlier.is_exclusive();
            let is_obstacle = unended && (must_end || !has_ticket);
            assert!(
                !is_obstacle,
                "the approval of {key} is requested, but the call could not start"
            );
        }
    }

    pub(super) fn add_pending_approval(&mut self, approval: ApprovalId) {
        let call = self.turn.calls.iter().find(|call| call.key() == approval.0);
        // A cancellation or a break may follow in the same batch of effects.
        if call.and_then(TurnCall::pending_wait_phase) == Some(approval.1) {
            assert!(self.pending_approvals.insert(approval), "an approval was requested twice");
        }
    }

    /// Checks that a call which needs an approval runs only after it is approved.
    pub(super) fn check_start_approved(&self, key: CallKey) {
        let call = self.call(key);
        let is_asked = call.tool.as_ref().is_some_and(|tool| tool.asks_before());
        if is_asked || call.hook_requires_start_approval() {
            let log =
                if call.has_effects() { &self.log[..self.durable as usize] } else { &self.log };
            let decision = self.recorded_decision((key, WaitPhase::Before), log);
            assert_eq!(
                decision,
                Some(ApprovalVerdict::Approved),
                "{key} runs without its approval"
            );
        }
    }

    /// Checks that a result which needs a review is published only after it is approved, and that the journal has the
    /// answer of the tool.
    pub(super) fn check_review(&self, of: CallKey, outcome: &ToolOutcome, notes: &ResultNotes) {
        let key = notes.duplicate_of.unwrap_or(of);
        if notes.reused || !self.is_reviewed(key) {
            return;
        }
        let is_visible =
            outcome.content.contains("answer") || outcome.kind == Some(FailureKind::ToolError);
        let decision = self.recorded_decision((key, WaitPhase::After), &self.log);
        assert!(
            !is_visible || decision == Some(ApprovalVerdict::Approved),
            "{key} has no approved result"
        );
        let is_kept =
            |record: &Record| matches!(record, Record::CallReported { key: k, .. } if *k == key);
        if self.tool_outcomes.contains_key(&key) {
            assert!(self.log.iter().any(is_kept), "the journal lost the answer of {key}");
        }
    }

    /// Returns whether the turn waits only for people.
    fn waits_for_people(&self) -> bool {
        matches!(self.turn.stage, TurnStage::ResponseEnded { .. })
            && (self.turn.calls.iter().any(|call| call.pending_wait_phase().is_some())
                || !self.waiting_children.is_empty())
            && self.running.len() == self.open_questions() + self.waiting_children.len()
            && self.awaiting_hooks.is_empty()
            && !self.turn.calls.iter().any(|call| call.phase == CallPhase::AwaitingReferences)
            && !self.turn.calls.iter().any(awaits_start)
    }

    /// Advances the time. Adds it to the approval wait if the turn waits only for people.
    pub(super) fn advance_to(&mut self, now: Duration) {
        if self.waits_for_people() {
            self.approval_wait += now - self.now;
        }
        self.now = now;
    }

    /// Checks the pending approvals after every action, and that repeated or stale decisions change
    /// nothing.
    pub(super) fn check_pending_approvals(&mut self, scenario: &Scenario) {
        // An approval that was requested before the resume may have waited for the admission of its call.
        let is_old = |index: usize| (index as u64) < self.records_before_resume;
        let is_old = |approval: &ApprovalId| self.request_index(*approval).is_some_and(is_old);
        let old = self.turn.pending_approvals().filter(is_old);
        let old: Vec<_> = old.filter(|(_, phase)| *phase != WaitPhase::Client).collect();
        self.pending_approvals.extend(old);
        let stopped =
            matches!(&self.turn.stage, TurnStage::ResponseEnded { cancelled: Some(_), .. });
        for call in &self.turn.calls {
            assert!(
                call.pending_wait_phase().is_none() || !stopped,
                "an approval is pending after the cancellation"
            );
            let over = matches!(&self.turn.stage, TurnStage::ResponseEnded { ending, .. } if *ending != ResponseEnding::Complete);
            let is_before_start = call.pending_wait_phase() == Some(WaitPhase::Before);
            assert!(!is_before_start || !over, "an approval of a call that will not run");
            if call.phase == CallPhase::Ready
                && call.waiting_for == Some(callsheet_values::event::WaitingFor::Capacity)
                && let Execution::Parallel { max } = scenario.spec.rules.execution
            {
                let awaiting_start = self.turn.calls.iter().filter(|call| awaits_start(call));
                let permits = self.running.len() + awaiting_start.count();
                assert_eq!(permits, max as usize, "a permit is free, and a call waits for one");
            }
        }
        let calls = &self.turn.calls;
        self.pending_approvals.retain(|(key, phase)| {
            calls.iter().any(|call| call.key() == *key && call.pending_wait_phase() == Some(*phase))
        });
        self.check_deadlines(scenario);
        let decided = self.log.iter().filter_map(|record| match record {
            Record::ApprovalGiven { key, phase, verdict, .. }
                if self.turn.position(*key).is_some() && *phase != WaitPhase::Input =>
            {
                Some((*key, *phase, *verdict))
            }
            _ => None,
        });
        for (key, phase, verdict) in decided.collect::<Vec<_>>() {
            let stale = decision(phase, verdict, "0".into());
            self.check_repeated(key, stale, Err(ApprovalError::Stale));
            let hash = self.decision_hash((key, phase));
            self.check_repeated(key, decision(phase, verdict, hash.clone()), Ok(()));
            let other = if verdict == ApprovalVerdict::Approved {
                ApprovalVerdict::Rejected
            } else {
                ApprovalVerdict::Approved
            };
            let refused = Err(ApprovalError::Decided(verdict));
            self.check_repeated(key, decision(phase, other, hash), refused);
        }
        self.check_answered_questions();
        self.check_waiting_children();
        for (key, phase) in self.pending_approvals.clone() {
            let stale = decision(phase, ApprovalVerdict::Approved, "0".into());
            self.check_unchanged(key, stale, Err(ApprovalError::Stale));
        }
    }

    /// Checks that a decision about what is decided already gets this answer from the turn and from its records.
    pub(super) fn check_repeated(
        &mut self,
        key: CallKey,
        decision: ApprovalDecision,
        expected: Result<(), ApprovalError>,
    ) {
        let recorded = check_repeated_decision(&self.log, key, &decision);
        assert_eq!(recorded, expected, "the records give another answer than the turn");
        self.check_unchanged(key, decision, expected);
    }

    fn check_unchanged(
        &mut self,
        key: CallKey,
        decision: ApprovalDecision,
        expected: Result<(), ApprovalError>,
    ) {
        let before = self.turn.clone();
        assert_eq!(self.turn.handle_approval(self.now, key, decision), expected);
        assert!(self.turn == before, "a refused or repeated decision changed the turn");
    }

    fn check_deadlines(&self, scenario: &Scenario) {
        let of_calls = self.turn.calls.iter().filter_map(|call| match call.phase {
            CallPhase::Running { wait: Some(wait), .. } => wait.expires_at(),
            CallPhase::Running { deadline, wait: None } => deadline,
            CallPhase::AwaitingApproval { until }
            | CallPhase::AwaitingClient { until }
            | CallPhase::AwaitingReview { until, .. } => until,
            _ => None,
        });
        let is_open = self.turn.stage != TurnStage::Finished && !self.turn.is_cancelled();
        let counts = is_open && !self.waits_for_people();
        let of_run =
            scenario.spec.run_time_left.filter(|_| counts).map(|left| left + self.approval_wait);
        assert_eq!(self.turn.poll_timeout(), of_calls.chain(of_run).min(), "another deadline");
    }
}

/// Returns whether the call holds a permit of the turn and does not run yet.
fn awaits_start(call: &TurnCall) -> bool {
    matches!(call.phase, CallPhase::AwaitingPermit { .. } | CallPhase::Intended)
}

const MIXES: [&[&str]; 7] = [
    &["asked_pure", "effect", "asked"],
    &["pure", "both", "pure"],
    &["reviewed", "exclusive", "asked_pure"],
    &["reviewed_seal", "reviewed_pure", "effect"],
    &["asked {}", "pure", "asked {}"],
    &["reviewed {}", "reviewed_pure", "reviewed {}"],
    &["add_both", "bump_reviewed", "get_asked"],
];

const PARALLEL: [Execution; 2] = [Execution::Parallel { max: 1 }, Execution::Parallel { max: 8 }];

#[test]
fn four_calls_with_approvals() {
    let mixes: [&[&str]; 2] = [
        &["asked", "reviewed", "pure", "both"],
        &["asked_pure", "reviewed_pure", "exclusive", "asked"],
    ];
    explore_each(&mixes, &PARALLEL, |scenario| scenario.durable_at_once = true);
}

#[test]
fn approvals_with_a_cancellation() {
    explore_each(&MIXES, &EXECUTIONS, |scenario| {
        scenario.cancel = true;
        scenario.durable_at_once = true;
    });
    explore_each(&MIXES[..4], &PARALLEL[1..], |scenario| {
        scenario.cancel = true;
        scenario.response.remove(0);
    });
}

#[test]
fn approvals_with_failures_and_timeouts() {
    let clocks = |scenario: &mut Scenario| {
        scenario.durable_at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    };
    explore_each(&MIXES, &[Execution::Sequential], clocks);
    explore_each(&MIXES[..2], &PARALLEL[..1], clocks);
}

#[test]
fn approvals_with_a_break() {
    explore_each(&MIXES, &PARALLEL[1..], |scenario| {
        scenario.breaks = 1;
        scenario.durable_at_once = true;
    });
    explore_each(&MIXES[3..5], &PARALLEL[1..], |scenario| scenario.breaks = 1);
}

#[test]
fn approvals_with_a_crash() {
    explore_each(&MIXES, &[Execution::Sequential, PARALLEL[1]], |scenario| {
        scenario.crashes = 1;
        scenario.durable_at_once = true;
    });
}

#[test]
fn approvals_of_two_calls_with_a_cancellation_and_a_crash() {
    let mixes: [&[&str]; 4] = [
        &["reviewed {}", "reviewed {}"],
        &["asked", "reviewed"],
        &["both", "asked_pure"],
        &["bump_reviewed", "add_both"],
    ];
    explore_each(&mixes, &PARALLEL[1..], |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
        scenario.cancel = true;
    });
}

#[test]
fn approvals_of_two_calls_with_all_actions() {
    let mixes: [&[&str]; 2] = [&["reviewed_seal", "asked_pure"], &["put", "add_both"]];
    explore_each(&mixes, &PARALLEL[1..], |scenario| {
        scenario.breaks = 1;
        scenario.crashes = 1;
        scenario.cancel = true;
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.durable_at_once = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    });
}

#[test]
fn approvals_with_a_bad_end_of_the_response() {
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        explore_each(&MIXES, &PARALLEL[1..], |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.durable_at_once = true;
            scenario.crashes = 1;
        });
    }
}
