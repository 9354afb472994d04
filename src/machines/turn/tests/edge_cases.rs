//! Regression tests of combinations of rules.

use super::*;
use crate::contract::ToolSpec;
use callsheet_values::config::ApprovalPolicy;

#[test]
fn the_event_of_an_opened_call_has_its_provider_id() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "")]);
    let with_id = |event: &Event| matches!(event, Event::CallOpened { call } if call.provider_id.as_deref() == Some("id0"));
    assert_eq!(driver.count_events(with_id), 1);
}

#[test]
fn a_call_that_is_not_kept_is_still_decoded_and_counted() {
    let mut driver = Driver::with(RunRules { multi_tool_calls: false, ..rules(PARALLEL) });
    driver.receive([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "[")]).end_well();
    let counted =
        |event: &Event| matches!(event, Event::ResponseDecoded { opened: 3, detected: 2, .. });
    assert_eq!(driver.count_events(counted), 1);
    assert_eq!(
        driver.count_events(|event| matches!(event, Event::CallStarted { known_calls: 1, .. })),
        1
    );
}

#[test]
fn a_call_that_was_answered_without_running_keeps_its_answer_when_more_bytes_arrive() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive([call(0, "pure", "[]"), call(1, "pure", "{}")])
        .receive([more(0, "x")])
        .receive([more(0, "y")]);
    driver.end_well().finish_call(1, "b");
    let ends = driver.count_events(
        |event| matches!(event, Event::CallEnded { result, .. } if result.call.key.index == 0),
    );
    assert_eq!(ends, 1);
    let kind = driver.commit.as_ref().unwrap().results[0].outcome.kind;
    assert_eq!(kind, Some(FailureKind::InvalidArguments));
}

#[test]
fn results_of_repeatable_calls_are_not_reused() {
    let response =
        || [call(0, "repeatable", "{}"), call(1, "repeatable", "{}"), call(2, "effect", "{}")];
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive(response())
        .finish_call(0, "a")
        .finish_call(1, "b")
        .break_off()
        .receive(response())
        .end_well();
    driver.assert_started(&[
        "repeatable#0",
        "repeatable#1",
        "repeatable#0",
        "repeatable#1",
        "effect#2",
    ]);
}

#[test]
fn a_reused_result_is_copied_like_one_of_its_own_attempt() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive([call(0, "pure", "{}"), call(1, "pure", "[]")])
        .finish_call(0, "noon")
        .break_off();
    driver
        .receive([call(0, "pure", "{}"), call(1, "pure", "{}")])
        .end_well()
        .assert_started(&["pure#0"]);
    driver.assert_results(&[("pure", OK, None, "noon"), ("pure", OK, None, "noon")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(record.results[0].call.key));
}

#[test]
fn arguments_with_another_order_of_keys_are_identical() {
    let mut driver = Driver::with(rules(PARALLEL));
    let calls = [call(0, "pure", "{\"n\":1,\"a\":2}"), call(1, "pure", "{\"a\":2,\"n\":1}")];
    driver.receive(calls).end_well().assert_started(&["pure#0"]);
}

#[test]
fn a_response_above_the_hard_size_limit_is_closed_and_not_retried() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([text(&"x".repeat((16 << 20) + 1)), text("more")]);
    assert_eq!((driver.disconnects, driver.requests.len()), (1, 1));
    let end = &driver.commit.as_ref().unwrap().end;
    assert!(matches!(end, TurnEnd::Failed(error) if error.message.contains("more than 16777216")));
}

#[test]
fn calls_above_the_hard_limit_are_reported_without_a_configured_limit() {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = None;
    let mut driver = Driver::with(rules);
    driver.receive((0..1030).map(|n| call(n, "nobody", "{}"))).end_well();
    let limit = ("max_tool_calls_per_turn".to_owned(), 1030, 1024, "truncated".to_owned());
    assert_eq!(driver.reached_limits(), [limit]);
    assert_eq!(
        driver.count_events(|e| matches!(e, Event::ResponseDecoded { opened: 1030, .. })),
        1
    );
}

#[test]
fn a_stop_during_the_backoff_ends_the_turn_without_another_exchange() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.break_off().cancel();
    assert_eq!((driver.requests.len(), driver.disconnects), (2, 1));
    assert_eq!(driver.count_events(|event| matches!(event, Event::AttemptEnded { .. })), 1);
    driver.assert_end(&TurnEnd::Cancelled(CancelReason::Stop));
    assert_eq!(driver.commit.as_ref().unwrap().message, None);
}

#[test]
fn the_usage_of_each_attempt_is_counted_once() {
    let tokens = |n| Delta::Usage {
        usage: callsheet_values::types::Usage { input_tokens: n, ..Default::default() },
        raw: "{}".into(),
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([tokens(1), tokens(2)]).break_off().receive([text("so"), tokens(10)]);
    driver.receive([finish(FinishKind::Stop)]).close_stream();
    assert_eq!(driver.commit.as_ref().unwrap().usage.input_tokens, 12);
    let mut kept = Driver::with(rules(PARALLEL));
    kept.receive([call(0, "seal", "{}"), call(1, "pure", "{}"), tokens(3)]).break_off();
    kept.finish_call(0, "").finish_call(1, "");
    assert_eq!(kept.commit.as_ref().unwrap().usage.input_tokens, 3);
    assert_eq!(kept.count_events(|event| matches!(event, Event::AttemptEnded { .. })), 1);
}

#[test]
fn a_timeout_that_overflows_is_no_timeout() {
    let mut rules = rules(PARALLEL);
    rules.limits.tool_timeout = Some(Duration::MAX);
    let mut driver = Driver::with(rules);
    driver.now = Duration::from_secs(1);
    driver.receive([call(0, "pure", "{}")]).end_well().assert_started(&["pure#0"]);
    assert_eq!(driver.turn.poll_timeout(), None);
}

#[test]
fn an_answer_quotes_at_most_a_part_of_long_arguments() {
    let mut driver = Driver::with(rules(PARALLEL));
    let long = format!("{{\"n\":\"{}\"}}", "x".repeat(100_000));
    driver.receive([call(0, "pure", &long)]).end_well();
    let content = &driver.commit.as_ref().unwrap().results[0].outcome.content;
    assert!(content.len() < 600, "{content}");
}

#[test]
fn ids_are_unique_whatever_the_order_of_the_seals() {
    let same = |index| {
        let delta = CallDelta {
            index: Some(index),
            id: Some(if index == 0 { "call_0_1" } else { "x" }.into()),
            name: Some("repeatable".into()),
            ..CallDelta::default()
        };
        Delta::Call(CallDelta { id: delta.id.clone().filter(|_| index != 1), ..delta })
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([same(0), same(1), same(2), same(3)]).cancel();
    let results = &driver.commit.as_ref().unwrap().results;
    let ids: Vec<_> = results.iter().map(|result| &*result.call.id).collect();
    assert_eq!(ids, ["call_0_1", "call_1_1", "x", "call_0_3"]);
}

/// The journal may end after any record. A call that was answered without running must never run.
#[test]
fn a_resumed_turn_runs_no_call_that_was_answered_without_running() {
    let mut limited = rules(PARALLEL);
    limited.limits.max_tool_calls_per_turn = Some(3);
    let response = || {
        [
            call(0, "pure", "{\"n\":\"x\"}"),
            call(1, "pure", "{\"n\":"),
            call(2, "nobody", "{}"),
            call(3, "pure", "{\"n\":3}"),
        ]
    };
    let mut whole = Driver::with(limited.clone());
    whole.receive(response()).end_well();
    let ended = whole.log.iter().position(|r| matches!(r, Record::ResponseEnded { .. })).unwrap();
    for kept in ended + 1..whole.log.len() {
        let mut driver = Driver::with(limited.clone());
        driver.receive(response()).end_well().crash(kept).assert_started(&[]);
        assert_eq!(driver.commit.unwrap().results.len(), 4, "{kept} records");
    }
    // The outcomes of all calls are lost.
    let mut driver = Driver::with(limited);
    driver.receive(response()).end_well();
    driver.log.retain(|record| !matches!(record, Record::CallEnded { .. }));
    let kept = driver.log.len() - 1;
    driver.crash(kept).assert_started(&[]);
    let results = whole.commit.unwrap().results;
    let outcomes: Vec<_> = results.iter().map(|result| &result.outcome).collect();
    let resumed = driver.commit.unwrap().results;
    assert_eq!(resumed.iter().map(|result| &result.outcome).collect::<Vec<_>>(), outcomes);
}

#[test]
fn after_a_crash_a_duplicate_of_a_failed_call_copies_the_failure() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}"), call(1, "pure", "{}")]).end_well();
    driver.finish_call_with(0, ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no"));
    let first =
        |record: &Record| matches!(record, Record::CallEnded { call, .. } if call.key.index == 0);
    let kept = driver.log.iter().position(first).unwrap() + 1;
    driver.crash(kept).assert_started(&[]);
    let results = &driver.commit.as_ref().unwrap().results;
    assert_eq!(&*results[1].outcome.content, "no");
    assert_eq!(
        (results[1].started, results[1].notes.duplicate_of),
        (None, Some(results[0].call.key))
    );
}

#[test]
fn a_stop_after_a_crash_says_that_an_intended_call_may_have_happened() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "idempotent", "{}")]).end_well().assert_started(&["idempotent#0"]);
    driver.turn = resumed(spec(rules(PARALLEL)), &driver.log);
    driver.turn.handle_cancel(Duration::ZERO, CancelReason::Stop);
    driver.records = 0;
    driver.perform_effects();
    let may_have_happened = "Error: cancelled while running: it may or may not have happened";
    driver.assert_results(&[(
        "idempotent",
        CANCELLED,
        Some(FailureKind::Cancelled),
        may_have_happened,
    )]);
}

#[test]
fn a_resumed_broken_response_counts_the_calls_that_had_started() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "seal", "{}"), call(1, "seal", "{\"n\":1}"), text("x")]);
    let kept = driver.log.len();
    driver.crash(kept);
    let counted =
        |event: &Event| matches!(event, Event::ResponseDecoded { opened: 1, detected: 1, .. });
    assert_eq!(driver.count_events(counted), 1);
}

#[test]
fn an_approval_of_a_void_attempt_is_requested_again_in_the_next_attempt() {
    let mut rules = rules(PARALLEL);
    let asks = ToolSpec::clone(&rules.tools["pure"]).approval(ApprovalPolicy::BEFORE);
    rules.tools.insert("asks".into(), Arc::new(asks));
    let mut driver = Driver::with(rules);
    let response = vec![call(0, "asks", "{}"), call(1, "pure", "{}")];
    driver.turn.handle_deltas(driver.now, response);
    assert_eq!(driver.turn.pending_approvals().count(), 1);
    driver.break_off();
    let requested = |event: &Event| matches!(event, Event::ApprovalAsked { .. });
    assert_eq!((driver.count_events(requested), driver.turn.pending_approvals().count()), (1, 0));
    driver.receive([call(0, "asks", "{}"), call(1, "pure", "{}")]);
    assert_eq!((driver.count_events(requested), driver.turn.pending_approvals().count()), (2, 1));
}

/// Resumes the turn one second after its records.
fn a_second_later(driver: &Driver, cancel: Option<CancelReason>) -> Turn {
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    let spec = TurnSpec { run_elapsed: Duration::from_secs(70), ..spec(rules(PARALLEL)) };
    Turn::resume(spec, &entries(0, &log), 1000, cancel)
}

#[test]
fn a_cancelled_run_starts_no_call_after_a_crash() {
    let stop = Record::StopAsked { mode: StopMode::Now, authored_by: None };
    let timeout = Record::LimitReached {
        limit: "run_timeout".into(),
        value: 1,
        maximum: 1,
        action: "ended".into(),
        reason: None,
        note: None,
        usage: callsheet_values::types::Usage::default(),
    };
    for (record, cancel, reason) in [
        (Some(stop), None, CancelReason::Stop),
        (Some(timeout), Some(CancelReason::Stop), CancelReason::RunTimeout),
        (None, Some(CancelReason::Shutdown), CancelReason::Shutdown),
    ] {
        // The crash happens before the end of the response, and after it.
        for is_ended in [false, true] {
            let mut driver = Driver::with(rules(PARALLEL));
            // A replay cannot make this record, because it comes from outside.
            driver.log.is_replayed = false;
            driver.receive([call(0, "pure", "{}")]);
            if is_ended {
                driver.end_well();
            }
            driver.log.extend(record.clone());
            driver.turn = a_second_later(&driver, cancel);
            (driver.records, driver.started) = (0, Vec::new());
            driver.perform_effects();
            driver.assert_started(&[]).assert_end(&TurnEnd::Cancelled(reason));
        }
    }
}

#[test]
fn a_result_keeps_its_times_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", "{}"), call(1, "effect", "{\"n\":1}")]).end_well();
    driver.now = Duration::from_secs(2);
    driver.finish_call(0, "sent");
    driver.now = Duration::from_secs(5);
    driver.turn = a_second_later(&driver, None);
    driver.records = 0;
    driver.perform_effects();
    let times = driver.commit.as_ref().unwrap().results.iter().map(|result| {
        (result.started.map(|at| at.as_secs()), result.wait.as_secs(), result.duration.as_secs())
    });
    assert_eq!(times.collect::<Vec<_>>(), [(Some(0), 0, 2), (Some(70), 0, 0)]);
    assert_eq!(driver.commit.as_ref().unwrap().times.tools_sum, Duration::from_secs(2));
}
