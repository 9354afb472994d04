//! Variables: what the tools do with them, what must be true of that, and what is tried.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use serde_json::{Value, json};

use super::checks::answered_by_its_tool;
use super::*;
use crate::config::Limits;
use crate::context::Variables;
use crate::turn::fixtures::committed;
use crate::types::{ToolCall, WriteSet};

/// What a started call may see.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Begun {
    snapshot: Variables,
    /// The place of the first call that had not ended.
    open: u32,
}

impl Begun {
    pub(super) fn snapshot(&self) -> &Variables {
        &self.snapshot
    }
}

/// What a tool answers on a snapshot, and what it does with variables. What is written depends on
/// what was read, and on the order.
pub(super) fn work(call: &ToolCall, snapshot: &Variables) -> (String, VariablesUse) {
    let n = call.arguments.get("n").and_then(Value::as_i64).unwrap_or(0) + 1;
    let see = |name| snapshot.get(name).and_then(Value::as_i64).unwrap_or(0);
    let (reads, writes): (&[&str], Vec<(&str, i64)>) = match &*call.name {
        "get" | "get_asked" => (&["x"], vec![]),
        "put" | "set" => (&[], vec![("x", n)]),
        "set_y" => (&[], vec![("y", n)]),
        "bump" | "bump_reviewed" | "bump_capped" | "add" | "add_both" | "add_capped" => {
            (&["x"], vec![("x", see("x") * 10 + n)])
        }
        "copy" => (&["x"], vec![("y", see("x") * 10 + n)]),
        "swap" => (&["x", "y"], vec![("x", see("y") + n), ("y", see("x") + n)]),
        _ => (&[], vec![]),
    };
    let seen: Vec<_> = reads.iter().map(|name| see(name)).collect();
    let writes = writes.into_iter().map(|(name, n)| (name.into(), Arc::new(json!(n)))).collect();
    let used = VariablesUse {
        reads: reads.iter().map(|name| (*name).into()).collect(),
        writes: WriteSet(writes),
    };
    (format!("answer {} saw {seen:?}", call.key.index), used)
}

impl World {
    /// The place of the first call that has not ended, and what those before it leave.
    fn ended_without_gap(&self) -> (u32, Variables) {
        let mut variables = Variables::default();
        for call in self.turn.calls.iter().filter(|call| call.is_kept()) {
            let last = self.log.iter().rev().find_map(|record| match record {
                Record::CallEnded { call: of, writes, .. } if of.key == call.key() => Some(writes),
                _ => None,
            });
            let Some(writes) = last else { return (call.key().index, variables) };
            variables.apply(writes);
        }
        (u32::MAX, variables)
    }

    /// A call sees what the calls before it that have ended without a gap leave, and no more.
    pub(super) fn check_snapshot(&mut self, key: CallKey, snapshot: Variables) {
        let (open, expected) = self.ended_without_gap();
        assert!(open <= key.index, "a call started that had ended");
        assert_eq!(snapshot, expected, "{key} sees something else than it should");
        self.snapshots.insert(key, Begun { snapshot, open });
    }

    /// Writes count in call order, and nobody's who did not succeed.
    pub(super) fn check_writes(&self, key: CallKey, outcome: &ToolOutcome, writes: &WriteSet) {
        if writes.is_empty() {
            return;
        }
        assert_eq!(outcome.status, ToolStatus::Ok, "{key} failed, and wrote");
        assert_ne!(self.turn.stage, TurnStage::AwaitingResponse, "{key} may be void, and wrote");
        assert_eq!(self.ended_without_gap().0, key.index, "{key} wrote out of order");
    }

    /// A call may be run again once, and only if nobody can notice that.
    pub(super) fn check_conflict(&mut self, key: CallKey, rerun: bool) {
        let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
        assert!(!rerun || !call.has_effects(), "{key} has effects, and is run again");
        if rerun {
            assert!(self.reruns.insert(key), "{key} is run again twice");
            self.reported.remove(&key);
        }
    }

    /// What the turn leaves is what its calls would have left one after the other; where a call
    /// kept an answer that was out of date, it wrote nothing, and says so.
    pub(super) fn check_serial(&self, record: &crate::turn::TurnRecord) {
        let results = &record.results;
        let cut_short = self.cancelled
            || matches!(record.end, TurnEnd::Cancelled(_))
            || self.turn.attempt.finish_reason.as_ref().map(|finish| finish.kind)
                != Some(FinishKind::ToolCalls);
        let mut variables = Variables::default();
        for (place, result) in results.iter().enumerate() {
            let (key, notes) = (result.call.key, &result.notes);
            let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
            let (content, used) = work(&result.call, &variables);
            let own = notes.duplicate_of.is_none() && !notes.reused;
            if result.outcome.status != ToolStatus::Ok || !own {
                assert!(result.writes.is_empty(), "{key} did not succeed, and wrote");
                let repeats = result.outcome.status == ToolStatus::Ok && !cut_short;
                if repeats && !call.has_effects() && !used.writes_what_it_read() {
                    let saw = |text: &str| text.split_once(" saw ").map(|(_, saw)| saw.to_owned());
                    assert_eq!(saw(&result.outcome.content), saw(&content), "{key} is no copy");
                    let mut again = variables.clone();
                    again.apply(&used.writes);
                    assert_eq!(again, variables, "{key} would have written something else");
                }
                continue;
            }
            let begun = &self.snapshots[&key];
            let unseen = results[..place].iter().filter(|r| r.call.key.index >= begun.open);
            let mut unseen = unseen.flat_map(|earlier| earlier.writes.0.keys());
            if unseen.any(|name| used.reads.contains(name)) {
                assert!(call.has_effects() || cut_short, "{key} has an report_before_rerun answer");
                assert!(notes.conflict && result.writes.is_empty(), "{key} hides a conflict");
                assert_eq!(notes.writes_dropped, !used.writes.is_empty());
                assert!(result.outcome.content.contains("[callsheet: an earlier call"));
            } else {
                assert!(!notes.conflict || self.reruns.contains(&key) || self.crashes > 0);
                assert!(!notes.writes_dropped, "{key} lost its writes");
                assert_eq!(*result.outcome.content, *content, "{key} saw what it would not have");
                assert_eq!(result.writes, used.writes);
            }
            variables.apply(&result.writes);
        }
        assert_eq!(
            committed(&self.log, &Limits::default()).1,
            variables,
            "the journal says something else"
        );
    }

    /// The tool's own answer stands, whatever is said beside it.
    pub(super) fn check_answer(&self, result: &ToolResult) {
        let Some(reported) = self.reported.get(&result.call.key) else { return };
        let outcome = &result.outcome;
        let malformed = outcome.kind == Some(FailureKind::Malformed);
        let marked = result.notes.conflict
            && outcome.status == reported.status
            && outcome.content.starts_with(&*reported.content);
        let unseen = !answered_by_its_tool(outcome) && self.is_reviewed(result.call.key);
        assert!(reported == outcome || malformed || marked || unseen, "a tool's answer was lost");
    }
}

impl VariablesUse {
    fn writes_what_it_read(&self) -> bool {
        self.writes.0.keys().any(|name| self.reads.contains(name))
    }
}

/// The mixes of calls that variables are tried on: a pure and an effectful reader, behind pure
/// and effectful writers, beside others that touch something else.
const MIXES: [&[&str]; 6] = [
    &["put", "get", "bump"],
    &["bump", "add", "get"],
    &["set", "bump", "copy"],
    &["add", "set_y", "swap"],
    &["swap", "copy", "add"],
    &["get {}", "put", "get {}"],
];

fn each(mixes: &[&[&str]], executions: &[Execution], change: impl Fn(&mut Scenario)) {
    each_of(mixes, executions, |scenario| {
        // Whoever reads what was written meanwhile is no duplicate.
        scenario.identical_run_once = false;
        change(scenario);
    });
}

const PARALLEL: [Execution; 2] = [Execution::Parallel { max: 2 }, Execution::Parallel { max: 8 }];

#[test]
fn four_calls_on_the_same_variables() {
    let mixes: [&[&str]; 3] = [
        &["bump", "bump", "add", "get"],
        &["swap", "put", "copy", "swap"],
        &["put {}", "get {}", "put", "put {}"],
    ];
    each(&mixes, &EXECUTIONS, |scenario| scenario.at_once = true);
    each(&mixes[..1], &PARALLEL[1..], |_| {});
}

#[test]
fn variables_and_a_cancel() {
    each(&MIXES, &EXECUTIONS, |scenario| scenario.cancel = true);
}

#[test]
fn variables_and_failures_and_timeouts() {
    each(&MIXES, &PARALLEL, |scenario| {
        scenario.at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}

#[test]
fn variables_and_a_break() {
    each(&MIXES, &PARALLEL, |scenario| {
        scenario.at_once = true;
        scenario.breaks = 1;
    });
}

#[test]
fn variables_and_a_crash() {
    each(&MIXES[..5], &PARALLEL[1..], |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
    });
}

#[test]
fn variables_where_the_response_was_cut_off() {
    each(&MIXES, &PARALLEL[1..], |scenario| {
        *scenario.response.last_mut().unwrap() = finish(FinishKind::Length);
        scenario.crashes = 1;
        scenario.at_once = true;
    });
}

#[test]
fn variables_and_everything_at_once_on_two_calls() {
    let mixes: [&[&str]; 3] = [&["bump", "copy"], &["swap", "bump"], &["put", "add"]];
    each(&mixes, &PARALLEL[1..], |scenario| {
        scenario.at_once = true;
        scenario.breaks = 1;
        scenario.crashes = 1;
        scenario.cancel = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}
