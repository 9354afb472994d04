//! The turn's surroundings, and what may happen in them.

use super::approvals::Question;
use super::variables::{Begun, work};
use super::*;
use crate::types::Verdict;

/// The turn's surroundings.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(super) struct World {
    pub(super) turn: Turn,
    /// Deltas of the open exchange that were delivered; none: no exchange is open.
    pub(super) delivered: Option<usize>,
    /// Which model each attempt asked, as far as the log knows of it.
    pub(super) asked: Vec<usize>,
    pub(super) running: BTreeSet<CallKey>,
    /// Calls that wait for a place of their tool, and calls that have one and were not started.
    pub(super) waiting: BTreeSet<CallKey>,
    pub(super) granted: BTreeSet<CallKey>,
    /// Every call that was ever handed to its tool.
    pub(super) begun: BTreeSet<CallKey>,
    /// What tools answered while their calls ran.
    pub(super) reported: BTreeMap<CallKey, ToolOutcome>,
    /// Starts of calls with effects: which, and what they do.
    pub(super) effects: Vec<(CallKey, String)>,
    pub(super) log: Vec<Record>,
    /// When each of them was appended, and when the turn began or was resumed: in milliseconds.
    pub(super) times: Vec<u64>,
    pub(super) began: u64,
    /// How many records of the log came from before the last crash.
    pub(super) before_crash: u64,
    pub(super) durable: u64,
    pub(super) released: Vec<CallKey>,
    pub(super) ended: BTreeMap<CallKey, ToolOutcome>,
    pub(super) committed: bool,
    pub(super) breaks: u32,
    pub(super) crashes: u32,
    pub(super) deaths: u32,
    /// The calls that the tool supervisor has started, with their ends.
    pub(super) live: BTreeMap<CallKey, LiveCall>,
    pub(super) cancelled: bool,
    /// The cancel came before everything was decided.
    pub(super) cancel_counts: bool,
    pub(super) now: Duration,
    /// How much of that people alone were waited for.
    pub(super) people: Duration,
    /// Time was let pass while a question was open.
    pub(super) waited: bool,
    /// What each call that ran could see.
    pub(super) snapshots: BTreeMap<CallKey, Begun>,
    /// Calls that were to run again because of what they had read.
    pub(super) reruns: BTreeSet<CallKey>,
    /// What is shown as open.
    pub(super) questions: BTreeSet<Question>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Deliver,
    Close,
    Break,
    PermitReply(CallKey, PermitReply),
    Outcome(CallKey, ToolStatus),
    Recorded,
    Timeout,
    Cancel,
    Decide(Question, Verdict),
    /// Some time passes, and nothing else.
    Wait,
    /// So many records of the log are left. No host runs for so long that every question is too
    /// old, or the next one at once.
    Crash(usize, bool),
    /// The owner of the turn dies, its tool supervisor lives on, and this call ends before another
    /// owner resumes the turn.
    Death(Option<CallKey>),
}

impl World {
    pub(super) fn begin(scenario: &Scenario) -> Self {
        let mut world = Self {
            turn: Turn::new(scenario.spec.clone()),
            delivered: None,
            asked: Vec::new(),
            running: BTreeSet::new(),
            waiting: BTreeSet::new(),
            granted: BTreeSet::new(),
            begun: BTreeSet::new(),
            reported: BTreeMap::new(),
            effects: Vec::new(),
            log: Vec::new(),
            times: Vec::new(),
            began: 0,
            before_crash: 0,
            durable: 0,
            released: Vec::new(),
            ended: BTreeMap::new(),
            committed: false,
            breaks: 0,
            crashes: 0,
            deaths: 0,
            live: BTreeMap::new(),
            cancelled: false,
            cancel_counts: false,
            now: Duration::ZERO,
            people: Duration::ZERO,
            waited: false,
            snapshots: BTreeMap::new(),
            reruns: BTreeSet::new(),
            questions: BTreeSet::new(),
        };
        world.perform(scenario);
        world
    }

    pub(super) fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.committed {
            return actions;
        }
        if let Some(delivered) = self.delivered {
            actions.push(if delivered < scenario.response.len() {
                Action::Deliver
            } else {
                Action::Close
            });
            if self.breaks < scenario.breaks {
                actions.push(Action::Break);
            }
        }
        for key in &self.running {
            actions.push(Action::Outcome(*key, ToolStatus::Ok));
            if scenario.failures {
                actions.push(Action::Outcome(*key, ToolStatus::Failed));
            }
        }
        for key in &self.waiting {
            if self.has_place(*key) {
                actions.push(Action::PermitReply(*key, PermitReply::Granted));
            } else {
                actions.push(Action::PermitReply(*key, PermitReply::Waiting));
            }
        }
        if self.durable < self.log.len() as u64 {
            actions.push(Action::Recorded);
        }
        if scenario.timeouts && self.turn.poll_timeout().is_some() {
            actions.push(Action::Timeout);
        }
        for question in self.questions.iter().filter(|question| self.is_shown(**question)) {
            actions.push(Action::Decide(*question, Verdict::Approved));
            actions.push(Action::Decide(*question, Verdict::Rejected));
        }
        if scenario.spec.run_time_left.is_some() && !self.waited && !self.questions.is_empty() {
            actions.push(Action::Wait);
        }
        if scenario.cancel && !self.cancelled {
            actions.push(Action::Cancel);
        }
        if self.deaths < scenario.deaths {
            let ends = std::iter::once(None).chain(self.running.iter().copied().map(Some));
            actions.extend(ends.map(Action::Death));
        }
        if self.crashes < scenario.crashes {
            // What was not yet said to be durable may be, or may not.
            let (durable, written) = (self.durable as usize, self.log.len());
            let from = if scenario.torn { durable + 1 } else { written.max(durable + 1) };
            for kept in std::iter::once(durable).chain(from..=written) {
                actions.push(Action::Crash(kept, false));
                if self.is_asked(kept) {
                    actions.push(Action::Crash(kept, true));
                }
            }
        }
        actions
    }

    pub(super) fn act(&mut self, action: Action, scenario: &Scenario) {
        let now = self.now;
        match action {
            Action::Deliver => {
                let delivered = self.delivered.as_mut().unwrap();
                let delta = scenario.response[*delivered].clone();
                *delivered += 1;
                self.turn.handle_deltas(now, vec![delta]);
            }
            Action::Close => {
                self.delivered = None;
                self.turn.handle_response_end(now, ExchangeEnd::Closed);
            }
            Action::Break => {
                self.delivered = None;
                self.breaks += 1;
                let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
                self.turn.handle_response_end(now, ExchangeEnd::Failed(error));
            }
            Action::Outcome(key, status) => {
                self.running.remove(&key);
                let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
                let (content, used) = work(&call.call, self.snapshots[&key].snapshot());
                let outcome = if status == ToolStatus::Ok {
                    ToolOutcome::ok(content)
                } else {
                    ToolOutcome::not_ok(status, FailureKind::ToolError, "no")
                };
                self.reported.insert(key, outcome.clone());
                let completion = ToolCompletion { outcome, used };
                if let Some(live) = self.live.get_mut(&key) {
                    live.completion = Some(completion.clone());
                }
                self.turn.handle_outcome(now, key, completion);
            }
            Action::PermitReply(key, place) => {
                if place == PermitReply::Granted {
                    self.waiting.remove(&key);
                    self.granted.insert(key);
                }
                self.turn.handle_tool_permit(now, key, place);
            }
            Action::Recorded => self.make_durable(),
            Action::Timeout => {
                self.wait_until(self.now.max(self.turn.poll_timeout().unwrap()));
                self.turn.handle_timeout(self.now);
            }
            Action::Cancel => {
                self.cancelled = true;
                self.cancel_counts = self.turn.stage != TurnStage::Finished;
                self.turn.handle_cancel(now, CancelReason::Stop);
            }
            Action::Decide(question, verdict) => self.decide(question, verdict),
            Action::Wait => {
                self.waited = true;
                self.wait_until(self.now + Duration::from_secs(7));
                self.turn.handle_recorded(self.now, self.durable - self.before_crash);
            }
            Action::Crash(kept, for_long) => {
                self.crash(kept, for_long, scenario);
                if self.committed {
                    return;
                }
            }
            Action::Death(ends) => {
                self.replace_owner(ends, scenario);
                if self.committed {
                    return;
                }
            }
        }
        self.perform(scenario);
        self.check_settled();
        self.check_questions(scenario);
        self.check_late();
    }

    /// Unix time, in milliseconds.
    pub(super) fn wall(&self) -> u64 {
        self.began + u64::try_from(self.now.as_millis()).unwrap()
    }

    /// Everything that could be decided was, and the turn counts what runs as we do.
    pub(super) fn check_settled(&mut self) {
        let before = (self.turn.effects.records(), self.turn.effects.deferred().len());
        self.turn.advance();
        assert_eq!(self.turn.poll(), None, "something was left undecided");
        assert_eq!(
            (self.turn.effects.records(), self.turn.effects.deferred().len()),
            before,
            "a result was left"
        );
        assert_eq!(self.turn.clock.running(), self.running.len(), "what runs is miscounted");
        assert_eq!(self.turn.clock.queued(), self.waiting.len(), "what waits is miscounted");
    }

    /// What comes too late changes nothing, and is counted.
    pub(super) fn check_late(&mut self) {
        let asking = self.turn.stage == TurnStage::AwaitingResponse;
        let before = (self.turn.effects.records(), self.turn.effects.deferred().len(), asking);
        if !asking {
            self.turn.handle_deltas(self.now, vec![text("late"), call(9, "pure", "{}")]);
            self.turn.handle_response_end(self.now, ExchangeEnd::Closed);
            assert_eq!(self.turn.poll(), None, "a response that had ended went on");
        }
        for key in self.begun.difference(&self.running) {
            let outcome = ToolOutcome::ok("late");
            self.turn.handle_outcome(
                self.now,
                *key,
                ToolCompletion { outcome, used: VariablesUse::default() },
            );
            let counted = matches!(self.turn.poll(), Some(Effect::Emit(Event::OutcomeLate { .. })));
            assert!(counted, "a late outcome counted");
            assert_eq!(self.turn.poll(), None, "a late outcome did something");
        }
        let keys: Vec<_> = self.turn.calls.iter().map(TurnCall::key).collect();
        for key in keys.iter().filter(|key| !self.waiting.contains(key)) {
            self.turn.handle_tool_permit(self.now, *key, PermitReply::Granted);
            assert_eq!(self.turn.poll(), None, "a place that nobody waits for did something");
        }
        let asking = self.turn.stage == TurnStage::AwaitingResponse;
        let after = (self.turn.effects.records(), self.turn.effects.deferred().len(), asking);
        assert_eq!(before, after, "something late was recorded");
    }

    /// Returns whether a limit of the run was told in the last attempt.
    pub(super) fn told_over_budget(&self) -> bool {
        let of_attempt =
            self.log.iter().rev().take_while(|r| !matches!(r, Record::AttemptStarted { .. }));
        let told = of_attempt.filter(|record| {
            matches!(record, Record::LimitReached { limit, .. } if limit.ends_with("_per_run"))
        });
        let told = told.count();
        assert!(told <= 1, "told twice");
        told == 1
    }

    pub(super) fn make_durable(&mut self) {
        self.durable = self.log.len() as u64;
        self.turn.handle_recorded(self.now, self.durable - self.before_crash);
    }

    pub(super) fn perform(&mut self, scenario: &Scenario) {
        loop {
            while let Some(effect) = self.turn.poll() {
                assert!(!self.committed || matches!(effect, Effect::Emit(_)), "after the commit");
                self.perform_one(effect, scenario);
            }
            if !scenario.at_once || self.durable == self.log.len() as u64 {
                return;
            }
            self.make_durable();
        }
    }

    pub(super) fn perform_one(&mut self, effect: Effect, scenario: &Scenario) {
        match effect {
            Effect::Record(record) => {
                if let Record::CallEnded { call, outcome, writes, .. } = &record {
                    let changes = self.released.contains(&call.key);
                    assert!(!changes, "an outcome changed after its release");
                    self.check_writes(call.key, outcome, writes);
                }
                if let Record::ApprovalAsked { asked } = &record {
                    self.check_asked(asked.call.key, asked.phase, &scenario.spec.rules);
                }
                self.log.push(record);
                self.times.push(self.wall());
            }
            Effect::Perform(TurnAction::Request(plan)) => {
                assert_eq!(self.delivered, None, "two exchanges at once");
                assert_eq!(plan.attempt, self.turn.attempt());
                self.delivered = Some(0);
                self.check_request(&plan, scenario);
            }
            Effect::Perform(TurnAction::Disconnect) => {
                assert!(self.delivered.take().is_some(), "no exchange to disconnect");
            }
            Effect::Perform(TurnAction::RequestToolPermit { key, tool }) => {
                self.check_reserve(key, &tool, scenario)
            }
            Effect::Perform(TurnAction::ReleaseToolPermit(key)) => {
                let had = self.waiting.remove(&key) || self.granted.remove(&key);
                assert!(had, "a place was given up that was not asked for");
            }
            Effect::Perform(TurnAction::Start(CallStart {
                call,
                variables: snapshot,
                state,
                ..
            })) => {
                self.check_start(&call.key, scenario);
                if scenario.deaths > 0 {
                    let live = LiveCall { state, elapsed: Duration::ZERO, completion: None };
                    self.live.insert(call.key, live);
                }
                self.check_snapshot(call.key, snapshot);
            }
            Effect::Perform(TurnAction::Abort(key)) => {
                assert!(self.running.remove(&key), "abort of what does not run");
                self.live.remove(&key);
            }
            Effect::Emit(Event::CallEnded { result, .. }) => {
                let key = result.call.key;
                let record = self.log.last();
                assert!(
                    matches!(record, Some(Record::CallEnded { call, .. }) if call.key == key),
                    "an outcome was not told right behind its record"
                );
                self.check_seen(&result);
                let before = self.ended.insert(key, result.outcome);
                assert_eq!(before, None, "two outcomes were told");
            }
            Effect::Emit(Event::CallDiscarded { call, had_result }) => {
                let told = self.ended.remove(&call.key).is_some();
                assert!(had_result || !told || !self.is_tools_answer(&call.key));
            }
            Effect::Emit(Event::ConflictFound { call, resolution, .. }) => {
                self.check_conflict(call.key, resolution == ConflictResolution::Rerun);
            }
            Effect::Emit(Event::ApprovalAsked { asked }) => {
                self.show((asked.call.key, asked.phase));
            }
            Effect::Emit(Event::ResultReleased { key, .. }) => {
                assert!(matches!(
                    self.turn.stage,
                    TurnStage::ResponseEnded { .. } | TurnStage::Finished
                ));
                assert!(self.released.last() < Some(&key), "released out of order, or twice");
                assert!(self.ended.contains_key(&key), "released before it was told");
                self.released.push(key);
            }
            Effect::Emit(_) => {}
            Effect::Perform(TurnAction::Commit(record)) => {
                self.committed = true;
                self.check_commit(&record, scenario);
            }
        }
    }
}
