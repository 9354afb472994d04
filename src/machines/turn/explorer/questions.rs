//! Questions of running calls in the explorer: the tool supervisor's part, the invariants, and scenarios.

use serde_json::json;

use super::approvals::decision;
use super::*;
use crate::turn::{ApprovalError, StartedQuestion, StartedWait};
use callsheet_values::types::{Answer, ApprovalVerdict, Question, WaitPhase};

/// The questions of a running call, as its supervisor knows them.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct SupervisedQuestions {
    /// The number of questions of earlier starts.
    before: u32,
    asked: u32,
    is_open: bool,
}

impl SupervisedQuestions {
    pub(super) fn new(before: u32) -> Self {
        Self { before, asked: 0, is_open: false }
    }

    fn number(self) -> u32 {
        self.before + self.asked
    }
}

/// Returns the question of every tool. All are equal, so that only their numbers distinguish them.
fn question() -> Arc<Question> {
    let form = json!({"type": "object", "properties": {"n": {"type": "integer", "default": 1}}});
    Arc::new(Question::form("How many?", form))
}

impl World {
    /// Returns the running calls that may ask another question.
    pub(super) fn may_ask(&self, scenario: &Scenario) -> impl Iterator<Item = CallKey> {
        let questions = self.questions.iter().filter(|(key, questions)| {
            let asks = self.call(**key).call.name.starts_with("asking");
            asks && !questions.is_open && questions.asked < scenario.questions
        });
        questions.map(|(key, _)| *key)
    }

    /// Returns the calls whose tools wait for an answer.
    pub(super) fn asking(&self) -> impl Iterator<Item = CallKey> {
        self.questions.iter().filter(|(_, questions)| questions.is_open).map(|(key, _)| *key)
    }

    /// Returns the number of calls whose question is open for the turn.
    pub(super) fn open_questions(&self) -> usize {
        self.turn.calls.iter().filter(|call| call.has_open_question()).count()
    }

    pub(super) fn supervise_question(&mut self, key: CallKey) -> u32 {
        let questions = self.questions.get_mut(&key).unwrap();
        questions.asked += 1;
        questions.is_open = true;
        questions.number()
    }

    pub(super) fn supervise_withdrawal(&mut self, key: CallKey) -> u32 {
        let questions = self.questions.get_mut(&key).unwrap();
        questions.is_open = false;
        questions.number()
    }

    pub(super) fn ask(&mut self, key: CallKey) {
        let number = self.supervise_question(key);
        self.turn.handle_question(self.now, key, number, question());
    }

    pub(super) fn withdraw_question(&mut self, key: CallKey) {
        let number = self.supervise_withdrawal(key);
        self.turn.handle_question_withdrawn(self.now, key, number);
    }

    /// Returns the started calls with their waits for people.
    pub(super) fn started_calls_with_waits(&self) -> BTreeMap<CallKey, StartedCall> {
        let mut calls = self.started_calls.clone();
        for (key, questions) in self.questions.iter().filter(|(_, questions)| questions.is_open) {
            let asked = StartedQuestion { number: questions.number(), question: question() };
            calls.get_mut(key).unwrap().wait = Some(StartedWait::Question(asked));
        }
        for key in &self.waiting_children {
            calls.get_mut(key).unwrap().wait = Some(StartedWait::Child);
        }
        calls
    }

    /// Checks that an answer to the last question is that of a durable decision. A tool ignores an answer to another
    /// question.
    pub(super) fn receive_answer(&mut self, key: CallKey, number: u32, answer: &Answer) {
        let durable = &self.log[..usize::try_from(self.durable).unwrap()];
        let recorded = self.recorded_decision((key, WaitPhase::Input), durable);
        let is_last = self.questions.get(&key).is_some_and(|asked| asked.number() == number);
        if is_last {
            let expected = match recorded {
                Some(ApprovalVerdict::Approved) => Answer::Accepted(Arc::new(json!({"n": 1}))),
                Some(ApprovalVerdict::Rejected) => Answer::Declined(None),
                Some(ApprovalVerdict::Expired) => Answer::Expired,
                Some(ApprovalVerdict::Withdrawn) | None => {
                    panic!("an answer without a durable decision")
                }
            };
            assert_eq!(*answer, expected, "another answer than was recorded");
        }
        if let Some(questions) = self.questions.get_mut(&key).filter(|_| is_last) {
            questions.is_open = false;
        }
    }

    /// Checks that a question is open for the turn if its tool waits for an answer and no decision is
    /// recorded, and that repeated or other decisions about answered questions change nothing.
    pub(super) fn check_answered_questions(&mut self) {
        let asking: Vec<_> = self.asking().collect();
        for key in asking.iter().filter(|key| self.running.contains(key)) {
            let decided = self.recorded_decision((*key, WaitPhase::Input), &self.log);
            let is_open = self.call(*key).has_open_question();
            assert_eq!(is_open, decided.is_none(), "the question of {key} is lost");
        }
        for call in &self.turn.calls {
            let waits = !call.has_open_question() || asking.contains(&call.key());
            assert!(waits, "a question is open whose tool does not wait for the answer");
        }
        let decided = self.turn.calls.iter().flat_map(|call| {
            let asked = call.questions.iter();
            asked.filter_map(|asked| {
                let verdict = asked.decision.as_ref()?.verdict_with_message.verdict;
                Some((call.key(), verdict, asked.sha256.clone()))
            })
        });
        for (key, verdict, sha256) in decided.collect::<Vec<_>>() {
            let (approve, reject) = (ApprovalVerdict::Approved, ApprovalVerdict::Rejected);
            for given in [approve, reject] {
                let expected =
                    if given == verdict { Ok(()) } else { Err(ApprovalError::Decided(verdict)) };
                let repeated = decision(WaitPhase::Input, given, sha256.clone());
                self.check_repeated(key, repeated, expected);
            }
        }
    }
}

const MIXES: [&[&str]; 6] = [
    &["asking_pure", "effect"],
    &["asking", "asking"],
    &["asking_seal", "pure"],
    &["asking_both"],
    &["asking_pure {}", "asking_pure {}"],
    &["put", "asking_bump"],
];

/// Single calls, which may ask two questions.
const CALLS: [&[&str]; 3] = [&["asking"], &["asking_pure"], &["asking_seal"]];

const PARALLEL: [Execution; 1] = [Execution::Parallel { max: 8 }];

#[test]
fn questions_with_a_cancellation() {
    explore_each(&MIXES, &[Execution::Sequential, PARALLEL[0]], |scenario| {
        scenario.cancel = true;
        scenario.durable_at_once = true;
    });
    explore_each(&CALLS, &PARALLEL, |scenario| {
        scenario.cancel = true;
        scenario.questions = 2;
    });
}

#[test]
fn questions_with_failures_and_timeouts() {
    explore_each(&MIXES, &PARALLEL, |scenario| {
        scenario.durable_at_once = true;
        scenario.timeouts = true;
    });
    explore_each(&CALLS, &PARALLEL, |scenario| {
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    });
}

#[test]
fn questions_with_a_break() {
    explore_each(&MIXES, &PARALLEL, |scenario| {
        scenario.breaks = 1;
        scenario.durable_at_once = true;
        scenario.response.remove(0);
    });
}

#[test]
fn questions_with_a_crash() {
    let mixes: [&[&str]; 2] = [&["asking_idempotent"], &["asking_seal"]];
    explore_each(&mixes, &PARALLEL, |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
        scenario.questions = 2;
    });
}

#[test]
fn questions_with_a_death_of_the_owner() {
    explore_each(&MIXES, &PARALLEL, |scenario| {
        scenario.durable_at_once = true;
        scenario.owner_deaths = 1;
    });
    explore_each(&CALLS, &PARALLEL, |scenario| {
        scenario.owner_deaths = 1;
        scenario.questions = 2;
        scenario.timeouts = true;
        scenario.cancel = true;
    });
}

#[test]
fn questions_with_a_bad_end_of_the_response() {
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        explore_each(&MIXES, &PARALLEL, |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.durable_at_once = true;
        });
    }
}
