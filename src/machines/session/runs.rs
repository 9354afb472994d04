//! The runs of a session: admission, start, turns and end. [`Session::poll`] decides the next step.

use std::sync::Arc;
use std::time::Duration;

use super::idempotency_keys::RequestEffect;
use super::machine::{
    InputLimits, Lifecycle, PreTurnWait, RunAdmission, RunResult, Session, SessionEffect,
    SessionRefusal, TurnBegin, answer_write,
};
use super::open_run::{OpenTurn, RunSpec, RunStage, TurnOrigin};
use super::run_machine::{FollowUp, Instruction, RunAnswer, RunNext};
use crate::turn::{InitialCallsStart, LimitHit, RunRules, TurnSpec};
use callsheet_values::config::{OnShutdown, RunOverrides};
use callsheet_values::event::RunStats;
use callsheet_values::record::{Record, RequestKey};
use callsheet_values::types::{
    Author, Content, RequestKind, RunEnd, RunError, RunId, Usage, VariableName,
};

/// Returns the rules of a run with these overrides.
pub type RulesOf<'a> = &'a dyn Fn(&RunOverrides) -> Arc<RunRules>;

impl Session {
    /// Checks a request to start a run. With `may_queue` the run may wait for the current one.
    ///
    /// # Errors
    /// If the request is refused.
    pub fn admit_run(
        &self,
        input: &Content,
        request_key: Option<&RequestKey>,
        may_queue: bool,
    ) -> Result<RunAdmission, SessionRefusal> {
        self.check_open()?;
        if let Some(seen) = self.keys.find(request_key)? {
            return match &seen.effect {
                RequestEffect::Run(run_id) => {
                    let (run_id, seq) = (run_id.clone(), seen.seq);
                    Ok(if self.may_reopen(&run_id) {
                        RunAdmission::Reopen { run_id, seq }
                    } else {
                        RunAdmission::Known { run_id, seq }
                    })
                }
                RequestEffect::Removed(_) => Err(SessionRefusal::InputRemoved),
                RequestEffect::Steered => Err(SessionRefusal::KeyReused),
            };
        }
        self.check_not_suspended()?;
        let is_busy = self.run.is_some() || !self.queue.is_empty();
        if is_busy && !may_queue {
            return Err(SessionRefusal::RunInProgress);
        }
        if input.is_blank() {
            return Err(SessionRefusal::EmptyInput);
        }
        Ok(if is_busy { RunAdmission::Queue } else { RunAdmission::Start })
    }

    /// Starts or queues a run that [`admit_run`](Self::admit_run) has let in.
    ///
    /// # Errors
    /// If the host shuts down, the session would become too large, or too many inputs wait.
    pub fn handle_run_request(
        &mut self,
        run: RunSpec,
        request_key: Option<RequestKey>,
        limits: InputLimits,
        rules_of: RulesOf<'_>,
    ) -> Result<(), SessionRefusal> {
        limits.check(&run.input)?;
        if self.shutdown.is_some() {
            return Err(SessionRefusal::ShuttingDown);
        }
        if self.run.is_none() && self.queue.is_empty() {
            self.record_run_start(&run, request_key, rules_of);
            return Ok(());
        }
        self.check_room(limits.inputs_max)?;
        let RunSpec { run_id, input, overrides, trace, metadata, into, author } = run;
        let record = Record::InputQueued {
            run_id,
            input,
            overrides,
            request: request_key,
            trace,
            metadata,
            into,
            authored_by: author,
        };
        self.record(vec![record]);
        Ok(())
    }

    /// Returns whether this run was interrupted and can go on: it is the last one, nothing follows it, and no client
    /// has asked it to stop.
    fn may_reopen(&self, run: &RunId) -> bool {
        self.interrupted.as_ref().is_some_and(|interrupted| interrupted.id == *run)
            && self.queue.is_empty()
            && self.shutdown.is_none()
    }

    /// Reopens a run that [`admit_run`](Self::admit_run) has found interrupted. It goes on as after a crash between
    /// two turns: the results of its calls stay, also those of calls that the shutdown has cancelled, and an answer
    /// that was cut off is requested again.
    pub fn handle_reopen(&mut self, run_id: RunId, author: Option<Author>) {
        if self.may_reopen(&run_id) {
            self.record(vec![Record::RunReopened { run_id, authored_by: author }]);
        }
    }

    /// Returns the next effect. After each `handle_*` it is called until it returns `None`.
    pub fn poll(&mut self, now: Duration, rules_of: RulesOf<'_>) -> Option<SessionEffect> {
        if self.lifecycle == Lifecycle::Left {
            self.outbox.clear();
            return None;
        }
        if self.outbox.is_empty() && !self.suspended {
            self.advance(now, rules_of);
        }
        let wait = self.pre_turn_wait();
        self.pre_turn_times.advance(now, wait);
        self.outbox.pop_front()
    }

    fn advance(&mut self, now: Duration, rules_of: RulesOf<'_>) {
        let shutdown = self.shutdown;
        let Some(run) = self.run.as_deref_mut() else { return self.advance_idle(rules_of) };
        if run.is_held(shutdown) {
            return;
        }
        match &mut run.stage {
            RunStage::Ready(kind) => {
                let (kind, rules) = (*kind, rules_of(&run.overrides));
                let is_cancelled = run.cancel.is_some();
                // The time of a replayed run ends by its record.
                let timed_out = run.run_timeout_reached(now).filter(|_| !self.context.is_replayed);
                // A summary may have used up the tokens.
                if let Some(hit) = timed_out.or_else(|| run.max_tokens_reached()) {
                    return self.record_limit(hit);
                }
                if self.needs_tools(&rules) {
                    return self.request_tools();
                }
                // No tools have to be read, or the run is cancelled and does not wait for them.
                self.waits_for_tools = false;
                if is_cancelled {
                    self.forget_summary();
                } else if self.stops_before_turn() {
                    self.forget_summary();
                    if let Some(run) = &mut self.run {
                        run.machine.withdraw_turn(kind);
                    }
                    let answer =
                        RunAnswer { text: self.history.last_text(), ..RunAnswer::default() };
                    return self.record_run_end(now, Vec::new(), RunEnd::Stopped, answer, None);
                } else if self.shrink_before_turn(&rules) {
                    return;
                }
                match self.initial_calls(&rules) {
                    Some(calls) => {
                        self.record(initial_calls_records(calls).collect());
                    }
                    None => self.begin_turn(now, kind, rules),
                }
            }
            RunStage::Turn(turn) => {
                if let Some(origin) = turn.hand_out.take() {
                    let (kind, rules) = (turn.request_kind, rules_of(&run.overrides));
                    self.hand_out_turn(now, kind, origin, rules);
                } else if turn.overflow.is_some() {
                    let rules = rules_of(&run.overrides);
                    self.shrink_overflow(&rules);
                }
            }
            RunStage::FollowUp(FollowUp { limits, next }) => {
                let (limits, next) = (limits.clone(), next.clone());
                let limits: Vec<_> = limits.into_iter().map(limit_record).collect();
                match next {
                    // Once the last limit is recorded, the stage becomes `Ready`.
                    RunNext::Turn(_) => self.record(limits),
                    RunNext::Instruct(Instruction { request_kind, text }) => {
                        let record = Record::Instructed { request: request_kind, text };
                        let mut batch = limits;
                        batch.push(record);
                        self.record(batch);
                    }
                    RunNext::End { end, answer, error } => {
                        self.record_run_end(now, limits, end, answer, error);
                    }
                }
            }
        }
    }

    /// Makes the context smaller if the last run is to be formatted or a summary was requested. Then starts
    /// the next queued run, or at a shutdown records it as interrupted or leaves it to the next host; or closes the
    /// session if that was requested and no run waits.
    fn advance_idle(&mut self, rules_of: RulesOf<'_>) {
        if self.lifecycle != Lifecycle::Open || self.shutdown.is_some() {
            self.forget_summary();
        } else if self.shrink_idle(rules_of) {
            return;
        }
        match self.queue.front().cloned() {
            Some(queued) => match self.shutdown {
                None => self.record_run_start(&queued, None, rules_of),
                Some(OnShutdown::Interrupt) => self.record_interrupted_run(&queued, rules_of),
                Some(OnShutdown::Suspend | OnShutdown::HandOver) => {}
            },
            None if self.lifecycle == Lifecycle::Closing => {
                self.record(vec![Record::SessionClosed]);
                self.outbox.push_back(SessionEffect::Close);
            }
            None => {}
        }
    }

    /// Records the start of a run, with the turn of the session's initial calls if they are open.
    fn record_run_start(
        &mut self,
        run: &RunSpec,
        request_key: Option<RequestKey>,
        rules_of: RulesOf<'_>,
    ) {
        let rules = rules_of(&self.with_client_tools(&run.overrides));
        let mut batch = vec![self.run_start_record(run, request_key, &rules)];
        let calls = self.initial_calls(&rules).filter(|_| !self.needs_tools(&rules));
        if let Some(calls) = calls {
            batch.extend(initial_calls_records(calls));
        }
        self.record(batch);
    }

    fn run_start_record(
        &self,
        run: &RunSpec,
        request_key: Option<RequestKey>,
        rules: &RunRules,
    ) -> Record {
        let RunSpec { run_id, input, overrides, trace, metadata, into, author } = run.clone();
        let metadata = metadata.over(&self.metadata);
        let model = rules.models.first().displayed_name.to_string();
        let execution = rules.execution;
        Record::RunStarted {
            run_id,
            input,
            overrides,
            model,
            execution,
            request: request_key,
            trace,
            metadata,
            into,
            authored_by: author,
        }
    }

    /// Records a queued run as started and interrupted, so that its input stands in the history.
    fn record_interrupted_run(&mut self, queued: &RunSpec, rules_of: RulesOf<'_>) {
        let ended = Record::RunEnded {
            run_id: queued.run_id.clone(),
            end: RunEnd::Interrupted,
            text: String::new(),
            error: None,
            output: None,
            into: None,
            finish_reason: None,
            stats: (&RunStats::default()).into(),
            waiting: self.queue.len().saturating_sub(1) as u64,
        };
        let started = self.run_start_record(
            queued,
            None,
            &rules_of(&self.with_client_tools(&queued.overrides)),
        );
        self.record(vec![started, ended]);
        let (run_id, reason) = (queued.run_id.clone(), SessionRefusal::ShuttingDown);
        self.outbox.push_back(SessionEffect::RunRefused { run_id, reason });
    }

    /// Returns the deadline, on the session's clock, of a run that waits for a summary or for the tools that servers
    /// offer before its next turn begins. [`poll`](Self::poll) ends the run at that time. A turn in progress counts
    /// its time itself.
    #[must_use]
    pub fn deadline_before_turn(&self) -> Option<Duration> {
        let waits = |run: &&super::OpenRun| {
            run.cancel.is_none()
                && matches!(run.stage, RunStage::Ready(_))
                && !self.suspended
                && !run.is_held(self.shutdown)
        };
        self.run.as_deref().filter(waits)?.deadline()
    }

    /// Returns true if the next turn cannot begin before the tools that servers offer are read. A run that
    /// is cancelled does not wait for them.
    fn needs_tools(&self, rules: &RunRules) -> bool {
        let is_cancelled = self.run.as_ref().is_some_and(|run| run.cancel.is_some());
        rules.has_servers && self.frozen_tools.is_none() && !is_cancelled
    }

    /// Returns what the run waits for before its next turn. A turn in progress counts its time itself.
    fn pre_turn_wait(&self) -> Option<PreTurnWait> {
        let run = self.run.as_deref()?;
        let tools = self.waits_for_tools.then_some(PreTurnWait::Tools);
        let wait = if self.waits_for_summary() { Some(PreTurnWait::Summary) } else { tools };
        wait.filter(|_| matches!(run.stage, RunStage::Ready(_)))
    }

    /// Returns true if the run was to stop after its turn, and the next turn only waits for a summary. The
    /// first counted turn is never withdrawn (`turns` includes the next one, if it counts).
    fn stops_before_turn(&self) -> bool {
        let stops = |run: &super::OpenRun| {
            let is_uncounted = match run.stage {
                RunStage::Ready(RequestKind::Ordinary | RequestKind::ForcedCall)
                | RunStage::Turn(_)
                | RunStage::FollowUp(_) => false,
                RunStage::Ready(
                    RequestKind::FinalAnswer | RequestKind::FinalText | RequestKind::Output(_),
                ) => true,
            };
            run.stops_after_turn && (is_uncounted || run.machine.turns() > 1)
        };
        self.waits_for_summary() && self.run.as_deref().is_some_and(stops)
    }

    fn request_tools(&mut self) {
        if !std::mem::replace(&mut self.waits_for_tools, true) {
            self.outbox.push_back(SessionEffect::ReadTools);
        }
    }

    /// Returns the turn of the calls that the session was opened with, while they are open.
    fn initial_calls(&self, rules: &RunRules) -> Option<InitialCallsStart> {
        let calls = self.history.initial_calls()?;
        Some(InitialCallsStart::new(self.turn + 1, calls, rules))
    }

    fn begin_turn(&mut self, now: Duration, kind: RequestKind, rules: Arc<RunRules>) {
        self.turn += 1;
        if let Some(run) = &mut self.run {
            run.stage = RunStage::Turn(OpenTurn::new(kind, None));
        }
        self.hand_out_turn(now, kind, TurnOrigin::New, rules);
    }

    fn hand_out_turn(
        &mut self,
        now: Duration,
        kind: RequestKind,
        origin: TurnOrigin,
        rules: Arc<RunRules>,
    ) {
        let Some(spec) = self.turn_spec(now, kind, rules) else { return };
        let Some(run) = &self.run else { return };
        let begin = TurnBegin { run_id: run.id.clone(), spec, origin, cancel: run.cancel };
        self.outbox.push_back(SessionEffect::BeginTurn(Box::new(begin)));
    }

    /// Returns the input of the machine of the current turn.
    #[must_use]
    pub fn current_turn_spec(&self, now: Duration, rules_of: RulesOf<'_>) -> Option<TurnSpec> {
        let run = self.run.as_deref()?;
        let kind = run.turn()?.request_kind;
        self.turn_spec(now, kind, rules_of(&run.overrides))
    }

    fn turn_spec(
        &self,
        now: Duration,
        kind: RequestKind,
        rules: Arc<RunRules>,
    ) -> Option<TurnSpec> {
        let run = self.run.as_deref()?;
        Some(TurnSpec {
            number: self.turn,
            turns_with_calls: self.history.turns_with_calls(),
            used_call_ids: self.history.used_call_ids(),
            request_kind: kind,
            budget: run.machine.budget(),
            run_elapsed: run.elapsed(now),
            run_time_left: run.time_left(now),
            // The records of a replayed turn hold the changes that its window led to.
            window: self.window(&rules).filter(|_| !self.context.is_replayed),
            excludable: self.excludable(),
            // The shell sets `new_prompt` and `seed`.
            new_prompt: None,
            variables: self.variables.clone(),
            seed: 0,
            run: run.id.clone(),
            rules,
        })
    }

    /// Records a limit that ends the run before its next turn. The record cancels that turn.
    fn record_limit(&mut self, hit: LimitHit) {
        self.record(vec![limit_record(hit)]);
    }

    /// Records the end of the current run behind the records of `batch`.
    pub(super) fn record_run_end(
        &mut self,
        now: Duration,
        mut batch: Vec<Record>,
        end: RunEnd,
        answer: RunAnswer,
        error: Option<RunError>,
    ) {
        self.pre_turn_times.advance(now, None);
        let Some(run) = self.run.as_deref() else { return };
        let (into, hit) = self.answer_variable(run, end, &answer);
        batch.extend(hit.map(limit_record));
        let mut stats = run.stats;
        stats.turns = run.machine.turns();
        stats.duration = run.elapsed(now);
        // The time that a lost turn waited for people is in no committed turn.
        let lost = run.people.saturating_sub(stats.people);
        stats.people += lost;
        let between = stats.duration.saturating_sub(run.turns_duration + lost);
        let summary = self.pre_turn_times.summary.min(between);
        let tools = self.pre_turn_times.tools.min(between - summary);
        stats.model += summary;
        stats.waits += tools;
        stats.overhead += between - summary - tools;
        let RunAnswer { text, output, finish_reason } = answer;
        let summary = RunResult {
            run_id: run.id.clone(),
            end,
            text: text.clone(),
            output: output.clone(),
            error: error.clone(),
            finish_reason: finish_reason.clone(),
            stats,
            began: run.began,
            first_message: run.first_message,
            is_compacted: run.is_compacted,
        };
        let record = Record::RunEnded {
            run_id: run.id.clone(),
            end,
            text,
            error,
            output,
            into,
            finish_reason,
            stats: (&stats).into(),
            waiting: self.queue.len() as u64,
        };
        batch.push(record);
        self.record(batch);
        self.outbox.push_back(SessionEffect::RunEnded(Box::new(summary)));
    }

    /// Returns the variable that gets the answer of a run, or the limit that prevents it.
    fn answer_variable(
        &self,
        run: &super::OpenRun,
        end: RunEnd,
        answer: &RunAnswer,
    ) -> (Option<VariableName>, Option<LimitHit>) {
        let Some(name) = run.into.as_ref().filter(|_| end == RunEnd::Answered) else {
            return (None, None);
        };
        let writes = answer_write(name, &answer.text, answer.output.as_ref());
        let maximum = run.rules.limits.max_variables_bytes;
        let bytes = self.variables.bytes_with(&writes);
        if bytes <= maximum {
            return (Some(Arc::clone(name)), None);
        }
        let (value, maximum) = (bytes as u64, maximum as u64);
        let limit = "max_variables_bytes";
        (None, Some(LimitHit { limit, value, maximum, action: "answer_not_stored", note: None }))
    }
}

/// Returns the records with which the turn of the session's initial calls begins.
fn initial_calls_records(calls: InitialCallsStart) -> impl Iterator<Item = Record> {
    let InitialCallsStart { response, limit } = calls;
    [response].into_iter().chain(limit.map(limit_record))
}

fn limit_record(hit: LimitHit) -> Record {
    let LimitHit { limit, value, maximum, action, note } = hit;
    Record::LimitReached {
        limit: limit.to_owned(),
        value,
        maximum,
        action: action.to_owned(),
        reason: None,
        note,
        usage: Usage::default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::session::{RecordedAt, SummaryReply};
    use crate::turn::fixtures::{model, rules};
    use crate::turn::{ModelPlan, ModelPlans};
    use callsheet_values::config::ContextPolicy;
    use callsheet_values::record::Seq;
    use callsheet_values::types::{Execution, Metadata};

    /// Performs the effects of a session at this time. Returns the sums of a run that has ended.
    fn perform(session: &mut Session, rules: &Arc<RunRules>, now: Duration) -> Option<RunStats> {
        let mut stats = None;
        while let Some(effect) = session.poll(now, &|_| Arc::clone(rules)) {
            match effect {
                SessionEffect::Record(batch) => batch.iter().for_each(|made| {
                    let at = RecordedAt { seq: Seq(1), time: 0, now };
                    session.apply(at, made, &|_| (&**rules).into()).unwrap();
                }),
                SessionEffect::RunEnded(summary) => stats = Some(summary.stats),
                SessionEffect::ReadTools
                | SessionEffect::BeginTurn(_)
                | SessionEffect::RequestSummary(_)
                | SessionEffect::ContextReduced { .. }
                | SessionEffect::CancelTurn(_)
                | SessionEffect::RunRefused { .. }
                | SessionEffect::Close => {}
            }
        }
        stats
    }

    #[test]
    fn the_time_before_a_turn_is_counted_by_what_the_run_waits_for() {
        let seconds = Duration::from_secs;
        let narrow = ModelPlan { context_window: Some(100_000), ..model("m", 3) };
        let rules = Arc::new(RunRules {
            has_servers: true,
            context: ContextPolicy { keep_turns: 0, ..ContextPolicy::default() },
            models: Arc::new(ModelPlans::new(narrow, Vec::new())),
            ..rules(Execution::Sequential)
        });
        let rules_of = |_: &RunOverrides| Arc::clone(&rules);
        let messages = vec![
            json!({"role": "user", "content": "go"}),
            json!({"role": "assistant", "content": "word ".repeat(90_000)}),
        ];
        let mut session = Session::open("a", messages, Metadata::default(), None, None);
        perform(&mut session, &rules, Duration::ZERO);
        let run = RunSpec {
            run_id: callsheet_values::types::RunId("r".into()),
            input: "more".into(),
            overrides: Arc::default(),
            trace: None,
            metadata: Metadata::default(),
            into: None,
            author: None,
        };
        session.handle_run_request(run, None, InputLimits::inputs(1), &rules_of).unwrap();
        perform(&mut session, &rules, Duration::ZERO);
        assert!(session.handle_tools_read("list".into()));
        perform(&mut session, &rules, seconds(3));
        assert!(session.waits_for_summary());
        let failed = SummaryReply::Failed {
            usage: Usage::default(),
            reason: callsheet_values::types::SummaryFailure::Failed,
        };
        session.handle_summary(failed, &rules_of);
        perform(&mut session, &rules, seconds(7));
        assert!(session.run().unwrap().turn().is_some());
        let (code, message) = ("internal_error".to_owned(), "no".to_owned());
        session.handle_run_failed(seconds(8), None, RunError { code, message, transient: true });
        let stats = perform(&mut session, &rules, seconds(8)).unwrap();
        let RunStats { duration, model, waits, overhead, .. } = stats;
        let expected = (seconds(8), seconds(4), seconds(3), seconds(1));
        assert_eq!((duration, model, waits, overhead), expected);
    }
}
