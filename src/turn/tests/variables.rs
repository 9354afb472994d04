//! Calls that read and write the session's variables, where other rules meet them.

use super::*;

const STALE: &str = "\n[callsheet: an earlier call of the same response changed variables after \
                     this call had read them: x. This result rests on the older values.]";

#[test]
fn a_stop_keeps_what_was_to_run_again_and_says_only_what_is_true_of_it() {
    let mut driver = Driver::with(rules(PARALLEL));
    driver.deltas([call(0, "effect", "{}"), call(1, "capped", "{}")]).well();
    driver.place(1, Place::Granted);
    driver.used(1, "old", false);
    driver.used(0, "written", true);
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
    driver.used(1, "read", false);
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
