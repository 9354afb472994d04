//! The run in progress: what only a shell can have of it, and the actors of runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{ActorId, ActorRef, SpawnErr};
use tokio::sync::oneshot;

use super::SessionActorState;
use crate::config::RunOverrides;
use crate::record::Seq;
use crate::runtime::agent::Agent;
use crate::runtime::error::HostError;
use crate::runtime::gauge::CountGuard;
use crate::runtime::host_state::{HostState, ToolSources};
use crate::runtime::message::{
    AccumulatorMessage, AccumulatorRef, ReportResult, SessionMessage, ToolSupervisorRef,
};
use crate::runtime::report::CallReport;
use crate::runtime::run_actors::RunActors;
use crate::runtime::snapshot::PendingApproval;
use crate::runtime::tool_servers::FrozenTools;
use crate::telemetry::TracedRun;
use crate::tool::{Extensions, ToolSourceContext};
use crate::turn::{TurnRecord, TurnRules};
use crate::types::{Content, RequestKind, RunId, RunTrace, SessionId, TraceContext};

/// The caller of a run that waits in the queue.
pub(super) struct RunCaller {
    /// Receives the report. `None` if no caller waits.
    pub(super) report: Option<oneshot::Sender<ReportResult>>,
    /// Counts the input as queued.
    pub(super) _counted: Option<CountGuard>,
}

impl RunCaller {
    /// Returns true if a caller waits for the report.
    pub(super) fn is_awaited(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.is_closed())
    }

    /// Tells the caller that the run does not start.
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
        let has_other_form = matches!(kind, RequestKind::FinalAnswer | RequestKind::Output(_));
        std::mem::replace(&mut self.had_other_form, has_other_form) || has_other_form
    }

    /// Uses these tools of servers from now on.
    pub(super) fn use_tools(&mut self, frozen: Arc<FrozenTools>) {
        self.own = Arc::clone(&frozen.agent);
        self.current.1 = self.own.with_recorded(&self.current.0);
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

    /// Reads the host's tool sources. The next run has their tools.
    pub(super) fn read_tool_sources(&mut self, session: &SessionId, host: &HostState) {
        let ToolSources(sources) = &host.tool_sources;
        if sources.is_empty() {
            return;
        }
        let run = ToolSourceContext { session, agent: &self.configured.name };
        let tools = sources.iter().flat_map(|source| source.tools(&run)).collect();
        let base = self.frozen.as_ref().map_or(&self.configured, |frozen| &frozen.agent);
        self.own = Arc::new(base.with_tools(tools, &host.tool_limiters));
        self.current = (Arc::default(), Arc::clone(&self.own));
    }

    /// Returns the agent without overrides.
    pub(super) fn own(&self) -> &Arc<Agent> {
        &self.own
    }

    /// Returns the agent of the current run, or of the last one.
    pub(super) fn current(&self) -> &Arc<Agent> {
        &self.current.1
    }

    pub(super) fn set_current(&mut self, overrides: Arc<RunOverrides>, agent: Arc<Agent>) {
        self.current = (overrides, agent);
    }

    /// Makes the agent with these overrides the current one.
    pub(super) fn use_for(&mut self, overrides: &Arc<RunOverrides>) {
        if self.current.0 != *overrides {
            self.current = (Arc::clone(overrides), self.own.with_recorded(overrides));
        }
    }

    /// Returns the rules of a run with these overrides.
    pub(super) fn rules(&self, overrides: &RunOverrides) -> Arc<TurnRules> {
        let current = &*self.current.0;
        if std::ptr::eq(current, overrides) || current == overrides {
            return Arc::clone(&self.current.1.rules);
        }
        Arc::clone(&self.own.with_recorded(overrides).rules)
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
    /// The actors that have to end before others replace them. `None` while all is well.
    pub(super) recovering: Option<HashSet<ActorId>>,
    /// The last record before the current turn.
    pub(super) turn_after: Seq,
    /// The approvals that the current turn waits for.
    pub(super) approvals: Vec<PendingApproval>,
    /// The turn continues from the journal, and its accumulator has not reported its approvals.
    pub(super) approvals_unknown: bool,
    /// The reports of all calls, kept only while a caller waits for them.
    pub(super) calls: Vec<CallReport>,
    pub(super) report: Option<oneshot::Sender<ReportResult>>,
}

impl ActiveRun {
    pub(super) fn new(
        id: RunId,
        trace: Option<Arc<RunTrace>>,
        extensions: Extensions,
        turn_after: Seq,
        report: Option<oneshot::Sender<ReportResult>>,
    ) -> Self {
        Self {
            id,
            trace,
            extensions,
            recoveries: 0,
            recovering: None,
            turn_after,
            approvals: Vec::new(),
            approvals_unknown: false,
            calls: Vec::new(),
            report,
        }
    }

    /// Returns true if a caller waits for the report.
    pub(super) fn is_awaited(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.is_closed())
    }

    pub(super) fn turn_committed(&mut self, record: TurnRecord) {
        self.approvals.clear();
        self.approvals_unknown = false;
        if self.is_awaited() {
            let usage = Some(record.usage);
            let report = |result| CallReport::new(self.id.clone(), usage, result);
            self.calls.extend(record.results.into_iter().map(report));
        }
    }

    /// Tells the caller that the run has no report.
    pub(super) fn fail(self, reason: HostError) {
        if let Some(report) = self.report {
            // The caller may be gone.
            let _ = report.send(Err(reason));
        }
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

impl SessionActorState {
    /// Spawns the actors of runs if there are none.
    pub(super) async fn spawn_actors(
        &mut self,
        myself: &ActorRef<SessionMessage>,
    ) -> Result<(), SpawnErr> {
        if self.actors.current.is_some() {
            return Ok(());
        }
        self.spawn_actors_with(myself, None).await
    }

    /// Spawns the actors of runs. A given tool supervisor is used again.
    pub(super) async fn spawn_actors_with(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        supervisor: Option<ToolSupervisorRef>,
    ) -> Result<(), SpawnErr> {
        self.actors.epoch += 1;
        let Self { actors: SessionActors { epoch, .. }, log, publisher, link, .. } = &*self;
        let parent = self.session.parent();
        let actors =
            RunActors::spawn(myself, *epoch, log, publisher, link, parent, supervisor).await?;
        self.actors.current = Some(actors);
        self.activity.has_actors.store(true, Ordering::Release);
        Ok(())
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
        self.link.shared.telemetry.traces().begin(TracedRun {
            session: &self.id,
            run: id,
            agent: &agent.name,
            model: &agent.rules.models.first().origin.model,
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

    /// Returns true while the actors of the run are being replaced.
    pub(super) fn is_recovering(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.recovering.is_some())
    }
}
