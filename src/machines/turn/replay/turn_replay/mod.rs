//! Replays one turn: applies inputs to the turn machine ([`Turn`]), and compares the records that it makes with the
//! recorded ones.
//!
//! The journal has the records of a turn, and not its inputs. `inputs` lists the inputs that could have led to the
//! next record, the most likely first. Each is applied to a copy of the machine. The first one that makes the record,
//! or changes the machine without a contradiction, is taken. If none does, the host may have stopped at the first
//! contradiction ([`TurnReplay::resume_before`]); else the recording differs from today's code.

mod effects;
mod inputs;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::difference::{Mismatch, same};
use super::recording::Recording;
use super::response::{self, ReplayStep};
use crate::turn::call::{CallPhase, TurnCall};
use crate::turn::committed::CommittedTurn;
use crate::turn::effect::DeferredEffect;
use crate::turn::effect::{ApprovalDecision, CancelReason, Effect, PermitReply};
use crate::turn::spec::TurnSpec;
use crate::turn::started_calls::{StartedCalls, ToolCompletion};
use crate::turn::{Turn, TurnAction, TurnStage};
use callsheet_values::record::{Record, ResponseEnding};
use callsheet_values::types::{
    ApprovalVerdict, Author, CallKey, FailureKind, HookDecision, HookPoint, ProviderError,
    Question, Reference, ToolOutcome, VariablesUse, VerdictWithMessage, WaitPhase,
};
use callsheet_wire::Delta;
use callsheet_wire::response::ExchangeEnd;

/// The end of a replayed turn.
#[derive(Debug)]
pub enum ReplayEnd {
    /// The turn was committed.
    Committed(Box<CommittedTurn>),
    /// The session gave up the run.
    GivenUp,
    /// The recording ends before the turn does.
    Unfinished,
}

/// A replay of a turn.
#[derive(Clone, Debug)]
pub struct TurnReplay<'t, 'a> {
    recording: &'t Recording<'a>,
    /// The index of the next record to be made.
    at: usize,
    /// The index of the turn's first record.
    first: usize,
    /// The response of a turn that runs the session's initial calls.
    initial_response: Option<Record>,
    turn: Turn,
    spec: Arc<TurnSpec>,
    /// The number of records that the machine has made.
    records_made: u64,
    /// The number of them that are durable.
    records_durable: u64,
    /// Calls that wait for a permit of their tool.
    permit_requests: Vec<CallKey>,
    /// Calls that wait for the values of these references.
    reference_requests: Vec<(CallKey, BTreeSet<Reference>)>,
    /// The rest of the response.
    remaining_steps: Vec<ReplayStep>,
    /// Calls that have received bytes after their seal. Each receives them once.
    changed_after_seal: Vec<CallKey>,
    /// The reason for which the session cancels the turn whenever it begins or resumes.
    cancel: Option<CancelReason>,
    /// True if the current machine was cancelled, or its run is out of time.
    cancelled: bool,
    /// The turn waits for a smaller context.
    needs_context: bool,
    /// The index at which the host was last assumed to have stopped. The next one is later, so that the replay ends.
    resumed_at: Option<usize>,
    committed: Option<Box<CommittedTurn>>,
    /// True if the machine has made a record after the end of the recording.
    recording_ended: bool,
    /// True if the machine has made a record after the position of a fork: it is in the session that was forked.
    is_forked: bool,
}

/// An input that may have come from outside.
#[derive(Clone, Debug)]
enum ReplayInput {
    /// Receive this number of further steps of the response.
    Response(usize),
    End(ExchangeEnd),
    ChangeAfterSeal(CallKey),
    Outcome(CallKey, ToolCompletion),
    /// Calls have reached their timeouts.
    TimedOut(Vec<CallKey>),
    /// The client answers a call.
    ClientResult(CallKey, ToolOutcome),
    /// The client has not answered a call in time.
    Unanswered(CallKey),
    /// A tool asks a question, or withdraws it.
    Ask(CallKey, Arc<Question>),
    WithdrawQuestion(CallKey),
    Decide(CallKey, WaitPhase, VerdictWithMessage, Option<Arc<Value>>, Option<Author>),
    /// Hooks decide about a call, or about the turn.
    DecideHooks(Option<CallKey>, HookPoint, Arc<HookDecision>),
    /// The time of the run is over (`run_timeout`).
    OutOfTime,
    Cancel(CancelReason),
    /// The context was made smaller, or could not be.
    ContextReduced(bool),
    /// All records so far are durable, all requested permits are granted, and all requested references are read.
    MakeDurable,
    /// The turn was resumed from its records: after a stop of the host, or under the tool
    /// supervisor that still runs these calls.
    Resume(StartedCalls),
}

impl<'t, 'a> TurnReplay<'t, 'a> {
    /// Starts the replay of a turn whose first record is at `first`. `initial_response` is the response
    /// of a turn that runs the session's initial calls. `cancel` is a reason to end the turn.
    pub fn new(
        recording: &'t Recording<'a>,
        first: usize,
        spec: TurnSpec,
        initial_response: Option<Record>,
        cancel: Option<CancelReason>,
    ) -> Self {
        let cancelled = cancel.filter(|reason| recording.may_begin_cancelled(first, *reason));
        let turn = match &initial_response {
            Some(response) => {
                let entry = recording.entry(first).map(|entry| entry.with_record(response.clone()));
                Turn::resume(spec.clone(), entry.as_slice(), 0, cancelled)
            }
            None => {
                let mut turn = Turn::new(spec.clone());
                cancelled.into_iter().for_each(|reason| turn.handle_cancel(Duration::ZERO, reason));
                turn
            }
        };
        Self {
            recording,
            at: first,
            first,
            initial_response,
            turn,
            spec: Arc::new(spec),
            records_made: 0,
            records_durable: 0,
            permit_requests: Vec::new(),
            reference_requests: Vec::new(),
            remaining_steps: Vec::new(),
            changed_after_seal: Vec::new(),
            cancel,
            cancelled: cancelled.is_some(),
            needs_context: false,
            resumed_at: None,
            committed: None,
            recording_ended: false,
            is_forked: false,
        }
    }

    /// Replays the turn to its end.
    ///
    /// # Errors
    /// At the first record that the machine does not make.
    pub fn run(mut self) -> Result<(usize, ReplayEnd), Mismatch> {
        if let Err(mismatch) = self.perform_effects() {
            self = self.resume_before(mismatch)?;
        }
        loop {
            if let Some(record) = self.committed.take() {
                return Ok((self.at, ReplayEnd::Committed(record)));
            }
            if let Some(fork) = self.recording.next_fork(self.at) {
                self = self.resume_in_fork(fork)?;
                continue;
            }
            self.at = self.recording.next_made(self.at);
            let Some(record) = self.recording.record(self.at).filter(|_| !self.recording_ended)
            else {
                return Ok((self.at, ReplayEnd::Unfinished));
            };
            if self.recording.run_end(self.at).is_some_and(|end| end.is_given_up()) {
                return Ok((self.at, ReplayEnd::GivenUp));
            }
            self = self.infer_input(record)?;
        }
    }

    /// Applies the first possible input that brings the machine closer to the next record: it has made the record, or
    /// its state has changed.
    fn infer_input(self, record: &Record) -> Result<Self, Mismatch> {
        let mut mismatches = Vec::new();
        for input in self.inputs(record) {
            let mut trial = self.clone();
            let resumes = matches!(input, ReplayInput::Resume(_));
            trial.apply(input);
            match trial.perform_effects() {
                Ok(()) if trial.has_changed_from(&self) => return Ok(trial),
                Ok(()) => {}
                // The turn was not resumed here, so this mismatch is not the difference.
                Err(mismatch) if resumes && mismatch.index <= self.at => {}
                Err(mismatch) => mismatches.push((trial, mismatch)),
            }
        }
        // The host may have stopped before all records of an input were stored.
        let mut closest: Option<Mismatch> = None;
        for (trial, mismatch) in mismatches {
            let mismatch = if mismatch.index > self.at {
                match trial.resume_before(mismatch) {
                    Ok(trial) => return Ok(trial),
                    Err(mismatch) => mismatch,
                }
            } else {
                mismatch
            };
            if closest.as_ref().is_none_or(|best| best.index < mismatch.index) {
                closest = Some(mismatch);
            }
        }
        let state = self.state();
        Err(closest.unwrap_or(Mismatch { index: self.at, now: None, state }))
    }

    /// Resumes from the records before the mismatch, as if the host had stopped there.
    fn resume_before(mut self, mismatch: Mismatch) -> Result<Self, Mismatch> {
        let mut index = mismatch.index;
        loop {
            if self.resumed_at.is_some_and(|before| before >= index) {
                return Err(mismatch);
            }
            self.at = index;
            self.resume(StartedCalls::default());
            match self.perform_effects() {
                Ok(()) => return Ok(self),
                Err(next) => index = next.index,
            }
        }
    }

    /// Resumes the turn in the fork of its session, which stops the run.
    fn resume_in_fork(mut self, fork: usize) -> Result<Self, Mismatch> {
        self.at = fork + 1;
        (self.is_forked, self.cancel) = (false, Some(CancelReason::Stop));
        self.resume(StartedCalls::default());
        match self.perform_effects() {
            Ok(()) => Ok(self),
            Err(mismatch) => self.resume_before(mismatch),
        }
    }

    /// Returns true if the further records of the machine are not recorded.
    fn is_interrupted(&self) -> bool {
        self.recording_ended || self.is_forked
    }

    fn has_changed_from(&self, other: &Self) -> bool {
        self.at > other.at
            || self.is_interrupted()
            || self.committed.is_some()
            || self.turn != other.turn
            || self.remaining_steps.len() != other.remaining_steps.len()
            || self.resumed_at != other.resumed_at
    }

    fn apply(&mut self, input: ReplayInput) {
        // A replay has no clock: what expires is an input.
        let now = Duration::ZERO;
        match input {
            ReplayInput::Response(steps) => self.receive_steps(steps),
            ReplayInput::End(end) => {
                self.receive_rest();
                self.turn.handle_response_end(now, end);
            }
            ReplayInput::ChangeAfterSeal(key) => self.change_after_seal(key),
            ReplayInput::Outcome(key, completion) => self.turn.handle_outcome(now, key, completion),
            ReplayInput::TimedOut(keys) => self.time_out(&keys),
            ReplayInput::ClientResult(key, outcome) => {
                // A result that is not awaited leads to no record.
                let _ = self.turn.handle_client_result(now, key, outcome);
            }
            ReplayInput::Unanswered(key) => {
                if let Some(index) = self.turn.position(key) {
                    self.turn.end_unanswered(index);
                    self.turn.advance();
                }
            }
            ReplayInput::Ask(key, question) => {
                let number = self.call(key).map_or(1, TurnCall::next_question_number);
                self.turn.handle_question(now, key, number, question);
            }
            ReplayInput::WithdrawQuestion(key) => {
                let number = self.call(key).and_then(TurnCall::started_question);
                let number = number.map_or(0, |question| question.number);
                self.turn.handle_question_withdrawn(now, key, number);
            }
            ReplayInput::Decide(key, phase, given, content, author) => {
                self.decide_approval(key, phase, given, content, author)
            }
            ReplayInput::DecideHooks(key, on, decision) => {
                self.turn.handle_hook_decision(now, key, on, (*decision).clone());
            }
            ReplayInput::OutOfTime => {
                self.receive_rest();
                self.cancelled = true;
                if self.spec.rules.limits.run_timeout.is_some() {
                    self.turn.end_out_of_time();
                }
            }
            ReplayInput::Cancel(reason) => {
                self.receive_rest();
                self.cancelled = true;
                self.turn.handle_cancel(now, reason);
            }
            ReplayInput::ContextReduced(reduced) => {
                self.needs_context = false;
                self.turn.handle_context_reduced(now, reduced);
            }
            ReplayInput::MakeDurable => self.make_durable(),
            ReplayInput::Resume(started) => self.resume(started),
        }
    }

    fn receive_steps(&mut self, count: usize) {
        let mut batch: Vec<Delta> = Vec::new();
        for step in self.remaining_steps.drain(..count.min(self.remaining_steps.len())) {
            batch.extend(step.deltas);
            if let Some(gap) = step.gap {
                self.turn.handle_deltas(Duration::ZERO, std::mem::take(&mut batch));
                let at = usize::try_from(gap).unwrap_or(usize::MAX);
                self.turn.set_phase(at, CallPhase::Dropped);
            }
        }
        self.turn.handle_deltas(Duration::ZERO, batch);
    }

    /// Receives the rest of the response.
    fn receive_rest(&mut self) {
        if self.turn.stage != TurnStage::AwaitingResponse {
            return;
        }
        while !self.remaining_steps.is_empty() {
            self.receive_steps(1);
        }
        let (turn, attempt) = (self.spec.number, self.turn.attempt());
        for index in response::changed_after_seal(self.recording, self.at, turn, attempt) {
            self.change_after_seal(CallKey { turn, attempt, index });
        }
    }

    /// Receives more bytes for a call that was sealed.
    fn change_after_seal(&mut self, key: CallKey) {
        if key.attempt != self.turn.attempt() || self.changed_after_seal.contains(&key) {
            return;
        }
        if let Some(ReplayInput::Response(steps)) = self.up_to_seal(key) {
            self.receive_steps(steps);
        }
        self.changed_after_seal.push(key);
        if let Some(index) = self.turn.position(key) {
            // The record says that the call was malformed at once, also if it had not started.
            self.turn.end_changed_call(index);
            self.turn.advance();
        }
    }

    fn time_out(&mut self, keys: &[CallKey]) {
        for key in keys {
            let Some(index) = self.turn.position(*key) else { continue };
            let phase = self.turn.calls.get(index).map(|call| &call.phase);
            if let Some(CallPhase::Running { deadline: Some(_), .. }) = phase {
                self.turn.end_timed_out(index);
            }
        }
        if self.recording.runs_out_of_time(self.at) && self.spec.rules.limits.run_timeout.is_some()
        {
            self.cancelled = true;
            self.turn.end_out_of_time();
        }
        self.turn.advance();
    }

    fn decide_approval(
        &mut self,
        key: CallKey,
        phase: WaitPhase,
        given: VerdictWithMessage,
        content: Option<Arc<Value>>,
        author: Option<Author>,
    ) {
        if given.verdict == ApprovalVerdict::Expired {
            let index = self.turn.position(key);
            let call = index.and_then(|index| self.turn.calls.get(index));
            if call.and_then(TurnCall::pending_wait_phase) == Some(phase)
                && let Some(index) = index
            {
                self.turn.decide_approval(index, phase, given, None, None);
                self.turn.advance();
            }
            return;
        }
        let Some(request) = self.turn.pending_approval(key) else { return };
        let arguments_sha256 = request.arguments_sha256;
        let content = content.map(|content| (*content).clone());
        let (phase, VerdictWithMessage { verdict, message }) = (Some(phase), given);
        let decision =
            ApprovalDecision { phase, verdict, message, arguments_sha256, content, author };
        // A refused decision leads to no record.
        let _ = self.turn.handle_approval(Duration::ZERO, key, decision);
    }

    fn make_durable(&mut self) {
        self.records_durable = self.records_made;
        self.turn.handle_recorded(Duration::ZERO, self.records_made);
        for (key, references) in std::mem::take(&mut self.reference_requests) {
            self.supply_reference_values(key, references);
        }
        for key in std::mem::take(&mut self.permit_requests) {
            self.turn.handle_tool_permit(Duration::ZERO, key, PermitReply::Granted);
        }
    }

    /// Returns the calls that run now.
    fn started_calls(&self) -> StartedCalls {
        let running = self.turn.calls.iter().filter(|call| call.is_running());
        let calls = running.map(|call| (call.key(), call.as_started()));
        StartedCalls { calls: calls.collect(), is_complete: true }
    }

    fn resume(&mut self, started: StartedCalls) {
        let first = self.recording.entry(self.first).zip(self.initial_response.as_ref());
        let first = first.map(|(entry, response)| entry.with_record(response.clone()));
        let recorded = (self.first..self.at).filter_map(|at| self.recording.entry(at)).cloned();
        let entries: Vec<_> = first.into_iter().chain(recorded).collect();
        // The turn was resumed when the next record was written.
        let now = self.recording.entry(self.at).map_or(0, |entry| entry.time);
        self.turn = Turn::resume_with((*self.spec).clone(), &entries, now, self.cancel, started);
        (self.records_made, self.records_durable) = (0, 0);
        self.permit_requests.clear();
        self.reference_requests.clear();
        self.remaining_steps.clear();
        self.cancelled = self.cancel.is_some();
        self.resumed_at = Some(self.at);
    }

    /// Describes what the machine waits for.
    fn state(&self) -> String {
        let approvals = self
            .turn
            .pending_approvals()
            .map(|(key, _)| format!("the approval of {key} is pending"));
        let running = self.turn.calls.iter().filter(|call| call.is_running());
        let running = running.map(|call| format!("{} of {} runs", call.key(), call.call.name));
        let waits: Vec<_> = approvals.chain(running).collect();
        if !waits.is_empty() {
            return waits.join(", ");
        }
        match self.turn.stage {
            TurnStage::AwaitingResponse => "the request to the model is open".to_owned(),
            TurnStage::ResponseEnded { .. } => "nothing runs".to_owned(),
            TurnStage::Finished => "the turn is over".to_owned(),
        }
    }
}
