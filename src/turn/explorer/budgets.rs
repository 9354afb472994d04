//! Budgets of the run that run out at any moment.

use super::*;

#[test]
fn budgets_that_run_out() {
    let mixes: [&[&str]; 3] =
        [&["pure", "effect"], &["seal", "pure"], &["eager", "idempotent", "pure"]];
    let mut scenarios = Vec::new();
    for mix in mixes {
        let mut rules = rules(Execution::Parallel { max: 8 });
        rules.limits.max_tokens_per_run = Some(10);
        rules.limits.max_tool_calls_per_run = Some(10);
        let base = scenario_with(&format!("{mix:?}"), rules, mix);
        // In the middle, after the finish, and with the second attempt.
        let end = base.response.len();
        for (place, tokens) in [(end / 2 + 1, 11), (end, 11), (end / 2, 10), (end / 2 + 1, 7)] {
            let mut over = base.clone();
            over.spec.budget.tokens_left = Some(10);
            over.response.insert(place, usage(tokens));
            scenarios.push(over);
        }
        for left in 0..2 {
            let mut over = base.clone();
            over.spec.budget.calls_left = Some(left);
            scenarios.push(over);
        }
    }
    for scenario in &mut scenarios {
        scenario.cancel = true;
        scenario.breaks = 1;
        scenario.crashes = 1;
        scenario.torn = true;
    }
    total(scenarios);
}
