//! Performs the effects of the turn. Its records are appended as one batch. An event is published
//! after the records that precede it. Actions are performed at once.

use std::sync::Arc;

use ractor::ActorRef;

use super::{AccumulatorSetup, CurrentTurn};
use crate::event::Event;
use crate::journal::{AppendStatus, PendingRecord, Urgency, unix_ms};
use crate::record::Seq;
use crate::runtime::hooks::{HookQuestion, changed_request};
use crate::runtime::message::{
    AccumulatorMessage, ChildStart, SessionMessage, StartTool, StreamMessage, ToolCommand,
};
use crate::runtime::task::{self, OwnedTask};
use crate::telemetry::SourceRecord;
use crate::turn::{CallStart, PermitReply, TurnAction};
use crate::types::CallKey;

/// The records of one poll loop, and the events that follow them. The buffers are reused for the
/// next batch.
#[derive(Default)]
pub(super) struct TurnBatch {
    pub(super) records: Vec<PendingRecord>,
    /// Events, each with the number of records before it and the number of bytes that were displayed at
    /// the last of these records.
    events: Vec<(u64, u64, Event)>,
}

impl TurnBatch {
    /// Publishes the event now, or after the records that precede it.
    pub(super) fn push_event(
        &mut self,
        event: Event,
        setup: &AccumulatorSetup,
        current: &mut CurrentTurn,
    ) {
        match self.records.last() {
            None => setup.publish(event, None, current),
            Some(PendingRecord { displayed_bytes, .. }) => {
                self.events.push((self.records.len() as u64, *displayed_bytes, event));
            }
        }
    }
}

impl AccumulatorSetup {
    /// Appends the records as one batch, and publishes the events that follow them. Returns true if
    /// the turn may continue as if they were durable: they are durable, or the turn may commit
    /// early.
    pub(super) fn store(
        &self,
        batch: &mut TurnBatch,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> bool {
        let TurnBatch { records, events } = batch;
        let count = records.len() as u64;
        current.records += count;
        let (turn, upto) = (current.number, current.records);
        let accumulator = myself.clone();
        let may_continue = current.turn.may_commit_early();
        let waits = current.turn.waits_for_records() && !may_continue;
        let urgency = if waits { Urgency::Urgent } else { Urgency::Deferrable };
        let time = unix_ms();
        let (last, appended) = self.log.append_at(time, records.drain(..), urgency, move || {
            let _ = accumulator.cast(AccumulatorMessage::RecordsStored { turn, upto });
        });
        current.last_seq = last;
        for (records_before, displayed_bytes, event) in events.drain(..) {
            let seq = Seq(last.0 - count + records_before);
            self.publish(event, Some(SourceRecord { seq, time, displayed_bytes }), current);
        }
        may_continue || appended == AppendStatus::Durable
    }

    /// Requests a permit for a tool. If it is granted later, the accumulator receives a message.
    pub(super) fn request_tool_permit(
        &self,
        key: CallKey,
        name: &str,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) -> PermitReply {
        let accumulator = myself.clone();
        let tool = current.agent.tools.get(name);
        let ready = tool.and_then(|registered| registered.tool.ready(self.publisher.session()));
        let session = self.session.get_id();
        let (reply, request) = self.tool_limiters.request_permit(name, session, ready, move || {
            let _ = accumulator.cast(AccumulatorMessage::ToolPermitGranted { key });
        });
        if let Some(request) = request {
            current.permits.insert(key, request);
        }
        reply
    }

    /// Notifies the session of the pending approvals, if they have changed.
    pub(super) fn notify_approvals(&self, current: &mut CurrentTurn) {
        let CurrentTurn { turn, notified_approvals: (notified, only_waited), .. } = current;
        let only_waits = turn.waits_only_for_people();
        if *only_waited == only_waits && turn.pending_approvals().eq(notified.iter().copied()) {
            return;
        }
        *notified = turn.pending_approvals().collect();
        *only_waited = only_waits;
        let approvals = notified.iter().filter_map(|(key, _)| turn.pending_approval(*key));
        let (epoch, approvals) = (self.epoch, approvals.collect());
        let message = SessionMessage::ApprovalsChanged { epoch, approvals, only_waits };
        let _ = self.session.cast(message);
    }

    /// Publishes an event of the turn. `record` is the record directly before it.
    fn publish(&self, event: Event, record: Option<SourceRecord>, current: &mut CurrentTurn) {
        if let Event::AttemptEnded { error, .. } = &event
            && let Some(breaker_permit) = current.breaker_permit.take()
        {
            breaker_permit.report_result(error.as_deref());
        }
        if let Event::AttemptEnded { error: None, .. } = &event {
            self.publisher.trace_answer(current.turn.response());
        }
        self.publisher.publish_after(&current.run, current.number, event, record);
    }

    /// Performs an action of the turn. If its receiver has ended, the session is notified of that
    /// and continues from the journal.
    pub(super) fn perform(
        &self,
        action: TurnAction,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        match action {
            TurnAction::Request(plan) => current.next_request = Some(plan),
            TurnAction::Disconnect => {
                current.next_request = None;
                let _ = self.stream.cast(StreamMessage::Disconnect);
            }
            TurnAction::ReduceContext(error) => {
                let (epoch, model) = (self.epoch, current.turn.model());
                let overflowed =
                    SessionMessage::ContextOverflowed { epoch, model, error: Box::new(error) };
                let _ = self.session.cast(overflowed);
            }
            TurnAction::ReadReferences { key, references, bytes_max } => {
                let (reader, accumulator) = (Arc::clone(&self.references), myself.clone());
                task::detach(async move {
                    let values = Box::new(reader.read_all(references, bytes_max).await);
                    // A turn that is over needs no values.
                    let _ = accumulator.cast(AccumulatorMessage::ReferencesRead { key, values });
                });
            }
            TurnAction::AskHooks(request) => {
                let key = request.call.as_ref().map(|call| call.key);
                let (turn, on, accumulator) = (current.number, request.on, myself.clone());
                let position = (self.publisher.session(), &current.run, current.number);
                let telemetry = self.publisher.telemetry();
                let model_request = current.request.as_deref();
                let agent = (&current.agent, self.parent.as_deref());
                let question =
                    HookQuestion::of_turn(*request, position, model_request, agent, telemetry);
                let task = OwnedTask::spawn(&self.gauges.tasks, async move {
                    let decision = Box::new(question.ask().await);
                    let _ = accumulator.cast(AccumulatorMessage::HooksDecided {
                        turn,
                        key,
                        on,
                        decision,
                    });
                });
                current.hooks.insert(key, task);
            }
            TurnAction::ChangeRequest(decision) => {
                if let Some(request) = &current.request {
                    current.request = Some(Arc::new(changed_request(request, &decision)));
                }
            }
            TurnAction::WithdrawHooks(key) => drop(current.hooks.remove(&key)),
            TurnAction::RequestToolPermit { key, tool } => {
                let permit = self.request_tool_permit(key, &tool, current, myself);
                current.turn.handle_tool_permit(current.began.elapsed(), key, permit);
            }
            TurnAction::ReleaseToolPermit(key) => drop(current.permits.remove(&key)),
            TurnAction::Start(CallStart { call, variables, state, agent }) => {
                let run_seq = current.run_seq;
                let start = StartTool {
                    child: agent.map(|start| Box::new(ChildStart { start: *start, run_seq })),
                    run: current.run.clone(),
                    agent: Arc::clone(&current.agent),
                    trace: current.trace.as_ref().map(|trace| trace.for_call(call.key)),
                    extensions: current.extensions.clone(),
                    permit: current.permits.remove(&call.key),
                    call,
                    variables,
                    state,
                };
                current.commands.push(ToolCommand::Start(Box::new(start)));
            }
            TurnAction::Answer { key, number, answer } => {
                current.commands.push(ToolCommand::Answer { key, number, answer });
            }
            TurnAction::Abort(key) => current.commands.push(ToolCommand::Abort(key)),
            TurnAction::Commit(record) => {
                current.request = None;
                // The commit is the turn's last record.
                let (epoch, seq) = (self.epoch, current.last_seq);
                let _ = self.session.cast(SessionMessage::TurnCommitted { epoch, record, seq });
            }
        }
    }

    /// Sends the request that the turn planned last, unless the turn has disconnected since.
    pub(super) fn send_request(
        &self,
        current: &mut CurrentTurn,
        myself: &ActorRef<AccumulatorMessage>,
    ) {
        // A turn that is over has dropped its request and plans none.
        let (Some(plan), Some(request)) = (current.next_request.take(), &current.request) else {
            return;
        };
        let _ = self.stream.cast(StreamMessage::Request {
            turn: current.number,
            trace: current.trace.as_ref().map(|t| t.for_attempt(current.number, plan.attempt)),
            model: Arc::clone(current.agent.models.at(plan.model)),
            plan,
            request: Arc::clone(request),
            to: myself.clone(),
        });
    }
}
