//! Random sessions, lived and rebuilt: at every place of the journal both are the same, and go on
//! to the same end.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::context::Seed;
use crate::record::{Record, RequestKey};
use crate::turn::fixtures::{call, finish, rules, spec, text, usage};
use crate::turn::run::{LimitHit, Next};
use crate::turn::{
    CancelReason, Decision, Effect, ResponseEnd, SeededTurn, ToolDone, Turn, TurnRecord, TurnRules,
    TurnSpec,
};
use crate::types::{
    ApprovalPhase, CallKey, Execution, FinishKind, Judgement, ProviderError, ProviderErrorKind,
    SessionId, ToolCall, ToolOutcome, VariablesUse, Verdict, WriteSet,
};
use crate::wire::Delta;

/// A session as its actor lives it, with everything durable at once.
#[derive(Clone)]
struct Live {
    seed: u64,
    entries: Vec<Entry>,
    time: u64,
    history: History,
    variables: Variables,
    usage: Usage,
    turn: u32,
    queue: VecDeque<QueuedRun>,
    requests: Requests,
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

/// What the model says in a turn, however often it is asked.
fn response(seed: u64, turn: u32, last: bool) -> Vec<Delta> {
    let names: &[&str] = match mixed(seed, turn.into()) % 9 {
        _ if last => &[],
        0 => return vec![text("wait"), usage(10), finish(FinishKind::Pause)],
        1 => &[],
        2 => &["pure", "idempotent"],
        3 => &["put", "effect", "put"],
        4 => &["asked", "reviewed_pure", "both"],
        5 | 6 => &["same"],
        7 => &["seal", "pure"],
        _ => &["nobody"],
    };
    let mut deltas = vec![text(&format!("turn {turn}"))];
    for (index, name) in (0..).zip(names) {
        let n = if *name == "same" { 0 } else { u64::from(turn) * 10 + index };
        let name = if *name == "same" { "pure" } else { name };
        deltas.push(call(index, name, &format!("{{\"n\":{n}}}")));
    }
    deltas.push(usage(10));
    let kind = if names.is_empty() { FinishKind::Stop } else { FinishKind::ToolCalls };
    deltas.push(finish(kind));
    deltas
}

fn answer(call: &ToolCall) -> ToolDone {
    let mut used = VariablesUse::default();
    if call.name == "put" {
        used.writes = WriteSet([("x".into(), Arc::new(call.arguments.clone()))].into());
    }
    ToolDone { outcome: ToolOutcome::ok(format!("{} of {}", call.name, call.arguments)), used }
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
            history: History::seeded(Seed::parse(&messages).unwrap()),
            variables: Variables::default(),
            usage: Usage::default(),
            turn: 0,
            queue: VecDeque::new(),
            requests: Requests::default(),
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
            let body = Entry { seq, time: self.time, shown: 0, record }.body();
            self.entries.push(Entry::read(&session, seq, self.time, &body).unwrap());
        }
        Seq(self.entries.len() as u64)
    }

    fn request(&mut self, seq: Seq, brought: Brought) -> RequestKey {
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
        let request = queued.is_none().then(|| self.request(seq, Brought::Run(id.clone())));
        let input = queued.unwrap_or_else(|| "now".into());
        let limits = limits(&overrides);
        let first_message = self.history.messages().len();
        let mut machine = Run::new(&limits);
        let calls = self.history.open_calls();
        let seeded = calls.map(|calls| {
            SeededTurn::new(self.turn + 1, calls, &rules(Execution::Parallel { max: 2 }))
        });
        let plan = if seeded.is_some() { machine.begin_with_calls() } else { machine.begin() };
        let started = Record::RunStarted {
            run_id: id.clone(),
            input: input.clone(),
            overrides: overrides.clone(),
            model: "m".into(),
            execution: Execution::Sequential,
            request,
        };
        let records = [started].into_iter().chain(seeded.iter().map(|s| s.response.clone()));
        self.append(records.collect());
        self.history.begin_run(input);
        let open = OpenRun {
            id,
            overrides,
            seq,
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
                    Effect::Request(_) => run.exchange = Some(0),
                    Effect::Disconnect => run.exchange = None,
                    Effect::Start(call, _) => run.running.push(call),
                    Effect::Abort(key) => run.running.retain(|call| call.key != key),
                    Effect::Commit(record) => run.committed = Some(record),
                    Effect::Reserve { .. } | Effect::GiveUp(_) => panic!("no tool has a cap"),
                    Effect::Emit(_) | Effect::Release(_) => {}
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
    fn hear(&mut self) -> Option<RunStep> {
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
    fn follow(&mut self, step: RunStep) {
        let RunStep { limits, next } = step;
        let mut records = Vec::new();
        for LimitHit { limit, value, maximum, action, note } in limits {
            note.iter().for_each(|note| self.history.add_note(note));
            let (limit, action) = (limit.to_owned(), action.to_owned());
            records.push(Record::LimitReached { limit, value, maximum, action, note });
        }
        let run = self.run.take().unwrap();
        match next {
            Next::Turn(plan) => {
                self.append(records);
                self.go_on_with(run.open, plan);
            }
            Next::End { end, text, error } => {
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
                    messages: self.history.messages().to_vec(),
                });
                self.check();
                self.begin_next();
            }
        }
    }

    fn begin_next(&mut self) {
        if let Some(QueuedRun { run_id, overrides, input, .. }) = self.queue.pop_front() {
            self.begin_run(run_id, overrides, Some(input));
        }
    }

    fn acts(&self) -> Vec<Act> {
        let Some(run) = &self.run else { return vec![Act::Start] };
        let mut acts = Vec::new();
        if run.committed.is_some() {
            acts.push(Act::Hear);
        } else if let Some(turn) = &run.turn {
            acts.extend(run.exchange.map(|_| Act::Deliver));
            acts.extend((0..run.running.len()).map(Act::Answer));
            acts.extend(
                turn.questions().map(|(key, phase)| Act::Decide(key, phase, Verdict::Approved)),
            );
        } else {
            acts.push(Act::Begin);
        }
        acts
    }

    fn rare_acts(&self) -> Vec<Act> {
        let Some(run) = &self.run else { return Vec::new() };
        let mut acts = vec![Act::Steer, Act::Steer, Act::Enqueue, Act::Stop(StopMode::Now)];
        if run.open.stops.is_none() {
            acts.push(Act::Stop(StopMode::AfterTurn));
        }
        acts.extend(run.exchange.map(|_| Act::Break));
        let questions = run.turn.iter().flat_map(Turn::questions);
        acts.extend(questions.map(|(key, phase)| Act::Decide(key, phase, Verdict::Rejected)));
        acts
    }

    fn act(&mut self, act: Act) {
        if let Some(run) = self.run.as_mut() {
            run.now += Duration::from_millis(1);
        }
        match act {
            Act::Start => {
                let (id, overrides) = self.new_run();
                self.begin_run(id, overrides, None);
            }
            Act::Enqueue => {
                let (run_id, overrides) = self.new_run();
                let seq = self.next_seq();
                let input: Content = "later".into();
                let request = Some(self.request(seq, Brought::Run(run_id.clone())));
                self.append(vec![Record::InputQueued {
                    run_id: run_id.clone(),
                    input: input.clone(),
                    overrides: overrides.clone(),
                    request,
                }]);
                self.queue.push_back(QueuedRun { run_id, input, overrides, seq });
            }
            Act::Steer => {
                let (seq, after_turn) = (self.next_seq(), self.turn);
                let input: Content = format!("steer {}", seq.0).as_str().into();
                let request = Some(self.request(seq, Brought::Steered));
                self.append(vec![Record::Steered { input: input.clone(), after_turn, request }]);
                self.history.steer(after_turn, input);
            }
            Act::Stop(mode) => self.stop(mode),
            Act::Hear => {
                let step = self.hear().unwrap();
                self.follow(step);
            }
            Act::Begin => {
                let spec = self.spec();
                let first = self.entries.len();
                let run = self.run.as_mut().unwrap();
                (run.first, run.stopped_between) = (first, false);
                let mut turn = Turn::new(spec);
                if run.open.stops == Some(StopMode::Now) {
                    turn.handle_cancel(Duration::ZERO, CancelReason::Stop);
                }
                run.turn = Some(turn);
                self.pump();
            }
            Act::Deliver | Act::Break | Act::Answer(_) | Act::Decide(..) => self.act_in_turn(act),
        }
        self.check();
    }

    fn act_in_turn(&mut self, act: Act) {
        let (seed, number) = (self.seed, self.turn);
        let run = self.run.as_mut().unwrap();
        let (now, last) = (run.now, run.plan.last_request);
        let turn = run.turn.as_mut().unwrap();
        match act {
            Act::Deliver => {
                let delivered = run.exchange.as_mut().unwrap();
                match response(seed, number, last).get(*delivered) {
                    Some(delta) => {
                        *delivered += 1;
                        turn.handle_deltas(now, vec![delta.clone()]);
                    }
                    None => {
                        run.exchange = None;
                        turn.handle_response_end(now, ResponseEnd::Closed);
                    }
                }
            }
            Act::Break => {
                run.exchange = None;
                let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
                turn.handle_response_end(now, ResponseEnd::Failed(error));
            }
            Act::Answer(place) => {
                let call = run.running.remove(place);
                turn.handle_outcome(now, call.key, answer(&call));
            }
            Act::Decide(key, phase, verdict) => {
                let arguments_sha256 = turn.question(key).unwrap().arguments_sha256;
                let judgement = Judgement { verdict, message: None };
                let decision = Decision { phase: Some(phase), judgement, arguments_sha256 };
                turn.handle_approval(now, key, decision).unwrap();
            }
            Act::Start | Act::Enqueue | Act::Begin | Act::Hear | Act::Steer | Act::Stop(_) => {}
        }
        self.pump();
    }

    fn stop(&mut self, mode: StopMode) {
        if self.run.as_ref().unwrap().open.stops == Some(StopMode::Now) {
            return;
        }
        self.append(vec![Record::StopAsked { mode }]);
        let first_of_run = self.run.as_ref().unwrap().open.results.is_empty();
        let run = self.run.as_mut().unwrap();
        run.open.stops = Some(mode);
        match mode {
            StopMode::AfterTurn => {
                run.open.machine.handle_stop_after_turn();
                run.stopped_between =
                    run.turn.is_none() && !(first_of_run && run.open.elapsed.is_zero());
            }
            StopMode::Now => {
                self.check();
                let run = self.run.as_mut().unwrap();
                if let Some(turn) = run.turn.as_mut() {
                    turn.handle_cancel(run.now, CancelReason::Stop);
                    self.pump();
                }
            }
        }
    }

    /// Whatever goes on is brought to its end, and nobody says anything any more.
    fn finish(&mut self) {
        self.quiet = true;
        for step in 0.. {
            assert!(step < 1000, "no end");
            match self.acts().first() {
                _ if self.run.is_none() => return,
                Some(act) => self.act(*act),
                None => panic!("stuck"),
            }
        }
    }

    /// A session that goes on from what was rebuilt.
    fn going_on(&self, rebuilt: &Rebuilt) -> Self {
        let mut live = Self {
            seed: self.seed,
            entries: self.entries.clone(),
            time: self.time + 5000,
            history: rebuilt.history.clone(),
            variables: rebuilt.variables.clone(),
            usage: rebuilt.usage,
            turn: rebuilt.turn,
            queue: rebuilt.queue.clone().into(),
            requests: rebuilt.requests.clone(),
            run: None,
            past: Vec::new(),
            runs: self.runs,
            quiet: true,
        };
        let Some(open) = rebuilt.run.clone() else {
            live.begin_next();
            return live;
        };
        let next = open.next.clone();
        match next {
            Continue::Turn { plan, entries } if entries.is_empty() => live.go_on_with(open, plan),
            Continue::Turn { plan, entries } => {
                live.turn -= 1;
                live.go_on_with(open, plan);
                live.resume(live.entries.len() - entries.len());
            }
            Continue::Step(step) => {
                live.go_on_with(open, TurnPlan { last_request: false });
                live.turn -= 1;
                live.follow(step);
            }
        }
        live
    }

    fn check(&self) {
        if self.quiet {
            return;
        }
        let rebuilt = Rebuilt::fold(&self.entries, &limits).unwrap();
        let mut live = self.clone();
        let step = live.hear();
        assert_eq!(rebuilt.history, live.history);
        assert_eq!(rebuilt.variables, live.variables);
        assert_eq!(rebuilt.usage, live.usage);
        assert_eq!(rebuilt.requests, live.requests);
        assert_eq!(rebuilt.queue, Vec::from(live.queue));
        let Some(LiveRun { mut open, plan, turn, first, stopped_between, .. }) = live.run else {
            assert_eq!((rebuilt.run, rebuilt.turn), (None, live.turn));
            return self.check_going_on(&Rebuilt::fold(&self.entries, &limits).unwrap());
        };
        // It may be taken for one that came before the turn was decided on.
        if !stopped_between {
            assert_eq!(rebuilt.turn, if turn.is_some() { live.turn } else { live.turn - 1 });
            open.next = match step {
                Some(RunStep { limits, next: Next::Turn(plan) }) if limits.is_empty() => {
                    Continue::Turn { plan, entries: Vec::new() }
                }
                Some(step) => Continue::Step(step),
                None if turn.is_none() => Continue::Turn { plan, entries: Vec::new() },
                None => Continue::Turn { plan, entries: self.entries[first..].to_vec() },
            };
            open.turn_after = rebuilt.run.as_ref().unwrap().turn_after;
            assert_eq!(rebuilt.run.as_ref(), Some(&open));
        }
        // Each session at other places.
        if (self.entries.len() as u64 + self.seed).is_multiple_of(3) {
            self.check_going_on(&rebuilt);
        }
    }

    /// What goes on from here ends as what was not cut, unless something was lost.
    fn check_going_on(&self, rebuilt: &Rebuilt) {
        let mut cut = self.going_on(rebuilt);
        cut.finish();
        let mut whole = self.clone();
        whole.quiet = true;
        match &self.run {
            None => whole.begin_next(),
            Some(LiveRun { turn: Some(_), now, records, .. }) => {
                whole.turn_mut().handle_recorded(*now, *records);
                whole.pump();
            }
            Some(_) => {}
        }
        whole.finish();
        Rebuilt::fold(&cut.entries, &limits).unwrap();
        if !self.is_something_lost() {
            let messages = |live: &Self| serde_json::to_value(live.history.messages()).unwrap();
            assert_eq!(messages(&cut), messages(&whole));
            assert_eq!(cut.variables, whole.variables);
            assert_eq!(cut.turn, whole.turn);
        }
    }

    fn is_something_lost(&self) -> bool {
        let Some(run) = &self.run else { return false };
        let of_turn = &self.entries[run.first.min(self.entries.len())..];
        let has = |wanted: &dyn Fn(&Record) -> bool| of_turn.iter().any(|e| wanted(&e.record));
        let judged = has(&|record| matches!(record, Record::ResponseEnded { .. }));
        let open_effect = of_turn.iter().any(|entry| match &entry.record {
            Record::CallIntended { call, .. } => {
                let answered = has(&|record| match record {
                    Record::CallEnded { call: of, .. } => of.key == call.key,
                    Record::CallReported { key, .. } => *key == call.key,
                    _ => false,
                });
                !judged || (!answered && call.name != "idempotent")
            }
            _ => false,
        });
        run.stopped_between
            || run.open.stops == Some(StopMode::Now)
            || has(&|record| matches!(record, Record::AttemptFailed { .. }))
            || open_effect
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
