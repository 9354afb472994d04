//! The run in progress: the data of it that the machine does not have, its callers, its end, and the
//! actors of runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{ActorCell, ActorId, ActorRef};
use tokio::sync::oneshot;

use super::SessionActor;
use crate::journal::SessionLog;
use crate::runtime::accumulator::{AccumulatorHandler, AccumulatorSetup};
use crate::runtime::agent::Agent;
use crate::runtime::catalog::ToolSources;
use crate::runtime::error::HostError;
use crate::runtime::gauge::CountGuard;
use crate::runtime::hooks::HookInvocation;
use crate::runtime::host_ref::{HostRef, HostState};
use crate::runtime::message::{
    AccumulatorMessage, AccumulatorRef, ReportResult, SessionMessage, StreamMessage,
    ToolSupervisorMessage, ToolSupervisorRef,
};
use crate::runtime::publish::Publisher;
use crate::runtime::references::SessionReferences;
use crate::runtime::report::{CallReport, Messages, RunReport};
use crate::runtime::sent_requests::SessionRequests;
use crate::runtime::stream::{StreamHandler, StreamSetup};
use crate::runtime::supervision::{has_ended, spawn_linked};
use crate::runtime::supervisor::{ToolSupervisorHandler, ToolSupervisorSetup};
use crate::runtime::task;
use crate::runtime::tool_servers::FrozenTools;
use crate::telemetry::TracedRun;
use callsheet_machines::session::RunResult;
use callsheet_machines::turn::{CommittedTurn, RunRules};
use callsheet_tools::{Extensions, ToolSourceContext};
use callsheet_values::config::RunOverrides;
use callsheet_values::record::Seq;
use callsheet_values::types::{
    Content, FinishReason, HookPoint, ParentCall, RequestKind, RunId, RunTrace, SessionId,
    TraceContext,
};

/// The caller of a run that has not started.
pub(super) struct RunCaller {
    /// Receives the report. `None` if no caller waits.
    pub(super) report: Option<oneshot::Sender<ReportResult>>,
    /// Counts the input as queued. `None` if the run starts at once.
    pub(super) _counted: Option<CountGuard>,
}

impl RunCaller {
    /// Returns true if a caller waits for the report.
    pub(super) fn is_awaited(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.is_closed())
    }

    /// Sends the caller an error instead of the report.
    pub(super) fn fail(&mut self, reason: HostError) {
        if let Some(report) = self.report.take() {
            // The caller may be gone.
            let _ = report.send(Err(reason));
        }
    }
}

/// The agent of a session, and the agent with the overrides of the current run.
#[derive(Clone)]
pub(super) struct RunAgents {
    /// The agent without the tools of servers and sources.
    configured: Arc<Agent>,
    /// The tools of servers that the session has frozen.
    frozen: Option<Arc<FrozenTools>>,
    /// The agent with the tools of servers and of the host's tool sources.
    own: Arc<Agent>,
    /// The overrides that were used last, and the agent with them.
    current: (Arc<RunOverrides>, Arc<Agent>),
    /// The last request had another form than others, because of the answer that it asked for.
    had_other_form: bool,
}

impl RunAgents {
    pub(super) fn new(own: Arc<Agent>) -> Self {
        let current = (Arc::default(), Arc::clone(&own));
        let had_other_form = false;
        Self { configured: Arc::clone(&own), frozen: None, own, current, had_other_form }
    }

    /// Notes the form of a request. Returns true if it, or the request before, may offer other tools than the
    /// agent, because of the answer that it asks for.
    pub(super) fn note_form(&mut self, kind: RequestKind) -> bool {
        let has_other_form = matches!(
            kind,
            RequestKind::FinalAnswer | RequestKind::FinalText | RequestKind::Output(_)
        );
        std::mem::replace(&mut self.had_other_form, has_other_form) || has_other_form
    }

    /// Uses these tools of servers from now on.
    pub(super) fn use_tools(&mut self, frozen: Arc<FrozenTools>) {
        self.own = Arc::clone(&frozen.agent);
        self.current.1 = self.own.with_recorded_overrides(&self.current.0);
        self.frozen = Some(frozen);
    }

    /// Returns the tools of servers that the session has frozen.
    pub(super) fn frozen(&self) -> Option<&Arc<FrozenTools>> {
        self.frozen.as_ref()
    }

    /// Returns the agent without the tools of servers and sources.
    pub(super) fn configured(&self) -> &Arc<Agent> {
        &self.configured
    }

    /// Reads the host's tool sources, if there are any. The next run has their tools. The current agent then has no
    /// overrides, until [`Self::use_for`] or [`Self::set_current`] sets them.
    pub(super) fn read_tool_sources(&mut self, session: &SessionId, host: &HostState) {
        let ToolSources(sources) = &host.catalog.tool_sources;
        if sources.is_empty() {
            return;
        }
        let run = ToolSourceContext { session, agent: &self.configured.name };
        let tools = sources.iter().flat_map(|source| source.tools(&run)).collect();
        let base = self.frozen.as_ref().map_or(&self.configured, |frozen| &frozen.agent);
        self.own = Arc::new(base.with_tools(tools, &host.catalog.tool_limiters));
        self.current = (Arc::default(), Arc::clone(&self.own));
    }

    /// Returns the agent without overrides.
    pub(super) fn own(&self) -> &Arc<Agent> {
        &self.own
    }

    /// Returns the agent of the current run. Between runs, it may still have the overrides of the last one.
    pub(super) fn current(&self) -> &Arc<Agent> {
        &self.current.1
    }

    pub(super) fn set_current(&mut self, overrides: Arc<RunOverrides>, agent: Arc<Agent>) {
        self.current = (overrides, agent);
    }

    /// Makes the agent with these overrides the current one.
    pub(super) fn use_for(&mut self, overrides: &Arc<RunOverrides>) {
        if self.current.0 != *overrides {
            self.current = (Arc::clone(overrides), self.own.with_recorded_overrides(overrides));
        }
    }

    /// Returns the rules of a run with these overrides.
    pub(super) fn rules(&self, overrides: &RunOverrides) -> Arc<RunRules> {
        let current = &*self.current.0;
        if std::ptr::eq(current, overrides) || current == overrides {
            return Arc::clone(&self.current.1.rules);
        }
        Arc::clone(&self.own.with_recorded_overrides(overrides).rules)
    }
}

/// The run in progress, without its decisions, which belong to the session machine.
pub(super) struct ActiveRun {
    pub(super) id: RunId,
    /// The trace context that the run's requests and calls carry.
    pub(super) trace: Option<Arc<RunTrace>>,
    /// The values of the embedding program for the run's tools.
    pub(super) extensions: Extensions,
    /// The number of times that the run's actors were replaced.
    pub(super) recoveries: u32,
    /// The actors that have to end before others replace them. `None` unless actors are being replaced.
    pub(super) recovering: Option<HashSet<ActorId>>,
    /// The last record before the current turn.
    pub(super) seq_before_turn: Seq,
    /// The current turn waits only for people, and none of its calls runs.
    pub(super) is_resumable: bool,
    /// The current turn is cancelled.
    pub(super) is_turn_cancelled: bool,
    /// The reports of all calls, kept only while a caller waits for them.
    pub(super) calls: Vec<CallReport>,
    pub(super) report: Option<oneshot::Sender<ReportResult>>,
}

impl ActiveRun {
    pub(super) fn new(
        id: RunId,
        trace: Option<Arc<RunTrace>>,
        extensions: Extensions,
        seq_before_turn: Seq,
        report: Option<oneshot::Sender<ReportResult>>,
    ) -> Self {
        Self {
            id,
            trace,
            extensions,
            recoveries: 0,
            recovering: None,
            seq_before_turn,
            is_resumable: false,
            is_turn_cancelled: false,
            calls: Vec::new(),
            report,
        }
    }

    /// Returns true if a caller waits for the report.
    pub(super) fn is_awaited(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.is_closed())
    }

    pub(super) fn turn_committed(&mut self, record: CommittedTurn) {
        self.is_resumable = false;
        if self.is_awaited() {
            let usage = Some(record.usage);
            let report = |result| CallReport::new(self.id.clone(), usage, result);
            self.calls.extend(record.results.into_iter().map(report));
        }
    }

    /// Notifies the caller that the run has no report.
    pub(super) fn fail(self, reason: HostError) {
        if let Some(report) = self.report {
            // The caller may be gone.
            let _ = report.send(Err(reason));
        }
    }
}

/// The actors of a run. They stay for the next run until the session has been idle for some seconds.
pub(super) struct RunActors {
    stream: ActorRef<StreamMessage>,
    accumulator: AccumulatorRef,
    supervisor: ToolSupervisorRef,
}

impl RunActors {
    /// Spawns the actors as children of the session's actor. A given tool supervisor, which has
    /// survived its accumulator, is used again. Returns `None` if the session's actor is ending.
    fn spawn(
        session: &ActorRef<SessionMessage>,
        epoch: u64,
        log: &Arc<SessionLog>,
        publisher: &Publisher,
        host_ref: &HostRef,
        parent: Option<&Arc<ParentCall>>,
        supervisor: Option<ToolSupervisorRef>,
    ) -> Option<Self> {
        let host = &host_ref.shared;
        let gauges = &host.gauges;
        let references = Arc::new(SessionReferences {
            id: publisher.session().clone(),
            session: session.clone(),
            log: Arc::clone(log),
            host_ref: host_ref.clone(),
        });
        let requests = host.sent_requests.as_ref().map(|all| SessionRequests {
            session: publisher.session().clone(),
            all: Arc::clone(all),
        });
        let journal = Arc::clone(&host.journal);
        let setup =
            StreamSetup { session: session.get_id(), gauges: gauges.clone(), journal, requests };
        let stream = spawn_linked(session, StreamHandler, setup).ok()?;
        let supervisor = match supervisor {
            Some(supervisor) => supervisor,
            None => {
                let setup = ToolSupervisorSetup {
                    session: publisher.session().clone(),
                    session_actor: session.get_id(),
                    publisher: publisher.clone(),
                    pool: host.pool.clone(),
                    tool_limiters: host.catalog.tool_limiters.clone(),
                    gauges: gauges.clone(),
                    secrets: host.catalog.secrets.clone(),
                    references: Arc::clone(&references),
                    host_ref: host_ref.clone(),
                    parent: parent.cloned(),
                };
                spawn_linked(session, ToolSupervisorHandler, setup).ok()?
            }
        };
        let setup = AccumulatorSetup {
            epoch,
            session: session.clone(),
            stream: stream.clone(),
            supervisor: supervisor.clone(),
            log: Arc::clone(log),
            references,
            publisher: publisher.clone(),
            tool_limiters: host.catalog.tool_limiters.clone(),
            gauges: gauges.clone(),
            lag_clock: host.lag_clock.clone(),
            parent: parent.cloned(),
            suspends_children: host.catalog.on_shutdown.leaves_runs(),
        };
        let accumulator = spawn_linked(session, AccumulatorHandler, setup).ok()?;
        Some(Self { stream, accumulator, supervisor })
    }

    /// Returns the stream actor, the accumulator and the tool supervisor.
    pub(super) fn cells(&self) -> [ActorCell; 3] {
        [self.stream.get_cell(), self.accumulator.get_cell(), self.supervisor.get_cell()]
    }

    /// Returns the tool supervisor if it is alive.
    pub(super) fn living_supervisor(&self) -> Option<ToolSupervisorRef> {
        (!has_ended(&self.supervisor)).then(|| self.supervisor.clone())
    }

    /// Returns true if no tool runs, also none that was cancelled.
    pub(super) fn run_no_tool(&self) -> bool {
        // A child that has ended is unlinked after its supervisor has received that.
        self.supervisor.get_children().iter().all(has_ended)
    }

    /// Ends the stream actor, and the tool supervisor after the last call. Calls that still run are
    /// cancelled and have their grace period. Returns the supervisor and the accumulator, which
    /// receives late outcomes until the supervisor has ended.
    fn finish(self) -> Option<(ActorId, AccumulatorRef)> {
        let Self { stream, accumulator, supervisor } = self;
        stream.stop(None);
        if supervisor.cast(ToolSupervisorMessage::Finish).is_err() {
            accumulator.stop(None);
            return None;
        }
        Some((supervisor.get_id(), accumulator))
    }
}

/// The actors of a session's runs.
#[derive(Default)]
pub(super) struct SessionActors {
    /// Those of the run in progress, or those that wait for the next run.
    pub(super) current: Option<RunActors>,
    /// The number of the current set. Messages of earlier sets are ignored.
    pub(super) epoch: u64,
    /// Released actors that have not ended: tool supervisors whose last tools still run, each with its
    /// accumulator, and then the accumulators.
    pub(super) ending: HashMap<ActorId, Option<AccumulatorRef>>,
}

impl SessionActor {
    /// Spawns the actors of runs if there are none.
    pub(super) fn spawn_actors(&mut self, myself: &ActorRef<SessionMessage>) {
        if self.actors.current.is_none() {
            self.spawn_actors_with(myself, None);
        }
    }

    /// Spawns the actors of runs. A given tool supervisor is used again.
    pub(super) fn spawn_actors_with(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        supervisor: Option<ToolSupervisorRef>,
    ) {
        self.actors.epoch += 1;
        let Self { actors: SessionActors { epoch, .. }, log, publisher, host_ref, .. } = &*self;
        let parent = self.session.parent();
        let actors = RunActors::spawn(myself, *epoch, log, publisher, host_ref, parent, supervisor);
        self.activity.has_actors.store(actors.is_some(), Ordering::Release);
        self.actors.current = actors;
    }

    /// Ends the actors of runs. Tools that still run are cancelled and have their grace period; the
    /// accumulator and the tool supervisor end with the last of them.
    pub(super) fn release_actors(&mut self) {
        if let Some(actors) = self.forget_actors() {
            let released = actors.finish();
            self.actors.ending.extend(released.map(|(id, accumulator)| (id, Some(accumulator))));
        }
    }

    /// Removes the actors of runs. The next run gets new ones.
    pub(super) fn forget_actors(&mut self) -> Option<RunActors> {
        self.activity.has_actors.store(false, Ordering::Release);
        self.actors.current.take()
    }

    /// Begins the trace of a run that has been in progress for `elapsed`.
    pub(super) fn begin_trace(
        &self,
        id: &RunId,
        given: Option<TraceContext>,
        began: u64,
        elapsed: Duration,
        input: Option<&Content>,
    ) -> Option<Arc<RunTrace>> {
        let agent = self.agents.current();
        self.host_ref.shared.telemetry.traces().begin(TracedRun {
            session: &self.id,
            run: id,
            agent: &agent.name,
            model: &agent.rules.models.first().displayed_name,
            given,
            began,
            elapsed,
            input,
        })
    }

    /// Sends a message to the accumulator. If it has died, its successor receives the turn in its
    /// present state.
    pub(super) fn send_to_accumulator(&self, message: AccumulatorMessage) {
        if let Some(actors) = &self.actors.current {
            let _ = actors.accumulator.cast(message);
        }
    }

    /// Returns the accumulator, if the run has actors.
    pub(super) fn accumulator(&self) -> Option<AccumulatorRef> {
        self.actors.current.as_ref().map(|actors| actors.accumulator.clone())
    }

    /// Returns true while the actors of the run are being replaced.
    pub(super) fn is_recovering(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.recovering.is_some())
    }

    /// Handles the end of a run: notifies hooks, and sends the report if a caller waits for it.
    pub(super) fn end_run(&mut self, summary: RunResult) {
        // The records of the last turn are not needed any more.
        let last = self.log.last_seq();
        self.log.trim_recent(last);
        self.host_ref.shared.update_counts();
        self.host_ref.shared.agent_trees.remove_run(&self.id, &summary.run_id);
        let durable = self.log.durable_seq();
        self.ended_runs.push((summary.run_id.clone(), last));
        self.ended_runs.retain(|(_, end)| *end > durable);
        self.leave_inbox();
        let Some(run) = self.run.take() else { return };
        self.notify_run_end_hooks(&summary);
        if !run.is_awaited() {
            return;
        }
        let ActiveRun { calls, report, .. } = *run;
        let RunResult {
            run_id,
            end,
            text,
            output,
            error,
            finish_reason,
            stats,
            began,
            first_message,
            is_compacted,
        } = summary;
        if is_compacted {
            // The caller reads the report from the journal, which has all messages.
            if let Some(report) = report {
                let _ = report.send(Ok((None, last)));
            }
            return;
        }
        let report_of_run = RunReport {
            run_id,
            run_end: end,
            text,
            output,
            finish_reason: finish_reason.as_ref().map(|finish| finish.kind),
            truncated: finish_reason.as_ref().is_some_and(FinishReason::is_truncated),
            refusal: finish_reason.and_then(|finish| finish.refusal),
            error,
            started_at: began,
            ended_at: self.last_run_end,
            turns: stats.turns,
            calls,
            stats: (&stats).into(),
            exact: stats,
            messages: Messages {
                all: self.session.history().messages().clone(),
                first_of_run: first_message,
            },
        };
        if let Some(report) = report {
            // The caller may be gone.
            let _ = report.send(Ok((Some(report_of_run), last)));
        }
    }

    /// Notifies hooks of the end of a run when its record is durable. Only the shutdown of the host waits for
    /// them.
    fn notify_run_end_hooks(&self, summary: &RunResult) {
        let agent = self.agents.current();
        if !agent.hooks.iter().any(|hook| hook.rule.on == HookPoint::RunEnd) {
            return;
        }
        let position = (&self.id, self.session.turn());
        let parent = self.session.parent().map(|parent| &**parent);
        let note = HookInvocation::of_run_end(
            summary,
            position,
            (agent, parent),
            &self.host_ref.shared.telemetry,
        );
        let held = self.host_ref.shared.gauges.run_end_hooks.increment();
        let (log, last) = (Arc::clone(&self.log), self.log.last_seq());
        task::detach(async move {
            let _held = held;
            // If the record is lost, the run has not ended: it gets another end.
            if log.wait_durable(last).await.is_ok() {
                note.ask().await;
            }
        });
    }

    /// Drops the callers and the extensions of runs that have ended or were refused.
    pub(super) fn drop_ended_callers(&mut self) {
        let session = &self.session;
        self.callers.runs.retain(|id, _| session.has_run(id));
        self.host_ref.shared.extensions.retain_runs(&self.id, |id| session.has_run(id));
        self.host_ref.shared.update_counts();
    }

    /// Sends an error to all callers of queued runs, because this actor ends. A later actor starts the runs whose
    /// inputs are stored.
    pub(super) fn fail_callers(&mut self, reason: &HostError) {
        for (_, mut caller) in self.callers.runs.drain() {
            caller.fail(reason.clone());
        }
        self.host_ref.shared.update_counts();
    }
}
