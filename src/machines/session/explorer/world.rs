//! The surroundings of a session: its journal, the owner of its turn, its callers, its host.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::context::repair_pairing;
use crate::session::{
    RecordedAt, RunAdmission, Session, SessionEffect, SessionRefusal, SessionRunRules,
    StoredSession, TurnBegin, TurnOrigin,
};
use crate::turn::fixtures::{model, rules};
use crate::turn::{CancelReason, CommittedTurn, ModelPlan, ModelPlans, OutputRules, RunRules};
use callsheet_values::config::{ContextPolicy, HistoryForm, Limits, RunOverrides, Share};
use callsheet_values::record::{JournalEntry, Record, RequestKey, Seq, StopMode, TurnEnd};
use callsheet_values::types::{Execution, OutputMode, RunEnd, RunId, ToolCall};

/// The budget of a run. No run uses half of it, unless its scenario has fewer tokens.
const CALLS_MAX: u32 = 100;
const TOKENS_MAX: u64 = 100;

/// The number of times that each input may arrive, and the configuration of the session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Scenario {
    pub(super) starts: u32,
    pub(super) steers: u32,
    pub(super) stops: u32,
    /// A queued input may be taken back so many times.
    pub(super) removals: u32,
    pub(super) crashes: u32,
    pub(super) hibernations: u32,
    pub(super) losses: u32,
    pub(super) failures: u32,
    pub(super) shutdowns: u32,
    /// A run that a shutdown has interrupted may be reopened so many times.
    pub(super) reopens: u32,
    pub(super) closes: u32,
    pub(super) forks: u32,
    /// Only one input may wait.
    pub(super) narrow_queue: bool,
    /// The session is opened with an unanswered call.
    pub(super) initial_call: bool,
    /// Servers offer tools.
    pub(super) servers: bool,
    /// The list of tools may be read again on request.
    pub(super) refreshes: u32,
    /// The window of the model, in tokens; 0 if it is not known. Messages have five to ten tokens.
    pub(super) window: u64,
    /// Clients may ask for a smaller context so many times.
    pub(super) compactions: u32,
    /// Interrupted runs wait for a manual resume.
    pub(super) manual: bool,
    pub(super) max_turns: u32,
    /// The tokens of each run, if they are fewer than usual. A turn has three, and so has a summary.
    pub(super) max_tokens: Option<u64>,
    /// The time of a run may end so many times while it waits before a turn.
    pub(super) timeouts_before_turn: u32,
    /// The answer must match a schema that no answer matches.
    pub(super) unmet_schema: bool,
}

impl Scenario {
    fn max_tokens(&self) -> u64 {
        self.max_tokens.unwrap_or(TOKENS_MAX)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) session: Session,
    pub(super) log: Vec<Record>,
    /// The length of the log before the last action that recorded something.
    pub(super) batch_from: usize,
    /// The turn that was handed out.
    pub(super) turn: Option<HeldTurn>,
    pub(super) has_slot: bool,
    /// The runs whose end was reported.
    pub(super) reported: Vec<RunId>,
    pub(super) refused: BTreeSet<RunId>,
    /// The runs that were accepted, with the positions of their records.
    pub(super) accepted: Vec<(RunId, Seq)>,
    /// A crash or a fork has suspended the session, not only hibernation.
    pub(super) interrupted: bool,
    pub(super) is_crashed: bool,
    /// The list of tools was requested and has not arrived.
    pub(super) reads_tools: bool,
    pub(super) deleted: bool,
    /// The inputs that may still arrive.
    pub(super) left: Scenario,
}

/// A turn in progress, as its owner has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldTurn {
    pub(super) number: u32,
    pub(super) cancel: Option<CancelReason>,
    pub(super) drops_calls: bool,
}

/// The state of a turn, from its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnProgress {
    pub(super) records: usize,
    pub(super) has_response: bool,
    pub(super) open_call: Option<ToolCall>,
    pub(super) awaits_approval: bool,
    pub(super) committed: bool,
}

pub(super) fn record_turn(record: &Record) -> Option<u32> {
    match record {
        Record::AttemptStarted { turn, .. }
        | Record::AttemptFailed { turn, .. }
        | Record::ResponseEnded { turn, .. }
        | Record::TurnHooksDecided { turn, .. }
        | Record::TurnCommitted { turn, .. } => Some(*turn),
        Record::CallIntended { call, .. } => Some(call.key.turn),
        Record::CallEnded { call, .. } => Some(call.key.turn),
        Record::CallReported { key, .. }
        | Record::ApprovalGiven { key, .. }
        | Record::HooksDecided { key, .. } => Some(key.turn),
        Record::ApprovalAsked { request } => Some(request.call.key.turn),
        Record::SessionOpened { .. }
        | Record::SessionForked { .. }
        | Record::InputQueued { .. }
        | Record::InputRemoved { .. }
        | Record::RunStarted { .. }
        | Record::RunReopened { .. }
        | Record::Steered { .. }
        | Record::StopAsked { .. }
        | Record::LimitReached { .. }
        | Record::Instructed { .. }
        | Record::RunEnded { .. }
        | Record::ToolsFrozen { .. }
        | Record::Compacted { .. }
        | Record::SessionClosed => None,
    }
}

/// The values that the rules of a scenario depend on.
type RulesKey = (u32, bool, u64, bool, u64);

/// Returns the rules of all runs of a scenario. Equal rules are made once, because tools are costly to make.
pub(super) fn rules_with(scenario: &Scenario) -> Arc<RunRules> {
    thread_local! {
        static RULES: RefCell<HashMap<RulesKey, Arc<RunRules>>> = RefCell::default();
    }
    let Scenario { max_turns, servers: has_servers, window, unmet_schema, .. } = *scenario;
    let max_tokens = scenario.max_tokens();
    let make = || {
        let max_turns = Some(max_turns);
        let limits = Limits {
            max_turns,
            max_failed_turns: None,
            max_tool_calls_per_run: Some(CALLS_MAX),
            max_tokens_per_run: Some(max_tokens),
            ..Limits::default()
        };
        let history = if window > 0 { HistoryForm::Compact } else { HistoryForm::Full };
        let default = ContextPolicy { history, keep_turns: 1, ..ContextPolicy::default() };
        let policy = match window {
            SUMMARY_WINDOW => {
                let compact_at = Share::of(0.02).unwrap();
                ContextPolicy { compact_at, keep_turns: 0, ..default }
            }
            _ => default,
        };
        let context_window = Some(window).filter(|window| *window > 0);
        let model = ModelPlan { context_window, ..model("m", 3) };
        Arc::new(RunRules {
            limits,
            has_servers,
            output: unmet_schema.then(|| Arc::new(output_rules())),
            context: policy,
            models: Arc::new(ModelPlans::new(model, Vec::new())),
            ..rules(Execution::Sequential)
        })
    };
    RULES.with_borrow_mut(|rules| {
        let key = (max_turns, has_servers, window, unmet_schema, max_tokens);
        Arc::clone(rules.entry(key).or_insert_with(make))
    })
}

/// A window with room for the request for a summary, in tokens.
pub(super) const SUMMARY_WINDOW: u64 = 600;

/// Returns the rules of an answer that no model gives: it is asked for once.
fn output_rules() -> OutputRules {
    OutputRules::new(&serde_json::json!({"type": "object"}), OutputMode::Prompt, 0).unwrap()
}

pub(super) fn entries(log: &[Record]) -> Vec<JournalEntry> {
    let entry = |(record, seq): (&Record, u64)| JournalEntry {
        seq: Seq(seq),
        time: seq,
        displayed_bytes: 0,
        record: record.clone(),
    };
    log.iter().zip(1..).map(entry).collect()
}

pub(super) fn request_key(run: &RunId) -> RequestKey {
    RequestKey { key: format!("key of {run}"), digest: "d".into() }
}

impl World {
    pub(super) fn open(scenario: &Scenario) -> Self {
        let function = serde_json::json!({"name": "pure", "arguments": "{}"});
        let calls = serde_json::json!([{"id": "c", "type": "function", "function": function}]);
        let message = serde_json::json!({"role": "assistant", "content": "", "tool_calls": calls});
        let messages = if scenario.initial_call { vec![message] } else { Vec::new() };
        let mut world = Self {
            session: Session::open(
                "a",
                messages,
                callsheet_values::types::Metadata::default(),
                None,
                None,
            ),
            log: Vec::new(),
            batch_from: 0,
            turn: None,
            has_slot: false,
            reported: Vec::new(),
            refused: BTreeSet::new(),
            accepted: Vec::new(),
            interrupted: false,
            is_crashed: false,
            reads_tools: false,
            deleted: false,
            left: scenario.clone(),
        };
        world.perform();
        world
    }

    pub(super) fn rules(&self) -> Arc<RunRules> {
        rules_with(&self.left)
    }

    pub(super) fn read(&self, upto: usize) -> StoredSession {
        let session_rules = SessionRunRules::from(&*self.rules());
        let session_rules_of = |_: &RunOverrides| session_rules.clone();
        StoredSession::read(&entries(&self.log[..upto]), &session_rules_of).unwrap()
    }

    pub(super) fn progress(&self, number: u32) -> TurnProgress {
        let mut progress = TurnProgress::default();
        for record in self.log.iter().filter(|record| record_turn(record) == Some(number)) {
            progress.records += 1;
            if let Record::ResponseEnded { message, .. } = record {
                progress.has_response = true;
                progress.open_call = message.calls.first().cloned();
            }
            progress.awaits_approval = match record {
                Record::ApprovalAsked { .. } => true,
                Record::ApprovalGiven { .. } | Record::CallEnded { .. } => false,
                _ => progress.awaits_approval,
            };
            if matches!(record, Record::CallEnded { .. }) {
                progress.open_call = None;
            }
            progress.committed |= matches!(record, Record::TurnCommitted { .. });
        }
        progress
    }

    pub(super) fn turn_record(&self, number: u32) -> CommittedTurn {
        let of_turn = self.log.iter().filter(|record| record_turn(record) == Some(number));
        CommittedTurn::from_records(of_turn).unwrap()
    }

    /// Notes the position of the commit of a turn in the running session.
    pub(super) fn note_commit(&mut self, number: u32) {
        self.session.handle_commit_recorded(number, self.commit_position(number));
    }

    /// Returns the position of the record by which a turn was committed.
    pub(super) fn commit_position(&self, number: u32) -> Seq {
        let is_commit = |record: &Record| matches!(record, Record::TurnCommitted { turn, .. } if *turn == number);
        Seq(self.log.iter().position(is_commit).unwrap() as u64 + 1)
    }

    /// Returns the maximum number of inputs that wait.
    pub(super) fn inputs_max(&self) -> usize {
        if self.left.narrow_queue { 1 } else { 3 }
    }

    /// Returns the number of inputs that wait: accepted and not yet in the history.
    pub(super) fn waiting_inputs(&self) -> usize {
        let history = &self.session.history;
        // The input of the run itself waits for the results of initial calls.
        let own = usize::from(history.initial_calls().is_some());
        self.session.queue.len() + history.pending_inputs().saturating_sub(own)
    }

    /// Returns the position of the last fork in the journal; 0 if there is none.
    pub(super) fn forked_at(&self) -> u64 {
        let fork = self.log.iter().rposition(|r| matches!(r, Record::SessionForked { .. }));
        fork.map_or(0, |index| index as u64 + 1)
    }

    /// Returns whether the input of this run was taken back.
    pub(super) fn is_removed(&self, run: &RunId) -> bool {
        self.log.iter().any(|r| matches!(r, Record::InputRemoved { run_id, .. } if run_id == run))
    }

    /// Returns whether a run has ended, and was not reopened since.
    pub(super) fn is_over(log: &[Record], run: &RunId) -> bool {
        let last = log.iter().rfind(|record| {
            matches!(record, Record::RunEnded { run_id, .. } | Record::RunReopened { run_id, .. }
                if run_id == run)
        });
        matches!(last, Some(Record::RunEnded { .. }))
    }

    /// Returns the run that a repeated request reopens: the last one, if it was interrupted, nothing follows it and no
    /// client has asked it to stop.
    pub(super) fn reopenable(&self) -> Option<RunId> {
        let is_idle = self.session.run.is_none() && self.session.queue.is_empty();
        if !is_idle || self.session.shutdown.is_some() || self.is_closing() {
            return None;
        }
        let started = self.log.iter().rposition(|r| matches!(r, Record::RunStarted { .. }))?;
        let of_run = &self.log[started..];
        let ends = of_run.iter().rev().find_map(|record| match record {
            Record::RunEnded { run_id, end, .. } => Some((run_id.clone(), *end)),
            _ => None,
        });
        let stops = of_run.iter().any(|record| matches!(record, Record::StopAsked { .. }));
        let (run, end) = ends?;
        let is_accepted = self.accepted.iter().any(|(id, _)| *id == run);
        (end == RunEnd::Interrupted && !stops && is_accepted).then_some(run)
    }

    /// Returns how the repeated request of an accepted run is answered.
    pub(super) fn admission_again(
        &self,
        run: &RunId,
        seq: Seq,
    ) -> Result<RunAdmission, SessionRefusal> {
        let run_id = run.clone();
        if self.is_removed(run) {
            Err(SessionRefusal::InputRemoved)
        } else if self.reopenable().as_ref() == Some(run) {
            Ok(RunAdmission::Reopen { run_id, seq })
        } else {
            Ok(RunAdmission::Known { run_id, seq })
        }
    }

    /// Returns the recorded outcomes of a turn.
    pub(super) fn results(&self, number: u32) -> Vec<&Record> {
        let is_outcome = |record: &&Record| {
            matches!(record, Record::CallEnded { .. }) && record_turn(record) == Some(number)
        };
        self.log.iter().filter(is_outcome).collect()
    }

    pub(super) fn perform(&mut self) {
        self.perform_at(Duration::ZERO);
    }

    /// Performs the effects of the session at this time of its clock.
    pub(super) fn perform_at(&mut self, now: Duration) {
        let rules = self.rules();
        let rules_of = |_: &RunOverrides| Arc::clone(&rules);
        for step in 0.. {
            assert!(step < 50, "the effects have no end");
            let Some(effect) = self.session.poll(now, &rules_of) else { return };
            assert!(!self.deleted, "{effect:?} after the session was closed");
            match effect {
                SessionEffect::Record(batch) => self.append(batch, &(&*rules).into()),
                // A run may ask for the list while one that a stopped run asked for has not arrived.
                SessionEffect::ReadTools => self.reads_tools = true,
                SessionEffect::RequestSummary(request) => {
                    assert_eq!(repair_pairing(&request.messages).1, 0, "the request is paired");
                    assert!(self.session.waits_for_summary());
                }
                SessionEffect::ContextReduced { .. } => panic!("no request is too large"),
                SessionEffect::BeginTurn(begin) => self.begin_turn(*begin),
                SessionEffect::CancelTurn(reason) => {
                    let turn = self.turn.as_mut().expect("a turn is in progress");
                    turn.cancel.get_or_insert(reason);
                }
                SessionEffect::RunEnded(summary) => {
                    assert!(!self.reported.contains(&summary.run_id), "it is reported once");
                    self.reported.push(summary.run_id);
                    self.turn = None;
                }
                SessionEffect::RunRefused { run_id, .. } => {
                    self.refused.insert(run_id);
                }
                SessionEffect::Close => self.deleted = true,
            }
        }
    }

    fn append(&mut self, batch: Vec<Record>, session_rules: &SessionRunRules) {
        assert!(!batch.is_empty());
        let ends = batch.iter().any(|record| matches!(record, Record::RunEnded { .. }));
        for record in batch {
            let is_queued = matches!(record, Record::InputQueued { .. });
            let may_wait = self.session.shutdown.is_none() && !self.is_closing();
            assert!(!is_queued || may_wait, "an input waits for nothing");
            if matches!(record, Record::RunStarted { .. }) {
                assert!(!self.is_closing(), "no run starts once the session is to close");
                assert!(ends || self.session.shutdown.is_none(), "no run starts during a shutdown");
            }
            self.log.push(record.clone());
            let seq = Seq(self.log.len() as u64);
            let at = RecordedAt { seq, time: seq.0, now: Duration::ZERO };
            self.session.apply(at, &record, &|_| session_rules.clone()).unwrap();
            assert!(self.has_slot || !self.session.holds_slot(), "a run has a slot");
            self.has_slot = self.session.holds_slot();
        }
    }

    fn begin_turn(&mut self, begin: TurnBegin) {
        assert!(self.turn.is_none(), "one turn at a time");
        let TurnBegin { run_id, spec, origin, cancel } = begin;
        let number = spec.number;
        assert_eq!(self.session.run.as_ref().map(|run| &run.id), Some(&run_id));
        let progress = self.progress(number);
        assert!(origin != TurnOrigin::New || progress.records == 0, "turn {number} has begun");
        assert!(!progress.committed, "turn {number} is over");
        let started = self.log.iter().rposition(|r| matches!(r, Record::RunStarted { .. }));
        let of_run = &self.log[started.unwrap()..];
        let stopped =
            of_run.contains(&Record::StopAsked { mode: StopMode::Now, authored_by: None });
        assert!(!stopped || cancel.is_some(), "a stopped run begins no turn");
        // A turn that was interrupted before the run was reopened takes place again.
        let is_commit = |record: &Record| match record {
            Record::TurnCommitted { end, .. } => !matches!(end, TurnEnd::Cancelled(_)),
            _ => false,
        };
        let first = !of_run.iter().any(is_commit);
        let stops = self.session.run.as_ref().is_some_and(|run| run.stops_after_turn);
        assert!(origin != TurnOrigin::New || first || !stops || self.is_crashed, "it stops");
        let is_out_of_turns = of_run.iter().any(|record| {
            matches!(record, Record::LimitReached { action, .. } if action == "final_answer")
        });
        let mut steps = of_run
            .iter()
            .rev()
            .filter(|record| matches!(record, Record::Instructed { .. }) || is_commit(record));
        let is_instructed = matches!(steps.next(), Some(Record::Instructed { .. }));
        let drops_calls = spec.request_kind.drops_calls();
        assert_eq!(drops_calls, is_out_of_turns || is_instructed, "the request for a final answer");
        let (calls, tokens) = of_run.iter().fold((0, 0), |(calls, tokens), record| match record {
            Record::TurnCommitted { turn, summary, .. } => {
                let is_initial = self.left.initial_call && *turn == 1;
                let own = if is_initial { 0 } else { self.results(*turn).len() };
                (calls + own, tokens + summary.usage.total())
            }
            Record::Compacted { usage, .. } | Record::LimitReached { usage, .. } => {
                (calls, tokens + usage.total())
            }
            _ => (calls, tokens),
        });
        assert_eq!(spec.budget.calls_left, Some(CALLS_MAX - calls as u32), "the calls left");
        let left = self.left.max_tokens().saturating_sub(tokens);
        assert_eq!(spec.budget.tokens_left, Some(left), "the tokens left");
        assert!(left > 0 || cancel.is_some(), "a turn begins without tokens");
        assert_eq!(spec.variables, self.session.variables);
        let since_commit = self.log.iter().rev().take_while(|record| {
            !matches!(record, Record::TurnCommitted { .. } | Record::RunStarted { .. })
        });
        let steered =
            since_commit.filter(|record| matches!(record, Record::Steered { .. })).count();
        let history = &self.session.history;
        // The input of the run itself waits for the results of initial calls.
        let waiting = history.pending_inputs() - usize::from(history.initial_calls().is_some());
        assert!(waiting <= steered, "a steered input is not part of the next request");
        self.turn = Some(HeldTurn { number, cancel, drops_calls });
        if progress.awaits_approval {
            self.session.handle_resting(Duration::ZERO, true);
        }
    }
}
