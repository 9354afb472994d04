//! Longer responses than can be visited whole: seeded random walks.

use super::*;

/// Walks over ten calls of these tools, a few hundred times.
fn walk(names: &[&str], change: impl Fn(&mut Scenario)) {
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
                    !matches!(action, Action::Cancel | Action::Crash(_) | Action::Break)
                });
            }
            let Some(action) = actions.get(random(actions.len().max(1))) else {
                if world.committed {
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
    let names = [
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
    walk(&names, |_| {});
}

#[test]
fn random_walks_over_ten_calls_with_variables() {
    let names = [
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
    walk(&names, |scenario| scenario.torn = true);
    walk(&names, |scenario| {
        scenario.cancel = false;
        scenario.breaks = 0;
        scenario.crashes = 0;
    });
}

#[test]
fn random_walks_over_ten_calls_with_people() {
    let names = [
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
    walk(&names, |scenario| {
        scenario.torn = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(100));
    });
}
