//! Isolation of variables: snapshots, conflicts, reruns and duplicates.

use serde_json::json;

use super::*;
use crate::turn::fixtures::committed;
use callsheet_values::config::Limits;
use callsheet_values::event::ConflictResolution;
use callsheet_values::types::{ApprovalVerdict, ToolResult, WriteSet};

fn writes(entries: &[(&str, i64)]) -> WriteSet {
    WriteSet(entries.iter().map(|(name, n)| ((*name).into(), Arc::new(json!(n)))).collect())
}

fn used(reads: &[&str], written: &[(&str, i64)]) -> VariablesUse {
    VariablesUse {
        reads: reads.iter().map(|name| (*name).into()).collect(),
        writes: writes(written),
    }
}

impl Driver {
    /// Ends a call that has read and written these variables.
    fn finish_call_and_use(
        &mut self,
        index: u32,
        content: &str,
        reads: &[&str],
        w: &[(&str, i64)],
    ) -> &mut Self {
        self.finish_call_using(index, ToolOutcome::ok(content), used(reads, w))
    }

    fn result(&self, index: usize) -> &ToolResult {
        &self.commit.as_ref().expect("the turn is over").results[index]
    }

    /// Compares the variables after the turn, in its results and in its records.
    #[track_caller]
    fn assert_variables(&self, expected: &[(&str, i64)]) {
        let mut variables = Variables::default();
        let results = &self.commit.as_ref().expect("the turn is over").results;
        results.iter().for_each(|result| variables.apply(&result.writes));
        let mut wanted = Variables::default();
        wanted.apply(&writes(expected));
        assert_eq!(variables, wanted);
        assert_eq!(committed(&self.log, &Limits::default()).1, wanted);
    }

    /// Compares the content of a result and its notes.
    #[track_caller]
    fn assert_result(&self, index: usize, content: &str, conflict: bool, writes_dropped: bool) {
        let result = self.result(index);
        assert_eq!(&*result.outcome.content, content);
        assert_eq!(
            (result.notes.conflict, result.notes.writes_dropped),
            (conflict, writes_dropped)
        );
    }

    fn conflicts(&self) -> Vec<(u32, String, ConflictResolution)> {
        let conflicts = self.events.iter().filter_map(|event| match event {
            Event::ConflictFound { call, names, resolution } => {
                Some((call.key.index, names.join(","), *resolution))
            }
            _ => None,
        });
        conflicts.collect()
    }
}

/// Drives a response with calls of these tools that ends well. Each call has its own arguments.
fn calls(names: &[&str]) -> Driver {
    calls_with_rules(rules(PARALLEL), names)
}

fn calls_with_rules(rules: RunRules, names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules);
    driver.receive((0..).zip(names).map(|(n, name)| match name.split_once(' ') {
        Some((name, arguments)) => call(n, name, arguments),
        None => call(n, name, &format!("{{\"n\":{n}}}")),
    }));
    driver.end_well();
    driver
}

const OLDER: &str = "\n[callsheet: an earlier call of the same response changed variables after \
    this call had read them: x. This result rests on the older values.]";
const DROPPED: &str = "\n[callsheet: an earlier call of the same response changed variables after \
    this call had read them: x. What this call wrote to variables was dropped.]";

#[test]
fn a_pure_call_with_a_conflict_runs_again_and_reads_the_new_value() {
    let mut driver = calls(&["put", "get"]);
    driver.finish_call_and_use(1, "nothing", &["x"], &[]).finish_call_and_use(
        0,
        "put",
        &[],
        &[("x", 1)],
    );
    driver.assert_started(&["put#0", "get#1", "get#1"]);
    let values: Vec<_> = driver.snapshots.iter().map(|seen| seen.get("x").cloned()).collect();
    assert_eq!(values, [None, None, Some(json!(1))]);
    driver.finish_call_and_use(1, "1", &["x"], &[]).assert_result(1, "1", true, false);
    assert_eq!(driver.conflicts(), [(1, "x".to_owned(), ConflictResolution::Rerun)]);
    driver.assert_variables(&[("x", 1)]);
}

#[test]
fn a_call_with_effects_and_a_conflict_keeps_its_result_and_loses_its_writes() {
    let mut driver = calls(&["set", "swap"]);
    driver
        .finish_call_and_use(1, "swapped", &["x", "y"], &[("x", 5), ("y", 5)])
        .finish_call_and_use(0, "", &[], &[("x", 1)]);
    driver.assert_started(&["set#0", "swap#1"]);
    driver.assert_result(1, &format!("swapped{DROPPED}"), true, true);
    assert_eq!(driver.conflicts(), [(1, "x".to_owned(), ConflictResolution::WritesDropped)]);
    driver.assert_variables(&[("x", 1)]);
    // A call without writes keeps its result.
    let mut reader = calls(&["set", "add"]);
    reader.finish_call_and_use(1, "sent", &["x"], &[]).finish_call_and_use(0, "", &[], &[("x", 1)]);
    reader.assert_result(1, &format!("sent{OLDER}"), true, false);
    assert_eq!(reader.conflicts(), [(1, "x".to_owned(), ConflictResolution::ResultKept)]);
}

#[test]
fn a_write_in_the_snapshot_is_no_conflict() {
    let mut driver =
        calls_with_rules(rules(Execution::Parallel { max: 1 }), &["put", "bump", "set_y"]);
    driver.finish_call_and_use(0, "", &[], &[("x", 1)]).finish_call_and_use(
        1,
        "",
        &["x"],
        &[("x", 12)],
    );
    driver
        .finish_call_and_use(2, "", &[], &[("y", 3)])
        .assert_started(&["put#0", "bump#1", "set_y#2"]);
    assert_eq!(driver.conflicts(), []);
    driver.assert_variables(&[("x", 12), ("y", 3)]);
}

#[test]
fn a_write_of_a_later_call_is_no_conflict() {
    let mut driver = calls(&["get", "put"]);
    driver.finish_call_and_use(1, "", &[], &[("x", 1)]).finish_call_and_use(0, "none", &["x"], &[]);
    driver.assert_result(0, "none", false, false);
    driver.assert_variables(&[("x", 1)]);
}

#[test]
fn of_two_calls_that_only_write_a_variable_the_later_one_wins() {
    for order in [[0, 1], [1, 0]] {
        let mut driver = calls(&["put", "set"]);
        for index in order {
            driver.finish_call_and_use(index, "", &[], &[("x", i64::from(index))]);
        }
        assert_eq!(driver.conflicts(), []);
        driver.assert_variables(&[("x", 1)]);
    }
}

#[test]
fn a_failed_call_writes_nothing_and_causes_no_conflict() {
    let mut driver = calls(&["put", "get"]);
    let failed = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver.finish_call_and_use(1, "none", &["x"], &[]).finish_call_using(
        0,
        failed,
        used(&[], &[("x", 1)]),
    );
    driver.assert_result(1, "none", false, false);
    driver.assert_variables(&[]);
}

#[test]
fn a_call_whose_second_run_fails_has_failed() {
    let mut driver = calls(&["put", "bump"]);
    driver.finish_call_and_use(1, "ten", &["x"], &[("x", 10)]).finish_call_and_use(
        0,
        "",
        &[],
        &[("x", 1)],
    );
    let failed = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver
        .finish_call_using(1, failed, used(&["x"], &[("x", 11)]))
        .assert_result(1, "no", true, false);
    driver.assert_variables(&[("x", 1)]);
    // The second run exceeds its timeout.
    let mut late = calls(&["put", "bump"]);
    late.finish_call_and_use(1, "ten", &["x"], &[("x", 10)]).finish_call_and_use(
        0,
        "",
        &[],
        &[("x", 1)],
    );
    late.now = Duration::from_secs(30);
    late.turn.handle_timeout(late.now);
    late.perform_effects();
    late.assert_result(1, "Error: Execution timeout after 30s", true, false);
    late.assert_variables(&[("x", 1)]);
}

#[test]
fn a_cancelled_rerun_keeps_the_first_result_with_a_note() {
    for (written, text, dropped) in [(&[][..], OLDER, false), (&[("x", 10)][..], DROPPED, true)] {
        let two = rules(Execution::Parallel { max: 2 });
        let mut driver = calls_with_rules(two, &["bump_reviewed", "bump", "pure", "pure"]);
        driver.finish_call_and_use(0, "", &["x"], &[("x", 1)]).finish_call_and_use(
            1,
            "ten",
            &["x"],
            written,
        );
        // Both permits are held when the call has to run again.
        driver.decide_approval(0, ApprovalVerdict::Approved);
        driver.assert_started(&["bump_reviewed#0", "bump#1", "pure#2", "pure#3"]);
        driver.cancel().assert_result(1, &format!("ten{text}"), true, dropped);
        assert!(driver.result(1).started.is_some());
        driver.assert_variables(&[("x", 1)]);
    }
    let mut running = calls(&["put", "bump"]);
    running
        .finish_call_and_use(1, "ten", &["x"], &[("x", 10)])
        .finish_call_and_use(0, "", &[], &[("x", 1)])
        .cancel();
    running.assert_result(1, "Error: cancelled while running", true, false);
    // A report that is not resolved yet is resolved by the cancellation.
    let mut undecided = calls(&["put", "bump"]);
    undecided
        .finish_call_and_use(1, "ten", &["x"], &[("x", 10)])
        .cancel()
        .assert_result(1, "ten", false, false);
    undecided.assert_variables(&[("x", 10)]);
}

#[test]
fn max_variables_bytes_is_applied_in_call_order() {
    let mut small = rules(PARALLEL);
    // Each variable has a name of one byte and a value of one digit.
    small.limits.max_variables_bytes = 4;
    let mut driver = calls_with_rules(small, &["put", "set_y", "set", "put"]);
    driver.finish_call_and_use(3, "third", &[], &[("z", 3)]).finish_call_and_use(
        2,
        "same",
        &[],
        &[("x", 7)],
    );
    driver.finish_call_and_use(1, "second", &[], &[("y", 2)]).finish_call_and_use(
        0,
        "first",
        &[],
        &[("x", 1)],
    );
    driver.assert_result(0, "first", false, false);
    driver.assert_result(1, "second", false, false);
    driver.assert_result(2, "same", false, false);
    let dropped = "third\n[callsheet: what this call wrote to variables was dropped: together they \
        would exceed 4 bytes.]";
    driver.assert_result(3, dropped, false, true);
    let limit = ("max_variables_bytes".to_owned(), 6, 4, "writes_dropped".to_owned());
    assert_eq!(driver.reached_limits(), [limit]);
    driver.assert_variables(&[("x", 7), ("y", 2)]);
}

#[test]
fn a_duplicate_runs_if_a_variable_that_it_read_was_written_in_between() {
    // A call with effects is between the two identical calls.
    let mut again = calls(&["get {}", "set_y", "get {}"]);
    again.finish_call(0, "").assert_started(&["get#0", "get#2", "set_y#1"]);
    let mut copied = calls(&["get {}", "copy", "get {}"]);
    copied.finish_call_and_use(0, "none", &["x"], &[]).finish_call_and_use(
        1,
        "",
        &["x"],
        &[("y", 1)],
    );
    copied.assert_started(&["get#0", "copy#1"]).assert_result(2, "none", false, false);
    assert_eq!(copied.result(2).notes.duplicate_of, Some(copied.key(0)));
    let mut again = calls(&["get {}", "put", "get {}", "get {}"]);
    again.finish_call_and_use(0, "none", &["x"], &[]).finish_call_and_use(1, "", &[], &[("x", 1)]);
    again.assert_started(&["get#0", "put#1", "get#2"]).finish_call_and_use(2, "1", &["x"], &[]);
    again.assert_result(2, "1", false, false);
    again.assert_result(3, "1", false, false);
    assert_eq!(again.result(2).notes.duplicate_of, None);
    assert_eq!(again.result(3).notes.duplicate_of, Some(again.key(2)));
}

#[test]
fn a_duplicate_write_runs_if_another_write_came_in_between() {
    let mut driver = calls(&["put {}", "put", "put {}"]);
    driver.finish_call_and_use(0, "", &[], &[("x", 1)]).finish_call_and_use(
        1,
        "",
        &[],
        &[("x", 2)],
    );
    driver
        .assert_started(&["put#0", "put#1", "put#2"])
        .finish_call_and_use(2, "", &[], &[("x", 1)])
        .assert_variables(&[("x", 1)]);
    // No write is between the identical calls: the second one is a copy.
    let mut driver = calls(&["put {}", "put {}"]);
    driver
        .finish_call_and_use(0, "", &[], &[("x", 1)])
        .assert_started(&["put#0"])
        .assert_variables(&[("x", 1)]);
    // A call with effects does not run twice.
    let mut driver = calls(&["add {}", "put", "add {}"]);
    driver.finish_call_and_use(0, "", &["x"], &[("x", 1)]).finish_call_and_use(
        1,
        "",
        &[],
        &[("x", 2)],
    );
    driver.assert_started(&["put#1", "add#0"]);
    driver.assert_variables(&[("x", 2)]);
}

#[test]
fn an_exclusive_duplicate_that_runs_runs_alone() {
    let mut rules = rules(PARALLEL);
    let alone = rules.tools["get"].as_ref().clone().exclusive();
    rules.tools.insert("get".into(), Arc::new(alone));
    let mut driver = calls_with_rules(rules, &["get {}", "put", "get {}", "pure"]);
    driver.finish_call_and_use(0, "none", &["x"], &[]).assert_started(&["get#0", "put#1"]);
    driver
        .finish_call_and_use(1, "", &[], &[("x", 1)])
        .assert_started(&["get#0", "put#1", "get#2"]);
    driver
        .finish_call_and_use(2, "1", &["x"], &[])
        .assert_started(&["get#0", "put#1", "get#2", "pure#3"]);
}

#[test]
fn a_call_that_started_early_is_resolved_after_the_response_ended() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.receive([call(0, "put", "{}"), call(1, "get", "{}"), call(2, "get", "{\"n\":2}")]);
    driver.receive([call(3, "pure", "{}")]).assert_started(&["put#0", "get#1", "get#2"]);
    driver.finish_call_and_use(2, "none", &["x"], &[]).finish_call_and_use(0, "", &[], &[("x", 1)]);
    driver.finish_call_and_use(1, "none", &["x"], &[]);
    assert_eq!(driver.count_events(|event| matches!(event, Event::CallEnded { .. })), 0);
    driver.end_well().assert_started(&["put#0", "get#1", "get#2", "get#1", "pure#3"]);
    driver
        .finish_call_and_use(1, "1", &["x"], &[])
        .finish_call_and_use(2, "1", &["x"], &[])
        .finish_call(3, "");
    driver.assert_result(1, "1", true, false);
    driver.assert_result(2, "1", true, false);
    driver.assert_variables(&[("x", 1)]);
}

#[test]
fn a_void_attempt_changes_no_variables() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .receive([call(0, "put", "{}"), call(1, "nobody", "{}")])
        .finish_call_and_use(0, "", &[], &[("x", 1)])
        .break_off();
    driver.receive([call(0, "get", "{}")]).end_well().assert_started(&["put#0", "get#0"]);
    assert_eq!(driver.snapshots[1], Variables::default());
    driver.finish_call_and_use(0, "none", &["x"], &[]).assert_result(0, "none", false, false);
    driver.assert_variables(&[]);
}

/// The journal may end after any record.
#[test]
fn a_resumed_turn_resolves_recorded_reports_as_before_the_crash() {
    let finish_calls = |driver: &mut Driver| {
        driver.finish_call_and_use(2, "got", &["x"], &[]).finish_call_and_use(
            1,
            "sent",
            &["x"],
            &[("y", 5)],
        );
        driver.finish_call_and_use(0, "", &[], &[("x", 1)]).finish_call_and_use(
            2,
            "1",
            &["x"],
            &[],
        );
    };
    let mut whole = calls(&["set", "add", "get"]);
    finish_calls(&mut whole);
    whole.assert_result(1, &format!("sent{DROPPED}"), true, true);
    whole.assert_result(2, "1", true, false);
    let reported = |record: &Record| matches!(record, Record::CallReported { .. });
    let from = whole.log.iter().rposition(reported).unwrap() + 1;
    for kept in from..whole.log.len() {
        let mut driver = calls(&["set", "add", "get"]);
        finish_calls(&mut driver);
        driver.crash(kept).assert_started(&[]);
        for index in 0..3 {
            assert_eq!(driver.result(index).outcome, whole.result(index).outcome);
            assert_eq!(driver.result(index).notes, whole.result(index).notes);
        }
        driver.assert_variables(&[("x", 1)]);
    }
    // Only the first report of the call that has to run again is recorded: it runs again.
    let mut driver = calls(&["set", "add", "get"]);
    finish_calls(&mut driver);
    driver.crash(from - 1).assert_started(&["get#2"]).finish_call_and_use(2, "1", &["x"], &[]);
    driver.assert_result(2, "1", true, false);
    // The writes of the earlier calls are lost, so that there is no conflict.
    let first = whole.log.iter().position(reported).unwrap() + 1;
    let mut driver = calls(&["set", "add", "get"]);
    finish_calls(&mut driver);
    driver.crash(first);
    driver.assert_started(&[]);
    driver.assert_result(
        0,
        "Error: the host stopped during this call; it may or may not have happened",
        false,
        false,
    );
    driver.assert_result(2, "got", false, false);
}

#[test]
fn a_resumed_turn_restores_the_variables_that_the_original_of_a_duplicate_used() {
    let mut driver = calls(&["get {}", "put", "get {}"]);
    driver.finish_call_and_use(0, "none", &["x"], &[]).finish_call_and_use(1, "", &[], &[("x", 1)]);
    let kept = driver.log.len();
    driver.crash(kept).assert_started(&["get#2"]).finish_call_and_use(2, "1", &["x"], &[]);
    driver.assert_result(2, "1", false, false);
    let mut driver = calls(&["put {}", "put", "put {}"]);
    driver.finish_call_and_use(0, "", &[], &[("x", 1)]).finish_call_and_use(
        1,
        "",
        &[],
        &[("x", 2)],
    );
    let kept = driver.log.len();
    driver
        .crash(kept)
        .assert_started(&["put#2"])
        .finish_call_and_use(2, "", &[], &[("x", 1)])
        .assert_variables(&[("x", 1)]);
}
