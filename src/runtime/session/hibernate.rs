//! Hibernation: the actor of an idle session ends, because the journal holds its whole state. The next
//! request wakes the session (`runtime::host_ref`), and so does the expiry of an approval
//! (`runtime::maintenance`).
//!
//! The host asks a session to hibernate after `idle_after`. It does so only if all of this holds:
//!
//! - No message of a client or a tool has arrived for that time, and no caller waits for the report of a run.
//! - Its events have no subscriber (`Feed::close_if_unwatched`).
//! - No tool runs, also none that waits for people; no actor of an earlier run is left, and no actor is being replaced.
//! - All records are durable.
//! - The session has no open run and no queued input, or a suspended run and no queued input, or an
//!   open run that waits only for people and is not being stopped; no summary is awaited ([`Session::may_hibernate`](crate::session::Session)).
//! - Neither the session is closing nor the host is shutting down.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::ActorRef;

use super::SessionActorState;
use super::run::{ActiveRun, RunActors, RunCaller};
use crate::runtime::message::SessionMessage;
use crate::types::SessionState;

impl SessionActorState {
    /// Hibernates, if the last request is at least `idle` old and the other conditions hold.
    pub(super) fn hibernate(&mut self, myself: &ActorRef<SessionMessage>, idle: Duration) {
        let idle_ms = crate::types::millis(idle);
        let touched = self.activity.touched_ms.load(Ordering::Relaxed);
        let is_quiet = self.link.shared.clock_ms().saturating_sub(touched) >= idle_ms
            && self.actors.ending.is_empty()
            && self.actors.current.as_ref().is_none_or(RunActors::run_no_tool)
            && !self.is_recovering()
            && !self.link.shared.is_closing();
        let is_awaited = self.run.as_deref().is_some_and(ActiveRun::is_awaited)
            || self.callers.runs.values().any(RunCaller::is_awaited);
        if !is_quiet || is_awaited || !self.session.may_hibernate() {
            return;
        }
        // Removal from the index and closing are one step for other requests: each request finds
        // this session or its successor.
        let leaves = self.link.shared.remove_awake_if(&self.id, myself.get_id(), || {
            let leaves = self.publisher.close_if_unwatched();
            if leaves && !self.log.close_if_durable() {
                self.publisher.reopen();
                return false;
            }
            self.activity.leaving.store(leaves, Ordering::Release);
            leaves
        });
        if leaves {
            if let Some(until) = self.approvals_expire_at() {
                self.link.shared.approval_expiries.lock().insert((until, self.id.clone()));
            }
            let is_running = self.session.run().is_some();
            let state = if is_running { SessionState::Running } else { SessionState::Hibernated };
            self.link.shared.session_states.changed(&self.id, state);
            // An open run continues from its records when the session wakes.
            myself.stop(None);
        }
    }
}
