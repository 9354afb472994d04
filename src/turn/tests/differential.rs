//! Random programs over shared variables, run in sequence and beside each other in every order,
//! against a reference that is written from the design's words and not from the machine's code.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config::Limits;
use crate::tool::{InputSchema, ToolSpec};
use crate::turn::fixtures::committed;
use crate::types::{ToolResult, WriteSet};

/// What a tool does, one step after the other, with one number in its hand.
#[derive(Clone, Debug)]
enum Step {
    Get(usize),
    Set(usize, i64),
}

#[derive(Clone, Debug)]
struct Program {
    steps: Vec<Step>,
    pure: bool,
    /// It fails where the number in its hand is a multiple of this.
    fails_at: Option<i64>,
}

const NAMES: [&str; 3] = ["x", "y", "z"];

type Values = BTreeMap<&'static str, i64>;

/// What one run gives: an answer or a failure, the names that it looked up, and what it leaves.
#[derive(Clone, Debug)]
struct Ran {
    answer: Result<String, String>,
    reads: BTreeSet<&'static str>,
    writes: Values,
}

fn run(program: &Program, place: usize, seen: &Values) -> Ran {
    let mut hand = i64::try_from(place).unwrap() + 1;
    let mut reads = BTreeSet::new();
    let mut writes = Values::new();
    for step in &program.steps {
        match step {
            Step::Get(name) => {
                let name = NAMES[*name];
                let value = writes.get(name).copied().unwrap_or_else(|| {
                    reads.insert(name);
                    seen.get(name).copied().unwrap_or(0)
                });
                hand = (hand * 31 + value) % 1_000_003;
            }
            Step::Set(name, n) => drop(writes.insert(NAMES[*name], (hand * 7 + n) % 1_000_003)),
        }
    }
    let failed = program.fails_at.is_some_and(|n| hand % n == 0);
    let answer = if failed { Err(format!("no {hand}")) } else { Ok(format!("hand {hand}")) };
    Ran { answer, reads, writes }
}

/// Where the reference has a call.
#[derive(Clone, Debug)]
enum Stands {
    Waits,
    /// It began when so many calls, from the first on, had ended.
    Runs(usize),
    Answered(usize, Ran),
}

/// The design's words: a call that has read is decided when every earlier one is. If an earlier
/// one outside its snapshot wrote a name that it read, a pure call runs again, once; another
/// keeps its answer and loses its writes.
#[derive(Debug)]
struct Reference {
    stands: Vec<Stands>,
    again: Vec<bool>,
    ended: Vec<Decided>,
    values: Values,
    response_over: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Decided {
    answer: Result<String, String>,
    writes: Values,
    lost: bool,
    conflict: bool,
}

impl Reference {
    fn new(calls: usize) -> Self {
        Self {
            stands: vec![Stands::Waits; calls],
            again: vec![false; calls],
            ended: Vec::new(),
            values: Values::new(),
            response_over: false,
        }
    }

    fn go_on(&mut self, programs: &[Program]) {
        while self.response_over && self.ended.len() < programs.len() {
            let place = self.ended.len();
            let Stands::Answered(seen, ran) = self.stands[place].clone() else { return };
            let unseen = &self.ended[seen..];
            let stale = ran.reads.iter().any(|n| unseen.iter().any(|e| e.writes.contains_key(n)));
            if stale && programs[place].pure {
                assert!(!self.again[place], "the second time nothing can be stale");
                self.again[place] = true;
                self.stands[place] = Stands::Waits;
                return;
            }
            let wrote = if ran.answer.is_ok() { ran.writes } else { Values::new() };
            let lost = stale && !wrote.is_empty();
            let writes = if stale { Values::new() } else { wrote };
            self.values.extend(writes.clone());
            let conflict = stale || self.again[place];
            self.ended.push(Decided { answer: ran.answer, writes, lost, conflict });
        }
    }
}

fn tool_rules(programs: &[Program], execution: Execution) -> TurnRules {
    let schema = || InputSchema::parse(json!({"type": "object"})).unwrap();
    let tools = programs.iter().enumerate().map(|(place, program)| {
        let tool = ToolSpec::with_schema(&format!("t{place}"), "", schema());
        let tool = if program.pure { tool.pure() } else { tool };
        (tool.name.clone(), Arc::new(tool))
    });
    TurnRules { tools: tools.collect(), ..rules(execution) }
}

fn numbers(variables: &Variables) -> Values {
    let known = |name: &str| NAMES.into_iter().find(|known| *known == name).unwrap();
    variables.iter().map(|(name, value)| (known(name), value.as_i64().unwrap())).collect()
}

/// Runs the programs as the calls of one response; `order` says what happens next. Every start,
/// and in the end every call, is as the reference says.
fn play(programs: &[Program], execution: Execution, order: &[u8]) -> (Vec<ToolResult>, Reference) {
    let mut driver = Driver::with(tool_rules(programs, execution));
    // Which of many reruns saw which write is more than the records tell.
    driver.log.is_replayed = false;
    let mut reference = Reference::new(programs.len());
    let mut running: Vec<(usize, Values)> = Vec::new();
    let mut order = order.iter().copied().chain(std::iter::repeat(0));
    let mut delivered = 0;
    let mut started = 0;
    while driver.commit.is_none() {
        let choices = running.len() + usize::from(!reference.response_over);
        assert!(choices > 0, "stuck");
        let choice = usize::from(order.next().unwrap()) % choices;
        if choice < running.len() {
            let (place, seen) = running.remove(choice);
            let ran = run(&programs[place], place, &seen);
            let Stands::Runs(since) = reference.stands[place] else { panic!("it does not run") };
            reference.stands[place] = Stands::Answered(since, ran.clone());
            reference.go_on(programs);
            let outcome = match ran.answer {
                Ok(text) => ToolOutcome::ok(text),
                Err(text) => ToolOutcome::not_ok(FAILED, FailureKind::ToolError, text),
            };
            let writes = ran.writes.into_iter().map(|(n, v)| (n.into(), Arc::new(json!(v))));
            let used = VariablesUse {
                reads: ran.reads.into_iter().map(Into::into).collect(),
                writes: WriteSet(writes.collect()),
            };
            driver.report(u32::try_from(place).unwrap(), outcome, used);
        } else if delivered < programs.len() {
            driver.deltas([call(delivered as u64, &format!("t{delivered}"), "{}")]);
            delivered += 1;
        } else {
            reference.response_over = true;
            reference.go_on(programs);
            driver.well();
        }
        for (name, snapshot) in driver.started.iter().zip(&driver.snapshots).skip(started) {
            let place: usize = name.split_once('#').unwrap().1.parse().unwrap();
            let waits = matches!(reference.stands[place], Stands::Waits);
            assert!(waits, "a call started that the reference has running or answered");
            assert_eq!(numbers(snapshot), reference.values, "{place} sees something else");
            reference.stands[place] = Stands::Runs(reference.ended.len());
            running.push((place, numbers(snapshot)));
        }
        started = driver.started.len();
    }
    assert!(running.is_empty());
    assert_eq!(numbers(&committed(&driver.log, &Limits::default()).1), reference.values);
    (driver.commit.unwrap().results, reference)
}

fn check(programs: &[Program], max: u32, order: &[u8]) {
    let (in_sequence, plain) = play(programs, Execution::Sequential, order);
    assert!(plain.ended.iter().all(|ended| !ended.conflict), "a conflict in sequence");
    let mut values = Values::new();
    for (place, (program, result)) in programs.iter().zip(&in_sequence).enumerate() {
        let ran = run(program, place, &values);
        assert_eq!(*result.outcome.content, *ran.answer.clone().unwrap_or_else(|text| text));
        if ran.answer.is_ok() {
            values.extend(ran.writes);
        }
    }
    let (beside, reference) = play(programs, Execution::Parallel { max }, order);
    let told = |results: &[ToolResult]| -> Vec<_> {
        results.iter().map(|r| (r.call.id.clone(), r.outcome.clone(), r.writes.clone())).collect()
    };
    let kept_stale =
        programs.iter().zip(&reference.ended).any(|(p, ended)| !p.pure && ended.conflict);
    if !kept_stale {
        assert_eq!(told(&beside), told(&in_sequence));
        assert_eq!(reference.values, plain.values);
    }
    for (result, expected) in beside.iter().zip(&reference.ended) {
        let (notes, outcome) = (&result.notes, &result.outcome);
        let found = (notes.conflict, notes.writes_dropped, outcome.status == OK);
        assert_eq!(found, (expected.conflict, expected.lost, expected.answer.is_ok()));
        let writes = result.writes.0.iter().map(|(n, v)| (n.as_ref(), v.as_i64().unwrap()));
        assert_eq!(writes.collect::<BTreeMap<_, _>>(), expected.writes);
        let answer = expected.answer.clone().unwrap_or_else(|text| text);
        let rest = outcome.content.strip_prefix(&answer).expect("the tool's own answer stands");
        let marked = rest.starts_with("\n[callsheet: an earlier call");
        assert!(rest.is_empty() || marked, "{rest}");
    }
}

fn programs(pure: impl Strategy<Value = bool>) -> impl Strategy<Value = Vec<Program>> {
    let step = prop_oneof![
        (0..NAMES.len()).prop_map(Step::Get),
        (0..NAMES.len(), 0..9_i64).prop_map(|(name, n)| Step::Set(name, n)),
    ];
    let steps = proptest::collection::vec(step, 0..5);
    let fails_at = proptest::option::weighted(0.3, 2..4_i64);
    let program = (steps, pure, fails_at).prop_map(|(steps, pure, fails_at)| Program {
        steps,
        pure,
        fails_at,
    });
    proptest::collection::vec(program, 1..8)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn calls_beside_each_other_leave_what_the_design_says(
        programs in programs(any::<bool>()),
        max in 1..8_u32,
        order in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        check(&programs, max, &order);
    }

    #[test]
    fn pure_calls_beside_each_other_leave_what_they_leave_in_sequence(
        programs in programs(Just(true)),
        max in 1..8_u32,
        order in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let (results, _) = play(&programs, Execution::Parallel { max }, &order);
        let (in_sequence, _) = play(&programs, Execution::Sequential, &order);
        for (one, other) in results.iter().zip(&in_sequence) {
            prop_assert_eq!(&one.outcome, &other.outcome);
            prop_assert_eq!(&one.writes, &other.writes);
        }
        check(&programs, max, &order);
    }
}
