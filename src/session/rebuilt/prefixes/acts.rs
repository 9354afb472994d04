//! What may happen in a session, one thing after the other.

use super::*;

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

fn answer(call: &ToolCall) -> ToolCompletion {
    let mut used = VariablesUse::default();
    if &*call.name == "put" {
        used.writes = WriteSet([("x".into(), Arc::clone(&call.arguments))].into());
    }
    ToolCompletion {
        outcome: ToolOutcome::ok(format!("{} of {}", call.name, call.arguments)),
        used,
    }
}

impl Live {
    pub(super) fn begin_next(&mut self) {
        if let Some(QueuedRun { run_id, overrides, input, .. }) = self.queue.pop_front() {
            self.begin_run(run_id, overrides, Some(input));
        }
    }

    pub(super) fn acts(&self) -> Vec<Act> {
        let Some(run) = &self.run else { return vec![Act::Start] };
        let mut acts = Vec::new();
        if run.committed.is_some() {
            acts.push(Act::Hear);
        } else if let Some(turn) = &run.turn {
            acts.extend(run.exchange.map(|_| Act::Deliver));
            acts.extend((0..run.running.len()).map(Act::Answer));
            acts.extend(
                turn.pending_approvals()
                    .map(|(key, phase)| Act::Decide(key, phase, Verdict::Approved)),
            );
        } else {
            acts.push(Act::Begin);
        }
        acts
    }

    pub(super) fn rare_acts(&self) -> Vec<Act> {
        let Some(run) = &self.run else { return Vec::new() };
        let mut acts = vec![Act::Steer, Act::Steer, Act::Enqueue, Act::Stop(StopMode::Now)];
        if run.open.stops.is_none() {
            acts.push(Act::Stop(StopMode::AfterTurn));
        }
        acts.extend(run.exchange.map(|_| Act::Break));
        let questions = run.turn.iter().flat_map(Turn::pending_approvals);
        acts.extend(questions.map(|(key, phase)| Act::Decide(key, phase, Verdict::Rejected)));
        acts
    }

    pub(super) fn act(&mut self, act: Act) {
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
                let request = Some(self.request(seq, RequestEffect::Run(run_id.clone())));
                self.append(vec![Record::InputQueued {
                    run_id: run_id.clone(),
                    input: input.clone(),
                    overrides: Box::new(overrides.clone()),
                    request,
                    trace: trace(),
                }]);
                let trace = trace();
                self.queue.push_back(QueuedRun { run_id, input, overrides, trace, seq });
            }
            Act::Steer => {
                let (seq, after_turn) = (self.next_seq(), self.turn);
                let input: Content = format!("steer {}", seq.0).as_str().into();
                let request = Some(self.request(seq, RequestEffect::Steered));
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

    pub(super) fn act_in_turn(&mut self, act: Act) {
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
                        turn.handle_response_end(now, ExchangeEnd::Closed);
                    }
                }
            }
            Act::Break => {
                run.exchange = None;
                let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
                turn.handle_response_end(now, ExchangeEnd::Failed(error));
            }
            Act::Answer(place) => {
                let call = run.running.remove(place);
                turn.handle_outcome(now, call.key, answer(&call));
            }
            Act::Decide(key, phase, verdict) => {
                let arguments_sha256 = turn.pending_approval(key).unwrap().arguments_sha256;
                let judgement = Judgement { verdict, message: None };
                let decision = ApprovalDecision { phase: Some(phase), judgement, arguments_sha256 };
                turn.handle_approval(now, key, decision).unwrap();
            }
            Act::Start | Act::Enqueue | Act::Begin | Act::Hear | Act::Steer | Act::Stop(_) => {}
        }
        self.pump();
    }

    pub(super) fn stop(&mut self, mode: StopMode) {
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
    pub(super) fn finish(&mut self) {
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
}
