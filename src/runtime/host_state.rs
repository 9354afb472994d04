//! What a host and its sessions share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorId;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::agent::Agent;
use super::awake_session::AwakeSession;
use super::blocking::BlockingPool;
use super::caps::Caps;
use super::error::HostError;
use super::gauge::{CountGuard, Gauges};
use super::models::Model;
use crate::journal::{Journal, JournalError};
use crate::telemetry::Telemetry;
use crate::types::{RunId, SessionId, SessionState};

#[derive(Debug)]
pub(super) struct HostState {
    pub(super) agents: BTreeMap<String, Arc<Agent>>,
    pub(super) models: Arc<BTreeMap<String, Arc<Model>>>,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) telemetry: Telemetry,
    pub(super) gauges: Gauges,
    pub(super) pool: BlockingPool,
    pub(super) caps: Caps,
    pub(super) runs_max: usize,
    pub(super) sessions_max: usize,
    /// How many inputs may wait in one session.
    pub(super) queued_inputs_max: usize,
    /// How long a session idles before it leaves memory.
    pub(super) idle_after: Option<Duration>,
    /// How long a session is kept that nobody touches.
    pub(super) keep_idle: Option<Duration>,
    /// When such sessions were looked for last, on the host's clock.
    pub(super) deleted_ms: AtomicU64,
    /// Sessions whose runs the end of the last host interrupted, and which go on when somebody asks.
    pub(super) held: Mutex<BTreeSet<SessionId>>,
    pub(super) began: Instant,
    pub(super) closing: AtomicBool,
    /// How many sessions there are, awake or not.
    pub(super) sessions: AtomicUsize,
    /// Those that are awake or about to be. CountGuard for short sections, never over an await.
    pub(super) index: Mutex<BTreeMap<SessionId, SessionSlot>>,
    /// How many sessions are read from the journal at once.
    pub(super) reads: Semaphore,
    /// Runs that were told to have failed because the journal could not be written; they end so
    /// once it can.
    pub(super) unwritten: Mutex<BTreeMap<RunId, SessionId>>,
    /// Sleeping sessions that people have to answer in time, by the end of that time in Unix
    /// milliseconds.
    pub(super) alarms: Mutex<BTreeSet<(u64, SessionId)>>,
}

/// Whoever waits for a session to be awake.
pub(super) type Waiter = oneshot::Sender<Result<Arc<AwakeSession>, HostError>>;

/// A session's place in the index.
#[derive(Debug)]
pub(super) enum SessionSlot {
    /// It is being deleted.
    Leaving,
    /// It is about to begin, or to be read from the journal.
    Waking(Vec<Waiter>),
    /// It is there.
    Awake(Arc<AwakeSession>),
}

impl HostState {
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Why a session that was there is gone.
    pub(super) fn gone(&self) -> HostError {
        if self.is_closing() { HostError::ShuttingDown } else { HostError::SessionClosed }
    }

    /// Why a record is not durable: what comes while the host shuts down may find the journal closed.
    pub(super) fn not_stored(&self, error: JournalError) -> HostError {
        if error == JournalError::Closed && self.is_closing() {
            return HostError::ShuttingDown;
        }
        HostError::Journal(error)
    }

    pub(super) fn place_for_a_run(&self) -> Result<CountGuard, HostError> {
        let place = self.gauges.runs.try_increment(self.runs_max);
        // Looked at once the place is taken: either this sees the shutdown, or the shutdown sees
        // the run and waits for it.
        if self.is_closing() {
            return Err(HostError::ShuttingDown);
        }
        place.ok_or(HostError::Full("run"))
    }

    /// Counts one more session, unless there are too many.
    pub(super) fn count_session(&self) -> Result<(), HostError> {
        let more = |count| (count < self.sessions_max).then_some(count + 1);
        let counted = self.sessions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        counted.map(drop).map_err(|_| HostError::Full("session"))
    }

    pub(super) fn uncount_sessions(&self, count: usize) {
        self.sessions.fetch_sub(count, Ordering::SeqCst);
    }

    /// Reserves the id of a session that is to begin, for `waiter`.
    pub(super) fn reserve(&self, id: &SessionId, waiter: Waiter) -> Result<(), HostError> {
        if self.is_closing() {
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

    /// Takes the places of sessions that are to be deleted, of those that sleep.
    pub(super) fn take_sleeping(&self, ids: Vec<SessionId>) -> Vec<SessionId> {
        let mut index = self.index.lock();
        let sleeping: Vec<_> = ids.into_iter().filter(|id| !index.contains_key(id)).collect();
        index.extend(sleeping.iter().map(|id| (id.clone(), SessionSlot::Leaving)));
        sleeping
    }

    /// A session is awake.
    pub(super) fn enter(&self, id: &SessionId, live: &Arc<AwakeSession>) {
        let before = self.index.lock().insert(id.clone(), SessionSlot::Awake(Arc::clone(live)));
        self.answer(before, &Ok(Arc::clone(live)));
    }

    /// A session could not be woken.
    pub(super) fn not_woken(&self, id: &SessionId, error: HostError) {
        let before = self.index.lock().remove(id);
        self.answer(before, &Err(error));
    }

    fn answer(&self, place: Option<SessionSlot>, woken: &Result<Arc<AwakeSession>, HostError>) {
        if let Some(SessionSlot::Waking(waiting)) = place {
            for waiter in waiting {
                // Whoever waited may be gone.
                let _ = waiter.send(woken.clone());
            }
        }
    }

    /// Sets a session's place, unless it is out or another actor has it by now. Returns whether it
    /// was there.
    pub(super) fn replace(
        &self,
        id: &SessionId,
        actor: ActorId,
        place: Option<SessionSlot>,
    ) -> bool {
        let mut index = self.index.lock();
        let there =
            matches!(index.get(id), Some(SessionSlot::Awake(live)) if live.actor.get_id() == actor);
        if there {
            match place {
                Some(place) => index.insert(id.clone(), place),
                None => index.remove(id),
            };
        }
        there
    }

    /// Takes a session that is awake out of the index, if it leaves. Nobody finds it between.
    pub(super) fn leave_index(
        &self,
        id: &SessionId,
        actor: ActorId,
        leaves: impl FnOnce() -> bool,
    ) -> bool {
        let mut index = self.index.lock();
        let there =
            matches!(index.get(id), Some(SessionSlot::Awake(live)) if live.actor.get_id() == actor);
        let leaves = there && leaves();
        if leaves {
            index.remove(id);
        }
        leaves
    }

    pub(super) fn release(&self, id: &SessionId) {
        self.index.lock().remove(id);
    }

    /// The session's actor, if it is awake.
    pub(super) fn awake(&self, id: &SessionId) -> Option<Arc<AwakeSession>> {
        match self.index.lock().get(id)? {
            SessionSlot::Awake(live) => Some(Arc::clone(live)),
            SessionSlot::Leaving | SessionSlot::Waking(_) => None,
        }
    }

    /// The sessions that are awake.
    pub(super) fn all_awake(&self) -> Vec<(SessionId, Arc<AwakeSession>)> {
        let index = self.index.lock();
        let awake = index.iter().filter_map(|(id, place)| match place {
            SessionSlot::Awake(live) => Some((id.clone(), Arc::clone(live))),
            SessionSlot::Leaving | SessionSlot::Waking(_) => None,
        });
        awake.collect()
    }

    /// How many events the slowest watcher of any session has not taken yet.
    fn longest_watcher_queue(&self) -> usize {
        let index = self.index.lock();
        let queues = index.values().map(|place| match place {
            SessionSlot::Awake(live) => live.listeners.longest_queue(),
            SessionSlot::Leaving | SessionSlot::Waking(_) => 0,
        });
        queues.max().unwrap_or(0)
    }

    /// Milliseconds since the host began.
    pub(super) fn clock_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Brings the metrics that no event tells up to date.
    pub(super) fn show_counts(&self) {
        let metrics = self.telemetry.metrics();
        let (awake, runs) = (self.gauges.awake.count(), self.gauges.runs.count());
        metrics.host().set_limits(self.sessions_max, self.runs_max);
        metrics.runs_active(runs);
        metrics.queued_inputs(self.gauges.queued.count());
        metrics.calls_waiting(self.gauges.waiting.count());
        metrics.threads_abandoned(self.gauges.abandoned.count());
        for model in self.models.values() {
            model.limiter.show();
        }
        let sessions = self.sessions.load(Ordering::SeqCst);
        metrics.sessions(SessionState::Running, runs);
        metrics.sessions(SessionState::Idle, awake.saturating_sub(runs));
        metrics.sessions(SessionState::Hibernated, sessions.saturating_sub(awake));
    }

    /// The same, and those that ask the disk, the system or every session that is awake.
    pub(super) fn show_all(&self) {
        self.show_counts();
        let metrics = self.telemetry.metrics();
        metrics.host().set_watcher_queue(self.longest_watcher_queue());
        metrics.host().update();
        metrics.journal().set_status(self.journal.status());
    }
}
