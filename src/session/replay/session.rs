//! Replays a session, one run after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Replayed;
use super::recorded_context::RecordedContext;
use crate::config::RunOverrides;
use crate::context::{History, InitialHistory};
use crate::event::StatsReport;
use crate::record::{Record, StopMode};
use crate::session::run::{FollowUp, Run, RunNext, TurnPlan};
use crate::turn::replay::{
    Difference, ExternalInput, Mismatch, Recording, ReplayEnd, TurnReplay, same,
};
use crate::turn::{InitialCallsStart, LimitHit, TurnRecord, TurnRules, TurnSpec};
use crate::types::{Content, RunEnd, RunId, SessionId, Usage};

type ReplayRulesOf<'t> =
    &'t dyn Fn(&str, &RunOverrides) -> std::result::Result<Arc<TurnRules>, String>;
type Result<T> = std::result::Result<T, Box<Difference>>;

/// A replay of a session.
pub(super) struct SessionReplay<'t, 'a> {
    recording: &'t Recording<'a>,
    id: &'t SessionId,
    rules_of: ReplayRulesOf<'t>,
    /// The index of the next record.
    at: usize,
    agent: String,
    queue: VecDeque<(RunId, Content, RunOverrides)>,
    /// The context that the records hold.
    recorded: RecordedContext,
    done: Replayed,
}

/// The run that is replayed.
struct ReplayedRun {
    id: RunId,
    rules: Arc<TurnRules>,
    machine: Run,
    calls: usize,
    usage: Usage,
}

/// The end of the recording, which may come within a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordingEnd {
    NotReached,
    Reached,
}

impl<'t, 'a> SessionReplay<'t, 'a> {
    pub(super) fn new(
        recording: &'t Recording<'a>,
        id: &'t SessionId,
        rules_of: ReplayRulesOf<'t>,
    ) -> Self {
        Self {
            recording,
            id,
            rules_of,
            at: 0,
            agent: String::new(),
            queue: VecDeque::new(),
            recorded: RecordedContext::default(),
            done: Replayed::default(),
        }
    }

    pub(super) fn play(mut self) -> Result<Replayed> {
        let transcript = self.recording.transcript();
        if let Some(opening) = transcript.opening {
            self.agent = opening.agent.to_owned();
            let initial = InitialHistory::parse(opening.messages).unwrap_or_default();
            self.done.history = History::from_initial(initial);
            self.recorded.history = self.done.history.clone();
            self.at = 1;
        }
        while self.recording.record(self.at).is_some() {
            let start = self.recording.run(self.at).and_then(|run| run.start);
            if let Some(start) = start.filter(|start| start.at.index == self.at) {
                self.run(start.id, start.input, start.overrides)?;
            } else if let Some(input) = self.recording.input(self.at) {
                self.handle_input(input, None);
                self.at += 1;
            } else if transcript.closed.is_some_and(|closed| closed.index == self.at) {
                self.at += 1;
            } else {
                return Err(self.differs("no run is open here", None));
            }
        }
        self.recorded.compare(&self.done)?;
        Ok(self.done)
    }

    fn run(&mut self, id: &RunId, input: &Content, overrides: &RunOverrides) -> Result<()> {
        let rules = (self.rules_of)(&self.agent, overrides)
            .map_err(|reason| self.differs(&format!("the run could not begin: {reason}"), None))?;
        let queued = self.queue.iter().position(|(queued, ..)| queued == id);
        let queued = queued.and_then(|place| self.queue.drain(..=place).next_back());
        let (input, overrides) = match queued {
            Some((_, input, overrides)) => (input, overrides),
            None => (input.clone(), overrides.clone()),
        };
        self.expect(
            Record::RunStarted {
                run_id: id.clone(),
                input: input.clone(),
                overrides: Box::new(overrides),
                model: rules.models.first().origin.model.clone(),
                execution: rules.execution,
                request: None,
                trace: None,
            },
            None,
        )?;
        self.done.runs += 1;
        let seeded = self.done.history.initial_calls();
        let seeded = seeded.map(|calls| InitialCallsStart::new(self.done.turns + 1, calls, &rules));
        self.done.history.begin_run(input.clone());
        self.recorded.history.begin_run(input);
        let machine = Run::new(&rules.limits);
        let usage = Usage::default();
        let run = ReplayedRun { id: id.clone(), rules, machine, calls: 0, usage };
        let end = if self.is_interrupted(id) {
            // It was queued when its host was shut down.
            self.at += 1;
            RecordingEnd::NotReached
        } else {
            self.turns(run, seeded)?
        };
        match end {
            RecordingEnd::Reached => self.done.unfinished = true,
            RecordingEnd::NotReached => {
                self.done.history.end_run();
                self.recorded.history.end_run();
            }
        }
        Ok(())
    }

    /// Replays one turn after the other, up to the end of the run or of the recording.
    fn turns(
        &mut self,
        mut run: ReplayedRun,
        mut seeded: Option<InitialCallsStart>,
    ) -> Result<RecordingEnd> {
        let mut plan = match seeded {
            Some(_) => Run::plan_of_initial_calls(),
            None => run.machine.begin(),
        };
        loop {
            let from = self.at;
            let record = match self.turn(&mut run, plan, seeded.take())? {
                ReplayEnd::Committed(record) => record,
                ReplayEnd::GivenUp => {
                    self.at += 1;
                    return Ok(RecordingEnd::NotReached);
                }
                ReplayEnd::Unfinished => return Ok(RecordingEnd::Reached),
            };
            let step = self.commit(&mut run, &record, from);
            for limit in step.limits {
                if self.record_limit(limit, &mut run)? == RecordingEnd::Reached {
                    return Ok(RecordingEnd::Reached);
                }
            }
            if self.recording.run_end(self.at).is_some_and(|end| end.is_given_up()) {
                self.at += 1;
                return Ok(RecordingEnd::NotReached);
            }
            match step.next {
                RunNext::Turn(next) => plan = next,
                RunNext::End { end, text, error } => {
                    let stats = StatsReport {
                        turns: run.machine.turns(),
                        tool_calls: u32::try_from(run.calls).unwrap_or(u32::MAX),
                        input_tokens: run.usage.input_tokens,
                        output_tokens: run.usage.output_tokens,
                        ..StatsReport::default()
                    };
                    let run_id = run.id.clone();
                    let waiting = self.queue.len() as u64;
                    let now = Record::RunEnded { run_id, end, text, error, stats, waiting };
                    return self.expect(now, Some(&mut run));
                }
            }
        }
    }

    /// Replays a turn, whose first record is the next one.
    fn turn(
        &mut self,
        run: &mut ReplayedRun,
        plan: TurnPlan,
        seeded: Option<InitialCallsStart>,
    ) -> Result<ReplayEnd> {
        self.done.turns += 1;
        let mut response = None;
        if let Some(InitialCallsStart { response: initial, limit }) = seeded {
            if self.expect(initial.clone(), Some(run))? == RecordingEnd::Reached {
                return Ok(ReplayEnd::Unfinished);
            }
            if let Some(limit) = limit
                && self.record_limit(limit, run)? == RecordingEnd::Reached
            {
                return Ok(ReplayEnd::Unfinished);
            }
            response = Some(initial);
        }
        let from = self.at;
        let spec = self.spec(run, plan);
        let played = TurnReplay::new(self.recording, from, spec, response).run();
        let (at, played) = played.map_err(|mismatch| self.mismatch(mismatch))?;
        for index in from..at {
            if let Some(input) = self.recording.input(index) {
                self.handle_input(input, Some(run));
            }
        }
        self.at = at;
        Ok(played)
    }

    fn spec(&self, run: &ReplayedRun, plan: TurnPlan) -> TurnSpec {
        let history = &self.done.history;
        // Up to a fork the records, and the keys in them, are those of another session.
        let forks = &self.recording.transcript().forks;
        let other = forks.iter().find(|fork| fork.at.index >= self.at).map(|fork| fork.from);
        TurnSpec {
            number: self.done.turns,
            turns_with_calls: history.turns_with_calls(),
            used_call_ids: history.used_call_ids(),
            last_request: plan.final_answer_request,
            budget: run.machine.budget(),
            began: Duration::ZERO,
            run_time_left: run.rules.limits.run_timeout,
            variables: self.done.variables.clone(),
            seed: 0,
            idempotency_scope: other.unwrap_or(self.id).as_str().to_owned(),
            rules: Arc::clone(&run.rules),
        }
    }

    /// Commits a turn whose records begin at `from`.
    fn commit(&mut self, run: &mut ReplayedRun, record: &TurnRecord, from: usize) -> FollowUp {
        let stops_later = self.handle_inputs_before_commit(run, record.number);
        let bytes_max = run.rules.limits.max_result_bytes;
        let steered = self.done.history.pending_inputs() > 0;
        let (message, results) = (record.message.as_ref(), &record.results);
        self.done.history.commit(record.number, message, results, bytes_max);
        results.iter().for_each(|result| self.done.variables.apply(&result.writes));
        self.done.calls += results.len();
        run.calls += results.len();
        run.usage += record.usage;
        if let Some(turn) = self.recording.turn(from) {
            self.recorded.commit(turn, bytes_max);
        }
        let step = run.machine.handle_turn(record, steered);
        if stops_later {
            run.machine.handle_stop_after_turn();
        }
        step
    }

    /// Handles the inputs that reached the session before the commit: they follow it in the
    /// records. Returns true if a stop came after the commit, which the next record shows: another
    /// turn begins.
    fn handle_inputs_before_commit(&mut self, run: &mut ReplayedRun, turn: u32) -> bool {
        let mut stops_later = false;
        let next = self.recording.next_made(self.at);
        let attempt = self.recording.turn(next).and_then(|turn| turn.attempts.first()?.start);
        let goes_on = attempt.is_some_and(|start| start.at.index == next);
        while let Some(input) = self.recording.input(self.at) {
            match input {
                ExternalInput::Steered(steer) if steer.after_turn > turn => break,
                ExternalInput::Stop(StopMode::AfterTurn) if goes_on => stops_later = true,
                ExternalInput::Queued(_)
                | ExternalInput::Steered(_)
                | ExternalInput::Stop(_)
                | ExternalInput::Fork => self.handle_input(input, Some(run)),
            }
            self.at += 1;
        }
        stops_later
    }

    fn record_limit(&mut self, hit: LimitHit, run: &mut ReplayedRun) -> Result<RecordingEnd> {
        let LimitHit { limit, value, maximum, action, note } = hit;
        let (limit, action) = (limit.to_owned(), action.to_owned());
        let model_note = note.clone();
        let now = Record::LimitReached { limit, value, maximum, action, note };
        let end = self.expect(now, Some(run))?;
        if let (RecordingEnd::NotReached, Some(note)) = (end, model_note) {
            self.done.history.add_note(&note);
            self.recorded.history.add_note(&note);
        }
        Ok(end)
    }

    fn handle_input(&mut self, input: ExternalInput<'a>, run: Option<&mut ReplayedRun>) {
        match input {
            ExternalInput::Queued(queued) => {
                let (run, input) = (queued.run.clone(), queued.input.clone());
                self.queue.push_back((run, input, queued.overrides.clone()));
            }
            ExternalInput::Steered(steer) => {
                self.done.history.steer(steer.after_turn, steer.input.clone());
                self.recorded.history.steer(steer.after_turn, steer.input.clone());
            }
            ExternalInput::Stop(StopMode::AfterTurn) => {
                run.into_iter().for_each(|run| run.machine.handle_stop_after_turn());
            }
            ExternalInput::Stop(StopMode::Now) | ExternalInput::Fork => {}
        }
    }

    /// Compares a record that the session makes now with the next recorded one.
    fn expect(&mut self, now: Record, mut run: Option<&mut ReplayedRun>) -> Result<RecordingEnd> {
        let next = self.recording.next_made(self.at);
        while self.at < next {
            if let Some(input) = self.recording.input(self.at) {
                self.handle_input(input, run.as_deref_mut());
            }
            self.at += 1;
        }
        let Some(recorded) = self.recording.record(self.at) else {
            return Ok(RecordingEnd::Reached);
        };
        if !same(recorded, &now) {
            return Err(self.differs("something else is decided now", Some(now)));
        }
        self.at += 1;
        Ok(RecordingEnd::NotReached)
    }

    /// Returns true if the run ends here without a turn, because the host was shut down.
    fn is_interrupted(&self, id: &RunId) -> bool {
        let end = self.recording.run_end(self.at);
        end.is_some_and(|end| end.id == id && end.end == RunEnd::Interrupted)
    }

    fn mismatch(&mut self, mismatch: Mismatch) -> Box<Difference> {
        let Mismatch { at, now, state } = mismatch;
        self.at = at;
        match now {
            Some(now) => self.differs("something else is decided now", Some(*now)),
            None => self.differs(&format!("nothing leads to it now ({state})"), None),
        }
    }

    fn differs(&self, reason: &str, now: Option<Record>) -> Box<Difference> {
        let entry = self.recording.entry(self.at);
        let (recorded, seq) = (entry.map(|e| e.record.clone()), entry.map(|e| e.seq));
        let turn = self.done.turns;
        let reason = format!("{reason} (run {}, turn {turn})", self.done.runs);
        Box::new(Difference { seq, recorded, now, reason })
    }
}
