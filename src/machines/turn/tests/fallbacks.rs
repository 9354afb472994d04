//! Retries and fallback models in a turn.

use std::sync::Arc;

use super::super::fixtures::{model, spec};
use super::super::{ModelPlan, ModelPlans, TurnSpec};
use super::*;
use crate::context::exclusion::Excludable;
use callsheet_values::event::AttemptFallback;
use callsheet_values::types::{ContentRefusal, FinishReason, RefusalDetails, ToolRefusal};

/// Returns rules with two attempts with `main`, and one with `backup`, which does not stream.
fn two_models() -> RunRules {
    let backup = ModelPlan { streamed: false, ..model("backup", 1) };
    let models = ModelPlans::new(model("main", 2), vec![backup]);
    RunRules { models: Arc::new(models), ..rules(PARALLEL) }
}

fn denied(driver: &mut Driver) {
    let denied = ProviderError::new(ProviderErrorKind::Status, "no such key");
    let end = ExchangeEnd::Failed(ProviderError { status: Some(401), ..denied });
    driver.turn.handle_response_end(driver.now, end);
    driver.perform_effects();
}

/// Returns the recorded attempts with their models.
fn attempts(driver: &Driver) -> Vec<(u32, &str)> {
    let attempts = driver.log.iter().filter_map(|record| match record {
        Record::AttemptStarted { attempt, model, .. } => Some((*attempt, model.as_str())),
        _ => None,
    });
    attempts.collect()
}

/// Returns the published retries: the model, and what it falls back to.
fn retries(driver: &Driver) -> Vec<(&str, Option<AttemptFallback>)> {
    let mut fallback = None;
    let retries = driver.events.iter().filter_map(|event| {
        if let Event::AttemptFellBack { to } = event {
            fallback = Some(*to);
        }
        let Event::AttemptStarted { model, .. } = event else { return None };
        Some((model.as_str(), fallback.take()))
    });
    retries.collect()
}

#[test]
fn the_next_model_begins_when_the_attempts_with_the_first_are_used_up() {
    let mut driver = Driver::with(two_models());
    driver.break_off();
    // The backoff before the second attempt is over.
    driver.now = Duration::from_secs(1);
    driver.break_off();
    assert_eq!(driver.requests, [(1, true), (2, true), (3, false)]);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "main"), (3, "backup")]);
    assert_eq!(retries(&driver), [("main", None), ("backup", Some(AttemptFallback::NextModel))]);
    driver
        .receive([text("Here."), finish(FinishKind::Stop)])
        .close_stream()
        .assert_end(&TurnEnd::Finished);
    let exchanges = driver.events.iter().filter_map(|event| match event {
        Event::AttemptEnded { model, .. } => Some(model.as_str()),
        _ => None,
    });
    assert_eq!(exchanges.collect::<Vec<_>>(), ["main", "main", "backup"]);
}

/// The circuit breaker refuses the request of the open attempt for this number of seconds.
fn refuse_request(driver: &mut Driver, seconds: u64) {
    let unavailable = ProviderError::new(ProviderErrorKind::BreakerOpen, "the breaker is open");
    let retry_after = Some(Duration::from_secs(seconds));
    let end = ExchangeEnd::Failed(ProviderError { retry_after, ..unavailable });
    driver.turn.handle_response_end(driver.now, end);
    driver.perform_effects();
}

#[test]
fn a_refusal_of_the_breaker_leads_to_the_next_model_and_the_last_model_is_waited_for() {
    let mut driver = Driver::with(two_models());
    refuse_request(&mut driver, 30);
    assert_eq!(retries(&driver), [("backup", Some(AttemptFallback::NextModel))]);
    refuse_request(&mut driver, 30);
    driver.now = Duration::from_secs(30);
    refuse_request(&mut driver, 60);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "backup"), (3, "backup"), (4, "backup")]);
    let waits = driver.events.iter().filter_map(|event| match event {
        Event::AttemptStarted { wait, .. } => Some(wait.as_secs()),
        _ => None,
    });
    assert_eq!(waits.collect::<Vec<_>>(), [0, 30, 60]);
    driver.now = Duration::from_secs(90);
    driver
        .receive([text("Here."), finish(FinishKind::Stop)])
        .close_stream()
        .assert_end(&TurnEnd::Finished);
}

#[test]
fn the_duration_of_an_exchange_starts_when_its_request_has_a_permit() {
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
    driver
        .receive([text("Here."), finish(FinishKind::Stop)])
        .close_stream()
        .assert_end(&TurnEnd::Finished);
    assert_eq!(durations(&driver), [3]);
    // An attempt that is cancelled in the queue has no duration.
    let mut driver = waiting();
    driver.turn.handle_cancel(driver.now, CancelReason::Stop);
    driver.perform_effects();
    assert!(durations(&driver).is_empty());
    // A refused attempt has the duration zero.
    let mut driver = waiting();
    refuse_request(&mut driver, 30);
    assert_eq!(durations(&driver), [0]);
}

#[test]
fn the_origin_of_a_message_is_the_model_that_answered() {
    let origin = |driver: &Driver| {
        let message = driver.commit.as_ref().unwrap().message.clone().unwrap();
        message.origin.as_ref().unwrap().model.clone()
    };
    let answer = || [text("Here."), finish(FinishKind::Stop)];
    let mut first = Driver::with(two_models());
    first.break_off().receive(answer()).close_stream();
    assert_eq!(origin(&first), "main");
    let mut fallen_back = Driver::with(two_models());
    denied(&mut fallen_back);
    fallen_back.receive(answer()).close_stream();
    assert_eq!(origin(&fallen_back), "backup");
    let mut after_a_crash = Driver::with(two_models());
    denied(&mut after_a_crash);
    let records = after_a_crash.log.len();
    after_a_crash.crash(records).receive(answer()).close_stream();
    assert_eq!(origin(&after_a_crash), "backup");
}

#[test]
fn the_turn_fails_with_the_error_of_the_last_model() {
    let mut driver = Driver::with(two_models());
    driver.break_off().break_off();
    denied(&mut driver);
    let end = &driver.commit.as_ref().unwrap().end;
    let is_last = |end: &TurnEnd| matches!(end, TurnEnd::Failed(error) if error.message == "no such key" && !error.transient);
    assert!(is_last(end), "{end:?}");
    assert_eq!(driver.requests.len(), 3);
}

#[test]
fn a_pure_result_of_a_void_attempt_is_reused_with_the_next_model() {
    let mut driver = Driver::with(two_models());
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}")]).finish_call(0, "noon");
    denied(&mut driver);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "backup")]);
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}")]).end_well();
    driver.assert_started(&["pure#0", "effect#1"]);
    driver.finish_call(1, "sent");
    driver.assert_results(&[("pure", OK, None, "noon"), ("effect", OK, None, "sent")]);
    let record = driver.commit.as_ref().unwrap();
    let ids: Vec<_> = record.results.iter().map(|result| result.call.key.to_string()).collect();
    assert_eq!(ids, ["t1a2c0", "t1a2c1"]);
    assert!(record.results[0].notes.reused);
}

#[test]
fn there_is_no_fallback_after_a_call_with_effects_has_started() {
    let mut driver = Driver::with(two_models());
    driver.receive([call(0, "seal", "{}"), call(1, "pure", "{")]);
    denied(&mut driver);
    driver.finish_call(0, "sent").assert_end(&TurnEnd::Finished);
    assert_eq!(driver.requests.len(), 1);
}

#[test]
fn after_a_crash_the_last_model_is_requested_again() {
    let mut driver = Driver::with(two_models());
    denied(&mut driver);
    let records = driver.log.len();
    driver.crash(records);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "backup"), (3, "backup")]);
    assert_eq!(driver.requests.last(), Some(&(3, false)));
    let retry = ("backup", None);
    assert_eq!(retries(&driver).last(), Some(&retry), "a crash causes no fallback");
    driver.break_off();
    assert!(matches!(driver.commit.as_ref().unwrap().end, TurnEnd::Failed(_)));
}

#[test]
fn the_rest_of_the_chunk_that_ended_an_attempt_is_ignored() {
    let mut driver = Driver::with(two_models());
    let too_large = ProviderError::new(ProviderErrorKind::TooLarge, "the response is too large");
    driver.receive([Delta::Error(too_large), text("of the first"), call(0, "pure", "{}")]);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "backup")]);
    driver.assert_started(&[]);
    driver.receive([text("of the second"), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.message.as_ref().unwrap().text, "of the second");
}

#[test]
fn the_wait_for_a_permit_of_the_model_is_no_time_of_the_model_even_if_the_turn_is_cancelled() {
    let ms = Duration::from_millis;
    for (granted, waits, model) in [(true, ms(40), ms(30)), (false, ms(70), Duration::ZERO)] {
        let mut driver = Driver::with(rules(PARALLEL));
        driver.turn.handle_model_permit(ms(1), PermitReply::Waiting);
        if granted {
            driver.turn.handle_model_permit(ms(40), PermitReply::Granted);
        }
        driver.now = ms(70);
        driver.turn.handle_cancel(driver.now, CancelReason::Stop);
        driver.perform_effects();
        let times = driver.commit.as_ref().unwrap().times;
        assert_eq!((times.waits, times.model, times.total), (waits, model, ms(70)));
    }
}

pub(super) fn overflows(driver: &mut Driver) {
    let mut error = ProviderError::new(ProviderErrorKind::Status, "the prompt is too long");
    error.overflow = Some(callsheet_values::types::ContextOverflow::default());
    driver.turn.handle_response_end(driver.now, ExchangeEnd::Failed(error));
    driver.perform_effects();
}

pub(super) fn reduced(driver: &mut Driver, is_smaller: bool) {
    driver.turn.handle_context_reduced(driver.now, is_smaller);
    driver.perform_effects();
}

fn error_code(driver: &Driver) -> Option<&str> {
    match &driver.commit.as_ref()?.end {
        TurnEnd::Failed(error) => Some(&error.code),
        _ => None,
    }
}

#[test]
fn a_request_that_is_too_large_is_sent_again_once_the_context_is_smaller() {
    let mut driver = Driver::with(rules(PARALLEL));
    overflows(&mut driver);
    assert_eq!((driver.reductions, driver.requests.len()), (1, 1));
    reduced(&mut driver, true);
    assert_eq!(driver.requests, [(1, true), (2, true)]);
    driver
        .receive([text("Here."), finish(FinishKind::Stop)])
        .close_stream()
        .assert_end(&TurnEnd::Finished);
    // A late answer changes nothing.
    reduced(&mut driver, true);
    assert_eq!(driver.requests.len(), 2);
}

#[test]
fn a_context_is_made_smaller_once_in_a_turn() {
    for is_smaller in [true, false] {
        let mut driver = Driver::with(rules(PARALLEL));
        overflows(&mut driver);
        reduced(&mut driver, is_smaller);
        if is_smaller {
            overflows(&mut driver);
        }
        assert_eq!(error_code(&driver), Some("CONTEXT_OVERFLOW"));
        assert_eq!(driver.reductions, 1);
    }
}

#[test]
fn a_model_with_a_larger_window_is_asked_if_the_context_stays_too_large() {
    let mut driver = Driver::with(two_models());
    overflows(&mut driver);
    reduced(&mut driver, false);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "backup")]);
    driver
        .receive([text("Here."), finish(FinishKind::Stop)])
        .close_stream()
        .assert_end(&TurnEnd::Finished);
}

#[test]
fn the_configured_window_of_the_model_that_answered_decides_about_an_empty_response() {
    let overflow = Some("CONTEXT_OVERFLOW");
    for (main, backup, expected) in [(None, Some(50), (0, None)), (Some(50), None, (1, overflow))] {
        let plan = |name: &str, context_window| ModelPlan { context_window, ..model(name, 1) };
        let models = ModelPlans::new(plan("main", main), vec![plan("backup", backup)]);
        let mut driver = Driver::with(RunRules { models: Arc::new(models), ..rules(PARALLEL) });
        denied(&mut driver);
        driver.receive([finish(FinishKind::Length)]).close_stream();
        reduced(&mut driver, false);
        assert_eq!((driver.reductions, error_code(&driver)), expected, "{main:?} {backup:?}");
    }
}

#[test]
fn a_turn_that_waited_for_a_smaller_context_asks_for_it_again_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    overflows(&mut driver);
    driver.crash(driver.log.len());
    assert_eq!(driver.reductions, 2);
    let failures = driver.log.iter().filter(|r| matches!(r, Record::AttemptFailed { .. }));
    assert_eq!(failures.count(), 1, "the attempt fails once");
    reduced(&mut driver, true);
    driver.receive([text("Here."), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
}

#[test]
fn an_attempt_that_had_failed_before_a_crash_does_not_fail_again() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.break_off();
    let is_failure = |record: &Record| matches!(record, Record::AttemptFailed { .. });
    let failed = driver.log.iter().position(is_failure).unwrap();
    driver.crash(failed + 1);
    assert_eq!(driver.log.iter().filter(|record| is_failure(record)).count(), 1);
    driver.receive([text("Here."), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
}

#[test]
fn a_turn_that_waits_for_a_smaller_context_can_be_cancelled() {
    let mut driver = Driver::with(rules(PARALLEL));
    overflows(&mut driver);
    driver.turn.handle_cancel(driver.now, CancelReason::Stop);
    driver.perform_effects();
    driver.assert_end(&TurnEnd::Cancelled(CancelReason::Stop));
    reduced(&mut driver, true);
    assert_eq!(driver.requests.len(), 1);
}

#[test]
fn text_is_void_if_no_attempt_follows_the_wait_for_a_smaller_context() {
    let is_void = |event: &Event| matches!(event, Event::AttemptVoided { attempt: 1, .. });
    let voided = |driver: &Driver| driver.count_events(is_void);
    for (is_displayed, expected) in [(true, 1), (false, 0)] {
        let overflowed = || {
            let mut driver = Driver::with(rules(PARALLEL));
            if is_displayed {
                driver.receive([text("Hello")]);
            }
            overflows(&mut driver);
            driver
        };
        let (mut failed, mut cancelled, mut continued) = (overflowed(), overflowed(), overflowed());
        reduced(&mut failed, false);
        cancelled.cancel();
        // The start of the next attempt voids the text.
        reduced(&mut continued, true);
        assert_eq!([&failed, &cancelled, &continued].map(voided), [expected, expected, 0]);
        // A resumed turn knows from its records that text was published.
        let is_failure = |record: &Record| matches!(record, Record::AttemptFailed { .. });
        let failure = cancelled.log.iter().position(is_failure).unwrap();
        let log: Vec<_> = cancelled.log[..=failure].iter().map(|r| (r.clone(), 0)).collect();
        let mut entries = entries(0, &log);
        entries[failure].displayed_bytes = if is_displayed { 5 } else { 0 };
        let stop = Some(CancelReason::Stop);
        let mut turn = Turn::resume(spec(rules(PARALLEL)), &entries, 0, stop);
        let made = std::iter::from_fn(|| turn.poll()).filter_map(|effect| match effect {
            Effect::Record(record) => Some((record, 0)),
            Effect::Emit(_) | Effect::Perform(_) => None,
        });
        let made: Vec<_> = made.collect();
        let mut projector = EventProjector::new(SessionId::parse("s").unwrap(), "default", 0);
        entries.iter().for_each(|entry| projector.project(entry, drop));
        let mut voids = 0;
        for entry in super::entries(0, &made) {
            projector.project(&entry, |shown| voids += usize::from(is_void(&shown.event)));
        }
        assert_eq!(voids, expected);
    }
}

/// The service refuses the request of the open attempt because of tools.
fn refuse_tools(driver: &mut Driver, refusal: ToolRefusal) {
    let mut error = ProviderError::new(ProviderErrorKind::Status, "it refuses a schema");
    (error.status, error.tool_refusal) = (Some(400), Some(refusal));
    driver.turn.handle_response_end(driver.now, ExchangeEnd::Failed(error));
    driver.perform_effects();
}

#[test]
fn a_request_without_the_refused_tools_uses_up_no_attempt() {
    let mut driver = Driver::with(two_models());
    for tool in ["a", "b", "c"] {
        refuse_tools(&mut driver, ToolRefusal::Named(vec![tool.to_owned()]));
    }
    assert_eq!(driver.set_aside, ["a", "b", "c"]);
    assert_eq!(driver.requests, [(1, true), (2, true), (3, true), (4, true)]);
    driver.break_off();
    assert_eq!(driver.requests.last(), Some(&(5, true)), "the second attempt of the model");
    driver.receive([text("Here."), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
}

#[test]
fn an_accepted_request_of_a_search_for_refused_tools_is_void_until_the_search_is_over() {
    let mut driver = Driver::with(two_models());
    let suspects: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
    let suspected = || ToolRefusal::Suspected(suspects.clone());
    refuse_tools(&mut driver, suspected());
    // It has a and b.
    driver.receive([text("void")]);
    assert_eq!(driver.disconnects, 1);
    // It has a, b and c.
    refuse_tools(&mut driver, suspected());
    // It has all but c.
    driver.receive([text("Here."), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
    assert_eq!(driver.requests.len(), 4);
    assert_eq!(driver.set_aside, ["c"]);
    let shown = driver.events.iter().filter_map(|event| match event {
        Event::TextReceived { text } => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(shown.collect::<Vec<_>>(), ["Here."]);
    let aside = driver.events.iter().filter(|event| matches!(event, Event::ToolSetAside { .. }));
    assert_eq!(aside.count(), 1);
}

/// Returns a driver whose request has content that may be left out.
fn with_content(rules: RunRules) -> Driver {
    let excludable = Excludable { images: true, texts: false };
    Driver::new(TurnSpec { excludable, ..spec(rules) })
}

fn refuse_content(driver: &mut Driver, refusal: ContentRefusal) {
    let mut error = ProviderError::new(ProviderErrorKind::Status, "could not process image");
    (error.status, error.content) = (Some(400), Some(refusal));
    driver.turn.handle_response_end(driver.now, ExchangeEnd::Failed(error));
    driver.perform_effects();
}

#[test]
fn a_request_whose_content_is_refused_is_sent_again_once_without_it() {
    for refusal in [ContentRefusal::Image, ContentRefusal::Unnamed] {
        let mut driver = with_content(rules(PARALLEL));
        refuse_content(&mut driver, refusal);
        assert_eq!((driver.reductions, driver.requests.len()), (1, 1));
        reduced(&mut driver, true);
        assert_eq!(driver.requests, [(1, true), (2, true)]);
        driver.receive([text("Here."), finish(FinishKind::Stop)]).close_stream();
        driver.assert_end(&TurnEnd::Finished);
        let mut refused_again = with_content(rules(PARALLEL));
        refuse_content(&mut refused_again, refusal);
        reduced(&mut refused_again, true);
        refuse_content(&mut refused_again, refusal);
        assert_eq!(refused_again.reductions, 1);
        let is_named = refusal == ContentRefusal::Image;
        let code = if is_named { "CONTENT_REFUSED" } else { "provider_error" };
        assert_eq!(error_code(&refused_again), Some(code));
    }
    // Without such content the turn fails at once.
    let mut driver = Driver::with(rules(PARALLEL));
    refuse_content(&mut driver, ContentRefusal::Unnamed);
    assert_eq!((driver.reductions, error_code(&driver)), (0, Some("provider_error")));
}

#[test]
fn another_model_is_asked_before_content_is_left_out() {
    let mut driver = with_content(two_models());
    refuse_content(&mut driver, ContentRefusal::Image);
    assert_eq!((driver.reductions, attempts(&driver)), (0, vec![(1, "main"), (2, "backup")]));
    refuse_content(&mut driver, ContentRefusal::Image);
    assert_eq!(driver.reductions, 1);
    reduced(&mut driver, true);
    assert_eq!(attempts(&driver), [(1, "main"), (2, "backup"), (3, "backup")]);
}

#[test]
fn a_refused_answer_without_a_word_is_asked_for_without_content() {
    let refused = || FinishReason::refused("content_filter", RefusalDetails::new(None, None));
    let mut driver = with_content(rules(PARALLEL));
    driver.receive([Delta::Finish(refused())]).close_stream();
    assert_eq!(driver.reductions, 1);
    reduced(&mut driver, true);
    driver.receive([Delta::Finish(refused())]).close_stream();
    driver.assert_end(&TurnEnd::Refused);
    // An answer that has begun is refused for itself.
    let mut driver = with_content(rules(PARALLEL));
    driver.receive([text("I"), Delta::Finish(refused())]).close_stream();
    driver.assert_end(&TurnEnd::Refused);
    assert_eq!(driver.reductions, 0);
}

#[test]
fn a_turn_that_waited_for_content_to_be_left_out_asks_for_it_again_after_a_crash() {
    let mut driver = with_content(rules(PARALLEL));
    refuse_content(&mut driver, ContentRefusal::Image);
    driver.crash(driver.log.len());
    assert_eq!(driver.reductions, 2);
    reduced(&mut driver, true);
    driver.receive([text("Here."), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
}
