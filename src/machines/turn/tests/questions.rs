//! Questions of running calls: answers, forms, clocks, expiry, withdrawal, and the replacement of the owner.

use serde_json::{Value, json};

use super::started_calls::replace_owner;
use super::*;
use crate::turn::{ApprovalDecision, ApprovalError};
use callsheet_values::event::ApprovalRequest;
use callsheet_values::types::{ApprovalVerdict, Question, WaitPhase};

use ApprovalVerdict::{Approved, Expired, Rejected, Withdrawn};

fn seats() -> Question {
    let properties = json!({
        "seats": {"type": "integer", "minimum": 1}, "class": {"type": "string", "default": "second"},
    });
    Question::form(
        "How many seats?",
        json!({"type": "object", "properties": properties, "required": ["seats"]}),
    )
}

impl Driver {
    fn ask(&mut self, index: u32, number: u32, question: Question) -> &mut Self {
        self.turn.handle_question(self.now, self.key(index), number, Arc::new(question));
        self.perform_effects();
        self
    }

    fn question(&self, index: u32) -> ApprovalRequest {
        let request = self.turn.pending_approval(self.key(index)).expect("a question is open");
        assert_eq!(request.phase, WaitPhase::Input);
        request
    }

    fn answer(
        &mut self,
        asked: &ApprovalRequest,
        verdict: ApprovalVerdict,
        content: Option<Value>,
    ) -> Result<(), ApprovalError> {
        let decision = ApprovalDecision {
            phase: None,
            verdict,
            message: None,
            arguments_sha256: asked.arguments_sha256.clone(),
            content,
            author: None,
        };
        let decided = self.turn.handle_approval(self.now, asked.call.key, decision);
        self.perform_effects();
        decided
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self.turn.handle_timeout(self.now);
        self.perform_effects();
        self
    }

    fn verdicts(&self) -> Vec<ApprovalVerdict> {
        let given = self.log.iter().filter_map(|record| match record {
            Record::ApprovalGiven { phase: WaitPhase::Input, verdict, .. } => Some(*verdict),
            _ => None,
        });
        given.collect()
    }
}

fn asking(names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive((0..).zip(names).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.end_well();
    driver
}

fn accepted(content: Value) -> Answer {
    Answer::Accepted(Arc::new(content))
}

#[test]
fn an_answer_has_the_defaults_of_the_form_and_reaches_the_tool() {
    let mut driver = asking(&["asking"]);
    let asked = driver.ask(0, 1, seats()).question(0);
    assert_eq!(asked.question.as_deref(), Some(&seats()));
    assert_eq!(driver.answer(&asked, Approved, Some(json!({"seats": 2}))), Ok(()));
    let content = json!({"seats": 2, "class": "second"});
    assert_eq!(driver.answers, [(0, 1, accepted(content.clone()))]);
    driver.finish_call(0, "booked").assert_results(&[("asking", OK, None, "booked")]);
    let recorded = driver.log.iter().find_map(|record| match record {
        Record::ApprovalGiven { content, .. } => content.clone(),
        _ => None,
    });
    assert_eq!(recorded.as_deref(), Some(&content));
}

#[test]
fn an_answer_that_does_not_fit_leaves_the_question_open() {
    let mut driver = asking(&["asking"]);
    let asked = driver.ask(0, 1, seats()).question(0);
    let mut refused = |verdict, content| match driver.answer(&asked, verdict, content) {
        Err(ApprovalError::Content(message)) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(Approved, None),
        "content is missing: send an object that fits the form, such as \"content\": \
         {\"class\":\"<string>\",\"seats\":\"<integer>\"}"
    );
    assert_eq!(
        refused(Approved, Some(json!({"seats": "two"}))),
        "content does not fit the form: /seats: \"two\" is not of type \"integer\""
    );
    assert_eq!(
        refused(Approved, Some(json!({}))),
        "content does not fit the form: \"seats\" is a required property"
    );
    assert_eq!(refused(Approved, Some(json!(2))), "content must be an object that fits the form");
    let rejection = refused(Rejected, Some(json!({"seats": 2})));
    assert_eq!(rejection, "content: only an approval has one, not a rejection");
    assert_eq!((driver.answers.len(), driver.verdicts()), (0, vec![]));
    driver.question(0);
}

#[test]
fn each_question_of_a_call_is_another_one() {
    let mut driver = asking(&["asking"]);
    let first = driver.ask(0, 1, Question::url("Sign in.", "https://example.com/a")).question(0);
    let with_content = driver.answer(&first, Approved, Some(json!({})));
    let message = "content: a question with a url has none".to_owned();
    assert_eq!(with_content, Err(ApprovalError::Content(message)));
    assert_eq!(driver.answer(&first, Approved, None), Ok(()));
    let second = driver.ask(0, 2, Question::url("Sign in.", "https://example.com/a")).question(0);
    assert_ne!(first.arguments_sha256, second.arguments_sha256);
    // The first answer again has no effect, and another one is refused.
    assert_eq!(driver.answer(&first, Approved, None), Ok(()));
    assert_eq!(driver.answer(&first, Rejected, None), Err(ApprovalError::Decided(Approved)));
    let arguments = ApprovalRequest { arguments_sha256: "00".to_owned(), ..first };
    assert_eq!(driver.answer(&arguments, Approved, None), Err(ApprovalError::Stale));
    assert_eq!(driver.answer(&second, Rejected, None), Ok(()));
    let answers = [(0, 1, accepted(Value::Null)), (0, 2, Answer::Declined(None))];
    assert_eq!(driver.answers, answers);
}

#[test]
fn the_clock_of_a_tool_stands_still_while_its_question_is_open() {
    let mut driver = asking(&["asking"]);
    driver.at(10).ask(0, 1, seats());
    // The timeout of the tool is 30 s, that of the question a day.
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(10 + 24 * 3600)));
    assert!(driver.turn.waits_only_for_people());
    let asked = driver.at(1000).question(0);
    assert_eq!(driver.answer(&asked, Rejected, None), Ok(()));
    assert!(!driver.turn.waits_only_for_people());
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(1020)));
    driver.at(1005).finish_call(0, "done");
    let commit = driver.commit.as_ref().unwrap();
    assert_eq!(commit.results[0].duration, Duration::from_secs(15));
    let times = &commit.times;
    let in_seconds = (times.people.as_secs(), times.tools.as_secs(), times.tools_sum.as_secs());
    assert_eq!(in_seconds, (990, 15, 15));
    assert!(driver.aborted.is_empty());
}

#[test]
fn a_tool_that_works_after_its_question_times_out_with_the_time_that_it_has_used() {
    let mut driver = asking(&["asking"]);
    let asked = driver.at(10).ask(0, 1, seats()).at(100).question(0);
    assert_eq!(driver.answer(&asked, Rejected, None), Ok(()));
    driver.at(120);
    assert_eq!(driver.aborted, [0]);
    assert_eq!(driver.reached_limits()[0].1, 30_000);
}

#[test]
fn a_question_without_an_answer_expires_and_the_call_goes_on() {
    let mut driver = asking(&["asking"]);
    driver.ask(0, 1, seats()).at(24 * 3600);
    assert_eq!(
        (driver.verdicts(), &*driver.answers),
        (vec![Expired], &[(0, 1, Answer::Expired)][..])
    );
    driver.finish_call(0, "nobody answered");
    driver.assert_results(&[("asking", OK, None, "nobody answered")]);
}

#[test]
fn a_withdrawn_question_lets_the_clock_go_on_and_takes_no_answer() {
    let mut driver = asking(&["asking"]);
    let asked = driver.ask(0, 1, seats()).question(0);
    driver.now = Duration::from_secs(50);
    driver.turn.handle_question_withdrawn(driver.now, asked.call.key, 1);
    driver.perform_effects();
    assert_eq!((driver.verdicts(), driver.answers.len()), (vec![Withdrawn], 0));
    let late = driver.answer(&asked, Approved, Some(json!({"seats": 1})));
    assert_eq!(late, Err(ApprovalError::Decided(Withdrawn)));
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(80)));
}

#[test]
fn a_cancelled_call_has_no_question() {
    let mut driver = asking(&["asking"]);
    let asked = driver.ask(0, 1, seats()).question(0);
    driver.turn.handle_cancel(driver.now, CancelReason::Stop);
    driver.perform_effects();
    assert_eq!((&*driver.aborted, driver.answers.len()), (&[0][..], 0));
    assert_eq!(driver.answer(&asked, Rejected, None), Err(ApprovalError::NoSuchApproval));
    let late = Arc::new(seats());
    driver.turn.handle_question(driver.now, asked.call.key, 2, late);
    assert_eq!(driver.turn.poll(), None);
}

#[test]
fn another_owner_continues_the_open_question() {
    let mut driver = asking(&["asking"]);
    let asked = driver.ask(0, 1, seats()).question(0);
    replace_owner(&mut driver, Duration::from_secs(7), None);
    assert_eq!(driver.question(0), asked);
    assert_eq!(driver.answer(&asked, Rejected, None), Ok(()));
    assert_eq!(driver.answers, [(0, 1, Answer::Declined(None))]);
    // The tool has 23 of its 30 seconds left.
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(23)));
    let requests = driver.log.iter().filter(|r| matches!(r, Record::ApprovalAsked { .. }));
    assert_eq!(requests.count(), 1, "it was asked twice");
}

#[test]
fn a_call_that_runs_again_after_a_crash_asks_another_question() {
    let mut driver = asking(&["asking_idempotent"]);
    let asked = driver.ask(0, 1, seats()).question(0);
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    let spec = driver.turn.spec.as_ref().clone();
    driver.turn = Turn::resume(spec, &entries(0, &log), 0, None);
    driver.records = 0;
    driver.perform_effects();
    assert_eq!(driver.answer(&asked, Rejected, None), Err(ApprovalError::NoSuchApproval));
    let again = driver.ask(0, 2, seats()).question(0);
    assert_ne!(again.arguments_sha256, asked.arguments_sha256);
    assert_eq!(driver.answer(&asked, Rejected, None), Err(ApprovalError::NoSuchApproval));
    assert_eq!(driver.answer(&again, Rejected, None), Ok(()));
}
