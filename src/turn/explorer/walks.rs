//! Longer responses than can be visited whole: random walks from a fixed seed.

use super::*;

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

const WITH_PEOPLE: [&str; 14] = [
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

/// What a turn leaves in the journal, many times, with how its calls were run: a crash takes
/// whole batches with it.
pub(crate) fn each_walk(mut look: impl FnMut(Execution, &[Record])) {
    let endings =
        [FinishKind::ToolCalls, FinishKind::ContentFilter, FinishKind::Length, FinishKind::Error];
    for names in [&ANY[..], &WITH_VARIABLES, &WITH_PEOPLE] {
        for ending in endings {
            let change = |scenario: &mut Scenario| {
                scenario.spec.run_time_left = Some(Duration::from_secs(100));
                let end = scenario.response.pop();
                // A duplicate of a call that turns out malformed takes its ticket late.
                let disturbs = end.is_some() && !scenario.name.contains("{}");
                scenario.response.extend(disturbs.then(|| more(1, " x")));
                scenario.response.push(finish(ending));
            };
            walk_to(names, change, &mut look);
        }
    }
}

/// Walks over ten calls of these tools, a few hundred times.
fn walk(names: &[&str], change: impl Fn(&mut Scenario)) {
    walk_to(names, change, |_, _| ());
}

fn walk_to(
    names: &[&str],
    change: impl Fn(&mut Scenario),
    mut look: impl FnMut(Execution, &[Record]),
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
        change(&mut scenario);
        let mut world = World::begin(&scenario);
        for step in 0.. {
            assert!(step < 2_000, "{}: no end", scenario.name);
            let mut actions = world.actions(&scenario);
            // Rare events stay rare, or no walk would come far.
            if random(10) > 0 {
                actions.retain(|action| {
                    !matches!(action, Action::Cancel | Action::Crash(..) | Action::Break)
                });
            }
            let Some(action) = actions.get(random(actions.len().max(1))) else {
                if world.committed {
                    look(execution, &world.log);
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
fn random_walks_over_ten_calls_with_people() {
    walk(&WITH_PEOPLE, |scenario| {
        scenario.torn = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(100));
    });
}
