//! The public view of a session: its snapshot, the sizes of the parts of its context, and the approvals that
//! its turn waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SessionActor;
use crate::runtime::approval_inbox::OpenApproval;
use crate::runtime::message::{AccumulatorMessage, SessionMessage};
use crate::runtime::report::{CallReport, ContextPartReport, ContextReport};
use crate::runtime::snapshot::{
    CurrentRun, PendingApproval, PendingClientCall, QueuedInput, SessionSnapshot,
};
use crate::runtime::task;
use crate::runtime::tool::failed_outcome;
use callsheet_machines::context::tokens::part_of;
use callsheet_machines::session::{PendingApprovalRequest, pending_approvals};
use callsheet_machines::turn::{ApprovalDecision, results_so_far};
use callsheet_values::event::WaitingFor;
use callsheet_values::message::MessageList;
use callsheet_values::record::JournalEntry;
use callsheet_values::types::{
    ApprovalVerdict, CallKey, ContextPart, FailureKind, RequestKind, RunId, SessionState, WaitPhase,
};

impl SessionActor {
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

    pub(super) fn snapshot(&self) -> SessionSnapshot {
        let session = &self.session;
        let current_run = session.run().map(|run| {
            let suspended = session.is_suspended();
            let (approvals, client_calls) = PendingClientCall::separate(self.pending_approvals());
            CurrentRun {
                run_id: run.id.clone(),
                seq: run.seq,
                first_message: run.first_message,
                metadata: run.metadata.clone(),
                turn: session.turn(),
                waiting_for: session.waits_for_tools().then_some(WaitingFor::Server),
                suspended,
                quarantined: suspended && self.host_ref.shared.crash_loop.is_quarantined(&self.id),
                approvals,
                client_calls,
                results: self.results_so_far(&run.id),
            }
        });
        let inbox = &self.host_ref.shared.approval_inbox;
        let state = match current_run {
            Some(_) if inbox.has(&self.id) => SessionState::Waiting,
            Some(_) => SessionState::Running,
            None => SessionState::Idle,
        };
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
            approvals_open: inbox.count_of(&self.id),
            queued: queued.collect(),
            usage: session.usage(),
        }
    }

    /// Returns the results of the current turn up to the first call that has none, as far as they
    /// are durable.
    fn results_so_far(&self, run: &RunId) -> Vec<CallReport> {
        let durable = self.log.durable_seq();
        let entries = self.turn_entries();
        let records = entries.iter().filter(|entry| entry.seq <= durable);
        let results = results_so_far(records.map(|entry| &entry.record));
        results.map(|result| CallReport::new(run.clone(), None, result)).collect()
    }

    /// Returns the records of the current turn.
    fn turn_entries(&self) -> Vec<Arc<JournalEntry>> {
        let of_run = self.run.as_ref().map(|run| run.seq_before_turn);
        self.log.entries_since(of_run.unwrap_or(self.stored_seq_before_turn))
    }

    /// Returns the approvals that the current turn waits for, and the calls that its client has to run.
    fn pending_approvals(&self) -> Vec<PendingApproval> {
        let entries = self.turn_entries();
        let pending = pending_approvals(entries.iter().map(|entry| &**entry)).into_iter();
        let is_asked_still = |pending: &PendingApprovalRequest| {
            pending.request.phase != WaitPhase::Input || pending.seq > self.seq_before_calls
        };
        let pending = pending.filter(is_asked_still);
        pending.map(|pending| PendingApproval::new(pending.request, pending.asked_at)).collect()
    }

    /// Updates the approvals of this session in the host's inbox. Calls that a client runs are not among them.
    pub(super) fn update_inbox(&mut self) {
        let Some((run, metadata)) =
            self.session.run().map(|run| (run.id.clone(), run.metadata.clone()))
        else {
            return self.leave_inbox();
        };
        let parent = self.session.parent().filter(|_| self.is_in_child_run());
        let own_path = || vec![Arc::clone(&self.agents.own().name)];
        let agent_path = parent.map_or_else(own_path, |parent| parent.agent_path.clone());
        let root = parent.map_or(&self.id, |parent| &parent.root.session).clone();
        let (pending, _) = PendingClientCall::separate(self.pending_approvals());
        let open = pending.into_iter().map(|approval| OpenApproval {
            session: self.id.clone(),
            run: run.clone(),
            root_session: root.clone(),
            agent_path: agent_path.clone(),
            metadata: metadata.clone(),
            approval,
        });
        let open: Vec<_> = open.collect();
        if open.is_empty() {
            return self.leave_inbox();
        }
        let shared = &self.host_ref.shared;
        shared.approval_inbox.set(&self.id, open);
        if self.waits_in_inbox.is_none() {
            self.waits_in_inbox = Some(shared.gauges.waiting_runs.increment());
            shared.session_states.changed(&self.id, SessionState::Waiting);
        }
        self.is_in_inbox = true;
    }

    /// Removes the approvals of this session from the host's inbox.
    pub(super) fn leave_inbox(&mut self) {
        if std::mem::take(&mut self.is_in_inbox) {
            let shared = &self.host_ref.shared;
            shared.approval_inbox.set(&self.id, Vec::new());
            if self.waits_in_inbox.take().is_some() && self.session.run().is_some() {
                shared.session_states.changed(&self.id, SessionState::Running);
            }
        }
    }

    /// Notifies the call that opened this child session when its run begins to wait only for people, or goes on.
    pub(super) fn publish_wait(&self) {
        let Some(published) = &self.activity.waits_for_people else { return };
        let waits = self.session.waits_for_people() && self.is_in_child_run();
        published.send_if_modified(|before| std::mem::replace(before, waits) != waits);
    }

    /// Rejects the pending approvals of a run whose caller waits for its end, if no other reader can answer them.
    /// Answers the calls for the client with an error then.
    pub(super) fn reject_if_nobody_can_be_asked(&self) {
        let is_awaited = self.run.as_ref().is_some_and(|run| run.is_awaited());
        if !is_awaited || self.pending_approvals().is_empty() {
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
                let Some(myself) = self.host_ref.shared.index.awake(&self.id) else { return };
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
        if self.run.is_none() {
            return;
        }
        for approval in self.pending_approvals() {
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
                author: None,
            });
            self.send_to_accumulator(AccumulatorMessage::Decide { key, decision, reply });
        }
    }

    /// Returns the time at which the first open approval or client call expires: Unix time in milliseconds, so that
    /// it can be compared while the session hibernates. The turn, which decides the expiry, computes
    /// the same time on its own clock (`turn::approval`).
    pub(super) fn approvals_expire_at(&self) -> Option<u64> {
        self.run.as_ref()?;
        let tools = &self.agents.current().rules.tools;
        let until = |approval: PendingApproval| {
            let timeout = tools.get(&*approval.tool_name)?.approval_timeout;
            approval.asked_at.checked_add(u64::try_from(timeout.as_millis()).ok()?)
        };
        self.pending_approvals().into_iter().filter_map(until).min()
    }
}
