//! One record after the other.
//!
//! A turn's commit is recorded by the owner of the turn, before the session hears of it. What
//! comes of it is decided when the next record shows that the session had heard, or when there
//! are no more: until then what was said to the run stands behind that very turn.

use std::time::Duration;

use super::{Continue, IdempotencyKeys, OpenRun, QueuedRun, RebuildError, Rebuilt, RequestEffect};
use crate::config::{Limits, RunOverrides};
use crate::context::{History, InitialHistory, Variables};
use crate::event::RunStats;
use crate::record::{JournalEntry, Record, RequestKey, Seq, StopMode};
use crate::session::run::{FollowUp, Run, RunNext, TurnPlan};
use crate::transcript::Transcript;
use crate::turn::TurnRecord;
use crate::types::{Content, RunId, Usage};

/// A session up to a record.
pub(super) struct Fold<'a> {
    rest: std::slice::Iter<'a, JournalEntry>,
    limits: &'a dyn Fn(&RunOverrides) -> Limits,
    session: Rebuilt,
    run: Option<Box<Running<'a>>>,
}

/// The run that goes on.
struct Running<'a> {
    open: OpenRun,
    max_result_bytes: usize,
    stage: Stage<'a>,
}

/// Where the run stands.
enum Stage<'a> {
    /// A turn is next, or goes on.
    Turn { plan: TurnPlan, open: Option<OpenTurn<'a>> },
    /// A turn is committed, and whether the session had heard of it is not known.
    Committed(Box<Committed>),
    /// Some of the limits that the turn brought are recorded: this is left to do.
    Told(FollowUp),
}

/// A turn of which something is recorded.
struct OpenTurn<'a> {
    number: u32,
    entries: Vec<&'a JournalEntry>,
}

struct Committed {
    record: TurnRecord,
    /// Whether a user's input stands behind the turn.
    steered: bool,
    /// Whether a stop after the turn was asked since the commit was recorded.
    stopped: bool,
}

impl<'a> Fold<'a> {
    pub(super) fn begin(
        entries: &'a [JournalEntry],
        limits: &'a dyn Fn(&RunOverrides) -> Limits,
    ) -> Result<Self, RebuildError> {
        let mut rest = entries.iter();
        let first = rest.next();
        let Some((first, Record::SessionOpened { agent, messages })) =
            first.map(|entry| (entry, &entry.record))
        else {
            let seq = first.map_or(Seq(1), |entry| entry.seq);
            return Err(wrong(seq, "a session begins with the record that it was opened"));
        };
        let seed = InitialHistory::parse(messages)
            .map_err(|error| wrong(first.seq, format!("it was opened with {error}")))?;
        let session = Rebuilt {
            agent: agent.clone(),
            opened: first.time,
            last: first.seq,
            closed: false,
            history: History::from_initial(seed),
            variables: Variables::default(),
            usage: Usage::default(),
            turn: 0,
            queue: Vec::new(),
            requests: IdempotencyKeys::default(),
            run: None,
        };
        Ok(Self { rest, limits, session, run: None })
    }

    /// Takes in a record, if there is one more. Gives the run that it has ended, if it has.
    pub(super) fn take_in_next(&mut self) -> Result<Option<Option<OpenRun>>, RebuildError> {
        let Some(entry) = self.rest.next() else { return Ok(None) };
        let seq = entry.seq;
        if seq.0 != self.session.last.0 + 1 {
            let last = self.session.last.0;
            return Err(wrong(seq, format!("it follows record {last}")));
        }
        if self.session.closed {
            return Err(wrong(seq, "the session is closed"));
        }
        self.session.last = seq;
        let ended = self.take_in(entry).map_err(|what| wrong(seq, what))?;
        Ok(Some(ended))
    }

    /// What all the records leave.
    pub(super) fn finish(mut self) -> Rebuilt {
        self.session.run = self.run.take().map(|run| run.finish());
        self.session
    }

    fn take_in(&mut self, entry: &'a JournalEntry) -> Result<Option<OpenRun>, String> {
        match &entry.record {
            Record::SessionOpened { .. } => return Err("the session was opened before".to_owned()),
            // What was asked of the other session, and what waits in it, is its own business.
            Record::SessionForked { .. } => {
                self.session.requests = IdempotencyKeys::default();
                self.session.queue.clear();
                self.session.opened = entry.time;
            }
            Record::InputQueued { run_id, input, overrides, request, trace } => {
                self.remember(request.as_ref(), entry.seq, RequestEffect::Run(run_id.clone()));
                self.session.queue.push(QueuedRun {
                    run_id: run_id.clone(),
                    input: input.clone(),
                    overrides: (**overrides).clone(),
                    trace: trace.clone(),
                    seq: entry.seq,
                });
                self.pass(entry);
            }
            Record::RunStarted { run_id, input, overrides, request, trace, .. } => {
                self.remember(request.as_ref(), entry.seq, RequestEffect::Run(run_id.clone()));
                self.begin_run(entry, run_id, input, overrides)?;
                if let Some(run) = &mut self.run {
                    run.open.trace.clone_from(trace);
                }
            }
            Record::Steered { input, after_turn, request } => {
                self.remember(request.as_ref(), entry.seq, RequestEffect::Steered);
                self.steer(input, *after_turn)?;
                self.pass(entry);
            }
            Record::StopAsked { mode } => {
                self.running()?.stop(*mode);
                self.pass(entry);
            }
            Record::LimitReached { limit, note, .. } => {
                note.iter().for_each(|note| self.session.history.add_note(note));
                self.running()?.take_in_limit(limit, entry.seq);
                self.pass(entry);
            }
            Record::RunEnded { run_id, .. } => return self.end_run(run_id).map(Some),
            Record::SessionClosed => self.session.closed = true,
            Record::AttemptStarted { turn, .. }
            | Record::AttemptFailed { turn, .. }
            | Record::ResponseEnded { turn, .. } => self.go_on(*turn, entry)?,
            Record::CallIntended { call, .. } => self.go_on(call.key.turn, entry)?,
            Record::CallReported { key, .. } | Record::ApprovalGiven { key, .. } => {
                self.go_on(key.turn, entry)?;
            }
            Record::ApprovalAsked { asked } => self.go_on(asked.call.key.turn, entry)?,
            Record::CallEnded { call, .. } => self.go_on(call.key.turn, entry)?,
            Record::TurnCommitted { turn, .. } => {
                self.go_on(*turn, entry)?;
                self.commit(*turn, entry.seq)?;
            }
        }
        Ok(None)
    }

    fn remember(&mut self, request: Option<&RequestKey>, seq: Seq, brought: RequestEffect) {
        if let Some(request) = request {
            self.session.requests.remember(request.clone(), seq, brought);
        }
    }

    fn running(&mut self) -> Result<&mut Running<'a>, String> {
        self.run.as_deref_mut().ok_or_else(|| "no run goes on".to_owned())
    }

    /// A record that is not the turn's own, but may stand between those of it.
    fn pass(&mut self, entry: &'a JournalEntry) {
        let stage = self.run.as_mut().map(|run| &mut run.stage);
        if let Some(Stage::Turn { open: Some(turn), .. }) = stage {
            turn.entries.push(entry);
        }
    }

    fn begin_run(
        &mut self,
        entry: &JournalEntry,
        id: &RunId,
        input: &Content,
        overrides: &RunOverrides,
    ) -> Result<(), String> {
        let seq = entry.seq;
        if let Some(run) = &self.run {
            return Err(format!("run {} has not ended", run.open.id));
        }
        let session = &mut self.session;
        session.queue.retain(|queued| queued.run_id != *id);
        let limits = (self.limits)(overrides);
        let mut machine = Run::new(&limits);
        let is_seeded = session.history.open_calls().is_some();
        let plan = if is_seeded { machine.begin_with_calls() } else { machine.begin() };
        let first_message = session.history.messages().len();
        session.history.begin_run(input.clone());
        let open = OpenRun {
            id: id.clone(),
            overrides: overrides.clone(),
            trace: None,
            seq,
            began: entry.time,
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
        let (max_result_bytes, stage) = (limits.max_result_bytes, Stage::Turn { plan, open: None });
        self.run = Some(Box::new(Running { open, max_result_bytes, stage }));
        Ok(())
    }

    fn steer(&mut self, input: &Content, after_turn: u32) -> Result<(), String> {
        let turn = self.session.turn;
        self.running()?.steer(after_turn, turn);
        self.session.history.steer(after_turn, input.clone());
        Ok(())
    }

    /// A record of this turn.
    fn go_on(&mut self, number: u32, entry: &'a JournalEntry) -> Result<(), String> {
        let last = self.session.turn;
        let run = self.running()?;
        run.begin_turn();
        let Stage::Turn { open, .. } = &mut run.stage else { return Ok(()) };
        if open.is_none() && number <= last {
            return Err(format!("it is of turn {number}, and turn {last} is over"));
        }
        let turn = open.get_or_insert_with(|| OpenTurn { number, entries: Vec::new() });
        if turn.number != number {
            return Err(format!("it is of turn {number}, and turn {} goes on", turn.number));
        }
        turn.entries.push(entry);
        self.session.turn = number;
        Ok(())
    }

    fn commit(&mut self, number: u32, seq: Seq) -> Result<(), String> {
        let session = &mut self.session;
        let Some(run) = self.run.as_deref_mut() else { return Ok(()) };
        let Stage::Turn { open, .. } = &mut run.stage else { return Ok(()) };
        let entries = open.take().map(|turn| turn.entries).unwrap_or_default();
        let transcript = Transcript::read(entries);
        let committed = transcript.runs.iter().flat_map(|run| run.committed()).next();
        let (turn, commit) = committed.ok_or("it is not the commit of the turn")?;
        let record = TurnRecord::from_transcript(turn, commit)
            .map_err(|key| format!("call {key} of the turn has no outcome"))?;
        let steered = session.history.undelivered() > 0;
        let (message, bytes_max) = (record.message.as_ref(), run.max_result_bytes);
        session.history.commit(number, message, &record.results, bytes_max);
        record.results.iter().for_each(|result| session.variables.apply(&result.writes));
        session.usage += record.usage;
        run.open.add(&record, seq);
        run.stage = Stage::Committed(Box::new(Committed { record, steered, stopped: false }));
        Ok(())
    }

    fn end_run(&mut self, id: &RunId) -> Result<OpenRun, String> {
        let open = &self.running()?.open;
        if open.id != *id {
            return Err(format!("run {} goes on, and it is the end of {id}", open.id));
        }
        let Some(run) = self.run.take() else { return Err("no run goes on".to_owned()) };
        self.session.history.end_run();
        Ok(run.open)
    }
}

impl OpenRun {
    /// A turn is in the history, with the record `seq`.
    fn add(&mut self, record: &TurnRecord, seq: Seq) {
        self.stats.add(record.usage, record.results.len(), &record.times);
        self.people += record.times.people;
        self.elapsed += record.times.total;
        self.turn_after = seq;
        let results = record.results.iter().cloned().map(|result| (record.usage, result));
        self.results.extend(results);
    }
}

impl Running<'_> {
    /// How a run was asked to stop. One that is sooner counts.
    fn stop(&mut self, mode: StopMode) {
        if self.open.stops != Some(StopMode::Now) {
            self.open.stops = Some(mode);
        }
        match (mode, &mut self.stage) {
            (StopMode::Now, _) => {}
            (StopMode::AfterTurn, Stage::Committed(committed)) => committed.stopped = true,
            (StopMode::AfterTurn, Stage::Turn { .. } | Stage::Told(_)) => {
                self.open.machine.handle_stop_after_turn();
            }
        }
    }

    /// The user said something while `after_turn` went on; `last` is the last turn of which there
    /// is a record.
    fn steer(&mut self, after_turn: u32, last: u32) {
        match &mut self.stage {
            Stage::Committed(committed) if after_turn <= last => committed.steered = true,
            Stage::Committed(_) | Stage::Told(_) if after_turn > last => self.begin_turn(),
            Stage::Committed(_) | Stage::Told(_) | Stage::Turn { .. } => {}
        }
    }

    /// A limit is told: of the turn that goes on, or of the one that is committed.
    fn take_in_limit(&mut self, limit: &str, seq: Seq) {
        self.decide(|step| step.limits.first().is_some_and(|hit| hit.limit == limit));
        if let Stage::Told(step) = &mut self.stage {
            if !step.limits.is_empty() {
                step.limits.remove(0);
            }
            self.open.turn_after = seq;
        }
    }

    /// The next turn has begun, so the session had heard of the last commit.
    fn begin_turn(&mut self) {
        self.decide(|step| step.limits.is_empty() && matches!(step.next, RunNext::Turn(_)));
        let Stage::Told(step) = &self.stage else { return };
        let plan = match step.next {
            RunNext::Turn(plan) => plan,
            // By the limits of today it would have been over.
            RunNext::End { .. } => self.open.machine.begin(),
        };
        self.stage = Stage::Turn { plan, open: None };
    }

    /// Decides what comes of a commit. Where a stop may have come before or after that, `fits`
    /// says which of them the records show.
    fn decide(&mut self, fits: impl Fn(&FollowUp) -> bool) {
        let Stage::Committed(committed) = &self.stage else { return };
        let Committed { record, steered, stopped } = committed.as_ref();
        let machine = &mut self.open.machine;
        let mut unstopped = machine.clone();
        if *stopped {
            machine.handle_stop_after_turn();
        }
        let mut step = machine.handle_turn(record, *steered);
        if *stopped && !fits(&step) {
            step = unstopped.handle_turn(record, *steered);
            unstopped.handle_stop_after_turn();
            *machine = unstopped;
        }
        self.stage = Stage::Told(step);
    }

    fn finish(mut self) -> OpenRun {
        self.decide(|_| true);
        self.open.next = match self.stage {
            Stage::Turn { plan, open } => {
                let entries = open.map(|turn| turn.entries).unwrap_or_default();
                Continue::Turn { plan, entries: entries.into_iter().cloned().collect() }
            }
            Stage::Told(FollowUp { limits, next: RunNext::Turn(plan) }) if limits.is_empty() => {
                Continue::Turn { plan, entries: Vec::new() }
            }
            Stage::Told(step) => Continue::Step(step),
            Stage::Committed(_) => return self.open,
        };
        self.open
    }
}

fn wrong(seq: Seq, what: impl Into<String>) -> RebuildError {
    RebuildError { seq, what: what.into() }
}
