//! The session machine: its state, the records that change it, its inputs and its effects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::context_state::ContextState;
use super::exclusion_state::Exclusions;
use super::idempotency_keys::{IdempotencyKeys, RequestEffect};
use super::open_run::{
    OpenRun, OpenTurn, RecordedAt, RunSpec, RunStage, SessionRunRules, TurnOrigin,
};
use super::reference_index::{RecordRange, ReferenceIndex};
use crate::context::{History, InitialHistory, ResultCut, Variables};
use crate::turn::{CancelReason, CommittedTurn, TurnSpec};
use callsheet_values::config::{ClientTool, OnShutdown, RunOverrides};
use callsheet_values::event::RunStats;
use callsheet_values::message::{MessageList, content_bytes};
use callsheet_values::record::{Record, Seq, StopMode};
use callsheet_values::types::{
    COMPACT_AT, Content, FinishReason, Metadata, ParentCall, Reference, ReferenceError, RunEnd,
    RunError, RunId, SummaryFailure, Usage, VariableName, WriteSet,
};
use callsheet_wire::PromptChange;

/// Returns the rules of a run with these overrides.
pub type SessionRulesOf<'a> = &'a dyn Fn(&RunOverrides) -> SessionRunRules;

/// A session: its history, its variables, its runs and its queue.
///
/// Its state changes by records. `handle_*` checks an input and decides which records follow;
/// [`poll`](Self::poll) returns them as effects; the shell appends them and hands each to
/// [`apply`](Self::apply). A stored session is read by the same `apply`, record by record
/// ([`StoredSession`](super::StoredSession)).
///
/// The records of a turn are an exception. The turn's owner appends them. `apply` sees them while a stored session is
/// read, and takes from them only the number of the turn, the hash of its prompt and the position of its commit. The
/// message and the results come with
/// [`handle_turn_committed`](Self::handle_turn_committed): from the turn's owner, or from
/// [`StoredSession`](super::StoredSession), which puts them together from the stored records.
///
/// This file has the state, `apply`, the commit of a turn and the types. `poll` and what follows a turn are in
/// `runs`, the other `handle_*` in `runs`, `inputs` and `context`.
///
/// These are not durable: a turn that has begun and has no record yet, the interruption of a run by the
/// shutdown of its host, a request to close, a wait for tools or for a summary, and times between turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    pub(super) agent: String,
    /// Pairs of strings that the client has given with the session.
    pub(super) metadata: Metadata,
    /// The call that opened it, if it is a child session or the fork of one.
    pub(super) parent: Option<Arc<ParentCall>>,
    /// A call has run an agent in a child session.
    pub(super) has_children: bool,
    /// The tools that the client runs, in all runs.
    pub(super) client_tools: Option<Arc<[ClientTool]>>,
    pub(super) opened_at: u64,
    pub(super) lifecycle: Lifecycle,
    pub(super) history: History,
    pub(super) variables: Variables,
    pub(super) usage: Usage,
    /// The number of the last turn that has begun; 0 before the first.
    pub(super) turn: u32,
    /// The runs that wait for the current one to end, in order.
    pub(super) queue: VecDeque<RunSpec>,
    pub(super) keys: IdempotencyKeys,
    pub(super) run: Option<Box<OpenRun>>,
    /// The last run, as it can go on, if a shutdown has interrupted it and a repeated request may
    /// [reopen](Self::handle_reopen) it.
    pub(super) interrupted: Option<Box<OpenRun>>,
    pub(super) context: ContextState,
    /// The content that is left out of requests.
    pub(super) exclusions: Exclusions,
    pub(super) references: ReferenceIndex,
    /// The SHA-256 of the frozen list of the tools that servers offer.
    pub(super) frozen_tools: Option<Arc<str>>,
    /// The current run waits for the list, which was requested.
    pub(super) waits_for_tools: bool,
    /// The times that the current run has waited before its turns. Not durable.
    pub(super) pre_turn_times: PreTurnTimes,
    /// Nothing goes on until [`handle_wake`](Self::handle_wake) or [`handle_resume`](Self::handle_resume). Set for
    /// each session that is read from the journal with a run or a queue.
    ///
    /// Three words that are easily mixed up:
    ///
    /// - *Suspended*: this field. An awake session leaves the state at once, unless the run was interrupted by the
    ///   end of its host and `journal.resume` is `manual`: then a request of a client resumes it, or a recorded stop.
    /// - *Resting*: the turn in progress waits only for people ([`handle_resting`](Self::handle_resting)). The
    ///   session may hibernate meanwhile, if no tool runs.
    /// - *Resumable*: the turn rests and none of its calls runs
    ///   ([`Turn::is_resumable`](crate::turn::Turn::is_resumable)). Its host may end without ending the run.
    pub(super) suspended: bool,
    /// What the shutdown of the host does with runs, if it shuts down.
    pub(super) shutdown: Option<OnShutdown>,
    pub(super) outbox: VecDeque<SessionEffect>,
}

/// The states of a session from its opening to its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lifecycle {
    /// The record of the opening is not applied yet.
    New,
    Open,
    /// The session closes when its run has ended.
    Closing,
    Closed,
    /// Another host goes on with the session from its records. Nothing is recorded here any more.
    Left,
}

impl Session {
    /// Opens a session with a history of checked messages in the Chat Completions form. `parent` is the call that
    /// opens a child session.
    #[must_use]
    pub fn open(
        agent: &str,
        messages: Vec<Value>,
        metadata: Metadata,
        parent: Option<Arc<ParentCall>>,
        client_tools: Option<Arc<[ClientTool]>>,
    ) -> Self {
        let mut session = Self::blank();
        let agent = agent.to_owned();
        let record = Record::SessionOpened { agent, messages, metadata, parent, client_tools };
        session.record(vec![record]);
        session
    }

    /// Creates a session without records.
    pub(super) fn blank() -> Self {
        Self {
            agent: String::new(),
            metadata: Metadata::default(),
            parent: None,
            has_children: false,
            client_tools: None,
            opened_at: 0,
            lifecycle: Lifecycle::New,
            history: History::new(),
            variables: Variables::default(),
            usage: Usage::default(),
            turn: 0,
            queue: VecDeque::new(),
            keys: IdempotencyKeys::default(),
            run: None,
            interrupted: None,
            context: ContextState::default(),
            exclusions: Exclusions::default(),
            references: ReferenceIndex::default(),
            frozen_tools: None,
            waits_for_tools: false,
            pre_turn_times: PreTurnTimes::default(),
            suspended: false,
            shutdown: None,
            outbox: VecDeque::new(),
        }
    }

    /// Returns the pairs of strings that the client has given with the session.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the call that opened it, if it is a child session or the fork of one.
    #[must_use]
    pub fn parent(&self) -> Option<&Arc<ParentCall>> {
        self.parent.as_ref()
    }

    /// Returns whether a call of a committed turn has run an agent in a child session.
    #[must_use]
    pub fn has_children(&self) -> bool {
        self.has_children
    }

    /// Returns the tools that the client runs in all runs.
    #[must_use]
    pub fn client_tools(&self) -> &[ClientTool] {
        self.client_tools.as_deref().unwrap_or_default()
    }

    /// Returns the overrides of a run with the session's tools that the client runs.
    #[must_use]
    pub fn with_client_tools(&self, overrides: &Arc<RunOverrides>) -> Arc<RunOverrides> {
        let Some(tools) = &self.client_tools else { return Arc::clone(overrides) };
        let tools = match &overrides.client_tools {
            None => Arc::clone(tools),
            Some(own) => tools.iter().chain(&**own).cloned().collect(),
        };
        Arc::new((**overrides).clone().with(|overrides| overrides.client_tools = Some(tools)))
    }

    /// Returns the overrides of the current run. Without a run, returns those of a run that adds none.
    #[must_use]
    pub fn current_overrides(&self) -> Arc<RunOverrides> {
        match &self.run {
            Some(run) => Arc::clone(&run.overrides),
            None => self.with_client_tools(&Arc::default()),
        }
    }

    /// Returns the messages.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the variables.
    #[must_use]
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// Returns the usage of all committed turns and of summaries.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the number of the last turn that has begun; 0 before the first.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Returns the run that has not ended.
    #[must_use]
    pub fn run(&self) -> Option<&OpenRun> {
        self.run.as_deref()
    }

    /// Returns the runs that wait for the current one to end.
    pub fn queue(&self) -> impl ExactSizeIterator<Item = &RunSpec> {
        self.queue.iter()
    }

    /// Returns the SHA-256 of the frozen list of the tools that servers offer.
    #[must_use]
    pub fn frozen_tools(&self) -> Option<&Arc<str>> {
        self.frozen_tools.as_ref()
    }

    /// Returns true if the run waits for the tools that servers offer.
    #[must_use]
    pub fn waits_for_tools(&self) -> bool {
        self.waits_for_tools
    }

    /// Returns true if a run is open and nothing goes on: the session was read from the journal and is not resumed
    /// yet.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended && self.run.is_some()
    }

    /// Returns true if a run is in progress or in the queue and the session is not suspended, so that it holds a run
    /// slot of the host. Becomes false with the record of a run's end.
    #[must_use]
    pub fn holds_slot(&self) -> bool {
        !self.suspended && (self.run.is_some() || !self.queue.is_empty())
    }

    /// Returns true if the session was closed and its records are about to be deleted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lifecycle == Lifecycle::Closed
    }

    /// Returns true if the run with this id is open or waits in the queue.
    #[must_use]
    pub fn has_run(&self, id: &RunId) -> bool {
        self.run.as_ref().is_some_and(|run| run.id == *id)
            || self.queue.iter().any(|queued| queued.run_id == *id)
    }

    /// Changes the state by a record: one that was just appended, or one of the journal.
    ///
    /// A `TurnCommitted` does not change the history by itself, see [`Session`].
    ///
    /// # Errors
    /// If the record contradicts the ones before it.
    pub fn apply(
        &mut self,
        at: RecordedAt,
        record: &Record,
        session_rules_of: SessionRulesOf<'_>,
    ) -> Result<(), String> {
        match record {
            Record::SessionOpened { agent, messages, metadata, parent, client_tools } => {
                if self.lifecycle != Lifecycle::New {
                    return Err("the session was opened before".to_owned());
                }
                let initial = InitialHistory::parse(messages)
                    .map_err(|e| format!("it was opened with {e}"))?;
                self.history = History::from_initial(initial);
                self.agent.clone_from(agent);
                self.metadata.clone_from(metadata);
                self.parent.clone_from(parent);
                self.client_tools.clone_from(client_tools);
                (self.lifecycle, self.opened_at) = (Lifecycle::Open, at.time);
            }
            // Requests and queued inputs belong to the session that was forked. The run that was
            // in progress there ends here.
            Record::SessionForked { .. } => {
                self.keys = IdempotencyKeys::default();
                self.queue.clear();
                self.interrupted = None;
                self.opened_at = at.time;
                if let Some(run) = &mut self.run {
                    run.stop(StopMode::Now);
                }
            }
            Record::InputQueued { .. } => {
                if let Some(run) = self.recorded_run(at, record) {
                    self.queue.push_back(run);
                }
            }
            Record::InputRemoved { run_id, .. } => {
                let queued = self.queue.iter().position(|queued| queued.run_id == *run_id);
                let at = queued.ok_or_else(|| format!("no input of run {run_id} is queued"))?;
                self.queue.remove(at);
                self.keys.remove_run(run_id);
                // Nothing is left to go on with.
                self.suspended &= self.run.is_some() || !self.queue.is_empty();
            }
            Record::RunStarted { .. } => {
                if let Some(run) = &self.run {
                    return Err(format!("run {} has not ended", run.id));
                }
                if let Some(mut run) = self.recorded_run(at, record) {
                    run.overrides = self.with_client_tools(&run.overrides);
                    self.apply_run_start(at, session_rules_of(&run.overrides), run);
                }
            }
            Record::Steered { input, follows_turn, request, .. } => {
                if let Some(request) = request {
                    self.keys.insert(request, at.seq, RequestEffect::Steered);
                }
                let last = self.turn;
                let run = self.open_run()?;
                if *follows_turn > last {
                    run.skip_follow_up();
                }
                run.steer();
                self.forget_failed_summaries();
                self.exclusions.add_input(at.seq, input);
                self.history.steer(*follows_turn, input.clone());
            }
            Record::StopAsked { mode, .. } => self.open_run()?.stop(*mode),
            Record::LimitReached { limit, action, note, usage, .. } => {
                // A summary that a client has requested may fail while no run is in progress.
                if self.run.is_some() || limit != COMPACT_AT {
                    let run = self.open_run()?;
                    run.cancel_next_turn(limit, action);
                    run.remove_recorded_limit(limit);
                    run.add_usage(*usage);
                }
                self.usage += *usage;
                self.count_failed_summary(limit);
                note.iter().for_each(|note| self.history.add_note(note));
            }
            Record::Instructed { request, text } => {
                self.open_run()?.instruct(*request)?;
                self.history.instruct(text);
            }
            Record::RunEnded { run_id, end, text, output, into, .. } => {
                let run = self.open_run()?;
                if run.id != *run_id {
                    return Err(format!("run {} goes on, and it is the end of {run_id}", run.id));
                }
                let first_message = run.first_message;
                if let Some(name) = into {
                    self.variables.apply(&answer_write(name, text, output.as_ref()));
                }
                self.keep_interrupted(*end);
                self.references.add_run_end(run_id, at.seq);
                self.waits_for_tools = false;
                self.history.end_run();
                self.set_ended_run(run_id.clone(), first_message);
            }
            Record::RunReopened { run_id, .. } => self.apply_reopening(at, run_id)?,
            Record::ToolsFrozen { sha256 } => {
                self.frozen_tools = Some(Arc::clone(sha256));
                self.context.prompt_change.get_or_insert(PromptChange::ToolsRefreshed);
            }
            Record::Compacted { change, usage, .. } => {
                self.apply_change(change);
                self.usage += *usage;
                if let Some(run) = &mut self.run {
                    run.add_usage(*usage);
                }
            }
            Record::SessionClosed => self.lifecycle = Lifecycle::Closed,
            Record::AttemptStarted { turn, prompt, .. } => {
                self.apply_turn_record(*turn)?;
                self.set_requested_prompt(prompt.or(self.context.requested.hash));
            }
            Record::AttemptFailed { turn, .. }
            | Record::ResponseEnded { turn, .. }
            | Record::TurnHooksDecided { turn, .. } => self.apply_turn_record(*turn)?,
            Record::TurnCommitted { turn, .. } => {
                self.apply_turn_record(*turn)?;
                self.references.add_commit(*turn, at.seq);
            }
            Record::CallIntended { call, .. } => self.apply_turn_record(call.key.turn)?,
            Record::CallEnded { call, .. } => self.apply_turn_record(call.key.turn)?,
            Record::CallReported { key, .. }
            | Record::ApprovalGiven { key, .. }
            | Record::HooksDecided { key, .. } => {
                self.apply_turn_record(key.turn)?;
            }
            Record::ApprovalAsked { request } => self.apply_turn_record(request.call.key.turn)?,
        }
        Ok(())
    }

    /// Commits a turn to the history and decides what follows. Returns false if the session does
    /// not wait for this turn.
    pub fn handle_turn_committed(&mut self, turn: &CommittedTurn) -> bool {
        let Some(run) = self.run.as_deref() else { return false };
        if run.turn().is_none() || turn.number != self.turn {
            return false;
        }
        let message = turn.message.as_ref();
        let cut = ResultCut {
            bytes_max: run.rules.limits.max_result_bytes,
            references: run.rules.references,
        };
        self.has_children |= turn.results.iter().any(|result| result.outcome.child.is_some());
        self.update_token_meter(turn.request_tokens);
        self.settle_exclusions(message.is_some());
        self.forget_summary();
        if message.is_some() {
            self.context.unsent_change = None;
        }
        let pending_inputs = self.history.pending_inputs();
        let steered = pending_inputs > 0;
        self.history.commit(turn.number, message, &turn.results, cut);
        if turn.is_left_out() {
            self.exclude_refused_run(pending_inputs);
        }
        turn.results.iter().for_each(|result| self.variables.apply(&result.writes));
        self.usage += turn.usage;
        if let Some(run) = &mut self.run {
            run.commit(turn, steered);
        }
        true
    }

    /// Notes the position of the record by which a turn was committed. For a stored session [`Self::apply`] does so.
    pub fn handle_commit_recorded(&mut self, turn: u32, seq: Seq) {
        self.references.add_commit(turn, seq);
    }

    /// Returns the records that hold the value of a reference to a result, to arguments or to an answer.
    ///
    /// # Errors
    /// If the session has no such turn, the run has not ended, or the reference is to a variable.
    pub fn locate(&self, reference: &Reference) -> Result<RecordRange, ReferenceError> {
        self.references.locate(reference, self.turn)
    }

    /// Pushes an effect that appends these records as one batch.
    pub(super) fn record(&mut self, batch: Vec<Record>) {
        self.outbox.push_back(SessionEffect::Record(batch));
    }

    fn open_run(&mut self) -> Result<&mut OpenRun, String> {
        self.run.as_deref_mut().ok_or_else(|| "no run goes on".to_owned())
    }

    /// Returns the run that a record starts or queues, and remembers the key of its request.
    fn recorded_run(&mut self, at: RecordedAt, record: &Record) -> Option<RunSpec> {
        let (run, request) = RunSpec::from_record(record)?;
        if let Some(request) = request {
            self.keys.insert(request, at.seq, RequestEffect::Run(run.run_id.clone()));
        }
        Some(run)
    }

    fn apply_run_start(&mut self, at: RecordedAt, rules: SessionRunRules, input: RunSpec) {
        self.interrupted = None;
        self.forget_failed_summaries();
        self.pre_turn_times = PreTurnTimes::default();
        // It may have waited in the queue.
        self.queue.retain(|queued| queued.run_id != input.run_id);
        let has_initial_calls = self.history.initial_calls().is_some();
        let first_message = self.history.messages().len();
        self.exclusions.add_input(at.seq, &input.input);
        self.history.begin_run(input.input.clone());
        let run = OpenRun::start(input, at, rules, has_initial_calls, first_message);
        self.run = Some(Box::new(run));
    }

    /// Ends the current run. Keeps it if it was interrupted and a request can be repeated that reopens it.
    fn keep_interrupted(&mut self, end: RunEnd) {
        let Some(mut run) = self.run.take() else { return };
        let is_kept = end == RunEnd::Interrupted && !run.is_asked_to_stop();
        if is_kept && self.keys.has_run(&run.id) {
            run.prepare_to_reopen();
            self.interrupted = Some(run);
        }
    }

    fn apply_reopening(&mut self, at: RecordedAt, id: &RunId) -> Result<(), String> {
        let run = self.interrupted.take_if(|run| run.id == *id && self.run.is_none());
        let mut run = run.ok_or_else(|| format!("run {id} cannot be reopened"))?;
        run.resume(at.now);
        self.keys.move_run(id, at.seq);
        self.references.remove_run_end(id);
        if run.has_cut_off_answer {
            self.drop_cut_off_answer();
        }
        self.pre_turn_times = PreTurnTimes::default();
        self.run = Some(run);
        Ok(())
    }

    /// Applies a record of the turn `number`. The first such record begins the turn.
    fn apply_turn_record(&mut self, number: u32) -> Result<(), String> {
        let last = self.turn;
        let run = self.open_run()?;
        run.skip_follow_up();
        match &run.stage {
            RunStage::Ready(_) if number <= last => {
                Err(format!("it is of turn {number}, and turn {last} is over"))
            }
            RunStage::Ready(kind) => {
                let turn = OpenTurn::new(*kind, Some(TurnOrigin::Recorded));
                run.stage = RunStage::Turn(turn);
                self.turn = number;
                Ok(())
            }
            RunStage::Turn(_) if number != last => {
                Err(format!("it is of turn {number}, and turn {last} goes on"))
            }
            RunStage::Turn(_) | RunStage::FollowUp(_) => Ok(()),
        }
    }
}

/// The answer that a run waits for before its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PreTurnWait {
    /// A summary, which a model writes.
    Summary,
    /// The tools that servers offer.
    Tools,
}

/// The times that a run has waited before its turns, by what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PreTurnTimes {
    /// The current wait, with the time on the session's clock up to which it is counted.
    current: Option<(PreTurnWait, Duration)>,
    /// The time of waits for summaries.
    pub(super) summary: Duration,
    /// The time of waits for the tools that servers offer.
    pub(super) tools: Duration,
}

impl PreTurnTimes {
    /// Adds the time since the last call to the current wait. The run waits for `next` from now on.
    pub(super) fn advance(&mut self, now: Duration, next: Option<PreTurnWait>) {
        if let Some((wait, counted)) = self.current {
            let sum = match wait {
                PreTurnWait::Summary => &mut self.summary,
                PreTurnWait::Tools => &mut self.tools,
            };
            *sum += now.saturating_sub(counted);
        }
        self.current = next.map(|wait| (wait, now));
    }
}

/// The answer to a request to start a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RunAdmission {
    /// The run can start now.
    Start,
    /// The run can wait for the current one.
    Queue,
    /// The same request was accepted before.
    Known {
        /// The run that it started or queued.
        run_id: RunId,
        /// The record of its input, or the last one that has reopened it.
        seq: Seq,
    },
    /// The same request was accepted before, and its run was interrupted: it can be
    /// [reopened](Session::handle_reopen).
    Reopen {
        /// The run.
        run_id: RunId,
        /// The record of its input, or the last one that has reopened it.
        seq: Seq,
    },
}

/// The reason why a request to a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionRefusal {
    /// The session is closed, or about to be.
    Closed,
    /// The host shuts down.
    ShuttingDown,
    /// The session was left to another host.
    Left,
    /// The idempotency key was used for a different request.
    KeyReused,
    /// The current run is suspended.
    Suspended,
    /// No run is suspended.
    NotSuspended,
    /// A run is in progress or queued.
    RunInProgress,
    /// No run is in progress.
    NoRun,
    /// No input of this run is queued.
    NoSuchInput,
    /// The run whose input is to be taken back has started.
    AlreadyStarted,
    /// The input of the run was taken back.
    InputRemoved,
    /// The input is empty.
    EmptyInput,
    /// This maximum of inputs waits already, queued or for the next turn.
    QueueFull(usize),
    /// The records of the session would be larger than this maximum of bytes.
    TooLarge(u64),
    /// The context has nothing that could be replaced.
    NothingToCompact,
    /// The context has no such input or result.
    NoSuchMessage,
}

/// The limits that a session's next input must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InputLimits {
    /// Maximum number of inputs that wait.
    pub inputs_max: usize,
    /// Bytes of the session's records.
    pub stored_bytes: u64,
    /// Maximum of `stored_bytes`, with the input. `None` means no limit.
    pub stored_bytes_max: Option<u64>,
}

impl InputLimits {
    /// Returns limits of which only the number of waiting inputs can be reached.
    pub const fn inputs(inputs_max: usize) -> Self {
        Self { inputs_max, stored_bytes: 0, stored_bytes_max: None }
    }

    /// Checks that the session has room for an input.
    pub(super) fn check(&self, input: &Content) -> Result<(), SessionRefusal> {
        let bytes = self.stored_bytes.saturating_add(content_bytes(input) as u64);
        match self.stored_bytes_max.filter(|maximum| bytes > *maximum) {
            Some(maximum) => Err(SessionRefusal::TooLarge(maximum)),
            None => Ok(()),
        }
    }
}

/// An effect of the session machine, to be performed in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEffect {
    /// Append these records as one batch and hand each of them to [`Session::apply`] before the next
    /// effect is polled.
    Record(Vec<Record>),
    /// Read the tools that servers offer, and answer by [`Session::handle_tools_read`]. No turn begins
    /// before, unless its run is cancelled.
    ReadTools,
    /// Begin or continue a turn.
    BeginTurn(Box<TurnBegin>),
    /// Ask a model for a summary, and answer by [`Session::handle_summary`]. No turn begins before, unless its run is
    /// cancelled.
    RequestSummary(Box<SummaryRequest>),
    /// Hand the turn whose request was too large the context as it is now.
    ContextReduced {
        /// True if it is smaller than before.
        reduced: bool,
    },
    /// End the current turn now.
    CancelTurn(CancelReason),
    /// A run has ended: send its report to the caller that waits for it.
    RunEnded(Box<RunResult>),
    /// A queued run does not start: send the reason to the caller that waits for it.
    RunRefused {
        /// The run.
        run_id: RunId,
        /// The reason.
        reason: SessionRefusal,
    },
    /// The session is closed: delete its records.
    Close,
}

/// A request for a summary of messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SummaryRequest {
    /// The run that waits for it, or the last one.
    pub run_id: Option<RunId>,
    /// The overrides of the run that waits for it, or else those of a run that adds none.
    pub overrides: Arc<RunOverrides>,
    /// The messages. [`SUMMARY_REQUEST`](crate::context::compaction::SUMMARY_REQUEST) follows them.
    pub messages: MessageList,
    /// The tokens that the window has room for behind the request. `None` if no window is known.
    pub output_room: Option<u64>,
}

/// The answer to a request for a summary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SummaryReply {
    /// The summary.
    Text {
        /// The text, which is not blank.
        text: String,
        /// The usage of the request.
        usage: Usage,
    },
    /// No model has answered, the answer was blank, or it did not end well.
    Failed {
        /// The usage of the requests.
        usage: Usage,
        /// The reason.
        reason: SummaryFailure,
    },
}

/// A turn to begin or to continue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnBegin {
    /// The run of the turn.
    pub run_id: RunId,
    /// The input of the turn machine. Its `seed` and `new_prompt` are left to the shell.
    pub spec: TurnSpec,
    /// The origin of the turn.
    pub origin: TurnOrigin,
    /// Set if the turn is to be cancelled as soon as it begins.
    pub cancel: Option<CancelReason>,
}

/// The result of a run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunResult {
    /// The run.
    pub run_id: RunId,
    /// The reason of the end.
    pub end: RunEnd,
    /// The final answer, or as much of it as there is.
    pub text: String,
    /// The error, if the run failed.
    pub error: Option<RunError>,
    /// The typed answer.
    pub output: Option<Arc<Value>>,
    /// The finish reason of the last response.
    pub finish_reason: Option<FinishReason>,
    /// The run's sums.
    pub stats: RunStats,
    /// The time of the run's start: Unix time in milliseconds.
    pub began: u64,
    /// The index of the run's first message in the history.
    pub first_message: usize,
    /// True if messages of the history were replaced during the run. The records have them all.
    pub is_compacted: bool,
}

/// Returns the write of a run's answer to a variable: of its value, or else of its text.
pub(super) fn answer_write(
    name: &VariableName,
    text: &str,
    output: Option<&Arc<Value>>,
) -> WriteSet {
    let value = output.map_or_else(|| Arc::new(Value::from(text)), Arc::clone);
    WriteSet([(Arc::clone(name), value)].into())
}
