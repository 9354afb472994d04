//! The actor that supervises the tool calls of a session: one actor per call.
//!
//! It is an actor of its own, so that running calls survive the death of the accumulator. The next
//! accumulator attaches to it, and receives the ends of calls that the last one may have missed.
//!
//! Cancellation: a cancelled tool is notified at once, and its actor is killed after `cancel_grace`. The turn has
//! answered the call already (`turn::response_end`). A call of an agent is neither killed nor answered yet: it ends
//! with its child.
//!
//! Limits of each start of a call: 1,000 progress texts of at most 500 characters (further ones are dropped), and 100
//! questions (further ones are declined).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::blocking::BlockingPool;
use super::child_sessions::{AgentCallRunner, ChildSlot};
use super::gauge::{CountGuard, Gauges};
use super::host_ref::HostRef;
use super::message::{
    AccumulatorMessage, AccumulatorRef, CompletionQueue, StartTool, ToolCommand,
    ToolSupervisorMessage, ToolSupervisorRef,
};
use super::publish::Publisher;
use super::references::SessionReferences;
use super::supervision::{self, ChildEnd, EndCause};
use super::task::OwnedTask;
use super::tool::{OutcomeSlot, RunTool, ToolActor, ToolAttempts, failed_outcome};
use super::tool_limiter::ToolLimiters;
use callsheet_machines::context::VariablesTransaction;
use callsheet_machines::turn::{
    CallStart, CallStartState, StartedCall, StartedCalls, StartedQuestion, StartedWait,
    ToolCompletion,
};
use callsheet_tools::{
    AskCallback, ProgressCallback, RegisteredKind, SharedVariableView, ToolContext,
    ToolContextParts,
};
use callsheet_values::event::Event;
use callsheet_values::types::{
    Answer, CallKey, FailureKind, FullResult, ParentCall, Question, READ_VAR, RunId, Secrets,
    SessionId, ToolOutcome, VariablesUse, excerpt,
};

/// The number of progress texts that a call may send after its start; further ones are dropped.
const PROGRESS_PER_CALL_MAX: u32 = 1000;
/// The largest length of a progress text, in characters.
const PROGRESS_CHARS_MAX: usize = 500;
/// The number of questions that a call may ask after its start; further ones are declined.
const QUESTIONS_PER_CALL_MAX: u32 = 100;

/// The arguments of a tool supervisor.
pub(super) struct ToolSupervisorSetup {
    pub(super) session: SessionId,
    /// The actor of the session. Identifies the session among those that share the rate of a tool.
    pub(super) session_actor: ActorId,
    pub(super) publisher: Publisher,
    pub(super) pool: BlockingPool,
    pub(super) tool_limiters: ToolLimiters,
    pub(super) gauges: Gauges,
    /// The secrets of the host, which are replaced in what tools return.
    pub(super) secrets: Secrets,
    pub(super) references: Arc<SessionReferences>,
    pub(super) host_ref: HostRef,
    /// The call that opened the session, if it is a child session.
    pub(super) parent: Option<Arc<ParentCall>>,
}

/// The actor that starts and stops the tools of calls, and alone reports how they ended. The turn decides the outcome
/// of each call (`turn::call_end`).
pub(super) struct ToolSupervisor {
    session: SessionId,
    session_actor: ActorId,
    /// A tool that keeps its context beyond the session's life does not keep this alive.
    publisher: Arc<Publisher>,
    pool: BlockingPool,
    tool_limiters: ToolLimiters,
    gauges: Gauges,
    secrets: Secrets,
    references: Arc<SessionReferences>,
    host_ref: HostRef,
    parent: Option<Arc<ParentCall>>,
    running: Vec<RunningCall>,
    /// The ends of the calls of the current turn, for an accumulator that attaches later.
    ended: Vec<(CallKey, StartedCall)>,
    accumulator: Option<(AccumulatorRef, CompletionQueue)>,
    /// The turn that the first accumulator resumed. Another supervisor may have started calls of
    /// it.
    inherited_turn: Option<u32>,
    /// True after `Finish`, which the session sends only when no turn can start a call.
    finishing: bool,
    _counted: CountGuard,
}

/// A call whose actor is alive.
struct RunningCall {
    key: CallKey,
    started: Instant,
    state: CallStartState,
    actor: ActorCell,
    slot: OutcomeSlot,
    /// The number of questions of this start.
    questions: u32,
    /// Its wait for people, during which its time does not count.
    wait: Option<SupervisedWait>,
    /// The time of its waits for people that are over.
    people_wait: Duration,
    /// The call's use of variables, which survives its actor.
    view: SharedVariableView,
    cancellation: CancellationToken,
    /// Cancels the token when the call or its supervisor ends, so that a thread or task that the
    /// tool left behind is notified.
    _over: DropGuard,
    /// The grace period after a cancellation.
    grace: Duration,
    /// Kills the call after the grace period.
    kill_timer: Option<OwnedTask>,
    /// The child, if the tool is an agent. Such a call is not killed: it ends when its child has ended.
    child: Option<ChildSlot>,
    killed: bool,
}

/// The wait of a running call for people.
struct SupervisedWait {
    since: Instant,
    /// The question whose answer its tool waits for. `None` if its child waits for people.
    question: Option<SupervisedQuestion>,
}

/// A question whose answer a tool waits for.
struct SupervisedQuestion {
    number: u32,
    question: Arc<Question>,
    reply: oneshot::Sender<Answer>,
}

/// The handler of a [`ToolSupervisor`].
pub(super) struct ToolSupervisorHandler;

impl Actor for ToolSupervisorHandler {
    type Msg = ToolSupervisorMessage;
    type State = ToolSupervisor;
    type Arguments = ToolSupervisorSetup;

    async fn pre_start(
        &self,
        _: ToolSupervisorRef,
        setup: ToolSupervisorSetup,
    ) -> Result<ToolSupervisor, ActorProcessingErr> {
        Ok(ToolSupervisor::new(setup))
    }

    async fn handle(
        &self,
        myself: ToolSupervisorRef,
        message: ToolSupervisorMessage,
        supervisor: &mut ToolSupervisor,
    ) -> Result<(), ActorProcessingErr> {
        supervisor.handle(message, &myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ToolSupervisorRef,
        event: SupervisionEvent,
        supervisor: &mut ToolSupervisor,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(end) = ChildEnd::from_event(event) {
            supervisor.handle_child_end(end, &myself);
        }
        Ok(())
    }
}

impl ToolSupervisor {
    fn new(setup: ToolSupervisorSetup) -> Self {
        let ToolSupervisorSetup {
            session,
            session_actor,
            publisher,
            pool,
            tool_limiters,
            gauges,
            secrets,
            references,
            host_ref,
            parent,
        } = setup;
        Self {
            session,
            session_actor,
            publisher: Arc::new(publisher),
            pool,
            tool_limiters,
            _counted: gauges.actors.increment(),
            gauges,
            secrets,
            references,
            host_ref,
            parent,
            running: Vec::new(),
            ended: Vec::new(),
            accumulator: None,
            inherited_turn: None,
            finishing: false,
        }
    }

    fn handle(&mut self, message: ToolSupervisorMessage, myself: &ToolSupervisorRef) {
        match message {
            ToolSupervisorMessage::Execute(commands) => {
                for command in commands {
                    match command {
                        ToolCommand::Start(start) => self.start(*start, myself),
                        ToolCommand::Answer { key, number, answer } => {
                            self.answer(key, number, answer);
                        }
                        ToolCommand::Abort(key) => self.abort(key, myself),
                    }
                }
            }
            ToolSupervisorMessage::Attach { accumulator, completions, resumed_turn, reply } => {
                let started = self.attach((accumulator, completions), resumed_turn);
                // The accumulator may have died.
                let _ = reply.send(started);
            }
            ToolSupervisorMessage::Ask { key, question, reply } => self.ask(key, question, reply),
            ToolSupervisorMessage::WithdrawQuestion { key } => self.withdraw_question(key),
            ToolSupervisorMessage::ChildWaits { key, waits } => self.child_waits(key, waits),
            ToolSupervisorMessage::GraceOver { call } => {
                let is_it = |running: &&mut RunningCall| running.actor.get_id() == call;
                if let Some(running) = self.running.iter_mut().find(is_it) {
                    running.killed = true;
                    running.actor.kill();
                }
            }
            ToolSupervisorMessage::Finish => {
                self.finishing = true;
                let keys: Vec<_> = self.running.iter().map(|running| running.key).collect();
                for key in keys {
                    self.abort(key, myself);
                }
            }
        }
        self.stop_if_finished(myself);
    }

    fn handle_child_end(&mut self, end: ChildEnd, myself: &ToolSupervisorRef) {
        self.handle_end(end.actor, || match end.cause {
            EndCause::Stopped | EndCause::Killed => {
                failed_outcome(FailureKind::Killed, "the tool was killed")
            }
            EndCause::Panicked(panic) => {
                failed_outcome(FailureKind::Panic, &format!("the tool panicked: {panic}"))
            }
        });
        self.stop_if_finished(myself);
    }

    /// Makes this the accumulator that receives the ends of calls. Returns the calls of the turn
    /// that it resumes.
    fn attach(
        &mut self,
        accumulator: (AccumulatorRef, CompletionQueue),
        resumed_turn: Option<u32>,
    ) -> StartedCalls {
        if self.accumulator.replace(accumulator).is_none() {
            self.inherited_turn = resumed_turn;
            return StartedCalls::default();
        }
        let running = self.running.iter().map(|running| (running.key, running.as_started(None)));
        let ended = self.ended.iter().cloned();
        // `calls` is a map. If a call runs again, its entry as a running call comes later and replaces its
        // earlier end.
        let calls = ended.chain(running).filter(|(key, _)| Some(key.turn) == resumed_turn);
        StartedCalls { calls: calls.collect(), is_complete: self.inherited_turn != resumed_turn }
    }

    fn start(&mut self, start: StartTool, myself: &ToolSupervisorRef) {
        let StartTool { start, scope, permit } = start;
        let CallStart { call, variables, state, agent: child_start } = start;
        let agent = &scope.agent;
        let view = VariablesTransaction::new(variables, agent.limits().max_variables_bytes);
        let view: SharedVariableView = Arc::new(Mutex::new(view));
        let (key, started) = (call.key, Instant::now());
        if self.ended.first().is_some_and(|(ended, _)| ended.turn != key.turn) {
            self.ended.clear();
        }
        let Some(registered) = agent.tools.get(&*call.name) else {
            // The turn only admits tools of this map.
            let unknown = failed_outcome(FailureKind::UnknownTool, "no tool has this name");
            return self.report(key, not_started(state, unknown));
        };
        let cancellation = CancellationToken::new();
        let slot = OutcomeSlot::default();
        let limiter = self.tool_limiters.get(&registered.spec.name);
        let timeout = registered.spec.timeout_or(agent.limits().tool_timeout);
        // A call of an agent runs a child session.
        let child_start = child_start.zip(registered.spec.agent.as_deref());
        let runner = child_start.map(|(start, config)| {
            Arc::new(AgentCallRunner {
                host_ref: self.host_ref.clone(),
                supervisor: myself.clone(),
                session: self.session.clone(),
                scope: Arc::clone(&scope),
                key,
                parent: self.parent.clone(),
                config: config.clone(),
                start: *start,
                publisher: Arc::downgrade(&self.publisher),
                child: ChildSlot::default(),
            })
        });
        let child = runner.as_ref().map(|runner| Arc::clone(&runner.child));
        let context = ToolContext::new(ToolContextParts {
            session: self.session.clone(),
            progress: self.progress(&scope.run, key, &slot, &cancellation),
            ask: ask_callback(myself, key),
            run: scope.run.clone(),
            agent: Arc::clone(&agent.name),
            max_result_bytes: agent.limits().max_result_bytes,
            // A tool may keep its context, and then must not keep itself.
            offered: (registered.kind == RegisteredKind::Mcp).then(|| Arc::clone(&agent.tools)),
            agents: runner.map(|runner| runner as _),
            // No other tool needs them, and a tool may keep its context beyond the session's life.
            references: (*call.name == *READ_VAR).then(|| self.references.clone() as _),
            tool: call.name,
            key,
            arguments: call.arguments,
            effect: registered.spec.effect,
            deadline: timeout.and_then(|timeout| started.checked_add(timeout)),
            trace: scope.trace.as_ref().map(|trace| trace.for_call(key)),
            extensions: scope.extensions.clone(),
            cancellation: cancellation.clone(),
            variables: Arc::clone(&view),
        });
        let attempts = ToolAttempts {
            tool: Arc::clone(&registered.tool),
            spec: Arc::clone(&registered.spec),
            context,
            session: self.session_actor,
            limiter,
            pool: registered.spec.blocking.then(|| self.pool.clone()),
            permit: permit.map(Arc::new),
        };
        // A supervisor that is ending starts no calls, and reports none.
        let Ok(actor) = supervision::spawn_linked(myself, ToolActor, ()) else { return };
        let _ = actor.cast(RunTool {
            attempts,
            slot: Arc::clone(&slot),
            secrets: self.secrets.clone(),
            _counted: [self.gauges.actors.increment(), self.gauges.running_calls.increment()],
        });
        self.running.push(RunningCall {
            key,
            started,
            state,
            actor: actor.get_cell(),
            slot,
            questions: 0,
            wait: None,
            people_wait: Duration::ZERO,
            view,
            _over: cancellation.clone().drop_guard(),
            cancellation,
            grace: agent.limits().cancel_grace,
            kill_timer: None,
            child,
            killed: false,
        });
    }

    /// Returns the callback that publishes a call's progress while the call is open.
    fn progress(
        &self,
        run: &RunId,
        key: CallKey,
        slot: &OutcomeSlot,
        cancellation: &CancellationToken,
    ) -> ProgressCallback {
        let (publisher, run) = (Arc::downgrade(&self.publisher), run.clone());
        let (slot, cancellation) = (Arc::downgrade(slot), cancellation.clone());
        let (sent, secrets) = (AtomicU32::new(0), self.secrets.clone());
        Box::new(move |text| {
            let open = slot.upgrade().is_some_and(|slot| slot.lock().is_none())
                && !cancellation.is_cancelled();
            if !open || sent.fetch_add(1, Ordering::Relaxed) >= PROGRESS_PER_CALL_MAX {
                return;
            }
            if let Some(publisher) = publisher.upgrade() {
                let text = excerpt(&secrets.redact(&text), PROGRESS_CHARS_MAX);
                publisher.publish(&run, key.turn, Event::CallProgressed { key, text });
            }
        })
    }

    /// Cancels a call, and kills it after its grace period unless its tool is an agent.
    fn abort(&mut self, key: CallKey, myself: &ToolSupervisorRef) {
        let Some(running) = self.running.iter_mut().find(|running| running.key == key) else {
            return;
        };
        if running.cancellation.is_cancelled() {
            return;
        }
        running.cancellation.cancel();
        running.end_wait();
        if running.child.is_some() {
            return;
        }
        let (supervisor, grace, call) = (myself.clone(), running.grace, running.actor.get_id());
        running.kill_timer = Some(OwnedTask::spawn(&self.gauges.tasks, async move {
            tokio::time::sleep(grace).await;
            let _ = supervisor.cast(ToolSupervisorMessage::GraceOver { call });
        }));
    }

    /// Passes a question of a running call on to the turn.
    fn ask(&mut self, key: CallKey, question: Question, reply: oneshot::Sender<Answer>) {
        let running = self.running.iter_mut().find(|running| running.key == key);
        let Some(running) = running.filter(|running| !running.cancellation.is_cancelled()) else {
            // The tool learns that the call is cancelled, because the sender is dropped.
            return;
        };
        if running.questions == QUESTIONS_PER_CALL_MAX {
            let reason = format!("a call may ask at most {QUESTIONS_PER_CALL_MAX} questions");
            let _ = reply.send(Answer::Declined(Some(reason)));
            return;
        }
        let question = question.redacted(&self.secrets);
        running.questions += 1;
        let number = running.state.questions().saturating_add(running.questions);
        let question = Arc::new(question);
        let asked = SupervisedQuestion { number, question: Arc::clone(&question), reply };
        running.start_wait(Some(asked));
        if let Some((accumulator, _)) = &self.accumulator {
            // The next accumulator receives it when it attaches, if this one is dead.
            let _ = accumulator.cast(AccumulatorMessage::QuestionAsked { key, number, question });
        }
    }

    fn answer(&mut self, key: CallKey, number: u32, answer: Answer) {
        let running = self.running.iter_mut().find(|running| running.key == key);
        let Some(running) = running.filter(|running| running.is_asking(number)) else { return };
        if let Some(open) = running.end_wait() {
            // The tool may have withdrawn it.
            let _ = open.reply.send(answer);
        }
    }

    fn withdraw_question(&mut self, key: CallKey) {
        let running = self.running.iter_mut().find(|running| running.key == key);
        // If the call has asked another question meanwhile, that one still has a receiver, and stays open.
        let is_withdrawn = |running: &&mut RunningCall| {
            running.open_question().is_some_and(|open| open.reply.is_closed())
        };
        let closed = running.filter(is_withdrawn).and_then(RunningCall::end_wait);
        if let (Some(open), Some((accumulator, _))) = (closed, &self.accumulator) {
            let number = open.number;
            let _ = accumulator.cast(AccumulatorMessage::QuestionWithdrawn { key, number });
        }
    }

    /// Notes that the child of a running call waits only for people, or does so no longer.
    fn child_waits(&mut self, key: CallKey, waits: bool) {
        let running = self.running.iter_mut().find(|running| running.key == key);
        let Some(running) = running.filter(|running| !running.cancellation.is_cancelled()) else {
            return;
        };
        if waits {
            running.start_wait(None);
        } else {
            running.end_wait();
        }
        if let Some((accumulator, _)) = &self.accumulator {
            // The next accumulator receives it when it attaches, if this one is dead.
            let _ = accumulator.cast(AccumulatorMessage::ChildWaits { key, waits });
        }
    }

    /// Reports the end of a call whose actor has ended. An empty slot means that the actor died.
    fn handle_end(&mut self, actor: ActorId, died: impl FnOnce() -> ToolOutcome) {
        let found = self.running.iter().position(|running| running.actor.get_id() == actor);
        let Some(running) = found.map(|at| self.running.swap_remove(at)) else { return };
        if self.running.is_empty() {
            // The model may write for a long time until the next call.
            self.running = Vec::new();
        }
        let mut outcome = running.slot.lock().take().unwrap_or_else(died);
        let mut used = running.view.lock().take();
        outcome.child = running.child.as_ref().and_then(|child| child.lock().take()).map(Arc::new);
        self.redact(&mut outcome, &mut used);
        let call = running.as_started(Some(ToolCompletion { outcome, variables: used }));
        self.report(running.key, call);
    }

    /// Replaces the host's secrets in what a call returned and wrote.
    fn redact(&self, outcome: &mut ToolOutcome, used: &mut VariablesUse) {
        if self.secrets.is_empty() {
            return;
        }
        redact_outcome(&self.secrets, outcome);
        for value in used.writes.0.values_mut() {
            if let Some(redacted) = self.secrets.redact_json(value) {
                *value = Arc::new(redacted);
            }
        }
    }

    /// Hands the end of a call to the accumulator.
    fn report(&mut self, key: CallKey, call: StartedCall) {
        if let (Some((accumulator, queue)), Some(completion)) =
            (&self.accumulator, &call.completion)
        {
            let is_first = {
                let mut queue = queue.lock();
                queue.push((key, completion.clone()));
                queue.len() == 1
            };
            if is_first {
                // The next accumulator receives it if this one is dead.
                let _ = accumulator.cast(AccumulatorMessage::ToolsFinished);
            }
        }
        self.ended.push((key, call));
    }

    /// Stops this actor if it is finishing and every remaining call was killed. It cannot wait for a
    /// tool that never awaits.
    fn stop_if_finished(&self, myself: &ToolSupervisorRef) {
        if self.finishing && self.running.iter().all(|running| running.killed) {
            myself.stop(None);
        }
    }
}

impl RunningCall {
    /// Returns the call as an accumulator that attaches needs it.
    fn as_started(&self, completion: Option<ToolCompletion>) -> StartedCall {
        let waiting = self.wait.as_ref().map_or(Duration::ZERO, |wait| wait.since.elapsed());
        let waited = self.people_wait + waiting;
        let wait = self.wait.as_ref().map(|wait| match &wait.question {
            Some(SupervisedQuestion { number, question, .. }) => {
                let (number, question) = (*number, Arc::clone(question));
                StartedWait::Question(StartedQuestion { number, question })
            }
            None => StartedWait::Child,
        });
        StartedCall {
            state: self.state.clone(),
            elapsed: self.started.elapsed().saturating_sub(waited),
            wait: wait.filter(|_| completion.is_none()),
            completion,
        }
    }

    fn is_asking(&self, number: u32) -> bool {
        self.open_question().is_some_and(|open| open.number == number)
    }

    fn open_question(&self) -> Option<&SupervisedQuestion> {
        self.wait.as_ref()?.question.as_ref()
    }

    /// Starts a wait for people, for the answer to a question or for the child. Ends an earlier one.
    fn start_wait(&mut self, question: Option<SupervisedQuestion>) {
        self.end_wait();
        self.wait = Some(SupervisedWait { since: Instant::now(), question });
    }

    /// Ends the wait for people. Its time does not count as time of the tool. Returns the question that was open.
    fn end_wait(&mut self) -> Option<SupervisedQuestion> {
        let wait = self.wait.take()?;
        self.people_wait += wait.since.elapsed();
        wait.question
    }
}

/// Returns a call that could not be started, with its outcome.
fn not_started(state: CallStartState, outcome: ToolOutcome) -> StartedCall {
    let completion = ToolCompletion { outcome, variables: VariablesUse::default() };
    StartedCall { state, elapsed: Duration::ZERO, wait: None, completion: Some(completion) }
}

/// Returns the callback by which a call asks questions.
fn ask_callback(supervisor: &ToolSupervisorRef, key: CallKey) -> AskCallback {
    let supervisor = supervisor.clone();
    Box::new(move |question| {
        let (reply, answer) = oneshot::channel();
        // A supervisor that has ended drops the sender.
        let _ = supervisor.cast(ToolSupervisorMessage::Ask { key, question, reply });
        let mut awaited =
            AwaitedAnswer { supervisor: supervisor.clone(), key, answer: Some(answer) };
        Box::pin(async move { awaited.receive().await })
    })
}

/// An answer that a tool waits for. Dropping it withdraws the question.
struct AwaitedAnswer {
    supervisor: ToolSupervisorRef,
    key: CallKey,
    /// `None` once the answer has arrived.
    answer: Option<oneshot::Receiver<Answer>>,
}

impl AwaitedAnswer {
    async fn receive(&mut self) -> Answer {
        let Some(answer) = &mut self.answer else { return Answer::Cancelled };
        let answer = answer.await;
        self.answer = None;
        answer.unwrap_or(Answer::Cancelled)
    }
}

impl Drop for AwaitedAnswer {
    fn drop(&mut self) {
        // The supervisor sees that the receiver is gone.
        if self.answer.take().is_some() {
            let key = self.key;
            let _ = self.supervisor.cast(ToolSupervisorMessage::WithdrawQuestion { key });
        }
    }
}

/// Replaces the host's secrets in the outcome of a call.
pub(super) fn redact_outcome(secrets: &Secrets, outcome: &mut ToolOutcome) {
    if secrets.is_empty() {
        return;
    }
    if let Cow::Owned(redacted) = secrets.redact(&outcome.content) {
        outcome.content = redacted.into();
    }
    outcome.full = outcome.full.take().and_then(|full| redacted_result(secrets, full));
}

/// Returns a result without the host's secrets. Returns `None` if the redacted value is no longer a result, for
/// example because a number became a string: then only the text of the result is left.
fn redacted_result(secrets: &Secrets, full: Arc<FullResult>) -> Option<Arc<FullResult>> {
    let json = serde_json::to_value(&*full).ok()?;
    match secrets.redact_json(&json) {
        Some(redacted) => serde_json::from_value(redacted).ok().map(Arc::new),
        None => Some(full),
    }
}
