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
//! At the shutdown of the host, other conditions hold ([`leave_at_shutdown`](SessionActor::leave_at_shutdown)).

use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::ActorRef;

use super::SessionActor;
use super::run::{ActiveRun, RunActors, RunCaller};
use crate::runtime::error::HostError;
use crate::runtime::message::{AccumulatorMessage, SessionMessage};
use crate::runtime::supervision::call;
use callsheet_values::config::OnShutdown;
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
        let shared = &self.host_ref.shared;
        let leaves = shared.index.remove_awake_if(&self.id, myself.get_id(), has_run, || {
            let leaves = self.publisher.close_if_unwatched();
            if leaves && !self.log.close_if_durable() {
                self.publisher.reopen();
                return false;
            }
            self.activity.leaving.store(leaves, Ordering::Release);
            if leaves {
                // A request that wakes the session publishes the next state.
                let state = if has_run { SessionState::Running } else { SessionState::Hibernated };
                shared.publish_state(&self.id, state);
            }
            leaves
        });
        if leaves {
            if let Some(until) = self.approvals_expire_at() {
                shared.maintenance.add_expiry(until, self.id.clone());
            }
            // An open run continues from its records when the session wakes.
            myself.stop(None);
        }
    }

    /// Leaves memory at the shutdown of the host, if the next host can go on with the run from its records. Writes no
    /// record. Returns whether the session has left: it handles no further message, and its actor ends, if tools still
    /// run after their grace period.
    ///
    /// With `on_shutdown = "interrupt"`, that is a run that waits only for people and none of whose calls runs. The run
    /// of a child session ends with the call that opened it, because that call runs.
    ///
    /// With `"suspend"` and `"hand_over"`, it is also the run of a child session, a run of whose calls only those of agents
    /// run, a run between two turns, and each run once the grace period of the shutdown is over: it is left as by a crash,
    /// but the outcomes that are known are stored first. With `"hand_over"`, it is also an idle session.
    pub(super) async fn leave_at_shutdown(
        &mut self,
        myself: &ActorRef<SessionMessage>,
        is_grace_over: bool,
    ) -> bool {
        if !self.host_ref.shared.is_shutting_down() {
            return false;
        }
        // Another host can have an idle session at once.
        let is_idle = self.host_ref.shared.catalog.on_shutdown == OnShutdown::HandOver
            && self.run.is_none()
            && self.session.run().is_none();
        let stops_turn =
            is_grace_over && self.host_ref.shared.leaves_runs() && self.session.may_be_suspended();
        if stops_turn {
            // Everything that has been reported so far is handled first.
            let _ = self.flush_turn().await;
            self.log.close();
        } else if !is_idle {
            let has_resumable_turn = self.has_resumable_run() && self.flush_turn().await;
            if !has_resumable_turn && !self.session.is_held() {
                return false;
            }
        }
        // If a record cannot be stored, the message about that ends the session.
        if self.log.wait_durable(self.log.last_seq()).await.is_err() {
            return false;
        }
        // A call whose approval was stored meanwhile may have started.
        if !stops_turn && !is_idle && !self.session.is_held() && !self.flush_turn().await {
            return false;
        }
        let index = &self.host_ref.shared.index;
        let leaves = index.remove_awake_if(&self.id, myself.get_id(), !is_idle, || {
            let leaves = self.log.close_if_durable();
            self.activity.leaving.store(leaves, Ordering::Release);
            leaves
        });
        if leaves {
            self.session.handle_left();
            self.release_actors();
            if let Some(run) = self.run.take() {
                run.fail(HostError::ShuttingDown);
            }
            self.fail_callers(&HostError::ShuttingDown);
            if let Some(waits) = &self.activity.waits_for_people {
                // Nothing happens here any more: the run of the call that opened this session may be left, too.
                waits.send_replace(true);
            }
            self.run_count_guard = None;
            self.stop_if_left(myself);
        }
        leaves
    }

    /// Stops the actor of a session that has left memory once no tool runs.
    pub(super) fn stop_if_left(&self, myself: &ActorRef<SessionMessage>) {
        if self.has_left() && self.actors.ending.is_empty() {
            myself.stop(None);
        }
    }

    /// Returns whether the session has left memory.
    pub(super) fn has_left(&self) -> bool {
        self.activity.leaving.load(Ordering::Acquire)
    }

    /// Waits until the accumulator has handled what it has received. Returns whether the turn is resumable.
    async fn flush_turn(&self) -> bool {
        let Some(accumulator) = self.accumulator() else { return false };
        call(&accumulator, |reply| AccumulatorMessage::Flush { reply }).await == Ok(true)
    }

    fn has_resumable_run(&self) -> bool {
        let is_resumable = |run: &ActiveRun| {
            run.is_resumable && !run.is_turn_cancelled && run.recovering.is_none()
        };
        let may_leave = !self.is_in_child_run() || self.host_ref.shared.leaves_runs();
        self.run.as_deref().is_some_and(is_resumable) && may_leave
    }
}
