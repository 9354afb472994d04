//! The start of calls, the answers to calls that do not run, and duplicates.

use super::*;

#[test]
fn a_pure_call_starts_at_its_seal_and_a_call_with_effects_after_the_response_ended_well() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}")]).assert_started(&[]);
    driver.receive([call(1, "effect", "{}")]).assert_started(&["pure#0"]);
    driver.receive([call(2, "pure", "{\"n\":1}"), call(3, "pure", "{\"n\":2}")]);
    driver.assert_started(&["pure#0"]);
    // The call with effects has its ticket first, but starts only when its intent is durable.
    driver.end_well().assert_started(&["pure#0", "pure#2", "pure#3", "effect#1"]);
}

#[test]
fn start_on_seal_starts_calls_with_effects_early_unless_early_start_is_off() {
    let response = || [call(0, "seal", "{}"), call(1, "pure", "{}"), call(2, "pure", "[]")];
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive(response()).assert_started(&["pure#1", "seal#0"]);
    let mut driver = Driver::with(RunRules { early_start: false, ..rules(PARALLEL) });
    driver.receive(response()).assert_started(&[]);
    driver.end_well().assert_started(&["pure#1", "seal#0"]);
}

#[test]
fn a_call_whose_arguments_are_too_large_does_not_run_after_a_crash() {
    let mut small = rules(PARALLEL);
    small.limits.max_arguments_bytes = 16;
    let (object, text) = (r#"{"n":1}"#, r#""{\"n\":1}""#);
    let space = " ".repeat(16);
    // Nothing is kept of a piece that exceeds the limit.
    for (pieces, kept) in
        [([r#"{"n":1234567890123}"#, ""], ""), ([object, &space], object), ([text, &space], text)]
    {
        let mut driver = Driver::with(small.clone());
        let [first, rest] = pieces;
        driver.receive([call(0, "effect", first), more(0, rest)]).end_well();
        let is_end = |record: &Record| matches!(record, Record::ResponseEnded { .. });
        let ended = driver.log.iter().position(is_end).unwrap();
        driver.crash(ended + 1).assert_started(&[]);
        let problem = "Error: not run: invalid arguments: they are larger than allowed.";
        let answer = format!("{problem} Received: {kept}");
        let invalid = Some(FailureKind::InvalidArguments);
        driver.assert_results(&[("effect", FAILED, invalid, answer.as_str())]);
    }
}

#[test]
fn in_sequential_execution_a_call_starts_when_every_earlier_call_has_ended() {
    let mut driver = Driver::with(rules(Execution::Sequential));
    driver.receive([call(0, "effect", "{}"), call(1, "pure", "{}"), call(2, "effect", "[]")]);
    driver.end_well().assert_started(&["effect#0"]);
    driver.finish_call(0, "a").assert_started(&["effect#0", "pure#1"]);
    driver.finish_call(1, "b");
    driver.assert_results(&[
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
fn results_are_in_call_order() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive((0..3).map(|n| call(n, "pure", &format!("{{\"n\":{n}}}")))).end_well();
    driver.finish_call(2, "c").finish_call(0, "a").finish_call(1, "b");
    driver.assert_results(&[
        ("pure", OK, None, "a"),
        ("pure", OK, None, "b"),
        ("pure", OK, None, "c"),
    ]);
}

#[test]
fn an_exclusive_call_runs_alone() {
    let mut driver = Driver::with(rules(PARALLEL));
    let calls = ["pure", "exclusive", "pure"];
    driver.receive((0..).zip(calls).map(|(n, name)| call(n, name, &format!("{{\"n\":{n}}}"))));
    driver.end_well().assert_started(&["pure#0"]);
    driver.finish_call(0, "").assert_started(&["pure#0", "exclusive#1"]);
    driver.finish_call(1, "").assert_started(&["pure#0", "exclusive#1", "pure#2"]);
}

#[test]
fn calls_of_unknown_tools_and_with_invalid_arguments_are_answered_without_running() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([
        call(0, "nobody", "{}"),
        call(1, "pure", "{\"n\":\"x\"}"),
        call(2, "pure", "{\"n\":"),
        call(3, "pure", ""),
    ]);
    driver.end_well().assert_started(&["pure#3"]);
    driver.finish_call(3, "ran");
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
fn double_encoded_arguments_are_decoded_and_reported() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "\"{\\\"n\\\":7}\"")]).end_well().assert_started(&["pure#0"]);
    let is_published = driver.events.iter().any(|event| {
        matches!(
            event,
            Event::ArgumentsAnomalyFound {
                anomaly: callsheet_values::event::ArgumentsAnomaly::DecodedTwice,
                ..
            }
        )
    });
    assert!(is_published);
    driver.finish_call(0, "");
    let call = driver.commit.as_ref().unwrap().results[0].call.clone();
    assert_eq!(call.arguments, serde_json::json!({"n": 7}).into());
}

#[test]
fn a_duplicate_copies_the_outcome_of_the_first_call() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "effect", "{\"n\":1}"), call(1, "effect", "{ \"n\": 1 }")]);
    driver.end_well().assert_started(&["effect#0"]);
    let no = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver.finish_call_with(0, no).assert_started(&["effect#0"]);
    let kind = Some(FailureKind::ToolError);
    driver.assert_results(&[("effect", FAILED, kind, "no"), ("effect", FAILED, kind, "no")]);
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(record.results[1].notes.duplicate_of, Some(record.results[0].call.key));
}

#[test]
fn repeatable_calls_and_identical_calls_around_an_effect_all_run() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "repeatable", "{}"), call(1, "repeatable", "{}")]);
    driver.end_well().assert_started(&["repeatable#0", "repeatable#1"]);
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}"), call(1, "effect", "{}"), call(2, "pure", "{}")]);
    driver.end_well().assert_started(&["pure#0", "pure#2", "effect#1"]);
}

#[test]
fn bytes_after_the_seal_void_a_pure_result_and_its_duplicate_runs() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "{\"n\":2}")]);
    driver.assert_started(&["pure#0"]);
    driver.receive([more(0, "x")]);
    assert_eq!(driver.aborted, [0]);
    driver.assert_started(&["pure#0", "pure#1"]);
    driver.end_well().finish_call(1, "b").finish_call(2, "c");
    let record = driver.commit.as_ref().unwrap();
    let kinds: Vec<_> = record.results.iter().map(|result| result.outcome.kind).collect();
    assert_eq!(kinds, [Some(FailureKind::Malformed), None, None]);
}

#[test]
fn a_malformed_duplicate_is_no_duplicate() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "pure", "{}"), call(1, "pure", "{}"), call(2, "pure", "{\"n\":2}")]);
    driver.finish_call(0, "a").receive([more(1, "x")]);
    driver.end_well().finish_call(2, "c");
    let copy = &driver.commit.as_ref().unwrap().results[1];
    assert_eq!(copy.outcome.kind, Some(FailureKind::Malformed));
    assert_eq!((copy.notes.duplicate_of, copy.notes.arguments_changed), (None, true));
}

#[test]
fn bytes_after_the_seal_do_not_change_a_started_call_with_effects() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "seal", "{}"), call(1, "pure", "{}")]).receive([more(0, "x")]);
    driver.end_well().finish_call(0, "sent").finish_call(1, "b");
    driver.assert_results(&[("seal", OK, None, "sent"), ("pure", OK, None, "b")]);
    assert!(driver.commit.as_ref().unwrap().results[0].notes.arguments_changed);
}

#[test]
fn every_exceeded_time_and_size_limit_is_reported() {
    let limits = |driver: &Driver| {
        let limits = driver.reached_limits().into_iter();
        limits
            .map(|(limit, value, maximum, action)| format!("{limit} {value}/{maximum} {action}"))
            .collect::<Vec<_>>()
    };
    let mut small = rules(PARALLEL);
    small.limits.max_arguments_bytes = 8;
    small.limits.max_result_bytes = 100;
    let mut driver = Driver::with(small);
    driver.receive([call(0, "pure", "{\"n\":123456}"), call(1, "pure", "{}")]).end_well();
    driver.finish_call(1, &"x".repeat(101));
    assert_eq!(
        limits(&driver),
        ["max_arguments_bytes 9/8 answered", "max_result_bytes 101/100 shortened"]
    );

    let mut timed = rules(PARALLEL);
    timed.limits.run_timeout = Some(Duration::from_secs(60));
    let run_time_left = Some(Duration::from_secs(50));
    let mut driver = Driver::new(TurnSpec { run_time_left, ..spec(timed) });
    driver.receive([call(0, "quick", "{}"), call(1, "pure", "{}")]).end_well();
    for time in [Duration::from_millis(5), Duration::from_secs(50)] {
        driver.now = time;
        driver.turn.handle_timeout(time);
        driver.perform_effects();
    }
    driver.assert_end(&TurnEnd::Cancelled(CancelReason::RunTimeout));
    let expected = [
        "tool_timeout 5/5 timed_out",
        "tool_timeout 30000/30000 timed_out",
        "run_timeout 60000/60000 ended",
    ];
    assert_eq!(limits(&driver), expected);
}
