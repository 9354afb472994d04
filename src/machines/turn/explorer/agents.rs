//! Calls of agents: the budgets of children, and cancelled calls that wait for their child.

use super::*;
use callsheet_values::types::{AgentLease, ChildUse, SessionId, child_run_id, child_session_id};

/// The tokens that each child uses.
const USED: u64 = 7;

/// Returns the child of a call, if its tool is an agent.
pub(super) fn child(call: &TurnCall) -> Option<Arc<ChildUse>> {
    call.tool.as_ref()?.agent.as_ref()?;
    // The idempotency keys of explored turns begin with `s`.
    let session = child_session_id(&SessionId::parse("s").unwrap(), &format!("s/{}", call.key()));
    let run = child_run_id(&session).unwrap();
    Some(Arc::new(ChildUse { session, run, tokens: USED, calls: 1 }))
}

impl World {
    /// Returns whether the call of an agent runs, and is not cancelled.
    pub(super) fn is_child_open(&self, key: CallKey) -> bool {
        let call = self.call(key);
        let is_agent = call.tool.as_ref().is_some_and(|tool| tool.agent.is_some());
        is_agent && self.running.contains(&key) && !call.waits_for_child_end()
    }

    /// Returns the calls whose children may begin to wait for people (true), or go on.
    pub(super) fn may_change_child(
        &self,
        scenario: &Scenario,
    ) -> impl Iterator<Item = (CallKey, bool)> {
        let open = self.running.iter().filter(|key| self.is_child_open(**key));
        let open = open.filter(|_| scenario.child_waits);
        open.map(|key| (*key, !self.waiting_children.contains(key)))
    }

    pub(super) fn supervise_child(&mut self, key: CallKey, waits: bool) {
        let has_changed = match waits {
            true => self.waiting_children.insert(key),
            false => self.waiting_children.remove(&key),
        };
        assert!(has_changed, "{key}");
    }

    /// Checks that the clock of a call stands still exactly while its child waits, and that a repeated message
    /// changes nothing.
    pub(super) fn check_waiting_children(&mut self) {
        for call in &self.turn.calls {
            let waits = self.waiting_children.contains(&call.key());
            assert_eq!(call.child_waits_for_people(), waits, "{}", call.key());
        }
        for key in self.running.iter().filter(|key| self.is_child_open(**key)) {
            let mut turn = self.turn.clone();
            turn.handle_child_waits(self.now, *key, self.waiting_children.contains(key));
            assert!(turn == self.turn, "a repeated message changed the turn");
        }
    }

    /// Checks that a child gets what its intent records, and that the leases of open children and the use of ended
    /// ones are together no more than is left to the run.
    pub(super) fn check_agent_start(
        &self,
        key: CallKey,
        start: Option<&crate::turn::AgentCallStart>,
    ) {
        let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
        let is_agent = call.tool.as_ref().is_some_and(|tool| tool.agent.is_some());
        assert_eq!(start.is_some(), is_agent, "{key}");
        let Some(start) = start else { return };
        let leases = |of: Option<CallKey>| {
            self.log.iter().rev().filter_map(move |record| {
                let Record::CallIntended { call, lease, .. } = record else { return None };
                of.is_none_or(|of| call.key == of).then_some((call.key, (*lease)?))
            })
        };
        let recorded: Vec<_> = leases(Some(key)).map(|(_, lease)| lease).collect();
        assert_eq!(recorded.first(), Some(&start.lease), "the intent holds another lease");
        assert!(recorded.iter().all(|lease| *lease == start.lease), "the lease has changed");
        assert_eq!(start.is_cancelled, self.turn.is_cancelled(), "{key}");
        let Some(left) = self.turn.spec.budget.tokens_left else { return };
        let mut given = BTreeMap::new();
        for (of, AgentLease { tokens, .. }) in leases(None) {
            let spent = self.outcomes.get(&of).map(|outcome| outcome.child.as_ref());
            // A call without a child has used nothing.
            let used = spent.map(|child| child.map_or(0, |child| child.tokens));
            given.insert(of, used.or(tokens).unwrap());
        }
        assert!(given.values().sum::<u64>() <= left, "{given:?} of {left}");
    }
}

/// Explores scenarios with calls of agents.
fn explore_agents(change: impl Fn(&mut Scenario)) {
    let mixes: [&[&str]; 4] = [
        &["agent", "agent"],
        &["agent", "pure", "effect"],
        &["agent {}", "agent {}"],
        &["eager_agent", "agent"],
    ];
    let mut scenarios = Vec::new();
    for mix in mixes {
        for execution in EXECUTIONS {
            let mut scenario = scenario(&format!("{mix:?} {execution}"), execution, mix);
            scenario.spec.budget.tokens_left = Some(100);
            scenario.spec.budget.calls_left = Some(20);
            change(&mut scenario);
            scenarios.push(scenario);
        }
    }
    explore_all(scenarios);
}

/// Explores scenarios whose children wait for people, alone and beside another call.
fn explore_waiting_children(change: impl Fn(&mut Scenario)) {
    let mixes: [&[&str]; 4] = [
        &["agent", "agent"],
        &["agent", "asked"],
        &["eager_agent", "effect"],
        &["agent", "asking"],
    ];
    explore_each(&mixes, &EXECUTIONS, |scenario| {
        scenario.child_waits = true;
        scenario.durable_at_once = true;
        change(scenario);
    });
}

#[test]
fn clocks_stand_still_while_children_wait_for_people() {
    let mixes: [&[&str]; 3] = [&["agent"], &["agent", "effect"], &["agent", "asked"]];
    explore_each(&mixes, &PARALLEL_8, |scenario| {
        scenario.child_waits = true;
        scenario.durable_at_once = true;
        scenario.timeouts = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    });
}

#[test]
fn a_cancelled_agent_does_not_wait_for_people() {
    explore_waiting_children(|scenario| {
        scenario.cancel = true;
        scenario.failures = true;
        scenario.breaks = 1;
    });
}

#[test]
fn an_owner_that_dies_continues_the_waits_of_children() {
    explore_waiting_children(|scenario| {
        scenario.owner_deaths = 1;
        scenario.cancel = true;
    });
}

#[test]
fn a_crash_forgets_the_waits_of_children() {
    explore_each(&[&["agent"], &["eager_agent"]], &PARALLEL_8, |scenario| {
        scenario.child_waits = true;
        scenario.crashes = 1;
        scenario.torn = true;
        scenario.cancel = true;
        scenario.timeouts = true;
    });
}

#[test]
fn a_cancelled_agent_ends_after_its_child() {
    explore_agents(|scenario| {
        scenario.cancel = true;
        scenario.timeouts = true;
        scenario.failures = true;
    });
}

#[test]
fn a_crash_keeps_leases_and_stops_the_children_of_a_cancelled_turn() {
    explore_agents(|scenario| {
        scenario.cancel = true;
        scenario.crashes = 1;
        scenario.torn = true;
    });
}

#[test]
fn an_owner_that_dies_attaches_to_the_calls_of_agents() {
    explore_agents(|scenario| {
        scenario.cancel = true;
        scenario.owner_deaths = 1;
        scenario.durable_at_once = true;
        scenario.breaks = 1;
    });
}
