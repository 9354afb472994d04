//! What each ending of a response leaves; limits, flags, ids, and a turn from its records.

use super::*;

#[test]
fn a_response_cut_at_its_length_runs_what_has_started_and_answers_the_rest() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{\"n")]);
    driver.deltas([finish(FinishKind::Length)]).close().done(0, "a");
    let cut = "Error: not run: the response was cut off";
    driver.results(&[
        ("pure", OK, None, "a"),
        ("effect", CANCELLED, NOT_STARTED, cut),
        ("pure", CANCELLED, NOT_STARTED, cut),
    ]);
    let arguments = &driver.commit.as_ref().unwrap().results[2].call.arguments;
    assert_eq!(**arguments, serde_json::json!({}));
}

#[test]
fn a_refusal_drops_everything_but_an_effect_that_has_started() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        text("no"),
        call(0, "pure", "{}"),
        call(1, "seal", "{}"),
        call(2, "pure", "{}"),
    ]);
    driver.started(&["pure#0", "seal#1"]);
    driver.deltas([finish(FinishKind::ContentFilter)]).close();
    assert_eq!(driver.aborted, [0]);
    driver.done(1, "sent");
    driver.results(&[("seal", OK, None, "sent")]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Refused);
}

#[test]
fn a_broken_response_is_void_and_pure_results_are_used_again() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).done(0, "noon").broken();
    assert_eq!(driver.requests, [(1, true), (2, true)]);
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).well();
    driver.started(&["pure#0", "effect#1"]);
    driver.done(1, "sent");
    driver.results(&[("pure", OK, None, "noon"), ("effect", OK, None, "sent")]);
    assert!(driver.commit.as_ref().unwrap().results[0].notes.reused);
}

#[test]
fn after_two_broken_streams_the_plain_answer_is_asked_for_and_after_three_the_turn_fails() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.broken().broken().broken();
    assert_eq!(driver.requests, [(1, true), (2, true), (3, false)]);
    let record = driver.commit.as_ref().unwrap();
    assert!(matches!(&record.end, TurnEnd::Failed(error) if error.code == "provider_error"));
    assert_eq!(record.message, None);
}

#[test]
fn once_an_effect_has_started_a_broken_response_is_the_turn() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("so"), call(0, "seal", "{}"), call(1, "pure", "{}"), call(2, "pure", "[")]);
    driver.broken().done(0, "sent").done(1, "b");
    assert_eq!(driver.requests, [(1, true)]);
    let cut = "Error: not run: the response broke off";
    driver.results(&[
        ("seal", OK, None, "sent"),
        ("pure", OK, None, "b"),
        ("pure", CANCELLED, NOT_STARTED, cut),
    ]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Finished);
}

#[test]
fn the_end_of_the_stream_is_no_good_finish_but_the_wires_own_sign_is() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("so")]).close();
    assert_eq!(driver.requests.len(), 2);
    driver.deltas([call(0, "effect", "{}"), Delta::Done]).close().started(&["effect#0"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{"), Delta::Done]).close().started(&[]);
    assert_eq!(driver.requests.len(), 2);
}

#[test]
fn what_breaks_after_the_finish_reason_takes_nothing_away() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{}"), finish(FinishKind::ToolCalls)]).broken();
    driver.started(&["effect#0"]);
    assert_eq!(driver.requests.len(), 1);
}

#[test]
fn a_call_without_a_name_and_nothing_else_is_a_malformed_response() {
    let nameless = || {
        let arguments = Some("{}".to_owned());
        Delta::Call(CallDelta { index: Some(0), arguments, ..CallDelta::default() })
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([nameless()]).well();
    assert_eq!(driver.requests.len(), 2);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([nameless(), call(1, "pure", "{}")]).well().done(0, "a");
    driver.results(&[("pure", OK, None, "a")]);
}

#[test]
fn a_stop_answers_every_call_truthfully() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        call(0, "pure", "{}"),
        call(1, "seal", "{}"),
        call(2, "pure", "{\"n\":1}"),
        call(3, "effect", "{}"),
    ]);
    driver.done(0, "a").cancel();
    assert_eq!((driver.disconnects, driver.aborted.clone()), (1, vec![1, 2]));
    let kind = Some(FailureKind::Cancelled);
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    driver.results(&[
        ("pure", OK, None, "a"),
        ("seal", CANCELLED, kind, perhaps),
        ("pure", CANCELLED, kind, "Error: cancelled while running"),
        ("effect", CANCELLED, NOT_STARTED, "Error: not started: the run was ended before"),
    ]);
    assert_eq!(driver.commit.as_ref().unwrap().end, TurnEnd::Cancelled(CancelReason::Stop));
}

#[test]
fn a_deadline_decides_at_once_and_a_late_outcome_is_dropped() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "quick", "{}"), call(1, "effect", "{}")]).well();
    driver.now = driver.turn.poll_timeout().unwrap();
    assert_eq!(driver.now, Duration::from_millis(5));
    driver.turn.handle_timeout(driver.now);
    driver.pump();
    assert_eq!(driver.aborted, [0]);
    driver.done(0, "too late");
    driver.now = driver.turn.poll_timeout().unwrap();
    driver.turn.handle_timeout(driver.now);
    driver.pump();
    let kind = Some(FailureKind::Timeout);
    let perhaps = "Error: Execution timeout after 30s: it may or may not have happened";
    driver.results(&[
        ("quick", ToolStatus::TimedOut, kind, "Error: Execution timeout after 5ms"),
        ("effect", ToolStatus::TimedOut, kind, perhaps),
    ]);
    let late = |event: &&Event| matches!(event, Event::OutcomeLate { .. });
    assert_eq!(driver.events.iter().filter(late).count(), 1);
}

fn four_calls(on_excess: OnExcess, maximum: u32) -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(maximum);
    rules.limits.on_excess = on_excess;
    let mut driver = Driver::with(rules);
    driver.deltas((0..4).map(|n| call(n, "pure", &format!("{{\"n\":{n}}}")))).well();
    for index in 0..maximum.min(4) {
        driver.done(index, "ran");
    }
    driver
}

#[test]
fn four_calls_where_three_may_run() {
    let told = |value, action: &str| {
        vec![("max_tool_calls_per_turn".to_owned(), value, 3, action.to_owned())]
    };
    let answer = four_calls(OnExcess::Answer, 3);
    let statuses = |driver: &Driver| -> Vec<_> {
        let results = &driver.commit.as_ref().unwrap().results;
        results.iter().map(|result| result.outcome.status).collect()
    };
    assert_eq!(statuses(&answer), [OK, OK, OK, ToolStatus::Refused]);
    assert_eq!(answer.limits(), told(4, "answered"));
    let truncate = four_calls(OnExcess::Truncate, 3);
    assert_eq!(statuses(&truncate), [OK, OK, OK]);
    assert_eq!(truncate.commit.as_ref().unwrap().dropped_calls, ["pure".into()]);
    assert_eq!(truncate.limits(), told(4, "truncated"));
    let mut fail = four_calls(OnExcess::Fail, 3);
    fail.started(&[]);
    assert_eq!(statuses(&fail), [ToolStatus::Refused; 3]);
    assert_eq!((fail.disconnects, fail.limits()), (1, told(4, "failed")));
    let message = "TOOL_CALL_LIMIT_EXCEEDED: received at least 4, maximum 3, turn 1";
    let end = &fail.commit.as_ref().unwrap().end;
    assert!(matches!(end, TurnEnd::Failed(error) if error.message == message));
}

#[test]
fn as_many_again_are_answered_and_what_is_above_is_truncated() {
    let driver = four_calls(OnExcess::Answer, 1);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!((record.results.len(), record.dropped_calls.len()), (2, 2));
}

#[test]
fn without_multi_tool_calls_only_the_first_is_kept_and_the_rest_is_named() {
    let mut driver = Driver::with(TurnRules { multi_tool_calls: false, ..rules(PARALLEL) });
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).well().done(0, "a");
    driver.results(&[("pure", OK, None, "a")]);
    assert_eq!(driver.commit.as_ref().unwrap().dropped_calls, ["effect".into()]);
}

#[test]
fn in_a_last_request_calls_are_dropped() {
    let mut driver = Driver::new(TurnSpec { last_request: true, ..spec(rules(PARALLEL)) });
    driver.deltas([text("so"), call(0, "pure", "{}")]).well().started(&[]);
    driver.results(&[]);
    assert_eq!(driver.commit.as_ref().unwrap().message.as_ref().unwrap().text, "so");
}

#[test]
fn ids_are_the_providers_unless_they_are_missing_taken_or_repeated() {
    let piece = |index, id: Option<&str>| {
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
    driver.deltas([piece(0, Some("x")), piece(1, None), piece(2, Some("x")), piece(3, None)]);
    driver.cancel();
    let record = driver.commit.as_ref().unwrap();
    let ids: Vec<_> = record.results.iter().map(|result| &*result.call.id).collect();
    assert_eq!(ids, ["x", "call_4_1", "call_4_2", "call_5_3"]);
    assert_eq!(record.results[2].call.provider_id.as_deref(), Some("x"));
    // The driver's log has them too.
    assert_eq!(Arc::strong_count(&used_call_ids), 2, "a turn that is over lets them go");
}

#[test]
fn a_resumed_turn_uses_what_is_known_and_answers_the_rest() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.deltas([call(0, "effect", "{}"), call(1, "effect", "{\"n\":1}"), call(2, "pure", "{}")]);
    driver.well().done(0, "sent");
    driver.started(&["effect#0", "effect#1"]);
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
    driver.done(2, "noon");
    let unknown = "Error: the host stopped during this call; it may or may not have happened";
    driver.results(&[
        ("effect", OK, None, "sent"),
        ("effect", ToolStatus::Unknown, Some(FailureKind::HostStopped), unknown),
        ("pure", OK, None, "noon"),
    ]);
}

#[test]
fn what_had_come_when_an_effect_began_early_is_kept_if_the_host_stops() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("First. "), call(0, "pure", "{}"), call(1, "seal", "{}")]);
    driver.deltas([text("Then"), call(2, "seal", "{\"n\":1}")]);
    driver.deltas([text(" lost")]).started(&["pure#0", "seal#1"]).done(0, "noon");
    let mut turn = resumed(spec(rules(PARALLEL)), &driver.log);
    let (mut shown, mut kept) = (Vec::new(), None);
    while let Some(effect) = turn.poll() {
        match effect {
            Effect::Emit(Event::AttemptStarted { attempt, .. }) => shown.push(attempt.to_string()),
            Effect::Emit(Event::TextReceived { text }) => shown.push(text),
            Effect::Record(Record::ResponseEnded { message, .. }) => kept = Some(message),
            _ => {}
        }
    }
    // What was shown is void, and what is kept is shown again.
    assert_eq!(shown, ["1", "First. Then"]);
    let kept = kept.unwrap();
    let names: Vec<_> = kept.calls.iter().map(|call| &*call.name).collect();
    assert_eq!((kept.text.as_str(), names), ("First. Then", vec!["pure", "seal"]));
    assert_eq!(kept.origin.as_ref().unwrap().model, "m");
}
