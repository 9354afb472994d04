//! The index of a host's sessions: how many there are, which are awake, about to be, or being deleted, and which have
//! an unfinished run.
//!
//! What happens to an actor changes the slot of its session only if that actor still holds it: the slot may be that of
//! a successor by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ractor::{ActorId, ActorRef};
use tokio::sync::{oneshot, watch};

use super::error::HostError;
use super::message::SessionMessage;
use super::publish::FeedAccess;
use crate::journal::SessionLog;
use callsheet_values::types::{SessionId, SessionState, is_child_session};

/// The index of the sessions of a host.
#[derive(Debug)]
pub(super) struct SessionIndex {
    /// The number of sessions, awake or not.
    count: AtomicUsize,
    limits: SessionLimits,
    /// Locked for short sections, never across an await.
    sessions: Mutex<IndexedSessions>,
}

/// The limits of the number of sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionLimits {
    /// Maximum number of sessions that are awake, about to be, or being deleted.
    pub(super) awake: usize,
    /// Maximum number of stored sessions.
    pub(super) stored: Option<usize>,
}

/// Percentage of a limit from which it is nearly reached.
const NEARLY_FULL_PERCENT: usize = 90;

#[derive(Debug, Default)]
struct IndexedSessions {
    /// The sessions that are awake, about to be, or being deleted.
    slots: BTreeMap<SessionId, SessionSlot>,
    /// Sessions with an unfinished run when they left memory, or when the host started (then also those with queued
    /// inputs or an unfinished deletion). Some are awake again.
    with_unfinished_run: BTreeSet<SessionId>,
    /// Sessions with interrupted runs that wait for a manual resume.
    suspended: BTreeSet<SessionId>,
}

/// The slot of a session in the index.
#[derive(Debug)]
enum SessionSlot {
    /// The session is about to start, to be read from the journal, or being deleted. The requests wait for the end of
    /// that.
    Reserved(Vec<Waiter>),
    Awake(Arc<AwakeSession>),
}

/// A request that waits for a session to be awake.
type Waiter = oneshot::Sender<Result<Arc<AwakeSession>, HostError>>;

/// Receives the session for which a request waits.
pub(super) type AwakeReceiver = oneshot::Receiver<Result<Arc<AwakeSession>, HostError>>;

/// A session that a request needs.
#[derive(Debug)]
pub(super) enum RequestedSession {
    Awake(Arc<AwakeSession>),
    NotYet(AwakeReceiver),
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
    /// The number of the session in the journal, once a list has read it.
    pub(super) number: OnceLock<u64>,
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

    /// Returns the state of the awake session.
    pub(super) fn state(&self) -> SessionState {
        match self.has_open_run.load(Ordering::Acquire) {
            true => SessionState::Running,
            false => SessionState::Idle,
        }
    }
}

impl SessionIndex {
    /// Makes the index of a host with `count` stored sessions, some of them `unfinished`, and some of these `suspended`.
    pub(super) fn new(
        count: usize,
        limits: SessionLimits,
        unfinished: &[SessionId],
        suspended: BTreeSet<SessionId>,
    ) -> Self {
        let with_unfinished_run = BTreeSet::from_iter(unfinished.iter().cloned());
        let slots = BTreeMap::new();
        let sessions = Mutex::new(IndexedSessions { slots, with_unfinished_run, suspended });
        Self { count: AtomicUsize::new(count), limits, sessions }
    }

    /// Returns the number of sessions, awake or not.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns the number of sessions that are not awake and have a run that has not ended, or an input that waits.
    pub(super) fn unfinished_asleep(&self) -> usize {
        let sessions = self.sessions.lock();
        sessions.with_unfinished_run.iter().filter(|id| sessions.awake(id).is_none()).count()
    }

    /// Returns the limits of the number of sessions.
    pub(super) fn limits(&self) -> SessionLimits {
        self.limits
    }

    /// Returns the number of stored sessions and its limit, if that is nearly reached.
    pub(super) fn nearly_full(&self) -> Option<(usize, usize)> {
        let (count, max) = (self.count(), self.limits.stored?);
        is_nearly_full(count, max).then_some((count, max))
    }

    /// Returns whether the sessions in memory have nearly reached their limit.
    pub(super) fn is_crowded(&self) -> bool {
        is_nearly_full(self.sessions.lock().slots.len(), self.limits.awake)
    }

    /// Returns the session if it is awake.
    pub(super) fn awake(&self, id: &SessionId) -> Option<Arc<AwakeSession>> {
        self.sessions.lock().awake(id).cloned()
    }

    /// Returns the awake sessions.
    pub(super) fn all_awake(&self) -> Vec<(SessionId, Arc<AwakeSession>)> {
        let sessions = self.sessions.lock();
        sessions.all_awake().map(|(id, session)| (id.clone(), Arc::clone(session))).collect()
    }

    /// Returns the number of unread events of the slowest subscriber.
    pub(super) fn longest_watcher_queue(&self) -> usize {
        let sessions = self.sessions.lock();
        let queues = sessions.all_awake().map(|(_, session)| session.feed_access.longest_queue());
        queues.max().unwrap_or(0)
    }

    /// Returns the state of a session. Does not check that the session exists.
    pub(super) fn state(&self, id: &SessionId) -> SessionState {
        let sessions = self.sessions.lock();
        match sessions.awake(id) {
            Some(awake_session) => awake_session.activity.state(),
            None => sessions.sleeping_state(id),
        }
    }

    /// Returns the session if it is awake, else a receiver of it. Calls `wake` if the session has no slot. The index
    /// stays locked during the call, and unchanged if it fails.
    pub(super) fn find_or_wake(
        &self,
        id: &SessionId,
        wake: impl FnOnce() -> Result<(), HostError>,
    ) -> Result<RequestedSession, HostError> {
        let mut sessions = self.sessions.lock();
        // An unfinished run was admitted before.
        let is_refused =
            sessions.slots.len() >= self.limits.awake && !sessions.with_unfinished_run.contains(id);
        match sessions.slots.get_mut(id) {
            Some(SessionSlot::Awake(awake_session)) => {
                Ok(RequestedSession::Awake(Arc::clone(awake_session)))
            }
            Some(SessionSlot::Reserved(waiting)) => {
                let (waiter, waited) = oneshot::channel();
                waiting.push(waiter);
                Ok(RequestedSession::NotYet(waited))
            }
            None if is_refused => Err(HostError::Full("session")),
            None => {
                wake()?;
                Ok(RequestedSession::NotYet(sessions.insert_reserved(id)))
            }
        }
    }

    /// Reserves the id of a new session, and counts it. Returns a receiver of the session.
    pub(super) fn reserve_new(&self, id: &SessionId) -> Result<AwakeReceiver, HostError> {
        let mut sessions = self.sessions.lock();
        if sessions.slots.contains_key(id) {
            return Err(HostError::SessionExists);
        }
        if sessions.slots.len() >= self.limits.awake {
            return Err(HostError::Full("session"));
        }
        let more = |count: usize| {
            self.limits.stored.is_none_or(|max| count < max).then(|| count.saturating_add(1))
        };
        let counted = self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        counted.map_err(|_| HostError::StoreFull)?;
        Ok(sessions.insert_reserved(id))
    }

    /// Stops counting a new session that could not be opened.
    pub(super) fn uncount_new(&self) {
        self.uncount();
    }

    fn uncount(&self) {
        // Another host may have opened the session after they were counted.
        let less = |count: usize| Some(count.saturating_sub(1));
        let _ = self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Sets the number of stored sessions, to which other hosts have added.
    pub(super) fn set_count(&self, count: usize) {
        self.count.store(count, Ordering::SeqCst);
    }

    /// Reserves slots for the deletion of those sessions that have no slot. Returns their ids.
    pub(super) fn reserve_for_deletion(&self, mut ids: Vec<SessionId>) -> Vec<SessionId> {
        let slots = &mut self.sessions.lock().slots;
        ids.retain(|id| !slots.contains_key(id));
        slots.extend(ids.iter().map(|id| (id.clone(), SessionSlot::Reserved(Vec::new()))));
        ids
    }

    /// Adds an awake session to the index, and answers the requests that wait for it.
    pub(super) fn insert_awake(&self, id: &SessionId, awake_session: &Arc<AwakeSession>) {
        let slot = SessionSlot::Awake(Arc::clone(awake_session));
        let before = self.sessions.lock().slots.insert(id.clone(), slot);
        answer(before, &Ok(Arc::clone(awake_session)));
    }

    /// Removes the slot of a session that could not be woken, and fails the requests that wait for it.
    pub(super) fn fail_wake(&self, id: &SessionId, error: HostError) {
        let before = self.sessions.lock().slots.remove(id);
        answer(before, &Err(error));
    }

    /// Removes the slot of a session that is neither started nor deleted. The requests that wait for it look for the
    /// session again.
    pub(super) fn release_slot(&self, id: &SessionId) {
        self.fail_wake(id, HostError::SessionExists);
    }

    /// Reserves the slot of a session whose actor has died for its restart. Returns false if the actor does not hold
    /// the slot.
    pub(super) fn begin_restart(&self, id: &SessionId, dead: ActorId) -> bool {
        let mut sessions = self.sessions.lock();
        let Some(awake_session) = sessions.held_by(id, dead) else { return false };
        let has_run = awake_session.activity.has_open_run.load(Ordering::Acquire);
        sessions.note_left(id, has_run);
        sessions.slots.insert(id.clone(), SessionSlot::Reserved(Vec::new()));
        true
    }

    /// Returns whether a session whose actor has died is to be woken: if `wake_now`, or if a request waits for it.
    /// Otherwise passes its state to `publish` and removes its slot.
    pub(super) fn finish_restart(
        &self,
        id: &SessionId,
        wake_now: bool,
        publish: impl FnOnce(SessionState),
    ) -> bool {
        let mut sessions = self.sessions.lock();
        let is_needed = matches!(sessions.slots.get(id), Some(SessionSlot::Reserved(waiting)) if wake_now || !waiting.is_empty());
        if !is_needed {
            sessions.slots.remove(id);
            // Published before a request can find the slot free, so that the state of a session that wakes follows.
            publish(sessions.sleeping_state(id));
        }
        is_needed
    }

    /// Makes requests wait for the deletion of an awake session, if `actor` still holds its slot.
    pub(super) fn begin_deletion(&self, id: &SessionId, actor: ActorId) {
        let mut sessions = self.sessions.lock();
        if sessions.held_by(id, actor).is_some() {
            sessions.slots.insert(id.clone(), SessionSlot::Reserved(Vec::new()));
        }
    }

    /// Removes an awake session from the index if `actor` still holds its slot and `may_remove` returns true. The
    /// index stays locked during the call, so no request finds the session.
    pub(super) fn remove_awake_if(
        &self,
        id: &SessionId,
        actor: ActorId,
        has_unfinished_run: bool,
        may_remove: impl FnOnce() -> bool,
    ) -> bool {
        let mut sessions = self.sessions.lock();
        let is_removed = sessions.held_by(id, actor).is_some() && may_remove();
        if is_removed {
            sessions.note_left(id, has_unfinished_run);
            sessions.slots.remove(id);
        }
        is_removed
    }

    /// Forgets a session whose records are deleted, except for its slot.
    pub(super) fn note_deleted(&self, id: &SessionId) {
        self.uncount();
        let mut sessions = self.sessions.lock();
        sessions.with_unfinished_run.remove(id);
        sessions.suspended.remove(id);
    }

    /// Notes sessions with an unfinished run that another host has left, and that it waits for a manual resume.
    pub(super) fn note_unfinished(&self, ids: &[SessionId], waits: bool) {
        let mut sessions = self.sessions.lock();
        sessions.with_unfinished_run.extend(ids.iter().cloned());
        sessions.suspended.extend(ids.iter().filter(|_| waits).cloned());
    }

    /// Forgets what is known of the runs of a session that another host has.
    pub(super) fn forget(&self, id: &SessionId) {
        let mut sessions = self.sessions.lock();
        sessions.with_unfinished_run.remove(id);
        sessions.suspended.remove(id);
    }

    /// Returns whether a session is known to have an unfinished run.
    pub(super) fn is_unfinished(&self, id: &SessionId) -> bool {
        self.sessions.lock().with_unfinished_run.contains(id)
    }

    /// Returns whether the interrupted run of a session waits for a manual resume.
    pub(super) fn is_suspended(&self, id: &SessionId) -> bool {
        self.sessions.lock().suspended.contains(id)
    }

    /// Notes that the interrupted run of a session goes on.
    pub(super) fn note_resumed(&self, id: &SessionId) {
        self.sessions.lock().suspended.remove(id);
    }

    /// Removes all slots, because the host has ended.
    pub(super) fn clear_slots(&self) {
        self.sessions.lock().slots.clear();
    }
}

impl IndexedSessions {
    fn awake(&self, id: &SessionId) -> Option<&Arc<AwakeSession>> {
        if let SessionSlot::Awake(session) = self.slots.get(id)? { Some(session) } else { None }
    }

    fn all_awake(&self) -> impl Iterator<Item = (&SessionId, &Arc<AwakeSession>)> {
        self.slots.iter().filter_map(|(id, slot)| match slot {
            SessionSlot::Awake(awake_session) => Some((id, awake_session)),
            SessionSlot::Reserved(_) => None,
        })
    }

    /// Returns the awake session if `actor` holds its slot.
    fn held_by(&self, id: &SessionId, actor: ActorId) -> Option<&AwakeSession> {
        self.awake(id).map(|session| &**session).filter(|session| session.actor.get_id() == actor)
    }

    /// Returns the state of a session that is not awake.
    fn sleeping_state(&self, id: &SessionId) -> SessionState {
        match self.with_unfinished_run.contains(id) {
            true => SessionState::Running,
            false => SessionState::Hibernated,
        }
    }

    /// Notes whether a session that leaves memory has a run that has not ended.
    fn note_left(&mut self, id: &SessionId, has_unfinished_run: bool) {
        if has_unfinished_run {
            self.with_unfinished_run.insert(id.clone());
        } else {
            self.with_unfinished_run.remove(id);
        }
    }

    fn insert_reserved(&mut self, id: &SessionId) -> AwakeReceiver {
        let (waiter, waited) = oneshot::channel();
        self.slots.insert(id.clone(), SessionSlot::Reserved(vec![waiter]));
        waited
    }
}

fn is_nearly_full(count: usize, max: usize) -> bool {
    count >= max || count.saturating_mul(100) >= max.saturating_mul(NEARLY_FULL_PERCENT)
}

fn answer(slot: Option<SessionSlot>, woken: &Result<Arc<AwakeSession>, HostError>) {
    if let Some(SessionSlot::Reserved(waiting)) = slot {
        for waiter in waiting {
            // The waiting request may be gone.
            let _ = waiter.send(woken.clone());
        }
    }
}
