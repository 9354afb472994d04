//! Random sessions, lived and rebuilt: at every place of the journal both are the same, and go on
//! to the same end.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

mod acts;
mod checks;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::context::InitialHistory;
use crate::record::{Record, RequestKey};
use crate::response::ExchangeEnd;
use crate::session::RunNext;
use crate::turn::fixtures::{call, finish, rules, spec, text, usage};
use crate::turn::{
    ApprovalDecision, CancelReason, Effect, InitialCallsTurn, LimitHit, ToolCompletion, Turn,
    TurnAction, TurnRecord, TurnRules, TurnSpec,
};
use crate::types::{
    ApprovalPhase, CallKey, Execution, FinishKind, Judgement, ProviderError, ProviderErrorKind,
    SessionId, ToolCall, ToolOutcome, TraceContext, VariablesUse, Verdict, WriteSet,
};
use crate::wire::Delta;

/// Where every run stands in somebody's trace.
fn trace() -> Option<TraceContext> {
    Some(TraceContext::new([7; 16], [8; 8], true))
}

/// A session as its actor lives it, with everything durable at once.
#[derive(Clone)]
struct Live {
    seed: u64,
    entries: Vec<JournalEntry>,
    time: u64,
    history: History,
    variables: Variables,
    usage: Usage,
    turn: u32,
    queue: VecDeque<QueuedRun>,
    requests: IdempotencyKeys,
    run: Option<LiveRun>,
    past: Vec<PastRun>,
    runs: u32,
    /// Nothing is compared.
    quiet: bool,
}

#[derive(Clone)]
struct LiveRun {
    /// What `Rebuilt` has of it too; where it goes on is known by the rest.
    open: OpenRun,
    limits: Limits,
    plan: TurnPlan,
    turn: Option<Turn>,
    /// The place of the turn's first entry.
    first: usize,
    records: u64,
    committed: Option<Box<TurnRecord>>,
    now: Duration,
    /// Deltas of the open exchange that were delivered.
    exchange: Option<usize>,
    running: Vec<ToolCall>,
    /// A stop after the turn was asked before the turn had left a record.
    stopped_between: bool,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Start,
    Enqueue,
    Begin,
    Deliver,
    Break,
    Answer(usize),
    Decide(CallKey, ApprovalPhase, Verdict),
    Hear,
    Steer,
    Stop(StopMode),
}

fn limits(overrides: &RunOverrides) -> Limits {
    let own = &overrides.limits;
    Limits {
        max_turns: own.max_turns,
        max_result_bytes: own.max_result_bytes.map_or(1 << 16, std::num::NonZeroUsize::get),
        repeat_limit: Some(2),
        max_failed_turns: Some(2),
        max_tokens_per_run: Some(100),
        ..Limits::default()
    }
}

fn mixed(seed: u64, n: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, n).hash(&mut hasher);
    hasher.finish()
}

impl Live {
    fn open(seed: u64) -> Self {
        let function = json!({"name": "pure", "arguments": "{}"});
        let calls = json!([{"id": "c", "type": "function", "function": function}]);
        let asks = json!({"role": "assistant", "content": "", "tool_calls": calls});
        let messages = if seed.is_multiple_of(3) { vec![asks] } else { Vec::new() };
        let mut live = Self {
            seed,
            entries: Vec::new(),
            time: 1,
            history: History::from_initial(InitialHistory::parse(&messages).unwrap()),
            variables: Variables::default(),
            usage: Usage::default(),
            turn: 0,
            queue: VecDeque::new(),
            requests: IdempotencyKeys::default(),
            run: None,
            past: Vec::new(),
            runs: 0,
            quiet: false,
        };
        live.append(vec![Record::SessionOpened { agent: "a".into(), messages }]);
        live
    }

    fn append(&mut self, records: Vec<Record>) -> Seq {
        let session = SessionId::parse("s").unwrap();
        for record in records {
            self.time += 1;
            let seq = Seq(self.entries.len() as u64 + 1);
            let body = JournalEntry { seq, time: self.time, shown: 0, record }.body();
            self.entries.push(JournalEntry::read(&session, seq, self.time, &body).unwrap());
        }
        Seq(self.entries.len() as u64)
    }

    fn request(&mut self, seq: Seq, brought: RequestEffect) -> RequestKey {
        let request = RequestKey { key: format!("k{}", seq.0), digest: "d".into() };
        self.requests.remember(request.clone(), seq, brought);
        request
    }

    fn next_seq(&self) -> Seq {
        Seq(self.entries.len() as u64 + 1)
    }

    fn new_run(&mut self) -> (RunId, RunOverrides) {
        self.runs += 1;
        let mut overrides = RunOverrides::default();
        overrides.limits.max_turns = Some(3 + self.runs % 3);
        if self.runs.is_multiple_of(2) {
            overrides.limits.max_result_bytes = std::num::NonZeroUsize::new(8);
        }
        (RunId(format!("run_{}", self.runs).into()), overrides)
    }

    fn begin_run(&mut self, id: RunId, overrides: RunOverrides, queued: Option<Content>) {
        let seq = self.next_seq();
        let request = queued.is_none().then(|| self.request(seq, RequestEffect::Run(id.clone())));
        let input = queued.unwrap_or_else(|| "now".into());
        let limits = limits(&overrides);
        let first_message = self.history.messages().len();
        let mut machine = Run::new(&limits);
        let calls = self.history.open_calls();
        let seeded = calls.map(|calls| {
            InitialCallsTurn::new(self.turn + 1, calls, &rules(Execution::Parallel { max: 2 }))
        });
        let plan = if seeded.is_some() { machine.begin_with_calls() } else { machine.begin() };
        let started = Record::RunStarted {
            run_id: id.clone(),
            input: input.clone(),
            overrides: Box::new(overrides.clone()),
            model: "m".into(),
            execution: Execution::Sequential,
            request,
            trace: trace(),
        };
        let began = self.time + 1;
        let records = [started].into_iter().chain(seeded.iter().map(|s| s.response.clone()));
        self.append(records.collect());
        self.history.begin_run(input);
        let open = OpenRun {
            id,
            overrides,
            trace: trace(),
            seq,
            began,
            machine,
            stats: RunStats::default(),
            results: Vec::new(),
            first_message,
            people: Duration::ZERO,
            elapsed: Duration::ZERO,
            stops: None,
            turn_after: seq,
            next: Continue::Turn { plan, entries: Vec::new() },
        };
        self.go_on_with(open, plan);
        if seeded.is_some() {
            self.resume(self.entries.len() - 1);
        }
    }

    /// The turn is next.
    fn go_on_with(&mut self, open: OpenRun, plan: TurnPlan) {
        self.turn += 1;
        let limits = limits(&open.overrides);
        self.run = Some(LiveRun {
            open,
            limits,
            plan,
            turn: None,
            first: self.entries.len(),
            records: 0,
            committed: None,
            now: Duration::ZERO,
            exchange: None,
            running: Vec::new(),
            stopped_between: false,
        });
    }

    fn spec(&self) -> TurnSpec {
        let run = self.run.as_ref().unwrap();
        let rules =
            TurnRules { limits: run.limits.clone(), ..rules(Execution::Parallel { max: 2 }) };
        TurnSpec {
            number: self.turn,
            turns_with_calls: self.history.turns_with_calls(),
            held_ids: self.history.held_ids(),
            last_request: run.plan.last_request,
            budget: run.open.machine.budget(),
            began: run.open.elapsed,
            variables: self.variables.clone(),
            ..spec(rules)
        }
    }

    fn resume(&mut self, first: usize) {
        let spec = self.spec();
        let run = self.run.as_mut().unwrap();
        let cancel = (run.open.stops == Some(StopMode::Now)).then_some(CancelReason::Stop);
        run.first = first;
        run.turn = Some(Turn::resume(spec, &self.entries[first..], self.time, cancel));
        self.pump();
    }

    fn pump(&mut self) {
        loop {
            let Some(run) = self.run.as_mut() else { return };
            let mut batch = Vec::new();
            while let Some(effect) = run.turn.as_mut().unwrap().poll() {
                match effect {
                    Effect::Record(record) => batch.push(record),
                    Effect::Perform(TurnAction::Request(_)) => run.exchange = Some(0),
                    Effect::Perform(TurnAction::Disconnect) => run.exchange = None,
                    Effect::Perform(TurnAction::Start(start)) => run.running.push(start.call),
                    Effect::Perform(TurnAction::Abort(key)) => {
                        run.running.retain(|call| call.key != key)
                    }
                    Effect::Perform(TurnAction::Commit(record)) => run.committed = Some(record),
                    Effect::Perform(
                        TurnAction::RequestToolPermit { .. } | TurnAction::ReleaseToolPermit(_),
                    ) => {
                        panic!("no tool has a cap")
                    }
                    Effect::Emit(_) => {}
                }
            }
            if batch.is_empty() {
                return;
            }
            run.records += batch.len() as u64;
            let (now, records) = (run.now, run.records);
            let over = batch.iter().any(|record| matches!(record, Record::TurnCommitted { .. }));
            self.append(batch);
            // What the session will hear of its commit is known when it was stored.
            if !over {
                self.check();
            }
            self.turn_mut().handle_recorded(now, records);
        }
    }

    fn turn_mut(&mut self) -> &mut Turn {
        self.run.as_mut().unwrap().turn.as_mut().unwrap()
    }

    /// The session hears of a commit, and knows what comes of it.
    fn hear(&mut self) -> Option<FollowUp> {
        let run = self.run.as_mut()?;
        let record = run.committed.take()?;
        let steered = self.history.undelivered() > 0;
        let bytes_max = run.limits.max_result_bytes;
        self.history.commit(record.number, record.message.as_ref(), &record.results, bytes_max);
        record.results.iter().for_each(|result| self.variables.apply(&result.writes));
        self.usage += record.usage;
        run.open.stats.add(record.usage, record.results.len(), &record.times);
        run.open.people += record.times.people;
        run.open.elapsed += record.times.total;
        let step = run.open.machine.handle_turn(&record, steered);
        run.open.results.extend(record.results.into_iter().map(|result| (record.usage, result)));
        Some(step)
    }

    /// Records what comes of a turn as one batch, and does it.
    fn follow(&mut self, step: FollowUp) {
        let FollowUp { limits, next } = step;
        let mut records = Vec::new();
        for LimitHit { limit, value, maximum, action, note } in limits {
            note.iter().for_each(|note| self.history.add_note(note));
            let (limit, action) = (limit.to_owned(), action.to_owned());
            records.push(Record::LimitReached { limit, value, maximum, action, note });
        }
        let run = self.run.take().unwrap();
        match next {
            RunNext::Turn(plan) => {
                self.append(records);
                self.go_on_with(run.open, plan);
            }
            RunNext::End { end, text, error } => {
                self.history.end_run();
                let mut stats = run.open.stats;
                stats.turns = run.open.machine.turns();
                let (run_id, stats) = (run.open.id.clone(), (&stats).into());
                let (told, why) = (text.clone(), error.clone());
                records.push(Record::RunEnded {
                    run_id,
                    end,
                    text: told,
                    error: why,
                    stats,
                    waiting: 0,
                });
                let seq = self.append(records);
                self.past.push(PastRun {
                    id: run.open.id,
                    seq,
                    end,
                    text,
                    error,
                    stats,
                    calls: run.open.results,
                    first_message: run.open.first_message,
                    messages: self.history.messages().clone(),
                });
                self.check();
                self.begin_next();
            }
        }
    }
}

#[test]
fn a_session_is_rebuilt_at_every_place_of_its_journal() {
    let (mut records, mut ended) = (0, 0);
    for seed in 0..16_u64 {
        let mut live = Live::open(seed);
        live.check();
        for step in 0..60 {
            let chance = mixed(seed ^ 0x5eed, step);
            let rare = if chance.is_multiple_of(8) { live.rare_acts() } else { Vec::new() };
            let acts = if rare.is_empty() { live.acts() } else { rare };
            let act = acts[(chance >> 8) as usize % acts.len()];
            live.act(act);
        }
        live.finish();
        for past in &live.past {
            assert_eq!(
                past_run(&live.entries, &past.id, &limits).as_ref(),
                Ok(&Some(past.clone()))
            );
        }
        // A batch may be torn where an engine does not keep it together.
        for upto in 1..live.entries.len() {
            Rebuilt::fold(&live.entries[..upto], &limits).unwrap();
        }
        records += live.entries.len();
        ended += live.past.len();
    }
    assert!(records > 500 && ended >= 16, "{records} records, {ended} runs");
}
