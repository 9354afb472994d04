//! Explorer: visits every state of [`Turn`] that a scenario can reach in a simulated environment (`world`), and
//! checks the invariants in each. Deltas, outcomes, durable records, timeouts, cancellations, breaks and crashes
//! arrive in every order. States are visited once, however many paths lead to them. `random_walks` takes random paths
//! through scenarios that have too many states.
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test")]
#![cfg_attr(test, expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant"))]
#![cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the tests of another package use its walks")
)]

mod agents;
mod approvals;
mod budgets;
mod client_calls;
mod crash;
mod hooks;
mod invariants;
mod questions;
mod random_walks;
mod references;
mod tool_permits;
mod variables;
mod world;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::call::{CallPhase, TurnCall};
use super::fixtures::{call, finish, model, more, rules, spec, text, usage};
use super::{
    AttemptPlan, CallStart, CancelReason, CommittedTurn, Effect, ModelPlans, PermitReply, RunRules,
    StartedCall, StartedCalls, ToolCompletion, Turn, TurnAction, TurnEnd, TurnSpec, TurnStage,
};
use crate::context::History;
use crate::context::exclusion::Excludable;
use callsheet_values::config::OnExcess;
use callsheet_values::event::{ConflictResolution, Event};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::{
    CallKey, ContentRefusal, ContextOverflow, Execution, FailureKind, FinishKind, ProviderError,
    ProviderErrorKind, RunError, ToolOutcome, ToolResult, ToolStatus, VariablesUse,
};
use callsheet_wire::Delta;
use callsheet_wire::response::ExchangeEnd;

pub use random_walks::{WALK_BUDGET, each_walk};
use world::{Action, World};

const STATES_MAX: usize = 400_000;

/// The input of a turn, its response, and which other actions may happen, and how often.
#[derive(Clone)]
struct Scenario {
    name: String,
    spec: TurnSpec,
    /// The deltas of the response, which are the same in each attempt.
    response: Vec<Delta>,
    breaks: u32,
    /// The maximum number of requests that are larger than the window.
    overflows: u32,
    crashes: u32,
    /// The maximum number of deaths of the turn's owner. Its tool supervisor lives on.
    owner_deaths: u32,
    /// True if a crash may keep any number of the records that are not durable, not only all or none.
    torn: bool,
    cancel: bool,
    timeouts: bool,
    failures: bool,
    /// The maximum number of questions of each start of a call whose tool asks.
    questions: u32,
    /// True if the children of calls may wait for people.
    child_waits: bool,
    /// True if records are durable at once, as with the memory engine.
    durable_at_once: bool,
    /// True if only one of identical calls runs: no call with effects, and no write of a variable that they use, is
    /// between them.
    identical_run_once: bool,
}

fn fingerprint(world: &World) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let first = hasher.finish();
    first.hash(&mut hasher);
    (first, hasher.finish())
}

/// Visits every state. Returns the number of states.
fn explore(scenario: &Scenario) -> usize {
    let first = World::new(scenario);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut open = VecDeque::from([first]);
    let mut commits = 0;
    while let Some(world) = open.pop_front() {
        let actions = world.actions(scenario);
        commits += usize::from(world.committed);
        assert!(!actions.is_empty() || world.committed, "{}: stuck", scenario.name);
        for action in actions {
            let mut next = world.clone();
            next.act(action, scenario);
            if seen.insert(fingerprint(&next)) {
                assert!(seen.len() <= STATES_MAX, "{}: too many states", scenario.name);
                open.push_back(next);
            }
        }
    }
    assert!(commits > 0, "{}: no turn was committed", scenario.name);
    seen.len()
}

fn scenario(name: &str, execution: Execution, names: &[&str]) -> Scenario {
    scenario_with(name, rules(execution), names)
}

/// Returns a scenario with a call for each name: of a tool, with optional arguments after a space. Each call arrives
/// in two deltas, so that states between them are visited.
fn scenario_with(name: &str, rules: RunRules, names: &[&str]) -> Scenario {
    let mut response = vec![text("so")];
    for (index, tool) in (0..).zip(names) {
        let (tool, arguments) = match tool.split_once(' ') {
            Some((tool, arguments)) => (tool, arguments.to_owned()),
            None => (*tool, format!("{{\"n\":{index}}}")),
        };
        let (head, tail) = arguments.split_at(arguments.len() / 2);
        response.push(call(index, tool, head));
        response.push(more(index, tail));
    }
    response.push(finish(FinishKind::ToolCalls));
    Scenario {
        name: name.to_owned(),
        spec: spec(rules),
        response,
        breaks: 0,
        overflows: 0,
        crashes: 0,
        owner_deaths: 0,
        torn: false,
        cancel: false,
        timeouts: false,
        failures: false,
        questions: 1,
        child_waits: false,
        durable_at_once: false,
        identical_run_once: true,
    }
}

const EXECUTIONS: [Execution; 3] =
    [Execution::Sequential, Execution::Parallel { max: 2 }, Execution::Parallel { max: 8 }];

/// The executions without `Parallel { max: 8 }`, which has the most states.
const SMALL_EXECUTIONS: [Execution; 2] = [Execution::Sequential, Execution::Parallel { max: 2 }];

const PARALLEL_EXECUTIONS: [Execution; 2] =
    [Execution::Parallel { max: 2 }, Execution::Parallel { max: 8 }];

const PARALLEL_8: [Execution; 1] = [Execution::Parallel { max: 8 }];

fn explore_all(scenarios: impl IntoIterator<Item = Scenario>) {
    let mut states = 0;
    let mut count = 0;
    for scenario in scenarios {
        states += explore(&scenario);
        count += 1;
    }
    println!("{count} scenarios, {states} states");
    assert!(states > count);
}

/// The responses of the scenarios, as tool names with optional arguments.
const MIXES: [&[&str]; 9] = [
    &["pure", "pure", "pure"],
    &["effect", "pure", "effect"],
    &["pure", "effect", "pure"],
    &["pure", "exclusive", "pure"],
    &["seal", "pure", "effect"],
    &["pure", "barrier", "pure"],
    &["pure {}", "pure {}", "pure {}"],
    &["effect {}", "nobody", "effect {}"],
    &["idempotent", "pure {\"n\":", "seal []"],
];

#[test]
fn four_calls_in_every_execution() {
    let mixes: [&[&str]; 3] = [
        &["pure", "pure", "pure", "pure"],
        &["pure", "effect", "exclusive", "pure"],
        &["seal", "pure", "pure", "effect"],
    ];
    explore_all(mixes.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| scenario(&format!("{mix:?} {execution}"), execution, mix))
    }));
}

#[test]
fn a_sealed_call_that_gets_its_arguments_later() {
    let seal = |index| Delta::Seal { index, arguments: None };
    let mixes: [&[&str]; 8] = [
        &["effect", "pure"],
        &["effect", "effect"],
        &["pure", "effect"],
        &["pure", "pure"],
        &["seal", "pure"],
        &["capped_effect", "seal"],
        &["asked", "pure"],
        &["idempotent", "idempotent"],
    ];
    explore_each(&mixes, &SMALL_EXECUTIONS, |scenario| {
        let names = scenario.response.iter().filter_map(|delta| match delta {
            Delta::Call(piece) => piece.name.clone(),
            _ => None,
        });
        let [first, second]: [String; 2] = names.collect::<Vec<_>>().try_into().unwrap();
        let begin = [call(0, &first, ""), seal(0), call(1, &second, "{}"), seal(1)];
        let rest = [more(0, "{\"n\":"), more(0, "7}"), finish(FinishKind::ToolCalls)];
        scenario.response = begin.into_iter().chain(rest).collect();
        (scenario.breaks, scenario.cancel) = (1, true);
        scenario.durable_at_once = true;
    });
}

fn explore_mixes(change: impl Fn(&mut Scenario)) {
    explore_each(&MIXES, &EXECUTIONS, change);
}

fn explore_each(mixes: &[&[&str]], executions: &[Execution], change: impl Fn(&mut Scenario)) {
    let mut scenarios = Vec::new();
    for mix in mixes {
        for execution in executions {
            let name = format!("{mix:?} {execution}");
            let mut scenario = scenario(&name, *execution, mix);
            change(&mut scenario);
            scenarios.push(scenario);
        }
    }
    explore_all(scenarios);
}

#[test]
fn a_cancellation_at_any_time() {
    explore_mixes(|scenario| scenario.cancel = true);
}

#[test]
fn failures_and_timeouts_in_any_order() {
    explore_mixes(|scenario| {
        scenario.durable_at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}

#[test]
fn a_break_at_any_time() {
    explore_mixes(|scenario| {
        scenario.durable_at_once = true;
        scenario.breaks = 1;
    });
}

#[test]
fn a_request_that_is_too_large_at_any_time() {
    explore_each(&MIXES, &SMALL_EXECUTIONS, |scenario| {
        scenario.overflows = 2;
        scenario.durable_at_once = true;
    });
    let mixes = [&["pure"][..], &["seal"][..], &["effect"][..]];
    let mut scenarios = Vec::new();
    for mix in mixes {
        for fallbacks in [vec![], vec![model("backup", 2)]] {
            let models = ModelPlans::new(model("main", 2), fallbacks);
            let execution = Execution::Parallel { max: 2 };
            let rules = RunRules { models: Arc::new(models), ..rules(execution) };
            let mut scenario = scenario_with(&format!("overflows {mix:?}"), rules, mix);
            (scenario.overflows, scenario.breaks) = (2, 1);
            (scenario.cancel, scenario.crashes) = (true, 1);
            scenario.torn = true;
            scenarios.push(scenario.clone());
            (scenario.crashes, scenario.owner_deaths) = (0, 1);
            scenario.timeouts = true;
            scenario.durable_at_once = true;
            scenarios.push(scenario);
        }
    }
    explore_all(scenarios);
}

#[test]
fn content_that_is_refused_at_any_time() {
    let mut scenarios = Vec::new();
    for mix in [&["pure"][..], &["effect"][..]] {
        for fallbacks in [vec![], vec![model("backup", 2)]] {
            let models = ModelPlans::new(model("main", 2), fallbacks);
            let execution = Execution::Parallel { max: 2 };
            let rules = RunRules { models: Arc::new(models), ..rules(execution) };
            let mut scenario = scenario_with(&format!("refusals {mix:?}"), rules, mix);
            scenario.spec.excludable = Excludable { images: true, texts: false };
            (scenario.overflows, scenario.breaks) = (2, 1);
            (scenario.cancel, scenario.crashes) = (true, 1);
            scenarios.push(scenario);
        }
    }
    explore_all(scenarios);
}

#[test]
fn breaks_until_the_attempts_are_used_up() {
    explore_all([&["pure", "effect"][..], &["seal", "pure"][..]].map(|mix| {
        let mut scenario = scenario("breaks", Execution::Parallel { max: 8 }, mix);
        scenario.breaks = 3;
        scenario
    }));
}

#[test]
fn breaks_until_both_models_are_used_up() {
    let mixes = [&["pure", "effect"][..], &["seal", "pure"][..], &["pure {}", "pure {}"][..]];
    explore_all(mixes.into_iter().flat_map(|mix| {
        [(0, true), (1, false)].map(|(crashes, cancel)| {
            let models = ModelPlans::new(model("main", 2), vec![model("backup", 1)]);
            let execution = Execution::Parallel { max: 8 };
            let rules = RunRules { models: Arc::new(models), ..rules(execution) };
            let mut scenario = scenario_with("fallbacks", rules, mix);
            scenario.breaks = 3;
            scenario.crashes = crashes;
            scenario.cancel = cancel;
            scenario.durable_at_once = true;
            scenario
        })
    }));
}

#[test]
fn a_crash_at_any_time() {
    explore_mixes(|scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
    });
}

#[test]
fn a_death_of_the_owner_at_any_time() {
    explore_mixes(|scenario| {
        scenario.durable_at_once = true;
        scenario.owner_deaths = 1;
    });
    let mixes: [&[&str]; 4] =
        [&["seal", "pure"], &["pure {}", "idempotent"], &["swap", "bump"], &["asked", "capped"]];
    explore_each(&mixes, &SMALL_EXECUTIONS, |scenario| {
        scenario.owner_deaths = 1;
        scenario.breaks = 1;
        scenario.cancel = true;
        scenario.timeouts = true;
    });
    explore_each(&[&["seal", "bump"]], &EXECUTIONS, |scenario| {
        scenario.durable_at_once = true;
        scenario.owner_deaths = 2;
        scenario.failures = true;
    });
}

#[test]
fn all_actions_on_two_calls() {
    let mixes: [&[&str]; 5] = [
        &["pure", "effect"],
        &["seal", "pure"],
        &["exclusive", "idempotent"],
        &["pure {}", "pure {}"],
        &["effect", "barrier"],
    ];
    explore_all(mixes.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| {
            let mut scenario = scenario(&format!("{mix:?} {execution}"), execution, mix);
            scenario.breaks = 1;
            scenario.crashes = 1;
            scenario.cancel = true;
            scenario.failures = true;
            scenario.timeouts = true;
            scenario
        })
    }));
}

#[test]
fn all_kinds_of_end() {
    let endings = [
        (FinishKind::Length, true),
        (FinishKind::ContentFilter, true),
        (FinishKind::Error, true),
        (FinishKind::Pause, true),
        (FinishKind::Length, false),
        (FinishKind::ContentFilter, false),
    ];
    explore_all(endings.into_iter().flat_map(|(ending, durable_at_once)| {
        MIXES.map(|mix| {
            let name = format!("{mix:?} {ending:?}");
            let mut scenario = scenario(&name, Execution::Parallel { max: 8 }, mix);
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.cancel = durable_at_once;
            scenario.crashes = u32::from(!durable_at_once);
            scenario.durable_at_once = durable_at_once;
            scenario
        })
    }));
}

#[test]
fn limits_flags_and_last_requests() {
    let mix = &["pure", "effect", "pure", "seal", "pure"];
    let mut scenarios = Vec::new();
    for on_excess in [OnExcess::Answer, OnExcess::Truncate, OnExcess::Fail] {
        let mut rules = rules(Execution::Parallel { max: 8 });
        rules.limits.max_tool_calls_per_turn = Some(2);
        rules.limits.on_excess = on_excess;
        scenarios.push(scenario_with(&format!("{on_excess:?}"), rules, mix));
    }
    let mut single = rules(Execution::Parallel { max: 8 });
    single.multi_tool_calls = false;
    scenarios.push(scenario_with("one call", single, mix));
    let mut late = rules(Execution::Parallel { max: 8 });
    late.early_start = false;
    scenarios.push(scenario_with("no early start", late, mix));
    let mut last = scenario("last request", Execution::Sequential, mix);
    last.spec.request_kind = callsheet_values::types::RequestKind::FinalAnswer;
    scenarios.push(last);
    let crashing = scenarios.clone().into_iter().map(|mut scenario| {
        scenario.crashes = 1;
        scenario.response.remove(0);
        scenario
    });
    let crashing: Vec<_> = crashing.collect();
    for scenario in &mut scenarios {
        scenario.cancel = true;
        scenario.breaks = 1;
        scenario.durable_at_once = true;
    }
    explore_all(scenarios.into_iter().chain(crashing));
}

#[test]
fn bytes_after_a_seal() {
    let mixes: [&[&str]; 9] = [
        &["pure", "pure"],
        &["seal", "pure"],
        &["effect", "effect"],
        &["pure {}", "pure {}"],
        &["bump", "get"],
        &["swap", "bump"],
        &["asked_pure", "pure"],
        &["reviewed_pure", "asked"],
        &["reviewed_seal", "reviewed_pure"],
    ];
    explore_all(mixes.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| {
            let mut scenario = scenario(&format!("{mix:?} {execution}"), execution, mix);
            let end = scenario.response.pop().unwrap();
            scenario.response.extend([more(0, " x"), end]);
            scenario.cancel = true;
            scenario.failures = true;
            scenario
        })
    }));
}

#[test]
fn a_turn_shares_its_rules_and_is_small() {
    let scenario = scenario("size", Execution::Sequential, &["pure"]);
    let turn = Turn::new(scenario.spec);
    assert!(Arc::strong_count(&turn.spec) == 1 && size_of::<Turn>() < 2048);
}
