//! Tools with a cap over the whole host: places granted in any order, at any moment.

use super::*;

/// Calls of tools with a cap, whose places are granted in any order and at any moment.
const CAPPED: [&[&str]; 4] = [
    &["capped", "capped", "pure"],
    &["capped_effect", "effect", "capped_effect"],
    &["capped_seal", "barrier", "capped"],
    &["capped {}", "capped {}", "capped_seal"],
];

#[test]
fn places_granted_in_any_order_beside_cancels_and_breaks() {
    each_of(&CAPPED, &EXECUTIONS, |scenario| scenario.cancel = true);
    each_of(&CAPPED, &EXECUTIONS[1..], |scenario| {
        scenario.at_once = true;
        scenario.breaks = 1;
        scenario.failures = true;
    });
    each_of(&CAPPED, &EXECUTIONS[1..], |scenario| {
        scenario.response.insert(scenario.response.len() - 1, more(0, " x"));
    });
}

#[test]
fn places_granted_in_any_order_beside_crashes_and_bad_endings() {
    each_of(&CAPPED, &EXECUTIONS, |scenario| scenario.crashes = 1);
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        each_of(&CAPPED, &EXECUTIONS[2..], |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.cancel = true;
            scenario.crashes = 1;
        });
    }
}

/// A call that people let run asks for a place only then, and so does one that runs again.
#[test]
fn places_of_calls_that_people_are_asked_about_and_that_run_again() {
    let mixes: [&[&str]; 3] =
        [&["set", "bump_capped"], &["add_capped", "bump_capped"], &["put", "add_capped"]];
    each_of(&mixes, &EXECUTIONS[2..], |scenario| {
        scenario.cancel = true;
    });
    each_of(&mixes, &EXECUTIONS[2..], |scenario| {
        scenario.at_once = true;
        scenario.crashes = 1;
    });
}
