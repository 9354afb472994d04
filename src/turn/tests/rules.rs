//! Which calls start and when, and what the others are answered.

use super::*;

#[test]
fn a_pure_call_starts_when_the_next_one_opens_and_an_effect_when_the_response_ended_well() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}")]).started(&[]);
    driver.deltas([call(1, "effect", "{}")]).started(&["pure#0"]);
    driver.deltas([call(2, "pure", "{\"n\":1}"), call(3, "pure", "{\"n\":2}")]);
    driver.started(&["pure#0"]);
    // The effect has its ticket first, but starts when its intent is durable.
    driver.well().started(&["pure#0", "pure#2", "pure#3", "effect#1"]);
}

#[test]
fn start_on_seal_is_for_those_whose_author_says_so_and_early_start_switches_all_off() {
    let response = || [call(0, "seal", "{}"), call(1, "pure", "{}"), call(2, "pure", "[]")];
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas(response()).started(&["pure#1", "seal#0"]);
    let mut driver = Driver::with(TurnRules { early_start: false, ..rules(PARALLEL) });
    driver.deltas(response()).started(&[]);
    driver.well().started(&["pure#1", "seal#0"]);
}

#[test]
fn in_sequence_a_call_starts_when_every_earlier_one_has_ended() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.deltas([call(0, "effect", "{}"), call(1, "pure", "{}"), call(2, "effect", "[]")]);
    driver.well().started(&["effect#0"]);
    driver.done(0, "a").started(&["effect#0", "pure#1"]);
    driver.done(1, "b");
    driver.results(&[
        ("effect", OK, None, "a"),
        ("pure", OK, None, "b"),
        (
            "effect",
            FAILED,
            Some(FailureKind::InvalidArguments),
            "Error: not run: invalid arguments: they are a JSON array. Received: []",
        ),
    ]);
}

#[test]
fn results_are_in_call_order_whatever_the_finishing_order() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas((0..3).map(|n| call(n, "pure", &format!("{{\"n\":{n}}}")))).well();
    driver.done(2, "c").done(0, "a").done(1, "b");
    driver.results(&[("pure", OK, None, "a"), ("pure", OK, None, "b"), ("pure", OK, None, "c")]);
}

#[test]
fn an_exclusive_call_runs_alone() {
    let mut driver = Driver::with(rules(PARALLEL));
    let calls = ["pure", "exclusive", "pure"];
    driver.deltas((0..).zip(calls).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.well().started(&["pure#0"]);
    driver.done(0, "").started(&["pure#0", "exclusive#1"]);
    driver.done(1, "").started(&["pure#0", "exclusive#1", "pure#2"]);
}

#[test]
fn unknown_tools_and_bad_arguments_are_answered_and_never_run() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([
        call(0, "nobody", "{}"),
        call(1, "pure", "{\"n\":\"x\"}"),
        call(2, "pure", "{\"n\":"),
        call(3, "pure", ""),
    ]);
    driver.well().started(&["pure#3"]);
    driver.done(3, "ran");
    let contents: Vec<_> =
        driver.commit.as_ref().unwrap().results.iter().map(|r| &r.outcome).collect();
    assert!(contents[0].content.starts_with("Error: there is no tool \"nobody\". The tools are: "));
    assert_eq!(contents[1].kind, Some(FailureKind::InvalidArguments));
    assert!(contents[1].content.contains("/n: \"x\" is not of type \"integer\""));
    assert_eq!(contents[2].kind, Some(FailureKind::CutOffArguments));
    assert_eq!(contents[3], &ToolOutcome::ok("ran"));
    let raw = |index: usize| driver.commit.as_ref().unwrap().results[index].call.raw.clone();
    assert_eq!((raw(2).as_deref(), raw(3)), (Some("{\"n\":"), None));
}

#[test]
fn a_double_encoded_object_is_decoded_once_more_and_told() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "\"{\\\"n\\\":7}\"")]).well().started(&["pure#0"]);
    let odd = driver.events.iter().any(|event| {
        matches!(
            event,
            Event::ArgumentsAnomalyFound {
                oddity: crate::event::ArgumentsAnomaly::DecodedTwice,
                ..
            }
        )
    });
    assert!(odd);
    driver.done(0, "");
    let call = driver.commit.as_ref().unwrap().results[0].call.clone();
    assert_eq!(call.arguments, serde_json::json!({"n": 7}).into());
}

#[test]
fn a_duplicate_waits_for_the_first_and_gets_a_copy() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{\"n\":1}"), call(1, "effect", "{ \"n\": 1 }")]);
    driver.well().started(&["effect#0"]);
    let no = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver.outcome(0, no).started(&["effect#0"]);
    let kind = Some(FailureKind::ToolError);
    driver.results(&[("effect", FAILED, kind, "no"), ("effect", FAILED, kind, "no")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(record.results[0].call.key));
}

#[test]
fn repeatable_calls_and_calls_around_an_effect_run_each_for_themselves() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "repeatable", "{}"), call(1, "repeatable", "{}")]);
    driver.well().started(&["repeatable#0", "repeatable#1"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{}")]);
    driver.well().started(&["pure#0", "pure#2", "effect#1"]);
}

#[test]
fn bytes_after_the_seal_void_a_pure_result_and_a_duplicate_then_runs_itself() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "{\"n\":2}")]);
    driver.started(&["pure#0"]);
    driver.deltas([more(0, "x")]);
    assert_eq!(driver.aborted, [0]);
    driver.started(&["pure#0", "pure#1"]);
    driver.well().done(1, "b").done(2, "c");
    let record = driver.commit.as_ref().unwrap();
    let kinds: Vec<_> = record.results.iter().map(|result| result.outcome.kind).collect();
    assert_eq!(kinds, [Some(FailureKind::Malformed), None, None]);
}

#[test]
fn a_copy_that_turns_out_malformed_is_no_copy_any_more() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "{\"n\":2}")]);
    driver.done(0, "a").deltas([more(1, "x")]);
    driver.well().done(2, "c");
    let copy = &driver.commit.as_ref().unwrap().results[1];
    assert_eq!(copy.outcome.kind, Some(FailureKind::Malformed));
    assert_eq!((copy.notes.duplicate_of, copy.notes.arguments_changed), (None, true));
}

#[test]
fn bytes_after_the_seal_leave_a_started_effect_as_it_is() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "seal", "{}"), call(1, "pure", "{}")]).deltas([more(0, "x")]);
    driver.well().done(0, "sent").done(1, "b");
    driver.results(&[("seal", OK, None, "sent"), ("pure", OK, None, "b")]);
    assert!(driver.commit.as_ref().unwrap().results[0].notes.arguments_changed);
}

#[test]
fn every_time_and_size_that_is_exceeded_is_told() {
    let limits = |driver: &Driver| {
        let told = driver.limits().into_iter();
        told.map(|(limit, value, maximum, action)| format!("{limit} {value}/{maximum} {action}"))
            .collect::<Vec<_>>()
    };
    let mut small = rules(PARALLEL);
    small.limits.max_arguments_bytes = 8;
    small.limits.max_result_bytes = 100;
    let mut driver = Driver::with(small);
    driver.deltas([call(0, "pure", "{\"n\":123456}"), call(1, "pure", "{}")]).well();
    driver.done(1, &"x".repeat(101));
    assert_eq!(
        limits(&driver),
        ["max_arguments_bytes 9/8 answered", "max_result_bytes 101/100 shortened"]
    );

    let mut timed = rules(PARALLEL);
    timed.limits.run_timeout = Some(Duration::from_secs(60));
    let run_time_left = Some(Duration::from_secs(50));
    let mut driver = Driver::new(TurnSpec { run_time_left, ..spec(timed) });
    driver.deltas([call(0, "quick", "{}"), call(1, "pure", "{}")]).well();
    for time in [Duration::from_millis(5), Duration::from_secs(50)] {
        driver.now = time;
        driver.turn.handle_timeout(time);
        driver.pump();
    }
    driver.ended(&TurnEnd::Cancelled(CancelReason::RunTimeout));
    let expected = [
        "tool_timeout 5/5 timed_out",
        "tool_timeout 30000/30000 timed_out",
        "run_timeout 60000/60000 ended",
    ];
    assert_eq!(limits(&driver), expected);
}
