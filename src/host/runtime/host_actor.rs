//! The actor that supervises all sessions and the servers of tools.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::gauge::Gauge;
use super::host_ref::{HostRef, HostState};
use super::index::AwakeSession;
use super::maintenance;
use super::message::{HostMessage, ServerAudience, SessionMessage};
use super::server_connections::{RunToolServer, ToolServerActor};
use super::session;
use super::session_start::SessionStart;
use super::supervision::{self, ChildEnd, EndCause};
use super::takeover;
use super::task::{self, OwnedTask};
use callsheet_tools::{ServerObservation, ServerObserver, ToolServer};
use callsheet_values::types::{SessionId, SessionState};

/// The interval at which the lag of the event loop is measured.
const LAG_PERIOD: Duration = Duration::from_millis(100);

/// Maximum number of automatic restarts of a session whose actor dies during a run. After more deaths, only a request
/// wakes the session. Deaths without a run count too. After [`DEATHS_KEPT`] without a death, the count is 0 again.
const SESSION_RESTARTS_MAX: u32 = 3;
/// The time after the last death of a session at which its deaths are forgotten.
const DEATHS_KEPT: Duration = Duration::from_secs(600);

/// Starts sessions and servers of tools, receives their ends, and starts the periodic work.
pub(super) struct HostActor {
    host_ref: HostRef,
    sessions: HashMap<ActorId, (SessionId, Arc<AwakeSession>)>,
    /// The number of recent deaths by session, with the time of the last one.
    deaths: HashMap<SessionId, (u32, Instant)>,
    servers: HashMap<ActorId, (Arc<dyn ToolServer>, ServerAudience)>,
    _tasks: Vec<OwnedTask>,
}

impl HostActor {
    fn new(myself: ActorRef<HostMessage>, shared: Arc<HostState>) -> Self {
        let host_ref = HostRef { shared, actor: myself.clone() };
        let period = host_ref.shared.maintenance.period();
        // These tasks are not counted, because they live as long as the host.
        let maintenance = OwnedTask::spawn(&Gauge::default(), async move {
            loop {
                tokio::time::sleep(period).await;
                if myself.cast(HostMessage::RunMaintenance { sent: Instant::now() }).is_err() {
                    return;
                }
            }
        });
        let lag = OwnedTask::spawn(&Gauge::default(), measure_lag(Arc::clone(&host_ref.shared)));
        let mut tasks = vec![maintenance, lag];
        if host_ref.shared.journal.ownership().is_some() {
            let lost = takeover::end_lost_sessions(Arc::clone(&host_ref.shared));
            tasks.push(OwnedTask::spawn(&Gauge::default(), lost));
            let taken = takeover::take_over(host_ref.clone());
            tasks.push(OwnedTask::spawn(&Gauge::default(), taken));
            let counts = takeover::count(Arc::clone(&host_ref.shared));
            tasks.push(OwnedTask::spawn(&Gauge::default(), counts));
        }
        let (sessions, deaths, servers) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { host_ref, sessions, deaths, servers, _tasks: tasks }
    }
}

/// The handler of a [`HostActor`].
pub(super) struct HostHandler;

impl Actor for HostHandler {
    type Msg = HostMessage;
    type State = HostActor;
    type Arguments = Arc<HostState>;

    async fn pre_start(
        &self,
        myself: ActorRef<HostMessage>,
        shared: Arc<HostState>,
    ) -> Result<HostActor, ActorProcessingErr> {
        Ok(HostActor::new(myself, shared))
    }

    async fn post_start(
        &self,
        myself: ActorRef<HostMessage>,
        host: &mut HostActor,
    ) -> Result<(), ActorProcessingErr> {
        let servers = Vec::from_iter(host.host_ref.shared.catalog.tool_servers.iter().cloned());
        for server in servers.into_iter().filter(|server| !server.is_per_session()) {
            host.begin_server(&myself, server, ServerAudience::Sessions, false);
        }
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<HostMessage>,
        message: HostMessage,
        host: &mut HostActor,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HostMessage::Begin(start) => host.begin(&myself, *start),
            HostMessage::BeginServer { server, audience } => {
                host.begin_server(&myself, server, audience, false);
            }
            HostMessage::RunMaintenance { sent } => {
                host.host_ref.shared.telemetry.metrics().host().mailbox_wait(sent.elapsed());
                host.deaths.retain(|_, (_, last)| last.elapsed() < DEATHS_KEPT);
                maintenance::run(&host.host_ref);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<HostMessage>,
        mut event: SupervisionEvent,
        host: &mut HostActor,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorTerminated(_, state, _) = &mut event {
            // Other sessions wait for this actor, and the history of one may be large.
            let state = state.take();
            task::detach(async move { drop(state) });
        }
        if let Some(end) = ChildEnd::from_event(event) {
            host.handle_child_end(&myself, end);
        }
        Ok(())
    }

    /// Closes the journal of a host that was dropped, although handles of its sessions may still exist.
    async fn post_stop(
        &self,
        _: ActorRef<HostMessage>,
        host: &mut HostActor,
    ) -> Result<(), ActorProcessingErr> {
        // A shutdown closes it after the last session has ended.
        if !host.host_ref.shared.is_shutting_down() {
            let journal = Arc::clone(&host.host_ref.shared.journal);
            // A panic of the storage engine is ignored.
            let _ = task::to_its_end(async move {
                journal.close().await;
                Ok(())
            })
            .await;
            host.host_ref.shared.metrics_claim.release();
        }
        Ok(())
    }
}

/// Measures how late the runtime wakes a sleeping task: for the metric, and for the time limits that do not count
/// the host's own lag (`model::HostLagClock`).
async fn measure_lag(host: Arc<HostState>) {
    loop {
        let due = Instant::now() + LAG_PERIOD;
        tokio::time::sleep_until(due).await;
        let delay = due.elapsed();
        host.lag_clock.add_delay(delay);
        host.telemetry.metrics().host().event_loop_lag(delay);
    }
}

impl HostActor {
    fn handle_child_end(&mut self, myself: &ActorRef<HostMessage>, end: ChildEnd) {
        let server = self.servers.remove(&end.actor);
        if let EndCause::Panicked(error) = end.cause {
            if let Some((session, _)) = self.sessions.get(&end.actor) {
                tracing::error!(%session, %error, "session_died");
            }
            if let Some((server, audience)) = server {
                tracing::error!(server = server.name(), %error, "tool_server_died");
                self.begin_server(myself, server, audience, true);
            }
        }
        self.handle_session_end(end.actor);
    }

    fn begin(&mut self, myself: &ActorRef<HostMessage>, start: SessionStart) {
        let (id, shared) = (start.id.clone(), Arc::clone(&self.host_ref.shared));
        let (has_work, is_stored) = (start.has_work(), start.is_stored());
        match session::spawn(start, self.host_ref.clone(), myself) {
            Ok(awake_session) => {
                self.sessions
                    .insert(awake_session.actor.get_id(), (id.clone(), Arc::clone(&awake_session)));
                if has_work {
                    // This is the session's first message: no request can reach it before.
                    let _ = awake_session.actor.cast(SessionMessage::ContinueRun);
                }
                shared.index.insert_awake(&id, &awake_session);
                // A new session is announced when it is durable.
                if is_stored {
                    shared.session_states.changed(&id, SessionState::Idle);
                }
                shared.update_counts();
            }
            Err(error) => shared.index.fail_wake(&id, error),
        }
    }

    /// Starts the actor of a tool server. `wait` is true if its last actor has died: it waits before it connects.
    fn begin_server(
        &mut self,
        myself: &ActorRef<HostMessage>,
        server: Arc<dyn ToolServer>,
        audience: ServerAudience,
        wait: bool,
    ) {
        let (kept, host_ref) = ((Arc::clone(&server), audience.clone()), self.host_ref.clone());
        let telemetry = self.host_ref.shared.telemetry.clone();
        let name = server.name().to_owned();
        let observer = move |observed: ServerObservation<'_>| match observed {
            ServerObservation::Request { method, error_type, duration } => {
                telemetry.metrics().mcp_operation(method, error_type, duration);
            }
            ServerObservation::LimitReached(limit) => {
                telemetry.metrics().mcp_limit_reached(&name, limit);
            }
        };
        let observer: ServerObserver = Arc::new(observer);
        let run = RunToolServer { server, host_ref, audience, observer, wait };
        // A host that is ending runs no servers.
        if let Ok(actor) = supervision::spawn_linked(myself, ToolServerActor, ()) {
            let _ = actor.cast(run);
            self.servers.insert(actor.get_id(), kept);
        }
    }

    fn handle_session_end(&mut self, actor: ActorId) {
        let Some((id, awake_session)) = self.sessions.remove(&actor) else { return };
        let shared = &self.host_ref.shared;
        // A session that ends without a panic has left its slot before: it was deleted, hibernates, ends by a shutdown,
        // or its journal failed.
        if shared.index.begin_restart(&id, actor) {
            self.handle_session_death(id, awake_session);
        }
        self.host_ref.shared.update_counts();
    }

    /// Handles the death of a session actor, which is a bug. First waits until its appended records are
    /// durable. Then wakes the session if a request waits, or to continue an open run: this at most
    /// [`SESSION_RESTARTS_MAX`] times.
    fn handle_session_death(&mut self, id: SessionId, dead: Arc<AwakeSession>) {
        let (deaths, last) = self.deaths.entry(id.clone()).or_insert((0, Instant::now()));
        (*deaths, *last) = (*deaths + 1, Instant::now());
        let ran = dead.activity.has_open_run.load(Ordering::Acquire);
        let restarts =
            ran && *deaths <= SESSION_RESTARTS_MAX && !self.host_ref.shared.is_shutting_down();
        let host_ref = self.host_ref.clone();
        dead.log.close();
        task::detach(async move {
            // An error means that a record could not be stored. It counts as not appended.
            let _ = dead.log.wait_durable(dead.log.last_seq()).await;
            host_ref.finish_restart(&id, restarts);
        });
    }
}
