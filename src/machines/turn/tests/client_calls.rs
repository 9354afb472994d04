//! Calls that the client runs: hand-over, results, expiry, stops and crashes.

use super::*;
use crate::turn::ApprovalError;
use callsheet_values::event::WaitingFor;
use callsheet_values::types::WaitPhase;

const DAY: u64 = 24 * 60 * 60;

impl Driver {
    /// Sends the result of a call.
    fn answer_call(&mut self, index: u32, content: &str) -> Result<(), ApprovalError> {
        let outcome = ToolOutcome::ok(content);
        let accepted = self.turn.handle_client_result(self.now, self.key(index), outcome);
        self.perform_effects();
        accepted
    }

    /// Returns the calls that the client was told to run, with their arguments.
    fn handed(&self) -> Vec<(u32, String)> {
        let handed = self.events.iter().filter_map(|event| match event {
            Event::CallWaiting { call, waiting_for, arguments: input, by_client: true, .. } => {
                assert_eq!(*waiting_for, WaitingFor::Client);
                Some((call.key.index, input.to_string()))
            }
            _ => None,
        });
        handed.collect()
    }
}

fn calls(execution: Execution, names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules(execution));
    driver.receive((0..).zip(names).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.end_well();
    driver
}

fn arguments(index: u32) -> (u32, String) {
    (index, format!("{{\"n\":{index}}}"))
}

#[test]
fn a_call_of_the_client_waits_for_its_result_and_starts_no_tool() {
    let mut driver = calls(PARALLEL, &["client", "pure"]);
    assert_eq!(driver.handed(), [arguments(0)]);
    driver.assert_started(&["pure#1"]).finish_call(1, "b");
    // Nothing else runs, so that the clocks stand still.
    assert!(driver.turn.waits_only_for_people());
    assert_eq!(driver.answer_call(1, "x"), Err(ApprovalError::NoSuchApproval));
    driver.now = Duration::from_secs(3600);
    assert_eq!(driver.answer_call(0, "a"), Ok(()));
    assert_eq!(driver.answer_call(0, "c"), Err(ApprovalError::NoSuchApproval));
    driver.assert_results(&[("client", OK, None, "a"), ("pure", OK, None, "b")]);
    let record = driver.commit.as_ref().unwrap();
    assert!(record.results[0].notes.by_client && !record.results[1].notes.by_client);
    assert_eq!(record.results[0].duration, Duration::from_secs(3600));
    assert_eq!(record.times.people, Duration::from_secs(3600));
    assert_eq!(record.times.tools, Duration::ZERO);
}

#[test]
fn a_sequential_call_waits_for_the_client() {
    let mut driver = calls(Execution::Sequential, &["client", "client_pure", "effect"]);
    assert_eq!(driver.handed(), [arguments(0)]);
    driver.answer_call(0, "a").unwrap();
    assert_eq!(driver.handed(), [arguments(0), arguments(1)]);
    driver.assert_started(&[]);
    driver.answer_call(1, "b").unwrap();
    driver.assert_started(&["effect#2"]);
}

#[test]
fn a_client_call_holds_no_permit() {
    let mut driver = calls(Execution::Parallel { max: 1 }, &["client", "client", "effect"]);
    driver.assert_started(&["effect#2"]);
    assert_eq!(driver.handed().len(), 2);
}

#[test]
fn a_pure_call_is_handed_over_at_its_seal_and_one_with_effects_after_the_response() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "client_pure", "{}"), call(1, "client", "{}"), call(2, "pure", "")]);
    assert_eq!(driver.handed().len(), 1);
    driver.answer_call(0, "a").unwrap();
    driver.receive([more(2, "{}")]).end_well();
    assert_eq!(driver.handed().len(), 2);
    driver.answer_call(1, "b").unwrap();
    driver.finish_call(2, "c");
    assert!(driver.commit.is_some());
}

#[test]
fn a_result_of_a_void_attempt_is_reused_and_an_open_call_is_discarded() {
    let mut driver = Driver::with(rules(PARALLEL));
    let response = || [call(0, "client_pure", "{}"), call(1, "client_pure", "{\"n\":1}"), text("")];
    driver.receive(response()).receive([call(2, "pure", "{}")]);
    driver.answer_call(0, "a").unwrap();
    driver.break_off();
    let discarded = |event: &Event| matches!(event, Event::CallDiscarded { .. });
    assert!(driver.count_events(discarded) > 0);
    driver.receive(response()).end_well();
    // The client runs only the call that it has not answered again.
    assert_eq!(driver.handed().iter().filter(|(index, _)| *index == 0).count(), 1);
    driver.answer_call(1, "b").unwrap();
    driver.assert_results(&[("client_pure", OK, None, "a"), ("client_pure", OK, None, "b")]);
}

#[test]
fn a_call_without_a_result_times_out_by_wall_time() {
    let mut driver = calls(PARALLEL, &["client", "client_pure"]);
    driver.now = Duration::from_secs(DAY - 1);
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    assert!(driver.commit.is_none());
    driver.now = Duration::from_secs(DAY);
    assert_eq!(driver.turn.poll_timeout(), Some(driver.now));
    driver.turn.handle_timeout(driver.now);
    driver.perform_effects();
    let text = "Error: no result from the client within 86400s";
    let effect = format!("{text}: it may or may not have happened");
    let timeout = Some(FailureKind::Timeout);
    driver.assert_results(&[
        ("client", ToolStatus::TimedOut, timeout, &effect),
        ("client_pure", ToolStatus::TimedOut, timeout, text),
    ]);
    let limit = ("approval_timeout".to_owned(), DAY * 1000, DAY * 1000, "timed_out".to_owned());
    assert_eq!(driver.reached_limits(), [limit.clone(), limit]);
    assert_eq!(driver.answer_call(0, "late"), Err(ApprovalError::NoSuchApproval));
}

#[test]
fn a_stop_answers_a_call_of_the_client() {
    let mut driver = calls(PARALLEL, &["client", "client_pure"]);
    driver.cancel();
    let cancelled = Some(FailureKind::Cancelled);
    let text = "Error: cancelled while running";
    let effect = format!("{text}: it may or may not have happened");
    driver.assert_results(&[
        ("client", CANCELLED, cancelled, &effect),
        ("client_pure", CANCELLED, cancelled, text),
    ]);
    assert!(driver.aborted.is_empty());
}

#[test]
fn approvals_come_before_the_client_and_after_it() {
    let mut driver = calls(PARALLEL, &["client_both"]);
    assert_eq!(driver.handed(), []);
    driver.decide_approval(0, callsheet_values::types::ApprovalVerdict::Approved);
    assert_eq!(driver.handed(), [arguments(0)]);
    driver.answer_call(0, "secret").unwrap();
    assert!(driver.commit.is_none());
    let asked = driver.turn.pending_approvals().collect::<Vec<_>>();
    assert_eq!(asked, [(driver.key(0), WaitPhase::After)]);
    driver.decide_approval(0, callsheet_values::types::ApprovalVerdict::Approved);
    driver.assert_results(&[("client_both", OK, None, "secret")]);
}

#[test]
fn an_identical_call_copies_the_result_of_the_client() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "client", "{}"), call(1, "client", "{}")]).end_well();
    assert_eq!(driver.handed().len(), 1);
    driver.answer_call(0, "a").unwrap();
    driver.assert_results(&[("client", OK, None, "a"), ("client", OK, None, "a")]);
}

#[test]
fn invalid_arguments_never_reach_the_client() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "client", r#"{"n":"x"}"#)]).end_well();
    assert_eq!(driver.handed(), []);
    let result = &driver.commit.as_ref().unwrap().results[0];
    assert_eq!(result.outcome.kind, Some(FailureKind::InvalidArguments));
}

#[test]
fn a_crash_asks_the_client_no_second_time_and_takes_its_result() {
    let mut driver = calls(PARALLEL, &["client"]);
    let kept = driver.log.len();
    driver.events.clear();
    driver.crash(kept);
    assert_eq!(driver.log.len(), kept, "the hand-over was recorded twice");
    // Clients that watch learn that the call is still open.
    assert_eq!(driver.handed(), [arguments(0)]);
    driver.answer_call(0, "a").unwrap();
    driver.assert_results(&[("client", OK, None, "a")]);
}

#[test]
fn a_call_whose_hand_over_was_lost_is_handed_over_again() {
    let mut driver = calls(PARALLEL, &["client"]);
    let lost = driver.log.len() - 1;
    assert!(matches!(driver.log[lost], Record::ApprovalAsked { .. }));
    driver.crash(lost);
    assert_eq!(driver.log.len(), lost + 1);
    driver.answer_call(0, "a").unwrap();
    driver.assert_results(&[("client", OK, None, "a")]);
}
