//! The simulated environment of a turn, and the actions that are possible in it.

use super::agents;
use super::approvals::ApprovalId;
use super::hooks;
use super::questions::SupervisedQuestions;
use super::references;
use super::variables::{CallStartSnapshot, run_tool};
use super::*;
use crate::context::has_references;
use crate::turn::ApprovalError;
use callsheet_values::types::{ApprovalVerdict, HookDecision, HookPoint, HookVerdict, ToolCall};

/// The time that passes by the action `PassTime`.
const PASSED_TIME: Duration = Duration::from_secs(7);

/// A turn in its simulated environment: model, tools, journal, host and clients.
#[derive(Clone, Hash, PartialEq, Eq)]
pub(super) struct World {
    pub(super) turn: Turn,
    /// The number of deltas of the open exchange that were delivered. `None` if no exchange is open.
    pub(super) delivered_deltas: Option<usize>,
    /// The index of the model that each recorded attempt requested.
    pub(super) requested_models: Vec<usize>,
    pub(super) running: BTreeSet<CallKey>,
    /// The calls that wait for a permit of their tool.
    pub(super) awaiting_permit: BTreeSet<CallKey>,
    /// The calls that hold a permit of their tool and were not started.
    pub(super) holding_permit: BTreeSet<CallKey>,
    /// The calls that wait for the values of their references.
    pub(super) awaiting_references: BTreeSet<CallKey>,
    /// The calls, or the turn itself (`None`), that wait for the decision of hooks at this point.
    pub(super) awaiting_hooks: BTreeMap<Option<CallKey>, HookPoint>,
    pub(super) ever_started: BTreeSet<CallKey>,
    /// The last answers to the calls since the last crash, of their tools or of the client.
    pub(super) tool_outcomes: BTreeMap<CallKey, ToolOutcome>,
    /// The calls of agents that were aborted and whose children have not ended.
    pub(super) stopping: BTreeSet<CallKey>,
    /// The started calls with effects, with their names and arguments.
    pub(super) started_effects: Vec<(CallKey, String)>,
    pub(super) log: Vec<Record>,
    /// The Unix times of the records in milliseconds.
    pub(super) record_times: Vec<u64>,
    /// The Unix time of the turn's start, or of its last resume, in milliseconds.
    pub(super) start_ms: u64,
    /// The number of records from before the last resume.
    pub(super) records_before_resume: u64,
    /// The number of durable records.
    pub(super) durable: u64,
    pub(super) released: Vec<CallKey>,
    /// The published outcomes.
    pub(super) outcomes: BTreeMap<CallKey, ToolOutcome>,
    pub(super) committed: bool,
    pub(super) breaks: u32,
    /// The number of requests that were too large.
    pub(super) overflows: u32,
    /// The turn waits for a smaller context.
    pub(super) awaiting_context: bool,
    /// The number of times that the turn asked for a smaller context since its last resume.
    pub(super) reductions: u32,
    pub(super) crashes: u32,
    pub(super) owner_deaths: u32,
    /// The calls that the tool supervisor has started, with their completions once they have ended. Empty in a
    /// scenario without deaths of the owner.
    pub(super) started_calls: BTreeMap<CallKey, StartedCall>,
    pub(super) cancelled: bool,
    /// True if the turn was cancelled before it had ended, since its last resume.
    pub(super) cancelled_before_end: bool,
    pub(super) now: Duration,
    /// The time during which the turn waited only for people since its last resume.
    pub(super) approval_wait: Duration,
    /// True if the action `PassTime` was used.
    pub(super) has_passed_time: bool,
    /// The snapshots of the started calls.
    pub(super) snapshots: BTreeMap<CallKey, CallStartSnapshot>,
    /// The calls that have to run again because of a conflict.
    pub(super) reruns: BTreeSet<CallKey>,
    /// The pending approvals and questions. Clients see them when their requests are durable.
    pub(super) pending_approvals: BTreeSet<ApprovalId>,
    /// The questions of the running calls, as the tool supervisor knows them.
    pub(super) questions: BTreeMap<CallKey, SupervisedQuestions>,
    /// The running calls of agents whose children wait only for people, as the tool supervisor knows them.
    pub(super) waiting_children: BTreeSet<CallKey>,
    /// The calls that the client was told to run, and has not answered.
    pub(super) handed: BTreeSet<CallKey>,
}

/// An action of the environment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Deliver,
    Close,
    Break,
    /// The request is refused because it is larger than the window of the model, or for content that may be left out.
    Overflow,
    /// The session has changed the context, or could not.
    ReduceContext(bool),
    PermitReply(CallKey, PermitReply),
    /// The values of a call's references were read, or could not be.
    ReadReferences(CallKey, bool),
    /// Hooks decide about a call.
    DecideHooks(Option<CallKey>, HookVerdict),
    EndCall(CallKey, ToolStatus),
    /// All records become durable.
    MakeDurable,
    Timeout,
    Cancel,
    Decide(ApprovalId, ApprovalVerdict),
    /// Time passes while an approval or a question is pending, or a child waits for people.
    PassTime,
    /// The host crashes. This number of records is left. The next host starts after all approvals have
    /// expired, or at once.
    Crash {
        kept: usize,
        approvals_expire: bool,
    },
    /// The owner of the turn (the accumulator) dies, its tool supervisor lives on, and this happens before
    /// another owner resumes the turn.
    OwnerDeath(MissedEvent),
    /// A running call asks a question.
    Ask(CallKey),
    /// A running call withdraws its question.
    WithdrawQuestion(CallKey),
    /// The child of a running call begins to wait only for people, or goes on.
    ChildWaits(CallKey, bool),
    /// The client sends the result of a call.
    AnswerCall(CallKey, ToolStatus),
}

/// An event of a running call while the turn has no owner. The next owner reads it from the state of the tool
/// supervisor.
#[derive(Clone, Copy, Debug)]
pub(super) enum MissedEvent {
    Nothing,
    End(CallKey),
    Question(CallKey),
    Withdrawal(CallKey),
    ChildWaits(CallKey, bool),
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut world = Self {
            turn: Turn::new(scenario.spec.clone()),
            delivered_deltas: None,
            requested_models: Vec::new(),
            running: BTreeSet::new(),
            awaiting_permit: BTreeSet::new(),
            holding_permit: BTreeSet::new(),
            awaiting_references: BTreeSet::new(),
            awaiting_hooks: BTreeMap::new(),
            ever_started: BTreeSet::new(),
            tool_outcomes: BTreeMap::new(),
            stopping: BTreeSet::new(),
            started_effects: Vec::new(),
            log: Vec::new(),
            record_times: Vec::new(),
            start_ms: 0,
            records_before_resume: 0,
            durable: 0,
            released: Vec::new(),
            outcomes: BTreeMap::new(),
            committed: false,
            breaks: 0,
            overflows: 0,
            awaiting_context: false,
            reductions: 0,
            crashes: 0,
            owner_deaths: 0,
            started_calls: BTreeMap::new(),
            cancelled: false,
            cancelled_before_end: false,
            now: Duration::ZERO,
            approval_wait: Duration::ZERO,
            has_passed_time: false,
            snapshots: BTreeMap::new(),
            reruns: BTreeSet::new(),
            pending_approvals: BTreeSet::new(),
            questions: BTreeMap::new(),
            waiting_children: BTreeSet::new(),
            handed: BTreeSet::new(),
        };
        world.perform_effects(scenario);
        world
    }

    pub(super) fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.committed {
            return actions;
        }
        if let Some(delivered) = self.delivered_deltas {
            actions.push(if delivered < scenario.response.len() {
                Action::Deliver
            } else {
                Action::Close
            });
            if self.breaks < scenario.breaks {
                actions.push(Action::Break);
            }
            if self.overflows < scenario.overflows {
                actions.push(Action::Overflow);
            }
        }
        if self.awaiting_context {
            actions.extend([Action::ReduceContext(true), Action::ReduceContext(false)]);
        }
        for key in &self.running {
            actions.push(Action::EndCall(*key, ToolStatus::Ok));
            if scenario.failures {
                actions.push(Action::EndCall(*key, ToolStatus::Failed));
            }
        }
        for key in &self.handed {
            actions.push(Action::AnswerCall(*key, ToolStatus::Ok));
            if scenario.failures {
                actions.push(Action::AnswerCall(*key, ToolStatus::Failed));
            }
        }
        actions.extend(self.may_ask(scenario).map(Action::Ask));
        actions.extend(self.asking().map(Action::WithdrawQuestion));
        let children = self.may_change_child(scenario);
        actions.extend(children.map(|(key, waits)| Action::ChildWaits(key, waits)));
        for key in &self.awaiting_permit {
            if self.is_permit_free(*key) {
                actions.push(Action::PermitReply(*key, PermitReply::Granted));
            } else {
                actions.push(Action::PermitReply(*key, PermitReply::Waiting));
            }
        }
        for key in &self.awaiting_references {
            actions.push(Action::ReadReferences(*key, true));
            if scenario.failures {
                actions.push(Action::ReadReferences(*key, false));
            }
        }
        for key in self.awaiting_hooks.keys() {
            let verdicts = hooks::VERDICTS.into_iter();
            let verdicts = verdicts.filter(|v| key.is_some() || *v != HookVerdict::Ask);
            actions.extend(verdicts.map(|verdict| Action::DecideHooks(*key, verdict)));
        }
        if self.durable < self.log.len() as u64 {
            actions.push(Action::MakeDurable);
        }
        if scenario.timeouts && self.turn.poll_timeout().is_some() {
            actions.push(Action::Timeout);
        }
        for approval in
            self.pending_approvals.iter().filter(|approval| self.is_request_durable(**approval))
        {
            actions.push(Action::Decide(*approval, ApprovalVerdict::Approved));
            actions.push(Action::Decide(*approval, ApprovalVerdict::Rejected));
        }
        if scenario.spec.run_time_left.is_some()
            && !self.has_passed_time
            && !(self.pending_approvals.is_empty() && self.waiting_children.is_empty())
        {
            actions.push(Action::PassTime);
        }
        if scenario.cancel && !self.cancelled {
            actions.push(Action::Cancel);
        }
        if self.owner_deaths < scenario.owner_deaths {
            let ended = self.running.iter().copied().map(MissedEvent::End);
            let asked = self.may_ask(scenario).map(MissedEvent::Question);
            let withdrawn = self.asking().map(MissedEvent::Withdrawal);
            let children = self.may_change_child(scenario);
            let children = children.map(|(key, waits)| MissedEvent::ChildWaits(key, waits));
            let missed = std::iter::once(MissedEvent::Nothing).chain(ended);
            let missed = missed.chain(asked).chain(withdrawn).chain(children);
            actions.extend(missed.map(Action::OwnerDeath));
        }
        if self.crashes < scenario.crashes {
            // A crash keeps all or none of the records that are not durable; with `torn`, also only the first ones.
            let (durable, written) = (self.durable as usize, self.log.len());
            let from = if scenario.torn { durable + 1 } else { written.max(durable + 1) };
            for kept in std::iter::once(durable).chain(from..=written) {
                actions.push(Action::Crash { kept, approvals_expire: false });
                if self.has_approval_request(kept) {
                    actions.push(Action::Crash { kept, approvals_expire: true });
                }
            }
        }
        actions
    }

    pub(super) fn act(&mut self, action: Action, scenario: &Scenario) {
        let now = self.now;
        match action {
            Action::Deliver => {
                let delivered = self.delivered_deltas.as_mut().unwrap();
                let delta = scenario.response[*delivered].clone();
                *delivered += 1;
                self.turn.handle_deltas(now, vec![delta]);
            }
            Action::Close => {
                self.delivered_deltas = None;
                self.turn.handle_response_end(now, ExchangeEnd::Closed);
            }
            Action::Break => {
                self.delivered_deltas = None;
                self.breaks += 1;
                let error = ProviderError::new(ProviderErrorKind::Transport, "cut");
                self.turn.handle_response_end(now, ExchangeEnd::Failed(error));
            }
            Action::Overflow => {
                self.delivered_deltas = None;
                self.overflows += 1;
                let mut error = ProviderError::new(ProviderErrorKind::Status, "too long");
                match scenario.spec.excludable.any() {
                    true => error.content = Some(ContentRefusal::Image),
                    false => error.overflow = Some(ContextOverflow::default()),
                }
                self.turn.handle_response_end(now, ExchangeEnd::Failed(error));
            }
            Action::ReduceContext(reduced) => {
                self.awaiting_context = false;
                self.turn.handle_context_reduced(now, reduced);
            }
            Action::EndCall(key, status) => {
                self.running.remove(&key);
                self.stopping.remove(&key);
                self.questions.remove(&key);
                self.waiting_children.remove(&key);
                let call = self.turn.calls.iter().find(|call| call.key() == key).unwrap();
                let (content, used) = run_tool(&call.call, self.snapshots[&key].snapshot());
                let mut outcome = if status == ToolStatus::Ok {
                    ToolOutcome::ok(content)
                } else {
                    ToolOutcome::not_ok(status, FailureKind::ToolError, "no")
                };
                outcome.child = agents::child(call);
                self.tool_outcomes.insert(key, outcome.clone());
                let completion = ToolCompletion { outcome, variables: used };
                if let Some(started) = self.started_calls.get_mut(&key) {
                    started.completion = Some(completion.clone());
                }
                self.turn.handle_outcome(now, key, completion);
            }
            Action::PermitReply(key, reply) => {
                if reply == PermitReply::Granted {
                    self.awaiting_permit.remove(&key);
                    self.holding_permit.insert(key);
                }
                self.turn.handle_tool_permit(now, key, reply);
            }
            Action::ReadReferences(key, is_read) => {
                self.awaiting_references.remove(&key);
                self.turn.handle_references(now, key, references::values(is_read));
            }
            Action::DecideHooks(key, verdict) => self.decide_hooks(key, verdict),
            Action::MakeDurable => self.make_durable(),
            Action::Timeout => {
                self.advance_to(self.now.max(self.turn.poll_timeout().unwrap()));
                self.turn.handle_timeout(self.now);
            }
            Action::Cancel => {
                self.cancelled = true;
                self.cancelled_before_end = self.turn.stage != TurnStage::Finished;
                self.turn.handle_cancel(now, CancelReason::Stop);
            }
            Action::Decide(approval, verdict) => self.decide(approval, verdict),
            Action::PassTime => {
                self.has_passed_time = true;
                self.advance_to(self.now + PASSED_TIME);
                // No record is new. The call only gives the turn the time.
                self.turn.handle_recorded(self.now, self.durable - self.records_before_resume);
            }
            Action::Crash { kept, approvals_expire } => {
                self.crash(kept, approvals_expire, scenario);
                if self.committed {
                    return;
                }
            }
            Action::Ask(key) => self.ask(key),
            Action::WithdrawQuestion(key) => self.withdraw_question(key),
            Action::ChildWaits(key, waits) => {
                self.supervise_child(key, waits);
                self.turn.handle_child_waits(now, key, waits);
            }
            Action::AnswerCall(key, status) => self.answer_call(key, status),
            Action::OwnerDeath(missed) => {
                self.replace_owner(missed, scenario);
                if self.committed {
                    return;
                }
            }
        }
        self.perform_effects(scenario);
        self.check_nothing_pending();
        self.check_pending_approvals(scenario);
        self.check_late_inputs();
    }

    /// Returns the Unix time in milliseconds.
    pub(super) fn unix_ms(&self) -> u64 {
        self.start_ms + u64::try_from(self.now.as_millis()).unwrap()
    }

    /// Checks that the turn has nothing left to decide, and that its counts are right.
    pub(super) fn check_nothing_pending(&mut self) {
        let before = (self.turn.effects.records(), self.turn.effects.deferred().len());
        self.turn.advance();
        assert_eq!(self.turn.poll(), None, "the turn still had an effect");
        assert_eq!(
            (self.turn.effects.records(), self.turn.effects.deferred().len()),
            before,
            "the turn still had a record"
        );
        assert_eq!(
            self.turn.clock.running() + self.open_questions() + self.waiting_children.len(),
            self.running.len(),
            "the running calls are miscounted"
        );
        assert_eq!(
            self.turn.clock.waiting(),
            self.awaiting_permit.len() + self.awaiting_hooks.len(),
            "the calls that wait for a permit or for hooks are miscounted"
        );
    }

    /// Checks that inputs which come too late change nothing, and that late outcomes are published as late.
    pub(super) fn check_late_inputs(&mut self) {
        let is_awaiting_response = self.turn.stage == TurnStage::AwaitingResponse;
        let before =
            (self.turn.effects.records(), self.turn.effects.deferred().len(), is_awaiting_response);
        if !is_awaiting_response {
            self.turn.handle_deltas(self.now, vec![text("late"), call(9, "pure", "{}")]);
            self.turn.handle_response_end(self.now, ExchangeEnd::Closed);
            assert_eq!(self.turn.poll(), None, "a response that had ended went on");
        }
        for key in self.ever_started.difference(&self.running) {
            let outcome = ToolOutcome::ok("late");
            self.turn.handle_outcome(
                self.now,
                *key,
                ToolCompletion { outcome, variables: VariablesUse::default() },
            );
            let is_published =
                matches!(self.turn.poll(), Some(Effect::Emit(Event::OutcomeLate { .. })));
            assert!(is_published, "a late outcome was not published");
            assert_eq!(self.turn.poll(), None, "a late outcome had an effect");
        }
        let keys: Vec<_> = self.turn.calls.iter().map(TurnCall::key).collect();
        let closed: Vec<_> = keys.iter().filter(|key| !self.is_child_open(**key)).collect();
        for key in closed {
            for waits in [true, false] {
                self.turn.handle_child_waits(self.now, *key, waits);
                assert_eq!(self.turn.poll(), None, "a child that has ended had an effect");
            }
        }
        for key in keys.iter().filter(|key| !self.awaiting_permit.contains(key)) {
            self.turn.handle_tool_permit(self.now, *key, PermitReply::Granted);
            assert_eq!(self.turn.poll(), None, "a permit that no call waits for had an effect");
        }
        let unawaited: Vec<_> = keys.iter().filter(|key| !self.is_awaited(**key)).collect();
        for key in unawaited {
            let late = self.turn.handle_client_result(self.now, *key, ToolOutcome::ok("late"));
            assert_eq!(late, Err(ApprovalError::NoSuchApproval));
            assert_eq!(self.turn.poll(), None, "a result that was not awaited had an effect");
        }
        if !self.awaiting_context {
            self.turn.handle_context_reduced(self.now, true);
            assert_eq!(self.turn.poll(), None, "a context that no request waits for had an effect");
        }
        for key in keys.iter().filter(|key| !self.awaiting_references.contains(key)) {
            self.turn.handle_references(self.now, *key, references::values(true));
            assert_eq!(self.turn.poll(), None, "values that no call waits for had an effect");
        }
        let about = keys.iter().copied().map(Some).chain([None]);
        for key in about.filter(|key| !self.awaiting_hooks.contains_key(key)) {
            for (_, on) in HookPoint::WORDS {
                let decision = HookDecision::default();
                self.turn.handle_hook_decision(self.now, key, on, decision);
                assert_eq!(
                    self.turn.poll(),
                    None,
                    "a decision that no call waits for had an effect"
                );
            }
        }
        let is_awaiting_response = self.turn.stage == TurnStage::AwaitingResponse;
        let after =
            (self.turn.effects.records(), self.turn.effects.deferred().len(), is_awaiting_response);
        assert_eq!(before, after, "a late input changed the turn");
    }

    /// Returns whether a limit of the run was recorded since the last attempt started.
    pub(super) fn is_run_limit_recorded(&self) -> bool {
        let last_attempt =
            self.log.iter().rev().take_while(|r| !matches!(r, Record::AttemptStarted { .. }));
        let limits = last_attempt.filter(|record| {
            matches!(record, Record::LimitReached { limit, .. } if limit.ends_with("_per_run"))
        });
        let count = limits.count();
        assert!(count <= 1, "a limit was recorded twice");
        count == 1
    }

    pub(super) fn make_durable(&mut self) {
        self.durable = self.log.len() as u64;
        self.turn.handle_recorded(self.now, self.durable - self.records_before_resume);
    }

    pub(super) fn perform_effects(&mut self, scenario: &Scenario) {
        loop {
            while let Some(effect) = self.turn.poll() {
                assert!(
                    !self.committed || matches!(effect, Effect::Emit(_)),
                    "the turn had an action after its commit"
                );
                self.perform_effect(effect, scenario);
            }
            if !scenario.durable_at_once || self.durable == self.log.len() as u64 {
                return;
            }
            self.make_durable();
        }
    }

    pub(super) fn perform_effect(&mut self, effect: Effect, scenario: &Scenario) {
        match effect {
            Effect::Record(record) => {
                if let Record::CallEnded { call, outcome, notes, writes, amended, .. } = &record {
                    let was_released = self.released.contains(&call.key);
                    assert!(!was_released, "an outcome changed after its release");
                    self.check_writes(call.key, outcome, writes);
                    if !amended {
                        self.check_review(call.key, outcome, notes);
                        self.check_result_allowed(call, outcome, notes, &scenario.spec.rules);
                        self.handed.remove(&call.key);
                        let before = self.outcomes.insert(call.key, outcome.clone());
                        assert_eq!(before, None, "two outcomes were recorded");
                    }
                }
                if let Record::ApprovalAsked { request } = &record {
                    self.check_approval_request(
                        request.call.key,
                        request.phase,
                        &scenario.spec.rules,
                    );
                    if request.phase != callsheet_values::types::WaitPhase::Client {
                        self.add_pending_approval((request.call.key, request.phase));
                    }
                }
                self.log.push(record);
                self.record_times.push(self.unix_ms());
            }
            Effect::Perform(TurnAction::Request(plan)) => {
                assert_eq!(self.delivered_deltas, None, "two exchanges at once");
                assert_eq!(plan.attempt, self.turn.attempt());
                self.delivered_deltas = Some(0);
                self.check_request(&plan, scenario);
            }
            Effect::Perform(TurnAction::ReduceContext(error)) => self.check_reduction(&error),
            Effect::Perform(TurnAction::Disconnect) => {
                assert!(self.delivered_deltas.take().is_some(), "no exchange to disconnect");
            }
            Effect::Perform(TurnAction::ReadReferences { key, references, .. }) => {
                assert_eq!(references, references::references());
                assert!(self.awaiting_references.insert(key), "{key} requests its values twice");
            }
            Effect::Perform(TurnAction::AskHooks(request)) => {
                let key = request.call.as_ref().map(|call| call.key);
                let has_reference = |call: &ToolCall| has_references(&call.arguments);
                let is_given = request.call.as_ref().is_some_and(has_reference);
                assert!(!is_given, "a hook was given a reference");
                assert_eq!(request.outcome.is_some(), request.on == HookPoint::AfterCall);
                let before = self.awaiting_hooks.insert(key, request.on);
                assert_eq!(before, None, "hooks were asked twice about {key:?}");
            }
            Effect::Perform(TurnAction::ChangeRequest(_)) => {}
            Effect::Perform(TurnAction::SetToolsAside { .. }) => {
                panic!("no service refuses a tool")
            }
            Effect::Perform(TurnAction::WithdrawHooks(key)) => {
                let was_asked = self.awaiting_hooks.remove(&key).is_some();
                assert!(was_asked, "a question to hooks was withdrawn that was not asked");
            }
            Effect::Perform(TurnAction::RequestToolPermit { key, tool }) => {
                self.check_permit_request(key, &tool, scenario)
            }
            Effect::Perform(TurnAction::ReleaseToolPermit(key)) => {
                let had_requested =
                    self.awaiting_permit.remove(&key) || self.holding_permit.remove(&key);
                assert!(had_requested, "a permit was released that had not been requested");
            }
            Effect::Perform(TurnAction::Start(CallStart {
                call,
                variables: snapshot,
                state,
                agent,
                ..
            })) => {
                self.check_agent_start(call.key, agent.as_deref());
                assert!(!has_references(&call.arguments), "a tool was given a reference");
                self.check_start(&call.key, scenario);
                self.check_start_allowed(call.key, &scenario.spec.rules);
                self.questions.insert(call.key, SupervisedQuestions::new(state.questions()));
                if scenario.owner_deaths > 0 {
                    let started = StartedCall {
                        state,
                        elapsed: Duration::ZERO,
                        wait: None,
                        completion: None,
                    };
                    self.started_calls.insert(call.key, started);
                }
                self.check_snapshot(call.key, snapshot);
            }
            Effect::Perform(TurnAction::Abort(key)) => {
                assert!(self.running.contains(&key), "a call that does not run was aborted");
                let call = self.turn.calls.iter().find(|call| call.key() == key);
                if call.is_some_and(TurnCall::waits_for_child_end) {
                    // The call of an agent goes on until its child has ended.
                    assert!(self.stopping.insert(key), "a child was stopped twice");
                    self.waiting_children.remove(&key);
                } else {
                    self.running.remove(&key);
                    self.started_calls.remove(&key);
                    self.questions.remove(&key);
                }
            }
            Effect::Perform(TurnAction::Answer { key, number, answer }) => {
                self.receive_answer(key, number, &answer);
            }
            Effect::Emit(Event::CallDiscarded { call, had_result }) => {
                self.handed.remove(&call.key);
                let was_published = self.outcomes.remove(&call.key).is_some();
                let lost = was_published && !had_result && self.has_tool_outcome(&call.key);
                assert!(!lost, "a published outcome of a tool was discarded as if there was none");
            }
            Effect::Emit(Event::ConflictFound { call, resolution, .. }) => {
                self.check_conflict(call.key, resolution == ConflictResolution::Rerun);
            }
            Effect::Emit(Event::CallWaiting { call, by_client: true, .. }) => {
                self.receive_client_call(call.key, &scenario.spec.rules);
            }
            Effect::Emit(Event::ResultReleased { key, .. }) => {
                assert!(matches!(
                    self.turn.stage,
                    TurnStage::ResponseEnded { .. } | TurnStage::Finished
                ));
                assert!(self.released.last() < Some(&key), "released out of order, or twice");
                assert!(
                    self.outcomes.contains_key(&key),
                    "released before its outcome was recorded"
                );
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
