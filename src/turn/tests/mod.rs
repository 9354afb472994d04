//! The rules of a turn, one by one. The order of things is the explorer's business.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

mod budgets;
mod caps;
mod corners;
mod differential;
mod endings;
mod fallbacks;
mod meetings;
mod messages;
mod people;
mod rules;
mod variables;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::fixtures::{call, entries, finish, more, rules, spec, text};
use super::{
    CancelReason, Effect, PermitReply, ToolCompletion, Turn, TurnAction, TurnEnd, TurnRecord,
    TurnRules, TurnSpec,
};
use crate::config::OnExcess;
use crate::context::Variables;
use crate::event::Event;
use crate::record::{Record, StopMode};
use crate::response::ExchangeEnd;
use crate::types::{
    CallKey, Execution, FailureKind, FinishKind, ProviderError, ProviderErrorKind, ToolOutcome,
    ToolStatus, VariablesUse, WriteSet,
};
use crate::wire::{CallDelta, Delta};

/// A turn whose records are durable at once, and what it asked for.
struct Driver {
    turn: Turn,
    now: Duration,
    records: u64,
    log: Log,
    started: Vec<String>,
    /// What the calls that started could see, in the same order.
    snapshots: Vec<Variables>,
    aborted: Vec<u32>,
    permits_requested: Vec<u32>,
    permits_released: Vec<u32>,
    requests: Vec<(u32, bool)>,
    disconnects: u32,
    events: Vec<Event>,
    commit: Option<TurnRecord>,
}

/// What a turn has asked to be recorded. Whatever the turn has gone through is explained by that.
struct Log {
    spec: TurnSpec,
    records: Vec<Record>,
    /// True if it is replayed.
    is_replayed: bool,
}

impl std::ops::Deref for Log {
    type Target = Vec<Record>;

    fn deref(&self) -> &Vec<Record> {
        &self.records
    }
}

impl std::ops::DerefMut for Log {
    fn deref_mut(&mut self) -> &mut Vec<Record> {
        &mut self.records
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if self.is_replayed && !std::thread::panicking() {
            super::replay::check(&self.spec, &self.records);
        }
    }
}

impl Driver {
    fn new(spec: TurnSpec) -> Self {
        let mut driver = Self {
            log: Log { spec: spec.clone(), records: Vec::new(), is_replayed: true },
            turn: Turn::new(spec),
            now: Duration::ZERO,
            records: 0,
            started: Vec::new(),
            snapshots: Vec::new(),
            aborted: Vec::new(),
            permits_requested: Vec::new(),
            permits_released: Vec::new(),
            requests: Vec::new(),
            disconnects: 0,
            events: Vec::new(),
            commit: None,
        };
        driver.pump();
        driver
    }

    fn with(rules: TurnRules) -> Self {
        Self::new(spec(rules))
    }

    fn pump(&mut self) {
        loop {
            let before = self.records;
            while let Some(effect) = self.turn.poll() {
                match effect {
                    Effect::Record(record) => {
                        self.records += 1;
                        self.log.push(record);
                    }
                    Effect::Emit(event) => self.events.push(event),
                    Effect::Perform(action) => self.perform(action),
                }
            }
            if self.records == before {
                return;
            }
            self.turn.handle_recorded(self.now, self.records);
        }
    }

    fn perform(&mut self, action: TurnAction) {
        match action {
            TurnAction::Request(plan) => self.requests.push((plan.attempt, plan.streamed)),
            TurnAction::Disconnect => self.disconnects += 1,
            TurnAction::Start(start) => {
                self.snapshots.push(start.variables);
                self.started.push(format!("{}#{}", start.call.name, start.call.key.index));
            }
            TurnAction::RequestToolPermit { key, .. } => self.permits_requested.push(key.index),
            TurnAction::ReleaseToolPermit(key) => self.permits_released.push(key.index),
            TurnAction::Abort(key) => self.aborted.push(key.index),
            TurnAction::Commit(record) => self.commit = Some(*record),
        }
    }

    #[track_caller]
    fn ended(&self, end: &TurnEnd) {
        assert_eq!(&self.commit.as_ref().expect("the turn is over").end, end);
    }

    fn deltas(&mut self, deltas: impl IntoIterator<Item = Delta>) -> &mut Self {
        self.turn.handle_deltas(self.now, deltas.into_iter().collect());
        self.pump();
        self
    }

    fn close(&mut self) -> &mut Self {
        self.turn.handle_response_end(self.now, ExchangeEnd::Closed);
        self.pump();
        self
    }

    fn well(&mut self) -> &mut Self {
        self.deltas([finish(FinishKind::ToolCalls)]).close()
    }

    fn broken(&mut self) -> &mut Self {
        let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
        self.turn.handle_response_end(self.now, ExchangeEnd::Failed(error));
        self.pump();
        self
    }

    fn done(&mut self, index: u32, content: &str) -> &mut Self {
        self.outcome(index, ToolOutcome::ok(content))
    }

    fn place(&mut self, index: u32, place: PermitReply) -> &mut Self {
        self.turn.handle_tool_permit(self.now, self.key(index), place);
        self.pump();
        self
    }

    fn outcome(&mut self, index: u32, outcome: ToolOutcome) -> &mut Self {
        self.report(index, outcome, VariablesUse::default())
    }

    fn report(&mut self, index: u32, outcome: ToolOutcome, used: VariablesUse) -> &mut Self {
        self.turn.handle_outcome(self.now, self.key(index), ToolCompletion { outcome, used });
        self.pump();
        self
    }

    /// A call ends well that has read the variable `x`, or writes it.
    fn used(&mut self, index: u32, content: &str, writes: bool) -> &mut Self {
        let mut used = VariablesUse::default();
        if writes {
            used.writes = WriteSet([("x".into(), Arc::new(index.into()))].into());
        } else {
            used.reads.insert("x".into());
        }
        self.report(index, ToolOutcome::ok(content), used)
    }

    fn key(&self, index: u32) -> CallKey {
        CallKey { turn: 1, attempt: self.turn.attempt(), index }
    }

    /// Goes on from what the journal holds after a crash.
    fn crash(&mut self, records_kept: usize) -> &mut Self {
        self.log.truncate(records_kept);
        let spec = self.turn.spec.as_ref().clone();
        self.turn = resumed(spec, &self.log);
        self.records = 0;
        self.started.clear();
        self.commit = None;
        self.pump();
        self
    }

    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    fn cancel(&mut self) -> &mut Self {
        self.turn.handle_cancel(self.now, CancelReason::Stop);
        self.pump();
        self
    }

    #[track_caller]
    fn started(&mut self, expected: &[&str]) -> &mut Self {
        assert_eq!(self.started, expected);
        self
    }

    /// `name status kind content` of each result, in call order.
    #[track_caller]
    fn results(&self, expected: &[(&str, ToolStatus, Option<FailureKind>, &str)]) {
        let record = self.commit.as_ref().expect("the turn is over");
        let seen: Vec<_> = record
            .results
            .iter()
            .map(|result| {
                let outcome = &result.outcome;
                (&*result.call.name, outcome.status, outcome.kind, &*outcome.content)
            })
            .collect();
        assert_eq!(seen, expected);
    }

    fn limits(&self) -> Vec<(String, u64, u64, String)> {
        let limits = self.events.iter().filter_map(|event| match event {
            Event::LimitReached { limit, value, maximum, action } => {
                Some((limit.clone(), *value, *maximum, action.clone()))
            }
            _ => None,
        });
        limits.collect()
    }
}

/// A turn that goes on from its records in the moment in which they were appended.
fn resumed(spec: TurnSpec, log: &[Record]) -> Turn {
    let log: Vec<_> = log.iter().map(|record| (record.clone(), 0)).collect();
    Turn::resume(spec, &entries(0, &log), 0, None)
}

/// A call of the turn's first attempt.
fn key(index: u32) -> CallKey {
    CallKey { turn: 1, attempt: 1, index }
}

const PARALLEL: Execution = Execution::Parallel { max: 8 };
const OK: ToolStatus = ToolStatus::Ok;
const FAILED: ToolStatus = ToolStatus::Failed;
const CANCELLED: ToolStatus = ToolStatus::Cancelled;
const NOT_STARTED: Option<FailureKind> = Some(FailureKind::NotStarted);
