//! The tools of servers: read for the session's first run, or again on request.

use std::sync::Arc;

use ractor::ActorRef;

use super::SessionActorState;
use crate::runtime::error::HostError;
use crate::runtime::message::SessionMessage;
use crate::runtime::task;
use crate::runtime::tool_servers::{FrozenTools, ToolListChange};

impl SessionActorState {
    /// Reads the tools of servers. The session receives them as [`SessionMessage::ToolsRead`].
    pub(super) fn read_tools(&self, myself: &ActorRef<SessionMessage>) {
        let (link, agent) = (self.link.clone(), Arc::clone(self.agents.configured()));
        let myself = myself.clone();
        task::detach(async move {
            let tools = link.shared.tool_servers.freeze(&agent).await;
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
            Err(error) => self.give_up("journal_failed", &error.to_string()),
        }
    }

    /// Replaces the frozen tools of servers. Returns the difference.
    pub(super) fn refresh_tools(
        &mut self,
        tools: Arc<FrozenTools>,
    ) -> Result<ToolListChange, HostError> {
        self.session.handle_tools_refreshed(Arc::clone(&tools.sha256))?;
        let change = match self.agents.frozen() {
            Some(before) => before.change_to(&tools),
            None => ToolListChange::all_added(&tools),
        };
        self.use_tools(tools);
        Ok(change)
    }

    fn use_tools(&mut self, tools: Arc<FrozenTools>) {
        self.agents.use_tools(tools);
        self.agents.read_tool_sources(&self.id, &self.shared);
        if let Some(run) = self.session.run() {
            self.agents.use_for(&run.overrides);
        }
    }
}
