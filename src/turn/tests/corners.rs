//! Where the rules meet: what has gone wrong once, and must not again.

use super::*;
use crate::config::ApprovalPolicy;
use crate::tool::ToolSpec;

#[test]
fn what_is_known_of_a_call_as_it_opens_is_told() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "")]);
    let with_id = |event: &Event| matches!(event, Event::CallOpened { call } if call.provider_id.as_deref() == Some("id0"));
    assert_eq!(driver.count(with_id), 1);
}

#[test]
fn a_call_that_is_not_kept_is_still_decoded_and_counted() {
    let mut driver = Driver::with(TurnRules { multi_tool_calls: false, ..rules(PARALLEL) });
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "[")]).well();
    let counted =
        |event: &Event| matches!(event, Event::ResponseEnded { opened: 3, detected: 2, .. });
    assert_eq!(driver.count(counted), 1);
    assert_eq!(driver.count(|event| matches!(event, Event::CallStarted { of: 1, .. })), 1);
}

#[test]
fn a_call_that_was_answered_unrun_keeps_its_answer_when_more_bytes_come() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .deltas([call(0, "pure", "[]"), call(1, "pure", "{}")])
        .deltas([more(0, "x")])
        .deltas([more(0, "y")]);
    driver.well().done(1, "b");
    let told = driver.count(
        |event| matches!(event, Event::CallEnded { result, .. } if result.call.key.index == 0),
    );
    assert_eq!(told, 1);
    let kind = driver.commit.as_ref().unwrap().results[0].outcome.kind;
    assert_eq!(kind, Some(FailureKind::InvalidArguments));
}

#[test]
fn results_of_repeatable_calls_are_not_used_again() {
    let response =
        || [call(0, "repeatable", "{}"), call(1, "repeatable", "{}"), call(2, "effect", "{}")];
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas(response()).done(0, "a").done(1, "b").broken().deltas(response()).well();
    driver.started(&["repeatable#0", "repeatable#1", "repeatable#0", "repeatable#1", "effect#2"]);
}

#[test]
fn a_reused_result_is_copied_like_one_of_its_own_attempt() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "[]")]).done(0, "noon").broken();
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}")]).well().started(&["pure#0"]);
    driver.results(&[("pure", OK, None, "noon"), ("pure", OK, None, "noon")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(record.results[0].call.key));
}

#[test]
fn the_order_of_keys_makes_no_other_call() {
    let mut driver = Driver::with(rules(PARALLEL));
    let calls = [call(0, "pure", "{\"n\":1,\"a\":2}"), call(1, "pure", "{\"a\":2,\"n\":1}")];
    driver.deltas(calls).well().started(&["pure#0"]);
}

#[test]
fn a_response_above_a_hard_cap_is_closed_at_once_and_not_asked_for_again() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text(&"x".repeat((16 << 20) + 1)), text("more")]);
    assert_eq!((driver.disconnects, driver.requests.len()), (1, 1));
    let end = &driver.commit.as_ref().unwrap().end;
    assert!(matches!(end, TurnEnd::Failed(error) if error.message.contains("more than 16777216")));
}

#[test]
fn calls_above_the_hard_cap_are_told_where_there_is_no_limit() {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = None;
    let mut driver = Driver::with(rules);
    driver.deltas((0..1030).map(|n| call(n, "nobody", "{}"))).well();
    let told = ("max_tool_calls_per_turn".to_owned(), 1030, 1024, "truncated".to_owned());
    assert_eq!(driver.limits(), [told]);
    assert_eq!(driver.count(|e| matches!(e, Event::ResponseEnded { opened: 1030, .. })), 1);
}

#[test]
fn a_stop_during_the_wait_before_an_attempt_ends_the_turn_and_counts_no_exchange() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.broken().cancel();
    assert_eq!((driver.requests.len(), driver.disconnects), (2, 1));
    assert_eq!(driver.count(|event| matches!(event, Event::AttemptEnded { .. })), 1);
    driver.ended(&TurnEnd::Cancelled(CancelReason::Stop));
    assert_eq!(driver.commit.as_ref().unwrap().message, None);
}

#[test]
fn each_attempt_is_paid_for_once() {
    let tokens = |n| Delta::Usage {
        usage: crate::types::Usage { input_tokens: n, ..Default::default() },
        raw: "{}".into(),
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([tokens(1), tokens(2)]).broken().deltas([text("so"), tokens(10)]);
    driver.deltas([finish(FinishKind::Stop)]).close();
    assert_eq!(driver.commit.as_ref().unwrap().usage.input_tokens, 12);
    let mut kept = Driver::with(rules(PARALLEL));
    kept.deltas([call(0, "seal", "{}"), call(1, "pure", "{}"), tokens(3)]).broken();
    kept.done(0, "").done(1, "");
    assert_eq!(kept.commit.as_ref().unwrap().usage.input_tokens, 3);
    assert_eq!(kept.count(|event| matches!(event, Event::AttemptEnded { .. })), 1);
}

#[test]
fn a_timeout_beyond_all_time_is_none() {
    let mut rules = rules(PARALLEL);
    rules.limits.tool_timeout = Some(Duration::MAX);
    let mut driver = Driver::with(rules);
    driver.now = Duration::from_secs(1);
    driver.deltas([call(0, "pure", "{}")]).well().started(&["pure#0"]);
    assert_eq!(driver.turn.poll_timeout(), None);
}

#[test]
fn an_answer_quotes_a_part_of_what_does_not_fit() {
    let mut driver = Driver::with(rules(PARALLEL));
    let long = format!("{{\"n\":\"{}\"}}", "x".repeat(100_000));
    driver.deltas([call(0, "pure", &long)]).well();
    let content = &driver.commit.as_ref().unwrap().results[0].outcome.content;
    assert!(content.len() < 600, "{content}");
}

#[test]
fn ids_are_unique_whatever_the_order_of_the_seals() {
    let same = |index| {
        let piece = CallDelta {
            index: Some(index),
            id: Some(if index == 0 { "call_0_1" } else { "x" }.into()),
            name: Some("repeatable".into()),
            ..CallDelta::default()
        };
        Delta::Call(CallDelta { id: piece.id.clone().filter(|_| index != 1), ..piece })
    };
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([same(0), same(1), same(2), same(3)]).cancel();
    let results = &driver.commit.as_ref().unwrap().results;
    let ids: Vec<_> = results.iter().map(|result| &*result.call.id).collect();
    assert_eq!(ids, ["call_0_1", "call_1_1", "x", "call_0_3"]);
}

/// The journal may end behind any record: what must not run does not, whatever is left of it.
#[test]
fn a_resumed_turn_runs_nothing_that_was_answered_unrun() {
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
    whole.deltas(response()).well();
    let ended = whole.log.iter().position(|r| matches!(r, Record::ResponseEnded { .. })).unwrap();
    for kept in ended + 1..whole.log.len() {
        let mut driver = Driver::with(limited.clone());
        driver.deltas(response()).well().crash(kept).started(&[]);
        assert_eq!(driver.commit.unwrap().results.len(), 4, "{kept} records");
    }
    // The same, where the outcomes of all calls are lost.
    let mut driver = Driver::with(limited);
    driver.deltas(response()).well();
    driver.log.retain(|record| !matches!(record, Record::CallEnded { .. }));
    let kept = driver.log.len() - 1;
    driver.crash(kept).started(&[]);
    let results = whole.commit.unwrap().results;
    let outcomes: Vec<_> = results.iter().map(|result| &result.outcome).collect();
    let resumed = driver.commit.unwrap().results;
    assert_eq!(resumed.iter().map(|result| &result.outcome).collect::<Vec<_>>(), outcomes);
}

#[test]
fn a_failed_call_is_no_second_try_for_its_duplicate_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}")]).well();
    driver.outcome(0, ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no"));
    let first =
        |record: &Record| matches!(record, Record::CallEnded { call, .. } if call.key.index == 0);
    let kept = driver.log.iter().position(first).unwrap() + 1;
    driver.crash(kept).started(&[]);
    let results = &driver.commit.as_ref().unwrap().results;
    assert_eq!(&*results[1].outcome.content, "no");
    assert_eq!(
        (results[1].started, results[1].notes.duplicate_of),
        (None, Some(results[0].call.key))
    );
}

#[test]
fn a_stop_after_a_crash_does_not_deny_what_may_have_happened() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "idempotent", "{}")]).well().started(&["idempotent#0"]);
    driver.turn = resumed(spec(rules(PARALLEL)), &driver.log);
    driver.turn.handle_cancel(Duration::ZERO, CancelReason::Stop);
    driver.records = 0;
    driver.pump();
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    driver.results(&[("idempotent", CANCELLED, Some(FailureKind::Cancelled), perhaps)]);
}

#[test]
fn what_a_broken_response_had_started_before_a_crash_is_counted() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "seal", "{}"), call(1, "seal", "{\"n\":1}"), text("x")]);
    let kept = driver.log.len();
    driver.crash(kept);
    let counted =
        |event: &Event| matches!(event, Event::ResponseEnded { opened: 1, detected: 1, .. });
    assert_eq!(driver.count(counted), 1);
}

#[test]
fn a_question_about_a_call_that_is_void_is_asked_again_in_the_next_attempt() {
    let mut rules = rules(PARALLEL);
    let asks = ToolSpec::clone(&rules.tools["pure"]).approval(ApprovalPolicy::BEFORE);
    rules.tools.insert("asks".into(), Arc::new(asks));
    let mut driver = Driver::with(rules);
    let response = vec![call(0, "asks", "{}"), call(1, "pure", "{}")];
    driver.turn.handle_deltas(driver.now, response);
    assert_eq!(driver.turn.pending_approvals().count(), 1);
    driver.broken();
    let told = |event: &Event| matches!(event, Event::ApprovalAsked { .. });
    assert_eq!((driver.count(told), driver.turn.pending_approvals().count()), (1, 0));
    driver.deltas([call(0, "asks", "{}"), call(1, "pure", "{}")]);
    assert_eq!((driver.count(told), driver.turn.pending_approvals().count()), (2, 1));
}

/// A turn that goes on from its records, a second later.
fn a_second_later(driver: &Driver, cancel: Option<CancelReason>) -> Turn {
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    let spec = TurnSpec { began: Duration::from_secs(70), ..spec(rules(PARALLEL)) };
    Turn::resume(spec, &entries(0, &log), 1000, cancel)
}

#[test]
fn a_run_that_is_to_end_starts_nothing_after_a_crash() {
    let stop = Record::StopAsked { mode: StopMode::Now };
    let timeout = Record::LimitReached {
        limit: "run_timeout".into(),
        value: 1,
        maximum: 1,
        action: "ended".into(),
        note: None,
    };
    for (record, cancel, why) in [
        (Some(stop), None, CancelReason::Stop),
        (Some(timeout), Some(CancelReason::Stop), CancelReason::RunTimeout),
        (None, Some(CancelReason::Shutdown), CancelReason::Shutdown),
    ] {
        // Within the response, and behind it.
        for judged in [false, true] {
            let mut driver = Driver::with(rules(PARALLEL));
            // The record is one that no machine has asked for.
            driver.log.is_replayed = false;
            driver.deltas([call(0, "pure", "{}")]);
            if judged {
                driver.well();
            }
            driver.log.extend(record.clone());
            driver.turn = a_second_later(&driver, cancel);
            (driver.records, driver.started) = (0, Vec::new());
            driver.pump();
            driver.started(&[]).ended(&TurnEnd::Cancelled(why));
        }
    }
}

#[test]
fn a_result_keeps_its_times_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{}"), call(1, "effect", "{\"n\":1}")]).well();
    driver.now = Duration::from_secs(2);
    driver.done(0, "sent");
    driver.now = Duration::from_secs(5);
    driver.turn = a_second_later(&driver, None);
    driver.records = 0;
    driver.pump();
    let times = driver.commit.as_ref().unwrap().results.iter().map(|result| {
        (result.started.map(|at| at.as_secs()), result.wait.as_secs(), result.duration.as_secs())
    });
    assert_eq!(times.collect::<Vec<_>>(), [(Some(0), 0, 2), (Some(70), 0, 0)]);
    assert_eq!(driver.commit.as_ref().unwrap().times.tools_sum, Duration::from_secs(2));
}
