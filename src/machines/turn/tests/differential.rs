//! Differential test: random programs over shared variables run as the calls of one response, in
//! sequence and in parallel. A simple reference implementation of the isolation rules computes the
//! expected results.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::contract::{ParsedSchema, ToolSpec};
use crate::turn::fixtures::committed;
use callsheet_values::config::Limits;
use callsheet_values::types::{ToolResult, WriteSet};

/// One instruction of a program. A program has one register.
#[derive(Clone, Debug)]
enum Instruction {
    Get(usize),
    Set(usize, i64),
}

#[derive(Clone, Debug)]
struct Program {
    instructions: Vec<Instruction>,
    pure: bool,
    /// The program fails if the register ends as a multiple of this.
    fails_at: Option<i64>,
}

const NAMES: [&str; 3] = ["x", "y", "z"];

type Values = BTreeMap<&'static str, i64>;

/// The result of one run of a program: its answer or error, its reads and its writes.
#[derive(Clone, Debug)]
struct ProgramRun {
    answer: Result<String, String>,
    reads: BTreeSet<&'static str>,
    writes: Values,
}

fn run_program(program: &Program, index: usize, snapshot: &Values) -> ProgramRun {
    let mut register = i64::try_from(index).unwrap() + 1;
    let mut reads = BTreeSet::new();
    let mut writes = Values::new();
    for instruction in &program.instructions {
        match instruction {
            Instruction::Get(name) => {
                let name = NAMES[*name];
                let value = writes.get(name).copied().unwrap_or_else(|| {
                    reads.insert(name);
                    snapshot.get(name).copied().unwrap_or(0)
                });
                register = (register * 31 + value) % 1_000_003;
            }
            Instruction::Set(name, n) => {
                writes.insert(NAMES[*name], (register * 7 + n) % 1_000_003);
            }
        }
    }
    let failed = program.fails_at.is_some_and(|n| register % n == 0);
    let answer =
        if failed { Err(format!("no {register}")) } else { Ok(format!("hand {register}")) };
    ProgramRun { answer, reads, writes }
}

/// The state of a call in the reference.
#[derive(Clone, Debug)]
enum CallState {
    Waiting,
    /// The call runs. The snapshot has the writes of this number of calls.
    Running(usize),
    /// The call has answered on a snapshot with the writes of this number of calls.
    Answered(usize, ProgramRun),
}

/// The reference. Calls are resolved in call order. If an earlier call has written a variable that
/// a call read, and the write is not in its snapshot, a pure call runs again, once. A call with
/// effects keeps its answer and loses its writes.
#[derive(Debug)]
struct Reference {
    states: Vec<CallState>,
    reran: Vec<bool>,
    resolved: Vec<ResolvedCall>,
    values: Values,
    response_ended: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct ResolvedCall {
    answer: Result<String, String>,
    writes: Values,
    writes_dropped: bool,
    conflict: bool,
}

impl Reference {
    fn new(calls: usize) -> Self {
        Self {
            states: vec![CallState::Waiting; calls],
            reran: vec![false; calls],
            resolved: Vec::new(),
            values: Values::new(),
            response_ended: false,
        }
    }

    fn resolve(&mut self, programs: &[Program]) {
        while self.response_ended && self.resolved.len() < programs.len() {
            let index = self.resolved.len();
            let CallState::Answered(snapshot_len, run) = self.states[index].clone() else { return };
            let not_in_snapshot = &self.resolved[snapshot_len..];
            let has_conflict =
                run.reads.iter().any(|n| not_in_snapshot.iter().any(|e| e.writes.contains_key(n)));
            if has_conflict && programs[index].pure {
                assert!(!self.reran[index], "the second run cannot have a conflict");
                self.reran[index] = true;
                self.states[index] = CallState::Waiting;
                return;
            }
            let written = if run.answer.is_ok() { run.writes } else { Values::new() };
            let writes_dropped = has_conflict && !written.is_empty();
            let writes = if has_conflict { Values::new() } else { written };
            self.values.extend(writes.clone());
            let conflict = has_conflict || self.reran[index];
            self.resolved.push(ResolvedCall {
                answer: run.answer,
                writes,
                writes_dropped,
                conflict,
            });
        }
    }
}

fn tool_rules(programs: &[Program], execution: Execution) -> RunRules {
    let schema = || ParsedSchema::parse(json!({"type": "object"})).unwrap();
    let tools = programs.iter().enumerate().map(|(index, program)| {
        let tool = ToolSpec::with_schema(format!("t{index}"), "", schema());
        let tool = if program.pure { tool.pure() } else { tool };
        (tool.name.clone(), Arc::new(tool))
    });
    RunRules { tools: tools.collect(), ..rules(execution) }
}

fn numbers(variables: &Variables) -> Values {
    let static_name = |name: &str| NAMES.into_iter().find(|known| *known == name).unwrap();
    variables.iter().map(|(name, value)| (static_name(name), value.as_i64().unwrap())).collect()
}

/// Runs the programs as the calls of one response, in the order that `order` chooses. Compares every
/// start with the reference.
fn play(programs: &[Program], execution: Execution, order: &[u8]) -> (Vec<ToolResult>, Reference) {
    let mut driver = Driver::with(tool_rules(programs, execution));
    // The records do not tell which rerun saw which write, so that they cannot be replayed.
    driver.log.is_replayed = false;
    let mut reference = Reference::new(programs.len());
    let mut running: Vec<(usize, Values)> = Vec::new();
    let mut order = order.iter().copied().chain(std::iter::repeat(0));
    let mut delivered = 0;
    let mut started = 0;
    while driver.commit.is_none() {
        let choices = running.len() + usize::from(!reference.response_ended);
        assert!(choices > 0, "stuck");
        let choice = usize::from(order.next().unwrap()) % choices;
        if choice < running.len() {
            let (index, snapshot) = running.remove(choice);
            let run = run_program(&programs[index], index, &snapshot);
            let CallState::Running(snapshot_len) = reference.states[index] else {
                panic!("the call does not run")
            };
            reference.states[index] = CallState::Answered(snapshot_len, run.clone());
            reference.resolve(programs);
            let outcome = match run.answer {
                Ok(text) => ToolOutcome::ok(text),
                Err(text) => ToolOutcome::not_ok(FAILED, FailureKind::ToolError, text),
            };
            let writes = run.writes.into_iter().map(|(n, v)| (n.into(), Arc::new(json!(v))));
            let used = VariablesUse {
                reads: run.reads.into_iter().map(Into::into).collect(),
                writes: WriteSet(writes.collect()),
            };
            driver.finish_call_using(u32::try_from(index).unwrap(), outcome, used);
        } else if delivered < programs.len() {
            driver.receive([call(delivered as u64, &format!("t{delivered}"), "{}")]);
            delivered += 1;
        } else {
            reference.response_ended = true;
            reference.resolve(programs);
            driver.end_well();
        }
        for (name, snapshot) in driver.started.iter().zip(&driver.snapshots).skip(started) {
            let index: usize = name.split_once('#').unwrap().1.parse().unwrap();
            let waits = matches!(reference.states[index], CallState::Waiting);
            assert!(waits, "a call started that is running or has answered in the reference");
            assert_eq!(numbers(snapshot), reference.values, "call {index} has another snapshot");
            reference.states[index] = CallState::Running(reference.resolved.len());
            running.push((index, numbers(snapshot)));
        }
        started = driver.started.len();
    }
    assert!(running.is_empty());
    assert_eq!(numbers(&committed(&driver.log, &Limits::default()).1), reference.values);
    (driver.commit.unwrap().results, reference)
}

fn check(programs: &[Program], max: u32, order: &[u8]) {
    let (sequential, sequential_reference) = play(programs, Execution::Sequential, order);
    assert!(
        sequential_reference.resolved.iter().all(|ended| !ended.conflict),
        "a conflict in sequential execution"
    );
    let mut values = Values::new();
    for (index, (program, result)) in programs.iter().zip(&sequential).enumerate() {
        let run = run_program(program, index, &values);
        assert_eq!(*result.outcome.content, *run.answer.clone().unwrap_or_else(|text| text));
        if run.answer.is_ok() {
            values.extend(run.writes);
        }
    }
    let (parallel, reference) = play(programs, Execution::Parallel { max }, order);
    let outcomes = |results: &[ToolResult]| -> Vec<_> {
        results.iter().map(|r| (r.call.id.clone(), r.outcome.clone(), r.writes.clone())).collect()
    };
    let has_kept_conflict =
        programs.iter().zip(&reference.resolved).any(|(p, ended)| !p.pure && ended.conflict);
    if !has_kept_conflict {
        assert_eq!(outcomes(&parallel), outcomes(&sequential));
        assert_eq!(reference.values, sequential_reference.values);
    }
    for (result, expected) in parallel.iter().zip(&reference.resolved) {
        let (notes, outcome) = (&result.notes, &result.outcome);
        let found = (notes.conflict, notes.writes_dropped, outcome.status == OK);
        assert_eq!(found, (expected.conflict, expected.writes_dropped, expected.answer.is_ok()));
        let writes = result.writes.0.iter().map(|(n, v)| (n.as_ref(), v.as_i64().unwrap()));
        assert_eq!(writes.collect::<BTreeMap<_, _>>(), expected.writes);
        let answer = expected.answer.clone().unwrap_or_else(|text| text);
        let rest = outcome
            .content
            .strip_prefix(&answer)
            .expect("the result starts with the answer of the tool");
        let marked = rest.starts_with("\n[callsheet: an earlier call");
        assert!(rest.is_empty() || marked, "{rest}");
    }
}

fn programs(pure: impl Strategy<Value = bool>) -> impl Strategy<Value = Vec<Program>> {
    let instruction = prop_oneof![
        (0..NAMES.len()).prop_map(Instruction::Get),
        (0..NAMES.len(), 0..9_i64).prop_map(|(name, n)| Instruction::Set(name, n)),
    ];
    let instructions = proptest::collection::vec(instruction, 0..5);
    let fails_at = proptest::option::weighted(0.3, 2..4_i64);
    let program = (instructions, pure, fails_at)
        .prop_map(|(instructions, pure, fails_at)| Program { instructions, pure, fails_at });
    proptest::collection::vec(program, 1..8)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn parallel_calls_agree_with_the_reference(
        programs in programs(any::<bool>()),
        max in 1..8_u32,
        order in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        check(&programs, max, &order);
    }

    #[test]
    fn parallel_pure_calls_have_the_same_results_as_sequential_ones(
        programs in programs(Just(true)),
        max in 1..8_u32,
        order in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let (results, _) = play(&programs, Execution::Parallel { max }, &order);
        let (sequential, _) = play(&programs, Execution::Sequential, &order);
        for (one, other) in results.iter().zip(&sequential) {
            prop_assert_eq!(&one.outcome, &other.outcome);
            prop_assert_eq!(&one.writes, &other.writes);
        }
        check(&programs, max, &order);
    }
}
