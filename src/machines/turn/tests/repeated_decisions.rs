//! Decisions that are sent again: the live turn and its records give the same answers.

use serde_json::{Value, json};

use super::*;
use crate::turn::{ApprovalDecision, ApprovalError, check_repeated_decision};
use callsheet_values::types::{ApprovalVerdict, Question, WaitPhase};

use ApprovalVerdict::{Approved, Rejected};
use WaitPhase::{After, Before, Client, Input};

/// The calls of the turn.
const ASKED: u32 = 0;
const BOTH: u32 = 1;
const REVIEWED: u32 = 2;
const ASKING_BOTH: u32 = 3;
const ASKING: u32 = 4;
const PURE: u32 = 5;

fn form() -> Question {
    let properties = json!({
        "seats": {"type": "integer", "minimum": 1}, "class": {"type": "string", "default": "second"},
    });
    let schema = json!({"type": "object", "properties": properties, "required": ["seats"]});
    Question::form("How many seats?", schema)
}

fn sign_in() -> Question {
    Question::url("Sign in.", "https://example.com/in")
}

fn calls(names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive((0..).zip(names).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.end_well();
    driver
}

fn decision(
    phase: Option<WaitPhase>,
    verdict: ApprovalVerdict,
    sha256: &str,
    content: Option<Value>,
) -> ApprovalDecision {
    let arguments_sha256 = sha256.to_owned();
    ApprovalDecision { phase, verdict, message: None, arguments_sha256, content, author: None }
}

/// Asks the next question of a running call. Returns its hash.
fn ask(driver: &mut Driver, index: u32, number: u32, question: Question) -> String {
    driver.turn.handle_question(driver.now, driver.key(index), number, Arc::new(question));
    driver.perform_effects();
    driver.turn.pending_approval(driver.key(index)).unwrap().arguments_sha256
}

/// Decides what a call waits for.
fn decide(driver: &mut Driver, index: u32, verdict: ApprovalVerdict, content: Option<Value>) {
    let key = driver.key(index);
    let asked = driver.turn.pending_approval(key).unwrap();
    let first = decision(Some(asked.phase), verdict, &asked.arguments_sha256, content);
    assert_eq!(driver.turn.handle_approval(driver.now, key, first), Ok(()));
    driver.perform_effects();
}

fn arguments_sha256(driver: &Driver, index: u32) -> String {
    driver.turn.calls[index as usize].arguments_sha256()
}

/// Sends a decision again, and checks that the turn and its records give the same answer.
#[track_caller]
fn repeat(driver: &mut Driver, index: u32, again: ApprovalDecision) -> Result<(), ApprovalError> {
    let key = driver.key(index);
    let recorded = check_repeated_decision(driver.log.iter(), key, &again);
    let live = driver.turn.handle_approval(driver.now, key, again.clone());
    assert_eq!(live, recorded, "{again:?} about call {index}");
    live
}

/// Sends every decision about every call again.
fn repeat_all(driver: &mut Driver, hashes: &[&str]) {
    let phases = [None, Some(Before), Some(After), Some(Input), Some(Client)];
    let contents = [None, Some(json!({})), Some(json!({"seats": 2})), Some(json!({"seats": 3}))];
    let calls = u32::try_from(driver.turn.calls.len()).unwrap();
    for (index, hash) in (0..calls).flat_map(|index| hashes.iter().map(move |hash| (index, hash))) {
        for (phase, content) in
            phases.iter().flat_map(|phase| contents.iter().map(move |content| (phase, content)))
        {
            for verdict in [Approved, Rejected] {
                let again = decision(*phase, verdict, hash, content.clone());
                // The answers are compared.
                let _ = repeat(driver, index, again);
            }
        }
    }
}

/// Returns a short form of an answer.
fn short(answer: &Result<(), ApprovalError>) -> &'static str {
    match answer {
        Ok(()) => "repeated",
        Err(ApprovalError::NoSuchApproval) => "not asked",
        Err(ApprovalError::Stale) => "stale",
        Err(ApprovalError::Decided(first)) => first.as_str(),
        Err(ApprovalError::WhichPhase) => "which phase",
        Err(ApprovalError::Content(_)) => "content",
    }
}

#[test]
fn the_turn_and_its_records_answer_a_repeated_decision_alike() {
    let mut driver = calls(&["asked", "both", "reviewed", "asking_both", "asking", "pure"]);
    decide(&mut driver, ASKED, Rejected, None);
    decide(&mut driver, BOTH, Approved, None);
    driver.finish_call(BOTH, "");
    decide(&mut driver, BOTH, Approved, None);
    // The first request of the call is a question.
    let first = ask(&mut driver, REVIEWED, 1, sign_in());
    decide(&mut driver, REVIEWED, Approved, None);
    driver.finish_call(REVIEWED, "");
    decide(&mut driver, ASKING_BOTH, Approved, None);
    let seats = ask(&mut driver, ASKING_BOTH, 1, form());
    decide(&mut driver, ASKING_BOTH, Approved, Some(json!({"seats": 2})));
    let withdrawn = ask(&mut driver, ASKING_BOTH, 2, sign_in());
    driver.turn.handle_question_withdrawn(driver.now, driver.key(ASKING_BOTH), 2);
    driver.perform_effects();
    driver.finish_call(ASKING_BOTH, "");
    decide(&mut driver, ASKING_BOTH, Rejected, None);
    let declined = ask(&mut driver, ASKING, 1, sign_in());
    decide(&mut driver, ASKING, Rejected, None);
    driver.finish_call(ASKING, "").finish_call(PURE, "");
    // The review of a call expires.
    driver.now = Duration::from_secs(24 * 60 * 60);
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    driver.assert_end(&TurnEnd::Finished);

    let arguments: Vec<String> = (ASKED..=PURE).map(|n| arguments_sha256(&driver, n)).collect();
    let of = |call: u32| arguments[call as usize].as_str();
    let [first, seats, withdrawn, declined] =
        [&first, &seats, &withdrawn, &declined].map(String::as_str);
    let two_seats = || Some(json!({"seats": 2}));
    let table = [
        (ASKED, None, Rejected, of(ASKED), None, "repeated"),
        (ASKED, Some(Before), Rejected, of(ASKED), None, "repeated"),
        (ASKED, None, Approved, of(ASKED), None, "rejected"),
        (ASKED, Some(After), Rejected, of(ASKED), None, "not asked"),
        (ASKED, Some(Input), Rejected, of(ASKED), None, "not asked"),
        (ASKED, Some(Client), Rejected, of(ASKED), None, "not asked"),
        (ASKED, None, Rejected, "00", None, "stale"),
        (ASKED, None, Approved, "00", None, "stale"),
        (ASKED, None, Rejected, of(ASKED), Some(json!({})), "content"),
        (BOTH, None, Approved, of(BOTH), None, "repeated"),
        (BOTH, Some(Before), Rejected, of(BOTH), None, "approved"),
        (REVIEWED, None, Approved, of(REVIEWED), None, "expired"),
        (REVIEWED, Some(After), Rejected, of(REVIEWED), None, "expired"),
        (REVIEWED, Some(After), Approved, first, None, "stale"),
        (REVIEWED, Some(Before), Approved, of(REVIEWED), None, "not asked"),
        (REVIEWED, None, Approved, first, None, "repeated"),
        (ASKING_BOTH, None, Approved, seats, two_seats(), "repeated"),
        (ASKING_BOTH, Some(Input), Approved, seats, two_seats(), "repeated"),
        (ASKING_BOTH, Some(Before), Approved, seats, two_seats(), "stale"),
        (ASKING_BOTH, None, Approved, seats, Some(json!({"seats": 3})), "approved"),
        (ASKING_BOTH, None, Approved, seats, None, "content"),
        (ASKING_BOTH, None, Rejected, seats, None, "approved"),
        (ASKING_BOTH, None, Approved, withdrawn, None, "withdrawn"),
        (ASKING_BOTH, Some(Input), Approved, "00", None, "stale"),
        (ASKING_BOTH, Some(Before), Approved, of(ASKING_BOTH), None, "repeated"),
        (ASKING_BOTH, None, Rejected, of(ASKING_BOTH), None, "repeated"),
        (ASKING_BOTH, None, Approved, of(ASKING_BOTH), None, "rejected"),
        (ASKING, None, Rejected, declined, None, "repeated"),
        (ASKING, None, Rejected, of(ASKING), None, "not asked"),
        (PURE, None, Approved, of(PURE), Some(json!({})), "not asked"),
        (PURE, Some(Input), Approved, of(PURE), None, "not asked"),
    ];
    for (index, phase, verdict, hash, content, expected) in table {
        let again = decision(phase, verdict, hash, content);
        let answer = repeat(&mut driver, index, again.clone());
        assert_eq!(short(&answer), expected, "{again:?} about call {index}");
    }
    let mut hashes: Vec<&str> = arguments.iter().map(String::as_str).collect();
    hashes.extend([first, seats, withdrawn, declined, "00"]);
    repeat_all(&mut driver, &hashes);
}

#[test]
fn what_a_cancellation_has_ended_is_not_decided_again() {
    let mut driver = calls(&["asked", "asking_both", "reviewed"]);
    decide(&mut driver, 1, Approved, None);
    let asked = ask(&mut driver, 1, 1, sign_in());
    driver.finish_call(2, "").cancel();
    let arguments: Vec<String> = (0..3).map(|n| arguments_sha256(&driver, n)).collect();
    let table = [
        (0, None, Approved, &arguments[0], "not asked"),
        (1, None, Approved, &arguments[1], "repeated"),
        (1, None, Approved, &asked, "not asked"),
        (1, Some(Input), Approved, &asked, "not asked"),
        (1, Some(Input), Approved, &arguments[1], "stale"),
        (2, Some(After), Approved, &arguments[2], "not asked"),
    ];
    for (index, phase, verdict, hash, expected) in table {
        let again = decision(phase, verdict, hash, None);
        let answer = repeat(&mut driver, index, again.clone());
        assert_eq!(short(&answer), expected, "{again:?} about call {index}");
    }
    let mut hashes: Vec<&str> = arguments.iter().map(String::as_str).collect();
    hashes.extend([asked.as_str(), "00"]);
    repeat_all(&mut driver, &hashes);
}
