//! The ends of a session's time in memory: it falls asleep, it is closed, or its records can no
//! longer be stored.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{ActorRef, RpcReplyPort};

use super::inputs::QueuedRun;
use super::{Closing, State};
use crate::journal::JournalError;
use crate::journal::Urgency;
use crate::record::{Record, StopMode};
use crate::runtime::error::HostError;
use crate::runtime::host_state::SessionSlot;
use crate::runtime::message::SessionMessage;
use crate::runtime::run_actors::RunActors;
use crate::runtime::stored_sessions;
use crate::runtime::task;

impl State {
    /// Leaves memory if nothing has happened for so long, nobody listens and nothing goes on but
    /// the wait for people. All that it was is in the journal.
    pub(super) fn hibernate(&mut self, myself: &ActorRef<SessionMessage>, idle: Duration) {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let touched = self.live.touched_ms.load(Ordering::Relaxed);
        let is_quiet = self.shared.clock_ms().saturating_sub(touched) >= idle_ms
            && self.next.is_none()
            && self.lingering.is_empty()
            && self.actors.as_ref().is_none_or(RunActors::run_no_tool)
            && matches!(self.close, Closing::No)
            && !self.shared.is_closing();
        let rests = match &self.run {
            None => self.queue.is_empty(),
            Some(run) => run.may_sleep(),
        };
        let rests = rests && !self.queue.iter().any(QueuedRun::is_awaited);
        if !is_quiet || !rests {
            return;
        }
        // One step for those who ask: whoever finds it can come in, and whoever cannot finds its
        // successor.
        let leaves = self.shared.leave_index(&self.id, myself.get_id(), || {
            let leaves = self.publisher.leave();
            if leaves && !self.log.close_if_durable() {
                self.publisher.stay();
                return false;
            }
            self.live.leaving.store(leaves, Ordering::Release);
            leaves
        });
        if leaves {
            if let Some(until) = self.answer_until() {
                self.shared.alarms.lock().insert((until, self.id.clone()));
            }
            // The run goes on from its records.
            myself.stop(None);
        }
    }

    /// A record could not be stored. What is in memory is no more than a guess; what is stored
    /// is the truth, and the next request begins with that.
    pub(super) fn fail(&mut self, myself: &ActorRef<SessionMessage>, error: JournalError) {
        tracing::error!(session = %self.id, %error, "journal_failed");
        self.shared.telemetry.metrics().journal().session_failed();
        let why = HostError::Journal(error);
        if let Some(run) = self.run.take() {
            self.shared.unwritten.lock().insert(run.id.clone(), self.id.clone());
            run.tell(Err(why.clone()));
        }
        for cell in self.forget_actors().iter().flat_map(RunActors::cells) {
            cell.kill();
        }
        self.forget_queue(&why);
        if let Some((next, _)) = self.next.take() {
            next.tell(Err(why.clone()));
        }
        if let Closing::Asked(waiting) = std::mem::replace(&mut self.close, Closing::Closed) {
            for reply in waiting {
                // Whoever waited may be gone.
                let _ = reply.send(Err(why.clone()));
            }
        }
        self.leave(myself);
    }

    fn leave(&mut self, myself: &ActorRef<SessionMessage>) {
        self.live.leaving.store(true, Ordering::Release);
        self.log.close();
        self.shared.replace(&self.id, myself.get_id(), None);
        myself.stop(None);
    }

    pub(super) fn ask_to_close(&mut self, reply: RpcReplyPort<Result<(), HostError>>) {
        match &mut self.close {
            Closing::No => self.close = Closing::Asked(vec![reply]),
            Closing::Asked(waiting) => waiting.push(reply),
            Closing::Closed => {
                let _ = reply.send(Ok(()));
            }
        }
        self.forget_queue(&HostError::SessionClosed);
        self.stop(StopMode::Now);
    }

    pub(super) fn close_if_asked(&mut self, myself: &ActorRef<SessionMessage>) {
        if self.run.is_some() || self.suspended.is_some() {
            return;
        }
        if let Closing::Asked(waiting) = &mut self.close {
            let waiting = std::mem::take(waiting);
            self.close = Closing::Closed;
            self.let_actors_go();
            self.log.append(vec![Record::SessionClosed], Urgency::Lazy, || ());
            self.log.close();
            self.shared.replace(&self.id, myself.get_id(), Some(SessionSlot::Leaving));
            let (link, id) = (self.link.clone(), self.id.clone());
            task::detach(async move {
                let deleted = stored_sessions::delete(&link, &id).await;
                for reply in waiting {
                    let _ = reply.send(deleted.clone());
                }
            });
        }
        if matches!(self.close, Closing::Closed) && self.lingering.is_empty() {
            myself.stop(None);
        }
    }
}
