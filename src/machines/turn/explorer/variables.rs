//! Variables in the explorer: the simulated tools, the invariants of isolation, and scenarios.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use serde_json::{Value, json};

use super::invariants::is_tool_outcome;
use super::*;
use crate::context::Variables;
use crate::turn::fixtures::committed;
use callsheet_values::config::Limits;
use callsheet_values::types::{ToolCall, WriteSet};

/// A started call: its snapshot, and the first call that had not ended at its start.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct CallStartSnapshot {
    snapshot: Variables,
    /// The index of the first call that had not ended.
    first_unended: u32,
}

impl CallStartSnapshot {
    pub(super) fn snapshot(&self) -> &Variables {
        &self.snapshot
    }
}

/// Runs a simulated tool on a snapshot. Returns its answer and its use of variables. The writes depend
/// on the reads, so that they show the order of the calls.
pub(super) fn run_tool(call: &ToolCall, snapshot: &Variables) -> (String, VariablesUse) {
    let n = call.arguments.get("n").and_then(Value::as_i64).unwrap_or(0) + 1;
    let read = |name| snapshot.get(name).and_then(Value::as_i64).unwrap_or(0);
    let (reads, writes): (&[&str], Vec<(&str, i64)>) = match &*call.name {
        "get" | "get_asked" => (&["x"], vec![]),
        "put" | "set" => (&[], vec![("x", n)]),
        "set_y" => (&[], vec![("y", n)]),
        "bump" | "asking_bump" | "bump_reviewed" | "bump_capped" | "add" | "add_both"
        | "add_capped" => (&["x"], vec![("x", read("x") * 10 + n)]),
        "copy" => (&["x"], vec![("y", read("x") * 10 + n)]),
        "swap" => (&["x", "y"], vec![("x", read("y") + n), ("y", read("x") + n)]),
        _ => (&[], vec![]),
    };
    let seen: Vec<_> = reads.iter().map(|name| read(name)).collect();
    let writes = writes.into_iter().map(|(name, n)| (name.into(), Arc::new(json!(n)))).collect();
    let used = VariablesUse {
        reads: reads.iter().map(|name| (*name).into()).collect(),
        writes: WriteSet(writes),
    };
    (format!("answer {} saw {seen:?}", call.key.index), used)
}

impl World {
    /// Returns the index of the first call that has not ended, and the variables after the calls before
    /// it.
    fn ended_prefix(&self) -> (u32, Variables) {
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

    /// Checks that a snapshot has exactly the writes of the calls before the first one that has not
    /// ended.
    pub(super) fn check_snapshot(&mut self, key: CallKey, snapshot: Variables) {
        let (first_unended, expected) = self.ended_prefix();
        assert!(first_unended <= key.index, "a call started that has ended");
        assert_eq!(snapshot, expected, "{key} has a wrong snapshot");
        self.snapshots.insert(key, CallStartSnapshot { snapshot, first_unended });
    }

    /// Notes that the client runs a call. It reads no variable of the session.
    pub(super) fn note_client_start(&mut self, key: CallKey) {
        let started =
            CallStartSnapshot { snapshot: Variables::default(), first_unended: key.index };
        self.snapshots.insert(key, started);
    }

    /// Checks that only successful calls write, in call order.
    pub(super) fn check_writes(&self, key: CallKey, outcome: &ToolOutcome, writes: &WriteSet) {
        if writes.is_empty() {
            return;
        }
        assert_eq!(outcome.status, ToolStatus::Ok, "{key} failed and wrote");
        assert_ne!(self.turn.stage, TurnStage::AwaitingResponse, "{key} may be void and wrote");
        assert_eq!(self.ended_prefix().0, key.index, "{key} wrote out of order");
    }

    /// Checks that only pure calls run again, and only once.
    pub(super) fn check_conflict(&mut self, key: CallKey, rerun: bool) {
        let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
        assert!(!rerun || !call.has_effects(), "{key} has effects and runs again");
        if rerun {
            assert!(self.reruns.insert(key), "{key} runs again twice");
            self.tool_outcomes.remove(&key);
        }
    }

    /// Checks that the variables after the turn are those of a sequential execution. A call that kept
    /// its result in spite of a conflict wrote nothing and has a note.
    pub(super) fn check_serial(&self, record: &crate::turn::CommittedTurn) {
        let results = &record.results;
        let cut_short = self.cancelled
            || matches!(record.end, TurnEnd::Cancelled(_))
            || self.turn.attempt.finish_reason.as_ref().map(|finish| finish.kind)
                != Some(FinishKind::ToolCalls);
        let mut variables = Variables::default();
        for (index, result) in results.iter().enumerate() {
            let (key, notes) = (result.call.key, &result.notes);
            let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
            let (content, used) = run_tool(&result.call, &variables);
            let own = notes.duplicate_of.is_none() && !notes.reused;
            if result.outcome.status != ToolStatus::Ok || !own {
                assert!(result.writes.is_empty(), "{key} did not succeed and wrote");
                let repeats = result.outcome.status == ToolStatus::Ok && !cut_short;
                if repeats && !call.has_effects() && !writes_what_it_read(&used) {
                    let saw = |text: &str| text.split_once(" saw ").map(|(_, saw)| saw.to_owned());
                    assert_eq!(saw(&result.outcome.content), saw(&content), "{key} is not a copy");
                    let mut again = variables.clone();
                    again.apply(&used.writes);
                    assert_eq!(again, variables, "{key} would have written other values");
                }
                continue;
            }
            let started = &self.snapshots[&key];
            let not_in_snapshot =
                results[..index].iter().filter(|r| r.call.key.index >= started.first_unended);
            let mut written_later = not_in_snapshot.flat_map(|earlier| earlier.writes.0.keys());
            if written_later.any(|name| used.reads.contains(name)) {
                assert!(call.has_effects() || cut_short, "{key} has an outdated answer");
                assert!(notes.conflict && result.writes.is_empty(), "{key} hides a conflict");
                assert_eq!(notes.writes_dropped, !used.writes.is_empty());
                assert!(result.outcome.content.contains("[callsheet: an earlier call"));
            } else {
                assert!(!notes.conflict || self.reruns.contains(&key) || self.crashes > 0);
                assert!(!notes.writes_dropped, "{key} lost its writes");
                assert_eq!(*result.outcome.content, *content, "{key} read other values");
                assert_eq!(result.writes, used.writes);
            }
            variables.apply(&result.writes);
        }
        assert_eq!(
            committed(&self.log, &Limits::default()).1,
            variables,
            "the log has other variables"
        );
    }

    /// Checks that the result is the answer of the tool, perhaps with a note, unless it is withheld or the call is
    /// malformed or stopped.
    pub(super) fn check_answer(&self, result: &ToolResult) {
        let Some(tool_answer) = self.tool_outcomes.get(&result.call.key) else { return };
        let outcome = &result.outcome;
        let malformed = outcome.kind == Some(FailureKind::Malformed);
        let marked = result.notes.conflict
            && outcome.status == tool_answer.status
            && outcome.content.starts_with(&*tool_answer.content);
        let is_withheld = outcome.kind == Some(FailureKind::Hook);
        // The child of a cancelled call has ended, and the call stays cancelled.
        let call = self.turn.calls.iter().find(|call| call.key() == result.call.key).unwrap();
        let is_agent = call.tool.as_ref().is_some_and(|tool| tool.agent.is_some());
        let ends = [Some(FailureKind::Cancelled), Some(FailureKind::Timeout)];
        let is_stopped =
            is_agent && ends.contains(&outcome.kind) && tool_answer.child == outcome.child;
        let is_hidden = is_stopped
            || is_withheld
            || (!is_tool_outcome(outcome) && self.is_reviewed(result.call.key));
        assert!(
            tool_answer == outcome || malformed || marked || is_hidden,
            "a tool's answer was lost"
        );
    }
}

fn writes_what_it_read(variables: &VariablesUse) -> bool {
    variables.writes.0.keys().any(|name| variables.reads.contains(name))
}

/// Responses with pure readers and readers with effects after pure writers and writers with effects,
/// some of which use different variables.
const MIXES: [&[&str]; 6] = [
    &["put", "get", "bump"],
    &["bump", "add", "get"],
    &["set", "bump", "copy"],
    &["add", "set_y", "swap"],
    &["swap", "copy", "add"],
    &["get {}", "put", "get {}"],
];

fn explore_with_variables(
    mixes: &[&[&str]],
    executions: &[Execution],
    change: impl Fn(&mut Scenario),
) {
    explore_each(mixes, executions, |scenario| {
        // A call that reads a variable which was written in between is not a duplicate.
        scenario.identical_run_once = false;
        change(scenario);
    });
}

#[test]
fn four_calls_on_the_same_variables() {
    let mixes: [&[&str]; 3] = [
        &["bump", "bump", "add", "get"],
        &["swap", "put", "copy", "swap"],
        &["put {}", "get {}", "put", "put {}"],
    ];
    explore_with_variables(&mixes, &EXECUTIONS, |scenario| scenario.durable_at_once = true);
    explore_with_variables(&mixes[..1], &PARALLEL_8, |_| {});
}

#[test]
fn variables_with_a_cancellation() {
    explore_with_variables(&MIXES, &EXECUTIONS, |scenario| scenario.cancel = true);
}

#[test]
fn variables_with_failures_and_timeouts() {
    explore_with_variables(&MIXES, &PARALLEL_EXECUTIONS, |scenario| {
        scenario.durable_at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}

#[test]
fn variables_with_a_break() {
    explore_with_variables(&MIXES, &PARALLEL_EXECUTIONS, |scenario| {
        scenario.durable_at_once = true;
        scenario.breaks = 1;
    });
}

#[test]
fn variables_with_a_crash() {
    explore_with_variables(&MIXES[..5], &PARALLEL_8, |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
    });
}

#[test]
fn variables_with_a_cut_off_response() {
    explore_with_variables(&MIXES, &PARALLEL_8, |scenario| {
        *scenario.response.last_mut().unwrap() = finish(FinishKind::Length);
        scenario.crashes = 1;
        scenario.durable_at_once = true;
    });
}

#[test]
fn variables_of_two_calls_with_all_actions() {
    let mixes: [&[&str]; 3] = [&["bump", "copy"], &["swap", "bump"], &["put", "add"]];
    explore_with_variables(&mixes, &PARALLEL_8, |scenario| {
        scenario.durable_at_once = true;
        scenario.breaks = 1;
        scenario.crashes = 1;
        scenario.cancel = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}
