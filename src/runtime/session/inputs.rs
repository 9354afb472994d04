//! What users say while a run goes on: to it, or behind it.

use std::sync::atomic::Ordering;

use ractor::ActorRef;

use super::run::NewRun;
use super::{Closing, State};
use crate::event::Event;
use crate::journal::Urgency;
use crate::record::{Record, Seq};
use crate::runtime::error::HostError;
use crate::runtime::gauge::Held;
use crate::runtime::message::SessionMessage;
use crate::runtime::snapshot::QueuedInput;
use crate::types::Content;

/// A run that waits for the one before it to end.
pub(super) struct QueuedRun {
    run: NewRun,
    _counted: Held,
}

impl State {
    /// Takes an input for the run that goes on. It stands in the history once the running turn is
    /// over, before the next request.
    pub(super) fn steer(&mut self, input: Content) -> Result<Seq, HostError> {
        if !matches!(self.close, Closing::No) {
            return Err(HostError::SessionClosed);
        }
        if input.is_blank() {
            return Err(HostError::EmptyInput);
        }
        let run = self.run.as_ref().ok_or(HostError::NoRun)?;
        self.room_for_an_input()?;
        let after_turn = self.turn;
        let record = Record::Steered { input: input.clone(), after_turn, request: None };
        let (seq, _) = self.log.append(vec![record], Urgency::Lazy, || ());
        self.publisher.publish(&run.id, self.turn, Event::RunSteered { input: input.clone() });
        self.history.steer(after_turn, input);
        Ok(seq)
    }

    /// Lets a run wait for the end of the one that goes on.
    pub(super) fn enqueue(&mut self, run: NewRun) -> Result<Seq, HostError> {
        self.room_for_an_input()?;
        if self.shared.is_closing() {
            return Err(HostError::ShuttingDown);
        }
        let (run_id, input) = (run.id.clone(), run.input.clone());
        let record = Record::InputQueued {
            run_id: run_id.clone(),
            input: input.clone(),
            overrides: run.overrides.clone(),
            request: None,
        };
        let (seq, _) = self.log.append(vec![record], Urgency::Lazy, || ());
        self.queue.push_back(QueuedRun { run, _counted: self.shared.gauges.queued.hold() });
        let event = Event::InputQueued { input, waiting: self.queue.len() };
        self.publisher.publish(&run_id, self.turn, event);
        self.shared.show_counts();
        Ok(seq)
    }

    /// A run has ended: its place goes to the one that waits longest, or back to the host.
    pub(super) fn hand_on(&mut self, place: Held) {
        if self.shared.is_closing() {
            self.forget_queue(&HostError::ShuttingDown);
        }
        match self.queue.pop_front() {
            Some(queued) => self.next = Some((queued.run, place)),
            None => self.running.store(false, Ordering::Release),
        }
    }

    /// Begins the run that waited for the one that has just ended.
    pub(super) async fn begin_next(&mut self, myself: &ActorRef<SessionMessage>) {
        let Some((run, place)) = self.next.take() else { return };
        if self.begin(myself, run, place).await.is_err() {
            // No actors can be had: the session itself is ending.
            self.forget_queue(&HostError::SessionClosed);
            self.running.store(false, Ordering::Release);
        }
    }

    /// What waits is not begun, and whoever waits for it is told why.
    pub(super) fn forget_queue(&mut self, why: &HostError) {
        if !self.queue.is_empty() {
            for queued in self.queue.drain(..) {
                // Whoever waited may be gone.
                let _ = queued.run.report.send(Err(why.clone()));
            }
            self.shared.show_counts();
        }
    }

    pub(super) fn queued_inputs(&self) -> Vec<QueuedInput> {
        let queued = self.queue.iter().map(|QueuedRun { run, .. }| QueuedInput {
            run_id: run.id.clone(),
            input: run.input.clone(),
        });
        queued.collect()
    }

    fn room_for_an_input(&self) -> Result<(), HostError> {
        let max = self.shared.queued_inputs_max;
        let waiting = self.queue.len() + self.history.undelivered();
        if waiting < max { Ok(()) } else { Err(HostError::QueueFull(max)) }
    }
}
