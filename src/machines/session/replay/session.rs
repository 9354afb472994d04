//! Hands the recorded inputs and the replayed turns to the session machine, and compares the
//! records that it makes with the recorded ones.

use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use super::Replayed;
use crate::session::{
    EMPTY_ANSWER, InputLimits, RecordedAt, RunSpec, RunStage, Session, SessionEffect,
    SessionRunRules, TurnBegin,
};
use crate::turn::replay::{Difference, Mismatch, Recording, ReplayEnd, TurnReplay, same};
use crate::turn::{CommittedTurn, RUN_TIMEOUT_KEY, RunRules};
use callsheet_values::config::{OnShutdown, RunOverrides};
use callsheet_values::record::Record;
use callsheet_values::types::{COMPACT_AT, RequestKind, RunEnd};

type ReplayRulesOf<'t> =
    &'t dyn Fn(&str, &RunOverrides, Option<&str>) -> std::result::Result<Arc<RunRules>, String>;
type Result<T> = std::result::Result<T, Box<Difference>>;
/// The turn that begins next, if the machine waits for one.
type NextTurn = Option<Box<TurnBegin>>;

/// No limits: recorded inputs were accepted once.
const INPUT_LIMITS: InputLimits = InputLimits::inputs(usize::MAX);
const NOTHING_LEADS: &str = "nothing leads to it now";
const DECIDES_ELSE: &str = "something else is decided now";

/// A replay of a session.
#[derive(Clone)]
pub(super) struct SessionReplay<'t, 'a> {
    recording: &'t Recording<'a>,
    rules_of: ReplayRulesOf<'t>,
    /// The index of the next record.
    at: usize,
    session: Session,
    /// The rules that were looked up last, with the overrides of their run and the frozen tools.
    rules: Option<(RunOverrides, Option<Arc<str>>, Arc<RunRules>)>,
    /// The response of the session's initial calls, until their turn begins.
    initial_response: Option<Record>,
    runs: u32,
    calls: usize,
}

impl<'t, 'a> SessionReplay<'t, 'a> {
    pub(super) fn new(recording: &'t Recording<'a>, rules_of: ReplayRulesOf<'t>) -> Self {
        let mut session = match recording.transcript().opening {
            Some(opening) => {
                let (messages, metadata) = (opening.messages.to_vec(), opening.metadata.clone());
                let (parent, client_tools) =
                    (opening.parent.cloned(), opening.client_tools.cloned());
                Session::open(opening.agent, messages, metadata, parent, client_tools)
            }
            None => Session::blank(),
        };
        session.replay_changes();
        let (rules, initial_response) = (None, None);
        let (at, runs, calls) = (0, 0, 0);
        Self { recording, rules_of, at, session, rules, initial_response, runs, calls }
    }

    /// Replays all records. Returns the session at their end.
    pub(super) fn play(mut self) -> Result<(Replayed, Session)> {
        let mut next = self.perform()?;
        while let Some(record) = self.recording.record(self.at) {
            next = match next {
                Some(begin) => self.replay_turn(*begin)?,
                None => self.handle_input(record)?,
            };
        }
        let Self { runs, calls, session, .. } = self;
        let (turns, unfinished) = (session.turn(), session.run().is_some());
        let variables = session.variables().clone();
        Ok((Replayed { runs, turns, calls, records: 0, unfinished, variables }, session))
    }

    /// Hands a recorded input to the machine.
    fn handle_input(&mut self, record: &Record) -> Result<NextTurn> {
        // An idle session starts a run at once and does not queue it.
        let is_idle = self.session.run().is_none() && self.session.queue.is_empty();
        if is_idle && matches!(record, Record::InputQueued { .. }) {
            return Err(self.differs(NOTHING_LEADS, None));
        }
        let refusal = match record {
            Record::RunStarted { .. } | Record::InputQueued { .. } => {
                let Some((run, request)) = RunSpec::from_record(record) else {
                    return Err(self.differs(NOTHING_LEADS, None));
                };
                let rules = self.rules(&self.session.with_client_tools(&run.overrides))?;
                self.session
                    .handle_run_request(run, request.cloned(), INPUT_LIMITS, &|_| {
                        Arc::clone(&rules)
                    })
                    .err()
            }
            Record::Steered { input, request, authored_by, .. } => {
                let (input, request, author) =
                    (input.clone(), request.clone(), authored_by.clone());
                self.session.handle_steer(input, request, author, INPUT_LIMITS).err()
            }
            Record::InputRemoved { run_id, authored_by } => {
                self.session.handle_remove_input(run_id, authored_by.clone()).err()
            }
            Record::RunReopened { run_id, authored_by } => {
                self.session.handle_reopen(run_id.clone(), authored_by.clone());
                None
            }
            Record::StopAsked { mode, authored_by } => {
                self.session.handle_stop(*mode, authored_by.clone());
                None
            }
            Record::ToolsFrozen { sha256 } => {
                if self.session.handle_tools_read(Arc::clone(sha256)) {
                    None
                } else {
                    self.session.handle_tools_refreshed(Arc::clone(sha256)).err()
                }
            }
            // The machine makes none of these here: a fork happens to a stored session, the request to
            // close an idle session has no record of its own, and whether a context is too large
            // depends on the services.
            Record::SessionForked { .. }
            | Record::SessionClosed
            | Record::Compacted { .. }
            | Record::LimitReached { .. }
                if self.recording.is_input(self.at) =>
            {
                self.apply(record)?;
                return self.perform();
            }
            Record::SessionOpened { .. }
            | Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::ResponseEnded { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::CallEnded { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::TurnCommitted { .. }
            | Record::SessionForked { .. }
            | Record::SessionClosed
            | Record::Compacted { .. }
            | Record::LimitReached { .. }
            | Record::Instructed { .. }
            | Record::RunEnded { .. } => return Err(self.differs("no run is open here", None)),
        };
        if let Some(refusal) = refusal {
            return Err(self.differs(&format!("it is refused now ({refusal:?})"), None));
        }
        // The machine ignores an input that changes nothing.
        if self.session.outbox.is_empty() {
            return Err(self.differs(NOTHING_LEADS, None));
        }
        self.perform()
    }

    /// Hands the inputs before the record `end` to the machine. The other records before it are
    /// those of a turn that was replayed.
    fn handle_inputs_before(&mut self, end: usize) -> Result<()> {
        for at in self.at..end {
            if let Some(record) = self.recording.record(at).filter(|_| self.recording.is_input(at))
            {
                self.at = at;
                self.handle_input(record)?;
            }
        }
        self.at = end;
        Ok(())
    }

    /// Performs the effects of the machine until a turn begins, an input is needed or the recording ends.
    fn perform(&mut self) -> Result<NextTurn> {
        while let Some(record) = self.recording.record(self.at) {
            if self.is_before_turn(record) {
                if self.recording.is_input(self.at) {
                    return self.handle_input(record);
                }
                self.apply(record)?;
                continue;
            }
            self.session.shutdown = self.is_shut_down().then_some(OnShutdown::Interrupt);
            let queued = self.session.queue.front().map(|queued| &queued.overrides);
            let queued = queued.map(|overrides| self.session.with_client_tools(overrides));
            let open = self.session.run().map(|run| run.overrides.clone());
            let overrides = open.or(queued);
            let effect = match overrides {
                Some(overrides) => {
                    let rules = self.rules(&overrides)?;
                    self.session.poll(Duration::ZERO, &|_| Arc::clone(&rules))
                }
                // An idle session decides nothing.
                None => self.session.outbox.pop_front(),
            };
            match effect {
                None => break,
                Some(SessionEffect::Record(batch)) => {
                    for made in batch {
                        let Some(recorded) = self.recording.record(self.at) else { break };
                        if self.recording.is_input(self.at)
                            && discriminant(recorded) != discriminant(&made)
                        {
                            // The host stopped before the whole batch was stored. The machine
                            // makes the rest again, after the input that arrived then.
                            self.session.outbox.clear();
                            return self.handle_input(recorded);
                        }
                        self.expect(made)?;
                    }
                }
                Some(SessionEffect::BeginTurn(begin)) => return Ok(Some(begin)),
                Some(
                    SessionEffect::ReadTools
                    | SessionEffect::RequestSummary(_)
                    | SessionEffect::ContextReduced { .. }
                    | SessionEffect::CancelTurn(_)
                    | SessionEffect::RunEnded(_)
                    | SessionEffect::RunRefused { .. }
                    | SessionEffect::Close,
                ) => {}
            }
        }
        Ok(None)
    }

    /// Compares a record of the machine with the next recorded one, and applies it.
    fn expect(&mut self, now: Record) -> Result<()> {
        let recorded = self.recording.record(self.at);
        if let Some(recorded) = recorded.filter(|recorded| follows_empty_answer(recorded, &now)) {
            if matches!(recorded, Record::RunEnded { .. }) {
                return self.apply(recorded);
            }
            self.session.outbox.clear();
            if let Some(run) = &mut self.session.run {
                run.skip_follow_up();
            }
            return Ok(());
        }
        if !recorded.is_some_and(|recorded| same(recorded, &now)) {
            return Err(self.differs(DECIDES_ELSE, Some(now)));
        }
        self.apply(&now)?;
        self.runs += u32::from(matches!(now, Record::RunStarted { .. }));
        if matches!(now, Record::ResponseEnded { .. }) {
            self.initial_response = Some(now);
        }
        Ok(())
    }

    /// Changes the state of the machine by the next record.
    fn apply(&mut self, record: &Record) -> Result<()> {
        let Some(entry) = self.recording.entry(self.at) else { return Ok(()) };
        let at = RecordedAt { seq: entry.seq, time: entry.time, now: Duration::ZERO };
        let session_rules =
            self.rules.as_ref().map(|(_, _, rules)| SessionRunRules::from(&**rules));
        let session_rules_of = |_: &RunOverrides| session_rules.clone().unwrap_or_default();
        let applied = self.session.apply(at, record, &session_rules_of);
        applied.map_err(|reason| self.differs(&reason, None))?;
        self.at += 1;
        Ok(())
    }

    /// Replays the turn that begins now. Inputs may stand before its first record.
    fn replay_turn(&mut self, begin: TurnBegin) -> Result<NextTurn> {
        let initial_response = self.initial_response.take();
        let next = self.recording.next_made(self.at);
        if self.is_given_up(next) {
            // The host forgets the number of a turn without records when it restarts.
            let runs = self.recording.transcript().runs.iter();
            let later = runs.filter(|run| run.start.is_some_and(|start| start.at.index > next));
            let number = later.flat_map(|run| &run.turns).next().map(|turn| turn.number);
            self.session.turn -= u32::from(number == Some(self.session.turn));
            return self.give_up(next, None);
        }
        let TurnBegin { spec, cancel, .. } = begin;
        let turn = TurnReplay::new(self.recording, self.at, spec, initial_response, cancel);
        let (end, turn) = turn.run().map_err(|mismatch| self.mismatch(mismatch))?;
        match turn {
            ReplayEnd::Committed(record) => {
                self.handle_inputs_before(end)?;
                self.calls += record.results.len();
                let next = self.recording.next_made(self.at);
                if self.is_given_up(next) {
                    return self.give_up(next, Some(&record));
                }
                // A change of the context behind the commit concerns the results of the turn too.
                let change = (self.at..next).find(|at| self.is_change(*at));
                self.commit(&record, change.unwrap_or(next))
            }
            ReplayEnd::GivenUp => self.give_up(end, None),
            ReplayEnd::Unfinished => {
                self.handle_inputs_before(end)?;
                Ok(None)
            }
        }
    }

    /// Hands a committed turn to the machine behind the inputs before the record `received`. The
    /// inputs behind the record of a commit may have reached the session before or after the
    /// commit itself: each order is tried, until one leads to the records that follow.
    fn commit(&mut self, turn: &CommittedTurn, received: usize) -> Result<NextTurn> {
        let mut trial = self.clone();
        let next = trial.handle_inputs_before(received).and_then(|()| {
            trial.session.handle_turn_committed(turn);
            trial.perform()
        });
        match next {
            Ok(next) => {
                *self = trial;
                Ok(next)
            }
            Err(difference) if received == self.at => Err(difference),
            Err(difference) => match self.commit(turn, received - 1) {
                // A turn does not begin where the run ends.
                Ok(Some(_)) if self.ends_run() => Err(difference),
                other => other.map_err(|_| difference),
            },
        }
    }

    /// Returns true if the next record that the machine makes is the end of its run.
    fn ends_run(&self) -> bool {
        self.recording.run_end(self.recording.next_made(self.at)).is_some()
    }

    /// Returns true if the record is the end of a run whose actors died too often, or whose journal failed.
    fn is_given_up(&self, at: usize) -> bool {
        self.recording.run_end(at).is_some_and(|end| end.is_given_up())
    }

    /// Ends the run as failed, by the record at `end`.
    fn give_up(&mut self, end: usize, committed: Option<&CommittedTurn>) -> Result<NextTurn> {
        self.handle_inputs_before(end)?;
        let error = self.recording.run_end(end).and_then(|end| end.error);
        if let Some(error) = error {
            self.session.handle_run_failed(Duration::ZERO, committed, error.clone());
        }
        self.perform()
    }

    /// Returns true if the machine waits to begin a turn, and the next record was made before that turn: the end of
    /// the run's time, a change of the context, or an input before one of these. The machine does not wait for them
    /// in a replay, because they depend on the clock and on services.
    fn is_before_turn(&self, record: &Record) -> bool {
        let run = self.session.run.as_deref();
        let is_ready = run.is_some_and(|run| matches!(run.stage, RunStage::Ready(_)));
        // The machine first asks for the tools.
        let reads_tools = matches!(record, Record::ToolsFrozen { .. });
        if !is_ready || reads_tools || !self.session.outbox.is_empty() {
            return false;
        }
        let next = self.recording.next_made(self.at);
        self.is_limit(next, RUN_TIMEOUT_KEY) || (self.at..next).any(|at| self.is_change(at))
    }

    /// Returns true if the record says that this limit was reached.
    fn is_limit(&self, at: usize, of: &str) -> bool {
        let record = self.recording.record(at);
        matches!(record, Some(Record::LimitReached { limit, .. }) if limit == of)
    }

    /// Returns true if the record changes the context, or says that a summary failed.
    fn is_change(&self, at: usize) -> bool {
        matches!(self.recording.record(at), Some(Record::Compacted { .. }))
            || self.is_limit(at, COMPACT_AT)
    }

    /// Returns true if the next queued run is interrupted before its first turn. The records do
    /// not hold the shutdown of the host that leads to it, nor the next start of the host.
    fn is_shut_down(&self) -> bool {
        let end = self.recording.run_end(self.at + 1);
        let end = end.filter(|end| end.end == RunEnd::Interrupted && self.session.run.is_none());
        end.is_some_and(|end| self.session.queue.iter().take(1).any(|run| run.run_id == *end.id))
    }

    /// Returns today's rules of a run.
    fn rules(&mut self, overrides: &RunOverrides) -> Result<Arc<RunRules>> {
        let tools = self.session.frozen_tools();
        if let Some((known, of, rules)) = &self.rules
            && known == overrides
            && of.as_ref() == tools
        {
            return Ok(Arc::clone(rules));
        }
        let rules = (self.rules_of)(&self.session.agent, overrides, tools.map(|tools| &**tools))
            .map_err(|reason| self.differs(&format!("the run could not begin: {reason}"), None))?;
        self.rules = Some((overrides.clone(), tools.cloned(), Arc::clone(&rules)));
        Ok(rules)
    }

    fn mismatch(&mut self, mismatch: Mismatch) -> Box<Difference> {
        let Mismatch { index, now, state } = mismatch;
        self.at = index;
        match now {
            Some(now) => self.differs(DECIDES_ELSE, Some(*now)),
            None => self.differs(&format!("{NOTHING_LEADS} ({state})"), None),
        }
    }

    fn differs(&self, reason: &str, now: Option<Record>) -> Box<Difference> {
        let entry = self.recording.entry(self.at);
        let (recorded, seq) = (entry.map(|e| e.record.clone()), entry.map(|e| e.seq));
        let reason = format!("{reason} (run {}, turn {})", self.runs, self.session.turn());
        Box::new(Difference { seq, recorded, replayed_record: now, reason })
    }
}

/// Returns whether a record of an earlier version followed an empty answer, where the machine makes another one now.
/// Earlier versions asked for a final answer without a message of the host, and ended the run as answered if that was
/// empty too.
fn follows_empty_answer(recorded: &Record, now: &Record) -> bool {
    match (recorded, now) {
        (
            Record::AttemptStarted { .. } | Record::TurnHooksDecided { .. },
            Record::Instructed { request: RequestKind::FinalText, .. },
        ) => true,
        (Record::RunEnded { end: recorded, text, .. }, Record::RunEnded { error, .. }) => {
            let is_empty =
                matches!(recorded, RunEnd::Answered | RunEnd::MaxTurns) && text.trim().is_empty();
            is_empty && error.as_ref().is_some_and(|error| error.code == EMPTY_ANSWER)
        }
        _ => false,
    }
}
