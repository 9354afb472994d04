//! The tools of servers: read for the session's first run, or again on request. Also the session's own connections to
//! servers.

use std::sync::Arc;

use ractor::ActorRef;

use super::SessionActor;
use crate::runtime::error::HostError;
use crate::runtime::message::SessionMessage;
use crate::runtime::task;
use crate::runtime::tool_servers::FrozenTools;
use callsheet_values::event::{Event, ServerToolsChange, ToolListChange, WaitingFor};
use callsheet_values::types::RunId;

impl SessionActor {
    /// Reads the tools of servers. The session receives them as [`SessionMessage::ToolsRead`].
    pub(super) fn read_tools(&mut self, myself: &ActorRef<SessionMessage>) {
        self.open_connections(myself);
        let (host_ref, agent) = (self.host_ref.clone(), Arc::clone(self.agents.configured()));
        let servers = &self.host_ref.shared.catalog.tool_servers;
        let connected =
            servers.servers_for(&host_ref, Some(&self.id), |server| agent.names_server(server));
        let starting = servers.starting(&connected);
        if let (Some(run), false) = (self.session.run(), starting.is_empty()) {
            let waiting = Event::RunWaiting { waiting_for: WaitingFor::Server, servers: starting };
            self.publisher.publish(&run.id, self.session.turn(), waiting);
        }
        let myself = myself.clone();
        task::detach(async move {
            let tools = host_ref.shared.catalog.tool_servers.freeze(&agent, &connected).await;
            // A session that has ended needs no tools.
            let _ = myself.cast(SessionMessage::ToolsRead { tools });
        });
    }

    /// Gives the run that waits for them the tools of servers.
    pub(super) fn tools_read(&mut self, tools: Result<Arc<FrozenTools>, HostError>) {
        if !self.session.waits_for_tools() {
            return;
        }
        match tools {
            Ok(tools) => {
                self.session.handle_tools_read(Arc::clone(&tools.sha256));
                self.use_tools(tools);
            }
            Err(error) => self.give_up("journal_failed", &error.to_string(), None),
        }
    }

    /// Replaces the frozen tools of servers. Returns the difference.
    pub(super) fn refresh_tools(
        &mut self,
        tools: Arc<FrozenTools>,
    ) -> Result<ToolListChange, HostError> {
        self.session.handle_tools_refreshed(Arc::clone(&tools.sha256))?;
        let change = tools.change_from(self.agents.frozen().map(|before| &**before));
        self.use_tools(tools);
        Ok(change)
    }

    /// Publishes that a server has another list, if the agent names one of the changed tools. The session
    /// keeps its own list.
    pub(super) fn server_tools_changed(&self, change: Arc<ServerToolsChange>) {
        let agent = self.agents.configured();
        let mut named = ServerToolsChange::clone(&change);
        named.change.retain(|tool| agent.names_tool(tool));
        if named.change.is_empty() {
            return;
        }
        let change = if named == *change { change } else { Arc::new(named) };
        self.publish_with_or_without_run(Event::ToolsChanged { change });
    }

    /// Publishes that the session's connection to a server was ended for another session.
    pub(super) fn server_released(&self, server: Arc<str>) {
        self.publish_with_or_without_run(Event::ServerReleased { server });
    }

    fn publish_with_or_without_run(&self, event: Event) {
        let none = RunId(String::new().into());
        let run = self.session.run().map_or(&none, |run| &run.id);
        self.publisher.publish(run, self.session.turn(), event);
    }

    /// Connects the session to the servers that its agent names and that sessions do not share, unless it is
    /// connected. The connections end with this actor. Other sessions may not end them until the run has ended.
    pub(super) fn open_connections(&mut self, myself: &ActorRef<SessionMessage>) {
        if self.server_connections.is_empty() && !self.host_ref.shared.is_shutting_down() {
            let agent = self.agents.configured();
            let session = (&self.id, myself);
            let servers = &self.host_ref.shared.catalog.tool_servers;
            self.server_connections = servers.connect_session(&self.host_ref, agent, session);
        }
        self.set_connections_in_use(true);
    }

    /// Sets whether a run of the session is in progress.
    pub(super) fn set_connections_in_use(&self, is_in_use: bool) {
        self.server_connections.iter().for_each(|connection| connection.0.set_in_use(is_in_use));
    }

    fn use_tools(&mut self, tools: Arc<FrozenTools>) {
        self.agents.use_tools(tools);
        self.agents.read_tool_sources(&self.id, &self.host_ref.shared);
        if let Some(run) = self.session.run() {
            self.agents.use_for(&run.overrides);
        }
    }
}
