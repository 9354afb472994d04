//! Agents as tools: `[tools.NAME]` with `kind = "agent"`.

use super::Share;

/// An agent as a tool. A call runs the agent in a child session, and returns its final text.
///
/// `AgentTool` is the tool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AgentToolConfig {
    /// The name of the agent.
    pub agent: String,
    /// Maximum depth of a child session below the root session. Default: 1. If the agent tools on the path to
    /// a child have different values, the lowest applies.
    pub max_depth: u32,
    /// Maximum number of child sessions below one run of the root session, at all depths. Default: 8. If the
    /// agent tools on the path to a child have different values, the lowest applies.
    pub max_children: u32,
    /// The share of the parent run's remaining tokens, calls and time that a child may use. Not zero.
    /// Default: a half.
    pub share_of_budget: Share,
    /// The events of the child that the watchers of its parent receive. Default: those about tools.
    pub agent_events: AgentEvents,
}

impl AgentToolConfig {
    /// Configures an agent as a tool, with default values.
    pub fn new(agent: impl Into<String>) -> Self {
        Self {
            agent: agent.into(),
            max_depth: 1,
            max_children: 8,
            share_of_budget: Share::HALF,
            agent_events: AgentEvents::default(),
        }
    }
}

crate::types::impl_with!(AgentToolConfig);

/// The events of a child session that the watchers of its parent receive. Approvals are always among them.
///
/// Set in the [`AgentToolConfig`] of an `AgentTool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AgentEvents {
    /// Only approvals.
    None,
    /// Those about tool calls and limits.
    #[default]
    Tools,
    /// All.
    All,
}
