//! Calls of `use_tool`, which are calls of the tools that they name.

use super::*;

fn searching(execution: Execution) -> RunRules {
    RunRules { uses_tool_search: true, ..rules(execution) }
}

/// Returns the delta of a whole call of `use_tool`.
fn used(index: u64, name: &str, arguments: &str) -> Delta {
    call(index, "use_tool", &format!(r#"{{"name": {name:?}, "arguments": {arguments}}}"#))
}

/// Returns the names in the events about calls.
fn names(driver: &Driver) -> Vec<&str> {
    driver.events.iter().filter_map(name).collect()
}

fn name(event: &Event) -> Option<&str> {
    match event {
        Event::CallOpened { call }
        | Event::CallDetected { call, .. }
        | Event::CallStarted { call, .. } => Some(&call.name),
        Event::CallEnded { result, .. } => Some(&result.call.name),
        _ => None,
    }
}

#[test]
fn a_call_of_use_tool_is_a_call_of_the_tool_from_its_seal_on() {
    let mut driver = Driver::with(searching(PARALLEL));
    driver.receive([used(0, "pure", r#"{"n": 7}"#), call(1, "get", "{}")]);
    driver.assert_started(&["pure#0"]);
    driver
        .end_well()
        .assert_started(&["pure#0", "get#1"])
        .finish_call(0, "found")
        .finish_call(1, "got");
    driver.assert_results(&[("pure", OK, None, "found"), ("get", OK, None, "got")]);
    assert!(names(&driver).iter().all(|name| ["pure", "get"].contains(name)));
    assert_eq!(names(&driver).len(), 8);
    let record = driver.commit.as_ref().unwrap();
    let calls = &record.message.as_ref().unwrap().calls;
    assert_eq!(*calls[0].arguments, serde_json::json!({"n": 7}));
    assert_eq!((calls[0].indirect, calls[1].indirect), (true, false));
    // The history has the call as the model has made it.
    let (history, _) = crate::turn::fixtures::committed(&driver.log, &rules(PARALLEL).limits);
    let text = serde_json::to_string(&history.request_messages().0).unwrap();
    assert_eq!(text.matches("\"use_tool\"").count(), 1, "{text}");
    assert_eq!(text.matches("\"pure\"").count(), 0, "its name stands in the arguments: {text}");
    let messages = history.request_messages().0;
    let names = messages.iter().filter_map(|message| match &**message {
        callsheet_values::message::Message::Tool { name, .. } => Some(&**name),
        callsheet_values::message::Message::User { .. }
        | callsheet_values::message::Message::Summary { .. }
        | callsheet_values::message::Message::Assistant(_) => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["use_tool", "get"]);
}

#[test]
fn a_call_by_the_name_of_a_tool_that_no_request_defines_is_shown_as_one_of_use_tool() {
    let search_only_tools =
        std::sync::Arc::new(["pure".to_owned(), "idempotent".to_owned()].into());
    let mut driver = Driver::with(RunRules { search_only_tools, ..searching(PARALLEL) });
    let twice = r#""{\"n\": 1}""#;
    driver.receive([call(0, "pure", r#"{"n": 7}"#), call(1, "idempotent", twice)]);
    driver.receive([call(2, "pure", r#"{"n": "seven"}"#), call(3, "get", "{}")]);
    driver.end_well();
    driver.finish_call(0, "found").finish_call(1, "done").finish_call(3, "got");
    let record = driver.commit.as_ref().unwrap();
    let calls = &record.message.as_ref().unwrap().calls;
    let indirect: Vec<_> = calls.iter().map(|call| call.indirect).collect();
    assert_eq!(indirect, [true, true, true, false]);
    assert_eq!(record.results[2].outcome.kind, Some(FailureKind::InvalidArguments));
    let (history, _) = crate::turn::fixtures::committed(&driver.log, &rules(PARALLEL).limits);
    let text = serde_json::to_string(&history.request_messages().0[..2]).unwrap();
    assert_eq!(text.matches("\"use_tool\"").count(), 3, "{text}");
    assert!(!text.contains(r#""name":"pure""#), "{text}");
}

#[test]
fn effects_approvals_and_duplicates_are_those_of_the_tool() {
    let mut driver = Driver::with(searching(PARALLEL));
    driver.receive([used(0, "effect", "{}"), used(1, "effect", "{}"), used(2, "asked", "{}")]);
    driver.assert_started(&[]);
    driver.end_well().assert_started(&["effect#0"]);
    assert!(driver.log.iter().any(|record| {
        matches!(record, Record::CallIntended { call, .. } if &*call.name == "effect")
    }));
    assert_eq!(driver.count_events(|event| matches!(event, Event::ApprovalAsked { .. })), 1);
    driver.finish_call(0, "done").cancel();
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(key(0)));
}

#[test]
fn arguments_that_name_no_tool_or_do_not_fit_are_answered() {
    let mut driver = Driver::with(searching(PARALLEL));
    driver
        .receive([
            used(0, "nothing", "{}"),
            used(1, "pure", r#"{"n": "seven"}"#),
            call(2, "use_tool", r#"{"arguments": {}}"#),
            call(3, "use_tool", r#"{"name": "pure", "argu"#),
            call(4, "nothing", "{}"),
        ])
        .end_well();
    let record = driver.commit.as_ref().unwrap();
    let answers: Vec<_> = record
        .results
        .iter()
        .map(|result| {
            let text = result.outcome.content.split('.').next().unwrap_or_default();
            (&*result.call.name, result.outcome.kind, text)
        })
        .collect();
    let unknown = (Some(FailureKind::UnknownTool), "Error: there is no tool \"nothing\"");
    assert_eq!(answers[0], ("use_tool", unknown.0, unknown.1));
    assert_eq!((answers[1].0, answers[1].1), ("pure", Some(FailureKind::InvalidArguments)));
    assert_eq!((answers[2].0, answers[2].1), ("use_tool", Some(FailureKind::InvalidArguments)));
    assert_eq!((answers[3].0, answers[3].1), ("use_tool", Some(FailureKind::CutOffArguments)));
    assert_eq!(answers[4], ("nothing", unknown.0, unknown.1));
}

#[test]
fn a_resumed_turn_has_the_same_calls_and_answers() {
    let finish = |driver: &mut Driver| {
        driver.finish_call(0, "found").finish_call(1, "done");
        let record = driver.commit.as_ref().expect("the turn is over");
        let outcome = |result: &callsheet_values::types::ToolResult| {
            (result.call.clone(), result.outcome.clone())
        };
        record.results.iter().map(outcome).collect::<Vec<_>>()
    };
    let begin = || {
        let mut driver = Driver::with(searching(PARALLEL));
        let calls = [
            used(0, "pure", r#"{"n": 7}"#),
            used(1, "idempotent", r#""{\"n\": 1}""#),
            used(2, "pure", r#"{"n": "seven"}"#),
            used(3, "nothing", "{}"),
        ];
        driver.receive(calls).end_well();
        driver
    };
    let mut whole = begin();
    let expected = finish(&mut whole);
    for kept in 1..=begin().log.len() {
        let mut crashed = begin();
        let has_response =
            crashed.log[..kept].iter().any(|record| matches!(record, Record::ResponseEnded { .. }));
        if !has_response {
            continue;
        }
        crashed.crash(kept);
        assert_eq!(finish(&mut crashed), expected, "after {kept} records");
    }
}

#[test]
fn without_a_search_use_tool_is_an_ordinary_name() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([used(0, "pure", "{}")]).end_well();
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(&*record.results[0].call.name, "use_tool");
    assert_eq!(record.results[0].outcome.kind, Some(FailureKind::UnknownTool));
}
