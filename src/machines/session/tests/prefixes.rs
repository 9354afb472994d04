//! Recorded sessions that are cut after every record: each prefix wakes, runs to its end, and
//! leaves the messages of the session that was not cut. A run that is read from the records equals
//! the one that was observed, and a replay of the records makes the same ones.
//!
//! The machines of the session and of its turns are the real ones. Users repeat their requests
//! with the same idempotency keys after a cut, the model answers each turn with the same response.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::session::{
    InputLimits, PastRun, RecordedAt, RunAdmission, RunSpec, Session, SessionEffect,
    SessionRunRules, StoredSession, TurnBegin, TurnOrigin, past_run, replay,
};
use crate::turn::fixtures::{call, entries, finish, rules, text, usage};
use crate::turn::{
    ApprovalDecision, Effect, OutputRules, RunRules, ToolCompletion, Turn, TurnAction, TurnSpec,
};
use callsheet_values::config::{Limits, OnShutdown, RunOverrides};
use callsheet_values::message::MessageList;
use callsheet_values::record::{JournalEntry, Record, RequestKey, Seq, StopMode};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, Execution, FinishKind, OutputMode, RequestKind, RunEnd, RunError,
    RunId, SessionId, ToolCall, ToolOutcome, ToolResult, Usage, VariablesUse, WriteSet,
};
use callsheet_wire::Delta;
use callsheet_wire::response::ExchangeEnd;

/// The inputs of a session besides its two runs.
#[derive(Clone, Copy, Debug, Default)]
struct Script {
    /// The session is opened with a call that has no result.
    initial_call: bool,
    /// A user steers the first turn.
    steer: bool,
    /// A user stops the first run after this turn.
    stop_after_turn: Option<u32>,
    /// The first run may take this number of turns.
    max_turns: Option<u32>,
    is_parallel: bool,
    /// Servers offer tools.
    servers: bool,
    /// Responses arrive in two parts, calls start before their end, and the tools answer one by
    /// one, the last started one first.
    is_slow: bool,
    /// The answers must be objects, and go into a variable.
    output: Option<OutputMode>,
}

/// A session with its users, its model and its tools.
struct Life {
    script: Script,
    session: Session,
    /// The number of runs that the users ask for.
    requests_max: usize,
    log: Vec<JournalEntry>,
    turn: Option<LiveTurn>,
    /// The list of the servers' tools was requested.
    reads_tools: bool,
    /// The runs that ended in this life.
    ended: Vec<PastRun>,
    /// The calls of the current run that were committed in this life.
    calls: Vec<(Usage, ToolResult)>,
}

struct LiveTurn {
    machine: Turn,
    /// The number of records that were appended for the machine.
    recorded: u64,
    /// The rest of the response.
    rest: Vec<Delta>,
    /// The tools that have not answered.
    running: Vec<(CallKey, ToolCompletion)>,
}

fn session_rules(script: Script) -> SessionRunRules {
    SessionRunRules { output: output_rules(script), ..limits(script.max_turns).into() }
}

fn output_rules(script: Script) -> Option<Arc<OutputRules>> {
    let rules = |mode| OutputRules::new(&json!({"type": "object"}), mode, 1).unwrap();
    script.output.map(rules).map(Arc::new)
}

fn limits(max_turns: Option<u32>) -> Limits {
    Limits { max_turns, repeat_limit: Some(2), ..Limits::default() }
}

/// Returns the response of the model in a turn.
fn response(spec: &TurnSpec, is_slow: bool) -> Vec<Delta> {
    let names: &[&str] = match spec.number {
        _ if spec.request_kind == RequestKind::Output(OutputMode::Tool) => match spec.number % 2 {
            0 => &["pure", "final_answer"],
            _ => &[],
        },
        _ if spec.request_kind.drops_calls() => &[],
        1 if is_slow => &["pure", "seal", "put", "eager", "effect"],
        2 if is_slow => &["effect", "asked", "both", "idempotent"],
        1 | 6 => &["pure", "idempotent", "pure"],
        2 => &["put", "effect", "put"],
        3 => &["asked", "reviewed_pure", "both"],
        4 => return vec![text("wait"), usage(10), finish(FinishKind::Pause)],
        5 => return vec![usage(10), finish(FinishKind::Stop)],
        _ => &[],
    };
    let is_object = spec.request_kind.drops_calls() && spec.number.is_multiple_of(2);
    let words = format!("turn {}", spec.number);
    let words = if is_object && spec.rules.output.is_some() { "{}" } else { &words };
    let mut deltas = vec![text(words)];
    for (index, name) in (0..).zip(names) {
        deltas.push(call(index, name, &format!("{{\"n\":{}}}", spec.number * 10)));
    }
    let kind = if names.is_empty() { FinishKind::Stop } else { FinishKind::ToolCalls };
    deltas.extend([usage(10), finish(kind)]);
    deltas
}

fn completion(call: &ToolCall) -> ToolCompletion {
    let mut used = VariablesUse::default();
    if &*call.name == "put" {
        used.writes = WriteSet([("x".into(), Arc::clone(&call.arguments))].into());
    }
    ToolCompletion { outcome: ToolOutcome::ok(format!("{} done", call.name)), variables: used }
}

impl Life {
    fn open(script: Script) -> Self {
        let function = json!({"name": "pure", "arguments": "{}"});
        let calls = json!([{"id": "c", "type": "function", "function": function}]);
        let message = json!({"role": "assistant", "content": "", "tool_calls": calls});
        let messages = if script.initial_call { vec![message] } else { Vec::new() };
        Self::new(
            script,
            Session::open("a", messages, callsheet_values::types::Metadata::default(), None, None),
            Vec::new(),
        )
    }

    /// Wakes the session from the first records of a journal.
    fn wake(script: Script, log: &[JournalEntry]) -> Self {
        let stored = StoredSession::read(log, &move |_| session_rules(script)).unwrap();
        let mut life = Self::new(script, stored.session, log.to_vec());
        life.session.handle_wake(Duration::ZERO, false);
        life
    }

    fn new(script: Script, session: Session, log: Vec<JournalEntry>) -> Self {
        Self {
            script,
            session,
            requests_max: 2,
            log,
            turn: None,
            reads_tools: false,
            ended: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn rules(&self) -> Arc<RunRules> {
        let limits = limits(self.script.max_turns);
        let execution = match self.script.is_parallel {
            true => Execution::Parallel { max: 2 },
            false => Execution::Sequential,
        };
        let has_servers = self.script.servers;
        let output = output_rules(self.script);
        Arc::new(RunRules { limits, has_servers, output, ..rules(execution) })
    }

    /// Lives until nothing is left to do.
    fn run(mut self) -> Self {
        for step in 0.. {
            assert!(step < 1000, "the session has no end: {:?}", self.session);
            let is_busy = self.perform() | self.request() | self.read_tools() | self.advance_turn();
            if !is_busy {
                break;
            }
        }
        assert!(self.session.run().is_none() && self.session.queue().len() == 0);
        self
    }

    /// Lives for so many steps, and then until its host has shut down. Returns the records if its last run was
    /// interrupted.
    fn interrupted_after(mut self, steps: usize, now: bool) -> Option<Vec<JournalEntry>> {
        for _ in 0..steps {
            let _ = self.perform() || self.request() || self.read_tools() || self.advance_turn();
        }
        self.session.run()?;
        self.session.handle_shutdown(OnShutdown::Interrupt, now);
        self.reads_tools = false;
        let log = self.run().log;
        let last = log.last().map(|entry| &entry.record);
        matches!(last, Some(Record::RunEnded { end: RunEnd::Interrupted, .. })).then_some(log)
    }

    fn append(&mut self, record: Record) {
        let entry = entries(self.log.len() as u64, &[(record, 0)]).remove(0);
        self.log.push(entry);
    }

    /// Performs the effects of the session. Returns false if there are none.
    fn perform(&mut self) -> bool {
        let (rules, script) = (self.rules(), self.script);
        let rules_of = |_: &RunOverrides| Arc::clone(&rules);
        let mut is_busy = false;
        while let Some(effect) = self.session.poll(Duration::ZERO, &rules_of) {
            is_busy = true;
            match effect {
                SessionEffect::Record(batch) => {
                    for made in batch {
                        self.append(made.clone());
                        let seq = Seq(self.log.len() as u64);
                        let at = RecordedAt { seq, time: 0, now: Duration::ZERO };
                        self.session.apply(at, &made, &|_| session_rules(script)).unwrap();
                    }
                }
                SessionEffect::BeginTurn(begin) => self.begin_turn(*begin),
                SessionEffect::RunEnded(summary) => self.ended.push(PastRun {
                    id: summary.run_id,
                    seq: Seq(self.log.len() as u64),
                    end: summary.end,
                    text: summary.text,
                    output: summary.output,
                    started_at: summary.began,
                    ended_at: 0,
                    error: summary.error,
                    finish_reason: summary.finish_reason.clone(),
                    stats: (&summary.stats).into(),
                    calls: std::mem::take(&mut self.calls),
                    first_message: summary.first_message,
                    messages: self.session.history().messages().clone(),
                }),
                SessionEffect::ReadTools => self.reads_tools = true,
                SessionEffect::RequestSummary(_) | SessionEffect::ContextReduced { .. } => {
                    panic!("the window of the script's model is not known")
                }
                SessionEffect::CancelTurn(_)
                | SessionEffect::RunRefused { .. }
                | SessionEffect::Close => {}
            }
        }
        is_busy
    }

    fn begin_turn(&mut self, begin: TurnBegin) {
        let spec = TurnSpec { seed: 1, ..begin.spec };
        let machine = match begin.origin {
            TurnOrigin::New => {
                let mut machine = Turn::new(spec);
                let cancel = begin.cancel.into_iter();
                cancel.for_each(|reason| machine.handle_cancel(Duration::ZERO, reason));
                machine
            }
            TurnOrigin::Recorded | TurnOrigin::Stored => {
                let script = self.script;
                let stored =
                    StoredSession::read(&self.log, &move |_| session_rules(script)).unwrap();
                Turn::resume(spec, &stored.turn_entries, 0, begin.cancel)
            }
        };
        let (rest, running) = (Vec::new(), Vec::new());
        self.turn = Some(LiveTurn { machine, recorded: 0, rest, running });
    }

    /// Gives the session the list of the servers' tools. Returns false if it was not requested.
    fn read_tools(&mut self) -> bool {
        let reads = std::mem::take(&mut self.reads_tools);
        if reads {
            assert!(self.session.handle_tools_read("list".into()));
        }
        reads
    }

    /// Sends the requests that the users have not sent yet. Returns false if there are none.
    fn request(&mut self) -> bool {
        let before = self.log.len();
        let runs = [("first", true), ("second", self.session.turn() > 0)];
        for (name, is_due) in runs.into_iter().take(self.requests_max) {
            let request = Some(RequestKey { key: name.into(), digest: "d".into() });
            let input = name.into();
            let admission = self.session.admit_run(&input, request.as_ref(), true).unwrap();
            if let RunAdmission::Reopen { run_id, .. } = &admission {
                self.session.handle_reopen(run_id.clone(), None);
                self.perform();
            }
            let is_new = matches!(admission, RunAdmission::Start | RunAdmission::Queue);
            if !is_due || !is_new {
                continue;
            }
            let (run_id, overrides) = (RunId(name.into()), Arc::default());
            let metadata = callsheet_values::types::Metadata::default();
            let into = self.script.output.map(|_| "answer".into());
            let author = None;
            let run = RunSpec { run_id, input, overrides, trace: None, metadata, into, author };
            let rules = self.rules();
            self.session
                .handle_run_request(run, request, InputLimits::inputs(9), &|_| Arc::clone(&rules))
                .unwrap();
            self.perform();
        }
        let is_first = self.session.run().is_some_and(|run| &*run.id.0 == "first");
        if self.turn.is_some() && is_first && self.session.turn() == 1 && self.script.steer {
            let request = Some(RequestKey { key: "steer".into(), digest: "d".into() });
            self.session
                .handle_steer("by the way".into(), request, None, InputLimits::inputs(9))
                .unwrap();
        }
        // A turn that has begun and has no record yet does not survive a cut.
        let last = self.log.iter().rev().find_map(|entry| match entry.record {
            Record::AttemptStarted { turn, .. } => Some(turn),
            _ => None,
        });
        if self.turn.is_some() && last.is_some() && last == self.script.stop_after_turn {
            self.session.handle_stop(StopMode::AfterTurn, None);
        }
        self.perform();
        self.log.len() > before
    }

    /// Performs the effects of the current turn. Returns false if no turn is in progress.
    fn advance_turn(&mut self) -> bool {
        let Some(mut turn) = self.turn.take() else { return false };
        let spec_number = turn.machine.number();
        let (now, mut batch, mut committed) = (Duration::ZERO, Vec::new(), None);
        while let Some(effect) = turn.machine.poll() {
            match effect {
                Effect::Record(record) => batch.push(record),
                Effect::Emit(_) => {}
                Effect::Perform(action) => match action {
                    TurnAction::Request(_) => {
                        let rules = self.rules();
                        let of_run = |_: &RunOverrides| Arc::clone(&rules);
                        let spec = self.session.current_turn_spec(now, &of_run).unwrap();
                        assert_eq!(spec.number, spec_number);
                        let mut deltas = response(&spec, self.script.is_slow);
                        if self.script.is_slow {
                            turn.rest = deltas.split_off(deltas.len() - 2);
                        }
                        turn.machine.handle_deltas(now, deltas);
                        if turn.rest.is_empty() {
                            turn.machine.handle_response_end(now, ExchangeEnd::Closed);
                        }
                    }
                    TurnAction::Start(start) => {
                        let (key, done) = (start.call.key, completion(&start.call));
                        match self.script.is_slow {
                            true => turn.running.push((key, done)),
                            false => turn.machine.handle_outcome(now, key, done),
                        }
                    }
                    TurnAction::Commit(record) => committed = Some(record),
                    TurnAction::Disconnect | TurnAction::Abort(_) => {}
                    TurnAction::Answer { .. } => panic!("no tool of the script asks"),
                    TurnAction::ReduceContext(_)
                    | TurnAction::RequestToolPermit { .. }
                    | TurnAction::ReleaseToolPermit(_)
                    | TurnAction::ReadReferences { .. }
                    | TurnAction::AskHooks(_)
                    | TurnAction::ChangeRequest(_)
                    | TurnAction::SetToolsAside { .. }
                    | TurnAction::WithdrawHooks(_) => {
                        panic!("no call of the script needs a permit, has references or hooks")
                    }
                },
            }
        }
        turn.recorded += batch.len() as u64;
        let is_idle = batch.is_empty();
        batch.into_iter().for_each(|record| self.append(record));
        if let Some(record) = committed {
            assert!(self.session.handle_turn_committed(&record));
            self.session.handle_commit_recorded(record.number, self.log.last().unwrap().seq);
            let usage = record.usage;
            self.calls.extend(record.results.into_iter().map(|result| (usage, result)));
            return true;
        }
        turn.machine.handle_recorded(now, turn.recorded);
        if !is_idle {
        } else if !turn.rest.is_empty() && turn.running.len() < 2 {
            turn.machine.handle_deltas(now, std::mem::take(&mut turn.rest));
            turn.machine.handle_response_end(now, ExchangeEnd::Closed);
        } else if let Some((key, done)) = turn.running.pop() {
            turn.machine.handle_outcome(now, key, done);
        } else {
            let open: Vec<_> = turn.machine.pending_approvals().collect();
            assert!(!open.is_empty(), "turn {spec_number} waits for nothing");
            for (key, phase) in open {
                approve(&mut turn.machine, key, phase);
            }
        }
        self.turn = Some(turn);
        true
    }

    /// Returns role, content and calls of the messages, without the content of results of the
    /// calls in `unknown`.
    fn messages(&self, unknown: &BTreeSet<String>) -> Vec<Value> {
        described(self.session.history().messages(), unknown)
    }
}

fn described(messages: &MessageList, unknown: &BTreeSet<String>) -> Vec<Value> {
    let message = |message: Value| {
        let is_unknown = message["tool_call_id"].as_str().is_some_and(|id| unknown.contains(id));
        let content = if is_unknown { Value::Null } else { message["content"].clone() };
        json!([message["role"], content, message["tool_call_id"], message["tool_calls"]])
    };
    messages.iter().map(|of| message(serde_json::to_value(&**of).unwrap())).collect()
}

fn approve(turn: &mut Turn, key: CallKey, phase: callsheet_values::types::WaitPhase) {
    let arguments_sha256 = turn.pending_approval(key).unwrap().arguments_sha256;
    let (phase, verdict) = (Some(phase), ApprovalVerdict::Approved);
    let decision = ApprovalDecision {
        phase,
        verdict,
        message: None,
        arguments_sha256,
        content: None,
        author: None,
    };
    turn.handle_approval(Duration::ZERO, key, decision).unwrap();
}

/// Returns the ids of calls with effects that may have run when the journal ends.
fn unknown_outcomes(log: &[JournalEntry]) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for entry in log {
        if let Record::CallIntended { call, .. } = &entry.record
            && &*call.name != "idempotent"
        {
            open.insert((call.key, call.id.to_string()));
        }
        if let Record::CallEnded { call, .. } = &entry.record {
            open.retain(|(key, _)| *key != call.key);
        }
    }
    open.into_iter().map(|(_, id)| id).collect()
}

fn check_past_runs(life: &Life) {
    let session_rules_of = |_: &RunOverrides| session_rules(life.script);
    for run in &life.ended {
        let past = past_run(&life.log, &run.id, &session_rules_of).unwrap().unwrap();
        // A run may have calls of an earlier life.
        let own = past.calls.len() - run.calls.len();
        let calls = past.calls[own..].to_vec();
        assert_eq!(&PastRun { calls, ..past }, run);
    }
}

/// Checks that a replay makes the records of the session, and reaches its state.
#[track_caller]
fn check_replay(life: &Life, name: &str) {
    let replayed = replay(&life.log, |_, _, _| Ok(life.rules()));
    let replayed = replayed.unwrap_or_else(|difference| {
        let lines: Vec<_> = life.log.iter().map(JournalEntry::body).collect();
        panic!("{name}: {difference}\nin\n{}", lines.join("\n"))
    });
    assert_eq!((replayed.records, replayed.unfinished), (life.log.len(), false), "{name}");
    assert_eq!(&replayed.variables, life.session.variables(), "{name}");
}

#[test]
fn a_session_that_is_cut_after_any_record_ends_with_the_same_messages() {
    let script = Script::default();
    let mut cuts = 0;
    for script in [
        script,
        Script { is_parallel: true, steer: true, ..script },
        Script { initial_call: true, steer: true, ..script },
        Script { stop_after_turn: Some(3), ..script },
        Script { max_turns: Some(2), is_parallel: true, ..script },
        Script { servers: true, steer: true, initial_call: true, ..script },
        Script { is_slow: true, is_parallel: true, ..script },
        Script { output: Some(OutputMode::Auto), ..script },
        Script { output: Some(OutputMode::Tool), steer: true, ..script },
        Script { output: Some(OutputMode::Prompt), max_turns: Some(2), ..script },
    ] {
        let whole = Life::open(script).run();
        assert_eq!(whole.ended.len(), 2);
        let asks = |e: &&JournalEntry| matches!(e.record, Record::Instructed { .. });
        assert!(script.output.is_none() || whole.log.iter().any(|e| asks(&e)));
        check_past_runs(&whole);
        check_replay(&whole, &format!("{script:?}"));
        let all: usize = whole.ended.iter().map(|run| run.calls.len()).sum();
        let results = whole.log.iter().filter(|e| matches!(e.record, Record::CallEnded { .. }));
        assert_eq!(results.count(), all, "the report of each run has its calls");
        for upto in 1..=whole.log.len() {
            let prefix = &whole.log[..upto];
            let unknown = unknown_outcomes(prefix);
            let cut = Life::wake(script, prefix).run();
            let name =
                format!("{script:?}, cut after record {upto}: {:?}", prefix[upto - 1].record);
            if script.is_slow {
                // A response that was cut off is another one.
                check_replay(&cut, &name);
                continue;
            }
            assert_eq!(cut.messages(&unknown), whole.messages(&unknown), "{name}");
            assert_eq!(cut.session.usage(), whole.session.usage(), "{name}");
            if unknown.is_empty() {
                assert_eq!(cut.session.variables(), whole.session.variables(), "{name}");
            }
            check_past_runs(&cut);
            check_replay(&cut, &name);
            cuts += 1;
        }
    }
    assert!(cuts > 200, "{cuts} prefixes");
}

#[test]
fn a_run_that_is_interrupted_at_any_step_is_reopened_by_its_key() {
    let script = Script::default();
    let mut reopened = 0;
    for script in [
        script,
        Script { is_parallel: true, initial_call: true, is_slow: true, ..script },
        Script { max_turns: Some(2), servers: true, ..script },
    ] {
        let whole = Life::open(script).run();
        for steps in (0..whole.log.len()).step_by(2) {
            let life = Life { requests_max: 1, ..Life::open(script) };
            let now = steps % 4 == 0;
            let Some(log) = life.interrupted_after(steps, now) else { continue };
            let name = format!("{script:?}, interrupted after {steps} steps, {now}");
            let next = Life { requests_max: 1, ..Life::wake(script, &log) }.run();
            let ends = |life: &Life| {
                life.ended.iter().map(|run| (run.id.clone(), run.end)).collect::<Vec<_>>()
            };
            let expected = (whole.ended[0].id.clone(), whole.ended[0].end);
            assert_eq!(ends(&next), std::slice::from_ref(&expected), "{name}");
            let is_reopening =
                |entry: &&JournalEntry| matches!(entry.record, Record::RunReopened { .. });
            assert_eq!(next.log.iter().filter(is_reopening).count(), 1, "{name}");
            check_past_runs(&next);
            // A replay does not know the shutdown of a run that waits for its tools.
            let is_frozen =
                |entry: &JournalEntry| matches!(entry.record, Record::ToolsFrozen { .. });
            if !script.servers || log.iter().any(is_frozen) {
                check_replay(&next, &name);
            }
            if steps % 8 == 0 {
                for upto in log.len()..next.log.len() {
                    let cut =
                        Life { requests_max: 1, ..Life::wake(script, &next.log[..upto]) }.run();
                    assert_eq!(
                        ends(&cut),
                        std::slice::from_ref(&expected),
                        "{name}, cut after {upto}"
                    );
                }
            }
            reopened += 1;
        }
    }
    assert!(reopened > 20, "{reopened} runs");
}

/// Forks a session behind the record `at`, and runs the fork to its end.
fn fork(life: &Life, at: usize) -> Life {
    let script = life.script;
    let (mut log, of) = (life.log.clone(), SessionId::parse("s").unwrap());
    let session_rules_of = |_: &RunOverrides| session_rules(script);
    StoredSession::fork(&mut log, of, Seq(at as u64), 0, &session_rules_of).unwrap();
    Life::wake(life.script, &log).run()
}

#[test]
fn a_replay_accepts_a_fork_at_any_record() {
    let script = Script { is_parallel: true, ..Script::default() };
    for script in [
        Script { steer: true, stop_after_turn: Some(3), ..Script::default() },
        Script { steer: true, initial_call: true, ..script },
        Script { is_slow: true, max_turns: Some(3), ..script },
        Script { servers: true, ..script },
        Script { output: Some(OutputMode::Tool), max_turns: Some(3), ..script },
    ] {
        let whole = Life::open(script).run();
        check_replay(&whole, &format!("{script:?}"));
        for at in 1..=whole.log.len() {
            let forked = fork(&whole, at);
            let name = format!("{script:?}, forked at {at}: {:?}", whole.log[at - 1].record);
            check_replay(&forked, &name);
            let again = if script.is_slow { 2 } else { 0 };
            for later in (at + 1..forked.log.len()).take(again) {
                check_replay(&fork(&forked, later), &format!("{name}, and again at {later}"));
            }
        }
    }
}

#[test]
fn a_replay_accepts_a_failed_run_and_a_queued_run_that_a_shutdown_interrupts() {
    for (turn, has_records) in [(1, false), (2, false), (2, true), (3, true)] {
        let script = Script::default();
        let mut life = Life::open(script);
        for step in 0.. {
            assert!(step < 100, "{:?}", life.session);
            let is_there = life.turn.is_some() && life.session.turn() == turn;
            let last = life.log.last().map(|entry| &entry.record);
            let begins =
                matches!(last, Some(Record::TurnCommitted { .. } | Record::InputQueued { .. }));
            if is_there && life.session.queue().len() > 0 && begins != has_records {
                break;
            }
            let _ = life.perform() || life.request() || life.advance_turn();
        }
        life.session.handle_shutdown(OnShutdown::Interrupt, false);
        let (code, message) = ("internal_error".to_owned(), "no".to_owned());
        let error = RunError { code, message, transient: true };
        life.session.handle_run_failed(Duration::ZERO, None, error);
        life.perform();
        let ends = life.log.iter().filter(|e| matches!(e.record, Record::RunEnded { .. }));
        assert_eq!(ends.count(), 2, "the queued run has ended too");
        // The keys of the requests are those of the forked session: both runs start again.
        let (last, of) = (Seq(life.log.len() as u64), SessionId::parse("s").unwrap());
        let session_rules_of = |_: &RunOverrides| session_rules(script);
        StoredSession::fork(&mut life.log, of, last, 0, &session_rules_of).unwrap();
        let next = Life::wake(script, &life.log).run();
        check_replay(&next, &format!("given up in turn {turn}"));
    }
}
