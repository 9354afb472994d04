//! Scenarios in which a response uses up or exceeds the budget of the run.

use super::*;

#[test]
fn exceeded_budgets() {
    let mixes: [&[&str]; 3] =
        [&["pure", "effect"], &["seal", "pure"], &["eager", "idempotent", "pure"]];
    let mut scenarios = Vec::new();
    for mix in mixes {
        let mut rules = rules(Execution::Parallel { max: 8 });
        rules.limits.max_tokens_per_run = Some(10);
        rules.limits.max_tool_calls_per_run = Some(10);
        let base = scenario_with(&format!("{mix:?}"), rules, mix);
        // Exceeded in the middle of the response, or after its finish reason; used up exactly; exceeded in the second
        // attempt.
        let end = base.response.len();
        for (index, tokens) in [(end / 2 + 1, 11), (end, 11), (end / 2, 10), (end / 2 + 1, 7)] {
            let mut exceeding = base.clone();
            exceeding.spec.budget.tokens_left = Some(10);
            exceeding.response.insert(index, usage(tokens));
            scenarios.push(exceeding);
        }
        for left in 0..2 {
            let mut exceeding = base.clone();
            exceeding.spec.budget.calls_left = Some(left);
            scenarios.push(exceeding);
        }
    }
    for scenario in &mut scenarios {
        scenario.cancel = true;
        scenario.breaks = 1;
        scenario.crashes = 1;
        scenario.torn = true;
    }
    explore_all(scenarios);
}
