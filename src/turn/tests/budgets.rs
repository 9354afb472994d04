//! A turn that uses up what its run has left.

use super::*;
use crate::turn::Budget;
use crate::turn::fixtures::usage;

const BUDGET: TurnEnd = TurnEnd::Cancelled(CancelReason::Budget);

/// A run that may use 300 tokens and has 100 left.
fn hundred_tokens() -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tokens_per_run = Some(300);
    let budget = Budget { tokens_left: Some(100), calls_left: None };
    Driver::new(TurnSpec { budget, ..spec(rules) })
}

/// A run that may make 5 calls and has some left.
fn calls_left(left: u32, change: impl FnOnce(&mut TurnSpec, &mut TurnRules)) -> Driver {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_run = Some(5);
    let mut spec = spec(rules.clone());
    spec.budget = Budget { tokens_left: None, calls_left: Some(left) };
    change(&mut spec, &mut rules);
    spec.rules = Arc::new(rules);
    Driver::new(spec)
}

fn told(limit: &str, value: u64, maximum: u64) -> Vec<(String, u64, u64, String)> {
    vec![(limit.to_owned(), value, maximum, "ended".to_owned())]
}

fn tokens(value: u64) -> Vec<(String, u64, u64, String)> {
    told("max_tokens_per_run", value, 300)
}

#[test]
fn a_response_that_costs_too_much_is_cut_and_what_runs_is_aborted() {
    let mut driver = hundred_tokens();
    driver.deltas([text("so"), call(0, "pure", "{}"), call(1, "effect", "{}"), usage(100)]);
    assert_eq!((driver.disconnects, driver.limits()), (0, vec![]));
    driver.started(&["pure#0"]);
    driver.deltas([usage(101)]);
    assert_eq!((driver.disconnects, driver.limits()), (1, tokens(301)));
    assert_eq!(driver.aborted, [0]);
    driver.ended(&BUDGET);
    driver.results(&[
        ("pure", CANCELLED, Some(FailureKind::Cancelled), "Error: cancelled while running"),
        ("effect", CANCELLED, NOT_STARTED, "Error: not started: the run was ended before"),
    ]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!((record.message.as_ref().unwrap().text.as_str(), record.usage.total()), ("so", 101));
}

#[test]
fn a_complete_answer_stands_whatever_it_costs_and_calls_beside_it_do_not_start() {
    for in_one in [true, false] {
        let mut driver = hundred_tokens();
        let deltas = [text("noon"), usage(101), finish(FinishKind::Stop)];
        if in_one {
            driver.deltas(deltas);
        } else {
            let [text, usage, finish] = deltas;
            driver.deltas([text, finish]).deltas([usage]);
        }
        driver.close();
        driver.ended(&TurnEnd::Finished);
        assert_eq!((driver.disconnects, driver.limits()), (0, vec![]));
    }
    let mut driver = hundred_tokens();
    driver.deltas([call(0, "pure", "{}"), finish(FinishKind::ToolCalls)]).deltas([usage(101)]);
    driver.started(&[]);
    driver.ended(&BUDGET);
    let text = "Error: not started: the run was ended before";
    driver.results(&[("pure", CANCELLED, NOT_STARTED, text)]);
    let mut refused = hundred_tokens();
    refused.deltas([call(0, "pure", "{}"), finish(FinishKind::ContentFilter), usage(101)]).close();
    refused.ended(&TurnEnd::Refused);
}

#[test]
fn failed_attempts_are_paid_for_and_there_is_no_other_when_nothing_is_left() {
    let mut driver = hundred_tokens();
    driver.deltas([usage(60)]).broken();
    driver.deltas([text("so"), usage(40)]);
    assert_eq!((driver.requests.len(), driver.disconnects), (2, 0));
    driver.deltas([usage(41)]);
    assert_eq!((driver.disconnects, driver.limits()), (1, tokens(301)));
    driver.ended(&BUDGET);
    let mut driver = hundred_tokens();
    driver.deltas([text("so"), usage(100)]).broken();
    assert_eq!((driver.requests.len(), driver.limits()), (1, tokens(300)));
    driver.ended(&BUDGET);
    // Trouble that no other attempt would mend is told as what it is.
    let mut driver = hundred_tokens();
    driver.deltas([usage(100)]);
    let mut error = ProviderError::new(ProviderErrorKind::InStream, "denied");
    error.status = Some(401);
    driver.turn.handle_response_end(driver.now, ExchangeEnd::Failed(error));
    driver.pump();
    assert!(matches!(driver.commit.as_ref().unwrap().end, TurnEnd::Failed(_)));
}

#[test]
fn a_call_beyond_the_runs_ends_the_turn_as_it_opens() {
    let mut driver = calls_left(1, |_, _| ());
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{}")]);
    driver.ended(&BUDGET);
    driver.started(&[]);
    let text = "Error: not started: the run was ended before";
    driver.results(&[("pure", CANCELLED, NOT_STARTED, text)]);
    let limits = told("max_tool_calls_per_run", 6, 5);
    assert_eq!((driver.disconnects, driver.limits()), (1, limits));
    assert_eq!(driver.commit.as_ref().unwrap().dropped_calls, ["effect".into()]);
}

#[test]
fn calls_that_are_not_kept_are_not_counted() {
    let two = || [call(0, "pure", "{}"), call(1, "pure", "{\"n\":1}")];
    let mut last = calls_left(0, |spec, _| spec.last_request = true);
    last.deltas(two()).well().ended(&TurnEnd::Finished);
    let mut single = calls_left(1, |_, rules| rules.multi_tool_calls = false);
    single.deltas(two()).well().done(0, "").ended(&TurnEnd::Finished);
    let mut truncated = calls_left(1, |_, rules| {
        rules.limits.max_tool_calls_per_turn = Some(1);
        rules.limits.on_excess = OnExcess::Truncate;
    });
    truncated.deltas(two()).well().done(0, "").ended(&TurnEnd::Finished);
}

#[test]
fn after_a_crash_the_run_still_ends_over_its_budget() {
    let mut driver = hundred_tokens();
    driver.deltas([text("so"), usage(100)]).broken();
    let records = driver.log.len();
    // From the failed attempt on it is known what was spent.
    for kept in 2..=records {
        let mut driver = hundred_tokens();
        driver.deltas([text("so"), usage(100)]).broken();
        driver.commit = None;
        driver.crash(kept);
        driver.ended(&BUDGET);
        let told = driver.log.iter().filter(|r| matches!(r, Record::LimitReached { .. })).count();
        assert_eq!((driver.requests.len(), told), (1, 1), "{kept} of {records} records");
    }
}
