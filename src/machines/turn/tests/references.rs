//! References in the arguments of calls.

use serde_json::{Value, json};

use super::*;
use crate::context::ReferenceValues;
use crate::turn::ApprovalDecision;
use callsheet_values::event::StatsReport;
use callsheet_values::types::{ApprovalVerdict, ReferenceError, ReferencedValue, RunEnd, RunId};

/// Returns the records of the run `run_7` with this answer.
fn run_records(answer: &str) -> Vec<Record> {
    let run_id = RunId("run_7".into());
    let started = Record::RunStarted {
        run_id: run_id.clone(),
        input: "go".into(),
        overrides: Arc::default(),
        model: "m".to_owned(),
        execution: PARALLEL,
        request: None,
        trace: None,
        metadata: callsheet_values::types::Metadata::default(),
        into: None,
        authored_by: None,
    };
    let ended = Record::RunEnded {
        run_id,
        end: RunEnd::Answered,
        text: answer.to_owned(),
        error: None,
        output: None,
        into: None,
        stats: StatsReport::default(),
        waiting: 0,
        finish_reason: None,
    };
    vec![started, ended]
}

fn driver(change: impl FnOnce(&mut TurnSpec)) -> Driver {
    let mut spec = spec(rules(PARALLEL));
    let written = WriteSet([("list".into(), json!([1, 2]).into())].into());
    spec.variables.apply(&written);
    change(&mut spec);
    let mut driver = Driver::new(spec);
    driver.log.before = run_records("the answer");
    driver
}

fn answer(text: &str) -> Result<ReferenceValues, ReferenceError> {
    let reference = "run_7".parse().unwrap();
    Ok([(reference, ReferencedValue::text(text))].into())
}

impl Driver {
    fn read(&mut self, index: u32, values: Result<ReferenceValues, ReferenceError>) -> &mut Self {
        let key = self.key(index);
        self.turn.handle_references(self.now, key, values);
        self.perform_effects();
        self
    }

    fn arguments(&self) -> Vec<&Value> {
        self.started_arguments.iter().map(|arguments| &**arguments).collect()
    }
}

const ANSWER: &str = r#"{"text": "It is: $VAR_REF{{run_7}}"}"#;

#[test]
fn variables_are_put_in_at_the_seal_without_a_wait() {
    let mut driver = driver(|_| ());
    driver.receive([
        call(0, "pure", r#"{"a": "$VAR_REF{{var:list}}", "b": "l=$VAR_REF{{var:list}}"}"#),
        call(1, "pure", r#"{"a": "$VAR_REF{{{{var:list}}"}"#),
        call(2, "pure", "{}"),
    ]);
    driver.assert_started(&["pure#0", "pure#1"]);
    assert_eq!(
        driver.arguments(),
        [&json!({"a": [1, 2], "b": "l=[1,2]"}), &json!({"a": "$VAR_REF{{var:list}}"})]
    );
    assert_eq!(driver.references_requested, []);
    // The message keeps the arguments of the model.
    driver.end_well();
    driver.finish_call(0, "done").finish_call(1, "done").finish_call(2, "done");
    let record = driver.commit.as_ref().unwrap();
    let calls = &record.message.as_ref().unwrap().calls;
    assert_eq!(calls[0].arguments["a"], "$VAR_REF{{var:list}}");
    assert_eq!(record.results[0].call, calls[0]);
}

#[test]
fn a_call_waits_for_its_values_and_later_calls_for_its_admission() {
    let mut driver = driver(|_| ());
    driver.receive([call(0, "effect", ANSWER), call(1, "pure", "{}")]);
    driver.end_well().assert_started(&[]);
    assert_eq!(driver.references_requested, [(0, ["run_7".parse().unwrap()].into())]);
    // The call with effects starts when its intent is durable.
    driver.read(0, answer("the answer")).assert_started(&["pure#1", "effect#0"]);
    assert_eq!(*driver.started_arguments[1], json!({"text": "It is: the answer"}));
    let intended = driver.log.iter().find_map(|record| match record {
        Record::CallIntended { call, .. } => Some(&call.arguments["text"]),
        _ => None,
    });
    assert_eq!(intended.unwrap(), "It is: the answer");
    driver.read(0, answer("too late")).finish_call(0, "done").finish_call(1, "done");
    let record = driver.commit.as_ref().unwrap();
    let calls = &record.message.as_ref().unwrap().calls;
    assert_eq!(calls[0].arguments["text"], "It is: $VAR_REF{{run_7}}");
}

#[test]
fn while_values_are_read_the_turn_does_not_wait_only_for_people() {
    let mut driver = driver(|_| ());
    driver.receive([call(0, "asked", "{}"), call(1, "effect", ANSWER)]).end_well();
    assert!(!driver.turn.waits_only_for_people());
    driver.read(1, answer("the answer")).assert_started(&["effect#1"]);
    driver.finish_call(1, "done");
    assert!(driver.turn.waits_only_for_people());
}

#[test]
fn a_call_starts_early_when_its_values_are_there() {
    let mut driver = driver(|_| ());
    driver.receive([call(0, "seal", ANSWER), call(1, "pure", "{}")]).assert_started(&[]);
    driver.read(0, answer("the answer")).assert_started(&["seal#0"]);
    driver.break_off();
    // The kept part of the response has the arguments of the model.
    driver.finish_call(0, "done");
    let record = driver.commit.as_ref().unwrap();
    let calls = &record.message.as_ref().unwrap().calls;
    assert_eq!(calls[0].arguments["text"], "It is: $VAR_REF{{run_7}}");
}

#[test]
fn the_final_arguments_decide_about_schema_approval_and_identical_calls() {
    let mut driver = driver(|_| ());
    driver.receive([
        call(0, "asked", r#"{"n": 7, "text": "$VAR_REF{{run_7}}"}"#),
        call(1, "effect", r#"{"text": "the answer"}"#),
        call(2, "effect", r#"{"text": "$VAR_REF{{run_7}}"}"#),
        call(3, "effect", r#"{"n": "$VAR_REF{{run_7}}"}"#),
    ]);
    driver.end_well();
    for index in [0, 2, 3] {
        driver.read(index, answer("the answer"));
    }
    driver.assert_started(&["effect#1"]).finish_call(1, "done");
    let asked = driver.events.iter().find_map(|event| match event {
        Event::ApprovalAsked { request } => Some(request),
        _ => None,
    });
    assert_eq!(*asked.unwrap().arguments, json!({"n": 7, "text": "the answer"}));
    driver.cancel();
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[2].notes.duplicate_of, Some(key(1)));
    let outcome = &record.results[3].outcome;
    assert_eq!(outcome.kind, Some(FailureKind::InvalidArguments));
    assert!(outcome.content.contains(r#"Received: {"n":"the answer"}"#), "{}", outcome.content);
}

#[test]
fn references_without_a_value_are_answered() {
    let mut driver = driver(|_| ());
    driver.receive([
        call(0, "pure", r#"{"a": "$VAR_REF{{t1a1c1}}"}"#),
        call(1, "pure", r#"{"a": ["$VAR_REF{{t2a1c0.arguments}}"]}"#),
        call(2, "pure", r#"{"a": "$VAR_REF{{var:none}}"}"#),
        call(3, "pure", r#"{"a": "$VAR_REF{{run_8}}"}"#),
        // This tool does not exist, and `read_var` reads references itself.
        call(4, "none", r#"{"a": "$VAR_REF{{run_8}}"}"#),
        call(5, "pure", r#"{"a": "$VAR_REF{{s}} $VAR_REF{{"}"#),
    ]);
    driver.end_well();
    let unknown: Reference = "run_8".parse().unwrap();
    assert_eq!(driver.references_requested, [(3, [unknown.clone()].into())]);
    driver.read(3, Err(ReferenceError::NoSuchRun(unknown)));
    driver.assert_started(&["pure#5"]).finish_call(5, "done");
    let record = driver.commit.as_ref().unwrap();
    let texts = record.results.iter().map(|result| &*result.outcome.content);
    let expected = [
        "$VAR_REF{{t1a1c1}}: it belongs to this response",
        "$VAR_REF{{t2a1c0.arguments}}: the session has no such result",
        "$VAR_REF{{var:none}}: the session has no variable",
        "$VAR_REF{{run_8}}: the session has no run",
        "there is no tool \"none\"",
        "done",
    ];
    for (text, expected) in texts.zip(expected) {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn final_arguments_are_limited() {
    let long = "a".repeat(200);
    let mut driver = driver(|spec| {
        Arc::make_mut(&mut spec.rules).limits.max_arguments_bytes = 100;
    });
    driver.log.before = run_records(&long);
    driver.receive([call(0, "effect", ANSWER)]).end_well();
    driver.read(0, answer(&long));
    let record = driver.commit.as_ref().unwrap();
    assert!(
        record.results[0].outcome.content.ends_with("more than 100 bytes (max_arguments_bytes)")
    );
    let limits = driver.reached_limits();
    assert_eq!(limits, [("max_arguments_bytes".to_owned(), 101, 100, "answered".to_owned())]);
}

#[test]
fn a_cancelled_call_needs_no_values() {
    let mut driver = driver(|_| ());
    driver.receive([call(0, "effect", ANSWER), call(1, "pure", "{}")]).end_well().cancel();
    driver.read(0, answer("the answer")).assert_started(&[]);
    let record = driver.commit.as_ref().unwrap();
    assert!(record.results.iter().all(|result| result.outcome.kind == NOT_STARTED));
}

#[test]
fn values_are_read_again_after_a_crash_unless_the_intent_has_them() {
    let mut driver = driver(|_| ());
    driver.receive([call(0, "idempotent", ANSWER)]).end_well();
    let before = driver.log.len();
    driver.read(0, answer("the answer")).assert_started(&["idempotent#0"]);
    let intended = driver.log.len();
    assert_eq!(intended, before + 1);
    // The intent holds the final arguments.
    driver.crash(intended).assert_started(&["idempotent#0"]);
    assert_eq!(driver.references_requested.len(), 1);
    assert_eq!(driver.arguments().last(), Some(&&json!({"text": "It is: the answer"})));
    driver.crash(before).assert_started(&[]);
    assert_eq!(driver.references_requested.len(), 2);
    driver.read(0, answer("the answer")).assert_started(&["idempotent#0"]);
    driver.finish_call(0, "done");
    assert_eq!(driver.commit.as_ref().unwrap().results[0].outcome, ToolOutcome::ok("done"));
}

#[test]
fn a_repeated_attempt_reuses_results_of_equal_final_arguments() {
    let mut driver = driver(|_| ());
    let arguments = r#"{"a": "$VAR_REF{{var:list}}"}"#;
    driver.receive([call(0, "pure", arguments), call(1, "pure", "{}")]).finish_call(0, "done");
    driver.break_off().receive([call(0, "pure", arguments)]).end_well();
    driver.assert_started(&["pure#0"]);
    let record = driver.commit.as_ref().unwrap();
    assert!(record.results[0].notes.reused);
}

#[test]
fn without_references_the_arguments_stay_as_they_are() {
    let mut driver = driver(|spec| {
        Arc::make_mut(&mut spec.rules).context.references = false;
    });
    driver.receive([call(0, "pure", ANSWER), call(1, "pure", "{}")]);
    assert_eq!(driver.arguments(), [&json!({"text": "It is: $VAR_REF{{run_7}}"})]);
    driver.end_well().finish_call(0, "done").finish_call(1, "done");
    assert_eq!(driver.references_requested, []);
}

#[test]
fn an_approval_stays_open_after_a_crash_while_an_earlier_call_reads_its_values() {
    for is_approved in [true, false] {
        let mut driver = driver(|_| ());
        driver.receive([call(0, "pure", ANSWER), call(1, "asked", r#"{"n": 7}"#)]).end_well();
        driver.read(0, answer("the answer")).assert_started(&["pure#0"]);
        let asked = driver.turn.pending_approval(key(1)).expect("it is asked");
        // The pure call has left no record.
        driver.crash(driver.log.len()).assert_started(&[]);
        assert_eq!(driver.references_requested.len(), 2);
        assert_eq!(driver.turn.pending_approval(key(1)), Some(asked.clone()));
        let decision = ApprovalDecision {
            phase: None,
            verdict: match is_approved {
                true => ApprovalVerdict::Approved,
                false => ApprovalVerdict::Rejected,
            },
            message: None,
            arguments_sha256: asked.arguments_sha256,
            content: None,
            author: None,
        };
        let mut decide = |decision| {
            let decided = driver.turn.handle_approval(driver.now, key(1), decision);
            driver.perform_effects();
            decided
        };
        assert_eq!(decide(decision.clone()), Ok(()));
        assert_eq!(decide(decision), Ok(()), "a repetition");
        assert_eq!(driver.turn.pending_approvals().count(), 0);
        driver.read(0, answer("the answer")).finish_call(0, "done");
        if is_approved {
            driver.assert_started(&["pure#0", "asked#1"]).finish_call(1, "done");
        }
        let record = driver.commit.as_ref().unwrap();
        let statuses: Vec<_> = record.results.iter().map(|result| result.outcome.status).collect();
        assert_eq!(statuses, [OK, if is_approved { OK } else { ToolStatus::Refused }]);
        assert_eq!(driver.count_events(|event| matches!(event, Event::ApprovalAsked { .. })), 1);
    }
}
