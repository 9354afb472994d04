//! Hibernation: the actor of an idle session ends, because the journal holds its whole state.
//! `runtime::host_ref` lists all that wakes the session.
//!
//! The host asks a session to hibernate after `idle_after`. `SessionHandle::hibernate` and the fork of a large
//! session ask at once. The session does so only if all of this holds:
//!
//! - No message has arrived for that time, except those of periodic work and of changed lists of tools, and no caller
//!   waits for the report of a run.
//! - Its events have no subscriber (`Feed::close_if_unwatched`).
//! - No tool runs, also none that waits for people; no actor of an earlier run is left, and no actor is being
//!   replaced.
//! - All records are durable.
//! - The session has no open run, no queued input and no summary is awaited; or a suspended run and no queued
//!   input; or an open run that waits only for people and is not being stopped
//!   ([`Session::may_hibernate`](callsheet_machines::session::Session)).
//! - Neither the session is closing nor the host is shutting down.
//!
//! At the shutdown of the host, other conditions hold: a session leaves memory if its run waits only for people and
//! none of its calls runs ([`leave_at_shutdown`](SessionActor::leave_at_shutdown)).

use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::ActorRef;

use super::SessionActor;
use super::run::{ActiveRun, RunActors, RunCaller};
use crate::runtime::error::HostError;
use crate::runtime::message::{AccumulatorMessage, SessionMessage};
use crate::runtime::supervision::call;
use callsheet_values::types::SessionState;

impl SessionActor {
    /// Hibernates, if the last request is at least `idle` old and the other conditions hold.
    pub(super) fn hibernate(&mut self, myself: &ActorRef<SessionMessage>, idle: Duration) {
        let idle_ms = callsheet_values::types::millis(idle);
        let touched = self.activity.touched_ms.load(Ordering::Relaxed);
        let is_quiet = self.host_ref.shared.clock_ms().saturating_sub(touched) >= idle_ms
            && self.actors.ending.is_empty()
            && self.actors.current.as_ref().is_none_or(RunActors::run_no_tool)
            && !self.is_recovering()
            && !self.host_ref.shared.is_shutting_down();
        let is_awaited = self.run.as_deref().is_some_and(ActiveRun::is_awaited)
            || self.callers.runs.values().any(RunCaller::is_awaited);
        if !is_quiet || is_awaited || !self.session.may_hibernate() {
            return;
        }
        let has_run = self.session.run().is_some();
        // Removal from the index and closing are one step for other requests: each request finds
        // this session or its successor.
        let leaves = self.host_ref.shared.remove_awake_if(&self.id, myself.get_id(), || {
            let leaves = self.publisher.close_if_unwatched();
            if leaves && !self.log.close_if_durable() {
                self.publisher.reopen();
                return false;
            }
            self.activity.leaving.store(leaves, Ordering::Release);
            if leaves {
                self.host_ref.shared.set_has_unfinished_run(&self.id, has_run);
                // A request that wakes the session publishes the next state.
                let state = if has_run { SessionState::Running } else { SessionState::Hibernated };
                self.host_ref.shared.session_states.changed(&self.id, state);
            }
            leaves
        });
        if leaves {
            if let Some(until) = self.approvals_expire_at() {
                self.host_ref.shared.approval_expiries.lock().insert((until, self.id.clone()));
            }
            // An open run continues from its records when the session wakes.
            myself.stop(None);
        }
    }

    /// Ends the actor at the shutdown of the host if the run waits only for people and none of its calls runs.
    /// Writes no record: the run continues from its records on the next host. Returns whether the actor ends.
    ///
    /// The run of a child session ends with the call that opened it, because that call runs.
    pub(super) async fn leave_at_shutdown(&mut self, myself: &ActorRef<SessionMessage>) -> bool {
        if !self.host_ref.shared.is_shutting_down() || !self.has_resumable_run() {
            return false;
        }
        let Some(accumulator) = self.accumulator() else { return false };
        let flush = |reply| AccumulatorMessage::Flush { reply };
        let is_resumable = call(&accumulator, flush).await;
        // If a record cannot be stored, the message about that ends the session.
        let is_durable = self.log.wait_durable(self.log.last_seq()).await.is_ok();
        if is_resumable != Ok(true) || !is_durable {
            return false;
        }
        // A call whose approval was stored meanwhile may have started.
        if call(&accumulator, flush).await != Ok(true) {
            return false;
        }
        let leaves = self.host_ref.shared.remove_awake_if(&self.id, myself.get_id(), || {
            let leaves = self.log.close_if_durable();
            self.activity.leaving.store(leaves, Ordering::Release);
            if leaves {
                self.host_ref.shared.set_has_unfinished_run(&self.id, true);
            }
            leaves
        });
        if leaves {
            for actor in self.forget_actors().iter().flat_map(RunActors::cells) {
                actor.kill();
            }
            if let Some(run) = self.run.take() {
                run.fail(HostError::ShuttingDown);
            }
            self.fail_callers(&HostError::ShuttingDown);
            myself.stop(None);
        }
        leaves
    }

    fn has_resumable_run(&self) -> bool {
        let is_resumable = |run: &ActiveRun| {
            run.is_resumable && !run.is_turn_cancelled && run.recovering.is_none()
        };
        self.run.as_deref().is_some_and(is_resumable) && !self.is_in_child_run()
    }
}
