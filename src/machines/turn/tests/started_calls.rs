//! A turn whose owner is replaced while its tool supervisor still runs the calls.

use super::*;
use crate::turn::call::TurnCall;
use crate::turn::{CallStartState, StartedCall, StartedCalls};

/// Replaces the owner of the turn. Its running calls have run for `elapsed`; `completion` is the end
/// of the first one that the turn has missed.
pub(super) fn replace_owner(
    driver: &mut Driver,
    elapsed: Duration,
    completion: Option<ToolCompletion>,
) {
    let running = driver.turn.calls.iter().filter(|call| call.is_running());
    let live = |(at, call): (usize, &TurnCall)| {
        let state: CallStartState = call.start_state();
        let completion = completion.clone().filter(|_| at == 0);
        let wait = call.started_wait().filter(|_| completion.is_none());
        (call.key(), StartedCall { state, elapsed, wait, completion })
    };
    let calls = running.enumerate().map(live).collect();
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    let spec = driver.turn.spec.as_ref().clone();
    let live = StartedCalls { calls, is_complete: true };
    driver.turn = Turn::resume_with(spec, &entries(0, &log), 0, None, live);
    driver.now = Duration::ZERO;
    driver.records = 0;
    driver.started.clear();
    driver.perform_effects();
}

fn paid() -> ToolCompletion {
    ToolCompletion { outcome: ToolOutcome::ok("paid"), variables: VariablesUse::default() }
}

#[test]
fn the_times_of_a_call_span_the_replacement() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.receive([call(0, "effect", "{}")]).end_well().assert_started(&["effect#0"]);
    replace_owner(&mut driver, Duration::from_secs(7), None);
    driver.now = Duration::from_secs(2);
    driver.finish_call(0, "paid").assert_started(&[]);
    driver.assert_results(&[("effect", OK, None, "paid")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[0].duration, Duration::from_secs(9));
    assert_eq!(record.times.tools_sum, Duration::from_secs(9));
}

#[test]
fn the_timeout_of_a_call_counts_from_its_start() {
    // The owner may be replaced after the end of the timeout.
    for (elapsed, left) in [(7, 3), (11, 0)] {
        let (elapsed, left) = (Duration::from_secs(elapsed), Duration::from_secs(left));
        let mut rules = rules(Execution::Sequential);
        rules.limits.tool_timeout = Some(Duration::from_secs(10));
        let mut driver = Driver::with(rules);
        driver.receive([call(0, "effect", "{}")]).end_well();
        replace_owner(&mut driver, elapsed, None);
        assert_eq!(driver.turn.poll_timeout(), Some(left));
        driver.now = left;
        driver.turn.handle_timeout(driver.now);
        driver.perform_effects();
        assert_eq!(driver.aborted, [0]);
        assert_eq!(driver.reached_limits()[0].1, 10_000, "the limit is the whole time");
    }
}

#[test]
fn an_end_that_was_missed_counts_once() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.receive([call(0, "effect", "{}"), call(1, "pure", "{}")]).end_well();
    replace_owner(&mut driver, Duration::from_secs(1), Some(paid()));
    driver.assert_started(&["pure#1"]);
    driver.finish_call(0, "again").finish_call(1, "read");
    driver.assert_results(&[("effect", OK, None, "paid"), ("pure", OK, None, "read")]);
    assert_eq!(driver.count_events(|event| matches!(event, Event::OutcomeLate { .. })), 1);
}

#[test]
fn a_call_that_started_early_stays_marked_as_early() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}")]);
    driver.assert_started(&["pure#0"]).end_well();
    replace_owner(&mut driver, Duration::ZERO, None);
    driver.finish_call(0, "read");
    let early = |event: &Event| matches!(event, Event::CallEnded { early: true, .. });
    assert_eq!(driver.count_events(early), 1);
}

#[test]
fn a_call_that_runs_again_because_of_a_conflict_does_so_once() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}"), call(1, "pure", r#"{"n":1}"#)]).end_well();
    driver.finish_call_using_x(1, "old", false).finish_call_using_x(0, "set", true);
    driver.assert_started(&["pure#0", "pure#1", "pure#1"]);
    let read = VariablesUse { reads: ["x".into()].into(), ..VariablesUse::default() };
    let completion = ToolCompletion { outcome: ToolOutcome::ok("new"), variables: read };
    replace_owner(&mut driver, Duration::ZERO, Some(completion));
    driver.assert_started(&[]);
    driver.assert_results(&[("pure", OK, None, "set"), ("pure", OK, None, "new")]);
    assert!(driver.commit.as_ref().unwrap().results[1].notes.conflict);
}
