//! Calls of tools of which the whole host runs only so many at a time.

use super::*;
use crate::event::WaitingFor;

const PERHAPS: &str = "Error: cancelled while running: it may or may not have happened";
const NEVER: &str = "Error: not started: the run was ended before";

fn waits(event: &Event) -> bool {
    matches!(event, Event::CallWaiting { waiting_for: WaitingFor::Capacity, .. })
}

#[test]
fn a_call_of_a_capped_tool_asks_for_a_place_and_starts_when_it_has_one() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "capped", "{}"), call(1, "pure", "{}")]);
    assert_eq!((&driver.permits_requested[..], driver.count(waits)), (&[0][..], 0));
    driver.well().place(0, PermitReply::Waiting).started(&["pure#1"]);
    driver.place(0, PermitReply::Waiting);
    assert_eq!(driver.count(waits), 1, "a wait is told once");
    driver.now = Duration::from_secs(7);
    driver.place(0, PermitReply::Granted).started(&["pure#1", "capped#0"]);
    let queued = Some(Duration::from_secs(7));
    let started =
        |event: &Event| matches!(event, Event::CallStarted { queued: q, .. } if *q == queued);
    assert_eq!(driver.count(started), 1);
    // Its own time begins now.
    driver.done(1, "b");
    assert_eq!(driver.turn.poll_timeout(), Some(Duration::from_secs(37)));
    driver.done(0, "a");
    driver.results(&[("capped", OK, None, "a"), ("pure", OK, None, "b")]);
    assert_eq!(driver.permits_released, [0; 0]);
}

#[test]
fn no_intent_is_recorded_before_there_is_a_place() {
    let mut driver = Driver::with(rules(PARALLEL));
    let intents = |driver: &Driver| {
        let intended = |record: &&Record| matches!(record, Record::CallIntended { .. });
        driver.log.iter().filter(intended).count()
    };
    driver.deltas([call(0, "capped_effect", "{}")]).well().place(0, PermitReply::Waiting);
    assert_eq!((intents(&driver), &driver.started[..]), (0, &[][..]));
    driver.place(0, PermitReply::Granted).started(&["capped_effect#0"]);
    assert_eq!(intents(&driver), 1);
}

#[test]
fn a_call_that_waits_for_its_place_holds_one_of_max_and_is_a_barrier() {
    let mut driver = Driver::with(rules(Execution::Parallel { max: 1 }));
    driver.deltas([call(0, "capped", "{}"), call(1, "pure", "{}")]).well().started(&[]);
    driver.place(0, PermitReply::Granted).started(&["capped#0"]);
    driver.done(0, "").started(&["capped#0", "pure#1"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "capped", "{}"), call(1, "exclusive", "{}")]).well().started(&[]);
    driver.place(0, PermitReply::Granted).done(0, "").started(&["capped#0", "exclusive#1"]);
}

#[test]
fn a_stop_ends_the_wait_and_gives_back_a_place_that_was_not_used() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "capped", "{}")]).well().cancel();
    assert_eq!(driver.permits_released, [0]);
    driver.results(&[("capped", CANCELLED, NOT_STARTED, NEVER)]);
    // The grant was on its way.
    driver.place(0, PermitReply::Granted).started(&[]);

    // It had its place, and its intent was being recorded.
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "capped_effect", "{}")]).well();
    let key = crate::types::CallKey { turn: 1, attempt: 1, index: 0 };
    driver.turn.handle_tool_permit(Duration::ZERO, key, PermitReply::Granted);
    driver.turn.handle_cancel(Duration::ZERO, CancelReason::Stop);
    driver.pump();
    assert_eq!((&driver.permits_released[..], &driver.started[..]), (&[0][..], &[][..]));
    driver.results(&[("capped_effect", CANCELLED, NOT_STARTED, NEVER)]);

    // One that runs has handed its place on to its tool.
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "capped_effect", "{}")]).well().place(0, PermitReply::Granted).cancel();
    assert_eq!((&driver.permits_released[..], &driver.aborted[..]), (&[][..], &[0][..]));
    driver.results(&[("capped_effect", CANCELLED, Some(FailureKind::Cancelled), PERHAPS)]);
}

#[test]
fn other_endings_leave_no_call_waiting() {
    let mut cut = Driver::with(rules(PARALLEL));
    cut.deltas([call(0, "capped", "{}"), finish(FinishKind::Length)]).close();
    assert_eq!(
        (&cut.permits_requested[..], &cut.permits_released[..]),
        (&[][..], &[][..]),
        "it was never sealed"
    );
    let two = || [call(0, "capped", "{}"), call(1, "pure", "{}")];
    let mut cut = Driver::with(rules(PARALLEL));
    cut.deltas(two()).deltas([finish(FinishKind::Length)]).close();
    assert_eq!((&cut.permits_requested[..], &cut.permits_released[..]), (&[0][..], &[0][..]));
    let mut refused = Driver::with(rules(PARALLEL));
    refused.deltas(two()).deltas([finish(FinishKind::ContentFilter)]).close();
    assert_eq!(refused.permits_released, [0]);
    let mut broken = Driver::with(rules(PARALLEL));
    broken.deltas(two()).broken();
    assert_eq!((&broken.permits_released[..], broken.requests.len()), (&[0][..], 2));
    let mut changed_after_seal = Driver::with(rules(PARALLEL));
    changed_after_seal.deltas(two()).deltas([more(0, " x")]);
    assert_eq!(changed_after_seal.permits_released, [0]);
}

#[test]
fn a_call_that_runs_again_after_a_crash_asks_again_and_may_have_happened() {
    let begin = || {
        let mut driver = Driver::with(rules(PARALLEL));
        driver.deltas([call(0, "capped_seal", "{}")]).well().place(0, PermitReply::Granted);
        let kept = driver.log.len();
        driver.permits_requested.clear();
        driver.crash(kept).started(&[]);
        assert_eq!(driver.permits_requested, [0]);
        driver
    };
    begin().place(0, PermitReply::Granted).started(&["capped_seal#0"]);
    let mut stopped = begin();
    stopped.cancel();
    assert_eq!(stopped.permits_released, [0]);
    stopped.results(&[("capped_seal", CANCELLED, Some(FailureKind::Cancelled), PERHAPS)]);
}
