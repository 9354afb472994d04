//! The supervisor of a session's tool calls: one linked actor per call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{Actor, ActorCell, ActorId};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::agent::Agent;
use super::blocking::BlockingPool;
use super::fair_semaphore::PermitRequest;
use super::gauge::Gauges;
use super::message::{AccumulatorMessage, AccumulatorRef};
use super::publish::Publisher;
use super::task::OwnedTask;
use super::tool::{OutcomeSlot, ToolActor, ToolSetup, failed};
use crate::context::{Variables, VariablesTransaction};
use crate::event::Event;
use crate::tool::{ProgressCallback, SharedVariableView, ToolContext};
use crate::turn::ToolCompletion;
use crate::types::{
    CallKey, FailureKind, RunId, ToolCall, ToolOutcome, TraceContext, VariablesUse, excerpt,
};

/// The number of progress texts that one call may send; further ones are dropped.
const PROGRESS_PER_CALL_MAX: u32 = 1000;
/// The largest length of a progress text, in characters.
const PROGRESS_CHARS_MAX: usize = 500;

/// A command for a call.
pub(super) enum ToolCommand {
    /// Start it.
    Start(Box<StartTool>),
    /// Cancel it, and kill it after its grace period.
    Abort(CallKey),
}

/// The values with which a call starts.
pub(super) struct StartTool {
    pub(super) run: RunId,
    /// The agent that offers the tool.
    pub(super) agent: Arc<Agent>,
    pub(super) call: ToolCall,
    /// The variables that the call may see.
    pub(super) variables: Variables,
    pub(super) idempotency_key: String,
    /// The trace context that the call passes on.
    pub(super) trace: Option<TraceContext>,
    /// The permit of its tool, if the tool has `max_concurrent`.
    pub(super) place: Option<PermitRequest>,
}

/// Starts and stops calls, and alone determines their outcomes. It is a part of the accumulator: tool
/// actors are linked to the accumulator, which receives their ends.
pub(super) struct ToolSupervisor {
    /// A tool that keeps its context beyond the session's life does not keep this alive.
    publisher: Arc<Publisher>,
    pool: BlockingPool,
    gauges: Gauges,
    running: HashMap<ActorId, RunningCall>,
}

/// A call whose actor is alive.
struct RunningCall {
    key: CallKey,
    actor: ActorCell,
    slot: OutcomeSlot,
    /// The call's use of variables, which survives its actor.
    view: SharedVariableView,
    cancellation: CancellationToken,
    /// Cancels the token when the call or its supervisor ends, so that a thread or task that the tool left
    /// behind is notified.
    _over: DropGuard,
    /// The grace period after a cancellation.
    grace: Duration,
    /// Kills the call after the grace period.
    end: Option<OwnedTask>,
    killed: bool,
}

impl ToolSupervisor {
    pub(super) fn new(publisher: Publisher, pool: BlockingPool, gauges: Gauges) -> Self {
        Self { publisher: Arc::new(publisher), pool, gauges, running: HashMap::new() }
    }

    /// Starts a call. Returns its outcome if it could not start.
    pub(super) async fn start(
        &mut self,
        start: StartTool,
        myself: &AccumulatorRef,
    ) -> Option<(CallKey, ToolCompletion)> {
        let StartTool { run, agent, call, variables, idempotency_key, trace, place } = start;
        let view = VariablesTransaction::new(variables, agent.limits().max_variables_bytes);
        let view: SharedVariableView = Arc::new(Mutex::new(view));
        let key = call.key;
        let Some(registered) = agent.tools.get(&*call.name) else {
            // The turn only admits tools of this map.
            return Some((key, not_started(FailureKind::UnknownTool, "no tool has this name")));
        };
        let cancellation = CancellationToken::new();
        let slot = OutcomeSlot::default();
        let work = ToolSetup {
            tool: Arc::clone(&registered.tool),
            context: ToolContext::new(
                key,
                call.arguments,
                idempotency_key,
                cancellation.clone(),
                self.progress(&run, key, &slot, &cancellation),
            )
            .with_effect(registered.spec.effect)
            .with_trace(trace)
            .with_variables(Arc::clone(&view)),
            pool: registered.spec.blocking.then(|| self.pool.clone()),
            slot: Arc::clone(&slot),
            place,
            held: [self.gauges.actors.increment(), self.gauges.tools.increment()],
        };
        match Actor::spawn_linked(None, ToolActor, work, myself.get_cell()).await {
            Ok((actor, _)) => {
                let running = RunningCall {
                    key,
                    actor: actor.get_cell(),
                    slot,
                    view,
                    _over: cancellation.clone().drop_guard(),
                    cancellation,
                    grace: agent.limits().cancel_grace,
                    end: None,
                    killed: false,
                };
                self.running.insert(actor.get_id(), running);
                None
            }
            Err(error) => {
                Some((key, not_started(FailureKind::Killed, &format!("not started: {error}"))))
            }
        }
    }

    /// Returns the callback that publishes a call's progress while the call is open.
    fn progress(
        &self,
        run: &RunId,
        key: CallKey,
        slot: &OutcomeSlot,
        cancellation: &CancellationToken,
    ) -> ProgressCallback {
        let (publisher, run) = (Arc::downgrade(&self.publisher), run.clone());
        let (slot, cancellation) = (Arc::downgrade(slot), cancellation.clone());
        let sent = AtomicU32::new(0);
        Arc::new(move |text| {
            let open = slot.upgrade().is_some_and(|slot| slot.lock().is_none())
                && !cancellation.is_cancelled();
            if !open || sent.fetch_add(1, Ordering::Relaxed) >= PROGRESS_PER_CALL_MAX {
                return;
            }
            if let Some(publisher) = publisher.upgrade() {
                let text = excerpt(&text, PROGRESS_CHARS_MAX);
                publisher.publish(&run, key.turn, Event::CallProgressed { key, text });
            }
        })
    }

    /// Cancels a call, and kills it after its grace period.
    pub(super) fn abort(&mut self, key: CallKey, myself: &AccumulatorRef) {
        let Some(running) = self.running.values_mut().find(|running| running.key == key) else {
            return;
        };
        if running.cancellation.is_cancelled() {
            return;
        }
        running.cancellation.cancel();
        let (accumulator, grace) = (myself.clone(), running.grace);
        running.end = Some(OwnedTask::spawn(&self.gauges.tasks, async move {
            tokio::time::sleep(grace).await;
            let _ = accumulator.cast(AccumulatorMessage::GraceOver { key });
        }));
    }

    /// Kills a call that did not stop.
    pub(super) fn kill(&mut self, key: CallKey) {
        if let Some(running) = self.running.values_mut().find(|running| running.key == key) {
            running.killed = true;
            running.actor.kill();
        }
    }

    /// Cancels all calls.
    pub(super) fn abort_all(&mut self, myself: &AccumulatorRef) {
        let keys: Vec<_> = self.running.values().map(|running| running.key).collect();
        for key in keys {
            self.abort(key, myself);
        }
    }

    /// Returns the outcome of a call whose actor ended. An empty slot means that the actor died.
    pub(super) fn ended(
        &mut self,
        actor: ActorId,
        died: impl FnOnce() -> ToolOutcome,
    ) -> Option<(CallKey, ToolCompletion)> {
        let running = self.running.remove(&actor)?;
        let outcome = running.slot.lock().take().unwrap_or_else(died);
        let used = running.view.lock().take();
        Some((running.key, ToolCompletion { outcome, used }))
    }

    /// Returns whether every remaining call was killed. The supervisor cannot wait for a tool that never
    /// awaits.
    pub(super) fn is_done(&self) -> bool {
        self.running.values().all(|running| running.killed)
    }
}

fn not_started(kind: FailureKind, what: &str) -> ToolCompletion {
    ToolCompletion { outcome: failed(kind, what), used: VariablesUse::default() }
}
