//! The host: its public interface, the actors of its sessions, the clients of models, and the limits.
//!
//! A [`Host`] supervises sessions. A session owns its history and, for its runs, three actors. The
//! stream actor reads the model's responses. The accumulator owns the turn. The tool supervisor runs
//! the tool calls, each of which is an actor. Actors only pass values; the state machines in `turn`
//! and `session` decide.
//!
//! No actor awaits long work in a handler, so that it handles a stop at once. A tool's actor is the
//! exception: it runs the tool in its start. When the accumulator dies, the session resumes the turn
//! from its records, and the turn attaches to the calls that still run. When the stream actor or the
//! tool supervisor dies, the session ends the other two and continues as after a crash of the host. After
//! `RUN_RECOVERIES_MAX` replacements in a run, the next death ends the run (`session/recovery`). When the
//! actor of a tool dies, its call ends with an error (`supervisor`).
//!
//! Look a rule up here:
//!
//! | rule | file |
//! | --- | --- |
//! | hibernation (`idle_after`) | `session/hibernate`; all that wakes a session: `host_ref` |
//! | expiry of an approval while its session hibernates | `maintenance` |
//! | deletion of idle sessions for good (`keep_idle`; retention, TTL), once they have left memory; deletion on request | `maintenance`; `session/end`, `stored_sessions`, `removals` |
//! | two hosts of one program: one journal of the program's own, one recorder with the same labels | `claims` |
//! | crash recovery, restart of the host: unfinished runs (`resume`) | `recovery`; outcomes of their calls: `turn::resume`; those of a restored copy, which wait: `journal::restored`; runs that take the host down: `crash_loop` |
//! | supervision: death and restart of the accumulator or of another actor of a run, `RUN_RECOVERIES_MAX` | `session/recovery` |
//! | supervision: death (panic) of a session's actor; restart, `SESSION_RESTARTS_MAX`, requests that it had not answered | `host_actor` (`handle_session_death`), `host_ref` (`finish_restart`, `request`) |
//! | failure of the journal | `session/end` |
//! | graceful shutdown (`shutdown_grace`, SIGTERM): drains running turns, then interrupts them. A further step has 5 s (`END_MAX`), except: tools have `cancel_grace` more, servers of tools 10 s; hooks of the ends of runs have only their own time limits, and the journal (`learnt.store`, `close`) has none | [`Host::shutdown`]; servers of tools: `tool_servers` (`CLOSE_TIMEOUT`); queued inputs: `session::runs` (`record_interrupted_run`); the HTTP server: `server::ServerHandle` |
//! | sub-agents (agents as tools): what a child inherits, `max_depth`, `max_children`, `agent_events`, how a child that failed becomes an error of the call (`result`) | `child_sessions`, `agent_trees` (also orphans: children whose parent has no unfinished run); their budget and cancellation: `turn::agent_calls` |
//! | MCP: the list of tools changes during a run (`list_changed`): announced, not adopted | `server_connections` (`notify_list_changed`), `session/tools` (`server_tools_changed`, `refresh_tools`) |
//! | reconnect with `Last-Event-ID`, replay of past events, `unknown_event_id` | `session_events` |
//! | slow subscribers | `telemetry::feed`; capacity of their queues: `publish` |
//! | cancellation of a tool, `cancel_grace`, kill; panic of a tool, outcome of a call whose actor died | `supervisor` |
//! | retry of a failed tool call: attempts (`retries`), backoff, the wait that a tool asks for | `tool` |
//! | concurrency of a tool (`max_concurrent`) and of a model (`max_concurrent_requests`), fairness between sessions (no starvation) | `tool_limiter`, `model_limiter`, `fair_semaphore` |
//! | rate limit of a tool (`rate`) | `tool_limiter`; rate limits of a service (HTTP 429): `turn::retry` |
//! | circuit breaker of a model, of a tool | `model_limiter`, `tool_limiter`; both with the machine `turn::breaker` |
//! | timeouts of a request: `first_event_timeout`, `idle_timeout`, `answer_timeout`; a stream that stalls (no bytes, pings only) | `model/exchange`, `model/deadline`; a model of the program: `model/source` |
//! | errors of a provider that are retried | `types::response` (`is_transient`); number of attempts, backoff, `Retry-After`: `turn::retry` |
//! | kind and status of a provider's error | `model/error` (connection, headers), `wire::error` (body, error in a stream) |
//!
//! | file | content |
//! | --- | --- |
//! | `supervision` | what an actor is: its mailbox, its supervisor, its end; spawning and calling actors |
//! | `host_actor` | the actor that supervises all sessions |
//! | `host_ref`, `catalog`, `index` | the state that the sessions of a host share, finding and waking a session; what was configured; which sessions are awake, waking or being deleted |
//! | `session/`, `session_start` | the session actor, with the actors of its runs; the values that it starts with |
//! | `opening`, `child_sessions`, `agent_trees`, `approval_inbox` | opening a session; the calls of agents; the children of sessions and of open runs; what waits for people in all sessions |
//! | `handle`, `report`, `snapshot`, `list`, `run_list`, `extensions` | the public interface of a session, and its parameters and results; values of the embedding program for tools |
//! | `session_events`, `run_feed`, `run_events`, `publish` | the events of a session, past and live; those of one run up to its end, and their form for a program; publishing to watchers, metrics and logs |
//! | `host_events`, `session_states` | the events of many sessions as one stream; the changes of the states of all sessions |
//! | `message` | every message between actors |
//! | `accumulator`, `stream` | the owner of the turn; the reader of the model's responses |
//! | `supervisor`, `tool`, `blocking` | the supervisor of tool calls; one call with its attempts; the threads of tools that block |
//! | `agent`, `models`, `model/` | a configured agent; the configured models; the client of one model |
//! | `model_limiter`, `tool_limiter`, `fair_semaphore` | limits and circuit breakers of models and of tools; the semaphore of both |
//! | `model_tokens` | learnt windows and token ratios of models, in memory and in the journal |
//! | `set_aside_tools` | tools that the services of models refuse, in memory and in the journal |
//! | `client_call`, `hooks`, `references` | the results of calls that the client runs; asking hooks; the values of references |
//! | `call_by_hand` | one tool call without a run of a client (`callsheet tools call`, `POST /v1/tools/{name}/call`) |
//! | `known_histories` | the histories that clients hold, by their hashes: how a client without a session is recognised |
//! | `sent_requests` | the requests to models that are kept for the console |
//! | `tool_servers`, `server_connections` | the servers of tools: frozen lists; connections |
//! | `gauge`, `task`, `ids`, `claims` | counts of live objects; tasks that end with their owner; new ids; journals and recorders that only one host of the process may use |
//! | `maintenance`, `maintenance_state`, `recovery`, `crash_loop`, `stored_sessions`, `removals`, `deletions` | periodic work; what it has to do, and when; unfinished runs at start; those that take the host down; reading, forking and deleting stored sessions; removing deleted ones from the journal together; the list of deleted ones |
//! | `error` | the errors of a host and its sessions |

mod accumulator;
mod agent;
mod agent_trees;
mod approval_inbox;
mod blocking;
mod call_by_hand;
mod catalog;
mod child_sessions;
mod claims;
mod client_call;
mod crash_loop;
mod deletions;
mod error;
mod extensions;
mod fair_semaphore;
mod gauge;
mod handle;
mod hooks;
mod host_actor;
mod host_events;
mod host_ref;
mod ids;
mod index;
mod known_histories;
mod list;
mod maintenance;
mod maintenance_state;
mod message;
pub mod model;
mod model_limiter;
mod model_tokens;
mod models;
mod opening;
mod ownership;
mod peer_events;
mod peers;
mod publish;
mod recovery;
mod references;
mod removals;
mod report;
mod run_events;
mod run_feed;
mod run_list;
mod sent_requests;
mod server_connections;
mod session;
mod session_events;
mod session_start;
mod session_states;
mod set_aside_tools;
mod snapshot;
mod stored_sessions;
mod stream;
mod supervision;
mod supervisor;
mod takeover;
mod task;

callsheet_values::impl_with!(OpenSession, RunRequest);

#[cfg(test)]
mod tests;
mod tool;
mod tool_limiter;
mod tool_servers;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

pub use agent::AgentRules;
pub use approval_inbox::{ApprovalPosition, ApprovalQuery, OpenApproval};
pub use call_by_hand::model_that_calls;
pub use callsheet_machines::turn::BreakerState;
pub use callsheet_values::event::StatsReport;
pub use callsheet_values::event::ToolListChange;
pub use callsheet_values::types::SessionState;
pub use catalog::ToolSources;
pub use deletions::{Deletion, deletion_keys, deletions};
pub use error::{ClientResultError, ErrorKind, HostError};
pub use handle::{RunRequest, SessionHandle, StartedRun};
pub use host_events::HostEvent;
pub use ids::CALLER;
pub use known_histories::{HistoryPoint, KnownHistory};
pub use model_limiter::{ModelReport, ModelStatus};
pub use peers::{
    CALLER_HEADER, HOST_HEADER, PeerError, PeerRequest, Peers, REFUSAL_HEADER, SessionPlace,
};
pub use references::StoredResult;
pub use report::{
    CallReport, CompactionReport, ContextPartReport, ContextReport, RunFailed, RunReport, TypedRun,
    TypedRunError,
};
pub use run_events::{ApprovalHandle, ClientCall, RunEvent};
pub use run_feed::RunFeed;
pub use run_list::{ListedRun, RunState};
pub use sent_requests::SentRequest;
use session_events::HistoryLimits;
pub use session_events::{SessionEvents, WatchOptions};
pub use session_states::SessionStateChange;
use session_states::SessionStates;
pub use set_aside_tools::stored_refusals;
pub use snapshot::{CurrentRun, PendingApproval, PendingClientCall, QueuedInput, SessionSnapshot};
pub use stored_sessions::SessionCheck;

use crate::journal::{Journal, JournalError, SessionQuery, SessionSummary};
use crate::telemetry::{
    Metrics, MetricsOptions, RegisteredLiveHooks, TakeoverReason, Telemetry, Traces,
};
use crate::thread_pool::ThreadPool;
use agent::Agent;
use agent_trees::AgentTrees;
use approval_inbox::ApprovalInbox;
use blocking::{BLOCKING_THREADS_MAX, BlockingPool};
use callsheet_tools::Extensions;
use callsheet_tools::ToolRegistry;
use callsheet_values::config::{ClientTool, Config, JournalEngine, OnShutdown, Resume};
use callsheet_values::record::Seq;
use callsheet_values::types::{Metadata, SessionId};
use catalog::Catalog;
use claims::{ClaimedJournal, MetricsClaim};
use crash_loop::CrashLoop;
use deletions::DeletionList;
use extensions::ExtensionsBySession;
use gauge::Gauges;
use host_actor::HostHandler;
use host_ref::{HostRef, HostState, REBUILDS_MAX};
use index::{SessionIndex, SessionLimits};
use maintenance_state::MaintenanceState;
use message::SessionMessage;
use model::HostLagClock;
use models::Model;
pub use models::ModelSources;
use ownership::SessionOwner;
use recovery::{
    find_unfinished_sessions, open_journal, read_suspended, recover, resume_of_journal,
};
use removals::Removals;
use tool_limiter::ToolLimiters;
use tool_servers::ToolServers;
pub use tool_servers::{restore_startups, startup_keys};

/// Time limit of the steps of a shutdown that have no other one: the end of cancelled runs, of their tools
/// (after `cancel_grace`), of the host actor and of the sessions, and the export of spans.
const END_MAX: Duration = Duration::from_secs(5);

/// A host of many sessions in one process. All clones are the same host; cloning is cheap.
///
/// Dropping the last clone ends the host at once, like a crash of the process: the next host with the
/// same journal continues its runs. So does [`Host::shutdown`], but running turns may end first. After a drop, requests
/// by handles of its sessions fail with [`HostError::SessionClosed`], or with [`HostError::ShuttingDown`] if the
/// session was not in memory; after a shutdown, with [`HostError::ShuttingDown`].
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<HostInner>,
}

#[derive(Debug)]
struct HostInner {
    host_ref: HostRef,
    shutdown_grace: Duration,
    cancel_grace: Duration,
    /// A value that lives as long as the host.
    _kept: Box<dyn Any + Send + Sync>,
}

/// The parts of a host.
#[derive(Debug)]
pub struct HostSetup {
    /// The configuration.
    pub config: Config,
    /// The registered tools. An agent offers those that its `tools` patterns name.
    pub tools: ToolRegistry,
    /// The tools that are read at each run's start.
    pub tool_sources: ToolSources,
    /// The models that the program implements, by their names in the configuration.
    pub model_sources: ModelSources,
    /// The journal. `None`: the configured one.
    pub journal: Option<Arc<dyn Journal>>,
    /// The description of this host, besides its process id, for a second host that is refused the
    /// journal. May be empty.
    pub journal_holder: String,
    /// True if the host continues the runs of a restored copy of a journal.
    pub go_on: bool,
    /// True if the host starts although the write-ahead log of its journal is missing.
    pub accept_loss: bool,
    /// The destination and the labels of the host's metrics.
    pub metrics: MetricsOptions,
    /// The hooks that follow the events of all runs.
    pub live_hooks: RegisteredLiveHooks,
    /// A value that lives as long as the host.
    pub kept: Box<dyn Any + Send + Sync>,
}

impl HostSetup {
    /// Makes the setup of a host with these tools.
    pub fn new(config: Config, tools: ToolRegistry) -> Self {
        let (tool_sources, model_sources) = (ToolSources::default(), ModelSources::default());
        let metrics = MetricsOptions::default();
        let kept = Box::new(());
        Self {
            config,
            tools,
            tool_sources,
            model_sources,
            journal: None,
            journal_holder: String::new(),
            go_on: false,
            accept_loss: false,
            metrics,
            live_hooks: RegisteredLiveHooks::default(),
            kept,
        }
    }
}

/// The options of a new session.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// let open = OpenSession::default().with(|new| new.id = Some("support-7".to_owned()));
/// let session = host.open_session(open).await?;
/// assert_eq!(session.id().as_str(), "support-7");
/// // An id is enough.
/// host.open_session("support-8").await?;
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenSession {
    /// The agent's name. `None`: `default`, or the only agent.
    pub agent: Option<String>,
    /// The session's id. `None`: a new one.
    pub id: Option<String>,
    /// The initial history, in the Chat Completions form. If the last message makes calls, the first
    /// run starts by running them.
    pub messages: Vec<Value>,
    /// The client's pairs of strings. All runs of the session have them.
    pub metadata: Metadata,
    /// Tools that the client runs, in all runs of the session: see [`ClientTool`].
    pub client_tools: Vec<ClientTool>,
    /// Values for the tools of all runs of the session, such as a tenant. They are never stored: after a
    /// restart of the host, [`SessionHandle::add_extension`] gives them again.
    pub extensions: Extensions,
}

impl OpenSession {
    /// Names the session's agent.
    #[must_use]
    pub fn with_agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Attaches pairs of strings to the session: see [`Metadata`].
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Declares tools that the client runs.
    #[must_use]
    pub fn with_client_tools(mut self, tools: impl IntoIterator<Item = ClientTool>) -> Self {
        self.client_tools.extend(tools);
        self
    }

    /// Gives the tools of the session's runs a value, which replaces one of the same type.
    #[must_use]
    pub fn with_extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }
}

/// A session with this id.
impl From<&str> for OpenSession {
    fn from(id: &str) -> Self {
        Self { id: Some(id.to_owned()), ..Self::default() }
    }
}

/// A session with this id.
impl From<String> for OpenSession {
    fn from(id: String) -> Self {
        Self { id: Some(id), ..Self::default() }
    }
}

/// Counts of the live objects of a host. When no run is open and the tools of the last runs have ended,
/// all counts except `sessions`, `awake` and `abandoned_threads` return to 0.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::prelude::*;
/// # use callsheet::testing::FakeModel;
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// # let host = Host::builder().model_source("fake", model).start().await?;
/// host.open_session("demo").await?;
/// let counts = host.counts();
/// assert_eq!((counts.sessions, counts.runs, counts.tools_running), (1, 0, 0));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCounts {
    /// Sessions, awake or hibernating.
    pub sessions: usize,
    /// Sessions in memory.
    pub awake: usize,
    /// Open runs, with those of child sessions. Runs of suspended or hibernating sessions are not counted.
    pub runs: usize,
    /// Actors of runs: stream actors, accumulators and tool supervisors, which stay with a session
    /// for some seconds after a run, and tool actors.
    pub actors: usize,
    /// Tasks of runs: read loops and timers.
    pub tasks: usize,
    /// Calls whose tool has not returned.
    pub tools_running: usize,
    /// Calls that wait for a permit of their tool or for their server.
    pub calls_waiting: usize,
    /// Threads of blocking tools that were abandoned and have not returned.
    pub abandoned_threads: usize,
}

impl Host {
    /// Starts a host. Applies the configuration's overrides of tools. Continues runs that the last
    /// host left unfinished, unless the journal's `resume` is `manual`, or the journal is a restored copy.
    ///
    /// # Errors
    /// If the configuration is invalid ([`Config::check`]), or the journal cannot be opened.
    pub async fn start(setup: HostSetup) -> Result<Self, HostError> {
        let HostSetup {
            config,
            mut tools,
            tool_sources,
            model_sources,
            journal,
            journal_holder,
            go_on,
            accept_loss,
            metrics,
            live_hooks,
            kept,
        } = setup;
        let started = Instant::now();
        // Panics here, and not in a run, if the runtime has no timers.
        drop(sleep(Duration::ZERO));
        let names: Vec<String> = tools.iter().map(|(name, _)| name.to_owned()).collect();
        let registered: Vec<&str> = names.iter().map(String::as_str).collect();
        config.check(&registered).map_err(|errors| HostError::Config(errors.to_string()))?;
        log_unchecked_schemas(&tools);
        check_hooks_registered(&config, &tools)?;
        check_agent_tools(&config, &tools)?;
        tools.apply_overrides(&config.tools);
        // Another host may use the registry, too.
        tools.renew_servers();
        let (gauges, stalls) = (Gauges::default(), HostLagClock::default());
        let tool_limiters = ToolLimiters::new(&tools, &gauges.waiting_calls);
        let traces = |metrics: &Metrics| Traces::from_env(&config.models, metrics);
        metrics.check().map_err(HostError::Config)?;
        let telemetry = Telemetry::with(&names, &metrics, traces, live_hooks);
        let secrets = config.secrets();
        let metrics_claim = MetricsClaim::wait(&metrics).await?;
        if journal.is_none()
            && config.journal.engine == JournalEngine::Memory
            && config.host.on_shutdown == Some(OnShutdown::Suspend)
        {
            let problem = "host.on_shutdown: \"suspend\" needs a journal that lasts, and journal.engine is \"memory\"";
            return Err(HostError::Config(problem.to_owned()));
        }
        let journal = match journal {
            Some(engine) => Arc::new(ClaimedJournal::wait(engine).await?),
            None => open_journal(&config, journal_holder, accept_loss, &telemetry).await?,
        };
        let has_owners = journal.ownership().is_some();
        if config.host.on_shutdown == Some(OnShutdown::HandOver) && !has_owners {
            let problem = "host.on_shutdown: \"hand_over\" needs a journal that several hosts use: set \"suspend\"";
            return Err(HostError::Config(problem.to_owned()));
        }
        let on_shutdown = config.host.on_shutdown.unwrap_or(if has_owners {
            OnShutdown::HandOver
        } else if journal.is_lasting() {
            OnShutdown::Suspend
        } else {
            OnShutdown::Interrupt
        });
        log_tools_not_offered(&config, &registered);
        let models = Arc::new(Model::all(&config, &model_sources, &telemetry, &stalls, &secrets)?);
        let tool_servers = ToolServers::new(
            tools.servers().to_vec(),
            &config.tools,
            &tool_limiters,
            &journal,
            &telemetry,
        )
        .await?;
        let agents = Agent::all(&config, tools, &models)?;
        let cancel_grace = agents.values().map(|agent| agent.limits().cancel_grace).max();
        // Reads what earlier hosts have left in the journal.
        for model in models.values() {
            model.learnt.read(&*journal).await?;
            model.learnt_reasoning.read(&*journal).await?;
            model.set_aside.read(&*journal).await?;
        }
        let (session_count, unfinished) = find_unfinished_sessions(&*journal).await?;
        let crash_loop = CrashLoop::begin(Arc::clone(&journal)).await?;
        let resume =
            resume_of_journal(&*journal, config.journal.resume, go_on, &unfinished).await?;
        let held = crash_loop.held(&unfinished).await;
        if journal.ownership().is_some() {
            telemetry.metrics().taken_over(TakeoverReason::Start, unfinished.len());
        }
        let suspended = match resume {
            Resume::Manual => unfinished.iter().cloned().collect(),
            Resume::Auto => held.all(),
        };
        let shared = Arc::new(HostState {
            host_id: ids::run_id().0.replace("run_", "host_"),
            advertise: config.host.advertise.as_ref().map(|url| url.as_str().to_owned()),
            peers: Peers::new(&config, &journal)?,
            catalog: Catalog {
                agents,
                models,
                tool_sources,
                tool_servers: Arc::new(tool_servers),
                tool_limiters,
                secrets,
                console: config.console,
                runs_max: config.host.max_concurrent_runs,
                queued_inputs_max: config.host.max_queued_inputs,
                session_bytes_max: config.host.max_session_bytes,
                on_shutdown,
                resume,
            },
            owner: SessionOwner::new(&journal),
            journal,
            telemetry,
            metrics_claim,
            lag_clock: stalls,
            pool: BlockingPool::new(BLOCKING_THREADS_MAX, gauges.abandoned_threads.clone()),
            gauges,
            maintenance: MaintenanceState::new(config.host.idle_after, config.journal.keep_idle),
            crash_loop: Arc::new(crash_loop),
            started,
            closing: AtomicBool::new(false),
            approvals_are_read: AtomicBool::new(false),
            index: SessionIndex::new(
                session_count,
                SessionLimits {
                    awake: config.host.max_sessions,
                    stored: Some(config.journal.max_stored_sessions).filter(|max| *max > 0),
                },
                &unfinished,
                suspended,
            ),
            calls_by_hand: Arc::new(Semaphore::new(call_by_hand::CALLS_MAX)),
            threads: ThreadPool::default(),
            rebuilds: Arc::new(Semaphore::new(REBUILDS_MAX)),
            removals: Removals::default(),
            history: HistoryLimits::default(),
            extensions: ExtensionsBySession::default(),
            sent_requests: config.console.requests.then(Arc::default),
            session_states: SessionStates::default(),
            agent_trees: AgentTrees::default(),
            approval_inbox: ApprovalInbox::default(),
            history_locks: known_histories::HistoryLocks::default(),
            deletions: DeletionList::default(),
        });
        let actor = ractor::Actor::spawn(None, HostHandler, Arc::clone(&shared)).await;
        let (actor, _) = actor.map_err(|error| HostError::Config(error.to_string()))?;
        let shutdown_grace = config.host.shutdown_grace;
        let cancel_grace = cancel_grace.unwrap_or_default();
        let host_ref = HostRef { shared, actor };
        match resume {
            Resume::Manual => task::detach(read_suspended(host_ref.clone(), unfinished)),
            Resume::Auto if unfinished.is_empty() => {}
            Resume::Auto => {
                task::detach(recover(host_ref.clone(), unfinished, held.suspects, started));
            }
        }
        host_ref.shared.update_counts();
        let inner = HostInner { host_ref, shutdown_grace, cancel_grace, _kept: kept };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens a session.
    ///
    /// # Errors
    /// If the agent does not exist, the id is taken or invalid, the messages are not a valid
    /// history, a client tool is invalid, the host is full or shutting down, or the journal fails.
    pub async fn open_session(
        &self,
        open: impl Into<OpenSession>,
    ) -> Result<SessionHandle, HostError> {
        let mut open = open.into();
        let id = opening::requested_id(open.id.take())?;
        let agent = self.agent(open.agent.take())?;
        opening::open(&self.inner.host_ref, id, agent, open, None).await
    }

    /// Returns the session with the id of `open`, and opens it first if it does not exist. An
    /// existing session stays as it is: the other options, also extensions, are ignored then.
    ///
    /// # Errors
    /// As [`Self::open_session`], except that the id may be taken.
    pub async fn get_or_open_session(
        &self,
        open: impl Into<OpenSession>,
    ) -> Result<SessionHandle, HostError> {
        let open = open.into();
        let id = open.id.clone();
        match (self.open_session(open).await, id) {
            (Err(HostError::SessionExists), Some(id)) => {
                Ok(self.session(&opening::requested_id(Some(id))?))
            }
            (opened, _) => opened,
        }
    }

    /// Opens a session with the first records of another one, up to `at`. A run that is open at that
    /// record ends, and its open calls are answered. Queued inputs are dropped.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// use callsheet::Seq;
    ///
    /// session.run("Say hello.").await?;
    /// // The records up to the third one: the opening, the input and the first attempt.
    /// let fork = host.fork(&session, Seq(3), Some("copy".to_owned())).await?;
    /// assert_eq!(fork.id().as_str(), "copy");
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the session or the record does not exist, the agent is no longer configured, the id is taken or invalid, the
    /// host is full or shutting down, or the journal fails.
    pub async fn fork(
        &self,
        from: &SessionHandle,
        at: Seq,
        id: Option<String>,
    ) -> Result<SessionHandle, HostError> {
        stored_sessions::fork(from, at, opening::requested_id(id)?).await
    }

    /// Lists sessions in the order of their ids, awake or hibernating.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// use callsheet::SessionQuery;
    ///
    /// let query = SessionQuery::default().with(|query| query.limit = 10);
    /// let ids: Vec<_> = host.sessions(query).await?.into_iter().map(|session| session.id).collect();
    /// assert_eq!(ids[0].as_str(), "demo");
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionSummary>, HostError> {
        list::sessions(&self.inner.host_ref, query).await
    }

    /// Returns the sessions with these ids, which other hosts have in memory in this state.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub async fn sessions_elsewhere(
        &self,
        ids: Vec<SessionId>,
        state: SessionState,
    ) -> Result<Vec<SessionSummary>, HostError> {
        list::sessions_elsewhere(&self.inner.host_ref, ids, state).await
    }

    /// Updates the gauges now. The host also does this at least every 5 seconds.
    pub fn update_metrics(&self) {
        self.shared().update_gauges();
    }

    /// Updates the gauges and renders the host's metrics in Prometheus's text format. Returns `None`
    /// if they go to a recorder of the program.
    #[cfg(feature = "prometheus")]
    #[must_use]
    pub fn metrics_page(&self) -> Option<String> {
        self.update_metrics();
        self.telemetry().page()
    }

    /// Returns the host's telemetry.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.shared().telemetry
    }

    /// Returns the state of each configured model, by name.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// let model = &host.models()[0];
    /// println!("{}", model.name);
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn models(&self) -> Vec<ModelStatus> {
        self.shared().catalog.models.values().map(|model| model.status()).collect()
    }

    /// Returns the configuration, the state and the failures of each configured model, by name.
    #[must_use]
    pub fn model_reports(&self) -> Vec<ModelReport> {
        self.shared().catalog.models.values().map(|model| model.report()).collect()
    }

    /// Returns the names of the agents.
    #[must_use]
    pub fn agents(&self) -> Vec<String> {
        self.shared().catalog.agents.keys().cloned().collect()
    }

    /// Returns the names of the tools that an agent has without those of MCP servers and tool sources. Returns none for
    /// an unknown agent.
    #[must_use]
    pub fn agent_tools(&self, agent: &str) -> Vec<String> {
        let agent = self.shared().catalog.agents.get(agent);
        agent.into_iter().flat_map(|agent| agent.tools.keys().cloned()).collect()
    }

    /// Lets the next request to each model read the file of its key again (`api_key_file`), which otherwise happens
    /// after 10 s. The other secrets in files are read at each use.
    pub fn read_secrets_again(&self) {
        self.shared().catalog.models.values().for_each(|model| model.service.read_key_again());
        tracing::info!("secrets_read_again");
    }

    /// Returns the name of the agent that a request names, or of the one that it gets without a name: `default`, or the
    /// only agent.
    ///
    /// # Errors
    /// If there is no such agent.
    pub fn agent_name(&self, asked: Option<String>) -> Result<Arc<str>, HostError> {
        Ok(Arc::clone(&self.agent(asked)?.name))
    }

    /// Adds the present value of a secret, whose place is `source`. It is replaced wherever a service or a tool repeats
    /// it, as the secrets of the configuration are.
    pub fn add_secret(&self, source: &str, value: &str) {
        self.shared().catalog.secrets.add_value_of(source, value);
    }

    /// Returns the configured names of an agent's models, in the order of their use. Returns none for an unknown
    /// agent.
    #[must_use]
    pub fn agent_models(&self, agent: &str) -> Vec<String> {
        let agent = self.shared().catalog.agents.get(agent);
        let models = agent.into_iter().flat_map(|agent| agent.models.iter());
        models.map(|model| model.name.clone()).collect()
    }

    /// Returns whether the host accepts sessions and runs. A failing model does not change this.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.host_ref.is_ready()
    }

    /// Returns the error of the journal's last write, until a write succeeds. While it stands, no run can
    /// start; the host tries again by itself.
    #[must_use]
    pub fn journal_failure(&self) -> Option<JournalError> {
        self.shared().journal.failure()
    }

    /// Returns counts of live objects.
    ///
    /// ```
    /// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use callsheet::prelude::*;
    ///
    /// let host = Host::builder().start().await?;
    /// let session = host.open_session("demo").await?;
    /// assert_eq!((host.counts().sessions, host.counts().runs), (1, 0));
    /// # host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn counts(&self) -> HostCounts {
        let gauges = &self.shared().gauges;
        HostCounts {
            sessions: self.shared().index.count(),
            awake: gauges.awake.count(),
            runs: gauges.runs.count() + gauges.child_runs.count(),
            actors: gauges.actors.count(),
            tasks: gauges.tasks.count(),
            tools_running: gauges.running_calls.count(),
            calls_waiting: gauges.waiting_calls.count(),
            abandoned_threads: gauges.abandoned_threads.count(),
        }
    }

    /// Shuts the host down: accepts no more runs, lets running turns finish within `shutdown_grace`, gives tools that
    /// still run their grace period, and ends every session. On return everything is stored and the journal is free for
    /// another host.
    ///
    /// With [`OnShutdown::Suspend`], which is the default if the journal lasts, the runs that have not ended are left as
    /// a crash leaves them, and queued inputs stay queued: the next host with the same journal goes on with them. A
    /// caller that waits for such a report receives [`HostError::ShuttingDown`].
    ///
    /// With [`OnShutdown::Interrupt`], the calls that have no outcome are answered as cancelled, and the runs end as
    /// `interrupted`. Only a run that waits for nothing but approvals or results of its client is left to the next host.
    pub async fn shutdown(&self) {
        let HostInner { host_ref, shutdown_grace, cancel_grace, .. } = &*self.inner;
        let shared = &host_ref.shared;
        // They are needed when the journal is closed.
        self.other_hosts().await;
        shared.closing.store(true, Ordering::SeqCst);
        if shared.catalog.on_shutdown == OnShutdown::HandOver {
            shared.owner.hand_over();
        }
        self.interrupt(false);
        if timeout(*shutdown_grace, shared.gauges.wait_until_no_runs()).await.is_err() {
            self.interrupt(true);
            let _ = timeout(END_MAX, shared.gauges.wait_until_no_runs()).await;
        }
        let _ =
            timeout(*cancel_grace + END_MAX, shared.gauges.running_calls.wait_until_zero()).await;
        // Each hook has its own time limit. It begins when the end of its run is durable.
        shared.gauges.run_end_hooks.wait_until_zero().await;
        shared.catalog.tool_servers.close().await;
        host_ref.actor.stop(None);
        let _ = timeout(END_MAX, host_ref.actor.wait(None)).await;
        let _ = timeout(END_MAX, shared.gauges.awake.wait_until_zero()).await;
        shared.index.clear_slots();
        shared.session_states.end();
        for model in shared.catalog.models.values() {
            model.learnt.store(&shared.journal).await;
            model.learnt_reasoning.store(&shared.journal).await;
            model.set_aside.store(&shared.journal).await;
        }
        shared.crash_loop.end().await;
        let journal = Arc::clone(&shared.journal);
        // Everything that is queued is stored by then. A panic of the storage engine is ignored.
        let _ = task::to_its_end(async move {
            journal.close().await;
            Ok(())
        })
        .await;
        shared.telemetry.traces().flush(END_MAX).await;
        shared.update_counts();
        shared.metrics_claim.release();
    }

    fn interrupt(&self, now: bool) {
        for (_, awake_session) in self.shared().index.all_awake() {
            // A session that is gone has no run.
            let _ = awake_session.actor.cast(SessionMessage::Interrupt { now });
        }
    }

    /// Notes that a reader that can answer approvals looks for them: from now on they wait for an answer, and are not
    /// rejected for lack of a reader.
    pub fn note_approvals_are_read(&self) {
        self.shared().approvals_are_read.store(true, Ordering::Relaxed);
    }

    /// Returns the number of stored sessions and its limit (`max_stored_sessions`), if at least 90 % of it are reached.
    #[must_use]
    pub fn nearly_full_store(&self) -> Option<(usize, usize)> {
        self.shared().index.nearly_full()
    }

    /// Returns the sessions whose runs are set aside, because the host ended each time they went on: a request that
    /// resumes or stops such a run is needed.
    #[must_use]
    pub fn quarantined_sessions(&self) -> Vec<SessionId> {
        self.shared().crash_loop.quarantined()
    }

    /// Returns the approvals and questions of all sessions that wait for a person, the oldest first: those that pass the
    /// filter.
    ///
    /// From now on, approvals wait for an answer, and are not rejected for lack of a reader.
    ///
    /// # Errors
    /// If the journal, which has the metadata of sessions, cannot be read.
    pub async fn open_approvals(
        &self,
        query: ApprovalQuery,
        filter: impl Fn(&OpenApproval) -> bool + Send + Sync,
    ) -> Result<Vec<Arc<OpenApproval>>, HostError> {
        self.note_approvals_are_read();
        Ok(list::open_approvals(self.shared(), &query, filter).await?)
    }

    /// Returns the configuration of the console.
    #[must_use]
    pub fn console(&self) -> callsheet_values::config::ConsoleConfig {
        self.shared().catalog.console
    }

    fn shared(&self) -> &HostState {
        &self.inner.host_ref.shared
    }

    /// Returns the tools that an agent, by default the default one, would offer in a new session, and the
    /// servers of the host. The tools of a [`ToolSource`](callsheet_tools::ToolSource) are not among them: they
    /// are known when a run starts.
    pub async fn listed_tools(
        &self,
        agent: Option<String>,
    ) -> Result<callsheet_tools::AgentTools, HostError> {
        let (agent, host_ref) = (self.agent(agent)?, &self.inner.host_ref);
        let servers = &host_ref.shared.catalog.tool_servers;
        let connected = servers.servers_for(host_ref, None, |_| true);
        let frozen = servers.freeze(&agent, &connected).await?;
        let mut listed = Vec::new();
        for tool_servers::SessionServer { server, .. } in &connected {
            tool_servers::wait_started(&**server).await;
            let named = agent.names_server(&**server);
            listed.push(callsheet_tools::ListedServer::new(&**server, named));
        }
        Ok(callsheet_tools::AgentTools {
            agent: Arc::clone(&agent.name),
            tools: frozen.agent.listed_tools(),
            tokens: frozen.agent.definition_tokens(),
            unmatched: frozen.agent.unmatched_patterns(),
            servers: listed,
        })
    }

    /// Returns the present list of each server, or the reason why it is down, after the first attempts to
    /// connect.
    #[cfg(all(feature = "mcp", target_os = "linux"))]
    pub async fn server_listings(
        &self,
    ) -> Vec<(String, Result<Arc<callsheet_tools::ServerListing>, String>)> {
        use callsheet_tools::ServerState;
        let listing =
            async |tool_servers::SessionServer { server, .. }: &tool_servers::SessionServer| {
                let status = tool_servers::wait_started(&**server).await;
                let listing = match (&status.state, &status.listing) {
                    (ServerState::Up, Some(listing)) => Ok(Arc::clone(listing)),
                    (ServerState::Down(reason), _) => Err(reason.clone()),
                    // A connection that only reads the list is never released.
                    (ServerState::Up | ServerState::Starting | ServerState::Released, _) => {
                        Err("it is still starting".into())
                    }
                };
                (server.name().to_owned(), listing)
            };
        let host_ref = &self.inner.host_ref;
        let connected = host_ref.shared.catalog.tool_servers.servers_for(host_ref, None, |_| true);
        futures::future::join_all(connected.iter().map(listing)).await
    }

    /// Returns the schema of the arguments of a tool that an agent would offer in a new session.
    pub async fn tool_schema(&self, agent: &str, tool: &str) -> Result<Value, String> {
        let (agent, host_ref) = (self.agent(Some(agent.to_owned())), &self.inner.host_ref);
        let agent = agent.map_err(|error| error.to_string())?;
        let servers = &host_ref.shared.catalog.tool_servers;
        let connected = servers.servers_for(host_ref, None, |server| agent.names_server(server));
        let frozen = servers.freeze(&agent, &connected).await;
        let frozen = frozen.map_err(|error| error.to_string())?;
        if let Some(found) = frozen.agent.tools.get(tool) {
            return Ok(found.spec.input.as_value().clone());
        }
        let down = frozen.missing.iter().find(|(server, _)| tool.starts_with(&**server));
        Err(match down {
            Some((server, reason)) => format!("the server {server} is down: {reason}"),
            None => format!("no tool is called {tool:?}; callsheet tools list names all"),
        })
    }

    fn agent(&self, name: Option<String>) -> Result<Arc<Agent>, HostError> {
        self.shared().catalog.find_agent(name)
    }
}

/// Logs the parts of the tools' schemas that are not checked, such as a pattern that is no regular expression.
fn log_unchecked_schemas(tools: &ToolRegistry) {
    for (tool, registered) in tools.iter() {
        for part in registered.spec.input.unchecked() {
            tracing::warn!(tool, "tool_has_warning: its input schema{part}");
        }
    }
}

/// Checks that each hook of the configuration is registered, so that it is asked.
fn check_hooks_registered(config: &Config, tools: &ToolRegistry) -> Result<(), HostError> {
    for (at, configured) in config.hooks.iter().enumerate() {
        if !tools.hooks().iter().any(|hook| hook.rule == configured.rule) {
            let message = "is not registered: call HostBuilder::configured_tools (feature tools)";
            let error = config.hook_error(at, "kind", message);
            return Err(HostError::Config(error.to_string()));
        }
    }
    Ok(())
}

/// Checks the agents as tools that the program has registered. Those of the configuration were checked before.
fn check_agent_tools(config: &Config, tools: &ToolRegistry) -> Result<(), HostError> {
    for (name, tool) in tools.iter() {
        let Some(agent) = &tool.spec.agent else { continue };
        let policy = config.tools.get(name).cloned().unwrap_or_default();
        if let Some((key, message)) = config.agent_tool_mistakes(agent, &policy).into_iter().next()
        {
            return Err(HostError::Config(config.tool_error(name, key, message).to_string()));
        }
    }
    Ok(())
}

/// Logs the tools that no agent may call.
fn log_tools_not_offered(config: &Config, registered: &[&str]) {
    let is_offered =
        |tool: &str| config.agents.values().flat_map(|a| &a.tools).any(|t| t.matches(tool));
    let tools: Vec<_> = registered.iter().filter(|tool| !is_offered(tool)).collect();
    if !tools.is_empty() {
        tracing::info!(?tools, "tools_not_offered");
    }
}

impl Drop for HostInner {
    fn drop(&mut self) {
        // The end of the host actor kills the sessions, and they kill their actors.
        self.host_ref.actor.stop(None);
    }
}
