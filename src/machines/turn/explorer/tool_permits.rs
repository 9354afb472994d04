//! Scenarios of tools with `max_concurrent`. Their permits are granted at any time, in any order.

use super::*;

/// The calls of the scenarios. A capped tool runs one call at a time.
const CAPPED_MIXES: [&[&str]; 4] = [
    &["capped", "capped", "pure"],
    &["capped_effect", "effect", "capped_effect"],
    &["capped_seal", "barrier", "capped"],
    &["capped {}", "capped {}", "capped_seal"],
];

#[test]
fn tool_permits_with_cancellations_and_breaks() {
    explore_each(&CAPPED_MIXES, &EXECUTIONS, |scenario| scenario.cancel = true);
    explore_each(&CAPPED_MIXES, &PARALLEL_EXECUTIONS, |scenario| {
        scenario.durable_at_once = true;
        scenario.breaks = 1;
        scenario.failures = true;
    });
    explore_each(&CAPPED_MIXES, &PARALLEL_EXECUTIONS, |scenario| {
        // More bytes for the sealed call 0 make it malformed.
        scenario.response.insert(scenario.response.len() - 1, more(0, " x"));
    });
}

#[test]
fn tool_permits_with_crashes_and_cut_off_or_filtered_responses() {
    explore_each(&CAPPED_MIXES, &EXECUTIONS, |scenario| scenario.crashes = 1);
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        explore_each(&CAPPED_MIXES, &PARALLEL_8, |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.cancel = true;
            scenario.crashes = 1;
        });
    }
}

/// A call requests its permit after its approval, and a second permit for a rerun.
#[test]
fn tool_permits_with_approvals_and_reruns() {
    let mixes: [&[&str]; 3] =
        [&["set", "bump_capped"], &["add_capped", "bump_capped"], &["put", "add_capped"]];
    explore_each(&mixes, &PARALLEL_8, |scenario| {
        scenario.cancel = true;
    });
    explore_each(&mixes, &PARALLEL_8, |scenario| {
        scenario.durable_at_once = true;
        scenario.crashes = 1;
    });
}
