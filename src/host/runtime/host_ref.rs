//! The state that the sessions of a host share, and a reference to it, which finds an awake session or
//! wakes a hibernating one.
//!
//! These wake a hibernating session:
//!
//! - Requests by its handle (`handle`, `client_call`, `references`, `session_events`), except those that need only
//!   its records or the index, such as `records`, `agent`, `state`, `hibernate` and `delete`. Over HTTP: all requests
//!   to `/v1/sessions/{id}` and below, also GET of the session, its events, its context and a result, except those
//!   listed below.
//! - The expiry of an approval or of a client's call (`wake_expired` in `maintenance`).
//! - A failed run whose failure is not recorded, because the journal could not be written (`wake_failed_runs` in
//!   `maintenance`).
//! - The start of the host with `resume = "auto"`, if the session has an unfinished run or a queued input
//!   (`recover` in `recovery`).
//! - The call of an agent whose child it is (`child_sessions`), and a child that asks the session at its root for a
//!   reader of its approvals (`session/snapshot`).
//!
//! A session whose actor died is read again without a request if a run was open, up to `SESSION_RESTARTS_MAX` times
//! (`host_actor`), and as soon as its records are stored if a request waits (`finish_restart`).
//!
//! These wake no session, because they need only the journal and what is in memory: lists of sessions, `/records`,
//! `/verify`, `/fork`, `/turns/{turn}/request`, DELETE, and `/v1/events` (`host_events`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ractor::ActorRef;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::agent::Agent;
use super::agent_trees::AgentTrees;
use super::approval_inbox::ApprovalInbox;
use super::blocking::BlockingPool;
use super::catalog::Catalog;
use super::claims::MetricsClaim;
use super::crash_loop::CrashLoop;
use super::deletions::DeletionList;
use super::error::HostError;
use super::extensions::ExtensionsBySession;
use super::gauge::{CountGuard, Gauges};
use super::index::{AwakeReceiver, AwakeSession, RequestedSession, SessionIndex};
use super::known_histories::HistoryLocks;
use super::maintenance_state::MaintenanceState;
use super::message::{HostMessage, SessionMessage};
use super::model::HostLagClock;
use super::ownership::SessionOwner;
use super::peers::Peers;
use super::publish::Publisher;
use super::removals::Removals;
use super::sent_requests::SentRequests;
use super::session_events::HistoryLimits;
use super::session_start::{SessionOrigin, SessionStart};
use super::session_states::SessionStates;
use super::supervision::{ReplyPort, call, has_ended};
use super::task;
use super::tool_servers::FrozenTools;
use crate::journal::{Journal, JournalEntry, unix_ms};
use crate::telemetry::Telemetry;
use crate::thread_pool::ThreadPool;
use callsheet_machines::session::{Session, StoredSession};
use callsheet_values::config::Resume;
use callsheet_values::record::{EventProjector, Record, Seq};
use callsheet_values::types::{SessionId, SessionState};

/// Maximum number of times that a request is sent. It is sent again if its session leaves memory before
/// it handles the request.
pub(super) const REQUEST_TRIES_MAX: u32 = 100;

/// Maximum number of sessions whose records are in memory to be rebuilt at the same time.
pub(super) const REBUILDS_MAX: usize = 8;

/// The parts of a host that its sessions share: the configuration, the journal, the limits and the index of sessions.
#[derive(Debug)]
pub(super) struct HostState {
    /// The id of a host that has its journal for itself.
    pub(super) host_id: String,
    /// The URL at which other hosts reach this one.
    pub(super) advertise: Option<String>,
    pub(super) peers: Option<Peers>,
    pub(super) catalog: Catalog,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) owner: SessionOwner,
    pub(super) telemetry: Telemetry,
    pub(super) metrics_claim: MetricsClaim,
    pub(super) lag_clock: HostLagClock,
    pub(super) gauges: Gauges,
    pub(super) pool: BlockingPool,
    pub(super) started: Instant,
    pub(super) closing: AtomicBool,
    /// True after a server or the program has looked for pending approvals: from then on they wait for it, and are
    /// not rejected for lack of a reader.
    pub(super) approvals_are_read: AtomicBool,
    pub(super) index: SessionIndex,
    pub(super) maintenance: MaintenanceState,
    pub(super) crash_loop: Arc<CrashLoop>,
    /// A permit for each call by hand.
    pub(super) calls_by_hand: Arc<Semaphore>,
    /// The threads that rebuild sessions and reports from records.
    pub(super) threads: ThreadPool,
    /// A permit for each session whose records are in memory to be rebuilt.
    pub(super) rebuilds: Arc<Semaphore>,
    pub(super) removals: Removals,
    /// Limits the memory of the readers of stored events and of verifications.
    pub(super) history: HistoryLimits,
    /// The values of the embedding program for tools.
    pub(super) extensions: ExtensionsBySession,
    /// The requests to models that are kept. `None` unless the configuration asks for it.
    pub(super) sent_requests: Option<Arc<SentRequests>>,
    /// The changes of the states of sessions, for clients that list them.
    pub(super) session_states: SessionStates,
    /// The child sessions of open runs.
    pub(super) agent_trees: AgentTrees,
    pub(super) approval_inbox: ApprovalInbox,
    pub(super) deletions: DeletionList,
    pub(super) history_locks: HistoryLocks,
}

impl HostState {
    pub(super) fn is_shutting_down(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Returns whether the host shuts down and leaves its runs to another host, or to the next one.
    pub(super) fn leaves_runs(&self) -> bool {
        self.catalog.on_shutdown.leaves_runs() && self.is_shutting_down()
    }

    /// Forgets a session that another host has.
    pub(super) fn forget(&self, id: &SessionId) {
        self.approval_inbox.set(id, Vec::new());
        self.maintenance.forget_failures(id, None);
        self.index.forget(id);
    }

    /// Returns the error of a request to a session that is gone. If several hosts have the journal, a request to the one
    /// that has the session tells whether it still exists.
    pub(super) fn unavailable_error(&self) -> HostError {
        match self.journal.ownership() {
            _ if self.is_shutting_down() => HostError::ShuttingDown,
            Some(_) => HostError::SessionMoved,
            None => HostError::SessionClosed,
        }
    }

    /// Counts one more run until the guard is dropped, unless `max_concurrent_runs` is reached or the host shuts
    /// down. A child's run does not count towards that limit.
    pub(super) fn acquire_run_slot(&self, is_child_run: bool) -> Result<CountGuard, HostError> {
        let slot = match is_child_run {
            true => Some(self.gauges.child_runs.increment()),
            false => self.gauges.runs.try_increment(self.catalog.runs_max),
        };
        // This is checked after the run is counted, so that a concurrent shutdown either is detected here
        // or waits for the run.
        if self.is_shutting_down() {
            return Err(HostError::ShuttingDown);
        }
        slot.ok_or(HostError::Full("run"))
    }

    /// Reserves the id of a new session. Returns a receiver of the session.
    pub(super) fn reserve_new(&self, id: &SessionId) -> Result<AwakeReceiver, HostError> {
        if self.is_shutting_down() {
            return Err(HostError::ShuttingDown);
        }
        self.index.reserve_new(id)
    }

    /// Forgets that the run of a session was set aside: it goes on, or its session is deleted.
    pub(super) fn release_quarantine(&self, id: &SessionId) {
        if self.crash_loop.is_quarantined(id) {
            let (crash_loop, id) = (Arc::clone(&self.crash_loop), id.clone());
            task::detach(async move { crash_loop.release(&id).await });
        }
    }

    /// Ends the deletion of a session, also one that failed: removes its slot, its extensions and its kept requests.
    /// The waiting requests look for the session again.
    pub(super) fn end_deletion(&self, id: &SessionId) {
        self.extensions.remove_session(id);
        self.approval_inbox.set(id, Vec::new());
        self.release_quarantine(id);
        if let Some(requests) = &self.sent_requests {
            requests.remove_session(id);
        }
        self.index.release_slot(id);
    }

    /// Returns the state of a session that is `state` by its run: `Waiting` instead of `Running` if approvals are open.
    pub(super) fn with_wait(&self, id: &SessionId, state: SessionState) -> SessionState {
        let waits = state == SessionState::Running && self.approval_inbox.has(id);
        if waits { SessionState::Waiting } else { state }
    }

    /// Notifies the clients that list sessions of the new state of a session.
    pub(super) fn publish_state(&self, id: &SessionId, state: SessionState) {
        self.session_states.changed(id, self.with_wait(id, state));
    }

    /// Returns the milliseconds since the host started.
    pub(super) fn clock_ms(&self) -> u64 {
        callsheet_values::types::millis(self.started.elapsed())
    }

    /// Updates the gauges that are cheap to compute.
    pub(super) fn update_counts(&self) {
        let metrics = self.telemetry.metrics();
        let runs = self.gauges.runs.count();
        let limits = self.index.limits();
        metrics.host().set_limits(limits.awake, self.catalog.runs_max);
        metrics.journal().set_sessions(self.index.count(), limits.stored);
        metrics.set_runs_active(runs);
        metrics.set_queued_inputs(self.gauges.queued_inputs.count());
        let (approvals, oldest) = self.approval_inbox.count_and_oldest();
        let age = oldest.map_or(0, |asked_at| unix_ms().saturating_sub(asked_at));
        metrics.set_open_approvals(approvals, Duration::from_millis(age));
        metrics.set_calls_waiting(self.gauges.waiting_calls.count());
        metrics.set_threads_abandoned(self.gauges.abandoned_threads.count());
        for model in self.catalog.models.values() {
            model.limiter.update_metric();
        }
        for (tool, state) in self.catalog.tool_limiters.breaker_states() {
            metrics.tool_breaker(&tool, state);
        }
        self.catalog.tool_servers.count_connections(|server, state, connections| {
            metrics.mcp_server(server, state, connections);
        });
    }

    /// Updates the numbers of sessions and of open runs by state, which need every session that left an open run.
    fn update_session_counts(&self) {
        let metrics = self.telemetry.metrics();
        let awake = self.gauges.awake.count();
        let open = self.gauges.runs.count() + self.gauges.child_runs.count();
        let sleeping_runs = self.index.unfinished_asleep();
        let waiting = self.approval_inbox.session_count();
        let waiting_awake = self.gauges.waiting_runs.count();
        let running = open.saturating_sub(waiting_awake);
        let sleeping = sleeping_runs.saturating_sub(waiting.saturating_sub(waiting_awake));
        metrics.set_runs_open(running, waiting, sleeping);
        // The sum over hosts that share the journal is the number of sessions that a host has.
        let stored = self.journal.status().owned.unwrap_or_else(|| self.index.count());
        let hibernated = stored.saturating_sub(awake + sleeping_runs);
        metrics.set_session_count(SessionState::Running, running + sleeping);
        metrics.set_session_count(SessionState::Waiting, waiting);
        metrics.set_session_count(SessionState::Idle, awake.saturating_sub(open));
        metrics.set_session_count(SessionState::Hibernated, hibernated);
    }

    /// Updates all gauges, also those that need the disk, the system or every awake session.
    pub(super) fn update_gauges(&self) {
        self.update_counts();
        self.update_session_counts();
        let metrics = self.telemetry.metrics();
        metrics.host().set_watcher_queue(self.index.longest_watcher_queue());
        metrics.host().update();
        metrics.journal().set_runs_quarantined(self.crash_loop.quarantined().len());
        metrics.set_journal_status(self.journal.status());
    }
}

/// Access to the sessions of a host.
#[derive(Clone, Debug)]
pub(super) struct HostRef {
    pub(super) shared: Arc<HostState>,
    pub(super) actor: ActorRef<HostMessage>,
}

impl HostRef {
    /// Returns whether the host accepts sessions and runs.
    pub(super) fn is_ready(&self) -> bool {
        !has_ended(&self.actor) && !self.shared.is_shutting_down()
    }

    /// Returns the awake session. Wakes it if necessary.
    pub(super) async fn get_or_wake(&self, id: &SessionId) -> Result<Arc<AwakeSession>, HostError> {
        loop {
            let wake = || {
                if self.shared.is_shutting_down() {
                    return Err(HostError::ShuttingDown);
                }
                self.wake(id);
                Ok(())
            };
            let waiting = match self.shared.index.find_or_wake(id, wake)? {
                RequestedSession::Awake(awake_session) => return Ok(awake_session),
                RequestedSession::NotYet(waiting) => waiting,
            };
            match self.wait_until_awake(waiting).await {
                // The id was reserved for a new session, but is that of a stored one; or a deletion has ended.
                Err(HostError::SessionExists) => {}
                woken => return woken,
            }
        }
    }

    /// Waits until a session is awake. Fails if the host ends.
    pub(super) async fn wait_until_awake(
        &self,
        waiting: AwakeReceiver,
    ) -> Result<Arc<AwakeSession>, HostError> {
        tokio::select! {
            biased;
            woken = waiting => woken.unwrap_or(Err(HostError::ShuttingDown)),
            _ = self.actor.wait(None) => Err(HostError::ShuttingDown),
        }
    }

    /// Sends a request to the session. Wakes it if necessary.
    pub(super) async fn request<T: Send + 'static>(
        &self,
        id: &SessionId,
        message: impl Fn(ReplyPort<T>) -> SessionMessage,
    ) -> Result<(T, Arc<AwakeSession>), HostError> {
        for _ in 0..REQUEST_TRIES_MAX {
            let awake_session = self.get_or_wake(id).await?;
            match call(&awake_session.actor, &message).await {
                Ok(answer) => return Ok((answer, awake_session)),
                Err(_) => {
                    if !awake_session.activity.leaving.load(Ordering::Acquire) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
        Err(self.shared.unavailable_error())
    }

    /// Calls `call` with the awake session, and again while it returns `None`: the session is about to leave memory,
    /// and is woken again.
    pub(super) async fn with_awake<T>(
        &self,
        id: &SessionId,
        call: impl Fn(&AwakeSession) -> Option<T>,
    ) -> Result<(T, Arc<AwakeSession>), HostError> {
        for _ in 0..REQUEST_TRIES_MAX {
            let awake_session = self.get_or_wake(id).await?;
            if let Some(value) = call(&awake_session) {
                return Ok((value, awake_session));
            }
            tokio::task::yield_now().await;
        }
        Err(self.shared.unavailable_error())
    }

    /// Reads the session from the journal and starts it. Its slot is reserved.
    pub(super) fn wake(&self, id: &SessionId) {
        let (host_ref, id) = (self.clone(), id.clone());
        task::detach(async move {
            let sent = match host_ref.own_and_read(&id).await {
                Ok(start) => host_ref.actor.cast(HostMessage::Begin(Box::new(start))),
                Err(error) => {
                    if error == HostError::SessionMoved {
                        host_ref.shared.forget(&id);
                    } else if matches!(&error, HostError::Journal(error) if error.is_transient()) {
                        tracing::warn!(session = %id, %error, "session_not_woken");
                    } else if !matches!(error, HostError::NoSuchSession(_)) {
                        tracing::error!(session = %id, %error, "session_not_woken");
                    }
                    host_ref.shared.index.fail_wake(&id, error);
                    return;
                }
            };
            if sent.is_err() {
                host_ref.shared.index.fail_wake(&id, HostError::ShuttingDown);
            }
        });
    }

    /// Wakes a session whose actor died, if its run is to continue now (`wake_now`) or a request waits.
    /// Otherwise the next request wakes it.
    pub(super) fn finish_restart(&self, id: &SessionId, wake_now: bool) {
        let publish = |state| self.shared.publish_state(id, state);
        if self.shared.index.finish_restart(id, wake_now, publish) {
            self.wake(id);
        }
    }

    /// Takes a stored session, and reads it.
    async fn own_and_read(&self, id: &SessionId) -> Result<SessionStart, HostError> {
        let owned = self.shared.owner.take(id).await?;
        let (shared, of) = (Arc::clone(&self.shared), id.clone());
        let (stored, projector) =
            self.rebuild(id, move |entries| rebuild_session(&shared, &of, &entries)).await??;
        self.note_taken_run(id, &stored.session).await;
        let agent = self.shared.catalog.agents.get(&stored.agent).cloned();
        let agent = agent.ok_or_else(|| HostError::AgentGone(stored.agent.clone()))?;
        let tools = self.frozen_tools(&agent, &stored.session).await?;
        Ok(SessionStart {
            publisher: Publisher::new(
                id.clone(),
                projector,
                self.shared.telemetry.clone(),
                stored.last,
            ),
            id: id.clone(),
            agent,
            tools,
            owned,
            origin: SessionOrigin::Stored(Box::new(stored)),
        })
    }

    /// Notes the unfinished run of a session that a request has taken from a host that has ended: it goes on by the same
    /// rules as one that was taken without a request.
    async fn note_taken_run(&self, id: &SessionId, session: &Session) {
        let shared = &self.shared;
        let is_taken = shared.journal.ownership().is_some()
            && session.run().is_some()
            && !shared.index.is_unfinished(id);
        if is_taken {
            let taken = std::slice::from_ref(id);
            let waits = shared.catalog.resume == Resume::Manual
                || shared.crash_loop.held(taken).await.quarantined.contains(id);
            shared.index.note_unfinished(taken, waits);
        }
    }

    /// Returns the tools of servers that a stored session has frozen.
    pub(super) async fn frozen_tools(
        &self,
        agent: &Arc<Agent>,
        session: &Session,
    ) -> Result<Option<Arc<FrozenTools>>, HostError> {
        match session.frozen_tools() {
            Some(sha256) => self.shared.catalog.tool_servers.restore(agent, sha256).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads all records of a session, and rebuilds something from them, which may take long. If this future is
    /// dropped, the rebuilding is skipped, or goes on to its end.
    pub(super) async fn rebuild<T: Send + 'static>(
        &self,
        id: &SessionId,
        rebuild: impl FnOnce(Vec<JournalEntry>) -> T + Send + 'static,
    ) -> Result<T, HostError> {
        let (host_ref, id) = (self.clone(), id.clone());
        // In a task: a future that is not polled would keep its permit.
        let rebuilt = task::isolated(async move {
            // The semaphore is never closed.
            let permit = Arc::clone(&host_ref.shared.rebuilds).acquire_owned().await;
            let entries = host_ref.shared.journal.read(&id, Seq(0)).await?;
            let rebuild = move || {
                let _permit = permit;
                rebuild(entries)
            };
            host_ref.run_on_thread(rebuild).await
        });
        rebuilt.await.unwrap_or(Err(HostError::ShuttingDown))
    }

    /// Runs work that may take long.
    ///
    /// # Errors
    /// If it panics.
    pub(super) async fn run_on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        self.shared.threads.run(work).await.ok_or(HostError::ShuttingDown)
    }
}

fn rebuild_session(
    shared: &HostState,
    id: &SessionId,
    entries: &[JournalEntry],
) -> Result<(StoredSession, EventProjector), HostError> {
    let Some(first) = entries.first() else { return Err(HostError::NoSuchSession(id.clone())) };
    let Record::SessionOpened { agent, .. } = &first.record else {
        return Err(HostError::Rebuild(format!(
            "the first record of session {id} is not session_opened"
        )));
    };
    let own =
        shared.catalog.agents.get(agent).ok_or_else(|| HostError::AgentGone(agent.clone()))?;
    let session_rules_of = |overrides: &_| own.with_recorded_overrides(overrides).session_rules();
    let stored = StoredSession::read(entries, &session_rules_of)
        .map_err(|error| HostError::Rebuild(format!("session {id}: {error}")))?;
    if stored.session.is_closed() {
        return Err(HostError::NoSuchSession(id.clone()));
    }
    let projector = EventProjector::after(id.clone(), agent, stored.session.turn(), entries);
    Ok((stored, projector))
}
