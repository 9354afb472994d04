//! A turn from its records: after a crash of the host, or of one of the run's actors.
//!
//! The same machine goes on with what the journal knows. An outcome that is known is used; an
//! intent without one is answered `Unknown`, unless its tool is idempotent and runs again under
//! the same key; what was never intended is decided as if nothing had happened. Questions to
//! people stand as they were asked, and their time counts on while no host runs.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, CallRetention};
use super::attempts::Attempts;
use super::budget::{MAX_CALLS, MAX_TOKENS};
use super::call::{CallPhase, ReportedOutcome, TurnCall};
use super::committed::EndedCall;
use super::effect::{CancelReason, TurnSpec};
use super::{RUN_TIMEOUT, Turn, TurnStage, model_messages};
use crate::event::Event;
use crate::record::{
    JournalEntry, PartialResponse, Record, ResponseDisposition, ResponseMessage, StopMode, shown_of,
};
use crate::types::{
    ApprovalPhase, CallKey, FinishReason, Judgement, ProviderError, ProviderErrorKind, ToolCall,
    Usage,
};

/// What the records of a turn say.
#[derive(Debug, Default)]
struct Known {
    attempt: u32,
    /// The model that was asked last, by its name at its service.
    model: String,
    streamed: bool,
    intents: BTreeSet<CallKey>,
    /// What had come of the response when a call of it last began early.
    so_far: Option<PartialResponse>,
    reports: BTreeMap<CallKey, ReportedOutcome>,
    /// Calls that have answered twice: what they had read at first was out of date.
    outdated: BTreeSet<CallKey>,
    /// When people were asked: Unix time in milliseconds.
    asked: BTreeMap<(CallKey, ApprovalPhase), u64>,
    judgements: BTreeMap<(CallKey, ApprovalPhase), Judgement>,
    outcomes: BTreeMap<CallKey, EndedCall>,
    response: Option<Response>,
    /// Why the turn was to end before it was over.
    cancelled: Option<CancelReason>,
}

#[derive(Debug)]
struct Response {
    ending: ResponseDisposition,
    message: Arc<ResponseMessage>,
    finish_reason: Option<FinishReason>,
    dropped_calls: Vec<Arc<str>>,
}

impl Turn {
    /// Goes on with a turn from the entries that it left: those of this turn, in order, without
    /// its commit. `now` is the Unix time in milliseconds. `cancel` says why the run is to end, if
    /// it is; what the entries say of that comes first.
    #[must_use]
    pub fn resume<E: Borrow<JournalEntry>>(
        spec: TurnSpec,
        entries: &[E],
        now: u64,
        cancel: Option<CancelReason>,
    ) -> Self {
        let mut usage = Usage::default();
        let mut known = Known::default();
        for entry in entries {
            known.fold(entry.borrow(), &mut usage);
        }
        let cancel = known.cancelled.or(cancel);
        known.cancelled = cancel;
        let attempts = Attempts::new(Arc::clone(&spec.rules.models), spec.seed);
        let mut turn = Self::blank(spec, attempts.resumed(known.attempt, &known.model));
        turn.usage = usage;
        let since = |time: &u64| Duration::from_millis(now.saturating_sub(*time));
        turn.asked = known.asked.iter().map(|(question, time)| (*question, since(time))).collect();
        match known.response.take() {
            Some(response) => turn.resume_judged(response, &known),
            None => match known.so_far.take() {
                Some(so_far) => turn.resume_broken(so_far, &known),
                None => turn.resume_asking(&known),
            },
        }
        match cancel.filter(|_| turn.stage == TurnStage::AwaitingResponse) {
            Some(why) => turn.handle_cancel(Duration::ZERO, why),
            None => turn.advance(),
        }
        // Their time may have passed while nobody was there.
        turn.expire_questions();
        turn.advance();
        turn
    }

    /// The response was whole: its calls go on.
    fn resume_judged(&mut self, response: Response, known: &Known) {
        let Response { ending, message, finish_reason, dropped_calls } = response;
        self.finish = finish_reason;
        self.dropped = dropped_calls;
        self.restore_calls(&message.calls, known);
        let message = Some(message).filter(|message| !message.is_blank());
        let cancelled = known.cancelled;
        self.stage = TurnStage::ResponseEnded { ending, message, cancelled };
        self.judgements.clone_from(&known.judgements);
        self.resume_open(known);
        self.answer_unstarted(ending);
        if cancelled.is_some() {
            self.cancel_calls();
        }
    }

    /// A call with effects had started early, and the rest of the response is lost. Watchers may
    /// have seen more of it than is kept: what they saw is void, and what is kept is shown again.
    fn resume_broken(&mut self, so_far: PartialResponse, known: &Known) {
        let PartialResponse { message, shown } = so_far;
        let message = Arc::new(message);
        let error = self.record_host_stopped(known.attempt, true);
        self.emit(Event::AttemptStarted {
            attempt: known.attempt,
            model: known.model.clone(),
            streamed: known.streamed,
            reason: error.message,
            wait: Duration::ZERO,
            rollback: false,
            fallback: false,
        });
        for piece in shown_of(&message, &shown) {
            self.emit(piece.into());
        }
        self.record(Record::ResponseEnded {
            turn: self.spec.number,
            attempt: known.attempt,
            ending: ResponseDisposition::BrokeKept,
            message: Arc::clone(&message),
            finish_reason: None,
            usage: Usage::default(),
            dropped_calls: Vec::new(),
            shown,
        });
        self.emit(Event::ResponseEnded {
            names: message.calls.iter().map(|call| call.name.clone()).collect(),
            opened: u32::try_from(message.calls.len()).unwrap_or(u32::MAX),
            detected: u32::try_from(message.calls.len()).unwrap_or(u32::MAX),
            stopped: false,
        });
        let response = Response {
            ending: ResponseDisposition::BrokeKept,
            message,
            finish_reason: None,
            dropped_calls: Vec::new(),
        };
        self.resume_judged(response, known);
    }

    /// The open attempt broke because the host stopped.
    fn record_host_stopped(&mut self, attempt: u32, kept: bool) -> ProviderError {
        let message = "the host stopped during the attempt";
        let error = ProviderError::new(ProviderErrorKind::Transport, message);
        self.record(Record::AttemptFailed {
            turn: self.spec.number,
            attempt,
            error: error.clone(),
            kept,
            usage: Usage::default(),
            host_stopped: true,
        });
        error
    }

    /// Nothing that counts had happened: the model is asked again.
    fn resume_asking(&mut self, known: &Known) {
        let attempt = known.attempt;
        if attempt == 0 {
            self.ask();
            return;
        }
        let error = self.record_host_stopped(attempt, false);
        let is_told = known.cancelled == Some(CancelReason::Budget);
        if is_told || self.is_out_of_tokens() {
            let (model, streamed) = (known.model.clone(), known.streamed);
            self.emit(Event::AttemptVoided { attempt, model, streamed, reason: error.message });
            self.end_out_of_tokens(is_told);
            return;
        }
        let plan = self.attempts.first();
        self.ask_again(plan, error.message);
    }

    fn restore_calls(&mut self, calls: &[ToolCall], known: &Known) {
        for call in calls {
            let tool = self.spec.rules.tools.get(&*call.name).cloned();
            let mut restored = TurnCall::restored(call.clone(), tool);
            if let Some(ended) = known.outcomes.get(&call.key) {
                restored.restore_end(ended);
                if let Some(report) = known.reports.get(&call.key) {
                    restored.reads = report.reads.clone();
                }
                self.visible.accept(call.key.index, &ended.writes);
                self.clock.tool_remembered(ended.duration);
            } else if let Some(report) = known.reports.get(&call.key) {
                restored.started_at = Some(Duration::ZERO);
                restored.answered_at = Some(Duration::ZERO);
                restored.notes.conflict = known.outdated.contains(&call.key);
                restored.phase = CallPhase::Reported(report.clone());
            } else {
                // What was wrong with it is found again, from the same bytes.
                let raw = call.raw.clone().unwrap_or_else(|| call.arguments_text());
                admission::take_arguments(&mut restored, &raw, false);
                let opening = admission::by_rules(call.key.index, &self.spec.rules);
                restored.excess = opening == CallRetention::KeepExcess;
            }
            if let Some(said) = known.judgements.get(&(call.key, ApprovalPhase::Before)) {
                restored.notes.before = Some(said.clone());
            }
            self.calls.push(restored);
        }
    }

    /// Reports that need no order are reviewed again. Calls that people had rejected are answered so. Intents without an outcome: run again, or
    /// answered where the tool must not run twice.
    fn resume_open(&mut self, known: &Known) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get_mut(index) else { return };
            if let CallPhase::Reported(ReportedOutcome { outcome, reads, writes }) = &call.phase
                && reads.0.is_empty()
                && writes.is_empty()
            {
                let (outcome, writes) = (outcome.clone(), writes.clone());
                self.review_or_end(index, outcome, writes);
                continue;
            }
            if call.outcome().is_some() || call.is_undecided() {
                continue;
            }
            if let Some(rejection) = call.notes.rejection().cloned() {
                self.end_call(index, model_messages::rejected(ApprovalPhase::Before, &rejection));
                continue;
            }
            if !known.intents.contains(&call.key()) {
                continue;
            }
            // It may have run: a cancel has to say so, and an identical call behind it must not
            // run either.
            call.started_at = Some(Duration::ZERO);
            if call.tool.as_ref().is_some_and(|tool| tool.idempotent) {
                self.take_ticket(index);
            } else {
                self.end_call(index, model_messages::host_stopped());
            }
        }
    }
}

impl Known {
    fn fold(&mut self, entry: &JournalEntry, usage: &mut Usage) {
        match &entry.record {
            Record::AttemptStarted { attempt, model, streamed, .. } => {
                let (attempt, model, cancelled) = (*attempt, model.clone(), self.cancelled);
                let streamed = *streamed;
                *self = Self { attempt, model, streamed, cancelled, ..Self::default() };
            }
            Record::CallIntended { call, so_far, .. } => {
                self.intents.insert(call.key);
                if let Some(so_far) = so_far {
                    self.so_far = Some((**so_far).clone());
                }
            }
            Record::CallReported { key, outcome, reads, writes } => {
                let (outcome, reads, writes) = (outcome.clone(), reads.clone(), writes.clone());
                if self.reports.insert(*key, ReportedOutcome { outcome, reads, writes }).is_some() {
                    self.outdated.insert(*key);
                }
            }
            Record::ApprovalGiven { key, phase, verdict, message } => {
                let judgement = Judgement { verdict: *verdict, message: message.clone() };
                self.judgements.insert((*key, *phase), judgement);
            }
            Record::CallEnded { call, .. } => {
                self.outcomes.extend(EndedCall::of(&entry.record).map(|ended| (call.key, ended)));
            }
            Record::ApprovalAsked { asked } => {
                self.asked.insert((asked.call.key, asked.phase), entry.time);
            }
            Record::ResponseEnded {
                ending,
                message,
                finish_reason,
                usage: spent,
                dropped_calls,
                ..
            } => {
                *usage += *spent;
                self.response = Some(Response {
                    ending: *ending,
                    message: message.clone(),
                    finish_reason: finish_reason.clone(),
                    dropped_calls: dropped_calls.clone(),
                });
            }
            // What is kept of an attempt is counted with its response.
            Record::AttemptFailed { usage: spent, kept: false, .. } => *usage += *spent,
            Record::StopAsked { mode: StopMode::Now } => self.cancel(CancelReason::Stop),
            Record::LimitReached { limit, .. } => match limit.as_str() {
                MAX_TOKENS | MAX_CALLS => self.cancel(CancelReason::Budget),
                RUN_TIMEOUT => self.cancel(CancelReason::RunTimeout),
                _ => {}
            },
            Record::SessionOpened { .. }
            | Record::SessionForked { .. }
            | Record::InputQueued { .. }
            | Record::RunStarted { .. }
            | Record::AttemptFailed { kept: true, .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { mode: StopMode::AfterTurn }
            | Record::RunEnded { .. }
            | Record::SessionClosed => {}
        }
    }

    /// The first reason stands.
    fn cancel(&mut self, why: CancelReason) {
        self.cancelled.get_or_insert(why);
    }
}
