//! The shells: the only folder that names ractor.
//!
//! A [`Host`] supervises sessions. A session owns its history and, for a run, three actors: the
//! reader of the model's responses, the owner of the turn, and the supervisor of the tool calls
//! with one actor per call. They move values and decide nothing; the machines in `turn` do.
//!
//! No actor awaits long work in its `handle`, so that a stop always gets through; the one
//! exception is the actor of a call, whose `handle` is the tool. When one of a run's three actors
//! dies, the session ends the other two and goes on from its records.

mod accumulator;
mod agent;
mod blocking;
mod caps;
mod error;
mod gate;
mod gauge;
mod handle;
mod host;
mod ids;
mod message;
pub mod model;
mod models;
mod places;
mod publish;
mod report;
mod request;
mod rules;
mod session;
mod shared;
mod snapshot;
mod stream;
mod supervisor;
mod task;
#[cfg(test)]
mod tests;
mod tool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::rpc::CallResult;
use ractor::{Actor, ActorRef, ActorStatus};
use serde_json::Value;
use tokio::time::timeout;

pub use crate::event::StatsReport;
pub use crate::turn::BreakerState;
pub use crate::types::SessionState;
pub use error::HostError;
pub use gate::ModelStatus;
pub use handle::{ReportFuture, SessionHandle, SessionSummary, StartedRun};
pub use report::{CallReport, RunReport};
pub use request::RunRequest;
pub use rules::AgentRules;
pub use snapshot::{CurrentRun, PendingApproval, QueuedInput, SessionSnapshot};

use crate::config::Config;
use crate::context::Seed;
use crate::journal::{Journal, MemoryJournal};
use crate::telemetry::Telemetry;
use crate::tool::Registry;
use crate::types::SessionId;
use agent::Agent;
use blocking::{BLOCKING_THREADS_MAX, BlockingPool};
use caps::Caps;
use gauge::Gauges;
use host::HostActor;
use message::{HostMessage, SessionMessage};
use models::Model;
use shared::Shared;

/// How long a cancelled run, and then the host itself, may take to end.
const END_MAX: Duration = Duration::from_secs(5);

/// Many sessions in one process. Cloning is cheap, and all clones are the same host; dropping the
/// last one ends it at once.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    actor: ActorRef<HostMessage>,
    shutdown_grace: Duration,
    cancel_grace: Duration,
}

/// What a host is made of.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// What it is told.
    pub config: Config,
    /// The tools that its agents may be given.
    pub tools: Registry,
}

/// What a session is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSession {
    /// The agent's name; `default` or the only one if none is given.
    pub agent: Option<String>,
    /// The session's id; a new one if none is given.
    pub id: Option<String>,
    /// What its history begins with, in the Chat Completions form that histories have. If the
    /// last message makes calls, the first run begins by running them.
    pub messages: Vec<Value>,
}

/// What is alive in a host. All but `sessions` and `abandoned_threads` come back to 0 when no run
/// goes on and the tools of the last ones have had their grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Open sessions.
    pub sessions: usize,
    /// Runs that go on.
    pub runs: usize,
    /// Actors of runs: readers, accumulators, supervisors and calls.
    pub actors: usize,
    /// Tasks of runs: read loops and timers.
    pub tasks: usize,
    /// Calls whose tool has not come back.
    pub tools_running: usize,
    /// Calls that wait for a place of their tool.
    pub calls_waiting: usize,
    /// Threads of blocking tools that were given up and have not come back.
    pub abandoned_threads: usize,
}

impl Host {
    /// Starts a host. The configuration's overrides of tools are applied here.
    ///
    /// # Errors
    /// When a configured model cannot be asked.
    pub async fn start(setup: HostSetup) -> Result<Self, HostError> {
        Self::start_on(setup, Arc::new(MemoryJournal::new())).await
    }

    async fn start_on(setup: HostSetup, journal: Arc<dyn Journal>) -> Result<Self, HostError> {
        let HostSetup { config, mut tools } = setup;
        tools.apply(&config.tools);
        let names: Vec<String> = tools.iter().map(|(name, _)| name.to_owned()).collect();
        let gauges = Gauges::default();
        let caps = Caps::new(&tools, &gauges.waiting);
        let telemetry = Telemetry::new(&names);
        let models = Arc::new(Model::all(&config, &telemetry)?);
        let agents = Agent::all(&config, tools, &models)?;
        let cancel_grace = agents.values().map(|agent| agent.limits().cancel_grace).max();
        let shared = Arc::new(Shared {
            agents,
            journal,
            telemetry,
            models,
            pool: BlockingPool::new(BLOCKING_THREADS_MAX, gauges.abandoned.clone()),
            caps,
            gauges,
            runs_max: config.host.max_concurrent_runs,
            sessions_max: config.host.max_sessions,
            queued_inputs_max: config.host.max_queued_inputs,
            closing: AtomicBool::new(false),
            index: parking_lot::Mutex::default(),
        });
        let (actor, _) = Actor::spawn(None, HostActor, Arc::clone(&shared))
            .await
            .map_err(|error| HostError::Config(error.to_string()))?;
        let shutdown_grace = config.host.shutdown_grace;
        let cancel_grace = cancel_grace.unwrap_or_default();
        Ok(Self { inner: Arc::new(Inner { shared, actor, shutdown_grace, cancel_grace }) })
    }

    /// Opens a session.
    ///
    /// # Errors
    /// When there is no such agent, the id is taken or none, the messages are no history, or the
    /// host is full or shutting down.
    pub async fn open_session(&self, open: OpenSession) -> Result<SessionHandle, HostError> {
        let shared = &self.inner.shared;
        let agent = self.agent(open.agent)?;
        let id = match open.id {
            Some(text) => SessionId::parse(&text).ok(),
            None => ids::session_id(),
        };
        let id = id.ok_or(HostError::InvalidSessionId)?;
        let messages = open.messages;
        Seed::parse(&messages)?;
        let held = shared.reserve(&id)?;
        let place = held;
        let message = {
            let id = id.clone();
            |reply| HostMessage::OpenSession { id, agent, messages, place, reply }
        };
        match self.inner.actor.call(message, None).await {
            Ok(CallResult::Success(opened)) => {
                opened?;
                shared.session(&id).ok_or(HostError::SessionClosed)
            }
            Ok(CallResult::Timeout | CallResult::SenderError) | Err(_) => {
                shared.release(&id);
                Err(HostError::ShuttingDown)
            }
        }
    }

    /// An open session by its id.
    #[must_use]
    pub fn session(&self, id: &SessionId) -> Option<SessionHandle> {
        self.inner.shared.session(id)
    }

    /// The open sessions, by id.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionSummary> {
        self.inner.shared.sessions().iter().map(SessionSummary::from).collect()
    }

    /// Sets the metrics of what there is now, as is done every 5 seconds as well.
    pub fn bring_metrics_up_to_date(&self) {
        self.inner.shared.show_counts();
    }

    /// Its metrics.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.inner.shared.telemetry
    }

    /// What is known of its configured models now, by name.
    #[must_use]
    pub fn models(&self) -> Vec<ModelStatus> {
        self.inner.shared.models.values().map(|model| model.status()).collect()
    }

    /// Whether it takes sessions and runs. That a model does not answer changes nothing of that.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let running = matches!(
            self.inner.actor.get_status(),
            ActorStatus::Starting | ActorStatus::Running | ActorStatus::Upgrading
        );
        running && !self.inner.shared.is_closing()
    }

    /// What is alive in it.
    #[must_use]
    pub fn counts(&self) -> HostCounts {
        let gauges = &self.inner.shared.gauges;
        HostCounts {
            sessions: gauges.sessions.count(),
            runs: gauges.runs.count(),
            actors: gauges.actors.count(),
            tasks: gauges.tasks.count(),
            tools_running: gauges.tools.count(),
            calls_waiting: gauges.waiting.count(),
            abandoned_threads: gauges.abandoned.count(),
        }
    }

    /// Ends the host: takes no more runs, lets the turns that run finish within
    /// `shutdown_grace`, answers the rest as cancelled, gives tools their grace, and ends every
    /// session. All runs that this ends are `interrupted`.
    pub async fn shutdown(&self) {
        let Inner { shared, actor, shutdown_grace, cancel_grace } = &*self.inner;
        shared.closing.store(true, Ordering::SeqCst);
        self.interrupt(false);
        if timeout(*shutdown_grace, shared.gauges.runs.emptied()).await.is_err() {
            self.interrupt(true);
            let _ = timeout(END_MAX, shared.gauges.runs.emptied()).await;
        }
        let _ = timeout(*cancel_grace + END_MAX, shared.gauges.tools.emptied()).await;
        // One that is gone already has been shut down before.
        let _ = actor.stop_and_wait(None, Some(END_MAX)).await;
        let _ = timeout(END_MAX, shared.gauges.sessions.emptied()).await;
        shared.index.lock().clear();
        shared.show_counts();
    }

    fn interrupt(&self, now: bool) {
        for session in self.inner.shared.sessions() {
            // A session that is gone has no run.
            let _ = session.actor().cast(SessionMessage::Interrupt { now });
        }
    }

    fn agent(&self, name: Option<String>) -> Result<Arc<Agent>, HostError> {
        let agents = &self.inner.shared.agents;
        let found = match &name {
            Some(name) => agents.get(name),
            None => agents
                .get(crate::config::DEFAULT_AGENT)
                .or_else(|| agents.values().next().filter(|_| agents.len() == 1)),
        };
        let name = name.unwrap_or_else(|| crate::config::DEFAULT_AGENT.to_owned());
        found.map(Arc::clone).ok_or(HostError::UnknownAgent(name))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Its end kills the sessions, and theirs what runs in them.
        self.actor.stop(None);
    }
}
