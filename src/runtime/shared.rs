//! What a host and its sessions share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use ractor::ActorId;

use super::agent::Agent;
use super::blocking::BlockingPool;
use super::caps::Caps;
use super::error::HostError;
use super::gauge::{Gauges, Held};
use super::handle::SessionHandle;
use super::models::Model;
use crate::journal::Journal;
use crate::telemetry::Telemetry;
use crate::types::{SessionId, SessionState};

#[derive(Debug)]
pub(super) struct Shared {
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
    pub(super) closing: AtomicBool,
    /// Held for short sections, never over an await.
    pub(super) index: Mutex<BTreeMap<SessionId, Place>>,
}

/// A session's place in the index.
#[derive(Debug)]
pub(super) enum Place {
    /// The session is about to begin.
    Reserved,
    /// It is there.
    Open(SessionHandle),
}

impl Shared {
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(super) fn place_for_a_run(&self) -> Result<Held, HostError> {
        let place = self.gauges.runs.try_hold(self.runs_max);
        // Looked at once the place is taken: either this sees the shutdown, or the shutdown sees
        // the run and waits for it.
        if self.is_closing() {
            return Err(HostError::ShuttingDown);
        }
        place.ok_or(HostError::Full("run"))
    }

    /// Reserves an id.
    pub(super) fn reserve(&self, id: &SessionId) -> Result<Held, HostError> {
        if self.is_closing() {
            return Err(HostError::ShuttingDown);
        }
        let mut index = self.index.lock();
        if index.contains_key(id) {
            return Err(HostError::SessionExists);
        }
        let held =
            self.gauges.sessions.try_hold(self.sessions_max).ok_or(HostError::Full("session"))?;
        index.insert(id.clone(), Place::Reserved);
        Ok(held)
    }

    pub(super) fn enter(&self, session: SessionHandle) {
        self.index.lock().insert(session.id().clone(), Place::Open(session));
    }

    pub(super) fn release(&self, id: &SessionId) {
        self.index.lock().remove(id);
    }

    /// Takes a session out of the index, unless it is out or another one has its id by now.
    /// Returns whether it was there.
    pub(super) fn forget(&self, id: &SessionId, actor: ActorId) -> bool {
        let mut index = self.index.lock();
        let there =
            matches!(index.get(id), Some(Place::Open(open)) if open.actor().get_id() == actor);
        if there {
            index.remove(id);
        }
        there
    }

    pub(super) fn session(&self, id: &SessionId) -> Option<SessionHandle> {
        match self.index.lock().get(id)? {
            Place::Open(session) => Some(session.clone()),
            Place::Reserved => None,
        }
    }

    /// The open sessions, by id.
    pub(super) fn sessions(&self) -> Vec<SessionHandle> {
        let index = self.index.lock();
        let open = index.values().filter_map(|place| match place {
            Place::Open(session) => Some(session.clone()),
            Place::Reserved => None,
        });
        open.collect()
    }

    /// Brings the metrics that no event tells up to date.
    pub(super) fn show_counts(&self) {
        let metrics = self.telemetry.metrics();
        let (sessions, runs) = (self.gauges.sessions.count(), self.gauges.runs.count());
        metrics.runs_active(runs);
        metrics.queued_inputs(self.gauges.queued.count());
        metrics.calls_waiting(self.gauges.waiting.count());
        metrics.threads_abandoned(self.gauges.abandoned.count());
        for model in self.models.values() {
            model.gate.show();
        }
        metrics.sessions(SessionState::Running, runs);
        metrics.sessions(SessionState::Idle, sessions.saturating_sub(runs));
    }
}
