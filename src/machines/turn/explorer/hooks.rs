//! Scenarios with hooks about calls and about the turn. The hooks decide at any time, in any order.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use super::*;
use crate::turn::HookScope;
use callsheet_values::event::CallLabel;
use callsheet_values::types::{
    ApprovalVerdict, HookDecision, HookPoint, HookVerdict, ResultNotes, WaitPhase,
};
use serde_json::json;

/// The decisions of hooks in scenarios.
pub(super) const VERDICTS: [HookVerdict; 3] =
    [HookVerdict::Allow, HookVerdict::Ask, HookVerdict::Refuse];

impl World {
    /// Lets the hooks decide about a call, or without a key about the turn. Hooks that ask for the approval to run
    /// also change the arguments.
    pub(super) fn decide_hooks(&mut self, key: Option<CallKey>, verdict: HookVerdict) {
        let on = self.awaiting_hooks.remove(&key).unwrap();
        let mut decision = HookDecision { verdict, ..HookDecision::default() };
        if verdict == HookVerdict::Ask
            && on == HookPoint::BeforeCall
            && let Some(key) = key
        {
            let mut arguments = (*self.call(key).call.arguments).clone();
            arguments["hooked"] = json!(true);
            decision.arguments = Some(Arc::new(arguments));
        }
        self.turn.handle_hook_decision(self.now, key, on, decision);
    }

    /// Returns the last recorded decision of hooks about a call.
    pub(super) fn hook_verdict(&self, key: CallKey, on: HookPoint) -> Option<HookVerdict> {
        self.log.iter().rev().find_map(|record| match record {
            Record::HooksDecided { key: k, on: o, decision } if (*k, *o) == (key, on) => {
                Some(decision.verdict)
            }
            _ => None,
        })
    }

    /// Checks that a call runs only if hooks allow it, with the arguments that they leave.
    pub(super) fn check_start_allowed(&self, key: CallKey, rules: &RunRules) {
        let call = self.call(key);
        let verdict = self.hook_verdict(key, HookPoint::BeforeCall);
        assert_eq!(
            verdict.is_some(),
            rules.has_hook(HookPoint::BeforeCall, &call.call.name),
            "{key} runs, and its hooks were not asked"
        );
        assert_ne!(verdict, Some(HookVerdict::Refuse), "{key} runs, and hooks refuse it");
        let is_questioned = verdict == Some(HookVerdict::Ask);
        let approval = self.recorded_decision((key, WaitPhase::Before), &self.log);
        let is_approved = approval == Some(ApprovalVerdict::Approved);
        assert!(!is_questioned || is_approved, "{key} runs without the approval of a hook");
        let is_changed = call.call.arguments.get("hooked").is_some();
        assert_eq!(is_changed, is_questioned, "{key} runs with other arguments");
    }

    /// Checks that the answer of a tool is an outcome only if hooks allow it, and that a refused call has not run.
    pub(super) fn check_result_allowed(
        &self,
        call: &CallLabel,
        outcome: &ToolOutcome,
        notes: &ResultNotes,
        rules: &RunRules,
    ) {
        let key = call.key;
        let is_copy = notes.duplicate_of.is_some() || notes.reused;
        let is_answer =
            outcome.content.contains("answer") || outcome.kind == Some(FailureKind::ToolError);
        if is_answer && !is_copy && rules.has_hook(HookPoint::AfterCall, &call.name) {
            let verdict = self.hook_verdict(key, HookPoint::AfterCall);
            assert!(
                verdict.is_some_and(|verdict| verdict != HookVerdict::Refuse),
                "{key} has a result that hooks did not allow"
            );
        }
        let started = self.ever_started.contains(&key) && self.crashes == 0;
        let is_refused = self.hook_verdict(key, HookPoint::BeforeCall) == Some(HookVerdict::Refuse);
        assert!(!is_refused || !started, "{key} ran, and hooks refuse it");
    }
}

fn explore_hooked(
    on: &[HookPoint],
    mixes: &[&[&str]],
    executions: &[Execution],
    change: impl Fn(&mut Scenario),
) {
    explore_each(mixes, executions, |scenario| {
        let mut rules = (*scenario.spec.rules).clone();
        rules.hooks = on.iter().map(|on| HookScope { on: *on, tools: None }).collect();
        scenario.spec.rules = Arc::new(rules);
        change(scenario);
    });
}

const BEFORE: [HookPoint; 1] = [HookPoint::BeforeCall];
const AFTER: [HookPoint; 1] = [HookPoint::AfterCall];
const BOTH: [HookPoint; 2] = [HookPoint::BeforeCall, HookPoint::AfterCall];

const MIXES: [&[&str]; 5] = [
    &["pure", "effect"],
    &["seal", "pure"],
    &["pure {}", "pure {}"],
    &["asked", "nobody"],
    &["reviewed", "exclusive"],
];

#[test]
fn hooks_with_cancellations_and_failures() {
    for on in [&BEFORE[..], &AFTER] {
        explore_hooked(on, &MIXES, &SMALL_EXECUTIONS, |scenario| {
            scenario.cancel = true;
            scenario.durable_at_once = true;
            scenario.failures = true;
        });
    }
    explore_hooked(&BOTH, &[&["effect"], &["both"], &["seal"]], &PARALLEL_8, |scenario| {
        scenario.cancel = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}

#[test]
fn hooks_with_crashes_and_deaths_of_the_owner() {
    let mixes: [&[&str]; 4] =
        [&["effect", "pure"], &["seal", "idempotent"], &["asked", "pure"], &["reviewed", "bump"]];
    for on in [&BEFORE[..], &AFTER] {
        explore_hooked(on, &mixes, &PARALLEL_8, |scenario| {
            scenario.crashes = 1;
            scenario.torn = true;
            scenario.durable_at_once = true;
        });
        explore_hooked(on, &mixes, &PARALLEL_8, |scenario| {
            scenario.durable_at_once = true;
            scenario.owner_deaths = 1;
        });
    }
    explore_hooked(&BOTH, &[&["effect"], &["seal"], &["reviewed"]], &PARALLEL_8, |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
    });
}

#[test]
fn hooks_with_breaks_conflicts_and_late_bytes() {
    let mixes: [&[&str]; 4] =
        [&["seal", "pure"], &["pure {}", "pure {}"], &["put", "get"], &["swap", "bump"]];
    for on in [&BEFORE[..], &AFTER] {
        explore_hooked(on, &mixes, &PARALLEL_8, |scenario| {
            scenario.durable_at_once = true;
            scenario.breaks = 1;
        });
        explore_hooked(on, &mixes, &PARALLEL_8, |scenario| {
            scenario.durable_at_once = true;
            // More bytes for the sealed call 0 make it malformed.
            scenario.response.insert(scenario.response.len() - 1, more(0, " x"));
        });
        for ending in [FinishKind::Length, FinishKind::ContentFilter] {
            explore_hooked(on, &mixes[..2], &PARALLEL_8, |scenario| {
                *scenario.response.last_mut().unwrap() = finish(ending);
                scenario.cancel = true;
                scenario.durable_at_once = true;
            });
        }
    }
}

#[test]
fn hooks_with_references() {
    const PURE: &str = r#"pure {"r":"$VAR_REF{{run_7}}"}"#;
    const EFFECT: &str = r#"effect {"r":["$VAR_REF{{run_7}}"]}"#;
    for on in [&BEFORE[..], &AFTER] {
        explore_hooked(on, &[&[PURE, EFFECT]], &PARALLEL_8, |scenario| {
            scenario.durable_at_once = true;
            scenario.crashes = 1;
        });
    }
}

#[test]
fn hooks_about_requests_and_turns() {
    const TURN: [HookPoint; 2] = [HookPoint::BeforeRequest, HookPoint::AfterTurn];
    let mixes: [&[&str]; 4] = [&[], &["effect", "pure"], &["seal"], &["asked"]];
    explore_hooked(&TURN, &mixes, &PARALLEL_8, |scenario| {
        scenario.cancel = true;
        scenario.breaks = 1;
        scenario.timeouts = true;
    });
    explore_hooked(&TURN, &mixes, &PARALLEL_8, |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
        scenario.durable_at_once = true;
    });
    explore_hooked(&TURN, &mixes[..2], &PARALLEL_8, |scenario| {
        scenario.owner_deaths = 1;
        scenario.durable_at_once = true;
    });
}
