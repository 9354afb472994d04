//! Performs the effects of the session machine: appends records, starts turns and answers callers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::ActorRef;

use super::SessionActorState;
use super::run::ActiveRun;
use crate::config::RunOverrides;
use crate::event::Event;
use crate::journal::{Urgency, unix_ms};
use crate::message::MessageList;
use crate::record::{Record, Seq};
use crate::runtime::error::HostError;
use crate::runtime::hooks::HookQuestion;
use crate::runtime::ids;
use crate::runtime::message::{AccumulatorMessage, RunScope, SessionMessage, TurnStart};
use crate::runtime::model::ModelRequest;
use crate::runtime::report::{Messages, RunReport};
use crate::runtime::task;
use crate::session::{
    RecordedAt, RunSummary, RunTerms, SessionEffect, SessionRecord, TurnBegin, TurnOrigin,
};
use crate::telemetry::SourceRecord;
use crate::turn::TurnSpec;
use crate::types::{HookPoint, RequestKind, SessionId, SessionState};
use crate::wire::PromptChange;

impl SessionActorState {
    /// Performs the effects of the machine until there are none. Returns the position of the first
    /// record that was appended.
    pub(super) async fn perform(&mut self, myself: &ActorRef<SessionMessage>) -> Option<Seq> {
        let mut first = None;
        if self.run.is_none() {
            self.agents.read_tool_sources(&self.id, &self.link.shared);
        }
        loop {
            self.give_model_tokens();
            let (now, agents) = (self.now(), &self.agents);
            let rules_of = |overrides: &RunOverrides| agents.rules(overrides);
            let Some(effect) = self.session.poll(now, &rules_of) else { break };
            match effect {
                SessionEffect::Record(batch) => {
                    let seq = self.append(batch);
                    first = first.or(seq);
                }
                SessionEffect::BeginTurn(begin) => {
                    self.open_connections(myself);
                    if Box::pin(self.spawn_actors(myself)).await.is_err() {
                        // The session itself is ending.
                        self.fail_callers(&HostError::SessionClosed);
                        break;
                    }
                    self.begin_turn(*begin);
                }
                SessionEffect::ReadTools => self.read_tools(myself),
                SessionEffect::RequestSummary(request) => self.request_summary(*request, myself),
                SessionEffect::ContextReduced { reduced } => self.context_reduced(reduced),
                SessionEffect::CancelTurn(reason) => {
                    self.send_to_accumulator(AccumulatorMessage::Cancel { reason });
                }
                SessionEffect::RunEnded(summary) => {
                    self.end_run(*summary);
                    // A queued run may be next.
                    self.agents.read_tool_sources(&self.id, &self.link.shared);
                }
                SessionEffect::RunRefused { run_id, reason } => {
                    if let Some(caller) = self.callers.runs.get_mut(&run_id) {
                        caller.fail(reason.into());
                    }
                    self.drop_ended_callers();
                }
                SessionEffect::Close => self.delete_session(myself),
            }
        }
        first
    }

    /// Appends records as one batch, applies them and publishes their events. Returns the position
    /// of the first one.
    pub(super) fn append(&mut self, batch: Vec<SessionRecord>) -> Option<Seq> {
        let count = batch.len() as u64;
        let records: Vec<_> = batch.iter().map(|record| record.record.clone()).collect();
        let time = unix_ms();
        let (last, _) = self.log.append_at(time, records, Urgency::Deferrable, || ());
        let first = last.0.saturating_sub(count) + 1;
        let ends = batch.iter().any(|of| matches!(of.record, Record::RunEnded { .. }));
        for (SessionRecord { record, run_id, turn, events }, seq) in batch.into_iter().zip(first..)
        {
            let at = RecordedAt { seq: Seq(seq), time, now: self.now() };
            let agents = &self.agents;
            let terms_of = |overrides: &RunOverrides| RunTerms::from(&*agents.rules(overrides));
            if let Err(error) = self.session.apply(at, &record, &terms_of) {
                tracing::error!(session = %self.id, seq, error, "session_record_contradicts");
            }
            // A client that reads the run's end finds the session idle, and room for another run.
            if !self.session.holds_slot() && self.slot.take().is_some() {
                self.activity.running.store(false, Ordering::Release);
                self.link.shared.session_states.changed(&self.id, SessionState::Idle);
                self.link.shared.update_counts();
            }
            self.record_appended(&record, Seq(seq), time, ends);
            let position = SourceRecord { seq: Seq(seq), time, displayed_bytes: 0 };
            for event in events {
                if let Some(run) = &run_id {
                    self.publisher.publish_after(run, turn, event, Some(position));
                }
            }
        }
        (count > 0).then_some(Seq(first))
    }

    /// Updates the actor's data of runs and turns. `ends` is true if the same batch ends the run.
    fn record_appended(&mut self, record: &Record, seq: Seq, time: u64, ends: bool) {
        match record {
            // A turn is never resumed from records before these.
            Record::SessionOpened { .. } => self.log.trim_recent(seq),
            Record::InputQueued { .. } => self.link.shared.update_counts(),
            Record::RunStarted { input, .. } if !ends => {
                let Some(run) = self.session.run() else { return };
                let (id, trace, began) = (run.id.clone(), run.trace.clone(), run.began);
                self.agents.use_for(&run.overrides);
                let elapsed = std::time::Duration::ZERO;
                let trace = self.begin_trace(&id, trace, began, elapsed, Some(input));
                let report = self.callers.runs.remove(&id).and_then(|caller| caller.report);
                let extensions = self.link.shared.extensions.for_run(&self.id, &id);
                self.run = Some(Box::new(ActiveRun::new(id, trace, extensions, seq, report)));
                self.activity.running.store(true, Ordering::Release);
                self.link.shared.session_states.changed(&self.id, SessionState::Running);
                self.link.shared.update_counts();
            }
            Record::ResponseEnded { .. } => {
                if let Some(run) = &mut self.run {
                    run.turn_after = Seq(seq.0.saturating_sub(1));
                }
            }
            Record::RunEnded { .. } => {
                self.last_run_end = time;
                self.drop_ended_callers();
            }
            Record::Compacted { .. } => self.context_compacted(record),
            Record::RunStarted { .. }
            | Record::SessionForked { .. }
            | Record::AttemptStarted { .. }
            | Record::AttemptFailed { .. }
            | Record::CallIntended { .. }
            | Record::CallReported { .. }
            | Record::HooksDecided { .. }
            | Record::TurnHooksDecided { .. }
            | Record::CallEnded { .. }
            | Record::ApprovalAsked { .. }
            | Record::ApprovalGiven { .. }
            | Record::TurnCommitted { .. }
            | Record::Steered { .. }
            | Record::StopAsked { .. }
            | Record::LimitReached { .. }
            | Record::Instructed { .. }
            | Record::ToolsFrozen { .. }
            | Record::SessionClosed => {}
        }
    }

    /// Sends a turn to the accumulator.
    fn begin_turn(&mut self, begin: TurnBegin) {
        let TurnBegin { run_id, mut spec, origin, cancel } = begin;
        let Some(run) = &mut self.run else { return };
        let resume = match origin {
            TurnOrigin::New => {
                let last = self.log.last_seq();
                self.log.trim_recent(last);
                run.turn_after = last;
                None
            }
            TurnOrigin::Recorded => Some(self.log.entries_since(run.turn_after)),
            TurnOrigin::Stored => {
                run.approvals_unknown = true;
                Some(self.log.entries_since(run.turn_after))
            }
        };
        let (messages, repairs) = self.session.history().request_messages();
        if repairs > 0 {
            self.publisher.publish(&run_id, spec.number, Event::HistoryRepaired { repairs });
        }
        let known = self.session.requested_prompt();
        let request = self.next_request(messages, spec.request);
        spec.new_prompt = self.session.requested_prompt().filter(|hash| known != Some(*hash));
        if origin == TurnOrigin::New {
            let sizes = self.session.part_tokens(&spec.rules);
            self.link.shared.telemetry.metrics().context_tokens(sizes);
        }
        let Some(run) = &self.run else { return };
        let scope = RunScope {
            run: run_id,
            run_seq: self.session.run().map_or(Seq(0), |run| run.seq),
            agent: Arc::clone(self.agents.current()),
            trace: run.trace.clone(),
            extensions: run.extensions.clone(),
        };
        let (spec, scope) = (with_session(spec, &self.id), Arc::new(scope));
        let start = TurnStart { spec, scope, request, resume, cancel };
        self.link.shared.telemetry.traces().request_started(&self.id, &start.request);
        self.send_to_accumulator(AccumulatorMessage::BeginTurn(Box::new(start)));
    }

    /// Returns the model request of the current turn.
    pub(super) fn next_request(
        &mut self,
        messages: MessageList,
        kind: RequestKind,
    ) -> Arc<ModelRequest> {
        let hash = self.agents.current().prompt_hash();
        let has_sources = !self.link.shared.tool_sources.0.is_empty();
        let prompt_change = self.session.handle_request(hash, has_sources);
        let has_form = self.agents.note_form(kind);
        let prompt_change = prompt_change.or(has_form.then_some(PromptChange::Output));
        Arc::new(ModelRequest {
            prompt_cache_key: Some(Arc::clone(&self.prompt_cache_key)),
            prompt_change,
            ..self.agents.current().request(messages, kind)
        })
    }

    /// Returns the input of the machine of the current turn.
    pub(super) fn turn_spec(&self) -> Option<TurnSpec> {
        let rules_of = |overrides: &RunOverrides| self.agents.rules(overrides);
        let spec = self.session.current_turn_spec(self.now(), &rules_of)?;
        Some(with_session(spec, &self.id))
    }

    /// Sends the report of a run that has ended.
    fn end_run(&mut self, summary: RunSummary) {
        // The records of the last turn are not needed any more.
        let last = self.log.last_seq();
        self.log.trim_recent(last);
        self.link.shared.update_counts();
        self.link.shared.agent_trees.end_run(&self.id, &summary.run_id);
        let durable = self.log.durable_seq();
        self.ended_runs.push((summary.run_id.clone(), last));
        self.ended_runs.retain(|(_, end)| *end > durable);
        let Some(run) = self.run.take() else { return };
        self.tell_hooks(&summary);
        if !run.is_awaited() {
            return;
        }
        let ActiveRun { calls, report, .. } = *run;
        let RunSummary {
            run_id,
            end,
            text,
            output,
            error,
            stats,
            began,
            first_message,
            is_compacted,
        } = summary;
        if is_compacted {
            // The caller reads the report from the journal, which has all messages.
            if let Some(report) = report {
                let _ = report.send(Ok((None, last)));
            }
            return;
        }
        let report_of_run = RunReport {
            run_id,
            run_end: end,
            text,
            output,
            error,
            started_at: began,
            ended_at: self.last_run_end,
            turns: stats.turns,
            calls,
            stats: (&stats).into(),
            exact: stats,
            messages: Messages {
                all: self.session.history().messages().clone(),
                first_of_run: first_message,
            },
        };
        if let Some(report) = report {
            // The caller may be gone.
            let _ = report.send(Ok((Some(report_of_run), last)));
        }
    }

    /// Tells hooks that a run has ended. Nothing waits for them but the shutdown of the host.
    fn tell_hooks(&self, summary: &RunSummary) {
        let agent = self.agents.current();
        if !agent.hooks.iter().any(|hook| hook.rule.on == HookPoint::RunEnd) {
            return;
        }
        let position = (&self.id, self.session.turn());
        let parent = self.session.parent().map(|parent| &**parent);
        let note = HookQuestion::of_run_end(
            summary,
            position,
            (agent, parent),
            &self.link.shared.telemetry,
        );
        let held = self.link.shared.gauges.hook_notes.increment();
        task::detach(async move {
            let _held = held;
            note.ask().await;
        });
    }

    /// Drops the callers of runs that have ended.
    fn drop_ended_callers(&mut self) {
        let session = &self.session;
        self.callers.runs.retain(|id, _| session.has_run(id));
        self.link.shared.extensions.retain_runs(&self.id, |id| session.has_run(id));
        self.link.shared.update_counts();
    }

    /// Sends an error to all callers of queued runs, because these runs do not start.
    pub(super) fn fail_callers(&mut self, reason: &HostError) {
        for (_, mut caller) in self.callers.runs.drain() {
            caller.fail(reason.clone());
        }
        self.link.shared.update_counts();
    }
}

/// Sets the seed of a turn, which depends on the session's id.
fn with_session(spec: TurnSpec, id: &SessionId) -> TurnSpec {
    TurnSpec { seed: ids::turn_seed(id, spec.number), ..spec }
}
