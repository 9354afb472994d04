//! What is kept of a response: its parts and who said it; calls that the service runs; pauses.

use super::*;
use crate::event::ServiceCallStatus;
use crate::message::{RequestPart, ResponseMessage};
use crate::types::{MessagePart, ModelOrigin, Wire};
use crate::wire::{CallKind, ProviderMetadata};

fn thought(text: &str) -> Delta {
    Delta::Reasoning(text.into())
}

fn signed(members: &str) -> Delta {
    Delta::Metadata(ProviderMetadata::Reasoning { members: Some(members.into()) })
}

fn message(driver: &Driver) -> &ResponseMessage {
    driver.commit.as_ref().unwrap().message.as_ref().unwrap()
}

/// The message as its own model is sent it: kinds and texts.
fn sent_back(message: &ResponseMessage) -> Vec<String> {
    let own = ModelOrigin { wire: Wire::OpenaiChat, model: "m".into() };
    let pieces = message.request_parts(&own).into_iter().map(|piece| match piece {
        RequestPart::Text { text, .. } => format!("text {text}"),
        RequestPart::Reasoning { text, members } => {
            format!("thought {text} {}", members.unwrap_or("-"))
        }
        RequestPart::Call { call, members } => {
            format!("call {} {}", call.name, members.unwrap_or("-"))
        }
        RequestPart::Raw(json) => format!("raw {json}"),
    });
    pieces.collect()
}

#[test]
fn a_response_that_broke_or_was_cut_sends_back_no_reasoning_without_its_signature() {
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
    broken.deltas(deltas()).broken().done(0, "sent");
    let mut cut = Driver::with(rules(PARALLEL));
    cut.deltas(deltas()).deltas([finish(FinishKind::Length)]).close().done(0, "sent");
    let mut refused = Driver::with(rules(PARALLEL));
    refused.deltas(deltas()).deltas([finish(FinishKind::ContentFilter)]).close().done(0, "sent");
    let mut stopped = Driver::with(rules(PARALLEL));
    stopped.deltas(deltas()).cancel();
    for driver in [&broken, &cut, &refused, &stopped] {
        assert_eq!(sent_back(message(driver)), whole);
        assert_eq!(message(driver).reasoning, "firstand then", "people are shown all of it");
    }
    // What the service said to be whole is sent back, with a signature or without.
    let mut well = Driver::with(rules(PARALLEL));
    well.deltas(deltas()).well().done(0, "sent");
    assert_eq!(sent_back(message(&well)).last().unwrap(), "thought and then -");
}

#[test]
fn reasoning_that_alone_was_cut_leaves_no_part() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        call(0, "seal", "{}"),
        seal(0),
        Delta::Metadata(ProviderMetadata::Part("{1}".into())),
    ]);
    driver.deltas([thought("hm")]);
    driver.broken().done(0, "sent");
    assert_eq!(sent_back(message(&driver)), ["call seal -", "raw {1}"]);
}

#[test]
fn parts_of_calls_that_are_dropped_vanish_with_them() {
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
    refused.deltas(deltas()).deltas([finish(FinishKind::ContentFilter)]).close().done(0, "sent");
    only_first(&refused);
    let mut single = Driver::with(TurnRules { multi_tool_calls: false, ..rules(PARALLEL) });
    single.deltas(deltas()).well().done(0, "sent");
    only_first(&single);
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(1);
    rules.limits.on_excess = OnExcess::Truncate;
    let mut truncated = Driver::with(rules);
    truncated.deltas(deltas()).well().done(0, "sent");
    only_first(&truncated);
}

/// A piece of a call that the service runs.
fn search(index: u64, begins: bool, arguments: &str) -> Delta {
    let id = begins.then(|| format!("srv{index}"));
    let name = begins.then(|| "web_search".to_owned());
    let (kind, arguments) = (CallKind::ServerToolUse, Some(arguments.to_owned()));
    Delta::Call(CallDelta { index: Some(index), id, name, arguments, kind, begins })
}

fn seal(index: u64) -> Delta {
    Delta::Seal { index, arguments: None }
}

/// What was shown of calls that the service runs.
fn shown(driver: &Driver) -> Vec<(String, &'static str, &str)> {
    let shown = driver.events.iter().filter_map(|event| match event {
        Event::ServiceCallChanged { call, status } => {
            Some((call.tool_id(), status.as_str(), call.input_summary.as_str()))
        }
        _ => None,
    });
    shown.collect()
}

#[test]
fn a_call_that_the_service_runs_is_shown_and_nothing_more() {
    let mut rules = rules(PARALLEL);
    rules.limits.max_tool_calls_per_turn = Some(1);
    rules.limits.on_excess = OnExcess::Fail;
    let mut driver = Driver::with(rules);
    driver.deltas([search(0, true, ""), search(0, false, "{\"q\":1}"), seal(0)]);
    driver.deltas([Delta::Metadata(ProviderMetadata::Part("{0}".into())), call(1, "pure", "{}")]);
    driver.deltas([search(2, true, "{}"), seal(2), seal(2)]).well().done(0, "noon");
    let of = |place: u32, status, input| (format!("t1a1s{place}"), status, input);
    let expected = [
        of(0, "running", ""),
        of(0, "finished", "{\"q\":1}"),
        of(1, "running", "{}"),
        of(1, "finished", "{}"),
    ];
    assert_eq!(shown(&driver), expected);
    driver.started(&["pure#0"]);
    driver.results(&[("pure", OK, None, "noon")]);
    assert_eq!((driver.limits(), message(&driver).calls.len()), (vec![], 1));
    assert_eq!(sent_back(message(&driver)), ["raw {0}", "call pure -"]);
    let names = driver.events.iter().find_map(|event| match event {
        Event::TurnEnded { summary } => Some(summary.tool_names.clone()),
        _ => None,
    });
    assert_eq!(names.unwrap(), ["pure".into()]);
}

#[test]
fn what_the_service_runs_in_a_void_response_is_void_and_a_call_cut_in_its_middle_too() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([search(0, true, "{}"), seal(0), search(1, true, "")]).broken();
    driver.deltas([search(0, true, "{}"), seal(0), search(1, true, "{\"q")]);
    driver.deltas([finish(FinishKind::Length)]).close();
    let seen = shown(&driver);
    let seen: Vec<_> = seen.iter().map(|(id, status, _)| (id.as_str(), *status)).collect();
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
    assert_eq!(seen, expected);
}

#[test]
fn a_good_end_finishes_what_the_service_runs() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("so"), search(0, true, "{}"), finish(FinishKind::Stop)]).close();
    let last = shown(&driver).pop().unwrap();
    assert_eq!(last.1, ServiceCallStatus::Finished.as_str());
}

#[test]
fn a_paused_response_is_kept_with_its_calls_and_stays_one_after_a_crash() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([text("so"), call(0, "pure", "{}"), finish(FinishKind::Pause)]).close();
    driver.started(&["pure#0"]);
    let records = driver.log.len();
    driver.crash(records).done(0, "noon");
    driver.results(&[("pure", OK, None, "noon")]);
    let record = driver.commit.as_ref().unwrap();
    assert!(record.is_paused() && record.end == TurnEnd::Finished);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([thought("hm"), finish(FinishKind::Pause)]).close();
    assert!(!driver.commit.as_ref().unwrap().is_paused(), "nothing was said");
}

#[test]
fn a_resumed_turn_has_the_parts_and_the_origin_of_its_message() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([thought("hm"), signed("{1}"), call(0, "pure", "{}")]).well();
    let records = driver.log.len();
    driver.crash(records).done(0, "noon");
    assert_eq!(sent_back(message(&driver)), ["thought hm {1}", "call pure -"]);
}
