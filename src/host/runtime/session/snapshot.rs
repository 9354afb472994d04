//! The public view of a session: its snapshot, the sizes of the parts of its context, and the approvals that
//! its turn waits for.

use std::sync::atomic::Ordering;

use super::SessionActor;
use crate::journal::unix_ms;
use crate::runtime::message::{AccumulatorMessage, SessionMessage};
use crate::runtime::report::{CallReport, ContextPartReport, ContextReport};
use crate::runtime::snapshot::{
    CurrentRun, PendingApproval, PendingClientCall, QueuedInput, SessionSnapshot,
};
use crate::runtime::task;
use crate::runtime::tool::failed_outcome;
use callsheet_machines::context::tokens::part_of;
use callsheet_machines::session::pending_approvals;
use callsheet_machines::turn::{ApprovalDecision, results_so_far};
use callsheet_values::event::{ApprovalRequest, WaitingFor};
use callsheet_values::message::MessageList;
use callsheet_values::record::{Record, Seq};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, ContextPart, FailureKind, RequestKind, RunId, SessionState, WaitPhase,
};

impl SessionActor {
    /// Answers the callers that wait for a snapshot, unless the approvals of a resumed turn are
    /// still unknown.
    pub(super) fn send_snapshots(&mut self) {
        if self.run.as_ref().is_some_and(|run| run.approvals_unknown) {
            return;
        }
        for reply in std::mem::take(&mut self.callers.snapshots) {
            // The caller may be gone.
            let _ = reply.send(self.snapshot());
        }
    }

    /// Returns the parts of the context: that of the current run, or of a run without overrides. Counts the bytes of
    /// the whole history, so it is made on request only.
    pub(super) fn context_report(&mut self) -> ContextReport {
        self.agents.use_for(&self.session.current_overrides());
        self.give_model_tokens();
        let agent = self.agents.current();
        let tokens = self.session.part_tokens(&agent.rules);
        let part = |(part, tokens): (ContextPart, u64)| ContextPartReport {
            part: part.as_str(),
            tokens,
            bytes: 0,
        };
        let mut parts: Vec<ContextPartReport> = tokens.iter().map(part).collect();
        let mut add_bytes = |part: ContextPart, bytes: usize| {
            if let Some(size) = parts.iter_mut().find(|size| size.part == part.as_str()) {
                size.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
            }
        };
        let request = agent.request(MessageList::default(), RequestKind::Ordinary);
        for tool in &*request.tools {
            let schema = serde_json::to_string(&tool.schema).unwrap_or_default();
            let bytes = tool.name.len() + tool.description.len() + schema.len();
            add_bytes(ContextPart::Tools, bytes);
        }
        add_bytes(ContextPart::System, request.system.as_deref().unwrap_or_default().len());
        for message in self.session.history().messages().iter() {
            add_bytes(part_of(message), message.approximate_bytes());
        }
        let used = self.session.request_tokens(&agent.rules);
        let window = self.session.window(&agent.rules);
        let is_configured = agent.rules.models.first().context_window.is_some();
        let source = window.map(|_| if is_configured { "config" } else { "learnt" });
        ContextReport { window, source, used, parts }
    }

    fn snapshot(&self) -> SessionSnapshot {
        let session = &self.session;
        let current_run = session.run().map(|run| {
            let suspended = session.is_suspended();
            let seq_before_turn = self.run.as_ref().map(|run| run.seq_before_turn);
            let seq_before_turn = seq_before_turn.unwrap_or(self.stored_seq_before_turn);
            let pending = match &self.run {
                Some(run) => run.approvals.clone(),
                None => self.recorded_approvals(seq_before_turn),
            };
            let (approvals, client_calls) = PendingClientCall::separate(pending);
            CurrentRun {
                run_id: run.id.clone(),
                metadata: run.metadata.clone(),
                turn: session.turn(),
                waiting_for: session.waits_for_tools().then_some(WaitingFor::Server),
                suspended,
                approvals,
                client_calls,
                results: self.results_so_far(&run.id, seq_before_turn),
            }
        });
        let state = if current_run.is_some() { SessionState::Running } else { SessionState::Idle };
        let queued = session.queue().map(|queued| QueuedInput {
            run_id: queued.run_id.clone(),
            input: queued.input.clone(),
        });
        SessionSnapshot {
            id: self.id.clone(),
            agent: self.agents.own().name.to_string(),
            metadata: session.metadata().clone(),
            state,
            seq: self.log.last_seq(),
            history: session.history().display_messages(),
            variables: session.variables().clone(),
            current_run,
            queued: queued.collect(),
            usage: session.usage(),
        }
    }

    /// Returns the results of the current turn up to the first call that has none, as far as they
    /// are durable.
    fn results_so_far(&self, run: &RunId, seq_before_turn: Seq) -> Vec<CallReport> {
        let durable = self.log.durable_seq();
        let entries = self.log.entries_since(seq_before_turn);
        let records = entries.iter().filter(|entry| entry.seq <= durable);
        let results = results_so_far(records.map(|entry| &entry.record));
        results.map(|result| CallReport::new(run.clone(), None, result)).collect()
    }

    /// Returns the pending approvals of a suspended run's turn, from its records.
    fn recorded_approvals(&self, seq_before_turn: Seq) -> Vec<PendingApproval> {
        let entries = self.log.entries_since(seq_before_turn);
        let pending = pending_approvals(entries.iter().map(|entry| &**entry)).into_iter();
        // The tool that has asked a question does not run any more.
        let pending = pending.filter(|pending| pending.request.phase != WaitPhase::Input);
        pending.map(|pending| PendingApproval::new(pending.request, pending.asked_at)).collect()
    }

    /// Notes the approvals that the turn waits for, from a report of the accumulator. `is_resumable` is true if
    /// the turn waits for nothing else, and none of its calls runs. Returns false if the report is out of date.
    pub(super) fn note_approvals(
        &mut self,
        epoch: u64,
        requests: Vec<ApprovalRequest>,
        is_resumable: bool,
    ) -> bool {
        if epoch != self.actors.epoch || self.is_recovering() {
            return false;
        }
        let approvals = requests.into_iter().map(|request| {
            let asked_at = self.asked_at(&request);
            PendingApproval::new(request, asked_at)
        });
        let approvals = approvals.collect();
        if let Some(run) = &mut self.run {
            run.approvals = approvals;
            run.is_resumable = is_resumable;
        }
        true
    }

    /// Handles a change of the approvals. `waits_only_for_people` is true if the turn waits only for people.
    pub(super) fn approvals_changed(&mut self, waits_only_for_people: bool) {
        if self.run.is_some() {
            self.session.handle_resting(self.now(), waits_only_for_people);
        }
        self.reject_if_nobody_can_be_asked();
    }

    /// Notifies the call that opened this child session when its run begins to wait only for people, or goes on.
    pub(super) fn publish_wait(&self) {
        let Some(published) = &self.activity.waits_for_people else { return };
        let waits = self.session.waits_for_people() && self.is_in_child_run();
        published.send_if_modified(|before| std::mem::replace(before, waits) != waits);
    }

    /// Rejects the pending approvals of a run whose caller waits for its end, if no other reader can answer them.
    /// Answers the calls for the client with an error then.
    fn reject_if_nobody_can_be_asked(&self) {
        if self.run.as_ref().is_none_or(|run| run.approvals.is_empty() || !run.is_awaited()) {
            return;
        }
        let parent = self.session.parent().filter(|_| self.is_in_child_run());
        match parent {
            None if self.can_answer_approvals() => {}
            None => self.reject_approvals(),
            // The call of the parent reads the events of this session, to pass them on. The run at the root knows
            // whether anything else does.
            Some(parent) => {
                let (host_ref, root) = (self.host_ref.clone(), parent.root.session.clone());
                let Some(myself) = self.host_ref.shared.awake(&self.id) else { return };
                task::detach(async move {
                    let find = |reply| SessionMessage::CheckApprovalReader { reply };
                    if matches!(host_ref.request(&root, find).await, Ok((false, _))) {
                        // A session that has ended has no approvals.
                        let _ = myself.actor.cast(SessionMessage::RejectApprovals);
                    }
                });
            }
        }
    }

    /// Returns whether the current run is that of the call that opened this child session.
    pub(super) fn is_in_child_run(&self) -> bool {
        self.session.run().is_some_and(|run| self.is_child_run(&run.id))
    }

    /// Returns whether something may answer the approvals of the current run: a server or the program has looked for
    /// approvals, the events have a reader, or no caller waits for the end of the run.
    pub(super) fn can_answer_approvals(&self) -> bool {
        self.host_ref.shared.approvals_are_read.load(Ordering::Relaxed)
            || self.publisher.is_watched()
            || self.run.as_ref().is_none_or(|run| !run.is_awaited())
    }

    /// Rejects the pending approvals, because nothing can answer them. Answers the calls for the client with errors.
    pub(super) fn reject_approvals(&self) {
        let Some(run) = &self.run else { return };
        for approval in &run.approvals {
            let Ok(key) = approval.tool_id.parse::<CallKey>() else { continue };
            let cause = "nobody can be asked: nobody reads the events of this run";
            tracing::warn!(
                session = %self.id,
                tool = %approval.tool_name,
                phase = approval.phase.as_str(),
                "nobody_to_ask: read the run's events (SessionHandle::start_run) or answer \
                 session.approvals(); an approval is not asked for with approval = \"never\""
            );
            let (reply, _) = tokio::sync::oneshot::channel();
            let message = match approval.phase {
                WaitPhase::Client => {
                    let what = "no client runs it: nobody reads the events of this run";
                    let outcome = Box::new(failed_outcome(FailureKind::ToolError, what));
                    let answer = AccumulatorMessage::AnswerCall { key, outcome, reply };
                    self.send_to_accumulator(answer);
                    continue;
                }
                WaitPhase::Input | WaitPhase::Before | WaitPhase::After => cause.to_owned(),
            };
            let decision = Box::new(ApprovalDecision {
                phase: Some(approval.phase),
                verdict: ApprovalVerdict::Rejected,
                message: Some(message),
                arguments_sha256: approval.arguments_sha256.clone(),
                content: None,
            });
            self.send_to_accumulator(AccumulatorMessage::Decide { key, decision, reply });
        }
    }

    /// Handles the accumulator's message that it has reported the approvals of a resumed turn.
    pub(super) fn turn_resumed(&mut self, epoch: u64) {
        if epoch == self.actors.epoch
            && !self.is_recovering()
            && let Some(run) = &mut self.run
        {
            run.approvals_unknown = false;
        }
    }

    /// Returns the time at which the first open approval or client call expires: Unix time in milliseconds, so that
    /// it can be compared while the session hibernates. The turn, which decides the expiry, computes
    /// the same time on its own clock (`turn::approval`).
    pub(super) fn approvals_expire_at(&self) -> Option<u64> {
        let tools = &self.agents.current().rules.tools;
        let until = |approval: &PendingApproval| {
            let timeout = tools.get(&*approval.tool_name)?.approval_timeout;
            approval.asked_at.checked_add(u64::try_from(timeout.as_millis()).ok()?)
        };
        self.run.as_ref()?.approvals.iter().filter_map(until).min()
    }

    /// Returns the time of an approval request: Unix time in milliseconds. This is the time of its record, or now if
    /// the record is not appended yet.
    fn asked_at(&self, request: &ApprovalRequest) -> u64 {
        let after = self.run.as_ref().map_or(Seq(0), |run| run.seq_before_turn);
        let entries = self.log.entries_since(after);
        let recorded = entries.iter().find(|entry| {
            matches!(&entry.record, Record::ApprovalAsked { request: recorded }
                if recorded.call.key == request.call.key && recorded.phase == request.phase
                    && recorded.arguments_sha256 == request.arguments_sha256)
        });
        recorded.map_or_else(unix_ms, |entry| entry.time)
    }
}
