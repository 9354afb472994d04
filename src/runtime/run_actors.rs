//! The actors that run the turns of a session.

use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorId, ActorRef, ActorStatus, SpawnErr};

use super::accumulator::{AccumulatorActor, AccumulatorSetup};
use super::host_ref::HostRef;
use super::message::{
    AccumulatorRef, SessionMessage, StreamMessage, ToolSupervisorMessage, ToolSupervisorRef,
};
use super::publish::Publisher;
use super::references::SessionReferences;
use super::sent_requests::SessionRequests;
use super::stream::{StreamActor, StreamSetup};
use super::supervisor::{ToolSupervisor, ToolSupervisorSetup};
use crate::journal::SessionLog;
use crate::types::ParentCall;

/// The actors of a run. They stay for the next run until the session has been idle for some seconds.
pub(super) struct RunActors {
    pub(super) stream: ActorRef<StreamMessage>,
    pub(super) accumulator: AccumulatorRef,
    pub(super) supervisor: ToolSupervisorRef,
}

impl RunActors {
    /// Spawns the actors as children of the session's actor. A given tool supervisor, which has
    /// survived its accumulator, is used again.
    pub(super) async fn spawn(
        session: &ActorRef<SessionMessage>,
        epoch: u64,
        log: &Arc<SessionLog>,
        publisher: &Publisher,
        link: &HostRef,
        parent: Option<&Arc<ParentCall>>,
        supervisor: Option<ToolSupervisorRef>,
    ) -> Result<Self, SpawnErr> {
        let host = &link.shared;
        let (cell, gauges) = (session.get_cell(), &host.gauges);
        let references = Arc::new(SessionReferences {
            id: publisher.session().clone(),
            session: session.clone(),
            log: Arc::clone(log),
            link: link.clone(),
        });
        let requests = host.sent_requests.as_ref().map(|all| SessionRequests {
            session: publisher.session().clone(),
            all: Arc::clone(all),
        });
        let setup = StreamSetup { session: session.get_id(), gauges: gauges.clone(), requests };
        let (stream, _) = Actor::spawn_linked(None, StreamActor, setup, cell.clone()).await?;
        let supervisor = match supervisor {
            Some(supervisor) => supervisor,
            None => {
                let setup = ToolSupervisorSetup {
                    session: publisher.session().clone(),
                    publisher: publisher.clone(),
                    pool: host.pool.clone(),
                    tool_limiters: host.tool_limiters.clone(),
                    gauges: gauges.clone(),
                    secrets: host.secrets.clone(),
                    references: Arc::clone(&references),
                    link: link.clone(),
                    parent: parent.cloned(),
                };
                Actor::spawn_linked(None, ToolSupervisor, setup, cell.clone()).await?.0
            }
        };
        let setup = AccumulatorSetup {
            epoch,
            session: session.clone(),
            stream: stream.clone(),
            supervisor: supervisor.clone(),
            log: Arc::clone(log),
            references,
            publisher: publisher.clone(),
            tool_limiters: host.tool_limiters.clone(),
            gauges: gauges.clone(),
            parent: parent.cloned(),
        };
        let (accumulator, _) = Actor::spawn_linked(None, AccumulatorActor, setup, cell).await?;
        Ok(Self { stream, accumulator, supervisor })
    }

    pub(super) fn cells(&self) -> [ActorCell; 3] {
        [self.stream.get_cell(), self.accumulator.get_cell(), self.supervisor.get_cell()]
    }

    /// Returns the tool supervisor if it is alive.
    pub(super) fn living_supervisor(&self) -> Option<ToolSupervisorRef> {
        (self.supervisor.get_status() == ActorStatus::Running).then(|| self.supervisor.clone())
    }

    /// Returns true if no tool runs, also none that was cancelled.
    pub(super) fn run_no_tool(&self) -> bool {
        self.supervisor.get_children().is_empty()
    }

    /// Ends the stream actor, and the tool supervisor after the last call. Calls that still run are
    /// cancelled and have their grace period. Returns the supervisor and the accumulator, which
    /// receives late outcomes until the supervisor has ended.
    pub(super) fn finish(self) -> Option<(ActorId, AccumulatorRef)> {
        let Self { stream, accumulator, supervisor } = self;
        stream.stop(None);
        if supervisor.cast(ToolSupervisorMessage::Finish).is_err() {
            accumulator.stop(None);
            return None;
        }
        Some((supervisor.get_id(), accumulator))
    }
}
