//! Interactions of approvals, tool permits, variables, stops and crashes.

use super::*;
use crate::contract::ToolSpec;
use crate::turn::ApprovalDecision;
use callsheet_values::config::ApprovalPolicy;
use callsheet_values::event::WaitingFor;
use callsheet_values::types::{ApprovalVerdict, WaitPhase};

const CONFLICT_NOTE: &str = "\n[callsheet: an earlier call of the same response changed variables after \
                     this call had read them: x. This result rests on the older values.]";

/// Returns the rules of the fixtures with an approval policy for one tool.
fn with_approval(tool: &str, approval: ApprovalPolicy) -> RunRules {
    let mut rules = rules(PARALLEL);
    let spec = ToolSpec::clone(&rules.tools[tool]).approval(approval);
    rules.tools.insert(tool.into(), Arc::new(spec));
    rules
}

fn approve(driver: &mut Driver, index: u32) {
    let request = driver.turn.pending_approval(key(index)).expect("an approval is pending");
    let decision = ApprovalDecision {
        phase: Some(request.phase),
        verdict: ApprovalVerdict::Approved,
        message: None,
        arguments_sha256: request.arguments_sha256,
        content: None,
        author: None,
    };
    driver
        .turn
        .handle_approval(driver.now, key(index), decision)
        .expect("the decision is accepted");
    driver.perform_effects();
}

fn requested_approvals(driver: &Driver) -> usize {
    driver.count_events(|event| matches!(event, Event::ApprovalAsked { .. }))
}

#[test]
fn a_rerun_needs_no_second_approval_but_another_permit() {
    let mut driver = Driver::with(with_approval("capped", ApprovalPolicy::BEFORE));
    driver.receive([call(0, "effect", "{}"), call(1, "capped", "{}")]).end_well();
    assert_eq!(driver.permits_requested, [0; 0], "no permit is requested before the approval");
    approve(&mut driver, 1);
    assert_eq!(driver.permits_requested, [1]);
    driver.answer_permit(1, PermitReply::Granted);
    driver.finish_call_using_x(1, "old", false);
    driver.finish_call_using_x(0, "written", true);
    assert_eq!((requested_approvals(&driver), &driver.permits_requested[..]), (1, &[1, 1][..]));
    driver.answer_permit(1, PermitReply::Granted);
    driver.finish_call_using_x(1, "new", false);
    driver.assert_results(&[("effect", OK, None, "written"), ("capped", OK, None, "new")]);
    assert_eq!(driver.permits_released, [0; 0]);
}

#[test]
fn time_in_which_an_approved_call_waits_for_a_permit_counts_towards_run_timeout() {
    let rules = with_approval("capped", ApprovalPolicy::BEFORE);
    let run_time_left = Some(Duration::from_secs(60));
    let mut driver = Driver::new(TurnSpec { run_time_left, ..spec(rules) });
    driver.receive([call(0, "capped", "{}")]).end_well();
    driver.now = Duration::from_secs(3600);
    approve(&mut driver, 0);
    driver.answer_permit(0, PermitReply::Waiting);
    let waits = |event: &Event| {
        matches!(event, Event::CallWaiting { waiting_for: WaitingFor::Capacity, .. })
    };
    assert_eq!(driver.count_events(waits), 1);
    let deadline = Duration::from_secs(3660);
    assert_eq!(driver.turn.poll_timeout(), Some(deadline));
    driver.now = deadline;
    driver.turn.handle_timeout(deadline);
    driver.perform_effects();
    driver.assert_end(&TurnEnd::Cancelled(CancelReason::RunTimeout));
    assert_eq!((&driver.permits_released[..], &driver.started[..]), (&[0][..], &[][..]));
    let text = "Error: not started: the run was ended before";
    driver.assert_results(&[("capped", CANCELLED, NOT_STARTED, text)]);
}

#[test]
fn a_review_shows_the_resolved_result_also_after_a_crash() {
    let mut driver = Driver::with(with_approval("effect", ApprovalPolicy::AFTER));
    driver.receive([call(0, "barrier", "{}"), call(1, "effect", "{}")]).end_well();
    driver.finish_call_using_x(0, "first", true);
    driver.finish_call_using_x(1, "second", true);
    assert_eq!(
        driver.turn.pending_approval(key(1)).unwrap().output_summary.as_deref(),
        Some("second")
    );
    let records = driver.log.len();
    driver.crash(records).assert_started(&[]);
    assert_eq!(requested_approvals(&driver), 1);
    assert_eq!(
        driver.turn.pending_approval(key(1)).unwrap().output_summary.as_deref(),
        Some("second")
    );
    approve(&mut driver, 1);
    let notes = &driver.commit.as_ref().unwrap().results[1].notes;
    assert_eq!(notes.after.as_ref().map(|given| given.verdict), Some(ApprovalVerdict::Approved));
    let result = &driver.commit.as_ref().unwrap().results[1];
    assert_eq!((result.writes.0.len(), &*result.outcome.content), (1, "second"));
    // After another crash no approval is requested, with any number of later records.
    let records = driver.log.len();
    for kept in (0..=records).rev() {
        let given = |record: &Record| {
            matches!(record, Record::ApprovalGiven { phase: WaitPhase::After, .. })
        };
        if !driver.log[..kept].iter().any(given) {
            break;
        }
        let before = requested_approvals(&driver);
        driver.commit = None;
        driver.crash(kept).assert_end(&TurnEnd::Finished);
        assert_eq!(requested_approvals(&driver), before, "{kept} of {records} records");
    }
}

#[test]
fn a_stop_keeps_the_first_result_of_a_call_that_has_to_run_again() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", "{}"), call(1, "capped", "{}")]).end_well();
    driver.answer_permit(1, PermitReply::Granted);
    driver.finish_call_using_x(1, "old", false);
    driver.finish_call_using_x(0, "written", true);
    assert_eq!(driver.permits_requested, [1, 1], "the call has to run again");
    driver.cancel();
    assert_eq!(driver.permits_released, [1]);
    let with_note = format!("old{CONFLICT_NOTE}");
    driver.assert_results(&[("effect", OK, None, "written"), ("capped", OK, None, &with_note)]);
    let notes = &driver.commit.as_ref().unwrap().results[1].notes;
    assert!(notes.conflict && !notes.writes_dropped);
}

#[test]
fn a_duplicate_copies_a_result_that_a_stop_resolves() {
    let mut driver = Driver::with(rules(PARALLEL));
    let two_reads = [call(1, "pure", "{}"), call(2, "pure", "{}")];
    driver.receive([call(0, "effect", "{}")]).receive(two_reads).end_well();
    driver.finish_call_using_x(1, "read", false);
    driver.cancel();
    let may_have_happened = "Error: cancelled while running: it may or may not have happened";
    driver.assert_results(&[
        ("effect", CANCELLED, Some(FailureKind::Cancelled), may_have_happened),
        ("pure", OK, None, "read"),
        ("pure", OK, None, "read"),
    ]);
    let results = &driver.commit.as_ref().unwrap().results;
    assert_eq!(results[2].notes.duplicate_of, Some(key(1)));
}
