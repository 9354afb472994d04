//! People in the loop: what must be true of their questions, and what is tried.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use sha2::{Digest, Sha256};

use super::*;
use crate::turn::{ApprovalDecision, ApprovalError};
use crate::types::{ApprovalPhase, Judgement, Verdict};

/// What is asked about which call.
pub(super) type Question = (CallKey, ApprovalPhase);

fn decision(phase: ApprovalPhase, verdict: Verdict, arguments_sha256: String) -> ApprovalDecision {
    ApprovalDecision {
        phase: Some(phase),
        judgement: Judgement { verdict, message: None },
        arguments_sha256,
    }
}

impl World {
    fn call(&self, key: CallKey) -> &TurnCall {
        self.turn.calls.iter().find(|call| call.key() == key).unwrap()
    }

    pub(super) fn is_reviewed(&self, key: CallKey) -> bool {
        self.call(key).tool.as_ref().is_some_and(|tool| tool.approval.after)
    }

    /// What was said about a question, as far as the journal knows.
    fn said(&self, (key, phase): Question, log: &[Record]) -> Option<Verdict> {
        log.iter().find_map(|record| match record {
            Record::ApprovalGiven { key: k, phase: p, verdict, .. } if (*k, *p) == (key, phase) => {
                Some(*verdict)
            }
            _ => None,
        })
    }

    /// The place of a question in the journal.
    fn place_of(&self, question: Question) -> Option<usize> {
        let is_it = |record: &Record| matches!(record, Record::ApprovalAsked { asked } if (asked.call.key, asked.phase) == question);
        self.log.iter().position(is_it)
    }

    /// When the journal says that a question was asked.
    fn asked_at(&self, question: Question) -> Option<u64> {
        self.place_of(question).map(|place| self.times[place])
    }

    /// Returns whether people are shown a question: not before it is durable.
    pub(super) fn is_shown(&self, question: Question) -> bool {
        self.place_of(question).is_some_and(|place| (place as u64) < self.durable)
    }

    /// Returns whether people had been asked something by the first `kept` records.
    pub(super) fn is_asked(&self, kept: usize) -> bool {
        self.log[..kept].iter().any(|record| matches!(record, Record::ApprovalAsked { .. }))
    }

    /// After a crash: what was asked stands with its time, or that has passed.
    pub(super) fn check_standing(&mut self, for_long: bool) {
        let asked = self.log.iter().filter_map(|record| match record {
            Record::ApprovalAsked { asked } => Some((asked.call.key, asked.phase)),
            _ => None,
        });
        for (key, phase) in asked.collect::<Vec<_>>() {
            let Some(call) = self.turn.calls.iter().find(|call| call.key() == key) else {
                continue;
            };
            let is_open = !self.ended.contains_key(&key)
                && self.said((key, phase), &self.log).is_none()
                && matches!(
                    &self.turn.stage,
                    TurnStage::ResponseEnded {
                        ending: ResponseDisposition::Well,
                        cancelled: None,
                        ..
                    }
                );
            if for_long {
                assert_ne!(
                    call.pending_approval_phase(),
                    Some(phase),
                    "a question outlived its time"
                );
            } else if is_open {
                assert_eq!(call.pending_approval_phase(), Some(phase), "a question is gone");
                let timeout = call.tool.as_ref().unwrap().approval_timeout;
                let passed = self.began - self.asked_at((key, phase)).unwrap();
                let left = timeout.checked_sub(Duration::from_millis(passed));
                let (CallPhase::AwaitingApproval { until }
                | CallPhase::AwaitingReview { until, .. }) = &call.phase
                else {
                    panic!("nothing is asked");
                };
                assert_eq!(*until, left, "people have another time");
                self.questions.insert((key, phase));
            } else if call.pending_approval_phase() == Some(phase) {
                self.questions.insert((key, phase));
            }
        }
    }

    /// What a decision about the call's arguments brings back.
    fn arguments_hash(&self, key: CallKey) -> String {
        let hash = Sha256::digest(self.call(key).call.arguments_text());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn decide(&mut self, (key, phase): Question, verdict: Verdict) {
        let decision = decision(phase, verdict, self.arguments_hash(key));
        let taken = self.turn.handle_approval(self.now, key, decision);
        assert_eq!(taken, Ok(()), "a decision about what was asked was not taken");
    }

    /// A question is asked only where nothing else is in the way of what it is about.
    pub(super) fn check_asked(&self, key: CallKey, phase: ApprovalPhase, rules: &TurnRules) {
        let place = self.turn.calls.iter().position(|call| call.key() == key).unwrap();
        let call = &self.turn.calls[place];
        assert!(!self.running.contains(&key), "asked about a call that runs");
        let asked = self.asked_at((key, phase));
        assert_eq!(asked, None, "asked again");
        let tool = call.tool.as_ref().unwrap();
        if phase == ApprovalPhase::After {
            assert!(tool.approval.after && self.begun.contains(&key), "a review of nothing");
            return;
        }
        assert!(tool.approval.before && self.may_start(call, rules), "asked where none may start");
        assert!(!self.begun.contains(&key) || self.crashes > 0, "asked about a call that ran");
        if let TurnStage::ResponseEnded { ending, .. } = &self.turn.stage {
            assert_eq!(*ending, ResponseDisposition::Well, "asked about a call that will not run");
        }
        for earlier in &self.turn.calls[..place] {
            let unended = earlier.is_kept() && earlier.outcome().is_none();
            let has_ticket = match earlier.phase {
                CallPhase::Open | CallPhase::Sealed => false,
                CallPhase::Ready => self.may_start(earlier, rules),
                _ => true,
            };
            let must_end = rules.execution == Execution::Sequential
                || call.is_exclusive()
                || earlier.is_exclusive();
            let in_the_way = unended && (must_end || !has_ticket);
            assert!(!in_the_way, "{key} is asked about, and could not start");
        }
    }

    pub(super) fn show(&mut self, question: Question) {
        assert!(
            matches!(self.log.last(), Some(Record::ApprovalAsked { asked }) if (asked.call.key, asked.phase) == question),
            "a question was not told right behind its record"
        );
        let call = self.turn.calls.iter().find(|call| call.key() == question.0);
        // A cancel or a break may have come in the same moment.
        if call.and_then(TurnCall::pending_approval_phase) == Some(question.1) {
            assert!(self.questions.insert(question), "a question was told twice");
        }
    }

    /// Nothing runs that people were to let run, and did not.
    pub(super) fn check_allowed(&self, key: CallKey) {
        let call = self.call(key);
        if call.tool.as_ref().is_some_and(|tool| tool.approval.before) {
            let log =
                if call.has_effects() { &self.log[..self.durable as usize] } else { &self.log };
            let said = self.said((key, ApprovalPhase::Before), log);
            assert_eq!(said, Some(Verdict::Approved), "{key} runs, and nobody let it");
        }
    }

    /// What was not let be seen is not seen, though the journal keeps it.
    pub(super) fn check_seen(&self, result: &ToolResult) {
        let key = result.notes.duplicate_of.unwrap_or(result.call.key);
        if result.notes.reused || !self.is_reviewed(key) {
            return;
        }
        let seen = result.outcome.content.contains("answer")
            || result.outcome.kind == Some(FailureKind::ToolError);
        let said = self.said((key, ApprovalPhase::After), &self.log);
        assert!(!seen || said == Some(Verdict::Approved), "{key} is seen, and nobody let it");
        let is_kept =
            |record: &Record| matches!(record, Record::CallReported { key: k, .. } if *k == key);
        if self.reported.contains_key(&key) {
            assert!(self.log.iter().any(is_kept), "the journal lost what {key} answered");
        }
    }

    /// Returns whether only people can bring the turn on.
    fn waits_for_approval(&self) -> bool {
        matches!(self.turn.stage, TurnStage::ResponseEnded { .. })
            && self.turn.calls.iter().any(|call| call.pending_approval_phase().is_some())
            && self.running.is_empty()
            && !self.turn.calls.iter().any(is_begun)
    }

    /// Lets time pass; what passes while people are all that is waited for is not the run's.
    pub(super) fn wait_until(&mut self, now: Duration) {
        if self.waits_for_approval() {
            self.people += now - self.now;
        }
        self.now = now;
    }

    /// After everything that happens: who waits, for what, and until when.
    pub(super) fn check_questions(&mut self, scenario: &Scenario) {
        let stopped =
            matches!(&self.turn.stage, TurnStage::ResponseEnded { cancelled: Some(_), .. });
        for call in &self.turn.calls {
            assert!(
                call.pending_approval_phase().is_none() || !stopped,
                "a question is open after the cancel"
            );
            let over = matches!(&self.turn.stage, TurnStage::ResponseEnded { ending, .. } if *ending != ResponseDisposition::Well);
            let approval_wait_before_resume =
                call.pending_approval_phase() == Some(ApprovalPhase::Before);
            assert!(
                !approval_wait_before_resume || !over,
                "a question about a call that will not run"
            );
            if call.phase == CallPhase::Ready
                && call.waiting_for == Some(crate::event::WaitingFor::Capacity)
                && let Execution::Parallel { max } = scenario.spec.rules.execution
            {
                let begun = self.turn.calls.iter().filter(|call| is_begun(call));
                let places = self.running.len() + begun.count();
                assert_eq!(places, max as usize, "a place is free, and a call waits for one");
            }
        }
        let calls = &self.turn.calls;
        self.questions.retain(|(key, phase)| {
            calls
                .iter()
                .any(|call| call.key() == *key && call.pending_approval_phase() == Some(*phase))
        });
        self.check_clock(scenario);
        let decided = self.log.iter().filter_map(|record| match record {
            Record::ApprovalGiven { key, phase, verdict, .. }
                if self.turn.position(*key).is_some() =>
            {
                Some((*key, *phase, *verdict))
            }
            _ => None,
        });
        for (key, phase, verdict) in decided.collect::<Vec<_>>() {
            let stale = decision(phase, verdict, "0".into());
            self.check_unchanged(key, stale, Err(ApprovalError::Stale));
            let hash = self.arguments_hash(key);
            self.check_unchanged(key, decision(phase, verdict, hash.clone()), Ok(()));
            let other =
                if verdict == Verdict::Approved { Verdict::Rejected } else { Verdict::Approved };
            let refused = Err(ApprovalError::Decided(verdict));
            self.check_unchanged(key, decision(phase, other, hash), refused);
        }
        for (key, phase) in self.questions.clone() {
            let stale = decision(phase, Verdict::Approved, "0".into());
            self.check_unchanged(key, stale, Err(ApprovalError::Stale));
        }
    }

    fn check_unchanged(
        &mut self,
        key: CallKey,
        decision: ApprovalDecision,
        expected: Result<(), ApprovalError>,
    ) {
        let before = self.turn.clone();
        assert_eq!(self.turn.handle_approval(self.now, key, decision), expected);
        assert!(self.turn == before, "a decision that does not count changed something");
    }

    fn check_clock(&self, scenario: &Scenario) {
        let of_calls = self.turn.calls.iter().filter_map(|call| match call.phase {
            CallPhase::Running { deadline } => deadline,
            CallPhase::AwaitingApproval { until } | CallPhase::AwaitingReview { until, .. } => {
                until
            }
            _ => None,
        });
        let counts = self.turn.stage != TurnStage::Finished && !self.waits_for_approval();
        let of_run = scenario.spec.run_time_left.filter(|_| counts).map(|left| left + self.people);
        assert_eq!(self.turn.poll_timeout(), of_calls.chain(of_run).min(), "another deadline");
    }
}

/// Returns whether it has its place of `max`, and its tool was not told to run.
fn is_begun(call: &TurnCall) -> bool {
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
fn four_calls_that_people_are_asked_about() {
    let mixes: [&[&str]; 2] = [
        &["asked", "reviewed", "pure", "both"],
        &["asked_pure", "reviewed_pure", "exclusive", "asked"],
    ];
    each_of(&mixes, &PARALLEL, |scenario| scenario.at_once = true);
}

#[test]
fn questions_and_a_cancel() {
    each_of(&MIXES, &EXECUTIONS, |scenario| {
        scenario.cancel = true;
        scenario.at_once = true;
    });
    each_of(&MIXES[..4], &PARALLEL[1..], |scenario| {
        scenario.cancel = true;
        scenario.response.remove(0);
    });
}

#[test]
fn questions_and_failures_and_every_clock() {
    let clocks = |scenario: &mut Scenario| {
        scenario.at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    };
    each_of(&MIXES, &[Execution::Sequential], clocks);
    each_of(&MIXES[..2], &PARALLEL[..1], clocks);
}

#[test]
fn questions_and_a_break() {
    each_of(&MIXES, &PARALLEL[1..], |scenario| {
        scenario.breaks = 1;
        scenario.at_once = true;
    });
    each_of(&MIXES[3..5], &PARALLEL[1..], |scenario| scenario.breaks = 1);
}

#[test]
fn questions_and_a_crash() {
    each_of(&MIXES, &[Execution::Sequential, PARALLEL[1]], |scenario| {
        scenario.crashes = 1;
        scenario.at_once = true;
    });
}

#[test]
fn questions_a_cancel_and_a_crash_on_two_calls() {
    let mixes: [&[&str]; 4] = [
        &["reviewed {}", "reviewed {}"],
        &["asked", "reviewed"],
        &["both", "asked_pure"],
        &["bump_reviewed", "add_both"],
    ];
    each_of(&mixes, &PARALLEL[1..], |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
        scenario.cancel = true;
    });
}

#[test]
fn questions_and_everything_at_once_on_two_calls() {
    let mixes: [&[&str]; 2] = [&["reviewed_seal", "asked_pure"], &["put", "add_both"]];
    each_of(&mixes, &PARALLEL[1..], |scenario| {
        scenario.breaks = 1;
        scenario.crashes = 1;
        scenario.cancel = true;
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.at_once = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    });
}

#[test]
fn questions_where_the_response_did_not_end_well() {
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        each_of(&MIXES, &PARALLEL[1..], |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.at_once = true;
            scenario.crashes = 1;
        });
    }
}
