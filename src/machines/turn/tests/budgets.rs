//! Turns that exceed the budget of their run.

use super::*;
use crate::turn::Budget;
use crate::turn::fixtures::usage;

const BUDGET: TurnEnd = TurnEnd::Cancelled(CancelReason::Budget);

/// Drives a turn of a run with a limit of 300 tokens, of which 100 are left.
fn hundred_tokens() -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tokens_per_run = Some(300);
    let budget = Budget { tokens_left: Some(100), calls_left: None };
    Driver::new(TurnSpec { budget, ..spec(rules) })
}

/// Drives a turn of a run with a limit of 5 calls, of which `left` are left.
fn calls_left(left: u32, change: impl FnOnce(&mut TurnSpec, &mut RunRules)) -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_run = Some(5);
    let mut spec = spec(rules.clone());
    spec.budget = Budget { tokens_left: None, calls_left: Some(left) };
    change(&mut spec, &mut rules);
    spec.rules = Arc::new(rules);
    Driver::new(spec)
}

fn limit_ended(limit: &str, value: u64, maximum: u64) -> Vec<(String, u64, u64, String)> {
    vec![(limit.to_owned(), value, maximum, "ended".to_owned())]
}

fn tokens(value: u64) -> Vec<(String, u64, u64, String)> {
    limit_ended("max_tokens_per_run", value, 300)
}

#[test]
fn a_response_over_the_token_budget_is_cut_off_and_running_calls_are_aborted() {
    let mut driver = hundred_tokens();
    driver.receive([text("so"), call(0, "pure", "{}"), call(1, "effect", "{}"), usage(100)]);
    assert_eq!((driver.disconnects, driver.reached_limits()), (0, vec![]));
    driver.assert_started(&["pure#0"]);
    driver.receive([usage(101)]);
    assert_eq!((driver.disconnects, driver.reached_limits()), (1, tokens(301)));
    assert_eq!(driver.aborted, [0]);
    driver.assert_end(&BUDGET);
    driver.assert_results(&[
        ("pure", CANCELLED, Some(FailureKind::Cancelled), "Error: cancelled while running"),
        ("effect", CANCELLED, NOT_STARTED, "Error: not started: the run was ended before"),
    ]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!((record.message.as_ref().unwrap().text.as_str(), record.usage.total()), ("so", 101));
}

#[test]
fn a_complete_answer_over_the_token_budget_is_kept_and_its_calls_do_not_start() {
    for in_one in [true, false] {
        let mut driver = hundred_tokens();
        let deltas = [text("noon"), usage(101), finish(FinishKind::Stop)];
        if in_one {
            driver.receive(deltas);
        } else {
            let [text, usage, finish] = deltas;
            driver.receive([text, finish]).receive([usage]);
        }
        driver.close_stream();
        driver.assert_end(&TurnEnd::Finished);
        assert_eq!((driver.disconnects, driver.reached_limits()), (0, vec![]));
    }
    let mut driver = hundred_tokens();
    driver.receive([call(0, "pure", "{}"), finish(FinishKind::ToolCalls)]).receive([usage(101)]);
    driver.assert_started(&[]);
    driver.assert_end(&BUDGET);
    let text = "Error: not started: the run was ended before";
    driver.assert_results(&[("pure", CANCELLED, NOT_STARTED, text)]);
    let mut refused = hundred_tokens();
    refused
        .receive([call(0, "pure", "{}"), finish(FinishKind::ContentFilter), usage(101)])
        .close_stream();
    refused.assert_end(&TurnEnd::Refused);
}

#[test]
fn failed_attempts_use_the_token_budget_and_no_attempt_follows_without_tokens() {
    let mut driver = hundred_tokens();
    driver.receive([usage(60)]).break_off();
    driver.receive([text("so"), usage(40)]);
    assert_eq!((driver.requests.len(), driver.disconnects), (2, 0));
    driver.receive([usage(41)]);
    assert_eq!((driver.disconnects, driver.reached_limits()), (1, tokens(301)));
    driver.assert_end(&BUDGET);
    let mut driver = hundred_tokens();
    driver.receive([text("so"), usage(100)]).break_off();
    assert_eq!((driver.requests.len(), driver.reached_limits()), (1, tokens(300)));
    driver.assert_end(&BUDGET);
    // A permanent error ends the turn with that error, not with the limit.
    let mut driver = hundred_tokens();
    driver.receive([usage(100)]);
    let mut error = ProviderError::new(ProviderErrorKind::InStream, "denied");
    error.status = Some(401);
    driver.turn.handle_response_end(driver.now, ExchangeEnd::Failed(error));
    driver.perform_effects();
    assert!(matches!(driver.commit.as_ref().unwrap().end, TurnEnd::Failed(_)));
}

#[test]
fn a_call_over_max_tool_calls_per_run_ends_the_turn_when_it_opens() {
    let mut driver = calls_left(1, |_, _| ());
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{}")]);
    driver.assert_end(&BUDGET);
    driver.assert_started(&[]);
    let text = "Error: not started: the run was ended before";
    driver.assert_results(&[("pure", CANCELLED, NOT_STARTED, text)]);
    let limits = limit_ended("max_tool_calls_per_run", 6, 5);
    assert_eq!((driver.disconnects, driver.reached_limits()), (1, limits));
    assert_eq!(driver.commit.as_ref().unwrap().dropped_calls, ["effect".into()]);
}

#[test]
fn the_open_lease_of_a_child_counts_towards_max_tool_calls_per_run() {
    let mut driver = calls_left(4, |_, _| ());
    // The call of the agent starts at its seal, and its child may make one call.
    driver.receive([call(0, "eager_agent", "{}"), call(1, "effect", "{}")]);
    driver.assert_started(&["eager_agent#0"]).receive([call(2, "pure", "{}")]);
    assert!(driver.reached_limits().is_empty());
    driver.receive([call(3, "effect", "{\"n\":1}")]);
    assert_eq!(driver.reached_limits(), limit_ended("max_tool_calls_per_run", 6, 5));
    driver.finish_call(0, "late").assert_end(&BUDGET);
}

#[test]
fn dropped_calls_use_no_budget() {
    let two = || [call(0, "pure", "{}"), call(1, "pure", "{\"n\":1}")];
    let mut last = calls_left(0, |spec, _| {
        spec.request_kind = callsheet_values::types::RequestKind::FinalAnswer
    });
    last.receive(two()).end_well().assert_end(&TurnEnd::Finished);
    let mut single = calls_left(1, |_, rules| rules.multi_tool_calls = false);
    single.receive(two()).end_well().finish_call(0, "").assert_end(&TurnEnd::Finished);
    let mut truncated = calls_left(1, |_, rules| {
        rules.limits.max_tool_calls_per_turn = Some(1);
        rules.limits.on_excess = OnExcess::Truncate;
    });
    truncated.receive(two()).end_well().finish_call(0, "").assert_end(&TurnEnd::Finished);
}

#[test]
fn a_run_over_its_budget_ends_after_a_crash_too() {
    let mut driver = hundred_tokens();
    driver.receive([text("so"), usage(100)]).break_off();
    let records = driver.log.len();
    // From the record of the failed attempt on, the usage is known.
    for kept in 2..=records {
        let mut driver = hundred_tokens();
        driver.receive([text("so"), usage(100)]).break_off();
        driver.commit = None;
        driver.crash(kept);
        driver.assert_end(&BUDGET);
        let limits = driver.log.iter().filter(|r| matches!(r, Record::LimitReached { .. })).count();
        assert_eq!((driver.requests.len(), limits), (1, 1), "{kept} of {records} records");
    }
}

#[test]
fn the_end_of_the_runs_time_is_recorded_once_while_a_child_still_ends() {
    let mut spec = spec(rules(PARALLEL));
    spec.run_time_left = Some(Duration::from_secs(30));
    let mut driver = Driver::new(spec);
    driver.receive([call(0, "agent", "{}")]);
    driver.end_well();
    for seconds in [30, 31] {
        driver.now = Duration::from_secs(seconds);
        driver.turn.handle_timeout(driver.now);
        driver.perform_effects();
    }
    assert_eq!((&*driver.aborted, driver.turn.poll_timeout()), (&[0][..], None));
    driver.finish_call(0, "late");
    let limits = driver.reached_limits().into_iter().map(|(limit, ..)| limit);
    assert_eq!(limits.collect::<Vec<_>>(), ["run_timeout"]);
}
