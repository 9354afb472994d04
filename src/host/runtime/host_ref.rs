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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{ActorId, ActorRef};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::agent::Agent;
use super::agent_trees::AgentTrees;
use super::blocking::BlockingPool;
use super::claims::MetricsClaim;
use super::error::HostError;
use super::extensions::ExtensionsBySession;
use super::gauge::{CountGuard, Gauges};
use super::message::{HostMessage, SessionMessage};
use super::model::HostLagClock;
use super::models::Model;
use super::publish::{FeedAccess, Publisher};
use super::read_threads::ReadThreads;
use super::removals::Removals;
use super::sent_requests::SentRequests;
use super::session_events::HistoryLimits;
use super::session_start::{SessionOrigin, SessionStart};
use super::session_states::SessionStates;
use super::supervision::{ReplyPort, call, has_ended};
use super::task;
use super::tool_limiter::ToolLimiters;
use super::tool_servers::{FrozenTools, ToolServers};
use crate::journal::{Journal, SessionLog};
use crate::telemetry::Telemetry;
use callsheet_machines::session::{InputLimits, Session, StoredSession};
use callsheet_tools::ToolSource;
use callsheet_values::config::{ConsoleConfig, OnShutdown};
use callsheet_values::record::{EventProjector, Record, Seq};
use callsheet_values::types::{RunId, Secrets, SessionId, SessionState, is_child_session};

/// Maximum number of times that a request is sent. It is sent again if its session leaves memory before
/// it handles the request.
pub(super) const REQUEST_TRIES_MAX: u32 = 100;

/// The parts of a host that its sessions share: the configuration, the journal, the limits and the index of sessions.
#[derive(Debug)]
pub(super) struct HostState {
    pub(super) agents: BTreeMap<String, Arc<Agent>>,
    pub(super) tool_sources: ToolSources,
    pub(super) tool_servers: Arc<ToolServers>,
    pub(super) models: Arc<BTreeMap<String, Arc<Model>>>,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) telemetry: Telemetry,
    pub(super) metrics_claim: MetricsClaim,
    pub(super) lag_clock: HostLagClock,
    pub(super) secrets: Secrets,
    pub(super) gauges: Gauges,
    pub(super) pool: BlockingPool,
    pub(super) tool_limiters: ToolLimiters,
    pub(super) runs_max: usize,
    pub(super) sessions_max: usize,
    /// The number of inputs that may wait in one session.
    pub(super) queued_inputs_max: usize,
    pub(super) session_bytes_max: Option<u64>,
    /// The idle time after which a session hibernates.
    pub(super) idle_after: Option<Duration>,
    /// The idle time after which a session is deleted.
    pub(super) keep_idle: Option<Duration>,
    /// The time of the last search for sessions to delete, in milliseconds since the host started.
    pub(super) last_deletion_search_ms: AtomicU64,
    /// The time of the next search for lists of tools that no session uses, in milliseconds since the host started.
    pub(super) next_list_search_ms: AtomicU64,
    /// Sessions with interrupted runs that wait for a manual resume.
    pub(super) suspended: Mutex<BTreeSet<SessionId>>,
    /// Sessions with an unfinished run when they left memory, or when the host started (then also those with queued
    /// inputs or an unfinished deletion). Some are awake again.
    pub(super) sessions_with_unfinished_run: Mutex<BTreeSet<SessionId>>,
    pub(super) started: Instant,
    pub(super) closing: AtomicBool,
    pub(super) on_shutdown: OnShutdown,
    /// True after a server or the program has looked for pending approvals: from then on they wait for it, and are
    /// not rejected for lack of a reader.
    pub(super) approvals_are_read: AtomicBool,
    /// The number of sessions, awake or not.
    pub(super) sessions: AtomicUsize,
    /// The sessions that are awake, about to be, or being deleted. Locked for short sections, never across an
    /// await.
    pub(super) index: Mutex<BTreeMap<SessionId, SessionSlot>>,
    /// A permit for each call by hand.
    pub(super) calls_by_hand: Arc<Semaphore>,
    pub(super) reads: ReadThreads,
    pub(super) removals: Removals,
    /// Sessions whose deletion failed. If it has begun, it is finished when the journal can be written again.
    pub(super) failed_deletions: Mutex<BTreeSet<SessionId>>,
    /// Limits the memory of the readers of stored events and of verifications.
    pub(super) history: HistoryLimits,
    /// Runs that were reported as failed because the journal could not be written. The failure is recorded
    /// when the journal works again.
    pub(super) unrecorded_failures: Mutex<BTreeMap<RunId, SessionId>>,
    /// Sessions that hibernated with pending approvals or calls of the client, by the first expiry of one, in Unix
    /// milliseconds. Some are awake again.
    pub(super) approval_expiries: Mutex<BTreeSet<(u64, SessionId)>>,
    /// The values of the embedding program for tools.
    pub(super) extensions: ExtensionsBySession,
    pub(super) console: ConsoleConfig,
    /// The requests to models that are kept. `None` unless the configuration asks for it.
    pub(super) sent_requests: Option<Arc<SentRequests>>,
    /// The changes of the states of sessions, for clients that list them.
    pub(super) session_states: SessionStates,
    /// The child sessions of open runs.
    pub(super) agent_trees: AgentTrees,
}

/// The sources of tools that are read at each run's start.
#[derive(Clone, Default)]
pub struct ToolSources(pub Vec<Arc<dyn ToolSource>>);

impl fmt::Debug for ToolSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tool sources", self.0.len())
    }
}

/// A session whose actor is running.
#[derive(Debug)]
pub(super) struct AwakeSession {
    pub(super) agent: String,
    pub(super) actor: ActorRef<SessionMessage>,
    pub(super) feed_access: FeedAccess,
    pub(super) log: Arc<SessionLog>,
    pub(super) activity: Arc<SessionActivity>,
}

/// The activity of a session, readable without a message to its actor.
#[derive(Debug, Default)]
pub(super) struct SessionActivity {
    /// True while the session has an open run, also a suspended one.
    pub(super) has_open_run: AtomicBool,
    /// True while the session has the actors of a run.
    pub(super) has_actors: AtomicBool,
    /// Set before the session leaves memory by hibernation, at a shutdown, or because the journal failed. Requests
    /// that its actor has not handled by then are sent again, to the actor that is started next.
    pub(super) leaving: AtomicBool,
    /// The time of the last message other than those of the periodic work, in milliseconds since the host started.
    pub(super) touched_ms: AtomicU64,
    /// True while the run of a child session waits only for people. `None` for other sessions.
    pub(super) waits_for_people: Option<watch::Sender<bool>>,
}

impl SessionActivity {
    pub(super) fn of(session: &SessionId) -> Self {
        let waits_for_people = is_child_session(session).then(|| watch::Sender::new(false));
        Self { waits_for_people, ..Self::default() }
    }

    /// Returns true if the session has the actors of a run but no run.
    pub(super) fn has_unused_actors(&self) -> bool {
        self.has_actors.load(Ordering::Acquire) && !self.has_open_run.load(Ordering::Acquire)
    }
}

/// A request that waits for a session to be awake.
type Waiter = oneshot::Sender<Result<Arc<AwakeSession>, HostError>>;

/// The slot of a session in the index.
#[derive(Debug)]
pub(super) enum SessionSlot {
    /// The session is being deleted. The requests wait until the deletion has ended.
    Deleting(Vec<Waiter>),
    /// The session is about to start, or to be read from the journal.
    Waking(Vec<Waiter>),
    /// The session is awake.
    Awake(Arc<AwakeSession>),
}

impl HostState {
    pub(super) fn is_shutting_down(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Returns whether the host shuts down and leaves its runs to the next host.
    pub(super) fn suspends_runs(&self) -> bool {
        self.on_shutdown == OnShutdown::Suspend && self.is_shutting_down()
    }

    /// Returns the error of a request to a session that is gone.
    pub(super) fn unavailable_error(&self) -> HostError {
        if self.is_shutting_down() { HostError::ShuttingDown } else { HostError::SessionClosed }
    }

    /// Returns the limits of the next input of the session with this log.
    pub(super) fn input_limits(&self, log: &SessionLog) -> InputLimits {
        InputLimits {
            inputs_max: self.queued_inputs_max,
            stored_bytes: log.bytes(),
            stored_bytes_max: self.session_bytes_max,
        }
    }

    /// Counts one more run until the guard is dropped, unless `max_concurrent_runs` is reached or the host shuts
    /// down. A child's run does not count towards that limit.
    pub(super) fn acquire_run_slot(&self, is_child_run: bool) -> Result<CountGuard, HostError> {
        let slot = match is_child_run {
            true => Some(self.gauges.child_runs.increment()),
            false => self.gauges.runs.try_increment(self.runs_max),
        };
        // This is checked after the run is counted, so that a concurrent shutdown either is detected here
        // or waits for the run.
        if self.is_shutting_down() {
            return Err(HostError::ShuttingDown);
        }
        slot.ok_or(HostError::Full("run"))
    }

    /// Counts one more session, unless `max_sessions` is reached.
    pub(super) fn count_session(&self) -> Result<(), HostError> {
        let more = |count| (count < self.sessions_max).then_some(count + 1);
        let counted = self.sessions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        counted.map(drop).map_err(|_| HostError::Full("session"))
    }

    pub(super) fn uncount_sessions(&self, count: usize) {
        self.sessions.fetch_sub(count, Ordering::SeqCst);
    }

    /// Reserves the id of a new session. `waiter` is notified when the session is awake.
    pub(super) fn reserve_new(&self, id: &SessionId, waiter: Waiter) -> Result<(), HostError> {
        if self.is_shutting_down() {
            return Err(HostError::ShuttingDown);
        }
        let mut index = self.index.lock();
        if index.contains_key(id) {
            return Err(HostError::SessionExists);
        }
        self.count_session()?;
        index.insert(id.clone(), SessionSlot::Waking(vec![waiter]));
        Ok(())
    }

    /// Reserves slots for the deletion of those sessions that have no slot. Returns their ids.
    pub(super) fn reserve_for_deletion(&self, ids: Vec<SessionId>) -> Vec<SessionId> {
        let mut index = self.index.lock();
        let sleeping: Vec<_> = ids.into_iter().filter(|id| !index.contains_key(id)).collect();
        index.extend(sleeping.iter().map(|id| (id.clone(), SessionSlot::Deleting(Vec::new()))));
        sleeping
    }

    /// Adds an awake session to the index, and answers the requests that wait for it.
    pub(super) fn insert_awake(&self, id: &SessionId, awake_session: &Arc<AwakeSession>) {
        let before =
            self.index.lock().insert(id.clone(), SessionSlot::Awake(Arc::clone(awake_session)));
        self.answer(before, &Ok(Arc::clone(awake_session)));
    }

    /// Removes the slot of a session that could not be woken, and fails the requests that wait for it.
    pub(super) fn fail_wake(&self, id: &SessionId, error: HostError) {
        let before = self.index.lock().remove(id);
        self.answer(before, &Err(error));
    }

    fn answer(&self, slot: Option<SessionSlot>, woken: &Result<Arc<AwakeSession>, HostError>) {
        if let Some(SessionSlot::Waking(waiting) | SessionSlot::Deleting(waiting)) = slot {
            for waiter in waiting {
                // The waiting request may be gone.
                let _ = waiter.send(woken.clone());
            }
        }
    }

    /// Replaces the slot of a session if `actor` still holds it. Returns whether it was replaced.
    pub(super) fn replace(&self, id: &SessionId, actor: ActorId, slot: SessionSlot) -> bool {
        let mut index = self.index.lock();
        let is_current = matches!(index.get(id), Some(SessionSlot::Awake(awake_session)) if awake_session.actor.get_id() == actor);
        if is_current {
            index.insert(id.clone(), slot);
        }
        is_current
    }

    /// Removes an awake session from the index if `actor` still holds its slot and `may_remove` returns true. The
    /// index stays locked during the call, so no request finds the session.
    pub(super) fn remove_awake_if(
        &self,
        id: &SessionId,
        actor: ActorId,
        may_remove: impl FnOnce() -> bool,
    ) -> bool {
        let mut index = self.index.lock();
        let is_current = matches!(index.get(id), Some(SessionSlot::Awake(awake_session)) if awake_session.actor.get_id() == actor);
        let is_removed = is_current && may_remove();
        if is_removed {
            index.remove(id);
        }
        is_removed
    }

    /// Notes whether a session that leaves memory has a run that has not ended.
    pub(super) fn set_has_unfinished_run(&self, id: &SessionId, has_run: bool) {
        let mut sessions_with_unfinished_run = self.sessions_with_unfinished_run.lock();
        if has_run {
            sessions_with_unfinished_run.insert(id.clone());
        } else {
            sessions_with_unfinished_run.remove(id);
        }
    }

    /// Ends the deletion of a session, also one that failed: removes its slot, its extensions and its kept requests.
    /// The waiting requests look for the session again.
    pub(super) fn end_deletion(&self, id: &SessionId) {
        self.extensions.remove_session(id);
        if let Some(requests) = &self.sent_requests {
            requests.remove_session(id);
        }
        self.release_slot(id);
    }

    /// Removes the slot of a session that is neither started nor deleted. The requests that wait for it look for the
    /// session again.
    pub(super) fn release_slot(&self, id: &SessionId) {
        self.fail_wake(id, HostError::SessionExists);
    }

    /// Returns the session if it is awake.
    pub(super) fn awake(&self, id: &SessionId) -> Option<Arc<AwakeSession>> {
        match self.index.lock().get(id)? {
            SessionSlot::Awake(awake_session) => Some(Arc::clone(awake_session)),
            SessionSlot::Deleting(_) | SessionSlot::Waking(_) => None,
        }
    }

    /// Returns the awake sessions.
    pub(super) fn all_awake(&self) -> Vec<(SessionId, Arc<AwakeSession>)> {
        let index = self.index.lock();
        let awake = index.iter().filter_map(|(id, slot)| match slot {
            SessionSlot::Awake(awake_session) => Some((id.clone(), Arc::clone(awake_session))),
            SessionSlot::Deleting(_) | SessionSlot::Waking(_) => None,
        });
        awake.collect()
    }

    /// Returns the number of unread events of the slowest subscriber.
    fn longest_watcher_queue(&self) -> usize {
        let index = self.index.lock();
        let queues = index.values().map(|slot| match slot {
            SessionSlot::Awake(awake_session) => awake_session.feed_access.longest_queue(),
            SessionSlot::Deleting(_) | SessionSlot::Waking(_) => 0,
        });
        queues.max().unwrap_or(0)
    }

    /// Returns the milliseconds since the host started.
    pub(super) fn clock_ms(&self) -> u64 {
        callsheet_values::types::millis(self.started.elapsed())
    }

    /// Updates the gauges that are cheap to compute.
    pub(super) fn update_counts(&self) {
        let metrics = self.telemetry.metrics();
        let (awake, runs) = (self.gauges.awake.count(), self.gauges.runs.count());
        let open = runs + self.gauges.child_runs.count();
        metrics.host().set_limits(self.sessions_max, self.runs_max);
        metrics.set_runs_active(runs);
        metrics.set_queued_inputs(self.gauges.queued_inputs.count());
        metrics.set_calls_waiting(self.gauges.waiting_calls.count());
        metrics.set_threads_abandoned(self.gauges.abandoned_threads.count());
        for model in self.models.values() {
            model.limiter.update_metric();
        }
        for (tool, state) in self.tool_limiters.breaker_states() {
            metrics.tool_breaker(&tool, state);
        }
        self.tool_servers.count_connections(|server, state, connections| {
            metrics.mcp_server(server, state, connections);
        });
        let sessions = self.sessions.load(Ordering::SeqCst);
        metrics.set_session_count(SessionState::Running, open);
        metrics.set_session_count(SessionState::Idle, awake.saturating_sub(open));
        metrics.set_session_count(SessionState::Hibernated, sessions.saturating_sub(awake));
    }

    /// Updates all gauges, also those that need the disk, the system or every awake session.
    pub(super) fn update_gauges(&self) {
        self.update_counts();
        let metrics = self.telemetry.metrics();
        metrics.host().set_watcher_queue(self.longest_watcher_queue());
        metrics.host().update();
        metrics.journal().set_status(self.journal.status());
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
            let waiting = {
                let mut index = self.shared.index.lock();
                match index.get_mut(id) {
                    Some(SessionSlot::Awake(awake_session)) => {
                        return Ok(Arc::clone(awake_session));
                    }
                    Some(SessionSlot::Waking(waiting) | SessionSlot::Deleting(waiting)) => {
                        let (waiter, waited) = oneshot::channel();
                        waiting.push(waiter);
                        waited
                    }
                    None if self.shared.is_shutting_down() => return Err(HostError::ShuttingDown),
                    None => {
                        let (waiter, waited) = oneshot::channel();
                        index.insert(id.clone(), SessionSlot::Waking(vec![waiter]));
                        self.wake(id);
                        waited
                    }
                }
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
        waiting: oneshot::Receiver<Result<Arc<AwakeSession>, HostError>>,
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

    /// Reads the session from the journal and starts it. Its slot is `Waking`.
    pub(super) fn wake(&self, id: &SessionId) {
        let (host_ref, id) = (self.clone(), id.clone());
        task::detach(async move {
            let sent = match host_ref.read_session(&id).await {
                Ok(start) => host_ref.actor.cast(HostMessage::Begin(Box::new(start))),
                Err(error) => {
                    if !matches!(error, HostError::NoSuchSession(_)) {
                        tracing::error!(session = %id, %error, "session_not_woken");
                    }
                    host_ref.shared.fail_wake(&id, error);
                    return;
                }
            };
            if sent.is_err() {
                host_ref.shared.fail_wake(&id, HostError::ShuttingDown);
            }
        });
    }

    /// Wakes a session whose actor died, if its run is to continue now (`wake_now`) or a request waits.
    /// Otherwise the next request wakes it.
    pub(super) fn finish_restart(&self, id: &SessionId, wake_now: bool) {
        let mut index = self.shared.index.lock();
        let is_needed = matches!(index.get(id), Some(SessionSlot::Waking(waiting)) if wake_now || !waiting.is_empty());
        if is_needed {
            self.wake(id);
        } else {
            index.remove(id);
            // Published before a request can find the slot free, so that the state of a session that wakes follows.
            let has_open_run = self.shared.sessions_with_unfinished_run.lock().contains(id);
            let state = if has_open_run { SessionState::Running } else { SessionState::Hibernated };
            self.shared.session_states.changed(id, state);
        }
    }

    async fn read_session(&self, id: &SessionId) -> Result<SessionStart, HostError> {
        let (shared, of) = (Arc::clone(&self.shared), id.clone());
        let (stored, projector) = self.read(move || read_stored(&shared, &of)).await??;
        let agent = self.shared.agents.get(&stored.agent).cloned();
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
            origin: SessionOrigin::Stored(Box::new(stored)),
        })
    }

    /// Returns the tools of servers that a stored session has frozen.
    pub(super) async fn frozen_tools(
        &self,
        agent: &Arc<Agent>,
        session: &Session,
    ) -> Result<Option<Arc<FrozenTools>>, HostError> {
        match session.frozen_tools() {
            Some(sha256) => self.shared.tool_servers.restore(agent, sha256).await.map(Some),
            None => Ok(None),
        }
    }

    /// Runs a query of the journal that takes little time in memory, such as `find`: on this thread if the
    /// engine is in memory, else as [`Self::read`]. For what takes long with any engine, such as reading a whole
    /// session, use [`Self::read`].
    pub(super) async fn quick_read<T: Send + 'static>(
        &self,
        query: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        if self.shared.journal.is_in_memory() { Ok(query()) } else { self.read(query).await }
    }

    /// Runs a read of the journal on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        self.shared.reads.run(read).await
    }
}

fn read_stored(
    shared: &HostState,
    id: &SessionId,
) -> Result<(StoredSession, EventProjector), HostError> {
    let entries = shared.journal.read(id, Seq(0))?;
    let Some(first) = entries.first() else { return Err(HostError::NoSuchSession(id.clone())) };
    let Record::SessionOpened { agent, .. } = &first.record else {
        return Err(HostError::Rebuild(format!(
            "the first record of session {id} is not session_opened"
        )));
    };
    let own = shared.agents.get(agent).ok_or_else(|| HostError::AgentGone(agent.clone()))?;
    let session_rules_of = |overrides: &_| own.with_recorded_overrides(overrides).session_rules();
    let stored = StoredSession::read(&entries, &session_rules_of)
        .map_err(|error| HostError::Rebuild(format!("session {id}: {error}")))?;
    if stored.session.is_closed() {
        return Err(HostError::NoSuchSession(id.clone()));
    }
    let projector = EventProjector::after(id.clone(), agent, stored.session.turn(), &entries);
    Ok((stored, projector))
}
