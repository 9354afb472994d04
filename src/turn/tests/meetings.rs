//! Where rules meet: people, places of tools, variables, stops and crashes.

use super::*;
use crate::config::ApprovalPolicy;
use crate::event::WaitingFor;
use crate::tool::ToolSpec;
use crate::turn::ApprovalDecision;
use crate::types::{ApprovalPhase, Judgement, Verdict};

const STALE: &str = "\n[callsheet: an earlier call of the same response changed variables after \
                     this call had read them: x. This result rests on the older values.]";

/// The tools of the fixtures, where one of them asks people.
fn asking(tool: &str, approval: ApprovalPolicy) -> TurnRules {
    let mut rules = rules(PARALLEL);
    let spec = ToolSpec::clone(&rules.tools[tool]).approval(approval);
    rules.tools.insert(tool.into(), Arc::new(spec));
    rules
}

fn approve(driver: &mut Driver, index: u32) {
    let asked = driver.turn.pending_approval(key(index)).expect("people are asked");
    let judgement = Judgement { verdict: Verdict::Approved, message: None };
    let arguments_sha256 = asked.arguments_sha256;
    let decision = ApprovalDecision { phase: Some(asked.phase), judgement, arguments_sha256 };
    driver.turn.handle_approval(driver.now, key(index), decision).expect("it counts");
    driver.pump();
}

fn asked(driver: &Driver) -> usize {
    driver.count(|event| matches!(event, Event::ApprovalAsked { .. }))
}

#[test]
fn a_call_that_runs_again_is_approved_already_and_asks_for_its_place_again() {
    let mut driver = Driver::with(asking("capped", ApprovalPolicy::BEFORE));
    driver.deltas([call(0, "effect", "{}"), call(1, "capped", "{}")]).well();
    assert_eq!(driver.permits_requested, [0; 0], "nothing is reserved for a call that may not run");
    approve(&mut driver, 1);
    assert_eq!(driver.permits_requested, [1]);
    driver.place(1, PermitReply::Granted);
    driver.used(1, "old", false);
    driver.used(0, "written", true);
    assert_eq!((asked(&driver), &driver.permits_requested[..]), (1, &[1, 1][..]));
    driver.place(1, PermitReply::Granted);
    driver.used(1, "new", false);
    driver.results(&[("effect", OK, None, "written"), ("capped", OK, None, "new")]);
    assert_eq!(driver.permits_released, [0; 0]);
}

#[test]
fn the_runs_time_goes_on_where_an_approved_call_waits_for_its_place() {
    let rules = asking("capped", ApprovalPolicy::BEFORE);
    let run_time_left = Some(Duration::from_secs(60));
    let mut driver = Driver::new(TurnSpec { run_time_left, ..spec(rules) });
    driver.deltas([call(0, "capped", "{}")]).well();
    driver.now = Duration::from_secs(3600);
    approve(&mut driver, 0);
    driver.place(0, PermitReply::Waiting);
    let waits = |event: &Event| {
        matches!(event, Event::CallWaiting { waiting_for: WaitingFor::Capacity, .. })
    };
    assert_eq!(driver.count(waits), 1);
    let deadline = Duration::from_secs(3660);
    assert_eq!(driver.turn.poll_timeout(), Some(deadline));
    driver.now = deadline;
    driver.turn.handle_timeout(deadline);
    driver.pump();
    driver.ended(&TurnEnd::Cancelled(CancelReason::RunTimeout));
    assert_eq!((&driver.permits_released[..], &driver.started[..]), (&[0][..], &[][..]));
    let text = "Error: not started: the run was ended before";
    driver.results(&[("capped", CANCELLED, NOT_STARTED, text)]);
}

#[test]
fn people_see_a_result_as_earlier_writes_leave_it_also_after_a_crash() {
    let mut driver = Driver::with(asking("effect", ApprovalPolicy::AFTER));
    driver.deltas([call(0, "barrier", "{}"), call(1, "effect", "{}")]).well();
    driver.used(0, "first", true);
    driver.used(1, "second", true);
    assert_eq!(
        driver.turn.pending_approval(key(1)).unwrap().output_summary.as_deref(),
        Some("second")
    );
    let records = driver.log.len();
    driver.crash(records).started(&[]);
    assert_eq!(asked(&driver), 1);
    assert_eq!(
        driver.turn.pending_approval(key(1)).unwrap().output_summary.as_deref(),
        Some("second")
    );
    approve(&mut driver, 1);
    let notes = &driver.commit.as_ref().unwrap().results[1].notes;
    assert_eq!(notes.after.as_ref().map(|said| said.verdict), Some(Verdict::Approved));
    let result = &driver.commit.as_ref().unwrap().results[1];
    assert_eq!((result.writes.0.len(), &*result.outcome.content), (1, "second"));
    // After another crash nobody is asked, whatever is known of the call.
    let records = driver.log.len();
    for kept in (0..=records).rev() {
        let given = |record: &Record| {
            matches!(record, Record::ApprovalGiven { phase: ApprovalPhase::After, .. })
        };
        if !driver.log[..kept].iter().any(given) {
            break;
        }
        let before = asked(&driver);
        driver.commit = None;
        driver.crash(kept).ended(&TurnEnd::Finished);
        assert_eq!(asked(&driver), before, "{kept} of {records} records");
    }
}

#[test]
fn a_stop_keeps_what_was_to_run_again_and_says_only_what_is_true_of_it() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{}"), call(1, "capped", "{}")]).well();
    driver.place(1, PermitReply::Granted);
    driver.used(1, "old", false);
    driver.used(0, "written", true);
    assert_eq!(driver.permits_requested, [1, 1], "it is to run again");
    driver.cancel();
    assert_eq!(driver.permits_released, [1]);
    let stale = format!("old{STALE}");
    driver.results(&[("effect", OK, None, "written"), ("capped", OK, None, &stale)]);
    let notes = &driver.commit.as_ref().unwrap().results[1].notes;
    assert!(notes.conflict && !notes.writes_dropped);
}

#[test]
fn a_duplicate_gets_a_copy_of_a_result_that_a_stop_decides() {
    let mut driver = Driver::with(rules(PARALLEL));
    let two_reads = [call(1, "pure", "{}"), call(2, "pure", "{}")];
    driver.deltas([call(0, "effect", "{}")]).deltas(two_reads).well();
    driver.used(1, "read", false);
    driver.cancel();
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    driver.results(&[
        ("effect", CANCELLED, Some(FailureKind::Cancelled), perhaps),
        ("pure", OK, None, "read"),
        ("pure", OK, None, "read"),
    ]);
    let results = &driver.commit.as_ref().unwrap().results;
    assert_eq!(results[2].notes.duplicate_of, Some(key(1)));
}
