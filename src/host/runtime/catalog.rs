//! The catalog of a host: what was configured, and does not change while the host runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::agent::Agent;
use super::error::HostError;
use super::models::Model;
use super::tool_limiter::ToolLimiters;
use super::tool_servers::ToolServers;
use crate::journal::SessionLog;
use callsheet_machines::session::InputLimits;
use callsheet_tools::ToolSource;
use callsheet_values::config::{ConsoleConfig, DEFAULT_AGENT, OnShutdown, Resume};
use callsheet_values::types::Secrets;

/// The configured parts of a host.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) agents: BTreeMap<String, Arc<Agent>>,
    pub(super) models: Arc<BTreeMap<String, Arc<Model>>>,
    pub(super) tool_sources: ToolSources,
    pub(super) tool_servers: Arc<ToolServers>,
    pub(super) tool_limiters: ToolLimiters,
    pub(super) secrets: Secrets,
    pub(super) console: ConsoleConfig,
    pub(super) runs_max: usize,
    /// The number of inputs that may wait in one session.
    pub(super) queued_inputs_max: usize,
    pub(super) session_bytes_max: Option<u64>,
    pub(super) on_shutdown: OnShutdown,
    pub(super) resume: Resume,
}

/// The sources of tools that are read at each run's start.
#[derive(Clone, Default)]
pub struct ToolSources(pub Vec<Arc<dyn ToolSource>>);

impl fmt::Debug for ToolSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tool sources", self.0.len())
    }
}

impl Catalog {
    /// Returns the named agent; without a name `default`, or the only agent if there is no `default`.
    ///
    /// # Errors
    /// [`HostError::UnknownAgent`] if there is none.
    pub(super) fn find_agent(&self, name: Option<String>) -> Result<Arc<Agent>, HostError> {
        let agents = &self.agents;
        let found = match &name {
            Some(name) => agents.get(name),
            None => agents
                .get(DEFAULT_AGENT)
                .or_else(|| agents.values().next().filter(|_| agents.len() == 1)),
        };
        let name = name.unwrap_or_else(|| DEFAULT_AGENT.to_owned());
        found.map(Arc::clone).ok_or_else(|| HostError::unknown_agent(name, agents))
    }

    /// Returns the limits of the next input of the session with this log.
    pub(super) fn input_limits(&self, log: &SessionLog) -> InputLimits {
        InputLimits {
            inputs_max: self.queued_inputs_max,
            stored_bytes: log.bytes(),
            stored_bytes_max: self.session_bytes_max,
        }
    }
}
