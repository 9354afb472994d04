//! Calls that read and write the session's variables, where other rules meet them.

use super::*;
use crate::types::{CallKey, WriteSet};

const STALE: &str = "\n[callsheet: an earlier call of the same response changed variables after \
                     this call had read them: x. This result rests on the older values.]";

fn key(index: u32) -> CallKey {
    CallKey { turn: 1, attempt: 1, index }
}

/// A call ends that has read, or written, `x`.
fn used(driver: &mut Driver, index: u32, content: &str, writes: bool) {
    let mut used = VariablesUse::default();
    if writes {
        used.writes = WriteSet([("x".into(), Arc::new(serde_json::json!(index)))].into());
    } else {
        used.reads.insert("x".into());
    }
    let done = ToolDone { outcome: ToolOutcome::ok(content), used };
    driver.turn.handle_outcome(driver.now, key(index), done);
    driver.pump();
}

#[test]
fn a_stop_keeps_what_was_to_run_again_and_says_only_what_is_true_of_it() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{}"), call(1, "capped", "{}")]).well();
    driver.place(1, Place::Granted);
    used(&mut driver, 1, "old", false);
    used(&mut driver, 0, "written", true);
    assert_eq!(driver.reserved, [1, 1], "it is to run again");
    driver.cancel();
    assert_eq!(driver.given_up, [1]);
    let stale = format!("old{STALE}");
    driver.results(&[("effect", OK, None, "written"), ("capped", OK, None, &stale)]);
    let notes = &driver.commit.as_ref().unwrap().results[1].notes;
    assert!(notes.conflict && !notes.writes_dropped);
}

#[test]
fn a_duplicate_gets_a_copy_of_a_result_that_a_stop_decides() {
    let mut driver = Driver::with(rules(PARALLEL));
    let two_reads = [call(1, "pure", "{}"), call(2, "pure", "{}")];
    driver.deltas([call(0, "effect", "{}")]).deltas(two_reads).well();
    used(&mut driver, 1, "read", false);
    driver.cancel();
    let perhaps = "Error: cancelled while running: it may or may not have happened";
    driver.results(&[
        ("effect", CANCELLED, Some(FailureKind::Cancelled), perhaps),
        ("pure", OK, None, "read"),
        ("pure", OK, None, "read"),
    ]);
    let results = &driver.commit.as_ref().unwrap().results;
    assert_eq!(results[2].notes.duplicate_of, Some(key(1)));
}
