//! The current run of a session, and the input that it starts with.

use std::sync::Arc;
use std::time::Duration;

use super::run_machine::{FollowUp, RunMachine, RunNext};
use crate::turn::{
    CancelReason, CommittedTurn, LimitHit, MAX_TOKENS_KEY, OutputRules, RUN_TIMEOUT_KEY, RunRules,
    TurnEnd,
};
use callsheet_values::config::{Limits, OnShutdown, RunOverrides};
use callsheet_values::event::RunStats;
use callsheet_values::record::{Record, RequestKey, ResponseMessage, Seq, StopMode};
use callsheet_values::types::{
    Author, Content, Metadata, RequestKind, RunId, ToolChoice, TraceContext, Usage, VariableName,
    millis,
};

/// The action of a limit that ends the run.
const ENDED: &str = "ended";

/// A run that is to start, now or after the current one: its input, overrides and metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunSpec {
    /// The id of the run.
    pub run_id: RunId,
    /// The user's input.
    pub input: Content,
    /// The run's changes to its agent.
    pub overrides: Arc<RunOverrides>,
    /// The trace that the run belongs to.
    pub trace: Option<TraceContext>,
    /// The client's pairs of strings.
    pub metadata: Metadata,
    /// The variable that gets the answer.
    pub into: Option<VariableName>,
    /// The author of the request.
    pub author: Option<Author>,
}

impl RunSpec {
    /// Returns the run that a record starts or queues, and the key of its request.
    pub(super) fn from_record(record: &Record) -> Option<(Self, Option<&RequestKey>)> {
        let (Record::RunStarted {
            run_id,
            input,
            overrides,
            request,
            trace,
            metadata,
            into,
            authored_by,
            ..
        }
        | Record::InputQueued {
            run_id,
            input,
            overrides,
            request,
            trace,
            metadata,
            into,
            authored_by,
        }) = record
        else {
            return None;
        };
        let run = Self {
            run_id: run_id.clone(),
            input: input.clone(),
            overrides: Arc::clone(overrides),
            trace: trace.clone(),
            metadata: metadata.clone(),
            into: into.clone(),
            author: authored_by.clone(),
        };
        Some((run, request.as_ref()))
    }
}

/// The position and the time of a record in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordedAt {
    /// The record's position.
    pub seq: Seq,
    /// The record's time: Unix time in milliseconds.
    pub time: u64,
    /// The time on the clock of the session's machine; zero while a journal is read.
    pub now: Duration,
}

/// A run that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenRun {
    /// The run's id.
    pub id: RunId,
    /// The run's changes to its agent.
    pub overrides: Arc<RunOverrides>,
    /// The trace that the run belongs to.
    pub trace: Option<TraceContext>,
    /// The client's pairs of strings.
    pub metadata: Metadata,
    /// The variable that gets the answer.
    pub into: Option<VariableName>,
    /// The position of the run's start in the journal.
    pub seq: Seq,
    /// The time of that record: Unix time in milliseconds.
    pub began: u64,
    /// The index of the run's first message in the history.
    pub first_message: usize,
    /// The stage of the run.
    pub stage: RunStage,
    /// The reason why the current turn, or the next one, is cancelled.
    pub cancel: Option<CancelReason>,
    pub(super) machine: RunMachine,
    pub(super) rules: SessionRunRules,
    /// True if messages of the history were replaced during the run.
    pub is_compacted: bool,
    pub(super) stops_after_turn: bool,
    /// A stop at once is recorded, perhaps after a shutdown had cancelled the turn.
    stops_now: bool,
    /// The last turn was cancelled while the answer arrived: its message has no calls, and nothing follows it.
    pub(super) has_cut_off_answer: bool,
    /// The sums over committed turns. Turns and duration are set at the end of the run.
    pub(super) stats: RunStats,
    /// The time that the run has waited for people and for nothing else.
    pub(super) people: Duration,
    /// The duration of all committed turns.
    pub(super) turns_duration: Duration,
    clock: RunClock,
}

/// The part of a run's [`RunRules`] that changes how records are applied. A stored session is read with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionRunRules {
    /// The limits.
    pub limits: Limits,
    /// The tokens of tools and system text in each request, by estimate.
    pub fixed_tokens: u64,
    /// True if the model can read the rest of a result that was cut.
    pub references: bool,
    /// The rule for calling tools.
    pub tool_choice: ToolChoice,
    /// The rules of the typed answer.
    pub output: Option<Arc<OutputRules>>,
}

impl From<Limits> for SessionRunRules {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

impl From<&RunRules> for SessionRunRules {
    fn from(rules: &RunRules) -> Self {
        Self {
            limits: rules.limits.clone(),
            fixed_tokens: rules.fixed_tokens,
            references: rules.context.references,
            tool_choice: rules.tool_choice.clone(),
            output: rules.output.clone(),
        }
    }
}

/// The stage of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RunStage {
    /// The next turn begins. If the history has open initial calls, it is the turn of those.
    Ready(RequestKind),
    /// A turn is in progress.
    Turn(OpenTurn),
    /// A turn is committed. The limits that it reached, a message of the host or the end of the run are still to be
    /// recorded.
    FollowUp(FollowUp),
}

/// A turn in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenTurn {
    pub(super) request_kind: RequestKind,
    /// Set while no accumulator owns the turn: it has to be handed out.
    pub(super) hand_out: Option<TurnOrigin>,
    /// Set while the context is made smaller, because a request of the turn was too large.
    pub(super) overflow: Option<Overflow>,
    /// The time since which the turn waits only for people, on the session's clock.
    rests_since: Option<Duration>,
    /// The time for which the turn waited only for people before that.
    rested: Duration,
}

/// The origin of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnOrigin {
    /// The turn has no records yet.
    New,
    /// The turn continues from records that were appended in this life of the session.
    Recorded,
    /// The turn continues from records that were read from the journal.
    Stored,
}

/// A request that was too large for its model. It may be made smaller once in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Overflow {
    /// The tokens of the request, by estimate.
    pub(super) tokens: u64,
    /// The tokens of its input by the service's count, if the service named them.
    pub(super) counted: Option<u64>,
    /// The window of the model that has refused the request, if it is known.
    pub(super) window: Option<u64>,
    /// Results were cleared, or none can be.
    pub(super) clearing_tried: bool,
    /// A summary was asked for, or none can be.
    pub(super) summary_tried: bool,
}

/// Counts the time of a run. No time passes while no host runs it. After a resume, only the time of committed turns
/// is left of what came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct RunClock {
    elapsed: Duration,
    /// The time when `elapsed` was set, on the session's clock.
    set_at: Duration,
}

impl OpenTurn {
    pub(super) fn new(request_kind: RequestKind, hand_out: Option<TurnOrigin>) -> Self {
        Self { request_kind, hand_out, overflow: None, rests_since: None, rested: Duration::ZERO }
    }

    /// Returns true while the turn waits only for people.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.rests_since.is_some()
    }

    pub(super) fn set_resting(&mut self, now: Duration, rests: bool) {
        self.rested = self.rested(now);
        self.rests_since = rests.then_some(now);
    }

    pub(super) fn rested(&self, now: Duration) -> Duration {
        let current = self.rests_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.rested + current
    }
}

impl OpenRun {
    /// Returns true if another host begins the next turn, because this one shuts down.
    pub(super) fn is_held(&self, shutdown: Option<OnShutdown>) -> bool {
        shutdown.is_some_and(OnShutdown::leaves_runs)
            && self.cancel.is_none()
            && matches!(self.stage, RunStage::Ready(_))
    }

    /// Starts a run in a session whose history has `first_message` messages.
    pub(super) fn start(
        run: RunSpec,
        at: RecordedAt,
        rules: SessionRunRules,
        has_initial_calls: bool,
        first_message: usize,
    ) -> Self {
        let mut machine = RunMachine::new(&rules.limits)
            .with_answer_rules(rules.tool_choice.clone(), rules.output.clone());
        let kind =
            if has_initial_calls { RunMachine::kind_of_initial_calls() } else { machine.begin() };
        Self {
            id: run.run_id,
            overrides: run.overrides,
            trace: run.trace,
            metadata: run.metadata,
            into: run.into,
            seq: at.seq,
            began: at.time,
            first_message,
            stage: RunStage::Ready(kind),
            cancel: None,
            machine,
            rules,
            is_compacted: false,
            stops_after_turn: false,
            stops_now: false,
            has_cut_off_answer: false,
            stats: RunStats::default(),
            people: Duration::ZERO,
            turns_duration: Duration::ZERO,
            clock: RunClock { elapsed: Duration::ZERO, set_at: at.now },
        }
    }

    /// Continues the run in a new life of the session.
    pub(super) fn resume(&mut self, now: Duration) {
        self.clock = RunClock { elapsed: self.turns_duration, set_at: now };
        if let RunStage::Turn(turn) = &mut self.stage {
            *turn = OpenTurn::new(turn.request_kind, Some(TurnOrigin::Stored));
        }
    }

    /// Returns how long the run has been in progress.
    #[must_use]
    pub fn elapsed(&self, now: Duration) -> Duration {
        self.clock.elapsed + now.saturating_sub(self.clock.set_at)
    }

    /// Returns the rest of the run's time. Time in which it waits only for people does not count. `None` means no
    /// limit.
    pub(super) fn time_left(&self, now: Duration) -> Option<Duration> {
        let working = self.elapsed(now).saturating_sub(self.people);
        self.rules.limits.run_timeout.map(|timeout| timeout.saturating_sub(working))
    }

    /// Returns the time on the session's clock at which no time is left, if the run does not wait for people until
    /// then. `None` means no limit.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let timeout = self.rules.limits.run_timeout?.checked_add(self.people)?;
        self.clock.set_at.checked_add(timeout.saturating_sub(self.clock.elapsed))
    }

    /// Returns the limit of the run's time if none is left for the next turn. A run that is cancelled ends anyway.
    pub(super) fn run_timeout_reached(&self, now: Duration) -> Option<LimitHit> {
        let timeout = self.rules.limits.run_timeout?;
        let is_over = self.cancel.is_none() && self.time_left(now)? == Duration::ZERO;
        let maximum = millis(timeout);
        let hit =
            LimitHit { limit: RUN_TIMEOUT_KEY, value: maximum, maximum, action: ENDED, note: None };
        is_over.then_some(hit)
    }

    /// Returns the limit of the run's tokens if none are left for the next turn. A run that is cancelled makes no
    /// further request.
    pub(super) fn max_tokens_reached(&self) -> Option<LimitHit> {
        self.machine.used_up_tokens(ENDED).filter(|_| self.cancel.is_none())
    }

    /// Cancels the next turn if the recorded limit ends the run before it. Limits that are reached within a turn, or
    /// by a turn, end the run by the end of that turn.
    pub(super) fn cancel_next_turn(&mut self, limit: &str, action: &str) {
        let reason = match limit {
            RUN_TIMEOUT_KEY => CancelReason::RunTimeout,
            MAX_TOKENS_KEY => CancelReason::Budget,
            _ => return,
        };
        if action == ENDED && matches!(self.stage, RunStage::Ready(_)) {
            self.cancel.get_or_insert(reason);
        }
    }

    /// Returns the turn in progress.
    #[must_use]
    pub fn turn(&self) -> Option<&OpenTurn> {
        match &self.stage {
            RunStage::Turn(turn) => Some(turn),
            RunStage::Ready(_) | RunStage::FollowUp(_) => None,
        }
    }

    /// Returns true if a stop of this mode would change nothing.
    pub(super) fn is_stopping(&self, mode: StopMode) -> bool {
        match mode {
            StopMode::Now => self.cancel == Some(CancelReason::Stop),
            StopMode::AfterTurn => self.cancel.is_some() || self.stops_after_turn,
        }
    }

    pub(super) fn stop(&mut self, mode: StopMode) {
        match mode {
            StopMode::Now => {
                self.stops_now = true;
                self.cancel.get_or_insert(CancelReason::Stop);
            }
            StopMode::AfterTurn => {
                self.stops_after_turn = true;
                self.machine.handle_stop_after_turn();
            }
        }
    }

    /// Returns whether a client has asked the run to stop.
    pub(super) fn is_asked_to_stop(&self) -> bool {
        self.stops_now || self.stops_after_turn
    }

    /// Lets the run, which was interrupted, go on with its next turn once it is [resumed](Self::resume). Time in which
    /// a turn was lost is forgotten, as after a crash.
    pub(super) fn prepare_to_reopen(&mut self) {
        self.cancel = None;
        self.people = self.stats.people;
        self.stage = RunStage::Ready(self.machine.repeat_turn());
        self.resume(Duration::ZERO);
    }

    /// Adds the usage of a request for a summary.
    pub(super) fn add_usage(&mut self, usage: Usage) {
        self.machine.add_tokens(usage);
        self.stats.usage += usage;
    }

    /// Adds a committed turn to the sums and decides what follows it.
    pub(super) fn commit(&mut self, turn: &CommittedTurn, steered: bool) {
        self.stats.add(turn.usage, turn.results.len(), &turn.times);
        self.people += turn.times.people;
        self.turns_duration += turn.times.total;
        let is_answer =
            |message: &Arc<ResponseMessage>| !message.is_blank() && message.calls.is_empty();
        self.has_cut_off_answer = matches!(turn.end, TurnEnd::Cancelled(_))
            && !steered
            && turn.message.as_ref().is_some_and(is_answer);
        let mut follow_up = self.machine.handle_turn(turn, steered);
        if let RunNext::End { error: Some(error), .. } = &mut follow_up.next
            && turn.is_left_out()
        {
            let input =
                format!("; its input (record {}) is left out of later requests", self.seq.0);
            error.message.push_str(&input);
        }
        self.stage = RunStage::FollowUp(follow_up);
        self.skip_empty_follow_up();
    }

    /// Handles an input that arrived before the next turn began.
    pub(super) fn steer(&mut self) {
        let is_before_turn = match &self.stage {
            RunStage::Ready(_) => true,
            RunStage::FollowUp(FollowUp { next: RunNext::Instruct(instruction), .. }) => {
                instruction.request_kind == RequestKind::FinalText
            }
            RunStage::FollowUp(_) | RunStage::Turn(_) => false,
        };
        if is_before_turn && let Some(follow_up) = self.machine.handle_steer() {
            self.stage = RunStage::FollowUp(follow_up);
            self.skip_empty_follow_up();
        }
    }

    /// Removes a limit from the follow-up, because it is recorded.
    pub(super) fn remove_recorded_limit(&mut self, limit: &str) {
        if let RunStage::FollowUp(follow_up) = &mut self.stage
            && follow_up.limits.first().is_some_and(|hit| hit.limit == limit)
        {
            follow_up.limits.remove(0);
            self.skip_empty_follow_up();
        }
    }

    /// Goes on to the next turn if the follow-up has no limits to record.
    fn skip_empty_follow_up(&mut self) {
        if let RunStage::FollowUp(FollowUp { limits, next: RunNext::Turn(kind) }) = &self.stage
            && limits.is_empty()
        {
            self.stage = RunStage::Ready(*kind);
        }
    }

    /// Goes on to the turn that a message of the host precedes, because that message is recorded.
    ///
    /// # Errors
    /// If a turn is in progress.
    pub(super) fn instruct(&mut self, kind: RequestKind) -> Result<(), String> {
        if self.turn().is_some() {
            return Err("a turn goes on".to_owned());
        }
        self.machine.handle_instructed(kind);
        self.stage = RunStage::Ready(kind);
        Ok(())
    }

    /// Goes on to the next turn, because a record shows that the session did.
    pub(super) fn skip_follow_up(&mut self) {
        let RunStage::FollowUp(FollowUp { next, .. }) = &self.stage else { return };
        let kind = match next {
            RunNext::Turn(kind) => *kind,
            RunNext::Instruct(instruction) => instruction.request_kind,
            // By the current limits the run would have ended. They have changed since the record.
            RunNext::End { .. } => self.machine.begin(),
        };
        self.stage = RunStage::Ready(kind);
    }
}
