//! The end of the session actor when its records cannot be stored, or when the session is deleted.
//! Hibernation is in [`hibernate`](super::hibernate).

use std::sync::atomic::Ordering;

use ractor::ActorRef;

use super::run::RunActors;
use super::{SessionActor, unstored_outcomes};
use crate::journal::{BatchRefusal, JournalError};
use crate::runtime::error::HostError;
use crate::runtime::handle::SessionHandle;
use crate::runtime::message::SessionMessage;
use crate::runtime::stored_sessions;
use crate::runtime::task;
use callsheet_values::types::SessionState;

impl SessionActor {
    /// Ends the session because a record could not be stored, or because another host has the session. The state in
    /// memory may be ahead of the journal, so the next request reads the session from the journal again.
    pub(super) fn fail(&mut self, myself: &ActorRef<SessionMessage>, error: JournalError) {
        let metrics = self.host_ref.shared.telemetry.metrics().journal();
        let is_lost = error == JournalError::Refused(BatchRefusal::Fenced);
        if is_lost {
            tracing::info!(session = %self.id, "session_lost");
            self.host_ref.shared.telemetry.metrics().sharing().session_lost();
            // The journal has refused nothing, if the host has lost the session by its lease.
            self.publisher.feed_access().handle_journal(Err(error.clone()));
        } else if !matches!(error, JournalError::Refused(_)) {
            // A refusal is no failure of the journal.
            tracing::error!(session = %self.id, %error, "journal_failed");
            metrics.session_failed();
        }
        self.session.handle_left();
        let reason = HostError::from(error);
        let durable = self.log.durable_seq();
        // The callers of runs whose ends were lost receive this failure, so the runs must not go on here.
        let lost_ends: Vec<_> =
            self.ended_runs.drain(..).filter(|(_, end)| *end > durable).collect();
        let has_lost_end = !lost_ends.is_empty();
        let run = self.run.take();
        if is_lost {
            // The other host goes on with the run, so this one has nothing to record later.
            self.host_ref.shared.forget(&self.id);
        } else {
            let maintenance = &self.host_ref.shared.maintenance;
            let ids = lost_ends.into_iter().map(|(run, _)| run);
            maintenance.add_unrecorded_failures(&self.id, ids);
            if let Some(run) = &run {
                let entries = self.log.entries_since(run.seq_before_turn);
                let outcomes = unstored_outcomes::known(&entries, durable);
                maintenance.add_unrecorded_failures(&self.id, [run.id.clone()]);
                maintenance.keep_outcomes(&run.id, outcomes);
            }
        }
        if let Some(run) = run {
            run.fail(reason.clone());
        }
        for actor in self.forget_actors().iter().flat_map(RunActors::cells) {
            actor.kill();
        }
        self.fail_callers(&reason);
        for (_, reply) in self.callers.close.drain(..) {
            // The caller, which may be gone, deletes the session without waking it.
            let _ = reply.send(Err(HostError::SessionClosed));
        }
        self.activity.leaving.store(true, Ordering::Release);
        self.log.close();
        // The journal may have an open run: also one whose end was lost.
        let has_open_run = has_lost_end || self.activity.has_open_run.load(Ordering::Acquire);
        let shared = &self.host_ref.shared;
        // The slot of a session that is being deleted is another one.
        shared.index.remove_awake_if(&self.id, myself.get_id(), has_open_run && !is_lost, || {
            // A request that wakes the session publishes the next state.
            let state = if has_open_run { SessionState::Running } else { SessionState::Hibernated };
            shared.publish_state(&self.id, state);
            true
        });
        myself.stop(None);
    }

    /// Deletes the records of the closed session and its child sessions in the background. Requests wait in the slot
    /// until then. [`proceed`](Self::proceed) stops the actor when its last tools have ended.
    pub(super) fn delete_session(&mut self, myself: &ActorRef<SessionMessage>) {
        self.release_actors();
        self.log.close();
        self.host_ref.shared.index.begin_deletion(&self.id, myself.get_id());
        let waiting = std::mem::take(&mut self.callers.close);
        let session = SessionHandle::new(self.id.clone(), self.host_ref.clone());
        // The request that came first has closed the session.
        let author = waiting.first().and_then(|(author, _)| author.clone());
        let session = author.into_iter().fold(session, SessionHandle::by);
        let has_children = self.session.has_children();
        task::detach(async move {
            let deleted = stored_sessions::delete(&session, has_children).await;
            for (_, reply) in waiting {
                let _ = reply.send(deleted.clone());
            }
        });
    }
}
