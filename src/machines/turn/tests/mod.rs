//! Tests of the rules of a turn, one by one. The explorer tests the order of inputs.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

mod approvals;
mod budgets;
mod calls;
mod client_calls;
mod differential;
mod edge_cases;
mod fallbacks;
mod hooks;
mod interactions;
mod people_wait;
mod questions;
mod references;
mod repeated_decisions;
mod response_content;
mod response_end;
mod search;
mod started_calls;
mod tool_permits;
mod variables;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::fixtures::{call, entries, finish, more, rules, spec, text};
use super::{
    CancelReason, CommittedTurn, Effect, HookRequest, PermitReply, RunRules, ToolCompletion, Turn,
    TurnAction, TurnEnd, TurnSpec,
};
use crate::context::Variables;
use callsheet_values::config::OnExcess;
use callsheet_values::event::Event;
use callsheet_values::record::{EventProjector, JournalEntry, Record, Seq, StopMode, with_call};
use callsheet_values::types::{
    Answer, CallKey, Execution, FailureKind, FinishKind, HookDecision, ProviderError,
    ProviderErrorKind, Reference, SessionId, ToolOutcome, ToolStatus, VariablesUse, WriteSet,
};
use callsheet_wire::response::ExchangeEnd;
use callsheet_wire::{CallDelta, Delta};

/// Drives a turn whose records are durable at once, and collects its effects.
struct Driver {
    turn: Turn,
    now: Duration,
    records: u64,
    log: Log,
    started: Vec<String>,
    /// The arguments of the started calls, in the same order.
    started_arguments: Vec<Arc<serde_json::Value>>,
    /// The references whose values calls wait for.
    references_requested: Vec<(u32, BTreeSet<Reference>)>,
    hooks_asked: Vec<HookRequest>,
    hooks_withdrawn: Vec<u32>,
    request_changes: Vec<Arc<HookDecision>>,
    /// The snapshots of the started calls, in the same order.
    snapshots: Vec<Variables>,
    aborted: Vec<u32>,
    permits_requested: Vec<u32>,
    permits_released: Vec<u32>,
    requests: Vec<(u32, bool)>,
    disconnects: u32,
    reductions: u32,
    set_aside: Vec<String>,
    answers: Vec<(u32, u32, Answer)>,
    events: Vec<Event>,
    projector: EventProjector,
    displayed_bytes: u64,
    commit: Option<CommittedTurn>,
}

/// The records of a turn. Replays them when it is dropped: the replay must make the same records.
struct Log {
    spec: TurnSpec,
    records: Vec<Record>,
    /// The records of the session before those of the turn.
    before: Vec<Record>,
    /// True if the records are replayed.
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
            super::replay::check(&self.spec, &self.before, &self.records);
        }
    }
}

impl Driver {
    fn new(spec: TurnSpec) -> Self {
        let mut driver = Self {
            log: Log {
                spec: spec.clone(),
                records: Vec::new(),
                before: Vec::new(),
                is_replayed: true,
            },
            turn: Turn::new(spec),
            now: Duration::ZERO,
            records: 0,
            started: Vec::new(),
            started_arguments: Vec::new(),
            references_requested: Vec::new(),
            hooks_asked: Vec::new(),
            hooks_withdrawn: Vec::new(),
            request_changes: Vec::new(),
            snapshots: Vec::new(),
            aborted: Vec::new(),
            permits_requested: Vec::new(),
            permits_released: Vec::new(),
            requests: Vec::new(),
            disconnects: 0,
            reductions: 0,
            set_aside: Vec::new(),
            answers: Vec::new(),
            events: Vec::new(),
            projector: EventProjector::new(SessionId::parse("s").unwrap(), "default", 0),
            displayed_bytes: 0,
            commit: None,
        };
        driver.perform_effects();
        driver
    }

    fn with(rules: RunRules) -> Self {
        Self::new(spec(rules))
    }

    fn perform_effects(&mut self) {
        loop {
            let before = self.records;
            while let Some(effect) = self.turn.poll() {
                match effect {
                    Effect::Record(record) => {
                        self.records += 1;
                        self.project(&record);
                        self.log.push(record);
                    }
                    Effect::Emit(event) => {
                        self.displayed_bytes = event.displayed_bytes_after(self.displayed_bytes);
                        self.events.push(event);
                    }
                    Effect::Perform(action) => self.perform(action),
                }
            }
            if self.records == before {
                return;
            }
            self.turn.handle_recorded(self.now, self.records);
        }
    }

    /// Adds the events that show a record.
    fn project(&mut self, record: &Record) {
        let displayed_bytes = self.displayed_bytes;
        let entry = JournalEntry { seq: Seq(1), time: 0, displayed_bytes, record: record.clone() };
        self.projector.project(&entry, |mut published| {
            if let Event::CallEnded { result, .. } = &published.event
                && let Some(call) = self.turn.recorded_call(result.call.key)
            {
                with_call(&mut published.event, call);
            }
            self.displayed_bytes = published.event.displayed_bytes_after(self.displayed_bytes);
            self.events.push(published.event);
        });
    }

    fn perform(&mut self, action: TurnAction) {
        match action {
            TurnAction::Request(plan) => self.requests.push((plan.attempt, plan.streamed)),
            TurnAction::ReduceContext(_) => self.reductions += 1,
            TurnAction::SetToolsAside { tools, .. } => self.set_aside.extend(tools),
            TurnAction::Disconnect => self.disconnects += 1,
            TurnAction::Start(start) => {
                self.snapshots.push(start.variables);
                self.started_arguments.push(start.call.arguments);
                self.started.push(format!("{}#{}", start.call.name, start.call.key.index));
            }
            TurnAction::ReadReferences { key, references, .. } => {
                self.references_requested.push((key.index, references));
            }
            TurnAction::AskHooks(request) => self.hooks_asked.push(*request),
            TurnAction::WithdrawHooks(key) => {
                self.hooks_withdrawn.extend(key.map(|key| key.index));
            }
            TurnAction::ChangeRequest(decision) => self.request_changes.push(decision),
            TurnAction::RequestToolPermit { key, .. } => self.permits_requested.push(key.index),
            TurnAction::ReleaseToolPermit(key) => self.permits_released.push(key.index),
            TurnAction::Answer { key, number, answer } => {
                self.answers.push((key.index, number, answer));
            }
            TurnAction::Abort(key) => self.aborted.push(key.index),
            TurnAction::Commit(record) => self.commit = Some(*record),
        }
    }

    #[track_caller]
    fn assert_end(&self, end: &TurnEnd) {
        assert_eq!(&self.commit.as_ref().expect("the turn is over").end, end);
    }

    fn receive(&mut self, deltas: impl IntoIterator<Item = Delta>) -> &mut Self {
        self.turn.handle_deltas(self.now, deltas.into_iter().collect());
        self.perform_effects();
        self
    }

    fn close_stream(&mut self) -> &mut Self {
        self.turn.handle_response_end(self.now, ExchangeEnd::Closed);
        self.perform_effects();
        self
    }

    fn end_well(&mut self) -> &mut Self {
        self.receive([finish(FinishKind::ToolCalls)]).close_stream()
    }

    fn break_off(&mut self) -> &mut Self {
        let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
        self.turn.handle_response_end(self.now, ExchangeEnd::Failed(error));
        self.perform_effects();
        self
    }

    fn finish_call(&mut self, index: u32, content: &str) -> &mut Self {
        self.finish_call_with(index, ToolOutcome::ok(content))
    }

    fn answer_permit(&mut self, index: u32, reply: PermitReply) -> &mut Self {
        self.turn.handle_tool_permit(self.now, self.key(index), reply);
        self.perform_effects();
        self
    }

    fn finish_call_with(&mut self, index: u32, outcome: ToolOutcome) -> &mut Self {
        self.finish_call_using(index, outcome, VariablesUse::default())
    }

    fn finish_call_using(
        &mut self,
        index: u32,
        outcome: ToolOutcome,
        used: VariablesUse,
    ) -> &mut Self {
        self.turn.handle_outcome(
            self.now,
            self.key(index),
            ToolCompletion { outcome, variables: used },
        );
        self.perform_effects();
        self
    }

    /// Ends a call that has read the variable `x`, or that writes it.
    fn finish_call_using_x(&mut self, index: u32, content: &str, writes: bool) -> &mut Self {
        let mut used = VariablesUse::default();
        if writes {
            used.writes = WriteSet([("x".into(), Arc::new(index.into()))].into());
        } else {
            used.reads.insert("x".into());
        }
        self.finish_call_using(index, ToolOutcome::ok(content), used)
    }

    fn key(&self, index: u32) -> CallKey {
        CallKey { turn: 1, attempt: self.turn.attempt(), index }
    }

    /// Resumes the turn from its first `records_kept` records, as after a crash.
    fn crash(&mut self, records_kept: usize) -> &mut Self {
        self.log.truncate(records_kept);
        let spec = self.turn.spec.as_ref().clone();
        self.turn = resumed(spec, &self.log);
        self.records = 0;
        self.started.clear();
        self.commit = None;
        self.perform_effects();
        self
    }

    fn count_events(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    fn cancel(&mut self) -> &mut Self {
        self.turn.handle_cancel(self.now, CancelReason::Stop);
        self.perform_effects();
        self
    }

    #[track_caller]
    fn assert_started(&mut self, expected: &[&str]) -> &mut Self {
        assert_eq!(self.started, expected);
        self
    }

    /// Compares name, status, kind and content of each result, in call order.
    #[track_caller]
    fn assert_results(&self, expected: &[(&str, ToolStatus, Option<FailureKind>, &str)]) {
        let record = self.commit.as_ref().expect("the turn is over");
        let actual: Vec<_> = record
            .results
            .iter()
            .map(|result| {
                let outcome = &result.outcome;
                (&*result.call.name, outcome.status, outcome.kind, &*outcome.content)
            })
            .collect();
        assert_eq!(actual, expected);
    }

    fn reached_limits(&self) -> Vec<(String, u64, u64, String)> {
        let limits = self.events.iter().filter_map(|event| match event {
            Event::LimitReached { limit, value, maximum, action, reason: _ } => {
                Some((limit.clone(), *value, *maximum, action.clone()))
            }
            _ => None,
        });
        limits.collect()
    }
}

/// Resumes a turn from its records without a delay.
fn resumed(spec: TurnSpec, log: &[Record]) -> Turn {
    let log: Vec<_> = log.iter().map(|record| (record.clone(), 0)).collect();
    Turn::resume(spec, &entries(0, &log), 0, None)
}

/// Returns the key of a call of the first attempt.
fn key(index: u32) -> CallKey {
    CallKey { turn: 1, attempt: 1, index }
}

const PARALLEL: Execution = Execution::Parallel { max: 8 };
const OK: ToolStatus = ToolStatus::Ok;
const FAILED: ToolStatus = ToolStatus::Failed;
const CANCELLED: ToolStatus = ToolStatus::Cancelled;
const NOT_STARTED: Option<FailureKind> = Some(FailureKind::NotStarted);
