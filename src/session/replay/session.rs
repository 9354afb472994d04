//! Run after run, as a session goes through them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Replayed;
use super::told::Told;
use crate::config::RunOverrides;
use crate::context::{History, InitialHistory};
use crate::event::StatsReport;
use crate::record::{Record, StopMode};
use crate::session::run::{FollowUp, Run, RunNext, TurnPlan};
use crate::turn::replay::{Difference, Mismatch, Play, Played, Tape, gives_up, is_input, same};
use crate::turn::{InitialCallsTurn, LimitHit, TurnRecord, TurnRules, TurnSpec};
use crate::types::{Content, RunEnd, RunId, SessionId, Usage};

type RulesOf<'t> = &'t dyn Fn(&str, &RunOverrides) -> std::result::Result<Arc<TurnRules>, String>;
type Result<T> = std::result::Result<T, Box<Difference>>;

/// A session that is played.
pub(super) struct Session<'t, 'a> {
    tape: &'t Tape<'a>,
    id: &'t SessionId,
    rules_of: RulesOf<'t>,
    /// The next record.
    at: usize,
    agent: String,
    queue: VecDeque<(RunId, Content, RunOverrides)>,
    told: Told,
    done: Replayed,
}

/// The run that is played.
struct ActiveRun {
    id: RunId,
    rules: Arc<TurnRules>,
    machine: Run,
    calls: usize,
    usage: Usage,
}

/// Whether the recording ends here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    GoesOn,
    Over,
}

impl<'t, 'a> Session<'t, 'a> {
    pub(super) fn new(tape: &'t Tape<'a>, id: &'t SessionId, rules_of: RulesOf<'t>) -> Self {
        Self {
            tape,
            id,
            rules_of,
            at: 0,
            agent: String::new(),
            queue: VecDeque::new(),
            told: Told::default(),
            done: Replayed::default(),
        }
    }

    pub(super) fn play(mut self) -> Result<Replayed> {
        while let Some(record) = self.tape.record(self.at) {
            match record {
                Record::SessionOpened { agent, messages } => {
                    self.agent.clone_from(agent);
                    self.done.history =
                        History::from_initial(InitialHistory::parse(messages).unwrap_or_default());
                    self.told.history = self.done.history.clone();
                }
                Record::RunStarted { run_id, input, overrides, .. } => {
                    self.run(run_id, input, overrides)?;
                    continue;
                }
                Record::InputQueued { .. }
                | Record::Steered { .. }
                | Record::StopAsked { .. }
                | Record::SessionForked { .. } => self.take_input(self.at, None),
                Record::SessionClosed => {}
                Record::AttemptStarted { .. }
                | Record::AttemptFailed { .. }
                | Record::ResponseEnded { .. }
                | Record::CallIntended { .. }
                | Record::CallReported { .. }
                | Record::ApprovalAsked { .. }
                | Record::ApprovalGiven { .. }
                | Record::CallEnded { .. }
                | Record::TurnCommitted { .. }
                | Record::LimitReached { .. }
                | Record::RunEnded { .. } => {
                    return Err(self.differs("no run goes on here", None));
                }
            }
            self.at += 1;
        }
        self.told.compare(&self.done)?;
        Ok(self.done)
    }

    fn run(&mut self, id: &RunId, input: &Content, overrides: &RunOverrides) -> Result<()> {
        let rules = (self.rules_of)(&self.agent, overrides)
            .map_err(|why| self.differs(&format!("the run could not begin: {why}"), None))?;
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
        let seeded = self.done.history.open_calls();
        let seeded = seeded.map(|calls| InitialCallsTurn::new(self.done.turns + 1, calls, &rules));
        self.done.history.begin_run(input.clone());
        self.told.history.begin_run(input);
        let machine = Run::new(&rules.limits);
        let usage = Usage::default();
        let run = ActiveRun { id: id.clone(), rules, machine, calls: 0, usage };
        let tail = if self.tape.record(self.at).is_some_and(|record| is_interrupted(record, id)) {
            // It had waited when its host was shut down.
            self.at += 1;
            Tail::GoesOn
        } else {
            self.turns(run, seeded)?
        };
        match tail {
            Tail::Over => self.done.unfinished = true,
            Tail::GoesOn => {
                self.done.history.end_run();
                self.told.history.end_run();
            }
        }
        Ok(())
    }

    /// Turn after turn, up to the end of the run or of the recording.
    fn turns(&mut self, mut run: ActiveRun, mut seeded: Option<InitialCallsTurn>) -> Result<Tail> {
        let mut plan = match seeded {
            Some(_) => run.machine.begin_with_calls(),
            None => run.machine.begin(),
        };
        loop {
            let from = self.at;
            let record = match self.turn(&mut run, plan, seeded.take())? {
                Played::Committed(record) => record,
                Played::GivenUp => {
                    self.at += 1;
                    return Ok(Tail::GoesOn);
                }
                Played::Unfinished => return Ok(Tail::Over),
            };
            let step = self.commit(&mut run, &record, from);
            for limit in step.limits {
                if self.tell_limit(limit, &mut run)? == Tail::Over {
                    return Ok(Tail::Over);
                }
            }
            if self.tape.record(self.at).is_some_and(gives_up) {
                self.at += 1;
                return Ok(Tail::GoesOn);
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

    /// Plays one turn, whose first record is the next one.
    fn turn(
        &mut self,
        run: &mut ActiveRun,
        plan: TurnPlan,
        seeded: Option<InitialCallsTurn>,
    ) -> Result<Played> {
        self.done.turns += 1;
        let mut response = None;
        if let Some(InitialCallsTurn { response: said, limit }) = seeded {
            if self.expect(said.clone(), Some(run))? == Tail::Over {
                return Ok(Played::Unfinished);
            }
            if let Some(limit) = limit
                && self.tell_limit(limit, run)? == Tail::Over
            {
                return Ok(Played::Unfinished);
            }
            response = Some(said);
        }
        let from = self.at;
        let spec = self.spec(run, plan);
        let played = Play::new(self.tape, from, spec, response).run();
        let (at, played) = played.map_err(|mismatch| self.mismatch(mismatch))?;
        for input in from..at {
            if self.tape.record(input).is_some_and(is_input) {
                self.take_input(input, Some(run));
            }
        }
        self.at = at;
        Ok(played)
    }

    fn spec(&self, run: &ActiveRun, plan: TurnPlan) -> TurnSpec {
        let history = &self.done.history;
        // Up to a fork the records, and the keys in them, are those of another session.
        let other = self.tape.from(self.at).find_map(|(_, record)| {
            let Record::SessionForked { from, .. } = record else { return None };
            Some(from)
        });
        TurnSpec {
            number: self.done.turns,
            turns_with_calls: history.turns_with_calls(),
            held_ids: history.held_ids(),
            last_request: plan.last_request,
            budget: run.machine.budget(),
            began: Duration::ZERO,
            run_time_left: run.rules.limits.run_timeout,
            variables: self.done.variables.clone(),
            seed: 0,
            idempotency_scope: other.unwrap_or(self.id).as_str().to_owned(),
            rules: Arc::clone(&run.rules),
        }
    }

    /// The turn whose records begin at `from` is over.
    fn commit(&mut self, run: &mut ActiveRun, record: &TurnRecord, from: usize) -> FollowUp {
        let stops_later = self.take_inputs_before_the_commit(run, record.number);
        let bytes_max = run.rules.limits.max_result_bytes;
        let steered = self.done.history.undelivered() > 0;
        let (message, results) = (record.message.as_ref(), &record.results);
        self.done.history.commit(record.number, message, results, bytes_max);
        results.iter().for_each(|result| self.done.variables.apply(&result.writes));
        self.done.calls += results.len();
        run.calls += results.len();
        run.usage += record.usage;
        self.told.commit(self.tape, (from, self.at), record.number, bytes_max);
        let step = run.machine.handle_turn(record, steered);
        if stops_later {
            run.machine.handle_stop_after_turn();
        }
        step
    }

    /// What reached the session before it heard that the turn was over stands behind that in the
    /// records. Whether a stop did shows in what came next: another turn, or none.
    fn take_inputs_before_the_commit(&mut self, run: &mut ActiveRun, turn: u32) -> bool {
        let mut stops_later = false;
        let next = self.tape.record(self.tape.next_asked(self.at));
        let goes_on = matches!(next, Some(Record::AttemptStarted { .. }));
        while let Some(record) = self.tape.record(self.at).filter(|record| is_input(record)) {
            if matches!(record, Record::Steered { after_turn, .. } if *after_turn > turn) {
                break;
            }
            if goes_on && matches!(record, Record::StopAsked { mode: StopMode::AfterTurn }) {
                stops_later = true;
            } else {
                self.take_input(self.at, Some(run));
            }
            self.at += 1;
        }
        stops_later
    }

    fn tell_limit(&mut self, hit: LimitHit, run: &mut ActiveRun) -> Result<Tail> {
        let LimitHit { limit, value, maximum, action, note } = hit;
        let (limit, action) = (limit.to_owned(), action.to_owned());
        let told = note.clone();
        let now = Record::LimitReached { limit, value, maximum, action, note };
        let tail = self.expect(now, Some(run))?;
        if let (Tail::GoesOn, Some(note)) = (tail, told) {
            self.done.history.add_note(&note);
            self.told.history.add_note(&note);
        }
        Ok(tail)
    }

    /// Takes in what came from outside.
    fn take_input(&mut self, at: usize, run: Option<&mut ActiveRun>) {
        let Some(record) = self.tape.record(at) else { return };
        if let Record::InputQueued { run_id, input, overrides, .. } = record {
            self.queue.push_back((run_id.clone(), input.clone(), (**overrides).clone()));
        } else if let Record::Steered { input, after_turn, .. } = record {
            self.done.history.steer(*after_turn, input.clone());
            self.told.history.steer(*after_turn, input.clone());
        } else if let (Record::StopAsked { mode: StopMode::AfterTurn }, Some(run)) = (record, run) {
            run.machine.handle_stop_after_turn();
        }
    }

    /// Compares what the session would record with what it did.
    fn expect(&mut self, now: Record, mut run: Option<&mut ActiveRun>) -> Result<Tail> {
        let asked = self.tape.next_asked(self.at);
        while self.at < asked {
            if self.tape.record(self.at).is_some_and(is_input) {
                self.take_input(self.at, run.as_deref_mut());
            }
            self.at += 1;
        }
        let Some(recorded) = self.tape.record(self.at) else { return Ok(Tail::Over) };
        if !same(recorded, &now) {
            return Err(self.differs("something else is decided now", Some(now)));
        }
        self.at += 1;
        Ok(Tail::GoesOn)
    }

    fn mismatch(&mut self, mismatch: Mismatch) -> Box<Difference> {
        let Mismatch { at, now, state } = mismatch;
        self.at = at;
        match now {
            Some(now) => self.differs("something else is decided now", Some(*now)),
            None => self.differs(&format!("nothing leads to it now ({state})"), None),
        }
    }

    fn differs(&self, why: &str, now: Option<Record>) -> Box<Difference> {
        let entry = self.tape.entry(self.at);
        let (recorded, seq) = (entry.map(|e| e.record.clone()), entry.map(|e| e.seq));
        let turn = self.done.turns;
        let why = format!("{why} (run {}, turn {turn})", self.done.runs);
        Box::new(Difference { seq, recorded, now, why })
    }
}

/// Whether the run ends before it has had a turn.
fn is_interrupted(record: &Record, run: &RunId) -> bool {
    matches!(record, Record::RunEnded { run_id, end: RunEnd::Interrupted, .. } if run_id == run)
}
