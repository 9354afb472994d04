//! Agents as tools: `[tools.NAME]` with `kind = "agent"`.

use super::Share;

/// An agent as a tool. A call runs the agent in a child session, and returns its final text.
///
/// [`AgentTool`](crate::tool::AgentTool) is the tool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AgentToolConfig {
    /// The name of the agent.
    pub agent: String,
    /// Maximum number of such calls between the root and a child. Default: 1. It holds for the whole tree: of
    /// several tools on the way to a child, the lowest number counts.
    pub max_depth: u32,
    /// Maximum number of child sessions of one run of the root, with those of its children. Default: 8.
    pub max_children: u32,
    /// The share that a child may use of what the run of its parent has left: of tokens, calls and time.
    /// Not zero. Default: a half.
    pub share_of_budget: Share,
    /// The events of the child that the watchers of its parent receive. Default: those about tools.
    pub agent_events: AgentEvents,
}

impl AgentToolConfig {
    /// Names the agent.
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

/// The events of a child session that the watchers of its parent receive. Open approvals are always among them.
///
/// Set in the [`AgentToolConfig`] of an [`AgentTool`](crate::tool::AgentTool).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AgentEvents {
    /// Only approvals.
    None,
    /// Those about tool calls and limits.
    #[default]
    Tools,
    /// All.
    All,
}
