//! What users say while a run goes on: to it, or behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::ActorRef;

use super::run::NewRun;
use super::{Closing, State};
use crate::event::{Event, RunStats};
use crate::journal::{Urgency, unix_ms};
use crate::record::{Record, RequestKey, Seq};
use crate::runtime::error::HostError;
use crate::runtime::gauge::CountGuard;
use crate::runtime::host_state::HostState;
use crate::runtime::message::SessionMessage;
use crate::runtime::snapshot::QueuedInput;
use crate::session::{RequestEffect, SeenRequest};
use crate::telemetry::RecordPosition;
use crate::types::{Content, RunEnd};

/// A run that waits for the one before it to end.
pub(super) struct QueuedRun {
    run: NewRun,
    _counted: CountGuard,
}

impl QueuedRun {
    pub(super) fn new(run: NewRun, shared: &HostState) -> Self {
        Self { run, _counted: shared.gauges.queued.increment() }
    }

    /// Whether anybody waits for its report.
    pub(super) fn is_awaited(&self) -> bool {
        self.run.report.as_ref().is_some_and(|report| !report.is_closed())
    }
}

impl State {
    /// What a request with this key did before, if there was one.
    ///
    /// # Errors
    /// When it asked for something else.
    pub(super) fn known(
        &self,
        request: Option<&RequestKey>,
    ) -> Result<Option<SeenRequest>, HostError> {
        let Some(request) = request else { return Ok(None) };
        match self.requests.get(&request.key) {
            Some(known) if known.digest == request.digest => Ok(Some(known.clone())),
            Some(_) => Err(HostError::KeyReused),
            None => Ok(None),
        }
    }

    /// Takes an input for the run that goes on. It stands in the history once the running turn is
    /// over, before the next request.
    pub(super) fn steer(
        &mut self,
        input: Content,
        request: Option<RequestKey>,
    ) -> Result<Seq, HostError> {
        if !matches!(self.close, Closing::No) {
            return Err(HostError::SessionClosed);
        }
        if let Some(known) = self.known(request.as_ref())? {
            let is_it = known.brought == RequestEffect::Steered;
            return if is_it { Ok(known.seq) } else { Err(HostError::KeyReused) };
        }
        if input.is_blank() {
            return Err(HostError::EmptyInput);
        }
        if self.suspended.is_some() {
            return Err(HostError::Suspended);
        }
        let run = self.run.as_ref().ok_or(HostError::NoRun)?;
        self.room_for_an_input()?;
        let after_turn = self.turn;
        let record = Record::Steered { input: input.clone(), after_turn, request: request.clone() };
        let (seq, _) = self.log.append(vec![record], Urgency::Lazy, || ());
        self.publisher.publish(&run.id, self.turn, Event::RunSteered { input: input.clone() });
        self.history.steer(after_turn, input);
        if let Some(request) = request {
            self.requests.remember(request, seq, RequestEffect::Steered);
        }
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
            overrides: Box::new(run.overrides.clone()),
            request: run.request.clone(),
            trace: run.trace.clone(),
        };
        let (seq, _) = self.log.append(vec![record], Urgency::Lazy, || ());
        // Its key stands with that record.
        let run = NewRun { request: None, ..run };
        self.queue.push_back(QueuedRun::new(run, &self.shared));
        let event = Event::InputQueued { input, waiting: self.queue.len() };
        self.publisher.publish(&run_id, self.turn, event);
        self.shared.show_counts();
        Ok(seq)
    }

    /// A run has ended: its place goes to the one that waits longest, or back to the host.
    pub(super) fn hand_on(&mut self, place: CountGuard) {
        if self.shared.is_closing() {
            self.interrupt_queue();
        }
        match self.queue.pop_front() {
            Some(queued) => self.next = Some((queued.run, place)),
            None => self.live.running.store(false, Ordering::Release),
        }
    }

    /// Begins the run that waited for the one that has just ended.
    pub(super) async fn begin_next(&mut self, myself: &ActorRef<SessionMessage>) {
        let Some((run, place)) = self.next.take() else { return };
        if Box::pin(self.begin(myself, run, place)).await.is_err() {
            // No actors can be had: the session itself is ending.
            self.forget_queue(&HostError::SessionClosed);
            self.live.running.store(false, Ordering::Release);
        }
    }

    /// What waits will not be begun: whoever waits for it is told so now.
    pub(super) fn tell_queue(&mut self, why: &HostError) {
        for queued in &mut self.queue {
            if let Some(report) = queued.run.report.take() {
                // Whoever waited may be gone.
                let _ = report.send(Err(why.clone()));
            }
        }
    }

    /// What waits is begun and ended at once: its inputs stand in the history.
    fn interrupt_queue(&mut self) {
        while let Some(QueuedRun { run, .. }) = self.queue.pop_front() {
            let rules = Arc::clone(&run.agent.rules);
            let (end, model) = (RunEnd::Interrupted, rules.models.first().origin.model.clone());
            let stats = RunStats::default();
            let (execution, agent) = (rules.execution, run.agent.name.clone());
            let started = Record::RunStarted {
                run_id: run.id.clone(),
                input: run.input.clone(),
                overrides: Box::new(run.overrides.clone()),
                model: model.clone(),
                execution,
                request: None,
                trace: run.trace.clone(),
            };
            let ended = Record::RunEnded {
                run_id: run.id.clone(),
                end,
                text: String::new(),
                error: None,
                stats: (&stats).into(),
                waiting: self.queue.len() as u64,
            };
            let time = unix_ms();
            let (last, _) = self.log.append_at(time, vec![started, ended], Urgency::Lazy, || ());
            self.history.begin_run(run.input.clone());
            self.history.end_run();
            let event = Event::RunStarted { agent: agent.clone(), model, execution };
            let first = RecordPosition { seq: Seq(last.0.saturating_sub(1)), time, shown: 0 };
            let last = RecordPosition { seq: last, time, shown: 0 };
            self.publisher.publish_recorded(&run.id, self.turn, event, first);
            let event = Event::RunEnded {
                agent,
                end,
                text: String::new(),
                error: None,
                stats: stats.into(),
            };
            self.publisher.publish_recorded(&run.id, self.turn, event, last);
            run.tell(Err(HostError::ShuttingDown));
        }
        self.shared.show_counts();
    }

    /// What waits is not begun, and whoever waits for it is told why.
    pub(super) fn forget_queue(&mut self, why: &HostError) {
        if !self.queue.is_empty() {
            for queued in self.queue.drain(..) {
                queued.run.tell(Err(why.clone()));
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
