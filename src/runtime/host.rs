//! The supervisor of all sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::Value;

use super::agent::Agent;
use super::error::HostError;
use super::gauge::{Gauge, Held};
use super::message::HostMessage;
use super::publish::Publisher;
use super::session::{self, Opening};
use super::shared::Shared;
use super::task::Task;
use crate::types::SessionId;

/// How often the metrics are brought up to date.
const UPKEEP: Duration = Duration::from_secs(5);

/// Begins sessions, and hears of their ends.
#[derive(Debug)]
pub(super) struct HostActor;

pub(super) struct State {
    shared: Arc<Shared>,
    sessions: HashMap<ActorId, SessionId>,
    _upkeep: Task,
}

impl Actor for HostActor {
    type Msg = HostMessage;
    type State = State;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        myself: ActorRef<HostMessage>,
        shared: Arc<Shared>,
    ) -> Result<State, ActorProcessingErr> {
        // Not counted: it lives as long as the host.
        let upkeep = Task::spawn(&Gauge::default(), async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                if myself.cast(HostMessage::KeepUp).is_err() {
                    return;
                }
            }
        });
        Ok(State { shared, sessions: HashMap::new(), _upkeep: upkeep })
    }

    async fn handle(
        &self,
        myself: ActorRef<HostMessage>,
        message: HostMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HostMessage::OpenSession { id, agent, messages, place, reply } => {
                let opened = state.open(&myself, id, agent, messages, place).await;
                // A caller that is gone finds the session by its id.
                let _ = reply.send(opened);
            }
            HostMessage::KeepUp => {
                state.shared.show_counts();
                state.shared.telemetry.upkeep();
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<HostMessage>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(cell, boxed, _) => {
                drop(boxed);
                state.ended(cell.get_id());
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                if let Some(session) = state.sessions.get(&cell.get_id()) {
                    tracing::error!(%session, %error, "session_died");
                }
                state.ended(cell.get_id());
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl State {
    async fn open(
        &mut self,
        myself: &ActorRef<HostMessage>,
        id: SessionId,
        agent: Arc<Agent>,
        messages: Vec<Value>,
        place: Held,
    ) -> Result<(), HostError> {
        let opening = Opening {
            publisher: Publisher::new(id.clone(), self.shared.telemetry.clone()),
            id: id.clone(),
            agent,
            messages,
            shared: Arc::clone(&self.shared),
            running: Arc::default(),
            held: place,
        };
        match session::spawn(opening, myself.get_cell()).await {
            Ok(session) => {
                self.sessions.insert(session.actor().get_id(), id);
                self.shared.enter(session);
                self.shared.show_counts();
                Ok(())
            }
            Err(error) => {
                self.shared.release(&id);
                Err(error)
            }
        }
    }

    fn ended(&mut self, actor: ActorId) {
        if let Some(id) = self.sessions.remove(&actor) {
            // One that was closed has left the index before.
            let died = self.shared.forget(&id, actor);
            if died {
                // Nobody can ask for them any more, and the next session of this name begins anew.
                let _ = self.shared.journal.remove(&[id]);
            }
            self.shared.show_counts();
        }
    }
}
