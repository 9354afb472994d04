//! Visits every state that a [`Session`](super::Session) can get into in some scenarios, each once, and checks the
//! invariants in it. Inputs, stops, approvals, hibernation, crashes at every record, lost actors, forks, shutdown
//! and deletion come in any order, each as often as the scenario allows.
//!
//! The turn machine does not run here: a turn is the records that it could write.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

mod actions;
mod checks;
mod world;

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use world::{SUMMARY_WINDOW, Scenario, World};

/// A scenario with more states takes too long.
const STATES_MAX: usize = 400_000;

/// Returns 128 bits, so that two states are practically never taken for one.
fn fingerprint(world: &World) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let first = hasher.finish();
    first.hash(&mut hasher);
    (first, hasher.finish())
}

/// Visits and checks every state of a scenario, and prints their number.
fn explore(name: &str, scenario: &Scenario) {
    let first = World::open(scenario);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut unvisited = VecDeque::from([first]);
    let mut most_reported = 0;
    while let Some(world) = unvisited.pop_front() {
        world.check();
        most_reported = most_reported.max(world.reported.len());
        for action in world.actions() {
            let mut next = world.clone();
            next.act(action);
            if seen.insert(fingerprint(&next)) {
                assert!(seen.len() <= STATES_MAX, "{name}: too many states");
                unvisited.push_back(next);
            }
        }
    }
    assert!(most_reported > 0, "{name}: no run has ended");
    println!("{name}: {} states", seen.len());
}

#[test]
fn two_inputs_steering_and_stops() {
    let scenario = Scenario { starts: 2, steers: 1, stops: 1, max_turns: 2, ..Scenario::default() };
    explore("two inputs, steering, a stop", &scenario);
    let scenario = Scenario { starts: 1, stops: 2, steers: 1, max_turns: 2, ..scenario };
    explore("one input, steering, two stops", &scenario);
    let scenario = Scenario { starts: 3, max_turns: 1, ..Scenario::default() };
    explore("three inputs", &scenario);
}

#[test]
fn queued_inputs_are_taken_back() {
    let scenario = Scenario {
        starts: 2,
        removals: 1,
        stops: 1,
        crashes: 1,
        max_turns: 1,
        ..Scenario::default()
    };
    explore("a queued input is taken back, a stop, a crash", &scenario);
    let scenario = Scenario { starts: 3, removals: 2, stops: 0, crashes: 0, ..scenario };
    explore("two of three inputs are taken back", &scenario);
    let scenario = Scenario { starts: 2, removals: 1, shutdowns: 1, closes: 1, ..scenario };
    explore("a queued input is taken back, a shutdown, deletion", &scenario);
    let scenario = Scenario { shutdowns: 0, closes: 0, forks: 1, hibernations: 1, ..scenario };
    explore("a queued input is taken back, a fork, hibernation", &scenario);
}

#[test]
fn crashes_at_every_record() {
    let scenario = Scenario {
        starts: 1,
        steers: 1,
        stops: 1,
        crashes: 1,
        max_turns: 2,
        ..Scenario::default()
    };
    explore("a crash", &scenario);
    let scenario = Scenario { starts: 2, steers: 0, max_turns: 1, ..scenario };
    explore("a crash, two inputs", &scenario);
    explore("a crash, manual resume", &Scenario { manual: true, ..scenario });
    let scenario = Scenario { starts: 1, crashes: 2, max_turns: 1, ..Scenario::default() };
    explore("two crashes", &scenario);
}

#[test]
fn forks_and_a_narrow_queue() {
    let scenario = Scenario {
        starts: 2,
        steers: 1,
        forks: 1,
        max_turns: 1,
        narrow_queue: true,
        ..Scenario::default()
    };
    explore("a fork, a narrow queue", &scenario);
}

#[test]
fn hibernation() {
    let scenario = Scenario {
        starts: 2,
        steers: 1,
        stops: 1,
        hibernations: 1,
        max_turns: 1,
        ..Scenario::default()
    };
    explore("hibernation", &scenario);
    let scenario =
        Scenario { starts: 1, steers: 0, hibernations: 2, crashes: 1, manual: true, ..scenario };
    explore("hibernation, a crash, manual resume", &scenario);
}

#[test]
fn lost_and_failed_turns() {
    let scenario = Scenario {
        starts: 1,
        steers: 1,
        stops: 1,
        losses: 2,
        failures: 1,
        max_turns: 2,
        ..Scenario::default()
    };
    explore("lost turns", &scenario);
}

#[test]
fn shutdown_and_deletion() {
    let scenario =
        Scenario { starts: 2, stops: 1, shutdowns: 2, max_turns: 1, ..Scenario::default() };
    explore("shutdown", &scenario);
    let scenario = Scenario { shutdowns: 0, closes: 1, crashes: 1, ..scenario };
    explore("deletion", &scenario);
}

#[test]
fn a_run_that_was_interrupted_is_reopened() {
    let base =
        Scenario { starts: 1, shutdowns: 1, reopens: 1, max_turns: 2, ..Scenario::default() };
    let scenario = Scenario { steers: 1, crashes: 1, max_turns: 1, ..base };
    explore("reopened, steering, a crash", &scenario);
    let scenario =
        Scenario { shutdowns: 2, reopens: 2, stops: 1, initial_call: true, max_turns: 1, ..base };
    explore("reopened twice, a stop, initial calls", &scenario);
    let scenario = Scenario { starts: 2, max_turns: 1, ..base };
    explore("reopened, two inputs", &scenario);
    let scenario = Scenario { max_turns: 1, forks: 1, closes: 1, ..base };
    explore("reopened, a fork, deletion", &scenario);
    let scenario = Scenario { unmet_schema: true, steers: 1, losses: 1, ..base };
    explore("reopened, a typed answer, steering, a lost turn", &scenario);
    let scenario = Scenario { window: 20, compactions: 1, hibernations: 1, servers: true, ..base };
    explore("reopened, a small window, a request to compact, hibernation", &scenario);
}

#[test]
fn tools_of_servers() {
    let base = Scenario { starts: 1, servers: true, max_turns: 1, ..Scenario::default() };
    let initial = Scenario { steers: 1, refreshes: 1, crashes: 1, initial_call: true, ..base };
    explore("tools of servers", &Scenario { starts: 2, stops: 1, refreshes: 1, ..base });
    let scenario = Scenario { steers: 1, stops: 1, refreshes: 1, crashes: 1, shutdowns: 1, ..base };
    explore("tools of servers, a crash, a shutdown", &scenario);
    let scenario = Scenario { stops: 1, closes: 1, ..initial };
    explore("tools of servers, initial calls, a crash, deletion", &scenario);
    let scenario = Scenario { timeouts_before_turn: 1, ..initial };
    explore("tools of servers that come too late, initial calls, a crash", &scenario);
    let scenario = Scenario { stops: 1, crashes: 1, shutdowns: 1, timeouts_before_turn: 1, ..base };
    explore("tools of servers that come too late, a stop, a crash, a shutdown", &scenario);
}

#[test]
fn initial_calls() {
    let scenario = Scenario {
        starts: 1,
        steers: 1,
        stops: 1,
        crashes: 1,
        losses: 1,
        initial_call: true,
        max_turns: 1,
        ..Scenario::default()
    };
    explore("initial calls", &scenario);
}

#[test]
fn typed_answers_that_never_match() {
    let one = Scenario { starts: 1, max_turns: 2, unmet_schema: true, ..Scenario::default() };
    explore("a typed answer, a stop, a crash", &Scenario { stops: 1, crashes: 1, ..one });
    let scenario = Scenario { steers: 1, losses: 1, shutdowns: 1, ..one };
    explore("a typed answer, steering, a lost turn, a shutdown", &scenario);
    let two = Scenario { starts: 2, max_turns: 1, unmet_schema: true, ..Scenario::default() };
    explore("typed answers, a fork, hibernation", &Scenario { forks: 1, hibernations: 1, ..two });
}

#[test]
fn small_windows() {
    let one = Scenario { starts: 1, window: 20, max_turns: 2, ..Scenario::default() };
    let scenario = Scenario { stops: 1, crashes: 1, ..one };
    explore("a small window, a stop, a crash", &scenario);
    let scenario = Scenario { steers: 1, shutdowns: 1, losses: 1, ..one };
    explore("a small window, steering, a shutdown, a lost turn", &scenario);
    let two = Scenario { starts: 2, window: 20, max_turns: 1, ..Scenario::default() };
    let scenario = Scenario { compactions: 1, crashes: 1, hibernations: 1, ..two };
    explore("a small window, a request to compact, a crash, hibernation", &scenario);
    // There is room for a summary, and it is asked for early.
    let scenario = Scenario { window: SUMMARY_WINDOW, ..scenario };
    explore("a window with room for a summary, a request to compact, a crash", &scenario);
    explore("a small window, a fork, deletion", &Scenario { forks: 1, closes: 1, ..two });
    let scenario =
        Scenario { timeouts_before_turn: 1, stops: 1, crashes: 1, window: SUMMARY_WINDOW, ..two };
    explore("a summary that comes too late, a stop, a crash", &scenario);
    let scenario = Scenario { max_tokens: Some(6), max_turns: 3, crashes: 1, ..one };
    explore("a small window, few tokens, a crash", &scenario);
    let scenario =
        Scenario { crashes: 0, steers: 1, losses: 1, timeouts_before_turn: 1, ..scenario };
    explore("a small window, few tokens, steering, a lost turn, a timeout", &scenario);
}
