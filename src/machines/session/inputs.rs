//! Steering, stops, suspension, shutdown, close and frozen tools; what the runtime reports of the current turn and
//! run; and the condition of hibernation. Runs start in `runs.rs`; the context is made smaller in `context.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::idempotency_keys::RequestEffect;
use super::machine::{InputLimits, Lifecycle, Session, SessionEffect, SessionRefusal};
use super::open_run::{RunSpec, RunStage, TurnOrigin};
use super::run_machine::RunAnswer;
use crate::turn::{CancelReason, CommittedTurn};
use callsheet_values::config::OnShutdown;
use callsheet_values::record::{Record, RequestKey, Seq, StopMode};
use callsheet_values::types::{Author, CallKey, Content, RunError, RunId};

impl Session {
    /// Adds an input to the current run. It stands in the history after the turn in progress or the open initial
    /// calls, or at once without these. Returns the position of the input's record if the same request was accepted
    /// before.
    ///
    /// # Errors
    /// If the request is refused.
    pub fn handle_steer(
        &mut self,
        input: Content,
        request_key: Option<RequestKey>,
        author: Option<Author>,
        limits: InputLimits,
    ) -> Result<Option<Seq>, SessionRefusal> {
        self.check_open()?;
        if let Some(seen) = self.keys.find(request_key.as_ref())? {
            let is_steering = seen.effect == RequestEffect::Steered;
            return if is_steering { Ok(Some(seen.seq)) } else { Err(SessionRefusal::KeyReused) };
        }
        if input.is_blank() {
            return Err(SessionRefusal::EmptyInput);
        }
        self.check_not_suspended()?;
        if self.run.is_none() {
            return Err(SessionRefusal::NoRun);
        }
        self.check_room(limits.inputs_max)?;
        limits.check(&input)?;
        let record = Record::Steered {
            input,
            follows_turn: self.turn,
            request: request_key,
            authored_by: author,
        };
        self.record(vec![record]);
        Ok(None)
    }

    /// Stops the current run. A stop that changes nothing leaves no record. Queued runs stay: the next one starts
    /// when the run has ended.
    pub fn handle_stop(&mut self, mode: StopMode, author: Option<Author>) {
        let Some(run) = self.run.as_ref().filter(|run| !run.is_stopping(mode)) else { return };
        let reason = run.cancel.unwrap_or(CancelReason::Stop);
        self.record(vec![Record::StopAsked { mode, authored_by: author }]);
        if mode == StopMode::Now && !self.suspended && !self.waits_before_turn() {
            self.outbox.push_back(SessionEffect::CancelTurn(reason));
        }
    }

    /// Takes back the input of a queued run, which then does not start. The caller that waits for the run is refused.
    ///
    /// # Errors
    /// If no input of this run is queued: the run has started, or there is none.
    pub fn handle_remove_input(
        &mut self,
        run_id: &RunId,
        author: Option<Author>,
    ) -> Result<(), SessionRefusal> {
        self.check_open()?;
        if !self.queue.iter().any(|queued| queued.run_id == *run_id) {
            let is_current = self.run.as_ref().is_some_and(|run| run.id == *run_id);
            return Err(if is_current || self.references.has_run_end(run_id) {
                SessionRefusal::AlreadyStarted
            } else {
                SessionRefusal::NoSuchInput
            });
        }
        let run_id = run_id.clone();
        let record = Record::InputRemoved { run_id: run_id.clone(), authored_by: author };
        self.record(vec![record]);
        let reason = SessionRefusal::InputRemoved;
        self.outbox.push_back(SessionEffect::RunRefused { run_id, reason });
        Ok(())
    }

    /// Takes back all queued inputs.
    pub fn handle_remove_inputs(&mut self, author: Option<&Author>) {
        let runs: Vec<_> = self.queue.iter().map(|queued| queued.run_id.clone()).collect();
        for run_id in &runs {
            // A session that closes has no queue.
            let _ = self.handle_remove_input(run_id, author.cloned());
        }
    }

    /// Lets an interrupted run go on as soon as the session is awake. With `manual` a run waits
    /// for [`handle_resume`](Self::handle_resume), unless it is to stop anyway. Returns true if
    /// the session was suspended and goes on.
    pub fn handle_wake(&mut self, now: Duration, manual: bool) -> bool {
        let is_stopping = |run: &super::OpenRun| run.cancel.is_some() || run.stops_after_turn;
        let waits = manual && self.run.as_deref().is_some_and(|run| !is_stopping(run));
        let resumes = self.suspended && !waits;
        if resumes {
            self.resume(now);
        }
        resumes
    }

    /// Resumes an interrupted run.
    ///
    /// # Errors
    /// If no run is suspended.
    pub fn handle_resume(&mut self, now: Duration) -> Result<(), SessionRefusal> {
        if !self.is_suspended() {
            return Err(SessionRefusal::NotSuspended);
        }
        self.resume(now);
        Ok(())
    }

    fn resume(&mut self, now: Duration) {
        self.suspended = false;
        if let Some(run) = &mut self.run {
            run.resume(now);
        }
    }

    /// Leaves the session to another host, or to the next one: no end is recorded, and nothing else either. The other
    /// host goes on from the stored records, as after a crash. The end of a host has four meanings for a session:
    ///
    /// - *Interrupt*: its run ends as interrupted ([`handle_shutdown`](Self::handle_shutdown)).
    /// - *Suspend*: it leaves, also in mid-turn once the grace period is over, and the next host goes on.
    /// - *Hand over*: the same, while another host lives, which goes on at once.
    /// - *Lose*: it leaves at any time, because another host has it already. Records that were appended last may not be
    ///   stored.
    pub fn handle_left(&mut self) {
        self.lifecycle = Lifecycle::Left;
        self.outbox.clear();
    }

    /// Handles the shutdown of the host. Queued runs do not start any more, and their callers are refused.
    ///
    /// If the run is left to another host ([`OnShutdown::leaves_runs`]), nothing else begins: it stops before its next turn
    /// ([`is_held`](Self::is_held)).
    /// With [`OnShutdown::Interrupt`] the current run is interrupted after its turn; at once with `now`, or if the turn
    /// waits only for people.
    pub fn handle_shutdown(&mut self, on_shutdown: OnShutdown, now: bool) {
        self.note_shutdown(on_shutdown);
        for queued in &self.queue {
            let (run_id, reason) = (queued.run_id.clone(), SessionRefusal::ShuttingDown);
            self.outbox.push_back(SessionEffect::RunRefused { run_id, reason });
        }
        let waits = self.waits_before_turn();
        let is_interrupted = !self.suspended && on_shutdown == OnShutdown::Interrupt;
        let Some(run) = self.run.as_deref_mut().filter(|_| is_interrupted) else { return };
        let reason = *run.cancel.get_or_insert(CancelReason::Shutdown);
        let may_cancel = now && !waits;
        // A turn that waits only for people would not end before the host, so it is cancelled at once. A run
        // that can continue on the next host is kept before this function is called (`leave_at_shutdown` of
        // `runtime::session::hibernate`): none of its calls runs, and it is not that of a child session.
        if may_cancel || run.turn().is_some_and(super::OpenTurn::is_resting) {
            self.outbox.push_back(SessionEffect::CancelTurn(reason));
        }
    }

    /// Notes that the host shuts down: no further run starts.
    pub fn note_shutdown(&mut self, on_shutdown: OnShutdown) {
        self.shutdown = Some(on_shutdown);
    }

    /// Returns true if the session is open and has a run in progress or a queue, which the next host can go on with.
    #[must_use]
    pub fn may_be_suspended(&self) -> bool {
        let has_work = self.run.is_some() || !self.queue.is_empty();
        has_work && !self.suspended && self.lifecycle == Lifecycle::Open
    }

    /// Returns true if the session is open and leaves the rest of its run, or its queue, to the next host: no turn is
    /// in progress, and none begins here.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let is_left = match self.run.as_deref() {
            Some(run) => run.is_held(self.shutdown),
            None => self.shutdown.is_some_and(OnShutdown::leaves_runs),
        };
        is_left && self.may_be_suspended()
    }

    /// Freezes the list of the servers' tools; `sha256` is the hash of the list. Returns false if no run waits for
    /// it.
    pub fn handle_tools_read(&mut self, sha256: Arc<str>) -> bool {
        let is_needed = std::mem::take(&mut self.waits_for_tools) && self.frozen_tools.is_none();
        if !is_needed || self.run.is_none() {
            return false;
        }
        self.record(vec![Record::ToolsFrozen { sha256 }]);
        true
    }

    /// Replaces the frozen list of tools, on request, by the one with this SHA-256.
    ///
    /// # Errors
    /// If a run is in progress or queued, or the session is closing or closed.
    pub fn handle_tools_refreshed(&mut self, sha256: Arc<str>) -> Result<(), SessionRefusal> {
        self.check_idle()?;
        if self.frozen_tools.as_ref() != Some(&sha256) {
            self.record(vec![Record::ToolsFrozen { sha256 }]);
        }
        Ok(())
    }

    /// Sets whether the current turn waits only for people. Such a turn is cancelled if its run is to end.
    pub fn handle_resting(&mut self, now: Duration, rests: bool) {
        let Some(run) = self.run.as_deref_mut() else { return };
        if let RunStage::Turn(turn) = &mut run.stage {
            turn.set_resting(now, rests);
        }
        if let Some(reason) = run.cancel.filter(|_| rests) {
            self.outbox.push_back(SessionEffect::CancelTurn(reason));
        }
    }

    /// Handles the death of the owner of the current turn. The turn continues from its records.
    pub fn handle_turn_lost(&mut self, now: Duration) {
        let Some(run) = self.run.as_deref_mut() else { return };
        if let RunStage::Turn(turn) = &mut run.stage {
            run.people += turn.rested(now);
            *turn = super::OpenTurn::new(turn.request_kind, Some(TurnOrigin::Recorded));
            // The resumed turn asks again for a smaller context.
            self.forget_summary();
        }
    }

    /// Ends the current run as failed, after its turn if that was committed.
    pub fn handle_run_failed(
        &mut self,
        now: Duration,
        committed: Option<&CommittedTurn>,
        error: RunError,
    ) {
        if let Some(turn) = committed {
            self.handle_turn_committed(turn);
        }
        if self.run.is_some() {
            let failed = callsheet_values::types::RunEnd::Failed;
            let answer = RunAnswer::default();
            self.record_run_end(now, Vec::new(), failed, answer, Some(error));
        }
    }

    /// Closes the session: the current run is stopped, and queued runs do not start.
    pub fn handle_close(&mut self, author: Option<Author>) {
        if self.lifecycle == Lifecycle::Open {
            self.lifecycle = Lifecycle::Closing;
        }
        for RunSpec { run_id, .. } in std::mem::take(&mut self.queue) {
            let reason = SessionRefusal::Closed;
            self.outbox.push_back(SessionEffect::RunRefused { run_id, reason });
        }
        self.handle_stop(StopMode::Now, author);
    }

    /// Returns true if a decision about this call is for the current turn.
    #[must_use]
    pub fn expects_decision(&self, key: CallKey) -> bool {
        self.run.is_some() && !self.suspended && key.turn == self.turn
    }

    /// Returns true if the current run waits only for people, and is not being cancelled.
    #[must_use]
    pub fn waits_for_people(&self) -> bool {
        let is_resting = |run: &super::OpenRun| {
            run.cancel.is_none() && run.turn().is_some_and(super::OpenTurn::is_resting)
        };
        !self.suspended && self.run.as_deref().is_some_and(is_resting)
    }

    /// Returns true if nothing is lost when the session leaves memory: it waits only for people, is suspended without
    /// a queue, or is idle without a pending summary. A session that closes, or whose host shuts down, does not
    /// leave.
    #[must_use]
    pub fn may_hibernate(&self) -> bool {
        let rests = match &self.run {
            Some(_) if !self.suspended => self.waits_for_people(),
            Some(_) => self.queue.is_empty(),
            None => self.queue.is_empty() && !self.waits_for_summary(),
        };
        rests && self.lifecycle == Lifecycle::Open && self.shutdown.is_none()
    }

    pub(super) fn check_open(&self) -> Result<(), SessionRefusal> {
        match self.lifecycle {
            Lifecycle::New | Lifecycle::Open => Ok(()),
            Lifecycle::Closing | Lifecycle::Closed => Err(SessionRefusal::Closed),
            Lifecycle::Left => Err(SessionRefusal::Left),
        }
    }

    /// Checks that the session is not suspended. During a shutdown the refusal says that: a client that repeats its
    /// request finds the run in progress on the next host.
    pub(super) fn check_not_suspended(&self) -> Result<(), SessionRefusal> {
        if !self.is_suspended() {
            return Ok(());
        }
        let refusal = match self.shutdown {
            None => SessionRefusal::Suspended,
            Some(_) => SessionRefusal::ShuttingDown,
        };
        Err(refusal)
    }

    /// Checks that the session is open and no run is in progress or waits.
    pub(super) fn check_idle(&self) -> Result<(), SessionRefusal> {
        self.check_open()?;
        if self.run.is_some() || !self.queue.is_empty() {
            return Err(SessionRefusal::RunInProgress);
        }
        Ok(())
    }

    /// Returns true if no turn is in progress, because the run waits for tools or for a summary, or is left to the next
    /// host.
    fn waits_before_turn(&self) -> bool {
        let has_turn = self.run.as_ref().is_some_and(|run| run.turn().is_some());
        let is_held = self.run.as_ref().is_some_and(|run| run.is_held(self.shutdown));
        self.waits_for_tools || (self.waits_for_summary() && !has_turn) || is_held
    }

    pub(super) fn check_room(&self, inputs_max: usize) -> Result<(), SessionRefusal> {
        // The input of the run itself waits for the results of initial calls.
        let own = usize::from(self.history.initial_calls().is_some());
        let pending = self.history.pending_inputs().saturating_sub(own);
        let steered = pending + self.inputs_before_turn();
        let waiting = self.queue.len() + steered;
        if waiting < inputs_max { Ok(()) } else { Err(SessionRefusal::QueueFull(inputs_max)) }
    }

    /// Returns the number of inputs in the history that wait for the next turn, because the run waits for tools or
    /// for a summary. Messages of the host are not counted, nor is the input of the run itself, unless it waited for
    /// initial calls.
    fn inputs_before_turn(&self) -> usize {
        let is_ready = |run: &super::OpenRun| matches!(run.stage, RunStage::Ready(_));
        if self.run.as_deref().is_some_and(is_ready) { self.history.inputs_since_turn() } else { 0 }
    }
}
