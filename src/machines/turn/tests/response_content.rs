//! The kept message of a response: its parts and its origin, calls that the service runs, pauses.

use super::*;
use crate::turn::fixtures::usage;
use callsheet_values::event::ServiceCallStatus;
use callsheet_values::message::{RequestPart, ResponseMessage};
use callsheet_values::types::{MessagePart, ModelOrigin, Wire};
use callsheet_wire::{CallKind, ProviderMetadata};

fn thought(text: &str) -> Delta {
    Delta::Reasoning(text.into())
}

fn signed(members: &str) -> Delta {
    Delta::Metadata(ProviderMetadata::Reasoning { members: Some(members.into()) })
}

fn message(driver: &Driver) -> &ResponseMessage {
    driver.commit.as_ref().unwrap().message.as_ref().unwrap()
}

/// Returns the message as a later request to the same model contains it.
fn sent_back(message: &ResponseMessage) -> Vec<String> {
    let own = ModelOrigin { wire: Wire::OpenaiChat, model: "m".into() };
    let parts = message.request_parts(&own).into_iter().map(|part| match part {
        RequestPart::Text { text, .. } => format!("text {text}"),
        RequestPart::Reasoning { text, members } => {
            format!("thought {text} {}", members.unwrap_or("-"))
        }
        RequestPart::Call { call, members } => {
            format!("call {} {}", call.name, members.unwrap_or("-"))
        }
        RequestPart::Raw(json) => format!("raw {json}"),
    });
    parts.collect()
}

#[test]
fn incomplete_reasoning_of_a_broken_or_cut_off_response_is_not_sent_back() {
    let deltas = || {
        [
            thought("first"),
            signed("{\"s\":1}"),
            text("so"),
            call(0, "seal", "{}"),
            seal(0),
            thought("and"),
            thought(" then"),
        ]
    };
    let whole = ["thought first {\"s\":1}", "text so", "call seal -"];
    let mut broken = Driver::with(rules(PARALLEL));
    broken.receive(deltas()).break_off().finish_call(0, "sent");
    let mut cut = Driver::with(rules(PARALLEL));
    cut.receive(deltas())
        .receive([finish(FinishKind::Length)])
        .close_stream()
        .finish_call(0, "sent");
    let mut refused = Driver::with(rules(PARALLEL));
    refused
        .receive(deltas())
        .receive([finish(FinishKind::ContentFilter)])
        .close_stream()
        .finish_call(0, "sent");
    let mut stopped = Driver::with(rules(PARALLEL));
    stopped.receive(deltas()).cancel();
    for driver in [&broken, &cut, &refused, &stopped] {
        assert_eq!(sent_back(message(driver)), whole);
        assert_eq!(message(driver).reasoning, "firstand then", "the history has all of it");
    }
    // Reasoning of a complete response is sent back with or without its signature.
    let mut well = Driver::with(rules(PARALLEL));
    well.receive(deltas()).end_well().finish_call(0, "sent");
    assert_eq!(sent_back(message(&well)).last().unwrap(), "thought and then -");
}

#[test]
fn reasoning_that_was_cut_off_leaves_no_part() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([
        call(0, "seal", "{}"),
        seal(0),
        Delta::Metadata(ProviderMetadata::RawPart("{1}".into())),
    ]);
    driver.receive([thought("hm")]);
    driver.break_off().finish_call(0, "sent");
    assert_eq!(sent_back(message(&driver)), ["call seal -", "raw {1}"]);
}

#[test]
fn the_parts_of_dropped_calls_are_dropped() {
    let deltas = || {
        let with = |index, members: &str| {
            Delta::Metadata(ProviderMetadata::Call { index, members: members.into() })
        };
        [
            call(0, "seal", "{}"),
            with(0, "{0}"),
            call(1, "pure", "{}"),
            with(1, "{1}"),
            call(2, "pure", "{\"n\":1}"),
            with(2, "{2}"),
        ]
    };
    let only_first = |driver: &Driver| {
        assert_eq!(sent_back(message(driver)), ["call seal {0}"]);
        let kept = [MessagePart::Call { index: 0, members: Some("{0}".into()) }];
        assert_eq!(message(driver).parts, kept);
    };
    let mut refused = Driver::with(rules(PARALLEL));
    refused
        .receive(deltas())
        .receive([finish(FinishKind::ContentFilter)])
        .close_stream()
        .finish_call(0, "sent");
    only_first(&refused);
    let mut single = Driver::with(RunRules { multi_tool_calls: false, ..rules(PARALLEL) });
    single.receive(deltas()).end_well().finish_call(0, "sent");
    only_first(&single);
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(1);
    rules.limits.on_excess = OnExcess::Truncate;
    let mut truncated = Driver::with(rules);
    truncated.receive(deltas()).end_well().finish_call(0, "sent");
    only_first(&truncated);
}

/// Returns a delta of a call that the service runs.
fn search(index: u64, begins: bool, arguments: &str) -> Delta {
    let id = begins.then(|| format!("srv{index}"));
    let name = begins.then(|| "web_search".to_owned());
    let (kind, arguments) = (CallKind::ServerToolUse, Some(arguments.to_owned()));
    let index = Some(index);
    Delta::Call(CallDelta {
        index,
        id,
        name,
        arguments,
        kind,
        is_marked_start: begins,
        ..CallDelta::default()
    })
}

fn seal(index: u64) -> Delta {
    Delta::Seal { index, arguments: None }
}

/// Returns the published changes of calls that the service runs.
fn published(driver: &Driver) -> Vec<(String, &'static str, &str)> {
    let changes = driver.events.iter().filter_map(|event| match event {
        Event::ServiceCallChanged { call, status } => {
            Some((call.tool_id(), status.as_str(), call.input_summary.as_str()))
        }
        _ => None,
    });
    changes.collect()
}

#[test]
fn a_call_that_the_service_runs_is_only_published() {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(1);
    rules.limits.on_excess = OnExcess::Fail;
    let mut driver = Driver::with(rules);
    driver.receive([search(0, true, ""), search(0, false, "{\"q\":1}"), seal(0)]);
    driver
        .receive([Delta::Metadata(ProviderMetadata::RawPart("{0}".into())), call(1, "pure", "{}")]);
    driver.receive([search(2, true, "{}"), seal(2), seal(2)]).end_well().finish_call(0, "noon");
    let of = |position: u32, status, input| (format!("t1a1s{position}"), status, input);
    let expected = [
        of(0, "running", ""),
        of(0, "finished", "{\"q\":1}"),
        of(1, "running", "{}"),
        of(1, "finished", "{}"),
    ];
    assert_eq!(published(&driver), expected);
    driver.assert_started(&["pure#0"]);
    driver.assert_results(&[("pure", OK, None, "noon")]);
    assert_eq!((driver.reached_limits(), message(&driver).calls.len()), (vec![], 1));
    assert_eq!(sent_back(message(&driver)), ["raw {0}", "call pure -"]);
    let names = driver.events.iter().find_map(|event| match event {
        Event::TurnEnded { summary } => Some(summary.tool_names.clone()),
        _ => None,
    });
    assert_eq!(names.unwrap(), ["pure".into()]);
}

#[test]
fn service_calls_of_a_void_attempt_and_incomplete_service_calls_are_discarded() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([search(0, true, "{}"), seal(0), search(1, true, "")]).break_off();
    driver.receive([text("so"), search(0, true, "{}"), seal(0), search(1, true, "{\"q")]);
    driver.receive([usage(9), finish(FinishKind::Length)]).close_stream();
    let changes = published(&driver);
    let changes: Vec<_> = changes.iter().map(|(id, status, _)| (id.as_str(), *status)).collect();
    let expected = [
        ("t1a1s0", "running"),
        ("t1a1s0", "finished"),
        ("t1a1s1", "running"),
        ("t1a1s0", "discarded"),
        ("t1a1s1", "discarded"),
        ("t1a2s0", "running"),
        ("t1a2s0", "finished"),
        ("t1a2s1", "running"),
        ("t1a2s1", "discarded"),
    ];
    assert_eq!(changes, expected);
}

#[test]
fn the_good_end_of_a_response_finishes_its_service_calls() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([text("so"), search(0, true, "{}"), finish(FinishKind::Stop)]).close_stream();
    let last = published(&driver).pop().unwrap();
    assert_eq!(last.1, ServiceCallStatus::Finished.as_str());
}

#[test]
fn a_paused_response_is_kept_with_its_calls_and_is_paused_after_a_crash_too() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([text("so"), call(0, "pure", "{}"), finish(FinishKind::Pause)]).close_stream();
    driver.assert_started(&["pure#0"]);
    let records = driver.log.len();
    driver.crash(records).finish_call(0, "noon");
    driver.assert_results(&[("pure", OK, None, "noon")]);
    let record = driver.commit.as_ref().unwrap();
    assert!(record.is_paused() && record.end == TurnEnd::Finished);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([thought("hm"), finish(FinishKind::Pause)]).close_stream();
    assert!(driver.commit.is_none(), "an empty answer is asked for again");
}

#[test]
fn a_resumed_turn_has_the_parts_and_the_origin_of_its_message() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([thought("hm"), signed("{1}"), call(0, "pure", "{}")]).end_well();
    let records = driver.log.len();
    driver.crash(records).finish_call(0, "noon");
    assert_eq!(sent_back(message(&driver)), ["thought hm {1}", "call pure -"]);
}
