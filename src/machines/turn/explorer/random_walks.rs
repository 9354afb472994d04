//! Random walks from a fixed seed over responses that have too many states to visit all of them.

use super::*;
use crate::turn::Budget;

const ANY: [&str; 10] = [
    "pure",
    "effect",
    "exclusive",
    "seal",
    "pure {}",
    "nobody",
    "barrier",
    "effect {}",
    "capped",
    "capped_effect",
];

const WITH_VARIABLES: [&str; 13] = [
    "get",
    "put",
    "bump",
    "copy",
    "add",
    "set_y",
    "swap",
    "exclusive",
    "get {}",
    "put {}",
    "bump {}",
    "add {}",
    "idempotent",
];

const WITH_APPROVALS: [&str; 14] = [
    "get_asked",
    "bump_reviewed",
    "add_both",
    "asked_pure",
    "asked",
    "reviewed_pure",
    "reviewed",
    "reviewed_seal",
    "both",
    "add",
    "put",
    "exclusive",
    "reviewed {}",
    "asked {}",
];

const WITH_QUESTIONS: [&str; 9] = [
    "asking",
    "asking_idempotent",
    "asking_pure",
    "asking_seal",
    "asking_bump",
    "asking_both",
    "add",
    "effect",
    "exclusive",
];

const WITH_CLIENTS: [&str; 8] =
    ["client", "client_pure", "client_both", "client {}", "pure", "effect", "exclusive", "asked"];

const WITH_AGENTS: [&str; 8] =
    ["agent", "eager_agent", "agent {}", "agent", "pure", "effect", "exclusive", "asked"];

/// The tokens and the calls that the run of a walk with agents has left: enough for what ten children use.
pub const WALK_BUDGET: Budget = Budget { tokens_left: Some(10_000), calls_left: Some(2_000) };

/// Calls `visit` with the records of many random turns and their execution. A crash keeps all or none of the records
/// that are not durable.
pub fn each_walk(mut visit: impl FnMut(Execution, &[Record])) {
    let endings =
        [FinishKind::ToolCalls, FinishKind::ContentFilter, FinishKind::Length, FinishKind::Error];
    let all =
        [&ANY[..], &WITH_VARIABLES, &WITH_APPROVALS, &WITH_QUESTIONS, &WITH_CLIENTS, &WITH_AGENTS];
    for names in all {
        for ending in endings {
            let change = |scenario: &mut Scenario| {
                match names == &WITH_AGENTS[..] {
                    // The end of the run's time would mostly come before the first call.
                    true => scenario.spec.budget = WALK_BUDGET,
                    false => scenario.spec.run_time_left = Some(Duration::from_secs(100)),
                }
                scenario.overflows = if names == &ANY[..] { 2 } else { 0 };
                let end = scenario.response.pop();
                // Not with identical calls: a duplicate of a malformed call gets its ticket after
                // later calls.
                let changes_after_seal = end.is_some() && !scenario.name.contains("{}");
                scenario.response.extend(changes_after_seal.then(|| more(1, " x")));
                scenario.response.push(finish(ending));
            };
            walk_to(names, change, &mut visit);
        }
    }
}

/// Walks 300 times over ten calls of these tools.
fn walk(names: &[&str], change: impl Fn(&mut Scenario)) {
    walk_to(names, change, |_, _| ());
}

fn walk_to(
    names: &[&str],
    change: impl Fn(&mut Scenario),
    mut visit: impl FnMut(Execution, &[Record]),
) {
    let mut seed = 42_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for walk in 0..300 {
        let mix: Vec<&str> = (0..10).map(|_| names[random(names.len())]).collect();
        let execution = EXECUTIONS[random(EXECUTIONS.len())];
        let mut scenario = scenario(&format!("walk {walk} {mix:?} {execution}"), execution, &mix);
        scenario.identical_run_once = false;
        scenario.breaks = 2;
        scenario.crashes = 2;
        scenario.cancel = true;
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.questions = 2;
        change(&mut scenario);
        let mut world = World::new(&scenario);
        for action_number in 0.. {
            assert!(action_number < 2_000, "{}: the turn does not end", scenario.name);
            let mut actions = world.actions(&scenario);
            // Cancellations, crashes, breaks and overflows are rare, so that walks last longer.
            if random(10) > 0 {
                actions.retain(|action| {
                    !matches!(
                        action,
                        Action::Cancel | Action::Crash { .. } | Action::Break | Action::Overflow
                    )
                });
            }
            let Some(action) = actions.get(random(actions.len().max(1))) else {
                if world.committed {
                    visit(execution, &world.log);
                    break;
                }
                assert!(!world.actions(&scenario).is_empty(), "{}: stuck", scenario.name);
                continue;
            };
            world.act(*action, &scenario);
        }
    }
}

#[test]
fn random_walks_over_ten_calls() {
    walk(&ANY, |_| {});
    walk(&ANY, |scenario| scenario.overflows = 2);
}

#[test]
fn random_walks_over_ten_calls_with_variables() {
    walk(&WITH_VARIABLES, |scenario| scenario.torn = true);
    walk(&WITH_VARIABLES, |scenario| {
        scenario.cancel = false;
        scenario.breaks = 0;
        scenario.crashes = 0;
    });
}

#[test]
fn random_walks_over_ten_calls_with_approvals() {
    walk(&WITH_APPROVALS, |scenario| {
        scenario.torn = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(100));
    });
}

#[test]
fn random_walks_over_ten_calls_with_questions() {
    walk(&WITH_QUESTIONS, |scenario| {
        scenario.torn = true;
        scenario.owner_deaths = 2;
        scenario.spec.run_time_left = Some(Duration::from_secs(100));
    });
}

#[test]
fn random_walks_over_ten_calls_with_clients() {
    walk(&WITH_CLIENTS, |scenario| {
        scenario.torn = true;
        scenario.owner_deaths = 2;
        scenario.spec.run_time_left = Some(Duration::from_secs(100));
    });
}
