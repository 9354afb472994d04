//! What runs go by, for those who ask no model.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::agent::Agent;
use super::error::HostError;
use super::models::Model;
use crate::config::{Config, RunOverrides};
use crate::telemetry::Telemetry;
use crate::tool::ToolRegistry;
use crate::turn::TurnRules;

/// What the runs of a configuration's agents go by.
#[derive(Clone, Debug)]
pub struct AgentRules {
    agents: BTreeMap<String, Arc<Agent>>,
}

impl AgentRules {
    /// The rules of all agents. The configuration's overrides of tools are applied here.
    ///
    /// # Errors
    /// When a configured model could not be asked.
    pub fn new(config: &Config, mut tools: ToolRegistry) -> Result<Self, HostError> {
        tools.apply_overrides(&config.tools);
        let models = Arc::new(Model::all(config, &Telemetry::new(&[]))?);
        Ok(Self { agents: Agent::all(config, tools, &models)? })
    }

    /// What a run of this agent goes by.
    ///
    /// # Errors
    /// When there is no such agent, or the run changes what it may not.
    pub fn of(&self, agent: &str, overrides: &RunOverrides) -> Result<Arc<TurnRules>, HostError> {
        let found = self.agents.get(agent);
        let agent = found.ok_or_else(|| HostError::UnknownAgent(agent.to_owned()))?;
        Ok(Arc::clone(&agent.with(overrides)?.rules))
    }
}
