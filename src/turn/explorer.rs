//! Visits the states of [`Turn`] that its surroundings can bring about, not the paths to them,
//! and checks the invariants in each: whatever the order in which deltas, outcomes, records,
//! timeouts, cancels, breaks and crashes come.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, Phase};
use super::fixtures::{call, finish, more, rules, spec, text};
use super::{
    CancelReason, Effect, ResponseEnd, State, ToolDone, Turn, TurnEnd, TurnRules, TurnSpec,
};
use crate::config::OnExcess;
use crate::context::History;
use crate::event::Event;
use crate::record::{Ending, Record};
use crate::types::{
    CallKey, Execution, FailureKind, FinishKind, ProviderError, ProviderErrorKind, ToolOutcome,
    ToolResult, ToolStatus,
};
use crate::wire::Delta;

const STATES_MAX: usize = 400_000;

/// What may happen around a turn, and how often.
#[derive(Clone)]
struct Scenario {
    name: String,
    spec: TurnSpec,
    /// One delta after the other, the same in each attempt.
    response: Vec<Delta>,
    breaks: u32,
    crashes: u32,
    /// A crash may leave any part of what was not yet durable, not only all or nothing.
    torn: bool,
    cancel: bool,
    timeouts: bool,
    failures: bool,
    /// Records become durable at once, as with the memory engine.
    at_once: bool,
    /// No call with other effects stands between identical ones, so that these run once.
    identical_run_once: bool,
}

/// The turn's surroundings.
#[derive(Clone, Hash, PartialEq, Eq)]
struct World {
    turn: Turn,
    /// Deltas of the open exchange that were delivered; none: no exchange is open.
    delivered: Option<usize>,
    running: BTreeSet<CallKey>,
    /// Every call that was ever handed to its tool.
    begun: BTreeSet<CallKey>,
    /// What tools answered while their calls ran.
    reported: BTreeMap<CallKey, ToolOutcome>,
    /// Starts of calls with effects: which, and what they do.
    effects: Vec<(CallKey, String)>,
    log: Vec<Record>,
    /// How many records of the log came from before the last crash.
    before_crash: u64,
    durable: u64,
    released: Vec<CallKey>,
    ended: BTreeMap<CallKey, ToolOutcome>,
    committed: bool,
    breaks: u32,
    crashes: u32,
    cancelled: bool,
    /// The cancel came before everything was decided.
    cancel_counts: bool,
    now: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Deliver,
    Close,
    Break,
    Outcome(CallKey, ToolStatus),
    Recorded,
    Timeout,
    Cancel,
    /// So many records of the log are left.
    Crash(usize),
}

impl World {
    fn begin(scenario: &Scenario) -> Self {
        let mut world = Self {
            turn: Turn::new(scenario.spec.clone()),
            delivered: None,
            running: BTreeSet::new(),
            begun: BTreeSet::new(),
            reported: BTreeMap::new(),
            effects: Vec::new(),
            log: Vec::new(),
            before_crash: 0,
            durable: 0,
            released: Vec::new(),
            ended: BTreeMap::new(),
            committed: false,
            breaks: 0,
            crashes: 0,
            cancelled: false,
            cancel_counts: false,
            now: Duration::ZERO,
        };
        world.perform(scenario);
        world
    }

    fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.committed {
            return actions;
        }
        if let Some(delivered) = self.delivered {
            actions.push(if delivered < scenario.response.len() {
                Action::Deliver
            } else {
                Action::Close
            });
            if self.breaks < scenario.breaks {
                actions.push(Action::Break);
            }
        }
        for key in &self.running {
            actions.push(Action::Outcome(*key, ToolStatus::Ok));
            if scenario.failures {
                actions.push(Action::Outcome(*key, ToolStatus::Failed));
            }
        }
        if self.durable < self.log.len() as u64 {
            actions.push(Action::Recorded);
        }
        if scenario.timeouts && self.turn.poll_timeout().is_some() {
            actions.push(Action::Timeout);
        }
        if scenario.cancel && !self.cancelled {
            actions.push(Action::Cancel);
        }
        if self.crashes < scenario.crashes {
            // What was not yet said to be durable may be, or may not.
            let (durable, written) = (self.durable as usize, self.log.len());
            actions.push(Action::Crash(durable));
            let from = if scenario.torn { durable + 1 } else { written.max(durable + 1) };
            actions.extend((from..=written).map(Action::Crash));
        }
        actions
    }

    fn act(&mut self, action: Action, scenario: &Scenario) {
        let now = self.now;
        match action {
            Action::Deliver => {
                let delivered = self.delivered.as_mut().unwrap();
                let delta = scenario.response[*delivered].clone();
                *delivered += 1;
                self.turn.handle_deltas(now, vec![delta]);
            }
            Action::Close => {
                self.delivered = None;
                self.turn.handle_response_end(now, ResponseEnd::Closed);
            }
            Action::Break => {
                self.delivered = None;
                self.breaks += 1;
                let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
                self.turn.handle_response_end(now, ResponseEnd::Failed(error));
            }
            Action::Outcome(key, status) => {
                self.running.remove(&key);
                let outcome = if status == ToolStatus::Ok {
                    ToolOutcome::ok(key.index.to_string())
                } else {
                    ToolOutcome::not_ok(status, FailureKind::ToolError, "no")
                };
                self.reported.insert(key, outcome.clone());
                self.turn.handle_outcome(now, key, ToolDone { outcome });
            }
            Action::Recorded => self.make_durable(),
            Action::Timeout => {
                self.now = self.now.max(self.turn.poll_timeout().unwrap());
                self.turn.handle_timeout(self.now);
            }
            Action::Cancel => {
                self.cancelled = true;
                self.cancel_counts = self.turn.state != State::Over;
                self.turn.handle_cancel(now, CancelReason::Stop);
            }
            Action::Crash(kept) => self.crash(kept, scenario),
        }
        self.perform(scenario);
        self.check_settled();
        self.check_late();
    }

    /// What was not written is lost, and so is everything that ran.
    fn crash(&mut self, kept: usize, scenario: &Scenario) {
        self.crashes += 1;
        self.log.truncate(kept);
        self.durable = kept as u64;
        self.before_crash = self.durable;
        self.delivered = None;
        self.running.clear();
        self.reported.clear();
        self.released.clear();
        // What the journal knows is not told again.
        self.ended.clear();
        for record in &self.log {
            if let Record::CallEnded { key, outcome, .. } = record {
                self.ended.insert(*key, outcome.clone());
            }
        }
        self.cancel_counts = false;
        self.now = Duration::ZERO;
        self.turn = Turn::resume(scenario.spec.clone(), &self.log);
    }

    /// Everything that could be decided was, and the turn counts what runs as we do.
    fn check_settled(&mut self) {
        let before = (self.turn.records, self.turn.held.len());
        self.turn.settle();
        assert_eq!(self.turn.poll(), None, "something was left undecided");
        assert_eq!((self.turn.records, self.turn.held.len()), before, "a result was left");
        assert_eq!(self.turn.clock.running(), self.running.len(), "what runs is miscounted");
    }

    /// What comes too late changes nothing, and is counted.
    fn check_late(&mut self) {
        let asking = self.turn.state == State::Asking;
        let before = (self.turn.records, self.turn.held.len(), asking);
        if !asking {
            self.turn.handle_deltas(self.now, vec![text("late"), call(9, "pure", "{}")]);
            self.turn.handle_response_end(self.now, ResponseEnd::Closed);
            assert_eq!(self.turn.poll(), None, "a response that had ended went on");
        }
        for key in self.begun.difference(&self.running) {
            let outcome = ToolOutcome::ok("late");
            self.turn.handle_outcome(self.now, *key, ToolDone { outcome });
            let counted = matches!(self.turn.poll(), Some(Effect::Emit(Event::OutcomeLate { .. })));
            assert!(counted, "a late outcome counted");
            assert_eq!(self.turn.poll(), None, "a late outcome did something");
        }
        let asking = self.turn.state == State::Asking;
        let after = (self.turn.records, self.turn.held.len(), asking);
        assert_eq!(before, after, "something late was recorded");
    }

    fn make_durable(&mut self) {
        self.durable = self.log.len() as u64;
        self.turn.handle_recorded(self.now, self.durable - self.before_crash);
    }

    fn perform(&mut self, scenario: &Scenario) {
        loop {
            while let Some(effect) = self.turn.poll() {
                assert!(!self.committed || matches!(effect, Effect::Emit(_)), "after the commit");
                self.perform_one(effect, scenario);
            }
            if !scenario.at_once || self.durable == self.log.len() as u64 {
                return;
            }
            self.make_durable();
        }
    }

    fn perform_one(&mut self, effect: Effect, scenario: &Scenario) {
        match effect {
            Effect::Record(record) => {
                if let Record::CallEnded { key, .. } = &record {
                    assert!(!self.released.contains(key), "an outcome changed after its release");
                }
                self.log.push(record);
            }
            Effect::Request(plan) => {
                assert_eq!(self.delivered, None, "two exchanges at once");
                assert_eq!(plan.attempt, self.turn.attempt());
                self.delivered = Some(0);
            }
            Effect::Disconnect => {
                assert!(self.delivered.take().is_some(), "no exchange to disconnect");
            }
            Effect::Start(call) => self.check_start(&call.key, scenario),
            Effect::Abort(key) => {
                assert!(self.running.remove(&key), "abort of what does not run");
            }
            Effect::Emit(Event::CallEnded { result, .. }) => {
                let durable = &self.log[..self.durable as usize];
                let key = result.call.key;
                assert!(
                    durable
                        .iter()
                        .any(|r| matches!(r, Record::CallEnded { key: k, .. } if *k == key)),
                    "an outcome was told before it was durable"
                );
                let before = self.ended.insert(key, result.outcome);
                assert_eq!(before, None, "two outcomes were told");
            }
            Effect::Emit(Event::CallDiscarded { call, had_result }) => {
                let told = self.ended.remove(&call.key).is_some();
                assert!(had_result || !told || !self.is_tools_answer(&call.key));
            }
            Effect::Emit(_) => {}
            Effect::Release(result) => {
                assert!(matches!(self.turn.state, State::Judged { .. } | State::Over));
                let key = result.call.key;
                assert!(self.released.last() < Some(&key), "released out of order, or twice");
                assert!(self.ended.contains_key(&key), "released before it was told");
                self.released.push(key);
            }
            Effect::Commit(record) => {
                self.committed = true;
                let empty = Vec::new();
                let calls = record.message.as_ref().map_or(&empty, |message| &message.calls);
                let answered: Vec<_> = record.results.iter().map(|r| r.call.key).collect();
                let asked: Vec<_> = calls.iter().map(|call| call.key).collect();
                assert_eq!(answered, asked, "each call has one result, in call order");
                assert_eq!(self.released, asked, "each result was released");
                assert!(self.running.is_empty(), "something still runs");
                assert_eq!(self.delivered, None, "the exchange is still open");
                let cancelled = matches!(record.end, TurnEnd::Cancelled(_));
                assert!(cancelled == self.cancel_counts || self.crashes > 0);
                for result in &record.results {
                    self.check_result(result);
                }
                self.check_journal(&record);
            }
        }
    }

    fn is_tools_answer(&self, key: &CallKey) -> bool {
        self.reported.contains_key(key)
    }

    /// A result says what happened: to the model, and to those who watch.
    fn check_result(&self, result: &ToolResult) {
        let (key, outcome) = (result.call.key, &result.outcome);
        assert_eq!(key.attempt, self.turn.attempt(), "a call of a void attempt");
        assert_eq!(self.ended.get(&key), Some(outcome), "another outcome was told");
        let begun = self.begun.contains(&key);
        let is_copy = result.notes.duplicate_of.is_some() || result.notes.reused;
        let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
        // A pure call may have run before a crash that nobody remembers.
        let known = self.crashes == 0 || call.has_effects();
        match outcome.kind {
            Some(FailureKind::Malformed) => assert!(!call.has_effects() || !begun),
            _ if is_copy => {}
            None => assert!(begun),
            Some(FailureKind::ToolError | FailureKind::Panic | FailureKind::Killed) => {
                assert!(begun);
            }
            Some(FailureKind::Timeout) => assert!(begun),
            // After a crash nobody knows whether what was intended had begun.
            Some(FailureKind::Cancelled) => assert!(begun || self.crashes > 0),
            Some(FailureKind::HostStopped) => assert!(self.crashes > 0 && call.has_effects()),
            Some(
                FailureKind::NotStarted
                | FailureKind::UnknownTool
                | FailureKind::InvalidArguments
                | FailureKind::CutOffArguments
                | FailureKind::Limit,
            ) => assert!(!known || !begun, "{key} ran, and is answered {outcome:?}"),
        }
        if let Some(reported) = self.reported.get(&key) {
            let stands = reported == outcome || outcome.kind == Some(FailureKind::Malformed);
            assert!(stands, "a tool's answer was lost");
        }
    }

    fn check_start(&mut self, key: &CallKey, scenario: &Scenario) {
        let calls = &self.turn.calls;
        let place = calls.iter().position(|call| call.key() == *key).unwrap();
        let started = &calls[place];
        let rules = &scenario.spec.rules;
        assert!(self.running.insert(*key), "started twice");
        assert!(self.begun.insert(*key) || self.crashes > 0, "started again");
        assert!(self.may_start(started, rules), "started where nothing may");
        let places = match rules.execution {
            Execution::Sequential => 1,
            Execution::Parallel { max } => max as usize,
        };
        assert!(self.running.len() <= places, "more calls run than may");
        for earlier in &calls[..place] {
            let waits = matches!(earlier.phase, Phase::Open | Phase::Sealed | Phase::Ready);
            assert!(!waits, "a ticket was taken out of order");
            let same = earlier.identity == started.identity && earlier.started_at.is_some();
            let twice = same && earlier.unfit.is_none() && scenario.identical_run_once;
            assert!(!twice || self.crashes > 0, "an identical call ran twice");
        }
        let others = self.running.iter().filter(|other| *other != key);
        for other in others {
            let other = calls.iter().find(|call| call.key() == *other).unwrap();
            assert!(!other.is_exclusive() && !started.is_exclusive(), "beside an exclusive call");
        }
        if started.has_effects() {
            let tool = started.tool.as_ref().unwrap();
            let durable = &self.log[..self.durable as usize];
            assert!(
                durable
                    .iter()
                    .any(|r| matches!(r, Record::CallIntended { call, .. } if call.key == *key)),
                "an effect before its intent was durable"
            );
            let again = tool.idempotent && self.crashes > 0;
            for (other, identity) in &self.effects {
                assert!(again || other != key, "an effect was repeated");
                assert_eq!(other.attempt, key.attempt, "effects of two attempts");
                assert!(again || other < key, "effects out of order");
                let same = scenario.identical_run_once && *identity == started.identity;
                assert!(again || !same, "an identical call ran twice");
            }
            self.effects.push((*key, started.identity.clone()));
        }
    }

    fn may_start(&self, call: &Call, rules: &TurnRules) -> bool {
        let (ending, cancelled) = match &self.turn.state {
            State::Asking => {
                let early = rules.early_start && rules.limits.on_excess != OnExcess::Fail;
                return early && call.tool.as_ref().unwrap().may_start_early();
            }
            State::Judged { ending, cancelled, .. } => (*ending, cancelled.is_some()),
            State::Over => return false,
        };
        let again = self.crashes > 0 && call.tool.as_ref().unwrap().idempotent;
        match ending {
            Ending::Well => !cancelled,
            // Its intent was being recorded when the ending came.
            Ending::Length | Ending::BrokeKept => call.has_effects() && !cancelled,
            Ending::Refused => again && !cancelled,
            Ending::Excess | Ending::Cancelled => false,
        }
    }

    /// The journal rebuilds the same history, and it may be sent.
    fn check_journal(&self, record: &super::TurnRecord) {
        let mut live = History::new();
        live.commit(record.number, record.message.as_ref(), &record.results, 1 << 20);
        assert_eq!(live.request_messages().1, 0, "the history is not paired");
        assert_eq!(History::fold(&self.log, 1 << 20), live, "the journal says something else");
        let ids: HashSet<_> = record.results.iter().map(|result| &result.call.id).collect();
        assert_eq!(ids.len(), record.results.len(), "an id was used twice");
        assert!(record.results.iter().all(|r| r.call.arguments.is_object()));
    }
}

fn fingerprint(world: &World) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let first = hasher.finish();
    first.hash(&mut hasher);
    (first, hasher.finish())
}

/// Visits every state; returns how many there are.
fn explore(scenario: &Scenario) -> usize {
    let first = World::begin(scenario);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut open = VecDeque::from([first]);
    let mut commits = 0;
    while let Some(world) = open.pop_front() {
        let actions = world.actions(scenario);
        commits += usize::from(world.committed);
        assert!(!actions.is_empty() || world.committed, "{}: stuck", scenario.name);
        for action in actions {
            let mut next = world.clone();
            next.act(action, scenario);
            if seen.insert(fingerprint(&next)) {
                assert!(seen.len() <= STATES_MAX, "{}: too many states", scenario.name);
                open.push_back(next);
            }
        }
    }
    assert!(commits > 0, "{}: no turn was ever committed", scenario.name);
    seen.len()
}

fn scenario(name: &str, execution: Execution, names: &[&str]) -> Scenario {
    scenario_with(name, rules(execution), names)
}

/// Each call comes in two pieces, so that states between them are visited.
fn scenario_with(name: &str, rules: TurnRules, names: &[&str]) -> Scenario {
    let mut response = vec![text("so")];
    for (index, tool) in (0..).zip(names) {
        let (tool, arguments) = match tool.split_once(' ') {
            Some((tool, arguments)) => (tool, arguments.to_owned()),
            None => (*tool, format!("{{\"n\":{index}}}")),
        };
        let (head, tail) = arguments.split_at(arguments.len() / 2);
        response.push(call(index, tool, head));
        response.push(more(index, tail));
    }
    response.push(finish(FinishKind::ToolCalls));
    Scenario {
        name: name.to_owned(),
        spec: spec(rules),
        response,
        breaks: 0,
        crashes: 0,
        torn: false,
        cancel: false,
        timeouts: false,
        failures: false,
        at_once: false,
        identical_run_once: true,
    }
}

const EXECUTIONS: [Execution; 3] =
    [Execution::Sequential, Execution::Parallel { max: 2 }, Execution::Parallel { max: 8 }];

fn total(scenarios: impl IntoIterator<Item = Scenario>) {
    let mut states = 0;
    let mut count = 0;
    for scenario in scenarios {
        states += explore(&scenario);
        count += 1;
    }
    println!("{count} scenarios, {states} states");
    assert!(states > count);
}

/// The mixes of calls that the features are tried on.
const MIXES: [&[&str]; 9] = [
    &["pure", "pure", "pure"],
    &["effect", "pure", "effect"],
    &["pure", "effect", "pure"],
    &["pure", "exclusive", "pure"],
    &["seal", "pure", "effect"],
    &["pure", "barrier", "pure"],
    &["pure {}", "pure {}", "pure {}"],
    &["effect {}", "nobody", "effect {}"],
    &["idempotent", "pure {\"n\":", "seal []"],
];

#[test]
fn four_calls_in_every_execution() {
    let mixes: [&[&str]; 3] = [
        &["pure", "pure", "pure", "pure"],
        &["pure", "effect", "exclusive", "pure"],
        &["seal", "pure", "pure", "effect"],
    ];
    total(mixes.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| scenario(&format!("{mix:?} {execution}"), execution, mix))
    }));
}

fn each_mix(change: impl Fn(&mut Scenario)) {
    total(MIXES.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| {
            let mut scenario = scenario(&format!("{mix:?} {execution}"), execution, mix);
            change(&mut scenario);
            scenario
        })
    }));
}

#[test]
fn a_cancel_at_any_moment() {
    each_mix(|scenario| scenario.cancel = true);
}

#[test]
fn failures_and_timeouts_in_any_order() {
    each_mix(|scenario| {
        scenario.at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
    });
}

#[test]
fn a_break_at_any_moment() {
    each_mix(|scenario| {
        scenario.at_once = true;
        scenario.breaks = 1;
    });
}

#[test]
fn breaks_until_the_attempts_are_used_up() {
    total([&["pure", "effect"][..], &["seal", "pure"][..]].map(|mix| {
        let mut scenario = scenario("breaks", Execution::Parallel { max: 8 }, mix);
        scenario.breaks = 3;
        scenario
    }));
}

#[test]
fn a_crash_at_any_moment() {
    each_mix(|scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
    });
}

#[test]
fn everything_at_once_on_two_calls() {
    let mixes: [&[&str]; 5] = [
        &["pure", "effect"],
        &["seal", "pure"],
        &["exclusive", "idempotent"],
        &["pure {}", "pure {}"],
        &["effect", "barrier"],
    ];
    total(mixes.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| {
            let mut scenario = scenario(&format!("{mix:?} {execution}"), execution, mix);
            scenario.breaks = 1;
            scenario.crashes = 1;
            scenario.cancel = true;
            scenario.failures = true;
            scenario.timeouts = true;
            scenario
        })
    }));
}

#[test]
fn other_endings() {
    let endings = [
        (FinishKind::Length, true),
        (FinishKind::ContentFilter, true),
        (FinishKind::Error, true),
        (FinishKind::Length, false),
        (FinishKind::ContentFilter, false),
    ];
    total(endings.into_iter().flat_map(|(ending, at_once)| {
        MIXES.map(|mix| {
            let name = format!("{mix:?} {ending:?}");
            let mut scenario = scenario(&name, Execution::Parallel { max: 8 }, mix);
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.cancel = at_once;
            scenario.crashes = u32::from(!at_once);
            scenario.at_once = at_once;
            scenario
        })
    }));
}

#[test]
fn limits_flags_and_last_requests() {
    let mix = &["pure", "effect", "pure", "seal", "pure"];
    let mut scenarios = Vec::new();
    for on_excess in [OnExcess::Answer, OnExcess::Truncate, OnExcess::Fail] {
        let mut rules = rules(Execution::Parallel { max: 8 });
        rules.limits.max_tool_calls_per_turn = Some(2);
        rules.limits.on_excess = on_excess;
        scenarios.push(scenario_with(&format!("{on_excess:?}"), rules, mix));
    }
    let mut single = rules(Execution::Parallel { max: 8 });
    single.multi_tool_calls = false;
    scenarios.push(scenario_with("one call", single, mix));
    let mut late = rules(Execution::Parallel { max: 8 });
    late.early_start = false;
    scenarios.push(scenario_with("no early start", late, mix));
    let mut last = scenario("last request", Execution::Sequential, mix);
    last.spec.last_request = true;
    scenarios.push(last);
    let crashing = scenarios.clone().into_iter().map(|mut scenario| {
        scenario.crashes = 1;
        scenario.response.remove(0);
        scenario
    });
    let crashing: Vec<_> = crashing.collect();
    for scenario in &mut scenarios {
        scenario.cancel = true;
        scenario.breaks = 1;
        scenario.at_once = true;
    }
    total(scenarios.into_iter().chain(crashing));
}

#[test]
fn bytes_after_a_seal() {
    let mixes: [&[&str]; 4] =
        [&["pure", "pure"], &["seal", "pure"], &["effect", "effect"], &["pure {}", "pure {}"]];
    total(mixes.iter().flat_map(|mix| {
        EXECUTIONS.map(|execution| {
            let mut scenario = scenario(&format!("{mix:?} {execution}"), execution, mix);
            let end = scenario.response.pop().unwrap();
            scenario.response.extend([more(0, " x"), end]);
            scenario.cancel = true;
            scenario.failures = true;
            scenario
        })
    }));
}

/// Longer responses than can be visited whole: seeded random walks.
#[test]
fn random_walks_over_ten_calls() {
    let names =
        ["pure", "effect", "exclusive", "seal", "pure {}", "nobody", "barrier", "effect {}"];
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
fn a_turn_is_shared_rules_and_small_state() {
    let scenario = scenario("size", Execution::Sequential, &["pure"]);
    let turn = Turn::new(scenario.spec);
    assert!(Arc::strong_count(&turn.spec) == 1 && size_of::<Turn>() < 2048);
}
