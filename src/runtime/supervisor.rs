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

/// How many progress texts one call may send; further ones are dropped.
const PROGRESS_PER_CALL_MAX: u32 = 1000;
/// How long one of them may be.
const PROGRESS_CHARS_MAX: usize = 500;

/// What is to be done about a call.
pub(super) enum ToolCommand {
    /// Run it.
    Start(Box<StartTool>),
    /// Tell it to stop, and kill it after its grace.
    Abort(CallKey),
}

/// What a call begins with.
pub(super) struct StartTool {
    pub(super) run: RunId,
    /// Whose tool it is.
    pub(super) agent: Arc<Agent>,
    pub(super) call: ToolCall,
    /// What it may see of the session's variables.
    pub(super) variables: Variables,
    pub(super) idempotency_key: String,
    /// What it brings along to whoever it asks.
    pub(super) trace: Option<TraceContext>,
    /// Its place of its tool, if that has a cap.
    pub(super) place: Option<PermitRequest>,
}

/// Starts calls, stops them, and alone says what became of them. The accumulator has one: calls are
/// linked to that actor, which hears of their ends.
pub(super) struct ToolSupervisor {
    /// A tool that keeps its context for longer than the session lives does not keep this alive.
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
    /// What it does with variables, whatever becomes of its actor.
    view: SharedVariableView,
    cancellation: CancellationToken,
    /// However the call ends, and if only with its supervisor: a thread that computes for it, or a
    /// task that the tool has left behind, is told.
    _over: DropGuard,
    /// How long it has once it is told to stop.
    grace: Duration,
    /// Kills the call when the grace has passed.
    end: Option<OwnedTask>,
    killed: bool,
}

impl ToolSupervisor {
    pub(super) fn new(publisher: Publisher, pool: BlockingPool, gauges: Gauges) -> Self {
        Self { publisher: Arc::new(publisher), pool, gauges, running: HashMap::new() }
    }

    /// Starts a call. Returns what became of it if it could not start.
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
            // The turn offers only tools of this very map.
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

    /// Shows a call's progress for as long as the call is open.
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

    /// Tells a call to stop, and kills it after its grace.
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

    /// Tells all calls to stop.
    pub(super) fn abort_all(&mut self, myself: &AccumulatorRef) {
        let keys: Vec<_> = self.running.values().map(|running| running.key).collect();
        for key in keys {
            self.abort(key, myself);
        }
    }

    /// What became of a call whose actor is gone. An empty slot means that the actor died.
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

    /// Whether no call is left but such as were killed: one whose tool never awaits cannot be
    /// waited for.
    pub(super) fn is_done(&self) -> bool {
        self.running.values().all(|running| running.killed)
    }
}

fn not_started(kind: FailureKind, what: &str) -> ToolCompletion {
    ToolCompletion { outcome: failed(kind, what), used: VariablesUse::default() }
}
