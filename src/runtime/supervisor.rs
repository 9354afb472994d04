//! The supervisor of a session's tool calls: one linked actor per call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::blocking::BlockingPool;
use super::gauge::{Gauges, Held};
use super::message::{Accumulator, AccumulatorMessage, SupervisorMessage, ToolStart};
use super::publish::Publisher;
use super::task::Task;
use super::tool::{Slot, ToolActor, Work, failed};
use crate::context::View;
use crate::event::Event;
use crate::tool::{ProgressSink, SharedView, ToolContext};
use crate::turn::ToolDone;
use crate::types::{CallKey, FailureKind, RunId, ToolOutcome, VariablesUse, excerpt};

/// How many progress texts one call may send; further ones are dropped.
const PROGRESS_PER_CALL_MAX: u32 = 1000;
/// How long one of them may be.
const PROGRESS_CHARS_MAX: usize = 500;

/// Starts calls, stops them, and alone reports what became of them.
#[derive(Debug)]
pub(super) struct ToolSupervisor;

/// What a supervisor needs.
pub(super) struct SupervisorSetup {
    /// A tool that keeps its context for longer than the session lives does not keep this alive.
    pub(super) publisher: Arc<Publisher>,
    pub(super) pool: BlockingPool,
    pub(super) gauges: Gauges,
}

pub(super) struct State {
    setup: SupervisorSetup,
    running: HashMap<ActorId, Running>,
    finishing: bool,
    _held: Held,
}

/// A call whose actor is alive.
struct Running {
    key: CallKey,
    actor: ActorCell,
    slot: Slot,
    /// What it does with variables, whatever becomes of its actor.
    view: SharedView,
    to: Accumulator,
    cancellation: CancellationToken,
    /// However the call ends, and if only with this supervisor: a thread that computes for it, or
    /// a task that the tool has left behind, is told.
    _over: DropGuard,
    /// How long it has once it is told to stop.
    grace: Duration,
    /// Kills the call when the grace has passed.
    end: Option<Task>,
    killed: bool,
}

impl Actor for ToolSupervisor {
    type Msg = SupervisorMessage;
    type State = State;
    type Arguments = SupervisorSetup;

    async fn pre_start(
        &self,
        _: ActorRef<SupervisorMessage>,
        setup: SupervisorSetup,
    ) -> Result<State, ActorProcessingErr> {
        let held = setup.gauges.actors.hold();
        Ok(State { setup, running: HashMap::new(), finishing: false, _held: held })
    }

    async fn handle(
        &self,
        myself: ActorRef<SupervisorMessage>,
        message: SupervisorMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMessage::StartTool(start) => state.start(&myself, *start).await,
            SupervisorMessage::AbortTool { key } => state.abort(&myself, key),
            SupervisorMessage::KillTool { key } => state.kill(key),
            SupervisorMessage::Finish => state.finish(&myself),
        }
        state.stop_if_done(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SupervisorMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, _, _) => {
                state.ended(cell.get_id(), || failed(FailureKind::Killed, "the tool was killed"));
            }
            SupervisionEvent::ActorFailed(cell, error) => state.ended(cell.get_id(), || {
                failed(FailureKind::Panic, &format!("the tool panicked: {error}"))
            }),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.stop_if_done(&myself);
        Ok(())
    }
}

impl State {
    async fn start(&mut self, myself: &ActorRef<SupervisorMessage>, start: ToolStart) {
        let ToolStart { run, agent, call, variables, idempotency_key, trace, place, to } = start;
        let view = View::new(variables, agent.limits().max_variables_bytes);
        let view: SharedView = Arc::new(Mutex::new(view));
        let key = call.key;
        let Some(registered) = agent.tools.get(&call.name) else {
            // The turn offers only tools of this very map.
            let outcome = failed(FailureKind::UnknownTool, "no tool has this name");
            report(&to, key, ToolDone { outcome, used: VariablesUse::default() });
            return;
        };
        let cancellation = CancellationToken::new();
        let slot = Slot::default();
        let work = Work {
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
            pool: registered.spec.blocking.then(|| self.setup.pool.clone()),
            slot: Arc::clone(&slot),
            place,
            held: [self.setup.gauges.actors.hold(), self.setup.gauges.tools.hold()],
        };
        match Actor::spawn_linked(None, ToolActor, work, myself.get_cell()).await {
            Ok((actor, _)) => {
                let running = Running {
                    key,
                    actor: actor.get_cell(),
                    slot,
                    view,
                    to,
                    _over: cancellation.clone().drop_guard(),
                    cancellation,
                    grace: agent.limits().cancel_grace,
                    end: None,
                    killed: false,
                };
                self.running.insert(actor.get_id(), running);
            }
            Err(error) => {
                let outcome = failed(FailureKind::Killed, &format!("not started: {error}"));
                report(&to, key, ToolDone { outcome, used: VariablesUse::default() });
            }
        }
    }

    /// Shows a call's progress for as long as the call is open.
    fn progress(
        &self,
        run: &RunId,
        key: CallKey,
        slot: &Slot,
        cancellation: &CancellationToken,
    ) -> ProgressSink {
        let (publisher, run) = (Arc::downgrade(&self.setup.publisher), run.clone());
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

    fn abort(&mut self, myself: &ActorRef<SupervisorMessage>, key: CallKey) {
        let Some(running) = self.running.values_mut().find(|running| running.key == key) else {
            return;
        };
        if running.cancellation.is_cancelled() {
            return;
        }
        running.cancellation.cancel();
        let (supervisor, grace) = (myself.clone(), running.grace);
        running.end = Some(Task::spawn(&self.setup.gauges.tasks, async move {
            tokio::time::sleep(grace).await;
            let _ = supervisor.cast(SupervisorMessage::KillTool { key });
        }));
    }

    fn kill(&mut self, key: CallKey) {
        if let Some(running) = self.running.values_mut().find(|running| running.key == key) {
            running.killed = true;
            running.actor.kill();
        }
    }

    fn finish(&mut self, myself: &ActorRef<SupervisorMessage>) {
        self.finishing = true;
        let keys: Vec<_> = self.running.values().map(|running| running.key).collect();
        for key in keys {
            self.abort(myself, key);
        }
    }

    /// Reports a call whose actor is gone. An empty slot means that the actor died.
    fn ended(&mut self, actor: ActorId, died: impl FnOnce() -> ToolOutcome) {
        let Some(running) = self.running.remove(&actor) else { return };
        let outcome = running.slot.lock().take().unwrap_or_else(died);
        let used = running.view.lock().take();
        report(&running.to, running.key, ToolDone { outcome, used });
    }

    /// A killed actor whose tool never awaits cannot be waited for.
    fn stop_if_done(&self, myself: &ActorRef<SupervisorMessage>) {
        if self.finishing && self.running.values().all(|running| running.killed) {
            myself.stop(None);
        }
    }
}

fn report(to: &Accumulator, key: CallKey, done: ToolDone) {
    // An accumulator that is gone has a successor which answers the call from the journal.
    let _ = to.cast(AccumulatorMessage::ToolFinished { key, done });
}
