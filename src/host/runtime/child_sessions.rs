//! Sub-agents: a call of an agent runs in a child session.
//!
//! The child of a call is an ordinary session. Its id, the id of its run and the idempotency key of that run follow
//! from the call, so that a call that is started again, after a crash or by a new actor, finds the child instead
//! of starting a second run. The call waits for the end of the run. The run of a child does not count towards
//! `max_concurrent_runs`, so waiting parents cannot block their children (deadlock).
//!
//! A child inherits the lease of the call (its share of the run's budget: `turn::agent_calls`), the trace, the
//! extensions of the program, and the lowest `max_depth` and `max_children` of the calls above it. It does not
//! inherit the history, the client tools or the overrides of its parent. Defaults (`config::agent_tool`): `max_depth`
//! 1, `max_children` 8 below one run of the root, `share_of_budget` a half.
//!
//! Once a call is cancelled, it stops its child and still waits for the end of the child. Then the turn decides the
//! outcome of the call (`turn::agent_calls`). Stopping a child stops its own children in the same way.
//!
//! The result of the call is the child's answer. If the run ended with `max_turns`, its text so far counts as the
//! answer. An answer that was cut off says so at its end. Any other end of the run is a permanent error with the reason and the text so far (`result`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::agent_trees::{self, ChildAdmission};
use super::error::HostError;
use super::handle::{RunRequest, SessionHandle};
use super::host_ref::HostRef;
use super::message::{RunScope, SessionMessage, ToolSupervisorMessage, ToolSupervisorRef};
use super::publish::Publisher;
use super::report::RunReport;
use super::session_events::{SessionEvents, WatchOptions};
use super::{OpenSession, opening, stored_sessions, task};
use crate::telemetry::FeedItem;
use callsheet_machines::session::pending_approvals;
use callsheet_machines::turn::AgentCallStart;
use callsheet_tools::{AgentCaller, ToolContext, ToolError, ToolOutput};
use callsheet_values::config::{AgentEvents, AgentToolConfig, LimitOverrides, Limits};
use callsheet_values::event::{ChildEvent, Event, PublishedEvent};
use callsheet_values::record::{Record, RequestKey, StopMode};
use callsheet_values::types::{
    CallKey, ChildUse, ParentCall, RootRun, RunEnd, RunId, Seq, SessionId, child_run_id,
    child_session_id,
};

/// The time for which a call waits for the last events of its child, which has ended.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(2);

/// Follows the answer of a child that was cut off at its maximum length.
const CUT_OFF: &str = "\n\n[callsheet: the answer of the agent was cut off at its maximum length]";

/// The child of a call, once it has a run.
pub(super) type ChildSlot = Arc<Mutex<Option<ChildUse>>>;

/// A child whose run was started, now or earlier.
struct StartedChild {
    report: BoxFuture<'static, Result<RunReport, HostError>>,
    /// True if the end of the run is among the events that follow.
    end_event_pending: bool,
    /// Holds true while the run waits only for people.
    waits_for_people: Option<watch::Receiver<bool>>,
}

/// Runs the child of one call.
pub(super) struct AgentCallRunner {
    pub(super) host_ref: HostRef,
    pub(super) supervisor: ToolSupervisorRef,
    pub(super) session: SessionId,
    /// The run of the call. Its agent makes the call.
    pub(super) scope: Arc<RunScope>,
    pub(super) key: CallKey,
    /// The call that opened the session, if it is a child session.
    pub(super) parent: Option<Arc<ParentCall>>,
    pub(super) config: AgentToolConfig,
    pub(super) start: AgentCallStart,
    /// Weak, because a tool may keep its context for longer than the session lives.
    pub(super) publisher: Weak<Publisher>,
    /// Receives the child, for the outcome of the call.
    pub(super) child: ChildSlot,
}

#[async_trait]
impl AgentCaller for AgentCallRunner {
    async fn call(&self, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let called = self.call_child(context).await;
        if called.is_err() && self.host_ref.shared.leaves_runs() {
            // The next host goes on with the call and its child.
            context.cancelled().await;
        }
        called
    }
}

impl AgentCallRunner {
    /// Opens the child session if necessary, runs the call in it and returns its result.
    ///
    /// Boxed, because the `where` clauses of an `async_trait` method keep the compiler from caching what it proves
    /// about the futures in it.
    fn call_child<'a>(
        &'a self,
        context: &'a ToolContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let id = child_session_id(&self.session, context.idempotency_key());
            let Some(run) = child_run_id(&id) else {
                return Err(ToolError::new("the call has no child session").permanent());
            };
            let child = SessionHandle::new(id, self.host_ref.clone());
            if self.host_ref.shared.leaves_runs() {
                return Err(ToolError::new(HostError::ShuttingDown.to_string()));
            }
            if self.start.is_cancelled || context.is_cancelled() {
                self.stop_existing_child(&child, &run).await;
                return Err(cancelled());
            }
            let is_new = self.open(&child).await?;
            let report = self.run_child(&child, &run, context).await;
            let run_did_not_start = self.child.lock().is_none();
            // After a failure of the journal, at shutdown, or at another host, the call may be started again and needs the
            // child.
            let may_start_again = matches!(
                report,
                Err(HostError::Journal(_) | HostError::ShuttingDown | HostError::SessionMoved)
            );
            // The outcome of a call names its child only if a run has started. The deletion of the parent would not
            // find this one.
            let is_unused = is_new && run_did_not_start && !may_start_again;
            if is_unused && child.close().await.is_ok() {
                self.host_ref.shared.agent_trees.remove(&self.parent_call().root, child.id());
            }
            let report = report.map_err(|error| {
                ToolError::new(format!("the child session {}: {error}", child.id())).permanent()
            })?;
            self.set_use(&child, &report);
            result(&self.config.agent, &report)
        })
    }

    /// Returns the call as the child's session records it.
    fn parent_call(&self) -> ParentCall {
        let AgentToolConfig { agent, max_depth, max_children, .. } = &self.config;
        let is_child_run = child_run_id(&self.session).as_ref() == Some(&self.scope.run);
        let own_root = || RootRun {
            session: self.session.clone(),
            run: self.scope.run.clone(),
            seq: self.scope.run_seq,
        };
        // A run that a client starts in a child session is the root of its own children.
        let root = self.parent.as_ref().filter(|_| is_child_run).map(|parent| parent.root.clone());
        let mut agent_path = self.path();
        agent_path.push(agent.as_str().into());
        let lowest = |own: u32, inherited: fn(&ParentCall) -> u32| {
            self.parent.as_deref().map_or(own, |parent| own.min(inherited(parent)))
        };
        ParentCall {
            session: self.session.clone(),
            run: self.scope.run.clone(),
            key: self.key,
            root: root.unwrap_or_else(own_root),
            agent_path,
            max_depth: lowest(*max_depth, |parent| parent.max_depth),
            max_children: lowest(*max_children, |parent| parent.max_children),
        }
    }

    /// Opens the child's session, unless it exists. Returns whether it opened it.
    async fn open(&self, child: &SessionHandle) -> Result<bool, ToolError> {
        let parent = self.parent_call();
        if parent.depth() > parent.max_depth {
            let (depth, most) = (parent.depth(), parent.max_depth);
            return Err(refused("max_depth", &format!("it would be at depth {depth} of {most}")));
        }
        let nothing_left = |key, left| {
            refused(key, &format!("{left} are left for it (share_of_budget of what the run has)"))
        };
        if self.start.lease.tokens == Some(0) {
            return Err(nothing_left("max_tokens_per_run", "no tokens"));
        }
        if self.start.lease.calls == Some(0) {
            return Err(nothing_left("max_tool_calls_per_run", "no tool calls"));
        }
        let trees = &self.host_ref.shared.agent_trees;
        if !trees.has_run(&parent.root) {
            // The run is new, or an earlier host has started it.
            let stored = agent_trees::descendants(&*self.host_ref.shared.journal, &parent.root);
            let stored = stored.await.map_err(|error| ToolError::new(error.to_string()))?;
            trees.restore(&parent.root, stored);
        }
        let admission = trees.add(&parent, child.id());
        if admission == ChildAdmission::Full {
            let most = parent.max_children;
            let had = format!("the run at the root has had {most} children");
            return Err(refused("max_children", &had));
        }
        let (root, id) = (parent.root.clone(), child.id().clone());
        let open = OpenSession::default();
        let agent = self.host_ref.shared.catalog.find_agent(Some(self.config.agent.clone()));
        let opened = match agent {
            Ok(agent) => {
                opening::open(&self.host_ref, id, agent, open, Some(Arc::new(parent))).await
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok(_) => Ok(true),
            Err(HostError::SessionExists) => Ok(false),
            Err(error) => {
                if admission == ChildAdmission::Added {
                    trees.remove(&root, child.id());
                }
                let is_full = matches!(error, HostError::Full("session"));
                let problem = error.to_string();
                let problem = if is_full { "host.max_sessions is reached" } else { &problem };
                Err(ToolError::new(format!("the agent was not run: {problem}")).permanent())
            }
        }
    }

    /// Runs the child to its end. Passes its events on, notifies the supervisor when the child waits only for people,
    /// and stops the child once the call is cancelled.
    async fn run_child(
        &self,
        child: &SessionHandle,
        run: &RunId,
        context: &ToolContext,
    ) -> Result<RunReport, HostError> {
        // Subscribes first, so that no event is missed.
        let events = child.watch_with(None, self.watch_options()).await?;
        let mut events = Some(events.only_run(run.clone()));
        let started = self.start_child_run(child, run, context).await?;
        let StartedChild { mut report, mut end_event_pending, mut waits_for_people } = started;
        let (mut is_stopped, mut is_waiting) = (false, false);
        let report = loop {
            tokio::select! {
                biased;
                () = context.cancelled(), if !is_stopped => {
                    is_stopped = true;
                    if self.host_ref.shared.leaves_runs() {
                        return Err(HostError::ShuttingDown);
                    }
                    // If the child is gone, it has ended.
                    let _ = child.stop(StopMode::Now).await;
                }
                waits = next_wait(&mut waits_for_people, is_waiting) => {
                    is_waiting = waits;
                    let key = self.key;
                    // A supervisor that has ended has no calls.
                    let _ = self.supervisor.cast(ToolSupervisorMessage::ChildWaits { key, waits });
                }
                item = next(&mut events) => {
                    end_event_pending &= !is_end(item.as_ref());
                    events = self.forward_event(child, run, item, events.take()).await;
                }
                report = &mut report => break report,
            }
        };
        let last = async {
            let mut item = None;
            while !is_end(item.as_ref()) {
                item = next(&mut events).await;
                let Some(FeedItem::Event(event)) = &item else { return };
                self.publish(event);
            }
        };
        if end_event_pending && report.is_ok() {
            let _ = timeout(LAST_EVENTS_MAX, last).await;
        }
        report
    }

    /// Starts the run of the child, or finds it.
    async fn start_child_run(
        &self,
        child: &SessionHandle,
        run: &RunId,
        context: &ToolContext,
    ) -> Result<StartedChild, HostError> {
        let input = context.arguments()["input"].as_str().unwrap_or_default();
        let mut request = RunRequest::from(input.to_owned());
        request.request_key = Some(RequestKey::new(context.idempotency_key(), input));
        request.overrides.limits = self.limits();
        request.trace = context.trace().cloned();
        request.extensions = context.extensions().clone();
        let (accepted, awake_session) = child.request_run(run, request).await?;
        let zero = ChildUse { session: child.id().clone(), run: run.clone(), tokens: 0, calls: 0 };
        *self.child.lock() = Some(zero);
        if accepted.report_receiver.is_none() {
            // The run was started earlier, such as by this call before a crash. The run may have been interrupted and
            // wait to be resumed, with `resume = "manual"`.
            let _ = child.resume().await;
            self.publish_pending_approvals(child).await?;
        }
        let is_running = awake_session.activity.has_open_run.load(Ordering::Acquire);
        let end_event_pending = accepted.report_receiver.is_some() || is_running;
        let (session, log) = (child.clone(), Arc::clone(&awake_session.log));
        let report = stored_sessions::await_report(session, accepted, log);
        let waits_for_people =
            awake_session.activity.waits_for_people.as_ref().map(watch::Sender::subscribe);
        Ok(StartedChild { report: Box::pin(report), end_event_pending, waits_for_people })
    }

    /// Returns the limits of the child's run: the lease, where it is lower than the limits of its agent.
    fn limits(&self) -> LimitOverrides {
        let agent = self.host_ref.shared.catalog.agents.get(&self.config.agent);
        let own = agent.map_or_else(Limits::default, |agent| agent.limits().clone());
        let AgentCallStart { lease, time, .. } = self.start;
        let lower = |leased: Option<u64>, own: Option<u64>| {
            leased.filter(|leased| own.is_none_or(|own| *leased < own))
        };
        let calls = lower(lease.calls.map(u64::from), own.max_tool_calls_per_run.map(u64::from));
        let time = time.filter(|time| own.run_timeout.is_none_or(|own| *time < own));
        LimitOverrides::default().with(|limits| {
            limits.max_tokens_per_run = lower(lease.tokens, own.max_tokens_per_run);
            limits.max_tool_calls_per_run = calls.and_then(|calls| u32::try_from(calls).ok());
            limits.run_timeout = time;
        })
    }

    /// Stops the child of a call that is cancelled already when it starts, and waits for its end. An earlier start of
    /// the call may have opened the child.
    async fn stop_existing_child(&self, child: &SessionHandle, run: &RunId) {
        let stored = self.host_ref.shared.journal.find(child.id()).await;
        // If the journal cannot be read, the child may exist.
        if stored == Ok(None) {
            return;
        }
        let zero = ChildUse { session: child.id().clone(), run: run.clone(), tokens: 0, calls: 0 };
        *self.child.lock() = Some(zero);
        match stop_and_report(child, run).await {
            Ok(Some(report)) => self.set_use(child, &report),
            Err(HostError::NoSuchSession(_)) => *self.child.lock() = None,
            Ok(None) | Err(_) => {}
        }
    }

    /// Sets the use of the child to what it and its own children have used.
    fn set_use(&self, child: &SessionHandle, report: &RunReport) {
        let own = report.stats.input_tokens.saturating_add(report.stats.output_tokens);
        let calls = u32::try_from(report.calls.len()).unwrap_or(u32::MAX);
        let mut used = ChildUse {
            session: child.id().clone(),
            run: report.run_id.clone(),
            tokens: own,
            calls,
        };
        for child in report.calls.iter().filter_map(super::report::CallReport::child) {
            used.tokens = used.tokens.saturating_add(child.tokens);
            used.calls = used.calls.saturating_add(child.calls);
        }
        *self.child.lock() = Some(used);
    }

    /// Passes an event of the child on. Returns the stream of the next events, or `None` if it has ended.
    async fn forward_event(
        &self,
        child: &SessionHandle,
        run: &RunId,
        item: Option<FeedItem>,
        events: Option<SessionEvents>,
    ) -> Option<SessionEvents> {
        match item {
            Some(FeedItem::Event(event)) => {
                self.publish(&event);
                events
            }
            // Events are missing. The states of open calls and approvals come again.
            Some(FeedItem::Lagged) => {
                let events = child.watch_from_now().await.ok()?.only_run(run.clone());
                let _ = self.publish_pending_approvals(child).await;
                Some(events)
            }
            Some(FeedItem::Failed(_)) | None => None,
        }
    }

    /// Passes an event on to the watchers of the parent, if `agent_events` selects it.
    fn publish(&self, published: &PublishedEvent) {
        let of_grandchild = if let Event::OfChild { event, .. } = &published.event {
            Some(Arc::clone(event))
        } else {
            None
        };
        let inner = of_grandchild.as_ref().map_or(&published.event, |event| &event.event);
        let Some(publisher) = self.publisher.upgrade() else { return };
        if !is_forwarded(self.config.agent_events, inner) {
            return;
        }
        let event = of_grandchild.unwrap_or_else(|| Arc::new(self.child_event(published)));
        let event = Event::OfChild { call: self.key, event };
        publisher.publish(&self.scope.run, self.key.turn, event);
    }

    /// Returns what the call wants of the events of the child: the arguments of its calls as they arrive, if they are
    /// passed on and a watcher of the caller has asked for them.
    fn watch_options(&self) -> WatchOptions {
        let publisher = self.publisher.upgrade();
        let is_asked = publisher.is_some_and(|publisher| publisher.has_argument_readers());
        let are_forwarded = self.config.agent_events != AgentEvents::None;
        WatchOptions::default().with(|options| options.arguments = is_asked && are_forwarded)
    }

    fn child_event(&self, published: &PublishedEvent) -> ChildEvent {
        let mut agent_path = self.path();
        agent_path.push(self.config.agent.as_str().into());
        ChildEvent {
            session: published.session.clone(),
            run: published.run.clone(),
            turn: published.turn,
            timestamp_ms: published.timestamp_ms,
            event: published.event.clone(),
            parent_session: self.session.clone(),
            parent_call: self.key,
            agent_path,
        }
    }

    /// Returns the names of the agents from the topmost session down to the caller.
    fn path(&self) -> Vec<Arc<str>> {
        let parent = self.parent.as_ref().map(|parent| parent.agent_path.clone());
        parent.unwrap_or_else(|| vec![Arc::clone(&self.scope.agent.name)])
    }

    /// Publishes the approvals that the child waits for.
    async fn publish_pending_approvals(&self, child: &SessionHandle) -> Result<(), HostError> {
        let entries = child.records(Seq(0)).await?;
        // Approvals can be pending only after the last committed turn or the start of the run.
        let boundary = entries.iter().rposition(|entry| {
            matches!(entry.record, Record::TurnCommitted { .. } | Record::RunStarted { .. })
        });
        let last = entries.get(boundary.map_or(0, |at| at + 1)..).unwrap_or_default();
        let Some(run) = child_run_id(child.id()) else { return Ok(()) };
        for pending in pending_approvals(last.iter()) {
            self.publish(&PublishedEvent {
                session: child.id().clone(),
                run: run.clone(),
                turn: pending.request.call.key.turn,
                timestamp_ms: pending.asked_at,
                id: None,
                stream_text: callsheet_values::event::EventStreamText::default(),
                event: Event::ApprovalAsked { request: Box::new(pending.request) },
            });
        }
        Ok(())
    }
}

/// Returns whether the item is the end of the child's run.
fn is_end(item: Option<&FeedItem>) -> bool {
    matches!(item, Some(FeedItem::Event(event)) if matches!(event.event, Event::RunEnded { .. }))
}

async fn next(events: &mut Option<SessionEvents>) -> Option<FeedItem> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change: returns true when the child begins to wait only for people, and false when it no longer does,
/// or when its actor has ended.
async fn next_wait(waits: &mut Option<watch::Receiver<bool>>, is_waiting: bool) -> bool {
    if let Some(receiver) = waits {
        if let Ok(changed) = receiver.wait_for(|waits| *waits != is_waiting).await {
            return *changed;
        }
        *waits = None;
        if is_waiting {
            return false;
        }
    }
    std::future::pending().await
}

/// Returns whether `agent_events` selects an event of a child for the watchers of the parent.
fn is_forwarded(events: AgentEvents, event: &Event) -> bool {
    let is_approval = matches!(event, Event::ApprovalAsked { .. } | Event::ApprovalGiven { .. });
    let is_of_tool = matches!(
        event,
        Event::CallOpened { .. }
            | Event::ArgumentsReceived { .. }
            | Event::CallWaiting { .. }
            | Event::CallStarted { .. }
            | Event::CallProgressed { .. }
            | Event::CallDiscarded { .. }
            | Event::CallEnded { .. }
            | Event::ServiceCallChanged { .. }
            | Event::LimitReached { .. }
    );
    match events {
        AgentEvents::None => is_approval,
        AgentEvents::Tools => is_approval || is_of_tool,
        AgentEvents::All => true,
    }
}

/// Stops a run of a child, and returns its report when it has ended. `None` if there is no such run.
async fn stop_and_report(
    child: &SessionHandle,
    run: &RunId,
) -> Result<Option<RunReport>, HostError> {
    let host_ref = &child.host_ref;
    let snapshot = |reply| SessionMessage::Snapshot { reply };
    let (snapshot, _) = host_ref.request(child.id(), snapshot).await?;
    if snapshot.current_run.is_some_and(|open| open.run_id == *run) {
        child.stop(StopMode::Now).await?;
        return stored_sessions::report(child.clone(), run.clone()).await.map(Some);
    }
    stored_sessions::read_finished_report(host_ref, child.id(), run).await
}

/// Stops the child of a call, if it runs. Does not wait: for a call that ends before its child.
pub(super) fn stop_child(host_ref: &HostRef, parent: &SessionId, idempotency_key: &str) {
    let id = child_session_id(parent, idempotency_key);
    let Some(run) = child_run_id(&id) else { return };
    let child = SessionHandle::new(id, host_ref.clone());
    task::detach(async move {
        match stop_and_report(&child, &run).await {
            Ok(_) | Err(HostError::NoSuchSession(_)) => {}
            Err(error) => tracing::error!(session = %child.id(), %error, "child_not_stopped"),
        }
    });
}

fn cancelled() -> ToolError {
    ToolError::new("the call was cancelled").permanent()
}

fn refused(key: &str, why: &str) -> ToolError {
    ToolError::new(format!("the agent was not run: {key}: {why}")).permanent()
}

/// Returns the result of a call whose child has ended: the answer, or an error with the reason, any error of the run,
/// and the text so far.
fn result(agent: &str, report: &RunReport) -> Result<ToolOutput, ToolError> {
    let has_answer = match report.run_end {
        RunEnd::Answered => true,
        RunEnd::MaxTurns => !report.text.trim().is_empty(),
        RunEnd::Stopped
        | RunEnd::Refused
        | RunEnd::Failed
        | RunEnd::TimedOut
        | RunEnd::Interrupted
        | RunEnd::AllToolsFailed
        | RunEnd::Budget
        | RunEnd::LoopDetected => false,
    };
    if has_answer {
        return Ok(match &report.output {
            Some(value) => ToolOutput::default().with_structured((**value).clone()),
            None if report.truncated => format!("{}{CUT_OFF}", report.text).into(),
            None => report.text.clone().into(),
        });
    }
    let mut message = format!("the agent {agent} ended as {}", report.run_end.as_str());
    if let Some(error) = &report.error {
        message.push_str(&format!(": {}: {}", error.code, error.message));
    }
    if !report.text.trim().is_empty() {
        message.push_str(&format!(". Its text so far: {}", report.text));
    }
    Err(ToolError::new(message).permanent())
}
