//! Calls of tools with `max_concurrent`, which need a permit of the host.

use super::*;
use callsheet_values::event::WaitingFor;

const MAY_HAVE_HAPPENED: &str = "Error: cancelled while running: it may or may not have happened";
const NOT_STARTED_TEXT: &str = "Error: not started: the run was ended before";

fn waits_for_capacity(event: &Event) -> bool {
    matches!(event, Event::CallWaiting { waiting_for: WaitingFor::Capacity, .. })
}

#[test]
fn a_call_of_a_limited_tool_requests_a_permit_and_starts_with_it() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "capped", "{}"), call(1, "pure", "{}")]);
    assert_eq!(
        (&driver.permits_requested[..], driver.count_events(waits_for_capacity)),
        (&[0][..], 0)
    );
    driver.end_well().answer_permit(0, PermitReply::Waiting).assert_started(&["pure#1"]);
    driver.answer_permit(0, PermitReply::Waiting);
    assert_eq!(driver.count_events(waits_for_capacity), 1, "a wait is published once");
    driver.now = Duration::from_secs(7);
    driver.answer_permit(0, PermitReply::Granted).assert_started(&["pure#1", "capped#0"]);
    let queued = Some(Duration::from_secs(7));
    let started =
        |event: &Event| matches!(event, Event::CallStarted { queued: q, .. } if *q == queued);
    assert_eq!(driver.count_events(started), 1);
    // The timeout counts from the start.
    driver.finish_call(1, "b");
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(37)));
    driver.finish_call(0, "a");
    driver.assert_results(&[("capped", OK, None, "a"), ("pure", OK, None, "b")]);
    assert_eq!(driver.permits_released, [0; 0]);
}

#[test]
fn no_intent_is_recorded_before_the_permit_is_granted() {
    let mut driver = Driver::with(rules(PARALLEL));
    let intents = |driver: &Driver| {
        let intended = |record: &&Record| matches!(record, Record::CallIntended { .. });
        driver.log.iter().filter(intended).count()
    };
    driver
        .receive([call(0, "capped_effect", "{}")])
        .end_well()
        .answer_permit(0, PermitReply::Waiting);
    assert_eq!((intents(&driver), &driver.started[..]), (0, &[][..]));
    driver.answer_permit(0, PermitReply::Granted).assert_started(&["capped_effect#0"]);
    assert_eq!(intents(&driver), 1);
}

#[test]
fn a_call_that_waits_for_a_tool_permit_counts_as_running() {
    let mut driver = Driver::with(rules(Execution::Parallel { max: 1 }));
    driver.receive([call(0, "capped", "{}"), call(1, "pure", "{}")]).end_well().assert_started(&[]);
    driver.answer_permit(0, PermitReply::Granted).assert_started(&["capped#0"]);
    driver.finish_call(0, "").assert_started(&["capped#0", "pure#1"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive([call(0, "capped", "{}"), call(1, "exclusive", "{}")])
        .end_well()
        .assert_started(&[]);
    driver
        .answer_permit(0, PermitReply::Granted)
        .finish_call(0, "")
        .assert_started(&["capped#0", "exclusive#1"]);
}

#[test]
fn a_stop_releases_the_permit_of_a_call_that_does_not_run() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "capped", "{}")]).end_well().cancel();
    assert_eq!(driver.permits_released, [0]);
    driver.assert_results(&[("capped", CANCELLED, NOT_STARTED, NOT_STARTED_TEXT)]);
    // A permit that arrives after the stop is ignored.
    driver.answer_permit(0, PermitReply::Granted).assert_started(&[]);

    // The call holds its permit and waits until its intent is durable.
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "capped_effect", "{}")]).end_well();
    let key = callsheet_values::types::CallKey { turn: 1, attempt: 1, index: 0 };
    driver.turn.handle_tool_permit(Duration::ZERO, key, PermitReply::Granted);
    driver.turn.handle_cancel(Duration::ZERO, CancelReason::Stop);
    driver.perform_effects();
    assert_eq!((&driver.permits_released[..], &driver.started[..]), (&[0][..], &[][..]));
    driver.assert_results(&[("capped_effect", CANCELLED, NOT_STARTED, NOT_STARTED_TEXT)]);

    // The permit of a running call belongs to its tool.
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive([call(0, "capped_effect", "{}")])
        .end_well()
        .answer_permit(0, PermitReply::Granted)
        .cancel();
    assert_eq!((&driver.permits_released[..], &driver.aborted[..]), (&[][..], &[0][..]));
    driver.assert_results(&[(
        "capped_effect",
        CANCELLED,
        Some(FailureKind::Cancelled),
        MAY_HAVE_HAPPENED,
    )]);
}

#[test]
fn no_call_waits_for_a_permit_after_a_bad_end() {
    let mut cut = Driver::with(rules(PARALLEL));
    cut.receive([call(0, "capped", "{}"), finish(FinishKind::Length)]).close_stream();
    assert_eq!(
        (&cut.permits_requested[..], &cut.permits_released[..]),
        (&[][..], &[][..]),
        "the call was never sealed"
    );
    let two = || [call(0, "capped", "{}"), call(1, "pure", "{}")];
    let mut cut = Driver::with(rules(PARALLEL));
    cut.receive(two()).receive([finish(FinishKind::Length)]).close_stream();
    assert_eq!((&cut.permits_requested[..], &cut.permits_released[..]), (&[0][..], &[0][..]));
    let mut refused = Driver::with(rules(PARALLEL));
    refused.receive(two()).receive([finish(FinishKind::ContentFilter)]).close_stream();
    assert_eq!(refused.permits_released, [0]);
    let mut broken = Driver::with(rules(PARALLEL));
    broken.receive(two()).break_off();
    assert_eq!((&broken.permits_released[..], broken.requests.len()), (&[0][..], 2));
    let mut changed_after_seal = Driver::with(rules(PARALLEL));
    changed_after_seal.receive(two()).receive([more(0, " x")]);
    assert_eq!(changed_after_seal.permits_released, [0]);
}

#[test]
fn an_idempotent_call_requests_its_permit_again_after_a_crash() {
    let begin = || {
        let mut driver = Driver::with(rules(PARALLEL));
        driver
            .receive([call(0, "capped_seal", "{}")])
            .end_well()
            .answer_permit(0, PermitReply::Granted);
        let kept = driver.log.len();
        driver.permits_requested.clear();
        driver.crash(kept).assert_started(&[]);
        assert_eq!(driver.permits_requested, [0]);
        driver
    };
    begin().answer_permit(0, PermitReply::Granted).assert_started(&["capped_seal#0"]);
    let mut stopped = begin();
    stopped.cancel();
    assert_eq!(stopped.permits_released, [0]);
    stopped.assert_results(&[(
        "capped_seal",
        CANCELLED,
        Some(FailureKind::Cancelled),
        MAY_HAVE_HAPPENED,
    )]);
}
