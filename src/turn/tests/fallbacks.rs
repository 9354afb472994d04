//! When the next of the agent's models is asked, and what it finds.

use std::sync::Arc;

use super::super::fixtures::model;
use super::super::{ModelPlan, ModelPlans};
use super::*;

/// Two attempts with `main`, then one with `backup`, which does not stream.
fn two_models() -> TurnRules {
    let backup = ModelPlan { streamed: false, ..model("backup", 1) };
    let models = ModelPlans::new(model("main", 2), vec![backup]);
    TurnRules { models: Arc::new(models), ..rules(PARALLEL) }
}

fn denied(driver: &mut Driver) {
    let denied = ProviderError::new(ProviderErrorKind::Status, "no such key");
    let end = ExchangeEnd::Failed(ProviderError { status: Some(401), ..denied });
    driver.turn.handle_response_end(driver.now, end);
    driver.pump();
}

/// The models that were asked, by the records.
fn asked(driver: &Driver) -> Vec<(u32, &str)> {
    let asked = driver.log.iter().filter_map(|record| match record {
        Record::AttemptStarted { attempt, model, .. } => Some((*attempt, model.as_str())),
        _ => None,
    });
    asked.collect()
}

/// What was told of another attempt: model, whether it is a rollback, whether a fallback.
fn told(driver: &Driver) -> Vec<(&str, bool, bool)> {
    let told = driver.events.iter().filter_map(|event| match event {
        Event::AttemptStarted { model, rollback, fallback, .. } => {
            Some((model.as_str(), *rollback, *fallback))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn the_next_model_begins_when_the_attempts_with_the_first_are_used_up() {
    let mut driver = Driver::with(two_models());
    driver.broken();
    // The wait before the second attempt is over.
    driver.now = Duration::from_secs(1);
    driver.broken();
    assert_eq!(driver.requests, [(1, true), (2, true), (3, false)]);
    assert_eq!(asked(&driver), [(1, "main"), (2, "main"), (3, "backup")]);
    assert_eq!(told(&driver), [("main", false, false), ("backup", false, true)]);
    driver.deltas([text("Here."), finish(FinishKind::Stop)]).close().ended(&TurnEnd::Finished);
    let exchanges = driver.events.iter().filter_map(|event| match event {
        Event::AttemptEnded { model, .. } => Some(model.as_str()),
        _ => None,
    });
    assert_eq!(exchanges.collect::<Vec<_>>(), ["main", "main", "backup"]);
}

/// The model of the open attempt is not asked, and may be in so many seconds.
fn not_asked(driver: &mut Driver, seconds: u64) {
    let unavailable = ProviderError::new(ProviderErrorKind::Unavailable, "it is not asked");
    let retry_after = Some(Duration::from_secs(seconds));
    let end = ExchangeEnd::Failed(ProviderError { retry_after, ..unavailable });
    driver.turn.handle_response_end(driver.now, end);
    driver.pump();
}

#[test]
fn a_model_that_is_not_asked_gives_way_at_once_and_the_last_is_waited_for() {
    let mut driver = Driver::with(two_models());
    not_asked(&mut driver, 30);
    assert_eq!(told(&driver), [("backup", false, true)]);
    not_asked(&mut driver, 30);
    driver.now = Duration::from_secs(30);
    not_asked(&mut driver, 60);
    assert_eq!(asked(&driver), [(1, "main"), (2, "backup"), (3, "backup"), (4, "backup")]);
    let waits = driver.events.iter().filter_map(|event| match event {
        Event::AttemptStarted { wait, .. } => Some(wait.as_secs()),
        _ => None,
    });
    assert_eq!(waits.collect::<Vec<_>>(), [0, 30, 60]);
    driver.now = Duration::from_secs(90);
    driver.deltas([text("Here."), finish(FinishKind::Stop)]).close().ended(&TurnEnd::Finished);
}

#[test]
fn an_exchange_is_measured_from_the_moment_at_which_its_request_has_a_place() {
    let durations = |driver: &Driver| -> Vec<u64> {
        let ended = driver.events.iter().filter_map(|event| match event {
            Event::AttemptEnded { duration, .. } => Some(duration.as_secs()),
            _ => None,
        });
        ended.collect()
    };
    let waiting = || {
        let mut driver = Driver::with(two_models());
        driver.turn.handle_model_permit(Duration::from_secs(1), PermitReply::Waiting);
        driver.now = Duration::from_secs(9);
        driver
    };
    let mut driver = waiting();
    driver.turn.handle_model_permit(driver.now, PermitReply::Granted);
    driver.now = Duration::from_secs(12);
    driver.deltas([text("Here."), finish(FinishKind::Stop)]).close().ended(&TurnEnd::Finished);
    assert_eq!(durations(&driver), [3]);
    // Whoever leaves the queue has asked nobody.
    let mut driver = waiting();
    driver.turn.handle_cancel(driver.now, CancelReason::Stop);
    driver.pump();
    assert!(durations(&driver).is_empty());
    // And that the model is not asked any more is told.
    let mut driver = waiting();
    not_asked(&mut driver, 30);
    assert_eq!(durations(&driver), [0]);
}

#[test]
fn a_message_is_of_the_model_that_said_it() {
    let said_by = |driver: &Driver| {
        let message = driver.commit.as_ref().unwrap().message.clone().unwrap();
        message.origin.as_ref().unwrap().model.clone()
    };
    let answer = || [text("Here."), finish(FinishKind::Stop)];
    let mut first = Driver::with(two_models());
    first.broken().deltas(answer()).close();
    assert_eq!(said_by(&first), "main");
    let mut fallen_back = Driver::with(two_models());
    denied(&mut fallen_back);
    fallen_back.deltas(answer()).close();
    assert_eq!(said_by(&fallen_back), "backup");
    let mut after_a_crash = Driver::with(two_models());
    denied(&mut after_a_crash);
    let records = after_a_crash.log.len();
    after_a_crash.crash(records).deltas(answer()).close();
    assert_eq!(said_by(&after_a_crash), "backup");
}

#[test]
fn when_the_last_model_fails_too_the_turn_fails_with_its_words() {
    let mut driver = Driver::with(two_models());
    driver.broken().broken();
    denied(&mut driver);
    let end = &driver.commit.as_ref().unwrap().end;
    let is_last = |end: &TurnEnd| matches!(end, TurnEnd::Failed(error) if error.message == "no such key" && !error.transient);
    assert!(is_last(end), "{end:?}");
    assert_eq!(driver.requests.len(), 3);
}

#[test]
fn a_pure_result_of_one_model_is_used_by_the_next_and_calls_are_counted_on() {
    let mut driver = Driver::with(two_models());
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).done(0, "noon");
    denied(&mut driver);
    assert_eq!(asked(&driver), [(1, "main"), (2, "backup")]);
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}")]).well();
    driver.started(&["pure#0", "effect#1"]);
    driver.done(1, "sent");
    driver.results(&[("pure", OK, None, "noon"), ("effect", OK, None, "sent")]);
    let record = driver.commit.as_ref().unwrap();
    let ids: Vec<_> = record.results.iter().map(|result| result.call.key.to_string()).collect();
    assert_eq!(ids, ["t1a2c0", "t1a2c1"]);
    assert!(record.results[0].notes.reused);
}

#[test]
fn once_an_effect_has_started_no_other_model_is_asked() {
    let mut driver = Driver::with(two_models());
    driver.deltas([call(0, "seal", "{}"), call(1, "pure", "{")]);
    denied(&mut driver);
    driver.done(0, "sent").ended(&TurnEnd::Finished);
    assert_eq!(driver.requests.len(), 1);
}

#[test]
fn after_a_crash_the_model_that_was_asked_last_is_asked_again() {
    let mut driver = Driver::with(two_models());
    denied(&mut driver);
    let records = driver.log.len();
    driver.crash(records);
    assert_eq!(asked(&driver), [(1, "main"), (2, "backup"), (3, "backup")]);
    assert_eq!(driver.requests.last(), Some(&(3, false)));
    let again = ("backup", false, false);
    assert_eq!(told(&driver).last(), Some(&again), "the crash was no model's fault");
    driver.broken();
    assert!(matches!(driver.commit.as_ref().unwrap().end, TurnEnd::Failed(_)));
}

#[test]
fn what_follows_in_the_chunk_that_ended_an_attempt_is_not_the_next_ones() {
    let mut driver = Driver::with(two_models());
    let too_large = ProviderError::new(ProviderErrorKind::TooLarge, "the response is too large");
    driver.deltas([Delta::Error(too_large), text("of the first"), call(0, "pure", "{}")]);
    assert_eq!(asked(&driver), [(1, "main"), (2, "backup")]);
    driver.started(&[]);
    driver.deltas([text("of the second"), finish(FinishKind::Stop)]).close();
    driver.ended(&TurnEnd::Finished);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.message.as_ref().unwrap().text, "of the second");
}
