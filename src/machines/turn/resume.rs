//! Resumes a turn from its records: after a hibernation, after a stop or a crash of the host, or after the death of
//! one of the run's actors. A turn of [`initial_calls`](super::initial_calls) starts in the same way.
//!
//! Crash during a call: a recorded outcome or report is used. A call with an intent and without either may
//! or may not have happened. It is answered [`Unknown`](callsheet_values::types::ToolStatus::Unknown), or, if its
//! tool is idempotent, runs again with the same idempotency key. A call without an intent, such
//! as each call of a pure tool, is decided as if it were new. Approvals stay pending, and their timeouts go on
//! while no host runs.
//!
//! If only the owner of the turn died, its tool supervisor still runs the calls. The resumed turn
//! attaches to them, and to their waits for people. A call whose start did not reach the supervisor is decided as
//! if it were new, even if it has an intent.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, CallRetention};
use super::call::{CallPhase, ReportedOutcome, TurnCall};
use super::effect::{CancelReason, TurnAction};
use super::retry::RetryPolicy;
use super::run_limits::{MAX_CALLS_KEY, MAX_TOKENS_KEY, RUN_TIMEOUT_KEY};
use super::spec::{RunRules, TurnSpec};
use super::started_calls::{StartedCall, StartedCalls};
use super::turn_hooks::HookStage;
use super::{Turn, TurnStage, model_messages};
use callsheet_values::event::Event;
use callsheet_values::record::{
    JournalEntry, PartialResponse, Record, ResponseEnding, ResponseMessage, StopMode,
    displayed_text,
};
use callsheet_values::transcript::{
    AttemptTranscript, CallTranscript, RunTranscript, Transcript, TurnTranscript,
};
use callsheet_values::types::{
    CallKey, HookPoint, ProviderError, ProviderErrorKind, ToolCall, Usage, VerdictWithMessage,
    WaitPhase,
};
use callsheet_wire::response::{ParsedArguments, parse_arguments};

/// The error of an attempt whose host, or one of the actors of whose run, ended.
pub const HOST_STOPPED_REASON: &str =
    "the attempt was interrupted by a stop or a fault of the host";

/// The records of the turn's last attempt, and what else a resume depends on.
struct RecordedTurn<'t, 'a> {
    attempt: &'t AttemptTranscript<'a>,
    /// The reason to end the turn early.
    cancelled: Option<CancelReason>,
    started: StartedCalls,
}

impl Turn {
    /// Resumes a turn from its entries: all that were appended since its first one, without its
    /// commit. `now` is the Unix time in milliseconds. `cancel` is a reason to end the turn; a
    /// reason in the entries precedes it. No call of the turn runs any more.
    #[must_use]
    pub fn resume<E: Borrow<JournalEntry>>(
        spec: TurnSpec,
        entries: &[E],
        now: u64,
        cancel: Option<CancelReason>,
    ) -> Self {
        Self::resume_with(spec, entries, now, cancel, StartedCalls::default())
    }

    /// Resumes a turn like [`Self::resume`], under the tool supervisor that has started its calls.
    /// The turn attaches to the calls that it still needs and aborts the others.
    #[must_use]
    pub fn resume_with<E: Borrow<JournalEntry>>(
        spec: TurnSpec,
        entries: &[E],
        now: u64,
        cancel: Option<CancelReason>,
        started: StartedCalls,
    ) -> Self {
        let transcript = Transcript::read(entries.iter().map(Borrow::borrow));
        let run = transcript.runs.last();
        let turn = run.and_then(|run| run.turns.last());
        let cancelled = run.and_then(cancel_reason).or(cancel);
        let not_started = AttemptTranscript::default();
        let attempt = turn.and_then(TurnTranscript::attempt).unwrap_or(&not_started);
        let recorded = RecordedTurn { attempt, cancelled, started };
        let model = attempt.start.map_or("", |start| start.model);
        let retry = RetryPolicy::new(Arc::clone(&spec.rules.models), spec.seed);
        let retry = retry.for_request(spec.request_kind).resumed(
            recorded.attempt_number(),
            model,
            turn.map_or(0, empty_answers),
        );
        let mut resumed = Self::blank(spec, retry);
        resumed.usage = turn.map(TurnTranscript::usage).unwrap_or_default();
        let before_request = turn.and_then(TurnTranscript::request_decision);
        let after_turn = turn.and_then(|turn| turn.hook_decision(HookPoint::AfterTurn));
        resumed.hooks.before_request = HookStage::recorded(before_request);
        resumed.hooks.after_turn = HookStage::recorded(after_turn);
        let passed = |time: u64| Duration::from_millis(now.saturating_sub(time));
        let requests = recorded.approval_requests();
        resumed.approvals.requested_before_resume =
            requests.map(|(approval, time)| (approval, passed(time))).collect();
        match (attempt.response, recorded.partial_response()) {
            (Some(response), _) => {
                resumed.attempt.finish_reason = response.finish_reason.cloned();
                resumed.attempt.dropped_calls = response.dropped_calls.to_vec();
                resumed.attempt.recorded_request_tokens = response.usage.input_tokens;
                resumed.resume_response(response.ending, Arc::clone(response.message), &recorded);
            }
            (None, Some(partial)) => resumed.resume_broken(partial, &recorded),
            (None, None) => resumed.resume_without_response(&recorded),
        }
        match cancelled.filter(|_| resumed.stage == TurnStage::AwaitingResponse) {
            Some(reason) => resumed.handle_cancel(Duration::ZERO, reason),
            None => resumed.advance(),
        }
        // Approvals may have expired while no host ran.
        resumed.expire_approvals();
        resumed.advance();
        resumed
    }

    /// Resumes a turn whose response is recorded: its calls continue.
    fn resume_response(
        &mut self,
        ending: ResponseEnding,
        message: Arc<ResponseMessage>,
        recorded: &RecordedTurn<'_, '_>,
    ) {
        self.restore_calls(&message.calls, recorded);
        let message = Some(message).filter(|message| !message.is_blank());
        let cancelled = recorded.cancelled;
        self.stage = TurnStage::ResponseEnded { ending, message, cancelled };
        self.approvals.decisions = recorded.decisions().collect();
        self.resume_open_calls(recorded);
        self.close_calls_after_response(ending);
        if cancelled.is_some() {
            self.cancel_calls();
        }
        for index in 0..self.calls.len() {
            self.resolve_references(index);
            self.ask_hooks_before_start(index);
        }
    }

    /// Resumes a turn whose response is lost after a call with effects had started early. Clients may
    /// have received more of the response than is kept, so that the kept part is published again.
    fn resume_broken(&mut self, partial: &PartialResponse, recorded: &RecordedTurn<'_, '_>) {
        let message = Arc::new(partial.message.clone());
        let attempt = recorded.attempt_number();
        // A recorded failure was published before: the attempt had broken before the crash.
        if recorded.attempt.failure.is_none() {
            self.record_host_stopped(attempt, true);
            for text in displayed_text(&message, &partial.displayed_segments) {
                self.emit(text.into());
            }
        }
        self.record(Record::ResponseEnded {
            turn: self.spec.number,
            attempt,
            ending: ResponseEnding::BrokenKept,
            message: Arc::clone(&message),
            finish_reason: None,
            usage: Usage::default(),
            dropped_calls: Vec::new(),
            displayed_segments: partial.displayed_segments.clone(),
        });
        self.emit(Event::ResponseDecoded {
            names: message.calls.iter().map(|call| call.name.clone()).collect(),
            opened: u32::try_from(message.calls.len()).unwrap_or(u32::MAX),
            detected: u32::try_from(message.calls.len()).unwrap_or(u32::MAX),
            stopped: false,
        });
        self.resume_response(ResponseEnding::BrokenKept, message, recorded);
    }

    /// Records that the open attempt broke because its host, or one of the run's actors, ended.
    fn record_host_stopped(&mut self, attempt: u32, kept: bool) -> ProviderError {
        let error = ProviderError::new(ProviderErrorKind::Transport, HOST_STOPPED_REASON);
        self.record(Record::AttemptFailed {
            turn: self.spec.number,
            attempt,
            error: error.clone(),
            kept,
            usage: Usage::default(),
            host_stopped: true,
            voided: None,
        });
        error
    }

    /// Resumes a turn without a response: requests the response again, waits for a smaller context first, or ends the
    /// turn because no tokens are left.
    fn resume_without_response(&mut self, recorded: &RecordedTurn<'_, '_>) {
        self.abort_unattached(&recorded.started);
        let attempt = recorded.attempt_number();
        if attempt == 0 {
            self.request_first();
            return;
        }
        let is_limit_recorded = recorded.cancelled == Some(CancelReason::Budget);
        let failure = recorded.attempt.failure.map(|failure| failure.error);
        if let Some(error) = failure.filter(|error| error.is_context_overflow())
            && !is_limit_recorded
            && !self.is_out_of_tokens()
        {
            if let Some(plan) = self.retry.with_shorter_answer(error) {
                self.request_again(plan, error.message.clone());
                return;
            }
            // The host stopped while the session made its context smaller.
            self.request_smaller_context(error.clone());
            return;
        }
        if let Some(error) = failure.filter(|error| self.excludes_after(error))
            && (error.kind == ProviderErrorKind::Refused || !self.retry.has_fallback())
            && !error.is_transient()
            && !is_limit_recorded
        {
            // The host stopped while the session left content out, or before it.
            self.request_smaller_context(error.clone());
            return;
        }
        // An attempt that had failed before does not fail again.
        let error = match failure {
            Some(error) => error.clone(),
            None => self.record_host_stopped(attempt, false),
        };
        if is_limit_recorded || self.is_out_of_tokens() {
            self.end_out_of_tokens(is_limit_recorded);
            return;
        }
        let plan = self.retry.plan_after_resume(&error);
        self.request_again(plan, error.message);
    }

    fn restore_calls(&mut self, calls: &[ToolCall], recorded: &RecordedTurn<'_, '_>) {
        let rules = &self.spec.rules;
        for call in calls {
            let tool = self.spec.tool(&call.name).cloned();
            let mut restored = TurnCall::restored(call.clone(), tool);
            let transcript = recorded.call(call.key);
            if let Some(transcript) = transcript {
                restored.restore_questions(transcript);
            }
            if let Some(arguments) = transcript.and_then(final_arguments)
                && (restored.has_references(rules) || restored.call.arguments != *arguments)
            {
                restored.set_final_arguments(Arc::clone(arguments));
            }
            let runs_again = needs_rerun_for_references(&restored, rules);
            if let Some(transcript) = transcript {
                restored.hooks.before = transcript.hook_decision(HookPoint::BeforeCall).cloned();
                let after = transcript.hook_decision(HookPoint::AfterCall);
                // Another result needs another decision.
                restored.hooks.after = after.filter(|_| !runs_again).cloned();
            }
            transcript.into_iter().for_each(|call| restored.agent_call.restore(call));
            let report = transcript.and_then(|call| call.reports.last());
            if let Some(ended) = transcript.and_then(CallTranscript::outcome) {
                restored.restore_outcome(ended);
                if let Some(report) = report {
                    restored.reads = report.reads.clone();
                }
                self.variables.apply(call.key.index, ended.writes);
                self.clock.add_tool_time(Duration::from_millis(ended.duration_ms));
            } else if let Some(report) = report.filter(|_| !runs_again) {
                restored.started_at = Some(Duration::ZERO);
                restored.answered_at = Some(Duration::ZERO);
                // A second report shows that the call ran again because of a conflict.
                restored.notes.conflict = transcript.is_some_and(|call| call.reports.len() > 1);
                restored.notes.by_client = transcript.is_some_and(CallTranscript::is_by_client);
                restored.phase = CallPhase::Reported(ReportedOutcome {
                    outcome: report.outcome.clone(),
                    reads: report.reads.clone(),
                    writes: report.writes.clone(),
                });
            } else if restored.model_arguments.is_none() {
                // Parses the same bytes again to find the same error.
                let raw = call.raw.as_deref().filter(|_| !call.indirect);
                let oversize = raw.is_some_and(|raw| is_rest_of_oversize(raw, &call.arguments));
                let raw = raw.map_or_else(|| call.arguments_text(), str::to_owned);
                admission::parse_call_arguments(&mut restored, &raw, oversize, rules);
                let retention = admission::retention_by_rules(call.key.index, rules);
                restored.is_excess = retention == CallRetention::AnswerExcess;
            }
            let mut decisions = transcript.into_iter().flat_map(|call| &call.decisions);
            let before = decisions.rfind(|decision| decision.phase == WaitPhase::Before);
            restored.notes.before =
                before.map(|decision| decision.verdict_with_message()).or(restored.notes.before);
            self.calls.push(restored);
        }
    }

    /// Resumes the calls that have no outcome. The turn attaches to started calls, waits again for the results of
    /// clients, passes a report without variables to hooks and review, and answers a rejected call. Another call with
    /// an intent runs again if its tool is idempotent, and is answered as unknown otherwise.
    fn resume_open_calls(&mut self, recorded: &RecordedTurn<'_, '_>) {
        for index in 0..self.calls.len() {
            let Some(call) = self.calls.get_mut(index) else { return };
            if let Some(started) = recorded.started.calls.get(&call.key())
                && call.needs(started)
            {
                self.attach(index, started);
                continue;
            }
            let key = call.key();
            let handed = (key, WaitPhase::Client);
            if self.approvals.requested_before_resume.contains_key(&handed)
                && call.outcome().is_none()
                && !call.has_undecided_report()
            {
                call.early = recorded.is_early_request(handed);
                self.hand_to_client(index);
                continue;
            }
            if let CallPhase::Reported(ReportedOutcome { outcome, reads, writes }) = &call.phase
                && reads.0.is_empty()
                && writes.is_empty()
            {
                let (outcome, writes) = (outcome.clone(), writes.clone());
                self.ask_hooks_or_review(index, outcome, writes);
                continue;
            }
            if call.outcome().is_some() || call.has_undecided_report() {
                continue;
            }
            if let Some(rejection) = call.notes.rejection().cloned() {
                self.end_call(index, model_messages::rejected(WaitPhase::Before, &rejection));
                continue;
            }
            let is_intended =
                recorded.call(call.key()).is_some_and(|call| !call.intents.is_empty());
            if !is_intended || recorded.started.is_complete {
                continue;
            }
            // The call may have run: a cancellation has to say so, and an identical later call must
            // not run either.
            call.started_at = Some(Duration::ZERO);
            // The rule: an idempotent call runs again under the same idempotency key. Any other is unknown.
            if call.tool.as_ref().is_some_and(|tool| tool.idempotent) {
                self.start_or_request_permit(index);
            } else {
                self.end_call(index, model_messages::host_stopped());
            }
        }
        self.abort_unattached(&recorded.started);
    }

    /// Continues a call under the supervisor that has started it.
    fn attach(&mut self, index: usize, started: &StartedCall) {
        let now = self.clock.now();
        let deadline = self.tool_deadline(index, started.elapsed);
        let Some(call) = self.calls.get_mut(index) else { return };
        call.notes.conflict |= started.state.is_rerun;
        call.phase = CallPhase::Running { deadline, wait: None };
        call.total_people_wait = Duration::ZERO;
        call.started_at = Some(now);
        call.run_time_before_resume = started.elapsed;
        call.answered_at = None;
        call.snapshot_writers = started.state.snapshot.clone();
        if let Some(arguments) =
            started.state.arguments.as_ref().filter(|_| call.model_arguments.is_none())
        {
            call.set_final_arguments(Arc::clone(arguments));
        }
        call.early = started.state.is_early;
        self.clock.tool_started();
        if let Some(completion) = &started.completion {
            self.handle_tool_report(
                index,
                completion.outcome.clone(),
                completion.variables.clone(),
            );
        } else {
            self.resume_wait(index, started.wait.as_ref());
        }
    }

    /// Aborts the started calls that still run and that do not run in the resumed turn.
    fn abort_unattached(&mut self, started: &StartedCalls) {
        for (key, _) in started.calls.iter().filter(|(_, started)| started.completion.is_none()) {
            let call = self.position(*key).and_then(|index| self.calls.get(index));
            if !call.is_some_and(TurnCall::is_running) {
                self.effects.perform(TurnAction::Abort(*key));
            }
        }
    }
}

/// Returns the number of attempts of a turn whose answer was empty.
fn empty_answers(turn: &TurnTranscript<'_>) -> u32 {
    let failures = turn.attempts.iter().filter_map(|attempt| attempt.failure);
    let empty = failures.filter(|failure| failure.error.kind == ProviderErrorKind::EmptyAnswer);
    u32::try_from(empty.count()).unwrap_or(u32::MAX)
}

impl TurnCall {
    /// Returns true if the turn waits for the end of this started call: it runs, or its end was not
    /// recorded.
    fn needs(&self, started: &StartedCall) -> bool {
        let is_reported =
            self.has_undecided_report() && self.notes.conflict == started.state.is_rerun;
        self.outcome().is_none() && (started.completion.is_none() || !is_reported)
    }
}

impl<'t, 'a> RecordedTurn<'t, 'a> {
    /// Returns the number of the last attempt, or 0 if none was started.
    fn attempt_number(&self) -> u32 {
        self.attempt.start.map_or(0, |_| self.attempt.number)
    }

    fn call(&self, key: CallKey) -> Option<&'t CallTranscript<'a>> {
        self.attempt.calls.get(&key)
    }

    /// Returns the response up to the last call that started early.
    fn partial_response(&self) -> Option<&'a PartialResponse> {
        let intents = self.attempt.calls.values().flat_map(|call| &call.intents);
        let partial = intents.filter_map(|intent| Some((intent.at.index, intent.partial?)));
        partial.max_by_key(|(index, _)| *index).map(|(_, partial)| partial)
    }

    /// Returns the approvals that were requested, with the Unix times of the requests in milliseconds.
    fn approval_requests(&self) -> impl Iterator<Item = ((CallKey, WaitPhase), u64)> {
        self.attempt.calls.iter().flat_map(|(key, call)| {
            let requests = call.requests.iter();
            requests.map(|requested| ((*key, requested.request.phase), requested.at.time))
        })
    }

    /// Returns whether an approval, or the result of a client, was requested before the response had ended.
    fn is_early_request(&self, (key, phase): (CallKey, WaitPhase)) -> bool {
        let requests = self.call(key).into_iter().flat_map(|call| &call.requests);
        let mut requests = requests.filter(|requested| requested.request.phase == phase);
        let response = self.attempt.response.map(|response| response.at);
        requests.any(|requested| response.is_none_or(|response| requested.at.is_before(response)))
    }

    fn decisions(&self) -> impl Iterator<Item = ((CallKey, WaitPhase), VerdictWithMessage)> {
        self.attempt.calls.iter().flat_map(|(key, call)| {
            let decisions = call.decisions.iter();
            let decisions = decisions.filter(|decision| decision.phase != WaitPhase::Input);
            decisions.map(|decision| ((*key, decision.phase), decision.verdict_with_message()))
        })
    }
}

/// Returns the arguments with which a call was intended or submitted for approval, or those of a hook.
fn final_arguments<'a>(call: &CallTranscript<'a>) -> Option<&'a Arc<serde_json::Value>> {
    let intended = call.intents.last().map(|intent| &intent.call.arguments);
    let asked = || call.requests.last().map(|requested| &requested.request.arguments);
    let changed = || call.hook_decision(HookPoint::BeforeCall)?.arguments.as_ref();
    intended.or_else(asked).or_else(changed)
}

/// Returns whether the recorded text of a call's arguments is what was kept of arguments that were too large: nothing,
/// or a whole object. All other text that is recorded has another error, or is encoded twice and equals the recorded
/// arguments. The beginning of an object cannot be told from arguments that were cut off.
fn is_rest_of_oversize(raw: &str, arguments: &serde_json::Value) -> bool {
    match parse_arguments(raw) {
        ParsedArguments::Object { value, decoded_twice } => !decoded_twice || value != *arguments,
        ParsedArguments::CutOff | ParsedArguments::NotAnObject { .. } => false,
    }
}

/// Returns whether a pure call that has reported runs again, because the approval of its result, or the hooks
/// that decide about it, need the values of its references, which are in no record.
fn needs_rerun_for_references(call: &TurnCall, rules: &RunRules) -> bool {
    let is_reviewed = call.tool.as_ref().is_some_and(|tool| tool.approval.after);
    (is_reviewed || rules.has_hook(HookPoint::AfterCall, &call.call.name))
        && call.has_references(rules)
}

/// Returns the first recorded reason to end the turn.
fn cancel_reason(run: &RunTranscript<'_>) -> Option<CancelReason> {
    let stops = run.stops.iter().filter(|stop| stop.mode == StopMode::Now);
    let stops = stops.map(|stop| (stop.at.index, CancelReason::Stop));
    let limits = run.limits.iter().filter_map(|reached| match reached.limit {
        MAX_TOKENS_KEY | MAX_CALLS_KEY => Some((reached.at.index, CancelReason::Budget)),
        RUN_TIMEOUT_KEY => Some((reached.at.index, CancelReason::RunTimeout)),
        _ => None,
    });
    stops.chain(limits).min_by_key(|(index, _)| *index).map(|(_, reason)| reason)
}
