//! Variables: what calls see of each other, and what counts.

use serde_json::json;

use super::*;
use crate::config::Limits;
use crate::event::ConflictResolution;
use crate::turn::fixtures::committed;
use crate::types::{ToolResult, Verdict, WriteSet};

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
    /// A tool answers well, having read and written this.
    fn uses(&mut self, index: u32, content: &str, reads: &[&str], w: &[(&str, i64)]) -> &mut Self {
        self.report(index, ToolOutcome::ok(content), used(reads, w))
    }

    fn result(&self, index: usize) -> &ToolResult {
        &self.commit.as_ref().expect("the turn is over").results[index]
    }

    /// What the turn leaves, which the journal says too.
    #[track_caller]
    fn leaves(&self, expected: &[(&str, i64)]) {
        let mut variables = Variables::default();
        let results = &self.commit.as_ref().expect("the turn is over").results;
        results.iter().for_each(|result| variables.apply(&result.writes));
        let mut wanted = Variables::default();
        wanted.apply(&writes(expected));
        assert_eq!(variables, wanted);
        assert_eq!(committed(&self.log, &Limits::default()).1, wanted);
    }

    /// Content, whether there was a conflict, and whether writes were dropped.
    #[track_caller]
    fn told(&self, index: usize, content: &str, conflict: bool, dropped: bool) {
        let result = self.result(index);
        assert_eq!(&*result.outcome.content, content);
        assert_eq!((result.notes.conflict, result.notes.writes_dropped), (conflict, dropped));
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

/// Calls of these tools, each with arguments of its own, in a response that ended well.
fn calls(names: &[&str]) -> Driver {
    calls_of(rules(PARALLEL), names)
}

fn calls_of(rules: TurnRules, names: &[&str]) -> Driver {
    let mut driver = Driver::with(rules);
    driver.deltas((0..).zip(names).map(|(n, name)| match name.split_once(' ') {
        Some((name, arguments)) => call(n, name, arguments),
        None => call(n, name, &format!("{{\"n\":{n}}}")),
    }));
    driver.well();
    driver
}

const OLDER: &str = "\n[callsheet: an earlier call of the same response changed variables after \
    this call had read them: x. This result rests on the older values.]";
const DROPPED: &str = "\n[callsheet: an earlier call of the same response changed variables after \
    this call had read them: x. What this call wrote to variables was dropped.]";

#[test]
fn a_pure_call_that_read_too_early_runs_again_and_sees_what_was_written() {
    let mut driver = calls(&["put", "get"]);
    driver.uses(1, "nothing", &["x"], &[]).uses(0, "put", &[], &[("x", 1)]);
    driver.started(&["put#0", "get#1", "get#1"]);
    let seen: Vec<_> = driver.snapshots.iter().map(|seen| seen.get("x").cloned()).collect();
    assert_eq!(seen, [None, None, Some(json!(1))]);
    driver.uses(1, "1", &["x"], &[]).told(1, "1", true, false);
    assert_eq!(driver.conflicts(), [(1, "x".to_owned(), ConflictResolution::Rerun)]);
    driver.leaves(&[("x", 1)]);
}

#[test]
fn a_call_with_effects_keeps_its_result_and_loses_all_it_wrote() {
    let mut driver = calls(&["set", "swap"]);
    driver.uses(1, "swapped", &["x", "y"], &[("x", 5), ("y", 5)]).uses(0, "", &[], &[("x", 1)]);
    driver.started(&["set#0", "swap#1"]);
    driver.told(1, &format!("swapped{DROPPED}"), true, true);
    assert_eq!(driver.conflicts(), [(1, "x".to_owned(), ConflictResolution::WritesDropped)]);
    driver.leaves(&[("x", 1)]);
    // Where it wrote nothing, nothing is said to be lost.
    let mut reader = calls(&["set", "add"]);
    reader.uses(1, "sent", &["x"], &[]).uses(0, "", &[], &[("x", 1)]);
    reader.told(1, &format!("sent{OLDER}"), true, false);
    assert_eq!(reader.conflicts(), [(1, "x".to_owned(), ConflictResolution::ResultKept)]);
}

#[test]
fn what_an_earlier_call_has_left_when_one_starts_is_no_conflict() {
    let mut driver = calls_of(rules(Execution::Parallel { max: 1 }), &["put", "bump", "set_y"]);
    driver.uses(0, "", &[], &[("x", 1)]).uses(1, "", &["x"], &[("x", 12)]);
    driver.uses(2, "", &[], &[("y", 3)]).started(&["put#0", "bump#1", "set_y#2"]);
    assert_eq!(driver.conflicts(), []);
    driver.leaves(&[("x", 12), ("y", 3)]);
}

#[test]
fn what_a_later_call_wrote_is_no_conflict() {
    let mut driver = calls(&["get", "put"]);
    driver.uses(1, "", &[], &[("x", 1)]).uses(0, "none", &["x"], &[]);
    driver.told(0, "none", false, false);
    driver.leaves(&[("x", 1)]);
}

#[test]
fn what_failed_writes_nothing_and_is_no_conflict() {
    let mut driver = calls(&["put", "get"]);
    let failed = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver.uses(1, "none", &["x"], &[]).report(0, failed, used(&[], &[("x", 1)]));
    driver.told(1, "none", false, false);
    driver.leaves(&[]);
}

#[test]
fn a_call_that_fails_as_it_runs_again_has_failed() {
    let mut driver = calls(&["put", "bump"]);
    driver.uses(1, "ten", &["x"], &[("x", 10)]).uses(0, "", &[], &[("x", 1)]);
    let failed = ToolOutcome::not_ok(FAILED, FailureKind::ToolError, "no");
    driver.report(1, failed, used(&["x"], &[("x", 11)])).told(1, "no", true, false);
    driver.leaves(&[("x", 1)]);
    // The same in time: it is given up while it runs again.
    let mut late = calls(&["put", "bump"]);
    late.uses(1, "ten", &["x"], &[("x", 10)]).uses(0, "", &[], &[("x", 1)]);
    late.now = Duration::from_secs(30);
    late.turn.handle_timeout(late.now);
    late.pump();
    late.told(1, "Error: Execution timeout after 30s", true, false);
    late.leaves(&[("x", 1)]);
}

#[test]
fn a_call_that_cannot_run_again_after_a_cancel_keeps_its_answer_and_says_what_it_rests_on() {
    for (written, text, dropped) in [(&[][..], OLDER, false), (&[("x", 10)][..], DROPPED, true)] {
        let two = rules(Execution::Parallel { max: 2 });
        let mut driver = calls_of(two, &["bump_reviewed", "bump", "pure", "pure"]);
        driver.uses(0, "", &["x"], &[("x", 1)]).uses(1, "ten", &["x"], written);
        // Both places are taken when it turns out that it has to run again.
        driver.decide_approval(0, Verdict::Approved);
        driver.started(&["bump_reviewed#0", "bump#1", "pure#2", "pure#3"]);
        driver.cancel().told(1, &format!("ten{text}"), true, dropped);
        assert!(driver.result(1).started.is_some());
        driver.leaves(&[("x", 1)]);
    }
    let mut running = calls(&["put", "bump"]);
    running.uses(1, "ten", &["x"], &[("x", 10)]).uses(0, "", &[], &[("x", 1)]).cancel();
    running.told(1, "Error: cancelled while running", true, false);
    // What had answered, but was not decided yet, is decided by the cancel.
    let mut undecided = calls(&["put", "bump"]);
    undecided.uses(1, "ten", &["x"], &[("x", 10)]).cancel().told(1, "ten", false, false);
    undecided.leaves(&[("x", 10)]);
}

#[test]
fn together_variables_have_a_limit_which_is_reached_in_call_order() {
    let mut small = rules(PARALLEL);
    // A name of one byte and a number of one digit.
    small.limits.max_variables_bytes = 4;
    let mut driver = calls_of(small, &["put", "set_y", "set", "put"]);
    driver.uses(3, "third", &[], &[("z", 3)]).uses(2, "same", &[], &[("x", 7)]);
    driver.uses(1, "second", &[], &[("y", 2)]).uses(0, "first", &[], &[("x", 1)]);
    driver.told(0, "first", false, false);
    driver.told(1, "second", false, false);
    driver.told(2, "same", false, false);
    let dropped = "third\n[callsheet: what this call wrote to variables was dropped: together they \
        would exceed 4 bytes.]";
    driver.told(3, dropped, false, true);
    let limit = ("max_variables_bytes".to_owned(), 6, 4, "writes_dropped".to_owned());
    assert_eq!(driver.limits(), [limit]);
    driver.leaves(&[("x", 7), ("y", 2)]);
}

#[test]
fn a_repetition_is_a_copy_unless_what_it_used_was_written_between() {
    // A call with effects stands between.
    let mut again = calls(&["get {}", "set_y", "get {}"]);
    again.done(0, "").started(&["get#0", "get#2", "set_y#1"]);
    let mut copied = calls(&["get {}", "copy", "get {}"]);
    copied.uses(0, "none", &["x"], &[]).uses(1, "", &["x"], &[("y", 1)]);
    copied.started(&["get#0", "copy#1"]).told(2, "none", false, false);
    assert_eq!(copied.result(2).notes.duplicate_of, Some(copied.key(0)));
    let mut again = calls(&["get {}", "put", "get {}", "get {}"]);
    again.uses(0, "none", &["x"], &[]).uses(1, "", &[], &[("x", 1)]);
    again.started(&["get#0", "put#1", "get#2"]).uses(2, "1", &["x"], &[]);
    again.told(2, "1", false, false);
    again.told(3, "1", false, false);
    assert_eq!(again.result(2).notes.duplicate_of, None);
    assert_eq!(again.result(3).notes.duplicate_of, Some(again.key(2)));
}

#[test]
fn a_repeated_write_counts_where_another_came_between() {
    let mut driver = calls(&["put {}", "put", "put {}"]);
    driver.uses(0, "", &[], &[("x", 1)]).uses(1, "", &[], &[("x", 2)]);
    driver.started(&["put#0", "put#1", "put#2"]).uses(2, "", &[], &[("x", 1)]).leaves(&[("x", 1)]);
    // Nothing between: it is written already.
    let mut driver = calls(&["put {}", "put {}"]);
    driver.uses(0, "", &[], &[("x", 1)]).started(&["put#0"]).leaves(&[("x", 1)]);
    // An effect does not happen twice.
    let mut driver = calls(&["add {}", "put", "add {}"]);
    driver.uses(0, "", &["x"], &[("x", 1)]).uses(1, "", &[], &[("x", 2)]);
    driver.started(&["put#1", "add#0"]);
    driver.leaves(&[("x", 2)]);
}

#[test]
fn an_exclusive_repetition_that_runs_itself_runs_alone() {
    let mut rules = rules(PARALLEL);
    let alone = rules.tools["get"].as_ref().clone().exclusive();
    rules.tools.insert("get".into(), Arc::new(alone));
    let mut driver = calls_of(rules, &["get {}", "put", "get {}", "pure"]);
    driver.uses(0, "none", &["x"], &[]).started(&["get#0", "put#1"]);
    driver.uses(1, "", &[], &[("x", 1)]).started(&["get#0", "put#1", "get#2"]);
    driver.uses(2, "1", &["x"], &[]).started(&["get#0", "put#1", "get#2", "pure#3"]);
}

#[test]
fn a_call_that_started_early_is_decided_when_the_ending_is_known() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "put", "{}"), call(1, "get", "{}"), call(2, "get", "{\"n\":2}")]);
    driver.deltas([call(3, "pure", "{}")]).started(&["put#0", "get#1", "get#2"]);
    driver.uses(2, "none", &["x"], &[]).uses(0, "", &[], &[("x", 1)]);
    driver.uses(1, "none", &["x"], &[]);
    assert_eq!(driver.count(|event| matches!(event, Event::CallEnded { .. })), 0);
    driver.well().started(&["put#0", "get#1", "get#2", "get#1", "pure#3"]);
    driver.uses(1, "1", &["x"], &[]).uses(2, "1", &["x"], &[]).done(3, "");
    driver.told(1, "1", true, false);
    driver.told(2, "1", true, false);
    driver.leaves(&[("x", 1)]);
}

#[test]
fn a_void_attempt_leaves_variables_as_they_were() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver
        .deltas([call(0, "put", "{}"), call(1, "nobody", "{}")])
        .uses(0, "", &[], &[("x", 1)])
        .broken();
    driver.deltas([call(0, "get", "{}")]).well().started(&["put#0", "get#0"]);
    assert_eq!(driver.snapshots[1], Variables::default());
    driver.uses(0, "none", &["x"], &[]).told(0, "none", false, false);
    driver.leaves(&[]);
}

/// The journal may end behind any record.
#[test]
fn a_resumed_turn_decides_what_was_reported_as_if_nothing_had_happened() {
    let steps = |driver: &mut Driver| {
        driver.uses(2, "got", &["x"], &[]).uses(1, "sent", &["x"], &[("y", 5)]);
        driver.uses(0, "", &[], &[("x", 1)]).uses(2, "1", &["x"], &[]);
    };
    let mut whole = calls(&["set", "add", "get"]);
    steps(&mut whole);
    whole.told(1, &format!("sent{DROPPED}"), true, true);
    whole.told(2, "1", true, false);
    let reported = |record: &Record| matches!(record, Record::CallReported { .. });
    let from = whole.log.iter().rposition(reported).unwrap() + 1;
    for kept in from..whole.log.len() {
        let mut driver = calls(&["set", "add", "get"]);
        steps(&mut driver);
        driver.crash(kept).started(&[]);
        for index in 0..3 {
            assert_eq!(driver.result(index).outcome, whole.result(index).outcome);
            assert_eq!(driver.result(index).notes, whole.result(index).notes);
        }
        driver.leaves(&[("x", 1)]);
    }
    // Only the first answer of the call that was to run again is left: it runs again.
    let mut driver = calls(&["set", "add", "get"]);
    steps(&mut driver);
    driver.crash(from - 1).started(&["get#2"]).uses(2, "1", &["x"], &[]);
    driver.told(2, "1", true, false);
    // Nobody knows what the calls before it wrote: what it answered is not out of date.
    let first = whole.log.iter().position(reported).unwrap() + 1;
    let mut driver = calls(&["set", "add", "get"]);
    steps(&mut driver);
    driver.crash(first);
    driver.started(&[]);
    driver.told(
        0,
        "Error: the host stopped during this call; it may or may not have happened",
        false,
        false,
    );
    driver.told(2, "got", false, false);
}

#[test]
fn after_a_crash_a_repetition_still_knows_what_the_first_used() {
    let mut driver = calls(&["get {}", "put", "get {}"]);
    driver.uses(0, "none", &["x"], &[]).uses(1, "", &[], &[("x", 1)]);
    let kept = driver.log.len();
    driver.crash(kept).started(&["get#2"]).uses(2, "1", &["x"], &[]);
    driver.told(2, "1", false, false);
    let mut driver = calls(&["put {}", "put", "put {}"]);
    driver.uses(0, "", &[], &[("x", 1)]).uses(1, "", &[], &[("x", 2)]);
    let kept = driver.log.len();
    driver.crash(kept).started(&["put#2"]).uses(2, "", &[], &[("x", 1)]).leaves(&[("x", 1)]);
}
