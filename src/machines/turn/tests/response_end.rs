//! The kinds of end of a response, limits of its calls, call ids, and the resume of a turn.

use super::*;
use callsheet_values::types::Usage;

#[test]
fn a_response_cut_off_at_its_length_keeps_started_calls_and_answers_the_others() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{\"n")]);
    driver.receive([finish(FinishKind::Length)]).close_stream().finish_call(0, "a");
    let cut = "Error: not run: the response was cut off";
    driver.assert_results(&[
        ("pure", OK, None, "a"),
        ("effect", CANCELLED, NOT_STARTED, cut),
        ("pure", CANCELLED, NOT_STARTED, cut),
    ]);
    let arguments = &driver.commit.as_ref().unwrap().results[2].call.arguments;
    assert_eq!(**arguments, serde_json::json!({}));
}

#[test]
fn a_refusal_drops_all_calls_except_started_calls_with_effects() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([
        text("no"),
        call(0, "pure", "{}"),
        call(1, "seal", "{}"),
        call(2, "pure", "{}"),
    ]);
    driver.assert_started(&["pure#0", "seal#1"]);
    driver.receive([finish(FinishKind::ContentFilter)]).close_stream();
    assert_eq!(driver.aborted, [0]);
    driver.finish_call(1, "sent");
    driver.assert_results(&[("seal", OK, None, "sent")]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Refused);
}

#[test]
fn a_broken_response_is_void_and_its_pure_results_are_reused() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive([call(0, "pure", "{}"), call(1, "effect", "{}")])
        .finish_call(0, "noon")
        .break_off();
    assert_eq!(driver.requests, [(1, true), (2, true)]);
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}")]).end_well();
    driver.assert_started(&["pure#0", "effect#1"]);
    driver.finish_call(1, "sent");
    driver.assert_results(&[("pure", OK, None, "noon"), ("effect", OK, None, "sent")]);
    assert!(driver.commit.as_ref().unwrap().results[0].notes.reused);
}

#[test]
fn the_third_attempt_does_not_stream_and_its_failure_fails_the_turn() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.break_off().break_off().break_off();
    assert_eq!(driver.requests, [(1, true), (2, true), (3, false)]);
    let record = driver.commit.as_ref().unwrap();
    assert!(matches!(&record.end, TurnEnd::Failed(error) if error.code == "provider_error"));
    assert_eq!(record.message, None);
}

#[test]
fn a_broken_response_is_kept_after_a_call_with_effects_has_started() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([
        text("so"),
        call(0, "seal", "{}"),
        call(1, "pure", "{}"),
        call(2, "pure", "["),
    ]);
    driver.break_off().finish_call(0, "sent").finish_call(1, "b");
    assert_eq!(driver.requests, [(1, true)]);
    let cut = "Error: not run: the response broke off";
    driver.assert_results(&[
        ("seal", OK, None, "sent"),
        ("pure", OK, None, "b"),
        ("pure", CANCELLED, NOT_STARTED, cut),
    ]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Finished);
}

#[test]
fn a_stream_without_a_finish_reason_ends_well_only_with_the_end_marker_of_its_wire() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([text("so")]).close_stream();
    assert_eq!(driver.requests.len(), 2);
    driver
        .receive([call(0, "effect", "{}"), Delta::Done])
        .close_stream()
        .assert_started(&["effect#0"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", "{"), Delta::Done]).close_stream().assert_started(&[]);
    assert_eq!(driver.requests.len(), 2);
    // Its arguments may be lost.
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", ""), Delta::Done]).close_stream().assert_started(&[]);
    assert_eq!(driver.requests.len(), 2);
}

#[test]
fn a_break_after_the_finish_reason_changes_nothing() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", "{}"), finish(FinishKind::ToolCalls)]).break_off();
    driver.assert_started(&["effect#0"]);
    assert_eq!(driver.requests.len(), 1);
}

#[test]
fn a_response_with_a_nameless_call_is_broken() {
    let nameless = || {
        let arguments = Some("{}".to_owned());
        Delta::Call(CallDelta { index: Some(0), arguments, ..CallDelta::default() })
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([nameless()]).end_well();
    assert_eq!(driver.requests.len(), 2);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([text("so"), nameless(), call(1, "effect", "{}")]).end_well();
    driver.assert_started(&[]);
    assert_eq!(driver.requests.len(), 2);
}

#[test]
fn arguments_of_no_call_prevent_starts_until_they_have_one() {
    let mut driver = Driver::with(rules(PARALLEL));
    // The call has no arguments, and those that follow belong to no call.
    driver.receive([call(0, "seal", ""), call(1, "pure", ""), more(2, "{}")]);
    driver.receive([call(3, "pure", "{}"), Delta::Seal { index: 0, arguments: None }]);
    driver.assert_started(&[]).end_well();
    assert_eq!(driver.requests.len(), 2);
    // A call that started before is kept.
    driver.receive([call(0, "seal", "{}"), call(1, "pure", ""), call(2, "effect", "")]);
    driver.assert_started(&["seal#0"]).receive([more(3, "{\"n\":1}")]).end_well();
    driver.finish_call(0, "sent");
    let cut = "Error: not run: the response broke off";
    driver.assert_results(&[
        ("seal", OK, None, "sent"),
        ("pure", CANCELLED, NOT_STARTED, cut),
        ("effect", CANCELLED, NOT_STARTED, cut),
    ]);
}

#[test]
fn a_sealed_call_that_has_not_started_is_open_again_when_more_comes() {
    let seal = |index| Delta::Seal { index, arguments: None };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", ""), seal(0), call(1, "effect", "{}"), seal(1)]);
    driver.receive([more(0, "{\"n\":"), more(0, "1}")]).end_well();
    driver.assert_started(&["effect#0", "effect#1"]);
    driver.finish_call(0, "a").finish_call(1, "b");
    driver.assert_results(&[("effect", OK, None, "a"), ("effect", OK, None, "b")]);
    let arguments: Vec<_> =
        driver.commit.as_ref().unwrap().results.iter().map(|r| r.call.arguments_text()).collect();
    assert_eq!(arguments, ["{\"n\":1}", "{}"]);
}

#[test]
fn a_stop_answers_every_call_by_its_phase() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([
        call(0, "pure", "{}"),
        call(1, "seal", "{}"),
        call(2, "pure", "{\"n\":1}"),
        call(3, "effect", "{}"),
    ]);
    driver.finish_call(0, "a").cancel();
    assert_eq!((driver.disconnects, driver.aborted.clone()), (1, vec![1, 2]));
    let kind = Some(FailureKind::Cancelled);
    let may_have_happened = "Error: cancelled while running: it may or may not have happened";
    driver.assert_results(&[
        ("pure", OK, None, "a"),
        ("seal", CANCELLED, kind, may_have_happened),
        ("pure", CANCELLED, kind, "Error: cancelled while running"),
        ("effect", CANCELLED, NOT_STARTED, "Error: not started: the run was ended before"),
    ]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Cancelled(CancelReason::Stop));
}

#[test]
fn a_stall_of_the_host_does_not_count_towards_the_timeout_of_a_running_call() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "quick", "{}")]).end_well();
    driver.turn.handle_stall(Duration::from_secs(4));
    driver.now = Duration::from_millis(5);
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    assert_eq!(driver.aborted, [0; 0]);
    driver.now = driver.turn.poll_timeout().unwrap();
    assert_eq!(driver.now, Duration::from_millis(4005));
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    assert_eq!(driver.aborted, [0]);
    assert_eq!(driver.reached_limits()[0].1, 5, "the limit is that of the tool");
}

#[test]
fn a_timeout_ends_a_call_and_a_late_outcome_is_ignored() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "quick", "{}"), call(1, "effect", "{}")]).end_well();
    driver.now = driver.turn.poll_timeout().unwrap();
    assert_eq!(driver.now, Duration::from_millis(5));
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    assert_eq!(driver.aborted, [0]);
    driver.finish_call(0, "too late");
    driver.now = driver.turn.poll_timeout().unwrap();
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    let kind = Some(FailureKind::Timeout);
    let may_have_happened = "Error: Execution timeout after 30s: it may or may not have happened";
    driver.assert_results(&[
        ("quick", ToolStatus::TimedOut, kind, "Error: Execution timeout after 5ms"),
        ("effect", ToolStatus::TimedOut, kind, may_have_happened),
    ]);
    let late = |event: &&Event| matches!(event, Event::OutcomeLate { .. });
    assert_eq!(driver.events.iter().filter(late).count(), 1);
}

fn four_calls(on_excess: OnExcess, maximum: u32) -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(maximum);
    rules.limits.on_excess = on_excess;
    let mut driver = Driver::with(rules);
    driver.receive((0..4).map(|n| call(n, "pure", &format!("{{\"n\":{n}}}")))).end_well();
    for index in 0..maximum.min(4) {
        driver.finish_call(index, "ran");
    }
    driver
}

#[test]
fn each_value_of_on_excess_handles_the_fourth_of_three_calls() {
    let limit = |value, action: &str| {
        vec![("max_tool_calls_per_turn".to_owned(), value, 3, action.to_owned())]
    };
    let answer = four_calls(OnExcess::Answer, 3);
    let statuses = |driver: &Driver| -> Vec<_> {
        let results = &driver.commit.as_ref().unwrap().results;
        results.iter().map(|result| result.outcome.status).collect()
    };
    assert_eq!(statuses(&answer), [OK, OK, OK, ToolStatus::Refused]);
    assert_eq!(answer.reached_limits(), limit(4, "answered"));
    let truncate = four_calls(OnExcess::Truncate, 3);
    assert_eq!(statuses(&truncate), [OK, OK, OK]);
    assert_eq!(truncate.commit.as_ref().unwrap().dropped_calls, ["pure".into()]);
    assert_eq!(truncate.reached_limits(), limit(4, "truncated"));
    let mut fail = four_calls(OnExcess::Fail, 3);
    fail.assert_started(&[]);
    assert_eq!(statuses(&fail), [ToolStatus::Refused; 3]);
    assert_eq!((fail.disconnects, fail.reached_limits()), (1, limit(4, "failed")));
    let message = "TOOL_CALL_LIMIT_EXCEEDED: received at least 4, maximum 3, turn 1";
    let end = &fail.commit.as_ref().unwrap().end;
    assert!(matches!(end, TurnEnd::Failed(error) if error.message == message));
}

#[test]
fn excess_calls_up_to_twice_the_limit_are_answered_and_the_others_are_dropped() {
    let driver = four_calls(OnExcess::Answer, 1);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!((record.results.len(), record.dropped_calls.len()), (2, 2));
}

#[test]
fn without_multi_tool_calls_only_the_first_call_is_kept() {
    let mut driver = Driver::with(RunRules { multi_tool_calls: false, ..rules(PARALLEL) });
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}")]).end_well().finish_call(0, "a");
    driver.assert_results(&[("pure", OK, None, "a")]);
    assert_eq!(driver.commit.as_ref().unwrap().dropped_calls, ["effect".into()]);
}

#[test]
fn the_calls_of_a_last_request_are_dropped() {
    let mut driver = Driver::new(TurnSpec {
        request_kind: callsheet_values::types::RequestKind::FinalAnswer,
        ..spec(rules(PARALLEL))
    });
    driver.receive([text("so"), call(0, "pure", "{}")]).end_well().assert_started(&[]);
    driver.assert_results(&[]);
    assert_eq!(driver.commit.as_ref().unwrap().message.as_ref().unwrap().text, "so");
}

#[test]
fn call_ids_are_those_of_the_provider_unless_they_are_missing_or_used_already() {
    let opened_call = |index, id: Option<&str>| {
        Delta::Call(CallDelta {
            index: Some(index),
            id: id.map(str::to_owned),
            name: Some("repeatable".into()),
            arguments: Some("{}".into()),
            ..CallDelta::default()
        })
    };
    let used_call_ids = Arc::new(BTreeSet::from(["call_4_3".to_owned()]));
    let mut driver = Driver::new(TurnSpec {
        turns_with_calls: 4,
        used_call_ids: Arc::clone(&used_call_ids),
        ..spec(rules(PARALLEL))
    });
    driver.receive([
        opened_call(0, Some("x")),
        opened_call(1, None),
        opened_call(2, Some("x")),
        opened_call(3, None),
    ]);
    driver.cancel();
    let record = driver.commit.as_ref().unwrap();
    let ids: Vec<_> = record.results.iter().map(|result| &*result.call.id).collect();
    assert_eq!(ids, ["x", "call_4_1", "call_4_2", "call_5_3"]);
    assert_eq!(record.results[2].call.provider_id.as_deref(), Some("x"));
    // The other reference is that of the test log.
    assert_eq!(Arc::strong_count(&used_call_ids), 2, "a committed turn holds no reference");
}

#[test]
fn a_resumed_turn_uses_recorded_outcomes_and_answers_intended_calls_as_unknown() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.receive([
        call(0, "effect", "{}"),
        call(1, "effect", "{\"n\":1}"),
        call(2, "pure", "{}"),
    ]);
    driver.end_well().finish_call(0, "sent");
    driver.assert_started(&["effect#0", "effect#1"]);
    let mut turn = resumed(spec(rules(Execution::Sequential)), &driver.log);
    let effects: Vec<_> = std::iter::from_fn(|| turn.poll()).collect();
    driver.records = 0;
    for effect in &effects {
        if let Effect::Record(record) = effect {
            driver.log.push(record.clone());
            driver.records += 1;
        }
    }
    let started: Vec<_> = effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Perform(TurnAction::Start(start)) => Some(start.call.key.index),
            _ => None,
        })
        .collect();
    assert_eq!(started, [2]);
    driver.turn = turn;
    driver.turn.handle_recorded(driver.now, driver.records);
    driver.finish_call(2, "noon");
    let unknown = "Error: the host stopped during this call; it may or may not have happened";
    driver.assert_results(&[
        ("effect", OK, None, "sent"),
        ("effect", ToolStatus::Unknown, Some(FailureKind::HostStopped), unknown),
        ("pure", OK, None, "noon"),
    ]);
}

#[test]
fn a_resumed_turn_counts_the_tokens_of_its_request() {
    let counted = |resumes: bool| {
        let mut driver = Driver::with(rules(Execution::Sequential));
        let usage = Usage { input_tokens: 700, output_tokens: 20, ..Usage::default() };
        let usage = Delta::Usage { usage, raw: "{}".into() };
        driver.receive([call(0, "pure", "{}"), usage]).end_well();
        if resumes {
            driver.crash(driver.log.len());
        }
        driver.finish_call(0, "noon");
        let record = driver.commit.as_ref().unwrap();
        (record.request_tokens, record.usage.input_tokens)
    };
    assert_eq!(counted(false), (700, 700));
    assert_eq!(counted(true), (700, 700));
}

#[test]
fn the_response_up_to_an_early_start_is_kept_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([text("First. "), call(0, "pure", "{}"), call(1, "seal", "{}")]);
    driver.receive([text("Then"), call(2, "seal", "{\"n\":1}")]);
    driver.receive([text(" lost")]).assert_started(&["pure#0", "seal#1"]).finish_call(0, "noon");
    let mut turn = resumed(spec(rules(PARALLEL)), &driver.log);
    let (mut published, mut kept) = (Vec::new(), None);
    while let Some(effect) = turn.poll() {
        match effect {
            Effect::Record(Record::AttemptFailed {
                attempt,
                kept: true,
                host_stopped: true,
                ..
            }) => {
                published.push(attempt.to_string());
            }
            Effect::Emit(Event::TextReceived { text }) => published.push(text),
            Effect::Record(Record::ResponseEnded { message, .. }) => kept = Some(message),
            _ => {}
        }
    }
    // A new start of the attempt voids the published text, and the kept text is published again.
    assert_eq!(published, ["1", "First. Then"]);
    let kept = kept.unwrap();
    let names: Vec<_> = kept.calls.iter().map(|call| &*call.name).collect();
    assert_eq!((kept.text.as_str(), names), ("First. Then", vec!["pure", "seal"]));
    assert_eq!(kept.origin.as_ref().unwrap().model, "m");
}
