//! Calls that the client runs, in the explorer: the client's part, the invariants, and scenarios.

use super::variables::run_tool;
use super::*;
use crate::turn::HookScope;
use callsheet_values::types::{HookPoint, WaitPhase};

impl World {
    /// Returns whether the turn awaits the client's result of a call.
    pub(super) fn is_awaited(&self, key: CallKey) -> bool {
        self.turn.calls.iter().any(|call| call.key() == key && call.waits_for_client())
    }

    /// Returns whether the journal has the answer to a call from before its outcome was decided.
    pub(super) fn is_reported(&self, key: CallKey) -> bool {
        let is_report =
            |record: &Record| matches!(record, Record::CallReported { key: of, .. } if *of == key);
        self.log.iter().any(is_report)
    }

    /// Checks that a call is handed to the client only if it may start.
    pub(super) fn check_handed(&self, key: CallKey, rules: &RunRules) {
        let index = self.turn.calls.iter().position(|call| call.key() == key).unwrap();
        let call = &self.turn.calls[index];
        assert!(call.is_by_client(), "{key} is handed to the client, and the host has its tool");
        assert!(!self.is_request_recorded(key), "{key} is handed to the client twice");
        assert!(self.may_start(call, rules), "{key} is handed to the client, and may not start");
        self.check_start_allowed(key, rules);
        for earlier in &self.turn.calls[..index] {
            let waits =
                matches!(earlier.phase, CallPhase::Open | CallPhase::Sealed | CallPhase::Ready);
            let must_end = rules.execution == Execution::Sequential || earlier.is_exclusive();
            let is_open = earlier.is_kept() && earlier.outcome().is_none();
            let is_obstacle = waits || (must_end && is_open);
            assert!(!is_obstacle, "{key} is handed out before {}", earlier.key());
        }
    }

    fn is_request_recorded(&self, key: CallKey) -> bool {
        self.log.iter().any(|record| {
            matches!(record, Record::ApprovalAsked { request }
                if (request.call.key, request.phase) == (key, WaitPhase::Client))
        })
    }

    /// Checks that the client learns of a call once, and not before the record of it is durable.
    pub(super) fn receive_client_call(&mut self, key: CallKey, rules: &RunRules) {
        assert!(
            self.is_request_durable((key, WaitPhase::Client)),
            "the client learns of {key} before the journal"
        );
        self.check_start_approved(key);
        self.check_start_allowed(key, rules);
        self.ever_started.insert(key);
        self.note_client_start(key);
        // A cancellation may follow in the same batch of effects.
        if self.is_awaited(key) {
            assert!(self.handed.insert(key), "the client learns of {key} twice");
        }
    }

    pub(super) fn answer_call(&mut self, key: CallKey, status: ToolStatus) {
        self.handed.remove(&key);
        let (content, _) = run_tool(&self.call(key).call, self.snapshots[&key].snapshot());
        let outcome = if status == ToolStatus::Ok {
            ToolOutcome::ok(content)
        } else {
            ToolOutcome::not_ok(status, FailureKind::ToolError, "no")
        };
        self.tool_outcomes.insert(key, outcome.clone());
        assert_eq!(self.turn.handle_client_result(self.now, key, outcome), Ok(()));
    }
}

const MIXES: [&[&str]; 6] = [
    &["client", "pure", "client"],
    &["effect", "client_pure", "effect"],
    &["client_both", "client_pure"],
    &["client {}", "pure", "client {}"],
    &["exclusive", "client_pure", "asked"],
    &["client_pure {}", "client_pure {}"],
];

#[test]
fn client_calls_with_cancellations_and_timeouts() {
    explore_each(&MIXES, &SMALL_EXECUTIONS, |scenario| {
        scenario.cancel = true;
        scenario.durable_at_once = true;
    });
    explore_each(&MIXES[..3], &PARALLEL_8, |scenario| {
        scenario.durable_at_once = true;
        scenario.failures = true;
        scenario.timeouts = true;
        scenario.spec.run_time_left = Some(Duration::from_secs(60));
    });
    explore_each(&[&["client"], &["client_pure"], &["client_both"]], &PARALLEL_8, |scenario| {
        scenario.cancel = true;
        scenario.timeouts = true;
        scenario.failures = true;
    });
}

#[test]
fn client_calls_with_breaks_and_bad_ends() {
    explore_each(&MIXES, &PARALLEL_8, |scenario| {
        scenario.breaks = 1;
        scenario.durable_at_once = true;
    });
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        explore_each(&MIXES, &PARALLEL_8, |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.durable_at_once = true;
            scenario.cancel = true;
        });
    }
    explore_each(&MIXES[2..], &PARALLEL_8, |scenario| {
        scenario.durable_at_once = true;
        // More bytes for the sealed call 0 make it malformed.
        scenario.response.insert(scenario.response.len() - 1, more(0, " x"));
    });
}

#[test]
fn client_calls_with_crashes_and_deaths_of_the_owner() {
    explore_each(&MIXES, &SMALL_EXECUTIONS, |scenario| {
        scenario.crashes = 1;
        scenario.durable_at_once = true;
    });
    explore_each(&MIXES, &PARALLEL_8, |scenario| {
        scenario.owner_deaths = 1;
        scenario.durable_at_once = true;
    });
    explore_each(&[&["client"], &["client_both"]], &PARALLEL_8, |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
        scenario.cancel = true;
        scenario.timeouts = true;
    });
}

#[test]
fn client_calls_with_hooks() {
    let both = [HookPoint::BeforeCall, HookPoint::AfterCall];
    let mixes: [&[&str]; 2] = [&["client_pure"], &["client", "pure"]];
    for on in both {
        explore_each(&mixes, &PARALLEL_8, |scenario| {
            let mut rules = (*scenario.spec.rules).clone();
            rules.hooks = [HookScope { on, tools: None }].into();
            scenario.spec.rules = Arc::new(rules);
            scenario.crashes = 1;
            scenario.cancel = true;
            scenario.durable_at_once = true;
        });
    }
}
