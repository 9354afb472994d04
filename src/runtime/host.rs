//! The actor that supervises all sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::time::Instant;

use super::awake_session::AwakeSession;
use super::gauge::Gauge;
use super::host_ref::HostRef;
use super::host_state::{HostState, SessionSlot};
use super::maintenance;
use super::message::{HostMessage, SessionMessage};
use super::session;
use super::session_start::SessionStart;
use super::task::{self, OwnedTask};
use crate::telemetry::Telemetry;
use crate::types::SessionId;

/// The largest interval between two updates of the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// The interval at which the lag of the event loop is measured.
const LAG_PERIOD: Duration = Duration::from_millis(100);

/// The number of times that a session that died during a run is woken again.
const REVIVALS_MAX: u32 = 3;

/// Starts sessions and receives their ends.
#[derive(Debug)]
pub(super) struct HostActor;

pub(super) struct HostActorState {
    link: HostRef,
    sessions: HashMap<ActorId, (SessionId, Arc<AwakeSession>)>,
    /// The number of deaths by session.
    deaths: HashMap<SessionId, u32>,
    _upkeep: OwnedTask,
    _lag: OwnedTask,
}

impl Actor for HostActor {
    type Msg = HostMessage;
    type State = HostActorState;
    type Arguments = Arc<HostState>;

    async fn pre_start(
        &self,
        myself: ActorRef<HostMessage>,
        shared: Arc<HostState>,
    ) -> Result<HostActorState, ActorProcessingErr> {
        let link = HostRef { shared, host: myself.clone() };
        let idle = link.shared.idle_after.unwrap_or(UPKEEP);
        let period = (idle / 2).clamp(Duration::from_millis(50), UPKEEP);
        // Not counted: it lives as long as the host.
        let upkeep = OwnedTask::spawn(&Gauge::default(), async move {
            loop {
                tokio::time::sleep(period).await;
                if myself.cast(HostMessage::KeepUp { sent: Instant::now() }).is_err() {
                    return;
                }
            }
        });
        let lag = OwnedTask::spawn(&Gauge::default(), watch_lag(link.shared.telemetry.clone()));
        let (sessions, deaths) = (HashMap::new(), HashMap::new());
        Ok(HostActorState { link, sessions, deaths, _upkeep: upkeep, _lag: lag })
    }

    async fn handle(
        &self,
        myself: ActorRef<HostMessage>,
        message: HostMessage,
        state: &mut HostActorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HostMessage::Begin(opening) => state.begin(&myself, *opening).await,
            HostMessage::KeepUp { sent } => {
                state.link.shared.telemetry.metrics().host().mailbox_wait(sent.elapsed());
                maintenance::keep_up(&state.link);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<HostMessage>,
        event: SupervisionEvent,
        state: &mut HostActorState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, boxed, _) => {
                drop(boxed);
                state.ended(cell.get_id());
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                if let Some((session, _)) = state.sessions.get(&cell.get_id()) {
                    tracing::error!(%session, %error, "session_died");
                }
                state.ended(cell.get_id());
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

/// Measures how late the runtime wakes a sleeping task.
async fn watch_lag(telemetry: Telemetry) {
    loop {
        let due = Instant::now() + LAG_PERIOD;
        tokio::time::sleep_until(due).await;
        telemetry.metrics().host().event_loop_lag(due.elapsed());
    }
}

impl HostActorState {
    async fn begin(&mut self, myself: &ActorRef<HostMessage>, opening: SessionStart) {
        let (id, shared) = (opening.id.clone(), Arc::clone(&self.link.shared));
        let goes_on = opening.has_work();
        match session::spawn(opening, self.link.clone(), myself.get_cell()).await {
            Ok(live) => {
                self.sessions.insert(live.actor.get_id(), (id.clone(), Arc::clone(&live)));
                if goes_on {
                    // This is the session's first message: no request can reach it before.
                    let _ = live.actor.cast(SessionMessage::GoOn);
                }
                shared.enter(&id, &live);
                shared.update_counts();
            }
            Err(error) => shared.not_woken(&id, error),
        }
    }

    fn ended(&mut self, actor: ActorId) {
        let Some((id, live)) = self.sessions.remove(&actor) else { return };
        let shared = &self.link.shared;
        // A closed or hibernating session has left the index before.
        if shared.replace(&id, actor, Some(SessionSlot::Waking(Vec::new()))) {
            self.revive(id, live);
        }
        self.link.shared.update_counts();
    }

    /// Handles the death of a session by a bug. Its appended records are stored first. If a run was open,
    /// the session is then woken to continue it.
    fn revive(&mut self, id: SessionId, dead: Arc<AwakeSession>) {
        let deaths = self.deaths.entry(id.clone()).or_default();
        *deaths += 1;
        let ran = dead.state.running.load(Ordering::Acquire);
        let revived = ran && *deaths <= REVIVALS_MAX && !self.link.shared.is_closing();
        let link = self.link.clone();
        dead.log.close();
        task::detach(async move {
            // A record that is not stored has no effect.
            let _ = dead.log.wait_durable(dead.log.last_seq()).await;
            link.go_on_waking(&id, revived);
        });
    }
}
